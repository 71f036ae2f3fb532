package cpu

import (
	"fmt"

	"github.com/memplan/memplan/validate"
)

var poolKernels = map[string]kernel{
	"max_pool_with_indices": maxPool, "max_pool2d_with_indices_backward": maxPoolBackward, "avg_pool2d": avgPool, "avg_pool2d_backward": avgPoolBackward,
	"adaptive_max_pool2d": adaptiveMax, "im2col": columns(false), "col2im": columns(true), "adaptive_avg_pool2d": avgPool, "adaptive_avg_pool2d_backward": avgPoolBackward,
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
		if a != nil && len(a.Dims) > 0 {
			n = len(a.Dims)
		}
	}
	p.in, p.out = spatial3(in[len(in)-n:]), spatial3(out[len(out)-n:])
	p.planes = int(validate.Elems(in[:len(in)-n]))
	p.imageSize, p.positions = p.in[0]*p.in[1]*p.in[2], p.out[0]*p.out[1]*p.out[2]
	return p
}

// window returns the inputs, from lo to hi in steps, of position o along dim d,
// and their number including padding.
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

// each calls f for every position of a plane with the indices in the plane of
// its window's inputs, and the divisor of an average.
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
	image, per := int(validate.Elems(s[len(s)-n:])), int(validate.Elems(r.shape(0)[len(s)-n:]))
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

// adaptiveMax makes the largest element of each window, and its place in the plane.
func adaptiveMax(r *run) error {
	x := r.floats(0)
	p := r.newPool(r.shape(0), r.c.Results[0].Shape)
	values, indices := make([]float64, r.c.Results[0].Elems()), make([]float64, r.c.Results[1].Elems())
	for n := range p.planes {
		plane := x[n*p.imageSize : (n+1)*p.imageSize]
		p.each(func(o int, at []int, _ int) {
			best := at[0]
			for _, i := range at[1:] {
				if plane[i] > plane[best] || plane[i] != plane[i] {
					best = i
				}
			}
			values[n*p.positions+o], indices[n*p.positions+o] = float64(plane[best]), float64(best)
		})
	}
	r.save(&r.c.Results[0], values)
	r.save(&r.c.Results[1], indices)
	return nil
}

// columns copies each window of an image to a column, in the order of the windows;
// back adds columns up to an image.
func columns(back bool) kernel {
	return func(r *run) error {
		image, cols := r.shape(0), r.c.Results[0].Shape
		if back {
			image, cols = cols, image
		}
		a, n := r.attrs().Pool, len(image)
		if n < 3 || len(cols) != n-1 {
			return fmt.Errorf("columns %v of images %v", cols, image)
		}
		h, w := image[n-2], image[n-1]
		places := func(d int) int64 {
			return (image[n-2+d]+2*a.Pad[d]-a.Dilation[d]*(a.Kernel[d]-1)-1)/a.Stride[d] + 1
		}
		oh, ow, taps := places(0), places(1), a.Kernel[0]*a.Kernel[1]
		x, out := r.all(0), make([]float64, r.c.Results[0].Elems())
		for i := range validate.Elems(cols) { // plane, position in the window, position of the window
			plane, tap, at := i/(taps*oh*ow), i/(oh*ow)%taps, i%(oh*ow)
			y, z := at/ow*a.Stride[0]-a.Pad[0]+tap/a.Kernel[1]*a.Dilation[0], at%ow*a.Stride[1]-a.Pad[1]+tap%a.Kernel[1]*a.Dilation[1]
			if y < 0 || z < 0 || y >= h || z >= w {
				continue
			}
			if pixel := (plane*h+y)*w + z; back {
				out[pixel] += x[i]
			} else {
				out[i] = x[pixel]
			}
		}
		r.save(&r.c.Results[0], out)
		return nil
	}
}
