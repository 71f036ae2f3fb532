package graph

import (
	"fmt"
	"strconv"
)

// A Dim is one dimension: an integer, an expression over named symbols, or
// unknown. The zero Dim is unknown. Dims are values: operations return new
// ones.
type Dim struct {
	kind dimKind
	n    int64
	sym  string
}

type dimKind uint8

const (
	dimUnknown dimKind = iota
	dimInt
	dimSym
)

// Int returns the constant dim n.
func Int(n int64) Dim { return Dim{kind: dimInt, n: n} }

// Sym returns the symbol name.
func Sym(name string) Dim { return Dim{kind: dimSym, sym: name} }

// Known reports whether d is an integer or an expression.
func (d Dim) Known() bool { return d.kind != dimUnknown }

// Int returns d as an integer, or false.
func (d Dim) Int() (int64, bool) { return d.n, d.kind == dimInt }

// Equal reports whether d and e are the same expression. Two unknown dims are
// not known to be equal.
func (d Dim) Equal(e Dim) bool { return d.kind != dimUnknown && d == e }

// Eval substitutes env for the symbols.
func (d Dim) Eval(env map[string]int64) (int64, error) {
	switch d.kind {
	case dimInt:
		return d.n, nil
	case dimSym:
		if n, ok := env[d.sym]; ok {
			return n, nil
		}
		return 0, fmt.Errorf("dim %q is unbound", d.sym)
	}
	return 0, fmt.Errorf("dim is unknown")
}

// String returns the expression, "?" when unknown.
func (d Dim) String() string {
	switch d.kind {
	case dimInt:
		return strconv.FormatInt(d.n, 10)
	case dimSym:
		return d.sym
	}
	return "?"
}
