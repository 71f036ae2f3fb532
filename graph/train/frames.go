package train

import (
	_ "embed"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/lift"
)

// frames says how long the variables of well-known modules' code keep tensors
// alive. A line is the class and its variables, in the words of
// scripts/frames.py, which writes the file; lines are sorted by class.
//
//go:embed frames.txt
var frames string

// frameOf returns the variables of a class, nil for one that is not known or
// keeps nothing.
func frameOf(class string) []string {
	lo, hi := 0, len(frames)
	for lo < hi { // lo and hi are starts of lines, or the end
		mid := strings.LastIndexByte(frames[:(lo+hi)/2], '\n') + 1
		mid = max(mid, lo)
		line, _, _ := strings.Cut(frames[mid:], "\n")
		name, rest, _ := strings.Cut(line, " ")
		switch c := strings.Compare(name, class); {
		case c == 0:
			return strings.Fields(rest)
		case c < 0:
			lo = mid + len(line) + 1
		default:
			hi = mid
		}
	}
	return nil
}

// A childRun is the calls of one call of a child module.
type childRun struct{ first, last int }

// frameHolds adds to holds what variables of modules of known classes name:
// the result of a child, or what one is called with, until another child has
// returned or the module itself has.
func frameHolds(l *lift.Lifted, holds [][]graph.ValueID) {
	g := l.Graph
	uses := lastUses(g)
	for _, m := range l.Modules() {
		vars := frameOf(m.Class)
		if len(vars) == 0 {
			continue
		}
		d := depth(m.Name)
		for _, v := range vars {
			what, until, _ := strings.Cut(v, ">")
			argument := strings.HasPrefix(what, "<")
			what = strings.TrimPrefix(what, "<")
			for _, span := range m.Calls {
				runs := childRuns(g, span, d, what)
				for k, r := range runs {
					at := untilOf(g, span, d, until, r.last)
					if k+1 < len(runs) { // the variable is given a value again
						at = min(at, runs[k+1].last)
					}
					for _, id := range named(g, uses, m.Name, r, argument) {
						if at > r.last && !slices.Contains(holds[at], id) {
							holds[at] = append(holds[at], id)
						}
					}
				}
			}
		}
	}
}

// untilOf is the last call before the variable goes that names something since
// call i: the end of the first of the children that is called at all, or of
// the module.
func untilOf(g *graph.Graph, span lift.Span, d int, until string, i int) int {
	for until != "" {
		var child string
		if child, until, _ = strings.Cut(until, "|"); child == "$" {
			return span.Last
		}
		if at := endAfter(childRuns(g, span, d, child), i); at >= 0 {
			return at
		}
	}
	return -1
}

// endAfter is the last call of the first run that begins after call i, -1 for
// none.
func endAfter(runs []childRun, i int) int {
	for _, r := range runs {
		if r.first > i {
			return r.last
		}
	}
	return -1
}

// lastUses is the last call that reads each value, -1 for none.
func lastUses(g *graph.Graph) []int {
	last := make([]int, len(g.Values))
	for i := range last {
		last[i] = -1
	}
	for i := range g.Nodes {
		for _, id := range g.Nodes[i].Inputs {
			last[id] = i
		}
	}
	return last
}

// named lists the values that the variable names: those that a run computes
// for others, or the first that it reads of what the module's own code has
// computed.
func named(g *graph.Graph, uses []int, module string, r childRun, argument bool) (out []graph.ValueID) {
	for i := r.first; i <= r.last; i++ {
		n := &g.Nodes[i]
		if argument {
			for _, id := range n.Inputs {
				if def := g.Values[id].Def; def >= 0 && int(def) < r.first && g.Nodes[def].Module == module {
					return []graph.ValueID{id}
				}
			}
			continue
		}
		for _, id := range n.Outputs {
			if id >= 0 && uses[id] > r.last {
				out = append(out, id)
			}
		}
	}
	return out
}

// childRuns lists the calls of the child that a pattern names, of a module at
// depth d: components of its name, * for any.
func childRuns(g *graph.Graph, span lift.Span, d int, pattern string) (runs []childRun) {
	before := ""
	for i := span.First; i <= span.Last; i++ {
		name := matchChild(g.Nodes[i].Module, d, pattern)
		switch {
		case name == "":
		case name == before && runs[len(runs)-1].last == i-1:
			runs[len(runs)-1].last = i
		default:
			runs = append(runs, childRun{i, i})
		}
		before = name
	}
	return runs
}

// matchChild returns the part of a module's name that a child's pattern stands
// for, "" if it does not match.
func matchChild(module string, d int, pattern string) string {
	for range d {
		_, rest, ok := strings.Cut(module, ".")
		if !ok {
			return ""
		}
		module = rest
	}
	rest := module
	for pattern != "" {
		var want, got string
		want, pattern, _ = strings.Cut(pattern, ".")
		if rest == "" {
			return ""
		}
		got, rest, _ = strings.Cut(rest, ".")
		if want != "*" && want != got {
			return ""
		}
	}
	if rest == "" {
		return module
	}
	return module[:len(module)-len(rest)-1]
}
