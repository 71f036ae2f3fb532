//go:build cuda

package cuda

import (
	"fmt"
	"math"

	"gorgonia.org/cu"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// nllArgs is NLL of loss.cu.
type nllArgs struct {
	rows, classes, inner, ignore     int64
	in, target, grad, total          uint64
	out, weight                      uint64
	dtype, targetDType, mean, blocks int32
}

// tensorsPerUpdate is how many parameters one launch of an update takes.
const tensorsPerUpdate = 32

// updateArgs is Update of loss.cu.
type updateArgs struct {
	tensors, kind, dtype, flags                                       int32
	lr, rest1, beta2, rest2, eps, decay, momentum, correct1, correct2 float32
	gradDType, stateDType, _                                          int32
	n                                                                 [tensorsPerUpdate]int64
	param, grad, state0, state1                                       [tensorsPerUpdate]uint64
}

// The kinds of updates and their flags, as loss.cu numbers them.
const (
	updateSGD = iota
	updateAdam

	flagNesterov  = 1
	flagFirst     = 2
	flagDecoupled = 4
)

// lossKernels are those of this file.
func lossKernels(register func(k kernel, names ...string)) {
	register(kernel{run: nll}, "nll_loss_forward", "nll_loss2d_forward")
	register(kernel{run: nllBackward}, "nll_loss_backward", "nll_loss2d_backward")
	register(kernel{run: step, accepts: knownRule}, "step")
	register(kernel{run: glu}, "glu")
	register(kernel{run: gluBackward}, "glu_backward")
}

// nllOf describes log-probabilities and targets.
func (r *run) nllOf(ls, target *validate.Tensor) (nllArgs, error) {
	a := nllArgs{classes: 1, inner: 1, rows: target.Elems(), ignore: int64(r.scalar(1, -100)), in: r.ptr(ls), target: r.ptr(target), dtype: dtype(ls), targetDType: dtype(target)}
	if r.scalar(0, 1) == 1 {
		a.mean = 1
	}
	if !contiguous(ls) || !contiguous(target) || !isIndex(target) {
		return a, fmt.Errorf("a loss of strides %v by classes of strides %v", ls.Strides, target.Strides)
	}
	if len(ls.Shape) == 1 {
		a.classes = ls.Shape[0]
		return a, nil
	}
	a.classes = ls.Shape[1]
	for _, n := range ls.Shape[2:] {
		a.inner *= n
	}
	return a, nil
}

func nll(r *run) error {
	a, err := r.nllOf(r.arg(0), r.arg(1))
	if err != nil {
		return err
	}
	a.out, a.weight = r.ptr(r.result(0)), r.ptr(r.result(1))
	if a.out == 0 || a.weight == 0 || dtype(r.result(0)) != a.dtype {
		return fmt.Errorf("a loss without its weight")
	}
	g := sweep(a.rows)
	a.blocks = int32(g.x)
	if err := launch(r.d, "loss", "nll_partial", g, &a); err != nil {
		return err
	}
	return launch(r.d, "loss", "nll_finish", grid{x: 1, tx: 32}, &a)
}

func nllBackward(r *run) error {
	a, err := r.nllOf(r.arg(1), r.arg(2))
	if err != nil {
		return err
	}
	out := r.result(0)
	if !contiguous(out) || out.DType != r.arg(1).DType || r.arg(0).DType != out.DType {
		return fmt.Errorf("the gradient of a loss with strides %v", out.Strides)
	}
	a.grad, a.total, a.out = r.ptr(r.arg(0)), r.ptr(r.arg(3)), r.ptr(out)
	// One element of a row is not zero, at most.
	if bytes := out.DType.Bytes(out.Elems()); bytes > 0 {
		if err := cu.MemsetD8Async(r.d.at(out.At), 0, bytes, r.d.stream); err != nil {
			return explain("filling memory", err)
		}
	}
	return launch(r.d, "loss", "nll_backward", along(a.rows), &a)
}

// A rule is an optimizer's update with PyTorch's defaults (torch/optim: sgd.py,
// adam.py, adamw.py).
type rule struct {
	kind, flags                            int32
	lr, beta1, beta2, eps, decay, momentum float64
	states                                 []string
}

func adamRule(flags int32, decay float64) *rule {
	return &rule{kind: updateAdam, flags: flags, lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, decay: decay, states: []string{"exp_avg", "exp_avg_sq"}}
}

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

func knownRule(n *program.Node) error {
	if _, ok := rules[n.Attrs.Rule.Optimizer]; !ok && moreRules[n.Attrs.Rule.Optimizer] == nil {
		return fmt.Errorf("step: optimizer %s", n.Attrs.Rule.Optimizer)
	}
	return nil
}

// step updates all parameters, as many at a time as a launch takes.
func step(r *run) error {
	o := r.attrs().Rule
	if m := moreRules[o.Optimizer]; m != nil {
		return r.stepMore(m)
	}
	f := rules[o.Optimizer]
	if f == nil {
		return nil
	}
	var a updateArgs
	most := int64(0)
	flush := func() error {
		if a.tensors == 0 {
			return nil
		}
		g := grid{x: min((most+255)/256, 4096), y: int64(a.tensors), tx: 256}
		err := launch(r.d, "loss", "optimizer_update", g, &a)
		a.tensors, most = 0, 0
		return err
	}
	for i := range o.Params {
		p, g := &r.c.Args[2*i].Tensor, &r.c.Args[2*i+1].Tensor
		states, err := r.states(f, &o.Params[i], r.c.States[i], p)
		if err != nil {
			return err
		}
		if a.tensors == tensorsPerUpdate || a.tensors > 0 && (a.dtype != dtype(p) || a.gradDType != dtype(g)) {
			if err := flush(); err != nil {
				return err
			}
		}
		if a.tensors == 0 {
			a = f.args(r.c.Step, o.First)
			a.dtype, a.gradDType, a.stateDType = dtype(p), dtype(g), dtype(p)
		}
		if !sameDense(p, g) {
			return fmt.Errorf("%s: strides %v of the parameter, %v of its gradient", o.Params[i].Name, p.Strides, g.Strides)
		}
		k := a.tensors
		a.n[k], a.param[k], a.grad[k] = p.Elems(), r.ptr(p), r.ptr(g)
		for j, s := range states {
			*[]*uint64{&a.state0[k], &a.state1[k]}[j] = s
		}
		most = max(most, a.n[k])
		a.tensors++
	}
	return flush()
}

// moreArgs is More of loss.cu.
type moreArgs struct {
	tensors, kind, dtype, gradDType, first, states int32
	c                                              [8]float32
	n                                              [tensorsPerUpdate]int64
	param, grad                                    [tensorsPerUpdate]uint64
	state                                          [3][tensorsPerUpdate]uint64
}

// stepMore is step by one of moreRules.
func (r *run) stepMore(m *moreRule) error {
	o := r.attrs().Rule
	f := &rule{states: m.states}
	fresh := moreArgs{kind: m.kind, states: int32(len(m.states))}
	if o.First {
		fresh.first = 1
	}
	for i, x := range m.numbers(r.c.Step) {
		fresh.c[i] = float32(x)
	}
	a, most := fresh, int64(0)
	flush := func() error {
		if a.tensors == 0 {
			return nil
		}
		g := grid{x: min((most+255)/256, 4096), y: int64(a.tensors), tx: 256}
		err := launch(r.d, "loss", "optimizer_more", g, &a)
		a, most = fresh, 0
		return err
	}
	for i := range o.Params {
		p, g := &r.c.Args[2*i].Tensor, &r.c.Args[2*i+1].Tensor
		states, err := r.states(f, &o.Params[i], r.c.States[i], p)
		if err != nil {
			return err
		}
		if !sameDense(p, g) {
			return fmt.Errorf("%s: strides %v of the parameter, %v of its gradient", o.Params[i].Name, p.Strides, g.Strides)
		}
		if a.tensors == tensorsPerUpdate || a.tensors > 0 && (a.dtype != dtype(p) || a.gradDType != dtype(g)) {
			if err := flush(); err != nil {
				return err
			}
		}
		k := a.tensors
		a.dtype, a.gradDType = dtype(p), dtype(g)
		a.n[k], a.param[k], a.grad[k] = p.Elems(), r.ptr(p), r.ptr(g)
		for j, s := range states {
			a.state[j][k] = s
		}
		most = max(most, a.n[k])
		a.tensors++
	}
	return flush()
}

// sameDense reports two tensors whose elements lie in the same order without
// holes.
func sameDense(a, b *validate.Tensor) bool {
	if contiguous(a) && contiguous(b) {
		return true
	}
	strides := [][]int64{a.Strides, b.Strides}
	size := fold(a.Shape, strides)
	return len(size) == 1 && strides[0][0] == 1 && strides[1][0] == 1
}

// args are the numbers of an update in the given step, from 1.
func (f *rule) args(step int, first bool) updateArgs {
	a := updateArgs{kind: f.kind, flags: f.flags, lr: float32(f.lr), rest1: float32(1 - f.beta1), beta2: float32(f.beta2), rest2: float32(1 - f.beta2), eps: float32(f.eps), decay: float32(f.decay),
		momentum: float32(f.momentum), correct1: float32(1 - math.Pow(f.beta1, float64(step))), correct2: float32(1 - math.Pow(f.beta2, float64(step)))}
	if first {
		a.flags |= flagFirst
	}
	return a
}

// states finds a parameter's states by name.
func (r *run) states(f *rule, p *program.RuleParam, spans []validate.Span, param *validate.Tensor) ([]uint64, error) {
	out := make([]uint64, len(f.states))
	for i, name := range f.states {
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

// half shows one half of a tensor along a dim.
func half(t *validate.Tensor, d int64, second bool) *validate.Tensor {
	shape := append([]int64(nil), t.Shape...)
	shape[d] /= 2
	at := int64(0)
	if second {
		at = shape[d] * t.Strides[d]
	}
	return part(t, shape, t.Strides, at)
}

// glu is the first half times the sigmoid of the second.
func glu(r *run) error {
	x, d, out := r.arg(0), r.attrs().Dims[0], r.result(0)
	return r.pointwise("glu", out, [4]float64{}, onDevice(half(x, d, false)), onDevice(half(x, d, true)))
}

func gluBackward(r *run) error {
	g, x, d, out := r.arg(0), r.arg(1), r.attrs().Dims[0], r.result(0)
	if out.DType != graph.Float32 && out.DType != x.DType {
		return fmt.Errorf("the gradient %v of a gate on %v", out.DType, x.DType)
	}
	a, b := onDevice(half(x, d, false)), onDevice(half(x, d, true))
	if err := r.pointwise("glu_value_backward", half(out, d, false), [4]float64{}, onDevice(g), b); err != nil {
		return err
	}
	return r.pointwise("glu_gate_backward", half(out, d, true), [4]float64{}, onDevice(g), a, b)
}
