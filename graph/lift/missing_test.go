package lift

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
)

// namedCalls is a graph whose calls have names, each made by a node of a module, with a
// result of as many floats as its place in the list, and the parameters of the
// model that was exported.
func namedCalls(calls, parameters string) *graph.Graph {
	g := &graph.Graph{}
	for i, c := range strings.Fields(calls) {
		name, module, _ := strings.Cut(c, "@")
		scopes := []string{"''"}
		for k := range module {
			if module[k] == '.' {
				scopes = append(scopes, "'"+module[:k]+"'")
			}
		}
		scopes = append(scopes, "'"+module+"'", "'"+name+"'")
		id := graph.ValueID(i)
		g.Values = append(g.Values, graph.Value{ID: id, Kind: graph.Computed, Def: int32(i), Type: graph.Type{Kind: graph.TensorType, Elem: graph.Float32, Shape: graph.Shape{graph.Int(int64(i + 1))}}})
		g.Nodes = append(g.Nodes, graph.Node{ID: int32(i), Name: name, Op: "Relu", Module: module, Outputs: []graph.ValueID{id}, Meta: []graph.Prop{
			{Key: keyFX, Value: "%" + name + " : [num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (), kwargs = {})"},
			{Key: keyScopes, Value: "[" + strings.Join(scopes, ", ") + "]"},
			{Key: keyClasses, Value: "[" + strings.Join(slices.Repeat([]string{"'Block'"}, len(scopes)), ", ") + "]"},
		}})
	}
	var list strings.Builder
	for _, p := range strings.Fields(parameters) {
		fmt.Fprintf(&list, "p_%s: PARAMETER target='%s'\n", strings.ReplaceAll(p, ".", "_"), p)
	}
	g.Meta = []graph.Prop{{Key: keySignature, Value: list.String()}}
	return g
}

// TestMissing: what files lack, by the numbers of their calls and by parameters.
func TestMissing(t *testing.T) {
	for _, c := range []struct {
		calls, parameters string
		gaps, idle        string
		bytes             int64 // of both
	}{
		{"linear@a relu@a linear_1@a", "a.weight", "", "", 0},
		{"linear@a relu@a linear_2@a linear_5@a", "a.weight", "linear 1 0-2 linear 2 2-3", "", 3*4 + 2*4*4},
		{"clone_1@a relu@a", "", "clone 1 -1-0", "", 4},
		{"sum_1@a sum_2@a", "", "", "", 0}, // sum is a name of Python's
		{"add_7@a mul_3@a view_9@a", "", "", "", 0},
		{"linear_9999999999999999999@a linear_99999999@a", "", "", "", 0},
		{"conv2d@m.a conv2d_1@m.b", "m.a.weight m.b.weight m.c.weight m.c.bias", "", "m.c in m", 8},
		{"conv2d@m.a conv2d_1@m.b", "m.a.weight m.a.d.weight", "", "", 0}, // b runs behind a
		{"conv2d@m.a conv2d_2@m.b", "m.c.weight", "conv2d 1 0-1", "", 8},  // the gap is c
	} {
		g := namedCalls(c.calls, c.parameters)
		l := &Lifted{Graph: g}
		l.missing(g)
		var gaps, idle []string
		for _, x := range l.Gaps {
			gaps = append(gaps, fmt.Sprintf("%s %d %d-%d", x.Op, x.Calls, x.After, x.Before))
		}
		for _, x := range l.Idle {
			idle = append(idle, x.Module+" in "+x.Within)
		}
		if strings.Join(gaps, " ") != c.gaps || strings.Join(idle, " ") != c.idle || l.MissingBytes()+l.IdleBytes() != c.bytes {
			t.Errorf("%s; %s: gaps %v, idle %v, %d bytes; want %q, %q, %d", c.calls, c.parameters, gaps, idle, l.MissingBytes()+l.IdleBytes(), c.gaps, c.idle, c.bytes)
		}
	}
	g := namedCalls("linear@a linear_4@a", "")
	g.Nodes = slices.Insert(g.Nodes, 1, graph.Node{Op: "Add"}) // what an optimizer made
	l := &Lifted{Graph: g}
	if l.missing(g); len(l.Gaps) > 0 {
		t.Errorf("a file that was rewritten has gaps %v", l.Gaps)
	}
}
