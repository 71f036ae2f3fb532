package graph

import "math"

// minifloats describes the small floating-point formats: exponent and
// mantissa bits, exponent bias, and what the largest exponents mean.
var minifloats = [...]struct {
	exp, man, bias int
	signed         bool
	special        special
}{
	Float16:      {5, 10, 15, true, ieee},
	BFloat16:     {8, 7, 127, true, ieee},
	Float8E4M3:   {4, 3, 7, true, nanAllOnes},
	Float8E4M3UZ: {4, 3, 8, true, nanNegativeZero},
	Float8E5M2:   {5, 2, 15, true, ieee},
	Float8E5M2UZ: {5, 2, 16, true, nanNegativeZero},
	Float4E2M1:   {2, 1, 1, true, finite},
	Float8E8M0:   {8, 0, 127, false, nanAllOnes},
}

// A special says which bit patterns are not finite numbers.
type special uint8

const (
	ieee            special = iota // largest exponent: infinity, or NaN
	nanAllOnes                     // all bits but the sign set: NaN; no infinities
	nanNegativeZero                // the pattern of -0: NaN; no infinities
	finite                         // none
)

// Float returns the number that bits stand for in the floating-point type d.
// Bits above the type's width are ignored. It returns 0 for types that are
// not floating-point.
func (d DType) Float(bits uint64) float64 {
	switch {
	case d == Float32:
		return float64(math.Float32frombits(uint32(bits)))
	case d == Float64:
		return math.Float64frombits(bits)
	case d < 0 || int(d) >= len(minifloats) || minifloats[d].exp == 0:
		return 0
	}
	f := minifloats[d]
	man := int(bits & (1<<f.man - 1))
	exp := int(bits >> f.man & (1<<f.exp - 1))
	neg := f.signed && bits>>(f.man+f.exp)&1 != 0
	top, ones := exp == 1<<f.exp-1, man == 1<<f.man-1
	v := 0.0
	switch {
	case f.special == ieee && top && man == 0:
		v = math.Inf(1)
	case f.special == ieee && top,
		f.special == nanAllOnes && top && ones,
		f.special == nanNegativeZero && neg && exp == 0 && man == 0:
		return math.NaN()
	case exp == 0 && f.signed: // subnormal
		v = math.Ldexp(float64(man), 1-f.bias-f.man)
	default:
		v = math.Ldexp(float64(1<<f.man+man), exp-f.bias-f.man)
	}
	if neg {
		v = -v
	}
	return v
}
