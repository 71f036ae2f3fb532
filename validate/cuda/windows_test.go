package cuda

import (
	"math/rand/v2"
	"testing"
)

// TestCells looks for the windows that reach into each cell of a row: those of
// the plan are all of them, and cells cover the row.
func TestCells(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	some := func(low, high int32) int32 { return low + rng.Int32N(high-low+1) }
	for range 500 {
		a := &poolArgs{n: 2, c: 3, h: int64(some(4, 20)), w: int64(some(4, 20)), kh: some(1, 5), kw: some(1, 5), sh: some(1, 3), dh: some(1, 2), dw: some(1, 2), index: 512, in: 1024, out: 2048}
		a.divisor, a.excludePad = 4, 1 // of averages: no plan depends on them
		a.sw, a.ph, a.pw = a.sh, some(0, a.kh/2), some(0, a.kw/2)
		a.oh = int64(floorDiv(int32(a.h)+2*a.ph-(a.kh-1)*a.dh-1, a.sh)) + 1
		a.ow = int64(floorDiv(int32(a.w)+2*a.pw-(a.kw-1)*a.dw-1, a.sw)) + 1
		if a.oh < 1 || a.ow < 1 {
			continue
		}
		a.inStride, a.outStride, a.indexStride = [4]int64{3 * a.h * a.w, a.h * a.w, a.w, 1}, [4]int64{3 * a.oh * a.ow, a.oh * a.ow, a.ow, 1}, [4]int64{3 * a.oh * a.ow, a.oh * a.ow, a.ow, 1}
		w, kind, ok := a.windows(true, 2)
		if !ok || kind != a.sh || w.n != 6*w.dim[0].by*w.dim[1].by || int64(w.dim[0].by)*int64(a.sw) < a.w || int64(w.dim[1].by)*int64(a.sh) < a.h {
			t.Fatalf("%+v: %v, kind %d of %+v", *a, ok, kind, w)
		}
		if w.pairs == 1 && a.w%2 != 0 {
			t.Errorf("pairs in rows of %d", a.w)
		}
		reached(t, a.h, a.oh, a.kh, a.sh, a.ph, a.dh, w.above, w.below)
		reached(t, a.w, a.ow, a.kw, a.sw, a.pw, a.dw, w.before, w.after)
	}
	far := &poolArgs{n: 1, c: 1, h: 1 << 16, w: 1 << 15, oh: 1, ow: 1, sh: 1, sw: 1}
	if _, _, ok := far.windows(false, 2); ok {
		t.Error("a plane of 2^31 places is counted with 32 bits")
	}
}

// reached: every window that has a place in a cell is one of the plan's.
func reached(t *testing.T, size, windows int64, k, s, pad, d, first, last int32) {
	t.Helper()
	for o := range int32(windows) {
		for i := range k {
			at := o*s - pad + i*d
			if at < 0 || int64(at) >= size {
				continue
			}
			if cell := at / s; o < cell+first || o > cell+last {
				t.Fatalf("window %d of %d by %d, %d padded, %d apart reaches cell %d, not one of %d to %d on", o, k, s, pad, d, cell, first, last)
			}
		}
	}
}
