package lift

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
)

// transposed reports whether the pattern's transposed weight is [out, in] in
// the file.
func transposed(p *patLift, m *match) bool {
	return slices.ContainsFunc(m.nodes, func(i int32) bool { return p.src.Nodes[i].Op == "Transpose" })
}

// linearShape accepts a stored matrix and, if there is a bias, one of its
// width.
func linearShape(p *patLift, m *match) bool {
	w, b := m.value("w"), m.value("b")
	dims := p.dims(w)
	if len(dims) != 2 || len(p.dims(m.value("x"))) < 2 || w == m.value("x") {
		return false
	}
	out := dims[1]
	if transposed(p, m) {
		out = dims[0]
	}
	return b < 0 || slices.Equal(p.dims(b), []int64{out})
}

func linearCall(p *patLift, n *graph.Node, m *match) bool {
	w := m.value("w")
	p.weight(w)
	p.weight(m.value("b"))
	args := []graph.Arg{argOf(p.value(m.value("x")))}
	if transposed(p, m) {
		args = append(args, argOf(p.value(w)))
	} else {
		args = append(args, flip(p, n, w))
	}
	if b := m.value("b"); b >= 0 {
		args = append(args, argOf(p.value(b)))
	}
	p.emit(scoped(p, n, m), "linear.default", args, p.value(n.Outputs[0]))
	return true
}

// scoped returns the node of a match whose module owns the call: the product,
// if the match ends in the addition of a bias.
func scoped(p *patLift, n *graph.Node, m *match) *graph.Node {
	if n.Op == "Add" && len(m.nodes) > 1 {
		for _, i := range m.nodes[1:] {
			if c := &p.src.Nodes[i]; c.Op == "MatMul" && n.MetaValue(keyScopes) == "" && strings.HasPrefix(n.Name, "/") {
				return c
			}
		}
	}
	return n
}

// flip returns the parameter [out, in] for a matrix stored as [in, out]:
// exporters fold the transposition into the file. If something else reads the
// matrix as stored, the parameter is a transposed view.
func flip(p *patLift, n *graph.Node, w graph.ValueID) graph.Arg {
	t, dims := p.typeOf(w), p.dims(w)
	v := p.value(w)
	if p.flipped[w] {
		return argOf(v)
	}
	if !onlyProducts(p, w) {
		return p.step(n, "t", shaped(t, dims[1], dims[0]), "t.default", argOf(v))
	}
	p.flipped[w] = true
	lv := &p.l.Graph.Values[v]
	lv.Type = shaped(t, dims[1], dims[0])
	if c := lv.Const; c != nil {
		lv.Const = &graph.Constant{Name: c.Name, Type: c.Type, Dims: []int64{dims[1], dims[0]}, Ref: c.Ref}
	}
	return argOf(v)
}

// onlyProducts reports whether a matrix is read only by MatMul, as second
// operand, in the main graph.
func onlyProducts(p *patLift, w graph.ValueID) bool {
	return p.src.Values[w].Kind == graph.Initializer && p.rights[w] == p.uses[w]
}

func matmulCall(p *patLift, n *graph.Node, _ *match) bool {
	if len(n.Inputs) != 2 || n.Inputs[1] < 0 {
		return false
	}
	w := p.resolve(n.Inputs[1])
	if p.stored(w) && len(p.dims(w)) == 2 && len(p.dims(n.Inputs[0])) >= 2 && slices.Min(p.dims(w)) >= 0 {
		p.weight(w)
		p.emit(n, "linear.default", []graph.Arg{p.in(n, 0), flip(p, n, w)}, p.value(n.Outputs[0]))
		return true
	}
	if p.stored(w) {
		p.weight(w)
	}
	p.emit(n, "matmul.default", []graph.Arg{p.in(n, 0), p.in(n, 1)}, p.value(n.Outputs[0]))
	return true
}

func fusedMatmulCall(p *patLift, n *graph.Node, _ *match) bool {
	if len(n.Inputs) != 2 || n.Inputs[1] < 0 || attrInt(n, "transBatchA", 0) != 0 || attrInt(n, "transBatchB", 0) != 0 {
		return false
	}
	a, b := p.in(n, 0), p.in(n, 1)
	if attrInt(n, "transA", 0) != 0 {
		a = swapLast(p, n, "a", a, n.Inputs[0])
	}
	if attrInt(n, "transB", 0) != 0 {
		b = swapLast(p, n, "b", b, n.Inputs[1])
	}
	if attrFloat(n, "alpha", 1) == 1 {
		p.emit(n, "matmul.default", []graph.Arg{a, b}, p.value(n.Outputs[0]))
		return true
	}
	o := p.step(n, "product", p.typeOf(n.Outputs[0]), "matmul.default", a, b)
	p.emit(n, "mul.Tensor", []graph.Arg{o, argFloat(attrFloat(n, "alpha", 1))}, p.value(n.Outputs[0]))
	return true
}

// swapLast shows an operand with its last two dims exchanged.
func swapLast(p *patLift, n *graph.Node, name string, a graph.Arg, id graph.ValueID) graph.Arg {
	dims := p.dims(id)
	if k := len(dims); k >= 2 {
		dims[k-1], dims[k-2] = dims[k-2], dims[k-1]
	}
	return p.step(n, name, shaped(p.typeOf(id), dims...), "transpose.int", a, argInt(-2), argInt(-1))
}

func gemmCall(p *patLift, n *graph.Node, _ *match) bool {
	return gemm(p, n, p.value(n.Outputs[0]))
}

func gemm(p *patLift, n *graph.Node, out graph.ValueID) bool {
	if len(n.Inputs) < 2 || n.Inputs[1] < 0 || len(p.dims(n.Inputs[0])) != 2 || len(p.dims(n.Inputs[1])) != 2 {
		return false
	}
	c := input(n, 2)
	p.weight(c)
	if w := p.resolve(n.Inputs[1]); p.stored(w) {
		p.weight(w)
	}
	a, b, bias := p.in(n, 0), p.in(n, 1), p.in(n, 2)
	if attrInt(n, "transA", 0) != 0 {
		a = swapLast(p, n, "a", a, n.Inputs[0])
	}
	if asLinear(p, n) {
		p.emit(n, "linear.default", []graph.Arg{a, b, bias}, out)
		return true
	}
	if attrInt(n, "transB", 0) != 0 {
		b = swapLast(p, n, "b", b, n.Inputs[1])
	}
	if c < 0 {
		p.emit(n, "mm.default", []graph.Arg{a, b}, out)
		return true
	}
	p.emit(n, "addmm.default", append([]graph.Arg{bias, a, b}, gemmFactors(n)...), out)
	return true
}

// asLinear reports whether a Gemm computes a linear layer: its matrix is stored
// as [out, in], and it adds a vector or nothing.
func asLinear(p *patLift, n *graph.Node) bool {
	c := input(n, 2)
	return attrInt(n, "transB", 0) != 0 && (c < 0 || len(p.dims(c)) == 1)
}

// gemmFactors returns the factors of a Gemm other than 1, as arguments of
// addmm.
func gemmFactors(n *graph.Node) []graph.Arg {
	var out []graph.Arg
	for _, name := range []string{"beta", "alpha"} {
		if f := attrFloat(n, name, 1); f != 1 {
			out = append(out, named(name, argFloat(f)))
		}
	}
	return out
}

func fusedGemmCall(p *patLift, n *graph.Node, _ *match) bool {
	act := activation(attrStr(n, "activation", ""))
	if act == "" {
		return false
	}
	t := p.temp(n, "gemm", p.typeOf(n.Outputs[0]))
	if !gemm(p, n, t) {
		return false
	}
	p.emit(n, act+".default", []graph.Arg{argOf(t)}, p.value(n.Outputs[0]))
	return true
}

func fastGelu(p *patLift, n *graph.Node, _ *match) bool {
	x := p.in(n, 0)
	if input(n, 1) >= 0 {
		x = p.step(n, "bias", p.typeOf(n.Outputs[0]), "add.Tensor", x, p.in(n, 1))
	}
	p.emit(n, "gelu.default", []graph.Arg{x, named("approximate", argStr("tanh"))}, p.value(n.Outputs[0]))
	return true
}

// inProj accepts the sequence by which nn.MultiheadAttention splits its packed
// projection: unsqueeze(0), transpose(0, -2), squeeze(-2).
func inProj(p *patLift, m *match) bool {
	in, out := p.dims(m.value("x")), p.dims(m.root.Outputs[0])
	n := len(in)
	return n >= 3 && len(out) == n && out[0] == in[n-2] && out[n-1] == in[n-1] && out[0] == 3
}

func inProjCall(p *patLift, n *graph.Node, m *match) bool {
	nodes := slices.Clone(m.nodes)
	slices.Sort(nodes)
	un, tr := &p.src.Nodes[nodes[0]], &p.src.Nodes[nodes[1]]
	k := int64(len(p.dims(tr.Outputs[0])))
	x := p.step(un, "out", p.typeOf(un.Outputs[0]), "unsqueeze.default", argOf(p.value(m.value("x"))), argInt(0))
	y := p.step(tr, "out", p.typeOf(tr.Outputs[0]), "transpose.int", x, argInt(0), argInt(-2))
	z := p.step(n, "out", p.typeOf(n.Outputs[0]), "squeeze.dim", y, argInt(k-2))
	p.emit(n, "clone.default", []graph.Arg{z, named("memory_format", argStr("torch.contiguous_format"))}, p.value(n.Outputs[0]))
	return true
}

// einsumCall lifts an einsum of two operands as one bmm: both are permuted to
// [batch, free, summed] and [batch, summed, free].
func einsumCall(p *patLift, n *graph.Node, _ *match) bool {
	eq := strings.ReplaceAll(attrStr(n, "equation", ""), " ", "")
	lhs, out, ok := strings.Cut(eq, "->")
	a, b, two := strings.Cut(lhs, ",")
	if !ok || !two || len(n.Inputs) != 2 || strings.ContainsAny(eq, ".") || repeats(a) || repeats(b) || repeats(out) {
		return false
	}
	size := map[byte]int64{}
	for i, s := range []string{a, b} {
		dims := p.dims(n.Inputs[i])
		if len(dims) != len(s) {
			return false
		}
		for j := range s {
			if d, seen := size[s[j]]; dims[j] < 0 || seen && d != dims[j] {
				return false
			}
			size[s[j]] = dims[j]
		}
	}
	var batch, left, right, sum string
	for i := range a {
		switch c := a[i : i+1]; {
		case strings.Contains(b, c) && strings.Contains(out, c):
			batch += c
		case strings.Contains(b, c):
			sum += c
		case strings.Contains(out, c):
			left += c
		default:
			return false
		}
	}
	for i := range b {
		if c := b[i : i+1]; !strings.Contains(a, c) {
			if right += c; !strings.Contains(out, c) {
				return false
			}
		}
	}
	t := p.typeOf(n.Outputs[0])
	x := grouped(p, n, "a", p.in(n, 0), a, size, batch, left, sum)
	y := grouped(p, n, "b", p.in(n, 1), b, size, batch, sum, right)
	o := p.step(n, "bmm", shaped(t, total(size, batch), total(size, left), total(size, right)), "bmm.default", x, y)
	order := batch + left + right
	o = p.step(n, "view", shaped(t, sizes(size, order)...), "view.default", o, argInts(sizes(size, order)...))
	p.emit(n, "permute.default", []graph.Arg{o, argInts(places(order, out)...)}, p.value(n.Outputs[0]))
	return true
}

// grouped permutes a labelled operand and folds each group of labels into one
// dim.
func grouped(p *patLift, n *graph.Node, name string, x graph.Arg, labels string, size map[byte]int64, groups ...string) graph.Arg {
	order := strings.Join(groups, "")
	t := p.typeOf(n.Inputs[0])
	x = p.step(n, name, shaped(t, sizes(size, order)...), "permute.default", x, argInts(places(labels, order)...))
	var dims []int64
	for _, g := range groups {
		dims = append(dims, total(size, g))
	}
	return p.step(n, name+"3", shaped(t, dims...), "reshape.default", x, argInts(dims...))
}

func repeats(s string) bool {
	for i := range s {
		if strings.IndexByte(s, s[i]) != i {
			return true
		}
	}
	return false
}

func sizes(size map[byte]int64, labels string) []int64 {
	out := make([]int64, len(labels))
	for i := range labels {
		out[i] = size[labels[i]]
	}
	return out
}

func total(size map[byte]int64, labels string) int64 {
	n := int64(1)
	for _, d := range sizes(size, labels) {
		n *= d
	}
	return n
}

// places returns the index in from of each label of to.
func places(from, to string) []int64 {
	out := make([]int64, len(to))
	for i := range to {
		out[i] = int64(strings.IndexByte(from, to[i]))
	}
	return out
}
