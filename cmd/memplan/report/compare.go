package report

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/memplan/memplan/planner"
)

// Comparisons are the formats of analyze --compare and of --gpu with several cards.
var Comparisons = []Format[*planner.Comparison]{
	{Name: "text", Write: comparisonText},
	AsJSON(Itself[*planner.Comparison]),
}

func comparisonText(w io.Writer, c *planner.Comparison, _ Style) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	head := "\tfits\tbatch\tallocated\tprocess\tcheckpoints\toverhead\tstep ms\tsamples/s"
	prices := false
	for i := range c.Ways {
		prices = prices || c.Ways[i].PerHour > 0
	}
	if prices {
		head += "\tan hour\t10^6 samples"
	}
	fmt.Fprintln(t, head)
	for i := range c.Ways {
		v := &c.Ways[i]
		if v.Why != "" {
			fmt.Fprintf(t, "%s\t%s\n", v.Name, v.Why)
			continue
		}
		fits := "-"
		if v.Fits != nil {
			fits = map[bool]string{true: "yes", false: "no"}[*v.Fits]
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\t%.1f%%\t%.1f\t%.1f", v.Name, fits, v.Batch, size(v.AllocatedBytes), size(v.ProcessBytes), v.Checkpoint, 100*v.Overhead, v.StepMs, v.SamplesPerSecond)
		switch {
		case v.PerHour > 0:
			fmt.Fprintf(t, "\t%.2f\t%.3f", v.PerHour, v.PerMillion)
		case prices:
			fmt.Fprint(t, "\t-\t-")
		}
		fmt.Fprintln(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if c.Fastest == "" {
		_, err := fmt.Fprintln(w, "none fits")
		return err
	}
	line := "most samples per second: " + c.Fastest
	if c.Cheapest != "" {
		line += "; cheapest: " + c.Cheapest
	}
	_, err := fmt.Fprintln(w, line)
	return err
}
