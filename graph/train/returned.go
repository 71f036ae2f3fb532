package train

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/python"
)

// Values that a frame returns besides those that others read: the rest of a
// tuple, list, dict or object lives as long as the caller's variable. A
// "return" line without a call is not in the file; how the caller uses the
// result shows what it is.

// A frameKey identifies a run of a frame: its calls, and its index in their
// chains.
type frameKey struct{ first, last, k int }

// An ending is the state of a frame on its return.
type ending struct {
	names   map[string]*binding
	order   []string
	given   map[string][]assignment
	lines   []int           // line of each execution
	results []result        // what it returns, if the line is known
	inner   *ending         // ending of the frame whose result it returns
	open    []graph.ValueID // values that it may return besides its result
	hides   bool            // it has lines without calls, or adds to a list
}

// ending summarises the frame for its caller.
func (r *replay) ending() *ending {
	out := &ending{names: r.names, order: r.order, given: r.given, open: r.kept}
	for _, name := range r.order {
		out.open = append(out.open, r.names[name].ids...)
		for _, a := range r.given[name] {
			out.open = append(out.open, a.id)
		}
	}
	out.hides = r.hides(0, len(r.execs))
	for _, e := range r.execs {
		out.hides = out.hides || e.s.adds != ""
		out.lines = append(out.lines, e.items[len(e.items)-1].line.Number)
	}
	if n := len(r.execs); n > 0 && r.execs[n-1].s.returns {
		out.results = r.execs[n-1].s.results
		if len(out.results) == 0 && r.execs[n-1].last == r.last {
			out.inner = r.returned(r.execs[n-1])
		}
	}
	return out
}

// returned returns the ending of the frame whose result an execution computes,
// nil if it computes more.
func (r *replay) returned(e *execution) *ending {
	it := e.items[len(e.items)-1]
	if it.child == "" || it.last != e.last || len(e.s.results) > 0 {
		return nil
	}
	out := r.endings[frameKey{it.first, it.last, r.k + 1}]
	for out != nil && out.inner != nil {
		out = out.inner
	}
	return out
}

// opened adds to a variable the other values that the frame returned with its
// value: all that the line of the return names. If that line is not known, an
// element by index belongs to a list that a loop filled, and one whose key is
// the name of the frame's variable may come with all of them.
func (r *replay) opened(e *execution, b *binding, field string) {
	from := b.from
	switch {
	case from == nil:
		return
	case len(from.results) > 0:
		for _, x := range from.results {
			if v := from.names[x.name]; v != nil {
				b.keep(v.ids)
			} else if x.name != "" { // a list filled by lines without calls
				r.open(from.open, r.last)
			}
		}
	case field == "":
		return
	case strings.Trim(field, "-0123456789") == "":
		if r.selects(e, b) {
			break // an element of a tensor
		}
		for _, given := range from.given {
			b.keep(from.listed(given, b))
		}
	case strings.Trim(field, `"'`) != field && from.holds(strings.Trim(field, `"'`), b):
		for _, name := range from.order {
			b.keep(from.names[name].ids)
		}
	default:
		r.mayKeep(e, from)
	}
	b.from = nil
}

// mayKeep records that a variable of the frame may hold everything that another
// frame named.
func (r *replay) mayKeep(e *execution, from *ending) {
	if it := e.items[len(e.items)-1]; it.child != "" && python.PyTorch.Of(r.modules[joined(r.module, it.child)]) {
		return // its results are the call's
	}
	if from == nil {
		r.open(r.computed(e), r.last)
		return
	}
	r.kept = append(r.kept, from.open...)
	r.open(from.open, r.last)
}

// open records that values may live until after a call.
func (r *replay) open(ids []graph.ValueID, after int) {
	for _, id := range ids {
		if id >= 0 {
			r.vars.Open = append(r.vars.Open, OpenLife{Value: id, After: after})
		}
	}
}

// openList records that a list may take values, until the frame returns.
func (r *replay) openList(ids []graph.ValueID) {
	from := len(r.vars.Open)
	r.open(ids, r.last)
	for i := range r.vars.Open[from:] {
		r.vars.Open[from+i].List = true
	}
}

// computed returns the results of an execution's calls and modules; for a function that
// is the whole of a class's code, those of its own calls and of modules that it calls by
// individual names.
func (r *replay) computed(e *execution) (out []graph.ValueID) {
	for _, it := range e.items {
		if len(e.items) > maxHidden && it.child != "" && numbered(it.child) {
			continue
		}
		out = append(out, r.g.Nodes[it.last].Outputs...)
	}
	return out
}

// keep adds values to a variable that names several.
func (b *binding) keep(ids []graph.ValueID) {
	for _, id := range ids {
		if id >= 0 && !slices.Contains(b.ids, id) {
			b.ids = append(b.ids, id)
			b.container = true
		}
	}
}

// holds reports whether a variable of the frame names a value that another
// binding names.
func (f *ending) holds(name string, b *binding) bool {
	v := f.names[name]
	return v != nil && slices.ContainsFunc(v.ids, func(id graph.ValueID) bool { return slices.Contains(b.ids, id) })
}

// listed returns the values that a variable was assigned on one line, run after
// run, if another binding has one of them.
func (f *ending) listed(given []assignment, b *binding) (out []graph.ValueID) {
	at := slices.IndexFunc(given, func(a assignment) bool { return slices.Contains(b.ids, a.id) })
	if at < 0 {
		return nil
	}
	for _, a := range given {
		if f.lines[a.exec] == f.lines[given[at].exec] {
			out = append(out, a.id)
		}
	}
	return out
}

// selects reports whether an execution takes an element of a tensor that a
// variable names.
func (r *replay) selects(e *execution, b *binding) bool {
	for i := e.first; i <= e.last; i++ {
		n := &r.g.Nodes[i]
		if strings.HasPrefix(n.Op, "select.") && slices.Contains(b.ids, n.Inputs[0]) {
			return true
		}
	}
	return false
}

// spread finds values for targets of which the graph reads fewer: by the
// return, by their names, or as the probabilities of an attention.
func (r *replay) spread(e *execution, targets []target, ids []graph.ValueID) []graph.ValueID {
	from := r.returned(e)
	if from == nil {
		return ids
	}
	out := make([]graph.ValueID, len(targets))
	if len(from.results) == len(targets) {
		rest := slices.Clone(ids)
		for i, x := range from.results {
			out[i] = graph.NoValue
			if v := from.names[x.name]; v != nil && len(v.ids) == 1 {
				out[i] = v.ids[0]
				rest = slices.DeleteFunc(rest, func(id graph.ValueID) bool { return id == out[i] })
			}
		}
		for i := range out {
			if out[i] < 0 && len(rest) > 0 && from.results[i].name == "" {
				out[i], rest = rest[0], rest[1:]
			}
		}
		return out
	}
	for i := range out {
		switch {
		case i < len(ids):
			out[i] = ids[i]
		default:
			out[i] = r.unreadName(from, targets[i].name, out[:i])
			r.mayKeep(e, from)
		}
	}
	return out
}

// unreadName returns the value of a frame's variable for a target of its caller
// that nothing reads: one of the same name, or the probabilities. Models of
// transformers return None instead unless asked for them (scope.go).
func (r *replay) unreadName(from *ending, name string, taken []graph.ValueID) graph.ValueID {
	if v := from.names[name]; v != nil && len(v.ids) == 1 && !slices.Contains(taken, v.ids[0]) {
		return v.ids[0]
	}
	if python.Transformers.Of(r.class) {
		return graph.NoValue
	}
	for _, n := range slices.Backward(from.order) {
		if v := from.names[n]; len(v.ids) == 1 && !slices.Contains(taken, v.ids[0]) && probabilities(r.g, v.ids[0]) {
			return v.ids[0]
		}
	}
	return graph.NoValue
}

// attentions returns the probabilities that come with an execution's results:
// blocks of transformers return them in a tuple, after the hidden states,
// provided that every frame in between takes a tuple.
func (r *replay) attentions(e *execution) []graph.ValueID {
	it := e.items[len(e.items)-1]
	if it.child == "" || it.last != e.last {
		return nil
	}
	var last []graph.ValueID // followed by casts and dropout of them
	for i := it.last; i >= it.first; i-- {
		n := &r.g.Nodes[i]
		if len(n.Outputs) == 0 || n.Outputs[0] < 0 || !probabilities(r.g, n.Outputs[0]) {
			continue
		}
		if last == nil {
			last = n.Outputs[:1]
		}
		if strings.Contains(n.Op, "softmax") {
			if asks(n) || !r.tuples(r.chains[i]) {
				return nil
			}
			return last
		}
	}
	return nil
}

// tuples reports whether the frames of a call hand its result up to the
// enclosing frame: the innermost names it, those between assign what the next
// returns to several variables, or to one that stands for several. What a loop
// over blocks collects comes in a field that is None unless asked for.
func (r *replay) tuples(chain []link) bool {
	if len(chain) < r.k+2 {
		return false
	}
	below, last := chain[r.k+1:len(chain)-1], chain[len(chain)-1]
	for _, part := range strings.Split(strings.TrimPrefix(last.module, chain[r.k+1].module), ".") {
		if part != "" && digit(part[0]) {
			return false
		}
	}
	for _, l := range below {
		list, _ := r.statements(l.line.Text)
		if len(list) == 0 || !list[0].returns && len(list[0].targets) < 2 && !(len(list[0].targets) == 1 && strings.HasSuffix(list[0].targets[0].name, "outputs")) {
			return false
		}
	}
	list, _ := r.statements(last.line.Text)
	return len(list) > 0 && (len(list[0].targets) > 1 || strings.Contains(last.line.Text, "softmax("))
}
