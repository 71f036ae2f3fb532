package lift_test

import (
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/infer"
	"github.com/memplan/memplan/graph/lift"
)

// TestRewritten reads off files whether a pass rewrote them so that a training step
// cannot be told.
func TestRewritten(t *testing.T) {
	const (
		drop  = `rate = Constant<value = float {0.25}>() true = Constant<value = bool {1}>() [node_d] b = Dropout(a, rate, true)`
		bn    = `<float[2] g = {1,1}, float[2] h = {0,0}>`
		batch = `{ [node_r] a = Relu(x) [node__native_batch_norm_legit_functional__0] y = BatchNormalization(a, g, h, h, g) }`
	)
	for _, c := range []struct{ name, opsets, graph, says string }{
		{"bare", "", `(float[2,2] x) => (float[2,2] y) { [node_a] a = Relu(x) [node_y] y = Exp(a) }`, "no word of the exporter's metadata"},
		{"bare, with dropout", "", `(float[2,2] x) => (float[2,2] y) { [node_a] a = Relu(x) ` + drop + ` [node_y] y = Exp(b) }`, ""},
		{"another exporter's", "", `(float[2,2] x) => (float[2,2] y) { [first] a = Relu(x) [second] y = Exp(a) }`, ""},
		{"normalisation that trains", "", `(float[4,2] x) => (float[4,2] y) ` + bn + batch, ""},
		{"onnxruntime", `, "com.microsoft.nchwc" : 1`, `(float[4,2] x) => (float[4,2] y) ` + bn + batch, "onnxruntime's optimizer"},
		{"onnxruntime, with dropout", `, "com.microsoft.nchwc" : 1`, `(float[2,2] x) => (float[2,2] y) { [node_a] a = Relu(x) ` + drop + ` [node_y] y = Exp(b) }`, ""},
		{"simplifier", "", `(float[2,2] x) => (float[2,3] y) <float[2,3] "_v_7" = {}> { [node_a] a = Relu(x) ` + drop + ` [node_y] y = MatMul(b, "_v_7") }`, "a simplifier, which computed weights from others (_v_7)"},
	} {
		g, err := graph.Parse(strings.NewReader(`<ir_version: 10, opset_import: ["" : 18` + c.opsets + `]> g ` + c.graph))
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		g.Model.Producer = "pytorch 2.15.0"
		if _, err := infer.Infer(g, infer.Options{}); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		l, err := lift.Lift(g)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		said := ""
		for _, w := range l.Warnings {
			if w.Code == lift.EvalMode {
				said = w.Message
			}
		}
		if !strings.Contains(said, c.says) || (c.says == "") != (said == "") {
			t.Errorf("%s: got %q, want %q", c.name, said, c.says)
		}
	}
}
