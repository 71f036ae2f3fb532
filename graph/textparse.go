package graph

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

// NewestOpset is the version of the default operator set that a text without
// opset_import gets: that of IR version 14.
const NewestOpset = 28

// maxTextDepth bounds nested graphs, types and arguments in a text.
const maxTextDepth = 64

// Parse reads a model or a graph in ONNX's text syntax, with the extensions
// of Format. Names are resolved as Resolve does. An error begins with the line
// and column, "3:14: ".
func Parse(r io.Reader) (*Graph, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	p := &textParser{lex: lexer{s: string(text), line: 1, col: 1}, model: &Model{}}
	p.next()
	p.next()
	d, funcs := p.file()
	if p.err != nil {
		return nil, p.err
	}
	if len(p.model.Opsets) == 0 {
		p.model.Opsets = []Opset{{Version: NewestOpset}}
	}
	return Resolve(p.model, d, funcs)
}

// A textParser is a recursive-descent parser with one token of lookahead. At
// the first error it sets err and goes to the end of the text, where every
// loop stops.
type textParser struct {
	lex   lexer
	tok   token // current
	ahead token // the one after
	err   error
	model *Model
	depth int
}

func (p *textParser) next() {
	p.tok = p.ahead
	if p.err != nil {
		return
	}
	t, err := p.lex.next()
	if err != nil {
		p.stop(err)
		return
	}
	p.ahead = t
}

// stop records the first error and moves to the end.
func (p *textParser) stop(err error) {
	if p.err == nil {
		p.err = err
	}
	p.tok = token{line: p.tok.line, col: p.tok.col}
	p.ahead = p.tok
}

func (p *textParser) fail(t token, format string, args ...any) {
	p.stop(fmt.Errorf("%s%s", t.pos(), fmt.Sprintf(format, args...)))
}

// accept consumes the punctuation s if it is next.
func (p *textParser) accept(s string) bool {
	if !p.tok.is(s) {
		return false
	}
	p.next()
	return true
}

// word consumes the bare word s if it is next.
func (p *textParser) word(s string) bool {
	if p.tok.kind != tokID || p.tok.text != s {
		return false
	}
	p.next()
	return true
}

func (p *textParser) expect(s string) {
	if !p.accept(s) {
		p.fail(p.tok, "%s where %q should be", p.tok, s)
	}
}

// take consumes a token of the given kind and returns its text.
func (p *textParser) take(kind tokenKind) string {
	t := p.tok
	if t.kind != kind {
		p.fail(t, "%s where %s should be", t, kind)
		return ""
	}
	p.next()
	return t.text
}

// named reports whether a name is next, bare or quoted.
func (p *textParser) named() bool { return p.tok.kind == tokID || p.tok.kind == tokQuoted }

// name consumes a name, bare or quoted.
func (p *textParser) name() string {
	if p.tok.kind == tokQuoted {
		return p.take(tokQuoted)
	}
	return p.take(tokID)
}

// list calls item for each element up to close, between commas. The opening
// bracket has been consumed.
func (p *textParser) list(close string, item func()) {
	if p.accept(close) {
		return
	}
	for p.err == nil {
		item()
		if !p.accept(",") {
			p.expect(close)
			return
		}
	}
}

// nest calls f one level deeper.
func (p *textParser) nest(f func()) {
	if p.depth++; p.depth > maxTextDepth {
		p.fail(p.tok, "nested more than %d deep", maxTextDepth)
	} else {
		f()
	}
	p.depth--
}

// file reads a model: header, main graph, functions.
func (p *textParser) file() (*Draft, []DraftFunction) {
	var h textHeader
	if p.tok.is("<") {
		h = p.header()
	}
	p.model.IRVersion, p.model.Opsets = h.ir, h.opsets
	p.model.Producer = strings.TrimSpace(h.producer + " " + h.producerVersion)
	d := p.graph()
	var funcs []DraftFunction
	for p.err == nil && p.tok.kind != tokEnd {
		funcs = append(funcs, p.function())
	}
	return d, funcs
}

// A textHeader holds the entries of a model's or function's header that a
// Graph has a place for.
type textHeader struct {
	ir                        int64
	opsets                    []Opset
	producer, producerVersion string
	domain, overload          string
}

func (p *textParser) header() textHeader {
	var h textHeader
	p.expect("<")
	p.list(">", func() {
		key := p.tok
		switch name := p.take(tokID); name {
		case "ir_version":
			p.expect(":")
			h.ir = p.int()
		case "model_version":
			p.expect(":")
			p.int()
		case "opset_import":
			p.expect(":")
			h.opsets = p.opsets()
		case "metadata_props":
			p.expect(":")
			p.expect("[")
			p.list("]", func() { p.pair() })
		case "producer_name", "producer_version", "domain", "overload", "doc_string":
			p.expect(":")
			s := p.take(tokQuoted)
			switch name {
			case "producer_name":
				h.producer = s
			case "producer_version":
				h.producerVersion = s
			case "domain":
				h.domain = canonicalDomain(s)
			case "overload":
				h.overload = s
			}
		default:
			p.fail(key, "unknown header entry %s", key)
		}
	})
	return h
}

// canonicalDomain returns the one spelling of the default domain.
func canonicalDomain(s string) string {
	if s == "ai.onnx" {
		return ""
	}
	return s
}

func (p *textParser) pair() (key, value string) {
	key = p.take(tokQuoted)
	p.expect(":")
	return key, p.take(tokQuoted)
}

func (p *textParser) opsets() []Opset {
	var out []Opset
	p.expect("[")
	p.list("]", func() {
		domain := p.take(tokQuoted)
		p.expect(":")
		out = append(out, Opset{Domain: canonicalDomain(domain), Version: p.int()})
	})
	return out
}

// int consumes an integer.
func (p *textParser) int() int64 {
	t := p.tok
	n, err := strconv.ParseInt(p.take(tokNumber), 10, 64)
	if err != nil && p.err == nil {
		p.fail(t, "%s is not a 64-bit integer", t)
	}
	return n
}

// graph reads: name inputs => outputs values nodes.
func (p *textParser) graph() *Draft {
	d := &Draft{Pos: p.tok.pos()}
	p.nest(func() {
		d.Name = p.name()
		p.expect("(")
		p.list(")", func() { p.value(d, &d.Inputs) })
		p.body(d)
	})
	return d
}

// body reads what follows the inputs of a graph or function.
func (p *textParser) body(d *Draft) {
	if p.tok.kind != tokArrow {
		p.fail(p.tok, "%s where => should be", p.tok)
	}
	p.next()
	p.expect("(")
	p.list(")", func() { d.Outputs = append(d.Outputs, p.declaration()) })
	if p.accept("<") {
		p.list(">", func() { p.value(d, &d.Decls) })
	}
	p.expect("{")
	for p.err == nil && !p.accept("}") {
		d.Nodes = append(d.Nodes, p.node())
	}
}

// declaration reads a name with its type, if any.
func (p *textParser) declaration() DraftValue {
	v := DraftValue{Pos: p.tok.pos()}
	if p.startsType() {
		v.Type = p.typ()
	}
	v.Name = p.name()
	return v
}

// value reads a declaration and, if a tensor follows, adds an initializer to
// d. A plain declaration, and one of an input in any case, goes to list.
func (p *textParser) value(d *Draft, list *[]DraftValue) {
	at := p.tok
	v := p.declaration()
	initialized := p.accept("=")
	if initialized {
		t := p.tensorOf(at, v.Type)
		t.Name = v.Name
		d.Initializers = append(d.Initializers, t)
	}
	if !initialized || list == &d.Inputs {
		*list = append(*list, v)
	}
}

// function reads: header? name attributes? inputs => outputs types? nodes.
func (p *textParser) function() DraftFunction {
	fn := DraftFunction{Draft: &Draft{Pos: p.tok.pos()}}
	if p.tok.is("<") {
		h := p.header()
		fn.Domain, fn.Overload, fn.Opsets = h.domain, h.overload, h.opsets
	}
	fn.Name = p.name()
	fn.Draft.Name = fn.Name
	var holder DraftNode
	if p.accept("<") {
		p.list(">", func() {
			at := p.tok
			if !p.ahead.is(":") && !p.ahead.is("=") {
				fn.Attrs = append(fn.Attrs, Attr{Name: p.name()})
				return
			}
			p.attr(&holder)
			if len(holder.Subs) > 0 {
				p.fail(at, "a function's attribute has a graph as its default")
			}
		})
	}
	fn.Attrs = append(fn.Attrs, holder.Attrs...)
	p.expect("(")
	p.list(")", func() { fn.Draft.Inputs = append(fn.Draft.Inputs, p.declaration()) })
	p.body(fn.Draft)
	if p.err == nil && len(fn.Draft.Initializers) > 0 {
		p.stop(fmt.Errorf("%sfunction %q has initializers", fn.Draft.Pos, fn.Name))
	}
	return fn
}
