package lift

import (
	"path"
	"strings"

	"github.com/memplan/memplan/graph/python"
)

// ofClass reports a line of the file in which a class is defined: a forward that it
// inherits may stand in another file.
func ofClass(l Line, class string) bool {
	module := class[:max(strings.LastIndexByte(class, '.'), 0)]
	return !strings.HasPrefix(class, "torch.") && strings.HasSuffix(module, "."+strings.TrimSuffix(sourceFile(l), ".py"))
}

func sourceFile(l Line) string { return path.Base(strings.ReplaceAll(l.File, `\`, "/")) }

// castRows are the statements that a line stands for in well-known libraries.
func castRows(l Line) []python.Cast { return python.Casts(sourceFile(l), l.Text) }

// wholeStatement is the expression that a line in the file of its class is a part
// of, and the line itself where the table has none.
func wholeStatement(l Line, rows []python.Cast, class string) (text string, found bool) {
	name := class[strings.LastIndexByte(class, '.')+1:]
	for _, r := range rows {
		if (r.Class == "" || r.Class == name) && ofClass(l, class) {
			return r.Whole, true
		}
	}
	return l.Text, false
}
