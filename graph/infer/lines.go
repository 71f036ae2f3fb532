package infer

import (
	"fmt"
	"math"
	"slices"

	"github.com/memplan/memplan/graph"
)

// A line is an integer tensor, of any size, whose element at an index is base
// plus, for each axis, slope times the index there: what arange makes, and sums,
// slices and views of it. Contents end at maxElems, a line does not: it is how
// the indices of long sequences meet the rows of a position table.
type line struct {
	base  int64
	slope []int64 // one for each axis; of an axis of one element it says nothing

	// ones, unless nil, is a mask that is taken to be one everywhere: a sequence
	// without padding.
	ones *graph.Value
}

// lineRules is the table of operators whose results are lines where their
// operands are. Others end a line.
var lineRules = map[string]func(c *call) *line{
	"Add":            sumLine(1),
	"And":            maskLine,
	"Cast":           keepLine,
	"CastLike":       keepLine,
	"CumSum":         cumulativeLine,
	"Equal":          maskLine,
	"Expand":         broadcastLine,
	"Flatten":        reshapeLine,
	"Greater":        maskLine,
	"GreaterOrEqual": maskLine,
	"Identity":       keepLine,
	"Less":           maskLine,
	"LessOrEqual":    maskLine,
	"Mul":            productLine,
	"Not":            maskLine,
	"Or":             maskLine,
	"Range":          rangeLine,
	"Reshape":        reshapeLine,
	"Slice":          sliceLine,
	"Squeeze":        reshapeLine,
	"Sub":            sumLine(-1),
	"Transpose":      transposeLine,
	"Unsqueeze":      reshapeLine,
}

// lines records the line of a node's result.
func (s *scope) lines(c *call) {
	if c.op == nil || c.op.Domain != "" || !c.wanted(0) {
		return
	}
	rule := lineRules[c.op.Name]
	if rule == nil {
		return
	}
	t := c.outTyp(0)
	if t.Kind != graph.TensorType || t.Shape == nil || !countable(t.Elem) {
		return
	}
	l := rule(c)
	if l == nil || len(l.slope) != len(t.Shape) || !l.fits(t) {
		return
	}
	if s.line == nil {
		s.line = map[graph.ValueID]*line{}
	}
	s.line[c.n.Outputs[0]] = l
}

// countable reports whether elements of a type may hold positions.
func countable(t graph.DType) bool {
	switch t {
	case graph.Int64, graph.Int32, graph.Bool, graph.Float32, graph.Float64:
		return true
	}
	return false
}

// maxLine bounds the elements of lines: sums and products of them do not
// overflow, and floating-point numbers of 32 bits hold them.
const maxLine = 1 << 24

// fits reports whether all elements of a tensor that is a line are at most
// maxLine.
func (l *line) fits(t graph.Type) bool {
	lo, hi, ok := l.ends(t.Shape)
	if !ok { // sizes are not known yet
		lo, hi = l.base, l.base
		for _, k := range l.slope {
			if k < -maxLine || k > maxLine {
				return false
			}
		}
	}
	return lo >= -maxLine && hi <= maxLine && (t.Elem != graph.Bool || lo >= 0 && hi <= 1)
}

// ends returns the least and the greatest element; ok is false where there is
// none, or where a size is not known.
func (l *line) ends(shape graph.Shape) (lo, hi int64, ok bool) {
	lo, hi = l.base, l.base
	for i, d := range shape {
		n, isInt := d.Int()
		if isInt && n == 0 {
			return 0, 0, false
		}
		k := l.slope[i]
		if k == 0 {
			continue
		}
		if !isInt || math.Abs(float64(k))*float64(n) > 1<<40 {
			return 0, 0, false
		}
		lo, hi = lo+min(k*(n-1), 0), hi+max(k*(n-1), 0)
	}
	return lo, hi, true
}

// flat reports whether all elements are the same.
func (l *line) flat() bool {
	return !slices.ContainsFunc(l.slope, func(k int64) bool { return k != 0 })
}

// lineIn returns the line that input i is, or nil. A constant of one element is one.
func (c *call) lineIn(i int) *line {
	if !c.has(i) {
		return nil
	}
	if l := c.s.line[c.n.Inputs[i]]; l != nil {
		return l
	}
	v := c.contents(i)
	if v == nil || v.list || len(v.elems) == 0 || !countable(c.elem(i)) {
		return nil
	}
	for _, x := range v.elems[1:] {
		if !x.equal(v.elems[0]) {
			return nil
		}
	}
	x, ok := v.elems[0].exact().int()
	if !ok || x < -maxLine || x > maxLine {
		return nil
	}
	return &line{base: x, slope: make([]int64, len(v.dims))}
}

// maskIn returns what input i is as a mask: its line, or ones for integers that
// the model gets as an input.
func (c *call) maskIn(i int) *line {
	if l := c.lineIn(i); l != nil {
		return l
	}
	v := c.in(i)
	if v == nil || v.Kind != graph.Input || c.s.parent != nil || c.s.inFunction || v.Type.Elem.IsFloat() || v.Type.Shape == nil {
		return nil
	}
	return &line{base: 1, slope: make([]int64, len(v.Type.Shape)), ones: v}
}

// maskLine is a truth value that depends on data: it may be true everywhere.
// One that is computed from positions depends on them.
func maskLine(c *call) *line {
	data := false
	for i, id := range c.n.Inputs {
		l := c.s.line[id]
		if l != nil && l.ones == nil {
			return nil
		}
		data = data || c.contents(i) == nil
	}
	if !data {
		return nil
	}
	return &line{base: 1, slope: make([]int64, len(c.outTyp(0).Shape)), ones: &c.s.g.Values[c.n.Outputs[0]]}
}

func keepLine(c *call) *line { return c.lineIn(0) }

// broadcastLine has the line's elements along the axes where the line has one.
func broadcastLine(c *call) *line {
	l := c.lineIn(0)
	if l == nil {
		return nil
	}
	return &line{base: l.base, slope: spread(l.slope, c.shape(0), c.outTyp(0).Shape), ones: l.ones}
}

// spread returns the slopes of a tensor that is broadcast to a shape.
func spread(slope []int64, from, to graph.Shape) []int64 {
	out := make([]int64, len(to))
	off := len(to) - len(from)
	for i, d := range from {
		if n, ok := d.Int(); off+i >= 0 && (!ok || n != 1) {
			out[off+i] = slope[i]
		}
	}
	return out
}

// reshapeLine keeps the axes of more than one element, and their order.
func reshapeLine(c *call) *line {
	l := c.lineIn(0)
	if l == nil {
		return nil
	}
	from, to := c.shape(0), c.outTyp(0).Shape
	slope := make([]int64, len(to))
	if l.flat() {
		return &line{base: l.base, slope: slope, ones: l.ones}
	}
	j := 0
	for i, d := range to {
		for j < len(from) && isOne(from[j]) {
			j++
		}
		if isOne(d) {
			continue
		}
		if j == len(from) || !from[j].Equal(d) {
			return nil
		}
		slope[i] = l.slope[j]
		j++
	}
	return &line{base: l.base, slope: slope, ones: l.ones}
}

func isOne(d graph.Dim) bool {
	n, ok := d.Int()
	return ok && n == 1
}

func transposeLine(c *call) *line {
	l := c.lineIn(0)
	if l == nil {
		return nil
	}
	perm, given := c.ints("perm")
	order, err := permutation(perm, given, len(l.slope))
	if err != nil {
		return nil
	}
	slope := make([]int64, len(order))
	for i, p := range order {
		slope[i] = l.slope[p]
	}
	return &line{base: l.base, slope: slope, ones: l.ones}
}

// sliceLine starts elsewhere, with larger steps.
func sliceLine(c *call) *line {
	l := c.lineIn(0)
	if l == nil {
		return nil
	}
	s := c.shape(0)
	spans, ok, err := spans(c, len(s))
	if !ok || err != nil {
		return nil
	}
	out := &line{base: l.base, slope: slices.Clone(l.slope), ones: l.ones}
	for _, p := range spans {
		start, ok := p.start.Int()
		n, known := s[p.axis].Int()
		switch {
		case l.slope[p.axis] == 0:
			continue
		case !ok || p.step < 1 || p.step > maxLine || start > maxLine || start < 0 && !known:
			return nil
		case start < 0:
			start = max(start+n, 0)
		}
		out.base += l.slope[p.axis] * start
		out.slope[p.axis] *= p.step
	}
	return out
}

// sumLine adds two lines, the second one times sign.
func sumLine(sign int64) func(c *call) *line {
	return func(c *call) *line {
		a, b, to := c.lineIn(0), c.lineIn(1), c.outTyp(0).Shape
		if a == nil || b == nil || c.arity() != 2 || c.ver < 7 {
			return nil
		}
		ones, ok := sameMask(a, b)
		if !ok {
			return nil
		}
		out := &line{base: a.base + sign*b.base, slope: spread(a.slope, c.shape(0), to), ones: ones}
		for i, k := range spread(b.slope, c.shape(1), to) {
			out.slope[i] += sign * k
		}
		return out
	}
}

// productLine multiplies a line by a number.
func productLine(c *call) *line {
	a, b, to := c.maskIn(0), c.maskIn(1), c.outTyp(0).Shape
	if a == nil || b == nil || c.arity() != 2 || c.ver < 7 {
		return nil
	}
	ones, ok := sameMask(a, b)
	from := c.shape(0)
	switch {
	case !ok || !a.flat() && !b.flat():
		return nil
	case !b.flat():
		a, b, from = b, a, c.shape(1)
	}
	out := &line{base: a.base * b.base, slope: spread(a.slope, from, to), ones: ones}
	for i := range out.slope {
		out.slope[i] *= b.base
	}
	return out
}

// sameMask returns the mask that two lines depend on, unless these are two.
func sameMask(a, b *line) (*graph.Value, bool) {
	if a.ones == nil {
		return b.ones, true
	}
	return a.ones, b.ones == nil || a.ones == b.ones
}

// cumulativeLine counts along an axis what is the same everywhere.
func cumulativeLine(c *call) *line {
	l, shape := c.maskIn(0), c.shape(0)
	at, ok := c.intsIn(1)
	if l == nil || !l.flat() || !ok || len(at) != 1 {
		return nil
	}
	axis, err := axisOf(at[0], len(shape))
	if err != nil {
		return nil
	}
	out := &line{base: l.base, slope: make([]int64, len(shape)), ones: l.ones}
	out.slope[axis] = l.base
	if c.int("exclusive", 0) != 0 {
		out.base = 0
	}
	if c.int("reverse", 0) != 0 {
		n, known := shape[axis].Int()
		if !known || n > maxLine {
			return nil
		}
		out.base += l.base * (n - 1)
		out.slope[axis] = -l.base
	}
	return out
}

func rangeLine(c *call) *line {
	start, _, delta, ok := rangeBounds(c)
	if !ok {
		return nil
	}
	a, ok1 := start.exact().int()
	d, ok2 := delta.exact().int()
	if !ok1 || !ok2 || a < -maxLine || a > maxLine || d < -maxLine || d > maxLine {
		return nil
	}
	return &line{base: a, slope: []int64{d}}
}

// beyond returns an error where the indices of input 1 lie outside an axis of
// input 0 in every run, and warns where they do for a sequence without padding.
func (c *call) beyond(axis int) error {
	l, s := c.lineIn(1), c.shape(0)
	if l == nil || l.flat() {
		return nil
	}
	rows, ok1 := s[axis].Int()
	lo, hi, ok2 := l.ends(c.shape(1))
	if !ok1 || !ok2 || lo >= -rows && hi < rows {
		return nil
	}
	index := hi
	if hi < rows {
		index = lo
	}
	most := ""
	if n, ok := l.longest(rows); ok {
		most = fmt.Sprintf(": a sequence of at most %d fits", n)
	}
	name := c.in(0).Name
	if l.ones == nil {
		return &TooLong{fmt.Sprintf("index %d is outside axis %d of %q, %s%s", index, axis, name, text(s), most)}
	}
	c.s.e.warn("position-table", c.n.Label(), "without padding index %d is outside axis %d of %q, %s, where PyTorch fails%s", index, axis, name, text(s), most)
	return nil
}

// longest returns the size of the one axis that a line rises along from which on
// its last element is not below rows.
func (l *line) longest(rows int64) (int64, bool) {
	var slope int64
	for _, k := range l.slope {
		if k < 0 || k > 0 && slope > 0 {
			return 0, false
		}
		slope += k
	}
	if slope == 0 || l.base < 0 || l.base >= rows {
		return 0, false
	}
	return (rows-1-l.base)/slope + 1, true
}

// A TooLong is the error of inputs that are longer than a table of the model
// has rows.
type TooLong struct{ message string }

func (e *TooLong) Error() string { return e.message }

// A cut is a slice that asks for more of a tensor than there is, as one of a
// position table does when the sequence is longer.
type cut struct {
	node, name string
	asked, has int64
}

// maxCuts is how many are remembered.
const maxCuts = 64

// cuts remembers slices that end beyond a stored tensor.
func (c *call) cuts(spans []span) {
	v := c.in(0)
	if v.Kind != graph.Initializer && v.Const == nil {
		return
	}
	for _, p := range spans {
		n, ok1 := c.dim(0, p.axis).Int()
		end, ok2 := p.end.Int()
		start, ok3 := p.start.Int()
		if ok1 && ok2 && ok3 && start >= 0 && p.step == 1 && end > n && end < huge && len(c.s.e.cut) < maxCuts {
			c.s.e.cut = append(c.s.e.cut, cut{c.n.Label(), v.Name, end - start, n - start})
		}
	}
}

// A misfit is the error of two dims that do not broadcast.
type misfit struct {
	a, b graph.Shape
	m, n int64
}

func (e *misfit) Error() string {
	return fmt.Sprintf("shapes %s and %s do not broadcast", text(e.a), text(e.b))
}

// explain says of two shapes that do not broadcast which slice of a table had
// too few rows.
func (e *engine) explain(m *misfit) error {
	for _, k := range e.cut {
		if k.has == min(m.m, m.n) && k.asked == max(m.m, m.n) {
			return &TooLong{fmt.Sprintf("%v: %s takes %d of %q, which has %d: a sequence of at most %d fits", m, k.node, k.asked, k.name, k.has, k.has)}
		}
	}
	return m
}
