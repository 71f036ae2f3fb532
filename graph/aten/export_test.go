package aten

import (
	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// A Placed says where an operand of a measured call lies, in elements.
type Placed struct {
	DType          graph.DType
	Shape, Strides []int64
	Offset, Elems  int64 // of the storage
}

// Place returns a tensor that exists before the call; a parameter requires a
// gradient.
func (e *Eager) Place(p Placed, parameter bool) *Tensor {
	t := e.Resident("operand", "", program.Inputs, p.DType, []int64{p.Elems}, parameter)
	t.View = program.View{Storage: t.Storage, DType: p.DType, Shape: p.Shape, Strides: p.Strides, Offset: p.Offset}
	if t.leaf != nil {
		t.leaf.outs = []outMeta{{p.Shape, p.DType}}
	}
	return t
}

// Head makes t the result of a node that lets go of its gradient.
func (e *Eager) Head(t *Tensor) {
	e.seq++
	t.fn = &gradNode{name: "Head", seq: e.seq, next: []edge{{}}, outs: []outMeta{{t.Shape, t.DType}}, call: -1,
		apply: func(e *Eager, g, _ []*Tensor, _ []bool) []*Tensor { e.Drop(g...); return make([]*Tensor, 1) }}
}

// Drop appends a node that takes tensors and lets go of the last first.
func (e *Eager) Drop(ts ...*Tensor) {
	e.begin("del", ts...).inexact("the test's").end()
	for i := len(ts) - 1; i >= 0; i-- {
		e.hold(ts[i])
	}
}

// Tail takes results and returns a loss whose node makes their gradients: laid
// out as they are, contiguous, or one element expanded.
func (e *Eager) Tail(outs []*Tensor, how string) *Tensor {
	e.Named("tail", "")
	e.begin("tail", outs...).inexact("the test's").end()
	e.seq++
	n := &gradNode{name: "Tail", seq: e.seq, outs: []outMeta{{nil, graph.Float32}}, call: -1}
	for _, t := range outs {
		n.next = append(n.next, edge{t.fn, t.outNr})
	}
	n.apply = func(e *Eager, _, _ []*Tensor, _ []bool) []*Tensor {
		grads := make([]*Tensor, len(outs))
		for i, t := range outs {
			grads[i] = e.gradient(t, how)
		}
		return grads
	}
	loss := host(graph.Float32, nil)
	loss.fn = n
	return loss
}

func (e *Eager) gradient(t *Tensor, how string) *Tensor {
	k := e.begin("gradient").inexact("the test's")
	switch {
	case how == "expand":
		one := k.alloc(repeat(1, t.dim()), nil, t.DType)
		k.end()
		return expand(e, one, t.Shape)
	case how == "like" && t.dense():
		k.alloc(t.Shape, t.Strides, t.DType)
	default:
		k.alloc(t.Shape, nil, t.DType)
	}
	return k.end()
}

// Named are the operators that facts name.
func (f Facts) Named() (out []string) {
	for i := range f {
		out = append(out, f[i].names...)
	}
	return out
}

// Any are all traits of a row.
func (f Facts) Any() (t Trait) {
	for i := range f {
		t |= f[i].trait
	}
	return t
}
