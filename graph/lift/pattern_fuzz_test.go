package lift_test

import (
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/infer"
	"github.com/memplan/memplan/graph/lift"
)

// FuzzPatterns lifts whatever parses and has shapes: no graph may make it
// panic, and what it makes keeps the invariants of a graph.
func FuzzPatterns(f *testing.F) {
	const header = `<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]> g `
	for _, r := range allRows() {
		f.Add(header + r.graph)
	}
	f.Fuzz(func(t *testing.T, text string) {
		g, err := graph.Parse(strings.NewReader(text))
		if err != nil || len(g.Values) > 1000 {
			return
		}
		if _, err := infer.Infer(g, infer.Options{}); err != nil {
			return
		}
		l, err := lift.Lift(g)
		if err != nil {
			if graph.Check(g) != nil {
				return // an element type that there is not
			}
			t.Fatalf("%s: %v", text, err)
		}
		if err := graph.Check(l.Graph); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if len(l.Classes) != len(l.Graph.Nodes) || len(l.InPlace) != len(l.Graph.Nodes) || len(l.Roles) != len(l.Graph.Values) {
			t.Fatalf("%s: %d nodes, %d classes, %d in-place, %d values, %d roles", text, len(l.Graph.Nodes), len(l.Classes), len(l.InPlace), len(l.Graph.Values), len(l.Roles))
		}
	})
}
