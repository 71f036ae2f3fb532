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

// LeverReports are the formats of analyze --allow.
var LeverReports = []Format[*planner.LeverReport]{
	{Name: "text", Write: leversText},
	AsJSON(Itself[*planner.LeverReport]),
}

func leversText(w io.Writer, r *planner.LeverReport, s Style) error {
	p := newPage(w, s)
	for _, g := range grouped(&planner.Report{Warnings: r.Warnings}) {
		if planner.IsDoubt(g.code) {
			p.wrapped("", g.String(), red)
		}
	}
	p.wrapped("", fmt.Sprintf("%s, batch %d: %s, %.1f ms a step%s", r.Config.Precision, r.Config.Batch, size(r.Base.ProcessBytes), r.Base.StepMs, fitting(r)), bold)
	if len(r.Rows) > 0 {
		p.head("what each lever alone saves, the cheapest a GiB first")
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "lever\tsetting\tpeak\tsaves\ttime\tms a GiB\tchanges")
		for i := range r.Rows {
			leverRow(t, &r.Rows[i])
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	p.line("")
	if list := idle(r); len(list) > 0 {
		p.wrapped("", "change nothing: "+strings.Join(list, ", "), "")
	}
	for _, x := range r.Refused {
		what := x.What
		if what == "all" {
			what = x.Lever
		}
		p.wrapped("", fmt.Sprintf("not used: %s: %s", what, x.Why), "")
	}
	for i := range r.Rows {
		if x := &r.Rows[i]; x.Why != "" {
			p.wrapped("", fmt.Sprintf("not predicted: %s %s: %s", x.Lever, x.Setting, x.Why), "")
		}
	}
	p.line("")
	bestLevers(p, r)
	if r.Least != nil && len(r.Least.Levers) > 0 && (r.Best == nil || !slices.Equal(r.Least.Args, r.Best.Args)) {
		p.wrapped("", "least memory: "+together(r, r.Least), "")
	}
	p.wrapped("", fmt.Sprintf("found by: %s (%s predicted)", r.Search, Plural(r.Replayed, "step", "steps")), "")
	return nil
}

func fitting(r *planner.LeverReport) string {
	if r.Base.Fits == nil {
		return ""
	}
	return map[bool]string{true: ", fits ", false: ", does not fit "}[*r.Base.Fits] + size(r.Config.VRAM)
}

// leverRow writes what one setting does.
func leverRow(w io.Writer, x *planner.LeverRow) {
	if x.Why != "" || idles(x) {
		return
	}
	price := "-"
	switch {
	case x.MsPerGiB != nil && *x.MsPerGiB == 0:
		price = "free"
	case x.MsPerGiB != nil:
		price = fmt.Sprintf("%.2f", *x.MsPerGiB)
	}
	changes := x.Changes
	if !x.Chosen {
		changes += fmt.Sprintf("; only with --allow %s=%s", x.Lever, x.Setting)
	}
	saves := "nothing"
	if x.SavedBytes != 0 {
		saves = size(x.SavedBytes)
	}
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%.2fx\t%s\t%s\n", x.Lever, x.Setting, size(x.ProcessBytes), saves, x.TimeRatio, price, cmp.Or(changes, "-"))
}

// idles reports a setting that changes neither memory nor time by as much as is shown.
func idles(x *planner.LeverRow) bool {
	return x.Why == "" && x.SavedBytes == 0 && x.TimeRatio > 0.995 && x.TimeRatio < 1.005
}

// idle lists the settings that change nothing.
func idle(r *planner.LeverReport) (out []string) {
	for i := range r.Rows {
		if x := &r.Rows[i]; idles(x) {
			out = append(out, x.Lever+" "+x.Setting)
		}
	}
	return out
}

// bestLevers writes the fastest configuration under the budget.
func bestLevers(p *page, r *planner.LeverReport) {
	switch {
	case r.Base.Fits == nil:
	case r.Best == nil:
		p.wrapped("", fmt.Sprintf("nothing that is allowed fits %s", size(r.Config.VRAM)), red)
	case len(r.Best.Levers) == 0:
		p.wrapped("", fmt.Sprintf("fastest under %s: the step as it is", size(r.Config.VRAM)), green)
	default:
		p.wrapped("", fmt.Sprintf("fastest under %s: %s", size(r.Config.VRAM), together(r, r.Best)), green)
		p.wrapped("  ", strings.Join(r.Best.Args, " "), "")
	}
}

// together says what a configuration does in one sentence.
func together(r *planner.LeverReport, c *planner.LeverChoice) string {
	names := strings.Join(c.Levers, ", ")
	if i := strings.LastIndex(names, ", "); i >= 0 {
		names = names[:i] + " and " + names[i+2:] + " together"
	}
	out := fmt.Sprintf("%s: %s instead of %s, %.0f%% less, %.2f times the time of a sample", names, size(c.ProcessBytes), size(r.Base.ProcessBytes), share(c.SavedBytes, r.Base.ProcessBytes), c.TimeRatio)
	if len(c.Changes) > 0 {
		out += "; it changes: " + strings.Join(c.Changes, ", ")
	}
	return out
}
