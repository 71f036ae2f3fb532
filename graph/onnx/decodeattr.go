package onnx

import (
	"math"
	"math/bits"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/memplan/memplan/graph"
)

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
// attribute, rules out.
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
		if err = d.list(f); err != nil {
			break
		}
		err = d.numbers(f, protowire.Fixed32Type, func(v uint64) bool {
			a.Floats = append(a.Floats, math.Float32frombits(uint32(v)))
			return true
		})
	case 8:
		kind = graph.AttrInts
		if err = d.list(f); err != nil {
			break
		}
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
	var t *graph.Constant
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
