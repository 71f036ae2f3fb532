package onnx

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/memplan/memplan/graph"
)

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
		holds := kind == graph.SequenceType || kind == graph.OptionalType
		switch {
		case kind == graph.OpaqueType:
		case f.num == 1 && holds, f.num == 2 && kind == graph.MapType:
			t.Of = new(graph.Type)
			*t.Of, err = d.typ(f)
		case f.num == 1:
			t.Elem, err = d.dtype(f)
		case f.num == 2 && !holds:
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
