package aten

import (
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// TestMixedRMSNorm: what autograd saves of Linear(32, 64), RMSNorm(64), Linear(64, 32)
// on 8 samples under autocast, by PyTorch 2.11 and 2.15 on fake tensors.
func TestMixedRMSNorm(t *testing.T) {
	for wide, want := range map[bool]int64{false: 10016, true: 7968} {
		e := New(Config{Autocast: graph.BFloat16, RMSNormFloat32: wide})
		e.SetGrad(true)
		e.SetPhase(program.Forward)
		operand := func(param bool, shape ...int64) Arg {
			return tensorArg(e.Resident("operand", "", program.Inputs, graph.Float32, shape, param))
		}
		run := func(op string, args ...Arg) Arg {
			out, err := e.Run(&Call{Op: op, Name: op, Args: args})
			if err != nil {
				t.Fatal(err)
			}
			return tensorArg(out[0])
		}
		a := run("linear", operand(false, 8, 32), operand(true, 64, 32), operand(true, 64))
		n := run("rms_norm", a, Arg{Kind: graph.ArgList, List: []Arg{{Kind: graph.ArgInt, Int: 64}}}, operand(true, 64))
		if got := n.T.DType; got != map[bool]graph.DType{false: graph.BFloat16, true: graph.Float32}[wide] {
			t.Errorf("cast by autocast %v: the result is %v", wide, got)
		}
		run("linear", n, operand(true, 32, 64), operand(true, 32))
		if got := savedBytes(e); got != want {
			t.Errorf("cast by autocast %v: saves %d bytes, PyTorch %d", wide, got, want)
		}
	}
}

// savedBytes adds up the distinct storages that autograd saved.
func savedBytes(e *Eager) (n int64) {
	seen := map[program.StorageID]bool{}
	for _, id := range e.P.Saved {
		if !seen[id] {
			seen[id] = true
			n += e.P.Storages[id].Bytes
		}
	}
	return n
}
