package planner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/infer"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/liveness"
	"github.com/memplan/memplan/liveness/alloc"
)

// A PhaseReport says what a run needs besides its steady step: the phases that end runs
// late, and steps of many sizes in one process.
type PhaseReport struct {
	SchemaVersion int             `json:"schemaVersion"`
	Model         string          `json:"model"`
	Config        Config          `json:"config"` // of the steady step, dims that files give at their largest
	Fits          *bool           `json:"fits"`   // whether every phase does; null without a budget
	Moments       []Moment        `json:"moments"`
	Lengths       *LengthRuns     `json:"lengths"` // null without a file of lengths
	Warnings      []graph.Warning `json:"warnings"`
}

// A Moment is a phase of a run and its memory.
type Moment struct {
	Name           string `json:"name"`
	Doc            string `json:"doc"`
	AllocatedBytes int64  `json:"allocatedBytes"` // the most in the phase itself
	ReservedBytes  int64  `json:"reservedBytes"`  // after it and the next step
	ProcessBytes   int64  `json:"processBytes"`
	HostBytes      int64  `json:"hostBytes"` // on the host
	Fits           *bool  `json:"fits"`
	Why            string `json:"why"` // why there is no answer; "" if there is
}

// LengthOptions say how many steps of drawn sizes are replayed.
type LengthOptions struct {
	Steps  int    // of a run
	Seed   uint64 // of the draws
	Padded bool   // the file has lengths of samples, and a batch is as long as its longest; else of batches
}

// lengthRuns is the number of runs of which those are counted that run out of memory.
const lengthRuns = 20

// A LengthRuns is what steps of drawn sizes need.
type LengthRuns struct {
	Dims     []string `json:"dims"`
	Padded   bool     `json:"padded"` // a batch is as long as the longest of its samples
	Seed     uint64   `json:"seed"`
	Steps    int      `json:"steps"` // of each run
	Runs     int      `json:"runs"`
	Sizes    int      `json:"sizes"`    // different ones that were drawn
	Drawn    []string `json:"drawn"`    // of the first run, as seq=512
	Reserved []int64  `json:"reserved"` // by then, after each step of the first run
	// Epoch is the number of steps in which each sample of the file is seen once; 0: the
	// file's are batches.
	Epoch      int64       `json:"epoch"`
	Allocators []LengthRun `json:"allocators"` // the question's first, then others
	Helps      string      `json:"helps"`      // of these, the one that runs out least, or reserves least; "": none is better
}

// A LengthRun is the runs with one setting of the allocator; the sizes are the same for all.
type LengthRun struct {
	AllocConf     string `json:"allocConf"` // of PYTORCH_ALLOC_CONF; "": PyTorch's defaults
	ReservedBytes int64  `json:"reservedBytes"`
	MeanBytes     int64  `json:"meanBytes"` // mean over runs of the most reserved
	ProcessBytes  int64  `json:"processBytes"`
	// RanOut counts the runs that run out of memory under the budget, on a card with nothing
	// kept free. Low and High bound their share in 95 of 100 cases (Clopper and Pearson).
	RanOut int     `json:"ranOut"`
	Share  float64 `json:"share"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
	// EpochShare is the same for an epoch, whose parts of Steps steps are taken to run out
	// independently of each other.
	EpochShare float64 `json:"epochShare"`
	EpochLow   float64 `json:"epochLow"`
	EpochHigh  float64 `json:"epochHigh"`
}

// LateConfs are the settings of the allocator that steps of drawn sizes are replayed with.
var LateConfs = []string{"expandable_segments:True", "max_split_size_mb:64", "max_split_size_mb:128", "max_split_size_mb:256", "max_split_size_mb:512"}

// Phases replays what a run does besides its steady step in one allocator, and with files of
// lengths steps of drawn sizes.
func (m *Model) Phases(ctx context.Context, cfg Config, o LengthOptions) (*PhaseReport, error) {
	switch {
	case cfg.Mode == "infer":
		return nil, errors.New("--phases is about training: give it without --mode infer")
	case cfg.Parallel != "":
		return nil, errors.New("--phases is about one card: give it without --parallel")
	case o.Steps < 1 || o.Steps > mostDraws:
		return nil, fmt.Errorf("--draws %d: want 1 to %d", o.Steps, mostDraws)
	}
	p := &phases{m: m, ctx: ctx, opt: o, files: map[string]*Lengths{}, traces: map[string]*liveness.Trace{}}
	cfg.Dims = maps.Clone(cfg.Dims)
	for _, name := range slices.Sorted(maps.Keys(cfg.Lengths)) {
		l, err := ReadLengths(&cfg, cfg.Lengths[name])
		if err != nil {
			return nil, fmt.Errorf("--dim %s: %w", name, err)
		}
		p.files[name] = l
		put(&cfg.Dims, name, l.Longest())
	}
	cfg.Lengths = nil
	p.open = slices.ContainsFunc(infer.Unbound(m.g), func(name string) bool { _, bound := cfg.Dims[name]; return !bound })
	var err error
	if p.a, err = m.answer(ctx, cfg); err != nil {
		return nil, err
	}
	if len(p.a.steps) > 0 {
		return nil, errors.New("--phases: a schedule is for one size and memplan's executor: give checkpoints that PyTorch applies")
	}
	if p.batch = p.a.batch; p.a.max == nil && p.a.j.cfg.Batch == 0 { // the file fixes it, or --dim binds it, or draws it
		p.batch = 0
	}
	r := p.a.report()
	out := &PhaseReport{SchemaVersion: SchemaVersion, Model: m.Path, Config: r.Config, Warnings: r.Warnings}
	for i := range moments {
		x, err := p.moment(&moments[i])
		if err != nil {
			return nil, err
		}
		out.Moments = append(out.Moments, x)
	}
	if len(p.files) > 0 {
		if out.Lengths, err = p.lengths(); err != nil {
			return nil, err
		}
	}
	out.Fits = p.fits(out)
	return out, nil
}

// mostDraws is the largest number of steps of a run.
const mostDraws = 100_000

// fits reports whether all phases fit, and steps of drawn sizes never ran out.
func (p *phases) fits(r *PhaseReport) *bool {
	if p.a.j.cap == 0 {
		return nil
	}
	ok := r.Lengths == nil || r.Lengths.Allocators[0].RanOut == 0
	for i := range r.Moments {
		ok = ok && (r.Moments[i].Fits == nil || *r.Moments[i].Fits)
	}
	return &ok
}

// phases answer one question about a run.
type phases struct {
	m      *Model
	ctx    context.Context //nolint:containedctx // of one question
	opt    LengthOptions
	a      *answer
	batch  int64 // 0: what the file or its dims say
	open   bool  // the file leaves the batch open
	files  map[string]*Lengths
	tracer liveness.Tracer
	traces map[string]*liveness.Trace
}

type session = liveness.Session[alloc.Handle]

// A moment is a row of the table of phases.
type moment struct {
	name, doc string
	parts     func(p *phases, x *Moment) (*script, error)
}

// A script is what comes before a phase, it, and what comes after.
type script struct{ before, phase, after []stint }

// A stint is n steps of a trace, or a copy of tensors.
type stint struct {
	t     *liveness.Trace
	n     int
	clone []int64 // bytes
}

// moments are the phases that end runs late.
var moments = []moment{
	{"first step", "it creates the optimizer's state", func(p *phases, _ *Moment) (*script, error) {
		t, err := p.trace(p.batch, p.dims())
		return &script{phase: []stint{{t: t, n: 1}}}, err
	}},
	{"steady step", "all later ones", (*phases).steady},
	{"evaluation", "forward of the same batch under no_grad between steps, gradients kept until the next zero_grad", (*phases).evaluation},
	{"state dict on the GPU", "a copy of parameters and buffers beside them (copy.deepcopy, the best so far, an average), until it is saved", (*phases).cloned},
	{"state dict to the host", "torch.save, or .cpu() of each tensor: the model's and the optimizer's; it takes nothing of the GPU", (*phases).saved},
	{"last batch", "a smaller one after the others: of some sizes the one that reserves most", (*phases).last},
}

// run runs parts one after the other.
func run(s *session, parts []stint) error {
	for _, x := range parts {
		if err := s.Clone(x.clone); err != nil {
			return err
		}
		for range x.n {
			if err := s.Step(x.t); err != nil {
				return err
			}
		}
	}
	return nil
}

// moment replays a phase without a limit and, with a budget, under it.
func (p *phases) moment(row *moment) (Moment, error) {
	x := Moment{Name: row.name, Doc: row.doc}
	parts, err := row.parts(p, &x)
	if err != nil {
		x.Why = err.Error()
		return x, p.ctx.Err()
	}
	if err := p.replay(&x, parts); err != nil || p.a.j.cap == 0 {
		return x, err
	}
	fits := true
	for _, limit := range []int64{p.a.j.cap, p.a.j.hard} {
		err := run(liveness.NewSession[alloc.Handle](alloc.NewCaching(p.a.j.conf, limit)), slices.Concat(parts.before, parts.phase, parts.after))
		if err != nil && !errors.Is(err, alloc.ErrOutOfMemory) {
			return x, err
		}
		fits = fits && err == nil
	}
	x.Fits = &fits
	return x, nil
}

// replay fills in what a phase allocates, and what is reserved in the end, without a limit.
func (p *phases) replay(x *Moment, parts *script) error {
	s := liveness.NewSession[alloc.Handle](alloc.NewCaching(p.a.j.conf, 0))
	if err := run(s, parts.before); err != nil {
		return err
	}
	s.ResetPeak()
	if err := run(s, parts.phase); err != nil {
		return err
	}
	x.AllocatedBytes = s.Peak()
	if err := run(s, parts.after); err != nil {
		return err
	}
	x.ReservedBytes, x.ProcessBytes = s.Reserved(), s.Reserved()+p.a.j.besides()
	return nil
}

// trace is the step of a batch, other dims, with the answer's checkpoints.
func (p *phases) trace(batch int64, dims map[string]int64) (*liveness.Trace, error) {
	key := fmt.Sprint(batch, dims)
	if t := p.traces[key]; t != nil {
		return t, nil
	}
	b, err := p.build(p.a.j, batch, dims, p.a.segs)
	if err != nil {
		return nil, err
	}
	t := p.tracer.Trace(b.Program)
	p.traces[key] = t
	return t, nil
}

func (p *phases) build(j *job, batch int64, dims map[string]int64, segs []train.Segment) (*train.Build, error) {
	if err := p.ctx.Err(); err != nil {
		return nil, err
	}
	own := *j
	own.cfg.Dims = dims
	return p.m.build(&own, batch, segs)
}

func (p *phases) dims() map[string]int64 { return p.a.j.cfg.Dims }

// steady is a step after those before it.
func (p *phases) steady(*Moment) (*script, error) {
	t, err := p.trace(p.batch, p.dims())
	return &script{before: []stint{{t: t, n: steps - 1}}, phase: []stint{{t: t, n: 1}}}, err
}

// evaluation is two inferences between steps.
func (p *phases) evaluation(*Moment) (*script, error) {
	t, err := p.trace(p.batch, p.dims())
	if err != nil {
		return nil, err
	}
	c := p.a.j.cfg
	c.Mode, c.Checkpoint, c.Segments, c.Accumulate, c.Batch, c.BatchMax = "infer", "", nil, 0, p.batch, false
	j, err := p.m.resolve(c)
	if err != nil {
		return nil, err
	}
	b, err := p.build(j, p.batch, p.dims(), nil)
	if err != nil {
		return nil, err
	}
	return &script{before: []stint{{t: t, n: steps}}, phase: []stint{{t: p.tracer.Trace(b.Program), n: 2}}, after: []stint{{t: t, n: 1}}}, nil
}

// weighed are the bytes of the model's parameters and buffers, each once, and all of the
// optimizer's.
func (p *phases) weighed() (model []int64, optimizer int64) {
	for _, id := range p.a.ev.Statics {
		if s := &p.a.ev.Storages[id]; s.Category == program.Parameters || s.Category == program.Buffers {
			model = append(model, s.Bytes)
		}
	}
	for i := range p.a.ev.Storages {
		if s := &p.a.ev.Storages[i]; s.Category == program.Optimizer && s.Life == program.State {
			optimizer += s.Bytes
		}
	}
	return model, optimizer
}

// cloned is a copy of the model between steps.
func (p *phases) cloned(*Moment) (*script, error) {
	t, err := p.trace(p.batch, p.dims())
	model, _ := p.weighed()
	return &script{before: []stint{{t: t, n: steps}}, phase: []stint{{clone: model}}, after: []stint{{t: t, n: 1}}}, err
}

// saved takes nothing of the GPU.
func (p *phases) saved(x *Moment) (*script, error) {
	model, optimizer := p.weighed()
	x.HostBytes = optimizer
	for _, n := range model {
		x.HostBytes += n
	}
	t, err := p.trace(p.batch, p.dims())
	return &script{before: []stint{{t: t, n: steps}}}, err
}

// last is a smaller batch between steps: of some sizes the one that reserves most.
func (p *phases) last(x *Moment) (*script, error) {
	batch := p.batch
	switch {
	case !p.open:
		return nil, errors.New("the file fixes the batch, or --dim binds it")
	case batch < 2:
		return nil, errors.New("the batch is 1")
	}
	t, err := p.trace(batch, p.dims())
	if err != nil {
		return nil, err
	}
	var worst *script
	most := int64(-1)
	sizes := []int64{1, batch / 4, batch / 2, batch * 3 / 4, batch - 1}
	for i, n := range sizes {
		if n < 1 || slices.Contains(sizes[:i], n) {
			continue
		}
		l, err := p.trace(n, p.dims())
		if err != nil {
			return nil, err
		}
		parts, tried := &script{before: []stint{{t: t, n: steps}}, phase: []stint{{t: l, n: 1}}, after: []stint{{t: t, n: 2}}}, Moment{}
		if err := p.replay(&tried, parts); err != nil {
			return nil, err
		}
		if tried.ReservedBytes > most {
			most, worst, x.Name = tried.ReservedBytes, parts, fmt.Sprintf("last batch of %d", n)
		}
	}
	return worst, nil
}

// lengths replays runs of steps of drawn sizes.
func (p *phases) lengths() (*LengthRuns, error) {
	if p.drawsBatch() {
		p.opt.Padded = false
	}
	r := &LengthRuns{Dims: slices.Sorted(maps.Keys(p.files)), Padded: p.opt.Padded, Seed: p.opt.Seed, Steps: p.opt.Steps, Runs: lengthRuns}
	drawn := make([][]*liveness.Trace, r.Runs)
	sizes := map[string]bool{}
	for i := range drawn {
		rng := rand.New(rand.NewPCG(p.opt.Seed, uint64(i))) //nolint:gosec // draws that repeat
		for step := range r.Steps {
			dims := p.draw(rng)
			t, err := p.trace(p.batch, dims)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", strings.Join(only(pairs(dims), r.Dims), " "), err)
			}
			drawn[i] = append(drawn[i], t)
			said := strings.Join(only(pairs(dims), r.Dims), " ")
			if sizes[said] = true; i == 0 {
				r.Drawn = append(r.Drawn, said)
			}
			if p.m.Progress != nil {
				p.m.Progress(i*r.Steps+step, r.Runs*r.Steps, "draws")
			}
		}
	}
	r.Sizes = len(sizes)
	if p.opt.Padded {
		for _, l := range p.files {
			r.Epoch = max(r.Epoch, (l.Total()+p.perStep()-1)/p.perStep())
		}
	}
	for _, conf := range append([]string{p.a.j.cfg.AllocConf}, LateConfs...) {
		x, reserved, err := p.lengthRun(conf, drawn)
		if err != nil {
			return nil, err
		}
		if x.epoch(r); r.Reserved == nil {
			r.Reserved = reserved
		}
		r.Allocators = append(r.Allocators, *x)
	}
	r.help()
	return r, nil
}

// drawsBatch reports that a file has sizes of the batch itself.
func (p *phases) drawsBatch() bool {
	for _, l := range p.files {
		if p.batch == 0 && l.Longest() == p.a.batch {
			return true
		}
	}
	return false
}

// perStep is the number of samples of a step.
func (p *phases) perStep() int64 { return max(p.a.batch, 1) * int64(p.a.j.micros()) }

// draw draws the sizes of a step.
func (p *phases) draw(rng *rand.Rand) map[string]int64 {
	dims := maps.Clone(p.dims())
	for _, name := range slices.Sorted(maps.Keys(p.files)) {
		n := int64(1)
		if p.opt.Padded {
			n = p.perStep()
		}
		dims[name] = p.files[name].draw(rng, n)
	}
	return dims
}

// lengthRun replays all runs with one setting of the allocator. Without a limit it notes
// what is reserved; under the budget it counts the runs that run out.
func (p *phases) lengthRun(conf string, drawn [][]*liveness.Trace) (*LengthRun, []int64, error) {
	c, err := alloc.ParseConf(conf)
	if err != nil {
		return nil, nil, err
	}
	x := &LengthRun{AllocConf: conf}
	var first []int64
	for i, run := range drawn {
		s := liveness.NewSession[alloc.Handle](alloc.NewCaching(c, 0))
		for _, t := range run {
			if err := s.Step(t); err != nil {
				return nil, nil, err
			}
			if i == 0 {
				first = append(first, s.Reserved())
			}
		}
		x.MeanBytes += s.Reserved()
		x.ReservedBytes = max(x.ReservedBytes, s.Reserved())
		if p.a.j.hard > 0 && s.Reserved() > p.a.j.hard {
			out, err := p.runsOut(c, run)
			if err != nil {
				return nil, nil, err
			}
			if out {
				x.RanOut++
			}
		}
		if err := p.ctx.Err(); err != nil {
			return nil, nil, err
		}
	}
	x.MeanBytes /= int64(len(drawn))
	x.ProcessBytes = x.ReservedBytes + p.a.j.besides()
	x.Share = signedRound(float64(x.RanOut) / float64(len(drawn)))
	x.Low, x.High = clopperPearson(x.RanOut, len(drawn))
	return x, first, nil
}

// runsOut replays a run under the budget.
func (p *phases) runsOut(c alloc.Conf, run []*liveness.Trace) (bool, error) {
	s := liveness.NewSession[alloc.Handle](alloc.NewCaching(c, p.a.j.hard))
	for _, t := range run {
		if err := s.Step(t); errors.Is(err, alloc.ErrOutOfMemory) {
			return true, nil
		} else if err != nil {
			return false, err
		}
	}
	return false, nil
}

// epoch fills in what the runs say of an epoch.
func (x *LengthRun) epoch(r *LengthRuns) {
	if r.Epoch == 0 {
		return
	}
	n := float64(r.Epoch) / float64(r.Steps)
	long := func(p float64) float64 { return signedRound(-math.Expm1(n * math.Log1p(-p))) }
	x.EpochShare, x.EpochLow, x.EpochHigh = long(x.Share), long(x.Low), long(x.High)
}

// help names the setting of the allocator that is better than the question's: one with which
// fewer runs run out or, where that never happens, less is reserved.
func (r *LengthRuns) help() {
	best := &r.Allocators[0]
	for i := range r.Allocators {
		x := &r.Allocators[i]
		if x.RanOut < best.RanOut || x.RanOut == 0 && best.RanOut == 0 && x.MeanBytes < best.MeanBytes {
			best = x
		}
	}
	if best != &r.Allocators[0] {
		r.Helps = best.AllocConf
	}
}

// clopperPearson bounds a probability of which k of n trials are known, each end with a
// chance of error of 2.5%: below the lower end k or more would be as unlikely as that, above
// the upper one k or fewer (Clopper and Pearson, Biometrika 26, 1934).
func clopperPearson(k, n int) (low, high float64) {
	const error2 = 0.025
	atMost := func(k int, p float64) float64 { // k or fewer of n
		sum := 0.0
		for i := 0; i <= k; i++ {
			c := 1.0
			for j := range i {
				c *= float64(n-j) / float64(j+1)
			}
			sum += c * math.Pow(p, float64(i)) * math.Pow(1-p, float64(n-i))
		}
		return sum
	}
	root := func(below func(p float64) bool) float64 {
		lo, hi := 0.0, 1.0
		for range 60 {
			if mid := (lo + hi) / 2; below(mid) {
				lo = mid
			} else {
				hi = mid
			}
		}
		return signedRound(lo)
	}
	high = 1
	if k > 0 {
		low = root(func(p float64) bool { return 1-atMost(k-1, p) < error2 })
	}
	if k < n {
		high = root(func(p float64) bool { return atMost(k, p) > error2 })
	}
	return low, high
}
