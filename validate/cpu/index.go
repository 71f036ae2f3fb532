package cpu

import (
	"fmt"
	"slices"
)

func indexKernels() map[string]kernel {
	return map[string]kernel{
		"cat":             cat,
		"stack":           stack,
		"repeat":          repeat,
		"repeat_backward": repeatBackward,
		"roll":            roll, "upsample_bilinear2d": upsample(bilinear), "upsample_nearest2d": upsample(nearest),
		"upsample_bilinear2d_backward": upsampleBackward(bilinear), "upsample_nearest2d_backward": upsampleBackward(nearest),
		"unview":                           unview,
		"constant_pad_nd":                  pad,
		"embedding":                        embedding,
		"embedding_dense_backward":         embeddingBackward,
		"index":                            index,
		"index_backward":                   indexBackward,
		"index_select":                     indexSelect,
		"index_select_backward":            indexSelectBackward,
		"gather":                           gatherKernel,
		"gather_backward":                  gatherBackward,
		"max_pool_with_indices":            maxPool,
		"max_pool2d_with_indices_backward": maxPoolBackward,
		"avg_pool2d":                       avgPool,
		"avg_pool2d_backward":              avgPoolBackward,
		"adaptive_avg_pool2d":              avgPool,
		"adaptive_avg_pool2d_backward":     avgPoolBackward,
	}
}

// move writes operand i, of the given shape, into a window of result 0.
func (r *run) move(i int, shape, strides []int64, at int64) {
	t := r.c.Results[0]
	t.Shape, t.Strides, t.At = shape, strides, t.At+t.DType.Bytes(1)*at
	rd, w := r.reader(i, shape), r.writer(&t)
	r.parallel(int(numel(shape)), 1<<14, func(lo, hi int) {
		var buf [chunk]float64
		for at := lo; at < hi; at += chunk {
			b := buf[:min(chunk, hi-at)]
			rd.read(b, int64(at))
			w.write(b, int64(at))
		}
	})
}

func cat(r *run) error {
	t, d := &r.c.Results[0], r.attrs().Dims[0]
	at := int64(0)
	for i := range r.c.Args {
		s := r.shape(i)
		if len(s) != len(t.Shape) { // an empty list
			continue
		}
		r.move(i, s, t.Strides, at*t.Strides[d])
		at += s[d]
	}
	return nil
}

// stack lays operands beside each other along a new dim; absent ones are zeros.
func stack(r *run) error {
	t, d := &r.c.Results[0], int(r.attrs().Dims[0])
	for i := range r.c.Args {
		shape, st := slices.Delete(slices.Clone(t.Shape), d, d+1), slices.Delete(slices.Clone(t.Strides), d, d+1)
		r.move(i, shape, st, int64(i)*t.Strides[d])
	}
	return nil
}

// repeat lays copies beside each other.
func repeat(r *run) error {
	t := &r.c.Results[0]
	x, src := r.floats(0), wrapped(t.Shape, r.shape(0))
	return r.generate(0, func(i uint64) float64 { return float64(x[src(int(i))]) })
}

// wrapped maps the row-major number of an element of a shape to that of the
// element of a smaller one that repeats in it.
func wrapped(shape, in []int64) func(int) int {
	st := rowMajor(shape)
	inSt := rowMajor(in)
	lead := len(shape) - len(in)
	return func(i int) int {
		at := 0
		for j := range in {
			at += i / int(st[lead+j]) % int(shape[lead+j]) % int(in[j]) * int(inSt[j])
		}
		return at
	}
}

func repeatBackward(r *run) error {
	g := r.floats(0)
	to := wrapped(r.shape(0), r.c.Results[0].Shape)
	return r.accumulate(func(sum []float64) {
		for i, v := range g {
			sum[to(i)] += float64(v)
		}
	})
}

// accumulate fills result 0 with sums that f makes, in order, from zeros.
func (r *run) accumulate(f func(sum []float64)) error {
	sum := make([]float64, r.c.Results[0].Elems())
	f(sum)
	w := r.writer(&r.c.Results[0])
	w.write(sum, 0)
	return nil
}

// unview adds the operand into a window of zeros.
func unview(r *run) error {
	w := r.attrs().Window
	s := r.shape(0)
	at := positions(s, w.Strides)
	g := r.floats(0)
	return r.accumulate(func(sum []float64) {
		for i, v := range g {
			sum[at[i]+w.Offset] += float64(v)
		}
	})
}

// pad writes the operand into a window of a constant.
func pad(r *run) error {
	w, s := r.attrs().Window, r.shape(0)
	at := positions(s, w.Strides)
	x := r.floats(0)
	return r.accumulate(func(sum []float64) {
		for i := range sum {
			sum[i] = r.scalar(0, 0)
		}
		for i, v := range x {
			sum[at[i]+w.Offset] = float64(v)
		}
	})
}

func embedding(r *run) error {
	w, s := r.floats(0), r.shape(0)
	n := int(s[1])
	out, done := r.out(0)
	for i, row := range r.ints(1, r.shape(1)) {
		if row < 0 || row >= s[0] {
			return fmt.Errorf("index %d of a table of %d rows", row, s[0])
		}
		copy(out[i*n:(i+1)*n], w[int(row)*n:(int(row)+1)*n])
	}
	done()
	return nil
}

// embeddingBackward adds the gradient's rows into the table's gradient.
func embeddingBackward(r *run) error {
	g, s := r.floats(0), r.c.Results[0].Shape
	n, skip := int(s[1]), int64(r.scalar(0, -1))
	rows := r.ints(1, r.shape(1))
	if len(rows)*n > len(g) { // indices that were shared by a batch
		return fmt.Errorf("%d indices for a gradient of %d rows", len(rows), len(g)/max(n, 1))
	}
	return r.accumulate(func(sum []float64) {
		for i, row := range rows {
			if row == skip || row < 0 || row >= s[0] {
				continue
			}
			for j, v := range g[i*n : (i+1)*n] {
				sum[int(row)*n+j] += float64(v)
			}
		}
	})
}

// indexed calls f for every element of an index call's result: its number and
// where in x, row-major, the element lies. Index tensors start at operand
// first; they broadcast, and stand where the first indexed dim stood, or first
// when other dims lie between.
func (r *run) indexed(x []int64, first int, f func(i, at int)) error {
	dims := r.attrs().Dims
	var shape []int64
	for i := range dims {
		shape = broadcastShape(shape, r.shape(first+i))
	}
	idx := make([][]int64, len(dims))
	for i, d := range dims {
		idx[i] = r.ints(first+i, shape)
		for j, v := range idx[i] {
			if v < 0 {
				v += x[d]
				idx[i][j] = v
			}
			if v < 0 || v >= x[d] {
				return fmt.Errorf("index %d of dim %d of %v", v, d, x)
			}
		}
	}
	st := rowMajor(x)
	together := true
	for i := 1; i < len(dims); i++ {
		together = together && dims[i] == dims[i-1]+1
	}
	lead := int64(0)
	if together {
		lead = dims[0]
	}
	var before, beforeSt, after, afterSt []int64
	for d := range x {
		switch {
		case slices.Contains(dims, int64(d)):
		case int64(d) < lead:
			before, beforeSt = append(before, x[d]), append(beforeSt, st[d])
		default:
			after, afterSt = append(after, x[d]), append(afterSt, st[d])
		}
	}
	i := 0
	tail := positions(after, afterSt)
	for _, b := range positions(before, beforeSt) {
		for k := range numel(shape) {
			at := b
			for j, d := range dims {
				at += idx[j][k] * st[d]
			}
			for _, a := range tail {
				f(i, int(at+a))
				i++
			}
		}
	}
	return nil
}

func broadcastShape(a, b []int64) []int64 {
	if len(a) < len(b) {
		a, b = b, a
	}
	out := slices.Clone(a)
	for i := range b {
		j := len(a) - len(b) + i
		if out[j] == 1 {
			out[j] = b[i]
		}
	}
	return out
}

func index(r *run) error {
	rd := r.reader(0, r.shape(0))
	x := make([]float64, numel(r.shape(0)))
	rd.read(x, 0)
	out := make([]float64, r.c.Results[0].Elems())
	if err := r.indexed(r.shape(0), 1, func(i, at int) { out[i] = x[at] }); err != nil {
		return err
	}
	w := r.writer(&r.c.Results[0])
	w.write(out, 0)
	return nil
}

func indexBackward(r *run) error {
	g, shape := r.floats(0), r.c.Results[0].Shape
	var err error
	return firstError(r.accumulate(func(sum []float64) {
		err = r.indexed(shape, 1, func(i, at int) { sum[at] += float64(g[i]) })
	}), err)
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// picked calls f for every element of a shape with its number and the number
// of the element that takes index idx along dim d of a tensor of shape x.
func picked(x, shape []int64, d int64, idx func(i int) int64, f func(i, at int)) error {
	st, own := rowMajor(x), rowMajor(shape)
	for i := range int(numel(shape)) {
		at := int64(0)
		for j := range shape {
			k := int64(i) / own[j] % shape[j]
			if int64(j) == d {
				if k = idx(i); k < 0 {
					k += x[d]
				}
				if k < 0 || k >= x[d] {
					return fmt.Errorf("index %d of dim %d of %v", k, d, x)
				}
			}
			at += k * st[j]
		}
		f(i, int(at))
	}
	return nil
}

func (r *run) pick(idx func(i int) int64) error {
	rd := r.reader(0, r.shape(0))
	x := make([]float64, numel(r.shape(0)))
	rd.read(x, 0)
	t := &r.c.Results[0]
	out := make([]float64, t.Elems())
	if err := picked(r.shape(0), t.Shape, r.attrs().Dims[0], idx, func(i, at int) { out[i] = x[at] }); err != nil {
		return err
	}
	w := r.writer(t)
	w.write(out, 0)
	return nil
}

func (r *run) unpick(idx func(i int) int64) error {
	g := r.floats(0)
	var err error
	return firstError(r.accumulate(func(sum []float64) {
		err = picked(r.c.Results[0].Shape, r.shape(0), r.attrs().Dims[0], idx, func(i, at int) { sum[at] += float64(g[i]) })
	}), err)
}

// along returns the index that element i of a shape takes from a list along d.
func along(list, shape []int64, d int64) func(int) int64 {
	st := rowMajor(shape)
	return func(i int) int64 { return list[int64(i)/st[d]%shape[d]] }
}

func indexSelect(r *run) error {
	return r.pick(along(r.ints(1, r.shape(1)), r.c.Results[0].Shape, r.attrs().Dims[0]))
}

func indexSelectBackward(r *run) error {
	return r.unpick(along(r.ints(1, r.shape(1)), r.shape(0), r.attrs().Dims[0]))
}

func gatherKernel(r *run) error {
	idx := r.ints(1, r.c.Results[0].Shape)
	return r.pick(func(i int) int64 { return idx[i] })
}

// gatherBackward reads gradient, operand, indices.
func gatherBackward(r *run) error {
	idx := r.ints(len(r.c.Args)-1, r.shape(0))
	return r.unpick(func(i int) int64 { return idx[i] })
}

// roll moves elements along dims, those beyond the end to the start.
func roll(r *run) error {
	a, s := r.attrs(), r.shape(0)
	st := rowMajor(s)
	x := r.floats(0)
	return r.generate(0, func(i uint64) float64 {
		at := int64(i)
		for j, d := range a.Dims {
			k := at / st[d] % s[d]
			from := ((k-int64(a.Scalars[j]))%s[d] + s[d]) % s[d]
			at += (from - k) * st[d]
		}
		return float64(x[at])
	})
}

// A sampler gives the elements of a line of n that element o of a line of m is
// mixed from, with their weights.
type sampler func(o, n, m int, align bool, scale float64) (at [2]int, weight [2]float64)

// ratio is the distance of neighbouring samples (aten/src/ATen/native/UpSample.h,
// area_pixel_compute_scale).
func ratio(n, m int, align bool, scale float64) float64 {
	switch {
	case align && m > 1:
		return float64(n-1) / float64(m-1)
	case align:
		return 0
	case scale > 0:
		return 1 / scale
	}
	return float64(n) / float64(m)
}

func nearest(o, n, m int, _ bool, scale float64) (at [2]int, weight [2]float64) {
	return [2]int{min(int(float64(float32(o)*float32(ratio(n, m, false, scale)))), n-1)}, [2]float64{1}
}

func bilinear(o, n, m int, align bool, scale float64) (at [2]int, weight [2]float64) {
	x := ratio(n, m, align, scale)
	if align {
		x *= float64(o)
	} else {
		x = max(x*(float64(o)+0.5)-0.5, 0)
	}
	lo := min(int(x), n-1)
	w := min(x-float64(lo), 1)
	return [2]int{lo, min(lo+1, n-1)}, [2]float64{1 - w, w}
}

// samples calls f for each element of [.., h, w] planes of out with an element
// of those of in, and its weight.
func (r *run) samples(in, out []int64, s sampler, f func(o, i int, weight float64)) {
	n := len(in)
	ih, iw, oh, ow := int(in[n-2]), int(in[n-1]), int(out[n-2]), int(out[n-1])
	align := r.scalar(0, 0) != 0
	planes := int(numel(in[:n-2]))
	r.parallel(planes, 1, func(lo, hi int) {
		for p := lo; p < hi; p++ {
			for y := range oh {
				ys, wy := s(y, ih, oh, align, r.scalar(1, 0))
				for x := range ow {
					xs, wx := s(x, iw, ow, align, r.scalar(2, 0))
					for a := range 2 {
						for b := range 2 {
							if w := wy[a] * wx[b]; w != 0 {
								f((p*oh+y)*ow+x, (p*ih+ys[a])*iw+xs[b], w)
							}
						}
					}
				}
			}
		}
	})
}

func upsample(s sampler) kernel {
	return func(r *run) error {
		x := r.floats(0)
		return r.accumulate(func(sum []float64) {
			r.samples(r.shape(0), r.c.Results[0].Shape, s, func(o, i int, w float64) { sum[o] += w * float64(x[i]) })
		})
	}
}

func upsampleBackward(s sampler) kernel {
	return func(r *run) error {
		g := r.floats(0)
		return r.accumulate(func(sum []float64) {
			r.samples(r.c.Results[0].Shape, r.shape(0), s, func(o, i int, w float64) { sum[i] += w * float64(g[o]) })
		})
	}
}

// A pool is a pooling over windows of up to three dims.
type pool struct {
	planes               int
	in, out              [3]int
	k, stride, pad, dil  [3]int
	excludePad           bool
	divisor              int
	adaptive             bool
	imageSize, positions int
}

func (r *run) newPool(in, out []int64) *pool {
	p := &pool{}
	n := 2
	if a := r.attrs(); a != nil && a.Pool != nil {
		n = len(a.Pool.Kernel)
		p.k, p.stride, p.dil = spatial3(a.Pool.Kernel), spatial3(a.Pool.Stride), spatial3(a.Pool.Dilation)
		for i, v := range a.Pool.Pad {
			p.pad[3-n+i] = int(v)
		}
		p.excludePad, p.divisor = a.Pool.ExcludePad, int(a.Pool.Divisor)
	} else {
		p.adaptive = true
	}
	p.in, p.out = spatial3(in[len(in)-n:]), spatial3(out[len(out)-n:])
	p.planes = int(numel(in[:len(in)-n]))
	p.imageSize, p.positions = p.in[0]*p.in[1]*p.in[2], p.out[0]*p.out[1]*p.out[2]
	return p
}

// window is the inputs, from lo to hi in steps, of position o along dim d, and
// how many there are with padding.
func (p *pool) window(d, o int) (lo, hi, step, full int) {
	if p.adaptive {
		lo, hi = o*p.in[d]/p.out[d], ((o+1)*p.in[d]+p.out[d]-1)/p.out[d]
		return lo, hi, 1, hi - lo
	}
	start := o*p.stride[d] - p.pad[d]
	end := min(start+p.k[d]*p.dil[d], p.in[d]+p.pad[d])
	full = (end - start + p.dil[d] - 1) / p.dil[d]
	lo = start
	for lo < 0 {
		lo += p.dil[d]
	}
	return lo, min(end, p.in[d]), p.dil[d], full
}

// each calls f for every position of a plane with the inputs of its window, by
// number in the plane, and the count that an average divides by.
func (p *pool) each(f func(o int, at []int, count int)) {
	var at []int
	for z := range p.out[0] {
		z0, z1, zs, zf := p.window(0, z)
		for y := range p.out[1] {
			y0, y1, ys, yf := p.window(1, y)
			for x := range p.out[2] {
				x0, x1, xs, xf := p.window(2, x)
				at = at[:0]
				for i := z0; i < z1; i += zs {
					for j := y0; j < y1; j += ys {
						for k := x0; k < x1; k += xs {
							at = append(at, (i*p.in[1]+j)*p.in[2]+k)
						}
					}
				}
				count := zf * yf * xf
				if p.excludePad {
					count = len(at)
				}
				if p.divisor != 0 {
					count = p.divisor
				}
				f((z*p.out[1]+y)*p.out[2]+x, at, count)
			}
		}
	}
}

func maxPool(r *run) error {
	x := r.floats(0)
	p := r.newPool(r.shape(0), r.c.Results[0].Shape)
	out, done := r.out(0)
	idx := make([]float64, len(out))
	r.parallel(p.planes, 1, func(lo, hi int) {
		for n := lo; n < hi; n++ {
			plane := x[n*p.imageSize : (n+1)*p.imageSize]
			p.each(func(o int, at []int, _ int) {
				best := at[0]
				for _, i := range at[1:] {
					if plane[i] > plane[best] || plane[i] != plane[i] {
						best = i
					}
				}
				out[n*p.positions+o], idx[n*p.positions+o] = plane[best], float64(best)
			})
		}
	})
	done()
	if r.wants(1) {
		w := r.writer(&r.c.Results[1])
		w.write(idx, 0)
	}
	return nil
}

// maxPoolBackward reads gradient, input, indices.
func maxPoolBackward(r *run) error {
	g, idx := r.floats(0), r.ints(2, r.shape(2))
	n := len(r.attrs().Dims)
	s := r.shape(1)
	image, per := int(numel(s[len(s)-n:])), int(numel(r.shape(0)[len(s)-n:]))
	return r.accumulate(func(sum []float64) {
		for i, v := range g {
			sum[i/per*image+int(idx[i])] += float64(v)
		}
	})
}

func avgPool(r *run) error {
	x := r.floats(0)
	p := r.newPool(r.shape(0), r.c.Results[0].Shape)
	out, done := r.out(0)
	r.parallel(p.planes, 1, func(lo, hi int) {
		for n := lo; n < hi; n++ {
			plane := x[n*p.imageSize : (n+1)*p.imageSize]
			p.each(func(o int, at []int, count int) {
				var s float64
				for _, i := range at {
					s += float64(plane[i])
				}
				out[n*p.positions+o] = float32(s / float64(count))
			})
		}
	})
	done()
	return nil
}

func avgPoolBackward(r *run) error {
	g := r.floats(0)
	p := r.newPool(r.c.Results[0].Shape, r.shape(0))
	return r.accumulate(func(sum []float64) {
		r.parallel(p.planes, 1, func(lo, hi int) {
			for n := lo; n < hi; n++ {
				p.each(func(o int, at []int, count int) {
					v := float64(g[n*p.positions+o]) / float64(count)
					for _, i := range at {
						sum[n*p.imageSize+i] += v
					}
				})
			}
		})
	})
}
