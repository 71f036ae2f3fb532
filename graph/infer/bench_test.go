package infer

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/internal/testdata"
)

// Reading and inferring files of 1,000, 10,000 and 100,000 nodes takes the
// same time a node.
func BenchmarkLoadInfer(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		path := filepath.Join(b.TempDir(), "model.onnx")
		if err := os.WriteFile(path, llama(n/25), 0o600); err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			nodes := 0
			for b.Loop() {
				g := load(b, path)
				if _, err := Infer(g, Options{Dims: map[string]int64{"batch": 2}}); err != nil {
					b.Fatal(err)
				}
				nodes = len(g.Nodes)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(nodes), "ns/node")
		})
	}
}

func BenchmarkRebind(b *testing.B) {
	for _, name := range []string{"llama_250m.dyn-train.onnx", "vit_b_16.ts-train.onnx", "densenet121.dyn-train.onnx"} {
		g := load(b, filepath.Join(testdata.Shared(b, "models"), name))
		b.Run("model="+name, func(b *testing.B) {
			b.ReportAllocs()
			n := int64(0)
			for b.Loop() {
				n++
				if _, err := Infer(g, Options{Dims: map[string]int64{"batch": n}}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkChain(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		g := chain(n)
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			for b.Loop() {
				if _, err := Infer(g, Options{Dims: map[string]int64{"batch": 4}}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/node")
		})
	}
}

// chain builds a graph of n nodes: blocks of matrix products, views whose
// shapes are computed, and additions.
func chain(n int) *graph.Graph {
	var c builder
	x := c.input("x", graph.Float32, graph.Shape{graph.Sym("batch"), graph.Int(64), graph.Int(256)})
	w := c.initializer("w", &graph.Constant{Type: graph.Float32, Dims: []int64{256, 256}, Ref: &graph.DataRef{Length: 256 * 256 * 4}})
	zero := c.ints("zero", 0)
	tail := c.ints("tail", 64, 4, 64)
	for len(c.g.Nodes) < n {
		h := c.node("MatMul", nil, x, w)
		s := c.node("Shape", nil, h)
		b := c.node("Gather", nil, s, zero)
		t := c.node("Concat", []graph.Attr{{Name: "axis", Kind: graph.AttrInt}}, b, tail)
		h = c.node("Reshape", nil, h, t)
		h = c.node("Transpose", []graph.Attr{{Name: "perm", Kind: graph.AttrInts, Ints: []int64{0, 2, 1, 3}}}, h)
		h = c.node("Relu", nil, h)
		h = c.node("Transpose", []graph.Attr{{Name: "perm", Kind: graph.AttrInts, Ints: []int64{0, 2, 1, 3}}}, h)
		h = c.node("Reshape", nil, h, s)
		x = c.node("Add", nil, h, x)
	}
	c.g.Outputs = []graph.ValueID{x}
	return c.graph()
}
