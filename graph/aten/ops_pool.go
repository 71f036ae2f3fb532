package aten

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// poolSize is the output length of a pooling window.
func poolSize(in, kernel, pad, stride, dil int64, ceil bool) int64 {
	span := in + 2*pad - dil*(kernel-1) - 1
	if ceil {
		span += stride - 1
	}
	out := span/stride + 1
	if ceil && (out-1)*stride >= in+pad {
		out--
	}
	return out
}

// poolShape replaces the last n dims by what the windows leave.
func (c *Call) poolShape(x *Tensor, n int, dilated bool) ([]int64, *program.Pool) {
	kernel := c.ints(1, "kernel_size", n, 1)
	stride := kernel
	if a := c.arg(2, "stride"); a != nil && (a.Kind == graph.ArgInt || len(a.List) > 0) {
		stride = c.ints(2, "stride", n, 1)
	}
	pad := c.ints(3, "padding", n, 0)
	dil, at := repeat(1, n), 4
	if dilated {
		dil, at = c.ints(4, "dilation", n, 1), 5
	}
	ceil := c.bool(at, "ceil_mode", false)
	shape := slices.Clone(x.Shape)
	for i := range n {
		d := x.dim() - n + i
		if stride[i] < 1 {
			fail("stride %d", stride[i])
		}
		shape[d] = poolSize(x.Shape[d], kernel[i], pad[i], stride[i], dil[i], ceil)
		if shape[d] < 1 {
			fail("input %v is smaller than the window %v", x.Shape, kernel)
		}
	}
	p := &program.Pool{Kernel: kernel, Stride: stride, Pad: pad, Dilation: dil}
	if !dilated {
		p.ExcludePad, p.Divisor = !c.bool(5, "count_include_pad", true), c.int(6, "divisor_override", 0)
	}
	return shape, p
}

func spatial(op string) int {
	for n, s := range []string{"1d", "2d", "3d"} {
		if len(op) > 2 && slices.Contains([]string{op[len(op)-2:], midDim(op)}, s) {
			return n + 1
		}
	}
	return 2
}

// midDim finds the "2d" in names such as max_pool2d_with_indices.
func midDim(op string) string {
	for i := 1; i+1 < len(op); i++ {
		if op[i] >= '1' && op[i] <= '3' && op[i+1] == 'd' {
			return op[i : i+2]
		}
	}
	return ""
}

func lastOr(x *Tensor, shape []int64) []int64 {
	if preferLast(x) && len(shape) == 4 {
		return channelsLastStrides(shape)
	}
	return nil
}

// poolStrides are those of a pooling's result: as lastOr, and in three dims of a
// maximum, too.
func poolStrides(x *Tensor, shape []int64, last3 bool) []int64 {
	if last3 && preferLast(x) && len(shape) == 5 {
		return channelsLastStrides(shape)
	}
	return lastOr(x, shape)
}

// ordered takes the copy of an operand that a pooling or resizing kernel cannot
// read as it lies: it wants one order of dims.
func (k *kernel) ordered(t *Tensor, last bool) program.StorageID {
	if inFormat(t, last) {
		return program.None
	}
	return k.temp(t.Bytes(), program.Temporaries)
}

// runMaxPool makes values and indices; backward scatters through the indices.
func runMaxPool(e *Eager, c *Call) []*Tensor {
	x := c.need(0, "self")
	shape, pool := c.poolShape(x, spatial(c.Op), true)
	k := e.begin("max_pool_with_indices", x)
	k.attrs().Pool = pool
	st := poolStrides(x, shape, true)
	o, idx := k.alloc(shape, st, x.DType), k.alloc(shape, st, graph.Int64)
	k.free(k.ordered(x, st != nil))
	k.end()
	e.record("MaxPool2DWithIndicesBackward0", []*Tensor{o}, []*Tensor{x}, []*Tensor{x, idx}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		k := e.begin("max_pool2d_with_indices_backward", g[0], s[0], s[1]).dims(spatialDims(x, len(pool.Kernel))...)
		k.attrs().Pool = pool
		k.alloc(x.Shape, poolStrides(x, x.Shape, true), x.DType)
		var copies []program.StorageID
		if len(pool.Kernel) < 3 {
			copies = append(copies, k.ordered(g[0], st != nil), k.ordered(s[0], st != nil))
		} else {
			copies = append(copies, k.ordered(s[0], st != nil), k.ordered(g[0], st != nil))
		}
		slices.Reverse(copies)
		k.free(copies...)
		return []*Tensor{k.end()}
	})
	return []*Tensor{o, idx}
}

func runAvgPool(e *Eager, c *Call) []*Tensor {
	x := c.need(0, "self")
	shape, pool := c.poolShape(x, spatial(c.Op), false)
	if len(pool.Kernel) == 1 { // of images one pixel high (aten/src/ATen/native/Pool.h, avg_pool1d)
		wide := &program.Pool{Kernel: []int64{1, pool.Kernel[0]}, Stride: []int64{1, pool.Stride[0]}, Pad: []int64{0, pool.Pad[0]}, Dilation: []int64{1, 1}, ExcludePad: pool.ExcludePad, Divisor: pool.Divisor}
		image := e.sub("unsqueeze", x, -2)
		o := e.avgPool("avg_pool2d", "AvgPool2DBackward0", image, 2, slices.Insert(slices.Clone(shape), len(shape)-1, 1), wide)
		return []*Tensor{e.sub("squeeze", o, -2)}
	}
	return []*Tensor{e.avgPool("avg_pool2d", "AvgPool2DBackward0", x, len(pool.Kernel), shape, pool)}
}

// spatialDims are the last n dims of x.
func spatialDims(x *Tensor, n int) []int {
	dims := make([]int, n)
	for i := range dims {
		dims[i] = x.dim() - n + i
	}
	return dims
}

// avgPool averages over windows of n dims, or, without a pool, over what the sizes
// give.
func (e *Eager) avgPool(op, node string, x *Tensor, n int, shape []int64, pool *program.Pool) *Tensor {
	windows := func(k *kernel) {
		if k.attrs().Pool = pool; pool == nil {
			k.dims(spatialDims(x, n)...)
		}
	}
	k := e.begin(op, x)
	windows(k)
	last := lastOr(x, shape) != nil
	copied := program.None
	if pool == nil { // not a structured kernel: the copy comes first
		copied = k.ordered(x, last)
	}
	o := k.alloc(shape, lastOr(x, shape), x.DType)
	if pool != nil {
		copied = k.ordered(x, last)
	}
	k.free(copied)
	k.flops(x.Numel()).end()
	e.record(node, []*Tensor{o}, []*Tensor{x}, []*Tensor{x}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		k := e.begin(op+"_backward", g[0], s[0])
		windows(k)
		if pool == nil {
			copied := k.ordered(g[0], last)
			k.alloc(x.Shape, lastOr(x, x.Shape), x.DType)
			k.free(copied)
			return []*Tensor{k.end()}
		}
		k.alloc(x.Shape, lastOr(x, x.Shape), x.DType)
		copies := []program.StorageID{k.ordered(g[0], last)}
		if n == 2 { // of the operand, too
			copies = append(copies, k.ordered(s[0], last))
		}
		slices.Reverse(copies)
		k.free(copies...)
		return []*Tensor{k.end()}
	})
	return o
}

// runAdaptiveAvgPool is a mean over the spatial dims when the output is 1x1.
func runAdaptiveAvgPool(e *Eager, c *Call) []*Tensor {
	x := c.need(0, "self")
	n := spatial(c.Op)
	size := c.ints(1, "output_size", n, 1)
	shape := slices.Clone(x.Shape)
	one := true
	for i := range n {
		one = one && size[i] == 1
		shape[x.dim()-n+i] = size[i]
	}
	if !one {
		return []*Tensor{e.avgPool("adaptive_avg_pool2d", "AdaptiveAvgPool2DBackward0", x, n, shape, nil)}
	}
	dims := Arg{Kind: graph.ArgList}
	for i := range n {
		dims.List = append(dims.List, Arg{Kind: graph.ArgInt, Int: int64(-1 - i)})
	}
	m := &Call{Op: "mean", Over: "dim", Name: c.Name, Module: c.Module, Args: []Arg{tensorArg(x), dims, {Kind: graph.ArgBool, Int: 1}}}
	o := runSum(e, m)
	if preferLast(x) { // out.as_strided_
		if o[0].Storage != program.None {
			e.P.Storages[o[0].Storage].Reshaped = true
		}
		return e.viewOp("AsStridedBackward1", o[0], shape, channelsLastStrides(shape), 0, func(e *Eager, g *Tensor) *Tensor {
			return e.zeros("new_zeros", shape, g, channelsLastStrides(shape), 0)
		})
	}
	return o
}

func runAdaptiveMaxPool(e *Eager, c *Call) []*Tensor {
	x := c.need(0, "self")
	n := spatial(c.Op)
	shape := slices.Clone(x.Shape)
	for i, s := range c.ints(1, "output_size", n, 1) {
		shape[x.dim()-n+i] = s
	}
	k := e.begin(c.Op, x).does("adaptive_max_pool2d").dims(spatialDims(x, n)...)
	o, idx := k.alloc(shape, nil, x.DType), k.alloc(shape, nil, graph.Int64)
	k.free(k.ordered(x, false))
	k.end()
	e.record("AdaptiveMaxPool2DBackward0", []*Tensor{o}, []*Tensor{x}, []*Tensor{x, idx}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		// Each plane's gradients go where its indices say.
		flat := func(t *Tensor) *Tensor {
			lead := t.dim() - n
			return e.unsqueezeTo(t, append(slices.Clone(t.Shape[:lead]), numel(t.Shape[lead:])))
		}
		k := e.begin("adaptive_max_pool2d_backward", flat(g[0]), s[0], flat(s[1])).does("gather_backward").dims(x.dim() - n)
		dx := k.alloc(x.Shape, nil, x.DType)
		k.n.Out[len(k.n.Out)-1] = flat(dx).Tensor
		k.free(k.ordered(g[0], false))
		k.end()
		return []*Tensor{dx}
	})
	return []*Tensor{o, idx}
}

// runResize is interpolation and padding: new memory of inference's shape,
// nothing saved but sizes, the input's gradient in new memory.
func runResize(e *Eager, c *Call) []*Tensor {
	x := c.need(0, "self")
	shape, _, ok := c.shape(0)
	if !ok {
		return nil
	}
	if at := c.samples(x, shape); at != nil {
		return e.runSampled(c, x, shape, at)
	}
	if c.Op == "im2col" || c.Op == "col2im" {
		return e.runColumns(c, x, shape)
	}
	k := e.begin(c.Op, x)
	pad, padded := c.padding(x, shape)
	copies := padded && slices.Equal(shape, x.Shape) // padding by nothing is clone, which keeps strides (constant_pad_nd)
	strides := lastOr(x, shape)
	if copies {
		strides = x.denseStrides()
		pad.Strides = strides
	}
	if padded {
		at := 2
		if c.Op == "pad" {
			at = 3 // after the mode
		}
		k.does("constant_pad_nd").scalars(c.float(at, "value", 0)).attrs().Window = pad
	} else {
		c.resized(k)
	}
	resized := k.n.Attrs
	o := k.alloc(shape, strides, x.DType)
	k.orderedFor(c, x, o)
	k.flops(4 * o.Numel()).end()
	saved := []*Tensor(nil)
	if mode := c.arg(2, "mode"); strings.HasPrefix(c.Op, "reflection_pad") || strings.HasPrefix(c.Op, "replication_pad") ||
		c.Op == "pad" && mode != nil && (mode.S == "reflect" || mode.S == "replicate") {
		saved = []*Tensor{x}
	}
	op := c.Op + "_backward"
	e.record("ResizeBackward", []*Tensor{o}, []*Tensor{x}, saved, func(e *Eager, g, _ []*Tensor, _ []bool) []*Tensor {
		k := e.begin(op, g[0])
		if padded {
			k.does("copy").n.In[0] = e.view(g[0], x.Shape, g[0].Strides, dot(c.before(x), g[0].Strides)).Tensor
		} else {
			k.attrs().Scalars, k.n.Attrs.Inexact = resized.Scalars, resized.Inexact
		}
		strides := lastOr(x, x.Shape)
		if copies {
			strides = g[0].denseStrides()
		}
		dx := k.alloc(x.Shape, strides, x.DType)
		switch {
		case c.Op == "upsample_trilinear3d" && preferLast(g[0]): // computed in NCDHW, and copied
			dx.Strides = channelsLastStrides(x.Shape)
			k.n.Out[len(k.n.Out)-1].Strides = dx.Strides
			whole := k.ordered(g[0], false)
			k.free(k.temp(dx.Bytes(), program.Temporaries), whole)
		case c.Op == "upsample_bilinear2d" && preferLast(x) && x.dim() == 4 && x.Shape[1] < 4: // too few channels for the kernel that has them last
			own := k.temp(dx.Bytes(), program.Temporaries)
			whole := k.ordered(g[0], false)
			k.free(whole, own)
		case strings.Contains(op, "bicubic"), strings.Contains(op, "_aa"):
			k.free(k.ordered(g[0], false))
		case strings.Contains(op, "upsample"): // the gradient in one piece
			k.free(k.ordered(g[0], x.dim() == 4 && g[0].channelsLast()))
		}
		return []*Tensor{k.end()}
	})
	return []*Tensor{o}
}

// orderedFor takes and frees the copies of a resizing kernel that reads, or writes,
// one order of dims alone.
func (k *kernel) orderedFor(c *Call, x, o *Tensor) {
	mode := c.arg(2, "mode")
	switch {
	case len(o.Shape) == 5 && c.Op == "upsample_trilinear3d" && preferLast(x):
		o.Strides = channelsLastStrides(o.Shape)
		k.n.Out[0].Strides = o.Strides
	case len(o.Shape) == 5 && strings.Contains(c.Op, "nearest") && preferLast(x): // computed in NCDHW, and copied
		o.Strides = channelsLastStrides(o.Shape)
		k.n.Out[0].Strides = o.Strides
		whole := k.temp(o.Bytes(), program.Temporaries)
		k.free(k.ordered(x, false), whole)
	case strings.HasSuffix(c.Op, "_aa") && o.channelsLast() && !o.contiguous(): // computed in NCHW, and copied
		whole := k.temp(o.Bytes(), program.Temporaries)
		k.free(k.ordered(x, false), whole)
	case strings.Contains(c.Op, "nearest"), strings.HasSuffix(c.Op, "_aa"), strings.HasPrefix(c.Op, "reflection"), c.Op == "pad" && mode != nil && mode.S == "reflect", strings.HasSuffix(c.Op, "col"):
		k.free(k.ordered(x, o.channelsLast() && !o.contiguous()))
	}
}

// resized says how a call interpolates: whether corners are aligned, and the
// scales that it gives for the last two dims, 0 where the sizes say.
func (c *Call) resized(k *kernel) {
	at, align := 2, 0.0
	switch c.Op {
	case "upsample_bilinear2d", "upsample_bicubic2d":
		at = 3
		if c.bool(2, "align_corners", false) {
			align = 1
		}
	case "upsample_nearest2d":
	default:
		k.inexact("arguments of " + c.Op)
		return
	}
	scales := []float64{0, 0}
	switch a := c.arg(at, "scale_factors"); {
	case c.Over == "vec" && a != nil && a.Kind == graph.ArgList && len(a.List) == 2:
		for i, s := range a.List {
			scales[i] = s.F
		}
	case c.Over == "vec":
	case c.Over == "default" && c.positional() > at:
		scales[0], scales[1] = c.float(at, "scales_h", 0), c.float(at+1, "scales_w", 0)
	default: // made from another file's operator, whose coordinates may be others
		k.inexact("coordinates of " + c.Op)
	}
	k.scalars(align, scales[0], scales[1])
}

// padding is where x lies in the result of padding with a constant; ok is false
// for other calls, and for padding that cuts.
func (c *Call) padding(x *Tensor, shape []int64) (w *program.Window, ok bool) {
	mode := c.arg(2, "mode")
	if c.Op != "constant_pad_nd" && (c.Op != "pad" || mode != nil && mode.S != "constant") {
		return nil, false
	}
	for _, n := range c.ints(1, "pad", 0, 0) {
		if n < 0 {
			return nil, false
		}
	}
	st := contiguousStrides(shape)
	return &program.Window{Strides: st, Offset: dot(c.before(x), st)}, true
}

// before is how many elements a padding adds before each dim of x.
func (c *Call) before(x *Tensor) []int64 {
	pad, out := c.ints(1, "pad", 0, 0), make([]int64, x.dim())
	for i := 0; i+1 < len(pad) && i/2 < x.dim(); i += 2 {
		out[x.dim()-1-i/2] = pad[i]
	}
	return out
}

func dot(a, b []int64) int64 {
	var n int64
	for i := range a {
		n += a[i] * b[i]
	}
	return n
}

// samples are, for calls whose result repeats elements of x, the places along each
// of the last dims that its elements come from; nil for others.
func (c *Call) samples(x *Tensor, shape []int64) [][]float64 {
	mode := ""
	if a := c.arg(2, "mode"); c.Op == "pad" && a != nil {
		mode = a.S
	}
	var from func(i, before, n int64) int64
	switch {
	case strings.HasPrefix(c.Op, "reflection_pad") || mode == "reflect":
		from = func(i, before, n int64) int64 {
			i = max(i-before, before-i)
			return min(i, 2*(n-1)-i)
		}
	case strings.HasPrefix(c.Op, "replication_pad") || mode == "replicate":
		from = func(i, before, n int64) int64 { return min(max(i-before, 0), n-1) }
	case mode == "circular":
		from = func(i, before, n int64) int64 { return ((i-before)%n + n) % n }
	case slices.Contains(nearest, c.Op):
		return c.nearestSamples(x, shape)
	default:
		return nil
	}
	before, pads := c.before(x), len(c.ints(1, "pad", 0, 0))/2
	if a := c.arg(1, "padding"); a != nil {
		pads = len(a.List) / 2
	}
	out := make([][]float64, pads)
	for j := range out {
		d := x.dim() - pads + j
		if shape[d] > mostSampled {
			return nil
		}
		for i := range shape[d] {
			at := from(i, before[d], x.Shape[d])
			if at < 0 || at >= x.Shape[d] {
				return nil
			}
			out[j] = append(out[j], float64(at))
		}
	}
	return out
}

// mostSampled bounds a dim whose elements are listed one by one: no model's is
// near it, and a file can say any.
const mostSampled = 1 << 20

// nearest are the interpolations without a kernel of their own that take the
// nearest element.
var nearest = []string{"upsample_nearest1d", "upsample_nearest3d", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"}

// nearestSamples are the places of an interpolation by the nearest element, in
// float32 as PyTorch counts them (aten/src/ATen/native/UpSample.h,
// nearest_neighbor_compute_source_index). Nil where the call does not say them.
func (c *Call) nearestSamples(x *Tensor, shape []int64) [][]float64 {
	n, half := spatial(c.Op), float32(0)
	if strings.HasPrefix(c.Op, "_") {
		half = 0.5
	}
	scales := c.arg(2, "scale_factors")
	given := scales != nil && scales.Kind == graph.ArgList && len(scales.List) == n
	if c.Over != "vec" || !given && scales != nil && scales.Kind != graph.ArgNone {
		return nil
	}
	out := make([][]float64, n)
	for j := range out {
		d := x.dim() - n + j
		if shape[d] > mostSampled {
			return nil
		}
		step := float32(x.Shape[d]) / float32(shape[d])
		if given && scales.List[j].F > 0 {
			step = float32(1 / scales.List[j].F)
		}
		for i := range shape[d] {
			out[j] = append(out[j], float64(min(int64((float32(i)+half)*step), x.Shape[d]-1)))
		}
	}
	return out
}

// runSampled picks elements along the last dims; backward adds their gradients up.
func (e *Eager) runSampled(c *Call, x *Tensor, shape []int64, at [][]float64) []*Tensor {
	op := c.Op
	in, idx := []*Tensor{x}, make([]*Tensor, len(at))
	for j, list := range at {
		size := repeat(1, len(at))
		size[j] = int64(len(list))
		idx[j] = Host(graph.Int64, size, list...)
	}
	dims := spatialDims(x, len(at))
	k := e.begin(op, append(in, idx...)...).does("index").dims(dims...)
	o := k.alloc(shape, lastOr(x, shape), x.DType)
	k.orderedFor(c, x, o)
	k.flops(4 * o.Numel()).end()
	saved := []*Tensor{x}
	if mode := c.arg(2, "mode"); strings.Contains(op, "upsample") || op == "pad" && mode.S == "circular" {
		saved = nil
	}
	e.record("ResizeBackward", []*Tensor{o}, []*Tensor{x}, saved, func(e *Eager, g, _ []*Tensor, _ []bool) []*Tensor {
		k := e.begin(op+"_backward", append(g[:1:1], idx...)...).does("index_backward").dims(dims...)
		k.alloc(x.Shape, lastOr(x, x.Shape), x.DType)
		if strings.Contains(op, "upsample") { // the gradient in one piece
			k.free(k.ordered(g[0], x.dim() == 4 && g[0].channelsLast()))
		}
		return []*Tensor{k.end()}
	})
	return []*Tensor{o}
}

// columns are the kernels of windows as columns, and of their sums back to an image:
// each is the other's gradient.
var columns = map[string]string{"im2col": "col2im", "col2im": "im2col"}

// runColumns is im2col(self, kernel, dilation, padding, stride), windows of images as
// columns, and col2im, which has the image's size before the kernel.
func (e *Eager) runColumns(c *Call, x *Tensor, shape []int64) []*Tensor {
	at := 1
	if c.Op == "col2im" {
		at = 2
	}
	pool := &program.Pool{Kernel: c.ints(at, "kernel_size", 2, 1), Dilation: c.ints(at+1, "dilation", 2, 1), Pad: c.ints(at+2, "padding", 2, 0), Stride: c.ints(at+3, "stride", 2, 1)}
	run := func(op, kernel string, t *Tensor, shape []int64) *Tensor {
		k := e.begin(op, t).does(kernel)
		k.attrs().Pool = pool
		whole := k.whole(t)
		// The result begins as one like the operand, and keeps its memory if that is enough.
		var o *Tensor
		if small := t.Bytes(); small >= t.DType.Bytes(numel(shape)) {
			o = k.alloc(t.Shape, nil, t.DType)
			o.Shape, o.Strides = shape, contiguousStrides(shape)
			k.n.Out[len(k.n.Out)-1] = o.Tensor
			k.free(whole)
		} else {
			like := k.temp(small, program.Temporaries)
			o = k.alloc(shape, nil, t.DType)
			k.free(like, whole)
		}
		k.flops(4 * o.Numel()).end()
		return o
	}
	o := run(c.Op, c.Op, x, shape)
	in := x.Shape
	e.record("ResizeBackward", []*Tensor{o}, []*Tensor{x}, nil, func(_ *Eager, g, _ []*Tensor, _ []bool) []*Tensor {
		return []*Tensor{run(c.Op+"_backward", columns[c.Op], g[0], in)}
	})
	return []*Tensor{o}
}
