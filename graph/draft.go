package graph

import (
	"container/heap"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Draft is a graph whose nodes still name their values: what a reader finds
// in a file or a text. Resolve turns it into a Graph.
type Draft struct {
	Name         string
	Inputs       []DraftValue
	Outputs      []DraftValue
	Decls        []DraftValue // declared types of other values; unknown names are ignored
	Initializers []*Tensor    // named by Tensor.Name
	InitMeta     [][]Prop     // of the initializers; shorter than Initializers when the rest have none
	Nodes        []*DraftNode
	Meta         []Prop
	Pos          string // where it stands, a prefix for errors: "3:14: "

	free []string // names used and not defined here, each once; set by resolver.capture
}

// A DraftValue is a value's declaration.
type DraftValue struct {
	Name string
	Type Type
	Meta []Prop
	Pos  string // a prefix for errors, as of a Draft
}

// A DraftNode is a Node without ID, Inputs and Outputs. Arg.Value of its Args
// indexes In. Attributes may stand in any order; those of kind AttrGraph and
// AttrGraphs get their graphs from Subs.
type DraftNode struct {
	Node
	In, Out []string // "" is an omitted optional
	Subs    []DraftSub
	Pos     string // a prefix for errors, as of a Draft
}

// A DraftSub is the body of an attribute of kind AttrGraph, or the next one
// of kind AttrGraphs.
type DraftSub struct {
	Attr int // index in DraftNode.Attrs
	Body *Draft
}

// A DraftFunction is a Function with a Body to be resolved.
type DraftFunction struct {
	Function
	Draft *Draft
}

// Resolve builds the graph of d: it gives every name a value, puts nodes in
// execution order, and appends funcs to m.Functions. All graphs share m, which
// receives a warning for each thing tolerated. Names of an enclosing graph are
// captured; a name that is nowhere defined, one defined twice and a cycle are
// errors that name the node. The drafts become part of the result and must not
// be used again. It takes O(n log n) for n names and nodes.
func Resolve(m *Model, d *Draft, funcs []DraftFunction) (*Graph, error) {
	r := &resolver{model: m, bound: map[string]binding{}}
	for i := range funcs {
		f := funcs[i].Function
		body, err := r.root(funcs[i].Draft)
		if err != nil {
			return nil, fmt.Errorf("%sfunction %s: %w", funcs[i].Draft.Pos, f.label(), err)
		}
		f.Body = body
		m.Functions = append(m.Functions, &f)
	}
	if err := checkCalls(m.Functions); err != nil {
		return nil, err
	}
	return r.root(d)
}

// maxCalls bounds how deep functions call functions.
const maxCalls = 256

// checkCalls returns an error when a function is defined twice, calls itself,
// directly or through others, or calls more than maxCalls deep.
func checkCalls(funcs []*Function) error {
	c := calls{funcs: funcs, index: make(map[[3]string]int, len(funcs)), height: make([]int, len(funcs))}
	for i, f := range funcs {
		key := [3]string{f.Domain, f.Name, f.Overload}
		if _, twice := c.index[key]; twice {
			return fmt.Errorf("function %s is defined twice", f.label())
		}
		c.index[key] = i
	}
	for i := range funcs {
		if err := c.visit(i); err != nil {
			return err
		}
	}
	return nil
}

// calls walks the call graph of functions.
type calls struct {
	funcs  []*Function
	index  map[[3]string]int // by domain, name, overload
	height []int             // calls below a function, itself included; 0 before the visit, -1 during it
	path   []string          // labels of the functions being visited
}

func (c *calls) visit(i int) error {
	label := c.funcs[i].label()
	switch {
	case c.height[i] > 0:
		return nil
	case c.height[i] < 0:
		at := slices.Index(c.path, label)
		return fmt.Errorf("functions call each other in a cycle: %s -> %s", strings.Join(c.path[at:], " -> "), label)
	}
	c.height[i] = -1
	c.path = append(c.path, label)
	height := 1
	err := c.funcs[i].Body.visitNodes(func(n *Node) error {
		j, ok := c.index[[3]string{n.Domain, n.Op, n.Overload}]
		if !ok {
			return nil
		}
		if len(c.path) <= maxCalls {
			if err := c.visit(j); err != nil {
				return err
			}
		}
		if height = max(height, 1+c.height[j]); height > maxCalls || len(c.path) > maxCalls {
			return fmt.Errorf("function %s: functions call functions more than %d deep", label, maxCalls)
		}
		return nil
	})
	c.height[i], c.path = height, c.path[:len(c.path)-1]
	return err
}

// visitNodes calls visit for the nodes of g and of its subgraphs, until it
// returns an error.
func (g *Graph) visitNodes(visit func(n *Node) error) error {
	for i := range g.Nodes {
		if err := visit(&g.Nodes[i]); err != nil {
			return err
		}
		for _, sub := range g.Nodes[i].Subgraphs() {
			if err := sub.visitNodes(visit); err != nil {
				return err
			}
		}
	}
	return nil
}

// label names the function as calls do: domain.name:overload.
func (f *Function) label() string {
	s := f.Name
	if f.Domain != "" {
		s = f.Domain + "." + s
	}
	if f.Overload != "" {
		s += ":" + f.Overload
	}
	return s
}

// A resolver resolves names, one graph at a time, outer before inner.
type resolver struct {
	model *Model
	bound map[string]binding // innermost definition of each name in sight
	scope []scope            // the graphs being built, outermost first
}

// A binding is a name's value in the graph at depth (1 is the outermost).
type binding struct {
	depth int
	value ValueID
}

// A scope is a graph under construction, and the bindings it hides.
type scope struct {
	g    *Graph
	undo []hidden
}

type hidden struct {
	name string
	old  binding
}

// root resolves a graph that has no parent.
func (r *resolver) root(d *Draft) (*Graph, error) {
	r.capture(d)
	g, err := r.graph(d)
	if err != nil {
		return nil, err
	}
	shareCaptured(g)
	return g, nil
}

// capture sets free of d and of the graphs inside.
func (r *resolver) capture(d *Draft) {
	const used, defined = 1, 2
	state := make(map[string]uint8, 2*len(d.Nodes)+len(d.Inputs)+len(d.Initializers))
	for _, v := range d.Inputs {
		state[v.Name] = defined
	}
	for _, t := range d.Initializers {
		state[t.Name] = defined
	}
	for i := range d.Nodes {
		for _, out := range d.Nodes[i].Out {
			state[out] = defined
		}
	}
	use := func(name string) {
		if name != "" && state[name] == 0 {
			state[name] = used
			d.free = append(d.free, name)
		}
	}
	for i := range d.Nodes {
		for _, in := range d.Nodes[i].In {
			use(in)
		}
		for _, sub := range d.Nodes[i].Subs {
			r.capture(sub.Body)
			for _, name := range sub.Body.free {
				use(name)
			}
		}
	}
	for _, v := range d.Outputs {
		use(v.Name)
	}
}

// shareCaptured copies types and constants of outer values to the values that
// capture them, in all graphs inside g.
func shareCaptured(g *Graph) {
	for i := range g.Nodes {
		for _, sub := range g.Nodes[i].Subgraphs() {
			for j := range sub.Values {
				if v := &sub.Values[j]; v.Kind == Captured {
					outer := &g.Values[v.Outer]
					v.Type, v.Decl, v.Const = outer.Type, outer.Decl, outer.Const
				}
			}
			shareCaptured(sub)
		}
	}
}

// graph resolves d inside the current scopes.
func (r *resolver) graph(d *Draft) (*Graph, error) {
	order, err := r.order(d)
	if err != nil {
		return nil, err
	}
	g := &Graph{Name: d.Name, Model: r.model, Meta: d.Meta}
	g.Values = make([]Value, 0, len(d.Inputs)+len(d.Initializers)+len(d.Nodes)+len(d.free))
	g.Nodes = make([]Node, 0, len(d.Nodes))
	if len(r.scope) > 0 {
		g.Parent = r.scope[len(r.scope)-1].g
	}
	r.scope = append(r.scope, scope{g: g})
	defer r.leave()
	if err := r.sources(d); err != nil {
		return nil, err
	}
	ids := make([]ValueID, 0, links(d))
	for _, i := range order {
		if ids, err = r.node(d.Nodes[i], ids); err != nil {
			return nil, err
		}
	}
	return g, r.finish(d)
}

// links counts the inputs and outputs of all nodes.
func links(d *Draft) int {
	n := 0
	for i := range d.Nodes {
		n += len(d.Nodes[i].In) + len(d.Nodes[i].Out)
	}
	return n
}

func (r *resolver) leave() {
	top := &r.scope[len(r.scope)-1]
	for _, h := range slices.Backward(top.undo) {
		if h.old.depth == 0 {
			delete(r.bound, h.name)
		} else {
			r.bound[h.name] = h.old
		}
	}
	r.scope = r.scope[:len(r.scope)-1]
}

// bind adds v to the graph at depth and binds its name to it.
func (r *resolver) bind(depth int, v Value) ValueID {
	s := &r.scope[depth-1]
	v.ID = ValueID(len(s.g.Values))
	s.g.Values = append(s.g.Values, v)
	s.undo = append(s.undo, hidden{v.Name, r.bound[v.Name]})
	r.bound[v.Name] = binding{depth, v.ID}
	return v.ID
}

// define binds a new value of the innermost graph, whose name must be free.
// A value without a name cannot be referred to.
func (r *resolver) define(v Value) (ValueID, error) {
	if v.Name == "" {
		g := r.scope[len(r.scope)-1].g
		v.ID = ValueID(len(g.Values))
		g.Values = append(g.Values, v)
		return v.ID, nil
	}
	if b := r.bound[v.Name]; b.depth == len(r.scope) {
		old := &r.scope[b.depth-1].g.Values[b.value]
		return NoValue, fmt.Errorf("value %q is defined twice; it is also %s", v.Name, r.origin(old))
	}
	return r.bind(len(r.scope), v), nil
}

// origin says where a value of the innermost graph comes from.
func (r *resolver) origin(v *Value) string {
	if v.Kind == Computed {
		return "an output of node " + r.scope[len(r.scope)-1].g.Nodes[v.Def].Label()
	}
	return "an " + v.Kind.String()
}

// lookup returns the value bound to name in the innermost graph, capturing it
// through every graph between.
func (r *resolver) lookup(name string) (ValueID, bool) {
	b, ok := r.bound[name]
	if !ok {
		return NoValue, false
	}
	for b.depth < len(r.scope) {
		id := r.bind(b.depth+1, Value{Name: name, Kind: Captured, Outer: b.value, Def: -1})
		b = binding{b.depth + 1, id}
	}
	return b.value, true
}

// sources defines inputs and initializers.
func (r *resolver) sources(d *Draft) error {
	g := r.scope[len(r.scope)-1].g
	inits := make(map[string]bool, len(d.Initializers))
	for _, t := range d.Initializers {
		inits[t.Name] = true
	}
	var overridable []string
	for _, v := range d.Inputs {
		if inits[v.Name] {
			overridable = append(overridable, v.Name)
			continue
		}
		id, err := r.define(Value{Name: v.Name, Kind: Input, Type: v.Type, Decl: v.Type, Meta: v.Meta, Outer: NoValue, Def: -1})
		if err != nil {
			return fmt.Errorf("%s%w", v.Pos, err)
		}
		g.Inputs = append(g.Inputs, id)
	}
	for i, t := range d.Initializers {
		typ := t.ValueType()
		v := Value{Name: t.Name, Kind: Initializer, Type: typ, Decl: typ, Const: t, Outer: NoValue, Def: -1}
		if i < len(d.InitMeta) {
			v.Meta = d.InitMeta[i]
		}
		if _, err := r.define(v); err != nil {
			return fmt.Errorf("%s%w", d.Pos, err)
		}
	}
	if n := len(overridable); n > 0 && r.model.IRVersion >= 4 {
		r.warn("overridable-initializer", "", "%d initializers are also graph inputs (first: %q); taken as initializers", n, overridable[0])
	}
	return nil
}

func (r *resolver) warn(code, node, format string, args ...any) {
	r.model.Warnings = append(r.model.Warnings, Warning{Code: code, Node: node, Message: fmt.Sprintf(format, args...)})
}

// ValueType returns the type of a value that holds t: a dense tensor.
func (t *Tensor) ValueType() Type {
	shape := make(Shape, len(t.Dims))
	for i, d := range t.Dims {
		shape[i] = Int(d)
	}
	return Type{Kind: TensorType, Elem: t.Type, Shape: shape}
}

// node appends n, whose inputs are bound. Its ids are cut from the slice ids,
// which has room for them.
func (r *resolver) node(n *DraftNode, ids []ValueID) ([]ValueID, error) {
	g := r.scope[len(r.scope)-1].g
	node := n.Node
	node.ID = int32(len(g.Nodes))
	fail := func(err error) error { return fmt.Errorf("%s%s: %w", n.Pos, n.label(int(node.ID)), err) }
	start := len(ids)
	for i, name := range n.In {
		id, ok := NoValue, true
		if name != "" {
			id, ok = r.lookup(name)
		}
		if !ok {
			return nil, fail(fmt.Errorf("input %d (%q) is not defined", i, name))
		}
		ids = append(ids, id)
	}
	node.Inputs = ids[start:len(ids):len(ids)]
	if err := r.subgraphs(n, &node); err != nil {
		return nil, fail(err)
	}
	start = len(ids)
	g.Nodes = append(g.Nodes, node)
	for _, name := range n.Out {
		id := NoValue
		if name != "" {
			var err error
			if id, err = r.define(Value{Name: name, Kind: Computed, Outer: NoValue, Def: node.ID}); err != nil {
				return nil, fail(err)
			}
		}
		ids = append(ids, id)
	}
	g.Nodes[node.ID].Outputs = ids[start:len(ids):len(ids)]
	r.arrange(&g.Nodes[node.ID])
	return ids, nil
}

// subgraphs resolves the graphs in n's attributes, in the attributes' final
// order, so that captured values are numbered alike however a file is written.
func (r *resolver) subgraphs(n *DraftNode, node *Node) error {
	slices.SortStableFunc(n.Subs, func(a, b DraftSub) int {
		return strings.Compare(node.Attrs[a.Attr].Name, node.Attrs[b.Attr].Name)
	})
	for _, sub := range n.Subs {
		a := &node.Attrs[sub.Attr]
		g, err := r.graph(sub.Body)
		if err != nil {
			return fmt.Errorf("%s: %w", a.Name, err)
		}
		if a.Kind == AttrGraph {
			a.Graph = g
		} else {
			a.Graphs = append(a.Graphs, g)
		}
	}
	return nil
}

// arrange sorts attributes by name, keeping the last of those with the same
// one, and turns the indices in Args into values.
func (r *resolver) arrange(n *Node) {
	byName := func(a, b Attr) int { return strings.Compare(a.Name, b.Name) }
	if !slices.IsSortedFunc(n.Attrs, byName) {
		slices.SortStableFunc(n.Attrs, byName)
	}
	for i := 0; i+1 < len(n.Attrs); {
		if n.Attrs[i].Name != n.Attrs[i+1].Name {
			i++
			continue
		}
		r.warn("duplicate-attribute", n.Name, "%s: attribute %q is given twice; the last counts", n.Label(), n.Attrs[i].Name)
		n.Attrs = slices.Delete(n.Attrs, i, i+1)
	}
	bindArgs(n.Args, n.Inputs)
}

func bindArgs(args []Arg, inputs []ValueID) {
	for i := range args {
		a := &args[i]
		if a.Kind == ArgValue {
			a.Value = inputs[a.Value]
		}
		bindArgs(a.List, inputs)
	}
}

// finish resolves outputs and attaches declared types.
func (r *resolver) finish(d *Draft) error {
	g := r.scope[len(r.scope)-1].g
	for _, v := range d.Outputs {
		id, ok := r.lookup(v.Name)
		if !ok {
			return fmt.Errorf("%soutput %q is not defined", v.Pos, v.Name)
		}
		g.Outputs = append(g.Outputs, id)
	}
	for _, list := range [][]DraftValue{d.Outputs, d.Decls, d.Inputs} {
		for _, v := range list {
			if b := r.bound[v.Name]; b.depth == len(r.scope) {
				g.Values[b.value].declare(v)
			}
		}
	}
	return nil
}

// declare adds what d says and was not known before.
func (v *Value) declare(d DraftValue) {
	if v.Decl.Kind == NoType && v.Kind != Captured {
		v.Type, v.Decl = d.Type, d.Type
	}
	for _, p := range d.Meta {
		if !slices.ContainsFunc(v.Meta, func(q Prop) bool { return q.Key == p.Key }) {
			v.Meta = append(v.Meta, p)
		}
	}
}

// order returns the indices of d's nodes in execution order: as they stand
// when that is one, else by Kahn's algorithm, earlier nodes first.
func (r *resolver) order(d *Draft) ([]int32, error) {
	local := make(map[string]int32, len(d.Nodes)) // producing node; -1 for inputs and initializers
	for _, v := range d.Inputs {
		local[v.Name] = -1
	}
	for _, t := range d.Initializers {
		local[t.Name] = -1
	}
	order := make([]int32, len(d.Nodes))
	for i := range d.Nodes {
		order[i] = int32(i)
		for _, out := range d.Nodes[i].Out {
			if _, twice := local[out]; out != "" && !twice {
				local[out] = int32(i)
			}
		}
	}
	sorted := true
	for i := range d.Nodes {
		d.Nodes[i].uses(func(name string) {
			if p, ok := local[name]; ok && p >= int32(i) {
				sorted = false
			}
		})
	}
	if sorted {
		return order, nil
	}
	order, err := kahn(d, local)
	if err == nil {
		r.warn("unsorted", "", "graph %q: nodes are not in execution order; they were sorted", d.Name)
	}
	return order, err
}

// uses visits the names that n reads, itself or in a subgraph; some twice.
func (n *DraftNode) uses(visit func(name string)) {
	for _, in := range n.In {
		visit(in)
	}
	for _, sub := range n.Subs {
		for _, name := range sub.Body.free {
			visit(name)
		}
	}
}

// kahn sorts d's nodes given the node that produces each local name.
func kahn(d *Draft, local map[string]int32) ([]int32, error) {
	waits := make([]int32, len(d.Nodes)) // inputs not yet produced
	users := make([][]int32, len(d.Nodes))
	for i := range d.Nodes {
		d.Nodes[i].uses(func(name string) {
			if p, ok := local[name]; ok && p >= 0 {
				waits[i]++
				users[p] = append(users[p], int32(i))
			}
		})
	}
	var ready minHeap
	for i, n := range waits {
		if n == 0 {
			ready = append(ready, int32(i))
		}
	}
	order := make([]int32, 0, len(d.Nodes))
	for len(ready) > 0 {
		i := heap.Pop(&ready).(int32)
		order = append(order, i)
		for _, u := range users[i] {
			if waits[u]--; waits[u] == 0 {
				heap.Push(&ready, u)
			}
		}
	}
	if len(order) < len(d.Nodes) {
		return nil, cycle(d, local, waits)
	}
	return order, nil
}

// cycle names the nodes of one cycle among those that still wait.
func cycle(d *Draft, local map[string]int32, waits []int32) error {
	at := int32(slices.IndexFunc(waits, func(n int32) bool { return n > 0 }))
	var path []int32
	seen := map[int32]int{}
	for {
		if start, ok := seen[at]; ok {
			path = path[start:]
			break
		}
		seen[at] = len(path)
		path = append(path, at)
		next := int32(-1)
		d.Nodes[at].uses(func(name string) {
			if p, ok := local[name]; ok && p >= 0 && waits[p] > 0 && next < 0 {
				next = p
			}
		})
		at = next
	}
	slices.Reverse(path) // from producers to consumers
	const shown = 8
	var b strings.Builder
	for i, n := range path {
		if i == shown {
			fmt.Fprintf(&b, "(%d more) -> ", len(path)-shown)
			break
		}
		b.WriteString(d.Nodes[n].label(int(n)) + " -> ")
	}
	return fmt.Errorf("%scycle: %s%s", d.Nodes[path[0]].Pos, b.String(), d.Nodes[path[0]].label(int(path[0])))
}

// label names a draft node as Node.Label does; index stands in for the ID.
func (n *DraftNode) label(index int) string {
	out := ""
	if len(n.Out) > 0 {
		out = n.Out[0]
	}
	return nodeLabel(&n.Node, out, index)
}

// nodeLabel is the way errors name a node: its op and its name, else its
// first output's, else its place.
func nodeLabel(n *Node, out string, index int) string {
	switch {
	case n.Name != "":
		return fmt.Sprintf("%s %q", n.Op, n.Name)
	case out != "":
		return fmt.Sprintf("%s -> %q", n.Op, out)
	}
	return fmt.Sprintf("%s (node %d)", n.Op, index)
}

// Label names the node in messages: Conv "conv1", or Conv (node 12) when it
// has no name.
func (n *Node) Label() string { return nodeLabel(n, "", int(n.ID)) }

// Subgraphs returns the graphs in n's attributes, in attribute order.
func (n *Node) Subgraphs() []*Graph {
	var out []*Graph
	for i := range n.Attrs {
		if g := n.Attrs[i].Graph; g != nil {
			out = append(out, g)
		}
		out = append(out, n.Attrs[i].Graphs...)
	}
	return out
}

// minHeap is a heap of node indices.
type minHeap []int32

func (h minHeap) Len() int           { return len(h) }
func (h minHeap) Less(i, j int) bool { return h[i] < h[j] }
func (h minHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *minHeap) Push(x any)        { *h = append(*h, x.(int32)) }
func (h *minHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// DimOf returns what a dimension's name in a file stands for. "" and "?" are
// unknown, as is a negative number; "past + 1", "12*batch" and "floor(H/2)"
// are expressions; anything else is a symbol, even "x.3_dim_0", "a/b_dim_1"
// and "Batch Size", and so is what only looks like an expression.
func DimOf(name string) Dim {
	if name == "" || name == "?" {
		return Dim{}
	}
	if !looksComputed(name) {
		return Sym(name)
	}
	d, err := ParseDim(name)
	if err != nil {
		return Sym(name)
	}
	if n, ok := d.Int(); ok && n < 0 {
		return Dim{}
	}
	return d
}

// looksComputed reports whether name is a number or holds an operator as
// expressions are written: + and - and / occur in names, too.
func looksComputed(name string) bool {
	if _, err := strconv.ParseInt(name, 10, 64); err == nil {
		return true
	}
	return strings.ContainsAny(name, "*(+%") || strings.Contains(name, "//") ||
		strings.Contains(name, " - ") || strings.Contains(name, " / ")
}
