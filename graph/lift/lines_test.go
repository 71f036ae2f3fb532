package lift_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/lift"
)

// TestLines reads stack traces as exporters write them.
func TestLines(t *testing.T) {
	for _, c := range []struct {
		trace string
		want  []lift.Line
	}{
		{"File \"a.py\", line 12, in forward\n    x = f(x)\n  File \"C:\\n, line 3\\b.py\", line 7, in forward\n    return g(\n", []lift.Line{{File: "a.py", Number: 12, Text: "x = f(x)"}, {File: `C:\n, line 3\b.py`, Number: 7, Text: "return g("}}},
		{"File \"a.py\", line 12, in forward\n  File \"b.py\", line 1, in forward\n    y\n    ^^^^\n", []lift.Line{{File: "a.py", Number: 12}, {File: "b.py", Number: 1, Text: "y"}}}, // no source; carets of Python 3.11
		{"File \"a.py\", line x, in forward\n y", nil},
		{"", nil},
	} {
		n := graph.Node{Meta: []graph.Prop{{Key: "pkg.torch.onnx.stack_trace", Value: c.trace}}}
		if got := lift.Lines(&n); !slices.Equal(got, c.want) {
			t.Errorf("%q: %+v, want %+v", c.trace, got, c.want)
		}
	}
	deep := graph.Node{Meta: []graph.Prop{{Key: "pkg.torch.onnx.stack_trace", Value: strings.Repeat("File \"a.py\", line 1, in forward\n", 1000)}}}
	if got := len(lift.Lines(&deep)); got > 64 {
		t.Errorf("%d frames of a call", got)
	}
}
