//go:build linux

package main

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/memplan/memplan/internal/testdata"
)

// node returns a NodeProto.
func node(op string, ins, outs []string, attrs ...pb) pb {
	return pb{}.str(1, ins...).str(2, outs...).str(4, op).msg(5, attrs...)
}

// ints returns an attribute of integers, text one of a string, body one of a graph.
func ints(name string, vs []int64) pb {
	return pb{}.str(1, name).packed(8, vs).int(20, 7)
}

func intAttr(name string, v int64) pb { return pb{}.str(1, name).int(3, v).int(20, 2) }

func text(name, s string) pb { return pb{}.str(1, name).str(4, s).int(20, 3) }

func body(name string, g pb) pb { return pb{}.str(1, name).msg(6, g).int(20, 5) }

func tensorAttr(name string, t pb) pb { return pb{}.str(1, name).msg(5, t).int(20, 4) }

// value returns a ValueInfoProto of floats; a dim is a number or a symbol.
func value(name string, dims ...any) pb { return typed(name, 1, dims...) }

func typed(name string, elem int64, dims ...any) pb {
	var shape pb
	for _, d := range dims {
		switch d := d.(type) {
		case int:
			shape = shape.msg(1, pb{}.int(1, int64(d)))
		case string:
			shape = shape.msg(1, pb{}.str(2, d))
		}
	}
	return pb{}.str(1, name).msg(2, pb{}.msg(1, pb{}.int(1, elem).msg(2, shape)))
}

// int64s returns an int64 tensor of one dimension, scalar one without any.
func int64s(name string, vs ...int64) pb {
	return pb{}.int(1, int64(len(vs))).int(2, 7).packed(7, vs).str(8, name)
}

func scalar(name string, v int64) pb { return pb{}.int(2, 7).int(7, v).str(8, name) }

// weight returns a float tensor without its elements.
func weight(name string, dims ...int64) pb { return pb{}.int(1, dims...).int(2, 1).str(8, name) }

// model wraps a graph, and functions, of opset 17.
func model(g pb, functions ...pb) []byte {
	return pb{}.int(1, 8).msg(8, pb{}.int(2, 17)).msg(8, pb{}.str(1, "f").int(2, 1)).msg(7, g).msg(25, functions...)
}

// around completes a graph from x to y: x is the product of an input and a weight,
// floats of 4 by 4.
func around(g pb) []byte {
	first := pb{}.msg(1, node("MatMul", []string{"in", "w0"}, []string{"x"})).msg(5, weight("w0", 4, 4)).msg(11, value("in", 4, 4))
	return model(append(first, g.msg(12, value("y"))...))
}

// seq calls f for 0 to n-1 and collects what it returns.
func seq(n int, f func(i int) string) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = f(i)
	}
	return out
}

func repeat(n int, s string) []string { return seq(n, func(int) string { return s }) }

func count(n int) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = int64(i)
	}
	return out
}

// short is a name of few letters.
func short(i int) string { return fmt.Sprintf("%x", i) }

// chain joins n nodes of an operator with one operand from x to y.
func chain(g pb, n int, op string, attrs ...pb) pb {
	last := "x"
	for i := range n {
		out := short(i) + "_"
		if i == n-1 {
			out = "y"
		}
		g = g.msg(1, node(op, []string{last}, []string{out}, attrs...))
		last = out
	}
	return g
}

// A growth is a kind of input whose size is n, and how it is read. Time and
// memory must grow no faster than n log n, or the file is refused.
type growth struct {
	name string
	n    int      // for the test: a small file, of at most some megabytes
	ext  string   // of the file; "" is onnx
	args []string // command line before the file; nil: analyze --mode infer
	make func(n int) []byte
	want string // part of the refusal, or answered; "": either
	most int64  // bytes of memory; 0: 500 MB
}

// answered says that an input is valid, and must be.
const answered = "an answer"

func args(s string) []string { return strings.Fields(s) }

// growths are inputs that once took, or could take, more than linear time.
var growths = []growth{
	{name: "chain-show", want: answered, n: 100_000, args: args("show --format json"), make: relus},
	{name: "chain-infer", want: answered, n: 100_000, make: relus},
	{name: "chain-train", want: answered, most: 1200 << 20, n: 100_000, args: args("analyze --loss sum"), make: relus},
	{name: "chain-longer", want: answered, most: 1200 << 20, n: 200_000, make: relus},
	{name: "chain-vram", n: 20_000, args: args("analyze --loss sum --vram 4G"), make: relus},
	{name: "matmuls-train", n: 20_000, args: args("analyze --loss sum"), make: matmuls},
	{name: "matmuls-vram", n: 5_000, args: args("analyze --loss sum --vram 1G"), make: matmuls},
	{name: "dots", want: answered, n: 50_000, make: func(n int) []byte {
		return around(pb{}.msg(5, weight(strings.Repeat("a.", n)+"w", 4, 4)).msg(1, node("MatMul", []string{"x", strings.Repeat("a.", n) + "w"}, []string{"y"})))
	}},
	{name: "dots-train", want: answered, n: 50_000, args: args("analyze --loss sum"), make: func(n int) []byte {
		return around(pb{}.msg(5, weight(strings.Repeat("a.", n)+"w", 4, 4)).msg(1, node("MatMul", []string{"x", strings.Repeat("a.", n) + "w"}, []string{"y"})))
	}},
	{name: "dots-vram", want: answered, n: 50_000, args: args("analyze --loss sum --vram 1G"), make: func(n int) []byte {
		return around(pb{}.msg(5, weight(strings.Repeat("a.", n)+"w", 4, 4)).msg(1, node("MatMul", []string{"x", strings.Repeat("a.", n) + "w"}, []string{"y"})))
	}},
	{name: "slashes-train", want: answered, n: 50_000, args: args("analyze --loss sum"), make: func(n int) []byte {
		return around(pb{}.msg(5, weight("w", 4, 4)).msg(1, node("MatMul", []string{"x", "w"}, []string{"y"}).str(3, strings.Repeat("/a", n)+"/MatMul")))
	}},
	{name: "deep-modules", n: 300, args: args("analyze --loss sum"), make: func(n int) []byte {
		g, last := pb{}, "x"
		for i := range n {
			name := strings.Repeat("a.", i) + "weight"
			out := "y"
			if i < n-1 {
				out = short(i) + "_"
			}
			g = g.msg(5, weight(name, 4, 4)).msg(1, node("MatMul", []string{last, name}, []string{out}).str(3, "/"+strings.ReplaceAll(name, ".", "/")))
			last = out
		}
		return around(g)
	}},
	{name: "namespace", n: 20_000, args: args("analyze --loss sum"), make: func(n int) []byte {
		ns := strings.Repeat("a: m/", n) + "relu: aten.relu.default"
		return around(pb{}.msg(1, node("Relu", []string{"x"}, []string{"y"}).msg(9, pb{}.str(1, "namespace").str(2, ns))))
	}},
	{name: "name-scopes", n: 20_000, args: args("analyze --loss sum"), make: func(n int) []byte {
		s := "[" + strings.Repeat("'a.b', ", n) + "'relu']"
		return around(pb{}.msg(1, node("Relu", []string{"x"}, []string{"y"}).msg(9, pb{}.str(1, "pkg.torch.onnx.name_scopes").str(2, s), pb{}.str(1, "pkg.torch.onnx.class_hierarchy").str(2, s), pb{}.str(1, "namespace").str(2, "m: a/relu: aten.relu.default"))))
	}},
	{name: "stack-trace", n: 20_000, args: args("analyze --loss sum"), make: func(n int) []byte {
		s := strings.Repeat("  File \"/a/b.py\", line 7, in forward\n    x = self.relu(x)\n", n)
		return around(pb{}.msg(1, node("Relu", []string{"x"}, []string{"y"}).msg(9, pb{}.str(1, "pkg.torch.onnx.stack_trace").str(2, s), pb{}.str(1, "namespace").str(2, "m: a/relu: aten.relu.default"))))
	}},
	{name: "sum-same", want: "inputs and outputs, more than the 262144", n: 1_000_000, make: sums("Sum")},
	{name: "max-same", want: "inputs and outputs, more than the 262144", n: 1_000_000, make: sums("Max")},
	{name: "sum-train", want: "inputs and outputs, more than the 262144", n: 1_000_000, args: args("analyze --loss sum"), make: sums("Sum")},
	{name: "sum-batch", want: "inputs and outputs, more than the 262144", n: 1_000_000, args: args("analyze --mode infer --batch 3"), make: sums("Sum")},
	{name: "sum-show", want: answered, n: 1_000_000, args: args("show"), make: sums("Sum")},
	{name: "sum-json", want: answered, n: 1_000_000, args: args("show --format json"), make: sums("Sum")},
	{name: "concat-same", n: 1_000_000, make: sums("Concat", intAttr("axis", 0))},
	{name: "einsum-same", n: 100_000, make: func(n int) []byte { return sums("Einsum", text("equation", strings.Repeat("ab,", n-1)+"ab->ab"))(n) }},
	{name: "einsum-letters", n: 100_000, make: func(n int) []byte { return sums("Einsum", text("equation", strings.Repeat("ab", n)+"->ab"))(1) }},
	{name: "sum-inputs", n: 50_000, make: func(n int) []byte {
		names := seq(n, short)
		g := pb{}.msg(1, node("Sum", names, []string{"y"}))
		for _, s := range names {
			g = g.msg(11, value(s, 4))
		}
		return around(g)
	}},
	{name: "sum-weights", n: 20_000, args: args("analyze --loss sum"), make: func(n int) []byte {
		names := seq(n, short)
		g := pb{}.msg(1, node("Sum", append(names, "x"), []string{"y"}))
		for _, s := range names {
			g = g.msg(5, weight(s, 4))
		}
		return around(g)
	}},
	{name: "split-many", n: 50_000, make: func(n int) []byte {
		return model(pb{}.msg(11, value("x", n)).msg(12, value("1")).msg(1, node("Split", []string{"x"}, seq(n, short))))
	}},
	{name: "fan", want: answered, n: 50_000, make: fan},
	{name: "fan-train", want: answered, most: 1200 << 20, n: 50_000, args: args("analyze --loss sum"), make: fan},
	{name: "adds-shared", n: 50_000, args: args("analyze --loss sum"), make: func(n int) []byte {
		g, last := pb{}, "x"
		for i := range n {
			out := "y"
			if i < n-1 {
				out = short(i) + "_"
			}
			g = g.msg(1, node("Add", []string{last, "x"}, []string{out}))
			last = out
		}
		return around(g)
	}},
	{name: "views", n: 50_000, args: args("analyze --loss sum"), make: func(n int) []byte {
		return around(chain(pb{}, n, "Transpose", ints("perm", []int64{1, 0})))
	}},
	{name: "outputs", n: 50_000, args: args("analyze --loss sum"), make: func(n int) []byte {
		g := pb{}
		for i := range n {
			g = g.msg(1, node("Relu", []string{"x"}, []string{short(i) + "_"})).msg(12, value(short(i)+"_"))
		}
		return model(g.msg(11, value("x", 4, 4)))
	}},
	{name: "if-nest", n: 60, make: func(n int) []byte {
		g := pb{}.msg(1, node("Relu", []string{"x"}, []string{"o"})).msg(12, value("o"))
		for range n {
			g = pb{}.msg(1, node("If", []string{"c"}, []string{"o"}, body("then_branch", g), body("else_branch", pb{}.msg(1, node("Relu", []string{"x"}, []string{"o"})).msg(12, value("o"))))).msg(12, value("o"))
		}
		return model(g.msg(11, value("x", 4, 4), typed("c", 9)))
	}},
	{name: "loop-nest", n: 60, make: func(n int) []byte {
		g := pb{}.msg(1, node("Relu", []string{"v"}, []string{"o"}))
		g = g.msg(1, node("Identity", []string{"d"}, []string{"e"})).msg(11, typed("i", 7), typed("d", 9), value("v")).msg(12, typed("e", 9), value("o"))
		for range n {
			g = pb{}.msg(1, node("Loop", []string{"m", "c", "v"}, []string{"o"}, body("body", g)), node("Identity", []string{"d"}, []string{"e"})).
				msg(11, typed("i", 7), typed("d", 9), value("v")).msg(12, typed("e", 9), value("o"))
		}
		return model(pb{}.msg(1, node("Loop", []string{"m", "c", "x"}, []string{"y"}, body("body", g))).msg(11, value("x", 4, 4), typed("m", 7), typed("c", 9)).msg(12, value("y")))
	}},
	{name: "if-many", n: 20_000, make: func(n int) []byte {
		g := pb{}
		sub := pb{}.msg(1, node("Relu", []string{"x"}, []string{"o"})).msg(12, value("o"))
		for i := range n {
			g = g.msg(1, node("If", []string{"c"}, []string{short(i) + "_"}, body("then_branch", sub), body("else_branch", sub)))
		}
		return model(g.msg(11, value("x", 4, 4), typed("c", 9)).msg(12, value("0_")))
	}},
	{name: "functions-doubling", n: 40, make: func(n int) []byte { return calls(n, 2) }},
	{name: "functions-chain", n: 2_000, make: func(n int) []byte { return calls(n, 1) }},
	{name: "shape-squares", n: 30, args: args("show"), make: func(n int) []byte { return arithmetic(n, "Mul", "%[1]s", "%[1]s") }},
	{name: "shape-doubling", n: 200, args: args("show"), make: func(n int) []byte { return arithmetic(n, "Add", "%[1]s", "%[1]s") }},
	{name: "shape-products", n: 2_000, args: args("show"), make: func(n int) []byte { return symbols(n, "Mul", true) }},
	{name: "shape-sums", n: 2_000, args: args("show"), make: func(n int) []byte { return symbols(n, "Add", false) }},
	{name: "shape-div", n: 2_000, args: args("show"), make: func(n int) []byte { return symbols(n, "Div", true) }},
	{name: "shape-max", n: 2_000, args: args("show"), make: func(n int) []byte { return symbols(n, "Max", true) }},
	{name: "shape-sum-of-all", n: 100_000, args: args("show"), make: func(n int) []byte {
		return model(shapeOf(n).msg(1, node("ReduceProd", []string{"s"}, []string{"p"}, intAttr("keepdims", 1)), node("ConstantOfShape", []string{"p"}, []string{"y"})).msg(12, value("y")))
	}},
	{name: "dim-expression", n: 100_000, args: args("show"), make: func(n int) []byte {
		return model(chain(pb{}, 1, "Relu").msg(11, value("x", strings.Repeat("(a+b)*", n)+"c")).msg(12, value("y")))
	}},
	{name: "dim-parens", n: 100_000, args: args("show"), make: func(n int) []byte {
		return model(chain(pb{}, 1, "Relu").msg(11, value("x", strings.Repeat("(", n)+"c"+strings.Repeat(")", n))).msg(12, value("y")))
	}},
	{name: "dim-sums", n: 100_000, args: args("show"), make: func(n int) []byte {
		return model(chain(pb{}, 1, "Relu").msg(11, value("x", "a+"+strings.Join(seq(n, func(i int) string { return "b" + short(i) }), " + "))).msg(12, value("y")))
	}},
	{name: "dim-minus", n: 100_000, args: args("show"), make: func(n int) []byte {
		return model(chain(pb{}, 1, "Relu").msg(11, value("x", strings.Repeat("-", n)+"(c)")).msg(12, value("y")))
	}},
	{name: "dim-power", n: 30, args: args("show"), make: func(n int) []byte {
		return model(chain(pb{}, 1, "Relu").msg(11, value("x", strings.Repeat("(a+b+c+d+e+f+g)*", n)+"1")).msg(12, value("y")))
	}},
	{name: "dim-names", n: 50_000, args: args("show"), make: func(n int) []byte {
		g := chain(pb{}, 1, "Relu").msg(12, value("y")).msg(11, value("x", 4, 4))
		for i := range n {
			g = g.msg(11, value(short(i)+"_", "d"+short(i)))
		}
		return model(g)
	}},
	{name: "dim-decls", n: 20_000, args: args("show"), make: func(n int) []byte {
		g := chain(pb{}, n, "Relu").msg(12, value("y")).msg(11, value("x", "batch", 4))
		for i := range n {
			g = g.msg(13, value(short(i)+"_", "d"+short(i), 4))
		}
		return model(g)
	}},
	{name: "rank-show", n: 100_000, args: args("show"), make: rank},
	{name: "rank", n: 100_000, make: rank},
	{name: "rank-train", n: 100_000, args: args("analyze --loss sum"), make: rank},
	{name: "rank-add", n: 50_000, make: func(n int) []byte {
		return model(pb{}.msg(1, node("Add", []string{"x", "z"}, []string{"y"})).msg(11, typedRank("x", n), typedRank("z", n)).msg(12, value("y")))
	}},
	{name: "transpose", n: 50_000, make: func(n int) []byte {
		return model(pb{}.msg(1, node("Transpose", []string{"x"}, []string{"y"}, ints("perm", count(n)))).msg(11, typedRank("x", n)).msg(12, value("y")))
	}},
	{name: "axes", n: 1_000_000, make: func(n int) []byte {
		return around(pb{}.msg(1, node("ReduceSum", []string{"x", "a"}, []string{"y"})).msg(5, int64s("a", make([]int64, n)...)))
	}},
	{name: "axes-attribute", n: 100_000, make: func(n int) []byte {
		return model(pb{}.msg(1, node("ReduceMax", []string{"x"}, []string{"y"}, ints("axes", count(n)))).msg(11, typedRank("x", n)).msg(12, value("y")))
	}},
	{name: "squeeze-attribute", n: 100_000, make: func(n int) []byte {
		return model(pb{}.msg(1, node("Transpose", []string{"x"}, []string{"z"}), node("Flatten", []string{"z"}, []string{"y"}, intAttr("axis", int64(n/2)))).msg(11, typedRank("x", n)).msg(12, value("y")))
	}},
	{name: "reshape", n: 1_000_000, make: func(n int) []byte {
		return around(pb{}.msg(1, node("Reshape", []string{"x", "a"}, []string{"y"})).msg(5, int64s("a", append(make([]int64, n), -1)...)))
	}},
	{name: "reshape-known", n: 4_000, make: func(n int) []byte {
		ones := make([]int64, n)
		for i := range ones {
			ones[i] = 1
		}
		return around(pb{}.msg(1, node("Reshape", []string{"x", "a"}, []string{"y"})).msg(5, int64s("a", append(ones, -1)...)))
	}},
	{name: "constants", n: 1_000_000_000_000, make: func(n int) []byte {
		return model(pb{}.msg(5, int64s("a", int64(n))).msg(1, node("ConstantOfShape", []string{"a"}, []string{"y"}, tensorAttr("value", int64s("", 7)))).msg(12, value("y")))
	}},
	{name: "range", n: 1_000_000_000_000, make: func(n int) []byte {
		return model(pb{}.msg(5, scalar("a", 0), scalar("b", int64(n)), scalar("c", 1)).msg(1, node("Range", []string{"a", "b", "c"}, []string{"y"})).msg(12, value("y")))
	}},
	{name: "tile", n: 1_000_000_000_000, make: func(n int) []byte {
		return model(pb{}.msg(5, int64s("a", 1, 2), int64s("b", int64(n))).msg(1, node("Tile", []string{"a", "b"}, []string{"y"})).msg(12, value("y")))
	}},
	{name: "expand", n: 1_000_000_000_000, make: func(n int) []byte {
		return model(pb{}.msg(5, int64s("a", 1), int64s("b", int64(n))).msg(1, node("Expand", []string{"a", "b"}, []string{"y"})).msg(12, value("y")))
	}},
	{name: "pad", n: 1_000_000_000_000, make: func(n int) []byte {
		return model(pb{}.msg(5, int64s("a", 1), int64s("b", int64(n), 0)).msg(1, node("Pad", []string{"a", "b"}, []string{"y"})).msg(12, value("y")))
	}},
	{name: "onehot", n: 1_000_000_000_000, make: func(n int) []byte {
		return model(pb{}.msg(5, int64s("a", 1), scalar("b", int64(n)), int64s("c", 0, 1)).msg(1, node("OneHot", []string{"a", "b", "c"}, []string{"y"})).msg(12, value("y")))
	}},
	{name: "concat-doubling", n: 60, make: func(n int) []byte {
		return doubling(n, "Concat", int64s("0", 1, 2), intAttr("axis", 0))
	}},
	{name: "string-doubling", n: 60, make: func(n int) []byte {
		return doubling(n, "StringConcat", pb{}.int(1, 1).int(2, 8).str(6, "abc").str(8, "0"))
	}},
	{name: "constants-held", n: 20_000, make: func(n int) []byte {
		g := pb{}.msg(5, int64s("a", 4096))
		for i := range n {
			g = g.msg(1, node("ConstantOfShape", []string{"a"}, []string{short(i) + "_"}, tensorAttr("value", int64s("", 7))))
		}
		return model(g.msg(12, value("0_")))
	}},
	{name: "metadata", n: 200_000, args: args("show"), make: func(n int) []byte {
		m := around(chain(pb{}, 1, "Relu"))
		for i := range n {
			m = pb(m).msg(14, pb{}.str(1, short(i)).str(2, short(i)))
		}
		return m
	}},
	{name: "opsets", want: "imports of more than 256 operator sets", n: 30_000, make: func(n int) []byte {
		m := around(chain(pb{}, 1, "Relu"))
		for i := range n {
			m = pb(m).msg(8, pb{}.str(1, "d"+short(i)).int(2, 1))
		}
		return m
	}},
	{name: "attributes", n: 100_000, make: func(n int) []byte {
		var attrs []pb
		for i := range n {
			attrs = append(attrs, intAttr(short(i), 1))
		}
		return around(chain(pb{}, 1, "Relu", attrs...))
	}},
	{name: "attributes-same", want: answered, n: 100_000, make: func(n int) []byte {
		var attrs []pb
		for range n {
			attrs = append(attrs, intAttr("a", 1))
		}
		return around(chain(pb{}, 1, "Relu", attrs...))
	}},
	{name: "props-same", want: answered, n: 50_000, make: func(n int) []byte {
		v := value("y")
		for i := range n {
			v = v.msg(4, pb{}.str(1, short(i)).str(2, "v"))
		}
		return model(chain(pb{}, 1, "Relu").msg(11, value("x", 4, 4)).msg(12, v).msg(13, v))
	}},
	{name: "unknown-operators", n: 50_000, make: func(n int) []byte { return around(chain(pb{}, n, "Foo")) }},
	{name: "empty-nodes", n: 500_000, make: func(n int) []byte {
		g := pb{}
		for range n {
			g = g.msg(1, pb{})
		}
		return model(g)
	}},
	{name: "empty-values", n: 500_000, make: func(n int) []byte {
		g := chain(pb{}, 1, "Relu").msg(11, value("x", 4))
		for range n {
			g = g.msg(13, pb{})
		}
		return model(g)
	}},
	{name: "empty-attributes", n: 500_000, make: func(n int) []byte {
		return around(chain(pb{}, 1, "Relu", make([]pb, n)...))
	}},
	{name: "empty-dims", n: 1_000_000, make: rank},
	{name: "empty-names", n: 2_000_000, make: func(n int) []byte { return around(pb{}.msg(1, node("Relu", repeat(n, ""), repeat(n, "")))) }},
	{name: "packed-ints", n: 4_000_000, make: func(n int) []byte {
		return around(chain(pb{}, 1, "Relu", ints("a", make([]int64, n))))
	}},
	{name: "tensor-dims", n: 4_000_000, make: func(n int) []byte {
		return around(chain(pb{}, 1, "Relu").msg(5, pb{}.packed(1, make([]int64, n)).int(2, 1).str(8, "w")))
	}},
	{name: "yaml-brackets", want: "nested more than 64 deep", n: 100_000, ext: "yaml", args: args("check"), make: func(n int) []byte { return []byte("models: " + strings.Repeat("[", n)) }},
	{name: "yaml-braces", want: "nested more than 64 deep", n: 100_000, ext: "yaml", args: args("check"), make: func(n int) []byte { return []byte("models: " + strings.Repeat("{a: ", n)) }},
	{name: "yaml-dashes", want: "nested more than 64 deep", n: 100_000, ext: "yaml", args: args("check"), make: func(n int) []byte { return []byte("models:\n  " + strings.Repeat("- ", n)) }},
	{name: "yaml-questions", n: 100_000, ext: "yaml", args: args("check"), make: func(n int) []byte { return []byte(strings.Repeat("? ", n)) }},
	{name: "yaml-indents", n: 1_000, ext: "yaml", args: args("check"), make: func(n int) []byte {
		return []byte(strings.Join(seq(n, func(i int) string { return strings.Repeat(" ", i) + "a:" }), "\n"))
	}},
	{name: "yaml-laughs", n: 30, ext: "yaml", args: args("check"), make: func(n int) []byte {
		s := "a0: &a0 [x]\n"
		for i := range n {
			s += fmt.Sprintf("a%d: &a%d [%s]\n", i+1, i+1, strings.Join(repeat(9, fmt.Sprintf("*a%d", i)), ", "))
		}
		return []byte(s + fmt.Sprintf("models: *a%d\n", n))
	}},
	{name: "yaml-merges", n: 30, ext: "yaml", args: args("check"), make: func(n int) []byte {
		s := "a0: &a0 {x: 1}\n"
		for i := range n {
			s += fmt.Sprintf("a%d: &a%d\n", i+1, i+1) + strings.Repeat(fmt.Sprintf("  <<: *a%d\n", i), 9)
		}
		return []byte(s + fmt.Sprintf("models: [*a%d]\n", n))
	}},
	{name: "yaml-merges-wide", n: 5_000, ext: "yaml", args: args("check"), make: func(n int) []byte {
		return []byte("a: &a {" + strings.Join(seq(n, func(i int) string { return short(i) + "_: 1" }), ", ") + "}\nrules:\n" + strings.Repeat("  <<: *a\n", n))
	}},
	{name: "yaml-anchors", n: 50_000, ext: "yaml", args: args("check"), make: func(n int) []byte {
		return []byte("models:\n" + strings.Join(seq(n, func(i int) string { return "- &a" + short(i) + " x" }), "\n"))
	}},
	{name: "yaml-keys", want: "more than 20000 words and signs", n: 50_000, ext: "yaml", args: args("check"), make: func(n int) []byte {
		return []byte(strings.Join(seq(n, func(i int) string { return short(i) + "k: 1" }), "\n"))
	}},
	{name: "yaml-dims", n: 50_000, ext: "yaml", args: args("check"), make: func(n int) []byte {
		return []byte("models:\n- path: a.onnx\n  dims:\n" + strings.Join(seq(n, func(i int) string { return "    k" + short(i) + ": 1" }), "\n"))
	}},
	{name: "yaml-models", n: 20_000, ext: "yaml", args: args("check"), make: func(n int) []byte {
		return []byte("models:\n" + strings.Join(seq(n, func(i int) string { return fmt.Sprintf("- {path: a%d.onnx, gpu: t4}", i) }), "\n") + "\nrules: {max-peak: 1G}\n")
	}},
	{name: "yaml-long", n: 1_000_000, ext: "yaml", args: args("check"), make: func(n int) []byte { return []byte("baseline: " + strings.Repeat("a", n)) }},
	{name: "yaml-quoted", n: 500_000, ext: "yaml", args: args("check"), make: func(n int) []byte { return []byte("baseline: \"" + strings.Repeat("\\n", n)) }},
	{name: "yaml-literal", n: 200_000, ext: "yaml", args: args("check"), make: func(n int) []byte { return []byte("baseline: |\n" + strings.Repeat("  a\n", n)) }},
	{name: "yaml-folded", n: 200_000, ext: "yaml", args: args("check"), make: func(n int) []byte { return []byte("baseline: a\n" + strings.Repeat("  a\n", n)) }},
	{name: "yaml-comments", n: 200_000, ext: "yaml", args: args("check"), make: func(n int) []byte { return []byte(strings.Repeat("#a\n", n) + "models: []") }},
	{name: "yaml-comments-between", n: 50_000, ext: "yaml", args: args("check"), make: func(n int) []byte { return []byte("models:\n" + strings.Repeat("#a\n- x\n", n)) }},
	{name: "yaml-tags", want: "nested more than 64 deep", n: 100_000, ext: "yaml", args: args("check"), make: func(n int) []byte { return []byte("models: " + strings.Repeat("!a ", n)) }},
	{name: "yaml-documents", want: "more than 20000 words and signs", n: 60_000, ext: "yaml", args: args("check"), make: func(n int) []byte { return []byte(strings.Repeat("---\na\n", n)) }},
	{name: "yaml-colons", n: 100_000, ext: "yaml", args: args("check"), make: func(n int) []byte { return []byte(strings.Repeat("a: ", n)) }},
	{name: "yaml-spaces", n: 500_000, ext: "yaml", args: args("check"), make: func(n int) []byte { return []byte("a:" + strings.Repeat(" ", n) + "\n" + strings.Repeat("\n", n/2)) }},
	{name: "yaml-ampersands", n: 100_000, ext: "yaml", args: args("check"), make: func(n int) []byte { return []byte("a: " + strings.Repeat("&a ", n)) }},
	{name: "yaml-stars", n: 100_000, ext: "yaml", args: args("check"), make: func(n int) []byte { return []byte("a: " + strings.Repeat("*a ", n)) }},
	{name: "yaml-commas", n: 200_000, ext: "yaml", args: args("check"), make: func(n int) []byte { return []byte("a: [" + strings.Repeat("1,", n)) }},
	{name: "yaml-pipes", n: 100_000, ext: "yaml", args: args("check"), make: func(n int) []byte { return []byte(strings.Repeat("a: |\n", n)) }},
	{name: "json-nest", want: "nested more than 128 deep", n: 1_000_000, ext: "json", args: args("config"), make: func(n int) []byte {
		return []byte(`{"schemaVersion":1,"selection":` + strings.Repeat("[", n))
	}},
	{name: "json-selection", n: 1_000_000, ext: "json", args: args("config"), make: func(n int) []byte {
		return []byte(`{"schemaVersion":1,"selection":[` + strings.Repeat("{},", n) + `{}]}`)
	}},
	{name: "json-live", n: 4_000_000, ext: "json", args: args("config"), make: func(n int) []byte {
		return []byte(`{"schemaVersion":1,"selection":[],"live":[` + strings.Repeat("{},", n) + `{}]}`)
	}},
	{name: "json-modules", n: 1_000_000, ext: "json", args: args("config"), make: func(n int) []byte {
		return []byte(`{"schemaVersion":1,"selection":[{"modules":[` + strings.Repeat(`"",`, n) + `""]}]}`)
	}},
	{name: "json-number", n: 5_000_000, ext: "json", args: args("config"), make: func(n int) []byte {
		return []byte(`{"schemaVersion":` + strings.Repeat("1", n) + `,"selection":[]}`)
	}},
	{name: "json-keys", n: 500_000, ext: "json", args: args("config"), make: func(n int) []byte {
		return []byte(`{"schemaVersion":1,"selection":[],"config":{"dims":{` + strings.Join(seq(n, func(i int) string { return `"` + short(i) + `":1` }), ",") + `}}}`)
	}},
	{name: "layout-alike", n: 100_000, ext: "csv", args: args("solve layout --timeout 1s"), make: func(n int) []byte {
		return []byte("id,lower,upper,size\n" + strings.Join(seq(n, func(i int) string { return short(i) + ",0,9,4" }), "\n") + "\n")
	}},
	{name: "layout-random", n: 100_000, ext: "csv", args: args("solve layout --timeout 1s"), make: func(n int) []byte {
		return []byte("id,lower,upper,size\n" + strings.Join(seq(n, func(i int) string {
			lo := i * 7919 % n
			return fmt.Sprintf("%d,%d,%d,%d", i, lo, lo+1+i*31%1000, 1+i*17%97)
		}), "\n") + "\n")
	}},
	{name: "layout-huge", n: 1_000, ext: "csv", args: args("solve layout --timeout 1s"), make: func(n int) []byte {
		return []byte("id,lower,upper,size\n" + strings.Join(seq(n, func(i int) string { return short(i) + ",0,9,9000000000000000000" }), "\n") + "\n")
	}},
	{name: "layout-columns", n: 1_000_000, ext: "csv", args: args("solve layout --timeout 1s"), make: func(n int) []byte { return []byte(strings.Repeat("a,", n) + "\n") }},
	{name: "layout-quote", n: 5_000_000, ext: "csv", args: args("solve layout --timeout 1s"), make: func(n int) []byte { return []byte("id,lower,upper,size\n\"" + strings.Repeat("a\n", n)) }},
	{name: "snapshot-sizes", want: answered, n: 100_000, ext: "pickle", args: args("compare --batch 4"), make: func(n int) []byte { return eventsOf(n, 977) }},
	{name: "snapshot-same", want: answered, n: 100_000, ext: "pickle", args: args("compare --batch 4"), make: func(n int) []byte { return eventsOf(n, 1) }},
	{name: "snapshot-stacks", want: answered, n: 100_000, ext: "pickle", args: args("compare --batch 4"), make: func(n int) []byte { return eventsOf(n, n) }},
	{name: "remat-chain", n: 100_000, ext: "json", args: args("solve remat --budget-ratio 0.5 --timeout 1s"), make: func(n int) []byte { return rematGraph(n, 1, 1) }},
	{name: "remat-dense", n: 1_000, ext: "json", args: args("solve remat --budget-ratio 0.5 --timeout 1s"), make: func(n int) []byte { return rematGraph(n, 100, 1) }},
	{name: "remat-huge", n: 1_000, ext: "json", args: args("solve remat --budget-ratio 0.5 --timeout 1s"), make: func(n int) []byte { return rematGraph(n, 1, 9_000_000_000_000_000_000) }},
	{name: "remat-nest", n: 1_000_000, ext: "json", args: args("solve remat --budget-ratio 0.5 --timeout 1s"), make: func(n int) []byte { return []byte(strings.Repeat("[", n)) }},
	{name: "npy-claims", n: 2_000_000_000, ext: "npy", args: validating("x"), make: func(n int) []byte { return npy(fmt.Sprintf("(%d,)", n)) }},
	{name: "npy-dims", n: 20_000, ext: "npy", args: validating("x"), make: func(n int) []byte { return npy("(" + strings.Repeat("1,", n) + ")") }},
	{name: "npz-claims", n: 2_000_000_000, ext: "npz", args: validating(""), make: func(n int) []byte { return bomb("x.npy", npy(fmt.Sprintf("(%d,)", n)), 0) }},
	{name: "npz-bomb", n: 200_000_000, ext: "npz", args: validating(""), make: func(n int) []byte { return bomb("x.npy", npy(fmt.Sprintf("(%d,)", n/4)), n) }},
	{name: "npz-other", n: 200_000_000, ext: "npz", args: validating(""), make: func(n int) []byte { return bomb("x.npy", npy("(4, 4)"), n) }},
	{name: "pb-dims", n: 2_000_000, ext: "pb", args: validating("x"), make: func(n int) []byte { return pb{}.packed(1, make([]int64, n)).int(2, 1) }},
	{name: "pb-typed", n: 2_000_000, ext: "pb", args: validating("x"), make: func(n int) []byte { return pb{}.int(1, 4, 4).int(2, 7).packed(7, make([]int64, n)) }},
}

func relus(n int) []byte { return around(chain(pb{}, n, "Relu")) }

// matmuls is a chain of products with weights of their own.
func matmuls(n int) []byte {
	g, last := pb{}, "x"
	for i := range n {
		out := "y"
		if i < n-1 {
			out = short(i) + "_"
		}
		name := fmt.Sprintf("l%d.weight", i)
		g = g.msg(5, weight(name, 4, 4)).msg(1, node("MatMul", []string{last, name}, []string{out}).str(3, fmt.Sprintf("/l%d/MatMul", i)))
		last = out
	}
	return model(g.msg(11, value("x", 4, 4)).msg(12, value("y")))
}

// sums is one node that takes x n times.
func sums(op string, attrs ...pb) func(n int) []byte {
	return func(n int) []byte { return around(pb{}.msg(1, node(op, repeat(n, "x"), []string{"y"}, attrs...))) }
}

// fan is a value with n consumers, whose results one node joins.
func fan(n int) []byte {
	g := pb{}
	outs := seq(n, func(i int) string { return short(i) + "_" })
	for _, out := range outs {
		g = g.msg(1, node("Relu", []string{"x"}, []string{out}))
	}
	return around(g.msg(1, node("Sum", outs, []string{"y"})))
}

// calls is n functions, of which each calls the next so many times.
func calls(n, times int) []byte {
	var functions []pb
	for i := range n {
		f := pb{}.str(1, fmt.Sprint("f", i)).str(4, "v0").str(5, fmt.Sprint("v", times)).str(10, "f").msg(9, pb{}.int(2, 17), pb{}.str(1, "f").int(2, 1))
		for k := range times {
			call := node(fmt.Sprint("f", i+1), []string{fmt.Sprint("v", k)}, []string{fmt.Sprint("v", k+1)}).str(7, "f")
			if i == n-1 {
				call = node("Relu", []string{fmt.Sprint("v", k)}, []string{fmt.Sprint("v", k+1)})
			}
			f = f.msg(7, call)
		}
		functions = append(functions, f)
	}
	return model(pb{}.msg(1, node("f0", []string{"x"}, []string{"y"}).str(7, "f")).msg(11, value("x", 4, 4)).msg(12, value("y")), functions...)
}

// arithmetic computes with (a+b+1) n times over, and makes a tensor of it.
func arithmetic(n int, op string, ins ...string) []byte {
	g := pb{}.msg(11, value("x", "a", "b")).msg(1, node("Shape", []string{"x"}, []string{"s"}), node("ReduceSum", []string{"s"}, []string{"v0"}, intAttr("keepdims", 1)))
	for i := range n {
		var from []string
		for _, in := range ins {
			from = append(from, fmt.Sprintf(in, fmt.Sprint("v", i)))
		}
		g = g.msg(1, node(op, from, []string{fmt.Sprint("v", i+1)}))
	}
	return model(g.msg(1, node("ConstantOfShape", []string{fmt.Sprint("v", n)}, []string{"y"})).msg(12, value("y")))
}

// shapeOf is a graph in which s has n symbols, the dims of n inputs.
func shapeOf(n int) pb {
	g := pb{}
	for i := range n {
		g = g.msg(11, value(fmt.Sprint("x", i), "d"+short(i))).msg(1, node("Shape", []string{fmt.Sprint("x", i)}, []string{fmt.Sprint("d", i)}))
	}
	return g.msg(1, node("Concat", seq(n, func(i int) string { return fmt.Sprint("d", i) }), []string{"s"}, intAttr("axis", 0)))
}

// typedRank is an input of n symbolic dims.
func typedRank(name string, n int) pb {
	dims := make([]any, n)
	for i := range dims {
		dims[i] = "d" + short(i)
	}
	return value(name, dims...)
}

// symbols folds n dims with an operator, one input a dim, each plus another
// where sum is set.
func symbols(n int, op string, sum bool) []byte {
	g := shapeOf(n)
	last := "d0"
	for i := 1; i < n; i++ {
		with := fmt.Sprint("d", i)
		if sum {
			g = g.msg(1, node("Add", []string{with, fmt.Sprint("d", (i+1)%n)}, []string{fmt.Sprint("e", i)}))
			with = fmt.Sprint("e", i)
		}
		g = g.msg(1, node(op, []string{last, with}, []string{fmt.Sprint("v", i)}))
		last = fmt.Sprint("v", i)
	}
	return model(g.msg(1, node("ConstantOfShape", []string{last}, []string{"y"})).msg(12, value("y")))
}

func rank(n int) []byte {
	return model(chain(pb{}, 1, "Relu").msg(11, typedRank("x", n)).msg(12, value("y")))
}

// doubling joins a constant with itself n times over.
func doubling(n int, op string, start pb, attrs ...pb) []byte {
	g := pb{}.msg(5, start)
	for i := range n {
		g = g.msg(1, node(op, repeat(2, fmt.Sprint(i)), []string{fmt.Sprint(i + 1)}, attrs...))
	}
	return pb(model(g.msg(12, value(fmt.Sprint(n))))).msg(8, pb{}.int(2, 20))
}

// rematGraph is an instance of n nodes, each of which reads so many before it.
func rematGraph(n, reads int, size int64) []byte {
	var b bytes.Buffer
	b.WriteString(`{"directed":true,"multigraph":false,"graph":{"name":"g"},"nodes":[`)
	for i := range n {
		fmt.Fprintf(&b, `{"id":%d,"cost_cpu":%d,"cost_ram":%d}`, i, 1+i%7, size)
		if i < n-1 {
			b.WriteByte(',')
		}
	}
	b.WriteString(`],"links":[`)
	first := true
	for i := range n {
		for k := max(0, i-reads); k < i; k++ {
			if !first {
				b.WriteByte(',')
			}
			first = false
			fmt.Fprintf(&b, `{"source":%d,"target":%d}`, k, i)
		}
	}
	b.WriteString("]}")
	return b.Bytes()
}

// eventsOf is a memory snapshot of n allocations, of so many sizes, that are freed
// later.
func eventsOf(n, sizes int) []byte {
	b := bytes.NewBufferString("\x80\x02}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00device_traces](](")
	number := func(v int) { fmt.Fprintf(b, "J%s", binary.LittleEndian.AppendUint32(nil, uint32(v))) }
	event := func(action string, i int) {
		fmt.Fprintf(b, "}(X\x06\x00\x00\x00actionX%c\x00\x00\x00%sX\x04\x00\x00\x00addr", len(action), action)
		number(i + 1)
		b.WriteString("X\x04\x00\x00\x00size")
		number(512 * (1 + i%sizes%4_000_000))
		b.WriteString("X\x06\x00\x00\x00frames](}(X\x04\x00\x00\x00line")
		number(i % sizes)
		b.WriteString("ueu")
	}
	for i := range n {
		event("alloc", i)
		if i >= 1000 {
			event("free_completed", i-1000)
		}
	}
	b.WriteString("eeu.")
	return b.Bytes()
}

// npy is the beginning of an array of floats.
func npy(shape string) []byte {
	head := "{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + ", }\n"
	return append([]byte("\x93NUMPY\x01\x00"+string([]byte{byte(len(head)), byte(len(head) >> 8)})), head...)
}

// bomb is an archive of one entry, which goes on with so many zeros.
func bomb(name string, data []byte, zeros int) []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	w, err := z.Create(name)
	if err != nil {
		panic(err)
	}
	_, _ = w.Write(data) // into memory
	for chunk := make([]byte, 1<<20); zeros > 0; zeros -= len(chunk) {
		_, _ = w.Write(chunk[:min(len(chunk), zeros)])
	}
	_ = z.Close()
	return b.Bytes()
}

// validating gives a file as the array of an input, or of all.
func validating(name string) []string {
	out := []string{"validate", filepath.Join("..", "..", "models", "mlp.onnx"), "--device", "cpu", "--batch", "2", "--input"}
	if name != "" {
		return append(out, name+"=")
	}
	return append(out, "")
}

// A cost is what a run of the program took.
type cost struct {
	time   time.Duration // of the processor
	rss    int64         // peak, bytes
	code   int
	stdout int // bytes
	stderr string
}

// measured runs the program on the input of size n.
func (g *growth) measured(tb testing.TB, n int) cost {
	tb.Helper()
	ext, args := g.ext, append([]string{}, g.args...)
	if ext == "" {
		ext = "onnx"
	}
	if g.args == nil {
		args = []string{"analyze", "--mode", "infer"}
	}
	file := filepath.Join(tb.TempDir(), "in."+ext)
	if err := os.WriteFile(file, g.make(n), 0o600); err != nil {
		tb.Fatal(err)
	}
	if last := len(args) - 1; args[0] == "validate" {
		args[last] += file
	} else {
		args = append(args, file)
	}
	if args[0] == "compare" {
		args = append(args, filepath.Join("..", "..", "models", "gpt2.onnx"))
	}
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "memplan", args...)
	c.Stdout, c.Stderr = &out, &errs
	forgetPeak()
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		tb.Fatal(err)
	}
	use := c.ProcessState.SysUsage().(*syscall.Rusage)
	return cost{time.Duration(use.Utime.Nano() + use.Stime.Nano()), use.Maxrss << 10, c.ProcessState.ExitCode(), out.Len(), errs.String()}
}

// forgetPeak makes the peak memory of this process what it has now. Linux counts it as
// the peak of a process that it starts, too, since both share memory until exec.
func forgetPeak() {
	debug.FreeOSMemory()
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) // proc(5); where it cannot, peaks are too high
}

// TestHostile runs every kind of input once: it is answered or refused with one
// line and nothing on stdout, within the memory that small files may take and
// a time that even a busy machine keeps.
func TestHostile(t *testing.T) {
	testdata.Sequential(t)
	for i := range growths {
		g := &growths[i]
		t.Run(g.name, func(t *testing.T) {
			c := g.measured(t, g.n)
			most := g.most
			if most == 0 {
				most = 500 << 20
			}
			if c.rss > most || c.time > 30*time.Second {
				t.Errorf("%d took %v and %d MiB", g.n, c.time, c.rss>>20)
			}
			switch {
			case c.code < 0 || c.code > 2:
				t.Errorf("exit %d: %.500s", c.code, c.stderr)
			case c.code == 2 && (c.stdout > 0 || strings.Count(c.stderr, "\n") != 1 || !strings.HasPrefix(c.stderr, "memplan: ")):
				t.Errorf("exit 2 with %d bytes on stdout and %.500q", c.stdout, c.stderr)
			}
			if refused := c.code == 2; g.want != "" && refused != (g.want != answered) || g.want != "" && g.want != answered && !strings.Contains(c.stderr, g.want) {
				t.Errorf("exit %d, %.300q: want %s", c.code, c.stderr, g.want)
			}
		})
	}
}

// BenchmarkGrowth measures how time and memory grow: each input at a quarter,
// a half and all of its size.
func BenchmarkGrowth(b *testing.B) {
	for i := range growths {
		g := &growths[i]
		for _, n := range []int{max(g.n/4, 1), max(g.n/2, 1), g.n} {
			b.Run(fmt.Sprintf("%s/%d", g.name, n), func(b *testing.B) {
				for b.Loop() {
					c := g.measured(b, n)
					b.ReportMetric(c.time.Seconds()*1e3, "cpu-ms")
					b.ReportMetric(float64(c.rss>>20), "MiB")
					b.ReportMetric(float64(c.code), "exit")
					if c.code == 2 {
						b.Log(c.stderr)
					}
				}
			})
		}
	}
}
