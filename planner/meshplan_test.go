package planner

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

// TestMeshSelection holds that a plan is found for a rank, though the whole model with its
// gradients is more than the card has, and that it costs less than every module.
func TestMeshSelection(t *testing.T) {
	testdata.Sequential(t)
	path := filepath.Join(t.TempDir(), "moe.onnx")
	if err := os.WriteFile(path, testdata.Unpacked(t, "testdata/moe_8x7b.onnx.xz"), 0o600); err != nil {
		t.Fatal(err)
	}
	ask := func(c Config) *Answer {
		m, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		r, err := m.Analyze(context.Background(), c)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	question := Config{Parallel: "fsdp=4", GPU: "h100", Batch: 1, Dims: map[string]int64{"seq": 1024}, Precision: "bf16", Optimizer: "sgd", Checkpoint: "all"}
	all := ask(question)
	question.Checkpoint, question.VRAM = "auto", all.Peak.ProcessBytes*21/20
	auto := ask(question)
	if auto.Fits == nil || !*auto.Fits || auto.Time.StepMs >= all.Time.StepMs {
		t.Errorf("every module: %d bytes, %.1f ms; under %d bytes: %.1f ms, warnings %v", all.Peak.ProcessBytes, all.Time.StepMs, question.VRAM, auto.Time.StepMs, auto.Warnings)
	}
}

// Settings of a dimension are those of the meshes that have it: each mesh is what the question about it alone answers.
func TestMeshesSettings(t *testing.T) {
	m := sample(t, "gpt2.onnx")
	cfg := Config{Batch: 2, GPU: "a100-80gb", TPLoss: true, TPColwise: []string{"m.lm_head"}, FSDPReshard: "false", DDPViews: true, PPSchedule: "1f1b"}
	p, err := m.Meshes(t.Context(), cfg, 2)
	if err != nil {
		t.Fatal(err)
	}
	for mesh, alone := range map[string]Config{
		"tp=2":   {TPLoss: true, TPColwise: []string{"m.lm_head"}, TPSequence: []string{"norms"}},
		"fsdp=2": {FSDPReshard: "false"},
		"ddp=2":  {DDPViews: true},
		"pp=2":   {PPSchedule: "1f1b"},
	} {
		alone.Batch, alone.GPU, alone.Parallel, alone.Checkpoint = 2, "a100-80gb", mesh, "none"
		rep, err := m.Analyze(t.Context(), alone)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Meshes[p.index(mesh)]; !got.Fits || got.ProcessBytes != rep.Peak.ProcessBytes || got.Why != "" {
			t.Errorf("%s: %+v, alone %d bytes", mesh, got, rep.Peak.ProcessBytes)
		}
	}
	cfg.ZeROBucket = 1 << 20
	if _, err := m.Meshes(t.Context(), cfg, 2); err == nil || !strings.Contains(err.Error(), "--zero-bucket: --gpus compares no mesh with zero2 or zero3") {
		t.Errorf("%v", err)
	}
}
