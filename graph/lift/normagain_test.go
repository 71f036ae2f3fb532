package lift

import (
	"testing"

	"github.com/memplan/memplan/graph"
)

// A batch normalisation that is called three times reads the module's running
// statistics each time, not those that the call before returns.
func TestNormAgain(t *testing.T) {
	g := &graph.Graph{Values: make([]graph.Value, 5)}
	for i := range g.Values {
		g.Values[i] = graph.Value{ID: graph.ValueID(i), Def: -1, Kind: graph.Initializer}
	}
	mean, variance := graph.ValueID(3), graph.ValueID(4)
	for call := range 3 {
		n := graph.Node{ID: int32(call), Op: "_native_batch_norm_legit_functional.default"}
		for _, id := range []graph.ValueID{0, 1, 2, mean, variance} {
			n.Args, n.Inputs = append(n.Args, valueArg(id)), append(n.Inputs, id)
		}
		for range 5 {
			id := graph.ValueID(len(g.Values))
			g.Values = append(g.Values, graph.Value{ID: id, Def: int32(call)})
			n.Outputs = append(n.Outputs, id)
		}
		mean, variance = n.Outputs[3], n.Outputs[4]
		g.Nodes = append(g.Nodes, n)
	}
	r := &rewriter{l: &Lifted{Graph: g, Classes: make([]string, 3), InPlace: make([]bool, 3)}, before: map[int][]graph.Node{}, after: map[int][]graph.Node{}}
	r.count()
	for i := range g.Nodes {
		if done := normAgain(r, i); done != (i > 0) {
			t.Errorf("call %d: rewritten: %v", i, done)
		}
		n := &g.Nodes[i]
		if n.Args[3].Value != 3 || n.Args[4].Value != 4 || n.Inputs[3] != 3 || n.Inputs[4] != 4 {
			t.Errorf("call %d reads %v", i, n.Inputs)
		}
	}
}
