package calls

import (
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/kernel"
)

// TestAll: every operator of the table has a call here, and each makes a program that
// package program finds sound, of kernels that package kernel knows.
func TestAll(t *testing.T) {
	list, err := All()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, s := range list {
		seen[s.Op] = true
		if err := s.Program.Check(); err != nil {
			t.Errorf("%s: %v", s.Call, err)
		}
		for i := range s.Program.Nodes {
			n := &s.Program.Nodes[i]
			if err := kernel.Check(n); err != nil {
				t.Errorf("%s: node %s: %s: %v", s.Call, n.Op, n.Does(), err)
			}
		}
		if slices.ContainsFunc(s.Program.Warnings, func(w graph.Warning) bool { return strings.HasPrefix(w.Code, "unknown-") }) {
			t.Errorf("%s: %v", s.Call, s.Program.Warnings)
		}
	}
	for _, op := range aten.Ops() {
		for _, name := range op.Names {
			if !seen[name] {
				t.Errorf("%s has no call", name)
			}
		}
	}
}
