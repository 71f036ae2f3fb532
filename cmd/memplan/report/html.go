package report

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"

	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/quote"
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
code,pre{font:13px/1.45 ui-monospace,monospace}pre{overflow-x:auto;padding:.6rem;background:#8881}
.plot{position:relative;height:22rem;margin:.5rem 0}.plot canvas{position:absolute;inset:0;width:100%;height:100%;touch-action:pan-y}
#step-tip{position:absolute;top:.5rem;max-width:18rem;padding:.3rem .6rem;font-size:13px;background:Canvas;border:1px solid #8888;pointer-events:none;overflow-wrap:anywhere}
#step-legend span{margin-right:1rem;white-space:nowrap}#step-legend i{display:inline-block;width:.8em;height:.8em;margin-right:.35em}
#step-tree div,#step-tree details details{padding-left:1.1rem}#step-tree i{display:block;height:.25rem;background:#0072b2}#step-tree b{display:inline-block;min-width:6.5em}
#step input{width:100%;max-width:26rem;font:inherit;padding:.2rem .5rem}#step button{font:inherit;margin-right:.3rem}.wide{overflow-x:auto;max-height:26rem}.wide td,.wide th{font-size:13px;white-space:nowrap}.wide td:last-child{overflow-wrap:normal}
#step-live tr{cursor:pointer}#step-live tr:focus,#step-live tr:hover{background:#8882}#step :focus-visible{outline:2px solid #0072b2}
@media print{#step{display:none}#step-static[hidden]{display:block}}`

// stepScript draws the step and answers to the mouse and the keyboard.
//
//go:embed step.js
var stepJS string

// StepScript is what a page runs, to the letter.
var StepScript = "//<![CDATA[\n" + stepJS + "//]]>\n"

// policy lets a page run that and load nothing.
func policy() string {
	sum := sha256.Sum256([]byte(StepScript))
	return "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// stepPage is what the script fills in.
const stepPage = `<section id="step" hidden="hidden"><h2>the step, event by event</h2>
<p id="step-legend"></p>
<div class="plot"><canvas id="step-canvas"></canvas><canvas id="step-over" tabindex="0" role="img" aria-label="live bytes over the events of the step by category; arrow keys move, plus and minus zoom, p is the peak"></canvas><div id="step-tip" hidden="hidden"></div></div>
<p><button id="step-in">zoom in</button><button id="step-out">zoom out</button><button id="step-all">whole step</button><button id="step-peak">peak</button>
wheel: zoom; drag: move; click: what is live there</p>
<p id="step-where" aria-live="polite"></p>
<p><input id="step-search" type="search" placeholder="search tensors, modules, operators" aria-label="search"/> <span id="step-count"></span></p>
<div class="wide"><table><thead><tr><th>bytes</th><th>category</th><th>value</th><th>module</th><th>made by (event)</th><th>freed by (event)</th></tr></thead><tbody id="step-live"></tbody></table></div>
<h2>by module, there</h2><div id="step-tree"></div></section>
`

// A stepLine is a level that the drawing marks.
type stepLine struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
}

// stepHTML writes the step's data and the script, which goes behind the data.
func stepHTML(w io.Writer, a *Analysis) error {
	r := a.Report
	data := struct {
		*planner.StepView
		Lines       []stepLine `json:"lines"`
		Checkpoints []string   `json:"checkpoints"`
	}{a.Step(), []stepLine{{"reserved", r.Peak.ReservedBytes}}, []string{}}
	if r.Config.VRAM > 0 {
		data.Lines = append(data.Lines, stepLine{"budget without the CUDA context", r.Config.VRAM - (r.Peak.ProcessBytes - r.Peak.ReservedBytes)})
	}
	for _, s := range segments(r) {
		data.Checkpoints = append(data.Checkpoints, s.Modules...)
	}
	text, err := json.Marshal(data) // escapes <, > and &
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s<script type=\"application/json\" id=\"step-data\">%s</script>\n<script>%s</script>\n", stepPage, quote.JSON(text), StepScript)
	return err
}

// analysisHTML is one page that loads nothing.
func analysisHTML(w io.Writer, a *Analysis, _ Style) error {
	r := a.Report
	e := html.EscapeString
	fmt.Fprintf(w, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta http-equiv=\"Content-Security-Policy\" content=\"%s\"><meta name=\"viewport\" content=\"width=device-width\"><title>memplan: %s</title><style>%s\n</style></head><body>\n", policy(), e(r.Model.Path), pageStyle)
	fmt.Fprintf(w, "<h1>%s</h1>\n", e(r.Model.Path))
	for _, line := range doubtLines(r) {
		fmt.Fprintf(w, "<p class=\"no\">%s</p>\n", e(line))
	}
	fmt.Fprintf(w, "<p class=\"%s\">%s</p>\n<p>%s</p>\n", verdictClass(r), e(Verdict(r)), e(peakLine(r, plain)))
	for _, line := range append(parallelLines(r), batchLines(r, plain)...) {
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
	if a.Step != nil {
		if err := stepHTML(w, a); err != nil {
			return err
		}
	}
	breakdownHTML(w, r)
	liveHTML(w, r)
	checkpointHTML(w, r)
	fmt.Fprintf(w, "<h2>configuration</h2>\n<p>%s</p>\n<p>%s</p>\n<p>%s</p>\n", e(modelLine(r)), e(r.Config.Line()), e(timeLine(r)))
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
	_, err := fmt.Fprintf(w, "<figure id=\"step-static\">\n%s</figure>\n", svg)
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
