// Package cases reads the references of single kernels that
// scripts/kernel_goldens.py computes with PyTorch, for the tests of devices.
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
		return nil, nil, fmt.Errorf("%s has no cases: write it with scripts/kernel_goldens.py", path)
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

// Placer puts an array into a device's memory, with its values or without.
type Placer func(a *validate.Array, values bool) validate.Tensor

// Call makes the call of a case, with its node, of tensors that place has put
// into memory.
func (c *Case) Call(data map[string]*validate.Array, place Placer) *validate.Call {
	n := &program.Node{Op: c.Kernel, Kernel: c.Kernel, Attrs: &program.Attrs{Scalars: c.Scalars, Dims: c.Dims, Mode: c.Mode, Conv: c.Conv, Pool: c.Pool, Window: c.Window}}
	call := &validate.Call{Node: n, Kernel: c.Kernel}
	shown := func(t *validate.Tensor) program.Tensor {
		return program.Tensor{DType: t.DType, Shape: t.Shape, Strides: t.Strides}
	}
	for _, a := range c.Args {
		switch a := a.(type) {
		case string:
			x := place(data[a], true)
			call.Args = append(call.Args, validate.Operand{Kind: validate.OnDevice, Tensor: x})
			n.Attrs.Args = append(n.Attrs.Args, program.Arg{In: int32(len(n.In))})
			n.In = append(n.In, shown(&x))
		case float64:
			call.Args = append(call.Args, validate.Operand{Kind: validate.IsNumber, Value: a})
			n.Attrs.Args = append(n.Attrs.Args, program.Arg{In: program.Number, Value: a})
		default:
			call.Args = append(call.Args, validate.Operand{})
			n.Attrs.Args = append(n.Attrs.Args, program.Arg{In: program.Absent})
		}
	}
	for _, r := range c.Results {
		if r == nil {
			call.Results = append(call.Results, validate.Tensor{At: -1})
			n.Attrs.Results = append(n.Attrs.Results, -1)
			continue
		}
		x := place(data[*r], false)
		call.Results = append(call.Results, x)
		n.Attrs.Results = append(n.Attrs.Results, int8(len(n.Out)))
		n.Out = append(n.Out, shown(&x))
	}
	return call
}

// Each calls f with the number of every element, counted row by row, and where it
// lies, in elements.
func Each(shape, strides []int64, f func(i int, at int64)) {
	idx := make([]int64, len(shape))
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	for i := range n {
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

// Put writes one number as a type has it.
func Put(b []byte, t graph.DType, v float64) {
	switch t {
	case graph.Float32:
		binary.LittleEndian.PutUint32(b, math.Float32bits(float32(v)))
	case graph.Float64:
		binary.LittleEndian.PutUint64(b, math.Float64bits(v))
	case graph.Int64:
		binary.LittleEndian.PutUint64(b, uint64(int64(v)))
	default:
		b[0] = byte(v)
	}
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
