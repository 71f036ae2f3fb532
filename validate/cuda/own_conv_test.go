//go:build cuda

package cuda

import (
	"fmt"
	"math"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// A loneCase is a convolution of single channels; of a result with more
// channels than the operand, each has times filters.
type loneCase struct {
	n, c, h, w                      int64
	r, s, stride, pad, dilation, by int64
}

func (c loneCase) String() string {
	return fmt.Sprintf("%dx%dx%dx%d by %dx%d stride %d pad %d dilation %d times %d", c.n, c.c, c.h, c.w, c.r, c.s, c.stride, c.pad, c.dilation, c.by)
}

func (c loneCase) conv() *program.Conv {
	return &program.Conv{Stride: []int64{c.stride, c.stride}, Pad: []int64{c.pad, c.pad}, Dilation: []int64{c.dilation, c.dilation}, OutPad: []int64{0, 0}, Groups: c.c}
}

// tensors are operand, weight and result, without addresses.
func (c loneCase) tensors(d graph.DType, x, y format) [3]*validate.ArenaView {
	size := func(in, taps int64) int64 { return (in+2*c.pad-c.dilation*(taps-1)-1)/c.stride + 1 }
	tensor := func(f format, shape ...int64) *validate.ArenaView {
		return &validate.ArenaView{DType: d, Shape: shape, Strides: f.strides(shape)}
	}
	return [3]*validate.ArenaView{tensor(x, c.n, c.c, c.h, c.w), tensor(formatNCHW, c.c*c.by, 1, c.r, c.s), tensor(y, c.n, c.c*c.by, size(c.h, c.r), size(c.w, c.s))}
}

// loneCases are the depthwise convolutions of ConvNeXt, MobileNet and
// EfficientNet with fewer images and channels, and what else there is: sizes
// that fill no block, padding beyond the filter, filters without a kernel of
// their own.
var loneCases = []loneCase{
	{1, 40, 56, 56, 7, 7, 1, 3, 1, 1},
	{2, 33, 28, 28, 7, 7, 1, 3, 1, 1},
	{2, 64, 14, 14, 7, 7, 1, 3, 1, 1},
	{5, 70, 7, 7, 7, 7, 1, 3, 1, 1},
	{2, 9, 112, 112, 3, 3, 1, 1, 1, 1},
	{2, 9, 112, 112, 3, 3, 2, 1, 1, 1},
	{3, 17, 57, 29, 3, 3, 2, 1, 1, 1},
	{4, 140, 7, 7, 3, 3, 1, 1, 1, 1},
	{2, 12, 28, 28, 5, 5, 1, 2, 1, 1},
	{2, 12, 29, 27, 5, 5, 2, 2, 1, 1},
	{2, 6, 17, 15, 7, 7, 2, 3, 1, 1},
	{2, 6, 17, 15, 7, 7, 3, 3, 1, 1},
	{1, 5, 20, 21, 3, 3, 1, 2, 2, 1},
	{1, 5, 20, 21, 3, 3, 2, 2, 2, 1},
	{2, 8, 13, 9, 3, 3, 1, 1, 1, 2},
	{2, 8, 13, 9, 5, 5, 2, 0, 1, 3},
	{1, 3, 31, 5, 5, 5, 2, 0, 1, 1},
	{1, 2, 9, 9, 7, 7, 1, 6, 1, 1},
	{1, 2, 9, 9, 3, 3, 1, 4, 1, 1},
	{3, 40, 1, 1, 3, 3, 1, 1, 1, 1},
	{2, 4, 12, 11, 4, 4, 1, 1, 1, 1},
	{2, 4, 12, 11, 9, 9, 1, 4, 1, 1},
	{2, 4, 12, 11, 3, 5, 1, 1, 1, 1},
}

var loneOrders = []struct {
	name string
	x, y format
}{{"rows", formatNCHW, formatNCHW}, {"channels", formatNHWC, formatNHWC}, {"rows to channels", formatNCHW, formatNHWC}, {"channels to rows", formatNHWC, formatNCHW}}

// TestDepthwise compares the own kernels with the CPU device's, in every order
// and type, with work and without, and with themselves. A short test has every
// case and order in one type.
func TestDepthwise(t *testing.T) {
	bench, d := onBoth(t, Options{FP32: true}, 64<<20)
	for i, c := range loneCases {
		for k, o := range loneOrders {
			for n, dt := range trainingTypes {
				if testing.Short() && (i+k+n)%3 != 0 { // the types in turn
					continue
				}
				for p := range pass(len(resultOf)) {
					t.Run(fmt.Sprintf("%v/%v/%s/%v", c, p, o.name, dt), func(t *testing.T) { c.run(bench.in(t), d, p, c.tensors(dt, o.x, o.y)) })
				}
			}
		}
	}
}

// run compares a pass by the own kernels, without work and with what they ask for,
// which holds NaNs.
func (c loneCase) run(b *bench, d *tandem, p pass, like [3]*validate.ArenaView) {
	var l [3]*validate.ArenaView
	for i, x := range like {
		l[i] = b.tensor(x.DType, x.Strides, x.Shape...)
	}
	out := b.result(l[resultOf[p]].DType, l[resultOf[p]].Strides, l[resultOf[p]].Shape...)
	call := c.call(p, l, out)
	d.by = func(call *validate.Call) error {
		if err := d.gpu.enter(); err != nil {
			return err
		}
		defer d.gpu.leave()
		return ownConv((&run{d: d.gpu, c: call}), p, l[0], l[1], l[2], out, call.Work)
	}
	want, _ := servesWell(c.conv(), p, l[0], l[1], l[2])
	for _, work := range []int64{0, want} {
		call.Work = validate.Span{At: *b.top, Bytes: work}
		if err := d.gpu.Upload(*b.top, nans(work)); err != nil {
			b.t.Fatal(err)
		}
		b.do(b, call)
	}
}

// call is the pass as the CPU device runs it.
func (c loneCase) call(p pass, l [3]*validate.ArenaView, out *validate.ArenaView) *validate.Call {
	a := &program.Attrs{Conv: c.conv()}
	if p == forwardPass {
		return newCall("convolution", a, []*validate.ArenaView{out}, []*validate.ArenaView{l[0], l[1]})
	}
	results := make([]*validate.ArenaView, 3)
	results[resultOf[p]] = out
	return newCall("convolution_backward", a, results, []*validate.ArenaView{l[2], l[0], l[1]})
}

// TestLonePlans: every plan covers its images, and the models' convolutions run
// by the kernels that were written for them. It needs no GPU.
func TestLonePlans(t *testing.T) {
	for _, c := range loneCases {
		for _, o := range loneOrders {
			for p := range pass(len(resultOf)) {
				l := c.tensors(graph.Float32, o.x, o.y)
				a, err := convOf(c.conv(), l[0], l[1], l[2])
				if err != nil {
					t.Fatal(err)
				}
				for _, work := range []int64{0, math.MaxInt64} {
					if q, ok := planDepthwise(p, &a, work); ok {
						q.check(t, fmt.Sprintf("%v, %v, %s", c, p, o.name), work)
					} else if c.r == c.s && c.r%2 == 1 && c.r < 9 && (p != dataPass || c.by == 1 && c.stride < 3 && c.dilation == 1) {
						t.Errorf("%v, %v: no kernel", c, p)
					}
				}
			}
		}
	}
	for _, c := range []struct {
		loneCase
		order  int
		pass   pass
		kernel string
		bytes  int64
	}{
		{loneCase{16, 96, 56, 56, 7, 7, 1, 3, 1, 1}, 0, forwardPass, "depthwise_columns_7", 0},
		{loneCase{16, 96, 56, 56, 7, 7, 1, 3, 1, 1}, 1, forwardPass, "depthwise_channels_7", 0},
		{loneCase{16, 384, 14, 14, 7, 7, 1, 3, 1, 1}, 1, dataPass, "depthwise_channels_7", 0},
		{loneCase{16, 96, 56, 56, 7, 7, 1, 3, 1, 1}, 0, filterPass, "depthwise_filter_columns_7", 2 * 96 * 49 * 4},
		{loneCase{16, 96, 56, 56, 7, 7, 1, 3, 1, 1}, 1, filterPass, "depthwise_filter_channels_7", 168 * 96 * 49 * 4},
		{loneCase{16, 768, 7, 7, 7, 7, 1, 3, 1, 1}, 1, filterPass, "depthwise_filter_channels_7", 8 * 768 * 49 * 4},
		{loneCase{32, 96, 112, 112, 3, 3, 2, 1, 1, 1}, 0, dataPass, "depthwise_fours_3", 0},
		{loneCase{32, 96, 112, 112, 3, 3, 2, 1, 1, 1}, 0, filterPass, "depthwise_filter_elements_3", 2 * 96 * 9 * 4},
	} {
		o := loneOrders[c.order]
		l := c.tensors(graph.Float32, o.x, o.y)
		a, err := convOf(c.conv(), l[0], l[1], l[2])
		if err != nil {
			t.Fatal(err)
		}
		q, _ := planDepthwise(c.pass, &a, math.MaxInt64)
		if n, ok := servesWell(c.conv(), c.pass, l[0], l[1], l[2]); q.kernel != c.kernel || n != c.bytes || !ok {
			t.Errorf("%v, %v, %s: %s in %d bytes, want %s in %d", c.loneCase, c.pass, o.name, q.kernel, n, c.kernel, c.bytes)
		}
	}
}

// check counts a plan's rows, threads and bytes.
func (l *depthwisePass) check(t *testing.T, name string, work int64) {
	a, g := &l.args, &l.grid
	if a.rows > 0 && (a.rows*a.strips < a.oh || a.rows*(a.strips-1) >= a.oh) {
		t.Errorf("%s: %d strips of %d rows of %d", name, a.strips, a.rows, a.oh)
	}
	want := int64(0)
	if a.slices > 1 {
		want = int64(a.slices) * int64(a.k) * l.taps * l.taps * 4
	}
	if l.bytes != want || l.bytes > work || a.slices < 1 {
		t.Errorf("%s: %d slices in %d bytes of %d", name, a.slices, l.bytes, work)
	}
	if threads := int64(g.tx) * int64(max(g.ty, 1)); g.x < 1 || threads%32 != 0 || threads > 1024 || l.taps > 3 && threads > 512 {
		t.Errorf("%s: %d blocks of %d threads", name, g.x, threads)
	}
}
