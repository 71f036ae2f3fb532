// Package calls has a small call of every operator in package aten's table, for
// tests of what a device can run.
package calls

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/program"
)

// Table lists calls in Python's notation, each with its results; a line may name
// several operators. A letter and a shape are a tensor: f of float32, which requires a
// gradient, i of int64, b of bool.
const Table = `
view reshape _unsafe_view view_copy _reshape_copy: (f4x6, [2, 12]) -> f2x12
flatten: (f2x3x4, 1) -> f2x12
unflatten: (f2x12, 1, [3, 4]) -> f2x3x4
transpose swapaxes: (f2x3x4, 1, 2) -> f2x4x3
t: (f2x3) -> f3x2
permute: (f2x3x4, [2, 0, 1]) -> f4x2x3
movedim: (f2x3x4, [2, 0, 1]) -> f4x2x3
expand broadcast_to: (f1x3, [2, 3]) -> f2x3
unsqueeze: (f2x3, 1) -> f2x1x3
squeeze.dim: (f2x1x3, 1) -> f2x3
slice.Tensor: (f4x6, 1, 1, 5, 2) -> f4x2
narrow: (f4x6, 1, 1, 3) -> f4x3
select.int: (f4x6, 1, 2) -> f4
unfold: (f4x9, 1, 3, 2) -> f4x4x3
diagonal: (f4x4) -> f4
broadcast_in_dim: (f3, [2, 3], [1]) -> f2x3
copy: (f4x6, f4x6) -> f4x6
fill.Scalar: (f4x6, 1.5) -> f4x6
slice_scatter: (f4x6, f2x6, 0, 1, 3) -> f4x6
select_scatter: (f4x6, f6, 0, 1) -> f4x6
split.Tensor unsafe_split: (f4x6, 3, 1) -> f4x3, f4x3
split_with_sizes unsafe_split_with_sizes: (f4x6, [2, 4], 1) -> f4x2, f4x4
chunk unsafe_chunk: (f4x6, 2, 1) -> f4x3, f4x3
unbind.int: (f2x6, 0) -> f6, f6
atleast_1d atleast_2d atleast_3d: (f2x3x4) -> f2x3x4
identity alias lift_fresh_copy lift_fresh detach detach_: (f4x6) -> f4x6
view_as: (f4x6, f4x6) -> f4x6
as_strided: (f4x6, [2, 3], [6, 1], 1) -> f2x3
clone contiguous: (f4x6) -> f4x6
type_as: (f4x6, i4x6) -> i4x6
_to_copy to convert_element_type: (f4x6, dtype='torch.float16') -> f4x6
cat concat concatenate: ([f4x6, f4x2], 1) -> f4x8
stack: ([f4x6, f4x6], 1) -> f4x2x6
repeat tile: (f4x6, [2, 1]) -> f8x6
roll: (f4x6, [1], [1]) -> f4x6
flip: (f4x6, [1]) -> f4x6
pixel_shuffle: (f2x8x3x4, 2) -> f2x2x6x8
pixel_unshuffle: (f2x2x6x8, 2) -> f2x8x3x4
channel_shuffle: (f2x8x3x4, 2) -> f2x8x3x4
repeat_interleave.Tensor: (i4) -> i7
repeat_interleave.self_int: (f4x6, 2, 1) -> f4x12
repeat_interleave.self_Tensor: (f4x6, i6, 1) -> f4x9
triu tril: (f4x6, 1) -> f4x6
linear: (f4x6, f5x6, f5) -> f4x5
matmul: (f2x4x6, f6x5) -> f2x4x5
mm: (f4x6, f6x5) -> f4x5
bmm: (f2x4x6, f2x6x5) -> f2x4x5
addmm: (f5, f4x6, f6x5) -> f4x5
baddbmm: (f2x4x5, f2x4x6, f2x6x5) -> f2x4x5
mv: (f4x6, f6) -> f4
dot vdot: (f6, f6) -> f
lstm.input: (f5x2x6, [f1x2x4, f1x2x4], [f16x6, f16x4, f16, f16], true, 1, 0.0, true, false, false) -> f5x2x4, f1x2x4, f1x2x4
gru.input: (f5x2x6, f1x2x4, [f12x6, f12x4, f12, f12], true, 1, 0.0, true, false, false) -> f5x2x4, f1x2x4
rnn_tanh.input rnn_relu.input: (f5x2x6, f1x2x4, [f4x6, f4x4, f4, f4], true, 1, 0.0, true, false, false) -> f5x2x4, f1x2x4
einsum: ('bi,bj->bij', [f2x3, f2x4]) -> f2x3x4
scaled_dot_product_attention: (f2x2x8x16, f2x2x8x16, f2x2x8x16, none, 0.0, true) -> f2x2x8x16
conv1d: (f2x3x9, f4x3x3, f4, [1], [1], [1], 1) -> f2x4x9
conv2d: (f2x3x8x8, f4x3x3x3, f4, [1, 1], [1, 1], [1, 1], 1) -> f2x4x8x8
conv3d: (f2x3x5x5x5, f4x3x3x3x3, f4, [1, 1, 1], [1, 1, 1], [1, 1, 1], 1) -> f2x4x5x5x5
conv_transpose1d: (f2x3x9, f3x4x3, f4, [1], [1], [0], 1, [1]) -> f2x4x9
conv_transpose2d.input: (f2x3x8x8, f3x4x3x3, f4, [1, 1], [1, 1], [0, 0], 1, [1, 1]) -> f2x4x8x8
conv_transpose3d.input: (f2x3x5x5x5, f3x4x3x3x3, f4, [1, 1, 1], [1, 1, 1], [0, 0, 0], 1, [1, 1, 1]) -> f2x4x5x5x5
convolution _convolution: (f2x3x8x8, f4x3x3x3, f4, [1, 1], [1, 1], [1, 1], false, [0, 0], 1) -> f2x4x8x8
layer_norm: (f4x6, [6], f6, f6) -> f4x6
native_layer_norm: (f4x6, [6], f6, f6, 0.00001) -> f4x6, f4x1, f4x1
batch_norm cudnn_batch_norm: (f4x6x5, f6, f6, f6, f6, true, 0.1, 0.00001, true) -> f4x6x5
native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional: (f4x6x5, f6, f6, f6, f6, true, 0.1, 0.00001) -> f4x6x5, f6, f6
_native_batch_norm_legit_no_training: (f4x6x5, f6, f6, f6, f6, 0.1, 0.00001) -> f4x6x5, f6, f6
group_norm: (f4x6x5, 2, f6, f6, 0.00001) -> f4x6x5
native_group_norm: (f4x6x5, f6, f6, 4, 6, 5, 2, 0.00001) -> f4x6x5, f4x2, f4x2
instance_norm: (f4x6x5, f6, f6, none, none, true, 0.1, 0.00001, true) -> f4x6x5
_thnn_fused_gru_cell: (f4x18, f4x18, f4x6, f18, f18) -> f4x6, f4x30
_thnn_fused_lstm_cell: (f4x24, f4x24, f4x6, f24, f24) -> f4x6, f4x6, f4x24
_weight_norm: (f4x6, f4x1, 0) -> f4x6
rms_norm: (f4x6, [6], f6) -> f4x6
_fused_rms_norm: (f4x6, [6], f6, 0.00001) -> f4x6, f4x1
add.Tensor sub.Tensor mul.Tensor div.Tensor: (f4x6, f4x6) -> f4x6
rsub.Scalar: (f4x6, 2.0) -> f4x6
div.Tensor_mode: (f4x6, f4x6, rounding_mode='floor') -> f4x6
pow.Tensor_Scalar: (f4x6, 2.5) -> f4x6
pow.Tensor_Tensor: (f4x6, f4x6) -> f4x6
maximum minimum atan2 xlogy hypot remainder fmod: (f4x6, f4x6) -> f4x6
addcmul addcdiv: (f4x6, f4x6, f4x6, value=0.5) -> f4x6
lerp.Scalar: (f4x6, f4x6, 0.3) -> f4x6
lerp.Tensor: (f4x6, f4x6, f4x6) -> f4x6
clamp clip: (f4x6, -1.0, 1.0) -> f4x6
clamp.Tensor: (f4x6, f4x6, f4x6) -> f4x6
clamp_min clamp_max: (f4x6, 0.5) -> f4x6
glu: (f4x6, 1) -> f4x3
prelu _prelu_kernel: (f4x6, f6) -> f4x6
where.self: (b4x6, f4x6, f4x6) -> f4x6
masked_fill.Scalar: (f4x6, b4x6, -1.0) -> f4x6
masked_fill.Tensor: (f4x6, b4x6, f) -> f4x6
eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor logical_and logical_or logical_xor: (i4x6, i4x6) -> b4x6
logical_not isnan isinf isfinite: (f4x6) -> b4x6
bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor floor_divide: (i4x6, i4x6) -> i4x6
bitwise_not: (i4x6) -> i4x6
native_dropout dropout alpha_dropout feature_dropout: (f4x6, 0.5, true) -> f4x6, b4x6
bernoulli.p: (f4x6, 0.5) -> f4x6
uniform normal_functional exponential: (f4x6) -> f4x6
arange: (6) -> i6
zeros ones empty rand randn: ([4, 6]) -> f4x6
full: ([4, 6], 1.5) -> f4x6
zeros_like ones_like empty_like rand_like randn_like: (f4x6) -> f4x6
full_like: (f4x6, 1.5) -> f4x6
new_zeros new_ones new_empty: (f4x6, [2, 3]) -> f2x3
new_full: (f4x6, [2, 3], 1.5) -> f2x3
randint.low: (0, 5, [4, 6]) -> i4x6
scalar_tensor: (1.5) -> f
linspace: (0.0, 1.0, 6) -> f6
eye: (4) -> f4x4
tril_indices triu_indices: (3, 3) -> i2x6
sum.dim_IntList mean.dim: (f4x6, [1]) -> f4
amax amin: (f4x6, [1]) -> f4
max min: (f4x6) -> f
max.dim min.dim: (f4x6, 1) -> f4, i4
argmax argmin: (f4x6, 1) -> i4
var.correction std.correction: (f4x6, [1], correction=1) -> f4
var_mean.correction: (f4x6, [1], correction=1) -> f4, f4
linalg_vector_norm: (f4x6, 2.0, [1]) -> f4
norm.ScalarOpt_dim: (f4x6, 1.0, [1]) -> f4
logsumexp: (f4x6, [1]) -> f4
prod.dim_int: (f4x6, 1) -> f4
softmax.int log_softmax.int: (f4x6, 1) -> f4x6
_softmax _log_softmax: (f4x6, 1, false) -> f4x6
cumsum cumprod: (f4x6, 1) -> f4x6
topk: (f4x6, 2) -> f4x2, i4x2
sort: (f4x6, 1, true) -> f4x6, i4x6
binary_cross_entropy binary_cross_entropy_with_logits: (f4x6, f4x6) -> f
cross_entropy_loss nll_loss nll_loss_nd: (f4x6, i4) -> f
nll_loss2d: (f2x3x4x4, i2x4x4) -> f
mse_loss smooth_l1_loss: (f4x6, f4x6) -> f
any.dim all.dim: (b4x6, 1) -> b4
nonzero: (b4) -> i4x1
count_nonzero: (f4x6) -> i
unique: (i6) -> i6
bincount: (i6) -> i6
max_pool1d: (f2x3x8, [2]) -> f2x3x4, i2x3x4
max_pool2d max_pool2d_with_indices: (f2x3x8x8, [2, 2]) -> f2x3x4x4, i2x3x4x4
max_pool3d max_pool3d_with_indices: (f2x3x4x4x4, [2, 2, 2]) -> f2x3x2x2x2, i2x3x2x2x2
avg_pool1d: (f2x3x8, [2]) -> f2x3x4
avg_pool2d: (f2x3x8x8, [2, 2]) -> f2x3x4x4
avg_pool3d: (f2x3x4x4x4, [2, 2, 2]) -> f2x3x2x2x2
adaptive_avg_pool1d: (f2x3x8, [3]) -> f2x3x3
adaptive_avg_pool2d _adaptive_avg_pool2d: (f2x3x8x8, [3, 3]) -> f2x3x3x3
adaptive_avg_pool3d: (f2x3x4x4x4, [3, 3, 3]) -> f2x3x3x3x3
adaptive_max_pool1d: (f2x3x8, [3]) -> f2x3x3, i2x3x3
adaptive_max_pool2d: (f2x3x8x8, [3, 3]) -> f2x3x3x3, i2x3x3x3
adaptive_max_pool3d: (f2x3x4x4x4, [3, 3, 3]) -> f2x3x3x3x3, i2x3x3x3x3
upsample_nearest1d.vec _upsample_nearest_exact1d.vec: (f2x3x4, none, [2.0]) -> f2x3x8
upsample_linear1d.vec: (f2x3x4, none, false, [2.0]) -> f2x3x8
upsample_nearest2d.vec _upsample_nearest_exact2d.vec: (f2x3x4x4, none, [2.0, 2.0]) -> f2x3x8x8
upsample_bilinear2d.vec upsample_bicubic2d.vec _upsample_bilinear2d_aa.vec _upsample_bicubic2d_aa.vec: (f2x3x4x4, none, false, [2.0, 2.0]) -> f2x3x8x8
upsample_nearest3d.vec _upsample_nearest_exact3d.vec: (f2x3x2x2x2, none, [2.0, 2.0, 2.0]) -> f2x3x4x4x4
upsample_trilinear3d.vec: (f2x3x2x2x2, none, false, [2.0, 2.0, 2.0]) -> f2x3x4x4x4
constant_pad_nd: (f2x3x8, [1, 2], 0.5) -> f2x3x11
pad: (f2x3x8, [1, 2], 'circular') -> f2x3x11
reflection_pad1d replication_pad1d: (f2x3x8, [1, 2]) -> f2x3x11
reflection_pad2d replication_pad2d: (f2x3x8x8, [1, 2, 1, 1]) -> f2x3x10x11
reflection_pad3d replication_pad3d: (f2x3x4x4x4, [1, 1, 1, 1, 1, 1]) -> f2x3x6x6x6
grid_sampler grid_sampler_2d: (f2x3x8x8, f2x4x5x2, 0, 0, false) -> f2x3x4x5
grid_sampler_3d: (f2x3x4x4x4, f2x3x3x3x3, 0, 0, false) -> f2x3x3x3x3
im2col: (f2x3x8x8, [2, 2], [1, 1], [0, 0], [2, 2]) -> f2x12x16
col2im: (f2x12x16, [8, 8], [2, 2], [1, 1], [0, 0], [2, 2]) -> f2x3x8x8
scatter.src scatter_add: (f4x6, 1, i4x2, f4x2) -> f4x6
scatter.value: (f4x6, 1, i4x2, 1.5) -> f4x6
scatter_reduce.two: (f4x6, 1, i4x2, f4x2, 'amax') -> f4x6
index_add: (f4x6, 1, i2, f4x2) -> f4x6
index_put _unsafe_index_put: (f4x6, [i2], f2x6) -> f4x6
embedding: (f9x6, i2x3) -> f2x3x6
embedding_bag _embedding_bag: (f9x6, i6, i2, false, 0) -> f2x6, i6, i2, i0
index.Tensor _unsafe_index.Tensor: (f4x6, [i3]) -> f3x6
index_select: (f4x6, 1, i3) -> f4x3
gather take_along_dim: (f4x6, 1, i4x2) -> f4x2
softsign relu relu6 tanh sigmoid silu gelu mish hardswish hardsigmoid leaky_relu elu celu selu softplus log_sigmoid hardshrink softshrink hardtanh: (f4x6) -> f4x6
threshold: (f4x6, 0.5, 0.0) -> f4x6
exp expm1 log log2 log10 log1p sqrt rsqrt reciprocal square sin cos tan atan sinh cosh erf abs neg floor ceil round sign sgn asin acos asinh acosh atanh erfc erfinv sinc exp2 frac trunc lgamma: (f4x6) -> f4x6
logit: (f4x6, 0.01) -> f4x6
deg2rad rad2deg: (f4x6) -> f4x6
nan_to_num: (f4x6) -> f4x6
`

// A Sample is a call of an operator with the program of its forward and backward.
type Sample struct {
	Op      string // its name without overload
	Call    string // as written in the table
	Program *program.Program
	Forward *program.Program // the part that ran when the call returned Outs
	Outs    []*aten.Tensor
}

// All runs the table's calls.
func All() ([]Sample, error) { return Of("") }

// Of runs the table's calls of one operator, given by its name without overload; "" means all.
func Of(op string) ([]Sample, error) {
	var out []Sample
	for _, line := range strings.Split(strings.TrimSpace(Table), "\n") {
		names, call, ok := strings.Cut(line, ": ")
		if !ok {
			return nil, fmt.Errorf("no call in %q", line)
		}
		for _, name := range strings.Fields(names) {
			if base, _, _ := strings.Cut(name, "."); op != "" && base != op {
				continue
			}
			s, err := run(name, call)
			if err != nil {
				return nil, err
			}
			out = append(out, *s)
		}
	}
	return out, nil
}

// run builds one call, forward and backward.
func run(name, call string) (*Sample, error) {
	args, results, _ := strings.Cut(call, " -> ")
	e := aten.New(aten.Config{SMs: 132, ThreadsPerSM: 2048, Major: 9, TF32: true, Attention: []string{"flash", "efficient", "math", "cudnn"}})
	e.P.Train = true
	e.SetPhase(program.Forward)
	e.SetGrad(true)
	p := &parser{e: e, text: args}
	op, over, _ := strings.Cut(name, ".")
	if over == "" {
		over = "default"
	}
	c := &aten.Call{Op: op, Over: over, Name: op, Args: p.list(')')}
	for _, t := range strings.Split(results, ", ") {
		d, shape := tensorType(t)
		c.Shapes, c.Types = append(c.Shapes, shape), append(c.Types, d)
	}
	s := &Sample{Op: op, Call: name + call, Program: e.P}
	outs, err := e.Run(c)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Call, err)
	}
	forward := *e.P
	forward.Saved = slices.Clone(e.P.Saved)
	s.Forward, s.Outs = &forward, outs
	if i := slices.IndexFunc(outs, (*aten.Tensor).RequiresGrad); i >= 0 {
		err = backward(e, outs[i])
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Call, err)
	}
	return s, nil
}

// backward runs the engine from a result.
func backward(e *aten.Eager, root *aten.Tensor) (err error) {
	defer aten.Recover(&err)
	e.SetPhase(program.Backward)
	e.Backward(root, e.OnesLike(root))
	return nil
}

// A parser reads the arguments of a call.
type parser struct {
	e    *aten.Eager
	text string
	at   int
}

// list reads arguments up to a bracket; the opening one comes first.
func (p *parser) list(closing byte) (out []aten.Arg) {
	p.at++
	for p.text[p.at] != closing {
		out = append(out, p.arg())
		if p.text[p.at] == ',' {
			p.at += 2
		}
	}
	p.at++
	return out
}

// arg reads one argument, by name or not.
func (p *parser) arg() aten.Arg {
	if p.text[p.at] == '[' {
		return aten.Arg{Kind: graph.ArgList, List: p.list(']')}
	}
	end := p.at
	for !strings.ContainsRune(",])", rune(p.text[end])) {
		end++
	}
	word := p.text[p.at:end]
	if word[0] == '\'' { // a string may have commas
		end = p.at + 2 + strings.IndexByte(p.text[p.at+1:], '\'')
		word = p.text[p.at:end]
	}
	p.at = end
	name, value, named := strings.Cut(word, "=")
	if !named {
		name, value = "", word
	}
	a := p.value(value)
	a.Name = name
	return a
}

func (p *parser) value(w string) aten.Arg {
	if n, err := strconv.ParseInt(w, 10, 64); err == nil {
		return aten.Arg{Kind: graph.ArgInt, Int: n}
	}
	if f, err := strconv.ParseFloat(w, 64); err == nil {
		return aten.Arg{Kind: graph.ArgFloat, F: f}
	}
	switch {
	case w == "none":
		return aten.Arg{Kind: graph.ArgNone}
	case w == "true" || w == "false":
		return aten.Arg{Kind: graph.ArgBool, Int: int64(strings.Index("ft", w[:1]))}
	case w[0] == '\'':
		return aten.Arg{Kind: graph.ArgString, S: strings.Trim(w, "'")}
	}
	d, shape := tensorType(w)
	t := p.e.Resident(fmt.Sprint("operand", p.at), "", program.Parameters, d, shape, true)
	return aten.Arg{Kind: graph.ArgValue, T: t}
}

// tensorType reads a letter and a shape.
func tensorType(w string) (graph.DType, []int64) {
	d := map[byte]graph.DType{'f': graph.Float32, 'i': graph.Int64, 'b': graph.Bool}[w[0]]
	shape := []int64{}
	for _, n := range strings.FieldsFunc(w[1:], func(c rune) bool { return c == 'x' }) {
		v, err := strconv.ParseInt(n, 10, 64)
		if err != nil {
			panic(fmt.Sprintf("no tensor: %q", w))
		}
		shape = append(shape, v)
	}
	return d, shape
}
