package lift

import (
	_ "embed"
	"path"
	"slices"
	"strings"
)

// castText holds the whole statements behind lines of well-known libraries, with
// the casts that make no call in a file of float32: lines of
//
//	LINE tab EXPRESSION tab FILES
//
// sorted; scripts/casts.py writes it and says how.
//
//go:embed casts.txt
var castText string

// castStatement is the expression that a line in the file of its class is a part of:
// the line itself where the table has none.
func castStatement(l Line, class string) string {
	file := path.Base(strings.ReplaceAll(l.File, `\`, "/"))
	if module := class[:max(strings.LastIndexByte(class, '.'), 0)]; strings.HasPrefix(class, "torch.") || !strings.HasSuffix(module, "."+strings.TrimSuffix(file, ".py")) {
		return l.Text // a forward of another file, that of a base class
	}

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
		if slices.Contains(strings.Fields(f[2]), file) {
			return f[1]
		}
	}
	return l.Text
}
