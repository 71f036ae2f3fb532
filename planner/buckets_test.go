package planner

import "testing"

// Buckets are a lever where DDP has them, and each row is the answer to the question with its flags.
func TestBucketsLever(t *testing.T) {
	m := openLever(t, lmModel)
	cfg := Config{Batch: 2, Dims: map[string]int64{"seq": 16}, Parallel: "ddp=4"}
	r, err := m.Allow(t.Context(), cfg, []string{"buckets"})
	if err != nil || len(r.Rows) != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, row := range r.Rows {
		with := asked(t, cfg, row.Args)
		a, err := m.Analyze(t.Context(), with)
		if err != nil {
			t.Fatal(err)
		}
		if a.Peak.ProcessBytes != row.ProcessBytes {
			t.Errorf("%v: %d bytes, asked for by itself %d", row.Args, row.ProcessBytes, a.Peak.ProcessBytes)
		}
	}
	cfg.Parallel = ""
	if r, err = m.Allow(t.Context(), cfg, []string{"buckets"}); err != nil || len(r.Rows) != 0 || len(r.Refused) != 1 {
		t.Errorf("on one card: %+v, %v", r, err)
	}
}
