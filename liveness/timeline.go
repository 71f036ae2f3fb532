// Package liveness turns a program into the timeline of its allocations and
// frees, finds when each storage lives, where the peak is and who is live
// there, and replays the timeline on an allocator model.
//
// A storage dies after the last node that reads or holds it:
//
//	node        0      1      2      3
//	x           ███████████████              allocated by 0, last read by 2
//	y                  ███████████████       allocated by 1, last read by 3
//	workspace          ███                   allocated and freed inside 1
package liveness

import (
	"slices"

	"github.com/memplan/memplan/graph/program"
)

// An Event is one allocation or free of a step's timeline.
type Event struct {
	Storage program.StorageID
	Node    int32 // index in Program.Nodes
	Free    bool
	Old     bool // frees the previous step's storage of that id (gradients)
}

// A Timeline is the events of one step in order. First steps also create
// State storages (optimizer state, library workspaces).
type Timeline struct {
	Program *program.Program
	Events  []Event
	First   bool
}

// Ranges holds for each storage the nodes that allocate it and that read it last,
// -1 for none.
type Ranges struct{ Start, End []int32 }

// NewRanges computes the live range of every storage in one pass over the
// nodes: O(nodes + reads).
func NewRanges(p *program.Program) Ranges {
	n := len(p.Storages)
	r := Ranges{make([]int32, n), make([]int32, n)}
	for i := range n {
		r.Start[i], r.End[i] = -1, -1
	}
	for i := range p.Nodes {
		nd := &p.Nodes[i]
		for _, ev := range nd.Events {
			if !ev.Free {
				r.Start[ev.Storage] = int32(i)
			}
			r.End[ev.Storage] = int32(i)
		}
		for _, id := range nd.Reads {
			r.End[id] = int32(i)
		}
		for _, id := range nd.Holds {
			r.End[id] = int32(i)
		}
	}
	return r
}

// Steps returns the timelines of the first step and of a steady one.
func Steps(p *program.Program) (first, steady *Timeline) {
	r := NewRanges(p)
	return newTimeline(p, r, true, false), newTimeline(p, r, false, false)
}

// Second returns the timeline of the second step, which differs from a steady
// one if some nodes run only in it.
func Second(p *program.Program) *Timeline { return newTimeline(p, NewRanges(p), false, true) }

func newTimeline(p *program.Program, r Ranges, first, second bool) *Timeline {
	t := &Timeline{Program: p, First: first, Events: make([]Event, 0, 2*len(p.Storages))}
	freed := make([]bool, len(p.Storages))
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Only == program.FirstStep && !first || n.Only == program.LaterSteps && first || n.Only == program.SecondStep && !second {
			continue
		}
		t.node(int32(i), n, &r, freed)
		if n.Phase == program.ZeroGrad && !first {
			for _, id := range p.Carried {
				t.Events = append(t.Events, Event{Storage: id, Node: int32(i), Free: true, Old: true})
			}
		}
	}
	return t
}

// node appends the events of one node: those inside the call, then the frees of
// what is no longer read: operands that the call made for itself, results that
// nothing uses, operands that no variable names, and what variables release, in
// the order the node lists them.
func (t *Timeline) node(i int32, n *program.Node, r *Ranges, freed []bool) {
	p := t.Program
	for _, ev := range n.Events {
		if p.Storages[ev.Storage].Life == program.State && !t.First && n.Only != program.SecondStep {
			continue
		}
		if ev.Free {
			freed[ev.Storage] = true
		}
		t.Events = append(t.Events, Event{Storage: ev.Storage, Node: i, Free: ev.Free})
	}
	free := func(id program.StorageID) {
		if r.End[id] == i && !freed[id] && r.Start[id] >= 0 && p.Storages[id].Life == program.Step {
			freed[id] = true
			t.Events = append(t.Events, Event{Storage: id, Node: i, Free: true})
		}
	}
	within := func(id program.StorageID) bool {
		return n.Call >= 0 && r.Start[id] >= 0 && p.Nodes[r.Start[id]].Call == n.Call
	}
	for _, id := range n.Reads { // what the call made for itself
		if within(id) && !slices.Contains(n.Holds, id) {
			free(id)
		}
	}
	for _, ev := range n.Events { // unused results
		free(ev.Storage)
	}
	for _, id := range n.Reads { // what no variable names is freed when the call returns
		if !slices.Contains(n.Holds, id) {
			free(id)
		}
	}
	for _, id := range n.Holds {
		free(id)
	}
}

// Bytes returns the bytes of an event's storage.
func (t *Timeline) Bytes(e Event) int64 { return t.Program.Storages[e.Storage].Bytes }
