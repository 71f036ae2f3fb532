package snapshot

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
	"github.com/memplan/memplan/planner"
)

// A cardRun is a line of steps.jsonl.
type cardRun struct {
	Run, Model, Kind, Error string
	Batch                   int64
	Steps                   []struct{ Requested, Reserved int64 }
}

// onCard answers for a run: the plan beside its model if it has one.
func onCard(t *testing.T, dir string, r *cardRun) *planner.Answer {
	t.Helper()
	model := filepath.Join(dir, r.Model+".onnx")
	if err := os.WriteFile(model, testdata.Unpacked(t, filepath.Join("testdata", r.Model+".onnx.xz")), 0o600); err != nil {
		t.Fatal(err)
	}
	name := strings.TrimSuffix(r.Run, "_"+r.Kind)
	m, cfg, err := (*planner.Model)(nil), planner.Config{Batch: r.Batch, Checkpoint: "none"}, error(nil)
	if name == r.Model {
		m, err = planner.Open(model)
	} else {
		plan := filepath.Join(dir, name+".json")
		data, e := os.ReadFile(filepath.Join("testdata", name+".json"))
		if e != nil {
			t.Fatal(e)
		}
		if e := os.WriteFile(plan, data, 0o600); e != nil {
			t.Fatal(e)
		}
		m, cfg, err = planner.OpenPlan(plan, false)
	}
	if err != nil {
		t.Fatal(err)
	}
	a, err := m.Analyze(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestCard: snapshots that PyTorch wrote on a GPU. Their peaks are those of the
// allocator's own counters, the plan's step is in them, and what a run keeps is named.
func TestCard(t *testing.T) {
	f, err := os.Open(filepath.Join("testdata", "steps.jsonl"))
	if os.IsNotExist(err) {
		t.Skip("no snapshots: scripts/gpu/snapshot.py makes them on a GPU")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir, runs := t.TempDir(), 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var r cardRun
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if r.Run == "" || r.Error != "" { // the head, or a library that was not there
			continue
		}
		runs++
		s, err := Decode(testdata.Unpacked(t, filepath.Join("testdata", r.Run+".pickle.xz")), 1<<30)
		if err != nil {
			t.Fatalf("%s: %v", r.Run, err)
		}
		c, err := Compare(s, s.Busiest(), onCard(t, dir, &r))
		if err != nil {
			t.Fatal(err)
		}
		consistent(t, c)
		var requested, reserved int64
		for _, x := range r.Steps {
			requested, reserved = max(requested, x.Requested), max(reserved, x.Reserved)
		}
		t.Logf("%-24s %d requested, the counters %d, the plan %d; %d reserved, the counters %d; %+v; %q", r.Run, c.Snapshot.RequestedBytes, requested, c.Plan.RequestedBytes, c.Snapshot.ReservedBytes, reserved, c.Matched, c.Warnings)
		if last := r.Steps[len(r.Steps)-1].Requested; c.Snapshot.RequestedBytes != requested && (r.Kind != "late" || c.Snapshot.RequestedBytes != last) {
			t.Errorf("%s: the peak is %d, the counters say %d, and %d in the last step", r.Run, c.Snapshot.RequestedBytes, requested, last)
		}
		if c.Snapshot.ReservedBytes != reserved {
			t.Errorf("%s: %d reserved, the counters say %d", r.Run, c.Snapshot.ReservedBytes, reserved)
		}
		if c.Matched.Bytes*1000 < 975*c.Matched.OfBytes {
			t.Errorf("%s: %+v", r.Run, c.Matched)
		}
		kept := map[string]int{}
		for _, g := range c.Unplanned {
			if strings.HasPrefix(g.Where, "snapshot.py:") {
				kept[g.Where[strings.LastIndex(g.Where, " ")+1:]] += g.Tensors
			}
		}
		if r.Kind == "kept" != (kept["keep"] >= 2 && kept["__init__"] > 0) {
			t.Errorf("%s: kept %v", r.Run, kept)
		}
		if off := c.DeltaBytes; r.Kind != "kept" && max(off, -off)*50 > c.Plan.RequestedBytes {
			t.Errorf("%s: differs by %d of %d bytes: %+v and %+v", r.Run, off, c.Plan.RequestedBytes, c.Unplanned, c.Missing)
		}
	}
	if runs < 3 {
		t.Errorf("%d snapshots", runs)
	}
}

// TestForgotten: a run without the checkpoints of its plan holds activations longer,
// and nothing else.
func TestForgotten(t *testing.T) {
	s, err := Decode(testdata.Unpacked(t, filepath.Join("testdata", "gpt2_all.pickle.xz")), 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Compare(s, 0, onCard(t, t.TempDir(), &cardRun{Run: "gpt2_checkpointed_all", Model: "gpt2", Kind: "all", Batch: 8}))
	if err != nil {
		t.Fatal(err)
	}
	consistent(t, c)
	longer := int64(0)
	for _, g := range c.Unplanned {
		if g.Reason == KeptLonger && g.Where != "" {
			longer += g.Bytes
		}
	}
	if c.Within || longer*10 < 9*c.DeltaBytes || c.DeltaBytes < 80<<20 { // the checkpoints save 91 MiB
		t.Errorf("%d more, %d of it in use longer than planned: %+v", c.DeltaBytes, longer, c.Unplanned)
	}
}
