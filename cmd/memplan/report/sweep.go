package report

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/quote"
)

// Sweeps are the formats of merge.
var Sweeps = []Format[*planner.Merged]{
	{Name: "text", Write: sweepText},
	AsJSON(Itself[*planner.Merged]),
	{Name: "csv", Write: sweepCSV},
	{Name: "markdown", Write: sweepMarkdown},
}

// A sweepColumn is a column of a sweep's table: its text for people, and its value
// for programs.
type sweepColumn struct {
	head, csv   string
	text, exact func(a *planner.CaseAnswer) string
}

func sweepBytes(head, csv string, of func(a *planner.CaseAnswer) int64) sweepColumn {
	return sweepColumn{head, csv, func(a *planner.CaseAnswer) string { return size(of(a)) }, func(a *planner.CaseAnswer) string { return strconv.FormatInt(of(a), 10) }}
}

func sweepSame(head string, of func(a *planner.CaseAnswer) string) sweepColumn {
	return sweepColumn{head, head, of, of}
}

var sweepColumns = []sweepColumn{
	sweepSame("batch", func(a *planner.CaseAnswer) string { return strconv.FormatInt(a.Config.Batch, 10) }),
	sweepBytes("allocated", "allocatedBytes", func(a *planner.CaseAnswer) int64 { return a.Peak.AllocatedBytes }),
	sweepBytes("reserved", "reservedBytes", func(a *planner.CaseAnswer) int64 { return a.Peak.ReservedBytes }),
	sweepBytes("process", "processBytes", func(a *planner.CaseAnswer) int64 { return a.Peak.ProcessBytes }),
	sweepSame("fits", func(a *planner.CaseAnswer) string {
		switch {
		case a.Fits == nil:
			return ""
		case *a.Fits:
			return "yes"
		}
		return "no"
	}),
	{"samples/s", "samplesPerSecond", func(a *planner.CaseAnswer) string { return fmt.Sprintf("%.1f", a.Time.SamplesPerSecond) }, func(a *planner.CaseAnswer) string { return fmt.Sprintf("%g", a.Time.SamplesPerSecond) }},
}

// sweepRows returns the table of a sweep: a head and one row for each case; a
// case without an answer has only its name.
func sweepRows(m *planner.Merged, exact bool) [][]string {
	head := []string{"model", "settings"}
	for _, c := range sweepColumns {
		if exact {
			head = append(head, c.csv)
		} else {
			head = append(head, c.head)
		}
	}
	rows := [][]string{head}
	for i := range m.Cases {
		k := &m.Cases[i]
		row := []string{k.Path, k.Settings}
		for _, c := range sweepColumns {
			switch {
			case k.Answer == nil:
				row = append(row, "")
			case exact:
				row = append(row, c.exact(k.Answer))
			default:
				row = append(row, c.text(k.Answer))
			}
		}
		rows = append(rows, row)
	}
	return rows
}

func sweepText(w io.Writer, m *planner.Merged, s Style) error {
	p := newPage(w, s)
	rows := sweepRows(m, false)
	widths := make([]int, len(rows[0]))
	for _, r := range rows {
		for i, cell := range r {
			widths[i] = max(widths[i], widest(cell))
		}
	}
	for _, r := range rows {
		var b strings.Builder
		for i, cell := range r {
			if i < 2 {
				b.WriteString(pad(cell, widths[i]+2))
				continue
			}
			fmt.Fprintf(&b, "%*s  ", widths[i], cell)
		}
		p.line("%s", strings.TrimRight(b.String(), " "))
	}
	return nil
}

func sweepCSV(w io.Writer, m *planner.Merged, _ Style) error {
	rows := sweepRows(m, true)
	for _, r := range rows {
		for i := range r {
			r[i] = quote.CSV(r[i])
		}
	}
	return csv.NewWriter(w).WriteAll(rows)
}

func sweepMarkdown(w io.Writer, m *planner.Merged, _ Style) error {
	out := markdown{w}
	for i, r := range sweepRows(m, false) {
		cells := make([]any, len(r))
		for j, c := range r {
			if cells[j] = c; i == 0 || j > 1 || c == "" {
				cells[j] = own(c)
			}
		}
		out.row(cells...)
		if i == 0 {
			out.printf("|%s\n", own(strings.Repeat("---|", len(r))))
		}
	}
	return nil
}
