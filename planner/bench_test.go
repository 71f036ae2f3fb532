package planner

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

// BenchmarkPrediction opens a model and predicts one training step: all of
// what memplan analyze does for one batch but starting and printing.
func BenchmarkPrediction(b *testing.B) {
	for _, name := range []string{"mlp", "resnet50", "vit_b_16", "gpt2"} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				m, err := Open(filepath.Join("..", "models", name+".onnx"))
				if err != nil {
					b.Fatal(err)
				}
				if _, err := m.Analyze(b.Context(), Config{Batch: 8, Checkpoint: "none"}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkLlamaPlan plans an 80-layer Llama at a quarter of its activations: all of what
// memplan plan does but starting and printing.
func BenchmarkLlamaPlan(b *testing.B) {
	path := filepath.Join(b.TempDir(), "llama.onnx")
	if err := os.WriteFile(path, testdata.Unpacked(b, filepath.Join("testdata", "llama_70b.onnx.xz")), 0o600); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		m, err := Open(path)
		if err != nil {
			b.Fatal(err)
		}
		cfg := Config{Batch: 16, Dims: map[string]int64{"seq": 2048}, Precision: "bf16", Optimizer: "sgd", VRAM: 439_501_081_661}
		p, err := m.Plan(b.Context(), cfg)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(100*p.Checkpoint.RecomputeOverhead, "overhead-%")
	}
}

// BenchmarkBestBatch finds the fastest batch of the samples under two budgets.
func BenchmarkBestBatch(b *testing.B) {
	for _, name := range []string{"resnet50", "vit_b_16", "gpt2"} {
		for _, gib := range []int64{4, 16} {
			b.Run(fmt.Sprintf("%s/%dG", name, gib), func(b *testing.B) {
				for b.Loop() {
					m, err := Open(filepath.Join("..", "models", name+".onnx"))
					if err != nil {
						b.Fatal(err)
					}
					r, err := m.Analyze(b.Context(), Config{BatchBest: true, VRAM: gib << 30})
					if err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(r.Batch.Best.SamplesPerSecond, "samples/s")
				}
			})
		}
	}
}
