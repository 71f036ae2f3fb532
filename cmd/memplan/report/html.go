package report

import (
	"bytes"
	"fmt"
	"html"
	"io"

	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/planner"
)

// pageStyle is all the style that a page has: it loads nothing.
const pageStyle = `
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.25rem}h2{font-size:1rem;margin:1.6rem 0 .4rem}
.yes,.no,.open{padding:.5rem .8rem;border-left:.3rem solid #888;font-weight:600}.yes{border-color:#2a8a3e}.no{border-color:#c62f2f}
table{border-collapse:collapse}td,th{padding:.2rem .8rem .2rem 0;text-align:left;border-bottom:1px solid #8884}
td.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}h1,td:last-child{overflow-wrap:anywhere}
figure{margin:1rem 0;background:#fff}.arena{background:none}.arena rect:hover{stroke:currentColor}svg{width:100%;height:auto}
code,pre{font:13px/1.45 ui-monospace,monospace}pre{overflow-x:auto;padding:.6rem;background:#8881}`

// analysisHTML is one page that loads nothing.
func analysisHTML(w io.Writer, a *Analysis, _ Style) error {
	r := a.Report
	e := html.EscapeString
	fmt.Fprintf(w, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>memplan: %s</title><style>%s\n</style></head><body>\n", e(r.Model.Path), pageStyle)
	fmt.Fprintf(w, "<h1>%s</h1>\n", e(r.Model.Path))
	for _, line := range doubtLines(r) {
		fmt.Fprintf(w, "<p class=\"no\">%s</p>\n", e(line))
	}
	fmt.Fprintf(w, "<p class=\"%s\">%s</p>\n<p>%s</p>\n", verdictClass(r), e(Verdict(r)), e(peakLine(r, plain)))
	for _, line := range batchLines(r, plain) {
		fmt.Fprintf(w, "<p>%s</p>\n", e(line))
	}
	if line := headroomLine(r); line != "" {
		fmt.Fprintf(w, "<p>%s</p>\n", e(line))
	}
	if a.Chart != nil {
		if err := figure(w, a.Chart); err != nil {
			return err
		}
	}
	breakdownHTML(w, r)
	liveHTML(w, r)
	checkpointHTML(w, r)
	fmt.Fprintf(w, "<h2>configuration</h2>\n<p>%s</p>\n<p>%s</p>\n<p>%s</p>\n", e(modelLine(r)), e(configLine(r)), e(timeLine(r)))
	for _, g := range others(r) {
		fmt.Fprintf(w, "<p>warning: %s</p>\n", e(g.String()))
	}
	fmt.Fprintln(w, "</body></html>")
	return nil
}

func verdictClass(r *planner.Report) string {
	switch {
	case r.Fits == nil:
		return "open"
	case *r.Fits:
		return "yes"
	}
	return "no"
}

// figure puts an SVG document into the page.
func figure(w io.Writer, chart func(io.Writer) error) error {
	var b bytes.Buffer
	if err := chart(&b); err != nil {
		return err
	}
	svg := b.Bytes()
	if i := bytes.Index(svg, []byte("<svg")); i >= 0 {
		svg = svg[i:] // without the XML declaration
	}
	_, err := fmt.Fprintf(w, "<figure>\n%s</figure>\n", svg)
	return err
}

func breakdownHTML(w io.Writer, r *planner.Report) {
	fmt.Fprintln(w, "<h2>at the peak</h2>\n<table>")
	for _, c := range r.Breakdown {
		if c.Bytes != 0 {
			fmt.Fprintf(w, "<tr><td>%s</td><td class=n>%s</td><td class=n>%.1f%%</td></tr>\n", c.Category, size(c.Bytes), share(c.Bytes, r.Peak.AllocatedBytes))
		}
	}
	fmt.Fprintln(w, "</table>\n<h2>the four numbers</h2>\n<table>")
	for _, n := range numbers(r) {
		fmt.Fprintf(w, "<tr><td>%s</td><td class=n>%s</td></tr>\n", n[0], n[1])
	}
	fmt.Fprintln(w, "</table>")
	if n := r.Peak.IdealArenaBytes; n > 0 {
		fmt.Fprintf(w, "<p>%s</p>\n", idealArena(n, r))
	}
	for _, line := range doubtfulLines(r) {
		fmt.Fprintf(w, "<p>%s</p>\n", html.EscapeString(line))
	}
}

func liveHTML(w io.Writer, r *planner.Report) {
	if len(r.Live) == 0 {
		return
	}
	e := html.EscapeString
	fmt.Fprintln(w, "<h2>largest at the peak</h2>\n<table><tr><th>bytes</th><th>category</th><th>value</th><th>module</th></tr>")
	for _, l := range r.Live {
		fmt.Fprintf(w, "<tr><td class=n>%s</td><td>%s</td><td><code>%s</code></td><td><code>%s</code></td></tr>\n", size(l.Bytes), e(l.Category), e(l.Value), e(l.Module))
	}
	fmt.Fprintln(w, "</table>")
}

func checkpointHTML(w io.Writer, r *planner.Report) {
	segs := segments(r)
	e := html.EscapeString
	if recomputed(r) > 0 {
		fmt.Fprintf(w, "<h2>run these operations again</h2>\n<p>+%.2f%% time; %s</p>\n<ul>\n", 100*r.Checkpoint.RecomputeOverhead, e(proof(r.Checkpoint)))
		for _, line := range recomputedLines(r, plain) {
			fmt.Fprintf(w, "<li>%s</li>\n", e(line))
		}
		fmt.Fprintln(w, "</ul>")
	}
	if len(segs) == 0 {
		return
	}
	fmt.Fprintf(w, "<h2>checkpoint these modules</h2>\n<p>+%.2f%% time; %s</p>\n<ul>\n", 100*r.Checkpoint.RecomputeOverhead, e(proof(r.Checkpoint)))
	for i, depth := range train.Depths(segs) {
		style := ""
		if depth > 0 {
			style = fmt.Sprintf(` style="margin-left:%dem"`, 2*depth)
		}
		fmt.Fprintf(w, "<li%s><code>%s</code>%s</li>\n", style, e(joined(segs[i].Modules)), e(keeping(segs[i].Save, plain)))
	}
	fmt.Fprintf(w, "</ul>\n<pre>%s -o plan.json\nmemplan config plan.json --to torch</pre>\n", e(PlanCommand(r)))
}
