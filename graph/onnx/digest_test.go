package onnx_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/onnx"
)

// TestDigests compares everything we read from the shared models with what
// the Python onnx package reads: see testdata/digest.py.
func TestDigests(t *testing.T) {
	want := readDigests(t)
	got := map[string]hash.Hash{}
	for _, folder := range []struct {
		name string
		each bool
	}{
		{"models", true},
		{"onnx/real", true},
		{"onnx/shape-cases/cpp_text", true},
		{"onnx/backend/models", false},
		{"onnx/shape-cases/models", false},
	} {
		for _, path := range models(t, filepath.FromSlash(folder.name)) {
			g, err := onnx.Load(path)
			if err != nil {
				continue // TestLoadAll knows which
			}
			key := filepath.Base(path)
			if !folder.each {
				sum := sha256.Sum256([]byte(key))
				key = hex.EncodeToString(sum[:1])[:1]
			}
			key = folder.name + "/" + key
			if got[key] == nil {
				got[key] = sha256.New()
			}
			dump(got[key], g)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d digests, want %d", len(got), len(want))
	}
	for key, h := range got {
		if sum := hex.EncodeToString(h.Sum(nil))[:16]; sum != want[key] {
			t.Errorf("%s: digest %s, the onnx package has %s", key, sum, want[key])
		}
	}
}

func readDigests(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "digests.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(data)) {
		key, sum, ok := strings.Cut(strings.TrimSpace(line), "\t")
		if !ok {
			t.Fatalf("digests.tsv: bad line %q", line)
		}
		out[key] = sum
	}
	return out
}

// TestDump prints what is digested of the file in MEMPLAN_DUMP, to compare
// with digest.py --dump.
func TestDump(t *testing.T) {
	path := os.Getenv("MEMPLAN_DUMP")
	if path == "" {
		t.Skip("MEMPLAN_DUMP names no file")
	}
	g, err := onnx.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	dump(&b, g)
	if err := os.WriteFile(os.Getenv("MEMPLAN_DUMP_TO"), b.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
}

// A dumper writes the lines that digest.py writes.
type dumper struct{ w io.Writer }

func (d dumper) printf(format string, args ...any) { fmt.Fprintf(d.w, format+"\n", args...) }

func dump(w io.Writer, g *graph.Graph) {
	d, m := dumper{w}, g.Model
	d.printf("M %d %s%s", m.IRVersion, m.Producer, props(m.Meta))
	imported := m.Opsets
	for _, warning := range m.Warnings {
		if warning.Code == "no-opset" { // the last one is assumed
			imported = imported[:len(imported)-1]
		}
	}
	d.opsets(imported)
	d.graph(g, "")
	for _, f := range m.Functions {
		d.printf("F %s|%s|%s", f.Domain, f.Name, f.Overload)
		d.opsets(f.Opsets)
		for i := range f.Attrs {
			if f.Attrs[i].Kind == graph.AttrNone {
				d.printf(" A %s 0", f.Attrs[i].Name)
			} else {
				d.attr(&f.Attrs[i], "")
			}
		}
		d.graph(f.Body, "")
	}
}

func (d dumper) opsets(list []graph.Opset) {
	for _, o := range list {
		d.printf("S %s %d", o.Domain, o.Version)
	}
}

func (d dumper) graph(g *graph.Graph, pad string) {
	d.printf("%sG %s%s", pad, esc(g.Name), props(g.Meta))
	for _, id := range g.Inputs {
		v := &g.Values[id]
		d.printf("%sI %s %s%s", pad, esc(v.Name), typ(&v.Decl), props(v.Meta))
	}
	for _, sparse := range []bool{false, true} {
		for i := range g.Values {
			v := &g.Values[i]
			if v.Kind == graph.Initializer && (v.Const.Sparse != nil) == sparse {
				d.printf("%sW %s%s", pad, tensor(v.Const), props(v.Meta))
			}
		}
	}
	name := func(id graph.ValueID) string {
		if id == graph.NoValue {
			return ""
		}
		return g.Values[id].Name
	}
	for i := range g.Nodes {
		n := &g.Nodes[i]
		d.printf("%sN %s|%s|%s|%s%s", pad, n.Domain, n.Op, n.Overload, esc(n.Name), props(n.Meta))
		for _, id := range n.Inputs {
			d.printf("%s < %s", pad, esc(name(id)))
		}
		for _, id := range n.Outputs {
			decl := ""
			if id != graph.NoValue {
				decl = typ(&g.Values[id].Decl) + props(g.Values[id].Meta)
			}
			d.printf("%s > %s %s", pad, esc(name(id)), decl)
		}
		for j := range n.Attrs {
			d.attr(&n.Attrs[j], pad)
		}
	}
	for _, id := range g.Outputs {
		d.printf("%sO %s", pad, esc(name(id)))
	}
}

func (d dumper) attr(a *graph.Attr, pad string) {
	if a.Ref != "" {
		d.printf("%s A %s %d ref %s", pad, esc(a.Name), a.Kind, a.Ref)
		return
	}
	d.printf("%s A %s %d %s", pad, esc(a.Name), a.Kind, attrValue(a))
	if a.Graph != nil {
		d.graph(a.Graph, pad+"  ")
	}
	for _, g := range a.Graphs {
		d.graph(g, pad+"  ")
	}
}

func attrValue(a *graph.Attr) string {
	switch a.Kind {
	case graph.AttrFloat:
		return num(float64(a.F))
	case graph.AttrInt:
		return fmt.Sprint(a.I)
	case graph.AttrString:
		return hex.EncodeToString([]byte(a.S))
	case graph.AttrFloats:
		return list(a.Floats, " ", func(f float32) string { return num(float64(f)) })
	case graph.AttrInts:
		return list(a.Ints, " ", func(n int64) string { return fmt.Sprint(n) })
	case graph.AttrStrings:
		return list(a.Strings, " ", func(s string) string { return hex.EncodeToString([]byte(s)) })
	case graph.AttrTensor, graph.AttrSparseTensor:
		return tensor(a.Tensor)
	case graph.AttrTensors, graph.AttrSparseTensors:
		return list(a.Tensors, " ; ", tensor)
	case graph.AttrType, graph.AttrTypes:
		return list(a.Types, " ; ", func(t graph.Type) string { return typ(&t) })
	}
	return ""
}

func list[T any](items []T, sep string, str func(T) string) string {
	parts := make([]string, len(items))
	for i, x := range items {
		parts[i] = str(x)
	}
	return strings.Join(parts, sep)
}

var special = regexp.MustCompile(`[\s|]`)

func esc(s string) string {
	if special.MatchString(s) {
		return hex.EncodeToString([]byte(s))
	}
	return s
}

func num(f float64) string {
	if f != f {
		return "nan"
	}
	return fmt.Sprintf("%016x", math.Float64bits(f))
}

func props(list []graph.Prop) string {
	var b strings.Builder
	for _, p := range list {
		if p.Key == "pkg.torch.onnx.stack_trace" { // digest.py leaves it out
			continue
		}
		fmt.Fprintf(&b, " %s=%x", esc(p.Key), p.Value)
	}
	return b.String()
}

var computed = regexp.MustCompile(`[*(+%]|//| - | / `)

func dim(d graph.Dim) string {
	if s, ok := d.Symbol(); ok && !computed.MatchString(s) {
		return "$" + esc(s)
	}
	if _, ok := d.Int(); ok || !d.Known() {
		return d.String()
	}
	return "expr"
}

func shape(s graph.Shape) string {
	if !s.Ranked() {
		return "unranked"
	}
	return "[" + list(s, ",", dim) + "]"
}

func typ(t *graph.Type) string {
	inner := ""
	if t.Of != nil {
		inner = typ(t.Of)
	}
	switch t.Kind {
	case graph.TensorType:
		return "tensor_type:" + t.Elem.String() + shape(t.Shape)
	case graph.SparseType:
		return "sparse_tensor_type:" + t.Elem.String() + shape(t.Shape)
	case graph.SequenceType:
		return "sequence_type(" + inner + ")"
	case graph.OptionalType:
		return "optional_type(" + inner + ")"
	case graph.MapType:
		return "map_type(" + t.Elem.String() + "," + inner + ")"
	case graph.OpaqueType:
		return "opaque_type"
	}
	return "none"
}

func tensor(t *graph.Constant) string {
	if t.Sparse != nil {
		values := *t
		values.Sparse, values.Dims = nil, []int64{nonzeros(t)}
		return fmt.Sprintf("sparse [%s] %s at %s", dims(t), tensor(&values), tensor(t.Sparse))
	}
	head := fmt.Sprintf("%s %s [%s]", esc(t.Name), t.Type, dims(t))
	if t.Ref != nil && t.Ref.Location != "" {
		return fmt.Sprintf("%s external %s %d %d", head, esc(t.Ref.Location), t.Ref.Offset, t.Ref.Length)
	}
	n, _ := t.Elems()
	if !t.Known() {
		if t.Ref == nil && n <= 1024 {
			return head + " stripped"
		}
		return head + " large"
	}
	elems := list(t.Ints, " ", func(n int64) string { return fmt.Sprint(n) }) +
		list(t.Floats, " ", num) +
		list(t.Strings, " ", func(s string) string { return hex.EncodeToString([]byte(s)) })
	if n > 0 {
		head += " "
	}
	return head + elems
}

func dims(t *graph.Constant) string {
	return list(t.Dims, ",", func(n int64) string { return fmt.Sprint(n) })
}

func nonzeros(t *graph.Constant) int64 {
	return int64(len(t.Ints) + len(t.Floats) + len(t.Strings))
}
