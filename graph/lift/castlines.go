package lift

import (
	"path"
	"strings"

	"github.com/memplan/memplan/graph/python"
)

// ofClass reports whether a line is in the file that defines a class: an inherited
// forward may be in another file.
func ofClass(l Line, class string) bool {
	module := class[:max(strings.LastIndexByte(class, '.'), 0)]
	return !strings.HasPrefix(class, "torch.") && strings.HasSuffix(module, "."+strings.TrimSuffix(sourceFile(l), ".py"))
}

func sourceFile(l Line) string { return path.Base(strings.ReplaceAll(l.File, `\`, "/")) }

// castRows returns the known statements of libraries that a line may be part
// of.
func castRows(l Line) []python.Cast { return python.Casts(sourceFile(l), l.Text) }

// wholeStatement returns the statement that a line in its class's file is part
// of, or the line itself if the table has none.
func wholeStatement(l Line, rows []python.Cast, class string) (text string, found bool) {
	name := class[strings.LastIndexByte(class, '.')+1:]
	for _, r := range rows {
		if (r.Class == "" || r.Class == name) && ofClass(l, class) {
			return r.Whole, true
		}
	}
	return l.Text, false
}
