package main

import (
	"math/rand/v2"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// This file reads and writes protocol buffers as a tree of fields, with no
// more knowledge of ONNX than which fields are messages: what is mutated need
// not be valid, and what is written need not be well formed.

// A field is one field of a message on the wire.
type field struct {
	num  protowire.Number
	typ  protowire.Type
	val  uint64 // of varint and fixed types
	data []byte // of bytes, where kind is ""
	kind string // the message type of sub, "" for a leaf
	sub  []*field
}

// messages has, for each ONNX message type, the fields that are messages.
var messages = map[string]map[protowire.Number]string{
	"Model":       {7: "Graph", 8: "OpsetID", 14: "Entry", 25: "Function"},
	"Graph":       {1: "Node", 5: "Tensor", 11: "ValueInfo", 12: "ValueInfo", 13: "ValueInfo", 14: "Annotation", 15: "Sparse", 16: "Entry"},
	"Node":        {5: "Attribute", 9: "Entry"},
	"Attribute":   {5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph", 14: "Type", 22: "Sparse"},
	"Tensor":      {13: "Entry", 16: "Entry"},
	"ValueInfo":   {2: "Type", 4: "Entry"},
	"Type":        {1: "TensorType", 4: "Sequence", 5: "Map", 9: "Sequence"},
	"Sequence":    {1: "Type"},
	"Map":         {2: "Type"},
	"TensorType":  {2: "Shape"},
	"Shape":       {1: "Dim"},
	"Dim":         {},
	"Entry":       {},
	"OpsetID":     {},
	"Annotation":  {2: "Entry"},
	"Sparse":      {1: "Tensor", 2: "Tensor"},
	"Function":    {7: "Node", 9: "OpsetID", 11: "Attribute", 12: "ValueInfo", 14: "Entry"},
	"TensorProto": {},
}

// parse reads a message; what does not parse ends it.
func parse(kind string, data []byte) []*field {
	var out []*field
	for len(data) > 0 {
		num, typ, n := protowire.ConsumeTag(data)
		if n < 0 {
			return out
		}
		data = data[n:]
		f := &field{num: num, typ: typ}
		switch typ {
		case protowire.VarintType:
			f.val, n = protowire.ConsumeVarint(data)
		case protowire.Fixed32Type:
			var v uint32
			v, n = protowire.ConsumeFixed32(data)
			f.val = uint64(v)
		case protowire.Fixed64Type:
			f.val, n = protowire.ConsumeFixed64(data)
		case protowire.BytesType:
			f.data, n = protowire.ConsumeBytes(data)
			if f.kind = messages[kind][num]; f.kind != "" && n >= 0 {
				f.sub, f.data = parse(f.kind, f.data), nil
			}
		default:
			return out
		}
		if n < 0 {
			return out
		}
		data = data[n:]
		out = append(out, f)
	}
	return out
}

// encode writes fields.
func encode(fields []*field) []byte {
	var out []byte
	for _, f := range fields {
		out = f.append(out)
	}
	return out
}

func (f *field) append(out []byte) []byte {
	out = protowire.AppendTag(out, f.num, f.typ)
	switch f.typ {
	case protowire.VarintType:
		return protowire.AppendVarint(out, f.val)
	case protowire.Fixed32Type:
		return protowire.AppendFixed32(out, uint32(f.val))
	case protowire.Fixed64Type:
		return protowire.AppendFixed64(out, f.val)
	case protowire.BytesType:
		data := f.data
		if f.kind != "" {
			data = encode(f.sub)
		}
		return protowire.AppendBytes(out, data)
	}
	return out
}

// clone is a copy of the tree.
func (f *field) clone() *field {
	c := *f
	c.data = slices.Clone(f.data)
	c.sub = make([]*field, len(f.sub))
	for i, s := range f.sub {
		c.sub[i] = s.clone()
	}
	return &c
}

// A place is a field with the list that it stands in.
type place struct {
	in   *[]*field
	at   int
	kind string // of the message that it is in
}

func (p place) field() *field { return (*p.in)[p.at] }

// places lists all fields of a tree.
func places(kind string, fields *[]*field) []place {
	var out []place
	for i, f := range *fields {
		out = append(out, place{fields, i, kind})
		if f.kind != "" {
			out = append(out, places(f.kind, &f.sub)...)
		}
	}
	return out
}

// pick is one of a list.
func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// Small builders of fields.

func num(n protowire.Number, v int64) *field {
	return &field{num: n, typ: protowire.VarintType, val: uint64(v)}
}

func str[T string | []byte](n protowire.Number, s T) *field {
	return &field{num: n, typ: protowire.BytesType, data: []byte(s)}
}

func msg(n protowire.Number, kind string, sub ...*field) *field {
	return &field{num: n, typ: protowire.BytesType, kind: kind, sub: sub}
}
