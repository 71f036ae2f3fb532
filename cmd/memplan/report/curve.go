package report

import (
	"strings"

	"github.com/memplan/memplan/planner"
)

const (
	curveRows  = 8
	labelWidth = 11 // width of the scale at the left
)

// phaseCodes colour a curve.
var phaseCodes = map[string]string{"forward": blue, "loss": magenta, "backward": cyan, "optimizer": yellow}

// curveText draws allocated bytes over the peak's step in block characters,
// with one row for the names of the phases. A column shows the maximum of its
// events.
func curveText(p *page, r *planner.Report) {
	top := r.Peak.AllocatedBytes
	if len(r.Curve) < 2 || top <= 0 {
		return
	}
	p.head("allocated over the step, by event")
	levels, phases := columns(r.Curve, p.width-labelWidth-2)
	for row := curveRows - 1; row >= 0; row-- {
		label := ""
		switch row {
		case curveRows - 1:
			label = size(top)
		case curveRows/2 - 1:
			label = size(top / 2)
		case 0:
			label = "0 B"
		}
		p.line("%s ┤%s", left(label, labelWidth), coloured(p, curveRow(levels, top, row), phases))
	}
	p.line("%s  %s", left("", labelWidth), phaseAxis(phases))
}

// coloured colours a row by phase.
func coloured(p *page, row string, phases []string) string {
	if !p.color {
		return row
	}
	var sb strings.Builder
	cells := []rune(row)
	for i := 0; i < len(cells); {
		j := i + 1
		for j < len(cells) && phases[j] == phases[i] {
			j++
		}
		code := phaseCodes[phases[i]]
		sb.WriteString(paint(code != "", code, string(cells[i:j])))
		i = j
	}
	return sb.String()
}

// columns stretches or reduces a curve to n columns, with the maximum of each.
// A column has the phase of its first event.
func columns(pts []planner.CurvePoint, n int) (levels []int64, phases []string) {
	levels, phases = make([]int64, n), make([]string, n)
	for c := range n {
		lo := c * len(pts) / n
		hi := max((c+1)*len(pts)/n, lo+1)
		phases[c] = pts[lo].Phase
		for _, p := range pts[lo:hi] {
			levels[c] = max(levels[c], p.Bytes)
		}
	}
	return levels, phases
}

// curveRow draws one of the rows, 0 the lowest.
func curveRow(levels []int64, top int64, row int) string {
	blocks := []rune(" ▁▂▃▄▅▆▇█")
	out := make([]rune, len(levels))
	for i, v := range levels {
		fill := float64(v)/float64(top)*curveRows - float64(row)
		out[i] = blocks[int(min(max(fill, 0), 1)*8)]
	}
	return strings.TrimRight(string(out), " ")
}

// phaseAxis writes the phases' names under their columns, shortened or omitted
// if there is no room.
func phaseAxis(phases []string) string {
	var sb strings.Builder
	for i := 0; i < len(phases); {
		j := i + 1
		for j < len(phases) && phases[j] == phases[i] {
			j++
		}
		name := phases[i]
		if name == "zero_grad" {
			name = ""
		}
		room := j - i - 1
		if len(name) > room {
			name = name[:min(len(name), 3)]
		}
		if len(name) > room {
			name = ""
		}
		sb.WriteString("╵" + name + strings.Repeat(" ", max(j-i-1-len(name), 0)))
		i = j
	}
	return strings.TrimRight(sb.String(), " ")
}
