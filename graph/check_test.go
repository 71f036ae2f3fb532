package graph

import (
	"strings"
	"testing"
)

// wholesome is a graph with something of everything: values 0 x, 1 c, 2 k, 3 a,
// 4 y, 5 z; nodes 0 Split, 1 If, 2 a lifted call.
const wholesome = `
<ir_version: 10, opset_import: ["" : 20]>
main (float[2] x, bool c) => (y, z)
<float[2] k = {1.0, 2.0}, float[2] a>
{
  a, "" = Split <axis = 0, b = "s"> (x, "")
  y = If (c) <else_branch = e () => (x) {}, then_branch = t () => (r) { r = Add (k, a) }>
  z = aten::add.Tensor(y, 1.0, [k])
}
<domain: "local">
f <alpha = 0.5> (p) => (q) { q = Relu (p) }
<domain: "local">
g () => () {}`

// TestCheckFindsDamage breaks one invariant at a time.
func TestCheckFindsDamage(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(g *Graph)
		want   string
	}{
		{"value id", func(g *Graph) { g.Values[3].ID = 4 }, `graph "main": value 3 ("a"): ID is 4`},
		{"value kind", func(g *Graph) { g.Values[3].Kind = 9 }, `kind is 9`},
		{"Def of no node", func(g *Graph) { g.Values[3].Def = 3 }, `value 3 ("a"): Def 3 is no node`},
		{"negative Def", func(g *Graph) { g.Values[3].Def = -1 }, `Def -1 is no node`},
		{"Def of an input", func(g *Graph) { g.Values[0].Def = 0 }, `input with Def 0`},
		{"Def of another node", func(g *Graph) { g.Values[3].Def = 1 }, `node 0 (Split (node 0)): output 0: value 3 ("a") is said to come from node 1`},
		{"initializer without tensor", func(g *Graph) { g.Values[2].Const = nil }, `initializer without a tensor`},
		{"captured in a main graph", func(g *Graph) { g.Values[0].Kind = Captured }, `captured, but the graph has no parent`},
		{"type kind", func(g *Graph) { g.Values[0].Type.Kind = 99 }, `type kind is 99`},
		{"element type", func(g *Graph) { g.Values[0].Type.Elem = 99 }, `element type is 99`},
		{"declared type", func(g *Graph) { g.Values[0].Decl.Elem = -1 }, `element type is -1`},
		{"negative dim", func(g *Graph) { g.Values[0].Type.Shape = Shape{Int(-2)} }, `dim 0 is -2`},
		{"negative length", func(g *Graph) { g.Values[0].Type = Type{Kind: SequenceType, Len: Int(-1)} }, `length is -1`},
		{"sequence with a shape", func(g *Graph) { g.Values[0].Type = Type{Kind: SequenceType, Shape: Shape{}} }, `has a shape`},
		{"sequence with an element type", func(g *Graph) { g.Values[0].Type = Type{Kind: SequenceType, Elem: Float32} }, `has element type float`},
		{"tensor of something", func(g *Graph) { g.Values[0].Type.Of = new(Type) }, `has an inner type`},
		{"type within itself", func(g *Graph) {
			typ := &Type{Kind: SequenceType}
			typ.Of = typ
			g.Values[0].Type = *typ
		}, `types nested more than`},
		{"constant of another type", func(g *Graph) { g.Values[2].Type.Elem = Int64 }, `type is int64, constant is float`},
		{"constant of another shape", func(g *Graph) { g.Values[2].Type.Shape = Shape{Int(3)} }, `shape is [3], constant is [2]`},
		{"constant with too few elements", func(g *Graph) { g.Values[2].Const.Floats = []float64{1} }, `1 elements for float[2]`},
		{"constant with elements of another type", func(g *Graph) { g.Values[2].Const.Floats, g.Values[2].Const.Ints = nil, []int64{1, 2} }, `elements are not of type float`},
		{"constant of negative size", func(g *Graph) { g.Values[2].Const.Dims = []int64{-1} }, `overflows or is negative`},
		{"constant before the file", func(g *Graph) { g.Values[2].Const.Ref = &DataRef{Offset: -1} }, `0 bytes at -1`},
		{"input twice", func(g *Graph) { g.Inputs[1] = 0 }, `input 1: value 0 ("x") is listed twice`},
		{"input not listed", func(g *Graph) { g.Inputs = g.Inputs[:1] }, `value 1 ("c") is an input, but not in Inputs`},
		{"input of no value", func(g *Graph) { g.Inputs[1] = 99 }, `input 1: no value 99`},
		{"input that is computed", func(g *Graph) { g.Inputs[1] = 3 }, `input 1: value 3 ("a") is computed`},
		{"two producers", func(g *Graph) { g.Nodes[2].Outputs[0] = 4 }, `output 0: value 4 ("y") is produced twice`},
		{"no producer", func(g *Graph) { g.Nodes[2].Outputs = nil }, `value 5 ("z") is not an output of its node 2`},
		{"output of no value", func(g *Graph) { g.Nodes[2].Outputs[0] = 99 }, `output 0: no value 99`},
		{"an input as output of a node", func(g *Graph) { g.Nodes[0].Outputs[1] = 0 }, `output 1: value 0 ("x") is input`},
		{"node id", func(g *Graph) { g.Nodes[1].ID = 7 }, `ID is 7`},
		{"node without op", func(g *Graph) { g.Nodes[0].Op = "" }, `no op`},
		{"use before definition", func(g *Graph) { g.Nodes[0].Inputs[1] = 4 }, `node 0 (Split (node 0)): input 1: value 4 ("y") is computed later, by node 1`},
		{"use of its own output", func(g *Graph) { g.Nodes[0].Inputs[1] = 3 }, `computed later, by node 0`},
		{"use of no value", func(g *Graph) { g.Nodes[0].Inputs[1] = -2 }, `input 1: no value -2`},
		{"argument that is no input", func(g *Graph) { g.Nodes[2].Args[0].Value = 0 }, `argument 0: value 0 is not among the inputs`},
		{"nested argument that is no input", func(g *Graph) { g.Nodes[2].Args[2].List[0].Value = 1 }, `argument 2: argument 0: value 1 is not`},
		{"argument kind", func(g *Graph) { g.Nodes[2].Args[1].Kind = 77 }, `argument 1: kind is 77`},
		{"boolean argument", func(g *Graph) { g.Nodes[2].Args[1] = Arg{Kind: ArgBool, Int: 2} }, `boolean 2`},
		{"unsorted attributes", func(g *Graph) { a := g.Nodes[0].Attrs; a[0], a[1] = a[1], a[0] }, `attribute "axis" is not sorted after "b"`},
		{"equal attributes", func(g *Graph) { g.Nodes[0].Attrs[1].Name = "axis" }, `attribute "axis" is not sorted after "axis"`},
		{"nameless attribute", func(g *Graph) { g.Nodes[0].Attrs[0].Name = "" }, `no name`},
		{"attribute kind", func(g *Graph) { g.Nodes[0].Attrs[1].Kind = 44 }, `kind is 44`},
		{"attribute of another kind", func(g *Graph) { g.Nodes[0].Attrs[1].Kind = AttrInt }, `holds a value of another kind than 2`},
		{"attribute with value and reference", func(g *Graph) { g.Nodes[0].Attrs[1].Ref = "r" }, `has a value and refers to "r"`},
		{"attribute without its tensor", func(g *Graph) { g.Nodes[0].Attrs[0].Kind = AttrTensor }, `no value of kind 4`},
		{"attribute with a nil graph", func(g *Graph) { g.Nodes[0].Attrs[0] = Attr{Name: "a", Kind: AttrGraphs, Graphs: []*Graph{nil}} }, `nil graph`},
		{"attribute with a nil tensor", func(g *Graph) { g.Nodes[0].Attrs[0] = Attr{Name: "a", Kind: AttrTensors, Tensors: []*Constant{nil}} }, `nil tensor`},
		{"attribute with a bad type", func(g *Graph) { g.Nodes[0].Attrs[0] = Attr{Name: "a", Kind: AttrType, Types: []Type{{Kind: 50}}} }, `type kind is 50`},
		{"attribute with two types", func(g *Graph) { g.Nodes[0].Attrs[0] = Attr{Name: "a", Kind: AttrType, Types: make([]Type, 2)} }, `2 types`},
		{"graph output of no value", func(g *Graph) { g.Outputs[0] = NoValue }, `output 0: no value -1`},
		{"subgraph of another parent", func(g *Graph) { branch(g).Parent = nil }, `subgraph "t": has another parent`},
		{"subgraph of another model", func(g *Graph) { branch(g).Model = nil }, `has another model`},
		{"damage in a subgraph", func(g *Graph) { branch(g).Nodes[0].Op = "" }, `node 1 (If (node 1)): subgraph "t": node 0 ( (node 0)): no op`},
		{"captured from nowhere", func(g *Graph) { branch(g).Values[1].Outer = 99 }, `Outer 99 is no value of the parent`},
		{"captured before it is computed", func(g *Graph) { branch(g).Values[1].Outer = 4 }, `captured: value 4 ("y") is computed later, by node 1`},
		{"subgraph within itself", func(g *Graph) {
			sub := branch(g)
			sub.Parent = sub
			sub.Values = nil
			sub.Outputs = nil
			sub.Nodes = []Node{{Op: "If", Attrs: []Attr{{Name: "b", Kind: AttrGraph, Graph: sub}}}}
			g.Nodes[1].Attrs[1].Graph = &Graph{Parent: g, Model: g.Model, Nodes: []Node{{Op: "If", Attrs: []Attr{{Name: "b", Kind: AttrGraph, Graph: sub}}}}}
			sub.Parent = g.Nodes[1].Attrs[1].Graph
		}, `has another parent`},
		{"nameless function", func(g *Graph) { g.Model.Functions[0].Name = "" }, `function 0 (local.): no name`},
		{"function twice", func(g *Graph) { g.Model.Functions[1].Name = "f" }, `function 1 (local.f): defined twice`},
		{"function without body", func(g *Graph) { g.Model.Functions[0].Body = nil }, `no body`},
		{"function with a parent", func(g *Graph) { g.Model.Functions[0].Body.Parent = g }, `body has a parent`},
		{"function of another model", func(g *Graph) { g.Model.Functions[0].Body.Model = nil }, `body has another model`},
		{"damage in a function", func(g *Graph) { g.Model.Functions[0].Body.Nodes[0].Inputs[0] = 1 }, `function 0 (local.f): node 0 (Relu (node 0)): input 0: value 1 ("q") is computed later`},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := parse(t, wholesome)
			c.damage(g)
			if err := Check(g); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
	if err := Check(nil); err == nil {
		t.Error("no error for nil")
	}
}

// branch returns the then branch of the If in wholesome.
func branch(g *Graph) *Graph { return g.Nodes[1].Attr("then_branch").Graph }

// TestCheckAcceptsPieces checks a subgraph and a function's body by
// themselves, and a graph without a model.
func TestCheckAcceptsPieces(t *testing.T) {
	g := parse(t, wholesome)
	for _, piece := range []*Graph{g, branch(g), g.Model.Functions[0].Body, {}} {
		if err := Check(piece); err != nil {
			t.Errorf("graph %q: %v", piece.Name, err)
		}
	}
}
