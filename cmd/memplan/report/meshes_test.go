package report

import (
	"slices"
	"testing"

	"github.com/memplan/memplan/planner"
)

// Meshes that cannot be predicted for one reason share it.
func TestMeshReasons(t *testing.T) {
	got := MeshTable(&planner.MeshPlan{Smallest: "1", Fastest: "1", Meshes: []planner.MeshChoice{
		{Mesh: "tp=2", GPUs: 2, Why: "--parallel tp=2: no linear modules"}, {Mesh: "tp=4", GPUs: 4, Why: "--parallel tp=4: no linear modules"},
		{Mesh: "cp=2", GPUs: 2, Why: "no attention"},
	}})
	for _, line := range []string{
		"tp=2               2 not predicted (1)", "tp=4               4 not predicted (1)", "cp=2               2 not predicted (2)",
		"(1) no linear modules", "(2) no attention",
	} {
		if !slices.Contains(got, line) {
			t.Errorf("no line %q in %q", line, got)
		}
	}
	if len(got) != 7 {
		t.Errorf("%d lines: %q", len(got), got)
	}
}
