//go:build cuda

package dnngraph

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/validate/dl"
)

// TestDescribedDevice: a real cuDNN, where there is one, takes the objects of every
// pass and makes a plan for an H200 that is described to it; no GPU is needed
// (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, since 9.8).
func TestDescribedDevice(t *testing.T) {
	lib, err := dl.Open("cudnn")
	if err != nil {
		t.Skip(err)
	}
	b, err := Open(lib, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join("testdata", "h200.json"))
	if err != nil {
		t.Fatal(err)
	}
	m := &builder{b: b}
	defer m.free()
	b.device = m.make("a device", devicePropDescriptor)
	set(m, b.device, attrDevicePropRepresentation, typeChar, text...)
	m.finish("the device", b.device)
	if m.err != nil {
		t.Skip(m.err)
	}
	wide := func(p Pass, d graph.DType) *Conv {
		x := Descriptor{[]int64{16, 64, 56, 56}, []int64{200704, 1, 3584, 64}, 32}
		one := []int64{1, 1}
		return &Conv{Pass: p, Type: d, X: x, W: Descriptor{[]int64{64, 64, 3, 3}, []int64{576, 1, 192, 64}, 32}, Y: x, Pad: one, Stride: one, Dilation: one}
	}
	for name, conv := range map[string]func(Pass, graph.DType) *Conv{"grouped": grouped, "wide": wide} {
		for _, d := range []graph.DType{graph.Float32, graph.BFloat16, graph.Float16} {
			for _, full := range []bool{false, true} {
				for p := Forward; p <= Filter; p++ {
					t.Run(fmt.Sprint(name, " ", d, " full=", full, " pass ", p), func(t *testing.T) {
						c := conv(p, d)
						c.Full = full
						first := plan(t, b, c)
						if again := plan(t, b, c); again != first {
							t.Errorf("%+v, then %+v", first, again)
						}
						if first.Bytes < 0 || first.Bytes > 1<<30 {
							t.Errorf("works in %d bytes", first.Bytes)
						}
					})
				}
			}
		}
	}
	full, tf32 := wide(Forward, graph.Float32), wide(Forward, graph.Float32)
	full.Full = true
	if a, b := plan(t, b, full), plan(t, b, tf32); a.Engine == b.Engine {
		t.Errorf("engine %d computes in full precision and in TF32", a.Engine)
	}
}

// plan is what a pass gets, without its objects.
func plan(t *testing.T, b *Backend, c *Conv) Plan {
	t.Helper()
	p, err := b.Plan(c, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	p.Free()
	return Plan{Bytes: p.Bytes, Engine: p.Engine, Compiled: p.Compiled}
}
