package lift

import (
	"fmt"
	"path"
	"regexp"
	"strings"

	"github.com/memplan/memplan/graph"
)

// ownFunction is the code of an autograd function of the model's own on a source
// line: Swish.apply(x).
var ownFunction = regexp.MustCompile(`\b[A-Z]\w*\.apply\(`)

// OwnFunction is the code of the warning that a model has such functions: the file
// shows their forward pass alone, neither what they save nor their backward pass.
const OwnFunction = "own-function"

// warnOwnFunctions adds the warning, which names the lines.
func (l *Lifted) warnOwnFunctions() {
	var names []string
	seen := map[string]bool{}
	add := func(name string) {
		if name != "" && !seen[name] && len(names) < 4 {
			names = append(names, name)
		}
		seen[name] = true
	}
	for i := range l.Graph.Nodes {
		n := &l.Graph.Nodes[i]
		trace := n.MetaValue(keyLines)
		if seen[trace] {
			continue
		}
		seen[trace] = true
		lines := Lines(n)
		for _, line := range lines {
			add(strings.TrimSuffix(ownFunction.FindString(line.Text), "("))
		}
		if len(names) == 0 {
			add(ownForward(lines, Scopes(n)))
		}
	}
	if len(names) > 0 {
		l.Warnings = append(l.Warnings, graph.Warning{Code: OwnFunction, Message: "autograd functions of the model's own (" + strings.Join(names, ", ") + "): the file shows neither what they save nor their backward pass"})
	}
}

// ownForward is the place of a forward that is no module's: that of an autograd
// function, which code applies in a function that the file does not show. There is a
// frame more than modules, and none calls the forward of a base class by name.
func ownForward(lines []Line, scopes []string) string {
	if len(scopes) == 0 || len(lines) != len(scopes)+1 {
		return ""
	}
	last := lines[len(lines)-1]
	for _, l := range lines {
		if l.Text == "" || strings.HasPrefix(l.File, "<") || strings.Contains(l.File, "/torch/") || strings.Contains(l.Text, "super") || strings.Contains(l.Text, "forward") {
			return ""
		}
	}
	if last.File == lines[len(lines)-2].File || strings.HasPrefix(last.Text, "return ") { // a module that is no attribute, such as an activation
		return ""
	}
	return fmt.Sprintf("a forward in %s, line %d", path.Base(last.File), last.Number)
}
