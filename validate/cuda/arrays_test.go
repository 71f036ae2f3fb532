//go:build cuda

package cuda

import (
	"fmt"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// constant is an operand that the file holds.
func constant(d graph.DType, shape []int64, values ...float64) validate.Operand {
	return validate.Operand{Kind: validate.IsArray, DType: d, Shape: shape, Strides: rowMajor(shape), Values: values}
}

// TestArrays runs kernels with operands that the file holds, twice: constants
// keep apart, and a call that runs again gives the same.
func TestArrays(t *testing.T) {
	picks := constant(graph.Int64, []int64{2, 3}, 4, 0, 2, 2, 4, 4)
	rows := constant(graph.Int32, []int64{4}, 3, 1, 1, 0)
	same := constant(graph.Int64, []int64{2, 3}, 4, 0, 2) // for both rows
	same.Strides = []int64{0, 1}
	half := []int64{4, 6}
	for _, dt := range trainingTypes {
		b := newDesk(t)
		on := func(d graph.DType, shape ...int64) validate.Operand { x := b.rows(d, shape...); return onDevice(&x) }
		to := func(d graph.DType, shape ...int64) []validate.Tensor { return []validate.Tensor{b.rows(d, shape...)} }
		for _, c := range []struct {
			kernel string
			attrs  program.Attrs
			out    []validate.Tensor
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
			{"copy", program.Attrs{}, []validate.Tensor{b.tensor(dt, half, []int64{1, 4}, 3)}, []validate.Operand{constant(graph.Float32, []int64{6}, 1, 2, 3, -4, 5, 0.25)}},
			{"cat", program.Attrs{Dims: []int64{0}}, to(dt, 5, 2), []validate.Operand{constant(dt, []int64{2, 2}, 1, 2, 3, 4), on(dt, 3, 2)}},
			{"mm", program.Attrs{}, to(dt, 2, 3), []validate.Operand{constant(dt, []int64{2, 2}, 1, 2, 3, 4), on(dt, 2, 3)}},
			{"sum", program.Attrs{Dims: []int64{1}}, to(graph.Float32, 2), []validate.Operand{constant(graph.Float32, []int64{2, 3}, 1, 2, 3, 4, 5, 7)}},
		} {
			n := node(c.kernel, &c.attrs, c.args, c.out)
			call := &validate.Call{Node: n, Kernel: c.kernel, Args: c.args, Results: c.out}
			t.Run(fmt.Sprint(c.kernel, "/", dt), func(t *testing.T) {
				if err := b.d.gpu.Supports(n); err != nil {
					t.Fatal(err)
				}
				least, err := b.d.gpu.Needs(n)
				if err != nil || least < arrayBytes(call) {
					t.Fatalf("%d bytes of work for constants of %d: %v", least, arrayBytes(call), err)
				}
				call.Work = validate.Span{At: 32 << 20, Bytes: least}
				for range 2 {
					if err := b.d.Run(call); err != nil {
						t.Fatal(err)
					}
				}
				for _, f := range b.d.faults {
					t.Error(f)
				}
				b.d.faults = nil
				call.Work.Bytes = arrayBytes(call) - 1
				if err := b.d.gpu.Run(call); err == nil {
					t.Error("it ran without memory for its constants")
				}
			})
		}
	}
}

// node is the node of a call: its tensors by name, its constants as the file has
// them.
func node(kernel string, a *program.Attrs, args []validate.Operand, results []validate.Tensor) *program.Node {
	n := &program.Node{Op: kernel, Attrs: a}
	of := func(t *validate.Tensor) program.Tensor {
		return program.Tensor{Storage: program.StorageID(len(n.In) + len(n.Out)), DType: t.DType, Shape: t.Shape, Strides: t.Strides}
	}
	for i := range args {
		switch o := &args[i]; o.Kind {
		case validate.IsArray:
			a.Args = append(a.Args, program.Arg{In: program.Array, Array: &program.HostArray{DType: o.DType, Shape: o.Shape, Strides: o.Strides, Values: o.Values}})
		case validate.IsNumber:
			a.Args = append(a.Args, program.Arg{In: program.Number, Value: o.Value})
		case validate.OnDevice:
			a.Args = append(a.Args, program.Arg{In: int32(len(n.In))})
			n.In = append(n.In, of(&o.Tensor))
		default:
			a.Args = append(a.Args, program.Arg{In: program.Absent})
		}
	}
	for i := range results {
		n.Out = append(n.Out, of(&results[i]))
	}
	return n
}
