package validate

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// An Array is a tensor in host memory: row-major elements as numbers. Integers
// are indices and masks, so that none beyond 2^24 are needed.
type Array struct {
	Shape  []int64
	DType  graph.DType
	Values []float32
}

// A Source returns the elements of a parameter, buffer or input by name; nil if
// it has none and they are to be generated from the seed.
type Source func(name string) (*Array, error)

// A Reader reads an array on demand, so that a large file is never entirely in
// memory.
type Reader func() (*Array, error)

// A resident is a storage that exists before the first step, with a view of all
// of it.
type resident struct {
	id     program.StorageID
	tensor program.View
	rows   int64 // inputs that index tables: the least number of rows; else 0
}

// residents lists the storages that exist before the first step. The view of a storage
// that no node reads has no type, and is not filled.
func residents(p *program.Program) []resident {
	at := make([]int32, len(p.Storages))
	var out []resident
	for _, id := range p.Statics {
		s := &p.Storages[id]
		if s.Category != program.Optimizer {
			out = append(out, resident{id: id, tensor: program.View{Storage: id, DType: graph.Undefined}})
			at[id] = int32(len(out))
		}
	}
	see := func(t *program.View) {
		if t.Storage < 0 || at[t.Storage] == 0 {
			return
		}
		r := &out[at[t.Storage]-1]
		if r.tensor.DType == graph.Undefined || len(r.tensor.Shape) == 1 && t.Offset == 0 && t.DType.Bytes(Elems(t.Shape)) == p.Storages[t.Storage].Bytes && IsRowMajor(t.Shape, t.Strides) {
			r.tensor = program.View{Storage: t.Storage, DType: t.DType, Shape: []int64{p.Storages[t.Storage].Bytes / max(t.DType.Bytes(1), 1)}}
			if t.Offset == 0 && t.DType.Bytes(Elems(t.Shape)) == p.Storages[t.Storage].Bytes && IsRowMajor(t.Shape, t.Strides) {
				r.tensor.Shape = t.Shape
			}
		}
	}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		for j := range n.In {
			see(&n.In[j])
		}
		if n.Attrs != nil && n.Attrs.Rule != nil {
			for _, q := range n.Attrs.Rule.Params {
				if r := at[q.Param.Storage]; r > 0 {
					out[r-1].tensor = q.Param
				}
			}
		}
		if n.Does() == "embedding" && len(n.In) == 2 && at[n.In[1].Storage] > 0 {
			r := &out[at[n.In[1].Storage]-1]
			if rows := n.In[0].Shape[0]; r.rows == 0 || rows < r.rows {
				r.rows = rows
			}
		}
	}
	return out
}

// values returns the elements of a resident: the source's, or generated from
// the seed. Element i of a name depends on nothing else.
func (r *resident) values(s *program.Storage, src Source, seed uint64) (func(i uint64) float64, error) {
	if src != nil {
		a, err := src(s.Name)
		if err != nil {
			return nil, err
		}
		if a != nil {
			if int64(len(a.Values)) != Elems(r.tensor.Shape) {
				return nil, fmt.Errorf("%s: an array of shape %v, the step takes %v", s.Name, a.Shape, r.tensor.Shape)
			}
			if !r.tensor.DType.IsFloat() {
				if err := a.integers(r.rows, 0); err != nil {
					return nil, fmt.Errorf("%s: %w", s.Name, err)
				}
			}
			return func(i uint64) float64 { return float64(a.Values[i]) }, nil
		}
	}
	seed = nameSeed(seed, s.Name)
	constant := func(v float64) func(uint64) float64 { return func(uint64) float64 { return v } }
	shape := r.tensor.Shape
	last := s.Name[strings.LastIndexByte(s.Name, '.')+1:]
	switch {
	case s.Category == program.Inputs && r.tensor.DType.IsFloat():
		return func(i uint64) float64 { return Normal(seed, i) }, nil
	case s.Category == program.Inputs && strings.Contains(s.Name, "mask"):
		return constant(1), nil
	case s.Category == program.Inputs:
		return func(i uint64) float64 { return float64(Below(seed, i, max(r.rows, 2))) }, nil
	case s.Category == program.Buffers && last == "running_var":
		return constant(1), nil
	case s.Category == program.Buffers && last == "position_ids":
		n := uint64(max(shape[len(shape)-1], 1))
		return func(i uint64) float64 { return float64(i % n) }, nil
	case s.Category == program.Buffers && last == "inv_freq": // rotary embeddings: base^(-i/n)
		n := float64(max(Elems(shape), 1))
		return func(i uint64) float64 { return math.Pow(10000, -float64(i)/n) }, nil
	case s.Category != program.Parameters:
		return constant(0), nil
	case len(shape) < 2 && (strings.Contains(last, "bias") || strings.Contains(last, "beta")):
		return constant(0), nil
	case len(shape) < 2:
		return constant(1), nil
	case len(shape) == 2 && shape[0] > 8*shape[1]: // a table of embeddings
		return func(i uint64) float64 { return 0.02 * Normal(seed, i) }, nil
	}
	// torch.nn.Linear and Conv: uniform within 1/sqrt(fan in).
	bound := 1 / math.Sqrt(float64(max(Elems(shape[1:]), 1)))
	return func(i uint64) float64 { return bound * (2*Uniform(seed, i) - 1) }, nil
}

// Encode writes row-major numbers as elements of a type.
func Encode(t graph.DType, values []float64) ([]byte, error) {
	return encode(t, int64(len(values)), func(i uint64) float64 { return values[i] })
}

// encode writes numbers as elements of a type, row-major. f is called
// concurrently.
func encode(t graph.DType, n int64, f func(i uint64) float64) ([]byte, error) {
	put, ok := puts[t]
	if !ok {
		return nil, fmt.Errorf("elements of type %v", t)
	}
	out, size := make([]byte, t.Bytes(n)), int(t.Bytes(1))
	spread(int(n), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			put(out[i*size:], f(uint64(i)))
		}
	})
	return out, nil
}

var le = binary.LittleEndian

// puts write a number as an element of a type.
var puts = map[graph.DType]func(b []byte, v float64){
	graph.Float32:  func(b []byte, v float64) { le.PutUint32(b, math.Float32bits(float32(v))) },
	graph.Float64:  func(b []byte, v float64) { le.PutUint64(b, math.Float64bits(v)) },
	graph.BFloat16: func(b []byte, v float64) { le.PutUint16(b, BF16(float32(v))) },
	graph.Float16:  func(b []byte, v float64) { le.PutUint16(b, f16(v)) },
	graph.Int64:    putInt64, graph.Uint64: putInt64,
	graph.Int32: putInt32, graph.Uint32: putInt32,
	graph.Int16: putInt16, graph.Uint16: putInt16,
	graph.Int8: putInt8, graph.Uint8: putInt8, graph.Bool: putInt8,
}

func putInt64(b []byte, v float64) { le.PutUint64(b, uint64(int64(v))) }
func putInt32(b []byte, v float64) { le.PutUint32(b, uint32(int32(v))) }
func putInt16(b []byte, v float64) { le.PutUint16(b, uint16(int16(v))) }
func putInt8(b []byte, v float64)  { b[0] = byte(int64(v)) }

// gets read element i of a type.
var gets = map[graph.DType]func(b []byte, i int64) float32{
	graph.Float32:  func(b []byte, i int64) float32 { return math.Float32frombits(le.Uint32(b[4*i:])) },
	graph.Float64:  func(b []byte, i int64) float32 { return float32(math.Float64frombits(le.Uint64(b[8*i:]))) },
	graph.BFloat16: func(b []byte, i int64) float32 { return math.Float32frombits(uint32(le.Uint16(b[2*i:])) << 16) },
	graph.Float16:  func(b []byte, i int64) float32 { return float32(graph.Float16.Float(uint64(le.Uint16(b[2*i:])))) },
	graph.Int64:    func(b []byte, i int64) float32 { return float32(int64(le.Uint64(b[8*i:]))) },
	graph.Int32:    func(b []byte, i int64) float32 { return float32(int32(le.Uint32(b[4*i:]))) },
	graph.Bool:     func(b []byte, i int64) float32 { return float32(b[i]) },
	graph.Uint8:    func(b []byte, i int64) float32 { return float32(b[i]) },
}

// BF16 rounds a number to the nearest bfloat16, ties to even.
func BF16(f float32) uint16 {
	if f != f {
		return 0x7fc0
	}
	b := math.Float32bits(f)
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// f16 rounds a number to the nearest half, ties to even.
func f16(v float64) uint16 {
	sign := uint16(0)
	if math.Signbit(v) {
		sign, v = 0x8000, -v
	}
	switch {
	case v != v:
		return sign | 0x7e00
	case v >= 65520:
		return sign | 0x7c00
	case v < 1.0/(1<<14):
		return sign | uint16(math.RoundToEven(v*(1<<24)))
	}
	e := math.Ilogb(v)
	m := math.RoundToEven(math.Ldexp(v, 10-e)) // 1024 to 2048
	return sign | (uint16(e+14)<<10 + uint16(m))
}

// decode converts a strided view of raw elements to a row-major array.
func decode(raw []byte, t *program.View) (*Array, error) {
	get, ok := gets[t.DType]
	if !ok {
		return nil, fmt.Errorf("elements of type %v", t.DType)
	}
	a := &Array{Shape: t.Shape, DType: t.DType, Values: make([]float32, Elems(t.Shape))}
	if IsRowMajor(t.Shape, t.Strides) {
		spread(len(a.Values), func(lo, hi int) {
			for i := lo; i < hi; i++ {
				a.Values[i] = get(raw, int64(i))
			}
		})
		return a, nil
	}
	idx := make([]int64, len(t.Shape))
	at := int64(0)
	for i := range a.Values {
		a.Values[i] = get(raw, at)
		for d := len(idx) - 1; d >= 0; d-- {
			at += t.Strides[d]
			if idx[d]++; idx[d] < t.Shape[d] {
				break
			}
			at -= t.Strides[d] * t.Shape[d]
			idx[d] = 0
		}
	}
	return a, nil
}

// equalBits reports whether arrays have the same shape and bits.
func equalBits(a, b *Array) bool {
	if a == nil || b == nil || !slices.Equal(a.Shape, b.Shape) {
		return a == b
	}
	var differ atomic.Bool
	spread(len(a.Values), func(lo, hi int) {
		other := b.Values[lo:hi]
		for i, v := range a.Values[lo:hi] {
			if math.Float32bits(v) != math.Float32bits(other[i]) {
				differ.Store(true)
				return
			}
		}
	})
	return !differ.Load()
}

// finite reports whether an array has no NaNs and infinities.
func (a *Array) finite() bool {
	var bad atomic.Bool
	spread(len(a.Values), func(lo, hi int) {
		for _, x := range a.Values[lo:hi] {
			if x-x != 0 {
				bad.Store(true)
				return
			}
		}
	})
	return !bad.Load()
}

// nans reports whether an array has NaNs.
func (a *Array) nans() bool {
	return slices.ContainsFunc(a.Values, func(x float32) bool { return x != x })
}

// Difference returns the largest absolute difference of two arrays relative to
// the largest finite absolute value of the second; infinite if their lengths
// differ, or if either has a NaN.
func Difference(a, b *Array) float64 {
	if a == nil || b == nil || len(a.Values) != len(b.Values) {
		return math.Inf(1)
	}
	var worst, top float64
	for i, v := range a.Values {
		v, w := float64(v), float64(b.Values[i])
		if d := math.Abs(v - w); v != w {
			if d != d {
				return math.Inf(1)
			}
			worst = max(worst, d)
		}
		if !math.IsInf(w, 0) { // equal infinities must not make all other differences small
			top = max(top, math.Abs(w))
		}
	}
	if worst == 0 {
		return 0
	}
	if top == 0 {
		return math.Inf(1)
	}
	return worst / top
}
