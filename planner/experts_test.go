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

	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/internal/testdata"
)

// An expertRun is a measured run of scripts/steps/experts.py: rank 0 beside a fake process group on an H200.
type expertRun struct {
	Name, Mesh, Dtype string
	Batch             int64
	How               string // worst, checkpoint, autocast, policy, keep, accumulate or ""
	Before            int64
	Steps             [][3]int64 // allocated, reserved and afterwards allocated
}

func expertRuns(t *testing.T) (out []expertRun) {
	for line := range strings.Lines(string(testdata.Unpacked(t, "testdata/experts/runs.jsonl.xz"))) {
		var r expertRun
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

// mixture opens one of the models that scripts/steps/experts.py exports.
func mixture(t *testing.T, name string) *Model {
	path := filepath.Join(t.TempDir(), name+".onnx")
	if err := os.WriteFile(path, testdata.Unpacked(t, "testdata/experts/"+name+".onnx.xz"), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (r *expertRun) question() Config {
	c := Config{Batch: r.Batch, Optimizer: "adamw", Runtime: measuredRelease, GPU: "h200", Parallel: r.Mesh}
	if r.Dtype != "fp32" {
		c.Precision = r.Dtype
	}
	switch r.How {
	case "worst":
		c.EPImbalance = allRows
	case "checkpoint":
		for i := range 4 {
			c.Segments = append(c.Segments, train.Segment{Modules: []string{fmt.Sprint("model.layers.", i)}})
		}
	case "autocast":
		c.Precision = "amp-bf16"
	case "policy":
		c.FSDPPrecision = "bf16"
	case "keep":
		c.FSDPReshard = "false"
	case "accumulate":
		c.Accumulate = 2
	}
	return c
}

// expertWays are the ways in which the runs were made, in the order of docs/distributed.md.
var expertWays = [][2]string{
	{"", "balanced"}, {"worst", "all rows to one rank"}, {"checkpoint", "balanced, every layer checkpointed"}, {"autocast", "balanced, bfloat16 autocast"},
	{"policy", "balanced, bfloat16 by fully_shard's policy"}, {"keep", "balanced, reshard_after_forward=False"}, {"accumulate", "balanced, two micro-batches"},
}

// An expertError is how far a prediction is from a run, relative to it.
type expertError struct{ allocated, reserved float64 }

// expertErrors predicts the runs, and returns a line for each and their errors by the way they were made.
func expertErrors(t *testing.T) (lines string, by map[string][]expertError) {
	models := map[string]*Model{}
	by = map[string][]expertError{}
	var sb strings.Builder
	for _, r := range expertRuns(t) {
		if models[r.Name] == nil {
			models[r.Name] = mixture(t, r.Name)
		}
		rep, err := models[r.Name].Analyze(t.Context(), r.question())
		if err != nil {
			t.Errorf("%s %s: %v", r.Name, r.Mesh, err)
			continue
		}
		var allocated, reserved int64
		for _, s := range r.Steps {
			allocated, reserved = max(allocated, s[0]), max(reserved, s[1])
		}
		got := rep.Parallel.PerRank[0]
		if u := rep.Uncertainty; reserved < u.LowBytes || reserved > u.HighBytes {
			t.Errorf("%s %s %s: %d reserved, outside %d to %d", r.Name, r.Mesh, r.How, reserved, u.LowBytes, u.HighBytes)
		}
		off := expertError{relative(got.AllocatedBytes, allocated), relative(got.ReservedBytes, reserved)}
		by[r.How] = append(by[r.How], off)
		fmt.Fprintf(&sb, "| %s | %s | %s | %s | %.1f | %.1f | %+.2f%% | %+.1f%% |\n", r.Name, r.Mesh, r.Dtype, r.How, float64(allocated)/(1<<20), float64(got.AllocatedBytes)/(1<<20), 100*off.allocated, 100*off.reserved)
	}
	return sb.String(), by
}

// medianAndWorst are those of errors without sign.
func medianAndWorst(list []expertError, of func(expertError) float64) (median, worst float64) {
	var all []float64
	for _, e := range list {
		all = append(all, math.Abs(of(e)))
	}
	slices.Sort(all)
	return all[len(all)/2], all[len(all)-1]
}

func ofAllocated(e expertError) float64 { return e.allocated }
func ofReserved(e expertError) float64  { return e.reserved }

// expertTable is the part of docs/distributed.md with these errors.
func expertTable(t *testing.T) string {
	_, by := expertErrors(t)
	var sb strings.Builder
	sb.WriteString("| runs | number | allocated, median | worst | reserved, median | worst |\n|---|---|---|---|---|---|\n")
	for _, way := range expertWays {
		median, worst := medianAndWorst(by[way[0]], ofAllocated)
		half, most := medianAndWorst(by[way[0]], ofReserved)
		fmt.Fprintf(&sb, "| %s | %d | %.2f%% | %.2f%% | %.1f%% | %.1f%% |\n", way[1], len(by[way[0]]), 100*median, 100*worst, 100*half, 100*most)
	}
	return sb.String()
}

// TestExperts predicts a rank of expert parallelism.
func TestExperts(t *testing.T) {
	testdata.Sequential(t)
	lines, by := expertErrors(t)
	t.Log("\n" + lines)
	n := 0
	for _, way := range expertWays {
		n += len(by[way[0]])
		for _, c := range []struct {
			what         string
			of           func(expertError) float64
			median, most float64
		}{{"allocated", ofAllocated, 0.0005, 0.005}, {"reserved", ofReserved, 0.02, 0.06}} {
			if median, worst := medianAndWorst(by[way[0]], c.of); median > c.median || worst > c.most {
				t.Errorf("%s: %s: median %.2f%%, worst %.2f%%, want %.2f%% and %.1f%%", way[1], c.what, 100*median, 100*worst, 100*c.median, 100*c.most)
			}
		}
	}
	if n != 135 {
		t.Errorf("%d runs", n)
	}
}

// The report says what a rank needs at both ends of what its experts may receive: what the same question answers there.
func TestExpertEnds(t *testing.T) {
	m := mixture(t, "qwen3_moe_few")
	ask := func(imbalance string) *Answer {
		rep, err := m.Analyze(t.Context(), Config{Batch: 8, Optimizer: "adamw", Runtime: measuredRelease, VRAM: 6 << 30, Parallel: "fsdp=4,ep=2", EPImbalance: imbalance})
		if err != nil {
			t.Fatal(err)
		}
		return rep
	}
	balanced, between, all := ask(""), ask("1.5"), ask(allRows)
	const rows = 8 * 256 * 4 // of a rank's tokens, each to four experts; a rank has eight, so that it may receive all of both ranks
	for _, c := range []struct {
		rep  *Answer
		rows int64
	}{{balanced, rows}, {between, rows * 3 / 2}, {all, 2 * rows}} {
		x := c.rep.Parallel.Experts
		if x == nil || x.Rows != c.rows || x.Balanced.Rows != rows || x.Most.Rows != 2*rows || x.Local != 8 || len(x.Modules) != 4 {
			t.Fatalf("%+v, want %d rows", x, c.rows)
		}
		for _, end := range []struct {
			is ExpertEnd
			at *Answer
		}{{x.Balanced, balanced}, {x.Most, all}} {
			if end.is.AllocatedBytes != end.at.Peak.AllocatedBytes || end.is.ReservedBytes != end.at.Peak.ReservedBytes || end.is.Fits == nil || *end.is.Fits != *end.at.Fits {
				t.Errorf("at %d rows: %+v, want %+v", x.Rows, end.is, end.at.Peak)
			}
		}
	}
	if a, b, c := balanced.Peak.AllocatedBytes, between.Peak.AllocatedBytes, all.Peak.AllocatedBytes; a >= b || b >= c {
		t.Errorf("%d, %d and %d bytes, want more with more rows", a, b, c)
	}
}

// Questions about expert parallelism that have no answer say why, and what to do.
func TestExpertsRefused(t *testing.T) {
	for _, c := range []struct {
		model string
		cfg   Config
		want  string
	}{
		{"mixtral", Config{Parallel: "ep=3"}, "8 experts, which as many ranks cannot share evenly"},
		{"mixtral", Config{Parallel: "fsdp=4,ep=3"}, "give fsdp=6,ep=3"},
		{"mixtral", Config{Parallel: "tp=2,ep=2"}, "modelled alone and among the ranks of fsdp"},
		{"mixtral", Config{Parallel: "ddp=2,ep=2"}, "modelled alone and among the ranks of fsdp"},
		{"mixtral", Config{Parallel: "ep=2", Mode: "infer"}, "of a training step"},
		{"mixtral", Config{Parallel: "ep=2", EPImbalance: "0.5"}, "want a number from 1"},
		{"mixtral", Config{Parallel: "ep=2", EPImbalance: "NaN"}, "want a number from 1"},
		{"mixtral", Config{Parallel: "ep=2", EPExperts: []string{"*.moe"}}, "no module of that name has matrices"},
		{"mixtral", Config{Parallel: "ep=2", EPExperts: []string{"["}}, "syntax error"},
		{"mixtral", Config{Parallel: "ddp=2", EPImbalance: "2"}, "--ep-imbalance needs a mesh with ep"},
		{"mixtral", Config{Parallel: "fsdp=2,ep=2", FSDPOffload: true}, "--fsdp-offload with ep"},
		{"mixtral", Config{Parallel: "fsdp=4,ep=2", FSDPReshard: "2"}, "--fsdp-reshard 2 with ep"},
		{"mixtral", Config{Parallel: "ep=2", LoRA: "r=8,target=all-linear"}, "--lora with ep"},
		{"list", Config{Parallel: "ep=2", Segments: []train.Segment{{Modules: []string{"model.layers.1.mlp.experts.3"}}}}, "within the experts model.layers.1.mlp.experts"},
	} {
		c.cfg.Batch = 2
		if _, err := mixture(t, c.model).Analyze(t.Context(), c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %v: %v, want %q", c.model, c.cfg.Parallel, err, c.want)
		}
	}
	for _, dense := range []string{"gpt2.onnx", "vit_b_16.onnx"} {
		if _, err := sample(t, dense).Analyze(t.Context(), Config{Batch: 2, Parallel: "ep=2"}); err == nil || !strings.Contains(err.Error(), "shows no experts") || !strings.Contains(err.Error(), "--ep-experts") {
			t.Errorf("%s: %v", dense, err)
		}
	}
}

// The ranks' experts are together those of the model, and all else is on every rank.
func TestExpertShares(t *testing.T) {
	for _, name := range []string{"mixtral", "list", "deepseek_v3"} {
		m := mixture(t, name)
		held := func(parallel string, rank int) map[string]int64 {
			j, err := Config{Batch: 2, Optimizer: "adamw", Parallel: parallel}.resolve()
			if err != nil {
				t.Fatal(err)
			}
			if j.meshed != nil {
				j.meshed.place.Data = rank
			}
			b, err := m.build(j, 2, nil)
			if err != nil {
				t.Fatal(err)
			}
			out := map[string]int64{}
			for _, p := range b.Params {
				out[p.Name] = b.Storages[p.Tensor.Storage].Bytes
			}
			return out
		}
		sum := map[string]int64{}
		for rank := range 4 {
			for p, n := range held("ep=4", rank) {
				sum[p] += n
			}
		}
		all := held("", 0)
		for p, n := range all {
			if !strings.Contains(p, ".mlp.experts.") {
				n *= 4
			}
			if sum[p] != n {
				t.Errorf("%s: %s: %d bytes on all ranks, want %d", name, p, sum[p], n)
			}
		}
		if len(sum) != len(all) {
			t.Errorf("%s: %d parameters on ranks, %d in the model", name, len(sum), len(all))
		}
	}
}
