//go:build cuda

package cuda

import (
	"fmt"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/validate"
)

// composedKernels are those that other kernels make up.
func composedKernels(register func(k kernel, names ...string)) {
	register(kernel{run: bitwiseNot}, "bitwise_not")
	register(kernel{run: divOrZero}, "div_or_zero")
	register(kernel{run: euclideanNorm, work: normWork}, "euclidean_norm")
}

// bitwiseNot turns whole numbers' bits around, and truth values.
func bitwiseNot(r *run) error {
	name := "bitwise_not"
	if r.result(0).DType == graph.Bool {
		name = "logical_not"
	}
	return r.elementwise(&Operators[operatorCode(name)], [4]float64{})
}

// divOrZero is a/b, and 0 where b is 0.
func divOrZero(r *run) error {
	out, b := r.result(0), r.c.Args[1]
	if b.Kind == validate.OnDevice && b.Tensor.At == out.At {
		return fmt.Errorf("a quotient in the place of its divisor")
	}
	if err := r.pointwise("div", out, [4]float64{}, r.c.Args[0], b); err != nil {
		return err
	}
	return r.pointwise("where", out, [4]float64{}, b, onDevice(out), number(0))
}

// normWork holds the sums of squares in float32: half types end at 65504.
func normWork(r *run) int64 { return graph.Float32.Bytes(r.result(0).Elems()) }

// euclideanNorm is the root of the sum of squares over dims.
func euclideanNorm(r *run) error {
	out := r.result(0)
	sums := *out
	if isTraining(out.DType) {
		if need := normWork(r); r.c.Work.Bytes < need {
			return fmt.Errorf("a norm works in %d bytes, and the plan has %d for it: give it what Device.Work asks for", need, r.c.Work.Bytes)
		}
		sums = validate.Tensor{At: r.c.Work.At, DType: graph.Float32, Shape: out.Shape, Strides: validate.RowMajor(out.Shape)}
	}
	if err := r.reduce(redSumSq, &sums, r.arg(0), r.attrs().Dims); err != nil {
		return err
	}
	return r.pointwise("sqrt", out, [4]float64{}, onDevice(&sums))
}
