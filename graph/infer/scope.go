package infer

import (
	"errors"
	"fmt"
	"slices"

	"github.com/memplan/memplan/graph"
)

// A scope is one visit of a graph.
type scope struct {
	e          *engine
	g          *graph.Graph
	parent     *scope
	opsets     []graph.Opset
	attrs      []graph.Attr // of the call of the local function whose body this is
	contents   []*contents  // for each value: its known contents, or nil
	line       map[graph.ValueID]*line
	call       call // the node being visited; reused
	inFunction bool
	digits     []digit // for each value, while a symbol replaces a fixed batch: the batch's position
}

func newScope(e *engine, g *graph.Graph, parent *scope) *scope {
	s := &scope{e: e, g: g, parent: parent, contents: make([]*contents, len(g.Values))}
	e.work -= len(g.Values) / 16
	if parent != nil {
		s.opsets, s.attrs, s.inFunction = parent.opsets, parent.attrs, parent.inFunction
	}
	for i := range g.Values {
		v := &g.Values[i]
		switch v.Kind {
		case graph.Computed:
			v.Type, v.Const = graph.Type{}, nil
		case graph.Captured:
			if parent != nil {
				s.capture(v)
			}
		}
	}
	return s
}

// capture copies what is known about a value of the enclosing graph.
func (s *scope) capture(v *graph.Value) {
	outer := &s.parent.g.Values[v.Outer]
	v.Type, v.Const = outer.Type, outer.Const
	s.contents[v.ID] = s.parent.contents[v.Outer]
	if l := s.parent.line[v.Outer]; l != nil {
		if s.line == nil {
			s.line = map[graph.ValueID]*line{}
		}
		s.line[v.ID] = l
	}
}

// version returns the imported version of domain, or 0.
func (s *scope) version(domain string) int64 {
	for i := range s.opsets {
		if o := &s.opsets[i]; o.Domain == domain || (domain == "" && o.Domain == "ai.onnx") {
			return o.Version
		}
	}
	return 0
}

// run infers every node, then compares with the declared outputs.
func (s *scope) run() error {
	for i := range s.g.Nodes {
		if err := s.node(&s.g.Nodes[i]); err != nil {
			return err
		}
	}
	return nil
}

// node infers one node.
func (s *scope) node(n *graph.Node) error {
	e := s.e
	if e.work--; e.work < 0 {
		return fmt.Errorf("%s: too much work; loops or functions are nested too deeply", n.Label())
	}
	c := &s.call
	*c = call{s: s, n: n}
	if err := c.infer(); err != nil {
		if m := (*misfit)(nil); errors.As(err, &m) {
			err = e.explain(m)
		}
		return fmt.Errorf("%s: %w", n.Label(), err)
	}
	for i, id := range n.Outputs {
		if id != graph.NoValue {
			if err := c.settle(i, &s.g.Values[id]); err != nil {
				return fmt.Errorf("%s: %w", n.Label(), err)
			}
		}
	}
	for i, v := range c.results {
		c.setContents(i, v)
	}
	if c.op != nil && c.op.values != nil {
		if err := c.propagate(); err != nil {
			return fmt.Errorf("%s: %w", n.Label(), err)
		}
	}
	s.lines(c)
	if e.rebind != nil {
		if err := checkBatch(c); err != nil {
			return fmt.Errorf("%s: %w", n.Label(), err)
		}
	}
	return nil
}

// infer finds the rule, function or custom callback for the node's operator and
// runs it.
func (c *call) infer() error {
	e, n := c.s.e, c.n
	if e.funcs != nil {
		if f := e.funcs[funcKey{n.Domain, n.Op, n.Overload}]; f != nil {
			return function(c, f)
		}
	}
	c.op = e.ops[opKey{n.Domain, n.Op}]
	if c.op == nil && n.Domain == "" {
		c.op = e.ops[opKey{"com.microsoft", n.Op}] // such as SimplifiedLayerNormalization
	}
	if c.op == nil {
		return c.custom()
	}
	if c.ver = c.s.version(n.Domain); c.ver == 0 {
		c.ver = 1
	}
	if e.opt.Strict {
		if err := c.checkInputs(); err != nil {
			return err
		}
	}
	return c.op.infer(c)
}

// custom asks Options.Custom about an operator without a rule.
func (c *call) custom() error {
	c.unknown = true
	if c.s.e.opt.Custom == nil {
		return nil
	}
	in := make([]graph.Type, c.arity())
	for i := range in {
		in[i] = c.typ(i)
	}
	out, err := c.s.e.opt.Custom(c.n, in)
	if err != nil || out == nil {
		return err
	}
	if len(out) < len(c.n.Outputs) {
		return fmt.Errorf("the custom rule returns %d types for %d outputs", len(out), len(c.n.Outputs))
	}
	c.unknown = false
	for i := range c.n.Outputs {
		c.outType(i, out[i])
	}
	return nil
}

// checkInputs rejects inputs of unknown element type, and small initializers
// without elements.
func (c *call) checkInputs() error {
	for i, id := range c.n.Inputs {
		if id == graph.NoValue {
			continue
		}
		v := &c.s.g.Values[id]
		if t := v.Type; t.Kind == graph.NoType || t.Kind == graph.TensorType && t.Elem == graph.Undefined {
			return fmt.Errorf("the type of input %d (%q) is unknown", i, v.Name)
		}
		if t := v.Const; t != nil && t.Ref == nil && t.Sparse == nil && !t.Known() {
			if n, ok := t.Elems(); ok && n <= maxElems {
				return fmt.Errorf("input %d (%q) has no elements", i, v.Name)
			}
		}
	}
	return nil
}

// settle completes the inferred type of output i by the user's shape and the
// declaration, and names the dims that remain unknown.
func (c *call) settle(i int, v *graph.Value) error {
	e := c.s.e
	t := v.Type
	var err error
	if e.opt.Shapes != nil {
		if t, err = e.given(v.Name, t); err != nil {
			return err
		}
	}
	if v.Decl.Kind != graph.NoType && e.rebind == nil {
		if t, err = c.declared(v, t); err != nil {
			return err
		}
	}
	if _, given := e.opt.Shapes[v.Name]; c.unknown && given && t.Kind == graph.TensorType && t.Elem == graph.Undefined {
		if t.Elem = firstElem(c); t.Elem != graph.Undefined {
			e.warn("unknown-type", c.n.Label(), "the element type of %q is taken to be that of the operands, %s", v.Name, t.Elem)
		}
	}
	if c.unknown && (t.Kind == graph.NoType || t.Kind == graph.TensorType && t.Shape == nil) {
		e.warn("unknown-op", c.n.Label(), "no rule for operator %s, and no declared shape of its output %q", opName(c.n), v.Name)
	}
	t, err = c.nameDims(i, t)
	if err != nil {
		return err
	}
	v.Type = t
	if len(t.Shape) > maxRank {
		return fmt.Errorf("output %q has rank %d", v.Name, len(t.Shape))
	}
	if err := e.checkSize(t); err != nil {
		return fmt.Errorf("output %q: %w", v.Name, err)
	}
	return nil
}

// declared merges t with the value's declaration. Inference is preferred
// where the two differ.
func (c *call) declared(v *graph.Value, t graph.Type) (graph.Type, error) {
	if t.Kind == graph.TensorType && t.Elem != graph.Undefined && v.Decl.Kind == t.Kind {
		if settled(t.Shape) && !c.s.e.differs(t, v.Decl) {
			return t, nil
		}
	}
	d := c.s.plain(c.s.e.bind(v.Decl))
	merged, conflict := mergeTypes(t, d)
	if conflict == "" {
		return merged, nil
	}
	if c.s.e.opt.Strict {
		return t, fmt.Errorf("output %q: %s", v.Name, conflict)
	}
	c.s.e.warn("declared-differs", c.n.Label(), "output %q: %s; the inferred one stands", v.Name, conflict)
	return merged, nil
}

// settled reports whether every dim is known.
func settled(s graph.Shape) bool {
	if s == nil {
		return false
	}
	for _, d := range s {
		if !d.Known() {
			return false
		}
	}
	return true
}

// differs reports whether a declared tensor type may contradict t.
func (e *engine) differs(t, decl graph.Type) bool {
	if decl.Elem != t.Elem && decl.Elem != graph.Undefined {
		return true
	}
	if decl.Shape == nil {
		return false
	}
	if len(decl.Shape) != len(t.Shape) {
		return true
	}
	for i, d := range decl.Shape {
		a, isInt := t.Shape[i].Int()
		if b, ok := e.bindDim(d).Int(); isInt && ok && a != b && b >= 0 {
			return true
		}
	}
	return false
}

// nameDims replaces unknown dims by symbols, but not those of a sequence's
// items, which may all differ.
func (c *call) nameDims(out int, t graph.Type) (graph.Type, error) {
	if t.Kind == graph.SequenceType {
		return t, nil
	}
	if t.Of != nil {
		of, err := c.nameDims(out, *t.Of)
		if err != nil {
			return t, err
		}
		t.Of = &of
		return t, nil
	}
	cloned := false
	for i, d := range t.Shape {
		if n, ok := d.Int(); ok && n < 0 {
			return t, fmt.Errorf("dim %d of output %d would be %d", i, out, n)
		}
		if d.Known() {
			continue
		}
		if !cloned {
			t.Shape, cloned = slices.Clone(t.Shape), true
		}
		t.Shape[i] = c.s.e.fresh(c.n.Op, c.limit(out, i), c.n.Label())
	}
	return t, nil
}

// maxBits is the size in bits from which a tensor is an error, as for
// graph.Constant.Bytes: counting its bits must not overflow.
const maxBits = 1 << 62

// checkSize returns an error for a tensor of more than maxBits. Dims that are
// 0, or may be, count as 1, so that no product of dims overflows.
func (e *engine) checkSize(t graph.Type) error {
	if t.Kind != graph.TensorType || e.opt.AnySize {
		return nil
	}
	p := max(t.Elem.Bits(), 1)
	for _, d := range t.Shape {
		n, _ := d.Bounds()
		if n > 0 && p > maxBits/n {
			return fmt.Errorf("a tensor %s%s takes more than 2^59 bytes", t.Elem, text(t.Shape))
		}
		p *= max(n, 1)
	}
	return nil
}
