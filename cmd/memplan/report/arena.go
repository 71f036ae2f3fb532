package report

import (
	"fmt"
	"slices"

	"github.com/memplan/memplan/validate"
)

// categoryColors are the colours of Okabe and Ito that contrast with both white
// and black.
var categoryColors = map[string]string{
	"parameters": "#0072b2", "gradients": "#e69f00", "optimizer": "#009e73", "activations": "#56b4e9",
	"inputs": "#cc79a7", "buffers": "#888888", "workspace": "#d55e00", "temporaries": "#b8a800",
}

// The drawing's size, in its own units, and its margins.
const (
	arenaWidth, arenaHeight = 1000, 380
	arenaLeft, arenaBottom  = 84, 24
)

// mostDrawn is the largest number of buffers drawn: those that take the most
// room.
const mostDrawn = 2000

// An arenaDrawing shows the places of buffers in the arena while the step's
// nodes run. Coordinates are texts with two decimals.
type arenaDrawing struct {
	Width, Height int
	Buffers       []struct{ X, Y, W, H, Color, Title string }
	Texts         []arenaText
	Phases        []string // paths
	Legend        []struct{ Color, Category string }
	Left          string // note about what is not drawn
}

type arenaText struct {
	X, Y, Text string
	End        bool // whether the line ends at X
}

// drawArena draws a validation's arena; nil if there is none.
func drawArena(r *validate.Report) *arenaDrawing {
	if len(r.Buffers) == 0 || r.Arena.PlannedBytes <= 0 || len(r.Phases) == 0 {
		return nil
	}
	d := &arenaDrawing{Width: arenaWidth, Height: arenaHeight}
	nodes := r.Phases[len(r.Phases)-1].Last + 1
	x := func(node int32) float64 {
		return arenaLeft + float64(node)/float64(nodes)*(arenaWidth-arenaLeft)
	}
	y := func(at int64) float64 {
		return (1 - float64(at)/float64(r.Arena.PlannedBytes)) * (arenaHeight - arenaBottom)
	}
	text := func(v float64) string { return fmt.Sprintf("%.2f", v) }
	list := drawn(r.Buffers)
	seen := map[string]bool{}
	for i := range list {
		b := &list[i]
		seen[b.Category] = true
		last := min(b.Last, nodes-1)
		d.Buffers = append(d.Buffers, struct{ X, Y, W, H, Color, Title string }{text(x(b.First)), text(y(b.At + b.Bytes)), text(x(last+1) - x(b.First)), text(y(b.At) - y(b.At+b.Bytes)), categoryColors[b.Category],
			fmt.Sprintf("%s, %s, %s at %d, nodes %d to %d", b.Name, b.Category, size(b.Bytes), b.At, b.First, last)})
	}
	d.Texts = []arenaText{{text(arenaLeft - 6), "12", size(r.Arena.PlannedBytes), true}, {text(arenaLeft - 6), text(arenaHeight - arenaBottom), "0", true}}
	for _, p := range r.Phases {
		d.Phases = append(d.Phases, fmt.Sprintf("M%.2f 0V%d", x(p.First), arenaHeight-arenaBottom+6))
		if room := x(p.Last+1) - x(p.First); room > 8*float64(len(p.Name)) {
			d.Texts = append(d.Texts, arenaText{text(x(p.First) + 3), text(arenaHeight - 6), p.Name, false})
		}
	}
	for _, c := range validate.Categories() {
		if seen[c] {
			d.Legend = append(d.Legend, struct{ Color, Category string }{categoryColors[c], c})
		}
	}
	if n := len(r.Buffers) - len(list); n > 0 {
		d.Left = fmt.Sprintf("(%s not drawn)", Plural(n, "small buffer", "small buffers"))
	}
	return d
}

// drawn returns the buffers that take the most room, in their original order.
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
