//go:build cuda

package cuda

import (
	"fmt"
	"slices"

	"gorgonia.org/cu"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// embeddingArgs is Embedding of index.cu.
type embeddingArgs struct {
	tokens, cols, rows, rowStride int64
	index, in, out                uint64
	skip                          int64
	indexCols, indexRow, indexCol int64
	chunks                        uint64
	chunk                         int64
	words, dtype, indexDType, _   int32
}

// maxIndices is how many index tensors a call may have.
const maxIndices = 4

// indexArgs is Index of index.cuh.
type indexArgs struct {
	n                       int64
	dims, indices           int32
	size                    [maxDims]int64
	valueStride, baseStride [maxDims]int64
	indexStride             [maxIndices][maxDims]int64
	step, limit             [maxIndices]int64
	index                   [maxIndices]uint64
	base, value             uint64
	indexDType              [maxIndices]int32
	bytes, _, dtype, dim    int32
}

// indexAddArgs is IndexAdd of index.cu.
type indexAddArgs struct {
	at          indexArgs
	rows, width int64
}

// indexKernels are those of this file.
func indexKernels(register func(k kernel, names ...string)) {
	register(kernel{rows: tableRows, run: embedding}, "embedding")
	register(kernel{rows: gradientRows, spare: true, run: embeddingBackward, work: func(r *run) int64 { return chunksOf(r).bytes() }}, "embedding_dense_backward")
	register(kernel{run: index, accepts: few}, "index")
	register(kernel{run: indexBackward, accepts: few, work: func(r *run) int64 { return r.indexPlaces(r.arg(0).Shape, 1).bytes() }}, "index_backward")
	register(kernel{run: func(r *run) error { return r.pick(false, false) }}, "index_select")
	register(kernel{run: func(r *run) error { return r.pick(true, false) }}, "gather")
	register(kernel{run: func(r *run) error { return r.pick(false, true) }, work: func(r *run) int64 { return r.pickPlaces(false).bytes() }}, "index_select_backward")
	register(kernel{run: func(r *run) error { return r.pick(true, true) }, work: func(r *run) int64 { return r.pickPlaces(true).bytes() }}, "gather_backward")
	register(kernel{run: cat}, "cat")
	register(kernel{run: stack}, "stack")
	register(kernel{run: repeat}, "repeat")
	register(kernel{run: flip}, "flip")
	register(kernel{run: roll}, "roll")
	register(kernel{rows: unless(openWindow, only(nil, []int{0})), run: func(r *run) error { return r.window(0) }}, "unview")
	register(kernel{rows: unless(openWindow, only(nil, []int{0})), run: func(r *run) error { return r.window(r.scalar("value")) }}, "constant_pad_nd")
}

// isIndex reports a tensor of indices.
func isIndex(t *validate.Tensor) bool {
	return t != nil && (t.DType == graph.Int64 || t.DType == graph.Int32)
}

// rowsOf shows indices as rows: how many there are in a row, and the strides of
// rows and of what is in them.
func rowsOf(idx *validate.Tensor) (rows [3]int64, ok bool) {
	if !isIndex(idx) {
		return rows, false
	}
	strides := [][]int64{idx.Strides}
	var kept []int
	for d, n := range idx.Shape {
		if n != 1 {
			kept = append(kept, d)
		}
	}
	switch size := join(idx.Shape, strides, kept); len(size) {
	case 1:
		return [3]int64{size[0], 0, strides[0][0]}, true
	case 2:
		return [3]int64{size[1], strides[0][0], strides[0][1]}, true
	}
	return rows, false
}

// tableRows are what embedding takes row-major only: its result, a table whose
// rows are not dense, and indices that are no rows of rows.
func tableRows(r *run) (args, results []int) {
	if w := r.arg(0); len(w.Shape) == 2 && w.Strides[1] != 1 && w.Shape[1] != 1 {
		args = append(args, 0)
	}
	if _, ok := rowsOf(r.arg(1)); !ok {
		args = append(args, 1)
	}
	return args, []int{0}
}

// gradientRows are what embedding_dense_backward takes so.
func gradientRows(r *run) (args, results []int) {
	args = []int{0}
	if _, ok := rowsOf(r.arg(1)); !ok {
		args = append(args, 1)
	}
	return args, []int{0}
}

// openWindow reports a result in which the call's window can be shown.
func openWindow(r *run) bool {
	out, in := r.result(0), r.arg(0)
	if out.RowMajor() {
		return true
	}
	_, ok := placed(out, in.Shape, r.attrs().Window)
	return ok
}

// embedding picks rows of a table.
func embedding(r *run) error {
	w, idx, out := r.arg(0), r.arg(1), r.result(0)
	rows, ok := rowsOf(idx)
	if !ok || !out.RowMajor() || len(w.Shape) != 2 || w.Strides[1] != 1 && w.Shape[1] != 1 || !isTraining(w.DType) || out.DType != w.DType {
		return fmt.Errorf("rows of %v %v with strides %v by indices with strides %v", w.DType, w.Shape, w.Strides, idx.Strides)
	}
	a := embeddingArgs{tokens: idx.Elems(), cols: w.Shape[1], rows: w.Shape[0], rowStride: w.Strides[0], index: r.ptr(idx), in: r.ptr(w), out: r.ptr(out), dtype: dtype(w),
		indexDType: dtype(idx), indexCols: rows[0], indexRow: rows[1], indexCol: rows[2]}
	return launch(r.d, "index", "embedding_forward", grid{x: min(a.tokens, 1<<20), tx: 256}, &a)
}

// embeddingBackward is the gradient of the table: each of its rows gathers what
// was picked of it.
func embeddingBackward(r *run) error {
	g, err := r.inOrder(0)
	if err != nil {
		return err
	}
	idx, out := r.arg(1), r.result(0)
	rows, ok := rowsOf(idx)
	if !ok || !out.RowMajor() || len(out.Shape) != 2 || !isTraining(g.DType) || out.DType != g.DType || idx.Elems()*out.Shape[1] != g.Elems() {
		return fmt.Errorf("the gradient %v %v of a table %v by %v indices", g.DType, g.Shape, out.Shape, idx.Shape)
	}
	if err := r.zero(out); err != nil {
		return err
	}
	a := embeddingArgs{tokens: idx.Elems(), cols: out.Shape[1], rows: out.Shape[0], rowStride: out.Strides[0], index: r.ptr(idx), in: r.ptr(g), out: r.ptr(out),
		skip: int64(r.scalar("padding_idx")), dtype: dtype(g), indexDType: dtype(idx), indexCols: rows[0], indexRow: rows[1], indexCol: rows[2]}
	if c := chunksOf(r); c.words > 0 && r.c.Work.Bytes >= c.bytes() {
		a.chunks, a.chunk, a.words = uint64(r.d.at(r.c.Work.At)), c.tokens, int32(c.words)
		if err := cu.MemsetD8Async(r.d.at(r.c.Work.At), 0, c.bytes(), r.d.stream); err != nil {
			return explain("filling memory", err)
		}
		if err := launch(r.d, "index", "embedding_mark", along(a.tokens), &a); err != nil {
			return err
		}
	}
	return launch(r.d, "index", "embedding_backward", grid{x: a.tokens, tx: 256}, &a)
}

// chunks say for each row of a table which chunks of the tokens have it, a bit
// each, so that the row's sum reads those alone: without, it reads all tokens.
type chunks struct {
	rows, words int64 // of bits for a row; 0: there are too few tokens
	tokens      int64 // of a chunk
}

// The chunks of a table's gradient: of at least as many tokens as a block reads at
// once, and as few as make no row longer than the most words.
const (
	fewTokens   = 2048
	leastChunk  = 256
	mostWords   = 8
	bitsOfAWord = 32
)

func chunksOf(r *run) chunks {
	idx, out := r.arg(1), r.result(0)
	if idx == nil || out == nil || len(out.Shape) != 2 || idx.Elems() < fewTokens {
		return chunks{}
	}
	c := chunks{rows: out.Shape[0], tokens: leastChunk}
	for c.tokens*mostWords*bitsOfAWord < idx.Elems() {
		c.tokens *= 2
	}
	c.words = (idx.Elems() + c.tokens*bitsOfAWord - 1) / (c.tokens * bitsOfAWord)
	return c
}

func (c chunks) bytes() int64 { return 4 * c.rows * c.words }

// zero fills a tensor's elements with zeros.
func (r *run) zero(t *validate.Tensor) error {
	return r.set(t, 0)
}

// base fills in the tensor that is indexed.
func (a *indexArgs) setBase(r *run, t *validate.Tensor) {
	a.base, a.bytes, a.dtype = r.ptr(t), int32(t.DType.Bytes(1)), dtype(t)
}

// values fills in the tensor of values, whose elements are counted.
func (a *indexArgs) setValues(r *run, t *validate.Tensor) {
	a.n, a.dims, a.value = t.Elems(), int32(len(t.Shape)), r.ptr(t)
	copy(a.size[:], t.Shape)
	copy(a.valueStride[:], t.Strides)
}

// addIndex adds an index tensor that decides dim d of the base.
func (a *indexArgs) addIndex(r *run, idx, base *validate.Tensor, d int64, strides []int64, from int) error {
	if !isIndex(idx) {
		return fmt.Errorf("indices that are not whole numbers on the device")
	}
	k := a.indices
	a.indices++
	a.index[k], a.indexDType[k], a.step[k], a.limit[k] = r.ptr(idx), dtype(idx), base.Strides[d], base.Shape[d]
	copy(a.indexStride[k][from:], strides)
	return nil
}

// advanced describes an index call between its base and its values; the first
// index is operand first. lead is how many dims come before those of the indices,
// wide how many the indices have.
func (r *run) advanced(base, values *validate.Tensor, first int) (a indexArgs, lead, wide int, err error) {
	dims := r.attrs().Dims
	wide = -1
	for i := range dims {
		if t := r.arg(first + i); t != nil {
			wide = max(wide, len(t.Shape))
		}
	}
	together := true
	for i := 1; i < len(dims); i++ {
		together = together && dims[i] == dims[i-1]+1
	}
	if together {
		lead = int(dims[0])
	}
	a.setBase(r, base)
	a.setValues(r, values)
	shape := values.Shape[lead : lead+wide]
	for i, d := range dims {
		t := r.arg(first + i)
		if t == nil {
			return a, 0, 0, fmt.Errorf("index %d is not on the device", i)
		}
		s, err := broadcast(t, shape)
		if err != nil {
			return a, 0, 0, err
		}
		if err := a.addIndex(r, t, base, d, s, lead); err != nil {
			return a, 0, 0, err
		}
	}
	at := 0
	for d := range base.Shape {
		if slices.Contains(dims, int64(d)) {
			continue
		}
		if at == lead {
			at += wide
		}
		a.baseStride[at] = base.Strides[d]
		at++
	}
	return a, lead, wide, nil
}

// index picks elements by one or several tensors of indices.
func index(r *run) error {
	a, _, _, err := r.advanced(r.arg(0), r.result(0), 1)
	if err != nil {
		return err
	}
	return launch(r.d, "index", "index_move", sweep(a.n), &a)
}

// indexBackward adds the gradient to zeros where the indices say. The places of
// all dims up to the last index's must be looked at; what lies behind them moves
// as a whole.
func indexBackward(r *run) error {
	g, out := r.arg(0), r.result(0)
	if err := r.zero(out); err != nil {
		return err
	}
	a, _, _, err := r.advanced(out, g, 1)
	if err != nil {
		return err
	}
	p := r.indexPlaces(g.Shape, 1)
	if done, err := r.hash(p, placesArgs{at: a, add: 1}, kindOf(out)); done || err != nil {
		return err
	}
	s := indexAddArgs{at: a, rows: p.rows, width: p.width}
	return launch(r.d, "index", "index_add_rows", grid{x: s.rows, tx: 128}, &s)
}

// pick takes elements along one dim: by an index for every element (gather), or
// one for every place along the dim. Backward adds to zeros.
func (r *run) pick(every, back bool) error {
	base, values, idx := r.arg(0), r.result(0), r.arg(1)
	if back {
		base, values = r.result(0), r.arg(0)
		if err := r.zero(base); err != nil {
			return err
		}
	}
	d := r.attrs().Dims[0]
	var a indexArgs
	a.setBase(r, base)
	a.setValues(r, values)
	a.dim = int32(d)
	copy(a.baseStride[:], base.Strides)
	a.baseStride[d] = 0
	var err error
	if every {
		var s []int64
		if s, err = broadcast(idx, values.Shape); err == nil {
			err = a.addIndex(r, idx, base, d, s, 0)
		}
	} else {
		step := int64(0)
		if len(idx.Shape) > 0 {
			step = idx.Strides[0]
		}
		err = a.addIndex(r, idx, base, d, []int64{step}, int(d))
	}
	if err != nil {
		return err
	}
	if back {
		hashed := a
		hashed.firstDim(max(d, 0))
		if done, err := r.hash(r.pickPlaces(every), placesArgs{at: hashed, add: 1}, kindOf(base)); done || err != nil {
			return err
		}
		return launch(r.d, "index", "scatter_add_lines", along(a.n/max(a.size[d], 1)), &a)
	}
	return launch(r.d, "index", "index_move", sweep(a.n), &a)
}

// part shows a window of a tensor.
func part(t *validate.Tensor, shape, strides []int64, offset int64) *validate.Tensor {
	return &validate.Tensor{At: t.At + t.DType.Bytes(1)*offset, DType: t.DType, Shape: shape, Strides: strides}
}

// cat lays tensors beside each other along a dim.
func cat(r *run) error {
	out, d := r.result(0), r.attrs().Dims[0]
	at := int64(0)
	for i := range r.c.Args {
		t := r.arg(i)
		if t == nil {
			return fmt.Errorf("operand %d is not on the device", i)
		}
		if len(t.Shape) != len(out.Shape) || t.Elems() == 0 {
			continue // an empty list
		}
		if err := r.pointwise("copy", part(out, t.Shape, out.Strides, at*out.Strides[d]), [4]float64{}, r.c.Args[i]); err != nil {
			return err
		}
		at += t.Shape[d]
	}
	return nil
}

// stack lays operands beside each other along a new dim; absent ones are zeros.
func stack(r *run) error {
	out, d := r.result(0), int(r.attrs().Dims[0])
	shape, strides := slices.Delete(slices.Clone(out.Shape), d, d+1), slices.Delete(slices.Clone(out.Strides), d, d+1)
	for i, in := range r.c.Args {
		if in.Kind == validate.IsAbsent {
			in = number(0)
		}
		if err := r.pointwise("copy", part(out, shape, strides, int64(i)*out.Strides[d]), [4]float64{}, in); err != nil {
			return err
		}
	}
	return nil
}

// repeat lays copies beside each other: each of the result's dims counts copies
// and what is copied.
func repeat(r *run) error {
	in, out := r.arg(0), r.result(0)
	lead := len(out.Shape) - len(in.Shape)
	var shape, to, from []int64
	for d, n := range out.Shape {
		own, s := int64(1), int64(0)
		if d >= lead {
			own, s = in.Shape[d-lead], in.Strides[d-lead]
		}
		shape, to, from = append(shape, n/max(own, 1), own), append(to, out.Strides[d]*own, out.Strides[d]), append(from, 0, s)
	}
	strides := [][]int64{to, from}
	size := fold(shape, strides)
	if len(size) > maxDims {
		return fmt.Errorf("repeating %v to %v", in.Shape, out.Shape)
	}
	return r.copyTo(part(out, size, strides[0], 0), part(in, size, strides[1], 0))
}

// flip reads dims backwards.
func flip(r *run) error {
	in, out := r.arg(0), *r.result(0)
	out.Strides = slices.Clone(out.Strides)
	at := int64(0)
	for _, d := range r.attrs().Dims {
		at += (out.Shape[d] - 1) * out.Strides[d]
		out.Strides[d] = -out.Strides[d]
	}
	return r.copyTo(part(&out, out.Shape, out.Strides, at), in)
}

// roll moves elements along dims and brings those that fall off in at the other
// end: two copies for each dim.
func roll(r *run) error {
	var move func(in, out *validate.Tensor, dims []int64, shifts []float64) error
	move = func(in, out *validate.Tensor, dims []int64, shifts []float64) error {
		if len(dims) == 0 || in.Elems() == 0 {
			return r.copyTo(out, in)
		}
		d, n := dims[0], in.Shape[dims[0]]
		s := (int64(shifts[0])%n + n) % n
		for _, cut := range [2]struct{ from, to, n int64 }{{0, s, n - s}, {n - s, 0, s}} {
			if cut.n == 0 {
				continue
			}
			shape := slices.Clone(in.Shape)
			shape[d] = cut.n
			if err := move(part(in, shape, in.Strides, cut.from*in.Strides[d]), part(out, shape, out.Strides, cut.to*out.Strides[d]), dims[1:], shifts[1:]); err != nil {
				return err
			}
		}
		return nil
	}
	return move(r.arg(0), r.result(0), r.attrs().Dims, r.attrs().Scalars)
}

// window fills the result with a number and adds the operand in a window of it.
// A window in which elements overlap is added one of its widest dims after the
// other, where that tells them apart.
func (r *run) window(fill float64) error {
	in, out, w := r.arg(0), r.result(0), r.attrs().Window
	if d, from, ok := slab(out.Shape, in.Shape, w); ok {
		return r.beside(in, out, d, from, fill)
	}
	if err := r.set(out, fill); err != nil {
		return err
	}
	to := part(out, in.Shape, w.Strides, w.Offset)
	if !out.RowMajor() {
		var ok bool
		if to, ok = placed(out, in.Shape, w); !ok {
			return fmt.Errorf("a window of a result with strides %v", out.Strides)
		}
	}
	if !overlaps(in.Shape, w.Strides) {
		return r.copyTo(to, in)
	}
	return r.addOverlapping(to, in)
}

// beside copies the operand to where it lies along dim d of the result, and
// fills what is before and behind it.
func (r *run) beside(in, out *validate.Tensor, d int, from int64, fill float64) error {
	n := in.Elems() * out.Shape[d] / out.Elems() // of in along d
	for _, cut := range [3]struct {
		from, n int64
		in      validate.Operand
	}{{0, from, number(fill)}, {from, n, onDevice(in)}, {from + n, out.Shape[d] - from - n, number(fill)}} {
		shape := slices.Clone(out.Shape)
		if shape[d] = cut.n; cut.n == 0 {
			continue
		}
		to := part(out, shape, out.Strides, cut.from*out.Strides[d])
		if cut.in.Kind == validate.OnDevice && len(in.Shape) < len(shape) { // a dim of one element
			to.Shape, to.Strides = slices.Delete(shape, d, d+1), slices.Delete(slices.Clone(out.Strides), d, d+1)
		}
		if err := r.pointwise("copy", to, [4]float64{}, cut.in); err != nil {
			return err
		}
	}
	return nil
}

// placed shows a window whose strides count elements of the result row by row as
// it lies in a result with other strides: each dim of the window runs along one
// of the result.
func placed(out *validate.Tensor, shape []int64, w *program.Window) (*validate.Tensor, bool) {
	rows := validate.RowMajor(out.Shape)
	strides := make([]int64, len(shape))
	for i, s := range w.Strides {
		d := slices.IndexFunc(rows, func(r int64) bool { return s >= r && s%r == 0 })
		if d < 0 || s/rows[d]*(shape[i]-1) >= out.Shape[d] {
			return nil, false
		}
		strides[i] = s / rows[d] * out.Strides[d]
	}
	at, rest := int64(0), w.Offset
	for d, r := range rows {
		at += rest / r * out.Strides[d]
		rest %= r
	}
	return part(out, shape, strides, at), true
}

// overlaps reports whether some element has two places in a shape.
func overlaps(shape, strides []int64) bool { return len(clash(shape, strides)) > 0 }

// clash are the dims, by their strides, up to the first whose step is within what the
// narrower ones cover; none where no element has two places.
func clash(shape, strides []int64) []int {
	order := make([]int, 0, len(shape))
	for d, n := range shape {
		if n != 1 {
			order = append(order, d)
		}
	}
	slices.SortFunc(order, func(x, y int) int { return int(sign(strides[x] - strides[y])) })
	end := int64(0) // of what the narrower dims cover
	for i, d := range order {
		if strides[d] <= end {
			return order[:i+1]
		}
		end += (shape[d] - 1) * strides[d]
	}
	return nil
}

// apart is the dim along which an overlapping window is taken apart: the shortest of
// those that clash.
func apart(shape, strides []int64) int {
	return slices.MinFunc(clash(shape, strides), func(x, y int) int { return int(sign(shape[x] - shape[y])) })
}

// addOverlapping adds in to a window whose dims overlap: slices along a dim one after
// the other.
func (r *run) addOverlapping(to, in *validate.Tensor) error {
	if !overlaps(to.Shape, to.Strides) {
		return r.pointwise("add", to, [4]float64{1}, onDevice(to), onDevice(in))
	}
	d := apart(to.Shape, to.Strides)
	for i := range to.Shape[d] {
		shape := slices.Clone(to.Shape)
		shape[d] = 1
		if err := r.addOverlapping(part(to, shape, to.Strides, i*to.Strides[d]), part(in, shape, in.Strides, i*in.Strides[d])); err != nil {
			return err
		}
	}
	return nil
}
