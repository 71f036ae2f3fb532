package lift

import (
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph"
)

// maxLines bounds the frames of a call that are read: Python code does not nest
// deeper.
const maxLines = 64

// A Line is the source line of one frame of the Python stack when the exporter
// saw a call.
type Line struct {
	File   string
	Number int
	Text   string // without surrounding spaces; "" if the source was not available
}

// Lines returns the source lines of a call's frames, the model's forward first;
// nil if the file has none. The exporter keeps only frames of functions named
// forward and, of a statement over several lines, the one with the call.
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

// frameLine parses the first line of a frame in a Python traceback:
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
