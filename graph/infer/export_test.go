package infer

import (
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
)

// An OpGraph is a graph around one operator, which the tests of operators
// run.
type OpGraph struct {
	Op    string // with domain unless ai.onnx
	Graph *graph.Graph
}

// OpGraphs returns graphs that every operator of Ops is in, those that are to
// be rejected left out.
func OpGraphs(t testing.TB) []OpGraph {
	var out []OpGraph
	for _, r := range opRows {
		if r.err != "" {
			continue
		}
		for _, op := range strings.Fields(r.ops) {
			out = append(out, OpGraph{op, parse(t, r.opset, strings.ReplaceAll(r.text, "OP", op))})
		}
	}
	return out
}
