package infer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/onnx"
	"github.com/memplan/memplan/internal/testdata"
)

// files returns the ONNX files in a directory of the shared test data.
func files(t testing.TB, elem ...string) []string {
	t.Helper()
	dir := testdata.Shared(t, elem...)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".onnx") {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	return out
}

func load(t testing.TB, path string) *graph.Graph {
	t.Helper()
	g, err := onnx.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// Every value of the sample models has a complete type, with and without a
// batch, and the exporter's declarations, evaluated at the same batch, agree.
func TestModels(t *testing.T) {
	for _, path := range files(t, "models") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			g := load(t, path)
			for _, opt := range []Options{{}, {Dims: map[string]int64{"batch": 2}}} {
				r, err := Infer(g, opt)
				if err != nil {
					t.Fatal(err)
				}
				if len(r.Bounds) > 0 {
					t.Errorf("made up %v", r.Bounds)
				}
				for _, w := range r.Warnings {
					t.Errorf("warning: %+v", w)
				}
				checkComplete(t, g, opt.Dims)
			}
			if left := Unbound(g); len(left) > 0 {
				t.Errorf("unbound: %v", left)
			}
		})
	}
}

// checkComplete compares every value with its declaration at the given dims.
func checkComplete(t *testing.T, g *graph.Graph, dims map[string]int64) {
	t.Helper()
	compared := 0
	for i := range g.Values {
		v := &g.Values[i]
		if v.Type.Kind == graph.SequenceType {
			continue
		}
		if v.Type.Kind != graph.TensorType || v.Type.Elem == graph.Undefined || v.Type.Shape == nil {
			t.Fatalf("%s: %s", v.Name, typeText(v.Type))
		}
		if v.Decl.Shape == nil {
			continue
		}
		if len(v.Decl.Shape) != len(v.Type.Shape) || v.Decl.Elem != v.Type.Elem {
			t.Fatalf("%s: %s, declared %s", v.Name, typeText(v.Type), typeText(v.Decl))
		}
		for k, d := range v.Decl.Shape {
			want, err := d.Eval(dims)
			if err != nil {
				continue // a symbol of the exporter's that says nothing
			}
			if got, ok := v.Type.Shape[k].Int(); !ok || got != want {
				t.Errorf("%s: %s, declared %s", v.Name, typeText(v.Type), typeText(v.Decl))
			}
			compared++
		}
	}
	if compared == 0 {
		t.Error("nothing to compare")
	}
}
