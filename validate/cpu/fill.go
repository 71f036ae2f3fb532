package cpu

import (
	"math"

	"github.com/memplan/memplan/validate"
)

// fillKernels make tensors from scalars or masks.
var fillKernels = map[string]kernel{
	"fill":    numbered(func(p []float64, _, _ uint64) float64 { return p[0] }),
	"arange":  numbered(func(p []float64, _, i uint64) float64 { return p[0] + float64(i)*p[1] }),
	"uniform": numbered(func(p []float64, seed, i uint64) float64 { return p[0] + (p[1]-p[0])*validate.Uniform(seed, i) }),
	"normal":  numbered(normal), "randn": numbered(normal),
	"randint": numbered(func(p []float64, seed, i uint64) float64 {
		return p[0] + float64(validate.Below(seed, i, int64(p[1])-int64(p[0])))
	}),
	"bernoulli": numbered(func(p []float64, seed, i uint64) float64 { return truth(validate.Uniform(seed, i) < p[0]) }),
	"empty":     nothing, "zero_grad": nothing, "del": nothing,
	"native_dropout": dropout, "mask_bias": maskBias, "causal_bias": causalBias, "empty_rows": emptyRows, "tril": triangle, "triu": triangle,
}

func nothing(*run) error { return nil }

// generate fills result i with a function of the element's index.
func (r *run) generate(i int, f func(i uint64) float64) error {
	t := &r.c.Results[i]
	w := r.writer(t)
	r.chunks(int(t.Elems()), 1<<13, func(at int, b []float64) {
		for j := range b {
			b[j] = f(uint64(at + j))
		}
		w.write(b, int64(at))
	})
	return nil
}

// numbered makes element i from f, the call's scalars p and its seed.
func numbered(f func(p []float64, seed, i uint64) float64) kernel {
	return func(r *run) error {
		p := r.c.Numbers()
		return r.generate(0, func(i uint64) float64 { return f(p, r.c.Seed, i) })
	}
}

func normal(p []float64, seed, i uint64) float64 { return p[0] + p[1]*validate.Normal(seed, i) }

// dropout makes the mask, result 0, and the scaled operand, result 1.
func dropout(r *run) error {
	p := r.scalar("dropout")
	x, mask, out := r.reader(0, r.shape(0)), r.writer(&r.c.Results[0]), r.writer(&r.c.Results[1])
	scale := 1 / (1 - p)
	r.parallel(int(validate.Elems(r.shape(0))), 1<<13, func(lo, hi int) {
		var m, v [chunk]float64
		for at := lo; at < hi; at += chunk {
			n := min(chunk, hi-at)
			x.read(v[:n], int64(at))
			for j := range n {
				m[j] = truth(validate.Uniform(r.c.Seed, uint64(at+j)) >= p)
				v[j] *= m[j] * scale
			}
			mask.write(m[:n], int64(at))
			out.write(v[:n], int64(at))
		}
	})
	return nil
}

// maskBias is 0 where the mask is set and -inf elsewhere.
func maskBias(r *run) error {
	return r.each(1, func(in [][]float64, out []float64) {
		for i, m := range in[0] {
			if out[i] = 0; m == 0 {
				out[i] = math.Inf(-1)
			}
		}
	})
}

// causalBias is 0 on and below the diagonal and -inf above.
func causalBias(r *run) error {
	s := r.c.Results[0].Shape
	n := uint64(s[len(s)-1])
	return r.generate(0, func(i uint64) float64 {
		if i%n > i/n {
			return math.Inf(-1)
		}
		return 0
	})
}

// emptyRows sets rows of a softmax to 0 whose scores are all -inf.
func emptyRows(r *run) error {
	s := r.shape(0)
	n := int(s[len(s)-1])
	x, y := r.floats(0), r.floats(1)
	out, done := r.out(0)
	r.parallel(len(x)/max(n, 1), 64, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			empty := true
			for _, v := range x[i*n : i*n+n] {
				empty = empty && math.IsInf(float64(v), -1)
			}
			for j := i * n; j < i*n+n; j++ {
				if out[j] = y[j]; empty {
					out[j] = 0
				}
			}
		}
	})
	done()
	return nil
}

// triangle keeps what is below (tril) or above (triu) a diagonal.
func triangle(r *run) error {
	s := r.c.Results[0].Shape
	rows, cols := s[len(s)-2], s[len(s)-1]
	lower, k := r.c.Kernel == "tril", int64(r.scalar("diagonal"))
	x := r.floats(0)
	return r.generate(0, func(i uint64) float64 {
		d := int64(i)%cols - int64(i)/cols%rows
		if lower && d <= k || !lower && d >= k {
			return float64(x[i])
		}
		return 0
	})
}
