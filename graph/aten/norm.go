package aten

import (
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// statistics is the type of mean and inverse deviation: float32 for half types.
func statistics(d graph.DType) graph.DType {
	if d == graph.Float16 || d == graph.BFloat16 {
		return graph.Float32
	}
	return d
}

// runLayerNorm saves its input and the statistics of every row.
func runLayerNorm(e *Eager, c *Call) []*Tensor {
	x, w, b := c.need(0, "input"), c.tensor(2, "weight"), c.tensor(3, "bias")
	n := len(c.ints(1, "normalized_shape", 0, 0))
	if n == 0 || n > x.dim() {
		fail("normalized_shape has %d dims, the input %v", n, x.Shape)
	}
	eps := c.float(4, "eps", 1e-5)
	var normed []int
	for i := x.dim() - n; i < x.dim(); i++ {
		normed = append(normed, i)
	}
	src := e.operand("native_layer_norm", x, func(t *Tensor) *Tensor { return e.contig(c.Op, t) })
	k := e.begin("native_layer_norm", src, w, b).scalars(eps).dims(normed...)
	at := k.n.Attrs
	o := k.alloc(x.Shape, nil, x.DType)
	rows := slices.Clone(x.Shape)
	for i := x.dim() - n; i < x.dim(); i++ {
		rows[i] = 1
	}
	mean := k.alloc(rows, nil, statistics(x.DType))
	rstd := k.alloc(rows, nil, statistics(x.DType))
	k.flops(8 * x.Numel()).end()
	e.record("NativeLayerNormBackward0", []*Tensor{o}, []*Tensor{x, w, b}, []*Tensor{b, x, w, mean, rstd}, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		return affineNormBackward(e, "native_layer_norm_backward", at, g[0], s[1], s[2], s[0], s[3:], need)
	})
	return []*Tensor{o, mean, rstd}
}

// affineNormBackward is the backward of a normalisation: the input's gradient and,
// where needed, those of weight and bias; operands that are not contiguous
// are copied first.
func affineNormBackward(e *Eager, op string, at *program.Attrs, g, x, w, b *Tensor, stats []*Tensor, need []bool) []*Tensor {
	k := e.begin(op, append([]*Tensor{g, x, w}, stats...)...).scalars(at.Scalars...)
	k.n.Attrs.Dims = at.Dims
	var temps []program.StorageID
	contiguous := func(t *Tensor) {
		if !t.contiguous() {
			temps = append(temps, k.temp(t.Bytes(), program.Temporaries))
		}
	}
	group := op == "native_group_norm_backward"
	contiguous(x)
	if group {
		contiguous(g)
	}
	outs := make([]*Tensor, 3)
	if need[0] {
		outs[0] = k.alloc(x.Shape, nil, x.DType)
	}
	for i, p := range []*Tensor{w, b} {
		if p != nil && len(need) > i+1 && need[i+1] {
			outs[i+1] = k.alloc(p.Shape, nil, p.DType)
		}
	}
	if !group {
		contiguous(g)
	} else {
		k.groupSums(x, w, stats[0].Numel(), need[0])
	}
	slices.Reverse(temps)
	k.free(temps...)
	k.setResults(outs...)
	k.flops(12 * x.Numel()).end()
	return outs
}

// groupSums adds the scratch of group normalisation's backward: two sums for
// every channel and, for the input's gradient, two coefficients for every group
// and a factor for every channel if there is a weight and channels have more
// than one element (GroupNormBackwardKernelImplInternal in
// aten/src/ATen/native/cuda/group_norm_kernel.cu).
func (k *kernel) groupSums(x, w *Tensor, groups int64, input bool) {
	d := statistics(x.DType)
	channel, group := d.Bytes(x.Shape[0]*x.Shape[1]), d.Bytes(groups)
	ds, db := k.temp(channel, program.Temporaries), k.temp(channel, program.Temporaries)
	if !input {
		group = 0
	}
	c2, c3 := k.temp(group, program.Temporaries), k.temp(group, program.Temporaries)
	if w == nil || !input || x.Numel() == x.Shape[0]*x.Shape[1] {
		channel = 0
	}
	c1 := k.temp(channel, program.Temporaries)
	k.free(c3, c2, c1, db, ds)
}

// runBatchNorm is batch normalisation: it saves its input and, in training, the
// batch statistics. In evaluation cuDNN's saves only its input.
func runBatchNorm(e *Eager, c *Call) []*Tensor {
	x, w, b := c.need(0, "input"), c.tensor(1, "weight"), c.tensor(2, "bias")
	mean, variance := c.tensor(3, "running_mean"), c.tensor(4, "running_var")
	train, at := c.bool(5, "training", true), 6
	switch {
	case c.Op == "_native_batch_norm_legit_no_training":
		train, at = false, 5
	case c.Over == "no_stats":
		mean, variance, train, at = nil, nil, c.bool(3, "training", true), 4
	}
	if !e.P.Train && mean != nil {
		train = false // an inference runs the model in evaluation mode, however it was exported
	}
	numbers := []float64{c.float(at+1, "eps", 1e-5), c.float(at, "momentum", 0.1), 0}
	if train {
		numbers[2] = 1
	}
	if !cudnnNormalizes(x, w, b, mean, variance, train) {
		return nativeBatchNorm(e, x, w, b, mean, variance, numbers)
	}
	last := preferLast(x)
	src := inOrder(e, x, last)
	k := e.begin("batch_norm", src, w, b, mean, variance).scalars(numbers...)
	o := k.alloc(x.Shape, src.denseStrides(), x.DType)
	ch := []int64{x.Shape[1]}
	var stats []*Tensor
	if train {
		stats = []*Tensor{k.alloc(ch, nil, statistics(x.DType)), k.alloc(ch, nil, statistics(x.DType))}
	}
	k.flops(8 * x.Numel()).end()
	if src != x {
		e.hold(src)
	}
	saved := append([]*Tensor{src, w, mean, variance}, stats...)
	name, op := "CudnnBatchNormBackward0", "cudnn_batch_norm_backward"
	if !train {
		name, op = "NativeBatchNormBackward0", "native_batch_norm_backward"
	}
	e.record(name, []*Tensor{o}, []*Tensor{src, w, b}, saved, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		k := e.begin(op, append(slices.Clone(g), s...)...).does("batch_norm_backward").scalars(numbers...)
		if !train {
			return k.evalBackward(g[0], s[0], w, b, mean, need)
		}
		outs := make([]*Tensor, 3)
		temp := program.None
		if !inFormat(g[0], last) {
			temp = k.temp(g[0].Bytes(), program.Temporaries)
		}
		outs[0] = k.alloc(x.Shape, src.denseStrides(), x.DType)
		outs[1], outs[2] = k.alloc(w.Shape, nil, w.DType), k.alloc(b.Shape, nil, b.DType)
		k.free(temp)
		k.setResults(outs...)
		k.flops(12 * x.Numel()).end()
		return outs
	})
	return append([]*Tensor{o}, append(stats, nil, nil, nil)...)
}

// runGroupNorm saves its input and the statistics of every group.
func runGroupNorm(e *Eager, c *Call) []*Tensor {
	x := c.need(0, "input")
	groups, eps := c.int(1, "num_groups", 1), c.float(4, "eps", 1e-5)
	w, b := c.tensor(2, "weight"), c.tensor(3, "bias")
	if c.Op != "group_norm" { // native_group_norm(input, weight, bias, N, C, HxW, group, eps)
		w, b, groups, eps = c.tensor(1, "weight"), c.tensor(2, "bias"), c.int(6, "group", 1), c.float(7, "eps", 1e-5)
	}
	src := e.operand("native_group_norm", x, func(t *Tensor) *Tensor { return e.contig(c.Op, t) })
	k := e.begin("native_group_norm", src, w, b).scalars(eps)
	at := k.n.Attrs
	o := k.alloc(x.Shape, nil, x.DType)
	st := []int64{x.Shape[0], groups}
	mean, rstd := k.alloc(st, nil, x.DType), k.alloc(st, nil, x.DType)
	// Scale and shift of every channel, in the statistics' type.
	channels := statistics(x.DType).Bytes(x.Shape[0] * x.Shape[1])
	if x.Numel() == x.Shape[0]*x.Shape[1] || w == nil && b == nil {
		channels = 0
	}
	a := k.temp(channels, program.Temporaries)
	d := k.temp(channels, program.Temporaries)
	k.free(d, a)
	k.flops(8 * x.Numel()).end()
	e.record("NativeGroupNormBackward0", []*Tensor{o}, []*Tensor{x, w, b}, []*Tensor{src, w, mean, rstd}, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		return affineNormBackward(e, "native_group_norm_backward", at, g[0], s[0], w, b, s[2:], need)
	})
	return []*Tensor{o, mean, rstd}
}

// runInstanceNorm is batch normalisation of every image's channels as channels
// of one image, with weight, bias and statistics repeated
// (aten/src/ATen/native/Normalization.cpp, instance_norm).
func runInstanceNorm(e *Eager, c *Call) []*Tensor {
	x := c.need(0, "input")
	n, ch := x.Shape[0], x.Shape[1]
	bn := *c
	bn.Op = "batch_norm"
	rep := func(t *Tensor) Arg {
		if t == nil {
			return Arg{Kind: graph.ArgNone}
		}
		return tensorArg(tiled(e, t, []int64{n}))
	}
	flat := append([]int64{1, n * ch}, x.Shape[2:]...)
	in := reshape(e, c.Op, sub(e, "contiguous", x), flat)
	bn.Args = []Arg{tensorArg(in), rep(c.tensor(1, "weight")), rep(c.tensor(2, "bias")), rep(c.tensor(3, "running_mean")), rep(c.tensor(4, "running_var")),
		{Kind: graph.ArgBool, Int: 1}, {Kind: graph.ArgFloat, F: c.float(6, "momentum", 0.1)}, {Kind: graph.ArgFloat, F: c.float(7, "eps", 1e-5)}}
	o := runBatchNorm(e, &bn)[0]
	for i := 3; i <= 4; i++ { // the batch's update of the running statistics
		if t := bn.Args[i].T; t != nil && t.Storage >= 0 {
			e.hold(reduceKernel(e, "mean", e.view(t, []int64{n, ch}, []int64{ch, 1}, 0), []int{0}, false, t.DType))
		}
	}
	for i := 1; i <= 4; i++ {
		e.hold(bn.Args[i].T)
	}
	return []*Tensor{reshape(e, c.Op, o, x.Shape)}
}

// runRMSNorm normalises by the root of the mean square: in one kernel, or in several
// where its operands' types differ (ATen/native/layer_norm.cpp, rms_norm_symint).
func runRMSNorm(e *Eager, c *Call) []*Tensor {
	x, w := c.need(0, "input"), c.tensor(2, "weight")
	n := len(c.ints(1, "normalized_shape", 0, 0))
	if preferLast(x) || w != nil && w.DType != x.DType && x.DType.IsFloat() { // the fused kernel does not apply
		return []*Tensor{rmsNormComposed(e, x, w, n)}
	}
	src := e.operand("_fused_rms_norm", x, func(t *Tensor) *Tensor { return e.contig(c.Op, t) })
	normed := make([]int, 0, 1)
	for i := max(x.dim()-n, 0); i < x.dim(); i++ {
		normed = append(normed, i)
	}
	k := e.begin("_fused_rms_norm", src, w).scalars(c.float(3, "eps", epsilon(x.DType))).dims(normed...)
	at := k.n.Attrs
	o := k.alloc(x.Shape, nil, x.DType)
	rows := slices.Clone(x.Shape)
	for i := max(x.dim()-n, 0); i < x.dim(); i++ {
		rows[i] = 1
	}
	rstd := k.alloc(rows, nil, statistics(x.DType))
	k.flops(6 * x.Numel()).end()
	e.record("FusedRmsNormBackward0", []*Tensor{o}, []*Tensor{x, w}, []*Tensor{x, w, rstd}, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		return affineNormBackward(e, "_fused_rms_norm_backward", at, g[0], s[0], w, nil, s[2:], need)[:2]
	})
	return []*Tensor{o}
}

// rmsNormComposed is rms_norm as a formula of several calls, in float32, for a weight whose type
// differs from the operand's and for channels-last operands (aten/src/ATen/native/layer_norm.cpp,
// rms_norm_composite).
func rmsNormComposed(e *Eager, x, w *Tensor, n int) *Tensor {
	d := x.DType
	wide := toType(e, x, statistics(d))
	var dims []int
	for i := max(x.dim()-n, 0); i < x.dim(); i++ {
		dims = append(dims, i)
	}
	square := sub(e, "pow", wide, 2)
	mean := sub(e, "mean", square, dims, true)
	root := sub(e, "rsqrt", mean)
	e.hold(mean, square)
	normed := sub(e, "mul", wide, root)
	scaled := normed
	if w != nil {
		scaled = sub(e, "mul", normed, w)
		e.hold(normed)
	}
	if wide != x {
		e.hold(wide)
	}
	o := toType(e, scaled, d)
	if o != scaled {
		e.hold(scaled)
	}
	e.hold(root)
	return o
}

// epsilon is torch.finfo(d).eps, the default of RMS norms.
func epsilon(d graph.DType) float64 {
	switch d {
	case graph.Float16:
		return 1.0 / (1 << 10)
	case graph.BFloat16:
		return 1.0 / (1 << 7)
	case graph.Float64:
		return 1.0 / (1 << 52)
	}
	return 1.0 / (1 << 23)
}

// runWeightNorm is the fused kernel of torch.nn.utils' weight normalisation: g
// * v / |v|, the norms kept in float32.
func runWeightNorm(e *Eager, c *Call) []*Tensor {
	v, g := c.need(0, "v"), c.need(1, "g")
	dim := wrap(c.int(2, "dim", 0), v.dim())
	if dim != 0 && dim != v.dim()-1 {
		return []*Tensor{weightNormComposed(e, v, g, dim)}
	}
	k := e.begin("_weight_norm_interface", v, g).dims(dim)
	w, norms := k.like(v), k.alloc(g.Shape, nil, statistics(g.DType))
	k.flops(3 * v.Numel()).end()
	e.record("WeightNormInterfaceBackward0", []*Tensor{w}, []*Tensor{v, g}, []*Tensor{g, v, norms}, func(e *Eager, gs, s []*Tensor, _ []bool) []*Tensor {
		whole := e.contig("contiguous", gs[0])
		k := e.begin("_weight_norm_interface_backward", append([]*Tensor{whole}, s...)...).dims(dim)
		dv, dg := k.like(s[1]), k.like(s[0])
		k.end()
		if whole != gs[0] {
			e.hold(whole)
		}
		return []*Tensor{dv, dg}
	})
	return []*Tensor{w}
}

// weightNormComposed is weight normalisation along a dim in the middle: v * (g /
// |v|), as several calls (aten/src/ATen/native/WeightNorm.cpp, norm_except_dim).
func weightNormComposed(e *Eager, v, g *Tensor, dim int) *Tensor {
	turned := sub(e, "transpose", v, 0, dim)
	rows := sub(e, "contiguous", turned)
	flat := sub(e, "view", rows, []int{int(v.Shape[dim]), int(v.Numel() / max(v.Shape[dim], 1))})
	norms := sub(e, "norm", flat, 2, []int{1})
	shape := make([]int, v.dim())
	for i := range shape {
		shape[i] = 1
	}
	shape[0] = int(v.Shape[dim])
	norms = sub(e, "transpose", sub(e, "view", norms, shape), 0, dim)
	scale := sub(e, "div", g, norms)
	o := sub(e, "mul", v, scale)
	e.hold(scale, norms, rows)
	return o
}
