package graph

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A tokenKind is a kind of token; punctuation is its own kind.
type tokenKind int

const (
	tokEnd    tokenKind = iota
	tokID               // a bare name
	tokQuoted           // "name" or "string"; text holds it without escapes
	tokSingle           // 'string' of a call's argument
	tokNumber           // with its sign
	tokArrow            // =>
	tokScope            // ::
	tokPunct            // one of <>(){}[],=:.@?
)

func (k tokenKind) String() string {
	return [...]string{"the end", "a name", "a quoted name", "a string", "a number", "=>", "::", "punctuation"}[k]
}

// A token is a word of the text form and its position.
type token struct {
	kind      tokenKind
	text      string
	line, col int // from 1; col counts characters
}

// pos returns the prefix of errors at t.
func (t token) pos() string { return fmt.Sprintf("%d:%d: ", t.line, t.col) }

// is reports whether t is the punctuation s.
func (t token) is(s string) bool { return t.kind == tokPunct && t.text == s }

func (t token) String() string {
	switch t.kind {
	case tokEnd:
		return "the end"
	case tokQuoted:
		return quoted(t.text)
	case tokSingle:
		return "'" + escape(t.text, '\'') + "'"
	}
	return fmt.Sprintf("%q", t.text)
}

// A lexer cuts a text into tokens.
type lexer struct {
	s         string
	at        int // byte
	line, col int
}

// advance moves n bytes on.
func (l *lexer) advance(n int) {
	part := l.s[l.at : l.at+n]
	if i := strings.LastIndexByte(part, '\n'); i >= 0 {
		l.line += strings.Count(part, "\n")
		l.col = 1
		part = part[i+1:]
	}
	l.col += utf8.RuneCountInString(part)
	l.at += n
}

// blank skips space and comments.
func (l *lexer) blank() {
	for l.at < len(l.s) {
		rest := l.s[l.at:]
		switch n := len(rest) - len(strings.TrimLeft(rest, " \t\r\n")); {
		case n > 0:
			l.advance(n)
		case rest[0] == '#':
			n := strings.IndexByte(rest, '\n')
			if n < 0 {
				n = len(rest)
			}
			l.advance(n)
		default:
			return
		}
	}
}

// next returns the next token.
func (l *lexer) next() (token, error) {
	l.blank()
	t := token{line: l.line, col: l.col}
	rest := l.s[l.at:]
	if rest == "" {
		return t, nil
	}
	n := 1
	switch c := rest[0]; {
	case idByte(c, true):
		for n < len(rest) && idByte(rest[n], false) {
			n++
		}
		t.kind = tokID
	case c == '"' || c == '\'':
		return l.quoted(t, c)
	case '0' <= c && c <= '9', c == '-':
		n = numberLen(rest)
		t.kind = tokNumber
	case strings.HasPrefix(rest, "=>"):
		t.kind, n = tokArrow, 2
	case strings.HasPrefix(rest, "::"):
		t.kind, n = tokScope, 2
	case strings.IndexByte("<>(){}[],=:.@?", c) >= 0:
		t.kind = tokPunct
	default:
		r, _ := utf8.DecodeRuneInString(rest)
		return t, fmt.Errorf("%sunexpected character %q", t.pos(), r)
	}
	t.text = rest[:n]
	l.advance(n)
	return t, nil
}

// numberLen returns the length of the number, or the signed inf or nan, that
// s begins with.
func numberLen(s string) int {
	n := 0
	if s[0] == '-' {
		n = 1
	}
	if n < len(s) && idByte(s[n], true) {
		for n < len(s) && idByte(s[n], false) {
			n++
		}
		return n
	}
	digits := func() {
		for n < len(s) && '0' <= s[n] && s[n] <= '9' {
			n++
		}
	}
	digits()
	if n < len(s) && s[n] == '.' {
		n++
		digits()
	}
	if n < len(s) && (s[n] == 'e' || s[n] == 'E') {
		n++
		if n < len(s) && (s[n] == '+' || s[n] == '-') {
			n++
		}
		digits()
	}
	return n
}

// quoted reads a string delimited by c.
func (l *lexer) quoted(t token, c byte) (token, error) {
	t.kind = tokQuoted
	if c == '\'' {
		t.kind = tokSingle
	}
	var b strings.Builder
	for i := l.at + 1; i < len(l.s); i++ {
		switch l.s[i] {
		case c:
			t.text = b.String()
			l.advance(i + 1 - l.at)
			return t, nil
		case '\\':
			if i++; i == len(l.s) {
				break
			}
			i += unescape(&b, l.s[i:])
		default:
			b.WriteByte(l.s[i])
		}
	}
	return t, fmt.Errorf("%sstring without an end", t.pos())
}

// unescape appends the character escaped at the beginning of s, after a
// backslash, and returns the number of bytes it took beyond one.
func unescape(b *strings.Builder, s string) int {
	switch s[0] {
	case 'n':
		b.WriteByte('\n')
	case 'r':
		b.WriteByte('\r')
	case 't':
		b.WriteByte('\t')
	case 'x':
		if n, ok := hexNumber(s[1:], 2); ok {
			b.WriteByte(byte(n))
			return 2
		}
		b.WriteByte('x')
	case 'u':
		return unescapeRune(b, s, 4)
	case 'U':
		return unescapeRune(b, s, 8)
	default:
		b.WriteByte(s[0])
	}
	return 0
}

// unescapeRune appends the character whose number is given by that many digits
// after the first letter of s; if there are none, that letter.
func unescapeRune(b *strings.Builder, s string, digits int) int {
	n, ok := hexNumber(s[1:], digits)
	if !ok || n > utf8.MaxRune || !utf8.ValidRune(rune(n)) {
		b.WriteByte(s[0])
		return 0
	}
	b.WriteRune(rune(n))
	return digits
}

// hexNumber reads the digits that s must begin with.
func hexNumber(s string, digits int) (uint32, bool) {
	if len(s) < digits {
		return 0, false
	}
	n, err := strconv.ParseUint(s[:digits], 16, 32)
	return uint32(n), err == nil
}
