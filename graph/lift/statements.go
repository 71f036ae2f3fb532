package lift

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/python"
)

// sourceCasts restores casts from source lines. A cast of float32 to float32 leaves
// no call in a file, so that x.float() and x.to(y.dtype) are missing from the export
// of a float32 model, although they matter when the model runs in half precision; the
// source lines of the calls around them still show them. A cast is restored if a line
// shows which call's operand or result it applies to, in the statements of every
// frame of a call, outer ones first; ambiguous casts are left out.
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

// sources holds the source statements of calls.
type sources struct {
	r      *rewriter
	lines  [][]Line // for each call: its frames, outer first
	texts  map[Line]sourceLine
	wide   map[string]graph.ValueID        // the value that each module widened last
	shared map[graph.ValueID]graph.ValueID // casts that variables name, by the value that was cast
	hidden map[int]graph.ValueID           // value that a statement without a call widened, by the next call

	unknown bool     // parameters are read in regions of unknown kind
	regions [][2]int // calls of regions, half-open
}

// A sourceText is the statement that a line is part of.
type sourceText struct {
	whole       string
	table, cast bool // table: text is from the table; cast: it contains a cast
}

// A sourceLine is a source line with the table's statements for it.
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

// mayCast reports whether a text mentions a cast.
func mayCast(text string) bool {
	for _, c := range []string{".float()", ".to(", ".to__(", ".type(", ".type_as("} {
		if strings.Contains(text, c) {
			e := parsePy(text)
			return e != nil && e.casts()
		}
	}
	return false
}

// class returns the class of the module whose forward is frame d of call i.
func (s *sources) class(i, d int) string {
	if d == len(s.lines[i])-1 {
		return s.r.l.Classes[i]
	}
	if list := pyList(s.r.node(i).MetaValue(keyClasses)); d < len(list) {
		return list[d]
	}
	return ""
}

// frame restores casts in the calls [lo, hi), which frame d, one call of
// forward, made.
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

// unweighted reports whether a frame reads no parameters: wideRMSNorm handles
// normalisations with a weight.
func (f *sourceFrame) unweighted() bool {
	return !slices.ContainsFunc(f.r.l.Graph.Nodes[f.lo:f.hi], f.trains)
}

// regionEnd returns the end of the region of call i, i if it is in none.
func (s *sources) regionEnd(i, hi, d int) int {
	file := s.lines[i][d].File
	j := i
	for strings.HasPrefix(file, regionFile) && j < hi && len(s.lines[j]) > d && s.lines[j][d].File == file {
		j++
	}
	return j
}

// A sourceFrame is one call of forward.
type sourceFrame struct {
	*sources
	lo, hi, depth int
	vars          map[string]graph.ValueID // values of variables
}

// assigned records the value of the variable assigned by a statement whose
// calls end at j.
func (f *sourceFrame) assigned(text string, j int) {
	name, rest, ok := strings.Cut(text, "=")
	name, ok = strings.TrimSpace(name), ok && !strings.HasPrefix(rest, "=")
	if n := f.r.node(j - 1); ok && isName(name) && len(n.Outputs) == 1 && n.Outputs[0] >= 0 {
		f.vars[name] = n.Outputs[0]
	}
}

// isName reports whether s is a variable's name.
func isName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool { return c > 127 || c == '.' || !wordByte(byte(c)) })
}

// repeats handles a statement whose calls are [lo, hi), once for each time that it
// ran, each in a module of its own.
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

// A sourceUnit is what one call of a statement makes: a call of the graph, or the
// calls [lo, hi) of a module's forward.
type sourceUnit struct {
	lo, hi int
	module bool
}

// units splits the calls of a statement into units.
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
