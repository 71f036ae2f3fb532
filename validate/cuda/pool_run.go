//go:build cuda

package cuda

import (
	"fmt"
	"strings"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// poolKernels are those of this file.
func poolKernels(register func(k kernel, names ...string)) {
	register(kernel{run: func(r *run) error { return r.pool("max_pool_forward", r.arg(0), r.result(0), r.result(1), false) }}, "max_pool_with_indices")
	register(kernel{run: func(r *run) error { return r.resize(true, false) }}, "upsample_bilinear2d")
	register(kernel{run: func(r *run) error { return r.resize(false, false) }}, "upsample_nearest2d")
	register(kernel{run: func(r *run) error { return r.resize(true, true) }}, "upsample_bilinear2d_backward")
	register(kernel{run: func(r *run) error { return r.resize(false, true) }}, "upsample_nearest2d_backward")
	register(kernel{run: func(r *run) error { return r.pool("max_pool_backward", r.result(0), r.arg(0), r.arg(2), true) }, accepts: func(n *program.Node) error {
		if n.Attrs.Pool == nil {
			return fmt.Errorf("%s: the windows are not said", n.Does())
		}
		return nil
	}}, "max_pool2d_with_indices_backward")
	register(kernel{run: func(r *run) error { return r.pool("avg_pool_forward", r.arg(0), r.result(0), nil, false) }}, "avg_pool2d")
	register(kernel{run: func(r *run) error { return r.pool("avg_pool_backward", r.result(0), r.arg(0), nil, true) }}, "avg_pool2d_backward")
	register(kernel{run: func(r *run) error { return r.pool("adaptive_avg_forward", r.arg(0), r.result(0), nil, false) }}, "adaptive_avg_pool2d")
	register(kernel{run: func(r *run) error { return r.pool("adaptive_avg_backward", r.result(0), r.arg(0), nil, true) }}, "adaptive_avg_pool2d_backward")
}

// resizeArgs is Resize of pool.cu.
type resizeArgs struct {
	n, c, h, w, oh, ow        int64
	inStride, outStride       [4]int64
	in, out                   uint64
	scaleH, scaleW            float32
	linear, corners, dtype, _ int32
}

// resize interpolates between the plane that is read in the forward and the one
// that is written; back says that it goes the other way.
func (r *run) resize(linear, back bool) error {
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

// A resampling is the images between which an interpolation goes: sizes and strides of
// batch, channels, rows and columns.
type resampling struct{ in, out, inStride, outStride [4]int64 }

// resamplingOf shows two images of one training type.
func resamplingOf(from, to *validate.Tensor) (p resampling, err error) {
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

// image shows a tensor with n spatial dims as [N, C, H, W].
func image(t *validate.Tensor, spatial int) (size, stride [4]int64, err error) {
	size, stride = [4]int64{1, 1, 1, 1}, [4]int64{}
	n := len(t.Shape)
	if spatial < 1 || spatial > 2 || n < spatial || n > spatial+2 {
		return size, stride, fmt.Errorf("%v is no batch of images", t.Shape)
	}
	for i := range spatial {
		size[4-spatial+i], stride[4-spatial+i] = t.Shape[n-spatial+i], t.Strides[n-spatial+i]
	}
	for i := range n - spatial {
		size[2-(n-spatial)+i], stride[2-(n-spatial)+i] = t.Shape[i], t.Strides[i]
	}
	return size, stride, nil
}

// windowDims is how many dims the call's windows have.
func (r *run) windowDims() int {
	if p := r.attrs().Pool; p != nil {
		return len(p.Kernel)
	}
	if n := len(r.attrs().Dims); n > 0 {
		return n
	}
	return 2
}

// pool runs a pooling between the large tensor and the small one; back says that
// it goes from the small to the large.
func (r *run) pool(name string, large, small, index *validate.Tensor, back bool) error {
	a := poolArgs{kh: 1, kw: 1, sh: 1, sw: 1, dh: 1, dw: 1, dtype: dtype(large), index: r.ptr(index)}
	spatial := r.windowDims()
	if spatial == 3 {
		kind := "average"
		if strings.HasPrefix(name, "max_pool_") {
			kind = "max"
		}
		return r.volumes(kind, large, small, index, back)
	}
	if p := r.attrs().Pool; p != nil {
		get := func(v []int64, i int, def int64) int32 {
			if j := i - (2 - spatial); j >= 0 && j < len(v) {
				return int32(v[j])
			}
			return int32(def)
		}
		a.kh, a.kw, a.sh, a.sw = get(p.Kernel, 0, 1), get(p.Kernel, 1, 1), get(p.Stride, 0, 1), get(p.Stride, 1, 1)
		a.ph, a.pw, a.dh, a.dw = get(p.Pad, 0, 0), get(p.Pad, 1, 0), get(p.Dilation, 0, 1), get(p.Dilation, 1, 1)
		a.divisor = int32(p.Divisor)
		if p.ExcludePad {
			a.excludePad = 1
		}
	}
	in, is, err := image(large, spatial)
	if err != nil {
		return err
	}
	out, os, err := image(small, spatial)
	if err != nil {
		return err
	}
	if !isTraining(large.DType) || small.DType != large.DType {
		return fmt.Errorf("pooling of %v and %v", large.DType, small.DType)
	}
	a.n, a.c, a.h, a.w, a.oh, a.ow, a.inStride, a.outStride = in[0], in[1], in[2], in[3], out[2], out[3], is, os
	if index != nil {
		if _, a.indexStride, err = image(index, spatial); err != nil {
			return err
		}
	}
	a.in, a.out = r.ptr(large), r.ptr(small)
	if back {
		a.in, a.out = a.out, a.in
	}
	if strings.HasPrefix(name, "max_pool_") {
		if w, kind, ok := a.windows(back, uint64(large.DType.Bytes(1))); ok {
			return launch(r.d, "pool_fast", fmt.Sprintf("max_%s_%d", strings.TrimPrefix(name, "max_pool_"), kind), along(int64(w.n)), &w)
		}
	}
	if back {
		return launch(r.d, "pool", name, along(large.Elems()), &a)
	}
	return launch(r.d, "pool", name, along(small.Elems()), &a)
}
