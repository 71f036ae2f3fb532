package train

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph/aten"
)

// simple splits a source line into its statements, x = a; y = b, without surrounding spaces. A line
// whose first word begins a block (if a: x = b; y = c) is one: the file does not show what ran.
func simple(line string) []string {
	if !strings.Contains(line, ";") {
		return []string{line}
	}
	tokens, low, _ := pyTokens(line)
	if len(tokens) == 0 || compound(tokens[0].text) {
		return []string{line}
	}
	var out []string
	begin := 0
	for _, t := range tokens {
		if t.kind == pyOp && t.text == ";" && t.depth == min(low, 0) {
			out = append(out, strings.TrimSpace(line[begin:t.at]))
			begin = t.at + 1
		}
	}
	out = append(out, strings.TrimSpace(line[begin:]))
	return slices.DeleteFunc(out, func(s string) bool { return s == "" })
}

// apart gives each item the statement that it belongs to, where its line has several. The file
// shows only the line: an item belongs to the first statement, from that of the item before on,
// that calls it and has not yet called it as often as it does; if there is none, the line runs
// again where its first statements call it, and else the item is a part of what the one before it
// belongs to.
func (s *sources) apart(items []item) {
	for i := 0; i < len(items); {
		line := items[i].line
		n := i + 1
		for n < len(items) && items[n].line == line {
			n++
		}
		if parts := simple(line.Text); len(parts) > 1 {
			s.place(items[i:n], parts)
		}
		i = n
	}
}

// place distributes the items of a line over its statements.
func (s *sources) place(items []item, parts []string) {
	at, used := 0, map[string]int{}
	for i := range items {
		name := s.itemName(items[i])
		calls := func(part string) int { return s.mentions(part, name, items[i].child != "") }
		if calls(parts[at]) <= used[name] {
			next := slices.IndexFunc(parts[at+1:], func(p string) bool { return calls(p) > 0 })
			switch {
			case next >= 0:
				at, used = at+1+next, map[string]int{}
			case at == len(parts)-1 && calls(parts[0]) > 0 && calls(parts[at]) == 0:
				at, used = 0, map[string]int{}
			}
		}
		used[name]++
		items[i].line.Text = parts[at]
	}
}

// itemName is what the text calls an item: a module's or an operator's name.
func (s *sources) itemName(it item) string {
	if it.child != "" {
		return it.child
	}
	op, _, _ := strings.Cut(s.g.Nodes[it.first].Op, ".")
	return op
}

// mentions counts the calls of a module, or of an operator, in the text of a statement.
func (s *sources) mentions(text, name string, module bool) (n int) {
	list, _ := s.statements(text)
	for i := range list {
		for _, c := range list[i].calls {
			rest, own := strings.CutPrefix(c.path, "self.")
			switch {
			case module && own && (rest == name || c.item && strings.HasPrefix(name, rest+".")):
				n++
			case !module && c.path[strings.LastIndexByte(c.path, '.')+1:] == name:
				n++
			}
		}
		if sym := aten.Symbol(name); !module && sym != "" {
			n += list[i].ops[sym]
		}
	}
	return n
}
