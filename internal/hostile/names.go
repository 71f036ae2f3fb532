package main

import (
	"math/rand/v2"
	"strings"
)

// marker is in every hostile name that would be live in HTML or Markdown; the
// checks look for it there.
const marker = "hostile.example"

// hostileNames are texts that a terminal, a page, a pull request, a table or a
// format string would obey.
var hostileNames = []string{
	"\x1b[2J\x1b[31mred", "\x1b]0;title\x07", "\x1b]8;;http://" + marker + "\x1b\\link\x1b]8;;\x1b\\", "\x1bP1$r\x1b\\", "\x1bc",
	"\u009b2J", "\u0090q\u009c", "\u0085next", "\u061c\u200e\u200fmarks", "\u202egnp.evil", "\u2066isolate\u2069", "\u2028line\u2029par",
	"nul\x00byte", "line\nbreak", "line\r\nbreak", "\rback", "tab\there", "\vvt\ff", "\bback\b\b\b", "\a", "\x7fdel",
	"bad\xff\xfeutf8", "\xc3", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc0\xafover",
	"![x](http://" + marker + "/x.png)", "[click](http://" + marker + "/)", "@hostile.example", "<img src=x onerror=hostile.example>", "<script>hostile.example</script>",
	"</code></pre><h1>hostile.example", "`![x](http://" + marker + "/)`", "``` \n![x](http://" + marker + ")", "a|b|![x](http://" + marker + "/)", "`|![x](http://" + marker + "/)|`",
	"# heading http://" + marker, "<!-- memplan:check -->", "-->hostile.example", "]]><hostile.example>", "&lt;hostile.example&gt;", "http://" + marker, "#1 GH-1 hostile.example", "www." + marker,
	"=cmd|'/c calc'!A1", "+1+1", "-1", "@SUM(1)", "a,b\"c", "\"quoted\"", "'single'", "a;b",
	"%s%d%n%v%!x", "%", "${HOME}", "$(id)", "`id`", "../../outside/secret.json", "/", "\\", "C:\\x", ".", "..", "", " ", "  lead", "trail  ",
	"::error file=x::hostile.example", "##vso[task.complete]", "::set-output name=a::b",
	"ünï", "日本語", "\u200bzero", "a\u0300\u0301\u0302\u0303\u0304\u0305\u0306", "\U0001F4A9", "\ufeffbom", "\ufffe", "\U000e0041tag",
	"true", "null", "NaN", "1e999", "__proto__", "constructor",
}

// hostileName is one of the list, joined to another or repeated now and then.
func hostileName(r *rand.Rand) string {
	s := pick(r, hostileNames)
	switch r.IntN(12) {
	case 0:
		return s + pick(r, hostileNames)
	case 1:
		return strings.Repeat(s, 1+r.IntN(50))
	case 2:
		return strings.Repeat("a", 1+r.IntN(5000)) + s
	case 3:
		return "net." + s + ".weight"
	}
	return s
}

// hostileInts are numbers at and beyond what is reasonable.
var hostileInts = []int64{0, -1, 1, 2, 3, 7, 1 << 16, 1<<31 - 1, 1 << 31, -1 << 31, 1 << 32, 1<<53 + 1, 1 << 40, 1 << 62, 1<<63 - 1, -1 << 63, 1000003, 100000}

// fileName makes a hostile text a name that a file may have.
func fileName(s string) string {
	s = strings.NewReplacer("/", "_", "\x00", "_").Replace(s)
	if len(s) > 200 {
		s = s[:200]
	}
	if s == "" || s == "." || s == ".." {
		return "_"
	}
	return s
}
