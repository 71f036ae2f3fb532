package lift_test

import (
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/lift"
)

// A Fourier transform's complex result is refused by name: pairs of real numbers stand for it in the file.
func TestComplex(t *testing.T) {
	g := parseGraph(t, `(float[4,8,2] x) => (y) { y = Abs(x) }`)
	g.Nodes[0].Meta = append(g.Nodes[0].Meta, graph.Prop{Key: "pkg.torch.onnx.fx_node", Value: "%_fft_r2c : [num_users=1] = call_function[target=torch.ops.aten._fft_r2c.default](args = (%x, [1], 0, True), kwargs = {})"})
	if _, err := lift.Lift(g); err == nil || !strings.Contains(err.Error(), "aten._fft_r2c computes with complex numbers") {
		t.Errorf("error %v", err)
	}
}
