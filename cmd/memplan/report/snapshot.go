package report

import (
	"fmt"
	"io"
	"slices"

	"github.com/memplan/memplan/validate/snapshot"
)

// Snapshots are the formats of compare.
var Snapshots = []Format[*snapshot.Comparison]{
	{Name: "text", Write: snapshotText},
	AsJSON(Itself[*snapshot.Comparison]),
	{Name: "markdown", Write: snapshotMarkdown},
}

// snapshotHead is the line that says it all.
func snapshotHead(c *snapshot.Comparison) string {
	return fmt.Sprintf("the run holds %s at its peak, the plan %s: %s", size(c.Snapshot.RequestedBytes), size(c.Plan.RequestedBytes), change(c.DeltaBytes, c.Plan.RequestedBytes))
}

// snapshotReserved says how reserved memory compares with the bound.
func snapshotReserved(c *snapshot.Comparison) string {
	within := "within"
	if !c.Within {
		within = "above"
	}
	return fmt.Sprintf("%s, the plan %s, %s its upper bound of %s", size(c.Snapshot.ReservedBytes), size(c.Plan.ReservedBytes), within, size(c.UpperBoundBytes))
}

// snapshotMatched says how much of the plan's step was found.
func snapshotMatched(m *snapshot.Matching) string {
	return fmt.Sprintf("%d of %s of the plan's step, %.1f%% of their bytes", m.Allocations, Plural(m.Of, "allocation", "allocations"), 100*float64(m.Bytes)/float64(max(m.OfBytes, 1)))
}

func moment(s *snapshot.Side) string {
	if s.Phase == "" {
		return "outside of the plan's step"
	}
	text := s.Phase
	if s.Op != "" {
		text += ", " + s.Op
	}
	if s.Module != "" {
		text += " of " + s.Module
	}
	return text
}

// groupName says where a group's tensors come from.
func groupName(g *snapshot.Group) string {
	switch {
	case g.Where != "" && g.Op != "":
		return fmt.Sprintf("%s (%s of %s)", g.Where, g.Op, moduleName(g.Module))
	case g.Where != "" && g.Module != snapshot.Unplanned:
		return fmt.Sprintf("%s, as %s runs", g.Where, moduleName(g.Module))
	case g.Where != "":
		return g.Where
	case g.Op != "":
		return fmt.Sprintf("%s of %s", g.Op, moduleName(g.Module))
	}
	return "before the history"
}

func snapshotText(w io.Writer, c *snapshot.Comparison, s Style) error {
	p := newPage(w, s)
	code := green
	if !c.Within {
		code = red
	}
	p.wrapped("", snapshotHead(c), code)
	for _, x := range [][2]string{{"snapshot", c.Snapshot.Path + ", peak in " + moment(&c.Snapshot)}, {"plan", c.Plan.Path + ", peak in " + moment(&c.Plan)}, {"reserved", snapshotReserved(c)}, {"found", snapshotMatched(&c.Matched)}} {
		p.wrapped(pad(x[0], 10), x[1], "")
	}
	p.head("requested at the peak")
	p.line("  %-17s  %9s  %9s  difference", "", "plan", "run")
	for _, x := range c.Categories {
		p.line("  %-17s  %9s  %9s  %s", x.Name, size(x.Plan), size(x.Snapshot), change(x.Delta, x.Plan))
	}
	if list := differing(c.Modules); len(list) > 0 {
		p.head("by module")
		for _, x := range list[:min(len(list), mostDeltas)] {
			p.line("  %10s  %s", signed(x.Delta), clip(moduleName(x.Name), p.width-14))
		}
		more(p, len(list))
	}
	for _, l := range snapshotLists(c) {
		p.head(l.name)
		for i := range l.groups[:min(len(l.groups), mostDeltas)] {
			g := &l.groups[i]
			p.wrapped(fmt.Sprintf("  %10s  ", size(g.Bytes)), groupLine(g), "")
		}
		more(p, len(l.groups))
	}
	return nil
}

func groupLine(g *snapshot.Group) string {
	return fmt.Sprintf("%s, %s: %s", Plural(g.Tensors, "tensor", "tensors"), g.Reason, groupName(g))
}

// differing returns the shares whose sides differ.
func differing(all []snapshot.Share) []snapshot.Share {
	return slices.DeleteFunc(slices.Clone(all), func(x snapshot.Share) bool { return x.Delta == 0 })
}

// A groupList is one of the two lists of tensors.
type groupList struct {
	name   string
	groups []snapshot.Group
}

// snapshotLists returns the lists that are not empty.
func snapshotLists(c *snapshot.Comparison) []groupList {
	return slices.DeleteFunc([]groupList{{"the run has more", c.Unplanned}, {"the plan has more", c.Missing}}, func(l groupList) bool { return len(l.groups) == 0 })
}

func snapshotMarkdown(w io.Writer, c *snapshot.Comparison, _ Style) error {
	m := markdown{w}
	m.tag("compare")
	m.printf("**memplan: %s**\n\n| at the peak | plan | run | difference |\n|---|---:|---:|---:|\n", own(snapshotHead(c)))
	for _, x := range c.Categories {
		m.row(own(x.Name), own(size(x.Plan)), own(size(x.Snapshot)), own(change(x.Delta, x.Plan)))
	}
	m.printf("\nReserved: %s. Found: %s.\n", own(snapshotReserved(c)), own(snapshotMatched(&c.Matched)))
	if list := differing(c.Modules); len(list) > 0 {
		m.printf("\n%s:\n\n", own("By module"))
		for _, x := range list[:min(len(list), mostDeltas)] {
			m.printf("- %s %s\n", moduleName(x.Name), own(signed(x.Delta)))
		}
	}
	for _, l := range snapshotLists(c) {
		m.printf("\n%s:\n\n", own(l.name))
		for i := range l.groups[:min(len(l.groups), mostDeltas)] {
			m.printf("- %s %s\n", own(size(l.groups[i].Bytes)), groupLine(&l.groups[i]))
		}
	}
	return nil
}
