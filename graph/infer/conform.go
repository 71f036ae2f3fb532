package infer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
)

// Codes of the warnings of Conform.
const (
	unknownAttribute = "unknown-attribute"
	missingAttribute = "missing-attribute"
	attributeType    = "attribute-type"
	attributeValue   = "attribute-value"
	inputCount       = "input-count"
	outputCount      = "output-count"
	missingInput     = "missing-input"
	missingOutput    = "missing-output"
	elementType      = "element-type"
	typesDiffer      = "types-differ"
	operatorVersion  = "operator-version"
)

// InvalidCodes are the codes of warnings that a file breaks ONNX's rules: those
// of Conform, and of what the reader corrects.
var InvalidCodes = []string{
	unknownAttribute, missingAttribute, attributeType, attributeValue, inputCount, outputCount, missingInput, missingOutput, elementType, typesDiffer, operatorVersion,
	"duplicate-attribute", "duplicate-opset", "no-ir-version", "no-opset", "unsorted",
}

// Conform compares the nodes of a graph, its subgraphs and the model's
// functions with ONNX's schemas of their operators: attributes, numbers of
// inputs and outputs, and types as far as Infer has found them. It returns a
// warning for everything that breaks a rule, in node order. It skips operators
// of domains other than ONNX's own, of versions newer than the schemas, and
// calls of the model's functions. It takes time linear in the number of nodes,
// their operands and attributes.
//
// It takes time linear in the number of nodes, their operands and attributes.
func Conform(g *graph.Graph) []graph.Warning {
	c := &conformance{catalog: schemas(), known: map[opVersion]*schema{}, functions: map[funcKey]bool{}}
	for _, f := range g.Model.Functions {
		c.functions[funcKey{f.Domain, f.Name, f.Overload}] = true
	}
	c.graph(g, g.Model.Opsets)
	for _, f := range g.Model.Functions {
		c.graph(f.Body, f.Opsets)
	}
	return c.warnings
}

// An opVersion is an operator in a version of its domain.
type opVersion struct {
	domain, name string
	version      int64
}

type conformance struct {
	catalog   *catalog
	known     map[opVersion]*schema
	functions map[funcKey]bool
	warnings  []graph.Warning

	g *graph.Graph // being compared
	n *graph.Node
	s *schema
}

func (c *conformance) warn(code, format string, args ...any) {
	c.warnings = append(c.warnings, graph.Warning{Code: code, Node: c.n.Label(), Message: fmt.Sprintf(format, args...)})
}

func (c *conformance) graph(g *graph.Graph, opsets []graph.Opset) {
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if c.g, c.n = g, n; c.lookup(opsets) {
			c.attributes()
			c.operands()
			c.types()
		}
		for _, sub := range n.Subgraphs() {
			c.graph(sub, opsets)
		}
	}
}

// lookup finds the schema of the node's operator, if it has one.
func (c *conformance) lookup(opsets []graph.Opset) bool {
	n := c.n
	if len(c.functions) > 0 && c.functions[funcKey{n.Domain, n.Op, n.Overload}] {
		return false
	}
	domain := n.Domain
	if domain == "ai.onnx" {
		domain = ""
	}
	key := opVersion{domain, n.Op, max(1, (&graph.Model{Opsets: opsets}).Opset(domain))}
	if key.version > c.catalog.newest[domain] { // the rules may have changed since then
		return false
	}
	s, ok := c.known[key]
	if !ok {
		s, _ = c.catalog.find(key.domain, key.name, key.version)
		c.known[key] = s
	}
	if c.s = s; s == nil || s.withdrawn {
		c.version(key)
		return false
	}
	return true
}

// version warns of an operator of ONNX that the imported version does not
// have.
func (c *conformance) version(key opVersion) {
	if c.s != nil {
		c.warn(operatorVersion, "%s was withdrawn with version %d of its operator set; the file imports %d", opName(c.n), c.s.since, key.version)
		return
	}
	if _, first := c.catalog.find(key.domain, key.name, key.version); first > 0 {
		c.warn(operatorVersion, "%s came with version %d of its operator set; the file imports %d", opName(c.n), first, key.version)
	}
}

// attributes compares names, kinds and values of the node's attributes.
func (c *conformance) attributes() {
	for i := range c.n.Attrs {
		a := &c.n.Attrs[i]
		want := c.s.attr(a.Name)
		switch {
		case want == nil && strings.HasPrefix(a.Name, "__"): // private to a tool
		case want == nil:
			c.warn(unknownAttribute, "%s has no attribute %q in version %d", opName(c.n), a.Name, c.s.since)
		case a.Ref != "": // a call of the function gives it
		case a.Kind != want.kind:
			c.warn(attributeType, "attribute %q is %s, not %s", a.Name, attrKinds[a.Kind], attrKinds[want.kind])
		case a.Kind == graph.AttrInt && holdsType(c.n.Op, a.Name) && !validType(a.I, want.required):
			c.warn(attributeValue, "attribute %q is %d, which is no element type", a.Name, a.I)
		}
	}
	for _, want := range c.s.attrs {
		if want.required && c.n.Attr(want.name) == nil {
			c.warn(missingAttribute, "%s needs an attribute %q", opName(c.n), want.name)
		}
	}
}

// attrKinds name kinds of attributes in messages.
var attrKinds = [...]string{
	graph.AttrNone: "empty", graph.AttrFloat: "a float", graph.AttrInt: "an integer", graph.AttrString: "a string", graph.AttrTensor: "a tensor", graph.AttrGraph: "a graph",
	graph.AttrFloats: "a list of floats", graph.AttrInts: "a list of integers", graph.AttrStrings: "a list of strings", graph.AttrTensors: "a list of tensors", graph.AttrGraphs: "a list of graphs",
	graph.AttrSparseTensor: "a sparse tensor", graph.AttrSparseTensors: "a list of sparse tensors", graph.AttrType: "a type", graph.AttrTypes: "a list of types",
}

// holdsType reports whether an integer attribute of an operator is an element
// type.
func holdsType(op, name string) bool {
	return name == "to" && (op == "Cast" || op == "BitCast") || slices.Contains([]string{"dtype", "output_dtype", "output_datatype", "stash_type", "softmax_precision"}, name)
}

// validType reports whether a number is that of an element type; 0 means none,
// if the attribute is not required.
func validType(n int64, required bool) bool {
	return n > 0 && n <= maxDType || n == 0 && !required
}

// maxDType is the largest number of an element type in the newest ONNX,
// TensorProto.FLOAT6E3M2; memplan knows those that graph.DType lists.
const maxDType = 28

// operands compares the numbers of inputs and outputs, and finds required ones
// that are omitted.
func (c *conformance) operands() {
	c.list("input", inputCount, missingInput, c.n.Inputs, c.s.in)
	c.list("output", outputCount, missingOutput, c.n.Outputs, c.s.out)
}

func (c *conformance) list(what, count, missing string, ids []graph.ValueID, formal []parameter) {
	least, most := arity(formal)
	switch n := len(ids); {
	case n < least && formal[n].optional: // optional operands before a required one
		c.warn(count, "%s has %d %ss and needs %d", opName(c.n), n, what, least)
	case n < least:
		c.warn(missing, "%s needs %s %d (%s), which is missing", opName(c.n), what, n, formal[min(n, len(formal)-1)].name)
	case most >= 0 && n > most:
		c.warn(count, "%s has %d %ss and takes %d at most in version %d", opName(c.n), n, what, most, c.s.since)
	}
	for i, id := range ids {
		if p := at(formal, i); id == graph.NoValue && p != nil && !p.optional && !p.variadic {
			c.warn(missing, "%s needs %s %d (%s), which is left out", opName(c.n), what, i, p.name)
		}
	}
}

// types compares the known types of inputs and outputs with those that the
// operator accepts, and those of one type variable with each other.
func (c *conformance) types() {
	first := make([]int, c.s.variables) // the operand that determines a type variable, counted from 1
	for i, id := range c.n.Inputs {
		if p := at(c.s.in, i); p != nil && id != graph.NoValue {
			c.input(i, p, c.g.Values[id].Type, first)
		}
	}
	for i, id := range c.n.Outputs {
		p := at(c.s.out, i)
		if p == nil || id == graph.NoValue || p.variable >= 0 && first[p.variable] > 0 {
			continue
		}
		if in, known := p.allowed.has(c.g.Values[id].Type); known && !in {
			c.warn(elementType, "output %d (%s) is %s, which %s does not give in version %d", i, p.name, schemaName(c.g.Values[id].Type), opName(c.n), c.s.since)
		}
	}
}

// input compares the type of input i.
func (c *conformance) input(i int, p *parameter, t graph.Type, first []int) {
	in, known := p.allowed.has(t)
	if !known {
		return
	}
	if !in {
		c.warn(elementType, "input %d (%s) is %s, which %s does not take in version %d", i, p.name, schemaName(t), opName(c.n), c.s.since)
		return
	}
	if p.variable < 0 || p.mixed {
		return
	}
	at := first[p.variable]
	if at == 0 {
		first[p.variable] = i + 1
		return
	}
	if other := c.g.Values[c.n.Inputs[at-1]].Type; !sameKind(other, t) {
		c.warn(typesDiffer, "inputs %d and %d are %s and %s; %s wants one type", at-1, i, schemaName(other), schemaName(t), opName(c.n))
	}
}

// sameKind reports whether two types differ at most in dims.
func sameKind(a, b graph.Type) bool {
	if a.Kind == graph.TensorType && b.Kind == graph.TensorType {
		return a.Elem == b.Elem
	}
	return schemaName(a) == schemaName(b)
}
