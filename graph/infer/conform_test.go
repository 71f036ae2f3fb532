package infer

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/onnx"
	"github.com/memplan/memplan/internal/testdata"
)

// Nodes that break ONNX's rules, and what is said of them.
func TestConform(t *testing.T) {
	for _, c := range []struct {
		text  string
		opset int64
		want  string // code: part of the message; "" for none
	}{
		{"(float[2] x) => (y) { y = Relu(x) }", 17, ""},
		{"(float[2] x) => (y) { y = Relu<slope = 1.0>(x) }", 17, `unknown-attribute: Relu has no attribute "slope" in version 14`},
		{"(float[2] x) => (y) { y = Relu<slope = 1.0>(x) }", 28, "unknown-attribute"},
		{"(float[2] x) => (y) { y = Relu<slope = 1.0>(x) }", 29, ""}, // newer than the schemas
		{"(float[2] x) => (y) { y = Relu<__tool = 1.0>(x) }", 17, ""},
		{"(float[2] x) => (y) { y = Relu(x, x) }", 17, "input-count: Relu has 2 inputs and takes 1 at most in version 14"},
		{"(float[2] x) => (y) { y = Add(x) }", 17, "missing-input: Add needs input 1 (B), which is missing"},
		{"(float[2] x) => (y) { y = Add(x, ) }", 17, "missing-input: Add needs input 1 (B)"},
		{"(float[2] x) => (y, z) { y, z = Relu(x) }", 17, "output-count: Relu has 2 outputs and takes 1 at most"},
		{"(float[2] x) => (y) { y = Clip(x, , x) }", 17, ""},
		{"(float[2] x, float[2] z) => (y) { y = Concat(x, z) }", 17, `missing-attribute: Concat needs an attribute "axis"`},
		{"(float[2] x, float[2] z) => (y) { y = Concat<axis = 0.0>(x, z) }", 17, `attribute-type: attribute "axis" is a float, not an integer`},
		{"(float[2] x) => (y) { y = Cast<to = 1099511627776>(x) }", 17, `attribute-value: attribute "to" is 1099511627776, which is no element type`},
		{"(float[2] x) => (y) { y = Cast<to = 0>(x) }", 17, "attribute-value"},
		{"() => (y) { y = RandomNormal<shape = [2], dtype = 77>() }", 17, "attribute-value"},
		{"(int64[2] x) => (y) { y = Sigmoid(x) }", 17, "element-type: input 0 (X) is int64, which Sigmoid does not take in version 13"},
		{"(float[2] x, int64[2] z) => (y) { y = Add(x, z) }", 17, "types-differ: inputs 0 and 1 are float and int64; Add wants one type"},
		{"(float[2] x, float[2] z, int64[2] u) => (y) { y = Max(x, z, u) }", 17, "types-differ: inputs 0 and 2"},
		{"(float[2] x) => (y) { y = Cast<to = 14>(x) }", 17, "element-type: output 0 (output) is complex64, which Cast does not give"},
		{"(float[2,3] x, float[3] s) => (y) { y = LayerNormalization(x, s) }", 16, "operator-version: LayerNormalization came with version 17 of its operator set; the file imports 16"},
		{"(float[1,1,2,2] x, float[4] s) => (y) { y = Upsample(x, s) }", 10, "operator-version: Upsample was withdrawn with version 10"},
		{"(float[2] x) => (y) { y = com.microsoft.Gelu<odd = 1>(x) }", 17, ""},
		{"(float[2] x) => (y) { y = local.Odd<odd = 1>(x) }", 17, ""},
		{"(bool c, float[2] x) => (y) { y = If(c)<then_branch = a () => (p) { p = Relu<odd = 1>(x) }, else_branch = b () => (q) { q = Neg(x) }> }", 17, "unknown-attribute"},
		{"(float[2] x) => (y) { s = SequenceConstruct(x, x) y = Relu(s) }", 17, "element-type: input 0 (X) is seq(tensor(float)), which Relu does not take"},
	} {
		g := parse(t, c.opset, c.text)
		if _, err := Infer(g, Options{}); err != nil && c.want == "" {
			t.Errorf("%s: %v", c.text, err)
		}
		var got []string
		for _, w := range Conform(g) {
			got = append(got, w.Code+": "+w.Message)
			if w.Node == "" || !slices.Contains(InvalidCodes, w.Code) {
				t.Errorf("%s: %+v", c.text, w)
			}
		}
		if text := strings.Join(got, "; "); c.want == "" && text != "" || !strings.HasPrefix(text, c.want) {
			t.Errorf("%s:\n got %s\nwant %s", c.text, text, c.want)
		}
	}
}

// refused reads which models ONNX's checker refuses.
func refused(t *testing.T) map[string]bool {
	text, err := os.ReadFile(filepath.Join("testdata", "invalid.txt"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		out[strings.TrimSpace(line)] = true
	}
	return out
}

// No model that ONNX's checker and its strict shape inference accept is said to
// break the rules.
func TestSuiteConform(t *testing.T) {
	dir := testdata.Shared(t, "onnx")
	bad := refused(t)
	var valid, invalid, warned int
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".onnx" {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		g, err := onnx.Load(path)
		if err != nil {
			return nil // TestSuite of package onnx looks at these
		}
		_, failed := Infer(g, Options{AnySize: true})
		ws := slices.DeleteFunc(append(Conform(g), g.Model.Warnings...), func(w graph.Warning) bool { return !slices.Contains(InvalidCodes, w.Code) })
		switch bad[filepath.ToSlash(name)] {
		case false:
			if valid++; len(ws) > 0 || failed != nil {
				t.Errorf("%s is valid: %v %v", name, ws, failed)
			}
		case true:
			if invalid++; len(ws) > 0 || failed != nil {
				warned++
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d valid models, none warned of; %d of %d invalid ones warned of or refused", valid, warned, invalid)
	if valid < 2800 || warned < 200 {
		t.Errorf("%d valid models, %d invalid ones warned of", valid, warned)
	}
}

// The operator table and ONNX's schemas agree on operators and versions.
func TestSchemasAgree(t *testing.T) {
	listed := map[string]*Op{}
	for i := range Ops {
		name := Ops[i].Name
		if Ops[i].Domain != "" {
			name = Ops[i].Domain + "." + name
		}
		listed[name] = &Ops[i]
	}
	for name, lines := range schemas().lines {
		var since []int
		withdrawn := false
		for _, line := range lines {
			s := schemas().parse(line)
			withdrawn = withdrawn || s.withdrawn
			since = append(since, int(s.since))
		}
		op := listed[name]
		if op == nil {
			t.Errorf("the table lacks %s", name)
			continue
		}
		if op.Domain == "" && !slices.Equal(since, op.Since) {
			t.Errorf("%s: the table has versions %v, the schemas %v", name, op.Since, since)
		}
	}
	old := []string{"Affine", "Crop", "ImageScaler", "ParametricSoftplus", "Scale", "ScaledTanh"} // experimental operators, which ONNX dropped
	for name, op := range listed {
		if _, ok := schemas().lines[name]; !ok && op.Domain == "" && !slices.Contains(old, name) {
			t.Errorf("the schemas lack %s", name)
		}
	}
}

// convolutions is a model of n nodes.
func convolutions(n int) *graph.Graph {
	var b builder
	x := b.input("x", graph.Float32, ints(2, 3, 8, 8))
	w := b.initializer("w", &graph.Constant{Type: graph.Float32, Dims: []int64{3, 3, 1, 1}})
	for i := range n {
		switch i % 3 {
		case 0:
			x = b.node("Conv", []graph.Attr{{Name: "group", Kind: graph.AttrInt, I: 1}}, x, w)
		case 1:
			x = b.node("Relu", nil, x)
		default:
			x = b.node("Add", nil, x, x)
		}
	}
	b.g.Outputs = []graph.ValueID{x}
	return b.graph()
}

func BenchmarkConform(b *testing.B) {
	g := convolutions(1000)
	if _, err := Infer(g, Options{}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if ws := Conform(g); len(ws) > 0 {
			b.Fatal(fmt.Sprint(ws))
		}
	}
}
