package cpu

import (
	"github.com/memplan/memplan/graph/program"
)

var convKernels = map[string]kernel{
	"convolution": convolution, "convolution_backward": convolutionBackward,
}

// A conv is a convolution of three spatial dims, the missing ones of size 1: from
// the image side [n, ci, in] to the side of positions [n, co, out] with a
// weight [co, ci/groups, k]. A transposed convolution runs it backwards.
type conv struct {
	n, ci, co, groups       int
	in, out, k              [3]int
	stride, pad, dil        [3]int
	image, kernel, position int // elements of one channel
}

func spatial3(s []int64) [3]int {
	out := [3]int{1, 1, 1}
	for i, n := range s {
		out[3-len(s)+i] = int(n)
	}
	return out
}

func newConv(c *program.Conv, image, weight, positions []int64) *conv {
	v := &conv{n: int(image[0]), ci: int(image[1]), co: int(positions[1]), groups: int(c.Groups), in: spatial3(image[2:]), out: spatial3(positions[2:]), k: spatial3(weight[2:]),
		stride: spatial3(c.Stride), dil: spatial3(c.Dilation)}
	for i, p := range c.Pad {
		v.pad[3-len(c.Pad)+i] = int(p)
	}
	product := func(a [3]int) int { return a[0] * a[1] * a[2] }
	v.image, v.kernel, v.position = product(v.in), product(v.k), product(v.out)
	return v
}

// span is the positions along the last dim whose window element kx is inside.
func (v *conv) span(kx int) (lo, hi int) {
	off := kx*v.dil[2] - v.pad[2]
	if lo = 0; off < 0 {
		lo = (-off + v.stride[2] - 1) / v.stride[2]
	}
	hi = min(v.out[2], (v.in[2]-1-off)/v.stride[2]+1)
	if v.in[2]-1-off < 0 {
		hi = 0
	}
	return min(lo, v.out[2]), max(hi, min(lo, v.out[2]))
}

// windows calls f for every row of positions of channel c's window elements:
// row of the column matrix, first column, first image element, and their
// number; columns outside lo..hi have no image element. Consecutive image
// elements are a stride apart.
func (v *conv) windows(c int, f func(row, col, at, lo, hi int)) {
	for kz := range v.k[0] {
		for ky := range v.k[1] {
			for kx := range v.k[2] {
				row := (c*v.k[0]+kz)*v.k[1]*v.k[2] + ky*v.k[2] + kx
				lo, hi := v.span(kx)
				for z := range v.out[0] {
					iz := z*v.stride[0] - v.pad[0] + kz*v.dil[0]
					for y := range v.out[1] {
						iy := y*v.stride[1] - v.pad[1] + ky*v.dil[1]
						col := (z*v.out[1] + y) * v.out[2]
						if iz < 0 || iz >= v.in[0] || iy < 0 || iy >= v.in[1] {
							f(row, col, 0, 0, 0)
							continue
						}
						at := (c*v.in[0]+iz)*v.in[1]*v.in[2] + iy*v.in[2] + kx*v.dil[2] - v.pad[2]
						f(row, col, at, lo, hi)
					}
				}
			}
		}
	}
}

// columns unfolds cg channels of an image into [cg*kernel, positions].
func (v *conv) columns(r *run, image, cols []float32, cg int) {
	r.parallel(cg, 1, func(from, to int) {
		for c := from; c < to; c++ {
			v.windows(c, func(row, col, at, lo, hi int) {
				d := cols[row*v.position+col : row*v.position+col+v.out[2]]
				clear(d[:lo])
				clear(d[hi:])
				if v.stride[2] == 1 && lo < hi {
					copy(d[lo:hi], image[at+lo:at+hi])
					return
				}
				for x := lo; x < hi; x++ {
					d[x] = image[at+x*v.stride[2]]
				}
			})
		}
	})
}

// fold adds columns back into an image.
func (v *conv) fold(r *run, cols, image []float32, cg int) {
	r.parallel(cg, 1, func(from, to int) {
		for c := from; c < to; c++ {
			v.windows(c, func(row, col, at, lo, hi int) {
				s := cols[row*v.position+col : row*v.position+col+v.out[2]]
				for x := lo; x < hi; x++ {
					image[at+x*v.stride[2]] += s[x]
				}
			})
		}
	})
}

// pointwise reports a convolution whose column matrix is the image.
func (v *conv) pointwise() bool {
	return v.kernel == 1 && v.stride == [3]int{1, 1, 1} && v.pad == [3]int{}
}

// each calls f for each image and group with the group's parts.
func (v *conv) each(image, weight, positions []float32, f func(image, weight, positions []float32)) {
	cg, og := v.ci/v.groups, v.co/v.groups
	for n := range v.n {
		for g := range v.groups {
			i, o := (n*v.ci+g*cg)*v.image, (n*v.co+g*og)*v.position
			w := g * og * cg * v.kernel
			f(image[i:i+cg*v.image], weight[w:w+og*cg*v.kernel], positions[o:o+og*v.position])
		}
	}
}

// forward computes positions from the image.
func (v *conv) forward(r *run, image, weight, positions []float32) {
	cg, og := v.ci/v.groups, v.co/v.groups
	kn := cg * v.kernel
	cols := make([]float32, kn*v.position)
	v.each(image, weight, positions, func(image, weight, positions []float32) {
		c := cols
		if v.pointwise() {
			c = image
		} else {
			v.columns(r, image, cols, cg)
		}
		gemm(1, dense(weight, og, kn), dense(c, kn, v.position), 0, dense(positions, og, v.position))
	})
}

// backward computes the image's gradient from that of the positions.
func (v *conv) backward(r *run, positions, weight, image []float32) {
	cg, og := v.ci/v.groups, v.co/v.groups
	kn := cg * v.kernel
	cols := make([]float32, kn*v.position)
	v.each(image, weight, positions, func(image, weight, positions []float32) {
		if v.pointwise() {
			gemm(1, dense(weight, og, kn).t(), dense(positions, og, v.position), 0, dense(image, kn, v.position))
			return
		}
		gemm(1, dense(weight, og, kn).t(), dense(positions, og, v.position), 0, dense(cols, kn, v.position))
		clear(image)
		v.fold(r, cols, image, cg)
	})
}

// gradient computes the weight's gradient.
func (v *conv) gradient(r *run, image, positions, weight []float32) {
	cg, og := v.ci/v.groups, v.co/v.groups
	kn := cg * v.kernel
	cols := make([]float32, kn*v.position)
	clear(weight)
	v.each(image, weight, positions, func(image, weight, positions []float32) {
		c := cols
		if v.pointwise() {
			c = image
		} else {
			v.columns(r, image, cols, cg)
		}
		gemm(1, dense(positions, og, v.position), dense(c, kn, v.position).t(), 1, dense(weight, og, kn))
	})
}

func convolution(r *run) error {
	c := r.attrs().Conv
	x, w := r.floats(0), r.floats(1)
	out, done := r.out(0)
	shape := r.c.Results[0].Shape
	if c.Transposed {
		newConv(c, shape, r.shape(1), r.shape(0)).backward(r, x, w, out)
	} else {
		newConv(c, r.shape(0), r.shape(1), shape).forward(r, x, w, out)
	}
	if r.has(2) {
		b := r.floats(2)
		per := len(out) / int(shape[0]*shape[1])
		r.parallel(len(out)/per, 16, func(lo, hi int) {
			for i := lo; i < hi; i++ {
				v := b[i%len(b)]
				for j := range out[i*per : (i+1)*per] {
					out[i*per+j] += v
				}
			}
		})
	}
	done()
	return nil
}

// convolutionBackward makes the gradients of input, weight and bias.
func convolutionBackward(r *run) error {
	c := r.attrs().Conv
	g, x, w := r.floats(0), r.floats(1), r.floats(2)
	v := newConv(c, r.shape(1), r.shape(2), r.shape(0))
	if c.Transposed {
		v = newConv(c, r.shape(0), r.shape(2), r.shape(1))
	}
	if r.wants(0) {
		out, done := r.out(0)
		if c.Transposed {
			v.forward(r, g, w, out)
		} else {
			v.backward(r, g, w, out)
		}
		done()
	}
	if r.wants(1) {
		out, done := r.out(1)
		if c.Transposed {
			v.gradient(r, g, x, out)
		} else {
			v.gradient(r, x, g, out)
		}
		done()
	}
	if r.wants(2) {
		s := r.shape(0)
		out, done := r.out(2)
		per := len(g) / int(s[0]*s[1])
		for ch := range out {
			var sum float64
			for n := range int(s[0]) {
				at := (n*len(out) + ch) * per
				for _, v := range g[at : at+per] {
					sum += float64(v)
				}
			}
			out[ch] = float32(sum)
		}
		done()
	}
	return nil
}
