package aten

import (
	"fmt"
	"slices"

	"github.com/memplan/memplan/graph/program"
)

// Selective activation checkpointing: a policy says of every call of an ATen
// operator in a checkpointed region whether its outputs are kept
// (torch/utils/checkpoint.py, create_selective_checkpoint_contexts). All
// outputs of such a call live until the recomputation comes to it, takes them
// in its place and hands them on like any result. Every other call runs again
// up to the last that saves anything, also those whose results only kept calls
// would read: eager mode runs the region's code, not a graph.

// A Kept is a call whose outputs are kept: the n-th of its operator within the
// region, counted from 0. Op is ATen's name without namespace and overload.
type Kept struct {
	Op   string
	Call int
	Of   int // calls of Op that the region makes, 0 for unknown
}

// dispatched names the operators that PyTorch's dispatcher sees where kernels
// here bear the name of what it calls inside.
var dispatched = []struct{ kernel, aten string }{
	{"cudnn_convolution", "convolution"},
	{"cudnn_convolution_transpose", "convolution"},
	{"_conv_depthwise2d", "convolution"},
	{"batch_norm", "cudnn_batch_norm"},
	{"softmax", "_softmax"},
	{"log_softmax", "_log_softmax"},
	{"pad", "constant_pad_nd"},
}

// Dispatched returns the operator that a policy is asked about for a kernel.
func Dispatched(kernel string) string {
	for _, d := range dispatched {
		if d.kernel == kernel {
			return d.aten
		}
	}
	return kernel
}

// selectable are the operators whose calls PyTorch makes as often, and in the
// order, as they stand here (scripts/pytorch/selective_reference.py): the others come in
// composites that run differently while a policy watches, or are Python's.
var selectable = map[string]bool{
	"addmm": true, "mm": true, "bmm": true, "baddbmm": true, "convolution": true,
	"_scaled_dot_product_efficient_attention": true, "_scaled_dot_product_flash_attention": true, "_scaled_dot_product_cudnn_attention": true,
	"native_layer_norm": true, "native_group_norm": true, "_fused_rms_norm": true, "_softmax": true, "native_dropout": true,
	"gelu": true, "silu": true, "tanh": true, "sigmoid": true, "hardswish": true, "hardsigmoid": true,
	"pow": true, "rsqrt": true, "mul": true, "sub": true, "div": true, "neg": true, "cat": true, "mean": true,
}

// Selectable reports whether a plan may keep calls of an operator.
func Selectable(op string) bool { return selectable[op] }

// A keptCall is one call of a selection.
type keptCall struct {
	call   Kept
	outs   []program.StorageID
	popped bool // the recomputation has taken them
}

// A selection follows the calls of one run of a region. A nil one is of no
// region.
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
	op := Dispatched(kernel)
	n := s.calls[op]
	s.calls[op]++
	if i := slices.IndexFunc(s.keep, func(c *keptCall) bool { return c.call.Op == op && c.call.Call == n }); i >= 0 {
		return s.keep[i]
	}
	return nil
}

// watches reports that a dispatch mode sees the calls, in which some composite
// operators avoid in-place updates.
func (s *selection) watches() bool { return s != nil && len(s.keep) > 0 }

// reuses reports that the next call of a kernel was kept, so that nothing of it
// runs again, neither what it copies first.
func (s *selection) reuses(kernel string) bool {
	if !s.watches() || !s.again {
		return false
	}
	op := Dispatched(kernel)
	return slices.ContainsFunc(s.keep, func(c *keptCall) bool { return c.call.Op == op && c.call.Call == s.calls[op] })
}

// operand returns t as a kernel wants it, made by a copy inside the call.
func (e *Eager) operand(kernel string, t *Tensor, copied func(*Tensor) *Tensor) *Tensor {
	if e.sel.reuses(kernel) {
		return t
	}
	return copied(t)
}

// owns reports a storage that the recomputation has taken.
func (s *selection) owns(id program.StorageID) bool {
	return slices.ContainsFunc(s.keep, func(c *keptCall) bool { return c.popped && slices.Contains(c.outs, id) })
}

// left lists what the recomputation did not come to: it lives as long as the
// region's part of the graph.
func (s *selection) left() (out []program.StorageID) {
	for _, c := range s.keep {
		if !c.popped {
			out = append(out, c.outs...)
		}
	}
	return out
}

// Check returns an error if the region, run once, does not make the calls that
// are to be kept.
func (s *Segment) Check() error {
	for _, c := range s.sel.keep {
		n := s.sel.calls[c.call.Op]
		if len(c.outs) == 0 || c.call.Of > 0 && c.call.Of != n {
			return fmt.Errorf("checkpoint %s: call %d of aten.%s is to be kept, of %d: the region makes %d, so the selection is of another model or version", s.Name, c.call.Call, c.call.Op, c.call.Of, n)
		}
	}
	return nil
}

// reuses reports that the call's outputs were kept by the first run.
func (k *kernel) reuses() bool { return k.kept != nil && k.e.replay != nil }

// keep notes the outputs of a kept call, which nothing may write to until they
// are taken.
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

// take ends a call whose outputs were kept: they go on as its results.
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

// untake gives back what was taken last, where the recomputation ends before
// the call: it saves its operands first.
func (s *selection) untake(saved []*Tensor) bool {
	c := s.latest
	if c == nil {
		return false
	}
	c.popped = slices.ContainsFunc(saved, func(t *Tensor) bool { return t != nil && slices.Contains(c.outs, t.Storage) })
	return true
}
