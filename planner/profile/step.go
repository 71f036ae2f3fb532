package profile

import (
	"slices"

	"github.com/memplan/memplan/graph"
)

// An Event is one allocation or free on the GPU.
type Event struct {
	ID    int32 // counts the allocations of a step from 0
	Free  bool
	Bytes int64  // as requested, before the allocator rounds
	Param int32  // index of the tensor's parameter, -1 for none
	Name  string // of the state or temporary list
	State bool   // kept after the step
}

// Construct returns what the optimizer's constructor allocates: the states with
// AtConstruction.
func (o *Optimizer) Construct(params []Param) []Event {
	r := run{o: o, params: params}
	if o.When == AtConstruction {
		r.createAll()
	}
	return r.events
}

// Step returns the allocations and frees of one step() over params, in order;
// first is set for the optimizer's first step. Parameters without elements have
// none. It takes time linear in the number of events.
func (o *Optimizer) Step(params []Param, first bool) []Event {
	r := run{o: o, params: params, first: first}
	if first && o.When == InFirstStep {
		r.createAll()
	}
	for _, group := range o.groups(params) {
		for _, a := range o.Update {
			r.do(a, group)
		}
	}
	for _, a := range o.Update {
		r.free(a.Name)
		r.free(a.To)
	}
	return r.events
}

// groups returns the indices of the parameters of each update: one each, or
// those of a dtype. PyTorch keeps the groups in a hash table that iterates in
// the reverse of the order in which their dtypes first appear.
func (o *Optimizer) groups(params []Param) [][]int32 {
	var out [][]int32
	at := map[graph.DType]int{}
	for i, p := range params {
		g, seen := at[p.DType]
		if o.Each || !seen {
			g = len(out)
			at[p.DType] = g
			out = append(out, nil)
		}
		out[g] = append(out[g], int32(i))
	}
	if !o.Each {
		slices.Reverse(out)
	}
	return out
}

// A run interprets the actions of one step.
type run struct {
	o      *Optimizer
	params []Param
	first  bool
	events []Event
	next   int32
	lists  map[string][]Event // the allocations bound to each name
}

func (r *run) do(a Action, group []int32) {
	switch a.Op {
	case Alloc:
		if a.Of != Whole && r.params[group[0]].bytes(a.Of) == 0 {
			return // the line does not run for such a parameter
		}
		r.bind(a.Name, r.alloc(a.Name, group, a.Of, false))
	case Free:
		r.free(a.Name)
	case Move:
		list := r.lists[a.Name]
		delete(r.lists, a.Name)
		r.bind(a.To, list)
	case Create:
		if r.first {
			r.alloc(a.Name, group, Whole, true)
		}
	}
}

// createAll allocates every state of every parameter.
func (r *run) createAll() {
	for i := range r.params {
		for _, s := range r.o.States {
			if !s.CPU {
				r.alloc(s.Name, []int32{int32(i)}, s.Of, true)
			}
		}
	}
}

// alloc allocates a list over group and returns its allocations. A tensor
// without elements gets no memory.
func (r *run) alloc(name string, group []int32, of Shape, state bool) []Event {
	start := len(r.events)
	for _, i := range group {
		if n := r.params[i].bytes(of); n > 0 {
			r.events = append(r.events, Event{ID: r.next, Bytes: n, Param: i, Name: name, State: state})
			r.next++
		}
	}
	return slices.Clone(r.events[start:])
}

func (r *run) bind(name string, list []Event) {
	r.free(name)
	if r.lists == nil {
		r.lists = map[string][]Event{}
	}
	r.lists[name] = list
}

// free frees the list bound to name, if any, from its end.
func (r *run) free(name string) {
	for _, e := range slices.Backward(r.lists[name]) {
		e.Free = true
		r.events = append(r.events, e)
	}
	delete(r.lists, name)
}

// ScalerEvents are the allocations of a GradScaler: tensors of one element, so
// each takes the allocator's smallest block. Event ids are the scaler's own.
type ScalerEvents struct {
	// Init happens in the first scale(loss); both tensors stay.
	Init []Event
	// Step happens in step(optimizer) before the optimizer's own events. Its
	// one tensor still alive is freed by Update.
	Step []Event
	// FusedBefore and FusedAfter replace Step around the events of a fused
	// optimizer, which itself unscales the gradients.
	FusedBefore, FusedAfter []Event
	// Update happens in update(); the id is that of Step or FusedBefore.
	Update, FusedUpdate []Event
}

// Scaler was measured with PyTorch 2.11 (testdata/torch-2.11-h200.json).
var Scaler = ScalerEvents{
	Init: []Event{scalar(0, "scale", 4), scalar(1, "growth_tracker", 4)},
	Step: []Event{
		scalar(0, "scale.double", 8), scalar(1, "reciprocal", 8), freed(0, "scale.double", 8),
		scalar(2, "inv_scale", 4), freed(1, "reciprocal", 8),
		scalar(3, "found_inf", 4), scalar(4, "device_found_inf", 4), scalar(5, "device_inv_scale", 4),
		freed(5, "device_inv_scale", 4), freed(2, "inv_scale", 4), freed(3, "found_inf", 4),
	},
	Update: []Event{freed(4, "device_found_inf", 4)},
	FusedBefore: []Event{
		scalar(0, "inv_scale", 4), scalar(1, "found_inf", 4), scalar(2, "device_found_inf", 4), scalar(3, "device_inv_scale", 4),
		freed(3, "device_inv_scale", 4), freed(0, "inv_scale", 4), freed(1, "found_inf", 4),
		scalar(4, "sum", 4), scalar(5, "grad_scale", 4),
	},
	FusedAfter:  []Event{freed(5, "grad_scale", 4), freed(4, "sum", 4)},
	FusedUpdate: []Event{freed(2, "device_found_inf", 4)},
}

func scalar(id int32, name string, bytes int64) Event {
	return Event{ID: id, Bytes: bytes, Param: -1, Name: name}
}

func freed(id int32, name string, bytes int64) Event {
	e := scalar(id, name, bytes)
	e.Free = true
	return e
}
