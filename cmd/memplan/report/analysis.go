package report

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/quote"
)

// An Analysis is what analyze writes.
type Analysis struct {
	Report *planner.Report
	Chart  func(w io.Writer) error // draws the step as SVG; nil: no chart
	// Step returns the step for a page that shows it event by event; nil: none.
	Step func() *planner.StepView
	// Hints say what makes a step fit that does not, in the form for people.
	Hints []string
}

// Analyses are the formats of analyze.
var Analyses = []Format[*Analysis]{
	{Name: "text", Write: analysisText},
	AsJSON(func(a *Analysis) any { return a.Report }),
	{Name: "markdown", Write: analysisMarkdown},
	{Name: "sarif", Write: analysisSARIF, Exact: true},
	{Name: "html", Write: analysisHTML},
}

// analysisMarkdown writes the report as a comment on a pull request.
func analysisMarkdown(w io.Writer, a *Analysis, _ Style) error {
	r, m := a.Report, markdown{w}
	m.tag("analyze:" + filepath.ToSlash(r.Model.Path))
	for _, d := range r.Doubts() {
		m.printf("**%s:** %s\n\n", own(cannotTell), doubtText(d))
	}
	m.printf("**%s: %s**\n\n%s\n\n", filepath.Base(r.Model.Path), own(Verdict(r)), own(peakLine(r, quote.Code)))
	for _, line := range append(parallelLines(r), batchLines(r, quote.Code)...) {
		m.printf("%s\n\n", own(line))
	}
	if line := headroomLine(r); line != "" {
		m.printf("%s\n\n", own(line))
	}
	m.printf("| at the peak | bytes | share |\n|---|---:|---:|\n")
	for _, c := range r.Breakdown {
		if c.Bytes != 0 {
			m.row(own(c.Category), own(size(c.Bytes)), own(fmt.Sprintf("%.1f%%", share(c.Bytes, r.Peak.AllocatedBytes))))
		}
	}
	for _, n := range numbers(r) {
		m.row(own("**"+n[0]+"**"), own("**"+n[1]+"**"), own(""))
	}
	intervalMarkdown(m, r)
	liveMarkdown(m, r)
	checkpointMarkdown(m, r)
	for _, g := range others(r) {
		m.printf("\nwarning: %s%s\n", g.first(), own(g.others()))
	}
	return nil
}

func intervalMarkdown(m markdown, r *planner.Report) {
	for i, line := range doubtfulLines(r) {
		if i == 0 {
			m.printf("\n%s\n\n", own(line))
			continue
		}
		m.printf("- %s\n", line)
	}
}

func liveMarkdown(m markdown, r *planner.Report) {
	if len(r.Live) == 0 {
		return
	}
	m.printf("\n<details><summary>largest at the peak</summary>\n\n| bytes | category | value | module |\n|---:|---|---|---|\n")
	for _, l := range r.Live {
		m.row(own(size(l.Bytes)), own(l.Category), l.Value, l.Module)
	}
	m.printf("\n</details>\n")
}

func checkpointMarkdown(m markdown, r *planner.Report) {
	segs := segments(r)
	if n := recomputed(r); n > 0 {
		m.printf("\n<details><summary>%s run again: +%.2f%% time; %s</summary>\n\n", own(Plural(n, "operation", "operations")), 100*r.Checkpoint.RecomputeOverhead, own(proof(r.Checkpoint)))
		for _, line := range recomputedLines(r, quote.Code) {
			m.printf("- %s\n", own(line))
		}
		m.printf("\n</details>\n")
	}
	if len(segs) == 0 {
		return
	}
	m.printf("\n<details><summary>checkpoint %s: +%.2f%% time; %s</summary>\n\n", own(Plural(len(segs), "segment", "segments")), 100*r.Checkpoint.RecomputeOverhead, own(proof(r.Checkpoint)))
	for i, depth := range train.Depths(segs) {
		m.printf("%s- %s%s\n", own(strings.Repeat("  ", depth)), joined(segs[i].Modules), own(keeping(segs[i].Save, quote.Code)))
	}
	m.printf("\n```sh\n%s -o plan.json\nmemplan config plan.json --to torch\n```\n\n</details>\n", own(PlanCommand(r)))
}
