package aten

import (
	"math"
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// An attention is a scaled_dot_product_attention call.
type attention struct {
	q, k, v, mask *Tensor
	dropout       float64
	causal, gqa   bool
	scale         float64 // of the products; 1/sqrt(head dim) unless given
}

// An AttentionKernel is one implementation of scaled_dot_product_attention.
type AttentionKernel struct {
	Name string
	// fits reports whether the kernel takes the call (sdp_utils.cpp).
	fits func(e *Eager, a *attention) bool
	run  func(e *Eager, a *attention) *Tensor
}

// AttentionKernels lists the implementations. The first is tried first on the
// devices where the runtime prefers cuDNN; the last takes every call.
func AttentionKernels() []AttentionKernel {
	return []AttentionKernel{
		{"cudnn", cudnnAttentionFits, runCudnnAttention},
		{"flash", flashAttentionFits, runFlashAttention},
		{"efficient", efficientAttentionFits, runEfficientAttention},
		{"math", func(*Eager, *attention) bool { return true }, runMathAttention},
	}
}

func runAttention(e *Eager, c *Call) []*Tensor {
	a := &attention{q: c.need(0, "query"), k: c.need(1, "key"), v: c.need(2, "value"), mask: c.tensor(3, "attn_mask"),
		dropout: c.float(4, "dropout_p", 0), causal: c.bool(5, "is_causal", false), gqa: c.bool(-1, "enable_gqa", false)}
	if a.q.dim() != a.k.dim() || a.q.dim() < 3 {
		fail("query %v and key %v", a.q.Shape, a.k.Shape)
	}
	a.scale = c.float(-1, "scale", 1/math.Sqrt(float64(a.q.Shape[a.q.dim()-1])))
	if a.q.dim() == 3 {
		b := *a
		b.q, b.k, b.v = unsqueeze(e, a.q, 0), unsqueeze(e, a.k, 0), unsqueeze(e, a.v, 0)
		return []*Tensor{squeeze(e, runMathAttention(e, &b), 0)} // the fused kernels want four dims (check_tensor_shapes)
	}
	return []*Tensor{attend(e, a)}
}

// attend runs the first kernel, in the runtime's order, that accepts the call.
func attend(e *Eager, a *attention) *Tensor {
	kernels := AttentionKernels()
	for _, name := range e.Attention {
		for _, k := range kernels {
			if k.Name == name && (k.fits(e, a) || len(e.Attention) == 1) {
				if e.Ring.Size > 1 {
					return attendRing(e, a, name)
				}
				return k.run(e, a)
			}
		}
	}
	if e.Ring.Size > 1 {
		e.Ring.check(a, "math")
	}
	return runMathAttention(e, a)
}

// sameHeads reports whether a fused kernel accepts the numbers of heads: all
// equal, unless grouped heads are asked for
// (check_batch_size_and_num_heads_dense).
func sameHeads(a *attention) bool {
	return a.q.Shape[0] == a.k.Shape[0] && a.k.Shape[0] == a.v.Shape[0] && (a.gqa || a.q.Shape[1] == a.k.Shape[1] && a.k.Shape[1] == a.v.Shape[1])
}

// lastDimDense reports whether the last dim of each operand has stride 1, as every
// fused kernel requires; with single set, a head dim of size 1 is exempt
// (check_last_dim_stride_equals_1_dense). Masks are not checked: one that an
// optimizer of files folded does not have the strides of the code's.
func lastDimDense(a *attention, single bool) bool {
	dense := func(t *Tensor) bool { return t.Strides[t.dim()-1] == 1 }
	return dense(a.q) && dense(a.k) && dense(a.v) || single && headDim(a) == 1
}

func half(t *Tensor) bool { return t.DType == graph.Float16 || t.DType == graph.BFloat16 }

func headDim(a *attention) int64 { return a.q.Shape[3] }

func cudnnAttentionFits(e *Eager, a *attention) bool {
	return e.Major >= 8 && sameHeads(a) && lastDimDense(a, true) && half(a.q) && headDim(a)%8 == 0 && headDim(a) <= 256 && a.v.Shape[3] <= 256 && a.k.Shape[2] > 1 &&
		(a.q.Shape[2] > 1 || a.dropout == 0) && !a.mask.RequiresGrad()
}

func flashAttentionFits(e *Eager, a *attention) bool {
	return e.Major >= 8 && sameHeads(a) && lastDimDense(a, true) && half(a.q) && headDim(a) <= 256 && a.mask == nil && a.q.Shape[3] == a.v.Shape[3] &&
		(!a.causal || a.q.Shape[2] == a.k.Shape[2]) // check_flash_causal_non_square_seqlens
}

func efficientAttentionFits(e *Eager, a *attention) bool {
	if a.q.Shape[1] != a.k.Shape[1] || a.k.Shape[1] != a.v.Shape[1] || !sameHeads(a) || !lastDimDense(a, false) || e.Major < 5 || a.q.DType == graph.BFloat16 && e.Major < 8 {
		return false
	}
	return half(a.q) && headDim(a)%8 == 0 || a.q.DType == graph.Float32 && headDim(a)%4 == 0
}

// recorded reports whether backward will need the log-sum-exp: otherwise no kernel
// but flash computes it (scaled_dot_product_attention's compute_logsumexp).
func recorded(e *Eager, a *attention) bool {
	return e.grad && (a.q.RequiresGrad() || a.k.RequiresGrad() || a.v.RequiresGrad())
}

// dims returns batch, heads, query length, key length and head dim.
func (a *attention) dims() (b, h, m, n, d int64) {
	return a.q.Shape[0], a.q.Shape[1], a.q.Shape[2], a.k.Shape[2], a.q.Shape[3]
}

func (a *attention) flops() int64 {
	b, h, m, n, d := a.dims()
	f := 2 * b * h * m * n * (d + a.v.Shape[3])
	if a.causal {
		f /= 2
	}
	return f
}

// rowsFirst returns strides of [B, H, M, D] stored as [B, M, H, D].
func rowsFirst(shape []int64) []int64 {
	h, m, d := shape[1], shape[2], shape[3]
	return []int64{h * m * d, d, h * d, 1}
}

func (a *attention) outShape() []int64 {
	return []int64{a.q.Shape[0], a.q.Shape[1], a.q.Shape[2], a.v.Shape[3]}
}

// attention sets the numbers that the fused kernels take.
func (k *kernel) attention(a *attention) *kernel {
	causal := 0.0
	if a.causal {
		causal = 1
	}
	return k.scalars(a.scale, causal, a.dropout).random()
}

// repeats gives a backward node the numbers and the random stream of its
// forward.
func (k *kernel) repeats(at *program.Attrs) *kernel {
	a := k.attrs()
	a.Scalars, a.Stream = at.Scalars, at.Stream
	return k
}

// bias turns a bool mask into an additive one (convert_boolean_attn_mask).
func bias(e *Eager, a *attention) *Tensor {
	if a.mask == nil || a.mask.DType != graph.Bool {
		return a.mask
	}
	k := e.begin("scaled_dot_product_attention", a.mask).does("mask_bias")
	x := k.temp(4, program.Temporaries)
	y := k.temp(4, program.Temporaries)
	o := k.alloc(a.mask.Shape, nil, a.q.DType)
	k.free(y, x)
	k.end()
	return o
}

// runEfficientAttention is the memory-efficient kernel: it saves the
// operands, the result and the log-sum-exp of every row, padded to 32
// (aten/src/ATen/native/transformers/cuda/attention.cu).
func runEfficientAttention(e *Eager, a *attention) *Tensor {
	b, h, m, _, _ := a.dims()
	mask := maskLike(e, a)
	k := e.begin("_scaled_dot_product_efficient_attention", a.q, a.k, a.v, mask).attention(a)
	at := k.n.Attrs
	o := k.alloc(a.outShape(), rowsFirst(a.outShape()), a.q.DType)
	var lse *Tensor
	if recorded(e, a) {
		lse = k.alloc([]int64{b, h, efficientRows(m)}, nil, graph.Float32)
	}
	k.setResults(o, lse)
	k.efficientForward(a)
	k.products(program.Fused, a.flops()).end()
	e.record("ScaledDotProductEfficientAttentionBackward0", []*Tensor{o}, []*Tensor{a.q, a.k, a.v, mask},
		[]*Tensor{mask, a.k, a.q, a.v, lse, o}, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
			k := e.begin("_scaled_dot_product_efficient_attention_backward", append(slices.Clone(g), s...)...).repeats(at)
			rows := swap12(e, g[0])
			copied := program.None
			if !rows.contiguous() {
				copied = k.temp(g[0].Bytes(), program.Temporaries)
			}
			outs := k.likes(s[2], s[1], s[3])
			if need[3] {
				outs = append(outs, k.maskGrad(s[0]))
			}
			k.efficientBackward(a)
			k.free(copied)
			k.products(program.Fused, 5*a.flops()/2).end()
			return outs
		})
	return o
}

// efficientRows is the length of a log-sum-exp of so many queries.
func efficientRows(m int64) int64 { return ceilDiv(m, 32) * 32 }

// efficientForward is what the kernel takes beside its results: rows longer than a tile
// are summed in float32.
func (k *kernel) efficientForward(a *attention) {
	if half(a.q) && a.v.Shape[3] > 128 {
		k.scratch(graph.Float32.Bytes(numel(a.outShape())), program.Temporaries)
	}
}

// efficientBackward is what the backward kernel takes beside the gradients.
func (k *kernel) efficientBackward(a *attention) {
	b, h, m, n, d := a.dims()
	delta := k.delta(a)
	k.free(delta, k.temp(efficientWorkspace(b*h, m, n, max(d, a.v.Shape[3]), a.q.DType), program.Workspace))
}

// maskLike expands the mask to the products' shape: its rows are padded to a
// multiple of 8 elements and shown without the padding (attention.cpp,
// preprocess_mask).
func maskLike(e *Eager, a *attention) *Tensor {
	mask := bias(e, a)
	if mask == nil || mask.dim() == 0 {
		return mask
	}
	if d := mask.dim() - 1; mask.Shape[d]%8 != 0 {
		mask = sliceDim(e, padLast(e, mask, 8), d, 0, mask.Shape[d], 1)
	}
	b, h, m, n, _ := a.dims()
	return expand(e, mask, []int64{b, h, m, n})
}

// maskGrad is the gradient of an additive mask, with rows of a multiple of 16
// elements.
func (k *kernel) maskGrad(mask *Tensor) *Tensor {
	wide := slices.Clone(mask.Shape)
	wide[3] = ceilDiv(wide[3], 16) * 16
	g := k.alloc(wide, nil, mask.DType)
	g.Shape = mask.Shape
	k.n.Out[len(k.n.Out)-1] = g.View
	return g
}

// delta is the sum of each row's gradient times its result. For half types the kernels of compute
// capability 8 and later compute it themselves; otherwise it takes a product, a sum and, unless the
// sum already has the order of heads, a copy.
func (k *kernel) delta(a *attention) program.StorageID {
	b, h, m, _, _ := a.dims()
	if half(a.q) && k.e.Major >= 8 {
		return k.temp(4*b*h*m, program.Temporaries)
	}
	prod := k.temp(graph.Float32.Bytes(numel(a.outShape())), program.Temporaries)
	sum := k.temp(4*b*h*m, program.Temporaries)
	if h == 1 || m == 1 {
		k.free(prod)
		return sum
	}
	delta := k.temp(4*b*h*m, program.Temporaries)
	k.free(sum, prod)
	return delta
}

// padLast pads the last dim to a multiple of to.
func padLast(e *Eager, t *Tensor, to int64) *Tensor {
	d := t.dim() - 1
	wide := slices.Clone(t.Shape)
	wide[d] = ceilDiv(t.Shape[d], to) * to
	k := e.begin("constant_pad_nd", t).scalars(0)
	k.attrs().Window = &program.Window{Strides: contiguousStrides(wide)}
	o := k.alloc(wide, nil, t.DType)
	k.end()
	in := t.Shape
	e.record("ConstantPadNdBackward0", []*Tensor{o}, []*Tensor{t}, nil, func(e *Eager, g, _ []*Tensor, _ []bool) []*Tensor {
		k := e.begin("constant_pad_nd", g[0]).does("copy")
		k.n.In[0] = e.view(g[0], in, g[0].Strides, 0).View // without the padding
		k.alloc(in, nil, g[0].DType)
		return []*Tensor{k.end()}
	})
	return o
}

// efficientWorkspace is the backward kernel's accumulator of query gradients: a
// float tile with 16 bytes of locks for every block of queries, and for wide
// heads of half types the sums of key and value gradients (kernel_backward.h,
// GradQTempStorage; the tiles are those of the kernels for compute capability 8
// and above that cutlassB.h lists).
func efficientWorkspace(heads, m, n, d int64, t graph.DType) int64 {
	rows, cols, sums := int64(128), int64(64), int64(0)
	switch wide := t != graph.Float32; {
	case d <= 64:
		rows = 64
	case wide && d <= 128:
		cols = 128
	case wide:
		sums = ceilDiv(n, 64) * 64 * ceilDiv(d, 128) * 128 * 4 * 2
	}
	return heads * (ceilDiv(m, rows)*ceilDiv(d, cols)*(rows*cols*4+16) + sums)
}

// likes allocates gradients of the given tensors, laid out [B, M, H, D].
func (k *kernel) likes(ts ...*Tensor) []*Tensor {
	outs := make([]*Tensor, len(ts))
	for i, t := range ts {
		outs[i] = k.alloc(t.Shape, rowsFirst(t.Shape), t.DType)
	}
	return outs
}

func swap12(e *Eager, t *Tensor) *Tensor {
	return &Tensor{View: program.View{Storage: t.Storage, DType: t.DType,
		Shape:   []int64{t.Shape[0], t.Shape[2], t.Shape[1], t.Shape[3]},
		Strides: []int64{t.Strides[0], t.Strides[2], t.Strides[1], t.Strides[3]}}}
}

// runCudnnAttention is cuDNN's fused kernel: seed and offset of the random
// numbers, the result, the log-sum-exp. Its backward takes a float accumulator
// of the query gradient, one float a row and, for grouped heads, the gradients
// of all heads' keys and values (as measured).
func runCudnnAttention(e *Eager, a *attention) *Tensor {
	b, h, m, _, _ := a.dims()
	mask := bias(e, a)
	k := e.begin("_scaled_dot_product_cudnn_attention", a.q, a.k, a.v, mask).attention(a)
	at := k.n.Attrs
	seed, offset := k.alloc(nil, nil, graph.Int64), k.alloc(nil, nil, graph.Int64)
	o := k.alloc(a.outShape(), iteratorStrides(a.outShape(), layoutOf(a.q)), a.q.DType)
	var lse *Tensor
	if recorded(e, a) {
		lse = k.alloc([]int64{b, h, m, 1}, nil, graph.Float32)
	}
	k.setResults(seed, offset, o, lse)
	k.cudnnForward(a)
	k.products(program.Fused, a.flops()).end()
	e.record("ScaledDotProductCudnnAttentionBackward0", []*Tensor{o}, []*Tensor{a.q, a.k, a.v},
		[]*Tensor{mask, a.k, a.q, a.v, lse, o, offset, seed}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
			k := e.begin("_scaled_dot_product_cudnn_attention_backward", append(slices.Clone(g), s...)...).repeats(at)
			var outs []*Tensor
			for _, t := range []*Tensor{s[2], s[1], s[3]} {
				outs = append(outs, k.alloc(t.Shape, iteratorStrides(t.Shape, layoutOf(t)), t.DType))
			}
			copied := program.None
			if st := g[0].Strides; st[len(st)-1] != 1 { // permute_to_matching_layout
				copied = k.temp(o.Bytes(), program.Temporaries)
			}
			k.cudnnBackward(a)
			k.free(copied)
			k.products(program.Fused, 5*a.flops()/2).end()
			return outs
		})
	return o
}

// cudnnForward is what the kernel takes beside its results.
func (k *kernel) cudnnForward(a *attention) {
	if a.q.Shape[2] > 1 {
		k.scratch(256, program.Workspace)
	}
}

// cudnnBackward is what the backward kernel takes beside the gradients.
func (k *kernel) cudnnBackward(a *attention) {
	b, h, m, n, d := a.dims()
	wide := int64(0)
	if a.k.Shape[1] != h {
		wide = a.k.DType.Bytes(b * h * n * (d + a.v.Shape[3]))
	}
	k.scratch(4*b*h*m*d+4*b*h*m+wide+256, program.Workspace)
}

// layoutOf returns t with strides that only order its dims: cuDNN's results
// take the order of the operand they belong to.
func layoutOf(t *Tensor) *Tensor {
	d := *t
	d.Strides = t.denseStrides()
	return &d
}

// flashDim returns the head dim of the flash kernel's accumulators.
func flashDim(d int64) int64 {
	if d > 128 {
		return ceilDiv(d, 64) * 64
	}
	return ceilDiv(d, 32) * 32
}

// flashSplits returns the number of parts into which the flash kernel splits the
// keys, so that few queries fill the card (num_splits_heuristic in
// aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp).
func flashSplits(e *Eager, a *attention) int64 {
	b, h, m, n, d := a.dims()
	block := int64(64)
	switch {
	case d <= 64:
		block = 256
	case d <= 128:
		block = 128
	}
	work, keys, units := b*h*ceilDiv(m, 64), ceilDiv(n, block), 2*int64(e.SMs)
	if units == 0 || float64(work) >= 0.8*float64(units) {
		return 1
	}
	efficiency := func(splits int64) float64 {
		if splits > 1 && ceilDiv(keys, splits) == ceilDiv(keys, splits-1) {
			return 0 // no fewer blocks a part than with one part less
		}
		waves := float64(work*splits) / float64(units)
		return waves / math.Ceil(waves)
	}
	best, most := 0.0, min(128, units, keys)
	for s := int64(1); s <= most; s++ {
		best = max(best, efficiency(s))
	}
	for s := int64(1); s <= most; s++ {
		if f := efficiency(s); f > 0 && f >= 0.85*best {
			return s
		}
	}
	return 1
}

// runFlashAttention is the flash kernel: the result, the log-sum-exp and the
// random state; backward takes the row sums and a float query gradient.
func runFlashAttention(e *Eager, a *attention) *Tensor {
	b, h, m, _, d := a.dims()
	if d%8 != 0 { // heads are padded to a multiple of 8 (attention.cpp, pad_last_dim)
		wide := *a
		wide.q, wide.k, wide.v = padLast(e, a.q, 8), padLast(e, a.k, 8), padLast(e, a.v, 8)
		return sliceDim(e, runFlashAttention(e, &wide), 3, 0, d, 1)
	}
	k := e.begin("_scaled_dot_product_flash_attention", a.q, a.k, a.v).attention(a)
	at := k.n.Attrs
	o := k.alloc(a.outShape(), iteratorStrides(a.outShape(), layoutOf(a.q)), a.q.DType)
	lse := k.alloc([]int64{b, h, m}, nil, graph.Float32)
	rng := k.alloc([]int64{2}, nil, graph.Uint64)
	unused := k.alloc(nil, nil, graph.Uint64)
	k.flashForward(a)
	k.products(program.Fused, a.flops()).end()
	e.record("ScaledDotProductFlashAttentionBackward0", []*Tensor{o}, []*Tensor{a.q, a.k, a.v},
		[]*Tensor{a.k, a.q, a.v, lse, o, rng, unused}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
			k := e.begin("_scaled_dot_product_flash_attention_backward", append(slices.Clone(g), s...)...).repeats(at)
			var copies []program.StorageID // in rows of tokens
			for _, t := range []*Tensor{g[0], o} {
				if !swap12(e, t).contiguous() {
					copies = append(copies, k.temp(t.Bytes(), program.Temporaries))
				}
			}
			var outs []*Tensor
			for _, t := range []*Tensor{s[1], s[0], s[2]} {
				outs = append(outs, k.alloc(t.Shape, iteratorStrides(t.Shape, layoutOf(t)), t.DType))
			}
			k.flashBackward(a)
			slices.Reverse(copies)
			k.free(copies...)
			k.products(program.Fused, 5*a.flops()/2).end()
			return outs
		})
	return o
}

// flashForward is what the kernel takes beside its results.
func (k *kernel) flashForward(a *attention) {
	b, h, m, _, d := a.dims()
	if a.dropout > 0 {
		k.scratch(16, program.Temporaries) // seed and offset
	} else if n := flashSplits(k.e, a); n > 1 { // log-sum-exps and results of each part of the keys
		sums := k.temp(n*4*b*h*m, program.Temporaries)
		parts := k.temp(4*n*b*h*m*flashDim(d), program.Temporaries)
		k.free(sums, parts)
	}
}

// flashBackward is what the backward kernel takes beside the gradients and copies of its
// operands.
func (k *kernel) flashBackward(a *attention) {
	b, h, m, _, d := a.dims()
	rows := 4 * b * h * ceilDiv(m, 128) * 128
	sums := k.temp(rows, program.Temporaries)
	acc := k.temp(rows*flashDim(d), program.Temporaries)
	var wide []program.StorageID
	if a.k.Shape[1] != h { // grouped heads: gradients of the repeated keys and values first
		for range 2 {
			wide = append(wide, k.temp(a.k.Bytes()*h/max(a.k.Shape[1], 1), program.Temporaries))
		}
	}
	k.free(wide...)
	k.free(acc, sums)
}

// scaled multiplies by a Python number: nothing is saved.
func scaled(e *Eager, t *Tensor, by float64) *Tensor {
	o := times(e, t, by)
	e.record("MulBackward1", []*Tensor{o}, []*Tensor{t}, nil, func(e *Eager, g, _ []*Tensor, _ []bool) []*Tensor {
		return []*Tensor{times(e, g[0], by)}
	})
	return o
}

// times appends a product with a number.
func times(e *Eager, t *Tensor, by float64) *Tensor {
	return e.unary("mul", t.DType, t, number(graph.Undefined, by))
}

// repeatHeads brings grouped keys or values to h heads (repeat_interleave).
func repeatHeads(e *Eager, t *Tensor, h int64) *Tensor {
	if t.Shape[1] == h || t.Shape[1] == 0 {
		return t
	}
	x := unsqueeze(e, t, 2)
	shape := []int64{t.Shape[0], t.Shape[1], h / t.Shape[1], t.Shape[2], t.Shape[3]}
	x = expand(e, x, shape)
	x = clone(e, "scaled_dot_product_attention", x, contiguousStrides(shape))
	return reshape(e, "scaled_dot_product_attention", x, []int64{t.Shape[0], h, t.Shape[2], t.Shape[3]})
}

// runMathAttention is the composition of products and a softmax
// (_scaled_dot_product_attention_math).
func runMathAttention(e *Eager, a *attention) *Tensor {
	const op = "scaled_dot_product_attention"
	d := a.q.DType
	mask := bias(e, a)
	if half(a.q) { // half types are computed in float32
		wide := *a
		wide.q, wide.k, wide.v = e.toDType("to", a.q, graph.Float32), e.toDType("to", a.k, graph.Float32), e.toDType("to", a.v, graph.Float32)
		a = &wide
	}
	wq := a.q
	h := a.q.Shape[1]
	root := math.Sqrt(a.scale)
	q := scaled(e, a.q, root)
	if a.causal {
		mask = causalBias(e, a)
	}
	kk, vv := repeatHeads(e, a.k, h), repeatHeads(e, a.v, h)
	ks := scaled(e, kk, root)
	attn := matmul(e, op, q, transpose(e, ks, 2, 3))
	if mask != nil {
		attn = addInto(e, attn, mask)
	}
	p := safeSoftmax(e, attn)
	if a.dropout > 0 {
		p = dropout(e, p, a.dropout)
	}
	var second *Tensor // the probabilities, in the operands' type
	if o := p; o.DType != d {
		second = e.toDType("to", p, d)
	}
	o := matmul(e, op, p, vv)
	if o.DType != d {
		o = e.toDType("to", o, d)
	}
	if a.v.DType != d {
		e.hold(a.v)
	}
	e.hold(wq, kk, q, mask, p, second) // the math kernel returns the probabilities, too
	return o
}

// causalBias builds the additive lower-triangular mask of is_causal.
func causalBias(e *Eager, a *attention) *Tensor {
	_, _, m, n, _ := a.dims()
	k := e.begin("scaled_dot_product_attention").does("causal_bias")
	ones := k.temp(m*n, program.Temporaries)
	tril := k.temp(m*n, program.Temporaries)
	k.free(ones)
	x, y := k.temp(4, program.Temporaries), k.temp(4, program.Temporaries)
	o := k.alloc([]int64{m, n}, nil, a.q.DType)
	k.free(y, x, tril)
	k.end()
	return o
}

// addInto adds b to a result; the gradient passes through.
func addInto(e *Eager, a, b *Tensor) *Tensor {
	o := addTo(e, a, b)
	e.record("AddBackward0", []*Tensor{o}, []*Tensor{a, b}, nil, func(_ *Eager, g, _ []*Tensor, need []bool) []*Tensor {
		outs := []*Tensor{g[0], nil}
		if need[1] {
			outs[1] = g[0]
		}
		return outs
	})
	return o
}

// safeSoftmax is _safe_softmax: rows that are all -inf become zeros, which
// takes a bool tensor of the input's size.
func safeSoftmax(e *Eager, x *Tensor) *Tensor {
	o := softmax(e, x, false, "_safe_softmax", x.dim()-1)
	k := e.begin("_safe_softmax", x, o).does("empty_rows")
	inf := k.temp(x.Numel(), program.Temporaries)
	all := k.temp(x.Numel()/max(x.Shape[x.dim()-1], 1), program.Temporaries)
	zero := k.temp(4, program.Temporaries)
	k.free(zero, all, inf)
	k.out(o)
	k.end()
	return o
}

// dropout makes a mask and scales (native_dropout).
func dropout(e *Eager, x *Tensor, p float64) *Tensor {
	c := &Call{Op: "native_dropout", Args: []Arg{{Kind: graph.ArgValue, T: x}, {Kind: graph.ArgFloat, F: p}, {Kind: graph.ArgBool, Int: 1}}}
	return runDropout(e, c)[0]
}
