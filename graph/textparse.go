package graph

import (
	"fmt"
	"io"
	"math"
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

// startsType reports whether a type is next, and not a name.
func (p *textParser) startsType() bool {
	if p.tok.kind != tokID {
		return false
	}
	switch p.tok.text {
	case "seq", "map", "optional", "sparse_tensor", "opaque":
		return p.ahead.is("(")
	case "undefined":
		return p.ahead.is("[") || p.ahead.kind == tokID || p.ahead.kind == tokQuoted
	}
	_, ok := ParseDType(p.tok.text)
	return ok
}

// elem consumes the name of an element type.
func (p *textParser) elem() DType {
	t := p.tok
	name := p.take(tokID)
	d, ok := ParseDType(name)
	if !ok && name != "undefined" && p.err == nil {
		p.fail(t, "unknown element type %s", t)
	}
	return d
}

// typ reads a type.
func (p *textParser) typ() Type {
	var t Type
	p.nest(func() {
		switch {
		case p.word("seq"):
			t.Kind = SequenceType
			p.expect("(")
			if p.accept(")") {
				return
			}
			if !p.tok.is(",") {
				t.Of = p.inner()
			}
			if p.accept(",") {
				t.Len = p.dim()
			}
			p.expect(")")
		case p.word("optional"):
			t.Kind = OptionalType
			p.expect("(")
			if !p.tok.is(")") {
				t.Of = p.inner()
			}
			p.expect(")")
		case p.word("map"):
			t.Kind = MapType
			p.expect("(")
			t.Elem = p.elem()
			p.expect(",")
			if !p.tok.is(")") {
				t.Of = p.inner()
			}
			p.expect(")")
		case p.word("sparse_tensor"):
			p.expect("(")
			t = Type{Kind: SparseType, Elem: p.elem(), Shape: p.shape()}
			p.expect(")")
		case p.word("opaque"):
			t.Kind = OpaqueType
			p.expect("(")
			for p.named() || p.tok.is(".") || p.tok.is(",") { // domain and name
				p.next()
			}
			p.expect(")")
		default:
			t = Type{Kind: TensorType, Elem: p.elem(), Shape: p.shape()}
		}
	})
	return t
}

func (p *textParser) inner() *Type {
	t := p.typ()
	return &t
}

// shape reads dims in brackets: none is a scalar, [] an unknown rank.
func (p *textParser) shape() Shape {
	if !p.accept("[") {
		return Shape{}
	}
	var s Shape
	p.list("]", func() { s = append(s, p.dim()) })
	return s
}

func (p *textParser) dim() Dim {
	switch p.tok.kind {
	case tokNumber:
		if n := p.int(); n >= 0 {
			return Int(n)
		}
		return Dim{} // as in a file
	case tokID:
		return Sym(p.take(tokID))
	case tokQuoted:
		return DimOf(p.take(tokQuoted))
	}
	p.expect("?")
	return Dim{}
}

// tensor reads: type name? =? elements.
func (p *textParser) tensor() *Tensor {
	at := p.tok
	typ := p.typ()
	name := ""
	if p.named() && !(p.tok.text == "sparse" && p.ahead.is("(")) {
		name = p.name()
	}
	p.accept("=")
	t := p.tensorOf(at, typ)
	t.Name = name
	return t
}

// tensorOf reads the elements of a tensor of the given type, which begins at
// token at.
func (p *textParser) tensorOf(at token, typ Type) *Tensor {
	t := &Tensor{Type: typ.Elem}
	dims, ok := typ.Shape.Static()
	if p.err == nil && (typ.Kind != TensorType || !ok) {
		p.fail(at, "a tensor needs an element type and integer dimensions")
	}
	if len(dims) > 0 {
		t.Dims = dims
	}
	if _, ok := t.Bytes(); !ok && p.err == nil {
		p.fail(at, "the size of %s%v overflows", t.Type, t.Dims)
	}
	if !p.word("sparse") {
		p.data(t, true)
		return t
	}
	p.nest(func() {
		p.expect("(")
		p.data(t, false)
		p.expect(",")
		t.Sparse = p.tensor()
		p.expect(")")
	})
	return t
}

// data reads {elements} or the place of a payload. A dense tensor has all its
// elements or none.
func (p *textParser) data(t *Tensor, dense bool) {
	at := p.tok
	if p.accept("[") {
		t.Ref = p.ref(at)
		return
	}
	p.expect("{")
	n := int64(0)
	p.list("}", func() {
		p.element(t)
		n++
	})
	if want, _ := t.Elems(); dense && n != 0 && n != want && p.err == nil {
		p.fail(at, "%d elements for %s%v", n, t.Type, t.Dims)
	}
}

func (p *textParser) ref(at token) *DataRef {
	r := &DataRef{Length: -1}
	p.list("]", func() {
		key, value := p.pair()
		var err error
		switch key {
		case "location":
			r.Location = value
		case "offset":
			r.Offset, err = strconv.ParseInt(value, 10, 64)
		case "length":
			r.Length, err = strconv.ParseInt(value, 10, 64)
		}
		if err != nil && p.err == nil {
			p.fail(at, "%s %q is not a size in bytes", key, value)
		}
	})
	if p.err == nil && (r.Offset < 0 || r.Length < -1) {
		p.fail(at, "negative offset or length")
	}
	return r
}

// element reads one element of t.
func (p *textParser) element(t *Tensor) {
	at := p.tok
	switch {
	case t.Type == String:
		t.Strings = append(t.Strings, p.take(tokQuoted))
	case t.Type.IsFloat():
		t.Floats = append(t.Floats, p.floatElement(t.Type))
	case t.Type == Uint64:
		n, err := strconv.ParseUint(p.take(tokNumber), 10, 64)
		if err != nil && p.err == nil {
			p.fail(at, "%s is not an element of type uint64", at)
		}
		t.Ints = append(t.Ints, int64(n))
	case t.Type.Valid() && t.Type != Complex64 && t.Type != Complex128:
		n := p.int()
		if !fits(t.Type, n) && p.err == nil {
			p.fail(at, "%s is not an element of type %s", at, t.Type)
		}
		t.Ints = append(t.Ints, n)
	default:
		p.fail(at, "elements of type %s have no text", t.Type)
	}
}

// fits reports whether n is a value of the integer type d.
func fits(d DType, n int64) bool {
	bits := d.Bits()
	switch d {
	case Bool:
		return n == 0 || n == 1
	case Int2, Int4, Int8, Int16, Int32, Int64:
		return n>>(bits-1) == 0 || n>>(bits-1) == -1
	}
	return n>>bits == 0
}

// floatElement reads a number of the floating-point type d. As in ONNX's own
// texts, an integer is the bit pattern for types of 16 bits and less.
func (p *textParser) floatElement(d DType) float64 {
	if p.tok.kind == tokNumber && isInteger(p.tok.text) && d.Bits() <= 16 {
		t := p.tok
		n := p.int()
		if n < math.MinInt16 || n>>d.Bits() > 0 {
			p.fail(t, "%s is not the bits of a %s", t, d)
		}
		return d.Float(uint64(n))
	}
	bits := 32
	if d == Float64 {
		bits = 64
	}
	return p.float(bits)
}

func isInteger(s string) bool {
	_, err := strconv.ParseInt(s, 10, 64)
	return err == nil
}

// float consumes a number, an infinity or nan, rounded to bits.
func (p *textParser) float(bits int) float64 {
	t := p.tok
	if t.kind != tokNumber && t.kind != tokID {
		p.fail(t, "%s where a number should be", t)
		return 0
	}
	p.next()
	v, err := strconv.ParseFloat(t.text, bits)
	if math.IsNaN(v) || strings.EqualFold(t.text, "-nan") {
		return math.NaN()
	}
	if err != nil || t.kind == tokID && !math.IsInf(v, 0) {
		p.fail(t, "%s is not a %d-bit number", t, bits)
	}
	return v
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

// node reads: [label] outputs = op attributes (inputs), or a lifted call.
func (p *textParser) node() *DraftNode {
	n := &DraftNode{Pos: p.tok.pos()}
	if p.accept("[") {
		n.Name = p.name()
		p.expect("]")
	}
	for p.named() {
		n.Out = append(n.Out, p.name())
		if !p.accept(",") {
			break
		}
	}
	p.expect("=")
	parts := p.path()
	if p.tok.kind == tokScope {
		p.next()
		n.Domain = strings.Join(parts, ".")
		p.call(n)
	} else {
		last := max(len(parts)-1, 0)
		n.Domain, n.Op = canonicalDomain(strings.Join(parts[:last], ".")), parts[last]
		p.overload(n)
		p.attrs(n)
		p.expect("(")
		p.inputs(n)
		p.attrs(n)
	}
	if p.tok.kind == tokID && p.tok.text == "in" && (p.ahead.kind == tokID || p.ahead.kind == tokQuoted) {
		p.next()
		n.Module = strings.Join(p.path(), ".")
	}
	return n
}

// path reads names joined by dots; there is at least one.
func (p *textParser) path() []string {
	at := p.tok
	parts := []string{p.name()}
	for p.accept(".") {
		parts = append(parts, p.name())
	}
	if parts[len(parts)-1] == "" && p.err == nil {
		p.fail(at, "empty name")
	}
	return parts
}

func (p *textParser) overload(n *DraftNode) {
	if p.accept(":") {
		n.Overload = p.name()
	}
}

// inputs reads a node's inputs. As in ONNX's own texts one may be left out
// between commas, and what follows the last comma.
func (p *textParser) inputs(n *DraftNode) {
	for p.err == nil && !p.accept(")") {
		if p.accept(",") {
			n.In = append(n.In, "")
			continue
		}
		n.In = append(n.In, p.name())
		if !p.accept(",") {
			p.expect(")")
			return
		}
	}
}

// attrs reads attributes in angle brackets, if there are any.
func (p *textParser) attrs(n *DraftNode) {
	if p.accept("<") {
		p.list(">", func() { p.attr(n) })
	}
}

// attr reads: name = value, or name: type = value, or name: undefined.
func (p *textParser) attr(n *DraftNode) {
	at := p.tok
	a := Attr{Name: p.name()}
	if a.Name == "" && p.err == nil {
		p.fail(at, "attribute without a name")
	}
	typed := p.accept(":")
	if typed {
		a.Kind = p.attrType()
	}
	if typed && a.Kind == AttrNone && !p.tok.is("=") {
		n.Attrs = append(n.Attrs, a)
		return
	}
	p.expect("=")
	switch declared := a.Kind; {
	case p.accept("@"):
		a.Ref = p.name()
		if a.Ref == "" && p.err == nil {
			p.fail(at, "reference without a name")
		}
	case declared == AttrType:
		a.Types = []Type{p.typeOrNone()}
	case declared == AttrTypes:
		p.expect("[")
		p.list("]", func() { a.Types = append(a.Types, p.typeOrNone()) })
	case p.accept("["):
		p.attrList(n, &a)
	default:
		p.attrOne(n, &a, false)
	}
	n.Attrs = append(n.Attrs, a)
}

func (p *textParser) attrType() AttrKind {
	t := p.tok
	name := p.take(tokID)
	for kind, s := range attrTypes {
		if s == name {
			return AttrKind(kind)
		}
	}
	if p.err == nil {
		p.fail(t, "unknown attribute type %s", t)
	}
	return AttrNone
}

func (p *textParser) typeOrNone() Type {
	if p.word("none") {
		return Type{}
	}
	return p.typ()
}

// attrList reads the elements of a list, which all have one type; an empty
// list must say which.
func (p *textParser) attrList(n *DraftNode, a *Attr) {
	at, empty := p.tok, true
	p.list("]", func() {
		empty = false
		p.attrOne(n, a, true)
	})
	if empty && p.err == nil && (a.Kind < AttrFloats || a.Kind == AttrSparseTensor || a.Kind == AttrType) {
		p.fail(at, "empty list without the type of its elements, as in name: ints = []")
	}
}

// attrOne reads one value into a, whose kind must be that of the value when
// it is set already. listed says that the value stands in a list.
func (p *textParser) attrOne(n *DraftNode, a *Attr, listed bool) {
	at, declared := p.tok, a.Kind
	var kind AttrKind // of the single value
	switch {
	case p.tok.kind == tokQuoted && !p.ahead.is("("):
		kind = AttrString
		a.addString(p.take(tokQuoted), listed)
	case p.tok.kind == tokNumber || p.tok.kind == tokID && isFloatWord(p.tok.text):
		if declared != AttrFloat && declared != AttrFloats && isInteger(p.tok.text) {
			kind = AttrInt
			a.addInt(p.int(), listed)
		} else {
			kind = AttrFloat
			a.addFloat(float32(p.float(32)), listed)
		}
	case p.startsType():
		t := p.tensor()
		kind = AttrTensor
		if t.Sparse != nil {
			kind = AttrSparseTensor
		}
		a.addTensor(t, listed)
	case p.named():
		kind = AttrGraph
		n.Subs = append(n.Subs, DraftSub{Attr: len(n.Attrs), Body: p.graph()})
	default:
		p.fail(at, "%s where a value should be", at)
	}
	if listed {
		kind = listKind(kind)
	}
	if declared != AttrNone && declared != kind && p.err == nil {
		p.fail(at, "value of type %s where %s should be", attrTypes[kind], attrTypes[declared])
	}
	a.Kind = kind
}

// isFloatWord reports whether a bare word is a number.
func isFloatWord(s string) bool {
	return strings.EqualFold(s, "inf") || strings.EqualFold(s, "infinity") || strings.EqualFold(s, "nan")
}

// listKind returns the kind of a list of values of the single kind k.
func listKind(k AttrKind) AttrKind {
	switch k {
	case AttrFloat:
		return AttrFloats
	case AttrInt:
		return AttrInts
	case AttrString:
		return AttrStrings
	case AttrTensor:
		return AttrTensors
	case AttrSparseTensor:
		return AttrSparseTensors
	}
	return AttrGraphs
}

func (a *Attr) addString(s string, listed bool) {
	if listed {
		a.Strings = append(a.Strings, s)
	} else {
		a.S = s
	}
}

func (a *Attr) addInt(n int64, listed bool) {
	if listed {
		a.Ints = append(a.Ints, n)
	} else {
		a.I = n
	}
}

func (a *Attr) addFloat(v float32, listed bool) {
	if listed {
		a.Floats = append(a.Floats, v)
	} else {
		a.F = v
	}
}

func (a *Attr) addTensor(t *Tensor, listed bool) {
	if listed {
		a.Tensors = append(a.Tensors, t)
	} else {
		a.Tensor = t
	}
}

// call reads a lifted call behind its domain: op(arguments) attributes? uses?
func (p *textParser) call(n *DraftNode) {
	n.Op = strings.Join(p.path(), ".")
	p.overload(n)
	p.expect("(")
	n.Args = []Arg{}
	p.list(")", func() { n.Args = append(n.Args, p.arg(n)) })
	p.attrs(n)
	if p.tok.kind != tokID || p.tok.text != "uses" || !p.ahead.is("(") {
		return
	}
	at := p.tok
	p.next()
	p.expect("(")
	read := n.In
	n.In = nil
	p.inputs(n)
	p.reindex(at, n.Args, read, n.In)
}

// reindex makes the values in args, which index read, index inputs instead.
func (p *textParser) reindex(at token, args []Arg, read, inputs []string) {
	index := make(map[string]int, len(inputs))
	for i, name := range inputs {
		index[name] = i
	}
	for i := range args {
		if args[i].Kind == ArgValue && p.err == nil {
			j, ok := index[read[args[i].Value]]
			if !ok {
				p.fail(at, "argument %q is not among the values used", read[args[i].Value])
			}
			args[i].Value = ValueID(j)
		}
		p.reindex(at, args[i].List, read, inputs)
	}
}

// arg reads one argument. Values are appended to n.In.
func (p *textParser) arg(n *DraftNode) Arg {
	var a Arg
	if p.named() && p.ahead.is("=") {
		a.Name = p.name()
		p.next()
	}
	switch t := p.tok; {
	case p.word("None"):
		a.Kind = ArgNone
	case p.word("True"):
		a.Kind, a.Int = ArgBool, 1
	case p.word("False"):
		a.Kind = ArgBool
	case t.kind == tokNumber && isInteger(t.text):
		a.Kind, a.Int = ArgInt, p.int()
	case t.kind == tokNumber, t.kind == tokID && isFloatWord(t.text):
		a.Kind, a.Float = ArgFloat, p.float(64)
	case t.kind == tokSingle:
		a.Kind, a.Str = ArgString, p.take(tokSingle)
	case p.accept("["):
		a.Kind = ArgList
		p.nest(func() { p.list("]", func() { a.List = append(a.List, p.arg(n)) }) })
	default:
		a.Kind, a.Value = ArgValue, ValueID(len(n.In))
		n.In = append(n.In, p.name())
		if n.In[a.Value] == "" && p.err == nil {
			p.fail(t, "empty name")
		}
	}
	return a
}
