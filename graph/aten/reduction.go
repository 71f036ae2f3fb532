package aten

import (
	"math/bits"
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// reduceOver allocates and frees the scratch of reducing x over dims: partial
// results and semaphores.
func (k *kernel) reduceOver(op string, x *Tensor, dims []int) {
	r := reductionOf(k.e, x, dims)
	r.buffer *= partial(op)
	if acc := x.DType.Bytes(1); acc < 4 && (op == "max" || op == "min" || op == "amax" || op == "amin") {
		r.buffer = r.buffer / 4 * acc // compared in the operand's type
	}
	buf := k.temp(r.buffer, program.Temporaries)
	k.free(k.temp(r.semaphores, program.Temporaries), buf)
}

// partial is the count of numbers in a partial result: variances keep mean, sum
// of squares, count and its float (WelfordData).
func partial(op string) int64 {
	switch op {
	case "var", "std", "var_mean":
		return 4
	case "argmax", "argmin": // a value and its index
		return 4
	}
	return 1
}

// A reduction is the scratch of one reduction kernel, in bytes.
type reduction struct{ buffer, semaphores int64 }

// ReduceScratch returns the bytes of partial results that one kernel allocates
// to reduce a contiguous tensor of the given shape over dim.
func (c Config) ReduceScratch(d graph.DType, shape []int64, dim int) int64 {
	e := New(c)
	return reductionOf(e, &Tensor{View: program.View{DType: d, Shape: shape, Strides: contiguousStrides(shape)}}, []int{dim}).buffer
}

// reductionOf computes the launch configuration of gpu_reduce_kernel and from
// it the scratch (aten/src/ATen/native/cuda/Reduce.cuh, setReduceConfig).
func reductionOf(e *Eager, x *Tensor, dims []int) reduction {
	item := x.DType.Bytes(1)
	ds := reduceSpace(x, dims, item)
	if len(ds) == 0 || e.SMs == 0 {
		return reduction{}
	}
	inputs, outputs, nred := int64(1), int64(1), 0
	for _, d := range ds {
		if d.reduced {
			inputs *= d.size
			nred++
		} else {
			outputs *= d.size
		}
	}
	if inputs*outputs == 0 {
		return reduction{}
	}
	acc := max(item, 4) // partial sums of half types are float32
	fast := nred == len(ds) || nred > 0 && ds[0].in < ds[nred].in
	dim0, dim1, step := outputs, inputs, ds[min(nred, len(ds)-1)].in
	if fast {
		dim0, dim1, step = inputs, outputs, ds[0].in
	}
	outVec := int64(1)
	if step == item {
		if fast && dim0 > 128 && len(ds) == 1 {
			dim0 /= 4 // four inputs a load
		} else if !fast {
			outVec = outputVec(ds, nred, item)
			dim0 /= outVec
		}
	}
	width, height := blockShape(dim0, dim1, outVec, item)
	stepIn, stepOut := int64(1), int64(1)
	if fast {
		stepIn *= width
	} else {
		stepOut *= width
	}
	perThread := ceilDiv(inputs, stepIn)
	blockY := false
	if perThread >= min(height*16, 256) {
		stepIn *= height
		blockY = true
	} else {
		stepOut *= height
	}
	grid := ceilDiv(outputs/outVec, stepOut)
	target := int64(e.SMs) * (int64(e.ThreadsPerSM) / (width * height))
	perThread = ceilDiv(inputs, stepIn)
	if !blockY || perThread < 256 || grid > target {
		return reduction{}
	}
	ctas := max(min(ceilDiv(target, grid), ceilDiv(perThread, 16)), ceilDiv(perThread, 256))
	if ctas <= 1 {
		return reduction{}
	}
	size := acc * outputs * ctas
	if !fast {
		size *= width * outVec
	}
	return reduction{size, 4 * grid}
}

// reduceSpace returns the iteration space as TensorIterator coalesces it:
// reduced dims first, each group by increasing stride, neighbours merged.
func reduceSpace(x *Tensor, dims []int, item int64) []reduceDim {
	var red, out []reduceDim
	for i := x.dim() - 1; i >= 0; i-- {
		if x.Shape[i] == 1 {
			continue
		}
		d := reduceDim{x.Shape[i], x.Strides[i] * item, slices.Contains(dims, i)}
		if d.reduced {
			red = append(red, d)
		} else {
			out = append(out, d)
		}
	}
	byStride := func(a, b reduceDim) int { return int(min(max(a.in-b.in, -1), 1)) }
	slices.SortStableFunc(red, byStride)
	slices.SortStableFunc(out, byStride)
	return append(coalesce(red), coalesce(out)...)
}

func coalesce(ds []reduceDim) []reduceDim {
	var res []reduceDim
	for _, d := range ds {
		if n := len(res); n > 0 && res[n-1].in*res[n-1].size == d.in {
			res[n-1].size *= d.size
			continue
		}
		res = append(res, d)
	}
	return res
}

// outputVec is get_output_vec_size: up to four outputs a thread if the size and
// the other strides are multiples of that.
func outputVec(ds []reduceDim, nred int, item int64) int64 {
	vec := int64(4)
	halve := func(n int64) {
		for vec > 1 && n%vec != 0 {
			vec /= 2
		}
	}
	halve(ds[nred].size)
	for i, d := range ds {
		if i != nred {
			halve(d.in / item)
		}
	}
	return vec
}

// blockShape is set_block_dimension: a block of up to 512 threads, a warp
// wide unless the other dim is short.
func blockShape(dim0, dim1, outVec, item int64) (width, height int64) {
	most := 512 / outVec
	if item > 8 {
		most = 256 / outVec
	}
	p0, p1 := min(lastPow2(dim0), most), min(lastPow2(dim1), most)
	width = min(p0, 32)
	height = min(p1, most/width)
	width = min(p0, most/height)
	return width, height
}

func lastPow2(n int64) int64 {
	if n < 1 {
		return 1
	}
	return 1 << (bits.Len64(uint64(n)) - 1)
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

// scanScratch is CUB's scratch for scanning n elements of type d; half types store
// status and value apart.
func scanScratch(n int64, d graph.DType) int64 {
	if b := d.Bytes(1); b >= 4 {
		return cubScan(n, b)
	}
	tiles := max(ceilDiv(n, 1<<16), 1) + 32
	return cubParts(4*tiles, 2*tiles, 2*tiles, 1)
}

// A reduceDim is one dim of the coalesced iteration space; strides in bytes.
type reduceDim struct {
	size, in int64
	reduced  bool
}
