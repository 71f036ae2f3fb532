package aten

import (
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// sortLimit is the number of indices up to which embedding's backward needs
// no sorting (aten/src/ATen/native/cuda/Embedding.cu).
const sortLimit = 3072

// runEmbedding looks rows up; it saves the indices, and its backward makes a
// dense gradient of the whole table.
func runEmbedding(e *Eager, c *Call) []*Tensor {
	w, idx := c.tensor(0, "weight"), c.tensor(1, "indices")
	if w == nil || idx == nil || w.dim() != 2 {
		return nil
	}
	padding := float64(c.int(2, "padding_idx", -1))
	k := e.begin("embedding", w, idx).scalars(padding)
	if c.bool(3, "scale_grad_by_freq", false) {
		k.inexact("a gradient by frequency")
	}
	copied := program.None
	if _, ok := viewStrides(idx, []int64{idx.Numel()}); !ok {
		// The flattened copy stands between the result's memory and its end.
		copied = k.temp(idx.Bytes(), program.Temporaries)
	}
	o := k.alloc(append(slices.Clone(idx.Shape), w.Shape[1]), nil, w.DType)
	k.free(copied)
	k.end()
	e.record("EmbeddingBackward0", []*Tensor{o}, []*Tensor{w}, []*Tensor{idx}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		k := e.begin("embedding_dense_backward", g[0], s[0]).scalars(padding)
		temps := []program.StorageID{k.whole(g[0]), k.whole(s[0])}
		sorts := idx.Numel() > sortLimit
		if sorts {
			temps = append(temps, k.sortIndices(idx.Numel())...)
		}
		d := k.alloc(w.Shape, nil, w.DType)
		if sorts { // where each row's indices begin, twice, and blocks of them
			list := 8 * idx.Numel()
			starts := k.temp(list, program.Temporaries)
			k.scratch(list, program.Temporaries)
			temps = append(temps, starts)
		}
		slices.Reverse(temps)
		k.free(temps...)
		k.end()
		return []*Tensor{d}
	})
	return []*Tensor{o}
}

// runEmbeddingBag runs embedding_bag (aten/src/ATen/native/cuda/EmbeddingBag.cu).
// Indices of two dims come flat, a row of them each bag.
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
	bagOf := k.alloc([]int64{idx.Numel()}, nil, graph.Int64)
	sizes := k.alloc(offsets.Shape, nil, graph.Int64)
	largest := k.alloc([]int64{0}, nil, graph.Int64)
	if mode == modeMax {
		largest = k.alloc([]int64{bags, w.Shape[1]}, nil, graph.Int64)
	}
	o := k.alloc([]int64{bags, w.Shape[1]}, nil, w.DType)
	k.end()
	inputs, saved := []*Tensor{w}, []*Tensor{idx, offsets, bagOf, sizes, largest}
	if factors != nil {
		inputs, saved = append(inputs, factors), append(saved, factors)
		if factors.RequiresGrad() {
			saved = append(saved, w)
		}
	}
	e.record("EmbeddingBagBackward0", []*Tensor{o}, inputs, saved, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		k := e.begin("_embedding_bag_dense_backward", g[0], s[0], s[2], s[3])
		k.inexact("a gradient of bags")
		var temps []program.StorageID
		if mode != modeMax {
			temps = k.sortIndices(idx.Numel())
		}
		d := k.alloc(w.Shape, nil, w.DType)
		k.free(temps...)
		grads := []*Tensor{d}
		if factors != nil {
			grads = append(grads, k.alloc(factors.Shape, nil, factors.DType))
		}
		k.end()
		return grads
	})
	return []*Tensor{o, bagOf, sizes, largest}
}

// whole allocates the copy of a tensor that is not in one piece, if it is not.
func (k *kernel) whole(t *Tensor) program.StorageID {
	if t.contiguous() {
		return program.None
	}
	return k.temp(t.Bytes(), program.Temporaries)
}

// sortIndices adds the sort of n indices, with their places, by all bits, and
// returns the two results. The sort's own scratch is as measured for 4,096 and
// 16,384 indices: both lists once more, histograms and a quarter byte an index.
func (k *kernel) sortIndices(n int64) []program.StorageID {
	sorted, order := k.temp(8*n, program.Temporaries), k.temp(8*n, program.Temporaries)
	places := k.temp(8*n, program.Temporaries)
	k.free(k.temp(16*n+n/4+16895, program.Temporaries), places)
	return []program.StorageID{sorted, order}
}

// gathered is an operator that picks elements of its first operand by
// indices: backward adds the gradient into zeros of the operand's shape. self
// says whether the operand is saved too.
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
		k := e.begin(c.Op, append([]*Tensor{x}, idx...)...).does(picks[c.Op]).dims(dims...)
		o := k.alloc(shape, nil, x.DType)
		k.end()
		in := x.Shape
		saved := idx
		if self {
			saved = append([]*Tensor{x}, idx...)
		}
		e.record(node, []*Tensor{o}, []*Tensor{x}, saved, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
			k := e.begin(back, append(slices.Clone(g), s...)...).does(picks[c.Op] + "_backward").dims(dims...)
			k.alloc(in, nil, g[0].DType)
			if back == "index_put" {
				k.sortedPut(g[0], s[len(s)-len(idx):])
			}
			return []*Tensor{k.end()}
		})
		return []*Tensor{o}
	}
}

// sortTile is the number of keys that a radix sort does at once, in the thread
// block's own memory; a larger one takes its histograms from the allocator
// (cub::DeviceRadixSort, as the measured steps show it).
const (
	sortTile    = 2048
	sortScratch = 3583 // bytes
)

// sortedPut adds the scratch of index_put_ with accumulate: linear indices, the
// values in one piece, and the sort of the former (index_put_with_sort_kernel in
// aten/src/ATen/native/cuda/Indexing.cu).
func (k *kernel) sortedPut(values *Tensor, idx []*Tensor) {
	shape, ok := broadcast(idx...)
	if !ok || len(idx) == 0 {
		return
	}
	n := numel(shape)
	if n == 0 {
		return
	}
	list := func() program.StorageID { return k.temp(8*n, program.Temporaries) }
	var linear program.StorageID
	for i := range idx {
		wrapped := list()
		times := list()
		k.free(wrapped)
		if i == 0 {
			linear = times
		} else {
			k.free(times)
		}
	}
	whole := k.whole(values)
	from, sorted := list(), list()
	order := list()
	scratch := int64(1)
	if n > sortTile {
		scratch = sortScratch
	}
	k.free(k.temp(scratch, program.Temporaries), order, sorted, from, whole, linear)
}

// picks names the kernels of operators that pick elements.
var picks = map[string]string{"index": "index", "_unsafe_index": "index", "index_select": "index_select", "gather": "gather", "take_along_dim": "gather"}

// indexed are the dims that a call picks along.
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
	o, idx := k.alloc(shape, nil, x.DType), k.alloc(shape, nil, graph.Int64)
	k.end()
	in := x.Shape
	e.record("TopkBackward0", []*Tensor{o}, []*Tensor{x}, []*Tensor{idx}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		return []*Tensor{e.selected(g[0], s[0], in, []int{dim})}
	})
	return []*Tensor{o, idx}
}

// sorting is the dim that a topk or a sort goes along, and 1 where the largest
// elements come first.
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
