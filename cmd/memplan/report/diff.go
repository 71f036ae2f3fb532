package report

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/memplan/memplan/planner"
)

// Diffs are the formats of diff.
var Diffs = []Format[*planner.Diff]{
	{"text", diffText},
	{"json", func(w io.Writer, d *planner.Diff, _ Style) error { return JSON(w, d) }},
	{"markdown", diffMarkdown},
}

// mostDeltas bounds the lists for people; JSON has everything.
const mostDeltas = 15

// change writes a delta with its share of the base, "~" for none.
func change(delta, base int64) string {
	switch {
	case delta == 0:
		return "~"
	case base <= 0:
		return signed(delta)
	}
	return fmt.Sprintf("%s (%+.2f%%)", signed(delta), 100*float64(delta)/float64(base))
}

func diffHead(d *planner.Diff, arrow string) string {
	return fmt.Sprintf("allocated peak %s %s %s  %s", size(d.Base.AllocatedBytes), arrow, size(d.Head.AllocatedBytes), change(d.DeltaBytes, d.Base.AllocatedBytes))
}

func diffText(w io.Writer, d *planner.Diff, s Style) error {
	fmt.Fprintf(w, "%s\n", paint(s.Color, bold, diffHead(d, "->")))
	fmt.Fprintf(w, "base %s, head %s; parameters %s\n\n", sideName(&d.Base), sideName(&d.Head), countChange(d.Base.Parameters, d.Head.Parameters))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "at the peak\tbase\thead\tchange\n")
	for _, c := range d.Categories {
		if c.Base != 0 || c.Head != 0 {
			fmt.Fprintf(t, "  %s\t%s\t%s\t%s\n", c.Category, size(c.Base), size(c.Head), change(c.Delta, c.Base))
		}
	}
	t.Flush()
	if len(d.Modules) > 0 {
		fmt.Fprintf(w, "\nmodules\n")
		t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, m := range d.Modules[:min(len(d.Modules), mostDeltas)] {
			fmt.Fprintf(t, "  %s\t%s\n", moduleName(m.Module), signed(m.Delta))
		}
		t.Flush()
		more(w, len(d.Modules))
	}
	for _, list := range opLists(d) {
		fmt.Fprintf(w, "\noperators %s: %d\n", list.name, len(list.ops))
		t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, o := range list.ops[:min(len(list.ops), mostDeltas)] {
			fmt.Fprintf(t, "  %s\t%s\t%s\t%s\n", o.Op, o.Module, o.Node, opTypes(&o))
		}
		t.Flush()
		more(w, len(list.ops))
	}
	return nil
}

func more(w io.Writer, n int) {
	if n > mostDeltas {
		fmt.Fprintf(w, "  and %d more\n", n-mostDeltas)
	}
}

func sideName(s *planner.DiffSide) string {
	if s.Batch > 0 {
		return fmt.Sprintf("%s at batch %d", s.Path, s.Batch)
	}
	return s.Path
}

func countChange(base, head int64) string {
	if base == head {
		return fmt.Sprintf("%d", base)
	}
	return fmt.Sprintf("%d -> %d (%+d)", base, head, head-base)
}

func opTypes(o *planner.OpDelta) string {
	switch {
	case o.Base == "":
		return o.Head
	case o.Head == "":
		return o.Base
	}
	return o.Base + " -> " + o.Head
}

// An opList is one of the three lists of operators.
type opList struct {
	name string
	ops  []planner.OpDelta
}

// opLists are the lists that have something in them.
func opLists(d *planner.Diff) []opList {
	var out []opList
	for _, l := range []opList{{"added", d.Ops.Added}, {"removed", d.Ops.Removed}, {"changed", d.Ops.Changed}} {
		if len(l.ops) > 0 {
			out = append(out, l)
		}
	}
	return out
}

func diffMarkdown(w io.Writer, d *planner.Diff, _ Style) error {
	tag(w, "diff")
	fmt.Fprintf(w, "**memplan: %s**\n\n| at the peak | base | head | change |\n|---|---:|---:|---:|\n", diffHead(d, "→"))
	for _, c := range d.Categories {
		if c.Base != 0 || c.Head != 0 {
			fmt.Fprintf(w, "| %s | %s | %s | %s |\n", c.Category, size(c.Base), size(c.Head), change(c.Delta, c.Base))
		}
	}
	fmt.Fprintf(w, "| **allocated** | **%s** | **%s** | **%s** |\n", size(d.Base.AllocatedBytes), size(d.Head.AllocatedBytes), change(d.DeltaBytes, d.Base.AllocatedBytes))
	fmt.Fprintf(w, "\n<details><summary>%s, operators: %d added, %d removed, %d changed</summary>\n\n", Plural(len(d.Modules), "module", "modules"), len(d.Ops.Added), len(d.Ops.Removed), len(d.Ops.Changed))
	for _, m := range d.Modules[:min(len(d.Modules), mostDeltas)] {
		fmt.Fprintf(w, "- %s %s\n", code(moduleName(m.Module)), signed(m.Delta))
	}
	for _, list := range opLists(d) {
		fmt.Fprintf(w, "\n%s:\n\n", list.name)
		for _, o := range list.ops[:min(len(list.ops), mostDeltas)] {
			fmt.Fprintf(w, "- %s %s %s\n", code(o.Op), code(o.Module), cell(opTypes(&o)))
		}
	}
	fmt.Fprintf(w, "\n</details>\n")
	return nil
}
