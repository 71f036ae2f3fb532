package report

import (
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/validate"
)

// Validations are the formats of validate.
var Validations = []Format[*validate.Report]{
	{Name: "text", Write: validationText},
	AsJSON(Itself[*validate.Report]),
	{Name: "html", Write: validationHTML},
}

// validationLine returns the answer in a sentence.
func validationLine(r *validate.Report) string {
	failed := 0
	for _, c := range r.Checks {
		if c.OK != nil && !*c.OK {
			failed++
		}
	}
	switch r.Verdict {
	case validate.Validated:
		return fmt.Sprintf("validated: %s passed on %s", Plural(len(r.Checks), "check", "checks"), deviceLine(r))
	case validate.Refuted:
		return fmt.Sprintf("refuted: %d of %s failed on %s", failed, Plural(len(r.Checks), "check", "checks"), deviceLine(r))
	}
	return "partial: no check failed, but not all could run on " + deviceLine(r)
}

func deviceLine(r *validate.Report) string {
	if r.Device.Name == "" {
		return "no device"
	}
	return fmt.Sprintf("%s (%s, %s)", r.Device.Kind, r.Device.Name, r.Device.Driver)
}

// validationFacts returns the numbers beside the checks.
func validationFacts(r *validate.Report) [][2]string {
	m := r.Model
	batch := ""
	if m.Batch > 0 {
		batch = fmt.Sprintf("batch %d, ", m.Batch)
	}
	facts := [][2]string{
		{"model", fmt.Sprintf("%s, %s%s, %s, %d nodes, %s", m.Path, batch, m.Precision, m.Optimizer, m.Nodes, Plural(m.Segments, "checkpointed segment", "checkpointed segments"))},
		{"memory", fmt.Sprintf("%s predicted, %s measured", size(r.Memory.PredictedBytes), size(r.Memory.MeasuredBytes))},
	}
	if r.Arena.PlannedBytes > 0 {
		facts = slices.Insert(facts, 1, [2]string{"arena", fmt.Sprintf("%s planned, %s used, no layout below %s; placed by %s", size(r.Arena.PlannedBytes), size(r.Arena.UsedBytes), size(r.Arena.BoundBytes), r.Arena.Order)})
	}
	for _, ph := range r.Phased {
		facts = append(facts, [2]string{ph.Name, fmt.Sprintf("%s allocated at most, %s predicted; %.4g ms, %.4g ms predicted for the device profile", size(ph.MeasuredBytes), size(ph.PredictedBytes), ph.MeasuredMs, ph.PredictedMs)})
	}
	if f := r.Arena.FrameworkBytes; f > 0 && r.Arena.PlannedBytes > 0 {
		facts = append(facts, [2]string{"PyTorch", fmt.Sprintf("its allocator is predicted to reserve %s for this step: the arena is %.1f%% of that", size(f), share(r.Arena.PlannedBytes, f))})
	}
	if r.Time.MeasuredMs > 0 && len(r.Phased) > 0 {
		facts = append(facts, [2]string{"time", fmt.Sprintf("%.4g ms a step, %.4g ms predicted for the device profile", r.Time.StepMs, r.Time.PredictedMs)})
	} else if r.Time.MeasuredMs > 0 {
		facts = append(facts, [2]string{"time", fmt.Sprintf("%.4g ms a step by the clock; its nodes %.4g ms, %.4g ms predicted for the device profile", r.Time.StepMs, r.Time.MeasuredMs, r.Time.PredictedMs)})
	}
	if r.Recompute.Nodes > 0 {
		facts = append(facts, [2]string{"again", fmt.Sprintf("%s again: %.1f%% of the rest measured, %.1f%% predicted", Plural(r.Recompute.Nodes, "node runs", "nodes run"), 100*r.Recompute.Measured, 100*r.Recompute.Predicted)})
	}
	if len(r.Loss) > 0 {
		facts = append(facts, [2]string{"loss", fmt.Sprintf("%.6g in the first step, %.6g in the last", r.Loss[0], r.Loss[len(r.Loss)-1])})
	}
	for _, n := range r.Device.Notes {
		facts = append(facts, [2]string{"note", n})
	}
	return facts
}

// outcomeOf returns a check's answer in a word.
func outcomeOf(c *validate.Check) string {
	switch {
	case c.OK == nil:
		return "not made"
	case *c.OK:
		return "ok"
	}
	return "failed"
}

// figureOf writes a check's value and its limit.
func figureOf(c *validate.Check) string {
	number := func(v float64) string {
		switch {
		case v == math.MaxFloat64:
			return "infinite"
		case v == math.Trunc(v) && math.Abs(v) < 1<<53:
			return strconv.FormatInt(int64(v), 10)
		}
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	if c.OK == nil {
		return ""
	}
	return number(c.Value) + " (limit " + number(c.Tolerance) + ")"
}

// An opSum is the time of all nodes of one operator.
type opSum struct {
	op                  string
	nodes               int
	measured, predicted float64
}

// slowest sums times by operator, the slowest first, at most n.
func slowest(r *validate.Report, n int) []opSum {
	at := map[string]int{}
	var sums []opSum
	for _, o := range r.Time.PerOp {
		i, ok := at[o.Op]
		if !ok {
			i = len(sums)
			at[o.Op] = i
			sums = append(sums, opSum{op: o.Op})
		}
		sums[i].nodes++
		sums[i].measured += o.MeasuredMs
		sums[i].predicted += o.PredictedMs
	}
	slices.SortStableFunc(sums, func(a, b opSum) int { return int(math.Copysign(1, b.measured-a.measured)) })
	return sums[:min(n, len(sums))]
}

// longestCheck is the largest number of columns of a check's name.
const longestCheck = 44

// slowestShown is the largest number of operators in a report.
const slowestShown = 10

// validationText writes a report for a person.
func validationText(w io.Writer, r *validate.Report, s Style) error {
	p := newPage(w, s)
	code := map[string]string{validate.Validated: green, validate.Refuted: red}[r.Verdict]
	p.wrapped("", validationLine(r), code)
	p.head("checks")
	names, figures := 13, 19
	for i := range r.Checks {
		names, figures = max(names, min(widest(r.Checks[i].Name), longestCheck)), max(figures, widest(figureOf(&r.Checks[i])))
	}
	for i := range r.Checks {
		c := &r.Checks[i]
		p.wrapped("  "+pad(outcomeOf(c), 9)+pad(clip(c.Name, names), names+1)+pad(figureOf(c), figures)+" ", c.Detail, "")
	}
	if sums := slowest(r, slowestShown); len(sums) > 0 {
		p.head("slowest operators")
		p.line("  %s%s%s%s", pad("operator", 40), left("nodes", 7), left("measured", 13), left("predicted", 13))
		for _, o := range sums {
			p.line("  %s%s%s%s", pad(o.op, 40), left(strconv.Itoa(o.nodes), 7), left(fmt.Sprintf("%.3f ms", o.measured), 13), left(fmt.Sprintf("%.3f ms", o.predicted), 13))
		}
	}
	p.line("")
	for _, f := range validationFacts(r) {
		p.labelled(f[0], f[1])
	}
	return nil
}

// A validationPage is what validation.html shows.
type validationPage struct {
	Path, Class, Verdict string
	Style                template.CSS
	Facts                [][2]string
	Checks               []checkRow
	Arena                *arenaDrawing
	Times                []timeRow
}

// A checkRow is a check; Name is in parts between which a line may break.
type checkRow struct {
	Name                    []string
	Outcome, Figure, Detail string
}

// A timeRow is an operator's time, in milliseconds.
type timeRow struct {
	Op                  string
	Nodes               int
	Measured, Predicted string
}

// validationHTML writes a page that loads nothing.
func validationHTML(w io.Writer, r *validate.Report, _ Style) error {
	p := validationPage{Path: r.Model.Path, Class: map[string]string{validate.Validated: "yes", validate.Refuted: "no", validate.Partial: "open"}[r.Verdict], Verdict: validationLine(r), Style: pageStyle,
		Facts: validationFacts(r), Arena: drawArena(r)}
	for i := range r.Checks {
		c := &r.Checks[i]
		p.Checks = append(p.Checks, checkRow{strings.Split(c.Name, "."), outcomeOf(c), figureOf(c), c.Detail})
	}
	ms := func(x float64) string { return fmt.Sprintf("%.3f", x) }
	if len(r.Time.PerOp) > 0 {
		for _, o := range slowest(r, len(r.Time.PerOp)) {
			p.Times = append(p.Times, timeRow{o.op, o.nodes, ms(o.measured), ms(o.predicted)})
		}
		p.Times = append(p.Times, timeRow{"all", len(r.Time.PerOp), ms(r.Time.MeasuredMs), ms(r.Time.PredictedMs)})
	}
	return pages.ExecuteTemplate(w, "validation.html", &p)
}
