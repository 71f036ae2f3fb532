package train

import (
	"slices"

	"github.com/memplan/memplan/graph/lift"
)

// An Unread is a frame whose loop collects results, only some of which are in
// the file: the exporter drops calls whose results nothing reads, but the model
// makes them.
type Unread struct {
	Module string
	Line   lift.Line // the line that collects
}

// unread finds a line of a frame that collects a call's result after one run of
// the lines before it and not after another, and reads what they name. It may also
// follow the loop: the file does not show where that ends.
func (s *sources) unread(items []item) (lift.Line, bool) {
	var lines []lift.Line
	for _, it := range items {
		if n := len(lines); it.line.Text != "" && (n == 0 || lines[n-1] != it.line) {
			lines = append(lines, it.line)
		}
	}
	for j := 1; j < len(lines); j++ {
		before, line := lines[j-1], lines[j]
		if before.Number < line.Number && before.File == line.File && s.collects(line.Text, s.named(lines)) && s.without(lines, before, line) {
			return line, true
		}
	}
	return lift.Line{}, false
}

// without reports whether a run of line before is not followed by line.
func (*sources) without(lines []lift.Line, before, line lift.Line) bool {
	for i := range lines[:len(lines)-1] {
		if lines[i] == before && lines[i+1].Number < line.Number {
			return true
		}
	}
	return false
}

// named returns the variables that lines which run more than once assign.
func (s *sources) named(lines []lift.Line) map[string]bool {
	runs, out := map[lift.Line]int{}, map[string]bool{}
	for _, l := range lines {
		if runs[l]++; runs[l] == 2 {
			list, _ := s.statements(l.Text)
			for _, x := range list {
				for _, t := range x.targets {
					out[t.name] = true
				}
			}
		}
	}
	return out
}

// collects reports whether a line adds what it computes from the named
// variables to a list or dict.
func (s *sources) collects(text string, named map[string]bool) bool {
	list, _ := s.statements(text)
	return slices.ContainsFunc(list, func(x statement) bool {
		return (x.adds != "" || slices.ContainsFunc(x.targets, func(t target) bool { return t.kind == element })) &&
			slices.ContainsFunc(x.reads, func(r read) bool { return named[r.name] })
	})
}
