package planner

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/internal/testdata"
)

// TestNoFalseDoubts holds files that were exported in train mode, whose peaks were
// measured, to the claim that nothing in them speaks for another mode.
func TestNoFalseDoubts(t *testing.T) {
	testdata.Sequential(t)
	for _, c := range collections(t) {
		seen := map[string]bool{}
		for _, r := range c.runs(t) {
			if seen[r.Name] {
				continue
			}
			seen[r.Name] = true
			rep, err := c.open(t, r.Name).Analyze(t.Context(), Config{Batch: 2, Precision: "fp32", Optimizer: "sgd", Checkpoint: "none"})
			if err != nil {
				t.Errorf("%s: %v", r.Name, err)
				continue
			}
			if d := rep.Doubts(); len(d) > 0 {
				t.Errorf("%s/%s: %s: %s", c.name, r.Name, d[0].Code, d[0].Message)
			}
		}
	}
}

// TestDoubts asks about training steps and inferences of files by how they were
// exported: eval and train, with and without metadata.
func TestDoubts(t *testing.T) {
	testdata.Sequential(t)
	files, err := filepath.Glob(filepath.Join(testdata.Shared(t, "models"), "*.onnx"))
	if err != nil || len(files) == 0 {
		t.Fatal("no models")
	}
	for _, file := range files {
		m, err := Open(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, mode := range []string{"train", "infer"} {
			rep, err := m.Analyze(t.Context(), Config{Batch: 2, Mode: mode, Precision: "fp32", Checkpoint: "none"})
			if err != nil {
				t.Fatal(err)
			}
			d := rep.Doubts()
			// vit_b_16 drops nothing by default: training it, it computes what its inference does.
			want := mode == "train" && strings.Contains(file, ".dyn-eval") && !strings.Contains(file, "vit_b_16")
			if want != (len(d) > 0) {
				t.Errorf("%s, %s: doubts %v", filepath.Base(file), mode, d)
			}
			if want && len(d) > 0 && (d[0].Code != lift.EvalMode || rep.Warnings[0] != d[0]) {
				t.Errorf("%s: the first warning is %v, not that of the mode", filepath.Base(file), rep.Warnings[0])
			}
		}
	}
}
