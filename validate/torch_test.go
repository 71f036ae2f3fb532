package validate

import (
	"testing"

	"github.com/memplan/memplan/planner"
)

// torchPlan predicts a peak of 1000 bytes allocated and 1100 to 1200 reserved.
func torchPlan() *planner.Plan {
	p := new(planner.Plan)
	p.Config.Batch = 8
	p.Peak = planner.Peak{AllocatedBytes: 1000, ReservedBytes: 1100, UpperBoundBytes: 1200}
	p.Phases = planner.Phases{ForwardPeak: 700, BackwardPeak: 1000, OptimizerPeak: 300}
	p.Time.ForwardMs, p.Time.BackwardMs, p.Time.OptimizerMs, p.Time.StepMs = 2, 4, 1, 7
	return p
}

func torchStep(forward, backward, reserved int64, ms float64) []TorchPhase {
	return []TorchPhase{{"forward", forward, reserved, ms}, {"backward", backward, reserved, 2 * ms}, {"optimizer", 300, reserved, ms}}
}

// TestJudgeTorch: each check fails alone, and only where it should.
func TestJudgeTorch(t *testing.T) {
	for name, c := range map[string]struct {
		m      TorchMeasured
		limit  int64
		failed string // "" for none
	}{
		"as planned":       {TorchMeasured{Batch: 8, Steps: [][]TorchPhase{torchStep(690, 1010, 1150, 2)}}, 0, ""},
		"no batch known":   {TorchMeasured{Steps: [][]TorchPhase{torchStep(690, 985, 1200, 2)}}, 0, ""},
		"another batch":    {TorchMeasured{Batch: 9, Steps: [][]TorchPhase{torchStep(690, 1010, 1150, 2)}}, 0, "batch"},
		"more allocated":   {TorchMeasured{Batch: 8, Steps: [][]TorchPhase{torchStep(690, 1000, 1150, 2), torchStep(690, 1021, 1150, 2)}}, 0, "allocated"},
		"less allocated":   {TorchMeasured{Batch: 8, Steps: [][]TorchPhase{torchStep(690, 979, 1150, 2)}}, 0, "allocated"},
		"over the bound":   {TorchMeasured{Batch: 8, Steps: [][]TorchPhase{torchStep(690, 1000, 1201, 2)}}, 0, "reserved"},
		"under the cap":    {TorchMeasured{Batch: 8, ContextBytes: 50, Steps: [][]TorchPhase{torchStep(690, 1000, 1150, 2)}}, 1200, ""},
		"over the cap":     {TorchMeasured{Batch: 8, ContextBytes: 51, Steps: [][]TorchPhase{torchStep(690, 1000, 1150, 2)}}, 1200, "cap"},
		"memory ran out":   {TorchMeasured{OutOfMemory: "CUDA out of memory"}, 1200, "out of memory"},
		"out after a step": {TorchMeasured{OutOfMemory: "CUDA out of memory", Steps: [][]TorchPhase{torchStep(690, 1000, 1150, 2)}}, 0, "out of memory"},
	} {
		r, err := JudgeTorch(torchPlan(), "plan.json", &c.m, c.limit)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		failed := ""
		for _, k := range r.Checks {
			if !*k.OK {
				failed += k.Name
			}
		}
		if failed != c.failed || (r.Verdict == Refuted) != (failed != "") {
			t.Errorf("%s: failed %q, verdict %s, want %q", name, failed, r.Verdict, c.failed)
		}
	}
	if _, err := JudgeTorch(torchPlan(), "plan.json", &TorchMeasured{}, 0); err == nil {
		t.Error("no error where no step was measured")
	}
}

// TestTorchTimes: the first two steps warm up and do not count.
func TestTorchTimes(t *testing.T) {
	m := &TorchMeasured{Batch: 8, Steps: [][]TorchPhase{torchStep(900, 1000, 1100, 90), torchStep(690, 1000, 1100, 50), torchStep(690, 1000, 1100, 2), torchStep(695, 1000, 1100, 4)}}
	r, err := JudgeTorch(torchPlan(), "plan.json", m, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := r.Phased[0], (TorchPhaseInfo{"forward", 700, 695, 2, 3}); got != want {
		t.Errorf("forward is %+v, want %+v", got, want)
	}
	if r.Time.StepMs != 12 || r.Time.PredictedMs != 7 {
		t.Errorf("%v ms a step, %v predicted, want 12 and 7", r.Time.StepMs, r.Time.PredictedMs)
	}
}
