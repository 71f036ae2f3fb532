package planner

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

// fourthExact are training runs of the fourth round, by model and precision, that
// were wrong for one mechanism alone.
var fourthExact = []struct{ name, prec, mechanism string }{
	{"tcn", "amp-bf16", "mse_loss casts its target, too"},
	{"yolo11n", "amp-bf16", "mse_loss casts its target, too"},
	{"lit_llama", "bf16", "a statement x = x.float() without a call"},
	{"lit_gemma", "bf16", "a statement x = x.float() without a call"},
	{"lit_gemma", "amp-bf16", "a statement x = x.float() without a call"},
	{"lit_moe", "bf16", "a statement x = x.float() without a call"},
	{"lit_moe", "amp-bf16", "a statement x = x.float() without a call"},
	{"clip_coca", "amp-bf16", "a subclass of LayerNorm casts back"},
	{"pm_nasnetamobile", "fp32", "a method that the file does not show names what modules return"},
	{"zuko_mlp", "amp-bf16", "the mean of a decomposed var_mean is no sum under autocast"},
}

// laterExact are runs of the rounds from the fourth on whose peak one mechanism explains.
var laterExact = []struct {
	round                       int
	name, prec, mode, mechanism string
}{
	{4, "pm_bninception", "fp32", "infer", "a method that the file does not show gives each result of its modules a name"},
	{5, "hf5_neomme", "bf16", "train", "a normalisation of transformers without a weight, whose line casts and whose result is cast back"},
	{6, "hf6_hrm_text", "bf16", "train", "as hf5_neomme"},
	{5, "hf5_yoso", "fp32", "train", "an autograd function of a dozen calls saves operands and what its last product reads"},
	{6, "timm6_iformer_m", "amp-bf16", "train", "attention of operands whose last dim is not dense"},
}

// TestLaterExact holds their peaks to a fifth of a percent.
func TestLaterExact(t *testing.T) {
	testdata.Sequential(t)
	for _, row := range laterExact {
		c, ran := roundOf(t, row.round), 0
		for _, r := range readLines[roundRun](t, filepath.Join(roundsDir, fmt.Sprintf("round%d.steps.jsonl.xz", row.round))) {
			if r.Name != row.name || r.Prec != row.prec || r.Mode != row.mode {
				continue
			}
			ran++
			if f := forecastOf(t, c, &r); f.Error != "" || math.Abs(relative(f.Allocated, r.Peak)) > 0.002 {
				t.Errorf("%s %s %d: %d, measured %d (%s): %s", r.Name, r.Prec, r.Batch, f.Allocated, r.Peak, f.Error, row.mechanism)
			}
		}
		if ran == 0 {
			t.Errorf("%s: no runs", row.name)
		}
	}
}

// TestFourthExact holds their peaks to a fifth of a percent.
func TestFourthExact(t *testing.T) {
	testdata.Sequential(t)
	c := roundOf(t, 4)
	runs := readLines[roundRun](t, filepath.Join(roundsDir, "round4.steps.jsonl.xz"))
	for _, row := range fourthExact {
		of := slices.DeleteFunc(slices.Clone(runs), func(r roundRun) bool { return r.Name != row.name || r.Prec != row.prec || r.Mode != "train" })
		if len(of) == 0 {
			t.Errorf("%s %s: no runs", row.name, row.prec)
		}
		for _, r := range of {
			if f := forecastOf(t, c, &r); f.Error != "" || math.Abs(relative(f.Allocated, r.Peak)) > 0.002 {
				t.Errorf("%s %d %s %s: %d, measured %d (%s): %s", r.Name, r.Batch, r.Prec, r.Opt, f.Allocated, r.Peak, f.Error, row.mechanism)
			}
		}
	}
}

// TestFastAttention holds inferences of torch.nn.MultiheadAttention, which runs one call
// there that no file shows, to allocated and reserved bytes.
func TestFastAttention(t *testing.T) {
	testdata.Sequential(t)
	c := roundOf(t, 4)
	ran := 0
	for _, r := range readLines[roundRun](t, filepath.Join(roundsDir, "round4.steps.jsonl.xz")) {
		if r.Mode != "infer" || r.Name != "clip_vit" && r.Name != "clip_vit_drop" {
			continue
		}
		ran++
		if f := forecastOf(t, c, &r); f.Error != "" || math.Abs(relative(f.Allocated, r.Peak)) > 0.001 || math.Abs(relative(f.Reserved, r.Reserved)) > 0.02 {
			t.Errorf("%s: %d allocated, %d reserved, measured %d and %d %s", r.Name, f.Allocated, f.Reserved, r.Peak, r.Reserved, f.Error)
		}
	}
	if ran != 2 {
		t.Errorf("%d runs", ran)
	}
}
