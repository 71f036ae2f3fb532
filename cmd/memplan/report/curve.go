package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/memplan/memplan/planner"
)

const (
	curveRows  = 6
	curveWidth = 72 // columns, unless the style knows better
	labelWidth = 12 // of the scale at the left
)

// curve draws allocated bytes over the peak's step in block characters, with
// one row that names the phases. A column shows the most of its events.
func curve(w io.Writer, r *planner.Report, width int) {
	top := r.Peak.AllocatedBytes
	if len(r.Curve) < 2 || top <= 0 {
		return
	}
	if width = min(max(width-labelWidth-1, 0), 2*curveWidth); width < 16 {
		width = curveWidth
	}
	levels, phases := columns(r.Curve, min(width, len(r.Curve)))
	for row := curveRows - 1; row >= 0; row-- {
		label := ""
		switch row {
		case curveRows - 1:
			label = size(top)
		case 0:
			label = "0"
		}
		fmt.Fprintf(w, "%10s ┤%s\n", label, curveRow(levels, top, row))
	}
	fmt.Fprintf(w, "%10s  %s\n\n", "", phaseAxis(phases))
}

// columns reduces a curve to the most of each of n equal parts. A column is
// of the phase of its first event.
func columns(pts []planner.CurvePoint, n int) (levels []int64, phases []string) {
	levels, phases = make([]int64, n), make([]string, n)
	for i, p := range pts {
		c := i * n / len(pts)
		levels[c] = max(levels[c], p.Bytes)
		if phases[c] == "" {
			phases[c] = p.Phase
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

// phaseAxis writes the phases' names under their columns, shortened or left
// out where there is no room.
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
		if j == len(phases) {
			room += len(name) // nothing follows
		}
		if len(name) > room {
			name = name[:min(len(name), 3)]
		}
		if len(name) > room {
			name = ""
		}
		sb.WriteString("|" + name + strings.Repeat(" ", max(j-i-1-len(name), 0)))
		i = j
	}
	return strings.TrimRight(sb.String(), " ")
}

// sortedKeys returns a map's keys in order.
func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
