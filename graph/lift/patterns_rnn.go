package lift

import (
	"strings"

	"github.com/memplan/memplan/graph"
)

// rnnOps are the recurrent operators and the calls that run them.
var rnnOps = map[string]string{"LSTM": "lstm.input", "GRU": "gru.input", "RNN": "rnn_tanh.input"}

// rnnCall is one layer of LSTM, GRU or RNN: the call, and views that bring its
// result [time, batch, directions*hidden] to ONNX's [time, directions, batch,
// hidden]. Peepholes, clipping and sequences of different lengths are no
// PyTorch modules.
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
	params := graph.Arg{Kind: graph.ArgList}
	for i := 1; i <= 3; i++ {
		if id := input(n, i); id >= 0 {
			p.weight(id)
			params.List = append(params.List, p.in(n, i))
		}
	}
	y := p.temp(n, "y", shaped(p.typeOf(n.Inputs[0]), time, batch, dirs*hidden))
	outs := []graph.ValueID{y}
	for i := 1; i <= count; i++ {
		if i < len(n.Outputs) && n.Outputs[i] >= 0 {
			outs = append(outs, p.value(n.Outputs[i]))
			continue
		}
		outs = append(outs, p.temp(n, [...]string{"", "h", "c"}[i], state))
	}
	p.emit(n, op, []graph.Arg{p.in(n, 0), states, params, argBool(input(n, 3) >= 0), argInt(1), {Kind: graph.ArgFloat}, argBool(true), argBool(dirs == 2), argBool(false)}, outs...)
	if n.Outputs[0] < 0 {
		return true
	}
	split := p.step(n, "split", shaped(p.typeOf(n.Inputs[0]), time, batch, dirs, hidden), "unflatten.int", argOf(y), argInt(2), argInts(dirs, hidden))
	p.emit(n, "permute.default", []graph.Arg{split, argInts(0, 2, 1, 3)}, p.value(n.Outputs[0]))
	return true
}
