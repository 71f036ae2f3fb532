//go:build cuda

package cuda

import (
	"fmt"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// convKernels are the kernels of this file.
func convKernels(register func(k kernel, names ...string)) {
	few := func(n *program.Node) error {
		if s := len(n.Attrs.Conv.Stride); s > 3 {
			return fmt.Errorf("%s: %d spatial dims", n.Does(), s)
		}
		return nil
	}
	register(kernel{run: convolution, accepts: few}, "convolution")
	register(kernel{run: convolutionBackward, accepts: few}, "convolution_backward")
}

// convolution is a forward pass, or for a transposed one the data gradient's,
// with the bias added afterwards.
func convolution(r *run) error {
	x, w, b, out := r.arg(0), r.arg(1), r.arg(2), r.result(0)
	var err error
	if r.attrs().Conv.Transposed {
		err = conv(r, dataPass, out, w, x, out)
	} else {
		err = conv(r, forwardPass, x, w, out, out)
	}
	if err != nil || b == nil {
		return err
	}
	return pointwise(r, "add", out, [4]float64{1}, onDevice(out), onDevice(channels(b, spatial(r))))
}

// spatial returns the number of dims of the call's windows.
func spatial(r *run) int { return len(r.attrs().Conv.Stride) }

// channels shows a vector of channels with the dims of an image.
func channels(b *validate.ArenaView, spatial int) *validate.ArenaView {
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
			err = conv(r, forwardPass, g, w, dx, dx)
		} else {
			err = conv(r, dataPass, dx, w, g, dx)
		}
		if err != nil {
			return err
		}
	}
	if dw != nil {
		var err error
		if transposed {
			err = conv(r, filterPass, g, dw, x, dw)
		} else {
			err = conv(r, filterPass, x, dw, g, dw)
		}
		if err != nil {
			return err
		}
	}
	if db == nil {
		return nil
	}
	var dims []int64
	at := int64(len(g.Shape) - spatial(r) - 1) // the channels' dim
	for d := range g.Shape {
		if int64(d) != at {
			dims = append(dims, int64(d))
		}
	}
	return reduce(r, redSum, db, g, dims)
}

// conv runs one pass between operand x, weight w and result y, one of which it
// computes.
func conv(r *run, p pass, x, w, y, out *validate.ArenaView) error {
	list := r.d.ways(r.attrs().Conv, p, x, w, y)
	at := 0
	for at+1 < len(list) && list[at].bytes > r.c.Work.Bytes {
		at++
	}
	v := &list[at]
	if v.own() && v.err != nil { // an own kernel instead of cuDNN
		r.d.fallbacks[v.err.Error()]++
	}
	if v.copies == nil {
		return runPass(r, v, p, x, w, y, out)
	}
	return v.copies.run(r.c.Work.At, resultOf[p], r.copyTo,
		func(t []validate.ArenaView) error { return runPass(r, v, p, &t[0], &t[1], &t[2], &t[resultOf[p]]) })
}

// resultOf is the one of operand, weight and result that a pass computes.
var resultOf = [...]int{forwardPass: 2, dataPass: 0, filterPass: 1}

// runPass runs a pass on tensors in the required layout.
func runPass(r *run, v *way, p pass, x, w, y, out *validate.ArenaView) error {
	work := r.c.Work
	if v.copies != nil { // at the start of the workspace
		work.At += v.copies.bytes
		work.Bytes -= v.copies.bytes
	}
	switch {
	case v.graph != nil:
		return runGraph(r, v.graph, p, x, w, y, work.At)
	case v.plan != nil:
		return convolve(r, &v.key, v.plan, x, w, y, work.At)
	}
	return ownConv(r, p, x, w, y, out, work)
}

// sized returns the dims and strides of a tensor as cuDNN counts them: a vector
// of positions has a height of 1.
func sized(t *validate.ArenaView, spatial int) (size, stride [5]int32, dims int8, err error) {
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

// convKey describes a pass to cuDNN.
func (d *Device) convKey(c *program.Conv, p pass, x, w, y *validate.ArenaView) (convKey, error) {
	k := convKey{pass: p, dtype: x.DType, groups: int32(c.Groups), full: d.opt.FP32}
	if _, ok := dnnTypes[x.DType]; !ok || w.DType != x.DType || y.DType != x.DType {
		return k, fmt.Errorf("cuDNN: types %v, %v, %v", x.DType, w.DType, y.DType)
	}
	n := len(c.Stride)
	var err error
	for _, s := range []struct {
		t            *validate.ArenaView
		size, stride *[5]int32
	}{{x, &k.x, &k.xs}, {w, &k.w, &k.ws}, {y, &k.y, &k.ys}} {
		if *s.size, *s.stride, k.dims, err = sized(s.t, n); err != nil {
			return k, err
		}
	}
	lead := 0
	if n == 1 {
		k.stride[0], k.dil[0], lead = 1, 1, 1
	}
	for i := range n {
		k.pad[lead+i], k.stride[lead+i], k.dil[lead+i] = int32(c.Pad[i]), int32(c.Stride[i]), int32(c.Dilation[i])
	}
	return k, nil
}

// convolve runs a planned pass in the workspace at an offset of the arena.
func convolve(r *run, k *convKey, plan *convPlan, x, w, y *validate.ArenaView, at int64) error {
	a, b, out := r.ptr(x), r.ptr(w), r.ptr(y)
	switch k.pass {
	case dataPass:
		a, b, out = r.ptr(w), r.ptr(y), r.ptr(x)
	case filterPass:
		a, b, out = r.ptr(x), r.ptr(y), r.ptr(w)
	}
	return r.d.dnn.run(k, plan, a, b, out, uint64(r.d.at(at)))
}

// convWork returns the workspace of a convolution's passes: of several, the largest.
func (d *Device) convWork(n *program.Node) (int64, error) {
	c := n.Attrs
	if c == nil || c.Conv == nil {
		return 0, nil
	}
	defer d.leave()
	if err := d.enter(); err != nil {
		return 0, err
	}
	arg := func(i int) *validate.ArenaView { return shown(n.In, int(n.Arg(i).In)) }
	result := func(i int) *validate.ArenaView { return shown(n.Out, n.Result(i)) }
	most := int64(0)
	add := func(p pass, x, w, y *validate.ArenaView) {
		if x != nil && w != nil && y != nil {
			most = max(most, d.ways(c.Conv, p, x, w, y)[0].bytes)
		}
	}
	g, x, w := arg(0), arg(1), arg(2)
	switch back := n.Does() == "convolution_backward"; {
	case !back && c.Conv.Transposed:
		add(dataPass, result(0), x, g)
	case !back:
		add(forwardPass, g, x, result(0))
	case c.Conv.Transposed:
		add(forwardPass, g, w, result(0))
		add(filterPass, g, result(1), x)
	default:
		add(dataPass, result(0), w, g)
		add(filterPass, x, result(1), g)
	}
	return most, nil
}

// shown returns a node's tensor in the form of calls; only its offset from the
// start of its buffer is known.
func shown(list []program.View, i int) *validate.ArenaView {
	if i < 0 || i >= len(list) {
		return nil
	}
	t := &list[i]
	return &validate.ArenaView{At: t.DType.Bytes(t.Offset), DType: t.DType, Shape: t.Shape, Strides: t.Strides}
}

// dense reports whether a weight is row-major, or has its channels innermost.
func dense(w *validate.ArenaView) bool {
	if w.RowMajor() {
		return true
	}
	n := len(w.Shape)
	order := append([]int{0}, ascending(n)[2:]...)
	strides := [][]int64{w.Strides}
	size := join(w.Shape, strides, append(order, 1))
	return len(size) == 1 && strides[0][0] == 1
}
