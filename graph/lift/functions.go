package lift

import (
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
	for i := range l.Graph.Nodes {
		for _, line := range Lines(&l.Graph.Nodes[i]) {
			if name := ownFunction.FindString(line.Text); name != "" && !seen[name] && len(names) < 4 {
				seen[name] = true
				names = append(names, strings.TrimSuffix(name, "("))
			}
		}
	}
	if len(names) > 0 {
		l.Warnings = append(l.Warnings, graph.Warning{Code: OwnFunction, Message: "autograd functions of the model's own (" + strings.Join(names, ", ") + "): the file shows neither what they save nor their backward pass"})
	}
}
