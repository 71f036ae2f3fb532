package onnx_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	onnxgo "github.com/owulveryck/onnx-go"
	gonum "gonum.org/v1/gonum/graph"
	"gonum.org/v1/gonum/graph/simple"
	gorgonia "gorgonia.org/tensor"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/onnx"
)

// A recorder is a backend of onnx-go, an independent reader, that notes the
// operations it is told to apply. Its nodes carry no data, so that onnx-go
// allocates none.
type recorder struct {
	*simple.WeightedDirectedGraph
	nodes []*recorded
	calls []call
}

// A recorded is a value; inputs are those of the operation that makes it.
type recorded struct {
	id     int64
	name   string
	inputs []string
}

// A call is one operation in file order.
type call struct {
	op      string
	inputs  []string
	outputs []string
	attrs   map[string]any
}

func (n *recorded) ID() int64        { return n.id }
func (n *recorded) SetName(s string) { n.name = s }
func (n *recorded) GetName() string  { return n.name }

func (r *recorder) NewNode() gonum.Node {
	r.nodes = append(r.nodes, &recorded{id: int64(len(r.nodes))})
	return r.nodes[len(r.nodes)-1]
}

func (r *recorder) AddNode(gonum.Node) {}

func (r *recorder) NewWeightedEdge(from, to gonum.Node, w float64) gonum.WeightedEdge {
	return simple.WeightedEdge{F: from, T: to, W: w}
}

func (r *recorder) SetWeightedEdge(e gonum.WeightedEdge) {
	n := e.From().(*recorded)
	if int(e.Weight()) == 0 {
		n.inputs = nil
	}
	n.inputs = append(n.inputs, e.To().(*recorded).name)
}

func (r *recorder) ApplyOperation(o onnxgo.Operation, outputs ...gonum.Node) error {
	c := call{op: o.Name, attrs: o.Attributes}
	for _, n := range outputs {
		c.outputs = append(c.outputs, n.(*recorded).name)
	}
	if len(outputs) > 0 {
		c.inputs = slices.Clone(outputs[0].(*recorded).inputs)
	}
	r.calls = append(r.calls, c)
	return nil
}

// decode lets onnx-go decode a file as far as it can: it refuses subgraphs
// and newer types, and panics on some files. done is true when it got to the
// end.
func decode(data []byte) (calls []call, done bool) {
	r := &recorder{WeightedDirectedGraph: simple.NewWeightedDirectedGraph(0, 0)}
	defer func() {
		if recover() != nil {
			calls, done = r.calls, false
		}
	}()
	err := onnxgo.NewModel(r).UnmarshalBinary(data)
	return r.calls, err == nil
}

// TestAgainstOnnxGo compares operations, connections and attributes of every
// shared model with those onnx-go reads. It reads no subgraphs and no
// functions.
func TestAgainstOnnxGo(t *testing.T) {
	files := models(t)
	whole, nodes, attrs := 0, 0, 0
	for _, path := range files {
		g, err := onnx.Load(path)
		if err != nil || warned(g, "unsorted") {
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		calls, done := decode(data)
		if done && len(calls) != len(g.Nodes) {
			t.Errorf("%s: %d nodes, onnx-go has %d", filepath.Base(path), len(g.Nodes), len(calls))
			continue
		}
		if done {
			whole++
		}
		nodes += len(calls)
		for i, c := range calls {
			n, err := compareNode(g, &g.Nodes[i], c)
			if err != nil {
				t.Errorf("%s: node %d: %v", filepath.Base(path), i, err)
				break
			}
			attrs += n
		}
	}
	t.Logf("%d files, %d read to the end by onnx-go; %d nodes and %d attributes compared", len(files), whole, nodes, attrs)
	if whole < 2000 || nodes < 30000 || attrs < 25000 {
		t.Error("onnx-go read less than before")
	}
}

// compareNode returns how many attributes of n equal c's.
func compareNode(g *graph.Graph, n *graph.Node, c call) (int, error) {
	ins, outs := names(g, n.Inputs), names(g, n.Outputs)
	if len(ins) == 0 && len(c.inputs) == 1 && strings.HasSuffix(c.inputs[0], "/input") {
		c.inputs = nil // onnx-go invents an input where there is none
	}
	if n.Op != c.op || !slices.Equal(ins, c.inputs) && len(outs) > 0 || !slices.Equal(outs, c.outputs) {
		return 0, fmt.Errorf("%v = %s%v, onnx-go has %v = %s%v", outs, n.Op, ins, c.outputs, c.op, c.inputs)
	}
	if len(n.Attrs) != len(c.attrs) {
		return 0, fmt.Errorf("%s: %d attributes, onnx-go has %d", n.Op, len(n.Attrs), len(c.attrs))
	}
	for i := range n.Attrs {
		a := &n.Attrs[i]
		if got, want := plain(a), c.attrs[a.Name]; got != nil && fmt.Sprint(got) != fmt.Sprint(comparable(want)) {
			return 0, fmt.Errorf("%s: attribute %s is %v, onnx-go has %v", n.Op, a.Name, got, want)
		}
	}
	return len(n.Attrs), nil
}

func names(g *graph.Graph, ids []graph.ValueID) []string {
	var out []string
	for _, id := range ids {
		if id == graph.NoValue {
			out = append(out, "")
		} else {
			out = append(out, g.Values[id].Name)
		}
	}
	return out
}

// plain returns an attribute's value in the form of comparable, nil where
// there is nothing to compare.
func plain(a *graph.Attr) any {
	switch a.Kind {
	case graph.AttrFloat:
		return a.F
	case graph.AttrInt:
		return a.I
	case graph.AttrString:
		return a.S
	case graph.AttrFloats:
		return a.Floats
	case graph.AttrInts:
		return a.Ints
	case graph.AttrStrings:
		return a.Strings
	case graph.AttrTensor:
		return elements(a.Tensor)
	}
	return nil
}

// elements returns what comparable makes of onnx-go's tensor.
func elements(t *graph.Constant) any {
	if !t.Known() || t.Type == graph.String || t.Type == graph.Bool {
		return nil
	}
	if t.Type == graph.Float32 { // for onnx-go's print as float32
		short := make([]float32, len(t.Floats))
		for i, f := range t.Floats {
			short[i] = float32(f)
		}
		return strings.Trim(fmt.Sprint(short), "[]")
	}
	if t.Type.IsFloat() {
		return strings.Trim(fmt.Sprint(t.Floats), "[]")
	}
	return strings.Trim(fmt.Sprint(t.Ints), "[]")
}

// comparable returns an attribute value of onnx-go, a tensor as its elements:
// its shapes are not to be trusted, and one element is not a slice.
func comparable(v any) any {
	t, ok := v.(gorgonia.Tensor)
	if !ok {
		return v
	}
	return strings.Trim(fmt.Sprint(t.Data()), "[]")
}
