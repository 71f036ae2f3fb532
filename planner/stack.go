package planner

import (
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/liveness"
)

// A Stack is what is live over a steady step, by category: what a chart of
// the step shows.
type Stack struct {
	Categories []string // in the order of reports
	Points     []StackPoint
}

// A StackPoint is the state after one event of the step; the first is the
// state before any.
type StackPoint struct {
	Phase string
	Bytes []int64 // requested, by the index of Stack.Categories
}

// Total returns the bytes of all categories.
func (p *StackPoint) Total() int64 {
	var sum int64
	for _, n := range p.Bytes {
		sum += n
	}
	return sum
}

// Stack returns the levels of a steady step, one point for each event of its
// timeline and one for the start.
func (m *Model) Stack(cfg Config) (*Stack, error) {
	j, err := m.resolve(cfg)
	if err != nil {
		return nil, err
	}
	batch, err := m.fixedBatch(j)
	if err != nil {
		return nil, err
	}
	b, err := m.planned(j, batch, cfg.Segments, cfg.Schedule)
	if err != nil {
		return nil, err
	}
	s := &Stack{}
	for c := range program.NumCategories {
		s.Categories = append(s.Categories, program.Category(c).String())
	}
	level := before(b.Program)
	add := func(phase string) {
		s.Points = append(s.Points, StackPoint{phase, append([]int64(nil), level...)})
	}
	add(program.Forward.String())
	_, steady := liveness.Steps(b.Program)
	for _, ev := range steady.Events {
		st := &b.Storages[ev.Storage]
		if ev.Free {
			level[st.Category] -= st.Bytes
		} else {
			level[st.Category] += st.Bytes
		}
		add(timelineEvent(b, ev).Phase)
	}
	return s, nil
}

// before sums what is live when a steady step begins: what never dies, and
// the gradients of the step before.
func before(p *program.Program) []int64 {
	level := make([]int64, program.NumCategories)
	made := make([]bool, len(p.Storages))
	for i := range p.Nodes {
		for _, ev := range p.Nodes[i].Events {
			made[ev.Storage] = made[ev.Storage] || !ev.Free
		}
	}
	for i := range p.Storages {
		s := &p.Storages[i]
		switch s.Life {
		case program.Static:
			level[s.Category] += s.Bytes
		case program.State, program.Carried:
			if made[i] {
				level[s.Category] += s.Bytes
			}
		}
	}
	return level
}
