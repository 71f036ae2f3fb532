package remat

import (
	"cmp"
	"math"
	"slices"
)

// A program is a linear program that grows:
//
//	minimise    cost x
//	subject to  sum of its entries >= its bound, for every row
//	            low <= x <= high
//
// Costs are not negative and all bounds of x are finite, so that the basis of
// the rows' activities is dual feasible, and the dual simplex method can go
// on from any basis after rows were added or bounds of x were changed. The
// method is the bounded one with steepest edge pricing and the long-step
// ratio test. It works in floating point: what it finds is taken as advice,
// and proofs are recomputed in integers.
//
// Variables 0 to n-1 are x; variable n+r is the activity of row r.
type program struct {
	cost, low, high []float64
	columns         [][]entry // by x: its rows
	rows            [][]entry // by row: its x
	bound           []float64 // by row

	place  []int32   // by variable: its place in the basis, atLow or atHigh
	basis  []int32   // by place: its variable
	value  []float64 // by place
	weight []float64 // by place: steepest edge weights
	slope  []float64 // by variable: reduced costs; 0 for basic ones
	f      factor
	stale  bool // rows or bounds changed since the last step

	steps int         // taken so far
	stop  func() bool // called now and then to ask whether to give up; nil: never
	ray   []float64   // for each row: multipliers that show that no x satisfies all rows

	rho, col, tau, alpha []float64 // scratch
	touched              []int32
	candidates           []candidate
}

type entry struct {
	at int32 // a row or an x
	v  float64
}

// Places of variables that are not basic.
const (
	atLow  = -1
	atHigh = -2
)

// A candidate may enter the basis.
type candidate struct {
	j            int32
	ratio, alpha float64
}

type outcome int

const (
	optimal outcome = iota
	empty           // no x satisfies all rows
	unfinished
)

const (
	primalTol = 1e-7
	dualTol   = 1e-10
	pivotTol  = 1e-7
	lifetime  = 64 // steps from one factorisation to the next
)

// variable adds an x and returns its number. It must come before all rows.
func (l *program) variable(cost, low, high float64) int32 {
	l.cost = append(l.cost, cost)
	l.low = append(l.low, low)
	l.high = append(l.high, high)
	l.columns = append(l.columns, nil)
	l.place = append(l.place, atLow)
	l.slope = append(l.slope, cost)
	return int32(len(l.cost) - 1)
}

// row adds a row and returns its number. Its activity enters the basis.
func (l *program) row(entries []entry, bound float64) int32 {
	r := int32(len(l.rows))
	for _, e := range entries {
		l.columns[e.at] = append(l.columns[e.at], entry{r, e.v})
	}
	l.rows = append(l.rows, slices.Clone(entries))
	l.bound = append(l.bound, bound)
	l.place = append(l.place, int32(len(l.basis)))
	l.slope = append(l.slope, 0)
	l.basis = append(l.basis, int32(len(l.cost))+r)
	l.value = append(l.value, 0)
	l.weight = append(l.weight, 1)
	l.stale = true
	return r
}

// restrict sets the bounds of x[j].
func (l *program) restrict(j int32, low, high float64) {
	l.low[j], l.high[j] = low, high
	l.stale = true
}

// bounds returns the bounds of any variable.
func (l *program) bounds(j int32) (low, high float64) {
	if n := int32(len(l.cost)); j >= n {
		return l.bound[j-n], math.Inf(1)
	}
	return l.low[j], l.high[j]
}

// at returns the current value of x[j].
func (l *program) at(j int32) float64 {
	switch k := l.place[j]; k {
	case atLow:
		return l.low[j]
	case atHigh:
		return l.high[j]
	default:
		return l.value[k]
	}
}

// dual returns the multiplier of row r, never negative.
func (l *program) dual(r int32) float64 {
	return max(0, l.slope[int32(len(l.cost))+r])
}

// objective returns the cost of the current dual solution, which is a lower
// bound on the optimum up to rounding.
func (l *program) objective() float64 {
	var sum float64
	for j, s := range l.slope {
		if k := l.place[j]; k < 0 && s != 0 {
			low, high := l.bounds(int32(j))
			if k == atHigh {
				low = high
			}
			sum += s * low
		}
	}
	return sum
}

// column returns the entries of a variable's column in the system
// "entries of row r - activity of row r = 0".
func (l *program) column(j int32, idx []int32, val []float64) ([]int32, []float64) {
	idx, val = idx[:0], val[:0]
	if n := int32(len(l.cost)); j >= n {
		return append(idx, j-n), append(val, -1)
	}
	for _, e := range l.columns[j] {
		idx = append(idx, e.at)
		val = append(val, e.v)
	}
	return idx, val
}

// refresh factorises the basis anew and computes everything that depends on
// it. A basis that turns out singular is repaired with row activities.
func (l *program) refresh() {
	m := len(l.rows)
	var idx []int32
	var val []float64
	for {
		bad := l.f.factorise(m, func(c int32) ([]int32, []float64) {
			idx, val = l.column(l.basis[c], idx, val)
			return idx, val
		})
		if bad < 0 {
			break
		}
		l.repair(bad)
	}
	l.rho, l.col, l.tau = resize(l.rho, m), resize(l.col, m), resize(l.tau, m)
	if len(l.alpha) < len(l.place) {
		l.alpha = make([]float64, 2*len(l.place))
	}
	l.price()
	l.evaluate()
	l.stale = false
}

// repair replaces the basis column in place c, which depends on others, by
// the activity of a row that has no pivot.
func (l *program) repair(c int32) {
	n := int32(len(l.cost))
	l.place[l.basis[c]] = atLow
	for r := range int32(len(l.rows)) {
		if l.f.posn[r] < 0 && l.place[n+r] < 0 {
			l.basis[c] = n + r
			l.place[n+r] = c
			l.weight[c] = 1
			return
		}
	}
	panic("remat: no row to repair a basis with")
}

// price computes the reduced costs and moves variables that are not basic to
// the bound where they are dual feasible.
func (l *program) price() {
	n := int32(len(l.cost))
	y := l.rho
	for c, j := range l.basis {
		y[c] = 0
		if j < n {
			y[c] = l.cost[j]
		}
	}
	l.f.solveTransposed(y)
	for r := range int32(len(l.rows)) {
		l.slope[n+r] = max(y[r], 0)
	}
	for j := range n {
		if l.place[j] >= 0 {
			l.slope[j] = 0
			continue
		}
		s := l.cost[j]
		for _, e := range l.columns[j] {
			s -= y[e.at] * e.v
		}
		l.slope[j] = s
		if s < -dualTol {
			l.place[j] = atHigh
		} else if s > dualTol {
			l.place[j] = atLow
		}
	}
	for _, j := range l.basis {
		l.slope[j] = 0
	}
}

// evaluate computes the values of the basic variables.
func (l *program) evaluate() {
	n := int32(len(l.cost))
	x := l.col
	clear(x)
	for r := range int32(len(l.rows)) {
		if l.place[n+r] < 0 {
			x[r] += l.bound[r]
		}
	}
	for j := range n {
		if l.place[j] >= 0 {
			continue
		}
		if v := l.at(j); v != 0 {
			for _, e := range l.columns[j] {
				x[e.at] -= e.v * v
			}
		}
	}
	l.f.solve(x)
	copy(l.value, x)
}

// solve takes at most limit steps towards the optimum; it also stops when
// the bound exceeds target.
func (l *program) solve(limit int, target float64) outcome {
	l.refresh()
	for i := range limit {
		if len(l.f.etas) >= lifetime || l.stale {
			l.refresh()
		}
		if i%16 == 15 && l.objective() > target {
			return optimal
		}
		if i%64 == 63 && l.stop != nil && l.stop() {
			return unfinished
		}
		p, low := l.leaving()
		if p < 0 {
			return optimal
		}
		switch l.step(p, low) {
		case empty:
			return empty
		case unfinished:
			if len(l.f.etas) == 0 {
				return unfinished
			}
			l.stale = true
		}
		l.steps++
	}
	return unfinished
}

// leaving returns the place of the basic variable that is to leave the basis
// and whether it is below its bounds, or -1 if all are within.
func (l *program) leaving() (p int32, low bool) {
	p = -1
	var best float64
	for c, j := range l.basis {
		lo, hi := l.bounds(j)
		v := l.value[c]
		d := max(lo-v, v-hi)
		if d <= primalTol {
			continue
		}
		if s := d * d / l.weight[c]; s > best {
			best, p, low = s, int32(c), v < lo
		}
	}
	return p, low
}

// step exchanges the basic variable in place p for another.
func (l *program) step(p int32, low bool) outcome {
	rho := l.rho
	clear(rho)
	rho[p] = 1
	l.f.solveTransposed(rho)
	l.pivotRow(rho)
	defer l.forget()
	lo, hi := l.bounds(l.basis[p])
	target, sign := hi, 1.0
	if low {
		target, sign = lo, -1
	}
	q, flips := l.ratioTest(sign, math.Abs(l.value[p]-target))
	if q < 0 {
		l.ray = resize(l.ray, len(rho))
		for r, v := range rho {
			l.ray[r] = max(0, sign*v)
		}
		return empty
	}
	col := l.col
	l.scatter(q, col, 1)
	l.f.solve(col)
	a := col[p]
	if math.Abs(a) < pivotTol || math.Abs(a-l.alpha[q]) > 1e-6*(1+math.Abs(a)) {
		return unfinished
	}
	l.flip(flips)
	l.exchange(p, q, target, low)
	return optimal
}

// scatter sets x to a multiple of a variable's column.
func (l *program) scatter(j int32, x []float64, by float64) {
	clear(x)
	n := int32(len(l.cost))
	if j >= n {
		x[j-n] = -by
		return
	}
	for _, e := range l.columns[j] {
		x[e.at] = by * e.v
	}
}

// pivotRow computes alpha, the row of the tableau, for all variables that
// are not basic.
func (l *program) pivotRow(rho []float64) {
	n := int32(len(l.cost))
	l.touched = l.touched[:0]
	for r, v := range rho {
		if math.Abs(v) < tiny {
			continue
		}
		if j := n + int32(r); l.place[j] < 0 {
			l.alpha[j] = -v
			l.touched = append(l.touched, j)
		}
		for _, e := range l.rows[r] {
			if l.place[e.at] >= 0 {
				continue
			}
			if l.alpha[e.at] == 0 {
				l.touched = append(l.touched, e.at)
			}
			l.alpha[e.at] += v * e.v
			if l.alpha[e.at] == 0 {
				l.alpha[e.at] = 1e-300 // keeps it listed once
			}
		}
	}
}

// forget clears alpha.
func (l *program) forget() {
	for _, j := range l.touched {
		l.alpha[j] = 0
	}
}

// ratioTest chooses the variable that enters the basis. As long as the
// leaving variable, which is beyond its bound by gap, stays beyond it, others
// may pass from one of their bounds to the other: those are the flips. It
// returns -1 if the leaving variable cannot reach its bound.
func (l *program) ratioTest(sign, gap float64) (enter int32, flips []candidate) {
	list := l.candidates[:0]
	for _, j := range l.touched {
		a := sign * l.alpha[j]
		if lo, hi := l.bounds(j); lo == hi {
			continue
		}
		if l.place[j] == atLow && a > pivotTol || l.place[j] == atHigh && a < -pivotTol {
			list = append(list, candidate{j, max(l.slope[j]/a, 0), math.Abs(a)})
		}
	}
	l.candidates = list
	list = l.foremost(list, gap)
	slices.SortFunc(list, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.ratio, b.ratio), cmp.Compare(b.alpha, a.alpha), cmp.Compare(a.j, b.j))
	})
	// Candidates of nearly the same ratio pass together; the largest pivot of
	// the last group enters.
	first, end := 0, 0
	for end < len(list) && gap > 0 {
		gap, first = gap-l.span(list[end]), end
		for end++; end < len(list) && list[end].ratio <= list[first].ratio+dualTol; end++ {
			gap -= l.span(list[end])
		}
	}
	if gap > primalTol {
		return -1, nil
	}
	best := first
	for k := first; k < end; k++ {
		if list[k].alpha > list[best].alpha {
			best = k
		}
	}
	return list[best].j, list[:first]
}

// foremost returns the part of the list, which it reorders, with the least
// ratios: as many as together span the gap, and those of nearly the same ratio.
func (l *program) foremost(list []candidate, gap float64) []candidate {
	const few = 48
	lo, hi := 0, len(list)
	for hi-lo > few {
		a, b, c := list[lo].ratio, list[lo+(hi-lo)/2].ratio, list[hi-1].ratio
		pivot := max(min(a, b), min(max(a, b), c))
		m := lo + within(list[lo:hi], pivot)
		var sum float64
		for _, c := range list[lo:m] {
			sum += l.span(c)
		}
		switch {
		case m == hi:
			return list[:hi+within(list[hi:], pivot+dualTol)]
		case sum > gap:
			hi = m
		default:
			gap -= sum
			lo = m
		}
	}
	most := 0.0
	for _, c := range list[:hi] {
		most = max(most, c.ratio)
	}
	return list[:hi+within(list[hi:], most+dualTol)]
}

// within moves the candidates whose ratio is at most r to the front and
// returns how many there are.
func within(list []candidate, r float64) int {
	n := 0
	for i := range list {
		if list[i].ratio <= r {
			list[n], list[i] = list[i], list[n]
			n++
		}
	}
	return n
}

// span returns how far the leaving variable moves when c goes from one bound
// to the other.
func (l *program) span(c candidate) float64 {
	lo, hi := l.bounds(c.j)
	return c.alpha * (hi - lo)
}

// flip moves variables from one bound to the other.
func (l *program) flip(flips []candidate) {
	if len(flips) == 0 {
		return
	}
	x := l.tau
	clear(x)
	for _, c := range flips {
		lo, hi := l.bounds(c.j)
		by := hi - lo
		if l.place[c.j] == atHigh {
			by = -by
			l.place[c.j] = atLow
		} else {
			l.place[c.j] = atHigh
		}
		for _, e := range l.columns[c.j] {
			x[e.at] += by * e.v
		}
	}
	l.f.solve(x)
	for c, v := range x {
		l.value[c] -= v
	}
}

// exchange makes q basic in place p; the variable there goes to target.
func (l *program) exchange(p, q int32, target float64, low bool) {
	col, a := l.col, l.col[p]
	theta := (l.value[p] - target) / a
	ratio := l.slope[q] / l.alpha[q]
	for _, j := range l.touched {
		l.slope[j] -= ratio * l.alpha[j]
	}
	out := l.basis[p]
	l.slope[q], l.slope[out] = 0, -ratio
	enter := theta
	if n := int32(len(l.cost)); q >= n {
		enter += l.bound[q-n]
	} else {
		enter += l.at(q)
	}
	tau := l.tau
	copy(tau, l.rho)
	l.f.solve(tau)
	w := l.weight[p]
	for c, v := range col {
		if v == 0 {
			continue
		}
		l.value[c] -= theta * v
		if k := v / a; int32(c) != p {
			l.weight[c] = max(l.weight[c]-2*k*tau[c]+k*k*w, 1e-4)
		}
	}
	l.weight[p] = max(w/(a*a), 1e-4)
	l.value[p] = enter
	l.f.replace(p, col)
	l.basis[p], l.place[q] = q, p
	if l.place[out] = atHigh; low {
		l.place[out] = atLow
	}
}

// A position is a basis that a program can return to.
type position []int8

// position returns the current basis.
func (l *program) position() position {
	s := make(position, len(l.place))
	for j, k := range l.place {
		if k < 0 {
			s[j] = int8(k)
		}
	}
	return s
}

// restore returns to a basis. Later rows become basic. Steepest edge weights
// are reset.
func (l *program) restore(s position) {
	l.basis = l.basis[:0]
	for j := range l.place {
		if j < len(s) && s[j] < 0 {
			l.place[j] = int32(s[j])
			continue
		}
		l.place[j] = int32(len(l.basis))
		l.basis = append(l.basis, int32(j))
	}
	for c := range l.weight {
		l.weight[c] = 1
	}
	l.stale = true
}
