package planner

import "testing"

// measuredContext is what the measurements' caps left out of --vram.
const measuredContext = 800 << 20

// measuredRelease is what the measurements ran on, whichever release exported
// the files.
const measuredRelease = "torch-2.11"

// TestMaxBatch compares the largest batch under a cap with the true one, found
// on a GPU by bisection: never above it, and not far below.
func TestMaxBatch(t *testing.T) {
	if testing.Short() {
		t.Skip("nothing here runs side by side; all searches run without -short")
	}
	for _, c := range collections(t) {
		for _, r := range readLines[maxTruth](t, c.batches) {
			rep, err := c.open(t, r.Name).Analyze(t.Context(), Config{BatchMax: true, VRAM: r.Cap + measuredContext, Precision: r.Prec, Optimizer: r.Opt, Checkpoint: "none", Runtime: measuredRelease})
			if err != nil {
				t.Errorf("%s: %v", r.Name, err)
				continue
			}
			got := rep.Batch.Max
			t.Logf("%-16s %-9s batch %4d of %4d (%d fails) %+6.2f%%  upper bound %4d  limited by %s", r.Name, r.Prec, got, r.OK, r.Fail, 100*relative(got, r.OK), rep.Batch.UpperBound, rep.Batch.LimitedBy)
			if r.Prec == "fp32" && (got >= r.Fail || float64(got) < 0.95*float64(r.OK) || rep.Batch.UpperBound < r.OK) {
				t.Errorf("%s: batch %d (upper bound %d), true limit %d", r.Name, got, rep.Batch.UpperBound, r.OK)
			}
		}
	}
}
