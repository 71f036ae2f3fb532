package inert

import (
	"strings"
	"testing"
)

// Each looker finds what it is for, planted in output that is otherwise fine.
func TestFinds(t *testing.T) {
	for _, tt := range []struct {
		name   string
		look   func([]byte) []string
		fine   string // with HERE where a fault goes
		faults []string
	}{
		{"text", func(b []byte) []string { return Text(b, false) }, "line\ngröße § HERE\n", []string{"\x1b[31m", "\r", "\x00", "\x7f", "\u0085", "\u202e", "\u200b", "\ufeff", "\xff", "\ue000", "\t", "\u2028"}},
		{"colours", func(b []byte) []string { return Text(b, true) }, "\x1b[32;1mok\x1b[0m HERE\n", []string{"\x1b[2J", "\x1b]0;x\x07", "\x1b"}},
		{"JSON", JSON, "{\"a\": \"bHERE\"}", []string{"\"", "\u202e"}},
		{"Markdown", Markdown, "<!-- memplan:x -->\n**a: `b`**\n\nHERE\n\n| a | b |\n|---|---|\n| 1 | `[x](y)` |\n\n<details><summary>s</summary>\n\n- `@x`\n\n</details>\n", []string{
			"[x](y)", "![x](y)", "http://x.example", "<img src=x>", "x@y.example", "@all", "#1", "# h", "<script>", "www.x.example", "~~a~~", "> a", "\u202e", "---", "- [ ] x"}},
		{"HTML", func(b []byte) []string { return HTML(b, "own()") }, "<!doctype html>\n<html><head><meta charset=\"utf-8\"></head><body><p>x &lt; y</p>HERE</body></html>", []string{"<script></script>", "<script>own();more()</script>", "<script>own()</script><script>own()</script>", `<script type="application/json" id="x"><b/></script>`, "<img src=x>", "<p onclick=x></p>", "<a href=x></a>", "\x1b", "</p></div>"}},
		{"SVG", SVG, "<svg xmlns=\"http://www.w3.org/2000/svg\"><rect/>HERE</svg>", []string{"<a href=\"x\"/>", "<script/>", "&", "<", "\x01"}},
		{"CSV", CSV, "a,b\n1,-1\nHERE,2\n", []string{"=1+1", "@x", "-a", "+a", "\x1b"}},
	} {
		before, after, _ := strings.Cut(tt.fine, "HERE")
		if faults := tt.look([]byte(before + "x" + after)); len(faults) > 0 {
			t.Errorf("%s: %v in what is fine", tt.name, faults)
		}
		for _, fault := range tt.faults {
			if out := before + fault + after; len(tt.look([]byte(out))) == 0 {
				t.Errorf("%s: nothing found in %q", tt.name, out)
			}
		}
	}
	if len(PNG([]byte("x"))) == 0 {
		t.Error("PNG: text passes")
	}
}
