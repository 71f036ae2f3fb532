package cpu

import (
	"math"

	"github.com/memplan/memplan/validate"
)

var normKernels = map[string]kernel{
	"_weight_norm_interface": weightNorm, "_weight_norm_interface_backward": weightNormBackward,
	"native_layer_norm": layerNorm, "native_layer_norm_backward": layerNormBackward,
	"_fused_rms_norm": rmsNorm, "_fused_rms_norm_backward": rmsNormBackward,
	"native_group_norm": groupNorm, "native_group_norm_backward": groupNormBackward,
	"batch_norm": batchNorm, "batch_norm_backward": batchNormBackward,
}

// optional returns operand i, or nil if it is absent.
func (r *run) optional(i int) []float32 {
	if !r.has(i) {
		return nil
	}
	return r.floats(i)
}

// at returns w[i], or def if w is nil.
func at(w []float32, i int, def float64) float64 {
	if w == nil {
		return def
	}
	return float64(w[i])
}

// statistics are mean and inverse deviation of n numbers.
func statistics(x []float32, eps float64) (mean, rstd float64) {
	for _, v := range x {
		mean += float64(v)
	}
	mean /= float64(len(x))
	var sq float64
	for _, v := range x {
		d := float64(v) - mean
		sq += d * d
	}
	return mean, 1 / math.Sqrt(sq/float64(len(x))+eps)
}

// outs returns memory for the results, nil for those not wanted, and a function
// that stores them.
func (r *run) outs(n int) (bufs [][]float32, done func()) {
	bufs = make([][]float32, n)
	var ends []func()
	for i := range n {
		if r.wants(i) {
			var end func()
			bufs[i], end = r.out(i)
			ends = append(ends, end)
		}
	}
	return bufs, func() {
		for _, f := range ends {
			f()
		}
	}
}

// rowLength is the product of the normalized dims.
func (r *run) rowLength(operand int) int {
	n := 1
	for _, d := range r.attrs().Dims {
		n *= int(r.shape(operand)[d])
	}
	return n
}

func layerNorm(r *run) error {
	n := r.rowLength(0)
	return r.normalize(n, func(j int) int { return j % n })
}

func groupNorm(r *run) error {
	s := r.shape(0)
	x, plane := int(validate.Elems(s)), int(validate.Elems(s[2:]))
	return r.normalize(x/max(int(r.c.Results[1].Elems()), 1), func(j int) int { return j / plane % int(s[1]) })
}

// normalize computes rows of per elements, their mean and inverse deviation; element j of
// the tensor has weight and bias number channel(j).
func (r *run) normalize(per int, channel func(j int) int) error {
	x, w, b := r.floats(0), r.optional(1), r.optional(2)
	o, done := r.outs(3)
	eps := r.scalar("eps")
	r.parallel(len(x)/per, 16, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			mean, rstd := statistics(x[i*per:(i+1)*per], eps)
			for j := i * per; j < (i+1)*per; j++ {
				c := channel(j)
				o[0][j] = float32((float64(x[j])-mean)*rstd*at(w, c, 1) + at(b, c, 0))
			}
			o[1][i], o[2][i] = float32(mean), float32(rstd)
		}
	})
	done()
	return nil
}

func layerNormBackward(r *run) error {
	n := r.rowLength(1)
	return r.normalizeBackward(n, func(j int) int { return j % n })
}

func groupNormBackward(r *run) error {
	s := r.shape(1)
	plane := int(validate.Elems(s[2:]))
	return r.normalizeBackward(int(s[1]), func(j int) int { return j / plane % int(s[1]) })
}

// normalizeBackward reads gradient, input, weight, mean, inverse deviation.
func (r *run) normalizeBackward(channels int, channel func(j int) int) error {
	g, x, w, mean, rstd := r.floats(0), r.floats(1), r.optional(2), r.floats(3), r.floats(4)
	o, done := r.outs(3)
	per := len(x) / max(len(mean), 1)
	if o[0] != nil {
		r.parallel(len(mean), 16, func(from, to int) {
			for i := from; i < to; i++ {
				lo, hi := i*per, (i+1)*per
				normGradient(o[0][lo:hi], g[lo:hi], x[lo:hi], func(j int) float64 { return at(w, channel(lo+j), 1) }, float64(mean[i]), float64(rstd[i]))
			}
		})
	}
	dw, db := make([]float64, channels), make([]float64, channels)
	for j, v := range g {
		c, i := channel(j), j/per
		db[c] += float64(v)
		dw[c] += float64(v) * (float64(x[j]) - float64(mean[i])) * float64(rstd[i])
	}
	for i, d := range [][]float64{dw, db} {
		if o[i+1] != nil {
			for c, v := range d {
				o[i+1][c] = float32(v)
			}
		}
	}
	done()
	return nil
}

// normGradient is the input's gradient of one normalized row.
func normGradient(out, g, x []float32, w func(int) float64, mean, rstd float64) {
	var s1, s2 float64
	for j, v := range g {
		d := float64(v) * w(j)
		s1 += d
		s2 += d * (float64(x[j]) - mean) * rstd
	}
	n := float64(len(x))
	for j, v := range g {
		h := (float64(x[j]) - mean) * rstd
		out[j] = float32(rstd * (float64(v)*w(j) - s1/n - h*s2/n))
	}
}

func rmsNorm(r *run) error {
	x, w := r.floats(0), r.optional(1)
	n, eps := r.rowLength(0), r.scalar("eps")
	o, done := r.outs(2)
	for i := range len(x) / n {
		var sq float64
		for _, v := range x[i*n : (i+1)*n] {
			sq += float64(v) * float64(v)
		}
		rstd := 1 / math.Sqrt(sq/float64(n)+eps)
		for j := range n {
			o[0][i*n+j] = float32(float64(x[i*n+j]) * rstd * at(w, j, 1))
		}
		o[1][i] = float32(rstd)
	}
	done()
	return nil
}

func rmsNormBackward(r *run) error {
	g, x, w, rstd := r.floats(0), r.floats(1), r.optional(2), r.floats(3)
	n := r.rowLength(1)
	o, done := r.outs(2)
	dw := make([]float64, n)
	for i := range rstd {
		rs := float64(rstd[i])
		var s float64
		for j := range n {
			s += float64(g[i*n+j]) * at(w, j, 1) * float64(x[i*n+j])
			dw[j] += float64(g[i*n+j]) * float64(x[i*n+j]) * rs
		}
		if o[0] != nil {
			for j := range n {
				o[0][i*n+j] = float32(rs * (float64(g[i*n+j])*at(w, j, 1) - float64(x[i*n+j])*rs*rs*s/float64(n)))
			}
		}
	}
	if o[1] != nil {
		for j, v := range dw {
			o[1][j] = float32(v)
		}
	}
	done()
	return nil
}

// channel calls f for every run of elements of channel c of [n, ch, plane].
func channel(n, ch, plane, c int, f func(lo, hi int)) {
	for i := range n {
		lo := (i*ch + c) * plane
		f(lo, lo+plane)
	}
}

// batchNorm reads input, weight, bias, running mean and variance; in training it
// updates the running ones and returns mean and inverse deviation.
func batchNorm(r *run) error {
	x, w, b := r.floats(0), r.optional(1), r.optional(2)
	eps, momentum, train := r.scalar("eps"), r.scalar("momentum"), r.scalar("training") != 0
	s := r.shape(0)
	n, ch := int(s[0]), int(s[1])
	plane := len(x) / max(n*ch, 1)
	var rm, rv []float32
	if r.has(3) {
		rm, rv = r.floats(3), r.floats(4)
	}
	o, done := r.outs(3)
	means, vars := make([]float32, ch), make([]float32, ch)
	r.parallel(ch, 1, func(from, to int) {
		for c := from; c < to; c++ {
			var mean, variance float64
			if train {
				mean, variance = moments(x, n, ch, plane, c)
			} else {
				mean, variance = at(rm, c, 0), at(rv, c, 1)
			}
			means[c], vars[c] = float32(mean), float32(variance)
			rstd := 1 / math.Sqrt(variance+eps)
			scale, shift := at(w, c, 1)*rstd, at(b, c, 0)
			channel(n, ch, plane, c, func(lo, hi int) {
				for j := lo; j < hi; j++ {
					o[0][j] = float32((float64(x[j])-mean)*scale + shift)
				}
			})
			if o[1] != nil {
				o[1][c], o[2][c] = float32(mean), float32(rstd)
			}
		}
	})
	done()
	if train && rm != nil && !r.c.Again {
		count := float64(n * plane)
		for c := range ch {
			rm[c] = float32((1-momentum)*float64(rm[c]) + momentum*float64(means[c]))
			rv[c] = float32((1-momentum)*float64(rv[c]) + momentum*float64(vars[c])*count/max(count-1, 1))
		}
		r.storeOperand(3, rm)
		r.storeOperand(4, rv)
	}
	return nil
}

// moments are mean and variance of channel c.
func moments(x []float32, n, ch, plane, c int) (mean, variance float64) {
	channel(n, ch, plane, c, func(lo, hi int) {
		for _, v := range x[lo:hi] {
			mean += float64(v)
		}
	})
	mean /= float64(n * plane)
	channel(n, ch, plane, c, func(lo, hi int) {
		for _, v := range x[lo:hi] {
			d := float64(v) - mean
			variance += d * d
		}
	})
	return mean, variance / float64(n*plane)
}

// storeOperand writes an operand that the kernel updates.
func (r *run) storeOperand(i int, vals []float32) {
	t := &r.c.Args[i].Tensor
	w := r.writer(t)
	buf := make([]float64, len(vals))
	for j, v := range vals {
		buf[j] = float64(v)
	}
	w.write(buf, 0)
}

// batchNormBackward reads gradient, input, weight, running mean and variance
// and, in training, mean and inverse deviation of the batch.
func batchNormBackward(r *run) error {
	g, x, w := r.floats(0), r.floats(1), r.optional(2)
	eps, train := r.scalar("eps"), r.scalar("training") != 0
	s := r.shape(1)
	n, ch := int(s[0]), int(s[1])
	plane := len(x) / max(n*ch, 1)
	var mean, second []float32
	if train {
		mean, second = r.floats(5), r.floats(6)
	} else {
		mean, second = r.floats(3), r.floats(4)
	}
	o, done := r.outs(3)
	count := float64(n * plane)
	r.parallel(ch, 1, func(from, to int) {
		for c := from; c < to; c++ {
			m, rstd := float64(mean[c]), float64(second[c])
			if !train {
				rstd = 1 / math.Sqrt(rstd+eps)
			}
			var sum, dot float64
			channel(n, ch, plane, c, func(lo, hi int) {
				for j := lo; j < hi; j++ {
					sum += float64(g[j])
					dot += float64(g[j]) * (float64(x[j]) - m) * rstd
				}
			})
			scale := at(w, c, 1) * rstd
			if o[0] != nil {
				channel(n, ch, plane, c, func(lo, hi int) {
					for j := lo; j < hi; j++ {
						d := float64(g[j])
						if train {
							d -= sum/count + (float64(x[j])-m)*rstd*dot/count
						}
						o[0][j] = float32(d * scale)
					}
				})
			}
			if o[1] != nil {
				o[1][c] = float32(dot)
			}
			if o[2] != nil {
				o[2][c] = float32(sum)
			}
		}
	})
	done()
	return nil
}

// weightNorm scales each slice along a dim to the length given by operand 1, and
// returns the slices' original lengths.
func weightNorm(r *run) error {
	v, g := r.floats(0), r.floats(1)
	w, norms := make([]float64, len(v)), make([]float64, len(g))
	at := r.slices(r.shape(0))
	for i, x := range v {
		norms[at(i)] += float64(x) * float64(x)
	}
	for j := range norms {
		norms[j] = math.Sqrt(norms[j])
	}
	for i, x := range v {
		w[i] = float64(x) * float64(g[at(i)]) / norms[at(i)]
	}
	r.save(&r.c.Results[0], w)
	r.save(&r.c.Results[1], norms)
	return nil
}

// slices returns the index along the call's dim of the slice that contains an
// element of a row-major tensor.
func (r *run) slices(shape []int64) func(i int) int {
	d := r.attrs().Dims[0]
	inner, n := int(validate.Elems(shape[d+1:])), int(shape[d])
	return func(i int) int { return i / inner % n }
}

// weightNormBackward reads the gradient of the scaled weight, the target lengths,
// the unscaled weight and its lengths, and makes the gradients of the weight and
// of the target lengths.
func weightNormBackward(r *run) error {
	dw, g, v, norms := r.floats(0), r.floats(1), r.floats(2), r.floats(3)
	dv, dg := make([]float64, len(v)), make([]float64, len(g))
	at := r.slices(r.shape(2))
	for i, x := range v {
		dg[at(i)] += float64(x) * float64(dw[i])
	}
	for j := range dg {
		dg[j] /= float64(norms[j])
	}
	for i, x := range v {
		j := at(i)
		dv[i] = float64(g[j]) / float64(norms[j]) * (float64(dw[i]) - float64(x)*dg[j]/float64(norms[j]))
	}
	for i, grad := range [][]float64{dv, dg} {
		if r.wants(i) {
			r.save(&r.c.Results[i], grad)
		}
	}
	return nil
}
