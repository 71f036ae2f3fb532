//go:build cuda

package cuda

import (
	"fmt"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/internal/cases"
)

// constant is an operand that the file holds.
func constant(d graph.DType, shape []int64, values ...float64) validate.Operand {
	return validate.Operand{Kind: validate.IsArray, DType: d, Shape: shape, Strides: validate.RowMajor(shape), Values: values}
}

// TestArrays runs kernels with operands that the file holds, twice: constants
// keep apart, and a call that runs again gives the same.
func TestArrays(t *testing.T) {
	picks := constant(graph.Int64, []int64{2, 3}, 4, 0, 2, 2, 4, 4)
	rows := constant(graph.Int32, []int64{4}, 3, 1, 1, 0)
	same := constant(graph.Int64, []int64{2, 3}, 4, 0, 2) // for both rows
	same.Strides = []int64{0, 1}
	half := []int64{4, 6}
	bench, d := onBoth(t, Options{FP32: true}, 64<<20)
	for _, dt := range trainingTypes {
		b := bench.in(t)
		on := func(d graph.DType, shape ...int64) validate.Operand { return onDevice(b.tensor(d, nil, shape...)) }
		to := func(d graph.DType, shape ...int64) validate.ArenaView { return *b.result(d, nil, shape...) }
		for _, c := range []struct {
			kernel string
			attrs  program.Attrs
			out    validate.ArenaView
			args   []validate.Operand
		}{
			{"embedding", program.Attrs{Scalars: []float64{-1}}, to(dt, 2, 3, 7), []validate.Operand{on(dt, 5, 7), picks}},
			{"embedding_dense_backward", program.Attrs{Scalars: []float64{-1}}, to(dt, 5, 7), []validate.Operand{on(dt, 2, 3, 7), picks}},
			{"embedding_dense_backward", program.Attrs{Scalars: []float64{2}}, to(dt, 5, 7), []validate.Operand{on(dt, 2, 3, 7), picks}},
			{"embedding", program.Attrs{Scalars: []float64{-1}}, to(dt, 2, 3, 7), []validate.Operand{on(dt, 5, 7), same}},
			{"embedding_dense_backward", program.Attrs{Scalars: []float64{-1}}, to(dt, 5, 7), []validate.Operand{on(dt, 2, 3, 7), same}},
			{"index_select", program.Attrs{Dims: []int64{0}}, to(dt, 4, 6), []validate.Operand{on(dt, 4, 6), rows}},
			{"index_select_backward", program.Attrs{Dims: []int64{0}}, to(dt, 4, 6), []validate.Operand{on(dt, 4, 6), rows}},
			{"add", program.Attrs{}, to(dt, 4, 4), []validate.Operand{on(dt, 4, 4), constant(dt, []int64{4, 1}, 1, 2, -3, 0.5)}},
			{"where", program.Attrs{}, to(dt, 4, 4), []validate.Operand{constant(graph.Bool, []int64{4}, 1, 0, 0, 1), on(dt, 4, 4), number(2)}},
			{"copy", program.Attrs{}, *b.shifted(3).result(dt, []int64{1, 4}, half...), []validate.Operand{constant(graph.Float32, []int64{6}, 1, 2, 3, -4, 5, 0.25)}},
			{"cat", program.Attrs{Dims: []int64{0}}, to(dt, 5, 2), []validate.Operand{constant(dt, []int64{2, 2}, 1, 2, 3, 4), on(dt, 3, 2)}},
			{"mm", program.Attrs{}, to(dt, 2, 3), []validate.Operand{constant(dt, []int64{2, 2}, 1, 2, 3, 4), on(dt, 2, 3)}},
			{"sum", program.Attrs{Dims: []int64{1}}, to(graph.Float32, 2), []validate.Operand{constant(graph.Float32, []int64{2, 3}, 1, 2, 3, 4, 5, 7)}},
		} {
			t.Run(fmt.Sprint(c.kernel, "/", dt), func(t *testing.T) {
				call := cases.NewCall(c.kernel, c.attrs, c.args, []validate.ArenaView{c.out})
				if err := d.gpu.Supports(call.Node); err != nil {
					t.Fatal(err)
				}
				least, err := d.gpu.Needs(call.Node)
				if err != nil || least < arrayBytes(call) {
					t.Fatalf("%d bytes of work for constants of %d: %v", least, arrayBytes(call), err)
				}
				d.room(t, call, 32<<20)
				sub := *b
				sub.t = t
				sub.do(&sub, call)
				call.Work.Bytes = arrayBytes(call) - 1
				if err := d.gpu.Run(call); err == nil {
					t.Error("it ran without memory for its constants")
				}
			})
		}
	}
}
