package aten

import (
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// sortLimit is the number of indices up to which embedding's backward needs
// no sorting (aten/src/ATen/native/cuda/Embedding.cu).
const sortLimit = 3072

// runEmbedding looks up rows; it saves the indices, and its backward makes a
// dense gradient of the whole table.
func runEmbedding(e *Eager, c *Call) []*Tensor {
	w, idx := c.tensor(0, "weight"), c.tensor(1, "indices")
	if w == nil || idx == nil || w.dim() != 2 {
		return nil
	}
	padding := float64(c.int(2, "padding_idx", -1))
	k := e.begin("embedding", w, idx).scalars(padding)
	byFrequency := c.bool(3, "scale_grad_by_freq", false)
	k.inexactIf(byFrequency, "a gradient by frequency")
	copied := program.None
	if _, ok := viewStrides(idx, []int64{idx.Numel()}); !ok {
		// The flattened copy is allocated after the result and freed at the
		// call's end.
		copied = k.temp(idx.Bytes(), program.Temporaries)
	}
	o := k.alloc(append(slices.Clone(idx.Shape), w.Shape[1]), nil, w.DType)
	k.free(copied)
	k.end()
	e.record("EmbeddingBackward0", []*Tensor{o}, []*Tensor{w}, []*Tensor{idx}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		k := e.begin("embedding_dense_backward", g[0], s[0]).scalars(padding)
		gradient, indices := k.contiguousCopy(g[0]), k.contiguousCopy(s[0])
		var d *Tensor
		if idx.Numel() > sortLimit || byFrequency {
			d = k.sortedEmbedding(w, idx.DType, idx.Numel(), byFrequency)
		} else {
			d = k.alloc(w.Shape, nil, w.DType)
		}
		k.free(indices, gradient)
		k.end()
		return []*Tensor{d}
	})
	return []*Tensor{o}
}

// sortedEmbedding makes the gradient of a table of which n rows were looked up, by
// sorting the indices: rows that occur often are summed in parts of rowsAtOnce
// (aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu).
func (k *kernel) sortedEmbedding(w *Tensor, index graph.DType, n int64, byFrequency bool) *Tensor {
	const rowsAtOnce = 10
	temp := func(count int64) program.StorageID { return k.temp(index.Bytes(count), program.Temporaries) }
	sorted, order := temp(n), temp(n)
	places := temp(n)
	k.scratch(cubSort(n, index.Bytes(1), index.Bytes(1), 8*index.Bytes(1)), program.Temporaries)
	k.free(places)
	counts := program.None
	if byFrequency {
		counts = temp(n)
		k.scratch(cubUnique(n), program.Temporaries)
		k.scratch(cubUnique(n), program.Temporaries)
	}
	d := k.alloc(w.Shape, nil, w.DType)
	starts := temp(n)
	segments := k.temp(8, program.Temporaries)
	keys := temp(n)
	k.scratch(cubUnique(n), program.Temporaries)
	k.free(keys)
	most := min(n, w.Shape[0])
	parts := n/rowsAtOnce + most
	per, offset := temp(most), temp(most)
	k.scratch(cubScan(most, index.Bytes(1)), program.Temporaries)
	count := k.temp(8, program.Temporaries)
	partOffset := temp(parts)
	sums := k.temp(statistics(w.DType).Bytes(parts*w.Shape[1]), program.Temporaries)
	k.free(sums, partOffset, count, offset, per, segments, starts, counts, order, sorted)
	return d
}

// runEmbeddingBag runs embedding_bag (aten/src/ATen/native/cuda/EmbeddingBag.cu).
// Two-dimensional indices are flattened, with one row for each bag.
func runEmbeddingBag(e *Eager, c *Call) []*Tensor {
	const modeMax = 2
	w, idx, offsets := c.tensor(0, "weight"), c.tensor(1, "indices"), c.tensor(2, "offsets")
	mode, factors := c.int(4, "mode", 0), c.tensor(6, "per_sample_weights")
	if w == nil || idx == nil || offsets == nil || w.dim() != 2 {
		return nil
	}
	bags := offsets.Numel()
	if c.bool(7, "include_last_offset", false) {
		bags--
	}
	k := e.begin("embedding_bag", w, idx, offsets)
	k.inexact("sums of rows in bags")
	sizes := k.alloc(offsets.Shape, nil, graph.Int64)
	bagOf := k.alloc([]int64{idx.Numel()}, nil, graph.Int64)
	o := k.alloc([]int64{bags, w.Shape[1]}, nil, w.DType)
	largest := k.alloc([]int64{0}, nil, graph.Int64)
	if mode == modeMax {
		largest = k.alloc([]int64{bags, w.Shape[1]}, nil, graph.Int64)
	}
	k.end()
	inputs, saved := []*Tensor{w}, []*Tensor{idx, offsets, bagOf, sizes, largest}
	if factors != nil {
		inputs, saved = append(inputs, factors), append(saved, factors)
		if factors.RequiresGrad() {
			saved = append(saved, w)
		}
	}
	byFrequency := c.bool(3, "scale_grad_by_freq", false)
	e.record("EmbeddingBagBackward0", []*Tensor{o}, inputs, saved, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		grads := make([]*Tensor, len(need))
		k := e.begin("_embedding_bag_dense_backward", g[0], s[0], s[2], s[3])
		k.inexact("a gradient of bags")
		whole := k.contiguousCopy(g[0])
		if len(need) > 1 && need[1] {
			grads[1] = k.alloc(factors.Shape, nil, factors.DType)
		}
		switch {
		case !need[0]:
		case mode == modeMax:
			grads[0] = k.alloc(w.Shape, nil, w.DType)
		default:
			grads[0] = k.sortedEmbedding(w, idx.DType, idx.Numel(), byFrequency)
		}
		k.free(whole)
		k.end()
		return grads
	})
	return []*Tensor{o, bagOf, sizes, largest}
}

// contiguousCopy allocates a contiguous copy of a tensor that is not contiguous.
func (k *kernel) contiguousCopy(t *Tensor) program.StorageID {
	if t.contiguous() {
		return program.None
	}
	return k.temp(t.Bytes(), program.Temporaries)
}

// gathered runs an operator that picks elements of its first operand by
// indices: backward adds the gradient into zeros of the operand's shape. self
// is whether the operand is saved, too.
func gathered(node, back string, self bool) func(e *Eager, c *Call) []*Tensor {
	return func(e *Eager, c *Call) []*Tensor {
		x := c.need(0, "self")
		shape, _, ok := c.shape(0)
		if x == nil || !ok {
			return nil
		}
		var idx []*Tensor
		eachTensor(c.Args[1:], func(t *Tensor) { idx = append(idx, t) })
		dims := c.indexed(x)
		var remainder *Tensor
		if c.Op == "take_along_dim" { // indices may count from the end
			remainder = e.unary("remainder", graph.Undefined, idx[0], number(graph.Undefined, float64(x.Shape[dims[0]])))
			idx = []*Tensor{remainder}
		}
		k := e.begin(c.Op, append([]*Tensor{x}, idx...)...).does(pickKernels[c.Op]).dims(dims...)
		var temps []program.StorageID
		found := maskedRows(x, shape, idx)
		if back == "index_put" {
			temps = k.indices(idx, found)
		}
		o := k.alloc(shape, nil, x.DType)
		k.free(temps...)
		k.end()
		e.hold(remainder)
		in := x.Shape
		saved := idx
		if self {
			saved = append([]*Tensor{x}, idx...)
		}
		e.record(node, []*Tensor{o}, []*Tensor{x}, saved, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
			k := e.begin(back, append(slices.Clone(g), s...)...).does(pickKernels[c.Op] + "_backward").dims(dims...)
			if self {
				k.dropOperand(1)
			}
			k.alloc(in, nil, g[0].DType)
			if back == "index_put" {
				k.sortedPut(g[0], s[len(s)-len(idx):], in, dims, found)
			}
			return []*Tensor{k.end()}
		})
		return []*Tensor{o}
	}
}

// maskedRows returns the number of elements that the masks among indices select,
// derived from the shape of the result.
func maskedRows(x *Tensor, shape []int64, idx []*Tensor) int64 {
	rest, covered := numel(x.Shape), int64(1)
	at := 0
	for _, t := range idx {
		if t.DType != graph.Bool && t.DType != graph.Uint8 {
			return 0
		}
		covered *= numel(t.Shape)
		at++
	}
	if at == 0 || covered == 0 || rest == 0 {
		return 0
	}
	return numel(shape) / max(rest/covered, 1)
}

// sortedPut adds the scratch of index_put_ with accumulate into a tensor of shape in:
// linear indices, a contiguous copy of the values, and the sort of the indices
// (index_put_with_sort_kernel in aten/src/ATen/native/cuda/Indexing.cu).
func (k *kernel) sortedPut(values *Tensor, idx []*Tensor, in []int64, dims []int, found int64) {
	if len(idx) == 0 {
		return
	}
	var masks []program.StorageID
	n := found
	if found > 0 {
		for _, t := range idx {
			k.nonzero(t, func() { masks = append(masks, k.temp(8*found*int64(t.dim()), program.Temporaries)) })
		}
	} else {
		shape, ok := broadcast(idx...)
		if !ok {
			return
		}
		n = numel(shape)
	}
	if n == 0 {
		return
	}
	list := func() program.StorageID { return k.temp(8*n, program.Temporaries) }
	var linear program.StorageID
	count := 0
	for _, t := range idx {
		each := 1
		if found > 0 {
			each = t.dim()
		}
		for range each {
			wrapped := list()
			times := list()
			k.free(wrapped)
			if count == 0 {
				linear = times
			} else {
				k.free(times)
			}
			count++
		}
	}
	k.free(masks...)
	whole := k.contiguousCopy(values)
	from, sorted := list(), list()
	order := list()
	k.scratch(cubSort(n, 8, 8, indexBits(indexedElements(in, dims))), program.Temporaries)
	k.free(order, sorted, from, whole, linear)
}

// indexedElements returns the number of positions that indices along dims can name:
// the product of the dims up to the last of them, or of these dims alone where
// others lie between.
func indexedElements(in []int64, dims []int) int64 {
	n := int64(1)
	if len(dims) == 0 {
		return n
	}
	last, next := dims[len(dims)-1], dims[len(dims)-1]-dims[0]+1 == len(dims)
	for d, size := range in {
		if d <= last && next || slices.Contains(dims, d) {
			n *= size
		}
	}
	return n
}

// pickKernels maps operators that pick elements to their kernels.
var pickKernels = map[string]string{"index": "index", "_unsafe_index": "index", "index_select": "index_select", "gather": "gather", "take_along_dim": "gather"}

// indexed returns the dims that a call indexes.
func (c *Call) indexed(x *Tensor) []int {
	if a := c.arg(1, "indices"); a != nil && a.Kind == graph.ArgList {
		var dims []int
		for i := range a.List {
			if a.List[i].T != nil {
				dims = append(dims, i)
			}
		}
		return dims
	}
	if c.Op == "take_along_dim" {
		return []int{wrap(c.int(2, "dim", 0), x.dim())}
	}
	return []int{wrap(c.int(1, "dim", 0), x.dim())}
}

// runTopK makes values and indices.
func runTopK(e *Eager, c *Call) []*Tensor {
	x := c.need(0, "self")
	shape, _, ok := c.shape(0)
	if !ok {
		return nil
	}
	dim, largest := c.sorting(x)
	k := e.begin(c.Op, x).does("topk").dims(dim).scalars(largest)
	var o, idx *Tensor
	if c.Op == "sort" {
		o, idx = k.alloc(shape, x.denseStrides(), x.DType), k.alloc(shape, x.denseStrides(), graph.Int64)
		k.sortScratch(x, o, dim)
	} else {
		o, idx = k.alloc(shape, nil, x.DType), k.alloc(shape, nil, graph.Int64)
		k.topkScratch(x, dim)
	}
	k.end()
	in, node := x.Shape, map[string]string{"topk": "TopkBackward0", "sort": "SortBackward0"}[c.Op]
	e.record(node, []*Tensor{o}, []*Tensor{x}, []*Tensor{idx}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		return []*Tensor{selected(e, g[0], s[0], in, []int{dim})}
	})
	return []*Tensor{o, idx}
}

// sortScratch allocates what a sort of x along a dim needs: rows of up to smallSort
// elements are sorted in place, others by CUB, one at a time or, where there are few
// and none is long, all at once with the row as the last key
// (aten/src/ATen/native/cuda/Sort.cpp, SortStable.cu).
func (k *kernel) sortScratch(x, o *Tensor, dim int) {
	const smallSort, alone = 4096, 1000000
	if x.dim() == 0 || x.Numel() == 0 {
		return
	}
	n, key := x.Shape[dim], x.DType.Bytes(1)
	rows := x.Numel() / n
	if n <= smallSort {
		k.scratch(8*n, program.Temporaries) // indices along the dim
		return
	}
	var temps []program.StorageID
	temp := func(bytes int64) { temps = append(temps, k.temp(bytes, program.Temporaries)) }
	if o.Strides[dim] != 1 || !x.dense() { // contiguous rows, and their sorted copy
		temp(x.Bytes())
		if o.Strides[dim] != 1 {
			temp(o.Bytes())
			temp(8 * x.Numel())
		}
	}
	if rows == 1 || n >= alone {
		temp(8 * n)
		for range rows {
			k.scratch(cubSort(n, key, 8, 8*key), program.Temporaries)
		}
	} else {
		total := x.Numel()
		temp(8 * total) // index and row of each element, twice
		temp(8 * total)
		sorted := k.temp(x.Bytes(), program.Temporaries)
		k.scratch(cubSort(total, key, 8, 8*key), program.Temporaries)
		k.free(sorted)
		k.scratch(cubSort(total, 4, 8, indexBits(rows)), program.Temporaries)
	}
	slices.Reverse(temps)
	k.free(temps...)
}

// topkScratch allocates what topk of x needs: a contiguous copy of its rows and,
// where those are long and few, the counts of digits of each block that reads a part
// of a row (aten/src/ATen/native/cuda/TensorTopK.cu, mbtopk).
func (k *kernel) topkScratch(x *Tensor, dim int) {
	if x.dim() == 0 || x.Numel() == 0 {
		return
	}
	whole := k.contiguousCopy(x)
	n := x.Shape[dim]
	rows := x.Numel() / n
	if manyBlocks(rows, n) && k.e.SMs > 0 {
		const threads, digits, perSM = 256, 256, 6
		items := min(max(ceilDiv(x.Numel(), int64(k.e.SMs)*perSM*threads), 4), 64)
		blocks := ceilDiv(n, items*threads)
		var temps []program.StorageID
		for _, bytes := range []int64{x.DType.Bytes(rows), 8 * rows, 8 * rows, 2 * digits * rows * blocks, 4 * digits * rows, 4 * rows * blocks, 4 * rows * blocks} {
			temps = append(temps, k.temp(bytes, program.Temporaries))
		}
		for range 2 {
			k.scratch(cubScan(rows*blocks, 8), program.Temporaries)
		}
		slices.Reverse(temps)
		k.free(temps...)
	}
	k.free(whole)
}

// manyBlocks is should_use_mbtopk: whether rows are long for their number.
func manyBlocks(rows, n int64) bool {
	for _, most := range [][2]int64{{20, 20000}, {40, 10000}, {80, 8000}, {200, 5000}, {800, 3000}, {4000, 800}} {
		if rows <= most[0] {
			return n >= most[1]
		}
	}
	return n > 400
}

// sorting returns the dim of a topk or sort, and 1 if the largest elements come
// first, else 0.
func (c *Call) sorting(x *Tensor) (dim int, largest float64) {
	at, order, first := 2, "largest", true // topk(self, k, dim, largest)
	if c.Op == "sort" {
		at, order, first = 1, "descending", false // sort(self, dim, descending)
		if c.Over == "stable" {                   // sort(self, *, stable, dim, descending)
			at = -1
		}
	}
	next := at + 1
	if at < 0 {
		next = -1
	}
	if c.bool(next, order, first) {
		largest = 1
	}
	return wrap(c.int(at, "dim", -1), max(x.dim(), 1)), largest
}
