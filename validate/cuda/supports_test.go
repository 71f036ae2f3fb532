//go:build cuda

package cuda

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/validate"
)

// TestSupports: every call of the exported training steps runs here, whichever
// exporter wrote the model and in whichever precision.
func TestSupports(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(testdata.Shared(t, "models"), "*train*.onnx"))
	if err != nil || len(files) == 0 {
		t.Fatal("no models of training steps", err)
	}
	gpu := open(t, Options{})
	for _, f := range files {
		for _, precision := range []string{"fp32", "bf16", "amp-bf16"} {
			t.Run(strings.TrimSuffix(filepath.Base(f), ".onnx")+"/"+precision, func(t *testing.T) {
				m, err := planner.Open(f)
				if err != nil {
					t.Fatal(err)
				}
				p, err := m.Program(planner.Config{Batch: 2, Optimizer: "adamw", Precision: precision})
				if err != nil {
					t.Fatal(err)
				}
				for _, u := range validate.Unsupports(gpu, p.Program) {
					t.Errorf("%s %q: %s (%d times)", u.Op, u.Node, u.Reason, u.Count)
				}
			})
		}
	}
}
