package cuda

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// maxDims is the largest number of dims in kernels.
const maxDims = 8

// broadcast returns a tensor's strides in a larger shape.
func broadcast(t *validate.ArenaView, shape []int64) ([]int64, error) {
	out := make([]int64, len(shape))
	lead := len(shape) - len(t.Shape)
	for i, n := range t.Shape {
		j := lead + i
		switch {
		case j < 0 && n == 1:
		case j < 0 || n != shape[j] && n != 1:
			return nil, fmt.Errorf("%v does not broadcast to %v", t.Shape, shape)
		case n != 1 || shape[j] == 1:
			out[j] = t.Strides[i]
		}
	}
	return out, nil
}

// fold orders dims from the widest stride of the first operand to the narrowest,
// drops those of one element and joins those that are contiguous in all
// operands. It changes the strides and returns the sizes.
func fold(shape []int64, strides [][]int64) []int64 {
	order := make([]int, 0, len(shape))
	for d, n := range shape {
		if n != 1 {
			order = append(order, d)
		}
	}
	slices.SortStableFunc(order, func(x, y int) int { return int(sign(strides[0][y] - strides[0][x])) })
	return join(shape, strides, order)
}

// sign is -1, 0 or 1.
func sign(v int64) int64 {
	switch {
	case v < 0:
		return -1
	case v > 0:
		return 1
	}
	return 0
}

// join takes dims in the given order, outermost first, and joins neighbours.
func join(shape []int64, strides [][]int64, order []int) []int64 {
	var size []int64
	out := make([][]int64, len(strides))
	for _, d := range order {
		joins := len(size) > 0
		for o := range strides {
			joins = joins && out[o][len(size)-1] == strides[o][d]*shape[d]
		}
		for o := range strides {
			if joins {
				out[o][len(size)-1] = strides[o][d]
			} else {
				out[o] = append(out[o], strides[o][d])
			}
		}
		if joins {
			size[len(size)-1] *= shape[d]
		} else {
			size = append(size, shape[d])
		}
	}
	if len(size) == 0 {
		size = []int64{1}
		for o := range out {
			out[o] = []int64{1}
		}
	}
	copy(strides, out)
	return size
}

// slab finds the one dim along which a window, whose strides count elements row
// by row, is shorter than the tensor around it, and its offset there. The
// window may lack that dim.
func slab(shape, in []int64, w *program.Window) (d int, from int64, ok bool) {
	rows, n := make([]int64, len(shape)), int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		rows[i] = n
		n *= shape[i]
	}
	if n == 0 || len(w.Strides) != len(in) || slices.Contains(in, 0) || len(in) != len(shape) && len(in) != len(shape)-1 {
		return 0, 0, false
	}
	for d = range shape {
		at, strides, length := slices.Clone(in), w.Strides, int64(1)
		if len(in) == len(shape) {
			length = in[d]
			at, strides = slices.Delete(at, d, d+1), slices.Delete(slices.Clone(strides), d, d+1)
			if length > 1 && w.Strides[d] != rows[d] {
				continue
			}
		}
		from = w.Offset / rows[d]
		if slices.Equal(at, slices.Delete(slices.Clone(shape), d, d+1)) && slices.Equal(strides, slices.Delete(slices.Clone(rows), d, d+1)) && w.Offset%rows[d] == 0 && from+length <= shape[d] {
			return d, from, true
		}
	}
	return 0, 0, false
}

// A divider is Divider of divide.cuh: the constants of a division of numbers
// below 2^31.
type divider struct{ by, factor, shift uint32 }

// divideBy returns the divider by n, from 1 to 2^31-1.
func divideBy(n int64) divider {
	shift := bits.Len64(uint64(n - 1))
	return divider{uint32(n), uint32((1<<32)*(1<<shift-n)/n + 1), uint32(shift)}
}

// quotient returns n divided, rounded down; n is below 2^31.
func (d divider) quotient(n uint32) uint32 {
	high, _ := bits.Mul32(n, d.factor)
	return (high + n) >> d.shift
}

// narrow reports whether 32 bits count the elements of folded dims and their
// positions in all operands.
func narrow(size []int64, strides [][]int64) bool {
	n := int64(1)
	for _, x := range size {
		n *= x
	}
	if n > math.MaxInt32 {
		return false
	}
	for _, s := range strides {
		up, down := int64(0), int64(0)
		for d, x := range size {
			if reach := s[d] * (x - 1); reach > 0 {
				up += reach
			} else {
				down -= reach
			}
		}
		if up > math.MaxInt32 || down > math.MaxInt32 {
			return false
		}
	}
	return true
}

// An operandAt is an operand's address and the bytes of its elements; none: it
// is a number.
type operandAt struct {
	ptr   uint64
	bytes int64
}

// group returns the number of neighbouring elements, at most most and a power of
// two, that one thread may process in folded dims: along the innermost each
// operand is one element, or they are contiguous at an address aligned to their
// size, up to 16 bytes.
func group(size []int64, strides [][]int64, at []operandAt, most int64) int64 {
	last := len(size) - 1
	if last < 0 || strides[0][last] != 1 {
		return 1
	}
	for ; most > 1; most /= 2 {
		ok := size[last]%most == 0
		for o, s := range strides {
			if !ok || at[o].ptr == 0 || s[last] == 0 {
				continue
			}
			ok = s[last] == 1 && at[o].ptr%uint64(min(most*at[o].bytes, 16)) == 0
			for _, x := range s[:last] {
				ok = ok && x*at[o].bytes%min(most*at[o].bytes, 16) == 0
			}
		}
		if ok {
			return most
		}
	}
	return 1
}

// counted returns folded dims whose innermost counts groups of n, with their
// strides.
func counted(size []int64, strides [][]int64, n int64) (threads uint32, dims [maxDims]divider, by [][maxDims]int32) {
	last := len(size) - 1
	all := int64(1)
	for d, x := range size {
		if d == last {
			x /= n
		}
		dims[d] = divideBy(x)
		all *= x
	}
	by = make([][maxDims]int32, len(strides))
	for o, s := range strides {
		for d, x := range s {
			if d == last {
				x *= n
			}
			by[o][d] = int32(x)
		}
	}
	return uint32(all), dims, by
}

// wideArgs is Wide of wide.cu.
type wideArgs struct {
	n                uint32
	op, dims, inputs int32
	size             [maxDims]divider
	stride           [4][maxDims]int32
	ptr              [4]uint64
	dtype, single    [4]int32
	scalar           [4]float32
	param            [4]float64
}

// moveArgs is Move of wide.cu.
type moveArgs struct {
	n       uint32
	dims    int32
	size    [maxDims]divider
	stride  [2][maxDims]int32
	out, in uint64
	bytes   int32
	_       int32
}

// moveOf plans a copy without a conversion, of elements of the given bytes, in
// words as long as strides and addresses allow.
func moveOf(size []int64, strides [][]int64, out, in uint64, bytes int64) (moveArgs, bool) {
	if !narrow(size, strides) {
		return moveArgs{}, false
	}
	n := int64(1)
	if last := len(size) - 1; strides[1][last] == 1 {
		n = group(size, strides, []operandAt{{out, bytes}, {in, bytes}}, 16/bytes)
	}
	a := moveArgs{dims: int32(len(size)), out: out, in: in, bytes: int32(n * bytes)}
	threads, dims, by := counted(size, strides, n)
	a.n, a.size = threads, dims
	for o := range by {
		for d := range size[:len(size)-1] {
			by[o][d] /= int32(n)
		}
		if n > 1 {
			by[o][len(size)-1] = 1
		}
		a.stride[o] = by[o]
	}
	return a, true
}

// transposeArgs is Transpose of wide.cu.
type transposeArgs struct {
	rows, cols, tiles uint32
	dims              int32
	across, down      divider
	size              [maxDims]divider
	stride            [2][maxDims]int32
	outRow, inCol     int32
	out, in           uint64
	inPairs, outPairs int32
}

// minTransposed is the least length of both dims of a transposed matrix: tiles
// of shorter ones would be mostly empty.
const minTransposed = 16

// transposeOf plans a copy whose operand and result have different innermost
// dims; ok is false for others.
func transposeOf(size []int64, strides [][]int64, out, in uint64, bytes int64) (transposeArgs, bool) {
	last, side := len(size)-1, int64(32)
	if bytes == 2 {
		side = 64
	}
	row := slices.Index(strides[1], 1)
	if strides[0][last] != 1 || strides[1][last] <= 1 || row < 0 || size[row] < minTransposed || size[last] < minTransposed || !narrow(size, strides) {
		return transposeArgs{}, false
	}
	across, down := (size[last]+side-1)/side, (size[row]+side-1)/side
	a := transposeArgs{rows: uint32(size[row]), cols: uint32(size[last]), across: divideBy(across), down: divideBy(down), outRow: int32(strides[0][row]), inCol: int32(strides[1][last]), out: out, in: in}
	tiles, even := across*down, [2]bool{out%4 == 0 && strides[0][row]%2 == 0, in%4 == 0 && strides[1][last]%2 == 0}
	for d, n := range size {
		if d == row || d == last {
			continue
		}
		a.size[a.dims] = divideBy(n)
		for o := range 2 {
			a.stride[o][a.dims] = int32(strides[o][d])
			even[o] = even[o] && strides[o][d]%2 == 0
		}
		tiles *= n
		a.dims++
	}
	a.tiles = uint32(tiles)
	if even[0] {
		a.outPairs = 1
	}
	if even[1] {
		a.inPairs = 1
	}
	return a, true
}

// widen plans an operator on groups of 8 or 4 elements; ok is false if strides,
// addresses or types do not allow it.
func widen(p *wideArgs, size []int64, strides [][]int64) (w int64, ok bool) {
	at := make([]operandAt, len(strides))
	for o := range strides {
		bytes, ok := wideBytes[p.dtype[o]]
		if p.ptr[o] != 0 && (!ok || o == 0 && p.dtype[0] > 2) {
			return 0, false
		}
		at[o] = operandAt{p.ptr[o], bytes}
	}
	if w = group(size, strides, at, 8); w < 4 || !narrow(size, strides) {
		return 0, false
	}
	threads, dims, by := counted(size, strides, w)
	p.n, p.dims, p.size = threads, int32(len(size)), dims
	copy(p.stride[:], by)
	for o, s := range strides {
		if s[len(size)-1] == 0 {
			p.single[o] = 1
		}
	}
	return w, true
}

// wideBytes are the types that wide.cu reads, as common.cuh numbers them.
var wideBytes = map[int32]int64{0: 4, 1: 2, 2: 2, 8: 1, 9: 1}

// tiledArgs is Tiled of wide.cu.
type tiledArgs struct {
	rows, cols, tiles uint32
	op, dims, inputs  int32
	across, down      divider
	size              [maxDims]divider
	stride            [4][maxDims]int32
	row, col          [4]int32
	ptr               [4]uint64
	dtype, turned     [4]int32
	scalar            [4]float32
	param             [4]float64
}

// tile plans an operator one of whose operands has another innermost dim than
// the result; ok is false if there is none.
func tile(p *wideArgs, size []int64, strides [][]int64) (tiledArgs, bool) {
	a := tiledArgs{op: p.op, inputs: p.inputs, ptr: p.ptr, dtype: p.dtype, scalar: p.scalar, param: p.param}
	last, row := len(size)-1, -1
	if strides[0][last] != 1 || size[last] < minTransposed || !narrow(size, strides) {
		return a, false
	}
	for o, s := range strides {
		if p.ptr[o] == 0 {
			continue
		}
		if _, ok := wideBytes[p.dtype[o]]; !ok || o == 0 && p.dtype[0] > 2 {
			return a, false
		}
		if o == 0 || s[last] <= 1 {
			continue
		}
		if d := slices.Index(s, 1); d >= 0 && size[d] >= minTransposed && (row < 0 || row == d) {
			row, a.turned[o] = d, 1
		}
	}
	if row < 0 {
		return a, false
	}
	across, down := (size[last]+31)/32, (size[row]+31)/32
	a.rows, a.cols, a.across, a.down = uint32(size[row]), uint32(size[last]), divideBy(across), divideBy(down)
	tiles := across * down
	for o, s := range strides {
		a.row[o], a.col[o] = int32(s[row]), int32(s[last])
	}
	for d, n := range size {
		if d == row || d == last {
			continue
		}
		a.size[a.dims] = divideBy(n)
		for o, s := range strides {
			a.stride[o][a.dims] = int32(s[d])
		}
		tiles *= n
		a.dims++
	}
	a.tiles = uint32(tiles)
	return a, true
}
