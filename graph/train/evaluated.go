package train

import (
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
)

// trained turns a batch normalisation that uses running statistics, exported in
// evaluation mode, into its training form, for which the file has all operands.
func trained(c *aten.Call) {
	switch c.Op {
	case "_native_batch_norm_legit_no_training":
		if len(c.Args) >= 5 {
			c.Op, c.Args = "_native_batch_norm_legit_functional", slices.Insert(slices.Clone(c.Args), 5, aten.Arg{Kind: graph.ArgBool, Int: 1})
		}
	default:
		at, ok := aten.TrainingFlag(c.Op)
		if ok && aten.Is(c.Op, aten.WideWeights) && len(c.Args) > at && c.Args[at].Kind == graph.ArgBool {
			c.Args[at].Int = 1
		}
	}
}
