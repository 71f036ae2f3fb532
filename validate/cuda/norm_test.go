//go:build cuda

package cuda

import (
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// TestRowNorms: rows of teams of every size, of more elements than those keep,
// and of odd ones; few rows and many.
func TestRowNorms(t *testing.T) {
	eachType(t, func(b *bench, dt graph.DType) {
		for _, s := range [][]int64{{1, 8}, {197, 768}, {1500, 96}, {37, 192}, {3, 1280}, {5, 3072}, {2, 16384}, {1, 20000}, {70, 33}, {3000, 16}, {9, 1}} {
			b.clear()
			a := &program.Attrs{Dims: []int64{1}, Scalars: []float64{1e-5}}
			x, g, w, bias := b.tensor(dt, nil, s...), b.tensor(dt, nil, s...), b.tensor(dt, nil, s[1]), b.tensor(dt, nil, s[1])
			f := graph.Float32
			y := b.run("native_layer_norm", a, []*validate.ArenaView{b.result(dt, nil, s...), b.result(f, nil, s[0], 1), b.result(f, nil, s[0], 1)}, x, w, bias)
			b.run("native_layer_norm_backward", a, []*validate.ArenaView{b.result(dt, nil, s...), b.result(dt, nil, s[1]), b.result(dt, nil, s[1])}, g, x, w, y[1], y[2])
			y = b.run("_fused_rms_norm", a, []*validate.ArenaView{b.result(dt, nil, s...), b.result(f, nil, s[0], 1)}, x, w)
			b.run("_fused_rms_norm_backward", a, []*validate.ArenaView{b.result(dt, nil, s...), b.result(dt, nil, s[1])}, g, x, w, y[1])
		}
	})
}

// TestSums: columns and rows, in one pass and two, in both orders of an image's
// dims.
func TestSums(t *testing.T) {
	eachType(t, func(b *bench, dt graph.DType) {
		image := []int64{8, 96, 14, 14}
		for _, s := range []struct {
			shape, strides, dims, out []int64
		}{
			{shape: []int64{1500, 768}, dims: []int64{0}, out: []int64{768}},
			{shape: []int64{3000, 7}, dims: []int64{0}, out: []int64{7}},
			{shape: []int64{16, 9, 9, 96}, dims: []int64{0, 1, 2}, out: []int64{96}},
			{shape: []int64{16, 20, 768}, dims: []int64{0}, out: []int64{20, 768}},
			{shape: []int64{5, 300, 33}, dims: []int64{1}, out: []int64{5, 33}},
			{shape: image, dims: []int64{0, 2, 3}, out: []int64{96}},
			{shape: image, strides: formatNHWC.strides(image), dims: []int64{0, 2, 3}, out: []int64{96}},
			{shape: image, strides: formatNHWC.strides(image), dims: []int64{2, 3}, out: []int64{8, 96}},
			{shape: []int64{9, 130, 7, 7}, dims: []int64{2, 3}, out: []int64{9, 130}},
			{shape: []int64{9, 130, 7, 7}, dims: []int64{0, 2, 3}, out: []int64{130}},
			{shape: []int64{600, 64}, dims: []int64{1}, out: []int64{600}},
			{shape: []int64{2, 2}, dims: []int64{0}, out: []int64{2}},
			{shape: []int64{700, 300}, dims: []int64{0, 1}, out: []int64{}},
		} {
			for _, name := range []string{"sum", "mean"} {
				b.clear()
				x := b.tensor(dt, s.strides, s.shape...)
				a := &program.Attrs{Dims: s.dims}
				b.run(name, a, []*validate.ArenaView{b.result(dt, nil, s.out...)}, x)
			}
		}
	})
}

// TestRunningSums: lines of a thread and of a warp, of numbers and of whole ones.
func TestRunningSums(t *testing.T) {
	eachType(t, func(b *bench, dt graph.DType) {
		for _, s := range [][]int64{{8, 256}, {3, 70}, {5, 1000}, {40, 7}} {
			for dim := range int64(2) {
				a := &program.Attrs{Dims: []int64{dim}}
				b.clear()
				b.run("cumsum", a, []*validate.ArenaView{b.result(dt, nil, s...)}, b.tensor(dt, nil, s...))
				b.run("cumsum", a, []*validate.ArenaView{b.result(graph.Int64, nil, s...)}, b.classes(graph.Int64, 9, nil, s...))
			}
		}
	})
}

// TestSoftmaxes: rows that teams keep, and longer ones, of which each starts
// elsewhere between two packs.
func TestSoftmaxes(t *testing.T) {
	eachType(t, func(b *bench, dt graph.DType) {
		for _, s := range [][]int64{{200, 256}, {33, 197}, {3, 50257}, {5, 5021}, {4, 1024}, {7, 1000}, {70, 8}, {2, 300}, {9, 1}, {3, 1100}} {
			for _, name := range []string{"softmax", "log_softmax"} {
				for _, wide := range []graph.DType{dt, graph.Float32} {
					b.clear()
					a := &program.Attrs{Dims: []int64{1}}
					x, g := b.tensor(dt, nil, s...), b.tensor(wide, nil, s...)
					y := b.run(name, a, []*validate.ArenaView{b.result(wide, nil, s...)}, x)
					b.run("_"+name+"_backward_data", a, []*validate.ArenaView{b.result(dt, nil, s...)}, g, y[0])
				}
			}
		}
	})
}

// TestBatchNorms: planes in packs and odd ones, channels innermost, and no planes;
// channels that are split and that are not.
func TestBatchNorms(t *testing.T) {
	eachType(t, func(b *bench, dt graph.DType) {
		for _, s := range [][]int64{{8, 64, 14, 14}, {4, 33, 7, 7}, {3, 2, 60, 64}, {2, 3, 1, 3}, {40, 50, 1, 1}} {
			for order, strides := range map[string][]int64{"rows": nil, "channels": formatNHWC.strides(s)} {
				for train := range 2 {
					b.clear()
					a := &program.Attrs{Scalars: []float64{1e-5, 0.1, float64(train)}}
					f, c := graph.Float32, s[1]
					x, g, w, bias := b.tensor(dt, strides, s...), b.tensor(dt, strides, s...), b.tensor(dt, nil, c), b.tensor(dt, nil, c)
					rm, rv := b.tensor(f, nil, c), b.classes(f, 3, nil, c)
					y := []*validate.ArenaView{b.result(dt, strides, s...)}
					if train == 1 {
						y = append(y, b.result(f, nil, c), b.result(f, nil, c))
					}
					y = b.run("batch_norm", a, y, x, w, bias, rm, rv)
					args := append([]*validate.ArenaView{g, x, w, rm, rv}, y[1:]...)
					b.run("batch_norm_backward", a, []*validate.ArenaView{b.result(dt, strides, s...), b.result(dt, nil, c), b.result(dt, nil, c)}, args...)
					if b.t.Failed() {
						b.t.Fatalf("%v in order of %s, train %d", s, order, train)
					}
				}
			}
		}
	})
}

// TestLosses: classes of rows, some of them ignored, and of images.
func TestLosses(t *testing.T) {
	eachType(t, func(b *bench, dt graph.DType) {
		for name, s := range map[string][]int64{"nll_loss": {700, 301}, "nll_loss2d": {3, 21, 30, 31}} {
			for _, reduction := range []float64{1, 2} {
				b.clear()
				a := &program.Attrs{Scalars: []float64{reduction, 5}}
				ls := b.tensor(dt, nil, s...)
				target := b.classes(graph.Int64, int(s[1]), nil, append([]int64{s[0]}, s[2:]...)...)
				y := b.run(name+"_forward", a, []*validate.ArenaView{b.result(dt, nil), b.result(dt, nil)}, ls, target)
				b.run(name+"_backward", a, []*validate.ArenaView{b.result(dt, nil, s...)}, b.tensor(dt, nil), ls, target, y[1])
			}
		}
	})
}
