package infer

import (
	"fmt"
	"math"

	"github.com/memplan/memplan/graph"
)

// An arithmetic is the number system of an output, for rules on elements.
type arithmetic struct{ elem graph.DType }

// fix brings an element into the range of its type: floats are rounded,
// integers wrap around.
func (a arithmetic) fix(x elem) elem {
	if !a.elem.IsFloat() {
		if n, ok := x.int(); ok {
			return intElem(wrap(a.elem, n))
		}
		return x
	}
	f, ok := x.float()
	if !ok {
		return x
	}
	return floatElem(round(a.elem, f))
}

// round rounds f to the precision of a floating-point type.
func round(t graph.DType, f float64) float64 {
	bits := map[graph.DType]int{graph.Float16: 11, graph.BFloat16: 8}[t]
	switch {
	case t == graph.Float32:
		return float64(float32(f))
	case bits == 0 || f == 0 || math.IsInf(f, 0) || math.IsNaN(f):
		return f
	}
	frac, exp := math.Frexp(f)
	return math.Ldexp(math.RoundToEven(math.Ldexp(frac, bits)), exp-bits)
}

// An elemFunc computes one element of a result from those of the inputs.
type elemFunc func(a arithmetic, x []elem) elem

// elementwise returns a value rule that applies f, which takes n elements (0:
// one or more), with broadcasting.
func elementwise(n int, f elemFunc) rule {
	return func(c *call) error {
		dims := c.outDims(0)
		if dims == nil || c.arity() == 0 || n > 0 && c.arity() != n {
			return nil
		}
		in := make([]*contents, 0, 3)
		for i := range c.arity() {
			v := c.contents(i)
			if v == nil || v.list || !fits(v.dims, dims) {
				return nil
			}
			in = append(in, v)
		}
		size, _ := graph.Product(dims)
		out := &contents{dims: dims, elems: make([]elem, size)}
		a := arithmetic{c.outTyp(0).Elem}
		x := make([]elem, len(in))
		for i := range out.elems {
			for k, v := range in {
				x[k] = v.elems[broadcastIndex(i, dims, v.dims)]
			}
			out.elems[i] = a.fix(f(a, x))
			if err := overflowed(c, out.elems[i], x); err != nil {
				return err
			}
		}
		c.setContents(0, out)
		return nil
	}
}

// fits reports whether a tensor of shape in broadcasts to shape out.
func fits(in, out []int64) bool {
	if len(in) > len(out) {
		return false
	}
	for i, n := range in {
		if m := out[len(out)-len(in)+i]; n != m && n != 1 {
			return false
		}
	}
	return true
}

// overflowed rejects, in strict mode, integer arithmetic on constants that has
// no result. Otherwise the element is unknown.
func overflowed(c *call, y elem, x []elem) error {
	if !c.s.e.opt.Strict || y.known() || len(x) != 2 {
		return nil
	}
	a, ok1 := x[0].int()
	b, ok2 := x[1].int()
	if !ok1 || !ok2 {
		return nil
	}
	return fmt.Errorf("integer overflow: operands %d and %d", a, b)
}

// broadcastIndex maps element i of a tensor of shape out to the element of a
// tensor of shape in that broadcasts to it.
func broadcastIndex(i int, out, in []int64) int {
	idx, stride := 0, 1
	for k := 1; k <= len(in); k++ {
		n := int(out[len(out)-k])
		at := i % n
		i /= n
		if d := int(in[len(in)-k]); d != 1 {
			idx += at * stride
			stride *= d
		}
	}
	return idx
}

// numeric combines exact elements by num and constants by flt.
func numeric(num func(x, y graph.Dim) graph.Dim, flt func(x, y float64) float64) elemFunc {
	return func(a arithmetic, x []elem) elem {
		y := x[0]
		for _, z := range x[1:] {
			y = a.combine(y, z, num, flt)
		}
		return y
	}
}

// combine applies num to integers and to fractions over a common denominator
// (valid for sums, minima and maxima), flt to constants.
func (a arithmetic) combine(x, y elem, num func(x, y graph.Dim) graph.Dim, flt func(x, y float64) float64) elem {
	if a.elem.IsFloat() || x.isFloat || y.isFloat {
		f, ok1 := x.float()
		g, ok2 := y.float()
		if ok1 && ok2 {
			return a.fix(floatElem(flt(f, g)))
		}
	}
	x, y = x.exact(), y.exact()
	if !x.known() || !y.known() || x.den*y.den > maxDen {
		return elem{}
	}
	if x.den == y.den {
		return quotient(num(x.num, y.num), x.den)
	}
	return quotient(num(x.num.Mul(graph.Int(y.den)), y.num.Mul(graph.Int(x.den))), x.den*y.den)
}

var (
	addElems = numeric(graph.Dim.Add, func(x, y float64) float64 { return x + y })
	subElems = numeric(graph.Dim.Sub, func(x, y float64) float64 { return x - y })
	minimum  = numeric(graph.Dim.Min, math.Min)
	maximum  = numeric(graph.Dim.Max, math.Max)
)

func mulElems(a arithmetic, x []elem) elem {
	f, ok1 := x[0].float()
	g, ok2 := x[1].float()
	if ok1 && ok2 && a.elem.IsFloat() {
		return floatElem(f * g)
	}
	p, q := x[0].exact(), x[1].exact()
	if !p.known() || !q.known() || p.den*q.den > maxDen {
		return elem{}
	}
	return quotient(p.num.Mul(q.num), p.den*q.den)
}

// divElems divides; integers towards zero. A symbolic quotient of integers is
// assumed to be one of sizes, which are not negative.
func divElems(a arithmetic, x []elem) elem {
	if a.elem.IsFloat() {
		return divFloats(x[0], x[1])
	}
	p, q := x[0].dim(), x[1].dim()
	m, ok1 := p.Int()
	n, ok2 := q.Int()
	if ok1 && ok2 {
		if n == 0 || m == math.MinInt64 && n == -1 {
			return elem{}
		}
		return intElem(m / n)
	}
	return dimElem(p.FloorDiv(q))
}

func divFloats(x, y elem) elem {
	f, ok1 := x.float()
	g, ok2 := y.float()
	if ok1 && ok2 {
		return floatElem(f / g)
	}
	p, q := x.exact(), y.exact()
	n, ok := q.num.Int()
	if p.known() && ok && n != 0 && n > -maxDen && n < maxDen { // (a/b)/(n/d) = a*d/(b*n)
		num, den := p.num.Mul(graph.Int(q.den)), p.den*n
		if den < 0 {
			num, den = num.Neg(), -den
		}
		if den <= maxDen {
			return quotient(num, den)
		}
	}
	if p.known() && q.known() && p.den == 1 && q.den == 1 { // exact quotients of expressions
		if d := p.num.FloorDiv(q.num); d.Mul(q.num).Equal(p.num) {
			return dimElem(d)
		}
	}
	return elem{}
}

// modElems returns the remainder with the sign of the divisor, or with fmod
// that of the dividend.
func modElems(fmod bool) elemFunc {
	return func(a arithmetic, x []elem) elem {
		f, ok1 := x[0].float()
		g, ok2 := x[1].float()
		m, isInt := x[0].int()
		n, bothInt := x[1].int()
		switch {
		case isInt && bothInt && n == 0:
			return elem{}
		case isInt && bothInt && fmod:
			return intElem(m % n)
		case ok1 && ok2 && a.elem.IsFloat():
			return floatElem(math.Mod(f, g))
		}
		return dimElem(x[0].dim().Mod(x[1].dim()))
	}
}

func modValues(c *call) error { return elementwise(2, modElems(c.int("fmod", 0) != 0))(c) }

func powElems(a arithmetic, x []elem) elem {
	f, ok1 := x[0].float()
	g, ok2 := x[1].float()
	if ok1 && ok2 {
		p := math.Pow(f, g)
		if a.elem.IsFloat() {
			return floatElem(p)
		}
		if math.Abs(p) < 1<<53 {
			return intElem(int64(p))
		}
		return elem{}
	}
	if g == 2 && ok2 {
		return mulElems(a, []elem{x[0], x[0]})
	}
	if g == 1 && ok2 {
		return x[0]
	}
	return elem{}
}

// signOf returns the sign of x - y if it is known.
func signOf(x, y elem) (sign int, ok bool) {
	f, ok1 := x.float()
	g, ok2 := y.float()
	if ok1 && ok2 && (x.isFloat || y.isFloat) {
		switch {
		case f < g:
			return -1, true
		case f > g:
			return 1, true
		}
		return 0, f == g // NaN is unordered
	}
	x, y = x.exact(), y.exact()
	if !x.known() || !y.known() {
		return 0, false
	}
	diff := x.num.Mul(graph.Int(y.den)).Sub(y.num.Mul(graph.Int(x.den)))
	lo, hi := diff.Bounds()
	switch {
	case lo > 0:
		return 1, true
	case hi < 0:
		return -1, true
	}
	return 0, lo == 0 && hi == 0
}

// comparison returns a rule for a predicate of the sign of x - y.
func comparison(holds func(sign int) bool) elemFunc {
	return func(_ arithmetic, x []elem) elem {
		if sign, ok := signOf(x[0], x[1]); ok {
			return boolElem(holds(sign))
		}
		return boundedComparison(x[0], x[1], holds)
	}
}

// boundedComparison decides if all signs that the bounds allow agree.
func boundedComparison(x, y elem, holds func(sign int) bool) elem {
	diff := x.dim().Sub(y.dim())
	if !diff.Known() {
		return elem{}
	}
	lo, hi := diff.Bounds()
	var seen, first bool
	for sign := -1; sign <= 1; sign++ {
		if sign < 0 && lo >= 0 || sign == 0 && (lo > 0 || hi < 0) || sign > 0 && hi <= 0 {
			continue
		}
		if seen && holds(sign) != first {
			return elem{}
		}
		seen, first = true, holds(sign)
	}
	return boolElem(first)
}

// logic combines truth values; nil is unknown.
func logic(f func(x, y *bool) *bool) elemFunc {
	return func(_ arithmetic, x []elem) elem {
		if r := f(truth(x[0]), truth(x[len(x)-1])); r != nil {
			return boolElem(*r)
		}
		return elem{}
	}
}

func truth(x elem) *bool {
	if f, ok := x.float(); ok {
		t := f != 0
		return &t
	}
	return nil
}

func and(x, y *bool) *bool {
	switch {
	case x != nil && !*x:
		return x
	case y != nil && !*y:
		return y
	case x == nil || y == nil:
		return nil
	}
	return x
}

func not(_, y *bool) *bool {
	if y == nil {
		return nil
	}
	t := !*y
	return &t
}

func or(x, y *bool) *bool { return not(nil, and(not(nil, x), not(nil, y))) }

func xor(x, y *bool) *bool {
	if x == nil || y == nil {
		return nil
	}
	t := *x != *y
	return &t
}

func whereElems(_ arithmetic, x []elem) elem {
	t := truth(x[0])
	switch {
	case t != nil && *t:
		return x[1]
	case t != nil:
		return x[2]
	case x[1].equal(x[2]):
		return x[1]
	}
	return elem{}
}

// unary returns a rule for a function of one element: exact for expressions
// (nil: none), flt for constants.
func unary(exact func(x elem) elem, flt func(f float64) float64) elemFunc {
	return func(a arithmetic, x []elem) elem {
		if f, ok := x[0].float(); ok && (x[0].isFloat || exact == nil) {
			if a.elem.IsFloat() {
				return floatElem(flt(f))
			}
			return elem{}
		}
		if exact == nil || !x[0].known() {
			return elem{}
		}
		return exact(x[0])
	}
}

func negElem(x elem) elem   { return quotient(x.num.Neg(), x.den) }
func floorElem(x elem) elem { return dimElem(x.num.FloorDiv(graph.Int(x.den))) }
func ceilElem(x elem) elem  { return dimElem(x.num.CeilDiv(graph.Int(x.den))) }

func absElem(x elem) elem {
	lo, hi := x.num.Bounds()
	switch {
	case lo >= 0:
		return x
	case hi <= 0:
		return negElem(x)
	}
	return elem{}
}

func roundElem(x elem) elem {
	if x.den == 1 {
		return x
	}
	return elem{}
}

func signElem(x elem) elem {
	lo, hi := x.num.Bounds()
	switch {
	case lo > 0:
		return intElem(1)
	case hi < 0:
		return intElem(-1)
	case lo == 0 && hi == 0:
		return intElem(0)
	}
	return elem{}
}

func sigmoid(f float64) float64 { return 1 / (1 + math.Exp(-f)) }

func sign(f float64) float64 {
	switch {
	case f > 0:
		return 1
	case f < 0:
		return -1
	}
	return f
}

// castValues converts elements to the output's type.
func castValues(c *call) error {
	v := c.contents(0)
	if v == nil || v.list {
		return nil
	}
	to := c.outTyp(0).Elem
	out := &contents{dims: v.dims, elems: make([]elem, len(v.elems))}
	for i, x := range v.elems {
		out.elems[i] = castElem(x, to)
	}
	c.setContents(0, out)
	return nil
}

func castElem(x elem, to graph.DType) elem {
	switch {
	case !x.known():
		return x
	case to == graph.Bool:
		if s, ok := signOf(x, intElem(0)); ok {
			return boolElem(s != 0)
		}
		return boundedComparison(x, intElem(0), func(s int) bool { return s != 0 })
	case to.IsFloat():
		return arithmetic{to}.fix(x)
	case to == graph.String || !to.Valid():
		return elem{}
	}
	if x.isFloat {
		if math.Abs(x.f) >= 1<<63 || math.IsNaN(x.f) {
			return elem{}
		}
		x = intElem(int64(x.f))
	}
	if n, ok := x.int(); ok {
		return intElem(wrap(to, n))
	}
	return floorElem(x) // of a size, which is not negative
}

// wrap keeps the low bits of n that an integer type holds.
func wrap(t graph.DType, n int64) int64 {
	switch t {
	case graph.Int8:
		return int64(int8(n))
	case graph.Int16:
		return int64(int16(n))
	case graph.Int32:
		return int64(int32(n))
	case graph.Uint8:
		return int64(uint8(n))
	case graph.Uint16:
		return int64(uint16(n))
	case graph.Uint32:
		return int64(uint32(n))
	}
	return n
}

// clipValues clamps elements between the second and third input, or the
// attributes of old operator sets.
func clipValues(c *call) error {
	v := c.contents(0)
	if v == nil || v.list {
		return nil
	}
	a := arithmetic{c.outTyp(0).Elem}
	out := append([]elem(nil), v.elems...)
	for i, combine := range []elemFunc{maximum, minimum} {
		bound, given, known := clipBound(c, i)
		if !known {
			return nil
		}
		for k := range out {
			if given {
				out[k] = a.fix(combine(a, []elem{out[k], bound}))
			}
		}
	}
	c.setContents(0, &contents{dims: v.dims, elems: out})
	return nil
}

// clipBound returns Clip's minimum (i = 0) or maximum (i = 1).
func clipBound(c *call, i int) (x elem, given, known bool) {
	if c.has(i + 1) {
		v := c.contents(i + 1)
		if v == nil || len(v.elems) != 1 {
			return elem{}, true, false
		}
		return v.elems[0], true, v.elems[0].known()
	}
	if a := c.attr([]string{"min", "max"}[i]); a != nil && a.Kind == graph.AttrFloat {
		return floatElem(float64(a.F)), true, true
	}
	return elem{}, false, true
}

// passValues copies the contents of the first input.
func passValues(c *call) error {
	c.setContents(0, c.contents(0))
	return nil
}
