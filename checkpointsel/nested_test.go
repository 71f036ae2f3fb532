package checkpointsel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// randomNested makes a problem that no model produced. With kinds > 0 units
// are of so many kinds, as equal blocks are.
func randomNested(rng *rand.Rand, n, kinds int) *Nested {
	p := &Nested{Fixed: int64(rng.IntN(50)), loss: int64(rng.IntN(120)), Extra: int64(rng.IntN(2) * rng.IntN(5)), Micros: 1 + rng.IntN(2), from: make([][]int32, n), stops: make([]stop, n+1)}
	for i := range n {
		p.Units = append(p.Units, Unit{Module: fmt.Sprint("u", i), Lo: i, Hi: i + 1})
		s := nestedSlot{cost: float64(1 + rng.IntN(9))}
		s.slot = slot{forward: int64(rng.IntN(100)), backward: int64(rng.IntN(100)), unpacked: int64(rng.IntN(100))}
		if k := i - 1 - rng.IntN(3); kinds > 0 && k >= 0 {
			s = p.slots[k%kinds]
		}
		s.before = 40 * int64(i) // segments drop less than units make
		p.slots = append(p.slots, s)
		p.stops[i+1] = stop{unit: max(i-rng.IntN(3), -1), peak: int64(rng.IntN(60)), cost: float64(rng.IntN(4)), last: i - rng.IntN(2)}
	}
	p.stops[0] = stop{unit: -1, last: -1}
	for lo := range n {
		for hi := lo + 1; hi <= n; hi++ {
			if rng.IntN(3) == 0 {
				continue
			}
			s := span{run: run{lo: lo, hi: hi, modules: []string{fmt.Sprintf("u%d-%d", lo, hi)}}, cost: float64(1 + rng.IntN(9))}
			for v := range s.by {
				s.by[v] = spanEffect{drop: int64(rng.IntN(40) - 5), forward: int64(rng.IntN(100)), offset: int64(rng.IntN(20) - 10), held: int64(rng.IntN(3) * rng.IntN(9))}
			}
			p.from[lo] = append(p.from[lo], int32(len(p.spans)))
			p.spans = append(p.spans, s)
		}
	}
	return p
}

// An outcome is what one plan comes to.
type outcome struct {
	peak int64
	cost float64
}

// within lists the outcome of every choice for units i to hi of segment s when
// it is run again, or of the step's own if s is nil.
func within(p *Nested, v View, s *span, i, hi int) (out []outcome) {
	if i == hi {
		if s == nil {
			return []outcome{{p.loss, 0}}
		}
		return []outcome{{math.MinInt32, 0}}
	}
	u := &p.slots[i]
	kept := outcome{max(u.forward, u.backward), 0}
	if s != nil {
		kept.peak = u.unpacked
		switch e := p.stops[hi]; {
		case i < e.unit:
			kept = outcome{max(u.unpacked, u.forward+s.by[v].offset), u.cost}
		case i == e.unit:
			kept = outcome{max(u.unpacked, e.peak+s.by[v].offset), e.cost}
		}
	}
	for _, rest := range within(p, v, s, i+1, hi) {
		out = append(out, outcome{max(kept.peak, rest.peak), kept.cost + rest.cost})
	}
	for k := range p.spans {
		in := &p.spans[k]
		if in.lo != i || in.hi > hi || s != nil && in.hi == hi { // a segment at the very end of one is a part of it
			continue
		}
		first := outcome{in.by[v].forward, 0}
		if s != nil {
			first = outcome{in.by[v].forward + s.by[v].offset, in.cost}
			if e := p.stops[hi]; in.hi-1 >= e.unit && (in.lo > e.unit || in.hi > e.last) {
				first = outcome{math.MinInt32, 0}
			}
		}
		for _, inside := range within(p, v, in, in.lo, in.hi) {
			if s == nil {
				inside.peak += in.by[v].held
			}
			for _, rest := range within(p, v, s, in.hi, hi) {
				out = append(out, outcome{max(first.peak, inside.peak, rest.peak-in.by[v].drop), first.cost + inside.cost + rest.cost})
			}
		}
	}
	return out
}

func TestNestedIsOptimal(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	feasible, nested := 0, 0
	for range 400 {
		p := randomNested(rng, 1+rng.IntN(5), rng.IntN(3))
		v := View(rng.IntN(2))
		all := within(p, v, nil, 0, len(p.slots))
		last := math.Inf(1)
		for budget := p.MinBudget(v) - 3; budget < 130; budget += 7 {
			want := math.Inf(1)
			limit := budget
			if v == Sure {
				limit -= p.Extra
			}
			for _, o := range all {
				if o.peak <= limit && p.Fixed <= limit {
					want = min(want, o.cost*float64(p.Micros))
				}
			}
			if p.Without() <= budget {
				want = 0
			}
			segs, cost, ok := p.Solve(budget, v)
			if ok != !math.IsInf(want, 1) || ok && cost != want {
				t.Fatalf("budget %d: cost %v, found %v; exhaustive search says %v\n%+v", budget, cost, ok, want, p)
			}
			if ok && budget < p.MinBudget(v) || !ok && budget >= p.MinBudget(v) {
				t.Fatalf("budget %d: found %v, but the least budget is %d", budget, ok, p.MinBudget(v))
			}
			if !ok {
				continue
			}
			if cost > last {
				t.Fatalf("budget %d costs %v, a smaller one %v", budget, cost, last)
			}
			last = cost
			feasible++
			lo, hi := -1, -1
			for _, s := range segs {
				var a, b int
				if _, err := fmt.Sscanf(s.Modules[0], "u%d-%d", &a, &b); err != nil {
					t.Fatal(err)
				}
				if a >= lo && b <= hi {
					nested++
				}
				lo, hi = a, b
			}
		}
	}
	if feasible < 1000 || nested < 50 {
		t.Errorf("only %d problems were feasible, only %d segments nested", feasible, nested)
	}
}

// chainProblem is a chain of n blocks, of so many kinds, or all different if
// kinds is 0: every run of them may be a segment.
func chainProblem(n, kinds int) *Nested {
	rng := rand.New(rand.NewPCG(1, 2))
	type block struct {
		out, saved, grad int64
		cost             float64
	}
	blocks := make([]block, n)
	for i := range blocks {
		blocks[i] = block{int64(1+rng.IntN(64)) << 20, int64(64+rng.IntN(512)) << 20, int64(1+rng.IntN(32)) << 20, 1e-3 * (1 + rng.Float64())}
		if kinds > 0 && i >= kinds {
			blocks[i] = blocks[i%kinds]
		}
	}
	p := &Nested{Micros: 1, from: make([][]int32, n), stops: make([]stop, n+1)}
	held, grads := make([]int64, n+1), make([]int64, n+1)
	for i, b := range blocks {
		held[i+1] = held[i] + b.saved + b.out
	}
	for i := n - 1; i >= 0; i-- {
		grads[i] = grads[i+1] + blocks[i].grad
	}
	for i, b := range blocks {
		p.Units = append(p.Units, Unit{Module: fmt.Sprint("u", i), Lo: i, Hi: i + 1})
		back := held[i+1] + grads[i] + 2*b.out
		p.slots = append(p.slots, nestedSlot{slot: slot{forward: held[i+1], backward: back, unpacked: back}, before: held[i], cost: b.cost})
		p.stops[i+1] = stop{unit: i, peak: held[i+1], cost: b.cost, last: i}
	}
	p.loss = held[n]
	for lo := range n {
		cost := 0.0
		for hi := lo + 1; hi <= n; hi++ {
			cost += blocks[hi-1].cost
			s := span{run: run{lo: lo, hi: hi, modules: []string{fmt.Sprintf("u%d-%d", lo, hi)}}, cost: cost}
			drop := held[hi] - held[lo] - blocks[hi-1].out
			s.by[Sure] = spanEffect{drop: drop, forward: held[lo] + blocks[hi-1].saved + 2*blocks[hi-1].out, offset: grads[hi] + 2*blocks[hi-1].out}
			s.by[Hoped] = s.by[Sure]
			p.from[lo] = append(p.from[lo], int32(len(p.spans)))
			p.spans = append(p.spans, s)
		}
	}
	return p
}

// Rounded levels give costs that bound the exact ones: from above at Sure
// levels, from below at Hoped ones, closer the finer the grid.
func TestRounded(t *testing.T) {
	for seed := range 4 {
		p := chainProblem(12+seed, seed)
		for _, v := range []View{Sure, Hoped} {
			exact := solveOn(p, v, 1, p.Without(), math.MaxInt)
			for grid := int64(1 << 20); grid <= 1<<28; grid <<= 4 {
				rough := solveOn(p.rounded(v, grid), v, grid, p.Without(), math.MaxInt)
				for part := range int64(40) {
					b := p.Without() * part / 40
					got, want := costAt(rough.top[0], floorDiv(b, grid)), costAt(exact.top[0], b)
					if v == Sure && got < want || v == Hoped && got > want {
						t.Fatalf("view %d, grid %d, budget %d: cost %v, exactly %v", v, grid, b, got, want)
					}
					if grid == 1<<20 && got != want { // all sizes are multiples of it
						t.Fatalf("budget %d: cost %v on a grid that rounds nothing, exactly %v", b, got, want)
					}
				}
			}
		}
	}
}

// costAt is the least cost at levels up to peak, +Inf for none.
func costAt(list []step, peak int64) float64 {
	cost := math.Inf(1)
	for _, s := range list {
		if s.peak <= peak {
			cost = s.cost
		}
	}
	return cost
}

// Equal blocks are solved once: chains of one kind have as many lists as
// lengths. Too much work is given up.
func TestEqualBlocks(t *testing.T) {
	for _, tt := range []struct{ n, kinds, lists int }{{200, 1, 200}, {100, 4, 400}} {
		p := chainProblem(tt.n, tt.kinds)
		if _, _, ok := p.Solve(p.Without()/5, Sure); !ok {
			t.Fatal("nothing fits")
		}
		if f := p.results[Sure]; len(f.known) > tt.lists || f.grid != 1 {
			t.Errorf("%d kinds: %d lists on a grid of %d", tt.kinds, len(f.known), f.grid)
		}
		if solveOn(p, Sure, 1, p.Without(), 1000) != nil {
			t.Error("more work than asked for")
		}
	}
}

// BenchmarkNested solves chains of blocks at a quarter of their levels.
func BenchmarkNested(b *testing.B) {
	for _, bb := range []struct{ n, kinds int }{{50, 1}, {100, 1}, {200, 1}, {50, 0}, {200, 0}} {
		b.Run(fmt.Sprintf("%d,%d", bb.n, bb.kinds), func(b *testing.B) {
			for b.Loop() {
				p := chainProblem(bb.n, bb.kinds)
				p.Solve(p.Without()/4, Sure)
			}
		})
	}
}
