package trace

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

func files(t testing.TB, elem ...string) []string {
	dir := testdata.Shared(t, append([]string{"truth", "traces"}, elem...)...)
	out, err := filepath.Glob(filepath.Join(dir, "*.trace.xz"))
	if err != nil || len(out) == 0 {
		t.Fatalf("no traces in %s: %v", dir, err)
	}
	return out
}

// TestRead reads every trace and compares its events with its header: their
// rise is requested_rise, which the recording program counted itself.
func TestRead(t *testing.T) {
	all := files(t)
	if len(all) != 44 {
		t.Errorf("%d traces", len(all))
	}
	for _, f := range all {
		tr, err := Read(f)
		if err != nil {
			t.Error(err)
			continue
		}
		if !strings.HasPrefix(filepath.Base(f), tr.Name+".b") || tr.AllocatedBefore == 0 || tr.AllocatedPeak < tr.AllocatedBefore || tr.Strategy != "" {
			t.Errorf("%s: header %+v", f, *tr)
		}
		var live, rise int64
		n := 0
		for _, e := range tr.Events {
			if e.Free != (e.Kind == Free || e.Kind == FreeOld) {
				t.Fatalf("%s: %+v", f, e)
			}
			if e.Free {
				live -= e.Bytes
			} else if e.Kind == Alloc {
				if e.ID != n || e.Op == "" || e.Inner == "" || e.Node == "" {
					t.Fatalf("%s: %+v", f, e)
				}
				n++
				live += e.Bytes
			}
			rise = max(rise, live)
		}
		if rise != tr.RequestedRise || n != tr.Allocations {
			t.Errorf("%s: rise %d, header %d; %d allocations, %d counted", f, rise, tr.RequestedRise, n, tr.Allocations)
		}
	}
}

// TestDistributed reads the traces of two GPUs, which also give the stream.
func TestDistributed(t *testing.T) {
	streams := 0
	for _, f := range files(t, "distributed") {
		tr, err := Read(f)
		if err != nil {
			t.Error(err)
			continue
		}
		if tr.Strategy == "" || tr.Allocations == 0 {
			t.Errorf("%s: header %+v", f, *tr)
		}
		most := 0
		for _, e := range tr.Events {
			most = max(most, e.Stream)
			if e.Kind == Alloc && strings.HasPrefix(e.Op, "s0") {
				t.Fatalf("%s: the stream stands in %+v", f, e)
			}
		}
		if most > 0 {
			streams++
		}
	}
	if streams == 0 {
		t.Error("no run used a second stream")
	}
}

const head = `{"name": "m", "batch": 2, "opt": "adamw"}` + "\n"

func TestParse(t *testing.T) {
	tr, err := Parse(strings.NewReader(head +
		"Z - old 400 grad a b\nF + 0 100 linear addmm - m.py:7\nF S 20971520\nB + 1 400 s1 mm mm AddmmBackward0 -\nB - 0\nE s 20971520\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []Event{
		{Kind: FreeOld, Phase: 'Z', Free: true, ID: -1, Bytes: 400, Op: "grad a b"},
		{Kind: Alloc, Phase: 'F', ID: 0, Bytes: 100, Op: "linear", Inner: "addmm", Node: "-", Where: "m.py:7"},
		{Kind: TakeSegment, Phase: 'F', ID: -1, Bytes: 20 << 20},
		{Kind: Alloc, Phase: 'B', ID: 1, Bytes: 400, Stream: 1, Op: "mm", Inner: "mm", Node: "AddmmBackward0", Where: "-"},
		{Kind: Free, Phase: 'B', Free: true, ID: 0, Bytes: 100},
		{Kind: GiveSegment, Phase: 'E', ID: -1, Bytes: 20 << 20},
	}
	if len(tr.Events) != len(want) {
		t.Fatalf("%d events: %+v", len(tr.Events), tr.Events)
	}
	for i := range want {
		if tr.Events[i] != want[i] {
			t.Errorf("event %d: %+v, want %+v", i, tr.Events[i], want[i])
		}
	}
	if name, ok := tr.Events[0].Grad(); !ok || name != "a b" {
		t.Errorf("gradient of %q, %v", name, ok)
	}
	if _, ok := tr.Events[4].Grad(); ok {
		t.Error("a gradient")
	}
}

func TestParseErrors(t *testing.T) {
	tests := []struct{ in, err string }{
		{"{", "line 1"},
		{head + "F + 0", "line 2"},
		{head + "F + 1 100 a b - -", "follows 0 others"},
		{head + "F + 0 -1 a b - -", "not a number"},
		{head + "F + 0 9999999999999999999 a b - -", "not a number"},
		{head + "F - 0", "not live"},
		{head + "F + 0 100 a b - -\nF - 0\nF - 0", "line 4"},
		{head + "F - -1", "not a number"},
		{head + "B + 0 100 a b - -\nF - 0", "too late"},
		{head + "X + 0 100 a b - -", "unknown"},
		{head + "F ? 1", "unknown"},
		{head + "F - old x grad a", "not a number"},
		{head + "F + 0 100 a b", "4 fields"},
	}
	for _, tt := range tests {
		if _, err := Parse(strings.NewReader(tt.in)); err == nil || !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%q: %v, want %q", tt.in, err, tt.err)
		}
	}
	if _, err := Read("testdata/residents.json"); err == nil {
		t.Error("JSON read as xz")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(head + "Z - old 400 grad a\nF + 0 100 a b - -\nB + 1 400 mm mm - -\nB - 0\n")
	f.Fuzz(func(t *testing.T, s string) {
		tr, err := Parse(strings.NewReader(s))
		if err != nil {
			return
		}
		for _, e := range tr.Events {
			if e.Bytes < 0 || e.ID >= tr.Allocations {
				t.Fatalf("%+v of %d allocations", e, tr.Allocations)
			}
		}
		tr.Name, tr.Opt = "mlp", "adamw"
		if run, err := tr.Run(Hopper); err == nil {
			checkRun(t, run)
		}
	})
}

// TestRun rebuilds all runs.
func TestRun(t *testing.T) {
	for _, f := range files(t) {
		tr, err := Read(f)
		if err != nil {
			t.Fatal(err)
		}
		run, err := tr.Run(Hopper)
		if err != nil {
			t.Errorf("%s: %v", f, err)
			continue
		}
		checkRun(t, run)
		var workspaces, states int
		for _, op := range run.First {
			switch {
			case op.Event >= 0:
			case op.Phase == 'O':
				states++
			default:
				workspaces++
			}
		}
		grads := 0
		for _, op := range run.Steady {
			if op.Phase == 'Z' {
				grads++
			}
		}
		// unet has no matrix product; llama_250m's have no bias.
		want := map[string]int{"unet": 0, "llama_250m": 2}
		least, special := want[tr.Name]
		if !special {
			least = 3
		}
		if workspaces < least || workspaces > least+1 || workspaces > least && tr.Ckpt == "" {
			t.Errorf("%s: %d workspaces", f, workspaces)
		}
		if tr.Opt == "adamw" && states != 2*grads || tr.Opt == "sgd" && states != 0 {
			t.Errorf("%s: %d states for %d gradients", f, states, grads)
		}
	}
	if _, err := Residents("nobody", 1); err == nil {
		t.Error("residents of nobody")
	}
}

// checkRun plays a run on slots: each is empty when it is filled and full
// when it is freed.
func checkRun(t testing.TB, run *Run) {
	t.Helper()
	s, handles := &slots{t: t}, make([]int, run.Slots)
	n := 0
	for _, ops := range [][]Op{run.Setup, run.Step(0), run.Step(1), run.Step(2)} {
		if err := Play(s, handles, ops, func(Op) { n++ }); err != nil {
			t.Fatal(err)
		}
	}
	if want := len(run.Setup) + len(run.First) + 2*len(run.Steady); n != want {
		t.Fatalf("%d operations, want %d", n, want)
	}
	filled := make([]bool, run.Slots)
	for i, ops := range [][]Op{run.Setup, run.First, run.Steady, run.Steady} {
		for _, op := range ops {
			if filled[op.Slot] != op.Free {
				t.Fatalf("part %d: %+v of a slot that is full: %v", i, op, filled[op.Slot])
			}
			filled[op.Slot] = !op.Free
		}
	}
}

// slots is an allocator whose handles may be freed once.
type slots struct {
	t    testing.TB
	live []bool
}

func (s *slots) Alloc(int64) (int, error) {
	s.live = append(s.live, true)
	return len(s.live) - 1, nil
}

func (s *slots) Free(h int) {
	if !s.live[h] {
		s.t.Fatalf("%d freed twice", h)
	}
	s.live[h] = false
}
