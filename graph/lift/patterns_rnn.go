package lift

import (
	"fmt"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/infer"
)

// rnnOps maps recurrent operators to their calls.
var rnnOps = map[string]string{"LSTM": "lstm.input", "GRU": "gru.input", "RNN": "rnn_tanh.input"}

// rnnCall is one layer of LSTM, GRU or RNN: the call, and views that bring its
// result [time, batch, directions*hidden] to ONNX's [time, directions, batch,
// hidden]. PyTorch's modules have no peepholes, clipping or sequences of
// different lengths.
func rnnCall(p *patLift, n *graph.Node, _ *match) bool {
	if input(n, 0) < 0 || input(n, 2) < 0 {
		return false
	}
	x, w := p.dims(n.Inputs[0]), p.dims(n.Inputs[2])
	if len(x) != 3 || len(w) != 3 || input(n, 4) >= 0 || input(n, 7) >= 0 || attrInt(n, "layout", 0) != 0 || n.Attr("clip") != nil || attrInt(n, "input_forget", 0) != 0 {
		return false
	}
	op := rnnOps[n.Op]
	if a := n.Attr("activations"); n.Op == "RNN" && a != nil && len(a.Strings) > 0 && strings.EqualFold(a.Strings[0], "Relu") {
		op = "rnn_relu.input"
	}
	time, batch, dirs, hidden := x[0], x[1], w[0], w[2]
	state := shaped(p.typeOf(n.Inputs[0]), dirs, batch, hidden)
	count := 1
	if n.Op == "LSTM" {
		count = 2
	}
	states := graph.Arg{Kind: graph.ArgList}
	for i := range count {
		var h graph.Arg
		if id := input(n, 5+i); id >= 0 {
			h = p.in(n, 5+i)
		} else {
			h = p.step(n, [...]string{"h0", "c0"}[i], state, "zeros.default", argInts(dirs, batch, hidden))
		}
		states.List = append(states.List, h)
	}
	since := len(p.l.Graph.Nodes)
	params, joined := rnnParams(p, n, dirs)
	y := p.temp(n, "y", shaped(p.typeOf(n.Inputs[0]), time, batch, dirs*hidden))
	outs := []graph.ValueID{y}
	for i := 1; i <= count; i++ {
		if i < len(n.Outputs) && n.Outputs[i] >= 0 {
			outs = append(outs, p.value(n.Outputs[i]))
			continue
		}
		outs = append(outs, p.temp(n, [...]string{"", "h", "c"}[i], state))
	}
	p.emit(n, op, []graph.Arg{p.in(n, 0), states, {Kind: graph.ArgList, List: params}, argBool(input(n, 3) >= 0), argInt(1), {Kind: graph.ArgFloat}, argBool(true), argBool(dirs == 2), argBool(false)}, outs...)
	if joined {
		markOf(p, since, InexactKey, "gates and directions in the order of "+n.Op)
	}
	if n.Outputs[0] < 0 {
		return true
	}
	split := p.step(n, "split", shaped(p.typeOf(n.Inputs[0]), time, batch, dirs, hidden), "unflatten.int", argOf(y), argInt(2), argInts(dirs, hidden))
	p.emit(n, "permute.default", []graph.Arg{split, argInts(0, 2, 1, 3)}, p.value(n.Outputs[0]))
	return true
}

// rnnParams returns the parameters of a recurrent operator in the order of
// PyTorch's modules: for each direction the matrices of the input and of the state,
// and their biases. An exporter reorders the gates for ONNX and joins the
// directions in one tensor; if the file shows how, the operands are the original
// tensors, otherwise new ones of their sizes, which is reported. Anything computed
// from other than stored tensors stays unchanged.
func rnnParams(p *patLift, n *graph.Node, dirs int64) (list []graph.Arg, joined bool) {
	var units [3][]graph.ValueID
	for i := range units {
		id := input(n, 1+i)
		if id < 0 {
			continue
		}
		dims, count := p.dims(id)[1:], dirs
		if i == 2 {
			dims, count = []int64{p.dims(n.Inputs[1])[1]}, 2*dirs
		}
		var made bool
		if units[i], made = unitsOf(p, n, id, dims, count); units[i] == nil {
			return rnnOperands(p, n), false
		}
		joined = joined || made
	}
	for d := range dirs {
		list = append(list, argOf(units[0][d]), argOf(units[1][d]))
		if units[2] != nil {
			list = append(list, argOf(units[2][2*d]), argOf(units[2][2*d+1]))
		}
	}
	return list, joined
}

// rnnOperands returns the parameters in ONNX's form.
func rnnOperands(p *patLift, n *graph.Node) []graph.Arg {
	var list []graph.Arg
	for i := 1; i <= 3; i++ {
		if id := input(n, i); id >= 0 {
			p.weight(id)
			list = append(list, p.in(n, i))
		}
	}
	return list
}

// unitsOf returns the tensors, count in all and of the given dims, from which a
// value is assembled, and whether some had to be made; nil if it is not assembled
// so.
func unitsOf(p *patLift, n *graph.Node, id graph.ValueID, dims []int64, count int64) (list []graph.ValueID, made bool) {
	size, ok := graph.Product(dims)
	leaves := leaves(p, id, map[graph.ValueID]bool{})
	if !ok || size == 0 || leaves == nil || p.elems(id) != size*count {
		return nil, false
	}
	for _, leaf := range leaves {
		v := &p.src.Values[leaf]
		if slices.Equal(p.dims(leaf), dims) {
			p.weight(leaf)
			list = append(list, p.value(leaf))
			continue
		}
		if p.elems(leaf)%size != 0 {
			return nil, false
		}
		for k := range p.elems(leaf) / size {
			list = append(list, added(p, fmt.Sprintf("%s.%d", v.Name, k), shaped(v.Type, dims...), Parameter))
		}
		made = true
	}
	if int64(len(list)) != count {
		return nil, false
	}
	return list, made
}

// leaves lists the stored tensors from which a value is assembled, in order, each
// once; nil if it is computed from anything else.
func leaves(p *patLift, id graph.ValueID, seen map[graph.ValueID]bool) []graph.ValueID {
	id = p.resolve(id)
	if p.src.Values[id].Kind == graph.Initializer || p.def[id] >= 0 && p.ops[p.def[id]] == "Constant" {
		return []graph.ValueID{id}
	}
	if seen[id] = true; p.def[id] < 0 || len(seen) > hostElems {
		return nil
	}
	n := &p.src.Nodes[p.def[id]]
	from := n.Inputs
	if p.ops[n.ID] != "Concat" {
		if !infer.Is("", p.ops[n.ID], infer.Rearranges) || input(n, 0) < 0 {
			return nil
		}
		from = from[:1]
	}
	var list []graph.ValueID
	for _, in := range from {
		if in < 0 || seen[p.resolve(in)] {
			continue
		}
		part := leaves(p, in, seen)
		if part == nil {
			return nil
		}
		for _, leaf := range part {
			if !slices.Contains(list, leaf) {
				list = append(list, leaf)
			}
		}
	}
	return list
}
