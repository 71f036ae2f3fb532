package aten

import "sort"

// An Op is one entry of the operator table.
type Op struct {
	Names []string // ATen names without overload; the first is the table's
	Kind  string   // group, for the documentation
	Cast  Cast     // autocast class
	Saves string   // what autograd keeps for backward, for the documentation
	Back  string   // what backward allocates, for the documentation
	run   func(e *Eager, c *Call) []*Tensor
}

// Ops returns the operator table, sorted by kind and name: one entry an
// operator or family of operators that differ in name alone.
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
		// Views: no memory, the gradient is shown back.
		{names("view", "reshape", "_unsafe_view", "view_copy", "_reshape_copy"), "view", Keep, "", "a copy where strides forbid a view", runView},
		{names("flatten"), "view", Keep, "", "a copy where strides forbid a view", runFlatten},
		{names("unflatten"), "view", Keep, "", "a copy where strides forbid a view", runUnflatten},
		{names("transpose", "t", "swapaxes"), "view", Keep, "", "", runTranspose},
		{names("permute", "movedim"), "view", Keep, "", "", runPermute},
		{names("expand", "broadcast_to"), "view", Keep, "", "sum over the expanded dims", runExpand},
		{names("unsqueeze"), "view", Keep, "", "", runUnsqueeze},
		{names("squeeze"), "view", Keep, "", "", runSqueeze},
		{names("slice"), "view", Keep, "", "zeros of the operand's size", runSlice},
		{names("narrow"), "view", Keep, "", "zeros of the operand's size", runNarrow},
		{names("select"), "view", Keep, "", "zeros of the operand's size", runSelect},
		{names("unfold"), "view", Keep, "", "zeros of the operand's size", runUnfold},
		{names("diagonal"), "view", Keep, "", "zeros of the operand's size", runDiagonal},
		{names("broadcast_in_dim"), "view", Keep, "", "sum over the expanded dims", runBroadcastIn},
		{names("copy", "fill"), "view", Keep, "", "a cast", runCopyInto},
		{names("slice_scatter", "select_scatter"), "view", Keep, "", "a copy of the gradient and of its window", runWindow},
		{names("split", "split_with_sizes", "chunk", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk"), "view", Keep, "", "concatenation", runSplit},
		{names("unbind"), "view", Keep, "", "stack", runUnbind},
		{names("atleast_1d", "atleast_2d", "atleast_3d"), "view", Keep, "", "", runAtLeast},
		{names("identity"), "view", Keep, "", "", runIdentity},
		{names("alias", "lift_fresh_copy", "lift_fresh", "view_as"), "view", Keep, "", "", runAlias},
		{names("detach", "detach_"), "view", Keep, "", "", runDetach},
		{names("as_strided"), "view", Keep, "", "zeros of the operand's size", runAsStrided},

		// Copies and moves.
		{names("clone"), "copy", Keep, "", "", runClone},
		{names("type_as"), "copy", Keep, "", "cast back", runTypeAs},
		{names("contiguous"), "copy", Keep, "", "", runContiguous},
		{names("_to_copy", "to", "convert_element_type"), "copy", Keep, "", "cast back", runToCopy},
		{names("cat", "concat", "concatenate"), "copy", Promote, "", "views", runCat},
		{names("stack"), "copy", Promote, "", "views", runStack},
		{names("repeat", "tile"), "copy", Keep, "", "sum", runRepeat},
		{names("roll", "flip", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "repeat_interleave"), "copy", Keep, "", "same shape", runShuffle},
		{names("triu", "tril"), "copy", Keep, "", "same shape", runShuffle},

		// Products.
		{names("linear"), "product", Lower, "input, weight", "input, weight, bias gradients", runLinear},
		{names("matmul"), "product", Lower, "both operands, copied where not contiguous", "both gradients", runMatmul},
		{names("mm", "bmm"), "product", Lower, "both operands", "both gradients", runMM},
		{names("addmm"), "product", Lower, "both matrices", "three gradients", runAddmm},
		{names("baddbmm"), "product", Lower, "both batches", "three gradients", runBaddbmm},
		{names("mv"), "product", Lower, "both operands", "both gradients", runMv},
		{names("dot", "vdot"), "product", Promote, "both operands", "both gradients", runDot},
		{names("lstm", "gru", "rnn_tanh", "rnn_relu"), "product", Keep, "initial states, input, output, cuDNN's reserve; under autocast the parameters in one buffer", "input's and states' gradients, the parameters' in one buffer", runRNN},
		{names("einsum"), "product", Lower, "the operands of its products, permuted and flattened", "both gradients of each product", runEinsum},
		{names("scaled_dot_product_attention"), "product", Lower, "query, key, value, result, log-sum-exp", "three gradients and the kernel's scratch", runAttention},
		{names("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution", "_convolution"),
			"convolution", Lower, "input, weight", "input, weight, bias gradients, a workspace each", runConv},

		// Normalisation.
		{names("layer_norm", "native_layer_norm"), "normalization", Full, "input, mean, rstd", "input, weight, bias gradients", runLayerNorm},
		{names("batch_norm", "_native_batch_norm_legit_functional", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "native_batch_norm", "cudnn_batch_norm"),
			"normalization", Keep, "input, batch mean and inverse deviation", "input, weight, bias gradients", runBatchNorm},
		{names("group_norm", "native_group_norm"), "normalization", Full, "input, mean, rstd", "input, weight, bias gradients", runGroupNorm},
		{names("instance_norm"), "normalization", Keep, "input, repeated weight, statistics", "input, weight, bias gradients", runInstanceNorm},
		{names("_weight_norm"), "normalization", Keep, "direction, magnitude, norms", "both gradients", runWeightNorm},
		{names("rms_norm", "_fused_rms_norm"), "normalization", Keep, "input, rstd", "input, weight gradients", runRMSNorm},

		// Arithmetic.
		{names("add", "sub", "rsub"), "pointwise", Keep, "", "", runAdd},
		{names("mul"), "pointwise", Keep, "the other operand of each that needs a gradient", "each needed gradient", runMul},
		{names("div"), "pointwise", Keep, "other; self if other needs a gradient", "each needed gradient", runDiv},
		{names("pow"), "pointwise", Full, "self; other and result for a tensor exponent", "three kernels' results", runPow},
		{names("maximum", "minimum"), "pointwise", Keep, "both operands", "masks", runMaxMin},
		{names("addcmul", "addcdiv"), "pointwise", Promote, "the other factor of each that needs a gradient", "each needed gradient", runAddc},
		{names("lerp"), "pointwise", Keep, "a weight that is a tensor", "each needed gradient", runLerp},
		{names("atan2"), "pointwise", Promote, "both operands", "each needed gradient", runAtan2},
		{names("xlogy", "hypot"), "pointwise", Promote, "both operands", "each needed gradient", runBinarySaved},
		{names("remainder", "fmod"), "pointwise", Keep, "both operands if other needs a gradient", "each needed gradient", runModulo},
		{names("clamp", "clip"), "pointwise", Keep, "self, bounds that are tensors", "masks", runClamp},
		{names("glu"), "pointwise", Keep, "self", "input's gradient", runGLU},
		{names("prelu", "_prelu_kernel"), "pointwise", Lower, "self, weight", "input's gradient, weight's before its sum", runPReLU},
		{names("where"), "pointwise", Keep, "condition", "each needed gradient", runWhere},
		{names("masked_fill"), "pointwise", Keep, "mask", "input's gradient", runMaskedFill},
		{names("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "logical_xor", "isnan", "isinf", "isfinite"), "comparison", Keep, "", "", runCompare},
		{names("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "floor_divide"), "comparison", Keep, "", "", runBitwise},
		{names("native_dropout", "dropout", "alpha_dropout", "feature_dropout"), "pointwise", Keep, "bool mask", "input's gradient", runDropout},
		{names("bernoulli", "uniform", "normal_functional", "exponential"), "creation", Keep, "", "", runRandomFill},
		{names("arange", "zeros", "ones", "full", "empty", "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty",
			"rand", "randn", "rand_like", "randn_like", "randint", "scalar_tensor", "linspace", "eye", "tril_indices", "triu_indices"), "creation", Keep, "", "", runFill},

		// Reductions.
		{names("sum"), "reduction", Result, "", "a view; a copy for mean", runSum},
		{names("mean"), "reduction", Keep, "", "input's gradient", runSum},
		{names("amax", "amin", "max", "min", "argmax", "argmin"), "reduction", Keep, "indices, or input and result", "input's gradient", runExtreme},
		{names("var", "std", "var_mean"), "reduction", Keep, "input", "input's gradient", runVar},
		{names("linalg_vector_norm", "norm"), "reduction", Result, "input, result", "input's gradient", runVectorNorm},
		{names("logsumexp"), "reduction", Full, "input, result", "input's gradient", runLogSumExp},
		{names("prod"), "reduction", Result, "input, result", "input's gradient", runProd},
		{names("softmax", "_softmax", "log_softmax", "_log_softmax"), "reduction", Result, "result", "input's gradient; softmax also a product", runSoftmax},
		{names("cumsum"), "reduction", Result, "", "three kernels' results", runCumsum},
		{names("cumprod"), "reduction", Result, "input, result", "input's gradient", runCumprod},
		{names("topk", "sort"), "reduction", Keep, "indices", "input's gradient", runTopK},
		{names("binary_cross_entropy", "binary_cross_entropy_with_logits"), "loss", Full, "input, target", "input's gradient", runMSE},
		{names("cross_entropy_loss"), "loss", Keep, "log-probabilities, target", "input's gradient", runCrossEntropy},
		{names("nll_loss", "nll_loss_nd", "nll_loss2d"), "loss", Full, "input, target, total weight", "input's gradient", runNLL},
		{names("mse_loss"), "loss", Full, "input, target", "input's gradient", runMSE},
		{names("any", "all", "nonzero", "count_nonzero", "unique", "bincount"), "reduction", Keep, "", "", runPlain},

		// Pooling and resizing.
		{names("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices"), "pooling", Keep, "input, int64 indices", "input's gradient", runMaxPool},
		{names("avg_pool1d", "avg_pool2d", "avg_pool3d"), "pooling", Keep, "input", "input's gradient", runAvgPool},
		{names("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d"), "pooling", Keep, "nothing for a 1x1 output, else input", "input's gradient", runAdaptiveAvgPool},
		{names("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"), "pooling", Keep, "input, int64 indices", "input's gradient", runAdaptiveMaxPool},
		{names("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_linear1d",
			"upsample_trilinear3d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"), "pooling", Full, "", "input's gradient", runResize},
		{names("constant_pad_nd", "pad", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d", "replication_pad3d"),
			"pooling", Keep, "", "input's gradient", runResize},

		{names("grid_sampler", "grid_sampler_2d", "grid_sampler_3d"), "pooling", Promote, "input, grid", "both gradients", runGridSample},
		{names("im2col", "col2im"), "pooling", Keep, "", "input's gradient", runResize},

		// Indexing.
		{names("scatter", "scatter_reduce"), "indexing", Keep, "index", "a copy of the gradient, gathered", runScatter},
		{names("scatter_add"), "indexing", Promote, "index", "a copy of the gradient, gathered", runScatter},
		{names("index_add"), "indexing", Keep, "index", "the gradient at the indices", runIndexAdd},
		{names("index_put", "_unsafe_index_put"), "indexing", Promote, "indices", "a copy of the gradient and its values", runIndexPut},
		{names("embedding"), "indexing", Keep, "indices", "the whole table's gradient", runEmbedding},
		{names("embedding_bag", "_embedding_bag"), "indexing", Keep, "indices, offsets, the bag of each index, sizes of bags", "the whole table's gradient", runEmbeddingBag},
		{names("index", "_unsafe_index"), "indexing", Keep, "indices", "zeros of the operand's size", gathered("IndexBackward0", "index_put", false)},
		{names("index_select"), "indexing", Keep, "indices", "zeros of the operand's size", gathered("IndexSelectBackward0", "index_add", false)},
		{names("gather", "take_along_dim"), "indexing", Keep, "self, indices", "zeros of the operand's size", gathered("GatherBackward0", "gather_backward", true)},
	}
	for i := range pointwises {
		p := &pointwises[i]
		back := "input's gradient"
		if len(p.back) == 0 {
			back = ""
		}
		ops = append(ops, Op{names(p.name), "pointwise", p.cast, p.saves, back, p.run})
	}
	return ops
}
