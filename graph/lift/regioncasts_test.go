package lift

import (
	"slices"
	"testing"

	"github.com/memplan/memplan/graph"
)

// TestRegionOperands reads the arguments of calls as the exporter writes them.
func TestRegionOperands(t *testing.T) {
	for text, want := range map[string][]string{
		"mul = torch.ops.aten.mul.Tensor(to, rsqrt);  rsqrt = None":             {"to", "rsqrt"},
		"mean = torch.ops.aten.mean.dim(pow_1, [-1, 2], True);  pow_1 = None":   {"pow_1", "[-1, 2]", "True"},
		"cat = torch.ops.aten.cat.default([mul, to_3], -1);  mul = to_3 = None": {"[mul, to_3]", "-1"},
		"return self.norm(x)": nil,
		"":                    nil,
	} {
		if got := regionOperands(text); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// TestRegion puts the casts of a region back, once for each name, and marks its calls;
// one without casts that has parameters is warned of.
func TestRegion(t *testing.T) {
	const x, w, h, y, at = 0, 1, 2, 3, "File \"<eval_with_key>.7\", line 5, in forward\n    "
	for _, c := range []struct {
		lines       [2]string
		casts       int
		off, warned bool
	}{
		{[2]string{"h = torch.ops.aten.mul.Tensor(to, to)", "y = torch.ops.aten.mul.Tensor(h, to_1)"}, 2, true, false},
		{[2]string{"h = torch.ops.aten.mul.Tensor(x, x)", "y = torch.ops.aten.mul.Tensor(h, w)"}, 0, false, true},
	} {
		g := &graph.Graph{Outputs: []graph.ValueID{y}}
		for i, name := range []string{"x", "w", "h", "y"} {
			g.Values = append(g.Values, graph.Value{ID: graph.ValueID(i), Name: name, Type: graph.Type{Elem: graph.Float32}, Def: -1})
		}
		for i, in := range [][]graph.ValueID{{x, x}, {h, w}} {
			g.Nodes = append(g.Nodes, graph.Node{ID: int32(i), Op: "mul.Tensor", Inputs: in, Outputs: []graph.ValueID{graph.ValueID(h + i)},
				Args: []graph.Arg{valueArg(in[0]), valueArg(in[1])}, Meta: []graph.Prop{{Key: keyLines, Value: at + c.lines[i]}}})
		}
		l := &Lifted{Graph: g, Classes: make([]string, 2), InPlace: make([]bool, 2), Roles: []Role{Unknown, Parameter, Unknown, Unknown}, from: make([]graph.ValueID, 4)}
		r := &rewriter{l: l, before: map[int][]graph.Node{}, after: map[int][]graph.Node{}}
		r.count()
		r.sourceCasts()
		r.splice()
		if len(g.Nodes) != 2+c.casts || AutocastOff(&g.Nodes[len(g.Nodes)-1]) != c.off || (len(l.Warnings) > 0) != c.warned {
			t.Errorf("%q: %d calls, autocast off %v, warnings %v", c.lines, len(g.Nodes), AutocastOff(&g.Nodes[len(g.Nodes)-1]), l.Warnings)
		}
	}
}
