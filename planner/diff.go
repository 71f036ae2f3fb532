package planner

import (
	"cmp"
	"context"
	"fmt"
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
	Modules       []ModuleDelta   `json:"modules"` // those that changed, largest change first
	Ops           OpsDelta        `json:"ops"`
	// Steps returns the steady steps of base and head, for a page that shows both.
	Steps func() [2]*StepView `json:"-"`
}

// A Growth is a limit on what a peak may grow by.
type Growth struct {
	text    string
	percent bool    // of the base
	most    float64 // percent or bytes
}

// ParseGrowth reads "2%" or a size such as "100M".
func ParseGrowth(text string) (*Growth, error) {
	if strings.HasSuffix(strings.TrimSpace(text), "%") {
		most, err := percentLimit(text)
		return &Growth{text, true, most}, err
	}
	most, err := sizeLimit(text)
	if err != nil {
		return nil, fmt.Errorf("%q: want a percentage such as 2%%, or a size such as 100M", text)
	}
	return &Growth{text, false, most}, nil
}

func (g *Growth) String() string { return g.text }

// Exceeded reports whether the allocated peak grew by more.
func (g *Growth) Exceeded(d *Diff) bool {
	if !g.percent {
		return float64(d.DeltaBytes) > g.most
	}
	return 100*float64(d.DeltaBytes) > g.most*float64(d.Base.AllocatedBytes)
}

// DiffSide is one of the two models.
type DiffSide struct {
	Path           string `json:"path"`
	SHA256         string `json:"sha256"`
	Batch          int64  `json:"batch"`
	AllocatedBytes int64  `json:"allocatedBytes"`
	Parameters     int64  `json:"parameters"`
	Segments       int    `json:"segments"` // how many are checkpointed
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

// OpsDelta lists the calls that only one side makes, and those whose results
// changed in shape or type, each in its model's order.
type OpsDelta struct {
	Added   []OpDelta `json:"added"`
	Removed []OpDelta `json:"removed"`
	Changed []OpDelta `json:"changed"` // Node is the head's
}

// An OpDelta is one call. Base and Head are its results' types on the two
// sides, "float32[8,64]", empty if a side does not make the call.
type OpDelta struct {
	Op     string `json:"op"`
	Node   string `json:"node"`
	Module string `json:"module"`
	Base   string `json:"base"`
	Head   string `json:"head"`
}

// Compare analyzes two models, each with its own configuration, and
// attributes the change from base to head.
func Compare(ctx context.Context, base, head *Model, baseCfg, headCfg Config) (*Diff, error) {
	a, old, before, err := base.side(ctx, baseCfg)
	if err != nil {
		return nil, err
	}
	b, now, after, err := head.side(ctx, headCfg)
	if err != nil {
		return nil, err
	}
	return &Diff{
		SchemaVersion: SchemaVersion, Base: old, Head: now, DeltaBytes: b.AllocatedBytes - a.AllocatedBytes,
		Categories: categoryDeltas(a.Categories, b.Categories), Modules: moduleDeltas(a.Modules, b.Modules), Ops: opsDelta(base.calls(), head.calls()),
		Steps: func() [2]*StepView { return [2]*StepView{before.View(), after.View()} },
	}, nil
}

// side attributes one model's peak.
func (m *Model) side(ctx context.Context, cfg Config) (*Attribution, DiffSide, *Answer, error) {
	r, err := m.Analyze(ctx, cfg)
	if err != nil {
		return nil, DiffSide{}, nil, err
	}
	a := r.Attribution()
	segs := len(cfg.Segments)
	if r.Checkpoint != nil {
		segs = len(r.Checkpoint.Segments)
	}
	return a, DiffSide{Path: m.Path, SHA256: r.Model.SHA256, Batch: r.Config.Batch, AllocatedBytes: a.AllocatedBytes, Parameters: r.Model.Parameters, Segments: segs}, r, nil
}

// categoryDeltas pairs two lists by category, in the order of base's.
func categoryDeltas(base, head []CategoryBytes) []CategoryDelta {
	out := make([]CategoryDelta, 0, len(base))
	at := map[string]int{}
	for _, c := range base {
		at[c.Category] = len(out)
		out = append(out, CategoryDelta{Category: c.Category, Base: c.Bytes})
	}
	for _, c := range head {
		i, ok := at[c.Category]
		if !ok {
			i = len(out)
			out = append(out, CategoryDelta{Category: c.Category})
		}
		out[i].Head = c.Bytes
	}
	for i := range out {
		out[i].Delta = out[i].Head - out[i].Base
	}
	return out
}

// moduleDeltas lists the modules that changed, the largest change first.
func moduleDeltas(base, head []ModuleBytes) []ModuleDelta {
	sums := map[string]int64{}
	for _, m := range base {
		sums[m.Module] -= m.Bytes
	}
	for _, m := range head {
		sums[m.Module] += m.Bytes
	}
	out := []ModuleDelta{}
	for name, n := range sums {
		if n != 0 {
			out = append(out, ModuleDelta{name, n})
		}
	}
	slices.SortFunc(out, func(x, y ModuleDelta) int {
		return cmp.Or(cmp.Compare(abs(y.Delta), abs(x.Delta)), strings.Compare(x.Module, y.Module))
	})
	return out
}

func abs(n int64) int64 { return max(n, -n) }

// A callInfo is a lifted call as diffs see it. Calls are numbered by position,
// so that an additional call renames all later ones: calls are matched by
// operator and module instead.
type callInfo struct {
	op, node, module string
	result           string
}

func (c *callInfo) key() [2]string { return [2]string{c.op, c.module} }

// calls lists the model's lifted calls in order.
func (m *Model) calls() []callInfo {
	g := m.lifted.Graph
	out := make([]callInfo, 0, len(g.Nodes))
	for i := range g.Nodes {
		n := &g.Nodes[i]
		c := callInfo{op: n.Op, node: n.Name, module: n.Module}
		for _, o := range n.Outputs {
			if o < 0 {
				continue
			}
			if c.result != "" {
				c.result += ", "
			}
			c.result += typeText(&g.Values[o].Type)
		}
		out = append(out, c)
	}
	return out
}

func typeText(t *graph.Type) string {
	return t.Elem.String() + "[" + strings.Join(texts(t.Shape, (*graph.Dim).String), ",") + "]"
}

// opsDelta matches the calls of two models: first those with the same
// operator, module and result, then those with the same operator and module.
func opsDelta(base, head []callInfo) OpsDelta {
	match := make([]int, len(head)) // index in base, -1: none
	for i := range match {
		match[i] = -1
	}
	taken := make([]bool, len(base))
	for _, exact := range []bool{true, false} {
		pair(base, head, match, taken, exact)
	}
	d := OpsDelta{Added: []OpDelta{}, Removed: []OpDelta{}, Changed: []OpDelta{}}
	for i := range head {
		h := &head[i]
		o := OpDelta{Op: h.op, Node: h.node, Module: h.module, Head: h.result}
		switch j := match[i]; {
		case j < 0:
			d.Added = append(d.Added, o)
		case base[j].result != h.result:
			o.Base = base[j].result
			d.Changed = append(d.Changed, o)
		}
	}
	for j := range base {
		if b := &base[j]; !taken[j] {
			d.Removed = append(d.Removed, OpDelta{Op: b.op, Node: b.node, Module: b.module, Base: b.result})
		}
	}
	return d
}

// pair matches unmatched calls in order; if exact, also by result.
func pair(base, head []callInfo, match []int, taken []bool, exact bool) {
	type key struct {
		call   [2]string
		result string
	}
	of := func(c *callInfo) key {
		k := key{call: c.key()}
		if exact {
			k.result = c.result
		}
		return k
	}
	free := map[key][]int{}
	for j := range base {
		if !taken[j] {
			k := of(&base[j])
			free[k] = append(free[k], j)
		}
	}
	for i := range head {
		if match[i] >= 0 {
			continue
		}
		k := of(&head[i])
		if list := free[k]; len(list) > 0 {
			match[i], free[k] = list[0], list[1:]
			taken[list[0]] = true
		}
	}
}
