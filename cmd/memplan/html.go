package main

import (
	"fmt"
	"html"
	"io"
	"strings"

	"github.com/memplan/memplan/planner"
)

// markdownReport is the report as a comment on a pull request.
func markdownReport(w io.Writer, r *planner.Report) {
	fmt.Fprintf(w, "<!-- memplan:analyze -->\n**memplan: %s**\n\n", verdict(r))
	fmt.Fprintf(w, "| at the peak | bytes | |\n|---|---|---|\n")
	for _, c := range r.Breakdown {
		if c.Bytes != 0 {
			fmt.Fprintf(w, "| %s | %s | %.1f%% |\n", c.Category, size(c.Bytes), 100*float64(c.Bytes)/float64(max(r.Peak.AllocatedBytes, 1)))
		}
	}
	fmt.Fprintf(w, "| **allocated** | **%s** | |\n\n<details><summary>largest tensors at the peak</summary>\n\n| bytes | category | value | module |\n|---|---|---|---|\n", size(r.Peak.AllocatedBytes))
	for _, l := range r.Live {
		fmt.Fprintf(w, "| %s | %s | %s | %s |\n", size(l.Bytes), l.Category, l.Value, l.Module)
	}
	fmt.Fprintln(w, "\n</details>")
	if c := r.Checkpoint; c != nil && len(c.Segments) > 0 {
		fmt.Fprintf(w, "\nCheckpointed, for %.2f%% more time:\n\n", 100*c.RecomputeOverhead)
		for _, s := range c.Segments {
			fmt.Fprintf(w, "- `%s`\n", strings.Join(s.Modules, "` + `"))
		}
	}
}

// htmlReport is one self-contained page.
func htmlReport(w io.Writer, r *planner.Report) {
	e := html.EscapeString
	fmt.Fprintf(w, `<!doctype html><html lang="en"><head><meta charset="utf-8"><title>memplan: %s</title>
<style>body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:1rem 0}td,th{padding:.2rem .8rem;text-align:left;border-bottom:1px solid #ddd}
td.n{text-align:right;font-variant-numeric:tabular-nums}h1{font-size:1.3rem}svg{width:100%%;height:auto}</style></head><body>
<h1>%s</h1><p>%s, %s, %s: %s</p>
`, e(r.Model.Path), e(r.Model.Path), e(r.Config.Mode), e(r.Config.Precision), e(r.Config.Optimizer), e(verdict(r)))
	var bars []point
	for i, p := range r.Curve {
		bars = append(bars, point{i, p.Bytes, p.Phase})
	}
	areaSVG(w, bars)
	fmt.Fprintln(w, "<table><tr><th>at the peak</th><th>bytes</th><th>share</th></tr>")
	for _, c := range r.Breakdown {
		fmt.Fprintf(w, "<tr><td>%s</td><td class=n>%s</td><td class=n>%.1f%%</td></tr>\n", e(c.Category), size(c.Bytes), 100*float64(c.Bytes)/float64(max(r.Peak.AllocatedBytes, 1)))
	}
	fmt.Fprintln(w, "</table><table><tr><th>largest at the peak</th><th>category</th><th>value</th><th>module</th></tr>")
	for _, l := range r.Live {
		fmt.Fprintf(w, "<tr><td class=n>%s</td><td>%s</td><td>%s</td><td>%s</td></tr>\n", size(l.Bytes), e(l.Category), e(l.Value), e(l.Module))
	}
	fmt.Fprintln(w, "</table>")
	if c := r.Checkpoint; c != nil && len(c.Segments) > 0 {
		fmt.Fprintf(w, "<p>Checkpoint these modules, for %.2f%% more time:</p><ul>\n", 100*c.RecomputeOverhead)
		for _, s := range c.Segments {
			fmt.Fprintf(w, "<li><code>%s</code></li>\n", e(strings.Join(s.Modules, " + ")))
		}
		fmt.Fprintln(w, "</ul>")
	}
	for _, x := range r.Warnings {
		fmt.Fprintf(w, "<p>warning: %s %s [%s]</p>\n", e(x.Node), e(x.Message), e(x.Code))
	}
	fmt.Fprintln(w, "</body></html>")
}

// A point is live bytes after an event.
type point struct {
	x     int
	bytes int64
	phase string
}

var phaseColors = map[string]string{"zero_grad": "#bbb", "forward": "#4c78a8", "loss": "#72b7b2", "backward": "#e45756", "optimizer": "#f58518"}

// areaSVG draws bytes over events, one colour a phase.
func areaSVG(w io.Writer, pts []point) {
	const width, height = 1000, 260
	var most int64 = 1
	for _, p := range pts {
		most = max(most, p.bytes)
	}
	fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="memory over the step">`+"\n", width, height+24)
	for i := 0; i < len(pts); {
		j := i
		for j < len(pts) && pts[j].phase == pts[i].phase {
			j++
		}
		x := func(k int) float64 { return float64(k) * width / float64(max(len(pts), 1)) }
		var sb strings.Builder
		fmt.Fprintf(&sb, "M%.1f %d", x(i), height)
		for k := i; k < j; k++ {
			fmt.Fprintf(&sb, "L%.1f %.1fH%.1f", x(k), height-float64(pts[k].bytes)/float64(most)*(height-16), x(k+1))
		}
		fmt.Fprintf(&sb, "V%dZ", height)
		fmt.Fprintf(w, `<path d="%s" fill="%s"/>`+"\n", sb.String(), phaseColors[pts[i].phase])
		if x(j)-x(i) > 50 {
			fmt.Fprintf(w, `<text x="%.0f" y="%d" font-size="13" font-family="sans-serif">%s</text>`+"\n", x(i)+2, height+16, pts[i].phase)
		}
		i = j
	}
	fmt.Fprintf(w, `<text x="4" y="13" font-size="13" font-family="sans-serif">%s</text></svg>`+"\n", size(most))
}

// timelineSVG draws requested bytes above the start of the step.
func timelineSVG(w io.Writer, evs []planner.TimelineEvent) error {
	var pts []point
	var cur, low int64
	for i, ev := range evs {
		if ev.Kind == "free" {
			cur -= ev.Bytes
		} else {
			cur += ev.Bytes
		}
		low = min(low, cur)
		pts = append(pts, point{i, cur, ev.Phase})
	}
	for i := range pts {
		pts[i].bytes -= low
	}
	areaSVG(w, pts)
	return nil
}
