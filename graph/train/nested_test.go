package train

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/infer"
	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/graph/onnx"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/internal/testdata"
)

// A nestedCase is what scripts/pytorch/nested_reference.py saw PyTorch do.
type nestedCase struct {
	Name, Model       string
	Regions           [][]string
	Runs              [][]string // of each recomputation, "module operator"
	Forward, Backward int64      // most bytes at once
}

func nestedCases(t *testing.T) (cases []*nestedCase, models map[string][]byte) {
	models = map[string][]byte{}
	for file, data := range testdata.Archived(t, filepath.Join("testdata", "nested.tar.xz")) {
		if name, ok := strings.CutSuffix(file, ".onnx"); ok {
			models[name] = data
			continue
		}
		c := &nestedCase{}
		if err := json.Unmarshal(data, c); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	}
	return cases, models
}

func (c *nestedCase) lift(t *testing.T, file []byte) *lift.Lifted {
	t.Helper()
	g, err := onnx.Read(bytes.NewReader(file), int64(len(file)), c.Model)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := infer.Infer(g, infer.Options{}); err != nil {
		t.Fatal(err)
	}
	l, err := lift.Lift(g)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (c *nestedCase) build(t *testing.T, file []byte) *Build {
	t.Helper()
	o := Options{Train: true, Loss: "sum", Config: aten.Config{Major: 9, Attention: []string{"math"}}}
	for _, r := range c.Regions {
		o.Segments = append(o.Segments, Segment{Modules: r})
	}
	b, err := New(c.lift(t, file), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Check(); err != nil {
		t.Fatal(err)
	}
	return b
}

// onGPU are the names that operators have on the CPU, by those on a GPU.
var onGPU = map[string]string{"cudnn_convolution": "convolution", "cudnn_batch_norm": "native_batch_norm", "batch_norm": "native_batch_norm"}

// recomputed lists the operators of each recomputation, in order.
func recomputed(b *Build) (runs [][]string) {
	last := int32(-1)
	for i := range b.Nodes {
		n := &b.Nodes[i]
		if !n.Recompute {
			last = -1
			continue
		}
		if n.Segment != last {
			runs = append(runs, nil)
			last = n.Segment
		}
		op := n.Op
		if o := onGPU[op]; o != "" {
			op = o
		}
		runs[len(runs)-1] = append(runs[len(runs)-1], n.Module+" "+op)
	}
	return runs
}

// peaks are the most bytes of the step's own tensors at once, in forward and
// in backward: what a node allocates lives until the last that names it.
func (b *Build) peaks() (forward, backward int64) {
	last := make([]int, len(b.Storages))
	for i := range b.Nodes {
		for _, ids := range [][]program.StorageID{b.Nodes[i].Reads, b.Nodes[i].Holds} {
			for _, id := range ids {
				last[id] = i
			}
		}
	}
	ends := make([][]program.StorageID, len(b.Nodes))
	size := func(id program.StorageID) int64 {
		if s := &b.Storages[id]; s.Category != program.Workspace && s.Life != program.Static {
			return s.Bytes
		}
		return 0
	}
	var live int64
	for i := range b.Nodes {
		n := &b.Nodes[i]
		for _, ev := range n.Events {
			if ev.Free {
				live -= size(ev.Storage)
				continue
			}
			live += size(ev.Storage)
			if b.Storages[ev.Storage].Life == program.Step && !slices.Contains(n.Events, program.Event{Storage: ev.Storage, Free: true}) {
				at := max(last[ev.Storage], i)
				ends[at] = append(ends[at], ev.Storage)
			}
		}
		if n.Phase == program.Backward {
			backward = max(backward, live)
		} else {
			forward = max(forward, live)
		}
		for _, id := range ends[i] {
			live -= size(id)
		}
	}
	return forward, backward
}

// TestNested compares nested regions with PyTorch's own: what each
// recomputation runs, in order, and the most bytes that live at once.
func TestNested(t *testing.T) {
	cases, models := nestedCases(t)
	if len(cases) < 16 {
		t.Fatalf("%d cases", len(cases))
	}
	for _, c := range cases {
		b := c.build(t, models[c.Model])
		c.compareRuns(t, recomputed(b))
		if f, bw := b.peaks(); f != c.Forward || bw != c.Backward {
			t.Errorf("%s: at most %d bytes in forward and %d in backward, PyTorch %d and %d", c.Name, f, bw, c.Forward, c.Backward)
		}
	}
}

// compareRuns compares recomputations operator by operator. The oracle does
// not see which module a region calls first, and names the one around it.
func (c *nestedCase) compareRuns(t *testing.T, got [][]string) {
	t.Helper()
	want := slices.DeleteFunc(c.Runs, func(r []string) bool { return len(r) == 0 })
	if len(got) != len(want) {
		t.Errorf("%s: %d recomputations, PyTorch %d", c.Name, len(got), len(want))
		return
	}
	for i := range got {
		x, y := got[i], slices.DeleteFunc(want[i], func(s string) bool { return strings.HasSuffix(s, " empty") })
		ok := len(x) == len(y)
		for k := range min(len(x), len(y)) {
			xm, xop, _ := strings.Cut(x[k], " ")
			ym, yop, _ := strings.Cut(y[k], " ")
			ok = ok && strings.TrimSuffix(xop, "_") == strings.TrimSuffix(yop, "_") && (xm == ym || strings.HasPrefix(xm, ym) || c.begins(xm))
		}
		if !ok {
			t.Errorf("%s, recomputation %d: %v, PyTorch %v", c.Name, i, x, y)
		}
	}
}

// begins reports whether module is one of a region's.
func (c *nestedCase) begins(module string) bool {
	return slices.ContainsFunc(c.Regions, func(r []string) bool { return slices.Contains(r, module) })
}

// Regions that overlap without one within the other are refused, and so are
// regions without calls; order does not matter but between equal ones.
func TestRegions(t *testing.T) {
	cases, models := nestedCases(t)
	c := cases[0]
	l := c.lift(t, models["chain"])
	for _, tt := range []struct {
		regions []Segment
		want    string
	}{
		{[]Segment{{Modules: []string{"0", "1"}}, {Modules: []string{"1", "2"}}}, "neither lies within the other"},
		{[]Segment{{Modules: []string{"1", "2", "3"}}, {Modules: []string{"1"}}, {Modules: []string{"3", "4"}}}, "neither lies within the other"},
		{[]Segment{{Modules: []string{"1"}}, {Modules: []string{"17"}}}, "no calls"},
		{[]Segment{{Modules: []string{"1", "2"}}, {Modules: []string{"2"}, Save: []Saved{{Op: "aten.addmm", Calls: []int{0}}}}}, "keeps results"},
		{[]Segment{{Modules: []string{"1"}}, {Modules: []string{"3"}}, {Modules: []string{"2.0"}}, {Modules: []string{"1", "2"}}}, ""},
	} {
		o := Options{Train: true, Loss: "sum", Segments: tt.regions}
		switch _, err := New(l, o); {
		case tt.want == "" && err != nil:
			t.Errorf("%v: %v", tt.regions, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%v: error %v, want one that contains %q", tt.regions, err, tt.want)
		}
	}
}
