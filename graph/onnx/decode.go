package onnx

import (
	"math"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/memplan/memplan/graph"
)

// stackTrace is a metadata key that is not kept: its values are long and say
// nothing about the graph.
const stackTrace = "pkg.torch.onnx.stack_trace"

// A decoder turns the messages of one file into drafts. Field numbers are
// those of onnx.proto, IR 14.
type decoder struct {
	*reader
	model   *graph.Model
	strings map[string]string // interned
	elems   []uint64          // scratch of one tensor's typed elements
	raw     []byte            // scratch of one tensor's raw data
	ints    []int64           // arena of dims
	depth   int               // nested graphs or types
}

// text returns the payload of f as a string, interned.
func (d *decoder) text(f field) (string, error) {
	b, err := d.bytes(f)
	if err != nil || len(b) == 0 {
		return "", err
	}
	if s, ok := d.strings[string(b)]; ok {
		return s, nil
	}
	s := string(b)
	d.strings[s] = s
	return s, nil
}

// set stores the text of f in *s.
func (d *decoder) set(s *string, f field) (err error) {
	*s, err = d.text(f)
	return err
}

// add appends the text of f to *list.
func (d *decoder) add(list *[]string, f field) error {
	s, err := d.text(f)
	*list = append(*list, s)
	return err
}

// nest runs visit one graph or type deeper.
func (d *decoder) nest(f field, visit func() error) error {
	if d.depth++; d.depth > maxDepth {
		return d.fail(f.off, "graphs or types nested more than %d deep", maxDepth)
	}
	defer func() { d.depth-- }()
	return visit()
}

// file is what ModelProto holds.
type file struct {
	graph     *graph.Draft
	functions []graph.DraftFunction
	training  bool
}

// decode reads a ModelProto that fills the file.
func (d *decoder) decode() (*file, error) {
	m, out := d.model, &file{}
	var producer, version string
	err := d.message(d.size, func(f field) (err error) {
		switch f.num {
		case 1:
			m.IRVersion, err = d.number(f)
		case 2:
			err = d.set(&producer, f)
		case 3:
			err = d.set(&version, f)
		case 7:
			out.graph, err = d.graph(f)
			err = within(err, "graph")
		case 8:
			err = within(d.opset(&m.Opsets, f), "opset_import[%d]", len(m.Opsets))
		case 14:
			err = within(d.prop(&m.Meta, f), "metadata_props[%d]", len(m.Meta))
		case 20:
			out.training = true
		case 25:
			var fn graph.DraftFunction
			fn, err = d.function(f)
			err = within(err, "functions[%d]", len(out.functions))
			out.functions = append(out.functions, fn)
		}
		return err
	})
	m.Producer = strings.TrimSpace(producer + " " + version)
	return out, err
}

// opset reads an OperatorSetIdProto.
func (d *decoder) opset(list *[]graph.Opset, f field) error {
	if err := d.open(f); err != nil {
		return err
	}
	var o graph.Opset
	err := d.message(f.end, func(f field) (err error) {
		switch f.num {
		case 1:
			err = d.set(&o.Domain, f)
		case 2:
			o.Version, err = d.number(f)
		}
		return err
	})
	o.Domain = domain(o.Domain)
	*list = append(*list, o)
	return err
}

// domain returns the one spelling of the default domain.
func domain(s string) string {
	if s == "ai.onnx" {
		return ""
	}
	return s
}

// prop reads a StringStringEntryProto and appends it, unless it is a stack
// trace.
func (d *decoder) prop(list *[]graph.Prop, f field) error {
	if err := d.open(f); err != nil {
		return err
	}
	var p graph.Prop
	drop := false
	err := d.message(f.end, func(f field) (err error) {
		switch f.num {
		case 1:
			err = d.set(&p.Key, f)
			drop = p.Key == stackTrace
		case 2:
			if !drop {
				err = d.set(&p.Value, f)
			}
		}
		return err
	})
	if !drop {
		*list = append(*list, p)
	}
	return err
}

// graph reads a GraphProto.
func (d *decoder) graph(f field) (*graph.Draft, error) {
	if err := d.open(f); err != nil {
		return nil, err
	}
	g := &graph.Draft{}
	err := d.nest(f, func() error {
		return d.message(f.end, func(f field) error { return d.graphField(g, f) })
	})
	return g, err
}

func (d *decoder) graphField(g *graph.Draft, f field) (err error) {
	switch f.num {
	case 1:
		err = within(d.node(&g.Nodes, f), "node[%d]", len(g.Nodes))
	case 2:
		err = d.set(&g.Name, f)
	case 5, 15:
		var t *graph.Tensor
		var meta []graph.Prop
		if f.num == 5 {
			t, meta, err = d.tensor(f)
		} else {
			t, meta, err = d.sparse(f)
		}
		if err == nil && t.Name == "" {
			err = d.fail(f.off, "initializer without a name")
		}
		err = within(err, "initializer[%d]", len(g.Initializers))
		if meta != nil {
			g.InitMeta = append(g.InitMeta, make([][]graph.Prop, len(g.Initializers)-len(g.InitMeta))...)
			g.InitMeta = append(g.InitMeta, meta)
		}
		g.Initializers = append(g.Initializers, t)
	case 11:
		err = within(d.valueInfo(&g.Inputs, f), "input[%d]", len(g.Inputs))
	case 12:
		err = within(d.valueInfo(&g.Outputs, f), "output[%d]", len(g.Outputs))
	case 13:
		err = within(d.valueInfo(&g.Decls, f), "value_info[%d]", len(g.Decls))
	case 16:
		err = within(d.prop(&g.Meta, f), "metadata_props[%d]", len(g.Meta))
	}
	return err
}

// valueInfo reads a ValueInfoProto.
func (d *decoder) valueInfo(list *[]graph.DraftValue, f field) error {
	if err := d.open(f); err != nil {
		return err
	}
	var v graph.DraftValue
	err := d.message(f.end, func(f field) (err error) {
		switch f.num {
		case 1:
			err = d.set(&v.Name, f)
		case 2:
			v.Type, err = d.typ(f)
			err = within(err, "type")
		case 4:
			err = within(d.prop(&v.Meta, f), "metadata_props[%d]", len(v.Meta))
		}
		return err
	})
	*list = append(*list, v)
	return err
}

// node reads a NodeProto.
func (d *decoder) node(list *[]graph.DraftNode, f field) error {
	if err := d.open(f); err != nil {
		return err
	}
	at := f.off
	var n graph.DraftNode
	err := d.message(f.end, func(f field) (err error) {
		switch f.num {
		case 1:
			err = d.add(&n.In, f)
		case 2:
			err = d.add(&n.Out, f)
		case 3:
			err = d.set(&n.Name, f)
		case 4:
			err = d.set(&n.Op, f)
		case 5:
			err = within(d.attribute(&n, f), "attribute[%d]", len(n.Attrs))
		case 7:
			err = d.set(&n.Domain, f)
		case 8:
			err = d.set(&n.Overload, f)
		case 9:
			err = within(d.prop(&n.Meta, f), "metadata_props[%d]", len(n.Meta))
		}
		return err
	})
	if err == nil && n.Op == "" {
		err = d.fail(at, "node without an op_type")
	}
	n.Domain = domain(n.Domain)
	*list = append(*list, n)
	return err
}

// attribute reads an AttributeProto of n.
func (d *decoder) attribute(n *graph.DraftNode, f field) error {
	if err := d.open(f); err != nil {
		return err
	}
	at := f.off
	a := graph.Attr{}
	var kind, seen graph.AttrKind // as declared; of the first field that is set
	var bodies []*graph.Draft
	err := d.message(f.end, func(f field) (err error) {
		switch f.num {
		case 1:
			return d.set(&a.Name, f)
		case 21:
			return d.set(&a.Ref, f)
		case 20:
			kind, err = d.attrKind(f)
			return err
		}
		k, err := d.attrValue(&a, &bodies, f)
		if seen == graph.AttrNone {
			seen = k
		}
		return err
	})
	if err != nil {
		return err
	}
	if a.Name == "" {
		return d.fail(at, "attribute without a name")
	}
	a.Kind = kind
	if kind == graph.AttrNone { // IR version 1 had no type field
		a.Kind = seen
	}
	for _, b := range bodies {
		n.Subs = append(n.Subs, graph.DraftSub{Attr: len(n.Attrs), Body: b})
	}
	n.Attrs = append(n.Attrs, a)
	return d.checkAttr(&a, len(bodies), at)
}

// attrKind reads AttributeProto.type, whose numbers are those of AttrKind.
func (d *decoder) attrKind(f field) (graph.AttrKind, error) {
	n, err := d.number(f)
	if err == nil && (n < 0 || n > int64(graph.AttrTypes)) {
		err = d.fail(f.off, "unknown attribute type %d", n)
	}
	return graph.AttrKind(n), err
}

// checkAttr rejects an attribute of a message kind that holds no message.
func (d *decoder) checkAttr(a *graph.Attr, bodies int, at int64) error {
	if a.Ref != "" {
		return nil
	}
	missing := a.Kind == graph.AttrTensor && a.Tensor == nil ||
		a.Kind == graph.AttrSparseTensor && a.Tensor == nil ||
		a.Kind == graph.AttrGraph && bodies != 1 ||
		a.Kind != graph.AttrGraph && a.Kind != graph.AttrGraphs && bodies > 0 ||
		a.Kind == graph.AttrType && len(a.Types) != 1
	if missing {
		return d.fail(at, "attribute %q does not hold what its type says", a.Name)
	}
	return nil
}

// attrValue reads one value field of an attribute and returns the kind that
// the field belongs to, AttrNone for other fields.
func (d *decoder) attrValue(a *graph.Attr, bodies *[]*graph.Draft, f field) (kind graph.AttrKind, err error) {
	switch f.num {
	case 2:
		kind, err = graph.AttrFloat, d.expect(f, protowire.Fixed32Type)
		a.F = math.Float32frombits(uint32(f.bits))
	case 3:
		kind = graph.AttrInt
		a.I, err = d.number(f)
	case 4:
		kind, err = graph.AttrString, d.set(&a.S, f)
	case 5:
		kind = graph.AttrTensor
		a.Tensor, _, err = d.tensor(f)
		err = within(err, "t")
	case 6:
		kind, err = graph.AttrGraph, d.body(bodies, f)
		err = within(err, "g")
	case 7:
		kind = graph.AttrFloats
		err = d.numbers(f, protowire.Fixed32Type, func(v uint64) bool {
			a.Floats = append(a.Floats, math.Float32frombits(uint32(v)))
			return true
		})
	case 8:
		kind = graph.AttrInts
		err = d.numbers(f, protowire.VarintType, func(v uint64) bool {
			a.Ints = append(a.Ints, int64(v))
			return true
		})
	case 9:
		kind, err = graph.AttrStrings, d.add(&a.Strings, f)
	case 10, 23:
		kind, err = d.tensors(a, f)
	case 11:
		kind, err = graph.AttrGraphs, d.body(bodies, f)
		err = within(err, "graphs[%d]", len(*bodies))
	case 14, 15:
		var t graph.Type
		t, err = d.typ(f)
		a.Types = append(a.Types, t)
		kind = graph.AttrType
		if f.num == 15 {
			kind = graph.AttrTypes
		}
	case 22:
		kind = graph.AttrSparseTensor
		a.Tensor, _, err = d.sparse(f)
		err = within(err, "sparse_tensor")
	}
	return kind, err
}

func (d *decoder) tensors(a *graph.Attr, f field) (kind graph.AttrKind, err error) {
	var t *graph.Tensor
	if f.num == 10 {
		kind = graph.AttrTensors
		t, _, err = d.tensor(f)
	} else {
		kind = graph.AttrSparseTensors
		t, _, err = d.sparse(f)
	}
	err = within(err, "tensors[%d]", len(a.Tensors))
	a.Tensors = append(a.Tensors, t)
	return kind, err
}

func (d *decoder) body(bodies *[]*graph.Draft, f field) error {
	g, err := d.graph(f)
	*bodies = append(*bodies, g)
	return err
}

// function reads a FunctionProto.
func (d *decoder) function(f field) (graph.DraftFunction, error) {
	fn := graph.DraftFunction{Draft: &graph.Draft{}}
	g := fn.Draft
	if err := d.open(f); err != nil {
		return fn, err
	}
	at := f.off
	var holder graph.DraftNode // of attributes with defaults
	var names []string
	err := d.message(f.end, func(f field) (err error) {
		switch f.num {
		case 1:
			err = d.set(&fn.Name, f)
		case 4, 5:
			var name string
			name, err = d.text(f)
			list := &g.Inputs
			if f.num == 5 {
				list = &g.Outputs
			}
			*list = append(*list, graph.DraftValue{Name: name})
		case 6:
			err = d.add(&names, f)
		case 7:
			err = within(d.node(&g.Nodes, f), "node[%d]", len(g.Nodes))
		case 9:
			err = within(d.opset(&fn.Opsets, f), "opset_import[%d]", len(fn.Opsets))
		case 10:
			err = d.set(&fn.Domain, f)
		case 11:
			err = within(d.attribute(&holder, f), "attribute_proto[%d]", len(holder.Attrs))
		case 12:
			err = within(d.valueInfo(&g.Decls, f), "value_info[%d]", len(g.Decls))
		case 13:
			err = d.set(&fn.Overload, f)
		case 14:
			err = within(d.prop(&g.Meta, f), "metadata_props[%d]", len(g.Meta))
		}
		return err
	})
	if err == nil && fn.Name == "" {
		err = d.fail(at, "function without a name")
	}
	if err == nil && len(holder.Subs) > 0 {
		err = d.fail(at, "function %q has a graph as an attribute's default", fn.Name)
	}
	for _, name := range names {
		fn.Attrs = append(fn.Attrs, graph.Attr{Name: name})
	}
	fn.Attrs = append(fn.Attrs, holder.Attrs...)
	fn.Domain, g.Name = domain(fn.Domain), fn.Name
	return fn, err
}

// typ reads a TypeProto.
func (d *decoder) typ(f field) (graph.Type, error) {
	var t graph.Type
	if err := d.open(f); err != nil {
		return t, err
	}
	err := d.nest(f, func() error {
		return d.message(f.end, func(f field) error { return d.typeField(&t, f) })
	})
	return t, err
}

// typeKind maps TypeProto's field numbers; NoType stands for other fields.
func typeKind(num protowire.Number) graph.TypeKind {
	switch num {
	case 1:
		return graph.TensorType
	case 4:
		return graph.SequenceType
	case 5:
		return graph.MapType
	case 7:
		return graph.OpaqueType
	case 8:
		return graph.SparseType
	case 9:
		return graph.OptionalType
	}
	return graph.NoType
}

// typeField reads one alternative of a TypeProto: all of them hold an element
// type in field 1 and a shape or an inner type in field 2, except sequence
// and optional, whose field 1 is the inner type, and opaque.
func (d *decoder) typeField(t *graph.Type, f field) error {
	kind := typeKind(f.num)
	if kind == graph.NoType {
		return nil
	}
	if err := d.open(f); err != nil {
		return err
	}
	*t = graph.Type{Kind: kind}
	return d.message(f.end, func(f field) (err error) {
		switch {
		case kind == graph.OpaqueType:
		case f.num == 1 && (kind == graph.SequenceType || kind == graph.OptionalType),
			f.num == 2 && kind == graph.MapType:
			t.Of = new(graph.Type)
			*t.Of, err = d.typ(f)
		case f.num == 1:
			t.Elem, err = d.dtype(f)
		case f.num == 2:
			t.Shape, err = d.shape(f)
		}
		return err
	})
}

// dtype reads an element type.
func (d *decoder) dtype(f field) (graph.DType, error) {
	n, err := d.number(f)
	if t := graph.DType(n); err == nil && n != 0 && (int64(t) != n || !t.Valid()) {
		err = d.fail(f.off, "unknown element type %d", n)
	}
	return graph.DType(n), err
}

// shape reads a TensorShapeProto. Negative dims are unknown ones.
func (d *decoder) shape(f field) (graph.Shape, error) {
	shape := graph.Shape{}
	if err := d.open(f); err != nil {
		return shape, err
	}
	err := d.message(f.end, func(f field) error {
		if f.num != 1 {
			return nil
		}
		dim, err := d.dim(f)
		shape = append(shape, dim)
		return err
	})
	return shape, err
}

// dim reads a TensorShapeProto.Dimension.
func (d *decoder) dim(f field) (graph.Dim, error) {
	var dim graph.Dim
	if err := d.open(f); err != nil {
		return dim, err
	}
	err := d.message(f.end, func(f field) error {
		switch f.num {
		case 1:
			n, err := d.number(f)
			dim = graph.Dim{}
			if n >= 0 {
				dim = graph.Int(n)
			}
			return err
		case 2:
			s, err := d.text(f)
			dim = graph.DimOf(s)
			return err
		}
		return nil
	})
	return dim, err
}
