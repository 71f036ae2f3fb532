package planner

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/memplan/memplan/checkpointsel"
	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/liveness"
	"github.com/memplan/memplan/planner/profile"
)

// selectFor finds the segments of least recomputation whose replay fits the
// cap: segments side by side, or nested ones where those do not fit or cost
// more. The levels that the selection works on are a lower bound of what the
// allocator shows, so the least cost at the cap itself bounds every plan of
// the class; when its replay does not fit, the level is lowered until one does.
func (a *answer) selectFor(ctx context.Context) error {
	plain, err := a.m.evaluate(a.j, a.batch, nil, true)
	if err != nil {
		return err
	}
	if plain.fail == nil {
		if a.j.cfg.Checkpoint == "auto" {
			s := &selector{step: 1}
			return a.describe(s, 0, true)
		}
		return nil
	}
	free, err := replay(plain.Build, a.j, false)
	if err != nil {
		return err
	}
	a.note("checkpoints-needed", "without checkpoints the step reserves %s, %s more than fits", profile.FormatBytes(free.res.Reserved), profile.FormatBytes(free.res.Reserved-a.j.cap))
	s, err := a.m.selector(a.j, a.batch)
	if err != nil {
		return err
	}
	segs, cost, err := a.fitting(ctx, s.problem, a.flatCost(s), math.Inf(1), s.problem.All(), s.problem.Sqrt())
	if err != nil {
		return err
	}
	n := s.nested()
	_, bound, ok := n.Solve(a.j.cap, checkpointsel.Hoped)
	if _, b, flat := s.problem.Solve(a.j.cap, checkpointsel.Hoped); flat {
		bound = min(bound, b)
	}
	if ok && cost > bound { // nested segments may do better
		inner, c, err := a.fitting(ctx, n, a.nestedCost(n), cost)
		if err != nil {
			return err
		}
		if c < cost*(1-leastGain) {
			segs = inner
		}
	}
	if segs == nil {
		least := min(n.MinBudget(checkpointsel.Hoped), s.problem.MinBudget(checkpointsel.Hoped))
		a.note("no-selection", "no selection of segments fits: the least that any needs is about %s of the card's memory", profile.FormatBytes(least+a.j.device.Context))
		return a.noSegments(ctx)
	}
	a.segs = segs
	a.proof = fmt.Sprintf("least recomputation of any choice of segments, nested ones among them, over %d module boundaries at %d bytes: %.6f s", len(n.Units), a.j.cap, bound)
	if err := a.describe(s, bound, true); err != nil {
		return err
	}
	return a.price(ctx)
}

// levels is how finely the level of a selection is lowered until its replay
// fits.
const levels = 48

// leastGain is the part of recomputation that nesting must save to be worth
// its regions.
const leastGain = 1e-3

// A choice is a class of selections: a problem of checkpointsel.
type choice interface {
	Solve(budget int64, v checkpointsel.View) (segs []train.Segment, cost float64, ok bool)
	MinBudget(v checkpointsel.View) int64
}

// fitting finds a selection whose replay fits and that costs less than most:
// first the one that would be optimal if every segment freed as much as hoped;
// else the selection of the highest level whose replay fits, less the segments
// that turn out not to be needed. Others are tried if that of the least level
// does not fit. The cost is in seconds, +Inf if nothing fits; costOf gives
// that of a selection.
func (a *answer) fitting(ctx context.Context, p choice, costOf func([]train.Segment) float64, most float64, others ...[]train.Segment) ([]train.Segment, float64, error) {
	none := math.Inf(1)
	best, bound, ok := p.Solve(a.j.cap, checkpointsel.Hoped)
	if !ok || bound >= most {
		return nil, none, nil
	}
	if ok, err := a.replays(ctx, best); ok || err != nil {
		return best, costOf(best), err
	}
	lo, hi := p.MinBudget(checkpointsel.Sure), a.j.cap
	least, _, _ := p.Solve(lo, checkpointsel.Sure)
	best, err := a.anyFits(ctx, append([][]train.Segment{least}, others...)...)
	if err != nil {
		return nil, none, err
	}
	tried := map[string]bool{fmt.Sprint(least): true}
	for i := range int64(levels) {
		segs, cost, _ := p.Solve(hi-(hi-lo)*i/levels, checkpointsel.Sure)
		key := fmt.Sprint(segs)
		if tried[key] {
			continue
		}
		if cost >= most {
			break
		}
		tried[key] = true
		ok, err := a.replays(ctx, segs)
		if err != nil {
			return nil, none, err
		}
		if ok {
			best = segs
			break
		}
	}
	if best == nil {
		return nil, none, nil
	}
	if best, err = a.thin(ctx, costOf, best); err != nil {
		return nil, none, err
	}
	return best, costOf(best), nil
}

func (a *answer) flatCost(s *selector) func([]train.Segment) float64 {
	return func(segs []train.Segment) float64 {
		_, c, _ := s.problem.Levels(segs, checkpointsel.Hoped)
		return c
	}
}

func (a *answer) nestedCost(n *checkpointsel.Nested) func([]train.Segment) float64 {
	return func(segs []train.Segment) float64 {
		_, c, _ := n.Levels(a.m.lifted, segs, checkpointsel.Hoped)
		return c
	}
}

// replays reports whether a selection fits under the cap.
func (a *answer) replays(ctx context.Context, segs []train.Segment) (bool, error) {
	if canceled(ctx) {
		return false, ctx.Err()
	}
	ev, err := a.m.evaluate(a.j, a.batch, segs, true)
	return err == nil && ev.fail == nil, err
}

// anyFits returns the first selection that fits, nil if none does.
func (a *answer) anyFits(ctx context.Context, list ...[]train.Segment) ([]train.Segment, error) {
	for _, segs := range list {
		if len(segs) == 0 {
			continue
		}
		if ok, err := a.replays(ctx, segs); ok || err != nil {
			return segs, err
		}
	}
	return nil, nil
}

// mostThinned bounds how many segments are tried to be removed.
const mostThinned = 32

// thin removes segments that the selection fits without, the dearest first.
func (a *answer) thin(ctx context.Context, costOf func([]train.Segment) float64, segs []train.Segment) ([]train.Segment, error) {
	order := slices.Clone(segs)
	cost := func(s train.Segment) float64 { return costOf([]train.Segment{s}) }
	slices.SortStableFunc(order, func(x, y train.Segment) int { return cmp.Compare(cost(y), cost(x)) })
	for _, s := range order[:min(len(order), mostThinned)] {
		rest := slices.DeleteFunc(slices.Clone(segs), func(x train.Segment) bool { return slices.Equal(x.Modules, s.Modules) })
		if costOf(rest) >= costOf(segs) { // what stood in it runs again all the same
			continue
		}
		ok, err := a.replays(ctx, rest)
		if err != nil {
			return nil, err
		}
		if ok {
			segs = rest
		}
	}
	return segs, nil
}

func (a *answer) note(code, format string, args ...any) {
	a.notes = append(a.notes, graph.Warning{Code: code, Message: fmt.Sprintf(format, args...)})
}

// largest bounds a batch search.
const largest = 1 << 20

// spread is the part of the cap that a batch search leaves free, 0.4%: where
// the driver places segments differs from run to run, and with it the reserved
// bytes, by 0.2% on average over the 44 recorded runs of package liveness/alloc.
const spread = 256

// guessSpread is what the search leaves free, one part in so many, where large
// workspaces are guesses.
const guessSpread = 12

// searchBatch finds the largest batch whose replay fits the cap, less what
// runs differ by: first the
// largest whose live bytes alone fit, by bisection on a lower bound that
// grows with the batch, then downwards by replay under the cap.
func (a *answer) searchBatch(ctx context.Context) error {
	tight := *a.j
	tight.cap -= tight.cap / spread
	fits := func(b int64) (bool, error) {
		if canceled(ctx) {
			return false, ctx.Err()
		}
		ev, err := a.m.evaluate(&tight, b, a.j.cfg.Segments, true)
		return err == nil && ev.fail == nil, err
	}
	upper, err := a.liveLimit()
	if err != nil {
		return err
	}
	if a.m.guess > a.j.cap/guessShare {
		tight.cap -= a.j.cap / guessSpread
	}
	a.max = &BatchInfo{UpperBound: upper, Checkpoint: "none"}
	a.batch = max(upper, 1)
	lo, hi := int64(0), upper+1
	for step := max(upper/64, 1); hi-lo > 1; {
		mid := hi - step
		if lo > 0 || mid <= lo {
			mid = lo + (hi-lo)/2
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
	if lo, hi, err = a.solid(lo, hi, fits); err != nil {
		return err
	}
	a.max.Max = lo
	if a.batch = lo; lo == 0 {
		a.batch = 1 // report what the smallest batch would need
	}
	return a.limit(&tight, hi)
}

// solid steps down from a batch that fits to one whose smaller neighbours,
// within 2% and at least two, fit too. Close to the cap fragmentation decides,
// and a batch can fit by luck where a smaller one does not.
func (a *answer) solid(lo, hi int64, fits func(int64) (bool, error)) (int64, int64, error) {
	for b := lo - 1; b >= 1 && b >= lo-max(lo/50, 2); b-- {
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
				lo, hi = lo-1, lo
			}
			if err != nil {
				return 0, 0, err
			}
			b = lo
		}
	}
	return lo, hi, nil
}

// limit names what stops the first batch that does not fit.
func (a *answer) limit(j *job, batch int64) error {
	ev, err := a.m.evaluate(j, batch, j.cfg.Segments, true)
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

// liveLimit is the largest batch whose live bytes fit the cap, workspaces
// aside: cuDNN takes smaller ones when it must. No larger batch can run.
func (a *answer) liveLimit() (int64, error) {
	need := func(b int64) (int64, error) {
		bd, err := a.m.build(a.j, b, a.j.cfg.Segments)
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
	// A batch that cannot even be built (tensors larger than any device) does
	// not fit either.
	exceeds := func(n int64, err error) bool { return err != nil || n > a.j.cap }
	lo, hi := int64(1), int64(2)
	for hi <= largest {
		n, err := need(hi)
		if exceeds(n, err) {
			break
		}
		// Two points give the slope: jump near the limit, then close in.
		slope := max((n-at1)/(hi-1), 1)
		lo, hi = hi, min(max(hi+(a.j.cap-n)/slope*9/8+1, hi*2), hi*8, largest+1)
	}
	for hi-lo > 1 && lo < largest {
		mid := lo + (hi-lo)/2
		if exceeds(need(mid)) {
			hi = mid
		} else {
			lo = mid
		}
	}
	return lo, nil
}
