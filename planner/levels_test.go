package planner

import (
	"math/rand/v2"
	"testing"

	"github.com/memplan/memplan/checkpointsel"
	"github.com/memplan/memplan/internal/testdata"
)

// TestSegmentLevels compares what the selection predicts of a random choice of
// segments with the program that is then built for it.
func TestSegmentLevels(t *testing.T) {
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
		rng := rand.New(rand.NewPCG(1, 2))
		worst := 0.0
		var p leveled
		for k := range 40 {
			if p = s.problem; k >= 20 {
				p = s.selective
			}
			segs := p.Sample(rng)
			got := compareLevels(t, m, j, name, p, segs)
			low, _, _ := p.Levels(segs, checkpointsel.Hoped)
			want, _, _ := p.Levels(segs, checkpointsel.Sure)
			e := relative(low, got)
			if e > worst || -e > worst {
				worst = max(e, -e)
				t.Logf("%s: %d segments: built %d within [%+.2f%%, %+.2f%%]", name, len(segs), got, 100*e, 100*relative(want, got))
			}
		}
	}
}
