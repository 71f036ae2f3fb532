package cpu

import (
	"fmt"
	"math"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// A rule is an optimizer: the states that it keeps, by name, in the parameter's
// type, and the update of a step, which returns what becomes of an element p
// with gradient g and updates its states s.
type rule struct {
	states []string
	update func(step int) func(p, g float64, s []float64) float64
}

// PyTorch's defaults (torch/optim: sgd.py, adam.py, adamw.py).
const (
	sgdRate, adamRate = 1e-3, 1e-3
	beta1, beta2      = 0.9, 0.999
	adamEps           = 1e-8
	decay             = 1e-2
	momentum          = 0.9
)

// adam is Adam with its own decay (AdamW), with decay in the gradient (L2), or
// without.
func adam(decoupled, l2 float64) *rule {
	return &rule{[]string{"exp_avg", "exp_avg_sq"}, func(step int) func(p, g float64, s []float64) float64 {
		rate, root := adamRate/(1-math.Pow(beta1, float64(step))), math.Sqrt(1-math.Pow(beta2, float64(step)))
		return func(p, g float64, s []float64) float64 {
			p *= 1 - adamRate*decoupled
			g += l2 * p
			s[0] += (g - s[0]) * (1 - beta1)
			s[1] = s[1]*beta2 + (1-beta2)*g*g
			return p - rate*s[0]/(math.Sqrt(s[1])/root+adamEps)
		}
	}}
}

func sgd(momentum, l2 float64, nesterov bool) *rule {
	r := &rule{}
	if momentum != 0 {
		r.states = []string{"momentum_buffer"}
	}
	r.update = func(step int) func(p, g float64, s []float64) float64 {
		return func(p, g float64, s []float64) float64 {
			g += l2 * p
			if momentum != 0 {
				if s[0] = s[0]*momentum + g; step == 1 {
					s[0] = g
				}
				if nesterov {
					g += momentum * s[0]
				} else {
					g = s[0]
				}
			}
			return p - sgdRate*g
		}
	}
	return r
}

// rules are the optimizers by their names in the table of optimizers.
var rules = map[string]*rule{
	"none": {update: func(int) func(p, _ float64, _ []float64) float64 {
		return func(p, _ float64, _ []float64) float64 { return p }
	}},
	"adamw": adam(decay, 0), "adamw-fused": adam(decay, 0), "adamw-loop": adam(decay, 0), "adamw-capturable": adam(decay, 0),
	"adam": adam(0, 0), "adam-fused": adam(0, 0), "adam-loop": adam(0, 0), "adam-wd": adam(0, decay),
	"sgd": sgd(0, 0, false), "sgd-wd": sgd(0, decay, false), "sgd-momentum": sgd(momentum, 0, false), "sgd-momentum-wd": sgd(momentum, decay, false),
	"sgd-nesterov": sgd(momentum, 0, true), "sgd-loop": sgd(momentum, 0, false), "sgd-fused": sgd(momentum, 0, false),
}

// step updates all parameters.
func step(r *run) error {
	o := r.attrs().Rule
	f := rules[o.Optimizer]
	for i := range o.Params {
		if err := r.update(f, &o.Params[i], r.c.Args[2*i].Tensor, r.c.Args[2*i+1].Tensor, r.c.States[i], o.First); err != nil {
			return err
		}
	}
	return nil
}

// update runs a rule on one parameter.
func (r *run) update(f *rule, p *program.RuleParam, param, grad validate.Tensor, spans []validate.Span, first bool) error {
	states := make([]validate.Tensor, len(f.states))
	for i, name := range f.states {
		at := -1
		for j := range p.States {
			if p.States[j].Name == name {
				at = j
			}
		}
		if at < 0 || spans[at].Bytes != param.DType.Bytes(param.Elems()) {
			return fmt.Errorf("%s has no state %s of its size", p.Name, name)
		}
		states[i] = param
		states[i].At = spans[at].At
		if first {
			if err := r.d.Fill(spans[at].At, spans[at].Bytes, 0); err != nil {
				return err
			}
		}
	}
	next := f.update(r.c.Step)
	pr, pw, gr := r.tensorReader(&param, param.Shape), r.writer(&param), r.tensorReader(&grad, param.Shape)
	r.parallel(int(param.Elems()), 1<<13, func(lo, hi int) {
		ps, gs := make([]float64, chunk), make([]float64, chunk)
		ss := make([][]float64, len(states))
		for i := range ss {
			ss[i] = make([]float64, chunk)
		}
		s := make([]float64, len(states))
		for at := lo; at < hi; at += chunk {
			n := min(chunk, hi-at)
			pr.read(ps[:n], int64(at))
			gr.read(gs[:n], int64(at))
			for i := range ss {
				sr := r.tensorReader(&states[i], param.Shape)
				sr.read(ss[i][:n], int64(at))
			}
			for j := range n {
				for i := range s {
					s[i] = ss[i][j]
				}
				ps[j] = next(ps[j], gs[j], s)
				for i := range s {
					ss[i][j] = s[i]
				}
			}
			pw.write(ps[:n], int64(at))
			for i := range ss {
				sw := r.writer(&states[i])
				sw.write(ss[i][:n], int64(at))
			}
		}
	})
	return nil
}
