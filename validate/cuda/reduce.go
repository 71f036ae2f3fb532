//go:build cuda

package cuda

import (
	"fmt"
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/validate"
)

// reduceArgs is Reduce of reduce.cu.
type reduceArgs struct {
	outs, reds                   int64
	op, dtype, outDType, splits  int32
	outDims, redDims             int32
	outSize, outStride, inStride [6]int64
	redSize, redStride           [6]int64
	in, out                      uint64
	param                        float64
}

// The reductions, in reduce.cu's numbering.
const (
	redSum = iota
	redMean
	redProd
	redMax
	redMin
	redAny
	redAll
	redArgMax
	redArgMin
	redSumSq
	redVar
	redCount
	redLogSumExp
)

// scratchFloats is the number of floats in the modules' staging areas.
const scratchFloats = 1 << 20

// reduceKernels are the kernels of this file.
func reduceKernels(register func(k kernel, names ...string)) {
	for name, op := range map[string]int32{"sum": redSum, "mean": redMean, "amax": redMax, "amin": redMin, "argmax": redArgMax, "argmin": redArgMin, "var": redVar} {
		register(kernel{run: func(r *run) error { return reduce(r, op, r.result(0), r.arg(0), r.attrs().Dims) }}, name)
	}
	register(kernel{run: logSumExp}, "logsumexp")
	register(kernel{rows: all, spare: true, run: func(r *run) error { return softmax(r, 0) }}, "softmax")
	register(kernel{rows: all, spare: true, run: func(r *run) error { return softmax(r, 1) }}, "log_softmax")
	register(kernel{rows: all, spare: true, run: func(r *run) error { return softmaxBackward(r, 0) }}, "_softmax_backward_data")
	register(kernel{rows: all, spare: true, run: func(r *run) error { return softmaxBackward(r, 1) }}, "_log_softmax_backward_data")
	register(kernel{rows: all, spare: true, run: cumsum}, "cumsum")
	register(kernel{run: glu}, "glu")
	register(kernel{run: gluBackward}, "glu_backward")
	register(kernel{run: euclideanNorm, work: normWork}, "euclidean_norm")
	register(kernel{run: deviation, work: normWork}, "std")
	register(kernel{run: func(r *run) error { return extreme(r, redMax, redArgMax) }}, "amax_with_indices")
	register(kernel{run: func(r *run) error { return extreme(r, redMin, redArgMin) }}, "amin_with_indices")
	register(kernel{rows: all, run: topK}, "topk")
	register(kernel{rows: all, run: interleave, work: func(r *run) int64 { return padded(graph.Int64.Bytes(elementsOf(r.c.Args[0]))) }}, "repeat_interleave")
}

// reduce reduces dims of in to out, where they have one element or are missing.
func reduce(r *run, op int32, out, in *validate.ArenaView, dims []int64) error {
	a := reduceArgs{op: op, dtype: dtype(in), outDType: dtype(out), in: r.ptr(in), out: r.ptr(out), splits: 1, reds: 1}
	if len(dims) == 0 && out.Elems() == 1 {
		for d := range in.Shape {
			dims = append(dims, int64(d))
		}
	}
	var keepShape, keepIn, redShape, redIn []int64
	for d, n := range in.Shape {
		if slices.Contains(dims, int64(d)) {
			redShape, redIn = append(redShape, n), append(redIn, in.Strides[d])
			a.reds *= n
		} else {
			keepShape, keepIn = append(keepShape, n), append(keepIn, in.Strides[d])
		}
	}
	var keepOut []int64
	for d, n := range out.Shape {
		if len(out.Shape) == len(in.Shape) && slices.Contains(dims, int64(d)) {
			continue
		}
		if len(keepOut) < len(keepShape) && keepShape[len(keepOut)] == n {
			keepOut = append(keepOut, out.Strides[d])
		}
	}
	if len(keepOut) != len(keepShape) {
		return fmt.Errorf("reducing %v of %v to %v", dims, in.Shape, out.Shape)
	}
	a.outs = out.Elems()
	a.param = 1 / float64(max(a.reds, 1))
	if op == redVar {
		a.param = float64(a.reds) - r.scalar("correction")
	}
	return runReduce(r, &a, keepShape, keepIn, keepOut, redShape, redIn)
}

// runReduce folds the dims, distributes the work among threads and starts the
// kernel: twice if the reduced elements are split.
func runReduce(r *run, a *reduceArgs, keepShape, keepIn, keepOut, redShape, redIn []int64) error {
	keep := [][]int64{keepIn, keepOut}
	keepSize := fold(keepShape, keep)
	red := [][]int64{redIn}
	redSize := fold(redShape, red)
	if a.op == redArgMax || a.op == redArgMin { // positions are counted in the dims' own order
		red = [][]int64{redIn}
		redSize = join(redShape, red, ascending(len(redShape)))
	}
	if len(keepSize) > len(a.outSize) || len(redSize) > len(a.redSize) {
		return fmt.Errorf("a reduction over %v and %v", keepShape, redShape)
	}
	a.outDims, a.redDims = int32(len(keepSize)), int32(len(redSize))
	copy(a.outSize[:], keepSize)
	copy(a.inStride[:], keep[0])
	copy(a.outStride[:], keep[1])
	copy(a.redSize[:], redSize)
	copy(a.redStride[:], red[0])
	if done, err := runSum(r, a); done || err != nil {
		return err
	}
	// If neighbouring results read neighbouring elements, a warp computes 32 of
	// them; else a block computes one.
	g := grid{tx: 1, ty: 256}
	if a.reds < 256 {
		for g.ty = 32; int64(g.ty) < a.reds; g.ty *= 2 {
		}
	}
	if n := len(keepSize) - 1; a.outs > 1 && keep[0][n] == 1 && !(len(redSize) == 1 && red[0][0] == 1 && a.reds > 1) {
		g.tx, g.ty = 32, 16
		for g.ty > 1 && int64(g.ty/2) >= a.reds {
			g.ty /= 2
		}
	} else if a.reds <= 8 {
		g.tx, g.ty = 64, 1
	}
	g.x = (a.outs + int64(g.tx) - 1) / int64(g.tx)
	name := "reduce_f32"
	switch whole := a.dtype >= dtypes[graph.Int64] && a.dtype != dtypes[graph.Float64]; {
	case whole && a.op != redMean && a.op != redVar:
		name = "reduce_i64"
	case whole || a.dtype == dtypes[graph.Float64]:
		name = "reduce_f64"
	}
	once := a.op == redArgMax || a.op == redArgMin || a.op == redVar || a.op == redLogSumExp || name != "reduce_f32"
	if per := int64(g.ty) * 16; !once && g.x < 2*r.d.sms && a.reds > 2*per {
		a.splits = int32(min((a.reds+per-1)/per, (4*r.d.sms+g.x-1)/g.x, scratchFloats/max(a.outs, 1), 65535))
	}
	if a.splits < 2 {
		a.splits = 1
		return launch(r.d, "reduce", name, g, a)
	}
	g.y = int64(a.splits)
	if err := launch(r.d, "reduce", name, g, a); err != nil {
		return err
	}
	return finishSplits(r, a, int64(a.splits))
}

// staging returns the address of the module's scratch.
func (d *Device) staging(file, name string) (uint64, error) {
	if _, err := d.function(file, name); err != nil {
		return 0, err
	}
	at, _, err := d.modules[file].Global("scratch")
	return uint64(at), explain("finding the staging area", err)
}

// finishSplits reduces the partial results in scratch, those of one part
// contiguous in the order of the results.
func finishSplits(r *run, a *reduceArgs, parts int64) error {
	b := reduceArgs{outs: a.outs, reds: parts, op: a.op, outDType: a.outDType, splits: 1, outDims: a.outDims, redDims: 1, outSize: a.outSize,
		outStride: a.outStride, out: a.out, param: a.param}
	if a.op == redSumSq || a.op == redCount {
		b.op = redSum
	}
	n := int64(1)
	for d := int(a.outDims) - 1; d >= 0; d-- {
		b.inStride[d] = n
		n *= a.outSize[d]
	}
	b.redSize[0], b.redStride[0] = parts, a.outs
	var err error
	if b.in, err = r.d.staging("reduce", "reduce_f32"); err != nil {
		return err
	}
	second := grid{x: (a.outs + 31) / 32, tx: 32, ty: 16}
	if a.outs == 1 {
		second = grid{x: 1, tx: 1, ty: 256}
	}
	return launch(r.d, "reduce", "reduce_f32", second, &b)
}

// ascending returns 0 to n-1.
func ascending(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// softmaxArgs is Softmax of reduce.cu.
type softmaxArgs struct {
	rows, cols, inner       int64
	in, out, grad           uint64
	dtype, outDType, log, _ int32
}

// lines splits a contiguous tensor at a dim: number of lines outside it, its
// length, and number of elements inside.
func lines(t *validate.ArenaView, dim int64) (outer, length, inner int64) {
	outer, length, inner = 1, 1, 1
	for d, n := range t.Shape {
		switch {
		case int64(d) < dim:
			outer *= n
		case int64(d) == dim:
			length = n
		default:
			inner *= n
		}
	}
	return outer, length, inner
}

// softmaxRun runs a softmax or its backward: by teams that keep their row, by
// blocks that read a row twice, or by threads along the lines.
func softmaxRun(r *run, name string, a *softmaxArgs) error {
	if a.inner != 1 {
		return launch(r.d, "reduce", name+"_lines", along(a.rows*a.inner), a)
	}
	wide := min(wideOf(a.dtype), wideOf(a.outDType))
	whole := aligned(a.in, a.out, a.grad)
	switch {
	case whole && a.cols%wide == 0 && a.cols <= 32*teamElements:
		return launch(r.d, "reduce", name+"_teams_wide", teamGrid(a.rows, team(a.cols, wide)).grid(1, 1), a)
	case a.cols <= 256: // a thread keeps eight
		t := 4
		for ; t < 32 && int64(t)*4 < a.cols; t *= 2 {
		}
		return launch(r.d, "reduce", name+"_teams", teamGrid(a.rows, t).grid(1, 1), a)
	}
	g := grid{x: a.rows, tx: 128}
	for ; g.tx < 1024 && int64(g.tx)*16 < a.cols; g.tx *= 2 {
	}
	if whole {
		name += "_rows_wide"
	} else {
		name += "_rows"
	}
	return launch(r.d, "reduce", name, g, a)
}

// softmax is a softmax, or its logarithm if log is 1.
func softmax(r *run, log int32) error {
	out := r.result(0)
	in, err := inOrder(r, 0)
	if err != nil {
		return err
	}
	if !out.RowMajor() || !isTraining(in.DType) || in.DType != out.DType && out.DType != graph.Float32 {
		return fmt.Errorf("softmax of %v to %v with strides %v", in.DType, out.DType, out.Strides)
	}
	a := softmaxArgs{in: r.ptr(in), out: r.ptr(out), dtype: dtype(in), outDType: dtype(out), log: log}
	a.rows, a.cols, a.inner = lines(in, r.attrs().Dims[0])
	return softmaxRun(r, "softmax", &a)
}

// softmaxBackward is its gradient, or its logarithm's if log is 1.
func softmaxBackward(r *run, log int32) error {
	out := r.result(0)
	g, y, err := inOrders(r)
	if err != nil {
		return err
	}
	if !out.RowMajor() || !isTraining(y.DType) || g.DType != y.DType || out.DType != y.DType && y.DType != graph.Float32 {
		return fmt.Errorf("the gradient %v of a softmax %v to %v with strides %v", g.DType, y.DType, out.DType, out.Strides)
	}
	a := softmaxArgs{in: r.ptr(y), grad: r.ptr(g), out: r.ptr(out), dtype: dtype(y), outDType: dtype(out), log: log}
	a.rows, a.cols, a.inner = lines(y, r.attrs().Dims[0])
	return softmaxRun(r, "softmax_backward", &a)
}

// logSumExp is max + log(sum(exp(x - max))) in one sweep of a row.
func logSumExp(r *run) error {
	return reduce(r, redLogSumExp, r.result(0), r.arg(0), r.attrs().Dims)
}

// inOrder returns operand i of a kernel that requires it row-major: start has
// made it so.
func inOrder(r *run, i int) (*validate.ArenaView, error) {
	t := r.arg(i)
	if t == nil || !t.RowMajor() {
		return nil, fmt.Errorf("operand %d is not row-major on the device", i)
	}
	return t, nil
}

// inOrders returns a gradient, operand 0, and the operand of the forward, 1.
func inOrders(r *run) (g, x *validate.ArenaView, err error) {
	if g, err = inOrder(r, 0); err == nil {
		x, err = inOrder(r, 1)
	}
	return g, x, err
}

// scanArgs is Scan of reduce.cu.
type scanArgs struct {
	outer, length, inner   int64
	in, out                uint64
	op, dtype, outDType, _ int32
}

// cumsum adds up along a dim.
func cumsum(r *run) error {
	in, err := inOrder(r, 0)
	if err != nil {
		return err
	}
	out := r.result(0)
	if !out.RowMajor() {
		return fmt.Errorf("a running sum with strides %v", out.Strides)
	}
	a := scanArgs{in: r.ptr(in), out: r.ptr(out), op: redSum, dtype: dtype(in), outDType: dtype(out)}
	a.outer, a.length, a.inner = lines(in, r.attrs().Dims[0])
	if a.inner == 1 && a.length >= 64 {
		return launch(r.d, "reduce", "scan_rows", along(a.outer*32), &a)
	}
	return launch(r.d, "reduce", "scan_lines", along(a.outer*a.inner), &a)
}

// normWork holds the sums of squares in float32: half types end at 65504.
func normWork(r *run) int64 { return graph.Float32.Bytes(r.result(0).Elems()) }

// euclideanNorm is the root of the sum of squares over dims.
func euclideanNorm(r *run) error { return rootOf(r, redSumSq) }

// deviation is the root of the variance over dims.
func deviation(r *run) error { return rootOf(r, redVar) }

// rootOf is the root of a reduction over the call's dims.
func rootOf(r *run, op int32) error {
	out := r.result(0)
	sums := *out
	if isTraining(out.DType) {
		if need := normWork(r); r.c.Work.Bytes < need {
			return fmt.Errorf("a norm works in %d bytes, and the plan has %d for it: give it what Device.Work asks for", need, r.c.Work.Bytes)
		}
		sums = validate.ArenaView{At: r.c.Work.At, DType: graph.Float32, Shape: out.Shape, Strides: validate.RowMajor(out.Shape)}
	}
	if err := reduce(r, op, &sums, r.arg(0), r.attrs().Dims); err != nil {
		return err
	}
	return pointwise(r, "sqrt", out, [4]float64{}, onDevice(&sums))
}

// floatsAt returns float32 memory of a shape in the call's workspace after the
// taken bytes, and the bytes taken afterwards.
func floatsAt(r *run, taken int64, shape []int64) (*validate.ArenaView, int64) {
	t := &validate.ArenaView{At: r.c.Work.At + taken, DType: graph.Float32, Shape: shape, Strides: validate.RowMajor(shape)}
	return t, taken + padded(graph.Float32.Bytes(t.Elems()))
}

// outside returns the dims of a weight other than the one that is kept.
func outside(r *run, t *validate.ArenaView) (dims []int64) {
	for d := range t.Shape {
		if int64(d) != r.attrs().Dims[0] {
			dims = append(dims, int64(d))
		}
	}
	return dims
}

// enough returns an error if the call's workspace is smaller than needed.
func enough(r *run, need int64) error {
	if r.c.Work.Bytes < need {
		return fmt.Errorf("%s works in %d bytes, and the plan has %d for it: give it what Device.Work asks for", r.c.Kernel, need, r.c.Work.Bytes)
	}
	return nil
}

// topKArgs is TopK of select.cu.
type topKArgs struct {
	lines, length, inner, k int64
	in, out, index          uint64
	dtype, largest          int32
}

// interleaveArgs is Interleave of select.cu.
type interleaveArgs struct {
	n, elements int64
	sums, out   uint64
	dtype, _    int32
}

// elementsOf returns the number of an operand's elements.
func elementsOf(o validate.Operand) int64 {
	if o.Kind == validate.IsArray {
		return validate.Elems(o.Shape)
	}
	return o.Tensor.Elems()
}

// extreme makes the values along a dim and, by a reduction of its own, their
// indices.
func extreme(r *run, values, places int32) error {
	if err := reduce(r, values, r.result(0), r.arg(0), r.attrs().Dims); err != nil {
		return err
	}
	return reduce(r, places, r.result(1), r.arg(0), r.attrs().Dims)
}

// topK takes the first elements of sorted lines.
func topK(r *run) error {
	in, err := inOrder(r, 0)
	if err != nil {
		return err
	}
	out, index := r.result(0), r.result(1)
	if !out.RowMajor() || !index.RowMajor() || out.DType != in.DType || index.DType != graph.Int64 {
		return fmt.Errorf("sorting %v to %v and %v", in.DType, out.DType, index.DType)
	}
	a := topKArgs{in: r.ptr(in), out: r.ptr(out), index: r.ptr(index), dtype: dtype(in), largest: int32(r.scalar("largest"))}
	outer, length, inner := lines(in, r.attrs().Dims[0])
	a.lines, a.length, a.inner = outer*inner, length, inner
	a.k = out.Elems() / max(a.lines, 1)
	return launch(r.d, "select", "top_k", grid{x: min(a.lines*((length+255)/256), 1<<20), tx: 256}, &a)
}

// interleave finds each element of the result in the running sums of the operand.
func interleave(r *run) error {
	times, err := inOrder(r, 0)
	if err != nil {
		return err
	}
	out := r.result(0)
	if !isIndex(times) || !isIndex(out) || !out.RowMajor() || times.Elems() == 0 {
		return fmt.Errorf("indices %v of what %v %v say", out.DType, times.DType, times.Shape)
	}
	if need := padded(graph.Int64.Bytes(times.Elems())); r.c.Work.Bytes < need {
		return fmt.Errorf("running sums take %d bytes, and the plan has %d for them: give it what Device.Work asks for", need, r.c.Work.Bytes)
	}
	sums := uint64(r.d.at(r.c.Work.At))
	s := scanArgs{outer: 1, length: times.Elems(), inner: 1, in: r.ptr(times), out: sums, op: redSum, dtype: dtype(times), outDType: dtypes[graph.Int64]}
	if err := launch(r.d, "reduce", "scan_rows", along(32), &s); err != nil {
		return err
	}
	a := interleaveArgs{n: out.Elems(), elements: times.Elems(), sums: sums, out: r.ptr(out), dtype: dtype(out)}
	return launch(r.d, "select", "interleave", along(a.n), &a)
}

// glu is the first half times the sigmoid of the second.
func glu(r *run) error {
	x, d, out := r.arg(0), r.attrs().Dims[0], r.result(0)
	return pointwise(r, "glu", out, [4]float64{}, onDevice(half(x, d, false)), onDevice(half(x, d, true)))
}

// gluBackward makes both halves of the gradient.
func gluBackward(r *run) error {
	g, x, d, out := r.arg(0), r.arg(1), r.attrs().Dims[0], r.result(0)
	if out.DType != graph.Float32 && out.DType != x.DType {
		return fmt.Errorf("the gradient %v of a gate on %v", out.DType, x.DType)
	}
	a, b := onDevice(half(x, d, false)), onDevice(half(x, d, true))
	if err := pointwise(r, "glu_value_backward", half(out, d, false), [4]float64{}, onDevice(g), b); err != nil {
		return err
	}
	return pointwise(r, "glu_gate_backward", half(out, d, true), [4]float64{}, onDevice(g), a, b)
}
