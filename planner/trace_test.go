package planner

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/internal/testdata"
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
	testdata.Sequential(t)
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
				if s := os.Getenv("SHOW"); s != "" && (s == "all" || strings.HasPrefix(filepath.Base(f), s)) {
					t.Log(diff)
				}
				events, matched, bytes, matchedBytes = events+int64(len(want)), matched+n, bytes+total, matchedBytes+nb
				if rise == truth {
					exact++
				}
			}
			t.Logf("%d traces: %.2f%% of events, %.2f%% of bytes matched; the rise of %d is exact to the byte", len(files), pct(matched, events), pct(matchedBytes, bytes), exact)
			if pct(matched, events) < 98.5 || pct(matchedBytes, bytes) < 99.3 || exact*100 < int64(len(files))*90 {
				t.Errorf("the timeline got worse: %.2f%% of events, %.2f%% of bytes matched, %d rises exact", pct(matched, events), pct(matchedBytes, bytes), exact)
			}
		})
	}
}

func pct(a, b int64) float64 { return 100 * float64(a) / float64(b) }

// traceEvents drops what a timeline does not show: the frees of the step
// before, and what the loop does after the step.
func traceEvents(tr *trace.Trace) []ev {
	var out []ev
	maker := map[int]string{} // of a free: what allocated it
	for _, e := range tr.Events {
		if e.Phase == 'Z' || e.Phase == 'E' || e.ID < 0 {
			continue
		}
		if !e.Free {
			maker[e.ID] = e.Op + "/" + e.Inner + " " + e.Node
		}
		out = append(out, ev{e.Phase, e.Free, e.Bytes, maker[e.ID]})
	}
	return out
}

// predicted is the timeline of the same step as memplan sees it.
func predicted(m *Model, tr *trace.Trace, modules []string) ([]ev, error) {
	j, err := Config{Batch: tr.Batch, Precision: tr.Prec, Optimizer: tr.Opt, Runtime: measuredRelease}.resolve()
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

// same compares bytes as the allocator rounds them: cuDNN asks for workspaces of
// odd sizes.
func same(a, b ev) bool {
	return a.phase == b.phase && a.free == b.free && (a.bytes+511)/512 == (b.bytes+511)/512
}

// align finds the longest common subsequence of the events, phase by phase. It
// returns the matched events and bytes, the bytes of want, and the differences
// in words.
func align(want, got []ev) (n, bytes, total int64, diff string) {
	var sb strings.Builder
	for _, phase := range "FBO" {
		a, b := inPhase(want, byte(phase)), inPhase(got, byte(phase))
		// longest[i][j] is the length for a[i:] and b[j:].
		longest := make([][]uint16, len(a)+1)
		for i := range longest {
			longest[i] = make([]uint16, len(b)+1)
		}
		for i := len(a) - 1; i >= 0; i-- {
			for j := len(b) - 1; j >= 0; j-- {
				if same(a[i], b[j]) {
					longest[i][j] = longest[i+1][j+1] + 1
				} else {
					longest[i][j] = max(longest[i+1][j], longest[i][j+1])
				}
			}
		}
		i, j := 0, 0
		for i < len(a) || j < len(b) {
			switch {
			case i < len(a) && j < len(b) && same(a[i], b[j]):
				n++
				bytes += a[i].bytes
				i, j = i+1, j+1
			case j == len(b) || i < len(a) && longest[i+1][j] >= longest[i][j+1]:
				a[i].show(&sb, "truth")
				i++
			default:
				b[j].show(&sb, " mine")
				j++
			}
		}
	}
	for _, e := range want {
		total += e.bytes
	}
	return n, bytes, total, sb.String()
}

func inPhase(evs []ev, phase byte) (out []ev) {
	for _, e := range evs {
		if e.phase == phase {
			out = append(out, e)
		}
	}
	return out
}

func (e ev) show(sb *strings.Builder, who string) {
	sign := "+"
	if e.free {
		sign = "-"
	}
	fmt.Fprintf(sb, "\n%s %c %s %d %s", who, e.phase, sign, e.bytes, e.op)
}
