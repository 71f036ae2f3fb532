package infer

import (
	"fmt"
	"math"
	"strings"

	"github.com/memplan/memplan/graph"
)

// reshape: the target holds sizes, 0 to copy a dim (unless allowzero), and at
// most one -1 for the remaining size.
func reshape(c *call) error {
	target, known := c.dimsIn(1)
	if list, ok := c.ints("shape"); ok && !c.has(1) { // opset 1
		target, known = ints(list...), true
	}
	if !known {
		c.out(0, c.elem(0), nil)
		return nil
	}
	shape, err := reshaped(c.shape(0), target, c.int("allowzero", 0) != 0)
	if err != nil {
		return err
	}
	c.out(0, c.elem(0), shape)
	return nil
}

func reshaped(in graph.Shape, target []graph.Dim, allowZero bool) (graph.Shape, error) {
	out := append(graph.Shape{}, target...)
	open, unknown := -1, 0 // the -1, or the last unknown dim
	copied := make([]bool, len(in))
	for i, d := range target {
		n, ok := d.Int()
		switch {
		case !d.Known():
			unknown++
			open = i
		case ok && n == -1:
			unknown++
			open, out[i] = i, graph.Dim{}
		case ok && n < -1:
			return nil, fmt.Errorf("target shape %s has a negative dim", text(target))
		case ok && n == 0 && !allowZero:
			if in == nil {
				out[i] = graph.Dim{}
				unknown += 2 // no solution
				continue
			}
			if i >= len(in) {
				return nil, fmt.Errorf("target shape %s copies dim %d of %s", text(target), i, text(in))
			}
			out[i], copied[i] = in[i], true
		}
	}
	if minusOnes(target) > 1 {
		return nil, fmt.Errorf("target shape %s has more than one -1", text(target))
	}
	if in == nil || unknown > 1 {
		return out, nil
	}
	return solve(in, target, out, copied, open)
}

func minusOnes(target []graph.Dim) int {
	n := 0
	for _, d := range target {
		if k, ok := d.Int(); ok && k == -1 {
			n++
		}
	}
	return n
}

// solve finds the one unknown dim of out, if open is not -1, from the number of
// elements of in, and checks that number. Copied dims are on both sides.
func solve(in graph.Shape, target []graph.Dim, out graph.Shape, copied []bool, open int) (graph.Shape, error) {
	total, rest := graph.Int(1), graph.Int(1)
	for i, d := range in {
		if !copied[i] {
			total = total.Mul(d)
		}
	}
	for i, d := range out {
		if i != open && !(i < len(copied) && copied[i]) {
			rest = rest.Mul(d)
		}
	}
	m, mInt := total.Int()
	n, nInt := rest.Int()
	fail := func() error {
		return fmt.Errorf("%s cannot be reshaped to %s: the number of elements differs", text(in), text(target))
	}
	if open < 0 {
		if mInt && nInt && m != n {
			return nil, fail()
		}
		return out, nil
	}
	if nInt && n == 0 {
		if k, ok := target[open].Int(); ok && k == -1 && mInt && m != 0 {
			return nil, fail()
		}
		return out, nil
	}
	if mInt && nInt && m%n != 0 {
		return nil, fail()
	}
	out[open] = total.FloorDiv(rest)
	return out, nil
}

func flatten(c *call) error {
	s := c.shape(0)
	if s == nil {
		c.out(0, c.elem(0), unknownDims(2))
		return nil
	}
	axis := c.int("axis", 1)
	if axis < 0 {
		axis += int64(len(s))
	}
	if axis < 0 || axis > int64(len(s)) {
		return fmt.Errorf("axis %d is outside a tensor of rank %d", c.int("axis", 1), len(s))
	}
	c.out(0, c.elem(0), graph.Shape{product(s[:axis]), product(s[axis:])})
	return nil
}

func transpose(c *call) error {
	s := c.shape(0)
	perm, ok := c.ints("perm")
	if s == nil {
		if ok {
			c.out(0, c.elem(0), unknownDims(len(perm)))
		} else {
			c.out(0, c.elem(0), nil)
		}
		return nil
	}
	order, err := permutation(perm, ok, len(s))
	if err != nil {
		return err
	}
	out := make(graph.Shape, len(s))
	for i, p := range order {
		out[i] = s[p]
	}
	c.out(0, c.elem(0), out)
	return nil
}

// permutation checks attribute perm; by default axes are reversed.
func permutation(perm []int64, given bool, rank int) ([]int, error) {
	if !given {
		out := make([]int, rank)
		for i := range out {
			out[i] = rank - 1 - i
		}
		return out, nil
	}
	if len(perm) != rank {
		return nil, fmt.Errorf("perm %v does not fit a tensor of rank %d", perm, rank)
	}
	out, err := axesOf(perm, rank)
	if err != nil {
		return nil, fmt.Errorf("perm %v: %w", perm, err)
	}
	return out, nil
}

// leavesDim reports whether PyTorch's exporter wrote a Squeeze for a squeeze of
// given dims: that drops only dims of size 1, but the exporter drops them all.
func leavesDim(n *graph.Node) bool {
	fx := n.MetaValue("pkg.torch.onnx.fx_node")
	return strings.Contains(fx, "target=torch.ops.aten.squeeze.dim")
}

func squeeze(c *call) error {
	axes, given, known := c.axesIn("axes", 1)
	s := c.shape(0)
	if s == nil || !known {
		c.out(0, c.elem(0), nil)
		return nil
	}
	if !given || len(axes) == 0 { // ONNX requires axes if any are given; ONNX Runtime reads an empty list as all
		return squeezeOnes(c, s)
	}
	at, err := axesOf(axes, len(s))
	if err != nil {
		return err
	}
	drop := make([]bool, len(s))
	for _, a := range at {
		if n, ok := s[a].Int(); ok && n != 1 {
			if leavesDim(c.n) {
				continue
			}
			return fmt.Errorf("dim %d of %s is not 1", a, text(s))
		}
		drop[a] = true
	}
	out := graph.Shape{}
	for i, d := range s {
		if !drop[i] {
			out = append(out, d)
		}
	}
	c.out(0, c.elem(0), out)
	return nil
}

// squeezeOnes drops every dim of size 1, if it is known which are.
func squeezeOnes(c *call, s graph.Shape) error {
	out := graph.Shape{}
	for _, d := range s {
		n, ok := d.Int()
		if lo, _ := d.Bounds(); !ok && lo < 2 {
			c.out(0, c.elem(0), nil)
			return nil
		}
		if !ok || n != 1 {
			out = append(out, d)
		}
	}
	c.out(0, c.elem(0), out)
	return nil
}

func unsqueeze(c *call) error {
	axes, given, known := c.axesIn("axes", 1)
	s := c.shape(0)
	if !given {
		return fmt.Errorf("axes are missing")
	}
	if !known {
		c.out(0, c.elem(0), nil)
		if n, ok := c.dim(1, 0).Int(); ok && s != nil && n >= 0 && n < maxRank {
			c.out(0, c.elem(0), unknownDims(len(s)+int(n)))
		}
		return nil
	}
	if s == nil {
		c.out(0, c.elem(0), nil)
		return nil
	}
	out := make(graph.Shape, len(s)+len(axes))
	at, err := axesOf(axes, len(out))
	if err != nil {
		return err
	}
	added := make([]bool, len(out))
	for _, a := range at {
		out[a], added[a] = graph.Int(1), true
	}
	k := 0
	for i := range out {
		if !added[i] {
			out[i] = s[k]
			k++
		}
	}
	c.out(0, c.elem(0), out)
	return nil
}

func contains(list []int, n int) bool {
	for _, m := range list {
		if m == n {
			return true
		}
	}
	return false
}

func concatRule(c *call) error {
	def := int64(1) // opset 1
	if c.ver >= 4 && c.attr("axis") == nil {
		return fmt.Errorf("attribute axis is missing")
	}
	out, err := concatShape(c, c.int("axis", def))
	if err != nil {
		return err
	}
	c.out(0, firstElem(c), out)
	return nil
}

func concatShape(c *call, axis int64) (graph.Shape, error) {
	var out graph.Shape
	partial := false
	at := 0
	for i := range c.arity() {
		s := c.shape(i)
		if s == nil {
			partial = true
			continue
		}
		if out == nil {
			var err error
			if at, err = axisOf(axis, len(s)); err != nil {
				return nil, err
			}
			out = append(graph.Shape{}, s...)
			continue
		}
		if len(s) != len(out) {
			return nil, fmt.Errorf("inputs 0 and %d have different ranks: %s and %s", i, text(out), text(s))
		}
		for k, d := range s {
			var ok bool
			if k == at {
				sum := out[k].Add(d)
				if ok = sum.Known() || !isInt(out[k]) || !isInt(d); !ok {
					return nil, fmt.Errorf("the length along axis %d overflows", at)
				}
				out[k] = sum
			} else if out[k], ok = mergeDim(out[k], d); !ok {
				return nil, fmt.Errorf("inputs differ outside axis %d: %s and %s", at, text(c.shape(0)), text(s))
			}
		}
	}
	if partial && out != nil {
		out[at] = graph.Dim{}
	}
	return out, nil
}

func isInt(d graph.Dim) bool {
	_, ok := d.Int()
	return ok
}

// split divides an axis into parts of given sizes, or equal ones.
func split(c *call) error {
	s := c.shape(0)
	n := len(c.n.Outputs)
	if n == 0 {
		return nil
	}
	if s == nil {
		for i := range n {
			c.out(i, c.elem(0), nil)
		}
		return nil
	}
	axis, err := axisOf(c.int("axis", 0), len(s))
	if err != nil {
		return err
	}
	parts, err := splitSizes(c, s[axis], n)
	if err != nil {
		return err
	}
	for i := range n {
		c.out(i, c.elem(0), with(s, axis, parts[i]))
	}
	return nil
}

func splitSizes(c *call, d graph.Dim, n int) ([]graph.Dim, error) {
	sizes, given, known := c.axesIn("split", 1)
	if a := c.attr("num_outputs"); a != nil && int(a.I) != n {
		return nil, fmt.Errorf("num_outputs is %d, the node has %d outputs", a.I, n)
	}
	if given {
		if !known {
			if dims, ok := c.dimsIn(1); ok && len(dims) == n {
				return dims, nil
			}
			return unknownDims(n), nil
		}
		return checkSizes(d, sizes, n)
	}
	k := graph.Int(int64(n))
	m, isInt := d.Int()
	if isInt && m%int64(n) != 0 && c.ver < 18 {
		return nil, fmt.Errorf("a dim of %d does not split into %d equal parts", m, n)
	}
	part := d.FloorDiv(k)
	if c.ver >= 18 {
		part = d.CeilDiv(k)
	}
	out := make([]graph.Dim, n)
	for i := range out {
		out[i] = part
	}
	if !part.Mul(k).Equal(d) {
		out[n-1] = d.Sub(part.Mul(graph.Int(int64(n - 1))))
	}
	return out, nil
}

func checkSizes(d graph.Dim, sizes []int64, n int) ([]graph.Dim, error) {
	if len(sizes) != n {
		return nil, fmt.Errorf("split sizes %v for %d outputs", sizes, n)
	}
	sum := int64(0)
	for _, k := range sizes {
		if k < 0 || sum > math.MaxInt64-k {
			return nil, fmt.Errorf("split sizes %v are out of range", sizes)
		}
		sum += k
	}
	if m, ok := d.Int(); ok && m != sum {
		return nil, fmt.Errorf("split sizes %v do not add up to %d", sizes, m)
	}
	return ints(sizes...), nil
}

// gather replaces an axis by the shape of the indices.
func gather(c *call) error {
	s, idx := c.shape(0), c.shape(1)
	if s == nil || idx == nil {
		c.out(0, c.elem(0), nil)
		return nil
	}
	axis, err := axisOf(c.int("axis", 0), len(s))
	if err != nil {
		return err
	}
	if err := c.beyond(axis); err != nil {
		return err
	}
	if list, ok := c.intsIn(1); ok {
		if n, ok := s[axis].Int(); ok {
			for _, i := range list {
				if i < -n || i >= n {
					return fmt.Errorf("index %d is outside axis %d of %s", i, axis, text(s))
				}
			}
		}
	}
	c.out(0, c.elem(0), concat(s[:axis], idx, s[axis+1:]))
	return nil
}

// gatherElements: the result has the shape of the indices.
func gatherElements(c *call) error {
	s, idx := c.shape(0), c.shape(1)
	if s != nil {
		if _, err := axisOf(c.int("axis", 0), len(s)); err != nil {
			return err
		}
		if idx != nil && len(idx) != len(s) {
			return fmt.Errorf("data %s and indices %s differ in rank", text(s), text(idx))
		}
	}
	c.out(0, c.elem(0), idx)
	return nil
}

// gatherND: indices[..., k] select slices of data after batch_dims.
func gatherND(c *call) error {
	s, idx := c.shape(0), c.shape(1)
	if s == nil || idx == nil {
		c.out(0, c.elem(0), nil)
		return nil
	}
	if len(idx) == 0 || len(s) == 0 {
		return fmt.Errorf("data %s and indices %s must have at least one dim", text(s), text(idx))
	}
	b := c.int("batch_dims", 0)
	k, ok := idx[len(idx)-1].Int()
	if !ok {
		c.out(0, c.elem(0), nil)
		return nil
	}
	if b < 0 || b > int64(len(idx)-1) || k < 0 || b+k > int64(len(s)) {
		return fmt.Errorf("indices %s with %d batch dims are too long for data %s", text(idx), b, text(s))
	}
	for i := range int(b) {
		if _, ok := mergeDim(s[i], idx[i]); !ok {
			return fmt.Errorf("batch dims of data %s and indices %s differ", text(s), text(idx))
		}
	}
	c.out(0, c.elem(0), concat(idx[:len(idx)-1], s[b+k:]))
	return nil
}

// scatterElements: the result is like data.
func scatterElements(c *call) error {
	s, idx := c.shape(0), c.shape(1)
	if s != nil {
		if _, err := axisOf(c.int("axis", 0), len(s)); err != nil {
			return err
		}
		if idx != nil && len(idx) != len(s) {
			return fmt.Errorf("data %s and indices %s differ in rank", text(s), text(idx))
		}
	}
	return same(c)
}

func scatterND(c *call) error {
	s, idx := c.shape(0), c.shape(1)
	if s != nil && idx != nil && len(idx) > 0 {
		if k, ok := idx[len(idx)-1].Int(); ok && k > int64(len(s)) {
			return fmt.Errorf("indices %s are too long for data %s", text(idx), text(s))
		}
	}
	return same(c)
}

// expand broadcasts the input with the target shape.
func expand(c *call) error {
	target, known := c.dimsIn(1)
	if !known {
		c.out(0, c.elem(0), nil)
		return nil
	}
	for _, d := range target {
		if n, ok := d.Int(); ok && n < 0 {
			return fmt.Errorf("target shape %s has a negative dim", text(target))
		}
	}
	out, err := broadcast(c.shape(0), target)
	if err != nil {
		return err
	}
	c.out(0, c.elem(0), out)
	return nil
}

// tile repeats every axis.
func tile(c *call) error {
	s := c.shape(0)
	if c.ver < 6 {
		return tileOld(c, s)
	}
	reps, known := c.dimsIn(1)
	if s == nil || !known {
		n := max(len(s), len(reps))
		if n == 0 {
			c.out(0, c.elem(0), nil)
		} else {
			c.out(0, c.elem(0), unknownDims(n))
		}
		return nil
	}
	if len(reps) != len(s) {
		return fmt.Errorf("%d repeats for a tensor %s", len(reps), text(s))
	}
	out := make(graph.Shape, len(s))
	for i, d := range s {
		out[i] = d.Mul(reps[i])
		if isInt(d) && isInt(reps[i]) && !out[i].Known() {
			return fmt.Errorf("dim %d overflows: %s times %s", i, d, reps[i])
		}
	}
	c.out(0, c.elem(0), out)
	return nil
}

// tileOld is Tile of opset 1: one axis, repeated a given number of times.
func tileOld(c *call, s graph.Shape) error {
	tiles, ok1 := c.intsIn(1)
	axis, ok2 := c.intsIn(2)
	if s == nil || !ok2 || len(axis) != 1 {
		c.out(0, c.elem(0), nil)
		if s != nil {
			c.out(0, c.elem(0), unknownDims(len(s)))
		}
		return nil
	}
	at, err := axisOf(axis[0], len(s))
	if err != nil {
		return err
	}
	d := graph.Dim{}
	if ok1 && len(tiles) == 1 {
		d = s[at].Mul(graph.Int(tiles[0]))
	}
	c.out(0, c.elem(0), with(s, at, d))
	return nil
}

// pad adds to both ends of the axes; amounts may be negative.
func pad(c *call) error {
	s := c.shape(0)
	if s == nil {
		c.out(0, c.elem(0), nil)
		return nil
	}
	pads, err := padAmounts(c, len(s))
	if err != nil {
		return err
	}
	out := make(graph.Shape, len(s))
	for i, d := range s {
		sum := pads[i].Add(pads[i+len(s)])
		if isInt(pads[i]) && isInt(pads[i+len(s)]) && !sum.Known() {
			return fmt.Errorf("the padding of axis %d overflows", i)
		}
		out[i] = d.Add(sum)
		if isInt(d) && isInt(sum) && !out[i].Known() {
			return fmt.Errorf("the padded dim %d overflows", i)
		}
	}
	c.out(0, c.elem(0), out)
	return nil
}

// padAmounts returns the begins of all axes, then the ends.
func padAmounts(c *call, rank int) ([]graph.Dim, error) {
	var amounts []graph.Dim
	known := true
	if c.has(1) {
		amounts, known = c.dimsIn(1)
	} else if list, ok := c.ints("pads"); ok {
		amounts = ints(list...)
	} else if list, ok := c.ints("paddings"); ok {
		amounts = ints(list...)
	} else {
		return nil, fmt.Errorf("pads are missing")
	}
	axes, given, axesKnown := c.axesIn("axes", 3)
	out := make([]graph.Dim, 2*rank)
	if !known || !axesKnown {
		return out, nil
	}
	at := make([]int, rank)
	for i := range at {
		at[i] = i
	}
	if given {
		var err error
		if at, err = axesOf(axes, rank); err != nil {
			return nil, err
		}
	}
	if len(amounts) != 2*len(at) {
		return nil, fmt.Errorf("%d pads for %d axes", len(amounts), len(at))
	}
	for i := range out {
		out[i] = graph.Int(0)
	}
	for i, a := range at {
		out[a], out[a+rank] = amounts[i], amounts[i+len(at)]
	}
	return out, nil
}

// depthToSpace and spaceToDepth trade channels for pixels.
func depthToSpace(c *call) error {
	b, err := blockSize(c)
	s := c.shape(0)
	if err != nil || s == nil {
		c.out(0, c.elem(0), unknownDims(4))
		return err
	}
	area := b.Mul(b)
	if n, ok := s[1].Int(); ok {
		if m, _ := area.Int(); n%m != 0 {
			return fmt.Errorf("%d channels do not divide into blocks of %s", n, area)
		}
	}
	c.out(0, c.elem(0), graph.Shape{s[0], s[1].FloorDiv(area), s[2].Mul(b), s[3].Mul(b)})
	return nil
}

func spaceToDepth(c *call) error {
	b, err := blockSize(c)
	s := c.shape(0)
	if err != nil || s == nil {
		c.out(0, c.elem(0), unknownDims(4))
		return err
	}
	for i := 2; i < 4; i++ {
		n, _ := b.Int()
		if m, ok := s[i].Int(); ok && m%n != 0 {
			return fmt.Errorf("dim %d of %s does not divide by the block size %s", i, text(s), b)
		}
	}
	c.out(0, c.elem(0), graph.Shape{s[0], s[1].Mul(b.Mul(b)), s[2].FloorDiv(b), s[3].FloorDiv(b)})
	return nil
}

func blockSize(c *call) (graph.Dim, error) {
	b := c.int("blocksize", 0)
	if b <= 0 {
		return graph.Dim{}, fmt.Errorf("blocksize is %d, not positive", b)
	}
	if b > 1<<31-1 {
		return graph.Dim{}, fmt.Errorf("blocksize %d overflows", b)
	}
	return graph.Int(b), c.wantRank(0, 4)
}

// centerCropPad: the axes get the sizes given.
func centerCropPad(c *call) error {
	s := c.shape(0)
	sizes, known := c.dimsIn(1)
	axes, given := c.ints("axes")
	if s == nil {
		c.out(0, c.elem(0), nil)
		if !given && known {
			c.out(0, c.elem(0), sizes)
		}
		return nil
	}
	at := make([]int, len(s))
	for i := range at {
		at[i] = i
	}
	if given {
		var err error
		if at, err = axesOf(axes, len(s)); err != nil {
			return err
		}
	}
	if known && len(sizes) != len(at) {
		return fmt.Errorf("%d sizes for %d axes", len(sizes), len(at))
	}
	out := append(graph.Shape{}, s...)
	for i, a := range at {
		out[a] = graph.Dim{}
		if known {
			out[a] = sizes[i]
		}
	}
	c.out(0, c.elem(0), out)
	return nil
}

// trilu takes a triangle of the last two axes.
func trilu(c *call) error {
	if r := c.rank(0); r == 0 || r == 1 {
		return fmt.Errorf("input %s has fewer than 2 dims", text(c.shape(0)))
	}
	return same(c)
}
