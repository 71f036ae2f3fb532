package planner

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/planner/profile"
)

// A Rule is one kind of limit that a model can be held to.
type Rule struct {
	Name string
	Doc  string
	Form string // what a limit looks like, for messages and help
	// Implied rules apply by themselves, without a limit in the configuration.
	Implied bool
	// Least is set where the limit is the least allowed, not the most.
	Least bool

	parse func(text string) (float64, error)
	// value measures a model in the rule's unit; an error means that the rule
	// cannot tell.
	value func(ctx context.Context, s *subject) (float64, error)
	text  func(v float64) string // a value for people
	unit  string                 // of a limit without one, for messages
	// limit is an implied rule's, and whether the rule applies at all.
	limit func(s *subject) (float64, bool)
	// note adds to the message what the value is compared with.
	note func(s *subject) string
}

// A subject is a model that rules look at.
type subject struct {
	file    *ConfigFile
	entry   *Entry
	model   *Model
	report  *Report
	base    *BaselineModel // nil: baseErr says why
	baseErr error
	moved   string // settings of the baseline where they differ
}

// Rules lists the rules, in the order of verdicts.
var Rules = []Rule{
	{
		Name: "fits", Implied: true, Doc: "the step fits the card that gpu or vram names; holds for every model that names one", Form: "a card",
		limit: func(s *subject) (float64, bool) { return float64(s.report.Config.VRAMBytes), s.report.Fits != nil },
		value: func(_ context.Context, s *subject) (float64, error) { return float64(s.report.Peak.ProcessBytes), nil },
		text:  bytesText,
	},
	{
		Name: "max-peak", Doc: "most bytes that the step may reserve", Form: "a size such as 12G", unit: " B",
		parse: sizeLimit, value: reserved, text: bytesText,
	},
	{
		Name: "max-increase", Doc: "most that reserved bytes may grow over the baseline", Form: "a percentage such as 2%",
		parse: percentLimit, value: increase, text: func(v float64) string { return fmt.Sprintf("%+.2f%%", v) }, note: baseNote,
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
	if s.base.ReservedBytes <= 0 {
		return 0, errors.New("the baseline reserves nothing: run memplan baseline")
	}
	return 100 * float64(s.report.Peak.ReservedBytes-s.base.ReservedBytes) / float64(s.base.ReservedBytes), nil
}

func baseNote(s *subject) string {
	if s.base == nil {
		return ""
	}
	note := fmt.Sprintf(" over the baseline's %s", profile.FormatBytes(s.base.ReservedBytes))
	if s.moved != "" {
		note += fmt.Sprintf(" (made with %s)", s.moved)
	}
	return note
}

// largestBatch is the entry's, where it asks for it, or a search of its own.
func largestBatch(ctx context.Context, s *subject) (float64, error) {
	if b := s.report.Batch; b != nil {
		return float64(b.Max), nil
	}
	c := s.entry.Config
	if c.GPU == "" && c.VRAM == 0 {
		return 0, errors.New("needs a card: give the model a gpu or a vram")
	}
	c.Batch, c.BatchMax = 0, true
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

// countLimit reads a number with an optional thousand (K), million (M) or
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
	Measured float64 `json:"measured"` // in the rule's unit: bytes, percent, a count; 0 where it could not tell
	Allowed  float64 `json:"allowed"`
	Line     int     `json:"line"`     // of the rule in the configuration, or of the model
	Settings string  `json:"settings"` // the entry's, by which those of the same model differ

	// Doubts are the warnings of the model that say that its file does not hold the
	// answer.
	Doubts []graph.Warning `json:"doubts"`
}

// Check applies a configuration's rules to its models. An error means that a
// model could not be analyzed; a rule that cannot tell is a finding whose OK
// is nil.
func (f *ConfigFile) Check(ctx context.Context) ([]Finding, error) {
	base, err := f.readBaseline()
	if err != nil {
		return nil, err
	}
	out := []Finding{}
	for i := range f.Entries {
		e := &f.Entries[i]
		m, r, err := f.analyze(ctx, e)
		if err != nil {
			return nil, err
		}
		s := &subject{file: f, entry: e, model: m, report: r}
		s.base, s.moved, s.baseErr = base.find(f, e)
		found, err := s.findings(ctx)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}

// analyze answers an entry's question.
func (f *ConfigFile) analyze(ctx context.Context, e *Entry) (*Model, *Report, error) {
	e.Config.Memory = f.Memory
	m, unknown, err := OpenFor(e.Path, &e.Config)
	if err == nil && len(unknown) > 0 {
		err = errors.New("dims: " + unknown[0])
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s:%d: %w", f.Path, e.Line, err)
	}
	r, err := m.Analyze(ctx, e.Config)
	if err != nil {
		return nil, nil, fmt.Errorf("%s:%d: %s: %w", f.Path, e.Line, e.Path, withoutPath(err, e.File))
	}
	return m, r, nil
}

// withoutPath takes the path of a model off an error that begins with it.
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
			out = append(out, r.apply(ctx, s, Limit{Rule: r, Text: r.text(v), Value: v, Line: s.entry.Line}))
		}
	}
	for _, l := range s.entry.Limits {
		out = append(out, l.Rule.apply(ctx, s, l))
	}
	return out, ctx.Err()
}

// missing is the unit that a limit is written without.
func (r *Rule) missing(text string) string {
	if strings.Trim(text, "0123456789") != "" {
		return ""
	}
	return r.unit
}

// apply compares a model with a limit.
func (r *Rule) apply(ctx context.Context, s *subject, l Limit) Finding {
	f := Finding{Verdict: Verdict{Model: s.entry.Path, Rule: r.Name, Limit: l.Text + r.missing(l.Text)}, Allowed: l.Value, Line: l.Line, Settings: s.entry.Settings(), Doubts: s.report.Doubts()}
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
	if r.Implied { // its limit is not the whole of it
		ok = *s.report.Fits
	}
	note := ""
	if r.note != nil {
		note = r.note(s)
	}
	f.OK, f.Measured, f.Value = &ok, v, r.text(v)
	f.Message = fmt.Sprintf("%s%s, %s %s allowed", f.Value, note, bound, f.Limit)
	return f
}
