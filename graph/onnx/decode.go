package onnx

import (
	"strings"

	"github.com/memplan/memplan/graph"
)

// stackTrace is the metadata key of a node's Python source lines. Ones longer
// than maxTrace bytes, as generated code has, are dropped.
const (
	stackTrace = "pkg.torch.onnx.stack_trace"
	maxTrace   = 16 << 10
)

// A decoder turns the messages of one file into drafts. Field numbers are
// those of onnx.proto, IR 14.
type decoder struct {
	*reader
	model   *graph.Model
	strings map[string]string // interned
	elems   []uint64          // scratch of one tensor's typed elements
	raw     []byte            // scratch of one tensor's raw data
	depth   int               // nested graphs or types
	whole   int64             // most elements if the file is one tensor; 0: the file is a model

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

// opset reads an OperatorSetIdProto. The higher of two versions of a domain
// counts.
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
	for i := range *list {
		if old := &(*list)[i]; old.Domain == o.Domain {
			if old.Version != o.Version {
				d.warn("duplicate-opset", "domain %q is imported with versions %d and %d; the higher counts", o.Domain, old.Version, o.Version)
			}
			old.Version = max(old.Version, o.Version)
			return err
		}
	}
	if len(*list) >= maxOpsets {
		return d.fail(f.off, "imports of more than %d operator sets", maxOpsets)
	}
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

// prop reads a StringStringEntryProto and pushes it, unless it is a stack trace
// that is too long.
func (d *decoder) prop(f field) error {
	if err := d.open(f, costProp); err != nil {
		return within(err, "metadata_props", single)
	}
	var p graph.Prop
	err := d.message(f.end, func(f field) (err error) {
		switch f.num {
		case 1:
			err = d.set(&p.Key, f)
		case 2:
			err = d.set(&p.Value, f)
		}
		return err
	})
	if p.Key != stackTrace || len(p.Value) <= maxTrace {
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
	var t *graph.Constant
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
	if err == nil && v.Name == "" && part == "value_info" {
		return nil // it declares nothing
	}
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

// function reads a FunctionProto.
func (d *decoder) function(list *[]graph.DraftFunction, f field) error {
	if err := d.open(f, costNode); err != nil {
		return err
	}
	at := f.off
	fn := graph.DraftFunction{Draft: &graph.Draft{}}
	var holder graph.DraftNode // holds attributes with defaults
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
