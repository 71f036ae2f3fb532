package infer_test

import (
	"fmt"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/infer"
)

// Shapes follow from the inputs, symbols included, and may be bound again.
func ExampleInfer() {
	g, err := graph.Parse(strings.NewReader(`
		<ir_version: 10, opset_import: ["" : 21]>
		net (float[batch,3,H,224] x) => (y) <float[64,3,7,7] w = {}, int64[2] s = {0, -1}> {
			c = Conv<pads = [3, 3, 3, 3], strides = [2, 2]>(x, w)
			y = Reshape(c, s)
		}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, opt := range []infer.Options{{}, {Batch: 8, Dims: map[string]int64{"H": 224}}} {
		if _, err := infer.Infer(g, opt); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(g.Values[g.Outputs[0]].Type.Shape, infer.Unbound(g))
	}
	// Output:
	// [batch 7168*((H + 1)//2)] [H batch]
	// [8 802816] []
}
