package planner

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/internal/testdata"
)

// A handTried is what a search by hand found.
type handTried struct {
	rate   float64
	batch  int64
	policy string
}

// byHand asks about every batch up to most with every value of --checkpoint, one after the
// other, until no checkpoints make three in a row fit, and returns the fastest. rate is
// the samples per second of a report that fits.
func byHand(t *testing.T, m *Model, cfg Config, most int64, ask func(c *Config), rate func(c Config, r *Answer) float64, bound float64) (best handTried) {
	t.Helper()
	for b, misses := int64(1), 0; misses < 3 && b <= most; b++ {
		misses++
		for _, policy := range []string{"none", "all", "sqrt", "auto", "segments"} {
			c := cfg
			c.Batch, c.Checkpoint = b, policy
			ask(&c)
			r, err := m.Analyze(t.Context(), c)
			if err != nil {
				t.Fatalf("batch %d, %s: %v", b, policy, err)
			}
			if !*r.Fits {
				continue
			}
			misses = 0
			x := rate(c, r)
			if x > best.rate {
				best = handTried{x, b, policy}
			}
			if x > bound*(1+1e-5+5e-4/r.Time.StepMs) { // reported to a microsecond
				t.Errorf("batch %d, %s: %v samples/s, above the bound %v", b, policy, x, bound)
			}
			if policy == "none" && b%4 > 0 { // others recompute for nothing, which is looked at now and then
				break
			}
		}
	}
	return best
}

// smallModels are models of the zoo, or of the shared data, with budgets in MiB that hold a few
// samples.
var smallModels = []struct {
	name string
	vram int64
	cfg  Config
}{
	{name: "lstm_lm", vram: 1200}, {name: "vgg11_bn", vram: 4200}, {name: "squeezenet1_1", vram: 1150}, {name: "alexnet", vram: 2040}, {name: "resnet34", vram: 1325},
	{name: "resnet18.dyn-train", vram: 1140, cfg: Config{Precision: "amp-bf16"}}, {name: "vgg16.dyn-train", vram: 2400, cfg: Config{Optimizer: "sgd"}}, {name: "unet.dyn-train", vram: 1700},
}

// openSmall opens one of them.
func openSmall(t *testing.T, name string) *Model {
	t.Helper()
	if !strings.Contains(name, ".") {
		return collections(t)[0].open(t, name)
	}
	m, err := Open(testdata.Shared(t, "models", name+".onnx"))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestBestBatch compares --batch best with every batch and checkpoint of eight models, asked
// about one by one: as many samples per second, and none above the bound.
func TestBestBatch(t *testing.T) {
	testdata.Sequential(t)
	for _, c := range smallModels {
		t.Run(c.name, func(t *testing.T) {
			m, cfg := openSmall(t, c.name), c.cfg
			cfg.VRAM, cfg.BatchBest = c.vram<<20, true
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // in place of the effort
			defer cancel()
			r, err := m.Analyze(ctx, cfg)
			if err != nil {
				t.Fatal(err)
			}
			b := r.Batch.Best
			if math.Abs(b.SamplesPerSecond-r.Time.SamplesPerSecond) > 1e-3 || !*r.Fits {
				t.Errorf("the report does %v samples/s, the search found %v", r.Time.SamplesPerSecond, b.SamplesPerSecond)
			}
			cfg.BatchBest = false
			hand := byHand(t, m, cfg, 400, func(*Config) {}, func(_ Config, r *Answer) float64 { return r.Time.SamplesPerSecond }, b.Bound)
			t.Logf("batch %d of %d, %s: %.1f samples/s, at most %.1f; %d batches predicted; by hand %+v", r.Config.Batch, r.Batch.Max, b.Checkpoint, b.SamplesPerSecond, b.Bound, b.Predicted, hand)
			if math.Abs(hand.rate-b.SamplesPerSecond) > 1e-3 {
				t.Errorf("%v samples/s, by hand %v", b.SamplesPerSecond, hand.rate)
			}
		})
	}
}

// TestTargetBatch compares --target-batch with every batch and checkpoint: the time is that of
// the whole micro-batches in a step, and forward and backward of the last one.
func TestTargetBatch(t *testing.T) {
	testdata.Sequential(t)
	for _, c := range smallModels[6:] {
		for _, target := range []int64{5, 12, 17} {
			m, cfg := openSmall(t, c.name), c.cfg
			cfg.VRAM, cfg.Target = c.vram<<20, int(target)
			r, err := m.Analyze(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			b := r.Batch.Best
			cfg.Target = 0
			ask := func(c *Config) { c.Accumulate = int((target + c.Batch - 1) / c.Batch) }
			rate := func(c Config, r *Answer) float64 {
				last := target % c.Batch
				if last == 0 {
					return float64(target) / r.Time.StepMs * 1e3
				}
				with := c
				with.VRAM, with.Accumulate, with.Checkpoint = 0, int(target/c.Batch), "none"
				if r.Checkpoint != nil {
					with.Checkpoint, with.Segments = "", r.Checkpoint.Segments
				}
				whole, err := m.Analyze(t.Context(), with)
				if err != nil {
					t.Fatal(err)
				}
				with.Batch, with.Accumulate = last, 1
				rest, err := m.Analyze(t.Context(), with)
				if err != nil {
					t.Fatal(err)
				}
				return float64(target) / (whole.Time.StepMs + rest.Time.ForwardMs + rest.Time.BackwardMs - 1e3*stepHost) * 1e3
			}
			hand := byHand(t, m, cfg, target, ask, rate, b.Bound)
			t.Logf("%s: %d samples in %d of %d, the last %d, %s: %.3f ms, %.2f samples/s, at most %.2f; by hand %+v", c.name, target, r.Config.Accumulate, r.Config.Batch, b.LastBatch, b.Checkpoint, b.TargetMs, b.SamplesPerSecond, b.Bound, hand)
			if math.Abs(hand.rate-b.SamplesPerSecond) > 1e-4*hand.rate || !*r.Fits {
				t.Errorf("%s, %d samples: %v samples/s, by hand %v", c.name, target, b.SamplesPerSecond, hand.rate)
			}
		}
	}
}

// What leaves nothing to choose is refused.
func TestBestBatchRefuses(t *testing.T) {
	m := sample(t, "mlp.onnx")
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{BatchBest: true}, "need a budget"},
		{Config{Target: 8, Batch: 4, VRAM: 4 << 30}, "without --batch"},
		{Config{Target: 8, Accumulate: 2, VRAM: 4 << 30}, "without --accumulate"},
		{Config{Target: 8, Mode: "infer", VRAM: 4 << 30}, "for training"},
		{Config{BatchBest: true, Parallel: "ddp=2", VRAM: 4 << 30}, "for one card"},
		{Config{BatchBest: true, Checkpoint: "schedule", VRAM: 4 << 30}, "without a schedule"},
	} {
		if _, err := m.Analyze(t.Context(), c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.want)
		}
	}
	r, err := m.Analyze(t.Context(), Config{BatchBest: true, VRAM: 2 << 30})
	if err != nil || *r.Fits || r.Batch.Max != 0 {
		t.Errorf("no batch fits: %+v, %v", r, err)
	}
}

// The plan of --batch best is the one of its batch and checkpoints, asked for by name.
func TestBestBatchPlan(t *testing.T) {
	testdata.Sequential(t)
	m := openSmall(t, "resnet34")
	p, err := m.Plan(t.Context(), Config{BatchBest: true, VRAM: 1340 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if p.Config.BatchBest || p.Arena == nil {
		t.Errorf("%+v", p.Config)
	}
	own, err := m.Plan(t.Context(), Config{Batch: p.Config.Batch, Checkpoint: p.Config.Checkpoint, VRAM: 1340 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if own.Peak != p.Peak || own.Time != p.Time || !slices.EqualFunc(own.Selection, p.Selection, func(a, b train.Segment) bool { return slices.Equal(a.Modules, b.Modules) }) {
		t.Errorf("batch %d, %s: %+v, by name %+v", p.Config.Batch, p.Config.Checkpoint, p.Peak, own.Peak)
	}
}

// twos splits between two numbers at the one with the most factors of two.
func TestTwos(t *testing.T) {
	for lo := int64(1); lo < 70; lo++ {
		for hi := lo + 1; hi < 70; hi++ {
			want := lo + 1
			for x := want; x <= hi; x++ {
				if x&-x > want&-want {
					want = x
				}
			}
			if got := twos(lo, hi); got != want {
				t.Fatalf("%d to %d: %d, want %d", lo, hi, got, want)
			}
		}
	}
}
