// Package inert finds effects in output that names from a file could have:
// controls of a terminal, links and images of a comment, scripts of a page. It
// uses the formats' own parsers and shares no code with the quoting.
package inert

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"image/png"
	"io"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	east "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/text"
)

// sgr is a colour: the one escape sequence that memplan writes.
var sgr = regexp.MustCompile("\x1b\\[[0-9;]*m")

// unseen are the characters that move, hide or reorder others.
var unseen = []*unicode.RangeTable{unicode.Cc, unicode.Cf, unicode.Co, unicode.Cs, unicode.Zl, unicode.Zp}

// Text returns what is wrong with lines of text for a terminal: characters
// that are none. Colours pass where they may be.
func Text(out []byte, colors bool) []string {
	s := string(out)
	if colors {
		s = sgr.ReplaceAllString(s, "")
	}
	var faults []string
	for i, r := range s {
		if r == utf8.RuneError && !strings.HasPrefix(s[i:], "\ufffd") {
			faults = append(faults, fmt.Sprintf("byte %#x at %d is no UTF-8: %q", s[i], i, around(s, i)))
		} else if r != '\n' && unicode.In(r, unseen...) {
			faults = append(faults, fmt.Sprintf("%U at %d: %q", r, i, around(s, i)))
		}
	}
	return faults
}

func around(s string, i int) string { return s[max(0, i-30):min(len(s), i+30)] }

// JSON is Text for a JSON document, which must be one.
func JSON(out []byte) []string {
	faults := Text(out, false)
	if !json.Valid(out) {
		faults = append(faults, "not JSON")
	}
	return faults
}

// own are the HTML elements that reports have.
var own = regexp.MustCompile(`^(<!-- memplan:[^>]* -->|<details><summary>[^<]*</summary>|</details>)\s*$`)

// Markdown is Text for a comment, in which GitHub's dialect must see nothing
// that loads, links or calls anyone.
func Markdown(out []byte) []string {
	faults := Text(out, false)
	doc := goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser().Parse(text.NewReader(out))
	_ = ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the visitor has no errors
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Link, *ast.Image, *ast.AutoLink, *ast.RawHTML, *ast.Heading, *ast.Blockquote, *ast.ThematicBreak, *east.Strikethrough, *east.TaskCheckBox:
			faults = append(faults, fmt.Sprintf("%s: %.80q", n.Kind(), n.Text(out))) //nolint:staticcheck // of any node
		case *ast.HTMLBlock:
			if block := string(n.Lines().Value(out)); !own.MatchString(block) {
				faults = append(faults, fmt.Sprintf("HTML %.80q", block))
			}
		case *ast.CodeSpan:
			return ast.WalkSkipChildren, nil
		case *ast.Text:
			if words := string(n.Segment.Value(out)); strings.ContainsAny(words, "@#<[`") || strings.Contains(words, "://") {
				faults = append(faults, fmt.Sprintf("text outside of code: %.80q", words))
			}
		case *east.Table:
			faults = append(faults, cells(n)...)
		}
		return ast.WalkContinue, nil
	})
	return faults
}

// cells returns the rows of a table that are not as long as its first.
func cells(t *east.Table) (faults []string) {
	for row := t.FirstChild(); row != nil; row = row.NextSibling() {
		if row.ChildCount() != t.FirstChild().ChildCount() {
			faults = append(faults, fmt.Sprintf("a row of %d cells, not %d", row.ChildCount(), t.FirstChild().ChildCount()))
		}
	}
	return faults
}

// HTML is Text for a page that is well-formed, loads nothing and runs nothing but
// the script given, if one is; data in JSON is none.
func HTML(out []byte, script string) []string {
	if script != "" {
		out = bytes.Replace(out, []byte("<script>"+script+"</script>"), nil, 1)
	}
	out = jsonScript.ReplaceAll(out, nil)
	d := xml.NewDecoder(bytes.NewReader(out))
	d.Strict, d.AutoClose, d.Entity = false, []string{"meta"}, xml.HTMLEntity
	return append(Text(indented(out), false), elements(d)...)
}

// jsonScript is data that a page carries: without < it cannot end early.
var jsonScript = regexp.MustCompile(`<script type="application/json" id="[a-z-]+">[^<]*</script>`)

// indented is a page without tabs at the beginning of lines, which the library
// that draws writes between attributes.
func indented(out []byte) []byte { return bytes.ReplaceAll(out, []byte("\n\t"), []byte("\n")) }

// SVG is HTML for a drawing, which is XML to the letter.
func SVG(out []byte) []string {
	return append(Text(indented(out), false), elements(xml.NewDecoder(bytes.NewReader(out)))...)
}

// elements returns those that a page should not have.
func elements(d *xml.Decoder) (faults []string) {
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return faults
		}
		if err != nil {
			return append(faults, err.Error())
		}
		e, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		switch e.Name.Local {
		case "script", "link", "img", "image", "a", "iframe", "object", "use", "foreignObject":
			faults = append(faults, "element "+e.Name.Local)
		}
		for _, a := range e.Attr {
			if name := a.Name.Local; name == "src" || name == "href" || strings.HasPrefix(name, "on") {
				faults = append(faults, fmt.Sprintf("<%s %s=%q>", e.Name.Local, name, a.Value))
			}
		}
	}
}

// CSV is Text for a table in which no cell is a formula. Numbers are none.
func CSV(out []byte) []string {
	faults := Text(out, false)
	rows, err := csv.NewReader(bytes.NewReader(out)).ReadAll()
	if err != nil {
		return append(faults, err.Error())
	}
	for _, row := range rows {
		for _, cell := range row {
			if strings.ContainsAny(cell[:min(1, len(cell))], "=+-@\t\r") && !number.MatchString(cell) {
				faults = append(faults, fmt.Sprintf("formula %q", cell))
			}
		}
	}
	return faults
}

var number = regexp.MustCompile(`^[-+]?[0-9]+$`)

// PNG returns an error of the decoder, if there is one.
func PNG(out []byte) []string {
	if _, err := png.Decode(bytes.NewReader(out)); err != nil {
		return []string{err.Error()}
	}
	return nil
}

// Names are names that try each way out of each format, each with a letter at
// both ends so that they are not trimmed away.
func Names() []string {
	return []string{
		"a\x1b[2J\x1b[31mb", "a\x1b]8;;http://evil\x1b\\b", "a\x1b]52;c;ZXZpbA==\x07b", "a\x1b]0;title\x07b", "a\rb\nc", "a\x00b\x07c\x08d\x7f", "a\u009b2Jb\u0085c",
		"a\u202eb\u2066c\u2069d", "a\u200bb\u200fc\ufeffd\u2028e\u2029f", "a\ue000b\U000f0000c\U000e0041d",
		"[x](http://evil/)", "![i](http://evil/x.png)", "@everyone hello", "`a``b```c`", "</code><script>alert(1)</script>", "a|b\\|c\\\\|d", "#1 GH-1 a/b#2", "<!-- x --> -->", "http://evil.example www.evil.example a@evil.example",
		"\n\n# head\n\n- [ ] task\n\n> quote\n\n***\n\n~~x~~ **y** _z_", "```\n</details>\n```", "<img src=x onerror=alert(1)>", "\"'&<b>", "]]><![CDATA[x", "</title></svg><script/>", "</style><style>*{}",
		"=HYPERLINK(\"http://evil\")", "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1+1", "\uff1d1+1", "javascript:alert(1)", "//evil/x", "$(id)`id`;'", "a\xff\xfeb\xed\xa0\x80c", "ünï-日本語-עברית",
	}
}
