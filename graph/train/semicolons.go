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
// shows only the line, so that the names of calls tell.
func (s *sources) apart(items []item) {
	for i := 0; i < len(items); {
		line := items[i].line
		n := i + 1
		for n < len(items) && items[n].line == line {
			n++
		}
		if parts := simple(line.Text); len(parts) > 1 && len(parts) <= maxParts && n-i <= maxPlaced {
			s.place(items[i:n], parts)
		}
		i = n
	}
}

// A line of more statements, or that makes more calls, is read as one statement.
const (
	maxParts  = 16
	maxPlaced = 256
)

// What counts for a placing of a line's items: a call that its statement has, a line that runs
// again, and a statement that no item belongs to, although it has calls.
const (
	placedCall = 4
	placedLoop = -3
	placedNone = -2
)

// place distributes the items of a line over its statements, in order; after the last statement,
// or sooner, the line may run again. Of all ways it takes one in which most items are calls that the
// text of their statement has.
func (s *sources) place(items []item, parts []string) {
	n, m := len(items), len(parts)
	names, has := make([]string, n), make([]func(string) int, n)
	empty := make([]bool, m) // statements without calls
	for j := range parts {
		empty[j] = s.counts(parts[j], func(callee) bool { return true }, "") == 0
	}
	for i := range items {
		names[i], has[i] = s.caller(items[i], parts)
		for j := range parts {
			empty[j] = empty[j] && has[i](parts[j]) == 0
		}
	}
	skipped := func(from, to int) (cost int) {
		for j := from; j < to; j++ {
			if !empty[j] {
				cost += placedNone
			}
		}
		return cost
	}
	type step struct{ score, begin, before int } // of items up to one, the last ones in a statement from begin on
	best := make([][]step, n+1)
	for k := range best {
		best[k] = slices.Repeat([]step{{score: -1 << 30}}, m)
	}
	for i := range n {
		for j := range parts {
			enter := step{score: -1 << 30, begin: i, before: -1}
			if i == 0 {
				enter.score = skipped(0, j)
			}
			for b := range parts {
				if i == 0 || best[i][b].score < -1<<29 {
					continue
				}
				score := best[i][b].score
				if b < j {
					score += skipped(b+1, j)
				} else {
					score += placedLoop + skipped(b+1, m) + skipped(0, j)
				}
				if score > enter.score {
					enter.score, enter.before = score, b
				}
			}
			used := map[string]int{}
			for k := i; k < n; k++ {
				if used[names[k]]++; used[names[k]] <= has[k](parts[j]) {
					enter.score += placedCall
				}
				if enter.score >= best[k+1][j].score { // what no text tells belongs to what came before
					best[k+1][j] = enter
				}
			}
		}
	}
	j := 0
	for b := range parts {
		if best[n][b].score+skipped(b+1, m) > best[n][j].score+skipped(j+1, m) {
			j = b
		}
	}
	for k := n; k > 0; {
		at := best[k][j]
		for i := at.begin; i < k; i++ {
			items[i].line.Text = parts[j]
		}
		k, j = at.begin, at.before
	}
}

// caller returns the name under which an item counts, and how often a statement calls it: an
// operator or a module by its name or, if none of the statements has that of a module, any
// module by a variable.
func (s *sources) caller(it item, parts []string) (string, func(part string) int) {
	op, _, _ := strings.Cut(s.g.Nodes[it.first].Op, ".")
	if it.child == "" {
		return op, func(part string) int {
			return s.counts(part, func(c callee) bool { return c.path[strings.LastIndexByte(c.path, '.')+1:] == op }, aten.Symbol(op))
		}
	}
	own := func(part string) int {
		return s.counts(part, func(c callee) bool {
			rest, own := strings.CutPrefix(c.path, "self.")
			return own && (rest == it.child || c.item && strings.HasPrefix(it.child, rest+"."))
		}, "")
	}
	if slices.ContainsFunc(parts, func(p string) bool { return own(p) > 0 }) {
		return it.child, own
	}
	return "?", func(part string) int {
		return s.counts(part, func(c callee) bool { return c.item || !strings.Contains(c.path, ".") && !builtin(c.path) }, "")
	}
}

// counts returns how many calls of a statement are such, and how often it has an operator.
func (s *sources) counts(text string, such func(callee) bool, symbol string) (n int) {
	list, _ := s.statements(text)
	for i := range list {
		for _, c := range list[i].calls {
			if such(c) {
				n++
			}
		}
		if symbol != "" {
			n += list[i].ops[symbol]
		}
	}
	return n
}
