package aten

import (
	"slices"
	"sort"
)

// An Op is one entry of the operator table.
type Op struct {
	Names []string // ATen names without overload; the first is the table's key
	Kind  string   // group, for the documentation
	Cast  Cast     // autocast class
	Facts Facts    // their traits
	// Saves is what autograd keeps for backward: operands, "result", and after a + what
	// the call allocates for that alone; conditions are in parentheses.
	Saves string
	Back  string // what backward allocates, for the documentation
	run   func(e *Eager, c *Call) []*Tensor
}

// Ops returns the operator table, sorted by kind and name: one entry for each
// operator, or family of operators that differ only in name.
func Ops() []Op {
	ops := append([]Op(nil), table...)
	sort.SliceStable(ops, func(i, j int) bool {
		if ops[i].Kind != ops[j].Kind {
			return ops[i].Kind < ops[j].Kind
		}
		return ops[i].Names[0] < ops[j].Names[0]
	})
	return ops
}

// Lookup returns the entry of an operator by its name without overload, or nil.
func Lookup(name string) *Op { return byName[name] }

// SameRow reports whether the table describes two operators in one row: they differ only in name.
func SameRow(a, b string) bool { return byName[a] != nil && byName[a] == byName[b] }

// PerElement reports whether an operator computes each element of its result from the element of
// its one operand in the same place.
func PerElement(name string) bool {
	return slices.ContainsFunc(pointwises, func(p pointwise) bool { return p.name == name })
}

var (
	table  = buildTable()
	byName = indexTable(table)
)

func indexTable(ops []Op) map[string]*Op {
	m := map[string]*Op{}
	for i := range ops {
		for _, n := range ops[i].Names {
			if m[n] != nil {
				panic("aten: operator listed twice: " + n)
			}
			m[n] = &ops[i]
		}
	}
	return m
}

func names(n ...string) []string { return n }

func buildTable() []Op {
	ops := []Op{
		// Views take no memory; their gradient is a view, too.
		{names("view", "reshape", "_unsafe_view", "view_copy", "_reshape_copy"), "view", Keep, is(AllOnce).and(Viewed, "reshape").and(Traced|PassesOn, "view", "reshape"), "", "a copy where strides forbid a view", runView},
		{names("flatten"), "view", Keep, is(AllOnce | Traced).and(Viewed), "", "a copy where strides forbid a view", runFlatten},
		{names("unflatten"), "view", Keep, is(AllOnce).and(Viewed), "", "a copy where strides forbid a view", runUnflatten},
		{names("transpose", "t", "swapaxes"), "view", Keep, is(AllOnce).and(Traced, "transpose"), "", "", runTranspose},
		{names("permute", "movedim"), "view", Keep, is(AllOnce).and(Traced, "permute"), "", "", runPermute},
		{names("expand", "broadcast_to"), "view", Keep, is(PassesOn, "expand"), "", "sum over the expanded dims", runExpand},
		{names("unsqueeze"), "view", Keep, is(AllOnce | Traced | Indexes), "", "", runUnsqueeze},
		{names("squeeze"), "view", Keep, is(AllOnce | Traced), "", "", runSqueeze},
		{names("slice"), "view", Keep, is(Indexes | Writes), "", "zeros of the operand's size", runSlice},
		{names("narrow"), "view", Keep, nil, "", "zeros of the operand's size", runNarrow},
		{names("select"), "view", Keep, is(Indexes | Writes), "", "zeros of the operand's size", runSelect},
		{names("unfold"), "view", Keep, nil, "", "zeros of the operand's size", runUnfold},
		{names("diagonal"), "view", Keep, nil, "", "zeros of the operand's size", runDiagonal},
		{names("broadcast_in_dim"), "view", Keep, nil, "", "sum over the expanded dims", runBroadcastIn},
		{names("copy", "fill"), "view", Keep, is(Writes), "", "a cast", runCopyInto},
		{names("slice_scatter", "select_scatter"), "view", Keep, is(Writes), "", "a copy of the gradient and of its window", runWindow},
		{names("split", "split_with_sizes", "chunk", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk"), "view", Keep, nil, "", "concatenation", runSplit},
		{names("unbind"), "view", Keep, nil, "", "stack", runUnbind},
		{names("atleast_1d", "atleast_2d", "atleast_3d"), "view", Keep, nil, "", "", runAtLeast},
		{names("identity"), "view", Keep, is(AllOnce | PassesOn), "", "", runIdentity},
		{names("alias", "lift_fresh_copy", "lift_fresh", "view_as"), "view", Keep, is(Viewed, "view_as"), "", "", runAlias},
		{names("detach", "detach_"), "view", Keep, nil, "", "", runDetach},
		{names("as_strided"), "view", Keep, nil, "", "zeros of the operand's size", runAsStrided},

		// Copies and moves.
		{names("clone"), "copy", Keep, is(Numbered | Traced | PassesOn), "", "", runClone},
		{names("type_as"), "copy", Keep, is(Casts | PassesOn), "", "cast back", runTypeAs},
		{names("contiguous"), "copy", Keep, nil, "", "", runContiguous},
		{names("_to_copy", "to", "convert_element_type"), "copy", Keep, is(Casts).and(PassesOn, "_to_copy", "to"), "", "cast back", runToCopy},
		{names("cat", "concat", "concatenate"), "copy", Keep, is(Joins).and(Numbered|Traced, "cat"), "", "views", runCat},
		{names("stack"), "copy", Keep, is(Joins | Numbered), "", "views", runStack},
		{names("repeat", "tile"), "copy", Keep, nil, "", "sum", runRepeat},
		{names("roll", "flip", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle"), "copy", Keep, is(Traced, "pixel_shuffle"), "", "same shape", runShuffle},
		{names("repeat_interleave"), "copy", Keep, nil, "+indices (of repeats that are a tensor)", "input's gradient", runShuffle},
		{names("triu", "tril"), "copy", Keep, nil, "", "same shape", runShuffle},

		// Products.
		{names("linear"), "product", Lower, is(Numbered | Traced | Weights | OneType | Activated), "input, weight, +copy (of an input that is not contiguous)", "input, weight, bias gradients", runLinear},
		{names("matmul"), "product", Lower, is(Numbered | Traced | OneType | Multiplies).symbol("@"), "both operands, +copies (of those that are not contiguous)", "both gradients", runMatmul},
		{names("mm", "bmm"), "product", Lower, is(Numbered|Traced|OneType).and(Activated, "mm").and(Multiplies, "bmm"), "both operands", "both gradients", runMM},
		{names("addmm"), "product", Lower, is(Numbered | Traced | Weights | OneType | Activated), "both matrices", "three gradients", runAddmm},
		{names("baddbmm"), "product", Lower, is(Numbered | OneType | Multiplies), "both batches", "three gradients", runBaddbmm},
		{names("mv"), "product", Lower, is(OneType), "both operands", "both gradients", runMv},
		{names("dot", "vdot"), "product", Promote, is(OneType), "both operands", "both gradients", runDot},
		{names("lstm", "gru", "rnn_tanh", "rnn_relu"), "product", Keep, is(Numbered | Weights | OneType | Recurrent).trains(6), "initial states, input, result, +cuDNN's reserve, +the parameters in one buffer (under autocast)", "input's and states' gradients, the parameters' in one buffer", runRNN},
		{names("_thnn_fused_gru_cell", "_thnn_fused_lstm_cell"), "product", Lower, is(OneType), "both gates, state, biases, +workspace", "gradients of gates, state and biases", runFusedCell},
		{names("einsum"), "product", Lower, is(Numbered | OneType), "operands of its products, +copies (permuted and flattened)", "both gradients of each product", runEinsum},
		{names("scaled_dot_product_attention"), "product", Lower, is(Numbered | Traced | OneType | Multiplies), "query, key, value, result (of a fused kernel), +log-sum-exp (of one), +probabilities (without)", "three gradients and the kernel's scratch", runAttention},
		{names("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution", "_convolution"),
			"convolution", Lower, is(Numbered|Traced|Weights|OneType).and(Activated, "conv1d", "conv2d", "conv3d", "convolution"), "input, weight", "input, weight, bias gradients, a workspace each", runConv},

		// Normalisation.
		{names("layer_norm", "native_layer_norm"), "normalization", Full, is(OneType).and(Numbered|Traced|Weights, "layer_norm"), "input, +mean, +rstd", "input, weight, bias gradients", runLayerNorm},
		{names("batch_norm", "_native_batch_norm_legit_functional", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "native_batch_norm", "cudnn_batch_norm"),
			"normalization", Keep, is(WideWeights|Activated).and(Numbered|Traced|Weights, "batch_norm", "_native_batch_norm_legit_functional", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training").
				trains(5, "batch_norm", "native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional"), "input, +mean and inverse deviation of the batch", "input, weight, bias gradients", runBatchNorm},
		{names("group_norm", "native_group_norm"), "normalization", Full, is(WideWeights|Activated).and(Numbered|Traced|Weights, "group_norm"), "input, +mean, +rstd", "input, weight, bias gradients", runGroupNorm},
		{names("instance_norm"), "normalization", Keep, is(Numbered | Traced | WideWeights | Activated), "input, +repeated weight, +statistics", "input, weight, bias gradients", runInstanceNorm},
		{names("_weight_norm"), "normalization", Keep, nil, "direction, magnitude, +norms", "both gradients", runWeightNorm},
		{names("rms_norm", "_fused_rms_norm"), "normalization", Keep, is(Numbered|Weights, "rms_norm"), "input, +rstd", "input, weight gradients", runRMSNorm},

		// Arithmetic.
		{names("add", "sub", "rsub"), "pointwise", Keep, is(Traced|Activated|Augmented, "add", "sub").symbol("+", "add").symbol("-", "sub", "rsub"), "", "", runAdd},
		{names("mul"), "pointwise", Keep, is(Traced | Augmented).symbol("*"), "the other operand of each that needs a gradient", "each needed gradient", runMul},
		{names("div"), "pointwise", Keep, is(Traced | Augmented).symbol("/"), "other, self (if other needs a gradient)", "each needed gradient", runDiv},
		{names("pow"), "pointwise", Full, is(Traced).symbol("**").lines("pow", "pow", "**", "square"), "self, other (if a tensor), result (if other is a tensor)", "three kernels' results", runPow},
		{names("deg2rad", "rad2deg"), "pointwise", Keep, nil, "", "input's gradient", runDegrees},
		{names("maximum", "minimum"), "pointwise", Keep, nil, "both operands", "masks", runMaxMin},
		{names("addcmul", "addcdiv"), "pointwise", Promote, nil, "the other factor of each that needs a gradient", "each needed gradient", runAddc},
		{names("lerp"), "pointwise", Keep, nil, "a weight that is a tensor", "each needed gradient", runLerp},
		{names("atan2"), "pointwise", Promote, nil, "both operands", "each needed gradient", runAtan2},
		{names("xlogy"), "pointwise", Promote, nil, "both operands", "each needed gradient", runBinarySaved},
		{names("hypot"), "pointwise", Promote, nil, "both operands, result", "each needed gradient", runBinarySaved},
		{names("remainder", "fmod"), "pointwise", Keep, nil, "both operands (if other needs a gradient)", "each needed gradient", runModulo},
		{names("clamp", "clip"), "pointwise", Keep, is(Idempotent), "self, bounds that are tensors", "masks", runClamp},
		{names("glu"), "pointwise", Keep, is(Numbered | Traced), "self", "input's gradient", runGLU},
		{names("prelu", "_prelu_kernel"), "pointwise", Lower, is(OneType).and(Numbered|Traced|Weights, "prelu"), "self, weight", "input's gradient, weight's before its sum", runPReLU},
		{names("where"), "pointwise", Keep, is(PassesOn), "condition", "each needed gradient", runWhere},
		{names("masked_fill"), "pointwise", Keep, is(Writes), "mask", "input's gradient", runMaskedFill},
		{names("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "logical_xor", "isnan", "isinf", "isfinite"), "comparison", Keep, is(Truth), "", "", runCompare},
		{names("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "floor_divide"), "comparison", Keep, nil, "", "", runBitwise},
		{names("native_dropout", "dropout", "alpha_dropout", "feature_dropout"), "pointwise", Keep, is(Numbered|Traced|PassesOn, "native_dropout", "dropout").and(TracedMask, "native_dropout").trains(2), "+bool mask", "input's gradient", runDropout},
		{names("bernoulli", "uniform", "normal_functional", "exponential"), "creation", Keep, nil, "", "", runRandomFill},
		{names("arange", "zeros", "ones", "full", "empty", "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty",
			"rand", "randn", "rand_like", "randn_like", "randint", "scalar_tensor", "linspace", "eye", "tril_indices", "triu_indices"), "creation", Keep, is(DefaultType, "zeros", "ones", "full", "empty", "rand", "randn", "arange", "linspace", "eye").and(Traced, "rand").and(Positions, "arange", "linspace").and(Zeros, "zeros", "new_zeros", "zeros_like"), "", "", runFill},

		// Reductions.
		{names("sum"), "reduction", Result, is(Numbered | Traced), "", "a view; a copy for mean", runSum},
		{names("mean"), "reduction", Keep, is(Numbered|Traced).lines("mean", "mean", "pool"), "", "input's gradient", runSum},
		{names("amax", "amin"), "reduction", Keep, nil, "input, result", "input's gradient", runExtreme},
		{names("max", "min"), "reduction", Keep, is(Numbered), "+indices (along a dim), input (of all elements), result (of all elements), both operands (of two)", "input's gradient", runExtreme},
		{names("argmax", "argmin"), "reduction", Keep, nil, "", "", runExtreme},
		{names("var", "var_mean"), "reduction", Keep, lines("var", "var", "norm"), "input", "input's gradient", runVar},
		{names("std"), "reduction", Keep, lines("std", "std"), "input, result", "input's gradient", runVar},
		{names("linalg_vector_norm", "norm"), "reduction", Result, lines("linalg_vector_norm", "norm"), "input, result", "input's gradient", runVectorNorm},
		{names("logsumexp"), "reduction", Full, lines("logsumexp", "logsumexp"), "input, result", "input's gradient", runLogSumExp},
		{names("prod"), "reduction", Result, nil, "input, result", "input's gradient", runProd},
		{names("softmax", "_softmax", "log_softmax", "_log_softmax"), "reduction", Result, is(Probabilities, "softmax", "_softmax").and(Numbered, "softmax", "_softmax", "log_softmax").and(Traced, "softmax", "log_softmax").lines("softmax", "softmax", "attention").lines("log_softmax", "log_softmax", "entropy"), "result", "input's gradient; softmax also a product", runSoftmax},
		{names("cumsum"), "reduction", Result, lines("cumsum", "cumsum"), "", "three kernels' results", runCumsum},
		{names("cumprod"), "reduction", Result, nil, "input, result", "input's gradient", runCumprod},
		{names("topk", "sort"), "reduction", Keep, nil, "+indices", "input's gradient", runTopK},
		{names("binary_cross_entropy", "binary_cross_entropy_with_logits"), "loss", Full, nil, "input, target, weights", "input's gradient", runBCE},
		{names("cross_entropy_loss"), "loss", Keep, nil, "target, +log-probabilities", "input's gradient", runCrossEntropy},
		{names("nll_loss", "nll_loss_nd", "nll_loss2d"), "loss", Full, nil, "input, target, +total weight", "input's gradient", runNLL},
		{names("mse_loss"), "loss", Full, nil, "input, target", "input's gradient", runMSE},
		{names("smooth_l1_loss"), "loss", Full, nil, "input, target", "each needed gradient", runSmoothL1},
		{names("any", "all", "nonzero", "count_nonzero", "unique", "bincount"), "reduction", Keep, nil, "", "", runPlain},

		// Pooling and resizing.
		{names("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices"), "pooling", Keep, is(Numbered|Traced, "max_pool2d"), "input, +int64 indices", "input's gradient", runMaxPool},
		{names("avg_pool1d", "avg_pool2d", "avg_pool3d"), "pooling", Keep, is(Numbered|Traced, "avg_pool1d", "avg_pool2d"), "input", "input's gradient", runAvgPool},
		{names("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d"), "pooling", Keep, is(Numbered|Traced, "adaptive_avg_pool2d"), "input (unless the output is 1x1)", "input's gradient", runAdaptiveAvgPool},
		{names("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"), "pooling", Keep, nil, "input, +int64 indices", "input's gradient", runAdaptiveMaxPool},
		{names("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_linear1d",
			"upsample_trilinear3d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"), "pooling", Full, is(Numbered|Traced, "upsample_nearest2d", "upsample_bilinear2d"), "", "input's gradient", runResize},
		{names("constant_pad_nd"), "pooling", Keep, is(Traced), "", "input's gradient", runResize},
		{names("pad"), "pooling", Keep, is(Traced), "input (reflected or replicated)", "input's gradient", runResize},
		{names("reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d", "replication_pad3d"), "pooling", Keep, is(Traced, "reflection_pad2d"), "input", "input's gradient", runResize},

		{names("grid_sampler", "grid_sampler_2d", "grid_sampler_3d"), "pooling", Promote, is(OneType), "input, grid", "both gradients", runGridSample},
		{names("im2col", "col2im"), "pooling", Keep, nil, "", "input's gradient", runResize},

		// Indexing.
		{names("scatter"), "indexing", Keep, is(OneType | Writes | IntoZeros), "index", "a copy of the gradient, gathered", runScatter},
		{names("scatter_reduce"), "indexing", Keep, is(IntoZeros), "index, self, source, result", "a copy of the gradient, gathered", runScatter},
		{names("scatter_add"), "indexing", Promote, is(OneType | IntoZeros), "index", "a copy of the gradient, gathered", runScatter},
		{names("index_add"), "indexing", Keep, is(OneType | Writes | IntoZeros), "index", "the gradient at the indices", runIndexAdd},
		{names("index_put", "_unsafe_index_put"), "indexing", Promote, is(OneType | Writes), "indices", "a copy of the gradient and its values", runIndexPut},
		{names("embedding"), "indexing", Keep, is(Numbered | Traced | Weights), "indices", "the whole table's gradient", runEmbedding},
		{names("embedding_bag", "_embedding_bag"), "indexing", Keep, nil, "indices, +offsets, +the bag of each index, +sizes of bags", "the whole table's gradient", runEmbeddingBag},
		{names("index", "_unsafe_index"), "indexing", Keep, nil, "indices", "zeros of the operand's size", gathered("IndexBackward0", "index_put", false)},
		{names("index_select"), "indexing", Keep, nil, "indices", "zeros of the operand's size", gathered("IndexSelectBackward0", "index_add", false)},
		{names("gather", "take_along_dim"), "indexing", Keep, nil, "self, indices, +indices (of take_along_dim, which may count from the end)", "zeros of the operand's size", gathered("GatherBackward0", "gather_backward", true)},
	}
	for i := range pointwises {
		p := &pointwises[i]
		back := "input's gradient"
		if len(p.back) == 0 && p.grad == nil {
			back = ""
		}
		saves := p.saves
		if p.also {
			saves += ", result"
		}
		ops = append(ops, Op{names(p.name), "pointwise", p.cast, p.is, saves, back, p.run})
	}
	return ops
}
