package cpu

import (
	"fmt"
	"math"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// A rule is an optimizer: the states that it keeps, by name, and the update of a
// step, element by element or of a whole parameter at once. Steps count from 1.
type rule struct {
	states []string
	// update returns the new value of an element p with gradient g, and updates
	// its states s, which have the parameter's type and size.
	update func(step int) func(p, g float64, s []float64) float64
	// whole updates a parameter and its states, some of which may be absent.
	whole func(step int, t program.View, p, g []float64, s [][]float64)
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
	return &rule{states: []string{"exp_avg", "exp_avg_sq"}, update: func(step int) func(p, g float64, s []float64) float64 {
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

// amsgrad is Adam that divides by the largest second moment so far.
func amsgrad(decoupled float64) *rule {
	return &rule{states: []string{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, update: func(step int) func(p, g float64, s []float64) float64 {
		rate, root := adamRate/(1-math.Pow(beta1, float64(step))), math.Sqrt(1-math.Pow(beta2, float64(step)))
		return func(p, g float64, s []float64) float64 {
			p *= 1 - adamRate*decoupled
			s[0] += (g - s[0]) * (1 - beta1)
			s[1] = s[1]*beta2 + (1-beta2)*g*g
			s[2] = max(s[2], s[1])
			return p - rate*s[0]/(math.Sqrt(s[2])/root+adamEps)
		}
	}}
}

// each returns a rule that does not depend on the step.
func each(update func(p, g float64, s []float64) float64, states ...string) *rule {
	return &rule{states: states, update: func(int) func(p, g float64, s []float64) float64 { return update }}
}

// adagrad is torch/optim/adagrad.py with lr 1e-2, eps 1e-10.
func adagrad(p, g float64, s []float64) float64 {
	s[0] += g * g
	return p - 1e-2*g/(math.Sqrt(s[0])+1e-10)
}

// rmsprop is torch/optim/rmsprop.py with lr 1e-2, alpha 0.99, eps 1e-8.
func rmsprop(centered, momentum float64) *rule {
	const alpha = 0.99
	names := []string{"square_avg"}
	if centered != 0 {
		names = append(names, "grad_avg")
	}
	if momentum != 0 {
		names = append(names, "momentum_buffer")
	}
	return each(func(p, g float64, s []float64) float64 {
		s[0] = s[0]*alpha + (1-alpha)*g*g
		square := s[0]
		if centered != 0 {
			s[1] += (g - s[1]) * (1 - alpha)
			square -= s[1] * s[1]
		}
		g /= math.Sqrt(square) + 1e-8
		if momentum != 0 {
			b := &s[len(s)-1]
			*b = *b*momentum + g
			g = *b
		}
		return p - 1e-2*g
	}, names...)
}

// adadelta is torch/optim/adadelta.py with lr 1, rho 0.9, eps 1e-6.
func adadelta(p, g float64, s []float64) float64 {
	const rho, eps = 0.9, 1e-6
	s[0] = s[0]*rho + (1-rho)*g*g
	delta := math.Sqrt(s[1]+eps) / math.Sqrt(s[0]+eps) * g
	s[1] = s[1]*rho + (1-rho)*delta*delta
	return p - delta
}

// lion is lion_pytorch/lion_pytorch.py with lr 1e-4, betas 0.9 and 0.99.
func lion(p, g float64, s []float64) float64 {
	update := s[0]*0.9 + g*(1-0.9)
	s[0] = s[0]*0.99 + g*(1-0.99)
	switch {
	case update > 0:
		return p - 1e-4
	case update < 0:
		return p + 1e-4
	}
	return p
}

// adamax is torch/optim/adamax.py with lr 2e-3.
func adamax(step int) func(p, g float64, s []float64) float64 {
	rate := 2e-3 / (1 - math.Pow(beta1, float64(step)))
	return func(p, g float64, s []float64) float64 {
		s[0] += (g - s[0]) * (1 - beta1)
		s[1] = max(s[1]*beta2, math.Abs(g)+adamEps)
		return p - rate*s[0]/s[1]
	}
}

// nadam is torch/optim/nadam.py with lr 2e-3, momentum decay 4e-3. The product
// of its momenta, which PyTorch keeps on the host, follows from the step.
func nadam(step int) func(p, g float64, s []float64) float64 {
	mu := func(t int) float64 { return beta1 * (1 - 0.5*math.Pow(0.96, 4e-3*float64(t))) }
	product := 1.0
	for t := 1; t <= step; t++ {
		product *= mu(t)
	}
	root := math.Sqrt(1 - math.Pow(beta2, float64(step)))
	now, next := 2e-3*(1-mu(step))/(1-product), 2e-3*mu(step+1)/(1-product*mu(step+1))
	return func(p, g float64, s []float64) float64 {
		s[0] += (g - s[0]) * (1 - beta1)
		s[1] = s[1]*beta2 + (1-beta2)*g*g
		d := math.Sqrt(s[1])/root + adamEps
		return p - now*g/d - next*s[0]/d
	}
}

// radam is torch/optim/radam.py with lr 1e-3: without second moments for the
// first five steps, then rectified.
func radam(step int) func(p, g float64, s []float64) float64 {
	t := float64(step)
	limit, power := 2/(1-beta2)-1, math.Pow(beta2, t)
	length := limit - 2*t*power/(1-power)
	rate, root := adamRate/(1-math.Pow(beta1, t)), math.Sqrt(1-power)
	rectified := math.Sqrt((length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length))
	return func(p, g float64, s []float64) float64 {
		s[0] += (g - s[0]) * (1 - beta1)
		s[1] = s[1]*beta2 + (1-beta2)*g*g
		if length <= 5 {
			return p - rate*s[0]
		}
		return p - rate*rectified*root*s[0]/(math.Sqrt(s[1])+adamEps)
	}
}

// adafactor is torch/optim/_adafactor.py with lr 1e-2, beta2_decay -0.8, eps
// (the type's, 1e-3), d 1: second moments of a matrix by its rows and columns.
func adafactor(step int, t program.View, p, g []float64, s [][]float64) {
	const rate, eps2 = 1e-2, 1e-3
	eps1 := map[graph.DType]float64{graph.Float32: 0x1p-23, graph.BFloat16: 0x1p-7, graph.Float16: 0x1p-10, graph.Float64: 0x1p-52}[t.DType]
	rest := math.Pow(float64(step), -0.8)
	alpha := max(eps2, norm(p)/math.Sqrt(float64(len(p)))) * min(rate, 1/math.Sqrt(float64(step)))
	update := make([]float64, len(p))
	if k := len(t.Shape); k > 1 {
		factored(update, g, s[0], s[1], int(t.Shape[k-2]), int(t.Shape[k-1]), rest, eps1)
	} else {
		for i, x := range g {
			s[2][i] += (x*x - s[2][i]) * rest
			update[i] = s[2][i]
		}
	}
	for i, x := range g {
		update[i] = x / math.Sqrt(max(update[i], eps1*eps1))
	}
	scale := alpha / max(1, norm(update)/math.Sqrt(float64(len(p))))
	for i := range p {
		p[i] -= scale * update[i]
	}
}

// factored updates the mean squares of the rows and columns of g's matrices and
// sets v to the second moments that they approximate.
func factored(v, g, row, col []float64, rows, cols int, rest, eps float64) {
	for at := 0; at < len(g); at += rows * cols {
		r, c := row[at/cols:][:rows], col[at/rows:][:cols]
		bySum, byCol := make([]float64, rows), make([]float64, cols)
		for i := range rows {
			for j := range cols {
				x := g[at+i*cols+j]
				bySum[i] += x * x
				byCol[j] += x * x
			}
		}
		mean := 0.0
		for i := range r {
			r[i] += (bySum[i]/float64(cols) - r[i]) * rest
			mean += r[i] / float64(rows)
		}
		for j := range c {
			c[j] += (byCol[j]/float64(rows) - c[j]) * rest
		}
		for i := range rows {
			for j := range cols {
				v[at+i*cols+j] = r[i] * c[j] / max(mean, eps)
			}
		}
	}
}

func norm(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	return math.Sqrt(sum)
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
	"adamw-amsgrad": amsgrad(decay), "adam-amsgrad": amsgrad(0),
	"adagrad": each(adagrad, "sum"), "adadelta": each(adadelta, "square_avg", "acc_delta"), "lion": each(lion, "exp_avg"),
	"rmsprop": rmsprop(0, 0), "rmsprop-momentum": rmsprop(0, momentum), "rmsprop-centered": rmsprop(1, 0),
	"adamax": {states: []string{"exp_avg", "exp_inf"}, update: adamax},
	"nadam":  {states: []string{"exp_avg", "exp_avg_sq"}, update: nadam}, "radam": {states: []string{"exp_avg", "exp_avg_sq"}, update: radam},
	"adafactor": {states: []string{"row_var", "col_var", "variance"}, whole: adafactor},
}

// step updates all parameters.
func step(r *run) error {
	o := r.attrs().Rule
	f := rules[o.Optimizer]
	for i := range o.Params {
		update := r.update
		if f.whole != nil {
			update = r.whole
		}
		if err := update(f, &o.Params[i], r.c.Args[2*i].Tensor, r.c.Args[2*i+1].Tensor, r.c.States[i], o.First); err != nil {
			return err
		}
	}
	return nil
}

// whole runs a rule on one parameter at once.
func (r *run) whole(f *rule, p *program.RuleParam, param, grad validate.ArenaView, spans []validate.Span, first bool) error {
	states := make([]validate.ArenaView, len(f.states))
	values := make([][]float64, len(f.states))
	for i, name := range f.states {
		for j := range p.States {
			if p.States[j].Name != name || spans[j].Bytes == 0 {
				continue
			}
			n := spans[j].Bytes / param.DType.Bytes(1)
			states[i] = validate.ArenaView{At: spans[j].At, DType: param.DType, Shape: []int64{n}, Strides: []int64{1}}
			values[i] = make([]float64, n)
			if !first {
				values[i] = r.load(&states[i])
			}
		}
	}
	ps, gs := r.load(&param), r.load(&grad)
	f.whole(r.c.Step, program.View{DType: param.DType, Shape: param.Shape}, ps, gs, values)
	r.save(&param, ps)
	for i := range states {
		if values[i] != nil {
			r.save(&states[i], values[i])
		}
	}
	return nil
}

// load reads a tensor, row-major.
func (r *run) load(t *validate.ArenaView) []float64 {
	out := make([]float64, t.Elems())
	from := r.tensorReader(t, t.Shape)
	from.read(out, 0)
	return out
}

// save writes a tensor, row-major.
func (r *run) save(t *validate.ArenaView, values []float64) {
	to := r.writer(t)
	to.write(values, 0)
}

// update runs a rule on one parameter, element by element.
func (r *run) update(f *rule, p *program.RuleParam, param, grad validate.ArenaView, spans []validate.Span, first bool) error {
	states := make([]validate.ArenaView, len(f.states))
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
