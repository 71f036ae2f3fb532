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
func (c loneCase) tensors(d graph.DType, x, y func([]int64) []int64) [3]*validate.Tensor {
	size := func(in, taps int64) int64 { return (in+2*c.pad-c.dilation*(taps-1)-1)/c.stride + 1 }
	tensor := func(order func([]int64) []int64, shape ...int64) *validate.Tensor {
		return &validate.Tensor{DType: d, Shape: shape, Strides: order(shape)}
	}
	return [3]*validate.Tensor{tensor(x, c.n, c.c, c.h, c.w), tensor(rowMajor, c.c*c.by, 1, c.r, c.s), tensor(y, c.n, c.c*c.by, size(c.h, c.r), size(c.w, c.s))}
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
	x, y func([]int64) []int64
}{{"rows", rowMajor, rowMajor}, {"channels", channelsLast, channelsLast}, {"rows to channels", rowMajor, channelsLast}, {"channels to rows", channelsLast, rowMajor}}

// TestDepthwise compares the own kernels with the CPU device's, in every order
// and type, with work and without, and with themselves.
func TestDepthwise(t *testing.T) {
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
	if err := d.Reserve(64 << 20); err != nil {
		t.Fatal(err)
	}
	for _, c := range loneCases {
		for _, o := range loneOrders {
			for _, dt := range []graph.DType{graph.Float32, graph.Float16, graph.BFloat16} {
				for p := range pass(len(resultOf)) {
					t.Run(fmt.Sprintf("%v/%v/%s/%v", c, p, o.name, dt), func(t *testing.T) { c.run(t, d, p, c.tensors(dt, o.x, o.y)) })
				}
			}
		}
	}
}

// run compares a pass.
func (c loneCase) run(t *testing.T, d *tandem, p pass, l [3]*validate.Tensor) {
	rng := rand.New(rand.NewPCG(1, 2))
	top := int64(0)
	for _, x := range l {
		raw := make([]byte, extent(x))
		for i := range x.Elems() {
			eighths(raw, x.DType, i, float32(rng.IntN(17)-8)/8)
		}
		x.At = top
		if err := d.Device.Upload(x.At, raw); err != nil {
			t.Fatal(err)
		}
		top += (extent(x) + 255) / 256 * 256
	}
	call := c.call(p, l)
	if err := d.Device.Run(call); err != nil {
		t.Fatal(err)
	}
	want, _ := ownLikes(c.conv(), p, l[0], l[1], l[2])
	for _, work := range []int64{0, want} {
		call.Work = validate.Span{At: top, Bytes: work}
		first := c.own(t, d, p, call, l)
		if !bytes.Equal(first, c.own(t, d, p, call, l)) {
			t.Errorf("with %d bytes of work, two runs differ", work)
		}
	}
}

// call is the pass as the CPU device runs it.
func (c loneCase) call(p pass, l [3]*validate.Tensor) *validate.Call {
	call := &validate.Call{Node: &program.Node{Op: "convolution", Attrs: &program.Attrs{Conv: c.conv()}}, Kernel: "convolution"}
	if p == forwardPass {
		call.Args = []validate.Operand{onDevice(l[0]), onDevice(l[1])}
		call.Results = []validate.Tensor{*l[2]}
		return call
	}
	call.Node.Op, call.Kernel = "convolution_backward", "convolution_backward"
	call.Args = []validate.Operand{onDevice(l[2]), onDevice(l[0]), onDevice(l[1])}
	call.Results = []validate.Tensor{{At: -1}, {At: -1}, {At: -1}}
	call.Results[resultOf[p]] = *l[resultOf[p]]
	return call
}

// own runs the pass by the own kernels, over numbers that are none, compares it
// with what the processor made and returns its bytes.
func (c loneCase) own(t *testing.T, d *tandem, p pass, call *validate.Call, l [3]*validate.Tensor) []byte {
	out := l[resultOf[p]]
	for _, x := range l {
		if err := d.share(x); err != nil {
			t.Fatal(err)
		}
	}
	raw := bytes.Repeat([]byte{0xff}, int(extent(out)))
	if err := d.gpu.Upload(out.At, raw); err != nil {
		t.Fatal(err)
	}
	if call.Work.Bytes > 0 {
		if err := d.gpu.Upload(call.Work.At, bytes.Repeat([]byte{0xff}, int(call.Work.Bytes))); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.gpu.enter(); err != nil {
		t.Fatal(err)
	}
	err := (&run{d: d.gpu, c: call}).ownConv(p, l[0], l[1], l[2], out)
	d.gpu.leave()
	if err == nil {
		err = d.gpu.Sync()
	}
	if err != nil {
		t.Fatal(err)
	}
	d.faults = nil
	if err := d.compare(call, out); err != nil {
		t.Fatal(err)
	}
	for _, f := range d.faults {
		t.Error(f)
	}
	if err := d.gpu.Download(raw, out.At); err != nil {
		t.Fatal(err)
	}
	return raw
}

// eighths writes a number that every type holds: a multiple of an eighth up to 1.
func eighths(b []byte, d graph.DType, i int64, v float32) {
	f := math.Float32bits(v)
	switch {
	case d == graph.Float32:
		binary.LittleEndian.PutUint32(b[4*i:], f)
	case d == graph.BFloat16 || v == 0:
		binary.LittleEndian.PutUint16(b[2*i:], uint16(f>>16))
	default: // another bias of the exponent
		binary.LittleEndian.PutUint16(b[2*i:], uint16(f>>16&0x8000|(f>>23&255-112)<<10|f>>13&1023))
	}
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
					if q, ok := loneOf(p, &a, work); ok {
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
		q, _ := loneOf(c.pass, &a, math.MaxInt64)
		if n, ok := ownLikes(c.conv(), c.pass, l[0], l[1], l[2]); q.kernel != c.kernel || n != c.bytes || !ok {
			t.Errorf("%v, %v, %s: %s in %d bytes, want %s in %d", c.loneCase, c.pass, o.name, q.kernel, n, c.kernel, c.bytes)
		}
	}
}

// check counts a plan's rows, threads and bytes.
func (l *lone) check(t *testing.T, name string, work int64) {
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
