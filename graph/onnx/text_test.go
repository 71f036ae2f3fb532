package onnx_test

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/onnx"
	"github.com/memplan/memplan/internal/testdata"
)

// TestTextRoundTrip writes every shared model as text and reads it back.
func TestTextRoundTrip(t *testing.T) {
	for _, path := range models(t) {
		g, err := onnx.Load(path)
		if err != nil {
			continue
		}
		var b bytes.Buffer
		if err := graph.Format(&b, g); err != nil {
			t.Fatal(err)
		}
		text := b.String()
		back, err := graph.Parse(&b)
		if err != nil {
			t.Errorf("%s: %v", filepath.Base(path), err)
			continue
		}
		if err := graph.Check(back); err != nil {
			t.Errorf("%s: %v", filepath.Base(path), err)
		}
		var again bytes.Buffer
		if err := graph.Format(&again, back); err != nil {
			t.Fatal(err)
		}
		if again.String() != stripComments(text) {
			t.Errorf("%s: the text of what was read back differs", filepath.Base(path))
		}
		if same(g, back); !reflect.DeepEqual(g, back) {
			t.Errorf("%s: the graph changed on its way through text", filepath.Base(path))
		}
	}
}

// stripComments removes what Format writes behind nodes from the exporter's
// metadata.
func stripComments(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if at := strings.LastIndex(line, "  # "); at >= 0 {
			lines[i] = line[:at]
		}
	}
	return strings.Join(lines, "\n")
}

// same removes what the text form leaves out from both graphs.
func same(graphs ...*graph.Graph) {
	for _, g := range graphs {
		m := g.Model
		m.Path, m.SHA256, m.Meta, m.Warnings = "", "", nil, nil
		for _, f := range m.Functions {
			for i := range f.Attrs {
				plainAttr(&f.Attrs[i])
			}
			plainGraph(f.Body)
		}
		plainGraph(g)
	}
}

func plainGraph(g *graph.Graph) {
	g.Meta = nil
	for i := range g.Values {
		if v := &g.Values[i]; v.Kind == graph.Initializer {
			v.Decl = v.Type // an input of the same name may declare another
		}
		g.Values[i].Meta = nil
		plainTensor(g.Values[i].Const)
	}
	for i := range g.Nodes {
		n := &g.Nodes[i]
		n.Meta = nil
		if len(n.Attrs) == 0 {
			n.Attrs = nil
		}
		if len(n.Inputs) == 0 {
			n.Inputs = nil
		}
		for j := range n.Attrs {
			plainAttr(&n.Attrs[j])
		}
		for _, sub := range n.Subgraphs() {
			plainGraph(sub)
		}
	}
}

func plainAttr(a *graph.Attr) {
	plainTensor(a.Tensor)
	for _, t := range a.Tensors {
		plainTensor(t)
	}
	for i, f := range a.Floats {
		if f != f {
			a.Floats[i] = math.MaxFloat32
		}
	}
	if a.F != a.F {
		a.F = math.MaxFloat32
	}
}

func plainTensor(t *graph.Constant) {
	if t == nil {
		return
	}
	if t.Known() || t.Sparse != nil && nonzeros(t) > 0 {
		t.Ref = nil
	}
	if n, _ := t.Elems(); n == 0 {
		t.Ints, t.Floats, t.Strings = nil, nil, nil
	}
	for i, f := range t.Floats {
		if f != f {
			t.Floats[i] = math.MaxFloat64
		}
	}
	plainTensor(t.Sparse)
}

// TestTextsOfOnnx parses the texts of onnx's own C++ tests and compares with
// what its parser made of them.
func TestTextsOfOnnx(t *testing.T) {
	texts, err := filepath.Glob(filepath.Join(testdata.Shared(t, "onnx", "shape-cases", "cpp_text"), "*.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if len(texts) < 30 {
		t.Fatalf("%d texts", len(texts))
	}
	for _, path := range texts {
		t.Run(filepath.Base(path), func(t *testing.T) {
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			got, err := graph.Parse(f)
			if err != nil {
				t.Fatal(err)
			}
			want, err := onnx.Load(strings.TrimSuffix(path, ".txt") + ".model.pb")
			if err != nil {
				t.Fatal(err)
			}
			if same(got, want); !reflect.DeepEqual(got, want) {
				var a, b bytes.Buffer
				dump(&a, got)
				dump(&b, want)
				t.Errorf("read as\n%swant\n%s", a.String(), b.String())
			}
		})
	}
}

func BenchmarkText(b *testing.B) {
	g, err := onnx.Load(testdata.Shared(b, "models", "llama_250m.dyn-train.onnx"))
	if err != nil {
		b.Fatal(err)
	}
	var text bytes.Buffer
	b.Run("op=format", func(b *testing.B) {
		for b.Loop() {
			text.Reset()
			if err := graph.Format(&text, g); err != nil {
				b.Fatal(err)
			}
		}
		b.SetBytes(int64(text.Len()))
	})
	b.Run("op=parse", func(b *testing.B) {
		b.SetBytes(int64(text.Len()))
		for b.Loop() {
			if _, err := graph.Parse(bytes.NewReader(text.Bytes())); err != nil {
				b.Fatal(err)
			}
		}
	})
}
