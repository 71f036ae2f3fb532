package report

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"

	"github.com/memplan/memplan/cmd/memplan/frontier"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/quote"
)

// pageStyle is all of a page's style: it loads nothing.
const pageStyle = `
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.25rem}h2{font-size:1rem;margin:1.6rem 0 .4rem}
.yes,.no,.open{padding:.5rem .8rem;border-left:.3rem solid #888;font-weight:600}.yes{border-color:#2a8a3e}.no{border-color:#c62f2f}
table{border-collapse:collapse}td,th{padding:.2rem .8rem .2rem 0;text-align:left;border-bottom:1px solid #8884}
td.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}h1,td:last-child{overflow-wrap:anywhere}
figure{margin:1rem 0;background:#fff}.arena{background:none}.arena rect:hover{stroke:currentColor}svg{width:100%;height:auto}
code,pre{font:13px/1.45 ui-monospace,monospace}pre{overflow-x:auto;padding:.6rem;background:#8881}
.plot{position:relative;height:24rem;margin:.5rem 0}.plot canvas{position:absolute;inset:0;width:100%;height:100%;touch-action:pan-y}
.tip{position:absolute;z-index:1;top:1rem;max-width:22rem;padding:.3rem .6rem;font-size:13px;background:Canvas;border:1px solid #8888;pointer-events:none;overflow-wrap:anywhere;white-space:pre-line}
.legend span{margin-right:1rem;white-space:nowrap}.legend i{display:inline-block;width:.8em;height:.8em;margin-right:.35em}
.tree div,.tree details details{padding-left:1.1rem}.tree i{display:block;height:.25rem;background:#0072b2}.tree b{display:inline-block;min-width:6.5em}.tree summary,.tree span{overflow-wrap:anywhere}
.step input{width:100%;max-width:26rem;font:inherit;padding:.2rem .5rem;box-sizing:border-box}.step button{font:inherit;margin:0 .3rem .3rem 0}.step p{overflow-wrap:anywhere}
.wide{overflow-x:auto}.rows{max-height:26rem;overflow-y:auto}.wide td,.wide th{font-size:13px;white-space:nowrap}.wide td:last-child{overflow-wrap:normal}.rows th{position:sticky;top:0;background:Canvas}
.rows tbody tr{cursor:pointer}.rows tr:focus,.rows tbody tr:hover{background:#8882}.step :focus-visible{outline:2px solid #0072b2}.rows td.n{padding-left:.5rem}
.change i{display:block;height:.25rem;background:#0072b2}.change td{min-width:5rem}
.ground{display:block;width:100%}.block{min-height:3em;font-size:13px}th.n{text-align:right}
@media(max-width:40rem){body{margin:1rem auto;padding:0 .7rem}.plot{height:17rem}.tip{position:absolute;top:100%;left:0!important;right:0!important;max-width:none}}
@page{margin:14mm}
@media print{:root{color-scheme:light}*{-webkit-print-color-adjust:exact;print-color-adjust:exact}body{max-width:none;margin:0;padding:0;font-size:10pt}
.step>*,#step-static~.step{display:none}.step>h2:first-child,.step>.legend,.step>.plot{display:block}.step>.plot{height:auto}.step,.plot{break-inside:avoid}.plot canvas:first-child{position:static;height:auto}.plot canvas+canvas,.tip{display:none}
#step-static[hidden]{display:block}figure,pre,.yes,.no,.open,tr,li{break-inside:avoid}h2{break-after:avoid}body>table{break-inside:avoid}
.rows,.wide{overflow:visible;max-height:none}.rows th{position:static}.wide td,.wide td:last-child,.wide th{white-space:normal;font-size:9pt;overflow-wrap:anywhere}td.n,th.n{white-space:nowrap!important}pre{white-space:pre-wrap;overflow-wrap:anywhere}}`

// stepScript draws the step and answers to the mouse and the keyboard.
//
//go:embed step.js
var stepJS string

// StepScript is the exact text of a page's script.
var StepScript = "//<![CDATA[\n" + stepJS + "//]]>\n"

// policy allows a page to run that script and to load nothing.
func policy() string {
	sum := sha256.Sum256([]byte(StepScript))
	return "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// A stepLine is a level that the drawing marks.
type stepLine struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
}

// pageFiles are the HTML pages, which load nothing. html/template escapes what comes from
// files.
//
//go:embed analysis.html comparison.html diff.html step.html validation.html
var pageFiles embed.FS

var pages = template.Must(template.New("").Funcs(template.FuncMap{"size": size, "types": func(o planner.OpDelta) string { return opTypes(&o) }, "module": moduleName}).ParseFS(pageFiles, "*.html"))

// An analysisPage is what analysis.html shows.
type analysisPage struct {
	Policy, Path, Class, Verdict, Peak, Price, Plan string
	Style                                           template.CSS
	Script                                          template.JS
	Step                                            *stepPage // nil for none
	Chart, Batches                                  template.HTML
	Doubts, Lines, Notes, Recomputed, Configuration []string
	Breakdown                                       []breakdownRow
	Numbers                                         [][2]string
	Live                                            []planner.LiveValue
	Segments                                        []segmentRow
}

// A stepPage is what step.html shows: Data is what the script draws.
type stepPage struct {
	ID, Title string // of the elements; of the section
	Data      template.JS
}

type breakdownRow struct{ Category, Size, Share string }

// A segmentRow is a checkpointed region; Indent is in em, 0 for an outermost one.
type segmentRow struct {
	Modules, Keeping string
	Indent           int
}

// stepData returns the data that the script draws: a step, the levels that it marks,
// and the modules that are checkpointed.
func stepData(v *planner.StepView, lines []stepLine, checkpoints []string) (template.JS, error) {
	data := struct {
		*planner.StepView
		Lines       []stepLine `json:"lines"`
		Checkpoints []string   `json:"checkpoints"`
	}{v, append([]stepLine{}, lines...), append([]string{}, checkpoints...)}
	text, err := json.Marshal(data)           // escapes <, > and &
	return template.JS(quote.JSON(text)), err //nolint:gosec // JSON, in a script that is data
}

// analysisStep returns the data of an analysis.
func analysisStep(a *Analysis) (template.JS, error) {
	r := a.Report
	lines := []stepLine{{"reserved", r.Peak.ReservedBytes}}
	if r.Config.VRAM > 0 {
		lines = append(lines, stepLine{"budget without the CUDA context", r.Config.VRAM - (r.Peak.ProcessBytes - r.Peak.ReservedBytes)})
	}
	var checkpoints []string
	for _, s := range segments(r) {
		checkpoints = append(checkpoints, s.Modules...)
	}
	return stepData(a.Step(), lines, checkpoints)
}

// A diffPage is what diff.html shows.
type diffPage struct {
	Policy     string
	Diff       *planner.Diff
	Style      template.CSS
	Script     template.JS
	Head       string
	Base, Now  string // names of the two sides
	Parameters string
	Categories []diffRow
	Modules    []diffRow
	More       int // modules that are not listed
	Ops        []diffOps
	Steps      []*stepPage // of base and head, none without them
}

// A diffRow is a change of bytes; Width is its length in percent of the largest.
type diffRow struct {
	Name, Base, Head, Change string
	Width                    int64
}

type diffOps struct {
	Name string
	Ops  []planner.OpDelta
	More int
}

// mostDiffRows bounds the lists of a page.
const mostDiffRows = 60

// diffHTML writes a page that loads nothing, with both steps on one scale.
func diffHTML(w io.Writer, d *planner.Diff, _ Style) error {
	p := diffPage{Policy: policy(), Diff: d, Style: pageStyle, Script: template.JS(StepScript), //nolint:gosec // ours
		Head: diffHead(d, "→"), Base: sideName(&d.Base), Now: sideName(&d.Head), Parameters: countChange(d.Base.Parameters, d.Head.Parameters)}
	var most int64
	for _, c := range d.Categories {
		most = max(most, c.Delta, -c.Delta)
	}
	for _, m := range d.Modules {
		most = max(most, m.Delta, -m.Delta)
	}
	width := func(n int64) int64 { return 100 * max(n, -n) / max(most, 1) }
	for _, c := range d.Categories {
		if c.Base != 0 || c.Head != 0 {
			p.Categories = append(p.Categories, diffRow{c.Category, size(c.Base), size(c.Head), change(c.Delta, c.Base), width(c.Delta)})
		}
	}
	for _, m := range d.Modules[:min(len(d.Modules), mostDiffRows)] {
		p.Modules = append(p.Modules, diffRow{Name: moduleName(m.Module), Change: signed(m.Delta), Width: width(m.Delta)})
	}
	p.More = len(d.Modules) - len(p.Modules)
	for _, l := range opLists(d) {
		n := min(len(l.ops), mostDiffRows)
		p.Ops = append(p.Ops, diffOps{fmt.Sprintf("operators %s: %d", l.name, len(l.ops)), l.ops[:n], len(l.ops) - n})
	}
	if err := p.steps(); err != nil {
		return err
	}
	return pages.ExecuteTemplate(w, "diff.html", &p)
}

// steps fills in the two steps.
func (p *diffPage) steps() error {
	if p.Diff.Steps == nil {
		return nil
	}
	views := p.Diff.Steps()
	for i, s := range []*stepPage{{ID: "base", Title: "base: " + p.Base}, {ID: "head", Title: "head: " + p.Now}} {
		var err error
		if s.Data, err = stepData(views[i], nil, nil); err != nil {
			return err
		}
		p.Steps = append(p.Steps, s)
	}
	return nil
}

// analysisHTML writes a page that loads nothing.
func analysisHTML(w io.Writer, a *Analysis, _ Style) (err error) {
	r := a.Report
	p := analysisPage{Policy: policy(), Path: r.Model.Path, Class: verdictClass(r), Verdict: Verdict(r), Peak: peakLine(r, plain), Plan: PlanCommand(r), Style: pageStyle, Script: template.JS(StepScript), //nolint:gosec // ours
		Doubts: doubtLines(r), Lines: append(parallelLines(r), batchLines(r, plain)...), Live: r.Live, Configuration: []string{modelLine(r), r.Config.Line(), timeLine(r)}}
	if line := headroomLine(r); line != "" {
		p.Lines = append(p.Lines, line)
	}
	if a.Chart != nil {
		if p.Chart, err = figure(a.Chart); err != nil {
			return err
		}
	}
	if r.Batch != nil && r.Batch.Best != nil {
		if p.Batches, err = figure(func(w io.Writer) error { return frontier.Batches(w, r) }); err != nil {
			return err
		}
	}
	if a.Step != nil {
		data, err := analysisStep(a)
		if err != nil {
			return err
		}
		p.Step = &stepPage{"step", "the step, event by event", data}
	}
	for _, c := range r.Breakdown {
		if c.Bytes != 0 {
			p.Breakdown = append(p.Breakdown, breakdownRow{c.Category, size(c.Bytes), fmt.Sprintf("%.1f%%", share(c.Bytes, r.Peak.AllocatedBytes))})
		}
	}
	p.Numbers = numbers(r)
	if n := r.Peak.IdealArenaBytes; n > 0 {
		p.Notes = append(p.Notes, idealArena(n, r))
	}
	if r.Inference != nil {
		p.Notes = append(p.Notes, inferenceArena(r.Inference))
	}
	p.Notes = append(p.Notes, doubtfulLines(r)...)
	p.checkpoints(r)
	for _, g := range others(r) {
		p.Configuration = append(p.Configuration, "warning: "+g.String())
	}
	return pages.ExecuteTemplate(w, "analysis.html", &p)
}

// checkpoints fills in what is recomputed.
func (p *analysisPage) checkpoints(r *planner.Report) {
	segs := segments(r)
	if len(segs) == 0 && recomputed(r) == 0 {
		return
	}
	p.Price = fmt.Sprintf("+%.2f%% time; %s", 100*r.Checkpoint.RecomputeOverhead, proof(r.Checkpoint))
	if recomputed(r) > 0 {
		p.Recomputed = recomputedLines(r, plain)
	}
	for i, depth := range train.Depths(segs) {
		p.Segments = append(p.Segments, segmentRow{joined(segs[i].Modules), keeping(segs[i].Save, plain) + hosting(segs[i]), 2 * depth})
	}
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

// figure returns an SVG document as part of a page.
func figure(chart func(io.Writer) error) (template.HTML, error) {
	var b bytes.Buffer
	if err := chart(&b); err != nil {
		return "", err
	}
	svg := b.Bytes()
	if i := bytes.Index(svg, []byte("<svg")); i >= 0 {
		svg = svg[i:] // without the XML declaration
	}
	return template.HTML(svg), nil //nolint:gosec // the drawing escapes its texts
}
