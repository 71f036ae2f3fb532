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

// reversed are strides with the first dim innermost.
func reversed(shape []int64) []int64 {
	back := slices.Clone(shape)
	slices.Reverse(back)
	out := validate.RowMajor(back)
	slices.Reverse(out)
	return out
}

// TestVolumes pools over windows of three dims, which overlap, lie apart or hang
// over the edges, on tensors in two orders of dims.
func TestVolumes(t *testing.T) {
	for _, p := range []program.Pool{
		{Kernel: []int64{2, 2, 2}, Stride: []int64{2, 2, 2}, Pad: []int64{0, 0, 0}, Dilation: []int64{1, 1, 1}},
		{Kernel: []int64{3, 1, 2}, Stride: []int64{1, 2, 3}, Pad: []int64{1, 0, 1}, Dilation: []int64{1, 1, 1}, ExcludePad: true},
		{Kernel: []int64{1, 3, 3}, Stride: []int64{1, 2, 2}, Pad: []int64{0, 1, 1}, Dilation: []int64{1, 1, 1}},
		{Kernel: []int64{2, 2, 3}, Stride: []int64{1, 2, 1}, Pad: []int64{1, 1, 1}, Dilation: []int64{1, 1, 1}, Divisor: 5},
		{Kernel: []int64{2, 3, 2}, Stride: []int64{2, 1, 1}, Pad: []int64{1, 1, 0}, Dilation: []int64{2, 1, 3}},
	} {
		small := []int64{2, 3, 0, 0, 0}
		size := []int64{2, 3, 5, 6, 7}
		for d := range 3 {
			small[d+2] = (size[d+2]+2*p.Pad[d]-p.Dilation[d]*(p.Kernel[d]-1)-1)/p.Stride[d] + 1
		}
		volumes(t, fmt.Sprint(p), &program.Attrs{Pool: &p, Dims: []int64{2, 3, 4}}, size, small)
	}
	for _, small := range [][]int64{{3, 2, 3}, {1, 1, 1}, {5, 7, 2}, {9, 6, 7}} {
		volumes(t, fmt.Sprint(small), &program.Attrs{Dims: []int64{2, 3, 4}}, []int64{2, 3, 5, 6, 7}, append([]int64{2, 3}, small...))
	}
	volumes(t, "a volume alone", &program.Attrs{Dims: []int64{1, 2, 3}}, []int64{3, 5, 6, 7}, []int64{3, 2, 2, 3})
}

// volumes runs all poolings that attributes describe.
func volumes(t *testing.T, name string, a *program.Attrs, size, small []int64) {
	t.Run(name, func(t *testing.T) {
		b := memoryBench(t)
		for i, dt := range trainingTypes {
			for _, order := range []func([]int64) []int64{validate.RowMajor, reversed} {
				b.clear()
				x, y := b.shifted(int64(i)).tensor(dt, order(size), size...), b.result(dt, nil, small...)
				g, dx := b.tensor(dt, order(small), small...), b.result(dt, order(size), size...)
				index := b.result(graph.Int64, order(small), small...)
				if a.Pool == nil {
					b.run("adaptive_avg_pool2d", a, []*validate.ArenaView{y}, x)
					b.run("adaptive_avg_pool2d_backward", a, []*validate.ArenaView{dx}, g, x)
					continue
				}
				b.run("max_pool_with_indices", a, []*validate.ArenaView{y, index}, x)
				b.run("max_pool2d_with_indices_backward", a, []*validate.ArenaView{dx}, g, x, index)
				if !slices.ContainsFunc(a.Pool.Dilation, func(d int64) bool { return d != 1 }) {
					b.run("avg_pool2d", a, []*validate.ArenaView{y}, x)
					b.run("avg_pool2d_backward", a, []*validate.ArenaView{dx}, g, x)
				}
			}
		}
	})
}

// TestDeepConvolutions runs own kernels for convolutions over three dims: groups,
// strides, dilation, padding, transposed ones, and tensors in two orders of dims.
func TestDeepConvolutions(t *testing.T) {
	t.Setenv(pathsEnv, "own")
	for _, c := range []struct {
		name       string
		conv       program.Conv
		x, w, y    []int64
		reversedIn bool
	}{
		{"groups", program.Conv{Stride: []int64{1, 2, 1}, Pad: []int64{0, 1, 2}, Dilation: []int64{1, 1, 2}, OutPad: []int64{0, 0, 0}, Groups: 2}, []int64{2, 4, 3, 5, 6}, []int64{6, 2, 2, 3, 3}, []int64{2, 6, 2, 3, 6}, false},
		{"one group", program.Conv{Stride: []int64{2, 1, 3}, Pad: []int64{1, 0, 1}, Dilation: []int64{2, 1, 1}, OutPad: []int64{0, 0, 0}, Groups: 1}, []int64{1, 3, 6, 4, 8}, []int64{5, 3, 3, 2, 4}, []int64{1, 5, 2, 3, 3}, true},
		{"transposed", program.Conv{Stride: []int64{2, 1, 2}, Pad: []int64{1, 0, 0}, Dilation: []int64{1, 1, 1}, OutPad: []int64{1, 0, 0}, Groups: 1, Transposed: true}, []int64{2, 3, 2, 3, 2}, []int64{3, 4, 3, 2, 2}, []int64{2, 4, 4, 4, 4}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := memoryBench(t)
			a := &program.Attrs{Conv: &c.conv}
			for _, dt := range trainingTypes {
				order := validate.RowMajor
				if c.reversedIn {
					order = reversed
				}
				b.clear()
				x, w, y := b.shifted(1).tensor(dt, order(c.x), c.x...), b.tensor(dt, order(c.w), c.w...), b.result(dt, nil, c.y...)
				g, dx, dw := b.tensor(dt, order(c.y), c.y...), b.result(dt, nil, c.x...), b.result(dt, order(c.w), c.w...)
				b.run("convolution", a, []*validate.ArenaView{y}, x, w, b.tensor(dt, nil, c.y[1]))
				b.run("convolution_backward", a, []*validate.ArenaView{dx, dw, b.result(dt, nil, c.y[1])}, g, x, w)
			}
		})
	}
}
