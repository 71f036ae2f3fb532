//go:build cuda

package cuda

import (
	"fmt"
	"slices"

	"gorgonia.org/cu"

	"github.com/memplan/memplan/graph"
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

// maxIndices is the largest number of index tensors of a call.
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

// indexKernels are the kernels of this file.
func indexKernels(register func(k kernel, names ...string)) {
	register(kernel{rows: tableRows, run: embedding}, "embedding")
	register(kernel{rows: gradientRows, spare: true, run: embeddingBackward, work: func(r *run) int64 { return chunksOf(r).bytes() }}, "embedding_dense_backward")
	register(kernel{run: index, accepts: few}, "index")
	register(kernel{run: indexBackward, accepts: few, work: func(r *run) int64 { return r.indexPlaces(r.arg(0).Shape, 1).bytes() }}, "index_backward")
	register(kernel{run: func(r *run) error { return pick(r, false, false) }}, "index_select")
	register(kernel{run: func(r *run) error { return pick(r, true, false) }}, "gather")
	register(kernel{run: func(r *run) error { return pick(r, false, true) }, work: func(r *run) int64 { return r.pickPlaces(false).bytes() }}, "index_select_backward")
	register(kernel{run: func(r *run) error { return pick(r, true, true) }, work: func(r *run) int64 { return r.pickPlaces(true).bytes() }}, "gather_backward")
}

// isIndex reports whether t is a tensor of indices.
func isIndex(t *validate.ArenaView) bool {
	return t != nil && (t.DType == graph.Int64 || t.DType == graph.Int32)
}

// rowsOf describes indices as rows: the length of a row, and the strides of
// rows and of their elements.
func rowsOf(idx *validate.ArenaView) (rows [3]int64, ok bool) {
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

// tableRows returns the tensors that embedding needs row-major: its result, a
// table whose rows are not dense, and indices that are not rows of rows.
func tableRows(r *run) (args, results []int) {
	if w := r.arg(0); len(w.Shape) == 2 && w.Strides[1] != 1 && w.Shape[1] != 1 {
		args = append(args, 0)
	}
	if _, ok := rowsOf(r.arg(1)); !ok {
		args = append(args, 1)
	}
	return args, []int{0}
}

// gradientRows returns those of embedding_dense_backward.
func gradientRows(r *run) (args, results []int) {
	args = []int{0}
	if _, ok := rowsOf(r.arg(1)); !ok {
		args = append(args, 1)
	}
	return args, []int{0}
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

// embeddingBackward is the gradient of the table: each row sums the gradients
// of its uses.
func embeddingBackward(r *run) error {
	g, err := inOrder(r, 0)
	if err != nil {
		return err
	}
	idx, out := r.arg(1), r.result(0)
	rows, ok := rowsOf(idx)
	if !ok || !out.RowMajor() || len(out.Shape) != 2 || !isTraining(g.DType) || out.DType != g.DType || idx.Elems()*out.Shape[1] != g.Elems() {
		return fmt.Errorf("the gradient %v %v of a table %v by %v indices", g.DType, g.Shape, out.Shape, idx.Shape)
	}
	if err := zero(r, out); err != nil {
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

// A chunks holds, for each row of a table, a bit for every chunk of tokens that
// uses it, so that the row's sum reads only those: without it, the sum reads
// all tokens.
type chunks struct {
	rows, words int64 // of bits for a row; 0: there are too few tokens
	tokens      int64 // of a chunk
}

// The chunks of a table's gradient: of at least as many tokens as a block reads at
// once, and few enough that no row exceeds the most words.
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
func zero(r *run, t *validate.ArenaView) error {
	return set(r, t, 0)
}

// setBase sets the tensor that is indexed.
func (a *indexArgs) setBase(r *run, t *validate.ArenaView) {
	a.base, a.bytes, a.dtype = r.ptr(t), int32(t.DType.Bytes(1)), dtype(t)
}

// setValues sets the tensor of values.
func (a *indexArgs) setValues(r *run, t *validate.ArenaView) {
	a.n, a.dims, a.value = t.Elems(), int32(len(t.Shape)), r.ptr(t)
	copy(a.size[:], t.Shape)
	copy(a.valueStride[:], t.Strides)
}

// addIndex adds an index tensor for dim d of the base.
func (a *indexArgs) addIndex(r *run, idx, base *validate.ArenaView, d int64, strides []int64, from int) error {
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
// index is operand first. lead is the number of dims before those of the indices,
// wide the number of dims of the indices.
func advanced(r *run, base, values *validate.ArenaView, first int) (a indexArgs, lead, wide int, err error) {
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
	a, _, _, err := advanced(r, r.arg(0), r.result(0), 1)
	if err != nil {
		return err
	}
	return launch(r.d, "index", "index_move", sweep(a.n), &a)
}

// indexBackward adds the gradient to zeros at the indices. The positions of all
// dims up to the last index's are hashed or compared; dims after it move as a
// whole.
func indexBackward(r *run) error {
	g, out := r.arg(0), r.result(0)
	if err := zero(r, out); err != nil {
		return err
	}
	a, _, _, err := advanced(r, out, g, 1)
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
// one for every position along the dim. Backward adds to zeros.
func pick(r *run, every, back bool) error {
	base, values, idx := r.arg(0), r.result(0), r.arg(1)
	if back {
		base, values = r.result(0), r.arg(0)
		if err := zero(r, base); err != nil {
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

// part returns a view of a part of a tensor.
func part(t *validate.ArenaView, shape, strides []int64, offset int64) *validate.ArenaView {
	return &validate.ArenaView{At: t.At + t.DType.Bytes(1)*offset, DType: t.DType, Shape: shape, Strides: strides}
}
