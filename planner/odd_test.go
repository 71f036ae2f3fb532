package planner

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/infer"

	"github.com/memplan/memplan/internal/testdata"
)

// internals are words that no message may have: they speak of memplan's own
// code.
var internals = regexp.MustCompile(`runtime error|cannot work with|nil pointer|index out of range|slice bounds|divide by zero|goroutine|\bDef\b|\b(value|node) \d+ \(|%!|interface conversion|makeslice`)

// An oddOp is an operator in one version of it, as schemas.txt has it.
type oddOp struct {
	domain, name string
	version      int64
	in, out      []string // types, with the marks of schemas.txt
	attrs        []string // name:kind, with the marks
	types        map[string]string
}

// oddOps reads the operators with schemas, and the others of the table.
func oddOps(t *testing.T) []oddOp {
	text, err := os.ReadFile(filepath.Join("..", "graph", "infer", "schemas.txt"))
	if err != nil {
		t.Fatal(err)
	}
	sets := map[string]string{}
	var out []oddOp
	known := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if set, ok := strings.CutPrefix(f[0], "="); ok {
			sets[set] = f[1]
			if slices.Contains(f, "float") {
				sets[set] = "float"
			}
			continue
		}
		if f[0] == "#" || strings.HasSuffix(f[1], "!") {
			continue
		}
		op := oddOp{name: f[0], types: map[string]string{}}
		if i := strings.LastIndexByte(f[0], '.'); i >= 0 {
			op.domain, op.name = f[0][:i], f[0][i+1:]
		}
		op.version, _ = strconv.ParseInt(f[1], 10, 64)
		part := strings.SplitN(strings.Join(f[2:], " "), "|", 3)
		in, results, _ := strings.Cut(part[0], "->")
		op.in, op.out, op.attrs = strings.Fields(in), strings.Fields(results), strings.Fields(part[1])
		for _, v := range strings.Fields(part[2]) {
			name, set, _ := strings.Cut(v, "=")
			op.types[name] = sets[set]
		}
		known[op.domain+"."+op.name] = true
		out = append(out, op)
	}
	for i := range infer.Ops {
		if o := &infer.Ops[i]; !known[o.Domain+"."+o.Name] {
			out = append(out, oddOp{domain: o.Domain, name: o.Name, version: 1, in: slices.Repeat([]string{"x:float?"}, 9), out: slices.Repeat([]string{"y:float?"}, 4),
				attrs: strings.Fields("num_heads:2! kv_num_heads:2! to:2 axis:2 group:2 K:2! N:2! bits:2! block_size:2!")})
		}
	}
	return out
}

// odd builds models around one operator, with operands of odd shapes.
type odd struct {
	*rand.Rand
	op    *oddOp
	rank  int // that most operands have
	graph pb
}

// oddDims are lengths of dims, 0 and 1 among them.
var oddDims = []int64{1, 1, 2, 2, 3, 4, 4, 0}

func (o *odd) shape(rank int) []int64 {
	out := make([]int64, rank)
	for i := range out {
		out[i] = oddDims[o.IntN(len(oddDims))]
	}
	return out
}

// operand adds input i and returns its name, "" where it is left out.
func (o *odd) operand(i int, formal string, like []int64) string {
	_, typ, _ := strings.Cut(formal, ":")
	typ, optional := strings.CutSuffix(typ, "?")
	typ, _, _ = strings.Cut(strings.NewReplacer("~", "*").Replace(typ), "*")
	if optional && o.IntN(2) == 0 {
		return ""
	}
	if t := o.op.types[typ]; t != "" {
		typ = t
	}
	d, ok := graph.ParseDType(typ)
	if !ok {
		d = graph.Float32 // a sequence, an optional, a map: what is given instead is wrong
	}
	name := fmt.Sprint("x", i)
	shape := like
	switch o.IntN(6) {
	case 0:
		shape = []int64{}
	case 1:
		shape = []int64{1}
	case 2:
		shape = o.shape(1)
	case 3:
		shape = o.shape(o.IntN(6))
	}
	if i > 0 && (d == graph.Int64 || d == graph.Int32) && o.IntN(4) > 0 || i > 0 && o.IntN(3) == 0 && d == graph.Float32 {
		o.constant(name, d, shape)
		return name
	}
	o.graph = o.graph.msg(11, pbValue(name, d, shape))
	return name
}

// constant stores a small tensor.
func (o *odd) constant(name string, d graph.DType, shape []int64) {
	if len(shape) > 1 && d != graph.Float32 {
		shape = shape[:1]
	}
	n, _ := graph.Product(shape)
	t := pb{}
	for _, s := range shape {
		t = t.int(1, s)
	}
	t = t.int(2, int64(d)).str(8, name)
	for range n {
		switch k := int64(o.IntN(5)) - 1; d {
		case graph.Float32:
			t = protowire.AppendFixed32(protowire.AppendTag(t, 4, protowire.Fixed32Type), 0x3f000000)
		case graph.Int32:
			t = t.int(5, k)
		default:
			t = t.int(7, k)
		}
	}
	o.graph = o.graph.msg(5, t)
}

// attribute returns an AttributeProto of a formal attribute, nil for none.
func (o *odd) attribute(formal string) pb {
	formal, required := strings.CutSuffix(formal, "!")
	name, kind, _ := strings.Cut(formal, ":")
	if !required && o.IntN(3) > 0 {
		return nil
	}
	a, n := pb{}.str(1, name), int64(o.IntN(4))
	number, _ := strconv.ParseInt(kind, 10, 64)
	switch graph.AttrKind(number) {
	case graph.AttrInt:
		a = a.int(3, n)
	case graph.AttrInts:
		for range o.IntN(3) {
			a = a.int(8, int64(o.IntN(3)))
		}
	case graph.AttrString:
		a = a.str(4, []string{"mean", "none", "sum", "ij,jk->ik", "SAME_UPPER", "bidirectional", "linear", ""}[o.IntN(8)])
	case graph.AttrFloat:
		a = protowire.AppendFixed32(protowire.AppendTag(a, 2, protowire.Fixed32Type), 0x3f000000)
	case graph.AttrGraph:
		a = a.msg(6, pb{}.msg(1, pb{}.str(1, "x0").str(2, "inner").str(4, "Identity")).str(2, "body").msg(12, pbValue("inner", graph.Float32, []int64{2})))
	default:
		return nil
	}
	return a.int(20, number)
}

// model writes a model of an operator on odd operands, and of one that reads
// its result.
func (o *odd) model() []byte {
	o.graph = pb{}
	n := pb{}
	o.rank = o.IntN(6)
	like := o.shape(o.rank)
	for i, formal := range o.op.in {
		n = n.str(1, o.operand(i, formal, like))
	}
	for i := range o.op.out {
		n = n.str(2, fmt.Sprint("y", i))
	}
	n = n.str(4, o.op.name)
	for _, formal := range o.op.attrs {
		if a := o.attribute(formal); a != nil {
			n = n.msg(5, a)
		}
	}
	n = n.str(7, o.op.domain)
	next := pb{}.str(1, "y0")
	reader := []string{"Relu", "ReduceMean", "Softmax", "Neg", "Add", "MatMul", "Transpose", "GlobalAveragePool", "Flatten", "Sum", "Concat"}[o.IntN(11)]
	if slices.Contains([]string{"Add", "MatMul", "Sum", "Concat"}, reader) {
		next = next.str(1, "y0")
	}
	next = next.str(2, "z").str(4, reader)
	if reader == "Concat" {
		next = next.msg(5, pb{}.str(1, "axis").int(3, 0).int(20, 2))
	}
	o.graph = o.graph.msg(1, n).msg(1, next).str(2, "g").msg(12, pb{}.str(1, "z"))
	for i := range o.op.out {
		o.graph = o.graph.msg(12, pb{}.str(1, fmt.Sprint("y", i)))
	}
	version := map[string]int64{"": 17, o.op.domain: o.op.version}
	m := pb{}.int(1, 8)
	for _, domain := range slices.Sorted(mapsKeys(version)) {
		m = m.msg(8, pb{}.str(1, domain).int(2, version[domain]))
	}
	return m.msg(7, o.graph)
}

func mapsKeys(m map[string]int64) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// Every operator, in every version, with scalars, vectors of one element,
// empty tensors, ranks from 0 to 5 and optional operands left out: no message
// speaks of memplan's own code, and none ends it.
func TestOddOperands(t *testing.T) {
	testdata.Sequential(t)
	path := filepath.Join(t.TempDir(), "m.onnx")
	answers, questions := 0, 0
	tried := 3
	if testing.Short() {
		tried = 1
	}
	for i, op := range oddOps(t) {
		for seed := range tried {
			o := &odd{Rand: rand.New(rand.NewPCG(uint64(i), uint64(seed))), op: &op}
			if err := os.WriteFile(path, o.model(), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, mode := range []string{"infer", "train"} {
				questions++
				if text := oddAnswer(t, path, mode); text == "" {
					answers++
				} else if internals.MatchString(text) || strings.Contains(text, "where shape inference says") {
					t.Errorf("%s.%s %d, seed %d, %s: %s", op.domain, op.name, op.version, seed, mode, text)
				}
			}
		}
	}
	t.Logf("%d of %d questions answered", answers, questions)
	if answers < questions/8 {
		t.Errorf("%d of %d questions answered", answers, questions)
	}
}

// oddAnswer asks of a file what a step needs; it returns the error, or
// warnings that speak of memplan's code.
func oddAnswer(t *testing.T, path, mode string) (text string) {
	t.Helper()
	m, err := Open(path)
	if err != nil {
		return err.Error()
	}
	if _, err := m.Values(Config{}); err != nil {
		return err.Error()
	}
	r, err := m.Analyze(context.Background(), Config{Mode: mode})
	if err != nil {
		return err.Error()
	}
	for _, w := range r.Warnings {
		if w.Code == "shape-differs" || internals.MatchString(w.Message+w.Node) {
			text += w.Node + ": " + w.Message
		}
	}
	return text
}

// A pb is a protobuf message under construction.
type pb []byte

func (b pb) str(num protowire.Number, s string) pb {
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
}

func (b pb) msg(num protowire.Number, m pb) pb { return b.str(num, string(m)) }

func (b pb) int(num protowire.Number, v int64) pb {
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), uint64(v))
}

// pbValue is a ValueInfoProto of a tensor.
func pbValue(name string, d graph.DType, dims []int64) pb {
	shape := pb{}
	for _, n := range dims {
		shape = shape.msg(1, pb{}.int(1, n))
	}
	return pb{}.str(1, name).msg(2, pb{}.msg(1, pb{}.int(1, int64(d)).msg(2, shape)))
}
