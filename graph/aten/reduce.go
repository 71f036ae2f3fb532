package aten

import (
	"math"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// sumTo adds g over the dims in which shape is smaller (at::sum_to).
func sumTo(e *Eager, g *Tensor, shape []int64) *Tensor {
	lead := g.dim() - len(shape)
	var dims []int
	for i := range g.Shape {
		if i < lead || shape[i-lead] == 1 && g.Shape[i] != 1 {
			dims = append(dims, i)
		}
	}
	if len(dims) == 0 {
		return unsqueezeTo(e, g, shape)
	}
	s := reduceKernel(e, "sum", g, dims, true, g.DType)
	if lead > 0 {
		return unsqueezeTo(e, s, shape)
	}
	return s
}

// reduceKernel appends one reduction over dims. A reduction that is split over
// thread blocks allocates a buffer of partial results and semaphores.
func reduceKernel(e *Eager, op string, x *Tensor, dims []int, keep bool, d graph.DType) *Tensor {
	return reducing(e, op, x, dims, reducedShape(x, dims, keep), d).end()
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

// reducing is reduceKernel without the end of the call.
func reducing(e *Eager, op string, x *Tensor, dims []int, shape []int64, d graph.DType) *kernel {
	k := e.begin(op, x).dims(dims...)
	k.n.FLOPs = x.Numel()
	k.alloc(shape, nil, d)
	in, cast := x, program.None
	if op == "sum" && !x.DType.IsFloat() && x.DType != d { // integers are summed in int64
		cast = k.temp(d.Bytes(x.Numel()), program.Temporaries)
		in = &Tensor{View: program.View{DType: d, Shape: x.Shape, Strides: x.denseStrides()}}
	}
	k.reduceOver(op, in, dims)
	k.free(cast)
	return k
}

// reduceDims reads the dim argument of a reduction; without one, all dims are
// reduced.
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

// runSum is sum and mean: backward expands the gradient, for a mean after
// dividing it.
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
	o := reduceKernel(e, c.Op, x, dims, keep, d)
	in, mean := x.Shape, c.Op == "mean"
	fn := map[bool]string{true: "MeanBackward1", false: "SumBackward1"}[mean]
	e.record(fn, []*Tensor{o}, []*Tensor{x}, nil, func(e *Eager, g, _ []*Tensor, _ []bool) []*Tensor {
		w := expand(e, keepDims(e, g[0], in, dims), in)
		if mean {
			w = e.unary("div", w.DType, w, number(graph.Undefined, float64(numel(pick(in, dims)))))
		}
		return []*Tensor{w}
	})
	return []*Tensor{o}
}

// keepDims shows a reduced gradient with dims of size 1 in place of the reduced
// ones.
func keepDims(e *Eager, g *Tensor, in []int64, dims []int) *Tensor {
	shape := slices.Clone(in)
	for _, d := range dims {
		shape[d] = 1
	}
	return unsqueezeTo(e, g, shape)
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
		return []*Tensor{reduceKernel(e, c.Op, x, dims, keep, graph.Int64)}
	}
	if (c.Op == "max" || c.Op == "min") && len(c.Shapes) < 2 && c.Over != "dim" {
		return []*Tensor{extremeOfAll(e, c.Op, x, dims)}
	}
	in := x.Shape
	if len(c.Shapes) < 2 && c.Over != "dim" {
		o := reducing(e, c.Op, x, dims, reducedShape(x, dims, keep), x.DType).does(extremeKernels[c.Op]).end()
		e.record("AmaxBackward0", []*Tensor{o}, []*Tensor{x}, []*Tensor{x, o}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
			r := keepDims(e, s[1], in, dims)
			m := binary(e, "eq", graph.Bool, s[0], r)
			n := reduceKernel(e, "sum", m, dims, true, graph.Int64)
			q := binary(e, "div", g[0].DType, keepDims(e, g[0], in, dims), n)
			w := binary(e, "mul", g[0].DType, q, m)
			e.hold(q, n, m)
			return []*Tensor{w}
		})
		return []*Tensor{o}
	}
	k := e.begin(c.Op, x).dims(dims...).does(extremeKernels[c.Op] + "_with_indices")
	k.n.FLOPs = x.Numel()
	o := k.alloc(reducedShape(x, dims, keep), nil, x.DType)
	idx := k.alloc(o.Shape, nil, graph.Int64)
	k.reduceOver("argmax", x, dims)
	k.end()
	e.record("MaxBackward0", []*Tensor{o}, []*Tensor{x}, []*Tensor{idx}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		return []*Tensor{selected(e, keepDims(e, g[0], in, dims), keepDims(e, s[0], in, dims), in, dims)}
	})
	return []*Tensor{o, idx}
}

// extremeOfAll is the largest or smallest of all elements. Backward distributes
// the gradient evenly over the elements equal to it
// (evenly_distribute_backward).
func extremeOfAll(e *Eager, op string, x *Tensor, dims []int) *Tensor {
	k := e.begin(op, x).does(extremeKernels[op]).dims(dims...)
	o := k.alloc(nil, nil, x.DType)
	flat, whole := x, program.None
	if !x.contiguous() {
		whole = k.temp(x.Bytes(), program.Temporaries)
		flat = &Tensor{View: program.View{DType: x.DType, Shape: x.Shape, Strides: contiguousStrides(x.Shape)}}
	}
	r := reductionOf(e, flat, dims)
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
		into(e, "logical_and", nan, one)
		m := binary(e, "eq", graph.Bool, s[0], s[1])
		into(e, "logical_or", nan, m)
		n := reduceKernel(e, "sum", nan, dims, false, graph.Int64)
		q := binary(e, "div", g[0].DType, g[0], n)
		w := binary(e, "mul", g[0].DType, nan, q)
		e.hold(q, n, m, one, nan)
		return []*Tensor{w}
	})
	return o
}

// extremeKernels maps operators to the kernels of extremes without indices.
var extremeKernels = map[string]string{"max": "amax", "min": "amin", "amax": "amax", "amin": "amin"}

// selected is the gradient of elements selected along a dim by the indices idx,
// zeros elsewhere (value_selecting_reduction_backward).
func selected(e *Eager, g, idx *Tensor, in []int64, dims []int) *Tensor {
	k := e.begin("value_selecting_reduction_backward", g, idx).does("gather_backward").dims(dims...)
	k.inexactIf(len(dims) != 1, "elements taken along no dim, or several")
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
			q = rootGradient(e, first, s[1])
			first = q
		}
		m := reduceKernel(e, "mean", s[0], dims, true, s[0].DType)
		d := binary(e, "sub", s[0].DType, s[0], m)
		f := times(e, keepDims(e, first, in, dims), 2/(float64(numel(pick(in, dims)))-correction))
		w := binary(e, "mul", s[0].DType, f, d)
		e.hold(f, d, m, q)
		if len(g) > 1 && g[1] != nil { // the gradient of the mean
			own := times(e, expand(e, keepDims(e, g[1], in, dims), in), 1/float64(numel(pick(in, dims))))
			sum := binary(e, "add", w.DType, w, own)
			e.hold(own, w)
			w = sum
		}
		return []*Tensor{w}
	})
	return outs
}

// rootGradient is the gradient of the variance in a standard deviation
// (torch/csrc/autograd/FunctionsManual.cpp, std_backward).
func rootGradient(e *Eager, g, root *Tensor) *Tensor {
	twice := times(e, root, 2)
	q := binary(e, "div", g.DType, g, twice)
	zero := computes(e, "eq s 0", graph.Bool, root)
	zeroWhere(e, q, zero)
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
	return []*Tensor{softmaxTo(e, x, strings.HasSuffix(c.Op, "log_softmax"), c.Op, d, wrap(c.int(1, "dim", -1), x.dim()))}
}

func softmax(e *Eager, x *Tensor, log bool, op string, dim int) *Tensor {
	return softmaxTo(e, x, log, op, x.DType, dim)
}

// softmaxTo makes a result of type d.
func softmaxTo(e *Eager, x *Tensor, log bool, op string, d graph.DType, dim int) *Tensor {
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

// cumulative is a kernel that adds or multiplies along a dim; a single row is
// scanned by CUB (aten/src/ATen/native/cuda/ScanKernels.cpp, ScanUtils.cuh).
func cumulative(e *Eager, op string, x *Tensor, dim int, d graph.DType) *Tensor {
	k := e.begin(op, x).dims(dim)
	k.alloc(x.Shape, nil, d)
	whole := k.contiguousCopy(x)
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

// runCumprod multiplies along a dim; operand and result are saved. Backward first
// tests the operand for zeros, and is modelled for an operand without any
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
	o := cumulative(e, "cumprod", x, dim, d)
	e.record("CumprodBackward0", []*Tensor{o}, []*Tensor{x}, []*Tensor{x, o}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		grad := toType(e, g[0], x.DType)
		if x.Numel() <= 1 || x.dim() == 0 || x.Shape[dim] == 1 {
			return []*Tensor{grad}
		}
		m := binary(e, "mul", g[0].DType, s[1], grad)
		zero := computes(e, "eq s 0", graph.Bool, s[0])
		e.hold(reducing(e, "any", zero, reduceDims(&Call{}, zero, 1), nil, graph.Bool).does("amax").end())
		sum := reversedCumsum(e, m, dim)
		w := binary(e, "div", g[0].DType, sum, s[0])
		e.hold(sum, zero, m)
		if grad != g[0] {
			e.hold(grad)
		}
		return []*Tensor{w}
	})
	return []*Tensor{o}
}

// reversedCumsum adds along a dim from its end.
func reversedCumsum(e *Eager, g *Tensor, dim int) *Tensor {
	f := e.elementwise("flip", graph.Undefined, g).dims(dim).end()
	s := cumulative(e, "cumsum", f, dim, f.DType)
	r := e.elementwise("flip", graph.Undefined, s).dims(dim).end()
	e.hold(s, f)
	return r
}

// toType returns t in another type, or t itself.
func toType(e *Eager, t *Tensor, d graph.DType) *Tensor {
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
	o := cumulative(e, "cumsum", x, dim, d)
	e.record("CumsumBackward0", []*Tensor{o}, []*Tensor{x}, nil, func(e *Eager, g, _ []*Tensor, _ []bool) []*Tensor {
		if x.Numel() <= 1 || x.dim() == 0 || x.Shape[dim] == 1 {
			return g
		}
		return []*Tensor{reversedCumsum(e, g[0], dim)}
	})
	return []*Tensor{o}
}

// runVectorNorm is linalg_vector_norm and norm: operand and result are saved.
func runVectorNorm(e *Eager, c *Call) []*Tensor {
	x := c.need(0, "self")
	dims, keep := reduceDims(c, x, 2), c.bool(3, "keepdim", false)
	ord := c.float(1, "ord", float64(c.int(1, "ord", 2)))
	d := c.dtype(-1, "dtype")
	if d == graph.Undefined {
		d = x.DType
	}
	k := reducing(e, "linalg_vector_norm", x, dims, reducedShape(x, dims, keep), d)
	if ord == 2 {
		k.does("euclidean_norm")
	} else {
		k.inexact("a norm that is not Euclidean")
	}
	o := k.end()
	in := x.Shape
	e.record("LinalgVectorNormBackward0", []*Tensor{o}, []*Tensor{x}, []*Tensor{x, o}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		self := s[0]
		if c.Op == "norm" { // in the type of the result
			self = toType(e, self, g[0].DType)
		}
		w := normGrad(e, ord, self, keepDims(e, s[1], in, dims), keepDims(e, g[0], in, dims), dims)
		if self != s[0] {
			e.hold(self)
		}
		return []*Tensor{w}
	})
	return []*Tensor{o}
}

// normGrad is the gradient of a norm r of x over dims (norm_backward in
// torch/csrc/autograd/FunctionsManual.cpp).
func normGrad(e *Eager, ord float64, x, r, g *Tensor, dims []int) *Tensor {
	d := g.DType
	if ord == 2 { // x * (g / r), 0 where the norm is
		div := e.elementwise("div", d, x, r)
		normBackward(div, 0)
		q := div.end()
		zero := e.unary("eq", graph.Bool, r, number(graph.Undefined, 0))
		mul := e.elementwise("mul", d, q, r, g)
		normBackward(mul, 1)
		w := mul.end()
		e.hold(zero, q)
		return w
	}
	switch {
	case ord == 0:
		return composed(e, "zeros_like", d, x)
	case ord == 1:
		sign := composed(e, "sgn", x.DType, x)
		w := composed(e, "mul", d, sign, g)
		e.hold(sign)
		return w
	case math.IsInf(ord, 0):
		return maxNormGrad(e, x, r, g, dims)
	case ord < 1:
		mag := composed(e, "abs", x.DType, x)
		zero := composed(e, "eq", graph.Bool, x)
		sign := composed(e, "sgn", x.DType, x)
		scaled := composed(e, "mul", x.DType, sign, mag)
		e.hold(sign, zero, mag)
		p := composed(e, "pow", r.DType, r)
		q := composed(e, "mul", d, scaled, g)
		w := composed(e, "mul", d, q, p)
		e.hold(q, p, scaled)
		return w
	}
	mag := composed(e, "abs", x.DType, x)
	scaled := composed(e, "mul", x.DType, x, mag)
	e.hold(mag)
	p := composed(e, "pow", r.DType, r)
	q := composed(e, "div", d, g, p)
	e.hold(p)
	e.hold(composed(e, "eq", graph.Bool, r))
	w := composed(e, "mul", d, scaled, q)
	e.hold(q, scaled)
	return w
}

// composed is one kernel of a formula that does not tell its operands apart.
func composed(e *Eager, op string, d graph.DType, in ...*Tensor) *Tensor {
	return e.elementwise(op, d, in...).inexact("stands for several kernels").end()
}

// maxNormGrad spreads the gradient evenly over the elements of largest magnitude.
func maxNormGrad(e *Eager, x, r, g *Tensor, dims []int) *Tensor {
	mag := composed(e, "abs", x.DType, x)
	same := composed(e, "eq", graph.Bool, mag, r)
	nan := composed(e, "isnan", graph.Bool, mag)
	most := composed(e, "logical_or", graph.Bool, same, nan)
	e.hold(nan, same)
	n := reduceKernel(e, "sum", most, dims, true, graph.Int64)
	q := binary(e, "div", g.DType, g, n)
	spread := composed(e, "mul", g.DType, most, q)
	sign := composed(e, "sgn", x.DType, x)
	w := composed(e, "mul", g.DType, spread, sign)
	e.hold(sign, spread, q, n, most, mag)
	return w
}

// normBackward describes the two kernels of a Euclidean norm's backward: the
// operand over the norm (0 where the norm is 0), times the gradient.
func normBackward(k *kernel, i int) {
	k.attrs().Args = []program.Arg{{In: 0}, {In: int32(1 + i)}}
	if i == 0 {
		k.does("div_or_zero")
	}
}

func runLogSumExp(e *Eager, c *Call) []*Tensor {
	x := c.need(0, "self")
	dims := reduceDims(c, x, 1)
	in := x.Shape
	k := e.begin("logsumexp", x).dims(dims...)
	big := k.temp(x.Bytes()/max(numel(pick(in, dims)), 1), program.Temporaries)
	k.reduceOver("amax", x, dims)
	mag := k.temp(x.Bytes()/max(numel(pick(in, dims)), 1), program.Temporaries) // without infinite maxima
	k.scratch(x.Numel()/max(numel(pick(in, dims)), 1), program.Temporaries)
	k.free(mag)
	t := k.temp(x.Bytes(), program.Temporaries)
	shape := slices.Clone(in)
	for _, d := range dims {
		shape[d] = 1
	}
	if !c.bool(2, "keepdim", false) {
		shape = without(in, dims)
	}
	o := k.alloc(shape, nil, x.DType)
	k.reduceOver("sum", x, dims)
	k.free(t, big)
	k.end()
	e.record("LogsumexpBackward0", []*Tensor{o}, []*Tensor{x}, []*Tensor{x, o}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		d := e.unary("sub", graph.Undefined, s[0], keepDims(e, s[1], in, dims))
		x := e.unary("exp", graph.Undefined, d)
		w := e.unary("mul", graph.Undefined, x, keepDims(e, g[0], in, dims))
		e.hold(x, d)
		return []*Tensor{w}
	})
	return []*Tensor{o}
}

func pick(shape []int64, dims []int) []int64 {
	var out []int64
	for _, d := range dims {
		out = append(out, shape[d])
	}
	return out
}

func without(shape []int64, dims []int) []int64 {
	var out []int64
	for i, d := range shape {
		if !slices.Contains(dims, i) {
			out = append(out, d)
		}
	}
	return out
}

// runProd multiplies all elements, or those along a dim. Backward counts the
// operand's zeros first, and divides the result by the operand if there are none
// (torch/csrc/autograd/FunctionsManual.cpp, prod_backward).
func runProd(e *Eager, c *Call) []*Tensor {
	x := c.need(0, "self")
	one := c.Over == "dim_int" || !c.none(1, "dim")
	dims, keep, d := reduceDims(c, x, 1), c.bool(2, "keepdim", false), c.dtype(3, "dtype")
	if d == graph.Undefined {
		d = c.dtype(-1, "dtype")
	}
	if d == graph.Undefined {
		d = x.DType
	}
	o := reducing(e, "prod", x, dims, reducedShape(x, dims, keep), d).end()
	in := x.Shape
	e.record("ProdBackward0", []*Tensor{o}, []*Tensor{x}, []*Tensor{x, o}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		self := toType(e, s[0], g[0].DType)
		zero := computes(e, "eq s 0", graph.Bool, self)
		var count *Tensor
		if one {
			count = reduceKernel(e, "sum", zero, dims, true, graph.Int64)
			all := sub(e, "sum", count, []int(nil))
			e.hold(all)
		} else {
			k := e.begin("nonzero", zero).inexact("no zeros")
			k.nonzero(zero, nil)
			k.end()
			e.hold(zero)
			zero = nil
		}
		q := e.elementwise("div", d, keepDims(e, s[1], in, dims), self).end()
		w := e.elementwise("mul", d, keepDims(e, g[0], in, dims), q).end()
		e.hold(q, count, zero)
		if self != s[0] {
			e.hold(self)
		}
		return []*Tensor{w}
	})
	return []*Tensor{o}
}
