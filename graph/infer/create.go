package infer

import (
	"fmt"
	"math"

	"github.com/memplan/memplan/graph"
)

// constant is the node of an attribute's value.
func constant(c *call) error {
	t, err := constantTensor(c)
	if t == nil || err != nil {
		return err
	}
	typ := t.ValueType()
	c.outType(0, typ)
	if c.wanted(0) {
		c.s.g.Values[c.n.Outputs[0]].Const = t
	}
	return nil
}

func constantTensor(c *call) (*graph.Constant, error) {
	var a *graph.Attr
	name := ""
	for i := range c.n.Attrs {
		b := c.attr(c.n.Attrs[i].Name)
		if b == nil {
			continue // refers to an attribute that the call does not set
		}
		if a != nil {
			return nil, fmt.Errorf("both %s and %s are set", name, c.n.Attrs[i].Name)
		}
		a, name = b, c.n.Attrs[i].Name
	}
	if a == nil {
		return nil, nil
	}
	switch a.Kind {
	case graph.AttrTensor:
		if a.Tensor.Sparse != nil {
			return &graph.Constant{Type: a.Tensor.Type, Dims: a.Tensor.Dims}, nil
		}
		return a.Tensor, nil
	case graph.AttrSparseTensor:
		return &graph.Constant{Type: a.Tensor.Type, Dims: a.Tensor.Dims}, nil
	case graph.AttrInt:
		return &graph.Constant{Type: graph.Int64, Dims: []int64{}, Ints: []int64{a.I}}, nil
	case graph.AttrInts:
		return &graph.Constant{Type: graph.Int64, Dims: []int64{int64(len(a.Ints))}, Ints: a.Ints}, nil
	case graph.AttrFloat:
		return &graph.Constant{Type: graph.Float32, Dims: []int64{}, Floats: []float64{float64(a.F)}}, nil
	case graph.AttrFloats:
		t := &graph.Constant{Type: graph.Float32, Dims: []int64{int64(len(a.Floats))}, Floats: make([]float64, len(a.Floats))}
		for i, f := range a.Floats {
			t.Floats[i] = float64(f)
		}
		return t, nil
	case graph.AttrString:
		return &graph.Constant{Type: graph.String, Dims: []int64{}, Strings: []string{a.S}}, nil
	case graph.AttrStrings:
		return &graph.Constant{Type: graph.String, Dims: []int64{int64(len(a.Strings))}, Strings: a.Strings}, nil
	}
	return nil, fmt.Errorf("attribute %s holds no value", name)
}

// shapeOf yields the dims of its input, or a range of them.
func shapeOf(c *call) error {
	s := c.shape(0)
	if s == nil {
		c.out(0, graph.Int64, unknownDims(1))
		return nil
	}
	from, to := shapeRange(c, len(s))
	c.out(0, graph.Int64, ints(int64(to-from)))
	return nil
}

func shapeRange(c *call, rank int) (from, to int) {
	clamp := func(n int64) int {
		if n < 0 {
			n += int64(rank)
		}
		return int(min(max(n, 0), int64(rank)))
	}
	from, to = clamp(c.int("start", 0)), clamp(c.int("end", int64(rank)))
	return from, max(from, to)
}

func shapeValues(c *call) error {
	s := c.shape(0)
	if s == nil {
		return nil
	}
	from, to := shapeRange(c, len(s))
	out := &contents{dims: []int64{int64(to - from)}, elems: make([]elem, to-from)}
	for i, d := range s[from:to] {
		out.elems[i] = dimElem(d)
	}
	c.setContents(0, out)
	return nil
}

// size is the number of elements of its input.
func size(c *call) error {
	c.out(0, graph.Int64, graph.Shape{})
	return nil
}

func sizeValues(c *call) error {
	if s := c.shape(0); s != nil {
		c.setContents(0, &contents{dims: []int64{}, elems: []elem{dimElem(product(s))}})
	}
	return nil
}

// constantOfShape repeats one value.
func constantOfShape(c *call) error {
	elem := graph.Float32
	if a := c.attr("value"); a != nil && a.Tensor != nil {
		elem = a.Tensor.Type
		if n, ok := a.Tensor.Elems(); ok && n != 1 {
			return fmt.Errorf("attribute value has %d elements, not one", n)
		}
	}
	if e := c.elem(0); e != graph.Undefined && e != graph.Int64 && c.s.e.opt.Strict {
		return fmt.Errorf("the shape has element type %s, not int64", e)
	}
	shape, known := c.dimsIn(0)
	if !known {
		c.out(0, elem, nil)
		return nil
	}
	for _, d := range shape {
		if n, ok := d.Int(); ok && n < 0 {
			return fmt.Errorf("shape %s has a negative dim", text(shape))
		}
	}
	c.out(0, elem, shape)
	return nil
}

func constantOfShapeValues(c *call) error {
	dims := c.outDims(0)
	n, ok := graph.Product(dims)
	if dims == nil || !ok {
		return nil
	}
	x := intElem(0)
	if c.outTyp(0).Elem.IsFloat() {
		x = floatElem(0)
	}
	if a := c.attr("value"); a != nil && a.Tensor != nil {
		v := constantContents(a.Tensor)
		if v == nil {
			return nil
		}
		x = v.elems[0]
	}
	out := &contents{dims: dims, elems: make([]elem, n)}
	for i := range out.elems {
		out.elems[i] = x
	}
	c.setContents(0, out)
	return nil
}

// eyeLike has the element type of attribute dtype, or the input's.
func eyeLike(c *call) error {
	if err := c.wantRank(0, 2); err != nil {
		return err
	}
	return typedLike("dtype")(c)
}

// rangeRule counts from start to below limit by delta.
func rangeRule(c *call) error {
	elem := firstElem(c)
	if c.ver >= 27 {
		elem = c.dtype("dtype", elem)
	}
	start, limit, delta, ok := rangeBounds(c)
	if !ok {
		c.out(0, elem, unknownDims(1))
		return nil
	}
	n, err := rangeLength(start, limit, delta)
	if err != nil {
		return err
	}
	c.out(0, elem, graph.Shape{n})
	return nil
}

func rangeBounds(c *call) (start, limit, delta elem, ok bool) {
	var x [3]elem
	for i := range x {
		v := tensorIn(c, i)
		if v == nil || len(v.elems) != 1 {
			return start, limit, delta, false
		}
		x[i] = v.elems[0]
	}
	return x[0], x[1], x[2], true
}

func rangeLength(start, limit, delta elem) (graph.Dim, error) {
	a, ok1 := start.float()
	b, ok2 := limit.float()
	d, ok3 := delta.float()
	if ok3 && d == 0 {
		return graph.Dim{}, fmt.Errorf("delta is 0")
	}
	m, isInt1 := start.int()
	n, isInt2 := limit.int()
	k, isInt3 := delta.int()
	if isInt1 && isInt2 && isInt3 {
		span := graph.Int(n).Sub(graph.Int(m))
		if !span.Known() {
			return span, fmt.Errorf("the range from %d to %d overflows", m, n)
		}
		if k < 0 {
			if k == math.MinInt64 {
				return graph.Dim{}, nil
			}
			span, k = span.Neg(), -k
		}
		return span.CeilDiv(graph.Int(k)).Max(graph.Int(0)), nil
	}
	if ok1 && ok2 && ok3 {
		n := math.Ceil((b - a) / d)
		if math.IsNaN(n) || n > maxBits {
			return graph.Dim{}, fmt.Errorf("the range from %v to %v by %v has no length", a, b, d)
		}
		return graph.Int(int64(max(n, 0))), nil
	}
	from, to, by := start.exact(), limit.exact(), delta.exact()
	if !ok3 || from.dim().Known() != from.known() || to.dim().Known() != to.known() || by.den != 1 {
		return graph.Dim{}, nil
	}
	span := to.dim().Sub(from.dim())
	step, _ := by.num.Int()
	if step < 0 {
		span, step = span.Neg(), -step
	}
	return span.CeilDiv(graph.Int(step)).Max(graph.Int(0)), nil
}

func rangeValues(c *call) error {
	dims := c.outDims(0)
	start, _, delta, ok := rangeBounds(c)
	if dims == nil || !ok {
		return nil
	}
	a := arithmetic{c.outTyp(0).Elem}
	out := &contents{dims: dims, elems: make([]elem, dims[0])}
	for i := range out.elems {
		k := a.fix(intElem(int64(i)))
		out.elems[i] = a.fix(addElems(a, []elem{start, mulElems(a, []elem{k, delta})}))
	}
	c.setContents(0, out)
	return nil
}

// random is a generator whose shape is an attribute.
func random(c *call) error {
	shape, ok := c.ints("shape")
	if !ok {
		c.out(0, c.dtype("dtype", graph.Float32), nil)
		return nil
	}
	c.out(0, c.dtype("dtype", graph.Float32), ints(shape...))
	return nil
}

// multinomial draws sample_size class indices per row.
func multinomial(c *call) error {
	if err := c.wantRank(0, 2); err != nil {
		return err
	}
	c.out(0, c.dtype("dtype", graph.Int32), graph.Shape{c.dim(0, 0), graph.Int(c.int("sample_size", 1))})
	return nil
}

// oneHot inserts an axis of length depth.
func oneHot(c *call) error {
	s := c.shape(0)
	var depth graph.Dim
	if d, ok := c.dimsIn(1); ok && len(d) == 1 {
		depth = d[0]
	} else if v := tensorIn(c, 1); v != nil && len(v.elems) == 1 {
		depth = v.elems[0].dim()
	}
	if v := tensorIn(c, 1); v != nil && len(v.elems) == 1 && v.elems[0].isFloat {
		depth = graph.Int(int64(v.elems[0].f))
	}
	if r := c.rank(1); r > 1 {
		return fmt.Errorf("depth %s is not a scalar", text(c.shape(1)))
	}
	if n, ok := depth.Int(); ok && n < 0 {
		return fmt.Errorf("depth is %d", n)
	}
	if list, ok := c.intsIn(0); ok && c.ver < 11 {
		for _, i := range list {
			if i < 0 {
				return fmt.Errorf("index %d is negative", i)
			}
		}
	}
	if s == nil {
		c.out(0, c.elem(2), nil)
		return nil
	}
	axis, err := axisOf(c.int("axis", -1), len(s)+1)
	if err != nil {
		return err
	}
	c.out(0, c.elem(2), concat(s[:axis], []graph.Dim{depth}, s[axis:]))
	return nil
}

// nonZero yields the indices of non-zero elements: [rank, count].
func nonZero(c *call) error {
	s := c.shape(0)
	rank, count := graph.Dim{}, graph.Dim{}
	if s != nil {
		rank = graph.Int(int64(len(s)))
		c.bound(0, 1, product(s))
	}
	if f, ok := c.floatsIn(0); ok {
		n := int64(0)
		for _, x := range f {
			if x != 0 {
				n++
			}
		}
		count = graph.Int(n)
	}
	c.out(0, graph.Int64, graph.Shape{rank, count})
	return nil
}

func nonZeroValues(c *call) error {
	f, ok := c.floatsIn(0)
	dims := c.outDims(0)
	if !ok || dims == nil {
		return nil
	}
	in := tensorIn(c, 0).dims
	out := &contents{dims: dims, elems: make([]elem, dims[0]*dims[1])}
	col := 0
	eachIndex(in, func(flat int, idx []int64) {
		if f[flat] == 0 {
			return
		}
		for i, x := range idx {
			out.elems[i*int(dims[1])+col] = intElem(x)
		}
		col++
	})
	c.setContents(0, out)
	return nil
}

// compress keeps the elements, or slices of an axis, where the condition holds.
func compress(c *call) error {
	s := c.shape(0)
	if err := c.wantRank(1, 1); err != nil {
		return err
	}
	count := graph.Dim{}
	a := c.attr("axis")
	length := graph.Dim{}
	axis := 0
	if s != nil {
		length = product(s)
		if a != nil {
			var err error
			if axis, err = axisOf(a.I, len(s)); err != nil {
				return err
			}
			length = s[axis]
		}
	}
	if f, ok := c.floatsIn(1); ok {
		n := int64(0)
		for _, x := range f {
			if x != 0 {
				n++
			}
		}
		count = graph.Int(n)
	}
	c.bound(0, axis, length.Min(c.dim(1, 0)))
	switch {
	case a == nil:
		c.out(0, c.elem(0), graph.Shape{count})
	case s == nil:
		c.out(0, c.elem(0), nil)
	default:
		c.out(0, c.elem(0), with(s, axis, count))
	}
	return nil
}

// unique yields the distinct elements, or slices of an axis, and their
// positions.
func unique(c *call) error {
	s := c.shape(0)
	a := c.attr("axis")
	length := graph.Dim{}
	axis := 0
	if s != nil {
		length = product(s)
		if a != nil {
			var err error
			if axis, err = axisOf(a.I, len(s)); err != nil {
				return err
			}
			length = s[axis]
		}
	}
	count := countUnique(c, axis, a != nil)
	if !count.Known() {
		count = c.s.e.fresh(c.n.Op, length, c.n.Label())
	}
	switch {
	case a == nil:
		c.out(0, c.elem(0), graph.Shape{count})
	case s == nil:
		c.out(0, c.elem(0), nil)
	default:
		c.out(0, c.elem(0), with(s, axis, count))
	}
	c.out(1, graph.Int64, graph.Shape{count})
	c.out(2, graph.Int64, graph.Shape{length})
	c.out(3, graph.Int64, graph.Shape{count})
	return nil
}

// countUnique counts distinct constants, or slices of them.
func countUnique(c *call, axis int, sliced bool) graph.Dim {
	f, ok := c.floatsIn(0)
	if !ok {
		return graph.Dim{}
	}
	dims := tensorIn(c, 0).dims
	n := int64(len(f))
	if sliced {
		n = dims[axis]
	}
	keys := make([]string, n)
	eachIndex(dims, func(flat int, idx []int64) {
		k := int64(flat)
		if sliced {
			k = idx[axis]
		}
		keys[k] += fmt.Sprint(f[flat], " ")
	})
	distinct := map[string]bool{}
	for _, k := range keys {
		distinct[k] = true
	}
	return graph.Int(int64(len(distinct)))
}

// nonMaxSuppression: boxes [batch, n, 4], scores [batch, classes, n]; the
// result holds (batch, class, box) triples.
func nonMaxSuppression(c *call) error {
	if err := c.wantRank(0, 3); err != nil {
		return err
	}
	if err := c.wantRank(1, 3); err != nil {
		return err
	}
	n := graph.Int(0) // the default selects no box
	if c.has(2) {
		n = c.dim(1, 2)
		if k, ok := c.intsIn(2); ok && len(k) == 1 {
			n = n.Min(graph.Int(max(k[0], 0)))
		}
	}
	limit := c.dim(1, 0).Mul(c.dim(1, 1)).Mul(n)
	c.bound(0, 0, limit)
	count := graph.Dim{}
	if limit.Equal(graph.Int(0)) {
		count = limit
	} else if k, ok := selectBoxes(c); ok {
		count = graph.Int(k)
	}
	c.out(0, graph.Int64, graph.Shape{count, graph.Int(3)})
	return nil
}
