package infer

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/onnx"
	"github.com/memplan/memplan/internal/testdata"
)

// lines decodes a JSON lines file.
func lines[T any](t testing.TB, path string) []T {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []T
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<26)
	for sc.Scan() {
		var x T
		d := json.NewDecoder(bytes.NewReader(sc.Bytes()))
		d.UseNumber()
		if err := d.Decode(&x); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		out = append(out, x)
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// A caseType is a type as cases.jsonl writes it.
type caseType struct {
	K     string
	DType string
	Shape *[]any
	Elem  *caseType
	Key   string
	Value *caseType
}

type shapeCase struct {
	ID       int
	Test     string
	Strict   bool
	Model    string
	Error    string
	Expected map[string]caseType
	Inferred map[string]caseType
}

// differs explains how t contradicts the expected type; "" if it does not.
func (want caseType) differs(t graph.Type) string {
	kinds := map[string]graph.TypeKind{"tensor": graph.TensorType, "seq": graph.SequenceType, "opt": graph.OptionalType, "map": graph.MapType, "sparse": graph.SparseType}
	if kinds[want.K] != t.Kind {
		return fmt.Sprintf("%s, want %s", typeText(t), want.K)
	}
	if of := want.Elem; of != nil && of.K != "" {
		if t.Of == nil {
			return fmt.Sprintf("%s, want an element type", typeText(t))
		}
		return of.differs(*t.Of)
	}
	if want.K != "tensor" {
		return ""
	}
	if want.DType != t.Elem.String() && want.DType != "undefined" && want.DType != "" {
		return fmt.Sprintf("%s, want %s", typeText(t), want.DType)
	}
	if want.Shape == nil {
		return ""
	}
	if t.Shape == nil || len(t.Shape) != len(*want.Shape) {
		return fmt.Sprintf("%s, want %v", typeText(t), *want.Shape)
	}
	for i, d := range *want.Shape {
		n, isInt := t.Shape[i].Int()
		switch d := d.(type) {
		case json.Number:
			if m, err := d.Int64(); !isInt || err != nil || n != m {
				return fmt.Sprintf("%s, want %v", typeText(t), *want.Shape)
			}
		case string:
			if t.Shape[i].String() != d && !isInt {
				return fmt.Sprintf("%s, want %v", typeText(t), *want.Shape)
			}
		}
	}
	return ""
}

// byName returns a value of the main graph, or with a name such as
// domain::function/value one of a local function.
func byName(g *graph.Graph, name string) *graph.Value {
	if domain, rest, ok := strings.Cut(name, "::"); ok {
		for _, f := range g.Model.Functions {
			if v, ok := strings.CutPrefix(rest, f.Name+"/"); ok && f.Domain == domain {
				return byName(f.Body, v)
			}
		}
	}
	for i := range g.Values {
		if g.Values[i].Name == name {
			return &g.Values[i]
		}
	}
	return nil
}

// The recorded calls of ONNX's own shape inference tests: expected types must
// come out, faulty graphs must be rejected.
func TestSuiteShapeCases(t *testing.T) {
	dir := testdata.Shared(t, "onnx", "shape-cases")
	expected, right, faulty, rejected := 0, 0, 0, 0
	for _, c := range lines[shapeCase](t, filepath.Join(dir, "cases.jsonl")) {
		g, err := onnx.Load(filepath.Join(dir, c.Model))
		if err == nil {
			_, err = Infer(g, Options{Strict: c.Strict, AnySize: true, Custom: registered})
		}
		name := fmt.Sprintf("%d %s", c.ID, c.Test[strings.LastIndex(c.Test, ":")+1:])
		if why := differences[c.ID]; why != "" {
			t.Logf("not counted: %s: %s", name, why)
			continue
		}
		switch {
		case c.Error != "":
			faulty++
			if err != nil {
				rejected++
			} else {
				t.Logf("accepted: %s: %s", name, strings.TrimSpace(c.Error))
			}
			if err != nil && c.Expected != nil { // types of what comes before the fault
				expected++
				right++
			}
		case c.Expected != nil:
			expected++
			if err != nil {
				t.Errorf("%s: %v", name, err)
			} else if c.matches(t, name, g) {
				right++
			}
		}
	}
	t.Logf("shape cases: %d of %d expected types, %d of %d rejected", right, expected, rejected, faulty)
	if right < expected || expected != 896-len(differences) || rejected < faulty || faulty != 199 {
		t.Errorf("below %d and 199", 896-len(differences))
	}
}

// differences are recorded expectations that inference does not share.
var differences = map[int]string{
	319:  "axes computed in the graph are taken for the first axes: with axes {2, 1, 0} the result is [2,2,1], not [1,2,2]",
	320:  "steps computed in the graph are taken for ones: with steps {1, 2} the result is [1,6,1], not [1,6,2]",
	1016: "STFT is one-sided by default, as the backend suite's outputs show; the reference reads the default as 0",
	1017: "see 1016",
	1018: "see 1016",
}

// registered is the rule that ONNX's tests register for their operators
// CustomOp and DummyGraph.
func registered(n *graph.Node, in []graph.Type) ([]graph.Type, error) {
	if a := n.Attr("graph"); a != nil && n.Op == "DummyGraph" {
		n = &a.Graph.Nodes[0]
	}
	a := n.Attr("out_len")
	if n.Op != "CustomOp" {
		return nil, nil
	}
	if a == nil {
		return nil, fmt.Errorf("CustomOp takes no inputs")
	}
	var out []graph.Type
	for _, k := range a.Ints {
		out = append(out, tensorOf(in[0].Elem, graph.Shape{in[0].Shape[0], in[0].Shape[1].Mul(in[1].Shape[1]), graph.Int(k)}))
	}
	return out, nil
}

func (c shapeCase) matches(t *testing.T, name string, g *graph.Graph) bool {
	for _, out := range sortedKeys(c.Expected) {
		v := byName(g, out)
		if v == nil {
			t.Errorf("%s: no value %q", name, out)
			return false
		}
		if diff := c.Expected[out].differs(v.Type); diff != "" {
			t.Logf("%s: %s: %s", name, out, diff)
			return false
		}
	}
	return true
}

type backendValue struct {
	Name, Kind, DType string
	Shape, Dims       []int64
	Values            []any
	Elems             []backendValue
	Value             *backendValue
}

type backendTest struct {
	Suite, Name, Model string
	Ops                []string
	Sets               []struct{ Inputs, Outputs []backendValue }
}

// tensor returns the value with its elements, or nil when they are not
// recorded.
func (v backendValue) tensor() *graph.Constant {
	dtype, ok := graph.ParseDType(v.DType)
	n, _ := graph.Product(v.Shape)
	if !ok || v.Kind != "tensor" || int64(len(v.Values)) != n || n == 0 && v.Values == nil || dtype == graph.String {
		return nil
	}
	t := &graph.Constant{Type: dtype, Dims: v.Shape, Ints: []int64{}}
	for _, x := range v.Values {
		f, ok := number(x)
		if !ok {
			return nil
		}
		if dtype.IsFloat() {
			t.Floats = append(t.Floats, f)
		} else {
			t.Ints = append(t.Ints, int64(f))
		}
	}
	if dtype.IsFloat() {
		t.Ints = nil
		if t.Floats == nil {
			t.Floats = []float64{}
		}
	}
	return t
}

func number(x any) (float64, bool) {
	switch x := x.(type) {
	case json.Number:
		f, err := x.Float64()
		return f, err == nil
	case bool:
		if x {
			return 1, true
		}
		return 0, true
	case string:
		f, ok := map[string]float64{"inf": math.Inf(1), "-inf": math.Inf(-1), "nan": math.NaN()}[strings.ToLower(x)]
		return f, ok
	}
	return 0, false
}

// verdict of one inferred type against a recorded value.
type verdict int

const (
	exact verdict = iota
	partial
	unranked
	mismatch
)

func judge(t graph.Type, want backendValue) verdict {
	if want.Kind != "tensor" {
		return judgeContainer(t, want)
	}
	if t.Kind == graph.OptionalType && t.Of != nil {
		t = *t.Of
	}
	if t.Kind != graph.TensorType {
		return unranked
	}
	if t.Elem.String() != want.DType && t.Elem != graph.Undefined {
		return mismatch
	}
	if t.Shape == nil || t.Elem == graph.Undefined {
		return unranked
	}
	if len(t.Shape) != len(want.Shape) {
		return mismatch
	}
	out := exact
	for i, d := range t.Shape {
		n, ok := d.Int()
		if ok && n != want.Shape[i] {
			return mismatch
		}
		if !ok {
			out = partial
		}
	}
	return out
}

// judgeContainer compares every item with the type that all have in common.
func judgeContainer(t graph.Type, want backendValue) verdict {
	if want.Kind == "optional" {
		if t.Kind != graph.OptionalType || t.Of == nil {
			return unranked
		}
		if want.Value == nil {
			return exact
		}
		return judge(*t.Of, *want.Value)
	}
	if t.Kind != graph.SequenceType || t.Of == nil {
		return unranked
	}
	out := exact
	if n, ok := t.Len.Int(); !ok {
		out = partial
	} else if n != int64(len(want.Elems)) {
		return mismatch
	}
	for _, e := range want.Elems {
		v := judge(*t.Of, e)
		if v == unranked && t.Of.Shape == nil && differ(want.Elems) {
			v = exact // no common shape is right
		}
		if v == partial && differ(want.Elems) {
			v = exact
		}
		out = max(out, v)
	}
	return out
}

func differ(items []backendValue) bool {
	return slices.ContainsFunc(items, func(v backendValue) bool { return !slices.Equal(v.Shape, items[0].Shape) })
}

// wrongElements compares the elements that inference computed with those of
// the run, if both are known.
func wrongElements(got *graph.Constant, want backendValue) (known bool, diff string) {
	w := want.tensor()
	if got == nil || w == nil || got.Ints == nil && got.Floats == nil {
		return false, ""
	}
	if !slices.Equal(got.Ints, w.Ints) && w.Floats == nil {
		return true, fmt.Sprintf("elements %v, want %v", got.Ints, w.Ints)
	}
	for i, f := range w.Floats {
		if g := got.Floats[i]; math.Abs(f-g) > 1e-3*max(1, math.Abs(f)) && (f == f || g == g) && want.DType != "bfloat16" {
			return true, fmt.Sprintf("elements %v, want %v", got.Floats, w.Floats)
		}
	}
	return true, ""
}

// The ONNX backend tests: outputs of real runs, with small inputs bound.
func TestSuiteBackend(t *testing.T) {
	dir := testdata.Shared(t, "onnx", "backend")
	var count [4]int
	total, failed, elements, bounds := 0, 0, 0, 0
	open := map[string]int{}
	for _, c := range lines[backendTest](t, filepath.Join(dir, "tests.jsonl")) {
		g, err := onnx.Load(filepath.Join(dir, c.Model))
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		opt := Options{Values: map[string]*graph.Constant{}, Shapes: map[string]graph.Shape{}}
		for _, in := range c.Sets[0].Inputs {
			if v := in.tensor(); v != nil {
				opt.Values[in.Name] = v
			} else if in.Kind == "tensor" {
				opt.Shapes[in.Name] = ints(in.Shape...)
			}
		}
		for i := range g.Values {
			if g.Values[i].Kind == graph.Computed {
				g.Values[i].Decl = graph.Type{}
			}
		}
		r, err := Infer(g, opt)
		if err != nil {
			failed++
			t.Errorf("%s: %v", c.Name, err)
			r = &Result{}
		}
		for i, want := range c.Sets[0].Outputs {
			total++
			v := unranked
			if err == nil {
				v = judge(g.Values[g.Outputs[i]].Type, want)
			}
			count[v]++
			if err == nil && want.Kind == "tensor" {
				n, diff := r.exceeded(g.Values[g.Outputs[i]].Type.Shape, want.Shape)
				if bounds += n; diff != "" {
					t.Errorf("%s %s: %s", c.Name, want.Name, diff)
				}
			}
			if known, diff := wrongElements(g.Values[g.Outputs[i]].Const, want); diff != "" {
				t.Errorf("%s %s: %s", c.Name, want.Name, diff)
			} else if known && err == nil {
				elements++
			}
			if v == mismatch {
				t.Errorf("mismatch: %s %s: %s, want %s%v", c.Name, want.Name, typeText(g.Values[g.Outputs[i]].Type), want.DType, want.Shape)
			} else if v != exact {
				open[strings.Join(c.Ops, ",")]++
				t.Logf("open: %s %s: %s, want %s%v", c.Name, want.Name, typeText(g.Values[g.Outputs[i]].Type), want.DType, want.Shape)
			}
		}
	}
	t.Logf("backend suite: %d outputs: %d exact, %d partial, %d unranked, %d mismatches; %d files failed; the elements of %d outputs computed; %d upper bounds held", total, count[exact], count[partial], count[unranked], count[mismatch], failed, elements, bounds)
	if count[exact] < 2300 || count[mismatch] > 0 || failed > 0 || bounds < 20 {
		t.Errorf("below 2300 exact, or mismatches")
	}
}

// exceeded compares the upper bounds of dims that depend on data with the
// dims of a run.
func (r *Result) exceeded(s graph.Shape, want []int64) (bounds int, diff string) {
	if len(s) != len(want) {
		return 0, ""
	}
	for i, d := range s {
		name, _ := d.Symbol()
		for _, b := range r.Bounds {
			if n, ok := b.Max.Int(); b.Symbol == name && ok {
				if bounds++; want[i] > n {
					return bounds, fmt.Sprintf("dim %d is at most %d, but %d in a run", i, n, want[i])
				}
			}
		}
	}
	return bounds, ""
}

type consensus struct {
	Model  string
	Values map[string]struct {
		DType string
		Shape []*int64
		Votes int
	}
}

// Real models against the values on which independent engines agree, with
// the declarations of the file and from scratch.
func TestSuiteReal(t *testing.T) {
	dir := testdata.Shared(t, "onnx", "real")
	for _, scratch := range []bool{false, true} {
		var r realCount
		for _, m := range lines[consensus](t, filepath.Join(dir, "consensus.jsonl")) {
			g, err := onnx.Load(filepath.Join(dir, m.Model))
			if err != nil {
				t.Errorf("%s: %v", m.Model, err)
				continue
			}
			if scratch {
				stripAll(g)
			}
			if _, err := Infer(g, Options{}); err != nil {
				t.Errorf("%s: %v", m.Model, err)
				continue
			}
			r.compare(t, g, m)
		}
		percent := 100 * float64(r.ours) / float64(r.ranked)
		t.Logf("real models, declarations stripped %v: %d of %d values ranked (%.2f%%), %d of %d static dims, %d contradictions; %d names are of no value",
			scratch, r.ours, r.ranked, percent, r.ourStatic, r.static, r.wrong, r.absent)
		if !scratch && percent < 99.5 || r.wrong > 0 {
			t.Error("below 99.5%, or contradictions")
		}
	}
}

// A realCount counts values that the engines rank and that we do, dims that
// they and we know as integers, and names in the record that no node computes.
type realCount struct{ ranked, ours, static, ourStatic, wrong, absent int }

func (r *realCount) compare(t *testing.T, g *graph.Graph, m consensus) {
	missed := 0
	for _, name := range sortedKeys(m.Values) {
		want := m.Values[name]
		if want.Shape == nil {
			continue
		}
		v := byName(g, name)
		if v == nil {
			r.absent++
			continue
		}
		r.ranked++
		if v.Type.Shape == nil {
			if missed++; missed <= 3 {
				t.Logf("%s: %s: %s is unranked", m.Model, name, producer(g, v))
			}
			continue
		}
		r.ours++
		if diff := wrongAgainst(v.Type, want.DType, want.Shape); diff != "" {
			r.wrong++
			t.Errorf("%s: %s: %s", m.Model, name, diff)
			continue
		}
		for i, n := range want.Shape {
			if n == nil {
				continue
			}
			r.static++
			if _, ok := v.Type.Shape[i].Int(); ok {
				r.ourStatic++
			}
		}
	}
}

func producer(g *graph.Graph, v *graph.Value) string {
	if v.Def < 0 {
		return v.Kind.String()
	}
	return g.Nodes[v.Def].Label()
}

func wrongAgainst(t graph.Type, dtype string, shape []*int64) string {
	if len(shape) != len(t.Shape) || dtype != "" && dtype != t.Elem.String() {
		return fmt.Sprintf("%s, want %s of rank %d", typeText(t), dtype, len(shape))
	}
	for i, n := range shape {
		if m, ok := t.Shape[i].Int(); ok && n != nil && m != *n {
			return fmt.Sprintf("%s, dim %d should be %d", typeText(t), i, *n)
		}
	}
	return ""
}
