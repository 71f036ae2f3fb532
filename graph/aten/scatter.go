package aten

import (
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// runScatter writes src, or a number, into a copy of self at the indices.
func runScatter(e *Eager, c *Call) []*Tensor {
	x, idx, src := c.need(0, "self"), c.need(2, "index"), c.tensor(3, "src")
	dim := wrap(c.int(1, "dim", 0), x.dim())
	// A number in place of src; other forms reduce.
	value := c.arg(3, "value")
	number := c.Op == "scatter" && src == nil && value != nil && (value.Kind == graph.ArgInt || value.Kind == graph.ArgFloat)
	exact := c.Op != "scatter_reduce" && c.arg(4, "reduce") == nil && (number || src != nil)
	said := func(k *kernel) *kernel {
		return k.inexactIf(!exact, "arguments of "+c.Op).dims(dim)
	}
	k := said(e.begin(c.Op, x, idx, src))
	if number {
		k.scalars(c.float(3, "value", 0))
	}
	o := c.target(k, x)
	reduce, include := "", c.bool(-1, "include_self", true)
	if a := c.arg(4, "reduce"); a != nil && c.Op == "scatter_reduce" {
		reduce = a.S
	}
	if reduce == "mean" { // the number of values at each index
		counts := k.temp(x.Bytes(), program.Temporaries)
		ones := k.temp(src.Bytes(), program.Temporaries)
		k.scratch(x.Numel(), program.Temporaries)
		k.free(ones, counts)
	}
	k.end()
	node := map[string]string{"scatter": "ScatterBackward0", "scatter_add": "ScatterAddBackward0", "scatter_reduce": "ScatterReduceBackward0"}[c.Op]
	saved := []*Tensor{idx}
	if c.Op == "scatter_reduce" {
		saved = []*Tensor{idx, o, x, src}
	}
	add := c.Op == "scatter_add"
	e.record(node, []*Tensor{o}, []*Tensor{x, src}, saved, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		if reduce == "sum" || reduce == "mean" || reduce == "amax" || reduce == "amin" {
			return scatterReduceBackward(e, reduce, include, dim, g[0], s, need)
		}
		if need[0] {
			if outs[0] = g[0]; !add {
				outs[0] = said(e.begin("scatter", g[0], s[0], nil)).scalars(0).makes(g[0].Shape, iteratorStrides(g[0].Shape, g[0]), g[0].DType)
			}
		}
		if need[1] {
			outs[1] = said(e.begin("gather", g[0], s[0])).makes(s[0].Shape, nil, g[0].DType)
		}
		return outs
	})
	return []*Tensor{o}
}

// scatterReduceBackward is scatter_reduce_backward
// (torch/csrc/autograd/FunctionsManual.cpp). It saves index, result, self and source.
func scatterReduceBackward(e *Eager, reduce string, include bool, dim int, g *Tensor, s []*Tensor, need []bool) []*Tensor {
	idx, result, self, src := s[0], s[1], s[2], s[3]
	gather := func(t *Tensor) *Tensor {
		return e.begin("gather", t, idx).dims(dim).makes(idx.Shape, nil, t.DType)
	}
	add := func(to, from *Tensor) *Tensor {
		k := e.begin("scatter_add", to, idx, from).dims(dim)
		k.like(to)
		return k.end()
	}
	outs := make([]*Tensor, 2)
	switch reduce {
	case "sum":
		outs[0] = g
		if need[1] {
			outs[1] = gather(g)
		}
	case "mean":
		start, ones := e.unary("zeros_like", g.DType, g), e.elementwise("ones_like", src.DType, src).does("fill").scalars(1).end()
		n := add(start, ones)
		e.hold(ones, start)
		e.hold(computes(e, "eq s 0", graph.Bool, n))
		outs[0] = binary(e, "div", g.DType, g, n)
		counts, parts := gather(n), gather(g)
		outs[1] = binary(e, "div", g.DType, parts, counts)
		e.hold(parts, counts, n)
	default:
		outs[0], outs[1] = extremeShares(e, g, result, self, src, gather, add)
	}
	if !include {
		k := e.begin("scatter", outs[0], idx, nil).dims(dim).scalars(0)
		k.like(outs[0])
		o := k.end()
		if outs[0] != g {
			e.hold(outs[0])
		}
		outs[0] = o
	}
	for i := range outs {
		if !need[i] && outs[i] != nil && outs[i] != g {
			e.hold(outs[i])
			outs[i] = nil
		}
	}
	return outs
}

// extremeShares distributes the gradient of an extreme evenly over the elements
// equal to it.
func extremeShares(e *Eager, g, result, self, src *Tensor, gather func(*Tensor) *Tensor, add func(a, b *Tensor) *Tensor) (own, other *Tensor) {
	equal := func(a, b *Tensor) *Tensor { return binary(e, "eq", graph.Bool, a, b) }
	count := func(a, b *Tensor) *Tensor {
		same := equal(a, b)
		n := e.toDType("to", same, a.DType)
		e.hold(same)
		return n
	}
	value := gather(result)
	a, b := count(self, result), count(src, value)
	n := add(a, b)
	share := binary(e, "div", g.DType, g, n)
	same := equal(self, result)
	own = binary(e, "mul", g.DType, same, share)
	e.hold(same)
	parts := gather(share)
	same = equal(src, value)
	other = binary(e, "mul", g.DType, same, parts)
	e.hold(same, parts, share, n, b, a, value)
	return own, other
}

// target is the tensor that a call writes: its first operand if the model's code
// updates that in place, else a new tensor like it.
func (c *Call) target(k *kernel, x *Tensor) *Tensor {
	if !c.InPlace || x.leaf != nil || x.Storage < 0 {
		return k.like(x)
	}
	o := &Tensor{View: x.View}
	k.out(o)
	return o
}

// runIndexAdd adds src into a copy of self.
func runIndexAdd(e *Eager, c *Call) []*Tensor {
	x, idx, src := c.need(0, "self"), c.need(2, "index"), c.need(3, "source")
	dim := wrap(c.int(1, "dim", 0), x.dim())
	k := e.begin(c.Op, x, idx, src).dims(dim)
	alpha := c.float(-1, "alpha", 1)
	k.inexactIf(alpha != 1, "arguments of "+c.Op)
	o := c.target(k, x)
	k.end()
	in := src.Shape
	e.record("IndexAddBackward0", []*Tensor{o}, []*Tensor{x, src}, []*Tensor{idx, src}, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor { // the source for its shape
		outs := make([]*Tensor, 2)
		if need[0] {
			outs[0] = g[0]
		}
		if need[1] {
			if outs[1] = e.begin("index_select", g[0], s[0]).dims(dim).makes(in, nil, g[0].DType); alpha != 1 {
				outs[1] = scaled(e, outs[1], alpha)
			}
		}
		return outs
	})
	return []*Tensor{o}
}

// runIndexPut writes values at the indices. Models write x[i] = v, which
// overwrites x unless x is a leaf.
func runIndexPut(e *Eager, c *Call) []*Tensor {
	x, v := c.need(0, "self"), c.need(2, "values")
	idx := present(c.tensors(1, "indices"))
	dims, shape, exact := c.putAt(x, v, idx)
	said := func(k *kernel) *kernel {
		return k.inexactIf(!exact, "arguments of "+c.Op).dims(dims...)
	}
	add := 0.0
	if c.bool(3, "accumulate", false) {
		add = 1
	}
	k := said(e.begin(c.Op, append([]*Tensor{x, v}, idx...)...)).does("index_put").scalars(add)
	var o *Tensor
	if x.leaf == nil && x.Storage >= 0 {
		o = &Tensor{View: x.View}
		k.out(o)
	} else {
		o = k.like(x)
	}
	if add != 0 {
		k.accumulated(v, idx, x.Shape, dims, shape)
	} else {
		k.free(k.indices(idx, 0)...)
	}
	k.end()
	in := v.Shape
	e.record("IndexPutBackward0", []*Tensor{o}, []*Tensor{x, v}, idx, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		values := func() {
			k := said(e.begin("index", append(g[:1:1], s...)...))
			if shape == nil {
				shape = in
			}
			temps := k.indices(s, 0)
			k.alloc(shape, nil, g[0].DType)
			k.free(temps...)
			outs[1] = sumTo(e, k.end(), in) // of broadcast values
		}
		switch {
		case !need[0]:
		case add != 0:
			outs[0] = g[0]
		default:
			k := said(e.begin("index_put", append([]*Tensor{g[0], number(g[0].DType, 0)}, s...)...)).scalars(0)
			zeros := k.temp(g[0].DType.Bytes(numel(in)), program.Temporaries)
			k.alloc(g[0].Shape, iteratorStrides(g[0].Shape, g[0]), g[0].DType)
			k.free(k.indices(s, 0)...)
			k.free(zeros)
			outs[0] = k.end()
		}
		if need[1] {
			values()
		}
		return outs
	})
	return []*Tensor{o}
}

// accumulated adds the scratch of index_put_ with accumulate: finding the smallest
// and largest of each index, and adding sorted values, which are viewed in the
// indices' shape.
func (k *kernel) accumulated(v *Tensor, idx []*Tensor, in []int64, dims []int, shape []int64) {
	for _, t := range idx {
		for _, op := range []string{"max", "min"} {
			all := make([]int, t.dim())
			for i := range all {
				all[i] = i
			}
			one := k.temp(8, program.Temporaries)
			k.reduceOver(op, t, all)
			k.free(k.temp(1, program.Temporaries), one)
		}
	}
	if shape != nil && v != nil {
		if _, ok := broadcast(&Tensor{View: program.View{Shape: shape}}, v); ok && len(shape) >= v.dim() {
			v = expanded(v, shape)
		}
	}
	k.sortedPut(v, idx, in, dims, 0)
}

// putAt returns the dims that have an index, and the shape of the values there;
// exact is whether the values broadcast to it and no index is a mask.
func (c *Call) putAt(x, v *Tensor, idx []*Tensor) (dims []int, shape []int64, exact bool) {
	dims = c.indexed(x)
	if len(dims) != len(idx) || v == nil {
		return dims, nil, false
	}
	for _, t := range idx {
		if t.DType != graph.Int64 && t.DType != graph.Int32 {
			return dims, nil, false
		}
	}
	at, ok := broadcast(idx...)
	if !ok {
		return dims, nil, false
	}
	lead := dims[0]
	for i := range dims {
		if dims[i] != dims[0]+i { // dims between them: the indexed dims come first
			lead = 0
		}
	}
	for d, n := range x.Shape {
		if d == lead {
			shape = append(shape, at...)
		}
		if !slices.Contains(dims, d) {
			shape = append(shape, n)
		}
	}
	whole := &Tensor{View: program.View{Shape: shape}}
	sum, ok := broadcast(whole, v)
	return dims, shape, ok && slices.Equal(sum, shape)
}

// runCopyInto is the export of copy_ and fill_ on a view of another tensor: the
// write itself, which allocates nothing. runWindow returns the base.
func runCopyInto(e *Eager, c *Call) []*Tensor {
	x, src := c.need(0, "self"), c.tensor(1, "src")
	k := e.begin(c.Op+"_", x, src)
	switch v := c.arg(1, "value"); {
	case src != nil && src.Storage != program.None:
		k.does("copy").attrs().Args = []program.Arg{{In: 1}}
	case c.Op == "fill" && v != nil && (v.Kind == graph.ArgInt || v.Kind == graph.ArgFloat):
		k.does("fill").scalars(c.float(1, "value", 0)).attrs().Args = []program.Arg{{In: 0}}
	default:
		k.inexact("arguments of " + c.Op)
	}
	o := &Tensor{View: x.View}
	k.out(o)
	k.end()
	if src == nil {
		return []*Tensor{o}
	}
	to, d := src.Shape, src.DType
	e.record("CopyBackwards", []*Tensor{o}, []*Tensor{nil, src}, nil, func(e *Eager, g, _ []*Tensor, _ []bool) []*Tensor {
		r := sumTo(e, g[0], to)
		if r.DType != d {
			r = e.toDType("to", r, d)
		}
		return []*Tensor{nil, r}
	})
	return []*Tensor{o}
}

// runWindow is slice_scatter and select_scatter, the export of a write into a
// view. It returns the base itself, whose history leads through the view
// (torch/csrc/autograd/functions/tensor.cpp, CopySlices).
func runWindow(e *Eager, c *Call) []*Tensor {
	x, src := c.need(0, "self"), c.need(1, "src")
	o := &Tensor{View: x.View}
	if x.leaf != nil || x.Storage < 0 {
		k := e.begin(c.Op, x, src).inexact("arguments of " + c.Op)
		o = k.like(x)
		k.end()
	}
	in := src.Shape
	window := c.window(x)
	e.record("CopySlices", []*Tensor{o}, []*Tensor{x, src}, nil, func(e *Eager, g, _ []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		outs[0] = e.elementwise("new_empty_strided", graph.Undefined, g[0]).does("copy").end()
		at := window(e, outs[0])
		if need[1] {
			outs[1] = e.begin("clone", at).does("copy").makes(in, nil, g[0].DType)
		}
		k := e.begin("zero_", at).does("fill").scalars(0) // overwritten elements have no gradient
		k.out(at)
		k.end()
		return outs
	})
	return []*Tensor{o}
}

// window returns a function that shows the part of a tensor of x's shape that
// slice_scatter or select_scatter writes.
func (c *Call) window(x *Tensor) func(e *Eager, t *Tensor) *Tensor {
	d := wrap(c.int(2, "dim", 0), x.dim())
	clip := func(i int64) int64 {
		if i < 0 {
			i += x.Shape[d]
		}
		return min(max(i, 0), x.Shape[d])
	}
	from, to, step := clip(c.int(3, "start", 0)), clip(c.int(4, "end", x.Shape[d])), max(c.int(5, "step", 1), 1)
	if c.Op == "select_scatter" {
		from = clip(c.int(3, "index", 0))
	}
	return func(e *Eager, t *Tensor) *Tensor {
		shape, st := slices.Clone(t.Shape), slices.Clone(t.Strides)
		at := from * st[d]
		if c.Op == "select_scatter" {
			return e.view(t, slices.Delete(shape, d, d+1), slices.Delete(st, d, d+1), at)
		}
		shape[d], st[d] = max(to-from+step-1, 0)/step, step*st[d]
		return e.view(t, shape, st, at)
	}
}

// runUnfold shows windows along a dim: a view with one more dim.
func runUnfold(e *Eager, c *Call) []*Tensor {
	t := c.need(0, "self")
	d, size, step := wrap(c.int(1, "dimension", 0), t.dim()), c.int(2, "size", 1), max(c.int(3, "step", 1), 1)
	shape, st := slices.Clone(t.Shape), slices.Clone(t.Strides)
	if size > shape[d] {
		fail("windows of %d along %d elements", size, shape[d])
	}
	shape[d], st[d] = (shape[d]-size)/step+1, st[d]*step
	in := t.Shape
	return viewOp(e, "UnfoldBackward0", t, append(shape, size), append(st, t.Strides[d]), 0, func(e *Eager, g *Tensor) *Tensor {
		w := contiguousStrides(in)
		along := w[d]
		w[d] *= step
		o := zeros(e, "unfold_backward", in, g, append(w, along), 0)
		if step >= size { // windows do not overlap
			return o
		}
		n := &e.P.Nodes[len(e.P.Nodes)-1]
		places := e.newStorage(program.Storage{Bytes: 8 * ((shape[d]-1)*step + size), Category: program.Temporaries, Name: n.Op, Module: e.module})
		n.Events = append(n.Events, program.Event{Storage: places}, program.Event{Storage: places, Free: true})
		return o
	})
}

// runDiagonal shows a diagonal of two dims as the last dim.
func runDiagonal(e *Eager, c *Call) []*Tensor {
	t := c.need(0, "self")
	off, a, b := c.int(1, "offset", 0), wrap(c.int(2, "dim1", 0), t.dim()), wrap(c.int(3, "dim2", 1), t.dim())
	n, at := min(t.Shape[a], t.Shape[b]-off), off*t.Strides[b]
	if off < 0 {
		n, at = min(t.Shape[a]+off, t.Shape[b]), -off*t.Strides[a]
	}
	var shape, st []int64
	for i := range t.Shape {
		if i != a && i != b {
			shape, st = append(shape, t.Shape[i]), append(st, t.Strides[i])
		}
	}
	in := t.Shape
	return viewOp(e, "DiagonalBackward0", t, append(shape, max(n, 0)), append(st, t.Strides[a]+t.Strides[b]), at, func(e *Eager, g *Tensor) *Tensor {
		w := contiguousStrides(in)
		var keep []int64
		for i := range w {
			if i != a && i != b {
				keep = append(keep, w[i])
			}
		}
		at := off * w[b]
		if off < 0 {
			at = -off * w[a]
		}
		return zeros(e, "diagonal_backward", in, g, append(keep, w[a]+w[b]), at)
	})
}

// runBroadcastIn is prims.broadcast_in_dim: the operand's dims go where the
// list says, the others are new.
func runBroadcastIn(e *Eager, c *Call) []*Tensor {
	t, shape := c.need(0, "a"), c.ints(1, "shape", 0, 0)
	at := c.ints(2, "broadcast_dimensions", 0, 0)
	if len(at) != t.dim() {
		fail("%d dims for %v", len(at), t.Shape)
	}
	for i := range shape {
		if !slices.Contains(at, int64(i)) {
			t = unsqueeze(e, t, min(i, t.dim()))
		}
	}
	return []*Tensor{expand(e, t, shape)}
}
