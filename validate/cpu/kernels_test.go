package cpu_test

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	kernels "github.com/memplan/memplan/graph/kernel"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/cpu"
	"github.com/memplan/memplan/validate/internal/cases"
)

// A kernelCase is a case with a seed for its random numbers.
type kernelCase struct {
	cases.Case
	seed uint64
}

// A layout gives strides to a tensor: kernels must not care.
type layout struct {
	name    string
	strides func(shape []int64) []int64
}

var layouts = []layout{
	{"row-major", func(s []int64) []int64 { return spread(s, 1, false) }},
	{"columns first", func(s []int64) []int64 { return spread(s, 1, true) }},
	{"with gaps", func(s []int64) []int64 { return spread(s, 2, false) }},
}

// spread returns strides whose innermost is step: the last dim's, or the first's.
func spread(shape []int64, step int64, first bool) []int64 {
	st := make([]int64, len(shape))
	n := step
	for k := range shape {
		i := len(shape) - 1 - k
		if first {
			i = k
		}
		st[i] = n
		n *= max(shape[i], 1)
	}
	return st
}

// A bench is a device with an arena that is filled tensor by tensor.
type bench struct {
	t   *testing.T
	d   *cpu.Device
	top int64
}

// place puts an array into the arena; without values the place is full of NaNs.
func (b *bench) place(a *validate.Array, l layout, values bool) validate.ArenaView {
	t := validate.ArenaView{At: b.top, DType: a.DType, Shape: a.Shape, Strides: l.strides(a.Shape)}
	raw := cases.Bytes(a, t.Strides, values)
	b.top += (int64(len(raw)) + 255) / 256 * 256
	if err := b.d.Upload(t.At, raw); err != nil {
		b.t.Fatal(err)
	}
	return t
}

// fetch reads a tensor back.
func (b *bench) fetch(t *validate.ArenaView) *validate.Array {
	a := &validate.Array{Shape: t.Shape, DType: t.DType, Values: make([]float32, t.Elems())}
	size := t.DType.Bytes(1)
	raw := make([]byte, size)
	cases.Each(t.Shape, t.Strides, func(i int, at int64) {
		if err := b.d.Download(raw, t.At+at*size); err != nil {
			b.t.Fatal(err)
		}
		a.Values[i] = float32(cases.Number(raw, t.DType, 0))
	})
	return a
}

// run runs a case with operands and results laid out so, and returns the results.
func (c *kernelCase) run(t *testing.T, data map[string]*validate.Array, l layout) []*validate.Array {
	d := cpu.New()
	if err := d.Reserve(1 << 20); err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, d: d}
	call := c.Call(data, func(a *validate.Array, values bool) validate.ArenaView { return b.place(a, l, values) })
	call.Seed = c.seed
	if err := d.Supports(call.Node); err != nil {
		t.Fatal(err)
	}
	if err := d.Run(call); err != nil {
		t.Fatal(err)
	}
	for i, name := range c.After {
		if d := validate.Difference(b.fetch(&call.Args[i].Tensor), data[name]); d > 1e-5 {
			t.Errorf("operand %d differs by %.3g of its largest number afterwards", i, d)
		}
	}
	out := make([]*validate.Array, len(c.Results))
	for i := range c.Results {
		if call.Results[i].At >= 0 {
			out[i] = b.fetch(&call.Results[i])
		}
	}
	return out
}

// seeded runs a case that makes one result of random numbers.
func (c *kernelCase) seeded(t *testing.T, seed uint64, data map[string]*validate.Array) []float32 {
	c.seed = seed
	return c.run(t, data, layouts[0])[0].Values
}

// call is the case on one tensor.
func (c *kernelCase) call(x validate.ArenaView) *validate.Call {
	return &validate.Call{Node: &program.Node{Op: c.Kernel}, Kernel: c.Kernel, Args: []validate.Operand{{Kind: validate.OnDevice, Tensor: x}}, Results: []validate.ArenaView{x}}
}

func dropoutCall(x, mask, y validate.ArenaView, p float64) *validate.Call {
	n := &program.Node{Op: "native_dropout", Attrs: &program.Attrs{Scalars: []float64{p}}}
	return &validate.Call{Node: n, Kernel: n.Op, Args: []validate.Operand{{Kind: validate.OnDevice, Tensor: x}}, Results: []validate.ArenaView{mask, y}, Seed: 3}
}

// TestAgain: a batch norm that a schedule runs again leaves the running
// statistics alone.
func TestAgain(t *testing.T) {
	ones, stat := &validate.Array{Shape: []int64{2, 2}, DType: graph.Float32, Values: []float32{1, 2, 3, 4}}, &validate.Array{Shape: []int64{2}, DType: graph.Float32, Values: []float32{1, 1}}
	for _, again := range []bool{false, true} {
		d := cpu.New()
		if err := d.Reserve(1 << 16); err != nil {
			t.Fatal(err)
		}
		b := &bench{t: t, d: d}
		n := &program.Node{Op: "batch_norm", Attrs: &program.Attrs{Scalars: []float64{1e-5, 0.1, 1}}}
		call := &validate.Call{Node: n, Kernel: n.Op, Again: again}
		for _, a := range []*validate.Array{ones, stat, stat, stat, stat} {
			call.Args = append(call.Args, validate.Operand{Kind: validate.OnDevice, Tensor: b.place(a, layouts[0], true)})
		}
		for _, a := range []*validate.Array{ones, stat, stat} {
			call.Results = append(call.Results, b.place(a, layouts[0], false))
		}
		if err := d.Run(call); err != nil {
			t.Fatal(err)
		}
		if same := slices.Equal(b.fetch(&call.Args[3].Tensor).Values, stat.Values); same != again {
			t.Errorf("again: %v, statistics the same: %v", again, same)
		}
	}
}

// differ is the largest difference of two arrays where infinities and NaNs may
// stand in both.
func differ(a, b *validate.Array) float64 {
	x, y := &validate.Array{}, &validate.Array{}
	for i := range b.Values {
		v, w := a.Values[i], b.Values[i]
		if v != v && w != w || v == w {
			v, w = 0, 0
		}
		x.Values, y.Values = append(x.Values, v), append(y.Values, w)
		if v == 0 && w == 0 && !math.IsInf(float64(b.Values[i]), 0) && b.Values[i] == b.Values[i] { // keeps the scale
			x.Values, y.Values = append(x.Values, b.Values[i]), append(y.Values, b.Values[i])
		}
	}
	return validate.Difference(x, y)
}

// TestKernels compares single kernels with PyTorch and its autograd, with
// operands and results in several layouts.
func TestKernels(t *testing.T) {
	list, data, err := cases.Read(filepath.Join("testdata", "kernels.npz"))
	if err != nil {
		t.Fatal(err)
	}
	tested := map[string]bool{}
	for i := range list {
		c := &kernelCase{Case: list[i]}
		tested[c.Kernel] = true
		for _, l := range layouts {
			t.Run(fmt.Sprintf("%s/%d/%s", c.Kernel, i, l.name), func(t *testing.T) {
				for j, got := range c.run(t, data, l) {
					if got == nil {
						continue
					}
					if d := differ(got, data[*c.Results[j]]); d > 1e-5 {
						t.Errorf("result %d differs by %.3g of its largest number:\n%v\nPyTorch:\n%v", j, d, got.Values, data[*c.Results[j]].Values)
					}
				}
			})
		}
	}
	for i := range kernels.Table {
		if k := &kernels.Table[i]; !tested[k.Name] && !elsewhere(k) {
			t.Errorf("kernel %s has no case: write one in scripts/validation/kernel_reference.py and run it", k.Name)
		}
	}
}

// elsewhere reports a kernel without an answer to compare with here: a random one
// (TestRandom), one that does nothing or is refused, and the optimizer's (TestGolden).
func elsewhere(k *kernels.Kernel) bool {
	return k.Random && !strings.Contains(k.Name, "attention") || k.Nothing || k.Refused != "" || k.Rule
}
