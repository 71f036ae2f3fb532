package kernel

import "slices"

// Results of these kernels do not depend on their operands, except for masks.
var fill = slices.Concat(
	each(Kernel{Nothing: true}, "empty zero_grad del"),
	each(Kernel{Refused: nowhere}, "eye tril_indices triu_indices"),
	each(Kernel{Operands: "self", Scalars: "diagonal"}, "tril triu"),
	// Nodes of these stand for several kernels each and are marked inexact.
	each(Kernel{Operands: "self", Scalars: "dropout=1", Random: true, Refused: nowhere}, "alpha_dropout feature_dropout"),
	[]Kernel{
		{Name: "fill", Operands: "_", Scalars: "value"},
		{Name: "arange", Scalars: "start step"},
		{Name: "randint", Scalars: "low high", Random: true},
		{Name: "randn", Scalars: "mean deviation", Random: true},
		{Name: "uniform", Operands: "_ _", Scalars: "low high", Random: true},
		{Name: "normal", Operands: "_ _", Scalars: "mean deviation", Random: true},
		{Name: "exponential", Operands: "_ _", Random: true, Refused: nowhere},
		{Name: "bernoulli", Operands: "self _", Scalars: "p", Random: true},
		{Name: "native_dropout", Operands: "self", Scalars: dropout, Random: true, Selectable: true},
		{Name: "mask_bias", Operands: "mask"},            // 0 where the mask is set, -inf elsewhere
		{Name: "causal_bias"},                            // 0 on and below the diagonal, -inf above
		{Name: "empty_rows", Operands: "scores softmax"}, // rows whose scores are all -inf become 0
	},
)
