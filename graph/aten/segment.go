package aten

import "github.com/memplan/memplan/graph/program"

// A Segment is a checkpointed run of calls (torch.utils.checkpoint with
// use_reentrant=False): its first forward drops what autograd would save; the
// first backward node that needs any of it runs the calls again.
type Segment struct {
	ID    int32
	Name  string    // for messages
	Save  []Kept    // calls whose outputs are kept; nil: plain checkpointing
	Args  []*Tensor // what it is called with: the frame has them as long as it lives
	again func()    // runs the calls once more on the segment's inputs
	tape  []*gradNode
	done  bool
	fresh program.StorageID // storages from here on were made by the recomputation or later
	sel   selection
	open  int // nodes of the tape that hold what they saved
}

// release notes that backward has passed a node that saved something; with the
// last of them the region's frame goes, and what it still keeps.
func (s *Segment) release(e *Eager) {
	if s.open--; s.open > 0 {
		return
	}
	e.hold(s.Args...)
	for _, id := range s.sel.left() {
		delete(e.keeping, id)
		e.hold(&Tensor{Tensor: program.Tensor{Storage: id}})
	}
}

// replay collects what a recomputation packs.
type replay struct {
	seg     *Segment
	next    int
	last    int // ordinal of the last node that saves anything: the run stops there
	stopped bool
	end     program.StorageID // where it stopped: storages from here on are not made
}

// Checkpoint runs the calls of a segment and remembers how to run them again.
// again must run the same calls on the same inputs.
func (e *Eager) Checkpoint(s *Segment, run, again func()) {
	s.again = again
	e.segment, e.inside, e.tape = s.ID, true, nil
	e.sel = s.sel.start(s.Save)
	run()
	s.tape = e.tape
	e.segment, e.inside, e.tape, e.sel = -1, false, nil, nil
	for _, n := range s.tape {
		for i, t := range n.saved {
			if t != nil {
				n.saved[i] = nil // recomputed when asked for
			}
		}
		n.seg = s
		if len(n.saved) > 0 {
			s.open++
		}
	}
}

// unpack returns what a node saved, recomputing its segment at first need.
func (e *Eager) unpack(n *gradNode) []*Tensor {
	s := n.seg
	if s == nil || len(n.saved) == 0 {
		return n.saved
	}
	if !s.done {
		e.recompute(s)
	}
	return n.saved
}

func (e *Eager) recompute(s *Segment) {
	s.done = true
	s.fresh = program.StorageID(len(e.P.Storages))
	r := &replay{seg: s, last: -1}
	for i, n := range s.tape {
		if len(n.saved) > 0 {
			r.last = i
		}
	}
	module, name, call, auto := e.module, e.name, e.call, e.autograd
	e.replay, e.segment, e.grad, e.autograd = r, s.ID, true, ""
	e.sel = s.sel.restart()
	s.again()
	e.replay, e.segment, e.grad, e.sel = nil, -1, false, nil
	e.module, e.name, e.call, e.autograd = module, name, call, auto
}

// pack gives the tensors that a recomputed call saves to the node of the
// first run, and ends the run after the last of them (early stop). What saves
// only operands packs them before its kernel starts, so that the last such
// kernel does not run again.
func (r *replay) pack(e *Eager, n *gradNode) {
	if r.stopped || r.next >= len(r.seg.tape) {
		return
	}
	orig := r.seg.tape[r.next]
	copy(orig.saved, n.saved)
	if r.next == r.last {
		if end := len(e.P.Nodes) - 1; !e.sel.untake(n.saved) && end >= 0 && !makes(&e.P.Nodes[end], n.saved) {
			e.unmake(&e.P.Nodes[end])
			e.P.Nodes = e.P.Nodes[:end]
		}
		r.stopped, r.end = true, program.StorageID(len(e.P.Storages))
	}
	r.next++
}

// unmake takes back the library workspaces that a node allocates which will
// not run: a later call allocates its own.
func (e *Eager) unmake(n *program.Node) {
	for _, ev := range n.Events {
		for _, ws := range []*program.StorageID{&e.fwdWS, &e.bwdWS, &e.ltWS, &e.ltBackWS} {
			if *ws == ev.Storage && !ev.Free {
				e.P.Storages[ev.Storage].Life = program.Step // of no step: it has no events
				*ws = program.None
			}
		}
	}
}

// makes reports whether the node writes one of the tensors.
func makes(n *program.Node, saved []*Tensor) bool {
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
