package infer

import (
	"cmp"
	"slices"

	"github.com/memplan/memplan/graph"
)

// strides returns the row-major strides of a shape.
func strides(dims []int64) []int64 {
	out := make([]int64, len(dims))
	n := int64(1)
	for i := len(dims) - 1; i >= 0; i-- {
		out[i] = n
		n *= dims[i]
	}
	return out
}

// eachIndex calls f with every index of a shape, in row-major order. The
// slice is reused.
func eachIndex(dims []int64, f func(flat int, idx []int64)) {
	n, ok := graph.Product(dims)
	if !ok {
		return
	}
	idx := make([]int64, len(dims))
	for flat := range int(n) {
		f(flat, idx)
		for i := len(idx) - 1; i >= 0; i-- {
			if idx[i]++; idx[i] < dims[i] {
				break
			}
			idx[i] = 0
		}
	}
}

// picked returns a tensor of the shape of output i whose elements are those of
// v at the flat positions that at returns; -1 leaves an element unknown.
func picked(c *call, i int, v *contents, at func(idx []int64) int64) *contents {
	dims := c.outDims(i)
	n, ok := graph.Product(dims)
	if dims == nil || !ok || n > maxElems {
		return nil
	}
	out := &contents{dims: dims, elems: make([]elem, n)}
	eachIndex(dims, func(flat int, idx []int64) {
		if k := at(idx); k >= 0 && k < int64(len(v.elems)) {
			out.elems[flat] = v.elems[k]
		}
	})
	return out
}

// tensorIn returns the elements of a tensor input, or nil.
func tensorIn(c *call, i int) *contents {
	v := c.contents(i)
	if v == nil || v.list {
		return nil
	}
	return v
}

// reshapeValues keeps the elements and takes the output's shape.
func reshapeValues(c *call) error {
	v := tensorIn(c, 0)
	dims := c.outDims(0)
	if v == nil || dims == nil {
		return nil
	}
	if n, ok := graph.Product(dims); !ok || n != int64(len(v.elems)) {
		return nil
	}
	c.setContents(0, &contents{dims: dims, elems: v.elems})
	return nil
}

func transposeValues(c *call) error {
	v := tensorIn(c, 0)
	if v == nil {
		return nil
	}
	perm, given := c.ints("perm")
	order, err := permutation(perm, given, len(v.dims))
	if err != nil {
		return nil
	}
	st := strides(v.dims)
	c.setContents(0, picked(c, 0, v, func(idx []int64) int64 {
		at := int64(0)
		for i, p := range order {
			at += idx[i] * st[p]
		}
		return at
	}))
	return nil
}

func concatValues(c *call) error {
	dims := c.outDims(0)
	axis, err := axisOf(c.int("axis", 1), len(dims))
	if dims == nil || err != nil {
		return nil
	}
	type part struct {
		v     *contents
		st    []int64
		first int64
	}
	var parts []part
	at := int64(0)
	for i := range c.arity() {
		s, ok := c.shape(i).Static()
		if !ok || len(s) != len(dims) {
			return nil
		}
		for k, n := range s {
			if k != axis && n != dims[k] {
				return nil // the file declares another shape
			}
		}
		v := tensorIn(c, i)
		if v == nil {
			v = &contents{dims: s}
		}
		parts = append(parts, part{v, strides(s), at})
		at += s[axis]
	}
	if at != dims[axis] || len(parts) == 0 {
		return nil
	}
	n, _ := graph.Product(dims)
	out := &contents{dims: dims, elems: make([]elem, n)}
	eachIndex(dims, func(flat int, idx []int64) {
		k := len(parts) - 1
		for parts[k].first > idx[axis] || k > 0 && parts[k].v.dims[axis] == 0 {
			k--
		}
		p, pos := parts[k], int64(0)
		for i, x := range idx {
			if i == axis {
				x -= p.first
			}
			pos += x * p.st[i]
		}
		if p.v.elems != nil {
			out.elems[flat] = p.v.elems[pos]
		}
	})
	c.setContents(0, out)
	return nil
}

func splitValues(c *call) error {
	v := tensorIn(c, 0)
	if v == nil {
		return nil
	}
	axis, err := axisOf(c.int("axis", 0), len(v.dims))
	if err != nil {
		return nil
	}
	st := strides(v.dims)
	first := int64(0)
	for i := range c.n.Outputs {
		dims := c.outDims(i)
		if dims == nil {
			return nil
		}
		c.setContents(i, picked(c, i, v, func(idx []int64) int64 {
			at := first * st[axis]
			for k, x := range idx {
				at += x * st[k]
			}
			return at
		}))
		first += dims[axis]
	}
	return nil
}

func sliceValues(c *call) error {
	v := tensorIn(c, 0)
	if v == nil {
		return nil
	}
	spans, ok, err := spans(c, len(v.dims))
	if !ok || err != nil {
		return nil
	}
	st := strides(v.dims)
	first, step := make([]int64, len(st)), make([]int64, len(st))
	for i := range step {
		step[i] = 1
	}
	for _, p := range spans {
		a, ok1 := p.start.Int()
		b, ok2 := p.end.Int()
		if !ok1 || !ok2 || p.step == 0 {
			return nil
		}
		first[p.axis], _ = sliceRange(v.dims[p.axis], a, b, p.step)
		step[p.axis] = p.step
	}
	c.setContents(0, picked(c, 0, v, func(idx []int64) int64 {
		at := int64(0)
		for i, x := range idx {
			at += (first[i] + x*step[i]) * st[i]
		}
		return at
	}))
	return nil
}

// gatherValues also handles indices that are only partly known.
func gatherValues(c *call) error {
	v, idx := tensorIn(c, 0), tensorIn(c, 1)
	if v == nil || idx == nil {
		return nil
	}
	axis, err := axisOf(c.int("axis", 0), len(v.dims))
	if err != nil {
		return nil
	}
	st, ist := strides(v.dims), strides(idx.dims)
	r := len(idx.dims)
	c.setContents(0, picked(c, 0, v, func(at []int64) int64 {
		k := int64(0)
		for i, x := range at[axis : axis+r] {
			k += x * ist[i]
		}
		n, ok := idx.elems[k].int()
		if n < 0 {
			n += v.dims[axis]
		}
		if !ok || n < 0 || n >= v.dims[axis] {
			return -1
		}
		pos := n * st[axis]
		for i, x := range at[:axis] {
			pos += x * st[i]
		}
		for i, x := range at[axis+r:] {
			pos += x * st[axis+1+i]
		}
		return pos
	}))
	return nil
}

func gatherElementsValues(c *call) error {
	v, idx := tensorIn(c, 0), tensorIn(c, 1)
	if v == nil || idx == nil {
		return nil
	}
	axis, err := axisOf(c.int("axis", 0), len(v.dims))
	if err != nil || len(idx.dims) != len(v.dims) {
		return nil
	}
	st, ist := strides(v.dims), strides(idx.dims)
	c.setContents(0, picked(c, 0, v, func(at []int64) int64 {
		pos, k := int64(0), int64(0)
		for i, x := range at {
			pos += x * st[i]
			k += x * ist[i]
		}
		n, ok := idx.elems[k].int()
		if n < 0 {
			n += v.dims[axis]
		}
		if !ok || n < 0 || n >= v.dims[axis] {
			return -1
		}
		return pos + (n-at[axis])*st[axis]
	}))
	return nil
}

func gatherNDVals(c *call) error {
	v, idx := tensorIn(c, 0), tensorIn(c, 1)
	b := int(c.int("batch_dims", 0))
	if v == nil || idx == nil || b < 0 || b >= min(len(idx.dims), len(v.dims)) || !slices.Equal(v.dims[:b], idx.dims[:b]) {
		return nil
	}
	r := len(idx.dims) - 1
	k := int(idx.dims[r])
	if b+k > len(v.dims) {
		return nil
	}
	st, ist := strides(v.dims), strides(idx.dims)
	c.setContents(0, picked(c, 0, v, func(at []int64) int64 {
		row, pos := int64(0), int64(0)
		for i, x := range at[:r] {
			row += x * ist[i]
		}
		for i, x := range at[:b] {
			pos += x * st[i]
		}
		for j := range k {
			n, ok := idx.elems[row+int64(j)].int()
			if n < 0 {
				n += v.dims[b+j]
			}
			if !ok || n < 0 || n >= v.dims[b+j] {
				return -1
			}
			pos += n * st[b+j]
		}
		for i, x := range at[r:] {
			pos += x * st[b+k+i]
		}
		return pos
	}))
	return nil
}

// reduction returns the function by which a scatter combines an element with an
// update.
func reduction(c *call) elemFunc {
	return map[string]elemFunc{
		"none": func(_ arithmetic, x []elem) elem { return x[1] },
		"add":  addElems, "mul": mulElems, "min": minimum, "max": maximum,
	}[c.str("reduction", "none")]
}

// scatterNDVals writes updates into a copy of data.
func scatterNDVals(c *call) error {
	v, idx, upd := tensorIn(c, 0), tensorIn(c, 1), tensorIn(c, 2)
	combine := reduction(c)
	if v == nil || idx == nil || upd == nil || len(idx.dims) == 0 || combine == nil {
		return nil
	}
	k := int(idx.dims[len(idx.dims)-1])
	if k > len(v.dims) || k == 0 {
		return nil
	}
	st := strides(v.dims)
	block := int64(1)
	for _, n := range v.dims[k:] {
		block *= n
	}
	out := slices.Clone(v.elems)
	a := arithmetic{c.outTyp(0).Elem}
	for row := range len(idx.elems) / k {
		pos := int64(0)
		for j := range k {
			n, ok := idx.elems[row*k+j].int()
			if n < 0 {
				n += v.dims[j]
			}
			if !ok || n < 0 || n >= v.dims[j] {
				return nil
			}
			pos += n * st[j]
		}
		from := int64(row) * block
		if from+block > int64(len(upd.elems)) {
			return nil
		}
		for j := range block {
			out[pos+j] = a.fix(combine(a, []elem{out[pos+j], upd.elems[from+j]}))
		}
	}
	c.setContents(0, &contents{dims: v.dims, elems: out})
	return nil
}

// scatterElementsValues writes single updates along an axis.
func scatterElementsValues(c *call) error {
	v, idx, upd := tensorIn(c, 0), tensorIn(c, 1), tensorIn(c, 2)
	combine := reduction(c)
	if v == nil || idx == nil || upd == nil || combine == nil {
		return nil
	}
	axis, err := axisOf(c.int("axis", 0), len(v.dims))
	if err != nil || len(idx.dims) != len(v.dims) || len(idx.elems) != len(upd.elems) {
		return nil
	}
	st := strides(v.dims)
	out := slices.Clone(v.elems)
	good := true
	a := arithmetic{c.outTyp(0).Elem}
	eachIndex(idx.dims, func(flat int, at []int64) {
		n, ok := idx.elems[flat].int()
		if n < 0 {
			n += v.dims[axis]
		}
		pos := (n - at[axis]) * st[axis]
		for i, x := range at {
			pos += x * st[i]
		}
		if !ok || n < 0 || n >= v.dims[axis] || pos < 0 || pos >= int64(len(out)) {
			good = false
			return
		}
		out[pos] = a.fix(combine(a, []elem{out[pos], upd.elems[flat]}))
	})
	if good {
		c.setContents(0, &contents{dims: v.dims, elems: out})
	}
	return nil
}

// expandValues repeats elements; it also handles Tile, whose input wraps
// around.
func expandValues(c *call) error {
	v := tensorIn(c, 0)
	if v == nil || len(c.outDims(0)) < len(v.dims) {
		return nil
	}
	st := strides(v.dims)
	c.setContents(0, picked(c, 0, v, func(idx []int64) int64 {
		at := int64(0)
		off := len(idx) - len(v.dims)
		for i, n := range v.dims {
			if n > 0 {
				at += idx[off+i] % n * st[i]
			}
		}
		return at
	}))
	return nil
}

// padValues pads with a constant, or with elements of the tensor.
func padValues(c *call) error {
	v := tensorIn(c, 0)
	if v == nil {
		return nil
	}
	mode := c.str("mode", "constant")
	fill := intElem(0)
	if c.outTyp(0).Elem.IsFloat() {
		fill = floatElem(c.float("value", 0))
	}
	if c.has(2) {
		f := tensorIn(c, 2)
		if f == nil || len(f.elems) != 1 {
			return nil
		}
		fill = f.elems[0]
	}
	pads, err := padAmounts(c, len(v.dims))
	if err != nil {
		return nil
	}
	begin := make([]int64, len(v.dims))
	for i := range begin {
		n, ok := pads[i].Int()
		if !ok {
			return nil
		}
		begin[i] = n
	}
	st := strides(v.dims)
	inside := &contents{elems: append(slices.Clone(v.elems), fill)}
	c.setContents(0, picked(c, 0, inside, func(idx []int64) int64 {
		at := int64(0)
		for i, x := range idx {
			if x = padSource(mode, x-begin[i], v.dims[i]); x < 0 {
				return int64(len(v.elems))
			}
			at += x * st[i]
		}
		return at
	}))
	return nil
}

// padSource returns the index below n of the element that padding puts at x,
// which may be out of range; -1 for the constant.
func padSource(mode string, x, n int64) int64 {
	switch {
	case x >= 0 && x < n:
		return x
	case mode == "edge" && n > 0:
		return max(0, min(n-1, x))
	case mode == "wrap" && n > 0:
		return ((x % n) + n) % n
	case mode == "reflect" && n > 1:
		p := 2 * (n - 1)
		if x = ((x % p) + p) % p; x >= n {
			x = p - x
		}
		return x
	case mode == "reflect" && n == 1:
		return 0
	}
	return -1
}

// triluValues zeroes one triangle.
func triluValues(c *call) error {
	v := tensorIn(c, 0)
	k, ok := int64(0), true
	if c.has(1) {
		var list []int64
		if list, ok = c.intsIn(1); ok && len(list) == 1 {
			k = list[0]
		}
	}
	if v == nil || !ok || len(v.dims) < 2 {
		return nil
	}
	zero := intElem(0)
	if c.outTyp(0).Elem.IsFloat() {
		zero = floatElem(0)
	}
	upper := c.int("upper", 1) != 0
	r := len(v.dims)
	out := slices.Clone(v.elems)
	eachIndex(v.dims, func(flat int, idx []int64) {
		d := idx[r-1] - idx[r-2]
		if upper && d < k || !upper && d > k {
			out[flat] = zero
		}
	})
	c.setContents(0, &contents{dims: v.dims, elems: out})
	return nil
}

// A folder combines the elements of one group of a reduction.
type folder func(a arithmetic, x []elem) elem

func foldWith(f elemFunc, empty elem) folder {
	return func(a arithmetic, x []elem) elem {
		if len(x) == 0 {
			return empty
		}
		y := x[0]
		for _, z := range x[1:] {
			y = f(a, []elem{y, z})
		}
		return y
	}
}

func meanElems(a arithmetic, x []elem) elem {
	if len(x) == 0 {
		return elem{}
	}
	if !a.elem.IsFloat() {
		return divElems(a, []elem{foldWith(addElems, elem{})(a, x), intElem(int64(len(x)))})
	}
	return divFloats(foldWith(addElems, elem{})(a, x), floatElem(float64(len(x))))
}

// reduceValues returns a value rule for a reduction.
func reduceValues(f folder) rule {
	return func(c *call) error {
		v := tensorIn(c, 0)
		dims := c.outDims(0)
		if v == nil || dims == nil {
			return nil
		}
		axes, all, ok := reducedAxes(c, len(v.dims))
		if !ok {
			return nil
		}
		n, _ := graph.Product(dims)
		groups := make([][]elem, n)
		eachIndex(v.dims, func(flat int, idx []int64) {
			at := int64(0)
			for i, x := range idx {
				if !all && !contains(axes, i) {
					at = at*v.dims[i] + x
				}
			}
			groups[at] = append(groups[at], v.elems[flat])
		})
		out := &contents{dims: dims, elems: make([]elem, n)}
		a := arithmetic{c.outTyp(0).Elem}
		for i, g := range groups {
			out.elems[i] = a.fix(f(a, g))
		}
		c.setContents(0, out)
		return nil
	}
}

// argValues finds the first or last of the largest or smallest constants along
// an axis.
func argValues(better func(a, b float64) bool) rule {
	return func(c *call) error {
		f, ok := c.floatsIn(0)
		if !ok {
			return nil
		}
		last := c.int("select_last_index", 0) != 0
		in := tensorIn(c, 0).dims
		axis, err := axisOf(c.int("axis", 0), len(in))
		dims := c.outDims(0)
		if err != nil || dims == nil {
			return nil
		}
		st := strides(in)
		n, _ := graph.Product(dims)
		best := make([]int, n)
		for i := range best {
			best[i] = -1
		}
		eachIndex(in, func(flat int, idx []int64) {
			at := int64(0)
			for i, x := range idx {
				if i != axis {
					at = at*in[i] + x
				}
			}
			if b := best[at]; b < 0 || better(f[flat], f[b]) || last && f[flat] == f[b] {
				best[at] = flat
			}
		})
		out := &contents{dims: dims, elems: make([]elem, n)}
		for i, b := range best {
			if b >= 0 {
				out.elems[i] = intElem(int64(b) / st[axis] % in[axis])
			}
		}
		c.setContents(0, out)
		return nil
	}
}

// topKValues sorts constants along an axis.
func topKValues(c *call) error {
	f, ok := c.floatsIn(0)
	dims := c.outDims(0)
	if !ok || dims == nil {
		return nil
	}
	v := tensorIn(c, 0)
	axis, err := axisOf(c.int("axis", -1), len(v.dims))
	if err != nil || len(dims) != len(v.dims) || dims[axis] > v.dims[axis] {
		return nil
	}
	for i, n := range dims {
		if i != axis && n != v.dims[i] {
			return nil
		}
	}
	n, _ := graph.Product(dims)
	largest := c.int("largest", 1) != 0
	values, index := &contents{dims: dims, elems: make([]elem, n)}, &contents{dims: dims, elems: make([]elem, n)}
	from, to := strides(v.dims), strides(dims)
	order := make([]int64, v.dims[axis])
	eachIndex(dims, func(_ int, idx []int64) {
		if idx[axis] != 0 {
			return
		}
		a, b := int64(0), int64(0)
		for i, x := range idx {
			a, b = a+x*from[i], b+x*to[i]
		}
		for i := range order {
			order[i] = int64(i)
		}
		slices.SortStableFunc(order, func(i, j int64) int {
			if largest {
				i, j = j, i
			}
			return cmp.Compare(f[a+i*from[axis]], f[a+j*from[axis]])
		})
		for k := range dims[axis] {
			values.elems[b+k*to[axis]] = v.elems[a+order[k]*from[axis]]
			index.elems[b+k*to[axis]] = intElem(order[k])
		}
	})
	c.setContents(0, values)
	c.setContents(1, index)
	return nil
}
