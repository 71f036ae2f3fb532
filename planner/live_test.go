package planner

import (
	"math"
	"path/filepath"
	"testing"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/internal/testdata"
	"github.com/memplan/memplan/liveness"
)

// TestLive compares the most bytes that live at once in an inference with what
// PyTorch's own run of the model shows (scripts/pytorch/live_reference.py): how long
// Python's variables keep tensors alive decides them. Their code is known for
// the models here (graph/python/libraries.txt), but not all of what it does.
func TestLive(t *testing.T) {
	testdata.Sequential(t)
	type truth struct {
		Name        string
		Batch, Peak int64
	}
	want := map[string]truth{}
	for _, r := range readLines[truth](t, filepath.Join("testdata", "live.jsonl")) {
		want[r.Name] = r
	}
	var n, near, low int
	var errs []float64
	listed := func(name string) bool { return want[name].Peak > 0 }
	eachArchived(t, listed, func(name string, m *Model) {
		w := want[name]
		e := relative(livePeak(t, m, w.Batch), w.Peak)
		t.Logf("%-32s %+7.2f%%", w.Name, 100*e)
		errs = append(errs, e)
		n++
		if math.Abs(e) <= 0.01 {
			near++
		}
		if e < -0.05 {
			low++
		}
	})
	median, p95, worst := summary(errs)
	t.Logf("%d models: %d within 1%%, %d more than 5%% too low; median %.2f%%, 95%% of them %.1f%%, worst %.1f%%", n, near, low, 100*median, 100*p95, 100*worst)
	if n < 150 || near*100 < n*70 || low*100 > n*20 {
		t.Error("it got worse")
	}
}

// livePeak is the highest sum of what an inference allocates and holds,
// without library scratch.
func livePeak(t *testing.T, m *Model, batch int64) int64 {
	j, err := Config{Batch: batch, Mode: "infer", Precision: "fp32", Runtime: measuredRelease}.resolve()
	if err != nil {
		t.Fatal(err)
	}
	b, err := m.build(j, batch, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, steady := liveness.Steps(b.Program)
	var now, most int64
	for _, ev := range steady.Events {
		s := &b.Storages[ev.Storage]
		if s.Category == program.Workspace || s.Life != program.Step {
			continue
		}
		if size := liveness.Rounded(s.Bytes); ev.Free {
			now -= size
		} else {
			now += size
			most = max(most, now)
		}
	}
	return most
}
