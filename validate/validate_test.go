package validate_test

import (
	"context"
	"errors"
	"maps"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/planner/layout"
	"github.com/memplan/memplan/planner/profile"
	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/cpu"
)

func golden(name string) string { return filepath.Join("testdata", "golden", name) }

func open(t *testing.T, path string) *planner.Model {
	t.Helper()
	m, err := planner.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func build(t *testing.T, path string, cfg planner.Config) *planner.Step {
	t.Helper()
	s, err := open(t, path).Program(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// steps are programs to lay out.
func steps(t *testing.T) map[string]*planner.Step {
	out := map[string]*planner.Step{}
	for _, name := range []string{"resnet", "mobile", "gpt", "llama", "unet"} {
		for _, checkpoint := range []string{"none", "all"} {
			out[name+" "+checkpoint] = build(t, golden(name)+".onnx", planner.Config{Batch: 2, Checkpoint: checkpoint})
		}
	}
	out["accumulated"] = build(t, golden("mlp")+".onnx", planner.Config{Batch: 2, Accumulate: 5, Optimizer: "sgd-momentum"})
	out["inference"] = build(t, golden("gpt")+".onnx", planner.Config{Batch: 2, Mode: "infer"})
	for _, name := range []string{"resnet50", "gpt2", "vit_b_16", "mlp"} {
		out[name] = build(t, filepath.Join("..", "models", name+".onnx"), planner.Config{Batch: 4, Checkpoint: "sqrt"})
	}
	return out
}

// layoutOf places a program's storages and its nodes' work.
func layoutOf(t *testing.T, p *program.Program, work []int64) *validate.Layout {
	t.Helper()
	l, err := validate.NewLayout(p, work)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestLayout: no layout is below its bound, the independent check passes, and it
// finds any two buffers of one node that are moved onto each other.
func TestLayout(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for name, s := range steps(t) {
		p := s.Program
		l := layoutOf(t, p, nil)
		if err := l.Check(p); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if l.Bytes < l.Bound || float64(l.Bytes) > 1.01*float64(l.Bound) {
			t.Errorf("%s: %d bytes, at least %d", name, l.Bytes, l.Bound)
		}
		t.Logf("%s: %d bytes by %s, %.3f %% above the bound", name, l.Bytes, l.Order, 100*(float64(l.Bytes)/float64(l.Bound)-1))
		for range 20 {
			n := &p.Nodes[rng.IntN(len(p.Nodes))]
			if len(n.Reads) == 0 || len(n.Out) == 0 || n.Reads[0] == n.Out[0].Storage {
				continue
			}
			a, b := n.Reads[0], n.Out[len(n.Out)-1].Storage
			if a == b {
				continue
			}
			moved := *l
			moved.Offset = slices.Clone(l.Offset)
			moved.Offset[b] = moved.Offset[a]
			if err := moved.Check(p); err == nil {
				t.Errorf("%s: node %s reads and writes the same place, and no fault is found", name, n.Op)
			}
		}
	}
}

// TestOverlap runs layouts in which two buffers that live at once lie on each
// other: guards, numbers that are none, or other gradients than in the clean run
// show it every time.
func TestOverlap(t *testing.T) {
	if testing.Short() {
		t.Skip("many runs")
	}
	s := build(t, golden("resnet")+".onnx", planner.Config{Batch: 2, Checkpoint: "all"})
	p := s.Program
	l := layoutOf(t, p, nil)
	run := func(l *validate.Layout) (r *validate.Result, grads map[string][]float32) {
		grads = map[string][]float32{}
		d := cpu.New()
		r, err := validate.Execute(context.Background(), d, p, l, validate.Options{Guarded: true, Steps: 1, Gradient: func(_ int, name string, a *validate.Array) { grads[name] = a.Values }})
		if err != nil {
			t.Fatal(err)
		}
		return r, grads
	}
	clean, want := run(l)
	if len(clean.Broken) > 0 {
		t.Fatalf("the layout itself: %v", clean.Broken)
	}
	tried := 0
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Phase == program.Update || n.Does() == "fill" || len(n.In) == 0 || len(n.Out) == 0 || n.In[0].Storage == n.Out[0].Storage || n.In[0].DType != n.Out[0].DType || p.Storages[n.In[0].Storage].Life != program.Step {
			continue
		}
		moved := *l
		moved.Offset = slices.Clone(l.Offset)
		moved.Offset[n.Out[0].Storage] = moved.Offset[n.In[0].Storage]
		if moved.Offset[n.Out[0].Storage]+p.Storages[n.Out[0].Storage].Bytes+layout.Guard > l.Bytes {
			continue
		}
		tried++
		if r, got := run(&moved); len(r.Broken) == 0 && maps.EqualFunc(got, want, slices.Equal[[]float32]) {
			t.Errorf("node %d (%s): its result lies on its operand, and the run is as before", i, n.Op)
		}
	}
	if tried < 20 {
		t.Errorf("only %d overlaps tried", tried)
	}
}

// clumsy is a device that writes a byte beyond what some calls make.
type clumsy struct {
	*cpu.Device
	kernel string
}

func (d clumsy) Run(c *validate.Call) error {
	err := d.Device.Run(c)
	if c.Kernel == d.kernel {
		r := &c.Results[0]
		err = errors.Join(err, d.Fill(r.At+r.DType.Bytes(r.Elems()), 1, 0))
	}
	return err
}

// question is about a small model, on the processor.
func question(t *testing.T, name string, cfg planner.Config) *validate.Question {
	return &validate.Question{Model: open(t, golden(name)+".onnx"), Config: cfg, Open: func() (validate.Device, error) { return cpu.New(), nil }, Steps: 2, Tolerance: 1e-4}
}

func answer(t *testing.T, q *validate.Question) *validate.Report {
	t.Helper()
	r, err := validate.Validate(context.Background(), q)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func failed(r *validate.Report) (names []string) {
	for _, c := range r.Checks {
		if c.OK != nil && !*c.OK {
			names = append(names, c.Name)
		}
	}
	return names
}

func TestValidated(t *testing.T) {
	data, err := validate.ReadNPZ(golden("gpt") + ".npz")
	if err != nil {
		t.Fatal(err)
	}
	q := question(t, "gpt", planner.Config{Batch: 2, Optimizer: "adamw", Checkpoint: "all"})
	weights := validate.ModelSource(q.Model.Graph(), q.Model.File)
	q.Source = func(name string) (*validate.Array, error) {
		if a := data[name]; a != nil {
			return a, nil
		}
		return weights(name)
	}
	given := func(name string) validate.Reader { return func() (*validate.Array, error) { return data[name], nil } }
	q.Expect = map[string]validate.Reader{"output": given("output0"), "grad:qkv.weight": given("grad1:qkv.weight")}
	r := answer(t, q)
	if r.Verdict != validate.Validated || len(failed(r)) > 0 {
		t.Errorf("%s: %v", r.Verdict, failed(r))
	}
	for _, name := range []string{"layout", "arena", "memory", "guards", "finite", "repeated", "gradients", "expected output", "expected grad:qkv.weight"} {
		if !slices.ContainsFunc(r.Checks, func(c validate.Check) bool { return c.Name == name }) {
			t.Errorf("no check %s", name)
		}
	}
	if r.Recompute.Nodes == 0 || r.Time.MeasuredMs <= 0 || len(r.Time.PerOp) == 0 || r.Arena.UsedBytes != r.Arena.PlannedBytes || len(r.Loss) != 2 {
		t.Errorf("figures are missing: %+v", r)
	}

	data["output0"].Values[3] += 0.01
	if r := answer(t, q); r.Verdict != validate.Refuted || !slices.Equal(failed(r), []string{"expected output"}) {
		t.Errorf("a wrong output: %s: %v", r.Verdict, failed(r))
	}
	q.Expect = map[string]validate.Reader{"nonsense": given("output0")}
	var unknown *validate.UnknownError
	if _, err := validate.Validate(t.Context(), q); !errors.As(err, &unknown) || unknown.Name != "nonsense" || !slices.Contains(unknown.Known, "output") || !slices.Contains(unknown.Known, "grad:qkv.weight") {
		t.Errorf("an output that is not there: %v", err)
	}
	broken := errors.New("cannot be read")
	q.Expect = map[string]validate.Reader{"output": func() (*validate.Array, error) { return nil, broken }}
	if _, err := validate.Validate(t.Context(), q); !errors.Is(err, broken) {
		t.Errorf("a file that cannot be read: %v", err)
	}
}

// TestRefuted: what is wrong is found, and what cannot be run is said.
func TestRefuted(t *testing.T) {
	q := question(t, "resnet", planner.Config{Batch: 2})
	q.Open = func() (validate.Device, error) { return clumsy{cpu.New(), "convolution"}, nil }
	if r := answer(t, q); r.Verdict != validate.Refuted || !slices.Contains(failed(r), "guards") {
		t.Errorf("a kernel that writes too far: %s: %v", r.Verdict, failed(r))
	}

	// A region that updates its input in place cannot be run again: a
	// Hardswish(inplace=True) behind a depthwise convolution and a BatchNorm, exported
	// by PyTorch 2.11.
	q = question(t, "mobile", planner.Config{Batch: 2, Segments: []train.Segment{{Modules: []string{"b.2"}}}})
	q.Model = open(t, filepath.Join("testdata", "overwrites.onnx"))
	s, err := q.Model.Program(q.Config)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(s.Warnings, func(w graph.Warning) bool { return w.Code == "recompute-overwrites" }) {
		t.Error("no warning of it")
	}
	if r := answer(t, q); r.Verdict != validate.Refuted || !slices.Equal(failed(r), []string{"gradients"}) {
		t.Errorf("a region that overwrites its input: %s: %v", r.Verdict, failed(r))
	}

	q = question(t, "resnet", planner.Config{Batch: 2})
	q.Cap = 1 << 20
	if r := answer(t, q); r.Verdict != validate.Refuted || !slices.Equal(failed(r), []string{"cap"}) {
		t.Errorf("a cap: %s: %v", r.Verdict, failed(r))
	}

	q = question(t, "resnet", planner.Config{Batch: 2, Optimizer: "adamw-8bit"})
	_, err = validate.Validate(context.Background(), q)
	if !errors.Is(err, validate.ErrUnsupported) || !strings.Contains(err.Error(), "adamw-8bit") {
		t.Errorf("an optimizer that the device lacks: %v", err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	q = question(t, "resnet", planner.Config{Batch: 2})
	q.Progress = func(done, _ int, _ string) {
		if done == 20 {
			cancel()
		}
	}
	if _, err := validate.Validate(ctx, q); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

// TestSupported: every node of the sample models says what it computes, and the
// processor can run it, in every precision and with every attention.
func TestSupported(t *testing.T) {
	d := cpu.New()
	models, err := filepath.Glob(filepath.Join("..", "models", "*.onnx"))
	if err != nil || len(models) == 0 {
		t.Fatalf("no sample models: %v", err)
	}
	for _, path := range models {
		for _, precision := range []string{"fp32", "amp-bf16", "bf16"} {
			for _, attention := range []string{"auto", "eager", "efficient"} {
				s := build(t, path, planner.Config{Batch: 2, Precision: precision, Attention: attention, Checkpoint: "sqrt"})
				for _, u := range validate.Unsupports(d, s.Program) {
					t.Errorf("%s, %s, %s: %s (%s): %s", filepath.Base(path), precision, attention, u.Op, u.Node, u.Reason)
				}
			}
		}
	}
}

// TestRandomNumbers: the counted numbers are uniform and normal by their
// moments, and differ from name to name.
func TestRandomNumbers(t *testing.T) {
	const n = 1 << 16
	var mean, sq, norm, normSq float64
	for i := range uint64(n) {
		u, g := validate.Uniform(7, i), validate.Normal(7, i)
		if u < 0 || u >= 1 {
			t.Fatalf("number %d is %v", i, u)
		}
		mean, sq, norm, normSq = mean+u/n, sq+u*u/n, norm+g/n, normSq+g*g/n
	}
	// Five standard errors.
	if math.Abs(mean-0.5) > 5*math.Sqrt(1.0/12/n) || math.Abs(sq-1.0/3) > 0.01 || math.Abs(norm) > 5/math.Sqrt(n) || math.Abs(normSq-1) > 0.03 {
		t.Errorf("moments %v %v, %v %v", mean, sq, norm, normSq)
	}
}

// What a node's library works in lies in the arena and touches no buffer that
// lives there, and the check sees it when it does.
func TestWork(t *testing.T) {
	p := program.Program{Nodes: make([]program.Node, 4)}
	add := func(bytes int64, first, last int) {
		id := program.StorageID(len(p.Storages))
		p.Storages = append(p.Storages, program.Storage{Bytes: bytes})
		p.Nodes[first].Events = append(p.Nodes[first].Events, program.Event{Storage: id})
		p.Nodes[last].Reads = append(p.Nodes[last].Reads, id)
	}
	add(1000, 0, 1)
	add(5000, 1, 2)
	add(3000, 2, 3)
	add(2000, 0, 3)
	plain := layoutOf(t, &p, nil)
	l := layoutOf(t, &p, []int64{4000, 0, 7000, 0})
	if err := l.Check(&p); err != nil {
		t.Fatal(err)
	}
	if l.Work[0].Bytes != 4000 || l.Work[2].Bytes != 7000 || l.Work[1].Bytes != 0 || l.Bytes < plain.Bytes+7000 || l.Bytes < l.Bound {
		t.Errorf("%+v in %d bytes, %d without", l.Work, l.Bytes, plain.Bytes)
	}
	l.Work[2].At = l.Offset[1]
	if l.Check(&p) == nil {
		t.Error("work in a live buffer passes")
	}
	l.Work[2].At = l.Bytes - 7000
	if l.Check(&p) == nil {
		t.Error("work beyond the arena passes")
	}
}

// A greedy device asks for memory to work in at every convolution.
type greedy struct{ *cpu.Device }

func (greedy) Work(n *program.Node) (int64, error) {
	if n.Does() == "convolution" {
		return 256 << 20, nil
	}
	return 0, nil
}

// Under a cap, what libraries want to work in gives way to the plan.
func TestCapBeforeWork(t *testing.T) {
	q := question(t, "resnet", planner.Config{Batch: 2})
	q.Open = func() (validate.Device, error) { return greedy{cpu.New()}, nil }
	free := answer(t, q)
	if free.Verdict != validate.Validated || free.Arena.PlannedBytes < 256<<20 {
		t.Fatalf("%s in %d bytes: %v", free.Verdict, free.Arena.PlannedBytes, failed(free))
	}
	q.Cap = 128 << 20
	if r := answer(t, q); r.Verdict != validate.Validated || r.Arena.PlannedBytes > q.Cap {
		t.Errorf("%s in %d bytes: %v", r.Verdict, r.Arena.PlannedBytes, failed(r))
	}
}

// TestOptimizerSteps: steps with every optimizer of the table run at their plan,
// but for the one whose states the device does not have.
func TestOptimizerSteps(t *testing.T) {
	for _, name := range profile.OptimizerNames() {
		q := question(t, "resnet", planner.Config{Batch: 2, Optimizer: name})
		q.Steps = 3
		r, err := validate.Validate(context.Background(), q)
		switch {
		case name == "adamw-8bit":
			if !errors.Is(err, validate.ErrUnsupported) {
				t.Errorf("%s: %v", name, err)
			}
		case err != nil || r.Verdict != validate.Validated:
			t.Errorf("%s: %v %+v", name, err, r)
		case name != "none" && r.Loss[2] == r.Loss[0]:
			t.Errorf("%s: the loss stays at %v", name, r.Loss[0])
		}
	}
}

// A strict device cannot run convolutions without its memory.
type strict struct{ greedy }

func (s strict) Needs(n *program.Node) (int64, error) { return s.Work(n) }

// Under a cap a plan does not fit where a kernel cannot do without its memory:
// nothing runs.
func TestCapBelowNeeds(t *testing.T) {
	q := question(t, "resnet", planner.Config{Batch: 2})
	q.Open = func() (validate.Device, error) { return strict{greedy{cpu.New()}}, nil }
	q.Cap = 128 << 20
	r := answer(t, q)
	if r.Verdict == validate.Validated || r.Arena.PlannedBytes <= q.Cap || r.Arena.UsedBytes != 0 {
		t.Errorf("%s in %d bytes, %d used: %v", r.Verdict, r.Arena.PlannedBytes, r.Arena.UsedBytes, failed(r))
	}
	q.Cap = 1 << 30
	if r := answer(t, q); r.Verdict != validate.Validated || r.Arena.PlannedBytes < 256<<20 {
		t.Errorf("with room: %s in %d bytes: %v", r.Verdict, r.Arena.PlannedBytes, failed(r))
	}
}
