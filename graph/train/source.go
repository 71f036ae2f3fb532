package train

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/graph/python"
)

// How long Python's variables keep tensors alive, from the source lines that
// the exporter wrote for every call.
//
// A frame is one run of a forward function. Its items are its own calls and the
// runs of modules that it calls, in order; each item has its source line.
// Consecutive items of one line, or of lines of one statement, are an execution
// of the statement. The frame is replayed execution by execution: an
// assignment's target names what the execution computes, and after the last
// item releases what it named before; the rest is released when the frame
// returns. What a variable names after an assignment on a line without a call
// (x = y, list.append(x)) shows when a statement reads it and a value that no
// other variable names.
//
// The exporter only keeps frames of functions named forward: what methods and
// functions called by forward name is unknown. Such values follow the rules of
// scope.go and frames.go.

// Variables says how the lifetimes of Python's variables were determined.
type Variables struct {
	Source  VariableSource
	Known   int     // frames with known source lines
	Guesses []Guess // lines that do not determine what a variable names, at most maxGuesses
	More    int     // number of further guesses
	Unread  []Unread
	// Open are values that may live until after a call, as far as the lines show.
	Open []OpenLife

	recorded []graph.ValueID            // values that modules keep, according to a capture
	kept     map[string][]graph.ValueID // values that modules keep after forward, by module and attribute
	Supposed []graph.ValueID            // values that modules are guessed to keep
}

// keeps records the values of an attribute, which it names until the next
// step's forward reassigns it.
func (v *Variables) keeps(attribute string, ids []graph.ValueID) {
	if v.kept == nil {
		v.kept = map[string][]graph.ValueID{}
	}
	v.kept[attribute] = slices.Clone(ids)
}

// Kept lists the values that modules keep after forward.
func (v *Variables) Kept() (out []graph.ValueID) {
	out = append(out, v.recorded...)
	for _, name := range slices.Sorted(maps.Keys(v.kept)) {
		out = append(out, v.kept[name]...)
	}
	return out
}

// An OpenLife is a value that a variable may keep until after a call: one that a
// frame may have returned besides its result, or that a function without lines in
// the file computes.
type OpenLife struct {
	Value graph.ValueID
	After int
	List  bool // if a list takes it
}

// A VariableSource is the evidence for the lives of variables.
type VariableSource string

// The sources.
const (
	FromCapture VariableSource = "capture" // from running the code in Python
	FromLines   VariableSource = "lines"   // source lines in the file
	FromTable   VariableSource = "table"   // the table of known classes
	FromNone    VariableSource = "none"    // only rules that hold for any Python code
)

// A Guess is a source line that does not determine how long a value lives.
type Guess struct {
	Module, File string
	Line         int
	Why          string
	Value        graph.ValueID // one of the values concerned
}

const maxGuesses = 200

// sources is the state of reading a graph's source lines.
type sources struct {
	g       *graph.Graph
	chains  [][]link          // for each call: the frames it is in, outermost first
	uses    []int             // last call that reads each value, -1 if none does
	modules map[string]string // class of each module, by name
	read    map[string][]statement
	dels    map[string][]string
	holds   holder
	settled map[settled]bool
	lists   []listed
	endings map[frameKey]*ending
	vars    *Variables
}

// A listed value is returned by the frame at a depth in one list with another
// value.
type listed struct {
	with, id graph.ValueID
	depth    int
}

// A settled value is one whose life in the frame at a depth the lines
// determine, so that rules need not guess it.
type settled struct {
	id    graph.ValueID
	depth int
}

// A link is a call's position in one frame.
type link struct {
	module string
	line   lift.Line
}

// An item is a call of a frame's own code, or the run of a module that it calls.
type item struct {
	first, last int
	child       string // the module's name relative to the frame's, "" for a call
	line        lift.Line
}

// An execution is one run of a statement.
type execution struct {
	items       []item
	s           *statement
	dels        []string
	first, last int
	hidden      bool // a function without lines in the file computes a part of it
}

// sourceHolds adds to holds what the source lines determine, and returns the
// values they settle.
func sourceHolds(l *lift.Lifted, modules []lift.Module, holds holder) (map[settled]bool, Variables) {
	vars := Variables{Source: FromNone}
	s := &sources{g: l.Graph, holds: holds, settled: map[settled]bool{}, vars: &vars, endings: map[frameKey]*ending{}, read: map[string][]statement{}, dels: map[string][]string{}, modules: map[string]string{}}
	for _, m := range modules {
		s.modules[m.Name] = m.Class
		if vars.Source == FromNone && len(python.Frame(m.Class)) > 0 {
			vars.Source = FromTable
		}
	}
	if !s.readChains() {
		return s.settled, vars
	}
	vars.Source = FromLines
	s.uses = lastUses(s.g)
	s.returnUnread(l, modules)
	for lo := 0; lo < len(s.chains); { // calls without lines are skipped
		hi := lo + 1
		for hi < len(s.chains) && (len(s.chains[hi]) > 0) == (len(s.chains[lo]) > 0) {
			hi++
		}
		if len(s.chains[lo]) > 0 {
			s.frame(lo, hi-1, 0)
		}
		lo = hi
	}
	s.holdLists()
	return s.settled, vars
}

// returnUnread treats unread results of modules as read after them: their
// callers' variables name them.
func (s *sources) returnUnread(l *lift.Lifted, modules []lift.Module) {
	for _, x := range l.Unread {
		for _, m := range modules {
			if m.Name == x.Module && len(m.Calls) == 1 {
				s.uses[x.Value] = m.Calls[0].Last + 1
			}
		}
	}
}

// holdLists holds the other values of a list for as long as frames hold one of
// them.
func (s *sources) holdLists() {
	for _, x := range s.lists {
		for at, list := range s.holds.after {
			for _, v := range list {
				if v.id == x.with && v.depth < x.depth {
					s.holds.add(at, x.id, v.depth, v.how)
				}
			}
		}
	}
}

// readChains reads the lines of every call and reports whether there are any.
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
		lines = slices.DeleteFunc(lines, func(l lift.Line) bool { return strings.HasPrefix(l.File, "<") }) // code that PyTorch generated
		if len(lines) == 0 {
			if s.chains[i] = inherited(scopes, nil); i > 0 {
				s.chains[i] = inherited(scopes, s.chains[i-1])
			}
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

// inherited returns the chain of a call without lines, such as those within
// no_grad: the frames that it shares with the call before.
func inherited(scopes []string, before []link) []link {
	out := make([]link, len(scopes))
	for i, m := range scopes {
		out[i].module = m
		if i < len(before) && before[i].module == m && (i+1 < len(scopes) && i+1 < len(before) && before[i+1].module == scopes[i+1]) {
			out[i].line = before[i].line
		}
	}
	return out
}

// chainOf pairs modules with frames, from the outermost: a module with two
// frames calls its base class's forward; if there are fewer frames than
// modules, the innermost modules have a forward of another name.
func chainOf(scopes []string, lines []lift.Line) []link {
	var out []link
	m := 0
	for at, l := range lines {
		if at > 0 && m < len(scopes)-1 && !(len(lines)-at > len(scopes)-1-m && basic(lines[at-1].Text)) {
			m++
		}
		out = append(out, link{scopes[m], l})
	}
	for len(lines) > 0 && m+1 < len(scopes) {
		m++
		out = append(out, link{module: scopes[m]})
	}
	return out
}

// basic reports whether a line calls a base class's forward by name.
func basic(text string) bool {
	return strings.Contains(text, "super()") || strings.Contains(text, ".forward(")
}

// statements parses a line, once.
func (s *sources) statements(text string) ([]statement, []string) {
	list, ok := s.read[text]
	if !ok {
		list, s.dels[text] = readLine(text)
		s.read[text] = list
	}
	return list, s.dels[text]
}

// frame replays the frame of the calls first to last, number k in their chains.
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
	s.apart(items)
	known := false
	for _, it := range items {
		known = known || it.line.Text != ""
	}
	if !known {
		return
	}
	s.vars.Known++
	if line, ok := s.unread(items); ok {
		s.vars.Unread = append(s.vars.Unread, Unread{module, line})
	}
	r := replay{sources: s, k: k, module: module, class: s.modules[module], depth: depth(module), first: first, last: last, names: map[string]*binding{}, given: map[string][]assignment{}, texts: map[string]int{}, dropped: map[graph.ValueID]int{}}
	execs := s.executions(items)
	for i := range execs {
		r.texts[execs[i].items[0].line.Text]++
	}
	for i := range execs {
		r.run(&execs[i])
	}
	r.finish()
	s.endings[frameKey{first, last, k}] = r.ending()
}

// item returns the item of frame k that begins with call i.
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

// returns reports whether a line ends its frame.
func (s *sources) returns(text string) bool {
	list, _ := s.statements(text)
	return len(list) > 0 && list[len(list)-1].returns
}

// again reports whether call j begins another run of frame k.
func (s *sources) again(j, k int) bool {
	before, now := s.chains[j-1][k].line, s.chains[j][k].line
	return before.Text != "" && s.returns(before.Text) && now.Number < before.Number
}
