package lift

import (
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/infer"
)

// hostElems is the largest number of elements of a computed constant that
// counts as a Python number or list instead of a tensor on the device.
const hostElems = 1024

// A patLift is the state of a lift by patterns.
type patLift struct {
	*builder
	ops      []string        // qualified operator of each node
	alias    []graph.ValueID // for each source value: the value it is another name of
	def      []int32         // for each source value: the node that defines it, or -1
	uses     []int32         // for each source value: number of readers, graph outputs included
	reader   []int32         // for each source value: the first node that reads it, or -1
	rights   []int32         // for each source value: number of MatMul nodes with it as their second operand
	host     []bool          // source values that depend only on shapes and constants
	claimed  []bool          // nodes inside a match of several nodes
	fused    []*match        // matches of several nodes, by their last node
	weights  []bool          // source values in the place of parameters
	buffers  []bool          // source values in the place of running statistics
	bound    bool            // all inputs of the graph have known sizes
	scopes   *scopeNames
	last     origin
	restored int    // batch normalisations that metadata shows to be folded
	flipped  []bool // source values stored transposed: [in, out]
}

// liftPatterns lifts a graph by recognising ONNX operators and groups of them.
func liftPatterns(g *graph.Graph) (*Lifted, error) {
	p := newPatLift(g)
	table := ruleTable()
	p.fuse(table)
	for i := range g.Nodes {
		if !p.claimed[i] {
			p.node(table, int32(i))
		}
	}
	p.roles()
	p.warn()
	if len(p.l.Graph.Nodes) > 0 && p.lifted() == 0 {
		p.l.Source = None
	}
	l, err := p.finish()
	if err != nil {
		return nil, err
	}
	l.sweep()
	return l, nil
}

func newPatLift(g *graph.Graph) *patLift {
	n := len(g.Values)
	p := &patLift{builder: newBuilder(g, Patterns), scopes: newScopeNames(g), alias: make([]graph.ValueID, n), def: make([]int32, n), uses: make([]int32, n),
		reader: make([]int32, n), rights: make([]int32, n), host: make([]bool, n), weights: make([]bool, n), buffers: make([]bool, n), flipped: make([]bool, n),
		claimed: make([]bool, len(g.Nodes)), ops: make([]string, len(g.Nodes)), fused: make([]*match, len(g.Nodes))}
	for i := range n {
		p.alias[i], p.def[i], p.reader[i] = graph.ValueID(i), -1, -1
	}
	p.bound = !slices.ContainsFunc(g.Inputs, p.vagueValue)
	for i := range g.Nodes {
		nd := &g.Nodes[i]
		p.ops[i] = qualified(nd)
		for _, o := range nd.Outputs {
			if o >= 0 {
				p.def[o] = int32(i)
			}
		}
		p.classify(nd)
	}
	for i := range g.Nodes {
		if p.sameAs(&g.Nodes[i]) >= 0 {
			continue
		}
		for _, id := range reads(&g.Nodes[i]) {
			id = p.resolve(id)
			p.uses[id]++
			if p.reader[id] < 0 {
				p.reader[id] = int32(i)
			}
		}
		if n := &g.Nodes[i]; n.Op == "MatMul" && n.Domain == "" && len(n.Inputs) == 2 && n.Inputs[1] >= 0 {
			p.rights[p.resolve(n.Inputs[1])]++
		}
	}
	for _, o := range g.Outputs {
		if o >= 0 {
			p.uses[p.resolve(o)]++
		}
	}
	return p
}

// classify determines whether a node only renames its operand or computes sizes.
func (p *patLift) classify(n *graph.Node) {
	if id := p.sameAs(n); id >= 0 {
		p.alias[n.Outputs[0]] = p.resolve(id)
		return
	}
	for _, o := range n.Outputs {
		if o >= 0 {
			p.host[o] = p.onHost(n, o)
		}
	}
}

func (p *patLift) resolve(id graph.ValueID) graph.ValueID { return p.alias[id] }

// value returns the lifted value of a source value.
func (p *patLift) value(id graph.ValueID) graph.ValueID {
	if id < 0 {
		return graph.NoValue
	}
	return p.builder.value(p.resolve(id))
}

// reads lists the values that a node and its subgraphs read.
func reads(n *graph.Node) []graph.ValueID {
	out := slices.DeleteFunc(slices.Clone(n.Inputs), func(id graph.ValueID) bool { return id < 0 })
	subs := n.Subgraphs()
	if len(subs) == 0 {
		return out
	}
	seen := map[graph.ValueID]bool{}
	for _, sub := range subs {
		for i := range sub.Values {
			if v := &sub.Values[i]; v.Kind == graph.Captured && v.Outer >= 0 && !seen[v.Outer] {
				seen[v.Outer] = true
				out = append(out, v.Outer)
			}
		}
	}
	return out
}

// sameAs returns the operand that a node returns unchanged, or NoValue.
func (p *patLift) sameAs(n *graph.Node) graph.ValueID {
	if n.Domain != "" && n.Domain != "ai.onnx" || len(n.Inputs) == 0 || n.Inputs[0] < 0 || len(n.Outputs) != 1 || n.Outputs[0] < 0 {
		return graph.NoValue
	}
	in, out := p.src.Values[n.Inputs[0]].Type, p.src.Values[n.Outputs[0]].Type
	same := false
	switch n.Op {
	case "Identity":
		same = true
	case "Cast", "CastLike":
		same = in.Kind == graph.TensorType && in.Elem == out.Elem && in.Elem != graph.Undefined
	case "Concat", "Sum", "Max", "Min", "Mean":
		same = len(n.Inputs) == 1
	case "Transpose":
		same = slices.IsSorted(attrInts(n, "perm", nil)) && n.Attr("perm") != nil
	}
	if !same {
		return graph.NoValue
	}
	return n.Inputs[0]
}

// onHost reports whether output o of n is a size or a small constant, which
// takes no device memory.
func (p *patLift) onHost(n *graph.Node, o graph.ValueID) bool {
	v := &p.src.Values[o]
	small := p.elems(o) <= hostElems
	switch {
	case n.Op == "Constant":
		return true
	case p.ofState(o):
		return false
	case v.Const.Known() && small:
		return true
	case n.Op == "Shape" || n.Op == "Size":
		return true
	case v.Type.Elem == graph.String:
		return true
	}
	isView := infer.Is(n.Domain, n.Op, infer.Views)
	if len(n.Inputs) == 0 || !isView && (!infer.Is(n.Domain, n.Op, infer.Sizes) || !small || !v.Type.Shape.Ranked() || len(v.Type.Shape) > 1) {
		return false
	}
	for j, id := range n.Inputs {
		if id >= 0 && !p.host[p.resolve(id)] && !(p.smallInitializer(id) && (j > 0 || !isView)) {
			return false
		}
	}
	return true
}

func (p *patLift) smallInitializer(id graph.ValueID) bool {
	return p.src.Values[id].Kind == graph.Initializer && p.elems(id) <= hostElems
}

// elems returns the number of elements of a value, 0 if unknown.
func (p *patLift) elems(id graph.ValueID) int64 {
	if dims, ok := p.src.Values[id].Type.Shape.Static(); ok {
		n, _ := graph.Product(dims)
		return n
	}
	return 0
}

// stored reports whether a value is a floating-point tensor of the file, but
// not a scalar.
func (p *patLift) stored(id graph.ValueID) bool {
	v := &p.src.Values[id]
	from := v.Kind == graph.Initializer || p.def[id] >= 0 && p.src.Nodes[p.def[id]].Op == "Constant"
	return from && v.Type.Elem.IsFloat() && len(v.Type.Shape) > 0
}

// base follows a value back through operators that only change its dims:
// exporters bring parameters to the dims that broadcasting needs.
func (p *patLift) base(id graph.ValueID) graph.ValueID {
	for {
		id = p.resolve(id)
		if p.def[id] < 0 {
			return id
		}
		n := &p.src.Nodes[p.def[id]]
		if !infer.Is(n.Domain, n.Op, infer.Reshapes) || len(n.Inputs) == 0 || n.Inputs[0] < 0 || p.elems(id) != p.elems(n.Inputs[0]) {
			return id
		}
		id = n.Inputs[0]
	}
}

// ofState reports whether a value is a view of a tensor stored under the name
// of a parameter or buffer, and so not a constant even if its elements are
// known.
func (p *patLift) ofState(o graph.ValueID) bool {
	b := p.base(o)
	return b != p.resolve(o) && p.src.Values[b].Kind == graph.Initializer && p.stored(b) && stateName(p.src.Values[b].Name)
}

// constant reports whether a value is stored or known.
func (p *patLift) constant(id graph.ValueID) bool {
	if id < 0 {
		return false
	}
	id = p.resolve(id)
	return p.src.Values[id].Kind == graph.Initializer || p.host[id]
}

// number returns a known scalar.
func (p *patLift) number(id graph.ValueID) (float64, bool) {
	if id < 0 {
		return 0, false
	}
	id = p.resolve(id)
	t := p.src.Values[id].Const
	if !t.Known() || p.elems(id) != 1 || !p.src.Values[id].Type.Shape.Ranked() {
		return 0, false
	}
	switch {
	case len(t.Floats) == 1:
		return t.Floats[0], true
	case len(t.Ints) == 1:
		return float64(t.Ints[0]), true
	}
	return 0, false
}

// ints returns the elements of a known integer tensor.
func (p *patLift) ints(id graph.ValueID) ([]int64, bool) {
	if id < 0 {
		return nil, false
	}
	t := p.src.Values[p.resolve(id)].Const
	if !t.Known() || t.Floats != nil || t.Strings != nil {
		return nil, false
	}
	return t.Ints, true
}

// fuse finds the matches of several nodes: rules apply in the table's order,
// each to nodes that earlier ones left.
func (p *patLift) fuse(table *rules) {
	for _, r := range table.fused {
		for k, t := range r.terms {
			ops := t.roots()
			for i := range p.src.Nodes {
				if p.claimed[i] || p.fused[i] != nil || !slices.Contains(ops, p.ops[i]) || p.allHost(&p.src.Nodes[i]) {
					continue
				}
				if m := p.try(r, r.terms[k:k+1], int32(i)); m != nil && !slices.ContainsFunc(m.nodes, func(j int32) bool { return p.readsUnknownSize(&p.src.Nodes[j]) }) {
					p.claim(m)
				}
			}
		}
	}
}

// claim marks the nodes of a match, so that no other match uses them.
func (p *patLift) claim(m *match) {
	p.fused[m.nodes[0]] = m
	for _, j := range m.nodes[1:] {
		p.claimed[j] = !p.ofWeight(&p.src.Nodes[j])
	}
}

func (p *patLift) allHost(n *graph.Node) bool {
	for _, o := range n.Outputs {
		if o >= 0 && !p.host[o] {
			return false
		}
	}
	return true
}

// node lifts one node, or the match that ends in it.
func (p *patLift) node(table *rules, i int32) {
	m := p.fused[i]
	if m == nil {
		p.single(table, i)
		return
	}
	since := len(p.l.Graph.Nodes)
	if m.rule.run(p, m) {
		markInexact(p, since, m)
		return
	}
	inner := slices.Clone(m.nodes)
	slices.Sort(inner)
	for _, j := range inner {
		if p.claimed[j] || j == i {
			p.single(table, j)
		}
	}
}

// single lifts a node on its own, or keeps it unchanged.
func (p *patLift) single(table *rules, i int32) {
	n := &p.src.Nodes[i]
	if id := p.sameAs(n); id >= 0 {
		p.to[n.Outputs[0]] = p.value(id)
		return
	}
	if p.allHost(n) && !p.repeats(n) {
		return
	}
	for _, r := range table.single[p.ops[i]] {
		if p.readsUnknownSize(n) {
			break
		}
		since := len(p.l.Graph.Nodes)
		if m := p.try(r, r.terms, i); m != nil && r.run(p, m) {
			markInexact(p, since, m)
			return
		}
	}
	p.unlifted(n)
}

// repeats reports whether a node expands a known constant beyond what inference
// lists: it then needs a call.
func (p *patLift) repeats(n *graph.Node) bool {
	if n.Op != "Expand" || len(n.Inputs) == 0 || len(n.Outputs) == 0 || n.Inputs[0] < 0 || n.Outputs[0] < 0 || !p.src.Values[p.resolve(n.Inputs[0])].Const.Known() || p.src.Values[n.Outputs[0]].Const.Known() {
		return false
	}
	_, ok := size(p, n.Outputs[0])
	return ok
}

// readsUnknownSize reports whether a node reads a tensor of unknown size although all
// inputs of the graph have known sizes. That size depends on data, or on an
// operator that inference does not know, so that the node cannot be lifted.
func (p *patLift) readsUnknownSize(n *graph.Node) bool {
	if !p.bound {
		return false
	}
	for _, id := range reads(n) {
		if id = p.resolve(id); !p.host[id] && p.vagueValue(id) {
			return true
		}
	}
	return false
}

func (p *patLift) vagueValue(id graph.ValueID) bool {
	_, ok := p.src.Values[id].Type.Shape.Static()
	return !ok
}

// unlifted keeps a node as a call that the operator table does not know.
func (p *patLift) unlifted(n *graph.Node) {
	var args []graph.Arg
	for _, id := range reads(n) {
		args = append(args, argOf(p.value(id)))
	}
	p.emit(n, "onnx."+qualified(n), args, p.outs(n)...)
	if q := qualified(n); !slices.Contains(p.l.Unlifted, q) {
		p.l.Unlifted = append(p.l.Unlifted, q)
	}
}

// lifted counts the calls that are not ONNX operators.
func (p *patLift) lifted() int {
	k := 0
	for i := range p.l.Graph.Nodes {
		if opName(&p.l.Graph.Nodes[i]) != "onnx" {
			k++
		}
	}
	return k
}

// outs returns the lifted outputs of a node.
func (p *patLift) outs(n *graph.Node) []graph.ValueID {
	out := make([]graph.ValueID, len(n.Outputs))
	for i, o := range n.Outputs {
		out[i] = p.value(o)
	}
	return out
}

// emit appends a call that stems from node n.
func (p *patLift) emit(n *graph.Node, op string, args []graph.Arg, outs ...graph.ValueID) {
	c := graph.Node{Name: n.Name, Op: op, Args: args, Outputs: outs}
	if c.Name == "" && outs[0] >= 0 {
		c.Name = p.l.Graph.Values[outs[0]].Name
	}
	o := p.origin(n)
	c.Module, c.Meta = o.module, o.meta
	p.call(c, o.class)
}

// temp makes a value between the calls of one node.
func (p *patLift) temp(n *graph.Node, name string, t graph.Type) graph.ValueID {
	base := n.Name
	if base == "" && n.Outputs[0] >= 0 {
		base = p.src.Values[n.Outputs[0]].Name
	}
	return p.fresh(base+"/"+name, t)
}

// step emits a call whose result is a temporary of the given type.
func (p *patLift) step(n *graph.Node, name string, t graph.Type, op string, args ...graph.Arg) graph.Arg {
	id := p.temp(n, name, t)
	p.emit(n, op, args, id)
	return argOf(id)
}

// shaped returns type t with other dims; unknown ones are negative.
func shaped(t graph.Type, dims ...int64) graph.Type {
	t.Kind = graph.TensorType
	t.Shape = make(graph.Shape, len(dims))
	for i, d := range dims {
		if d >= 0 {
			t.Shape[i] = graph.Int(d)
		}
	}
	return t
}

// in returns input i of n as an argument, None if omitted.
func (p *patLift) in(n *graph.Node, i int) graph.Arg {
	if i >= len(n.Inputs) || n.Inputs[i] < 0 {
		return graph.Arg{Kind: graph.ArgNone}
	}
	return argOf(p.value(n.Inputs[i]))
}

// input returns input i of n, or NoValue.
func input(n *graph.Node, i int) graph.ValueID {
	if i >= len(n.Inputs) {
		return graph.NoValue
	}
	return n.Inputs[i]
}

// operandArg returns an operand of arithmetic: a number if its value is known.
func (p *patLift) operandArg(v graph.ValueID) graph.Arg {
	if v < 0 {
		return graph.Arg{Kind: graph.ArgNone}
	}
	f, ok := p.number(v)
	if !ok || len(p.src.Values[p.resolve(v)].Type.Shape) > 1 {
		return argOf(p.value(v))
	}
	switch d := p.src.Values[p.resolve(v)].Type.Elem; {
	case d == graph.Bool:
		return graph.Arg{Kind: graph.ArgBool, Int: int64(f)}
	case d.IsFloat():
		return argFloat(f)
	}
	return argInt(int64(f))
}

// operandBeside is operandArg for one of two operands, but returns a tensor if
// a number would reduce the result's dims: beside an operand of fewer dims, or
// another number.
func (p *patLift) operandBeside(v, other graph.ValueID) graph.Arg {
	a, b := p.dims(v), p.dims(other)
	if _, known := p.number(other); v >= 0 && other >= 0 && a != nil && (len(a) > len(b) || known && len(a) == len(b)) {
		return argOf(p.value(v))
	}
	return p.operandArg(v)
}

// dims returns the dims of a value, -1 for unknown ones; nil if its rank is
// unknown.
func (p *patLift) dims(v graph.ValueID) []int64 {
	if v < 0 {
		return nil
	}
	s := p.src.Values[p.resolve(v)].Type.Shape
	if s == nil {
		return nil
	}
	out := make([]int64, len(s))
	for i, d := range s {
		n, ok := d.Int()
		if out[i] = n; !ok {
			out[i] = -1
		}
	}
	return out
}

// typeOf returns the type of a source value, the zero Type for an omitted operand.
func (p *patLift) typeOf(v graph.ValueID) graph.Type {
	if v < 0 {
		return graph.Type{}
	}
	return p.src.Values[p.resolve(v)].Type
}

func argOf(v graph.ValueID) graph.Arg {
	if v < 0 {
		return graph.Arg{Kind: graph.ArgNone}
	}
	return graph.Arg{Kind: graph.ArgValue, Value: v}
}
func argInt(n int64) graph.Arg     { return graph.Arg{Kind: graph.ArgInt, Int: n} }
func argFloat(f float64) graph.Arg { return graph.Arg{Kind: graph.ArgFloat, Float: f} }
func argStr(s string) graph.Arg    { return graph.Arg{Kind: graph.ArgString, Str: s} }
func argNone() graph.Arg           { return graph.Arg{Kind: graph.ArgNone} }

func argBool(b bool) graph.Arg {
	a := graph.Arg{Kind: graph.ArgBool}
	if b {
		a.Int = 1
	}
	return a
}

func argInts(ns ...int64) graph.Arg {
	a := graph.Arg{Kind: graph.ArgList}
	for _, n := range ns {
		a.List = append(a.List, argInt(n))
	}
	return a
}

func named(name string, a graph.Arg) graph.Arg { a.Name = name; return a }

func attrInt(n *graph.Node, name string, def int64) int64 {
	if a := n.Attr(name); a != nil && a.Kind == graph.AttrInt {
		return a.I
	}
	return def
}

func attrFloat(n *graph.Node, name string, def float64) float64 {
	if a := n.Attr(name); a != nil && a.Kind == graph.AttrFloat {
		return float64(a.F)
	}
	return def
}

func attrStr(n *graph.Node, name, def string) string {
	if a := n.Attr(name); a != nil && a.Kind == graph.AttrString {
		return a.S
	}
	return def
}

func attrInts(n *graph.Node, name string, def []int64) []int64 {
	if a := n.Attr(name); a != nil && a.Kind == graph.AttrInts {
		return a.Ints
	}
	return def
}
