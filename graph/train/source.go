package train

import (
	"fmt"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/lift"
)

// How long Python's variables keep tensors alive, from the source lines that
// the exporter wrote beside every call.
//
// A frame is one run of a forward function. Its items are the calls that its
// own code makes and the runs of modules that it calls, in order; each item
// has the line that it stands in. Items of one line, or of lines of one
// statement, are an execution of the statement. The frame is replayed
// execution by execution: an assignment's target names what the execution
// computes, and lets go of what it named before, after the last item; the rest
// goes when the frame returns. What a variable names that was assigned on a
// line without a call (x = y, list.append(x)) shows when a statement that reads
// it reads a value that no other variable names.
//
// The exporter keeps frames of functions named forward alone: what a method or
// function that forward calls names is not to be seen. Such values keep the
// rules of scope.go and frames.go.

// Variables says what the lifetimes of Python's variables rest on.
type Variables struct {
	Source  VariableSource
	Known   int     // frames whose source lines are known
	Guesses []Guess // places where the lines leave open what a variable names, at most maxGuesses
	More    int     // further guesses
}

// A VariableSource is what says how long variables live.
type VariableSource string

// The sources.
const (
	FromLines VariableSource = "lines" // source lines in the file
	FromTable VariableSource = "table" // the table of known classes
	FromNone  VariableSource = "none"  // rules that hold for any Python code
)

// A Guess is a line of source that leaves open how long a value lives.
type Guess struct {
	Module, File string
	Line         int
	Why          string
	Value        graph.ValueID // one that it is about
}

const maxGuesses = 200

// sources is the state of reading a graph's source lines.
type sources struct {
	g       *graph.Graph
	chains  [][]link          // of each call: the frames it is in, outermost first
	uses    []int             // last call that reads each value, -1 for none
	modules map[string]string // class of each module, by name
	read    map[string][]statement
	dels    map[string][]string
	holds   holder
	settled map[settled]bool
	vars    *Variables
}

// settled says that the lines of the frame at a depth tell how long it keeps a
// value: rules need not guess it.
type settled struct {
	id    graph.ValueID
	depth int
}

// A link is a call's way through one frame.
type link struct {
	module string
	line   lift.Line
}

// An item is a call of a frame's own code, or the run of a module that it calls.
type item struct {
	first, last int
	child       string // the module's name behind the frame's, "" for a call
	line        lift.Line
}

// An execution is one run of a statement.
type execution struct {
	items       []item
	s           *statement
	dels        []string
	first, last int
	hidden      bool // a function whose lines the file does not show computes a part of it
}

// sourceHolds adds to holds what the lines of the source say, and returns
// which values they settle.
func sourceHolds(l *lift.Lifted, modules []lift.Module, holds holder) (map[settled]bool, Variables) {
	vars := Variables{Source: FromNone}
	s := &sources{g: l.Graph, holds: holds, settled: map[settled]bool{}, vars: &vars, read: map[string][]statement{}, dels: map[string][]string{}, modules: map[string]string{}}
	for _, m := range modules {
		s.modules[m.Name] = m.Class
		if vars.Source == FromNone && len(frameOf(m.Class)) > 0 {
			vars.Source = FromTable
		}
	}
	if !s.readChains() {
		return s.settled, vars
	}
	vars.Source = FromLines
	s.uses = lastUses(s.g)
	for lo := 0; lo < len(s.chains); { // calls without lines stand apart
		hi := lo + 1
		for hi < len(s.chains) && (len(s.chains[hi]) > 0) == (len(s.chains[lo]) > 0) {
			hi++
		}
		if len(s.chains[lo]) > 0 {
			s.frame(lo, hi-1, 0)
		}
		lo = hi
	}
	return s.settled, vars
}

// readChains reads the lines of every call and tells whether there are any.
func (s *sources) readChains() bool {
	s.chains = make([][]link, len(s.g.Nodes))
	any := false
	memo := map[string][]link{}
	for i := range s.g.Nodes {
		n := &s.g.Nodes[i]
		scopes := lift.Scopes(n)
		lines := lift.Lines(n)
		if len(scopes) == 0 {
			continue
		}
		key := fmt.Sprint(scopes, lines)
		chain, ok := memo[key]
		if !ok {
			chain = chainOf(scopes, lines)
			memo[key] = chain
		}
		s.chains[i] = chain
		any = any || len(lines) > 0
	}
	return any
}

// chainOf pairs modules with frames, from the outside: a module with two frames
// calls its base class's forward, one with none has a forward that is called
// otherwise.
func chainOf(scopes []string, lines []lift.Line) []link {
	var out []link
	switch {
	case len(scopes) == len(lines):
		for i := range scopes {
			out = append(out, link{scopes[i], lines[i]})
		}
	case len(lines) > len(scopes):
		extra := len(lines) - len(scopes)
		at := 0
		for i, l := range lines {
			out = append(out, link{scopes[at], l})
			if extra > 0 && (strings.Contains(l.Text, "super()") || strings.Contains(l.Text, ".forward(") || at == len(scopes)-1 || len(lines)-i-1 < len(scopes)-at) {
				extra--
				continue
			}
			at = min(at+1, len(scopes)-1)
		}
	default:
		missing := len(scopes) - len(lines)
		at := 0
		for i, m := range scopes {
			if missing > 0 && (at == len(lines) || i > 0 && skipped(m, lines[at-min(at, 1)], lines[at], missing, len(scopes)-i)) {
				missing--
				out = append(out, link{module: m})
				continue
			}
			out = append(out, link{m, lines[at]})
			at++
		}
	}
	return out
}

// skipped tells whether a module has no frame of its own: the line around it
// calls no child by its name.
func skipped(_ string, _, _ lift.Line, missing, left int) bool { return missing == left }

// statements reads a line, once.
func (s *sources) statements(text string) ([]statement, []string) {
	list, ok := s.read[text]
	if !ok {
		list, s.dels[text] = readLine(text)
		s.read[text] = list
	}
	return list, s.dels[text]
}

// frame replays the frame that calls first to last are in, the k-th of their
// chains.
func (s *sources) frame(first, last, k int) {
	module := s.chains[first][k].module
	var items []item
	for i := first; i <= last; {
		it := s.item(i, last, k)
		if it.child != "" {
			s.frame(it.first, it.last, k+1)
		}
		items = append(items, it)
		i = it.last + 1
	}
	known := false
	for _, it := range items {
		known = known || it.line.Text != ""
	}
	if !known {
		return
	}
	s.vars.Known++
	r := replay{sources: s, module: module, class: s.modules[module], depth: depth(module), first: first, last: last, names: map[string]*binding{}}
	for _, e := range s.executions(items) {
		r.run(&e)
	}
	r.finish()
}

// item is the item of frame k that begins with call i.
func (s *sources) item(i, last, k int) item {
	c := s.chains[i]
	it := item{first: i, last: i, line: c[k].line}
	if len(c) == k+1 {
		return it
	}
	it.child = strings.TrimPrefix(strings.TrimPrefix(c[k+1].module, c[k].module), ".")
	if it.child == "" {
		it.child = "."
	}
	start := c[k+1].line
	for j := i + 1; j <= last; j++ {
		d := s.chains[j]
		if len(d) <= k+1 || d[k+1].module != c[k+1].module || d[k].line != c[k].line {
			break
		}
		before, now := s.chains[j-1][k+1].line, d[k+1].line
		if before.Text != "" && now.Number != before.Number && now.Number <= start.Number && s.returns(before.Text) {
			break // the frame before has returned
		}
		if inner := s.chains[j-1]; len(inner) > k+2 && len(d) > k+2 && inner[k+2].module == d[k+2].module && now == before && s.returns(before.Text) && s.again(j, k+2) {
			break
		}
		it.last = j
	}
	return it
}

// returns tells whether a line ends its frame.
func (s *sources) returns(text string) bool {
	list, _ := s.statements(text)
	return len(list) > 0 && list[len(list)-1].returns
}

// again tells whether call j begins a run of frame k anew.
func (s *sources) again(j, k int) bool {
	before, now := s.chains[j-1][k].line, s.chains[j][k].line
	return before.Text != "" && s.returns(before.Text) && now.Number < before.Number
}

// executions groups the items of a frame.
func (s *sources) executions(items []item) []execution {
	var out []execution
	g := grouping{sources: s}
	for _, it := range items {
		if !g.joins(it) {
			var next []item
			if g.begun && g.lines[it.line.Number] {
				next = g.split()
			}
			out = g.flush(out)
			g.begin(it)
			for _, n := range next {
				g.add(n)
			}
		}
		g.add(it)
	}
	return g.flush(out)
}

// A grouping collects the items of one execution.
type grouping struct {
	*sources
	cur   execution
	lines map[int]bool
	head  *statement // the statement that says what becomes of the value
	above int        // its line
	least int        // the least line
	calls []callee
	ops   map[string]int
	loops bool
	used  map[string]int
	begun bool
}

func (g *grouping) begin(it item) {
	*g = grouping{sources: g.sources, lines: map[int]bool{}, ops: map[string]int{}, used: map[string]int{}, least: it.line.Number, begun: true}
	g.cur.first = it.first
}

// statement is what the items of a line belong to: of several on a line the
// one that is not yet done is not known, so the first with a value is it.
func (g *grouping) statement(text string) *statement {
	list, _ := g.statements(text)
	for i := range list {
		if len(list[i].targets) > 0 || list[i].returns || list[i].adds != "" {
			return &list[i]
		}
	}
	if len(list) > 0 {
		return &list[0]
	}
	return &statement{}
}

// joins tells whether an item is of the execution that is being collected.
func (g *grouping) joins(it item) bool {
	if !g.begun {
		return false
	}
	n := it.line.Number
	st := g.statement(it.line.Text)
	if g.lines[n] {
		return g.room(it)
	}
	switch {
	case it.line.Text == "":
		return false
	case st.head:
		return g.head == nil && st.open && n < g.least
	case st.inner && continues(it.line.Text):
		return n > g.least
	case g.head != nil: // what stands in brackets is computed before
		return false
	}
	return g.arguments()
}

// continues tells whether a line goes on with an expression whose first part
// has been computed.
func continues(text string) bool {
	return text != "" && strings.ContainsAny(text[:1], ".)]}+-*/@%|&^<>=")
}

// arguments tells whether all that has been collected stands in lines that are
// an argument each.
func (g *grouping) arguments() bool {
	for i := range g.cur.items {
		if st := g.statement(g.cur.items[i].line.Text); !st.comma && !st.open {
			return false
		}
	}
	return true
}

// room tells whether the lines collected so far call what the item is once
// more: else the line runs again.
func (g *grouping) room(it item) bool {
	if g.loops {
		return true
	}
	if it.child != "" {
		key, exact, any, hidden := g.slots(it.child)
		switch {
		case exact > 0:
			return g.used[key] < exact
		case hidden:
			return true
		}
		return any == 0 || g.used["?"] < any
	}
	op, limit := g.limit(it)
	return limit == 0 || g.used[op] < limit
}

// slots counts the calls in the text that are of a child by its name, of any
// module, and tells whether a method of the class is called.
func (g *grouping) slots(child string) (key string, exact, any int, hidden bool) {
	for _, c := range g.calls {
		rest, own := strings.CutPrefix(c.path, "self.")
		switch {
		case own && (rest == child || c.item && strings.HasPrefix(child, rest+".")):
			key = c.path
			exact++
		case own && !g.called(rest) && !c.item:
			hidden = true
		case c.item, !strings.Contains(c.path, "."):
			any++
		}
	}
	return key, exact, any, hidden
}

// called tells whether a child of the frame has that name.
func (g *grouping) called(child string) bool {
	m := g.chains[g.cur.first]
	for _, l := range m {
		if _, ok := g.modules[joined(l.module, child)]; ok {
			return true
		}
	}
	return false
}

func joined(module, child string) string {
	if module == "" {
		return child
	}
	return module + "." + child
}

// symbols are the operators of Python that compute calls.
var symbols = map[string]string{"add": "+", "mul": "*", "sub": "-", "rsub": "-", "div": "/", "matmul": "@", "pow": "**"}

// limit returns under which name an item counts, and how often the text has it:
// 0 for unknown.
func (g *grouping) limit(it item) (string, int) {
	op, _, _ := strings.Cut(g.g.Nodes[it.first].Op, ".")
	for _, c := range g.calls {
		rest, own := strings.CutPrefix(c.path, "self.")
		if own && !g.called(rest) && !c.item || !own && !strings.Contains(c.path, ".") {
			return op, 0 // a function may make any call
		}
	}
	n := 0
	for _, c := range g.calls {
		if c.path[strings.LastIndexByte(c.path, '.')+1:] == op {
			n++
		}
	}
	if sym := symbols[op]; sym != "" {
		n += g.ops[sym]
	}
	return op, n
}

func (g *grouping) add(it item) {
	n := it.line.Number
	if !g.lines[n] {
		g.lines[n] = true
		list, dels := g.statements(it.line.Text)
		st := g.statement(it.line.Text)
		if st.head || g.head == nil && g.cur.s == nil {
			g.cur.s = st
		}
		if st.head {
			g.head, g.above = st, n
		}
		g.cur.dels = append(g.cur.dels, dels...)
		for i := range list {
			g.calls = append(g.calls, list[i].calls...)
			g.loops = g.loops || list[i].loops
			for op, k := range list[i].ops {
				g.ops[op] += k
			}
		}
	}
	g.least = min(g.least, n)
	g.used[g.key(it)]++
	g.cur.items = append(g.cur.items, it)
	g.cur.last = it.last
}

// maxOverlap bounds the search for where a line that runs again began.
const maxOverlap = 16

// key is what an item is counted as.
func (g *grouping) key(it item) string {
	if it.child == "" {
		op, _ := g.limit(it)
		return op
	}
	if key, exact, _, _ := g.slots(it.child); exact > 0 {
		return key
	}
	return "?"
}

// split takes the items that belong to the next run of the same line.
func (g *grouping) split() []item {
	n := len(g.cur.items) - g.overlap()
	next := slices.Clone(g.cur.items[n:])
	g.cur.items = g.cur.items[:n]
	g.cur.last = g.cur.items[n-1].last
	return next
}

// overlap is how many of the last items are those that the execution began
// with: where a line runs again, they are the next run's.
func (g *grouping) overlap() int {
	items := g.cur.items
	for n := min(len(items)-1, maxOverlap); n > 0; n-- {
		same := true
		for i := range n {
			a, b := items[i], items[len(items)-n+i]
			same = same && a.line == b.line && g.key(a) == g.key(b)
		}
		if same {
			return n
		}
	}
	return 0
}

func (g *grouping) flush(out []execution) []execution {
	if !g.begun {
		return out
	}
	g.cur.hidden = g.hides()
	return append(out, g.cur)
}

// hides tells whether a function that the file does not show runs a part of
// what has been collected.
func (g *grouping) hides() bool {
	for _, c := range g.calls {
		rest, own := strings.CutPrefix(c.path, "self.")
		switch {
		case c.item:
		case own && strings.Contains(rest, "."), own && g.called(rest):
		case own:
			return true
		case strings.HasPrefix(c.path, "super"):
			return true
		case !strings.Contains(c.path, ".") && !builtin(c.path) && !g.calledOne():
			return true
		}
	}
	return false
}

// calledOne tells whether modules were run that the text calls by no name of
// the class: a variable is one.
func (g *grouping) calledOne() bool { return g.used["?"] > 0 }

// builtin are functions that keep nothing that they are called with.
func builtin(name string) bool {
	switch name {
	case "sum", "zip", "map", "list", "tuple", "dict", "len", "range", "reversed", "enumerate", "isinstance", "getattr", "int", "float", "min", "max", "abs", "str", "set", "sorted", "next", "print", "bool", "repeat", "rearrange":
		return true
	}
	return false
}

// A replay follows the variables of one frame.
type replay struct {
	*sources
	module      string
	class       string
	depth       int
	first, last int
	names       map[string]*binding
	order       []string
	jump        int // last call before the line last went backwards
	line        int
	execs       []*execution
}

// A binding is what a variable names.
type binding struct {
	ids       []graph.ValueID
	container bool
	read      int // last call of the execution that read it last
	inferred  bool
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
	}
	r.stores(e)
	for _, d := range e.dels {
		r.release(d, e.last)
	}
}

// parameters holds what a function that the file does not show reads more than
// once until it returns: a variable of its own names it.
func (r *replay) parameters(e *execution) {
	if e.s.returns && len(e.items) > maxHidden || len(frameOf(r.class)) > 0 {
		return // the whole of a class's code
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

// maxHidden is how many calls a function has at most that computes one thing.
const maxHidden = 24

// values lists what an execution reads that was computed before it, weights
// left out.
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

// reads finds which variables name what the execution reads.
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
			if n.pop {
				b.ids = slices.DeleteFunc(b.ids, func(id graph.ValueID) bool { return explained[id] })
			}
		}
		if b != nil && !hit && !b.container && !n.element && len(b.ids) > 0 && len(e.items) > 0 && !e.s.loops && !e.hidden {
			r.drop(b, r.when(e, b, graph.NoValue), n.name) // it was given another value meanwhile
			b.ids = nil
		}
		if !hit || b.container || n.element {
			open = append(open, n)
		}
	}
	var left []graph.ValueID
	for _, id := range values {
		if !explained[id] {
			left = append(left, id)
		}
	}
	if len(left) == 0 {
		return
	}
	r.infer(e, left, open)
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

// infer says which of the variables names are those that name the values:
// assigned on lines that no call stands in.
func (r *replay) infer(e *execution, values []graph.ValueID, names []read) {
	fresh := slices.DeleteFunc(slices.Clone(names), func(n read) bool { return r.names[n.name] != nil })
	pick := names
	switch {
	case len(names) == 0:
		r.unsettle(e, values, "reads what no variable on the line names")
		return
	case len(names) == 1 || len(names) == len(values):
	case len(fresh) == 1 || len(fresh) == len(values):
		pick = fresh
	default:
		// those that have named values before, or the first of all
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

// alias binds a value to a variable that was given it before, unseen.
func (r *replay) alias(e *execution, n read, id graph.ValueID, several bool) {
	b := r.names[n.name]
	if b != nil && len(b.ids) > 0 && !b.container && !n.element && !several && !slices.Contains(b.ids, id) {
		r.drop(b, r.when(e, b, id), n.name) // it was given another value meanwhile
		b = nil
	}
	if b == nil {
		b = &binding{inferred: true}
		r.bind(n.name, b)
	}
	b.container = b.container || n.element || several
	b.read = e.last
	if !n.pop && !slices.Contains(b.ids, id) {
		b.ids = append(b.ids, id)
	}
}

// when is after which call a variable was given a value on a line that no call
// stands in: once the value was computed and the variable was read. Where it
// was computed before the loop that the code is in began again, a line without
// a call says when: the last that may lie between.
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

// drop lets go of what a binding names after a call.
func (r *replay) drop(b *binding, at int, _ string) {
	for _, id := range b.ids {
		r.hold(at, id, store)
	}
}

func (r *replay) hold(at int, id graph.ValueID, how release) {
	if def := int(r.g.Values[id].Def); def >= r.first && def <= at && at >= 0 {
		r.holds.add(at, id, r.depth, how)
	}
}

// release is what del does.
func (r *replay) release(name string, at int) {
	if b := r.names[name]; b != nil {
		r.drop(b, at, name)
		delete(r.names, name)
		r.order = slices.DeleteFunc(r.order, func(s string) bool { return s == name })
	}
}

// results lists what an execution computes for those after it, or the last
// that it computes if nobody reads it.
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

// assign gives a target values.
func (r *replay) assign(e *execution, t target, ids []graph.ValueID, container bool) {
	switch t.kind {
	case attribute:
		for _, id := range ids {
			r.hold(len(r.g.Nodes)-1, id, local)
		}
		return
	case element:
		r.overwrite(e, t)
		r.grow(t.name, ids)
		return
	}
	if b := r.names[t.name]; b != nil {
		r.drop(b, e.last, t.name)
	}
	r.bind(t.name, &binding{ids: slices.Clone(ids), container: container || t.kind == starredName, read: e.last})
}

// overwrite lets go of the element that x[i] = f(x[i]) replaces: the first that
// the statement reads where it reads elements of nothing else.
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

// text is the line that says what becomes of the value.
func (e *execution) text() string {
	for _, it := range e.items {
		if strings.Contains(it.line.Text, "=") {
			return it.line.Text
		}
	}
	return ""
}

// unpack gives several targets a value each.
func (r *replay) unpack(e *execution, targets []target, ids []graph.ValueID) {
	if outs := r.g.Nodes[e.last].Outputs; len(outs) == len(targets) && len(outs) > 1 {
		ids = outs
	}
	if len(ids) != len(targets) {
		r.guess(e, ids, "assigns another number of values than it computes")
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

// settle notes of which values the lines tell how long the frame keeps them.
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
		return // a function that the file does not show has its own variables
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

// finish lets go of what the frame's variables name when it returns.
func (r *replay) finish() {
	for _, name := range r.order {
		for _, id := range r.names[name].ids {
			r.hold(r.last, id, local)
		}
	}
}
