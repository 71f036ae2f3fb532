package report

import (
	"fmt"
	"html"
	"io"
	"slices"

	"github.com/memplan/memplan/validate"
)

// categoryColors are those of the colours of Okabe and Ito that stand out from
// white and from black.
var categoryColors = map[string]string{
	"parameters": "#0072b2", "gradients": "#e69f00", "optimizer": "#009e73", "activations": "#56b4e9",
	"inputs": "#cc79a7", "buffers": "#888888", "workspace": "#d55e00", "temporaries": "#b8a800",
}

// The drawing's size, in its own units, and what is kept for the scales.
const (
	arenaWidth, arenaHeight = 1000, 380
	arenaLeft, arenaBottom  = 84, 24
)

// mostDrawn is how many buffers are drawn, those that take the most room.
const mostDrawn = 2000

// arenaHTML draws where buffers lie in the arena while the step's nodes run.
func arenaHTML(w io.Writer, r *validate.Report) {
	if len(r.Buffers) == 0 || r.Arena.PlannedBytes <= 0 || len(r.Phases) == 0 {
		return
	}
	fmt.Fprintf(w, "<h2>arena</h2>\n<figure class=arena><svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" role=\"img\" font-size=\"13\" fill=\"currentColor\"><title>offsets of buffers over the nodes of a step</title>\n", arenaWidth, arenaHeight)
	nodes := r.Phases[len(r.Phases)-1].Last + 1
	x := func(node int32) float64 {
		return arenaLeft + float64(node)/float64(nodes)*(arenaWidth-arenaLeft)
	}
	y := func(at int64) float64 {
		return (1 - float64(at)/float64(r.Arena.PlannedBytes)) * (arenaHeight - arenaBottom)
	}
	list := drawn(r.Buffers)
	seen := map[string]bool{}
	for i := range list {
		b := &list[i]
		seen[b.Category] = true
		last := min(b.Last, nodes-1)
		fmt.Fprintf(w, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\"><title>%s, %s, %s at %d, nodes %d to %d</title></rect>\n",
			x(b.First), y(b.At+b.Bytes), x(last+1)-x(b.First), y(b.At)-y(b.At+b.Bytes), categoryColors[b.Category], html.EscapeString(b.Name), b.Category, size(b.Bytes), b.At, b.First, last)
	}
	fmt.Fprintf(w, "<text x=\"%d\" y=\"12\" text-anchor=\"end\">%s</text><text x=\"%d\" y=\"%d\" text-anchor=\"end\">0</text>\n", arenaLeft-6, size(r.Arena.PlannedBytes), arenaLeft-6, arenaHeight-arenaBottom)
	for _, p := range r.Phases {
		fmt.Fprintf(w, "<path d=\"M%.2f 0V%d\" stroke=\"currentColor\" stroke-opacity=\".5\"/>", x(p.First), arenaHeight-arenaBottom+6)
		if room := x(p.Last+1) - x(p.First); room > 8*float64(len(p.Name)) {
			fmt.Fprintf(w, "<text x=\"%.2f\" y=\"%d\">%s</text>", x(p.First)+3, arenaHeight-6, html.EscapeString(p.Name))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprint(w, "</svg>\n<figcaption>")
	for _, c := range validate.Categories() {
		if seen[c] {
			fmt.Fprintf(w, "<span style=\"color:%s\">&#9632;</span> %s ", categoryColors[c], c)
		}
	}
	if n := len(r.Buffers) - len(list); n > 0 {
		fmt.Fprintf(w, "(%s not drawn)", Plural(n, "small buffer", "small buffers"))
	}
	fmt.Fprintln(w, "</figcaption></figure>")
}

// drawn are the buffers that take the most room, in the order they were.
func drawn(all []validate.Buffer) []validate.Buffer {
	if len(all) <= mostDrawn {
		return all
	}
	area := func(b *validate.Buffer) float64 { return float64(b.Bytes) * float64(b.Last-b.First+1) }
	areas := make([]float64, len(all))
	for i := range all {
		areas[i] = area(&all[i])
	}
	slices.Sort(areas)
	least := areas[len(areas)-mostDrawn]
	var out []validate.Buffer
	for i := range all {
		if area(&all[i]) >= least && len(out) < mostDrawn {
			out = append(out, all[i])
		}
	}
	return out
}
