package report

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Text for people is laid out for a terminal of this many columns.
const (
	defaultWidth = 80
	minWidth     = 60
	maxWidth     = 120
)

// A page is a text for people while it is written.
type page struct {
	w     io.Writer
	width int
	color bool
}

func newPage(w io.Writer, s Style) *page {
	width := s.Width
	if width == 0 {
		width = defaultWidth
	}
	return &page{w, min(max(width, minWidth), maxWidth), s.Color}
}

func (p *page) line(format string, args ...any) { fmt.Fprintf(p.w, format+"\n", args...) }

// head writes the title of a section.
func (p *page) head(title string) { p.line("\n%s", paint(p.color, bold, title)) }

// wrapped writes a text in lines no longer than the page is wide, as far as its
// words allow: the first after a prefix, the others indented by its length.
func (p *page) wrapped(prefix, text, code string) {
	line, used := prefix, utf8.RuneCountInString(prefix)
	indent := max(used, 2)
	flush := func() { p.line("%s", paint(p.color && code != "", code, line)) }
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
			line, used = line+word, used+n
		case used+1+n > p.width:
			flush()
			line, used = strings.Repeat(" ", indent)+word, indent+n
		default:
			line, used = line+" "+word, used+1+n
		}
	}
	flush()
}

// labelled writes a name and a text beside it.
func (p *page) labelled(label, text string) { p.wrapped(pad(label, 8), text, "") }

// bar draws a share of width columns, in eighths of one.
func bar(part, all int64, width int) string {
	if all <= 0 || part <= 0 {
		return ""
	}
	eighths := int(float64(part) / float64(all) * float64(width) * 8)
	eighths = min(max(eighths, 1), 8*width)
	s := strings.Repeat("█", eighths/8)
	if rest := eighths % 8; rest > 0 {
		s += string([]rune("▏▎▍▌▋▊▉")[rest-1])
	}
	return s
}

// pad fills s with spaces to the given columns.
func pad(s string, columns int) string {
	return s + strings.Repeat(" ", max(columns-utf8.RuneCountInString(s), 0))
}

// left fills s with spaces before it.
func left(s string, columns int) string {
	return strings.Repeat(" ", max(columns-utf8.RuneCountInString(s), 0)) + s
}

// clip shortens a name to the given columns. The end of a name says more than
// its beginning.
func clip(s string, columns int) string {
	n := utf8.RuneCountInString(s)
	if n <= columns {
		return s
	}
	r := []rune(s)
	return "…" + string(r[n-max(columns-1, 0):])
}

// widest returns the width of the widest of some texts.
func widest(texts ...string) int {
	n := 0
	for _, t := range texts {
		n = max(n, utf8.RuneCountInString(t))
	}
	return n
}
