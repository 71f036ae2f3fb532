package infer

import (
	"fmt"

	"github.com/memplan/memplan/graph"
)

// A builder makes graphs for tests.
type builder struct {
	g    graph.Graph
	opts []graph.Opset
}

// graph returns what was built, of opset 21 unless opts says otherwise.
func (b *builder) graph() *graph.Graph {
	if b.opts == nil {
		b.opts = []graph.Opset{{Domain: "", Version: 21}, {Domain: "com.microsoft", Version: 1}}
	}
	b.g.Model = &graph.Model{IRVersion: 10, Opsets: b.opts}
	return &b.g
}

func (b *builder) value(v graph.Value) graph.ValueID {
	v.ID = graph.ValueID(len(b.g.Values))
	v.Outer = graph.NoValue
	b.g.Values = append(b.g.Values, v)
	return v.ID
}

func (b *builder) input(name string, elem graph.DType, shape graph.Shape) graph.ValueID {
	return b.inputType(name, tensorOf(elem, shape))
}

func (b *builder) inputType(name string, t graph.Type) graph.ValueID {
	id := b.value(graph.Value{Name: name, Kind: graph.Input, Decl: t, Type: t, Def: -1})
	b.g.Inputs = append(b.g.Inputs, id)
	return id
}

func (b *builder) initializer(name string, t *graph.Constant) graph.ValueID {
	typ := t.ValueType()
	return b.value(graph.Value{Name: name, Kind: graph.Initializer, Decl: typ, Type: typ, Const: t, Def: -1})
}

// ints adds a vector of int64.
func (b *builder) ints(name string, list ...int64) graph.ValueID {
	return b.initializer(name, &graph.Constant{Type: graph.Int64, Dims: []int64{int64(len(list))}, Ints: list})
}

// node adds a node with one output and returns that.
func (b *builder) node(op string, attrs []graph.Attr, in ...graph.ValueID) graph.ValueID {
	return b.nodeOf("", op, 1, attrs, in...)[0]
}

func (b *builder) nodeOf(domain, op string, outputs int, attrs []graph.Attr, in ...graph.ValueID) []graph.ValueID {
	n := graph.Node{ID: int32(len(b.g.Nodes)), Domain: domain, Op: op, Attrs: attrs, Inputs: in}
	for i := range outputs {
		n.Outputs = append(n.Outputs, b.value(graph.Value{Name: fmt.Sprintf("v%d_%d", n.ID, i), Kind: graph.Computed, Def: n.ID}))
	}
	b.g.Nodes = append(b.g.Nodes, n)
	return n.Outputs
}
