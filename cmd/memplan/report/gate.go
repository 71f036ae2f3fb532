package report

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/planner"
)

// A Gate is what check writes.
type Gate struct {
	Path     string // of the configuration
	Findings []planner.Finding
}

// Gates are the formats of check.
var Gates = []Format[*Gate]{
	{Name: "text", Write: gateText},
	AsJSON(gateDocument),
	{Name: "markdown", Write: gateMarkdown},
	{Name: "sarif", Write: findingsSARIF, Exact: true},
	{Name: "junit", Write: gateJUnit, Exact: true},
	{Name: "gitlab", Write: gateCodeQuality, Exact: true},
	{Name: "github", Write: gateAnnotations, Exact: true},
}

// Failed returns the number of failed rules.
func (g *Gate) Failed() int {
	n := 0
	for i := range g.Findings {
		if g.Findings[i].Failed() {
			n++
		}
	}
	return n
}

// Failures returns the failed rules, one line each.
func (g *Gate) Failures() []string {
	var out []string
	for i, model := range g.labels() {
		if f := &g.Findings[i]; f.Failed() {
			out = append(out, fmt.Sprintf("%s:%d: %s: %s: %s", g.Path, f.Line, model, f.Rule, causeText(f)))
		}
	}
	return out
}

// Unknown returns how many findings are undetermined, and a line for each reason.
func (g *Gate) Unknown() (findings int, lines []string) {
	alike := map[string][]*planner.Finding{} // by message
	for i := range g.Findings {
		if f := &g.Findings[i]; f.OK == nil {
			findings++
			alike[f.Message] = append(alike[f.Message], f)
		}
	}
	for i := range g.Findings {
		f := &g.Findings[i]
		switch same := alike[f.Message]; {
		case f.OK != nil || f.Rule != planner.Unreadable && same[0] != f:
		case f.Rule == planner.Unreadable:
			lines = append(lines, fmt.Sprintf("%s:%d: %s", g.Path, f.Line, f.Message))
		case len(same) > 1:
			lines = append(lines, fmt.Sprintf("%s:%d: %s: %s cannot tell: %s", g.Path, f.Line, these(same, "model", "models", func(f *planner.Finding) string { return f.Model }),
				these(same, "rule", "rules", func(f *planner.Finding) string { return f.Rule }), f.Message))
		default:
			lines = append(lines, fmt.Sprintf("%s:%d: %s: rule %s cannot tell: %s", g.Path, f.Line, f.Model, f.Rule, f.Message))
		}
	}
	return findings, lines
}

// these names what several findings are of, or counts it where it is more than two.
func these(list []*planner.Finding, one, many string, name func(*planner.Finding) string) string {
	var names []string
	for _, f := range list {
		if !slices.Contains(names, name(f)) {
			names = append(names, name(f))
		}
	}
	switch {
	case len(names) > 2:
		return Plural(len(names), one, many)
	case one == "rule" && len(names) == 1:
		return "rule " + names[0]
	case one == "rule":
		return "rules " + strings.Join(names, " and ")
	}
	return strings.Join(names, " and ")
}

// Outcome returns how many of the rules failed.
func (g *Gate) Outcome() string {
	return fmt.Sprintf("%d of %s failed", g.Failed(), Plural(len(g.Findings), "rule", "rules"))
}

// Summary returns the outcome in one line.
func (g *Gate) Summary() string {
	rules, failed := Plural(len(g.Findings), "rule", "rules"), g.Failed()
	but := ""
	if n := len(g.warned()); n > 0 {
		but = fmt.Sprintf(", %d only as warnings", n)
	}
	if len(g.doubts()) > 0 {
		but += ", as far as the files tell"
	}
	switch {
	case len(g.Findings) == 0:
		return "no rules apply"
	case failed == 0 && len(g.Findings) == 1:
		return "1 rule holds" + but
	case failed == 0:
		return "all " + rules + " hold" + but
	}
	return g.Outcome()
}

// labels returns the models of the findings, with their settings if the
// configuration lists a model more than once.
func (g *Gate) labels() []string {
	settings := map[string]map[string]bool{}
	for _, f := range g.Findings {
		if settings[f.Model] == nil {
			settings[f.Model] = map[string]bool{}
		}
		settings[f.Model][f.Settings] = true
	}
	out := make([]string, len(g.Findings))
	for i, f := range g.Findings {
		if out[i] = f.Model; len(settings[f.Model]) > 1 && f.Settings != "" {
			out[i] += " (" + f.Settings + ")"
		}
	}
	return out
}

// warned returns the indices of failed findings that are only warnings.
func (g *Gate) warned() []int {
	var out []int
	for i := range g.Findings {
		if f := &g.Findings[i]; f.OK != nil && !*f.OK && !f.Failed() {
			out = append(out, i)
		}
	}
	return out
}

// mostCauses is the largest number of causes in a message; JSON has all.
const mostCauses = 3

// causeText returns a finding's message with the largest parts of a growth.
func causeText(f *planner.Finding) string {
	if len(f.Why) == 0 || f.OK == nil || *f.OK {
		return f.Message
	}
	var total int64
	for _, c := range f.Why {
		total += c.Delta
	}
	parts := make([]string, 0, mostCauses+1)
	said := map[string]bool{} // a module's reason stands behind its first change
	for i, c := range f.Why {
		if i == mostCauses {
			parts = append(parts, fmt.Sprintf("%d more", len(f.Why)-i))
			break
		}
		part := fmt.Sprintf("%s %s of %s", moduleName(c.Module), signed(c.Delta), c.Category)
		if c.Reason != "" && !said[c.Module] {
			part, said[c.Module] = part+" ("+c.Reason+")", true
		}
		parts = append(parts, part)
	}
	return fmt.Sprintf("%s; allocated %s: %s", f.Message, signed(total), strings.Join(parts, ", "))
}

// A modelWarning is a warning of a model.
type modelWarning struct {
	model string
	graph.Warning
}

// warnings returns the warnings of all models other than doubts, each once.
func (g *Gate) warnings() []modelWarning {
	var out []modelWarning
	seen := map[string]bool{}
	for i, model := range g.labels() {
		if seen[model] { // all findings of a model have the same
			continue
		}
		seen[model] = true
		for _, w := range g.Findings[i].Warnings {
			if !planner.IsDoubt(w.Code) {
				out = append(out, modelWarning{model, w})
			}
		}
	}
	return out
}

// A modelDoubt is the reason why the file of a model does not hold the answer.
type modelDoubt struct{ model, text string }

// doubts returns the doubts of all models, each once.
func (g *Gate) doubts() []modelDoubt {
	var out []modelDoubt
	for i, model := range g.labels() {
		for _, d := range g.Findings[i].Doubts {
			if x := (modelDoubt{model, doubtText(d)}); !slices.Contains(out, x) {
				out = append(out, x)
			}
		}
	}
	return out
}

// word returns a finding's outcome for people.
func word(f *planner.Finding) string {
	switch {
	case f.OK == nil:
		return "?"
	case *f.OK:
		return "ok"
	case !f.Failed():
		return "warn"
	}
	return "FAIL"
}

func gateText(w io.Writer, g *Gate, s Style) error {
	for _, d := range g.doubts() {
		fmt.Fprintln(w, paint(s.Color, red, d.model+": "+cannotTell+": "+d.text))
	}
	fmt.Fprintln(w, paint(s.Color, map[bool]string{true: green, false: red}[g.Failed() == 0], g.Summary()))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i, model := range g.labels() {
		f := &g.Findings[i]
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\n", word(f), model, f.Rule, causeText(f))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, line := range g.warningLines() {
		fmt.Fprintln(w, "  warning: "+line)
	}
	return nil
}

// warningLines returns the warnings of all models, one line for each of a
// model's codes.
func (g *Gate) warningLines() []string {
	type key struct{ model, code string }
	count := map[key]int{}
	var order []modelWarning
	for _, w := range g.warnings() {
		k := key{w.model, w.Code}
		if count[k]++; count[k] == 1 {
			order = append(order, w)
		}
	}
	out := make([]string, len(order))
	for i, w := range order {
		out[i] = fmt.Sprintf("%s: %s [%s]", w.model, w.Message, w.Code)
		if n := count[key{w.model, w.Code}]; n > 1 {
			out[i] += fmt.Sprintf(" and %d more", n-1)
		}
	}
	return out
}

func gateDocument(g *Gate) any {
	return GateDocument{planner.SchemaVersion, g.Failed() == 0, g.Findings}
}

// A GateDocument is what check --format json prints.
type GateDocument struct {
	SchemaVersion int               `json:"schemaVersion"`
	OK            bool              `json:"ok"`
	Verdicts      []planner.Finding `json:"verdicts"`
}

// A comment on GitHub has at most 65,536 characters. Its parts end at these
// bytes, so that one does not displace the next.
const (
	doubtsEnd  = 16_000
	rowsEnd    = 40_000
	detailsEnd = 64_000
)

// fit appends the parts of a comment that end before a byte, and returns how
// many do not.
func fit(b *bytes.Buffer, end int, parts []func(markdown)) (left int) {
	for _, write := range parts {
		var one bytes.Buffer
		if write(markdown{&one}); b.Len()+one.Len() > end {
			left++
			continue
		}
		b.Write(one.Bytes())
	}
	return left
}

func gateMarkdown(w io.Writer, g *Gate, _ Style) error {
	b := &bytes.Buffer{}
	m := markdown{b}
	m.tag("check")
	var doubts []func(markdown)
	for _, d := range g.doubts() {
		doubts = append(doubts, func(m markdown) { m.printf("**%s:** %s\n\n", own(cannotTell), d.model+": "+d.text) })
	}
	if left := fit(b, doubtsEnd, doubts); left > 0 {
		m.printf("and %d more doubts\n\n", left)
	}
	m.printf("**memplan: %s**\n\n| | model | rule | value | limit |\n|---|---|---|---:|---:|\n", own(g.Summary()))
	var rows []func(markdown)
	models := g.labels()
	for _, failures := range []bool{true, false} { // failures first
		for i, model := range models {
			f := &g.Findings[i]
			if (word(f) != "ok") == failures {
				rows = append(rows, func(m markdown) { m.row(own(word(f)), model, own(f.Rule), own(f.Value), f.Limit) })
			}
		}
	}
	if left := fit(b, rowsEnd, rows); left > 0 {
		m.printf("\nand %d more\n", left)
	}
	g.markdownDetails(b, models)
	_, err := w.Write(b.Bytes())
	return err
}

// markdownDetails writes the messages of failed rules, and the warnings.
func (g *Gate) markdownDetails(b *bytes.Buffer, models []string) {
	var lines []func(markdown)
	for i, model := range models {
		if f := &g.Findings[i]; word(f) != "ok" {
			lines = append(lines, func(m markdown) { m.printf("- %s %s: %s\n", model, own(f.Rule), causeText(f)) })
		}
	}
	for _, line := range g.warningLines() {
		lines = append(lines, func(m markdown) { m.printf("- warning: %s\n", line) })
	}
	if len(lines) == 0 {
		return
	}
	m := markdown{b}
	m.printf("\n<details><summary>details</summary>\n\n")
	if left := fit(b, detailsEnd, lines); left > 0 {
		m.printf("- and %d more\n", left)
	}
	m.printf("\n</details>\n")
}
