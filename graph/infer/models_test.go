package infer

import (
	"os"
	"path/filepath"
	"slices"
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

// Dims that inference leaves as expressions must evaluate to what inference
// finds when the symbols are bound beforehand.
func TestExpressionsMatchBoundInference(t *testing.T) {
	compared, models := 0, 0
	for _, path := range append(files(t, "models"), files(t, "onnx", "real")...) {
		g := load(t, path)
		stripAll(g)
		r, err := Infer(g, Options{})
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		symbolic := allShapes(g, nil)
		env := map[string]int64{}
		for i, s := range Unbound(g) {
			env[s] = []int64{4, 16, 64, 128}[i%4]
		}
		for _, b := range r.Bounds {
			delete(env, b.Symbol) // depends on what is computed
		}
		if len(env) == 0 {
			continue
		}
		for _, n := range []int64{0, 1} {
			for s := range env {
				env[s] += n
			}
			if _, err := Infer(g, Options{Dims: env}); err != nil {
				t.Logf("%s at %v: %v", filepath.Base(path), env, err)
				continue
			}
			models++
			for i, bound := range allShapes(g, nil) {
				compared += compareAt(t, path, symbolic[i], bound, env)
			}
		}
	}
	t.Logf("%d dims of %d bindings", compared, models)
	if compared < 50000 {
		t.Errorf("only %d dims compared", compared)
	}
}

// strip removes the declarations of computed values, also in subgraphs.
func strip(g *graph.Graph) {
	for i := range g.Values {
		if g.Values[i].Kind == graph.Computed {
			g.Values[i].Decl = graph.Type{}
		}
	}
	for i := range g.Nodes {
		for _, sub := range g.Nodes[i].Subgraphs() {
			strip(sub)
		}
	}
}

// stripAll is strip of a main graph and the local functions.
func stripAll(g *graph.Graph) {
	strip(g)
	for _, f := range g.Model.Functions {
		strip(f.Body)
	}
}

type namedShape struct {
	name  string
	shape graph.Shape
}

// allShapes lists the shapes of the values of g and its subgraphs.
func allShapes(g *graph.Graph, out []namedShape) []namedShape {
	for i := range g.Values {
		out = append(out, namedShape{g.Values[i].Name, g.Values[i].Type.Shape})
	}
	for i := range g.Nodes {
		for _, sub := range g.Nodes[i].Subgraphs() {
			out = allShapes(sub, out)
		}
	}
	return out
}

func compareAt(t *testing.T, path string, a, b namedShape, env map[string]int64) (compared int) {
	t.Helper()
	if a.shape == nil || b.shape == nil {
		return 0
	}
	if len(a.shape) != len(b.shape) {
		t.Errorf("%s: %s: %s and %s", filepath.Base(path), a.name, text(a.shape), text(b.shape))
		return 0
	}
	for k, d := range a.shape {
		want, ok := b.shape[k].Int()
		got, err := d.Eval(env)
		if err != nil || !ok {
			continue
		}
		if got != want {
			t.Errorf("%s at %v: %s: %s, bound %s", filepath.Base(path), env, a.name, text(a.shape), text(b.shape))
		}
		compared++
	}
	return compared
}

// Models with a symbolic batch whose inputs are then declared with a fixed
// one: where another batch is accepted, every shape is what binding the
// symbol gives.
func TestRebindAgainstSymbols(t *testing.T) {
	accepted, refused, compared := 0, 0, 0
	paths := append(files(t, "models"), files(t, "onnx", "real")...)
	for i, path := range append(paths, paths...) {
		fixed := graph.Int(2) // which some other dim may be, too
		if i >= len(paths) {
			fixed = graph.Int(7)
		}
		g := load(t, path)
		stripAll(g)
		lead := ""
		if len(g.Inputs) > 0 {
			if d := g.Values[g.Inputs[0]].Decl; len(d.Shape) > 0 {
				lead, _ = d.Shape[0].Symbol()
			}
		}
		if lead == "" {
			continue
		}
		if _, err := Infer(g, Options{Dims: map[string]int64{lead: 5}}); err != nil {
			continue
		}
		want := allShapes(g, nil)
		for _, id := range g.Inputs {
			v := &g.Values[id]
			v.Decl.Shape = slices.Clone(v.Decl.Shape)
			for i, d := range v.Decl.Shape {
				v.Decl.Shape[i] = d.Subst(map[string]graph.Dim{lead: fixed})
			}
			if len(v.Decl.Shape) > 0 {
				if _, isInt := v.Decl.Shape[0].Int(); !isInt && v.Decl.Shape[0].Known() {
					v.Decl.Shape[0] = fixed // a second name for the batch
				}
			}
		}
		if _, err := Infer(g, Options{Batch: 5}); err != nil {
			refused++
			t.Logf("refused: %s: %v", filepath.Base(path), err)
			continue
		}
		accepted++
		for i, got := range allShapes(g, nil) {
			for k := range min(len(got.shape), len(want[i].shape)) {
				a, ok1 := got.shape[k].Int()
				b, ok2 := want[i].shape[k].Int()
				if !ok1 || !ok2 {
					continue
				}
				if compared++; a != b {
					t.Errorf("%s: %s: %s, bound %s", filepath.Base(path), got.name, text(got.shape), text(want[i].shape))
				}
			}
		}
	}
	t.Logf("%d models rebound, %d refused, %d dims compared", accepted, refused, compared)
	if accepted < 80 || compared < 50000 {
		t.Error("too few models accepted")
	}
}
