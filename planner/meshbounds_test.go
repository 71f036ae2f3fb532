package planner

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/memplan/memplan/internal/testdata"
)

// What rules a mesh out without building its step is below what the step's replay has, on
// every mesh.
func TestMeshBounds(t *testing.T) {
	testdata.Sequential(t)
	m := collections(t)[0].open(t, "qwen2")
	ruledOut := map[string]bool{}
	for _, vram := range []int64{2 << 30, 2300 << 20} { // the second is more than NCCL takes of a card of two dimensions
		cfg := Config{Batch: 4, GPU: "a100-40gb", VRAM: vram}
		p, err := m.Meshes(t.Context(), cfg, 4)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range p.Meshes {
			if !c.AtLeast {
				continue
			}
			ruledOut[c.Mesh] = true
			whole := cfg
			if whole.VRAM, whole.Checkpoint = 0, c.Checkpoint; c.Mesh != oneCard {
				whole.Parallel = c.Mesh
			}
			a, err := m.answer(t.Context(), whole)
			if err != nil {
				t.Fatal(err)
			}
			if got := a.ev.res.Allocated + a.j.besides(); c.Fits || got < c.ProcessBytes {
				t.Errorf("%s: at least %d, and replayed %d", c.Mesh, c.ProcessBytes, got)
			} else {
				t.Logf("%-12s at least %6.1f%% of %d", c.Mesh, 100*float64(c.ProcessBytes)/float64(got), got)
			}
		}
	}
	if len(ruledOut) != len(meshesOf(4))-4 { // all but those with cp and ep, which the file does not allow
		t.Errorf("%d meshes were ruled out of %d", len(ruledOut), len(meshesOf(4)))
	}
}

// Models of many cards are answered in seconds.
func TestMeshesLarge(t *testing.T) {
	testdata.Sequential(t)
	for _, c := range []struct {
		name, gpu, smallest string
	}{
		{"llama_70b", "a100-80gb", "fsdp=2,tp=4"},
		{"llama_70b", "h200", "fsdp=8"},
		{"moe_8x7b", "a100-80gb", "fsdp=4,tp=2"},
	} {
		path := filepath.Join(t.TempDir(), c.name)
		if err := os.WriteFile(path, testdata.Unpacked(t, "testdata/"+c.name+".onnx.xz"), 0o600); err != nil {
			t.Fatal(err)
		}
		before := time.Now()
		m, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		cfg := Config{Batch: 1, GPU: c.gpu, Precision: "bf16", Optimizer: "adamw-fused", Dims: map[string]int64{"seq": 2048}}
		p, err := m.Meshes(t.Context(), cfg, 8)
		if err != nil {
			t.Fatal(err)
		}
		took := time.Since(before)
		if p.Smallest != c.smallest || took > time.Minute { // 3 to 4 s on an idle core
			t.Errorf("%s on 8 of %s: smallest %q in %v, want %q", c.name, c.gpu, p.Smallest, took, c.smallest)
		}
		t.Logf("%s on 8 of %s: smallest %q, fastest %q, %v", c.name, c.gpu, p.Smallest, p.Fastest, took)
	}
}
