package lift

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
)

// A rule recognises ONNX nodes and emits their calls: by a template, or by code
// if the calls depend on attributes and shapes.
type rule struct {
	name  string
	doc   string
	from  []string // patterns, tried in order
	to    string   // template of the calls
	makes string   // the operators that build emits
	where func(p *patLift, m *match) bool
	build func(p *patLift, n *graph.Node, m *match) bool // false: the rule does not apply after all
	bare  bool                                           // also applies to operators without inputs

	terms []*term
	calls template
	ops   []string // operators that can be the root of a match
}

// run emits a match's calls.
func (r *rule) run(p *patLift, m *match) bool {
	if r.build != nil {
		return r.build(p, m.root, m)
	}
	r.calls.run(p, m)
	return true
}

// rules is the table, indexed for matching.
type rules struct {
	fused  []*rule            // patterns of several nodes, in order
	single map[string][]*rule // patterns of one node, by operator, in order
}

func ruleTable() *rules {
	t := &rules{single: map[string][]*rule{}}
	list := slices.Concat(fusedRules, pointwiseRules, calledRules)
	for i := range list {
		r := &list[i]
		r.calls = parseTemplate(r.to)
		fused := false
		for _, f := range r.from {
			term := parsePattern(f)
			r.terms = append(r.terms, term)
			r.ops = append(r.ops, term.roots()...)
			fused = fused || term.nested()
		}
		if fused {
			t.fused = append(t.fused, r)
			continue
		}
		for _, op := range r.ops {
			t.single[op] = append(t.single[op], r)
		}
	}
	return t
}

// A PatternRule describes one rule of the lift by patterns.
type PatternRule struct {
	Name string
	Doc  string
	From []string // ONNX patterns
	To   string   // calls; empty if they depend on attributes and shapes, as Doc explains
	Ops  []string // ONNX operators in the patterns, sorted
	// Makes are the PyTorch operators that the rule is for, without overload and
	// without auxiliary views and copies.
	Makes []string
}

// PatternRules lists the rules by which files without exporter metadata are
// lifted, in the order in which they are tried.
func PatternRules() []PatternRule {
	var out []PatternRule
	for _, r := range slices.Concat(fusedRules, pointwiseRules, calledRules) {
		var ops []string
		for _, f := range r.from {
			ops = parsePattern(f).operators(ops)
		}
		slices.Sort(ops)
		out = append(out, PatternRule{r.name, r.doc, slices.Clone(r.from), r.to, slices.Compact(ops), r.made()})
	}
	return out
}

// made returns the operators of a rule's calls.
func (r *rule) made() (out []string) {
	if r.to == "" {
		return strings.Fields(r.makes)
	}
	for _, call := range strings.Split(r.to, "; ") {
		if _, c, named := strings.Cut(call, " = "); named {
			call = c
		}
		op, _, _ := strings.Cut(call, ".")
		out = append(out, op)
	}
	return out
}

const (
	scoresScaled = "MatMul({Mul(q, #s)|Div(q, #s)}, {Mul(kt, #t)|Div(kt, #t)})"
	erf          = "Erf({Div(x, 1.41421)|Mul(x, 0.70711)})"
	tanhCube     = "Tanh({Mul({Add(x, Mul({Mul(x, Mul(x, x))|Mul(Mul(x, x), x)|Pow(x, 3)}, 0.044715))}, 0.79788)})"
	centred      = "d:Sub(x, ReduceMean(x))"
	deviation    = "Sqrt(Add(ReduceMean({Pow(d, 2)|Mul(d, d)}), #eps))"
	inverseRMS   = "{Reciprocal(Sqrt(Add(ReduceMean({Pow(x, 2)|Mul(x, x)}), #eps)))|Div(1, Sqrt(Add(ReduceMean({Pow(x, 2)|Mul(x, x)}), #eps)))}"
)

// fusedRules recognise groups of nodes, the largest first.
var fusedRules = []rule{
	{name: "attention", doc: "scaled_dot_product_attention as exporters write it out: query and key are both scaled by the root of the scale; a mask is added, one of bools as 0 and -inf, a causal one from a triangle of ones",
		from: []string{
			"MatMul(drop:Dropout(Where(IsNaN(p:Softmax(Add(" + scoresScaled + ", mask))), 0, p)), v)",
			"MatMul(Where(IsNaN(p:Softmax(Add(" + scoresScaled + ", mask))), 0, p), v)",
			"MatMul(drop:Dropout(Softmax(Add(" + scoresScaled + ", mask))), v)",
			"MatMul(Softmax(Add(" + scoresScaled + ", mask)), v)",
			"MatMul(Softmax(Where(choice, " + scoresScaled + ", _)), v)",
			"MatMul(drop:Dropout(Softmax(" + scoresScaled + ")), v)",
			"MatMul(Softmax(" + scoresScaled + "), v)",
		}, where: attentionRank, makes: "scaled_dot_product_attention", build: attentionCall},
	{name: "group-norm", doc: "GroupNorm as the TorchScript exporter writes it: InstanceNormalization of the groups, then scale and shift",
		from: []string{"Add(Mul(Reshape(i:InstanceNormalization(Reshape(x, _), _, _), _), %w), %b)"}, where: groupShape, makes: "group_norm", build: groupNormCall},
	{name: "layer-norm", doc: "LayerNorm written out: centred, divided by the deviation, scaled and shifted",
		from: []string{
			"Add(Mul(Div(" + centred + ", " + deviation + "), %w), %b)",
			"Mul(Div(" + centred + ", " + deviation + "), %w)",
			"Div(" + centred + ", " + deviation + ")",
		}, where: lastDims, makes: "layer_norm", build: layerNormParts},
	{name: "rms-norm", doc: "nn.RMSNorm written out, the weight last; transformers' own classes put the weight first and run operator by operator",
		from: []string{"Mul(Mul(x, " + inverseRMS + "), %w)"}, where: weightLast, makes: "rms_norm", build: rmsNormParts},
	{name: "gelu-erf", doc: "GELU by the error function",
		from: []string{
			"Mul(Mul(x, Add(" + erf + ", 1)), 0.5)",
			"Mul(Mul(x, 0.5), Add(" + erf + ", 1))",
			"Mul(x, Mul(Add(" + erf + ", 1), 0.5))",
		}, to: "gelu.default(x)"},
	{name: "gelu-tanh", doc: "GELU by tanh as gelu(approximate='tanh') is exported; transformers' NewGELU, 0.5*x times the rest, runs operator by operator",
		from: []string{"Mul(Mul(x, Add(" + tanhCube + ", 1)), 0.5)"}, to: "gelu.default(x, approximate='tanh')"},
	{name: "silu", doc: "SiLU", from: []string{"Mul(x, Sigmoid(x))"}, to: "silu.default(x)"},
	{name: "hardswish", doc: "Hardswish by its parts",
		from: []string{
			"Mul(x, HardSigmoid(x))",
			"Div(Mul(x, c:Clip(Add(x, 3))), 6)", "Mul(x, Div(c:Clip(Add(x, 3)), 6))",
			"Div(Mul(x, c:Clip(Add(x, 3), 0, 6)), 6)", "Mul(x, Div(c:Clip(Add(x, 3), 0, 6), 6))",
		}, to: "hardswish.default(x)"},
	{name: "mish", doc: "Mish", from: []string{"Mul(x, Tanh(Softplus(x)))"}, to: "mish.default(x)"},
	{name: "rsqrt", doc: "reciprocal root", from: []string{"Reciprocal(Sqrt(x))", "Div(1, Sqrt(x))"}, to: "rsqrt.default(x)"},
	{name: "linear", doc: "Linear: a product with a stored matrix, transposed by a node or in the file (onnx::MatMul_123), and a bias",
		from:  []string{"Add(MatMul(x, Transpose(%w)), %b)", "Add(MatMul(x, %w), %b)", "MatMul(x, Transpose(%w))"},
		where: linearShape, makes: "linear", build: linearCall},
	{name: "in-proj", doc: "torch's packed projection of query, key and value makes its three parts contiguous, which exporters leave out",
		from: []string{"Squeeze(Transpose(Unsqueeze(x)))"}, where: inProj, makes: "clone", build: inProjCall},
	{name: "fused-bias-gelu", doc: "BiasGelu of onnxruntime", from: []string{"com.microsoft.BiasGelu(x, b)"}, to: "s = add.Tensor(x, b); gelu.default(s)"},
}

// pointwiseRules map operators one to one.
var pointwiseRules = []rule{
	unary("Relu", "relu"), unary("Sigmoid", "sigmoid"), unary("Tanh", "tanh"), unary("HardSwish", "hardswish"), unary("HardSigmoid", "hardsigmoid"),
	unary("Mish", "mish"), unary("Exp", "exp"), unary("Log", "log"), unary("Sqrt", "sqrt"), unary("Reciprocal", "reciprocal"), unary("Neg", "neg"),
	unary("Abs", "abs"), unary("Erf", "erf"), unary("Sin", "sin"), unary("Cos", "cos"), unary("Tan", "tan"), unary("Atan", "atan"), unary("Acos", "acos"), unary("Asin", "asin"), unary("Acosh", "acosh"), unary("Asinh", "asinh"), unary("Atanh", "atanh"),
	unary("Sinh", "sinh"),
	unary("Cosh", "cosh"), unary("Floor", "floor"), unary("Ceil", "ceil"), unary("Round", "round"), unary("Sign", "sign"), unary("Softsign", "softsign"),
	unary("Softplus", "softplus"), unary("Not", "logical_not"), unary("IsNaN", "isnan"), unary("IsInf", "isinf"), unary("BitwiseNot", "bitwise_not"),
	{name: "prelu", doc: "PReLU; its slope, as the file stores it, where the exporter gives it the input's dims", from: []string{"PRelu"}, makes: "prelu", build: preluCall},
	{name: "leaky-relu", doc: "LeakyReLU", from: []string{"LeakyRelu"}, to: "leaky_relu.default($0, @alpha=0.01)"},
	{name: "selu", doc: "selu; elu where the constants are others", from: []string{"Selu"}, makes: "selu elu", build: seluCall},
	{name: "elu", doc: "ELU", from: []string{"Elu"}, to: "elu.default($0, @alpha=1.0)"},
	{name: "celu", doc: "CELU", from: []string{"Celu"}, to: "celu.default($0, @alpha=1.0)"},
	{name: "threshold", doc: "ThresholdedReLU", from: []string{"ThresholdedRelu"}, to: "threshold.default($0, @alpha=1.0, 0.0)"},
	{name: "gelu", doc: "GELU of opset 20 and of onnxruntime", from: []string{"Gelu", "com.microsoft.Gelu"}, to: "gelu.default($0, @approximate='none')"},
	{name: "fast-gelu", doc: "FastGelu of onnxruntime: GELU by tanh, with a bias or without",
		from: []string{"com.microsoft.FastGelu"}, makes: "add gelu", build: fastGelu},
	{name: "quick-gelu", doc: "QuickGelu of onnxruntime: x * sigmoid(1.702 x)", from: []string{"com.microsoft.QuickGelu(x)"},
		to: "t = mul.Tensor(x, @alpha=1.702); s = sigmoid.default(t); mul.Tensor(x, s)"},
	{name: "swish", doc: "Swish of opset 24: SiLU", from: []string{"Swish"}, where: func(_ *patLift, m *match) bool { return attrFloat(m.root, "alpha", 1) == 1 }, to: "silu.default($0)"},
	{name: "swish-scaled", doc: "Swish with a factor: x * sigmoid(alpha x)", from: []string{"Swish(x)"}, to: "t = mul.Tensor(x, @alpha=1.0); s = sigmoid.default(t); mul.Tensor(x, s)"},
	binary("Add", "add.Tensor"), binary("Sub", "sub.Tensor"), binary("Mul", "mul.Tensor"), binary("Div", "div.Tensor"), binary("Pow", "pow.Tensor_Scalar"),
	binary("Equal", "eq.Tensor"), binary("Less", "lt.Tensor"), binary("LessOrEqual", "le.Tensor"), binary("Greater", "gt.Tensor"), binary("GreaterOrEqual", "ge.Tensor"),
	binary("And", "logical_and.default"), binary("Or", "logical_or.default"), binary("Xor", "logical_xor.default"), binary("Mod", "remainder.Tensor"),
	binary("BitwiseAnd", "bitwise_and.Tensor"), binary("BitwiseOr", "bitwise_or.Tensor"), binary("BitwiseXor", "bitwise_xor.Tensor"),
	{name: "where", doc: "where", from: []string{"Where(c, x, y)"}, makes: "where", build: whereCall},
	{name: "many", doc: "Max, Min, Sum and Mean of any number of operands: two at a time", from: []string{"Max", "Min", "Sum", "Mean"}, makes: "maximum minimum add div", build: manyCall},
	{name: "clip", doc: "ReLU6 is hardtanh(0, 6); other bounds clamp, clamp_min or clamp_max", from: []string{"Clip"}, makes: "hardtanh clamp clamp_min clamp_max", build: clipCall},
}

// unary returns the rule of an operator of one operand.
func unary(onnx, aten string) rule {
	return rule{name: aten, doc: onnx, from: []string{onnx}, to: aten + ".default($0)"}
}

// binary returns the rule of an operator of two operands; known scalars become
// Python numbers.
func binary(onnx, aten string) rule {
	base, _, _ := strings.Cut(aten, ".")
	return rule{name: base, doc: onnx + " with broadcasting", from: []string{onnx}, makes: base, build: func(p *patLift, n *graph.Node, _ *match) bool {
		if len(n.Inputs) != 2 || n.Inputs[1] < 0 {
			return false
		}
		addend(p, n)
		args := []graph.Arg{p.operandBeside(n.Inputs[0], n.Inputs[1]), p.operandBeside(n.Inputs[1], n.Inputs[0])}
		if args[1].Kind == graph.ArgValue {
			args[1] = along(p, n, args[1])
		}
		p.emit(n, aten, args, p.value(n.Outputs[0]))
		return true
	}}
}

// along broadcasts the second operand of an operator before opset 7: its dims
// match the first operand's from attribute axis on, and it gets dims of 1
// behind them.
func along(p *patLift, n *graph.Node, y graph.Arg) graph.Arg {
	a, b := p.dims(n.Inputs[0]), p.dims(n.Inputs[1])
	at := attrInt(n, "axis", int64(len(a)-len(b)))
	if at < 0 {
		at += int64(len(a))
	}
	behind := len(a) - len(b) - int(at)
	if n.Attr("axis") == nil || behind <= 0 || behind > len(a) {
		return y
	}
	dims := append(b, slices.Repeat([]int64{1}, behind)...)
	return p.step(n, "view", shaped(p.typeOf(n.Inputs[1]), dims...), "view.default", y, argInts(dims...))
}

// addend records stored tensors in arithmetic as parameters, unless their names
// say otherwise.
func addend(p *patLift, n *graph.Node) {
	for _, id := range n.Inputs {
		if v := &p.src.Values[p.resolve(id)]; p.stored(v.ID) && p.elems(v.ID) != 1 && stateName(v.Name) {
			p.weight(v.ID)
		}
	}
}

// calledRules emit calls that depend on attributes and shapes.
var calledRules = []rule{
	{name: "conv", doc: "conv1d, conv2d, conv3d; padding that differs from side to side is a constant_pad_nd before it", from: []string{"Conv"}, makes: "conv1d conv2d conv3d constant_pad_nd", build: convCall},
	{name: "fused-conv", doc: "FusedConv of onnxruntime: convolution, addition, activation", from: []string{"com.microsoft.FusedConv"}, makes: "conv2d add relu", build: fusedConvCall},
	{name: "conv-transpose", doc: "conv_transpose1d to 3d", from: []string{"ConvTranspose"}, makes: "conv_transpose1d conv_transpose2d conv_transpose3d", build: convTransposeCall},
	{name: "batch-norm", doc: "batch_norm in training, whatever the mode of the file", from: []string{"BatchNormalization"}, makes: "batch_norm", build: batchNormCall},
	{name: "instance-norm", doc: "instance_norm", from: []string{"InstanceNormalization"}, makes: "instance_norm", build: instanceNormCall},
	{name: "layer-norm-op", doc: "layer_norm", from: []string{"LayerNormalization"}, makes: "layer_norm", build: layerNormCall},
	{name: "rms-norm-op", doc: "rms_norm", from: []string{"RMSNormalization", "SimplifiedLayerNormalization", "com.microsoft.SimplifiedLayerNormalization"}, makes: "rms_norm", build: rmsNormCall},
	{name: "skip-norm", doc: "SkipLayerNormalization of onnxruntime: addition, then layer_norm or rms_norm",
		from: []string{"com.microsoft.SkipLayerNormalization", "com.microsoft.SkipSimplifiedLayerNormalization"}, makes: "add layer_norm rms_norm", build: skipNormCall},
	{name: "group-norm-op", doc: "group_norm", from: []string{"GroupNormalization"}, makes: "group_norm", build: groupNormOp},
	{name: "gemm", doc: "linear where the matrix is stored [out, in]; addmm or mm otherwise", from: []string{"Gemm"}, makes: "linear addmm mm", build: gemmCall},
	{name: "fused-gemm", doc: "FusedGemm of onnxruntime: Gemm and an activation", from: []string{"com.microsoft.FusedGemm"}, makes: "linear relu", build: fusedGemmCall},
	{name: "matmul", doc: "linear without bias for a stored matrix; matmul otherwise", from: []string{"MatMul"}, makes: "linear matmul", build: matmulCall},
	{name: "fused-matmul", doc: "FusedMatMul of onnxruntime: matmul of transposed operands", from: []string{"com.microsoft.FusedMatMul"}, makes: "transpose matmul", build: fusedMatmulCall},
	{name: "einsum", doc: "einsum of two operands: permutations, one bmm, a permutation", from: []string{"Einsum"}, makes: "bmm", build: einsumCall},
	{name: "rnn", doc: "one layer of lstm, gru, rnn_tanh or rnn_relu, and views of its result", from: []string{"LSTM", "GRU", "RNN"}, makes: "lstm gru rnn_tanh rnn_relu", build: rnnCall},
	{name: "attention-op", doc: "Attention of opset 23", from: []string{"Attention"}, makes: "scaled_dot_product_attention", build: attentionOp},
	{name: "multi-head", doc: "MultiHeadAttention of onnxruntime without past", from: []string{"com.microsoft.MultiHeadAttention"}, makes: "scaled_dot_product_attention", build: multiHeadCall},
	{name: "packed-attention", doc: "Attention of onnxruntime: one linear for query, key and value", from: []string{"com.microsoft.Attention"}, makes: "linear scaled_dot_product_attention", build: packedAttention},
	{name: "softmax", doc: "softmax, log_softmax", from: []string{"Softmax", "LogSoftmax"}, makes: "softmax log_softmax", build: softmaxCall},
	{name: "reduce", doc: "mean, sum, amax, amin, logsumexp over dims; prod over one", from: []string{"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceLogSumExp", "ReduceProd"}, makes: "mean sum amax amin logsumexp prod", build: reduceCall},
	{name: "norm", doc: "linalg_vector_norm of order 1 or 2", from: []string{"ReduceL1", "ReduceL2"}, makes: "linalg_vector_norm", build: normCall},
	{name: "arg-reduce", doc: "argmax, argmin", from: []string{"ArgMax", "ArgMin"}, makes: "argmax argmin", build: argReduceCall},
	{name: "max-pool", doc: "max_pool1d to 3d", from: []string{"MaxPool"}, makes: "max_pool1d max_pool2d max_pool3d", build: maxPoolCall},
	{name: "avg-pool", doc: "avg_pool1d to 3d", from: []string{"AveragePool"}, makes: "avg_pool1d avg_pool2d avg_pool3d", build: avgPoolCall},
	{name: "global-pool", doc: "adaptive pooling to one element", from: []string{"GlobalAveragePool", "GlobalMaxPool"}, makes: "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d", build: globalPoolCall},
	{name: "pad", doc: "constant_pad_nd, reflection_pad, replication_pad", from: []string{"Pad"}, makes: "constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d", build: padCall},
	{name: "resize", doc: "upsample_nearest, upsample_bilinear, .. by rank and mode", from: []string{"Resize", "Upsample"}, makes: "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d", build: resizeCall},
	{name: "transpose", doc: "t, transpose of two dims, or permute", from: []string{"Transpose"}, makes: "t transpose permute", build: transposeCall},
	{name: "reshape", doc: "reshape to the inferred shape", from: []string{"Reshape"}, makes: "reshape", build: reshapeCall},
	{name: "flatten", doc: "flatten", from: []string{"Flatten"}, makes: "flatten reshape", build: reshapeCall},
	{name: "squeeze", doc: "squeeze", from: []string{"Squeeze"}, makes: "squeeze", build: squeezeCall},
	{name: "unsqueeze", doc: "unsqueeze, once a dim", from: []string{"Unsqueeze"}, makes: "unsqueeze", build: unsqueezeCall},
	{name: "expand", doc: "expand", from: []string{"Expand"}, makes: "expand", build: expandCall},
	{name: "slice", doc: "slice, once a dim; flip for steps backwards", from: []string{"Slice"}, makes: "slice flip", build: sliceCall},
	{name: "split", doc: "split, split_with_sizes", from: []string{"Split"}, makes: "split split_with_sizes", build: splitCall},
	{name: "concat", doc: "cat", from: []string{"Concat"}, makes: "cat", build: concatCall},
	{name: "gather", doc: "select for one index, embedding for rows of a stored matrix, else index_select or index", from: []string{"Gather"}, makes: "select embedding index_select index", build: gatherCall},
	{name: "gather-elements", doc: "gather", from: []string{"GatherElements"}, makes: "gather", build: gatherElementsCall},
	{name: "scatter-elements", doc: "scatter, or scatter_add for a reduction by sums", from: []string{"ScatterElements(x, i, u)", "Scatter(x, i, u)"}, makes: "scatter scatter_add", build: scatterElementsCall},
	{name: "scatter-nd", doc: "index_add for sums of rows", from: []string{"ScatterND(x, i, u)"}, makes: "index_add", build: scatterNDCall},
	{name: "gather-nd", doc: "index", from: []string{"GatherND(x, i)"}, makes: "index", build: gatherNDCall},
	{name: "cast", doc: "_to_copy", from: []string{"Cast", "CastLike"}, makes: "_to_copy", build: castCall},
	{name: "dropout", doc: "native_dropout, which a training step runs whatever the mode of the file", from: []string{"Dropout"}, makes: "native_dropout", build: dropoutCall},
	{name: "tile", doc: "repeat", from: []string{"Tile"}, makes: "repeat", build: tileCall},
	{name: "cumsum", doc: "cumsum", from: []string{"CumSum(x, i)"}, makes: "cumsum", build: cumsumCall},
	{name: "topk", doc: "topk", from: []string{"TopK"}, makes: "topk", build: topkCall},
	{name: "trilu", doc: "triu, tril", from: []string{"Trilu"}, makes: "triu tril", build: triluCall},
	{name: "pixel-shuffle", doc: "pixel_shuffle, pixel_unshuffle", from: []string{"DepthToSpace", "SpaceToDepth"}, makes: "pixel_shuffle pixel_unshuffle", build: pixelCall},
	{name: "grid-sample", doc: "grid_sampler_2d", from: []string{"GridSample"}, makes: "grid_sampler_2d", build: gridCall},
	{name: "cross-entropy", doc: "log_softmax and nll_loss_nd", from: []string{"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"}, makes: "log_softmax nll_loss_nd", build: lossCall},
	{name: "fill", doc: "arange, full, eye, and random tensors: new memory that nothing is saved of",
		from:  []string{"Range", "ConstantOfShape", "EyeLike", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli"},
		makes: "arange full eye randn randn_like rand rand_like", build: fillCall, bare: true},
	{name: "constant", doc: "constants take part as they are", from: []string{"Constant"}, build: func(*patLift, *graph.Node, *match) bool { return true }, bare: true},
}
