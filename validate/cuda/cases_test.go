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
// several layouts, on the GPU and on the processor.
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
		for _, l := range caseLayouts {
			t.Run(fmt.Sprintf("%s/%d/%s", list[i].Kernel, i, l.name), func(t *testing.T) { runCase(t, &list[i], d, data, l.strides) })
		}
	}
}

// caseLayouts are orders of dims in memory: row-major, the first dim innermost,
// and row-major with a gap behind every element.
var caseLayouts = []struct {
	name    string
	strides func(shape []int64) []int64
}{
	{"rows", rowMajor},
	{"swapped", func(shape []int64) []int64 {
		out, n := make([]int64, len(shape)), int64(1)
		for k := range shape {
			out[k] = n
			n *= max(shape[k], 1)
		}
		return out
	}},
	{"gaps", func(shape []int64) []int64 {
		out := rowMajor(shape)
		for k := range out {
			out[k] *= 2
		}
		return out
	}},
}

func runCase(t *testing.T, c *cases.Case, d *tandem, data map[string]*validate.Array, strides func([]int64) []int64) {
	top := int64(0)
	call := c.Call(data, func(a *validate.Array, values bool) validate.Tensor {
		x := validate.Tensor{At: top, DType: a.DType, Shape: a.Shape, Strides: strides(a.Shape)}
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
