package planner

import (
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
)

// A training step of a file that does not show it is a guess, which a strict
// question does not take; an inference is none.
func TestStrictTraining(t *testing.T) {
	m, err := Open(tiny(t, 3))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Analyze(t.Context(), Config{Batch: 2}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Analyze(t.Context(), Config{Batch: 2, Strict: true}); err == nil || !strings.Contains(err.Error(), "--strict") || !strings.Contains(err.Error(), "[no-metadata]") {
		t.Errorf("a strict training step: %v", err)
	}
	if _, err := m.Analyze(t.Context(), Config{Batch: 2, Mode: "infer", Strict: true}); err != nil {
		t.Errorf("a strict inference: %v", err)
	}
}

// The error names the first warning that is not tolerated and counts the rest.
func TestStrictly(t *testing.T) {
	w := []graph.Warning{{Code: "unlifted", Message: "a"}, {Code: "missing-input", Message: "b", Node: "Add (node 1)"}, {Code: "unsorted", Message: "c"}}
	if err := Strictly("m.onnx", w, true); err == nil || err.Error() != "m.onnx: --strict: Add (node 1): b [missing-input] and 1 more" {
		t.Error(err)
	}
	if err := Strictly("m.onnx", w[:1], true); err != nil {
		t.Error(err)
	}
}
