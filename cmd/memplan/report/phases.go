package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/memplan/memplan/planner"
)

// PhaseReports are the formats of analyze --phases.
var PhaseReports = []Format[*planner.PhaseReport]{
	{Name: "text", Write: phasesText},
	AsJSON(Itself[*planner.PhaseReport]),
}

func phasesText(w io.Writer, r *planner.PhaseReport, s Style) error {
	p := newPage(w, s)
	for _, g := range grouped(&planner.Report{Warnings: r.Warnings}) {
		if planner.IsDoubt(g.code) {
			p.wrapped("", g.String(), red)
		}
	}
	p.wrapped("", phasesHead(r), bold)
	p.head("phases of a run")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "phase\tallocated in it\treserved then\tprocess\thost\tfits")
	for i := range r.Moments {
		x := &r.Moments[i]
		if x.Why != "" {
			continue
		}
		host := "-"
		if x.HostBytes > 0 {
			host = size(x.HostBytes)
		}
		in := "-"
		if x.HostBytes == 0 {
			in = size(x.AllocatedBytes)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", x.Name, in, size(x.ReservedBytes), size(x.ProcessBytes), host, verdictOf(x.Fits))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i := range r.Moments {
		if x := &r.Moments[i]; x.Why != "" {
			p.wrapped("", fmt.Sprintf("%s: %s", x.Name, x.Why), "")
		} else {
			p.wrapped("  • ", x.Name+": "+x.Doc, "")
		}
	}
	if r.Lengths != nil {
		return lengthsText(p, t, r)
	}
	return nil
}

func phasesHead(r *planner.PhaseReport) string {
	head := r.Config.Line()
	if r.Config.Batch > 0 {
		head = fmt.Sprintf("batch %d, %s", r.Config.Batch, head)
	}
	if r.Fits == nil {
		return head
	}
	return map[bool]string{true: "all phases fit ", false: "not all phases fit "}[*r.Fits] + size(r.Config.VRAM) + ": " + head
}

func verdictOf(fits *bool) string {
	if fits == nil {
		return "-"
	}
	return map[bool]string{true: "yes", false: "NO"}[*fits]
}

// lengthsText writes what steps of drawn sizes need.
func lengthsText(p *page, t *tabwriter.Writer, r *planner.PhaseReport) error {
	l := r.Lengths
	what := "each batch is as long as the longest of its samples"
	if !l.Padded {
		what = "each length is a batch's"
	}
	p.head(fmt.Sprintf("%s of drawn %s: %s, %s", Plural(l.Steps, "step", "steps"), strings.Join(l.Dims, ", "), what, Plural(l.Sizes, "size", "different sizes")))
	p.line("reserved  %s  %s to %s", spark(l.Reserved, p.width-34), size(slices.Min(l.Reserved)), size(slices.Max(l.Reserved)))
	p.line("")
	limited := r.Fits != nil
	fmt.Fprint(t, "allocator\treserved, mean\tmost\tprocess")
	if limited {
		fmt.Fprintf(t, "\truns out of memory in %d steps\tin an epoch", l.Steps)
	}
	fmt.Fprintln(t)
	for i := range l.Allocators {
		x := &l.Allocators[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s", cmp.Or(x.AllocConf, "as it is"), size(x.MeanBytes), size(x.ReservedBytes), size(x.ProcessBytes))
		if limited {
			fmt.Fprintf(t, "\t%d of %d, %s\t%s", x.RanOut, l.Runs, chance(x.Share, x.Low, x.High), epoch(l, x))
		}
		fmt.Fprintln(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	p.line("")
	if limited {
		p.wrapped("", "in brackets 95% intervals; an epoch's steps are taken to run out independently, and nothing is kept free of the card", "")
	}
	if l.Helps != "" {
		p.wrapped("", fmt.Sprintf("PYTORCH_ALLOC_CONF=%s helps most", l.Helps), green)
	} else {
		p.wrapped("", "none of these settings of the allocator helps", "")
	}
	return nil
}

func chance(share, low, high float64) string {
	return fmt.Sprintf("%.0f%% (%.0f to %.0f%%)", 100*share, 100*low, 100*high)
}

func epoch(l *planner.LengthRuns, x *planner.LengthRun) string {
	if l.Epoch == 0 {
		return "-"
	}
	return fmt.Sprintf("%s of %d steps", chance(x.EpochShare, x.EpochLow, x.EpochHigh), l.Epoch)
}

// spark draws numbers as columns of one line, each the largest of its part, from 0.
func spark(list []int64, width int) string {
	width = max(min(width, len(list)), 1)
	most := max(slices.Max(list), 1)
	var b strings.Builder
	for i := range width {
		part := list[i*len(list)/width : max((i+1)*len(list)/width, i*len(list)/width+1)]
		b.WriteRune([]rune("▁▂▃▄▅▆▇█")[min(8*slices.Max(part)/most, 7)])
	}
	return b.String()
}
