package infer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
)

// infer infers a graph in text form and returns its outputs.
func inferText(t *testing.T, text string, opt Options) (string, *Result) {
	t.Helper()
	g := parse(t, 0, text)
	r, err := Infer(g, opt)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return outputs(g), r
}

func TestBatch(t *testing.T) {
	for _, c := range []struct {
		text  string
		batch int64
		want  string // outputs
		err   string
	}{
		// symbols
		{"(float[N,3] x, int64[N] t) => (y) { y = Relu(x) }", 4, "float[4,3]", ""},
		{"(float[B,S] x, float[S] m) => (y) { y = Add(x, m) }", 4, "float[4,S]", ""},
		{"(float[?,3] x) => (y) { y = Relu(x) }", 4, "float[4,3]", ""},
		{"(float[A,3] x, float[B,3] z) => (y) { y = Add(x, z) }", 4, "float[4,3]", ""},
		{"(float[S,B] x, float[B,S] y) => (z) { z = MatMul(x, y) }", 4, "", "not free symbols; bind --dim B=N --dim S=N instead"},
		{"(float[batch,S] x, float[2,batch,S] y) => (z) { z = Add (x, y) }", 4, "float[2,4,S]", ""},
		{"(float x) => (y) { y = Relu(x) }", 4, "", "no input has a leading dim"},
		// the same as in the file
		{"(float[2,3] x) => (y) <int64[2] s = {2, 3}> { y = Reshape(x, s) }", 2, "float[2,3]", ""},
		// fixed, and used as a batch
		{"(float[2,3,8,8] x) => (y) <float[4,3,3,3] w = {}, int64[2] s = {0, -1}> { c = Conv(x, w) y = Reshape(c, s) }", 5, "float[5,144]", ""},
		{"(float[2,3,8] x) => (y) <int64[3] s = {-1, 4, 2}> { t = Transpose<perm = [0, 2, 1]>(x) y = Reshape(t, s) }", 5, "float[15,4,2]", ""},
		{"(float[2,6,8] x) => (y) <int64[4] s = {0, 0, 2, 4}, int64[2] f = {-1, 48}> { h = Reshape(x, s) t = Transpose<perm = [0, 2, 1, 3]>(h) y = Reshape(t, f) }", 5, "float[5,48]", ""},
		{"(float[2,6] x) => (y) <int64[1] a = {0}> { y = ReduceMean<keepdims = 0>(x) }", 5, "float[]", ""},
		{"(float[1,6] x) => (y) <float[1,6] b = {}> { y = Add(x, b) }", 5, "float[5,6]", ""},
		{"(float[2,6] x) => (y) { s = Shape(x) t = Transpose(x) z = Reshape(t, s) y = Relu(z) }", 5, "", "Reshape"},
		// fixed, and baked in
		{"(float[2,6] x) => (y) <int64[2] s = {2, -1}> { y = Reshape(x, s) }", 5, "", "Reshape (node 0): [batch,6] becomes [2,3*batch], which mixes the samples"},
		{"(float[2,6] x) => (y) <int64[2] s = {2, 6}> { y = Reshape(x, s) }", 5, "", "Reshape (node 0): [batch,6] becomes [2,6], which is fixed at the batch 2"},
		{"(float[2,6] x) => (y) <float[2,6] b = {}> { y = Add(x, b) }", 5, "", "Add (node 0): [batch,6] becomes [2,6]"},
		{"(float[2,6] x) => (y) <int64 i = {1}> { y = Gather(x, i) }", 5, "", "Gather (node 0): it reads fixed positions of the batch"},
		{"(float[2,6] x) => (y) <int64[1] a = {0}, int64[1] b = {1}> { y = Slice(x, a, b) }", 5, "", "Slice (node 0): a dim of"},
		{"(float[2,6] x) => (a, b) { a, b = Split<num_outputs = 2>(x) }", 5, "", "Split (node 0): a dim of"},
		{"(float[2,6] x) => (y) <float[2,3] w = {}> { t = Transpose(x) y = MatMul(t, w) }", 5, "", "inner dimensions differ: [6,5] x [2,3]"},
		// what holds no batch keeps its dims, though they are as long
		{"(float[1,3,2] x, float[1,12,2] w, float[1,12,3] r, float[1,24] b, float[1,3,3] h) => (y) { y = LSTM<hidden_size = 3>(x, w, r, b, , h) }", 5, "float[1,1,5,3]", ""},
		{"(float[2,3,2] x, float[2,9,2] w, float[2,9,3] r) => (y) { y = GRU<hidden_size = 3, direction = \"bidirectional\", layout = 1>(x, w, r) }", 5, "float[5,3,2,3]", ""},
		{"(float[T,B,2] x, float[1,3,2] w, float[1,3,3] r) => (y) { y = RNN<hidden_size = 3>(x, w, r) }", 5, "float[T,1,5,3]", ""},
		{"(bool[1] c, float[1,4] x) => (y) { y = If(c)<then_branch = a () => (p) { p = Relu(x) }, else_branch = b () => (q) { q = Neg(x) }> }", 5, "float[5,4]", ""},
		{"(int64[1] m, float[1,4] x) => (y) { y = Loop(m, , x)<body = b (int64 i, bool c, float[K,4] h) => (c2, h2) { c2 = Identity(c) h2 = Relu(h) }> }", 5, "float[5,4]", ""},
		{"(float[3,3] x, float[3,3] w, float[3] b) => (y) { y = Gemm(x, w, b) }", 5, "float[5,3]", ""},
		{"(float[4,4] x, float[4,4] w, float[4] b) => (y) { v = Identity(w) m = MatMul(x, v) y = Add(m, b) }", 5, "float[5,4]", ""},
		{"(float[3,3] w, int64[3,2] i) => (y) { y = Gather(w, i) }", 5, "float[5,2,3]", ""},
		{"(float[1,3,8,8] x, float[1,3,3,3] w, float[1] b) => (y) { y = Conv(x, w, b) }", 5, "float[5,1,6,6]", ""},
		{"(float[2,6] x) => (y) { y = local.Odd(x) }", 5, "", "no rule for operator local.Odd"},
		{"(float[2,6] x) => (y, z) { y = Relu(x) z = NonZero(x) }", 5, "float[5,6]; int64[2,nonzero0]", ""},
	} {
		g := parse(t, 0, c.text)
		_, err := Infer(g, Options{Batch: c.batch})
		switch {
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: error %v, want %q; %s", c.text, err, c.err, outputs(g))
		case c.err == "" && err != nil:
			t.Errorf("%s: %v", c.text, err)
		case c.err == "" && outputs(g) != c.want:
			t.Errorf("%s: %s, want %s", c.text, outputs(g), c.want)
		}
	}
}

// Binding again starts from the file, whatever was bound before.
func TestInferAgain(t *testing.T) {
	g := parse(t, 0, "(float[N,3] x) => (y) { s = Shape(x) z = ConstantOfShape(s) y = Concat<axis = 0>(x, z) }")
	for _, n := range []int64{2, 7, 2} {
		if _, err := Infer(g, Options{Batch: n}); err != nil {
			t.Fatal(err)
		}
		if got, want := outputs(g), fmt.Sprintf("float[%d,3]", 2*n); got != want {
			t.Errorf("batch %d: %s, want %s", n, got, want)
		}
	}
	if _, err := Infer(g, Options{}); err != nil || outputs(g) != "float[2*N,3]" {
		t.Errorf("unbound again: %s, %v", outputs(g), err)
	}
	if got := Unbound(g); !slices.Equal(got, []string{"N"}) {
		t.Errorf("unbound symbols %v", got)
	}
}

// Symbols that inference makes up have bounds and can be bound.
func TestBounds(t *testing.T) {
	text := "(float[N,3] x) => (y, z) { y = NonZero(x) u = Transpose(y) z = Relu(u) }"
	got, r := inferText(t, text, Options{})
	if got != "int64[2,nonzero0]; int64[nonzero0,2]" {
		t.Error(got)
	}
	if len(r.Bounds) != 1 || r.Bounds[0].Symbol != "nonzero0" || r.Bounds[0].Max.String() != "3*N" || r.Bounds[0].Node != "NonZero (node 0)" {
		t.Errorf("bounds %v", r.Bounds)
	}
	g := parse(t, 0, "(float[N] x, float[M] y) => (z) <bool c = {0}> { z = If(c)<then_branch = a () => (p) { p = NonZero(x) }, else_branch = b () => (q) { q = Relu(y) }> }")
	dead, err := Infer(g, Options{Batch: 3})
	if err != nil || len(dead.Bounds) != 0 || len(Unbound(g)) != 0 {
		t.Errorf("a branch never taken: %v, %v, unbound %v", dead, err, Unbound(g))
	}
	if got, _ := inferText(t, text, Options{Dims: map[string]int64{"nonzero0": 9}}); got != "int64[2,9]; int64[9,2]" {
		t.Error(got)
	}
	got, r = inferText(t, "(float[nonzero0] x, float[?,?] w) => (y) { y = NonZero(x) }", Options{})
	if got != "int64[1,nonzero0_]" || len(r.Bounds) != 3 || r.Bounds[0].Symbol != "w_dim_0" || r.Bounds[0].Node != "w" {
		t.Errorf("%s, bounds %v", got, r.Bounds)
	}
}

func TestOptions(t *testing.T) {
	text := "(float[N,3] x) => (y) { h = local.Odd(x) y = Relu(h) }"
	got, r := inferText(t, text, Options{})
	if got != "unknown" || len(r.Warnings) != 1 || r.Warnings[0].Code != "unknown-op" || r.Warnings[0].Node != "Odd (node 0)" {
		t.Errorf("unknown operator: %s, %v", got, r.Warnings)
	}
	got, r = inferText(t, text, Options{Shapes: map[string]graph.Shape{"h": ints(4, 5)}})
	if got != "float[4,5]" || len(r.Warnings) != 1 || r.Warnings[0].Code != "unknown-type" {
		t.Errorf("shape supplied: %s, %v", got, r.Warnings)
	}
	_, r = inferText(t, "(float[N] x) => (y) { y = Relu(x) }", Options{Shapes: map[string]graph.Shape{"z": ints(4)}})
	if len(r.Warnings) != 1 || r.Warnings[0].Code != "unused-shape" {
		t.Errorf("shape of a value that is not there: %v", r.Warnings)
	}
	custom := func(n *graph.Node, in []graph.Type) ([]graph.Type, error) {
		return []graph.Type{tensorOf(graph.Int8, with(in[0].Shape, 1, graph.Int(9)))}, nil
	}
	if got, _ = inferText(t, text, Options{Custom: custom}); got != "int8[N,9]" {
		t.Errorf("custom rule: %s", got)
	}
	size := &graph.Constant{Type: graph.Int64, Dims: []int64{2}, Ints: []int64{6, -1}}
	if got, _ = inferText(t, "(float[4,3] x, int64[2] s) => (y) { y = Reshape(x, s) }", Options{Values: map[string]*graph.Constant{"s": size}}); got != "float[6,2]" {
		t.Errorf("value supplied: %s", got)
	}
	_, r = inferText(t, "(float[N,M] x) => (y) { y = Relu(x) }", Options{Dims: map[string]int64{"N": 1, "bacth": 2}})
	if len(r.Warnings) != 1 || r.Warnings[0].Code != "unused-dim" || r.Warnings[0].Message != `no dim is called "bacth"; the inputs have [M N]` {
		t.Errorf("misspelt dim: %v", r.Warnings)
	}
	for _, c := range []struct {
		text, want string
		opt        Options
	}{
		{text, "odd shape", Options{Custom: func(*graph.Node, []graph.Type) ([]graph.Type, error) { return nil, errors.New("odd shape") }}},
		{text, "0 types for 1 outputs", Options{Custom: func(*graph.Node, []graph.Type) ([]graph.Type, error) { return []graph.Type{}, nil }}},
		{text, `dim "N" cannot be -1`, Options{Dims: map[string]int64{"N": -1}}},
		{text, "batch -2 is negative", Options{Batch: -2}},
		{"(float[4,3] x) => (y) { y = Relu(x) }", `the shape [4,4] supplied for "y" contradicts [4,3]`, Options{Shapes: map[string]graph.Shape{"y": ints(4, 4)}}},
		{"(float[4,3] x) => (y) { y = Relu(x) }", `input "x": the shape [5] supplied`, Options{Shapes: map[string]graph.Shape{"x": ints(5)}}},
		{"(float[4,3] x, int64[3] s) => (y) { y = Reshape(x, s) }", `input "s": the elements supplied`, Options{Values: map[string]*graph.Constant{"s": size}}},
	} {
		if _, err := Infer(parse(t, 0, c.text), c.opt); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.text, err, c.want)
		}
	}
}

// Declared types fill gaps, and lose against what is inferred.
func TestDeclarations(t *testing.T) {
	g := parse(t, 0, "(float[N,3] x) => (float[N,7] y, float[N,4] z) <float16[N,5] h> { h = local.Odd(x) y = Relu(h) z = Neg(x) }")
	for i, decl := range map[string]graph.Type{"h": tensorOf(graph.Float16, graph.Shape{graph.Sym("N"), graph.Int(5)}), "z": tensorOf(graph.Float32, ints(2, 4))} {
		byName(g, i).Decl = decl
	}
	r, err := Infer(g, Options{Dims: map[string]int64{"N": 2}})
	if err != nil || outputs(g) != "float16[2,5]; float[2,3]" {
		t.Errorf("%s, %v", outputs(g), err)
	}
	if len(r.Warnings) != 1 || r.Warnings[0].Code != "declared-differs" || !strings.Contains(r.Warnings[0].Message, "declared as float[2,4], inferred float[2,3]") {
		t.Errorf("warnings %v", r.Warnings)
	}
	w := parse(t, 0, "() => (y) <float[2] w = {1.0, 2.0}> { y = Relu(w) }")
	byName(w, "w").Decl = tensorOf(graph.Float32, ints(3))
	r, err = Infer(w, Options{})
	if err != nil || outputs(w) != "float[2]1,2" || len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0].Message, "declared as float[3], stored float[2]") {
		t.Errorf("initializer: %s, %v, %v", outputs(w), r, err)
	}
	if _, err := Infer(w, Options{Strict: true}); err == nil || !strings.Contains(err.Error(), `initializer "w"`) {
		t.Errorf("strict: %v", err)
	}
	if _, err := Infer(g, Options{Dims: map[string]int64{"N": 2}, Strict: true}); err == nil || !strings.Contains(err.Error(), "declared as float[2,4]") {
		t.Errorf("strict: %v", err)
	}
}

// A declaration that no run can meet neither crashes inference nor makes it
// compute elements.
func TestDeclaredLies(t *testing.T) {
	for _, c := range []struct {
		text string
		decl graph.Shape
	}{
		{"() => (y) { y = Concat<axis = 0>() }", ints(2)},
		{"(int64[K] s) => (y) <int64[2,2] x = {1, 2, 3, 4}> { y = Expand(x, s) }", ints(3)},
		{"() => (y) <int64[2] x = {1, 2}, int64[2] z = {1, 2}> { y = Concat<axis = 0>(x, z) }", ints(9)},
	} {
		g := parse(t, 0, c.text)
		byName(g, "y").Decl = tensorOf(graph.Int64, c.decl)
		if _, err := Infer(g, Options{}); err != nil {
			continue
		}
		if v := byName(g, "y"); v.Const != nil {
			if dims, ok := v.Type.Shape.Static(); !ok || !slices.Equal(dims, v.Const.Dims) {
				t.Errorf("%s: %s with elements of shape %v", c.text, typeText(v.Type), v.Const.Dims)
			}
		}
	}
}

// Overflow is an error, never a wrong number.
func TestOverflow(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"(float[1099511627776,1099511627776] x) => (y) { y = Relu(x) }", `input "x": a tensor float[1099511627776,1099511627776] takes more than 2^59 bytes`},
		{"(float[1099511627776,1] x, float[1,1099511627776] y) => (z) { z = Add(x, y) }", `Add (node 0): output "z": a tensor`},
		{"(float[4611686018427387904] x, float[4611686018427387904] y) => (z) { z = Concat<axis = 0>(x, y) }", "takes more than"},
		{"() => (z) <int64[2] s = {1099511627776, 1099511627776}> { z = ConstantOfShape(s) }", "ConstantOfShape (node 0)"},
		{"() => (z) <int64 a = {-9223372036854775807}, int64 b = {9223372036854775807}, int64 c = {1}> { z = Range(a, b, c) }", "overflows"},
		{"(float[N,1099511627776,1099511627776] x) => (y) { y = Relu(x) }", "takes more than 2^59 bytes"},
	} {
		if _, err := Infer(parse(t, 0, c.text), Options{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.text, err, c.want)
		}
	}
	// A symbol is checked when it is bound.
	g := parse(t, 0, "(float[N,N] x) => (y) { s = Size(x) y = MatMul(x, x) }")
	if _, err := Infer(g, Options{}); err != nil {
		t.Error(err)
	}
	if _, err := Infer(g, Options{Dims: map[string]int64{"N": 1 << 31}}); err == nil || !strings.Contains(err.Error(), "takes more than") {
		t.Errorf("N = 2^31: %v", err)
	}
}

// Local functions: nested, overloaded, with attributes of the call and
// defaults, called with different types.
func TestFunctions(t *testing.T) {
	text := `<ir_version: 10, opset_import: ["" : 21, "f" : 1]>
g (float[N,6] x, float[4] z) => (a, b, c, d) {
	a = f.outer<axis = 0>(x)
	b = f.outer(z)
	c = f.join(x, x)
	d = f.join:twice(x)
}
<domain: "f", opset_import: ["" : 21, "f" : 1]>
outer <axis: int = -1>(x) => (y) { t = f.join<axis: int = @axis>(x, x) y = Relu(t) }
<domain: "f", opset_import: ["" : 21]>
join <axis: int = 1>(x, y) => (z) { z = Concat<axis: int = @axis>(x, y) }
<domain: "f", overload: "twice", opset_import: ["" : 21]>
join (x) => (z) { s = Shape(x) r = Add(s, s) z = ConstantOfShape(r) }
`
	g, err := graph.Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Infer(g, Options{}); err != nil {
		t.Fatal(err)
	}
	if got, want := outputs(g), "float[2*N,6]; float[8]; float[N,12]; float[2*N,12]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	bad := strings.Replace(text, "float[4] z", "float z", 1)
	if g, err = graph.Parse(strings.NewReader(bad)); err != nil {
		t.Fatal(err)
	}
	_, err = Infer(g, Options{})
	if want := "outer (node 1): join (node 0): Concat (node 0): axis -1 is outside a tensor of rank 0"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

// Work is bounded: functions that call each other twice at every level, and
// loops inside loops, end soon.
func TestBoundedWork(t *testing.T) {
	var b strings.Builder
	b.WriteString(`<ir_version: 10, opset_import: ["" : 21, "f" : 1]> g (float[N] x) => (y) { y = f.f0(x) }` + "\n")
	for i := range 40 {
		body := fmt.Sprintf("a = f.f%d(x) b = Add(a, x) c = Concat<axis = 0>(b, x) y = f.f%d(c)", i+1, i+1)
		if i == 39 {
			body = "y = Relu(x)"
		}
		fmt.Fprintf(&b, `<domain: "f", opset_import: ["" : 21, "f" : 1]> f%d (x) => (y) { %s }`+"\n", i, body)
	}
	loops := `<ir_version: 10, opset_import: ["" : 21]> g (float[N] h6) => (o6) { ` + nestedLoops(6) + " }"
	for name, text := range map[string]string{"functions": b.String(), "loops": loops} {
		g, err := graph.Parse(strings.NewReader(text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_, err = Infer(g, Options{})
		if err == nil || !strings.Contains(err.Error(), "too much work") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// nestedLoops returns nodes that compute o<level> from h<level> by loops of
// 100 iterations inside each other.
func nestedLoops(level int) string {
	if level == 0 {
		return "o0 = Relu(h0)"
	}
	return fmt.Sprintf(`m%[1]d = Constant<value_int = 100>()
		o%[1]d = Loop(m%[1]d, , h%[1]d)<body = b%[1]d (int64 i%[1]d, bool c%[1]d, float[K] h%[2]d) => (d%[1]d, o%[2]d) { d%[1]d = Identity(c%[1]d) %[3]s }>`,
		level, level-1, nestedLoops(level-1))
}

// A value that no name distinguishes keeps its identity through elementwise
// operators, and shape arithmetic on it cancels.
func TestSymbolIdentity(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"(float[M,4] x, float[N,4] y) => (z) { z = Concat<axis = 0>(x, y) }", "float[M + N,4]"},
		{"(float[B,S,64] x) => (y) <int64 one = {1}, int64 zero = {0}, int64[3] t = {-1, 4, 16}> { s = Shape(x) b = Gather(s, zero) c = Gather(s, one) m = Mul(b, c) u = Unsqueeze(m, zz) v = Constant<value_ints = [64]>() w = Concat<axis = 0>(u, v) f = Reshape(x, w) q = Mul(m, one) q2 = Div(q, c) uu = Unsqueeze(q2, zz) o = Constant<value_ints = [-1]>() p = Concat<axis = 0>(uu, o) y = Reshape(f, p) zz = Constant<value_ints = [0]>() }", "float[B,64*S]"},
		{"(float[B,H] x) => (y) <int64 i = {1}, int64 z = {0}, int64 o = {1}, float two = {2.0}> { s = Shape(x) h = Gather(s, i) f = Cast<to = 1>(h) g = Mul(f, two) k = Cast<to = 7>(g) y = Range(z, k, o) }", "int64[2*H]"},
		{"(float[B,H] x) => (y) <int64 i = {1}, int64 z = {0}, int64 o = {1}, float half = {0.5}> { s = Shape(x) h = Gather(s, i) f = Cast<to = 1>(h) g = Mul(f, half) k = Floor(g) m = Cast<to = 7>(k) y = Range(z, m, o) }", "int64[H//2]"},
		{"(float[B,1] x) => (y) <int64[2] s = {-1, 7}, int64 m = {-1}, int64[2] ones = {1, 1}> { q = Equal(s, m) t = Where(q, ones, s) y = Expand(x, t) }", "float[B,7]"},
		{"(float[B,T] x) => (y) <int64 i = {0}, int64 m = {-1}, int64[1] z = {0}> { s = Shape(x) b = Gather(s, i) e = Equal(b, m) y = If(e)<then_branch = t () => (p) { p = Transpose(x) }, else_branch = f () => (q) { q = Relu(x) }> }", "float[B,T]"},
	} {
		if got, _ := inferText(t, c.text, Options{}); got != c.want {
			t.Errorf("%s: %s, want %s", c.text, got, c.want)
		}
	}
}
