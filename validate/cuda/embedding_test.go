//go:build cuda

package cuda

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// TestEmbeddingChunks makes gradients of tables with more tokens than a block
// reads at once: rows that all tokens have, that few have, that none has. With
// work and without it the bits are the same.
func TestEmbeddingChunks(t *testing.T) {
	for _, c := range []struct {
		tokens, rows, cols int64
		skip               float64
		dt                 graph.DType
		index              graph.DType
		draw               func(b *bench, i int64) int64
	}{
		{fewTokens, 2, 5, -1, graph.Float32, graph.Int64, func(b *bench, i int64) int64 { return i / 1500 }},
		{2500, 50, 3, 7, graph.BFloat16, graph.Int32, func(b *bench, _ int64) int64 { return b.rng.Int64N(50) }},
		{2100, 3000, 4, -1, graph.Float16, graph.Int64, func(b *bench, _ int64) int64 { return b.rng.Int64N(3000) }},
		{9000, 60, 1, 0, graph.Float32, graph.Int64, func(b *bench, i int64) int64 { return i * i / 3 % 60 }},
		{70001, 3000, 1, -1, graph.Float32, graph.Int64, func(b *bench, i int64) int64 { return i/256%2900 + b.rng.Int64N(100) }},
	} {
		t.Run(fmt.Sprintf("%d of %d", c.tokens, c.rows), func(t *testing.T) {
			if c.tokens > 1<<12 && testing.Short() {
				t.Skip("minutes where a processor stands for the GPU")
			}
			b, d := onBoth(t, Options{FP32: true}, 64<<20)
			g, dw := b.tensor(c.dt, nil, c.tokens, c.cols), b.result(c.dt, nil, c.rows, c.cols)
			i := int64(-1)
			idx := b.filled(c.index, func() float64 { i++; return float64(c.draw(b, i)) }, nil, c.tokens)
			call := newCall("embedding_dense_backward", &program.Attrs{Scalars: []float64{c.skip}}, []*validate.ArenaView{dw}, []*validate.ArenaView{g, idx})
			d.room(t, call, *b.top)
			if call.Work.Bytes == 0 {
				t.Fatal("it asks for no work")
			}
			b.do(b, call)
			with := d.results(t, call)
			call.Work.Bytes = 0
			b.do(b, call)
			if !slices.EqualFunc(with, d.results(t, call), bytes.Equal) {
				t.Error("with work the gradient has other bits than without")
			}
		})
	}
}
