package planner

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/planner/profile"
)

// A Rule is one kind of limit that a model can be held to.
type Rule struct {
	Name string
	Doc  string
	Form string // form of a limit, for messages and help
	// Implied rules always apply, without a limit in the configuration.
	Implied bool
	// FailOn rules have no limit; the key fail-on lists them.
	FailOn bool
	// Least is set if the limit is a minimum, not a maximum.
	Least bool

	parse func(text string) (float64, error)
	// value measures a model in the rule's unit; an error means that it cannot
	// be determined.
	value func(ctx context.Context, s *subject) (float64, error)
	text  func(v float64) string // formats a value for people
	unit  string                 // unit that a limit must have, for messages
	// an implied rule's limit, and whether the rule applies
	limit func(s *subject) (float64, bool)
	// note adds the value's context to the message.
	note func(s *subject) string
	// why lists what the change over the baseline consists of.
	why func(s *subject) []Cause
}

// A subject is a model to which rules are applied.
type subject struct {
	file    *ConfigFile
	entry   *Entry
	model   *Model
	report  *Answer
	base    *BaselineModel // nil: baseErr is the reason
	baseErr error
	moved   string // the baseline's settings if they differ
}

// Rules lists the rules, in the order of verdicts.
var Rules = []Rule{
	{
		Name: "fits", Implied: true, Doc: "the step fits the card that gpu or vram names; holds for every model that names one", Form: "a card",
		limit: func(s *subject) (float64, bool) { return float64(s.report.Config.VRAM), s.report.Fits != nil },
		value: func(_ context.Context, s *subject) (float64, error) { return float64(s.report.Peak.ProcessBytes), nil },
		text:  bytesText, note: rankNote,
	},
	{
		Name: "max-peak", Doc: "most bytes that the step may reserve", Form: "a size such as 12G", unit: " B",
		parse: sizeLimit, value: reserved, text: bytesText, note: rankNote,
	},
	{
		Name: "max-process", Doc: "most bytes that the card must have free: reserved ones and the CUDA context", Form: "a size such as 14G", unit: " B",
		parse: sizeLimit, value: func(_ context.Context, s *subject) (float64, error) { return float64(s.report.Peak.ProcessBytes), nil }, text: bytesText, note: rankNote,
	},
	{
		Name: "max-increase", Doc: "most that reserved bytes, of each rank of a mesh, may grow over the baseline", Form: "a percentage such as 2%",
		parse: percentLimit, value: increase, text: func(v float64) string { return fmt.Sprintf("%+.2f%%", v) }, note: baseNote, why: grown,
	},
	{
		Name: "min-batch", Doc: "least batch that must fit the card", Form: "a whole number such as 32", Least: true,
		parse: wholeLimit, value: largestBatch, text: wholeText,
	},
	{
		Name: "max-overhead", Doc: "most time that recomputation may add to the step", Form: "a percentage such as 20%",
		parse: percentLimit, value: recomputation, text: func(v float64) string { return fmt.Sprintf("%.2f%%", v) },
	},
	{
		Name: "max-parameters", Doc: "most parameters that the model may have", Form: "a number such as 25000000, 25M or 1.5B",
		parse: countLimit, value: func(_ context.Context, s *subject) (float64, error) { return float64(s.report.Model.Parameters), nil }, text: wholeText,
	},
	{
		Name: "no-new-warnings", Doc: "kinds of warnings that the baseline does not have", Form: "true, or how many are allowed",
		parse: newWarningsLimit, value: newWarnings, text: wholeText, note: newWarningsNote,
	},
	{
		Name: "warnings", FailOn: true, Doc: "warnings of any kind", Form: "named by fail-on",
		value: func(_ context.Context, s *subject) (float64, error) { return float64(len(s.report.Warnings)), nil }, text: wholeText,
		note: func(s *subject) string { return codesNote(warningCodes(s.report.Warnings)) },
	},
	{
		Name: "cannot-tell", FailOn: true, Doc: "warnings for which the file does not hold the answer", Form: "named by fail-on",
		value: func(_ context.Context, s *subject) (float64, error) { return float64(len(s.report.Doubts())), nil }, text: wholeText,
		note: func(s *subject) string { return codesNote(warningCodes(s.report.Doubts())) },
	},
}

func bytesText(v float64) string { return profile.FormatBytes(int64(v)) }
func wholeText(v float64) string { return strconv.FormatInt(int64(v), 10) }

func reserved(_ context.Context, s *subject) (float64, error) {
	return float64(s.report.Peak.ReservedBytes), nil
}

// increase is the growth over the baseline in percent.
func increase(_ context.Context, s *subject) (float64, error) {
	if s.base == nil {
		return 0, s.baseErr
	}
	g, err := s.growth()
	return g.percent, err
}

// A rankGrowth is what a step, or the rank of a mesh that grew most, reserves now and did in the baseline.
type rankGrowth struct {
	rank      int // -1 for one card
	base, now int64
	percent   float64
}

// growth returns the growth over the baseline, of the rank of a mesh that grew most. A
// baseline of other ranks, or of a version that kept none, tells the worst rank's alone.
func (s *subject) growth() (rankGrowth, error) {
	most := rankGrowth{rank: -1, base: s.base.ReservedBytes, now: s.report.Peak.ReservedBytes}
	if most.base <= 0 {
		return most, errors.New("the baseline reserves nothing: run memplan baseline")
	}
	most.percent = 100 * float64(most.now-most.base) / float64(most.base)
	ranks := s.ranks()
	if len(ranks) != len(s.base.Ranks) {
		return most, nil
	}
	worst := most
	if len(ranks) > 0 {
		most.rank = s.report.Parallel.WorstRank
	}
	for i := range ranks {
		g := rankGrowth{rank: ranks[i].Rank, base: s.base.Ranks[i].ReservedBytes, now: ranks[i].ReservedBytes}
		if g.rank != s.base.Ranks[i].Rank || g.base <= 0 {
			return worst, nil
		}
		if g.percent = 100 * float64(g.now-g.base) / float64(g.base); g.percent > most.percent {
			most = g
		}
	}
	return most, nil
}

// ranks are those of a mesh that the report lists; nil for one card.
func (s *subject) ranks() []RankInfo {
	if s.report.Parallel == nil {
		return nil
	}
	return s.report.Parallel.PerRank
}

// rankNote names the rank of a mesh that needs most.
func rankNote(s *subject) string {
	p := s.report.Parallel
	if p == nil {
		return ""
	}
	note := fmt.Sprintf(" on rank %d of %d, which needs most", p.WorstRank, p.Ranks)
	if p.Mesh["pp"] > 0 {
		note = fmt.Sprintf(" on rank %d of %d, in stage %d, which needs most", p.WorstRank, p.Ranks, p.PerRank[p.worst()].Stage)
	}
	return note
}

func baseNote(s *subject) string {
	if s.base == nil {
		return ""
	}
	g, _ := s.growth()
	note := fmt.Sprintf(" to %s from the baseline's %s", profile.FormatBytes(g.now), profile.FormatBytes(g.base))
	if g.rank >= 0 {
		note += fmt.Sprintf(" on rank %d", g.rank)
	}
	if s.moved != "" {
		note += fmt.Sprintf(" (made with %s)", s.moved)
	}
	return note
}

// warningCodes lists the codes of warnings, each once, in order.
func warningCodes(list []graph.Warning) []string {
	codes := make([]string, 0, len(list))
	for i := range list {
		codes = append(codes, list[i].Code)
	}
	slices.Sort(codes)
	return slices.Compact(codes)
}

// codesNote appends the codes of warnings to their number.
func codesNote(codes []string) string {
	if len(codes) == 0 {
		return ""
	}
	return " (" + strings.Join(codes, ", ") + ")"
}

// notInBaseline lists the codes of warnings that the baseline's model did not
// have.
func notInBaseline(s *subject) []string {
	return slices.DeleteFunc(warningCodes(s.report.Warnings), func(code string) bool { return slices.Contains(s.base.Warnings, code) })
}

func newWarnings(_ context.Context, s *subject) (float64, error) {
	if s.base == nil {
		return 0, s.baseErr
	}
	if s.base.Warnings == nil {
		return 0, errors.New("the baseline is of a version that kept no warnings: run memplan baseline")
	}
	return float64(len(notInBaseline(s))), nil
}

func newWarningsNote(s *subject) string {
	if s.base == nil {
		return ""
	}
	return codesNote(notInBaseline(s))
}

func newWarningsLimit(text string) (float64, error) {
	if text == "true" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q: want true, or how many kinds of new warnings are allowed", text)
	}
	return float64(n), nil
}

// largestBatch returns the report's largest batch if the entry asks for max, or
// else searches for it.
func largestBatch(ctx context.Context, s *subject) (float64, error) {
	if b := s.report.Batch; b != nil {
		return float64(b.Max), nil
	}
	c := s.entry.Config
	if c.GPU == "" && c.VRAM == 0 {
		return 0, errors.New("needs a card: give the model a gpu or a vram")
	}
	c.Batch, c.BatchMax, c.BatchBest, c.Target = 0, true, false, 0
	r, err := s.model.Analyze(ctx, c)
	if err != nil || r.Batch == nil {
		return 0, err
	}
	return float64(r.Batch.Max), nil
}

func recomputation(_ context.Context, s *subject) (float64, error) {
	if s.report.Checkpoint == nil {
		return 0, nil
	}
	return 100 * s.report.Checkpoint.RecomputeOverhead, nil
}

func sizeLimit(text string) (float64, error) {
	n, err := profile.ParseSize(text)
	return float64(n), err
}

func percentLimit(text string) (float64, error) {
	number, ok := strings.CutSuffix(strings.TrimSpace(text), "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if !ok || err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, fmt.Errorf("%q: want a percentage such as 2%%", text)
	}
	return v, nil
}

func wholeLimit(text string) (float64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%q: want a whole number of 1 or more", text)
	}
	return float64(n), nil
}

// countLimit parses a number with an optional thousand (K), million (M) or
// billion (B).
func countLimit(text string) (float64, error) {
	number, unit := strings.TrimSpace(text), 1.0
	for _, u := range []struct {
		suffix string
		n      float64
	}{{"K", 1e3}, {"M", 1e6}, {"B", 1e9}} {
		if rest, ok := strings.CutSuffix(number, u.suffix); ok {
			number, unit = rest, u.n
			break
		}
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || math.IsNaN(v) || v < 0 || v*unit > 1<<53 {
		return 0, fmt.Errorf("%q: want a number such as 25000000, 25M or 1.5B", text)
	}
	return math.Round(v * unit), nil
}

// A Finding is a verdict with the numbers behind it and the place of its rule.
type Finding struct {
	Verdict
	Measured float64 `json:"measured"` // in the rule's unit: bytes, percent, a count; 0 if undetermined
	Allowed  float64 `json:"allowed"`
	Line     int     `json:"line"`     // of the rule in the configuration, or of the model
	Settings string  `json:"settings"` // of the entry; they distinguish entries of one model
	Severity string  `json:"severity"` // error, or warning: check does not fail on a warning

	// Why lists the parts of the peak that changed, for a rule that compares with
	// the baseline, the largest change first; they add up to the change of the
	// allocated peak.
	Why []Cause `json:"why,omitempty"`
	// Ranks are those of a mesh, of which each must keep the limits.
	Ranks []RankInfo `json:"ranks,omitempty"`
	// Warnings are all of the model's.
	Warnings []graph.Warning `json:"warnings"`
	// Doubts are the model's warnings that its file does not hold the answer.
	Doubts []graph.Warning `json:"doubts"`
}

// The severities of a rule.
const (
	SeverityError   = "error"
	SeverityWarning = "warning"
)

// Failed reports whether check fails because of the finding.
func (f *Finding) Failed() bool { return f.OK != nil && !*f.OK && f.Severity != SeverityWarning }

// Unreadable is the rule of findings for models that could not be analyzed.
const Unreadable = "readable"

// Check applies a configuration's rules to its models, several at a time. A
// rule without a result is a finding whose OK is nil; a model that could not be
// analyzed is one such finding, under the rule Unreadable. Findings are in the
// configuration's order. done, if not nil, is called after each model.
func (f *ConfigFile) Check(ctx context.Context, done func(n, of int, model string)) ([]Finding, error) {
	base, err := f.readBaseline()
	if err != nil {
		return nil, err
	}
	found := make([][]Finding, len(f.Entries))
	err = f.each(ctx, done, func(ctx context.Context, i int) (err error) {
		found[i], err = f.checkEntry(ctx, base, &f.Entries[i])
		return err
	})
	return slices.Concat(found...), err
}

// checkEntry applies the rules of one model.
func (f *ConfigFile) checkEntry(ctx context.Context, base *Baseline, e *Entry) ([]Finding, error) {
	m, r, err := f.analyze(ctx, e)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return []Finding{{Verdict: Verdict{Model: e.Path, Rule: Unreadable, Message: err.Error()}, Line: e.Line, Settings: e.Settings(), Severity: SeverityError, Warnings: []graph.Warning{}, Doubts: []graph.Warning{}}}, nil
	}
	s := &subject{file: f, entry: e, model: m, report: r}
	s.base, s.moved, s.baseErr = base.find(f, e)
	return s.findings(ctx)
}

// each calls do for every entry, as many at a time as there are processors and
// as the memory for reading models allows, and returns the first error in the
// order of the entries.
func (f *ConfigFile) each(ctx context.Context, done func(n, of int, model string), do func(ctx context.Context, i int) error) error {
	const most = 4 // models at a time; more are no faster where they share memory
	free := make(chan struct{}, min(most, goruntime.GOMAXPROCS(0)))
	errs := make([]error, len(f.Entries))
	var ended int
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range f.Entries {
		free <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		all.Go(func() {
			errs[i] = do(ctx, i)
			mu.Lock()
			if ended++; done != nil {
				done(ended, len(f.Entries), f.Entries[i].Path)
			}
			mu.Unlock()
			<-free
		})
	}
	all.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// analyze answers an entry's question.
func (f *ConfigFile) analyze(ctx context.Context, e *Entry) (*Model, *Answer, error) {
	e.Config.Memory = f.Memory
	m, unknown, err := OpenFor(e.Path, &e.Config)
	if err == nil && len(unknown) > 0 {
		err = errors.New("dims: " + unknown[0])
	}
	if err != nil {
		return nil, nil, err
	}
	r, err := m.Analyze(ctx, e.Config)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %s", e.Path, inKeys(withoutPath(err, e.File).Error()))
	}
	return m, r, nil
}

// flagText matches flags in messages, with their values after a space.
var flagText = regexp.MustCompile(`--([a-z-]+)\b(?:( )([A-Za-z]+=)?([A-Z]+\b|max\b|[a-z]+\b)?)?`)

// inKeys rewrites a message about flags for the configuration's keys: "--batch N"
// becomes "batch: N", "--dim batch=N" becomes "dims: {batch: N}", and a flag
// alone its key.
func inKeys(message string) string {
	return flagText.ReplaceAllStringFunc(message, func(s string) string {
		m := flagText.FindStringSubmatch(s)
		key, blank, dim, value := m[1], m[2], m[3], m[4]
		at := slices.IndexFunc(Settings, func(s Setting) bool { return s.Flag == key && s.Key != "" })
		if at < 0 {
			return s
		}
		if key = Settings[at].Key; dim != "" {
			return fmt.Sprintf("%s: {%s: %s}", key, strings.TrimSuffix(dim, "="), value)
		}
		if value == "" || strings.ToLower(value) == value && value != "max" && value != "schedule" && value != "auto" {
			return key + blank + value
		}
		return key + ": " + value
	})
}

// withoutPath removes the path of a model from an error that begins with it.
func withoutPath(err error, path string) error {
	if text, ok := strings.CutPrefix(err.Error(), path+": "); ok {
		return errors.New(text)
	}
	return err
}

// findings applies the implied rules and the entry's limits.
func (s *subject) findings(ctx context.Context) ([]Finding, error) {
	var out []Finding
	for i := range Rules {
		r := &Rules[i]
		if !r.Implied {
			continue
		}
		if v, ok := r.limit(s); ok {
			out = append(out, r.apply(ctx, s, Limit{Rule: r, Text: r.text(v), Value: v, Line: s.entry.Line, Severity: SeverityError}))
		}
	}
	for _, l := range s.entry.Limits {
		out = append(out, l.Rule.apply(ctx, s, l))
	}
	return out, ctx.Err()
}

// missing returns the rule's unit if text is a bare number, else "".
func (r *Rule) missing(text string) string {
	if strings.Trim(text, "0123456789") != "" {
		return ""
	}
	return r.unit
}

// apply compares a model with a limit.
func (r *Rule) apply(ctx context.Context, s *subject, l Limit) Finding {
	f := Finding{Verdict: Verdict{Model: s.entry.Path, Rule: r.Name, Limit: l.Text + r.missing(l.Text)}, Allowed: l.Value, Line: l.Line, Settings: s.entry.Settings(), Severity: l.Severity, Ranks: s.ranks(), Warnings: s.report.Warnings, Doubts: s.report.Doubts()}
	v, err := r.value(ctx, s)
	if err != nil {
		f.Message = err.Error()
		return f
	}
	ok := v <= l.Value
	bound := "at most"
	if r.Least {
		ok, bound = v >= l.Value, "at least"
	}
	if r.Implied { // the limit is only a part of it
		ok = *s.report.Fits
	}
	note := ""
	if r.note != nil {
		note = r.note(s)
	}
	f.OK, f.Measured, f.Value = &ok, v, r.text(v)
	none := r.FailOn
	if l.Text == "true" { // a number that is none
		f.Limit, none = r.text(l.Value), true
	}
	if f.Message = fmt.Sprintf("%s%s, %s %s allowed", f.Value, note, bound, f.Limit); none {
		f.Message = fmt.Sprintf("%s%s, none allowed", f.Value, note)
	}
	if r.why != nil {
		f.Why = r.why(s)
	}
	return f
}
