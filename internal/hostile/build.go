//go:build linux

package main

import (
	"encoding/binary"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// Builders of ONNX messages. Names follow the ONNX protocol.

// Element types of TensorProto.
const (
	elemFloat = 1
	elemInt64 = 7
	elemBool  = 9
)

// Types of AttributeProto.
const (
	attrFloat  = 1
	attrInt    = 2
	attrString = 3
	attrGraph  = 5
	attrInts   = 7
)

// node is a NodeProto as a graph's or, under another number, a function's.
func node(op string, in, out []string, attrs ...*field) *field {
	n := msg(1, "Node")
	for _, name := range in {
		n.sub = append(n.sub, str(1, name))
	}
	for _, name := range out {
		n.sub = append(n.sub, str(2, name))
	}
	n.sub = append(append(n.sub, str(4, op)), attrs...)
	return n
}

func intAttr(name string, v int64) *field {
	return msg(5, "Attribute", str(1, name), num(3, v), num(20, attrInt))
}

func intsAttr(name string, v ...int64) *field {
	a := msg(5, "Attribute", str(1, name), num(20, attrInts))
	for _, i := range v {
		a.sub = append(a.sub, num(8, i))
	}
	return a
}

func floatAttr(name string, v float32) *field {
	return msg(5, "Attribute", str(1, name), &field{num: 2, typ: 5, val: uint64(math.Float32bits(v))}, num(20, attrFloat))
}

func stringAttr(name, v string) *field {
	return msg(5, "Attribute", str(1, name), str(4, v), num(20, attrString))
}

func graphAttr(name string, sub ...*field) *field {
	return msg(5, "Attribute", str(1, name), msg(6, "Graph", sub...), num(20, attrGraph))
}

// tensor is an initializer with raw bytes; with none, where raw is nil.
func tensor(name string, elem int64, raw []byte, dims ...int64) *field {
	t := msg(5, "Tensor", num(2, elem), str(8, name))
	for _, d := range dims {
		t.sub = append(t.sub, num(1, d))
	}
	if raw != nil {
		t.sub = append(t.sub, str(9, raw))
	}
	return t
}

// int64s is an initializer of rank one.
func int64s(name string, v ...int64) *field {
	raw := make([]byte, 0, 8*len(v))
	for _, i := range v {
		raw = binary.LittleEndian.AppendUint64(raw, uint64(i))
	}
	return tensor(name, elemInt64, raw, int64(len(v)))
}

// external is an initializer whose bytes lie in another file.
func external(name, location string, elem, offset, length int64, dims ...int64) *field {
	t := tensor(name, elem, nil, dims...)
	t.sub = append(t.sub, num(14, 1), entry(13, "location", location))
	if offset >= 0 {
		t.sub = append(t.sub, entry(13, "offset", itoa(offset)))
	}
	if length >= 0 {
		t.sub = append(t.sub, entry(13, "length", itoa(length)))
	}
	return t
}

// valueInfo is a ValueInfoProto of a tensor.
func valueInfo(n protowire.Number, name string, elem int64, dims ...int64) *field {
	shape := msg(2, "Shape")
	for _, d := range dims {
		shape.sub = append(shape.sub, msg(1, "Dim", num(1, d)))
	}
	return msg(n, "ValueInfo", str(1, name), msg(2, "Type", msg(1, "TensorType", num(1, elem), shape)))
}

func input(name string, elem int64, dims ...int64) *field { return valueInfo(11, name, elem, dims...) }

func output(name string, elem int64, dims ...int64) *field { return valueInfo(12, name, elem, dims...) }

// symbolic is a graph input whose dimensions have names.
func symbolic(name string, dims ...string) *field {
	shape := msg(2, "Shape")
	for _, d := range dims {
		shape.sub = append(shape.sub, msg(1, "Dim", str(2, d)))
	}
	return msg(11, "ValueInfo", str(1, name), msg(2, "Type", msg(1, "TensorType", num(1, elemFloat), shape)))
}

// model is a ModelProto around a graph's fields.
func model(opset int64, graph ...*field) []*field {
	return []*field{num(1, 10), str(2, "hostile"), msg(8, "OpsetID", num(2, opset)), msg(8, "OpsetID", str(1, "com.microsoft"), num(2, 1)),
		msg(8, "OpsetID", str(1, "local"), num(2, 1)), msg(7, "Graph", append([]*field{str(2, "g")}, graph...)...)}
}

// function is a FunctionProto of the domain local.
func function(name string, in, out []string, nodes ...*field) *field {
	f := msg(25, "Function", str(1, name), str(10, "local"), msg(9, "OpsetID", num(2, 20)), msg(9, "OpsetID", str(1, "local"), num(2, 1)))
	for _, s := range in {
		f.sub = append(f.sub, str(4, s))
	}
	for _, s := range out {
		f.sub = append(f.sub, str(5, s))
	}
	for _, n := range nodes {
		c := n.clone()
		c.num = 7
		f.sub = append(f.sub, c)
	}
	return f
}

// local makes a node call a function of the domain local.
func local(n *field) *field {
	n.sub = append(n.sub, str(7, "local"))
	return n
}
