package infer

import (
	"fmt"
	"math"

	"github.com/memplan/memplan/graph"
)

// A call is one node being inferred: what operator rules read and write.
type call struct {
	s       *scope
	n       *graph.Node
	op      *Op
	ver     int64 // version of the node's operator set
	unknown bool  // no rule
	limits  []limit
	results []*contents // contents of outputs, recorded when the types are final
}

// A limit is an upper bound of a dim of an output.
type limit struct {
	out, axis int
	max       graph.Dim
}

// arity is the number of inputs, with omitted ones in between.
func (c *call) arity() int { return len(c.n.Inputs) }

// in returns the i-th input, or nil when it is omitted.
func (c *call) in(i int) *graph.Value {
	if i < 0 || i >= len(c.n.Inputs) || c.n.Inputs[i] == graph.NoValue {
		return nil
	}
	return &c.s.g.Values[c.n.Inputs[i]]
}

func (c *call) has(i int) bool { return c.in(i) != nil }

// typ returns the type of input i, the zero Type when it is omitted.
func (c *call) typ(i int) graph.Type {
	if v := c.in(i); v != nil {
		return v.Type
	}
	return graph.Type{}
}

// shape returns the shape of input i, nil when its rank is unknown. The
// tensor inside an optional counts as the input.
func (c *call) shape(i int) graph.Shape {
	v := c.in(i)
	if v == nil {
		return nil
	}
	if v.Type.Kind == graph.OptionalType && v.Type.Of != nil {
		return v.Type.Of.Shape
	}
	return v.Type.Shape
}

// elem returns the element type of input i.
func (c *call) elem(i int) graph.DType {
	v := c.in(i)
	if v == nil {
		return graph.Undefined
	}
	if v.Type.Kind == graph.OptionalType && v.Type.Of != nil {
		return v.Type.Of.Elem
	}
	return v.Type.Elem
}

// rank returns the rank of input i, or -1.
func (c *call) rank(i int) int {
	if s := c.shape(i); s != nil {
		return len(s)
	}
	return -1
}

// dim returns one dim of input i, unknown when out of range.
func (c *call) dim(i, axis int) graph.Dim {
	s := c.shape(i)
	if axis < 0 {
		axis += len(s)
	}
	if axis < 0 || axis >= len(s) {
		return graph.Dim{}
	}
	return s[axis]
}

// wanted reports whether the node has output i.
func (c *call) wanted(i int) bool {
	return i < len(c.n.Outputs) && c.n.Outputs[i] != graph.NoValue
}

// out sets output i to a tensor.
func (c *call) out(i int, elem graph.DType, shape graph.Shape) {
	c.outType(i, tensorOf(elem, shape))
}

func (c *call) outType(i int, t graph.Type) {
	if c.wanted(i) {
		c.s.g.Values[c.n.Outputs[i]].Type = t
	}
}

// outTyp returns the type of output i as far as it is set.
func (c *call) outTyp(i int) graph.Type {
	if c.wanted(i) {
		return c.s.g.Values[c.n.Outputs[i]].Type
	}
	return graph.Type{}
}

// bound gives an upper bound for a dim that is left unknown.
func (c *call) bound(out, axis int, max graph.Dim) {
	c.limits = append(c.limits, limit{out, axis, max})
}

func (c *call) limit(out, axis int) graph.Dim {
	for _, l := range c.limits {
		if l.out == out && l.axis == axis {
			return l.max
		}
	}
	return graph.Dim{}
}

// attr returns an attribute, following references of a local function's body
// to the attributes of the call; nil when it is not set.
func (c *call) attr(name string) *graph.Attr {
	a := c.n.Attr(name)
	if a == nil || a.Ref == "" {
		return a
	}
	for i := range c.s.attrs {
		if c.s.attrs[i].Name == a.Ref && c.s.attrs[i].Kind != graph.AttrNone {
			return &c.s.attrs[i]
		}
	}
	return nil
}

// int returns an integer attribute, or def.
func (c *call) int(name string, def int64) int64 {
	if a := c.attr(name); a != nil && a.Kind == graph.AttrInt {
		return a.I
	}
	return def
}

// ints returns a list attribute; ok is false when it is not set. A single
// integer counts as a list of one.
func (c *call) ints(name string) (list []int64, ok bool) {
	a := c.attr(name)
	switch {
	case a == nil:
		return nil, false
	case a.Kind == graph.AttrInts:
		return a.Ints, true
	case a.Kind == graph.AttrInt:
		return []int64{a.I}, true
	}
	return nil, a.Kind == graph.AttrNone
}

func (c *call) str(name, def string) string {
	if a := c.attr(name); a != nil && a.Kind == graph.AttrString {
		return a.S
	}
	return def
}

func (c *call) float(name string, def float64) float64 {
	if a := c.attr(name); a != nil && a.Kind == graph.AttrFloat {
		return float64(a.F)
	}
	return def
}

// dtype returns an attribute that holds an element type, or def. A number that
// stands for no element type gives Undefined.
func (c *call) dtype(name string, def graph.DType) graph.DType {
	switch n := c.int(name, 0); {
	case n <= 0:
		return def
	case n <= math.MaxInt32 && graph.DType(n).Valid():
		return graph.DType(n)
	}
	return graph.Undefined
}

// need returns an error if input i is absent; what is its name in ONNX.
func (c *call) need(i int, what string) error {
	if c.has(i) {
		return nil
	}
	return fmt.Errorf("input %d (%s) is missing", i, what)
}

// axisOf normalises an axis of a tensor of the given rank.
func axisOf(axis int64, rank int) (int, error) {
	if axis < -int64(rank) || axis >= int64(rank) {
		return 0, fmt.Errorf("axis %d is outside a tensor of rank %d", axis, rank)
	}
	if axis < 0 {
		axis += int64(rank)
	}
	return int(axis), nil
}

// axesOf normalises a list of distinct axes.
func axesOf(axes []int64, rank int) ([]int, error) {
	out := make([]int, len(axes))
	seen := make([]bool, rank)
	for i, a := range axes {
		n, err := axisOf(a, rank)
		if err != nil {
			return nil, err
		}
		if seen[n] {
			return nil, fmt.Errorf("axis %d is listed twice", n)
		}
		out[i], seen[n] = n, true
	}
	return out, nil
}

// wantRank returns an error unless the rank of input i is unknown or one of
// ranks.
func (c *call) wantRank(i int, ranks ...int) error {
	r := c.rank(i)
	if r < 0 {
		return nil
	}
	for _, want := range ranks {
		if r == want {
			return nil
		}
	}
	return fmt.Errorf("input %d has shape %s, not rank %d", i, text(c.shape(i)), ranks[0])
}
