//go:build cuda

package cuda

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// TestSweeps runs recurrent networks of so many hidden units that a block runs all of
// their steps, and of so many that products do, in both directions.
func TestSweeps(t *testing.T) {
	for _, c := range []struct {
		cell          float64
		gates, hidden int64
	}{
		{program.CellLSTM, 4, 1}, {program.CellLSTM, 4, 33}, {program.CellGRU, 3, 200}, {program.CellTanh, 1, sweepUnits}, {program.CellReLU, 1, 77},
		{program.CellLSTM, 4, sweepUnits + 1}, {program.CellGRU, 3, sweepUnits + 8},
	} {
		t.Run(fmt.Sprint(c.cell, " ", c.hidden), func(t *testing.T) {
			b, d := onBoth(t, Options{FP32: true}, 256<<20)
			b.number = func(r *rand.Rand) float64 { return float64(r.Float32()-0.5) / 8 }
			const time, batch, in, dirs = 4, 3, 5, 2
			f32 := func(shape ...int64) *validate.ArenaView { return b.tensor(graph.Float32, nil, shape...) }
			out := func(shape ...int64) *validate.ArenaView { return b.result(graph.Float32, nil, shape...) }
			states := 1
			if c.cell == program.CellLSTM {
				states = 2
			}
			args, ends, starts, grads := []*validate.ArenaView{f32(time, batch, in)}, []*validate.ArenaView{out(time, batch, dirs*c.hidden)}, []*validate.ArenaView{out(time, batch, in)}, []*validate.ArenaView{f32(time, batch, dirs*c.hidden)}
			for range states {
				args, ends = append(args, f32(dirs, batch, c.hidden)), append(ends, out(dirs, batch, c.hidden))
				starts, grads = append(starts, out(dirs, batch, c.hidden)), append(grads, f32(dirs, batch, c.hidden))
			}
			elems, width := int64(0), c.gates*c.hidden
			for range dirs {
				args = append(args, f32(width, in), f32(width, c.hidden), f32(width), f32(width))
				elems += width * (in + c.hidden + 2)
			}
			for _, call := range []*validate.Call{
				newCall("_cudnn_rnn", &program.Attrs{Scalars: []float64{c.cell, 1, dirs, 1, 0}}, ends, args),
				newCall("_cudnn_rnn_backward", &program.Attrs{Scalars: []float64{c.cell, 1, dirs, 1, 0}}, append(starts, out(elems)), append(grads, args...)),
			} {
				d.room(t, call, *b.top)
				b.do(b, call)
			}
		})
	}
}
