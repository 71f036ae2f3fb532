package planner

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

// ringQuestion is what a user asks to see a run under context_parallel: kinds cp, of a model
// whose file leaves the sequence open, and ring, of models whose files have one length.
func (r *secondRun) ringQuestion() Config {
	c := Config{Batch: r.Batch, Optimizer: "adamw", Runtime: measuredRelease, GPU: "h200", Parallel: fmt.Sprint("cp=", r.World), Attention: "efficient"}
	for _, word := range strings.Split(r.Strategy, "-")[1:] {
		switch word {
		case "efficient", "flash", "cudnn":
			c.Attention = word
		case "bf16":
			c.Precision = word
		case "fsdp":
			c.Parallel = "fsdp=1," + c.Parallel
		default:
			var n int64
			if _, err := fmt.Sscan(word, &n); err == nil {
				c.Dims = map[string]int64{"seq": n}
			}
		}
	}
	if r.Name == "transformer" && c.Parallel != "cp=2" {
		c.FSDPWrap = "root" // the script names no class of this model's
	}
	if r.Kind == "cp" && c.Precision == "bf16" {
		c.Attention = "flash"
	}
	return c
}

// contextTable predicts the runs under context_parallel.
func contextTable(t *testing.T) (string, []meshError) {
	zoo := collections(t)[0]
	path := filepath.Join(t.TempDir(), "gpt.onnx")
	if err := os.WriteFile(path, testdata.Unpacked(t, "testdata/distributed/gpt.onnx.xz"), 0o600); err != nil {
		t.Fatal(err)
	}
	gpt, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []meshError
	var sb strings.Builder
	sb.WriteString("| model | run | rank | allocated, MiB | predicted | off | reserved | off | ms | predicted |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range secondRuns(t, "cp", "ring") {
		m := gpt
		if r.Kind == "ring" {
			m = zoo.open(t, r.Name)
		}
		rep, err := m.Analyze(t.Context(), r.ringQuestion())
		if err != nil {
			t.Errorf("%s %s: %v", r.Name, r.Strategy, err)
			continue
		}
		for k, p := range rep.Parallel.PerRank {
			want := r.highest(k)
			off, held := relative(p.AllocatedBytes, want.allocated), relative(p.ReservedBytes, want.reserved)
			all = append(all, meshError{outside([]int64{p.AllocatedBytes}, want.allocated), held})
			fmt.Fprintf(&sb, "| %s | %s | %d | %d | %d | %+.2f%% | %d | %+.1f%% | %.1f | %.1f |\n", r.Name, r.Strategy, k, want.allocated>>20, p.AllocatedBytes>>20, 100*off, want.reserved>>20, 100*held, r.Ranks[k].Ms[len(r.Ranks[k].Ms)-1], rep.Time.StepMs)
		}
	}
	return sb.String(), all
}

// TestContext predicts the ranks of attention over parts of sequences.
func TestContext(t *testing.T) {
	testdata.Sequential(t)
	table, all := contextTable(t)
	t.Log("\n" + table)
	for mesh, want := range map[string]int64{"cp=2": 2058 << 20, "fsdp=1,cp=2": 2058 << 20} { // the driver's bytes less what is reserved, in these runs
		m, err := ParseParallel(mesh)
		if err != nil {
			t.Fatal(err)
		}
		s := meshed{}
		s.Mesh = m
		if got := s.nccl() + 800<<20; relative(got, want) > 0.1 || relative(got, want) < -0.1 {
			t.Errorf("%s: %d MiB outside the allocator, measured %d", mesh, got>>20, want>>20)
		}
	}
	checkMesh(t, all, 0.003, 0.011, 0.011)
	if len(all) < 40 {
		t.Errorf("%d ranks", len(all))
	}
}

// Questions about context parallelism that have no answer say why.
func TestContextRefused(t *testing.T) {
	testdata.Sequential(t)
	m := sample(t, "vit_b_16.onnx")
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Batch: 4, Parallel: "cp=2", Attention: "eager"}, "fused attention kernel"},
		{Config{Batch: 4, Parallel: "cp=2", Mode: "infer"}, "of a training step"},
		{Config{Batch: 4, Parallel: "cp=2,pp=2"}, "context parallelism in a pipeline"},
		{Config{Batch: 4, Parallel: "cp=2", CPDim: []string{"seq"}}, "--cp-dim seq: give the whole length"},
		{Config{Batch: 4, Parallel: "ddp=2", CPDim: []string{"seq"}}, "--cp-dim needs a mesh with cp"},
		{Config{Batch: 4, Parallel: "fsdp=1"}, "at least 2 ranks"},
		{Config{Batch: 4, Parallel: "cp=2", Dims: map[string]int64{"seq": 3}}, "not a multiple of the 2 ranks"},
	} {
		if _, err := m.Analyze(t.Context(), c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.cfg.Parallel, err, c.want)
		}
	}
	if _, err := sample(t, "gpt2.onnx").Analyze(t.Context(), Config{Batch: 4, Parallel: "cp=2"}); err == nil || !strings.Contains(err.Error(), "no scaled_dot_product_attention") {
		t.Errorf("attention of other operators: %v", err)
	}
}
