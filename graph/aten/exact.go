package aten

import (
	"fmt"
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// matchCapture gives the results of a call the element types and shared storages that
// the capture recorded. first is the call's first node.
func (e *Eager) matchCapture(c *Call, outs []*Tensor, first int) {
	if !c.Exact {
		return
	}
	for j, o := range outs {
		if o == nil || o.Storage == program.None || j >= len(c.Types) {
			continue
		}
		if o.DType != c.Types[j] && c.Types[j].Valid() && !c.Loose && !Is(c.Op, Recurrent) && e.made(o.Storage, first) {
			e.Warn("capture-type", fmt.Sprintf("%s gives %s where the capture has %s", c.Op, o.DType, c.Types[j]))
			if op := Lookup(c.Op); op == nil || op.Cast != Full || e.Config.Autocast == graph.Undefined || c.NoAutocast {
				e.retype(c, o, j, first)
			}
		}
		switch of := c.Shares[j]; {
		case of == nil:
		case of.Storage != o.Storage && of.Storage != program.None && e.made(o.Storage, first):
			if !c.InPlace {
				e.Warn("capture-storage", c.Op+" makes new memory where the capture shows a part of another tensor")
			}
			e.redirect(o, of, c.InPlace, first)
		}
	}
}

// made reports whether a node from first on allocates a storage.
func (e *Eager) made(id program.StorageID, first int) bool {
	for i := first; i < len(e.P.Nodes); i++ {
		if slices.Contains(e.P.Nodes[i].Events, program.Event{Storage: id}) {
			return true
		}
	}
	return false
}

// retype gives a new tensor another element type.
func (e *Eager) retype(c *Call, o *Tensor, j, first int) {
	o.DType = c.Types[j]
	e.P.Storages[o.Storage].Bytes = o.Bytes()
	for i := first; i < len(e.P.Nodes); i++ {
		n := &e.P.Nodes[i]
		for k := range n.Out {
			if n.Out[k].Storage == o.Storage {
				n.Out[k].DType = o.DType
			}
		}
	}
	if o.fn != nil && o.outNr < len(o.fn.outs) {
		o.fn.outs[o.outNr].dtype = o.DType
	}
}

// redirect moves a result to the storage of another tensor, which the call
// writes to or shows a part of.
func (e *Eager) redirect(o, to *Tensor, whole bool, first int) {
	old := o.Storage
	t := o.View
	t.Storage = to.Storage
	if whole && slices.Equal(o.Shape, to.Shape) {
		t = to.View
	}
	at := func(x *program.View) {
		if x.Storage == old {
			*x = t
		}
	}
	for i := first; i < len(e.P.Nodes); i++ {
		n := &e.P.Nodes[i]
		n.DropEvents(func(id program.StorageID) bool { return id == old })
		for k := range n.Out {
			at(&n.Out[k])
		}
		for k := range n.In {
			at(&n.In[k])
		}
		for _, list := range [][]program.StorageID{n.Reads, n.Holds} {
			for k := range list {
				if list[k] == old {
					list[k] = to.Storage
				}
			}
		}
	}
	if o.fn != nil {
		for k, id := range o.fn.results {
			if id == old {
				o.fn.results[k] = to.Storage
			}
		}
		for _, s := range o.fn.saved {
			if s != nil && s != o {
				at(&s.View)
			}
		}
	}
	if i := slices.Index(e.P.Saved, old); i >= 0 {
		e.P.Saved[i] = to.Storage
		if e.savedIDs[to.Storage] {
			e.P.Saved = slices.Delete(e.P.Saved, i, i+1)
		}
		e.savedIDs[to.Storage] = true
	}
	o.View = t
}

// Rebase gives a tensor that a call wrote to through a view the history of that
// write (torch/csrc/autograd/functions/tensor.cpp, CopySlices).
func (e *Eager) Rebase(base, view *Tensor) *Tensor {
	o := &Tensor{Name: base.Name, View: base.View}
	in, at := view.View, view.Offset-base.Offset
	e.record("CopySlices", []*Tensor{o}, []*Tensor{base, view}, nil, func(e *Eager, g, _ []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		k := e.begin("new_empty_strided", g[0]).does("copy")
		k.alloc(base.Shape, base.denseStrides(), g[0].DType)
		outs[0] = k.end()
		part := e.view(outs[0], in.Shape, in.Strides, at)
		if need[1] {
			k := e.begin("clone", part).does("copy")
			k.alloc(in.Shape, nil, g[0].DType)
			outs[1] = k.end()
		}
		z := e.begin("zero_", part).does("fill").scalars(0) // overwritten elements have no gradient
		z.out(part)
		z.end()
		return outs
	})
	return o
}

// Grow enlarges a tensor's storage beyond what the tensor shows.
func (e *Eager) Grow(t *Tensor, bytes int64) {
	if t.Storage != program.None && bytes <= MaxBytes && e.P.Storages[t.Storage].Life == program.Step {
		e.P.Storages[t.Storage].Bytes = max(e.P.Storages[t.Storage].Bytes, bytes)
	}
}

// Custom records an autograd function of the model's own, whose backward the
// capture does not show: it allocates a gradient for each input that needs one.
func (e *Eager) Custom(name string, outs, ins, saved []*Tensor) {
	like := slices.Clone(ins)
	e.record(name, outs, ins, saved, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		res := make([]*Tensor, len(need))
		for i := range need {
			if need[i] {
				k := e.begin(name+"_backward", append(slices.Clone(g), s...)...).inexact("a function of the model's own")
				k.alloc(like[i].Shape, nil, like[i].DType)
				res[i] = k.end()
			}
		}
		return res
	})
}

// asCaptured runs an operator that the table lacks from the capture alone: its
// results, the storages they share, and what autograd saved. Its backward is
// assumed to allocate a gradient for each operand whose size differs from the
// result's.
func (e *Eager) asCaptured(c *Call) []*Tensor {
	var ins []*Tensor
	eachTensor(c.Args, func(t *Tensor) { ins = append(ins, t) })
	k := e.begin(c.Op, ins...).inexact("no entry in the operator table")
	var outs []*Tensor
	floats, own := false, false
	for i := range c.Shapes {
		shape, d, ok := c.shape(i)
		if !ok || !d.Valid() {
			fail("result %d has no type in the capture", i)
		}
		floats = floats || d.IsFloat()
		if of := c.Shares[i]; of != nil && of.Storage != program.None {
			outs = append(outs, e.view(of, shape, contiguousStrides(shape), 0))
			continue
		}
		own = true
		outs = append(outs, k.alloc(shape, nil, d))
	}
	saved := slices.Clone(c.Saves)
	for _, n := range c.SavesNew {
		if n > 0 && n <= MaxBytes {
			saved = append(saved, k.alloc([]int64{n}, nil, graph.Uint8))
		}
	}
	k.end()
	if !floats || !e.grad {
		return outs
	}
	if own {
		e.Warn("capture-operator", fmt.Sprintf("no entry for %q: its memory is what the capture shows, its backward a guess", c.Op))
	}
	like := slices.Clone(ins)
	e.record(c.Op+"Backward", outs, ins, saved, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		res := make([]*Tensor, len(need))
		for i := range need {
			if !need[i] {
				continue
			}
			if got := first(g); got != nil && !own && got.Numel() == like[i].Numel() && got.DType == like[i].DType {
				res[i] = e.view(got, like[i].Shape, contiguousStrides(like[i].Shape), 0)
				continue
			}
			k := e.begin(c.Op+"_backward", append(slices.Clone(g), s...)...).inexact("no entry in the operator table")
			k.alloc(like[i].Shape, nil, like[i].DType)
			res[i] = k.end()
		}
		return res
	})
	return outs
}
