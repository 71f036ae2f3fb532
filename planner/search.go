package planner

import (
	"context"
	"fmt"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/liveness"
	"github.com/memplan/memplan/planner/profile"
)

// attempts bounds how often a selection is made anew for a lower level after
// its replay did not fit.
const attempts = 24

// selectFor finds the segments of least recomputation whose replay fits the
// cap. The levels that the selection works on are a lower bound of what the
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
	segs, bound, optimal, err := a.fitting(ctx, s)
	if err != nil {
		return err
	}
	if segs == nil {
		least := s.problem.MinBudget()
		a.note("no-selection", "no selection of segments fits: the least that any needs is about %s of the card's memory", profile.FormatBytes(least+a.j.device.Context))
		return nil
	}
	a.segs = segs
	a.proof = fmt.Sprintf("least recomputation of any choice of segments over %d module boundaries at %d bytes: %.6f s", len(s.problem.Units), a.j.cap, bound)
	return a.describe(s, bound, optimal)
}

// fitting lowers the level until a selection's replay fits. bound is the
// least cost at the cap; optimal, whether the result has it.
func (a *answer) fitting(ctx context.Context, s *selector) (segs []train.Segment, bound float64, optimal bool, err error) {
	level := a.j.cap
	var cost float64
	tried := map[string]bool{}
	for i := range attempts {
		if canceled(ctx) {
			return nil, bound, false, ctx.Err()
		}
		var ok bool
		if segs, cost, ok = s.problem.Solve(level); !ok {
			return nil, bound, false, nil
		}
		if i == 0 {
			bound = cost
		}
		key := fmt.Sprint(segs)
		if !tried[key] {
			tried[key] = true
			ev, err := a.m.evaluate(a.j, a.batch, segs, true)
			if err != nil {
				return nil, bound, false, err
			}
			if ev.fail == nil {
				return segs, bound, cost <= bound, nil
			}
		}
		level -= max(a.j.cap/200, 1)
	}
	return nil, bound, false, nil
}

func (a *answer) note(code, format string, args ...any) {
	a.notes = append(a.notes, graph.Warning{Code: code, Message: fmt.Sprintf(format, args...)})
}

// largest bounds a batch search.
const largest = 1 << 20

// searchBatch finds the largest batch whose replay fits the cap: first the
// largest whose live bytes alone fit, by bisection on a lower bound that
// grows with the batch, then downwards by replay under the cap.
func (a *answer) searchBatch(ctx context.Context) error {
	fits := func(b int64) (bool, error) {
		if canceled(ctx) {
			return false, ctx.Err()
		}
		ev, err := a.m.evaluate(a.j, b, a.j.cfg.Segments, true)
		return err == nil && ev.fail == nil, err
	}
	upper, err := a.liveLimit()
	if err != nil {
		return err
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
	a.max.Max = lo
	if a.batch = lo; lo == 0 {
		a.batch = 1 // report what the smallest batch would need
	}
	return a.limit(hi)
}

// limit names what stops the first batch that does not fit.
func (a *answer) limit(batch int64) error {
	ev, err := a.m.evaluate(a.j, batch, a.j.cfg.Segments, true)
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
	lo, hi := int64(1), int64(2)
	for hi <= largest {
		n, err := need(hi)
		if err != nil {
			return 0, err
		}
		if n > a.j.cap {
			break
		}
		// Two points give the slope: jump near the limit, then close in.
		slope := max((n-at1)/(hi-1), 1)
		lo, hi = hi, max(hi+(a.j.cap-n)/slope*9/8+1, hi*2)
		hi = min(hi, largest+1)
	}
	for hi-lo > 1 && lo < largest {
		mid := lo + (hi-lo)/2
		n, err := need(mid)
		if err != nil {
			return 0, err
		}
		if n <= a.j.cap {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo, nil
}
