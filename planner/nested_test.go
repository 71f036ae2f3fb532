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

// TestNestedLevels compares what the selection predicts of random nested
// segments, and of those it chooses, with the program that is built for them.
func TestNestedLevels(t *testing.T) {
	testdata.Sequential(t)
	for i, name := range []string{"resnet50", "gpt2", "vit_b_16", "unet", "densenet121", "mobilenet_v2", "vgg16", "llama_250m", "convnext_tiny", "bert_base_mlm", "mlp"} {
		m, err := Open(testdata.Shared(t, "models", name+".dyn-train.onnx"))
		if err != nil {
			t.Fatal(err)
		}
		j, err := Config{Batch: 16, Accumulate: 1 + i%5, Runtime: measuredRelease}.resolve()
		if err != nil {
			t.Fatal(err)
		}
		s, err := m.selector(j, 16)
		if err != nil {
			t.Fatal(err)
		}
		n := s.nested()
		rng := rand.New(rand.NewPCG(1, 2))
		for range 12 {
			compareLevels(t, m, j, name, n, n.Sample(rng))
		}
		least, most := n.MinBudget(checkpointsel.Sure), s.problem.MinBudget(checkpointsel.Sure)
		for k := range int64(4) {
			b := least + (most-least)*k/2
			segs, _, ok := n.Solve(b, checkpointsel.Sure)
			if !ok {
				t.Fatalf("%s: nothing fits %d, where %d is the least budget", name, b, least)
			}
			if peak := compareLevels(t, m, j, name, n, segs); peak > b {
				t.Errorf("%s: the choice for %d needs %d", name, b, peak)
			}
		}
		t.Logf("%s: %d units; the least budget is %.1f%% of that of segments side by side", name, len(n.Units), 100*float64(least)/float64(most))
	}
}

// leveled is a problem that predicts levels and cost of a choice.
type leveled interface {
	Sample(*rand.Rand) []train.Segment
	Levels([]train.Segment, checkpointsel.View) (peak int64, cost float64, ok bool)
}

// compareLevels builds a step with segments, compares it with what the problem
// predicts and returns its highest level in forward and backward.
func compareLevels(t *testing.T, m *Model, j *job, name string, n leveled, segs []train.Segment) int64 {
	t.Helper()
	low, cost, ok := n.Levels(segs, checkpointsel.Hoped)
	high, _, _ := n.Levels(segs, checkpointsel.Sure)
	if !ok {
		t.Fatalf("%s: a sample is no choice of the problem", name)
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
	if low > got || high < got {
		t.Errorf("%s: built %d outside [%d, %d]: %v", name, got, low, high, segs)
	}
	if cost < redo*(1-1e-9) || cost > redo*(1+1e-9) {
		t.Errorf("%s: recomputation costs %g, built %g: %v", name, cost, redo, segs)
	}
	return got
}
