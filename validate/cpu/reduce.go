package cpu

import (
	"errors"
	"math"
	"slices"
	"sort"

	"github.com/memplan/memplan/validate"
)

func reduceKernels() map[string]kernel {
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
	kernels["amax_with_indices"] = extreme(func(x, best float64) bool { return x > best })
	kernels["amin_with_indices"] = extreme(func(x, best float64) bool { return x < best })
	kernels["topk"], kernels["repeat_interleave"] = topK, interleave
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

// positions lists the positions in memory of a strided shape's elements.
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
		if run := rowsOf(inner); run && len(inner) > 1 { // the reduced elements are contiguous
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

// rowsOf reports whether positions are consecutive.
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

// lines calls f for the lines of a tensor along one dim: the row-major index of
// a line's first element, and the step to the next.
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

// halves calls f for element i of the result of a gated unit with the indices
// of value and gate in the operand.
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

// extreme returns the best element of each line along a dim and its index: the first
// of equals, and the first NaN before all others.
func extreme(better func(x, best float64) bool) kernel {
	return func(r *run) error {
		x, shape, d := r.all(0), r.shape(0), r.attrs().Dims[0]
		inner := int(validate.Elems(shape[min(int(d)+1, len(shape)):]))
		values, indices := make([]float64, r.c.Results[0].Elems()), make([]float64, r.c.Results[1].Elems())
		r.lines(shape, d, func(start, step, n int) {
			best := 0
			for i := 1; i < n && !math.IsNaN(x[start+best*step]); i++ {
				if v := x[start+i*step]; math.IsNaN(v) || better(v, x[start+best*step]) {
					best = i
				}
			}
			line := start/(n*inner)*inner + start%inner
			values[line], indices[line] = x[start+best*step], float64(best)
		})
		r.save(&r.c.Results[0], values)
		r.save(&r.c.Results[1], indices)
		return nil
	}
}

// topK sorts each line along a dim and returns its first elements: NaN counts as the
// largest, and equals keep their order.
func topK(r *run) error {
	x, shape, d := r.all(0), r.shape(0), r.attrs().Dims[0]
	if len(shape) == 0 {
		shape = []int64{1}
	}
	k := int(r.c.Results[0].Elems() / max(validate.Elems(shape)/max(shape[d], 1), 1))
	inner := int(validate.Elems(shape[d+1:]))
	values, indices := make([]float64, r.c.Results[0].Elems()), make([]float64, r.c.Results[1].Elems())
	largest := r.scalar("largest") != 0
	r.lines(shape, d, func(start, step, n int) {
		order := make([]int, n)
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(i, j int) int {
			c := compare(x[start+i*step], x[start+j*step])
			if largest {
				return -c
			}
			return c
		})
		line := start/(n*inner)*k*inner + start%inner
		for i, from := range order[:k] {
			values[line+i*inner], indices[line+i*inner] = x[start+from*step], float64(from)
		}
	})
	r.save(&r.c.Results[0], values)
	r.save(&r.c.Results[1], indices)
	return nil
}

// compare orders numbers, with NaN as the largest.
func compare(a, b float64) int {
	switch {
	case a < b, b != b && a == a:
		return -1
	case a > b, a != a && b == b:
		return 1
	}
	return 0
}

// interleave repeats the index of each element as often as the operand says. If that
// adds up to another number than the plan's, the result is cut, or filled with the
// last element: what a step repeats may depend on its data.
func interleave(r *run) error {
	times := r.ints(0, r.shape(0))
	if len(times) == 0 {
		return errors.New("no elements to repeat")
	}
	sums, sum := make([]int64, len(times)), int64(0)
	for i, n := range times {
		sum += n
		sums[i] = sum
	}
	return r.generate(0, func(i uint64) float64 {
		at := sort.Search(len(sums)-1, func(j int) bool { return sums[j] > int64(i) })
		return float64(at)
	})
}
