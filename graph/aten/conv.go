package aten

import (
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/cudnn"
	"github.com/memplan/memplan/graph/program"
)

// A conv is a convolution call with its arguments resolved; spatial lists have
// one entry for each spatial dim.
type conv struct {
	x, w, b                  *Tensor
	stride, pad, dil, outPad []int64
	groups                   int64
	transposed               bool
	last                     bool // runs in NHWC
	depthwise                bool // PyTorch's own depthwise kernel
	outShape                 []int64
}

func runConv(e *Eager, c *Call) []*Tensor {
	v := conv{x: c.tensor(0, "input"), w: c.tensor(1, "weight"), b: c.tensor(2, "bias")}
	if v.x == nil || v.w == nil || v.w.dim() < 3 {
		return nil
	}
	n := v.w.dim() - 2
	v.stride = c.ints(3, "stride", n, 1)
	if a := c.arg(4, "padding"); a != nil && a.Kind == graph.ArgString {
		v.pad = samePadding(a.S, v.w.Shape[2:], c.ints(5, "dilation", n, 1))
	} else {
		v.pad = c.ints(4, "padding", n, 0)
	}
	switch c.Op {
	case "convolution", "_convolution":
		v.dil, v.transposed = c.ints(5, "dilation", n, 1), c.bool(6, "transposed", false)
		v.outPad, v.groups = c.ints(7, "output_padding", n, 0), c.int(8, "groups", 1)
	case "conv_transpose1d", "conv_transpose2d", "conv_transpose3d":
		v.outPad, v.groups, v.dil, v.transposed = c.ints(5, "output_padding", n, 0), c.int(6, "groups", 1), c.ints(7, "dilation", n, 1), true
	default:
		v.dil, v.groups, v.outPad = c.ints(5, "dilation", n, 1), c.int(6, "groups", 1), make([]int64, n)
	}
	if v.x.dim() == n+1 {
		v.x = unsqueeze(e, v.x, 0)
		return []*Tensor{squeeze(e, convolution(e, &v), 0)}
	}
	return []*Tensor{convolution(e, &v)}
}

// samePadding is the padding of padding="same" (stride 1), 0 for "valid".
func samePadding(kind string, kernel, dil []int64) []int64 {
	out := make([]int64, len(kernel))
	if kind == "same" {
		for i := range out {
			out[i] = dil[i] * (kernel[i] - 1) / 2
		}
	}
	return out
}

// convolution runs a convolution on cuDNN or on PyTorch's own depthwise
// kernel and records its backward.
func convolution(e *Eager, v *conv) *Tensor {
	v.resolve(e)
	x := e.operand("cudnn_convolution", v.x, func(t *Tensor) *Tensor { return formatted(e, t, v.last) })
	k := e.begin(map[bool]string{true: "cudnn_convolution_transpose", false: "cudnn_convolution"}[v.transposed], x, v.w, v.b).does("convolution")
	k.attrs().Conv = v.attrs()
	if v.depthwise {
		k.n.Op = "_conv_depthwise2d"
	}
	var st []int64
	if v.last {
		st = channelsLastStrides(v.outShape)
	}
	o := k.alloc(v.outShape, st, v.x.DType)
	if v.last && !inFormat(v.w, true) {
		w := k.temp(v.w.Bytes(), program.Temporaries)
		k.convScratch(v, cudnn.Forward)
		k.free(w)
	} else {
		k.convScratch(v, cudnn.Forward)
	}
	k.products(v.unit(), v.flops()).end()
	if x != v.x {
		e.hold(x)
	}
	e.record("ConvolutionBackward0", []*Tensor{o}, []*Tensor{v.x, v.w, v.b}, []*Tensor{v.x, v.w}, v.backward)
	return o
}

// attrs returns the call's arguments as nodes hold them.
func (v *conv) attrs() *program.Conv {
	return &program.Conv{Stride: v.stride, Pad: v.pad, Dilation: v.dil, OutPad: v.outPad, Groups: v.groups, Transposed: v.transposed}
}

func (v *conv) resolve(e *Eager) {
	n := len(v.stride)
	cin, cout := v.w.Shape[1]*v.groups, v.w.Shape[0]
	if v.transposed {
		cin, cout = v.w.Shape[0], v.w.Shape[1]*v.groups
	}
	if v.x.dim() != n+2 || v.x.Shape[1] != cin || v.groups < 1 {
		fail("input %v does not fit weight %v with %d groups", v.x.Shape, v.w.Shape, v.groups)
	}
	v.outShape = []int64{v.x.Shape[0], cout}
	for i := range n {
		in, kn := v.x.Shape[2+i], v.w.Shape[2+i]
		out := (in+2*v.pad[i]-v.dil[i]*(kn-1)-1)/max(v.stride[i], 1) + 1
		if v.transposed {
			out = (in-1)*v.stride[i] - 2*v.pad[i] + v.dil[i]*(kn-1) + v.outPad[i] + 1
		}
		if out < 1 {
			fail("input %v is smaller than the kernel %v", v.x.Shape, v.w.Shape)
		}
		v.outShape = append(v.outShape, out)
	}
	v.last = n > 1 && (preferLast(v.x) || preferLast(v.w))
	q, _ := cudnnConv(e, v)
	v.depthwise = q.OwnDepthwise()
}

// preferLast reports whether a tensor is NHWC and not also NCHW.
func preferLast(t *Tensor) bool { return t.channelsLast() && !t.contiguous() }

func inFormat(t *Tensor, last bool) bool {
	if last {
		return t.channelsLast() || (t.dim() == 4 || t.dim() == 5) && channelsLastBySize(t)
	}
	return t.contiguous()
}

// channelsLastBySize is is_contiguous(channels_last), which ignores dims of 1.
func channelsLastBySize(t *Tensor) bool {
	want := channelsLastStrides(t.Shape)
	for i, s := range want {
		if t.Shape[i] != 1 && t.Strides[i] != s {
			return false
		}
	}
	return true
}

// inOrder is formatted as a recorded call of its own.
func inOrder(e *Eager, t *Tensor, last bool) *Tensor {
	if inFormat(t, last) {
		return t
	}
	st := contiguousStrides(t.Shape)
	if last {
		st = channelsLastStrides(t.Shape)
	}
	return clone(e, "contiguous", t, st)
}

// formatted returns t in NCHW or NHWC order, copied unless it already is.
func formatted(e *Eager, t *Tensor, last bool) *Tensor {
	if inFormat(t, last) {
		return t
	}
	var st []int64
	if last {
		st = channelsLastStrides(t.Shape)
	}
	return e.begin("contiguous", t).does("copy").makes(t.Shape, st, t.DType)
}

func (v *conv) flops() int64 {
	out := v.outShape
	if v.transposed {
		out = v.x.Shape
	}
	return 2 * out[0] * numel(out[2:]) * v.w.Numel()
}

// convScratch allocates and frees a pass's workspace; PyTorch's own kernels have
// none. It is optional: if the allocator refuses it, PyTorch runs the next plan
// that cuDNN offers (try_plans in aten/src/ATen/native/cudnn/Conv_v8.cpp).
func (k *kernel) convScratch(v *conv, p cudnn.Pass) {
	q, ok := cudnnConv(k.e, v)
	if v.depthwise || k.e.ConvWorkspace == nil || !ok || k.reuses() {
		return
	}
	w := k.e.ConvWorkspace(q, p)
	if max(w.Bound, w.Other) > 0 {
		k.n.Passes = append(k.n.Passes, program.Pass{At: len(k.n.Events), Estimate: w})
	}
	if id := k.temp(w.Bytes, program.Workspace); id != program.None {
		k.e.P.Storages[id].Optional = true
		k.free(id)
	}
}

// cudnnConv describes a convolution; ok is false for
// a type that cuDNN's table does not know.
func cudnnConv(e *Eager, v *conv) (q cudnn.Conv, ok bool) {
	q = cudnn.Conv{N: v.x.Shape[0], C: v.x.Shape[1], K: v.outShape[1], Groups: v.groups, Transposed: v.transposed, ChannelsLast: v.last,
		H: 1, R: 1, StrideH: 1, DilH: 1}
	i := 0
	if len(v.stride) == 3 {
		q.Depth = cudnn.Extent{In: v.x.Shape[2], Kernel: v.w.Shape[2], Stride: v.stride[0], Pad: v.pad[0], Dil: v.dil[0], OutPad: v.outPad[0]}
		i = 1
	}
	if len(v.stride) > 1 {
		q.H, q.R, q.StrideH, q.PadH, q.DilH, q.OutPadH = v.x.Shape[2+i], v.w.Shape[2+i], v.stride[i], v.pad[i], v.dil[i], v.outPad[i]
		i++
	}
	q.W, q.S, q.StrideW, q.PadW, q.DilW, q.OutPadW = v.x.Shape[2+i], v.w.Shape[2+i], v.stride[i], v.pad[i], v.dil[i], v.outPad[i]
	switch v.x.DType {
	case graph.Float16:
		q.Type = cudnn.Float16
	case graph.BFloat16:
		q.Type = cudnn.BFloat16
	case graph.Float32:
		if q.Type = cudnn.TF32; !e.TF32 {
			q.Type = cudnn.Float32
		}
	default:
		return q, false
	}
	return q, true
}

// backward is convolution_backward: the data gradient, the weight gradient
// and the bias gradient, each kernel with its own scratch.
func (v *conv) backward(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
	outs := make([]*Tensor, 3)
	k := e.begin("convolution_backward", g[0], s[0], s[1])
	k.attrs().Conv = v.attrs()
	work := int64(0)
	// A gradient in another format is copied once, for both passes; one of this
	// format that is not dense, by each (cudnn_convolution_backward and
	// cudnn_convolution_transpose_backward, aten/src/ATen/native/cudnn/ConvShared.cpp).
	ready, copied := inFormat(g[0], v.last), program.None
	input := program.None
	if v.depthwise && !ready {
		copied, ready = k.temp(g[0].Bytes(), program.Temporaries), true
	}
	if !inFormat(s[0], v.last) {
		input = k.temp(s[0].Bytes(), program.Temporaries)
	}
	if !ready && (v.transposed || g[0].channelsLast() != v.last) {
		copied, ready = k.temp(g[0].Bytes(), program.Temporaries), true
	}
	if v.depthwise && need[1] && len(v.stride) < 3 { // the kernel of the weight comes first (native/cuda/DepthwiseConv2d.cu)
		outs[1] = k.alloc(v.w.Shape, v.strides(v.w), v.w.DType)
	}
	if need[0] {
		outs[0] = k.alloc(v.x.Shape, v.strides(v.x), v.x.DType)
		if outs[1] != nil { // results have a fixed order, whichever was computed first
			slices.Reverse(k.outs)
			slices.Reverse(k.n.Out)
		}
		v.pass(k, cudnn.DataGrad, ready, g[0], s[1])
		work += v.flops()
	}
	if need[1] {
		dense := program.None
		if !ready {
			dense = k.temp(g[0].Bytes(), program.Temporaries)
		}
		if outs[1] == nil {
			outs[1] = k.alloc(v.w.Shape, v.strides(v.w), v.w.DType)
		}
		k.convScratch(v, cudnn.WeightGrad)
		k.free(dense)
		work += v.flops()
	}
	k.free(copied, input)
	if need[2] {
		outs[2] = k.alloc([]int64{v.outShape[1]}, nil, v.x.DType)
		dims := []int{0}
		for i := range v.stride {
			dims = append(dims, 2+i)
		}
		r := reductionOf(e, g[0], dims)
		buf := k.temp(r.buffer, program.Temporaries)
		sem := k.temp(r.semaphores, program.Temporaries)
		k.free(sem, buf)
	}
	k.setResults(outs...)
	k.products(v.unit(), work).end()
	return outs
}

// unit is what multiplies.
func (v *conv) unit() program.Unit {
	if v.depthwise {
		return program.Fused
	}
	return program.Convolution
}

// strides are those of a gradient of t: the convolution's format.
func (v *conv) strides(t *Tensor) []int64 {
	if v.last {
		return channelsLastStrides(t.Shape)
	}
	return t.denseStrides()
}

// pass adds the scratch of a backward pass: a copy of a gradient that is not
// ready, a weight brought to NHWC, and the workspace.
func (v *conv) pass(k *kernel, p cudnn.Pass, ready bool, g, w *Tensor) {
	dense, format := program.None, program.None
	if !ready {
		dense = k.temp(g.Bytes(), program.Temporaries)
	}
	if v.last && !inFormat(w, true) {
		format = k.temp(w.Bytes(), program.Temporaries)
	}
	k.convScratch(v, p)
	k.free(format, dense)
}
