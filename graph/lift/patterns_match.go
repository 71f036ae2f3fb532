package lift

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/infer"
)

// Patterns are written as expressions over ONNX operators:
//
//	Mul(x, Sigmoid(x))          x binds any value; the second x must be the same one
//	Add(Erf({Div(x, 1.4142)|Mul(x, 0.7071)}), 1)
//	                            {A|B}: either; numbers match known scalars, within 1 part in 1,000
//	Div(d:Sub(x, _), Sqrt(..))  d: names what the expression matches; _ is any value
//	Conv                        without operands: whatever its inputs are
//	MatMul(x, %w)               %w is stored in the file: a weight
//	Mul(x, #s)                  #s is a scalar whose value is known, or that shapes alone decide
//
// Inputs that a pattern leaves out must be missing or constant. Operands of
// commutative operators match in either order. What lies inside a match is
// used by nothing outside it, but for reshapes of weights.

// A term is one node of a pattern.
type term struct {
	op   string  // operator, domain-qualified; "" otherwise
	args []*term // of op, or the alternatives
	bind string  // name that it binds
	kind termKind
	num  float64
	any  bool // an operator without an operand list: any inputs
}

type termKind uint8

const (
	termOp     termKind = iota
	termAny             // a value
	termStored          // %: an initializer
	termScalar          // #: a known scalar
	termNumber
	termEither // {A|B}
)

// parsePattern parses a pattern. It panics on a syntax error: the table of
// rules is our own.
func parsePattern(s string) *term {
	p := &patternParser{s: s}
	t := p.term()
	if p.at != len(s) {
		panic(fmt.Sprintf("lift: pattern %q: unexpected text at %d", s, p.at))
	}
	return t
}

type patternParser struct {
	s  string
	at int
}

func (p *patternParser) eat(b byte) bool {
	for p.at < len(p.s) && p.s[p.at] == ' ' {
		p.at++
	}
	if p.at < len(p.s) && p.s[p.at] == b {
		p.at++
		return true
	}
	return false
}

func (p *patternParser) word() string {
	p.eat(' ')
	start := p.at
	for p.at < len(p.s) && (wordByte(p.s[p.at]) || p.s[p.at] == '-') {
		p.at++
	}
	return p.s[start:p.at]
}

func (p *patternParser) term() *term {
	switch {
	case p.eat('{'):
		t := &term{kind: termEither, args: []*term{p.term()}}
		for p.eat('|') {
			t.args = append(t.args, p.term())
		}
		p.must('}')
		return t
	case p.eat('%'):
		return &term{kind: termStored, bind: p.word()}
	case p.eat('#'):
		return &term{kind: termScalar, bind: p.word()}
	}
	w := p.word()
	switch {
	case w == "":
		panic(fmt.Sprintf("lift: pattern %q: expected a term at %d", p.s, p.at))
	case p.eat(':'):
		t := p.term()
		t.bind = w
		return t
	case p.eat('('):
		t := &term{kind: termOp, op: w}
		for !p.eat(')') {
			t.args = append(t.args, p.term())
			if !p.eat(',') {
				p.must(')')
				break
			}
		}
		return t
	case w == "_":
		return &term{kind: termAny}
	}
	if f, err := strconv.ParseFloat(w, 64); err == nil {
		return &term{kind: termNumber, num: f}
	}
	if w[0] < 'a' || strings.Contains(w, ".") {
		return &term{kind: termOp, op: w, any: true}
	}
	return &term{kind: termAny, bind: w}
}

func (p *patternParser) must(b byte) {
	if !p.eat(b) {
		panic(fmt.Sprintf("lift: pattern %q: expected %c at %d", p.s, b, p.at))
	}
}

// roots lists the operators that can be the root of a match of t.
func (t *term) roots() []string {
	if t.kind != termEither {
		return []string{t.op}
	}
	var out []string
	for _, a := range t.args {
		out = append(out, a.roots()...)
	}
	return out
}

// operators appends the operators in the pattern.
func (t *term) operators(out []string) []string {
	if t.kind == termOp {
		out = append(out, t.op)
	}
	for _, a := range t.args {
		out = a.operators(out)
	}
	return out
}

// nested reports whether a pattern has more than one node.
func (t *term) nested() bool {
	if t.kind == termEither {
		return slices.ContainsFunc(t.args, (*term).nested)
	}
	return slices.ContainsFunc(t.args, func(a *term) bool { return a.kind == termOp || a.kind == termEither })
}

// A match is a place where a pattern fits.
type match struct {
	rule  *rule
	root  *graph.Node
	names []string
	vals  []graph.ValueID // source values bound to names
	nodes []int32         // nodes of the match, the root first
	axes  int             // number of dims that a normalisation runs over
}

// value returns what name is bound to, or NoValue.
func (m *match) value(name string) graph.ValueID {
	if i := slices.Index(m.names, name); i >= 0 {
		return m.vals[i]
	}
	return graph.NoValue
}

func (m *match) bind(name string, id graph.ValueID) bool {
	if name == "" {
		return true
	}
	if i := slices.Index(m.names, name); i >= 0 {
		return m.vals[i] == id
	}
	m.names, m.vals = append(m.names, name), append(m.vals, id)
	return true
}

// mark and undo bracket an attempt to match.
func (m *match) mark() [2]int { return [2]int{len(m.names), len(m.nodes)} }

func (m *match) undo(at [2]int) {
	m.names, m.vals, m.nodes = m.names[:at[0]], m.vals[:at[0]], m.nodes[:at[1]]
}

// try matches patterns of a rule at node i, or returns nil.
func (p *patLift) try(r *rule, terms []*term, i int32) *match {
	if n := &p.src.Nodes[i]; len(n.Outputs) == 0 || n.Outputs[0] < 0 || !r.bare && (len(n.Inputs) == 0 || n.Inputs[0] < 0) {
		return nil
	}
	for _, t := range terms {
		m := &match{rule: r, root: &p.src.Nodes[i]}
		if p.fits(m, t, i) && p.closed(m) && (r.where == nil || r.where(p, m)) {
			return m
		}
	}
	return nil
}

// fits matches an operator term against node i.
func (p *patLift) fits(m *match, t *term, i int32) bool {
	if t.kind == termEither {
		at := m.mark()
		for _, a := range t.args {
			if p.fits(m, a, i) {
				return true
			}
			m.undo(at)
		}
		return false
	}
	n := &p.src.Nodes[i]
	if t.kind != termOp || p.ops[i] != t.op || p.claimed[i] && len(m.nodes) > 0 {
		return false
	}
	m.nodes = append(m.nodes, i)
	if t.any {
		return true
	}
	if len(t.args) == 2 && infer.Is("", t.op, infer.Commutes) && len(n.Inputs) == 2 {
		at := m.mark()
		if p.operand(m, t.args[0], n.Inputs[0]) && p.operand(m, t.args[1], n.Inputs[1]) {
			return true
		}
		m.undo(at)
		return p.operand(m, t.args[0], n.Inputs[1]) && p.operand(m, t.args[1], n.Inputs[0])
	}
	for j, a := range t.args {
		if j >= len(n.Inputs) || !p.operand(m, a, n.Inputs[j]) {
			return false
		}
	}
	for _, id := range n.Inputs[min(len(t.args), len(n.Inputs)):] {
		if id >= 0 && !p.constant(id) {
			return false
		}
	}
	return true
}

// operand matches a term against a value.
func (p *patLift) operand(m *match, t *term, id graph.ValueID) bool {
	if id < 0 {
		return false
	}
	id = p.resolve(id)
	switch t.kind {
	case termAny:
		return m.bind(t.bind, id)
	case termStored:
		return (p.stored(id) || p.ofState(id)) && m.bind(t.bind, id)
	case termScalar:
		_, known := p.number(id)
		return (known || p.host[id] && p.elems(id) == 1) && m.bind(t.bind, id)
	case termNumber:
		f, ok := p.number(id)
		return ok && math.Abs(f-t.num) <= 1e-3*math.Abs(t.num)
	}
	if t.bind != "" && m.value(t.bind) == id {
		return true
	}
	d := p.def[id]
	if d < 0 || p.src.Nodes[d].Outputs[0] < 0 || p.resolve(p.src.Nodes[d].Outputs[0]) != id {
		return false
	}
	return p.fits(m, t, d) && m.bind(t.bind, id)
}

// closed reports whether nothing outside the match reads what its inner nodes
// compute; reshaped weights, which are free, do not count.
func (p *patLift) closed(m *match) bool {
	for _, i := range m.nodes[1:] {
		n := &p.src.Nodes[i]
		if p.claimed[i] || p.fused[i] != nil {
			return false
		}
		if p.ofWeight(n) {
			continue
		}
		for _, o := range n.Outputs {
			if o >= 0 && p.uses[o] != p.usesIn(m, o) {
				return false
			}
		}
	}
	return true
}

// ofWeight reports whether n transposes an initializer.
func (p *patLift) ofWeight(n *graph.Node) bool {
	return n.Op == "Transpose" && len(n.Inputs) == 1 && p.stored(p.resolve(n.Inputs[0]))
}

func (p *patLift) usesIn(m *match, id graph.ValueID) int32 {
	var k int32
	for _, i := range m.nodes {
		for _, in := range p.src.Nodes[i].Inputs {
			if in >= 0 && p.resolve(in) == id {
				k++
			}
		}
	}
	return k
}

// qualified returns the operator's name as patterns write it.
func qualified(n *graph.Node) string {
	if n.Domain == "" || n.Domain == "ai.onnx" {
		return n.Op
	}
	return n.Domain + "." + n.Op
}

// A template is the calls that a rule makes, in text:
//
//	relu.default($0)
//	s = add.Tensor(x, b); gelu.default(s, approximate='tanh')
//
// Arguments are the root's inputs ($0), bound names, results of earlier calls, numbers, strings,
// None, and attributes of the root node with their defaults: @alpha=0.01.
// The last call makes the root's results.
type template []templateCall

type templateCall struct {
	to, op string
	args   []templateArg
}

type templateArg struct {
	key  string // keyword
	ref  string // bound name
	attr string // attribute
	lit  graph.Arg
}

func parseTemplate(s string) template {
	if s == "" {
		return nil
	}
	var out template
	for _, part := range strings.Split(s, ";") {
		var c templateCall
		part = strings.TrimSpace(part)
		open := strings.IndexByte(part, '(')
		if open < 0 || !strings.HasSuffix(part, ")") {
			panic("lift: template " + s)
		}
		c.op = part[:open]
		if to, op, ok := strings.Cut(c.op, "="); ok {
			c.to, c.op = strings.TrimSpace(to), strings.TrimSpace(op)
		}
		for _, a := range strings.Split(part[open+1:len(part)-1], ",") {
			c.args = append(c.args, parseTemplateArg(strings.TrimSpace(a)))
		}
		out = append(out, c)
	}
	return out
}

func parseTemplateArg(s string) templateArg {
	var a templateArg
	if strings.HasPrefix(s, "@") {
		var def string
		a.attr, def, _ = strings.Cut(s[1:], "=")
		s = def
	} else if k, v, ok := strings.Cut(s, "="); ok {
		a.key, s = k, v
	}
	lit := literal(strings.Trim(s, "'"))
	a.lit = graph.Arg{Name: a.key, Kind: lit.kind, Int: lit.i, Float: lit.f, Str: lit.s}
	if lit.kind == graph.ArgString && a.attr == "" && !strings.HasPrefix(s, "'") {
		a.ref = s
	}
	return a
}

// run emits a template's calls.
func (t template) run(p *patLift, m *match) {
	made := map[string]graph.ValueID{}
	out := m.root.Outputs[0]
	for i, c := range t {
		args := make([]graph.Arg, len(c.args))
		for j, a := range c.args {
			args[j] = a.resolve(p, m, made)
		}
		if i == len(t)-1 {
			p.emit(m.root, c.op, args, p.value(out))
			break
		}
		made[c.to] = p.temp(m.root, c.to, p.src.Values[out].Type)
		p.emit(m.root, c.op, args, made[c.to])
	}
}

func (a *templateArg) resolve(p *patLift, m *match, made map[string]graph.ValueID) graph.Arg {
	if id, ok := made[a.ref]; ok {
		return graph.Arg{Name: a.key, Kind: graph.ArgValue, Value: id}
	}
	if i, err := strconv.Atoi(strings.TrimPrefix(a.ref, "$")); err == nil && a.ref[0] == '$' {
		return p.in(m.root, i)
	}
	if a.ref != "" {
		arg := p.operandArg(m.value(a.ref))
		arg.Name = a.key
		return arg
	}
	if at := m.root.Attr(a.attr); at != nil {
		switch at.Kind {
		case graph.AttrFloat:
			return argFloat(float64(at.F))
		case graph.AttrInt:
			return argInt(at.I)
		case graph.AttrString:
			return graph.Arg{Kind: graph.ArgString, Str: at.S}
		}
	}
	return a.lit
}
