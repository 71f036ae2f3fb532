package lift

import (
	"regexp"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/python"
)

// unshown records floating-point tensors of calls in a model's own classes whose types
// code without a line in the file may decide: the exporter keeps only lines of
// functions named forward, and of those only lines that make calls. Such code may be
// in functions other than forward; beside a variable that holds a parameter, assigned
// by a line without a call; or in a normalisation with a missing statement.
func (s *sources) unshown() {
	s.r.l.Unshown = map[graph.ValueID]bool{}
	for from := 0; from < len(s.lines); {
		to := from + 1
		for to < len(s.lines) && s.r.sameFrame(from, to) && !s.r.restarts(from, to) {
			to++
		}
		if len(s.lines[from]) > 0 && !python.KnownNorms.Of(s.r.l.Classes[from]) && !s.widens(from, to) {
			s.noteUnshown(from, to)
		}
		from = to
	}
}

// widens reports whether a line of the calls casts something other than a
// parameter to float32.
func (s *sources) widens(from, to int) bool {
	if _, ok := s.hidden[from]; ok {
		return true
	}
	for i := from; i < to; i++ {
		text := s.r.statement(i)
		if AutocastOff(s.r.node(i)) {
			return true
		}
		if !strings.Contains(text, "float") {
			continue
		}
		if e := parsePy(text); e != nil && slices.ContainsFunc(e.calls(nil), func(c *pyExpr) bool { return c.cast() == "float32" && !c.kids[0].parameter() }) {
			return true
		}
	}
	return false
}

// noteUnshown records the tensors of the calls [from, to) of one frame.
func (s *sources) noteUnshown(from, to int) {
	if s.namesParameter(from, to) || s.missesLine(from, to) {
		s.note(from, to)
		return
	}
	for i := from; i < to; {
		j := i + 1
		for j < to && s.line(j) == s.line(i) {
			j++
		}
		if s.helper(i, j) {
			s.note(i, j)
		}
		i = j
	}
}

// line returns the innermost line of a call.
func (s *sources) line(i int) Line { return s.lines[i][len(s.lines[i])-1] }

// note adds the tensors that calls read and make.
func (s *sources) note(from, to int) {
	for i := from; i < to; i++ {
		n := s.r.node(i)
		for _, id := range slices.Concat(n.Inputs, n.Outputs) {
			if id >= 0 && s.r.l.Roles[id] == Unknown && s.r.l.Graph.Values[id].Type.Elem == graph.Float32 {
				s.r.l.Unshown[id] = true
			}
		}
	}
}

// calledName matches calls of functions that are neither methods of a tensor nor a
// library's: act(x), self.act(x).
var calledName = regexp.MustCompile(`(?:^|[^.\w])(?:self\.)?([A-Za-z_]\w*)\(`)

// builtins are Python's functions that occur in lines with calls.
var builtins = []string{"super", "len", "range", "zip", "enumerate", "list", "tuple", "dict", "max", "min", "sum", "int", "float", "isinstance", "getattr", "map", "reversed", "print", "if", "in", "and", "or", "not"}

// helper reports whether the calls [from, to) of one line run a precise operator
// in a function of the model that has no line of its own.
func (s *sources) helper(from, to int) bool {
	text := s.line(from).Text
	own := false
	for _, m := range calledName.FindAllStringSubmatch(text, -1) {
		own = own || !slices.Contains(builtins, m[1])
	}
	if !own {
		return false
	}
	for i := from; i < to; i++ {
		names := aten.Precise(opName(s.r.node(i)))
		if names != nil && !slices.ContainsFunc(names, func(name string) bool { return strings.Contains(text, name) }) {
			return true
		}
	}
	return false
}

// namesParameter reports whether a line reads a parameter through a variable in an
// operator that takes tensors of two types.
func (s *sources) namesParameter(from, to int) bool {
	for i := from; i < to; i++ {
		n := s.r.node(i)
		op := opName(n)
		if op != "mul" && op != "add" && op != "div" && op != "sub" {
			continue
		}
		e := parsePy(s.line(i).Text)
		if e == nil {
			continue
		}
		for _, id := range n.Inputs {
			if s.r.l.Roles[id] == Parameter && !e.readsMember() {
				return true
			}
		}
	}
	return false
}

// readsMember reports whether the expression has a dotted name, or a call of
// something that may have one.
func (e *pyExpr) readsMember() bool {
	if !e.call && strings.Contains(e.text, ".") && e.text != "" && (e.text[0] < '0' || e.text[0] > '9') || e.call && (e.self || len(e.kids) > 0 && e.kids[0].text == "self") {
		return true
	}
	return slices.ContainsFunc(e.kids, (*pyExpr).readsMember)
}

// missesLine reports whether a normalisation lacks a statement of one line that makes
// no call, between what is divided by the root and what reads it.
func (s *sources) missesLine(from, to int) bool {
	root, mean := false, false
	for i := from; i+1 < to; i++ {
		op := opName(s.r.node(i))
		root = root || op == "rsqrt" || op == "sqrt" || op == "std"
		mean = mean || op == "mean" || op == "var" || op == "sum" || op == "std"
		a, b := s.line(i), s.line(i+1)
		if root && mean && b.Number == a.Number+2 && parsePy(a.Text) != nil {
			return true
		}
	}
	return false
}

// loraCasts casts the argument of LoRA's first layer to the type of its weights, as
// PEFT does before the dropout: under autocast its dropout runs in float32.
func (r *rewriter) loraCasts() {
	for i := range r.l.Graph.Nodes {
		n := r.node(i)
		if opName(n) != "linear" || len(n.Args) < 2 || n.Args[0].Kind != graph.ArgValue || n.Args[1].Kind != graph.ArgValue || !loraFirst(n.Module) {
			continue
		}
		at, like := n, n.Args[1].Value
		if p := r.producer(&n.Args[0]); p != nil && strings.Contains(opName(p), "dropout") && len(p.Args) > 0 && p.Args[0].Kind == graph.ArgValue {
			at = p
		}
		id := r.insert(r.before, int(at.ID), "type_as.default", at.Args[0], valueArg(like))
		at.Args[0].Value = id
		r.relink(at)
		if !slices.ContainsFunc(pyList(n.MetaValue(keyClasses)), python.PEFT.Of) {
			r.assume(id)
		}
	}
}

// loraFirst reports whether a module is the first of a LoRA's two layers:
// q.lora_A.default.
func loraFirst(module string) bool {
	return slices.ContainsFunc(strings.Split(module, "."), func(part string) bool {
		return strings.EqualFold(part, "lora_a") || strings.EqualFold(part, "lora_down")
	})
}

// assume records the result of a cast that the code probably makes.
func (r *rewriter) assume(id graph.ValueID) {
	if r.l.Assumed == nil {
		r.l.Assumed = map[graph.ValueID]bool{}
	}
	r.l.Assumed[id] = true
}
