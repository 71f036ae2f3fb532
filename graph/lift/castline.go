package lift

import (
	"maps"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
)

// A castLine restores the casts of one statement.
type castLine struct {
	*sourceFrame
	units []sourceUnit
	table bool                     // the statement is in the table; its variables may come from earlier lines
	named map[string]graph.ValueID // values of the variables that the line widens
	reads map[string]graph.ValueID // values of the other variables that it reads
	uses  map[string][]operandAt   // arguments that read them
}

// An operandAt is an argument of a call.
type operandAt struct {
	call int
	arg  *graph.Arg
}

// loop reports whether a statement only runs one module after the other, for blk
// in blocks: x = blk(x.float()), and if so restores the casts of each iteration.
func (s *castLine) loop(e *pyExpr, text string) bool {
	modules := 0
	for _, c := range e.calls(nil) {
		if c.ofModel() {
			modules++
		}
	}
	if modules != 1 || len(s.units) < 2 || slices.ContainsFunc(s.units, func(u sourceUnit) bool { return !u.module }) {
		return false
	}
	for _, u := range s.units {
		(&castLine{sourceFrame: s.sourceFrame, units: []sourceUnit{u}, table: s.table}).line(parsePy(text))
	}
	return true
}

// turns restores the casts of a statement in each iteration of a loop.
func (s *castLine) turns(text string) {
	for {
		n := s.line(parsePy(text))
		if n == 0 || n >= len(s.units) || len(s.units)%n != 0 || s.units[0].module || s.units[n].module || opName(s.r.node(s.units[0].lo)) != opName(s.r.node(s.units[n].lo)) {
			return
		}
		s.units = s.units[n:]
	}
}

// line binds the expression's operators to calls, in Python's order of evaluation,
// and restores the casts of their operands and results. It returns the number of
// units that it bound.
func (s *castLine) line(e *pyExpr) int {
	s.named, s.reads, s.uses = map[string]graph.ValueID{}, map[string]graph.ValueID{}, map[string][]operandAt{}
	calls := e.calls(nil)
	s.unindexed(e, calls)
	k := 0
	for n, c := range calls {
		op := ""
		if k < len(s.units) && !s.units[k].module {
			op = opName(s.r.node(s.units[k].lo))
		}
		switch {
		case c.cast() != "" && aten.Is(op, aten.Casts): // the cast is in the file
			c.bind(s.units[k])
			s.typed(c)
			k++
			continue
		case c.cast() != "" || c.text == "super":
			continue
		case op != "" && c.makes(op), k < len(s.units) && s.units[k].module && c.ofModel():
			c.bind(s.units[k])
			k++
		default: // a function of the model: its calls extend to the next one that the line names
			from := k
			k = s.upTo(calls[n+1:], k)
			if from+1 == k || from < k && !slices.ContainsFunc(s.units[from:k], func(u sourceUnit) bool { return u.module }) {
				c.bind(sourceUnit{lo: s.units[from].lo, hi: s.units[k-1].hi, module: true})
			}
		}
		switch {
		case c.bound && c.module:
			s.castInArguments(c)
			s.castArguments(c)
		case c.bound:
			s.operands(c)
		default:
			s.castArguments(c)
		}
	}
	s.results(e)
	return k
}

// unindexed drops the units that indices make, which are bound to no expression.
func (s *castLine) unindexed(e *pyExpr, calls []*pyExpr) {
	if !e.indexes() {
		return
	}
	s.units = slices.DeleteFunc(slices.Clone(s.units), func(u sourceUnit) bool {
		op := opName(s.r.node(u.lo))
		return !u.module && (op == "getitem" || aten.Is(op, aten.Indexes)) && !slices.ContainsFunc(calls, func(c *pyExpr) bool { return c.makes(op) })
	})
}

// upTo returns the first unit from k on that the rest of the line makes: counted from the end
// if the rest makes all later ones, otherwise the first that one of its calls could make.
func (s *castLine) upTo(rest []*pyExpr, k int) int {
	u, all := len(s.units), true
	for _, c := range slices.Backward(rest) {
		switch {
		case c.text == "super":
		case c.cast() != "":
			if u > k && !s.units[u-1].module && aten.Is(opName(s.r.node(s.units[u-1].lo)), aten.Casts) {
				u--
			}
		case u > k && s.binds(c, u-1):
			u--
		default:
			all = false
		}
	}
	if all {
		return u
	}
	for k < len(s.units) && !slices.ContainsFunc(rest, func(o *pyExpr) bool { return s.binds(o, k) }) {
		k++
	}
	return k
}

// binds reports whether an expression can make unit k.
func (s *castLine) binds(c *pyExpr, k int) bool {
	if s.units[k].module {
		return c.cast() == "" && c.ofModel()
	}
	return c.makes(opName(s.r.node(s.units[k].lo)))
}

// results casts what the statement returns.
func (s *castLine) results(e *pyExpr) {
	if e.text == "()" && !e.call {
		for _, kid := range e.kids {
			s.results(kid)
		}
		return
	}
	var casts []*pyExpr // inner casts last
	for e.cast() != "" && len(e.kids) > 0 && !e.bound {
		casts = append(casts, e)
		e = e.kids[0]
	}
	slices.Reverse(casts)
	for _, c := range casts {
		s.renamed(c.cast())
		s.cast(e, c.cast())
	}
}

// renamed widens a tensor that the statement reads under another name than that of
// the variable whose type the result is cast to: xf = x.float() makes no call, and
// casting what elementwise operators and reductions make of xf to x.dtype has no
// effect without it.
func (s *castLine) renamed(to string) {
	name, typed := strings.CutSuffix(to, ".dtype")
	if !typed || !isName(name) || len(s.named) > 0 || len(s.units) == 0 || slices.ContainsFunc(s.units, func(u sourceUnit) bool { return u.module }) {
		return
	}
	x, ok := s.vars[name]
	if !ok {
		x = s.earlier(name, s.units[0].lo)
	}
	for _, other := range slices.Sorted(maps.Keys(s.reads)) {
		if _, shown := s.vars[other]; shown || other == name || !isName(other) || s.reads[other] != x {
			continue
		}
		w := s.r.widened(s.units[0].lo, x)
		for _, use := range s.uses[other] {
			use.arg.Value = w
			s.r.relink(s.r.node(use.call))
		}
	}
}

// cast casts the result of the calls bound to an expression.
func (s *castLine) cast(e *pyExpr, to string) {
	at := s.made(e)
	switch {
	case at < 0:
	case to == "float32":
		s.r.wideResult(at)
	default:
		s.r.typedAs(at, s.like(to, e.node, s.r.node(at).Outputs[0]))
	}
}

// made returns the call whose result an expression is, or -1.
func (s *castLine) made(e *pyExpr) int {
	if !e.bound {
		return -1
	}
	at := e.end - 1
	if n := s.r.node(at); len(n.Outputs) != 1 || !s.float32(n.Outputs[0]) || !s.read(n.Outputs[0], e.end) {
		return -1
	}
	return at
}

// read reports whether the graph returns a value or a call from the given one on reads it.
func (s *castLine) read(id graph.ValueID, from int) bool {
	for i := from; i < len(s.r.l.Graph.Nodes); i++ {
		if slices.Contains(s.r.node(i).Inputs, id) {
			return true
		}
	}
	return slices.Contains(s.r.l.Graph.Outputs, id)
}

// typed sets the target type of a cast in the file to the one that the line
// names; the float32 export shows float32.
func (s *castLine) typed(c *pyExpr) {
	n := s.r.node(c.node)
	if to := c.cast(); to != "float32" && opName(n) != "type_as" && len(n.Args) > 0 && n.Args[0].Kind == graph.ArgValue && s.float32(n.Args[0].Value) && s.float32(n.Outputs[0]) {
		n.Op, n.Args = "type_as.default", []graph.Arg{n.Args[0], valueArg(s.like(to, c.node, n.Args[0].Value))}
		s.r.relink(n)
	}
}

// operands restores the casts of a call's operands.
func (s *castLine) operands(c *pyExpr) {
	n, kids := s.r.node(c.node), c.kids
	if opName(n) == "rsub" && len(kids) == 2 { // 1 - x
		kids = []*pyExpr{kids[1], kids[0]}
	}
	s.pairs(c, kids, n.Args)
	s.r.relink(n)
}

// pairs restores the casts of expressions that are arguments of a call, in order. A
// list stands for its elements, or for all remaining arguments if the call takes
// them as one: torch.einsum("ij,jk", a, b).
func (s *castLine) pairs(c *pyExpr, kids []*pyExpr, args []graph.Arg) {
	for j, kid := range kids {
		if j >= len(args) || args[j].Name != "" {
			return
		}
		switch a := &args[j]; {
		case a.Kind == graph.ArgList && kid.text == "()" && !kid.call:
			s.pairs(c, kid.kids, a.List)
		case a.Kind == graph.ArgList && len(a.List) == len(kids)-j:
			s.pairs(c, kids[j:], a.List)
			return
		case a.Kind == graph.ArgValue && s.float32(a.Value):
			s.operand(c, kid, a)
		}
	}
}

// operand restores the cast of an expression that is an argument of a call.
func (s *castLine) operand(c, kid *pyExpr, a *graph.Arg) {
	id := a.Value
	switch to := kid.cast(); {
	case to == "" && !kid.call && kid.text != "":
		s.reads[kid.text] = id
		s.uses[kid.text] = append(s.uses[kid.text], operandAt{c.node, a})
	case to == "" || kid.bound:
	case to == "float32":
		s.note(kid, s.r.node(c.node).Module, id)
		a.Value = s.widen(kid, c.node, id)
	default:
		a.Value = s.r.insert(s.r.before, c.node, "type_as.default", valueArg(id), valueArg(s.like(to, c.node, id)))
	}
}

// widen casts a value to float32 before a call. A variable's value is cast once.
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

// castArguments restores the casts of results that are arguments of a function or module
// of the model.
func (s *castLine) castArguments(c *pyExpr) {
	for _, kid := range c.kids {
		if to := kid.cast(); to != "" && to != "float32" && !kid.bound && kid.kids[0].bound && len(s.r.after[kid.kids[0].end-1]) == 0 {
			s.cast(kid.kids[0], to)
		}
	}
}

// castInArguments restores the casts of tensors that are arguments of a function or
// module of the model: results that the line makes, and variables if it casts as
// many as the function reads.
func (s *castLine) castInArguments(c *pyExpr) {
	var named []*pyExpr
	for _, kid := range c.kids {
		switch to := kid.cast(); {
		case to != "" && !kid.bound && kid.kids[0].bound:
			if at := s.made(kid.kids[0]); to == "float32" && at >= 0 {
				s.castArgument(c, kid, s.r.node(at).Outputs[0])
			}
		case to != "" && !kid.bound && !kid.kids[0].call:
			named = append(named, kid)
		}
	}
	read := s.foreign(c.node, c.end)
	if len(named) == 0 && len(read) == 1 {
		for _, kid := range c.kids {
			if !kid.call && isName(kid.text) && kid.text != "self" {
				s.reads[kid.text] = read[0]
				break
			}
		}
	}
	if len(read) != len(named) {
		return
	}
	for k, kid := range named {
		if kid.cast() == "float32" {
			s.castArgument(c, kid, read[k])
		} else {
			s.replace(c, read[k], s.r.insert(s.r.before, c.node, "type_as.default", valueArg(read[k]), valueArg(s.like(kid.cast(), c.node, read[k]))))
		}
	}
}

// castArgument casts an argument of a function or module to float32.
func (s *castLine) castArgument(c, kid *pyExpr, id graph.ValueID) {
	s.note(kid, s.r.node(c.node).Module, id)
	s.replace(c, id, s.widen(kid, c.node, id))
}

// replace substitutes one value for another in the calls bound to an expression,
// except where it gives the type that a result is cast back to.
func (s *castLine) replace(c *pyExpr, old, id graph.ValueID) {
	for i := c.node; i < c.end; i++ {
		n := s.r.node(i)
		args := n.Args
		if opName(n) == "type_as" {
			args = args[:min(len(args), 1)]
		}
		s.r.operands(args, func(a *graph.Arg) {
			if a.Value == old {
				a.Value = id
			}
		})
		s.r.relink(n)
	}
}

// foreign lists float32 tensors that the calls [from, to) read but do not make,
// without parameters.
func (s *castLine) foreign(from, to int) (out []graph.ValueID) {
	for i := from; i < to; i++ {
		for _, in := range s.r.node(i).Inputs {
			if d := s.r.def[in]; s.float32(in) && s.r.l.Roles[in] == Unknown && (d < 0 || int(d) < from) && !slices.Contains(out, in) {
				out = append(out, in)
			}
		}
	}
	return out
}

// note records what was widened, by its variable and by its module.
func (s *castLine) note(kid *pyExpr, module string, id graph.ValueID) {
	if s.r.l.Roles[id] == Unknown {
		s.wide[module] = id
	}
	if len(kid.kids) > 0 {
		s.named[kid.kids[0].text] = id
	}
}

// like returns a value whose type a cast names: the variable x in x.dtype, what
// the module widened, or a parameter; itself if none is known.
func (s *castLine) like(to string, call int, itself graph.ValueID) graph.ValueID {
	name := strings.TrimSuffix(to, ".dtype")
	if id, ok := s.named[name]; ok {
		return id
	}
	wide, ok := s.wide[s.r.node(call).Module]
	ok = ok && !strings.HasPrefix(to, "self.")
	if ok && s.table {
		return wide
	}
	if id, ok := s.reads[name]; ok {
		return id
	}
	if id, ok := s.vars[name]; ok && (s.r.def[id] < 0 || int(s.r.def[id]) < call) {
		return id
	}
	if name != to && isName(name) {
		if id := s.earlier(name, call); id >= 0 {
			return id
		}
	}
	if ok {
		return wide
	}
	for id, role := range s.r.l.Roles {
		if role == Parameter && s.float32(graph.ValueID(id)) {
			return graph.ValueID(id)
		}
	}
	return itself
}

// earlier returns the value of a variable that no statement of the frame assigns
// before a call, such as an argument of forward: what the first statement reads
// under that name. NoValue if no statement shows it.
func (s *castLine) earlier(name string, call int) graph.ValueID {
	for i := s.lo; i < call; {
		j := i + 1
		for j < call && len(s.lines[i]) > s.depth && len(s.lines[j]) > s.depth && s.lines[j][s.depth] == s.lines[i][s.depth] {
			j++
		}
		if len(s.lines[i]) > s.depth {
			if at := s.text(i, s.depth); !at.cast && strings.Contains(at.whole, name) {
				if e := parsePy(at.whole); e != nil {
					l := &castLine{sourceFrame: s.sourceFrame, units: s.sourceFrame.units(i, j)}
					l.line(e)
					if id, ok := l.reads[name]; ok {
						return id
					}
				}
			}
		}
		i = j
	}
	return graph.NoValue
}

func (s *castLine) float32(id graph.ValueID) bool {
	return id >= 0 && s.r.l.Graph.Values[id].Type.Elem == graph.Float32
}
