package infer

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/memplan/memplan/graph"
)

// maxWork bounds the work of one Infer beyond one visit of every node, so that
// nested loops and functions cannot run forever. A unit is a node, or some
// elements or values.
const maxWork = 2_000_000

// An engine is the state of one Infer.
type engine struct {
	opt   Options
	main  *graph.Graph
	model *graph.Model
	ops   map[opKey]*Op
	funcs map[funcKey]*graph.Function
	env   map[string]graph.Dim // Options.Dims

	taken    map[string]bool // symbols in use
	count    map[string]int  // fresh symbols by stem
	warnings []graph.Warning
	warned   map[graph.Warning]bool
	bounds   []Bound
	cut      []cut
	work     int                   // remaining units
	quiet    int                   // while positive, warnings are dropped
	rebind   *rebinding            // replaces a fixed batch; or nil
	failed   map[*graph.Graph]bool // branches that cannot run with any batch

	memo  map[string]*outcome // calls of local functions
	stack []*graph.Function
}

type opKey struct{ domain, name string }

type funcKey struct{ domain, name, overload string }

func newEngine(g *graph.Graph, ops map[opKey]*Op, opt Options) *engine {
	e := &engine{opt: opt, main: g, model: g.Model, ops: ops, env: make(map[string]graph.Dim, len(opt.Dims))}
	e.work = maxWork + maxElems*countNodes(g)
	for _, f := range g.Model.Functions {
		e.work += maxElems * countNodes(f.Body)
	}
	for name, n := range opt.Dims {
		e.env[name] = graph.Int(n)
	}
	if len(g.Model.Functions) > 0 {
		e.funcs = make(map[funcKey]*graph.Function, len(g.Model.Functions))
		for _, f := range g.Model.Functions {
			e.funcs[funcKey{f.Domain, f.Name, f.Overload}] = f
		}
	}
	return e
}

// countNodes counts the nodes of g and its subgraphs.
func countNodes(g *graph.Graph) int {
	n := len(g.Nodes)
	for i := range g.Nodes {
		for _, sub := range g.Nodes[i].Subgraphs() {
			n += countNodes(sub)
		}
	}
	return n
}

// opsByName returns Ops by domain and name.
var opsByName = sync.OnceValue(func() map[opKey]*Op {
	m := make(map[opKey]*Op, len(Ops))
	for i := range Ops {
		m[opKey{Ops[i].Domain, Ops[i].Name}] = &Ops[i]
	}
	return m
})

func (e *engine) result(err error) (*Result, error) {
	if err != nil {
		return nil, err
	}
	return &Result{Warnings: e.warnings, Bounds: e.bounds}, nil
}

// graph infers the main graph.
func (e *engine) graph(g *graph.Graph) error {
	s := newScope(e, g, nil)
	s.opsets = e.model.Opsets
	for _, id := range g.Inputs {
		if err := s.input(id); err != nil {
			return err
		}
	}
	if err := s.initializers(); err != nil {
		return err
	}
	if err := s.run(); err != nil {
		return err
	}
	e.checkDims()
	return nil
}

// initializers compares stored tensors with their declarations, where an
// initializer is also a graph input.
func (s *scope) initializers() error {
	for i := range s.g.Values {
		v := &s.g.Values[i]
		if v.Kind != graph.Initializer || v.Decl.Kind == graph.NoType {
			continue
		}
		if n := len(v.Type.Shape); n == len(v.Decl.Shape) && v.Type.Elem == v.Decl.Elem && (n == 0 || &v.Type.Shape[0] == &v.Decl.Shape[0]) {
			continue
		}
		if _, conflict := mergeTypes(v.Type, s.e.bind(v.Decl)); conflict != "" {
			if s.e.opt.Strict {
				return fmt.Errorf("initializer %q: %s", v.Name, strings.Replace(conflict, "inferred", "stored", 1))
			}
			s.e.warn("declared-differs", "", "initializer %q: %s; the stored one stands", v.Name, strings.Replace(conflict, "inferred", "stored", 1))
		}
	}
	return nil
}

// checkDims warns of bindings of symbols, and of shapes of values, that do not
// occur in the model.
func (e *engine) checkDims() {
	if len(e.opt.Shapes) > 0 {
		names := e.names()
		for _, name := range sortedKeys(e.opt.Shapes) {
			if !names[name] {
				e.warn("unused-shape", "", "no value is called %q", name)
			}
		}
	}
	known := map[string]bool{}
	for _, id := range e.main.Inputs {
		for _, d := range e.main.Values[id].Decl.Shape {
			for _, s := range d.Symbols() {
				known[s] = true
			}
		}
	}
	for _, name := range sortedKeys(e.opt.Dims) {
		if known[name] || e.taken[name] {
			continue
		}
		if e.taken == nil {
			e.taken = e.symbols()
		}
		if !e.taken[name] {
			e.warn("unused-dim", "", "no dim is called %q; the inputs have %v", name, sortedKeys(known))
		}
	}
}

// input types a main graph's input: its declaration with symbols bound, and
// symbols for dims without a name.
func (s *scope) input(id graph.ValueID) error {
	v := &s.g.Values[id]
	t, err := s.e.given(v.Name, s.e.bind(v.Decl))
	if known := s.e.opt.Values[v.Name]; known != nil && err == nil {
		t, err = known.ValueType(), s.know(id, known)
	}
	if err != nil {
		return fmt.Errorf("input %q: %w", v.Name, err)
	}
	if s.e.rebind != nil {
		t = s.e.rebind.input(id, t)
	}
	if len(t.Shape) > maxRank {
		return fmt.Errorf("input %q has rank %d", v.Name, len(t.Shape))
	}
	if t.Kind == graph.TensorType && t.Shape != nil {
		shape := t.Shape
		for i, d := range shape {
			if !d.Known() {
				if &shape[0] == &t.Shape[0] {
					t.Shape = slices.Clone(shape)
				}
				t.Shape[i] = s.e.named(dimName(v.Name, i), graph.Dim{}, v.Name)
			}
		}
	}
	v.Type = t
	if err := s.e.checkSize(t); err != nil {
		return fmt.Errorf("input %q: %w", v.Name, err)
	}
	return nil
}

// know records the elements of an input.
func (s *scope) know(id graph.ValueID, t *graph.Constant) error {
	v := &s.g.Values[id]
	decl := s.e.bind(v.Decl)
	if _, conflict := mergeTypes(t.ValueType(), decl); conflict != "" {
		return fmt.Errorf("the elements supplied: %s", conflict)
	}
	s.contents[id] = constantContents(t)
	return nil
}

// given completes t by the shape that the user supplied for the value.
func (e *engine) given(name string, t graph.Type) (graph.Type, error) {
	shape, ok := e.opt.Shapes[name]
	if !ok || (t.Kind != graph.TensorType && t.Kind != graph.NoType) {
		return t, nil
	}
	t.Kind = graph.TensorType
	if t.Shape == nil {
		t.Shape = slices.Clone(shape)
		return t, nil
	}
	merged, ok := mergeShapes(t.Shape, shape)
	if !ok {
		return t, fmt.Errorf("the shape %s supplied for %q contradicts %s", text(shape), name, text(t.Shape))
	}
	t.Shape = merged
	return t, nil
}

// bind substitutes the bound symbols in a declared type.
func (e *engine) bind(t graph.Type) graph.Type {
	if t.Of != nil {
		of := e.bind(*t.Of)
		t.Of = &of
	}
	t.Len = e.bindDim(t.Len)
	for i, d := range t.Shape {
		b := e.bindDim(d)
		if n, ok := b.Int(); ok && n < 0 {
			b = graph.Dim{}
		}
		if _, same := d.Int(); same && b.Known() || !d.Known() {
			continue
		}
		out := slices.Clone(t.Shape)
		for j := i; j < len(out); j++ {
			out[j] = e.bindDim(out[j])
			if n, ok := out[j].Int(); ok && n < 0 {
				out[j] = graph.Dim{}
			}
		}
		t.Shape = out
		break
	}
	return t
}

func (e *engine) bindDim(d graph.Dim) graph.Dim {
	if _, ok := d.Int(); ok || !d.Known() {
		return d
	}
	if name, ok := d.Symbol(); ok {
		if b, ok := e.env[name]; ok {
			return b
		}
		return d
	}
	return d.Subst(e.env)
}

// fresh returns a new symbol for a dim of the node's output, or the integer
// that Options.Dims binds it to. The name is the stem and a number, in order
// of creation.
func (e *engine) fresh(stem string, limit graph.Dim, node string) graph.Dim {
	if e.count == nil {
		e.count = map[string]int{}
	}
	stem = strings.ToLower(stem)
	name := fmt.Sprintf("%s%d", stem, e.count[stem])
	e.count[stem]++
	return e.named(name, limit, node)
}

// named makes the symbol called name, or a similar one if that is in use.
func (e *engine) named(name string, limit graph.Dim, node string) graph.Dim {
	if e.taken == nil {
		e.taken = e.symbols()
	}
	for e.taken[name] {
		name += "_"
	}
	e.taken[name] = true
	e.bounds = append(e.bounds, Bound{Symbol: name, Max: limit, Node: node})
	if d, ok := e.env[name]; ok {
		return d
	}
	return graph.Sym(name)
}

// warn records a warning, once.
func (e *engine) warn(code, node, format string, args ...any) {
	if e.quiet > 0 {
		return
	}
	w := graph.Warning{Code: code, Node: node, Message: fmt.Sprintf(format, args...)}
	if e.warned[w] {
		return
	}
	if e.warned == nil {
		e.warned = map[graph.Warning]bool{}
	}
	e.warned[w] = true
	e.warnings = append(e.warnings, w)
}

// names returns the names of all values.
func (e *engine) names() map[string]bool {
	out := map[string]bool{}
	addNames(e.main, out)
	for _, f := range e.model.Functions {
		addNames(f.Body, out)
	}
	return out
}

func addNames(g *graph.Graph, out map[string]bool) {
	for i := range g.Values {
		out[g.Values[i].Name] = true
	}
	for i := range g.Nodes {
		for _, sub := range g.Nodes[i].Subgraphs() {
			addNames(sub, out)
		}
	}
}

// symbols returns the names that the file's declarations use.
func (e *engine) symbols() map[string]bool {
	out := map[string]bool{}
	addSymbols(e.main, out)
	for _, f := range e.model.Functions {
		addSymbols(f.Body, out)
	}
	return out
}

func addSymbols(g *graph.Graph, out map[string]bool) {
	for i := range g.Values {
		for t := &g.Values[i].Decl; t != nil; t = t.Of {
			for _, d := range t.Shape {
				for _, s := range d.Symbols() {
					out[s] = true
				}
			}
		}
	}
	for i := range g.Nodes {
		for _, sub := range g.Nodes[i].Subgraphs() {
			addSymbols(sub, out)
		}
	}
}
