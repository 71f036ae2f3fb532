package planner

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

// A secondRun is a measured run of testdata/distributed/meshes.jsonl.xz.
type secondRun struct {
	Kind, Name, Strategy, Err string
	Batch, Base               int64
	World                     int
	Cut                       []int
	Ranks                     []struct {
		Steps  [][2]int64
		Ms     []float64
		Before int64
	}
}

// secondRuns reads the runs of some kinds. Engines leak: what was allocated before
// a run is taken off.
func secondRuns(t *testing.T, kinds ...string) (out []secondRun) {
	for _, l := range strings.Split(strings.TrimSpace(string(testdata.Unpacked(t, "testdata/distributed/meshes.jsonl.xz"))), "\n") {
		var r secondRun
		if err := json.Unmarshal([]byte(l), &r); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(kinds, r.Kind) && r.Err == "" {
			out = append(out, r)
		}
	}
	return out
}

// highest is the highest allocated and reserved bytes of a rank's steps.
func (r *secondRun) highest(rank int) (best rankTruth) {
	for _, s := range r.Ranks[rank].Steps {
		best.allocated, best.reserved = max(best.allocated, s[0]-r.Base), max(best.reserved, s[1]-r.Base)
	}
	return best
}

// question is what a user asks of memplan to see a run's ranks.
func (r *secondRun) question() Config {
	c := Config{Batch: r.Batch, Optimizer: "adamw", Runtime: measuredRelease, GPU: "h200"}
	switch r.Kind {
	case "accum", "lora":
		c.Parallel = fmt.Sprint(r.Strategy, "=", r.World)
		if c.Accumulate = 2; r.Kind == "lora" {
			c.Accumulate, c.LoRA = 1, "r=8,target=all-linear"
		}
		if r.Name == "vit_b_32" && r.Strategy == "fsdp" {
			c.FSDPWrap = "encoder.layers.encoder_layer_*"
		}
	case "pp":
		c.Parallel, c.PPSchedule, c.PPMicros, c.PPSplit = fmt.Sprint("pp=", r.World), r.Strategy, 4, meshSplits[r.Name]
		if c.Batch /= 4; len(r.Cut) == 5 {
			c.PPSplit = meshQuarters[r.Name]
		}
		if r.Strategy == "zb" {
			c.PPSchedule = "zero-bubble"
		}
	}
	return c
}

// Modules that the stages of the runs began with, all but the first.
var (
	meshSplits   = map[string]string{"resnet101": "layer3.9", "gpt": "blocks.8", "mlp": "8"}
	meshQuarters = map[string]string{"resnet101": "layer3.0,layer3.9,layer3.18", "gpt": "blocks.3,blocks.8,blocks.12", "mlp": "4,8,12"} // where ranks have two stages
)

// distributedModel opens a model of scripts/steps/meshes.py's own.
func distributedModel(t *testing.T, name string) *Model {
	path := filepath.Join(t.TempDir(), name+".onnx")
	if err := os.WriteFile(path, testdata.Unpacked(t, "testdata/distributed/"+name+".onnx.xz"), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestMeshes predicts the second set of runs on two GPUs: accumulation and LoRA under
// DDP and FSDP2, and pipelines.
func TestMeshes(t *testing.T) {
	testdata.Sequential(t)
	zoo := collections(t)[0]
	models := map[string]*Model{"gpt": distributedModel(t, "gpt16"), "mlp": distributedModel(t, "mlp16")}
	var all []meshError
	for _, r := range secondRuns(t, "accum", "lora", "pp") {
		m := models[r.Name]
		if m == nil {
			m = zoo.open(t, r.Name)
		}
		rep, err := m.Analyze(t.Context(), r.question())
		if err != nil {
			t.Errorf("%s %s %s: %v", r.Kind, r.Name, r.Strategy, err)
			continue
		}
		for k, p := range rep.Parallel.PerRank {
			want, got := r.highest(k), []int64{p.AllocatedBytes}
			if r.Strategy == "ddp" && r.Kind == "accum" { // buckets of the first step may have gone: docs/distributed.md
				got = append(got, p.AllocatedBytes-rep.Model.ParameterBytes)
			}
			e := meshError{outside(got, want.allocated), relative(p.ReservedBytes, want.reserved)}
			all = append(all, e)
			if r.Kind == "pp" && (e.allocated > 0.01 || math.Abs(e.reserved) > 0.05) {
				t.Errorf("%s %s rank %d: %d allocated and %d reserved, measured %d and %d", r.Name, r.Strategy, k, p.AllocatedBytes, p.ReservedBytes, want.allocated, want.reserved)
			}
			t.Logf("%-6s %-14s %-8s rank %d: allocated %11d, measured %11d, off %.2f%%; reserved %11d, measured %11d, %+.1f%%; %.1f ms, measured %.1f", r.Kind, r.Name, r.Strategy, k,
				p.AllocatedBytes, want.allocated, 100*e.allocated, p.ReservedBytes, want.reserved, 100*e.reserved, rep.Time.StepMs, slices.Min(r.Ranks[k].Ms))
		}
	}
	checkMesh(t, all, 0.002, 0.01, 0.03)
}

// TestDefaultTP predicts the runs with tensor parallelism by the modules that memplan
// finds; the runs split modules that were named by hand.
func TestDefaultTP(t *testing.T) {
	testdata.Sequential(t)
	zoo := collections(t)[0]
	n := 0
	for _, r := range meshRuns(t) {
		if r.Strategy != "tp" {
			continue
		}
		rep, err := zoo.open(t, r.Name).Analyze(t.Context(), Config{Batch: r.Batch, Optimizer: "adamw-loop", Runtime: measuredRelease, GPU: "h200", Parallel: fmt.Sprint("tp=", r.World)})
		if err != nil {
			t.Errorf("%s: %v", r.Name, err)
			continue
		}
		for k, p := range rep.Parallel.PerRank {
			n++
			if off := relative(p.AllocatedBytes, r.ranks[k].allocated); off > 0.005 || off < -0.005 {
				t.Errorf("%s rank %d: %d allocated, measured %d", r.Name, k, p.AllocatedBytes, r.ranks[k].allocated)
			}
		}
	}
	if n == 0 {
		t.Error("no runs")
	}
}

// TestDeepSpeed predicts the runs of DeepSpeed's engine on two GPUs. Reserved bytes of the worst rank
// lie in the interval.
func TestDeepSpeed(t *testing.T) {
	testdata.Sequential(t)
	_, all := deepSpeedTable(t)
	checkMesh(t, all, 0.002, 0.004, 0.01)
}

// deepSpeedTable is the table of DeepSpeed's runs, with their errors: of allocated bytes.
func deepSpeedTable(t *testing.T) (string, []meshError) {
	zoo := collections(t)[0]
	var all []meshError
	var sb strings.Builder
	sb.WriteString("| model | engine | rank | allocated, MiB | predicted | off | reserved | predicted | interval |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range secondRuns(t, "ds") {
		stage, precision, _ := strings.Cut(strings.TrimPrefix(r.Strategy, "ds"), "-")
		if stage == "1" {
			continue
		}
		c := Config{Batch: r.Batch, Optimizer: "adamw", Runtime: measuredRelease, GPU: "h200", Precision: precision, Parallel: fmt.Sprintf("zero%s=%d", stage, r.World)}
		rep, err := zoo.open(t, r.Name).Analyze(t.Context(), c)
		if err != nil {
			t.Errorf("%s %s: %v", r.Name, r.Strategy, err)
			continue
		}
		u := rep.Uncertainty // of the worst rank
		if most := max(r.highest(0).reserved, r.highest(1).reserved); most < u.LowBytes || most > u.HighBytes {
			t.Errorf("%s %s: %d reserved, outside %d to %d", r.Name, r.Strategy, most, u.LowBytes, u.HighBytes)
		}
		for k, p := range rep.Parallel.PerRank {
			want := r.highest(k)
			e := meshError{outside([]int64{p.AllocatedBytes}, want.allocated), 0}
			all = append(all, e)
			fmt.Fprintf(&sb, "| %s | ZeRO %s%s | %d | %d | %d | %+.2f%% | %d | %d | %d to %d |\n", r.Name, stage, map[string]string{"bf16": ", bfloat16"}[precision], k,
				want.allocated>>20, p.AllocatedBytes>>20, 100*relative(p.AllocatedBytes, want.allocated), want.reserved>>20, p.ReservedBytes>>20, u.LowBytes>>20, u.HighBytes>>20)
		}
	}
	return sb.String(), all
}
