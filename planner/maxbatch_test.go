package planner

import (
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

// measuredContext is what the measurements' caps left out of --vram.
const measuredContext = 800 << 20

// measuredRelease is what the measurements ran on, whichever release exported
// the files.
const measuredRelease = "torch-2.11"

// TestMaxBatch compares the largest batch under a cap with the true one, found
// on a GPU by bisection. With no headroom: never above it, and not far below.
// With the prediction's own: of a hundred, 99 ran, at little cost.
func TestMaxBatch(t *testing.T) {
	testdata.Sequential(t)
	asked, ran, cost := 0, 0, 0.
	for _, c := range collections(t) {
		for _, r := range readLines[maxTruth](t, c.batches) {
			batches := map[string]int64{}
			for _, headroom := range []string{"0", AutoHeadroom} {
				rep, err := c.open(t, r.Name).Analyze(t.Context(), Config{BatchMax: true, VRAM: r.Cap + measuredContext, Precision: r.Prec, Optimizer: r.Opt, Checkpoint: "none", Runtime: measuredRelease, Headroom: headroom})
				if err != nil {
					t.Errorf("%s: %v", r.Name, err)
					continue
				}
				got := rep.Batch.Max
				batches[headroom] = got
				t.Logf("%-16s %-9s headroom %-4s batch %4d of %4d (%d fails) %+6.2f%%  upper bound %4d  limited by %s", r.Name, r.Prec, headroom, got, r.OK, r.Fail, 100*relative(got, r.OK), rep.Batch.UpperBound, rep.Batch.LimitedBy)
				if headroom == "0" && r.Prec == "fp32" && (got >= r.Fail || float64(got) < 0.95*float64(r.OK) || rep.Batch.UpperBound < r.OK) {
					t.Errorf("%s: batch %d (upper bound %d), true limit %d", r.Name, got, rep.Batch.UpperBound, r.OK)
				}
			}
			asked++
			if batches[AutoHeadroom] <= r.OK {
				ran++
			}
			cost -= relative(batches[AutoHeadroom], r.OK)
		}
	}
	t.Logf("headroom auto: %d of %d batches ran, %.2f%% below the largest on average", ran, asked, 100*cost/float64(asked))
	if 100*ran < 99*asked || cost > 0.03*float64(asked) {
		t.Errorf("headroom auto: %d of %d batches ran, %.2f%% below the largest on average", ran, asked, 100*cost/float64(asked))
	}
}
