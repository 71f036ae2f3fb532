package lift

import (
	"slices"

	"github.com/memplan/memplan/graph"
)

// attentionRank accepts operands of three or four dims with equal batch and
// heads.
func attentionRank(p *patLift, m *match) bool {
	q, k, v := p.dims(m.value("q")), p.dims(m.value("kt")), p.dims(m.value("v"))
	n := len(q) - 2
	return (n == 1 || n == 2) && len(k) == len(q) && len(v) == len(q) && slices.Equal(q[:n], k[:n]) && slices.Equal(q[:n], v[:n])
}

func attentionCall(p *patLift, n *graph.Node, m *match) bool {
	mask, causal := mask(p, m)
	drop := 0.0
	if id := m.value("drop"); id >= 0 {
		drop = ratio(p, &p.src.Nodes[p.def[id]])
	}
	args := []graph.Arg{argOf(p.value(m.value("q"))), key(p, n, m.value("kt")), argOf(p.value(m.value("v"))), mask, argFloat(drop)}
	if causal {
		args = append(args, argBool(true))
	}
	if scale, other := otherScale(p, m); other && scale > 0 {
		args = append(args, named("scale", argFloat(scale)))
	}
	p.emit(n, "scaled_dot_product_attention.default", args, p.value(n.Outputs[0]))
	return true
}

// mask returns the mask that the caller passed: the tensor added to the scores,
// or the bool tensor it was made from. For a causal mask it returns none, and
// true.
func mask(p *patLift, m *match) (mask graph.Arg, causal bool) {
	id := m.value("mask")
	if id < 0 {
		return argOf(p.value(m.value("choice"))), false
	}
	where := producedBy(p, id, "Where")
	if where == nil {
		return argOf(p.value(id)), false
	}
	if eq := producedBy(p, where.Inputs[0], "Equal"); eq != nil {
		if tri := producedBy(p, eq.Inputs[0], "Trilu"); tri != nil && attrInt(tri, "upper", 1) == 0 && dataFree(p, tri.Inputs[0]) {
			return argNone(), true
		}
	}
	if len(where.Inputs) != 3 {
		return argOf(p.value(id)), false
	}
	if f, ok := p.number(where.Inputs[1]); ok && f == 0 && m.value("p") >= 0 {
		return argOf(p.value(where.Inputs[0])), false
	}
	return argOf(p.value(id)), false
}

// producedBy returns the node of operator op that computes id, or nil.
func producedBy(p *patLift, id graph.ValueID, op string) *graph.Node {
	d := p.def[p.resolve(id)]
	if d < 0 || p.ops[d] != op || len(p.src.Nodes[d].Inputs) == 0 || slices.Contains(p.src.Nodes[d].Inputs, graph.NoValue) {
		return nil
	}
	return &p.src.Nodes[d]
}

// dataFree reports whether a tensor is filled with one constant.
func dataFree(p *patLift, id graph.ValueID) bool {
	return p.constant(id) || producedBy(p, id, "ConstantOfShape") != nil || producedBy(p, id, "Expand") != nil && p.constant(producedBy(p, id, "Expand").Inputs[0])
}

// key returns the key before its transposition to [.., dim, rows].
func key(p *patLift, n *graph.Node, kt graph.ValueID) graph.Arg {
	if d := p.def[kt]; d >= 0 {
		t := &p.src.Nodes[d]
		perm := attrInts(t, "perm", nil)
		if k := len(perm); t.Op == "Transpose" && k >= 2 && perm[k-1] == int64(k-2) && perm[k-2] == int64(k-1) && slices.IsSorted(perm[:k-2]) {
			return argOf(p.value(t.Inputs[0]))
		}
	}
	return swapLast(p, n, "key", argOf(p.value(kt)), kt)
}

// ratio returns the probability of a Dropout node.
func ratio(p *patLift, n *graph.Node) float64 {
	if id := input(n, 1); id >= 0 {
		if f, ok := p.number(id); ok {
			return f
		}
	}
	return attrFloat(n, "ratio", 0.5)
}

// headsOf shows [batch, rows, heads*dim] as [batch, heads, rows, dim].
func headsOf(p *patLift, n *graph.Node, name string, x graph.Arg, t graph.Type, b, s, h, d int64) graph.Arg {
	x = p.step(n, name+"_view", shaped(t, b, s, h, d), "view.default", x, argInts(b, s, h, d))
	return p.step(n, name+"_heads", shaped(t, b, h, s, d), "transpose.int", x, argInt(1), argInt(2))
}

// merged shows [batch, heads, rows, dim] as [batch, rows, heads*dim].
func merged(p *patLift, n *graph.Node, x graph.Arg, t graph.Type, b, s, h, d int64) {
	x = p.step(n, "rows", shaped(t, b, s, h, d), "transpose.int", x, argInt(1), argInt(2))
	p.emit(n, "reshape.default", []graph.Arg{x, argInts(b, s, h*d)}, p.value(n.Outputs[0]))
}

// extraUsed reports whether anything reads a node's outputs other than the
// first.
func extraUsed(p *patLift, n *graph.Node) bool {
	for _, o := range n.Outputs[1:] {
		if o >= 0 && p.uses[o] > 0 {
			return true
		}
	}
	return false
}

// attentionOp is Attention of opset 23 without soft cap and scores; past keys
// and values precede the new ones.
func attentionOp(p *patLift, n *graph.Node, _ *match) bool {
	if len(n.Inputs) < 3 || n.Inputs[1] < 0 || n.Inputs[2] < 0 || (input(n, 4) >= 0) != (input(n, 5) >= 0) || input(n, 6) >= 0 ||
		attrFloat(n, "softcap", 0) != 0 || len(n.Outputs) > 3 && n.Outputs[3] >= 0 {
		return false
	}
	q, k, v := p.dims(n.Inputs[0]), p.dims(n.Inputs[1]), p.dims(n.Inputs[2])
	args := []graph.Arg{p.in(n, 0), p.in(n, 1), p.in(n, 2), p.in(n, 3), argFloat(0), argBool(attrInt(n, "is_causal", 0) != 0)}
	if hasOtherScale(p, n) {
		args = append(args, named("scale", argFloat(attrFloat(n, "scale", 0))))
	}
	t := p.typeOf(n.Outputs[0])
	if len(q) < 3 || len(k) != len(q) || len(v) != len(q) || q[0] != k[0] || q[0] != v[0] {
		return false
	}
	if len(q) == 4 {
		if q[1] != k[1] {
			args = append(args, named("enable_gqa", argBool(true)))
		}
		args[1], args[2] = present(p, n, 1, args[1]), present(p, n, 2, args[2])
		p.emit(n, "scaled_dot_product_attention.default", args, p.value(n.Outputs[0]))
		return true
	}
	h, kv := attrInt(n, "q_num_heads", 0), attrInt(n, "kv_num_heads", 0)
	if len(q) != 3 || len(k) != 3 || len(v) != 3 || h < 1 || kv < 1 || slices.Min(slices.Concat(q, k, v)) < 0 || q[2]%h != 0 || k[2]%kv != 0 || v[2]%kv != 0 {
		return false
	}
	args[0] = headsOf(p, n, "q", args[0], p.typeOf(n.Inputs[0]), q[0], q[1], h, q[2]/h)
	args[1] = headsOf(p, n, "k", args[1], p.typeOf(n.Inputs[1]), k[0], k[1], kv, k[2]/kv)
	args[2] = headsOf(p, n, "v", args[2], p.typeOf(n.Inputs[2]), v[0], v[1], kv, v[2]/kv)
	args[1], args[2] = present(p, n, 1, args[1]), present(p, n, 2, args[2])
	if h != kv {
		args = append(args, named("enable_gqa", argBool(true)))
	}
	o := p.step(n, "attention", shaped(t, q[0], h, q[1], v[2]/kv), "scaled_dot_product_attention.default", args...)
	merged(p, n, o, t, q[0], q[1], h, v[2]/kv)
	return true
}

// present concatenates the past (input 3+i) and the new keys or values [batch,
// heads, rows, dim], which become output i.
func present(p *patLift, n *graph.Node, i int, x graph.Arg) graph.Arg {
	past, out := input(n, 3+i), graph.NoValue
	if i < len(n.Outputs) {
		out = n.Outputs[i]
	}
	switch {
	case past < 0 && out < 0:
		return x
	case past < 0:
		p.emit(n, "alias.default", []graph.Arg{x}, p.value(out))
		return x
	}
	to := p.value(out)
	if out < 0 {
		dims := slices.Clone(p.dims(past))
		if len(dims) == 4 {
			dims[2] = -1
		}
		to = p.temp(n, "present", shaped(p.typeOf(past), dims...))
	}
	p.emit(n, "cat.default", []graph.Arg{{Kind: graph.ArgList, List: []graph.Arg{p.in(n, 3+i), x}}, argInt(2)}, to)
	return argOf(to)
}

// multiHeadCall is MultiHeadAttention of onnxruntime: query, key and value of
// [batch, rows, width], without packing, bias or past.
func multiHeadCall(p *patLift, n *graph.Node, _ *match) bool {
	for i := 3; i < len(n.Inputs); i++ {
		if i != 5 && n.Inputs[i] >= 0 {
			return false
		}
	}
	if len(n.Inputs) < 3 || n.Inputs[1] < 0 || n.Inputs[2] < 0 || extraUsed(p, n) {
		return false
	}
	q, k, v := p.dims(n.Inputs[0]), p.dims(n.Inputs[1]), p.dims(n.Inputs[2])
	h := attrInt(n, "num_heads", 0)
	if len(q) != 3 || len(k) != 3 || len(v) != 3 || h < 1 || slices.Min(slices.Concat(q, k, v)) < 0 || q[2]%h != 0 || k[2]%h != 0 || v[2]%h != 0 {
		return false
	}
	t := p.typeOf(n.Inputs[0])
	args := []graph.Arg{headsOf(p, n, "q", p.in(n, 0), t, q[0], q[1], h, q[2]/h), headsOf(p, n, "k", p.in(n, 1), t, k[0], k[1], h, k[2]/h),
		headsOf(p, n, "v", p.in(n, 2), t, v[0], v[1], h, v[2]/h), p.in(n, 5), argFloat(0), argBool(attrInt(n, "unidirectional", 0) != 0)}
	o := p.step(n, "attention", shaped(t, q[0], h, q[1], v[2]/h), "scaled_dot_product_attention.default", args...)
	merged(p, n, o, t, q[0], q[1], h, v[2]/h)
	return true
}

// packedAttention is Attention of onnxruntime (input, weights, bias, mask): one
// product makes query, key and value. Masks given as lengths are dropped: they
// are a few numbers.
func packedAttention(p *patLift, n *graph.Node, _ *match) bool {
	x, w := p.dims(n.Inputs[0]), p.dims(input(n, 1))
	h := attrInt(n, "num_heads", 0)
	if len(x) != 3 || len(w) != 2 || slices.Min(slices.Concat(x, w)) < 0 || h < 1 || w[1]%(3*h) != 0 || n.Attr("qkv_hidden_sizes") != nil ||
		input(n, 4) >= 0 || input(n, 5) >= 0 || extraUsed(p, n) {
		return false
	}
	p.weight(n.Inputs[1])
	p.weight(input(n, 2))
	t, e := p.typeOf(n.Inputs[0]), w[1]/3
	args := []graph.Arg{p.in(n, 0), p.step(n, "t", shaped(t, w[1], w[0]), "t.default", p.in(n, 1)), p.in(n, 2)}
	qkv := p.step(n, "qkv", shaped(t, x[0], x[1], w[1]), "linear.default", args...)
	var parts []graph.ValueID
	for _, name := range []string{"q", "k", "v"} {
		parts = append(parts, p.temp(n, name, shaped(t, x[0], x[1], e)))
	}
	p.emit(n, "split.Tensor", []graph.Arg{qkv, argInt(e), argInt(-1)}, parts...)
	var heads []graph.Arg
	for i, name := range []string{"q", "k", "v"} {
		heads = append(heads, headsOf(p, n, name, argOf(parts[i]), t, x[0], x[1], h, e/h))
	}
	heads = append(heads, argNone(), argFloat(0), argBool(attrInt(n, "unidirectional", 0) != 0))
	o := p.step(n, "attention", shaped(t, x[0], h, x[1], e/h), "scaled_dot_product_attention.default", heads...)
	merged(p, n, o, t, x[0], x[1], h, e/h)
	return true
}
