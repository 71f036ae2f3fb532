package report

import (
	"fmt"
	"io"

	"github.com/memplan/memplan/planner"
)

// Diffs are the formats of diff.
var Diffs = []Format[*planner.Diff]{
	{Name: "text", Write: diffText},
	AsJSON(Itself[*planner.Diff]),
	{Name: "markdown", Write: diffMarkdown},
	{Name: "html", Write: diffHTML},
}

// mostDeltas bounds the lists for people; JSON has all entries.
const mostDeltas = 15

// change writes a delta with its percentage of the base, "~" for none.
func change(delta, base int64) string {
	const mostShare = 10 // percentages beyond this multiple of the base are omitted
	switch {
	case delta == 0:
		return "~"
	case base <= 0 || delta/mostShare > base:
		return signed(delta)
	}
	return fmt.Sprintf("%s (%+.2f%%)", signed(delta), 100*float64(delta)/float64(base))
}

func diffHead(d *planner.Diff, arrow string) string {
	return fmt.Sprintf("allocated peak %s %s %s  %s", size(d.Base.AllocatedBytes), arrow, size(d.Head.AllocatedBytes), change(d.DeltaBytes, d.Base.AllocatedBytes))
}

func diffText(w io.Writer, d *planner.Diff, s Style) error {
	p := newPage(w, s)
	p.wrapped("", diffHead(d, "->"), bold)
	p.labelled("base", sideName(&d.Base))
	p.labelled("head", sideName(&d.Head))
	p.line("parameters %s", countChange(d.Base.Parameters, d.Head.Parameters))
	p.head("allocated at the peak")
	p.line("  %-13s  %9s  %9s  change", "", "base", "head")
	for _, c := range d.Categories {
		if c.Base != 0 || c.Head != 0 {
			p.line("  %-13s  %9s  %9s  %s", c.Category, size(c.Base), size(c.Head), change(c.Delta, c.Base))
		}
	}
	if len(d.Modules) > 0 {
		p.head("by module")
		for _, m := range d.Modules[:min(len(d.Modules), mostDeltas)] {
			p.line("  %10s  %s", signed(m.Delta), clip(moduleName(m.Module), p.width-14))
		}
		more(p, len(d.Modules))
	}
	for _, list := range opLists(d) {
		p.head(fmt.Sprintf("operators %s: %d", list.name, len(list.ops)))
		opsText(p, list.ops[:min(len(list.ops), mostDeltas)])
		more(p, len(list.ops))
	}
	return nil
}

// opsText lists operators in columns that fit the page.
func opsText(p *page, ops []planner.OpDelta) {
	names, modules := 0, 0
	for i := range ops {
		names, modules = max(names, widest(ops[i].Op)), max(modules, widest(moduleName(ops[i].Module)))
	}
	names = min(names, p.width/3)
	modules = min(modules, p.width/3)
	for i := range ops {
		o := &ops[i]
		p.line("  %s  %s  %s", pad(clip(o.Op, names), names), pad(clip(moduleName(o.Module), modules), modules), clip(opTypes(o), max(p.width-names-modules-6, 12)))
	}
}

func more(p *page, n int) {
	if n > mostDeltas {
		p.line("  and %d more", n-mostDeltas)
	}
}

func sideName(s *planner.DiffSide) string {
	name := s.Path
	if s.Batch > 0 {
		name += fmt.Sprintf(" at batch %d", s.Batch)
	}
	if s.Segments > 0 {
		name += " with " + Plural(s.Segments, "segment", "segments") + " checkpointed"
	}
	return name
}

func countChange(base, head int64) string {
	if base == head {
		return grouped3(base)
	}
	return grouped3(base) + " -> " + grouped3(head)
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

// opLists returns the lists that are not empty.
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
	m := markdown{w}
	m.tag("diff")
	m.printf("**memplan: %s**\n\n| at the peak | base | head | change |\n|---|---:|---:|---:|\n", own(diffHead(d, "→")))
	for _, c := range d.Categories {
		if c.Base != 0 || c.Head != 0 {
			m.row(own(c.Category), own(size(c.Base)), own(size(c.Head)), own(change(c.Delta, c.Base)))
		}
	}
	m.printf("| **allocated** | **%s** | **%s** | **%s** |\n", own(size(d.Base.AllocatedBytes)), own(size(d.Head.AllocatedBytes)), own(change(d.DeltaBytes, d.Base.AllocatedBytes)))
	m.printf("\n<details><summary>%s, operators: %d added, %d removed, %d changed</summary>\n\n", own(Plural(len(d.Modules), "module", "modules")), len(d.Ops.Added), len(d.Ops.Removed), len(d.Ops.Changed))
	for _, x := range d.Modules[:min(len(d.Modules), mostDeltas)] {
		m.printf("- %s %s\n", moduleName(x.Module), own(signed(x.Delta)))
	}
	for _, list := range opLists(d) {
		m.printf("\n%s:\n\n", own(list.name))
		for _, o := range list.ops[:min(len(list.ops), mostDeltas)] {
			m.printf("- %s %s %s\n", o.Op, o.Module, opTypes(&o))
		}
	}
	m.printf("\n</details>\n")
	return nil
}
