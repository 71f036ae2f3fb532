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
	complement []int32 // x
}

// derive applies a rounding to a row, with the terms of out as room for the
// new ones. flip says which terms are complemented. It reports false if the
// rounding gives nothing.
func derive(row integerRow, divisor int64, flip []bool, out *integerRow) bool {
	b := row.bound
	for i, t := range row.terms {
		if flip[i] {
			b -= t.a
		}
	}
	whole, f := floorDiv(b, divisor)
	if f == 0 {
		return false
	}
	out.unit, out.bound, out.terms = row.unit, (whole+1)*f, out.terms[:0]
	for i, t := range row.terms {
		sign := int64(1)
		if flip[i] {
			sign = -1
		}
		whole, r := floorDiv(sign*t.a, divisor)
		c := whole*f + min(r, f)
		if c == 0 {
			continue
		}
		out.terms = append(out.terms, term{t.x, sign * c})
		if sign < 0 {
			out.bound -= c
		}
	}
	return true
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

// round adds the most violated row that rounding derives from row r, if there
// is one.
func (w *windows) round(r int32) bool {
	row := w.int[r]
	flip := make([]bool, len(row.terms))
	var divisors []int64
	for i, t := range row.terms {
		x := w.l.at(t.x)
		flip[i] = x > 0.5
		if x > 1e-6 && x < 1-1e-6 {
			divisors = append(divisors, max(t.a, -t.a))
		}
	}
	slices.SortFunc(divisors, func(a, b int64) int { return cmp.Compare(b, a) })
	divisors = slices.Compact(divisors)
	divisor, depth := int64(0), 1e-3
	for _, a := range divisors[:min(len(divisors), 8)] {
		for _, by := range [...]int64{1, 2, 3, 4} {
			if d := a / by; d >= 2 && derive(row, d, flip, &w.derived) {
				if v := w.depth(w.derived); v > depth {
					divisor, depth = d, v
				}
			}
		}
	}
	if divisor == 0 {
		return false
	}
	d := rounding{base: r, divisor: divisor}
	for i, t := range row.terms {
		if flip[i] {
			d.complement = append(d.complement, t.x)
		}
	}
	derive(row, divisor, flip, &w.derived)
	found := w.derived
	found.terms = slices.Clone(found.terms)
	w.append(rule{kind: roundedRule, other: int32(len(w.roundings))}, found)
	w.roundings = append(w.roundings, d)
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
