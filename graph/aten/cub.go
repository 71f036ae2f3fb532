package aten

import (
	"math/bits"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// Scratch of CUB's device-wide algorithms on Hopper: every part is rounded to
// 256 bytes, and 255 are added to align the first (cub/util_device.cuh,
// AliasTemporaries). Tiles are those of CUB's tunings as measured sizes show
// them.

func cubParts(parts ...int64) int64 {
	total := int64(255)
	for _, n := range parts {
		total += (n + 255) / 256 * 256
	}
	return total
}

// cubSortTile is the number of pairs that one thread block of a onesweep radix
// sort handles, by the bytes of a key; values are int64.
func cubSortTile(key int64) int64 {
	switch {
	case key <= 2:
		return 5632
	case key <= 4:
		return 4992
	}
	return 4608
}

// cubSort is the scratch of a radix sort of n pairs by the given bits of their keys
// (cub/device/dispatch/dispatch_radix_sort.cuh): a single block sorts few pairs in
// its own memory; otherwise there are histograms of each pass, the state of each
// tile and, for more than one pass, both lists once more.
func cubSort(n, key, value, keyBits int64) int64 {
	if n <= 256*max(19*4/max(key, value, 4), 1) {
		return 1
	}
	passes := max((keyBits+7)/8, 1)
	keys, values := n*key, n*value
	if passes == 1 {
		keys, values = 0, 0
	}
	return cubParts(passes*256*8, ceilDiv(n, cubSortTile(max(key, 1)))*256*4, keys, values, passes*8)
}

// cubTiles is the state of the tiles of a scan over n elements of the given bytes: a
// status for each, and a warp's padding.
func cubTiles(n, tile, bytes int64) int64 { return (max(ceilDiv(n, tile), 1) + 32) * 2 * bytes }

// cubSelect is the scratch of a stream compaction of n flags.
func cubSelect(n int64) int64 { return cubParts(cubTiles(n, 8448, 8)) }

// cubScan is the scratch of a prefix sum.
func cubScan(n, bytes int64) int64 { return cubParts(cubTiles(n, 896, bytes), 1) }

// cubUnique is the scratch of selecting the first of equal keys.
func cubUnique(n int64) int64 { return cubParts(cubTiles(n, 3840, 8), 1) }

// cubCount is the scratch of counting n flags: a number for each resident
// block, unless one block counts all.
func cubCount(e *Eager, n int64) int64 {
	if n <= 4096 {
		return 1
	}
	return cubParts(int64(e.SMs) * int64(e.ThreadsPerSM) / 256 * 5 * 4)
}

// nonzero adds the scratch of finding the elements of mask that are set; result
// makes its allocations between counting and finding them
// (aten/src/ATen/native/cuda/Nonzero.cuh, nonzero_cuda_out_impl).
func (k *kernel) nonzero(mask *Tensor, result func()) {
	n := mask.Numel()
	whole := k.contiguousCopy(mask)
	count := k.temp(4, program.Temporaries)
	k.scratch(cubCount(k.e, n), program.Temporaries)
	if result != nil {
		result()
	}
	k.scratch(cubSelect(n), program.Temporaries)
	k.free(count, whole)
}

// indexBits is the number of bits of an index below n that a sort uses.
func indexBits(n int64) int64 { return int64(bits.Len64(uint64(max(n, 1)))) }

// indices brings the indices of a call to the form that its kernels read: a mask
// becomes the positions that are set, int32 becomes int64, and where the
// broadcast indices differ in layout, each is made contiguous
// (aten/src/ATen/native/TensorAdvancedIndexing.cpp, make_info). found is the
// number of elements that masks select. The caller frees what it returns.
func (k *kernel) indices(idx []*Tensor, found int64) []program.StorageID {
	var temps []program.StorageID
	var list []*Tensor
	for _, t := range idx {
		if t.DType == graph.Bool || t.DType == graph.Uint8 {
			k.nonzero(t, func() { temps = append(temps, k.temp(8*found*int64(t.dim()), program.Temporaries)) })
			for range t.Shape {
				list = append(list, &Tensor{View: program.View{DType: graph.Int64, Shape: []int64{found}, Strides: []int64{1}}})
			}
			continue
		}
		list = append(list, t)
	}
	shape, ok := broadcast(list...)
	if !ok {
		return temps
	}
	for i, t := range list {
		wide := expanded(t, shape)
		if t.DType == graph.Int32 {
			temps = append(temps, k.temp(8*numel(t.Shape), program.Temporaries))
			wide = expanded(&Tensor{View: program.View{DType: graph.Int64, Shape: t.Shape, Strides: contiguousStrides(t.Shape)}}, shape)
		}
		list[i] = wide
	}
	same := true
	for _, t := range list[1:] {
		same = same && sameStrides(t.Strides, list[0].Strides)
	}
	for _, t := range list {
		if !same && !t.contiguous() {
			temps = append(temps, k.temp(8*numel(shape), program.Temporaries))
		}
	}
	return temps
}

func sameStrides(a, b []int64) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// expanded shows t in a shape that it broadcasts to.
func expanded(t *Tensor, shape []int64) *Tensor {
	st := make([]int64, len(shape))
	lead := len(shape) - t.dim()
	for i := range t.Shape {
		if t.Shape[i] == shape[lead+i] {
			st[lead+i] = t.Strides[i]
		}
	}
	return &Tensor{View: program.View{DType: t.DType, Shape: shape, Strides: st}}
}
