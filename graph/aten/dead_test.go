package aten_test

import (
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/liveness"
)

// A branch that the loss does not need keeps what it saved until its last result
// goes, which a variable names until the end of the forward pass; none of it
// counts as saved for backward.
func TestBranchWithoutLoss(t *testing.T) {
	e := aten.New(aten.Config{})
	e.P.Train = true
	e.SetGrad(true)
	e.SetPhase(program.Forward)
	p := e.Place(aten.Placed{DType: graph.Float32, Shape: []int64{1 << 20}, Strides: []int64{1}, Elems: 1 << 20}, true)
	run := func(op string, x *aten.Tensor) *aten.Tensor {
		out, err := e.Run(&aten.Call{Op: op, Over: "default", Name: op, Args: []aten.Arg{{Kind: graph.ArgValue, T: x}}, Shapes: [][]int64{x.Shape}, Types: []graph.DType{x.DType}})
		if err != nil {
			t.Fatal(err)
		}
		return out[0]
	}
	dead := run("exp", p) // saves its result
	last := run("relu", run("sin", dead))
	y := run("exp", p)
	e.Hold(last)
	z := run("exp", y)
	loss := e.Tail([]*aten.Tensor{z}, "like")
	e.SetPhase(program.Backward)
	saved := len(e.P.Saved)
	e.Backward(loss, aten.Host(graph.Float32, nil))
	if len(e.P.Saved) >= saved {
		t.Errorf("%d storages are saved for backward, of %d", len(e.P.Saved), saved)
	}
	_, steady := liveness.Steps(e.P)
	alive := map[program.StorageID]bool{}
	for _, ev := range steady.Events {
		if e.P.Nodes[ev.Node].Name == "exp" && !ev.Free && ev.Storage == z.Storage {
			break
		}
		alive[ev.Storage] = !ev.Free
	}
	if alive[dead.Storage] || alive[last.Storage] {
		t.Error("the branch outlives its last result")
	}
	for _, ev := range steady.Events {
		if ev.Storage == y.Storage {
			break
		}
		if ev.Free && ev.Storage == dead.Storage {
			t.Error("what the branch saved goes before its last result")
		}
	}
}
