//go:build cuda

package cuda

import (
	"fmt"
	"math"

	"github.com/memplan/memplan/validate"
)

var minusInf = math.Inf(-1)

// fillArgs is Fill of fill.cu.
type fillArgs struct {
	n, rows, cols, diagonal int64
	out, in                 uint64
	dtype, kind, dims, _    int32
	size, stride            [maxDims]int64
	a, b                    float64
	seed                    uint64
}

// The kinds of fills, in fill.cu's numbering.
const (
	fillArange = iota
	fillTril
	fillTriu
	fillUniform
	fillNormal
	fillBelow
	fillBernoulli
	fillCausal
)

// fillKernels are the kernels of this file.
func fillKernels(register func(k kernel, names ...string)) {
	register(kernel{run: func(*run) error { return nil }}, "empty", "zero_grad", "del")
	register(kernel{run: func(r *run) error { return set(r, r.result(0), r.scalar("value")) }}, "fill")
	for name, kind := range map[string]int32{"arange": fillArange, "uniform": fillUniform, "normal": fillNormal, "randn": fillNormal, "randint": fillBelow, "bernoulli": fillBernoulli} {
		register(kernel{run: func(r *run) error { return fill(r, r.result(0), kind, nil) }}, name)
	}
	register(kernel{rows: only([]int{0}, nil), run: func(r *run) error { return fill(r, r.result(0), fillTril, r.arg(0)) }}, "tril")
	register(kernel{rows: only([]int{0}, nil), run: func(r *run) error { return fill(r, r.result(0), fillTriu, r.arg(0)) }}, "triu")
	register(kernel{run: func(r *run) error { return fill(r, r.result(0), fillCausal, nil) }}, "causal_bias")
	register(kernel{run: dropout}, "native_dropout")
	register(kernel{rows: all, run: emptyRows}, "empty_rows")
}

// fill computes elements from their row-major indices.
func fill(r *run, out *validate.ArenaView, kind int32, in *validate.ArenaView) error {
	a := fillArgs{n: out.Elems(), out: r.ptr(out), in: r.ptr(in), dtype: dtype(out), kind: kind, dims: int32(len(out.Shape)), seed: r.c.Seed}
	switch numbers := r.c.Numbers(); {
	case len(numbers) > 1:
		a.a, a.b = numbers[0], numbers[1]
	case len(numbers) > 0:
		a.a, a.diagonal = numbers[0], int64(numbers[0])
	}
	if n := len(out.Shape); n >= 2 {
		a.rows, a.cols = out.Shape[n-2], out.Shape[n-1]
	}
	if in != nil && (!in.RowMajor() || in.DType != out.DType) {
		return fmt.Errorf("a triangle of %v with strides %v", in.Shape, in.Strides)
	}
	copy(a.size[:], out.Shape)
	copy(a.stride[:], out.Strides)
	return launch(r.d, "fill", "fill_index", sweep(a.n), &a)
}

// emptyRowsArgs is EmptyRows of fill.cu.
type emptyRowsArgs struct {
	rows, cols      int64
	scores, out     uint64
	dtype, outDType int32
}

// emptyRows sets the rows of a softmax to 0 whose scores are all minus infinity.
func emptyRows(r *run) error {
	x, out := r.arg(0), r.result(0)
	cols := x.Shape[len(x.Shape)-1]
	if !x.RowMajor() || !out.RowMajor() {
		return fmt.Errorf("rows with strides %v", x.Strides)
	}
	if p := r.arg(1); p != nil && p.At != out.At { // the other rows stay
		if err := r.copyTo(out, p); err != nil {
			return err
		}
	}
	a := emptyRowsArgs{rows: x.Elems() / max(cols, 1), cols: cols, scores: r.ptr(x), out: r.ptr(out), dtype: dtype(x), outDType: dtype(out)}
	return launch(r.d, "fill", "empty_rows", grid{x: a.rows, tx: 256}, &a)
}
