package lift

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/python"
)

// An unrolled network is the calls [lo, hi) into which the exporter decomposed one
// call of a recurrent network.
type unrolled struct {
	lo, hi       int
	op           string // operator of the one call
	x            graph.Arg
	states       []graph.Arg // initial states, each for all layers
	params       []graph.Arg // for each layer and direction: matrices, then biases
	bias         bool
	layers, dirs int64
	first        bool    // the batch is the input's first dim
	drop         float64 // dropout between layers
	y            graph.ValueID
	yNode        int
	ends         []int // calls that stack the last states
}

// unrolledRNN replaces the steps by the one call, at their end.
func unrolledRNN(r *rewriter, i int) bool {
	op, known := python.Recurrent(r.l.Classes[i])
	if !known || !slices.Contains([]string{"unbind", "split", "split_with_sizes"}, opName(r.node(i))) {
		return false
	}
	u := &unrolled{lo: i, hi: i, op: op, y: graph.NoValue, states: []graph.Arg{r.node(i).Args[0]}}
	if op == "lstm.input" {
		if i+1 >= len(r.l.Graph.Nodes) || opName(r.node(i+1)) != opName(r.node(i)) {
			return false
		}
		u.states = append(u.states, r.node(i + 1).Args[0])
	}
	for u.hi < len(r.l.Classes) && r.l.Classes[u.hi] == r.l.Classes[i] && r.node(u.hi).Module == r.node(i).Module {
		u.hi++
	}
	if !r.cells(u) || !r.sizes(u) || !r.results(u) {
		return false
	}
	n, outs := r.node(u.yNode), append([]graph.ValueID{u.y}, slices.Repeat([]graph.ValueID{graph.NoValue}, len(u.states))...)
	for _, k := range u.ends {
		outs[r.stateOf(u, k)] = r.node(k).Outputs[0]
		r.def[r.node(k).Outputs[0]], r.node(k).Outputs = int32(u.yNode), nil
	}
	states := u.states[0]
	if len(u.states) > 1 {
		states = graph.Arg{Kind: graph.ArgList, List: u.states}
	}
	flag := func(b bool) graph.Arg {
		if b {
			return graph.Arg{Kind: graph.ArgBool, Int: 1}
		}
		return graph.Arg{Kind: graph.ArgBool}
	}
	n.Op, n.Outputs = u.op, outs
	n.Args = []graph.Arg{u.x, states, {Kind: graph.ArgList, List: u.params}, flag(u.bias), {Kind: graph.ArgInt, Int: u.layers}, {Kind: graph.ArgFloat, Float: u.drop}, flag(true), flag(u.dirs == 2), flag(u.first)}
	r.relink(n)
	return true
}

// stateOf returns the result of the call whose outputs stack k of last states
// joins: sums for the cells of an LSTM.
func (r *rewriter) stateOf(u *unrolled, k int) int {
	if n := r.node(k); len(u.states) > 1 && len(n.Args) > 0 && len(n.Args[0].List) > 0 {
		if p := r.producer(&n.Args[0].List[0]); p != nil && opName(p) == "add" {
			return 2
		}
	}
	return 1
}

// cells reads the products: in each layer and direction, those of the input
// precede those of the steps.
func (r *rewriter) cells(u *unrolled) bool {
	var seen []graph.ValueID
	for i := u.lo; i < u.hi; i++ {
		n := r.node(i)
		switch op := opName(n); op {
		case "relu", "tanh":
			if call, _ := python.Recurrent(r.l.Classes[i]); call == "" {
				u.op = "rnn_" + op + ".input"
			}
		case "native_dropout", "dropout":
			if p := argAt(n, 1, "p"); p != nil {
				u.drop = p.Float
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
	if u.bias { // PyTorch's order has both matrices before the biases
		for k := 0; k+3 < len(u.params); k += 4 {
			u.params[k+1], u.params[k+2] = u.params[k+2], u.params[k+1]
		}
	}
	if p := r.producer(&u.x); p != nil && int(p.ID) >= u.lo && strings.HasPrefix(p.Op, "transpose") {
		u.x, u.first = p.Args[0], true
	}
	return u.op != "" && len(u.params) > 0
}

// sizes derives the numbers of layers and directions: results of two directions
// are concatenated along the last dim.
func (r *rewriter) sizes(u *unrolled) bool {
	if slices.ContainsFunc(u.states, func(a graph.Arg) bool { return a.Kind != graph.ArgValue }) {
		return false
	}
	shape := r.l.Graph.Values[u.states[0].Value].Type.Shape
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

// results finds the values that others read: the result, made by the last call
// before the stack of last states.
func (r *rewriter) results(u *unrolled) bool {
	inside := map[graph.ValueID]int32{}
	for i := u.lo; i < u.hi; i++ {
		for _, id := range r.node(i).Inputs {
			inside[id]++
		}
	}
	for i := u.lo; i < u.hi; i++ {
		n := r.node(i)
		for _, o := range n.Outputs {
			switch {
			case o < 0 || r.uses[o] == inside[o]:
			case opName(n) == "stack" && len(u.ends) < len(u.states) && len(n.Outputs) == 1:
				u.ends = append(u.ends, i)
			case (opName(n) == "cat" || opName(n) == "transpose") && u.y < 0:
				u.y, u.yNode = o, i
			default:
				return false
			}
		}
	}
	return u.y >= 0
}
