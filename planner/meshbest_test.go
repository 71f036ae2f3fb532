package planner

import (
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

// The batch of a mesh with --batch best is the best of those it tries, each asked for alone, and
// selected checkpoints are never slower than every module's.
func TestMeshBatches(t *testing.T) {
	testdata.Sequential(t)
	m := collections(t)[0].open(t, "opt_125m")
	question := Config{GPU: "a100-40gb", VRAM: 5 << 30, BatchBest: true}
	best, err := m.Meshes(t.Context(), question, 2)
	if err != nil {
		t.Fatal(err)
	}
	rates := map[string]float64{}
	for _, batch := range []int64{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96} {
		one, err := m.Meshes(t.Context(), Config{GPU: question.GPU, VRAM: question.VRAM, Batch: batch}, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range one.Meshes {
			if c.Fits {
				rates[c.Mesh] = max(rates[c.Mesh], c.SamplesPerSecond)
			}
			if c.Fits && c.SamplesPerSecond > best.Bound {
				t.Errorf("%s at batch %d: %.1f samples/s, above the bound of %.1f", c.Mesh, batch, c.SamplesPerSecond, best.Bound)
			}
		}
	}
	for _, c := range best.Meshes {
		if c.SamplesPerSecond != rates[c.Mesh] {
			t.Errorf("%s: %.3f samples/s at batch %d; asked one by one, %.3f", c.Mesh, c.SamplesPerSecond, c.Batch, rates[c.Mesh])
		}
	}
	question.Checkpoint = "auto"
	auto, err := m.Meshes(t.Context(), question, 2)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range auto.Meshes {
		if c.SamplesPerSecond < best.Meshes[i].SamplesPerSecond {
			t.Errorf("%s with selected checkpoints: %+v, without: %+v", c.Mesh, c, best.Meshes[i])
		}
	}
}
