package train

import (
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/lift"
)

// A call that updates in place what was there before cannot run again, but for the
// count that a batch normalisation keeps and for operators that change nothing twice.
func TestOverwritesBefore(t *testing.T) {
	for _, c := range []struct {
		name, op string
		want     int
	}{
		{"features.1.num_batches_tracked", "add.Tensor", -1},
		{"features.1.running_seen", "add.Tensor", 0},
		{"x", "add.Tensor", 0},
		{"x", "relu.default", -1},
	} {
		g := &graph.Graph{
			Values: []graph.Value{{Name: c.name, Kind: graph.Initializer, Def: -1}, {ID: 1, Name: "y"}},
			Nodes:  []graph.Node{{Op: c.op, Inputs: []graph.ValueID{0}, Outputs: []graph.ValueID{1}, Args: []graph.Arg{{Kind: graph.ArgValue, Value: 0}}}},
		}
		if got := Overwrites(&lift.Lifted{Graph: g, InPlace: []bool{true}}, 0, 1); got != c.want {
			t.Errorf("%s of %s: %d, want %d", c.op, c.name, got, c.want)
		}
	}
}
