package train

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/graph/python"
)

// A childRun is the calls of one call of a child module.
type childRun struct{ first, last int }

// frameHolds adds to holds what variables of known modules' forwards name: the
// result of a child, or an argument of one, until another child or the module
// itself has returned.
func frameHolds(g *graph.Graph, modules []lift.Module, holds holder) {
	uses := lastUses(g)
	for _, m := range modules {
		vars := python.Frame(m.Class)
		if len(vars) == 0 {
			continue
		}
		f := frame{g: g, name: m.Name, depth: depth(m.Name), uses: uses}
		for _, span := range m.Calls {
			f.span = span
			for _, v := range vars {
				f.hold(v, holds)
			}
		}
	}
}

// windowHolds adds to holds the projections of modules whose code names them until
// attention has multiplied the probabilities.
func windowHolds(g *graph.Graph, modules []lift.Module, holds holder) {
	for _, m := range modules {
		if !python.NamesProjections.Of(m.Class) {
			continue
		}
		for _, span := range m.Calls {
			last := span.Last
			for last > span.First && !multiplies(&g.Nodes[last]) {
				last--
			}
			for i := span.First; i < last; i++ {
				n := &g.Nodes[i]
				if n.Op == "linear.default" && n.Module == m.Name && g.Values[n.Inputs[0]].Def >= 0 {
					holds.guess(last, n.Inputs[0], depth(m.Name), local)
				}
			}
		}
	}
}

// localHolds adds to holds the results of operators that variables of well-known
// forward functions name.
func localHolds(g *graph.Graph, modules []lift.Module, holds holder) {
	for _, m := range modules {
		for _, v := range python.Locals(m.Class) {
			for _, span := range m.Calls {
				holdLocal(g, &v, &m, span, holds)
			}
		}
	}
}

// holdLocal adds what the variable names in one call of its module.
func holdLocal(g *graph.Graph, v *python.Local, m *lift.Module, span lift.Span, holds holder) {
	is := func(i int, op string) bool {
		return g.Nodes[i].Module == m.Name && strings.HasPrefix(g.Nodes[i].Op, op)
	}
	var calls []int
	at, how := span.Last, local
	for i := span.First; i < span.Last; i++ {
		if is(i, v.Op) {
			calls = append(calls, i)
		} else if v.Until != "" && is(i, v.Until) {
			at, how = i, store
		}
	}
	if n := len(calls); n > 0 && v.Which > 0 {
		calls = calls[:1]
	} else if n > 0 && v.Which < 0 {
		calls = calls[n-1:]
	}
	for _, i := range calls {
		if i < at {
			holds.guess(at, g.Nodes[i].Outputs[0], depth(m.Name), how)
		}
	}
}

// rotaryHolds adds to holds the queries and keys of rotary embeddings: they are
// parameters of one function, x cos + rotated(x) sin of both, and live until it
// returns (apply_rotary_pos_emb of transformers and the like). If only a part
// is rotated, the module names both parts that it concatenates.
func rotaryHolds(g *graph.Graph, modules []lift.Module, ends func(i, d int) int, holds holder) {
	var turned []graph.ValueID
	last := -1
	flush := func() {
		for _, id := range turned {
			holds.add(last, id, depth(g.Nodes[last].Module)+1, local)
		}
		turned = turned[:0]
	}
	for i := range g.Nodes {
		x := rotated(g, i)
		if x < 0 {
			continue
		}
		if len(turned) == 2 || len(turned) == 1 && g.Nodes[last].Module != g.Nodes[i].Module {
			flush()
		}
		turned, last = append(turned, x), i
		if partly(modules, g.Nodes[i].Module) {
			parts(g, i, ends, holds)
		}
	}
	flush()
}

// partly reports whether a module's own code concatenates the parts, rather
// than the function that rotates one of them.
func partly(modules []lift.Module, name string) bool {
	for i := range modules {
		if m := &modules[i]; m.Name == name {
			return python.TurnsParts.Of(m.Class)
		}
	}
	return false
}

// parts holds the operands of the call that concatenates the result of call i.
func parts(g *graph.Graph, i int, ends func(i, d int) int, holds holder) {
	module := g.Nodes[i].Module
	end := ends(i, depth(module))
	for j := i + 1; j <= end; j++ {
		n := &g.Nodes[j]
		if n.Op == "cat.default" && n.Module == module && slices.Contains(n.Inputs, g.Nodes[i].Outputs[0]) {
			for _, id := range n.Inputs {
				holds.guess(end, id, depth(module), local)
			}
			return
		}
	}
}

// rotated returns x of a call x cos + cat(-x2, x1) sin, or NoValue.
func rotated(g *graph.Graph, i int) graph.ValueID {
	sum := &g.Nodes[i]
	if sum.Op != "add.Tensor" || len(sum.Inputs) != 2 {
		return graph.NoValue
	}
	straight, turned := maker(g, sum.Inputs[0], "mul.Tensor"), maker(g, sum.Inputs[1], "mul.Tensor")
	if straight == nil || turned == nil || len(turned.Inputs) != 2 {
		return graph.NoValue
	}
	cat := maker(g, turned.Inputs[0], "cat.default")
	if cat == nil || len(cat.Inputs) != 2 || maker(g, cat.Inputs[0], "neg.default") == nil {
		return graph.NoValue
	}
	return straight.Inputs[0]
}

// maker returns the call of op that computes a value, or nil.
func maker(g *graph.Graph, id graph.ValueID, op string) *graph.Node {
	if def := g.Values[id].Def; def >= 0 && g.Nodes[def].Op == op {
		return &g.Nodes[def]
	}
	return nil
}

// A frame is one call of a module whose variables are known.
type frame struct {
	g     *graph.Graph
	name  string
	depth int
	span  lift.Span
	uses  []int // last call that reads each value, -1 if none does
}

// hold adds what one variable names.
func (f *frame) hold(variable string, holds holder) {
	what, until, _ := strings.Cut(variable, ">")
	if what == "%softmax" {
		f.holdScores(holds)
		return
	}
	argument := strings.HasPrefix(what, "<")
	what = strings.TrimPrefix(what, "<")
	runs := f.runs(what)
	if len(runs) == 0 {
		return
	}
	var ends []func(childRun) bound
	for _, child := range strings.Split(until, "|") {
		ends = append(ends, f.end(what, child))
	}
	for k, r := range runs {
		e := bound{at: -1}
		for _, end := range ends {
			if e = end(r); e.at >= 0 {
				break
			}
		}
		if k+1 < len(runs) && runs[k+1].last < e.at { // the variable is assigned again
			e.at, e.how = runs[k+1].last, store
		}
		if e.at <= r.last {
			continue
		}
		for _, id := range f.named(r, argument) {
			if holds.settled[settled{id, f.depth}] { // and with it what the lines show about its copies
				continue
			}
			if !argument && f.g.Nodes[f.g.Values[id].Def].Op == "linear.default" { // a projection, rearranged for heads
				id = f.copied(id)
			}
			if e.read == 0 || f.lastRead(id) <= e.read {
				holds.guess(e.at, id, f.depth, e.how)
			}
		}
	}
}

// A bound is the end of a variable's hold.
type bound struct {
	at   int // the last call before, -1 for none
	how  release
	read int // does not apply to what is read after this call, 0 for none: the reads themselves bound that
}

// end returns the function that bounds the life of a run's result by until:
// "$", the frame's return; a child's name, its next run; a child with "+", the
// frame's own calls that read that run's result.
func (f *frame) end(what, until string) func(childRun) bound {
	if until == "$" {
		return func(childRun) bound { return bound{at: f.span.Last, how: local} }
	}
	child, own := strings.CutSuffix(until, "+")
	runs := f.runs(child)
	return func(r childRun) bound {
		if !own || child != what {
			k, _ := slices.BinarySearchFunc(runs, r.last+1, func(r childRun, first int) int { return r.first - first })
			if k == len(runs) {
				return bound{at: -1}
			}
			r = runs[k]
		}
		if own {
			return bound{f.reader(r), store, r.last}
		}
		return bound{at: r.last, how: store}
	}
}

// lastRead returns the frame's last call that reads a value or a view of it.
func (f *frame) lastRead(id graph.ValueID) int {
	last, made := -1, map[graph.ValueID]bool{id: true}
	for i := int(f.g.Values[id].Def) + 1; i <= f.span.Last; i++ {
		if f.reads(i, made) {
			last = i
		}
	}
	return last
}

// reads reports whether a call reads one of the values in made, to which it
// adds the call's results if they are views.
func (f *frame) reads(i int, made map[graph.ValueID]bool) bool {
	n := &f.g.Nodes[i]
	if !slices.ContainsFunc(n.Inputs, func(id graph.ValueID) bool { return made[id] }) {
		return false
	}
	if views(n) {
		for _, id := range n.Outputs {
			made[id] = true
		}
	}
	return true
}

// copied returns the copy of a value, or of a view of it, that alone reads it:
// code such as x.view(s).contiguous() names the copy.
func (f *frame) copied(id graph.ValueID) graph.ValueID {
	at := id
	for range 6 {
		n := f.onlyReader(at)
		switch {
		case n == nil || n.Module != f.name || len(n.Outputs) != 1:
			return id
		case strings.HasPrefix(n.Op, "clone."), strings.HasPrefix(n.Op, "contiguous."):
			return n.Outputs[0]
		case !views(n):
			return id
		}
		at = n.Outputs[0]
	}
	return id
}

// onlyReader returns the one call of the frame that reads a value, nil if there
// are more or none.
func (f *frame) onlyReader(id graph.ValueID) (only *graph.Node) {
	for i := int(f.g.Values[id].Def) + 1; i <= min(f.uses[id], f.span.Last); i++ {
		if n := &f.g.Nodes[i]; slices.Contains(n.Inputs, id) {
			if only != nil {
				return nil
			}
			only = n
		}
	}
	return only
}

// views reports whether a call makes no tensor of its own.
func views(n *graph.Node) bool {
	name, _, _ := strings.Cut(n.Op, ".")
	op := aten.Lookup(name)
	return op != nil && op.Kind == "view"
}

// reader returns the last of the frame's own consecutive calls that read the
// results of a run, or what the calls before make of them: one expression, or a
// method of the class. -1 if there is none.
func (f *frame) reader(r childRun) int {
	made := map[graph.ValueID]bool{}
	for i := r.first; i <= r.last; i++ {
		for _, id := range f.g.Nodes[i].Outputs {
			made[id] = true
		}
	}
	at := -1
	for i := r.last + 1; i <= f.span.Last; i++ {
		n := &f.g.Nodes[i]
		own := n.Module == f.name && f.reads(i, made)
		switch {
		case at >= 0 && !own:
			return at
		case own && !views(n):
			at = i
			for _, id := range n.Outputs {
				made[id] = true
			}
		}
	}
	return at
}

// holdScores adds the operand of the frame's own softmax.
func (f *frame) holdScores(holds holder) {
	for i := f.span.First; i < f.span.Last; i++ {
		if n := &f.g.Nodes[i]; n.Module == f.name && strings.HasPrefix(n.Op, "softmax.") && f.g.Values[n.Inputs[0]].Def >= 0 {
			holds.guess(f.span.Last, n.Inputs[0], f.depth, local)
		}
	}
}

// lastUses returns the last call that reads each value, -1 if none does.
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

// named lists the values that the variable names: the results of a run that
// others read, or its first operand that the module's own code computed.
func (f *frame) named(r childRun, argument bool) (out []graph.ValueID) {
	g := f.g
	for i := r.first; i <= r.last; i++ {
		n := &g.Nodes[i]
		if argument {
			for _, id := range n.Inputs {
				if def := g.Values[id].Def; def >= 0 && int(def) < r.first && g.Nodes[def].Module == f.name {
					return []graph.ValueID{id}
				}
			}
			continue
		}
		for _, id := range n.Outputs {
			if id >= 0 && f.uses[id] > r.last {
				out = append(out, id)
			}
		}
	}
	return out
}

// runs lists the runs of the child that a pattern names: components of its
// name, * for any.
func (f *frame) runs(pattern string) (runs []childRun) {
	before := ""
	for i := f.span.First; i <= f.span.Last; i++ {
		name := matchChild(f.g.Nodes[i].Module, f.depth, pattern)
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

// matchChild returns the part of a module's name that a child's pattern
// matches, "" if none does.
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
