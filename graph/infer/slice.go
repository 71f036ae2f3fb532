package infer

import (
	"fmt"
	"math"

	"github.com/memplan/memplan/graph"
)

// A span is a slice of one axis; amounts may be expressions or unknown.
type span struct {
	axis       int
	start, end graph.Dim
	step       int64 // 0: unknown
}

// slice takes a range of some axes.
func slice(c *call) error {
	s := c.shape(0)
	if s == nil {
		c.out(0, c.elem(0), nil)
		return nil
	}
	spans, ok, err := spans(c, len(s))
	if err != nil {
		return err
	}
	c.cuts(spans)
	out := append(graph.Shape{}, s...)
	if !ok { // which axes are sliced is not known
		for i, d := range s {
			out[i] = graph.Dim{}
			c.bound(0, i, d)
		}
	}
	for _, p := range spans {
		out[p.axis] = p.length(s[p.axis])
		c.bound(0, p.axis, s[p.axis])
	}
	c.out(0, c.elem(0), out)
	return nil
}

// spans reads starts, ends, axes and steps, which are attributes before opset
// 10. ok is false when the axes are not known.
func spans(c *call, rank int) (spans []span, ok bool, err error) {
	starts, ok1 := sliceList(c, "starts", 1)
	ends, ok2 := sliceList(c, "ends", 2)
	n := len(starts)
	if !ok1 {
		n = len(ends)
	}
	if !ok1 && !ok2 {
		return nil, false, nil
	}
	if ok1 && ok2 && len(starts) != len(ends) {
		return nil, false, fmt.Errorf("%d starts and %d ends", len(starts), len(ends))
	}
	axes, given, known := c.axesIn("axes", 3)
	if !known {
		return nil, false, nil
	}
	if !given {
		axes = nil
		for i := range n {
			axes = append(axes, int64(i))
		}
	}
	at, err := axesOf(axes, rank)
	if err != nil {
		return nil, false, err
	}
	if len(at) != n {
		return nil, false, fmt.Errorf("%d axes for %d starts", len(at), n)
	}
	steps, stepsGiven := []int64(nil), c.has(4)
	if stepsGiven {
		if steps, ok = c.intsIn(4); ok && len(steps) != n {
			return nil, false, fmt.Errorf("%d steps for %d starts", len(steps), n)
		}
	}
	for i, a := range at {
		p := span{axis: a, step: 1}
		if ok1 {
			p.start = starts[i]
		}
		if ok2 {
			p.end = ends[i]
		}
		if stepsGiven {
			p.step = 0
			if steps != nil {
				if p.step = steps[i]; p.step == 0 {
					return nil, false, fmt.Errorf("step 0 of axis %d", a)
				}
			}
		}
		spans = append(spans, p)
	}
	return spans, true, nil
}

func sliceList(c *call, attr string, i int) ([]graph.Dim, bool) {
	if c.has(i) {
		return c.dimsIn(i)
	}
	list, ok := c.ints(attr)
	return ints(list...), ok
}

// length returns the number of elements of d that the span takes.
func (p span) length(d graph.Dim) graph.Dim {
	if m, ok := d.Int(); ok {
		a, ok1 := p.start.Int()
		b, ok2 := p.end.Int()
		if ok1 && ok2 && p.step != 0 {
			_, n := sliceRange(m, a, b, p.step)
			return graph.Int(n)
		}
	}
	switch {
	case !p.start.Known() || !p.end.Known() || p.step == 0 || p.step == math.MinInt64:
		return graph.Dim{}
	case p.step > 0:
		return p.forward(d)
	}
	return p.backward(d)
}

// sliceRange returns the first index and the number of elements of
// [start:end:step] of n elements, for a step that is not 0.
func sliceRange(n, start, end, step int64) (first, count int64) {
	clamp := func(x, lo, hi int64) int64 {
		if x < 0 {
			x += n
		}
		return min(max(x, lo), hi)
	}
	if step > 0 {
		start, end = clamp(start, 0, n), clamp(end, 0, n)
		if start >= end {
			return 0, 0
		}
		return start, (end-start-1)/step + 1
	}
	start, end = clamp(start, 0, n-1), clamp(end, -1, n-1)
	if start <= end || n == 0 {
		return 0, 0
	}
	if step == math.MinInt64 {
		return start, 1
	}
	return start, (start-end-1)/-step + 1
}

// huge is the least end by which exporters mean "to the end".
const huge = math.MaxInt32 - 1

// forward returns the length of a slice of a symbolic dim with a positive step.
// Symbolic starts and ends count from the front, unless they are always
// negative.
func (p span) forward(d graph.Dim) graph.Dim {
	zero := graph.Int(0)
	end, toEnd := p.position(p.end, d)
	start, _ := p.position(p.start, d)
	if n, ok := p.end.Int(); ok && n >= huge {
		end, toEnd = d, true
	}
	if !toEnd {
		end = end.Min(d)
	} else {
		end = d
	}
	var length graph.Dim
	if k := d.Sub(start); negative(p.start) && end.Equal(d) { // the last k
		length = k.Min(d)
	} else if negative(p.start) {
		length = end.Sub(start.Max(zero)).Max(zero)
	} else {
		length = end.Sub(start).Max(zero)
	}
	return length.CeilDiv(graph.Int(p.step))
}

// position returns an index from the front; toEnd is true if it equals d.
func (p span) position(x, d graph.Dim) (at graph.Dim, toEnd bool) {
	if negative(x) {
		return d.Add(x), false
	}
	return x, x.Equal(d)
}

// negative reports whether x is below zero for all sizes.
func negative(x graph.Dim) bool {
	lo, hi := x.Bounds()
	return hi < 0 || hi <= 0 && lo < 0
}

// backward returns the length of a slice of a symbolic dim with a negative
// step.
func (p span) backward(d graph.Dim) graph.Dim {
	last := d.Sub(graph.Int(1))
	start, _ := p.position(p.start, d)
	if !negative(p.start) {
		start = start.Min(last)
	}
	if n, ok := p.start.Int(); ok && n >= huge {
		start = last
	}
	end, _ := p.position(p.end, d)
	if n, ok := p.end.Int(); ok && n <= -huge {
		end = graph.Int(-1)
	}
	if negative(p.end) {
		end = end.Max(graph.Int(-1))
	}
	return start.Sub(end).Max(graph.Int(0)).CeilDiv(graph.Int(-p.step))
}
