package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/memplan/memplan/planner"
)

// MeshTable returns the meshes, one line each, why some were not predicted, each reason once, and
// those chosen.
func MeshTable(p *planner.MeshPlan) []string {
	out := []string{fmt.Sprintf("%-14s %5s %6s %-11s %10s %9s %9s %10s", "mesh", "cards", "batch", "checkpoints", "a rank", "step ms", "waiting", "samples/s")}
	divided, dispatched := false, false
	var reasons []string // why meshes were not predicted, each once
	for _, c := range p.Meshes {
		line := fmt.Sprintf("%-14s %5d %6d %-11s %10s %9.1f %9.1f %10.2f", c.Mesh, c.GPUs, c.Batch, c.Checkpoint, size(c.ProcessBytes), c.StepMs, c.WaitingMs, c.SamplesPerSecond)
		switch {
		case c.Why != "":
			why := strings.TrimPrefix(c.Why, "--parallel "+c.Mesh+": ")
			if !slices.Contains(reasons, why) {
				reasons = append(reasons, why)
			}
			line = fmt.Sprintf("%-14s %5d not predicted (%d)", c.Mesh, c.GPUs, slices.Index(reasons, why)+1)
		case c.AtLeast:
			line = fmt.Sprintf("%-14s %5d %6d %-11s %10s %9s %9s %10s  does not fit", c.Mesh, c.GPUs, c.Batch, c.Checkpoint, "> "+size(c.ProcessBytes), "-", "-", "-")
		case !c.Fits:
			line += "  does not fit"
		}
		out, divided, dispatched = append(out, line), divided || c.Sequence, dispatched || c.Dispatched
	}
	for i, why := range reasons {
		out = append(out, fmt.Sprintf("(%d) %s", i+1, why))
	}
	if divided {
		out = append(out, "tp divides sequences between split modules, too (--tp-sequence norms), which never takes more")
	}
	if dispatched {
		out = append(out, "with ep experts run on the tokens that are sent to them, from a balanced router, whatever the file has them do: shown, not chosen (memplan analyze --parallel says more)")
	}
	switch {
	case p.Smallest == "" && p.MayFit != "":
		return append(out, fmt.Sprintf("no mesh fits; with these settings the smallest that may is %s: --precision, --optimizer and --lora ask for less", p.MayFit))
	case p.Smallest == "":
		return append(out, "no mesh fits")
	}
	return append(out, fmt.Sprintf("smallest that fits: %s; most samples per second: %s, of at most %.2f", p.Smallest, p.Fastest, p.Bound))
}
