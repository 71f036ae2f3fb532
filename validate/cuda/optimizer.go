//go:build cuda

package cuda

import (
	"fmt"
	"math"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// tensorsPerUpdate is the number of parameters in one launch of an update, and
// chunkOfUpdate the number of elements in one block.
const tensorsPerUpdate, chunkOfUpdate = 32, 2048

// tensorsArgs is Tensors of optimizer.cu.
type tensorsArgs struct {
	tensors, dtype, gradDType, states, fresh, _ int32
	first                                       [tensorsPerUpdate]int32
	n                                           [tensorsPerUpdate]int64
	param, grad                                 [tensorsPerUpdate]uint64
	state                                       [3][tensorsPerUpdate]uint64
}

// updateArgs is Update of optimizer.cu.
type updateArgs struct {
	on                                                                tensorsArgs
	kind, flags                                                       int32
	lr, rest1, beta2, rest2, eps, decay, momentum, correct1, correct2 float32
	_                                                                 int32
}

// moreArgs is More of optimizer.cu.
type moreArgs struct {
	on      tensorsArgs
	kind, _ int32
	c       [8]float32
}

// The kinds of updates and their flags, in optimizer.cu's numbering.
const (
	updateSGD = iota
	updateAdam

	flagNesterov  = 1
	flagDecoupled = 4
)

// optimizerKernels are the kernels of this file.
func optimizerKernels(register func(k kernel, names ...string)) {
	register(kernel{run: step, accepts: knownRule}, "step")
}

// A rule is an optimizer's update with PyTorch's defaults (torch/optim: sgd.py,
// adam.py, adamw.py).
type rule struct {
	kind, flags                            int32
	lr, beta1, beta2, eps, decay, momentum float64
	states                                 []string
}

// adamRule is Adam with a weight decay, decoupled or not according to the
// flags.
func adamRule(flags int32, decay float64) *rule {
	return &rule{kind: updateAdam, flags: flags, lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, decay: decay, states: []string{"exp_avg", "exp_avg_sq"}}
}

// sgdRule is SGD; without momentum it keeps no state.
func sgdRule(flags int32, momentum, decay float64) *rule {
	r := &rule{kind: updateSGD, flags: flags, lr: 1e-3, momentum: momentum, decay: decay}
	if momentum != 0 {
		r.states = []string{"momentum_buffer"}
	}
	return r
}

// rules are the optimizers by their names in the table of optimizers; nil does
// nothing.
var rules = map[string]*rule{
	"none":  nil,
	"adamw": adamRule(flagDecoupled, 1e-2), "adamw-fused": adamRule(flagDecoupled, 1e-2), "adamw-loop": adamRule(flagDecoupled, 1e-2),
	"adamw-capturable": adamRule(flagDecoupled, 1e-2),
	"adam":             adamRule(0, 0), "adam-fused": adamRule(0, 0), "adam-loop": adamRule(0, 0), "adam-wd": adamRule(0, 1e-2),
	"sgd": sgdRule(0, 0, 0), "sgd-wd": sgdRule(0, 0, 1e-2), "sgd-momentum": sgdRule(0, 0.9, 0), "sgd-momentum-wd": sgdRule(0, 0.9, 1e-2),
	"sgd-nesterov": sgdRule(flagNesterov, 0.9, 0), "sgd-loop": sgdRule(0, 0.9, 0), "sgd-fused": sgdRule(0, 0.9, 0),
}

// knownRule returns an error for an optimizer without an update here.
func knownRule(n *program.Node) error {
	if _, ok := rules[n.Attrs.Rule.Optimizer]; !ok && optimizerRules[n.Attrs.Rule.Optimizer] == nil {
		return fmt.Errorf("step: optimizer %s", n.Attrs.Rule.Optimizer)
	}
	return nil
}

// step updates all parameters.
func step(r *run) error {
	o := r.attrs().Rule
	if m := optimizerRules[o.Optimizer]; m != nil {
		a := moreArgs{kind: m.kind}
		for i, x := range m.numbers(r.c.Step) {
			a.c[i] = float32(x)
		}
		return updates(r, m.states, func(on *tensorsArgs, g grid) error {
			a.on = *on
			return launch(r.d, "optimizer", "optimizer_"+m.kernel, g, &a)
		})
	}
	f := rules[o.Optimizer]
	if f == nil {
		return nil
	}
	a := f.args(r.c.Step)
	return updates(r, f.states, func(on *tensorsArgs, g grid) error {
		a.on = *on
		return launch(r.d, "optimizer", f.kernel(), g, &a)
	})
}

// updates calls start with as many parameters at a time as a launch takes, of
// one type each, and a grid with a block for each chunk.
func updates(r *run, states []string, start func(on *tensorsArgs, g grid) error) error {
	o := r.attrs().Rule
	var a tensorsArgs
	blocks := int64(0)
	flush := func() error {
		if a.tensors == 0 {
			return nil
		}
		err := start(&a, grid{x: blocks, tx: 256})
		a, blocks = tensorsArgs{}, 0
		return err
	}
	for i := range o.Params {
		p, g := &r.c.Args[2*i].Tensor, &r.c.Args[2*i+1].Tensor
		if !sameDense(p, g) {
			return fmt.Errorf("%s: strides %v of the parameter, %v of its gradient", o.Params[i].Name, p.Strides, g.Strides)
		}
		s, err := statesOf(r, states, &o.Params[i], r.c.States[i], p)
		if err != nil {
			return err
		}
		if a.tensors == tensorsPerUpdate || a.tensors > 0 && (a.dtype != dtype(p) || a.gradDType != dtype(g)) {
			if err := flush(); err != nil {
				return err
			}
		}
		k := a.tensors
		a.dtype, a.gradDType, a.states = dtype(p), dtype(g), int32(len(states))
		if o.First {
			a.fresh = 1
		}
		a.first[k], a.n[k], a.param[k], a.grad[k] = int32(blocks), p.Elems(), r.ptr(p), r.ptr(g)
		for j, at := range s {
			a.state[j][k] = at
		}
		blocks += (a.n[k] + chunkOfUpdate - 1) / chunkOfUpdate
		a.tensors++
	}
	return flush()
}

// args returns the numbers of an update in the given step, from 1.
func (f *rule) args(step int) updateArgs {
	return updateArgs{kind: f.kind, flags: f.flags, lr: float32(f.lr), rest1: float32(1 - f.beta1), beta2: float32(f.beta2), rest2: float32(1 - f.beta2), eps: float32(f.eps), decay: float32(f.decay),
		momentum: float32(f.momentum), correct1: float32(1 - math.Pow(f.beta1, float64(step))), correct2: float32(1 - math.Pow(f.beta2, float64(step)))}
}

// kernel returns the name of the update's kernel in optimizer.cu.
func (f *rule) kernel() string {
	switch {
	case f.kind == updateAdam:
		return "optimizer_adam"
	case f.momentum != 0:
		return "optimizer_momentum"
	}
	return "optimizer_sgd"
}

// statesOf returns a parameter's states by name.
func statesOf(r *run, names []string, p *program.RuleParam, spans []validate.Span, param *validate.ArenaView) ([]uint64, error) {
	out := make([]uint64, len(names))
	for i, name := range names {
		for j := range p.States {
			if p.States[j].Name == name && j < len(spans) && spans[j].Bytes == param.DType.Bytes(param.Elems()) {
				out[i] = uint64(r.d.at(spans[j].At))
			}
		}
		if out[i] == 0 {
			return nil, fmt.Errorf("%s has no state %s of its size", p.Name, name)
		}
	}
	return out, nil
}
