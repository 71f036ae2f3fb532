package validate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/planner"
)

// SchemaVersion is the version of the report.
const SchemaVersion = 1

// A Question says what to run and what to compare it with.
type Question struct {
	Model  *planner.Model
	Config planner.Config         // a fixed step: its batch, its checkpoints
	Arena  *planner.Arena         // the plan's places of storages; nil: they are placed here
	Open   func() (Device, error) // opens the device, once for each run
	Seed   uint64
	Steps  int // training steps of each run
	// Framework is the predicted reservation of PyTorch's allocator, in bytes.
	Framework int64
	Cap       int64  // bytes that the process may take of the device; 0: no limit
	Source    Source // the model's weights; nil: none
	// Inputs are given inputs and weights, and the loss's target as TargetName:
	// they take precedence over Source. They are read on demand.
	Inputs map[string]Reader
	// Expect is the expected outputs, and gradients as "grad:NAME", of the
	// first step. They are read one after another, when the step has run.
	Expect map[string]Reader
	// Tolerance is the tolerated error of Expect, relative to the largest
	// number of each tensor.
	Tolerance float64
	Progress  func(done, total int, what string) // nil: none
}

// A Report is the result of a validation. Times are milliseconds.
type Report struct {
	SchemaVersion int           `json:"schemaVersion"`
	Model         ModelInfo     `json:"model"`
	Device        DeviceInfo    `json:"device"`
	Verdict       string        `json:"verdict"` // validated, refuted, partial
	Unsupported   []string      `json:"unsupported"`
	Arena         ArenaInfo     `json:"arena"`
	Memory        MemoryInfo    `json:"memory"`
	Checks        []Check       `json:"checks"`
	Time          TimeInfo      `json:"time"`
	Recompute     RecomputeInfo `json:"recompute"`
	Loss          []float64     `json:"loss"` // of each step
	// Phased compares phases of a step that PyTorch ran.
	Phased []TorchPhaseInfo `json:"phases,omitempty"`
	// Profile is in the form that the planner reads as measured times
	// (planner.ReadTimes).
	Profile []planner.MeasuredNode `json:"-"`
	// Buffers are the plan's buffers with their places, and Phases the nodes of
	// each phase.
	Buffers []Buffer    `json:"-"`
	Phases  []PhaseSpan `json:"-"`
}

// ModelInfo describes what ran.
type ModelInfo struct {
	Path      string `json:"path"`
	Batch     int64  `json:"batch"`
	Precision string `json:"precision"`
	Optimizer string `json:"optimizer"`
	Nodes     int    `json:"nodes"`
	Segments  int    `json:"segments"`
}

// DeviceInfo describes where it ran.
type DeviceInfo struct {
	Name   string `json:"name"`
	Kind   string `json:"kind"`
	Driver string `json:"driver"`
	// Notes are versions of libraries, and what ran in an unusual way.
	Notes []string `json:"notes"`
}

// ArenaInfo describes the one allocation.
type ArenaInfo struct {
	PlannedBytes int64  `json:"plannedBytes"`
	UsedBytes    int64  `json:"usedBytes"`
	BoundBytes   int64  `json:"boundBytes"` // no layout of these buffers is smaller
	Order        string `json:"order"`
	// FrameworkBytes is the predicted reservation of PyTorch's allocator for the
	// same step, 0 if unknown.
	FrameworkBytes int64 `json:"frameworkBytes"`
}

// MemoryInfo is the memory that the process takes of the device.
type MemoryInfo struct {
	PredictedBytes int64 `json:"predictedBytes"` // the arena
	MeasuredBytes  int64 `json:"measuredBytes"`
	ContextBytes   int64 `json:"contextBytes"` // the context and the libraries' handles, 0 if unknown
	BesidesBytes   int64 `json:"besidesBytes"` // taken in the first step: loaded code, memory that libraries keep
}

// A Check is one comparison: OK is nil if it could not be made.
type Check struct {
	Name      string  `json:"name"`
	OK        *bool   `json:"ok"`
	Value     float64 `json:"value"`
	Tolerance float64 `json:"tolerance"`
	Detail    string  `json:"detail"`
}

// TimeInfo compares times of a steady step.
type TimeInfo struct {
	PredictedMs float64  `json:"predictedMs"`
	MeasuredMs  float64  `json:"measuredMs"` // of all nodes together
	StepMs      float64  `json:"stepMs"`     // wall time
	PerOp       []OpTime `json:"perOp"`
}

// OpTime is one node.
type OpTime struct {
	Op          string  `json:"op"`
	Node        string  `json:"node"`
	Phase       string  `json:"phase"`
	PredictedMs float64 `json:"predictedMs"`
	MeasuredMs  float64 `json:"measuredMs"`
}

// RecomputeInfo is the share of a step's time that recomputation adds.
type RecomputeInfo struct {
	Nodes     int     `json:"nodes"`
	Predicted float64 `json:"predicted"`
	Measured  float64 `json:"measured"`
}

// Verdicts.
const (
	Validated = "validated"
	Refuted   = "refuted"
	Partial   = "partial"
)

// inexactTolerance is the tolerated difference of gradients between two runs on
// a device whose sums have no fixed order, relative to the largest number.
const inexactTolerance = 1e-4

// A validation is the state of answering a question.
type validation struct {
	q       *Question
	r       *Report
	first   map[string]*Array // gradients of the run with checkpoints, by step and name
	run     *Result           // of the guarded run
	source  Source            // of all runs
	clipped bool              // libraries get less workspace than they asked for, to stay under the cap
}

// Validate runs the step of the plan and checks it: once with guards and
// poisoned buffers, once without and timed, and, if the plan recomputes, once
// without checkpoints. The error is about what could not be run.
func Validate(ctx context.Context, q *Question) (*Report, error) {
	step, err := q.Model.Program(q.Config)
	if err != nil {
		return nil, err
	}
	if err := q.expects(step); err != nil {
		return nil, err
	}
	source, unread, err := q.given(step)
	if err != nil {
		return nil, err
	}
	v := &validation{q: q, source: source, r: &Report{SchemaVersion: SchemaVersion, Model: ModelInfo{Path: q.Model.Path, Batch: q.Config.Batch, Precision: q.Config.Precision, Optimizer: q.Config.Optimizer,
		Nodes: len(step.Nodes), Segments: len(step.Ranges)}}, first: map[string]*Array{}}
	l, err := v.layout(step.Program, q.Arena)
	if errors.Is(err, errOverlap) {
		v.r.Checks = append(v.r.Checks, Check{Name: "offsets", OK: new(bool), Value: 1, Detail: err.Error() + ": nothing was run"})
		v.r.Arena = ArenaInfo{PlannedBytes: q.Arena.Bytes, BoundBytes: q.Arena.BoundBytes, Order: q.Arena.Order, FrameworkBytes: q.Framework}
		return v.judged(), nil
	}
	if err != nil {
		return nil, err
	}
	v.r.Arena = ArenaInfo{PlannedBytes: l.Bytes, BoundBytes: l.Bound, Order: l.Order, FrameworkBytes: q.Framework}
	v.r.Buffers, v.r.Phases = drawn(step.Program, l), phases(step.Program)
	v.check("layout", 0, 0, "no two live buffers overlap")
	if q.Cap > 0 && l.Bytes > q.Cap {
		v.check("cap", float64(l.Bytes), float64(q.Cap), "bytes of the arena: nothing was run")
		v.r.Arena.UsedBytes = 0
		return v.judged(), nil
	}
	if err := v.guarded(ctx, step, l); err != nil {
		return nil, err
	}
	if err := v.timed(ctx, step, l); err != nil {
		return nil, err
	}
	if recomputes(step.Program) {
		if err := v.plain(ctx); err != nil {
			return nil, err
		}
	}
	for _, name := range unread {
		v.r.Device.Notes = append(v.r.Device.Notes, name+" was given, and no node of the step reads it")
	}
	return v.judged(), nil
}

// layout places a program's storages and the workspaces of the device's
// libraries, by the plan's arena if there is one.
func (v *validation) layout(p *program.Program, planned *planner.Arena) (l *Layout, err error) {
	d, err := v.open(p)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if v.run == nil {
		v.on(d.Info())
	}
	work, err := Works(d, p)
	if err != nil {
		return nil, err
	}
	least, err := needs(d, p)
	if err != nil {
		return nil, err
	}
	room := int64(math.MaxInt64)
	if v.q.Cap > 0 {
		room = v.q.Cap - d.Info().Context
	}
	if planned != nil {
		if l, err = v.arranged(p, planned, work, least, room); l != nil || err != nil {
			return l, err
		}
	}
	l, err = v.within(work, least, room, func(work []int64) (*Layout, error) { return NewLayout(p, work) })
	if err != nil {
		return nil, err
	}
	return l, l.Check(p)
}

// within lays out under a cap: before it reports that the plan does not fit, it
// reduces the libraries' workspaces, the largest first, down to what each cannot
// run without.
func (v *validation) within(work, least []int64, room int64, place func(work []int64) (*Layout, error)) (*Layout, error) {
	work = slices.Clone(work)
	l, err := place(work)
	for limit := slices.Max(append(work, 0)) / 2; err == nil && l.Bytes > room && limit > 0; limit /= 2 {
		v.clipped = true
		for i, n := range work {
			if n > limit {
				work[i] = least[i]
			}
		}
		l, err = place(work)
	}
	return l, err
}

// errOverlap is the error of a plan with wrong offsets.
var errOverlap = errors.New("the plan's offsets are wrong")

// arranged places storages by the plan. It returns no layout, and notes the
// reason, if the plan is of another program or leaves no room for the device's
// libraries under the cap.
func (v *validation) arranged(p *program.Program, planned *planner.Arena, work, least []int64, room int64) (*Layout, error) {
	note := func(ok *bool, detail string) {
		v.r.Checks = append(v.r.Checks, Check{Name: "offsets", OK: ok, Detail: detail})
	}
	l, err := v.within(work, least, room, func(work []int64) (*Layout, error) { return Arranged(planned, p, work) })
	switch {
	case errors.Is(err, planner.ErrOtherProgram):
		note(nil, err.Error()+", made by another version: its storages are placed anew")
		return nil, nil //nolint:nilnil // noted
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errOverlap, err)
	}
	if err := l.Check(p); err != nil {
		return nil, fmt.Errorf("%w: %w", errOverlap, err)
	}
	if l.Bytes > room {
		v.clipped = false
		note(nil, fmt.Sprintf("with the libraries' workspaces the plan's arena takes %d bytes, more than the cap: its storages are placed anew", l.Bytes))
		return nil, nil //nolint:nilnil // noted
	}
	ok := true
	note(&ok, fmt.Sprintf("every buffer lies where the plan says, in %d bytes; %d more for the libraries' workspaces", planned.Bytes, l.Bytes-planned.Bytes))
	return l, nil
}

// on records the device, about which more is known after a run.
func (v *validation) on(info Info) {
	v.r.Device = DeviceInfo{info.Name, info.Kind, info.Driver, append([]string{}, info.Notes...)}
}

// recomputes reports whether a program recomputes anything.
func recomputes(p *program.Program) bool {
	return slices.ContainsFunc(p.Nodes, func(n program.Node) bool { return n.Recompute })
}

// check records a comparison: value may be at most tolerance.
func (v *validation) check(name string, value, tolerance float64, detail string) {
	ok := value <= tolerance
	if value != value {
		ok, value = false, math.MaxFloat64
	}
	if math.IsInf(value, 0) { // JSON has no infinity
		value = math.MaxFloat64
	}
	v.r.Checks = append(v.r.Checks, Check{Name: name, OK: &ok, Value: value, Tolerance: tolerance, Detail: detail})
}

// judged sets the verdict.
func (v *validation) judged() *Report {
	v.r.Verdict = Validated
	for _, c := range v.r.Checks {
		switch {
		case c.OK == nil && v.r.Verdict == Validated:
			v.r.Verdict = Partial
		case c.OK != nil && !*c.OK:
			v.r.Verdict = Refuted
		}
	}
	return v.r
}

// An UnsupportedError lists what a device cannot run.
type UnsupportedError struct{ List []Unsupported }

func (e *UnsupportedError) Error() string {
	lines := make([]string, len(e.List))
	for i, u := range e.List {
		lines[i] = fmt.Sprintf("aten.%s (%s, and %d more): %s", u.Op, u.Node, u.Count-1, u.Reason)
		if u.Count == 1 {
			lines[i] = fmt.Sprintf("aten.%s (%s): %s", u.Op, u.Node, u.Reason)
		}
	}
	return "the device cannot run " + strings.Join(lines, "; ")
}

func (e *UnsupportedError) Unwrap() error { return ErrUnsupported }

// open opens a device that can run a program; otherwise it returns an
// *UnsupportedError.
func (v *validation) open(p *program.Program) (Device, error) {
	d, err := v.q.Open()
	if err != nil {
		return nil, err
	}
	if list := Unsupports(d, p); len(list) > 0 {
		return nil, errors.Join(&UnsupportedError{list}, d.Close())
	}
	return d, nil
}

// execute runs a program on a freshly opened device.
func (v *validation) execute(ctx context.Context, what string, p *program.Program, l *Layout, o Options) (res *Result, err error) {
	d, err := v.open(p)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	o.Seed, o.Steps, o.Source = v.q.Seed, v.q.Steps, v.source
	if v.q.Progress != nil {
		o.Progress = func(done, total int) { v.q.Progress(done, total, what) }
	}
	return Execute(ctx, d, p, l, o)
}

// gradientKey returns the key of a parameter's gradient in a step.
func gradientKey(step int, name string) string { return fmt.Sprintf("%d\x00%s", step, name) }

// outputs returns what a step returns, in the form of Options.Outputs.
func outputs(s *planner.Step) []Output {
	out := make([]Output, len(s.Outputs))
	for i, o := range s.Outputs {
		out[i] = Output{o.Name, o.Tensor, s.Forward}
	}
	return out
}

// guarded runs the step with guards.
func (v *validation) guarded(ctx context.Context, s *planner.Step, l *Layout) error {
	keep, expects := recomputes(s.Program), len(v.q.Expect) > 0
	o := Options{Guarded: true, Outputs: outputs(s)}
	finite := true
	o.Gradient = func(step int, name string, a *Array) {
		finite = finite && a.finite()
		if keep || expects && step == 1 {
			v.first[gradientKey(step, name)] = a
		}
	}
	var err error
	if v.run, err = v.execute(ctx, "guarded run", s.Program, l, o); err != nil {
		return err
	}
	info := v.run.Device
	v.on(info)
	v.r.Arena.UsedBytes = v.run.Used
	v.r.Memory = MemoryInfo{PredictedBytes: l.Bytes + info.Extra, MeasuredBytes: v.run.Growth, ContextBytes: info.Context, BesidesBytes: v.run.Besides}
	v.r.Loss = v.run.Loss
	v.check("arena", float64(abs(v.run.Used-l.Bytes)), 0, "bytes between the end of the highest buffer and that of the arena")
	v.check("memory", float64(abs(v.run.Growth-v.r.Memory.PredictedBytes)), float64(info.Granularity), "difference of the driver's count from the prediction, bytes")
	v.check("steady", float64(max(v.run.Later, 0)), 0, "bytes taken of the device after the first step")
	v.check("guards", float64(len(v.run.Broken)), 0, firstOf(v.run.Broken, "buffers written beyond their ends"))
	if v.q.Cap > 0 {
		v.check("cap", float64(v.run.Growth+info.Context+v.run.Besides), float64(v.q.Cap), "bytes taken of the device, with the context")
	}
	v.finite(finite)
	return v.expected(s)
}

// finite checks that none of the NaNs with which every buffer starts is left: in
// the losses and gradients, or in the outputs if there is no loss.
func (v *validation) finite(gradients bool) {
	bad := 0
	if len(v.run.Loss) > 0 {
		for _, x := range v.run.Loss {
			if x-x != 0 {
				bad++
			}
		}
		if !gradients {
			bad++
		}
		v.check("finite", float64(bad), 0, "losses and gradients that are not numbers; every buffer starts as NaN")
		return
	}
	taken := 0
	for _, a := range v.run.Outputs {
		if a != nil {
			taken++
			if a.nans() {
				bad++
			}
		}
	}
	if taken == 0 {
		v.r.Checks = append(v.r.Checks, Check{Name: "finite", Detail: "the step has no loss, and no output that can be read"})
		return
	}
	v.check("finite", float64(bad), 0, fmt.Sprintf("outputs with NaNs, of %d; every buffer starts as NaN", taken))
}

// abs is the absolute value.
func abs(n int64) int64 { return max(n, -n) }

// firstOf returns the first of a list, or otherwise if it is empty.
func firstOf(list []string, otherwise string) string {
	if len(list) > 0 {
		return list[0]
	}
	return otherwise
}

// expected compares the results with Question.Expect.
func (v *validation) expected(s *planner.Step) error {
	for _, name := range slices.Sorted(maps.Keys(v.q.Expect)) {
		var got *Array
		if p, ok := strings.CutPrefix(name, gradientPrefix); ok {
			got = v.first[gradientKey(1, p)]
		} else {
			for i := range s.Outputs {
				if s.Outputs[i].Name == name {
					got = v.run.Outputs[i]
				}
			}
		}
		if got == nil {
			v.r.Checks = append(v.r.Checks, Check{Name: "expected " + name, Tolerance: v.q.Tolerance, Detail: "no node of the step computes it: there is nothing to compare"})
			continue
		}
		want, err := v.q.Expect[name]()
		if err != nil {
			return err
		}
		if !slices.Equal(wide(got.Shape), wide(want.Shape)) {
			v.check("expected "+name, math.Inf(1), v.q.Tolerance, fmt.Sprintf("the array given has shape %v, the step's %v", want.Shape, got.Shape))
			continue
		}
		detail := "largest difference, relative to the largest number"
		if want.nans() {
			detail = "the array given has NaNs, which nothing equals"
		}
		v.check("expected "+name, Difference(got, want), v.q.Tolerance, detail)
	}
	return nil
}

// wide returns a shape without its dims of 1, which programs write differently.
func wide(shape []int64) []int64 {
	return slices.DeleteFunc(slices.Clone(shape), func(n int64) bool { return n == 1 })
}

// gradientPrefix precedes a parameter's name to denote its gradient.
const gradientPrefix = "grad:"

// An UnknownError is the error of an expectation that the step does not
// compute.
type UnknownError struct {
	Name  string
	Known []string // what the step computes: outputs, then gradients in the optimizer's order
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("the step has no output or gradient %s", e.Name)
}

// expects returns an UnknownError if Expect has something that the step does not
// compute.
func (q *Question) expects(s *planner.Step) error {
	var known []string
	for i := range s.Outputs {
		known = append(known, s.Outputs[i].Name)
	}
	if i := slices.IndexFunc(s.Nodes, func(n program.Node) bool { return n.Phase == program.Update }); i >= 0 && s.Nodes[i].Attrs != nil && s.Nodes[i].Attrs.Rule != nil {
		for _, p := range s.Nodes[i].Attrs.Rule.Params {
			known = append(known, gradientPrefix+p.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(q.Expect)) {
		if !slices.Contains(known, name) {
			return &UnknownError{name, known}
		}
	}
	return nil
}

// timed runs the step without guards and measures its nodes.
func (v *validation) timed(ctx context.Context, s *planner.Step, l *Layout) error {
	o := Options{}
	if len(v.run.Loss) == 0 { // there is nothing else to compare
		o.Outputs = outputs(s)
	}
	res, err := v.execute(ctx, "timed run", s.Program, l, o)
	if err != nil {
		return err
	}
	v.repeated(res)
	var redo, rest, redoPredicted, restPredicted float64
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.Only == program.FirstStep && v.q.Steps > 1 || n.Only == program.LaterSteps && v.q.Steps == 1 || n.Phase == program.ZeroGrad || n.Does() == "del" {
			continue
		}
		predicted, measured := 1e3*float64(s.Runs(n))*s.Time.Seconds(n), 1e3*res.Times[i].Seconds()
		v.r.Time.PerOp = append(v.r.Time.PerOp, OpTime{"aten." + n.Op, n.Name, n.Phase.String(), predicted, measured})
		v.r.Profile = append(v.r.Profile, planner.Measure(n, s.Runs(n), predicted, measured))
		if n.Recompute {
			v.r.Recompute.Nodes++
			redo, redoPredicted = redo+measured, redoPredicted+predicted
		} else {
			rest, restPredicted = rest+measured, restPredicted+predicted
		}
	}
	v.r.Time.PredictedMs, v.r.Time.MeasuredMs, v.r.Time.StepMs = redoPredicted+restPredicted, redo+rest, 1e3*res.Seconds
	if restPredicted > 0 && rest > 0 {
		v.r.Recompute.Predicted, v.r.Recompute.Measured = redoPredicted/restPredicted, redo/rest
	}
	return nil
}

// repeated checks that another run, with other initial contents of its buffers,
// gave the same results.
func (v *validation) repeated(res *Result) {
	worst, taken := 0.0, 0
	for i, want := range v.run.Loss {
		worst = max(worst, apart(res.Loss[i], want))
	}
	for i, a := range res.Outputs {
		if a != nil {
			taken++
			worst = max(worst, bitwise(a, v.run.Outputs[i]))
		}
	}
	switch {
	case len(v.run.Loss) > 0:
		v.check("repeated", worst, v.tolerance(), "difference of the losses in a run without poisoned buffers")
	case taken > 0:
		v.check("repeated", worst, v.tolerance(), fmt.Sprintf("largest difference of %d outputs in a run without poisoned buffers", taken))
	default:
		v.r.Checks = append(v.r.Checks, Check{Name: "repeated", Tolerance: v.tolerance(), Detail: "the step has no loss, and no output that can be read"})
	}
}

// apart returns the difference of two losses relative to the second: infinite
// if either is NaN.
func apart(a, b float64) float64 {
	d := math.Abs(a - b)
	switch {
	case a == b:
		return 0
	case d != d:
		return math.Inf(1)
	}
	return d / max(math.Abs(b), math.SmallestNonzeroFloat64)
}

// tolerance returns the tolerated difference of two runs of the same step.
func (v *validation) tolerance() float64 {
	if v.run.Device.Exact {
		return 0
	}
	return inexactTolerance
}

// plain runs the step without checkpoints and compares the results.
func (v *validation) plain(ctx context.Context) error {
	cfg := v.q.Config
	cfg.Segments, cfg.Schedule, cfg.Checkpoint = nil, nil, "none"
	s, err := v.q.Model.Program(cfg)
	if err != nil {
		return err
	}
	l, err := v.layout(s.Program, nil)
	if err != nil {
		return err
	}
	if v.clipped {
		v.r.Checks = append(v.r.Checks, Check{Name: "gradients", Tolerance: v.tolerance(), Detail: "under the cap the libraries' workspaces are too small to compute both steps alike"})
		return nil
	}
	if v.q.Cap > 0 && l.Bytes > v.q.Cap {
		v.r.Checks = append(v.r.Checks, Check{Name: "gradients", Tolerance: v.tolerance(), Detail: fmt.Sprintf("without checkpoints the arena takes %d bytes, more than the cap", l.Bytes)})
		return nil
	}
	worst, name, seen := 0.0, "", 0
	o := Options{Guarded: true, Outputs: outputs(s), Gradient: func(step int, n string, a *Array) {
		k := gradientKey(step, n)
		b := v.first[k]
		delete(v.first, k)
		seen++
		if d := bitwise(b, a); d > worst {
			worst, name = d, n
		}
	}}
	res, err := v.execute(ctx, "run without checkpoints", s.Program, l, o)
	if err != nil {
		return err
	}
	for i := range res.Outputs {
		if d := bitwise(v.run.Outputs[i], res.Outputs[i]); d > worst {
			worst, name = d, s.Outputs[i].Name
		}
	}
	for i := range res.Loss {
		if d := apart(v.run.Loss[i], res.Loss[i]); d > worst {
			worst, name = d, "the loss"
		}
	}
	if seen == 0 {
		v.r.Checks = append(v.r.Checks, Check{Name: "gradients", Tolerance: v.tolerance(), Detail: "the step has no gradients to compare"})
		return nil
	}
	if len(v.first) > 0 {
		worst, name = math.Inf(1), "a gradient that only one run has"
	}
	detail := fmt.Sprintf("largest difference of %d gradients, the outputs and the losses to the run without checkpoints", seen)
	if name != "" {
		detail += ": " + name
	}
	v.check("gradients", worst, v.tolerance(), detail)
	return nil
}

// bitwise returns 0 for arrays with the same bits, else their difference, which is
// never 0.
func bitwise(a, b *Array) float64 {
	if equalBits(a, b) {
		return 0
	}
	return max(Difference(a, b), math.SmallestNonzeroFloat64)
}
