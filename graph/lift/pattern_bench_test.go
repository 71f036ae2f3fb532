package lift_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/infer"
	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/graph/onnx"
	"github.com/memplan/memplan/internal/testdata"
)

// BenchmarkPatterns lifts BERT as the TorchScript exporter writes it: 1,226
// nodes.
func BenchmarkPatterns(b *testing.B) {
	g, err := onnx.Load(testdata.Shared(b, "models", "bert_base_mlm.ts-train.onnx"))
	if err != nil {
		b.Fatal(err)
	}
	if _, err := infer.Infer(g, infer.Options{Batch: 8}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := lift.Lift(g); err != nil {
			b.Fatal(err)
		}
	}
}

// TestPatternLong lifts a chain of 60,000 nodes, and one node that reads as
// many values, in time that grows with their number.
func TestPatternLong(t *testing.T) {
	const n = 60000
	var s strings.Builder
	s.WriteString(`<ir_version: 10, opset_import: ["" : 18]> g (float[2] x0) => (float[2] y) { `)
	for i := range n {
		s.WriteString("x" + strconv.Itoa(i+1) + " = Relu(x" + strconv.Itoa(i) + ") ")
	}
	s.WriteString("y = Sum(x0")
	for i := range n {
		s.WriteString(", x" + strconv.Itoa(i))
	}
	s.WriteString(") }")
	g, err := graph.Parse(strings.NewReader(s.String()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := infer.Infer(g, infer.Options{}); err != nil {
		t.Fatal(err)
	}
	l, err := lift.Lift(g)
	if err != nil {
		t.Fatal(err)
	}
	// x60000 is read by nothing; one addition fewer than operands.
	if got := len(l.Graph.Nodes); got != n-1+n {
		t.Errorf("%d calls, want %d", got, n-1+n)
	}
}
