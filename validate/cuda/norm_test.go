//go:build cuda

package cuda

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/cpu"
	"github.com/memplan/memplan/validate/internal/cases"
)

// A stand lays tensors into the arenas of both devices and runs calls on them.
type stand struct {
	t     *testing.T
	d     *tandem
	rng   *rand.Rand
	top   int64
	shift int64 // elements that tensors lie behind where packs may start
}

// real writes a multiple of 1/64 below 4 in absolute value, which all types have.
func real(b []byte, d graph.DType, i int64, v float32) {
	bits := math.Float32bits(v)
	switch d {
	case graph.BFloat16:
		binary.LittleEndian.PutUint16(b[2*i:], uint16(bits>>16))
	case graph.Float16:
		h := uint16(bits >> 16 & 0x8000)
		if v != 0 {
			h |= uint16(bits>>23&255-112)<<10 | uint16(bits>>13&1023)
		}
		binary.LittleEndian.PutUint16(b[2*i:], h)
	default:
		cases.Put(b[d.Bytes(i):], d, float64(v))
	}
}

func (k *stand) place(dt graph.DType, strides []int64, shape ...int64) *validate.Tensor {
	if strides == nil {
		strides = rowMajor(shape)
	}
	x := &validate.Tensor{At: k.top + dt.Bytes(k.shift), DType: dt, Shape: shape, Strides: strides}
	k.top += (extent(x) + dt.Bytes(k.shift) + 255) / 256 * 256
	return x
}

// tensor makes one of numbers from -1 to 1, and of classes below limit where
// that is more than 0.
func (k *stand) tensor(dt graph.DType, limit int, strides []int64, shape ...int64) *validate.Tensor {
	x := k.place(dt, strides, shape...)
	raw := make([]byte, extent(x))
	for i := range int64(len(raw)) / dt.Bytes(1) {
		v := float32(k.rng.IntN(129)-64) / 64
		if limit > 0 {
			v = float32(k.rng.IntN(limit))
		}
		real(raw, dt, i, v)
	}
	if err := k.d.Device.Upload(x.At, raw); err != nil {
		k.t.Fatal(err)
	}
	return x
}

// run runs a call on both devices, and once more on the GPU: results must agree,
// and have the same bits again. It returns the results.
func (k *stand) run(kernel string, a *program.Attrs, results []*validate.Tensor, args ...*validate.Tensor) []*validate.Tensor {
	k.t.Helper()
	c := &validate.Call{Node: &program.Node{Op: kernel, Kernel: kernel, Name: kernel, Attrs: a}, Kernel: kernel}
	for _, x := range args {
		if x == nil {
			c.Args = append(c.Args, validate.Operand{})
			continue
		}
		c.Args = append(c.Args, onDevice(x))
	}
	for _, x := range results {
		c.Results = append(c.Results, *x)
	}
	k.d.faults = nil
	if err := k.d.Run(c); err != nil {
		k.t.Fatal(err)
	}
	for _, f := range k.d.faults {
		k.t.Error(f)
	}
	var bits [2][]byte
	for i := range bits {
		for _, x := range results {
			raw := make([]byte, extent(x))
			if err := k.d.gpu.Download(raw, x.At); err != nil {
				k.t.Fatal(err)
			}
			bits[i] = append(bits[i], raw...)
		}
		if c.Again = true; i > 0 {
			break
		}
		if err := k.d.gpu.Run(c); err != nil {
			k.t.Fatal(err)
		}
	}
	if !bytes.Equal(bits[0], bits[1]) {
		k.t.Errorf("%s of %v has other bits when it runs again", kernel, args[0].Shape)
	}
	return results
}

// onDesk runs a test for every training type, aligned and not.
func onDesk(t *testing.T, test func(k *stand, dt graph.DType)) {
	gpu, err := Open(Options{FP32: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := gpu.Close(); err != nil {
			t.Error(err)
		}
	}()
	d := &tandem{Device: cpu.New(), gpu: gpu, worst: map[string]float64{}, calls: map[string]int{}}
	if err := d.Reserve(256 << 20); err != nil {
		t.Fatal(err)
	}
	for _, dt := range []graph.DType{graph.Float32, graph.Float16, graph.BFloat16} {
		for shift := range int64(2) {
			t.Run(fmt.Sprintf("%v/%d", dt, shift), func(t *testing.T) {
				test(&stand{t: t, d: d, rng: rand.New(rand.NewPCG(1, 2)), shift: shift}, dt)
			})
		}
	}
	t.Logf("largest differences, relative to what is allowed: %v", d.worst)
}

// TestRowNorms: rows of teams of every size, of more elements than those keep,
// and of odd ones; few rows and many.
func TestRowNorms(t *testing.T) {
	onDesk(t, func(k *stand, dt graph.DType) {
		for _, s := range [][]int64{{1, 8}, {197, 768}, {1500, 96}, {37, 192}, {3, 1280}, {5, 3072}, {2, 16384}, {1, 20000}, {70, 33}, {3000, 16}, {9, 1}} {
			k.top = 0
			a := &program.Attrs{Dims: []int64{1}, Scalars: []float64{1e-5}}
			x, g, w, b := k.tensor(dt, 0, nil, s...), k.tensor(dt, 0, nil, s...), k.tensor(dt, 0, nil, s[1]), k.tensor(dt, 0, nil, s[1])
			f := graph.Float32
			y := k.run("native_layer_norm", a, []*validate.Tensor{k.place(dt, nil, s...), k.place(f, nil, s[0], 1), k.place(f, nil, s[0], 1)}, x, w, b)
			k.run("native_layer_norm_backward", a, []*validate.Tensor{k.place(dt, nil, s...), k.place(dt, nil, s[1]), k.place(dt, nil, s[1])}, g, x, w, y[1], y[2])
			y = k.run("_fused_rms_norm", a, []*validate.Tensor{k.place(dt, nil, s...), k.place(f, nil, s[0], 1)}, x, w)
			k.run("_fused_rms_norm_backward", a, []*validate.Tensor{k.place(dt, nil, s...), k.place(dt, nil, s[1])}, g, x, w, y[1])
		}
	})
}

// TestSums: columns and rows, in one pass and two, in both orders of an image's
// dims.
func TestSums(t *testing.T) {
	onDesk(t, func(k *stand, dt graph.DType) {
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
			{shape: image, strides: channelsLast(image), dims: []int64{0, 2, 3}, out: []int64{96}},
			{shape: image, strides: channelsLast(image), dims: []int64{2, 3}, out: []int64{8, 96}},
			{shape: []int64{9, 130, 7, 7}, dims: []int64{2, 3}, out: []int64{9, 130}},
			{shape: []int64{9, 130, 7, 7}, dims: []int64{0, 2, 3}, out: []int64{130}},
			{shape: []int64{600, 64}, dims: []int64{1}, out: []int64{600}},
			{shape: []int64{2, 2}, dims: []int64{0}, out: []int64{2}},
			{shape: []int64{700, 300}, dims: []int64{0, 1}, out: []int64{}},
		} {
			for _, name := range []string{"sum", "mean"} {
				k.top = 0
				x := k.tensor(dt, 0, s.strides, s.shape...)
				a := &program.Attrs{Dims: s.dims}
				k.run(name, a, []*validate.Tensor{k.place(dt, nil, s.out...)}, x)
			}
		}
	})
}

// TestRunningSums: lines of a thread and of a warp, of numbers and of whole ones.
func TestRunningSums(t *testing.T) {
	onDesk(t, func(k *stand, dt graph.DType) {
		for _, s := range [][]int64{{8, 256}, {3, 70}, {5, 1000}, {40, 7}} {
			for dim := range int64(2) {
				for d, limit := range map[graph.DType]int{dt: 0, graph.Int64: 9} {
					k.top = 0
					k.run("cumsum", &program.Attrs{Dims: []int64{dim}}, []*validate.Tensor{k.place(d, nil, s...)}, k.tensor(d, limit, nil, s...))
				}
			}
		}
	})
}

// TestSoftmaxes: rows that teams keep, and longer ones, of which each starts
// elsewhere between two packs.
func TestSoftmaxes(t *testing.T) {
	onDesk(t, func(k *stand, dt graph.DType) {
		for _, s := range [][]int64{{200, 256}, {33, 197}, {3, 50257}, {5, 5021}, {4, 1024}, {7, 1000}, {70, 8}, {2, 300}, {9, 1}, {3, 1100}} {
			for _, name := range []string{"softmax", "log_softmax"} {
				for _, wide := range []graph.DType{dt, graph.Float32} {
					k.top = 0
					a := &program.Attrs{Dims: []int64{1}}
					x, g := k.tensor(dt, 0, nil, s...), k.tensor(wide, 0, nil, s...)
					y := k.run(name, a, []*validate.Tensor{k.place(wide, nil, s...)}, x)
					k.run("_"+name+"_backward_data", a, []*validate.Tensor{k.place(dt, nil, s...)}, g, y[0])
				}
			}
		}
	})
}

// TestBatchNorms: planes in packs and odd ones, channels innermost, and no planes;
// channels that are split and that are not.
func TestBatchNorms(t *testing.T) {
	onDesk(t, func(k *stand, dt graph.DType) {
		for _, s := range [][]int64{{8, 64, 14, 14}, {4, 33, 7, 7}, {3, 2, 60, 64}, {2, 3, 1, 3}, {40, 50, 1, 1}} {
			for order, strides := range map[string][]int64{"rows": nil, "channels": channelsLast(s)} {
				for train := range 2 {
					k.top = 0
					a := &program.Attrs{Scalars: []float64{1e-5, 0.1, float64(train)}}
					f, c := graph.Float32, s[1]
					x, g, w, b := k.tensor(dt, 0, strides, s...), k.tensor(dt, 0, strides, s...), k.tensor(dt, 0, nil, c), k.tensor(dt, 0, nil, c)
					rm, rv := k.tensor(f, 0, nil, c), k.tensor(f, 3, nil, c)
					y := []*validate.Tensor{k.place(dt, strides, s...)}
					if train == 1 {
						y = append(y, k.place(f, nil, c), k.place(f, nil, c))
					}
					y = k.run("batch_norm", a, y, x, w, b, rm, rv)
					args := append([]*validate.Tensor{g, x, w, rm, rv}, y[1:]...)
					k.run("batch_norm_backward", a, []*validate.Tensor{k.place(dt, strides, s...), k.place(dt, nil, c), k.place(dt, nil, c)}, args...)
					if k.t.Failed() {
						k.t.Fatalf("%v in order of %s, train %d", s, order, train)
					}
				}
			}
		}
	})
}

// TestLosses: classes of rows, some of them ignored, and of images.
func TestLosses(t *testing.T) {
	onDesk(t, func(k *stand, dt graph.DType) {
		for name, s := range map[string][]int64{"nll_loss": {700, 301}, "nll_loss2d": {3, 21, 30, 31}} {
			for _, reduction := range []float64{1, 2} {
				k.top = 0
				a := &program.Attrs{Scalars: []float64{reduction, 5}}
				ls := k.tensor(dt, 0, nil, s...)
				target := k.tensor(graph.Int64, int(s[1]), nil, append([]int64{s[0]}, s[2:]...)...)
				y := k.run(name+"_forward", a, []*validate.Tensor{k.place(dt, nil), k.place(dt, nil)}, ls, target)
				k.run(name+"_backward", a, []*validate.Tensor{k.place(dt, nil, s...)}, k.tensor(dt, 0, nil), ls, target, y[1])
			}
		}
	})
}
