//go:build cuda

package cuda

import (
	"fmt"
	"math/bits"

	"gorgonia.org/cu"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// placesArgs is Places of places.cu.
type placesArgs struct {
	at                            indexArgs
	rows, width                   int64
	number                        float64
	keys, head, count, next, slot uint64
	slots                         int64
	add, _                        int32
}

// Indexed writes find equal positions by comparing all rows of values with all others,
// or have one thread for each line of the destination. Both are slow for many rows, or
// for few and long lines: then the rows are hashed by their position.
const (
	manyRows  = 1024
	fewLines  = 1 << 14
	placeTop  = 256 << 20 // largest workspace of hashing, in bytes
	slotBytes = 16        // of a slot: key, head, count
	rowBytes  = 8         // of a row: next, slot
)

// A places describes the rows of values that a call writes, each at a position: their
// number and length in elements; no rows: the call is not hashed. Sums in half types
// are always hashed: a line's thread would round after every one.
type places struct {
	rows, width int64
	half        bool
}

// slots returns the number of hash slots.
func (p places) slots() int64 { return 1 << bits.Len64(uint64(2*p.rows-1)) }

// bytes returns the workspace of hashing, 0 if the rows are not hashed.
func (p places) bytes() int64 {
	if p.rows < 1 || p.rows < manyRows && !p.half {
		return 0
	}
	if n := p.slots()*slotBytes + p.rows*rowBytes; n <= placeTop {
		return n
	}
	return 0
}

// indexPlaces returns those of values written by the index tensors from operand
// first on.
func (r *run) indexPlaces(values []int64, first int) places {
	dims, wide := r.attrs().Dims, 0
	for i := range dims {
		if first+i < len(r.c.Args) {
			wide = max(wide, len(r.c.Args[first+i].Tensor.Shape))
		}
	}
	lead := int(validate.IndexedDim(dims))
	p := places{rows: 1, width: 1}
	for d, n := range values {
		if d < lead+wide {
			p.rows *= n
		} else {
			p.width *= n
		}
	}
	return p
}

// linePlaces returns those of values along dim d: with an index for every element, or
// for every position along the dim. Indices that are equal in all lines move whole
// rows.
func linePlaces(values []int64, idx *validate.ArenaView, d int64, every, half bool) places {
	n, length := validate.Elems(values), int64(1)
	if len(values) > 0 {
		length = values[d]
	}
	lines := n / max(length, 1)
	if length < manyRows && !half || lines >= fewLines || idx == nil {
		return places{}
	}
	for k, s := range idx.Strides {
		if every && int64(k) != d && s != 0 && values[k] != 1 {
			return places{n, 1, half}
		}
	}
	return places{length, lines, half}
}

// firstDim moves dim d before all others.
func (a *indexArgs) firstDim(d int64) {
	move := func(v []int64) {
		x := v[d]
		copy(v[1:d+1], v[:d])
		v[0] = x
	}
	for _, v := range [][]int64{a.size[:], a.valueStride[:], a.baseStride[:]} {
		move(v)
	}
	for k := range a.indexStride {
		move(a.indexStride[k][:])
	}
}

// hash writes values by index after hashing their positions; it returns false if the
// call does not suit that, or its workspace is too small.
func (r *run) hash(p places, s placesArgs, kind string) (bool, error) {
	need := p.bytes()
	if need == 0 || r.c.Work.Bytes < need {
		return false, nil
	}
	at := uint64(r.d.at(r.c.Work.At))
	s.rows, s.width, s.slots = p.rows, p.width, p.slots()
	s.keys, s.head, s.count = at, at+8*uint64(s.slots), at+12*uint64(s.slots)
	s.next = at + slotBytes*uint64(s.slots)
	s.slot = s.next + 4*uint64(s.rows)
	if err := cu.MemsetD8Async(cu.DevicePtr(s.keys), 0xff, 12*s.slots, r.d.stream); err != nil {
		return true, explain("filling memory", err)
	}
	if err := cu.MemsetD8Async(cu.DevicePtr(s.count), 0, 4*s.slots, r.d.stream); err != nil {
		return true, explain("filling memory", err)
	}
	if err := launch(r.d, "places", "place_rows", along(s.rows), &s); err != nil {
		return true, err
	}
	return true, launch(r.d, "places", "place_values_"+kind, grid{x: min(s.slots, 16*r.d.sms), tx: 128}, &s)
}

// kindOf returns the kind of kernel for the destination's type.
func kindOf(t *validate.ArenaView) string {
	if t.DType.IsFloat() {
		return "real"
	}
	return "int"
}

// scatterPlaces returns those of a scatter.
func (r *run) scatterPlaces(every, add bool) places {
	idx, values := r.arg(1), r.arg(2)
	if idx == nil || len(r.attrs().Dims) == 0 {
		return places{}
	}
	shape := idx.Shape
	if !every && values != nil {
		shape = values.Shape
	}
	return linePlaces(shape, idx, r.attrs().Dims[0], every, add && isHalf(r.result(0)))
}

// pickPlaces returns those of the backward of a gather or an index_select.
func (r *run) pickPlaces(every bool) places {
	g, idx := r.arg(0), r.arg(1)
	if g == nil || idx == nil || len(r.attrs().Dims) == 0 {
		return places{}
	}
	strides, err := idx.Strides, error(nil)
	if every {
		strides, err = broadcast(idx, g.Shape)
	}
	if err != nil {
		return places{}
	}
	return linePlaces(g.Shape, &validate.ArenaView{Shape: g.Shape, Strides: strides}, r.attrs().Dims[0], every, isHalf(r.result(0)))
}

// isHalf reports whether a type has 16 bits.
func isHalf(t *validate.ArenaView) bool {
	return t != nil && (t.DType == graph.Float16 || t.DType == graph.BFloat16)
}

// few returns an error if a call has more indices than kernels support.
func few(n *program.Node) error {
	if n.Attrs != nil && len(n.Attrs.Dims) > maxIndices {
		return fmt.Errorf("%s: %d indices, at most %d", n.Does(), len(n.Attrs.Dims), maxIndices)
	}
	return nil
}

// putPlaces returns those of an index_put.
func (r *run) putPlaces() places {
	out := r.result(0)
	shape, err := indexedShape(r, out, 2)
	if err != nil {
		return places{}
	}
	return r.indexPlaces(shape, 2)
}
