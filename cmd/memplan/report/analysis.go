package report

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/planner"
)

// An Analysis is what analyze writes.
type Analysis struct {
	Report *planner.Report
	Chart  func(w io.Writer) error // draws the step as SVG; nil: no chart
}

// Analyses are the formats of analyze.
var Analyses = []Format[*Analysis]{
	{"text", analysisText},
	{"json", func(w io.Writer, a *Analysis, _ Style) error { return JSON(w, a.Report) }},
	{"markdown", analysisMarkdown},
	{"sarif", analysisSARIF},
	{"html", analysisHTML},
}

// cell escapes a text for a cell of a Markdown table.
func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(s)
}

// code marks a name in Markdown.
func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + strings.ReplaceAll(cell(s), "`", "'") + "`"
}

// tag is the hidden first line by which a comment is found and updated.
func tag(w io.Writer, kind string) {
	plain := func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("._/:", r) {
			return r
		}
		return '_'
	}
	fmt.Fprintf(w, "<!-- memplan:%s -->\n", strings.Map(plain, kind))
}

// analysisMarkdown is the report as a comment on a pull request.
func analysisMarkdown(w io.Writer, a *Analysis, _ Style) error {
	r := a.Report
	tag(w, "analyze:"+filepath.ToSlash(r.Model.Path))
	for _, line := range doubtLines(r) {
		fmt.Fprintf(w, "**%s**\n\n", cell(line))
	}
	fmt.Fprintf(w, "**%s: %s**\n\n%s\n\n", cell(filepath.Base(r.Model.Path)), Verdict(r), cell(peakLine(r)))
	for _, line := range batchLines(r) {
		fmt.Fprintf(w, "%s\n\n", cell(line))
	}
	fmt.Fprintf(w, "| at the peak | bytes | share |\n|---|---:|---:|\n")
	for _, c := range r.Breakdown {
		if c.Bytes != 0 {
			fmt.Fprintf(w, "| %s | %s | %.1f%% |\n", c.Category, size(c.Bytes), share(c.Bytes, r.Peak.AllocatedBytes))
		}
	}
	for _, n := range numbers(r) {
		fmt.Fprintf(w, "| **%s** | **%s** | |\n", n[0], n[1])
	}
	liveMarkdown(w, r)
	checkpointMarkdown(w, r)
	for _, g := range others(r) {
		fmt.Fprintf(w, "\nwarning: %s\n", cell(g.String()))
	}
	return nil
}

func liveMarkdown(w io.Writer, r *planner.Report) {
	if len(r.Live) == 0 {
		return
	}
	fmt.Fprintf(w, "\n<details><summary>largest at the peak</summary>\n\n| bytes | category | value | module |\n|---:|---|---|---|\n")
	for _, l := range r.Live {
		fmt.Fprintf(w, "| %s | %s | %s | %s |\n", size(l.Bytes), l.Category, code(l.Value), code(l.Module))
	}
	fmt.Fprintf(w, "\n</details>\n")
}

func checkpointMarkdown(w io.Writer, r *planner.Report) {
	segs := segments(r)
	if n := recomputed(r); n > 0 {
		fmt.Fprintf(w, "\n<details><summary>%s run again: +%.2f%% time; %s</summary>\n\n", Plural(n, "operation", "operations"), 100*r.Checkpoint.RecomputeOverhead, proof(r.Checkpoint))
		for _, line := range recomputedLines(r) {
			fmt.Fprintf(w, "- %s\n", line)
		}
		fmt.Fprintf(w, "\n</details>\n")
	}
	if len(segs) == 0 {
		return
	}
	fmt.Fprintf(w, "\n<details><summary>checkpoint %s: +%.2f%% time; %s</summary>\n\n", Plural(len(segs), "segment", "segments"), 100*r.Checkpoint.RecomputeOverhead, proof(r.Checkpoint))
	for i, depth := range train.Depths(segs) {
		fmt.Fprintf(w, "%s- %s%s\n", strings.Repeat("  ", depth), code(joined(segs[i].Modules)), keeping(segs[i].Save))
	}
	fmt.Fprintf(w, "\n```sh\n%s -o plan.json\nmemplan config plan.json --to torch\n```\n\n</details>\n", PlanCommand(r))
}
