package cuda

import (
	"fmt"
	"slices"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/planner/layout"
	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/internal/cases"
)

// TestRelayout runs the three passes of convolutions on copies, by the CPU
// device's kernels: the result has the bits of the pass on the tensors as they
// lie, operands are as they were, and nothing outside the copies is written.
func TestRelayout(t *testing.T) {
	orders := map[string]format{"rows": formatNCHW, "channels": formatNHWC}
	for _, groups := range []int64{1, 6} {
		for xo, xf := range orders {
			for yo, yf := range orders {
				for result, pass := range map[int]string{2: "forward", 0: "data", 1: "filter"} {
					t.Run(fmt.Sprintf("%s %s %s, %d groups", pass, xo, yo, groups), func(t *testing.T) {
						shape, weight := []int64{2, 6, 7, 5}, []int64{6, 6 / groups, 3, 3}
						b := newBench(t, 1<<20)
						b.number = fractions
						list := []*validate.ArenaView{b.tensor(graph.Float32, xf.strides(shape), shape...), b.tensor(graph.Float32, nil, weight...), b.tensor(graph.Float32, yf.strides(shape), shape...)}
						conv := window(2, 1, 1, 1, groups)
						relayout(b, &conv, result, list, xf != formatNCHW || yf != formatNCHW)
					})
				}
			}
		}
	}
}

// relayout runs a pass on a convolution's operand, weight and result, of which
// one is what the pass makes, as they lie and on copies.
func relayout(b *bench, conv *program.Conv, result int, list []*validate.ArenaView, copied bool) {
	run := func(l []validate.ArenaView) error {
		a, x, w, y := &program.Attrs{Conv: conv}, &l[0], &l[1], &l[2]
		switch result {
		case 2:
			b.run("convolution", a, []*validate.ArenaView{y}, x, w)
		case 0:
			b.run("convolution_backward", a, []*validate.ArenaView{x, nil, nil}, y, x, w)
		default:
			b.run("convolution_backward", a, []*validate.ArenaView{nil, w, nil}, y, x, w)
		}
		return nil
	}
	if err := run([]validate.ArenaView{*list[0], *list[1], *list[2]}); err != nil {
		b.t.Fatal(err)
	}
	var want [][]byte
	for _, x := range list {
		want = append(want, b.bytes(x))
	}
	b.blank(list[result]) // it is written anew
	c := copiesOf(formatNCHW, list...)
	if c.needed() != copied || c.bytes%layout.Align != 0 {
		b.t.Fatalf("copies %v in %d bytes", c.made, c.bytes)
	}
	work := b.tensor(graph.Float32, nil, c.bytes/4+64)
	guard := b.bytes(work)[c.bytes:]
	if err := c.run(work.At, result, b.move, run); err != nil {
		b.t.Fatal(err)
	}
	for i, x := range list {
		if !slices.Equal(b.bytes(x), want[i]) {
			b.t.Errorf("tensor %d differs", i)
		}
	}
	if !slices.Equal(b.bytes(work)[c.bytes:], guard) {
		b.t.Error("written behind the copies")
	}
}

// move is a moveFunc.
func (b *bench) move(to, from *validate.ArenaView) error {
	b.run("copy", nil, []*validate.ArenaView{to}, from)
	return nil
}

// TestRelayoutInPlace: a result that lies where an operand does is written after
// the operand was read, in its own order, and copies may lie apart.
func TestRelayoutInPlace(t *testing.T) {
	b := newBench(t, 1<<16)
	shape, n := []int64{2, 3, 2, 2}, 0.0
	x := b.filled(graph.Float32, func() float64 { n++; return n }, formatNHWC.strides(shape), shape...)
	y := b.filled(graph.Float32, func() float64 { return 100 }, nil, shape...)
	first, second := b.result(graph.Float32, nil, shape...), b.result(graph.Float32, nil, shape...)
	c := copiesOf(formatNCHW, x, y, x) // x and y are read, x is written
	if want := []bool{true, false, true}; !slices.Equal(c.made, want) {
		t.Fatalf("copies %v, want %v", c.made, want)
	}
	list := slices.Clone(c.tensors)
	list[0].At, list[2].At = second.At, first.At
	if err := c.runOn(list, func(i int) bool { return i < 2 }, func(i int) bool { return i == 2 }, b.move, func(l []validate.ArenaView) error {
		b.run("add", nil, []*validate.ArenaView{&l[2]}, &l[0], &l[1])
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	raw := b.bytes(x)
	for i := range x.Elems() {
		if got, want := cases.Number(raw, graph.Float32, i), float64(i+1+100); got != want {
			t.Fatalf("element %d is %v, want %v", i, got, want)
		}
	}
}

// TestRelayouts: every kind has a reason, and is found by its name.
func TestRelayouts(t *testing.T) {
	for _, r := range Relayouts {
		if r.Doc == "" || relays(r.Name) != r.On {
			t.Errorf("%+v", r)
		}
	}
	if relays("other") {
		t.Error("a kind that is not listed is on")
	}
}

// TestCopiesOf: only what lies otherwise is copied, and what does not is shown
// with the format's own strides.
func TestCopiesOf(t *testing.T) {
	s := []int64{2, 6, 7, 5}
	last := &validate.ArenaView{At: 512, DType: graph.BFloat16, Shape: s, Strides: []int64{210, 1, 30, 6}}
	rows := &validate.ArenaView{At: 4096, DType: graph.BFloat16, Shape: s, Strides: []int64{210, 35, 5, 1}}
	filter := &validate.ArenaView{At: 8192, DType: graph.BFloat16, Shape: []int64{6, 1, 3, 3}, Strides: []int64{9, 9, 3, 1}}
	c := copiesOf(formatNHWC, last, filter, rows)
	if !slices.Equal(c.made, []bool{false, false, true}) || c.bytes != 1024 { // 840 bytes
		t.Errorf("copies %v in %d bytes", c.made, c.bytes)
	}
	for i, want := range []struct {
		at      int64
		strides []int64
	}{{512, []int64{210, 1, 30, 6}}, {8192, []int64{9, 1, 3, 1}}, {0, []int64{210, 1, 30, 6}}} {
		if got := c.tensors[i]; got.At != want.at || !slices.Equal(got.Strides, want.strides) {
			t.Errorf("tensor %d at %d with strides %v, want %v", i, got.At, got.Strides, want)
		}
	}
}
