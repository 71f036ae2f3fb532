//go:build cuda

package cuda

import (
	"bytes"
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

// A convCase is a convolution of some kind; orders are those of operand, weight
// and result: r row-major, c channels innermost.
type convCase struct {
	name   string
	x, w   []int64
	conv   program.Conv
	orders []string
}

// window are a convolution's numbers for square windows of a number of dims.
func window(dims int, stride, pad, dil, groups int64) program.Conv {
	c := program.Conv{Groups: groups}
	for range dims {
		c.Stride, c.Pad, c.Dilation, c.OutPad = append(c.Stride, stride), append(c.Pad, pad), append(c.Dilation, dil), append(c.OutPad, 0)
	}
	return c
}

func transposed(c program.Conv, outPad int64) program.Conv {
	c.Transposed = true
	for i := range c.OutPad {
		c.OutPad[i] = outPad
	}
	return c
}

var (
	rowsOnly  = []string{"rrr"}
	twoOrders = []string{"rrr", "ccc"}
	allOrders = []string{"rrr", "ccc", "crr", "rcr", "rrc", "crc", "rcc", "ccr"}
)

func convCases() []convCase {
	return []convCase{
		{"3x3", []int64{2, 8, 13, 11}, []int64{16, 8, 3, 3}, window(2, 1, 1, 1, 1), allOrders},
		{"odd channels", []int64{2, 5, 9, 10}, []int64{7, 5, 3, 3}, window(2, 1, 0, 1, 1), allOrders},
		{"pointwise", []int64{3, 16, 7, 7}, []int64{24, 16, 1, 1}, window(2, 1, 0, 1, 1), allOrders},
		{"strided", []int64{2, 8, 15, 14}, []int64{16, 8, 3, 3}, window(2, 2, 1, 1, 1), twoOrders},
		{"strided pointwise", []int64{2, 8, 14, 14}, []int64{16, 8, 1, 1}, window(2, 2, 0, 1, 1), twoOrders},
		{"patches", []int64{2, 3, 32, 32}, []int64{32, 3, 8, 8}, window(2, 8, 0, 1, 1), twoOrders},
		{"stem", []int64{2, 3, 33, 31}, []int64{16, 3, 7, 7}, window(2, 2, 3, 1, 1), twoOrders},
		{"dilated", []int64{2, 8, 15, 14}, []int64{16, 8, 3, 3}, window(2, 1, 2, 2, 1), twoOrders},
		{"uneven", []int64{2, 8, 15, 14}, []int64{16, 8, 1, 5}, program.Conv{Stride: []int64{1, 2}, Pad: []int64{0, 2}, Dilation: []int64{1, 1}, OutPad: []int64{0, 0}, Groups: 1}, twoOrders},
		{"grouped", []int64{2, 16, 13, 11}, []int64{32, 4, 3, 3}, window(2, 1, 1, 1, 4), allOrders},
		{"grouped, strided", []int64{2, 32, 14, 14}, []int64{32, 8, 3, 3}, window(2, 2, 1, 1, 4), twoOrders},
		{"depthwise 3x3", []int64{2, 32, 14, 14}, []int64{32, 1, 3, 3}, window(2, 1, 1, 1, 32), allOrders},
		{"depthwise 3x3, strided", []int64{2, 24, 15, 13}, []int64{24, 1, 3, 3}, window(2, 2, 1, 1, 24), twoOrders},
		{"depthwise 7x7", []int64{2, 96, 28, 28}, []int64{96, 1, 7, 7}, window(2, 1, 3, 1, 96), twoOrders},
		{"depthwise 5x5, dilated", []int64{2, 16, 17, 19}, []int64{16, 1, 5, 5}, window(2, 1, 4, 2, 16), twoOrders},
		{"depthwise, two for each channel", []int64{2, 16, 9, 9}, []int64{32, 1, 3, 3}, window(2, 1, 1, 1, 16), twoOrders},
		{"large", []int64{2, 64, 28, 28}, []int64{64, 64, 3, 3}, window(2, 1, 1, 1, 1), twoOrders},
		{"transposed", []int64{2, 16, 7, 9}, []int64{16, 8, 3, 3}, transposed(window(2, 2, 1, 1, 1), 1), allOrders},
		{"transposed, grouped", []int64{2, 16, 7, 9}, []int64{16, 4, 4, 4}, transposed(window(2, 2, 1, 1, 4), 0), twoOrders},
		{"one dim", []int64{2, 8, 40}, []int64{16, 8, 3}, window(1, 1, 1, 1, 1), rowsOnly},
		{"one dim, strided, grouped", []int64{2, 16, 41}, []int64{32, 4, 5}, window(1, 2, 2, 1, 4), rowsOnly},
		{"one dim, depthwise", []int64{2, 32, 40}, []int64{32, 1, 3}, window(1, 1, 1, 1, 32), rowsOnly},
		{"one dim, transposed", []int64{2, 8, 20}, []int64{8, 4, 4}, transposed(window(1, 2, 1, 1, 1), 0), rowsOnly},
		{"three dims", []int64{2, 8, 5, 7, 6}, []int64{16, 8, 3, 3, 3}, window(3, 1, 1, 1, 1), rowsOnly},
		{"three dims, strided", []int64{2, 3, 8, 9, 8}, []int64{16, 3, 3, 3, 3}, window(3, 2, 1, 1, 1), rowsOnly},
	}
}

// out is the shape of a case's result.
func (c *convCase) out() []int64 {
	s := []int64{c.x[0], c.w[0]}
	if c.conv.Transposed {
		s[1] = c.w[1] * c.conv.Groups
	}
	for i := range c.conv.Stride {
		in, span := c.x[2+i], c.conv.Dilation[i]*(c.w[2+i]-1)+1
		if c.conv.Transposed {
			s = append(s, (in-1)*c.conv.Stride[i]-2*c.conv.Pad[i]+span+c.conv.OutPad[i])
		} else {
			s = append(s, (in+2*c.conv.Pad[i]-span)/c.conv.Stride[i]+1)
		}
	}
	return s
}

// A convBoard lays a call's tensors into the arena of both devices.
type convBoard struct {
	t     *testing.T
	d     *tandem
	rng   *rand.Rand
	dtype graph.DType
	tf32  bool // numbers that TF32 holds
	top   int64
}

func (b *convBoard) tensor(shape []int64, order byte) validate.Tensor {
	x := validate.Tensor{At: b.top, DType: b.dtype, Shape: shape, Strides: formatNCHW.strides(shape)}
	if order == 'c' {
		x.Strides = formatNHWC.strides(shape)
	}
	b.top += (extent(&x) + validate.Align - 1) / validate.Align * validate.Align
	return x
}

// operand is a tensor of random numbers.
func (b *convBoard) operand(shape []int64, order byte) validate.Tensor {
	x := b.tensor(shape, order)
	raw := make([]byte, extent(&x))
	for i := range x.Elems() {
		v := float32(b.rng.IntN(17)-8) / 16
		if b.dtype == graph.Float32 && !b.tf32 {
			v = b.rng.Float32() - 0.5
		}
		switch bits := math.Float32bits(v); b.dtype {
		case graph.Float32:
			cases.Put(raw[4*i:], b.dtype, float64(v))
		case graph.BFloat16:
			raw[2*i], raw[2*i+1] = byte(bits>>16), byte(bits>>24)
		case graph.Float16: // sixteenths are normal there, and exact
			if v != 0 {
				h := bits>>16&0x8000 | (bits>>23&255-112)<<10 | bits>>13&1023
				raw[2*i], raw[2*i+1] = byte(h), byte(h>>8)
			}
		}
	}
	if err := b.d.Device.Upload(x.At, raw); err != nil {
		b.t.Fatal(err)
	}
	return x
}

// result is a tensor of NaNs: all of it must be written.
func (b *convBoard) result(shape []int64, order byte) validate.Tensor {
	x := b.tensor(shape, order)
	if err := b.d.Device.Upload(x.At, bytes.Repeat([]byte{0xff}, int(extent(&x)))); err != nil {
		b.t.Fatal(err)
	}
	return x
}

// run compares a call on both devices, and a second run of it on the GPU with the
// first, bit by bit.
func (b *convBoard) run(kernel string, conv *program.Conv, args, results []validate.Tensor) {
	n := &program.Node{Op: kernel, Name: "conv", Kernel: kernel, Attrs: &program.Attrs{Conv: conv}}
	call := &validate.Call{Node: n, Kernel: kernel, Results: results}
	for i := range args {
		call.Args = append(call.Args, onDevice(&args[i]))
		n.Attrs.Args = append(n.Attrs.Args, program.Arg{In: int32(i)})
		n.In = append(n.In, program.Tensor{DType: b.dtype, Shape: args[i].Shape, Strides: args[i].Strides})
	}
	for i := range results {
		n.Attrs.Results = append(n.Attrs.Results, int8(i))
		n.Out = append(n.Out, program.Tensor{DType: b.dtype, Shape: results[i].Shape, Strides: results[i].Strides})
	}
	top := b.top
	for range 4 {
		call.Scratch = append(call.Scratch, validate.Span{At: top, Bytes: 1 << 20})
		top += 1 << 20
	}
	work, err := b.d.gpu.Work(n)
	if err != nil {
		b.t.Fatal(err)
	}
	if top+work > b.d.size {
		b.t.Fatalf("%s works in %d bytes", kernel, work)
	}
	call.Work = validate.Span{At: top, Bytes: work}
	b.d.faults = nil
	if err := b.d.Run(call); err != nil {
		b.t.Fatal(err)
	}
	for _, f := range b.d.faults {
		b.t.Error(f)
	}
	first := b.gpuBytes(results)
	if err := b.d.gpu.Run(call); err != nil {
		b.t.Fatal(err)
	}
	for i, again := range b.gpuBytes(results) {
		if !bytes.Equal(first[i], again) {
			b.t.Errorf("%s: result %d has other bits the second time", kernel, i)
		}
	}
}

func (b *convBoard) gpuBytes(list []validate.Tensor) [][]byte {
	var out [][]byte
	for i := range list {
		raw := make([]byte, extent(&list[i]))
		if err := b.d.gpu.Download(raw, list[i].At); err != nil {
			b.t.Fatal(err)
		}
		out = append(out, raw)
	}
	return out
}

// both runs a convolution and its backward.
func (c *convCase) both(t *testing.T, d *tandem, dtype graph.DType, order string, tf32 bool) {
	b := &convBoard{t: t, d: d, rng: rand.New(rand.NewPCG(1, 2)), dtype: dtype, tf32: tf32}
	out := c.out()
	x, w, bias := b.operand(c.x, order[0]), b.operand(c.w, order[1]), b.operand(out[1:2], 'r')
	b.run("convolution", &c.conv, []validate.Tensor{x, w, bias}, []validate.Tensor{b.result(out, order[2])})
	g := b.operand(out, order[2])
	b.run("convolution_backward", &c.conv, []validate.Tensor{g, x, w}, []validate.Tensor{b.result(c.x, order[0]), b.result(c.w, order[1]), b.result(out[1:2], 'r')})
}

// TestConvolutions runs convolutions of all kinds on both devices, by every path
// alone and as the table has them. No path may leave a pass that is its own.
func TestConvolutions(t *testing.T) {
	for _, paths := range []string{"", pathGraph, pathLegacy, "own"} {
		for _, full := range []bool{true, false} {
			if !full && paths != pathGraph && paths != pathLegacy {
				continue
			}
			t.Run(fmt.Sprintf("paths=%s/full=%v", paths, full), func(t *testing.T) { runConvolutions(t, paths, full) })
		}
	}
}

func runConvolutions(t *testing.T, paths string, full bool) {
	t.Setenv(pathsEnv, paths)
	gpu, err := Open(Options{FP32: full})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := gpu.Close(); err != nil {
			t.Error(err)
		}
	}()
	d := &tandem{Device: cpu.New(), gpu: gpu, worst: map[string]float64{}, calls: map[string]int{}}
	if err := d.Reserve(1 << 30); err != nil {
		t.Fatal(err)
	}
	dtypes := []graph.DType{graph.Float32, graph.BFloat16, graph.Float16}
	if !full { // halves have no TF32
		dtypes = dtypes[:1]
	}
	for _, c := range convCases() {
		if paths == "own" && len(c.conv.Stride) > 2 {
			continue // there are no such kernels
		}
		for _, dtype := range dtypes {
			for _, order := range c.orders {
				t.Run(fmt.Sprintf("%s/%v/%s", c.name, dtype, order), func(t *testing.T) {
					clear(gpu.fallbacks)
					c.both(t, d, dtype, order, !full)
					if paths == "" || paths == pathGraph {
						for why, n := range gpu.fallbacks {
							t.Errorf("%d by own kernels: %s", n, why)
						}
					}
				})
			}
		}
	}
	t.Log(gpu.Libraries(), d.worst)
}
