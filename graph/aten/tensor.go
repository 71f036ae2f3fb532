package aten

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// A Tensor is a tensor without elements, PyTorch's meta tensor, with its
// storage and its place in the autograd graph.
type Tensor struct {
	program.View
	Name string

	leaf         *gradNode // AccumulateGrad of a parameter that requires a gradient
	fn           *gradNode // autograd node that produced it; nil for leaves and constants
	outNr        int       // which output of fn it is
	keepsBase    bool      // a view that keeps its base alive (made while autograd records nothing)
	cast         *Tensor   // parameters: the cached autocast copy
	values       []float64 // host tensors: the elements, where the file shows them
	requiresGrad bool      // a parameter of an inference, or a view of one
	part         bool      // one of several views that its kernel returned instead of their base
}

// RequiresGrad reports whether autograd follows t.
func (t *Tensor) RequiresGrad() bool { return t != nil && (t.fn != nil || t.leaf != nil) }

// Numel returns the number of elements.
func (t *Tensor) Numel() int64 { return numel(t.Shape) }

// Bytes returns the elements' bytes, not those of the storage.
func (t *Tensor) Bytes() int64 { return t.DType.Bytes(t.Numel()) }

func (t *Tensor) dim() int { return len(t.Shape) }

func (t *Tensor) String() string {
	return fmt.Sprintf("%s%v", t.DType, t.Shape)
}

func numel(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

// contiguousStrides returns the row-major strides of shape.
func contiguousStrides(shape []int64) []int64 {
	st := make([]int64, len(shape))
	n := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		st[i] = n
		n *= max(shape[i], 1)
	}
	return st
}

// channelsLastStrides returns NHWC strides for an NCHW shape, NDHWC strides for
// an NCDHW one.
func channelsLastStrides(shape []int64) []int64 {
	st, n := make([]int64, len(shape)), shape[1]
	st[1] = 1
	for i := len(shape) - 1; i > 1; i-- {
		st[i] = n
		n *= shape[i]
	}
	st[0] = n
	return st
}

// contiguous reports row-major order; dims of size 1 do not count.
func (t *Tensor) contiguous() bool {
	n := int64(1)
	for i := len(t.Shape) - 1; i >= 0; i-- {
		if t.Shape[i] == 1 {
			continue
		}
		if t.Strides[i] != n {
			return t.Numel() == 0
		}
		n *= t.Shape[i]
	}
	return true
}

// lastOrder are the dims of channels-last tensors, the fastest first.
var lastOrder = map[int][]int{4: {1, 3, 2, 0}, 5: {1, 4, 3, 2, 0}}

// channelsLast reports whether a tensor of four or five dims lies in NHWC or
// NDHWC order, by PyTorch's rule (c10/core/MemoryFormat.h,
// is_channels_last_strides_2d and _3d).
func (t *Tensor) channelsLast() bool {
	order := lastOrder[len(t.Shape)]
	if order == nil || t.Strides[1] == 0 {
		return false
	}
	least := int64(0)
	for _, d := range order {
		if t.Shape[d] == 0 || t.Strides[d] < least {
			return false
		}
		if d == 0 && least == t.Strides[1] {
			return false
		}
		least = t.Strides[d]
		if t.Shape[d] > 1 {
			least *= t.Shape[d]
		}
	}
	return true
}

// dense reports whether the elements fill a block without overlap or holes.
func (t *Tensor) dense() bool {
	order := make([]int, 0, len(t.Shape))
	for i, d := range t.Shape {
		if d != 1 {
			order = append(order, i)
		}
	}
	sort.SliceStable(order, func(a, b int) bool { return t.Strides[order[a]] < t.Strides[order[b]] })
	n := int64(1)
	for _, i := range order {
		if t.Strides[i] != n {
			return t.Numel() == 0
		}
		n *= t.Shape[i]
	}
	return true
}

// denseStrides returns the strides of a new dense tensor that keeps the
// order of t's dims (infer_dense_strides): t's own when t is dense.
func (t *Tensor) denseStrides() []int64 {
	if t.dense() {
		return slices.Clone(t.Strides)
	}
	return iteratorStrides(t.Shape, t)
}

// iteratorStrides returns the strides TensorIterator gives a new output of
// the given shape computed elementwise from in, which broadcast to it
// (aten/src/ATen/TensorIterator.cpp, reorder_dimensions and allocate_or_resize_outputs).
func iteratorStrides(shape []int64, in ...*Tensor) []int64 {
	if st, ok := fastStrides(shape, in); ok {
		return st
	}
	n := len(shape)
	strides := make([][]int64, 0, len(in))
	for _, t := range in {
		if t.dim() == 0 {
			continue
		}
		s := make([]int64, n)
		for i := range t.Shape {
			if j := n - t.dim() + i; t.Shape[i] != 1 || shape[j] == 1 {
				s[j] = t.Strides[i]
			}
		}
		strides = append(strides, s)
	}
	perm := make([]int, n) // perm[0] is the fastest dim
	for i := range perm {
		perm[i] = n - 1 - i
	}
	shouldSwap := func(d0, d1 int) int {
		for _, s := range strides {
			a, b := s[d0], s[d1]
			switch {
			case a == 0 || b == 0:
				continue
			case a < b:
				return -1
			case a > b:
				return 1
			case shape[d0] > shape[d1]:
				return 1
			}
		}
		return 0
	}
	for i := 1; i < n; i++ {
		d1 := i
		for d0 := i - 1; d0 >= 0; d0-- {
			c := shouldSwap(perm[d0], perm[d1])
			if c > 0 {
				perm[d0], perm[d1] = perm[d1], perm[d0]
				d1 = d0
			} else if c < 0 {
				break
			}
		}
	}
	out := make([]int64, n)
	next := int64(1)
	for _, d := range perm {
		out[d] = next
		next *= max(shape[d], 1)
	}
	return out
}

// fastStrides is TensorIterator's fast setup: all operands of one shape, and
// all contiguous, all channels-last, or all of the same dense strides.
func fastStrides(shape []int64, in []*Tensor) ([]int64, bool) {
	if len(in) == 0 {
		return contiguousStrides(shape), true
	}
	contig, last, same := true, true, true
	for _, t := range in {
		if !slices.Equal(t.Shape, shape) {
			return nil, false
		}
		contig = contig && t.contiguous()
		last = last && t.channelsLast()
		same = same && slices.Equal(t.Strides, in[0].Strides) && t.dense()
	}
	switch {
	case contig:
		return contiguousStrides(shape), true
	case last:
		return channelsLastStrides(shape), true
	case same:
		return slices.Clone(in[0].Strides), true
	}
	return nil, false
}

// viewStrides returns the strides that show t in the given shape without a
// copy, or false (aten/src/ATen/TensorUtils.cpp, computeStride).
func viewStrides(t *Tensor, shape []int64) ([]int64, bool) {
	if t.Numel() == 0 {
		if slices.Equal(t.Shape, shape) {
			return slices.Clone(t.Strides), true
		}
		return contiguousStrides(shape), true
	}
	if t.dim() == 0 {
		st := make([]int64, len(shape))
		for i := range st {
			st[i] = 1
		}
		return st, true
	}
	out := make([]int64, len(shape))
	view := len(shape) - 1
	base := t.Strides[t.dim()-1]
	tn, vn := int64(1), int64(1)
	for d := t.dim() - 1; d >= 0; d-- {
		tn *= t.Shape[d]
		if d == 0 || (t.Shape[d-1] != 1 && t.Strides[d-1] != tn*base) {
			for view >= 0 && (vn < tn || shape[view] == 1) {
				out[view] = vn * base
				vn *= shape[view]
				view--
			}
			if vn != tn {
				return nil, false
			}
			if d > 0 {
				base = t.Strides[d-1]
				tn, vn = 1, 1
			}
		}
	}
	return out, view == -1
}

// broadcast returns the common shape of its operands, or false.
func broadcast(in ...*Tensor) ([]int64, bool) {
	n := 0
	for _, t := range in {
		n = max(n, t.dim())
	}
	shape := make([]int64, n)
	for i := range shape {
		shape[i] = 1
	}
	for _, t := range in {
		for i, d := range t.Shape {
			j := n - t.dim() + i
			switch {
			case shape[j] == 1:
				shape[j] = d
			case d != 1 && d != shape[j]:
				return nil, false
			}
		}
	}
	return shape, true
}

// common is broadcast for operands that must broadcast.
func common(in ...*Tensor) []int64 {
	shape, ok := broadcast(in...)
	if !ok {
		var shapes []string
		for _, t := range in {
			shapes = append(shapes, fmt.Sprint(t.Shape))
		}
		fail("shapes %s do not broadcast", strings.Join(shapes, " and "))
	}
	return shape
}

// inferSize replaces one -1 in shape so that it has n elements.
func inferSize(shape []int64, n int64) ([]int64, bool) {
	out := slices.Clone(shape)
	p, hole := int64(1), -1
	for i, d := range out {
		switch {
		case d == -1 && hole < 0:
			hole = i
		case d < 0:
			return nil, false
		default:
			p *= d
		}
	}
	if hole >= 0 {
		if p == 0 || n%p != 0 {
			return nil, false
		}
		out[hole] = n / p
		p *= out[hole]
	}
	return out, p == n
}

// wrap returns dimension d of an n-d tensor, negative ones counted from the end.
func wrap(d int64, n int) int {
	if d < 0 {
		d += int64(max(n, 1))
	}
	return int(d)
}

// promote returns the result type of an elementwise operation by PyTorch's
// promotion rules for tensors of non-zero rank.
func promote(a, b graph.DType) graph.DType {
	if a == b {
		return a
	}
	rank := func(d graph.DType) int {
		switch d {
		case graph.Bool:
			return 0
		case graph.Uint8:
			return 1
		case graph.Int8:
			return 2
		case graph.Int16:
			return 3
		case graph.Int32:
			return 4
		case graph.Int64:
			return 5
		case graph.Float16, graph.BFloat16:
			return 6
		case graph.Float32:
			return 7
		case graph.Float64:
			return 8
		case graph.Complex64:
			return 9
		}
		return 10
	}
	ra, rb := rank(a), rank(b)
	if ra == 6 && rb == 6 {
		return graph.Float32
	}
	if ra >= rb {
		return a
	}
	return b
}
