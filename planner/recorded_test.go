package planner

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/internal/testdata"
	"github.com/memplan/memplan/liveness"
)

// A recorded run is what scripts/steps/fake_step.py saw of a run without a
// GPU: the most bytes that lived, without library scratch and without what
// kernels allocate inside.
type recorded struct {
	Name, Library, Prec, Opt, Mode, Loss string
	Batch, Peak                          int64
	Err                                  string
}

func (r *recorded) config() Config {
	c := Config{Batch: r.Batch, Mode: r.Mode, Precision: r.Prec, Optimizer: r.Opt, GPU: "h200", Runtime: measuredRelease}
	if r.Mode == "train" {
		c.Loss = r.Loss
	}
	return c
}

// recordedPeaks are the same in memplan's steps: without what lives inside one
// node alone, and with it. A formula's temporaries are in between: the recorder
// sees those between two ATen calls and not those of one kernel.
func recordedPeaks(m *Model, c Config) (least, most int64, err error) {
	j, err := c.resolve()
	if err != nil {
		return 0, 0, err
	}
	b, err := m.build(j, c.Batch, nil)
	if err != nil {
		return 0, 0, err
	}
	first, steady := liveness.Steps(b.Program)
	for _, t := range []*liveness.Timeline{first, steady} {
		least, most = max(least, withoutScratch(t, true)), max(most, withoutScratch(t, false))
	}
	return least, most, nil
}

// withoutScratch is the highest sum of rounded live bytes of a step, library
// workspaces left out, and on request what a node allocates and frees itself.
func withoutScratch(t *liveness.Timeline, outside bool) int64 {
	p := t.Program
	skip := make([]bool, len(p.Storages))
	var cur int64
	for i := range p.Storages {
		s := &p.Storages[i]
		skip[i] = s.Category == program.Workspace
		if !skip[i] && (s.Life == program.Static || !t.First && s.Life != program.Step) {
			cur += liveness.Rounded(s.Bytes)
		}
	}
	for i := range p.Nodes {
		for _, ev := range p.Nodes[i].Events {
			skip[ev.Storage] = skip[ev.Storage] || outside && ev.Free && p.Storages[ev.Storage].Category == program.Temporaries
		}
	}
	most := cur
	for _, ev := range t.Events {
		if skip[ev.Storage] {
			continue
		}
		if n := liveness.Rounded(t.Bytes(ev)); ev.Free {
			cur -= n
		} else {
			cur += n
			most = max(most, cur)
		}
	}
	return most
}

// beside is the relative distance of want to what lies between least and most.
func beside(least, most, want int64) float64 {
	switch {
	case want < least:
		return relative(least, want)
	case want > most:
		return relative(most, want)
	}
	return 0
}

// A foretold run is what memplan said of it: its peak, and the same without what the recorder does not see.
type foretold struct {
	forecast
	Least, Most int64
}

func foretell(t *testing.T, c *collection, r *recorded) *foretold {
	f := &foretold{forecast: forecast{Name: r.Name, Batch: r.Batch, Prec: r.Prec, Opt: r.Opt, Mode: r.Mode}}
	m := c.open(t, r.Name)
	rep, err := m.Analyze(t.Context(), r.config())
	if err == nil {
		f.Least, f.Most, err = recordedPeaks(m, r.config())
	}
	if err != nil {
		f.Error = err.Error()
		return f
	}
	f.Allocated, f.Reserved, f.Bound = rep.Peak.AllocatedBytes, rep.Peak.ReservedBytes, rep.Peak.UpperBoundBytes
	for _, w := range rep.Warnings {
		f.Warnings = append(f.Warnings, w.Code)
	}
	return f
}

// A nearness is a foretold run beside what was recorded.
type nearness struct {
	run             *recorded
	error           float64
	refused, silent bool // no bytes; more than 2% off with no warning
}

func nearTo(r *recorded, f *foretold) nearness {
	n := nearness{run: r, refused: f.Error != ""}
	if !n.refused {
		n.error = beside(f.Least, f.Most, r.Peak)
		n.silent = math.Abs(n.error) > 0.02 && len(f.Warnings) == 0
	}
	return n
}

// recordedRound compares round 4: what was foretold before anybody looked, and today.
func recordedRound(t *testing.T) (first, today []nearness) {
	dir := filepath.Join("testdata", "rounds")
	c := &collection{name: "rounds", models: map[string]*Model{}, model: func(name string) []byte { return readFile(t, filepath.Join(dir, "round4", name+".onnx.xz")) }}
	said := map[string]*foretold{}
	for _, f := range readLines[foretold](t, filepath.Join(dir, "recorded.first.jsonl.xz")) {
		said[fmt.Sprint(f.Name, f.Batch, f.Prec, f.Opt, f.Mode)] = &f
	}
	for _, r := range readLines[recorded](t, filepath.Join(dir, "recorded.jsonl.xz")) {
		f := said[fmt.Sprint(r.Name, r.Batch, r.Prec, r.Opt, r.Mode)]
		if f == nil {
			t.Fatalf("%s: nothing was foretold before the run was recorded", r.Name)
		}
		now := foretell(t, c, &r)
		first, today = append(first, nearTo(&r, f)), append(today, nearTo(&r, now))
		n := &today[len(today)-1]
		t.Logf("4 %-20s %-26s %5d %-8s %-5s %-5s live %+8.2f%% first %+8.2f%% %d to %d, recorded %d %v %s", r.Library, r.Name, r.Batch, r.Prec, r.Opt, r.Mode, 100*n.error, 100*first[len(first)-1].error, now.Least, now.Most, r.Peak, now.Warnings, now.Error)
	}
	return first, today
}

// recordedTable writes a row for all runs and for each library.
func recordedTable(all []nearness) string {
	var b strings.Builder
	b.WriteString("| | models | runs | refused | live bytes: median | 95% of runs | worst | within 1% in all runs | 2% off, no warning |\n|---|---|---|---|---|---|---|---|---|\n")
	libraries := []string{""}
	for _, n := range all {
		if !slices.Contains(libraries, n.run.Library) {
			libraries = append(libraries, n.run.Library)
		}
	}
	slices.Sort(libraries)
	for _, l := range libraries {
		recordedRow(&b, l, all)
	}
	return b.String()
}

func recordedRow(b *strings.Builder, library string, all []nearness) {
	right := map[string]bool{}
	var errs []float64
	var runs, silent, within int
	for _, n := range all {
		if library != "" && n.run.Library != library {
			continue
		}
		runs++
		before, seen := right[n.run.Name]
		right[n.run.Name] = !n.refused && math.Abs(n.error) <= 0.01 && (before || !seen)
		if n.silent {
			silent++
		}
		if !n.refused {
			errs = append(errs, n.error)
		}
	}
	for _, ok := range right {
		if ok {
			within++
		}
	}
	median, p95, worst := summary(errs)
	fmt.Fprintf(b, "| %s | %d | %d | %d | %.3f%% | %.2f%% | %.2f%% | %d of %d | %d |\n", cmp.Or(library, "**all**"), len(right), runs, runs-len(errs), 100*median, 100*p95, 100*worst, within, len(right), silent)
}

// TestForetell writes what memplan says of runs before anybody looks at what was recorded:
// MODELS=DIR RUNS=FILE OUT=FILE go test ./planner -run TestForetell.
func TestForetell(t *testing.T) {
	dir := os.Getenv("MODELS")
	if dir == "" {
		t.Skip("MODELS, RUNS and OUT name what to write")
	}
	f, err := os.Create(os.Getenv("OUT"))
	if err != nil {
		t.Fatal(err)
	}
	c := &collection{name: "unseen", models: map[string]*Model{}, model: func(name string) []byte { return readFile(t, filepath.Join(dir, name+".onnx.xz")) }}
	out := json.NewEncoder(f)
	for _, r := range readLines[recorded](t, os.Getenv("RUNS")) {
		if _, err := os.Stat(filepath.Join(dir, r.Name+".onnx.xz")); err != nil {
			continue
		}
		if err := out.Encode(foretell(t, c, &r)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestRecorded holds today's figures of round 4 to a limit.
func TestRecorded(t *testing.T) {
	testdata.Sequential(t)
	_, today := recordedRound(t)
	near, silent := 0, 0
	for _, n := range today {
		if math.Abs(n.error) <= 0.01 && !n.refused {
			near++
		}
		if n.silent {
			silent++
		}
	}
	t.Logf("%d of %d runs within 1%%, %d off by 2%% with no warning", near, len(today), silent)
	if len(today) < 100 || near*100 < len(today)*88 || silent*100 > len(today)*8 {
		t.Error("it got worse")
	}
}
