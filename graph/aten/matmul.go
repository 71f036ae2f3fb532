package aten

import (
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// blasReady reports whether cuBLAS can read the last two dims of t without a
// copy: one has stride 1 and the other is at least as long as a row.
func blasReady(t *Tensor) bool {
	r, c := t.dim()-2, t.dim()-1
	rs, cs := t.Strides[r], t.Strides[c]
	m, n := t.Shape[r], t.Shape[c]
	return cs == 1 && rs >= max(n, 1) || rs == 1 && cs >= max(m, 1) || m == 1 && cs == 1 || n == 1 && rs == 1
}

// gemmKernel appends op, a product of a [.., m, k] and b [.., k, n], and
// copies operands that cuBLAS cannot read.
func gemmKernel(e *Eager, op string, a, b, add *Tensor) *Tensor {
	return gemmScaled(e, op, a, b, add, factors{1, 1})
}

// factors scale the addend and the product of addmm and baddbmm.
type factors struct{ beta, alpha float64 }

func (c *Call) factors() factors { return factors{c.float(-1, "beta", 1), c.float(-1, "alpha", 1)} }

// gemmScaled is gemmKernel with factors.
func gemmScaled(e *Eager, op string, a, b, add *Tensor, f factors) *Tensor {
	n := a.dim()
	if b.dim() != n || a.Shape[n-1] != b.Shape[n-2] {
		fail("inner dimensions differ: %v x %v", a.Shape, b.Shape)
	}
	var k *kernel
	if add == nil {
		k = e.begin(op, a, b)
	} else {
		k = e.begin(op, add, a, b)
	}
	if f != (factors{1, 1}) {
		k.scalars(f.beta, f.alpha)
	}
	shape := append(slices.Clone(a.Shape[:n-1]), b.Shape[n-1])
	o := k.alloc(shape, nil, a.DType)
	var copies []program.StorageID
	for _, t := range []*Tensor{a, b} {
		if !blasReady(t) {
			copies = append(copies, k.temp(t.Bytes(), program.Temporaries))
		}
	}
	biased := add != nil && add.dim() == 1
	if !biased || !e.GemmPerCall {
		k.gemm()
	}
	if biased {
		k.lt()
	}
	slices.Reverse(copies)
	k.free(copies...)
	return k.products(program.Product, 2*o.Numel()*a.Shape[n-1]).end()
}

// columnMajor reports whether the first stride of a matrix is 1, as in the
// transpose of a contiguous one.
func columnMajor(strides, shape []int64) bool {
	return strides[0] == 1 && strides[1] == shape[0]
}

// mm multiplies matrices; each gradient has the layout of its operand, so that
// a transposed weight's gradient needs no copy (FunctionsManual.cpp,
// mm_mat1_grad and mm_mat2_grad).
func mm(e *Eager, a, b *Tensor) *Tensor {
	o := gemmKernel(e, "mm", a, b, nil)
	e.record("MmBackward0", []*Tensor{o}, []*Tensor{a, b}, gemmSaved(a, b), func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		if need[1] {
			outs[1] = mat2Grad(e, g[0], s[1], b)
		}
		if need[0] {
			outs[0] = mat1Grad(e, g[0], s[0], a)
		}
		return outs
	})
	return o
}

// gemmSaved returns what a product saves: [second, first], each only if the
// other requires a gradient.
func gemmSaved(a, b *Tensor) []*Tensor {
	s := make([]*Tensor, 2)
	if a.RequiresGrad() {
		s[0] = b
	}
	if b.RequiresGrad() {
		s[1] = a
	}
	return s
}

func mat1Grad(e *Eager, g, mat2, like *Tensor) *Tensor {
	if columnMajor(like.Strides, like.Shape) {
		return swapLast(e, gemmKernel(e, "mm", mat2, swapLast(e, g), nil))
	}
	return gemmKernel(e, "mm", g, swapLast(e, mat2), nil)
}

func mat2Grad(e *Eager, g, mat1, like *Tensor) *Tensor {
	if columnMajor(like.Strides, like.Shape) {
		return swapLast(e, gemmKernel(e, "mm", swapLast(e, g), mat1, nil))
	}
	return gemmKernel(e, "mm", swapLast(e, mat1), g, nil)
}

// swapLast shows a tensor with its last two dims exchanged.
func swapLast(e *Eager, t *Tensor) *Tensor {
	n := t.dim()
	shape, st := slices.Clone(t.Shape), slices.Clone(t.Strides)
	shape[n-1], shape[n-2] = shape[n-2], shape[n-1]
	st[n-1], st[n-2] = st[n-2], st[n-1]
	return e.view(t, shape, st, 0)
}

// scaledGrad multiplies a gradient that was just made, unless by 1 (maybe_multiply in
// torch/csrc/autograd/FunctionsManual.cpp).
func scaledGrad(e *Eager, g *Tensor, by float64) *Tensor {
	if by == 1 {
		return g
	}
	o := times(e, g, by)
	e.hold(g)
	return o
}

func addmm(e *Eager, bias, a, b *Tensor, f factors) *Tensor {
	o := gemmScaled(e, "addmm", a, b, bias, f)
	saved := gemmSaved(a, b)
	saved[0], saved[1] = saved[1], saved[0] // autograd releases mat1 before mat2
	e.record("AddmmBackward0", []*Tensor{o}, []*Tensor{bias, a, b}, saved, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 3)
		if need[1] {
			outs[1] = scaledGrad(e, mat1Grad(e, g[0], s[1], a), f.alpha)
		}
		if need[2] {
			outs[2] = scaledGrad(e, mat2Grad(e, g[0], s[0], b), f.alpha)
		}
		switch {
		case need[0] && f.beta != 1:
			outs[0] = times(e, g[0], f.beta)
		case need[0]:
			outs[0] = g[0]
		}
		return outs
	})
	return o
}

func bmm(e *Eager, a, b *Tensor) *Tensor {
	o := gemmKernel(e, "bmm", a, b, nil)
	e.record("BmmBackward0", []*Tensor{o}, []*Tensor{a, b}, gemmSaved(a, b), func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		if need[1] {
			outs[1] = gemmKernel(e, "bmm", swapLast(e, s[1]), g[0], nil)
		}
		if need[0] {
			outs[0] = gemmKernel(e, "bmm", g[0], swapLast(e, s[0]), nil)
		}
		return outs
	})
	return o
}

// foldable reports whether matmul flattens the batch dims of t into one large
// product with a matrix (LinearAlgebra.cpp, should_fold). A view requires a gradient
// if its base does, even in inference (DifferentiableViewMeta::requires_grad).
func foldable(t, m *Tensor) bool {
	if m.RequiresGrad() || m.requiresGrad || t.Numel() == 0 || m.dim() == 1 {
		return true
	}
	for i := range max(t.dim()-2, 0) {
		if t.Strides[i] != t.Strides[i+1]*t.Shape[i+1] {
			return false
		}
	}
	return true
}

// matmul is at::matmul: a product of matrices, a folded product of a batch with
// one matrix, or a batched product of operands expanded to one batch.
func matmul(e *Eager, op string, a, b *Tensor) *Tensor {
	da, db := a.dim(), b.dim()
	switch {
	case da == 0 || db == 0:
		fail("a scalar operand: %v x %v", a.Shape, b.Shape)
	case da == 2 && db == 2:
		return mm(e, a, b)
	case da == 1 && db <= 2:
		return squeeze(e, matmul(e, op, unsqueeze(e, a, 0), b), 0)
	case db == 1 && da == 2 || db == 1 && da == 1:
		return squeeze(e, matmul(e, op, a, unsqueeze(e, b, 1)), da-1)
	case da >= 3 && db <= 2 && foldable(a, b):
		return foldLeft(e, op, a, b)
	case db >= 3 && da == 1 && foldable(b, a):
		return foldLeft(e, op, transpose(e, b, db-2, db-1), a)
	case db >= 3 && da == 2 && foldable(b, a):
		t := foldLeft(e, op, transpose(e, b, db-2, db-1), transpose(e, a, 0, 1))
		return transpose(e, t, t.dim()-2, t.dim()-1)
	}
	return batched(e, op, a, b)
}

func foldLeft(e *Eager, op string, a, b *Tensor) *Tensor {
	vec := b.dim() == 1
	if vec {
		b = unsqueeze(e, b, 1)
	}
	k := a.Shape[a.dim()-1]
	flat := reshape(e, op, a, []int64{a.Numel() / max(k, 1), k})
	o := mm(e, flat, b)
	shape := append(slices.Clone(a.Shape[:a.dim()-1]), b.Shape[1])
	if vec {
		shape = shape[:len(shape)-1]
	}
	return unsafeView(e, o, shape)
}

// unsafeView shows a result that was just made in its final shape.
func unsafeView(e *Eager, t *Tensor, shape []int64) *Tensor {
	in := t.Shape
	st, ok := viewStrides(t, shape)
	if !ok {
		return reshape(e, "reshape", t, shape)
	}
	return viewOp(e, "UnsafeViewBackward0", t, shape, st, 0, func(e *Eager, g *Tensor) *Tensor {
		return reshape(e, "reshape", g, in)
	})[0]
}

func batched(e *Eager, op string, a, b *Tensor) *Tensor {
	ba, bb := a.Shape[:max(a.dim()-2, 0)], b.Shape[:max(b.dim()-2, 0)]
	batch, ok := broadcast(&Tensor{View: shapeOnly(ba)}, &Tensor{View: shapeOnly(bb)})
	if !ok {
		fail("batch dimensions differ: %v x %v", a.Shape, b.Shape)
	}
	n := numel(batch)
	prep := func(t *Tensor) *Tensor {
		tail := t.Shape[t.dim()-2:]
		x := expand(e, t, append(slices.Clone(batch), tail...))
		return reshape(e, op, x, append([]int64{n}, tail...))
	}
	pa, pb := prep(a), prep(b)
	o := bmm(e, pa, pb)
	return unsafeView(e, o, append(slices.Clone(batch), o.Shape[1:]...))
}

func shapeOnly(s []int64) program.View { return program.View{Shape: s} }

// linear is at::linear: one fused product with bias where the input is a
// matrix or contiguous, else matmul and an addition in place.
func linear(e *Eager, op string, x, w, b *Tensor) *Tensor {
	if w.dim() != 2 {
		return matmul(e, op, x, w)
	}
	wt := transpose(e, w, 0, 1)
	switch {
	case b != nil && x.dim() == 2:
		return addmm(e, b, x, wt, factors{1, 1})
	case b != nil && x.dim() > 2 && x.contiguous():
		k := x.Shape[x.dim()-1]
		flat := reshape(e, op, x, []int64{x.Numel() / max(k, 1), k})
		o := addmm(e, b, flat, wt, factors{1, 1})
		return reshape(e, op, o, append(slices.Clone(x.Shape[:x.dim()-1]), w.Shape[0]))
	}
	o := matmul(e, op, x, wt)
	if b == nil {
		return o
	}
	sum := addTo(e, o, b)
	e.record("AddBackward0", []*Tensor{sum}, []*Tensor{o, b}, nil, func(_ *Eager, g, _ []*Tensor, need []bool) []*Tensor {
		return wanted(need, func(int) *Tensor { return g[0] })
	})
	return sum
}

// addTo adds b to a result that was just made, in place unless a dispatch mode
// watches the calls: isTensorSubclassLike is then true of every tensor.
func addTo(e *Eager, o, b *Tensor) *Tensor {
	if !e.sel.watches() {
		return into(e, "add", o, b)
	}
	sum := e.unary("add", o.DType, o, b)
	e.hold(o)
	return sum
}

func runLinear(e *Eager, c *Call) []*Tensor {
	return []*Tensor{linear(e, c.Op, c.need(0, "input"), c.need(1, "weight"), c.tensor(2, "bias"))}
}

func runMatmul(e *Eager, c *Call) []*Tensor {
	return []*Tensor{matmul(e, c.Op, c.need(0, "self"), c.need(1, "other"))}
}

func runMM(e *Eager, c *Call) []*Tensor {
	a, b := c.need(0, "self"), c.need(1, "mat2")
	if c.Op == "bmm" {
		return []*Tensor{bmm(e, a, b)}
	}
	return []*Tensor{mm(e, a, b)}
}

func runAddmm(e *Eager, c *Call) []*Tensor {
	f := c.factors()
	if c.Inexact != "" { // same memory and time as without
		f = factors{1, 1}
	}
	return []*Tensor{addmm(e, c.need(0, "self"), c.need(1, "mat1"), c.need(2, "mat2"), f)}
}

// runBaddbmm adds a batched product to a tensor.
func runBaddbmm(e *Eager, c *Call) []*Tensor {
	t, a, b := c.need(0, "self"), c.need(1, "batch1"), c.need(2, "batch2")
	f := c.factors()
	o := gemmScaled(e, "baddbmm", a, b, t, f)
	e.record("BaddbmmBackward0", []*Tensor{o}, []*Tensor{t, a, b}, gemmSaved(a, b), func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 3)
		if need[1] {
			outs[1] = scaledGrad(e, gemmKernel(e, "bmm", g[0], swapLast(e, s[0]), nil), f.alpha)
		}
		if need[2] {
			outs[2] = scaledGrad(e, gemmKernel(e, "bmm", swapLast(e, s[1]), g[0], nil), f.alpha)
		}
		switch {
		case need[0] && f.beta != 1:
			outs[0] = times(e, g[0], f.beta)
		case need[0]:
			outs[0] = g[0]
		}
		return outs
	})
	return []*Tensor{o}
}

// runMv multiplies a matrix by a vector.
func runMv(e *Eager, c *Call) []*Tensor {
	return []*Tensor{mv(e, c.need(0, "self"), c.need(1, "vec"))}
}

func mv(e *Eager, a, v *Tensor) *Tensor {
	k := e.begin("mv", a, v)
	o := k.alloc(a.Shape[:1], nil, a.DType)
	k.gemm().flops(2 * a.Numel()).end()
	e.record("MvBackward0", []*Tensor{o}, []*Tensor{a, v}, []*Tensor{onlyFor(a, v), onlyFor(v, a)}, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		for i, t := range []*Tensor{a, v} {
			if need[i] {
				outs[i] = mvBackward(e, i, g[0], s, t)
			}
		}
		return outs
	})
	return o
}

// mvBackward is the gradient of the matrix (i = 0) or of the vector (i = 1) of a
// product. Each is saved only if the other requires a gradient.
func mvBackward(e *Eager, i int, g *Tensor, s []*Tensor, of *Tensor) *Tensor {
	var k *kernel
	if i == 0 {
		k = e.begin("ger", unsqueeze(e, g, 1), unsqueeze(e, s[0], 0)).does("mul")
	} else {
		k = e.begin("mv", transpose(e, s[1], 0, 1), g)
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
		return wanted(need, func(i int) *Tensor { return e.unary("mul", graph.Undefined, s[1-i], g[0]) })
	})
	return []*Tensor{o}
}
