package planner

import (
	"bufio"
	"encoding/json"
	"os"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

// TestMaxBatch compares the largest batch under a cap with the true one, found
// on a GPU by bisection: never above it, and not far below.
func TestMaxBatch(t *testing.T) {
	f, err := os.Open(testdata.Shared(t, "truth", "max_batch.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const context = 800 << 20 // what the measurement's cap left out of --vram
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		var r struct {
			Name, Prec, Opt string
			Cap             int64
			OK              int64 `json:"ok_batch"`
			Fail            int64 `json:"fail_batch"`
		}
		if err := json.Unmarshal(sc.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		m, err := Open(testdata.Shared(t, "models", r.Name+".dyn-train.onnx"))
		if err != nil {
			t.Fatal(err)
		}
		rep, err := m.Analyze(t.Context(), Config{BatchMax: true, VRAM: r.Cap + context, Precision: r.Prec, Optimizer: r.Opt, Checkpoint: "none"})
		if err != nil {
			t.Errorf("%s: %v", r.Name, err)
			continue
		}
		got := rep.Batch.Max
		t.Logf("%-14s %-9s batch %4d of %4d %+6.2f%%  upper bound %4d  limited by %s", r.Name, r.Prec, got, r.OK, 100*relative(got, r.OK), rep.Batch.UpperBound, rep.Batch.LimitedBy)
		if r.Prec != "fp32" {
			continue
		}
		if got >= r.Fail || float64(got) < 0.95*float64(r.OK) || rep.Batch.UpperBound < r.OK {
			t.Errorf("%s: batch %d (upper bound %d), true limit %d", r.Name, got, rep.Batch.UpperBound, r.OK)
		}
	}
}
