package cpu

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"
)

// A matrix is row-major, or, transposed, the transpose of a row-major one.
type matrix struct {
	data       []float32
	rows, cols int // as seen, not as stored
	stride     int
	transposed bool
}

func (m matrix) t() matrix {
	m.rows, m.cols, m.transposed = m.cols, m.rows, !m.transposed
	return m
}

func dense(data []float32, rows, cols int) matrix { return matrix{data, rows, cols, cols, false} }

func flag(m matrix) blas.Transpose {
	if m.transposed {
		return blas.Trans
	}
	return blas.NoTrans
}

// gemm is c = alpha a b + beta c; each element is one sum in order, whatever
// the number of threads.
func gemm(alpha float32, a, b matrix, beta float32, c matrix) {
	if c.rows == 0 || c.cols == 0 {
		return
	}
	if a.cols == 0 {
		for i := range c.rows {
			row := c.data[i*c.stride : i*c.stride+c.cols]
			for j := range row {
				row[j] *= beta
			}
		}
		return
	}
	gonum.Implementation{}.Sgemm(flag(a), flag(b), c.rows, c.cols, a.cols, alpha, a.data, max(a.stride, 1), b.data, max(b.stride, 1), beta, c.data, c.stride)
}

// matrices returns the last two dims of operand i as matrices, one for each
// batch, without a copy if they are float32 and row-major or transposed.
func (r *run) matrices(i int) []matrix {
	s := r.shape(i)
	rows, cols := int(s[len(s)-2]), int(s[len(s)-1])
	batch := 1
	if len(s) == 3 {
		batch = int(s[0])
	}
	data, swapped := r.inOrder(i)
	out := make([]matrix, batch)
	for n := range out {
		part := data[n*rows*cols : (n+1)*rows*cols]
		if swapped {
			out[n] = dense(part, cols, rows).t()
		} else {
			out[n] = dense(part, rows, cols)
		}
	}
	return out
}

// inOrder returns operand i row-major, or with its last two dims exchanged if
// it is stored so.
func (r *run) inOrder(i int) (data []float32, swapped bool) {
	a := r.c.Args[i]
	n := len(a.Tensor.Shape)
	if n >= 2 && a.Tensor.Strides[n-2] == 1 && a.Tensor.Strides[n-1] != 1 {
		t := &r.c.Args[i].Tensor
		was := *t
		t.Shape, t.Strides = swapLast(t.Shape), swapLast(t.Strides)
		data = r.floats(i)
		*t = was
		return data, true
	}
	return r.floats(i), false
}

func swapLast(s []int64) []int64 {
	out := append([]int64(nil), s...)
	n := len(s)
	out[n-1], out[n-2] = out[n-2], out[n-1]
	return out
}

func matmulKernels() map[string]kernel {
	plain := func(r *run) error { return product(r, 0) }
	added := func(r *run) error { return product(r, 1) }
	return map[string]kernel{"mm": plain, "bmm": plain, "addmm": added, "baddbmm": added, "mv": matrixVector, "dot": dotProduct}
}

// product multiplies the operands from index first; the operand before them is
// added.
func product(r *run, first int) error {
	a, b := r.matrices(first), r.matrices(first+1)
	out, done := r.out(0)
	beta, alpha := float32(0), float32(1)
	if first == 1 {
		copy(out, r.floatsIn(0, r.c.Results[0].Shape))
		beta, alpha = float32(r.scalar("beta")), float32(r.scalar("alpha"))
	}
	rows, cols := a[0].rows, b[0].cols
	one := func(n int) { gemm(alpha, a[n], b[n], beta, dense(out[n*rows*cols:(n+1)*rows*cols], rows, cols)) }
	if len(a) == 1 {
		one(0)
	} else {
		r.parallel(len(a), 1, func(lo, hi int) {
			for n := lo; n < hi; n++ {
				one(n)
			}
		})
	}
	done()
	return nil
}

func matrixVector(r *run) error {
	a, v := r.matrices(0)[0], r.floats(1)
	out, done := r.out(0)
	gemm(1, a, dense(v, a.cols, 1), 0, dense(out, a.rows, 1))
	done()
	return nil
}

func dotProduct(r *run) error {
	a, b := r.floats(0), r.floats(1)
	out, done := r.out(0)
	gemm(1, dense(a, 1, len(a)), dense(b, len(b), 1), 0, dense(out, 1, 1))
	done()
	return nil
}
