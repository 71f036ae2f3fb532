package infer

import (
	"math"

	"github.com/memplan/memplan/graph"
)

// maxElems is the largest number of elements whose values are propagated.
const maxElems = 1024

// A contents is what is known about a value: the elements of a tensor in
// row-major order, or the items of a sequence or optional.
type contents struct {
	dims  []int64
	elems []elem
	items []item // of a sequence whose length is known; an optional's value
	list  bool   // items is set
}

// An item is one tensor of a sequence.
type item struct {
	typ      graph.Type
	contents *contents
}

// An elem is one element as far as it is known: the exact quotient num/den with
// den > 0, or the float f, or nothing (the zero elem). A bool is 0 or 1.
type elem struct {
	num     graph.Dim
	den     int64
	f       float64
	isFloat bool
}

func intElem(n int64) elem     { return elem{num: graph.Int(n), den: 1} }
func dimElem(d graph.Dim) elem { return quotient(d, 1) }
func floatElem(f float64) elem { return elem{f: f, isFloat: true} }
func (x elem) known() bool     { return x.isFloat || x.num.Known() }

func boolElem(b bool) elem {
	if b {
		return intElem(1)
	}
	return intElem(0)
}

// quotient returns num/den in lowest terms; nothing if num is unknown.
func quotient(num graph.Dim, den int64) elem {
	if !num.Known() {
		return elem{}
	}
	if den > 1 {
		if q := num.FloorDiv(graph.Int(den)); q.Mul(graph.Int(den)).Equal(num) {
			return elem{num: q, den: 1}
		}
	}
	return elem{num: num, den: den}
}

// dim returns x as an integer expression; unknown if it is not one.
func (x elem) dim() graph.Dim {
	if x.isFloat || x.den != 1 {
		return graph.Dim{}
	}
	return x.num
}

// int returns x as a constant integer.
func (x elem) int() (int64, bool) {
	if x.isFloat || x.den != 1 {
		return 0, false
	}
	return x.num.Int()
}

// float returns x as a constant number.
func (x elem) float() (float64, bool) {
	if x.isFloat {
		return x.f, true
	}
	n, ok := x.num.Int()
	return float64(n) / float64(x.den), ok
}

// maxDen bounds the denominators of exact fractions: a product with a size is
// then exact in 32-bit floating point, too, so that rounding it down gives the
// same result as a run.
const maxDen = 1024

// exact returns x as a quotient, if it is one with a small denominator.
func (x elem) exact() elem {
	if !x.isFloat {
		return x
	}
	for den := int64(1); den <= maxDen; den *= 2 {
		if n := x.f * float64(den); n == math.Trunc(n) && math.Abs(n) < 1<<53 {
			return elem{num: graph.Int(int64(n)), den: den}
		}
	}
	return elem{}
}

// equal reports whether x and y are known to be the same number.
func (x elem) equal(y elem) bool {
	if x.isFloat || y.isFloat {
		a, ok1 := x.float()
		b, ok2 := y.float()
		return ok1 && ok2 && a == b
	}
	return x.den == y.den && x.num.Equal(y.num)
}

// contents returns what is known about input i, or nil.
func (c *call) contents(i int) *contents {
	if i < 0 || i >= len(c.n.Inputs) || c.n.Inputs[i] == graph.NoValue {
		return nil
	}
	return c.s.valsOf(c.n.Inputs[i])
}

func (s *scope) valsOf(id graph.ValueID) *contents {
	if v := s.contents[id]; v != nil {
		return v
	}
	if t := s.g.Values[id].Const; t != nil {
		s.contents[id] = constantContents(t)
	}
	return s.contents[id]
}

// constantContents returns the elements of a constant, or nil.
func constantContents(t *graph.Constant) *contents {
	n, ok := t.Elems()
	if !ok || n > maxElems || !t.Known() || t.Strings != nil {
		return nil
	}
	v := &contents{dims: t.Dims, elems: make([]elem, n)}
	for i := range v.elems {
		if t.Floats != nil {
			v.elems[i] = floatElem(t.Floats[i])
		} else {
			v.elems[i] = intElem(t.Ints[i])
		}
	}
	return v
}

// tensor returns v as a constant of the given type if all elements are known
// numbers, else nil.
func (v *contents) tensor(elem graph.DType) *graph.Constant {
	if v == nil || v.list || elem == graph.String || elem == graph.Complex64 || elem == graph.Complex128 {
		return nil
	}
	for _, x := range v.elems {
		if _, ok := x.float(); !ok {
			return nil
		}
	}
	t := &graph.Constant{Type: elem, Dims: v.dims}
	if elem.IsFloat() {
		t.Floats = make([]float64, len(v.elems))
		for i, x := range v.elems {
			t.Floats[i], _ = x.float()
		}
		return t
	}
	t.Ints = make([]int64, len(v.elems))
	for i, x := range v.elems {
		n, ok := x.int()
		if !ok {
			return nil
		}
		t.Ints[i] = n
	}
	return t
}

// setContents records the contents of output i, whose type is final.
func (c *call) setContents(i int, v *contents) {
	if v == nil || !c.wanted(i) {
		return
	}
	if !v.list && !anyKnown(v.elems) && len(v.elems) > 0 {
		return
	}
	id := c.n.Outputs[i]
	c.s.contents[id] = v
	c.s.g.Values[id].Const = v.tensor(c.s.g.Values[id].Type.Elem)
}

func anyKnown(e []elem) bool {
	for _, x := range e {
		if x.known() {
			return true
		}
	}
	return false
}

// propagate runs the operator's value rule if the first output is small
// enough.
func (c *call) propagate() error {
	if !c.wanted(0) {
		return c.op.values(c)
	}
	t := c.outTyp(0)
	if t.Kind == graph.TensorType {
		n, ok := elemCount(t.Shape)
		if !ok || n > maxElems {
			return nil
		}
		c.s.e.work -= int(n) / 16
	}
	return c.op.values(c)
}

// elemCount returns the number of elements of a static shape.
func elemCount(s graph.Shape) (int64, bool) {
	if s == nil {
		return 0, false
	}
	p := int64(1)
	for _, d := range s {
		n, ok := d.Int()
		if !ok || n < 0 || n > 0 && p > maxBits/n {
			return 0, false
		}
		p *= n
	}
	return p, true
}

// outDims returns the shape of output i as integers; nil unless it is static.
func (c *call) outDims(i int) []int64 {
	dims, ok := c.outTyp(i).Shape.Static()
	if !ok {
		return nil
	}
	return dims
}

// intsIn returns the elements of an integer input if all are constants.
func (c *call) intsIn(i int) ([]int64, bool) {
	v := c.contents(i)
	if v == nil || v.list {
		return nil, false
	}
	out := make([]int64, len(v.elems))
	for k, x := range v.elems {
		n, ok := x.int()
		if !ok {
			return nil, false
		}
		out[k] = n
	}
	return out, true
}

// floatsIn returns the elements of a numeric input if all are constants.
func (c *call) floatsIn(i int) ([]float64, bool) {
	v := c.contents(i)
	if v == nil || v.list {
		return nil, false
	}
	out := make([]float64, len(v.elems))
	for k, x := range v.elems {
		f, ok := x.float()
		if !ok {
			return nil, false
		}
		out[k] = f
	}
	return out, true
}

// dimsIn returns the elements of a one-dimensional integer input as dims; false
// if not even their number is known.
func (c *call) dimsIn(i int) ([]graph.Dim, bool) {
	if v := c.contents(i); v != nil && !v.list {
		out := make([]graph.Dim, len(v.elems))
		for k, x := range v.elems {
			out[k] = x.dim()
		}
		return out, true
	}
	s := c.shape(i)
	if len(s) != 1 {
		return nil, false
	}
	n, ok := s[0].Int()
	if !ok || n < 0 || n > maxRank {
		return nil, false
	}
	return make([]graph.Dim, n), true
}

// maxRank bounds the rank of a tensor whose shape is computed.
const maxRank = 256

// axesIn returns a list of axes or sizes, which is an attribute in old operator
// sets and input i in new ones. given is false if it is omitted, known is false
// if it is an input that is not constant.
func (c *call) axesIn(name string, i int) (list []int64, given, known bool) {
	if c.has(i) {
		list, known = c.intsIn(i)
		return list, true, known
	}
	list, given = c.ints(name)
	return list, given, true
}
