package report

import (
	"fmt"
	"io"

	"github.com/memplan/memplan/planner"
)

// TreeDiffs are the formats of diff for two folders.
var TreeDiffs = []Format[*planner.TreeDiff]{
	{Name: "text", Write: treeText},
	AsJSON(Itself[*planner.TreeDiff]),
	{Name: "markdown", Write: treeMarkdown},
}

// fileRow returns the columns of a file: base, head and change.
func fileRow(f *planner.FileDelta) (base, head, delta string) {
	switch {
	case f.Diff != nil:
		return size(f.Diff.Base.AllocatedBytes), size(f.Diff.Head.AllocatedBytes), change(f.Diff.DeltaBytes, f.Diff.Base.AllocatedBytes)
	case f.Status == planner.FileAdded:
		return "-", size(f.Side.AllocatedBytes), "added"
	case f.Status == planner.FileRemoved:
		return size(f.Side.AllocatedBytes), "-", "removed"
	}
	return "-", "-", "failed"
}

func treeHead(d *planner.TreeDiff, arrow string) string {
	return fmt.Sprintf("allocated peaks %s %s %s  %s", size(d.BaseBytes), arrow, size(d.HeadBytes), change(d.DeltaBytes, d.BaseBytes))
}

func treeText(w io.Writer, d *planner.TreeDiff, s Style) error {
	p := newPage(w, s)
	p.wrapped("", treeHead(d, "->"), bold)
	p.labelled("base", d.Base)
	p.labelled("head", d.Head)
	names := 5
	for i := range d.Files {
		names = max(names, widest(d.Files[i].Path))
	}
	names = min(names, max(p.width-42, 20))
	p.line("")
	p.line("%s  %9s  %9s  change", pad("file", names), "base", "head")
	for i := range d.Files {
		f := &d.Files[i]
		base, head, delta := fileRow(f)
		p.line("%s  %9s  %9s  %s", pad(clip(f.Path, names), names), base, head, delta)
	}
	for i := range d.Files {
		f := &d.Files[i]
		switch {
		case f.Error != "":
			p.line("")
			p.wrapped("", "failed: "+f.Error, "")
		case f.Status == planner.FileChanged && len(f.Diff.Modules) > 0:
			p.head(f.Path)
			for _, m := range f.Diff.Modules[:min(len(f.Diff.Modules), mostTreeModules)] {
				p.line("  %10s  %s", signed(m.Delta), clip(moduleName(m.Module), p.width-14))
			}
		}
	}
	return nil
}

// mostTreeModules bounds the modules that are listed of each file.
const mostTreeModules = 3

func treeMarkdown(w io.Writer, d *planner.TreeDiff, _ Style) error {
	m := markdown{w}
	m.tag("diff")
	m.printf("**memplan: %s**\n\n| file | base | head | change |\n|---|---:|---:|---:|\n", own(treeHead(d, "→")))
	for i := range d.Files {
		base, head, delta := fileRow(&d.Files[i])
		m.row(d.Files[i].Path, own(base), own(head), own(delta))
	}
	for i := range d.Files {
		f := &d.Files[i]
		switch {
		case f.Error != "":
			m.printf("\n%s could not be compared: %s\n", f.Path, f.Error)
		case f.Status == planner.FileChanged && len(f.Diff.Modules) > 0:
			m.printf("\n%s:\n\n", f.Path)
			for _, x := range f.Diff.Modules[:min(len(f.Diff.Modules), mostTreeModules)] {
				m.printf("- %s %s\n", moduleName(x.Module), own(signed(x.Delta)))
			}
		}
	}
	return nil
}
