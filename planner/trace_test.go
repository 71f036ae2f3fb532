package planner

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/internal/trace"
	"github.com/memplan/memplan/liveness"
)

// An ev is what two timelines are compared by.
type ev struct {
	phase byte
	free  bool
	bytes int64
	op    string
}

// TestTraces compares the predicted timeline of a steady step, event by event,
// with the allocations and frees of real ones. SHOW=name prints the first
// differences of the traces whose name has that prefix.
func TestTraces(t *testing.T) {
	for _, c := range collections(t) {
		t.Run(c.name, func(t *testing.T) {
			files, err := filepath.Glob(filepath.Join(c.traces, "*.trace.xz"))
			if err != nil || len(files) == 0 {
				t.Fatalf("no traces in %s: %v", c.traces, err)
			}
			ckpt := map[string][]string{}
			for _, r := range c.runs(t) {
				if len(r.CkptModules) > 0 {
					ckpt[r.Name] = r.CkptModules
				}
			}
			var events, matched, bytes, matchedBytes, exact int64
			for _, f := range files {
				tr, err := trace.Read(f)
				if err != nil {
					t.Fatal(err)
				}
				want := traceEvents(tr)
				got, err := predicted(c.open(t, tr.Name), tr, ckpt[tr.Name])
				if err != nil {
					t.Errorf("%s: %v", filepath.Base(f), err)
					continue
				}
				n, nb, total, diff := align(want, got)
				rise, truth := highest(got), highest(want)
				t.Logf("%-44s %5d events, matched %6.2f%% of events %6.2f%% of bytes; rise %+.3f%%", filepath.Base(f), len(want), pct(n, int64(len(want))), pct(nb, total), 100*relative(rise, truth))
				if s := os.Getenv("SHOW"); s != "" && strings.HasPrefix(filepath.Base(f), s) {
					t.Log(diff)
				}
				events, matched, bytes, matchedBytes = events+int64(len(want)), matched+n, bytes+total, matchedBytes+nb
				if rise == truth {
					exact++
				}
			}
			t.Logf("%d traces: %.2f%% of events, %.2f%% of bytes matched; the rise of %d is exact to the byte", len(files), pct(matched, events), pct(matchedBytes, bytes), exact)
			if pct(matched, events) < 92 || exact*100 < int64(len(files))*60 {
				t.Errorf("the timeline got worse: %.2f%% of events matched, %d rises exact", pct(matched, events), exact)
			}
		})
	}
}

func pct(a, b int64) float64 { return 100 * float64(a) / float64(b) }

// traceEvents drops what a timeline does not show: the frees of the step
// before, and what the loop does after the step.
func traceEvents(tr *trace.Trace) []ev {
	var out []ev
	for _, e := range tr.Events {
		if e.Phase == 'Z' || e.Phase == 'E' || e.ID < 0 {
			continue
		}
		out = append(out, ev{e.Phase, e.Free, e.Bytes, e.Op + "/" + e.Inner + " " + e.Node})
	}
	return out
}

// predicted is the timeline of the same step as memplan sees it.
func predicted(m *Model, tr *trace.Trace, modules []string) ([]ev, error) {
	j, err := Config{Batch: tr.Batch, Precision: tr.Prec, Optimizer: tr.Opt}.resolve()
	if err != nil {
		return nil, err
	}
	var segs []train.Segment
	if tr.Ckpt != "" {
		for _, name := range modules {
			segs = append(segs, train.Segment{Modules: []string{name}})
		}
	}
	b, err := m.build(j, tr.Batch, segs)
	if err != nil {
		return nil, err
	}
	_, steady := liveness.Steps(b.Program)
	if err := liveness.Check(steady); err != nil {
		return nil, err
	}
	letters := [...]byte{program.ZeroGrad: 'Z', program.Forward: 'F', program.Loss: 'F', program.Backward: 'B', program.Update: 'O'}
	var out []ev
	for _, e := range steady.Events {
		n := &b.Nodes[e.Node]
		if n.Phase == program.ZeroGrad || n.Op == "del" {
			continue
		}
		out = append(out, ev{letters[n.Phase], e.Free, b.Storages[e.Storage].Bytes, n.Op + " " + n.Autograd + " " + n.Name + " " + n.Module})
	}
	return out, nil
}

func highest(evs []ev) int64 {
	var cur, most int64
	for _, e := range evs {
		if e.free {
			cur -= e.bytes
		} else {
			cur += e.bytes
		}
		most = max(most, cur)
	}
	return most
}

func same(a, b ev) bool { return a.phase == b.phase && a.free == b.free && a.bytes == b.bytes }

// window is how far apart two matching events may lie.
const window = 40

// align matches the longest common subsequence within a sliding window:
// greedily, the nearest partner wins. It returns the matched events and bytes,
// the bytes of want, and the first differences in words.
func align(want, got []ev) (n, bytes, total int64, diff string) {
	var sb strings.Builder
	shown := 0
	show := func(who string, e ev) {
		if shown < 60 {
			shown++
			sign := "+"
			if e.free {
				sign = "-"
			}
			sb.WriteString("\n" + who + " " + string(e.phase) + " " + sign + " " + strconv.FormatInt(e.bytes, 10) + " " + e.op)
		}
	}
	for _, e := range want {
		total += e.bytes
	}
	i, j := 0, 0
	for i < len(want) && j < len(got) {
		if same(want[i], got[j]) {
			n++
			bytes += want[i].bytes
			i, j = i+1, j+1
			continue
		}
		di, dj := nearest(want[i:], got[j:])
		for ; di > 0; di-- {
			show("truth", want[i])
			i++
		}
		for ; dj > 0; dj-- {
			show(" mine", got[j])
			j++
		}
	}
	return n, bytes, total, sb.String()
}

// nearest finds the fewest events to skip on both sides until three in a row
// agree.
func nearest(a, b []ev) (int, int) {
	for d := 1; d < window; d++ {
		for i := 0; i <= d; i++ {
			if k := d - i; i < len(a) && k < len(b) && agree(a[i:], b[k:]) {
				return i, k
			}
		}
	}
	return min(len(a), 1), min(len(b), 1)
}

func agree(a, b []ev) bool {
	for k := range 3 {
		if k < len(a) && k < len(b) && !same(a[k], b[k]) {
			return false
		}
	}
	return true
}
