//go:build cuda

package cuda

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/cpu"
	"github.com/memplan/memplan/validate/internal/cases"
)

// TestCases runs the single kernels that the CPU device compares with PyTorch, in
// both orders of dims, on the GPU and on the processor.
func TestCases(t *testing.T) {
	list, data, err := cases.Read(filepath.Join("..", "cpu", "testdata", "kernels.npz"))
	if err != nil {
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
	for i := range list {
		for _, swapped := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%d/swapped=%v", list[i].Kernel, i, swapped), func(t *testing.T) { runCase(t, &list[i], d, data, swapped) })
		}
	}
}

func runCase(t *testing.T, c *cases.Case, d *tandem, data map[string]*validate.Array, swapped bool) {
	top := int64(0)
	call := c.Call(data, func(a *validate.Array, values bool) validate.Tensor {
		x := validate.Tensor{At: top, DType: a.DType, Shape: a.Shape, Strides: rowMajor(a.Shape)}
		if swapped { // the first dim innermost
			n := int64(1)
			for k := range a.Shape {
				x.Strides[k] = n
				n *= max(a.Shape[k], 1)
			}
		}
		raw := cases.Bytes(a, x.Strides, values) // results start as NaNs
		top += padded(int64(len(raw)))
		if err := d.Device.Upload(x.At, raw); err != nil {
			t.Fatal(err)
		}
		return x
	})
	for range 4 { // more than any plan gives
		call.Scratch = append(call.Scratch, validate.Span{At: top, Bytes: 1 << 20})
		top += 1 << 20
	}
	if err := d.gpu.Supports(call.Node); err != nil {
		t.Skip(err)
	}
	work, err := d.gpu.Work(call.Node)
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
