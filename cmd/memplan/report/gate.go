package report

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

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
}

// Failed counts the rules that do not hold.
func (g *Gate) Failed() int {
	n := 0
	for _, f := range g.Findings {
		if f.OK != nil && !*f.OK {
			n++
		}
	}
	return n
}

// Summary is the outcome in one line.
func (g *Gate) Summary() string {
	rules, failed := Plural(len(g.Findings), "rule", "rules"), g.Failed()
	but := ""
	if len(g.doubts()) > 0 {
		but = ", as far as the files tell"
	}
	switch {
	case len(g.Findings) == 0:
		return "no rules apply"
	case failed == 0 && len(g.Findings) == 1:
		return "1 rule holds" + but
	case failed == 0:
		return "all " + rules + " hold" + but
	}
	return fmt.Sprintf("%d of %s failed", failed, rules)
}

// labels names the models of the findings, with their settings where the
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

// A modelDoubt says why the file of a model does not hold the answer.
type modelDoubt struct{ model, text string }

// doubts are those of all models, each once.
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

// word is a finding's outcome for people.
func word(f *planner.Finding) string {
	switch {
	case f.OK == nil:
		return "?"
	case *f.OK:
		return "ok"
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
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\n", word(f), model, f.Rule, f.Message)
	}
	return t.Flush()
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

// mostRows bounds a table in a comment: GitHub takes 65,536 characters.
const mostRows = 200

func gateMarkdown(w io.Writer, g *Gate, _ Style) error {
	m := markdown{w}
	m.tag("check")
	for _, d := range g.doubts() {
		m.printf("**%s:** %s\n\n", own(cannotTell), d.model+": "+d.text)
	}
	m.printf("**memplan: %s**\n\n| | model | rule | value | limit |\n|---|---|---|---:|---:|\n", own(g.Summary()))
	rows, models := 0, g.labels()
	for _, failures := range []bool{true, false} { // failures first
		for i, model := range models {
			f := &g.Findings[i]
			if (word(f) != "ok") != failures {
				continue
			}
			if rows++; rows <= mostRows {
				m.row(own(word(f)), model, own(f.Rule), own(f.Value), f.Limit)
			}
		}
	}
	if rows > mostRows {
		m.printf("\nand %d more\n", rows-mostRows)
	}
	m.printf("\n<details><summary>details</summary>\n\n")
	for i, model := range models {
		if f := &g.Findings[i]; word(f) != "ok" && i < mostRows {
			m.printf("- %s %s: %s\n", model, own(f.Rule), f.Message)
		}
	}
	m.printf("\n</details>\n")
	return nil
}
