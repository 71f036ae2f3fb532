//go:build cuda

package cuda

import (
	"fmt"
	"math"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// convArgs is Conv of conv.cu.
type convArgs struct {
	n, c, h, w, k, oh, ow                int64
	inStride, outStride, weightStride    [4]int64
	in, weight, out                      uint64
	r, s, sh, sw, ph, pw, dh, dw, groups int32
	dtype                                int32
}

// ownConv runs a pass by memplan's own kernels, in a workspace that may be
// smaller than servesWell's, or none.
func ownConv(r *run, p pass, x, w, y, out *validate.ArenaView, work validate.Span) error {
	c := r.attrs().Conv
	if len(c.Stride) == 3 {
		return deepConv(r, p, x, w, y, out)
	}
	a, err := convOf(c, x, w, y)
	if err != nil {
		return err
	}
	if indexable(c, x, w, y) {
		if l, ok := planDepthwise(p, &a, work.Bytes); ok {
			return runDepthwise(r, p, &l, work.At, x, w, y, out)
		}
	}
	a.out = r.ptr(out)
	switch p {
	case forwardPass:
		a.in, a.weight = r.ptr(x), r.ptr(w)
		if indexable(c, x, w, y) {
			return launch(r.d, "conv", "depthwise_forward", along(y.Elems()), &a)
		}
		return launch(r.d, "conv", "conv_forward", sweep(y.Elems()), &a)
	case dataPass:
		a.in, a.weight = r.ptr(y), r.ptr(w)
		if indexable(c, x, w, y) {
			return launch(r.d, "conv", "depthwise_data", along(x.Elems()), &a)
		}
		return launch(r.d, "conv", "conv_backward_data", sweep(x.Elems()), &a)
	}
	a.in, a.weight = r.ptr(x), r.ptr(y)
	if indexable(c, x, w, y) {
		return launch(r.d, "conv", "depthwise_filter", grid{x: w.Elems(), tx: 256}, &a)
	}
	return launch(r.d, "conv", "conv_backward_filter", grid{x: w.Elems(), tx: 256}, &a)
}

// convOf describes a convolution to the own kernels, without the addresses.
func convOf(c *program.Conv, x, w, y *validate.ArenaView) (a convArgs, err error) {
	n := len(c.Stride)
	if n > 2 || !isTraining(x.DType) || w.DType != x.DType || y.DType != x.DType {
		return a, fmt.Errorf("no own kernel for a convolution of %v with %d spatial dims", x.DType, n)
	}
	xs, xst, err := image(x, n)
	if err != nil {
		return a, err
	}
	ws, wst, err := image(w, n)
	if err != nil {
		return a, err
	}
	ys, yst, err := image(y, n)
	if err != nil {
		return a, err
	}
	get := func(v []int64, i int, def int32) int32 {
		if j := i - (2 - n); j >= 0 {
			return int32(v[j])
		}
		return def
	}
	return convArgs{n: xs[0], c: xs[1], h: xs[2], w: xs[3], k: ys[1], oh: ys[2], ow: ys[3], inStride: xst, outStride: yst, weightStride: wst, r: int32(ws[2]), s: int32(ws[3]),
		sh: get(c.Stride, 0, 1), sw: get(c.Stride, 1, 1), ph: get(c.Pad, 0, 0), pw: get(c.Pad, 1, 0), dh: get(c.Dilation, 0, 1), dw: get(c.Dilation, 1, 1),
		groups: int32(c.Groups), dtype: dtype(x)}, nil
}

// indexable reports whether 32-bit integers can index the elements of a depthwise
// convolution.
func indexable(c *program.Conv, x, w, y *validate.ArenaView) bool {
	return depthwise(c, w) && x.Elems() < 1<<31 && y.Elems() < 1<<31
}

// servesWell reports whether our own kernel runs a depthwise pass well on the tensors in
// their layout, and the bytes of its workspace. With less it runs, too, but slower.
func servesWell(c *program.Conv, p pass, x, w, y *validate.ArenaView) (bytes int64, ok bool) {
	a, err := convOf(c, x, w, y)
	if err != nil || !indexable(c, x, w, y) {
		return 0, false
	}
	l, ok := planDepthwise(p, &a, math.MaxInt64)
	return l.bytes, ok && l.well
}

// depthwiseArgs is Depthwise of depthwise.cuh.
type depthwiseArgs struct {
	inStride, outStride                  [4]int64
	weightStride                         [3]int64
	in, weight, out, part                uint64
	n, c, h, w, k, oh, ow                int32
	sh, sw, ph, pw, dh, dw               int32
	flip                                 int32
	rows, strips, columns, slices, dtype int32
}

// A depthwisePass is a pass by a kernel of depthwise.cuh.
type depthwisePass struct {
	kernel string
	grid   grid
	args   depthwiseArgs // without addresses
	taps   int64         // of a side of the filter
	bytes  int64         // of workspace
	well   bool          // neighbouring threads read neighbouring elements
}

// file returns the file for the filter's size.
func (l *depthwisePass) file() string { return fmt.Sprintf("depthwise_%d", l.taps) }

// runDepthwise runs a pass in the workspace at an offset of the arena.
func runDepthwise(r *run, p pass, l *depthwisePass, work int64, x, w, y, out *validate.ArenaView) error {
	a := l.args
	a.in, a.weight, a.out, a.part = r.ptr(x), r.ptr(w), r.ptr(out), uint64(r.d.at(work))
	switch p {
	case dataPass:
		a.in = r.ptr(y)
	case filterPass:
		a.weight = r.ptr(y)
	}
	if err := launch(r.d, l.file(), l.kernel, l.grid, &a); err != nil || a.slices == 1 {
		return err
	}
	a.rows = int32(l.taps)
	return launch(r.d, l.file(), "depthwise_slices", grid{x: (int64(a.k)*l.taps*l.taps + loneLanes - 1) / loneLanes, tx: loneLanes, ty: 8}, &a)
}

// The blocks of depthwise.cuh: LANES channels of TALL threads, each of WIDE
// columns; for contiguous rows, threads at any position.
const (
	loneLanes   = 32
	loneTall    = 4
	loneWide    = 4
	loneThreads = 128
)

// Threads that a kernel should have before its strips of rows get smaller: 132
// multiprocessors hold 84 thousand of a kernel with 96 registers and 67
// thousand of one with 128.
const (
	manyColumns  = 1 << 17
	manyChannels = 60_000
)

// planDepthwise plans a depthwise pass in at most work bytes of workspace; false unless its
// filters are square, of side 3, 5 or 7.
func planDepthwise(p pass, a *convArgs, work int64) (depthwisePass, bool) {
	if a.r != a.s || a.r != 3 && a.r != 5 && a.r != 7 || a.n*a.c*a.h*a.w*a.oh*a.ow == 0 {
		return depthwisePass{}, false
	}
	l := depthwisePass{taps: int64(a.r), args: depthwiseArgs{
		inStride: a.inStride, outStride: a.outStride, weightStride: [3]int64{a.weightStride[0], a.weightStride[2], a.weightStride[3]},
		n: int32(a.n), c: int32(a.c), h: int32(a.h), w: int32(a.w), k: int32(a.k), oh: int32(a.oh), ow: int32(a.ow),
		sh: a.sh, sw: a.sw, ph: a.ph, pw: a.pw, dh: a.dh, dw: a.dw, strips: 1, slices: 1, dtype: a.dtype}}
	flat := a.sh == 1 && a.sw == 1 && a.dh == 1 && a.dw == 1
	switch p {
	case forwardPass:
		l.image(flat)
	case dataPass:
		twos := a.sh == 2 && a.sw == 2 && a.dh == 1 && a.dw == 1
		if a.c != a.k || !flat && !twos {
			return depthwisePass{}, false
		}
		l.turn()
		if twos {
			l.fours()
		} else {
			l.image(true)
		}
	default:
		l.filter(flat, work)
	}
	l.kernel += fmt.Sprintf("_%d", a.r)
	return l, true
}

// turn turns a pass over the operand into that of its gradient: from the
// result's gradient, by the reversed filter.
func (l *depthwisePass) turn() {
	a := &l.args
	a.inStride, a.outStride = a.outStride, a.inStride
	a.h, a.w, a.oh, a.ow = a.oh, a.ow, a.h, a.w
	if a.sh == 1 {
		a.flip, a.ph, a.pw = 1, int32(l.taps)-1-a.ph, int32(l.taps)-1-a.pw
	}
}

// rowsIn and rowsOut report whether the images' rows are contiguous.
func (a *depthwiseArgs) rowsIn() bool  { return a.inStride[3] == 1 || a.w == 1 }
func (a *depthwiseArgs) rowsOut() bool { return a.outStride[3] == 1 || a.ow == 1 }

// inner reports whether the channels of both images are innermost.
func (a *depthwiseArgs) inner() bool { return a.inStride[1] == 1 && a.outStride[1] == 1 }

// split cuts images into the fewest strips of at least rows rows each that give
// enough threads; each is the number of threads of one strip of all images.
func (l *depthwisePass) split(rows, each, enough int64) {
	a := &l.args
	for s := int64(a.strips) + 1; each*int64(a.strips) < enough && (int64(a.oh)+s-1)/s >= rows; s++ {
		a.strips = int32(s)
	}
	a.rows = (a.oh + a.strips - 1) / a.strips
	a.strips = (a.oh + a.rows - 1) / a.rows
}

// threads sets a grid with one thread for each of n.
func (l *depthwisePass) threads(n int64) {
	l.grid = grid{x: (n + loneThreads - 1) / loneThreads, tx: loneThreads}
}

// image plans a pass that makes images.
func (l *depthwisePass) image(flat bool) {
	a := &l.args
	n, k := int64(a.n), int64(a.k)
	switch {
	case !flat:
		l.kernel, l.well = "depthwise_elements", a.rowsIn() && a.rowsOut()
		l.threads(n * k * int64(a.oh) * int64(a.ow))
	case a.rowsIn():
		l.kernel, l.well, a.columns = "depthwise_columns", a.rowsOut(), a.ow
		each := n * k * int64(a.columns)
		l.split(l.taps, each, manyColumns)
		l.threads(each * int64(a.strips))
	default:
		l.kernel, l.well, a.columns = "depthwise_channels", a.inner(), (a.ow+loneWide-1)/loneWide
		each := n * int64(a.columns)
		l.split(l.taps, each*k, manyChannels)
		l.grid = grid{x: (each*int64(a.strips) + loneTall - 1) / loneTall, y: (k + loneLanes - 1) / loneLanes, tx: loneLanes, ty: loneTall}
	}
}

// fours plans the operand's gradient at stride 2.
func (l *depthwisePass) fours() {
	a := &l.args
	l.kernel, l.well = "depthwise_fours", a.rowsIn() && a.rowsOut()
	a.strips, a.columns = (a.oh-1+a.ph)/2-a.ph/2+1, (a.ow-1+a.pw)/2-a.pw/2+1
	l.threads(int64(a.n) * int64(a.k) * int64(a.strips) * int64(a.columns))
}

// filter plans a filter's gradient, in slices of the batch if the workspace has
// room for their sums.
func (l *depthwisePass) filter(flat bool, work int64) {
	a := &l.args
	n, k := int64(a.n), int64(a.k)
	rows := a.rowsIn() && a.rowsOut()
	if flat && !rows {
		groups := (k + loneLanes - 1) / loneLanes
		a.columns = (a.ow + loneWide - 1) / loneWide
		each := n * int64(a.columns)
		l.split(l.taps, each*groups*loneLanes, manyChannels)
		each *= int64(a.strips)
		turns := max(each*groups*loneLanes/manyChannels, 1)
		if l.sliced((each+loneTall*turns-1)/(loneTall*turns), work) {
			l.kernel, l.well = "depthwise_filter_channels", a.inner()
			l.grid = grid{x: int64(a.slices), y: groups, tx: loneLanes, ty: loneTall}
			return
		}
	}
	l.kernel, l.well = "depthwise_filter_elements", rows
	each := n * int64(a.oh) * int64(a.ow)
	most := int64(512)
	if l.taps == 3 {
		most = 1024
	}
	if flat && rows {
		l.kernel, a.columns = "depthwise_filter_columns", a.ow
		each = n * int64(a.columns)
		l.split(2*l.taps, each, 4*most)
		each *= int64(a.strips)
	}
	if k >= 128 { // two blocks or more on many multiprocessors
		most = 256
	}
	threads := min((each+31)/32*32, most)
	l.sliced(min(256/k, (each+threads-1)/threads), work)
	l.grid = grid{x: k, y: int64(a.slices), tx: int(threads)}
}

// sliced distributes a filter's gradient over a number of blocks, if that is
// more than one and the workspace has room for their sums.
func (l *depthwisePass) sliced(slices, work int64) bool {
	bytes := slices * int64(l.args.k) * l.taps * l.taps * 4
	if slices < 2 {
		l.args.slices = 1
		return true
	}
	if bytes > work {
		return false
	}
	l.args.slices, l.bytes = int32(slices), bytes
	return true
}

// depthwise reports whether every channel is convolved by itself: cuDNN is
// slower at it than a dedicated kernel.
func depthwise(c *program.Conv, w *validate.ArenaView) bool {
	return !c.Transposed && c.Groups > 1 && w.Shape[0] == c.Groups && w.Shape[1] == 1 && len(c.Stride) <= 2 && isTraining(w.DType)
}
