package planner

import (
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

// inferExact are inferences of the fourth round whose peak one mechanism explains.
var inferExact = []struct{ name, mechanism string }{
	{"pm_bninception", "a method that the file does not show gives each result of its modules a name"},
}

// TestFourthInferences holds their peaks to a fifth of a percent.
func TestFourthInferences(t *testing.T) {
	testdata.Sequential(t)
	c := roundOf(t, 4)
	runs := readLines[roundRun](t, filepath.Join(roundsDir, "round4.steps.jsonl.xz"))
	for _, row := range inferExact {
		at := slices.IndexFunc(runs, func(r roundRun) bool { return r.Name == row.name && r.Mode == "infer" })
		if f := forecastOf(t, c, &runs[at]); f.Error != "" || math.Abs(relative(f.Allocated, runs[at].Peak)) > 0.002 {
			t.Errorf("%s: %d, measured %d (%s): %s", row.name, f.Allocated, runs[at].Peak, f.Error, row.mechanism)
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
