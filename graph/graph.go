// Package graph holds memplan's one intermediate representation of a compute
// graph: values with dtype and (symbolic) shape, nodes in execution order,
// subgraphs and local functions, with an invariant checker and a text form.
//
// The same Graph goes through the stages of the sub-packages:
//
//	onnx   a file          -> Graph of ONNX ops, symbolic dims, declared types
//	infer  Graph + dims    -> the same Graph with every type inferred
//	lift   Graph           -> Graph of framework operators (ATen)
//	train  Graph + options -> program.Program: forward, loss, backward, update
//
// This package imports nothing of memplan's.
package graph

import "fmt"

// A ValueID indexes Graph.Values. NoValue stands for an omitted optional
// input or output.
type ValueID int32

// NoValue is the id of an omitted optional input or output (ONNX's "").
const NoValue ValueID = -1

// A Graph is a list of nodes in execution order over a dense table of values.
// A subgraph (the body of an If, Loop or Scan) is a Graph whose Parent is the
// graph it stands in; a value captured from an outer graph appears in the
// subgraph's table with Kind Captured and Outer set.
type Graph struct {
	Name    string
	Values  []Value
	Nodes   []Node
	Inputs  []ValueID // in declaration order; without initializers from IR 4 on
	Outputs []ValueID

	Parent *Graph `json:"-"`
	Model  *Model `json:"-"` // shared by the main graph, its subgraphs and functions
	Meta   []Prop // graph metadata_props
}

// A Model is what a file says outside its graphs.
type Model struct {
	Path      string // as given; "" for a model not read from a file
	SHA256    string // lower-case hex over the file's bytes
	IRVersion int64
	Producer  string // name and version, blank-separated
	Opsets    []Opset
	Functions []*Function
	Meta      []Prop
	Warnings  []Warning // what the reader tolerated, in file order
}

// An Opset is one import of an operator set.
type Opset struct {
	Domain  string // "" is ai.onnx
	Version int64
}

// Opset returns the imported version of domain ("" and "ai.onnx" are the
// same), or 0 when it is not imported.
func (m *Model) Opset(domain string) int64 {
	if domain == "ai.onnx" {
		domain = ""
	}
	for _, o := range m.Opsets {
		if o.Domain == domain || (domain == "" && o.Domain == "ai.onnx") {
			return o.Version
		}
	}
	return 0
}

// A Function is a model-local function: a call to Domain::Name::Overload runs
// Body with the call's inputs bound to Body.Inputs. Attributes of nodes in
// Body may refer to the call's attributes (Attr.Ref).
type Function struct {
	Domain, Name, Overload string
	Attrs                  []Attr // defaults; an Attr of kind AttrNone has none
	Opsets                 []Opset
	Body                   *Graph
}

// A Prop is one key and value of a metadata_props list.
type Prop struct{ Key, Value string }

// A Warning is something that memplan tolerated or guessed. Code is stable and
// machine-readable ("unsorted", "declared-shape-differs"); Node names the
// place, or is empty.
type Warning struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Node    string `json:"node"`
}

// A Kind is the origin of a value.
type Kind uint8

// The kinds of value.
const (
	Computed    Kind = iota // output of a node
	Input                   // graph input
	Initializer             // stored in the file, or beside it
	Captured                // defined in an outer graph (subgraphs only)
)

func (k Kind) String() string {
	return [...]string{"computed", "input", "initializer", "captured"}[k]
}

// A Value is a tensor (or sequence, optional or map) that nodes read and
// write. Static single assignment: it has one producer.
type Value struct {
	ID    ValueID
	Name  string
	Kind  Kind
	Type  Type
	Decl  Type      // as the file declares it; Type starts equal and is overwritten by inference
	Const *Constant // known elements or a reference to them; nil when computed at run time
	Outer ValueID   // Captured: the id in Parent.Values
	Def   int32     // Computed: index of the producing node in Nodes; else -1
	Meta  []Prop
}

// A TypeKind distinguishes tensors from the container types.
type TypeKind uint8

// The kinds of type.
const (
	NoType TypeKind = iota // nothing known
	TensorType
	SparseType
	SequenceType
	OptionalType
	MapType
	OpaqueType
)

// A Type is the type of a value. A tensor has Elem and Shape. A sequence or
// optional has its element's type in Of; Len is the length of a sequence,
// where known. A map has the key's type in Elem and the value's in Of.
type Type struct {
	Kind  TypeKind
	Elem  DType
	Shape Shape
	Of    *Type
	Len   Dim // sequence length; unknown unless inferred
}

// A Shape is a list of dims, outermost first. A nil Shape has unknown rank;
// a scalar is an empty, non-nil Shape.
type Shape []Dim

// Ranked reports whether the rank is known.
func (s Shape) Ranked() bool { return s != nil }

// Bytes returns the bytes of a tensor's elements, as an expression; unknown for
// types that are not tensors, and if type or shape is not known. A string
// counts as its header.
func (t Type) Bytes() Dim {
	bits := t.Elem.Bits()
	if t.Kind != TensorType || t.Shape == nil || bits == 0 {
		return Dim{}
	}
	whole := bits%8 == 0
	if whole {
		bits /= 8
	}
	n, rest := Int(bits), Int(1) // integers first: they are cheap to multiply
	for _, d := range t.Shape {
		if _, ok := d.Int(); ok {
			n = n.Mul(d)
		} else {
			rest = rest.Mul(d)
		}
	}
	if n = n.Mul(rest); !whole {
		n = n.CeilDiv(Int(8))
	}
	return n
}

// Static returns the dims as integers, or false unless every dim is one.
func (s Shape) Static() ([]int64, bool) {
	if s == nil {
		return nil, false
	}
	out := make([]int64, len(s))
	for i, d := range s {
		n, ok := d.Int()
		if !ok {
			return nil, false
		}
		out[i] = n
	}
	return out, true
}

// A Node is one operation. Nodes stand in execution order.
type Node struct {
	ID       int32 // index in Graph.Nodes
	Name     string
	Domain   string // "" is ai.onnx; "aten" after the lift
	Op       string // "Conv"; after the lift "conv2d.default"
	Overload string
	Inputs   []ValueID // may hold NoValue
	Outputs  []ValueID // may hold NoValue
	Attrs    []Attr    // sorted by name
	Args     []Arg     // after the lift: the call's positional arguments, then keyword ones (Arg.Name set)
	Module   string    // after the lift: qualified name of the owning module, "" the root
	Meta     []Prop
}

// MetaValue returns the metadata property key of the node, or "".
func (n *Node) MetaValue(key string) string {
	for _, p := range n.Meta {
		if p.Key == key {
			return p.Value
		}
	}
	return ""
}

// Attr returns the attribute called name, or nil.
func (n *Node) Attr(name string) *Attr {
	for i := range n.Attrs {
		if n.Attrs[i].Name == name {
			return &n.Attrs[i]
		}
	}
	return nil
}

// An AttrKind is the type of an attribute, numbered as ONNX's
// AttributeProto.AttributeType.
type AttrKind uint8

// The attribute kinds.
const (
	AttrNone AttrKind = iota
	AttrFloat
	AttrInt
	AttrString
	AttrTensor
	AttrGraph
	AttrFloats
	AttrInts
	AttrStrings
	AttrTensors
	AttrGraphs
	AttrSparseTensor
	AttrSparseTensors
	AttrType
	AttrTypes
)

// An Attr is one attribute of a node. Exactly the field of its Kind is set;
// Ref, when not empty, names the enclosing function's attribute that supplies
// the value instead.
type Attr struct {
	Name    string
	Kind    AttrKind
	Ref     string
	F       float32
	I       int64
	S       string
	Floats  []float32
	Ints    []int64
	Strings []string
	Tensor  *Constant
	Tensors []*Constant
	Graph   *Graph
	Graphs  []*Graph
	Types   []Type
}

// An ArgKind is the type of a lifted call's argument.
type ArgKind uint8

// The argument kinds.
const (
	ArgNone  ArgKind = iota // Python None
	ArgValue                // a value of the graph
	ArgInt
	ArgFloat
	ArgBool // in Int: 0 or 1
	ArgString
	ArgList
)

// An Arg is one argument of a lifted call. Name is set for keyword arguments.
type Arg struct {
	Name  string
	Kind  ArgKind
	Value ValueID
	Int   int64
	Float float64
	Str   string
	List  []Arg
}

// FindArg returns positional argument i, or the keyword argument called keyword,
// of args, whose names are called; nil if there is neither.
func FindArg[A any](args []A, called func(*A) string, i int, keyword string) *A {
	pos := 0
	for j := range args {
		a := &args[j]
		switch name := called(a); {
		case name == keyword && name != "", name == "" && pos == i:
			return a
		case name == "":
			pos++
		}
	}
	return nil
}

// A Constant is a constant tensor: an initializer, a Constant node's value, or
// what inference folded. Elements are held only for small tensors; large
// payloads stay in the file and are named by Ref.
type Constant struct {
	Name string
	Type DType
	Dims []int64
	Ref  *DataRef // where the bytes are; nil when held here or computed

	// At most one of these is set, row-major, len = product of Dims.
	Ints    []int64   // integer and bool types
	Floats  []float64 // floating-point types
	Strings []string

	// Sparse, when not nil, holds the indices of a sparse tensor whose values
	// are this tensor's elements; Dims is then the dense shape.
	Sparse *Constant
}

// A DataRef locates a tensor's raw bytes without reading them.
type DataRef struct {
	Location string // external file relative to the model; "" is the model file itself
	Offset   int64  // bytes
	Length   int64  // bytes; -1 when the file does not say
}

// Elems returns the number of elements, or false on overflow or a negative dim.
func (t *Constant) Elems() (int64, bool) { return Product(t.Dims) }

// Bytes returns the dense storage size, or false on overflow.
func (t *Constant) Bytes() (int64, bool) {
	n, ok := t.Elems()
	if !ok || n > (1<<62)/max(t.Type.Bits(), 1) {
		return 0, false
	}
	return t.Type.Bytes(n), true
}

// Known reports whether all elements are held in memory.
func (t *Constant) Known() bool {
	if t == nil || t.Sparse != nil {
		return false
	}
	n, ok := t.Elems()
	if !ok {
		return false
	}
	return n == 0 || t.Ints != nil || t.Floats != nil || t.Strings != nil
}

// Product multiplies non-negative dims; it returns false when one is negative
// or the product exceeds 2^62.
func Product(dims []int64) (int64, bool) {
	p := int64(1)
	for _, d := range dims {
		if d < 0 {
			return 0, false
		}
		if d != 0 && p > (1<<62)/d {
			return 0, false
		}
		p *= d
	}
	return p, true
}

// ValueType returns the type of a value that holds t: a dense tensor.
func (t *Constant) ValueType() Type {
	shape := make(Shape, len(t.Dims))
	for i, d := range t.Dims {
		shape[i] = Int(d)
	}
	return Type{Kind: TensorType, Elem: t.Type, Shape: shape}
}

// label names the function as calls do: domain.name:overload.
func (f *Function) label() string {
	s := f.Name
	if f.Domain != "" {
		s = f.Domain + "." + s
	}
	if f.Overload != "" {
		s += ":" + f.Overload
	}
	return s
}

// visitNodes calls visit for the nodes of g and of its subgraphs, until it
// returns an error.
func (g *Graph) visitNodes(visit func(n *Node) error) error {
	for i := range g.Nodes {
		if err := visit(&g.Nodes[i]); err != nil {
			return err
		}
		for _, sub := range g.Nodes[i].Subgraphs() {
			if err := sub.visitNodes(visit); err != nil {
				return err
			}
		}
	}
	return nil
}

// nodeLabel names a node in errors: by its op and its name, else its first
// output's, else its index.
func nodeLabel(n *Node, out string, index int) string {
	switch {
	case n.Name != "":
		return fmt.Sprintf("%s %q", n.Op, n.Name)
	case out != "":
		return fmt.Sprintf("%s -> %q", n.Op, out)
	}
	return fmt.Sprintf("%s (node %d)", n.Op, index)
}

// Label names the node in messages: Conv "conv1", or Conv (node 12) when it
// has no name.
func (n *Node) Label() string { return nodeLabel(n, "", int(n.ID)) }

// Subgraphs returns the graphs in n's attributes, in attribute order.
func (n *Node) Subgraphs() []*Graph {
	var out []*Graph
	for i := range n.Attrs {
		if g := n.Attrs[i].Graph; g != nil {
			out = append(out, g)
		}
		out = append(out, n.Attrs[i].Graphs...)
	}
	return out
}
