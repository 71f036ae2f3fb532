package lift

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/python"
)

// cellCalls are the calls into which the exporter decomposes one step of a cell, in order
// (torch/_decomp/decompositions.py, gru_cell and lstm_cell).
var cellCalls = map[string][]string{
	"gru":  {"linear", "split", "linear", "split", "add", "sigmoid", "add", "sigmoid", "mul", "add", "tanh", "sub", "mul", "add"},
	"lstm": {"linear", "linear", "add", "split", "sigmoid", "sigmoid", "tanh", "sigmoid", "mul", "mul", "add", "tanh", "mul"},
}

// fusedCell replaces what follows the two products of a cell by the fused kernel, which
// also adds the biases that the products leave out (aten/src/ATen/native/RNN.cpp).
func fusedCell(r *rewriter, i int) bool {
	at := r.cellFrom(i)
	if at == nil {
		return false
	}
	last, op := r.node(at[len(at)-1]), "_thnn_fused_gru_cell.default"
	input, hidden := r.node(at[0]), r.node(at[2])
	state, outs := hidden.Args[0], []graph.ValueID{last.Outputs[0]}
	if python.Cell(r.l.Classes[i]) == "lstm" { // the exporter multiplies the state first
		op, hidden = "_thnn_fused_lstm_cell.default", r.node(at[1])
		input.Args, hidden.Args = hidden.Args, input.Args
		cells := r.node(at[10])
		state, outs = r.node(at[8]).Args[1], append(outs, cells.Outputs[0])
		r.def[cells.Outputs[0]], cells.Outputs = last.ID, nil
	}
	args := []graph.Arg{argOf(input.Outputs[0]), argOf(hidden.Outputs[0]), state}
	for _, n := range []*graph.Node{input, hidden} {
		if len(n.Args) > 2 {
			args = append(args, n.Args[2])
			n.Args = n.Args[:2]
		}
		r.relink(n)
	}
	last.Op, last.Outputs, last.Args = op, outs, args
	r.relink(last)
	return true
}

// cellFrom returns the calls of a cell's step that begins with call i; nil if there is
// none.
func (r *rewriter) cellFrom(i int) []int {
	calls, known := cellCalls[python.Cell(r.l.Classes[i])]
	if !known {
		return nil
	}
	var at []int
	for j := i; j < len(r.l.Graph.Nodes) && len(at) < len(calls); j++ {
		n := r.node(j)
		op := strings.TrimPrefix(opName(n), "unsafe_")
		row := aten.Lookup(opName(n))
		switch known := r.l.Classes[j] == r.l.Classes[i] && n.Module == r.node(i).Module; {
		case known && op == calls[len(at)] && len(n.Outputs) > 0 && len(n.Args) > 0:
			at = append(at, j)
		case op == "getitem" || row != nil && row.Kind == "view": // of operands, between the calls
		default:
			return nil
		}
	}
	products := slices.IndexFunc(at, func(j int) bool { return opName(r.node(j)) == "linear" && len(r.node(j).Args) < 2 })
	if len(at) < len(calls) || products >= 0 || len(r.node(at[8]).Args) < 2 {
		return nil
	}
	return at
}
