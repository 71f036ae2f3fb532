package kernel

import "slices"

var pointwise = slices.Concat(
	each(Kernel{Operands: "self", Elementwise: true}, `copy abs exp expm1 log log2 log10 log1p sqrt reciprocal square sin cos tan atan sinh cosh asin acos asinh acosh
		atanh erf erfc erfinv sinc exp2 floor ceil round trunc frac sign sgn mish log_sigmoid softsign lgamma digamma`),
	each(Kernel{Operands: "self", Elementwise: true, Selectable: true}, "neg rsqrt tanh sigmoid silu hardswish hardsigmoid"),
	each(Kernel{Operands: "self _", Elementwise: true}, "zeros_like logical_not bitwise_not isinf isnan isfinite"),
	each(Kernel{Operands: "self", Scalars: "lambd", Elementwise: true}, "hardshrink softshrink"),
	[]Kernel{
		{Name: "relu", Operands: "self", Scalars: "threshold=0", Elementwise: true},
		{Name: "gelu", Operands: "self", Modes: "tanh", Elementwise: true, Selectable: true},
		{Name: "leaky_relu", Operands: "self", Scalars: "negative_slope", Elementwise: true},
		{Name: "logit", Operands: "self", Scalars: "eps", Elementwise: true}, // eps clamps self, negative for no clamp
		{Name: "clamp_min", Operands: "self", Scalars: "min", Elementwise: true},
		{Name: "clamp_max", Operands: "self", Scalars: "max", Elementwise: true},
		{Name: "clamp", Operands: "self", Scalars: "min max", Elementwise: true},
		{Name: "hardtanh", Operands: "self", Scalars: "min_val max_val", Elementwise: true},
		{Name: "threshold", Operands: "self", Scalars: "threshold value", Elementwise: true},
		{Name: "softplus", Operands: "self", Scalars: "beta threshold", Elementwise: true},
		{Name: "elu", Operands: "self", Scalars: "alpha scale input_scale", Elementwise: true},
		{Name: "nan_to_num", Operands: "self", Scalars: "nan posinf neginf", Elementwise: true, Refused: nowhere},
	},
	each(Kernel{Operands: "self other", Elementwise: true}, `maximum minimum eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor
		floor_divide remainder fmod atan2 div_or_zero xlogy hypot`),
	each(Kernel{Operands: "self other", Elementwise: true, Selectable: true}, "mul pow"),
	each(Kernel{Operands: "self other", Scalars: "alpha=1", Elementwise: true}, "add rsub"),
	each(Kernel{Operands: "self tensor1 tensor2", Scalars: "value", Elementwise: true}, "addcmul addcdiv"),
	[]Kernel{
		{Name: "sub", Operands: "self other", Scalars: "alpha=1", Elementwise: true, Selectable: true},
		{Name: "div", Operands: "self other", Modes: "floor trunc", Elementwise: true, Selectable: true},
		{Name: "_prelu_kernel", Operands: "self weight", Elementwise: true},
		{Name: "_prelu_kernel_backward", Operands: "grad self weight"},
		{Name: "where", Operands: "condition self other", Elementwise: true},
		{Name: "masked_fill", Operands: "self mask value", Elementwise: true},
		{Name: "lerp", Operands: "self end weight", Elementwise: true},
	},
	each(Kernel{Operands: "grad output", Elementwise: true}, "tanh_backward sigmoid_backward"),
	each(Kernel{Operands: "grad self", Elementwise: true}, "silu_backward mish_backward hardswish_backward hardsigmoid_backward log_sigmoid_backward"),
	each(Kernel{Operands: "grad self", Scalars: "lambd", Elementwise: true}, "hardshrink_backward softshrink_backward"),
	[]Kernel{ // in the mode "result", self is the forward's result
		{Name: "gelu_backward", Operands: "grad self", Modes: "tanh", Elementwise: true},
		{Name: "threshold_backward", Operands: "grad self", Scalars: "threshold value=0", Elementwise: true},
		{Name: "leaky_relu_backward", Operands: "grad self", Scalars: "negative_slope", Modes: "result", Elementwise: true},
		{Name: "logit_backward", Operands: "grad self", Scalars: "eps", Elementwise: true},
		{Name: "hardtanh_backward", Operands: "grad self", Scalars: "min_val max_val", Elementwise: true},
		{Name: "softplus_backward", Operands: "grad self", Scalars: "beta threshold", Elementwise: true},
		{Name: "elu_backward", Operands: "grad self", Scalars: "alpha scale input_scale", Modes: "result", Elementwise: true},
		{Name: "native_dropout_backward", Operands: "grad mask", Scalars: "scale", Elementwise: true},
	},
)
