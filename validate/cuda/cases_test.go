//go:build cuda

package cuda

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/cpu"
)

// A kernelCase is one of scripts/kernel_goldens.py.
type kernelCase struct {
	Kernel  string
	Args    []any // names of arrays, numbers, or nil
	Results []*string
	Scalars []float64
	Dims    []int64
	Mode    string
	Conv    *program.Conv
	Pool    *program.Pool
	Window  *program.Window
}

// TestCases runs the single kernels that the CPU device compares with PyTorch, in
// both orders of dims, on the GPU and on the processor.
func TestCases(t *testing.T) {
	data, err := validate.ReadNPZ(filepath.Join("..", "cpu", "testdata", "kernels.npz"))
	if err != nil {
		t.Fatal(err)
	}
	text := make([]byte, len(data["cases"].Values))
	for i, v := range data["cases"].Values {
		text[i] = byte(v)
	}
	var cases []kernelCase
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	gpu, err := Open(Options{FP32: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := gpu.Close(); err != nil {
			t.Error(err)
		}
	}()
	d := &tandem{Device: cpu.New(), gpu: gpu, worst: map[string]float64{}, calls: map[string]int{}}
	if err := d.Reserve(64 << 20); err != nil {
		t.Fatal(err)
	}
	for i := range cases {
		for _, swapped := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%d/swapped=%v", cases[i].Kernel, i, swapped), func(t *testing.T) { cases[i].run(t, d, data, swapped) })
		}
	}
}

func (c *kernelCase) run(t *testing.T, d *tandem, data map[string]*validate.Array, swapped bool) {
	top := int64(0)
	place := func(a *validate.Array, values bool) validate.Tensor {
		x := validate.Tensor{At: top, DType: a.DType, Shape: a.Shape, Strides: rowMajor(a.Shape)}
		if swapped { // the first dim innermost
			n := int64(1)
			for k := range a.Shape {
				x.Strides[k] = n
				n *= max(a.Shape[k], 1)
			}
		}
		top += (extent(&x) + 255) / 256 * 256
		raw := bytes.Repeat([]byte{0xff}, int(extent(&x))) // results start as NaNs
		for i := range int(x.Elems()) {
			if !values {
				break
			}
			at, rest := int64(0), int64(i)
			for k := len(x.Shape) - 1; k >= 0; k-- {
				at += rest % x.Shape[k] * x.Strides[k]
				rest /= x.Shape[k]
			}
			set(raw, x.DType, at, a.Values[i])
		}
		if err := d.Device.Upload(x.At, raw); err != nil {
			t.Fatal(err)
		}
		return x
	}
	n := &program.Node{Op: c.Kernel, Kernel: c.Kernel, Attrs: &program.Attrs{Scalars: c.Scalars, Dims: c.Dims, Mode: c.Mode, Conv: c.Conv, Pool: c.Pool, Window: c.Window}}
	call := &validate.Call{Node: n, Kernel: c.Kernel}
	for _, a := range c.Args {
		switch a := a.(type) {
		case string:
			x := place(data[a], true)
			call.Args = append(call.Args, onDevice(&x))
			n.Attrs.Args = append(n.Attrs.Args, program.Arg{In: int32(len(n.In))})
			n.In = append(n.In, program.Tensor{DType: x.DType, Shape: x.Shape, Strides: x.Strides})
		case float64:
			call.Args = append(call.Args, number(a))
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
		n.Out = append(n.Out, program.Tensor{DType: x.DType, Shape: x.Shape, Strides: x.Strides})
	}
	for range 4 { // more than any plan gives
		call.Scratch = append(call.Scratch, validate.Span{At: top, Bytes: 1 << 20})
		top += 1 << 20
	}
	if err := d.gpu.Supports(n); err != nil {
		t.Skip(err)
	}
	work, err := d.gpu.Work(n)
	if err != nil {
		t.Fatal(err)
	}
	call.Work = validate.Span{At: top, Bytes: work}
	d.faults = nil
	if err := d.Run(call); err != nil {
		t.Fatal(err)
	}
	for _, f := range d.faults {
		t.Error(f)
	}
}

// set writes one number.
func set(b []byte, d graph.DType, i int64, v float32) {
	switch d {
	case graph.Float32:
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(v))
	case graph.Float64:
		binary.LittleEndian.PutUint64(b[8*i:], math.Float64bits(float64(v)))
	case graph.Int64:
		binary.LittleEndian.PutUint64(b[8*i:], uint64(int64(v)))
	default:
		b[i] = byte(v)
	}
}
