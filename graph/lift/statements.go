package lift

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/python"
)

// A cast of float32 to float32 leaves no call in a file, so that x.float() and
// x.to(y.dtype) are gone from the export of a float32 model, and do something where
// the model runs in half precision. The source lines of the calls around them still
// have them. sourceCasts puts them back where a line shows which call's operand, or
// whose result, they stand at, in the statements of every frame on the way to a call,
// outer ones first; what it cannot tell it leaves alone.
func (r *rewriter) sourceCasts() {
	s := &sources{r: r, lines: make([][]Line, len(r.l.Graph.Nodes)), texts: map[Line]sourceLine{}, wide: map[string]graph.ValueID{}, shared: map[graph.ValueID]graph.ValueID{}}
	last := ""
	for i := range s.lines {
		switch text := r.node(i).MetaValue(keyLines); {
		case text != "" && text == last:
			s.lines[i] = s.lines[i-1]
		default:
			s.lines[i], last = Lines(r.node(i)), text
		}
	}
	s.hidden = r.hiddenCasts()
	r.assignedNorms()
	s.frame(0, len(s.lines), 0)
	s.warnRegions()
	s.unshown()
}

// sources are the statements that calls stand in.
type sources struct {
	r      *rewriter
	lines  [][]Line // of each call, outer frames first
	texts  map[Line]sourceLine
	wide   map[string]graph.ValueID        // what a module widened last
	shared map[graph.ValueID]graph.ValueID // what variables name: the cast of each value
	hidden map[int]graph.ValueID           // what a statement without a call widened, by the call behind it

	unknown bool     // parameters stand in regions of which nothing says what they are
	regions [][2]int // calls of regions, half-open
}

// A sourceText is the statement that a line is a part of.
type sourceText struct {
	whole       string
	table, cast bool // whole is the table's; it has a cast
}

// A sourceLine is a line as it is written, and the table's rows of it.
type sourceLine struct {
	sourceText
	rows []python.Cast
}

// text returns the statement of call i in its frame d.
func (s *sources) text(i, d int) sourceText {
	l := s.lines[i][d]
	t, ok := s.texts[l]
	if !ok {
		t = sourceLine{sourceText{whole: l.Text, cast: mayCast(l.Text)}, castRows(l)}
		s.texts[l] = t
	}
	if len(t.rows) > 0 {
		if whole, ok := wholeStatement(l, t.rows, s.class(i, d)); ok {
			return sourceText{whole: whole, table: true, cast: true}
		}
	}
	return t.sourceText
}

// mayCast reports a text that names a cast.
func mayCast(text string) bool {
	for _, c := range []string{".float()", ".to(", ".to__(", ".type(", ".type_as("} {
		if strings.Contains(text, c) {
			e := parsePy(text)
			return e != nil && e.casts()
		}
	}
	return false
}

// class is the class of the module whose frame d of call i is.
func (s *sources) class(i, d int) string {
	if d == len(s.lines[i])-1 {
		return s.r.l.Classes[i]
	}
	if list := pyList(s.r.node(i).MetaValue(keyClasses)); d < len(list) {
		return list[d]
	}
	return ""
}

// frame looks at the calls [lo, hi), which frame d of one call of forward made.
func (s *sources) frame(lo, hi, d int) {
	f := &sourceFrame{sources: s, lo: lo, hi: hi, depth: d, vars: map[string]graph.ValueID{}}
	for i := lo; i < hi; {
		if len(s.lines[i]) <= d {
			i++
			continue
		}
		if x, ok := s.hidden[i]; ok {
			s.wide[s.r.node(i).Module] = x
		}
		if j := s.regionEnd(i, hi, d); j > i {
			s.region(i, j, d)
			i = j
			continue
		}
		at, deep := s.text(i, d), len(s.lines[i]) > d+1
		j := i + 1
		for j < hi && len(s.lines[j]) > d && (s.lines[j][d] == s.lines[i][d] || at.table && s.text(j, d) == at) {
			deep = deep || len(s.lines[j]) > d+1
			j++
		}
		if at.cast && (!python.WideNorms.Of(s.class(i, d)) || f.unweighted()) {
			f.repeats(at, i, j)
		}
		f.assigned(at.whole, j)
		if deep {
			s.frame(i, j, d+1)
		}
		i = j
	}
}

// unweighted reports a frame without parameters: wideRMSNorm knows the normalisations
// that have a weight.
func (f *sourceFrame) unweighted() bool {
	return !slices.ContainsFunc(f.r.l.Graph.Nodes[f.lo:f.hi], f.trains)
}

// regionEnd is where the region ends that call i stands in, i where it is in none.
func (s *sources) regionEnd(i, hi, d int) int {
	file := s.lines[i][d].File
	j := i
	for strings.HasPrefix(file, regionFile) && j < hi && len(s.lines[j]) > d && s.lines[j][d].File == file {
		j++
	}
	return j
}

// A sourceFrame is a call of forward.
type sourceFrame struct {
	*sources
	lo, hi, depth int
	vars          map[string]graph.ValueID // what variables name
}

// assigned notes what the variable of a statement names whose calls end at j.
func (f *sourceFrame) assigned(text string, j int) {
	name, rest, ok := strings.Cut(text, "=")
	name, ok = strings.TrimSpace(name), ok && !strings.HasPrefix(rest, "=")
	if n := f.r.node(j - 1); ok && isName(name) && len(n.Outputs) == 1 && n.Outputs[0] >= 0 {
		f.vars[name] = n.Outputs[0]
	}
}

// isName reports a variable's name.
func isName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool { return c > 127 || c == '.' || !wordByte(byte(c)) })
}

// repeats looks at a statement whose calls are [lo, hi): each time that it ran, in
// a module of its own.
func (f *sourceFrame) repeats(text sourceText, lo, hi int) {
	scope := func(i int) string {
		if f.depth == len(f.lines[i])-1 {
			return f.r.node(i).Module
		}
		if list := Scopes(f.r.node(i)); f.depth < len(list) {
			return list[f.depth]
		}
		return ""
	}
	for i := lo; i < hi; {
		j, in := i+1, scope(i)
		for j < hi && scope(j) == in {
			j++
		}
		s := &castLine{sourceFrame: f, units: f.units(i, j), table: text.table}
		if e := parsePy(text.whole); e != nil && !s.loop(e, text.whole) {
			s.turns(text.whole)
		}
		i = j
	}
}

// A sourceUnit is what one call of a statement makes: a call of the graph, or those
// [lo, hi) that a module's forward makes.
type sourceUnit struct {
	lo, hi int
	module bool
}

// units splits the calls of a statement.
func (f *sourceFrame) units(lo, hi int) (out []sourceUnit) {
	scope := func(i int) string {
		if list := Scopes(f.r.node(i)); f.depth+1 < len(list) {
			return list[f.depth+1]
		}
		return ""
	}
	in := ""
	for i := lo; i < hi; i++ {
		module := len(f.lines[i]) > f.depth+1
		if module {
			at := scope(i)
			if n := len(out); n > 0 && out[n-1].module && at == in {
				out[n-1].hi = i + 1
				continue
			}
			in = at
		}
		out = append(out, sourceUnit{lo: i, hi: i + 1, module: module})
	}
	return out
}
