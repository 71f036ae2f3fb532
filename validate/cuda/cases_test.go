//go:build cuda

package cuda

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/internal/cases"
)

// TestCases runs the single kernels that the CPU device compares with PyTorch, in
// several layouts, on the GPU and on the processor.
func TestCases(t *testing.T) {
	list, data, err := cases.Read(filepath.Join("..", "cpu", "testdata", "kernels.npz"))
	if err != nil {
		t.Fatal(err)
	}
	bench, d := onBoth(t, Options{FP32: true}, 64<<20)
	for i := range list {
		for _, l := range caseLayouts {
			t.Run(fmt.Sprintf("%s/%d/%s", list[i].Kernel, i, l.name), func(t *testing.T) { runCase(bench.in(t), d, &list[i], data, l.strides) })
		}
	}
}

// caseLayouts are orders of dims in memory: row-major, the first dim innermost,
// and row-major with a gap behind every element.
var caseLayouts = []struct {
	name    string
	strides func(shape []int64) []int64
}{
	{"rows", validate.RowMajor},
	{"swapped", func(shape []int64) []int64 {
		out, n := make([]int64, len(shape)), int64(1)
		for k := range shape {
			out[k] = n
			n *= max(shape[k], 1)
		}
		return out
	}},
	{"gaps", func(shape []int64) []int64 {
		out := validate.RowMajor(shape)
		for k := range out {
			out[k] *= 2
		}
		return out
	}},
}

func runCase(b *bench, d *tandem, c *cases.Case, data map[string]*validate.Array, strides func([]int64) []int64) {
	call := c.Call(data, func(a *validate.Array, values bool) validate.ArenaView {
		x := b.place(a.DType, strides(a.Shape), a.Shape)
		b.upload(x.At, cases.Bytes(a, x.Strides, values)) // results start as NaNs
		return *x
	})
	if err := d.gpu.Supports(call.Node); err != nil {
		b.t.Skip(err)
	}
	d.room(b.t, call, *b.top)
	b.do(b, call)
}
