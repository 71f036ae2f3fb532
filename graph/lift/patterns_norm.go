package lift

import (
	"slices"

	"github.com/memplan/memplan/graph"
)

func batchNormCall(p *patLift, n *graph.Node, _ *match) bool {
	if len(n.Inputs) < 5 || slices.Contains(n.Inputs[:5], graph.NoValue) || len(p.dims(n.Inputs[0])) < 2 {
		return false
	}
	p.weight(n.Inputs[1])
	p.weight(n.Inputs[2])
	args := []graph.Arg{p.in(n, 0), p.in(n, 1), p.in(n, 2), p.in(n, 3), p.in(n, 4), argBool(true),
		argFloat(1 - attrFloat(n, "momentum", 0.9)), argFloat(attrFloat(n, "epsilon", 1e-5)), argBool(true)}
	p.emit(n, "batch_norm.default", args, p.value(n.Outputs[0]))
	statistics(p, n)
	return true
}

// statistics turns the running statistics, of which ONNX returns new ones, into
// buffers that the normalisation updates.
func statistics(p *patLift, n *graph.Node) {
	for i := 1; i < len(n.Outputs) && i < 3; i++ {
		v := p.resolve(n.Inputs[2+i])
		if o := n.Outputs[i]; o >= 0 {
			p.to[o] = p.value(v)
		}
	}
	for _, v := range n.Inputs[3:5] {
		p.buffers[p.resolve(v)] = true
	}
}

func instanceNormCall(p *patLift, n *graph.Node, _ *match) bool {
	if len(n.Inputs) != 3 || len(p.dims(n.Inputs[0])) < 3 {
		return false
	}
	p.weight(n.Inputs[1])
	p.weight(n.Inputs[2])
	p.emit(n, "instance_norm.default", []graph.Arg{p.in(n, 0), p.in(n, 1), p.in(n, 2), argNone(), argNone(), argBool(true), argFloat(0.1),
		argFloat(attrFloat(n, "epsilon", 1e-5)), argBool(true)}, p.value(n.Outputs[0]))
	return true
}

// normShape returns the dims from axis on, over which a normalisation runs: the
// operand's, or the weight's if the operand's are unknown.
func normShape(p *patLift, x, w graph.ValueID, axis int64) ([]int64, bool) {
	dims := p.dims(x)
	if axis < 0 {
		axis += int64(len(dims))
	}
	if axis < 0 || axis >= int64(len(dims)) {
		return nil, false
	}
	shape := slices.Clone(dims[axis:])
	if slices.Min(shape) < 0 {
		if shape = p.dims(w); len(shape) != len(dims[axis:]) || slices.Min(shape) < 0 {
			return nil, false
		}
	}
	return shape, true
}

func layerNormCall(p *patLift, n *graph.Node, _ *match) bool {
	shape, ok := normShape(p, n.Inputs[0], input(n, 1), attrInt(n, "axis", -1))
	if !ok {
		return false
	}
	p.weight(input(n, 1))
	p.weight(input(n, 2))
	op := "layer_norm.default"
	if len(n.Outputs) > 1 {
		op = "native_layer_norm.default"
	}
	p.emit(n, op, []graph.Arg{p.in(n, 0), argInts(shape...), p.in(n, 1), p.in(n, 2), argFloat(attrFloat(n, "epsilon", 1e-5))}, p.outs(n)...)
	return true
}

func rmsNormCall(p *patLift, n *graph.Node, _ *match) bool {
	shape, ok := normShape(p, n.Inputs[0], input(n, 1), attrInt(n, "axis", -1))
	if !ok || len(n.Outputs) > 1 && n.Outputs[1] >= 0 && p.uses[n.Outputs[1]] > 0 {
		return false
	}
	p.weight(input(n, 1))
	p.emit(n, "rms_norm.default", []graph.Arg{p.in(n, 0), argInts(shape...), p.in(n, 1), argFloat(attrFloat(n, "epsilon", 1e-5))}, p.value(n.Outputs[0]))
	return true
}

// skipNormCall is SkipLayerNormalization (input, skip, gamma, beta, bias) and
// its form without mean (input, skip, gamma, bias); the fourth output is the sum.
func skipNormCall(p *patLift, n *graph.Node, _ *match) bool {
	if len(n.Inputs) < 3 || n.Inputs[1] < 0 || n.Inputs[2] < 0 {
		return false
	}
	shape, ok := normShape(p, n.Inputs[0], n.Inputs[2], -1)
	simple := n.Op == "SkipSimplifiedLayerNormalization"
	used := func(i int) bool { return i < len(n.Outputs) && n.Outputs[i] >= 0 && p.uses[n.Outputs[i]] > 0 }
	if !ok || used(1) || used(2) {
		return false
	}
	bias := 4
	if simple {
		bias = 3
	}
	for _, i := range []int{2, 3, 4} {
		p.weight(input(n, i))
	}
	t := p.typeOf(n.Inputs[0])
	sum := p.temp(n, "sum", t)
	if used(3) {
		sum = p.value(n.Outputs[3])
	}
	if input(n, bias) >= 0 {
		half := p.step(n, "skip", t, "add.Tensor", p.in(n, 0), p.in(n, 1))
		p.emit(n, "add.Tensor", []graph.Arg{half, p.in(n, bias)}, sum)
	} else {
		p.emit(n, "add.Tensor", []graph.Arg{p.in(n, 0), p.in(n, 1)}, sum)
	}
	eps := argFloat(attrFloat(n, "epsilon", 1e-12))
	if simple {
		p.emit(n, "rms_norm.default", []graph.Arg{argOf(sum), argInts(shape...), p.in(n, 2), eps}, p.value(n.Outputs[0]))
		return true
	}
	p.emit(n, "layer_norm.default", []graph.Arg{argOf(sum), argInts(shape...), p.in(n, 2), p.in(n, 3), eps}, p.value(n.Outputs[0]))
	return true
}

// groupNormOp is GroupNormalization; before opset 21 it scales groups instead
// of channels, which torch has no operator for.
func groupNormOp(p *patLift, n *graph.Node, _ *match) bool {
	in, w := p.dims(n.Inputs[0]), p.dims(input(n, 1))
	if len(n.Inputs) != 3 || len(in) < 3 || len(w) != 1 || in[1] != w[0] {
		return false
	}
	p.weight(n.Inputs[1])
	p.weight(n.Inputs[2])
	p.emit(n, "group_norm.default", []graph.Arg{p.in(n, 0), argInt(attrInt(n, "num_groups", 1)), p.in(n, 1), p.in(n, 2),
		argFloat(attrFloat(n, "epsilon", 1e-5))}, p.value(n.Outputs[0]))
	return true
}

// groupShape accepts an InstanceNormalization of [N, groups, ..] whose result
// is reshaped to the operand's shape.
func groupShape(p *patLift, m *match) bool {
	in, g := p.dims(m.value("x")), p.dims(m.value("i"))
	out := p.dims(m.root.Outputs[0])
	return len(in) >= 3 && len(g) == 3 && g[1] > 0 && in[1] > 0 && in[1]%g[1] == 0 && len(out) == len(in) &&
		p.elems(m.value("w")) == in[1] && p.elems(m.value("b")) == in[1]
}

func groupNormCall(p *patLift, n *graph.Node, m *match) bool {
	w, b := p.base(m.value("w")), p.base(m.value("b")) // as the file stores them, without the dims that broadcasting needs
	p.weight(w)
	p.weight(b)
	p.emit(n, "group_norm.default", []graph.Arg{argOf(p.value(m.value("x"))), argInt(p.dims(m.value("i"))[1]), argOf(p.value(w)), argOf(p.value(b)), argFloat(1e-5)},
		p.value(n.Outputs[0]))
	return true
}

// reduced returns the dims of a reduction, sorted; all if none are given. It
// fails if they are computed.
func reduced(p *patLift, n *graph.Node) ([]int64, bool) {
	rank := int64(len(p.dims(n.Inputs[0])))
	axes := attrInts(n, "axes", nil)
	if id := input(n, 1); id >= 0 {
		var ok bool
		if axes, ok = p.ints(id); !ok {
			return nil, false
		}
	}
	out := make([]int64, 0, rank)
	if len(axes) == 0 {
		for i := range rank {
			out = append(out, i)
		}
		return out, true
	}
	for _, a := range axes {
		if a < 0 {
			a += rank
		}
		if a < 0 || a >= rank {
			return nil, false
		}
		out = append(out, a)
	}
	slices.Sort(out)
	return out, true
}

// lastDims accepts means over as many last dims as the weight has.
func lastDims(p *patLift, m *match) bool {
	rank := len(p.dims(m.value("x")))
	if rank == 0 || !slices.Equal(p.dims(m.root.Outputs[0]), p.dims(m.value("x"))) {
		return false
	}
	for _, i := range m.nodes {
		n := &p.src.Nodes[i]
		if n.Op != "ReduceMean" {
			continue
		}
		axes, ok := reduced(p, n)
		if !ok || attrInt(n, "keepdims", 1) == 0 || len(axes) == rank && rank > 1 {
			return false
		}
		for j, a := range axes {
			if int(a) != rank-len(axes)+j {
				return false
			}
		}
		m.axes = len(axes)
	}
	w := m.value("w")
	shape := p.dims(m.value("x"))[rank-m.axes:]
	if w >= 0 && len(p.dims(w)) != m.axes {
		return false
	}
	_, ok := normShape(p, m.value("x"), w, int64(rank-m.axes))
	return ok && len(shape) > 0
}

// weightLast is lastDims, with the weight as the product's second operand.
func weightLast(p *patLift, m *match) bool {
	return lastDims(p, m) && p.resolve(m.root.Inputs[1]) == m.value("w")
}

func layerNormParts(p *patLift, n *graph.Node, m *match) bool {
	return normParts(p, n, m, "layer_norm.default", m.value("w"), m.value("b"))
}

func rmsNormParts(p *patLift, n *graph.Node, m *match) bool {
	return normParts(p, n, m, "rms_norm.default", m.value("w"))
}

func normParts(p *patLift, n *graph.Node, m *match, op string, params ...graph.ValueID) bool {
	x := m.value("x")
	shape, ok := normShape(p, x, m.value("w"), int64(-m.axes))
	if !ok {
		return false
	}
	args := []graph.Arg{argOf(p.value(x)), argInts(shape...)}
	for _, w := range params {
		p.weight(w)
		args = append(args, argOf(p.value(w)))
	}
	eps, _ := p.number(m.value("eps"))
	p.emit(n, op, append(args, argFloat(eps)), p.value(n.Outputs[0]))
	return true
}
