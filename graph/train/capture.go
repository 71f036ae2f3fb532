package train

import (
	"fmt"
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/lift"
)

// Applies what a capture recorded of every call when the model's code ran:
// types, storages, and when Python released references.

// kept returns the type of a stored tensor of the file in this precision.
func (b *builder) kept(id graph.ValueID) graph.DType {
	d := b.l.Graph.Values[id].Type.Elem
	if b.recorded != nil && b.recorded.Given[id] {
		return d
	}
	return b.stored(d)
}

// recordedDeaths returns the values released after each call. What modules keep
// outlives an inference.
func (b *builder) recordedDeaths() [][]graph.ValueID {
	out := b.recorded.Released
	if n := len(out); n > 0 && !b.opt.Train {
		out = slices.Clone(out)
		out[n-1] = slices.Concat(out[n-1], b.recorded.Kept)
	}
	return out
}

// filed returns the type of a stored tensor before the model is converted.
func (b *builder) filed(id graph.ValueID) graph.DType {
	if b.recorded != nil {
		return b.recorded.Original[id]
	}
	return b.l.Graph.Values[id].Type.Elem
}

// frozen reports whether a parameter requires no gradient in the model itself.
func (b *builder) frozen(name string) bool { return b.recorded != nil && b.recorded.Frozen[name] }

// onHost handles a call that runs on the CPU, which takes no device memory.
func (b *builder) onHost(i int, n *graph.Node, env []*aten.Tensor) bool {
	if b.recorded == nil || !b.recorded.OnHost[i] {
		return false
	}
	for _, o := range n.Outputs {
		if o < 0 {
			continue
		}
		t := &b.l.Graph.Values[o].Type
		if shape, ok := t.Shape.Static(); ok {
			env[o] = aten.Host(t.Elem, shape)
		}
	}
	return true
}

// exact adds the capture's record to a call.
func (b *builder) exact(i int, n *graph.Node, c *aten.Call, env []*aten.Tensor) {
	r := b.recorded
	if r == nil {
		return
	}
	c.Exact, c.NoAutocast, c.NoGrad, c.Autocast = true, r.NoAutocast[i], r.NoGrad[i], r.Casts[i]
	for _, id := range n.Inputs {
		if t := env[id]; t != nil && t.DType != b.kept(id) && b.l.Graph.Values[id].Def >= 0 {
			c.Loose = true
		}
	}
	for _, s := range r.Saves[i] {
		if s.Value < 0 {
			c.SavesNew = append(c.SavesNew, s.Bytes)
		} else if t := env[s.Value]; t != nil {
			c.Saves = append(c.Saves, t)
		}
	}
	c.Shares = make([]*aten.Tensor, len(n.Outputs))
	for j, o := range n.Outputs {
		if o >= 0 {
			c.Shares[j] = b.base(o, env)
		}
	}
}

// base returns the tensor whose storage a value shares, nil if it has its own.
func (b *builder) base(id graph.ValueID, env []*aten.Tensor) *aten.Tensor {
	if of := b.recorded.Bases[id]; of >= 0 {
		return env[of]
	}
	return nil
}

// settle updates the history of a tensor that a call wrote to through a view.
func (b *builder) settle(i int, n *graph.Node, env []*aten.Tensor) {
	r := b.recorded
	if r == nil {
		return
	}
	for _, o := range n.Outputs { // what is saved and returned may be a part of a larger tensor
		if o >= 0 && r.StorageBytes[o] > 0 && r.Bases[o] < 0 && env[o] != nil {
			b.e.Grow(env[o], r.StorageBytes[o])
		}
	}
	for k := range r.Regions {
		if r.Regions[k].Last == i && r.Regions[k].Kind == "function" {
			b.function(&r.Regions[k], env)
		}
	}
	if !b.l.InPlace[i] || len(n.Outputs) == 0 || n.Outputs[0] < 0 {
		return
	}
	view := env[n.Outputs[0]]
	if !view.RequiresGrad() {
		return
	}
	for of := r.Bases[n.Outputs[0]]; of >= 0; of = r.Bases[of] {
		base := env[of]
		if base == nil || base.Storage != view.Storage || len(base.Shape) == 0 || base.Bytes() == view.Bytes() {
			continue
		}
		env[of] = b.e.Rebase(base, view)
		return
	}
}

// own returns the model's own function that makes a call, nil if there is none.
func (b *builder) own(i int) *lift.Region {
	k, found := slices.BinarySearchFunc(b.l.Own, i, func(r lift.Region, i int) int {
		switch {
		case r.Last < i:
			return -1
		case r.First > i:
			return 1
		}
		return 0
	})
	if !found {
		return nil
	}
	return &b.l.Own[k]
}

// ownLoss reports whether the step uses the loss that the user's code computes.
func (b *builder) ownLoss() bool {
	return b.recorded != nil && b.recorded.Loss >= 0 && (b.opt.Loss == "" || b.opt.Loss == "auto")
}

// recordedLoss runs the calls after the model's, and backward from their result.
func (b *builder) recordedLoss() error {
	if err := b.calls(b.recorded.Forward, len(b.l.Graph.Nodes), nil, b.env); err != nil {
		return err
	}
	loss := b.env[b.recorded.Loss]
	if loss == nil || !loss.RequiresGrad() {
		return fmt.Errorf("the recorded loss depends on no parameter that requires a gradient: give --loss")
	}
	if loss.Numel() != 1 {
		return fmt.Errorf("the recorded loss %v is not a scalar", loss)
	}
	b.differentiate(loss)
	return nil
}

// function records a custom autograd function: its calls record nothing, and
// its backward is assumed to make the gradients of its inputs.
func (b *builder) function(r *lift.Region, env []*aten.Tensor) {
	var outs, ins, saved []*aten.Tensor
	for _, id := range r.Outputs {
		if t := env[id]; t != nil {
			outs = append(outs, t)
		}
	}
	for _, id := range r.Inputs {
		ins = append(ins, env[id])
	}
	bytes := int64(0)
	for _, s := range r.Saves {
		if s.Value >= 0 {
			saved = append(saved, env[s.Value])
		} else {
			bytes += s.Bytes
		}
	}
	b.e.Custom(r.Name, outs, ins, saved)
	if b.opt.Train && b.recorded != nil {
		b.e.Warn("capture-operator", fmt.Sprintf("the backward of %.80q is Python that the capture does not show: it is taken to make the gradients of its inputs", r.Name))
	}
	if bytes > 0 {
		b.e.Warn("capture-saves", fmt.Sprintf("%s saves %d bytes that no call returns", r.Name, bytes))
	}
}
