package lift

import (
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
)

// Updates in place that the source line of a call shows. The file has every
// operation in its functional form.

// augmented is the symbol of Python's assignment that calls an operator on tensors, in
// place; "" for none.
func augmented(op string) string {
	if aten.Is(op, aten.Augmented) {
		return aten.Symbol(op)
	}
	return ""
}

// inPlaceWritten marks a call whose source line writes it in place.
func inPlaceWritten(r *rewriter, i int) bool {
	if !r.writtenInPlace(i) {
		return false
	}
	r.l.InPlace[i] = true
	return true
}

// writtenInPlace tells whether the source line of a call writes it in place.
func (r *rewriter) writtenInPlace(i int) bool {
	n := r.node(i)
	lines := Lines(n)
	if len(lines) == 0 || len(n.Args) == 0 || n.Args[0].Kind != graph.ArgValue {
		return false
	}
	text := lines[len(lines)-1].Text
	return writesMethod(text, opName(n)) || writesFlag(text, opName(n)) || r.augments(i, text)
}

// writesMethod tells whether a line calls an operator by the name with the
// underscore, and not in another way, too: "y.add_(x)", "F.leaky_relu_(x)".
func writesMethod(text, op string) bool {
	symbol := augmented(op)
	return called(text, op+"_") && !called(text, op) && (symbol == "" || !strings.Contains(text, " "+symbol+" ") && !strings.Contains(text, symbol+"="))
}

// writesFlag tells whether a line gives an operator inplace=True, and calls it
// once.
func writesFlag(text, op string) bool {
	_, rest, ok := strings.Cut(text, op+"(")
	return ok && called(text, op) && !strings.Contains(rest, op+"(") && strings.Contains(strings.ReplaceAll(rest, " ", ""), "inplace=True")
}

// called tells whether a line calls a function or method of that name.
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

// augments tells whether a line is "x += y" or its like, and the call the last
// of it. A variable that began as a number is given a new value: sum = 0 and
// sum += y, which is exported as y + 0.
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

// neutral tells whether a number changes nothing: what sums and products begin
// with.
func neutral(op string, a *graph.Arg) bool {
	x := a.Float
	if a.Kind == graph.ArgInt {
		x = float64(a.Int)
	}
	return op == "add" && x == 0 || op == "mul" && x == 1
}
