package cpu_test

import (
	"context"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/memplan/memplan/checkpointsel"
	"github.com/memplan/memplan/checkpointsel/remat"
	"github.com/memplan/memplan/graph/kernel"
	"github.com/memplan/memplan/graph/program"
	gt "github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/cpu"
	"github.com/memplan/memplan/validate/internal/cases"
)

// TestRecompute trains with checkpoints, some of which keep results, by a schedule of operations, and
// without: outputs, losses and gradients of both steps have the same bits,
// whatever the precision, and with dropout.
func TestRecompute(t *testing.T) {
	for _, name := range []string{"resnet", "mobile", "gpt", "llama", "convnext", "dropout"} {
		for _, precision := range []string{"fp32", "amp-bf16", "amp-fp16", "bf16"} {
			if testing.Short() && precision != "amp-bf16" {
				continue
			}
			t.Run(name+"/"+precision, func(t *testing.T) {
				path := filepath.Join("..", "testdata", "golden", name+".onnx")
				cfg := planner.Config{Batch: 2, Precision: precision, Optimizer: "adamw", Checkpoint: "none"}
				plain := train(t, path, cfg, nil)
				for _, which := range []string{"all", "sqrt", "selective", "schedule"} {
					switch cfg.Checkpoint, cfg.Segments = which, nil; which {
					case "selective":
						cfg.Checkpoint, cfg.Segments = "", selective(t, path, cfg)
					case "schedule":
						cfg.Schedule = schedule(t, path, cfg)
					}
					got := train(t, path, cfg, nil)
					if !slices.Equal(got.Loss, plain.Loss) || math.IsNaN(got.Loss[0]) {
						t.Errorf("%s: losses %v, without checkpoints %v", which, got.Loss, plain.Loss)
					}
					for i := range plain.Outputs {
						same(t, which+": output", got.Outputs[i], plain.Outputs[i])
					}
					for step := range plain.grads {
						if len(got.grads[step]) != len(plain.grads[step]) || len(plain.grads[step]) == 0 {
							t.Fatalf("%s: %d gradients, without checkpoints %d", which, len(got.grads[step]), len(plain.grads[step]))
						}
						for _, k := range slices.Sorted(maps.Keys(plain.grads[step])) {
							same(t, which+": gradient of "+k, got.grads[step][k], plain.grads[step][k])
						}
					}
				}
			})
		}
	}
}

// selective returns all segments, of whose calls every second is kept that can
// be.
func selective(t *testing.T, path string, cfg planner.Config) []gt.Segment {
	t.Helper()
	m, err := planner.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Checkpoint = "all"
	r, err := m.Analyze(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	s, err := m.Program(cfg)
	if err != nil {
		t.Fatal(err)
	}
	segs, kept := r.Checkpoint.Segments, 0
	for i, calls := range s.Ranges {
		count, can := map[string]int{}, map[string][]int{}
		for k := range s.Nodes {
			n := &s.Nodes[k]
			if n.Phase != program.Forward || int(n.Call) < calls[0] || int(n.Call) >= calls[1] {
				continue
			}
			op := kernel.Dispatched(n.Op)
			if kernel.Selectable(op) && count[op]%2 == 0 && !rewritten(s.Nodes[k+1:], n) {
				can[op] = append(can[op], count[op])
			}
			count[op]++
		}
		for _, op := range slices.Sorted(maps.Keys(can)) {
			segs[i].Save = append(segs[i].Save, gt.Saved{Op: "aten." + op, Calls: can[op], Of: count[op]})
			kept += len(can[op])
		}
	}
	if kept == 0 && cfg.Precision == "amp-bf16" { // else some models have segments of a call alone
		t.Fatalf("%s: nothing is kept", path)
	}
	t.Logf("%d calls kept", kept)
	return segs
}

// rewritten reports that later nodes write to what n makes.
func rewritten(later []program.Node, n *program.Node) bool {
	for i := range later {
		for _, o := range later[i].Out {
			if o.Storage != program.None && slices.ContainsFunc(n.Events, func(ev program.Event) bool { return ev.Storage == o.Storage }) {
				return true
			}
		}
	}
	return false
}

// schedule returns a schedule with operations that run again: one for little
// more memory than any needs, if activations were larger. In these small
// models they are nothing beside parameters and workspaces.
func schedule(t *testing.T, path string, cfg planner.Config) []remat.Step {
	t.Helper()
	m, err := planner.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Checkpoint = "none"
	s, err := m.Program(cfg)
	if err != nil {
		t.Fatal(err)
	}
	g, err := checkpointsel.NewStepGraph(s.Program, s.Time.Seconds)
	if err != nil {
		t.Fatal(err)
	}
	in := &remat.Instance{Name: path, Nodes: slices.Clone(g.Instance.Nodes)}
	for i := range in.Nodes {
		if n := &in.Nodes[i]; n.Backward {
			n.Work = min(n.Work, 0)
		} else {
			n.Size, n.Work = 64*n.Size, 64*min(n.Work, 0)
		}
	}
	need, _ := in.WorkingSet()
	for _, part := range []int64{16, 8, 4, 3, 2} {
		r, err := remat.Solve(context.Background(), in, remat.Options{Budget: need + (in.Peak()-need)/part, PlanOnly: true, Patience: 1})
		if err == nil && len(r.Schedule) > len(in.Nodes) {
			t.Logf("%d operations run again", len(r.Schedule)-len(in.Nodes))
			return r.Schedule
		}
	}
	t.Fatalf("%s: no schedule with recomputation", path)
	return nil
}

func same(t *testing.T, what string, a, b *validate.Array) {
	t.Helper()
	if !slices.EqualFunc(a.Values, b.Values, func(v, w float32) bool { return math.Float32bits(v) == math.Float32bits(w) }) {
		t.Errorf("%s differs by %.3g of its largest number", what, validate.Difference(a, b))
	}
}

// TestSlope: the loss of a model that drops activations, probabilities and whole
// branches falls along its gradient as fast as the gradient says: backward
// knows what forward dropped.
func TestSlope(t *testing.T) {
	path := filepath.Join("..", "testdata", "golden", "dropout.onnx")
	m, err := planner.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	weights := validate.ModelSource(m.Graph(), m.File)
	for _, attention := range []string{"efficient", "eager"} {
		cfg := planner.Config{Batch: 2, Optimizer: "none", Attention: attention, Checkpoint: "all"}
		grads := train(t, path, cfg, nil).grads[0]
		var slope float64
		for _, g := range grads {
			for _, v := range g.Values {
				slope += float64(v) * float64(v)
			}
		}
		const step = 1e-3 // of the gradient: small against it, large against float32's roundings
		at := func(by float32) float64 {
			moved := map[string]*validate.Array{}
			for name, g := range grads {
				w, err := weights(name)
				if err != nil || w == nil {
					t.Fatalf("%s: %v", name, err)
				}
				moved[name] = &validate.Array{Shape: w.Shape, DType: w.DType, Values: slices.Clone(w.Values)}
				for i := range moved[name].Values {
					moved[name].Values[i] += by * g.Values[i]
				}
			}
			return train(t, path, cfg, moved).Loss[0]
		}
		if got := (at(step) - at(-step)) / (2 * step); math.Abs(got-slope) > 0.01*slope {
			t.Errorf("%s: the loss changes by %.5g along the gradient, whose square is %.5g", attention, got, slope)
		}
	}
}

// TestPrecisions: half types change a loss little. The bound is ten roundings
// of the type, of the loss.
func TestPrecisions(t *testing.T) {
	if testing.Short() {
		t.Skip("many runs")
	}
	for _, name := range []string{"mlp", "resnet", "gpt", "llama", "convnext", "unet"} {
		path := filepath.Join("..", "testdata", "golden", name)
		data, err := validate.ReadNPZ(path + ".npz")
		if err != nil {
			t.Fatal(err)
		}
		for precision, eps := range map[string]float64{"amp-bf16": 1.0 / (1 << 8), "bf16": 1.0 / (1 << 8), "amp-fp16": 1.0 / (1 << 11), "fp16": 1.0 / (1 << 11)} {
			got := train(t, path+".onnx", planner.Config{Batch: 2, Precision: precision, Optimizer: "sgd"}, data)
			if want := float64(data["loss"].Values[0]); math.Abs(got.Loss[0]-want) > 10*eps*want || got.Loss[0] == want {
				t.Errorf("%s in %s: loss %v, in float32 %v", name, precision, got.Loss[0], want)
			}
		}
	}
}

// TestMicroBatches: five micro-batches of the same inputs, of which three are
// spelled out, give five times the gradients of one.
func TestMicroBatches(t *testing.T) {
	path := filepath.Join("..", "testdata", "golden", "mlp")
	data, err := validate.ReadNPZ(path + ".npz")
	if err != nil {
		t.Fatal(err)
	}
	got := train(t, path+".onnx", planner.Config{Batch: 2, Optimizer: "sgd", Accumulate: 5}, data)
	for name, a := range got.grads[0] {
		for i := range a.Values {
			a.Values[i] /= 5
		}
		if d := validate.Difference(a, data["grad1:"+name]); d > tolerance {
			t.Errorf("gradient of %s differs by %.3g of its largest number", name, d)
		}
	}
	if len(got.Loss) != 2 {
		t.Errorf("losses %v of two steps", got.Loss)
	}
}

// TestRandom: random kernels have the moments of their distributions, give the
// same numbers for the same seed and others for another.
func TestRandom(t *testing.T) {
	const n = 20000
	for _, c := range []struct {
		kernel         string
		scalars        []float64
		mean, variance float64
	}{
		{"uniform", []float64{-1, 3}, 1, 16.0 / 12}, {"normal", []float64{2, 3}, 2, 9}, {"randn", []float64{0, 1}, 0, 1}, {"bernoulli", []float64{0.3}, 0.3, 0.21}, {"randint", []float64{2, 7}, 4, 2},
	} {
		draw := func(seed uint64) []float32 {
			k := kernelCase{Case: cases.Case{Kernel: c.kernel, Scalars: c.scalars, Results: []*string{new(string)}}}
			if c.kernel == "bernoulli" {
				k.Args = []any{""}
			}
			return k.seeded(t, seed, map[string]*validate.Array{"": {Shape: []int64{n}, DType: 1, Values: make([]float32, n)}})
		}
		x := draw(1)
		var mean, sq float64
		for _, v := range x {
			mean += float64(v) / n
			sq += float64(v) * float64(v) / n
		}
		// Four standard errors of the mean, and a twentieth of the variance.
		if v := sq - mean*mean; math.Abs(mean-c.mean) > 4*math.Sqrt(c.variance/n) || math.Abs(v-c.variance) > c.variance/20 {
			t.Errorf("%s: mean %.3f and variance %.3f, want %.3f and %.3f", c.kernel, mean, v, c.mean, c.variance)
		}
		if !slices.Equal(x, draw(1)) || slices.Equal(x, draw(2)) {
			t.Errorf("%s: a seed does not say what is drawn", c.kernel)
		}
	}
}

// TestDropout: the mask has the right share of zeros, is what the result is
// multiplied by, and follows the seed.
func TestDropout(t *testing.T) {
	const n, p = 20000, 0.25
	d := cpu.New()
	if err := d.Reserve(1 << 20); err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, d: d}
	x := &validate.Array{Shape: []int64{n}, DType: 1, Values: slices.Repeat([]float32{2}, n)}
	mask := &validate.Array{Shape: []int64{n}, DType: 9}
	call := dropoutCall(b.place(x, layouts[0], true), b.place(mask, layouts[0], false), b.place(x, layouts[0], false), p)
	if err := d.Run(call); err != nil {
		t.Fatal(err)
	}
	m, y := b.fetch(&call.Results[0]), b.fetch(&call.Results[1])
	kept := 0.0
	for i := range m.Values {
		kept += float64(m.Values[i])
		if want := m.Values[i] * 2 / (1 - p); y.Values[i] != want {
			t.Fatalf("element %d is %v, want %v", i, y.Values[i], want)
		}
	}
	if share := kept / n; math.Abs(share-(1-p)) > 4*math.Sqrt(p*(1-p)/n) {
		t.Errorf("%.3f of the elements kept, want %.3f", share, 1-p)
	}
}
