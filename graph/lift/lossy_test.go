package lift_test

import (
	"strings"
	"testing"

	"github.com/memplan/memplan/graph/lift"
)

// TestInexact: calls that leave attributes out say so, and others do not. The
// attributes are those of the ONNX operators' specification; the defaults of
// PyTorch's functions are in torch.nn.functional.
func TestInexact(t *testing.T) {
	const attention = `(float[2,4,8,16] q, float[2,4,8,16] k, float[2,4,8,16] v) => (float[2,4,8,16] y) {
		s = Constant<value = float {SCALE}>() kt = Transpose<perm = [0,1,3,2]>(k) qs = OP(q, s) ks = OP(kt, s) a = MatMul(qs, ks) p = Softmax(a) y = MatMul(p, v) }`
	unary := func(call string) string { return `(float[1,2,6,6] x) => (float[1,2,A,A] y) { y = ` + call + ` }` }
	cumsum := func(axis, attrs string) string {
		return `(float[3,2] x) => (float[3,2] y) { a = Constant<value = int64 {` + axis + `}>() y = CumSum` + attrs + `(x, a) }`
	}
	for _, c := range []struct {
		graph, why string // why is empty for calls that are exact
	}{
		{strings.NewReplacer("SCALE", "0.5", "OP", "Mul").Replace(attention), ""},
		{strings.NewReplacer("SCALE", "2.0", "OP", "Div").Replace(attention), ""},
		{strings.NewReplacer("SCALE", "0.7", "OP", "Mul").Replace(attention), ""},
		{strings.NewReplacer("SCALE", "0.0", "OP", "Mul").Replace(attention), "the scale of attention"},
		{`(float[2,4,8,16] q, float[2,4,8,16] k, float[2,4,8,16] v) => (float[2,4,8,16] y) { y = Attention<scale = 0.25>(q, k, v) }`, ""},
		{`(float[2,4,8,16] q, float[2,4,8,16] k, float[2,4,8,16] v) => (float[2,4,8,16] y) { y = Attention<scale = 0.5>(q, k, v) }`, ""},
		{`(float[2,4,8,16] q, float[2,4,8,16] k, float[2,4,8,16] v) => (float[2,4,8,16] y) { y = Attention<scale = -0.5>(q, k, v) }`, "attributes of Attention"},
		{unary("HardSigmoid<alpha = 0.16666667>(x)"), ""},
		{unary("HardSigmoid(x)"), "attributes of HardSigmoid"},
		{unary("Selu(x)"), ""},
		{unary("Selu<alpha = 2.0>(x)"), ""},
		{unary("AveragePool<kernel_shape = [2,2], pads = [1,1,1,1]>(x)"), ""},
		{unary(`AveragePool<kernel_shape = [2,2], auto_pad = "SAME_UPPER">(x)`), "attributes of AveragePool"},
		{unary(`AveragePool<kernel_shape = [3,3], auto_pad = "SAME_LOWER">(x)`), ""},
		{unary("AveragePool<kernel_shape = [2,2], pads = [1,0,0,1], count_include_pad = 1>(x)"), ""},
		{unary("AveragePool<kernel_shape = [2,2], pads = [1,0,0,1], count_include_pad = 1, ceil_mode = 1>(x)"), "attributes of AveragePool"},
		{unary("MaxPool<kernel_shape = [3,3], pads = [0,0,1,1], ceil_mode = 1>(x)"), "attributes of MaxPool"},
		{unary("MaxPool<kernel_shape = [2,2], strides = [2,2]>(x)"), ""},
		{unary("MaxPool<kernel_shape = [3,3], pads = [0,0,1,1]>(x)"), ""},
		{`(float[3,2] x) => (float[3,5] y) { p = Constant<value = int64[2] {1,2}>() v = Constant<value = float {2.5}>() a = Constant<value = int64[1] {-1}>() y = Pad(x, p, v, a) }`, ""},
		{`(float[3,2] x, float v) => (float[3,5] y) { p = Constant<value = int64[4] {0,1,0,2}>() y = Pad(x, p, v) }`, "attributes of Pad"},
		{`(float[4,3] x, int64[5,1] i) => (float[5,3] y) { y = GatherND(x, i) }`, ""},
		{`(float[4,3] x, int64[5,2] i) => (float[5] y) { y = GatherND(x, i) }`, "attributes of GatherND"},
		{`(int64[4,3] x, int64[5,2] i) => (int64[5] y) { y = GatherND(x, i) }`, ""},
		{`(int64[4,3] x, int64[4,1] i) => (int64[4] y) { y = GatherND<batch_dims = 1>(x, i) }`, "attributes of GatherND"},
		{cumsum("0", ""), ""},
		{cumsum("1", ""), ""},
		{cumsum("-1", ""), ""},
		{cumsum("-1", "<exclusive = 1>"), "attributes of CumSum"},
		{cumsum("0", "<reverse = 1>"), "attributes of CumSum"},
		{`(float[2,3] a, float[3,4] b, float[4] c) => (float[2,4] y) { y = Gemm(a, b, c) }`, ""},
		{`(float[2,3] a, float[3,4] b, float[4] c) => (float[2,4] y) { y = Gemm<alpha = 0.5>(a, b, c) }`, ""},
		{`(float[2,3] a, float[3,4] b) => (float[2,4] y) { y = Gemm<alpha = 0.5>(a, b) }`, "attributes of Gemm"},
		{`(float[2,3] a, float[3,4] b) => (float[2,4] y) { y = Gemm<beta = 0.5>(a, b) }`, ""},
		{`(float[2,3] a, float[4,3] b, float[4] c) => (float[2,4] y) { y = Gemm<beta = 0.5, transB = 1>(a, b, c) }`, "attributes of Gemm"},
		{`(float[3,2] a, float[3,4] b) => (float[2,4] y) { y = Gemm<transA = 1>(a, b) }`, ""},
	} {
		l := liftText(t, strings.ReplaceAll(c.graph, "A,A", "6,6"))
		got := ""
		for i := range l.Graph.Nodes {
			if why := l.Graph.Nodes[i].MetaValue(lift.InexactKey); why != "" {
				got = why
			}
		}
		if got != c.why {
			t.Errorf("%q, want %q:\n%s\n%s", got, c.why, c.graph, calls(l))
		}
	}
}
