package aten

import (
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// runScatter writes src, or a number, into a copy of self at the indices.
func runScatter(e *Eager, c *Call) []*Tensor {
	x, idx, src := c.tensor(0, "self"), c.tensor(2, "index"), c.tensor(3, "src")
	k := e.begin(c.Op, x, idx, src).inexact("arguments of " + c.Op)
	o := k.like(x)
	k.end()
	node := map[string]string{"scatter": "ScatterBackward0", "scatter_add": "ScatterAddBackward0", "scatter_reduce": "ScatterReduceBackward0"}[c.Op]
	saved := []*Tensor{idx}
	if c.Op == "scatter_reduce" {
		saved = []*Tensor{idx, o, x, src}
	}
	add := c.Op == "scatter_add"
	e.record(node, []*Tensor{o}, []*Tensor{x, src}, saved, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		if need[0] {
			if outs[0] = g[0]; !add {
				outs[0] = e.elementwise("scatter", graph.Undefined, g[0]).inexact("arguments of " + c.Op).end()
			}
		}
		if need[1] {
			k := e.begin("gather", g[0], s[0]).inexact("arguments of " + c.Op)
			k.alloc(s[0].Shape, nil, g[0].DType)
			outs[1] = k.end()
		}
		return outs
	})
	return []*Tensor{o}
}

// runIndexAdd adds src into a copy of self.
func runIndexAdd(e *Eager, c *Call) []*Tensor {
	x, idx, src := c.tensor(0, "self"), c.tensor(2, "index"), c.tensor(3, "source")
	k := e.begin(c.Op, x, idx, src).inexact("arguments of " + c.Op)
	o := k.like(x)
	k.end()
	in := src.Shape
	e.record("IndexAddBackward0", []*Tensor{o}, []*Tensor{x, src}, []*Tensor{idx}, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		if need[0] {
			outs[0] = g[0]
		}
		if need[1] {
			k := e.begin("index_select", g[0], s[0]).inexact("arguments of " + c.Op)
			k.alloc(in, nil, g[0].DType)
			outs[1] = k.end()
		}
		return outs
	})
	return []*Tensor{o}
}

// runIndexPut writes values at the indices. Models write x[i] = v, which
// overwrites x unless x is a leaf.
func runIndexPut(e *Eager, c *Call) []*Tensor {
	x, v := c.tensor(0, "self"), c.tensor(2, "values")
	idx := present(c.tensors(1, "indices"))
	k := e.begin(c.Op, append([]*Tensor{x, v}, idx...)...).inexact("arguments of " + c.Op)
	var o *Tensor
	if x.leaf == nil && x.Storage >= 0 {
		o = &Tensor{Tensor: x.Tensor}
		k.out(o)
	} else {
		o = k.like(x)
	}
	k.end()
	in := v.Shape
	e.record("IndexPutBackward0", []*Tensor{o}, []*Tensor{x, v}, idx, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		if need[1] {
			k := e.begin("index", append(g[:1:1], s...)...).inexact("arguments of " + c.Op)
			k.alloc(in, nil, g[0].DType)
			outs[1] = k.end()
		}
		if need[0] {
			outs[0] = e.elementwise("index_put", graph.Undefined, g[0]).inexact("arguments of " + c.Op).end()
		}
		return outs
	})
	return []*Tensor{o}
}

// runCopyInto is the export of copy_ and fill_ on a window of another tensor:
// the write itself, which makes nothing. runWindow puts the window back.
func runCopyInto(e *Eager, c *Call) []*Tensor {
	x, src := c.tensor(0, "self"), c.tensor(1, "src")
	k := e.begin(c.Op+"_", x, src)
	switch v := c.arg(1, "value"); {
	case src != nil && src.Storage != program.None:
		k.does("copy").attrs().Args = []program.Arg{{In: 1}}
	case c.Op == "fill" && v != nil && (v.Kind == graph.ArgInt || v.Kind == graph.ArgFloat):
		k.does("fill").scalars(c.float(1, "value", 0)).attrs().Args = []program.Arg{{In: 0}}
	default:
		k.inexact("arguments of " + c.Op)
	}
	o := &Tensor{Tensor: x.Tensor}
	k.out(o)
	k.end()
	if src == nil {
		return []*Tensor{o}
	}
	to, d := src.Shape, src.DType
	e.record("CopyBackwards", []*Tensor{o}, []*Tensor{nil, src}, nil, func(e *Eager, g, _ []*Tensor, _ []bool) []*Tensor {
		r := e.sumTo(g[0], to)
		if r.DType != d {
			r = e.toDType("to", r, d)
		}
		return []*Tensor{nil, r}
	})
	return []*Tensor{o}
}

// runWindow is slice_scatter and select_scatter, the export of a write into a
// view: the base itself, with a history that leads through the window
// (torch/csrc/autograd/functions/tensor.cpp, CopySlices).
func runWindow(e *Eager, c *Call) []*Tensor {
	x, src := c.tensor(0, "self"), c.tensor(1, "src")
	o := &Tensor{Tensor: x.Tensor}
	if x.leaf != nil || x.Storage < 0 {
		k := e.begin(c.Op, x, src).inexact("arguments of " + c.Op)
		o = k.like(x)
		k.end()
	}
	in := src.Shape
	e.record("CopySlices", []*Tensor{o}, []*Tensor{x, src}, nil, func(e *Eager, g, _ []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		outs[0] = e.elementwise("new_empty_strided", graph.Undefined, g[0]).inexact("a gradient without the window of " + c.Op).end()
		if need[1] {
			k := e.begin("clone", outs[0]).inexact("the window of " + c.Op)
			k.alloc(in, nil, g[0].DType)
			outs[1] = k.end()
		}
		return outs
	})
	return []*Tensor{o}
}

// runUnfold shows windows along a dim: a view with one more dim.
func runUnfold(e *Eager, c *Call) []*Tensor {
	t := c.tensor(0, "self")
	d, size, step := wrap(c.int(1, "dimension", 0), t.dim()), c.int(2, "size", 1), max(c.int(3, "step", 1), 1)
	shape, st := slices.Clone(t.Shape), slices.Clone(t.Strides)
	if size > shape[d] {
		fail("windows of %d along %d elements", size, shape[d])
	}
	shape[d], st[d] = (shape[d]-size)/step+1, st[d]*step
	in := t.Shape
	return e.viewOp("UnfoldBackward0", t, append(shape, size), append(st, t.Strides[d]), 0, func(e *Eager, g *Tensor) *Tensor {
		w := contiguousStrides(in)
		along := w[d]
		w[d] *= step
		return e.zeros("unfold_backward", in, g, append(w, along), 0)
	})
}

// runDiagonal shows a diagonal of two dims as the last dim.
func runDiagonal(e *Eager, c *Call) []*Tensor {
	t := c.tensor(0, "self")
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
	return e.viewOp("DiagonalBackward0", t, append(shape, max(n, 0)), append(st, t.Strides[a]+t.Strides[b]), at, func(e *Eager, g *Tensor) *Tensor {
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
		return e.zeros("diagonal_backward", in, g, append(keep, w[a]+w[b]), at)
	})
}

// runBroadcastIn is prims.broadcast_in_dim: dims of the operand stand where
// the list says, the others are new.
func runBroadcastIn(e *Eager, c *Call) []*Tensor {
	t, shape := c.tensor(0, "a"), c.ints(1, "shape", 0, 0)
	at := c.ints(2, "broadcast_dimensions", 0, 0)
	if len(at) != t.dim() {
		fail("%d dims for %v", len(at), t.Shape)
	}
	for i := range shape {
		if !slices.Contains(at, int64(i)) {
			t = e.unsqueeze(t, min(i, t.dim()))
		}
	}
	return []*Tensor{e.expand(t, shape)}
}
