package aten

import (
	"slices"

	"github.com/memplan/memplan/graph/program"
)

// A Segment is a checkpointed run of calls (torch.utils.checkpoint with
// use_reentrant=False): its first forward drops what autograd would save; the
// first backward node that needs any of it runs the calls again.
//
// Segments nest. What is saved inside an inner segment is the inner one's
// affair alone, and the tensors that it is called with count as saved by the
// outer one. So the outer segment is run again first, keeping for an inner one
// what it is called with; the inner one when its own backward comes
// (torch/utils/checkpoint.py, Nestable Checkpoint).
type Segment struct {
	ID     int32
	Name   string // for messages
	Save   []Kept // calls whose outputs are kept; nil: plain checkpointing
	parent *Segment
	args   []*Tensor // the segment's arguments, which the frame of an outermost segment holds as long as it lives
	again  func()    // runs the calls once more on args
	tape   []saver
	done   bool
	fresh  program.StorageID // storages from here on were made by the recomputation or later
	sel    selection
	open   int // savers of the tape that still hold their tensors
}

// A saver owns the tensors that a segment's recomputation restores: a node of
// the autograd graph, or an inner segment.
type saver struct {
	node  *gradNode
	inner *Segment
}

// release notes that backward has passed a saver; after the last one, the
// region's frame is released with all that it still keeps.
func (s *Segment) release(e *Eager) {
	if s.open--; s.open > 0 {
		return
	}
	if s.parent != nil {
		s.parent.release(e)
		return
	}
	e.hold(s.args...)
	for _, id := range s.sel.left() {
		delete(e.keeping, id)
		e.hold(&Tensor{View: program.View{Storage: id}})
	}
}

// A replay collects the tensors that a recomputation packs.
type replay struct {
	seg     *Segment
	next    int               // index in seg.tape
	inner   int               // inner segments being run: what they pack is dropped again
	stopped bool              // nothing is left to pack
	end     program.StorageID // first storage after the stop: later ones are never made
}

// stop ends the run; later calls have no effect.
func (r *replay) stop(e *Eager) { r.stopped, r.end = true, program.StorageID(len(e.P.Storages)) }

// Checkpoint runs the calls of a segment and remembers how to run them again.
// again must run the same calls on the same inputs; args live until they have
// run. While an outer segment is recomputed, s is the segment that its first
// run made.
func (e *Eager) Checkpoint(s *Segment, args []*Tensor, run, again func()) {
	if r := e.replay; r != nil {
		r.enter(e, s, args, again)
		r.inner++
		run()
		r.inner--
		e.hold(args...)
		return
	}
	s.again, s.args, s.parent = again, args, e.dropping
	outer, sel := e.tape, e.sel
	e.dropping, e.tape, e.sel = s, nil, s.sel.start(s.Save)
	run()
	e.hold(args...)
	s.tape = e.tape
	e.dropping, e.tape, e.sel = s.parent, outer, sel
	if s.parent != nil {
		e.tape = append(e.tape, saver{inner: s})
	}
	for _, t := range s.tape {
		if t.node != nil {
			clear(t.node.saved) // recomputed on demand
		}
		if t.node != nil || t.inner.open > 0 {
			s.open++
		}
	}
}

// Recomputing reports whether a segment is being run again.
func (e *Eager) Recomputing() bool { return e.replay != nil }

// drop leaves a node without its saved tensors until its segment is recomputed.
func (s *Segment) drop(n *gradNode) saver {
	n.seg = s
	return saver{node: n}
}

// saves reports whether a node saves any tensor.
func (n *gradNode) saves() bool {
	return slices.ContainsFunc(n.saved, func(t *Tensor) bool { return t != nil })
}

// unpack returns a node's saved tensors, recomputing its segment if needed.
func (e *Eager) unpack(n *gradNode) []*Tensor {
	if n.seg != nil {
		e.recompute(n.seg)
	}
	if n.off != nil {
		return e.off.unpack(e, n)
	}
	return n.saved
}

// recompute runs a segment again, after the segments that contain it.
func (e *Eager) recompute(s *Segment) {
	if s.done {
		return
	}
	if s.parent != nil {
		e.recompute(s.parent)
	}
	s.done = true
	s.fresh = program.StorageID(len(e.P.Storages))
	if s.parent != nil { // its arguments have no other owner
		s.fresh = s.parent.fresh
	}
	module, name, call, auto := e.module, e.name, e.call, e.autograd
	e.replay, e.segment, e.grad, e.autograd = &replay{seg: s}, s.ID, true, ""
	e.sel = s.sel.restart()
	s.again()
	e.replay, e.segment, e.grad, e.sel = nil, -1, false, nil
	if s.parent != nil {
		e.hold(s.args...)
	}
	e.module, e.name, e.call, e.autograd = module, name, call, auto
}

// enter keeps the arguments of an inner segment. If nothing else is left to
// keep, the run ends before the inner segment begins.
func (r *replay) enter(e *Eager, s *Segment, args []*Tensor, again func()) {
	if r.inner > 0 || r.stopped || r.next >= len(r.seg.tape) {
		return
	}
	s.again, s.args = again, args
	if r.next++; r.next == len(r.seg.tape) {
		r.stop(e)
	}
}

// pack gives the tensors that a recomputed call saves to the node of the first
// run, and ends the run after the last of them (early stop). Calls that save
// only operands pack them before their kernel starts, so that the last such
// kernel does not run again.
func (r *replay) pack(e *Eager, n *gradNode) {
	if r.inner > 0 || r.stopped || r.next >= len(r.seg.tape) || !n.saves() {
		return
	}
	orig := r.seg.tape[r.next].node
	if orig == nil {
		panic("aten: a recomputation saves where its first run called a segment")
	}
	copy(orig.saved, n.saved)
	r.next++
	if r.next == len(r.seg.tape) {
		if end := len(e.P.Nodes) - 1; !e.sel.untake(n.saved) && end >= 0 && !writesAny(&e.P.Nodes[end], n.saved) {
			e.unmake(&e.P.Nodes[end])
			e.P.Nodes = e.P.Nodes[:end]
		}
		r.stop(e)
	}
}

// unmake takes back the library workspaces allocated by a node that will not
// run: a later call allocates its own.
func (e *Eager) unmake(n *program.Node) {
	for _, ev := range n.Events {
		for _, ws := range []*program.StorageID{&e.fwdWS, &e.bwdWS, &e.ltWS, &e.ltBackWS} {
			if *ws == ev.Storage && !ev.Free {
				e.P.Storages[ev.Storage].Life = program.Step // never allocated: it has no events
				*ws = program.None
			}
		}
	}
}

// writesAny reports whether the node writes one of the tensors.
func writesAny(n *program.Node, saved []*Tensor) bool {
	for _, t := range saved {
		if t == nil {
			continue
		}
		for _, o := range n.Out {
			if o.Storage == t.Storage {
				return true
			}
		}
		for _, ev := range n.Events {
			if ev.Storage == t.Storage && !ev.Free {
				return true
			}
		}
	}
	return false
}
