package graph

import (
	"fmt"
	"slices"
	"strings"
)

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
	} else {
		r.bound = make(map[string]binding, cap(g.Values)) // empty: nothing else is in sight
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
	if depth > 1 {
		s.undo = append(s.undo, hidden{v.Name, r.bound[v.Name]})
	}
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

// origin describes where a value of the innermost graph comes from.
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
	declared := map[string]Type{}
	for _, v := range d.Inputs {
		if inits[v.Name] {
			overridable = append(overridable, v.Name)
			declared[v.Name] = v.Type
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
		if decl := declared[t.Name]; decl.Kind != NoType {
			v.Decl = decl
		}
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
	kept := n.Attrs[:0]
	for i := range n.Attrs {
		a := n.Attrs[i]
		if last := len(kept) - 1; last < 0 || kept[last].Name != a.Name {
			kept = append(kept, a)
			continue
		} else if i+1 == len(n.Attrs) || n.Attrs[i+1].Name != a.Name { // the last of them
			r.warn("duplicate-attribute", n.Name, "%s: attribute %q is given more than once; the last counts", n.Label(), a.Name)
		}
		kept[len(kept)-1] = a
	}
	clear(n.Attrs[len(kept):])
	n.Attrs = kept
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

// declare adds what d declares and was not known.
func (v *Value) declare(d DraftValue) {
	if v.Decl.Kind == NoType && v.Kind != Captured {
		v.Type, v.Decl = d.Type, d.Type
	}
	if len(v.Meta) == 0 || len(d.Meta) == 0 {
		v.Meta = append(v.Meta, d.Meta...)
		return
	}
	known := make(map[string]bool, len(v.Meta)+len(d.Meta))
	for _, p := range v.Meta {
		known[p.Key] = true
	}
	for _, p := range d.Meta {
		if !known[p.Key] {
			known[p.Key] = true
			v.Meta = append(v.Meta, p)
		}
	}
}
