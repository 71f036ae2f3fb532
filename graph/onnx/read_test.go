package onnx_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/onnx"
)

// TestErrors feeds what must be rejected.
func TestErrors(t *testing.T) {
	relu := node("Relu", in("x"), in("y"))
	g := func(nodes ...pb) pb {
		return pb{}.msg(1, nodes...).msg(11, value("x", 1, 2)).msg(12, value("y", 1, 2))
	}
	tensor := func(t pb) pb { return model(g(relu).msg(5, t)) }
	deep := pb{}
	for range 100 {
		deep = pb{}.msg(1, node("If", nil, nil, pb{}.str(1, "b").int(20, 5).msg(6, deep)))
	}
	deepType := pb{}
	for range 100 {
		deepType = pb{}.msg(4, pb{}.msg(1, deepType))
	}
	for _, c := range []struct {
		name string
		in   pb
		want string
	}{
		{"empty", nil, "m.onnx: the file is empty"},
		{"no graph", pb{}.int(1, 8), "m.onnx: not an ONNX model: it holds no graph"},
		{"png", pb("\x89PNG\r\n\x1a\n0000"), "m.onnx: not an ONNX model but a PNG image"},
		{"zip", pb("PK\x03\x04\x14\x00"), "not an ONNX model but a zip archive, such as a PyTorch checkpoint"},
		{"text", pb("<ir_version: 8>\nagraph (float x) => () {}\n"), "not an ONNX model but text"},
		{"lfs", pb("version https://git-lfs.github.com/spec/v1\n"), "git lfs pull"},
		{"zeros", make(pb, 100), "not an ONNX model but zeros"},
		{"tflite", pb("\x1c\x00\x00\x00TFL3\x14\x00"), "a TensorFlow Lite model"},
		{"truncated", small()[:30], "m.onnx: byte 6: field 7 takes"},
		{"truncated tag", append(small(), 0xff), "byte 67: truncated number"},
		{"long varint", append(small(), slices.Repeat([]byte{0xff}, 11)...), "number of more than 64 bits"},
		{"hostile length", append(pb{}.int(1, 8), 0x3a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f), "field 7 takes 9223372036854775807 bytes, 0 are left"},
		{"negative length", append(pb{}.int(1, 8), 0x3a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01), "field 7 takes 18446744073709551615 bytes"},
		{"field number 0", append(small(), 0), "invalid field number"},
		{"group", append(small(), 0x0b), "wire type 3"},
		{"wrong wire type", pb{}.int(7, 1), "field 7 has wire type 0, not 2"},
		{"nested place", model(g(relu, node("Relu", in("y"), in("z"), pb{}.str(1, "a").int(2, 1)))), "(graph.node[1].attribute[0]): field 2 has wire type 0, not 5"},
		{"deep graphs", model(deep), "nested more than 64 deep"},
		{"deep types", model(pb{}.msg(11, pb{}.str(1, "x").msg(2, deepType))), "nested more than 64 deep"},
		{"no op", model(g(pb{}.str(1, "x").str(2, "y"))), "(graph.node[0]): node without an op_type"},
		{"undefined input", model(g(node("Add", in("x", "w"), in("y")))), `m.onnx: Add -> "y": input 1 ("w") is not defined`},
		{"undefined output", model(g(node("Relu", in("x"), in("z")))), `output "y" is not defined`},
		{"defined twice", model(g(relu, relu.str(3, "again"))), `Relu "again": value "y" is defined twice; it is also an output of node Relu (node 0)`},
		{"input redefined", model(g(relu, node("Relu", in("y"), in("x")))), `value "x" is defined twice; it is also an input`},
		{"initializer redefined", model(g(relu).msg(5, pb{}.int(1, 1).int(2, 1).str(8, "y").str(9, "abcd"))), `value "y" is defined twice; it is also an initializer`},
		{"input twice", model(g(relu).msg(11, value("x", 1, 2))), `value "x" is defined twice; it is also an input`},
		{"cycle", model(g(
			node("Add", in("x", "c"), in("a")).str(3, "first"), node("Relu", in("a"), in("b")).str(3, "second"),
			node("Relu", in("b"), in("c")).str(3, "third"), relu)), `cycle: Relu "second" -> Relu "third" -> Add "first" -> Relu "second"`},
		{"cycle through a subgraph", model(g(
			node("If", in("x"), in("y"), pb{}.str(1, "then_branch").int(20, 5).msg(6, pb{}.msg(1, node("Relu", in("z"), in("t"))).msg(12, value("t", 1)))),
			node("Relu", in("y"), in("z")))), `cycle: Relu -> "z" -> If -> "y" -> Relu -> "z"`},
		{"undefined in subgraph", model(g(
			node("If", in("x"), in("y"), pb{}.str(1, "then_branch").int(20, 5).msg(6, pb{}.msg(1, node("Relu", in("z"), in("t"))))))),
			`If -> "y": then_branch: Relu -> "t": input 0 ("z") is not defined`},
		{"unnamed initializer", tensor(pb{}.int(1, 1).int(2, 1)), "(graph.initializer[0]): initializer without a name"},
		{"negative dim", tensor(pb{}.int(1, -1).int(2, 1).str(8, "w")), "negative dimension"},
		{"huge dims", tensor(pb{}.int(1, 1<<40, 1<<40).int(2, 1).str(8, "w")), `tensor "w": the size of float[1099511627776 1099511627776] overflows`},
		{"short raw data", tensor(pb{}.int(1, 2).int(2, 1).str(8, "w").str(9, "abcd")), `tensor "w": float[2] takes 8 bytes, raw_data has 4`},
		{"short typed data", tensor(pb{}.int(1, 3).int(2, 7).str(8, "w").packed(7, 1, 2)), `int64[3] needs 3 entries of field 7, field 7 has 2`},
		{"wrong typed field", tensor(pb{}.int(1, 1).int(2, 7).str(8, "w").packed(5, 1)), "needs 1 entries of field 7, field 5 has 1"},
		{"ragged packed floats", tensor(pb{}.int(1, 1).int(2, 1).str(8, "w").str(4, "abc")), "not a multiple of 4"},
		{"unknown dtype", tensor(pb{}.int(1, 1).int(2, 99).str(8, "w")), "unknown element type 99"},
		{"segment", tensor(pb{}.int(1, 1).int(2, 1).msg(3, pb{}.int(1, 0))), "segmented tensors are not supported"},
		{"external without location", tensor(pb{}.int(1, 1).int(2, 1).str(8, "w").int(14, 1)), "external_data names no location"},
		{"external offset", tensor(pb{}.int(1, 1).int(2, 1).str(8, "w").int(14, 1).msg(13, entry("location", "f"), entry("offset", "-4"))), `external_data offset "-4"`},
		{"attribute without name", model(g(node("Relu", in("x"), in("y"), pb{}.int(3, 1)))), "attribute without a name"},
		{"attribute without graph", model(g(node("If", in("x"), in("y"), pb{}.str(1, "then_branch").int(20, 5)))), `attribute "then_branch" does not hold what its type says`},
		{"dense attribute called sparse", model(g(node("Op", in("x"), in("y"), pb{}.str(1, "v").int(20, 11).msg(5, pb{}.int(2, 7).packed(7, 1))))), `attribute "v" does not hold what its type says`},
		{"attribute type", model(g(node("Relu", in("x"), in("y"), pb{}.str(1, "a").int(20, 77)))), "unknown attribute type 77"},
		{"function twice", model(g(relu)).msg(25, function("f"), function("f")), "function local.f is defined twice"},
		{"functions in a cycle", model(g(relu)).msg(25,
			function("f", pb{}.str(4, "g").str(7, "local")), function("g", pb{}.str(4, "h").str(7, "local")), function("h", pb{}.str(4, "f").str(7, "local"))),
			"functions call each other in a cycle: local.f -> local.g -> local.h -> local.f"},
		{"capture in a function", model(g(relu)).msg(25, function("f", node("Relu", in("x"), nil))), `function local.f: Relu (node 0): input 0 ("x") is not defined`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := read(c.in)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v, want %q", err, c.want)
			}
			if !strings.HasPrefix(err.Error(), "m.onnx: ") || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q does not begin with the file's name, or has several lines", err)
			}
		})
	}
}

// function returns a FunctionProto without inputs and outputs.
func function(name string, nodes ...pb) pb {
	return pb{}.str(1, name).str(10, "local").msg(7, nodes...)
}

// TestDeepCalls has more functions calling each other than a stack should
// hold.
func TestDeepCalls(t *testing.T) {
	m := model(pb{}.msg(1, node("Relu", nil, in("y"))))
	for i := range 2000 {
		m = m.msg(25, function(fmt.Sprint("f", i), pb{}.str(4, fmt.Sprint("f", i+1)).str(7, "local")))
	}
	if _, err := read(m); err == nil || !strings.Contains(err.Error(), "more than 256 deep") {
		t.Errorf("error %v", err)
	}
	m = model(pb{}.msg(1, node("Relu", nil, in("y"))))
	for i := range 2000 { // callees first
		m = m.msg(25, function(fmt.Sprint("f", i), pb{}.str(4, fmt.Sprint("f", i-1)).str(7, "local")))
	}
	if _, err := read(m); err == nil || !strings.Contains(err.Error(), "more than 256 deep") {
		t.Errorf("error %v", err)
	}
}

// TestFileErrors covers what Load itself refuses.
func TestFileErrors(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ path, want string }{
		{dir, dir + ": is a directory, not an ONNX file"},
		{filepath.Join(dir, "no.onnx"), filepath.Join(dir, "no.onnx") + ": no such file or directory"},
	} {
		if _, err := onnx.Load(c.path); err == nil || err.Error() != c.want {
			if runtime.GOOS != "windows" || err == nil {
				t.Errorf("Load(%s): %v, want %q", c.path, err, c.want)
			}
		}
	}
}

// TestEveryCutIsAnError cuts a valid model at every byte.
func TestEveryCutIsAnError(t *testing.T) {
	whole := small()
	mustRead(t, whole)
	for n := range whole {
		if g, err := read(whole[:n]); err == nil {
			t.Errorf("cut to %d of %d bytes, the model still reads: %d nodes", n, len(whole), len(g.Nodes))
		}
	}
}

// TestShrunkFile reads a file that became shorter than its size said.
func TestShrunkFile(t *testing.T) {
	b := small()
	_, err := onnx.Read(strings.NewReader(string(b[:40])), int64(len(b)), "m.onnx")
	if want := fmt.Sprintf("m.onnx: byte 40: the file ends here, before its size of %d bytes", len(b)); err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
}

// TestTolerance reads what the specification forbids and files contain.
func TestTolerance(t *testing.T) {
	relu := node("Relu", in("x"), in("y"))
	io := func(g pb) pb { return g.msg(11, value("x", 1, 2)).msg(12, value("y", 1)) }
	for _, c := range []struct {
		name    string
		in      pb
		warning string // code, "" for none
		check   func(g *graph.Graph) bool
	}{
		{"unsorted", model(io(pb{}.msg(1, node("Relu", in("a"), in("y")).str(3, "second"), node("Relu", in("x"), in("a")).str(3, "first")))), "unsorted",
			func(g *graph.Graph) bool { return g.Nodes[0].Name == "first" && g.Nodes[1].Name == "second" }},
		{"unsorted through a capture", model(io(pb{}.msg(1,
			node("If", in("x"), in("y"), pb{}.str(1, "then_branch").int(20, 5).msg(6, pb{}.msg(1, node("Relu", in("a"), in("t"))).msg(12, value("t", 1)))),
			node("Relu", in("x"), in("a"))))), "unsorted",
			func(g *graph.Graph) bool { return g.Nodes[1].Op == "If" }},
		{"equal and missing names", model(io(pb{}.msg(1, node("Relu", in("x"), in("a")).str(3, "n"), node("Relu", in("a"), in("b")).str(3, "n"), node("Relu", in("b"), in("y"))))), "",
			func(g *graph.Graph) bool { return len(g.Nodes) == 3 && g.Nodes[2].Name == "" }},
		{"omitted inputs and outputs", model(io(pb{}.msg(1, node("Clip", in("x", "", "x"), in("y", ""))))), "",
			func(g *graph.Graph) bool {
				return slices.Equal(g.Nodes[0].Inputs, []graph.ValueID{0, graph.NoValue, 0}) && g.Nodes[0].Outputs[1] == graph.NoValue
			}},
		{"initializer that is an input, IR 3", pb{}.int(1, 3).msg(8, pb{}.int(2, 8)).msg(7, io(pb{}.msg(1, node("Add", in("x", "w"), in("y")))).msg(11, value("w", 1, 1)).msg(5, pb{}.int(1, 1).int(2, 1).str(8, "w").str(9, "abcd"))), "",
			func(g *graph.Graph) bool { return len(g.Inputs) == 1 && g.Values[1].Kind == graph.Initializer }},
		{"initializer that is an input, IR 8", model(io(pb{}.msg(1, node("Add", in("x", "w"), in("y")))).msg(11, value("w", 1, 1)).msg(5, pb{}.int(1, 1).int(2, 1).str(8, "w").str(9, "abcd"))), "overridable-initializer",
			func(g *graph.Graph) bool { return len(g.Inputs) == 1 && g.Values[1].Kind == graph.Initializer }},
		{"no opset", pb{}.int(1, 8).msg(7, io(pb{}.msg(1, relu))), "no-opset",
			func(g *graph.Graph) bool { return g.Model.Opset("") == 18 && g.Model.Opset("ai.onnx") == 18 }},
		{"no opset, IR 2", pb{}.int(1, 2).msg(7, io(pb{}.msg(1, relu))), "no-opset",
			func(g *graph.Graph) bool { return g.Model.Opset("") == 1 }},
		{"no opset, future IR", pb{}.int(1, 99).msg(7, io(pb{}.msg(1, relu))), "no-opset",
			func(g *graph.Graph) bool { return g.Model.Opset("") == 28 }},
		{"future opset", pb{}.int(1, 14).msg(8, pb{}.int(2, 9999)).msg(7, io(pb{}.msg(1, relu))), "newer-opset", nil},
		{"no ir_version", pb{}.msg(8, pb{}.int(2, 17)).msg(7, io(pb{}.msg(1, relu))), "no-ir-version",
			func(g *graph.Graph) bool { return g.Model.IRVersion == 0 && g.Model.Opset("") == 17 }},
		{"ai.onnx spelled out", pb{}.int(1, 8).msg(8, pb{}.str(1, "ai.onnx").int(2, 17)).msg(7, io(pb{}.msg(1, relu.str(7, "ai.onnx")))), "",
			func(g *graph.Graph) bool { return g.Nodes[0].Domain == "" && g.Model.Opset("") == 17 }},
		{"opset imported twice", small().msg(8, pb{}.int(2, 13), pb{}.str(1, "ai.onnx").int(2, 18), pb{}.str(1, "ai.onnx").int(2, 18)), "duplicate-opset duplicate-opset",
			func(g *graph.Graph) bool { return len(g.Model.Opsets) == 1 && g.Model.Opset("") == 18 }},
		{"training info", small().msg(20, pb{}), "training-info", nil},
		{"attribute given twice", model(io(pb{}.msg(1, node("Relu", in("x"), in("y"), pb{}.str(1, "b").int(3, 1).int(20, 2), pb{}.str(1, "a").int(3, 2).int(20, 2), pb{}.str(1, "b").int(3, 3).int(20, 2))))), "duplicate-attribute",
			func(g *graph.Graph) bool {
				return len(g.Nodes[0].Attrs) == 2 && g.Nodes[0].Attr("a").I == 2 && g.Nodes[0].Attr("b").I == 3
			}},
		{"attribute with another's field", model(io(pb{}.msg(1, node("Relu", in("x"), in("y"), pb{}.str(1, "a").int(3, 1).packed(8, 1, 2).int(20, 7))))), "attribute-type",
			func(g *graph.Graph) bool { a := g.Nodes[0].Attr("a"); return len(a.Ints) == 2 && a.I == 0 }},
		{"unknown fields", append(small(), pb{}.int(99, 1).str(100, "x").fixed32(101, 1)...), "", nil},
		{"fields of a message in any order", pb{}.msg(7, io(pb{}.msg(1, node("Add", in("x", "w"), in("y")))).
			msg(5, pb{}.str(9, "\x05\x00\x00\x00\x00\x00\x00\x00").str(8, "w").int(2, 7).int(1, 1))).msg(8, pb{}.int(2, 17)).int(1, 8), "",
			func(g *graph.Graph) bool { return slices.Equal(g.Values[1].Const.Ints, []int64{5}) }},
		{"declared, not there", model(io(pb{}.msg(1, relu)).msg(13, value("ghost", 1, 2))), "", nil},
		{"weights stripped", model(io(pb{}.msg(1, node("Add", in("x", "w"), in("y")))).msg(5, pb{}.int(1, 8).int(2, 1).str(8, "w").str(9, ""))), "",
			func(g *graph.Graph) bool { c := g.Values[1].Const; return c.Ref == nil && !c.Known() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := mustRead(t, c.in)
			var codes []string
			for _, w := range g.Model.Warnings {
				codes = append(codes, w.Code)
			}
			if got := strings.Join(codes, " "); got != c.warning {
				t.Errorf("warnings %q, want %q", got, c.warning)
			}
			if c.check != nil && !c.check(g) {
				t.Errorf("read as %+v", g)
			}
		})
	}
}

// TestIRVersions reads the same graph as every version of the format: an
// initializer need not be an input since version 4, and may always be one.
func TestIRVersions(t *testing.T) {
	w := pb{}.int(1, 2).int(2, 1).str(8, "w").str(9, "abcdefgh")
	g := pb{}.msg(1, node("Add", in("x", "w"), in("y"))).msg(5, w).msg(11, value("x", 1, 2)).msg(12, value("y", 1, 2))
	for ir := int64(3); ir <= 14; ir++ {
		for _, listed := range []bool{false, true} {
			body := g
			if listed {
				body = slices.Clone(g).msg(11, value("w", 1, 2))
			}
			got := mustRead(t, pb{}.int(1, ir).msg(8, pb{}.int(2, 8)).msg(7, body))
			if got.Model.IRVersion != ir || len(got.Inputs) != 1 || find(t, got, "w").Kind != graph.Initializer || len(got.Nodes[0].Inputs) != 2 {
				t.Errorf("version %d, listed %v: %+v", ir, listed, got)
			}
			if warned(got, "overridable-initializer") != (listed && ir >= 4) {
				t.Errorf("version %d, listed %v: warnings %v", ir, listed, got.Model.Warnings)
			}
		}
	}
}

// TestDims covers what a dimension may say.
func TestDims(t *testing.T) {
	dim := func(d pb) graph.Dim {
		v := pb{}.str(1, "x").msg(2, pb{}.msg(1, pb{}.int(1, 1).msg(2, pb{}.msg(1, d))))
		g := mustRead(t, model(pb{}.msg(1, node("Relu", in("x"), in("y"))).msg(11, v)))
		return g.Values[0].Decl.Shape[0]
	}
	for _, c := range []struct {
		in   pb
		want string
	}{
		{pb{}.int(1, 5), "5"},
		{pb{}.int(1, 0), "0"},
		{pb{}.int(1, -1), "?"},
		{pb{}.int(1, math.MinInt64), "?"},
		{pb{}, "?"},
		{pb{}.str(2, ""), "?"},
		{pb{}.str(2, "?"), "?"},
		{pb{}.str(2, "batch"), "batch"},
		{pb{}.str(2, "Batch Size"), "Batch Size"},
		{pb{}.str(2, "a/b_dim_1"), "a/b_dim_1"},
		{pb{}.str(2, "x.3_dim_0"), "x.3_dim_0"},
		{pb{}.str(2, "a-b"), "a-b"},
		{pb{}.str(2, "80"), "80"},
		{pb{}.str(2, "-1"), "?"},
		{pb{}.str(2, "past + 1"), "past + 1"},
		{pb{}.str(2, "2*s0"), "2*s0"},
		{pb{}.str(2, "f(x"), "f(x"},
		{pb{}.int(1, 5).str(2, "n"), "n"}, // a oneof: the last counts
		{pb{}.str(2, "n").int(1, 5), "5"},
	} {
		if got := dim(c.in).String(); got != c.want {
			t.Errorf("dim %q is %s, want %s", c.in, got, c.want)
		}
	}
	if two := dim(pb{}.str(2, "1 + 1")); !two.Equal(graph.Int(2)) {
		t.Errorf("1 + 1 is %s", two)
	}
}

// TestTypes covers the container types.
func TestTypes(t *testing.T) {
	tensor := pb{}.msg(1, pb{}.int(1, 7).msg(2, pb{}.msg(1, pb{}.int(1, 3))))
	unranked := pb{}.msg(1, pb{}.int(1, 1))
	for _, c := range []struct {
		in   pb
		want string
	}{
		{tensor, "tensor_type:int64[3]"},
		{unranked, "tensor_type:floatunranked"},
		{pb{}.msg(1, pb{}.int(1, 1).msg(2, pb{})), "tensor_type:float[]"},
		{pb{}.msg(8, pb{}.int(1, 1).msg(2, pb{}.msg(1, pb{}.str(2, "N")))), "sparse_tensor_type:float[$N]"},
		{pb{}.msg(4, pb{}.msg(1, tensor)), "sequence_type(tensor_type:int64[3])"},
		{pb{}.msg(9, pb{}.msg(1, pb{}.msg(4, pb{}.msg(1, unranked)))), "optional_type(sequence_type(tensor_type:floatunranked))"},
		{pb{}.msg(5, pb{}.int(1, 8).msg(2, tensor)), "map_type(string,tensor_type:int64[3])"},
		{pb{}.msg(7, pb{}.str(1, "domain").str(2, "name")), "opaque_type"},
		{pb{}.str(6, "IMAGE"), "none"},
	} {
		g := mustRead(t, model(pb{}.msg(1, node("Relu", in("x"), in("y"))).msg(11, pb{}.str(1, "x").msg(2, c.in))))
		if got := typ(&g.Values[0].Decl); got != c.want {
			t.Errorf("type %s, want %s", got, c.want)
		}
	}
}

// TestPayloads reads the same elements from every place that may hold them.
func TestPayloads(t *testing.T) {
	f32 := func(vs ...float32) string {
		var b []byte
		for _, v := range vs {
			u := math.Float32bits(v)
			b = append(b, byte(u), byte(u>>8), byte(u>>16), byte(u>>24))
		}
		return string(b)
	}
	for _, c := range []struct {
		name string
		in   pb // without dims [3] and name
		want string
	}{
		{"int64 raw", pb{}.int(2, 7).str(9, "\x01\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\x03\x00\x00\x00\x00\x00\x00\x00"), "[1 -1 3]"},
		{"int64 packed", pb{}.int(2, 7).packed(7, 1, -1, 3), "[1 -1 3]"},
		{"int64 unpacked", pb{}.int(2, 7).int(7, 1, -1, 3), "[1 -1 3]"},
		{"int64 in pieces", pb{}.int(2, 7).packed(7, 1).int(7, -1).packed(7, 3), "[1 -1 3]"},
		{"uint64", pb{}.int(2, 13).packed(11, 1, 2, 3), "[1 2 3]"},
		{"uint32", pb{}.int(2, 12).packed(11, 1, 2, math.MaxUint32), "[1 2 4294967295]"},
		{"int32", pb{}.int(2, 6).packed(5, 1, -1, 3), "[1 -1 3]"},
		{"int32 raw", pb{}.int(2, 6).str(9, "\x01\x00\x00\x00\xff\xff\xff\xff\x03\x00\x00\x00"), "[1 -1 3]"},
		{"uint8 raw", pb{}.int(2, 2).str(9, "\x01\xff\x03"), "[1 255 3]"},
		{"int8 raw", pb{}.int(2, 3).str(9, "\x01\xff\x03"), "[1 -1 3]"},
		{"int8 typed", pb{}.int(2, 3).packed(5, 1, -1, 3), "[1 -1 3]"},
		{"uint16 raw", pb{}.int(2, 4).str(9, "\x01\x00\xff\xff\x03\x00"), "[1 65535 3]"},
		{"int16 raw", pb{}.int(2, 5).str(9, "\x01\x00\xff\xff\x03\x00"), "[1 -1 3]"},
		{"bool raw", pb{}.int(2, 9).str(9, "\x01\x00\x02"), "[1 0 1]"},
		{"bool typed", pb{}.int(2, 9).packed(5, 1, 0, 1), "[1 0 1]"},
		{"int4 raw", pb{}.int(2, 22).str(9, "\xf1\x03"), "[1 -1 3]"},
		{"uint4 raw", pb{}.int(2, 21).str(9, "\xf1\x03"), "[1 15 3]"},
		{"int4 typed", pb{}.int(2, 22).packed(5, 0xf1, 3), "[1 -1 3]"},
		{"int2 raw", pb{}.int(2, 26).str(9, "\x1d"), "[1 -1 1]"},
		{"uint2 typed", pb{}.int(2, 25).packed(5, 0x1d), "[1 3 1]"},
		{"float raw", pb{}.int(2, 1).str(9, f32(1, -0.5, 3)), "[1 -0.5 3]"},
		{"float packed", pb{}.int(2, 1).str(4, f32(1, -0.5, 3)), "[1 -0.5 3]"},
		{"float unpacked", pb{}.int(2, 1).fixed32(4, math.Float32bits(1)).fixed32(4, math.Float32bits(-0.5)).fixed32(4, math.Float32bits(3)), "[1 -0.5 3]"},
		{"double raw", pb{}.int(2, 11).str(9, "\x00\x00\x00\x00\x00\x00\xf0\x3f\x00\x00\x00\x00\x00\x00\xe0\xbf\x00\x00\x00\x00\x00\x00\x08\x40"), "[1 -0.5 3]"},
		{"double packed", pb{}.int(2, 11).str(10, "\x00\x00\x00\x00\x00\x00\xf0\x3f\x00\x00\x00\x00\x00\x00\xe0\xbf\x00\x00\x00\x00\x00\x00\x08\x40"), "[1 -0.5 3]"},
		{"float16 raw", pb{}.int(2, 10).str(9, "\x00\x3c\x00\xb8\x00\x42"), "[1 -0.5 3]"},
		{"float16 typed", pb{}.int(2, 10).packed(5, 0x3c00, 0xb800, 0x4200), "[1 -0.5 3]"},
		{"bfloat16 raw", pb{}.int(2, 16).str(9, "\x80\x3f\x00\xbf\x40\x40"), "[1 -0.5 3]"},
		{"float8e4m3fn", pb{}.int(2, 17).packed(5, 0x38, 0xb0, 0x44), "[1 -0.5 3]"},
		{"float8e5m2", pb{}.int(2, 19).str(9, "\x3c\xb8\x42"), "[1 -0.5 3]"},
		{"float4e2m1", pb{}.int(2, 23).str(9, "\x92\x05"), "[1 -0.5 3]"},
		{"string", pb{}.int(2, 8).str(6, "a", "", "c"), "[a  c]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := mustRead(t, model(pb{}.msg(1, node("Relu", in("w"), in("y"))).msg(5, c.in.int(1, 3).str(8, "w"))))
			k := g.Values[0].Const
			got := fmt.Sprint(k.Ints)
			switch {
			case k.Floats != nil:
				got = fmt.Sprint(k.Floats)
			case k.Strings != nil:
				got = fmt.Sprint(k.Strings)
			}
			if got != c.want || !k.Known() {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// TestAttributes reads each kind, with its type and without, as files of IR
// version 1 have it.
func TestAttributes(t *testing.T) {
	body := pb{}.str(2, "b").msg(1, node("Relu", in("x"), in("t"))).msg(12, value("t", 1))
	scalar := pb{}.int(2, 7).packed(7, 42)
	sparse := pb{}.msg(1, pb{}.int(1, 2).int(2, 7).packed(7, 5, 6)).msg(2, pb{}.int(1, 2).int(2, 7).packed(7, 0, 9)).packed(3, 10)
	for _, c := range []struct {
		kind graph.AttrKind
		in   pb
		want func(a *graph.Attr) bool
	}{
		{graph.AttrFloat, pb{}.fixed32(2, math.Float32bits(1.5)), func(a *graph.Attr) bool { return a.F == 1.5 }},
		{graph.AttrInt, pb{}.int(3, -7), func(a *graph.Attr) bool { return a.I == -7 }},
		{graph.AttrString, pb{}.str(4, "s\xff"), func(a *graph.Attr) bool { return a.S == "s\xff" }},
		{graph.AttrTensor, pb{}.msg(5, scalar), func(a *graph.Attr) bool { return slices.Equal(a.Tensor.Ints, []int64{42}) }},
		{graph.AttrGraph, pb{}.msg(6, body), func(a *graph.Attr) bool {
			return a.Graph.Nodes[0].Op == "Relu" && a.Graph.Values[0].Kind == graph.Captured
		}},
		{graph.AttrFloats, pb{}.fixed32(7, math.Float32bits(2)), func(a *graph.Attr) bool { return slices.Equal(a.Floats, []float32{2}) }},
		{graph.AttrInts, pb{}.int(8, 1, 2), func(a *graph.Attr) bool { return slices.Equal(a.Ints, []int64{1, 2}) }},
		{graph.AttrInts, pb{}.packed(8, 1, 2), func(a *graph.Attr) bool { return slices.Equal(a.Ints, []int64{1, 2}) }},
		{graph.AttrStrings, pb{}.str(9, "a", "b"), func(a *graph.Attr) bool { return slices.Equal(a.Strings, []string{"a", "b"}) }},
		{graph.AttrTensors, pb{}.msg(10, scalar, scalar), func(a *graph.Attr) bool { return len(a.Tensors) == 2 && a.Tensors[1].Ints[0] == 42 }},
		{graph.AttrGraphs, pb{}.msg(11, body, body), func(a *graph.Attr) bool { return len(a.Graphs) == 2 && a.Graphs[1].Name == "b" }},
		{graph.AttrSparseTensor, pb{}.msg(22, sparse), func(a *graph.Attr) bool {
			return a.Tensor.Dims[0] == 10 && slices.Equal(a.Tensor.Ints, []int64{5, 6}) && slices.Equal(a.Tensor.Sparse.Ints, []int64{0, 9})
		}},
		{graph.AttrSparseTensors, pb{}.msg(23, sparse), func(a *graph.Attr) bool { return len(a.Tensors) == 1 && a.Tensors[0].Sparse != nil }},
		{graph.AttrType, pb{}.msg(14, pb{}.msg(1, pb{}.int(1, 1))), func(a *graph.Attr) bool { return a.Types[0].Elem == graph.Float32 }},
		{graph.AttrTypes, pb{}.msg(15, pb{}.msg(1, pb{}.int(1, 1)), pb{}), func(a *graph.Attr) bool { return len(a.Types) == 2 }},
	} {
		typed := c.in.str(1, "a").int(20, int64(c.kind))
		foreign := append(slices.Clone(typed), pb{}.int(3, 5)...)
		if c.kind == graph.AttrInt {
			foreign = append(slices.Clone(typed), pb{}.str(4, "foreign")...)
		}
		for i, in1 := range []pb{typed, c.in.str(1, "a"), foreign} {
			g := mustRead(t, model(pb{}.msg(1, node("Op", in("x"), in("y"), in1)).msg(11, value("x", 1))))
			if a := g.Nodes[0].Attr("a"); a == nil || a.Kind != c.kind || !c.want(a) {
				t.Errorf("kind %d reads as %+v", c.kind, a)
			}
			if warned(g, "attribute-type") != (i == 2) {
				t.Errorf("kind %d: warnings %v", c.kind, g.Model.Warnings)
			}
		}
	}
}

// TestCaptures reads x from a subgraph of a subgraph, with a name that an
// inner graph hides.
func TestCaptures(t *testing.T) {
	branch := func(g pb) pb { return pb{}.str(1, "then_branch").int(20, 5).msg(6, g) }
	inner := pb{}.str(2, "inner").msg(1, node("Add", in("x", "hidden"), in("sum"))).msg(12, value("sum", 1))
	middle := pb{}.str(2, "middle").msg(5, pb{}.int(1, 1).int(2, 7).str(8, "hidden").packed(7, 3)).
		msg(1, node("If", in("c"), in("r"), branch(inner))).msg(12, value("r", 1), value("w", 1))
	main := pb{}.str(2, "main").msg(1, node("Relu", in("x"), in("hidden")), node("Relu", in("x"), in("w")), node("If", in("c"), in("y", "z"), branch(middle))).
		msg(11, value("x", 1, 4), value("c", 9)).msg(12, value("y", 1))
	g := mustRead(t, model(main))

	mid := g.Nodes[2].Attr("then_branch").Graph
	in := mid.Nodes[0].Attr("then_branch").Graph
	if mid.Parent != g || in.Parent != mid || in.Model != g.Model {
		t.Fatal("graphs do not know their parents")
	}
	x := find(t, in, "x")
	if x.Kind != graph.Captured || mid.Values[x.Outer].Kind != graph.Captured || g.Values[mid.Values[x.Outer].Outer].Name != "x" {
		t.Errorf("x is %+v", x)
	}
	if !x.Type.Shape[0].Equal(graph.Int(4)) {
		t.Errorf("x has type %+v", x.Type)
	}
	h := find(t, in, "hidden")
	if h.Kind != graph.Captured || mid.Values[h.Outer].Kind != graph.Initializer || h.Const == nil || h.Const.Ints[0] != 3 {
		t.Errorf("hidden is %+v", h)
	}
	if w := mid.Values[mid.Outputs[1]]; w.Kind != graph.Captured || g.Values[w.Outer].Name != "w" {
		t.Errorf("output w is %+v", w)
	}
}

// TestFunctions reads defaults, references and overloads.
func TestFunctions(t *testing.T) {
	f := pb{}.str(1, "f").str(10, "local").str(13, "v2").str(4, "a", "b").str(5, "c").str(6, "axis").
		msg(11, pb{}.str(1, "alpha").fixed32(2, math.Float32bits(0.5)).int(20, 1)).
		msg(9, pb{}.int(2, 18)).msg(12, value("a", 1, 2)).msg(14, entry("k", "v")).
		msg(7, node("Concat", in("a", "b"), in("c"), pb{}.str(1, "axis").str(21, "axis").int(20, 2)))
	g := mustRead(t, small().msg(25, f))
	if len(g.Model.Functions) != 1 {
		t.Fatal("no function")
	}
	fn := g.Model.Functions[0]
	b := fn.Body
	if fn.Name != "f" || fn.Domain != "local" || fn.Overload != "v2" || fn.Opsets[0].Version != 18 || b.Meta[0].Value != "v" {
		t.Errorf("function %+v", fn)
	}
	if fn.Attrs[0].Name != "axis" || fn.Attrs[0].Kind != graph.AttrNone || fn.Attrs[1].F != 0.5 {
		t.Errorf("attributes %+v", fn.Attrs)
	}
	if a := b.Nodes[0].Attr("axis"); a.Ref != "axis" || a.Kind != graph.AttrInt {
		t.Errorf("axis is %+v", a)
	}
	if b.Parent != nil || b.Model != g.Model || b.Values[0].Kind != graph.Input || b.Values[0].Decl.Elem != graph.Float32 {
		t.Errorf("body %+v", b)
	}
}

// TestMetadata reads metadata_props from every place.
func TestMetadata(t *testing.T) {
	p := func(v string) pb { return entry("k", v) }
	g := mustRead(t, model(pb{}.
		msg(1, node("Add", in("x", "w"), in("y")).msg(9, p("node"), entry("pkg.torch.onnx.stack_trace", "line"), entry("pkg.torch.onnx.stack_trace", strings.Repeat("long", 5000)))).
		msg(5, pb{}.int(1, 1).int(2, 1).str(8, "w").str(9, "abcd").msg(16, p("init"))).
		msg(11, value("x", 1).msg(4, p("in"))).msg(12, value("y", 1).msg(4, p("out"))).
		msg(13, value("w", 1).msg(4, entry("k2", "info"))).msg(16, p("graph"))).msg(14, p("model")))
	for _, c := range []struct {
		meta []graph.Prop
		want string
	}{
		{g.Model.Meta, "[{k model}]"}, {g.Meta, "[{k graph}]"}, {g.Nodes[0].Meta, "[{k node} {pkg.torch.onnx.stack_trace line}]"},
		{find(t, g, "x").Meta, "[{k in}]"}, {find(t, g, "y").Meta, "[{k out}]"}, {find(t, g, "w").Meta, "[{k init} {k2 info}]"},
	} {
		if got := fmt.Sprint(c.meta); got != c.want {
			t.Errorf("metadata %s, want %s", got, c.want)
		}
	}
}

// TestExternalData keeps a reference, and reads small tensors where the file
// exists inside the model's directory.
func TestExternalData(t *testing.T) {
	dir := t.TempDir()
	sub := filepath.Join(dir, "sub")
	if err := os.Mkdir(sub, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(sub, "w.bin"), []byte("....\x07\x00\x00\x00\x00\x00\x00\x00"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte("12345678"), 0o666); err != nil {
		t.Fatal(err)
	}
	ext := func(kv ...string) pb {
		w := pb{}.int(1, 1).int(2, 7).str(8, "w").int(14, 1)
		for i := 0; i < len(kv); i += 2 {
			w = w.msg(13, entry(kv[i], kv[i+1]))
		}
		return model(pb{}.msg(1, node("Relu", in("w"), in("y"))).msg(5, w))
	}
	for _, c := range []struct {
		name string
		in   pb
		ref  graph.DataRef
		ints []int64
		warn bool
	}{
		{"there", ext("location", "w.bin", "offset", "4", "length", "8"), graph.DataRef{Location: "w.bin", Offset: 4, Length: 8}, []int64{7}, false},
		{"no length", ext("location", "w.bin", "offset", "4"), graph.DataRef{Location: "w.bin", Offset: 4, Length: -1}, []int64{7}, false},
		{"absent", ext("location", "no.bin"), graph.DataRef{Location: "no.bin", Length: -1}, nil, false},
		{"too short", ext("location", "w.bin", "offset", "8"), graph.DataRef{Location: "w.bin", Offset: 8, Length: -1}, nil, true},
		{"wrong length", ext("location", "w.bin", "length", "4"), graph.DataRef{Location: "w.bin", Length: 4}, nil, true},
		{"outside", ext("location", "../secret"), graph.DataRef{Location: "../secret", Length: -1}, nil, false},
		{"absolute", ext("location", filepath.Join(dir, "secret")), graph.DataRef{Location: filepath.Join(dir, "secret"), Length: -1}, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(sub, "m.onnx")
			if err := os.WriteFile(path, c.in, 0o666); err != nil {
				t.Fatal(err)
			}
			g, err := onnx.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			w := g.Values[0].Const
			if *w.Ref != c.ref || !slices.Equal(w.Ints, c.ints) || warned(g, "external-data") != c.warn {
				t.Errorf("%+v at %+v, warnings %v", w, *w.Ref, g.Model.Warnings)
			}
		})
	}
}

// TestHugeFile loads a sparse file of more than 2 GB, whose weights lie
// between the nodes and the declared types.
func TestHugeFile(t *testing.T) {
	if testing.Short() || runtime.GOOS == "windows" {
		t.Skip("needs sparse files")
	}
	const weights = 3 << 30
	head := pb{}.msg(1, node("MatMul", in("x", "w"), in("y")))
	tensor := pb{}.int(1, weights/4).int(2, 1).str(8, "w")
	tensor = append(tensor, 9<<3|2)
	tensor = appendLength(tensor, weights)
	tail := pb{}.msg(11, value("x", 1, 2)).msg(12, value("y", 1, 2))

	g := append(head, 5<<3|2)
	g = append(appendLength(g, len(tensor)+weights), tensor...)
	front := append(pb{}.int(1, 8).msg(8, pb{}.int(2, 17)), 7<<3|2)
	front = append(appendLength(front, len(g)+weights+len(tail)), g...)

	path := filepath.Join(t.TempDir(), "huge.onnx")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size := int64(len(front)) + weights + int64(len(tail))
	if err := f.Truncate(size); err != nil {
		t.Skip("no sparse files here: ", err)
	}
	for off, b := range map[int64]pb{0: front, size - int64(len(tail)): tail} {
		if _, err := f.WriteAt(b, off); err != nil {
			t.Fatal(err)
		}
	}

	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	m, err := onnx.Load(path)
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 4<<20 {
		t.Errorf("loading allocated %d bytes", used)
	}
	w := find(t, m, "w").Const
	if *w.Ref != (graph.DataRef{Offset: int64(len(front)), Length: weights}) || w.Known() {
		t.Errorf("weights %+v at %+v", w, *w.Ref)
	}
	if m.Model.SHA256 != "" {
		t.Error("a huge file was hashed")
	}
	if find(t, m, "x").Decl.Elem != graph.Float32 {
		t.Error("what follows the weights was not read")
	}
}

func appendLength(b pb, n int) pb {
	for ; n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(b, byte(n))
}

// TestAllocationIsBounded reads hostile files, whose numbers promise more
// than they hold, and files of many tiny messages.
func TestAllocationIsBounded(t *testing.T) {
	many := func(b string) pb { return model(pb(strings.Repeat(b, 3<<20/len(b)))) }
	for _, c := range []struct {
		name string
		in   pb
		max  uint64 // bytes
	}{
		{"dims", model(pb{}.msg(5, pb{}.int(1, 1<<31, 1<<30).int(2, 1).str(8, "w"))), 1 << 20},
		{"value infos", many("\x6a\x00"), 256 << 20},
		{"nodes", many("\x0a\x03\x22\x01r"), 256 << 20},
		{"node inputs", model(pb{}.msg(1, append(pb{}.str(4, "r"), strings.Repeat("\x0a\x00", 3<<19)...))), 256 << 20},
		{"dims", model(pb{}.msg(13, pb{}.msg(2, pb{}.msg(1, pb{}.msg(2, pb(strings.Repeat("\x0a\x00", 3<<19))))))), 256 << 20},
		{"ints", model(pb{}.msg(1, node("r", nil, nil, pb(strings.Repeat("\x40\x00", 3<<19)).str(1, "a")))), 256 << 20},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := read(c.in)
		runtime.ReadMemStats(&after)
		used := after.TotalAlloc - before.TotalAlloc
		if used > c.max {
			t.Errorf("%s: %d bytes allocated for a file of %d (error: %v)", c.name, used, len(c.in), err)
		}
	}
}

// FuzzLoad reads anything: no panic, and what reads passes the checker.
func FuzzLoad(f *testing.F) {
	for _, seed := range seeds() {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := read(b)
		if err != nil {
			if strings.Contains(err.Error(), "\n") && !strings.Contains(string(b), "\n") {
				t.Errorf("error of several lines: %q", err)
			}
			return
		}
		if err := graph.Check(g); err != nil {
			t.Error(err)
		}
	})
}

// seeds are small models that use most of the format.
func seeds() []pb {
	branch := pb{}.str(1, "then_branch").int(20, 5).msg(6, pb{}.msg(1, node("Relu", in("x"), in("t"))).msg(12, value("t", 1)))
	attrs := node("Op", in("x", ""), in("y"), pb{}.str(1, "i").int(3, 1).int(20, 2), pb{}.str(1, "is").packed(8, 1, 2).int(20, 7),
		pb{}.str(1, "t").msg(5, pb{}.int(2, 7).packed(7, 3)).int(20, 4), pb{}.str(1, "r").str(21, "q").int(20, 1))
	inits := pb{}.msg(1, node("Add", in("x", "w"), in("y"))).msg(11, value("x", 1, -1, 2)).msg(12, value("y", 1)).
		msg(5, pb{}.int(1, 1).int(2, 1).str(8, "w").str(9, "abcd"), pb{}.int(1, 2).int(2, 22).str(8, "v").packed(5, 0x21)).
		msg(15, pb{}.msg(1, pb{}.int(1, 1).int(2, 7).str(8, "s").packed(7, 5)).msg(2, pb{}.int(1, 1).int(2, 7).packed(7, 0)).packed(3, 10))
	return []pb{
		small(),
		model(pb{}.msg(1, node("If", in("c"), in("y"), branch)).msg(11, value("x", 1), value("c", 9)).msg(12, value("y", 1))),
		model(pb{}.msg(1, attrs).msg(11, value("x", 1)).msg(16, entry("k", "v"))),
		model(inits),
		small().msg(25, function("f", node("Relu", nil, in("a")))),
	}
}
