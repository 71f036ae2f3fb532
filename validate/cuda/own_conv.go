//go:build cuda

package cuda

import (
	"fmt"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// convArgs is Conv of conv.cu.
type convArgs struct {
	n, c, h, w, k, oh, ow                int64
	inStride, outStride, weightStride    [4]int64
	in, weight, out                      uint64
	r, s, sh, sw, ph, pw, dh, dw, groups int32
	dtype                                int32
}

// ownConv runs a pass by memplan's own kernels.
func (r *run) ownConv(p pass, x, w, y, out *validate.Tensor) error {
	c, n := r.attrs().Conv, r.spatial()
	if n > 2 || !isTraining(x.DType) || w.DType != x.DType || y.DType != x.DType {
		return fmt.Errorf("no own kernel for a convolution of %v with %d spatial dims", x.DType, n)
	}
	xs, xst, err := image(x, n)
	if err != nil {
		return err
	}
	ws, wst, err := image(w, n)
	if err != nil {
		return err
	}
	ys, yst, err := image(y, n)
	if err != nil {
		return err
	}
	get := func(v []int64, i int, def int32) int32 {
		if j := i - (2 - n); j >= 0 {
			return int32(v[j])
		}
		return def
	}
	a := convArgs{n: xs[0], c: xs[1], h: xs[2], w: xs[3], k: ys[1], oh: ys[2], ow: ys[3], inStride: xst, outStride: yst, weightStride: wst, r: int32(ws[2]), s: int32(ws[3]),
		sh: get(c.Stride, 0, 1), sw: get(c.Stride, 1, 1), ph: get(c.Pad, 0, 0), pw: get(c.Pad, 1, 0), dh: get(c.Dilation, 0, 1), dw: get(c.Dilation, 1, 1),
		groups: int32(c.Groups), dtype: dtype(x), out: r.ptr(out)}
	small := depthwise(c, w) && x.Elems() < 1<<31 && y.Elems() < 1<<31
	switch p {
	case forwardPass:
		a.in, a.weight = r.ptr(x), r.ptr(w)
		if small {
			return launch(r.d, "conv", "depthwise_forward", along(y.Elems()), &a)
		}
		return launch(r.d, "conv", "conv_forward", sweep(y.Elems()), &a)
	case dataPass:
		a.in, a.weight = r.ptr(y), r.ptr(w)
		if small {
			return launch(r.d, "conv", "depthwise_data", along(x.Elems()), &a)
		}
		return launch(r.d, "conv", "conv_backward_data", sweep(x.Elems()), &a)
	}
	a.in, a.weight = r.ptr(x), r.ptr(y)
	if small {
		return launch(r.d, "conv", "depthwise_filter", grid{x: w.Elems(), tx: 256}, &a)
	}
	return launch(r.d, "conv", "conv_backward_filter", grid{x: w.Elems(), tx: 256}, &a)
}

// depthwise reports a convolution of every channel by itself: cuDNN is slower at
// it than a kernel that does nothing else.
func depthwise(c *program.Conv, w *validate.Tensor) bool {
	return !c.Transposed && c.Groups > 1 && w.Shape[0] == c.Groups && w.Shape[1] == 1 && len(c.Stride) <= 2 && isTraining(w.DType)
}
