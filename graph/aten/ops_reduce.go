package aten

import (
	"math"
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// runVectorNorm is linalg_vector_norm and norm: operand and result are saved.
func runVectorNorm(e *Eager, c *Call) []*Tensor {
	x := c.need(0, "self")
	dims, keep := reduceDims(c, x, 2), c.bool(3, "keepdim", false)
	ord := c.float(1, "ord", float64(c.int(1, "ord", 2)))
	d := c.dtype(-1, "dtype")
	if d == graph.Undefined {
		d = x.DType
	}
	k := e.reducing("linalg_vector_norm", x, dims, reducedShape(x, dims, keep), d)
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
			self = e.toType(self, g[0].DType)
		}
		w := e.normGrad(ord, self, e.keepDims(s[1], in, dims), e.keepDims(g[0], in, dims), dims)
		if self != s[0] {
			e.hold(self)
		}
		return []*Tensor{w}
	})
	return []*Tensor{o}
}

// normGrad is the gradient of a norm r of x over dims (norm_backward in
// torch/csrc/autograd/FunctionsManual.cpp).
func (e *Eager) normGrad(ord float64, x, r, g *Tensor, dims []int) *Tensor {
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
		return e.step("zeros_like", d, x)
	case ord == 1:
		sign := e.step("sgn", x.DType, x)
		w := e.step("mul", d, sign, g)
		e.hold(sign)
		return w
	case math.IsInf(ord, 0):
		return e.maxNormGrad(x, r, g, dims)
	case ord < 1:
		mag := e.step("abs", x.DType, x)
		zero := e.step("eq", graph.Bool, x)
		sign := e.step("sgn", x.DType, x)
		scaled := e.step("mul", x.DType, sign, mag)
		e.hold(sign, zero, mag)
		p := e.step("pow", r.DType, r)
		q := e.step("mul", d, scaled, g)
		w := e.step("mul", d, q, p)
		e.hold(q, p, scaled)
		return w
	}
	mag := e.step("abs", x.DType, x)
	scaled := e.step("mul", x.DType, x, mag)
	e.hold(mag)
	p := e.step("pow", r.DType, r)
	q := e.step("div", d, g, p)
	e.hold(p)
	e.hold(e.step("eq", graph.Bool, r))
	w := e.step("mul", d, scaled, q)
	e.hold(q, scaled)
	return w
}

// step is one kernel of a formula whose operands are not told apart.
func (e *Eager) step(op string, d graph.DType, in ...*Tensor) *Tensor {
	return e.elementwise(op, d, in...).inexact("stands for several kernels").end()
}

// maxNormGrad spreads the gradient evenly over the elements of largest magnitude.
func (e *Eager) maxNormGrad(x, r, g *Tensor, dims []int) *Tensor {
	mag := e.step("abs", x.DType, x)
	same := e.step("eq", graph.Bool, mag, r)
	nan := e.step("isnan", graph.Bool, mag)
	most := e.step("logical_or", graph.Bool, same, nan)
	e.hold(nan, same)
	n := e.reduceKernel("sum", most, dims, true, graph.Int64)
	q := e.binary("div", g.DType, g, n)
	spread := e.step("mul", g.DType, most, q)
	sign := e.step("sgn", x.DType, x)
	w := e.step("mul", g.DType, spread, sign)
	e.hold(sign, spread, q, n, most, mag)
	return w
}

// normBackward says what the two kernels of a Euclidean norm's backward compute:
// the operand over the norm, 0 where the norm is, times the gradient.
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
	mag := k.temp(x.Bytes()/max(numel(pick(in, dims)), 1), program.Temporaries) // where the largest is infinite, it is left out
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
		d := e.unary("sub", graph.Undefined, s[0], e.keepDims(s[1], in, dims))
		x := e.unary("exp", graph.Undefined, d)
		w := e.unary("mul", graph.Undefined, x, e.keepDims(g[0], in, dims))
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

// runProd multiplies all elements, or those along a dim. Backward divides the result
// by the operand where that has no zeros, which it counts first
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
	o := e.reducing("prod", x, dims, reducedShape(x, dims, keep), d).end()
	in := x.Shape
	e.record("ProdBackward0", []*Tensor{o}, []*Tensor{x}, []*Tensor{x, o}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		self := e.toType(s[0], g[0].DType)
		zero := e.computes("eq s 0", graph.Bool, self)
		var count *Tensor
		if one {
			count = e.reduceKernel("sum", zero, dims, true, graph.Int64)
			all := e.sub("sum", count, []int(nil))
			e.hold(all)
		} else {
			k := e.begin("nonzero", zero).inexact("no zeros")
			k.nonzero(zero, nil)
			k.end()
			e.hold(zero)
			zero = nil
		}
		q := e.elementwise("div", d, e.keepDims(s[1], in, dims), self).end()
		w := e.elementwise("mul", d, e.keepDims(g[0], in, dims), q).end()
		e.hold(q, count, zero)
		if self != s[0] {
			e.hold(self)
		}
		return []*Tensor{w}
	})
	return []*Tensor{o}
}

// runMv and dot multiply with vectors.
func runMv(e *Eager, c *Call) []*Tensor {
	return []*Tensor{e.mv(c.need(0, "self"), c.need(1, "vec"))}
}

func (e *Eager) mv(a, v *Tensor) *Tensor {
	k := e.begin("mv", a, v)
	o := k.alloc(a.Shape[:1], nil, a.DType)
	k.gemm().flops(2 * a.Numel()).end()
	e.record("MvBackward0", []*Tensor{o}, []*Tensor{a, v}, []*Tensor{onlyFor(a, v), onlyFor(v, a)}, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		for i, t := range []*Tensor{a, v} {
			if need[i] {
				outs[i] = e.mvBackward(i, g[0], s, t)
			}
		}
		return outs
	})
	return o
}

// mvBackward is the gradient of the matrix (0) or of the vector (1) of a product, of
// which the vector and the matrix, each where the other wants a gradient, were saved.
func (e *Eager) mvBackward(i int, g *Tensor, s []*Tensor, of *Tensor) *Tensor {
	var k *kernel
	if i == 0 {
		k = e.begin("ger", e.unsqueeze(g, 1), e.unsqueeze(s[0], 0)).does("mul")
	} else {
		k = e.begin("mv", e.transpose(s[1], 0, 1), g)
	}
	k.alloc(of.Shape, nil, of.DType)
	return k.end()
}

func runDot(e *Eager, c *Call) []*Tensor {
	a, b := c.need(0, "self"), c.need(1, "tensor")
	k := e.begin("dot", a, b)
	o := k.alloc(nil, nil, a.DType)
	k.flops(2 * a.Numel()).end()
	e.record("DotBackward0", []*Tensor{o}, []*Tensor{a, b}, []*Tensor{onlyFor(b, a), onlyFor(a, b)}, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		for i := range outs {
			if need[i] {
				outs[i] = e.unary("mul", graph.Undefined, s[1-i], g[0])
			}
		}
		return outs
	})
	return []*Tensor{o}
}

// runCrossEntropy is cross_entropy_loss of class indices or probabilities.
func runCrossEntropy(e *Eager, c *Call) []*Tensor {
	x, target := c.need(0, "self"), c.tensor(1, "target")
	if target == nil {
		return nil
	}
	if smoothing := c.float(5, "label_smoothing", 0); target.DType.IsFloat() || smoothing != 0 {
		return []*Tensor{e.crossEntropyComposed(x, target, c.lossKind(), smoothing)}
	}
	return []*Tensor{e.crossEntropy(x, target, c.lossKind())}
}

// lossKind reads reduction and ignore_index.
func (c *Call) lossKind() lossKind {
	return lossKind{c.int(3, "reduction", meanLoss.reduction), c.int(4, "ignore_index", meanLoss.ignore), c.tensor(2, "weight")}
}

// runNLL is nll_loss of log-probabilities.
func runNLL(e *Eager, c *Call) []*Tensor {
	x, target := c.need(0, "self"), c.need(1, "target")
	return []*Tensor{e.nll(x, target, c.lossKind())}
}

// runMSE is mse_loss.
func runMSE(e *Eager, c *Call) []*Tensor {
	return []*Tensor{e.mse(c.need(0, "self"), c.need(1, "target"), c.int(2, "reduction", 1))}
}

// runBCE is binary_cross_entropy, of probabilities or of logits.
func runBCE(e *Eager, c *Call) []*Tensor {
	x, y, w := c.need(0, "self"), c.need(1, "target"), c.tensor(2, "weight")
	if c.Op == "binary_cross_entropy" {
		return []*Tensor{e.bce(x, y, w, c.int(3, "reduction", 1))}
	}
	return []*Tensor{e.bceWithLogits(x, y, w, c.tensor(3, "pos_weight"), c.int(4, "reduction", 1))}
}

// runGridSample saves the image and the grid.
func runGridSample(e *Eager, c *Call) []*Tensor {
	x, grid := c.need(0, "input"), c.need(1, "grid")
	n := x.dim()
	shape := append(slices.Clone(x.Shape[:2]), grid.Shape[1:n-1]...)
	k := e.begin(c.Op, x, grid).does("grid_sampler_2d")
	sampling := []float64{float64(c.int(2, "interpolation_mode", 0)), float64(c.int(3, "padding_mode", 0)), 0}
	if c.bool(4, "align_corners", false) {
		sampling[2] = 1
	}
	exact := n == 4 && sampling[0] < 2
	if k.scalars(sampling...); !exact {
		k.inexact("sampling in three dims, or by cubics")
	}
	o := k.alloc(shape, nil, x.DType)
	k.flops(8 * o.Numel()).end()
	e.record("GridSampler2DBackward0", []*Tensor{o}, []*Tensor{x, grid}, []*Tensor{grid, x}, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		k := e.begin("grid_sampler_2d_backward", g[0], s[0], s[1]).scalars(sampling...)
		if !exact {
			k.inexact("sampling in three dims, or by cubics")
		}
		outs := []*Tensor{nil, k.like(s[0])}
		if need[0] {
			outs[0] = k.like(s[1])
		}
		k.gives(outs[1], outs[0])
		k.end()
		return outs
	})
	return []*Tensor{o}
}
