package planner

import (
	"context"
	"fmt"
	"math"

	"github.com/memplan/memplan/checkpointsel"
	"github.com/memplan/memplan/graph/train"
)

// Effort of the search for calls to keep, in replays.
const (
	ladder     = 128 // levels of bytes at which choices are made
	alikeTries = 10  // choices that keep the same calls in all units
	fillTries  = 96  // choices with one more call, or one segment fewer
)

// A callSearch searches for segments, with calls that they keep, whose replay
// fits.
type callSearch struct {
	a    *answer
	p    *checkpointsel.Selective
	best []train.Segment
	cost float64
	seen map[string]bool
}

// selectCalls finds segments, with calls that they keep, whose replay fits, and
// with no more recomputation than the given segments, which may be nil. bound
// is the least cost of any such choice.
func (a *answer) selectCalls(ctx context.Context, sel *selector, segs []train.Segment) ([]train.Segment, float64, error) {
	s := &callSearch{a: a, p: sel.selective, best: segs, cost: math.Inf(1), seen: map[string]bool{}}
	if segs != nil {
		_, s.cost, _ = s.p.Levels(segs, checkpointsel.Hoped)
	}
	hoped, bound, ok := s.p.Solve(a.j.cap, checkpointsel.Hoped)
	if !ok {
		return segs, bound, nil
	}
	if ok, err := s.try(ctx, hoped); ok || err != nil {
		return s.best, bound, err
	}
	for _, step := range []func(context.Context) error{s.descend, s.alike, s.fill} {
		if err := step(ctx); err != nil {
			return nil, bound, err
		}
	}
	return s.best, bound, nil
}

// try adopts a choice if it costs less than the best and its replay fits.
func (s *callSearch) try(ctx context.Context, segs []train.Segment) (bool, error) {
	_, cost, ok := s.p.Levels(segs, checkpointsel.Hoped)
	key := fmt.Sprint(segs)
	if !ok || cost >= s.cost || s.seen[key] {
		return false, nil
	}
	s.seen[key] = true
	ok, err := s.a.replays(ctx, segs)
	if ok {
		s.best, s.cost = segs, cost
	}
	return ok, err
}

// descend tries the choices of falling levels until one fits. The levels do not
// depend on the budget: a larger one only adds levels.
func (s *callSearch) descend(ctx context.Context) error {
	low, high := s.p.MinBudget(checkpointsel.Sure), s.p.Without()
	for k := int64(ladder); k >= 0; k-- {
		level := low + (high-low)*k/ladder
		if level > s.a.j.cap {
			continue
		}
		segs, _, ok := s.p.Solve(level, checkpointsel.Sure)
		if !ok {
			return nil
		}
		if ok, err := s.try(ctx, segs); ok || err != nil {
			return err
		}
	}
	return nil
}

// alike tries choices that keep the same calls in all units of one kind, by
// bisection on the time that a kept byte must save: tensors of few sizes leave
// the allocator fewer gaps.
func (s *callSearch) alike(ctx context.Context) error {
	rates := s.p.Rates()
	lo, hi := 0, len(rates) // rates below lo fit, as far as is known
	for range alikeTries {
		if lo >= hi {
			return nil
		}
		mid := lo + (hi-lo)/2
		segs := s.p.Alike(rates[mid])
		ok, err := s.a.replays(ctx, segs)
		if err != nil {
			return err
		}
		if !ok {
			hi = mid
			continue
		}
		lo = mid + 1
		if _, cost, known := s.p.Levels(segs, checkpointsel.Hoped); known && cost < s.cost {
			s.best, s.cost = segs, cost
		}
	}
	return nil
}

// fill adds calls to the best choice, those that save the most time for their
// bytes first, and removes segments.
func (s *callSearch) fill(ctx context.Context) error {
	if s.best == nil {
		return nil
	}
	tries := 0
	for _, m := range s.p.Moves(s.best) {
		if tries == fillTries {
			break
		}
		segs := m.Apply(s.best)
		if segs == nil || s.seen[fmt.Sprint(segs)] {
			continue
		}
		tries++
		if _, err := s.try(ctx, segs); err != nil {
			return err
		}
	}
	return nil
}
