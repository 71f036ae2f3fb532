package planner

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/train"

	"github.com/memplan/memplan/internal/testdata"
)

// TestRanOut holds a plan that ran out of memory under its cap against what the
// GPU's allocator had reserved: by the file's graph alone, in which Python keeps
// tensors that it lets go of, the plan fits. By its capture it does not, and fails
// at the same request. The numbers are those of docs/torch.md's first run
// (7,776,239,616 bytes without a cap) and of scripts/steps/quiet.py (the others).
func TestRanOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "layoutlm.onnx")
	if err := os.WriteFile(path, readFile(t, filepath.Join("testdata", "torch", "layoutlm.onnx.xz")), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	layer := []train.Saved{{Op: "aten.addmm", Calls: []int{0, 1, 2, 3, 4, 5}, Of: 6}, {Op: "aten.bmm", Calls: []int{1}, Of: 2}, {Op: "aten.native_layer_norm", Calls: []int{0, 1}, Of: 2}}
	last := []train.Saved{{Op: "aten.addmm", Calls: []int{0, 1, 2, 3, 4, 5, 6, 7}, Of: 9}, {Op: "aten.bmm", Calls: []int{1}, Of: 2}, {Op: "aten.native_dropout", Calls: []int{1, 2}, Of: 3}, {Op: "aten.native_layer_norm", Calls: []int{0, 1, 2}, Of: 3}}
	var segs []train.Segment
	for i := range 6 {
		segs = append(segs, train.Segment{Modules: []string{fmt.Sprint("m.layoutlm.encoder.layer.", i)}, Save: layer})
	}
	segs[0].Save = append([]train.Saved{{Op: "aten.native_dropout", Calls: []int{1}, Of: 3}}, layer...)
	segs = append(segs, train.Segment{Modules: []string{"m.layoutlm.encoder.layer.9", "m.layoutlm.pooler", "m.cls"}, Save: last})
	j, err := m.resolve(Config{Batch: 40, Dims: map[string]int64{"seq": 256}, Loss: "cross-entropy", Runtime: measuredRelease, VRAM: 8 << 30, Segments: segs})
	if err != nil {
		t.Fatal(err)
	}
	b, err := m.build(j, 40, segs)
	if err != nil {
		t.Fatal(err)
	}
	free, err := replay(b, j, false)
	if err != nil {
		t.Fatal(err)
	}
	if got := [2]int64{free.res.Steps[0].Reserved, free.res.Reserved}; got != [2]int64{6_788_481_024, 7_776_239_616} {
		t.Errorf("%d bytes are reserved after the first and the second step, on the GPU 6,788,481,024 and 7,776,239,616", got)
	}
	full, err := replay(b, j, true)
	if err != nil {
		t.Fatal(err)
	}
	if f := full.fail; f == nil || f.Step != 1 || f.Bytes != 327_680_000 {
		t.Errorf("under the cap: %v, on the GPU the second step ran out of memory at a request of 327,680,000 bytes", f)
	}
}

// TestNeverWorse plans for the memory that every n-th layer takes: the plan costs no
// more than that.
func TestNeverWorse(t *testing.T) {
	testdata.Sequential(t)
	for name, most := range map[string]int{"gpt2": 3, "llama": 1} {
		path := filepath.Join(t.TempDir(), name+".onnx")
		if err := os.WriteFile(path, readFile(t, filepath.Join("testdata", "applied", name+".onnx.xz")), 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		for n := 1; n <= most; n++ {
			c := Config{Batch: 64, Dims: map[string]int64{"seq": 128}, Precision: "amp-bf16", Headroom: "0", Checkpoint: fmt.Sprint("huggingface:every_n_layers=", n)}
			way, err := m.Plan(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			c.Checkpoint, c.VRAM = "auto", way.Peak.ProcessBytes
			plan, err := m.Plan(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			switch fits := plan.Fits; {
			case fits == nil || !*fits:
				t.Errorf("%s, every %d layers: no plan fits the %d bytes that they take", name, n, way.Peak.ProcessBytes)
			case plan.Checkpoint.RecomputeOverhead > way.Checkpoint.RecomputeOverhead:
				t.Errorf("%s: a plan costs %.4f, every %d layers %.4f", name, plan.Checkpoint.RecomputeOverhead, n, way.Checkpoint.RecomputeOverhead)
			}
		}
	}
}

// TestOwnCheckpoints: a model whose code checkpoints two of its modules, either way
// that PyTorch has, takes what it takes when a plan does so.
func TestOwnCheckpoints(t *testing.T) {
	open := func(name string) *Model {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, readFile(t, filepath.Join("testdata", "torch", name+".xz")), 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	c := Config{Batch: 4096} // under the release that captured them, which nothing else in these files names
	plain, err := open("own_none.onnx").Analyze(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	planned := c
	planned.Segments = []train.Segment{{Modules: []string{"mids.0"}}, {Modules: []string{"mids.2"}}}
	want, err := open("own_none.onnx").Analyze(t.Context(), planned)
	if err != nil {
		t.Fatal(err)
	}
	if plain.Config.Runtime != measuredRelease {
		t.Errorf("the runtime is %s", plain.Config.Runtime)
	}
	if want.Peak.AllocatedBytes >= plain.Peak.AllocatedBytes {
		t.Fatalf("the plan takes %d bytes, no checkpoints %d", want.Peak.AllocatedBytes, plain.Peak.AllocatedBytes)
	}
	for _, name := range []string{"own_checkpoint.onnx", "own_reentrant.onnx"} {
		m := open(name)
		got, err := m.Analyze(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if got.Peak.AllocatedBytes != want.Peak.AllocatedBytes || got.Peak.ReservedBytes != want.Peak.ReservedBytes || got.SavedBytes != want.SavedBytes {
			t.Errorf("%s: %+v with %d bytes saved, under the plan %+v with %d", name, got.Peak, got.SavedBytes, want.Peak, want.SavedBytes)
		}
		if _, err := m.Analyze(t.Context(), planned); err == nil || !strings.Contains(err.Error(), `checkpoints by itself, in module "mids.0.b"`) {
			t.Errorf("%s with regions of a plan: %v", name, err)
		}
		small := c
		small.VRAM, small.Checkpoint = 900<<20, "auto"
		p, err := m.Plan(t.Context(), small)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(p.Warnings, func(w graph.Warning) bool { return w.Code == "own-checkpoints" }) || *p.Fits {
			t.Errorf("%s for 900 MiB: fits %v, %v", name, *p.Fits, p.Warnings)
		}
	}
}
