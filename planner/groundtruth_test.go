package planner

import (
	"bufio"
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/internal/testdata"
)

// A truth is one measured run of step_memory.jsonl.
type truth struct {
	Name, Prec, Opt, Mode, Ckpt string
	Batch                       int64
	Peak, Reserved              int64
	CkptModules                 []string `json:"ckpt_modules"`
	Saved                       int64    `json:"saved_unique_storage"`
	Steady                      struct {
		Before, AfterFwd, AfterBwd, AfterOpt, FwdPeak, BwdPeak, OptPeak int64
	}
}

func readTruth(t *testing.T) []truth {
	f, err := os.Open(testdata.Shared(t, "truth", "step_memory.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []truth
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var r truth
		if err := json.Unmarshal(sc.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

// optimizers maps the names of the measurements to ours.
var optimizers = map[string]string{"sgdm": "sgd-momentum"}

func (r *truth) config() Config {
	c := Config{Batch: r.Batch, Mode: r.Mode, Precision: r.Prec, Optimizer: r.Opt, Checkpoint: "none"}
	if o := optimizers[r.Opt]; o != "" {
		c.Optimizer = o
	}
	for _, m := range r.CkptModules {
		c.Segments = append(c.Segments, train.Segment{Modules: []string{m}})
	}
	return c
}

// TestGroundTruth compares predicted peaks with those measured on a GPU.
func TestGroundTruth(t *testing.T) {
	models := map[string]*Model{}
	groups := map[string][]float64{}
	for _, r := range readTruth(t) {
		m := models[r.Name]
		if m == nil {
			var err error
			if m, err = Open(testdata.Shared(t, "models", r.Name+".dyn-train.onnx")); err != nil {
				t.Fatal(err)
			}
			models[r.Name] = m
		}
		rep, err := m.Analyze(t.Context(), r.config())
		if err != nil {
			t.Errorf("%s: %v", r.Name, err)
			continue
		}
		e, er := relative(rep.Peak.AllocatedBytes, r.Peak), relative(rep.Peak.ReservedBytes, r.Reserved)
		kind := r.Mode + " " + r.Prec + " " + r.Opt + " " + r.Ckpt
		group := r.Prec
		switch {
		case r.Mode == "infer":
			group = "infer"
		case r.Ckpt != "":
			group = "checkpointed"
		case r.Prec == "fp32" && (r.Opt == "sgd" || r.Opt == "adamw"):
			group = "fp32 sgd, adamw"
		}
		groups[group] = append(groups[group], e)
		groups[group+" reserved"] = append(groups[group+" reserved"], er)
		t.Logf("%-14s %5d %-28s allocated %12d of %12d %+7.3f%%  reserved %+7.2f%%  saved %+d", r.Name, r.Batch, kind, rep.Peak.AllocatedBytes, r.Peak, 100*e, 100*er, rep.SavedBytes-r.Saved)
	}
	limits := map[string]struct{ median, worst float64 }{"fp32 sgd, adamw": {0.01, 0.03}, "checkpointed": {0.05, 0.05}}
	names := make([]string, 0, len(groups))
	for n := range groups {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		med, worst := summary(groups[n])
		t.Logf("%-28s %3d runs: median %.3f%%, worst %.2f%%", n, len(groups[n]), 100*med, 100*worst)
		if l, ok := limits[n]; ok && (med > l.median || worst > l.worst) {
			t.Errorf("%s: median %.3f%% of at most %.1f%%, worst %.2f%% of at most %.1f%%", n, 100*med, 100*l.median, 100*worst, 100*l.worst)
		}
	}
}

func relative(got, want int64) float64 { return float64(got-want) / float64(want) }

func summary(errs []float64) (median, worst float64) {
	abs := make([]float64, len(errs))
	for i, e := range errs {
		abs[i] = math.Abs(e)
	}
	slices.Sort(abs)
	return abs[len(abs)/2], abs[len(abs)-1]
}
