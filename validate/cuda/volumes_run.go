//go:build cuda

package cuda

import (
	"fmt"
	"math"

	"github.com/memplan/memplan/validate"
)

// volumesArgs is Volumes of pool_deep.cu.
type volumesArgs struct {
	n, c                                    int64
	inStride, outStride, indexStride        [5]int64
	in, out, index                          uint64
	size, outs                              [3]int32
	k, s, p, d                              [3]int32
	adaptive, divisor, excludePad, dtype int32
}

// volume shows a tensor with three spatial dims as [N, C, D, H, W].
func volume(t *validate.Tensor) (lead [2]int64, size [3]int32, stride [5]int64, err error) {
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

// volumes runs a pooling of three dims between the large tensor and the small
// one; back says that it goes from the small to the large.
func (r *run) volumes(name string, large, small, index *validate.Tensor, back bool) error {
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
