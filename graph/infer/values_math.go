package infer

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
)

// bits returns a rule for an operation on the bits of constant integers.
func bits(f func(x, y int64) int64) elemFunc {
	return func(a arithmetic, x []elem) elem {
		m, ok1 := x[0].int()
		n, ok2 := x[len(x)-1].int()
		if !ok1 || !ok2 {
			return elem{}
		}
		return intElem(wrap(a.elem, f(m, n)))
	}
}

func bitShiftValues(c *call) error {
	left := c.str("direction", "") == "LEFT"
	return elementwise(2, bits(func(x, y int64) int64 {
		switch {
		case y < 0 || y > 63:
			return 0
		case left:
			return x << y
		}
		return int64(uint64(x) >> y) // the operands are unsigned
	}))(c)
}

// predicate returns a rule for a test of constant floats.
func predicate(f func(c *call, x float64) bool) rule {
	return func(c *call) error {
		return elementwise(1, func(_ arithmetic, x []elem) elem {
			if g, ok := x[0].float(); ok {
				return boolElem(f(c, g))
			}
			return elem{}
		})(c)
	}
}

func isInf(c *call, x float64) bool {
	return c.int("detect_positive", 1) != 0 && math.IsInf(x, 1) || c.int("detect_negative", 1) != 0 && math.IsInf(x, -1)
}

func isNaN(_ *call, x float64) bool { return math.IsNaN(x) }

// activation returns a rule for a function of one constant float whose
// parameters are attributes.
func activation(f func(c *call, x float64) float64) rule {
	return func(c *call) error {
		return elementwise(1, unary(nil, func(x float64) float64 { return f(c, x) }))(c)
	}
}

func leakyRelu(c *call, x float64) float64 {
	if x < 0 {
		return c.float("alpha", 0.01) * x
	}
	return x
}

func elu(c *call, x float64) float64 {
	if x < 0 {
		return c.float("alpha", 1) * math.Expm1(x)
	}
	return x
}

func celu(c *call, x float64) float64 {
	alpha := c.float("alpha", 1)
	return max(0, x) + min(0, alpha*math.Expm1(x/alpha))
}

func selu(c *call, x float64) float64 {
	gamma := c.float("gamma", 1.0507009873554804934193349852946)
	if x <= 0 {
		return gamma * c.float("alpha", 1.6732632423543772848170429916717) * math.Expm1(x)
	}
	return gamma * x
}

func hardSigmoid(c *call, x float64) float64 {
	return max(0, min(1, c.float("alpha", 0.2)*x+c.float("beta", 0.5)))
}

func hardSwish(_ *call, x float64) float64 { return x * max(0, min(1, x/6+0.5)) }

func softplus(_ *call, x float64) float64 { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }

func softsign(_ *call, x float64) float64 { return x / (1 + math.Abs(x)) }

func mish(c *call, x float64) float64 { return x * math.Tanh(softplus(c, x)) }

func swish(c *call, x float64) float64 { return x * sigmoid(c.float("alpha", 1)*x) }

func gelu(c *call, x float64) float64 {
	if c.str("approximate", "none") == "tanh" {
		return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
	}
	return 0.5 * x * (1 + math.Erf(x/math.Sqrt2))
}

func thresholdedRelu(c *call, x float64) float64 {
	if x > c.float("alpha", 1) {
		return x
	}
	return 0
}

func shrink(c *call, x float64) float64 {
	bias, lambd := c.float("bias", 0), c.float("lambd", 0.5)
	switch {
	case x < -lambd:
		return x + bias
	case x > lambd:
		return x - bias
	}
	return 0
}

func preluElems(_ arithmetic, x []elem) elem {
	f, ok1 := x[0].float()
	s, ok2 := x[1].float()
	if !ok1 || !ok2 || !x[0].isFloat {
		return elem{}
	}
	if f < 0 {
		f *= s
	}
	return floatElem(f)
}

// sums returns a folder over constant floats: last of the sum of f.
func sums(f, last func(x float64) float64) folder {
	return func(a arithmetic, x []elem) elem {
		sum := 0.0
		for _, y := range x {
			g, ok := y.float()
			if !ok {
				return elem{}
			}
			sum += f(g)
		}
		if sum = last(sum); a.elem.IsFloat() {
			return floatElem(sum)
		}
		if math.Abs(sum) >= 1<<53 || sum != sum {
			return elem{}
		}
		return intElem(wrap(a.elem, int64(sum)))
	}
}

func keep(x float64) float64   { return x }
func square(x float64) float64 { return x * x }

// logSumExp is the folder log(sum(exp(x))), computed relative to the largest x.
func logSumExp(a arithmetic, x []elem) elem {
	m := math.Inf(-1)
	for _, y := range x {
		if f, ok := y.float(); ok {
			m = max(m, f)
		}
	}
	if math.IsInf(m, 0) || m != m {
		return sums(math.Exp, math.Log)(a, x)
	}
	return sums(func(f float64) float64 { return math.Exp(f - m) }, func(f float64) float64 { return m + math.Log(f) })(a, x)
}

// scanValues applies an operation along an axis and keeps all results.
func scanValues(f elemFunc, first elem) rule {
	return func(c *call) error {
		v := tensorIn(c, 0)
		axis, ok := c.intsIn(1)
		if v == nil || !ok || len(axis) != 1 {
			return nil
		}
		at, err := axisOf(axis[0], len(v.dims))
		if err != nil {
			return nil
		}
		step, exclusive, reverse := int(strides(v.dims)[at]), c.int("exclusive", 0) != 0, c.int("reverse", 0) != 0
		out := make([]elem, len(v.elems))
		a := arithmetic{c.outTyp(0).Elem}
		last := int(v.dims[at]) - 1
		eachIndex(v.dims, func(flat int, idx []int64) {
			if idx[at] != 0 {
				return
			}
			acc := a.fix(first)
			for k := range last + 1 {
				if reverse {
					k = last - k
				}
				pos := flat + k*step
				next := a.fix(f(a, []elem{acc, v.elems[pos]}))
				if out[pos] = next; exclusive {
					out[pos] = acc
				}
				acc = next
			}
		})
		c.setContents(0, &contents{dims: v.dims, elems: out})
		return nil
	}
}

// softmaxValues returns a rule over the groups of an axis, for constant floats.
// Before version 13 all axes from the given one on form one group.
func softmaxValues(f func(x []float64)) rule {
	return func(c *call) error {
		x, ok := c.floatsIn(0)
		if !ok || len(x) == 0 {
			return nil
		}
		v := tensorIn(c, 0)
		def := int64(-1)
		if c.ver < 13 {
			def = 1
		}
		axis, err := axisOf(c.int("axis", def), len(v.dims))
		if err != nil {
			return nil
		}
		inner, size := int64(1), v.dims[axis]
		for _, n := range v.dims[axis+1:] {
			inner *= n
		}
		if c.ver < 13 {
			size, inner = size*inner, 1
		}
		group := make([]float64, size)
		out := &contents{dims: v.dims, elems: make([]elem, len(x))}
		a := arithmetic{c.outTyp(0).Elem}
		for start := range x {
			if int64(start)/inner%size != 0 {
				continue
			}
			for k := range group {
				group[k] = x[start+k*int(inner)]
			}
			f(group)
			for k, y := range group {
				out.elems[start+k*int(inner)] = a.fix(floatElem(y))
			}
		}
		c.setContents(0, out)
		return nil
	}
}

func softmax(x []float64) {
	logSoftmax(x)
	for i := range x {
		x[i] = math.Exp(x[i])
	}
}

func logSoftmax(x []float64) {
	m, sum := slices.Max(x), 0.0
	for _, y := range x {
		sum += math.Exp(y - m)
	}
	for i := range x {
		x[i] -= m + math.Log(sum)
	}
}

func hardmax(x []float64) {
	best := 0
	for i := range x {
		if x[i] > x[best] {
			best = i
		}
	}
	clear(x)
	x[best] = 1
}

// matmulValues multiplies small matrices, including matrices of expressions.
func matmulValues(c *call) error {
	x, y, dims := tensorIn(c, 0), tensorIn(c, 1), c.outDims(0)
	if x == nil || y == nil || dims == nil || len(x.dims) == 0 || len(y.dims) == 0 {
		return nil
	}
	xd, yd, od := x.dims, y.dims, dims
	if len(xd) == 1 {
		xd, od = []int64{1, xd[0]}, slices.Insert(slices.Clone(od), len(od)-min(len(yd)-1, 1), 1)
	}
	if len(yd) == 1 {
		yd, od = []int64{yd[0], 1}, append(slices.Clone(od), 1)
	}
	r := len(od)
	k := xd[len(xd)-1]
	if k != yd[len(yd)-2] || r < 2 || od[r-1] != yd[len(yd)-1] || od[r-2] != xd[len(xd)-2] || !fits(xd[:len(xd)-2], od[:r-2]) || !fits(yd[:len(yd)-2], od[:r-2]) {
		return nil
	}
	n, ok := graph.Product(dims)
	if !ok || n > maxElems || n*k > maxElems*16 {
		return nil
	}
	c.s.e.work -= int(n * k / 16)
	out := &contents{dims: dims, elems: make([]elem, n)}
	a := arithmetic{c.outTyp(0).Elem}
	rows, cols := int(od[r-2]), int(od[r-1])
	for flat := range out.elems {
		batch, row, col := flat/(rows*cols), flat/cols%rows, flat%cols
		px := broadcastIndex(batch, od[:r-2], xd[:len(xd)-2])*rows*int(k) + row*int(k)
		py := broadcastIndex(batch, od[:r-2], yd[:len(yd)-2])*int(k)*cols + col
		out.elems[flat] = a.dot(int(k), func(i int) (elem, elem) { return x.elems[px+i], y.elems[py+i*cols] })
	}
	c.setContents(0, out)
	return nil
}

// dot is a sum of n products; floats are rounded once.
func (a arithmetic) dot(n int, at func(i int) (x, y elem)) elem {
	if a.elem.IsFloat() {
		sum, all := 0.0, true
		for i := range n {
			x, y := at(i)
			f, ok1 := x.float()
			g, ok2 := y.float()
			sum, all = sum+f*g, all && ok1 && ok2
		}
		if all {
			return a.fix(floatElem(sum))
		}
	}
	sum := a.fix(intElem(0))
	for i := range n {
		x, y := at(i)
		sum = a.fix(addElems(a, []elem{sum, a.fix(mulElems(a, []elem{x, y}))}))
	}
	return sum
}

// uniqueValues finds the distinct constants of a whole tensor, in order of
// value, or of appearance.
func uniqueValues(c *call) error {
	f, ok := c.floatsIn(0)
	if !ok || c.attr("axis") != nil || slices.ContainsFunc(f, func(x float64) bool { return x != x }) {
		return nil
	}
	v := tensorIn(c, 0)
	first, count := []int{}, []int64{} // for each distinct element
	at := map[float64]int{}
	for i, x := range f {
		k, seen := at[x]
		if !seen {
			k = len(first)
			at[x] = k
			first, count = append(first, i), append(count, 0)
		}
		count[k]++
	}
	order := make([]int, len(first))
	for i := range order {
		order[i] = i
	}
	if c.int("sorted", 1) != 0 {
		slices.SortFunc(order, func(i, j int) int { return cmp.Compare(f[first[i]], f[first[j]]) })
	}
	n := []int64{int64(len(order))}
	values, index, inverse, counts := &contents{dims: n}, &contents{dims: n}, &contents{dims: []int64{int64(len(f))}}, &contents{dims: n}
	place := make([]int64, len(order))
	for i, k := range order {
		place[k] = int64(i)
		values.elems = append(values.elems, v.elems[first[k]])
		index.elems = append(index.elems, intElem(int64(first[k])))
		counts.elems = append(counts.elems, intElem(count[k]))
	}
	for _, x := range f {
		inverse.elems = append(inverse.elems, intElem(place[at[x]]))
	}
	for i, out := range []*contents{values, index, inverse, counts} {
		c.setContents(i, out)
	}
	return nil
}

// dequantizeValues and quantizeValues handle a single scale for the whole
// tensor.
func dequantizeValues(c *call) error {
	scale, zero, ok := quantization(c)
	if !ok {
		return nil
	}
	return mapped(c, func(a arithmetic, x float64) elem { return a.fix(floatElem((x - zero) * scale)) })
}

func quantizeValues(c *call) error {
	scale, zero, ok := quantization(c)
	lo, hi, limited := intRange(c.outTyp(0).Elem)
	if !ok || !limited {
		return nil
	}
	return mapped(c, func(_ arithmetic, x float64) elem {
		q := math.RoundToEven(float64(float32(x/scale))) + zero
		if q != q {
			return elem{}
		}
		return intElem(int64(max(lo, min(hi, q))))
	})
}

// quantization returns a scalar scale and zero point.
func quantization(c *call) (scale, zero float64, ok bool) {
	s, ok := c.floatsIn(1)
	if !ok || len(s) != 1 || c.int("block_size", 0) != 0 {
		return 0, 0, false
	}
	if !c.has(2) {
		return s[0], 0, true
	}
	z, ok := c.floatsIn(2)
	if !ok || len(z) != 1 {
		return 0, 0, false
	}
	return s[0], z[0], true
}

// mapped applies f to the constants of the first input.
func mapped(c *call, f func(a arithmetic, x float64) elem) error {
	x, ok := c.floatsIn(0)
	if !ok {
		return nil
	}
	out := &contents{dims: tensorIn(c, 0).dims, elems: make([]elem, len(x))}
	a := arithmetic{c.outTyp(0).Elem}
	for i := range x {
		out.elems[i] = f(a, x[i])
	}
	c.setContents(0, out)
	return nil
}

// intRange returns the limits of a small integer type.
func intRange(t graph.DType) (lo, hi float64, ok bool) {
	b := t.Bits()
	switch t {
	case graph.Int2, graph.Int4, graph.Int8, graph.Int16:
		return -math.Ldexp(1, int(b)-1), math.Ldexp(1, int(b)-1) - 1, true
	case graph.Uint2, graph.Uint4, graph.Uint8, graph.Uint16:
		return 0, math.Ldexp(1, int(b)) - 1, true
	}
	return 0, 0, false
}

// gemmValues is alpha*A*B + beta*C of constants.
func gemmValues(c *call) error {
	x, ok1 := c.floatsIn(0)
	y, ok2 := c.floatsIn(1)
	dims := c.outDims(0)
	if !ok1 || !ok2 || len(dims) != 2 || c.n.Domain == "" && c.ver < 7 {
		return nil
	}
	var z []float64
	var zd []int64
	if c.has(2) {
		var ok bool
		if z, ok = c.floatsIn(2); !ok || !fits(tensorIn(c, 2).dims, dims) {
			return nil
		}
		zd = tensorIn(c, 2).dims
	}
	xs, ys := strides(tensorIn(c, 0).dims), strides(tensorIn(c, 1).dims)
	k := tensorIn(c, 0).dims[1]
	if c.int("transA", 0) != 0 {
		xs[0], xs[1], k = xs[1], xs[0], tensorIn(c, 0).dims[0]
	}
	if c.int("transB", 0) != 0 {
		ys[0], ys[1] = ys[1], ys[0]
	}
	if int64(len(x)) != dims[0]*k || int64(len(y)) != k*dims[1] || dims[0]*dims[1]*k > maxElems*16 {
		return nil
	}
	alpha, beta := c.float("alpha", 1), c.float("beta", 1)
	out := &contents{dims: dims, elems: make([]elem, dims[0]*dims[1])}
	eachIndex(dims, func(flat int, idx []int64) {
		sum := 0.0
		for i := range k {
			sum += x[idx[0]*xs[0]+i*xs[1]] * y[i*ys[0]+idx[1]*ys[1]]
		}
		sum *= alpha
		if z != nil {
			sum += beta * z[broadcastIndex(flat, dims, zd)]
		}
		out.elems[flat] = arithmetic{c.outTyp(0).Elem}.number(sum)
	})
	c.setContents(0, out)
	return nil
}

// number returns an element of the value f.
func (a arithmetic) number(f float64) elem {
	switch {
	case a.elem.IsFloat():
		return a.fix(floatElem(f))
	case math.Abs(f) < 1<<53:
		return a.fix(intElem(int64(f)))
	}
	return elem{}
}

// einsumValues sums products of constants over all indices.
func einsumValues(c *call) error {
	left, right, explicit := strings.Cut(strings.ReplaceAll(c.str("equation", ""), " ", ""), "->")
	terms := strings.Split(left, ",")
	dims := c.outDims(0)
	if !explicit || strings.Contains(left+right, ".") || len(terms) != c.arity() || dims == nil {
		return nil
	}
	labels := right // the result's labels come first
	size := slices.Clone(dims)
	in := make([][]float64, len(terms))
	for i, term := range terms {
		var ok bool
		if in[i], ok = c.floatsIn(i); !ok {
			return nil
		}
		for k, r := range term {
			if !strings.ContainsRune(labels, r) {
				labels += string(r)
				size = append(size, tensorIn(c, i).dims[k])
			}
		}
	}
	if n, ok := graph.Product(size); !ok || n > maxElems*16 || len(labels) != len(size) {
		return nil
	}
	strideOf := make([][]int64, len(terms)) // strides of each operand, by label
	for i, term := range terms {
		strideOf[i] = make([]int64, len(labels))
		d := tensorIn(c, i).dims
		for k, r := range term {
			at := strings.IndexRune(labels, r)
			if d[k] != size[at] && d[k] != 1 {
				return nil
			}
			if d[k] > 1 {
				strideOf[i][at] += strides(d)[k]
			}
		}
	}
	n, _ := graph.Product(dims)
	sums := make([]float64, n)
	inner := int64(1)
	for _, m := range size[len(dims):] {
		inner *= m
	}
	eachIndex(size, func(flat int, idx []int64) {
		p := 1.0
		for i := range in {
			at := int64(0)
			for k, x := range idx {
				at += x * strideOf[i][k]
			}
			p *= in[i][at]
		}
		sums[int64(flat)/inner] += p
	})
	out := &contents{dims: dims, elems: make([]elem, n)}
	for i, f := range sums {
		out.elems[i] = arithmetic{c.outTyp(0).Elem}.number(f)
	}
	c.setContents(0, out)
	return nil
}

// windowValues returns a rule for a window, a sum of cosines.
func windowValues(weights ...float64) rule {
	return func(c *call) error {
		dims := c.outDims(0)
		if len(dims) != 1 || dims[0] > maxElems {
			return nil
		}
		period := float64(dims[0])
		if c.int("periodic", 1) == 0 {
			period--
		}
		out := &contents{dims: dims, elems: make([]elem, dims[0])}
		for i := range out.elems {
			sum := 0.0
			for k, w := range weights {
				sum += w * math.Cos(2*math.Pi*float64(k)*float64(i)/period)
			}
			out.elems[i] = arithmetic{c.outTyp(0).Elem}.number(sum)
		}
		c.setContents(0, out)
		return nil
	}
}

// bitCastValues reads the bits of constants as another type.
func bitCastValues(c *call) error {
	v := tensorIn(c, 0)
	if v == nil {
		return nil
	}
	from, to := c.elem(0), c.outTyp(0).Elem
	out := &contents{dims: v.dims, elems: make([]elem, len(v.elems))}
	for i, x := range v.elems {
		n, ok := x.int()
		if f, isFloat := x.float(); isFloat && from == graph.Float32 {
			n, ok = int64(math.Float32bits(float32(f))), true
		} else if isFloat && from == graph.Float64 {
			n, ok = int64(math.Float64bits(f)), true
		} else if from.IsFloat() {
			return nil
		}
		switch {
		case !ok || from == graph.Bool || to == graph.Bool:
			return nil
		case to == graph.Float32:
			out.elems[i] = floatElem(float64(math.Float32frombits(uint32(n))))
		case to == graph.Float64:
			out.elems[i] = floatElem(math.Float64frombits(uint64(n)))
		case to.IsFloat() || to.Bits() < 8 || to.Bits() > 64:
			return nil
		default:
			out.elems[i] = intElem(wrap(to, n))
		}
	}
	c.setContents(0, out)
	return nil
}
