//go:build cuda

package cuda

import (
	"fmt"
	"slices"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// TestPlaces writes many values by index: to places that all of them have, that few
// have, that none has, by rows and one by one, on floating-point and whole numbers.
// The CPU device writes them one after the other.
func TestPlaces(t *testing.T) {
	const n = manyRows + 500
	for _, c := range []struct {
		name   string
		places int64 // that values are drawn for, of the 600 there are
	}{{"few", 2}, {"all", 600}, {"one in ten", 60}} {
		t.Run(c.name, func(t *testing.T) {
			b, d := onBoth(t, Options{FP32: true}, 64<<20)
			draw := func(shape ...int64) *validate.ArenaView {
				return b.filled(graph.Int64, func() float64 { return float64(b.rng.Int64N(c.places)) }, nil, shape...)
			}
			var dt graph.DType
			run := func(name string, a program.Attrs, hashed bool, result *validate.ArenaView, args ...*validate.ArenaView) {
				t.Helper()
				call := newCall(name, &a, []*validate.ArenaView{result}, args)
				d.room(t, call, *b.top)
				if (call.Work.Bytes > 0) != hashed && dt != graph.BFloat16 {
					t.Errorf("%s works in %d bytes", name, call.Work.Bytes)
				}
				b.do(b, call)
			}
			for _, dt = range []graph.DType{graph.Float32, graph.BFloat16, graph.Int64} {
				along, first := program.Attrs{Dims: []int64{0}}, program.Attrs{Dims: []int64{0}, Scalars: []float64{1}}
				b.clear()
				run("index_backward", along, true, b.result(dt, nil, 600, 3), b.tensor(dt, nil, n, 3), draw(n))
				run("index_put", first, true, b.result(dt, nil, 600, 3), b.tensor(dt, nil, 600, 3), b.tensor(dt, nil, n, 3), draw(n))
				run("index_add", along, true, b.result(dt, reversed([]int64{600, 3}), 600, 3), b.tensor(dt, nil, 600, 3), draw(n), b.tensor(dt, nil, n, 3))
				run("index_select_backward", program.Attrs{Dims: []int64{1}}, true, b.result(dt, nil, 2, 600, 3), b.tensor(dt, nil, 2, n, 3), draw(n))
				b.clear()
				run("scatter_add", along, true, b.result(dt, nil, 600, 3), b.tensor(dt, nil, 600, 3), draw(n, 3), b.tensor(dt, nil, n, 3))
				run("scatter", along, true, b.result(dt, nil, 600), b.tensor(dt, nil, 600), draw(n), b.tensor(dt, nil, n))
				run("gather_backward", program.Attrs{Dims: []int64{1}}, true, b.result(dt, nil, 2, 600), b.tensor(dt, nil, 2, n), draw(2, n))
				shared := draw(n, 1)
				shared.Shape, shared.Strides = []int64{n, 3}, []int64{1, 0}
				run("scatter_add", along, true, b.result(dt, nil, 600, 3), b.tensor(dt, nil, 600, 3), shared, b.tensor(dt, nil, n, 3))
				run("index_add", along, false, b.result(dt, nil, 600, 3), b.tensor(dt, nil, 600, 3), draw(9), b.tensor(dt, nil, 9, 3))
			}
		})
	}
}

// TestPlacesBytes: what hashing works in is bounded, and none where there are few rows.
func TestPlacesBytes(t *testing.T) {
	for _, c := range []struct{ rows, bytes int64 }{{0, 0}, {manyRows - 1, 0}, {manyRows, 2048*slotBytes + manyRows*rowBytes}, {1 << 40, 0}} {
		if got := (places{rows: c.rows, width: 1}).bytes(); got != c.bytes {
			t.Errorf("%d rows work in %d bytes, not %d", c.rows, got, c.bytes)
		}
	}
	a := indexArgs{size: [maxDims]int64{2, 3, 5, 7}}
	a.firstDim(2)
	if got := fmt.Sprint(a.size[:4]); !slices.Equal(a.size[:4], []int64{5, 2, 3, 7}) {
		t.Errorf("dims %s", got)
	}
}

// TestApart: an overlapping window is added in as few launches as its shortest dim that
// overlaps has elements, not in one for every element of the dims before it.
func TestApart(t *testing.T) {
	for _, c := range []struct {
		shape, strides []int64
		launches       int64
	}{
		{[]int64{64, 8, 1000, 400}, []int64{1283200, 160400, 160, 1}, 400},   // frames of a signal
		{[]int64{64, 8, 20, 400}, []int64{27520, 3440, 160, 1}, 20},          // few of them
		{[]int64{2, 3, 12, 12, 3, 3}, []int64{588, 196, 14, 1, 14, 1}, 9},    // windows of an image
		{[]int64{4, 6}, []int64{6, 1}, 1},                                    // nothing overlaps
		{[]int64{2, 5, 7}, []int64{0, 7, 1}, 2},                              // all of one place
		{[]int64{2, 3, 12, 12, 3, 3}, []int64{7500, 2500, 50, 1, 200, 4}, 9}, // dilated
		{[]int64{16, 1, 9, 9, 2, 2}, []int64{324, 324, 36, 2, 18, 1}, 1},     // beside each other
	} {
		var count func(shape []int64) int64
		count = func(shape []int64) int64 {
			if !overlaps(shape, c.strides) {
				return 1
			}
			d := apart(shape, c.strides)
			cut := slices.Clone(shape)
			cut[d] = 1
			return shape[d] * count(cut)
		}
		if got := count(c.shape); got != c.launches {
			t.Errorf("%v with strides %v is added in %d launches, not %d", c.shape, c.strides, got, c.launches)
		}
	}
}
