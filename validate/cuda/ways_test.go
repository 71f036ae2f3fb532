//go:build cuda

package cuda

import (
	"fmt"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// A wayCase is a pass with the paths that are on, and the first way that it has.
type wayCase struct {
	paths          string
	depth          bool
	dtype          graph.DType
	order          string // of operand, weight and result
	p              pass
	path           string
	made           string // r or c for the order of a copy, - for none
	transposedConv bool
}

// TestWays: which path takes a pass, and which of its tensors it copies.
func TestWays(t *testing.T) {
	for _, c := range []wayCase{
		{"", false, graph.BFloat16, "ccc", forwardPass, pathGraph, "", false},
		{"", false, graph.BFloat16, "crc", forwardPass, pathGraph, "-c-", false},
		{"", false, graph.Float32, "ccr", dataPass, pathGraph, "--c", false},
		{"", false, graph.Float32, "rrc", filterPass, pathGraph, "--r", false},
		{"", false, graph.Float32, "rrr", filterPass, pathGraph, "", false},
		{"", false, graph.Float32, "rrc", dataPass, pathGraph, "cc-", true},
		{"legacy", false, graph.Float32, "rrr", forwardPass, pathLegacy, "", false},
		{"own", false, graph.Float32, "rrr", forwardPass, "own", "", false},
		{"", true, graph.BFloat16, "crc", forwardPass, "own", "", false}, // the weight lies both ways
		{"", true, graph.BFloat16, "crr", filterPass, "own", "r--", false},
		{"", true, graph.Float32, "crc", dataPass, "own", "", false},
		{"graph", true, graph.BFloat16, "crc", forwardPass, pathGraph, "", false},
		{"graph", true, graph.BFloat16, "crr", filterPass, pathGraph, "--c", false},
		{"", true, graph.Float32, "crc", filterPass, "own", "", false},
		{"", true, graph.Float32, "rrr", forwardPass, "own", "", false},
		{"", true, graph.BFloat16, "rrr", filterPass, "own", "", false},
		{"graph", true, graph.Float32, "crc", filterPass, pathGraph, "", false},
		{"legacy", true, graph.BFloat16, "crc", forwardPass, "own", "", false},
	} {
		t.Run(fmt.Sprint(c.paths, c.depth, c.dtype, c.order, " ", c.p), func(t *testing.T) { c.check(t) })
	}
}

// check looks for the ways of a pass, and compares the first.
func (c *wayCase) check(t *testing.T) {
	t.Setenv(pathsEnv, c.paths)
	d := open(t, Options{FP32: true})
	tensor := func(shape []int64, order byte) *validate.ArenaView {
		f := formatNCHW
		if order == 'c' {
			f = formatNHWC
		}
		return &validate.ArenaView{DType: c.dtype, Shape: shape, Strides: f.strides(shape)}
	}
	conv, weight := window(2, 1, 1, 1, 1), []int64{16, 16, 3, 3}
	if c.depth {
		conv, weight = window(2, 1, 1, 1, 16), []int64{16, 1, 3, 3}
	}
	conv.Transposed = c.transposedConv
	image := []int64{2, 16, 12, 10}
	if err := d.enter(); err != nil {
		t.Fatal(err)
	}
	defer d.leave()
	if c.path != "own" {
		needsDNN(t, d)
	}
	list := d.ways(&conv, c.p, tensor(image, c.order[0]), tensor(weight, c.order[1]), tensor(image, c.order[2]))
	v := &list[0]
	if got := wayName(v); got != c.path {
		t.Errorf("by %s (%v), want %s", got, v.err, c.path)
	}
	if got := copied(v); got != c.made {
		t.Errorf("copies %q, want %q", got, c.made)
	}
	if last := &list[len(list)-1]; last.bytes != 0 {
		t.Errorf("the last way needs %d bytes", last.bytes)
	}
}

func wayName(v *way) string {
	switch {
	case v.graph != nil:
		return pathGraph
	case v.plan != nil:
		return pathLegacy
	}
	return "own"
}

// copied shows the copies of a way: a letter for the order of each, - for none.
func copied(v *way) string {
	if v.copies == nil {
		return ""
	}
	out := ""
	for i, made := range v.copies.made {
		switch {
		case !made:
			out += "-"
		case formatNHWC.holds(&v.copies.tensors[i]):
			out += "c"
		default:
			out += "r"
		}
	}
	return out
}

// TestAligned: what an address is a multiple of.
func TestAligned(t *testing.T) {
	for at, want := range map[int64]int8{0: 32, 2: 2, 4: 4, 6: 2, 48: 16, 64: 32, 33: 1} {
		if got := alignment(at); got != want {
			t.Errorf("%d: %d, want %d", at, got, want)
		}
	}
	n := shown([]program.View{{DType: graph.BFloat16, Offset: 3}}, 0)
	if got := alignment(n.At); got != 2 {
		t.Errorf("a view that starts at the third number: %d", got)
	}
}
