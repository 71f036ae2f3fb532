//go:build cuda

package cuda

import (
	"fmt"
	"slices"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// matmulArgs is MatMul of fill.cu.
type matmulArgs struct {
	batch, m, n, k                       int64
	aStride, bStride, cStride, addStride [3]int64
	a, b, add, c                         uint64
	aDType, bDType, cDType, addDType     int32
}

// matmulKernels are the kernels of this file.
func matmulKernels(register func(k kernel, names ...string)) {
	register(kernel{run: func(r *run) error { return product(r, addend{alpha: 1}, r.arg(0), r.arg(1)) }}, "mm", "bmm")
	register(kernel{run: func(r *run) error { return product(r, addendOf(r), r.arg(1), r.arg(2)) }}, "addmm", "baddbmm")
	register(kernel{run: func(r *run) error { return vectors(r, r.arg(0), column(r.arg(1))) }}, "mv")
	register(kernel{run: func(r *run) error { return vectors(r, row(r.arg(0)), column(r.arg(1))) }}, "dot")
}

// row and column view a vector as a matrix.
func row(t *validate.ArenaView) *validate.ArenaView {
	return part(t, []int64{1, t.Shape[0]}, []int64{t.Strides[0] * max(t.Shape[0], 1), t.Strides[0]}, 0)
}

func column(t *validate.ArenaView) *validate.ArenaView {
	return part(t, []int64{t.Shape[0], 1}, []int64{t.Strides[0], 1}, 0)
}

// vectors multiplies into a result with fewer dims than a matrix.
func vectors(r *run, a, b *validate.ArenaView) error {
	out := r.result(0)
	stride := int64(1)
	if len(out.Shape) > 0 {
		stride = out.Strides[0]
	}
	return multiply(r, addend{alpha: 1}, a, b, part(out, []int64{a.Shape[0], b.Shape[1]}, []int64{stride, 1}, 0))
}

// batched views a matrix, or a batch of them, with three dims.
func batched(t *validate.ArenaView) *validate.ArenaView {
	if len(t.Shape) == 3 {
		return t
	}
	return part(t, append([]int64{1}, t.Shape...), append([]int64{0}, t.Strides...), 0)
}

// product multiplies matrices, or batches of them, into result 0.
func product(r *run, add addend, a, b *validate.ArenaView) error {
	out := r.result(0)
	if a == nil || b == nil || len(a.Shape) < 2 || len(a.Shape) > 3 {
		return fmt.Errorf("a product of operands that are no matrices on the device")
	}
	return multiply(r, add, a, b, out)
}

// An addend is the factor alpha of a product, and a tensor, nil for none, that
// is added with factor beta.
type addend struct {
	tensor      *validate.ArenaView
	beta, alpha float64
}

// addendOf returns operand 0 with the call's factors. As in PyTorch, with a beta
// of 0 the tensor's contents do not matter.
func addendOf(r *run) addend {
	a := addend{tensor: r.arg(0), beta: r.scalar("beta"), alpha: r.scalar("alpha")}
	if a.beta == 0 {
		a.tensor = nil
	}
	return a
}

// multiply computes out = alpha*a*b + beta*tensor.
func multiply(r *run, add addend, a, b, out *validate.ArenaView) error {
	x, y, z := batched(a), batched(b), batched(out)
	batch, m, k, n := z.Shape[0], x.Shape[1], x.Shape[2], y.Shape[2]
	if y.Shape[1] != k || z.Shape[1] != m || z.Shape[2] != n || z.Elems() == 0 {
		if z.Elems() == 0 {
			return nil
		}
		return fmt.Errorf("a product of %v and %v to %v", a.Shape, b.Shape, out.Shape)
	}
	_, typed := cudaTypes[a.DType]
	fa, ok1 := asFactor(r, x)
	fb, ok2 := asFactor(r, y)
	fc, ok3 := asFactor(r, z)
	if !typed || a.DType != b.DType || a.DType != out.DType || !ok1 || !ok2 || !ok3 || k == 0 {
		return multiplyAny(r, add, x, y, z)
	}
	beta := 0.0
	if t := add.tensor; t != nil {
		beta = add.beta
		if t.At != out.At || !slices.Equal(t.Strides, out.Strides) { // not in the result already
			if err := r.copyTo(out, t); err != nil {
				return err
			}
		}
	}
	if fc.transposed { // the result's rows are contiguous: c' = b' * a'
		fc.transposed = false
		return r.d.blas.gemm(a.DType, n, m, k, batch, fb.flipped(), fa.flipped(), fc, add.alpha, beta)
	}
	return r.d.blas.gemm(a.DType, m, n, k, batch, fa, fb, fc, add.alpha, beta)
}

// asFactor views a batch of matrices for cuBLAS: column-major, or transposed if
// the rows are contiguous.
func asFactor(r *run, t *validate.ArenaView) (factor, bool) {
	rows, cols, rs, cs := t.Shape[1], t.Shape[2], t.Strides[1], t.Strides[2]
	f := factor{ptr: r.ptr(t), stride: t.Strides[0]}
	switch {
	case (cs == 1 || cols == 1) && (rs >= cols || rows == 1):
		f.transposed, f.ld = true, max(rs, cols, 1)
	case (rs == 1 || rows == 1) && (cs >= rows || cols == 1):
		f.ld = max(cs, rows, 1)
	default:
		return f, false
	}
	return f, f.ld < 1<<31 && f.ptr%uint64(t.DType.Bytes(1)) == 0
}

// flipped is the transposed matrix.
func (f factor) flipped() factor {
	f.transposed = !f.transposed
	return f
}

// multiplyAny multiplies matrices that cuBLAS does not support.
func multiplyAny(r *run, add addend, x, y, z *validate.ArenaView) error {
	if add.alpha == 1 && (add.tensor == nil || add.beta == 1) {
		return multiplyPlain(r, add.tensor, x, y, z)
	}
	if err := multiplyPlain(r, nil, x, y, z); err != nil {
		return err
	}
	if err := pointwise(r, "mul", z, [4]float64{}, onDevice(z), number(add.alpha)); err != nil || add.tensor == nil {
		return err
	}
	return pointwise(r, "add", z, [4]float64{add.beta}, onDevice(z), onDevice(add.tensor))
}

// multiplyPlain is multiplyAny with both factors 1.
func multiplyPlain(r *run, add, x, y, z *validate.ArenaView) error {
	p := matmulArgs{batch: z.Shape[0], m: z.Shape[1], n: z.Shape[2], k: x.Shape[2], aStride: [3]int64(x.Strides), bStride: [3]int64(y.Strides), cStride: [3]int64(z.Strides),
		a: r.ptr(x), b: r.ptr(y), c: r.ptr(z), aDType: dtype(x), bDType: dtype(y), cDType: dtype(z)}
	if add != nil {
		s, err := broadcast(add, z.Shape)
		if err != nil {
			return err
		}
		p.add, p.addDType, p.addStride = r.ptr(add), dtype(add), [3]int64(s)
	}
	return launch(r.d, "fill", "matmul_any", sweep(z.Elems()), &p)
}

// Prepare finds the plan's memory for cuBLAS: the largest storage that a
// product allocates and keeps. It exists in every step, so that all products
// use it and the same product always runs the same way.
func (d *Device) Prepare(calls []*validate.Call) error {
	for _, c := range calls {
		if c.Node.Unit != program.Product {
			continue
		}
		if s, ok := kept(c); ok && s.Bytes > d.blasAt.Bytes {
			d.blasAt = s
		}
	}
	defer d.leave()
	if err := d.enter(); err != nil {
		return err
	}
	return d.blas.use(uint64(d.at(d.blasAt.At)), uint64(d.blasAt.Bytes))
}

// kept returns the largest scratch that a call allocates but does not free.
func kept(c *validate.Call) (validate.Span, bool) {
	var best validate.Span
	i := 0
	results := map[program.StorageID]bool{}
	for _, t := range c.Node.Out {
		results[t.Storage] = true
	}
	freed := map[program.StorageID]bool{}
	for _, e := range c.Node.Events {
		if e.Free {
			freed[e.Storage] = true
		}
	}
	for _, e := range c.Node.Events {
		if e.Free || results[e.Storage] {
			continue
		}
		if i < len(c.Scratch) && !freed[e.Storage] && c.Scratch[i].Bytes > best.Bytes {
			best = c.Scratch[i]
		}
		i++
	}
	return best, best.Bytes > 0
}
