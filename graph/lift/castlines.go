package lift

import (
	_ "embed"
	"path"
	"strings"
)

// castText holds the whole statements behind lines of well-known libraries, with
// the casts that make no call in a file of float32: lines of
//
//	LINE tab EXPRESSION tab FILES, or FILE:CLASS
//
// sorted; scripts/casts.py writes it and says how.
//
//go:embed casts.txt
var castText string

// ofClass reports a line of the file that a class is written in: not a forward of
// another file, that of a base class.
func ofClass(l Line, class string) bool {
	module := class[:max(strings.LastIndexByte(class, '.'), 0)]
	return !strings.HasPrefix(class, "torch.") && strings.HasSuffix(module, "."+strings.TrimSuffix(sourceFile(l), ".py"))
}

func sourceFile(l Line) string { return path.Base(strings.ReplaceAll(l.File, `\`, "/")) }

// A castRow is what a line stands for in a file, and in one class of it where that
// is not "".
type castRow struct{ class, whole string }

// castRows are the table's rows of a line.
func castRows(l Line) (rows []castRow) {
	file := sourceFile(l)
	lo, hi := 0, len(castText)
	for lo < hi { // lo and hi are starts of rows, or the end
		mid := max(lo, strings.LastIndexByte(castText[:(lo+hi)/2], '\n')+1)
		row, _, _ := strings.Cut(castText[mid:], "\n")
		if key, _, _ := strings.Cut(row, "\t"); key < l.Text {
			lo = mid + len(row) + 1
		} else {
			hi = mid
		}
	}
	for row := range strings.Lines(castText[lo:]) {
		f := strings.Split(strings.TrimSuffix(row, "\n"), "\t")
		if len(f) != 3 || f[0] != l.Text {
			break
		}
		for name := range strings.FieldsSeq(f[2]) {
			if in, class, _ := strings.Cut(name, ":"); in == file {
				rows = append(rows, castRow{class, f[1]})
			}
		}
	}
	return rows
}

// wholeStatement is the expression that a line in the file of its class is a part
// of, and the line itself where the table has none.
func wholeStatement(l Line, rows []castRow, class string) (text string, found bool) {
	name := class[strings.LastIndexByte(class, '.')+1:]
	for _, r := range rows {
		if (r.class == "" || r.class == name) && ofClass(l, class) {
			return r.whole, true
		}
	}
	return l.Text, false
}
