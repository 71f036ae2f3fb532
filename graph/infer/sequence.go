package infer

import (
	"fmt"
	"strings"

	"github.com/memplan/memplan/graph"
)

// sequenceOf builds a sequence from its items.
func sequenceOf(items []item) item {
	t := graph.Type{Kind: graph.SequenceType, Len: graph.Int(int64(len(items)))}
	for i, it := range items {
		of := it.typ
		if i > 0 {
			of = joinTypes(*t.Of, of)
		}
		t.Of = &of
	}
	return item{t, &contents{list: true, items: items}}
}

func sequenceConstruct(c *call) error {
	items := make([]item, c.arity())
	for i := range items {
		items[i] = c.item(i)
	}
	c.give(0, sequenceOf(items))
	return nil
}

func sequenceEmpty(c *call) error {
	of := tensorOf(c.dtype("dtype", graph.Float32), nil)
	c.give(0, item{graph.Type{Kind: graph.SequenceType, Of: &of, Len: graph.Int(0)}, &contents{list: true}})
	return nil
}

// position returns the index that input i holds, of n items; by default def.
func position(c *call, i, n, def int) (at int, ok bool) {
	if !c.has(i) {
		return def, true
	}
	list, ok := c.intsIn(i)
	if !ok || len(list) != 1 {
		return 0, false
	}
	k := list[0]
	if k < 0 {
		k += int64(n)
	}
	return int(k), k >= 0 && k <= int64(n)
}

func checkSequence(c *call) error {
	if t := c.typ(0); t.Kind != graph.SequenceType && t.Kind != graph.NoType {
		return fmt.Errorf("input 0 is %s, not a sequence", typeText(t))
	}
	return nil
}

func sequenceInsert(c *call) error {
	if err := checkSequence(c); err != nil {
		return err
	}
	t, v := c.typ(0), c.contents(0)
	if v != nil && v.list {
		if at, ok := position(c, 2, len(v.items), len(v.items)); ok && len(v.items) < maxElems {
			items := append(append(append([]item{}, v.items[:at]...), c.item(1)), v.items[at:]...)
			c.give(0, sequenceOf(items))
			return nil
		}
	}
	one := graph.Int(1)
	single := c.typ(1)
	out := joinTypes(t, graph.Type{Kind: graph.SequenceType, Of: &single, Len: one})
	if t.Kind == graph.NoType {
		out = graph.Type{Kind: graph.SequenceType, Of: &single}
	}
	out.Len = t.Len.Add(one)
	c.outType(0, out)
	return nil
}

func sequenceErase(c *call) error {
	if err := checkSequence(c); err != nil {
		return err
	}
	t, v := c.typ(0), c.contents(0)
	if v != nil && v.list && len(v.items) > 0 {
		if at, ok := position(c, 1, len(v.items), len(v.items)-1); ok && at < len(v.items) {
			c.give(0, sequenceOf(append(append([]item{}, v.items[:at]...), v.items[at+1:]...)))
			return nil
		}
	}
	t.Len = t.Len.Sub(graph.Int(1))
	c.outType(0, t)
	return nil
}

func sequenceAt(c *call) error {
	if err := checkSequence(c); err != nil {
		return err
	}
	t, v := c.typ(0), c.contents(0)
	if v != nil && v.list {
		at, ok := position(c, 1, len(v.items), 0)
		if list, known := c.intsIn(1); known && (!ok || at >= len(v.items)) {
			return fmt.Errorf("position %v of a sequence of %d", list, len(v.items))
		}
		if ok {
			c.give(0, v.items[at])
			return nil
		}
	}
	if t.Of != nil {
		c.outType(0, *t.Of)
	}
	return nil
}

func sequenceLength(c *call) error {
	if err := checkSequence(c); err != nil {
		return err
	}
	out := item{typ: tensorOf(graph.Int64, graph.Shape{})}
	if n := c.typ(0).Len; n.Known() {
		out.contents = &contents{dims: []int64{}, elems: []elem{dimElem(n)}}
	}
	c.give(0, out)
	return nil
}

// splitToSequence cuts an axis into parts of one size, of given sizes, or
// into single elements.
func splitToSequence(c *call) error {
	s := c.shape(0)
	elem := c.elem(0)
	if list, ok := c.intsIn(1); ok && c.rank(1) == 0 && len(list) == 1 && list[0] <= 0 {
		return fmt.Errorf("the size of a part is %d", list[0])
	}
	if s == nil {
		of := tensorOf(elem, nil)
		c.outType(0, graph.Type{Kind: graph.SequenceType, Of: &of})
		return nil
	}
	axis, err := axisOf(c.int("axis", 0), len(s))
	if err != nil {
		return err
	}
	parts, count, drop, err := sequenceParts(c, s[axis])
	if err != nil {
		return err
	}
	part := func(d graph.Dim) item {
		if drop {
			return item{typ: tensorOf(elem, without(s, axis))}
		}
		return item{typ: tensorOf(elem, with(s, axis, d))}
	}
	if parts != nil {
		items := make([]item, len(parts))
		for i, d := range parts {
			items[i] = part(d)
		}
		seq := sequenceOf(items)
		c.give(0, seq)
		return nil
	}
	of := part(graph.Dim{}).typ
	if !drop && !c.has(1) {
		of = part(graph.Int(1)).typ
	}
	c.outType(0, graph.Type{Kind: graph.SequenceType, Of: &of, Len: count})
	return nil
}

// sequenceParts returns the lengths of the parts, or nil and their number as
// far as it is known. drop reports whether the axis is removed.
func sequenceParts(c *call, d graph.Dim) (parts []graph.Dim, count graph.Dim, drop bool, err error) {
	n, isInt := d.Int()
	if !c.has(1) {
		drop = c.int("keepdims", 1) == 0
		if isInt && n <= maxElems {
			for range n {
				parts = append(parts, graph.Int(1))
			}
		}
		return parts, d, drop, nil
	}
	sizes, known := c.intsIn(1)
	if !known {
		if c.rank(1) == 1 {
			count = c.dim(1, 0)
		}
		return nil, count, false, nil
	}
	if c.rank(1) == 0 && len(sizes) == 1 {
		size := graph.Int(sizes[0])
		count = d.CeilDiv(size)
		// ONNX ignores keepdims if split is given; PyTorch's own functions (up to 2.8) rely on it.
		drop = strings.HasPrefix(c.s.e.model.Producer, "pytorch") && sizes[0] == 1 && c.int("keepdims", 1) == 0
		if k, ok := count.Int(); ok && isInt && k <= maxElems {
			for left := n; left > 0; left -= sizes[0] {
				parts = append(parts, graph.Int(min(left, sizes[0])))
			}
		}
		return parts, count, drop, nil
	}
	parts, err = checkSizes(d, sizes, len(sizes))
	return parts, graph.Int(int64(len(sizes))), false, err
}

// concatFromSequence joins the items along an axis, or a new one.
func concatFromSequence(c *call) error {
	if err := checkSequence(c); err != nil {
		return err
	}
	if c.attr("axis") == nil {
		return fmt.Errorf("attribute axis is missing")
	}
	t := c.typ(0)
	stack := c.int("new_axis", 0)
	if stack != 0 && stack != 1 {
		return fmt.Errorf("new_axis is %d, not 0 or 1", stack)
	}
	if t.Of == nil || t.Of.Shape == nil {
		elem := graph.Undefined
		if t.Of != nil {
			elem = t.Of.Elem
		}
		c.out(0, elem, nil)
		return nil
	}
	s := t.Of.Shape
	axis, err := axisOf(c.int("axis", 0), len(s)+int(stack))
	if err != nil {
		return err
	}
	if stack == 1 {
		c.out(0, t.Of.Elem, concat(s[:axis], []graph.Dim{t.Len}, s[axis:]))
		return nil
	}
	total := graph.Dim{}
	if v := c.contents(0); v != nil && v.list {
		total = graph.Int(0)
		for _, it := range v.items {
			if len(it.typ.Shape) != len(s) {
				return fmt.Errorf("items %s and %s differ in rank", text(s), text(it.typ.Shape))
			}
			total = total.Add(it.typ.Shape[axis])
		}
	} else if s[axis].Known() {
		total = s[axis].Mul(t.Len)
	}
	c.out(0, t.Of.Elem, with(s, axis, total))
	return nil
}

// optional wraps its input, or attribute type when there is none.
func optional(c *call) error {
	if c.has(0) {
		it := c.item(0)
		c.give(0, item{graph.Type{Kind: graph.OptionalType, Of: &it.typ}, &contents{list: true, items: []item{it}}})
		return nil
	}
	a := c.attr("type")
	if a == nil || len(a.Types) == 0 {
		return fmt.Errorf("neither an input nor attribute type is given")
	}
	c.give(0, item{graph.Type{Kind: graph.OptionalType, Of: &a.Types[0]}, &contents{list: true}})
	return nil
}

func optionalHasElement(c *call) error {
	out := item{typ: tensorOf(graph.Bool, graph.Shape{})}
	known, has := true, true
	switch v := c.contents(0); {
	case !c.has(0):
		has = false
	case c.typ(0).Kind == graph.OptionalType:
		known = v != nil && v.list
		has = known && len(v.items) > 0
	}
	if known {
		out.contents = &contents{dims: []int64{}, elems: []elem{boolElem(has)}}
	}
	c.give(0, out)
	return nil
}

func optionalGetElement(c *call) error {
	t, v := c.typ(0), c.contents(0)
	if t.Kind != graph.OptionalType {
		c.give(0, c.item(0))
		return nil
	}
	if v != nil && v.list {
		if len(v.items) == 0 {
			return fmt.Errorf("the optional is empty")
		}
		c.give(0, v.items[0])
		return nil
	}
	if t.Of != nil {
		c.outType(0, *t.Of)
	}
	return nil
}
