package lift

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/python"
)

// statement returns the statement of call i, "" if no line shows it.
func (r *rewriter) statement(i int) string {
	lines := Lines(r.node(i))
	if len(lines) == 0 {
		return ""
	}
	l := lines[len(lines)-1]
	if whole, ok := wholeStatement(l, castRows(l), r.l.Classes[i]); ok {
		return whole
	}
	return l.Text
}

// hiddenCasts widens a function's argument if a statement without a call must have
// done so: x = x.float(). The function's normalisation is cast back to a type that a
// variable names (return self.weight * x.to(input_dtype)), which has no effect unless
// it was computed in another type, and no line shows the first cast. It returns what
// was widened, by the first call of each function.
func (r *rewriter) hiddenCasts() map[int]graph.ValueID {
	hidden := map[int]graph.ValueID{}
	for from := 0; from < len(r.l.Graph.Nodes); {
		to := from + 1
		for to < len(r.l.Graph.Nodes) && r.sameFrame(from, to) && !r.restarts(from, to) {
			to++
		}
		if r.castsBack(from, to) {
			if x := r.onlyOperand(from, to); x >= 0 {
				r.replaceIn(from, to, x, r.widened(from, x))
				hidden[from] = x
			}
		}
		from = to
	}
	return hidden
}

// assignedNorms casts the result of a subclass of LayerNorm to the type of its
// argument, if its forward only calls layer_norm and assigns the result instead of
// returning it: the next line is then x.to(orig_type), the purpose of such classes
// (open_clip, CLIP and their copies), or nothing. Libraries whose classes are known to
// return the result unchanged are left out.
func (r *rewriter) assignedNorms() {
	for i := range r.l.Graph.Nodes {
		n := r.node(i)
		if op := opName(n); op != "layer_norm" && op != "native_layer_norm" || len(n.Args) == 0 || n.Args[0].Kind != graph.ArgValue || len(n.Outputs) == 0 {
			continue
		}
		class := ownerClass(n)
		name := class[strings.LastIndexByte(class, '.')+1:]
		if !strings.Contains(name, "LayerNorm") || class != r.l.Classes[i] || python.KnownNorms.Of(class) || i > 0 && r.sameFrame(i-1, i) || i+1 < len(r.l.Graph.Nodes) && r.sameFrame(i, i+1) {
			continue
		}
		lines := Lines(n)
		if len(lines) > 1 && strings.Contains(lines[len(lines)-2].Text, "super().forward(") {
			lines = lines[:len(lines)-1]
		}
		if len(lines) == 0 || !assigns(lines[len(lines)-1].Text) || len(r.after[i]) > 0 {
			continue
		}
		made := n.Outputs[0]
		r.typedAs(i, n.Args[0].Value)
		r.assume(made)
	}
}

// assigns reports whether a line assigns a variable the result of one call on it,
// without a cast.
func assigns(text string) bool {
	target, value, ok := strings.Cut(text, " = ")
	if !ok || strings.ContainsAny(target, " .([,") {
		return false
	}
	e := parsePy(value)
	return e != nil && e.call && e.cast() == ""
}

// sameFrame reports whether one call of a function of the model makes both
// calls.
func (r *rewriter) sameFrame(i, j int) bool {
	m, n := r.node(i), r.node(j)
	if m.Module != n.Module {
		return false
	}
	if trace := m.MetaValue(keyLines); trace != "" && trace == n.MetaValue(keyLines) {
		return true
	}
	a, b := Lines(m), Lines(n)
	if len(a) == 0 || len(a) != len(b) {
		return false
	}
	last := len(a) - 1
	return slices.Equal(a[:last], b[:last]) && a[last].File == b[last].File
}

// restarts reports whether call j begins another run of the function that call i
// begins.
func (r *rewriter) restarts(i, j int) bool {
	a, b, c := Lines(r.node(i)), Lines(r.node(j-1)), Lines(r.node(j))
	number := func(l []Line) int { return l[len(l)-1].Number }
	return len(a) > 0 && len(b) > 0 && len(c) > 0 && number(c) < number(b) && number(c) == number(a)
}

// castsBack reports whether a range of calls is a normalisation with a cast to a
// type named by a variable, but without a cast of anything but a parameter to
// float32.
func (r *rewriter) castsBack(from, to int) bool {
	if python.WideNorms.Of(r.l.Classes[from]) { // wideRMSNorm restores the casts of these
		return false
	}
	root, back := false, false
	for i := from; i < to; i++ {
		op := opName(r.node(i))
		root = root || op == "rsqrt" || op == "sqrt" || op == "var" || op == "std"
		text := r.statement(i)
		if !strings.Contains(text, "type") && !strings.Contains(text, "float") {
			continue
		}
		e := parsePy(text)
		if e == nil {
			return false
		}
		for _, c := range e.calls(nil) {
			switch to := c.cast(); {
			case to == "float32" && !c.kids[0].parameter(), c.text == "type_as", strings.Contains(to, "."):
				return false
			case to != "" && to != "float32":
				back = true
			}
		}
	}
	return root && back
}

// onlyOperand returns the only float32 tensor, apart from parameters, that calls read
// and do not make themselves; NoValue if there is none or more than one.
func (r *rewriter) onlyOperand(from, to int) graph.ValueID {
	id := graph.NoValue
	for i := from; i < to; i++ {
		for _, in := range r.node(i).Inputs {
			v := &r.l.Graph.Values[in]
			if d := r.def[in]; r.l.Roles[in] != Unknown || v.Type.Elem != graph.Float32 || len(v.Type.Shape) == 0 || int(d) >= from || in == id {
				continue
			}
			if id >= 0 {
				return graph.NoValue
			}
			id = in
		}
	}
	return id
}

// replaceIn makes the calls [from, to) read with instead of old.
func (r *rewriter) replaceIn(from, to int, old, with graph.ValueID) {
	for i := from; i < to; i++ {
		n := r.node(i)
		r.operands(n.Args, func(a *graph.Arg) {
			if a.Value == old {
				a.Value = with
			}
		})
		r.relink(n)
	}
}
