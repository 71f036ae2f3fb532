package validate

import (
	"fmt"
	"slices"

	"github.com/memplan/memplan/graph/program"
)

// A Kernel is one row of the table of kernels: what a node that names it must
// say to be a complete instruction. Devices list which rows they have.
type Kernel struct {
	Name      string
	Min, Max  int // operands
	Scalars   int // numbers at least
	Dims      bool
	Conv      bool
	Pool      bool
	Window    bool
	Rule      bool
	Elements  bool // pointwise: result i depends on element i of the broadcast operands
	Gradients bool // the backward of another row
}

func unaries(names ...string) []Kernel { return rows(Kernel{Min: 1, Max: 1, Elements: true}, names...) }

func binaries(names ...string) []Kernel {
	return rows(Kernel{Min: 2, Max: 2, Elements: true}, names...)
}

func rows(like Kernel, names ...string) []Kernel {
	out := make([]Kernel, len(names))
	for i, n := range names {
		out[i] = like
		out[i].Name = n
	}
	return out
}

// Kernels lists all kernels that nodes can name completely.
var Kernels = slices.Concat(
	// Pointwise, without numbers of their own.
	unaries("copy", "neg", "abs", "exp", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "square", "sin", "cos", "tan", "atan",
		"sinh", "cosh", "tanh", "asin", "acos", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "exp2", "floor", "ceil", "round", "trunc", "frac", "sign", "sgn",
		"sigmoid", "silu", "gelu", "mish", "hardswish", "hardsigmoid", "log_sigmoid", "softsign", "relu", "lgamma", "digamma"),
	rows(Kernel{Min: 1, Max: 2, Elements: true}, "zeros_like", "logical_not", "bitwise_not", "isinf", "isnan", "isfinite"),
	rows(Kernel{Min: 1, Max: 1, Scalars: 1, Elements: true}, "leaky_relu", "hardshrink", "softshrink", "clamp_min", "clamp_max", "logit"),
	rows(Kernel{Min: 1, Max: 1, Scalars: 2, Elements: true}, "hardtanh", "threshold", "clamp", "softplus"),
	rows(Kernel{Min: 1, Max: 1, Scalars: 3, Elements: true}, "elu"),
	binaries("add", "sub", "rsub", "mul", "div", "pow", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor",
		"bitwise_and", "bitwise_or", "bitwise_xor", "floor_divide", "remainder", "fmod", "atan2", "div_or_zero", "xlogy", "hypot", "_prelu_kernel"),
	rows(Kernel{Min: 3, Max: 3, Elements: true}, "where", "masked_fill", "lerp"),
	rows(Kernel{Min: 3, Max: 3, Scalars: 1, Elements: true}, "addcmul", "addcdiv"),
	rows(Kernel{Min: 2, Max: 2, Elements: true, Gradients: true}, "tanh_backward", "sigmoid_backward", "silu_backward", "gelu_backward", "mish_backward",
		"hardswish_backward", "hardsigmoid_backward", "log_sigmoid_backward"),
	rows(Kernel{Min: 2, Max: 2, Scalars: 1, Elements: true, Gradients: true}, "threshold_backward", "leaky_relu_backward", "hardshrink_backward", "softshrink_backward", "native_dropout_backward", "logit_backward"),
	rows(Kernel{Min: 3, Max: 3, Gradients: true}, "_prelu_kernel_backward"),
	rows(Kernel{Min: 2, Max: 2, Scalars: 2, Elements: true, Gradients: true}, "hardtanh_backward", "softplus_backward"),
	rows(Kernel{Min: 2, Max: 2, Scalars: 3, Elements: true, Gradients: true}, "elu_backward"),
	// Creation. What they make does not depend on what they read.
	rows(Kernel{Max: 1, Scalars: 1}, "fill"),
	rows(Kernel{Scalars: 2}, "arange", "randint", "randn"),
	rows(Kernel{Max: 2, Scalars: 2}, "uniform", "normal"),
	rows(Kernel{Min: 1, Max: 2, Scalars: 1}, "bernoulli"),
	rows(Kernel{}, "empty", "zero_grad", "del"),
	rows(Kernel{Min: 1, Max: 1, Scalars: 1}, "native_dropout"),
	rows(Kernel{Min: 1, Max: 1}, "mask_bias"),
	rows(Kernel{}, "causal_bias"),
	rows(Kernel{Min: 2, Max: 2}, "empty_rows"),
	// Moves.
	rows(Kernel{Min: 1, Max: 1 << 20, Dims: true}, "cat", "stack"),
	rows(Kernel{Min: 1, Max: 1}, "repeat", "repeat_backward"),
	rows(Kernel{Min: 1, Max: 1, Dims: true}, "flip"),
	rows(Kernel{Min: 1, Max: 1, Scalars: 1}, "tril", "triu"),
	rows(Kernel{Min: 1, Max: 1, Scalars: 1, Dims: true}, "roll"),
	rows(Kernel{Min: 1, Max: 1, Scalars: 3}, "upsample_bilinear2d", "upsample_nearest2d", "upsample_bicubic2d"),
	rows(Kernel{Min: 1, Max: 1, Scalars: 3, Gradients: true}, "upsample_bilinear2d_backward", "upsample_nearest2d_backward", "upsample_bicubic2d_backward"),
	rows(Kernel{Min: 2, Max: 2, Scalars: 3}, "grid_sampler_2d"),
	rows(Kernel{Min: 3, Max: 3, Scalars: 3, Gradients: true}, "grid_sampler_2d_backward"),
	rows(Kernel{Min: 1, Max: 1, Window: true}, "unview"),
	rows(Kernel{Min: 1, Max: 1, Window: true, Scalars: 1}, "constant_pad_nd"),
	rows(Kernel{Min: 1, Max: 1}, "repeat_interleave"),
	rows(Kernel{Min: 2, Max: 2, Scalars: 1}, "embedding"),
	rows(Kernel{Min: 2, Max: 2, Scalars: 1, Gradients: true}, "embedding_dense_backward"),
	rows(Kernel{Min: 2, Max: 1 << 10, Dims: true}, "index"),
	rows(Kernel{Min: 2, Max: 2, Dims: true}, "index_select", "gather"),
	rows(Kernel{Min: 3, Max: 3, Dims: true}, "scatter", "scatter_add", "index_add"),
	rows(Kernel{Min: 3, Max: 1 << 10, Dims: true, Scalars: 1}, "index_put"),
	rows(Kernel{Min: 2, Max: 1 << 10, Dims: true, Gradients: true}, "index_backward"),
	rows(Kernel{Min: 2, Max: 3, Dims: true, Gradients: true}, "index_select_backward", "gather_backward"),
	// Products and convolutions.
	rows(Kernel{Min: 2, Max: 2}, "mm", "bmm", "mv", "dot"),
	rows(Kernel{Min: 3, Max: 3}, "addmm", "baddbmm"),
	rows(Kernel{Min: 3, Max: 3, Conv: true}, "convolution", "convolution_backward"),
	rows(Kernel{Min: 4, Max: 4, Scalars: 3}, "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"),
	rows(Kernel{Min: 3, Max: 3, Scalars: 3}, "_scaled_dot_product_flash_attention"),
	rows(Kernel{Min: 7, Max: 7, Scalars: 3, Gradients: true}, "_scaled_dot_product_efficient_attention_backward"),
	rows(Kernel{Min: 9, Max: 9, Scalars: 3, Gradients: true}, "_scaled_dot_product_cudnn_attention_backward"),
	rows(Kernel{Min: 8, Max: 8, Scalars: 3, Gradients: true}, "_scaled_dot_product_flash_attention_backward"),
	rows(Kernel{Min: 1, Max: 1 << 20}, "_cudnn_rnn_flatten_weight"),
	rows(Kernel{Min: 3, Max: 1 << 20, Scalars: 5}, "_cudnn_rnn"),
	rows(Kernel{Min: 5, Max: 1 << 20, Scalars: 5, Gradients: true}, "_cudnn_rnn_backward"),
	// Normalisation, pooling.
	rows(Kernel{Min: 2, Max: 2, Dims: true}, "_weight_norm_interface"),
	rows(Kernel{Min: 4, Max: 4, Dims: true, Gradients: true}, "_weight_norm_interface_backward"),
	rows(Kernel{Min: 3, Max: 3, Scalars: 1, Dims: true}, "native_layer_norm"),
	rows(Kernel{Min: 2, Max: 2, Scalars: 1, Dims: true}, "_fused_rms_norm"),
	rows(Kernel{Min: 3, Max: 3, Scalars: 1}, "native_group_norm"),
	rows(Kernel{Min: 5, Max: 5, Scalars: 3}, "batch_norm"),
	rows(Kernel{Min: 5, Max: 5, Scalars: 1, Gradients: true}, "native_group_norm_backward"),
	rows(Kernel{Min: 5, Max: 5, Scalars: 1, Dims: true, Gradients: true}, "native_layer_norm_backward"),
	rows(Kernel{Min: 4, Max: 4, Scalars: 1, Dims: true, Gradients: true}, "_fused_rms_norm_backward"),
	rows(Kernel{Min: 5, Max: 7, Scalars: 3, Gradients: true}, "batch_norm_backward"),
	rows(Kernel{Min: 1, Max: 1, Pool: true}, "max_pool_with_indices", "avg_pool2d", "im2col", "col2im"),
	rows(Kernel{Min: 3, Max: 3, Dims: true, Pool: true, Gradients: true}, "max_pool2d_with_indices_backward"),
	rows(Kernel{Min: 2, Max: 2, Pool: true, Gradients: true}, "avg_pool2d_backward"),
	rows(Kernel{Min: 1, Max: 1}, "adaptive_avg_pool2d"),
	rows(Kernel{Min: 2, Max: 2, Gradients: true}, "adaptive_avg_pool2d_backward"),
	// Reductions and losses.
	rows(Kernel{Min: 1, Max: 1, Dims: true}, "sum", "mean", "amax", "amin", "argmax", "argmin", "softmax", "log_softmax", "logsumexp", "cumsum", "glu", "euclidean_norm"),
	rows(Kernel{Min: 1, Max: 1, Dims: true, Scalars: 1}, "var", "std"),
	rows(Kernel{Min: 1, Max: 1, Dims: true}, "amax_with_indices", "amin_with_indices", "adaptive_max_pool2d"),
	rows(Kernel{Min: 1, Max: 1, Dims: true, Scalars: 1}, "topk"),
	rows(Kernel{Min: 2, Max: 2, Dims: true, Gradients: true}, "_softmax_backward_data", "_log_softmax_backward_data", "glu_backward"),
	rows(Kernel{Min: 2, Max: 2, Scalars: 2}, "nll_loss_forward", "nll_loss2d_forward"),
	rows(Kernel{Min: 4, Max: 4, Scalars: 2, Gradients: true}, "nll_loss_backward", "nll_loss2d_backward"),
	rows(Kernel{Min: 2, Max: 2, Scalars: 1}, "mse_loss"),
	rows(Kernel{Min: 3, Max: 3, Scalars: 1, Gradients: true}, "mse_loss_backward"),
	rows(Kernel{Max: 1 << 30, Rule: true}, "step"),
)

var kernelNames = indexKernels()

func indexKernels() map[string]*Kernel {
	m := make(map[string]*Kernel, len(Kernels))
	for i := range Kernels {
		if m[Kernels[i].Name] != nil {
			panic("validate: kernel listed twice: " + Kernels[i].Name)
		}
		m[Kernels[i].Name] = &Kernels[i]
	}
	return m
}

// FindKernel returns a row by its name, or nil.
func FindKernel(name string) *Kernel { return kernelNames[name] }

// Complete returns why a node is not a complete instruction, or nil: a kernel
// that the table lacks, operands or attributes that are missing.
func Complete(n *program.Node) error {
	name := n.Does()
	if n.Attrs != nil && n.Attrs.Inexact != "" {
		return fmt.Errorf("%s: %s", name, n.Attrs.Inexact)
	}
	k := FindKernel(name)
	if k == nil {
		return fmt.Errorf("%s: no such kernel", name)
	}
	a := n.Attrs
	if a == nil {
		a = &program.Attrs{}
	}
	args := n.Args()
	switch {
	case args < k.Min || args > k.Max:
		return fmt.Errorf("%s: %d operands, not %d to %d", name, args, k.Min, k.Max)
	case len(a.Scalars) < k.Scalars:
		return fmt.Errorf("%s: %d numbers, not %d", name, len(a.Scalars), k.Scalars)
	case k.Dims && a.Dims == nil:
		return fmt.Errorf("%s: no dims", name)
	case k.Conv && a.Conv == nil, k.Pool && a.Pool == nil, k.Window && a.Window == nil, k.Rule && a.Rule == nil:
		return fmt.Errorf("%s: no attributes", name)
	}
	for i := range args {
		if n.Arg(i).In == program.Unknown && (i < k.Min || k.Max > 2) { // the second of a kernel of one or two is never read
			return fmt.Errorf("%s: operand %d is a constant that the file does not show", name, i)
		}
	}
	return nil
}
