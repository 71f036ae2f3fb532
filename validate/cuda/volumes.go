//go:build cuda

package cuda

import (
	"fmt"
	"math"

	"github.com/memplan/memplan/validate"
)

// volumesArgs is Volumes of pool_deep.cu.
type volumesArgs struct {
	n, c                                 int64
	inStride, outStride, indexStride     [5]int64
	in, out, index                       uint64
	size, outs                           [3]int32
	k, s, p, d                           [3]int32
	adaptive, divisor, excludePad, dtype int32
}

// volume views a tensor with three spatial dims as [N, C, D, H, W].
func volume(t *validate.ArenaView) (lead [2]int64, size [3]int32, stride [5]int64, err error) {
	lead = [2]int64{1, 1}
	n := len(t.Shape)
	if n < 3 || n > 5 {
		return lead, size, stride, fmt.Errorf("%v is no batch of volumes", t.Shape)
	}
	for i := range n {
		switch at := 5 - n + i; {
		case at < 2:
			lead[at], stride[at] = t.Shape[i], t.Strides[i]
		case t.Shape[i] > math.MaxInt32/2:
			return lead, size, stride, fmt.Errorf("a volume of %v", t.Shape)
		default:
			size[at-2], stride[at] = int32(t.Shape[i]), t.Strides[i]
		}
	}
	return lead, size, stride, nil
}

// poolVolumes runs a pooling of three dims between the large tensor and the small
// one; back reverses the direction.
func poolVolumes(r *run, name string, large, small, index *validate.ArenaView, back bool) error {
	if !isTraining(large.DType) || small.DType != large.DType {
		return fmt.Errorf("pooling of %v and %v", large.DType, small.DType)
	}
	a := volumesArgs{dtype: dtype(large), in: r.ptr(large), out: r.ptr(small), index: r.ptr(index)}
	lead, size, strides, err := volume(large)
	if err != nil {
		return err
	}
	a.n, a.c, a.size, a.inStride = lead[0], lead[1], size, strides
	if _, a.outs, a.outStride, err = volume(small); err != nil {
		return err
	}
	if index != nil {
		if _, _, a.indexStride, err = volume(index); err != nil {
			return err
		}
	}
	if p := r.attrs().Pool; p == nil {
		a.adaptive = 1
	} else {
		for i := range 3 {
			a.k[i], a.s[i], a.p[i], a.d[i] = int32(p.Kernel[i]), int32(p.Stride[i]), int32(p.Pad[i]), int32(p.Dilation[i])
		}
		a.divisor = int32(p.Divisor)
		if p.ExcludePad {
			a.excludePad = 1
		}
	}
	if back {
		a.in, a.out = a.out, a.in
		return launch(r.d, "pool_deep", name+"_backward", along(large.Elems()), &a)
	}
	return launch(r.d, "pool_deep", name+"_forward", along(small.Elems()), &a)
}

// deepArgs is Deep of conv_deep.cu.
type deepArgs struct {
	n, c, k                           int64
	inStride, outStride, weightStride [5]int64
	in, weight, out                   uint64
	size, outs, taps                  [3]int32
	s, p, d                           [3]int32
	groups, dtype                     int32
}

// deepConv runs a pass of a convolution over three dims by memplan's own kernels.
func deepConv(r *run, p pass, x, w, y, out *validate.ArenaView) error {
	c := r.attrs().Conv
	if !isTraining(x.DType) || w.DType != x.DType || y.DType != x.DType {
		return fmt.Errorf("no own kernel for a convolution of %v, %v and %v", x.DType, w.DType, y.DType)
	}
	a := deepArgs{groups: int32(c.Groups), dtype: dtype(x), out: r.ptr(out)}
	var lead [2]int64
	var err error
	if lead, a.size, a.inStride, err = volume(x); err != nil {
		return err
	}
	a.n, a.c = lead[0], lead[1]
	if lead, a.outs, a.outStride, err = volume(y); err != nil {
		return err
	}
	a.k = lead[1]
	if _, a.taps, a.weightStride, err = volume(w); err != nil {
		return err
	}
	for i := range 3 {
		a.s[i], a.p[i], a.d[i] = int32(c.Stride[i]), int32(c.Pad[i]), int32(c.Dilation[i])
	}
	switch p {
	case forwardPass:
		a.in, a.weight = r.ptr(x), r.ptr(w)
		return launch(r.d, "conv_deep", "deep_forward", sweep(y.Elems()), &a)
	case dataPass:
		a.in, a.weight = r.ptr(y), r.ptr(w)
		return launch(r.d, "conv_deep", "deep_data", sweep(x.Elems()), &a)
	}
	a.in, a.weight = r.ptr(x), r.ptr(y)
	return launch(r.d, "conv_deep", "deep_filter", grid{x: w.Elems(), tx: 256}, &a)
}
