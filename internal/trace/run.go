package trace

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
)

// A Resident is a tensor that a run puts on the GPU before its first step.
type Resident struct {
	Kind  string // param, buffer, input
	Name  string
	Bytes int64
}

//go:embed testdata/residents.json
var residentsJSON []byte

// Residents returns the parameters, buffers and inputs of a model of the
// traces in the order in which PyTorch makes them: module.to(device) visits
// children before the module's own tensors, then the inputs follow.
func Residents(model string, batch int64) ([]Resident, error) {
	var all map[string]struct {
		Tensors [][3]any
		Inputs  []int64 // bytes of one sample
	}
	if err := json.Unmarshal(residentsJSON, &all); err != nil {
		return nil, fmt.Errorf("residents: %w", err)
	}
	m, ok := all[model]
	if !ok {
		return nil, fmt.Errorf("residents of model %q are unknown", model)
	}
	var out []Resident
	for _, t := range m.Tensors {
		kind, _ := t[0].(string)
		name, _ := t[1].(string)
		bytes, _ := t[2].(float64)
		out = append(out, Resident{kind, name, int64(bytes)})
	}
	for i, n := range m.Inputs {
		out = append(out, Resident{"input", fmt.Sprint(i), n * batch})
	}
	return out, nil
}

// An Op is one step of a Run: slot gets memory or gives it back.
type Op struct {
	Slot  int32
	Free  bool
	Phase byte  // as of Event; M for what comes before the first step
	Bytes int64 // as requested
	Event int32 // index in Trace.Events, -1 for what is not in the trace
}

// A Run is what a training process asks of the allocator from its start on,
// rebuilt from the trace of one steady step: residents; a first step, which
// frees no gradients and also makes library workspaces and optimizer state;
// then steps that are all alike. Every slot is empty when an Op fills it.
type Run struct {
	Slots  int
	Setup  []Op
	First  []Op
	Steady []Op
}

// Workspaces are what a thread's library handles allocate for good, in bytes,
// when it first uses them; the autograd engine runs backward passes in a
// thread of its own.
type Workspaces struct {
	CuBLAS   int64 // made by the thread's first matrix product
	CuBLASLt int64 // made by its first product with a bias, addmm, after that; 0 for none
}

// Hopper are the workspaces seen with torch 2.11 on an H200.
var Hopper = Workspaces{CuBLAS: 32 << 20, CuBLASLt: 1 << 20}

// matmuls are the ATen calls that reach for a cuBLAS handle.
var matmuls = []string{"addmm", "mm", "bmm", "baddbmm"}

// Run rebuilds the run of a trace on one GPU. It is an error if what the
// trace frees at its start are not the gradients that it leaves alive.
func (t *Trace) Run(ws Workspaces) (*Run, error) {
	res, err := Residents(t.Name, t.Batch)
	if err != nil {
		return nil, err
	}
	b := runBuilder{t: t, r: &Run{Slots: t.Allocations}}
	for _, r := range res {
		b.r.Setup = append(b.r.Setup, b.fresh('M', r.Bytes))
	}
	if err := b.grads(); err != nil {
		return nil, err
	}
	b.steps(ws)
	return b.r, nil
}

type runBuilder struct {
	t        *Trace
	r        *Run
	left     []int   // ids alive at the end of the step: gradients
	params   []int64 // bytes of the gradients in the optimizer's order
	stateful bool
}

// fresh returns an Op that fills a slot of its own for good.
func (b *runBuilder) fresh(phase byte, bytes int64) Op {
	b.r.Slots++
	return Op{Slot: int32(b.r.Slots - 1), Phase: phase, Bytes: bytes, Event: -1}
}

// grads finds the allocations that outlive the step and compares them with
// what the step frees of the one before.
func (b *runBuilder) grads() error {
	bytes := make([]int64, b.t.Allocations)
	alive := make([]bool, b.t.Allocations)
	for i := range b.t.Events {
		switch e := &b.t.Events[i]; e.Kind {
		case Alloc:
			bytes[e.ID], alive[e.ID] = e.Bytes, true
		case Free:
			alive[e.ID] = false
		case FreeOld:
			if _, ok := e.Grad(); !ok {
				return fmt.Errorf("free of something old that is no gradient: %q", e.Op)
			}
			b.params = append(b.params, e.Bytes)
		}
	}
	var made []int64
	for id, on := range alive {
		if on {
			b.left = append(b.left, id)
			made = append(made, bytes[id])
		}
	}
	if !slices.Equal(slices.Sorted(slices.Values(made)), slices.Sorted(slices.Values(b.params))) {
		return fmt.Errorf("%d allocations outlive the step, %d gradients of the step before are freed, and their sizes differ", len(made), len(b.params))
	}
	return nil
}

// steps writes the first and the steady step from the events.
func (b *runBuilder) steps(ws Workspaces) {
	r, ev := b.r, b.t.Events
	for _, id := range b.left {
		r.Steady = append(r.Steady, Op{Slot: int32(id), Free: true, Phase: 'Z', Event: -1})
	}
	var blas, lt [256]bool // phases whose thread has its workspace
	for i := range ev {
		e := &ev[i]
		if e.Kind != Alloc && e.Kind != Free {
			continue
		}
		if e.Phase == 'O' && !b.stateful && b.t.Opt == "adamw" {
			b.states()
		}
		op := Op{Slot: int32(e.ID), Free: e.Free, Phase: e.Phase, Bytes: e.Bytes, Event: int32(i)}
		r.First, r.Steady = append(r.First, op), append(r.Steady, op)
		if e.Kind != Alloc {
			continue
		}
		if !blas[e.Phase] && ws.CuBLAS > 0 && slices.Contains(matmuls, e.Inner) {
			blas[e.Phase] = true
			r.First = append(r.First, b.fresh(e.Phase, ws.CuBLAS))
		}
		if !lt[e.Phase] && ws.CuBLASLt > 0 && e.Inner == "addmm" {
			lt[e.Phase] = true
			r.First = append(r.First, b.fresh(e.Phase, ws.CuBLASLt))
		}
	}
}

// states makes the two moments of every parameter, one parameter after the
// other, before anything else in the first optimizer step.
func (b *runBuilder) states() {
	b.stateful = true
	for _, n := range b.params {
		b.r.First = append(b.r.First, b.fresh('O', n), b.fresh('O', n))
	}
}

// An Allocator is what Play needs of an allocator model. Sizes are bytes.
type Allocator[H any] interface {
	Alloc(size int64) (H, error)
	Free(H)
}

// Step returns the operations of step i, counting from 0.
func (r *Run) Step(i int) []Op {
	if i == 0 {
		return r.First
	}
	return r.Steady
}

// Play plays operations, one part of a Run, on an allocator. slots keeps the
// handles from part to part and is as long as Run.Slots. After each operation
// seen is called, unless it is nil. It ends with the first error.
func Play[H any](a Allocator[H], slots []H, ops []Op, seen func(Op)) error {
	for _, op := range ops {
		if op.Free {
			a.Free(slots[op.Slot])
		} else {
			h, err := a.Alloc(op.Bytes)
			if err != nil {
				return fmt.Errorf("slot %d, event %d: %w", op.Slot, op.Event, err)
			}
			slots[op.Slot] = h
		}
		if seen != nil {
			seen(op)
		}
	}
	return nil
}
