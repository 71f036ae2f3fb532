package graph

import (
	"fmt"
	"strconv"
	"strings"
)

// A Draft is a graph whose nodes still name their values: what a reader finds
// in a file or a text. Resolve turns it into a Graph.
type Draft struct {
	Name         string
	Inputs       []DraftValue
	Outputs      []DraftValue
	Decls        []DraftValue // declared types of other values; unknown names are ignored
	Initializers []*Constant  // named by Constant.Name
	InitMeta     [][]Prop     // of the initializers; shorter than Initializers if the rest have none
	Nodes        []*DraftNode
	Meta         []Prop
	Pos          string // position, a prefix for errors: "3:14: "

	free []string // names used and not defined here, each once; set by resolver.capture
}

// A DraftValue is a value's declaration.
type DraftValue struct {
	Name string
	Type Type
	Meta []Prop
	Pos  string // a prefix for errors, as of a Draft
}

// A DraftNode is a Node without ID, Inputs and Outputs. Arg.Value of its Args
// indexes In. Attributes may stand in any order; those of kind AttrGraph and
// AttrGraphs get their graphs from Subs.
type DraftNode struct {
	Node
	In, Out []string // "" is an omitted optional
	Subs    []DraftSub
	Pos     string // a prefix for errors, as of a Draft
}

// A DraftSub is the body of an attribute of kind AttrGraph, or the next one
// of kind AttrGraphs.
type DraftSub struct {
	Attr int // index in DraftNode.Attrs
	Body *Draft
}

// A DraftFunction is a Function with a Body to be resolved.
type DraftFunction struct {
	Function
	Draft *Draft
}

// Resolve builds the graph of d: it gives every name a value, puts nodes in
// execution order, and appends funcs to m.Functions. All graphs share m, which
// receives warnings of tolerated defects. Names of an enclosing graph are
// captured; a name that is nowhere defined, one defined twice and a cycle are
// errors that name the node. The drafts become part of the result and must not
// be used again. It takes O(n log n) for n names and nodes.
func Resolve(m *Model, d *Draft, funcs []DraftFunction) (*Graph, error) {
	r := &resolver{model: m}
	for i := range funcs {
		f := funcs[i].Function
		body, err := r.root(funcs[i].Draft)
		if err != nil {
			return nil, fmt.Errorf("%sfunction %s: %w", funcs[i].Draft.Pos, f.label(), err)
		}
		f.Body = body
		m.Functions = append(m.Functions, &f)
	}
	if err := checkCalls(m.Functions); err != nil {
		return nil, err
	}
	return r.root(d)
}

// label names a draft node as Node.Label does; index stands in for the ID.
func (n *DraftNode) label(index int) string {
	out := ""
	if len(n.Out) > 0 {
		out = n.Out[0]
	}
	return nodeLabel(&n.Node, out, index)
}

// DimOf returns the dim for a dimension's name in a file. "" and "?" are
// unknown, as is a negative number; "past + 1", "12*batch" and "floor(H/2)" are
// expressions; anything else is a symbol, even "x.3_dim_0", "a/b_dim_1" and
// "Batch Size", and so is a name that merely resembles an expression.
func DimOf(name string) Dim {
	if name == "" || name == "?" {
		return Dim{}
	}
	if !looksComputed(name) {
		return Sym(name)
	}
	d, err := ParseDim(name)
	if err != nil {
		return Sym(name)
	}
	if n, ok := d.Int(); ok && n < 0 {
		return Dim{}
	}
	return d
}

// looksComputed reports whether name is a number or has an operator in the
// notation of expressions: + and - and / occur in names, too.
func looksComputed(name string) bool {
	if _, err := strconv.ParseInt(name, 10, 64); err == nil {
		return true
	}
	return strings.ContainsAny(name, "*(+%") || strings.Contains(name, "//") ||
		strings.Contains(name, " - ") || strings.Contains(name, " / ")
}
