package cpu

import "github.com/memplan/memplan/validate"

var lossKernels = map[string]kernel{"nll_loss_forward": nll, "nll_loss2d_forward": nll, "nll_loss_backward": nllBackward, "nll_loss2d_backward": nllBackward,
	"mse_loss": mse, "mse_loss_backward": mseBackward}

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

func mse(r *run) error {
	x, y := r.floats(0), r.floats(1)
	var s float64
	for i := range x {
		d := float64(x[i]) - float64(y[i])
		s += d * d
	}
	if r.scalar("reduction") == 1 {
		s /= float64(len(x))
	}
	out, done := r.out(0)
	out[0] = float32(s)
	done()
	return nil
}

func mseBackward(r *run) error {
	g, x, y := float64(r.floats(0)[0]), r.floats(1), r.floats(2)
	if r.scalar("reduction") == 1 {
		g /= float64(len(x))
	}
	out, done := r.out(0)
	for i := range x {
		out[i] = float32(2 * g * (float64(x[i]) - float64(y[i])))
	}
	done()
	return nil
}
