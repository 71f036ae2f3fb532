package planner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/memplan/memplan/checkpointsel"
	"github.com/memplan/memplan/checkpointsel/remat"
	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/cudnn"
	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/liveness"
	"github.com/memplan/memplan/planner/profile"
)

// An Answer is the answer to a question: the report, and the program of its
// step with the replay, from which timelines, charts and attributions are
// derived.
type Answer struct {
	*Report
	ev *evaluation
}

// Analyze determines what one step needs, whether it fits, and what to do if it
// does not. An error means that the question could not be answered; a step that
// does not fit is Report.Fits == false.
func (m *Model) Analyze(ctx context.Context, cfg Config) (*Answer, error) {
	a, err := m.answer(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &Answer{a.report(), a.ev}, nil
}

// Plan answers the same question as a document that other commands read.
func (m *Model) Plan(ctx context.Context, cfg Config) (*Plan, error) {
	if cfg.OnArena() {
		return nil, fmt.Errorf("--runtime %s: plans are of PyTorch's steps; memplan analyze answers", profile.ONNXRuntime)
	}
	if cfg.Checkpoint == "" && len(cfg.Segments) == 0 && len(cfg.Schedule) == 0 && cfg.Batch > 0 {
		cfg.Checkpoint = "auto"
	}
	a, err := m.answer(ctx, cfg)
	if err != nil {
		return nil, err
	}
	p := &Plan{Report: *a.report(), Selection: a.segs, Weights: a.m.weights(), Schedule: a.steps, Proof: a.proof}
	if p.Selection == nil {
		p.Selection = []train.Segment{}
	}
	if a.max == nil || a.max.Max > 0 {
		p.Arena, err = NewArena(a.ev.Program)
	}
	return p, err
}

// An answer is the state of answering a question.
type answer struct {
	m        *Model
	j        *job
	batch    int64
	segs     []train.Segment
	steps    []remat.Step // a schedule instead of segments; nil: none
	ev       *evaluation
	fits     *bool
	max      *BatchInfo
	inferred *Inference
	check    *CheckpointInfo
	proof    string
	notes    []graph.Warning
	made     []builtStep             // the last steps built
	composer *checkpointsel.Composer // while checkpoints are sought: nil: every step is built

	atBounds int64           // reserved bytes with all workspaces at their bounds
	checked  checked         // the capture's program compared with the run
	codes    map[string]bool // of warnings, for findings
	headroom int64           // bytes that the verdict leaves free
	ranks    *ParallelInfo   // nil for one card
}

func (m *Model) answer(ctx context.Context, cfg Config) (*answer, error) {
	if cfg.BatchBest || cfg.Target > 0 {
		return m.bestOf(ctx, cfg)
	}
	a, err := m.decided(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return m.finish(a)
}

// finish adds to a decided answer what a report says of its step.
func (m *Model) finish(a *answer) (_ *answer, err error) {
	if a.checked, err = m.check(a.j.single(), a.batch); err != nil {
		return nil, err
	}
	if a.fits != nil && *a.fits {
		a.refused()
	}
	if !a.j.train {
		var why error
		if a.inferred, why, err = m.inference(a.j, a.batch); err != nil {
			return nil, err
		}
		if why != nil && a.j.arena {
			return nil, fmt.Errorf("--runtime %s: %w", profile.ONNXRuntime, why)
		}
	}
	if err := a.upperBound(); err != nil {
		return nil, err
	}
	if a.j.cfg.Strict {
		return a, Strictly(m.Path, a.warnings(), a.j.train)
	}
	return a, nil
}

// decided chooses what a question leaves open and replays the step, on every rank that
// can differ.
func (m *Model) decided(ctx context.Context, cfg Config) (*answer, error) {
	j, err := m.resolve(cfg)
	if err != nil {
		return nil, err
	}
	if err := m.supported(j); err != nil {
		return nil, err
	}
	a := &answer{m: m, j: j, segs: cfg.Segments, steps: cfg.Schedule}
	if err := a.asFramework(); err != nil {
		return nil, err
	}
	if err := a.chooseBatch(ctx); err != nil {
		return nil, err
	}
	if !a.j.cfg.BatchMax && a.j.cap > 0 {
		if err := a.reserveHeadroom(a.batch, a.segs); err != nil {
			return nil, err
		}
	}
	if err := a.chooseSegments(ctx); err != nil {
		return nil, err
	}
	b, err := a.planned(a.batch, a.segs)
	if err != nil {
		return nil, err
	}
	if a.ev, a.fits, err = settled(b, j); err != nil {
		return nil, err
	}
	return a, a.parallel()
}

// A builtStep is the program of a batch and segments.
type builtStep struct {
	batch int64
	segs  string
	*train.Build
}

// mostMade is the number of steps that an answer keeps: the one without
// checkpoints, and the one with those chosen.
const mostMade = 2

// build is Model.build for the answer's question. It keeps the last steps: a
// search ends with questions about the step that it found.
func (a *answer) build(batch int64, segs []train.Segment) (*train.Build, error) {
	key := fmt.Sprint(segs)
	for _, x := range a.made {
		if x.batch == batch && x.segs == key {
			return x.Build, a.m.boundFor(a.j, batch)
		}
	}
	b, err := a.m.build(a.j, batch, segs)
	if err != nil {
		return nil, err
	}
	a.made = append(a.made[max(0, len(a.made)-mostMade+1):], builtStep{batch, key, b})
	return b, nil
}

// planned builds the program of a step with segments, or with the answer's
// schedule.
func (a *answer) planned(batch int64, segs []train.Segment) (*train.Build, error) {
	return plannedStep(func(segs []train.Segment) (*train.Build, error) { return a.build(batch, segs) }, a.j, segs, a.steps)
}

// selector is Model.selector for the answer's batch.
func (a *answer) selector() (*selector, error) {
	b, err := a.build(a.batch, nil)
	if err != nil {
		return nil, err
	}
	return a.m.selectorOf(a.j, b)
}

// settled replays a step: under the cap if there is a budget and it fits, as the
// process would run. It fits if it does so with and without the headroom.
func settled(b *train.Build, j *job) (ev *evaluation, fits *bool, err error) {
	if j.cap > 0 {
		ev, ok, err := capped(b, j)
		if fits = &ok; err != nil || ok {
			return ev, fits, err
		}
	}
	ev, err = replay(b, j, false)
	return ev, fits, err
}

// capped replays a step under the cap and, if that includes headroom, also without it;
// the evaluation is of the last replay.
func capped(b *train.Build, j *job) (ev *evaluation, fits bool, err error) {
	if ev, err = replay(b, j, true); err != nil {
		return nil, false, err
	}
	if ev.fail == nil && j.hard != j.cap {
		whole := *j
		whole.cap = j.hard
		if ev, err = replay(b, &whole, true); err != nil {
			return nil, false, err
		}
	}
	return ev, ev.fail == nil, nil
}

// refused warns of what runs slower for lack of memory.
func (a *answer) refused() {
	if n := len(a.ev.res.Refused); n > 0 {
		var most int64
		for _, f := range a.ev.res.Refused {
			most = max(most, a.ev.Storages[f.Storage].Bytes)
		}
		a.note("workspace-refused", "%d convolution passes do not get their workspace (up to %s) under the budget: cuDNN runs slower kernels for them", n, profile.FormatBytes(most))
	}
}

// chooseBatch uses the given batch, or searches for the largest that fits.
func (a *answer) chooseBatch(ctx context.Context) error {
	c := &a.j.cfg
	if !c.BatchMax && c.Batch == 0 && a.j.cap > 0 {
		open, err := a.m.needsBatch(c)
		if err != nil {
			return err
		}
		c.BatchMax = open
	}
	if err := a.j.offloadRefused(); err != nil { // the question names no batch
		return err
	}
	if !c.BatchMax {
		var err error
		a.batch, err = a.m.fixedBatch(a.j)
		return err
	}
	if a.j.cap == 0 {
		return fmt.Errorf("--batch max needs a budget: give --vram SIZE or --gpu NAME")
	}
	found, err := shared(a.m, searchedBatches, func() (searchedBatch, error) {
		err := a.searchBatch(ctx)
		if err != nil || ctx.Err() != nil {
			return searchedBatch{}, cmp.Or(err, errUnshared)
		}
		return searchedBatch{a.batch, a.j.cap, a.headroom, *a.max}, nil
	}, a.searchMode(), " ", a.j.of(), c.Checkpoint == "schedule" || c.Checkpoint == "ops", c.Segments)
	if err != nil {
		if errors.Is(err, errUnshared) {
			err = nil
		}
		return err
	}
	info := found.info
	a.batch, a.j.cap, a.headroom, a.max = found.batch, found.cap, found.headroom, &info
	return nil
}

// errUnshared is of a search that --timeout ended: another may go on.
var errUnshared = errors.New("the search ended early")

// asFramework uses the segments of a framework's setting, if --checkpoint names
// one. They do not depend on the batch.
func (a *answer) asFramework() (err error) {
	c := &a.j.cfg
	if !a.j.train || !IsSetting(c.Checkpoint) || len(c.Segments) > 0 {
		return nil
	}
	batch := max(c.Batch, 1)
	if fixed, err := a.m.fixedBatch(a.j); err == nil {
		batch = fixed
	}
	c.Segments, err = a.m.segmentsOf(a.j, batch, c.Checkpoint)
	a.segs = c.Segments
	return err
}

// chooseSegments resolves --checkpoint; without it, the budget decides.
func (a *answer) chooseSegments(ctx context.Context) error {
	if a.j.train && IsSetting(a.j.cfg.Checkpoint) {
		s, err := a.selector()
		if err != nil {
			return err
		}
		return a.describe(s, 0, false)
	}
	if !a.j.train || len(a.segs) > 0 || len(a.steps) > 0 {
		return nil
	}
	switch mode := a.j.cfg.Checkpoint; mode {
	case "none":
		return a.offloadAlone(ctx)
	case "all", "sqrt":
		s, err := a.selector()
		if err != nil {
			return err
		}
		if a.segs = s.problem.All(); mode == "sqrt" {
			a.segs = s.problem.Sqrt()
		}
		return a.describe(s, 0, false)
	case "", "auto", "segments":
		if a.j.cap == 0 {
			if mode != "" {
				return fmt.Errorf("--checkpoint %s needs a budget: give --vram SIZE or --gpu NAME", mode)
			}
			return nil
		}
		return a.selectFor(ctx)
	default:
		for _, c := range scheduleClasses {
			if mode == c.name && a.j.meshed != nil {
				return fmt.Errorf("--checkpoint %s is for memplan's executor, which runs on one card: give --checkpoint auto or segments with --parallel", mode)
			}
			if mode == c.name {
				return a.selectSchedule(ctx, c.name, c.class)
			}
		}
		return fmt.Errorf("unknown checkpoint selection %q (known: %s, or a file)", mode, strings.Join(Checkpoints, ", "))
	}
}

// describe fills in the checkpoint section for the chosen segments. bound is
// the least cost in seconds of any plan that fits; proven is whether that is a
// proof.
func (a *answer) describe(s *selector, bound float64, proven bool) error {
	b, err := a.build(a.batch, a.segs)
	if err != nil {
		return err
	}
	o := overhead(b.Program, &a.j.time)
	lb := min(bound/max(s.step, 1e-12), o)
	a.check = &CheckpointInfo{Class: "segments", Segments: a.segs, RecomputeOverhead: round(o), LowerBound: round(lb), Gap: round(o - lb),
		Optimal: proven && o-lb < 1e-9}
	if a.check.Segments == nil {
		a.check.Segments = []train.Segment{}
	}
	return nil
}

// round keeps six decimals, so that output does not depend on the last bits.
func round(x float64) float64 { return float64(int64(x*1e6+0.5)) / 1e6 }

// upperBound replays with every convolution's workspace at its bound.
func (a *answer) upperBound() error {
	p := a.ev.Program.AtBounds()
	if p == a.ev.Program && a.j.cap == 0 {
		a.atBounds = a.ev.res.Reserved
		return nil
	}
	ev, err := replay(&train.Build{Program: p}, a.j, false)
	if err != nil {
		return err
	}
	a.atBounds = ev.res.Reserved
	return nil
}

// report writes the report.
func (a *answer) report() *Report {
	r := &Report{SchemaVersion: SchemaVersion, Model: a.m.modelInfo(a.ev), Fits: a.fits, Batch: a.max, Checkpoint: a.check,
		Time: timeOf(a.ev.Program, &a.j.time, max(a.batch, 1)), Warnings: a.warnings()}
	r.Model.Capture, r.Parallel, r.Offload = a.captureInfo(), a.ranks, a.offloadInfo()
	if r.Offload != nil && r.Offload.Optimizer != "" {
		ms := 1e3 * a.hostUpdateSeconds()
		r.Time.OptimizerMs, r.Time.StepMs = r.Time.OptimizerMs+ms, r.Time.StepMs+ms
		r.Time.SamplesPerSecond = float64(max(a.batch, 1)) / r.Time.StepMs * 1e3
	}
	c := &a.j.cfg
	r.Config = c.settled()
	r.Config.Batch, r.Config.Checkpoint, r.Config.VRAM = a.batch, a.checkpointName(), a.j.vram
	if c.GPU == "" {
		r.Config.GPU, r.Config.GPUAssumed = a.j.device.Name, true
	}
	r.Config.inference("none")
	a.j.meshed.unasked(&r.Config)
	a.j.spread(&r.Time, a.ev.Build)
	res := a.ev.res
	r.Peak = Peak{RequestedBytes: res.Requested, AllocatedBytes: res.Allocated, ReservedBytes: res.Reserved, ProcessBytes: res.Reserved + a.j.besides(),
		Step: res.Step}
	r.Uncertainty = a.uncertainty()
	if a.j.cap == 0 && a.j.headroom.Auto { // headroom that a budget would need
		a.headroom = part(res.Reserved, a.kept())
	}
	r.Uncertainty.HeadroomBytes = a.headroom
	r.Peak.UpperBoundBytes = r.Uncertainty.HighBytes
	if !a.j.train {
		r.Peak.IdealArenaBytes, r.Inference = liveness.Ideal(a.ev.Program), a.inferred
	}
	s := res.Steps[len(res.Steps)-1]
	r.Phases = Phases{s.Start, s.AfterForward, s.AfterBackward, s.AfterStep, s.ForwardPeak, s.BackwardPeak, s.OptimizerPeak}
	a.atPeak(r)
	r.SavedBytes = a.ev.savedBytes()
	r.Time.round()
	if a.j.arena {
		r.onArena()
		r.Warnings = once(slices.Concat(a.j.cfg.Notes, a.m.Warnings()))
	}
	return r
}

// savedBytes sums what autograd holds when the forward pass ends, without what
// it saved for results that have been released.
func (ev *evaluation) savedBytes() (n int64) {
	last := liveness.NewRanges(ev.Program).End
	for _, id := range ev.Saved {
		if s := &ev.Storages[id]; last[id] > ev.Forward || s.Life == program.Static || s.Life == program.State {
			n += s.Bytes
		}
	}
	return n
}

func (t *TimeInfo) round() {
	for _, f := range []*float64{&t.ForwardMs, &t.BackwardMs, &t.OptimizerMs, &t.StepMs, &t.WaitingMs, &t.SamplesPerSecond} {
		*f = float64(int64(*f*1e3+0.5)) / 1e3
	}
}

func (a *answer) checkpointName() string {
	switch c := a.j.cfg.Checkpoint; {
	case IsSetting(c):
		return c
	case len(a.j.cfg.Segments) > 0, len(a.j.cfg.Schedule) > 0:
		return "file"
	case c == "" && len(a.segs) > 0:
		return "auto"
	case c == "":
		return "none"
	default:
		return c
	}
}

// atPeak fills in what is live at the peak, and the curve around it.
func (a *answer) atPeak(r *Report) {
	ev := a.ev
	t := ev.res.PeakStep()
	at := ev.res.Event
	if at >= len(t.Events) { // there are no computations
		r.Peak.Phase, r.Breakdown = program.Forward.String(), ev.breakdown(nil)
		return
	}
	n := &ev.Nodes[t.Events[at].Node]
	r.Peak.Phase, r.Peak.Node = n.Phase.String(), callName(n)
	live := ev.res.LivePeak()
	r.Breakdown = ev.breakdown(live)
	makers := ev.makers()
	largest := slices.Clone(live)
	slices.SortStableFunc(largest, func(a, b program.StorageID) int { return cmp.Compare(ev.Storages[b].Bytes, ev.Storages[a].Bytes) })
	for _, id := range largest[:min(len(largest), mostLive)] {
		s := &ev.Storages[id]
		v := LiveValue{Value: s.Name, Bytes: s.Bytes, Category: s.Category.String(), Module: s.Module}
		if mk := makers[id]; mk >= 0 {
			v.Node = callName(&ev.Nodes[mk])
		}
		r.Live = append(r.Live, v)
	}
	r.Curve = make([]CurvePoint, 0, len(ev.res.Curve))
	for i, b := range ev.res.Curve {
		r.Curve = append(r.Curve, CurvePoint{ev.Nodes[t.Events[i].Node].Phase.String(), b})
	}
}

// mostLive bounds the list of storages in a report.
const mostLive = 20

// callName names a node in messages: its operator, and the call it comes from.
func callName(n *program.Node) string {
	if n.Name == "" || n.Name == n.Op {
		return n.Op
	}
	return n.Op + " (" + n.Name + ")"
}

// makers returns the node that allocates each storage, -1 for residents.
func (ev *evaluation) makers() []int32 {
	return liveness.NewRanges(ev.Program).Start
}

// breakdown sums live storages by category; what the allocator counts beyond
// their bytes (rounding, blocks it could not split) is fragmentation, so that
// the sum is exactly the allocated peak.
func (ev *evaluation) breakdown(live []program.StorageID) []CategoryBytes {
	sums := make([]int64, program.NumCategories)
	total := int64(0)
	for _, id := range live {
		s := &ev.Storages[id]
		sums[s.Category] += s.Bytes
		total += s.Bytes
	}
	out := make([]CategoryBytes, 0, len(sums)+1)
	for c, n := range sums {
		out = append(out, CategoryBytes{program.Category(c).String(), n})
	}
	return append(out, CategoryBytes{"fragmentation", ev.res.Allocated - total})
}

// modelInfo combines what the file says with what the program shows.
func (m *Model) modelInfo(ev *evaluation) ModelInfo {
	info := m.info
	info.Lift = string(m.lifted.Source)
	for i := range ev.Storages {
		if s := &ev.Storages[i]; s.Category == program.Parameters {
			info.ParameterBytes += s.Bytes
		}
	}
	for i, v := range m.lifted.Graph.Values {
		if m.lifted.Roles[i] == lift.Parameter {
			if dims, ok := v.Type.Shape.Static(); ok {
				n, _ := graph.Product(dims)
				info.Parameters += n
			}
		}
	}
	return info
}

// weights lists the parameters named after an attribute of a module that runs;
// exporters number those that they changed (onnx::MatMul_12).
func (m *Model) weights() Weights {
	modules := make([]string, 0, len(m.lifted.Graph.Nodes))
	for i := range m.lifted.Graph.Nodes {
		modules = append(modules, m.lifted.Graph.Nodes[i].Module)
	}
	slices.Sort(modules)
	modules = slices.Compact(modules)
	runs := func(module string) bool { // the module itself, or one inside it
		i, found := slices.BinarySearch(modules, module)
		if !found {
			i, _ = slices.BinarySearch(modules, module+".")
		}
		return i < len(modules) && train.Within(modules[i], module)
	}
	out := Weights{}
	for i, v := range m.lifted.Graph.Values {
		dims, known := v.Type.Shape.Static()
		dot := strings.LastIndexByte(v.Name, '.')
		if m.lifted.Roles[i] == lift.Parameter && known && dot > 0 && runs(v.Name[:dot]) {
			out[v.Name] = dims
		}
	}
	return out
}

// warnings collects the warnings of reading, inference, lift and search, each
// once.
func (a *answer) warnings() []graph.Warning {
	out := slices.Concat(a.j.cfg.Notes, a.m.Warnings(), a.ev.Warnings, a.notes)
	out = append(append(out, a.m.captureNotes()...), a.checkNotes()...)
	if a.m.lifted.Source != lift.Metadata && a.m.lifted.Source != lift.Captured {
		out = append(out, graph.Warning{Code: "no-metadata", Message: "the file does not say which framework operators it was exported from; they were recognised by patterns or counted conservatively"})
	}
	out = append(append(append(out, a.parallelNotes()...), a.offloadNotes()...), a.guesses()...)
	if u := a.m.lifted.Unlifted; len(u) > 0 {
		out = append(out, graph.Warning{Code: "unlifted", Message: "ONNX operators kept as they are: " + strings.Join(u, ", ")})
	}
	if !a.j.train && a.m.lifted.Source != lift.Captured {
		out = append(out, graph.Warning{Code: "python-variables", Message: "an inference keeps what variables of the model's code name; the file does not show them, and where they keep large tensors the peak is higher than predicted"})
	}
	if !a.masked() {
		out = slices.DeleteFunc(out, func(w graph.Warning) bool { return w.Code == lift.IdleDropout })
	}
	return once(doubtsFirst(out, a.j.train))
}

// maskShare is the share of reserved memory, 1/maskShare, from which modules that
// drop nothing are worth a doubt.
const maskShare = 100

// masked reports whether the memory of idle Dropout modules matters, or the file does
// not show how much it is.
func (a *answer) masked() bool {
	n := a.m.lifted.Masks
	return n == 0 || n > a.ev.res.Reserved/maskShare
}

// guesses warns of figures of the device and the runtime that were not
// measured.
func (a *answer) guesses() []graph.Warning {
	var out []graph.Warning
	d, r := a.j.device, a.j.runtime
	named := a.j.cfg.GPU != ""
	if a.ev.guesses() {
		out = append(out, graph.Warning{Code: "workspace-guessed", Message: fmt.Sprintf("convolutions of unmeasured shapes: their workspaces, up to %s, are predicted from those of others", profile.FormatBytes(guessed(a.ev.Program)))})
	}
	if list := a.ev.Variables.Unread; len(list) > 0 {
		u := list[0]
		out = append(out, graph.Warning{Code: "unread-results", Message: fmt.Sprintf("%s collects results, only some of which are in the file (%s, line %d): it lacks calls whose results are not read; export a model that returns them all, or stop computing them",
			cmp.Or(u.Module, "the model"), path.Base(u.Line.File), u.Line.Number)})
	}
	out = append(out, a.unseen()...)
	if a.ev.changes() {
		out = append(out, graph.Warning{Code: "workspace-changes", Message: fmt.Sprintf("convolutions whose kernel the measurements do not determine: cuDNN may run one with a workspace of up to %s", profile.FormatBytes(changing(a.ev.Program)))})
	}
	if len(d.Estimated) > 0 && named {
		what := "was not measured: it is an estimate"
		if len(d.Estimated) > 1 {
			what = "were not measured: they are estimates"
		}
		out = append(out, graph.Warning{Code: "device-estimated", Message: fmt.Sprintf("the %s of %s %s", strings.ToLower(strings.Join(d.Estimated, " and ")), d.Name, what)})
	}
	if a.j.assumed != "" {
		out = append(out, graph.Warning{Code: "runtime-assumed", Message: a.j.assumed})
	}
	if !r.Measured {
		out = append(out, graph.Warning{Code: "runtime-not-measured", Message: r.Name + " was read from its sources, not measured; memplan calibrate measures a machine"})
	}
	if named && d.Compute != measuredOn {
		for i := range a.ev.Nodes {
			if n := &a.ev.Nodes[i]; n.Scratch > 0 && n.Unit == program.Convolution {
				out = append(out, graph.Warning{Code: "other-gpu", Message: fmt.Sprintf("the workspaces of convolutions are those of an H200; %s runs other kernels", d.Name)})
				break
			}
		}
	}
	return out
}

// guesses reports whether large workspaces rest on no measurement.
func (ev *evaluation) guesses() bool { return guessed(ev.Program) > ev.res.Reserved/guessShare }

// unseen warns of what the model may compute or keep without showing it in the
// file.
func (a *answer) unseen() []graph.Warning {
	var out []graph.Warning
	if n := a.worth(a.m.lifted.MissingBytes()); n > 0 && len(a.ev.Variables.Unread) == 0 {
		gaps, calls := a.m.lifted.Gaps, 0
		for _, g := range gaps {
			calls += g.Calls
		}
		out = append(out, graph.Warning{Code: "unread-results", Message: fmt.Sprintf("the numbers of the file's calls have gaps: the model makes %d more calls, the first of %s, whose results are not read; they take up to %s that is not counted",
			calls, gaps[0].Op, profile.FormatBytes(n))})
	}
	if n := a.idleBytes(); n > 0 {
		list := a.m.lifted.Idle
		out = append(out, graph.Warning{Code: "idle-modules", Message: fmt.Sprintf("no call reads the parameters of %d modules, %s first: if forward runs them without using their results, they take up to %s that is not counted", len(list), list[0].Module, profile.FormatBytes(n))})
	}
	if n := a.keptInForward(); n > 0 {
		out = append(out, graph.Warning{Code: "python-variables", Message: fmt.Sprintf("variables of the model's code may keep up to %s that backward does not need until forward returns: the source lines do not determine it", profile.FormatBytes(n))})
	}
	return out
}

// changes reports whether another kernel may run with a large workspace.
func (ev *evaluation) changes() bool { return changing(ev.Program) > ev.res.Reserved/guessShare }

// guessed returns the largest bound of a workspace without a measurement, in
// bytes.
func guessed(p *program.Program) (most int64) {
	for _, w := range p.Workspaces() {
		if w.Source == cudnn.Family {
			most = max(most, w.Bound)
		}
	}
	return most
}

// changing returns the largest workspace of another kernel that may run at this
// batch, in bytes.
func changing(p *program.Program) (most int64) {
	for _, w := range p.Workspaces() {
		most = max(most, w.Other)
	}
	return most
}

// guessShare is the share of reserved memory, 1/guessShare, from which a
// guessed workspace is worth a warning.
const guessShare = 32

// measuredOn is the architecture on which package cudnn's convolution kernels
// were measured.
var measuredOn = profile.Capability{Major: 9, Minor: 0}

// once drops repeated warnings; the first says how many there were.
func once(list []graph.Warning) []graph.Warning {
	times := map[graph.Warning]int{}
	for _, w := range list {
		times[w]++
	}
	out := make([]graph.Warning, 0, len(times))
	for _, w := range list {
		if n := times[w]; n > 0 {
			times[w] = 0
			if n > 1 {
				w.Message += fmt.Sprintf(" (%d times)", n)
			}
			out = append(out, w)
		}
	}
	return out
}

// A selector holds the segment problem of one batch.
type selector struct {
	problem   *checkpointsel.Problem
	selective *checkpointsel.Selective
	nested    func() *checkpointsel.Nested // of the same step, more finely divided; measured once
	base      *train.Build
	step      float64 // seconds of the step without checkpoints
}

// least returns a lower bound on the memory of any selection, in bytes of live
// tensors: keeping results takes more than keeping none.
func (s *selector) least() int64 {
	return min(s.nested().MinBudget(checkpointsel.Hoped), s.problem.MinBudget(checkpointsel.Hoped))
}

// selector measures the step without checkpoints.
func (m *Model) selector(j *job, batch int64) (*selector, error) {
	b, err := m.build(j, batch, nil)
	if err != nil {
		return nil, err
	}
	return m.selectorOf(j, b)
}

// selectorOf is selector with the step built.
func (m *Model) selectorOf(j *job, b *train.Build) (*selector, error) {
	o, err := m.options(j, nil)
	if err != nil {
		return nil, err
	}
	o.Config.Hooks = true
	hooked, err := train.New(m.lifted, o)
	if err != nil {
		return nil, err
	}
	if hooked, err = j.rank(hooked, o.Update); err != nil {
		return nil, err
	}
	saved := make([]int64, len(m.lifted.Graph.Nodes))
	makers := liveness.NewRanges(b.Program).Start
	for _, id := range b.Saved {
		if mk := makers[id]; mk >= 0 && b.Nodes[mk].Call >= 0 {
			saved[b.Nodes[mk].Call] += b.Storages[id].Bytes
		}
	}
	weight := func(call int) int64 { return saved[call] }
	extra := liveness.Rounded(o.Config.LtWorkspace)
	s := &selector{problem: checkpointsel.NewProblem(b, hooked, checkpointsel.Units(m.lifted, weight, b.Whole...), extra, j.time.Seconds), base: b,
		nested: sync.OnceValue(func() *checkpointsel.Nested {
			return checkpointsel.NewNested(b, hooked, weight, extra, j.time.Seconds)
		})}
	s.selective = checkpointsel.NewSelective(s.problem, b, j.time.Seconds)
	for i := range b.Nodes {
		if b.Nodes[i].Only != program.FirstStep {
			s.step += float64(b.Runs(&b.Nodes[i])) * j.time.Seconds(&b.Nodes[i])
		}
	}
	return s, nil
}
