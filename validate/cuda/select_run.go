//go:build cuda

package cuda

import (
	"fmt"
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/validate"
)

// topKArgs is TopK of select.cu.
type topKArgs struct {
	lines, length, inner, k int64
	in, out, index          uint64
	dtype, largest          int32
}

// interleaveArgs is Interleave of select.cu.
type interleaveArgs struct {
	n, elements int64
	sums, out   uint64
	dtype, _    int32
}

// columnsArgs is Columns of select.cu.
type columnsArgs struct {
	planes, h, w, oh, ow                     int64
	in, out                                  uint64
	kh, kw, sh, sw, ph, pw, dh, dw, dtype, _ int32
}

// selectKernels are those of this file.
func selectKernels(register func(k kernel, names ...string)) {
	register(kernel{run: func(r *run) error { return r.extreme(redMax, redArgMax) }}, "amax_with_indices")
	register(kernel{run: func(r *run) error { return r.extreme(redMin, redArgMin) }}, "amin_with_indices")
	register(kernel{rows: all, run: topK}, "topk")
	register(kernel{rows: all, run: interleave, work: func(r *run) int64 { return padded(graph.Int64.Bytes(elementsOf(r.c.Args[0]))) }}, "repeat_interleave")
	register(kernel{run: adaptiveMax}, "adaptive_max_pool2d")
	register(kernel{rows: all, run: func(r *run) error { return r.columns("columns_forward", r.arg(0), r.result(0)) }}, "im2col")
	register(kernel{rows: all, run: func(r *run) error { return r.columns("columns_backward", r.result(0), r.arg(0)) }}, "col2im")
}

// elementsOf is how many elements an operand has.
func elementsOf(o validate.Operand) int64 {
	if o.Kind == validate.IsArray {
		return validate.Elems(o.Shape)
	}
	return o.Tensor.Elems()
}

// extreme makes the values along a dim and, as a reduction of its own, their places.
func (r *run) extreme(values, places int32) error {
	if err := r.reduce(values, r.result(0), r.arg(0), r.attrs().Dims); err != nil {
		return err
	}
	return r.reduce(places, r.result(1), r.arg(0), r.attrs().Dims)
}

// topK takes the first elements of lines in order.
func topK(r *run) error {
	in, err := r.inOrder(0)
	if err != nil {
		return err
	}
	out, index := r.result(0), r.result(1)
	if !out.RowMajor() || !index.RowMajor() || out.DType != in.DType || index.DType != graph.Int64 {
		return fmt.Errorf("sorting %v to %v and %v", in.DType, out.DType, index.DType)
	}
	a := topKArgs{in: r.ptr(in), out: r.ptr(out), index: r.ptr(index), dtype: dtype(in), largest: int32(r.scalar("largest"))}
	outer, length, inner := lines(in, r.attrs().Dims[0])
	a.lines, a.length, a.inner = outer*inner, length, inner
	a.k = out.Elems() / max(a.lines, 1)
	return launch(r.d, "select", "top_k", grid{x: min(a.lines*((length+255)/256), 1<<20), tx: 256}, &a)
}

// interleave finds each element of the result in the running sums of the operand.
func interleave(r *run) error {
	times, err := r.inOrder(0)
	if err != nil {
		return err
	}
	out := r.result(0)
	if !isIndex(times) || !isIndex(out) || !out.RowMajor() || times.Elems() == 0 {
		return fmt.Errorf("indices %v of what %v %v say", out.DType, times.DType, times.Shape)
	}
	if need := padded(graph.Int64.Bytes(times.Elems())); r.c.Work.Bytes < need {
		return fmt.Errorf("running sums take %d bytes, and the plan has %d for them: give it what Device.Work asks for", need, r.c.Work.Bytes)
	}
	sums := uint64(r.d.at(r.c.Work.At))
	s := scanArgs{outer: 1, length: times.Elems(), inner: 1, in: r.ptr(times), out: sums, op: redSum, dtype: dtype(times), outDType: dtypes[graph.Int64]}
	if err := launch(r.d, "reduce", "scan_rows", along(32), &s); err != nil {
		return err
	}
	a := interleaveArgs{n: out.Elems(), elements: times.Elems(), sums: sums, out: r.ptr(out), dtype: dtype(out)}
	return launch(r.d, "select", "interleave", along(a.n), &a)
}

// adaptiveMax pools over windows that the sizes give, as volumes.
func adaptiveMax(r *run) error {
	n := len(r.attrs().Dims)
	deep := func(t *validate.Tensor) *validate.Tensor {
		v := *t
		v.Shape, v.Strides = slices.Clone(t.Shape), slices.Clone(t.Strides)
		for at := len(t.Shape) - n; len(v.Shape) < len(t.Shape)+3-n; {
			v.Shape, v.Strides = slices.Insert(v.Shape, at, 1), slices.Insert(v.Strides, at, 0)
		}
		return &v
	}
	return r.volumes("max", deep(r.arg(0)), deep(r.result(0)), deep(r.result(1)), false)
}

// columns moves between images and the columns of their windows.
func (r *run) columns(name string, image, cols *validate.Tensor) error {
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
