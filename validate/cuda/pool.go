//go:build cuda

package cuda

import (
	"fmt"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// poolKernels are the kernels of this file.
func poolKernels(register func(k kernel, names ...string)) {
	register(kernel{run: func(r *run) error { return pool(r, "max_pool_forward", r.arg(0), r.result(0), r.result(1), false) }}, "max_pool_with_indices")
	register(kernel{run: func(r *run) error { return pool(r, "max_pool_backward", r.result(0), r.arg(0), r.arg(2), true) }, accepts: func(n *program.Node) error {
		if n.Attrs.Pool == nil {
			return fmt.Errorf("%s: the windows are not said", n.Does())
		}
		return nil
	}}, "max_pool2d_with_indices_backward")
	register(kernel{run: func(r *run) error { return pool(r, "avg_pool_forward", r.arg(0), r.result(0), nil, false) }}, "avg_pool2d")
	register(kernel{run: func(r *run) error { return pool(r, "avg_pool_backward", r.result(0), r.arg(0), nil, true) }}, "avg_pool2d_backward")
	register(kernel{run: func(r *run) error { return pool(r, "adaptive_avg_forward", r.arg(0), r.result(0), nil, false) }}, "adaptive_avg_pool2d")
	register(kernel{run: func(r *run) error { return pool(r, "adaptive_avg_backward", r.result(0), r.arg(0), nil, true) }}, "adaptive_avg_pool2d_backward")
	register(kernel{run: adaptiveMax}, "adaptive_max_pool2d")
	register(kernel{rows: all, run: func(r *run) error { return columns(r, "columns_forward", r.arg(0), r.result(0)) }}, "im2col")
	register(kernel{rows: all, run: func(r *run) error { return columns(r, "columns_backward", r.result(0), r.arg(0)) }}, "col2im")
}

// image views a tensor with n spatial dims as [N, C, H, W].
func image(t *validate.ArenaView, spatial int) (size, stride [4]int64, err error) {
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

// windowDims returns the number of dims of the call's windows.
func windowDims(r *run) int {
	if p := r.attrs().Pool; p != nil {
		return len(p.Kernel)
	}
	if n := len(r.attrs().Dims); n > 0 {
		return n
	}
	return 2
}

// pool runs a pooling between the large tensor and the small one; back reverses
// the direction.
func pool(r *run, name string, large, small, index *validate.ArenaView, back bool) error {
	a := poolArgs{kh: 1, kw: 1, sh: 1, sw: 1, dh: 1, dw: 1, dtype: dtype(large), index: r.ptr(index)}
	spatial := windowDims(r)
	if spatial == 3 {
		kind := "average"
		if strings.HasPrefix(name, "max_pool_") {
			kind = "max"
		}
		return poolVolumes(r, kind, large, small, index, back)
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

// columnsArgs is Columns of select.cu.
type columnsArgs struct {
	planes, h, w, oh, ow                     int64
	in, out                                  uint64
	kh, kw, sh, sw, ph, pw, dh, dw, dtype, _ int32
}

// adaptiveMax pools over windows derived from the sizes, as volumes.
func adaptiveMax(r *run) error {
	n := len(r.attrs().Dims)
	deep := func(t *validate.ArenaView) *validate.ArenaView {
		v := *t
		v.Shape, v.Strides = slices.Clone(t.Shape), slices.Clone(t.Strides)
		for at := len(t.Shape) - n; len(v.Shape) < len(t.Shape)+3-n; {
			v.Shape, v.Strides = slices.Insert(v.Shape, at, 1), slices.Insert(v.Strides, at, 0)
		}
		return &v
	}
	return poolVolumes(r, "max", deep(r.arg(0)), deep(r.result(0)), deep(r.result(1)), false)
}

// columns moves between images and the columns of their windows.
func columns(r *run, name string, image, cols *validate.ArenaView) error {
	p, n := r.attrs().Pool, len(image.Shape)
	if n < 3 || len(cols.Shape) != n-1 || len(p.Kernel) != 2 || !isTraining(image.DType) || cols.DType != image.DType || !image.RowMajor() || !cols.RowMajor() {
		return fmt.Errorf("columns %v %v of images %v %v", cols.DType, cols.Shape, image.DType, image.Shape)
	}
	places := func(d int) int64 {
		return (image.Shape[n-2+d]+2*p.Pad[d]-p.Dilation[d]*(p.Kernel[d]-1)-1)/p.Stride[d] + 1
	}
	a := columnsArgs{planes: validate.Elems(image.Shape[:n-2]), h: image.Shape[n-2], w: image.Shape[n-1], oh: places(0), ow: places(1), in: r.ptr(r.arg(0)), out: r.ptr(r.result(0)), dtype: dtype(image),
		kh: int32(p.Kernel[0]), kw: int32(p.Kernel[1]), sh: int32(p.Stride[0]), sw: int32(p.Stride[1]), ph: int32(p.Pad[0]), pw: int32(p.Pad[1]), dh: int32(p.Dilation[0]), dw: int32(p.Dilation[1])}
	return launch(r.d, "select", name, along(r.result(0).Elems()), &a)
}
