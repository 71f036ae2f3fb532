package planner

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/internal/testdata"
)

// TestTypes compares what autograd saves in float32, in half precision and under
// autocast with PyTorch's fake tensors (scripts/pytorch/types_reference.py), of float32 files
// of models that cast: every byte, with the lines of the source and, where nothing
// of those is needed, without.
func TestTypes(t *testing.T) {
	testdata.Sequential(t)
	files, want := map[string][]byte{}, map[string]map[string]int64{}
	for name, data := range testdata.Archived(t, filepath.Join("testdata", "types.tar.xz")) {
		files[name] = data
	}
	if err := json.Unmarshal(files["saved.json"], &want); err != nil {
		t.Fatal(err)
	}
	if len(want) == 0 {
		t.Fatal("no models")
	}
	for name, runs := range want {
		path := filepath.Join(t.TempDir(), name+".onnx")
		if err := os.WriteFile(path, files[name+".onnx"], 0o600); err != nil {
			t.Fatal(err)
		}
		for precision, bytes := range runs {
			cfg := Config{Precision: precision, Loss: "sum", Attention: "eager", Optimizer: "none", Checkpoint: "none", Runtime: measuredRelease}
			for _, stripped := range []bool{false, true} {
				m, err := Open(path)
				if err != nil {
					t.Fatal(err)
				}
				if stripped {
					stripLines(m.g)
				}
				rep, err := m.Analyze(t.Context(), cfg)
				if err != nil {
					t.Errorf("%s %s: %v", name, precision, err)
					continue
				}
				if needed := name == "table" || name == "guided"; rep.SavedBytes != bytes && !(stripped && needed && precision != "fp32") {
					t.Errorf("%s %s, lines stripped %v: saves %d bytes, PyTorch %d", name, precision, stripped, rep.SavedBytes, bytes)
				}
				proven := warned(rep.Warnings, "cast-assumed")
				if stripped && proven != (precision == "bf16" && slices.Contains([]string{"sinusoid", "unetcond", "dit"}, name)) {
					t.Errorf("%s %s: warns of assumed casts: %v", name, precision, proven)
				}
			}
		}
	}
}

// stripLines takes source lines out of a graph, as tools do.
func stripLines(g *graph.Graph) {
	for i := range g.Nodes {
		n := &g.Nodes[i]
		n.Meta = slices.DeleteFunc(slices.Clone(n.Meta), func(p graph.Prop) bool { return p.Key == "pkg.torch.onnx.stack_trace" })
	}
}
