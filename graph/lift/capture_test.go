package lift_test

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/infer"
	"github.com/memplan/memplan/graph/lift"
)

// mlp is the capture of a small network: linear, relu_, linear.
const mlp = `{"schema": 1, "torch": "2.11.0", "memplan": "0.2.0", "class": "own.MLP", "dims": [{"name": "batch", "traced": [2, 3]}],
 "modules": [["", "own.MLP"], ["net", "torch.nn.modules.container.Sequential"], ["net.0", "torch.nn.modules.linear.Linear"]],
 "tensors": [{"kind": "parameter", "name": "net.0.weight", "shape": [16, 8], "dtype": "float32", "grad": true, "also": ["tied.weight"]},
  {"kind": "parameter", "name": "net.0.bias", "shape": [16], "dtype": "float32", "grad": false},
  {"kind": "input", "name": "x", "shape": [{"e": "batch"}, 8], "dtype": "float32"}],
 "variants": [{"mode": "train", "precision": "fp32", "calls": [
   {"op": "aten.linear.default", "args": [{"t": 2}, {"t": 0}, {"t": 1}], "out": [3], "module": 2, "dies": [], "saves": [2, 0]},
   {"op": "aten.relu_.default", "args": [{"t": 3}], "out": [3], "module": 0, "dies": []},
   {"op": "aten.reshape.default", "args": [{"t": 3}, [{"e": "batch"}, 4, -1]], "out": [4], "module": 0, "dies": [3]},
   {"op": "aten.mul.Tensor", "args": [{"t": 4}, 2.5], "kwargs": {}, "out": [5], "module": 0, "dies": [4]}],
  "types": {"3": ["float32", [{"e": "batch"}, 16]], "4": ["float32", [{"e": "batch"}, 4, 4], 3], "5": ["float32", [{"e": "batch"}, 4, 4]]}, "outputs": [5], "loss": null},
  {"mode": "train", "precision": "fp16", "error": "RuntimeError: no\nhalf"}, {"mode": "train", "precision": "tf32", "same": 0, "types": {}}], "step": null, "checks": []}`

// packed is the value of the metadata property.
func packed(text string) string {
	var b bytes.Buffer
	z := zlib.NewWriter(&b)
	_, _ = z.Write([]byte(text)) // a buffer takes all
	_ = z.Close()
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

const mlpGraph = `<ir_version: 10, opset_import: ["" : 18]> g (float[batch,8] x) => (float[batch,8] y) { y = Identity(x) }`

func bound(t testing.TB, text string, batch int64) *graph.Graph {
	g, err := graph.Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := infer.Infer(g, infer.Options{Batch: batch}); err != nil {
		t.Fatal(err)
	}
	return g
}

// A capture becomes a graph with the sizes of the batch, versions of what is
// written to, and what Python lets go of.
func TestCapture(t *testing.T) {
	c, err := lift.ReadCapture(packed(mlp))
	if err != nil {
		t.Fatal(err)
	}
	k, ok, err := c.Variant("train", "fp32")
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	l, err := lift.LiftCapture(c, bound(t, mlpGraph, 6), k)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i := range l.Graph.Nodes {
		n := &l.Graph.Nodes[i]
		o := &l.Graph.Values[n.Outputs[0]]
		got = append(got, fmt.Sprintf("%s %v %s %s %v %v %v %v", n.Op, n.Inputs, n.Module, l.Classes[i], l.InPlace[i], o.Type.Shape, l.Recording.Bases[o.ID], l.Recording.Released[i]))
	}
	want := []string{
		"linear.default [2 0 1] net.0 torch.nn.modules.linear.Linear false [6 16] -1 []",
		"relu.default [3]  own.MLP true [6 16] 3 []",
		"reshape.default [4]  own.MLP false [6 4 4] 4 [4]",
		"mul.Tensor [5]  own.MLP false [6 4 4] -1 [5]",
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("call %d:\n got %s\nwant %s", i, got[i], want[i])
		}
	}
	if l.Source != lift.Captured || l.Roles[0] != lift.Parameter || !l.Recording.Frozen["net.0.bias"] || len(l.Graph.Outputs) != 1 {
		t.Errorf("source %s, roles %v, frozen %v, outputs %v", l.Source, l.Roles, l.Recording.Frozen, l.Graph.Outputs)
	}
	if a := l.Graph.Nodes[2].Args[1].List; a[0].Int != 6 || a[2].Int != -1 {
		t.Errorf("sizes of the reshape: %v", a)
	}
	if m := l.Modules(); len(m) != 3 || m[1].Name != "net" || m[1].Calls[0] != (lift.Span{}) {
		t.Errorf("modules %v", m)
	}
	if _, ok, err := c.Variant("train", "fp16"); !ok || err == nil || err.Error() != "RuntimeError: no" {
		t.Errorf("a run that PyTorch refuses: %v %v", ok, err)
	}
	if _, ok, _ := c.Variant("infer", "fp32"); ok {
		t.Error("a run that is not there")
	}
}

// What a capture says that cannot be is an error that names the place.
func TestCaptureErrors(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{`"schema": 1`, `"schema": 2`, "schema 2"},
		{`"schema": 1,`, ``, "no schema"},
		{`"args": [{"t": 3}]`, `"args": [{"t": 9}]`, "call 1, \"aten.relu_.default\": argument: tensor 9 was never made"},
		{`"dies": [4]`, `"dies": [44]`, "tensor 44 dies"},
		{`{"e": "batch"}, 16`, `{"e": "rows"}, 16`, "no dim is called rows"},
		{`"same": 0`, `"same": 2`, "same 2"},
		{`"same": 0`, `"same": 1`, "same 1"},
		{`"4": ["float32"`, `"4": ["float33"`, `unknown element type "float33"`},
		{`"4": ["float32"`, `"-4": ["float32"`, `"-4" is no id`},
		{`"outputs": [5]`, `"outputs": [50]`, "output 50"},
		{`"module": 2`, `"module": 3`, "no module 3"},
		{`2.5`, `{"q": 1}`, "unknown kind"},
		{`2.5`, strings.Repeat("[", 30) + strings.Repeat("]", 30), "nested"},
		{`2.5`, strings.Repeat("[", 300) + strings.Repeat("]", 300), "nested"},
		{`"out": [5]`, `"out": [7]`, "result 7 has no type"},
		{`"kind": "input"`, `"kind": "output"`, "unknown kind"},
		{`"out": [5]`, `"out": [99999999]`, "below"},
	} {
		if !strings.Contains(mlp, c.from) {
			t.Fatalf("%q is not in the capture", c.from)
		}
		_, err := lift.ReadCapture(packed(strings.Replace(mlp, c.from, c.to, 1)))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.to, err, c.want)
		}
	}
	for _, text := range []string{"*", "aGVsbG8=", base64.StdEncoding.EncodeToString([]byte("x\x9c00"))} {
		if _, err := lift.ReadCapture(text); err == nil {
			t.Errorf("%q is read", text)
		}
	}
	var b bytes.Buffer
	z := zlib.NewWriter(&b)
	zeros := make([]byte, 1<<20)
	for range 65 {
		_, _ = z.Write(zeros)
	}
	_ = z.Close()
	if _, err := lift.ReadCapture(base64.StdEncoding.EncodeToString(b.Bytes())); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("a bomb: %v", err)
	}
}

// Sizes that the capture was not made for are an error.
func TestCaptureSizes(t *testing.T) {
	c, err := lift.DecodeCapture([]byte(mlp))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lift.LiftCapture(c, bound(t, strings.ReplaceAll(mlpGraph, "8]", "9]"), 6), 0); err == nil || !strings.Contains(err.Error(), "dim 1 of input \"x\" is 9") {
		t.Errorf("another size: %v", err)
	}
	if _, err := lift.LiftCapture(c, bound(t, `<ir_version: 10, opset_import: ["" : 18]> g (float[8] x) => (float[8] y) { y = Identity(x) }`, 0), 0); err == nil {
		t.Error("another rank is taken")
	}
}

// FuzzCapture reads anything: no text may make the reader or the lift panic, and
// what they make keeps the invariants of a graph.
func FuzzCapture(f *testing.F) {
	f.Add(mlp)
	f.Add(`{"schema": 1}`)
	f.Fuzz(func(t *testing.T, text string) {
		c, err := lift.DecodeCapture([]byte(text))
		if err != nil {
			return
		}
		g := bound(t, mlpGraph, 3)
		for i := range c.Variants {
			if c.Variants[i].Error != "" {
				continue
			}
			l, err := lift.LiftCapture(c, g, i)
			if err != nil {
				continue
			}
			if err := graph.Check(l.Graph); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if n := len(l.Graph.Nodes); len(l.Classes) != n || len(l.InPlace) != n || len(l.Recording.Released) != n || len(l.Recording.Bases) != len(l.Graph.Values) {
				t.Fatalf("%s: %d nodes", text, n)
			}
		}
	})
}
