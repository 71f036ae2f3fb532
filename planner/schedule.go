package planner

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/memplan/memplan/checkpointsel"
	"github.com/memplan/memplan/checkpointsel/remat"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/planner/profile"
)

// scheduleClasses are the values of --checkpoint with which any operation may
// be recomputed, which memplan's own executor can run and PyTorch cannot.
var scheduleClasses = []struct {
	name  string
	class remat.Class
}{
	{"schedule", remat.ClassSchedule},
	{"ops", remat.ClassOpSet},
}

// Effort of the searches: they end at a gap relative to the step, or after a
// number of rounds without progress, not by the clock, so that results are
// reproducible.
const (
	scheduleTries   = 12  // budgets tried until the replay fits, with doubling steps
	budgetSteps     = 256 // first and last step, as a fraction of the budget
	floorExecutions = 8   // per node, in schedules for the least budget
)

var (
	thorough = effort{2e-4, 3}
	rough    = effort{5e-3, 1}
)

// A Recomputed is one operation that a schedule runs again.
type Recomputed struct {
	Op     string `json:"op"`
	Node   string `json:"node"`
	Module string `json:"module"`
	Times  int    `json:"times"`
}

// stepGraph builds the step without checkpoints, and its problem instance.
func (a *answer) stepGraph() (*train.Build, *checkpointsel.StepGraph, error) {
	b, err := a.build(a.batch, nil)
	if err != nil {
		return nil, nil, err
	}
	g, err := checkpointsel.NewStepGraph(b.Program, a.j.time.Seconds)
	return b, g, err
}

// plannedStep builds the program of a step with its segments, or its schedule.
func plannedStep(build func([]train.Segment) (*train.Build, error), j *job, segs []train.Segment, steps []remat.Step) (*train.Build, error) {
	if len(steps) == 0 {
		return build(segs)
	}
	b, err := build(nil)
	if err != nil {
		return nil, err
	}
	g, err := checkpointsel.NewStepGraph(b.Program, j.time.Seconds)
	if err != nil {
		return nil, err
	}
	return scheduled(b, g, steps)
}

// scheduled returns the build with a schedule applied to its program.
func scheduled(b *train.Build, g *checkpointsel.StepGraph, steps []remat.Step) (*train.Build, error) {
	if _, _, err := remat.Check(g.Instance, steps, math.MaxInt64); err != nil {
		return nil, fmt.Errorf("the schedule is of another step: %w", err)
	}
	p, err := g.Apply(steps)
	if err != nil {
		return nil, err
	}
	out := *b
	out.Program = p
	first := int32(-1) // first runs keep their order
	for i := range p.Nodes {
		if !p.Nodes[i].Recompute {
			first++
		}
		if first == b.Forward {
			out.Forward = int32(i)
			break
		}
	}
	return &out, nil
}

// selectSchedule finds the schedule of least recomputation whose replay fits
// the cap. The instance counts no more memory than the allocator, so its bound
// at the cap holds for every schedule; if the replay of a schedule does not
// fit, the instance's budget is lowered until one does.
func (a *answer) selectSchedule(ctx context.Context, name string, class remat.Class) error {
	b, g, err := a.stepGraph()
	if err != nil {
		return err
	}
	if a.j.cap == 0 {
		return fmt.Errorf("--checkpoint %s needs a budget: give --vram SIZE or --gpu NAME", name)
	}
	a.check = &CheckpointInfo{Class: name, Segments: []train.Segment{}, Optimal: true}
	if plain, err := replay(b, a.j, true); err != nil || plain.fail == nil {
		return err
	}
	s := &scheduleSearch{a: a, b: b, g: g, class: class, bound: g.Instance.Total()}
	if err := s.run(ctx); err != nil {
		return err
	}
	if s.steps == nil && s.reason == nil && ctx.Err() != nil { // neither a schedule nor a proof
		return ctx.Err()
	}
	if s.steps == nil {
		a.check = nil
		return a.noSchedule(ctx, g, s.reason)
	}
	a.steps = s.steps
	a.proof = fmt.Sprintf("least recomputation of any schedule over %d operations at %d bytes: %.6f s", len(g.Instance.Nodes), a.j.cap, float64(s.bound-g.Instance.Total())/1e9)
	done, err := scheduled(b, g, a.steps)
	if err != nil {
		return err
	}
	a.describeSchedule(s, done.Program)
	return nil
}

// describeSchedule fills in the checkpoint section.
func (a *answer) describeSchedule(s *scheduleSearch, p *program.Program) {
	total := s.g.Instance.Total()
	o := overhead(p, &a.j.time)
	lb := min(float64(s.bound-total)/float64(max(total, 1)), o)
	c := a.check
	c.RecomputeOverhead, c.LowerBound, c.Gap, c.ScheduleBound = round(o), round(lb), round(o-lb), round(lb)
	c.Optimal = o-lb < 1e-6
	c.Restore = s.g.Restores(a.steps)
	at := map[Recomputed]int{}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if !n.Recompute {
			continue
		}
		key := Recomputed{n.Op, callName(n), n.Module, 0}
		if _, ok := at[key]; !ok {
			at[key] = len(c.Recomputed)
			c.Recomputed = append(c.Recomputed, key)
		}
		c.Recomputed[at[key]].Times++
	}
}

// A scheduleSearch searches for a schedule whose replay fits.
type scheduleSearch struct {
	a     *answer
	b     *train.Build
	g     *checkpointsel.StepGraph
	class remat.Class

	steps  []remat.Step
	cost   int64
	bound  int64
	reason *remat.InfeasibleError // proof that nothing fits
}

// run searches for a budget of the instance at which a schedule's replay fits.
// The allocator's fragmentation is not in the instance and shows only in the
// replay: the budget is lowered by doubling steps until a replay fits, and then
// raised by bisection. These searches may be rough; the last one, at the budget
// found, is thorough.
func (s *scheduleSearch) run(ctx context.Context) error {
	limit := s.a.j.cap
	r, err := s.solve(ctx, limit, rough)
	if err != nil || r == nil {
		return err
	}
	over, err := s.taken(r)
	if err != nil {
		return err
	}
	if over <= 0 { // no fragmentation: the budget itself
		return s.finish(ctx, limit)
	}
	budget, step := limit, limit/budgetSteps
	for range scheduleTries {
		if r.Schedule == nil {
			return nil
		}
		high := budget // the least budget whose schedule is too large
		budget = min(budget, r.Peak) - max(over, step)
		step *= 2
		if r, err = s.solve(ctx, budget, rough); err != nil || r == nil {
			return err
		}
		if over, err = s.taken(r); err != nil {
			return err
		}
		if over <= 0 {
			return s.refine(ctx, budget, high)
		}
	}
	return nil
}

// refine tries budgets between one that fits and one that does not, and ends
// with a thorough search at the largest that fits.
func (s *scheduleSearch) refine(ctx context.Context, low, high int64) error {
	for high-low >= s.a.j.cap/budgetSteps && ctx.Err() == nil {
		mid := low + (high-low)/2
		r, err := s.solve(ctx, mid, rough)
		if err != nil || r == nil || r.Schedule == nil {
			return err
		}
		over, err := s.taken(r)
		if err != nil {
			return err
		}
		if over > 0 {
			high = mid
		} else {
			low = mid
		}
	}
	return s.finish(ctx, low)
}

// finish searches thoroughly at a budget at which a replay fits.
func (s *scheduleSearch) finish(ctx context.Context, budget int64) error {
	r, err := s.solve(ctx, budget, thorough)
	if err != nil || r == nil {
		return err
	}
	_, err = s.taken(r)
	return err
}

// taken adopts a schedule whose replay fits if it is cheaper than the current
// one. over is the number of bytes by which the replay exceeds the cap, at most
// 0 if it fits.
func (s *scheduleSearch) taken(r *remat.Result) (over int64, err error) {
	if r.Schedule == nil {
		return 1, nil
	}
	if over, err = s.excess(r); err != nil || over > 0 {
		return over, err
	}
	if s.steps == nil || r.Cost < s.cost {
		s.steps, s.cost = r.Schedule, r.Cost
	}
	return over, nil
}

// An effort ends a search for a schedule: at a gap relative to the step, or
// after that many rounds without progress.
type effort struct {
	gap      float64
	patience int
}

// solve returns the best schedule of the instance at a budget. The result is
// nil if no schedule fits, and has no schedule if the search ended without one.
func (s *scheduleSearch) solve(ctx context.Context, budget int64, e effort) (*remat.Result, error) {
	opt := remat.Options{Budget: budget, Class: s.class, Gap: e.gap, Patience: e.patience, PlanOnly: budget != s.a.j.cap}
	if end, ok := ctx.Deadline(); ok { // leave time for other budgets
		opt.Timeout = max(time.Until(end)/3, time.Millisecond)
	}
	if p := s.a.m.Progress; p != nil {
		total := float64(max(s.g.Instance.Total(), 1))
		opt.Progress = func(cost, bound int64) {
			p(0, 0, fmt.Sprintf("schedule: best +%.2f%%, bound +%.2f%%", 100*(float64(cost)/total-1), 100*(float64(bound)/total-1)))
		}
	}
	r, err := remat.Solve(ctx, s.g.Instance, opt)
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return nil, ctx.Err()
	case errors.Is(err, remat.ErrInfeasible):
		if budget == s.a.j.cap {
			errors.As(err, &s.reason)
		}
		return nil, nil //nolint:nilnil // no schedule fits
	case errors.Is(err, remat.ErrNoPlan):
		return r, nil
	}
	if r != nil && budget == s.a.j.cap { // a bound for every schedule that fits
		s.bound = max(s.bound, r.LowerBound)
	}
	return r, err
}

// excess returns the number of bytes by which the replay of a schedule exceeds
// the cap, at most 0 if it fits.
func (s *scheduleSearch) excess(r *remat.Result) (int64, error) {
	b, err := scheduled(s.b, s.g, r.Schedule)
	if err != nil {
		return 0, err
	}
	ev, err := replay(b, s.a.j, true)
	if err != nil || ev.fail == nil {
		return 0, err
	}
	if ev, err = replay(b, s.a.j, false); err != nil {
		return 0, err
	}
	return max(ev.res.Allocated-s.a.j.cap, 1), nil
}

// noSchedule reports the smallest possible budget, and the reason for it.
func (a *answer) noSchedule(ctx context.Context, g *checkpointsel.StepGraph, reason *remat.InfeasibleError) error {
	f, err := remat.Least(ctx, g.Instance, 0, floorExecutions)
	if err != nil {
		return a.unlessLate(ctx, err)
	}
	card := func(n int64) string { return profile.FormatBytes(n + a.j.device.Context) }
	text := fmt.Sprintf("no schedule was found that fits; the least that one is known to need is about %s of the card's memory", card(f.Budget))
	if reason != nil {
		text = fmt.Sprintf("no schedule fits, whatever it recomputes; the least that one is known to need is about %s of the card's memory", card(f.Budget))
	}
	what := "what must be kept to the end"
	if f.Node < len(g.Instance.Nodes) {
		what = g.Instance.Nodes[f.Node].Name
	}
	alone := "with its inputs and outputs alone"
	if !f.Alone {
		alone = "with what must be there beside it"
	}
	a.note("no-schedule", "%s; none needs less than %s: %s needs it, %s", text, card(f.Bound), what, alone)
	return nil
}

// unlessLate drops the error of a bound for which --timeout left no time: the
// report then omits it.
func (a *answer) unlessLate(ctx context.Context, err error) error {
	if a.late(ctx) {
		return nil
	}
	return err
}

// noSegments reports what a schedule of operations could do where segments
// cannot: nothing, if one operation needs more than the cap.
func (a *answer) noSegments(ctx context.Context) error {
	_, g, err := a.stepGraph()
	if err != nil {
		return err
	}
	_, err = remat.Bound(ctx, g.Instance, a.j.cap)
	var reason *remat.InfeasibleError
	switch {
	case errors.As(err, &reason):
		a.note("no-schedule", "nor does any schedule of operations: %s needs more with what must be there beside it", reason.Name)
		return nil
	case err == nil && a.j.meshed != nil: // no executor runs schedules on several cards
		return nil
	case err == nil:
		a.note("schedule-may-fit", "a schedule of operations may fit, for memplan's executor: try --checkpoint schedule")
		return nil
	}
	return a.unlessLate(ctx, err)
}

// price sets the cost of PyTorch's restriction to checkpointed modules: the
// overhead above the least of any schedule.
func (a *answer) price(ctx context.Context) error {
	_, g, err := a.stepGraph()
	if err != nil {
		return err
	}
	bound, err := remat.Bound(ctx, g.Instance, a.j.cap)
	if err != nil {
		return a.unlessLate(ctx, err)
	}
	total := g.Instance.Total()
	lb := min(float64(bound-total)/float64(max(total, 1)), a.check.RecomputeOverhead)
	c := a.check
	if c.ScheduleBound = round(lb); c.ScheduleBound > c.LowerBound { // a plan for PyTorch is a schedule, too
		c.LowerBound = c.ScheduleBound
		c.Gap = round(c.RecomputeOverhead - c.LowerBound)
	}
	return nil
}
