package cpu_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/planner/profile"
	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/cpu"
	"github.com/memplan/memplan/validate/internal/cases"
)

// notRun are the optimizers of the table that the device does not have.
var notRun = []string{"adamw-8bit"} // states of one byte

// updates is how many steps scripts/validation/kernel_reference.py took.
const updates = 8

// TestOptimizers: every optimizer of the table, with the states that the table
// gives it, moves three parameters as PyTorch's does, step by step.
func TestOptimizers(t *testing.T) {
	data, err := validate.ReadNPZ(filepath.Join("testdata", "optimizers.npz"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range profile.Optimizers {
		o := &profile.Optimizers[i]
		n := &program.Node{Op: "step", Attrs: &program.Attrs{Rule: &program.Rule{Optimizer: o.Name}}}
		if err := cpu.New().Supports(n); err != nil {
			if !slices.Contains(notRun, o.Name) {
				t.Errorf("%s: %v", o.Name, err)
			}
			continue
		}
		if o.Name != "none" {
			t.Run(o.Name, func(t *testing.T) { optimize(t, o, n, data) })
		}
	}
}

// optimize runs the steps of one optimizer.
func optimize(t *testing.T, o *profile.Optimizer, n *program.Node, data map[string]*validate.Array) {
	d := cpu.New()
	if err := d.Reserve(1 << 16); err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, d: d}
	call := &validate.Call{Node: n, Kernel: "step"}
	for i := 0; data[fmt.Sprintf("start:%d", i)] != nil; i++ {
		a := data[fmt.Sprintf("start:%d", i)]
		shape := profile.Param{Elems: int64(len(a.Values)), DType: a.DType, Dims: a.Shape}
		q := program.RuleParam{Name: fmt.Sprint("parameter ", i)}
		var spans []validate.Span
		for _, s := range o.States {
			one := profile.Optimizer{States: []profile.State{s}}
			if bytes := one.StateBytes(shape); !s.CPU && bytes > 0 {
				q.States = append(q.States, program.RuleState{Name: s.Name, Bytes: bytes})
				spans = append(spans, validate.Span{At: b.top, Bytes: bytes})
				if err := d.Fill(b.top, bytes, map[bool]byte{false: 0xff}[o.When == profile.AtConstruction]); err != nil {
					t.Fatal(err)
				}
				b.top += (bytes + 255) / 256 * 256
			}
		}
		n.Attrs.Rule.Params = append(n.Attrs.Rule.Params, q)
		call.States = append(call.States, spans)
		for _, x := range []*validate.Array{a, data[fmt.Sprintf("grad:%d:1", i)]} {
			call.Args = append(call.Args, validate.Operand{Kind: validate.OnDevice, Tensor: b.place(x, layouts[0], true)})
		}
	}
	for step := 1; step <= updates; step++ {
		call.Step, n.Attrs.Rule.First = step, step == 1
		for i := range n.Attrs.Rule.Params {
			g := &call.Args[2*i+1].Tensor
			values := data[fmt.Sprintf("grad:%d:%d", i, step)].Values
			cases.Each(g.Shape, g.Strides, func(j int, at int64) {
				raw := make([]byte, 4)
				cases.Put(raw, g.DType, float64(values[j]))
				if err := d.Upload(g.At+4*at, raw); err != nil {
					t.Fatal(err)
				}
			})
		}
		if err := d.Run(call); err != nil {
			t.Fatal(err)
		}
		for i := range n.Attrs.Rule.Params {
			want := data[fmt.Sprintf("%s:%d:%d", o.Name, i, step)]
			if want == nil {
				if step == 1 || step == updates {
					t.Fatalf("scripts/validation/kernel_reference.py has no step %d of %s", step, o.Name)
				}
				continue
			}
			if x := validate.Difference(b.fetch(&call.Args[2*i].Tensor), want); x > 2e-6 {
				t.Errorf("step %d, parameter %d differs by %.3g of its largest number", step, i, x)
			}
		}
	}
}
