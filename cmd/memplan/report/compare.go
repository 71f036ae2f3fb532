package report

import (
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/memplan/memplan/cmd/memplan/frontier"
	"github.com/memplan/memplan/planner"
)

// Comparisons are the formats of analyze --compare and of --gpu with several cards.
var Comparisons = []Format[*planner.Comparison]{
	{Name: "text", Write: comparisonText},
	AsJSON(Itself[*planner.Comparison]),
	{Name: "html", Write: comparisonHTML},
}

// comparisonRows are the table of a comparison: its head, and a row for each way.
func comparisonRows(c *planner.Comparison) (head []string, rows [][]string) {
	head = []string{"", "fits", "batch", "allocated", "process", "checkpoints", "overhead", "step ms", "samples/s"}
	prices := false
	for i := range c.Ways {
		prices = prices || c.Ways[i].PerHour > 0
	}
	if prices {
		head = append(head, "an hour", "10^6 samples")
	}
	for i := range c.Ways {
		v := &c.Ways[i]
		if v.Why != "" {
			rows = append(rows, []string{v.Name, v.Why})
			continue
		}
		fits := "-"
		if v.Fits != nil {
			fits = map[bool]string{true: "yes", false: "no"}[*v.Fits]
		}
		row := []string{v.Name, fits, fmt.Sprint(v.Batch), size(v.AllocatedBytes), size(v.ProcessBytes), v.Checkpoint, fmt.Sprintf("%.1f%%", 100*v.Overhead), fmt.Sprintf("%.1f", v.StepMs), fmt.Sprintf("%.1f", v.SamplesPerSecond)}
		switch {
		case v.PerHour > 0:
			row = append(row, fmt.Sprintf("%.2f", v.PerHour), fmt.Sprintf("%.3f", v.PerMillion))
		case prices:
			row = append(row, "-", "-")
		}
		rows = append(rows, row)
	}
	return head, rows
}

// comparisonVerdict names the ways to choose.
func comparisonVerdict(c *planner.Comparison) string {
	if c.Fastest == "" {
		return "none fits"
	}
	line := "most samples per second: " + c.Fastest
	if c.Cheapest != "" {
		line += "; cheapest: " + c.Cheapest
	}
	return line
}

func comparisonText(w io.Writer, c *planner.Comparison, _ Style) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	head, rows := comparisonRows(c)
	for _, row := range append([][]string{head}, rows...) {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, comparisonVerdict(c))
	return err
}

// comparisonHTML writes a page that loads nothing: the ways as a picture, and the table.
func comparisonHTML(w io.Writer, c *planner.Comparison, _ Style) (err error) {
	p := struct {
		Policy, Path, Class, Verdict string
		Style                        template.CSS
		Chart                        template.HTML
		Head                         []string
		Rows                         [][]string
	}{Policy: policy(), Path: c.Model, Class: map[bool]string{true: "yes", false: "no"}[c.Fastest != ""], Verdict: comparisonVerdict(c), Style: pageStyle}
	p.Head, p.Rows = comparisonRows(c)
	if slices.ContainsFunc(c.Ways, func(x planner.Compared) bool { return x.Why == "" }) {
		if p.Chart, err = figure(func(w io.Writer) error { return frontier.Ways(w, c) }); err != nil {
			return err
		}
	}
	return pages.ExecuteTemplate(w, "comparison.html", &p)
}
