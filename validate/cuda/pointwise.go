package cuda

// An Operator is an elementwise kernel: the C expressions that compute it from
// operands a, b and c and from parameters p. C is the type it is computed in.
type Operator struct {
	Name   string // the ATen operator, without the underscore of its in-place form
	Inputs int    // operands; the parameters follow them in a call
	Real   string // of floating-point numbers
	Int    string // of 64-bit integers; empty: integers are computed as float64
	Hot    bool   // has vector kernels for dense operands
}

// Operators lists the elementwise operators. An operator's place is its code in
// the compiled kernels: after a change here, run go generate.
var Operators = []Operator{
	{"copy", 1, "a", "a", true},
	{"add", 2, "a + (C)p[0] * b", "a + (i64)p[0] * b", true},
	{"sub", 2, "a - (C)p[0] * b", "a - (i64)p[0] * b", true},
	{"rsub", 2, "b - (C)p[0] * a", "b - (i64)p[0] * a", false},
	{"mul", 2, "a * b", "a * b", true},
	{"div", 2, "a / b", "", true},
	{"div_floor", 2, "floor(a / b)", "floor_div(a, b)", false},
	{"div_trunc", 2, "trunc(a / b)", "b ? a / b : 0", false},
	{"remainder", 2, "mod_floor<C>(a, b)", "b ? a - floor_div(a, b) * b : 0", false},
	{"fmod", 2, "fmod(a, b)", "b ? a % b : 0", false},
	{"pow", 2, "b == (C)2 ? a * a : b == (C)3 ? a * a * a : b == (C)1 ? a : pow(a, b)", "ipow(a, b)", true},
	{"atan2", 2, "atan2(a, b)", "", false},
	{"maximum", 2, "a != a ? a : b != b ? b : a > b ? a : b", "a > b ? a : b", false},
	{"minimum", 2, "a != a ? a : b != b ? b : a < b ? a : b", "a < b ? a : b", false},
	{"eq", 2, "a == b", "a == b", false},
	{"ne", 2, "a != b", "a != b", false},
	{"lt", 2, "a < b", "a < b", false},
	{"le", 2, "a <= b", "a <= b", false},
	{"gt", 2, "a > b", "a > b", false},
	{"ge", 2, "a >= b", "a >= b", false},
	{"logical_and", 2, "a != (C)0 && b != (C)0", "a && b", false},
	{"logical_or", 2, "a != (C)0 || b != (C)0", "a || b", false},
	{"logical_xor", 2, "(a != (C)0) != (b != (C)0)", "!a != !b", false},
	{"logical_not", 1, "a == (C)0", "!a", false},
	{"bitwise_and", 2, "(C)((i64)a & (i64)b)", "a & b", false},
	{"bitwise_or", 2, "(C)((i64)a | (i64)b)", "a | b", false},
	{"bitwise_xor", 2, "(C)((i64)a ^ (i64)b)", "a ^ b", false},
	{"bitwise_not", 1, "(C)(~(i64)a)", "~a", false},
	{"where", 3, "a != (C)0 ? b : c", "a ? b : c", false},
	{"masked_fill", 3, "b != (C)0 ? c : a", "b ? c : a", false},
	{"addcmul", 3, "a + (C)p[0] * b * c", "", false},
	{"addcdiv", 3, "a + (C)p[0] * b / c", "", false},
	{"lerp", 3, "a + c * (b - a)", "", false},
	{"clamp", 3, "clamped<C>(a, b, c)", "a < b ? b : a > c ? c : a", false},
	{"neg", 1, "-a", "-a", false},
	{"abs", 1, "fabs(a)", "a < 0 ? -a : a", false},
	{"sign", 1, "(C)((a > (C)0) - (a < (C)0))", "(a > 0) - (a < 0)", false},
	{"sgn", 1, "(C)((a > (C)0) - (a < (C)0))", "(a > 0) - (a < 0)", false},
	{"floor", 1, "floor(a)", "a", false},
	{"ceil", 1, "ceil(a)", "a", false},
	{"round", 1, "rint(a)", "a", false},
	{"trunc", 1, "trunc(a)", "a", false},
	{"frac", 1, "a - trunc(a)", "0", false},
	{"exp", 1, "exp(a)", "", false},
	{"exp2", 1, "exp2(a)", "", false},
	{"expm1", 1, "expm1(a)", "", false},
	{"log", 1, "log(a)", "", false},
	{"log2", 1, "log2(a)", "", false},
	{"log10", 1, "log10(a)", "", false},
	{"log1p", 1, "log1p(a)", "", false},
	{"sqrt", 1, "sqrt(a)", "", false},
	{"rsqrt", 1, "(C)1 / sqrt(a)", "", false},
	{"reciprocal", 1, "(C)1 / a", "", false},
	{"square", 1, "a * a", "a * a", false},
	{"sin", 1, "sin(a)", "", false},
	{"cos", 1, "cos(a)", "", false},
	{"tan", 1, "tan(a)", "", false},
	{"asin", 1, "asin(a)", "", false},
	{"acos", 1, "acos(a)", "", false},
	{"atan", 1, "atan(a)", "", false},
	{"sinh", 1, "sinh(a)", "", false},
	{"cosh", 1, "cosh(a)", "", false},
	{"tanh", 1, "tanh(a)", "", true},
	{"asinh", 1, "asinh(a)", "", false},
	{"acosh", 1, "acosh(a)", "", false},
	{"atanh", 1, "atanh(a)", "", false},
	{"erf", 1, "erf(a)", "", false},
	{"erfc", 1, "erfc(a)", "", false},
	{"erfinv", 1, "erfinv(a)", "", false},
	{"lgamma", 1, "lgamma(a)", "", false},
	{"isnan", 1, "a != a", "0", false},
	{"isinf", 1, "fabs(a) == (C)INFINITY", "0", false},
	{"nan_to_num", 1, "a != a ? (C)p[0] : a == (C)INFINITY ? (C)p[1] : a == -(C)INFINITY ? (C)p[2] : a", "a", false},
	{"logit", 1, "log(clamped<C>(a, p[0] < 0 ? (C)0 : (C)p[0], p[0] < 0 ? (C)1 : (C)(1 - p[0])) / ((C)1 - clamped<C>(a, p[0] < 0 ? (C)0 : (C)p[0], p[0] < 0 ? (C)1 : (C)(1 - p[0]))))", "", false},
	{"relu", 1, "a > (C)0 || a != a ? a : (C)0", "a > 0 ? a : 0", true},
	{"hardtanh", 1, "clamped<C>(a, (C)p[0], (C)p[1])", "", true},
	{"threshold", 1, "a <= (C)p[0] ? (C)p[1] : a", "", false},
	{"leaky_relu", 1, "a > (C)0 ? a : a * (C)p[0]", "", false},
	{"elu", 1, "a > (C)0 ? a * (C)p[1] : (C)(p[0] * p[1]) * expm1(a * (C)p[2])", "", false},
	{"sigmoid", 1, "sigmoid<C>(a)", "", true},
	{"silu", 1, "a * sigmoid<C>(a)", "", true},
	{"gelu", 1, "p[0] != 0 ? (C)0.5 * a * ((C)1 + tanh((C)0.7978845608028654 * (a + (C)0.044715 * a * a * a))) : a * (C)0.5 * ((C)1 + erf(a * (C)0.7071067811865476))", "", true},
	{"mish", 1, "a * tanh(softplus<C>(a, 1, 20))", "", false},
	{"hardswish", 1, "a * clamped<C>(a + 3, 0, 6) / (C)6", "", true},
	{"hardsigmoid", 1, "clamped<C>(a + 3, 0, 6) / (C)6", "", false},
	{"softplus", 1, "softplus<C>(a, (C)p[0], (C)p[1])", "", false},
	{"log_sigmoid", 1, "(a < 0 ? a : (C)0) - log1p(exp(-fabs(a)))", "", false},
	{"hardshrink", 1, "a >= -(C)p[0] && a <= (C)p[0] ? (C)0 : a", "", false},
	{"softshrink", 1, "a > (C)p[0] ? a - (C)p[0] : a < -(C)p[0] ? a + (C)p[0] : a == a ? (C)0 : a", "", false},
	{"threshold_backward", 2, "b <= (C)p[0] ? (C)0 : a", "", true},
	{"hardtanh_backward", 2, "b <= (C)p[0] || b >= (C)p[1] ? (C)0 : a", "", true},
	{"leaky_relu_backward", 2, "b > (C)0 ? a : a * (C)p[0]", "", false},
	{"elu_backward", 2, "b > (C)0 ? a * (C)p[1] : p[3] != 0 ? a * (C)p[2] * (b + (C)(p[0] * p[1])) : a * (C)(p[2] * p[0] * p[1]) * exp(b * (C)p[2])", "", false},
	{"sigmoid_backward", 2, "a * ((C)1 - b) * b", "", true},
	{"tanh_backward", 2, "a * ((C)1 - b * b)", "", true},
	{"silu_backward", 2, "a * sigmoid<C>(b) * ((C)1 + b * ((C)1 - sigmoid<C>(b)))", "", true},
	{"gelu_backward", 2, "a * gelu_slope<C>(b, p[0] != 0)", "", true},
	{"mish_backward", 2, "a * (tanh(softplus<C>(b, 1, 20)) + b * sigmoid<C>(b) * ((C)1 - tanh(softplus<C>(b, 1, 20)) * tanh(softplus<C>(b, 1, 20))))", "", false},
	{"hardswish_backward", 2, "b < (C)-3 ? (C)0 : b <= (C)3 ? a * (b / (C)3 + (C)0.5) : a", "", true},
	{"hardsigmoid_backward", 2, "b > (C)-3 && b < (C)3 ? a / (C)6 : (C)0", "", false},
	{"softplus_backward", 2, "b * (C)p[0] > (C)p[1] ? a : a * sigmoid<C>(b * (C)p[0])", "", false},
	{"log_sigmoid_backward", 2, "a * sigmoid<C>(-b)", "", false},
	{"hardshrink_backward", 2, "b >= -(C)p[0] && b <= (C)p[0] ? (C)0 : a", "", false},
	{"softshrink_backward", 2, "b >= -(C)p[0] && b <= (C)p[0] ? (C)0 : a", "", false},
	{"logit_backward", 2, "b < (C)p[0] || b > (C)(1 - p[0]) ? (p[0] < 0 ? (C)NAN : (C)0) : a / (b * ((C)1 - b))", "", false},
	{"mse_loss_backward", 3, "(C)p[0] * (b - c) * a", "", false},
	{"mse", 2, "(a - b) * (a - b)", "", false},
}

// operatorCode returns the code of an elementwise operator, or -1.
func operatorCode(name string) int {
	for i := range Operators {
		if Operators[i].Name == name {
			return i
		}
	}
	return -1
}
