package lift

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
)

// namedCasts puts calls of type_as back. The exporter drops a call whose result is
// its operand, and gives that operand's value the name of the call: a value type_as_3
// that mul_67 makes was cast to the type of another one. Which one the file does not
// say: what the module is called with.
func (r *rewriter) namedCasts() {
	module, with := "", graph.NoValue // what the calls in a row read first that others compute
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
	}
	r.splice()
	clear(r.before)
	clear(r.after)
	r.count()
}

// foreign is the first floating-point tensor among a call's operands that its
// module neither computes nor has; NoValue for none.
func (r *rewriter) foreign(n *graph.Node) graph.ValueID {
	for _, in := range n.Inputs {
		if d := r.def[in]; r.l.Roles[in] == Unknown && r.l.Graph.Values[in].Type.Elem.IsFloat() && (d < 0 || r.node(int(d)).Module != n.Module) {
			return in
		}
	}
	return graph.NoValue
}

// A cast of float32 to float32 leaves no call in a file, so that x.float() and
// x.to(y.dtype) are gone from the export of a float32 model, and do something where
// the model runs in half precision. The source lines of the calls around them still
// have them. sourceCasts puts them back where a line shows which call's operand, or
// whose result, they stand at; what it cannot tell it leaves alone.
func (r *rewriter) sourceCasts() {
	wide := map[string]graph.ValueID{} // what a module widened last
	shared := map[graph.ValueID]graph.ValueID{}
	hidden := r.hiddenCasts()
	r.assignedNorms()
	for i := 0; i < len(r.l.Graph.Nodes); {
		if x, ok := hidden[i]; ok {
			wide[r.node(i).Module] = x
		}
		text := r.statement(i)
		j := i + 1
		for j < len(r.l.Graph.Nodes) && text != "" && r.node(j).Module == r.node(i).Module && r.statement(j) == text {
			j++
		}
		if text != "" && !normalises(r.l.Classes[i]) {
			if e := parsePy(text); e != nil && e.casts() {
				s := &castLine{r: r, at: i, end: j, wide: wide, shared: shared}
				s.line(e)
			}
		}
		i = j
	}
}

// statement is the statement that call i stands in, "" where no line says.
func (r *rewriter) statement(i int) string {
	lines := Lines(r.node(i))
	if len(lines) == 0 {
		return ""
	}
	return castStatement(lines[len(lines)-1], r.l.Classes[i])
}

// hiddenCasts widens what a function is called with where a statement without a call
// must have: x = x.float(). Its normalisation is cast back to a type that a variable
// names (return self.weight * x.to(input_dtype)), which does nothing unless it was
// computed in another one, and no line of it shows where that begins. It returns what
// was widened, by the first calls of the functions.
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

// assignedNorms casts what a subclass of LayerNorm returns to the type of what it is
// called with, where its forward makes no call but layer_norm's and names the result
// rather than returning it: what follows is x.to(orig_type), for which such classes are
// written (open_clip, CLIP and those that copied it), or nothing. Libraries whose
// classes are known to return it as it is are left out.
func (r *rewriter) assignedNorms() {
	for i := range r.l.Graph.Nodes {
		n := r.node(i)
		if op := opName(n); op != "layer_norm" && op != "native_layer_norm" || len(n.Args) == 0 || n.Args[0].Kind != graph.ArgValue || len(n.Outputs) == 0 {
			continue
		}
		class := ownerClass(n)
		name := class[strings.LastIndexByte(class, '.')+1:]
		if !strings.Contains(name, "LayerNorm") || class != r.l.Classes[i] || knownNorms(class) || i > 0 && r.sameFrame(i-1, i) || i+1 < len(r.l.Graph.Nodes) && r.sameFrame(i, i+1) {
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
		if r.l.Assumed == nil {
			r.l.Assumed = map[graph.ValueID]bool{}
		}
		r.l.Assumed[made] = true
	}
}

// knownNorms reports classes of libraries that return what layer_norm makes.
func knownNorms(class string) bool {
	for _, p := range []string{"torch.", "timm.", "transformers.", "diffusers.", "torchvision.", "monai."} {
		if strings.HasPrefix(class, p) {
			return true
		}
	}
	return false
}

// assigns reports a line that gives a variable the result of one call on it, without a
// cast of that.
func assigns(text string) bool {
	target, value, ok := strings.Cut(text, " = ")
	if !ok || strings.ContainsAny(target, " .([,") {
		return false
	}
	e := parsePy(value)
	return e != nil && e.call && e.cast() == ""
}

// sameFrame reports two calls that one call of a function of the model's makes.
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

// restarts reports a call where the function that call i begins is called once more.
func (r *rewriter) restarts(i, j int) bool {
	a, b, c := Lines(r.node(i)), Lines(r.node(j-1)), Lines(r.node(j))
	number := func(l []Line) int { return l[len(l)-1].Number }
	return len(a) > 0 && len(b) > 0 && len(c) > 0 && number(c) < number(b) && number(c) == number(a)
}

// castsBack reports calls of a normalisation with a cast to a type that a variable
// names, none of which shows a cast of anything but a parameter to float32.
func (r *rewriter) castsBack(from, to int) bool {
	if normalises(r.l.Classes[from]) {
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

// onlyOperand is the one floating-point tensor that calls read and do not make,
// parameters aside; NoValue for none and for several.
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

// replaceIn has calls read one value in place of another.
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

// moduleCasts puts the casts of modules' results back: self.drop(p).to(v.dtype),
// whose calls stand in lines of the module. A statement ends with the last call that
// has its line on the way.
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

// closed casts what the statements return that the next call is not in.
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

// partner is the tensor that the result of call i is multiplied with, made before
// it; NoValue for none.
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

// maxAfter is how many calls later the first reader of a result is looked for.
const maxAfter = 16

// normalises are the classes of transformers whose casts wideRMSNorm knows, also
// those that no line shows.
func normalises(class string) bool {
	return strings.HasPrefix(class, "transformers.") && (strings.HasSuffix(class, "RMSNorm") || strings.HasSuffix(class, "T5LayerNorm"))
}

// A castLine puts back the casts of one statement, whose calls are [at, end).
type castLine struct {
	r       *rewriter
	at, end int
	wide    map[string]graph.ValueID
	shared  map[graph.ValueID]graph.ValueID // what variables name: the cast of each value
	named   map[string]graph.ValueID        // values by the variables that the line widens
}

// line binds the expression's operators to calls, in the order that Python
// evaluates them, and puts the casts at their operands and results back.
func (s *castLine) line(e *pyExpr) {
	s.named = map[string]graph.ValueID{}
	calls := e.calls(nil)
	k := s.at
	for n, c := range calls {
		switch {
		case c.cast() != "":
			continue
		case k < s.end && c.makes(opName(s.r.node(k))):
			c.node, c.bound = k, true
			k++
		default: // a function or module of the model's: its calls are those up to the next that the line names
			from := k
			for k < s.end && !slices.ContainsFunc(calls[n+1:], func(o *pyExpr) bool { return o.makes(opName(s.r.node(k))) }) {
				k++
			}
			s.within(c, from, k)
		}
		if c.bound {
			s.operands(c)
		} else {
			s.given(c)
		}
	}
	for last := e; last != nil; {
		to := last.cast()
		if to == "" || len(last.kids) == 0 {
			break
		}
		if inner := last.kids[0]; inner.bound && to != "float32" {
			s.r.typedAs(inner.node, s.like(to, inner.node))
			break
		}
		last = last.kids[0]
	}
}

// operands puts back the casts at the operands of a call.
func (s *castLine) operands(c *pyExpr) {
	n := s.r.node(c.node)
	for j, kid := range c.kids {
		to := kid.cast()
		if to == "" || j >= len(n.Args) || n.Args[j].Kind != graph.ArgValue || n.Args[j].Name != "" || !s.float32(n.Args[j].Value) {
			continue
		}
		id := n.Args[j].Value
		if to == "float32" {
			s.note(kid, n.Module, id)
			n.Args[j].Value = s.widen(kid, c.node, id)
		} else {
			n.Args[j].Value = s.r.insert(s.r.before, c.node, "type_as.default", valueArg(id), valueArg(s.like(to, c.node)))
		}
		s.r.relink(n)
	}
}

// widen casts a value to float32 before a call. What a variable names is cast once.
func (s *castLine) widen(cast *pyExpr, call int, id graph.ValueID) graph.ValueID {
	if cast.text != sharedCast {
		return s.r.widened(call, id)
	}
	w, ok := s.shared[id]
	if !ok {
		w = s.r.widened(call, id)
		s.shared[id] = w
	}
	return w
}

// given puts back the casts of results that a function or module of the model's is
// called with.
func (s *castLine) given(c *pyExpr) {
	for _, kid := range c.kids {
		if to := kid.cast(); to != "" && to != "float32" && kid.kids[0].bound && len(s.r.after[kid.kids[0].node]) == 0 {
			s.r.typedAs(kid.kids[0].node, s.like(to, kid.kids[0].node))
		}
	}
}

// within puts back the cast of the one tensor that a function of the model's is
// called with.
func (s *castLine) within(c *pyExpr, from, to int) {
	var arg *pyExpr
	for _, kid := range c.kids {
		if kid.cast() == "float32" {
			arg = kid
		}
	}
	if arg == nil || from >= to {
		return
	}
	id := graph.NoValue
	for i := from; i < to; i++ {
		for _, in := range s.r.node(i).Inputs {
			if d := s.r.def[in]; s.float32(in) && s.r.l.Roles[in] == Unknown && (d < 0 || int(d) < from) && in != id {
				if id >= 0 {
					return
				}
				id = in
			}
		}
	}
	if id < 0 {
		return
	}
	s.note(arg, s.r.node(from).Module, id)
	w := s.widen(arg, from, id)
	s.r.replaceIn(from, to, id, w)
}

// note remembers what was widened, by its variable and by its module.
func (s *castLine) note(kid *pyExpr, module string, id graph.ValueID) {
	if s.r.l.Roles[id] == Unknown {
		s.wide[module] = id
	}
	if len(kid.kids) > 0 {
		s.named[kid.kids[0].text] = id
	}
}

// like is a value of the type that a cast names: of the variable x in x.dtype, of
// what the module widened, or of a parameter.
func (s *castLine) like(to string, call int) graph.ValueID {
	if id, ok := s.named[strings.TrimSuffix(to, ".dtype")]; ok {
		return id
	}
	if id, ok := s.wide[s.r.node(call).Module]; ok && !strings.HasPrefix(to, "self.") {
		return id
	}
	for id, role := range s.r.l.Roles {
		if role == Parameter && s.float32(graph.ValueID(id)) {
			return graph.ValueID(id)
		}
	}
	return s.r.node(call).Outputs[0]
}

func (s *castLine) float32(id graph.ValueID) bool {
	return id >= 0 && s.r.l.Graph.Values[id].Type.Elem == graph.Float32
}
