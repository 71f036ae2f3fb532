package profile

import (
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/internal/testdata"
	"github.com/memplan/memplan/internal/trace"
)

// The optimizer phase of every real step in the shared traces: parameters are
// the gradients that zero_grad frees, in the optimizer's order.
func TestStepTraces(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(testdata.Shared(t, "truth", "traces"), "*.trace.xz"))
	if err != nil || len(files) < 40 {
		t.Fatalf("%d traces, %v", len(files), err)
	}
	for _, file := range files {
		tr, err := trace.Read(file)
		if err != nil {
			t.Fatal(err)
		}
		o, err := FindOptimizer(tr.Opt)
		if err != nil {
			t.Fatal(err)
		}
		params, want := optimizerPhase(tr)
		got := o.Step(params, false)
		if len(params) == 0 || len(got) != len(want) {
			t.Errorf("%s: %d parameters, %d events, want %d", filepath.Base(file), len(params), len(got), len(want))
			continue
		}
		for i, e := range got {
			if w := want[i]; int(e.ID) != w.ID || e.Free != w.Free || e.Bytes != w.Bytes {
				t.Errorf("%s: event %d is %+v, want %+v", filepath.Base(file), i, e, w)
				break
			}
		}
	}
}

// optimizerPhase returns the parameters of a traced step, and its events of
// the optimizer with ids counted from 0.
func optimizerPhase(tr *trace.Trace) ([]Param, []trace.Event) {
	var params []Param
	var events []trace.Event
	base := -1
	for _, e := range tr.Events {
		switch {
		case e.Phase == 'Z' && e.Free && strings.HasPrefix(e.Op, "grad"):
			params = append(params, Param{Elems: e.Bytes / 4, DType: graph.Float32})
		case e.Phase == 'O':
			if base < 0 {
				base = e.ID
			}
			e.ID -= base
			events = append(events, e)
		}
	}
	return params, events
}

// Whatever the parameters: ids are dense, a free names a live temporary of the
// same size, states stay, every temporary goes, and the second step creates none.
func TestStepBalances(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	dtypes := []graph.DType{graph.Float32, graph.Float16, graph.BFloat16, graph.Float64}
	for i := range Optimizers {
		o := &Optimizers[i]
		for range 50 {
			params := make([]Param, rng.IntN(8))
			for j := range params {
				params[j] = Param{Elems: rng.Int64N(4), DType: dtypes[rng.IntN(len(dtypes))]}
			}
			var state int64
			for _, p := range params {
				state += o.StateBytes(p)
			}
			made := checkBalance(t, o, o.Construct(params)) + checkBalance(t, o, o.Step(params, true))
			if made != state {
				t.Errorf("%s: %d bytes of state made, want %d", o.Name, made, state)
			}
			if again := checkBalance(t, o, o.Step(params, false)); again != 0 {
				t.Errorf("%s: a later step makes %d bytes of state", o.Name, again)
			}
		}
	}
}

// checkBalance returns the bytes of state that events leave behind.
func checkBalance(t *testing.T, o *Optimizer, events []Event) int64 {
	t.Helper()
	live := map[int32]Event{}
	var next int32
	for _, e := range events {
		if e.Free {
			a, ok := live[e.ID]
			if a.Free = true; !ok || a != e || e.State {
				t.Fatalf("%s: frees %+v, allocated %+v", o.Name, e, a)
			}
			delete(live, e.ID)
			continue
		}
		if e.ID != next || e.Bytes <= 0 {
			t.Fatalf("%s: allocation %+v, want id %d", o.Name, e, next)
		}
		next++
		live[e.ID] = e
	}
	var state int64
	for _, e := range live {
		if !e.State {
			t.Fatalf("%s: %+v is never freed", o.Name, e)
		}
		state += e.Bytes
	}
	return state
}
