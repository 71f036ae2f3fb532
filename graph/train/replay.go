package train

import (
	"maps"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/python"
)

// A replay follows the variables of one frame.
type replay struct {
	*sources
	k           int // index of the frame in the calls' chains
	module      string
	class       string
	depth       int
	first, last int
	names       map[string]*binding
	order       []string
	jump        int // last call before execution last jumped backwards
	line        int
	execs       []*execution
	texts       map[string]int          // number of executions that begin with a line's text
	kept        []graph.ValueID         // values of other frames that its variables may name
	given       map[string][]assignment // assignments to names that code assigns one value at a time
	dropped     map[graph.ValueID]int   // last call before the statement that reassigned a variable naming the value
}

// An assignment is a value assigned to a name.
type assignment struct {
	id   graph.ValueID
	exec int // index of the execution
}

// A binding is the values that a variable names.
type binding struct {
	ids       []graph.ValueID
	container bool
	read      int     // last call of the last execution that read it
	from      *ending // the frame that returned it, or nil
}

// run replays one execution.
func (r *replay) run(e *execution) {
	e.first = e.items[0].first
	if n := e.items[0].line.Number; n != 0 {
		if n < r.line && e.s != nil && !e.s.inner {
			r.jump = e.first - 1
		}
		r.line = n
	}
	if e.s == nil {
		e.s = &statement{}
	}
	r.reads(e)
	if e.hidden {
		r.parameters(e)
		r.argument(e)
		r.siblings(e)
		r.open(r.computed(e), e.last)
	}
	r.passesList(e)
	r.stores(e)
	for _, d := range e.dels {
		r.release(d, e.last)
	}
}

// parameters holds what a function without lines in the file reads more than
// once until it returns: a variable of the function names it.
func (r *replay) parameters(e *execution) {
	if e.s.returns && len(e.items) > maxHidden {
		return // all of a class's code
	}
	readers := map[graph.ValueID]int{}
	for _, it := range e.items {
		if it.child != "" {
			continue
		}
		for _, id := range r.g.Nodes[it.first].Inputs {
			if id >= 0 && int(r.g.Values[id].Def) >= r.first {
				readers[id]++
			}
		}
	}
	for _, it := range e.items {
		for _, id := range r.g.Nodes[it.last].Inputs {
			if id >= 0 && readers[id] > 1 {
				r.hold(e.last, id, local)
				readers[id] = 0
			}
		}
	}
}

// argument holds the argument of a small function without lines in the file, if it
// is a module's result: clamp(self.head(x)). The function's parameter names it until
// it returns; longer functions reassign it.
func (r *replay) argument(e *execution) {
	calls, n := e.s.calls, len(e.items)
	if len(calls) != 2 || calls[0].item || strings.Contains(calls[0].path, ".") || n < 3 || n > maxArgument || e.items[0].child == "" {
		return
	}
	for _, it := range e.items[1:] {
		if it.child != "" {
			return
		}
	}
	for _, id := range r.g.Nodes[e.items[0].last].Outputs {
		r.hold(e.last, id, local)
	}
}

// maxArgument is the largest number of calls and modules of a line whose
// function is taken to be one expression.
const maxArgument = 5

// siblings holds, until it returns, the results of modules in a function without lines
// in the file, if two or more other modules take them as arguments. Code that calls
// modules by individual names, not in a list, names each result, too, once there are
// several such results: then these are held, and all results if the function is the
// whole of a class's code, as converters of graphs write it. A residual sum reads what
// only one other module does.
func (r *replay) siblings(e *execution) {
	maker, readers := map[graph.ValueID]int{}, map[graph.ValueID]int{}
	whole := len(e.items) > maxHidden // written out module by module
	for k, it := range e.items {
		if it.child == "" && !whole || numbered(it.child) {
			continue
		}
		seen := map[graph.ValueID]bool{}
		for i := it.first; i <= it.last; i++ {
			for _, id := range r.g.Nodes[i].Inputs {
				if _, made := maker[id]; made && maker[id] != k && !seen[id] && it.child != "" {
					seen[id] = true
					readers[id]++
				}
			}
			for _, id := range r.g.Nodes[i].Outputs {
				if id >= 0 && r.uses[id] > it.last {
					maker[id] = k
				}
			}
		}
	}
	var several []graph.ValueID
	for id, n := range readers {
		if n > 1 {
			several = append(several, id)
		}
	}
	if len(several) < minSiblings {
		return
	}
	if whole { // no result reuses another's name
		several = slices.Collect(maps.Keys(maker))
	}
	slices.Sort(several)
	for _, id := range several {
		r.hold(e.last, id, local)
	}
	r.guess(e, several, "calls a function that the file does not show, which calls modules with each other's results")
}

// minSiblings is the number of results from which such a function is taken to
// name each.
const minSiblings = 3

// numbered reports whether a module's name is one in a list.
func numbered(child string) bool {
	last := child[strings.LastIndexByte(child, '.')+1:]
	return last != "" && last[0] >= '0' && last[0] <= '9'
}

// maxHidden is the largest number of calls of a function that computes one
// thing.
const maxHidden = 24

// values lists what an execution reads that was computed before it, without
// weights.
func (r *replay) values(e *execution) (out []graph.ValueID) {
	seen := map[graph.ValueID]bool{}
	for i := e.first; i <= e.last; i++ {
		for _, id := range r.g.Nodes[i].Inputs {
			if id < 0 || seen[id] {
				continue
			}
			v := &r.g.Values[id]
			if int(v.Def) >= e.first || v.Def < 0 && v.Kind != graph.Input {
				continue
			}
			seen[id] = true
			out = append(out, id)
		}
	}
	return out
}

// reads determines which variables name what the execution reads.
func (r *replay) reads(e *execution) {
	values := r.values(e)
	names := r.readNames(e)
	explained := map[graph.ValueID]bool{}
	var open []read
	for _, n := range names {
		if n.shape {
			continue
		}
		b := r.names[n.name]
		hit := false
		if b != nil {
			for _, id := range b.ids {
				if slices.Contains(values, id) {
					explained[id], hit = true, true
				}
			}
		}
		if hit {
			b.read = e.last
			r.opened(e, b, n.field)
			if n.pop {
				b.ids = slices.DeleteFunc(b.ids, func(id graph.ValueID) bool { return explained[id] })
			}
		}
		if b != nil && !hit && !n.element && len(b.ids) > 0 && !e.s.loops && !e.hidden {
			r.drop(b, r.when(e, b, r.unnamed(values))) // it was reassigned in between
			b.ids, b.container = nil, false
		}
		if !hit || b.container || n.element {
			open = append(open, n)
		}
	}
	hidden := e.s.open // it has arguments on lines without calls
	var left []graph.ValueID
	for _, id := range values {
		if !explained[id] && !(hidden && r.bound(id)) {
			left = append(left, id)
		}
	}
	if len(left) == 0 {
		return
	}
	r.infer(e, left, open)
}

// unnamed returns the only one of several values that no variable names, NoValue
// if there is none or more than one.
func (r *replay) unnamed(values []graph.ValueID) graph.ValueID {
	out := graph.NoValue
	for _, id := range values {
		if r.bound(id) {
			continue
		}
		if out >= 0 {
			return graph.NoValue
		}
		out = id
	}
	return out
}

// bound reports whether a variable names a value.
func (r *replay) bound(id graph.ValueID) bool {
	for _, name := range r.order {
		if slices.Contains(r.names[name].ids, id) {
			return true
		}
	}
	return false
}

// readNames lists the variables that the lines of an execution read.
func (r *replay) readNames(e *execution) (out []read) {
	seen := map[string]bool{}
	done := map[string]bool{}
	for _, it := range e.items {
		if done[it.line.Text] {
			continue
		}
		done[it.line.Text] = true
		list, _ := r.statements(it.line.Text)
		for i := range list {
			for _, n := range list[i].reads {
				if !seen[n.name] {
					seen[n.name] = true
					out = append(out, n)
				}
			}
		}
	}
	return out
}

// infer decides which of the variables in names name the values: they were
// assigned on lines without calls.
func (r *replay) infer(e *execution, values []graph.ValueID, names []read) {
	if tensors := slices.DeleteFunc(slices.Clone(names), func(n read) bool { return n.index }); len(tensors) > 0 {
		names = tensors
	}
	fresh := slices.DeleteFunc(slices.Clone(names), func(n read) bool { return r.names[n.name] != nil })
	pick := names
	switch {
	case len(names) == 0 && e.s.open && r.repeats(e):
		r.passed(e, values)
		return
	case len(names) == 0:
		r.unsettle(e, values, "reads what no variable on the line names")
		return
	case len(names) == 1 || len(names) == len(values):
	case len(fresh) == 1 || len(fresh) == len(values):
		pick = fresh
	default:
		// variables that have named values before, or the first of all
		var old []read
		for _, n := range names {
			if r.names[n.name] != nil {
				old = append(old, n)
			}
		}
		if len(old) != 1 && len(old) != len(values) {
			r.unsettle(e, values, "several variables may name what it reads")
			return
		}
		pick = old
	}
	for i, id := range values {
		n := pick[0]
		if len(pick) == len(values) {
			n = pick[i]
		}
		r.alias(e, n, id, len(pick) == 1 && len(values) > 1)
	}
}

// repeats reports whether a loop runs the line of an execution: another
// execution has the same text.
func (r *replay) repeats(e *execution) bool { return r.texts[e.items[0].line.Text] > 1 }

// passed binds the arguments that a loop calls modules with, on lines without
// calls: in every iteration the same variables name other values.
func (r *replay) passed(e *execution, values []graph.ValueID) {
	name := "(" + e.items[0].line.Text
	b := r.names[name]
	if b == nil {
		b = &binding{container: true}
		r.bind(name, b)
	}
	for _, id := range b.ids {
		if !slices.Contains(values, id) {
			r.hold(b.read, id, store)
		}
	}
	b.ids, b.read = values, e.last
	for _, id := range values {
		r.settled[settled{id, r.depth}] = true
	}
	r.guess(e, values, "no line shows which variables it is called with")
}

// alias binds a value to a variable that was assigned it before, on an unknown
// line.
func (r *replay) alias(e *execution, n read, id graph.ValueID, several bool) {
	b := r.names[n.name]
	if b != nil && len(b.ids) > 0 && !b.container && !n.element && !several && !slices.Contains(b.ids, id) {
		r.drop(b, r.when(e, b, id)) // it was reassigned in between
		b = nil
	}
	if b == nil {
		b = &binding{}
		r.bind(n.name, b)
	}
	b.container = b.container || n.element || several
	b.read = e.last
	if !n.pop && !slices.Contains(b.ids, id) {
		b.ids = append(b.ids, id)
	}
}

// when returns the call after which a variable was assigned a value on a line
// without calls: once the value was computed and the variable was read. If it
// was computed before the enclosing loop began again, the last line without a
// call that may lie between decides.
func (r *replay) when(e *execution, b *binding, id graph.ValueID) int {
	at := max(b.read, r.first)
	if id >= 0 {
		def := int(r.g.Values[id].Def)
		i, _ := slices.BinarySearchFunc(r.execs, def, func(e *execution, def int) int { return e.last - def })
		if i < len(r.execs) {
			at = max(at, r.execs[i].last)
		}
	}
	if r.jump <= at {
		return at
	}
	if until, ok := r.dropped[id]; ok && until >= at && !r.bound(id) {
		return at // a variable named it no longer than that
	}
	next := e
	for i := len(r.execs) - 1; i >= 0 && r.execs[i].last > r.jump; i-- {
		if next.items[0].line.Number > r.execs[i].items[len(r.execs[i].items)-1].line.Number+1 {
			return r.execs[i].last
		}
		next = r.execs[i]
	}
	return r.jump
}

func (r *replay) bind(name string, b *binding) {
	if r.names[name] == nil {
		r.order = append(r.order, name)
	}
	r.names[name] = b
}

// drop releases the values of a binding after a call.
func (r *replay) drop(b *binding, at int) {
	for _, id := range b.ids {
		r.hold(at, id, store)
		r.dropped[id] = at
	}
}

func (r *replay) hold(at int, id graph.ValueID, how release) {
	if id < 0 {
		return
	}
	if def := int(r.g.Values[id].Def); def >= r.first && def <= at && at >= 0 {
		r.holds.add(at, id, r.depth, how)
	}
}

// release handles del.
func (r *replay) release(name string, at int) {
	if b := r.names[name]; b != nil {
		r.drop(b, at)
		delete(r.names, name)
		r.order = slices.DeleteFunc(r.order, func(s string) bool { return s == name })
	}
}

// results lists what an execution computes for later ones, or the last value it
// computes if nothing reads any.
func (r *replay) results(e *execution) (out []graph.ValueID) {
	for i := e.first; i <= e.last; i++ {
		for _, id := range r.g.Nodes[i].Outputs {
			if id >= 0 && (r.uses[id] > e.last || slices.Contains(r.g.Outputs, id)) {
				out = append(out, id)
			}
		}
	}
	if len(out) == 0 {
		for _, id := range r.g.Nodes[e.last].Outputs {
			if id >= 0 {
				return []graph.ValueID{id}
			}
		}
	}
	return out
}

// stores binds what the execution computes.
func (r *replay) stores(e *execution) {
	r.execs = append(r.execs, e)
	out := r.results(e)
	r.settle(e, out)
	st := e.s
	switch {
	case st.adds != "":
		r.grow(st.adds, out)
	case st.returns, len(st.targets) == 0:
	case st.augment && st.list:
		r.grow(st.targets[0].name, out)
	case len(st.targets) == 1 || st.chained:
		for _, t := range st.targets {
			r.assign(e, t, out, len(out) > 1 || st.list || st.loops)
		}
	default:
		r.unpack(e, st.targets, out)
	}
}

// grow adds values to a list or dict.
func (r *replay) grow(name string, ids []graph.ValueID) {
	b := r.names[name]
	if b == nil {
		b = &binding{}
		r.bind(name, b)
	}
	b.container = true
	b.ids = append(b.ids, ids...)
}

// assign assigns values to a target.
func (r *replay) assign(e *execution, t target, ids []graph.ValueID, container bool) {
	switch t.kind {
	case attribute:
		for _, id := range ids {
			r.hold(len(r.g.Nodes)-1, id, local)
		}
		r.vars.keeps(r.module+" "+t.text, ids)
		return
	case element:
		r.overwrite(e, t)
		r.grow(t.name, ids)
		return
	}
	if b := r.names[t.name]; b != nil {
		r.drop(b, e.last)
	}
	if len(ids) == 1 && !container {
		r.given[t.name] = append(r.given[t.name], assignment{ids[0], len(r.execs) - 1})
	}
	b := &binding{ids: slices.Clone(ids), container: container || t.kind == starredName, read: e.last}
	r.bind(t.name, b)
	if len(e.s.targets) == 1 && !e.s.list && !e.s.loops {
		b.from = r.returned(e)
		r.opened(e, b, "")
		if strings.HasSuffix(t.name, "outputs") && python.Transformers.Of(r.class) {
			b.keep(r.attentions(e))
		}
	}
}

// overwrite releases the element that x[i] = f(x[i]) replaces: the first that
// the statement reads, if it reads elements of nothing else.
func (r *replay) overwrite(e *execution, t target) {
	b := r.names[t.name]
	_, value, _ := strings.Cut(e.text(), "=")
	at := strings.Index(value, t.text)
	if b == nil || at < 0 {
		return
	}
	before := strings.Count(value[:at], t.name+"[")
	for _, id := range r.values(e) {
		if !slices.Contains(b.ids, id) {
			continue
		}
		if before == 0 {
			r.hold(e.last, id, store)
			b.ids = slices.DeleteFunc(b.ids, func(x graph.ValueID) bool { return x == id })
			return
		}
		before--
	}
}

// text returns the line that shows what becomes of the value.
func (e *execution) text() string {
	for _, it := range e.items {
		if strings.Contains(it.line.Text, "=") {
			return it.line.Text
		}
	}
	return ""
}

// unpack assigns one value to each of several targets.
func (r *replay) unpack(e *execution, targets []target, ids []graph.ValueID) {
	if outs := r.g.Nodes[e.last].Outputs; len(outs) == len(targets) && len(outs) > 1 {
		ids = outs
	}
	if len(ids) == 1 && len(targets) == 2 && r.returned(e) == nil && (e.hidden || r.callsFunction(e)) {
		r.guess(e, ids, "assigns another number of values than it computes")
		r.unreadPair(e, targets, ids[0])
		return
	}
	if len(ids) < len(targets) {
		ids = r.spread(e, targets, ids)
	}
	if len(ids) != len(targets) || slices.Contains(ids, graph.NoValue) {
		r.guess(e, ids, "assigns another number of values than it computes")
		if r.returned(e) == nil {
			r.mayKeep(e, nil)
		}
	}
	for i, t := range targets {
		switch {
		case i >= len(ids):
			r.assign(e, t, nil, false)
		case i == len(targets)-1 && len(ids) > len(targets):
			r.assign(e, t, ids[i:], true)
		case ids[i] < 0:
			r.assign(e, t, nil, false)
		default:
			r.assign(e, t, ids[i:i+1], false)
		}
	}
}

// callsFunction reports whether a statement calls a function of the model,
// whose lines the exporter leaves out.
func (r *replay) callsFunction(e *execution) bool {
	for _, c := range e.s.calls {
		if !c.item && !strings.Contains(c.path, ".") && !builtin(c.path) {
			return true
		}
	}
	return false
}

// unreadPair assigns two targets the results of a function without lines in the file,
// if the code around it reads only one of them; that is seldom an attribute. The other
// is guessed to be the value from which the function computed its last result, as
// attention returns its probabilities.
func (r *replay) unreadPair(e *execution, targets []target, id graph.ValueID) {
	other := graph.NoValue
	for _, in := range r.g.Nodes[e.last].Inputs {
		if in >= 0 && in != id && int(r.g.Values[in].Def) >= e.first && (other < 0 || r.g.Values[in].Def > r.g.Values[other].Def) {
			other = in
		}
	}
	read, left := targets[0], targets[1]
	if read.kind == attribute && left.kind != attribute {
		read, left = left, read
	}
	r.assign(e, read, []graph.ValueID{id}, false)
	if other < 0 {
		r.assign(e, left, nil, false)
		return
	}
	r.assign(e, left, []graph.ValueID{other}, false)
	if left.kind == attribute {
		r.vars.Supposed = append(r.vars.Supposed, other)
	}
}

// settle records the values whose life in the frame the lines determine.
func (r *replay) settle(e *execution, out []graph.ValueID) {
	if e.items[0].line.Text == "" {
		return
	}
	for _, id := range out {
		if !e.hidden || e.s.head && !e.s.returns {
			r.settled[settled{id, r.depth}] = true
		}
	}
	if e.hidden {
		return
	}
	for _, it := range e.items {
		if it.child == "" {
			for _, id := range r.g.Nodes[it.first].Outputs {
				r.settled[settled{id, r.depth}] = true
			}
			continue
		}
		for i := it.first; i <= it.last; i++ {
			for _, id := range r.g.Nodes[i].Outputs {
				if id >= 0 && r.uses[id] > it.last {
					r.settled[settled{id, r.depth}] = true
				}
			}
		}
	}
}

// unsettle leaves values to the rules.
func (r *replay) unsettle(e *execution, ids []graph.ValueID, why string) {
	if e.hidden && e.s.returns {
		return // a function without lines in the file has variables of its own
	}
	for _, id := range ids {
		delete(r.settled, settled{id, r.depth})
	}
	r.guess(e, ids, why)
}

func (r *replay) guess(e *execution, ids []graph.ValueID, why string) {
	if len(r.vars.Guesses) >= maxGuesses {
		r.vars.More++
		return
	}
	id := graph.NoValue
	if len(ids) > 0 {
		id = ids[0]
	}
	l := e.items[0].line
	r.vars.Guesses = append(r.vars.Guesses, Guess{r.module, l.File, l.Number, why, id})
}

// finish releases what the frame's variables name when it returns.
func (r *replay) finish() {
	for _, name := range r.order {
		for _, id := range r.names[name].ids {
			r.hold(r.last, id, local)
		}
		r.collected(r.given[name])
		r.mayCollect(r.given[name])
	}
}

// mayCollect marks as open the lives of values that a loop assigns to a variable,
// if a line without a call precedes the next assignment: a list may take them
// there, or what came with them.
func (r *replay) mayCollect(given []assignment) {
	if python.PyTorch.Of(r.class) {
		return
	}
	runs := map[int]int{}
	for _, a := range given {
		runs[r.lastLine(a.exec)]++
	}
	hidden := map[int]bool{}
	for i, a := range given {
		next := len(r.execs)
		switch {
		case i+1 < len(given):
			next = given[i+1].exec
		case i > 0: // to the end of the loop
			next = min(next, 2*a.exec-given[i-1].exec)
		}
		hidden[r.lastLine(a.exec)] = hidden[r.lastLine(a.exec)] || r.hides(a.exec, next)
	}
	for _, a := range given {
		if line := r.lastLine(a.exec); runs[line] > 1 && hidden[line] {
			r.openList([]graph.ValueID{a.id})
			if from := r.returned(r.execs[a.exec]); from != nil {
				r.openList(from.open)
			}
		}
	}
}

// hides reports whether a line without a call follows one of the executions in a
// range.
func (r *replay) hides(from, to int) bool {
	for i := from; i < to; i++ {
		if r.gap(i) > 1 {
			return true
		}
	}
	return false
}

// passesList marks as open the lives of values of a module that is called with
// a variable which names no tensor, because the module may add them to it.
func (r *replay) passesList(e *execution) {
	from := r.returned(e)
	if from == nil || !from.hides {
		return
	}
	for _, n := range e.s.reads {
		if r.names[n.name] == nil && !n.shape && !n.index && !n.element && n.field == "" {
			r.openList(from.open)
			return
		}
	}
}

// lastLine returns the number of the last line of an execution.
func (r *replay) lastLine(exec int) int {
	items := r.execs[exec].items
	return items[len(items)-1].line.Number
}

// collected finds values of a variable that a list took on lines without calls:
// if some that the variable named in between are read after the frame has
// returned, the list with them has all that were followed by as many lines
// without a call. The hidden states of models of transformers are returned as
// one tuple.
func (r *replay) collected(given []assignment) {
	if len(given) < 3 {
		return
	}
	companion, least := graph.NoValue, 0
	for _, a := range given[:len(given)-1] {
		if gap := r.gap(a.exec); r.uses[a.id] > r.last && (companion < 0 || gap < least) {
			companion, least = a.id, gap
		}
	}
	all := python.Transformers.Of(r.class)
	if companion < 0 || least < 2 && !all {
		return
	}
	for _, a := range given[:len(given)-1] {
		if gap := r.gap(a.exec); r.uses[a.id] <= r.last && (all && gap == least || gap >= least && gap > 0) {
			r.lists = append(r.lists, listed{companion, a.id, r.depth})
		}
	}
}

// gap returns the number of lines between an execution and the next; negative
// if the next one is above.
func (r *replay) gap(exec int) int {
	if exec+1 >= len(r.execs) {
		return 0
	}
	items := r.execs[exec].items
	return r.execs[exec+1].items[0].line.Number - items[len(items)-1].line.Number
}
