package aten

import (
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/heap"
)

// backward computes the gradients of a node's inputs, nil where none is
// needed, from the gradients of its outputs (nil where undefined) and the
// tensors it saved.
type backward func(e *Eager, g, saved []*Tensor, need []bool) []*Tensor

// An outMeta holds what the engine checks a gradient against.
type outMeta struct {
	shape []int64
	dtype graph.DType
}

// An edge leads to the node that receives a gradient.
type edge struct {
	node *gradNode
	nr   int
}

// A gradNode is one node of the autograd graph.
type gradNode struct {
	name   string
	seq    int64
	module string
	fx     string
	call   int32
	next   []edge
	outs   []outMeta
	saved  []*Tensor
	apply  backward
	param  *Tensor // AccumulateGrad only

	seg      *Segment     // checkpointed segment that drops what the node saves, or nil
	off      *offRegion   // region whose saved tensors go to the host, or nil
	onHost   []*offloaded // of saved; nil for those that stay
	triggers bool         // it saves what regions offload, or would if they did not keep it

	results []program.StorageID // of outs

	deps   int
	buffer []*Tensor
	grad   *Tensor // AccumulateGrad: the gradient accumulated
}

// record adds the autograd node of a call: outs were computed from ins, and
// backward needs saved. It does nothing unless an input requires a gradient.
func (e *Eager) record(name string, outs, ins, saved []*Tensor, apply backward) {
	if !e.grad || !slices.ContainsFunc(ins, (*Tensor).RequiresGrad) {
		return
	}
	e.seq++
	n := &gradNode{name: name, seq: e.seq, module: e.module, fx: e.name, call: e.call, saved: saved, apply: apply}
	for _, t := range ins {
		switch {
		case t == nil:
			n.next = append(n.next, edge{})
		case t.fn != nil:
			n.next = append(n.next, edge{t.fn, t.outNr})
		default:
			n.next = append(n.next, edge{node: t.leaf})
		}
	}
	for i, o := range outs {
		n.outs = append(n.outs, outMeta{o.Shape, o.DType})
		n.results = append(n.results, o.Storage)
		if o.DType.IsFloat() {
			o.fn, o.outNr = n, i
		}
	}
	e.pack(n)
}

// pack keeps, drops or hands on the tensors that n saves.
func (e *Eager) pack(n *gradNode) {
	switch {
	case e.replay != nil:
		e.replay.pack(e, n)
	case e.dropping != nil:
		if n.saves() {
			e.tape = append(e.tape, e.dropping.drop(n))
		}
	default:
		e.noted = append(e.noted, n)
		if e.off != nil && e.off.open != nil {
			e.off.pack(e, n)
		}
		for i, t := range n.saved {
			if n.off == nil || n.onHost[i] == nil {
				e.noteSaved(t)
			}
		}
	}
}

// dropUnreached releases what is saved only by nodes that backward does not
// reach: those before a detach, which die with the variables and until then
// keep what they save. Call it once dependencies are counted.
func (e *Eager) dropUnreached(root *gradNode) {
	reached, unreached := map[program.StorageID]bool{}, map[program.StorageID]bool{}
	var dead []*gradNode
	for _, n := range e.noted {
		set := unreached
		if n == root || n.deps > 0 {
			set = reached
		} else {
			dead = append(dead, n)
		}
		for _, t := range n.saved {
			if t != nil {
				set[t.Storage] = true
			}
		}
	}
	e.noted = nil
	e.keepUnreached(dead)
	e.P.Saved = slices.DeleteFunc(e.P.Saved, func(id program.StorageID) bool { return unreached[id] && !reached[id] })
}

// keepUnreached holds what nodes that backward does not reach save until the
// last tensor computed from them with gradients is gone. The nodes are in the
// order of their calls.
func (e *Eager) keepUnreached(nodes []*gradNode) {
	if len(nodes) == 0 {
		return
	}
	last := e.lastTouched()
	end := map[*gradNode]int{}
	for _, n := range slices.Backward(nodes) {
		at := end[n]
		for _, id := range n.results {
			at = max(at, last[id])
		}
		for _, ed := range n.next {
			if ed.node != nil {
				end[ed.node] = max(end[ed.node], at)
			}
		}
		for _, t := range n.saved {
			if t != nil && t.Storage != program.None && last[t.Storage] < at {
				e.P.Nodes[at].Holds = append(e.P.Nodes[at].Holds, t.Storage)
				last[t.Storage] = at
			}
		}
	}
}

// lastTouched returns, for each storage, the last node so far that uses it.
func (e *Eager) lastTouched() map[program.StorageID]int {
	last := map[program.StorageID]int{program.None: 0}
	for i := range e.P.Nodes {
		n := &e.P.Nodes[i]
		for _, list := range [][]program.View{n.In, n.Out} {
			for j := range list {
				last[list[j].Storage] = i
			}
		}
		for _, list := range [][]program.StorageID{n.Reads, n.Holds} {
			for _, id := range list {
				last[id] = i
			}
		}
	}
	last[program.None] = 0
	return last
}

func (e *Eager) noteSaved(t *Tensor) {
	if t != nil && t.Storage != program.None && !e.savedIDs[t.Storage] {
		e.savedIDs[t.Storage] = true
		e.P.Saved = append(e.P.Saved, t.Storage)
	}
}

// An engine is one run of backward.
type engine struct {
	e    *Eager
	q    heap.Heap[*gradNode]
	refs map[program.StorageID]int // number of input buffers and gradients that hold a storage
}

// Backward runs the autograd graph from root with the gradient seed.
func (e *Eager) Backward(root, seed *Tensor) {
	if root.fn == nil {
		return
	}
	e.grad = false
	en := &engine{e: e, refs: map[program.StorageID]int{}}
	// The latest first, as the engine's ReadyQueue has them (torch/csrc/autograd/engine.cpp).
	en.q.Less = func(a, b *gradNode) bool { return a.seq > b.seq }
	countDeps(root.fn)
	e.dropUnreached(root.fn)
	en.put(edge{root.fn, root.outNr}, seed)
	en.q.Push(root.fn)
	for en.q.Len() > 0 {
		en.run(en.q.Pop())
	}
	e.autograd = ""
	e.hold(seed)
}

// countDeps counts for every reachable node how many nodes feed it.
func countDeps(root *gradNode) {
	seen := map[*gradNode]bool{root: true}
	stack := []*gradNode{root}
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for _, ed := range n.next {
			if ed.node == nil {
				continue
			}
			ed.node.deps++
			if !seen[ed.node] {
				seen[ed.node] = true
				stack = append(stack, ed.node)
			}
		}
	}
}

// run executes one node: its backward function, the engine's checks on the
// results, the release of what it saved, and the hand-over to the next nodes.
func (en *engine) run(n *gradNode) {
	e := en.e
	e.module, e.name, e.call = n.module, n.fx, n.call
	grads := n.buffer
	n.buffer = nil
	if n.param != nil {
		en.accumulate(n, grads[0])
		return
	}
	saved := e.unpack(n)
	e.autograd = n.name
	need := make([]bool, len(n.next))
	for i, ed := range n.next {
		need[i] = ed.node != nil
	}
	var out []*Tensor
	if slices.ContainsFunc(grads, func(t *Tensor) bool { return t != nil }) {
		out = n.apply(e, grads, saved, need)
	} else {
		out = make([]*Tensor, len(n.next))
	}
	e.autograd = ""
	// After hooks have unpacked them, only the function's variables own the
	// saved tensors, which go as variables do, the last first. The arguments of
	// a segment live on in its frame.
	inFunction := func(t *Tensor) bool {
		return n.seg == nil && (e.Hooks || n.off != nil) || n.seg != nil && t != nil && (t.Storage >= n.seg.fresh || n.seg.sel.owns(t.Storage))
	}
	for _, t := range slices.Backward(saved) {
		if inFunction(t) {
			e.hold(t)
		}
	}
	for i, g := range out {
		if g != nil && n.next[i].node != nil {
			out[i] = en.validate(g, n.next[i])
		}
	}
	e.hold(grads...)
	for _, t := range saved {
		if !inFunction(t) {
			e.hold(t)
		}
	}
	if n.seg != nil && len(n.saved) > 0 {
		n.seg.release(e)
	}
	n.saved, n.onHost, n.apply = nil, nil, nil
	for _, g := range grads {
		en.unref(g)
	}
	for i, ed := range n.next {
		if ed.node == nil {
			continue
		}
		if i < len(out) && out[i] != nil {
			en.put(ed, out[i])
		}
		if ed.node.deps--; ed.node.deps == 0 {
			if ed.node.buffer == nil {
				ed.node.buffer = make([]*Tensor, len(ed.node.outs))
			}
			en.q.Push(ed.node)
		}
	}
	e.hold(out...)
}

// validate casts and reduces a gradient to the shape and type of its tensor
// (engine.cpp, validate_outputs).
func (en *engine) validate(g *Tensor, to edge) *Tensor {
	m := to.node.outs[to.nr]
	if !slices.Equal(g.Shape, m.shape) {
		g = sumTo(en.e, g, m.shape)
	}
	if g.DType != m.dtype {
		g = en.e.toDType("to", g, m.dtype)
	}
	return g
}

func (en *engine) unref(t *Tensor) {
	if t != nil && t.Storage != program.None {
		en.refs[t.Storage]--
	}
}

// put adds a gradient to the input buffer of the node it goes to
// (torch/csrc/autograd/input_buffer.cpp, accumulate): in place when nobody
// else holds the buffered tensor, else into a new tensor.
func (en *engine) put(to edge, g *Tensor) {
	n := to.node
	if n.buffer == nil {
		n.buffer = make([]*Tensor, len(n.outs))
	}
	old := n.buffer[to.nr]
	if old == nil {
		n.buffer[to.nr] = g
		en.ref(g)
		return
	}
	e := en.e
	if en.refs[old.Storage] == 1 && !old.keepsBase && old.dense() && old.Storage != g.Storage {
		k := e.begin("add_", old, g).does("add")
		k.out(old)
		k.end()
		return
	}
	sum := e.unary("add", graph.Undefined, old, g)
	e.hold(old, g)
	en.unref(old)
	n.buffer[to.nr] = sum
	en.ref(sum)
}

func (en *engine) ref(t *Tensor) {
	if t.Storage != program.None {
		en.refs[t.Storage]++
	}
}

// accumulate stores a parameter's gradient: the first one is kept as it is
// when it has the parameter's layout, else copied
// (torch/csrc/autograd/functions/accumulate_grad.h).
func (en *engine) accumulate(n *gradNode, g *Tensor) {
	if g == nil {
		return
	}
	e, p := en.e, n.param
	e.module, e.name = p.Name, p.Name
	if n.grad != nil {
		k := e.begin("add_", n.grad, g).does("add")
		k.out(n.grad)
		k.end()
		e.hold(g)
		return
	}
	layout := !p.dense() && g.contiguous() || p.dense() && sameLayout(g, p)
	if en.refs[g.Storage] > 1 && !g.part || !layout || g.Storage == program.None { // also zeros without memory
		k := e.begin("clone", g).does("copy")
		c := k.alloc(p.Shape, p.denseStrides(), g.DType)
		k.end()
		e.hold(g)
		en.unref(g)
		g = c
		en.ref(g)
	}
	n.grad = g
	s := &e.P.Storages[g.Storage]
	if e.AfterGrad != nil { // what was passed to the node holds the gradient until the hook returns
		if s.Life == program.Step {
			s.Category, s.Name, s.Module = program.Gradients, p.Name, e.P.Storages[p.Storage].Module
		}
		e.AfterGrad(p)
		e.Mark("zero_grad") // a node of every step: the optimizer's are of the first or of later ones
		e.hold(g)
		en.unref(g)
		n.grad = nil
		return
	}
	if s.Life == program.Step {
		s.Life, s.Category, s.Name, s.Module = program.Carried, program.Gradients, p.Name, e.P.Storages[p.Storage].Module
	}
}

// sameLayout compares strides, except of dims of size 1.
func sameLayout(a, b *Tensor) bool {
	for i := range a.Shape {
		if a.Shape[i] != 1 && a.Strides[i] != b.Strides[i] {
			return false
		}
	}
	return true
}

// Grad returns the gradient that backward left on a parameter, or nil.
func (t *Tensor) Grad() *Tensor {
	if t.leaf == nil {
		return nil
	}
	return t.leaf.grad
}

// wanted returns the gradients f(i) that are needed, nil for the others.
func wanted(need []bool, f func(i int) *Tensor) []*Tensor {
	out := make([]*Tensor, len(need))
	for i := range need {
		if need[i] {
			out[i] = f(i)
		}
	}
	return out
}
