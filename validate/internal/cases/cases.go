// Package cases reads the references of single kernels that
// scripts/validation/kernel_reference.py computes with PyTorch, for the tests of devices.
package cases

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// A Case is a kernel with its operands, attributes as program.Attrs has them, and
// results.
type Case struct {
	Kernel  string
	Args    []any     // names of arrays, numbers, or nil
	Results []*string // names, nil for one that is not wanted
	Scalars []float64
	Dims    []int64
	Mode    string
	Conv    *program.Conv
	Pool    *program.Pool
	Window  *program.Window
	After   map[int]string // operands that the kernel updates
}

// Read returns the cases of a file and the arrays that they name.
func Read(path string) ([]Case, map[string]*validate.Array, error) {
	data, err := validate.ReadNPZ(path)
	if err != nil {
		return nil, nil, err
	}
	list := data["cases"]
	if list == nil {
		return nil, nil, fmt.Errorf("%s has no cases: write it with scripts/validation/kernel_reference.py", path)
	}
	text := make([]byte, len(list.Values))
	for i, v := range list.Values {
		text[i] = byte(v)
	}
	var out []Case
	if err := json.Unmarshal(text, &out); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return out, data, nil
}

// A Placer puts an array into a device's memory, with or without its values.
type Placer func(a *validate.Array, values bool) validate.ArenaView

// Call makes the call and the node of a case, with tensors placed by place.
func (c *Case) Call(data map[string]*validate.Array, place Placer) *validate.Call {
	var args []validate.Operand
	for _, a := range c.Args {
		switch a := a.(type) {
		case string:
			args = append(args, validate.Operand{Kind: validate.OnDevice, Tensor: place(data[a], true)})
		case float64:
			args = append(args, validate.Operand{Kind: validate.IsNumber, Value: a})
		default:
			args = append(args, validate.Operand{})
		}
	}
	var results []validate.ArenaView
	for _, r := range c.Results {
		if r == nil {
			results = append(results, validate.ArenaView{At: -1})
			continue
		}
		results = append(results, place(data[*r], false))
	}
	return NewCall(c.Kernel, program.Attrs{Scalars: c.Scalars, Dims: c.Dims, Mode: c.Mode, Conv: c.Conv, Pool: c.Pool, Window: c.Window}, args, results)
}

// NewCall makes a call of a kernel and its node, whose tensors have the call's
// layouts. An operand without a kind is absent, a result at -1 is not wanted; the
// attributes' Args and Results follow from the lists.
func NewCall(kernel string, a program.Attrs, args []validate.Operand, results []validate.ArenaView) *validate.Call {
	n := &program.Node{Op: kernel, Name: kernel, Kernel: kernel, Attrs: &a}
	shown := func(t *validate.ArenaView) program.View {
		return program.View{DType: t.DType, Shape: t.Shape, Strides: t.Strides}
	}
	a.Args, a.Results = nil, nil
	for i := range args {
		switch args[i].Kind {
		case validate.OnDevice:
			a.Args = append(a.Args, program.Arg{In: int32(len(n.In))})
			n.In = append(n.In, shown(&args[i].Tensor))
		case validate.IsNumber:
			a.Args = append(a.Args, program.Arg{In: program.Number, Value: args[i].Value})
		case validate.IsArray:
			o := &args[i]
			a.Args = append(a.Args, program.Arg{In: program.Array, Array: &program.HostArray{DType: o.DType, Shape: o.Shape, Strides: o.Strides, Values: o.Values}})
		default:
			a.Args = append(a.Args, program.Arg{In: program.Absent})
		}
	}
	for i := range results {
		if results[i].At < 0 {
			a.Results = append(a.Results, -1)
			continue
		}
		a.Results = append(a.Results, int8(len(n.Out)))
		n.Out = append(n.Out, shown(&results[i]))
	}
	return &validate.Call{Node: n, Kernel: kernel, Args: args, Results: results}
}

// Each calls f with the row-major index of every element and its position, in
// elements.
func Each(shape, strides []int64, f func(i int, at int64)) {
	idx := make([]int64, len(shape))
	for i := range validate.Elems(shape) {
		at := int64(0)
		for j := range idx {
			at += idx[j] * strides[j]
		}
		f(int(i), at)
		for j := len(idx) - 1; j >= 0; j-- {
			if idx[j]++; idx[j] < shape[j] {
				break
			}
			idx[j] = 0
		}
	}
}

// Put writes one number as an element of a type. It panics for a number that a
// half type cannot hold.
func Put(b []byte, t graph.DType, v float64) {
	bits := math.Float32bits(float32(v))
	switch t {
	case graph.Float32:
		binary.LittleEndian.PutUint32(b, bits)
	case graph.Float64:
		binary.LittleEndian.PutUint64(b, math.Float64bits(v))
	case graph.BFloat16:
		binary.LittleEndian.PutUint16(b, uint16(bits>>16))
	case graph.Float16:
		h := uint16(bits >> 16 & 0x8000)
		if v != 0 { // another bias of the exponent
			h |= uint16((bits>>23&255)-112)<<10 | uint16(bits>>13&1023)
		}
		binary.LittleEndian.PutUint16(b, h)
	case graph.Int64:
		binary.LittleEndian.PutUint64(b, uint64(int64(v)))
	case graph.Int32:
		binary.LittleEndian.PutUint32(b, uint32(int32(v)))
	default:
		b[0] = byte(v)
	}
	if (t == graph.BFloat16 || t == graph.Float16) && Number(b, t, 0) != v {
		panic(fmt.Sprintf("%v is no %v", v, t))
	}
}

// Number reads element i of a type.
func Number(b []byte, t graph.DType, i int64) float64 {
	switch t {
	case graph.Float32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])))
	case graph.Float64:
		return math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
	case graph.BFloat16:
		return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b[2*i:])) << 16))
	case graph.Float16:
		return graph.Float16.Float(uint64(binary.LittleEndian.Uint16(b[2*i:])))
	case graph.Int64, graph.Uint64:
		return float64(int64(binary.LittleEndian.Uint64(b[8*i:])))
	case graph.Int32:
		return float64(int32(binary.LittleEndian.Uint32(b[4*i:])))
	}
	return float64(b[i])
}

// Bytes lays out an array with strides; without values every byte is 0xff, which
// makes floating-point numbers NaNs.
func Bytes(a *validate.Array, strides []int64, values bool) []byte {
	size, span := a.DType.Bytes(1), int64(1)
	for i, n := range a.Shape {
		span += (n - 1) * strides[i]
	}
	raw := make([]byte, max(span, 0)*size)
	for i := range raw {
		raw[i] = 0xff
	}
	if values {
		Each(a.Shape, strides, func(i int, at int64) { Put(raw[at*size:], a.DType, float64(a.Values[i])) })
	}
	return raw
}
