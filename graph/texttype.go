package graph

import (
	"math"
	"strconv"
	"strings"
)

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
func (p *textParser) tensor() *Constant {
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
func (p *textParser) tensorOf(at token, typ Type) *Constant {
	t := &Constant{Type: typ.Elem}
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

// data reads {elements} or the location of a payload. A dense tensor has all
// its elements or none.
func (p *textParser) data(t *Constant, dense bool) {
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
func (p *textParser) element(t *Constant) {
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
