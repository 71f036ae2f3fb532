package train

import (
	"fmt"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/program"
)

// Losses lists the loss functions by name; auto picks one from the output.
var Losses = []struct{ Name, Doc string }{
	{"auto", "cross-entropy for an output [N,C], [N,S,V] (per token) or [N,C,H,W]; sum for any other"},
	{"cross-entropy", "torch.nn.functional.cross_entropy with class indices"},
	{ChunkedLoss, "cross-entropy over 8 parts of the rows, each checkpointed with the model's last linear layer, so that never all scores exist: memplan help chunked-loss has the code"},
	{LigerLoss, "liger-kernel 0.8's fused linear cross-entropy in place of the model's last linear layer (memplan help chunked-loss)"},
	{"mse", "mean squared error against a target of the output's shape"},
	{"sum", "sum of all elements of the output"},
	{"none", "the output itself, which must be a scalar"},
}

// backward appends loss and backward to the forward pass.
func (b *builder) backward() error {
	e := b.e
	e.SetPhase(program.Loss)
	e.Named("loss", "")
	if b.ownLoss() {
		return b.recordedLoss()
	}
	if b.head != nil {
		return b.chunked()
	}
	out := b.logits()
	if out == nil {
		return fmt.Errorf("nothing to train: none of the model's outputs %v is of floating-point numbers that depend on a trained parameter (for an inference give --mode infer)", b.outputs())
	}
	loss, err := b.loss(out)
	if err != nil {
		return err
	}
	if !loss.RequiresGrad() {
		return fmt.Errorf("the loss depends on no parameter that requires a gradient")
	}
	e.Hold(out)
	b.differentiate(loss)
	return nil
}

// ChunkedLoss is the name of the loss that computes the scores itself, part by part.
const ChunkedLoss = "chunked-cross-entropy"

// LigerLoss is the name of liger-kernel's, which computes the scores and their gradients part by part.
const LigerLoss = "liger-cross-entropy"

// findHead finds the model's last linear layer, whose result is its first output of
// floating-point numbers and goes nowhere else: a loss in parts runs in its place.
func (b *builder) findHead() error {
	if !b.opt.Train || b.opt.Loss != ChunkedLoss && b.opt.Loss != LigerLoss {
		return nil
	}
	refuse := func(why string) error {
		return fmt.Errorf("loss %s: %s: it takes what the model's last linear layer is called with", b.opt.Loss, why)
	}
	if b.recorded != nil {
		return refuse("the capture has the calls of the model's own run")
	}
	g := b.l.Graph
	for _, id := range g.Outputs {
		if id < 0 || !g.Values[id].Type.Elem.IsFloat() {
			continue
		}
		def := int(g.Values[id].Def)
		if def < 0 || !linear("", g.Nodes[def].Op) || b.lora[def] != nil {
			return refuse(fmt.Sprintf("output %q is not that of a linear layer", g.Values[id].Name))
		}
		if lastUses(g)[id] >= 0 {
			return refuse(fmt.Sprintf("output %q is used in the model, too", g.Values[id].Name))
		}
		b.head = &g.Nodes[def]
		return nil
	}
	return refuse("the model has no output of floating-point numbers")
}

// chunked appends the loss in parts, and backward.
func (b *builder) chunked() error {
	c := &aten.Call{}
	var err error
	if c.Args, err = b.args(b.head, b.head.Args, b.env); err != nil {
		return err
	}
	var ts [3]*aten.Tensor // input, weight, bias
	for i := range min(len(c.Args), len(ts)) {
		ts[i] = c.Args[i].T
	}
	x, weight := ts[0], ts[1]
	if x == nil || weight == nil || len(weight.Shape) != 2 || weight.Shape[1] == 0 {
		return fmt.Errorf("loss %s: the last linear layer's operands are not known", b.opt.Loss)
	}
	e := b.e
	rows := x.Numel() / weight.Shape[1]
	y := e.Alloc("randint", program.Inputs, program.Step, graph.Int64, []int64{rows}, 0, float64(weight.Shape[0]))
	flat := e.Reshape(x, []int64{rows, weight.Shape[1]})
	var loss *aten.Tensor
	switch {
	case b.opt.Loss == ChunkedLoss:
		loss = e.ChunkedCrossEntropy(flat, weight, ts[2], y, int32(len(b.opt.Segments)))
	case ts[2] != nil:
		return fmt.Errorf("loss %s: the last linear layer has a bias, with which the kernels' types differ: not predicted", b.opt.Loss)
	case !x.RequiresGrad():
		return fmt.Errorf("loss %s: what the last linear layer is called with requires no gradient: not predicted", b.opt.Loss)
	default:
		loss = e.LigerCrossEntropy(flat, weight, y)
	}
	if !loss.RequiresGrad() {
		return fmt.Errorf("the loss depends on no parameter that requires a gradient")
	}
	e.Hold(y)
	e.Hold(x)
	b.differentiate(loss)
	return nil
}

// differentiate appends the backward pass.
func (b *builder) differentiate(loss *aten.Tensor) {
	e := b.e
	e.ExitAutocast()
	e.SetPhase(program.Backward)
	e.Named("backward", "")
	seed := e.OnesLike(loss)
	if b.opt.InBackward {
		e.AfterGrad = func(p *aten.Tensor) { b.update([]*aten.Tensor{p}) }
	}
	e.Backward(loss, seed)
	if b.opt.Hold {
		e.Hold(b.outputs()...)
	}
	b.result = loss
}

// step appends the optimizer's update.
func (b *builder) step() {
	e := b.e
	e.SetPhase(program.Update)
	e.Named("step", "")
	if !b.opt.InBackward {
		b.update(b.params)
	}
	e.Mark("del") // the loop's variables are released in every step
	e.Hold(b.result)
	for _, p := range b.params {
		if g := p.Grad(); g != nil && e.P.Storages[g.Storage].Life == program.Carried {
			if i := slices.Index(e.P.Carried, g.Storage); i >= 0 { // shared by several parameters: the last releases it
				e.P.Carried = slices.Delete(e.P.Carried, i, i+1)
			}
			e.P.Carried = append(e.P.Carried, g.Storage)
		}
	}
}

// logits returns the first floating-point output that requires a gradient.
func (b *builder) logits() *aten.Tensor {
	for _, t := range b.outputs() {
		if t.DType.IsFloat() && t.RequiresGrad() {
			return t
		}
	}
	return nil
}

// loss runs the loss function on the model's output.
func (b *builder) loss(out *aten.Tensor) (*aten.Tensor, error) {
	e, name := b.e, b.opt.Loss
	if name == "" || name == "auto" {
		name = autoLoss(out.Shape)
	}
	switch name {
	case "cross-entropy":
		return b.crossEntropy(out)
	case "mse":
		target := e.Alloc("randn", program.Inputs, program.Step, out.DType, out.Shape, 0, 1)
		return e.MSE(out, target), nil
	case "sum":
		return e.Sum(out), nil
	case "none":
		if out.Numel() != 1 {
			return nil, fmt.Errorf("loss none: the output %v is not a scalar", out)
		}
		return out, nil
	}
	return nil, fmt.Errorf("unknown loss %q", name)
}

func autoLoss(shape []int64) string {
	if len(shape) >= 2 && shape[len(shape)-1] > 1 {
		return "cross-entropy"
	}
	return "sum"
}

// crossEntropy computes the loss of class scores: tokens [N,S,V] are flattened;
// images [N,C,H,W] have their classes in dim 1.
func (b *builder) crossEntropy(x *aten.Tensor) (*aten.Tensor, error) {
	e := b.e
	var target []int64
	switch n := len(x.Shape); {
	case n < 2:
		return nil, fmt.Errorf("cross-entropy needs an output of two or more dims, not %v", x.Shape)
	case n == 3:
		v := x.Shape[2]
		x = e.Float32(e.Reshape(x, []int64{x.Numel() / max(v, 1), v}))
		target = x.Shape[:1]
	default:
		target = append(slices.Clone(x.Shape[:1]), x.Shape[2:]...)
	}
	y := e.Alloc("randint", program.Inputs, program.Step, graph.Int64, target, 0, float64(x.Shape[1]))
	loss := e.CrossEntropy(x, y)
	e.Hold(x) // the caller holds its argument until the call returns
	return loss, nil
}

// update appends the optimizer's step on those of some parameters that have gradients: that of the
// first call, and that of every later one.
func (b *builder) update(of []*aten.Tensor) {
	e := b.e
	var params, touched []*aten.Tensor
	var list []UpdateParam
	for _, p := range of {
		if g := p.Grad(); g != nil {
			params = append(params, p)
			touched = append(touched, p, g)
			list = append(list, UpdateParam{p.Numel(), p.DType, p.Shape})
		}
	}
	rule := func(first bool, states []*aten.Tensor) *program.Rule {
		r := &program.Rule{Optimizer: b.opt.Rule, First: first, Params: make([]program.RuleParam, len(params))}
		at := map[string]*program.RuleParam{}
		for i, p := range params {
			r.Params[i] = program.RuleParam{Name: p.Name, Param: p.View, Grad: p.Grad().View}
			at[p.Name] = &r.Params[i]
		}
		for _, s := range states {
			if p := at[s.Name]; p != nil {
				p.States = append(p.States, program.RuleState{Name: strings.TrimPrefix(e.P.Storages[s.Storage].Name, s.Name+"."), Storage: s.Storage, Bytes: s.Shape[0]})
			}
		}
		return r
	}
	if b.opt.Update == nil {
		e.Touch("step", touched, nil, rule(false, nil))
		return
	}
	first, later := b.opt.Update(list, true), b.opt.Update(list, false)
	node := e.Touch("step", touched, b.updateEvents(first, params), rule(true, nil))
	states := slices.Concat(b.made, node.First())
	node.SetRule(rule(true, states))
	e.Touch("step", append(touched, node.First()...), b.updateEvents(later, params), rule(false, states)).Later()
}

func (b *builder) updateEvents(in []UpdateEvent, params []*aten.Tensor) []aten.UpdateEvent {
	out := make([]aten.UpdateEvent, len(in))
	for i, ev := range in {
		out[i] = aten.UpdateEvent{ID: ev.ID, Free: ev.Free, Bytes: ev.Bytes, Name: ev.Name, State: ev.State}
		if ev.Param >= 0 {
			out[i].Param = params[ev.Param]
		}
	}
	return out
}
