//go:build cuda

package cuda

import (
	"fmt"
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
		draw               func(b *desk, i int64) int64
	}{
		{fewTokens, 2, 5, -1, graph.Float32, graph.Int64, func(b *desk, i int64) int64 { return i / 1500 }},
		{2500, 50, 3, 7, graph.BFloat16, graph.Int32, func(b *desk, _ int64) int64 { return b.rng.Int64N(50) }},
		{3001, 4000, 4, -1, graph.Float16, graph.Int64, func(b *desk, _ int64) int64 { return b.rng.Int64N(4000) }},
		{9000, 60, 1, 0, graph.Float32, graph.Int64, func(b *desk, i int64) int64 { return i * i / 3 % 60 }},
		{70001, 3000, 1, -1, graph.Float32, graph.Int64, func(b *desk, i int64) int64 { return i/256%2900 + b.rng.Int64N(100) }},
	} {
		t.Run(fmt.Sprintf("%d of %d", c.tokens, c.rows), func(t *testing.T) {
			b := newDesk(t)
			g, idx, dw := b.rows(c.dt, c.tokens, c.cols), b.rows(c.index, c.tokens), b.rows(c.dt, c.rows, c.cols)
			raw := make([]float64, c.tokens)
			for i := range raw {
				raw[i] = float64(c.draw(b, int64(i)))
			}
			data, err := validate.Encode(c.index, raw)
			if err != nil {
				t.Fatal(err)
			}
			if err := b.d.Device.Upload(idx.At, data); err != nil {
				t.Fatal(err)
			}
			args, out := []validate.Operand{onDevice(&g), onDevice(&idx)}, []validate.Tensor{dw}
			n := node("embedding_dense_backward", &program.Attrs{Scalars: []float64{c.skip}}, args, out)
			work, err := b.d.gpu.Work(n)
			if err != nil || work == 0 {
				t.Fatalf("%d bytes of work: %v", work, err)
			}
			call := &validate.Call{Node: n, Kernel: n.Op, Args: args, Results: out}
			var bits [2]string
			for i, bytes := range []int64{work, 0} {
				call.Work = validate.Span{At: 32 << 20, Bytes: bytes}
				if err := b.d.Run(call); err != nil {
					t.Fatal(err)
				}
				buf := make([]byte, extent(&dw))
				if err := b.d.gpu.Download(buf, dw.At); err != nil {
					t.Fatal(err)
				}
				bits[i] = string(buf)
			}
			if bits[0] != bits[1] {
				t.Error("with work the gradient has other bits than without")
			}
			for _, f := range b.d.faults {
				t.Error(f)
			}
		})
	}
}
