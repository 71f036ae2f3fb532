package infer

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
)

// Results that depend on data: types, and the upper bounds of what inference
// makes up.
func TestDataDependent(t *testing.T) {
	for _, c := range []struct{ text, want, bounds string }{
		{"(float[N,2] x, float[M] y, bool c) => (z) { z = If(c)<then_branch = a () => (p) { p = Relu(x) }, else_branch = b () => (q) { q = Relu(y) }> }", "float[...]", ""},
		{"(float[N,2] x, float[N,3] y, bool c) => (z) { z = If(c)<then_branch = a () => (p) { p = Relu(x) }, else_branch = b () => (q) { q = Relu(y) }> }", "float[N,if0]", "if0<=3"},
		{"(float[N] x, bool k) => (y) { o = If(k)<then_branch = a () => (p) { p = Optional(x) }, else_branch = b () => (q) { q = Optional<type: type_proto = float[N]>() }> y = OptionalGetElement(o) }", "float[N]", ""},
		{"() => (y) { o = Optional<type: type_proto = float[3]>() y = OptionalHasElement(o) }", "bool[]0", ""},
		{"(float[N] x, int64 m) => (y) { y = Loop(m, , x)<body = b (int64 i, bool c, float[K] h) => (c2, h2) { c2 = Identity(c) h2 = Concat<axis = 0>(h, x) }> }", "float[loop0]", "loop0<=?"},
		{"(float[N] x) => (y) <int64 m = {4}> { e = SequenceEmpty() y = Loop(m, , e)<body = b (int64 i, bool c, seq(float) h) => (c2, h2) { c2 = Identity(c) h2 = SequenceInsert(h, x) }> }", "seq(float[N])*4", ""},
		{"(float[N,6] x) => (y) <int64 m = {3}, bool t = {1}> { y = Loop(m, t, x)<body = b (int64 i, bool c, float[P,Q] h) => (c2, h2) { two = Constant<value_int = 1>() c2 = Less(i, two) h2 = Concat<axis = 1>(h, h) }> }", "float[N,24]", ""},
		{"(float[B,4] h, float[B,S,4] x) => (y, s) { y, s = Scan<num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [-1], scan_input_directions = [1], body = b (float[B,4] a, float[B,4] p) => (c, d) { c = Add(a, p) d = Identity(c) }>(h, x) }", "float[B,4]; float[B,4,S]", ""},
		{"(float[S,B,4] x, float[S,B] w) => (s, t) { s, t = Scan<num_scan_inputs = 2, body = b (float[B,4] p, float[B] q) => (d, e) { d = Relu(p) e = Relu(q) }>(x, w) }", "float[S,B,4]; float[S,B]", ""},
		{"(int64[K] x) => (y, z) { u, i = TopK(x, k) k = Constant<value_ints = [3]>() y = Unique(u) z = NonZero(x) }", "int64[unique0]; int64[1,nonzero0]", "unique0<=3 nonzero0<=K"},
		{"(float[N,80] s, float[1,N,4] b) => (y) <int64 m = {100}> { t = Transpose(s) a = Constant<value_ints = [0]>() u = Unsqueeze(t, a) y = NonMaxSuppression(b, u, m) }", "int64[nonmaxsuppression0,3]", "nonmaxsuppression0<=80*Min(100, N)"},
		{"(float[2,N] x) => (z) { n = NonZero(x) t = Transpose(n) y = GatherND(x, t) s = Shape(y) z = Expand(o, s) o = Constant<value_float = 1.0>() }", "float[nonzero0]", "nonzero0<=2*N"},
		{"(float[N] x, int64 k) => (z) { z = Slice(x, a, b) a = Constant<value_ints = [0]>() b = Unsqueeze(k, a) }", "float[slice0]", "slice0<=N"},
		{"(float[N,C] x, int64[1] k) => (z) { z, i = TopK(x, k) }", "float[N,topk0]", "topk0<=C"},
		{"(float[N,C] x) => (z) { z = SplitToSequence(x, k) k = Constant<value_ints = [1, 2]>() }", "seq(float[?,C])*2", ""},
	} {
		got, r := inferText(t, c.text, Options{})
		var bounds []string
		for _, b := range r.Bounds {
			bounds = append(bounds, b.Symbol+"<="+b.Max.String())
		}
		if b := strings.Join(bounds, " "); got != c.want || b != c.bounds {
			t.Errorf("%s:\n got %s, %s\nwant %s, %s", c.text, got, b, c.want, c.bounds)
		}
	}
}

// A body is a random sequence of operators on the state h and the outer
// value x, written with any prefix before the names of its values.
type body struct{ steps []string }

func randomBody(r *rand.Rand) body {
	var b body
	for range 1 + r.IntN(3) {
		b.steps = append(b.steps, []string{
			"%s = Relu(%s)", "%s = Transpose(%s)", "%s = Concat<axis = 0>(%[2]s, %[2]s)", "%s = Concat<axis = 1>(%[2]s, x)", "%s = MatMul(%s, x)",
			"%s = ReduceSum<keepdims = 1>(%s, one)", "%s = Slice(%s, zero, one, zero)", "%s = Concat<axis = 0>(%[2]s, x)", "%s = Softmax(%s)", "%s = Add(%s, %[2]s)",
		}[r.IntN(10)])
	}
	return b
}

// text writes the body's nodes, from the value in to the value out.
func (b *body) text(prefix, in, out string) string {
	var t strings.Builder
	for i, s := range b.steps {
		to := fmt.Sprint(prefix, i)
		if i == len(b.steps)-1 {
			to = out
		}
		fmt.Fprintf(&t, " "+s, to, in)
		in = to
	}
	return t.String()
}

// covers reports whether every run of type run has type t: its dims are those
// or are not known.
func covers(t, run graph.Type) bool {
	if t.Elem != run.Elem || t.Shape != nil && len(t.Shape) != len(run.Shape) {
		return false
	}
	for i, d := range t.Shape {
		if n, ok := d.Int(); ok {
			if m, _ := run.Shape[i].Int(); m != n {
				return false
			}
		}
	}
	return true
}

// A Loop is what its body written out as often gives: exactly where the trip
// count is known, and covering every count where it is not. An If is the
// branch that is taken, or covers both.
func TestControlAgainstUnrolled(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	head := "(float[%d,%d] x, int64 m, bool k) => (y) <int64[1] one = {1}, int64[1] zero = {0}, int64 trips = {%d}, bool yes = {1}, bool no = {0}> {"
	exact, loose, branches := 0, 0, 0
	infer := func(nodes string, rows, cols, n int) (graph.Type, bool) {
		g := parse(t, 0, fmt.Sprintf(head, rows, cols, n)+nodes+" }")
		if _, err := Infer(g, Options{}); err != nil {
			return graph.Type{}, false
		}
		return g.Values[g.Outputs[0]].Type, true
	}
	for range 3000 {
		b, c := randomBody(r), randomBody(r)
		rows, cols, n := 1+r.IntN(3), 1+r.IntN(3), 1+r.IntN(4)
		var unrolled strings.Builder
		at := "x"
		for i := range n {
			to := fmt.Sprint("h", i)
			if i == n-1 {
				to = "y"
			}
			unrolled.WriteString(b.text(fmt.Sprint("v", i, "_"), at, to))
			at = to
		}
		want, good := infer(unrolled.String(), rows, cols, n)
		loop := " y = Loop(%s, , x)<body = b (int64 i, bool c, float[P,Q] h) => (c2, h2) { c2 = Identity(c)" + b.text("w", "h", "h2") + " }>"
		if got, ok := infer(fmt.Sprintf(loop, "trips"), rows, cols, n); good && ok {
			exact++
			if typeText(got) != typeText(want) {
				t.Errorf("%d times %v on [%d,%d]: %s, unrolled %s", n, b.steps, rows, cols, typeText(got), typeText(want))
			}
		} else if good {
			t.Errorf("%d times %v on [%d,%d]: an error, unrolled %s", n, b.steps, rows, cols, typeText(want))
		}
		if got, ok := infer(fmt.Sprintf(loop, "m"), rows, cols, n); good && ok {
			loose++
			if !covers(got, want) {
				t.Errorf("any times %v on [%d,%d]: %s, but %d times %s", b.steps, rows, cols, typeText(got), n, typeText(want))
			}
		}
		one, ok1 := infer(b.text("v", "x", "y"), rows, cols, n)
		two, ok2 := infer(c.text("v", "x", "y"), rows, cols, n)
		if !ok1 || !ok2 {
			continue
		}
		branch := " y = If(%s)<then_branch = a () => (p) {" + b.text("v", "x", "p") + " }, else_branch = e () => (q) {" + c.text("w", "x", "q") + " }>"
		for cond, want := range map[string]graph.Type{"yes": one, "no": two} {
			branches++
			if got, ok := infer(fmt.Sprintf(branch, cond), rows, cols, n); !ok || typeText(got) != typeText(want) {
				t.Errorf("If %s of %v and %v: %s, want %s", cond, b.steps, c.steps, typeText(got), typeText(want))
			}
		}
		if got, ok := infer(fmt.Sprintf(branch, "k"), rows, cols, n); !ok || !covers(got, one) || !covers(got, two) {
			t.Errorf("If of %v and %v: %s, branches %s and %s", b.steps, c.steps, typeText(got), typeText(one), typeText(two))
		}
	}
	t.Logf("%d loops of known and %d of unknown length, %d branches", exact, loose, branches)
	if exact < 1000 || loose < 500 || branches < 2000 {
		t.Error("too few compared")
	}
}
