package planner

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A spreadRun is a plan that memplan.parallelize applied on two GPUs, with what
// memplan.measure said.
type spreadRun struct {
	Name, Parallel string
	Batch          int64
	Regions        int
	Base           int64
	Predicted      []RankInfo
	Ranks          []struct{ Allocated, Reserved int64 }
	Err            string
}

// A capRun is a training under a cap on what the allocator may reserve: at the
// batch that was chosen, or at one more than 2% larger.
type capRun struct {
	Kind, Name, Strategy string
	Batch, Cap, Outside  int64
	Ran                  *bool // false: out of memory
	Ranks                []json.RawMessage
}

// lines reads a file of the runs on two GPUs, whose first line says how they were made.
func lines[T any](t *testing.T, name string) (out []T) {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "distributed", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for first := true; s.Scan(); first = false {
		var r T
		if first {
			continue
		}
		if err := json.Unmarshal(s.Bytes(), &r); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		out = append(out, r)
	}
	if len(out) == 0 || s.Err() != nil {
		t.Fatalf("%s: no runs (%v)", name, s.Err())
	}
	return out
}

// spreadTable has the plans that were applied, each rank's worst figure.
func spreadTable(t *testing.T) string {
	var b strings.Builder
	b.WriteString("| model | mesh | batch | regions | allocated, MiB | predicted | off | reserved | predicted |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range lines[spreadRun](t, "spread.jsonl") {
		if r.Err != "" {
			fmt.Fprintf(&b, "| %s | %s | %d | %d | out of memory | %d | - | - | %d |\n", r.Name, r.Parallel, r.Batch, r.Regions, r.Predicted[0].AllocatedBytes>>20, r.Predicted[0].ReservedBytes>>20)
			continue
		}
		var allocated, reserved, wantAllocated, wantReserved int64
		for i, k := range r.Ranks {
			allocated, reserved = max(allocated, k.Allocated-r.Base), max(reserved, k.Reserved)
			wantAllocated, wantReserved = max(wantAllocated, r.Predicted[i].AllocatedBytes), max(wantReserved, r.Predicted[i].ReservedBytes)
		}
		fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %d | %+.1f%% | %d | %d |\n", r.Name, r.Parallel, r.Batch, r.Regions, allocated>>20, wantAllocated>>20, 100*(float64(wantAllocated)/float64(allocated)-1), reserved>>20, wantReserved>>20)
	}
	return b.String()
}

// capsTable has the batches that were chosen under 12 GiB, and whether they and larger ones ran.
func capsTable(t *testing.T) string {
	type key struct{ name, strategy string }
	chosen, larger, order := map[key]capRun{}, map[key]capRun{}, []key{}
	for _, r := range lines[capRun](t, "caps.jsonl") {
		k := key{r.Name, r.Strategy}
		if r.Kind == "larger" {
			larger[k] = r
		} else {
			chosen[k] = r
		}
		if !slices.Contains(order, k) {
			order = append(order, k)
		}
	}
	said := func(r capRun, ok bool) string {
		switch {
		case !ok:
			return "not run"
		case r.Ran != nil:
			return fmt.Sprintf("%d: out of memory", r.Batch)
		}
		return fmt.Sprintf("%d: ran", r.Batch)
	}
	var b strings.Builder
	b.WriteString("| model | strategy | the batch chosen | a batch more than 2% larger |\n|---|---|---|---|\n")
	for _, k := range order {
		c, ok := chosen[k]
		l, more := larger[k]
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", k.name, k.strategy, said(c, ok), said(l, more))
	}
	return b.String()
}
