package snapshot

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
	"github.com/memplan/memplan/internal/trace"
	"github.com/memplan/memplan/planner"
)

// real makes a snapshot of a recorded step of PyTorch: what was there before is as the
// plan has it, for the recording begins with the step.
func real(v *planner.StepView, tr *trace.Trace) *Snapshot {
	h := newHistory()
	old := map[int64][]Block{}
	for _, id := range v.Before {
		if n := v.Storages[id][0]; n > 0 {
			b := h.alloc(n, 0, false)
			old[n] = append(old[n], b)
		}
	}
	made := map[int]Block{}
	for _, e := range tr.Events {
		switch {
		case e.Phase == 'E' || e.Bytes == 0:
		case e.Kind == trace.Alloc:
			made[e.ID] = h.alloc(e.Bytes, 0, true)
		case e.Kind == trace.Free:
			h.free(made[e.ID])
		case e.Kind == trace.FreeOld && len(old[e.Bytes]) > 0:
			last := len(old[e.Bytes]) - 1 // gradients are made after parameters and states
			h.free(old[e.Bytes][last])
			old[e.Bytes] = old[e.Bytes][:last]
		}
	}
	return h.snapshot()
}

// Real steps are recognised, all but a little; and the difference of the peaks is that
// of what the recording and the plan rise above the step's start.
func TestRealSteps(t *testing.T) {
	testdata.Sequential(t)
	dir := filepath.Join("..", "..", "planner", "testdata", "zoo")
	files, err := filepath.Glob(filepath.Join(dir, "traces", "*.fp32.adamw.trace.xz"))
	if err != nil || len(files) < 20 {
		t.Fatalf("%d traces, %v", len(files), err)
	}
	var found, of, bytes, ofBytes int64
	for _, f := range files {
		tr, err := trace.Read(f)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), tr.Name+".onnx")
		if err := os.WriteFile(path, testdata.Unpacked(t, filepath.Join(dir, "models", tr.Name+".onnx.xz")), 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := planner.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		a, err := m.Analyze(t.Context(), planner.Config{Batch: tr.Batch, Precision: tr.Prec, Optimizer: tr.Opt, Runtime: "torch-2.11"})
		if err != nil {
			t.Fatal(err)
		}
		s := real(a.View(), tr)
		c, err := Compare(s, 1, a)
		if err != nil {
			t.Fatal(err)
		}
		consistent(t, c)
		k := c.Matched
		found, of, bytes, ofBytes = found+int64(k.Allocations), of+int64(k.Of), bytes+k.Bytes, ofBytes+k.OfBytes
		extra := int64(0)
		for _, g := range c.Unplanned {
			extra += g.Bytes
		}
		t.Logf("%-24s %5d of %5d allocations, %6.2f%% of bytes; %+d bytes, %d more in %d groups; %q", tr.Name, k.Allocations, k.Of, 100*float64(k.Bytes)/float64(k.OfBytes), c.DeltaBytes, extra, len(c.Unplanned), c.Warnings)
		if k.Bytes*100 < 98*k.OfBytes || len(c.Warnings) > 0 {
			t.Errorf("%s: %+v, %q", tr.Name, k, c.Warnings)
		}
	}
	t.Logf("%.2f%% of allocations, %.2f%% of bytes", 100*float64(found)/float64(of), 100*float64(bytes)/float64(ofBytes))
	if found*1000 < 995*of || bytes*1000 < 998*ofBytes {
		t.Errorf("fewer are found: %d of %d allocations, %d of %d bytes", found, of, bytes, ofBytes)
	}
}
