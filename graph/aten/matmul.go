package aten

import (
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// blasReady reports whether cuBLAS reads the last two dims of t as they lie:
// one of them has stride 1 and the other is at least as long as a row.
func blasReady(t *Tensor) bool {
	r, c := t.dim()-2, t.dim()-1
	rs, cs := t.Strides[r], t.Strides[c]
	m, n := t.Shape[r], t.Shape[c]
	return cs == 1 && rs >= max(n, 1) || rs == 1 && cs >= max(m, 1) || m == 1 && cs == 1 || n == 1 && rs == 1
}

// gemmKernel appends op, a product of a [.., m, k] and b [.., k, n], and
// copies operands that cuBLAS cannot read.
func (e *Eager) gemmKernel(op string, a, b, add *Tensor) *Tensor {
	return e.gemmScaled(op, a, b, add, factors{1, 1})
}

// factors are what addmm and baddbmm multiply the addend and the product by.
type factors struct{ beta, alpha float64 }

func (c *Call) factors() factors { return factors{c.float(-1, "beta", 1), c.float(-1, "alpha", 1)} }

// gemmScaled is gemmKernel with factors.
func (e *Eager) gemmScaled(op string, a, b, add *Tensor, f factors) *Tensor {
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

// columnMajor reports a matrix whose first stride is 1: the transpose of a
// contiguous one.
func columnMajor(strides, shape []int64) bool {
	return strides[0] == 1 && strides[1] == shape[0]
}

// mm multiplies matrices; the gradients are computed in the layout of what
// they are gradients of, so that a transposed weight's gradient needs no copy
// (FunctionsManual.cpp, mm_mat1_grad and mm_mat2_grad).
func (e *Eager) mm(a, b *Tensor) *Tensor {
	o := e.gemmKernel("mm", a, b, nil)
	e.record("MmBackward0", []*Tensor{o}, []*Tensor{a, b}, gemmSaved(a, b), func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		if need[1] {
			outs[1] = e.mat2Grad(g[0], s[1], b)
		}
		if need[0] {
			outs[0] = e.mat1Grad(g[0], s[0], a)
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

func (e *Eager) mat1Grad(g, mat2, like *Tensor) *Tensor {
	if columnMajor(like.Strides, like.Shape) {
		return e.swap(e.gemmKernel("mm", mat2, e.swap(g), nil))
	}
	return e.gemmKernel("mm", g, e.swap(mat2), nil)
}

func (e *Eager) mat2Grad(g, mat1, like *Tensor) *Tensor {
	if columnMajor(like.Strides, like.Shape) {
		return e.swap(e.gemmKernel("mm", e.swap(g), mat1, nil))
	}
	return e.gemmKernel("mm", e.swap(mat1), g, nil)
}

// swap shows a tensor with its last two dims exchanged.
func (e *Eager) swap(t *Tensor) *Tensor {
	n := t.dim()
	shape, st := slices.Clone(t.Shape), slices.Clone(t.Strides)
	shape[n-1], shape[n-2] = shape[n-2], shape[n-1]
	st[n-1], st[n-2] = st[n-2], st[n-1]
	return e.view(t, shape, st, 0)
}

// scale multiplies a gradient that was just made, unless by 1 (maybe_multiply in
// torch/csrc/autograd/FunctionsManual.cpp).
func (e *Eager) scale(g *Tensor, by float64) *Tensor {
	if by == 1 {
		return g
	}
	o := e.times(g, by)
	e.hold(g)
	return o
}

func (e *Eager) addmm(bias, a, b *Tensor, f factors) *Tensor {
	o := e.gemmScaled("addmm", a, b, bias, f)
	saved := gemmSaved(a, b)
	saved[0], saved[1] = saved[1], saved[0] // autograd lets go of mat1 before mat2
	e.record("AddmmBackward0", []*Tensor{o}, []*Tensor{bias, a, b}, saved, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 3)
		if need[1] {
			outs[1] = e.scale(e.mat1Grad(g[0], s[1], a), f.alpha)
		}
		if need[2] {
			outs[2] = e.scale(e.mat2Grad(g[0], s[0], b), f.alpha)
		}
		switch {
		case need[0] && f.beta != 1:
			outs[0] = e.times(g[0], f.beta)
		case need[0]:
			outs[0] = g[0]
		}
		return outs
	})
	return o
}

func (e *Eager) bmm(a, b *Tensor) *Tensor {
	o := e.gemmKernel("bmm", a, b, nil)
	e.record("BmmBackward0", []*Tensor{o}, []*Tensor{a, b}, gemmSaved(a, b), func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		if need[1] {
			outs[1] = e.gemmKernel("bmm", e.swap(s[1]), g[0], nil)
		}
		if need[0] {
			outs[0] = e.gemmKernel("bmm", g[0], e.swap(s[0]), nil)
		}
		return outs
	})
	return o
}

// foldable reports whether matmul flattens the batch dims of t for one large
// product with a matrix (LinearAlgebra.cpp, should_fold). A view requires a gradient
// where its base does, in an inference, too (DifferentiableViewMeta::requires_grad).
func foldable(t, m *Tensor) bool {
	if m.RequiresGrad() || m.shows || t.Numel() == 0 || m.dim() == 1 {
		return true
	}
	for i := range max(t.dim()-2, 0) {
		if t.Strides[i] != t.Strides[i+1]*t.Shape[i+1] {
			return false
		}
	}
	return true
}

// matmul is at::matmul: a product of matrices, a folded product of a batch
// with one matrix, or a batched product of operands brought to one batch.
func (e *Eager) matmul(op string, a, b *Tensor) *Tensor {
	da, db := a.dim(), b.dim()
	switch {
	case da == 0 || db == 0:
		fail("a scalar operand: %v x %v", a.Shape, b.Shape)
	case da == 2 && db == 2:
		return e.mm(a, b)
	case da == 1 && db <= 2:
		return e.squeeze(e.matmul(op, e.unsqueeze(a, 0), b), 0)
	case db == 1 && da == 2 || db == 1 && da == 1:
		return e.squeeze(e.matmul(op, a, e.unsqueeze(b, 1)), da-1)
	case da >= 3 && db <= 2 && foldable(a, b):
		return e.foldLeft(op, a, b)
	case db >= 3 && da == 1 && foldable(b, a):
		return e.foldLeft(op, e.transpose(b, db-2, db-1), a)
	case db >= 3 && da == 2 && foldable(b, a):
		t := e.foldLeft(op, e.transpose(b, db-2, db-1), e.transpose(a, 0, 1))
		return e.transpose(t, t.dim()-2, t.dim()-1)
	}
	return e.batched(op, a, b)
}

func (e *Eager) foldLeft(op string, a, b *Tensor) *Tensor {
	vec := b.dim() == 1
	if vec {
		b = e.unsqueeze(b, 1)
	}
	k := a.Shape[a.dim()-1]
	flat := e.reshape(op, a, []int64{a.Numel() / max(k, 1), k})
	o := e.mm(flat, b)
	shape := append(slices.Clone(a.Shape[:a.dim()-1]), b.Shape[1])
	if vec {
		shape = shape[:len(shape)-1]
	}
	return e.unsafeView(o, shape)
}

// unsafeView shows a result that was just made in its final shape.
func (e *Eager) unsafeView(t *Tensor, shape []int64) *Tensor {
	in := t.Shape
	st, ok := viewStrides(t, shape)
	if !ok {
		return e.reshape("reshape", t, shape)
	}
	return e.viewOp("UnsafeViewBackward0", t, shape, st, 0, func(e *Eager, g *Tensor) *Tensor {
		return e.reshape("reshape", g, in)
	})[0]
}

func (e *Eager) batched(op string, a, b *Tensor) *Tensor {
	ba, bb := a.Shape[:max(a.dim()-2, 0)], b.Shape[:max(b.dim()-2, 0)]
	batch, ok := broadcast(&Tensor{Tensor: shapeOnly(ba)}, &Tensor{Tensor: shapeOnly(bb)})
	if !ok {
		fail("batch dimensions differ: %v x %v", a.Shape, b.Shape)
	}
	n := numel(batch)
	prep := func(t *Tensor) *Tensor {
		tail := t.Shape[t.dim()-2:]
		x := e.expand(t, append(slices.Clone(batch), tail...))
		return e.reshape(op, x, append([]int64{n}, tail...))
	}
	pa, pb := prep(a), prep(b)
	o := e.bmm(pa, pb)
	return e.unsafeView(o, append(slices.Clone(batch), o.Shape[1:]...))
}

func shapeOnly(s []int64) program.Tensor { return program.Tensor{Shape: s} }

// linear is at::linear: one fused product with bias where the input is a
// matrix or contiguous, else matmul and an addition in place.
func (e *Eager) linear(op string, x, w, b *Tensor) *Tensor {
	if w.dim() != 2 {
		return e.matmul(op, x, w)
	}
	wt := e.transpose(w, 0, 1)
	switch {
	case b != nil && x.dim() == 2:
		return e.addmm(b, x, wt, factors{1, 1})
	case b != nil && x.dim() > 2 && x.contiguous():
		k := x.Shape[x.dim()-1]
		flat := e.reshape(op, x, []int64{x.Numel() / max(k, 1), k})
		o := e.addmm(b, flat, wt, factors{1, 1})
		return e.reshape(op, o, append(slices.Clone(x.Shape[:x.dim()-1]), w.Shape[0]))
	}
	o := e.matmul(op, x, wt)
	if b == nil {
		return o
	}
	sum := e.addTo(o, b)
	e.record("AddBackward0", []*Tensor{sum}, []*Tensor{o, b}, nil, func(_ *Eager, g, _ []*Tensor, need []bool) []*Tensor {
		return wanted(need, func(int) *Tensor { return g[0] })
	})
	return sum
}

// addTo adds b to a result that was just made, in place unless a dispatch mode
// watches, for which isTensorSubclassLike is true of every tensor.
func (e *Eager) addTo(o, b *Tensor) *Tensor {
	if !e.sel.watches() {
		return e.into("add", o, b)
	}
	sum := e.unary("add", o.DType, o, b)
	e.hold(o)
	return sum
}

func runLinear(e *Eager, c *Call) []*Tensor {
	return []*Tensor{e.linear(c.Op, c.need(0, "input"), c.need(1, "weight"), c.tensor(2, "bias"))}
}

func runMatmul(e *Eager, c *Call) []*Tensor {
	return []*Tensor{e.matmul(c.Op, c.need(0, "self"), c.need(1, "other"))}
}

func runMM(e *Eager, c *Call) []*Tensor {
	a, b := c.need(0, "self"), c.need(1, "mat2")
	if c.Op == "bmm" {
		return []*Tensor{e.bmm(a, b)}
	}
	return []*Tensor{e.mm(a, b)}
}

func runAddmm(e *Eager, c *Call) []*Tensor {
	f := c.factors()
	if c.Inexact != "" { // in the memory and the time of one without
		f = factors{1, 1}
	}
	return []*Tensor{e.addmm(c.need(0, "self"), c.need(1, "mat1"), c.need(2, "mat2"), f)}
}

// runBaddbmm adds a batched product to a tensor.
func runBaddbmm(e *Eager, c *Call) []*Tensor {
	t, a, b := c.need(0, "self"), c.need(1, "batch1"), c.need(2, "batch2")
	f := c.factors()
	o := e.gemmScaled("baddbmm", a, b, t, f)
	e.record("BaddbmmBackward0", []*Tensor{o}, []*Tensor{t, a, b}, gemmSaved(a, b), func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 3)
		if need[1] {
			outs[1] = e.scale(e.gemmKernel("bmm", g[0], e.swap(s[0]), nil), f.alpha)
		}
		if need[2] {
			outs[2] = e.scale(e.gemmKernel("bmm", e.swap(s[1]), g[0], nil), f.alpha)
		}
		switch {
		case need[0] && f.beta != 1:
			outs[0] = e.times(g[0], f.beta)
		case need[0]:
			outs[0] = g[0]
		}
		return outs
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
		return wanted(need, func(i int) *Tensor { return e.unary("mul", graph.Undefined, s[1-i], g[0]) })
	})
	return []*Tensor{o}
}
