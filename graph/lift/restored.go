package lift

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
)

// Calls of a module that the file lacks because nothing reads their results can be
// copied from another module of its class in the same list, of which the file has all
// calls: the last of several blocks often computes for the next one what nothing
// reads. They are restored where gaps in the numbers of calls show that as many are
// missing, or after the last call of their operators.

// A twin is a pair of modules of one list: module lacks calls that model has.
type twin struct{ module, model string }

// An Unread is a value that a module computes and returns but nothing reads.
type Unread struct {
	Module string
	Value  graph.ValueID
}

// A restoring copies calls of a twin to its module.
type restoring struct {
	*Lifted
	twin
	own, other Span                            // the calls of module and model
	to         map[graph.ValueID]graph.ValueID // the module's values by the twin's
	before     map[int][]int                   // calls of the twin to insert before a call of the module
	count      map[string]int                  // number of them, by numbered operator
}

// restore copies missing calls of modules that have a twin.
func (l *Lifted) restore(g *graph.Graph) {
	if len(l.Gaps) == 0 && len(l.Idle) == 0 {
		return
	}
	for _, t := range twins(g, l.spans()) {
		spans := l.spans() // restored calls may have moved those after them
		r := &restoring{Lifted: l, twin: t, own: spans[t.module], other: spans[t.model], to: map[graph.ValueID]graph.ValueID{}, before: map[int][]int{}, count: map[string]int{}}
		if !r.align() || !r.explains() || !r.resolves() {
			continue
		}
		r.fill()
		n := r.insert()
		l.Warnings = append(l.Warnings, graph.Warning{Code: UnreadResults, Message: fmt.Sprintf("the file lacks %d calls of %s, whose results are not read; they are copied from those of %s", n, t.module, t.model)})
		l.missing(g)
	}
}

// spans returns the calls of modules that ran once.
func (l *Lifted) spans() map[string]Span {
	out := map[string]Span{}
	for _, m := range l.Modules() {
		if len(m.Calls) == 1 {
			out[m.Name] = m.Calls[0]
		}
	}
	return out
}

// UnreadResults is the code of the warning that the model makes calls which the
// file lacks.
const UnreadResults = "unread-results"

// twins finds modules that ran and have parameters that no call reads, each with the
// nearest preceding module whose name differs in one number and whose counterparts
// of those parameters are read.
func twins(g *graph.Graph, ran map[string]Span) (out []twin) {
	read := map[string]bool{}
	for i := range g.Values {
		if g.Values[i].Kind == graph.Initializer {
			read[g.Values[i].Name] = true
		}
	}
	for _, target := range parameterTargets(g) {
		if read[target] {
			continue
		}
		parts := strings.Split(target, ".")
		for k, p := range parts {
			if !digits(p) {
				continue
			}
			for n := atoi(p) - 1; n >= 0; n-- {
				other := slices.Clone(parts)
				other[k] = fmt.Sprint(n)
				if t, ok := twinOf(parts, other, k, ran); ok && read[strings.Join(other, ".")] && !slices.Contains(out, t) {
					out = append(out, t)
					break
				}
			}
		}
	}
	return out
}

// twinOf returns the innermost modules around two parameters that ran, if they
// differ.
func twinOf(parts, other []string, differ int, ran map[string]Span) (twin, bool) {
	for k := len(parts) - 1; k > differ; k-- {
		t := twin{strings.Join(parts[:k], "."), strings.Join(other[:k], ".")}
		_, own := ran[t.module]
		_, twin := ran[t.model]
		if own && twin {
			return t, true
		}
	}
	return twin{}, false
}

// digits reports whether s is a short number.
func digits(s string) bool {
	return s != "" && len(s) < 5 && strings.Trim(s, "0123456789") == ""
}

func atoi(s string) (n int) {
	for _, c := range s {
		n = 10*n + int(c-'0')
	}
	return n
}

// key identifies a call and its counterpart: the path from the module to it, the
// operator, and the source lines of the frames from the module on.
func (r *restoring) key(i int, module string) string {
	n := &r.Graph.Nodes[i]
	scopes, lines := Scopes(n), Lines(n)
	k := slices.Index(scopes, module)
	if k < 0 {
		return "?"
	}
	return fmt.Sprint(strings.TrimPrefix(n.Module, module), n.Op, lines[min(k, len(lines)):])
}

// align finds the counterpart of each call of the module; the twin's other
// calls are missing from the module.
func (r *restoring) align() bool {
	if r.other.Last >= r.own.First {
		return false
	}
	at := r.own.First
	for i := r.other.First; i <= r.other.Last; i++ {
		if at <= r.own.Last && r.key(at, r.module) == r.key(i, r.model) {
			if !r.pair(i, at) {
				return false
			}
			at++
			continue
		}
		r.before[at] = append(r.before[at], i)
		if op, k := numberOf(r.Graph.Nodes[i].Name); k >= 0 {
			r.count[op]++
		}
	}
	return at > r.own.Last && len(r.before) > 0
}

// pair records which values of a call correspond to its counterpart's.
func (r *restoring) pair(i, at int) bool {
	a, b := &r.Graph.Nodes[i], &r.Graph.Nodes[at]
	if len(a.Inputs) != len(b.Inputs) || len(a.Outputs) != len(b.Outputs) {
		return false
	}
	for k := range a.Inputs {
		r.to[a.Inputs[k]] = b.Inputs[k]
	}
	for k := range a.Outputs {
		r.to[a.Outputs[k]] = b.Outputs[k]
	}
	return true
}

// explains reports whether the gaps in the numbers of calls have room for
// exactly the missing calls; after the last call of an operator there is always
// room.
func (r *restoring) explains() bool {
	for op, n := range r.count {
		gaps, last := 0, -1
		for _, g := range r.Gaps {
			if g.Op == op && r.within(g) {
				gaps += g.Calls
			}
		}
		for i := range r.Graph.Nodes {
			if o, k := numberOf(r.Graph.Nodes[i].Name); k >= 0 && o == op {
				last = i
			}
		}
		if gaps != n && (gaps > 0 || last > r.own.Last) {
			return false
		}
	}
	return len(r.count) > 0
}

// within reports whether a gap lies among the module's calls.
func (r *restoring) within(g Gap) bool { return g.Before >= r.own.First && g.After <= r.own.Last }

// fill records the gaps that the missing calls fill.
func (r *restoring) fill() {
	if r.filled == nil {
		r.filled = map[string]bool{}
	}
	for _, g := range r.Gaps {
		if r.count[g.Op] > 0 && r.within(g) {
			r.filled[callName(g.Op, g.First)] = true
		}
	}
}

// resolves reports whether all operands of the missing calls are known: results
// of each other, values with a counterpart, the module's own parameters and
// values that both modules read.
func (r *restoring) resolves() bool {
	made := map[graph.ValueID]bool{}
	for _, at := range slices.Sorted(maps.Keys(r.before)) {
		for _, i := range r.before[at] {
			n := &r.Graph.Nodes[i]
			for _, id := range n.Inputs {
				if !made[id] && !r.resolved(id, at) {
					return false
				}
			}
			for _, id := range n.Outputs {
				made[id] = id >= 0
			}
		}
	}
	return true
}

// resolved reports whether a value of the twin has a counterpart of its shape
// before a call, or is a constant or the twin's own parameter.
func (r *restoring) resolved(id graph.ValueID, at int) bool {
	if id < 0 {
		return true
	}
	v := &r.Graph.Values[id]
	if to, ok := r.to[id]; ok && to >= 0 {
		x := &r.Graph.Values[to]
		return int(x.Def) < at && slices.EqualFunc(x.Type.Shape, v.Type.Shape, graph.Dim.Equal)
	}
	return v.Kind == graph.Initializer && (r.Roles[id] == Constant || strings.HasPrefix(v.Name, r.model+"."))
}

// insert inserts the missing calls and returns their number.
func (r *restoring) insert() int {
	g := r.Graph
	nodes, classes, inPlace := g.Nodes, r.Classes, r.InPlace
	g.Nodes, r.Classes, r.InPlace = nil, nil, nil
	n := 0
	for at := 0; at <= len(nodes); at++ {
		for _, i := range r.before[at] {
			g.Nodes = append(g.Nodes, r.copied(&nodes[i]))
			r.Classes, r.InPlace = append(r.Classes, classes[i]), append(r.InPlace, inPlace[i])
			n++
		}
		if at < len(nodes) {
			g.Nodes = append(g.Nodes, nodes[at])
			r.Classes, r.InPlace = append(r.Classes, classes[at]), append(r.InPlace, inPlace[at])
		}
	}
	r.unread(nodes)
	for i := range g.Nodes {
		x := &g.Nodes[i]
		x.ID = int32(i)
		for _, o := range x.Outputs {
			if o >= 0 {
				g.Values[o].Def = x.ID
			}
		}
	}
	return n
}

// unread records results of the missing calls that none of them reads.
func (r *restoring) unread(nodes []graph.Node) {
	read := map[graph.ValueID]bool{}
	var made []graph.ValueID
	for _, list := range r.before {
		for _, i := range list {
			made = append(made, nodes[i].Outputs...)
			for _, id := range nodes[i].Inputs {
				read[id] = true
			}
		}
	}
	slices.Sort(made)
	for _, id := range made {
		if id >= 0 && !read[id] {
			r.Unread = append(r.Unread, Unread{r.module, r.to[id]})
		}
	}
}

// copied returns the module's copy of a call of the twin.
func (r *restoring) copied(n *graph.Node) graph.Node {
	x := *n
	x.Name = r.module + "/" + n.Name
	x.Module = r.module + strings.TrimPrefix(n.Module, r.model)
	x.Outputs = nil
	for _, o := range n.Outputs {
		x.Outputs = append(x.Outputs, r.value(o))
	}
	x.Args, x.Inputs = r.args(n.Args), nil
	collect(x.Args, &x.Inputs)
	x.Meta = slices.Clone(n.Meta)
	for i := range x.Meta {
		if p := &x.Meta[i]; p.Key == keyScopes {
			p.Value = strings.NewReplacer("'"+r.model+"'", "'"+r.module+"'", "'"+r.model+".", "'"+r.module+".").Replace(p.Value)
		}
	}
	return x
}

func (r *restoring) args(list []graph.Arg) []graph.Arg {
	out := slices.Clone(list)
	for i := range out {
		switch a := &out[i]; a.Kind {
		case graph.ArgValue:
			a.Value = r.value(a.Value)
		case graph.ArgList:
			a.List = r.args(a.List)
		}
	}
	return out
}

// value returns the module's value for one of the twin, a new one if it has
// none.
func (r *restoring) value(id graph.ValueID) graph.ValueID {
	if id < 0 || r.Roles[id] == Constant {
		return id
	}
	if to, ok := r.to[id]; ok {
		return to
	}
	v := r.Graph.Values[id]
	v.ID = graph.ValueID(len(r.Graph.Values))
	if rest, ok := strings.CutPrefix(v.Name, r.model+"."); ok && v.Kind == graph.Initializer {
		v.Name = r.module + "." + rest
	} else {
		v.Name = r.module + "/" + v.Name
	}
	r.Graph.Values = append(r.Graph.Values, v)
	r.from, r.Roles = append(r.from, r.from[id]), append(r.Roles, r.Roles[id])
	r.to[id] = v.ID
	return v.ID
}
