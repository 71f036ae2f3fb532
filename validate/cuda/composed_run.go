//go:build cuda

package cuda

import (
	"fmt"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/validate"
)

// composedKernels are those that other kernels make up.
func composedKernels(register func(k kernel, names ...string)) {
	register(kernel{run: euclideanNorm, work: normWork}, "euclidean_norm")
	register(kernel{run: deviation, work: normWork}, "std")
	register(kernel{run: weightNorm, work: weightNormWork}, "_weight_norm_interface")
	register(kernel{run: weightNormBackward, work: weightNormBackwardWork}, "_weight_norm_interface_backward")
}

// bitwiseNot turns whole numbers' bits around, and truth values.
func bitwiseNot(r *run) error {
	name := "bitwise_not"
	if r.result(0).DType == graph.Bool {
		name = "logical_not"
	}
	return r.elementwise(&Operators[operatorCode(name)])
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
func euclideanNorm(r *run) error { return r.rootOf(redSumSq) }

// deviation is the root of the variance over dims.
func deviation(r *run) error { return r.rootOf(redVar) }

// rootOf is the root of a reduction over the call's dims.
func (r *run) rootOf(op int32) error {
	out := r.result(0)
	sums := *out
	if isTraining(out.DType) {
		if need := normWork(r); r.c.Work.Bytes < need {
			return fmt.Errorf("a norm works in %d bytes, and the plan has %d for it: give it what Device.Work asks for", need, r.c.Work.Bytes)
		}
		sums = validate.Tensor{At: r.c.Work.At, DType: graph.Float32, Shape: out.Shape, Strides: validate.RowMajor(out.Shape)}
	}
	if err := r.reduce(op, &sums, r.arg(0), r.attrs().Dims); err != nil {
		return err
	}
	return r.pointwise("sqrt", out, [4]float64{}, onDevice(&sums))
}

// floatsAt is memory of the call's work for float32 numbers of a shape, of which so
// many bytes are taken, and how many are then.
func (r *run) floatsAt(taken int64, shape []int64) (*validate.Tensor, int64) {
	t := &validate.Tensor{At: r.c.Work.At + taken, DType: graph.Float32, Shape: shape, Strides: validate.RowMajor(shape)}
	return t, taken + padded(graph.Float32.Bytes(t.Elems()))
}

// weightNormWork holds what each slice of the weight is scaled by.
func weightNormWork(r *run) int64 { return padded(graph.Float32.Bytes(r.arg(1).Elems())) }

// weightNormBackwardWork holds a number for each element, and three for each slice.
func weightNormBackwardWork(r *run) int64 {
	return padded(graph.Float32.Bytes(r.arg(0).Elems())) + 3*padded(graph.Float32.Bytes(r.arg(1).Elems()))
}

// outside are the dims of a weight but the one that is not reduced.
func (r *run) outside(t *validate.Tensor) (dims []int64) {
	for d := range t.Shape {
		if int64(d) != r.attrs().Dims[0] {
			dims = append(dims, int64(d))
		}
	}
	return dims
}

// enough returns an error where the call's work is smaller than what it needs.
func (r *run) enough(need int64) error {
	if r.c.Work.Bytes < need {
		return fmt.Errorf("%s works in %d bytes, and the plan has %d for it: give it what Device.Work asks for", r.c.Kernel, need, r.c.Work.Bytes)
	}
	return nil
}

// An elementwiseStep is an operator with its result and operands.
type elementwiseStep struct {
	name string
	out  *validate.Tensor
	in   []*validate.Tensor
}

// inTurn runs operators one after the other; those without a result are left out.
func (r *run) inTurn(steps ...elementwiseStep) error {
	for _, s := range steps {
		if s.out == nil {
			continue
		}
		in := make([]validate.Operand, len(s.in))
		for i, t := range s.in {
			in[i] = onDevice(t)
		}
		if err := r.pointwise(s.name, s.out, [4]float64{1}, in...); err != nil {
			return err
		}
	}
	return nil
}

// weightNorm scales the slices v of a weight to the lengths g, and keeps their own.
func weightNorm(r *run) error {
	if err := r.enough(weightNormWork(r)); err != nil {
		return err
	}
	v, g, w, norms := r.arg(0), r.arg(1), r.result(0), r.result(1)
	if err := r.reduce(redSumSq, norms, v, r.outside(v)); err != nil {
		return err
	}
	scale, _ := r.floatsAt(0, g.Shape)
	return r.inTurn(elementwiseStep{"sqrt", norms, []*validate.Tensor{norms}}, elementwiseStep{"div", scale, []*validate.Tensor{g, norms}}, elementwiseStep{"mul", w, []*validate.Tensor{v, scale}})
}

// weightNormBackward reads the gradient of the scaled weight, lengths, weight, and
// the weight's own lengths n: dg = sum(dw v)/n, dv = g/n (dw - v dg/n).
func weightNormBackward(r *run) error {
	if err := r.enough(weightNormBackwardWork(r)); err != nil {
		return err
	}
	dw, g, v, norms, dv, dg := r.arg(0), r.arg(1), r.arg(2), r.arg(3), r.result(0), r.result(1)
	products, at := r.floatsAt(0, v.Shape)
	sums, at := r.floatsAt(at, g.Shape)
	share, at := r.floatsAt(at, g.Shape)
	scale, _ := r.floatsAt(at, g.Shape)
	if err := r.inTurn(elementwiseStep{"mul", products, []*validate.Tensor{dw, v}}); err != nil {
		return err
	}
	if err := r.reduce(redSum, sums, products, r.outside(v)); err != nil {
		return err
	}
	return r.inTurn(elementwiseStep{"div", sums, []*validate.Tensor{sums, norms}}, elementwiseStep{"copy", dg, []*validate.Tensor{sums}}, elementwiseStep{"div", share, []*validate.Tensor{sums, norms}},
		elementwiseStep{"div", scale, []*validate.Tensor{g, norms}}, elementwiseStep{"norm_slope", products, []*validate.Tensor{dw, v, share}}, elementwiseStep{"mul", dv, []*validate.Tensor{products, scale}})
}

// preluBackward makes the gradients of operand and slopes, those of an element each.
func preluBackward(r *run) error {
	g, x, w := r.arg(0), r.arg(1), r.arg(2)
	return r.inTurn(elementwiseStep{"prelu_input_backward", r.result(0), []*validate.Tensor{g, x, w}}, elementwiseStep{"prelu_weight_backward", r.result(1), []*validate.Tensor{g, x}})
}
