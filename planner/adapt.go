package planner

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/graph/train"
)

// ParseLoRA parses a description of adapters, r=16,target=q_proj,v_proj: the
// rank, the modules (names or their last components, or all-linear), and
// dropout=P. Alpha, which costs no memory, is allowed too.
func ParseLoRA(text string) (*train.LoRA, error) {
	l := &train.LoRA{}
	key := ""
	for _, item := range strings.Split(text, ",") {
		val := item
		if k, v, ok := strings.Cut(item, "="); ok {
			key, val = k, v
		}
		var err error
		switch key {
		case "r":
			l.Rank, err = strconv.ParseInt(val, 10, 64)
		case "target":
			l.Targets = append(l.Targets, val)
		case "dropout":
			l.Dropout, err = strconv.ParseFloat(val, 64)
		case "alpha":
			_, err = strconv.ParseFloat(val, 64)
		default:
			err = fmt.Errorf("unknown key %q", key)
		}
		if err != nil || val == "" {
			return nil, fmt.Errorf("%q: want r=RANK,target=MODULE,.. and if needed dropout=P", text)
		}
	}
	if l.Rank < 1 || l.Rank > 1<<20 || len(l.Targets) == 0 || !(l.Dropout >= 0 && l.Dropout < 1) {
		return nil, fmt.Errorf("%q: want a rank r from 1 on, a target, and a dropout below 1", text)
	}
	return l, nil
}

// frozen returns the parameters that require no gradient. A pattern is a
// parameter, a module with everything in it, or a shell pattern over names, in
// which * also crosses dots. Each must match some parameter. A parameter with
// several names is frozen only if the patterns match all of them: the file does
// not show which one PyTorch lists, and training it is the larger answer. A
// warning names those that are matched in part.
func (m *Model) frozen(patterns []string) (map[string]bool, []graph.Warning, error) {
	names := m.parameterNames()
	for _, p := range patterns {
		if _, err := path.Match(p, ""); err != nil {
			return nil, nil, fmt.Errorf("--freeze %q: %w", p, err)
		}
		if !slices.ContainsFunc(slices.Collect(maps.Values(names)), func(all []string) bool {
			return slices.ContainsFunc(all, func(n string) bool { return matches(p, n) })
		}) {
			return nil, nil, fmt.Errorf("--freeze %q: no parameter or module is called so", p)
		}
	}
	off := map[string]bool{}
	var notes []graph.Warning
	for _, name := range slices.Sorted(maps.Keys(names)) {
		left := slices.DeleteFunc(slices.Clone(names[name]), func(n string) bool {
			return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, n) })
		})
		switch {
		case len(left) == 0:
			off[name] = true
		case len(left) < len(names[name]):
			notes = append(notes, graph.Warning{Code: "tied-parameter", Message: fmt.Sprintf("the parameter %s is tied: to freeze it, give --freeze %s, too", name, strings.Join(left, " --freeze "))})
		}
	}
	return off, notes, nil
}

// matches reports whether a pattern of --freeze matches a parameter.
func matches(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return err == nil && ok || train.Within(name, pattern)
}

// parameterNames lists the possible names of each parameter of the file: its
// name, and the name it has in each module that uses it. A tied parameter, such
// as an output layer's weight that is also an embedding's, has several, of
// which the file shows one.
func (m *Model) parameterNames() map[string][]string {
	g := m.lifted.Graph
	names := map[string][]string{}
	for i := range g.Values {
		if n := g.Values[i].Name; m.lifted.Roles[i] == lift.Parameter {
			names[n] = []string{n}
		}
	}
	for i := range g.Nodes {
		n := &g.Nodes[i]
		for _, id := range n.Inputs {
			if m.lifted.Roles[id] == lift.Parameter && n.Module != "" {
				name := g.Values[id].Name
				alias := n.Module + "." + name[strings.LastIndexByte(name, '.')+1:]
				if !slices.Contains(names[name], alias) {
					names[name] = append(names[name], alias)
				}
			}
		}
	}
	return names
}
