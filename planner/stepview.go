package planner

import (
	"sort"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/liveness"
)

// A StepView is a steady step in the form that a page shows: tables, and events
// that refer to them by index. It is compact: a step has some ten thousand
// events.
type StepView struct {
	Categories []string   `json:"categories"`
	Phases     []string   `json:"phases"`
	Strings    []string   `json:"strings"`  // names, each once; index 0 is ""
	Storages   [][6]int64 `json:"storages"` // bytes as requested, category, name, module, type and shape, what autograd saves it for
	Nodes      [][4]int   `json:"nodes"`    // phase, operator, call, module
	Before     []int32    `json:"before"`   // storages that are live when the step begins
	Events     [][2]int32 `json:"events"`   // node; storage+1 that it allocates, or -(storage+1) that it frees
	Segments   [][3]int64 `json:"segments"` // of the caching allocator when the step ends: bytes, stream, 1 for the pool of small requests; none where the step does not fit
	Places     []int64    `json:"places"`   // of Before, then of each allocation in order: bytes from the start of the first segment, as if the segments lay end to end; -1 for none
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
	types, saved := storageTypes(b), savedFor(b)
	for i := range b.Storages {
		s := &b.Storages[i]
		v.Storages = append(v.Storages, [6]int64{s.Bytes, int64(s.Category), int64(text(s.Name)), int64(text(s.Module)), int64(text(types[i])), int64(text(saved[i]))})
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
	a.place(v)
	return v
}

// storageTypes returns the type and shape of the first view of each storage,
// "float[8,64]", "" for storages without one and for optimizer state, whose views are
// bytes.
func storageTypes(b *train.Build) []string {
	out := make([]string, len(b.Storages))
	note := func(views []program.View) {
		for i := range views {
			id := views[i].Storage
			if at := &out[id]; *at == "" && b.Storages[id].Category != program.Optimizer {
				*at = viewType(&views[i])
			}
		}
	}
	for i := range b.Nodes {
		note(b.Nodes[i].Out)
		note(b.Nodes[i].In)
	}
	return out
}

func viewType(v *program.View) string {
	dims := make([]string, len(v.Shape))
	for i, d := range v.Shape {
		dims[i] = strconv.FormatInt(d, 10)
	}
	return v.DType.String() + "[" + strings.Join(dims, ",") + "]"
}

// savedFor names, for each storage that autograd holds at the end of forward,
// the first node of backward that reads it.
func savedFor(b *train.Build) []string {
	out, held := make([]string, len(b.Storages)), make([]bool, len(b.Storages))
	for _, id := range b.Saved {
		held[id] = true
	}
	for i := range b.Nodes {
		n := &b.Nodes[i]
		if n.Phase != program.Backward || n.Autograd == "" {
			continue
		}
		for _, id := range n.Reads {
			if !held[id] || out[id] != "" {
				continue
			}
			if out[id] = n.Autograd; n.Name != "" {
				out[id] += " of " + n.Name
			}
		}
	}
	return out
}

// place fills in the segments of the steady step and where its storages lie in
// them, if the steps fit the budget.
func (a *Answer) place(v *StepView) {
	if a.ev.fail != nil {
		return
	}
	p, err := a.placed()
	if err != nil {
		return
	}
	offset := make([]int64, len(p.Segments)) // of each from the first, laid end to end
	var end int64
	for i := range p.Segments {
		s := &p.Segments[i]
		small := int64(0)
		if s.Small {
			small = 1
		}
		v.Segments = append(v.Segments, [3]int64{s.Size, int64(s.Stream), small})
		offset[i], end = end, end+s.Size
	}
	position := func(at int64) int64 {
		i := sort.Search(len(p.Segments), func(i int) bool { return p.Segments[i].Addr+p.Segments[i].Size > at })
		if i == len(p.Segments) || at < p.Segments[i].Addr {
			return -1
		}
		return offset[i] + at - p.Segments[i].Addr
	}
	for _, at := range p.Before {
		v.Places = append(v.Places, position(at))
	}
	for i, e := range v.Events {
		if e[1] > 0 {
			v.Places = append(v.Places, position(p.Events[i].Addr))
		}
	}
}
