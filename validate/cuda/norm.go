//go:build cuda

package cuda

import (
	"fmt"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/validate"
)

// rowNormArgs is RowNorm of norm.cu.
type rowNormArgs struct {
	rows, cols                               int64
	in, weight, bias, out, mean, rstd, grad  uint64
	weightGrad, biasGrad                     uint64
	eps                                      float32
	dtype, weightDType, statDType, splits, _ int32
}

// batchNormArgs is BatchNorm of norm.cu.
type batchNormArgs struct {
	n, c, s                                              int64
	inN, inC, inS, outN, outC, outS, gradN, gradC, gradS int64
	in, weight, bias, grad, runningMean, runningVar      uint64
	mean, rstd, out, weightGrad, biasGrad                uint64
	eps, momentum                                        float32
	dtype, weightDType, statDType, runningDType, splits  int32
	train                                                int32
}

// groupNormArgs is GroupNorm of norm.cu.
type groupNormArgs struct {
	n, c, s, groups                         int64
	in, weight, bias, grad, mean, rstd, out uint64
	weightGrad, biasGrad                    uint64
	eps                                     float32
	dtype, weightDType, statDType           int32
}

// normKernels are the kernels of this file.
func normKernels(register func(k kernel, names ...string)) {
	register(kernel{rows: all, spare: true, run: func(r *run) error { return rowNorm(r, 2, 1, 2) }}, "native_layer_norm")
	register(kernel{rows: all, spare: true, run: func(r *run) error { return rowNorm(r, -1, -1, 1) }}, "_fused_rms_norm")
	register(kernel{rows: all, spare: true, run: func(r *run) error { return rowNormBackward(r, 3, 4) }}, "native_layer_norm_backward")
	register(kernel{rows: all, spare: true, run: func(r *run) error { return rowNormBackward(r, -1, 3) }}, "_fused_rms_norm_backward")
	register(kernel{rows: both(only([]int{1, 2, 3, 4}, []int{1, 2}), unless(flatImages, only([]int{0}, []int{0}))), updates: []int{3, 4}, run: batchNorm}, "batch_norm")
	register(kernel{rows: both(only([]int{2, 3, 4, 5, 6}, []int{1, 2}), unless(flatImages, only([]int{0, 1}, []int{0}))), run: batchNormBackward}, "batch_norm_backward")
	register(kernel{rows: all, spare: true, run: groupNorm}, "native_group_norm")
	register(kernel{rows: all, spare: true, run: groupNormBackward}, "native_group_norm_backward")
	register(kernel{run: weightNorm, work: weightNormWork}, "_weight_norm_interface")
	register(kernel{run: weightNormBackward, work: weightNormBackwardWork}, "_weight_norm_interface_backward")
}

// operand returns operand i, or nil if i is negative or the operand absent.
func operand(r *run, i int) *validate.ArenaView {
	if i < 0 {
		return nil
	}
	return r.arg(i)
}

// rowNorm normalises rows; bias is an operand, mean and rstd are results, -1 if
// the norm has none.
func rowNorm(r *run, bias, mean, rstd int) error {
	x, err := inOrder(r, 0)
	if err != nil {
		return err
	}
	w, b, out, st := r.arg(1), operand(r, bias), r.result(0), r.result(rstd)
	a := rowNormArgs{rows: 1, cols: 1, in: r.ptr(x), weight: r.ptr(w), bias: r.ptr(b), out: r.ptr(out), rstd: r.ptr(st), eps: float32(r.scalar("eps")),
		dtype: dtype(x), weightDType: dtype(first(w, b)), statDType: dtype(st)}
	if mean >= 0 {
		a.mean = r.ptr(r.result(mean))
		if a.mean == 0 {
			return fmt.Errorf("a layer norm without its mean")
		}
	}
	if !isTraining(x.DType) || out.DType != x.DType || !out.RowMajor() {
		return fmt.Errorf("a norm of %v to %v with strides %v", x.DType, out.DType, out.Strides)
	}
	a.rows, a.cols = rowsAndCols(r, x)
	return rowNormLaunch(r, &a, "row_norm_forward")
}

// first returns the first tensor that is not nil.
func first(ts ...*validate.ArenaView) *validate.ArenaView {
	for _, t := range ts {
		if t != nil {
			return t
		}
	}
	return nil
}

// rowsAndCols returns the numbers of rows and columns: the call's dims are the
// columns.
func rowsAndCols(r *run, x *validate.ArenaView) (rows, cols int64) {
	cols = 1
	for _, d := range r.attrs().Dims {
		cols *= x.Shape[d]
	}
	return x.Elems() / max(cols, 1), cols
}

// rowGrid gives each row a block of a suitable width.
func rowGrid(rows, cols int64) grid {
	t := 64
	for ; t < 1024 && int64(t)*4 < cols; t *= 2 {
	}
	return grid{x: min(rows, 1<<20), tx: t}
}

// rowNormLaunch runs a kernel on rows: by teams if they consist of whole packs
// and weights have their type.
func rowNormLaunch(r *run, a *rowNormArgs, name string) error {
	wide := wideOf(a.dtype)
	if t := team(a.cols, wide); t > 0 && a.cols%wide == 0 && aligned(a.in, a.out, a.grad, a.weight, a.bias) && (a.weight|a.bias == 0 || a.weightDType == a.dtype) {
		return launch(r.d, "norm", name+"_teams", teamGrid(a.rows, t).grid(1, 1), a)
	}
	return launch(r.d, "norm", name, rowGrid(a.rows, a.cols), a)
}

// rowNormBackward makes the gradients of operand, weight and bias; mean and rstd
// are operands, mean -1 if the norm has none.
func rowNormBackward(r *run, mean, rstd int) error {
	g, x, err := inOrders(r)
	if err != nil {
		return err
	}
	w, dw, db := r.arg(2), r.result(1), r.result(2)
	a := rowNormArgs{in: r.ptr(x), grad: r.ptr(g), weight: r.ptr(w), mean: r.ptr(operand(r, mean)), rstd: r.ptr(r.arg(rstd)), weightGrad: r.ptr(dw), biasGrad: r.ptr(db),
		dtype: dtype(x), weightDType: dtype(first(w, dw, db)), statDType: dtype(r.arg(rstd))}
	if !isTraining(x.DType) || g.DType != x.DType {
		return fmt.Errorf("the gradient %v of a norm of %v", g.DType, x.DType)
	}
	a.rows, a.cols = rowsAndCols(r, x)
	if out := r.result(0); out != nil {
		if out.DType != x.DType || !out.RowMajor() {
			return fmt.Errorf("the gradient of a norm with strides %v", out.Strides)
		}
		a.out = r.ptr(out)
		if err := rowNormLaunch(r, &a, "row_norm_backward"); err != nil {
			return err
		}
	}
	if dw == nil && db == nil {
		return nil
	}
	return rowNormWeights(r, &a)
}

// rowNormWeights adds the gradients of weight and bias over the rows, in two
// passes.
func rowNormWeights(r *run, a *rowNormArgs) error {
	name, wide := "row_norm_weights_partial", int64(1)
	if v := wideOf(a.dtype); a.cols%v == 0 && aligned(a.in, a.grad) {
		name, wide = "row_norm_weights_wide", v
	}
	s, splits := columnGrid(a.rows, a.cols, wide, 3*r.d.sms)
	if splits = min(splits, scratchFloats/(2*max(a.cols, 1))); splits < 1 {
		return fmt.Errorf("a norm over %d columns", a.cols)
	}
	a.splits = int32(splits)
	if err := launch(r.d, "norm", name, s.grid(splits, 1), a); err != nil {
		return err
	}
	return launch(r.d, "norm", "row_norm_weights_finish", grid{x: (a.cols + 15) / 16, y: 2, tx: 16, ty: 16}, a)
}

// planes views [N, C, ...] as [N, C, S] with one stride for all positions.
func planes(t *validate.ArenaView) (n, c, s, sn, sc, ss int64, ok bool) {
	if len(t.Shape) < 2 {
		return 0, 0, 0, 0, 0, 0, false
	}
	strides := [][]int64{t.Strides[2:]}
	order := ascending(len(t.Shape) - 2)
	kept := order[:0]
	for _, d := range order {
		if t.Shape[2+d] != 1 {
			kept = append(kept, d)
		}
	}
	size := join(t.Shape[2:], strides, kept)
	if len(size) > 1 {
		return 0, 0, 0, 0, 0, 0, false
	}
	return t.Shape[0], t.Shape[1], size[0], t.Strides[0], t.Strides[1], strides[0][0], true
}

// flatImages reports whether a batch norm's images have one stride for all
// positions.
func flatImages(r *run) bool {
	list := []*validate.ArenaView{r.arg(0), r.result(0)}
	if r.c.Kernel == "batch_norm_backward" {
		list = append(list, r.arg(1))
	}
	for _, t := range list {
		if t == nil {
			continue
		}
		if _, _, _, _, _, _, ok := planes(t); !ok {
			return false
		}
	}
	return true
}

// batchSums sums over the channels, in two passes; without training, forward,
// only the second.
func batchSums(r *run, a *batchNormArgs) error {
	if a.train != 0 || a.grad != 0 {
		name, g := a.sumGrid(r.d.sms)
		if err := launch(r.d, "norm", name, g, a); err != nil {
			return err
		}
	}
	return launch(r.d, "norm", "batch_norm_finish", along(a.c*32), a)
}

// sumGrid distributes the channels' elements among threads: a block for a part
// of a channel if its positions are contiguous, else along the channels if
// those are.
func (a *batchNormArgs) sumGrid(sms int64) (string, grid) {
	name, g, blocks, each := "batch_norm_sums", grid{tx: 1, ty: 512}, 4*sms, int64(4)
	switch {
	case a.inS == 1 && a.s > 1 && (a.grad == 0 || a.gradS == 1):
		name, g, blocks = "batch_norm_sums_planes", grid{tx: 256, ty: 1}, 16*sms
		if a.fours() {
			name, each = "batch_norm_sums_wide", 16
		}
	case a.inC == 1 && a.c > 1 && a.s > 1 || a.s == 1:
		g.tx, g.ty = 32, 16
	}
	share := int64(max(g.ty, 1)) * each
	g.x = (a.c + int64(g.tx) - 1) / int64(g.tx)
	if name != "batch_norm_sums" {
		share, g.x = int64(g.tx)*each, a.c
	}
	// Four numbers of each channel precede the two of each split.
	splits := min((blocks+g.x-1)/g.x, (a.n*a.s+share-1)/share, (scratchFloats-4*a.c)/(2*a.c), 65535)
	g.y = max(splits, 1)
	a.splits = int32(g.y)
	return name, g
}

// fours reports whether groups of four elements are contiguous in all tensors.
func (a *batchNormArgs) fours() bool {
	ok := a.s%4 == 0
	for _, t := range []struct {
		ptr     uint64
		n, c, s int64
	}{{a.in, a.inN, a.inC, a.inS}, {a.out, a.outN, a.outC, a.outS}, {a.grad, a.gradN, a.gradC, a.gradS}} {
		ok = ok && (t.ptr == 0 || t.s == 1 && t.n%4 == 0 && t.c%4 == 0 && aligned(t.ptr))
	}
	return ok
}

// batchApply runs the kernel for four elements at a time if they are contiguous
// in all tensors.
func batchApply(r *run, a *batchNormArgs, single, planes string) error {
	total := a.n * a.c * a.s
	if a.fours() {
		return launch(r.d, "norm", planes, sweep(total/4), a)
	}
	return launch(r.d, "norm", single, sweep(total), a)
}

// batchNorm normalises channels, in training by their own mean, which it also
// returns.
func batchNorm(r *run) error {
	x, out := r.arg(0), r.result(0)
	w, b, rm, rv := r.arg(1), r.arg(2), r.arg(3), r.arg(4)
	a := batchNormArgs{in: r.ptr(x), weight: r.ptr(w), bias: r.ptr(b), runningMean: r.ptr(rm), runningVar: r.ptr(rv), mean: r.ptr(r.result(1)), rstd: r.ptr(r.result(2)),
		out: r.ptr(out), eps: float32(r.scalar("eps")), momentum: float32(r.scalar("momentum")), train: int32(r.scalar("training")), dtype: dtype(x), weightDType: dtype(first(w, b)),
		statDType: dtype(r.result(1)), runningDType: dtype(rm)}
	if r.c.Again && a.train != 0 { // the running statistics are updated already
		a.runningMean, a.runningVar = 0, 0
	}
	var ok, ok2 bool
	a.n, a.c, a.s, a.inN, a.inC, a.inS, ok = planes(x)
	_, _, _, a.outN, a.outC, a.outS, ok2 = planes(out)
	if !ok || !ok2 || !isTraining(x.DType) || out.DType != x.DType {
		return fmt.Errorf("a batch norm of %v %v with strides %v to %v", x.DType, x.Shape, x.Strides, out.Strides)
	}
	if err := batchSums(r, &a); err != nil {
		return err
	}
	return batchApply(r, &a, "batch_norm_apply", "batch_norm_planes")
}

// batchNormBackward makes the gradients of operand, weight and bias.
func batchNormBackward(r *run) error {
	g, x, w, rm, rv, mean, rstd := r.arg(0), r.arg(1), r.arg(2), r.arg(3), r.arg(4), r.arg(5), r.arg(6)
	out, dw, db := r.result(0), r.result(1), r.result(2)
	a := batchNormArgs{in: r.ptr(x), grad: r.ptr(g), weight: r.ptr(w), runningMean: r.ptr(rm), runningVar: r.ptr(rv), mean: r.ptr(mean), rstd: r.ptr(rstd), weightGrad: r.ptr(dw),
		biasGrad: r.ptr(db), eps: float32(r.scalar("eps")), train: int32(r.scalar("training")), dtype: dtype(x), weightDType: dtype(first(w, dw, db)), statDType: dtype(mean),
		runningDType: dtype(rm)}
	var ok, ok2 bool
	a.n, a.c, a.s, a.inN, a.inC, a.inS, ok = planes(x)
	_, _, _, a.gradN, a.gradC, a.gradS, ok2 = planes(g)
	if !ok || !ok2 || !isTraining(x.DType) || g.DType != x.DType {
		return fmt.Errorf("the gradient %v of a batch norm of %v with strides %v, %v", g.DType, x.DType, g.Strides, x.Strides)
	}
	if err := batchSums(r, &a); err != nil {
		return err
	}
	if out == nil {
		return nil
	}
	if _, _, _, a.outN, a.outC, a.outS, ok = planes(out); !ok || out.DType != x.DType {
		return fmt.Errorf("the gradient of a batch norm with strides %v", out.Strides)
	}
	a.out = r.ptr(out)
	return batchApply(r, &a, "batch_norm_apply_backward", "batch_norm_planes_backward")
}

// groups describes a group norm by its operand and the groups' means.
func groups(r *run, x, stat *validate.ArenaView) (groupNormArgs, error) {
	a := groupNormArgs{n: x.Shape[0], c: x.Shape[1], s: 1, groups: 1, eps: float32(r.scalar("eps")), dtype: dtype(x), statDType: dtype(stat), in: r.ptr(x)}
	for _, n := range x.Shape[2:] {
		a.s *= n
	}
	if stat == nil || !isTraining(x.DType) {
		return a, fmt.Errorf("a group norm of %v without its mean", x.DType)
	}
	a.groups = stat.Elems() / max(a.n, 1)
	return a, nil
}

// groupNorm normalises groups of channels.
func groupNorm(r *run) error {
	x, err := inOrder(r, 0)
	if err != nil {
		return err
	}
	w, b, out := r.arg(1), r.arg(2), r.result(0)
	a, err := groups(r, x, r.result(1))
	if err != nil {
		return err
	}
	if !out.RowMajor() || out.DType != x.DType {
		return fmt.Errorf("a group norm with strides %v", out.Strides)
	}
	a.weight, a.bias, a.weightDType, a.out, a.mean, a.rstd = r.ptr(w), r.ptr(b), dtype(first(w, b)), r.ptr(out), r.ptr(r.result(1)), r.ptr(r.result(2))
	return launch(r.d, "norm", "group_norm_run", grid{x: a.n * a.groups, tx: 512}, &a)
}

// groupNormBackward makes the gradients of operand, weight and bias.
func groupNormBackward(r *run) error {
	g, x, err := inOrders(r)
	if err != nil {
		return err
	}
	w, dw, db := r.arg(2), r.result(1), r.result(2)
	a, err := groups(r, x, r.arg(3))
	if err != nil {
		return err
	}
	a.grad, a.weight, a.weightDType, a.mean, a.rstd = r.ptr(g), r.ptr(w), dtype(first(w, dw, db)), r.ptr(r.arg(3)), r.ptr(r.arg(4))
	a.weightGrad, a.biasGrad = r.ptr(dw), r.ptr(db)
	if out := r.result(0); out != nil {
		if !out.RowMajor() || out.DType != x.DType || g.DType != x.DType {
			return fmt.Errorf("the gradient of a group norm with strides %v", out.Strides)
		}
		a.out = r.ptr(out)
		if err := launch(r.d, "norm", "group_norm_run", grid{x: a.n * a.groups, tx: 512}, &a); err != nil {
			return err
		}
	}
	if dw == nil && db == nil {
		return nil
	}
	return launch(r.d, "norm", "group_norm_weights", grid{x: a.c, tx: 256}, &a)
}

// weightNormWork is the workspace for the scale of each slice of the weight.
func weightNormWork(r *run) int64 { return padded(graph.Float32.Bytes(r.arg(1).Elems())) }

// weightNormBackwardWork is the workspace for a number for each element, and three
// for each slice.
func weightNormBackwardWork(r *run) int64 {
	return padded(graph.Float32.Bytes(r.arg(0).Elems())) + 3*padded(graph.Float32.Bytes(r.arg(1).Elems()))
}

// weightNorm scales the slices v of a weight to the lengths g, and returns their
// own lengths.
func weightNorm(r *run) error {
	if err := enough(r, weightNormWork(r)); err != nil {
		return err
	}
	v, g, w, norms := r.arg(0), r.arg(1), r.result(0), r.result(1)
	if err := reduce(r, redSumSq, norms, v, outside(r, v)); err != nil {
		return err
	}
	scale, _ := floatsAt(r, 0, g.Shape)
	return inTurn(r, elementwiseStep{"sqrt", norms, []*validate.ArenaView{norms}}, elementwiseStep{"div", scale, []*validate.ArenaView{g, norms}}, elementwiseStep{"mul", w, []*validate.ArenaView{v, scale}})
}

// weightNormBackward reads the gradient of the scaled weight, lengths, weight, and
// the weight's own lengths n: dg = sum(dw v)/n, dv = g/n (dw - v dg/n).
func weightNormBackward(r *run) error {
	if err := enough(r, weightNormBackwardWork(r)); err != nil {
		return err
	}
	dw, g, v, norms, dv, dg := r.arg(0), r.arg(1), r.arg(2), r.arg(3), r.result(0), r.result(1)
	products, at := floatsAt(r, 0, v.Shape)
	sums, at := floatsAt(r, at, g.Shape)
	share, at := floatsAt(r, at, g.Shape)
	scale, _ := floatsAt(r, at, g.Shape)
	if err := inTurn(r, elementwiseStep{"mul", products, []*validate.ArenaView{dw, v}}); err != nil {
		return err
	}
	if err := reduce(r, redSum, sums, products, outside(r, v)); err != nil {
		return err
	}
	return inTurn(r, elementwiseStep{"div", sums, []*validate.ArenaView{sums, norms}}, elementwiseStep{"copy", dg, []*validate.ArenaView{sums}}, elementwiseStep{"div", share, []*validate.ArenaView{sums, norms}},
		elementwiseStep{"div", scale, []*validate.ArenaView{g, norms}}, elementwiseStep{"norm_slope", products, []*validate.ArenaView{dw, v, share}}, elementwiseStep{"mul", dv, []*validate.ArenaView{products, scale}})
}
