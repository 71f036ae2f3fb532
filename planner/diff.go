package planner

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
)

// A Diff attributes the change of the allocated peak between two models. The
// deltas of the categories, and those of the modules, each add up to
// DeltaBytes.
type Diff struct {
	SchemaVersion int             `json:"schemaVersion"`
	Base          DiffSide        `json:"base"`
	Head          DiffSide        `json:"head"`
	DeltaBytes    int64           `json:"deltaBytes"`
	Categories    []CategoryDelta `json:"categories"`
	Modules       []ModuleDelta   `json:"modules"` // largest change first
	Ops           OpsDelta        `json:"ops"`
}

// DiffSide is one of the two models.
type DiffSide struct {
	Path           string `json:"path"`
	AllocatedBytes int64  `json:"allocatedBytes"`
}

// CategoryDelta is one category's change.
type CategoryDelta struct {
	Category string `json:"category"`
	Base     int64  `json:"base"`
	Head     int64  `json:"head"`
	Delta    int64  `json:"delta"`
}

// ModuleDelta is one module's change.
type ModuleDelta struct {
	Module string `json:"module"`
	Delta  int64  `json:"delta"`
}

// OpsDelta lists calls by "operator module": those that only one side makes,
// and those whose result has another shape or type.
type OpsDelta struct {
	Added   []string `json:"added"`
	Removed []string `json:"removed"`
	Changed []string `json:"changed"`
}

// Compare analyzes two models and attributes the change.
func Compare(base, head *Model, baseCfg, headCfg Config) (*Diff, error) {
	a, err := base.Attribution(baseCfg)
	if err != nil {
		return nil, err
	}
	b, err := head.Attribution(headCfg)
	if err != nil {
		return nil, err
	}
	d := &Diff{SchemaVersion: SchemaVersion, Base: DiffSide{base.Path, a.AllocatedBytes}, Head: DiffSide{head.Path, b.AllocatedBytes},
		DeltaBytes: b.AllocatedBytes - a.AllocatedBytes, Categories: []CategoryDelta{}, Modules: []ModuleDelta{}}
	for i, c := range a.Categories { // both list the same categories in the same order
		h := b.Categories[i].Bytes
		d.Categories = append(d.Categories, CategoryDelta{c.Category, c.Bytes, h, h - c.Bytes})
	}
	sums := map[string]int64{}
	for _, m := range a.Modules {
		sums[m.Module] -= m.Bytes
	}
	for _, m := range b.Modules {
		sums[m.Module] += m.Bytes
	}
	for name, n := range sums {
		if n != 0 {
			d.Modules = append(d.Modules, ModuleDelta{name, n})
		}
	}
	slices.SortFunc(d.Modules, func(x, y ModuleDelta) int {
		if ax, ay := abs(x.Delta), abs(y.Delta); ax != ay {
			return int(min(max(ay-ax, -1), 1))
		}
		return strings.Compare(x.Module, y.Module)
	})
	d.Ops = opsDelta(base, head)
	return d, nil
}

func abs(n int64) int64 { return max(n, -n) }

// opsDelta compares the calls of two models, in order of the model that has
// them.
func opsDelta(base, head *Model) OpsDelta {
	d := OpsDelta{Added: []string{}, Removed: []string{}, Changed: []string{}}
	old := calls(base)
	for _, c := range callOrder(head) {
		shapes := old[c.key]
		switch {
		case len(shapes) == 0:
			d.Added = append(d.Added, c.key)
		default:
			if shapes[0] != c.shape {
				d.Changed = append(d.Changed, c.key)
			}
			old[c.key] = shapes[1:]
		}
	}
	for _, c := range callOrder(base) {
		if len(old[c.key]) > 0 {
			d.Removed = append(d.Removed, c.key)
			old[c.key] = old[c.key][1:]
		}
	}
	return d
}

type callShape struct{ key, shape string }

// callOrder lists the lifted calls of a model with their results' types.
func callOrder(m *Model) []callShape {
	g := m.lifted.Graph
	out := make([]callShape, 0, len(g.Nodes))
	for i := range g.Nodes {
		n := &g.Nodes[i]
		c := callShape{key: strings.TrimSpace(n.Op + " " + n.Module)}
		for _, o := range n.Outputs {
			if o >= 0 {
				c.shape += typeText(&g.Values[o].Type)
			}
		}
		out = append(out, c)
	}
	return out
}

func typeText(t *graph.Type) string {
	parts := make([]string, len(t.Shape))
	for i, d := range t.Shape {
		parts[i] = d.String()
	}
	return t.Elem.String() + "[" + strings.Join(parts, ",") + "]"
}

func calls(m *Model) map[string][]string {
	out := map[string][]string{}
	for _, c := range callOrder(m) {
		out[c.key] = append(out[c.key], c.shape)
	}
	return out
}
