//go:build cuda

package cuda

import (
	"fmt"
	"slices"

	"github.com/memplan/memplan/graph"
	contract "github.com/memplan/memplan/graph/kernel"
	"github.com/memplan/memplan/validate"
)

// pointwiseArgs is Pointwise of pointwise.cu.
type pointwiseArgs struct {
	n                   int64
	op, dims, inputs, _ int32
	size                [maxDims]int64
	stride              [4][maxDims]int64
	ptr                 [4]uint64
	dtype               [4]int32
	scalar, param       [4]float64
	by                  [maxDims]divider // if 32 bits count the elements
}

// denseArgs is Dense of dense.cu.
type denseArgs struct {
	n             int64
	ptr           [4]uint64
	scalar, param [4]float64
}

// pointwiseKernels are the kernels of this file.
func pointwiseKernels(register func(k kernel, names ...string)) {
	own := map[string]func(*run) error{"native_dropout_backward": dropoutBackward, "bitwise_not": bitwiseNot, "div_or_zero": divOrZero}
	for i := range Operators {
		op := &Operators[i]
		if k := contract.Find(op.Name); k != nil && k.Elementwise && own[op.Name] == nil { // others are parts of kernels
			register(kernel{run: func(r *run) error { return elementwise(r, op) }}, op.Name)
		}
	}
	for name, f := range own {
		register(kernel{run: f}, name)
	}
	register(kernel{run: maskBias}, "mask_bias")
	register(kernel{run: preluBackward}, "_prelu_kernel_backward")
}

// elementwise runs an operator on the call's operands, with its scalars. A result 1
// is a copy of the operand that result 0 overwrites.
func elementwise(r *run, op *Operator) error {
	var p [4]float64
	copy(p[:], r.c.Numbers())
	name := op.Name
	if name == "div" && r.attrs().Mode != "" {
		name = map[string]string{"floor": "floor_divide", "trunc": "div_trunc"}[r.attrs().Mode]
	}
	if kept := r.result(1); kept != nil {
		if err := pointwise(r, "copy", kept, [4]float64{}, r.c.Args[0]); err != nil {
			return err
		}
	}
	return pointwise(r, name, r.result(0), p, r.c.Args[:min(op.Inputs, len(r.c.Args))]...)
}

// maskBias is 0 where attention is allowed, and minus infinity elsewhere.
func maskBias(r *run) error {
	return pointwise(r, "where", r.result(0), [4]float64{}, r.c.Args[0], number(0), number(minusInf))
}

// number returns an operand that is a number.
func number(v float64) validate.Operand { return validate.Operand{Kind: validate.IsNumber, Value: v} }

// onDevice returns an operand that is a tensor.
func onDevice(t *validate.ArenaView) validate.Operand {
	return validate.Operand{Kind: validate.OnDevice, Tensor: *t}
}

// copyTo copies a tensor, to another type or from a smaller shape if need be.
func (r *run) copyTo(to, from *validate.ArenaView) error {
	return pointwise(r, "copy", to, [4]float64{}, onDevice(from))
}

// set fills a tensor with one number.
func set(r *run, to *validate.ArenaView, v float64) error {
	return pointwise(r, "copy", to, [4]float64{}, number(v))
}

// pointwise computes an elementwise operator into out.
func pointwise(r *run, name string, out *validate.ArenaView, param [4]float64, in ...validate.Operand) error {
	code := operatorCode(name)
	if code < 0 || out == nil {
		return fmt.Errorf("no elementwise operator %s", name)
	}
	a := pointwiseArgs{n: out.Elems(), op: int32(code), inputs: int32(len(in)), param: param}
	strides := make([][]int64, 1+len(in))
	strides[0] = out.Strides
	a.ptr[0], a.dtype[0] = r.ptr(out), dtype(out)
	for i := range in {
		o := &in[i]
		switch o.Kind {
		case validate.OnDevice:
			s, err := broadcast(&o.Tensor, out.Shape)
			if err != nil {
				return err
			}
			strides[i+1], a.ptr[i+1], a.dtype[i+1] = s, r.ptr(&o.Tensor), dtype(&o.Tensor)
		case validate.IsNumber:
			strides[i+1], a.scalar[i+1] = make([]int64, len(out.Shape)), o.Value
		default:
			return fmt.Errorf("%s: operand %d is missing", name, i)
		}
	}
	size := fold(out.Shape, strides)
	a.dims = int32(len(size))
	copy(a.size[:], size)
	for i := range strides {
		copy(a.stride[i][:], strides[i])
	}
	return strided(r, &a, &Operators[code], in, size, strides)
}

// strided selects the kernel of an operator for such operands.
func strided(r *run, a *pointwiseArgs, op *Operator, in []validate.Operand, size []int64, strides [][]int64) error {
	if a.n == 0 {
		return nil
	}
	if dense, ok := vector(r, a, op, in); ok {
		return dense
	}
	if op.Name == "copy" && a.ptr[1] != 0 && a.dtype[0] == a.dtype[1] {
		if done, err := move(r, a, size, strides, in[0].Tensor.DType.Bytes(1)); done || err != nil {
			return err
		}
	}
	name := computeKernel(a, op)
	if op.Wide && name == "pointwise_f32" {
		if done, err := wide(r, a, size, strides); done || err != nil {
			return err
		}
	}
	if name == "pointwise_f32" {
		for d, n := range size {
			a.by[d] = divideBy(n)
		}
	}
	return launch(r.d, "pointwise", name, grid{x: (a.n + 1023) / 1024, tx: 256}, a)
}

// computeKernel selects the type in which an operator is computed.
func computeKernel(a *pointwiseArgs, op *Operator) string {
	float, double, whole := false, false, true
	for i := range int(a.inputs) + 1 {
		if a.ptr[i] == 0 {
			whole = whole && a.scalar[i] == float64(int64(a.scalar[i]))
			continue
		}
		float = float || a.dtype[i] <= 2
		double = double || a.dtype[i] == 3
	}
	for _, p := range a.param {
		whole = whole && p == float64(int64(p))
	}
	switch {
	case double || !float && (!whole || op.Int == ""):
		return "pointwise_f64"
	case !float:
		return "pointwise_i64"
	case a.n >= 1<<31:
		return "pointwise_f32_long"
	}
	return "pointwise_f32"
}

// vector runs an operator's vector kernel if it has one for these operands: of
// one type, dense, in one order, and aligned.
func vector(r *run, a *pointwiseArgs, op *Operator, in []validate.Operand) (error, bool) {
	if a.dims != 1 || a.stride[0][0] != 1 || a.dtype[0] > 2 {
		return nil, false
	}
	d := denseArgs{n: a.n, ptr: a.ptr, scalar: a.scalar, param: a.param}
	names := [...]string{"f32", "f16", "bf16"}
	same := op.Hot
	for i := range in {
		if a.ptr[i+1] == 0 {
			continue
		}
		if a.stride[i+1][0] != 1 || !aligned(a.ptr[i+1]) {
			return nil, false
		}
		same = same && a.dtype[i+1] == a.dtype[0]
	}
	if !aligned(a.ptr[0]) {
		return nil, false
	}
	if same {
		width := int64(4)
		if a.dtype[0] != 0 {
			width = 8
		}
		return launch(r.d, "dense", "dense_"+op.Name+"_"+names[a.dtype[0]], along((a.n+width-1)/width), &d), true
	}
	if op.Name != "copy" || a.ptr[1] == 0 || a.dtype[1] > 2 || a.dtype[1] != 0 && a.dtype[0] != 0 {
		return nil, false
	}
	return launch(r.d, "dense", "cast_"+names[a.dtype[1]]+"_"+names[a.dtype[0]], along((a.n+7)/8), &d), true
}

// move copies without a conversion.
func move(r *run, a *pointwiseArgs, size []int64, strides [][]int64, bytes int64) (bool, error) {
	if t, ok := transposeOf(size, strides, a.ptr[0], a.ptr[1], bytes); ok {
		return true, launch(r.d, "wide", fmt.Sprint("transpose_", bytes), grid{x: int64(t.tiles), tx: 32, ty: 8}, &t)
	}
	m, ok := moveOf(size, strides, a.ptr[0], a.ptr[1], bytes)
	if !ok {
		return false, nil
	}
	return true, launch(r.d, "wide", fmt.Sprint("move_", m.bytes), grid{x: (int64(m.n) + 1023) / 1024, tx: 256}, &m)
}

// wide runs a cheap operator on tiles or groups of elements.
func wide(r *run, a *pointwiseArgs, size []int64, strides [][]int64) (bool, error) {
	w := wideArgs{op: a.op, inputs: a.inputs, ptr: a.ptr, dtype: a.dtype, param: a.param}
	for i, x := range a.scalar {
		w.scalar[i] = float32(x)
	}
	if t, ok := tile(&w, size, strides); ok {
		return true, launch(r.d, "wide", "tiled", grid{x: int64(t.tiles), tx: 32, ty: 8}, &t)
	}
	n, ok := widen(&w, size, strides)
	if !ok {
		return false, nil
	}
	return true, launch(r.d, "wide", fmt.Sprint("wide_", n), along(int64(w.n)), &w)
}

// dropoutArgs and dropoutBackArgs are Dropout and DropoutBack of fill.cu.
type dropoutArgs struct {
	n             int64
	in, out, mask uint64
	seed          uint64
	p             float64
	scale         float32
	dtype, dims   int32
	_             int32
	size          [maxDims]int64
	stride        [3][maxDims]int64
}

// dropoutBackArgs is DropoutBack of fill.cu.
type dropoutBackArgs struct {
	n               int64
	grad, out, mask uint64
	scale           float32
	dtype           int32
}

// dropout draws the mask, result 0, and scales the kept elements.
func dropout(r *run) error {
	x, mask, out := r.arg(0), r.result(0), r.result(1)
	p := r.scalar("dropout")
	a := dropoutArgs{n: x.Elems(), in: r.ptr(x), out: r.ptr(out), mask: r.ptr(mask), seed: r.c.Seed, p: p, scale: float32(1 / (1 - p)), dtype: dtype(x)}
	if !isTraining(x.DType) || out.DType != x.DType || mask.DType != graph.Bool {
		return fmt.Errorf("dropout of %v to %v", x.DType, out.DType)
	}
	if !x.RowMajor() || !out.RowMajor() || !mask.RowMajor() {
		a.dims = int32(len(x.Shape))
		copy(a.size[:], x.Shape)
		for i, t := range []*validate.ArenaView{x, out, mask} {
			copy(a.stride[i][:], t.Strides)
		}
	}
	if a.dims == 0 && aligned(a.in, a.out) && a.mask%8 == 0 {
		return launch(r.d, "fill", "dropout_forward_8", along((a.n+7)/8), &a)
	}
	return launch(r.d, "fill", "dropout_forward", grid{x: (a.n + 1023) / 1024, tx: 256}, &a)
}

// dropoutBackward scales the gradient where the mask is set.
func dropoutBackward(r *run) error {
	g, mask, out := r.arg(0), r.arg(1), r.result(0)
	same := slices.Equal(g.Shape, mask.Shape) && slices.Equal(g.Shape, out.Shape)
	if !same || !g.RowMajor() || !mask.RowMajor() || !out.RowMajor() || g.DType != out.DType || !isTraining(g.DType) || mask.DType != graph.Bool {
		return pointwise(r, "native_dropout_backward", out, [4]float64{r.scalar("scale")}, r.c.Args[0], r.c.Args[1])
	}
	a := dropoutBackArgs{n: g.Elems(), grad: r.ptr(g), out: r.ptr(out), mask: r.ptr(mask), scale: float32(r.scalar("scale")), dtype: dtype(g)}
	if aligned(a.grad, a.out) && a.mask%8 == 0 {
		return launch(r.d, "fill", "dropout_backward_8", along((a.n+7)/8), &a)
	}
	return launch(r.d, "fill", "dropout_backward", grid{x: (a.n + 1023) / 1024, tx: 256}, &a)
}

// bitwiseNot turns whole numbers' bits around, and truth values.
func bitwiseNot(r *run) error {
	name := "bitwise_not"
	if r.result(0).DType == graph.Bool {
		name = "logical_not"
	}
	return elementwise(r, &Operators[operatorCode(name)])
}

// divOrZero is a/b, and 0 where b is 0.
func divOrZero(r *run) error {
	out, b := r.result(0), r.c.Args[1]
	if b.Kind == validate.OnDevice && b.Tensor.At == out.At {
		return fmt.Errorf("a quotient in the place of its divisor")
	}
	if err := pointwise(r, "div", out, [4]float64{}, r.c.Args[0], b); err != nil {
		return err
	}
	return pointwise(r, "where", out, [4]float64{}, b, onDevice(out), number(0))
}

// An elementwiseStep is an operator with its result and operands.
type elementwiseStep struct {
	name string
	out  *validate.ArenaView
	in   []*validate.ArenaView
}

// inTurn runs operators one after the other; those without a result are skipped.
func inTurn(r *run, steps ...elementwiseStep) error {
	for _, s := range steps {
		if s.out == nil {
			continue
		}
		in := make([]validate.Operand, len(s.in))
		for i, t := range s.in {
			in[i] = onDevice(t)
		}
		if err := pointwise(r, s.name, s.out, [4]float64{1}, in...); err != nil {
			return err
		}
	}
	return nil
}

// preluBackward makes the gradients of operand and slopes, the latter for each
// element.
func preluBackward(r *run) error {
	g, x, w := r.arg(0), r.arg(1), r.arg(2)
	return inTurn(r, elementwiseStep{"prelu_input_backward", r.result(0), []*validate.ArenaView{g, x, w}}, elementwiseStep{"prelu_weight_backward", r.result(1), []*validate.ArenaView{g, x}})
}
