package planner

import (
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

// TestMeshTimes compares predicted times of steps with those of the second set of runs.
func TestMeshTimes(t *testing.T) {
	testdata.Sequential(t)
	zoo := collections(t)[0]
	models := map[string]*Model{"gpt": distributedModel(t, "gpt16"), "mlp": distributedModel(t, "mlp16")}
	by := map[string][]float64{}
	for _, r := range secondRuns(t, "accum", "lora", "pp") {
		m := models[r.Name]
		if m == nil {
			m = zoo.open(t, r.Name)
		}
		rep, err := m.Analyze(t.Context(), r.question())
		if err != nil {
			t.Fatal(err)
		}
		var ms float64
		for _, rank := range r.Ranks { // the slowest
			ms = max(ms, median(rank.Ms[1:]))
		}
		t.Logf("%-6s %-14s %-8s %.1f ms, measured %.1f", r.Kind, r.Name, r.Strategy, rep.Time.StepMs, ms)
		by[r.Strategy] = append(by[r.Strategy], max(rep.Time.StepMs-ms, ms-rep.Time.StepMs)/ms)
	}
	for kind, most := range map[string]float64{"ddp": 0.2, "fsdp": 0.25, "gpipe": 0.15, "1f1b": 0.15, "interleaved": 0.2, "zb": 0.2} {
		errs := by[kind]
		slices.Sort(errs)
		t.Logf("%-8s %d runs: times are off by %.0f%% (median), %.0f%% at most", kind, len(errs), 100*errs[len(errs)/2], 100*errs[len(errs)-1])
		if errs[len(errs)/2] > most {
			t.Errorf("%s: the median error of times is %.0f%%, want %.0f%%", kind, 100*errs[len(errs)/2], 100*most)
		}
	}
}

// The smallest mesh that fits has the fewest cards of those that fit, the fastest the most
// samples per second, and neither is above the bound.
func TestMeshesChosen(t *testing.T) {
	testdata.Sequential(t)
	m := collections(t)[0].open(t, "qwen2")
	p, err := m.Meshes(t.Context(), Config{Batch: 4, GPU: "a100-40gb", VRAM: 6 << 30}, 8)
	if err != nil {
		t.Fatal(err)
	}
	var fits int
	var small, fast MeshChoice
	for _, c := range p.Meshes {
		if c.Mesh == p.Smallest {
			small = c
		}
		if c.Mesh == p.Fastest {
			fast = c
		}
	}
	for _, c := range p.Meshes {
		if !c.Fits {
			continue
		}
		if fits++; c.GPUs < small.GPUs || c.SamplesPerSecond > fast.SamplesPerSecond || c.SamplesPerSecond > p.Bound || c.ProcessBytes > 6<<30 {
			t.Errorf("%+v fits beside the smallest, %+v, and the fastest, %+v, of at most %.1f", c, small, fast, p.Bound)
		}
	}
	if fits == 0 || fits == len(p.Meshes) || !small.Fits || !fast.Fits {
		t.Errorf("%d of %d meshes fit; smallest %+v, fastest %+v", fits, len(p.Meshes), small, fast)
	}
	t.Logf("%d of %d fit; smallest %s, fastest %s at %.1f of %.1f samples/s", fits, len(p.Meshes), p.Smallest, p.Fastest, fast.SamplesPerSecond, p.Bound)
}

// The optimizer of a rank reads and writes what the rank has: a quarter of what one card has takes a quarter of the time.
func TestMeshUpdates(t *testing.T) {
	m := sample(t, "mlp.onnx")
	ms := func(mesh string) float64 {
		cfg := Config{Batch: 4, Optimizer: "adamw-fused", GPU: "t4", VRAM: 64 << 30, Parallel: mesh}
		if strings.Contains(mesh, "s") { // fsdp and hsdp
			cfg.FSDPWrap = "root"
		}
		rep, err := m.Analyze(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		return rep.Time.OptimizerMs
	}
	whole := ms("")
	for mesh, ranks := range map[string]float64{"ddp=4": 1, "fsdp=4": 4, "hsdp=2x4": 4, "tp=4": 4} {
		want := whole / ranks
		if mesh == "tp=4" { // all but the last layer, 4096 by 1000 of 138,347,496 parameters
			want *= 1 + 3*4096*1000/138347496.
		}
		if got := ms(mesh); got < 0.999*want || got > 1.001*want {
			t.Errorf("%s: %.3f ms, one card %.3f: want a part of %g", mesh, got, whole, ranks)
		} else {
			t.Logf("%s: %.3f ms, one card %.3f", mesh, got, whole)
		}
	}
}
