package cpu

import (
	"unsafe"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/validate"
)

// aligned returns n bytes that start at a multiple of eight.
func aligned(n int64) []byte {
	words := make([]uint64, (n+7)/8+1)
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), n)
}

// as shows bytes as elements; an empty slice for none.
func as[T any](b []byte) []T {
	var t T
	n := len(b) / int(unsafe.Sizeof(t))
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), n)
}

// A dim is one dim of a walk; strides count elements.
type dim struct{ size, stride int64 }

// A walk visits a tensor's elements in row-major order; dims that are
// contiguous with each other are merged.
type walk struct {
	dims  []dim
	elems int64
}

// newWalk walks over shape with the given strides.
func newWalk(shape, strides []int64) walk {
	w := walk{elems: 1}
	for i, n := range shape {
		w.elems *= n
		if n == 1 {
			continue
		}
		if k := len(w.dims); k > 0 && w.dims[k-1].stride == n*strides[i] {
			w.dims[k-1] = dim{w.dims[k-1].size * n, strides[i]}
			continue
		}
		w.dims = append(w.dims, dim{n, strides[i]})
	}
	if len(w.dims) == 0 {
		w.dims = []dim{{1, 1}}
	}
	return w
}

// rows calls f for each run of the last dim within elements [lo, hi): at is the
// element's position in memory, i its row-major number counted from lo.
func (w *walk) rows(lo, hi int64, f func(i, at, n, stride int64)) {
	if hi <= lo {
		return
	}
	k := len(w.dims)
	idx := make([]int64, k)
	rest, at := lo, int64(0)
	for j := k - 1; j >= 0; j-- {
		idx[j] = rest % w.dims[j].size
		rest /= w.dims[j].size
		at += idx[j] * w.dims[j].stride
	}
	last := w.dims[k-1]
	for i := lo; i < hi; {
		n := min(last.size-idx[k-1], hi-i)
		f(i-lo, at, n, last.stride)
		i += n
		at += n * last.stride
		idx[k-1] += n
		for j := k - 1; j > 0 && idx[j] == w.dims[j].size; j-- {
			at += w.dims[j-1].stride - idx[j]*w.dims[j].stride
			idx[j] = 0
			idx[j-1]++
		}
	}
}

// broadcastStrides returns t's strides in a shape that it broadcasts to.
func broadcastStrides(tshape, tstrides, shape []int64) []int64 {
	out := make([]int64, len(shape))
	lead := len(shape) - len(tshape)
	for i := range tshape {
		if tshape[i] != 1 || shape[lead+i] == 1 {
			out[lead+i] = tstrides[i]
		}
	}
	return out
}

func gather[T any](dst []float64, src []T, at, n, stride int64, conv func(T) float64) {
	for j := range n {
		dst[j] = conv(src[at+j*stride])
	}
}

// loadRow reads n elements of a type as numbers.
func loadRow(dst []float64, base []byte, t graph.DType, at, n, stride int64) {
	switch t {
	case graph.Float32:
		s := as[float32](base)
		for j := range n {
			dst[j] = float64(s[at+j*stride])
		}
	case graph.BFloat16:
		gather(dst, as[uint16](base), at, n, stride, func(v uint16) float64 { return float64(fromBF16(v)) })
	case graph.Float16:
		gather(dst, as[uint16](base), at, n, stride, func(v uint16) float64 { return float64(fromF16(v)) })
	case graph.Float64:
		gather(dst, as[float64](base), at, n, stride, func(v float64) float64 { return v })
	case graph.Int64, graph.Uint64:
		gather(dst, as[int64](base), at, n, stride, func(v int64) float64 { return float64(v) })
	case graph.Int32:
		gather(dst, as[int32](base), at, n, stride, func(v int32) float64 { return float64(v) })
	case graph.Int16:
		gather(dst, as[int16](base), at, n, stride, func(v int16) float64 { return float64(v) })
	case graph.Int8:
		gather(dst, as[int8](base), at, n, stride, func(v int8) float64 { return float64(v) })
	default:
		gather(dst, as[uint8](base), at, n, stride, func(v uint8) float64 { return float64(v) })
	}
}

func scatter[T any](dst []T, src []float64, at, n, stride int64, conv func(float64) T) {
	for j := range n {
		dst[at+j*stride] = conv(src[j])
	}
}

// storeRow writes n numbers as elements of a type.
func storeRow(base []byte, src []float64, t graph.DType, at, n, stride int64) {
	switch t {
	case graph.Float32:
		d := as[float32](base)
		for j := range n {
			d[at+j*stride] = float32(src[j])
		}
	case graph.BFloat16:
		scatter(as[uint16](base), src, at, n, stride, func(v float64) uint16 { return validate.BF16(float32(v)) })
	case graph.Float16:
		scatter(as[uint16](base), src, at, n, stride, func(v float64) uint16 { return toF16(float32(v)) })
	case graph.Float64:
		scatter(as[float64](base), src, at, n, stride, func(v float64) float64 { return v })
	case graph.Int64, graph.Uint64:
		scatter(as[int64](base), src, at, n, stride, func(v float64) int64 { return int64(v) })
	case graph.Int32:
		scatter(as[int32](base), src, at, n, stride, func(v float64) int32 { return int32(v) })
	case graph.Int16:
		scatter(as[int16](base), src, at, n, stride, func(v float64) int16 { return int16(v) })
	case graph.Int8:
		scatter(as[int8](base), src, at, n, stride, func(v float64) int8 { return int8(v) })
	case graph.Bool:
		scatter(as[uint8](base), src, at, n, stride, func(v float64) uint8 {
			if v != 0 {
				return 1
			}
			return 0
		})
	default:
		scatter(as[uint8](base), src, at, n, stride, func(v float64) uint8 { return uint8(int64(v)) })
	}
}

// A reader yields an operand's elements in the order of a shape it broadcasts to.
type reader struct {
	base  []byte
	dtype graph.DType
	walk  walk
	value float64 // of a number
	list  []float64
	kind  validate.OperandKind
}

// reader reads operand i as a tensor of the given shape.
func (r *run) reader(i int, shape []int64) reader {
	a := &r.c.Args[i]
	switch a.Kind {
	case validate.OnDevice:
		return r.tensorReader(&a.Tensor, shape)
	case validate.IsArray:
		return reader{kind: a.Kind, list: a.Values, walk: newWalk(shape, broadcastStrides(a.Shape, a.Strides, shape))}
	}
	return reader{kind: validate.IsNumber, value: a.Value}
}

func (r *run) tensorReader(t *validate.ArenaView, shape []int64) reader {
	return reader{kind: validate.OnDevice, base: r.d.arena[t.At:], dtype: t.DType, walk: newWalk(shape, broadcastStrides(t.Shape, t.Strides, shape))}
}

// read fills dst with the elements from number lo.
func (r *reader) read(dst []float64, lo int64) {
	switch r.kind {
	case validate.OnDevice:
		r.walk.rows(lo, lo+int64(len(dst)), func(i, at, n, stride int64) { loadRow(dst[i:], r.base, r.dtype, at, n, stride) })
	case validate.IsArray:
		r.walk.rows(lo, lo+int64(len(dst)), func(i, at, n, stride int64) {
			for j := range n {
				dst[i+j] = r.list[at+j*stride]
			}
		})
	default:
		for i := range dst {
			dst[i] = r.value
		}
	}
}

// A writer stores numbers into a result in row-major order.
type writer struct {
	base  []byte
	dtype graph.DType
	walk  walk
}

func (r *run) writer(t *validate.ArenaView) writer {
	return writer{r.d.arena[t.At:], t.DType, newWalk(t.Shape, t.Strides)}
}

func (w *writer) write(src []float64, lo int64) {
	w.walk.rows(lo, lo+int64(len(src)), func(i, at, n, stride int64) { storeRow(w.base, src[i:], w.dtype, at, n, stride) })
}

// chunk is the number of elements that elementwise kernels process at once.
const chunk = 2048

// floats returns operand i row-major in float32: its own memory if it has that
// layout.
func (r *run) floats(i int) []float32 {
	a := &r.c.Args[i]
	if a.Kind == validate.OnDevice && a.Tensor.DType == graph.Float32 && a.Tensor.RowMajor() {
		return as[float32](r.d.arena[a.Tensor.At:])[:a.Tensor.Elems()]
	}
	return r.floatsIn(i, r.shape(i))
}

// floatsIn returns a float32 copy of operand i, broadcast to shape.
func (r *run) floatsIn(i int, shape []int64) []float32 {
	rd := r.reader(i, shape)
	out := make([]float32, validate.Elems(shape))
	r.chunks(len(out), 1<<15, func(at int, b []float64) {
		rd.read(b, int64(at))
		for j, v := range b {
			out[at+j] = float32(v)
		}
	})
	return out
}

// ints returns operand i row-major as integers.
func (r *run) ints(i int, shape []int64) []int64 {
	rd := r.reader(i, shape)
	vals := make([]float64, validate.Elems(shape))
	rd.read(vals, 0)
	out := make([]int64, len(vals))
	for j, v := range vals {
		out[j] = int64(v)
	}
	return out
}

// out returns float32 memory for result i and a function that stores it in the
// arena; the memory is the result's own if it is row-major float32, and is not
// cleared.
func (r *run) out(i int) (buf []float32, done func()) {
	t := &r.c.Results[i]
	if t.DType == graph.Float32 && t.RowMajor() {
		return as[float32](r.d.arena[t.At:])[:t.Elems()], func() {}
	}
	buf = make([]float32, t.Elems())
	return buf, func() { r.store(i, buf) }
}

// store writes row-major numbers as result i.
func (r *run) store(i int, vals []float32) {
	w := r.writer(&r.c.Results[i])
	r.chunks(len(vals), 1<<15, func(at int, b []float64) {
		for j := range b {
			b[j] = float64(vals[at+j])
		}
		w.write(b, int64(at))
	})
}

// chunks splits [0, n) over the workers, as parallel does, and calls f for pieces that
// start at element at and have room in b.
func (r *run) chunks(n, grain int, f func(at int, b []float64)) {
	r.parallel(n, grain, func(lo, hi int) {
		var buf [chunk]float64
		for at := lo; at < hi; at += chunk {
			f(at, buf[:min(chunk, hi-at)])
		}
	})
}
