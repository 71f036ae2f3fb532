package cpu

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/memplan/memplan/validate"
)

// selectKernels take some of their operand's elements, by size or by number.
func selectKernels() map[string]kernel {
	return map[string]kernel{
		"amax_with_indices": extreme(func(x, best float64) bool { return x > best }), "amin_with_indices": extreme(func(x, best float64) bool { return x < best }),
		"topk": topK, "repeat_interleave": interleave, "adaptive_max_pool2d": adaptiveMax,
		"im2col": columns(false), "col2im": columns(true),
	}
}

// extreme makes the best element of each line along a dim and its place: the first of
// equals, and the first that is not a number before all others.
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

// topK sorts each line along a dim and takes the first elements of it: what is not a
// number counts as the largest, and of equals the first comes first.
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

// compare orders numbers, with what is not a number as the largest.
func compare(a, b float64) int {
	switch {
	case a < b, b != b && a == a:
		return -1
	case a > b, a != a && b == b:
		return 1
	}
	return 0
}

// interleave makes the number of each element as often as the operand says. Where that
// adds up to another number than the plan's, the result is cut, or ends in the last
// element: what a step repeats may depend on its data.
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

// columns shows each window of an image as a column, the windows' places side by side;
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
		for i := range validate.Elems(cols) { // plane, place in the window, place of the window
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
