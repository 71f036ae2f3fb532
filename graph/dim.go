package graph

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
)

// A Dim is one dimension, or any integer that shape arithmetic computes: an
// integer, an expression over named symbols, or unknown. The zero Dim is
// unknown. Dims are values: operations return new ones.
//
// Expressions are kept in a normal form (a polynomial with integer
// coefficients over symbols and floor-division, minimum, maximum and broadcast
// atoms), so that Equal recognises N*4/4 = N, X+c-X = c, ceil(H/2) =
// floor((H+1)/2) and floor(floor(H/2)/2) = floor(H/4); what the normal form
// leaves apart, such as H - H//2, Equal still compares. Symbols stand for
// dimensions, so simplification may assume that a symbol is not negative and
// that a divisor is not zero.
//
// An operation is unknown when an operand is, when a constant leaves int64,
// when the divisor is zero, or when the expression outgrows a fixed size.
// Operations on integers do not allocate. Compare Dims with Equal.
type Dim struct {
	_    [0]func() // not comparable with ==: equal expressions have distinct pointers
	kind dimKind
	n    int64
	e    *expr
}

type dimKind uint8

const (
	dimUnknown dimKind = iota
	dimInt
	dimExpr
)

// Int returns the constant dim n.
func Int(n int64) Dim { return Dim{kind: dimInt, n: n} }

// Sym returns the symbol called name. The name is taken as it is; ParseDim
// reads expressions.
func Sym(name string) Dim {
	return fromAtom(&atom{op: opSym, name: name, key: quoteSym(name), at: sampleSym(name)})
}

// Known reports whether d is an integer or an expression.
func (d Dim) Known() bool { return d.kind != dimUnknown }

// Int returns d as an integer, or false.
func (d Dim) Int() (int64, bool) { return d.n, d.kind == dimInt }

// Symbol returns the name of d if d is a lone symbol.
func (d Dim) Symbol() (string, bool) {
	if a := d.loneAtom(); a != nil && a.op == opSym {
		return a.name, true
	}
	return "", false
}

// Equal reports whether d and e are the same expression, or can be shown to
// have the same value everywhere. Two unknown dims are not known to be equal.
func (d Dim) Equal(e Dim) bool {
	switch {
	case d.kind == dimUnknown || e.kind == dimUnknown:
		return false
	case d.kind == dimInt && e.kind == dimInt:
		return d.n == e.n
	case d.same(e):
		return true
	}
	x, y := d.samples(), e.samples()
	return x.ok && x == y && d.sub(e).folded().isInt(0)
}

// same reports whether d and e, which are known, have one normal form.
func (d Dim) same(e Dim) bool {
	return d.kind == e.kind && (d.kind == dimInt && d.n == e.n || d.kind == dimExpr && (d.e == e.e || d.e.key == e.e.key))
}

// Add returns d + e.
func (d Dim) Add(e Dim) Dim {
	switch {
	case d.kind == dimInt && e.kind == dimInt:
		n, ok := addInt(d.n, e.n)
		return checked(n, ok)
	case d.kind == dimUnknown || e.kind == dimUnknown:
		return Dim{}
	case d.kind == dimInt && d.n == 0:
		return e
	case e.kind == dimInt && e.n == 0:
		return d
	}
	return fromPoly(addPoly(d.poly(), e.poly(), 1))
}

// Sub returns d - e.
func (d Dim) Sub(e Dim) Dim { return d.sub(e).folded() }

// sub is Sub with the normal form only.
func (d Dim) sub(e Dim) Dim {
	switch {
	case d.kind == dimInt && e.kind == dimInt:
		n, ok := subInt(d.n, e.n)
		return checked(n, ok)
	case d.kind == dimUnknown || e.kind == dimUnknown:
		return Dim{}
	case e.kind == dimInt && e.n == 0:
		return d
	}
	return fromPoly(addPoly(d.poly(), e.poly(), -1))
}

// Mul returns d * e.
func (d Dim) Mul(e Dim) Dim {
	switch {
	case d.kind == dimInt && e.kind == dimInt:
		n, ok := mulInt(d.n, e.n)
		return checked(n, ok)
	case d.isInt(0) || e.isInt(0):
		return Int(0) // even for an unknown dim, which is still some number
	case d.kind == dimUnknown || e.kind == dimUnknown:
		return Dim{}
	case d.isInt(1):
		return e
	case e.isInt(1):
		return d
	}
	return fromPoly(mulPoly(d.poly(), e.poly()))
}

// Neg returns -d.
func (d Dim) Neg() Dim { return Int(0).Sub(d) }

// FloorDiv returns d/e rounded towards negative infinity.
func (d Dim) FloorDiv(e Dim) Dim {
	switch {
	case d.kind == dimUnknown || e.kind == dimUnknown || e.isInt(0):
		return Dim{}
	case e.isInt(1):
		return d
	case d.kind == dimInt && e.kind == dimInt:
		if d.n == math.MinInt64 && e.n == -1 {
			return Dim{}
		}
		return Int(floorDiv(d.n, e.n))
	case d.isInt(0):
		return d
	}
	return floorDivPoly(d.poly(), e.poly())
}

// CeilDiv returns d/e rounded towards positive infinity.
func (d Dim) CeilDiv(e Dim) Dim {
	if c, ok := e.Int(); ok && c > 0 {
		return d.Add(Int(c - 1)).FloorDiv(e)
	}
	return d.Neg().FloorDiv(e).Neg()
}

// Mod returns d - e*floor(d/e): the remainder with the sign of e.
func (d Dim) Mod(e Dim) Dim { return d.Sub(e.Mul(d.FloorDiv(e))) }

// Min returns the smaller of d and e.
func (d Dim) Min(e Dim) Dim { return extremum(opMin, d, e) }

// Max returns the larger of d and e.
func (d Dim) Max(e Dim) Dim { return extremum(opMax, d, e) }

// Broadcast returns the extent of two broadcast dims: the other one if one is
// 1, else either. It assumes that they are compatible; for two different
// integers neither of which is 1 the result is unknown.
func (d Dim) Broadcast(e Dim) Dim { return broadcast(d, e) }

// Bounds returns the least and the greatest value d may have when every
// symbol is at least 0, saturated at the ends of int64. They need not be
// attained.
func (d Dim) Bounds() (lo, hi int64) {
	switch d.kind {
	case dimInt:
		return d.n, d.n
	case dimExpr:
		return boundsPoly(d.e.terms)
	}
	return math.MinInt64, math.MaxInt64
}

// Eval substitutes env for the symbols. It returns an error that names the
// symbol for an unbound symbol, and errors for overflow, a zero divisor and
// dims that do not broadcast.
func (d Dim) Eval(env map[string]int64) (int64, error) {
	switch d.kind {
	case dimInt:
		return d.n, nil
	case dimExpr:
		return evalPoly(d.e.terms, env)
	}
	return 0, fmt.Errorf("dim is unknown")
}

// Subst replaces symbols by the dims of env; symbols not in env remain.
func (d Dim) Subst(env map[string]Dim) Dim {
	if d.kind != dimExpr || len(env) == 0 || !d.e.mentions(env) {
		return d
	}
	return substPoly(d.e.terms, env)
}

// Symbols returns the names of the symbols in d, sorted, each once.
func (d Dim) Symbols() []string {
	if d.kind != dimExpr {
		return nil
	}
	return d.e.symbols()
}

// String returns the expression, "?" when unknown. ParseDim reads it back,
// unless d is a lone symbol whose name is not an identifier.
func (d Dim) String() string {
	switch d.kind {
	case dimInt:
		return strconv.FormatInt(d.n, 10)
	case dimExpr:
		if s, ok := d.Symbol(); ok {
			return s
		}
		return d.e.key
	}
	return "?"
}

// MarshalJSON writes a number, a string (an expression) or null (unknown).
func (d Dim) MarshalJSON() ([]byte, error) {
	switch d.kind {
	case dimInt:
		return strconv.AppendInt(nil, d.n, 10), nil
	case dimExpr:
		return json.Marshal(d.String())
	}
	return []byte("null"), nil
}

// UnmarshalJSON reads what MarshalJSON writes; a string that is not an
// expression becomes a symbol.
func (d *Dim) UnmarshalJSON(b []byte) error {
	var n *int64
	if json.Unmarshal(b, &n) == nil {
		*d = Dim{}
		if n != nil {
			*d = Int(*n)
		}
		return nil
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("dim %s is neither a number, a string nor null", b)
	}
	e, err := ParseDim(s)
	if err != nil {
		e = Sym(s)
	}
	*d = e
	return nil
}

func (d Dim) isInt(n int64) bool { return d.kind == dimInt && d.n == n }

// loneAtom returns the atom d consists of, or nil.
func (d Dim) loneAtom() *atom {
	if d.kind != dimExpr || len(d.e.terms) != 1 {
		return nil
	}
	t := d.e.terms[0]
	if t.c != 1 || len(t.m) != 1 || t.m[0].pow != 1 {
		return nil
	}
	return t.m[0].a
}

func checked(n int64, ok bool) Dim {
	if !ok {
		return Dim{}
	}
	return Int(n)
}

func addInt(a, b int64) (int64, bool) {
	c := a + b
	return c, (c > a) == (b > 0)
}

func subInt(a, b int64) (int64, bool) {
	c := a - b
	return c, (c < a) == (b > 0)
}

func mulInt(a, b int64) (int64, bool) {
	if a == 0 || b == 0 {
		return 0, true
	}
	c := a * b
	if (c < 0) != ((a < 0) != (b < 0)) || c/b != a || (a == -1 && b == math.MinInt64) || (b == -1 && a == math.MinInt64) {
		return 0, false
	}
	return c, true
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b != 0 && (a < 0) != (b < 0) {
		q--
	}
	return q
}
