//go:build cuda

package cuda

import (
	"fmt"

	"gorgonia.org/cu"

	"github.com/memplan/memplan/validate"
)

// nllArgs is NLL of loss.cu.
type nllArgs struct {
	rows, classes, inner, ignore     int64
	in, target, grad, total          uint64
	out, weight                      uint64
	dtype, targetDType, mean, blocks int32
}

// lossKernels are the kernels of this file.
func lossKernels(register func(k kernel, names ...string)) {
	register(kernel{rows: all, run: nll}, "nll_loss_forward", "nll_loss2d_forward")
	register(kernel{rows: all, run: nllBackward}, "nll_loss_backward", "nll_loss2d_backward")
	register(kernel{run: mseLoss}, "mse_loss")
	register(kernel{run: mseBackward}, "mse_loss_backward")
	register(kernel{run: smoothL1Loss}, "smooth_l1_loss")
	register(kernel{run: smoothL1Backward}, "smooth_l1_loss_backward")
}

// nllOf describes log-probabilities and targets.
func nllOf(r *run, ls, target *validate.ArenaView) (nllArgs, error) {
	a := nllArgs{classes: 1, inner: 1, rows: target.Elems(), ignore: int64(r.scalar("ignore_index")), in: r.ptr(ls), target: r.ptr(target), dtype: dtype(ls), targetDType: dtype(target)}
	if r.scalar("reduction") == 1 {
		a.mean = 1
	}
	if !ls.RowMajor() || !target.RowMajor() || !isIndex(target) {
		return a, fmt.Errorf("a loss of strides %v by classes of strides %v", ls.Strides, target.Strides)
	}
	if len(ls.Shape) == 1 {
		a.classes = ls.Shape[0]
		return a, nil
	}
	a.classes = ls.Shape[1]
	for _, n := range ls.Shape[2:] {
		a.inner *= n
	}
	return a, nil
}

// nll is the loss of log-probabilities, reduced, and the weight of all targets.
func nll(r *run) error {
	a, err := nllOf(r, r.arg(0), r.arg(1))
	if err != nil {
		return err
	}
	a.out, a.weight = r.ptr(r.result(0)), r.ptr(r.result(1))
	if a.out == 0 || a.weight == 0 || dtype(r.result(0)) != a.dtype {
		return fmt.Errorf("a loss without its weight")
	}
	g := sweep(a.rows)
	a.blocks = int32(g.x)
	if err := launch(r.d, "loss", "nll_partial", g, &a); err != nil {
		return err
	}
	return launch(r.d, "loss", "nll_finish", grid{x: 1, tx: 32}, &a)
}

// nllBackward is the gradient of the log-probabilities.
func nllBackward(r *run) error {
	a, err := nllOf(r, r.arg(1), r.arg(2))
	if err != nil {
		return err
	}
	out := r.result(0)
	if !out.RowMajor() || out.DType != r.arg(1).DType || r.arg(0).DType != out.DType {
		return fmt.Errorf("the gradient of a loss with strides %v", out.Strides)
	}
	a.grad, a.total, a.out = r.ptr(r.arg(0)), r.ptr(r.arg(3)), r.ptr(out)
	// At most one element of a row is not zero.
	if bytes := out.DType.Bytes(out.Elems()); bytes > 0 {
		if err := cu.MemsetD8Async(r.d.at(out.At), 0, bytes, r.d.stream); err != nil {
			return explain("filling memory", err)
		}
	}
	return launch(r.d, "loss", "nll_backward", along(a.rows), &a)
}

// sameDense reports whether the elements of two tensors have the same order
// without holes.
func sameDense(a, b *validate.ArenaView) bool {
	if a.RowMajor() && b.RowMajor() {
		return true
	}
	strides := [][]int64{a.Strides, b.Strides}
	size := fold(a.Shape, strides)
	return len(size) == 1 && strides[0][0] == 1 && strides[1][0] == 1
}

// half returns a view of one half of a tensor along a dim.
func half(t *validate.ArenaView, d int64, second bool) *validate.ArenaView {
	shape := append([]int64(nil), t.Shape...)
	shape[d] /= 2
	at := int64(0)
	if second {
		at = shape[d] * t.Strides[d]
	}
	return part(t, shape, t.Strides, at)
}

// pairLoss reduces a loss of each pair of elements, which the operator computes into
// the scratch that the plan has for them; without a reduction they are the result.
func pairLoss(r *run, operator string, p [4]float64) error {
	if r.scalar("reduction") == 0 {
		return pointwise(r, operator, r.result(0), p, r.c.Args[0], r.c.Args[1])
	}
	x := r.arg(0)
	if len(r.c.Scratch) == 0 || r.c.Scratch[0].Bytes < x.DType.Bytes(x.Elems()) {
		return fmt.Errorf("the plan has no memory for the differences of %v", x.Shape)
	}
	d := *x
	d.At, d.Strides = r.c.Scratch[0].At, validate.RowMajor(x.Shape)
	if err := pointwise(r, operator, &d, p, r.c.Args[0], r.c.Args[1]); err != nil {
		return err
	}
	op := int32(redMean)
	if r.scalar("reduction") == 2 {
		op = redSum
	}
	return reduce(r, op, r.result(0), &d, nil)
}

func mseLoss(r *run) error { return pairLoss(r, "mse", [4]float64{}) }

func smoothL1Loss(r *run) error {
	return pairLoss(r, "smooth_l1", [4]float64{r.scalar("beta")})
}

// smoothL1Backward is the gradient of the smooth L1 loss.
func smoothL1Backward(r *run) error {
	f := 1.0
	if r.scalar("reduction") == 1 {
		f /= float64(max(r.arg(1).Elems(), 1))
	}
	return pointwise(r, "smooth_l1_slope", r.result(0), [4]float64{f, r.scalar("beta")}, r.c.Args...)
}

// mseBackward is the gradient of the mean squared error.
func mseBackward(r *run) error {
	f := 2.0
	if r.scalar("reduction") == 1 {
		f /= float64(max(r.arg(1).Elems(), 1))
	}
	return pointwise(r, "mse_loss_backward", r.result(0), [4]float64{f}, r.c.Args...)
}
