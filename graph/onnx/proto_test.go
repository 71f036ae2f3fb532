package onnx_test

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/onnx"
)

// A pb is a protobuf message under construction. Its methods append a field.
type pb []byte

func (b pb) str(num protowire.Number, s ...string) pb {
	for _, s := range s {
		b = protowire.AppendTag(b, num, protowire.BytesType)
		b = protowire.AppendString(b, s)
	}
	return b
}

func (b pb) int(num protowire.Number, vs ...int64) pb {
	for _, v := range vs {
		b = protowire.AppendTag(b, num, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(v))
	}
	return b
}

func (b pb) fixed32(num protowire.Number, v uint32) pb {
	return protowire.AppendFixed32(protowire.AppendTag(b, num, protowire.Fixed32Type), v)
}

func (b pb) packed(num protowire.Number, vs ...int64) pb {
	var p []byte
	for _, v := range vs {
		p = protowire.AppendVarint(p, uint64(v))
	}
	return b.str(num, string(p))
}

func (b pb) msg(num protowire.Number, ms ...pb) pb {
	for _, m := range ms {
		b = b.str(num, string(m))
	}
	return b
}

// model wraps a graph: IR version 8, opset 17.
func model(g pb) pb { return pb{}.int(1, 8).msg(8, pb{}.int(2, 17)).msg(7, g) }

// node returns a NodeProto.
func node(op string, ins, outs []string, attrs ...pb) pb {
	return pb{}.str(1, ins...).str(2, outs...).str(4, op).msg(5, attrs...)
}

// value returns a ValueInfoProto of a tensor. Negative dims are left out.
func value(name string, elem int64, dims ...int64) pb {
	shape := pb{}
	for _, d := range dims {
		shape = shape.msg(1, pb{}.int(1, d))
	}
	return pb{}.str(1, name).msg(2, pb{}.msg(1, pb{}.int(1, elem).msg(2, shape)))
}

// entry returns a StringStringEntryProto.
func entry(key, value string) pb { return pb{}.str(1, key).str(2, value) }

func in(s ...string) []string { return s }

// small is a valid model: y = Relu(x).
func small() pb {
	return model(pb{}.msg(1, node("Relu", in("x"), in("y"))).str(2, "g").msg(11, value("x", 1, 2, 3)).msg(12, value("y", 1, 2, 3)))
}

func read(b []byte) (*graph.Graph, error) {
	return onnx.Read(bytes.NewReader(b), int64(len(b)), "m.onnx")
}

// mustRead reads a model that must be good.
func mustRead(t *testing.T, b pb) *graph.Graph {
	t.Helper()
	g, err := read(b)
	if err != nil {
		t.Fatal(err)
	}
	if err := graph.Check(g); err != nil {
		t.Fatal(err)
	}
	return g
}

// find returns the value called name.
func find(t *testing.T, g *graph.Graph, name string) *graph.Value {
	t.Helper()
	for i := range g.Values {
		if g.Values[i].Name == name {
			return &g.Values[i]
		}
	}
	t.Fatalf("no value %q", name)
	return nil
}

func warned(g *graph.Graph, code string) bool {
	for _, w := range g.Model.Warnings {
		if w.Code == code {
			return true
		}
	}
	return false
}
