package planner

import (
	"math/rand/v2"
	"testing"

	"github.com/memplan/memplan/checkpointsel"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/internal/testdata"
	"github.com/memplan/memplan/liveness"
)

// TestSegmentLevels compares what the selection predicts of a random choice of
// segments with the program that is then built for it.
func TestSegmentLevels(t *testing.T) {
	if testing.Short() { // nothing here runs side by side
		t.Skip("long")
	}
	for i, name := range []string{"resnet50", "gpt2", "vit_b_16", "unet", "densenet121", "mobilenet_v2", "vgg16", "llama_250m", "convnext_tiny", "bert_base_mlm", "mlp"} {
		m, err := Open(testdata.Shared(t, "models", name+".dyn-train.onnx"))
		if err != nil {
			t.Fatal(err)
		}
		j, err := Config{Batch: 16, Accumulate: 1 + i%5}.resolve()
		if err != nil {
			t.Fatal(err)
		}
		s, err := m.selector(j, 16)
		if err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(1, 2))
		worst := 0.0
		var p interface {
			Sample(*rand.Rand) []train.Segment
			Levels([]train.Segment, checkpointsel.View) (int64, float64, bool)
		}
		for k := range 40 {
			if p = s.problem; k >= 20 {
				p = s.selective
			}
			segs := p.Sample(rng)
			want, cost, ok := p.Levels(segs, checkpointsel.Sure)
			low, _, _ := p.Levels(segs, checkpointsel.Hoped)
			if !ok {
				t.Fatalf("%s: a sample is no choice of options", name)
			}
			b, err := m.build(j, 16, segs)
			if err != nil {
				t.Fatal(err)
			}
			if err := b.Check(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			first, steady := liveness.Steps(b.Program)
			for _, tl := range []*liveness.Timeline{first, steady} {
				if err := liveness.Check(tl); err != nil {
					t.Fatalf("%s: %v: %v", name, segs, err)
				}
			}
			l := liveness.LevelsOf(steady)
			var got int64
			var redo float64
			for i := range b.Nodes {
				if ph := b.Nodes[i].Phase; ph == program.Forward || ph == program.Backward || ph == program.Loss {
					got = max(got, l.Peak[i])
				}
				if b.Nodes[i].Recompute {
					redo += float64(b.Runs(&b.Nodes[i])) * j.time.Seconds(&b.Nodes[i])
				}
			}
			if low > got || want < got {
				t.Errorf("%s: built %d outside [%d, %d]", name, got, low, want)
			}
			if cost < redo*(1-1e-9) || cost > redo*(1+1e-9) {
				t.Errorf("%s: recomputation costs %g, built %g", name, cost, redo)
			}
			e := relative(low, got)
			if e > worst || -e > worst {
				worst = max(e, -e)
				t.Logf("%s: %d segments: built %d within [%+.2f%%, %+.2f%%]", name, len(segs), got, 100*e, 100*relative(want, got))
			}
		}
	}
}
