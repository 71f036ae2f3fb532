package planner

import (
	"fmt"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/infer"
)

// An OpSupport says whether one kind of operator in a model is known.
type OpSupport struct {
	Op    string `json:"op"`
	Count int    `json:"count"`
	Known bool   `json:"known"` // inference has a rule, or the model has a function
	Node  string `json:"node"`  // the first node
}

// Ops lists the kinds of operator in the model and in the functions that it calls, in order of first
// appearance. A function is known, and is followed by what its body calls.
func (m *Model) Ops() []OpSupport {
	known := map[[2]string]bool{}
	for i := range infer.Ops {
		known[[2]string{infer.Ops[i].Domain, infer.Ops[i].Name}] = true
	}
	bodies := map[[2]string][]*graph.Graph{}
	for _, f := range m.g.Model.Functions {
		k := [2]string{f.Domain, f.Name}
		known[k], bodies[k] = true, append(bodies[k], f.Body)
	}
	out := []OpSupport{}
	at := map[[2]string]int{}
	var walk func(g *graph.Graph)
	walk = func(g *graph.Graph) {
		for i := range g.Nodes {
			n := &g.Nodes[i]
			k := [2]string{strings.TrimPrefix(n.Domain, "ai.onnx"), n.Op}
			if strings.HasPrefix(n.Domain, "ai.onnx.") {
				k[0] = n.Domain
			}
			j, ok := at[k]
			if !ok {
				j = len(out)
				at[k] = j
				out = append(out, OpSupport{Op: operator(n), Known: known[k], Node: n.Label()})
			}
			out[j].Count++
			inside := n.Subgraphs()
			if !ok {
				inside = slices.Concat(inside, bodies[k])
			}
			for _, sub := range inside {
				walk(sub)
			}
		}
	}
	walk(m.g)
	return out
}

// supported returns an error if the model has unknown operators. An inference
// can still be planned if their results' shapes are known, from the file or
// from --shape.
func (m *Model) supported(j *job) error {
	if m.capture != nil && m.capture.index >= 0 { // the capture says what runs
		return nil
	}
	var found []string
	where := ""
	for _, o := range m.Ops() {
		if !o.Known {
			if found = append(found, o.Op); where == "" {
				where = o.Node
			}
		}
	}
	if len(found) == 0 {
		return nil
	}
	if j.train {
		return fmt.Errorf("%s: unsupported operator %s (first at node %s): what its training needs is not known", m.Path, strings.Join(found, ", "), where)
	}
	if err := m.boundFor(j, max(j.cfg.Batch, 1)); err != nil {
		return err
	}
	for _, w := range m.bound.warnings {
		if w.Code == "unknown-op" {
			return fmt.Errorf("%s: unsupported operator: %s: give its result's shape with --shape NAME=D0,D1,..", m.Path, w.Message)
		}
	}
	return nil
}

func operator(n *graph.Node) string {
	if n.Domain == "" {
		return n.Op
	}
	return n.Domain + "." + n.Op
}
