package remat

import (
	"cmp"
	"math"
	"slices"
)

// A rounding says how a row is derived from another by mixed-integer
// rounding. Some variables are complemented, x = 1 - y, which gives a row
// sum of a y >= b in variables that are whole numbers and not negative; with
// a = A divisor + r and b = B divisor + f, 0 <= r, f < divisor, then also
//
//	sum of (A f + min(r, f)) y >= (B + 1) f
type rounding struct {
	base       int32 // the row
	divisor    int64
	complement []int32 // x, ascending
}

// derive applies a rounding to a row. It reports false if the rounding gives
// nothing.
func (d *rounding) derive(row integerRow) (integerRow, bool) {
	out := integerRow{unit: row.unit, terms: make([]term, len(row.terms))}
	b := row.bound
	for _, t := range row.terms {
		if d.complements(t.x) {
			b -= t.a
		}
	}
	whole, f := floorDiv(b, d.divisor)
	if f == 0 {
		return out, false
	}
	out.bound = (whole + 1) * f
	for i, t := range row.terms {
		sign := int64(1)
		if d.complements(t.x) {
			sign = -1
		}
		whole, r := floorDiv(sign*t.a, d.divisor)
		c := whole*f + min(r, f)
		out.terms[i] = term{t.x, sign * c}
		if sign < 0 {
			out.bound -= c
		}
	}
	out.terms = slices.DeleteFunc(out.terms, func(t term) bool { return t.a == 0 })
	return out, true
}

func (d *rounding) complements(x int32) bool {
	_, ok := slices.BinarySearch(d.complement, x)
	return ok
}

// floorDiv returns the quotient, rounded down, and the remainder, not
// negative, for positive b.
func floorDiv(a, b int64) (quotient, remainder int64) {
	quotient, remainder = a/b, a%b
	if remainder < 0 {
		quotient, remainder = quotient-1, remainder+b
	}
	return quotient, remainder
}

// round adds to the program the most violated row that rounding derives from
// row r, if there is one.
func (w *windows) round(r int32) bool {
	row := w.int[r]
	d := rounding{base: r}
	var divisors []int64
	for _, t := range row.terms {
		x := w.l.at(t.x)
		if x > 0.5 {
			d.complement = append(d.complement, t.x)
		}
		if x > 1e-6 && x < 1-1e-6 {
			divisors = append(divisors, max(t.a, -t.a))
		}
	}
	slices.Sort(d.complement)
	d.complement = slices.Compact(d.complement)
	slices.SortFunc(divisors, func(a, b int64) int { return cmp.Compare(b, a) })
	divisors = slices.Compact(divisors)
	best, depth, found := rounding{}, 1e-3, integerRow{}
	for _, a := range divisors[:min(len(divisors), 8)] {
		for _, by := range [...]int64{1, 2, 3, 4} {
			if d.divisor = a / by; d.divisor < 2 {
				continue
			}
			if out, ok := d.derive(row); ok {
				if v := w.depth(out); v > depth {
					best, depth, found = d, v, out
				}
			}
		}
	}
	if found.terms == nil {
		return false
	}
	w.append(rule{kind: roundedRule, other: int32(len(w.roundings))}, found)
	w.roundings = append(w.roundings, best)
	return true
}

// depth returns the distance of the current solution from a row that it
// violates; negative if it does not.
func (w *windows) depth(row integerRow) float64 {
	sum, norm := float64(row.bound), 0.0
	for _, t := range row.terms {
		sum -= float64(t.a) * w.l.at(t.x)
		norm += float64(t.a) * float64(t.a)
	}
	return sum / math.Sqrt(norm)
}
