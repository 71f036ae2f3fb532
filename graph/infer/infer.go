// Package infer computes the type of every value of a graph of ONNX operators,
// from its inputs down: element types, shapes with symbolic dims, and the
// elements of the small tensors that shape arithmetic is made of.
//
// All knowledge about operators is in one table, Ops.
package infer

import (
	"fmt"
	"slices"

	"github.com/memplan/memplan/graph"
)

// Options add to what the file says.
type Options struct {
	// Dims binds symbols: those of the file, and those that inference creates
	// (Result.Bounds and Unbound list them).
	Dims map[string]int64

	// Batch, unless 0, becomes the leading dim of the graph's inputs that may
	// hold a batch (the second dim of recurrent networks with the batch there):
	// a symbolic dim is bound, a fixed one is replaced if every node provably
	// treats it as a batch; otherwise an error names the first node that does
	// not. Inputs that only serve as weights, sizes, axes, conditions or trip
	// counts keep their dims.
	Batch int64

	// Shapes gives shapes of values by name, for inputs without one and for
	// the outputs of operators that inference does not know.
	Shapes map[string]graph.Shape

	// Custom, unless nil, returns the output types of a node whose operator has
	// no rule here; nil means that it does not know them either.
	Custom func(n *graph.Node, in []graph.Type) ([]graph.Type, error)

	// Values gives, by name, elements of inputs that are known before a run,
	// such as a target size. They also give the input's shape.
	Values map[string]*graph.Constant

	// Strict turns into errors: contradictions between declared and inferred
	// types, inputs of unknown element type, initializers without elements,
	// integer overflow in shape arithmetic, and branches that cannot run, even
	// if they are never taken.
	Strict bool

	// AnySize accepts tensors of more than 2^59 bytes.
	AnySize bool
}

// A Result is what inference found besides the types, in node order.
type Result struct {
	Warnings []graph.Warning
	Bounds   []Bound
}

// A Bound belongs to a symbol that inference created for a dim it could not
// know, such as the number of non-zero elements. Options.Dims may bind it.
type Bound struct {
	Symbol string
	Max    graph.Dim // largest possible value; unknown if there is none
	Node   string    // label of the node, or name of the input, that it comes from
}

// Infer sets Type of every value of g and of its subgraphs, and Const of those
// that are equal in every run and small (at most maxElems elements). It starts
// from Value.Decl of inputs and initializers, so that it may be called again
// with other options. Declared types of other values are used only where
// inference knows less. A node that cannot run by its operator's rules, and a
// tensor of more than 2^59 bytes (whose bits could not be counted), are errors
// that name the node and its shapes. Bodies of local functions keep the types
// of their last call. Infer takes time linear in the number of nodes; a Loop
// counts as often as its body must be visited.
//
// Infer takes time linear in the number of nodes, a Loop counting as often as
// its body has to be visited.
func Infer(g *graph.Graph, opt Options) (*Result, error) {
	if g == nil || g.Model == nil {
		return nil, fmt.Errorf("infer: a graph without a model")
	}
	if opt.Batch < 0 {
		return nil, fmt.Errorf("batch %d is negative", opt.Batch)
	}
	for _, name := range sortedKeys(opt.Dims) {
		if n := opt.Dims[name]; n < 0 {
			return nil, fmt.Errorf("dim %q cannot be %d", name, n)
		}
	}
	ops := opsByName()
	if opt.Batch > 0 {
		return inferBatch(g, ops, opt)
	}
	e := newEngine(g, ops, opt)
	return e.result(e.graph(g))
}

// Unbound returns, sorted, the symbols that remain in the types of the values
// of g and its subgraphs, except in branches that are never taken. It is empty
// if every dim is an integer or unknown.
func Unbound(g *graph.Graph) []string {
	var names []string
	eachDim(g, func(d graph.Dim) {
		if _, ok := d.Int(); !ok {
			names = append(names, d.Symbols()...)
		}
	})
	slices.Sort(names)
	return slices.Compact(names)
}

// eachDim calls f for every dim in the types of g's values.
func eachDim(g *graph.Graph, f func(graph.Dim)) {
	for i := range g.Values {
		for t := &g.Values[i].Type; t != nil; t = t.Of {
			for _, d := range t.Shape {
				f(d)
			}
			f(t.Len)
		}
	}
	for i := range g.Nodes {
		dead := neverTaken(g, &g.Nodes[i])
		for _, sub := range g.Nodes[i].Subgraphs() {
			if sub != dead {
				eachDim(sub, f)
			}
		}
	}
}

// neverTaken returns the branch that an If with a constant condition does not
// run, or nil.
func neverTaken(g *graph.Graph, n *graph.Node) *graph.Graph {
	if n.Op != "If" || n.Domain != "" || len(n.Inputs) != 1 || n.Inputs[0] == graph.NoValue {
		return nil
	}
	cond := g.Values[n.Inputs[0]].Const
	if !cond.Known() || len(cond.Ints) != 1 {
		return nil
	}
	name := "then_branch"
	if cond.Ints[0] != 0 {
		name = "else_branch"
	}
	if a := n.Attr(name); a != nil {
		return a.Graph
	}
	return nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
