package cpu

import (
	"math"

	"github.com/memplan/memplan/validate"
)

var sampleKernels = map[string]kernel{
	"upsample_bilinear2d": upsample(bilinear), "upsample_bilinear2d_backward": upsampleBackward(bilinear),
	"upsample_nearest2d": upsample(nearest), "upsample_nearest2d_backward": upsampleBackward(nearest),
	"upsample_bicubic2d": upsample(bicubic), "upsample_bicubic2d_backward": upsampleBackward(bicubic),
	"grid_sampler_2d": gridSample, "grid_sampler_2d_backward": gridSampleBackward,
}

// A taps is the elements of a line that are combined for a sample, with their
// weights; those of weight 0 do not count.
type taps struct {
	at     [4]int
	weight [4]float64
}

// A sampler returns the taps, on a line of n elements, of element o on a line
// of m.
type sampler func(o, n, m int, align bool, scale float64) taps

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

// source returns the position on a line of n of element o on a line of m
// (area_pixel_compute_source_index).
func source(o, n, m int, align bool, scale float64) float64 {
	x := ratio(n, m, align, scale)
	if align {
		return x * float64(o)
	}
	return x*(float64(o)+0.5) - 0.5
}

func nearest(o, n, m int, _ bool, scale float64) taps {
	return taps{[4]int{min(int(float64(float32(o)*float32(ratio(n, m, false, scale)))), n-1)}, [4]float64{1}}
}

func bilinear(o, n, m int, align bool, scale float64) taps {
	x := max(source(o, n, m, align, scale), 0)
	lo := min(int(x), n-1)
	w := min(x-float64(lo), 1)
	return taps{[4]int{lo, min(lo+1, n-1)}, [4]float64{1 - w, w}}
}

// bicubic is convolution with Keys' cubic of parameter -0.75, edges repeated.
func bicubic(o, n, m int, align bool, scale float64) taps {
	const a = -0.75
	x := source(o, n, m, align, scale)
	lo := math.Floor(x)
	t := x - lo
	near := func(d float64) float64 { return ((a+2)*d-(a+3))*d*d + 1 }
	far := func(d float64) float64 { return ((a*d-5*a)*d+8*a)*d - 4*a }
	out := taps{weight: [4]float64{far(1 + t), near(t), near(1 - t), far(2 - t)}}
	for i := range out.at {
		out.at[i] = min(max(int(lo)-1+i, 0), n-1)
	}
	return out
}

// samples calls f for each element of [.., h, w] planes of out with an element
// of in and its weight.
func (r *run) samples(in, out []int64, s sampler, f func(o, i int, weight float64)) {
	n := len(in)
	ih, iw, oh, ow := int(in[n-2]), int(in[n-1]), int(out[n-2]), int(out[n-1])
	align, scaleH, scaleW := r.scalar("align_corners") != 0, r.scalar("scale_h"), r.scalar("scale_w")
	planes := int(validate.Elems(in[:n-2]))
	r.parallel(planes, 1, func(lo, hi int) {
		for p := lo; p < hi; p++ {
			for y := range oh {
				ys := s(y, ih, oh, align, scaleH)
				for x := range ow {
					xs := s(x, iw, ow, align, scaleW)
					for a, wy := range ys.weight {
						for b, wx := range xs.weight {
							if w := wy * wx; w != 0 {
								f((p*oh+y)*ow+x, (p*ih+ys.at[a])*iw+xs.at[b], w)
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

// Padding modes of grid_sample beyond an image's edges.
const (
	padZeros = iota
	padBorder
	padReflection
)

// onImage converts a grid's coordinate, -1 to 1, to a position on a line of n
// elements, and returns its derivative (aten/src/ATen/native/GridSampler.h,
// grid_sampler_compute_source_index_set_grad).
func onImage(c float64, n int, padding int, align bool) (x, slope float64) {
	size := float64(n)
	if x, slope = ((c+1)*size-1)/2, size/2; align {
		x, slope = (c+1)/2*(size-1), (size-1)/2
	}
	if padding == padReflection {
		low, high := -0.5, size-0.5
		if align {
			low, high = 0, size-1
		}
		var sign float64
		x, sign = reflected(x, low, high)
		slope *= sign
	}
	if padding != padZeros && (x <= 0 || x >= size-1) {
		return min(max(x, 0), size-1), 0
	}
	return x, slope
}

// reflected folds x into [low, high], and returns the direction in which it
// then moves.
func reflected(x, low, high float64) (folded, sign float64) {
	span := high - low
	if span == 0 {
		return 0, 0
	}
	sign = 1
	if x -= low; x < 0 {
		x, sign = -x, -1
	}
	rest := math.Mod(x, span)
	if int(math.Floor(x/span))%2 == 0 {
		return rest + low, sign
	}
	return span - rest + low, -sign
}

// A gridCall is one call of grid_sample or of its backward.
type gridCall struct {
	n, c, ih, iw, oh, ow int
	nearest, align       bool
	padding              int
	grid                 []float32
}

func (r *run) gridCall(image, grid int) *gridCall {
	in, out := r.shape(image), r.shape(grid)
	return &gridCall{n: int(in[0]), c: int(in[1]), ih: int(in[2]), iw: int(in[3]), oh: int(out[1]), ow: int(out[2]),
		nearest: r.scalar("nearest") == 1, padding: int(r.scalar("padding")), align: r.scalar("align_corners") != 0, grid: r.floats(grid)}
}

// each calls f for every tap of every sample: the sample's index in a plane of
// the result, the tap's index in a plane of the image, its weight, and the
// weight's derivatives by the grid's coordinates.
func (g *gridCall) each(image int, f func(o, i int, w, dx, dy float64)) {
	for o := range g.oh * g.ow {
		at := 2 * (image*g.oh*g.ow + o)
		x, sx := onImage(float64(g.grid[at]), g.iw, g.padding, g.align)
		y, sy := onImage(float64(g.grid[at+1]), g.ih, g.padding, g.align)
		if g.nearest {
			if i, j := int(math.RoundToEven(x)), int(math.RoundToEven(y)); g.inside(i, j) {
				f(o, j*g.iw+i, 1, 0, 0)
			}
			continue
		}
		x0, y0 := math.Floor(x), math.Floor(y)
		for k := range 4 {
			i, j := int(x0)+k%2, int(y0)+k/2
			wx, gx := 1-(x-x0), -sx
			if k%2 == 1 {
				wx, gx = x-x0, sx
			}
			wy, gy := 1-(y-y0), -sy
			if k/2 == 1 {
				wy, gy = y-y0, sy
			}
			if g.inside(i, j) {
				f(o, j*g.iw+i, wx*wy, gx*wy, wx*gy)
			}
		}
	}
}

func (g *gridCall) inside(i, j int) bool { return i >= 0 && i < g.iw && j >= 0 && j < g.ih }

// gridSample reads an image and a grid of positions in it.
func gridSample(r *run) error {
	g, x := r.gridCall(0, 1), r.floats(0)
	return r.accumulate(func(sum []float64) {
		for n := range g.n {
			g.each(n, func(o, i int, w, _, _ float64) {
				for c := n * g.c; c < (n+1)*g.c; c++ {
					sum[c*g.oh*g.ow+o] += w * float64(x[c*g.ih*g.iw+i])
				}
			})
		}
	})
}

// gridSampleBackward reads the gradient, the grid and the image; its results are
// the gradients of the grid and of the image.
func gridSampleBackward(r *run) error {
	g, dy, x := r.gridCall(2, 1), r.floats(0), r.floats(2)
	ofGrid, ofImage := make([]float64, len(g.grid)), make([]float64, len(x))
	for n := range g.n {
		g.each(n, func(o, i int, w, gx, gy float64) {
			for c := n * g.c; c < (n+1)*g.c; c++ {
				d, v := float64(dy[c*g.oh*g.ow+o]), float64(x[c*g.ih*g.iw+i])
				ofImage[c*g.ih*g.iw+i] += w * d
				ofGrid[2*(n*g.oh*g.ow+o)] += gx * d * v
				ofGrid[2*(n*g.oh*g.ow+o)+1] += gy * d * v
			}
		})
	}
	for i, list := range [][]float64{ofGrid, ofImage} {
		if r.wants(i) {
			r.save(&r.c.Results[i], list)
		}
	}
	return nil
}
