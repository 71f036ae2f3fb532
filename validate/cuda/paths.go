package cuda

import (
	"fmt"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// A Path is a way to run convolutions. The first enabled one of Paths that
// accepts a pass runs it; memplan's own kernels run the rest.
type Path struct {
	Name string
	On   bool
	Doc  string
}

// The paths.
const (
	pathDepthwise = "depthwise"
	pathFilter    = "depthwise-filter"
	pathGraph     = "graph"
	pathLegacy    = "legacy"
)

// Paths lists the paths, the best first.
var Paths = []Path{
	{pathDepthwise, true, "depthwise convolutions of 3x3, 5x5 and 7x7, and those that PyTorch runs by a kernel of its own: by memplan's own; ConvNeXt-Tiny's step at batch 16 takes 17.7 ms on an H200 in float32 and 7.7 in bfloat16, 18.6 and 8.2 by cuDNN's engines, which are compiled at run time"},
	{pathFilter, true, "other weight gradients of depthwise convolutions in float32: by memplan's own kernel, as cuDNN's engines took 8.5 of the 30 ms of ConvNeXt-Tiny's step"},
	{pathGraph, true, "cuDNN's graph interface, by the engine that PyTorch takes"},
	{pathLegacy, true, "cuDNN's interface of version 7: where cuDNN is too old to have graphs, or has no engine for one"},
}

// pathsEnv names the enabled paths, separated by commas, instead of the
// table's, to measure or to test one alone: "own" means none of them.
const pathsEnv = "MEMPLAN_CONV"

// pathsOn returns the names of the enabled paths, in order.
func pathsOn(getenv func(string) string) ([]string, error) {
	var on, known []string
	for _, p := range Paths {
		known = append(known, p.Name)
		if p.On {
			on = append(on, p.Name)
		}
	}
	v := getenv(pathsEnv)
	if v == "" {
		return on, nil
	}
	on = nil
	asked := strings.Split(v, ",")
	for _, name := range asked {
		if name != "own" && !slices.Contains(known, name) {
			return nil, fmt.Errorf("%s=%s: no path %q for convolutions; there are %s and own", pathsEnv, v, name, strings.Join(known, ", "))
		}
	}
	for _, name := range known {
		if slices.Contains(asked, name) {
			on = append(on, name)
		}
	}
	return on, nil
}

// A format is a memory order of an image's dims.
type format int

// The formats.
const (
	formatNCHW format = iota // row-major, of any number of dims
	formatNHWC
)

// strides returns the strides of a shape in the format.
func (f format) strides(shape []int64) []int64 {
	out, n := make([]int64, len(shape)), int64(1)
	put := func(i int) {
		out[i] = n
		n *= max(shape[i], 1)
	}
	if f == formatNHWC {
		put(1)
	}
	for i := len(shape) - 1; i >= 0; i-- {
		if i != 1 || f != formatNHWC {
			put(i)
		}
	}
	return out
}

// holds reports whether a tensor has the format; dims of 1 do not count.
func (f format) holds(t *validate.ArenaView) bool {
	if t.Elems() == 0 {
		return true
	}
	for i, s := range f.strides(t.Shape) {
		if t.Shape[i] != 1 && t.Strides[i] != s {
			return false
		}
	}
	return true
}

// formatOf returns the format in which PyTorch has all three tensors of a
// convolution when it calls cuDNN (cudnn_conv_suggest_memory_format,
// aten/src/ATen/native/ConvUtils.h): channels innermost if either operand or
// weight has that. Images of three dims are row-major.
func formatOf(c *program.Conv, x, w, y *validate.ArenaView) format {
	if c.Transposed {
		x = y
	}
	if len(c.Stride) == 2 && x.DType != graph.Float64 && (prefersChannels(x) || prefersChannels(w)) {
		return formatNHWC
	}
	return formatNCHW
}

// prefersChannels reports whether an image's channels are innermost by PyTorch's
// rule (c10/core/MemoryFormat.h, is_channels_last_strides_2d), and it is not also
// row-major.
func prefersChannels(t *validate.ArenaView) bool {
	if len(t.Shape) != 4 || t.Strides[1] == 0 || t.RowMajor() {
		return false
	}
	least := int64(0)
	for _, d := range [...]int{1, 3, 2, 0} {
		if t.Shape[d] == 0 || t.Strides[d] < least || d == 0 && least == t.Strides[1] {
			return false
		}
		least = t.Strides[d]
		if t.Shape[d] > 1 {
			least *= t.Shape[d]
		}
	}
	return true
}
