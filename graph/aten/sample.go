package aten

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// runGridSample saves the image and the grid.
func runGridSample(e *Eager, c *Call) []*Tensor {
	x, grid := c.need(0, "input"), c.need(1, "grid")
	n := x.dim()
	shape := append(slices.Clone(x.Shape[:2]), grid.Shape[1:n-1]...)
	k := e.begin(c.Op, x, grid).does("grid_sampler_2d")
	sampling := []float64{float64(c.int(2, "interpolation_mode", 0)), float64(c.int(3, "padding_mode", 0)), 0}
	if c.bool(4, "align_corners", false) {
		sampling[2] = 1
	}
	exact := n == 4 && sampling[0] < 2
	if k.scalars(sampling...); !exact {
		k.inexact("sampling in three dims, or by cubics")
	}
	o := k.alloc(shape, nil, x.DType)
	k.flops(8 * o.Numel()).end()
	e.record("GridSampler2DBackward0", []*Tensor{o}, []*Tensor{x, grid}, []*Tensor{grid, x}, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		k := e.begin("grid_sampler_2d_backward", g[0], s[0], s[1]).scalars(sampling...)
		k.inexactIf(!exact, "sampling in three dims, or by cubics")
		outs := []*Tensor{nil, k.like(s[0])}
		if need[0] {
			outs[0] = k.like(s[1])
		}
		k.setResults(outs[1], outs[0])
		k.end()
		return outs
	})
	return []*Tensor{o}
}

// runResize is interpolation and padding: it allocates a result of the inferred
// shape and saves only sizes; the input's gradient is new memory.
func runResize(e *Eager, c *Call) []*Tensor {
	x := c.need(0, "self")
	shape, _, ok := c.shape(0)
	if !ok {
		return nil
	}
	if at := c.samples(x, shape); at != nil {
		return runSampled(e, c, x, shape, at)
	}
	if c.Op == "im2col" || c.Op == "col2im" {
		return runColumns(e, c, x, shape)
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
			at = 3 // the scales follow the mode
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
			k.does("copy").n.In[0] = e.view(g[0], x.Shape, g[0].Strides, dot(c.before(x), g[0].Strides)).View
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
			whole := k.orderedCopy(g[0], false)
			k.free(k.temp(dx.Bytes(), program.Temporaries), whole)
		case c.Op == "upsample_bilinear2d" && preferLast(x) && x.dim() == 4 && x.Shape[1] < 4: // the channels-last kernel needs at least 4 channels
			own := k.temp(dx.Bytes(), program.Temporaries)
			whole := k.orderedCopy(g[0], false)
			k.free(whole, own)
		case strings.Contains(op, "bicubic"), strings.Contains(op, "_aa"):
			k.free(k.orderedCopy(g[0], false))
		case strings.Contains(op, "upsample"): // a contiguous gradient
			k.free(k.orderedCopy(g[0], x.dim() == 4 && g[0].channelsLast()))
		}
		return []*Tensor{k.end()}
	})
	return []*Tensor{o}
}

// orderedFor allocates and frees the copies of a resizing kernel that reads, or
// writes, only one order of dims.
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
		k.free(k.orderedCopy(x, false), whole)
	case strings.HasSuffix(c.Op, "_aa") && o.channelsLast() && !o.contiguous(): // computed in NCHW, and copied
		whole := k.temp(o.Bytes(), program.Temporaries)
		k.free(k.orderedCopy(x, false), whole)
	case strings.Contains(c.Op, "nearest"), strings.HasSuffix(c.Op, "_aa"), strings.HasPrefix(c.Op, "reflection"), c.Op == "pad" && mode != nil && mode.S == "reflect", strings.HasSuffix(c.Op, "col"):
		k.free(k.orderedCopy(x, o.channelsLast() && !o.contiguous()))
	}
}

// resized sets a call's interpolation: whether corners are aligned, and the
// scales given for the last two dims, 0 where the sizes determine them.
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
	default: // converted from another operator, whose coordinates may differ
		k.inexact("coordinates of " + c.Op)
	}
	k.scalars(align, scales[0], scales[1])
}

// padding is the window of x in the result of padding with a constant; ok is
// false for other calls, and for negative padding.
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

// before returns the number of elements that a padding adds before each dim of
// x.
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

// samples returns, for calls whose result repeats elements of x, their source
// indices along each of the last dims; nil for other calls.
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
	case slices.Contains(nearestWithoutKernel, c.Op):
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

// mostSampled bounds the size of a dim whose elements are listed one by one:
// more than any model's, but a file can ask for any.
const mostSampled = 1 << 20

// nearestWithoutKernel lists interpolations by the nearest element that have no kernel of
// their own.
var nearestWithoutKernel = []string{"upsample_nearest1d", "upsample_nearest3d", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"}

// nearestSamples returns the source indices of an interpolation by the nearest
// element, computed in float32 as PyTorch does
// (aten/src/ATen/native/UpSample.h, nearest_neighbor_compute_source_index). Nil
// if the call does not give them.
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

// runSampled picks elements along the last dims; backward sums their gradients.
func runSampled(e *Eager, c *Call, x *Tensor, shape []int64, at [][]float64) []*Tensor {
	op := c.Op
	in, idx := []*Tensor{x}, make([]*Tensor, len(at))
	for j, list := range at {
		size := repeat(1, len(at))
		size[j] = int64(len(list))
		idx[j] = Host(graph.Int64, size, list...)
	}
	said := func(k *kernel, kernel string) *kernel {
		if len(at) == 0 {
			return k.does("copy")
		}
		return k.does(kernel).dims(spatialDims(x, len(at))...)
	}
	k := said(e.begin(op, append(in, idx...)...), "index")
	o := k.alloc(shape, lastOr(x, shape), x.DType)
	k.orderedFor(c, x, o)
	k.flops(4 * o.Numel()).end()
	saved := []*Tensor{x}
	if mode := c.arg(2, "mode"); strings.Contains(op, "upsample") || op == "pad" && mode.S == "circular" {
		saved = nil
	}
	e.record("ResizeBackward", []*Tensor{o}, []*Tensor{x}, saved, func(e *Eager, g, _ []*Tensor, _ []bool) []*Tensor {
		k := said(e.begin(op+"_backward", append(g[:1:1], idx...)...), "index_backward")
		k.alloc(x.Shape, lastOr(x, x.Shape), x.DType)
		if strings.Contains(op, "upsample") { // a contiguous gradient
			k.free(k.orderedCopy(g[0], x.dim() == 4 && g[0].channelsLast()))
		}
		return []*Tensor{k.end()}
	})
	return []*Tensor{o}
}
