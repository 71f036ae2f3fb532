package liveness

import "github.com/memplan/memplan/graph/program"

// A Tracer makes traces that a Session can run one after the other.
type Tracer struct{ keys map[keptKey]int32 }

// A keptKey names what outlives a step: the n-th storage of that name among those of its
// lifetime and category. Programs of one model, whatever its sizes, agree on it.
type keptKey struct {
	life program.Lifetime
	cat  program.Category
	name string
	nth  int32
}

// A kept is a storage that outlives a step.
type kept struct {
	id, key int32
	life    program.Lifetime
}

// A Trace is a program reduced to what its replay needs.
type Trace struct {
	train  bool
	bytes  []int64
	stream []uint8
	free   []bool // optional: the library makes do without
	kept   []kept
	state  []bool
	setup  []traceEvent
	first  []traceEvent
	second []traceEvent // nil: as steady
	steady []traceEvent
}

// A traceEvent is one allocation or free.
type traceEvent struct {
	id        int32
	free, old bool
}

// Trace reduces a program.
func (tr *Tracer) Trace(p *program.Program) *Trace {
	if tr.keys == nil {
		tr.keys = map[keptKey]int32{}
	}
	n := len(p.Storages)
	t := &Trace{train: p.Train, bytes: make([]int64, n), stream: make([]uint8, n), free: make([]bool, n), state: make([]bool, n)}
	seen := map[keptKey]int32{}
	for i := range p.Storages {
		s := &p.Storages[i]
		t.bytes[i], t.stream[i], t.free[i], t.state[i] = s.Bytes, s.Stream, s.Optional, s.Life == program.State
		if s.Life == program.Step {
			continue
		}
		k := keptKey{life: s.Life, cat: s.Category, name: s.Name}
		nth := seen[k]
		seen[k]++
		k.nth = nth
		key, ok := tr.keys[k]
		if !ok {
			key = int32(len(tr.keys))
			tr.keys[k] = key
		}
		t.kept = append(t.kept, kept{int32(i), key, s.Life})
	}
	for _, ev := range p.Setup {
		t.setup = append(t.setup, traceEvent{int32(ev.Storage), ev.Free, false})
	}
	first, steady := Steps(p)
	t.first, t.steady = traced(first), traced(steady)
	if hasSecond(p) {
		t.second = traced(Second(p))
	}
	return t
}

func traced(t *Timeline) []traceEvent {
	out := make([]traceEvent, len(t.Events))
	for i, ev := range t.Events {
		out[i] = traceEvent{int32(ev.Storage), ev.Free, ev.Old}
	}
	return out
}

// A Session runs steps of several traces on one allocator, one after the other, as a
// process does whose batches differ: parameters, optimizer state, gradients and the
// libraries' workspaces pass from one to the next. Before a step of another size its inputs
// are made, then those of the step before it go, as a variable that is assigned again.
//
// An inference leaves the gradients of the step before it alone, which the next zero_grad
// frees.
type Session[H any] struct {
	a       Allocator[H]
	held    map[int32]held[H] // by key, between traces
	t       *Trace
	cur     []H // of t's storages
	prev    []H
	there   []bool // t's storages that outlive a step, if they exist
	gone    map[*Trace]map[int32]bool
	trained int
	peak    int64
}

// A held is a storage that exists between steps.
type held[H any] struct {
	h     H
	bytes int64
	life  program.Lifetime
}

// NewSession starts a process with an empty allocator.
func NewSession[H any](a Allocator[H]) *Session[H] {
	return &Session[H]{a: a, held: map[int32]held[H]{}, gone: map[*Trace]map[int32]bool{}}
}

// Peak is the highest allocated bytes so far.
func (s *Session[H]) Peak() int64 { return s.peak }

// ResetPeak lets Peak begin anew with what is allocated now.
func (s *Session[H]) ResetPeak() { s.peak = s.a.Allocated() }

// Reserved is what the allocator has taken from the driver.
func (s *Session[H]) Reserved() int64 { return s.a.Reserved() }

// Step runs one step, or one inference. An error is that of the allocator, and ends the
// session.
func (s *Session[H]) Step(t *Trace) error {
	if err := s.enter(t); err != nil {
		return err
	}
	events := t.steady
	switch {
	case !t.train, s.trained == 0: // what exists of its state is not made again
		events = t.first
	case s.trained == 1 && t.second != nil:
		events = t.second
	}
	if t.train {
		s.trained++
	}
	return s.run(events)
}

// enter makes a trace the current one.
func (s *Session[H]) enter(t *Trace) error {
	if s.t == t {
		return nil
	}
	begun := s.t != nil
	s.leave()
	s.t = t
	s.cur, s.prev, s.there = make([]H, len(t.bytes)), make([]H, len(t.bytes)), make([]bool, len(t.bytes))
	if s.gone[t] == nil {
		s.gone[t] = map[int32]bool{}
	}
	if !begun {
		return s.run(t.setup)
	}
	return s.take(t)
}

// take moves what exists to the storages of a trace: what has other bytes, such as inputs,
// is made before the old goes.
func (s *Session[H]) take(t *Trace) error {
	var old []H
	for _, k := range t.kept {
		x, ok := s.held[k.key]
		switch {
		case ok && x.bytes == t.bytes[k.id]:
			s.cur[k.id], s.there[k.id] = x.h, true
		case k.life == program.Static, k.life == program.State && s.trained > 0 && t.train:
			if err := s.alloc(k.id); err != nil {
				return err
			}
			if ok {
				old = append(old, x.h)
			}
		case ok:
			old = append(old, x.h)
		default:
			continue
		}
		delete(s.held, k.key)
	}
	for _, h := range old {
		s.a.Free(h)
	}
	return nil
}

// leave keeps what outlives the current trace's steps.
func (s *Session[H]) leave() {
	if s.t == nil {
		return
	}
	for _, k := range s.t.kept {
		if s.there[k.id] {
			s.held[k.key] = held[H]{s.cur[k.id], s.t.bytes[k.id], k.life}
		}
	}
}

// run applies events.
func (s *Session[H]) run(events []traceEvent) error {
	copy(s.prev, s.cur)
	gone := s.gone[s.t]
	for _, ev := range events {
		switch {
		case gone[ev.id], ev.old && !s.there[ev.id], !ev.free && s.t.state[ev.id] && s.there[ev.id]:
		case ev.old:
			s.a.Free(s.prev[ev.id])
			s.there[ev.id] = false
		case ev.free:
			s.a.Free(s.cur[ev.id])
			s.there[ev.id] = false
		default:
			if err := s.alloc(ev.id); err != nil {
				return err
			}
		}
	}
	return nil
}

// alloc makes a storage of the current trace.
func (s *Session[H]) alloc(id int32) error {
	h, err := s.request(s.t.stream[id], s.t.bytes[id])
	if err != nil {
		if s.t.free[id] {
			s.gone[s.t][id] = true
			return nil
		}
		return err
	}
	s.cur[id], s.there[id] = h, true
	return nil
}

func (s *Session[H]) request(stream uint8, bytes int64) (H, error) {
	var h H
	var err error
	if a, ok := s.a.(StreamAllocator[H]); ok && stream != 0 {
		h, err = a.AllocOn(int32(stream), bytes)
	} else {
		h, err = s.a.Alloc(bytes)
	}
	s.peak = max(s.peak, s.a.Allocated())
	return h, err
}

// Clone makes tensors of some bytes, and frees them in that order.
func (s *Session[H]) Clone(bytes []int64) error {
	var made []H
	for _, n := range bytes {
		h, err := s.request(0, n)
		if err != nil {
			return err
		}
		made = append(made, h)
	}
	for _, h := range made {
		s.a.Free(h)
	}
	return nil
}
