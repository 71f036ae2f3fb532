package aten

import (
	"math"
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// cudnnNormalizes reports whether cuDNN runs a batch normalisation; PyTorch's
// own kernels run the others (_select_batch_norm_backend in
// aten/src/ATen/native/Normalization.cpp).
func cudnnNormalizes(x, w, b, mean, variance *Tensor, train bool) bool {
	if w == nil || b == nil || x.DType == graph.BFloat16 || w.DType == graph.BFloat16 || x.DType == graph.Float16 && w.DType != graph.Float32 {
		return false
	}
	most := int64(65535)
	if train {
		most = 880801
	}
	return (mean == nil) == (variance == nil) && (mean != nil || train) && x.dim() >= 3 && x.Shape[0] <= most && x.Numel() < math.MaxInt32
}

// A normImpl is how PyTorch's own kernels of batch normalisation walk a tensor
// (batch_norm_choose_impl in aten/src/ATen/native/cuda/Normalization.cu).
type normImpl uint8

const (
	normContiguous normImpl = iota
	normLast
	normGeneral
)

func normImplOf(t *Tensor) normImpl {
	switch {
	case t.Numel() >= math.MaxInt32:
		return normGeneral
	case t.contiguous() && t.Strides[1] == 1:
		return normLast
	case t.contiguous():
		return normContiguous
	case t.dim() == 4 && inFormat(t, true):
		return normLast
	}
	return normGeneral
}

// normsLast reports whether the kernels for rows of channels run
// (batch_norm_use_channels_last_kernels), also in three dims, which normImplOf
// does not cover.
func normsLast(t *Tensor) bool {
	return t.contiguous() && t.Strides[1] == 1 || t.dim() >= 4 && inFormat(t, true)
}

// stagingGrid is the launch of a reduction of channels-last rows, 1 block high
// where no partial results are staged (flexible_launch_configs in
// aten/src/ATen/native/cuda/Normalization.cuh).
func stagingGrid(rows, channels int64) (x, y int64) {
	const threads, perThread, tall = 512, 16, 128
	bx := min(lastPow2(channels), 32)
	by := min(lastPow2(ceilDiv(rows, perThread)), threads/bx)
	if bx*by != threads {
		bx = min(lastPow2(channels), threads/by)
	}
	if y = min(ceilDiv(rows, by*perThread), tall); y < 8 {
		y = 1
	}
	return ceilDiv(channels, bx), y
}

// staging allocates and frees the scratch of such a reduction, with that many
// values a channel and block.
func (k *kernel) staging(t *Tensor, values int64) {
	ch := t.Shape[1]
	if gx, gy := stagingGrid(t.Numel()/max(ch, 1), ch); gy > 1 {
		data := k.temp(4*values*ch*gy, program.Temporaries)
		sem := k.temp(4*gx, program.Temporaries)
		k.free(sem, data)
	}
}

// nativeBatchNorm is batch normalisation by PyTorch's own kernels
// (batch_norm_cuda and batch_norm_backward_cuda in
// aten/src/ATen/native/cuda/Normalization.cu): statistics are saved in
// evaluation, too.
func nativeBatchNorm(e *Eager, x, w, b, mean, variance *Tensor, numbers []float64) []*Tensor {
	train := numbers[2] == 1
	k := e.begin("native_batch_norm", x, w, b, mean, variance).does("batch_norm").scalars(numbers...)
	o := k.like(x)
	ch, d := []int64{x.Shape[1]}, statistics(x.DType)
	stats := []*Tensor{k.alloc(ch, nil, d), k.alloc(ch, nil, d)}
	impl := normImplOf(x)
	if train && impl == normLast {
		k.staging(x, 4)
	}
	if train && impl == normGeneral {
		k.generalMoments(x)
	}
	if impl == normGeneral {
		var ones []program.StorageID
		for _, t := range []*Tensor{w, b} {
			if t == nil {
				ones = append(ones, k.temp(d.Bytes(1), program.Temporaries))
			}
		}
		slices.Reverse(ones)
		k.free(ones...)
	}
	k.attrs().Results = []int8{0, 1, 2}
	if !train {
		k.n.Attrs.Results = []int8{0}
	}
	k.flops(8 * x.Numel()).end()
	saved := append([]*Tensor{x, w, mean, variance}, stats...)
	e.record("NativeBatchNormBackward0", []*Tensor{o}, []*Tensor{x, w, b}, saved, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		k := e.begin("native_batch_norm_backward", append(slices.Clone(g), s...)...).does("batch_norm_backward").scalars(numbers...)
		return k.nativeBackward(g[0], s[0], w, b, train, need)
	})
	return append([]*Tensor{o}, append(stats, nil, nil, nil)...)
}

// generalMoments is the scratch of means and variances by the general reduction
// (at::var_mean_out), which reads float16 itself but bfloat16 as a copy in float32.
func (k *kernel) generalMoments(x *Tensor) {
	in, wide := x, program.None
	if x.DType == graph.BFloat16 {
		in = &Tensor{View: program.View{DType: graph.Float32, Shape: x.Shape, Strides: x.denseStrides()}}
		wide = k.temp(in.Bytes(), program.Temporaries)
	}
	var dims []int
	for i := range x.Shape {
		if i != 1 {
			dims = append(dims, i)
		}
	}
	k.reduceOver("var_mean", in, dims)
	k.free(wide)
}

// evalBackward completes a call of native_batch_norm_backward after a forward
// by cuDNN: it first copies the statistics to the kernel's type.
func (k *kernel) evalBackward(g, x, w, b, mean *Tensor, need []bool) []*Tensor {
	d := statistics(x.DType)
	if (need[1] || need[2]) && need[0] && !normsLast(x) {
		return k.nativeBackward(g, x, w, b, false, need)
	}
	var stats []program.StorageID
	if (need[1] || need[2]) && mean.DType != d {
		stats = append(stats, k.temp(d.Bytes(x.Shape[1]), program.Temporaries))
	}
	k.after = append([]program.StorageID{k.temp(d.Bytes(x.Shape[1]), program.Temporaries)}, stats...)
	return k.nativeBackward(g, x, w, b, false, need)
}

// nativeBackward completes a call of native_batch_norm_backward.
func (k *kernel) nativeBackward(g, x, w, b *Tensor, train bool, need []bool) []*Tensor {
	outs, d, ch := make([]*Tensor, 3), statistics(x.DType), x.Shape[1:2]
	reduces := train || need[1] || need[2]
	param := func(i int, p *Tensor) {
		if p != nil {
			outs[i] = k.alloc(ch, nil, p.DType)
		}
	}
	var sums []program.StorageID
	sum := func() {
		for range 2 {
			sums = append(sums, k.temp(d.Bytes(ch[0]), program.Temporaries))
		}
	}
	last, same := normsLast(x) && normsLast(g), normImplOf(x) == normImplOf(g) && normImplOf(x) != normGeneral
	switch {
	case reduces && need[0] && !normsLast(x): // one kernel
		outs[0] = k.alloc(x.Shape, nil, x.DType)
		for i, p := range []*Tensor{w, b} {
			if need[i+1] {
				param(i+1, p)
			}
		}
		k.setResults(outs...)
		k.flops(12 * x.Numel()).end()
		return outs
	case reduces && last:
		sum()
		param(1, w)
		param(2, w)
		k.staging(x, 2)
	case reduces:
		if need[0] {
			sum()
		}
		for i, p := range []*Tensor{w, b} {
			if need[i+1] {
				param(i+1, p)
			}
		}
	}
	if need[0] {
		one := program.None
		if w == nil && train && !same { // a weight of 1
			one = k.temp(d.Bytes(1), program.Temporaries)
		}
		outs[0] = k.like(g)
		k.free(one)
		k.outs, k.n.Out = nil, nil // results stand in their order
		for _, t := range outs {
			if t != nil {
				k.outs, k.n.Out = append(k.outs, t), append(k.n.Out, t.View)
			}
		}
	}
	slices.Reverse(sums)
	k.free(sums...)
	k.free(k.after...)
	k.setResults(outs...)
	k.flops(12 * x.Numel()).end()
	return outs
}
