package infer

import (
	"fmt"
	"strings"

	"github.com/memplan/memplan/graph"
)

// mergeDim combines two statements about one dim: it prefers an integer to an
// expression, and a to b. It returns false for two different integers.
func mergeDim(a, b graph.Dim) (graph.Dim, bool) {
	m, aInt := a.Int()
	n, bInt := b.Int()
	switch {
	case aInt && bInt:
		return a, m == n
	case aInt || !b.Known():
		return a, true
	case bInt || !a.Known():
		return b, true
	}
	return a, true
}

// mergeShapes merges dim by dim; a nil shape says nothing.
func mergeShapes(a, b graph.Shape) (graph.Shape, bool) {
	if a == nil {
		return b, true
	}
	if b == nil {
		return a, true
	}
	if len(a) != len(b) {
		return a, false
	}
	out := make(graph.Shape, len(a))
	agree := true
	for i := range a {
		var ok bool
		out[i], ok = mergeDim(a[i], b[i])
		agree = agree && ok
	}
	return out, agree
}

// mergeTypes completes the inferred type t by the declared d. conflict
// describes the first contradiction, in which t is preferred.
func mergeTypes(t, d graph.Type) (merged graph.Type, conflict string) {
	switch {
	case t.Kind == graph.NoType:
		return d, ""
	case d.Kind == graph.NoType:
		return t, ""
	case t.Kind != d.Kind:
		return t, fmt.Sprintf("declared as %s, inferred %s", typeText(d), typeText(t))
	case t.Kind != graph.TensorType && t.Kind != graph.SparseType:
		if t.Of == nil || d.Of == nil {
			if t.Of == nil {
				t.Of = d.Of
			}
			return t, ""
		}
		if t.Kind == graph.SequenceType && t.Of.Kind == graph.TensorType && t.Of.Shape == nil && t.Of.Elem == d.Of.Elem {
			return t, "" // no rank may mean that the items' ranks differ
		}
		of, conflict := mergeTypes(*t.Of, *d.Of)
		t.Of = &of
		return t, conflict
	}
	if t.Elem == graph.Undefined {
		t.Elem = d.Elem
	} else if d.Elem != graph.Undefined && d.Elem != t.Elem {
		return t, fmt.Sprintf("declared as %s, inferred %s", typeText(d), typeText(t))
	}
	shape, ok := fill(t.Shape, d.Shape)
	if !ok {
		conflict = fmt.Sprintf("declared as %s, inferred %s", typeText(d), typeText(t))
	}
	t.Shape = shape
	return t, conflict
}

// fill completes the unknown dims of s by those of d. It returns false if they
// contradict each other.
func fill(s, d graph.Shape) (graph.Shape, bool) {
	if s == nil || d == nil || len(s) != len(d) {
		if s == nil {
			return d, true
		}
		return s, d == nil
	}
	agree, cloned := true, false
	for i := range s {
		if _, ok := mergeDim(s[i], d[i]); !ok {
			agree = false
		}
		if s[i].Known() || !d[i].Known() {
			continue
		}
		if !cloned {
			s, cloned = append(graph.Shape{}, s...), true
		}
		s[i] = d[i]
	}
	return s, agree
}

// joinTypes returns what the types of two alternatives have in common. Dims
// that differ become unknown, ranks that differ an unknown rank.
func joinTypes(a, b graph.Type) graph.Type {
	switch {
	case a.Kind == graph.NoType || b.Kind == graph.NoType:
		return graph.Type{}
	case a.Kind != b.Kind:
		if a.Kind == graph.OptionalType && a.Of != nil {
			of := joinTypes(*a.Of, b)
			a.Of = &of
			return a
		}
		if b.Kind == graph.OptionalType && b.Of != nil {
			return joinTypes(b, a)
		}
		return graph.Type{}
	}
	if a.Kind == graph.SequenceType { // an empty one shows nothing about its items
		if n, ok := a.Len.Int(); ok && n == 0 && b.Of != nil {
			a.Of = b.Of
		}
		if n, ok := b.Len.Int(); ok && n == 0 && a.Of != nil {
			b.Of = a.Of
		}
	}
	if a.Elem != b.Elem {
		a.Elem = graph.Undefined
	}
	a.Shape = joinShapes(a.Shape, b.Shape)
	if !a.Len.Equal(b.Len) {
		a.Len = graph.Dim{}
	}
	if a.Of != nil && b.Of != nil {
		of := joinTypes(*a.Of, *b.Of)
		a.Of = &of
	} else if a.Of == nil {
		a.Of = b.Of
	}
	return a
}

func joinShapes(a, b graph.Shape) graph.Shape {
	if a == nil || b == nil || len(a) != len(b) {
		return nil
	}
	out := make(graph.Shape, len(a))
	for i := range a {
		if a[i].Equal(b[i]) {
			out[i] = a[i]
		}
	}
	return out
}

// tensorOf returns a tensor type.
func tensorOf(elem graph.DType, shape graph.Shape) graph.Type {
	return graph.Type{Kind: graph.TensorType, Elem: elem, Shape: shape}
}

// text writes a shape as [2,batch,?], an unknown rank as [...].
func text(s graph.Shape) string {
	if s == nil {
		return "[...]"
	}
	parts := make([]string, len(s))
	for i, d := range s {
		parts[i] = d.String()
	}
	return "[" + strings.Join(parts, ",") + "]"
}

func typeText(t graph.Type) string {
	of := "?"
	if t.Of != nil {
		of = typeText(*t.Of)
	}
	switch t.Kind {
	case graph.TensorType:
		return t.Elem.String() + text(t.Shape)
	case graph.SparseType:
		return "sparse " + t.Elem.String() + text(t.Shape)
	case graph.SequenceType:
		return "seq(" + of + ")"
	case graph.OptionalType:
		return "optional(" + of + ")"
	case graph.MapType:
		return "map(" + t.Elem.String() + ", " + of + ")"
	}
	return "unknown"
}

// opName returns the operator with its domain, for messages.
func opName(n *graph.Node) string {
	if n.Domain == "" {
		return n.Op
	}
	return n.Domain + "." + n.Op
}

// product multiplies dims; it is unknown if one of them is, unless another is
// 0.
func product(dims []graph.Dim) graph.Dim {
	p := graph.Int(1)
	for _, d := range dims {
		p = p.Mul(d)
	}
	return p
}

// overflows reports whether the integers among dims have a product beyond
// int64.
func overflows(dims []graph.Dim) bool {
	p := graph.Int(1)
	for _, d := range dims {
		if _, ok := d.Int(); ok {
			p = p.Mul(d)
		}
	}
	return !p.Known()
}

func ints(dims ...int64) graph.Shape {
	out := make(graph.Shape, len(dims))
	for i, n := range dims {
		out[i] = graph.Int(n)
	}
	return out
}

// without returns s without the axis.
func without(s graph.Shape, axis int) graph.Shape {
	out := make(graph.Shape, 0, len(s)-1)
	return append(append(out, s[:axis]...), s[axis+1:]...)
}

// with returns s with one dim replaced.
func with(s graph.Shape, axis int, d graph.Dim) graph.Shape {
	out := append(graph.Shape{}, s...)
	out[axis] = d
	return out
}

// concat concatenates shapes; the result is not nil.
func concat(parts ...[]graph.Dim) graph.Shape {
	out := graph.Shape{}
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

// unknownDims returns a shape of n unknown dims.
func unknownDims(n int) graph.Shape { return make(graph.Shape, n) }
