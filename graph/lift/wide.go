package lift

import (
	"fmt"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/infer"
)

// Bounds on the calls that one node may become. A node with many operands
// becomes many calls, of some 10 KB each through all stages, though an operand
// takes three bytes of the file.
const (
	maxFolded   = 1 << 16 // additional calls of nodes that fold their operands, in the whole graph
	maxOperands = 1 << 18 // inputs and outputs of one node
)

// checkWidth returns an error for nodes with more operands than can be planned
// for.
func checkWidth(g *graph.Graph) error {
	folded := 0
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if n := len(n.Inputs) + len(n.Outputs); n > maxOperands {
			return fmt.Errorf("%s (node %d): %d inputs and outputs, more than the %d that a step is planned for", g.Nodes[i].Op, i, n, maxOperands)
		}
		if n.Domain == "" && infer.Is("", n.Op, infer.Folds) {
			folded += max(len(n.Inputs)-2, 0)
		}
		if folded > maxFolded {
			return fmt.Errorf("%s (node %d): %d inputs: such operators have more than %d altogether, which a step is not planned for", n.Op, i, len(n.Inputs), maxFolded)
		}
	}
	return nil
}
