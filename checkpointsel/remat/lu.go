package remat

import (
	"math"
	"slices"
)

// A factor is the LU factorisation of a basis matrix, with later exchanges of
// single columns kept in product form: B = L U E1 E2 ...
//
// The factorisation is left-looking, a column at a time, with columns and
// rows that have only one entry left taken first: bases of the relaxations
// are nearly triangular.
type factor struct {
	m    int
	row  []int32 // pivot row of each position
	col  []int32 // basis column of each position
	posn []int32 // position of each row, -1 while factoring if it has none

	lower, upper sparseColumns // by position; upper's indices are positions
	diag         []float64

	etas []eta

	work  []float64 // scratch
	stack []int32
	mark  []int32
	stamp int32
	order []int32
}

// An eta is a column of the product form: column col was replaced.
type eta struct {
	col   int32
	pivot float64
	idx   []int32
	val   []float64
}

// sparseColumns are columns one after the other.
type sparseColumns struct {
	start []int32
	idx   []int32
	val   []float64
}

func (s *sparseColumns) reset() {
	s.start = append(s.start[:0], 0)
	s.idx, s.val = s.idx[:0], s.val[:0]
}

func (s *sparseColumns) add(i int32, v float64) {
	s.idx = append(s.idx, i)
	s.val = append(s.val, v)
}

func (s *sparseColumns) end() { s.start = append(s.start, int32(len(s.idx))) }

func (s *sparseColumns) column(j int32) ([]int32, []float64) {
	a, b := s.start[j], s.start[j+1]
	return s.idx[a:b], s.val[a:b]
}

// tiny is what counts as zero in a factorisation.
const tiny = 1e-11

// factorise computes the factorisation of the m by m matrix with the given
// columns. It returns the first column that depends on the others, -1 if
// there is none.
func (f *factor) factorise(m int, column func(int32) ([]int32, []float64)) int32 {
	f.m = m
	f.row, f.col = f.row[:0], f.col[:0]
	f.posn = resize(f.posn, m)
	f.work, f.mark = resize(f.work, m), resize(f.mark, m)
	for i := range m {
		f.posn[i], f.work[i], f.mark[i] = -1, 0, 0
	}
	f.stamp = 0
	f.lower.reset()
	f.upper.reset()
	f.diag, f.etas = f.diag[:0], f.etas[:0]
	count := f.arrange(column)
	for _, j := range f.order {
		if !f.eliminate(j, count, column) {
			return j
		}
	}
	return -1
}

// arrange puts the columns in the order of elimination, and returns the number
// of entries of each row.
func (f *factor) arrange(column func(int32) ([]int32, []float64)) []int32 {
	m := f.m
	count := make([]int32, m) // entries of each row among remaining columns
	in := make([][]int32, m)  // columns of each row
	left := make([]int32, m)  // entries of each column among remaining rows
	for j := range int32(m) {
		idx, _ := column(j)
		left[j] = int32(len(idx))
		for _, r := range idx {
			count[r]++
			in[r] = append(in[r], j)
		}
	}
	static := slices.Clone(count)
	takenRow, takenCol := make([]bool, m), make([]bool, m)
	f.order = f.order[:0]
	take := func(j, r int32) {
		takenCol[j], takenRow[r] = true, true
		f.order = append(f.order, j)
		for _, c := range in[r] {
			left[c]--
		}
		idx, _ := column(j)
		for _, i := range idx {
			count[i]--
		}
	}
	var queue []int32
	for j := range int32(m) {
		if left[j] == 1 {
			queue = append(queue, j)
		}
	}
	for len(queue) > 0 { // columns with one entry left
		j := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		if takenCol[j] || left[j] != 1 {
			continue
		}
		idx, _ := column(j)
		for _, r := range idx {
			if takenRow[r] {
				continue
			}
			take(j, r)
			for _, c := range in[r] {
				if !takenCol[c] && left[c] == 1 {
					queue = append(queue, c)
				}
			}
			break
		}
	}
	for r := range int32(m) {
		if count[r] == 1 && !takenRow[r] {
			queue = append(queue, r)
		}
	}
	for len(queue) > 0 { // rows with one entry left
		r := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		if takenRow[r] || count[r] != 1 {
			continue
		}
		for _, j := range in[r] {
			if takenCol[j] {
				continue
			}
			take(j, r)
			idx, _ := column(j)
			for _, i := range idx {
				if !takenRow[i] && count[i] == 1 {
					queue = append(queue, i)
				}
			}
			break
		}
	}
	first := len(f.order)
	for j := range int32(m) {
		if !takenCol[j] {
			f.order = append(f.order, j)
		}
	}
	slices.SortStableFunc(f.order[first:], func(a, b int32) int { return int(left[a] - left[b]) })
	// Rows with one entry left must be the pivots of their columns: give
	// them the lowest count.
	for r := range static {
		if takenRow[r] {
			static[r] = 0
		}
	}
	return static
}

// eliminate adds column j to the factorisation.
func (f *factor) eliminate(j int32, count []int32, column func(int32) ([]int32, []float64)) bool {
	idx, val := column(j)
	x := f.work
	f.stamp++
	f.stack = f.stack[:0]
	for _, r := range idx {
		f.reach(r)
	}
	for i, r := range idx {
		x[r] += val[i]
	}
	// stack holds the rows that may become nonzero, in reverse order of
	// elimination.
	for i := len(f.stack) - 1; i >= 0; i-- {
		r := f.stack[i]
		k := f.posn[r]
		if k < 0 || x[r] == 0 {
			continue
		}
		li, lv := f.lower.column(k)
		for a, s := range li {
			x[s] -= lv[a] * x[r]
		}
	}
	pivot, size := f.choosePivot(count)
	if pivot < 0 || size < 1e-9 {
		for _, r := range f.stack {
			x[r] = 0
		}
		return false
	}
	k := int32(len(f.row))
	d := x[pivot]
	for _, r := range f.stack {
		v := x[r]
		x[r] = 0
		switch {
		case math.Abs(v) < tiny || r == pivot:
		case f.posn[r] >= 0:
			f.upper.add(f.posn[r], v)
		default:
			f.lower.add(r, v/d)
		}
	}
	f.lower.end()
	f.upper.end()
	f.posn[pivot] = k
	f.row = append(f.row, pivot)
	f.col = append(f.col, j)
	f.diag = append(f.diag, d)
	return true
}

// reach pushes the rows that row r leads to through the lower factor, and r
// itself last, depth first.
func (f *factor) reach(r int32) {
	if f.mark[r] == f.stamp {
		return
	}
	f.mark[r] = f.stamp
	if k := f.posn[r]; k >= 0 {
		idx, _ := f.lower.column(k)
		for _, s := range idx {
			f.reach(s)
		}
	}
	f.stack = append(f.stack, r)
}

// choosePivot returns the row for the current column: large, and with few
// entries.
func (f *factor) choosePivot(count []int32) (int32, float64) {
	var largest float64
	for _, r := range f.stack {
		if f.posn[r] < 0 {
			largest = max(largest, math.Abs(f.work[r]))
		}
	}
	best, size := int32(-1), 0.0
	for _, r := range f.stack {
		v := math.Abs(f.work[r])
		if f.posn[r] >= 0 || v < 0.1*largest || v == 0 {
			continue
		}
		if best < 0 || count[r] < count[best] || count[r] == count[best] && v > size {
			best, size = r, v
		}
	}
	return best, size
}

// solve replaces x, indexed by rows, by the solution of B y = x, indexed by
// basis columns.
func (f *factor) solve(x []float64) {
	for k, r := range f.row {
		if v := x[r]; v != 0 {
			idx, val := f.lower.column(int32(k))
			for a, s := range idx {
				x[s] -= val[a] * v
			}
		}
	}
	y := f.work
	for k := f.m - 1; k >= 0; k-- {
		v := x[f.row[k]]
		if v == 0 {
			y[f.col[k]] = 0
			continue
		}
		v /= f.diag[k]
		y[f.col[k]] = v
		idx, val := f.upper.column(int32(k))
		for a, s := range idx {
			x[f.row[s]] -= val[a] * v
		}
	}
	copy(x, y)
	clear(y)
	for i := range f.etas {
		e := &f.etas[i]
		v := x[e.col]
		if v == 0 {
			continue
		}
		v /= e.pivot
		for a, s := range e.idx {
			x[s] -= e.val[a] * v
		}
		x[e.col] = v
	}
}

// solveTransposed replaces x, indexed by basis columns, by the solution of
// the transposed system, indexed by rows.
func (f *factor) solveTransposed(x []float64) {
	for i := len(f.etas) - 1; i >= 0; i-- {
		e := &f.etas[i]
		v := x[e.col]
		for a, s := range e.idx {
			v -= e.val[a] * x[s]
		}
		x[e.col] = v / e.pivot
	}
	z := f.work // by position
	for k := range f.m {
		v := x[f.col[k]]
		idx, val := f.upper.column(int32(k))
		for a, s := range idx {
			v -= val[a] * z[s]
		}
		z[k] = v / f.diag[k]
	}
	for k := f.m - 1; k >= 0; k-- {
		v := z[k]
		idx, val := f.lower.column(int32(k))
		for a, s := range idx {
			v -= val[a] * x[s]
		}
		x[f.row[k]] = v
	}
	clear(z)
}

// replace records that basis column col was replaced by the one whose solution
// is y.
func (f *factor) replace(col int32, y []float64) {
	e := eta{col: col, pivot: y[col]}
	for i, v := range y {
		if int32(i) != col && math.Abs(v) > tiny {
			e.idx = append(e.idx, int32(i))
			e.val = append(e.val, v)
		}
	}
	f.etas = append(f.etas, e)
}
