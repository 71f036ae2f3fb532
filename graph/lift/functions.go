package lift

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
)

// ownFunction matches a source line that applies the model's own autograd
// function: Swish.apply(x).
var ownFunction = regexp.MustCompile(`\b[A-Z]\w*\.apply\(`)

// OwnFunction is the code of the warning that a model has such functions: the file
// shows only their forward pass, neither what they save nor their backward pass.
const OwnFunction = "own-function"

// warnOwnFunctions adds that warning, with the lines.
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
		l.Warnings = append(l.Warnings, graph.Warning{Code: OwnFunction, Message: "autograd functions of the model's own (" + strings.Join(names, ", ") + "): the file shows neither what they save, which is assumed to be their arguments, nor their backward pass"})
	}
}

// ownForward returns the source position of a forward that is not a module's but an
// autograd function's. There is then one frame more than modules, and no frame calls
// a base class's forward by name.
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
	if last.File == lines[len(lines)-2].File || strings.HasPrefix(last.Text, "return ") { // a module that is not an attribute, such as an activation
		return ""
	}
	return fmt.Sprintf("a forward in %s, line %d", path.Base(last.File), last.Number)
}

// ownRegions finds the calls inside the model's own autograd functions, where source
// lines show them: one frame applies the function, and the calls are in the frame below.
// Such calls record nothing. The file does not show what the function saves: it is
// assumed to save its arguments, as most short ones do, and, if it makes more than
// maxOwn calls, also the operands of its last call. If it makes more than maxLong calls,
// each is taken to save what autograd would: the backward of such functions takes memory
// that the file does not show either.
func (l *Lifted) ownRegions() {
	g := l.Graph
	used := l.lastUses()
	for i := 0; i < len(g.Nodes); {
		frame, name := applied(&g.Nodes[i])
		if frame < 0 {
			i++
			continue
		}
		j, line := i+1, 0
		for j < len(g.Nodes) && g.Nodes[j].Module == g.Nodes[i].Module {
			if lines := Lines(&g.Nodes[j]); len(lines) > 0 {
				if !sameCall(&g.Nodes[i], lines, frame) || lines[frame+1].Number < line {
					break
				}
				line = lines[frame+1].Number
			}
			j++
		}
		if r := l.ownRegion(i, j, used); r != nil && j-i <= maxLong {
			if j-i > maxOwn {
				l.saveLast(r)
			}
			r.Name = name
			l.Own = append(l.Own, *r)
		}
		i = j
	}
}

// maxOwn is the largest number of calls of a function that is assumed to save only
// its arguments.
const maxOwn = 8

// maxLong is the largest number of calls of a function that is assumed to save,
// besides, only the operands of its last call: the weights of a weighted sum.
const maxLong = 24

// saveLast adds those operands of a function's last call that its other calls
// made.
func (l *Lifted) saveLast(r *Region) {
	for _, id := range l.Graph.Nodes[r.Last].Inputs {
		if id < 0 {
			continue
		}
		if v := &l.Graph.Values[id]; int(v.Def) >= r.First && v.Type.Elem.IsFloat() {
			r.Saves = append(r.Saves, RecordedSave{Value: id})
		}
	}
}

// applied returns the frame in which code applies an autograd function, and the
// function's name; -1 if there is none, or its calls cannot be told apart.
func applied(n *graph.Node) (frame int, name string) {
	lines := Lines(n)
	if !strings.Contains(n.MetaValue(keyLines), ".apply(") {
		return -1, ""
	}
	for k, line := range lines[:max(len(lines)-1, 0)] {
		if m := ownFunction.FindString(line.Text); m != "" {
			return k, strings.TrimSuffix(m, ".apply(")
		}
	}
	return -1, ""
}

// sameCall reports whether a call of the graph has the given frames, down to
// one.
func sameCall(n *graph.Node, lines []Line, frame int) bool {
	first := Lines(n)
	return len(lines) > frame+1 && slices.Equal(first[:frame+1], lines[:frame+1])
}

// lastUses returns the last call that reads each value; the number of calls if the
// model returns it.
func (l *Lifted) lastUses() []int {
	used := make([]int, len(l.Graph.Values))
	for i := range l.Graph.Nodes {
		for _, id := range l.Graph.Nodes[i].Inputs {
			if id >= 0 {
				used[id] = i
			}
		}
	}
	for _, id := range l.Graph.Outputs {
		if id >= 0 {
			used[id] = len(l.Graph.Nodes)
		}
	}
	return used
}

// ownRegion returns the function that makes the calls [lo, hi); nil if it has
// no operands or no results.
func (l *Lifted) ownRegion(lo, hi int, used []int) *Region {
	g := l.Graph
	r := &Region{Kind: "function", First: lo, Last: hi - 1}
	for i := lo; i < hi; i++ {
		for _, id := range g.Nodes[i].Inputs {
			if id >= 0 && int(g.Values[id].Def) < lo && g.Values[id].Type.Elem.IsFloat() && !slices.Contains(r.Inputs, id) {
				r.Inputs = append(r.Inputs, id)
				r.Saves = append(r.Saves, RecordedSave{Value: id})
			}
		}
		for _, id := range g.Nodes[i].Outputs {
			if id >= 0 && used[id] >= hi && g.Values[id].Type.Elem.IsFloat() {
				r.Outputs = append(r.Outputs, id)
			}
		}
	}
	if len(r.Inputs) == 0 || len(r.Outputs) == 0 {
		return nil
	}
	return r
}
