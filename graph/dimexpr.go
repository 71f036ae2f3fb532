package graph

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// An expr is a polynomial that is not a lone constant.
type expr struct {
	terms poly
	key   string // the text; equal keys mean equal expressions
	at    samples
}

// A poly is a sum of terms in decreasing lexicographic order of their
// monomials (so the constant comes last), none with coefficient 0.
type poly []term

// A term is c times the product of the factors, which are sorted by atom key.
type term struct {
	c int64
	m []factor
}

type factor struct {
	a   *atom
	pow int32
}

// An atom is what a polynomial treats as indivisible.
type atom struct {
	op   atomOp
	name string // opSym
	args []Dim  // opFloor: dividend, divisor; else sorted by key
	key  string
	at   samples
}

type atomOp uint8

const (
	opSym atomOp = iota
	opFloor
	opMin
	opMax
	opBroadcast
)

var atomNames = [...]string{opMin: "Min", opMax: "Max", opBroadcast: "Broadcast"}

// Limits of one expression; larger ones are unknown.
const (
	maxTerms = 32
	maxPow   = 32
	maxKey   = 1024 // bytes of text
	maxArgs  = 16   // of Min, Max and Broadcast
)

func fromAtom(a *atom) Dim {
	return Dim{kind: dimExpr, e: &expr{terms: poly{{1, []factor{{a, 1}}}}, key: a.key, at: a.at}}
}

// fromPoly wraps p; ok is false if an overflow occurred.
func fromPoly(p poly, ok bool) Dim {
	switch {
	case !ok || len(p) > maxTerms:
		return Dim{}
	case len(p) == 0:
		return Int(0)
	case len(p) == 1 && len(p[0].m) == 0:
		return Int(p[0].c)
	}
	key := p.text()
	if len(key) > maxKey {
		return Dim{}
	}
	return Dim{kind: dimExpr, e: &expr{terms: p, key: key, at: p.samples()}}
}

// poly returns d, which is known, as a polynomial.
func (d Dim) poly() poly {
	if d.kind == dimExpr {
		return d.e.terms
	}
	if d.n == 0 {
		return nil
	}
	return poly{{c: d.n}}
}

// compareMono orders monomials lexicographically, the larger first.
func compareMono(a, b []factor) int {
	for i := 0; i < len(a) && i < len(b); i++ {
		if c := strings.Compare(a[i].a.key, b[i].a.key); c != 0 {
			return c
		}
		if a[i].pow != b[i].pow {
			return int(b[i].pow - a[i].pow)
		}
	}
	return len(b) - len(a)
}

// addPoly returns p + sign*q.
func addPoly(p, q poly, sign int64) (poly, bool) {
	out := make(poly, 0, len(p)+len(q))
	i, j := 0, 0
	for i < len(p) || j < len(q) {
		c := 1
		switch {
		case j == len(q):
			c = -1
		case i < len(p):
			c = compareMono(p[i].m, q[j].m)
		}
		if c < 0 {
			out = append(out, p[i])
			i++
			continue
		}
		n, ok := mulInt(q[j].c, sign)
		if c == 0 && ok {
			n, ok = addInt(p[i].c, n)
			i++
		}
		if !ok {
			return nil, false
		}
		if n != 0 {
			out = append(out, term{n, q[j].m})
		}
		j++
	}
	return out, true
}

func mulPoly(p, q poly) (poly, bool) {
	if len(p)*len(q) > maxTerms*maxTerms/2 {
		return nil, false
	}
	var out poly
	for _, s := range p {
		row, ok := q.times(s)
		if ok {
			out, ok = addPoly(out, row, 1)
		}
		if !ok {
			return nil, false
		}
	}
	return out, true
}

// times returns p multiplied by one term. Multiplying by a monomial keeps
// the order.
func (p poly) times(s term) (poly, bool) {
	out := make(poly, len(p))
	for i, t := range p {
		c, ok := mulInt(s.c, t.c)
		if !ok {
			return nil, false
		}
		m, ok := mulMono(s.m, t.m)
		if !ok {
			return nil, false
		}
		out[i] = term{c, m}
	}
	return out, true
}

func mulMono(a, b []factor) ([]factor, bool) {
	if len(a) == 0 {
		return b, true
	}
	if len(b) == 0 {
		return a, true
	}
	out := make([]factor, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		switch c := strings.Compare(a[0].a.key, b[0].a.key); {
		case c < 0:
			out, a = append(out, a[0]), a[1:]
		case c > 0:
			out, b = append(out, b[0]), b[1:]
		default:
			f := factor{a[0].a, a[0].pow + b[0].pow}
			if f.pow > maxPow {
				return nil, false
			}
			out, a, b = append(out, f), a[1:], b[1:]
		}
	}
	return append(append(out, a...), b...), true
}

// divMono returns a/b if b divides a.
func divMono(a, b []factor) ([]factor, bool) {
	if len(b) == 0 {
		return a, true
	}
	var out []factor
	for _, f := range a {
		if len(b) > 0 && b[0].a.key == f.a.key {
			f.pow -= b[0].pow
			b = b[1:]
			if f.pow < 0 {
				return nil, false
			}
		}
		if f.pow > 0 {
			out = append(out, f)
		}
	}
	return out, len(b) == 0
}

// divPoly returns s and r with p = q*s + r, such that no term of r could give
// the leading term of q a non-zero quotient. q's leading coefficient is
// positive.
func divPoly(p, q poly) (s, r poly, ok bool) {
	lead := q[0]
	for len(p) > 0 {
		if max(len(p), len(s), len(r)) > maxTerms {
			return nil, nil, false
		}
		t := p[0]
		m, divides := divMono(t.m, lead.m)
		k := int64(0)
		if divides {
			k = floorDiv(t.c, lead.c)
		}
		if k == 0 {
			r, p = append(r, t), p[1:]
			continue
		}
		row, ok := q.times(term{k, m})
		if ok {
			p, ok = addPoly(p, row, -1)
		}
		if ok {
			s, ok = addPoly(s, poly{{k, m}}, 1)
		}
		if !ok {
			return nil, nil, false
		}
		// The rest of t, if any, cannot be divided again.
		if len(p) > 0 && compareMono(p[0].m, t.m) == 0 {
			r, p = append(r, p[0]), p[1:]
		}
	}
	return s, r, true
}

// floorDivPoly returns floor(p/q); q is neither 0 nor 1.
func floorDivPoly(p, q poly) Dim {
	if q[0].c < 0 {
		var ok1, ok2 bool
		p, ok1 = addPoly(nil, p, -1)
		q, ok2 = addPoly(nil, q, -1)
		if !ok1 || !ok2 {
			return Dim{}
		}
	}
	s, r, ok := divPoly(p, q)
	if !ok {
		return newFloor(fromPoly(p, true), fromPoly(q, true))
	}
	whole := fromPoly(s, true)
	if len(r) == 0 {
		return whole
	}
	r, q = cancel(r, q)
	if q.constant() {
		return whole.Add(floorDivConst(r, q[0].c))
	}
	return whole.Add(newFloor(fromPoly(r, true), fromPoly(q, true)))
}

// cancel divides both by their common integer and monomial factor. When q is
// a constant, or becomes one, p's constant term is rounded down, which
// floor(p/q) allows.
func cancel(p, q poly) (poly, poly) {
	constant := q.constant()
	g, m := int64(0), q[0].m
	for _, t := range q {
		g, m = gcd(g, t.c), gcdMono(m, t.m)
	}
	for _, t := range p {
		if !constant || len(t.m) > 0 {
			g, m = gcd(g, t.c), gcdMono(m, t.m)
		}
	}
	if g == 1 && len(m) == 0 {
		return p, q
	}
	p, q = p.over(g, m), q.over(g, m)
	if !constant && q.constant() {
		return cancel(p, q)
	}
	return p, q
}

// constant reports whether p is one constant term.
func (p poly) constant() bool { return len(p) == 1 && len(p[0].m) == 0 }

// over divides every term by g*m, rounding coefficients down.
func (p poly) over(g int64, m []factor) poly {
	var out poly
	for _, t := range p {
		rest, _ := divMono(t.m, m)
		if c := floorDiv(t.c, g); c != 0 {
			out = append(out, term{c, rest})
		}
	}
	return out
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	if a < 0 {
		return -a
	}
	return a
}

func gcdMono(a, b []factor) []factor {
	var out []factor
	for _, f := range a {
		for _, g := range b {
			if f.a.key == g.a.key {
				out = append(out, factor{f.a, min(f.pow, g.pow)})
			}
		}
	}
	return out
}

// floorDivConst returns floor(p/c) for c > 0, where p's coefficients are in
// [0, c) and have no common divisor with c.
func floorDivConst(p poly, c int64) Dim {
	if len(p) == 0 {
		return Int(0)
	}
	if c == 1 {
		return fromPoly(p, true)
	}
	if p.constant() {
		return Int(floorDiv(p[0].c, c))
	}
	if d := mergeFloor(p, c); d.Known() {
		return d
	}
	return newFloor(fromPoly(p, true), Int(c))
}

// mergeFloor rewrites floor((floor(a/b) + r)/c) to floor((a + b*r)/(b*c)) for
// a positive constant b, if p has exactly one such term; else it is unknown.
func mergeFloor(p poly, c int64) Dim {
	at := -1
	for i, t := range p {
		if len(t.m) != 1 || t.m[0].a.op != opFloor {
			continue
		}
		if at >= 0 || t.c != 1 || t.m[0].pow != 1 {
			return Dim{}
		}
		at = i
	}
	if at < 0 {
		return Dim{}
	}
	a, b := p[at].m[0].a.args[0], p[at].m[0].a.args[1]
	if n, ok := b.Int(); !ok || n <= 0 {
		return Dim{}
	}
	rest := fromPoly(slices.Delete(slices.Clone(p), at, at+1), true)
	return a.Add(b.Mul(rest)).FloorDiv(b.Mul(Int(c)))
}

func newFloor(a, b Dim) Dim {
	if !a.Known() || !b.Known() {
		return Dim{}
	}
	return settled(&atom{op: opFloor, args: []Dim{a, b}, key: operand(a, false) + "//" + operand(b, true)})
}

// settled returns the atom, or the one value its bounds allow.
func settled(a *atom) Dim {
	if lo, hi := a.bounds(); lo == hi {
		return Int(lo)
	}
	a.at = a.samples()
	return fromAtom(a)
}

// operand returns d's text, in parentheses if it is not a single factor.
func operand(d Dim, right bool) string {
	if d.kind == dimInt {
		if d.n < 0 {
			return "(" + d.String() + ")"
		}
		return d.String()
	}
	if a := d.loneAtom(); a != nil && (a.op != opFloor || !right) {
		return a.key
	}
	return "(" + d.e.key + ")"
}

// extremum returns the minimum or maximum in normal form.
func extremum(op atomOp, d, e Dim) Dim {
	if !d.Known() || !e.Known() {
		return Dim{}
	}
	if d.kind == dimInt && e.kind == dimInt {
		if (op == opMin) == (d.n < e.n) {
			return d
		}
		return e
	}
	args := undominated(op, append(flatten(op, d), flatten(op, e)...))
	if len(args) == 1 {
		return args[0]
	}
	if len(args) > maxArgs {
		return Dim{}
	}
	shift := int64(math.MaxInt64)
	for _, a := range args {
		shift = min(shift, a.constant())
	}
	for i, a := range args {
		args[i] = a.sub(Int(shift))
	}
	return newAtom(op, args).Add(Int(shift))
}

// flatten returns the arguments of d if d is op(...)+c, with c added to each.
func flatten(op atomOp, d Dim) []Dim {
	c := d.constant()
	a := d.sub(Int(c)).loneAtom()
	if a == nil || a.op != op {
		return []Dim{d}
	}
	out := make([]Dim, len(a.args))
	for i, x := range a.args {
		out[i] = x.Add(Int(c))
	}
	return out
}

// constant returns the constant term of d.
func (d Dim) constant() int64 {
	if d.kind == dimInt {
		return d.n
	}
	if t := d.e.terms[len(d.e.terms)-1]; len(t.m) == 0 {
		return t.c
	}
	return 0
}

// undominated drops arguments that another one is known to dominate.
func undominated(op atomOp, args []Dim) []Dim {
	var out []Dim
	for _, a := range args {
		if slices.ContainsFunc(out, func(b Dim) bool { return beats(op, b, a) }) {
			continue
		}
		out = slices.DeleteFunc(out, func(b Dim) bool { return beats(op, a, b) })
		out = append(out, a)
	}
	return out
}

// beats reports whether op(a, b) is always a.
func beats(op atomOp, a, b Dim) bool {
	if op == opMin {
		a, b = b, a
	}
	diff := a.sub(b)
	lo, _ := diff.Bounds()
	return diff.Known() && lo >= 0
}

// newAtom returns op over args, which it sorts.
func newAtom(op atomOp, args []Dim) Dim {
	for _, a := range args {
		if !a.Known() {
			return Dim{}
		}
	}
	slices.SortFunc(args, func(a, b Dim) int { return strings.Compare(a.text(), b.text()) })
	parts := make([]string, len(args))
	for i, a := range args {
		parts[i] = a.text()
	}
	return settled(&atom{op: op, args: args, key: atomNames[op] + "(" + strings.Join(parts, ", ") + ")"})
}

// text is String with unusual symbol names quoted.
func (d Dim) text() string {
	if d.kind == dimExpr {
		return d.e.key
	}
	return d.String()
}

func broadcast(d, e Dim) Dim {
	switch {
	case !d.Known() || !e.Known():
		return Dim{}
	case d.isInt(1) || d.Equal(e):
		return e
	case e.isInt(1):
		return d
	case d.kind == dimInt && e.kind == dimInt:
		return Dim{}
	case d.kind == dimInt:
		return d
	case e.kind == dimInt:
		return e
	}
	if lo, _ := d.Bounds(); lo > 1 {
		return d
	}
	if lo, _ := e.Bounds(); lo > 1 {
		return e
	}
	var args []Dim
	for _, x := range append(bcastArgs(d), bcastArgs(e)...) {
		if !slices.ContainsFunc(args, x.Equal) {
			args = append(args, x)
		}
	}
	if len(args) > maxArgs {
		return Dim{}
	}
	return newAtom(opBroadcast, args)
}

func bcastArgs(d Dim) []Dim {
	if a := d.loneAtom(); a != nil && a.op == opBroadcast {
		return a.args
	}
	return []Dim{d}
}

// text writes the polynomial in its order.
func (p poly) text() string {
	var b strings.Builder
	for i, t := range p {
		c := t.c
		switch {
		case i > 0 && c < 0 && c != math.MinInt64:
			b.WriteString(" - ")
			c = -c
		case i > 0:
			b.WriteString(" + ")
		}
		switch {
		case len(t.m) == 0 || (c != 1 && c != -1):
			b.WriteString(strconv.FormatInt(c, 10))
			if len(t.m) > 0 {
				b.WriteByte('*')
			}
		case c == -1:
			b.WriteByte('-')
		}
		for j, f := range t.m {
			if j > 0 {
				b.WriteByte('*')
			}
			f.write(&b, len(t.m) > 1 || c != 1 || f.pow > 1)
		}
	}
	return b.String()
}

func (f factor) write(b *strings.Builder, inProduct bool) {
	if f.a.op == opFloor && inProduct {
		b.WriteString("(" + f.a.key + ")")
	} else {
		b.WriteString(f.a.key)
	}
	if f.pow > 1 {
		b.WriteString("**" + strconv.Itoa(int(f.pow)))
	}
}

// quoteSym returns the name as it stands in an expression: in backquotes
// unless it is an identifier.
func quoteSym(name string) string {
	if isIdent(name) {
		return name
	}
	return "`" + strings.ReplaceAll(name, "`", "``") + "`"
}

func isIdent(s string) bool {
	for i, r := range s {
		if !identRune(r, i == 0) {
			return false
		}
	}
	return s != ""
}

func evalPoly(p poly, env map[string]int64) (int64, error) {
	sum := int64(0)
	for _, t := range p {
		c := t.c
		for _, f := range t.m {
			n, err := f.a.eval(env)
			if err != nil {
				return 0, err
			}
			for range f.pow {
				var ok bool
				if c, ok = mulInt(c, n); !ok {
					return 0, fmt.Errorf("dim %q overflows", p.text())
				}
			}
		}
		var ok bool
		if sum, ok = addInt(sum, c); !ok {
			return 0, fmt.Errorf("dim %q overflows", p.text())
		}
	}
	return sum, nil
}

func (a *atom) eval(env map[string]int64) (int64, error) {
	if a.op == opSym {
		if n, ok := env[a.name]; ok {
			return n, nil
		}
		return 0, fmt.Errorf("dim %q is unbound", a.name)
	}
	var out int64
	for i, d := range a.args {
		n, err := d.Eval(env)
		if err != nil {
			return 0, err
		}
		if i == 0 {
			out = n
			continue
		}
		if out, err = a.op.apply(out, n); err != nil {
			return 0, fmt.Errorf("dim %q: %w", a.key, err)
		}
	}
	return out, nil
}

// apply computes one step of an atom over integers.
func (op atomOp) apply(x, y int64) (int64, error) {
	switch op {
	case opFloor:
		if y == 0 {
			return 0, fmt.Errorf("division by zero")
		}
		if x == math.MinInt64 && y == -1 {
			return 0, fmt.Errorf("overflow")
		}
		return floorDiv(x, y), nil
	case opMin:
		return min(x, y), nil
	case opMax:
		return max(x, y), nil
	}
	if x != y && x != 1 && y != 1 {
		return 0, fmt.Errorf("%d and %d do not broadcast", x, y)
	}
	if x == 1 {
		return y, nil
	}
	return x, nil
}

func substPoly(p poly, env map[string]Dim) Dim {
	sum := Int(0)
	for _, t := range p {
		d := Int(t.c)
		for _, f := range t.m {
			x := f.a.subst(env)
			for range f.pow {
				d = d.Mul(x)
			}
		}
		sum = sum.Add(d)
	}
	return sum
}

func (a *atom) subst(env map[string]Dim) Dim {
	if a.op == opSym {
		if d, ok := env[a.name]; ok {
			return d
		}
		return fromAtom(a)
	}
	out := a.args[0].Subst(env)
	for _, d := range a.args[1:] {
		x := d.Subst(env)
		switch a.op {
		case opFloor:
			out = out.FloorDiv(x)
		case opBroadcast:
			out = broadcast(out, x)
		default:
			out = extremum(a.op, out, x)
		}
	}
	return out
}

// walk calls f for every symbol, in order of appearance.
func (e *expr) walk(f func(name string)) {
	for _, t := range e.terms {
		for _, g := range t.m {
			if g.a.op == opSym {
				f(g.a.name)
			}
			for _, d := range g.a.args {
				if d.kind == dimExpr {
					d.e.walk(f)
				}
			}
		}
	}
}

func (e *expr) symbols() []string {
	var out []string
	e.walk(func(s string) { out = append(out, s) })
	slices.Sort(out)
	return slices.Compact(out)
}

func (e *expr) mentions(env map[string]Dim) bool {
	found := false
	e.walk(func(s string) {
		_, ok := env[s]
		found = found || ok
	})
	return found
}

// boundsPoly returns the interval of p with saturation.
func boundsPoly(p poly) (lo, hi int64) {
	for _, t := range p {
		l, h := boundsMono(t.m)
		if t.c < 0 {
			l, h = h, l
		}
		lo, hi = satAdd(lo, satMul(l, t.c), false), satAdd(hi, satMul(h, t.c), true)
	}
	return lo, hi
}

func boundsMono(m []factor) (lo, hi int64) {
	lo, hi = 1, 1
	for _, f := range m {
		l, h := f.a.bounds()
		if l < 0 {
			if len(m) == 1 && f.pow == 1 {
				return l, h
			}
			return math.MinInt64, math.MaxInt64
		}
		for range f.pow {
			lo, hi = satMul(lo, l), satMul(hi, h)
		}
	}
	return lo, hi
}

func (a *atom) bounds() (lo, hi int64) {
	if a.op == opSym {
		return 0, math.MaxInt64
	}
	lo, hi = a.args[0].Bounds()
	for _, d := range a.args[1:] {
		l, h := d.Bounds()
		switch a.op {
		case opFloor:
			if lo < 0 && l > 0 && l == h { // exact below zero only for constants
				lo, hi = floorSat(lo, l), floorSat(hi, l)
			} else if lo < 0 || l < 0 {
				return math.MinInt64, math.MaxInt64
			} else {
				lo, hi = floorSat(lo, max(h, 1)), floorSat(hi, max(l, 1))
			}
		case opMin:
			lo, hi = min(lo, l), min(hi, h)
		case opMax:
			lo, hi = max(lo, l), max(hi, h)
		case opBroadcast:
			lo, hi = min(lo, l), max(hi, h)
		}
	}
	return lo, hi
}

// floorSat is floorDiv with infinities.
func floorSat(a, b int64) int64 {
	if a == math.MinInt64 || (a == math.MaxInt64 && b < math.MaxInt64) {
		return a
	}
	return floorDiv(a, b)
}

// satAdd adds; the ends of int64 are infinities, of which up selects one if
// both meet.
func satAdd(a, b int64, up bool) int64 {
	inf, other := int64(math.MinInt64), int64(math.MaxInt64)
	if up {
		inf, other = other, inf
	}
	if a == inf || b == inf {
		return inf
	}
	if a == other || b == other {
		return other
	}
	c, ok := addInt(a, b)
	if !ok {
		if a > 0 {
			return math.MaxInt64
		}
		return math.MinInt64
	}
	return c
}

func satMul(a, b int64) int64 {
	c, ok := mulInt(a, b)
	if ok {
		return c
	}
	if (a < 0) != (b < 0) {
		return math.MinInt64
	}
	return math.MaxInt64
}
