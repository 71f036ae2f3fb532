package remat

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// A Class is the set of schedules that are admitted.
type Class int

// ClassSchedule admits any node any number of times, and any output dropped at
// any time; first executions keep the order of the nodes. This is the class of
// Checkmate, and its lower bounds hold for every smaller class.
const (
	ClassSchedule Class = iota

	// ClassOpSet admits every node at most twice, the second time not before
	// the backward pass: a set of operations is recomputed, each when its
	// output is read next or as an input of another that is. Its lower bound is
	// that of ClassSchedule.
	ClassOpSet
)

// Options are the settings of Solve.
type Options struct {
	Budget int64 // including the fixed bytes

	// Timeout ends the search; 0 stands for no limit but the context's.
	Timeout time.Duration

	// Patience ends the search after that many rounds in which neither the plan
	// nor the bound improved; 0 stands for DefaultPatience. A search that ends
	// this way, or with a proof of optimality, is reproducible.
	Patience int

	// Gap ends the search once Result.Gap is at most this.
	Gap float64

	Seed  uint64 // of the random choices
	Class Class

	// PlanOnly leaves the bound at what a few cuts prove quickly, and the time
	// to the search for schedules.
	PlanOnly bool

	Certificate bool // also return a proof of the lower bound

	// Progress is called now and then with the cost of the best schedule,
	// math.MaxInt64 if there is none yet, and the bound. It may be nil.
	Progress func(cost, bound int64)
}

// DefaultPatience is the number of rounds without progress after which Solve
// gives up.
const DefaultPatience = 12

// A Result is the best plan found and the best proof of its quality.
type Result struct {
	Cost       int64   // of the schedule
	Extra      int64   // Cost minus the cost of executing every node once
	Overhead   float64 // Extra as a fraction of executing every node once
	LowerBound int64   // no schedule within the budget costs less
	Gap        float64 // Cost minus LowerBound, as a fraction like Overhead
	Optimal    bool    // Cost equals LowerBound
	Peak       int64   // bytes, of the schedule
	Schedule   []Step

	Certificate *Certificate // of LowerBound, if requested
}

// ErrInfeasible is matched by errors that prove that no schedule fits.
var ErrInfeasible = errors.New("no schedule fits the budget")

// ErrNoPlan says that no schedule was found although no proof excludes one.
var ErrNoPlan = errors.New("no schedule found within the budget")

// An InfeasibleError says that no schedule fits: the execution of one node, or
// the outputs to keep if Node is the number of nodes, needs more than the
// budget by itself or with what must be resident beside it.
type InfeasibleError struct {
	Node         int // -1 if the proof needs several nodes together
	Name         string
	Need, Budget int64 // bytes

	Certificate *Certificate // if requested
}

func (e *InfeasibleError) Error() string {
	if e.Node < 0 {
		return fmt.Sprintf("%s: no schedule fits the budget of %d bytes, by a proof over several moments of it", e.Name, e.Budget)
	}
	return fmt.Sprintf("%s needs at least %d bytes, more than the budget of %d", e.Name, e.Need, e.Budget)
}

// Is makes errors.Is(err, ErrInfeasible) true.
func (e *InfeasibleError) Is(target error) bool { return target == ErrInfeasible }

// Solve searches for the schedule of least cost whose peak memory is within the
// budget. It returns the best one when it can prove that none is better, when
// ctx is done, or when one of the limits of opt is reached. The error is an
// InfeasibleError if the budget is too small for any schedule; it is ErrNoPlan,
// with only a lower bound in the result, if none was found.
func Solve(ctx context.Context, in *Instance, opt Options) (*Result, error) {
	if err := in.Validate(); err != nil {
		return nil, err
	}
	if opt.Class != ClassSchedule && opt.Class != ClassOpSet {
		return nil, fmt.Errorf("%s: unknown class of schedules %d", in.Name, opt.Class)
	}
	if need, v := in.WorkingSet(); need > opt.Budget {
		e := in.infeasible(v, need, opt.Budget)
		if opt.Certificate && opt.Budget >= in.Fixed {
			e.Certificate = newSolver(in, opt).certifyFloor(int32(v))
		}
		return nil, e
	}
	if opt.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, opt.Timeout)
		defer cancel()
	}
	s := newSolver(in, opt)
	if err := s.run(ctx); err != nil {
		return nil, err
	}
	return s.result()
}

// Bound returns a lower bound on the cost of all schedules within the budget,
// from cuts alone: faster than Solve, and reproducible. The error is an
// InfeasibleError if none fits.
func Bound(ctx context.Context, in *Instance, budget int64) (int64, error) {
	if err := in.Validate(); err != nil {
		return 0, err
	}
	if need, v := in.WorkingSet(); need > budget {
		return 0, in.infeasible(v, need, budget)
	}
	s := newSolver(in, Options{Budget: budget})
	if s.excessive() {
		s.screen(ctx)
	}
	if s.dead >= 0 {
		return 0, in.infeasible(int(s.dead), budget+1, budget)
	}
	return in.Total() + s.bound*s.p.costUnit, nil
}

// excessive reports whether the memory does not suffice without recomputation.
func (s *solver) excessive() bool { return !newPlan(s.p, s.p.sequence()).fits() }

func (in *Instance) infeasible(v int, need, budget int64) *InfeasibleError {
	e := &InfeasibleError{Node: v, Name: in.Name + ": the outputs to keep", Need: need, Budget: budget}
	if v >= 0 && v < len(in.Nodes) {
		e.Name = in.Name + ": " + in.label(v)
	}
	return e
}

// A solver is one run of Solve.
type solver struct {
	in  *Instance
	p   *problem
	opt Options

	cuts      []*search // the most promising cuts, highest bound first
	windows   *ladder
	improvers []*improver
	scout     *improver // for suggestions
	bound     int64     // on the cost of recomputation
	cost      int64     // of the best plan's recomputation, infinite if there is none
	best      []int32
	rounds    int   // so far
	dead      int32 // a cut that no schedule can pass, or -1
}

func newSolver(in *Instance, opt Options) *solver {
	if opt.Patience <= 0 {
		opt.Patience = DefaultPatience
	}
	return &solver{in: in, p: newProblem(in, opt.Budget), opt: opt, cost: infinite, dead: -1}
}

// run alternates between rounds of bounding and of improving, which run at
// the same time and exchange what they found only between rounds, so that
// the outcome does not depend on how fast either is.
func (s *solver) run(ctx context.Context) error {
	s.offer(s.p.sequence())
	if s.solved() {
		return nil
	}
	s.screen(ctx)
	if s.dead >= 0 {
		e := s.in.infeasible(int(s.dead), s.opt.Budget+1, s.opt.Budget)
		if s.opt.Certificate {
			e.Certificate = s.certifyFloor(s.dead)
		}
		return e
	}
	s.start(ctx)
	for stalled := 0; stalled < s.opt.Patience && !s.solved() && ctx.Err() == nil; stalled++ {
		bound, cost := s.bound, s.cost
		plans := s.plans()
		s.hint()

		more := 0
		if s.windows != nil && s.cost-s.bound > s.p.total/250 {
			more = min(3*s.windows.steps, 40000) // the bound will take as long again
		}

		both(func() { s.raise(ctx) }, func() { s.improve(ctx, plans, more) })
		s.rounds++
		s.collect()
		s.tell()
		if s.bound > bound || s.cost < cost {
			stalled = -1
		}
	}
	return nil
}

// hint tells the relaxations where the best plan recomputes.
func (s *solver) hint() {
	if s.windows == nil || s.best == nil {
		return
	}
	paid := make([]int64, s.p.n)
	var since int64 // cost of recomputation since the last first execution
	next := int32(0)
	var hints []int32
	for _, v := range s.best {
		if v != next {
			since += s.p.cost[v]
			continue
		}
		if paid[v] = since; since > 0 {
			hints = append(hints, v)
		}
		next, since = next+1, 0
	}
	slices.SortStableFunc(hints, func(a, b int32) int { return -compare(paid[a], paid[b]) })
	s.windows.hints, s.windows.paid = hints, paid
}

func (s *solver) tell() {
	if s.opt.Progress == nil {
		return
	}
	total, cost := s.in.Total(), int64(math.MaxInt64)
	if s.best != nil {
		cost = total + s.cost*s.p.costUnit
	}
	s.opt.Progress(cost, total+min(s.bound, s.cost)*s.p.costUnit)
}

func (s *solver) solved() bool {
	return s.bound >= s.cost || s.best != nil && float64(s.cost-s.bound) <= s.opt.Gap*float64(s.p.total)
}

// both runs two functions at the same time.
func both(f, g func()) {
	var wg sync.WaitGroup
	wg.Go(f)
	g()
	wg.Wait()
}

// offer takes a sequence if it fits and is cheaper than the best.
func (s *solver) offer(sequence []int32) {
	if sequence == nil {
		return
	}
	pl := newPlan(s.p, sequence)
	if pl.fits() && pl.cost < s.cost {
		s.cost, s.best = pl.cost, sequence
	}
}

// collect adopts the rounds' results.
func (s *solver) collect() {
	for _, m := range s.improvers {
		if m.cost < s.cost {
			s.offer(m.best)
		}
	}
	for _, c := range s.cuts {
		s.bound = max(s.bound, c.bound())
	}
	slices.SortStableFunc(s.cuts, func(a, b *search) int { return -compare(a.bound(), b.bound()) })
	if s.windows != nil {
		s.bound = max(s.bound, s.windows.bound())
	}
}

func compare(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// screened is the number of cuts that are examined before the search around the
// best of them starts, and promising the number that are kept.
const (
	screened  = 48
	promising = 4
)

// screen bounds the problem at a selection of cuts.
func (s *solver) screen(ctx context.Context) {
	excess := s.excess()
	tried := make([]bool, s.p.n)
	try := func(at []int32) {
		at = slices.DeleteFunc(at, func(t int32) bool { return t < 0 || int(t) >= s.p.n || excess[t] <= 0 || tried[t] })
		for _, t := range at {
			tried[t] = true
		}
		s.explore(ctx, at)
	}
	try(s.sample(excess))
	defer s.climb(excess)
	for step := int32(s.p.n / screened); len(s.cuts) > 0 && s.dead < 0; step /= 2 {
		t := s.cuts[0].cut.at
		step = max(step, 1)
		try([]int32{t - step, t + step})
		if s.cuts[0].cut.at == t && step == 1 {
			break
		} else if s.cuts[0].cut.at != t {
			step *= 2
		}
	}
}

// climb sets up the relaxations of several cuts.
func (s *solver) climb(excess []int64) {
	if s.p.n > mostNodes || s.dead >= 0 || len(s.cuts) == 0 || s.opt.PlanOnly {
		return
	}
	var cuts, over []int32
	for _, c := range s.cuts {
		cuts = append(cuts, c.cut.at)
	}
	for v, x := range excess {
		if x > 0 {
			over = append(over, int32(v))
		}
	}
	s.windows = newLadder(s.p, cuts, spread(over, 4*screened), s.opt.Seed)
	s.windows.record = s.opt.Certificate
}

// excess returns, for each node, by how much the memory without recomputation
// exceeds the limit.
func (s *solver) excess() []int64 {
	pl := newPlan(s.p, s.p.sequence())
	excess := make([]int64, s.p.n)
	for v := range excess {
		at := pl.runs[v][0]
		excess[v] = pl.mem.max(at, at+1) - s.p.cap
	}
	return excess
}

// sample returns the nodes with the largest excess and some evenly spread among
// all with any.
func (s *solver) sample(excess []int64) []int32 {
	var over []int32
	for v, x := range excess {
		if x > 0 {
			over = append(over, int32(v))
		}
	}
	var at []int32
	for i := 0; i < len(over); i += max(1, len(over)*2/screened) {
		at = append(at, over[i])
	}
	slices.SortStableFunc(over, func(a, b int32) int { return -compare(excess[a], excess[b]) })
	at = append(at, over[:min(len(over), screened/2)]...)
	slices.Sort(at)
	return slices.Compact(at)
}

// explore bounds the problem at the given cuts and keeps the best.
func (s *solver) explore(ctx context.Context, at []int32) {
	found := make([]*search, len(at))
	half := func(first int) func() {
		return func() {
			for i := first; i < len(at) && (ctx.Err() == nil || i == 0); i += 2 {
				found[i] = newSearch(newCut(s.p, at[i], int32(s.p.n)), infinite)
				if found[i] == nil {
					found[i] = &search{}
				}
			}
		}
	}
	both(half(0), half(1))
	for i, c := range found {
		if c != nil && c.cut == nil {
			s.dead = at[i]
			return
		}
		if c != nil {
			s.cuts = append(s.cuts, c)
		}
	}
	s.collect()
	s.cuts = s.cuts[:min(len(s.cuts), promising)]
}

// start makes the first plans: from the solutions of the best cuts, including
// those for a smaller limit, and from scratch.
func (s *solver) start(ctx context.Context) {
	s.scout = newImprover(s.p, s.opt.Seed+uint64(len(heats)))
	s.scout.restrict(s.opt.Class)
	s.scout.heat = heats[0]
	for i, heat := range heats {
		m := newImprover(s.p, s.opt.Seed+uint64(i))
		m.heat = heat
		m.restrict(s.opt.Class)
		s.improvers = append(s.improvers, m)
	}
	for i, c := range s.cuts {
		c.improve(ctx, s.cost, 200)
		m := s.improvers[i%len(s.improvers)]
		m.start(c.cut, c.best)
		m.finish(infinite)
	}
	s.collect()
	s.startBelow(ctx)
	m := s.improvers[0]
	for i := range 8 {
		limit := 64*s.p.n + 256
		if s.cost < infinite { // there is some recomputation to avoid
			limit = 3*s.p.n + 256
		}
		if ctx.Err() != nil || i >= 2 && s.cost < infinite || s.opt.Class != ClassSchedule {
			break
		}
		if sequence := simulate(s.p, m.rng, float64(i)*0.1, limit); sequence != nil {
			m.pl.load(sequence)
			m.finish(infinite)
		}
	}
	s.collect()
}

// margins are fractions of the memory that plans leave free at the best cut, as
// room for recomputation, in the attempts of startBelow.
var margins = [...]float64{0.04, 0.08, 0.13, 0.19, 0.26, 0.35, 0.45}

// startBelow makes plans from solutions of the best cut for a smaller limit.
// The improvers begin with the best of them.
func (s *solver) startBelow(ctx context.Context) {
	if len(s.cuts) == 0 || s.solved() {
		return
	}
	defer s.collect()
	least := s.cost
	for i, part := range margins {
		c := newCut(s.p, s.cuts[0].cut.at, int32(s.p.n))
		c.cap -= int64(part * float64(s.p.cap))
		below := newSearch(c, infinite)
		if below == nil || ctx.Err() != nil {
			return
		}
		below.improve(ctx, infinite, 50)
		m := s.scout
		m.cost, m.best = infinite, nil
		m.start(c, below.best)
		m.finish(min(least, infinite/2) * 3 / 2)
		if m.best == nil && least < infinite {
			return
		}
		least = min(least, m.cost)
		if t := s.improvers[i%len(s.improvers)]; m.cost < t.cost {
			t.cost, t.best = m.cost, m.best
		}
	}
}

// heats are those of the improvers, in turn.
var heats = [...]float64{0.005, 0.001, 0.02}

// raise is one round of bounding.
func (s *solver) raise(ctx context.Context) {
	if s.opt.PlanOnly {
		return
	}
	for _, c := range s.cuts {
		c.improve(ctx, s.cost, 300)
		if c.bound() >= s.cost {
			return
		}
	}
	if s.windows != nil {
		s.windows.raise(ctx, s.cost)
	}
}

// improve runs each improver once, for the given number of additional rounds, after
// the plans were tried.
func (s *solver) improve(ctx context.Context, plans []windowPlan, rounds int) {
	s.try(ctx, plans)
	for _, m := range s.improvers {
		if m.cost > s.cost+s.cost/50 {
			m.cost, m.best = s.cost, s.best
		}
		if m.best != nil {
			m.anneal(ctx, min(1000+s.rounds*500, 4000)+rounds)
		}
	}
}

// plans returns the plans that the last few solutions of relaxations suggest.
func (s *solver) plans() []windowPlan {
	if s.windows == nil || s.opt.Class != ClassSchedule {
		return nil
	}
	plans := s.windows.plans
	s.windows.plans = nil
	return plans[max(0, len(plans)-2*mostPlans):]
}

// try repairs suggested plans and improves those that come close to the best.
func (s *solver) try(ctx context.Context, plans []windowPlan) {
	m := s.scout
	for _, w := range plans {
		if ctx.Err() != nil {
			return
		}
		m.cost, m.best = infinite, nil
		m.follow(w.cuts, w.repeats)
		m.finish(infinite)
		if m.best == nil || m.cost > s.cost+s.cost/8 {
			continue
		}
		m.anneal(ctx, 300)
		if t := s.improvers[0]; m.cost < t.cost {
			t.cost, t.best = m.cost, m.best
		}
	}
}

// result assembles the result.
func (s *solver) result() (*Result, error) {
	if s.best == nil && s.bound >= infinite {
		e := &InfeasibleError{Node: -1, Name: s.in.Name, Need: s.opt.Budget + 1, Budget: s.opt.Budget}
		if s.opt.Certificate {
			e.Certificate = s.certificate(infinite)
		}
		return nil, e
	}
	unit, total := s.p.costUnit, s.in.Total()
	r := &Result{LowerBound: total + min(s.bound, s.cost)*unit}
	if s.opt.Certificate {
		r.Certificate = s.certificate(min(s.bound, s.cost))
	}
	if s.best == nil {
		r.Cost, r.Extra, r.Overhead, r.Gap = math.MaxInt64, math.MaxInt64, math.Inf(1), math.Inf(1)
		return r, fmt.Errorf("%s: %w of %d bytes; its cost would be at least %d", s.in.Name, ErrNoPlan, s.opt.Budget, r.LowerBound)
	}
	r.Schedule = schedule(s.in, s.best)
	peak, cost, err := Check(s.in, r.Schedule, s.opt.Budget)
	if err != nil {
		panic("remat: the checker rejects a plan: " + err.Error())
	}
	r.Cost, r.Extra, r.Peak = cost, cost-total, peak
	r.Optimal = r.LowerBound == cost
	if total > 0 {
		r.Overhead = float64(r.Extra) / float64(total)
		r.Gap = float64(cost-r.LowerBound) / float64(total)
	}
	return r, nil
}
