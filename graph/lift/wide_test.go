package lift

import (
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
)

// Nodes with more operands than can be planned for are refused, with the node,
// whether it is one or many; fewer are not.
func TestWidth(t *testing.T) {
	wide := func(op string, nodes, inputs int) *graph.Graph {
		g := &graph.Graph{Model: &graph.Model{}}
		for range nodes {
			g.Nodes = append(g.Nodes, graph.Node{Op: op, Inputs: make([]graph.ValueID, inputs)})
		}
		return g
	}
	for _, c := range []struct {
		g    *graph.Graph
		want string
	}{
		{wide("Sum", 1, maxFolded+2), ""},
		{wide("Sum", 1, maxFolded+3), "Sum (node 0): 65539 inputs"},
		{wide("Max", maxFolded, 3), ""},
		{wide("Max", maxFolded+1, 3), "Max (node 65536): 3 inputs"},
		{wide("Min", 100_000, 2), ""},
		{wide("Concat", 3, maxOperands), ""},
		{wide("Concat", 1, maxOperands+1), "Concat (node 0): 262145 inputs and outputs"},
	} {
		err := checkWidth(c.g)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d of %s with %d: %v, want %q", len(c.g.Nodes), c.g.Nodes[0].Op, len(c.g.Nodes[0].Inputs), err, c.want)
		}
	}
}

// Names of more components than modules nest are none of modules.
func TestDeepNames(t *testing.T) {
	for depth, deep := range map[int]bool{1: false, maxScopes - 1: false, maxScopes: true, 50_000: true} {
		name := strings.Repeat("a.", depth) + "w"
		if tooDeep(name) != deep {
			t.Errorf("%d components: %v", depth+1, !deep)
		}
	}
}
