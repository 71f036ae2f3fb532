//go:build cuda

package cuda

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/cpu"
	"github.com/memplan/memplan/validate/internal/cases"
)

// A desk runs calls on tensors of its own on both devices.
type desk struct {
	t   *testing.T
	d   *tandem
	rng *rand.Rand
	top int64
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	gpu, err := Open(Options{FP32: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := gpu.Close(); err != nil {
			t.Error(err)
		}
	})
	d := &tandem{Device: cpu.New(), gpu: gpu, worst: map[string]float64{}, calls: map[string]int{}}
	if err := d.Reserve(64 << 20); err != nil {
		t.Fatal(err)
	}
	return &desk{t: t, d: d, rng: rand.New(rand.NewPCG(7, 8))}
}

var trainingTypes = []graph.DType{graph.Float32, graph.Float16, graph.BFloat16}

// bitsOf encodes a number that the type holds exactly: eighths up to 16.
func bitsOf(d graph.DType, b []byte, v float64) {
	f := math.Float32bits(float32(v))
	switch {
	case d == graph.Float16 && v == 0:
		binary.LittleEndian.PutUint16(b, 0)
	case d == graph.Float16:
		binary.LittleEndian.PutUint16(b, uint16(f>>16&0x8000)|uint16((f>>23&255)-112)<<10|uint16(f>>13&1023))
	case d == graph.BFloat16:
		binary.LittleEndian.PutUint16(b, uint16(f>>16))
	default:
		cases.Put(b, d, v)
	}
}

// tensor lays a tensor of random eighths, or zeros and ones, skip elements
// behind a multiple of 256 bytes.
func (b *desk) tensor(d graph.DType, shape, strides []int64, skip int64) validate.Tensor {
	x := validate.Tensor{At: b.top + d.Bytes(skip), DType: d, Shape: shape, Strides: strides}
	raw := make([]byte, extent(&x))
	for i := int64(0); i < int64(len(raw)); i += d.Bytes(1) {
		v := float64(b.rng.IntN(31)-15) / 8
		if !d.IsFloat() {
			v = float64(b.rng.IntN(2))
		}
		bitsOf(d, raw[i:], v)
	}
	if err := b.d.Device.Upload(x.At, raw); err != nil {
		b.t.Fatal(err)
	}
	b.top = (x.At + int64(len(raw)) + 255) / 256 * 256
	return x
}

// rows is tensor with row-major strides.
func (b *desk) rows(d graph.DType, shape ...int64) validate.Tensor {
	return b.tensor(d, shape, rowMajor(shape), 0)
}

// call runs a kernel on both devices and fails where they differ. Tensors made
// after it take the place of those before.
func (b *desk) call(kernel string, a *program.Attrs, results []validate.Tensor, args ...validate.Operand) {
	b.t.Helper()
	b.d.faults = nil
	c := &validate.Call{Node: &program.Node{Op: kernel, Attrs: a}, Kernel: kernel, Args: args, Results: results, Seed: 0x9876543210abcdef}
	if err := b.d.Run(c); err != nil {
		b.t.Fatal(err)
	}
	for _, f := range b.d.faults {
		b.t.Error(f)
	}
	b.top = 0
}

// TestStridedOperators runs operators and copies on tensors whose dims lie in
// any order, with holes, broadcast, and at any address.
func TestStridedOperators(t *testing.T) {
	b := newDesk(t)
	for range 900 {
		kernel := []string{"copy", "copy", "add", "mul", "where", "masked_fill", "neg", "native_dropout_backward", "exp"}[b.rng.IntN(9)]
		shape := make([]int64, 1+b.rng.IntN(4))
		for d := range shape {
			shape[d] = []int64{1, 3, 8, 16, 20, 33, 70}[b.rng.IntN(7)]
		}
		if d := len(shape) - 1; d == 3 {
			shape[b.rng.IntN(4)] = 2
		}
		types := make([]graph.DType, 4)
		for i := range types {
			types[i] = trainingTypes[b.rng.IntN(3)]
			if b.rng.IntN(3) > 0 {
				types[i] = types[0]
			}
		}
		switch kernel {
		case "where":
			types[1] = graph.Bool
		case "masked_fill", "native_dropout_backward":
			types[2] = graph.Bool
		case "copy":
			if b.rng.IntN(4) == 0 {
				types[0], types[1] = graph.Int64, graph.Int64
			}
		}
		out := b.tensor(types[0], shape, layout(b.rng, shape, 8), b.rng.Int64N(2))
		var args []validate.Operand
		for i := range Operators[operatorCode(kernel)].Inputs {
			s, wide := layout(b.rng, shape, 8), slices.Clone(shape)
			if b.rng.IntN(2) == 0 {
				s = slices.Clone(out.Strides)
			}
			if d := b.rng.IntN(len(shape)); i > 0 && b.rng.IntN(2) == 0 {
				wide[d] = 1
			}
			x := b.tensor(types[i+1], wide, s, b.rng.Int64N(2))
			args = append(args, onDevice(&x))
		}
		a := &program.Attrs{}
		if kernel == "add" || kernel == "native_dropout_backward" {
			a.Scalars = []float64{2}
		}
		b.call(kernel, a, []validate.Tensor{out}, args...)
	}
}

// TestWindows: slices and selected elements of gradients, padded tensors, and
// tensors beside each other of which some are turned.
func TestWindows(t *testing.T) {
	b := newDesk(t)
	shape, rows := []int64{5, 24, 40}, []int64{960, 40, 1}
	for _, dt := range trainingTypes {
		for d := range shape {
			for _, cut := range [][2]int64{{0, 1}, {1, 3}, {0, shape[d]}, {shape[d] - 2, 2}, {shape[d] / 2, shape[d] - shape[d]/2}} {
				in := slices.Clone(shape)
				in[d] = cut[1]
				a := &program.Attrs{Window: &program.Window{Strides: rows, Offset: cut[0] * rows[d]}, Scalars: []float64{1.5}}
				for _, kernel := range []string{"unview", "constant_pad_nd"} {
					x, out := b.tensor(dt, in, layout(b.rng, in, 8), 0), b.rows(dt, shape...)
					b.call(kernel, a, []validate.Tensor{out}, onDevice(&x))
				}
				if cut[1] == 1 {
					in = slices.Delete(in, d, d+1)
					x, out := b.rows(dt, in...), b.rows(dt, shape...)
					b.call("unview", &program.Attrs{Window: &program.Window{Strides: slices.Delete(slices.Clone(rows), d, d+1), Offset: cut[0] * rows[d]}}, []validate.Tensor{out}, onDevice(&x))
				}
			}
			parts, whole := [3]validate.Operand{}, slices.Clone(shape)
			for i := range parts {
				s := rows
				if i == 1 {
					s = []int64{960, 1, 24}
				}
				x := b.tensor(dt, shape, s, 0)
				parts[i], whole[d] = onDevice(&x), 3*shape[d]
			}
			out := b.rows(dt, whole...)
			b.call("cat", &program.Attrs{Dims: []int64{int64(d)}}, []validate.Tensor{out}, parts[:]...)
		}
	}
}

// TestMaxPools runs max pooling and its backward with windows that overlap, that
// lie apart, and that hang over the edges, in all orders of dims.
func TestMaxPools(t *testing.T) {
	b := newDesk(t)
	orders := []func([]int64) []int64{rowMajor, channelsLast}
	for _, dt := range trainingTypes {
		for _, p := range []struct{ k, s, pad, d int64 }{{2, 2, 0, 1}, {3, 2, 1, 1}, {3, 3, 0, 1}, {3, 1, 1, 1}, {2, 1, 0, 1}, {2, 3, 1, 1}, {3, 2, 1, 2}, {5, 4, 2, 1}, {1, 2, 0, 1}} {
			for _, size := range [][]int64{{2, 5, 14, 16}, {1, 8, 15, 13}} {
				for i := range 8 {
					small := slices.Clone(size)
					for d := 2; d < 4; d++ {
						small[d] = (size[d]+2*p.pad-p.d*(p.k-1)-1)/p.s + 1
					}
					two := func(v int64) []int64 { return []int64{v, v} }
					a := &program.Attrs{Pool: &program.Pool{Kernel: two(p.k), Stride: two(p.s), Pad: two(p.pad), Dilation: two(p.d)}, Dims: []int64{2, 3}}
					x := b.tensor(dt, size, orders[i%2](size), int64(i/4))
					y, index := b.tensor(dt, small, orders[i/2%2](small), 0), b.tensor(graph.Int64, small, orders[i/4](small), 0)
					g, dx := b.tensor(dt, small, orders[i/4](small), 0), b.tensor(dt, size, orders[i/2%2](size), int64(i%2))
					b.call("max_pool_with_indices", a, []validate.Tensor{y, index}, onDevice(&x))
					b.call("max_pool2d_with_indices_backward", a, []validate.Tensor{dx}, onDevice(&g), onDevice(&x), onDevice(&index))
				}
			}
		}
	}
}

// TestDropouts: the numbers of an element are the same on both devices, in
// whole groups and behind them.
func TestDropouts(t *testing.T) {
	b := newDesk(t)
	for _, dt := range trainingTypes {
		for _, n := range []int64{1, 7, 8, 9, 4096, 5003} {
			for skip := range int64(2) {
				a := &program.Attrs{Scalars: []float64{0.3}}
				x, mask, out := b.tensor(dt, []int64{n}, []int64{1}, skip), b.tensor(graph.Bool, []int64{n}, []int64{1}, 0), b.tensor(dt, []int64{n}, []int64{1}, 0)
				g, dx := b.tensor(dt, []int64{n}, []int64{1}, skip), b.tensor(dt, []int64{n}, []int64{1}, 0)
				b.call("native_dropout", a, []validate.Tensor{mask, out}, onDevice(&x))
				b.call("native_dropout_backward", a, []validate.Tensor{dx}, onDevice(&g), onDevice(&mask))
				for _, to := range trainingTypes {
					from, out := b.tensor(dt, []int64{n}, []int64{1}, skip), b.tensor(to, []int64{n}, []int64{1}, 0)
					b.call("copy", nil, []validate.Tensor{out}, onDevice(&from))
				}
			}
		}
	}
}

// TestSteps takes the first two steps of every optimizer with parameters of all
// sizes around those of groups, chunks and launches, some of them askew.
func TestSteps(t *testing.T) {
	states := map[string][]string{}
	for name, f := range rules {
		if f != nil {
			states[name] = f.states
		}
	}
	for name, m := range moreRules {
		states[name] = m.states
	}
	b := newDesk(t)
	for _, name := range slices.Sorted(maps.Keys(states)) {
		for _, dt := range trainingTypes {
			t.Run(fmt.Sprintf("%s/%v", name, dt), func(t *testing.T) {
				b.t = t
				b.steps(name, dt, states[name])
			})
		}
	}
}

func (b *desk) steps(name string, dt graph.DType, states []string) {
	rule := &program.Rule{Optimizer: name}
	c := &validate.Call{Node: &program.Node{Op: "step", Attrs: &program.Attrs{Rule: rule}}, Kernel: "step"}
	b.top = 0
	for i := range int64(35) { // more than a launch takes
		n := []int64{1, 7, 8, 2048, 2049, 3 * 2048, 5003}[i%7]
		p, g := b.tensor(dt, []int64{n}, []int64{1}, i/7%2), b.tensor(dt, []int64{n}, []int64{1}, 0)
		c.Args = append(c.Args, onDevice(&p), onDevice(&g))
		param := program.RuleParam{Name: fmt.Sprint("p", i)}
		var spans []validate.Span
		for _, s := range states {
			param.States = append(param.States, program.RuleState{Name: s, Bytes: dt.Bytes(n)})
			spans = append(spans, validate.Span{At: b.top, Bytes: dt.Bytes(n)})
			b.top = (b.top + dt.Bytes(n) + 255) / 256 * 256
		}
		rule.Params, c.States = append(rule.Params, param), append(c.States, spans)
	}
	for c.Step = 1; c.Step <= 2; c.Step++ {
		rule.First, b.d.faults = c.Step == 1, nil
		if err := b.d.Run(c); err != nil {
			b.t.Fatal(err)
		}
		for _, f := range b.d.faults {
			b.t.Error(f)
		}
	}
}
