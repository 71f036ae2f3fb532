package infer

import (
	"fmt"

	"github.com/memplan/memplan/graph"
)

// same: the output is like the first input.
func same(c *call) error {
	c.outType(0, c.typ(0))
	return nil
}

// sameAll: output i is like input i, for every output.
func sameAll(c *call) error {
	for i := range c.n.Outputs {
		c.outType(i, c.typ(i))
	}
	return nil
}

// sameAs returns a rule for an output of a fixed element type, shaped like
// the first input.
func sameAs(elem graph.DType) rule {
	return func(c *call) error {
		c.out(0, elem, c.shape(0))
		return nil
	}
}

// arith is a binary or variadic operator with broadcasting: the result has
// the inputs' element type.
func arith(c *call) error { return broadcastTo(c, firstElem(c)) }

// compare is arith with a boolean result.
func compare(c *call) error { return broadcastTo(c, graph.Bool) }

// firstElem returns the first element type that is known.
func firstElem(c *call) graph.DType {
	for i := range c.arity() {
		if e := c.elem(i); e != graph.Undefined {
			return e
		}
	}
	return graph.Undefined
}

func broadcastTo(c *call, elem graph.DType) error {
	if c.n.Domain == "" && c.ver < 7 && oldBroadcast(c.n.Op) {
		c.out(0, elem, c.shape(0)) // the second operand is broadcast to the first
		return adapts(c)
	}
	shape, err := broadcastInputs(c, 0, c.arity())
	if err != nil {
		return err
	}
	c.out(0, elem, shape)
	return nil
}

// adapts returns an error unless the second operand broadcasts to the first by
// the rules before opset 7: its dims are 1 or those of the first from attribute
// axis on, by default the last ones.
func adapts(c *call) error {
	a, b := c.shape(0), c.shape(1)
	if a == nil || b == nil {
		return nil
	}
	at := c.int("axis", int64(len(a)-len(b)))
	if at < 0 && c.attr("axis") != nil {
		at += int64(len(a))
	}
	fits := at >= 0 && at <= int64(len(a)-len(b))
	for i, d := range b {
		if n, ok := d.Int(); fits && !(ok && n == 1) {
			_, fits = mergeDim(a[int(at)+i], d)
		}
	}
	if !fits {
		return fmt.Errorf("%s cannot be brought to the shape %s", text(b), text(a))
	}
	return nil
}

func oldBroadcast(op string) bool {
	switch op {
	case "Max", "Min", "Sum", "Mean":
		return false
	}
	return true
}

// sameElems returns an error if the first n inputs differ in element type.
func sameElems(c *call, n int) error {
	first := firstElem(c)
	for i := range n {
		if e := c.elem(i); e != graph.Undefined && e != first {
			return fmt.Errorf("input %d has element type %s, not %s", i, e, first)
		}
	}
	return nil
}

// broadcastInputs returns the common shape of inputs from..to-1.
func broadcastInputs(c *call, from, to int) (graph.Shape, error) {
	shape := c.shape(from)
	for i := from + 1; i < to; i++ {
		if !c.has(i) {
			continue
		}
		var err error
		if shape, err = broadcast(shape, c.shape(i)); err != nil {
			return nil, err
		}
	}
	return shape, nil
}

// broadcast returns the shape of an elementwise result, by numpy's rules.
func broadcast(a, b graph.Shape) (graph.Shape, error) {
	if a == nil || b == nil {
		return nil, nil
	}
	if len(b) > len(a) {
		a, b = b, a
	}
	out, off := a, len(a)-len(b)
	for i, y := range b {
		x := a[off+i]
		m, xInt := x.Int()
		n, yInt := y.Int()
		if yInt && (n == 1 || xInt && m == n) {
			continue
		}
		if xInt && yInt && m != 1 {
			return nil, &misfit{a, b, m, n}
		}
		d := broadcastDim(x, y)
		if d.Equal(x) {
			continue
		}
		if &out[0] == &a[0] {
			out = append(graph.Shape{}, a...)
		}
		out[off+i] = d
	}
	return out, nil
}

// broadcastDim is Dim.Broadcast with more knowledge of unknown dims: an integer
// other than 1 is the result, whatever the other dim is.
func broadcastDim(x, y graph.Dim) graph.Dim {
	if n, ok := x.Int(); ok && n != 1 && !y.Known() {
		return x
	}
	if n, ok := y.Int(); ok && n != 1 && !x.Known() {
		return y
	}
	return x.Broadcast(y)
}

// where selects between two tensors.
func where(c *call) error {
	shape, err := broadcastInputs(c, 0, 3)
	if err != nil {
		return err
	}
	elem := c.elem(1)
	if elem == graph.Undefined {
		elem = c.elem(2)
	}
	c.out(0, elem, shape)
	return nil
}

// cast: the element type is attribute "to".
func cast(c *call) error {
	a := c.attr("to")
	if a == nil {
		return fmt.Errorf("attribute to, the element type of the result, is missing")
	}
	to := c.dtype("to", graph.Undefined)
	if a.Kind == graph.AttrString { // opset 1 to 5
		to = oldDType(a.S)
	}
	c.out(0, to, c.shape(0))
	return nil
}

// oldDType reads names of element types as opset 1 writes them: "FLOAT".
func oldDType(name string) graph.DType {
	if d, ok := oldDTypes[name]; ok {
		return d
	}
	return graph.Undefined
}

var oldDTypes = map[string]graph.DType{
	"FLOAT": graph.Float32, "UINT8": graph.Uint8, "INT8": graph.Int8, "UINT16": graph.Uint16,
	"INT16": graph.Int16, "INT32": graph.Int32, "INT64": graph.Int64, "STRING": graph.String,
	"BOOL": graph.Bool, "FLOAT16": graph.Float16, "DOUBLE": graph.Float64,
}

func bitCast(c *call) error {
	to := c.dtype("to", graph.Undefined)
	from := c.elem(0)
	if to == graph.String || from == graph.String || !to.Valid() {
		return fmt.Errorf("cannot reinterpret %s as %s", from, to)
	}
	if from != graph.Undefined && from.Bits() != to.Bits() {
		return fmt.Errorf("cannot reinterpret %s, which has %d bits, as %s, which has %d", from, from.Bits(), to, to.Bits())
	}
	c.out(0, to, c.shape(0))
	return nil
}

// castLike: the element type is that of the second input.
func castLike(c *call) error {
	c.out(0, c.elem(1), c.shape(0))
	return nil
}

// typedLike returns a rule for outputs shaped like the first input whose
// element type is an attribute, by default the input's.
func typedLike(attr string) rule {
	return func(c *call) error {
		c.out(0, c.dtype(attr, c.elem(0)), c.shape(0))
		return nil
	}
}

// swiglu takes two tensors of the same shape.
func swiglu(c *call) error {
	if err := sameElems(c, 2); err != nil {
		return err
	}
	shape, ok := mergeShapes(c.shape(0), c.shape(1))
	if !ok {
		return fmt.Errorf("input shapes differ: %s and %s", text(c.shape(0)), text(c.shape(1)))
	}
	c.out(0, c.elem(0), shape)
	return nil
}

// prelu: the slope broadcasts to the input.
func prelu(c *call) error {
	x, slope := c.shape(0), c.shape(1)
	if c.ver >= 7 && x != nil && slope != nil {
		shape, err := broadcast(x, slope)
		if err != nil {
			return err
		}
		if len(shape) != len(x) {
			return fmt.Errorf("slope %s does not broadcast to %s", text(slope), text(x))
		}
	}
	return same(c)
}

// dropout also yields a mask.
func dropout(c *call) error {
	for i := 1; i <= 2 && c.n.Domain == "" && c.ver >= 12; i++ {
		if err := c.wantRank(i, 0); err != nil {
			return err
		}
	}
	c.outType(0, c.typ(0))
	mask := graph.Bool
	if c.n.Domain == "" && c.ver < 10 {
		mask = c.elem(0)
	}
	c.out(1, mask, c.shape(0))
	return nil
}
