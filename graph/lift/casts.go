package lift

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/python"
)

// namedCasts restores calls of type_as. The exporter drops a call whose result is its
// operand but gives that value the call's name: a value type_as_3 made by mul_67 was
// cast to the type of another tensor. The file does not say which; it is taken to be
// the module's argument.
func (r *rewriter) namedCasts() {
	module, with := "", graph.NoValue // first outside value read by consecutive calls of a module
	for i := range r.l.Graph.Nodes {
		n := r.node(i)
		if n.Module != module || i == 0 {
			module, with = n.Module, graph.NoValue
		}
		if with < 0 {
			with = r.foreign(n)
		}
		if with < 0 || len(n.Outputs) != 1 || n.Outputs[0] < 0 || strings.HasPrefix(n.Name, "type_as") || !strings.HasPrefix(r.l.Graph.Values[n.Outputs[0]].Name, "type_as") {
			continue
		}
		r.typedAs(i, with)
		r.widenNamed(i, with)
	}
	r.splice()
	clear(r.before)
	clear(r.after)
	r.count()
}

// widenNamed casts the operand of a normalisation to float32 if the result, of call i, is
// cast back to the operand's type and no line shows the first cast, as in
// F.layer_norm(x.float(), ...) over several lines: casting back would have no effect unless
// the function computed in another type. Other functions cast back without need.
func (r *rewriter) widenNamed(i int, with graph.ValueID) {
	from := i
	for from > 0 && r.sameFrame(from-1, i) && !r.restarts(from-1, i) {
		from--
	}
	class, text := r.l.Classes[i], r.statement(i)
	root := strings.Contains(text, "rms_norm(") // which the exporter takes apart, its cast included
	if !strings.Contains(class, "Norm") || python.KnownNorms.Of(class) || root && !strings.HasSuffix(text, "(") {
		return
	}
	if lines := Lines(r.node(i)); len(lines) == 0 || r.onlyOperand(from, i+1) != with {
		return
	} else if slices.ContainsFunc(lines[:len(lines)-1], func(l Line) bool { return strings.Contains(l.Text, "type_as") }) {
		return
	}
	for j := from; j <= i; j++ {
		if mayCast(r.statement(j)) {
			return
		}
	}
	wide := r.widened(from, with)
	r.replaceIn(from, i+1, with, wide)
	if root { // a class of its own around torch.nn.functional.rms_norm: no line shows the cast
		r.assume(wide)
	}
	for j := from; j <= i; j++ {
		n := r.node(j)
		if op := opName(n); op != "layer_norm" && op != "group_norm" && op != "native_layer_norm" {
			continue
		}
		for _, id := range slices.Clone(n.Inputs) { // PyTorch refuses parameters of another type
			if r.l.Roles[id] == Parameter {
				r.replaceIn(j, j+1, id, r.widened(j, id))
			}
		}
	}
}

// foreign returns the first floating-point operand of a call that comes from outside
// its module; NoValue if there is none.
func (r *rewriter) foreign(n *graph.Node) graph.ValueID {
	for _, in := range n.Inputs {
		if d := r.def[in]; r.l.Roles[in] == Unknown && r.l.Graph.Values[in].Type.Elem.IsFloat() && (d < 0 || r.node(int(d)).Module != n.Module) {
			return in
		}
	}
	return graph.NoValue
}

// moduleCasts restores the casts of modules' results, self.drop(p).to(v.dtype), from
// the lines inside which the module's calls are. A statement ends with the last call
// that has its line among its frames.
func (r *rewriter) moduleCasts() {
	var open []Line
	last, trace := -1, ""
	for i := range r.l.Graph.Nodes {
		text := r.node(i).MetaValue(keyLines)
		if text == "" {
			continue
		}
		if text == trace {
			last = i
			continue
		}
		lines := Lines(r.node(i))
		r.closed(open, lines, last)
		open, last, trace = lines, i, text
	}
	r.closed(open, nil, last)
}

// closed casts the results of statements that end before the next call.
func (r *rewriter) closed(open, next []Line, last int) {
	d := 0
	for d < len(open) && d < len(next) && open[d] == next[d] {
		d++
	}
	for ; d < len(open)-1; d++ {
		if e := parsePy(open[d].Text); strings.Contains(open[d].Text, "dtype") && e != nil && e.ofModule() && len(r.after[last]) == 0 {
			if like := r.partner(last); like >= 0 {
				r.typedAs(last, like)
			}
		}
	}
}

// partner returns the tensor, made before call i, that multiplies its result; NoValue
// if there is none.
func (r *rewriter) partner(i int) graph.ValueID {
	if len(r.node(i).Outputs) != 1 {
		return graph.NoValue
	}
	out := r.node(i).Outputs[0]
	for j := i + 1; j < min(i+maxAfter, len(r.l.Graph.Nodes)); j++ {
		n := r.node(j)
		if !slices.Contains(n.Inputs, out) {
			continue
		}
		if op := opName(n); len(n.Inputs) == 2 && (op == "matmul" || op == "bmm") {
			for _, in := range n.Inputs {
				if d := r.def[in]; in != out && r.l.Roles[in] == Unknown && d >= 0 && int(d) < i {
					return in
				}
			}
		}
		return graph.NoValue
	}
	return graph.NoValue
}

// maxAfter is how many calls ahead the first reader of a result is sought.
const maxAfter = 16
