package planner

import "github.com/memplan/memplan/graph/program"

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
func (a *Answer) Stack() *Stack {
	b, s := a.ev.Build, &Stack{}
	for c := range program.NumCategories {
		s.Categories = append(s.Categories, program.Category(c).String())
	}
	level := before(b.Program)
	add := func(phase string) {
		s.Points = append(s.Points, StackPoint{phase, append([]int64(nil), level...)})
	}
	add(program.Forward.String())
	for _, ev := range a.ev.res.Steady.Events {
		st := &b.Storages[ev.Storage]
		if ev.Free {
			level[st.Category] -= st.Bytes
		} else {
			level[st.Category] += st.Bytes
		}
		add(timelineEvent(b, ev).Phase)
	}
	return s
}

// before sums what is live when a steady step begins.
func before(p *program.Program) []int64 {
	level := make([]int64, program.NumCategories)
	for _, id := range standing(p) {
		level[p.Storages[id].Category] += p.Storages[id].Bytes
	}
	return level
}

// standing lists what is live when a steady step begins: what never dies, and
// the gradients of the step before.
func standing(p *program.Program) []program.StorageID {
	made := make([]bool, len(p.Storages))
	for i := range p.Nodes {
		for _, ev := range p.Nodes[i].Events {
			made[ev.Storage] = made[ev.Storage] || !ev.Free
		}
	}
	var out []program.StorageID
	for i := range p.Storages {
		switch life := p.Storages[i].Life; {
		case life == program.Static, made[i] && (life == program.State || life == program.Carried):
			out = append(out, program.StorageID(i))
		}
	}
	return out
}

// A StandingTensor is a tensor that is live when a steady step begins. ID is
// that of the event that frees it, if there is one.
type StandingTensor struct {
	ID       int64  `json:"id"`
	Bytes    int64  `json:"bytes"` // as requested, before rounding
	Category string `json:"category"`
	Value    string `json:"value"`
	Module   string `json:"module"`
}

// Standing returns what is live when the steady step of Timeline begins, in the
// order in which it was made.
func (a *Answer) Standing() []StandingTensor {
	b := a.ev.Build
	old := map[program.StorageID]bool{} // freed, and made again in the step
	for _, ev := range a.ev.res.Steady.Events {
		old[ev.Storage] = old[ev.Storage] || ev.Old
	}
	out := []StandingTensor{}
	for _, id := range standing(b.Program) {
		s := &b.Storages[id]
		t := StandingTensor{ID: int64(id), Bytes: s.Bytes, Category: s.Category.String(), Value: s.Name, Module: s.Module}
		if old[id] {
			t.ID += int64(len(b.Storages))
		}
		out = append(out, t)
	}
	return out
}
