package remat

import (
	"context"
	"math/rand/v2"
	"slices"
)

// A ladder raises the bound by windows relaxations. It first climbs: it changes
// the set of cuts, one cut at a time, as long as the linear program proves
// more; then it continues with branch and bound on the best set.
type ladder struct {
	p       *problem
	rng     *rand.Rand
	singles []int32 // cuts to begin with, one at a time
	hints   []int32 // where the best plan recomputes, the costliest first
	pool    []int32 // other cuts to try
	paid    []int64 // for each node: what the best plan recomputes directly before its first execution
	layouts []int   // numbers of cuts still to be distributed along the best plan
	record  bool    // keep proofs

	rounds int
	steps  int // of the simplex method, in the last round

	best  *windowSearch
	score int64 // what best had proved after its trial
	idle  int   // trials since best last changed
	proof *windowSearch
	plans []windowPlan // solutions that have not been fetched yet
}

// A windowPlan is the executions of one solution.
type windowPlan struct {
	cuts    []int32
	repeats []repeat
}

const (
	trialSteps = 3000 // steps of the simplex method, in the trials of one round
	raiseNodes = 192  // nodes of branch and bound, in one round
	mostIdle   = 60   // trials without success that end the climb
	mostCuts   = 24
	evenly     = 12   // number of cuts that are also tried evenly spread
	mostNodes  = 4096 // larger instances have too large programs
)

// newLadder returns a ladder that begins with each of singles and then adds
// cuts from pool, and from hints.
func newLadder(p *problem, singles, pool []int32, seed uint64) *ladder {
	return &ladder{p: p, layouts: []int{4, 8, 12}, rng: rand.New(rand.NewPCG(seed, 0x2545f4914f6cdd1d)), singles: singles, pool: pool}
}

func (l *ladder) bound() int64 {
	if l.proof == nil {
		return 0
	}
	return l.proof.bound()
}

// done reports whether more rounds cannot raise the bound.
func (l *ladder) done() bool {
	return len(l.singles) == 0 && (l.best == nil || l.best.open.Len() == 0 && l.idle >= 4*mostIdle)
}

// raise is one round; bounds need not exceed target.
func (l *ladder) raise(ctx context.Context, target int64) {
	l.rounds++
	l.steps = 0
	switch {
	case l.bound() >= target || l.done():
		return
	case len(l.singles) > 0:
		for _, t := range l.singles {
			l.try(ctx, []int32{t}, target, true)
		}
		l.singles = nil
		l.idle = 0
	}
	if l.best == nil { // there was no time for any
		return
	}
	idle := mostIdle
	if l.best.open.Len() == 0 { // branch and bound is finished
		idle *= 4
	}
	// Near the target many quick trials achieve more than few thorough ones.
	near := l.best.w.plain && target-l.bound() < l.p.total/400
	if !near && len(l.layouts) > 0 && l.paid != nil && l.rounds > 1 {
		k := l.layouts[0]
		l.steps += l.try(ctx, l.layout(k), target, false)
		if k == evenly {
			l.steps += l.try(ctx, with(l.pool[:min(len(l.pool), k)], l.best.w.cuts[0]), target, false)
		}
		if l.layouts = l.layouts[1:]; l.steps > 2*trialSteps {
			l.layouts = nil // larger ones take too long
		}
	}
	for l.steps < trialSteps && l.idle < idle && l.bound() < target && ctx.Err() == nil {
		l.steps += 50 + l.try(ctx, l.move(), target, near)
	}
	if l.idle >= mostIdle || l.best.open.Len() < 2 {
		l.best.w.rounds = max(l.best.w.rounds, 10)
		before := l.best.w.l.steps
		l.best.improve(ctx, target, raiseNodes)
		l.steps += l.best.w.l.steps - before
		l.keep(l.best)
	}
}

// layout returns a set of about k cuts between which the best plan recomputes
// about equally, each where an execution needs the most memory.
func (l *ladder) layout(k int) []int32 {
	var total int64
	for _, x := range l.paid {
		total += x
	}
	cuts := []int32{l.best.w.cuts[0]}
	var sum int64
	part, top := int64(0), int32(-1)
	for t, x := range l.paid {
		sum += x
		if now := sum * int64(k) / max(total, 1); now != part {
			if top > cuts[0] {
				cuts = with(cuts, top)
			}
			part, top = now, -1
		}
		if t := int32(t); sum > 0 && (top < 0 || l.p.need(t) > l.p.need(top)) {
			top = t
		}
	}
	return cuts
}

// move returns a set of cuts that differs from the best in one.
func (l *ladder) move() []int32 {
	cuts := l.best.w.cuts
	i := l.rng.IntN(len(cuts))
	others := slices.Delete(slices.Clone(cuts), i, i+1)
	switch k := l.rng.IntN(20); {
	case k < 3 && len(cuts) > 1:
		return others
	case k < 9:
		d := 1 + l.rng.Int32N(3)
		if l.rng.IntN(2) == 0 {
			d = -d
		}
		if t := cuts[i] + d; t > 0 && int(t) < l.p.n {
			return with(others, t)
		}
		return others
	case len(cuts) >= mostCuts:
		return others
	case k < 16 && len(l.hints) > 0:
		return with(cuts, l.hints[min(l.rng.IntN(len(l.hints)), l.rng.IntN(len(l.hints)))])
	}
	return with(cuts, l.pool[l.rng.IntN(len(l.pool))])
}

// try bounds the problem at a set of cuts by its linear program, and returns
// the steps it took. Plain relaxations are solved faster but prove less.
func (l *ladder) try(ctx context.Context, cuts []int32, target int64, plain bool) int {
	l.idle++
	if len(cuts) == 0 || ctx.Err() != nil || l.best != nil && slices.Equal(cuts, l.best.w.cuts) {
		return 0
	}
	w := newWindows(l.p, cuts, 256)
	w.rounds, w.plain = 4, plain
	w.l.stop = func() bool { return ctx.Err() != nil }
	s := newWindowSearch(w)
	s.record = l.record
	s.improve(ctx, target, 1)
	l.keep(s)
	if b := s.bound(); l.best == nil || b > l.score || b == l.score && len(cuts) < len(l.best.w.cuts) {
		l.best, l.score, l.idle = s, b, 0
	}
	return w.l.steps
}

// keep adopts the results of a search.
func (l *ladder) keep(s *windowSearch) {
	for _, r := range s.plans {
		l.plans = append(l.plans, windowPlan{s.w.cuts, r})
	}
	s.plans = nil
	if s.bound() > l.bound() || l.proof == nil {
		l.proof = s
	}
}

// with returns the set of cuts with others added.
func with(cuts []int32, others ...int32) []int32 {
	out := append(slices.Clone(cuts), others...)
	slices.Sort(out)
	return slices.Compact(out)
}

// spread returns up to k of the numbers, far apart from each other first.
func spread(from []int32, k int) []int32 {
	var out []int32
	seen := map[int32]bool{}
	for parts := 1; parts <= k && len(out) < k && len(out) < len(from); parts *= 2 {
		for i := 1; i < 2*parts && len(out) < k; i += 2 {
			if t := from[len(from)*i/(2*parts)]; !seen[t] {
				seen[t] = true
				out = append(out, t)
			}
		}
	}
	return out
}
