//go:build cuda

package cuda

import (
	"fmt"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// bicubicArgs is Bicubic of sample.cu.
type bicubicArgs struct {
	n, c, h, w, oh, ow  int64
	inStride, outStride [4]int64
	in, out             uint64
	scaleH, scaleW      float64
	corners, dtype      int32
}

// gridArgs is Grid of sample.cu.
type gridArgs struct {
	n, c, h, w, oh, ow                             int64
	imageStride, gridStride, outStride             [4]int64
	gridGradStride, imageGradStride                [4]int64
	image, grid, out, gridGrad, imageGrad, sums    uint64
	nearest, padding, corners, dtype, gridDType, _ int32
}

// sampleKernels are the kernels of this file.
func sampleKernels(register func(k kernel, names ...string)) {
	register(kernel{run: func(r *run) error { return bicubic(r, false) }}, "upsample_bicubic2d")
	register(kernel{run: func(r *run) error { return bicubic(r, true) }}, "upsample_bicubic2d_backward")
	planes := func(n *program.Node) error {
		for _, t := range n.In {
			if len(t.Shape) != 4 {
				return fmt.Errorf("%s: operands of %d dims", n.Does(), len(t.Shape))
			}
		}
		return nil
	}
	register(kernel{run: gridSample, accepts: planes}, "grid_sampler_2d")
	register(kernel{run: gridSampleBackward, accepts: planes, work: gridWork}, "grid_sampler_2d_backward")
	register(kernel{run: func(r *run) error { return resize(r, true, false) }}, "upsample_bilinear2d")
	register(kernel{run: func(r *run) error { return resize(r, false, false) }}, "upsample_nearest2d")
	register(kernel{run: func(r *run) error { return resize(r, true, true) }}, "upsample_bilinear2d_backward")
	register(kernel{run: func(r *run) error { return resize(r, false, true) }}, "upsample_nearest2d_backward")
}

// bicubic is resize with bicubic interpolation.
func bicubic(r *run, back bool) error {
	from, to, name := r.arg(0), r.result(0), "bicubic_forward"
	if back {
		from, to, name = to, from, "bicubic_backward"
	}
	p, err := resamplingOf(from, to)
	if err != nil {
		return err
	}
	a := bicubicArgs{n: p.in[0], c: p.in[1], h: p.in[2], w: p.in[3], oh: p.out[2], ow: p.out[3], inStride: p.inStride, outStride: p.outStride, in: r.ptr(r.arg(0)), out: r.ptr(r.result(0)),
		corners: int32(r.scalar("align_corners")), dtype: dtype(from)}
	if back {
		a.inStride, a.outStride = p.outStride, p.inStride
	}
	a.scaleH, a.scaleW = spacing(a.h, a.oh, a.corners, r.scalar("scale_h")), spacing(a.w, a.ow, a.corners, r.scalar("scale_w"))
	return launch(r.d, "sample", name, along(r.result(0).Elems()), &a)
}

// gridOf describes a call by its image, grid and result, or the result's
// gradient.
func gridOf(r *run, image, places, out *validate.ArenaView) (gridArgs, error) {
	if image == nil || places == nil || out == nil || !isTraining(image.DType) || out.DType != image.DType {
		return gridArgs{}, fmt.Errorf("a grid of places in operands that are no images of one type")
	}
	return gridArgs{n: image.Shape[0], c: image.Shape[1], h: image.Shape[2], w: image.Shape[3], oh: places.Shape[1], ow: places.Shape[2],
		imageStride: [4]int64(image.Strides), gridStride: [4]int64(places.Strides), outStride: [4]int64(out.Strides), image: r.ptr(image), grid: r.ptr(places), out: r.ptr(out),
		nearest: int32(r.scalar("nearest")), padding: int32(r.scalar("padding")), corners: int32(r.scalar("align_corners")), dtype: dtype(image), gridDType: dtype(places)}, nil
}

// gridSample reads an image at the grid's positions.
func gridSample(r *run) error {
	a, err := gridOf(r, r.arg(0), r.arg(1), r.result(0))
	if err != nil {
		return err
	}
	return launch(r.d, "sample", "grid_forward", along(r.result(0).Elems()), &a)
}

// gridWork is the workspace for the largest number of the gradient, and sums of
// 8 bytes for every element of the image.
func gridWork(r *run) int64 {
	if dx := r.result(1); dx != nil {
		return 8 + 8*dx.Elems()
	}
	return 0
}

// gridSampleBackward reads the gradient, the grid and the image, and makes the
// gradients of grid and image.
func gridSampleBackward(r *run) error {
	g, dg, dx := r.arg(0), r.result(0), r.result(1)
	a, err := gridOf(r, r.arg(2), r.arg(1), g)
	if err != nil {
		return err
	}
	if dg != nil {
		a.gridGrad, a.gridGradStride = r.ptr(dg), [4]int64(dg.Strides)
		if dg.DType != r.arg(1).DType {
			return fmt.Errorf("the gradient %v of a grid of %v", dg.DType, r.arg(1).DType)
		}
		if err := launch(r.d, "sample", "grid_backward_places", along(a.n*a.oh*a.ow), &a); err != nil {
			return err
		}
	}
	if dx == nil {
		return nil
	}
	need := gridWork(r)
	if r.c.Work.Bytes < need {
		return fmt.Errorf("the gradient of grid_sample works in %d bytes, and the plan has %d for it: give it what Device.Work asks for", need, r.c.Work.Bytes)
	}
	sums := &validate.ArenaView{At: r.c.Work.At, DType: graph.Int64, Shape: []int64{need / 8}, Strides: []int64{1}}
	if err := zero(r, sums); err != nil {
		return err
	}
	a.imageGrad, a.imageGradStride, a.sums = r.ptr(dx), [4]int64(dx.Strides), r.ptr(sums)
	if err := launch(r.d, "sample", "grid_backward_top", sweep(g.Elems()), &a); err != nil {
		return err
	}
	if err := launch(r.d, "sample", "grid_backward_image", along(g.Elems()), &a); err != nil {
		return err
	}
	return launch(r.d, "sample", "grid_backward_finish", along(dx.Elems()), &a)
}

// resizeArgs is Resize of pool.cu.
type resizeArgs struct {
	n, c, h, w, oh, ow        int64
	inStride, outStride       [4]int64
	in, out                   uint64
	scaleH, scaleW            float32
	linear, corners, dtype, _ int32
}

// resize interpolates between the planes that the forward reads and writes;
// back reverses the direction.
func resize(r *run, linear, back bool) error {
	from, to := r.arg(0), r.result(0)
	name := "resize_forward"
	if back {
		from, to, name = to, from, "resize_backward"
	}
	p, err := resamplingOf(from, to)
	if err != nil {
		return err
	}
	a := resizeArgs{n: p.in[0], c: p.in[1], h: p.in[2], w: p.in[3], oh: p.out[2], ow: p.out[3], inStride: p.inStride, outStride: p.outStride, in: r.ptr(r.arg(0)), out: r.ptr(r.result(0)),
		corners: int32(r.scalar("align_corners")), dtype: dtype(from)}
	a.scaleH, a.scaleW = float32(spacing(a.h, a.oh, a.corners, r.scalar("scale_h"))), float32(spacing(a.w, a.ow, a.corners, r.scalar("scale_w")))
	if linear {
		a.linear = 1
	}
	return launch(r.d, "pool", name, along(r.result(0).Elems()), &a)
}

// A resampling is the two images of an interpolation: sizes and strides of batch,
// channels, rows and columns.
type resampling struct{ in, out, inStride, outStride [4]int64 }

// resamplingOf describes two images of one training type.
func resamplingOf(from, to *validate.ArenaView) (p resampling, err error) {
	if p.in, p.inStride, err = image(from, 2); err != nil {
		return p, err
	}
	if p.out, p.outStride, err = image(to, 2); err != nil {
		return p, err
	}
	if !isTraining(from.DType) || from.DType != to.DType {
		return p, fmt.Errorf("interpolation between %v and %v", from.DType, to.DType)
	}
	return p, nil
}

// spacing is the distance of neighbouring samples, in elements of the operand
// (aten/src/ATen/native/UpSample.h, area_pixel_compute_scale).
func spacing(in, out int64, corners int32, scale float64) float64 {
	switch {
	case corners != 0 && out > 1:
		return float64(in-1) / float64(out-1)
	case corners != 0:
		return 0
	case scale > 0:
		return 1 / scale
	}
	return float64(in) / float64(out)
}
