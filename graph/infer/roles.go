package infer

import (
	"slices"

	"github.com/memplan/memplan/graph"
)

// A role is where an operand may hold the batch: an axis, or one of the
// following.
type role int8

const (
	unread  role = -2 // nothing reads it
	noBatch role = -1 // weights, sizes, axes, conditions, trip counts
	leadDim role = 0
)

// join returns the role of a value with two readers: one that reads it as data
// decides.
func (r role) join(s role) role {
	if r >= leadDim {
		return r
	}
	return max(r, s)
}

// axis returns the axis of an input that may hold the batch, -1 if it has none. An
// input that nothing reads counts as data.
func (r role) axis() int {
	if r == unread {
		return int(leadDim)
	}
	return int(r)
}

// noBatchOperands lists, by operator, operands that hold no batch: weights that all
// samples share, and operands that say how, where or how often. It covers operands
// that are graph inputs in real files; any other counts as data.
var noBatchOperands = map[opKey][]int{
	{"", "LSTM"}: {1, 2, 3, 7}, {"", "GRU"}: {1, 2, 3}, {"", "RNN"}: {1, 2, 3},
	{"", "Conv"}: {1, 2}, {"", "ConvTranspose"}: {1, 2}, {"", "DeformConv"}: {1, 3}, {"", "ConvInteger"}: {1, 2, 3}, {"", "QLinearConv"}: {1, 2, 3, 4, 5, 6, 7, 8},
	{"", "Gemm"}: {1}, {"", "MatMulInteger"}: {2, 3}, {"", "QLinearMatMul"}: {1, 2, 4, 5, 6, 7},
	{"", "BatchNormalization"}: {1, 2, 3, 4}, {"", "InstanceNormalization"}: {1, 2}, {"", "LayerNormalization"}: {1, 2}, {"", "GroupNormalization"}: {1, 2}, {"", "RMSNormalization"}: {1},
	{"", "QuantizeLinear"}: {1, 2}, {"", "DequantizeLinear"}: {1, 2},
	{"", "If"}: {0}, {"", "Loop"}: {0, 1}, {"", "SequenceAt"}: {1}, {"", "SequenceErase"}: {1}, {"", "SequenceInsert"}: {2},
	{"", "Reshape"}: {1}, {"", "Expand"}: {1}, {"", "Tile"}: {1, 2}, {"", "Slice"}: {1, 2, 3, 4}, {"", "Squeeze"}: {1}, {"", "Unsqueeze"}: {1}, {"", "Pad"}: {1, 2, 3}, {"", "CenterCropPad"}: {1},
	{"", "Split"}: {1}, {"", "SplitToSequence"}: {1}, {"", "Resize"}: {1, 2, 3}, {"", "Upsample"}: {1}, {"", "TopK"}: {1}, {"", "Trilu"}: {1}, {"", "CumSum"}: {1}, {"", "CumProd"}: {1},
	{"", "ConstantOfShape"}: {0}, {"", "Range"}: {0, 1, 2}, {"", "OneHot"}: {1, 2}, {"", "Clip"}: {1, 2}, {"", "Dropout"}: {1, 2}, {"", "NonMaxSuppression"}: {2, 3, 4}, {"", "Compress"}: {1},
	{"", "Col2Im"}: {1, 2}, {"", "AffineGrid"}: {1}, {"", "MaxUnpool"}: {2}, {"", "STFT"}: {1, 2, 3}, {"", "DFT"}: {1, 2}, {"", "HannWindow"}: {0}, {"", "HammingWindow"}: {0}, {"", "BlackmanWindow"}: {0},
	{"", "MelWeightMatrix"}: {0, 1, 2, 3, 4}, {"", "NegativeLogLikelihoodLoss"}: {2}, {"", "SoftmaxCrossEntropyLoss"}: {2},
	{"", "ReduceL1"}: {1}, {"", "ReduceL2"}: {1}, {"", "ReduceLogSum"}: {1}, {"", "ReduceLogSumExp"}: {1}, {"", "ReduceMax"}: {1}, {"", "ReduceMean"}: {1}, {"", "ReduceMin"}: {1}, {"", "ReduceProd"}: {1},
	{"", "ReduceSum"}: {1}, {"", "ReduceSumSquare"}: {1},
	{"com.microsoft", "FusedConv"}: {1, 2}, {"com.microsoft", "FusedGemm"}: {1}, {"com.microsoft", "MatMulNBits"}: {1, 2, 3, 4, 5}, {"com.microsoft", "BiasGelu"}: {1}, {"com.microsoft", "FastGelu"}: {1},
	{"com.microsoft", "SkipLayerNormalization"}: {2, 3, 4}, {"com.microsoft", "SkipSimplifiedLayerNormalization"}: {2, 3}, {"com.microsoft", "EmbedLayerNormalization"}: {2, 3, 4, 5, 6},
	{"com.microsoft", "Attention"}: {1, 2, 6}, {"com.microsoft", "MultiHeadAttention"}: {3, 8}, {"com.microsoft", "DecoderMaskedMultiHeadAttention"}: {7, 8, 10},
}

// roles returns the role of each value of a graph, from the operators that read
// them and from declared or inferred ranks.
func roles(g *graph.Graph) []role {
	out := make([]role, len(g.Values))
	for i := range out {
		out[i] = unread
	}
	for _, id := range g.Outputs {
		if id != graph.NoValue {
			out[id] = leadDim
		}
	}
	for i := len(g.Nodes) - 1; i >= 0; i-- {
		n := &g.Nodes[i]
		wide := widest(g, n)
		for j, id := range n.Inputs {
			if id != graph.NoValue {
				out[id] = out[id].join(roleOf(g, n, j, wide, out))
			}
		}
		for _, sub := range n.Subgraphs() {
			for k, r := range roles(sub) {
				if v := &sub.Values[k]; v.Kind == graph.Captured {
					out[v.Outer] = out[v.Outer].join(r)
				}
			}
		}
	}
	return out
}

// roleOf returns the role of operand j of a node; wide is the largest rank of
// its operands, and results are the roles of later values.
func roleOf(g *graph.Graph, n *graph.Node, j, wide int, results []role) role {
	if slices.Contains(noBatchOperands[opKey{n.Domain, n.Op}], j) {
		return noBatch
	}
	if n.Domain != "" {
		return leadDim
	}
	rank := rankOf(&g.Values[n.Inputs[j]])
	switch n.Op {
	case "LSTM", "GRU", "RNN":
		if a := n.Attr("layout"); j != 4 && (a == nil || a.I == 0) {
			return 1 // time or direction is first, and the batch second
		}
	case "MatMul", "MatMulInteger":
		if rank == 1 || j == 1 && rank == 2 { // it is summed over
			return noBatch
		}
	case "QLinearMatMul":
		if j == 3 && rank == 2 {
			return noBatch
		}
	case "Gather":
		if a := n.Attr("axis"); j == 0 && (a == nil || a.I == 0) && len(n.Inputs) > 1 && n.Inputs[1] != graph.NoValue && g.Values[n.Inputs[1]].Kind != graph.Initializer { // a table
			return noBatch
		}
	case "Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "Min", "Sum", "Mean", "Where", "PRelu", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor", "Gemm":
		if rank < wide { // its first dim is an inner one of the result
			return noBatch
		}
	}
	if Is(n.Domain, n.Op, PassesBatch) && j == 0 && len(n.Outputs) > 0 && n.Outputs[0] != graph.NoValue {
		return results[n.Outputs[0]]
	}
	return leadDim
}

// rankOf returns the declared or inferred rank of a value, else 0.
func rankOf(v *graph.Value) int { return max(len(v.Decl.Shape), len(v.Type.Shape)) }

// widest returns the largest rank of a node's operands.
func widest(g *graph.Graph, n *graph.Node) int {
	rank := 0
	for _, id := range n.Inputs {
		if id != graph.NoValue {
			rank = max(rank, rankOf(&g.Values[id]))
		}
	}
	return rank
}
