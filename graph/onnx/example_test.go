package onnx_test

import (
	"fmt"

	"github.com/memplan/memplan/graph/onnx"
)

func ExampleLoad() {
	g, err := onnx.Load("../../models/mlp.onnx")
	if err != nil {
		fmt.Println(err)
		return
	}
	n := &g.Nodes[0]
	w := g.Values[n.Inputs[1]]
	fmt.Println(g.Model.Producer)
	fmt.Println(n.Label(), n.Op, "reads", w.Name, w.Type.Shape)
	fmt.Println(*w.Const.Ref)
	// Output:
	// pytorch 2.11.0+cu130
	// Gemm "node_linear" Gemm reads net.0.weight [4096 4096]
	// {weights.bin 0 67108864}
}
