package planner

import (
	"cmp"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/infer"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/liveness"
)

// A TimelineEvent is one allocation or free of the steady step. A free whose ID
// no event of the step allocated frees an older tensor.
type TimelineEvent struct {
	Phase  string `json:"phase"` // forward, loss, backward, optimizer
	Kind   string `json:"kind"`  // alloc, free
	ID     int64  `json:"id"`
	Bytes  int64  `json:"bytes"` // as requested, before rounding
	Op     string `json:"op"`    // ATen name
	Node   string `json:"node"`
	Module string `json:"module"`
}

// Timeline returns the events of a steady step in order.
func (a *Answer) Timeline() []TimelineEvent {
	out := make([]TimelineEvent, 0, len(a.ev.res.Steady.Events))
	for _, ev := range a.ev.res.Steady.Events {
		out = append(out, timelineEvent(a.ev.Build, ev))
	}
	return out
}

func timelineEvent(b *train.Build, ev liveness.Event) TimelineEvent {
	n := &b.Nodes[ev.Node]
	e := TimelineEvent{Phase: n.Phase.String(), Kind: "alloc", ID: int64(ev.Storage), Bytes: b.Storages[ev.Storage].Bytes, Op: atenName(b, n), Node: n.Name, Module: n.Module}
	if n.Phase == program.ZeroGrad {
		e.Phase = program.Forward.String() // the step begins with forward
	}
	if ev.Free {
		e.Kind = "free"
	}
	if ev.Old {
		e.ID += int64(len(b.Storages))
	}
	return e
}

// atenName returns the operator that the model's code calls, in forward, or
// that autograd calls, in backward.
func atenName(b *train.Build, n *program.Node) string {
	if n.Phase == program.Forward && n.Call >= 0 {
		op, _, _ := strings.Cut(b.Lifted.Graph.Nodes[n.Call].Op, ".")
		return "aten." + op
	}
	return "aten." + strings.TrimSuffix(n.Op, "_")
}

// A ValueInfo describes one value of the graph. A dim is an integer, or the
// text of an expression.
type ValueInfo struct {
	Name   string `json:"name"`
	DType  string `json:"dtype"`
	Shape  []any  `json:"shape"` // empty if the rank is unknown, and Static false
	Static bool   `json:"static"`
	Bytes  any    `json:"bytes"` // a number, the text of an expression, or null
}

// Warnings returns the warnings of reading the file and of the last shape
// inference.
func (m *Model) Warnings() []graph.Warning {
	return slices.Concat(m.g.Model.Warnings, m.invalid, m.bound.warnings)
}

// A NodeInfo describes one node of the graph by the names of its values, "" for
// an omitted one.
type NodeInfo struct {
	Name    string   `json:"name"`
	Op      string   `json:"op"` // with its domain, unless that is ai.onnx
	Inputs  []string `json:"inputs"`
	Outputs []string `json:"outputs"`
}

// Nodes lists the nodes of the graph in order.
func (m *Model) Nodes() []NodeInfo {
	names := func(ids []graph.ValueID) []string {
		out := make([]string, len(ids))
		for i, id := range ids {
			if id != graph.NoValue {
				out[i] = m.g.Values[id].Name
			}
		}
		return out
	}
	out := make([]NodeInfo, len(m.g.Nodes))
	for i := range m.g.Nodes {
		n := &m.g.Nodes[i]
		out[i] = NodeInfo{n.Name, operator(n), names(n.Inputs), names(n.Outputs)}
	}
	return out
}

// Values lists all values of the graph, bound as far as the configuration gives
// batch, dims and shapes.
func (m *Model) Values(c Config) ([]ValueInfo, error) {
	r, err := infer.Infer(m.g, infer.Options{Batch: c.Batch, Dims: c.Dims, Shapes: c.Shapes})
	if err != nil {
		return nil, err
	}
	m.bound = binding{warnings: r.Warnings}
	if m.conform(); c.Strict {
		if err := Strictly(m.Path, m.Warnings(), false); err != nil {
			return nil, err
		}
	}
	out := make([]ValueInfo, 0, len(m.g.Values))
	for i := range m.g.Values {
		v := &m.g.Values[i]
		info := ValueInfo{Name: v.Name, DType: v.Type.Elem.String(), Shape: dimList(v.Type.Shape)}
		_, info.Static = v.Type.Shape.Static()
		if b := v.Type.Bytes(); b.Known() {
			info.Bytes = dimList(graph.Shape{b})[0]
		}
		out = append(out, info)
	}
	return out, nil
}

func dimList(s graph.Shape) []any {
	if s == nil {
		return nil
	}
	out := make([]any, len(s))
	for i, d := range s {
		if n, ok := d.Int(); ok {
			out[i] = n
		} else {
			out[i] = d.String()
		}
	}
	return out
}

// An Attribution splits the allocated bytes at the peak; both lists add up to
// AllocatedBytes exactly.
type Attribution struct {
	AllocatedBytes int64
	Categories     []CategoryBytes
	Modules        []ModuleBytes // sorted by module; fragmentation under "(allocator)"
	Parts          []Part        // the same by module and category, sorted by both
}

// A Part is what one module holds of one category.
type Part struct {
	Module   string `json:"module"`
	Category string `json:"category"`
	Bytes    int64  `json:"bytes"`
}

// ModuleBytes is one module's share.
type ModuleBytes struct {
	Module string
	Bytes  int64
}

// Attribution splits the peak for a comparison with another.
func (a *Answer) Attribution() *Attribution {
	ev := a.ev
	live := ev.res.LivePeak()
	out := &Attribution{AllocatedBytes: ev.res.Allocated, Categories: ev.breakdown(live)}
	parts := map[Part]int64{}
	rest := ev.res.Allocated
	for _, id := range live {
		s := &ev.Storages[id]
		parts[Part{Module: s.Module, Category: s.Category.String()}] += s.Bytes
		rest -= s.Bytes
	}
	parts[Part{Module: "(allocator)", Category: "fragmentation"}] += rest
	sums := map[string]int64{}
	for part, n := range parts {
		part.Bytes = n
		out.Parts = append(out.Parts, part)
		sums[part.Module] += n
	}
	for name, n := range sums {
		out.Modules = append(out.Modules, ModuleBytes{name, n})
	}
	sortModules(out.Modules)
	slices.SortFunc(out.Parts, func(x, y Part) int {
		return cmp.Or(strings.Compare(x.Module, y.Module), strings.Compare(x.Category, y.Category))
	})
	return out
}

func sortModules(ms []ModuleBytes) {
	slices.SortFunc(ms, func(a, b ModuleBytes) int { return strings.Compare(a.Module, b.Module) })
}
