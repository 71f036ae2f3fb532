package infer

import (
	"fmt"

	"github.com/memplan/memplan/graph"
)

// reducedAxes returns the axes of a reduction; all is true if it is every axis.
// ok is false if the axes are not known.
func reducedAxes(c *call, rank int) (axes []int, all, ok bool) {
	list, given, known := c.axesIn("axes", 1)
	if !known {
		return nil, false, false
	}
	if !given || len(list) == 0 {
		return nil, c.int("noop_with_empty_axes", 0) == 0, true
	}
	axes, err := axesOf(list, rank)
	return axes, false, err == nil
}

// reduce removes axes, or keeps them with length 1.
func reduce(c *call) error {
	s := c.shape(0)
	keep := c.int("keepdims", 1) != 0
	if s == nil {
		c.out(0, c.elem(0), nil)
		if list, given, known := c.axesIn("axes", 1); known && !keep && (!given || len(list) == 0) && c.int("noop_with_empty_axes", 0) == 0 {
			c.out(0, c.elem(0), graph.Shape{})
		}
		return nil
	}
	if list, _, known := c.axesIn("axes", 1); known {
		if _, err := axesOf(list, len(s)); err != nil {
			return err
		}
	}
	axes, all, ok := reducedAxes(c, len(s))
	switch {
	case ok:
		c.out(0, c.elem(0), reduced(s, axes, all, keep))
	case keep:
		c.out(0, c.elem(0), unknownDims(len(s)))
	default:
		c.out(0, c.elem(0), partlyReduced(c, len(s)))
	}
	return nil
}

func reduced(s graph.Shape, axes []int, all, keep bool) graph.Shape {
	out := graph.Shape{}
	for i, d := range s {
		switch gone := all || contains(axes, i); {
		case !gone:
			out = append(out, d)
		case keep:
			out = append(out, graph.Int(1))
		}
	}
	return out
}

// partlyReduced returns a shape of known rank if the number of axes is known.
func partlyReduced(c *call, rank int) graph.Shape {
	n, ok := c.dim(1, 0).Int()
	if !ok || n == 0 || n > int64(rank) {
		return nil
	}
	return unknownDims(rank - int(n))
}

// argReduce is ArgMax and ArgMin.
func argReduce(c *call) error {
	s := c.shape(0)
	keep := c.int("keepdims", 1) != 0
	if s == nil {
		c.out(0, graph.Int64, nil)
		return nil
	}
	axis, err := axisOf(c.int("axis", 0), len(s))
	if err != nil {
		return err
	}
	c.out(0, graph.Int64, reduced(s, []int{axis}, false, keep))
	return nil
}

// topK keeps k elements along an axis.
func topK(c *call) error {
	s := c.shape(0)
	var k graph.Dim
	if n := c.int("k", -1); n >= 0 {
		k = graph.Int(n)
	} else if d, ok := c.dimsIn(1); ok && len(d) == 1 {
		k = d[0]
	}
	if s == nil {
		c.out(0, c.elem(0), nil)
		c.out(1, graph.Int64, nil)
		return nil
	}
	axis, err := axisOf(c.int("axis", -1), len(s))
	if err != nil {
		return err
	}
	if n, ok := k.Int(); ok {
		if m, ok := s[axis].Int(); ok && n > m || n < 0 {
			return fmt.Errorf("k is %d, axis %d of %s", n, axis, text(s))
		}
	}
	for i := range 2 {
		c.bound(i, axis, s[axis])
	}
	if !k.Known() && c.wanted(1) { // both outputs have the same length
		k = c.s.e.fresh(c.n.Op, s[axis], c.n.Label())
	}
	c.out(0, c.elem(0), with(s, axis, k))
	c.out(1, graph.Int64, with(s, axis, k))
	return nil
}

// alongAxis returns the rule of an operator that works along attribute axis and
// keeps the shape.
func alongAxis(def int64) rule {
	return func(c *call) error {
		if s := c.shape(0); s != nil {
			if len(s) == 0 {
				return fmt.Errorf("the input is a scalar")
			}
			axis := c.int("axis", def)
			if axis < -int64(len(s)) || axis >= int64(len(s)) && !(c.ver < 13 && axis == int64(len(s))) {
				return fmt.Errorf("axis %d is outside a tensor of rank %d", axis, len(s))
			}
		}
		return same(c)
	}
}

// cumulative is same, with a check of the axis in input 1.
func cumulative(c *call) error {
	if axis, ok := c.intsIn(1); ok && len(axis) == 1 && c.rank(0) >= 0 {
		if _, err := axisOf(axis[0], c.rank(0)); err != nil {
			return err
		}
	}
	return same(c)
}
