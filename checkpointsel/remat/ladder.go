package remat

import "context"

// A ladder raises the bound with windows relaxations of more and more cuts: a
// cut is added to the best set so far if with it the same effort proves more.
type ladder struct {
	p     *problem
	cuts  []int32 // to begin with, one at a time
	tries []int32 // to be added, in this order
	next  int     // in tries
	idle  int     // tries since the set last grew

	record bool // proofs

	best  *windowSearch
	proof *windowSearch // that of the highest bound
	plans []windowPlan  // what solutions ask for, and nobody has taken yet
	trial int64         // what best had proved after its trial
}

// A windowPlan is what one solution executes again.
type windowPlan struct {
	cuts    []int32
	repeats []repeat
}

const (
	trialNodes = 24
	raiseNodes = 96
	mostCuts   = 16
	mostNodes  = 4096 // larger instances have too large programs
)

// newLadder returns a ladder that begins with each of cuts and then adds
// from tries.
func newLadder(p *problem, cuts, tries []int32) *ladder {
	return &ladder{p: p, cuts: cuts, tries: tries}
}

func (l *ladder) bound() int64 {
	if l.proof == nil {
		return 0
	}
	return l.proof.bound()
}

// done reports whether more rounds cannot raise the bound.
func (l *ladder) done() bool {
	return len(l.cuts) == 0 && (l.best == nil || len(l.best.open) == 0 && !l.growing())
}

func (l *ladder) growing() bool {
	return l.idle < len(l.tries) && len(l.best.w.cuts) < mostCuts
}

// raise is one round; bounds need not be raised beyond target.
func (l *ladder) raise(ctx context.Context, target int64) {
	switch {
	case l.bound() >= target || l.done():
		return
	case len(l.cuts) > 0:
		for _, t := range l.cuts {
			l.try(ctx, []int32{t}, target)
		}
		l.cuts, l.idle = nil, 0
		return
	}
	l.best.improve(ctx, target, raiseNodes)
	l.keep(l.best)
	for range 4 {
		if !l.growing() || l.bound() >= target || ctx.Err() != nil {
			return
		}
		t := l.tries[l.next%len(l.tries)]
		l.next++
		l.idle++
		l.try(ctx, with(l.best.w.cuts, t), target)
	}
}

// try bounds the problem at a set of cuts for a while.
func (l *ladder) try(ctx context.Context, cuts []int32, target int64) {
	if cuts == nil || ctx.Err() != nil {
		return
	}
	w := newWindows(l.p, cuts, 256)
	w.rounds = 10
	w.l.stop = func() bool { return ctx.Err() != nil }
	s := newWindowSearch(w)
	s.record = l.record
	s.improve(ctx, target, trialNodes)
	l.keep(s)
	if b := s.bound(); l.best == nil || b > l.trial {
		l.best, l.trial, l.idle = s, b, 0
	}
}

// keep takes over what a search has found.
func (l *ladder) keep(s *windowSearch) {
	for _, r := range s.plans {
		l.plans = append(l.plans, windowPlan{s.w.cuts, r})
	}
	s.plans = nil
	if s.bound() > l.bound() || l.proof == nil {
		l.proof = s
	}
}

// with returns the set of cuts with t in its place, nil if it is there.
func with(cuts []int32, t int32) []int32 {
	out := make([]int32, 0, len(cuts)+1)
	for _, c := range cuts {
		if c == t {
			return nil
		}
		if c > t && (len(out) == 0 || out[len(out)-1] < t) {
			out = append(out, t)
		}
		out = append(out, c)
	}
	if out[len(out)-1] < t {
		out = append(out, t)
	}
	return out
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
