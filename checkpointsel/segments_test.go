package checkpointsel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// randomProblem makes slots and options that no model produced.
func randomProblem(rng *rand.Rand, n int) *Problem {
	p := &Problem{Fixed: int64(rng.IntN(50)), loss: int64(rng.IntN(120)), Extra: int64(rng.IntN(2) * rng.IntN(5)), Units: make([]Unit, n), slots: make([]slot, n), from: make([][]int, n)}
	for i := range n {
		p.Units[i].Module = fmt.Sprint("u", i)
		p.slots[i] = slot{forward: int64(rng.IntN(100)), backward: int64(rng.IntN(100))}
		for hi := i + 1; hi <= n && hi <= i+3; hi++ {
			if rng.IntN(3) == 0 {
				continue
			}
			o := option{lo: i, hi: hi, cost: float64(rng.IntN(20))}
			o.by[Sure] = effect{int64(rng.IntN(40)) - 5, int64(rng.IntN(100)), int64(rng.IntN(100))}
			o.by[Hoped] = o.by[Sure]
			p.from[i] = append(p.from[i], len(p.segs))
			p.segs = append(p.segs, o)
		}
	}
	return p
}

// exhaustive tries every choice of segments.
func exhaustive(p *Problem, budget int64, i int, drop int64) float64 {
	if i == len(p.slots) {
		if p.loss-drop > budget {
			return math.Inf(1)
		}
		return 0
	}
	best := math.Inf(1)
	if s := p.slots[i]; s.forward-drop <= budget && s.backward-drop <= budget {
		best = exhaustive(p, budget, i+1, drop)
	}
	for _, oi := range p.from[i] {
		o := p.segs[oi]
		e := o.by[Sure]
		if e.forward-drop <= budget && e.redo-drop <= budget {
			best = min(best, o.cost+exhaustive(p, budget, o.hi, drop+e.drop))
		}
	}
	return best
}

func TestSolveIsOptimal(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	feasible := 0
	for range 3000 {
		p := randomProblem(rng, 1+rng.IntN(9))
		budget := int64(30 + rng.IntN(90))
		want := math.Inf(1)
		plain := *p // no segment, nothing extra
		plain.from = make([][]int, len(p.slots))
		switch {
		case p.Fixed <= budget && exhaustive(&plain, budget, 0, 0) == 0:
			want = 0
		case p.Fixed <= budget-p.Extra:
			want = exhaustive(p, budget-p.Extra, 0, 0)
		}
		segs, cost, ok := p.Solve(budget, Sure)
		if ok != !math.IsInf(want, 1) || ok && cost != want {
			t.Fatalf("budget %d: cost %v, found %v; exhaustive search says %v\n%+v", budget, cost, ok, want, p)
		}
		if !ok {
			continue
		}
		feasible++
		peak, c, known := p.Levels(segs, Sure)
		if !known || c != cost || peak > budget {
			t.Fatalf("budget %d: the choice has peak %d, cost %v of %v", budget, peak, c, cost)
		}
	}
	if feasible < 500 {
		t.Errorf("only %d problems were feasible", feasible)
	}
}

// A larger budget never costs more, and below MinBudget nothing fits.
func TestSolveIsMonotone(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		p := randomProblem(rng, 8)
		least := p.MinBudget(Sure)
		if _, _, ok := p.Solve(least-1, Sure); ok {
			t.Fatalf("a choice fits below the least budget %d", least)
		}
		last := math.Inf(1)
		for b := least; b < least+60; b += 5 {
			_, cost, ok := p.Solve(b, Sure)
			if !ok || cost > last {
				t.Fatalf("budget %d costs %v, a smaller one %v", b, cost, last)
			}
			last = cost
		}
	}
}
