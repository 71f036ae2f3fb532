package validate

import (
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/planner/layout"
)

// A Buffer is a part of the arena and the range of nodes, first to last, during
// which it is in use.
type Buffer struct {
	Name, Category string
	At, Bytes      int64
	First, Last    int32
}

// A PhaseSpan is the nodes of a phase, first to last.
type PhaseSpan struct {
	Name        string
	First, Last int32
}

// Categories names the categories of buffers in the order of reports.
func Categories() []string {
	out := make([]string, program.NumCategories)
	for i := range out {
		out[i] = program.Category(i).String()
	}
	return out
}

// drawn lists what a layout places, without guards.
func drawn(p *program.Program, l *Layout) []Buffer {
	var out []Buffer
	list, ids := layout.Storages(p)
	for i, id := range ids {
		if s := &p.Storages[id]; s.Bytes > 0 {
			out = append(out, Buffer{s.Name, s.Category.String(), l.Offset[id], s.Bytes, int32(list[i].Lower), int32(list[i].Upper) - 1})
		}
	}
	for i, w := range l.Work {
		if w.Bytes > 0 {
			out = append(out, Buffer{"work of " + p.Nodes[i].Op, program.Workspace.String(), w.At, w.Bytes, int32(i), int32(i)})
		}
	}
	return out
}

// phases lists the runs of nodes of one phase.
func phases(p *program.Program) []PhaseSpan {
	var out []PhaseSpan
	for i := range p.Nodes {
		name := p.Nodes[i].Phase.String()
		if n := len(out); n == 0 || out[n-1].Name != name {
			out = append(out, PhaseSpan{name, int32(i), int32(i)})
		}
		out[len(out)-1].Last = int32(i)
	}
	return out
}
