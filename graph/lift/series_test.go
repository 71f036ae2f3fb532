package lift_test

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph/infer"
	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/graph/onnx"
	"github.com/memplan/memplan/internal/testdata"
)

// TestSeries compares which activations update in place with the modules that
// scripts/pytorch/inplace_reference.py exported: random networks, by PyTorch 2.11 and 2.15.
func TestSeries(t *testing.T) {
	modules := map[string]map[string]bool{}
	in, right, all := 0, 0, 0
	for file, data := range testdata.Archived(t, filepath.Join("testdata", "series.tar.xz")) {
		if name, ok := strings.CutSuffix(file, ".json"); ok { // it comes before the model
			var m map[string]bool
			if err := json.Unmarshal(data, &m); err != nil {
				t.Fatal(err)
			}
			modules[name] = m
			continue
		}
		g, err := onnx.Read(bytes.NewReader(data), int64(len(data)), file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := infer.Infer(g, infer.Options{}); err != nil {
			t.Fatal(err)
		}
		l, err := lift.Lift(g)
		if err != nil {
			t.Fatal(err)
		}
		for i := range l.Graph.Nodes {
			n := &l.Graph.Nodes[i]
			want, is := modules[strings.TrimSuffix(file, ".onnx")][n.Module]
			if !is {
				continue
			}
			all++
			if want {
				in++
			}
			if l.InPlace[i] == want {
				right++
			} else {
				t.Logf("%s %s %s: in place %v", file, n.Module, n.Op, want)
			}
		}
	}
	t.Logf("%d of %d activations right, %d of them in place", right, all, in)
	if all < 100 || in < all/4 || right*100 < all*99 {
		t.Error("it got worse")
	}
}
