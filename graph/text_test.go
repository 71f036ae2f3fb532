package graph

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// parse reads a text that must be good.
func parse(t testing.TB, text string) *Graph {
	t.Helper()
	g, err := Parse(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if err := Check(g); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return g
}

func format(t testing.TB, g *Graph) string {
	t.Helper()
	var b strings.Builder
	if err := Format(&b, g); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func ExampleFormat() {
	g, err := Parse(strings.NewReader(`
		mlp (float[N,64] x) => (y)
		<float[64,10] w = ["location": "w.bin"], float[10] b = {}> {
			h = MatMul(x, w)   # no types needed
			y = Add(h, b)
		}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	var out strings.Builder
	if err := Format(&out, g); err != nil {
		fmt.Println(err)
	}
	fmt.Print(out.String())
	// Output:
	// <
	//   ir_version: 0,
	//   opset_import: ["" : 28]
	// >
	// mlp (float[N,64] x) => (y)
	// <
	//   float[64,10] w = ["location": "w.bin", "offset": "0"],
	//   float[10] b = {}
	// >
	// {
	//   h = MatMul (x, w)
	//   y = Add (h, b)
	// }
}

const head = "<\n  ir_version: 10,\n  opset_import: [\"\" : 20, \"com.microsoft\" : 1],\n  producer_name: \"a \\\"b\\\"\"\n>\n"

// canonical are texts that Format writes just so.
var canonical = []string{
	head + "empty () => () {}\n",
	head + `"" (x) => (x) {}` + "\n",
	head + `types (float a, float[] b, float[2,N,?,"n + 1","a-b"] c, seq(int64[]) d, seq(float, 3) e, seq(seq()) f, optional(bool[1]) g, map(string, float) h, sparse_tensor(double[3]) i, opaque() j, undefined k, undefined[2] l) => () {}` + "\n",
	head + `names (float "float", int32 "a b", int32 "x.1", int32 "\"\\\n\t\x00\xff", int32 "1", int32 "é") => (float "float") {}` + "\n",
	head + `init () => (y)
<
  int64[2] a = {1, -2},
  uint64 b = {18446744073709551615},
  bool[2] c = {0, 1},
  float[5] d = {1.0, -0.5, 1e-05, inf, nan},
  double e = {0.1},
  float16[2] f = {1.5, -inf},
  string[2] g = {"a", "\n"},
  float[0] h = {},
  float[1000] i = {},
  float[10] j = sparse({1.0, 2.0}, int64[2] = {0, 9}),
  float[3] k = ["location": "w.bin", "offset": "16", "length": "12"],
  float[3] l = ["location": "", "offset": "16", "length": "12"],
  float[3] m = sparse(["location": "v", "offset": "0"], int64[1] idx = ["location": "i", "offset": "0"]),
  int4[2] n = {-8, 7},
  float[4] t
>
{
  t = Relu (a)
  y = Relu (t)
}
`,
	head + `nodes (x, c) => (z)
{
  [name] a, "", b = Split <axis = 0> (x)
  [name] z = com.microsoft.Gelu:fast (a, "", b)
  = Print (x)
  z_1 = "a-b"."c.d" ()
  w = "pkg.torch.2.0"."my-op" (x)
}
`,
	head + `attrs (x) => (y)
{
  y = Op <a = 1, b = 1.0, c = "s", d = [1, 2], e = [1.0, nan], f = ["a", "b"], g: ints = [], h: floats = [], i: strings = [], j: tensors = [], k: graphs = [], l: int = @alpha, m = float[2] = {1.0, 2.0}, n = int64 five = {5}, o = [int64 = {1}, int64 = {2}], p: type_proto = seq(float[2]), q: type_protos = [float, none], r: undefined, s = float[4] = sparse({1.0}, int64[1] = {3}), t = [float[4] = sparse({}, int64[0] = {})], u: type_protos = [], "v w" = 1, x = inf, y = ""> (x)
}
`,
	head + `subgraphs (x, c) => (y)
<
  float[2] k = {1.0, 2.0}
>
{
  y = If (c) <else_branch = e () => (x) {}, n = 1, then_branch = t () => (float[2] r)
  <
    float[2] w = {3.0, 4.0},
    float[2] s
  >
  {
    s = Add (k, w)
    r = Loop (x, c) <body = b (i, d, float q) => (d, p)
    {
      p = Sub (q, k)
    }>
  }>
  z = Op (x) <g = [a () => () {}, "inf" () => () {}]>
}
`,
	head + `lifted (x, w) => (y)
{
  y = aten::conv2d.default(x, w, None, [1, -1], 'zeros', 0.5, True, False, [x, [w, None]], groups=1, "in"=w) in layer1.conv
  z = aten::add.Tensor(x, 1.0, alpha=inf) <k = 1> uses (x, y, x) in "layers.0.attn"
  = aten::"weird-op":v2()
  v = MatMul (x, w) in lm_head
}
`,
	head + `main (x) => (y)
{
  y = local.f <axis = 1> (x)
}

<
  domain: "local",
  opset_import: ["" : 18]
>
f <axis, alpha = 0.5, beta: ints = []> (float a, b) => (c)
<
  float[2] t
>
{
  t = Op <axis: int = @axis> (a, b)
  c = Relu (t)
}

<
  domain: "local",
  overload: "v2"
>
f () => () {}
`,
}

// TestTextIsCanonical reads texts that Format writes and compares, so that
// each piece of syntax is seen to survive.
func TestTextIsCanonical(t *testing.T) {
	for _, text := range canonical {
		if got := format(t, parse(t, text)); got != text {
			t.Errorf("read\n%s\nwrote\n%s", text, got)
		}
	}
}

// FormatSizes puts results beside their nodes; the graph that it writes is
// the one that Format writes, but for the types of results.
func TestFormatSizes(t *testing.T) {
	text := `<ir_version: 10, opset_import: ["" : 21]>
g (float[N,4] x, bool c) => (float16[N,"H//2"] y) <int4[3] w = {1, 2, 3}, uint4[N,3] q, string[2] s, float[2,3] k, seq(float[2]) l> {
	q, k = Odd(x, w)
	s = Odd(k)
	l = SequenceConstruct(k)
	u = Odd(l)
	y = If(c) <then_branch = a () => (float[5] p) { p = Odd(x) }>
}`
	g := parse(t, text)
	var b strings.Builder
	if err := FormatSizes(&b, g); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"q, k = Odd (x, w)  # uint4[N,3] (N + 1)//2 + N B; float[2,3] 24 B\n",
		"s = Odd (k)  # string[2] 32 B\n",
		"l = SequenceConstruct (k)  # seq(float[2])\n",
		"u = Odd (l)  # ?\n",
		"p = Odd (x)  # float[5] 20 B\n",
		"}>  # float16[N,\"H//2\"] 2*(H//2)*N B\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	again := parse(t, b.String())
	for i := range g.Values {
		if g.Values[i].Kind == Computed {
			g.Values[i].Type = Type{}
		}
		again.Values[i].Type = g.Values[i].Type
	}
	if got, want := format(t, again), format(t, g); got != want {
		t.Errorf("read as\n%s\nnot as\n%s", got, want)
	}
}

// Type.Bytes at known dims is what Constant.Bytes says, which counts in integers.
func TestTypeBytes(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	for d := range DType(40) {
		for range 20 {
			dims, shape, env := make([]int64, r.IntN(4)), Shape{}, map[string]int64{}
			for i := range dims {
				dims[i] = r.Int64N(7)
				name := string(rune('a' + i))
				shape, env[name] = append(shape, Sym(name)), dims[i]
			}
			want, ok := (&Constant{Type: d, Dims: dims}).Bytes()
			b := Type{Kind: TensorType, Elem: d, Shape: shape}.Bytes()
			if got, err := b.Eval(env); d.Bits() > 0 && (err != nil || !ok || got != want) || d.Bits() == 0 && b.Known() {
				t.Fatalf("%s%v takes %d, %v; want %d", d, dims, got, err, want)
			}
		}
	}
}

// TestParseMeaning looks into what was parsed.
func TestParseMeaning(t *testing.T) {
	g := parse(t, canonical[4])
	value := func(name string) *Value {
		for i := range g.Values {
			if g.Values[i].Name == name {
				return &g.Values[i]
			}
		}
		t.Fatalf("no value %s", name)
		return nil
	}
	if k := value("b").Const; k.Ints[0] != -1 || k.Dims != nil || k.Type != Uint64 {
		t.Errorf("b is %+v", k)
	}
	if k := value("d").Const; k.Floats[2] != float64(float32(1e-5)) {
		t.Errorf("d is %v", k.Floats)
	}
	if k := value("e").Const; k.Floats[0] != 0.1 {
		t.Errorf("e is %v", k.Floats)
	}
	if k := value("i").Const; k.Known() || k.Ref != nil {
		t.Errorf("i is %+v", k)
	}
	if k := value("j").Const; k.Dims[0] != 10 || !slices.Equal(k.Sparse.Ints, []int64{0, 9}) || k.Known() {
		t.Errorf("j is %+v", k)
	}
	if k := value("k").Const; *k.Ref != (DataRef{Location: "w.bin", Offset: 16, Length: 12}) {
		t.Errorf("k is at %+v", k.Ref)
	}
	if v := value("t"); v.Kind != Computed || !v.Decl.Shape[0].Equal(Int(4)) || !v.Type.Shape[0].Equal(Int(4)) {
		t.Errorf("t is %+v", v)
	}
	if m := g.Model; m.IRVersion != 10 || m.Opset("") != 20 || m.Opset("com.microsoft") != 1 || m.Producer != `a "b"` {
		t.Errorf("model %+v", m)
	}

	g = parse(t, canonical[8])
	n := &g.Nodes[0]
	if n.Domain != "aten" || n.Op != "conv2d.default" || n.Module != "layer1.conv" || !slices.Equal(n.Inputs, []ValueID{0, 1, 0, 1, 1}) {
		t.Errorf("call %+v", n)
	}
	if a := n.Args[9]; a.Name != "groups" || a.Kind != ArgInt || a.Int != 1 {
		t.Errorf("groups is %+v", a)
	}
	if a := n.Args[8].List[1].List[0]; a.Kind != ArgValue || a.Value != 1 {
		t.Errorf("nested value is %+v", a)
	}
	if n := &g.Nodes[1]; !slices.Equal(n.Inputs, []ValueID{0, 2, 0}) || n.Module != "layers.0.attn" || len(n.Args) != 3 {
		t.Errorf("call %+v", n)
	}
	if n := &g.Nodes[3]; n.Args != nil || n.Op != "MatMul" || n.Domain != "" || n.Module != "lm_head" {
		t.Errorf("node %+v", n)
	}
}

// TestParseLenient reads what Format writes otherwise.
func TestParseLenient(t *testing.T) {
	for _, c := range []struct{ in, same string }{
		{"g (x) => (y) { y = Relu(x) }", "<opset_import: [\"\" : 28]> g (x) => (y) {\n y = Relu (x)\n}"},
		{"g (x)=>(y){y=Relu(x)}# end", "g (x) => (y) { y = Relu(x) }"},
		{"<doc_string: \"d\", model_version: 3, domain: \"x\", metadata_props: [\"a\" : \"b\"]> g () => () {}", "g () => () {}"},
		{"<producer_name: \"a\", producer_version: \"1\"> g () => () {}", "<producer_name: \"a 1\"> g () => () {}"},
		{"g (x) => (y) { y = Op(x,) }", "g (x) => (y) { y = Op(x) }"},
		{"g (x) => (y) { y = Op(,x) }", "g (x) => (y) { y = Op(\"\", x) }"},
		{"g (x) => (y) { y = ai.onnx.Relu(x) }", "g (x) => (y) { y = Relu(x) }"},
		{"g (x) => (y) { y = Op(x) <a = 1> }", "g (x) => (y) { y = Op <a = 1> (x) }"},
		{"g (x) => (y) { y = Op <b = 2, a = 1> (x) }", "g (x) => (y) { y = Op <a = 1, b = 2> (x) }"},
		{"g (x) => (y) { y = Op <a: float = 1, b: floats = [1, 2]> (x) }", "g (x) => (y) { y = Op <a = 1.0, b = [1.0, 2.0]> (x) }"},
		{"g (x) => (y) { y = Op <a = float[2] {1, 2}> (x) }", "g (x) => (y) { y = Op <a = float[2] = {1.0, 2.0}> (x) }"},
		{"g (x) => (y) <float16[2] h = {15360, 14336}> { y = Op(x) }", "g (x) => (y) <float16[2] h = {1.0, 0.5}> { y = Op(x) }"},
		{"g (float16 h = {15360}) => (h) {}", "g () => (h) <float16 h = {1.0}> {}"},
		{"g (float[-1, \"-1\", \"2 + 3\"] x) => () {}", "g (float[?,?,5] x) => () {}"},
		{"g (opaque(a.b, c) x) => () {}", "g (opaque() x) => () {}"},
		{"g (x) => (y) { y = Relu(z) z = Relu(x) }", "g (x) => (y) { z = Relu(x) y = Relu(z) }"},
		{"g (in, uses) => (in_1) { in_1 = Op(in) in_2, uses_1 = Op(uses) }", "g (\"in\", \"uses\") => (in_1) { in_1 = Op(\"in\") in_2, uses_1 = Op(\"uses\") }"},
		{"g (x) => () { a = Op(x) in = Op(a) b, c = Op(in) }", "g (x) => () { a = Op(x) \"in\" = Op(a) b, c = Op(\"in\") }"},
	} {
		got, want := parse(t, c.in), parse(t, c.same)
		got.Model.Warnings, want.Model.Warnings = nil, nil
		if a, b := format(t, got), format(t, want); a != b {
			t.Errorf("%s reads as\n%swant\n%s", c.in, a, b)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: graphs differ", c.in)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", `1:1: the end where a name should be`},
		{"g", `1:2: the end where "(" should be`},
		{"g (x) (y) {}", `1:7: "(" where => should be`},
		{"g (x) => (y) {\n  y = Relu(x\n}", `3:1: "}" where ")" should be`},
		{"g (x) => (y) {\n  y = Relu(w)\n}", `2:3: Relu -> "y": input 0 ("w") is not defined`},
		{"g (x) => (y) {\n  a = If(x) <b = s () => (t) {\n    t = Relu(w) }>\n}", `2:3: If -> "a": b: 3:5: Relu -> "t": input 0 ("w") is not defined`},
		{"g (x) =>\n (y) {}", `2:3: output "y" is not defined`},
		{"g (x, x) => () {}", `1:7: value "x" is defined twice`},
		{"g (x) => () { a = Op(b) b = Op(a) }", `1:25: cycle: Op -> "b" -> Op -> "a" -> Op -> "b"`},
		{"g (float[2 x) => () {}", `1:12: "x" where "]" should be`},
		{"g (float[2.5] x) => () {}", `1:10: "2.5" is not a 64-bit integer`},
		{"g (seq(float x) => () {}", `1:14: "x" where ")" should be`},
		{"g () => () <float[2] w = {1.0}> {}", `1:26: 1 elements for float[2]`},
		{"g () => () <float[N] w = {1.0}> {}", `1:13: a tensor needs an element type and integer dimensions`},
		{"g () => () <w = {1.0}> {}", `1:13: a tensor needs an element type and integer dimensions`},
		{"g () => () <float[99999999999,99999999999] w = {}> {}", `1:13: the size of float[99999999999 99999999999] overflows`},
		{"g () => () <int8 w = {128}> {}", `1:23: "128" is not an element of type int8`},
		{"g () => () <uint8 w = {-1}> {}", `1:24: "-1" is not an element of type uint8`},
		{"g () => () <bool w = {2}> {}", `1:23: "2" is not an element of type bool`},
		{"g () => () <int64 w = {1.5}> {}", `1:24: "1.5" is not a 64-bit integer`},
		{"g () => () <float w = {x}> {}", `1:24: "x" is not a 32-bit number`},
		{"g () => () <float w = {1e99}> {}", `1:24: "1e99" is not a 32-bit number`},
		{"g () => () <float16 w = {65536}> {}", `1:26: "65536" is not the bits of a float16`},
		{"g () => () <string w = {x}> {}", `1:25: "x" where a quoted name should be`},
		{"g () => () <complex64 w = {1}> {}", `1:28: elements of type complex64 have no text`},
		{"g () => () <float w = [\"offset\": \"x\"]> {}", `1:23: offset "x" is not a size in bytes`},
		{"g () => () <float w = [\"offset\": \"-1\"]> {}", `1:23: negative offset or length`},
		{"g () => () { = Op <a = []> () }", `1:25: empty list without the type of its elements, as in name: ints = []`},
		{"g () => () { = Op <a = [1, \"b\"]> () }", `1:28: value of type strings where ints should be`},
		{"g () => () { = Op <a: int = 1.5> () }", `1:29: value of type float where int should be`},
		{"g () => () { = Op <a: integer = 1> () }", `1:23: unknown attribute type "integer"`},
		{"g () => () { = Op <a = > () }", `1:24: ">" where a value should be`},
		{"g () => () { = Op <\"\" = 1> () }", `1:20: attribute without a name`},
		{"g () => () { = Op <a: int = @\"\"> () }", `1:20: reference without a name`},
		{"g () => () { = \"\" () }", `1:16: empty name`},
		{"g () => () { = a::b(\"\") }", `1:21: empty name`},
		{"g (x) => () { = a::b(x) uses () }", `1:25: argument "x" is not among the values used`},
		{"g () => () { x }", `1:16: "}" where "=" should be`},
		{"g () => () { \"x", `1:14: string without an end`},
		{"g () => () { ; }", `1:14: unexpected character ';'`},
		{"g () => () { \xff }", `1:14: unexpected character`},
		{"<ir: 1> g () => () {}", `1:2: unknown header entry "ir"`},
		{"<ir_version: x> g () => () {}", `1:14: "x" where a number should be`},
		{"g () => () {}\nf <a = s () => () {}> () => () {}", `2:4: a function's attribute has a graph as its default`},
		{"g () => () {}\nf () => () <float w = {1.0}> {}", `2:1: function "f" has initializers`},
		{"g () => () {}\nf () => () {}\nf () => () {}", `function f is defined twice`},
		{"g () => () {}\nf () => () { = f() }", `functions call each other in a cycle: f -> f`},
		{strings.Repeat("g () => () { = Op() <a = ", 100), `nested more than 64 deep`},
		{"g (" + strings.Repeat("seq(", 100), `nested more than 64 deep`},
		{"g () => () { = a::b(" + strings.Repeat("[", 100), `nested more than 64 deep`},
		{"# é\n\"é\" (é) => () {}", `2:6: unexpected character 'é'`},
	} {
		g, err := Parse(strings.NewReader(c.in))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: error %v, want %q (graph %v)", c.in, err, c.want, g != nil)
		}
	}
}

// TestFormatNames prints graphs whose values have no names, equal ones, and
// ones that would hide a captured value.
func TestFormatNames(t *testing.T) {
	g := parse(t, "g (x) => (y) { a = Relu(x) y = If(x) <b = s () => (r) { q = Relu(a) r = Relu(q) }> }")
	g.Values[1].Name = "" // a
	g.Values[2].Name = "x"
	sub := g.Nodes[1].Attr("b").Graph
	for i := range sub.Values {
		sub.Values[i].Name = "_1"
	}
	want := head[:0] + "<\n  ir_version: 0,\n  opset_import: [\"\" : 28]\n>\n" + `g (x) => (x_1)
{
  _1 = Relu (x)
  x_1 = If (x) <b = s () => (_1_2)
  {
    _1_1 = Relu (_1)
    _1_2 = Relu (_1_1)
  }>
}
`
	got := format(t, g)
	if got != want {
		t.Errorf("wrote\n%s\nwant\n%s", got, want)
	}
	if again := format(t, parse(t, got)); again != want {
		t.Errorf("reads back as\n%s", again)
	}
	if text := format(t, sub); !strings.HasPrefix(text, "s () => (_1_2)") {
		t.Errorf("the subgraph alone is\n%s", text)
	}
}

// TestFormatError passes on the writer's error.
func TestFormatError(t *testing.T) {
	if err := Format(brokenWriter{}, parse(t, canonical[4])); err == nil || err.Error() != "broken" {
		t.Errorf("error %v", err)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, fmt.Errorf("broken") }

// FuzzParse: what parses passes the checker, and its text reads back as the
// same text.
func FuzzParse(f *testing.F) {
	for _, text := range canonical {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		g, err := Parse(strings.NewReader(text))
		if err != nil {
			return
		}
		if err := Check(g); err != nil {
			t.Fatal(err)
		}
		first := format(t, g)
		again, err := Parse(strings.NewReader(first))
		if err != nil {
			t.Fatalf("%v in\n%s", err, first)
		}
		if second := format(t, again); second != first {
			t.Errorf("wrote\n%s\nthen\n%s", first, second)
		}
	})
}
