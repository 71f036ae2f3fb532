package aten

import (
	"slices"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// TestHostWindows: what an operand shows of a constant of the file, and what it
// does not.
func TestHostWindows(t *testing.T) {
	six := Host(graph.Int64, []int64{2, 3}, 1, 2, 3, 4, 5, 6)
	for _, c := range []struct {
		name           string
		base           *Tensor
		shape, strides []int64
		offset         int64
		in             int32
		values         []float64
		spacing        []int64
	}{
		{"whole", six, []int64{2, 3}, []int64{3, 1}, 0, program.Array, []float64{1, 2, 3, 4, 5, 6}, []int64{3, 1}},
		{"another shape", six, []int64{3, 2}, []int64{2, 1}, 0, program.Array, []float64{1, 2, 3, 4, 5, 6}, []int64{2, 1}},
		{"transposed", six, []int64{3, 2}, []int64{1, 3}, 0, program.Array, []float64{1, 4, 2, 5, 3, 6}, []int64{2, 1}},
		{"a column", six, []int64{2}, []int64{3}, 1, program.Array, []float64{2, 5}, []int64{1}},
		{"a row, again and again", six, []int64{4, 3, 5}, []int64{0, 1, 0}, 3, program.Array, []float64{4, 5, 6}, []int64{0, 1, 0}},
		{"behind its end", six, []int64{2, 3}, []int64{3, 1}, 1, program.Unknown, nil, nil},
		{"unknown", Host(graph.Int64, []int64{2, 3}), []int64{2, 3}, []int64{3, 1}, 0, program.Unknown, nil, nil},
	} {
		w := *c.base
		w.Shape, w.Strides, w.Offset = c.shape, c.strides, c.offset
		got := w.onHost()
		if got.In != c.in || (got.Array == nil) != (c.values == nil) {
			t.Errorf("%s: operand %d", c.name, got.In)
			continue
		}
		if a := got.Array; a != nil {
			if !slices.Equal(a.Values, c.values) || !slices.Equal(a.Strides, c.spacing) || !slices.Equal(a.Shape, c.shape) || a.DType != graph.Int64 {
				t.Errorf("%s: %+v", c.name, a)
			}
		}
	}
}
