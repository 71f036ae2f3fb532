package aten

import (
	"fmt"
	"slices"

	kernels "github.com/memplan/memplan/graph/kernel"
	"github.com/memplan/memplan/graph/program"
)

// Selective activation checkpointing: a policy decides for every call of an
// ATen operator in a checkpointed region whether its outputs are kept
// (torch/utils/checkpoint.py, create_selective_checkpoint_contexts). All
// outputs of a kept call live until the recomputation reaches the call and uses
// them in its place. Every other call runs again up to the last that saves
// anything, even those whose results only kept calls read: eager mode runs the
// region's code, not a graph.

// A Kept is a call whose outputs are kept: the n-th call of its operator within
// the region, counted from 0. Op is ATen's name without namespace and overload.
type Kept struct {
	Op   string
	Call int
	Of   int // calls of Op in the region, 0 if unknown
}

// A keptCall is one kept call of a region.
type keptCall struct {
	call   Kept
	outs   []program.StorageID
	popped bool // the recomputation has taken them
}

// A selection tracks the calls of one run of a region. It is nil outside of
// regions.
type selection struct {
	keep   []*keptCall
	calls  map[string]int
	again  bool
	latest *keptCall // taken since the last node that ran
}

func (s *selection) start(list []Kept) *selection {
	*s = selection{calls: map[string]int{}}
	for _, k := range list {
		s.keep = append(s.keep, &keptCall{call: k})
	}
	return s
}

func (s *selection) restart() *selection {
	s.again, s.latest = true, nil
	clear(s.calls)
	return s
}

// begin counts a call, and returns it if its outputs are kept.
func (s *selection) begin(kernel string) *keptCall {
	if !s.watches() {
		return nil
	}
	op := kernels.Dispatched(kernel)
	n := s.calls[op]
	s.calls[op]++
	if i := slices.IndexFunc(s.keep, func(c *keptCall) bool { return c.call.Op == op && c.call.Call == n }); i >= 0 {
		return s.keep[i]
	}
	return nil
}

// watches reports whether a dispatch mode sees the calls; some composite
// operators then avoid in-place updates.
func (s *selection) watches() bool { return s != nil && len(s.keep) > 0 }

// reuses reports whether the next call of a kernel was kept, so that none of it
// runs again, not even the copies before it.
func (s *selection) reuses(kernel string) bool {
	if !s.watches() || !s.again {
		return false
	}
	op := kernels.Dispatched(kernel)
	return slices.ContainsFunc(s.keep, func(c *keptCall) bool { return c.call.Op == op && c.call.Call == s.calls[op] })
}

// operand returns t in the form a kernel requires, made by a copy inside the
// call.
func (e *Eager) operand(kernel string, t *Tensor, copied func(*Tensor) *Tensor) *Tensor {
	if e.sel.reuses(kernel) {
		return t
	}
	return copied(t)
}

// owns reports whether the recomputation has taken a storage.
func (s *selection) owns(id program.StorageID) bool {
	return slices.ContainsFunc(s.keep, func(c *keptCall) bool { return c.popped && slices.Contains(c.outs, id) })
}

// left lists outputs that the recomputation did not reach: they live as long as
// the region's part of the graph.
func (s *selection) left() (out []program.StorageID) {
	for _, c := range s.keep {
		if !c.popped {
			out = append(out, c.outs...)
		}
	}
	return out
}

// Check returns an error if a run of the region did not make the calls that are
// to be kept.
func (s *Segment) Check() error {
	for _, c := range s.sel.keep {
		n := s.sel.calls[c.call.Op]
		if len(c.outs) == 0 || c.call.Of > 0 && c.call.Of != n {
			return fmt.Errorf("checkpoint %s: call %d of aten.%s is to be kept, of %d: the region makes %d, so the selection is of another model or version", s.Name, c.call.Call, c.call.Op, c.call.Of, n)
		}
	}
	return nil
}

// reuses reports whether the first run kept the call's outputs.
func (k *kernel) reuses() bool { return k.kept != nil && k.e.replay != nil }

// keep records the outputs of a kept call, which nothing may overwrite until
// they are taken.
func (k *kernel) keep() {
	e := k.e
	if len(k.kept.outs) != len(k.outs) {
		fail("call %d of aten.%s cannot be kept: its results are views, or what it was called with", k.kept.call.Call, k.kept.call.Op)
	}
	for _, t := range k.outs {
		e.noteSaved(t)
		e.keeping[t.Storage] = fmt.Sprintf("call %d of aten.%s", k.kept.call.Call, k.kept.call.Op)
	}
}

// take completes a call whose outputs were kept, with these as its results.
func (k *kernel) take() {
	e := k.e
	if e.replay.stopped {
		return
	}
	k.kept.popped = true
	e.sel.latest = k.kept
	for _, t := range k.outs {
		delete(e.keeping, t.Storage)
	}
	e.hold(k.outs...)
}

// untake returns the outputs taken last, if the recomputation ends before the
// call, which saves its operands first.
func (s *selection) untake(saved []*Tensor) bool {
	c := s.latest
	if c == nil {
		return false
	}
	c.popped = slices.ContainsFunc(saved, func(t *Tensor) bool { return t != nil && slices.Contains(c.outs, t.Storage) })
	return true
}
