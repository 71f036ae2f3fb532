package infer

import (
	"fmt"

	"github.com/memplan/memplan/graph"
)

// maxUnroll bounds the iterations of a loop that are run one by one, and
// maxUnrollNodes the nodes visited in them.
const (
	maxUnroll      = 128
	maxUnrollNodes = 20_000
)

// item returns what is known about input i.
func (c *call) item(i int) item {
	if c.in(i) == nil {
		return item{}
	}
	return item{c.typ(i), c.contents(i)}
}

// give sets output i to it; the contents are recorded once the type is final.
func (c *call) give(i int, it item) {
	if !c.wanted(i) {
		return
	}
	c.outType(i, it.typ)
	for len(c.results) <= i {
		c.results = append(c.results, nil)
	}
	c.results[i] = it.contents
}

// subgraph infers a body with the given inputs and returns its outputs.
func subgraph(c *call, g *graph.Graph, what string, args []item) ([]item, error) {
	if g == nil {
		return nil, fmt.Errorf("attribute %s is missing", what)
	}
	if len(args) != len(g.Inputs) {
		return nil, fmt.Errorf("%s takes %d inputs, not %d", what, len(g.Inputs), len(args))
	}
	s := newScope(c.s.e, g, c.s)
	out, err := s.apply(args)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return out, nil
}

// apply types the inputs, runs the graph, and returns its outputs.
func (s *scope) apply(args []item) ([]item, error) {
	for i, id := range s.g.Inputs {
		if i >= len(args) {
			break
		}
		v := &s.g.Values[id]
		v.Type, _ = mergeTypes(args[i].typ, s.declaredInput(v))
		v.Type = s.nameOpen(v.Type)
		s.contents[id] = args[i].contents
	}
	if err := s.run(); err != nil {
		return nil, err
	}
	out := make([]item, len(s.g.Outputs))
	for i, id := range s.g.Outputs {
		out[i] = item{s.g.Values[id].Type, s.valsOf(id)}
	}
	return out, nil
}

// declaredInput returns a body input's declaration; the dims in a function's
// body are those of one call, so only the element type is used.
func (s *scope) declaredInput(v *graph.Value) graph.Type {
	if s.e.rebind != nil {
		return graph.Type{Kind: v.Decl.Kind, Elem: v.Decl.Elem, Of: v.Decl.Of}
	}
	return s.plain(s.e.bind(v.Decl))
}

// plain drops the symbols of a declaration in a function's body: they are not
// the main graph's.
func (s *scope) plain(t graph.Type) graph.Type {
	if !s.inFunction {
		return t
	}
	shape := t.Shape
	for i, d := range shape {
		if _, ok := d.Int(); !ok {
			if &shape[0] == &t.Shape[0] {
				t.Shape = append(graph.Shape{}, shape...)
			}
			t.Shape[i] = graph.Dim{}
		}
	}
	return t
}

// nameOpen gives unknown dims of a body's input a symbol.
func (s *scope) nameOpen(t graph.Type) graph.Type {
	shape := t.Shape
	for i, d := range shape {
		if !d.Known() {
			if &shape[0] == &t.Shape[0] {
				t.Shape = append(graph.Shape{}, shape...)
			}
			t.Shape[i] = s.e.fresh("carried", graph.Dim{}, s.g.Name)
		}
	}
	return t
}

// ifRule takes one branch if the condition is constant, else what both branches
// have in common.
func ifRule(c *call) error {
	then, els := c.body("then_branch"), c.body("else_branch")
	cond := c.contents(0)
	if cond != nil && len(cond.elems) == 1 {
		if t := truth(cond.elems[0]); t != nil {
			return takeBranch(c, then, els, *t)
		}
	}
	made := len(c.s.e.bounds)
	a, err1 := subgraph(c, then, "then_branch", nil)
	if err1 != nil {
		c.s.e.bounds = c.s.e.bounds[:made]
	}
	made = len(c.s.e.bounds)
	b, err2 := subgraph(c, els, "else_branch", nil)
	for _, f := range []struct {
		branch *graph.Graph
		err    error
	}{{then, err1}, {els, err2}} {
		if f.err != nil && !c.s.e.branchFails(f.branch) {
			return f.err
		}
	}
	switch {
	case err1 != nil && (err2 != nil || c.s.e.opt.Strict):
		return err1
	case err2 != nil && c.s.e.opt.Strict:
		return err2
	case err1 != nil:
		c.s.e.warn("branch-fails", c.n.Label(), "%v; taken to be never run", err1)
		a = b
		wipe(then)
	case err2 != nil:
		c.s.e.bounds = c.s.e.bounds[:made]
		c.s.e.warn("branch-fails", c.n.Label(), "%v; taken to be never run", err2)
		b = a
		wipe(els)
	}
	if len(a) != len(b) || len(a) < len(c.n.Outputs) {
		return fmt.Errorf("%d and %d outputs of the branches, %d of the node", len(a), len(b), len(c.n.Outputs))
	}
	for i := range c.n.Outputs {
		joinBranches(c, i, a[i], b[i])
	}
	return nil
}

// branchFails records that a branch cannot run. It returns false if the cause
// is a batch other than the file's.
func (e *engine) branchFails(branch *graph.Graph) bool {
	if e.rebind != nil {
		return e.failed[branch]
	}
	if e.failed == nil {
		e.failed = map[*graph.Graph]bool{}
	}
	e.failed[branch] = true
	return true
}

// wipe forgets what was inferred about a graph that never runs.
func wipe(g *graph.Graph) {
	if g == nil {
		return
	}
	for i := range g.Values {
		if g.Values[i].Kind == graph.Computed {
			g.Values[i].Type, g.Values[i].Const = graph.Type{}, nil
		}
	}
	for i := range g.Nodes {
		for _, sub := range g.Nodes[i].Subgraphs() {
			wipe(sub)
		}
	}
}

func (c *call) body(name string) *graph.Graph {
	if a := c.attr(name); a != nil {
		return a.Graph
	}
	return nil
}

// takeBranch runs the branch that is taken. The other one gets types, too, as
// far as they can be inferred.
func takeBranch(c *call, then, els *graph.Graph, which bool) error {
	live, dead, what, other := then, els, "then_branch", "else_branch"
	if !which {
		live, dead, what, other = dead, live, other, what
	}
	if dead != nil {
		made := len(c.s.e.bounds)
		c.s.e.quiet++
		_, err := subgraph(c, dead, other, nil)
		c.s.e.quiet--
		c.s.e.bounds = c.s.e.bounds[:made]
		if err != nil && (c.s.e.work < 0 || c.s.e.opt.Strict) {
			return err
		}
	}
	out, err := subgraph(c, live, what, nil)
	if err != nil {
		return err
	}
	if len(out) < len(c.n.Outputs) {
		return fmt.Errorf("%s has %d outputs, the node %d", what, len(out), len(c.n.Outputs))
	}
	for i := range c.n.Outputs {
		c.give(i, out[i])
	}
	return nil
}

func joinBranches(c *call, i int, a, b item) {
	t := joinTypes(a.typ, b.typ)
	if t.Shape == nil && a.typ.Shape != nil && b.typ.Shape != nil {
		c.s.e.warn("branch-ranks", c.n.Label(), "output %d is %s or %s", i, typeText(a.typ), typeText(b.typ))
	}
	for k, d := range t.Shape {
		if !d.Known() {
			c.bound(i, k, a.typ.Shape[k].Max(b.typ.Shape[k]))
		}
	}
	c.give(i, item{typ: t, contents: joinContents(a.contents, b.contents)})
}

// joinContents keeps the elements that both agree on.
func joinContents(a, b *contents) *contents {
	if a == nil || b == nil || a.list || b.list || len(a.elems) != len(b.elems) || len(a.dims) != len(b.dims) {
		return nil
	}
	for i := range a.dims {
		if a.dims[i] != b.dims[i] {
			return nil
		}
	}
	out := &contents{dims: a.dims, elems: make([]elem, len(a.elems))}
	for i := range out.elems {
		if a.elems[i].equal(b.elems[i]) {
			out.elems[i] = a.elems[i]
		}
	}
	return out
}

// A loop is a Loop node: inputs are the maximal trip count, the condition, and
// the carried values; the body takes the iteration number, the condition and
// the carried values, and returns the condition, the carried values and one
// slice of each stacked value.
type loop struct {
	c       *call
	body    *graph.Graph
	carried []item
	stacked int
	trips   graph.Dim // maximal trip count; unknown if it is not known
	noLimit bool      // the trip count is omitted
	cond    *bool     // the first condition, if known
}

func loopRule(c *call) error {
	l := &loop{c: c, body: c.body("body"), noLimit: !c.has(0)}
	if l.body == nil {
		return fmt.Errorf("attribute body is missing")
	}
	for i := 2; i < c.arity(); i++ {
		l.carried = append(l.carried, c.item(i))
	}
	l.stacked = len(l.body.Outputs) - 1 - len(l.carried)
	if l.stacked < 0 || len(l.body.Inputs) != len(l.carried)+2 || len(c.n.Outputs) > len(l.body.Outputs)-1 {
		return fmt.Errorf("a body of %d inputs and %d outputs for %d carried values and %d outputs", len(l.body.Inputs), len(l.body.Outputs), len(l.carried), len(c.n.Outputs))
	}
	if v := c.contents(0); v != nil && len(v.elems) == 1 {
		l.trips = v.elems[0].dim()
	}
	yes := true
	l.cond = &yes
	if c.has(1) {
		l.cond = nil
		if v := c.contents(1); v != nil && len(v.elems) == 1 {
			l.cond = truth(v.elems[0])
		}
	}
	if done, err := l.unroll(); done || err != nil {
		return err
	}
	return l.fixpoint()
}

// iteration runs the body once.
func (l *loop) iteration(number item, cond *bool, carried []item) ([]item, error) {
	condition := item{typ: tensorOf(graph.Bool, graph.Shape{})}
	if cond != nil {
		condition.contents = &contents{dims: []int64{}, elems: []elem{boolElem(*cond)}}
	}
	return subgraph(l.c, l.body, "body", append([]item{l.asDeclared(0, number), l.asDeclared(1, condition)}, carried...))
}

// asDeclared gives the iteration number or the condition the shape [1] if the
// body declares its input i so. ONNX requires scalars; its checker and ONNX
// Runtime accept both.
func (l *loop) asDeclared(i int, it item) item {
	if len(l.body.Values[l.body.Inputs[i]].Decl.Shape) != 1 {
		return it
	}
	it.typ.Shape = graph.Shape{graph.Int(1)}
	if it.contents != nil {
		it.contents = &contents{dims: []int64{1}, elems: it.contents.elems}
	}
	return it
}

func scalar(n int64) item {
	return item{tensorOf(graph.Int64, graph.Shape{}), &contents{dims: []int64{}, elems: []elem{intElem(n)}}}
}

// unroll runs the loop as long as the conditions are known. done is false,
// with no effect, when they are not, or the loop is long.
func (l *loop) unroll() (done bool, err error) {
	limit, isInt := l.trips.Int()
	if !l.noLimit && !isInt || l.cond == nil || l.noLimit && !l.c.has(1) {
		return false, nil
	}
	if l.noLimit {
		limit = maxUnroll + 1
	}
	if isInt && (limit > maxUnroll || limit*int64(len(l.body.Nodes)) > maxUnrollNodes) {
		return false, nil
	}
	if limit <= 0 || !*l.cond {
		l.visitDead()
	}
	carried, cond := l.carried, l.cond
	stacks := make([][]item, l.stacked)
	for i := int64(0); i < limit && *cond; i++ {
		out, err := l.iteration(scalar(i), cond, carried)
		if err != nil {
			return false, fmt.Errorf("iteration %d: %w", i, err)
		}
		if cond = nil; out[0].contents != nil && len(out[0].contents.elems) == 1 {
			cond = truth(out[0].contents.elems[0])
		}
		if cond == nil || l.noLimit && (i == maxUnroll || (i+1)*int64(len(l.body.Nodes)) > maxUnrollNodes) {
			return false, nil
		}
		carried = out[1 : 1+len(carried)]
		for k := range stacks {
			stacks[k] = append(stacks[k], out[1+len(carried)+k])
		}
	}
	for i, it := range carried {
		l.c.give(i, it)
	}
	for k, s := range stacks {
		l.c.outType(len(carried)+k, l.stack(k, s))
	}
	return true, nil
}

// visitDead types a body that never runs.
func (l *loop) visitDead() {
	e := l.c.s.e
	made := len(e.bounds)
	e.quiet++
	_, _ = l.iteration(scalar(0), l.cond, l.carried) // errors do not matter: it does not run
	e.quiet--
	e.bounds = e.bounds[:made]
}

// stack returns the type of a stacked output after len(items) iterations.
func (l *loop) stack(k int, items []item) graph.Type {
	if len(items) == 0 {
		v := &l.body.Values[l.body.Outputs[1+len(l.carried)+k]]
		t, _ := mergeTypes(v.Type, l.c.s.e.bind(v.Decl))
		return stackType(t, graph.Int(0))
	}
	t := items[0].typ
	for _, it := range items[1:] {
		t = joinTypes(t, it.typ)
	}
	return stackType(t, graph.Int(int64(len(items))))
}

// stackType adds a leading dim.
func stackType(t graph.Type, n graph.Dim) graph.Type {
	if t.Kind == graph.TensorType && t.Shape != nil {
		t.Shape = concat([]graph.Dim{n}, t.Shape)
	}
	return t
}

// fixpoint finds types of the carried values that hold in every iteration.
func (l *loop) fixpoint() error {
	first := item{typ: tensorOf(graph.Int64, graph.Shape{})}
	state, out, err := settleState(l.c, l.carried, func(state []item) ([]item, error) {
		return l.iteration(first, nil, state)
	}, 1)
	if err != nil {
		return err
	}
	for i, it := range state {
		l.c.give(i, it)
	}
	n := l.count(out[0])
	for k := range l.stacked {
		i := len(l.carried) + k
		l.c.bound(i, 0, l.trips)
		l.c.outType(i, stackType(out[1+i].typ, n))
	}
	return nil
}

// count returns the number of iterations, if the condition never ends the
// loop.
func (l *loop) count(cond item) graph.Dim {
	if l.cond == nil || !*l.cond {
		return graph.Dim{}
	}
	if !l.c.has(1) { // the condition is then always true
		return l.trips
	}
	if v := cond.contents; v != nil && len(v.elems) == 1 {
		if t := truth(v.elems[0]); t != nil && *t {
			return l.trips.Max(graph.Int(0))
		}
	}
	return graph.Dim{}
}

// settleState runs a body on carried values until their types hold for every
// iteration; outputs from skip on are the new values. It returns the final
// types, and all outputs of the last run.
func settleState(c *call, first []item, run func([]item) ([]item, error), skip int) (state, out []item, err error) {
	state = make([]item, len(first))
	for i, it := range first {
		state[i] = item{typ: it.typ}
	}
	c.s.e.quiet++
	defer func() { c.s.e.quiet-- }()
	made := len(c.s.e.bounds)
	for pass := 0; ; pass++ {
		c.s.e.bounds = c.s.e.bounds[:made] // those of the last pass count
		if out, err = run(state); err != nil {
			return nil, nil, err
		}
		changed := false
		for i := range state {
			t := joinTypes(state[i].typ, out[skip+i].typ)
			if pass > 8 {
				t = forget(t)
			}
			changed = changed || typeText(t) != typeText(state[i].typ)
			state[i].typ = t
		}
		if !changed {
			break
		}
		if pass > 12 {
			return nil, nil, fmt.Errorf("the types of the carried values do not settle")
		}
	}
	return state, out, nil
}

// forget drops all dims.
func forget(t graph.Type) graph.Type {
	t.Len = graph.Dim{}
	if t.Shape != nil {
		t.Shape = unknownDims(len(t.Shape))
	}
	if t.Of != nil {
		of := forget(*t.Of)
		t.Of = &of
	}
	return t
}

// scan runs the body over slices of its last inputs. In opset 8 every value
// has a batch dim in front, and sequence_lens is input 0.
func scan(c *call) error {
	body := c.body("body")
	if body == nil {
		return fmt.Errorf("attribute body is missing")
	}
	if c.attr("num_scan_inputs") == nil {
		return fmt.Errorf("attribute num_scan_inputs is missing")
	}
	first, lead := 0, 0 // first input after sequence_lens, number of dims before the axis
	if c.ver < 9 {
		first, lead = 1, 1
	}
	m := c.int("num_scan_inputs", 0)
	n := int64(c.arity()-first) - m // carried values
	if m < 1 || n < 0 {
		return fmt.Errorf("num_scan_inputs is %d, the node has %d inputs", m, c.arity()-first)
	}
	k := int64(len(body.Outputs)) - n // stacked outputs
	if k < 0 || int64(len(c.n.Outputs)) > n+k || int64(len(c.n.Outputs)) < n {
		return fmt.Errorf("a body of %d outputs for %d carried values and %d outputs", len(body.Outputs), n, len(c.n.Outputs))
	}
	s := scanner{c: c, lead: lead, batch: graph.Dim{}}
	carried, slices, err := s.inputs(first, int(n), int(m))
	if err != nil {
		return err
	}
	state, out, err := settleState(c, carried, func(state []item) ([]item, error) {
		return subgraph(c, body, "body", append(append([]item{}, state...), slices...))
	}, 0)
	if err != nil {
		return err
	}
	return s.outputs(state, out[n:])
}

// A scanner holds what all slices of a Scan share.
type scanner struct {
	c     *call
	lead  int
	batch graph.Dim
	steps graph.Dim
}

// inputs returns the carried values and one slice of every scanned input.
func (s *scanner) inputs(first, n, m int) (carried, slices []item, err error) {
	for i := first; i < first+n; i++ {
		it := s.c.item(i)
		if it.typ, err = s.strip(it.typ, -1); err != nil {
			return nil, nil, err
		}
		carried = append(carried, item{typ: it.typ})
	}
	axes, _ := s.c.ints("scan_input_axes")
	for i := range m {
		t := s.c.typ(first + n + i)
		at := int64(0)
		if i < len(axes) {
			at = axes[i]
		}
		if t.Shape != nil {
			axis, err := axisOf(at, len(t.Shape)-s.lead)
			if err != nil {
				return nil, nil, fmt.Errorf("scanned input %d: %w", i, err)
			}
			steps, ok := mergeDim(s.steps, t.Shape[axis+s.lead])
			if !ok {
				return nil, nil, fmt.Errorf("scanned inputs have %s and %s steps", s.steps, t.Shape[axis+s.lead])
			}
			s.steps = steps
			if t, err = s.strip(t, axis+s.lead); err != nil {
				return nil, nil, err
			}
		}
		slices = append(slices, item{typ: t})
	}
	return carried, slices, nil
}

// strip removes the batch dim, if any, and the axis, unless it is -1.
func (s *scanner) strip(t graph.Type, axis int) (graph.Type, error) {
	if t.Shape == nil {
		return t, nil
	}
	if axis >= 0 {
		t.Shape = without(t.Shape, axis)
	}
	if s.lead > 0 {
		if len(t.Shape) == 0 {
			return t, fmt.Errorf("a scalar has no batch dim")
		}
		var ok bool
		if s.batch, ok = mergeDim(s.batch, t.Shape[0]); !ok {
			return t, fmt.Errorf("batch dims %s and %s differ", s.batch, t.Shape[0])
		}
		t.Shape = t.Shape[1:]
	}
	return t, nil
}

func (s *scanner) outputs(state, stacked []item) error {
	for i, it := range state {
		if s.lead > 0 {
			it.typ = stackType(it.typ, s.batch)
		}
		s.c.outType(i, it.typ)
	}
	axes, _ := s.c.ints("scan_output_axes")
	for k, it := range stacked {
		t := it.typ
		if t.Shape != nil {
			at := int64(0)
			if k < len(axes) {
				at = axes[k]
			}
			axis, err := axisOf(at, len(t.Shape)+1)
			if err != nil {
				return fmt.Errorf("stacked output %d: %w", k, err)
			}
			t.Shape = concat(t.Shape[:axis], []graph.Dim{s.steps}, t.Shape[axis:])
			if s.lead > 0 {
				t = stackType(t, s.batch)
			}
		}
		s.c.outType(len(state)+k, t)
	}
	return nil
}

// sequenceMap runs the body on every item of its first input; other inputs
// are sequences of the same length, or tensors given to every call.
func sequenceMap(c *call) error {
	body := c.body("body")
	n := c.typ(0).Len
	lists := make([]*contents, c.arity())
	count := -1
	for i := range lists {
		if c.typ(i).Kind != graph.SequenceType {
			continue
		}
		v := c.contents(i)
		if v == nil || !v.list || len(v.items) > maxUnroll || count >= 0 && count != len(v.items) {
			return mapOnce(c, body, n)
		}
		lists[i], count = v, len(v.items)
	}
	if count <= 0 {
		return mapOnce(c, body, n)
	}
	results := make([][]item, len(c.n.Outputs))
	for k := range count {
		args := make([]item, c.arity())
		for i := range args {
			if args[i] = c.item(i); lists[i] != nil {
				args[i] = lists[i].items[k]
			}
		}
		out, err := subgraph(c, body, "body", args)
		if err != nil {
			return err
		}
		if len(out) != len(results) {
			return fmt.Errorf("the body has %d outputs, the node %d", len(out), len(results))
		}
		for i := range results {
			results[i] = append(results[i], out[i])
		}
	}
	for i, items := range results {
		c.give(i, sequenceOf(items))
	}
	return nil
}

// mapOnce runs the body on the type that all items have in common.
func mapOnce(c *call, body *graph.Graph, n graph.Dim) error {
	args := make([]item, c.arity())
	for i := range args {
		if args[i] = c.item(i); args[i].typ.Kind == graph.SequenceType {
			args[i] = item{}
			if of := c.typ(i).Of; of != nil {
				args[i].typ = *of
			}
		}
	}
	out, err := subgraph(c, body, "body", args)
	if err != nil {
		return err
	}
	for i := range min(len(out), len(c.n.Outputs)) {
		of := out[i].typ
		c.outType(i, graph.Type{Kind: graph.SequenceType, Of: &of, Len: n})
	}
	return nil
}
