package lift

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
)

// rnnClasses are the modules whose call ONNX's exporter has no translation for: it
// writes every time step (torch/_decomp/decompositions.py, _rnn_helper). The module
// itself makes one call of cuDNN. The value is that call, "" where the steps'
// activation says which.
var rnnClasses = map[string]string{
	"torch.nn.modules.rnn.RNN": "",
	"torch.nn.modules.rnn.GRU": "gru.input", // up to PyTorch 2.8
}

// An unrolled network is the calls [lo, hi) that one call of a recurrent network was
// taken apart into.
type unrolled struct {
	lo, hi        int
	op            string // of the one call
	x, hx         graph.Arg
	params        []graph.Arg // of each layer and direction: matrices, then biases
	bias          bool
	layers, dirs  int64
	first         bool // the batch is the input's first dim
	y, h          graph.ValueID
	yNode, hIndex int
}

// unrolledRNN puts the one call in place of the steps, where they end.
func unrolledRNN(r *rewriter, i int) bool {
	op, known := rnnClasses[r.l.Classes[i]]
	if !known || !slices.Contains([]string{"unbind", "split", "split_with_sizes"}, opName(r.node(i))) {
		return false
	}
	u := &unrolled{lo: i, hi: i, op: op, y: graph.NoValue, h: graph.NoValue, hx: r.node(i).Args[0]}
	for u.hi < len(r.l.Classes) && r.l.Classes[u.hi] == r.l.Classes[i] && r.node(u.hi).Module == r.node(i).Module {
		u.hi++
	}
	if !r.cells(u) || !r.sizes(u) || !r.results(u) {
		return false
	}
	if u.hIndex >= 0 {
		r.node(u.hIndex).Outputs = nil
		r.def[u.h] = int32(u.yNode)
	}
	n := r.node(u.yNode)
	flag := func(b bool) graph.Arg {
		if b {
			return graph.Arg{Kind: graph.ArgBool, Int: 1}
		}
		return graph.Arg{Kind: graph.ArgBool}
	}
	n.Op, n.Outputs = u.op, []graph.ValueID{u.y, u.h}
	n.Args = []graph.Arg{u.x, u.hx, {Kind: graph.ArgList, List: u.params}, flag(u.bias), {Kind: graph.ArgInt, Int: u.layers}, {Kind: graph.ArgFloat}, flag(true), flag(u.dirs == 2), flag(u.first)}
	r.relink(n)
	return true
}

// cells reads the products: those of the input come first in each layer and
// direction, then those of its steps.
func (r *rewriter) cells(u *unrolled) bool {
	var seen []graph.ValueID
	for i := u.lo; i < u.hi; i++ {
		n := r.node(i)
		switch op := opName(n); op {
		case "relu", "tanh":
			if rnnClasses[r.l.Classes[i]] == "" {
				u.op = "rnn_" + op + ".input"
			}
		case "linear":
			if len(n.Args) < 2 || n.Args[0].Kind != graph.ArgValue || n.Args[1].Kind != graph.ArgValue {
				return false
			}
			if len(seen) == 0 {
				u.x = n.Args[0]
			}
			if slices.Contains(seen, n.Args[1].Value) {
				continue
			}
			seen = append(seen, n.Args[1].Value)
			u.params = append(u.params, n.Args[1])
			if u.bias = len(n.Args) > 2 && n.Args[2].Kind == graph.ArgValue; u.bias {
				u.params = append(u.params, n.Args[2])
			}
		}
	}
	if u.bias { // matrix, bias, matrix, bias: PyTorch has both matrices first
		for k := 0; k+3 < len(u.params); k += 4 {
			u.params[k+1], u.params[k+2] = u.params[k+2], u.params[k+1]
		}
	}
	if p := r.producer(&u.x); p != nil && int(p.ID) >= u.lo && strings.HasPrefix(p.Op, "transpose") {
		u.x, u.first = p.Args[0], true
	}
	return u.op != "" && len(u.params) > 0
}

// sizes tells layers from directions: results of two directions are joined along
// the last dim.
func (r *rewriter) sizes(u *unrolled) bool {
	if u.hx.Kind != graph.ArgValue {
		return false
	}
	shape := r.l.Graph.Values[u.hx.Value].Type.Shape
	if len(shape) != 3 {
		return false
	}
	all, ok := shape[0].Int()
	u.dirs = 1
	for i := u.lo; i < u.hi; i++ {
		n := r.node(i)
		if d := argAt(n, 1, "dim"); opName(n) == "cat" && d != nil && d.Kind == graph.ArgInt && (d.Int == 2 || d.Int == -1) {
			u.dirs = 2
		}
	}
	u.layers = all / u.dirs
	each := int64(2)
	if u.bias {
		each = 4
	}
	return ok && u.layers > 0 && int64(len(u.params)) == all*each
}

// results finds what others read: the result, which is the last of the calls but
// for the stack of last states.
func (r *rewriter) results(u *unrolled) bool {
	inside := map[graph.ValueID]int32{}
	for i := u.lo; i < u.hi; i++ {
		for _, id := range r.node(i).Inputs {
			inside[id]++
		}
	}
	u.hIndex = -1
	for i := u.lo; i < u.hi; i++ {
		n := r.node(i)
		for _, o := range n.Outputs {
			switch {
			case o < 0 || r.uses[o] == inside[o]:
			case opName(n) == "stack" && u.h < 0:
				u.h, u.hIndex = o, i
			case (opName(n) == "cat" || opName(n) == "transpose") && u.y < 0:
				u.y, u.yNode = o, i
			default:
				return false
			}
		}
	}
	return u.y >= 0
}
