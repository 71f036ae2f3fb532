package lift

import (
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
