//go:build cuda

package cuda

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// memoryBench is a bench of numbers that often repeat.
func memoryBench(t *testing.T) *bench {
	b, _ := onBoth(t, Options{FP32: true}, 64<<20)
	b.number = units(15, 1./8)
	return b
}

// TestStridedOperators runs operators and copies on tensors whose dims lie in
// any order, with holes, broadcast, and at any address.
func TestStridedOperators(t *testing.T) {
	b := memoryBench(t)
	for range 900 {
		b.clear()
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
		out := b.shifted(b.rng.Int64N(2)).result(types[0], stridesFor(b.rng, shape, 8), shape...)
		var args []*validate.ArenaView
		for i := range Operators[operatorCode(kernel)].Inputs {
			s, wide := stridesFor(b.rng, shape, 8), slices.Clone(shape)
			if b.rng.IntN(2) == 0 {
				s = slices.Clone(out.Strides)
			}
			if d := b.rng.IntN(len(shape)); i > 0 && b.rng.IntN(2) == 0 {
				wide[d] = 1
			}
			args = append(args, b.shifted(b.rng.Int64N(2)).tensor(types[i+1], s, wide...))
		}
		a := &program.Attrs{}
		if kernel == "add" || kernel == "native_dropout_backward" {
			a.Scalars = []float64{2}
		}
		b.run(kernel, a, []*validate.ArenaView{out}, args...)
	}
}

// TestWindows: slices and selected elements of gradients, padded tensors, and
// tensors beside each other of which some are turned.
func TestWindows(t *testing.T) {
	b := memoryBench(t)
	shape, rows := []int64{5, 24, 40}, []int64{960, 40, 1}
	for _, dt := range trainingTypes {
		for d := range shape {
			for _, cut := range [][2]int64{{0, 1}, {1, 3}, {0, shape[d]}, {shape[d] - 2, 2}, {shape[d] / 2, shape[d] - shape[d]/2}} {
				in := slices.Clone(shape)
				in[d] = cut[1]
				a := &program.Attrs{Window: &program.Window{Strides: rows, Offset: cut[0] * rows[d]}, Scalars: []float64{1.5}}
				for _, kernel := range []string{"unview", "constant_pad_nd"} {
					b.clear()
					x := b.tensor(dt, stridesFor(b.rng, in, 8), in...)
					b.run(kernel, a, []*validate.ArenaView{b.result(dt, nil, shape...)}, x)
				}
				if cut[1] == 1 {
					in = slices.Delete(in, d, d+1)
					a := &program.Attrs{Window: &program.Window{Strides: slices.Delete(slices.Clone(rows), d, d+1), Offset: cut[0] * rows[d]}}
					b.clear()
					b.run("unview", a, []*validate.ArenaView{b.result(dt, nil, shape...)}, b.tensor(dt, nil, in...))
				}
			}
			b.clear()
			parts, whole := [3]*validate.ArenaView{}, slices.Clone(shape)
			for i := range parts {
				s := rows
				if i == 1 {
					s = []int64{960, 1, 24}
				}
				parts[i], whole[d] = b.tensor(dt, s, shape...), 3*shape[d]
			}
			b.run("cat", &program.Attrs{Dims: []int64{int64(d)}}, []*validate.ArenaView{b.result(dt, nil, whole...)}, parts[:]...)
		}
	}
}

// TestMaxPools runs max pooling and its backward with windows that overlap, that
// lie apart, and that hang over the edges, in all orders of dims.
func TestMaxPools(t *testing.T) {
	b := memoryBench(t)
	orders := []func([]int64) []int64{formatNCHW.strides, formatNHWC.strides}
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
					b.clear()
					x := b.shifted(int64(i/4)).tensor(dt, orders[i%2](size), size...)
					y, index := b.result(dt, orders[i/2%2](small), small...), b.result(graph.Int64, orders[i/4](small), small...)
					g, dx := b.tensor(dt, orders[i/4](small), small...), b.shifted(int64(i%2)).result(dt, orders[i/2%2](size), size...)
					b.run("max_pool_with_indices", a, []*validate.ArenaView{y, index}, x)
					b.run("max_pool2d_with_indices_backward", a, []*validate.ArenaView{dx}, g, x, index)
				}
			}
		}
	}
}

// TestDropouts: the numbers of an element are the same on both devices, in
// whole groups and behind them.
func TestDropouts(t *testing.T) {
	b := memoryBench(t)
	for _, dt := range trainingTypes {
		for _, n := range []int64{1, 7, 8, 9, 4096, 5003} {
			for skip := range int64(2) {
				a := &program.Attrs{Scalars: []float64{0.3}}
				b.clear()
				x, mask, out := b.shifted(skip).tensor(dt, nil, n), b.result(graph.Bool, nil, n), b.result(dt, nil, n)
				g, dx := b.shifted(skip).tensor(dt, nil, n), b.result(dt, nil, n)
				b.run("native_dropout", a, []*validate.ArenaView{mask, out}, x)
				b.run("native_dropout_backward", a, []*validate.ArenaView{dx}, g, mask)
				for _, to := range trainingTypes {
					b.clear()
					b.run("copy", nil, []*validate.ArenaView{b.result(to, nil, n)}, b.shifted(skip).tensor(dt, nil, n))
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
	for name, m := range optimizerRules {
		states[name] = m.states
	}
	bench, d := onBoth(t, Options{FP32: true}, 64<<20)
	bench.number = units(15, 1./8)
	for _, name := range slices.Sorted(maps.Keys(states)) {
		for _, dt := range trainingTypes {
			t.Run(fmt.Sprintf("%s/%v", name, dt), func(t *testing.T) { takeSteps(bench.in(t), d, name, dt, states[name]) })
		}
	}
}

// takeSteps steps twice, each time once: a step changes its operands.
func takeSteps(b *bench, d *tandem, name string, dt graph.DType, states []string) {
	rule := &program.Rule{Optimizer: name}
	var args []*validate.ArenaView
	var spans [][]validate.Span
	for i := range int64(35) { // more than a launch takes
		n := []int64{1, 7, 8, 2048, 2049, 3 * 2048, 5003}[i%7]
		args = append(args, b.shifted(i/7%2).tensor(dt, nil, n), b.tensor(dt, nil, n))
		param, own := program.RuleParam{Name: fmt.Sprint("p", i)}, []validate.Span(nil)
		for _, s := range states {
			param.States = append(param.States, program.RuleState{Name: s, Bytes: dt.Bytes(n)})
			own = append(own, validate.Span{At: *b.top, Bytes: dt.Bytes(n)})
			*b.top = padded(*b.top + dt.Bytes(n))
		}
		rule.Params, spans = append(rule.Params, param), append(spans, own)
	}
	c := newCall("step", &program.Attrs{Rule: rule}, nil, args)
	c.States = spans
	for c.Step = 1; c.Step <= 2; c.Step++ {
		rule.First = c.Step == 1
		d.compared(b.t, c)
	}
}
