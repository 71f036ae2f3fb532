package lift

import (
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph"
)

// maxLines bounds the frames of a call that are read: nobody writes Python that nests
// deeper.
const maxLines = 64

// A Line is a line of Python source that was running when the exporter saw a
// call: the line of one frame of the stack.
type Line struct {
	File   string
	Number int
	Text   string // without the spaces around it; "" where the source was not at hand
}

// Lines returns the source lines on the way to a call, those of the model's
// forward first; nil when the file does not say. The exporter keeps frames of
// functions named forward only, and of a statement over several lines the one
// that the call stands in.
func Lines(n *graph.Node) []Line {
	rest := n.MetaValue(keyLines)
	var out []Line
	for rest != "" && len(out) < maxLines {
		var text string
		text, rest, _ = strings.Cut(rest, "\n")
		text = strings.TrimSpace(text)
		if l, ok := frameLine(text); ok {
			out = append(out, l)
			continue
		}
		if n := len(out); n > 0 && out[n-1].Text == "" && strings.Trim(text, "^~ ") != "" {
			out[n-1].Text = text
		}
	}
	return out
}

// frameLine reads the first line that Python writes of a frame:
//
//	File "model.py", line 12, in forward
func frameLine(s string) (Line, bool) {
	s, ok := strings.CutPrefix(s, `File "`)
	if !ok {
		return Line{}, false
	}
	at := strings.LastIndex(s, `", line `)
	if at < 0 {
		return Line{}, false
	}
	number, _, _ := strings.Cut(s[at+len(`", line `):], ",")
	n, err := strconv.Atoi(number)
	return Line{File: s[:at], Number: n}, err == nil && n > 0
}
