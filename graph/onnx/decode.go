package onnx

import (
	"math"
	"math/bits"
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
	depth   int               // nested graphs or types

	ins, outs stack[string]
	props     stack[graph.Prop]
	attrs     stack[graph.Attr]
	shapes    stack[graph.Dim]
}

// text returns the payload of f as a string, interned.
func (d *decoder) text(f field) (string, error) {
	if err := d.charge(f, costString); err != nil {
		return "", err
	}
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
	props := d.props.mark()
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
			err = within(err, "graph", single)
		case 8:
			err = within(d.opset(&m.Opsets, f), "opset_import", single)
		case 14:
			err = d.prop(f)
		case 20:
			out.training = true
		case 25:
			err = d.function(&out.functions, f)
		}
		return err
	})
	m.Meta = d.props.take(props)
	m.Producer = strings.TrimSpace(producer + " " + version)
	return out, err
}

// opset reads an OperatorSetIdProto.
func (d *decoder) opset(list *[]graph.Opset, f field) error {
	if err := d.open(f, costProp); err != nil {
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

// prop reads a StringStringEntryProto and pushes it, unless it is a stack
// trace.
func (d *decoder) prop(f field) error {
	if err := d.open(f, costProp); err != nil {
		return within(err, "metadata_props", single)
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
		d.props.push(p)
	}
	return within(err, "metadata_props", single)
}

// graph reads a GraphProto.
func (d *decoder) graph(f field) (*graph.Draft, error) {
	if err := d.open(f, costNode); err != nil {
		return nil, err
	}
	g := &graph.Draft{}
	props := d.props.mark()
	err := d.nest(f, func() error {
		return d.message(f.end, func(f field) error { return d.graphField(g, f) })
	})
	g.Meta = d.props.take(props)
	return g, err
}

func (d *decoder) graphField(g *graph.Draft, f field) (err error) {
	switch f.num {
	case 1:
		err = d.node(&g.Nodes, f)
	case 2:
		err = d.set(&g.Name, f)
	case 5, 15:
		err = d.initializer(g, f)
	case 11:
		err = d.valueInfo(&g.Inputs, f, "input")
	case 12:
		err = d.valueInfo(&g.Outputs, f, "output")
	case 13:
		err = d.valueInfo(&g.Decls, f, "value_info")
	case 16:
		err = d.prop(f)
	}
	return err
}

// initializer reads a dense (field 5) or sparse (field 15) initializer.
func (d *decoder) initializer(g *graph.Draft, f field) (err error) {
	var t *graph.Tensor
	var meta []graph.Prop
	n := len(g.Initializers)
	if f.num == 5 {
		t, meta, err = d.tensor(f)
	} else {
		t, meta, err = d.sparse(f)
	}
	if err == nil && t.Name == "" {
		err = d.fail(f.off, "initializer without a name")
	}
	if meta != nil {
		g.InitMeta = append(g.InitMeta, make([][]graph.Prop, n-len(g.InitMeta))...)
		g.InitMeta = append(g.InitMeta, meta)
	}
	g.Initializers = append(g.Initializers, t)
	return within(err, "initializer", n)
}

// valueInfo reads a ValueInfoProto, an entry of the field called part.
func (d *decoder) valueInfo(list *[]graph.DraftValue, f field, part string) error {
	if err := d.open(f, costValue); err != nil {
		return err
	}
	var v graph.DraftValue
	props := d.props.mark()
	err := d.message(f.end, func(f field) (err error) {
		switch f.num {
		case 1:
			err = d.set(&v.Name, f)
		case 2:
			v.Type, err = d.typ(f)
			err = within(err, "type", single)
		case 4:
			err = d.prop(f)
		}
		return err
	})
	v.Meta = d.props.take(props)
	*list = append(*list, v)
	return within(err, part, len(*list)-1)
}

// node reads a NodeProto.
func (d *decoder) node(list *[]*graph.DraftNode, f field) error {
	if err := d.open(f, costNode); err != nil {
		return err
	}
	at := f.off
	n := &graph.DraftNode{}
	*list = append(*list, n)
	ins, outs, props, attrs := d.ins.mark(), d.outs.mark(), d.props.mark(), d.attrs.mark()
	err := d.message(f.end, func(f field) (err error) {
		switch f.num {
		case 1:
			err = d.add(&d.ins.items, f)
		case 2:
			err = d.add(&d.outs.items, f)
		case 3:
			err = d.set(&n.Name, f)
		case 4:
			err = d.set(&n.Op, f)
		case 5:
			err = d.attribute(n, f, len(d.attrs.items)-attrs)
		case 7:
			err = d.set(&n.Domain, f)
		case 8:
			err = d.set(&n.Overload, f)
		case 9:
			err = d.prop(f)
		}
		return err
	})
	n.In, n.Out = d.ins.take(ins), d.outs.take(outs)
	n.Meta, n.Attrs = d.props.take(props), d.attrs.take(attrs)
	n.Domain = domain(n.Domain)
	if err == nil && n.Op == "" {
		err = d.fail(at, "node without an op_type")
	}
	return within(err, "node", len(*list)-1)
}

// attribute reads an AttributeProto and pushes it; it is the index-th of n.
func (d *decoder) attribute(n *graph.DraftNode, f field, index int) error {
	if err := d.open(f, costAttr); err != nil {
		return err
	}
	at := f.off
	a := graph.Attr{}
	var seen uint // the kinds, as bits, whose fields are set
	var bodies []*graph.Draft
	err := d.message(f.end, func(f field) (err error) {
		switch f.num {
		case 1:
			return d.set(&a.Name, f)
		case 21:
			return d.set(&a.Ref, f)
		case 20:
			a.Kind, err = d.attrKind(f)
			return err
		}
		k, err := d.attrValue(&a, &bodies, f)
		seen |= 1 << k &^ 1
		return err
	})
	if err == nil && a.Kind == graph.AttrNone && seen != 0 { // IR version 1 had no type field
		a.Kind = graph.AttrKind(bits.TrailingZeros(seen))
	}
	if seen &^= 1 << a.Kind; err == nil && (seen != 0 || a.Ref != "") {
		bodies = d.prune(&a, bodies, seen)
	}
	for _, b := range bodies {
		n.Subs = append(n.Subs, graph.DraftSub{Attr: index, Body: b})
	}
	if err == nil {
		err = d.checkAttr(&a, len(bodies), at)
	}
	d.attrs.push(a)
	return within(err, "attribute", index)
}

// prune drops the fields of a that its type, or a reference to a function's
// attribute, says are not meant.
func (d *decoder) prune(a *graph.Attr, bodies []*graph.Draft, foreign uint) []*graph.Draft {
	if foreign != 0 {
		d.warn("attribute-type", "attribute %q holds more than its type says; the type counts", a.Name)
	}
	all := *a
	*a = graph.Attr{Name: all.Name, Kind: all.Kind, Ref: all.Ref}
	if a.Ref != "" {
		return nil
	}
	switch a.Kind {
	case graph.AttrFloat:
		a.F = all.F
	case graph.AttrInt:
		a.I = all.I
	case graph.AttrString:
		a.S = all.S
	case graph.AttrFloats:
		a.Floats = all.Floats
	case graph.AttrInts:
		a.Ints = all.Ints
	case graph.AttrStrings:
		a.Strings = all.Strings
	case graph.AttrTensor, graph.AttrSparseTensor:
		a.Tensor = all.Tensor
	case graph.AttrTensors, graph.AttrSparseTensors:
		a.Tensors = all.Tensors
	case graph.AttrType, graph.AttrTypes:
		a.Types = all.Types
	case graph.AttrGraph, graph.AttrGraphs:
		return bodies
	}
	return nil
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
	if a.Name == "" {
		return d.fail(at, "attribute without a name")
	}
	if a.Ref != "" {
		return nil
	}
	dense := a.Tensor != nil && a.Tensor.Sparse == nil
	missing := a.Kind == graph.AttrTensor && !dense ||
		a.Kind == graph.AttrSparseTensor && (a.Tensor == nil || dense) ||
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
		err = within(err, "t", single)
	case 6:
		kind, err = graph.AttrGraph, d.body(bodies, f, "g")
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
		kind, err = graph.AttrGraphs, d.body(bodies, f, "graphs")
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
		err = within(err, "sparse_tensor", single)
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
	a.Tensors = append(a.Tensors, t)
	return kind, within(err, "tensors", len(a.Tensors)-1)
}

// body reads a subgraph, an entry of the field called part.
func (d *decoder) body(bodies *[]*graph.Draft, f field, part string) error {
	g, err := d.graph(f)
	*bodies = append(*bodies, g)
	return within(err, part, len(*bodies)-1)
}

// function reads a FunctionProto.
func (d *decoder) function(list *[]graph.DraftFunction, f field) error {
	if err := d.open(f, costNode); err != nil {
		return err
	}
	at := f.off
	fn := graph.DraftFunction{Draft: &graph.Draft{}}
	var holder graph.DraftNode // of attributes with defaults
	props, attrs := d.props.mark(), d.attrs.mark()
	err := d.message(f.end, func(f field) error {
		if f.num == 11 {
			return d.attribute(&holder, f, len(d.attrs.items)-attrs)
		}
		return d.functionField(&fn, f)
	})
	fn.Draft.Meta = d.props.take(props)
	fn.Attrs = append(fn.Attrs, d.attrs.take(attrs)...)
	fn.Domain, fn.Draft.Name = domain(fn.Domain), fn.Name
	if err == nil && fn.Name == "" {
		err = d.fail(at, "function without a name")
	}
	if err == nil && len(holder.Subs) > 0 {
		err = d.fail(at, "function %q has a graph as an attribute's default", fn.Name)
	}
	*list = append(*list, fn)
	return within(err, "functions", len(*list)-1)
}

func (d *decoder) functionField(fn *graph.DraftFunction, f field) (err error) {
	g := fn.Draft
	switch f.num {
	case 1:
		err = d.set(&fn.Name, f)
	case 4:
		err = d.formal(&g.Inputs, f)
	case 5:
		err = d.formal(&g.Outputs, f)
	case 6:
		var a graph.Attr
		err = d.set(&a.Name, f)
		fn.Attrs = append(fn.Attrs, a)
	case 7:
		err = d.node(&g.Nodes, f)
	case 9:
		err = within(d.opset(&fn.Opsets, f), "opset_import", single)
	case 10:
		err = d.set(&fn.Domain, f)
	case 12:
		err = d.valueInfo(&g.Decls, f, "value_info")
	case 13:
		err = d.set(&fn.Overload, f)
	case 14:
		err = d.prop(f)
	}
	return err
}

// formal reads the name of a function's input or output.
func (d *decoder) formal(list *[]graph.DraftValue, f field) error {
	name, err := d.text(f)
	*list = append(*list, graph.DraftValue{Name: name})
	return err
}

// typ reads a TypeProto.
func (d *decoder) typ(f field) (graph.Type, error) {
	var t graph.Type
	if err := d.open(f, costType); err != nil {
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
	if err := d.open(f, costType); err != nil {
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
	if err := d.open(f, costType); err != nil {
		return nil, err
	}
	dims := d.shapes.mark()
	err := d.message(f.end, func(f field) error {
		if f.num != 1 {
			return nil
		}
		dim, err := d.dim(f)
		d.shapes.push(dim)
		return err
	})
	if shape := d.shapes.take(dims); shape != nil {
		return shape, err
	}
	return graph.Shape{}, err
}

// dim reads a TensorShapeProto.Dimension.
func (d *decoder) dim(f field) (graph.Dim, error) {
	var dim graph.Dim
	if err := d.open(f, costDim); err != nil {
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
