package planner

import (
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/lift"
)

// A training step of a file that was exported in evaluation mode cannot be told,
// which a strict question does not take; its inference can, and so can a training
// step of a file without metadata, whose operators patterns recognise.
func TestStrictTraining(t *testing.T) {
	eval := []graph.Warning{{Code: lift.EvalMode, Message: "a"}, {Code: "no-metadata", Message: "b"}}
	if err := Strictly("m.onnx", eval, true); err == nil || err.Error() != "m.onnx: --strict: cannot tell: a ["+lift.EvalMode+"]" {
		t.Errorf("a strict training step: %v", err)
	}
	if err := Strictly("m.onnx", eval, false); err != nil {
		t.Errorf("a strict inference: %v", err)
	}
	m, err := Open(tiny(t, 3))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Analyze(t.Context(), Config{Batch: 2, Strict: true}); err != nil {
		t.Errorf("a file without metadata: %v", err)
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
