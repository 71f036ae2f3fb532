package cpu

import (
	"math"

	"github.com/memplan/memplan/validate"
)

var lossKernels = map[string]kernel{"nll_loss_forward": nll, "nll_loss2d_forward": nll, "nll_loss_backward": nllBackward, "nll_loss2d_backward": nllBackward,
	"mse_loss": squared.forward, "mse_loss_backward": squared.backward, "smooth_l1_loss": smoothL1.forward, "smooth_l1_loss_backward": smoothL1.backward}

// classes calls f for each target that counts with the index of its
// log-probability in [n, classes, ...].
func (r *run) classes(ls, target int, f func(at int)) {
	s := r.shape(ls)
	ignore := int64(r.scalar("ignore_index"))
	c, inner := int(s[0]), 1
	if len(s) > 1 {
		c, inner = int(s[1]), int(validate.Elems(s[2:]))
	}
	for i, t := range r.ints(target, r.shape(target)) {
		if t != ignore && t >= 0 && int(t) < c {
			f((i/inner*c+int(t))*inner + i%inner)
		}
	}
}

// nll makes the loss and the weight of all targets, which is their number.
func nll(r *run) error {
	ls := r.floats(0)
	var sum, count float64
	r.classes(0, 1, func(at int) { sum -= float64(ls[at]); count++ })
	o, done := r.outs(2)
	if r.scalar("reduction") == 1 {
		sum /= count
	}
	o[0][0], o[1][0] = float32(sum), float32(count)
	done()
	return nil
}

// nllBackward reads gradient, log-probabilities, targets, their number.
func nllBackward(r *run) error {
	g, count := r.floats(0)[0], r.floats(3)[0]
	if r.scalar("reduction") == 1 {
		g /= count
	}
	out, done := r.out(0)
	clear(out)
	r.classes(1, 2, func(at int) { out[at] = -g })
	done()
	return nil
}

// A pairLoss is a loss of each pair of elements, and its slope in the first.
type pairLoss struct {
	value, slope func(r *run, d float64) float64
}

var (
	squared = pairLoss{
		value: func(_ *run, d float64) float64 { return d * d },
		slope: func(_ *run, d float64) float64 { return 2 * d },
	}
	smoothL1 = pairLoss{
		value: func(r *run, d float64) float64 {
			beta := r.scalar("beta")
			if d = math.Abs(d); d < beta {
				return d * d / (2 * beta)
			}
			return d - beta/2
		},
		slope: func(r *run, d float64) float64 {
			if beta := r.scalar("beta"); math.Abs(d) < beta {
				return d / beta
			}
			return sign(d)
		},
	}
)

// forward makes the losses of all pairs, or one number of them.
func (l pairLoss) forward(r *run) error {
	x, y := r.floats(0), r.floats(1)
	out, done := r.out(0)
	if r.scalar("reduction") == 0 {
		for i := range out {
			out[i] = float32(l.value(r, float64(x[i])-float64(y[i])))
		}
		done()
		return nil
	}
	var sum float64
	for i := range x {
		sum += l.value(r, float64(x[i])-float64(y[i]))
	}
	if r.scalar("reduction") == 1 {
		sum /= float64(len(x))
	}
	out[0] = float32(sum)
	done()
	return nil
}

// backward reads a gradient, of each loss or of the one number, and the pairs.
func (l pairLoss) backward(r *run) error {
	g, x, y := r.floats(0), r.floats(1), r.floats(2)
	of := func(int) float64 { return float64(g[0]) }
	switch r.scalar("reduction") {
	case 0:
		of = func(i int) float64 { return float64(g[i]) }
	case 1:
		of = func(int) float64 { return float64(g[0]) / float64(len(x)) }
	}
	out, done := r.out(0)
	for i := range x {
		out[i] = float32(of(i) * l.slope(r, float64(x[i])-float64(y[i])))
	}
	done()
	return nil
}
