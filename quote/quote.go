// Package quote writes text that came from a file (names of values, nodes,
// modules and dimensions, paths and keys of documents, names of files) so that
// it is text wherever it is printed, and nothing else: no control of a
// terminal, no link or image of a comment, no formula of a spreadsheet.
//
// A new format gets this without asking. cmd/memplan/report.Write hands every
// format a copy of its document from All, in which every string has been
// through Text; only a format that says Exact gets the document as it is, and
// then quotes itself: JSON with JSON, the text form of graphs with
// quote marks and the escapes of its own grammar. On top of All
//
//   - Markdown puts each such text in a code span, Code, or Cell in a table;
//   - CSV puts each cell through CSV;
//   - HTML and SVG escape &, <, > and quotation marks as ever.
//
// What goes to stderr goes through Text line by line, or through NewWriter.
//
// Text writes escapes as Go does (\x1b, \u202e, \n), but leaves backslashes as
// they are, so that what has been quoted once is not changed by a second time.
// A name that has such an escape in it as plain letters prints alike: text is
// for people, and JSON has every name exactly.
package quote

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Text returns s as one line of visible characters. It escapes control
// characters, characters that invisibly order or join others (bidirectional
// controls, zero-width characters and other format characters), line and
// paragraph separators, spaces other than U+0020, private-use and unassigned
// characters, and bytes that are not UTF-8. All else stays.
func Text(s string) string { return escaped(s, "") }

// escaped is Text that also leaves the characters in keep.
func escaped(s, keep string) string {
	if plain(s, keep) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case strconv.IsPrint(r) || strings.ContainsRune(keep, r):
			b.WriteString(s[:n])
		default:
			b.WriteString(Escape(r))
		}
		s = s[n:]
	}
	return b.String()
}

// plain reports whether escaped would change nothing.
func plain(s, keep string) bool {
	for _, r := range s {
		if !strconv.IsPrint(r) && !strings.ContainsRune(keep, r) {
			return false
		}
	}
	return utf8.ValidString(s)
}

// Escape writes a character as an ASCII escape: \n, \r, \t, or its number in
// two, four or eight hexadecimal digits.
func Escape(r rune) string {
	switch {
	case r == '\n':
		return `\n`
	case r == '\r':
		return `\r`
	case r == '\t':
		return `\t`
	case r < utf8.RuneSelf:
		return fmt.Sprintf(`\x%02x`, r)
	case r < 1<<16:
		return fmt.Sprintf(`\u%04x`, r)
	}
	return fmt.Sprintf(`\U%08x`, r)
}

// Code returns s as a code span of Markdown, which nothing in s can end, so
// that links, images, HTML, mentions and references in it have no effect. It is
// "" for "", which has no code span.
func Code(s string) string {
	if s == "" {
		return ""
	}
	s = Text(s)
	longest, run := 0, 0
	for i := range len(s) {
		if run++; s[i] != '`' {
			run = 0
		}
		longest = max(longest, run)
	}
	fence := strings.Repeat("`", longest+1)
	if s[0] == '`' || s[len(s)-1] == '`' || s[0] == ' ' && s[len(s)-1] == ' ' { // parsers strip one space from either side
		s = " " + s + " "
	}
	return fence + s + fence
}

// Cell is Code in a table. Pipes become \x7c: parsers differ on the meaning of
// a backslash before a pipe when another precedes it.
func Cell(s string) string { return strings.ReplaceAll(Code(s), "|", `\x7c`) }

// formula lists the characters with which spreadsheets begin a formula,
// including those of East Asian keyboards.
const formula = "=+-@\uff1d\uff0b\uff0d\uff20"

// CSV returns s as a cell that no spreadsheet reads as a formula: if it begins
// like one and is not a number, an apostrophe precedes it.
func CSV(s string) string {
	s = Text(s)
	if s == "" || strings.IndexAny(s, formula) != 0 {
		return s
	}
	if _, err := strconv.ParseInt(s, 10, 64); err == nil {
		return s
	}
	return "'" + s
}

// JSON returns a JSON document in which every character that Text would escape
// in strings is escaped as in JSON, \u202e: it decodes to the same strings.
func JSON(doc []byte) []byte {
	if plain(string(doc), "\n\r\t") {
		return doc
	}
	out := make([]byte, 0, len(doc)+len(doc)/8)
	for len(doc) > 0 {
		r, n := utf8.DecodeRune(doc)
		switch {
		case r < ' ' || strconv.IsPrint(r): // controls are only between values
			out = utf8.AppendRune(out, r)
		case r < 1<<16:
			out = fmt.Appendf(out, `\u%04x`, r)
		default:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		}
		doc = doc[n:]
	}
	return out
}

// NewWriter returns a writer that passes its input through Text, line by line.
// It is for the output of others, such as a library, whose calls must not split
// characters.
func NewWriter(w io.Writer) io.Writer { return writer{w} }

type writer struct{ w io.Writer }

func (w writer) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.w, escaped(string(p), "\n")); err != nil {
		return 0, err
	}
	return len(p), nil
}
