package planner

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"math/bits"
	"slices"

	"github.com/memplan/memplan/checkpointsel"
	"github.com/memplan/memplan/graph/program"
)

// A BestBatch says why a batch is the one of the most samples per second.
//
// What BoundSamplesPerSecond certifies: by the time model of the report, no batch with any
// choice of checkpointed modules, side by side, nested or keeping results of calls, that fits the
// budget does more. Of each batch that was predicted the bound is a proof: a step
// takes at least its time without recomputation and, where that does not fit, at least the
// device's time with the least recomputation that any such choice needs. Batches between two
// that were predicted rest on one assumption: that no step and no least
// recomputation takes less time than those of a smaller batch. Products whose sizes fit a
// kernel's tiles can break it, by multiples of 8 and of powers of two: the smaller batch of
// each such pair is the one with the most factors of two.
type BestBatch struct {
	Checkpoint       string  `json:"checkpoint"` // the value of --checkpoint
	SamplesPerSecond float64 `json:"samplesPerSecond"`
	Bound            float64 `json:"boundSamplesPerSecond"`
	Gap              float64 `json:"gap"`              // how far the bound is above, 0.01 is 1%
	Target           int64   `json:"target,omitempty"` // samples of a step
	// LastBatch is the number of samples of the step's last micro-batch, TargetMs the time of
	// the target's samples, with Target.
	LastBatch int64        `json:"lastBatch,omitempty"`
	TargetMs  float64      `json:"targetMs,omitempty"`
	Predicted int          `json:"predicted"`         // batches that were predicted
	Plain     *BatchPoint  `json:"plain,omitempty"`   // the largest without recomputation, of those predicted
	Largest   *BatchPoint  `json:"largest,omitempty"` // the largest that fits, as fast as --batch max knows it
	Points    []BatchPoint `json:"points"`            // those predicted, or some of them, by batch
}

// A BatchPoint is a batch with its memory and speed without recomputation or, of a largest
// one, with what it needs.
type BatchPoint struct {
	Batch            int64   `json:"batch"`
	Fits             bool    `json:"fits"`
	ProcessBytes     int64   `json:"processBytes"`
	SamplesPerSecond float64 `json:"samplesPerSecond"`
	Bound            float64 `json:"boundSamplesPerSecond"` // of any checkpoints that fit; 0: none can
}

// The effort of a search, in nodes of steps that are built: what any step takes beside its
// nodes, how often as much as a step a bound on recomputation takes, and a selection. Bounds
// are sought until all is within closeEnough after some effort, and in any case until the
// most; then selections until the last, of which those that are not likely to do more take a
// small part. With --timeout nothing ends before its time.
const (
	stepEffort      = 150
	boundEffort     = 5
	selectionEffort = 100
	someEffort      = 50_000
	mostEffort      = 110_000
	lastEffort      = 90_000
	smallEffort     = 40_000
	leastChosen     = 2 // batches, where the first did more than any without: the allocator's gaps decide between neighbours
	closeEnough     = 0.005
	mostPoints      = 48
)

// A bestSearch looks for the batch of the most samples per second, by branch and bound.
type bestSearch struct {
	m        *Model
	cfg      Config
	target   int64    // samples of a step; 0: any
	plain    bool     // a batch that fits without recomputation needs no other checkpoints
	policies []string // values of --checkpoint for one that does not
	tries    map[int64]*batchTry
	best     *batchTry
	rest     float64 // bound on what was given up
	effort   int     // of bounds
	selected int     // effort of selections
	chosen   int     // batches that checkpoints were chosen for
	quick    float64 // samples per second of a step that is known to fit
	known    int64   // the largest batch that fits with some checkpoints
}

// A batchTry is a batch that was predicted.
type batchTry struct {
	batch   int64
	a       *answer // of the fastest step found; nil: none fits
	rate    float64 // samples per second of that
	policy  string
	total   float64 // seconds of the target's samples
	bound   float64 // on samples per second
	alone   float64 // that of whole segments, side by side or nested
	likely  float64 // samples per second if segments free no more than is sure
	settled bool    // all policies were tried
	nodes   int
	point   BatchPoint
	times   leastTimes
	last    float64 // least seconds of it as a last micro-batch: forward and backward
}

// leastTimes are lower bounds on the seconds of a step of one, two and three micro-batches
// of one size. A step of more takes at least as much more for each as the third: the time
// is convex in their number.
type leastTimes struct{ step [program.MicrosBuilt]float64 }

// of is the least time of a step of n micro-batches.
func (l *leastTimes) of(n int64) float64 {
	const built = program.MicrosBuilt
	if n <= built {
		return l.step[max(n, 1)-1]
	}
	return l.step[built-1] + float64(n-built)*(l.step[built-1]-l.step[built-2])
}

// bestOf answers a question with --batch best or --target-batch.
func (m *Model) bestOf(ctx context.Context, cfg Config) (*answer, error) {
	s := &bestSearch{m: m, cfg: cfg, target: int64(cfg.Target), tries: map[int64]*batchTry{}}
	if err := s.check(); err != nil {
		return nil, err
	}
	s.cfg.BatchBest, s.cfg.Target = false, 0
	defer m.share()()
	info, largest, err := s.largest(ctx)
	if err != nil || info.Max == 0 {
		return s.none(ctx, err)
	}
	s.known = info.Max
	top := min(info.UpperBound, mostBatch)
	if s.target > 0 {
		top = min(top, s.target)
	}
	if err := s.search(ctx, top); err != nil {
		return nil, err
	}
	if s.best == nil {
		return s.none(ctx, nil)
	}
	a := s.best.a
	info.Best, a.max = s.describe(largest), info
	if err := m.bind(a.batch, a.j.cfg.Dims, a.j.cfg.Shapes); err != nil { // it was others' last
		return nil, err
	}
	return m.finish(a)
}

// check returns an error for a question that leaves nothing to choose, and settles between
// which checkpoints.
func (s *bestSearch) check() error {
	c := &s.cfg
	j, err := s.m.resolve(*c)
	switch {
	case err != nil:
		return err
	case j.cap == 0:
		return errors.New("--batch best and --target-batch need a budget: give --vram SIZE or --gpu NAME")
	case s.target > 0 && (c.Batch > 0 || c.BatchMax):
		return errors.New("--target-batch chooses the batch: give it without --batch, or with --batch best")
	case s.target > 0 && c.Accumulate > 1:
		return errors.New("--target-batch chooses how many batches accumulate: give it without --accumulate")
	case s.target > 0 && !j.train:
		return errors.New("--target-batch is for training: an inference accumulates nothing")
	case j.meshed != nil:
		return errors.New("--batch best and --target-batch are for one card: give them without --parallel")
	case len(c.Schedule) > 0, slices.Contains([]string{scheduleClasses[0].name, scheduleClasses[1].name}, c.Checkpoint):
		return errors.New("--batch best and --target-batch choose among checkpoints that PyTorch applies: give them without a schedule")
	}
	switch mode := c.Checkpoint; {
	case !j.train || mode == "none":
		s.plain = true
	case len(c.Segments) > 0, mode == "all", mode == "sqrt", IsSetting(mode):
	case mode == "segments":
		s.plain, s.policies = true, []string{mode}
	default:
		s.plain, s.policies = true, []string{"all", "sqrt", "auto", "segments"}
	}
	return nil
}

// none answers with the smallest batch, where no batch fits.
func (s *bestSearch) none(ctx context.Context, err error) (*answer, error) {
	if err != nil {
		return nil, err
	}
	c := s.cfg
	c.BatchMax = true
	return s.m.answer(ctx, c)
}

// largest searches for the largest batch, with any checkpoints that the question leaves
// open, and for how fast it is.
func (s *bestSearch) largest(ctx context.Context) (*BatchInfo, *BatchPoint, error) {
	c := s.cfg
	c.Batch, c.BatchMax = 0, true
	if len(s.policies) > 0 {
		c.Checkpoint = cmp.Or(c.Checkpoint, "auto")
	}
	j, err := s.m.resolve(c)
	if err != nil {
		return nil, nil, err
	}
	a := &answer{m: s.m, j: j, segs: c.Segments}
	if err := a.asFramework(); err != nil {
		return nil, nil, err
	}
	if err := a.chooseBatch(ctx); err != nil || a.max.Max == 0 {
		return a.max, nil, err
	}
	list, err := a.selections(a.batch)
	for _, segs := range list {
		ev, err := s.m.evaluate(j, a.batch, segs, true)
		if err != nil {
			return nil, nil, err
		}
		if ev.fail == nil {
			t := timeOf(ev.Program, &j.time, a.batch)
			t.round()
			return a.max, &BatchPoint{Batch: a.batch, Fits: true, ProcessBytes: ev.res.Reserved + j.besides(), SamplesPerSecond: t.SamplesPerSecond}, nil
		}
	}
	return a.max, nil, err
}

// A stretch is the batches from lo to hi, of which lo was predicted.
type stretch struct {
	lo, hi int64
	bound  float64
}

// search predicts batches until no other can do more, or the effort is spent: first all that
// bounds leave, then what each of them does with checkpoints, the most promising first.
func (s *bestSearch) search(ctx context.Context, top int64) error {
	if err := s.start(ctx, top); err != nil {
		return err
	}
	for open := []stretch{{1, top, s.bound(1, top)}}; ; {
		slices.SortFunc(open, func(x, y stretch) int {
			return cmp.Or(cmp.Compare(x.bound, y.bound), cmp.Compare(x.hi, y.hi))
		})
		last := len(open) - 1
		if last < 0 || open[last].bound <= s.floor() {
			break
		}
		x := open[last]
		if s.bounded(ctx, x.bound) {
			s.rest = max(s.rest, x.bound)
			break
		}
		open = open[:last]
		if x.lo == x.hi { // settled below
			continue
		}
		mid := twos(x.lo, x.hi)
		if _, err := s.try(ctx, mid); err != nil {
			return err
		}
		open = append(open, stretch{x.lo, mid - 1, min(x.bound, s.bound(x.lo, mid-1))}, stretch{mid, x.hi, min(x.bound, s.bound(mid, x.hi))})
	}
	for t := s.promising(); t != nil; t = s.promising() {
		if !s.selects(ctx, t) {
			s.rest, t.settled = max(s.rest, t.bound), true
		} else if err := s.settle(ctx, t); err != nil {
			return err
		}
	}
	s.rest = max(s.rest, s.quick)
	return nil
}

// start looks for the largest batch that fits without recomputation, by bisection.
func (s *bestSearch) start(ctx context.Context, top int64) error {
	_, err := s.try(ctx, 1)
	lo, hi := int64(1), top+1
	for err == nil && hi-lo > 1 {
		mid := lo + (hi-lo)/2
		if hi > top {
			mid = min(mid, 4*lo)
		}
		t, tErr := s.try(ctx, mid)
		if err = tErr; err == nil && t.point.Fits {
			lo = mid
		} else {
			hi = mid
		}
	}
	return err
}

// promising is the batch that is likely to do most of those whose policies were not tried and
// that may do more than the best; nil: none. Beyond the largest that is known to fit, with
// some checkpoints, the next batch is.
func (s *bestSearch) promising() (best *batchTry) {
	for _, b := range slices.Sorted(maps.Keys(s.tries)) {
		t := s.tries[b]
		switch {
		case t.settled || s.best != nil && t.bound <= s.best.rate:
		case best == nil, b <= s.known && t.likely > best.likely:
			best = t
		}
	}
	return best
}

// twos is the number above lo and up to hi with the most factors of two.
func twos(lo, hi int64) int64 {
	p := bits.Len64(uint64(lo^hi)) - 1 //nolint:gosec // batches are positive
	return hi >> p << p
}

// floor is how much the answer does at least, as far as is known.
func (s *bestSearch) floor() float64 {
	if s.best == nil {
		return s.quick
	}
	return max(s.quick, s.best.rate)
}

// bounded reports that the search for bounds ends, given a bound on all else.
func (s *bestSearch) bounded(ctx context.Context, bound float64) bool {
	_, timed := ctx.Deadline()
	switch {
	case ctx.Err() != nil, timed:
		return ctx.Err() != nil
	case bound <= s.floor()*(1+closeEnough):
		return s.effort > someEffort
	}
	return s.effort > mostEffort
}

// selects reports that the checkpoints for a batch are to be chosen.
func (s *bestSearch) selects(ctx context.Context, t *batchTry) bool {
	_, timed := ctx.Deadline()
	switch {
	case s.best == nil:
		return true
	case ctx.Err() != nil, timed:
		return ctx.Err() == nil
	case t.likely <= s.best.rate:
		return s.selected+selectionEffort*t.nodes < smallEffort
	}
	return s.selected < lastEffort || s.chosen < leastChosen && s.best.policy != "none"
}

// mostCounted is the widest stretch whose batches are bounded one by one.
const mostCounted = 4096

// bound is a bound on the samples per second of the batches from lo to hi, of which lo was
// predicted.
func (s *bestSearch) bound(lo, hi int64) float64 {
	t := s.tries[lo]
	switch {
	case lo == hi:
		return t.bound
	case t.bound == 0 && s.plain: // nothing fits, nor does a larger one
		return 0
	case s.target == 0:
		return float64(hi*int64(max(s.cfg.Accumulate, 1))) / t.times.of(1)
	case hi-lo > mostCounted:
		return float64(s.target) / t.times.of(s.target/hi)
	}
	most := t.bound
	for b := lo + 1; b <= hi; b++ {
		most = max(most, float64(s.target)/(t.times.of(s.target/b)+s.lastOf(s.target%b)))
	}
	return most
}

// lastOf is the least time of a last micro-batch of so many samples: that of the largest
// predicted batch that is no larger, in place of others of its size.
func (s *bestSearch) lastOf(samples int64) float64 {
	var t *batchTry
	for _, x := range s.tries {
		if x.batch <= samples && (t == nil || x.batch > t.batch) {
			t = x
		}
	}
	if t == nil {
		return 0
	}
	return t.last
}

// try predicts a batch without recomputation or, where checkpoints are given, with those.
func (s *bestSearch) try(ctx context.Context, batch int64) (*batchTry, error) {
	if t := s.tries[batch]; t != nil {
		return t, nil
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, ctx.Err()
	}
	before := s.m.made
	defer func() { s.effort += s.m.made - before }()
	c := s.question(batch)
	if s.plain {
		c.Checkpoint = "none"
	}
	a, err := s.m.decided(context.WithoutCancel(ctx), c)
	if err != nil {
		return nil, err
	}
	t := &batchTry{batch: batch, nodes: len(a.ev.Nodes), point: BatchPoint{Batch: batch, Fits: *a.fits, ProcessBytes: a.ev.res.Reserved + a.j.besides()}}
	s.tries[batch] = t
	total, err := s.seconds(a)
	if err != nil {
		return nil, err
	}
	t.point.SamplesPerSecond = s.rate(batch, total)
	t.times, t.last = s.timesOf(a)
	if *a.fits {
		t.settled, t.bound = true, t.point.SamplesPerSecond
		s.take(t, a, total)
	} else {
		if err := s.recomputes(a, t, total); err != nil {
			return nil, err
		}
		t.settled = t.bound == 0
	}
	t.point.Bound = t.bound
	return t, nil
}

// question asks about one batch.
func (s *bestSearch) question(batch int64) Config {
	c := s.cfg
	if c.Batch = batch; s.target > 0 {
		c.Accumulate = int((s.target + batch - 1) / batch)
	}
	return c
}

// micros is how many whole micro-batches a step has.
func (s *bestSearch) micros(batch int64) int64 {
	if s.target == 0 {
		return 1
	}
	return s.target / batch
}

// rate turns seconds of a step, or of the target's samples, into samples per second.
func (s *bestSearch) rate(batch int64, seconds float64) float64 {
	if seconds == 0 {
		return 0
	}
	if s.target > 0 {
		return float64(s.target) / seconds
	}
	return float64(batch*int64(max(s.cfg.Accumulate, 1))) / seconds
}

// seconds is the time of a step or of the target's samples: then the last micro-batch, where
// it is smaller, takes forward and backward of as many samples with the same checkpoints.
func (s *bestSearch) seconds(a *answer) (float64, error) {
	if s.target == 0 || s.target%a.batch == 0 {
		return timeOf(a.ev.Program, &a.j.time, a.batch).StepMs / 1e3, nil
	}
	j := *a.j
	j.cfg.Accumulate = 1
	last, err := s.m.build(&j, s.target%a.batch, a.segs)
	if err != nil {
		return 0, err
	}
	return timeOf(shortened(a.ev.Program, int(s.target/a.batch)), &a.j.time, 1).StepMs/1e3 + asLast(last.Program, &a.j.time), nil
}

// asLast is the time of a step's forward and backward after others.
func asLast(p *program.Program, m *TimeModel) float64 {
	t := timeOf(p, m, 1)
	return (t.ForwardMs+t.BackwardMs)/1e3 - stepHost
}

// shortened is a step with its first micro-batches alone.
func shortened(p *program.Program, micros int) *program.Program {
	out := *p
	out.Micros = micros
	if micros < program.MicrosBuilt {
		out.Nodes = slices.DeleteFunc(slices.Clone(p.Nodes), func(n program.Node) bool { return int(n.Micro) >= micros && n.Phase != program.Update })
	}
	return &out
}

// timesOf are the times of a predicted step, and of fewer of its micro-batches; those of more
// are not asked for.
func (s *bestSearch) timesOf(a *answer) (l leastTimes, last float64) {
	if s.target == 0 {
		l.step[0] = timeOf(a.ev.Program, &a.j.time, 1).StepMs / 1e3
		return l, 0
	}
	for i := range min(max(a.ev.Micros, 1), len(l.step)) {
		l.step[i] = timeOf(shortened(a.ev.Program, i+1), &a.j.time, 1).StepMs / 1e3
	}
	return l, asLast(shortened(a.ev.Program, 1), &a.j.time)
}

// recomputes raises the times of a batch that does not fit by the least recomputation that any
// choice of checkpoints needs, and sets the bounds on its samples per second; 0: none can
// fit. The device then runs the step's kernels and those, one after the other.
func (s *bestSearch) recomputes(a *answer, t *batchTry, total float64) error {
	if _, own := s.m.checkpointsItself(); own || len(s.policies) == 0 {
		return nil
	}
	sel, err := a.selector()
	if err != nil {
		return err
	}
	s.effort += boundEffort * (len(a.ev.Nodes) + stepEffort)
	least := func(v checkpointsel.View, among ...choice) float64 {
		most := math.Inf(1)
		for _, p := range among {
			if _, cost, ok := p.Solve(a.j.cap, v); ok {
				most = min(most, cost)
			}
		}
		return most
	}
	without, n := t.times, s.micros(t.batch)
	rate := func(cost float64) float64 {
		if math.IsInf(cost, 1) {
			return 0
		}
		t.times = s.costing(a, without, cost)
		return s.rate(t.batch, total-without.of(n)+t.times.of(n))
	}
	if segs, cost, ok := sel.selective.Solve(a.j.cap, checkpointsel.Sure); ok {
		if t.likely = rate(cost); t.likely > s.floor() {
			if fits, err := a.replays(context.Background(), segs); err != nil {
				return err
			} else if fits {
				s.quick = max(s.quick, t.likely*(1-closeEnough)) // the host may be slower
			}
		}
	}
	whole := least(checkpointsel.Hoped, sel.problem, sel.nested())
	t.alone = rate(whole)
	t.bound = rate(min(whole, least(checkpointsel.Hoped, sel.selective)))
	return nil
}

// costing are the times of steps that recompute so many seconds in each micro-batch.
func (s *bestSearch) costing(a *answer, times leastTimes, cost float64) leastTimes {
	for i, was := range times.step {
		if p := a.ev.Program; was > 0 {
			if s.target > 0 {
				p = shortened(p, i+1)
			}
			device := deviceSeconds(p, &a.j.time) + cost*float64(max(p.Micros, 1))
			times.step[i] = max(was, device*(1-1e-9)) // sums in other orders
		}
	}
	return times
}

// deviceSeconds is what the device takes for a step's kernels alone.
func deviceSeconds(p *program.Program, m *TimeModel) (sum float64) {
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if s := m.Seconds(n); s > 0 && n.Only != program.FirstStep {
			sum += float64(p.Runs(n)) * (s + gapSeconds)
		}
	}
	return sum
}

// settle tries all policies at a batch.
func (s *bestSearch) settle(ctx context.Context, t *batchTry) error {
	if t.settled {
		return nil
	}
	t.settled = true
	s.chosen++
	before := s.m.made
	defer func() { s.selected += max(s.m.made-before, selectionEffort*t.nodes) }() // a selection solves more than it builds
	for _, policy := range s.policies {
		if s.best != nil && (policy == "auto" && t.bound <= s.best.rate || policy != "auto" && t.alone <= s.best.rate) {
			continue
		}
		c := s.question(t.batch)
		c.Checkpoint = policy
		a, err := s.m.decided(ctx, c)
		if err != nil {
			return err
		}
		if !*a.fits {
			continue
		}
		total, err := s.seconds(a)
		if err != nil {
			return err
		}
		if a.check != nil { // what a plan says of its checkpoints
			a.j.cfg.Checkpoint = policy
		}
		s.take(t, a, total)
	}
	if t.rate < t.bound {
		s.rest = max(s.rest, t.bound)
	}
	return nil
}

// take keeps a step if it is the fastest of its batch, and of all.
func (s *bestSearch) take(t *batchTry, a *answer, total float64) {
	rate := s.rate(t.batch, total)
	if rate <= t.rate {
		return
	}
	fastest := s.best == nil || rate > s.best.rate
	t.rate, t.total, t.policy = rate, total, a.checkpointName()
	if fastest {
		if s.best != nil {
			s.best.a = nil // its programs
		}
		t.a, s.best = a, t
	}
}

// describe says why the best batch is.
func (s *bestSearch) describe(largest *BatchPoint) *BestBatch {
	t := s.best
	bound := max(t.rate, s.rest)
	out := &BestBatch{Checkpoint: t.policy, SamplesPerSecond: round(t.rate), Bound: round(bound), Gap: round(bound/t.rate - 1), Target: s.target,
		Predicted: len(s.tries), Largest: largest, Points: []BatchPoint{}}
	if s.target > 0 {
		out.TargetMs, out.LastBatch = round(1e3*t.total), t.batch
		if r := s.target % t.batch; r > 0 {
			out.LastBatch = r
		}
	}
	var all []BatchPoint
	for _, x := range s.tries {
		p := x.point
		p.SamplesPerSecond, p.Bound = round(p.SamplesPerSecond), round(p.Bound)
		all = append(all, p)
	}
	slices.SortFunc(all, func(x, y BatchPoint) int { return cmp.Compare(x.Batch, y.Batch) })
	for i := range all {
		if p := &all[i]; p.Fits && s.plain {
			out.Plain = p
		}
		if i == len(all)-1 || all[i].Batch == t.batch || i*mostPoints/len(all) != (i-1)*mostPoints/len(all) || i == 0 {
			out.Points = append(out.Points, all[i])
		}
	}
	return out
}
