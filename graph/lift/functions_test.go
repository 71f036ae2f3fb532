package lift

import (
	"fmt"
	"slices"
	"testing"

	"github.com/memplan/memplan/graph"
)

// Code that applies an autograd function of the model's own is warned of once,
// other code is not.
func TestOwnFunctions(t *testing.T) {
	for text, want := range map[string]int{"return SwishImplementation.apply(x)": 1, "return x * torch.sigmoid(x)": 0, "self.apply(x)": 0} {
		n := graph.Node{Meta: []graph.Prop{{Key: keyLines, Value: "File \"m.py\", line 7, in forward\n    " + text}}}
		l := &Lifted{Graph: &graph.Graph{Nodes: []graph.Node{n, n}}}
		l.warnOwnFunctions()
		if len(l.Warnings) != want {
			t.Errorf("%s: %d warnings, want %d", text, len(l.Warnings), want)
		}
	}
}

// A forward beyond those of modules is an autograd function's, unless a line calls a
// base class's, or it is the one expression of a module that nobody registered.
func TestOwnForward(t *testing.T) {
	in := Line{File: "m.py", Number: 9, Text: "y = self.ssm(x)"}
	for _, c := range []struct {
		lines  []Line
		scopes int
		want   string
	}{
		{[]Line{in, {"scan.py", 3, "a = x.clone()"}}, 1, "a forward in scan.py, line 3"},
		{[]Line{in, {"scan.py", 3, "a = x.clone()"}}, 2, ""},
		{[]Line{in, {"m.py", 3, "a = x.clone()"}}, 1, ""},
		{[]Line{in, {"act.py", 3, "return F.silu(x)"}}, 1, ""},
		{[]Line{{"m.py", 9, "y = super().forward(x)"}, {"base.py", 3, "a = x.clone()"}}, 1, ""},
		{[]Line{in, {"site-packages/torch/nn/functional.py", 3, "a = x.clone()"}}, 1, ""},
	} {
		if got := ownForward(c.lines, make([]string, c.scopes)); got != c.want {
			t.Errorf("%v in %d modules: %q, want %q", c.lines, c.scopes, got, c.want)
		}
	}
}

// The calls of a function that code applies are one region, whose operands it saves;
// applied again on the same line it is another; one of more calls also saves what the last is
// made of, and a long one is none.
func TestOwnRegions(t *testing.T) {
	lines := func(number int) []graph.Prop {
		return []graph.Prop{{Key: keyLines, Value: fmt.Sprintf("File \"m.py\", line 7, in forward\n    return Swish.apply(x)\n  File \"m.py\", line %d, in forward\n    y = x * s", number)}}
	}
	build := func(numbers ...int) *Lifted {
		g := &graph.Graph{Values: []graph.Value{{Kind: graph.Input, Def: -1, Type: graph.Type{Kind: graph.TensorType, Elem: graph.Float32}}}}
		for i, n := range numbers {
			g.Values = append(g.Values, graph.Value{ID: graph.ValueID(i + 1), Def: int32(i), Type: g.Values[0].Type})
			g.Nodes = append(g.Nodes, graph.Node{ID: int32(i), Op: "mul.Tensor", Inputs: []graph.ValueID{graph.ValueID(i)}, Outputs: []graph.ValueID{graph.ValueID(i + 1)}, Meta: lines(n)})
		}
		g.Outputs = []graph.ValueID{graph.ValueID(len(numbers))}
		l := &Lifted{Graph: g}
		l.ownRegions()
		return l
	}
	l := build(20, 21, 20, 21)
	if len(l.Own) != 2 || l.Own[0].Name != "Swish" || l.Own[0].First != 0 || l.Own[0].Last != 1 || l.Own[1].Last != 3 {
		t.Fatalf("%+v", l.Own)
	}
	if r := l.Own[1]; !slices.Equal(r.Inputs, []graph.ValueID{2}) || !slices.Equal(r.Outputs, []graph.ValueID{4}) || len(r.Saves) != 1 || r.Saves[0].Value != 2 {
		t.Errorf("%+v", r)
	}
	if l := build(1, 2, 3, 4, 5, 6, 7, 8, 9); len(l.Own) != 1 || len(l.Own[0].Saves) != 2 || l.Own[0].Saves[1].Value != 8 {
		t.Errorf("a function of nine calls: %+v", l.Own)
	}
	if l := build(make([]int, 25)...); len(l.Own) != 0 {
		t.Errorf("a function of 25 calls: %+v", l.Own)
	}
}
