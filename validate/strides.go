package validate

import "slices"

// Elems returns the number of elements of a shape.
func Elems(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

// RowMajor returns the row-major strides of a shape, in elements. A dim of no
// elements counts as one.
func RowMajor(shape []int64) []int64 {
	out, n := make([]int64, len(shape)), int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		out[i] = n
		n *= max(shape[i], 1)
	}
	return out
}

// IsRowMajor reports whether strides are row-major for a shape. Strides of dims
// of size 1 do not count, and none if there are no elements.
func IsRowMajor(shape, strides []int64) bool {
	n, ok := int64(1), true
	for i := len(shape) - 1; i >= 0; i-- {
		ok = ok && (shape[i] == 1 || strides[i] == n)
		n *= shape[i]
	}
	return ok || n == 0
}

// RowMajor reports whether a tensor is row-major without holes.
func (t *ArenaView) RowMajor() bool { return IsRowMajor(t.Shape, t.Strides) }

// BroadcastShapes returns the shape that two broadcast to.
func BroadcastShapes(a, b []int64) []int64 {
	if len(a) < len(b) {
		a, b = b, a
	}
	out := slices.Clone(a)
	for i, n := range b {
		if j := len(a) - len(b) + i; out[j] == 1 {
			out[j] = n
		}
	}
	return out
}

// IndexedDim returns the result's first dim that comes from indices along dims: the
// first indexed one, or 0 if others lie between.
func IndexedDim(dims []int64) int64 {
	for i := 1; i < len(dims); i++ {
		if dims[i] != dims[i-1]+1 {
			return 0
		}
	}
	return dims[0]
}

// IndexedShape returns the shape of what indices along dims pick from a tensor, where
// picked is the shape that the indices broadcast to.
func IndexedShape(shape, dims, picked []int64) (out []int64) {
	for d, n := range shape {
		if int64(d) == IndexedDim(dims) {
			out = append(out, picked...)
		}
		if !slices.Contains(dims, int64(d)) {
			out = append(out, n)
		}
	}
	return out
}
