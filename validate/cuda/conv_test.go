//go:build cuda

package cuda

import (
	"fmt"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// A convCase is a convolution of some kind; orders are those of operand, weight
// and result: r row-major, c channels innermost.
type convCase struct {
	name   string
	x, w   []int64
	conv   program.Conv
	orders []string
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

// both runs a convolution and its backward, with scratch and work.
func (c *convCase) both(b *bench, d *tandem, dtype graph.DType, order string) {
	strides := func(order byte, shape []int64) []int64 {
		if order == 'c' {
			return formatNHWC.strides(shape)
		}
		return nil
	}
	operand := func(order byte, shape []int64) *validate.ArenaView {
		return b.tensor(dtype, strides(order, shape), shape...)
	}
	result := func(order byte, shape []int64) *validate.ArenaView {
		return b.result(dtype, strides(order, shape), shape...)
	}
	run := func(kernel string, results []*validate.ArenaView, args ...*validate.ArenaView) {
		call := newCall(kernel, &program.Attrs{Conv: &c.conv}, results, args)
		d.room(b.t, call, *b.top)
		b.do(b, call)
	}
	out := c.out()
	x, w, bias := operand(order[0], c.x), operand(order[1], c.w), operand('r', out[1:2])
	run("convolution", []*validate.ArenaView{result(order[2], out)}, x, w, bias)
	g := operand(order[2], out)
	run("convolution_backward", []*validate.ArenaView{result(order[0], c.x), result(order[1], c.w), result('r', out[1:2])}, g, x, w)
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
	bench, d := onBoth(t, Options{FP32: full}, 1<<30)
	if paths != "own" {
		needsDNN(t, d.gpu)
	}
	dtypes := trainingTypes
	if !full { // halves have no TF32
		dtypes = dtypes[:1]
	}
	for _, c := range convCases() {
		for _, dtype := range dtypes {
			for _, order := range c.orders {
				t.Run(fmt.Sprintf("%s/%v/%s", c.name, dtype, order), func(t *testing.T) {
					clear(d.gpu.fallbacks)
					b := bench.in(t)
					b.number = units(8, 1./16) // TF32 holds them
					if dtype == graph.Float32 && full {
						b.number = fractions
					}
					c.both(b, d, dtype, order)
					if paths == "" || paths == pathGraph {
						for why, n := range d.gpu.fallbacks {
							t.Errorf("%d by own kernels: %s", n, why)
						}
					}
				})
			}
		}
	}
	t.Log(d.gpu.Libraries(), d.worst)
}
