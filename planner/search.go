package planner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/memplan/memplan/checkpointsel"
	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/liveness"
	"github.com/memplan/memplan/planner/profile"
)

// selectFor finds the segments of least recomputation whose replay fits the cap: segments
// side by side, or nested ones if those do not fit or cost more. The levels of the
// selection are a lower bound of the allocator's, so the least cost at the cap itself
// bounds every plan of the class; plans are sought at many levels, and the cheapest whose
// replay fits is used.
func (a *answer) selectFor(ctx context.Context) error {
	b, err := a.build(a.batch, nil)
	if err != nil {
		return err
	}
	plain, err := replay(b, a.j, true)
	if err != nil {
		return err
	}
	if plain.fail == nil {
		if mode := a.j.cfg.Checkpoint; mode == "auto" || mode == "segments" {
			s := &selector{step: 1}
			return a.describe(s, 0, true)
		}
		return nil
	}
	free, err := replay(b, a.j, false)
	if err != nil {
		return err
	}
	a.note("checkpoints-needed", "without checkpoints the step reserves %s, %s more than fits", profile.FormatBytes(free.res.Reserved), profile.FormatBytes(free.res.Reserved-a.j.cap))
	if name, ok := a.m.checkpointsItself(); ok {
		a.note("own-checkpoints", "the model's code checkpoints by itself, in module %q: no selection is sought beside that; take it out, export the model again and plan", name)
		return nil
	}
	s, err := a.selector()
	if err != nil {
		return err
	}
	segs, bound, err := a.bestComposed(ctx, s)
	if err != nil {
		return err
	}
	if ok, err := a.selectJoint(ctx, s, segs, bound); ok || err != nil {
		return err
	}
	if segs == nil && a.late(ctx) {
		return nil
	}
	if segs == nil {
		a.note("no-selection", "no selection of segments fits: the least that any needs is about %s of the card's memory", profile.FormatBytes(s.least()+a.j.device.Context))
		return a.noSegments(ctx)
	}
	a.segs = segs
	kind, class := "", "segments"
	if a.j.cfg.Checkpoint != class {
		kind, class = ", and of the calls that they keep,", "selective"
	}
	a.proof = fmt.Sprintf("least recomputation of any choice of segments over %d module boundaries%s and of nested ones over %d, at %d bytes: %.6f s", len(s.problem.Units), kind, len(s.nested().Units), a.j.cap, bound)
	if err := a.describe(s, bound, true); err != nil {
		return err
	}
	a.check.Class = class
	return a.price(ctx)
}

// checkpointsItself returns the first module in which the model's own code
// checkpoints, according to its capture.
func (m *Model) checkpointsItself() (module string, ok bool) {
	r := m.lifted.Recording
	if r == nil {
		return "", false
	}
	i := slices.IndexFunc(r.Regions, func(r lift.Region) bool { return r.Kind == train.OwnCheckpoint })
	if i < 0 {
		return "", false
	}
	return m.lifted.Graph.Nodes[r.Regions[i].First].Module, true
}

// bestComposed is bestSegments with steps that are put together from parts of others, where
// those are known. The step of the choice is built: if it did not fit, all would be.
func (a *answer) bestComposed(ctx context.Context, s *selector) (segs []train.Segment, bound float64, err error) {
	if a.j.meshed == nil {
		a.composer = checkpointsel.NewComposer(s.selective)
	}
	segs, bound, err = a.bestSegments(ctx, s)
	if err != nil || segs == nil || a.composer == nil {
		return segs, bound, err
	}
	a.composer = nil
	b, err := a.build(a.batch, segs)
	if err != nil {
		return nil, 0, err
	}
	if _, fits, err := capped(b, a.j); fits || err != nil {
		return segs, bound, err
	}
	if a.m.shared != nil {
		clear(a.m.shared.fits)
	}
	return a.bestSegments(ctx, s)
}

// bestSegments finds the cheapest selection among those side by side, those
// that keep results of calls, and nested ones. bound is the least cost of any
// of them under the optimistic view, in which every segment frees all it may.
func (a *answer) bestSegments(ctx context.Context, s *selector) (segs []train.Segment, bound float64, err error) {
	flat, cost, err := a.flatFitting(ctx, s.problem)
	if err != nil {
		return nil, 0, err
	}
	segs, bound = flat, math.Inf(1)
	if _, b, ok := s.problem.Solve(a.j.cap, checkpointsel.Hoped); ok {
		bound = b
	}
	if a.j.cfg.Checkpoint != "segments" {
		kept, b, err := a.selectCalls(ctx, s, flat)
		if err != nil {
			return nil, 0, err
		}
		if kept != nil {
			_, cost, _ = s.selective.Levels(kept, checkpointsel.Hoped)
			segs, bound = kept, min(bound, b)
		}
	}
	n := s.nested()
	_, b, ok := n.Solve(a.j.cap, checkpointsel.Hoped)
	if !ok || b >= cost {
		return segs, min(bound, cost), nil
	}
	nested, c, err := a.nestedFitting(ctx, n, cost)
	if c < cost {
		segs = nested
	}
	return segs, min(bound, b), err
}

// A choice is a class of selections: a problem of package checkpointsel.
type choice interface {
	Solve(budget int64, v checkpointsel.View) (segs []train.Segment, cost float64, ok bool)
	MinBudget(v checkpointsel.View) int64
	Without() int64
	Levels(segs []train.Segment, v checkpointsel.View) (peak int64, cost float64, ok bool)
}

// Numbers of levels at which selections are sought, between the least memory of
// any and that of the step without.
const (
	flatLevels   = 64
	nestedLevels = 1024
)

// A candidate is a selection with its cost in seconds.
type candidate struct {
	segs []train.Segment
	cost float64
}

// candidates returns the selections of n levels in both views, the cheapest
// first, without hopes of what exceeds a budget. The levels do not depend on the budget, so that
// a larger budget never gets a costlier plan.
func candidates(p choice, n, most int64) []candidate {
	var out []candidate
	seen := map[string]bool{}
	add := func(budget int64, v checkpointsel.View) {
		segs, cost, ok := p.Solve(budget, v)
		if key := fmt.Sprint(segs); ok && !seen[key] {
			seen[key] = true
			out = append(out, candidate{segs, cost})
		}
	}
	lo, hi := p.MinBudget(checkpointsel.Hoped), p.Without()
	for i := range n + 1 {
		if level := hi - (hi-lo)*i/n; level <= most {
			add(level, checkpointsel.Hoped)
		}
		add(hi-(hi-lo)*i/n, checkpointsel.Sure)
	}
	add(p.MinBudget(checkpointsel.Sure), checkpointsel.Sure)
	slices.SortStableFunc(out, func(x, y candidate) int { return cmp.Compare(x.cost, y.cost) })
	return out
}

// fitting returns the cheapest candidate below a cost of most whose replay
// fits, and its cost; +Inf if there is none. It does not replay those that
// exceed the cap even if every segment frees all it may.
func (a *answer) fitting(ctx context.Context, p choice, list []candidate, most float64) ([]train.Segment, float64, error) {
	none := math.Inf(1)
	for _, c := range list {
		if c.cost >= most || a.late(ctx) {
			break
		}
		if peak, _, _ := p.Levels(c.segs, checkpointsel.Hoped); peak > a.j.cap {
			continue
		}
		switch ok, err := a.replays(ctx, c.segs); {
		case err != nil:
			return nil, none, err
		case ok:
			return c.segs, c.cost, nil
		}
	}
	return nil, none, nil
}

// flatFitting is fitting for segments side by side, without those that prove
// unnecessary.
func (a *answer) flatFitting(ctx context.Context, p *checkpointsel.Problem) ([]train.Segment, float64, error) {
	list := candidates(p, flatLevels, a.j.cap)
	usual, err := a.usual()
	if err != nil {
		return nil, 0, err
	}
	for _, segs := range append(usual, p.All(), p.Sqrt()) {
		if _, cost, ok := p.Levels(segs, checkpointsel.Hoped); ok && len(segs) > 0 {
			list = append(list, candidate{segs, cost})
		}
	}
	slices.SortStableFunc(list, func(x, y candidate) int { return cmp.Compare(x.cost, y.cost) })
	segs, _, err := a.fitting(ctx, p, list, math.Inf(1))
	if err != nil || segs == nil {
		return nil, math.Inf(1), err
	}
	segs, err = a.prune(ctx, p, segs)
	_, cost, _ := p.Levels(segs, checkpointsel.Hoped)
	return segs, cost, err
}

// mostApart is the largest n for which every n-th block is a candidate.
const mostApart = 4

// usual returns the selections that people make by hand: every n-th of the blocks
// that the model repeats. One of these may fit between two levels.
func (a *answer) usual() ([][]train.Segment, error) {
	parts, err := a.m.anatomy(a.j, a.batch)
	if err != nil {
		return nil, err
	}
	var out [][]train.Segment
	for n := 1; n <= min(mostApart, len(parts.blocks)); n++ {
		var segs []train.Segment
		for i := 0; i < len(parts.blocks); i += n {
			segs = append(segs, train.Segment{Modules: []string{parts.blocks[i].name}})
		}
		out = append(out, segs)
	}
	return out, nil
}

// nestedFitting is fitting for nested segments. They are not pruned: a segment
// that is unnecessary under one budget might be needed under a larger one,
// whose plan would be slower.
func (a *answer) nestedFitting(ctx context.Context, n *checkpointsel.Nested, most float64) ([]train.Segment, float64, error) {
	return a.fitting(ctx, n, candidates(n, nestedLevels, a.j.cap), most)
}

// mostPruned bounds the number of segments that prune tries to remove.
const mostPruned = 32

// prune removes segments without which the selection still fits, the costliest
// first.
func (a *answer) prune(ctx context.Context, p choice, segs []train.Segment) ([]train.Segment, error) {
	saves := func(s train.Segment) float64 {
		_, with, _ := p.Levels(segs, checkpointsel.Hoped)
		_, without, _ := p.Levels(omit(segs, s), checkpointsel.Hoped)
		return with - without
	}
	order := slices.Clone(segs)
	slices.SortStableFunc(order, func(x, y train.Segment) int { return cmp.Compare(saves(y), saves(x)) })
	failed := a.m.alikes()
	for _, s := range order[:min(len(order), mostPruned)] {
		if a.late(ctx) {
			break
		}
		rest := omit(segs, s)
		kind := [2]float64{float64(float32(saves(s)))}
		if peak, _, _ := p.Levels(rest, checkpointsel.Hoped); peak > a.j.cap || kind[0] <= 0 || failed.enough(kind) {
			continue
		}
		ok, err := a.replays(ctx, rest)
		if err != nil {
			return nil, err
		}
		if failed.note(kind, ok); ok {
			segs = rest
		}
	}
	return segs, nil
}

// omit returns the segments but one.
func omit(segs []train.Segment, one train.Segment) []train.Segment {
	return slices.DeleteFunc(slices.Clone(segs), func(x train.Segment) bool { return slices.Equal(x.Modules, one.Modules) })
}

// late reports whether --timeout has passed, and notes that the answer is the
// best so far.
func (a *answer) late(ctx context.Context) bool {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return false
	}
	if !slices.ContainsFunc(a.notes, func(w graph.Warning) bool { return w.Code == "timeout" }) {
		a.note("timeout", "the search ended at --timeout: this is the best it had found")
	}
	return true
}

// replays reports whether a selection fits under the cap and also without the
// headroom: with more memory the allocator decides otherwise, which need not fit.
// Only an interruption is an error, not a timeout.
func (a *answer) replays(ctx context.Context, segs []train.Segment) (bool, error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return false, ctx.Err()
	}
	return shared(a.m, fitting, func() (bool, error) {
		b, err := a.composed(segs)
		if err != nil {
			return false, err
		}
		_, fits, err := capped(b, a.j)
		return fits, err
	}, a.j.of(), a.batch, " ", segs)
}

// composed puts a step together, if need be after it learned of the parts from a shorter one, or
// builds it and learns its parts.
func (a *answer) composed(segs []train.Segment) (*train.Build, error) {
	if a.composer == nil {
		return a.m.build(a.j, a.batch, segs)
	}
	if p := a.composer.Compose(segs); p != nil {
		return &train.Build{Program: p}, nil
	}
	if short := a.composer.Shorten(segs); short != nil {
		if err := a.learn(short); err != nil {
			return nil, err
		}
		if p := a.composer.Compose(segs); p != nil {
			return &train.Build{Program: p}, nil
		}
	}
	b, err := a.m.build(a.j, a.batch, segs)
	if err == nil {
		a.composer.Learn(b, segs)
	}
	return b, err
}

// learn builds a shortened step.
func (a *answer) learn(short *checkpointsel.Short) error {
	if err := a.m.boundFor(a.j, a.batch); err != nil {
		return err
	}
	o, err := a.m.options(a.j, short.Segments)
	if err != nil {
		return err
	}
	o.Skips = short.Skips
	b, err := train.New(a.m.lifted, o)
	if err != nil {
		return err
	}
	a.m.made += len(b.Nodes) + stepEffort
	a.composer.LearnShort(b, short)
	return nil
}

func (a *answer) note(code, format string, args ...any) {
	a.notes = append(a.notes, graph.Warning{Code: code, Message: fmt.Sprintf(format, args...)})
}

const (
	mostBatch = 1 << 20 // no larger batch is tried
	mostBound = 1 << 40 // end of the search for the bound on batches
)

// spread is the reciprocal of the share of the cap that a batch search without --headroom auto
// leaves free, 0.4%: the driver's placement of segments varies from run to run, and with it the
// reserved bytes, by 0.2% on average over the 44 recorded runs of package liveness/alloc.
const spread = 256

// guessSpread is the reciprocal of the share that the search leaves free if
// large workspaces are guesses.
const guessSpread = 12

// searchBatch finds the largest batch whose replay fits the cap minus the
// difference between runs: first the largest whose live bytes alone fit, by
// bisection on a lower bound that grows with the batch, then downwards by
// replay under the cap.
func (a *answer) searchBatch(ctx context.Context) error {
	upper, err := a.liveLimit(ctx)
	if err != nil {
		return err
	}
	tight, err := a.leave(max(min(upper, mostBatch), 1))
	if err != nil {
		return err
	}
	whole := *a.j
	whole.cap = a.j.hard
	fits := func(b int64) (bool, error) { return a.fitsUnder(ctx, tight, b) }
	a.max = &BatchInfo{UpperBound: upper, Checkpoint: a.searchMode()}
	top := min(upper, mostBatch)
	a.batch = max(top, 1)
	lo, hi := int64(0), top+1
	for step := max(top/64, 1); hi-lo > 1; {
		mid := hi - step
		if lo > 0 || mid <= lo {
			mid = lo + (hi-lo)/2
		}
		if a.late(ctx) {
			if lo > 0 {
				break
			}
			mid = max(hi/2, 1)
		}
		ok, err := fits(mid)
		if err != nil {
			return err
		}
		if ok {
			lo = mid
		} else {
			hi = mid
			step *= 2
		}
	}
	cut := hi-lo > 1
	if a.searchMode() != "auto" { // the only mode with several selections
		if lo, hi, err = a.amongFitting(ctx, lo, hi, fits); err != nil {
			return err
		}
	}
	for lo > 0 { // a batch that fits less memory need not fit more: the allocator decides otherwise
		ok, err := a.fitsUnder(ctx, &whole, lo)
		if err != nil {
			return err
		}
		if ok {
			break
		}
		lo, hi = lo-1, lo
	}
	a.max.Max = lo
	if a.batch = lo; lo == 0 {
		a.batch = 1 // report the memory of the smallest batch
	}
	switch {
	case cut:
		a.max.LimitedBy = "timeout"
		return nil
	case lo == mostBatch:
		a.max.LimitedBy = "no larger one was tried"
		return nil
	}
	return a.limit(tight, hi)
}

// leave subtracts the headroom from the job's cap and returns the job for the
// batch search: unless the headroom is the prediction's, it also leaves the
// difference between runs.
func (a *answer) leave(batch int64) (*job, error) {
	list, err := a.selections(batch)
	if err != nil {
		return nil, err
	}
	if err := a.reserveHeadroom(batch, list[0]); err != nil {
		return nil, err
	}
	tight := *a.j
	if a.j.headroom.Auto {
		return &tight, nil
	}
	tight.cap -= a.j.hard / spread
	b, err := a.build(batch, list[0])
	if err != nil {
		return nil, err
	}
	if guessed(b.Program) > a.j.hard/guessShare {
		tight.cap -= a.j.hard / guessSpread
	}
	return &tight, nil
}

// fitsUnder reports whether a batch fits the cap of a job with any of the
// segments that the search tries.
func (a *answer) fitsUnder(ctx context.Context, j *job, batch int64) (bool, error) {
	list, err := a.selections(batch)
	for _, segs := range list {
		if errors.Is(ctx.Err(), context.Canceled) {
			return false, ctx.Err()
		}
		ok, err := shared(a.m, fitting, func() (bool, error) {
			ev, err := a.m.evaluate(j, batch, segs, true)
			return err == nil && ev.fail == nil, err
		}, "alone ", j.of(), batch, " ", segs)
		if err != nil || ok {
			return ok, err
		}
	}
	return false, err
}

// searchMode returns the checkpoints of a batch search: none, given segments,
// or those of --checkpoint if it was given.
func (a *answer) searchMode() string {
	switch mode := a.j.cfg.Checkpoint; {
	case len(a.j.cfg.Segments) > 0:
		return "file"
	case a.j.train && (mode == "all" || mode == "sqrt"):
		return mode
	case a.j.train && (mode == "auto" || mode == "segments"):
		return "auto"
	}
	return "none"
}

// selections lists the segments that a batch search tries at a batch.
func (a *answer) selections(batch int64) ([][]train.Segment, error) {
	mode, err := a.searchMode(), error(nil)
	if mode == "none" || mode == "file" {
		return [][]train.Segment{a.j.cfg.Segments}, nil
	}
	var s *selector // of all that is not known
	list := func(name string, of func(s *selector) []train.Segment) []train.Segment {
		segs, sErr := shared(a.m, selected, func() (_ []train.Segment, err error) {
			if s == nil {
				s, err = a.m.selector(a.j, batch)
			}
			if err != nil {
				return nil, err
			}
			return of(s), nil
		}, name, a.j.of(), batch)
		err = cmp.Or(err, sErr)
		return segs
	}
	whole := list("all", func(s *selector) []train.Segment { return s.problem.All() })
	sqrt := list("sqrt", func(s *selector) []train.Segment { return s.problem.Sqrt() })
	switch {
	case err != nil:
		return nil, err
	case mode == "all":
		return [][]train.Segment{whole}, nil
	case mode == "sqrt":
		return [][]train.Segment{sqrt}, nil
	}
	least := list("least", func(s *selector) []train.Segment {
		segs, _, _ := s.problem.Solve(s.problem.MinBudget(checkpointsel.Sure), checkpointsel.Sure)
		return segs
	})
	nested := list("nested", func(s *selector) []train.Segment {
		n := s.nested()
		segs, _, _ := n.Solve(n.MinBudget(checkpointsel.Sure), checkpointsel.Sure)
		return segs
	})
	if err != nil {
		return nil, err
	}
	return [][]train.Segment{nil, least, whole, sqrt, nested}, nil
}

// neighbours is the largest number of smaller batches that amongFitting checks.
const neighbours = 48

// amongFitting steps down from a batch that fits to one whose smaller neighbours,
// within 2% and at least two, fit too; if there are many, it checks some of them.
// Close to the cap fragmentation decides, and a batch can fit by luck where a
// smaller one does not.
func (a *answer) amongFitting(ctx context.Context, lo, hi int64, fits func(int64) (bool, error)) (int64, int64, error) {
	stride := func() int64 { return max(lo/50/neighbours, 1) }
	for b := lo - 1; b >= 1 && b >= lo-max(lo/50, 2) && !a.late(ctx); b -= stride() {
		ok, err := fits(b)
		if err != nil {
			return 0, 0, err
		}
		if !ok {
			lo, hi = b-1, b
			for lo > 0 {
				if ok, err = fits(lo); err != nil || ok {
					break
				}
				hi = lo
				lo = max(lo-stride(), 0)
			}
			if err != nil {
				return 0, 0, err
			}
			b = lo
		}
	}
	return lo, hi, nil
}

// limit records what stops the first batch that does not fit.
func (a *answer) limit(j *job, batch int64) error {
	list, err := a.selections(batch)
	if err != nil {
		return err
	}
	ev, err := a.m.evaluate(j, batch, list[len(list)-1], true)
	if err != nil || ev.fail == nil {
		return err
	}
	if ev.fail.Node < 0 {
		a.max.LimitedBy = "parameters and inputs"
		return nil
	}
	n := &ev.Nodes[ev.fail.Node]
	a.max.LimitedBy = n.Phase.String()
	if n.Module != "" {
		a.max.LimitedBy += " (" + n.Module + ")"
	}
	return nil
}

// liveLimit returns the largest batch whose live bytes fit the cap, without
// workspaces: cuDNN uses smaller ones when it must. No larger batch can run. If
// time is up, the result is too large.
func (a *answer) liveLimit(ctx context.Context) (int64, error) {
	need := func(b int64) (int64, error) {
		if a.searchMode() == "auto" {
			return shared(a.m, leasts, func() (int64, error) {
				s, err := a.m.selector(a.j, b)
				if err != nil {
					return 0, err
				}
				return s.least(), nil
			}, a.j.of(), b)
		}
		list, err := a.selections(b)
		if err != nil {
			return 0, err
		}
		bd, err := a.m.build(a.j, b, list[0])
		if err != nil {
			return 0, err
		}
		first, steady := liveness.Steps(bd.Program)
		return max(liveness.LiveBound(first), liveness.LiveBound(steady)), nil
	}
	at1, err := need(1)
	if err != nil || at1 > a.j.cap {
		return 0, err
	}
	b := bracket{need: need, cap: a.j.cap, lo: 1, hi: 2, atLo: at1}
	for b.hi <= mostBound && b.try(b.hi) {
		// Two points give the slope: jump near the limit, then close in.
		slope := max((b.atLo-at1)/max(b.lo-1, 1), 1)
		b.hi = min(max(b.lo+(b.cap-b.atLo)/slope*9/8+1, b.lo*2), b.lo*8, mostBound+1)
	}
	for k := 0; b.hi-b.lo > 1 && b.lo < mostBound; k++ {
		if a.late(ctx) {
			return b.hi - 1, nil
		}
		b.try(b.guess(k))
	}
	return b.lo, nil
}

// A bracket is a batch lo, which fits, and a batch hi, which does not or is
// next to be tried.
type bracket struct {
	need       func(batch int64) (int64, error)
	cap        int64
	lo, hi     int64
	atLo, atHi int64 // bytes that they need; 0 if unknown
	fits       bool  // whether the last one tried fits
}

// try narrows the bracket. A batch that cannot even be built (tensors larger
// than any device) does not fit either.
func (b *bracket) try(batch int64) bool {
	n, err := b.need(batch)
	if b.fits = err == nil && n <= b.cap; b.fits {
		b.lo, b.atLo = batch, n
		return true
	}
	b.hi, b.atHi = batch, n
	if err != nil {
		b.atHi = 0
	}
	return false
}

// guess returns the batch to try next: where the line through both ends meets
// the cap, then the neighbour that would decide, then the middle.
func (b *bracket) guess(k int) int64 {
	switch {
	case k%3 == 0 && b.atHi > b.atLo:
		at := float64(b.hi-b.lo) * float64(b.cap-b.atLo) / float64(b.atHi-b.atLo)
		return min(max(b.lo+int64(at), b.lo+1), b.hi-1)
	case k%3 == 1 && b.fits:
		return b.lo + 1
	case k%3 == 1:
		return b.hi - 1
	}
	return b.lo + (b.hi-b.lo)/2
}
