package lift

import (
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
)

// In-place updates that the source line of a call shows; in the file every
// operation is functional.

// augmented returns the Python operator that an augmented assignment uses, "+" in
// "+=" for add; "" if there is none.
func augmented(op string) string {
	if aten.Is(op, aten.Augmented) {
		return aten.Symbol(op)
	}
	return ""
}

// inPlaceWritten marks a call that its source line writes in place.
func inPlaceWritten(r *rewriter, i int) bool {
	if !r.writtenInPlace(i) {
		return false
	}
	r.l.InPlace[i] = true
	return true
}

// writtenInPlace reports whether the source line of a call writes it in place.
func (r *rewriter) writtenInPlace(i int) bool {
	n := r.node(i)
	lines := Lines(n)
	if len(lines) == 0 || len(n.Args) == 0 || n.Args[0].Kind != graph.ArgValue {
		return false
	}
	text := lines[len(lines)-1].Text
	return writesMethod(text, opName(n)) || writesFlag(text, opName(n)) || r.augments(i, text)
}

// writesMethod reports whether a line calls an operator only by its name with
// the underscore: "y.add_(x)", "F.leaky_relu_(x)".
func writesMethod(text, op string) bool {
	symbol := augmented(op)
	return called(text, op+"_") && !called(text, op) && (symbol == "" || !strings.Contains(text, " "+symbol+" ") && !strings.Contains(text, symbol+"="))
}

// writesFlag reports whether a line gives an operator inplace=True, and calls
// it once.
func writesFlag(text, op string) bool {
	_, rest, ok := strings.Cut(text, op+"(")
	return ok && called(text, op) && !strings.Contains(rest, op+"(") && strings.Contains(strings.ReplaceAll(rest, " ", ""), "inplace=True")
}

// called reports whether a line calls a function or method of that name.
func called(text, name string) bool {
	for at := 0; ; {
		k := strings.Index(text[at:], name+"(")
		if k < 0 {
			return false
		}
		at += k
		if at > 0 && text[at-1] == '.' {
			return true
		}
		at++
	}
}

// augments reports whether a line is an augmented assignment, "x += y", and the
// call its last. It does not count if the variable began as a number: sum = 0
// and sum += y, which is exported as y + 0.
func (r *rewriter) augments(i int, text string) bool {
	n := r.node(i)
	symbol := augmented(opName(n))
	if symbol == "" || i+1 < len(r.l.Graph.Nodes) && r.node(i+1).MetaValue(keyLines) == n.MetaValue(keyLines) {
		return false
	}
	target, value, ok := strings.Cut(text, " "+symbol+"= ")
	if !ok || strings.ContainsAny(target, " .([,") || strings.HasPrefix(value, "[") {
		return false
	}
	other := argAt(n, 1, "other")
	return other == nil || other.Kind == graph.ArgValue || value != "" && strings.ContainsAny(value[:1], "0123456789-.") || !neutral(opName(n), other)
}

// neutral reports whether a number changes nothing: the initial value of sums
// and products.
func neutral(op string, a *graph.Arg) bool {
	x := a.Float
	if a.Kind == graph.ArgInt {
		x = float64(a.Int)
	}
	return op == "add" && x == 0 || op == "mul" && x == 1
}
