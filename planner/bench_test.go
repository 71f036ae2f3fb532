package planner

import (
	"path/filepath"
	"testing"
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
