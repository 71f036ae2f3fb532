package liveness

import "github.com/memplan/memplan/graph/program"

// Round is the allocator's granularity in bytes: no request takes less.
const Round = 512

// Rounded returns the least that an allocator charges for n requested bytes.
func Rounded(n int64) int64 { return (n + Round - 1) / Round * Round }

// Levels holds live bytes along a timeline, with every storage rounded up to
// Round: a lower bound for any allocator model.
type Levels struct {
	Before []int64 // at the start of each node
	Peak   []int64 // highest during each node
	Start  int64   // at the start of the step
	Max    int64   // highest of the step
}

// LevelsOf computes live bytes at every node in O(events).
func LevelsOf(t *Timeline) Levels {
	p := t.Program
	l := Levels{Before: make([]int64, len(p.Nodes)), Peak: make([]int64, len(p.Nodes))}
	l.Start = Resident(p, t.First)
	cur, at := l.Start, 0
	l.Max = cur
	for i := range p.Nodes {
		l.Before[i], l.Peak[i] = cur, cur
		for ; at < len(t.Events) && int(t.Events[at].Node) == i; at++ {
			n := Rounded(t.Bytes(t.Events[at]))
			if t.Events[at].Free {
				cur -= n
			} else {
				cur += n
				l.Peak[i] = max(l.Peak[i], cur)
			}
		}
		l.Max = max(l.Max, l.Peak[i])
	}
	return l
}

// Resident returns the rounded bytes that are live at the start of a step:
// parameters, buffers, inputs, and in later steps also optimizer state,
// library workspaces and the gradients of the step before.
func Resident(p *program.Program, first bool) int64 {
	var n int64
	for i := range p.Storages {
		switch s := &p.Storages[i]; s.Life {
		case program.Static:
			n += Rounded(s.Bytes)
		case program.State, program.Carried:
			if !first {
				n += Rounded(s.Bytes)
			}
		}
	}
	return n
}

// LiveBound returns the highest rounded live bytes of a step without library
// scratch: no allocator and no choice of kernels needs less.
func LiveBound(t *Timeline) int64 {
	cur := Resident(t.Program, t.First)
	most := cur
	for _, ev := range t.Events {
		s := &t.Program.Storages[ev.Storage]
		if s.Category == program.Workspace && s.Life == program.Step {
			continue
		}
		if n := Rounded(s.Bytes); ev.Free {
			cur -= n
		} else {
			cur += n
			most = max(most, cur)
		}
	}
	return most
}

// Ideal returns the least bytes for the steps of p if every storage is released
// after the last call that reads it, whoever else holds it, and none is ever
// moved: an arena with offsets planned ahead comes close to it. Storages are
// rounded up to Round; library scratch is included.
func Ideal(p *program.Program) int64 {
	r := Ranges{Start: make([]int32, len(p.Storages)), End: make([]int32, len(p.Storages))}
	for i := range r.Start {
		r.Start[i], r.End[i] = -1, -1
	}
	last := int32(len(p.Nodes) - 1)
	for i := range p.Nodes {
		n := &p.Nodes[i]
		for _, ev := range n.Events {
			if r.End[ev.Storage] = int32(i); !ev.Free {
				r.Start[ev.Storage] = int32(i)
			}
		}
		for _, id := range n.Reads {
			r.End[id] = int32(i)
		}
		for _, id := range n.Holds { // what is held to the end are the step's outputs
			if int32(i) == last {
				r.End[id] = last
			}
		}
	}
	var most int64
	for _, first := range []bool{true, false} {
		t := newTimeline(p, r, first, false)
		cur := Resident(p, first)
		most = max(most, cur)
		for _, ev := range t.Events {
			if n := Rounded(t.Bytes(ev)); ev.Free {
				cur -= n
			} else {
				cur += n
				most = max(most, cur)
			}
		}
	}
	return most
}
