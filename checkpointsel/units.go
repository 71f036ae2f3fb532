// Package checkpointsel chooses what to keep and what to recompute.
//
// A plan of class (b) checkpoints segments: modules, or runs of modules that
// feed one another. Select finds the segments of least recomputation whose
// step fits a budget, by dynamic programming over module boundaries:
//
//	slots      conv1 bn1 relu maxpool layer1.0 layer1.1 layer1.2 layer2.0 ..  loss
//	segments                          [───────────────]          [──────]
//
// Memory at a slot depends on the segments before it alone: forward because
// nothing later has run, backward because everything later has been let go.
// So the state of the search is the bytes dropped so far and the time spent.
package checkpointsel

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/graph/train"
)

// A Unit is a module that a plan may checkpoint: its calls are contiguous.
// Calls that no unit covers form gaps, with Module "".
type Unit struct {
	Module string
	Lo, Hi int  // half-open range of lifted calls
	Chains bool // reads only the unit before it, so that both may form one segment
}

// share is the share of all calls above which a module is split into its
// children: a plan of about a dozen equal blocks or more.
const share = 0.12

// Units divides the calls of a model into checkpointable modules and gaps, in
// order. weight gives what a call contributes to memory (saved bytes); large
// modules are split into their children, but never between calls that run as a whole, [first, last) each.
func Units(l *lift.Lifted, weight func(call int) int64, whole ...[2]int) []Unit {
	return divide(l, weight, share, whole)
}

// divide is Units with the given share.
func divide(l *lift.Lifted, weight func(call int) int64, part float64, whole [][2]int) []Unit {
	d := newDivider(l, weight, part)
	d.whole = whole
	units := d.split("", 0, len(l.Graph.Nodes))
	for i := range units {
		if d.cut(units[i : i+1]) {
			units[i].Module = ""
		}
	}
	for i := range units {
		if u := &units[i]; u.Module != "" && train.Overwrites(l, u.Lo, u.Hi) >= 0 {
			u.Module = "" // cannot be run again
		}
	}
	for i := range units {
		units[i].Chains = i > 0 && d.chains(units[i-1], units[i])
	}
	return units
}

type divider struct {
	l      *lift.Lifted
	weight func(int) int64
	limit  int64
	ran    map[string]bool // modules whose forward runs
	whole  [][2]int        // calls that run as a whole
}

func newDivider(l *lift.Lifted, weight func(call int) int64, part float64) *divider {
	var total int64
	for i := range l.Graph.Nodes {
		total += weight(i)
	}
	return &divider{l: l, weight: weight, limit: int64(float64(total) * part), ran: scopes(l)}
}

// split divides calls [lo, hi), all within module, into the module's children.
func (d *divider) split(module string, lo, hi int) []Unit {
	var out []Unit
	for i := lo; i < hi; {
		child := d.child(module, i)
		j := i + 1
		for j < hi && (child == "" && d.child(module, j) == "" || child != "" && train.Within(d.l.Graph.Nodes[j].Module, child)) {
			j++
		}
		out = append(out, d.place(child, i, j)...)
		i = j
	}
	return out
}

// place makes a unit of a child's calls, or splits it further.
func (d *divider) place(child string, lo, hi int) []Unit {
	if child == "" || !d.once(child, lo, hi) {
		return []Unit{{Lo: lo, Hi: hi}}
	}
	var w int64
	for i := lo; i < hi; i++ {
		w += d.weight(i)
	}
	if w <= d.limit {
		return []Unit{{Module: child, Lo: lo, Hi: hi}}
	}
	parts := d.split(child, lo, hi)
	if len(parts) == 1 && parts[0].Module == "" || d.cut(parts) {
		return []Unit{{Module: child, Lo: lo, Hi: hi}}
	}
	return parts
}

// cut reports whether a module among units begins or ends between calls that run as a whole.
func (d *divider) cut(units []Unit) bool {
	return slices.ContainsFunc(units, func(u Unit) bool {
		return u.Module != "" && slices.ContainsFunc(d.whole, func(w [2]int) bool {
			return u.Lo < w[1] && u.Hi > w[0] && (u.Lo > w[0] || u.Hi < w[1])
		})
	})
}

// once reports whether the module is called exactly once.
func (d *divider) once(module string, lo, hi int) bool {
	a, b := train.Range(d.l, []string{module})
	return a == lo && b == hi
}

// child returns the child of module that owns call i, "" for its own body. A
// numbered child belongs to a container that runs nothing itself (layer1.0,
// h.3): the name includes the number.
func (d *divider) child(module string, i int) string {
	m := d.l.Graph.Nodes[i].Module
	if m == module || module != "" && !train.Within(m, module) {
		return ""
	}
	rest := m
	if module != "" {
		rest = m[len(module)+1:]
	}
	parts := strings.Split(rest, ".")
	n := 1
	for n < len(parts) && d.unrun(join(module, parts[:n])) {
		n++
	}
	return join(module, parts[:n])
}

func join(module string, parts []string) string {
	s := strings.Join(parts, ".")
	if module == "" {
		return s
	}
	return module + "." + s
}

// unrun reports whether a name is only a list of modules, without calls in its
// scope. If the file has no scopes, a name before a number counts as one.
func (d *divider) unrun(name string) bool { return !d.ran[name] }

// scopes collects the modules whose forward methods run.
func scopes(l *lift.Lifted) map[string]bool {
	ran := map[string]bool{}
	last := ""
	for i := range l.Graph.Nodes {
		n := &l.Graph.Nodes[i]
		if n.Module == last {
			continue
		}
		last = n.Module
		names := lift.Scopes(n)
		if names == nil {
			names = guessScopes(n.Module)
		}
		for _, s := range names {
			ran[s] = true
		}
	}
	return ran
}

// guessScopes lists the prefixes of a module's name that are not followed by a
// number.
func guessScopes(module string) []string {
	parts := strings.Split(module, ".")
	var out []string
	for i := range parts {
		if i+1 == len(parts) || strings.Trim(parts[i+1], "0123456789") != "" {
			out = append(out, strings.Join(parts[:i+1], "."))
		}
	}
	return out
}

// chains reports whether a's last result is the only computed value that b reads, and b
// the only reader of what a computes.
func (d *divider) chains(a, b Unit) bool {
	if a.Module == "" || b.Module == "" || a.Hi != b.Lo {
		return false
	}
	g := d.l.Graph
	link := int32(-1)
	for i := b.Lo; i < b.Hi; i++ {
		for _, id := range g.Nodes[i].Inputs {
			def := g.Values[id].Def
			switch {
			case def < 0 && d.l.Roles[id] != lift.Unknown || int(def) >= b.Lo:
			case int(def) < a.Lo: // an input, or an earlier result
				return false
			case link >= 0 && link != def:
				return false
			default:
				link = def
			}
		}
	}
	for i := b.Hi; i < len(g.Nodes); i++ {
		for _, id := range g.Nodes[i].Inputs {
			if def := int(g.Values[id].Def); def >= a.Lo && def < a.Hi {
				return false
			}
		}
	}
	for _, o := range g.Outputs {
		if def := int(g.Values[o].Def); def >= a.Lo && def < a.Hi {
			return false
		}
	}
	return link >= 0
}
