package infer

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/onnx"
)

// A writer builds an ONNX file field by field.
type writer []byte

func (w *writer) msg(num protowire.Number, body writer) {
	*w = protowire.AppendBytes(protowire.AppendTag(*w, num, protowire.BytesType), body)
}

func (w *writer) str(num protowire.Number, s string) { w.msg(num, writer(s)) }

func (w *writer) int(num protowire.Number, n int64) {
	*w = protowire.AppendVarint(protowire.AppendTag(*w, num, protowire.VarintType), uint64(n))
}

// node adds a NodeProto to a GraphProto.
func (w *writer) node(op string, attrs map[string]int64, out string, in ...string) string {
	var n writer
	for _, s := range in {
		n.str(1, s)
	}
	n.str(2, out)
	n.str(3, "/"+out)
	n.str(4, op)
	for name, i := range attrs {
		var a writer
		a.str(1, name)
		a.int(3, i)
		a.int(20, int64(graph.AttrInt))
		n.msg(5, a)
	}
	w.msg(1, n)
	return out
}

// weight adds an initializer whose bytes are in another file.
func (w *writer) weight(name string, dims ...int64) string {
	var t writer
	for _, d := range dims {
		t.int(1, d)
	}
	t.int(2, int64(graph.BFloat16))
	t.str(8, name)
	var loc writer
	loc.str(1, "location")
	loc.str(2, "weights.bin")
	t.msg(13, loc)
	t.int(14, 1)
	w.msg(5, t)
	return name
}

func (w *writer) shape(name string, elems ...int64) string {
	var t writer
	t.int(1, int64(len(elems)))
	t.int(2, int64(graph.Int64))
	for _, n := range elems {
		t.int(7, n)
	}
	t.str(8, name)
	w.msg(5, t)
	return name
}

// llama writes a decoder of the given number of layers; 80 have 70 billion
// parameters.
func llama(layers int) writer {
	const hidden, ffn, vocab, head = 8192, 28672, 128256, 128
	var g writer
	h := g.node("Gather", nil, "h", g.weight("embed", vocab, hidden), "ids")
	perm := func(x, out string) string { return g.node("Transpose", nil, out, x) }
	for l := range layers {
		p := func(s string) string { return fmt.Sprintf("l%d.%s", l, s) }
		x := g.node("RMSNormalization", map[string]int64{"axis": -1}, p("n1"), h, g.weight(p("w1"), hidden))
		var qkv []string
		for i, n := range []int64{hidden, 1024, 1024} {
			y := g.node("MatMul", nil, p(fmt.Sprint("p", i)), x, g.weight(p(fmt.Sprint("wp", i)), hidden, n))
			qkv = append(qkv, g.node("Reshape", nil, p(fmt.Sprint("r", i)), y, g.shape(p(fmt.Sprint("s", i)), 0, 0, n/head, head)))
		}
		k := perm(qkv[1], p("kt"))
		k = perm(k, p("k"))
		q := g.node("Add", nil, p("q"), qkv[0], g.node("Mul", nil, p("rot"), qkv[0], g.weight(p("cos"), 1, 1, 1, head)))
		v := g.node("Reshape", nil, p("v"), qkv[2], g.shape(p("sv"), 0, 0, -1))
		kk := g.node("Reshape", nil, p("kk"), k, g.shape(p("sk"), 0, 0, -1))
		qq := g.node("Reshape", nil, p("qq"), q, g.shape(p("sq"), 0, 0, -1))
		a := g.node("Attention", map[string]int64{"q_num_heads": 64, "kv_num_heads": 8, "is_causal": 1}, p("a"), qq, kk, v)
		o := g.node("MatMul", nil, p("o"), a, g.weight(p("wo"), hidden, hidden))
		h = g.node("Add", nil, p("h1"), o, h)
		x = g.node("RMSNormalization", map[string]int64{"axis": -1}, p("n2"), h, g.weight(p("w2"), hidden))
		gate := g.node("MatMul", nil, p("g"), x, g.weight(p("wg"), hidden, ffn))
		up := g.node("MatMul", nil, p("u"), x, g.weight(p("wu"), hidden, ffn))
		act := g.node("Mul", nil, p("silu"), gate, g.node("Sigmoid", nil, p("sig"), gate))
		m := g.node("Mul", nil, p("m"), act, up)
		h = g.node("Add", nil, p("h2"), g.node("MatMul", nil, p("d"), m, g.weight(p("wd"), ffn, hidden)), h)
	}
	g.node("MatMul", nil, "logits", h, g.weight("head", hidden, vocab))
	g.msg(11, valueInfo("ids", graph.Int64, "batch", "seq"))
	g.msg(12, valueInfo("logits", graph.BFloat16, "batch", "seq", "vocab"))
	var m, opset writer
	m.int(1, 11)
	m.msg(7, g)
	opset.int(2, 23)
	m.msg(8, opset)
	return m
}

func valueInfo(name string, elem graph.DType, dims ...string) writer {
	var v, t, tensor, shape writer
	for _, d := range dims {
		var dim writer
		dim.str(2, d)
		shape.msg(1, dim)
	}
	tensor.int(1, int64(elem))
	tensor.msg(2, shape)
	t.msg(1, tensor)
	v.str(1, name)
	v.msg(2, t)
	return v
}

// A model of 70 billion parameters, none of which are there, is read and
// inferred with little memory; the log says how long it took.
func TestLargeModel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "llama70b.onnx")
	if err := os.WriteFile(path, llama(80), 0o600); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	g, err := onnx.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Infer(g, Options{Dims: map[string]int64{"batch": 4, "seq": 4096}}); err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	params := int64(0)
	for i := range g.Values {
		if v := &g.Values[i]; v.Kind == graph.Initializer {
			n, _ := v.Const.Elems()
			params += n
		}
		if v := &g.Values[i]; v.Decl.Kind != graph.NoType && v.Type.Shape == nil {
			t.Errorf("%s has no shape", v.Name)
		}
	}
	allocated := int64(after.TotalAlloc - before.TotalAlloc)
	t.Logf("%.1f G parameters, %d nodes: %v, %d kB allocated", float64(params)/1e9, len(g.Nodes), took.Round(time.Millisecond), allocated>>10)
	if out := g.Values[g.Outputs[0]].Type; typeText(out) != "bfloat16[4,4096,128256]" {
		t.Errorf("logits are %s", typeText(out))
	}
	if params < 68e9 || allocated > 200<<20 {
		t.Error("too few parameters, or too much memory")
	}
	if left := Unbound(g); len(left) > 0 {
		t.Errorf("unbound: %v", left)
	}
}
