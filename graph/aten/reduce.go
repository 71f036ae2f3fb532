package aten

import (
	"math/bits"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// sumTo adds g over the dims in which shape is smaller (at::sum_to).
func (e *Eager) sumTo(g *Tensor, shape []int64) *Tensor {
	lead := g.dim() - len(shape)
	var dims []int
	for i := range g.Shape {
		if i < lead || shape[i-lead] == 1 && g.Shape[i] != 1 {
			dims = append(dims, i)
		}
	}
	if len(dims) == 0 {
		return e.unsqueezeTo(g, shape)
	}
	s := e.reduceKernel("sum", g, dims, true, g.DType)
	if lead > 0 {
		return e.unsqueezeTo(s, shape)
	}
	return s
}

// reduceKernel appends one reduction over dims. A reduction that is split
// over thread blocks takes a buffer of partial results and semaphores.
func (e *Eager) reduceKernel(op string, x *Tensor, dims []int, keep bool, d graph.DType) *Tensor {
	return e.reducing(op, x, dims, reducedShape(x, dims, keep), d).end()
}

func reducedShape(x *Tensor, dims []int, keep bool) []int64 {
	shape := make([]int64, 0, x.dim())
	for i, n := range x.Shape {
		switch {
		case !slices.Contains(dims, i):
			shape = append(shape, n)
		case keep:
			shape = append(shape, 1)
		}
	}
	return shape
}

// reducing is reduceKernel's kernel before its end.
func (e *Eager) reducing(op string, x *Tensor, dims []int, shape []int64, d graph.DType) *kernel {
	k := e.begin(op, x).dims(dims...)
	k.n.FLOPs = x.Numel()
	k.alloc(shape, nil, d)
	in, cast := x, program.None
	if op == "sum" && !x.DType.IsFloat() && x.DType != d { // integers are counted in int64
		cast = k.temp(d.Bytes(x.Numel()), program.Temporaries)
		in = &Tensor{Tensor: program.Tensor{DType: d, Shape: x.Shape, Strides: x.denseStrides()}}
	}
	k.reduceOver(op, in, dims)
	k.free(cast)
	return k
}

// reduceOver takes and frees what the reduction of x over dims takes for partial
// results and semaphores.
func (k *kernel) reduceOver(op string, x *Tensor, dims []int) {
	r := k.e.reduction(x, dims)
	r.buffer *= partial(op)
	if acc := x.DType.Bytes(1); acc < 4 && (op == "max" || op == "min" || op == "amax" || op == "amin") {
		r.buffer = r.buffer / 4 * acc // compared in the operand's type
	}
	buf := k.temp(r.buffer, program.Temporaries)
	k.free(k.temp(r.semaphores, program.Temporaries), buf)
}

// partial is how many numbers make a partial result: variances keep mean, sum of
// squares, count and its float (WelfordData).
func partial(op string) int64 {
	switch op {
	case "var", "std", "var_mean":
		return 4
	case "argmax", "argmin": // a value and where it stands
		return 4
	}
	return 1
}

// A reduction is the scratch of one reduction kernel, in bytes.
type reduction struct{ buffer, semaphores int64 }

// ReduceScratch returns the bytes that one kernel takes for partial results
// when it reduces a contiguous tensor of the given shape over dim.
func (c Config) ReduceScratch(d graph.DType, shape []int64, dim int) int64 {
	e := New(c)
	return e.reduction(&Tensor{Tensor: program.Tensor{DType: d, Shape: shape, Strides: contiguousStrides(shape)}}, []int{dim}).buffer
}

// A reduceDim is one dim of the coalesced iteration space; strides in bytes.
type reduceDim struct {
	size, in int64
	reduced  bool
}

// reduction computes the launch configuration of gpu_reduce_kernel and from
// it the scratch (aten/src/ATen/native/cuda/Reduce.cuh, setReduceConfig).
func (e *Eager) reduction(x *Tensor, dims []int) reduction {
	item := x.DType.Bytes(1)
	ds := reduceSpace(x, dims, item)
	if len(ds) == 0 || e.SMs == 0 {
		return reduction{}
	}
	inputs, outputs, nred := int64(1), int64(1), 0
	for _, d := range ds {
		if d.reduced {
			inputs *= d.size
			nred++
		} else {
			outputs *= d.size
		}
	}
	if inputs*outputs == 0 {
		return reduction{}
	}
	acc := max(item, 4) // partial sums of half types are float32
	fast := nred == len(ds) || nred > 0 && ds[0].in < ds[nred].in
	dim0, dim1, step := outputs, inputs, ds[min(nred, len(ds)-1)].in
	if fast {
		dim0, dim1, step = inputs, outputs, ds[0].in
	}
	outVec := int64(1)
	if step == item {
		if fast && dim0 > 128 && len(ds) == 1 {
			dim0 /= 4 // four inputs a load
		} else if !fast {
			outVec = outputVec(ds, nred, item)
			dim0 /= outVec
		}
	}
	width, height := blockShape(dim0, dim1, outVec, item)
	stepIn, stepOut := int64(1), int64(1)
	if fast {
		stepIn *= width
	} else {
		stepOut *= width
	}
	perThread := ceilDiv(inputs, stepIn)
	blockY := false
	if perThread >= min(height*16, 256) {
		stepIn *= height
		blockY = true
	} else {
		stepOut *= height
	}
	grid := ceilDiv(outputs/outVec, stepOut)
	target := int64(e.SMs) * (int64(e.ThreadsPerSM) / (width * height))
	perThread = ceilDiv(inputs, stepIn)
	if !blockY || perThread < 256 || grid > target {
		return reduction{}
	}
	ctas := max(min(ceilDiv(target, grid), ceilDiv(perThread, 16)), ceilDiv(perThread, 256))
	if ctas <= 1 {
		return reduction{}
	}
	size := acc * outputs * ctas
	if !fast {
		size *= width * outVec
	}
	return reduction{size, 4 * grid}
}

// reduceSpace returns the iteration space as TensorIterator coalesces it:
// reduced dims first, each group from the smallest stride, neighbours merged.
func reduceSpace(x *Tensor, dims []int, item int64) []reduceDim {
	var red, out []reduceDim
	for i := x.dim() - 1; i >= 0; i-- {
		if x.Shape[i] == 1 {
			continue
		}
		d := reduceDim{x.Shape[i], x.Strides[i] * item, slices.Contains(dims, i)}
		if d.reduced {
			red = append(red, d)
		} else {
			out = append(out, d)
		}
	}
	byStride := func(a, b reduceDim) int { return int(min(max(a.in-b.in, -1), 1)) }
	slices.SortStableFunc(red, byStride)
	slices.SortStableFunc(out, byStride)
	return append(coalesce(red), coalesce(out)...)
}

func coalesce(ds []reduceDim) []reduceDim {
	var res []reduceDim
	for _, d := range ds {
		if n := len(res); n > 0 && res[n-1].in*res[n-1].size == d.in {
			res[n-1].size *= d.size
			continue
		}
		res = append(res, d)
	}
	return res
}

// outputVec is get_output_vec_size: up to four outputs a thread when size and
// the other strides are multiples.
func outputVec(ds []reduceDim, nred int, item int64) int64 {
	vec := int64(4)
	halve := func(n int64) {
		for vec > 1 && n%vec != 0 {
			vec /= 2
		}
	}
	halve(ds[nred].size)
	for i, d := range ds {
		if i != nred {
			halve(d.in / item)
		}
	}
	return vec
}

// blockShape is set_block_dimension: a block of up to 512 threads, a warp
// wide unless the other dim is short.
func blockShape(dim0, dim1, outVec, item int64) (width, height int64) {
	most := 512 / outVec
	if item > 8 {
		most = 256 / outVec
	}
	p0, p1 := min(lastPow2(dim0), most), min(lastPow2(dim1), most)
	width = min(p0, 32)
	height = min(p1, most/width)
	width = min(p0, most/height)
	return width, height
}

func lastPow2(n int64) int64 {
	if n < 1 {
		return 1
	}
	return 1 << (bits.Len64(uint64(n)) - 1)
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

// reduceDims reads the dim argument of a reduction; none means all.
func reduceDims(c *Call, x *Tensor, i int) []int {
	var dims []int
	if a := c.arg(i, "dim"); a != nil && a.Kind != graph.ArgNone {
		for _, d := range c.ints(i, "dim", 0, 0) {
			dims = append(dims, wrap(d, x.dim()))
		}
	}
	if len(dims) == 0 {
		for d := range x.Shape {
			dims = append(dims, d)
		}
	}
	return dims
}

// runSum is sum and mean: backward spreads the gradient, mean divides it.
func runSum(e *Eager, c *Call) []*Tensor {
	x := c.need(0, "self")
	dims := reduceDims(c, x, 1)
	d := x.DType
	if t := c.dtype(3, "dtype"); t != graph.Undefined {
		d = t
	} else if !d.IsFloat() {
		d = graph.Int64
	}
	keep := c.bool(2, "keepdim", false)
	o := e.reduceKernel(c.Op, x, dims, keep, d)
	in, mean := x.Shape, c.Op == "mean"
	fn := map[bool]string{true: "MeanBackward1", false: "SumBackward1"}[mean]
	e.record(fn, []*Tensor{o}, []*Tensor{x}, nil, func(e *Eager, g, _ []*Tensor, _ []bool) []*Tensor {
		w := e.expand(e.keepDims(g[0], in, dims), in)
		if mean {
			w = e.unary("div", w.DType, w, number(graph.Undefined, float64(numel(pick(in, dims)))))
		}
		return []*Tensor{w}
	})
	return []*Tensor{o}
}

// keepDims shows a reduced gradient with the reduced dims of size 1.
func (e *Eager) keepDims(g *Tensor, in []int64, dims []int) *Tensor {
	shape := slices.Clone(in)
	for _, d := range dims {
		shape[d] = 1
	}
	return e.unsqueezeTo(g, shape)
}

// runExtreme is max and min along a dim (values and indices, which backward
// scatters through), amax and amin, and argmax.
func runExtreme(e *Eager, c *Call) []*Tensor {
	if c.Over == "other" { // max(x, y) is maximum(x, y)
		c.Op = map[string]string{"max": "maximum", "min": "minimum"}[c.Op]
		return runMaxMin(e, c)
	}
	x := c.need(0, "self")
	dims := reduceDims(c, x, 1)
	keep := c.bool(2, "keepdim", false)
	if c.Op == "argmax" || c.Op == "argmin" {
		return []*Tensor{e.reduceKernel(c.Op, x, dims, keep, graph.Int64)}
	}
	if (c.Op == "max" || c.Op == "min") && len(c.Shapes) < 2 && c.Over != "dim" {
		return []*Tensor{e.extremeOfAll(c.Op, x, dims)}
	}
	in := x.Shape
	if len(c.Shapes) < 2 && c.Over != "dim" {
		o := e.reducing(c.Op, x, dims, reducedShape(x, dims, keep), x.DType).does(extremes[c.Op]).end()
		e.record("AmaxBackward0", []*Tensor{o}, []*Tensor{x}, []*Tensor{x, o}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
			r := e.keepDims(s[1], in, dims)
			m := e.binary("eq", graph.Bool, s[0], r)
			n := e.reduceKernel("sum", m, dims, true, graph.Int64)
			q := e.binary("div", g[0].DType, e.keepDims(g[0], in, dims), n)
			w := e.binary("mul", g[0].DType, q, m)
			e.hold(q, n, m)
			return []*Tensor{w}
		})
		return []*Tensor{o}
	}
	k := e.begin(c.Op, x).dims(dims...).does(extremes[c.Op] + "_with_indices")
	k.n.FLOPs = x.Numel()
	o := k.alloc(reducedShape(x, dims, keep), nil, x.DType)
	idx := k.alloc(o.Shape, nil, graph.Int64)
	k.reduceOver("argmax", x, dims)
	k.end()
	e.record("MaxBackward0", []*Tensor{o}, []*Tensor{x}, []*Tensor{idx}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		return []*Tensor{e.selected(e.keepDims(g[0], in, dims), e.keepDims(s[0], in, dims), in, dims)}
	})
	return []*Tensor{o, idx}
}

// extremeOfAll is the largest or smallest of all elements. Backward spreads the
// gradient evenly over those that are equal to it (evenly_distribute_backward).
func (e *Eager) extremeOfAll(op string, x *Tensor, dims []int) *Tensor {
	k := e.begin(op, x).does(extremes[op]).dims(dims...)
	o := k.alloc(nil, nil, x.DType)
	flat, whole := x, program.None
	if !x.contiguous() {
		whole = k.temp(x.Bytes(), program.Temporaries)
		flat = &Tensor{Tensor: program.Tensor{DType: x.DType, Shape: x.Shape, Strides: contiguousStrides(x.Shape)}}
	}
	r := e.reduction(flat, dims)
	if n := x.DType.Bytes(1); n < 4 {
		r.buffer = r.buffer / 4 * n
	}
	buf := k.temp(r.buffer, program.Temporaries)
	k.free(k.temp(r.semaphores, program.Temporaries), buf, whole)
	k.flops(x.Numel()).end()
	node := map[string]string{"max": "MaxBackward1", "min": "MinBackward1"}[op]
	e.record(node, []*Tensor{o}, []*Tensor{x}, []*Tensor{x, o}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		nan := e.unary("isnan", graph.Bool, s[0])
		one := e.unary("isnan", graph.Bool, s[1])
		e.into("logical_and", nan, one)
		m := e.binary("eq", graph.Bool, s[0], s[1])
		e.into("logical_or", nan, m)
		n := e.reduceKernel("sum", nan, dims, false, graph.Int64)
		q := e.binary("div", g[0].DType, g[0], n)
		w := e.binary("mul", g[0].DType, nan, q)
		e.hold(q, n, m, one, nan)
		return []*Tensor{w}
	})
	return o
}

// extremes are the kernels of extremes without indices.
var extremes = map[string]string{"max": "amax", "min": "amin", "amax": "amax", "amin": "amin"}

// selected is the gradient of elements that were taken along a dim at the places
// idx, zeros elsewhere (value_selecting_reduction_backward).
func (e *Eager) selected(g, idx *Tensor, in []int64, dims []int) *Tensor {
	k := e.begin("value_selecting_reduction_backward", g, idx).does("gather_backward").dims(dims...)
	if len(dims) != 1 {
		k.inexact("elements taken along no dim, or several")
	}
	k.alloc(in, nil, g.DType)
	return k.end()
}

// runVar is var, std and var_mean over dims.
func runVar(e *Eager, c *Call) []*Tensor {
	x := c.need(0, "self")
	dims := reduceDims(c, x, 1)
	keep := c.bool(3, "keepdim", false) || c.bool(2, "keepdim", false)
	correction := c.float(-1, "correction", 1)
	if c.Over == "dim" && !c.bool(2, "unbiased", true) {
		correction = 0
	}
	k := e.begin(c.Op, x).dims(dims...).scalars(correction)
	k.n.FLOPs = x.Numel()
	outs := []*Tensor{k.alloc(reducedShape(x, dims, keep), nil, x.DType)}
	if c.Op == "var_mean" {
		k.inexact("two results")
		outs = append(outs, k.alloc(outs[0].Shape, nil, x.DType))
	}
	k.reduceOver(c.Op, x, dims)
	o := k.end()
	in, node, saved := x.Shape, "VarBackward0", []*Tensor{x}
	if c.Op == "std" {
		node, saved = "StdBackward0", []*Tensor{x, o}
	}
	e.record(node, outs, []*Tensor{x}, saved, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		first, q := first(g), (*Tensor)(nil)
		if len(s) > 1 {
			q = e.rootGradient(first, s[1])
			first = q
		}
		m := e.reduceKernel("mean", s[0], dims, true, s[0].DType)
		d := e.binary("sub", s[0].DType, s[0], m)
		f := e.times(e.keepDims(first, in, dims), 2/(float64(numel(pick(in, dims)))-correction))
		w := e.binary("mul", s[0].DType, f, d)
		e.hold(f, d, m, q)
		if len(g) > 1 && g[1] != nil { // the mean's own gradient
			own := e.times(e.expand(e.keepDims(g[1], in, dims), in), 1/float64(numel(pick(in, dims))))
			sum := e.binary("add", w.DType, w, own)
			e.hold(own, w)
			w = sum
		}
		return []*Tensor{w}
	})
	return outs
}

// rootGradient is the gradient of the variance under a standard deviation
// (torch/csrc/autograd/FunctionsManual.cpp, std_backward).
func (e *Eager) rootGradient(g, root *Tensor) *Tensor {
	twice := e.times(root, 2)
	q := e.binary("div", g.DType, g, twice)
	zero := e.computes("eq s 0", graph.Bool, root)
	e.clear(q, zero)
	e.hold(zero)
	e.hold(twice)
	return q
}

// runSoftmax is _softmax and _log_softmax: the result is saved; softmax's
// backward first multiplies gradient and result into scratch.
func runSoftmax(e *Eager, c *Call) []*Tensor {
	x := c.need(0, "self")
	d := x.DType
	if t := c.dtype(2, "dtype"); t != graph.Undefined && t != d {
		if d = t; x.DType != graph.Float16 || t != graph.Float32 { // the kernel reads float16 itself (SoftMax.cpp, half_to_float)
			x = e.toDType("to", x, t)
		}
	}
	return []*Tensor{e.softmaxTo(x, strings.HasSuffix(c.Op, "log_softmax"), c.Op, d, wrap(c.int(1, "dim", -1), x.dim()))}
}

func (e *Eager) softmax(x *Tensor, log bool, op string, dim int) *Tensor {
	return e.softmaxTo(x, log, op, x.DType, dim)
}

// softmaxTo makes a result of type d.
func (e *Eager) softmaxTo(x *Tensor, log bool, op string, d graph.DType, dim int) *Tensor {
	src := e.contig(op, x)
	k := e.begin(op, src).does(map[bool]string{true: "log_softmax", false: "softmax"}[log]).dims(dim)
	o := k.alloc(x.Shape, nil, d)
	k.flops(5 * x.Numel()).end()
	if src != x {
		e.hold(src)
	}
	fn := map[bool]string{true: "LogSoftmaxBackward0", false: "SoftmaxBackward0"}[log]
	if op == "_safe_softmax" {
		fn = "SafeSoftmaxBackward0"
	}
	e.record(fn, []*Tensor{o}, []*Tensor{x}, []*Tensor{o}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		name := map[bool]string{true: "_log_softmax_backward_data", false: "_softmax_backward_data"}[log]
		k := e.begin(name, g[0], s[0]).dims(dim)
		k.alloc(x.Shape, nil, x.DType)
		if !log {
			k.scratch(g[0].Bytes(), program.Temporaries)
		} else if !g[0].contiguous() {
			k.scratch(g[0].Bytes(), program.Temporaries)
		}
		return []*Tensor{k.flops(4 * x.Numel()).end()}
	})
	return o
}

// cumulative is a kernel that adds or multiplies along a dim; over one row, it is
// CUB's (aten/src/ATen/native/cuda/ScanKernels.cpp, ScanUtils.cuh).
func (e *Eager) cumulative(op string, x *Tensor, dim int, d graph.DType) *Tensor {
	k := e.begin(op, x).dims(dim)
	k.alloc(x.Shape, nil, d)
	whole := k.whole(x)
	if x.DType != d {
		k.free(whole)
		whole = k.temp(d.Bytes(x.Numel()), program.Temporaries)
	}
	if x.dim() > 0 && x.Numel() == x.Shape[dim] {
		k.scratch(scanScratch(x.Numel(), d), program.Temporaries)
	}
	k.free(whole)
	return k.end()
}

// scanScratch is what CUB takes to scan n elements of type d: the parts of half types
// lie apart.
func scanScratch(n int64, d graph.DType) int64 {
	if b := d.Bytes(1); b >= 4 {
		return cubScan(n, b)
	}
	tiles := max(ceilDiv(n, 1<<16), 1) + 32
	return cubParts(4*tiles, 2*tiles, 2*tiles, 1)
}

// runCumprod multiplies along a dim; operand and result are saved. Backward is for
// operands without zeros, which it looks for
// (torch/csrc/autograd/FunctionsManual.cpp, cumprod_backward).
func runCumprod(e *Eager, c *Call) []*Tensor {
	x := c.need(0, "self")
	d := x.DType
	if t := c.dtype(2, "dtype"); t != graph.Undefined {
		d = t
	} else if t := c.dtype(-1, "dtype"); t != graph.Undefined {
		d = t
	}
	dim := wrap(c.int(1, "dim", 0), x.dim())
	o := e.cumulative("cumprod", x, dim, d)
	e.record("CumprodBackward0", []*Tensor{o}, []*Tensor{x}, []*Tensor{x, o}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		grad := e.toType(g[0], x.DType)
		if x.Numel() <= 1 || x.dim() == 0 || x.Shape[dim] == 1 {
			return []*Tensor{grad}
		}
		m := e.binary("mul", g[0].DType, s[1], grad)
		zero := e.computes("eq s 0", graph.Bool, s[0])
		e.hold(e.reducing("any", zero, reduceDims(&Call{}, zero, 1), nil, graph.Bool).does("amax").end())
		sum := e.reversedCumsum(m, dim)
		w := e.binary("div", g[0].DType, sum, s[0])
		e.hold(sum, zero, m)
		if grad != g[0] {
			e.hold(grad)
		}
		return []*Tensor{w}
	})
	return []*Tensor{o}
}

// reversedCumsum adds along a dim from its end.
func (e *Eager) reversedCumsum(g *Tensor, dim int) *Tensor {
	f := e.elementwise("flip", graph.Undefined, g).dims(dim).end()
	s := e.cumulative("cumsum", f, dim, f.DType)
	r := e.elementwise("flip", graph.Undefined, s).dims(dim).end()
	e.hold(s, f)
	return r
}

// toType is t in another type, or t.
func (e *Eager) toType(t *Tensor, d graph.DType) *Tensor {
	if t.DType == d {
		return t
	}
	return e.toDType("to", t, d)
}

// runCumsum adds along a dim; backward flips, adds and flips.
func runCumsum(e *Eager, c *Call) []*Tensor {
	x := c.need(0, "self")
	d := x.DType
	if t := c.dtype(2, "dtype"); t != graph.Undefined {
		d = t
	} else if t := c.dtype(-1, "dtype"); t != graph.Undefined {
		d = t
	} else if !d.IsFloat() {
		d = graph.Int64
	}
	dim := wrap(c.int(1, "dim", 0), x.dim())
	o := e.cumulative("cumsum", x, dim, d)
	e.record("CumsumBackward0", []*Tensor{o}, []*Tensor{x}, nil, func(e *Eager, g, _ []*Tensor, _ []bool) []*Tensor {
		if x.Numel() <= 1 || x.dim() == 0 || x.Shape[dim] == 1 {
			return g
		}
		return []*Tensor{e.reversedCumsum(g[0], dim)}
	})
	return []*Tensor{o}
}
