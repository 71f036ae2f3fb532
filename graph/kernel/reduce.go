package kernel

import "slices"

var reduce = slices.Concat(
	each(Kernel{Operands: "self", Dims: true}, "sum amax amin argmax argmin logsumexp cumsum amax_with_indices amin_with_indices glu"),
	each(Kernel{Operands: "self", Scalars: "correction", Dims: true}, "var std"),
	each(Kernel{Operands: "grad output", Dims: true}, "_softmax_backward_data _log_softmax_backward_data"),
	each(Kernel{Operands: "self", Refused: nowhere}, "prod cumprod"),
	[]Kernel{
		{Name: "mean", Operands: "self", Dims: true, Selectable: true},
		{Name: "euclidean_norm", Operands: "self", Dims: true, Float32: true},
		{Name: "softmax", Operands: "self", Dims: true, Selectable: true, Ways: []Way{{Op: "softmax", Dispatched: "_softmax"}}},
		{Name: "log_softmax", Operands: "self", Dims: true, Ways: []Way{{Op: "log_softmax", Dispatched: "_log_softmax"}}},
		{Name: "glu_backward", Operands: "grad self", Dims: true},
		{Name: "topk", Operands: "self", Scalars: "largest", Dims: true}, // largest is 1 or 0
		{Name: "repeat_interleave", Operands: "repeats"},
	},
)
