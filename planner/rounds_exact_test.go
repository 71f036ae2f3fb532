package planner

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

// roundsExact are models of the rounds whose float32 runs were wrong for one
// operator or idiom alone, and the mechanism.
var roundsExact = map[string]string{
	"diff_pixart":                 "squeeze of a dim whose size is not 1 returns its operand",
	"plain_convvae":               "LeakyReLU after a batch normalisation of a class of one's own makes a new tensor",
	"pyg_graph":                   "scatter_add_ into zeros writes into them",
	"timm5_vit_tiny_r_s16_p8_224": "timm's ReLU after a group normalisation writes into it",
	"plain_graphconvnet":          "index_add is decomposed, saves its source and has no promotion",
	"timm6_iformer_m":             "attention of operands whose last dim is not dense takes the path of products",
}

// TestRoundsExact holds float32 peaks of the rounds to a twentieth of a percent
// where everything behind them is known.
func TestRoundsExact(t *testing.T) {
	testdata.Sequential(t)
	seen := map[string]bool{}
	for round := 1; round <= allRounds; round++ {
		c := roundOf(t, round)
		runs := readLines[roundRun](t, filepath.Join(roundsDir, fmt.Sprintf("round%d.steps.jsonl.xz", round)))
		for _, r := range slices.DeleteFunc(runs, func(r roundRun) bool { return roundsExact[r.Name] == "" || r.Prec != "fp32" }) {
			seen[r.Name] = true
			if f := forecastOf(t, c, &r); f.Error != "" || math.Abs(relative(f.Allocated, r.Peak)) > 0.0005 {
				t.Errorf("%s %d %s %s: %d, measured %d (%s): %s", r.Name, r.Batch, r.Opt, r.Mode, f.Allocated, r.Peak, f.Error, roundsExact[r.Name])
			}
		}
	}
	if len(seen) != len(roundsExact) {
		t.Errorf("runs of %v alone", seen)
	}
}

// TestRoundsRNN holds the training steps of a torch.nn.RNN, which the exporter
// writes step by step, to what cuDNN's one call takes.
func TestRoundsRNN(t *testing.T) {
	testdata.Sequential(t)
	c := roundOf(t, 1)
	ran := 0
	for _, r := range readLines[roundRun](t, filepath.Join(roundsDir, "round1.steps.jsonl.xz")) {
		if r.Name != "audio_deepspeech" || r.Mode != "train" {
			continue
		}
		ran++
		if f := forecastOf(t, c, &r); f.Error != "" || math.Abs(relative(f.Allocated, r.Peak)) > 0.001 {
			t.Errorf("batch %d %s %s: %d, measured %d %s", r.Batch, r.Prec, r.Opt, f.Allocated, r.Peak, f.Error)
		}
	}
	if ran != 5 {
		t.Errorf("%d runs", ran)
	}
}

// TestSharedNorm holds steps that call one batch normalisation more than once, with the
// statistics that the call before updated in place, to half a percent.
func TestSharedNorm(t *testing.T) {
	testdata.Sequential(t)
	c := roundOf(t, 7)
	ran := 0
	for _, r := range readLines[roundRun](t, filepath.Join(roundsDir, "round7.steps.jsonl.xz")) {
		if r.Name != "cascadepsp" && r.Name != "plain_simclr" {
			continue
		}
		ran++
		if f := forecastOf(t, c, &r); f.Error != "" || math.Abs(relative(f.Allocated, r.Peak)) > 0.005 {
			t.Errorf("%s batch %d %s %s: %d, measured %d %s", r.Name, r.Batch, r.Prec, r.Mode, f.Allocated, r.Peak, f.Error)
		}
	}
	if ran != 12 {
		t.Errorf("%d runs", ran)
	}
}
