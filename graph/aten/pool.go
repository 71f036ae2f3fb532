package aten

import (
	"slices"

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

// poolShape replaces the last n dims by the number of windows along each.
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

// poolStrides returns the strides of a pooling's result: as lastOr, and with
// last3 also in three dims.
func poolStrides(x *Tensor, shape []int64, last3 bool) []int64 {
	if last3 && preferLast(x) && len(shape) == 5 {
		return channelsLastStrides(shape)
	}
	return lastOr(x, shape)
}

// orderedCopy allocates the copy of an operand that is not in the order of dims
// which a pooling or resizing kernel requires.
func (k *kernel) orderedCopy(t *Tensor, last bool) program.StorageID {
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
	k.free(k.orderedCopy(x, st != nil))
	k.end()
	e.record("MaxPool2DWithIndicesBackward0", []*Tensor{o}, []*Tensor{x}, []*Tensor{x, idx}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		k := e.begin("max_pool2d_with_indices_backward", g[0], s[0], s[1]).dims(spatialDims(x, len(pool.Kernel))...)
		k.attrs().Pool = pool
		k.alloc(x.Shape, poolStrides(x, x.Shape, true), x.DType)
		var copies []program.StorageID
		if len(pool.Kernel) < 3 {
			copies = append(copies, k.orderedCopy(g[0], st != nil), k.orderedCopy(s[0], st != nil))
		} else {
			copies = append(copies, k.orderedCopy(s[0], st != nil), k.orderedCopy(g[0], st != nil))
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
		image := sub(e, "unsqueeze", x, -2)
		o := avgPool(e, "avg_pool2d", "AvgPool2DBackward0", image, 2, slices.Insert(slices.Clone(shape), len(shape)-1, 1), wide)
		return []*Tensor{sub(e, "squeeze", o, -2)}
	}
	return []*Tensor{avgPool(e, "avg_pool2d", "AvgPool2DBackward0", x, len(pool.Kernel), shape, pool)}
}

// spatialDims are the last n dims of x.
func spatialDims(x *Tensor, n int) []int {
	dims := make([]int, n)
	for i := range dims {
		dims[i] = x.dim() - n + i
	}
	return dims
}

// avgPool averages over windows of n dims or, if pool is nil, over windows derived
// from the sizes.
func avgPool(e *Eager, op, node string, x *Tensor, n int, shape []int64, pool *program.Pool) *Tensor {
	windows := func(k *kernel) {
		if k.attrs().Pool = pool; pool == nil {
			k.dims(spatialDims(x, n)...)
		}
	}
	k := e.begin(op, x)
	windows(k)
	last := lastOr(x, shape) != nil
	copied := program.None
	if pool == nil { // the operator is not structured: the copy comes first
		copied = k.orderedCopy(x, last)
	}
	o := k.alloc(shape, lastOr(x, shape), x.DType)
	if pool != nil {
		copied = k.orderedCopy(x, last)
	}
	k.free(copied)
	k.flops(x.Numel()).end()
	e.record(node, []*Tensor{o}, []*Tensor{x}, []*Tensor{x}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		k := e.begin(op+"_backward", g[0], s[0])
		windows(k)
		if pool == nil {
			copied := k.orderedCopy(g[0], last)
			k.alloc(x.Shape, lastOr(x, x.Shape), x.DType)
			k.free(copied)
			return []*Tensor{k.end()}
		}
		k.alloc(x.Shape, lastOr(x, x.Shape), x.DType)
		copies := []program.StorageID{k.orderedCopy(g[0], last)}
		if n == 2 { // also of the operand
			copies = append(copies, k.orderedCopy(s[0], last))
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
		return []*Tensor{avgPool(e, "adaptive_avg_pool2d", "AdaptiveAvgPool2DBackward0", x, n, shape, nil)}
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
		return viewOp(e, "AsStridedBackward1", o[0], shape, channelsLastStrides(shape), 0, func(e *Eager, g *Tensor) *Tensor {
			return zeros(e, "new_zeros", shape, g, channelsLastStrides(shape), 0)
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
	k.free(k.orderedCopy(x, false))
	k.end()
	e.record("AdaptiveMaxPool2DBackward0", []*Tensor{o}, []*Tensor{x}, []*Tensor{x, idx}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		// Each plane's gradients are added at its indices.
		flat := func(t *Tensor) *Tensor {
			lead := t.dim() - n
			return unsqueezeTo(e, t, append(slices.Clone(t.Shape[:lead]), numel(t.Shape[lead:])))
		}
		k := e.begin("adaptive_max_pool2d_backward", flat(g[0]), s[0], flat(s[1])).does("gather_backward").dropOperand(1).dims(x.dim() - n)
		dx := k.alloc(x.Shape, nil, x.DType)
		k.n.Out[len(k.n.Out)-1] = flat(dx).View
		k.free(k.orderedCopy(g[0], false))
		k.end()
		return []*Tensor{dx}
	})
	return []*Tensor{o, idx}
}

// columnKernels maps im2col and col2im to each other's kernel, which computes the
// gradient.
var columnKernels = map[string]string{"im2col": "col2im", "col2im": "im2col"}

// runColumns is im2col(self, kernel, dilation, padding, stride), which makes windows
// of images columns, and its inverse col2im, which has the image's size before the
// kernel.
func runColumns(e *Eager, c *Call, x *Tensor, shape []int64) []*Tensor {
	at := 1
	if c.Op == "col2im" {
		at = 2
	}
	pool := &program.Pool{Kernel: c.ints(at, "kernel_size", 2, 1), Dilation: c.ints(at+1, "dilation", 2, 1), Pad: c.ints(at+2, "padding", 2, 0), Stride: c.ints(at+3, "stride", 2, 1)}
	run := func(op, kernel string, t *Tensor, shape []int64) *Tensor {
		k := e.begin(op, t).does(kernel)
		k.attrs().Pool = pool
		whole := k.contiguousCopy(t)
		// The result is first allocated like the operand, and keeps that memory if it
		// suffices.
		var o *Tensor
		if small := t.Bytes(); small >= t.DType.Bytes(numel(shape)) {
			o = k.alloc(t.Shape, nil, t.DType)
			o.Shape, o.Strides = shape, contiguousStrides(shape)
			k.n.Out[len(k.n.Out)-1] = o.View
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
		return []*Tensor{run(c.Op+"_backward", columnKernels[c.Op], g[0], in)}
	})
	return []*Tensor{o}
}
