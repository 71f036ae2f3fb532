package infer

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/memplan/memplan/graph"
)

// An elementCase is one operator on constants, and what ONNX's reference
// evaluator makes of them: scripts/onnx_spec/elements_reference.py writes them.
type elementCase struct {
	Op    string
	Opset int64
	In    []backendValue
	Attrs map[string]any
	Out   []backendValue
}

// graph builds the case, its inputs as initializers.
func (e *elementCase) graph(t *testing.T) *graph.Graph {
	b := builder{opts: []graph.Opset{{Domain: "", Version: e.Opset}}}
	var in []graph.ValueID
	for i, v := range e.In {
		v.DType, v.Kind, v.Shape = dtypeName(v.DType), "tensor", v.Dims
		x := v.tensor()
		if x == nil {
			t.Fatalf("%s: input %d cannot be read", e.Op, i)
		}
		in = append(in, b.initializer(fmt.Sprint("x", i), x))
	}
	var attrs []graph.Attr
	for _, name := range sortedKeys(e.Attrs) {
		a := graph.Attr{Name: name}
		switch x := e.Attrs[name].(type) {
		case string:
			a.Kind, a.S = graph.AttrString, x
		case []any:
			a.Kind = graph.AttrInts
			for _, n := range x {
				i, _ := n.(json.Number).Int64()
				a.Ints = append(a.Ints, i)
			}
		case json.Number:
			if i, err := x.Int64(); err == nil {
				a.Kind, a.I = graph.AttrInt, i
				break
			}
			f, _ := x.Float64()
			a.Kind, a.F = graph.AttrFloat, float32(f)
		}
		attrs = append(attrs, a)
	}
	out := b.nodeOf("", e.Op, len(e.Out), attrs, in...)
	g := b.graph()
	g.Outputs = out
	return g
}

func dtypeName(s string) string {
	if s == "float" || s == "float32" {
		return "float"
	}
	return s
}

// The elements that inference computes are those of ONNX's reference
// evaluator, and it computes them all.
func TestElements(t *testing.T) {
	cases := lines[elementCase](t, filepath.Join("testdata", "elements.jsonl"))
	known, ops := 0, map[string]bool{}
	for i := range cases {
		e := &cases[i]
		ops[e.Op] = true
		g := e.graph(t)
		if _, err := Infer(g, Options{}); err != nil {
			t.Errorf("case %d, %s: %v", i, e.Op, err)
			continue
		}
		for k, want := range e.Out {
			v := &g.Values[g.Outputs[k]]
			want.DType, want.Kind, want.Shape = dtypeName(want.DType), "tensor", want.Dims
			dims, ok := v.Type.Shape.Static()
			switch {
			case v.Type.Elem.String() != want.DType || !ok || !slices.Equal(dims, want.Shape):
				t.Errorf("case %d, %s: output %d is %s, want %s%v", i, e.Op, k, typeText(v.Type), want.DType, want.Shape)
			case len(want.Values) == 0:
			case v.Const == nil:
				t.Errorf("case %d, %s %v: the elements of output %d are not known", i, e.Op, e.Attrs, k)
			default:
				known++
				if diff := wrongElement(v.Const, want); diff != "" {
					t.Errorf("case %d, %s %v: output %d: %s", i, e.Op, e.Attrs, k, diff)
				}
			}
		}
	}
	t.Logf("%d cases of %d operators, %d outputs", len(cases), len(ops), known)
	if len(ops) < 80 || known < 600 {
		t.Error("too few")
	}
}

// wrongElement describes the first element that differs by more than the
// rounding of its type.
func wrongElement(got *graph.Constant, want backendValue) string {
	tol := 2e-6
	if want.DType == "float16" {
		tol = 2e-3
	}
	for i, x := range want.Values {
		w, _ := number(x)
		g := 0.0
		if got.Floats != nil {
			g = got.Floats[i]
		} else {
			g = float64(got.Ints[i])
		}
		if g == w || g != g && w != w || got.Floats != nil && math.Abs(g-w) <= tol*max(1, math.Abs(w)) {
			continue
		}
		return fmt.Sprintf("element %d is %v, want %v", i, g, w)
	}
	return ""
}
