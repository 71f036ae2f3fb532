package infer

import (
	"fmt"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
)

// An opRow is a graph around one operator, and the types of its outputs or
// the error it must give. OP in the text stands for every one of the names.
type opRow struct {
	ops   string // names, with domain unless ai.onnx
	opset int64  // 0: 23
	text  string // (inputs) => (outputs) <initializers> { nodes }
	want  string // types of the outputs, and elements if known, separated by "; "
	err   string // part of the error; "" for none
}

// parse builds the graph of a row.
func parse(t testing.TB, opset int64, text string) *graph.Graph {
	t.Helper()
	if opset == 0 {
		opset = 23
	}
	head := fmt.Sprintf(`<ir_version: 10, opset_import: ["" : %d, "com.microsoft" : 1, "ai.onnx.ml" : 3, "ai.onnx.preview.training" : 1, "ai.onnx.preview" : 1, "onnx.brevitas" : 1, "qonnx.custom_op.general" : 1, "com.microsoft.extensions" : 1, "local" : 1]> g `, opset)
	g, err := graph.Parse(strings.NewReader(head + text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	for i := range g.Values {
		if g.Values[i].Kind == graph.Computed && i >= 0 {
			g.Values[i].Decl = graph.Type{}
		}
	}
	return g
}

// outputs describes the graph's outputs: types, and elements where known.
func outputs(g *graph.Graph) string {
	var out []string
	for _, id := range g.Outputs {
		v := &g.Values[id]
		s := typeText(v.Type)
		if v.Const != nil && v.Const.Ints != nil {
			s += strings.ReplaceAll(strings.Trim(fmt.Sprint(v.Const.Ints), "[]"), " ", ",")
		} else if v.Const != nil && v.Const.Floats != nil {
			s += strings.ReplaceAll(strings.Trim(fmt.Sprint(v.Const.Floats), "[]"), " ", ",")
		}
		if n, ok := v.Type.Len.Int(); ok && v.Type.Kind == graph.SequenceType {
			s += fmt.Sprint("*", n)
		}
		out = append(out, s)
	}
	return strings.Join(out, "; ")
}

func TestOps(t *testing.T) {
	covered := map[string]bool{}
	for _, r := range opRows {
		for _, op := range strings.Fields(r.ops) {
			covered[op] = true
			text := strings.ReplaceAll(r.text, "OP", op)
			g := parse(t, r.opset, text)
			_, err := Infer(g, Options{})
			switch {
			case r.err != "" && (err == nil || !strings.Contains(err.Error(), r.err)):
				t.Errorf("%s: error %v, want %q", text, err, r.err)
			case r.err == "" && err != nil:
				t.Errorf("%s: %v", text, err)
			case r.err == "" && outputs(g) != r.want:
				t.Errorf("%s:\n got %s\nwant %s", text, outputs(g), r.want)
			}
		}
	}
	for _, op := range Ops {
		name := op.Name
		if op.Domain != "" {
			name = op.Domain + "." + name
		}
		if !covered[name] {
			t.Errorf("no row tests %s", name)
		}
	}
}
