package train

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/lift"
)

// executions groups the items of a frame into executions.
func (s *sources) executions(items []item) []execution {
	var out []execution
	g := grouping{sources: s}
	for _, it := range items {
		if !g.joins(it) {
			var next []item
			if g.begun && g.lines[it.line] {
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
	lines map[lift.Line]bool
	head  *statement // the statement that decides what becomes of the value
	least int        // the first line
	calls []callee
	ops   map[string]int
	loops bool
	used  map[string]int
	begun bool
}

func (g *grouping) begin(it item) {
	*g = grouping{sources: g.sources, lines: map[lift.Line]bool{}, ops: map[string]int{}, used: map[string]int{}, least: it.line.Number, begun: true}
	g.cur.first = it.first
}

// statement returns the statement that the items of a line belong to. If the line has
// several, the file does not show which ran, and the first with a value is taken.
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

// joins reports whether an item belongs to the execution that is being
// collected.
func (g *grouping) joins(it item) bool {
	if !g.begun {
		return false
	}
	n := it.line.Number
	st := g.statement(it.line.Text)
	if g.lines[it.line] {
		return g.room(it)
	}
	switch {
	case it.line.Text == "":
		return false
	case st.head:
		return g.head == nil && st.open && n < g.least
	case st.inner && continues(it.line.Text):
		return n > g.least
	case g.head != nil: // the contents of brackets are computed first
		return false
	}
	return g.arguments()
}

// continues reports whether a line continues an expression whose first part has
// been computed.
func continues(text string) bool {
	return text != "" && strings.ContainsAny(text[:1], ".)]}+-*/@%|&^<>=")
}

// arguments reports whether each line collected so far is an argument on its
// own.
func (g *grouping) arguments() bool {
	for i := range g.cur.items {
		if st := g.statement(g.cur.items[i].line.Text); !st.comma && !st.open {
			return false
		}
	}
	return true
}

// room reports whether the lines collected so far can call the item once more;
// if not, the line runs again.
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

// slots counts the calls in the text of a child by its name, and of any module;
// hidden is whether the text calls a method of the class.
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

// called reports whether the frame calls a child of that name.
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

// limit returns the name under which an item counts, and how often the text has
// it: 0 if unknown.
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
	if !g.lines[it.line] {
		g.lines[it.line] = true
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

// maxOverlap bounds the search for the beginning of a line's next run.
const maxOverlap = 16

// key returns the name under which an item counts.
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

// split removes and returns the items that belong to the next run of the same
// line.
func (g *grouping) split() []item {
	n := len(g.cur.items) - g.overlap()
	next := slices.Clone(g.cur.items[n:])
	g.cur.items = g.cur.items[:n]
	g.cur.last = g.cur.items[n-1].last
	return next
}

// overlap returns how many of the last items equal the first of the execution:
// they belong to the next run of the line.
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

// hides reports whether a function without lines in the file runs a part of
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

// accounted reports whether the text has an operator or a call for every call
// of the frame's own code: other names compute nothing, as nn.Identity does.
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

// unnamed reports whether more modules ran than the text calls by name, as
// elements or as variables: a method of the class then runs them.
func (g *grouping) unnamed() bool {
	for _, c := range g.calls {
		if c.item || !strings.Contains(c.path, ".") {
			return false
		}
	}
	return g.used["?"] > 0
}

// calledOne reports whether modules ran that the text calls by none of the
// class's names, but through a variable.
func (g *grouping) calledOne() bool { return g.used["?"] > 0 }

// builtin reports whether a function keeps none of its arguments.
func builtin(name string) bool {
	switch name {
	case "sum", "zip", "map", "list", "tuple", "dict", "len", "range", "reversed", "enumerate", "isinstance", "getattr", "int", "float", "min", "max", "abs", "str", "set", "sorted", "next", "print", "bool", "repeat", "rearrange":
		return true
	}
	return false
}
