package validate

// Elems is how many elements a shape has.
func Elems(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

// RowMajor are the strides, in elements, of a shape that lies row by row without
// holes. A dim of no elements counts as one.
func RowMajor(shape []int64) []int64 {
	out, n := make([]int64, len(shape)), int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		out[i] = n
		n *= max(shape[i], 1)
	}
	return out
}

// IsRowMajor reports whether a shape with such strides lies row by row without
// holes. The strides of dims of 1 do not count, and none where there are no
// elements.
func IsRowMajor(shape, strides []int64) bool {
	n, ok := int64(1), true
	for i := len(shape) - 1; i >= 0; i-- {
		ok = ok && (shape[i] == 1 || strides[i] == n)
		n *= shape[i]
	}
	return ok || n == 0
}

// RowMajor reports whether a tensor lies row by row without holes.
func (t *Tensor) RowMajor() bool { return IsRowMajor(t.Shape, t.Strides) }
