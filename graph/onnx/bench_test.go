package onnx_test

import (
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/onnx"
	"github.com/memplan/memplan/internal/testdata"
)

// benchmarked are the largest file, the one with most nodes, and a small one.
var benchmarked = []string{"llama_250m.dyn-train", "densenet121.dyn-train", "mlp.dyn-train"}

func BenchmarkLoad(b *testing.B) {
	for _, name := range benchmarked {
		path := testdata.Shared(b, "models", name+".onnx")
		b.Run("model="+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := onnx.Load(path); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCheck(b *testing.B) {
	for _, name := range benchmarked {
		g, err := onnx.Load(testdata.Shared(b, "models", name+".onnx"))
		if err != nil {
			b.Fatal(err)
		}
		b.Run("model="+name, func(b *testing.B) {
			for b.Loop() {
				if err := graph.Check(g); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
