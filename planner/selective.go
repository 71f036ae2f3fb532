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
	ladder     = 128    // levels of bytes at which choices are made
	alikeTries = 10     // choices that keep the same calls in all units
	fillTries  = 96     // choices with more calls, or fewer segments
	fillCalls  = 48_000 // calls in the model times choices with one more call, or one segment fewer
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
	defer sel.selective.Forget()
	s := &callSearch{a: a, p: sel.selective, best: segs, cost: math.Inf(1), seen: map[string]bool{}}
	if segs != nil {
		_, s.cost, _ = s.p.Levels(segs, checkpointsel.Hoped)
	}
	hoped, bound, ok := s.p.SolveBelow(a.j.cap, checkpointsel.Hoped, s.cost)
	if !ok {
		return segs, s.cost, nil
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
		segs, _, ok := s.p.SolveBelow(level, checkpointsel.Sure, s.cost)
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

// alikes counts the changes of a choice that did not fit since one of their kind did: what
// fails in some of many equal blocks fails in the others, too.
type alikes struct {
	failed map[[2]float64]int
	most   int
}

// alikeCalls is the calls in a model times the failures of one kind that are tried, which are
// at least two.
const alikeCalls = 8_000

func (m *Model) alikes() alikes {
	return alikes{map[[2]float64]int{}, max(2, alikeCalls/max(len(m.lifted.Graph.Nodes), 1))}
}

func (a alikes) enough(kind [2]float64) bool { return a.failed[kind] >= a.most }

func (a alikes) note(kind [2]float64, ok bool) {
	if a.failed[kind]++; ok {
		a.failed[kind] = 0
	}
}

// fill adds calls to the best choice, those that save the most time for their
// bytes first, and removes segments. Moves of one kind, in equal blocks, are tried together:
// all of them, or else as many as fit.
func (s *callSearch) fill(ctx context.Context) error {
	if s.best == nil {
		return nil
	}
	var kinds [][]checkpointsel.Move
	at := map[[2]float64]int{}
	for _, m := range s.p.Moves(s.best) {
		i, ok := at[m.Kind()]
		if !ok {
			i = len(kinds)
			at[m.Kind()], kinds = i, append(kinds, nil)
		}
		kinds[i] = append(kinds[i], m)
	}
	f := filling{s, fillTries, math.MaxInt64}
	for _, moves := range kinds {
		if err := f.together(ctx, moves); err != nil {
			return err
		}
	}
	f.tries = min(f.tries, fillCalls/max(len(s.a.m.lifted.Graph.Nodes), 1))
	return f.alone(ctx)
}

// A filling is the state of fill.
type filling struct {
	*callSearch
	tries int   // left
	short int64 // bytes that did not fit beside the best choice, the fewest of those tried
}

// alone tries each move by itself, in its place in the step: the allocator's gaps may take what did
// not fit elsewhere.
func (f *filling) alone(ctx context.Context) error {
	failed := f.a.m.alikes()
	for _, m := range f.p.Moves(f.best) {
		segs := m.Apply(f.best)
		if segs == nil || f.seen[fmt.Sprint(segs)] || failed.enough(m.Kind()) {
			continue
		}
		if f.tries--; f.tries < 0 {
			return nil
		}
		ok, err := f.try(ctx, segs)
		if err != nil {
			return err
		}
		failed.note(m.Kind(), ok)
	}
	return nil
}

// together adopts as many of the moves as fit, by bisection. What needs as many bytes as
// something that did not fit is not tried.
func (f *filling) together(ctx context.Context, moves []checkpointsel.Move) error {
	from, bytes := f.best, max(moves[0].Bytes, 1)
	fits, fails := 0, len(moves)+1
	for f.tries > 0 {
		if room := (f.short-1)/bytes + int64(fits) + 1; int64(fails) > room {
			fails = int(room)
		}
		if fails-fits < 2 {
			return nil
		}
		n := fits + (fails-fits)/2
		if fails > len(moves) {
			n = len(moves)
		}
		segs := from
		for _, m := range moves[:n] {
			if next := m.Apply(segs); next != nil {
				segs = next
			}
		}
		f.tries--
		ok, err := f.try(ctx, segs)
		switch {
		case err != nil:
			return err
		case ok:
			f.short = max(f.short-bytes*int64(n-fits), 1)
			fits = n
		default:
			f.short, fails = min(f.short, bytes*int64(n-fits)), n
		}
	}
	return nil
}
