package cuda

import "math"

// poolArgs is Pool of pool.cu.
type poolArgs struct {
	n, c, h, w, oh, ow               int64
	inStride, outStride, indexStride [4]int64
	in, out, index                   uint64
	kh, kw, sh, sw, ph, pw, dh, dw   int32
	divisor, excludePad, dtype, _    int32
}

// windowsArgs is Windows of pool_fast.cu.
type windowsArgs struct {
	n                                uint32
	channelsLast                     int32
	dim                              [3]divider
	h, w, oh, ow                     int32
	inStride, outStride, indexStride [4]int32
	in, out, index                   uint64
	kh, kw, sh, sw, ph, pw, dh, dw   int32
	above, below, before, after      int32
	dtype, pairs                     int32
}

// floorDiv is the quotient rounded down; b > 0.
func floorDiv(a, b int32) int32 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// windows plans a max pooling of elements of the given bytes if 32 bits count
// everything it reaches; backward, if a thread may write a cell. It returns the
// suffix of the kernel's name.
func (a *poolArgs) windows(back bool, bytes uint64) (w windowsArgs, kind int32, ok bool) {
	large, small := []int64{a.n, a.c, a.h, a.w}, []int64{a.n, a.c, a.oh, a.ow}
	fits := narrow(large, [][]int64{a.inStride[:]}) && narrow(small, [][]int64{a.outStride[:], a.indexStride[:]}) && a.h*a.w <= math.MaxInt32
	if !fits || a.n*a.c*a.h*a.w*a.oh*a.ow == 0 || back && (a.sh != a.sw || a.sh > 3) {
		return w, 0, false
	}
	w = windowsArgs{h: int32(a.h), w: int32(a.w), oh: int32(a.oh), ow: int32(a.ow), in: a.in, out: a.out, index: a.index,
		kh: a.kh, kw: a.kw, sh: a.sh, sw: a.sw, ph: a.ph, pw: a.pw, dh: a.dh, dw: a.dw, dtype: a.dtype}
	for d := range 4 {
		w.inStride[d], w.outStride[d], w.indexStride[d] = int32(a.inStride[d]), int32(a.outStride[d]), int32(a.indexStride[d])
	}
	high, wide, last := a.oh, a.ow, a.outStride[1] == 1 && a.c > 1
	if back {
		high, wide, last = w.cells(a)
		if w.inStride[3] == 1 && a.w%2 == 0 && (w.inStride[0]|w.inStride[1]|w.inStride[2])%2 == 0 && a.out%(2*bytes) == 0 {
			w.pairs = 1
		}
		kind = a.sh
	} else if a.kh == a.kw && a.kh >= 2 && a.kh <= 3 {
		kind = a.kh
	}
	w.dim = [3]divider{divideBy(wide), divideBy(high), divideBy(a.c)}
	if last {
		w.channelsLast = 1
		w.dim = [3]divider{divideBy(a.c), divideBy(wide), divideBy(high)}
	}
	w.n = uint32(a.n * a.c * high * wide)
	return w, kind, true
}

// cells sets which windows reach into a cell, and returns the number of cells of
// a plane and whether their channels are innermost.
func (w *windowsArgs) cells(a *poolArgs) (high, wide int64, last bool) {
	span := func(k, s, pad, d int32) (first, end int32) {
		return -floorDiv((k-1)*d-pad, s), floorDiv(s-1+pad, s)
	}
	w.above, w.below = span(a.kh, a.sh, a.ph, a.dh)
	w.before, w.after = span(a.kw, a.sw, a.pw, a.dw)
	return (a.h + int64(a.sh) - 1) / int64(a.sh), (a.w + int64(a.sw) - 1) / int64(a.sw), a.inStride[1] == 1 && a.c > 1
}
