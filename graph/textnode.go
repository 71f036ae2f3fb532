package graph

import (
	"strings"
)

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

// inputs reads a node's inputs. As in ONNX's own texts one may be omitted
// between commas, and after the last comma.
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

// attrList reads the elements of a list, which all have one type; an empty list
// must give it.
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

// attrOne reads one value into a, whose kind must be that of the value if it is
// set already. listed is set for a value in a list.
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

func (a *Attr) addTensor(t *Constant, listed bool) {
	if listed {
		a.Tensors = append(a.Tensors, t)
	} else {
		a.Tensor = t
	}
}

// call reads a lifted call after its domain: op(arguments) attributes? uses?
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
