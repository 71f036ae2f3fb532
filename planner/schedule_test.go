package planner

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/memplan/memplan/checkpointsel"
	"github.com/memplan/memplan/checkpointsel/remat"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/internal/testdata"
	"github.com/memplan/memplan/liveness"
	"github.com/memplan/memplan/planner/profile"
)

// TestStepGraph compares the instance of a training step with the step: the
// same peak without recomputation, as far as it counts, and for a schedule at
// half of what moves, the program that is built for it.
func TestStepGraph(t *testing.T) {
	for _, name := range []string{"resnet18", "gpt2", "vit_b_16", "unet", "mobilenet_v2"} {
		m, err := Open(testdata.Shared(t, "models", name+".dyn-train.onnx"))
		if err != nil {
			t.Fatal(err)
		}
		j, err := Config{Batch: 16, Runtime: measuredRelease}.resolve()
		if err != nil {
			t.Fatal(err)
		}
		b, err := m.build(j, 16, nil)
		if err != nil {
			t.Fatal(err)
		}
		g, err := checkpointsel.NewStepGraph(b.Program, j.time.Seconds)
		if err != nil {
			t.Fatal(err)
		}
		in := g.Instance
		_, steady := liveness.Steps(b.Program)
		if level := liveness.LiveBound(steady); in.Peak() > level || in.Peak() < level*95/100 {
			t.Errorf("%s: the instance has a peak of %d, the step of %d", name, in.Peak(), level)
		}
		need, _ := in.WorkingSet()
		budget := max(in.Fixed+(in.Peak()-in.Fixed)/2, need+(in.Peak()-need)/4)
		r, err := remat.Solve(context.Background(), in, remat.Options{Budget: budget, Gap: 0.005, Patience: 1})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		s, err := scheduled(b, g, r.Schedule)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		first, steady := liveness.Steps(s.Program)
		for _, tl := range []*liveness.Timeline{first, steady} {
			if err := liveness.Check(tl); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		live, o := liveness.LiveBound(steady), overhead(s.Program, &j.time)
		t.Logf("%s: %d nodes, peak %d, budget %d: overhead %.4f (%.4f in the program), gap %.4f, live %d", name, len(in.Nodes), in.Peak(), budget, r.Overhead, o, r.Gap, live)
		if live > budget+budget/50 || o < r.Overhead-1e-6 || o > r.Overhead*1.1+1e-3 {
			t.Errorf("%s: the program has %d live bytes and overhead %.4f, the schedule %d and %.4f", name, live, o, r.Peak, r.Overhead)
		}
	}
}

// TestSchedule asks for schedules under falling budgets: each fits when it is
// replayed, none is faster under a smaller budget, and none costs less than
// any bound.
func TestSchedule(t *testing.T) {
	m, err := Open(testdata.Shared(t, "models", "resnet18.dyn-train.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := m.Analyze(t.Context(), Config{Batch: 64})
	if err != nil {
		t.Fatal(err)
	}
	before := -1.0
	for _, vram := range []int64{3200 << 20, 2400 << 20, 2200 << 20} {
		cfg := Config{Batch: 64, Headroom: "0", VRAM: vram, Checkpoint: "schedule"}
		p, err := m.Plan(context.Background(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		c := p.Checkpoint
		if c == nil || p.Fits == nil || !*p.Fits || p.Peak.ProcessBytes > vram {
			t.Fatalf("%s: %+v, fits %v, notes %v", profile.FormatBytes(vram), c, p.Fits, p.Warnings)
		}
		t.Logf("%s: overhead %.4f, bound %.4f, %d operations again, process %s", profile.FormatBytes(vram), c.RecomputeOverhead, c.LowerBound, len(c.Recomputed), profile.FormatBytes(p.Peak.ProcessBytes))
		if c.RecomputeOverhead < before || c.LowerBound > c.RecomputeOverhead {
			t.Errorf("%s: overhead %.4f, bound %.4f, %.4f with more memory", profile.FormatBytes(vram), c.RecomputeOverhead, c.LowerBound, before)
		}
		before = c.RecomputeOverhead
		again := replan(t, m, p)
		if again.Peak != p.Peak || again.Time != p.Time {
			t.Errorf("%s: the plan read back has peak %+v, not %+v", profile.FormatBytes(vram), again.Peak, p.Peak)
		}
		if tl := again.Timeline(); len(p.Schedule) > 0 == (len(tl) == len(plain.Timeline())) {
			t.Errorf("%s: a timeline of %d events, %d without checkpoints", profile.FormatBytes(vram), len(tl), len(plain.Timeline()))
		}
		if _, err := p.ToTorch(); (err == nil) != (len(p.Schedule) == 0) {
			t.Errorf("as a configuration for PyTorch: %v", err)
		}
		if segs, err := m.Analyze(context.Background(), Config{Batch: 64, Headroom: "0", VRAM: vram, Checkpoint: "auto"}); err != nil || segs.Checkpoint != nil && segs.Checkpoint.RecomputeOverhead < c.LowerBound {
			t.Errorf("%s: segments cost %+v, less than the bound %.4f; %v", profile.FormatBytes(vram), segs.Checkpoint, c.LowerBound, err)
		}
	}
	r, err := m.Analyze(context.Background(), Config{Batch: 64, Headroom: "0", VRAM: 1300 << 20, Checkpoint: "schedule"})
	if err != nil || r.Checkpoint != nil || *r.Fits || !hasWarning(r.Report, "no-schedule") {
		t.Errorf("too small a budget: %+v, %v", r, err)
	}
}

// TestScheduleMicros: schedules of steps with micro-batches fit when they are
// replayed, and cost in proportion to how often what runs again is run.
func TestScheduleMicros(t *testing.T) {
	m, err := Open(testdata.Shared(t, "models", "resnet18.dyn-train.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	for _, micros := range []int{2, 3, 8} {
		const vram = 2400 << 20
		p, err := m.Plan(context.Background(), Config{Batch: 64, Headroom: "0", VRAM: vram, Checkpoint: "schedule", Accumulate: micros})
		if err != nil {
			t.Fatal(err)
		}
		c := p.Checkpoint
		if c == nil || *p.Fits != true || len(c.Recomputed) == 0 || p.Peak.ProcessBytes > vram || c.LowerBound > c.RecomputeOverhead {
			t.Fatalf("%d micro-batches: %+v, fits %v, %s", micros, c, *p.Fits, profile.FormatBytes(p.Peak.ProcessBytes))
		}
		s, err := m.Program(p.Question())
		if err != nil {
			t.Fatal(err)
		}
		redo := make([]int, program.MicrosBuilt)
		for i := range s.Nodes {
			if n := &s.Nodes[i]; n.Recompute {
				redo[n.Micro] += s.Runs(n)
			}
		}
		t.Logf("%d micro-batches: overhead %.4f, bound %.4f, operations again by micro-batch %v", micros, c.RecomputeOverhead, c.LowerBound, redo)
		if built := min(micros, program.MicrosBuilt); redo[0] == 0 || redo[built-1] == 0 || micros > built && redo[built-1]%(micros-built+1) != 0 {
			t.Errorf("%d micro-batches: operations again by micro-batch %v", micros, redo)
		}
	}
}

func hasWarning(r *Report, code string) bool {
	for _, w := range r.Warnings {
		if w.Code == code {
			return true
		}
	}
	return false
}

// replan writes a plan, reads it back and answers its question.
func replan(t *testing.T, m *Model, p *Plan) *Answer {
	t.Helper()
	data, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "plan.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Batch: 64, Headroom: "0", VRAM: p.Config.VRAM, Checkpoint: path}
	if err := cfg.ReadCheckpoint(); err != nil {
		t.Fatal(err)
	}
	r, err := m.Analyze(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
