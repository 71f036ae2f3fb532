//go:build linux

package main

import (
	"bytes"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// A bomb is a valid model, or nearly so, that grows with n in one way.
type bomb struct {
	name string
	most int // the largest n of a case
	make func(n int) []*field
}

// modelScaled makes one thing of a model large: time and memory must stay in
// proportion to the file.
func modelScaled(b *builder) {
	s := pick(b.r, bombs)
	n := s.most
	if !b.chance(3) {
		n = 1 + b.r.IntN(s.most)
	}
	b.file("m.onnx", encode(s.make(n)))
	switch b.r.IntN(6) {
	case 0:
		b.run("show", "m.onnx")
		b.format("text", "json")
	case 1:
		b.run("list", "ops", "--model", "m.onnx")
	case 2:
		b.run("analyze", "m.onnx", "--mode", "infer")
		b.format("text", "json", "markdown", "sarif", "html")
	default:
		b.run("analyze", "m.onnx", "--batch", "2")
		b.format("text", "json", "markdown", "sarif", "html")
	}
}

func names(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprint(prefix, i)
	}
	return out
}

var bombs = []bomb{
	{"chain", 100_000, func(n int) []*field { return chainOf(n, "Relu") }},
	{"chain of additions", 50_000, func(n int) []*field {
		g := []*field{input("a0", elemFloat, 2, 3), output(fmt.Sprint("a", n), elemFloat, 2, 3)}
		for i := range n {
			g = append(g, node("Add", []string{fmt.Sprint("a", i), "a0"}, []string{fmt.Sprint("a", i+1)}))
		}
		return model(20, g...)
	}},
	{"operands", 1_000_000, func(n int) []*field {
		in := make([]string, n)
		for i := range in {
			in[i] = "x"
		}
		return model(20, input("x", elemFloat, 2, 3), output("y", elemFloat, 2, 3), node("Sum", in, []string{"y"}))
	}},
	{"operands of Concat", 200_000, func(n int) []*field {
		in := make([]string, n)
		for i := range in {
			in[i] = "x"
		}
		return model(20, input("x", elemFloat, 2, 3), output("y", elemFloat), node("Concat", in, []string{"y"}, intAttr("axis", 0)))
	}},
	{"dots", 50_000, func(n int) []*field {
		w := strings.Repeat("a.", n)
		return model(20, input("x", elemFloat, 2, 2), output("y", elemFloat, 2, 2), tensor(w, elemFloat, make([]byte, 16), 2, 2), node("MatMul", []string{"x", w}, []string{"y"}))
	}},
	{"slashes", 50_000, func(n int) []*field {
		nd := node("Relu", []string{"x"}, []string{"y"})
		nd.sub = append(nd.sub, str(3, strings.Repeat("/a", n)), entry(9, "namespace", strings.Repeat("a.b: c/", n)+"relu: aten.relu.default"),
			entry(9, "pkg.torch.onnx.name_scopes", "['"+strings.Repeat("a', 'a.b", n)+"']"), entry(9, "pkg.torch.onnx.class_hierarchy", "['"+strings.Repeat("a', 'b", n)+"']"))
		return model(20, input("x", elemFloat, 2, 2), output("y", elemFloat, 2, 2), nd)
	}},
	{"inputs", 100_000, func(n int) []*field {
		g := []*field{output("y", elemFloat, 2), node("Relu", []string{"i0"}, []string{"y"})}
		for _, name := range names("i", n) {
			g = append(g, input(name, elemFloat, 2))
		}
		return model(20, g...)
	}},
	{"initializers", 50_000, func(n int) []*field {
		g := []*field{input("x", elemFloat, 2), output("y", elemFloat, 2), node("Relu", []string{"x"}, []string{"y"})}
		for _, name := range names("w", n) {
			g = append(g, tensor(name, elemFloat, make([]byte, 8), 2))
		}
		return model(20, g...)
	}},
	{"symbols", 20_000, func(n int) []*field {
		g := []*field{output("y", elemFloat), node("Concat", names("i", n), []string{"y"}, intAttr("axis", 0))}
		for i, name := range names("i", n) {
			g = append(g, symbolic(name, fmt.Sprint("d", i)))
		}
		return model(20, g...)
	}},
	{"rank", 200_000, func(n int) []*field {
		dims := make([]int64, n)
		for i := range dims {
			dims[i] = 1
		}
		return model(20, input("x", elemFloat, dims...), output("y", elemFloat), node("Transpose", []string{"x"}, []string{"t"}), node("Relu", []string{"t"}, []string{"y"}))
	}},
	{"results", 200_000, func(n int) []*field {
		return model(20, input("x", elemFloat, int64(n), 2), output("s0", elemFloat, 1, 2), node("Split", []string{"x"}, names("s", n), intAttr("num_outputs", int64(n))))
	}},
	{"functions", 20_000, func(n int) []*field {
		m := model(20, input("x", elemFloat, 2), output("y", elemFloat, 2), local(node("F0", []string{"x"}, []string{"y"})))
		for i := range n {
			m = append(m, function(fmt.Sprint("F", i), []string{"x"}, []string{"y"}, local(node(fmt.Sprint("F", i+1), []string{"x"}, []string{"y"}))))
		}
		return append(m, function(fmt.Sprint("F", n), []string{"x"}, []string{"y"}, node("Relu", []string{"x"}, []string{"y"})))
	}},
	{"calls", 30_000, func(n int) []*field {
		body := make([]*field, 0, 100)
		for i := range 100 {
			body = append(body, node("Relu", []string{fmt.Sprint("b", i)}, []string{fmt.Sprint("b", i+1)}))
		}
		g := []*field{input("a0", elemFloat, 2), output(fmt.Sprint("a", n), elemFloat, 2)}
		for i := range n {
			g = append(g, local(node("F", []string{fmt.Sprint("a", i)}, []string{fmt.Sprint("a", i+1)})))
		}
		return append(model(20, g...), function("F", []string{"b0"}, []string{"b100"}, body...))
	}},
	{"subgraphs", 5_000, func(n int) []*field {
		y := output("y", elemFloat, 2)
		inner := []*field{str(2, "s"), node("Relu", []string{"x"}, []string{"y"}), y}
		for range min(n, 1500) { // encoding takes the square of it
			inner = []*field{str(2, "s"), node("If", []string{"c"}, []string{"y"}, graphAttr("then_branch", inner...), graphAttr("else_branch", str(2, "e"), node("Relu", []string{"x"}, []string{"y"}), y)), y}
		}
		return model(20, append(inner[1:], input("x", elemFloat, 2), input("c", elemBool))...)
	}},
	{"folded fill", 40, func(n int) []*field {
		return model(20, int64s("s", 1<<min(n, 40)), node("ConstantOfShape", []string{"s"}, []string{"c"}), node("Reshape", []string{"x", "c"}, []string{"y"}), input("x", elemFloat, 2), output("y", elemFloat))
	}},
	{"folded range", 62, func(n int) []*field {
		return model(20, tensor("z", elemInt64, make([]byte, 8)), tensor("o", elemInt64, []byte{1, 0, 0, 0, 0, 0, 0, 0}), int64Scalar("e", 1<<n), node("Range", []string{"z", "e", "o"}, []string{"c"}),
			node("Reshape", []string{"x", "c"}, []string{"y"}), input("x", elemFloat, 2), output("y", elemFloat))
	}},
	{"folded doubling", 60, func(n int) []*field {
		g := []*field{int64s("c0", 1, 1), input("x", elemFloat, 1), output("y", elemFloat)}
		for i := range n {
			c := fmt.Sprint("c", i)
			g = append(g, node("Concat", []string{c, c}, []string{fmt.Sprint("c", i+1)}, intAttr("axis", 0)))
		}
		return model(20, append(g, node("Reshape", []string{"x", fmt.Sprint("c", n)}, []string{"y"}))...)
	}},
	{"folded tiles", 40, func(n int) []*field {
		g := []*field{int64s("c0", 1, 1), int64s("two", 2), input("x", elemFloat, 1), output("y", elemFloat)}
		for i := range n {
			g = append(g, node("Tile", []string{fmt.Sprint("c", i), "two"}, []string{fmt.Sprint("c", i+1)}))
		}
		return model(20, append(g, node("Reshape", []string{"x", fmt.Sprint("c", n)}, []string{"y"}))...)
	}},
	{"doubled expressions", 200, func(n int) []*field { return squared(n, "Add") }},
	{"squared expressions", 200, func(n int) []*field { return squared(n, "Mul") }},
	{"products of sums", 60, func(n int) []*field {
		g := []*field{symbolic("x", "a", "b"), output("y", elemFloat), node("Shape", []string{"x"}, []string{"p0"}), int64s("back", -1), int64s("one", 1),
			int64s("i0", 0), int64s("i1", 1), node("Gather", []string{"p0", "i0"}, []string{"a"}), node("Gather", []string{"p0", "i1"}, []string{"b"}), node("Add", []string{"a", "b"}, []string{"e0"})}
		for i := range n {
			g = append(g, node("Add", []string{fmt.Sprint("e", i), "one"}, []string{fmt.Sprint("f", i)}), node("Mul", []string{fmt.Sprint("f", i), fmt.Sprint("e", i)}, []string{fmt.Sprint("g", i)}),
				node("Div", []string{fmt.Sprint("g", i), "b"}, []string{fmt.Sprint("e", i+1)}))
		}
		return model(20, append(g, node("ConstantOfShape", []string{fmt.Sprint("e", n)}, []string{"y"}))...)
	}},
	{"einsum", 20_000, func(n int) []*field {
		in := strings.TrimSuffix(strings.Repeat("ab,", n), ",")
		return model(20, input("x", elemFloat, 2, 2), output("y", elemFloat), node("Einsum", strings.Split(strings.TrimSuffix(strings.Repeat("x,", n), ","), ","), []string{"y"}, stringAttr("equation", in+"->ab")))
	}},
	{"long names", 2_000_000, func(n int) []*field {
		long := strings.Repeat("n", n)
		return model(20, input(long, elemFloat, 2), output("y", elemFloat, 2), node("Relu", []string{long}, []string{"y"}))
	}},
	{"metadata", 100_000, func(n int) []*field {
		m := model(20, input("x", elemFloat, 2), output("y", elemFloat, 2), node("Relu", []string{"x"}, []string{"y"}))
		for _, name := range names("k", n) {
			m = append(m, entry(14, name, "v"))
		}
		return m
	}},
	{"attributes", 100_000, func(n int) []*field {
		nd := node("Relu", []string{"x"}, []string{"y"})
		for _, name := range names("a", n) {
			nd.sub = append(nd.sub, intAttr(name, 1))
		}
		return model(20, input("x", elemFloat, 2), output("y", elemFloat, 2), nd)
	}},
	{"fan out", 30_000, func(n int) []*field {
		g := []*field{input("x", elemFloat, 2), output("y", elemFloat, 2), node("Sum", names("o", n), []string{"y"})}
		for _, name := range names("o", n) {
			g = append(g, node("Relu", []string{"x"}, []string{name}))
		}
		return model(20, g...)
	}},
	{"views", 30_000, func(n int) []*field {
		g := []*field{input("v0", elemFloat, 2, 3), output(fmt.Sprint("v", n), elemFloat)}
		for i := range n {
			g = append(g, node("Transpose", []string{fmt.Sprint("v", i)}, []string{fmt.Sprint("v", i+1)}, intsAttr("perm", 1, 0)))
		}
		return model(20, g...)
	}},
	{"bytes of zero", 3_000_000, func(n int) []*field {
		return []*field{num(1, 10), {num: 7, typ: protowire.BytesType, data: make([]byte, n)}}
	}},
	{"empty fields", 1_000_000, func(n int) []*field {
		return []*field{num(1, 10), {num: 7, typ: protowire.BytesType, data: bytes.Repeat([]byte{0x0a, 0x00}, n)}}
	}},
	{"linear layers", 3_000, func(n int) []*field {
		g := []*field{input("h0", elemFloat, 2, 4), output(fmt.Sprint("h", n), elemFloat, 2, 4)}
		for i := range n {
			w := fmt.Sprintf("layers.%d.weight", i)
			g = append(g, tensor(w, elemFloat, make([]byte, 64), 4, 4), node("MatMul", []string{fmt.Sprint("h", i), w}, []string{fmt.Sprint("h", i+1)}))
		}
		return model(20, g...)
	}},
}

// chainOf is one operator after the other.
func chainOf(n int, op string) []*field {
	g := []*field{input("a0", elemFloat, 2, 3), output(fmt.Sprint("a", n), elemFloat, 2, 3)}
	for i := range n {
		g = append(g, node(op, []string{fmt.Sprint("a", i)}, []string{fmt.Sprint("a", i+1)}))
	}
	return model(20, g...)
}

// squared combines a symbolic shape with itself again and again.
func squared(n int, op string) []*field {
	g := []*field{symbolic("x", "a", "b"), output("y", elemFloat), node("Shape", []string{"x"}, []string{"e0"})}
	for i := range n {
		e := fmt.Sprint("e", i)
		g = append(g, node(op, []string{e, e}, []string{fmt.Sprint("e", i+1)}))
	}
	return model(20, append(g, node("ConstantOfShape", []string{fmt.Sprint("e", n)}, []string{"y"}))...)
}

func int64Scalar(name string, v int64) *field {
	t := int64s(name, v)
	var sub []*field
	for _, f := range t.sub {
		if f.num != 1 {
			sub = append(sub, f)
		}
	}
	t.sub = sub
	return t
}

// entry is a StringStringEntryProto.
func entry(n protowire.Number, key, value string) *field {
	return msg(n, "Entry", str(1, key), str(2, value))
}
