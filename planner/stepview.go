package planner

import (
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/liveness"
)

// A StepView is a steady step in the form that a page shows: tables, and events
// that refer to them by index. It is compact: a step has some ten thousand
// events.
type StepView struct {
	Categories []string   `json:"categories"`
	Phases     []string   `json:"phases"`
	Strings    []string   `json:"strings"`  // names, each once; index 0 is ""
	Storages   [][4]int64 `json:"storages"` // bytes as requested, category, name, module
	Nodes      [][4]int   `json:"nodes"`    // phase, operator, call, module
	Before     []int32    `json:"before"`   // storages that are live when the step begins
	Events     [][2]int32 `json:"events"`   // node; storage+1 that it allocates, or -(storage+1) that it frees
}

// View returns the steady step.
func (a *Answer) View() *StepView {
	b := a.ev.Build
	v := &StepView{Strings: []string{""}}
	index := map[string]int{"": 0}
	text := func(s string) int {
		i, ok := index[s]
		if !ok {
			i = len(v.Strings)
			index[s] = i
			v.Strings = append(v.Strings, s)
		}
		return i
	}
	for c := range program.NumCategories {
		v.Categories = append(v.Categories, program.Category(c).String())
	}
	for i := range b.Storages {
		s := &b.Storages[i]
		v.Storages = append(v.Storages, [4]int64{s.Bytes, int64(s.Category), int64(text(s.Name)), int64(text(s.Module))})
	}
	phase := map[string]int{}
	for i := range b.Nodes {
		n := &b.Nodes[i]
		e := timelineEvent(b, liveness.Event{Node: int32(i)})
		p, ok := phase[e.Phase]
		if !ok {
			p = len(v.Phases)
			phase[e.Phase] = p
			v.Phases = append(v.Phases, e.Phase)
		}
		v.Nodes = append(v.Nodes, [4]int{p, text(e.Op), text(n.Name), text(n.Module)})
	}
	for _, id := range standing(b.Program) {
		v.Before = append(v.Before, int32(id))
	}
	for _, ev := range a.ev.res.Steady.Events {
		id := int32(ev.Storage) + 1
		if ev.Free {
			id = -id
		}
		v.Events = append(v.Events, [2]int32{ev.Node, id})
	}
	return v
}
