package train

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph/aten"
)

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

// statement is the statement that the items of a line belong to. If the line has several,
// it is not known which of them runs, and the first with a value is taken.
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
	if sym := aten.Symbol(op); sym != "" {
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
			g.head = st
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
			if !g.accounted() || g.unnamed() {
				return true
			}
		case strings.HasPrefix(c.path, "super"), strings.HasSuffix(c.path, "multi_head_attention_forward"):
			return true
		case !strings.Contains(c.path, ".") && !builtin(c.path) && !g.calledOne():
			return true
		}
	}
	return false
}

// accounted tells whether the text has an operator or a call for every call of
// the frame's own code: what else it names computes nothing, as modules do that
// are nn.Identity.
func (g *grouping) accounted() bool {
	made := map[string]int{}
	for _, it := range g.cur.items {
		if it.child == "" {
			op, _, _ := strings.Cut(g.g.Nodes[it.first].Op, ".")
			made[op]++
		}
	}
	for op, n := range made {
		has := 0
		for _, c := range g.calls {
			if c.path[strings.LastIndexByte(c.path, '.')+1:] == op {
				has++
			}
		}
		if sym := aten.Symbol(op); sym != "" {
			has += g.ops[sym]
		}
		if n > has {
			return false
		}
	}
	return true
}

// unnamed tells whether more modules were run than the text calls by name, or as
// elements and variables: a method of the class runs them.
func (g *grouping) unnamed() bool {
	for _, c := range g.calls {
		if c.item || !strings.Contains(c.path, ".") {
			return false
		}
	}
	return g.used["?"] > 0
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
