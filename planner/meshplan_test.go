package planner

import (
	"context"
	"os"
	"path/filepath"
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
