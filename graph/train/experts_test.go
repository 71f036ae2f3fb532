package train

import (
	"math"
	"testing"
)

// Rows are those of the most unfair choice: each token takes any Best of the experts.
func TestExpertRows(t *testing.T) {
	for experts := int64(2); experts <= 6; experts++ {
		for best := int64(1); best <= experts; best++ {
			for ranks := 1; ranks <= int(experts); ranks++ {
				if experts%int64(ranks) != 0 {
					continue
				}
				own, most := experts/int64(ranks), int64(0)
				for choice := range 1 << experts { // of one token: a set of experts, of which the first are this rank's
					n, here := int64(0), int64(0)
					for e := range experts {
						if choice>>e&1 == 1 {
							if n++; e < own {
								here++
							}
						}
					}
					if n == best {
						most = max(most, here)
					}
				}
				const tokens = 7
				s := ExpertSite{Experts: experts, Best: best}
				if balanced, all := s.Rows(ranks, tokens); balanced != tokens*best || all != tokens*int64(ranks)*most {
					t.Errorf("%d of %d experts on %d ranks: %d and %d rows, want %d and %d", best, experts, ranks, balanced, all, tokens*best, tokens*int64(ranks)*most)
				}
			}
		}
	}
	for _, c := range []struct {
		imbalance float64
		want      int64
	}{{0, 100}, {1, 100}, {1.001, 101}, {3, 300}, {5, 400}, {math.Inf(1), 400}} {
		if got := Received(100, 400, c.imbalance); got != c.want {
			t.Errorf("%v: %d, want %d", c.imbalance, got, c.want)
		}
	}
}
