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
	"github.com/memplan/memplan/internal/testdata"
	"github.com/memplan/memplan/liveness"
)

// A pipelineRun is one rank of scripts/steps/pipelines.py, without a GPU: the most bytes of storages
// that lived in each of four steps.
type pipelineRun struct {
	Name, Strategy, Err string
	Batch, Micros       int64
	Rank, Ranks         int
	Cut                 []string
	Steps               [][]int64
}

// question is what a user asks to see the run.
func (r *pipelineRun) question() Config {
	schedule, kind, _ := strings.Cut(r.Strategy, "/")
	name := strings.TrimRight(schedule, "34") // stages a rank
	c := Config{Batch: r.Batch / r.Micros, Optimizer: "adamw", Runtime: measuredRelease, GPU: "h200", Attention: "efficient", Parallel: fmt.Sprint("pp=", r.Ranks),
		PPSchedule: name, PPMicros: int(r.Micros), PPSplit: strings.Join(r.Cut[1:], ",")}
	if name != schedule {
		c.PPStages = int(schedule[len(name)] - '0')
	}
	if r.Name == "gpt" {
		c.Dims = map[string]int64{"seq": 512}
	}
	switch kind {
	case "fsdp":
		c.Parallel += ",fsdp=2"
	case "keep":
		c.Parallel, c.FSDPReshard = c.Parallel+",fsdp=2", "false"
	case "hsdp":
		c.Parallel += ",hsdp=2x2"
	}
	return c
}

// lived are the most bytes of the rank's storages, as recordedPeaks counts them.
func (r *pipelineRun) lived(m *Model) (least, most int64, err error) {
	c := r.question()
	j, err := m.resolve(c)
	if err != nil {
		return 0, 0, err
	}
	j.meshed.place.Pipeline = r.Rank
	b, err := m.build(j, c.Batch, nil)
	if err != nil {
		return 0, 0, err
	}
	first, steady := liveness.Steps(b.Program)
	for _, t := range []*liveness.Timeline{first, steady} {
		least, most = max(least, withoutScratch(t, true)), max(most, withoutScratch(t, false))
	}
	var others int64 // static storages of other stages
	for id := range b.Storages {
		if s := &b.Storages[id]; s.Life == program.Static && !slices.Contains(b.Statics, program.StorageID(id)) {
			others += liveness.Rounded(s.Bytes)
		}
	}
	return least - others, most - others, b.Check()
}

// TestPipelines predicts every rank of pipelines that PyTorch ran without a GPU.
func TestPipelines(t *testing.T) {
	testdata.Sequential(t)
	zoo := collections(t)[0]
	path := filepath.Join(t.TempDir(), "gpt.onnx")
	if err := os.WriteFile(path, testdata.Unpacked(t, "testdata/distributed/gpt.onnx.xz"), 0o600); err != nil {
		t.Fatal(err)
	}
	gpt, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	models := map[string]int{}
	for _, r := range readLines[pipelineRun](t, "testdata/distributed/pipelines.jsonl") {
		m := gpt
		if r.Name != "gpt" {
			m = zoo.open(t, r.Name)
		}
		least, highest, err := r.lived(m)
		if strings.HasPrefix(r.Strategy, "z") && strings.HasSuffix(r.Strategy, "/fsdp") { // PyTorch's gradients are wrong there
			if err == nil || !strings.Contains(err.Error(), "give --fsdp-reshard false") {
				t.Errorf("%s %s: %v", r.Name, r.Strategy, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s %s: %v", r.Name, r.Strategy, err)
			continue
		}
		want := r.Steps[len(r.Steps)-1][0]
		off := beside(least, highest, want)
		t.Logf("%-14s %-20s rank %d: %6d to %6d MiB, lived %6d, %+.2f%%", r.Name, r.Strategy, r.Rank, least>>20, highest>>20, want>>20, 100*off)
		most := 0.002
		if r.Name == "resnet101" && strings.HasPrefix(r.Strategy, "z") { // autograd adds up in place, but not under FakeTensorMode
			most = 0.01
		}
		if math.Abs(off) > most {
			t.Errorf("%s %s rank %d: %d to %d bytes, lived %d", r.Name, r.Strategy, r.Rank, least, highest, want)
		}
		models[r.Strategy]++
	}
	for _, s := range []string{"gpipe", "1f1b", "interleaved", "interleaved3", "bfs", "zero-bubble", "zbv", "gpipe/fsdp", "1f1b/fsdp", "interleaved/fsdp", "bfs/fsdp", "gpipe/keep", "1f1b/keep", "interleaved/keep", "zero-bubble/keep", "zbv/keep"} {
		if models[s] < 6 {
			t.Errorf("%s: %d ranks", s, models[s])
		}
	}
}

// Buckets of DDP, shards of fully_shard and the optimizer's state of ZeroRedundancyOptimizer are those of
// a stage's parameters alone.
func TestPipelineShards(t *testing.T) {
	testdata.Sequential(t)
	m := collections(t)[0].open(t, "convnext_small")
	bytes := func(parallel string) (out []int64) {
		rep, err := m.Analyze(t.Context(), Config{Batch: 2, Optimizer: "adamw", Runtime: measuredRelease, GPU: "h200", Parallel: parallel})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rep.Parallel.PerRank {
			if r.Rank%2 == 0 || parallel == "pp=2" {
				out = append(out, r.AllocatedBytes)
			}
		}
		return out
	}
	rep, err := m.Analyze(t.Context(), Config{Batch: 2, Optimizer: "adamw", Runtime: measuredRelease})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []Config{{Parallel: "pp=2,fsdp=2", FSDPPrecision: "bf16"}, {Parallel: "pp=2,hsdp=2x4", FSDPReshard: "2", PPSchedule: "1f1b", PPMicros: 4}, {Parallel: "pp=2,fsdp=2", FSDPOffload: true},
		{Parallel: "pp=2,fsdp=2", PPSchedule: "zbv", PPMicros: 5, FSDPReshard: "false"}, {Parallel: "pp=2,ddp=2", PPSchedule: "zero-bubble"}, {Parallel: "pp=2,zero1=2", PPSchedule: "bfs", PPStages: 4},
		{Parallel: "pp=2,fsdp=2", PPSchedule: "interleaved", PPStages: 5, PPMicros: 4}, {Parallel: "pp=2,fsdp=2", PPSchedule: "zero-bubble", PPStages: 5, PPMicros: 4, FSDPReshard: "false", FSDPPrecision: "bf16"},
		{Parallel: "pp=2,fsdp=2,tp=2", PPSchedule: "1f1b", TPColwise: []string{"features.*.*.block.3"}, TPRowwise: []string{"features.*.*.block.5"}}, {Parallel: "pp=2", PPSchedule: "zbv", PPMicros: 1, LoRA: "r=8,target=all-linear"}} {
		c.Batch, c.Optimizer, c.GPU = 2, "adamw", "h200"
		j, err := m.resolve(c)
		if err != nil {
			t.Fatal(err)
		}
		for j.meshed.place.Pipeline = range 2 {
			b, err := m.build(j, c.Batch, nil)
			if err == nil {
				err = b.Check()
			}
			if err != nil {
				t.Errorf("%+v: %v", c, err)
			}
		}
	}
	alone, ddp, zero, fsdp := bytes("pp=2"), bytes("pp=2,ddp=2"), bytes("pp=2,zero1=2"), bytes("pp=2,fsdp=2")
	for i := range alone {
		if more := ddp[i] - alone[i]; more <= 0 || more > 2*rep.Model.ParameterBytes*3/4 {
			t.Errorf("stage %d: DDP takes %d bytes more, of a model of %d", i, more, rep.Model.ParameterBytes)
		}
		if zero[i] >= ddp[i] || fsdp[i] >= alone[i] {
			t.Errorf("stage %d: %d bytes under DDP, %d under ZeRO-1; %d alone, %d under FSDP2", i, ddp[i], zero[i], alone[i], fsdp[i])
		}
	}
}
