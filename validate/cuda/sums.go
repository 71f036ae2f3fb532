//go:build cuda

package cuda

import "slices"

// runSum runs a sum or mean of a training type by the kernels for neighbouring
// columns or neighbouring elements of a row; it returns false for others.
func runSum(r *run, a *reduceArgs) (bool, error) {
	if a.op != redSum && a.op != redMean || a.dtype > 2 || a.outs == 0 || a.redDims == 0 {
		return false, nil
	}
	if a.columns() {
		return true, sumColumns(r, a)
	}
	if a.lines(r.d.sms) {
		return true, sumLines(r, a)
	}
	return false, nil
}

// columns reports whether the call sums over one dim for contiguous results,
// which have at most one dim.
func (a *reduceArgs) columns() bool {
	last := a.outDims - 1
	return a.redDims == 1 && (last == 0 || last == 1 && a.outSize[0] < 1<<16) && a.inStride[last] == 1 && a.outSize[last] > 1
}

// lines reports whether the call sums over contiguous elements, enough of them
// that a team for each result fills the device. Other reduced dims are left to
// a second pass.
func (a *reduceArgs) lines(sms int64) bool {
	last := a.redDims - 1
	n := a.outs * (a.reds / max(a.redSize[last], 1))
	return a.redStride[last] == 1 && a.redSize[last] >= 8 && n >= 4*sms && (last == 0 || n <= scratchFloats && int(a.outDims+last) <= len(a.outSize))
}

// multiples reports whether strides keep packs of wide elements aligned.
func multiples(wide int64, strides ...int64) bool {
	return !slices.ContainsFunc(strides, func(s int64) bool { return s%wide != 0 })
}

// sumColumns sums over one dim for neighbouring results; in parts if they are
// few.
func sumColumns(r *run, a *reduceArgs) error {
	name, last, outer, wide := "reduce_columns", a.outDims-1, int64(1), int64(1)
	if last == 1 {
		outer = a.outSize[0]
	}
	if v := wideOf(a.dtype); aligned(a.in) && multiples(v, a.outSize[last], a.redStride[0]) && (last == 0 || multiples(v, a.inStride[0])) {
		name, wide = "reduce_columns_wide", v
	}
	s, splits := columnGrid(a.reds, a.outSize[last], wide, (3*r.d.sms+outer-1)/outer)
	splits = min(splits, scratchFloats/a.outs)
	if splits < 2 {
		splits = 1
	}
	a.splits = int32(splits)
	if err := launch(r.d, "reduce", name, s.grid(splits, outer), a); err != nil || splits == 1 {
		return err
	}
	return finishSplits(r, a, splits)
}

// sumLines sums over neighbouring elements, a team for each result.
func sumLines(r *run, a *reduceArgs) error {
	last, name, wide := a.redDims-1, "reduce_rows", int64(1)
	n := a.redSize[last]
	if v := wideOf(a.dtype); aligned(a.in) && multiples(v, n) && multiples(v, a.redStride[:last]...) && multiples(v, a.inStride[:a.outDims]...) {
		name, wide = "reduce_rows_wide", v
	}
	t := 4
	for ; t < 32 && 4*int64(t)*wide < n; t *= 2 {
	}
	if n > 4096*wide {
		t = 256
	}
	if last == 0 {
		return launch(r.d, "reduce", name, teamGrid(a.outs, t).grid(1, 1), a)
	}
	first := *a
	first.op, first.outDType, first.outs, first.reds, first.redDims, first.outDims = redSum, 0, a.outs*(a.reds/n), n, 1, a.outDims+last
	copy(first.outSize[:], slices.Concat(a.redSize[:last], a.outSize[:a.outDims]))
	copy(first.inStride[:], slices.Concat(a.redStride[:last], a.inStride[:a.outDims]))
	stride := int64(1)
	for d := int(first.outDims) - 1; d >= 0; d-- {
		first.outStride[d] = stride
		stride *= first.outSize[d]
	}
	first.redSize[0], first.redStride[0] = n, 1
	var err error
	if first.out, err = r.d.staging("reduce", name); err != nil {
		return err
	}
	if err := launch(r.d, "reduce", name, teamGrid(first.outs, t).grid(1, 1), &first); err != nil {
		return err
	}
	return finishSplits(r, a, a.reds/n)
}
