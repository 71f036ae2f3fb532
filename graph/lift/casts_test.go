package lift

import (
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
)

// TestParsePy reads lines as Python's ast module would, as far as casts go: the
// calls in the order of their evaluation, a cast as what it casts to.
func TestParsePy(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"x = x.float()", ">float32"},
		{"return self.weight * hidden_states.to(input_dtype)", ">input_dtype mul"},
		{"y = (x.float()*torch.rsqrt(x.float().pow(2).mean(-1,keepdim=True)+1e-6)).type_as(x)*s.w", ">float32 >float32 pow mean add rsqrt mul >x.dtype mul"},
		{"def forward(s,x): return F.group_norm(x.float(), s.n, s.weight.float(), eps=1e-5).to(x.dtype)", ">float32 >float32 group_norm >x.dtype"},
		{"e = torch.cat([a.sin(), a.cos()], -1).to(dtype=self.t1.weight.dtype)", "sin cos cat >self.t1.weight.dtype"},
		{"x = x.to(torch.float32) @ -w[:, None].exp() ** 2", ">float32 exp pow neg matmul"},
		{"x = x.to(device)", "to"},
		{"return (self.weight * x).to(input_dtype)  # a comment's (text", "mul >input_dtype"},
		{"g, u = g.float().clamp(max=7.0), u.float().clamp(-1, 1)", ">float32 clamp >float32 clamp"},
		{"q, k = self.qk(x).float().chunk(2, -1)", "qk >float32 chunk"},
		{"x += self.f(x).to(x.dtype)", "f >x.dtype add"},
		{"d = torch.einsum('ij,kj->ik', q.float(), k) * (D // H) ** -0.5", ">float32 einsum pow mul"},
		{"xs = x.float().reshape(*x.shape[:-1], -1, 2)", ">float32 reshape"},
		{"y = f(a.float(), *rest, **more)", ">float32 f"},
		{"a, b == c", ""},
		{"x = F.dropout(s.l(x), p=0.0,", ""},
		{"if a.float() > 0:", ""},
	} {
		got := ""
		if e := parsePy(c.line); e != nil {
			var words []string
			for _, k := range e.calls(nil) {
				if to := k.cast(); to != "" {
					words = append(words, ">"+to)
				} else {
					words = append(words, k.text)
				}
			}
			got = strings.Join(words, " ")
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.line, got, c.want)
		}
	}
}

// FuzzParsePy looks for lines that end the parser other than by an answer.
func FuzzParsePy(f *testing.F) {
	for _, s := range []string{"x = x.float()", "a[", "f(a=1, *b)", "((((", "x = 'a' + \"b", "1e-", "x.y.z(1)(2)[3].to(x.dtype)", "-", "x **", "a = = b"} {
		f.Add(s)
	}
	f.Fuzz(func(_ *testing.T, s string) {
		if e := parsePy(s); e != nil {
			e.calls(nil)
			e.casts()
		}
	})
}

// TestNamedCasts puts the call back that a value is named after: mul_1's result is
// type_as_3 of what the module is called with, not of its parameter.
func TestNamedCasts(t *testing.T) {
	g := &graph.Graph{}
	for i, name := range []string{"x", "weight", "h", "type_as_3", "y"} {
		g.Values = append(g.Values, graph.Value{ID: graph.ValueID(i), Name: name, Type: graph.Type{Elem: graph.Float32}, Def: -1})
	}
	call := func(name, op, module string, out graph.ValueID, in ...graph.ValueID) {
		n := graph.Node{ID: int32(len(g.Nodes)), Name: name, Op: op, Module: module, Inputs: in, Outputs: []graph.ValueID{out}}
		for _, id := range in {
			n.Args = append(n.Args, valueArg(id))
		}
		g.Nodes = append(g.Nodes, n)
	}
	call("linear", "linear.default", "up", 2, 0, 1)
	call("mul_1", "mul.Tensor", "norm", 3, 1, 2)
	call("add", "add.Tensor", "norm", 4, 3, 2)
	l := &Lifted{Graph: g, Classes: make([]string, 3), InPlace: make([]bool, 3), Roles: []Role{Unknown, Parameter, Unknown, Unknown, Unknown}, from: make([]graph.ValueID, 5)}
	r := &rewriter{l: l, before: map[int][]graph.Node{}, after: map[int][]graph.Node{}}
	r.count()
	r.namedCasts()
	if len(g.Nodes) != 4 || len(l.Classes) != 4 || g.Nodes[2].Op != "type_as.default" {
		t.Fatalf("calls %v", g.Nodes)
	}
	mul, cast, add := g.Nodes[1], g.Nodes[2], g.Nodes[3]
	if made := mul.Outputs[0]; cast.Args[0].Value != made || cast.Args[1].Value != 2 || cast.Outputs[0] != 3 || add.Inputs[0] != 3 || made == 3 {
		t.Errorf("mul makes %d, cast %v to %d, add reads %v", made, cast.Args, cast.Outputs[0], add.Inputs)
	}
}

// TestModuleResults tells casts of what a module returns from others.
func TestModuleResults(t *testing.T) {
	for line, want := range map[string]bool{
		"attn = self.attn_drop(attn).to(v.dtype)": true,
		"x = self.a.norm(x).type(y.dtype)":        true,
		"x = self.norm(x.to(y.dtype))":            false,
		"x = self.norm(x).to(torch.float32)":      false,
		"x = F.softmax(x).to(v.dtype)":            false,
		"x = (self.norm(x) + 1).to(v.dtype)":      false,
	} {
		if got := parsePy(line).ofModule(); got != want {
			t.Errorf("%s: %v", line, got)
		}
	}
}
