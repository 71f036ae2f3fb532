package lift_test

// A patternRow is a graph in ONNX's text syntax and the calls that it must be
// lifted to, one a line: OP(arguments) -> results.
type patternRow struct {
	rule, graph, calls string
}

// unaryRows are operators of one operand: the ONNX name and the call.
var unaryRows = [][2]string{
	{"Relu", "relu"}, {"Sigmoid", "sigmoid"}, {"Tanh", "tanh"}, {"HardSwish", "hardswish"}, {"HardSigmoid", "hardsigmoid"}, {"Mish", "mish"}, {"Exp", "exp"},
	{"Log", "log"}, {"Sqrt", "sqrt"}, {"Reciprocal", "reciprocal"}, {"Neg", "neg"}, {"Abs", "abs"}, {"Erf", "erf"}, {"Sin", "sin"}, {"Cos", "cos"},
	{"Tan", "tan"}, {"Atan", "atan"}, {"Acos", "acos"}, {"Asin", "asin"}, {"Acosh", "acosh"}, {"Asinh", "asinh"}, {"Atanh", "atanh"}, {"Sinh", "sinh"}, {"Cosh", "cosh"}, {"Floor", "floor"}, {"Ceil", "ceil"}, {"Round", "round"}, {"Sign", "sign"},
	{"Softsign", "softsign"}, {"Selu", "selu"}, {"Softplus", "softplus"}, {"IsNaN", "isnan"}, {"IsInf", "isinf"},
}

// binaryRows are operators of two operands of type float.
var binaryRows = [][2]string{
	{"Add", "add.Tensor"}, {"Sub", "sub.Tensor"}, {"Mul", "mul.Tensor"}, {"Div", "div.Tensor"}, {"Pow", "pow.Tensor_Scalar"}, {"Equal", "eq.Tensor"},
	{"Less", "lt.Tensor"}, {"LessOrEqual", "le.Tensor"}, {"Greater", "gt.Tensor"}, {"GreaterOrEqual", "ge.Tensor"}, {"Mod", "remainder.Tensor"},
}

var patternRows = []patternRow{
	{"logical_not", `(bool[2] x) => (bool[2] y) { y = Not(x) }`, "logical_not.default(x) -> y"},
	{"bitwise_not", `(int32[2] x) => (int32[2] y) { y = BitwiseNot(x) }`, "bitwise_not.default(x) -> y"},
	{"logical_and", `(bool[2] x, bool[2] z) => (bool[2] y) { y = And(x, z) }`, "logical_and.default(x, z) -> y"},
	{"logical_or", `(bool[2] x, bool[2] z) => (bool[2] y) { y = Or(x, z) }`, "logical_or.default(x, z) -> y"},
	{"logical_xor", `(bool[2] x, bool[2] z) => (bool[2] y) { y = Xor(x, z) }`, "logical_xor.default(x, z) -> y"},
	{"bitwise_and", `(int32[2] x, int32[2] z) => (int32[2] y) { y = BitwiseAnd(x, z) }`, "bitwise_and.Tensor(x, z) -> y"},
	{"bitwise_or", `(int32[2] x, int32[2] z) => (int32[2] y) { y = BitwiseOr(x, z) }`, "bitwise_or.Tensor(x, z) -> y"},
	{"bitwise_xor", `(int32[2] x, int32[2] z) => (int32[2] y) { y = BitwiseXor(x, z) }`, "bitwise_xor.Tensor(x, z) -> y"},
	{"add", `(float[2] x) => (float[2] y) { c = Constant<value = float {2.0}>() y = Add(c, x) }`, "add.Tensor(2, x) -> y"},
	{"leaky-relu", `(float[2] x) => (float[2] y) { y = LeakyRelu<alpha = 0.25>(x) }`, "leaky_relu.default(x, 0.25) -> y"},
	{"elu", `(float[2] x) => (float[2] y) { y = Elu(x) }`, "elu.default(x, 1) -> y"},
	{"celu", `(float[2] x) => (float[2] y) { y = Celu<alpha = 2.0>(x) }`, "celu.default(x, 2) -> y"},
	{"threshold", `(float[2] x) => (float[2] y) { y = ThresholdedRelu<alpha = 0.5>(x) }`, "threshold.default(x, 0.5, 0) -> y"},
	{"gelu", `(float[2] x) => (float[2] y) { y = Gelu<approximate = "tanh">(x) }`, "gelu.default(x, 'tanh') -> y"},
	{"gelu", `(float[2] x) => (float[2] y) { y = com.microsoft.Gelu(x) }`, "gelu.default(x, 'none') -> y"},
	{"fast-gelu", `(float[2] x, float[2] b) => (float[2] y) { y = com.microsoft.FastGelu(x, b) }`, "add.Tensor(x, b) -> y/bias\ngelu.default(y/bias, approximate='tanh') -> y"},
	{"quick-gelu", `(float[2] x) => (float[2] y) { y = com.microsoft.QuickGelu(x) }`, "mul.Tensor(x, 1.702) -> y/t\nsigmoid.default(y/t) -> y/s\nmul.Tensor(x, y/s) -> y"},
	{"swish", `(float[2] x) => (float[2] y) { y = Swish(x) }`, "silu.default(x) -> y"},
	{"swish-scaled", `(float[2] x) => (float[2] y) { y = Swish<alpha = 0.5>(x) }`, "mul.Tensor(x, 0.5) -> y/t\nsigmoid.default(y/t) -> y/s\nmul.Tensor(x, y/s) -> y"},
	{"where", `(bool[2] c, float[2] x) => (float[2] y) { z = Constant<value = float {0.0}>() y = Where(c, x, z) }`, "where.self(c, x, 0) -> y"},
	{"many", `(float[2] a, float[3,1] b, float[2] c) => (float[3,2] y) { y = Max(a, b, c) }`, "maximum.default(a, b) -> y/part\nmaximum.default(y/part, c) -> y"},
	{"many", `(float[2] a, float[2] b) => (float[2] y) { y = Mean(a, b) }`, "add.Tensor(a, b) -> y/part\ndiv.Tensor(y/part, 2) -> y"},
	{"clip", `(float[2] x) => (float[2] y) { l = Constant<value = float {0.0}>() h = Constant<value = float {6.0}>() y = Clip(x, l, h) }`, "hardtanh.default(x, 0, 6) -> y"},
	{"clip", `(float[2] x) => (float[2] y) { l = Constant<value = float {1.0}>() y = Clip(x, l) }`, "clamp_min.default(x, 1) -> y"},

	{"attention", `(float[2,4,8,16] q, float[2,4,8,16] k, float[2,4,8,16] v, float[8,8] m) => (float[2,4,8,16] y) {
		s = Constant<value = float {0.5}>() kt = Transpose<perm = [0,1,3,2]>(k) qs = Mul(q, s) ks = Mul(kt, s) a = MatMul(qs, ks) b = Add(a, m) p = Softmax(b) y = MatMul(p, v) }`,
		"scaled_dot_product_attention.default(q, k, v, m, 0) -> y"},
	{"attention", `(float[2,8,4,16] q, float[2,8,4,16] k, float[2,8,4,16] v) => (float[2,4,8,16] y) {
		s = Constant<value = float {0.5}>() qt = Transpose<perm = [0,2,1,3]>(q) kt = Transpose<perm = [0,2,3,1]>(k) vt = Transpose<perm = [0,2,1,3]>(v)
		qs = Mul(qt, s) ks = Mul(kt, s) a = MatMul(qs, ks) p = Softmax<axis = -1>(a) y = MatMul(p, vt) }`,
		"transpose.int(q, 1, 2) -> qt\npermute.default(k, [0, 2, 3, 1]) -> kt\ntranspose.int(v, 1, 2) -> vt\n" +
			"transpose.int(kt, -2, -1) -> y/key\nscaled_dot_product_attention.default(qt, y/key, vt, None, 0) -> y"},
	{"attention", `(float[2,4,8,16] q, float[2,4,8,16] k, float[2,4,8,16] v, bool[8,8] c) => (float[2,4,8,16] y) {
		s = Constant<value = float {0.5}>() z = Constant<value = float {0.0}>() i = Constant<value = float {-1000.0}>() m = Where(c, z, i)
		kt = Transpose<perm = [0,1,3,2]>(k) qs = Mul(q, s) ks = Mul(kt, s) a = MatMul(qs, ks) b = Add(a, m) p = Softmax(b) n = IsNaN(p) w = Where(n, z, p) y = MatMul(w, v) }`,
		"scaled_dot_product_attention.default(q, k, v, c, 0) -> y"},
	{"attention", `(float[2,4,8,16] q, float[2,4,8,16] k, float[2,4,8,16] v) => (float[2,4,8,16] y) {
		s = Constant<value = float {0.5}>() z = Constant<value = float {0.0}>() i = Constant<value = float {-1000.0}>() o = Constant<value = float {1.0}>() h = Constant<value = int64[2] {8,8}>()
		e = Expand(o, h) t = Trilu<upper = 0>(e) c = Equal(t, z) m = Where(c, i, z)
		kt = Transpose<perm = [0,1,3,2]>(k) qs = Mul(q, s) ks = Mul(kt, s) a = MatMul(qs, ks) b = Add(a, m) p = Softmax(b) r = Constant<value = float {0.25}>() d = Dropout(p, r) y = MatMul(d, v) }`,
		"scaled_dot_product_attention.default(q, k, v, None, 0.25, True) -> y"},
	{"group-norm", `(float[2,8,4,4] x) => (float[2,8,4,4] y) <float[4] one = {1,1,1,1}, float[4] zero = {0,0,0,0}, float[8,1,1] w = {1,1,1,1,1,1,1,1}, float[8,1,1] b = {0,0,0,0,0,0,0,0}> {
		s = Constant<value = int64[3] {0,4,-1}>() t = Shape(x) r = Reshape(x, s) i = InstanceNormalization(r, one, zero) u = Reshape(i, t) v = Mul(u, w) y = Add(v, b) }`,
		"group_norm.default(x, 4, w, b, 1e-05) -> y"},
	{"group-norm", `(float[2,8,4,4] x) => (float[2,8,4,4] y) <float[4] one = {1,1,1,1}, float[4] zero = {0,0,0,0}, float[8] "n.weight" = {1,1,1,1,1,1,1,1}, float[8] "n.bias" = {0,0,0,0,0,0,0,0}> {
		s = Constant<value = int64[3] {0,4,-1}>() a = Constant<value = int64[2] {1,2}>() w = Unsqueeze("n.weight", a) b = Unsqueeze("n.bias", a)
		t = Shape(x) r = Reshape(x, s) i = InstanceNormalization(r, one, zero) u = Reshape(i, t) v = Mul(u, w) y = Add(v, b) }`,
		"group_norm.default(x, 4, n.weight, n.bias, 1e-05) -> y"},
	{"layer-norm", `(float[2,4] x) => (float[2,4] y) <float[4] w = {1,1,1,1}, float[4] b = {0,0,0,0}> {
		two = Constant<value = float {2.0}>() e = Constant<value = float {0.5}>() m = ReduceMean<axes = [-1]>(x) d = Sub(x, m) q = Pow(d, two) v = ReduceMean<axes = [-1]>(q)
		f = Add(v, e) s = Sqrt(f) n = Div(d, s) g = Mul(n, w) y = Add(g, b) }`, "layer_norm.default(x, [4], w, b, 0.5) -> y"},
	{"layer-norm", `(float[2,4] x) => (float[2,4] y) {
		e = Constant<value = float {0.5}>() m = ReduceMean<axes = [1]>(x) d = Sub(x, m) q = Mul(d, d) v = ReduceMean<axes = [1]>(q) f = Add(e, v) s = Sqrt(f) y = Div(d, s) }`,
		"layer_norm.default(x, [4], None, None, 0.5) -> y"},
	{"rms-norm", `(float[2,4] x) => (float[2,4] y) <float[4] w = {1,1,1,1}> {
		two = Constant<value = float {2.0}>() e = Constant<value = float {0.5}>() q = Pow(x, two) m = ReduceMean<axes = [-1]>(q) f = Add(m, e) s = Sqrt(f) r = Reciprocal(s) n = Mul(x, r) y = Mul(n, w) }`,
		"rms_norm.default(x, [4], w, 0.5) -> y"},
	{"rsqrt", `(float[2,4] x) => (float[2,4] y) <float[4] w = {1,1,1,1}> {
		two = Constant<value = float {2.0}>() e = Constant<value = float {0.5}>() q = Pow(x, two) m = ReduceMean<axes = [-1]>(q) f = Add(m, e) s = Sqrt(f) r = Reciprocal(s) n = Mul(x, r) y = Mul(w, n) }`,
		"pow.Tensor_Scalar(x, 2) -> q\nmean.dim(q, [1], True) -> m\nadd.Tensor(m, 0.5) -> f\nrsqrt.default(f) -> r\nmul.Tensor(x, r) -> n\nmul.Tensor(w, n) -> y"},
	{"gelu-erf", `(float[2] x) => (float[2] y) { r = Constant<value = float {1.4142135}>() o = Constant<value = float {1.0}>() h = Constant<value = float {0.5}>()
		d = Div(x, r) e = Erf(d) a = Add(e, o) m = Mul(x, a) y = Mul(m, h) }`, "gelu.default(x) -> y"},
	{"gelu-tanh", `(float[2] x) => (float[2] y) { c = Constant<value = float {0.044715}>() k = Constant<value = float {0.7978845}>() o = Constant<value = float {1.0}>() h = Constant<value = float {0.5}>()
		q = Mul(x, x) u = Mul(x, q) v = Mul(c, u) a = Add(x, v) i = Mul(k, a) t = Tanh(i) p = Add(o, t) m = Mul(x, p) y = Mul(h, m) }`, "gelu.default(x, approximate='tanh') -> y"},
	{"silu", `(float[2] x) => (float[2] y) { s = Sigmoid(x) y = Mul(x, s) }`, "silu.default(x) -> y"},
	{"sigmoid", `(float[2] x) => (float[2] y, float[2] s) { s = Sigmoid(x) y = Mul(x, s) }`, "sigmoid.default(x) -> s\nmul.Tensor(x, s) -> y"},
	{"hardswish", `(float[2] x) => (float[2] y) { s = HardSigmoid<alpha = 0.1666667>(x) y = Mul(x, s) }`, "hardswish.default(x) -> y"},
	{"mish", `(float[2] x) => (float[2] y) { s = Softplus(x) t = Tanh(s) y = Mul(x, t) }`, "mish.default(x) -> y"},
	{"linear", `(float[3,4] x) => (float[3,2] y) <float[2,4] "fc.weight" = {1,1,1,1,1,1,1,1}, float[2] "fc.bias" = {0,0}> { t = Transpose<perm = [1,0]>("fc.weight") m = MatMul(x, t) y = Add("fc.bias", m) }`,
		"linear.default(x, fc.weight, fc.bias) -> y"},
	{"linear", `(float[3,4] x) => (float[3,2] y) <float[4,2] w = {1,1,1,1,1,1,1,1}, float[2] b = {0,0}> { m = MatMul(x, w) y = Add(m, b) }`, "linear.default(x, w, b) -> y"},
	{"in-proj", `(float[5,2,3,4] x) => (float[3,5,2,4] y) { z = Constant<value = int64[1] {0}>() f = Constant<value = int64[1] {-2}>()
		u = Unsqueeze(x, z) t = Transpose<perm = [3,1,2,0,4]>(u) y = Squeeze(t, f) }`,
		"unsqueeze.default(x, 0) -> u/out\ntranspose.int(u/out, 0, -2) -> t/out\nsqueeze.dim(t/out, 3) -> y/out\nclone.default(y/out, memory_format='torch.contiguous_format') -> y"},
	{"fused-bias-gelu", `(float[2] x, float[2] b) => (float[2] y) { y = com.microsoft.BiasGelu(x, b) }`, "add.Tensor(x, b) -> y/s\ngelu.default(y/s) -> y"},

	{"conv", `(float[1,3,8,8] x, float[4,3,3,3] w, float[4] b) => (float[1,4,4,4] y) { y = Conv<strides = [2,2], pads = [1,1,1,1]>(x, w, b) }`,
		"conv2d.default(x, w, b, [2, 2], [1, 1], [1, 1], 1) -> y"},
	{"conv", `(float[1,3,8] x, float[4,3,4] w) => (float[1,4,8] y) { y = Conv<auto_pad = "SAME_UPPER">(x, w) }`,
		"constant_pad_nd.default(x, [1, 2], 0) -> y/pad\nconv1d.default(y/pad, w, None, [1], [0], [1], 1) -> y"},
	{"fused-conv", `(float[1,3,8,8] x, float[4,3,1,1] w, float[4] b, float[1,4,8,8] z) => (float[1,4,8,8] y) { y = com.microsoft.FusedConv<activation = "Relu">(x, w, b, z) }`,
		"conv2d.default(x, w, b, [1, 1], [0, 0], [1, 1], 1) -> y/conv\nadd.Tensor(y/conv, z) -> y/add\nrelu.default(y/add) -> y"},
	{"conv-transpose", `(float[1,3,4,4] x, float[3,2,3,3] w) => (float[1,2,8,8] y) { y = ConvTranspose<strides = [2,2], pads = [1,1,1,1], output_padding = [1,1]>(x, w) }`,
		"conv_transpose2d.default(x, w, None, [2, 2], [1, 1], [1, 1], 1, [1, 1]) -> y"},
	{"batch-norm", `(float[2,3,4,4] x, float[3] w, float[3] b, float[3] m, float[3] v) => (float[2,3,4,4] y) { y = BatchNormalization(x, w, b, m, v) }`,
		"batch_norm.default(x, w, b, m, v, True, 0.1, 1e-05, True) -> y"},
	{"instance-norm", `(float[2,3,4,4] x, float[3] w, float[3] b) => (float[2,3,4,4] y) { y = InstanceNormalization(x, w, b) }`,
		"instance_norm.default(x, w, b, None, None, True, 0.1, 1e-05, True) -> y"},
	{"layer-norm-op", `(float[2,3,4] x, float[3,4] w) => (float[2,3,4] y) { y = LayerNormalization<axis = 1>(x, w) }`, "layer_norm.default(x, [3, 4], w, None, 1e-05) -> y"},
	{"rms-norm-op", `(float[2,3,4] x, float[4] w) => (float[2,3,4] y) { y = RMSNormalization(x, w) }`, "rms_norm.default(x, [4], w, 1e-05) -> y"},
	{"skip-norm", `(float[2,3,4] x, float[2,3,4] s, float[4] w, float[4] b) => (float[2,3,4] y, float[2,3,4] t) { y, u, v, t = com.microsoft.SkipLayerNormalization<epsilon = 0.5>(x, s, w, b) }`,
		"add.Tensor(x, s) -> t\nlayer_norm.default(t, [4], w, b, 0.5) -> y"},
	{"group-norm-op", `(float[2,4,3] x, float[4] w, float[4] b) => (float[2,4,3] y) { y = GroupNormalization<num_groups = 2>(x, w, b) }`, "group_norm.default(x, 2, w, b, 1e-05) -> y"},
	{"gemm", `(float[2,3] x, float[4,3] w, float[4] b) => (float[2,4] y) { y = Gemm<transB = 1>(x, w, b) }`, "linear.default(x, w, b) -> y"},
	{"gemm", `(float[2,3] x, float[3,4] w, float[4] b) => (float[2,4] y) { y = Gemm(x, w, b) }`, "addmm.default(b, x, w) -> y"},
	{"fused-gemm", `(float[2,3] x, float[3,4] w) => (float[2,4] y) { y = com.microsoft.FusedGemm<activation = "Relu">(x, w) }`, "mm.default(x, w) -> y/gemm\nrelu.default(y/gemm) -> y"},
	{"matmul", `(float[2,3] x, float[3,4] z) => (float[2,4] y) { y = MatMul(x, z) }`, "matmul.default(x, z) -> y"},
	{"matmul", `(float[3] x, float[2,3,4] z) => (float[2,4] y) { y = MatMul(x, z) }`, "matmul.default(x, z) -> y"},
	{"matmul", `(float[2,5,3] x, float[3] z) => (float[2,5] y) { y = MatMul(x, z) }`, "matmul.default(x, z) -> y"},
	{"matmul", `(float[3] x, float[3] z) => (float y) { y = MatMul(x, z) }`, "matmul.default(x, z) -> y"},
	{"fused-matmul", `(float[2,3] x, float[4,3] z) => (float[2,4] y) { y = com.microsoft.FusedMatMul<transB = 1>(x, z) }`, "transpose.int(z, -2, -1) -> y/b\nmatmul.default(x, y/b) -> y"},
	{"einsum", `(float[2,5,3,4] q, float[2,6,3,4] k) => (float[2,3,5,6] y) { y = Einsum<equation = "bqhd,bkhd->bhqk">(q, k) }`,
		"permute.default(q, [0, 2, 1, 3]) -> y/a\nreshape.default(y/a, [6, 5, 4]) -> y/a3\npermute.default(k, [0, 2, 3, 1]) -> y/b\nreshape.default(y/b, [6, 4, 6]) -> y/b3\n" +
			"bmm.default(y/a3, y/b3) -> y/bmm\nview.default(y/bmm, [2, 3, 5, 6]) -> y/view\npermute.default(y/view, [0, 1, 2, 3]) -> y"},
	{"attention-op", `(float[2,4,8,16] q, float[2,2,8,16] k, float[2,2,8,16] v) => (float[2,4,8,16] y) { y = Attention<is_causal = 1>(q, k, v) }`,
		"scaled_dot_product_attention.default(q, k, v, None, 0, True, enable_gqa=True) -> y"},
	{"attention-op", `(float[2,8,64] q, float[2,8,32] k, float[2,8,32] v, float[2,2,5,16] pk, float[2,2,5,16] pv) => (float[2,8,64] y, float[2,2,13,16] nk, float[2,2,13,16] nv) {
		y, nk, nv = Attention<q_num_heads = 4, kv_num_heads = 2>(q, k, v, , pk, pv) }`,
		"view.default(q, [2, 8, 4, 16]) -> y/q_view\ntranspose.int(y/q_view, 1, 2) -> y/q_heads\nview.default(k, [2, 8, 2, 16]) -> y/k_view\ntranspose.int(y/k_view, 1, 2) -> y/k_heads\n" +
			"view.default(v, [2, 8, 2, 16]) -> y/v_view\ntranspose.int(y/v_view, 1, 2) -> y/v_heads\ncat.default([pk, y/k_heads], 2) -> nk\ncat.default([pv, y/v_heads], 2) -> nv\n" +
			"scaled_dot_product_attention.default(y/q_heads, nk, nv, None, 0, False, enable_gqa=True) -> y/attention\ntranspose.int(y/attention, 1, 2) -> y/rows\nreshape.default(y/rows, [2, 8, 64]) -> y"},
	{"multi-head", `(float[2,8,64] q, float[2,8,64] k, float[2,8,64] v) => (float[2,8,64] y) { y = com.microsoft.MultiHeadAttention<num_heads = 4>(q, k, v) }`,
		"view.default(q, [2, 8, 4, 16]) -> y/q_view\ntranspose.int(y/q_view, 1, 2) -> y/q_heads\nview.default(k, [2, 8, 4, 16]) -> y/k_view\ntranspose.int(y/k_view, 1, 2) -> y/k_heads\n" +
			"view.default(v, [2, 8, 4, 16]) -> y/v_view\ntranspose.int(y/v_view, 1, 2) -> y/v_heads\n" +
			"scaled_dot_product_attention.default(y/q_heads, y/k_heads, y/v_heads, None, 0, False) -> y/attention\ntranspose.int(y/attention, 1, 2) -> y/rows\nreshape.default(y/rows, [2, 8, 64]) -> y"},
	{"packed-attention", `(float[2,8,32] x, float[32,96] w, float[96] b) => (float[2,8,32] y) { y = com.microsoft.Attention<num_heads = 2>(x, w, b) }`,
		"t.default(w) -> y/t\nlinear.default(x, y/t, b) -> y/qkv\nsplit.Tensor(y/qkv, 32, -1) -> y/q, y/k, y/v\nview.default(y/q, [2, 8, 2, 16]) -> y/q_view\ntranspose.int(y/q_view, 1, 2) -> y/q_heads\n" +
			"view.default(y/k, [2, 8, 2, 16]) -> y/k_view\ntranspose.int(y/k_view, 1, 2) -> y/k_heads\nview.default(y/v, [2, 8, 2, 16]) -> y/v_view\ntranspose.int(y/v_view, 1, 2) -> y/v_heads\n" +
			"scaled_dot_product_attention.default(y/q_heads, y/k_heads, y/v_heads, None, 0, False) -> y/attention\ntranspose.int(y/attention, 1, 2) -> y/rows\nreshape.default(y/rows, [2, 8, 32]) -> y"},
	{"softmax", `(float[2,3] x) => (float[2,3] y) { y = LogSoftmax<axis = 0>(x) }`, "log_softmax.int(x, 0) -> y"},
	{"reduce", `(float[2,3,4] x) => (float[3] y) { y = ReduceMean<axes = [-1, 0], keepdims = 0>(x) }`, "mean.dim(x, [0, 2], False) -> y"},
	{"reduce", `(float[2,3] x) => (float[1,1] y) { y = ReduceMax(x) }`, "amax.default(x, [0, 1], True) -> y"},
	{"arg-reduce", `(float[2,3] x) => (int64[2,1] y) { y = ArgMax<axis = 1>(x) }`, "argmax.default(x, [1], True) -> y"},
	{"max-pool", `(float[1,2,8,8] x) => (float[1,2,4,4] y) { y = MaxPool<kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]>(x) }`,
		"max_pool2d.default(x, [3, 3], [2, 2], [1, 1], [1, 1], False) -> y"},
	{"avg-pool", `(float[1,2,8] x) => (float[1,2,4] y) { y = AveragePool<kernel_shape = [2], strides = [2]>(x) }`, "avg_pool1d.default(x, [2], [2], [0], False, False) -> y"},
	{"global-pool", `(float[1,2,8,8] x) => (float[1,2,1,1] y) { y = GlobalAveragePool(x) }`, "adaptive_avg_pool2d.default(x, [1, 1]) -> y"},
	{"global-pool", `(float[1,2,8] x) => (float[1,2,1] y) { y = GlobalMaxPool(x) }`, "adaptive_max_pool1d.default(x, [1]) -> y"},
	{"pad", `(float[1,2,4,4] x) => (float[1,2,5,7] y) { p = Constant<value = int64[8] {0,0,0,1,0,0,1,2}>() y = Pad<mode = "reflect">(x, p) }`, "reflection_pad2d.default(x, [1, 2, 0, 1, 0, 0, 0, 0]) -> y"},
	{"pad", `(float[3,2] x) => (float[3,5] y) { p = Constant<value = int64[2] {1,2}>() v = Constant<value = float {2.5}>() a = Constant<value = int64[1] {-1}>() y = Pad(x, p, v, a) }`, "constant_pad_nd.default(x, [1, 2, 0, 0], 2.5) -> y"},
	{"resize", `(float[1,2,4,4] x) => (float[1,2,8,8] y) { s = Constant<value = float[4] {1.0,1.0,2.0,2.0}>() y = Resize<mode = "linear">(x, , s) }`, "upsample_bilinear2d.default(x, [8, 8]) -> y"},
	{"transpose", `(float[2,3] x) => (float[3,2] y) { y = Transpose(x) }`, "t.default(x) -> y"},
	{"transpose", `(float[2,3,4] x) => (float[4,2,3] y) { y = Transpose<perm = [2,0,1]>(x) }`, "permute.default(x, [2, 0, 1]) -> y"},
	{"reshape", `(float[2,6] x) => (float[2,2,3] y) { s = Constant<value = int64[3] {0,2,-1}>() y = Reshape(x, s) }`, "reshape.default(x, [2, 2, 3]) -> y"},
	{"flatten", `(float[2,3,4] x) => (float[2,12] y) { y = Flatten(x) }`, "flatten.using_ints(x, 1) -> y"},
	{"squeeze", `(float[2,1,3] x) => (float[2,3] y) { a = Constant<value = int64[1] {-2}>() y = Squeeze(x, a) }`, "squeeze.dims(x, [1]) -> y"},
	{"unsqueeze", `(float[2] x) => (float[1,2,1] y) { a = Constant<value = int64[2] {-1,0}>() y = Unsqueeze(x, a) }`, "unsqueeze.default(x, 0) -> y/unsqueeze\nunsqueeze.default(y/unsqueeze, 2) -> y"},
	{"expand", `(float[1,3] x) => (float[4,2,3] y) { s = Constant<value = int64[3] {4,2,1}>() y = Expand(x, s) }`, "expand.default(x, [4, 2, 3]) -> y"},
	{"slice", `(float[8,6] x) => (float[3,6] y) { s = Constant<value = int64[1] {-6}>() e = Constant<value = int64[1] {9223372036854775807}>() a = Constant<value = int64[1] {0}>() t = Constant<value = int64[1] {2}>()
		y = Slice(x, s, e, a, t) }`, "slice.Tensor(x, 0, 2, 8, 2) -> y"},
	{"split", `(float[6,2] x) => (float[3,2] a, float[3,2] b) { a, b = Split<num_outputs = 2>(x) }`, "split.Tensor(x, 3, 0) -> a, b"},
	{"split", `(float[6,2] x) => (float[4,2] a, float[2,2] b) { s = Constant<value = int64[2] {4,2}>() a, b = Split(x, s) }`, "split_with_sizes.default(x, [4, 2], 0) -> a, b"},
	{"concat", `(float[2,3] a, float[2,4] b) => (float[2,7] y) { y = Concat<axis = -1>(a, b) }`, "cat.default([a, b], -1) -> y"},
	{"gather", `(float[2,3] x) => (float[2] y) { i = Constant<value = int64 {-1}>() y = Gather<axis = 1>(x, i) }`, "select.int(x, 1, -1) -> y"},
	{"gather", `(int64[5,7] i) => (float[5,7,2] y) <float[3,2] w = {1,1,1,1,1,1}> { y = Gather(w, i) }`, "embedding.default(w, i) -> y"},
	{"gather", `(float[2,3] x, int64[5] i) => (float[2,5] y) { y = Gather<axis = 1>(x, i) }`, "index_select.default(x, 1, i) -> y"},
	{"gather", `(float[2,3] x, int64[5,6] i) => (float[2,5,6] y) { y = Gather<axis = 1>(x, i) }`, "index.Tensor(x, [None, i]) -> y"},
	{"prelu", `(float[2,3] x) => (float[2,3] y) <float[1] "a.weight" = {0.25}> { y = PRelu(x, "a.weight") }`, "prelu.default(x, a.weight) -> y"},
	{"prelu", `(float[3] x) => (float[3] y) <float w = {0.25}> { y = PRelu(x, w) }`, "prelu.default(x, w) -> y"},
	{"prelu", `(float[2,3,4,4] x) => (float[2,3,4,4] y) <float[3] "a.weight" = {0.1, 0.2, 0.3}> { a = Constant<value_ints = [1, 2]>() w = Unsqueeze("a.weight", a) y = PRelu(x, w) }`, "prelu.default(x, a.weight) -> y"},
	{"prelu", `(float[2,3,4,4] x) => (float[2,3,4,4] y) <float[3,1,1] w = {0.1, 0.2, 0.3}> { y = PRelu(x, w) }`, "prelu.default(x, w) -> y"},
	{"prelu", `(float[2,3] x) => (float[2,3] y) <float[3] w = {0.1, 0.2, 0.3}> { y = PRelu(x, w) }`, "prelu.default(x, w) -> y"},
	{"reduce", `(float[2,3] x) => (float[2,1] y) { a = Constant<value = int64[1] {1}>() y = ReduceProd(x, a) }`, "prod.dim_int(x, 1, True) -> y"},
	{"reduce", `(float[2,3] x) => (float[2] y) { a = Constant<value = int64[1] {1}>() y = ReduceLogSumExp<keepdims = 0>(x, a) }`, "logsumexp.default(x, [1], False) -> y"},
	{"norm", `(float[2,3] x) => (float[2,1] y) { a = Constant<value = int64[1] {1}>() y = ReduceL2(x, a) }`, "linalg_vector_norm.default(x, 2, [1], True) -> y"},
	{"scatter-elements", `(float[2,3] x, int64[2,1] i, float[2,1] u) => (float[2,3] y) { y = ScatterElements<axis = 1>(x, i, u) }`, "scatter.src(x, 1, i, u) -> y"},
	{"scatter-elements", `(float[2,3] x, int64[2,1] i, float[2,1] u) => (float[2,3] y) { y = ScatterElements<axis = 1, reduction = "add">(x, i, u) }`, "scatter_add.default(x, 1, i, u) -> y"},
	{"rnn", `(float[5,2,3] x, float[1,16,3] w, float[1,16,4] r, float[1,32] b) => (float[5,1,2,4] y, float[1,2,4] h, float[1,2,4] c) { y, h, c = LSTM<hidden_size = 4>(x, w, r, b) }`,
		"zeros.default([1, 2, 4]) -> y/h0\nzeros.default([1, 2, 4]) -> y/c0\nlstm.input(x, [y/h0, y/c0], [w, r, b], True, 1, 0, True, False, False) -> y/y, h, c\n" +
			"unflatten.int(y/y, 2, [1, 4]) -> y/split\npermute.default(y/split, [0, 2, 1, 3]) -> y"},
	{"rnn", `(float[5,2,3] x, float[2,2,4] s, float[2,12,3] w, float[2,12,4] r) => (float[5,2,2,4] y) { y = GRU<hidden_size = 4, direction = "bidirectional">(x, w, r, "", "", s) }`,
		"gru.input(x, [s], [w, r], False, 1, 0, True, True, False) -> y/y, y/h\nunflatten.int(y/y, 2, [2, 4]) -> y/split\npermute.default(y/split, [0, 2, 1, 3]) -> y"},
	{"gather-elements", `(float[2,3] x, int64[2,1] i) => (float[2,1] y) { y = GatherElements<axis = 1>(x, i) }`, "gather.default(x, 1, i) -> y"},
	{"scatter-nd", `(float[4,2] x, int64[3,1] i, float[3,2] u) => (float[4,2] y) { y = ScatterND<reduction = "add">(x, i, u) }`,
		"squeeze.dims(i, [-1]) -> y/list\nindex_add.default(x, 0, y/list, u) -> y"},
	{"scatter-nd", `(float[2,4] x, int64[3,1] i, float[2,3] u) => (float[4,2] y) { a = Transpose<perm = [1,0]>(x) b = Transpose<perm = [1,0]>(u) y = ScatterND<reduction = "add">(a, i, b) }`,
		"squeeze.dims(i, [-1]) -> y/list\nindex_add.default(x, 1, y/list, u) -> y/sums\npermute.default(y/sums, [1, 0]) -> y"},
	{"gather-nd", `(float[2,4] x, int64[3,1] i) => (float[3,2] y) { a = Transpose<perm = [1,0]>(x) y = GatherND(a, i) }`,
		"squeeze.dims(i, [-1]) -> y/list\nindex.Tensor(x, [None, y/list]) -> y/rows\npermute.default(y/rows, [1, 0]) -> y"},
	{"gather-nd", `(float[2,3] x, int64[4,2] i) => (float[4] y) { y = GatherND(x, i) }`, "index.Tensor(x, [i]) -> y"},
	{"cast", `(float[2] x) => (int64[2] y) { y = Cast<to = 7>(x) }`, "_to_copy.default(x, dtype='torch.int64') -> y"},
	{"dropout", `(float[2] x) => (float[2] y) { r = Constant<value = float {0.25}>() y = Dropout(x, r) }`, "native_dropout.default(x, 0.25, True) -> y, y/mask"},
	{"tile", `(float[2,3] x) => (float[4,3] y) { r = Constant<value = int64[2] {2,1}>() y = Tile(x, r) }`, "repeat.default(x, [2, 1]) -> y"},
	{"cumsum", `(float[2,3] x) => (float[2,3] y) { a = Constant<value = int64 {1}>() y = CumSum(x, a) }`, "cumsum.default(x, 1) -> y"},
	{"topk", `(float[2,9] x) => (float[2,3] v, int64[2,3] i) { k = Constant<value = int64[1] {3}>() v, i = TopK(x, k) }`, "topk.default(x, 3, 1) -> v, i"},
	{"trilu", `(float[3,3] x) => (float[3,3] y) { k = Constant<value = int64 {1}>() y = Trilu<upper = 0>(x, k) }`, "tril.default(x, 1) -> y"},
	{"pixel-shuffle", `(float[1,8,3,3] x) => (float[1,2,6,6] y) { y = DepthToSpace<blocksize = 2>(x) }`, "pixel_shuffle.default(x, 2) -> y"},
	{"grid-sample", `(float[1,2,4,4] x, float[1,3,3,2] g) => (float[1,2,3,3] y) { y = GridSample(x, g) }`, "grid_sampler_2d.default(x, g) -> y"},
	{"cross-entropy", `(float[4,10] x, int64[4] t) => (float y) { y = SoftmaxCrossEntropyLoss(x, t) }`, "log_softmax.int(x, 1) -> y/log_softmax\nnll_loss_nd.default(y/log_softmax, t, None, 1) -> y"},
	{"fill", `() => (float[2,3] y) { y = RandomNormal<shape = [2,3]>() }`, "randn.default([2, 3]) -> y"},
	{"constant", `(float[2] x) => (float[2] y) { c = Constant<value = float[2] {1.0,2.0}>() y = Add(x, c) }`, "add.Tensor(x, c) -> y"},
}
