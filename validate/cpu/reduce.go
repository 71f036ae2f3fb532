package cpu

import (
	"math"
	"slices"

	"github.com/memplan/memplan/validate"
)

func reductionKernels() map[string]kernel {
	kernels := map[string]kernel{}
	kernels["sum"] = reduction(func(x []float64) float64 { return total(x) })
	kernels["mean"] = reduction(func(x []float64) float64 { return total(x) / float64(len(x)) })
	kernels["amax"] = reduction(func(x []float64) float64 { return slices.Max(x) })
	kernels["amin"] = reduction(func(x []float64) float64 { return slices.Min(x) })
	kernels["argmax"] = reduction(func(x []float64) float64 { return float64(slices.Index(x, slices.Max(x))) })
	kernels["argmin"] = reduction(func(x []float64) float64 { return float64(slices.Index(x, slices.Min(x))) })
	kernels["euclidean_norm"] = reduction(norm)
	kernels["logsumexp"] = reduction(func(x []float64) float64 {
		top := slices.Max(x)
		if math.IsInf(top, 0) {
			return top
		}
		var s float64
		for _, v := range x {
			s += math.Exp(v - top)
		}
		return top + math.Log(s)
	})
	kernels["var"], kernels["std"] = variance, variance
	kernels["softmax"] = rows1(func(x, y []float64) {
		top := slices.Max(x)
		var s float64
		for i, v := range x {
			y[i] = math.Exp(v - top)
			s += y[i]
		}
		for i := range y {
			y[i] /= s
		}
	})
	kernels["log_softmax"] = rows1(func(x, y []float64) {
		top := slices.Max(x)
		var s float64
		for _, v := range x {
			s += math.Exp(v - top)
		}
		s = top + math.Log(s)
		for i, v := range x {
			y[i] = v - s
		}
	})
	kernels["cumsum"] = rows1(func(x, y []float64) {
		var s float64
		for i, v := range x {
			s += v
			y[i] = s
		}
	})
	kernels["_softmax_backward_data"] = rows2(func(g, y, out []float64) {
		var s float64
		for i := range g {
			s += g[i] * y[i]
		}
		for i := range g {
			out[i] = (g[i] - s) * y[i]
		}
	})
	kernels["_log_softmax_backward_data"] = rows2(func(g, y, out []float64) {
		s := total(g)
		for i := range g {
			out[i] = g[i] - math.Exp(y[i])*s
		}
	})
	kernels["glu"], kernels["glu_backward"] = glu, gluBackward
	kernels["nll_loss_forward"], kernels["nll_loss2d_forward"] = nll, nll
	kernels["nll_loss_backward"], kernels["nll_loss2d_backward"] = nllBackward, nllBackward
	kernels["mse_loss"], kernels["mse_loss_backward"] = mse, mseBackward
	return kernels
}

func total(x []float64) float64 {
	var s float64
	for _, v := range x {
		s += v
	}
	return s
}

// byDims splits a shape: the kept dims, with the strides of a row-major tensor,
// and the reduced ones.
func byDims(shape []int64, dims []int64) (keep, keepSt, red, redSt []int64) {
	st := validate.RowMajor(shape)
	for i := range shape {
		if slices.Contains(dims, int64(i)) {
			red, redSt = append(red, shape[i]), append(redSt, st[i])
		} else {
			keep, keepSt = append(keep, shape[i]), append(keepSt, st[i])
		}
	}
	return keep, keepSt, red, redSt
}

// positions lists where the elements of a strided shape lie.
func positions(shape, strides []int64) []int64 {
	w := newWalk(shape, strides)
	out := make([]int64, w.elems)
	w.rows(0, w.elems, func(i, at, n, stride int64) {
		for j := range n {
			out[i+j] = at + j*stride
		}
	})
	return out
}

// reduction runs f over the reduced elements of each result.
func reduction(f func([]float64) float64) kernel {
	return func(r *run) error {
		shape := r.shape(0)
		rd := r.reader(0, shape)
		keep, keepSt, red, redSt := byDims(shape, r.attrs().Dims)
		w := r.writer(&r.c.Results[0])
		outer, inner := positions(keep, keepSt), positions(red, redSt)
		if len(inner) == 0 || len(outer) == 0 {
			return r.generate(0, func(uint64) float64 { return f(nil) })
		}
		if run := rowsOf(inner); run && len(inner) > 1 { // the reduced elements lie together
			r.parallel(len(outer), 1+4096/len(inner), func(lo, hi int) {
				buf, one := make([]float64, len(inner)), make([]float64, 1)
				for i := lo; i < hi; i++ {
					rd.read(buf, outer[i])
					one[0] = f(buf)
					w.write(one, int64(i))
				}
			})
			return nil
		}
		x := make([]float64, validate.Elems(shape))
		r.parallel(len(x), 1<<14, func(lo, hi int) { rd.read(x[lo:hi], int64(lo)) })
		r.parallel(len(outer), 1+4096/len(inner), func(lo, hi int) {
			buf, one := make([]float64, len(inner)), make([]float64, 1)
			for i := lo; i < hi; i++ {
				for j, at := range inner {
					buf[j] = x[outer[i]+at]
				}
				one[0] = f(buf)
				w.write(one, int64(i))
			}
		})
		return nil
	}
}

// rowsOf reports positions that follow each other.
func rowsOf(at []int64) bool { return at[len(at)-1] == int64(len(at)-1) }

func variance(r *run) error {
	c := r.scalar("correction")
	return reduction(func(x []float64) float64 {
		mean := total(x) / float64(len(x))
		var s float64
		for _, v := range x {
			s += (v - mean) * (v - mean)
		}
		if s /= float64(len(x)) - c; r.c.Kernel == "std" {
			return math.Sqrt(s)
		}
		return s
	})(r)
}

// lines calls f for the runs of a tensor along one dim: where the first
// element of the run lies among the row-major ones, and the step to the next.
func (r *run) lines(shape []int64, dim int64, f func(start, step, n int)) {
	if len(shape) == 0 {
		f(0, 1, 1)
		return
	}
	n := int(shape[dim])
	step := int(validate.Elems(shape[dim+1:]))
	outer := int(validate.Elems(shape[:dim]))
	r.parallel(outer*step, 1+4096/max(n, 1), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			f(i/step*n*step+i%step, step, n)
		}
	})
}

// rows1 runs f along Dims[0] of operand 0.
func rows1(f func(x, y []float64)) kernel {
	return func(r *run) error {
		x := r.element(0)
		out, done := r.out(0)
		r.lines(r.shape(0), r.attrs().Dims[0], func(start, step, n int) {
			a, b := make([]float64, n), make([]float64, n)
			for i := range a {
				a[i] = x(start + i*step)
			}
			f(a, b)
			for i, v := range b {
				out[start+i*step] = float32(v)
			}
		})
		done()
		return nil
	}
}

// element reads elements of operand i, in float32.
func (r *run) element(i int) func(int) float64 {
	x := r.floats(i)
	return func(j int) float64 { return float64(x[j]) }
}

// rows2 runs f along Dims[0] of two operands of one shape.
func rows2(f func(x, y, out []float64)) kernel {
	return func(r *run) error {
		x, y := r.floats(0), r.floats(1)
		out, done := r.out(0)
		r.lines(r.shape(0), r.attrs().Dims[0], func(start, step, n int) {
			a, b, c := make([]float64, n), make([]float64, n), make([]float64, n)
			for i := range a {
				a[i], b[i] = float64(x[start+i*step]), float64(y[start+i*step])
			}
			f(a, b, c)
			for i, v := range c {
				out[start+i*step] = float32(v)
			}
		})
		done()
		return nil
	}
}

// halves calls f for element i of the result of a gated unit: where value and
// gate lie in the operand.
func halves(shape []int64, dim int64, f func(i, value, gate int)) {
	inner := int(validate.Elems(shape[dim+1:]))
	half := int(shape[dim]) / 2 * inner
	for o := range int(validate.Elems(shape[:dim])) {
		for j := range half {
			f(o*half+j, 2*o*half+j, (2*o+1)*half+j)
		}
	}
}

func glu(r *run) error {
	x := r.floats(0)
	out, done := r.out(0)
	halves(r.shape(0), r.attrs().Dims[0], func(i, v, g int) { out[i] = float32(float64(x[v]) * sigmoid(float64(x[g]))) })
	done()
	return nil
}

func gluBackward(r *run) error {
	g, x := r.floats(0), r.floats(1)
	out, done := r.out(0)
	halves(r.shape(1), r.attrs().Dims[0], func(i, v, gate int) {
		s := sigmoid(float64(x[gate]))
		out[v] = float32(float64(g[i]) * s)
		out[gate] = float32(float64(g[i]) * float64(x[v]) * s * (1 - s))
	})
	done()
	return nil
}

// classes calls f for each target that counts: where its log-probability lies
// in [n, classes, ...].
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

// nll makes the loss and the weight of all targets, their number.
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
