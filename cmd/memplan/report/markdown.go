package report

import (
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/memplan/memplan/quote"
)

// A markdown is a comment on a pull request while it is written. Texts from
// files are in code spans: printf and row put every string in one, so that no
// name can be forgotten; memplan's own words have the type own.
type markdown struct{ w io.Writer }

// own is memplan's own text, in which names, if any, are marked already.
type own string

// printf is fmt.Fprintf with strings as code.
func (m markdown) printf(format string, args ...any) {
	fmt.Fprintf(m.w, format, spans(args, quote.Code)...)
}

// row writes a row of a table.
func (m markdown) row(cells ...any) {
	fmt.Fprintf(m.w, strings.Repeat("| %v ", len(cells))+"|\n", spans(cells, quote.Cell)...)
}

// spans marks the strings among the arguments.
func spans(args []any, mark namer) []any {
	out := make([]any, len(args))
	for i, a := range args {
		if out[i] = a; isText(a) {
			out[i] = mark(fmt.Sprint(a))
		}
	}
	return out
}

// isText reports whether an argument may come from a file: all except our own
// words and numbers.
func isText(a any) bool {
	switch a.(type) {
	case own, int, float64:
		return false
	}
	return true
}

// tag is the hidden first line by which a comment is found and updated.
func (m markdown) tag(kind string) {
	plain := func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("._/:", r) {
			return r
		}
		return '_'
	}
	m.printf("<!-- memplan:%s -->\n", own(strings.Map(plain, kind)))
}
