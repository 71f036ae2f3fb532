//go:build cuda

package cuda

import (
	"errors"
	"fmt"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// convArgs is Conv of conv.cu.
type convArgs struct {
	n, c, h, w, k, oh, ow                int64
	inStride, outStride, weightStride    [4]int64
	in, weight, bias, out                uint64
	r, s, sh, sw, ph, pw, dh, dw, groups int32
	dtype                                int32
}

func init() {
	few := func(n *program.Node) error {
		if s := len(n.Attrs.Conv.Stride); s > 3 {
			return fmt.Errorf("%s: %d spatial dims", n.Does(), s)
		}
		return nil
	}
	register(kernel{run: convolution, accepts: few}, "convolution")
	register(kernel{run: convolutionBackward, accepts: few}, "convolution_backward")
}

// convolution is a forward pass, of a transposed one the data gradient's, with
// the bias added after.
func convolution(r *run) error {
	x, w, b, out := r.arg(0), r.arg(1), r.arg(2), r.result(0)
	var err error
	if r.attrs().Conv.Transposed {
		err = r.conv(dataPass, out, w, x, out)
	} else {
		err = r.conv(forwardPass, x, w, out, out)
	}
	if err != nil || b == nil {
		return err
	}
	return r.pointwise("add", out, [4]float64{1}, onDevice(out), onDevice(channels(b, r.spatial())))
}

// spatial is how many dims the call's windows have.
func (r *run) spatial() int { return len(r.attrs().Conv.Stride) }

// channels shows a vector of channels as it lies along an image with spatial
// dims behind them.
func channels(b *validate.Tensor, spatial int) *validate.Tensor {
	shape, strides := []int64{b.Shape[0]}, []int64{b.Strides[0]}
	for range spatial {
		shape, strides = append(shape, 1), append(strides, 1)
	}
	return part(b, shape, strides, 0)
}

// convolutionBackward makes the gradients of operand, weight and bias.
func convolutionBackward(r *run) error {
	g, x, w := r.arg(0), r.arg(1), r.arg(2)
	dx, dw, db := r.result(0), r.result(1), r.result(2)
	transposed := r.attrs().Conv.Transposed
	if dx != nil {
		var err error
		if transposed {
			err = r.conv(forwardPass, g, w, dx, dx)
		} else {
			err = r.conv(dataPass, dx, w, g, dx)
		}
		if err != nil {
			return err
		}
	}
	if dw != nil {
		var err error
		if transposed {
			err = r.conv(filterPass, g, dw, x, dw)
		} else {
			err = r.conv(filterPass, x, dw, g, dw)
		}
		if err != nil {
			return err
		}
	}
	if db == nil {
		return nil
	}
	var dims []int64
	at := int64(len(g.Shape) - r.spatial() - 1) // the channels' dim
	for d := range g.Shape {
		if int64(d) != at {
			dims = append(dims, int64(d))
		}
	}
	return r.reduce(redSum, db, g, dims)
}

// conv runs one pass between operand x, weight w and result y, one of which it
// computes.
func (r *run) conv(p pass, x, w, y, out *validate.Tensor) error {
	if r.d.dnn != nil {
		err := r.cudnn(p, x, w, y)
		if err == nil {
			return nil
		}
		if r.spatial() > 2 || errors.Is(err, errRunning) {
			return err
		}
		r.d.fellBack(err)
	}
	return r.ownConv(p, x, w, y, out)
}

// errRunning is what fails once cuDNN has started.
var errRunning = errors.New("cuDNN failed")

// fellBack notes why a convolution ran without cuDNN.
func (d *Device) fellBack(err error) { d.fallbacks[err.Error()]++ }

// sized shows a tensor with n dims as cuDNN counts them: a vector of positions
// has a height of 1.
func sized(t *validate.Tensor, spatial int) (size, stride [5]int32, dims int8, err error) {
	n := len(t.Shape)
	if n != spatial+2 {
		return size, stride, 0, fmt.Errorf("%v has not %d spatial dims", t.Shape, spatial)
	}
	at := 0
	for d := range n {
		if d == 2 && spatial == 1 {
			size[at], stride[at] = 1, int32(t.Shape[2]*t.Strides[2])
			at++
		}
		if t.Shape[d] >= 1<<31 || t.Strides[d] >= 1<<31 {
			return size, stride, 0, fmt.Errorf("%v is too large for cuDNN", t.Shape)
		}
		size[at], stride[at] = int32(t.Shape[d]), int32(t.Strides[d])
		at++
	}
	return size, stride, int8(at), nil
}

// cudnn runs a pass within the largest scratch that the plan has for the call.
func (r *run) cudnn(p pass, x, w, y *validate.Tensor) error {
	c := r.attrs().Conv
	if _, ok := dnnTypes[x.DType]; !ok || w.DType != x.DType || y.DType != x.DType {
		return fmt.Errorf("cuDNN: types %v, %v, %v", x.DType, w.DType, y.DType)
	}
	k := convKey{pass: p, dtype: x.DType, groups: int32(c.Groups), full: r.d.opt.FP32}
	var err error
	for _, s := range []struct {
		t            *validate.Tensor
		size, stride *[5]int32
	}{{x, &k.x, &k.xs}, {w, &k.w, &k.ws}, {y, &k.y, &k.ys}} {
		if *s.size, *s.stride, k.dims, err = sized(s.t, r.spatial()); err != nil {
			return err
		}
	}
	if !dense(w) {
		return fmt.Errorf("cuDNN: a weight with strides %v", w.Strides)
	}
	lead := 0
	if r.spatial() == 1 {
		k.stride[0], k.dil[0], lead = 1, 1, 1
	}
	for i := range r.spatial() {
		k.pad[lead+i], k.stride[lead+i], k.dil[lead+i] = int32(c.Pad[i]), int32(c.Stride[i]), int32(c.Dilation[i])
	}
	ws := r.largestScratch()
	k.limit = ws.Bytes
	plan := r.d.dnn.plan(&k)
	if plan.limited {
		r.d.byMemory = true
	}
	if plan.err != nil {
		return plan.err
	}
	a, b, out := r.ptr(x), r.ptr(w), r.ptr(y)
	switch p {
	case dataPass:
		a, b, out = r.ptr(w), r.ptr(y), r.ptr(x)
	case filterPass:
		a, b, out = r.ptr(x), r.ptr(y), r.ptr(w)
	}
	if err := r.d.dnn.run(&k, plan, a, b, out, uint64(r.d.at(ws.At))); err != nil {
		return fmt.Errorf("%w: %w", errRunning, err)
	}
	return nil
}

// dense reports a weight that lies in order, or with its channels innermost.
func dense(w *validate.Tensor) bool {
	if contiguous(w) {
		return true
	}
	n := len(w.Shape)
	order := append([]int{0}, ascending(n)[2:]...)
	strides := [][]int64{w.Strides}
	size := join(w.Shape, strides, append(order, 1))
	return len(size) == 1 && strides[0][0] == 1
}

// largestScratch is the widest memory that the call may work in: a run of its
// scratch, where storages that lie side by side in the arena count as one, or of
// the arena where it holds nothing.
func (r *run) largestScratch() validate.Span {
	best := r.c.Gap
	for _, s := range r.c.Scratch {
		for grown := true; grown; {
			grown = false
			for _, t := range r.c.Scratch {
				if t.At <= s.At+s.Bytes && t.At+t.Bytes > s.At+s.Bytes && t.At >= s.At {
					s.Bytes, grown = t.At+t.Bytes-s.At, true
				}
			}
		}
		if s.Bytes > best.Bytes {
			best = s
		}
	}
	return best
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
	switch p {
	case forwardPass:
		a.in, a.weight = r.ptr(x), r.ptr(w)
		return launch(r.d, "conv", "conv_forward", sweep(y.Elems()), &a)
	case dataPass:
		a.in, a.weight = r.ptr(y), r.ptr(w)
		return launch(r.d, "conv", "conv_backward_data", sweep(x.Elems()), &a)
	}
	a.in, a.weight = r.ptr(x), r.ptr(y)
	return launch(r.d, "conv", "conv_backward_filter", grid{x: w.Elems(), tx: 256}, &a)
}
