package cuda

import (
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// TestPathsOn: the table's paths are on, or those that the variable names.
func TestPathsOn(t *testing.T) {
	var all []string
	for _, p := range Paths {
		if p.Doc == "" {
			t.Errorf("%s has no reason", p.Name)
		}
		if p.On {
			all = append(all, p.Name)
		}
	}
	for value, want := range map[string][]string{"": all, "graph": {"graph"}, "legacy": {"legacy"}, "own": nil, "legacy,graph": {"graph", "legacy"}} {
		got, err := pathsOn(func(string) string { return value })
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v; want %q", value, got, err, want)
		}
	}
	if _, err := pathsOn(func(string) string { return "graph,cudnn" }); err == nil || !strings.Contains(err.Error(), `"cudnn"`) || !strings.Contains(err.Error(), "legacy") {
		t.Errorf("a name that is none: %v", err)
	}
}

// TestFormat: strides of a format, and which tensors lie so.
func TestFormat(t *testing.T) {
	for _, c := range []struct {
		f              format
		shape, strides []int64
	}{
		{formatNCHW, []int64{2, 3, 4, 5}, []int64{60, 20, 5, 1}},
		{formatNHWC, []int64{2, 3, 4, 5}, []int64{60, 1, 15, 3}},
		{formatNCHW, []int64{8, 1, 7, 7}, []int64{49, 49, 7, 1}},
		{formatNHWC, []int64{8, 1, 7, 7}, []int64{49, 1, 7, 1}},
		{formatNCHW, []int64{2, 3, 4}, []int64{12, 4, 1}},
		{formatNCHW, []int64{2, 3, 4, 5, 6}, []int64{360, 120, 30, 6, 1}},
	} {
		if got := c.f.strides(c.shape); !slices.Equal(got, c.strides) {
			t.Errorf("%v of %v: %v, want %v", c.f, c.shape, got, c.strides)
		}
		if !c.f.holds(&validate.ArenaView{Shape: c.shape, Strides: c.strides}) {
			t.Errorf("%v does not hold its own %v", c.f, c.shape)
		}
	}
	for _, c := range []struct {
		shape, strides []int64
		rows, channels bool
	}{
		{[]int64{2, 3, 4, 5}, []int64{60, 20, 5, 1}, true, false},
		{[]int64{2, 3, 4, 5}, []int64{60, 1, 15, 3}, false, true},
		{[]int64{2, 3, 4, 5}, []int64{120, 1, 30, 6}, false, false}, // a part of six channels
		{[]int64{2, 3, 4, 5}, []int64{0, 0, 0, 0}, false, false},    // one number everywhere
		{[]int64{8, 1, 7, 7}, []int64{49, 9, 7, 1}, true, true},
		{[]int64{8, 4, 1, 1}, []int64{4, 1, 4, 4}, true, true},
	} {
		x := &validate.ArenaView{Shape: c.shape, Strides: c.strides}
		if formatNCHW.holds(x) != c.rows || formatNHWC.holds(x) != c.channels {
			t.Errorf("%v %v: row-major %v, channels innermost %v", c.shape, c.strides, formatNCHW.holds(x), formatNHWC.holds(x))
		}
	}
}

// TestFormatOf: the order of a convolution is that of operand or weight, never
// of the result; for a transposed one the operand is what its result side holds.
func TestFormatOf(t *testing.T) {
	image := func(order byte) *validate.ArenaView {
		s := []int64{2, 6, 5, 5}
		if order == 'c' {
			return &validate.ArenaView{DType: graph.BFloat16, Shape: s, Strides: []int64{150, 1, 30, 6}}
		}
		return &validate.ArenaView{DType: graph.BFloat16, Shape: s, Strides: []int64{150, 25, 5, 1}}
	}
	two := []int64{1, 1}
	for order, want := range map[string]format{"rrr": formatNCHW, "crr": formatNHWC, "rcr": formatNHWC, "rrc": formatNCHW, "ccc": formatNHWC} {
		if got := formatOf(&program.Conv{Stride: two}, image(order[0]), image(order[1]), image(order[2])); got != want {
			t.Errorf("%s: %v", order, got)
		}
	}
	if got := formatOf(&program.Conv{Stride: two, Transposed: true}, image('r'), image('r'), image('c')); got != formatNHWC {
		t.Errorf("transposed: %v", got)
	}
	if got := formatOf(&program.Conv{Stride: two, Transposed: true}, image('c'), image('r'), image('r')); got != formatNCHW {
		t.Errorf("transposed, its result: %v", got)
	}
	flat := &validate.ArenaView{DType: graph.BFloat16, Shape: []int64{2, 6, 5}, Strides: []int64{30, 1, 6}}
	if got := formatOf(&program.Conv{Stride: two[:1]}, flat, flat, flat); got != formatNCHW {
		t.Errorf("one dim: %v", got)
	}
	part := &validate.ArenaView{DType: graph.BFloat16, Shape: []int64{2, 3, 5, 5}, Strides: []int64{150, 1, 30, 6}} // a part of six channels
	if got := formatOf(&program.Conv{Stride: two}, part, image('r'), image('r')); got != formatNHWC {
		t.Errorf("a part of the channels: %v", got)
	}
}
