package planner

import (
	"fmt"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/infer"
)

// unsupported lists the operators of the model that nothing is known of:
// neither how to infer their results nor what they keep for backward. The
// error names the first node of each.
func (m *Model) unsupported() error {
	known := map[[2]string]bool{}
	for i := range infer.Ops {
		known[[2]string{infer.Ops[i].Domain, infer.Ops[i].Name}] = true
	}
	for _, f := range m.g.Model.Functions {
		known[[2]string{f.Domain, f.Name}] = true
	}
	var found []string
	var where string
	for i := range m.g.Nodes {
		n := &m.g.Nodes[i]
		d := n.Domain
		if d == "ai.onnx" {
			d = ""
		}
		if k := [2]string{d, n.Op}; !known[k] {
			known[k] = true // once each
			found = append(found, operator(n))
			if where == "" {
				where = n.Label()
			}
		}
	}
	if len(found) == 0 {
		return nil
	}
	return fmt.Errorf("%s: unsupported operator %s (first at node %s): what it needs is not known", m.Path, strings.Join(found, ", "), where)
}

func operator(n *graph.Node) string {
	if n.Domain == "" {
		return n.Op
	}
	return n.Domain + "." + n.Op
}
