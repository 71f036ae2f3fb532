package checkpointsel

import (
	"slices"

	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/graph/train"
)

// mostParts bounds how finely nested segments divide a model: units are split
// while there are fewer.
const mostParts = 200

// A run is a range of units that one segment may cover: a module, or modules
// each of which feeds the next.
type run struct {
	lo, hi  int // half-open range of units
	modules []string
}

// Parts divides a model more finely than Units does, for segments within
// segments: units, in order, and the runs of them that one segment may cover.
// A run of a single module comes before one of several over the same units.
func Parts(l *lift.Lifted, weight func(call int) int64, whole ...[2]int) ([]Unit, []run) {
	units := Units(l, weight, whole...)
	for _, s := range []float64{0.06, 0.03, 0.015, 0.007, 0.003} {
		finer := divide(l, weight, s, whole)
		if len(finer) > mostParts {
			break
		}
		units = finer
	}
	p := parts{d: newDivider(l, weight, share), units: units, at: map[int]int{}, starts: make([][]int, len(units)), ends: make([][]int, len(units)+1)}
	for i := range units {
		p.at[units[i].Lo] = i
	}
	p.modules()
	return units, p.runs()
}

// parts finds the runs of units that modules cover.
type parts struct {
	d      *divider
	units  []Unit
	at     map[int]int // unit of each first call
	spans  []run       // single modules
	starts [][]int     // indices into spans, by first unit
	ends   [][]int     // by the unit after the last
}

// modules lists the modules whose calls are those of whole units, each range
// once: of several modules with the same calls, the innermost; units' own
// modules are included.
func (p *parts) modules() {
	seen := map[string]bool{}
	for i := range p.units {
		name := p.units[i].Module
		if name == "" {
			name = p.d.l.Graph.Nodes[p.units[i].Lo].Module
		}
		for ; name != ""; name = parentName(name) {
			if seen[name] {
				break
			}
			seen[name] = true
			p.add(name)
		}
	}
}

// add adds a module that is called once and whose calls are those of units.
func (p *parts) add(name string) {
	l := p.d.l
	lo, hi := train.Range(l, []string{name})
	i, ok := p.at[lo]
	if !ok || !p.d.ran[name] || train.Overwrites(l, lo, hi) >= 0 {
		return
	}
	for c := lo; c < hi; c++ {
		if !train.Within(l.Graph.Nodes[c].Module, name) {
			return
		}
	}
	k := len(p.units)
	if hi < len(l.Graph.Nodes) {
		if k, ok = p.at[hi]; !ok {
			return
		}
	}
	if slices.ContainsFunc(p.starts[i], func(s int) bool { return p.spans[s].hi == k }) {
		return
	}
	p.starts[i], p.ends[k] = append(p.starts[i], len(p.spans)), append(p.ends[k], len(p.spans))
	p.spans = append(p.spans, run{lo: i, hi: k, modules: []string{name}})
}

// runs lists all runs, by their first unit and then by their last, each range
// once, with the fewest modules that cover it.
func (p *parts) runs() []run {
	n := len(p.units)
	best := make([]map[int]chained, n) // by first unit and end
	for i := range best {
		best[i] = map[int]chained{}
	}
	var out []run
	for i := n - 1; i >= 0; i-- {
		for _, s := range p.starts[i] {
			p.extend(best, i, s)
		}
	}
	for i := range n {
		for k := i + 1; k <= n; k++ {
			c, ok := best[i][k]
			if !ok {
				continue
			}
			r := run{lo: i, hi: k}
			for {
				s := &p.spans[c.first]
				if r.modules = append(r.modules, s.modules[0]); s.hi == k {
					break
				}
				c = best[s.hi][k]
			}
			if len(r.modules) == 1 || train.Overwrites(p.d.l, p.units[i].Lo, p.units[k-1].Hi) < 0 {
				out = append(out, r)
			}
		}
	}
	return out
}

// A chained is the first module of a run and the number of its modules.
type chained struct{ first, modules int }

// extend adds the runs that begin with span s at unit i.
func (p *parts) extend(best []map[int]chained, i, s int) {
	keep := func(k, modules int) {
		if c, ok := best[i][k]; !ok || modules < c.modules {
			best[i][k] = chained{s, modules}
		}
	}
	mid := p.spans[s].hi
	keep(mid, 1)
	if mid == len(p.units) {
		return
	}
	for k, next := range best[mid] {
		if p.feeds(s, next.first) {
			keep(k, next.modules+1)
		}
	}
}

// feeds reports whether span b may follow a in one segment.
func (p *parts) feeds(a, b int) bool {
	return p.d.chains(p.asUnit(a), p.asUnit(b))
}

func (p *parts) asUnit(s int) Unit {
	r := &p.spans[s]
	return Unit{Module: r.modules[0], Lo: p.units[r.lo].Lo, Hi: p.units[r.hi-1].Hi}
}

// parentName returns the name of the enclosing module, "" if there is none.
func parentName(module string) string {
	for i := len(module) - 1; i >= 0; i-- {
		if module[i] == '.' {
			return module[:i]
		}
	}
	return ""
}
