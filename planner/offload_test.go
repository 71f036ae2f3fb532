package planner

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/internal/testdata"
	"github.com/memplan/memplan/planner/profile"
)

// lmOffload is the language model of four blocks, whose blocks brute force can try.
func lmOffload(vram int64) Config {
	return Config{Batch: 16, Dims: map[string]int64{"seq": 512}, GPU: "h100", VRAM: vram, Headroom: "0", Offload: "activations", HostBandwidth: 400e9}
}

// TestOffloadBound tries every choice of keeping, recomputing and offloading each block, with every
// region that starts copies early: none that fits costs less than the lower bound, and the plan
// costs no more than recomputation alone.
func TestOffloadBound(t *testing.T) {
	m := openLever(t, "testdata/levers/lm.onnx")
	for _, x := range []struct {
		vram, bandwidth int64
		host, bound     bool // whether the plan offloads, and has a bound above 0
	}{{1500 << 20, 400e9, true, false}, {1700 << 20, 400e9, true, false}, {1500 << 20, 10e9, false, true}} {
		vram, cfg := x.vram, lmOffload(x.vram)
		cfg.HostBandwidth = x.bandwidth
		p, err := m.Plan(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		alone := cfg
		alone.Offload = ""
		q, err := m.Plan(t.Context(), alone)
		if err != nil {
			t.Fatal(err)
		}
		if p.Fits == nil || !*p.Fits || q.Checkpoint != nil && p.Checkpoint.RecomputeOverhead > q.Checkpoint.RecomputeOverhead+1e-6 {
			t.Errorf("%d: overhead %g with the host, %g without", vram, p.Checkpoint.RecomputeOverhead, q.Checkpoint.RecomputeOverhead)
		}
		if host := slices.ContainsFunc(p.Selection, func(s train.Segment) bool { return s.Offload && !s.Keep }); host != x.host || x.bound != (p.Checkpoint.LowerBound > 0) {
			t.Errorf("%d at %d a second: offloads %t, lower bound %g: %v", vram, x.bandwidth, host, p.Checkpoint.LowerBound, p.Selection)
		}
		least := bruteOffload(t, m, cfg)
		if low := p.Checkpoint.LowerBound; low > least+1e-6 || low > p.Checkpoint.RecomputeOverhead {
			t.Errorf("%d: lower bound %g, but a choice costs %g and the plan %g", vram, low, least, p.Checkpoint.RecomputeOverhead)
		}
		t.Logf("%d: plan %g, best of all choices of blocks %g, bound %g, recomputation alone %g", vram, p.Checkpoint.RecomputeOverhead, least, p.Checkpoint.LowerBound, q.Checkpoint.RecomputeOverhead)
	}
}

// bruteOffload is the least overhead of all choices for the four blocks that fit.
func bruteOffload(t *testing.T, m *Model, cfg Config) float64 {
	t.Helper()
	j, err := m.resolve(cfg)
	if err != nil {
		t.Fatal(err)
	}
	kinds := []func(name string) []train.Segment{
		func(string) []train.Segment { return nil },
		func(n string) []train.Segment { return []train.Segment{{Modules: []string{n}}} },
		func(n string) []train.Segment { return []train.Segment{{Modules: []string{n}, Offload: true}} },
		func(n string) []train.Segment {
			return []train.Segment{{Modules: []string{n}, Offload: true, Keep: true}}
		},
	}
	least := math.Inf(1)
	for i := range 256 {
		var segs []train.Segment
		for k, name := range []string{"blocks.0", "blocks.1", "blocks.2", "blocks.3"} {
			segs = append(segs, kinds[i>>(2*k)&3](name)...)
		}
		b, err := m.build(j, cfg.Batch, segs)
		if err != nil {
			t.Fatal(err)
		}
		o := overhead(b.Program, &j.time)
		if o >= least {
			continue
		}
		_, fits, err := capped(b, j)
		if err != nil {
			t.Fatal(err)
		}
		if fits {
			least = o
		}
	}
	return least
}

// Copies run one after the other beside the kernels, and the card waits where it must.
func TestOffloadClock(t *testing.T) {
	card, err := profile.FindDevice("h100")
	if err != nil {
		t.Fatal(err)
	}
	device := &TimeModel{Device: card, Host: 1e9}
	work := func() program.Node {
		return program.Node{Phase: program.Forward, Traffic: 3.35e9, Out: make([]program.View, 1)} // about a millisecond
	}
	p := &program.Program{Train: true, Storages: []program.Storage{{Bytes: 4e6}, {Bytes: 2e6}}, Nodes: []program.Node{work(), work(), work()}}
	plain := timeOf(p, device, 1).StepMs
	p.Nodes[0].Copies = []program.HostCopy{{Storage: 0, Ticket: 0}, {Storage: 1, Ticket: 1}} // 4 and 2 ms
	p.Nodes[2].Awaits = []int32{0}
	one := device.Seconds(&p.Nodes[1])
	if got, want := stall(p, device), max(0, 4e-3-one); math.Abs(got-want) > 2e-5 {
		t.Errorf("the card waits %g s for the first copy beside a kernel of %g s, want %g", got, one, want)
	}
	p.Nodes[2].Awaits = []int32{0, 1}
	if got, want := stall(p, device), max(0, 6e-3-one); math.Abs(got-want) > 2e-5 {
		t.Errorf("the card waits %g s for both copies, want %g", got, want)
	}
	if with := timeOf(p, device, 1).StepMs; math.Abs(with-plain-1e3*stall(p, device)) > 1e-6 {
		t.Errorf("the step takes %g ms with copies, %g without", with, plain)
	}
	p.Nodes[2].Awaits = nil
	if got := stall(p, device); got != 0 {
		t.Errorf("nobody waits, and the step takes %g s longer", got)
	}
}

// The optimizer on the host leaves the state of small parameters on the card, and nothing of
// the others but their gradients; pinned memory is in powers of two.
func TestOffloadOptimizer(t *testing.T) {
	m := openLever(t, "testdata/levers/lm.onnx")
	cfg := Config{Batch: 4, Dims: map[string]int64{"seq": 128}, GPU: "h100", Offload: "optimizer"}
	a, err := m.Analyze(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	var small, pinned, pageable int64
	for _, p := range a.ev.Params {
		n := int64(1)
		for _, d := range p.Tensor.Shape {
			n *= d
		}
		if n < 4096 {
			small += 4*2*n + 4 // two moments, and the step of the fused kernel
			continue
		}
		size := int64(1)
		for size < 4*n {
			size *= 2
		}
		pinned, pageable = pinned+2*size, pageable+8*n+4
	}
	var state int64
	for _, s := range a.ev.Storages {
		if s.Category == program.Optimizer && s.Life == program.State {
			state += s.Bytes
		}
	}
	if o := a.Offload; state != small || o == nil || o.PinnedBytes != pinned || o.PageableBytes != pageable {
		t.Errorf("%d bytes of state on the card, want %d; on the host %+v, want %d pinned and %d not", state, small, o, pinned, pageable)
	}
}

// What no engine does is refused by name.
func TestOffloadRefusals(t *testing.T) {
	m := openLever(t, "testdata/levers/lm.onnx")
	base := Config{Batch: 4, Dims: map[string]int64{"seq": 128}, GPU: "h100"}
	for want, change := range map[string]func(c *Config){
		"torchao":             func(c *Config) { c.Offload, c.Optimizer = "optimizer", "sgd" },
		"--accumulate":        func(c *Config) { c.Offload, c.Accumulate = "both", 2 },
		"--parallel":          func(c *Config) { c.Offload, c.Parallel = "activations", "ddp=2" },
		"--mode infer":        func(c *Config) { c.Offload, c.Mode = "activations", "infer" },
		"executor recomputes": func(c *Config) { c.Offload, c.Checkpoint = "activations", "schedule" },
		"give --batch N":      func(c *Config) { c.Offload, c.Batch, c.BatchMax, c.VRAM = "activations", 0, true, 4<<30 },
		"a batch of memplan":  func(c *Config) { c.Offload, c.Batch, c.VRAM = "activations", 0, 4<<30 },
		"known: none":         func(c *Config) { c.Offload = "disk" },
	} {
		c := base
		change(&c)
		if _, err := m.Analyze(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want one that contains %q", c.Offload, err, want)
		}
	}
	base.Segments = []train.Segment{{Modules: []string{"blocks.1"}, Offload: true}}
	if _, err := m.Program(base); err == nil || !strings.Contains(err.Error(), "--engine torch") {
		t.Errorf("memplan's executor takes an offloaded step: %v", err)
	}
}

// An offloadRun is one run of scripts/gpu/offload.py on a card, or what the
// card's link carried.
type offloadRun struct {
	Model, Kind                 string
	Allocated, Reserved, Pinned int64
	Ms                          []float64
	Loss                        float64
	Bandwidth                   struct{ Out, In int64 }
}

// offloadMeasured predicts the steps of six models that an H200 ran as they are,
// with modules on the host, and with the plan that may recompute, too; do gets each
// with what was measured of it and of the model as it is.
func offloadMeasured(t *testing.T, do func(r, plain offloadRun, a, asItIs *answer)) {
	t.Helper()
	dir := t.TempDir()
	for name, data := range testdata.Archived(t, "testdata/offload/models.tar.xz") {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sizes := map[string]Config{"resnet50": {Batch: 128}, "vit_b_16": {Batch: 128}, "convnext_tiny": {Batch: 128},
		"gpt2": {Batch: 8, Dims: map[string]int64{"seq": 1024}}, "bert_base": {Batch: 32, Dims: map[string]int64{"seq": 512}}, "llama_8": {Batch: 4, Dims: map[string]int64{"seq": 2048}}}
	var rate int64
	var plain offloadRun
	var asItIs *answer
	for _, r := range readLines[offloadRun](t, "testdata/offload/runs.jsonl") {
		if r.Model == "" {
			rate = min(r.Bandwidth.Out, r.Bandwidth.In)
			continue
		}
		cfg := sizes[r.Model]
		cfg.GPU, cfg.Runtime, cfg.HostBandwidth = "h200", measuredRelease, rate
		if r.Kind != "plain" {
			cfg.Checkpoint = filepath.Join(dir, map[string]string{"offload": "", "joint": "joint."}[r.Kind]+r.Model+".json")
			if err := cfg.ReadCheckpoint(); err != nil {
				t.Fatal(err)
			}
		}
		a, err := openLever(t, filepath.Join(dir, r.Model+".onnx")).answer(t.Context(), cfg)
		if err != nil {
			t.Fatal(r.Model, r.Kind, err)
		}
		if r.Kind == "plain" {
			plain, asItIs = r, a
		}
		do(r, plain, a, asItIs)
	}
}

// TestOffloadMeasured compares steps with modules on the host, as an H200 ran them with
// memplan.checkpoint, with predictions: memory to the byte, the time that they add in
// points, and the same loss. It writes the table of docs/offload.md.
func TestOffloadMeasured(t *testing.T) {
	var b strings.Builder
	b.WriteString("| model | plan | allocated, GiB | predicted | reserved, GiB | predicted | step, ms | predicted | longer than as it is | predicted | pinned, GiB | predicted |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	gib := func(n int64) string { return fmt.Sprintf("%.3f", float64(n)/(1<<30)) }
	off := func(said, is int64) string { return fmt.Sprintf("%+.3f%%", 100*(float64(said)/float64(is)-1)) }
	runs := 0
	offloadMeasured(t, func(r, plain offloadRun, a, asItIs *answer) {
		p, took := a.report(), quantile(r.Ms, 0.5)
		if d := relative(p.Peak.AllocatedBytes, r.Allocated); math.Abs(d) > 0.0005 {
			t.Errorf("%s, %s: %d allocated, measured %d", r.Model, r.Kind, p.Peak.AllocatedBytes, r.Allocated)
		}
		if d := relative(p.Peak.ReservedBytes, r.Reserved); math.Abs(d) > 0.005 {
			t.Errorf("%s, %s: %d reserved, measured %d", r.Model, r.Kind, p.Peak.ReservedBytes, r.Reserved)
		}
		if math.Abs(r.Loss-plain.Loss) > 1e-5*plain.Loss {
			t.Errorf("%s, %s: loss %g, without the plan %g", r.Model, r.Kind, r.Loss, plain.Loss)
		}
		var pinned int64
		if p.Offload != nil {
			pinned = p.Offload.PinnedBytes
		}
		if d := r.Pinned - pinned; d < 0 || d > 4<<10 { // the optimizer's counter of steps takes some
			t.Errorf("%s, %s: %d bytes pinned, measured %d", r.Model, r.Kind, pinned, r.Pinned)
		}
		longer, said := "", ""
		if r.Kind != "plain" {
			runs++
			longer, said = fmt.Sprintf("%.1f%%", 100*(took/quantile(plain.Ms, 0.5)-1)), fmt.Sprintf("%.1f%%", 100*(p.Time.StepMs/asItIs.report().Time.StepMs-1))
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %.1f | %.1f | %s | %s | %s | %s |\n", r.Model, map[string]string{"plain": "as it is", "offload": "modules on the host", "joint": "the plan that may also recompute"}[r.Kind],
			gib(r.Allocated), off(p.Peak.AllocatedBytes, r.Allocated), gib(r.Reserved), off(p.Peak.ReservedBytes, r.Reserved), took, p.Time.StepMs, longer, said, gib(r.Pinned), gib(pinned))
	})
	if runs != 12 {
		t.Errorf("%d runs with a plan", runs)
	}
	if *update {
		testdata.WriteSection(t, "offload.md", "measured", b.String())
	}
	if page, err := os.ReadFile("../docs/offload.md"); err != nil || !strings.Contains(string(page), "<!-- measured -->\n"+b.String()+"<!-- /measured -->\n") {
		t.Errorf("docs/offload.md is stale: go test ./planner -run TestOffloadMeasured -update\n%s", b.String())
	}
}
