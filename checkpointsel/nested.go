package checkpointsel

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/liveness"
)

// Nested is the choice of segments within segments for one training step, measured on the program
// without checkpoints.
//
// A recomputed segment runs as the model does, and may itself drop what
// segments inside it compute; those are recomputed before their own backward.
// With the levels of the program without checkpoints, less what earlier
// segments have dropped, the cheapest choice for units i and later within a
// segment that ends at k is (Beaumont et al., Optimal checkpointing for
// heterogeneous chains, 2019, with spans of modules in place of layers)
//
//	C(i, k, p) = min of
//	  time(i) + C(i+1, k, p)                     unit i kept, if its levels are at most p
//	  time(i..j) + C(i, j, p) + C(j, k, p+drop)  a segment of i to j, if its first run is at most p
//
// where p is the level that may not be exceeded. C is a step function of p,
// kept as the list of its steps, so that one solution answers every budget.
type Nested struct {
	Units  []Unit
	Fixed  int64 // as of Problem
	Extra  int64 // as in Problem
	Micros int   // micro-batches of a step

	slots   []nestedSlot
	stops   []stop // by the unit after a segment's last
	spans   []span // by first unit, then by end
	from    [][]int32
	loss    int64
	named   map[string]int32 // spans by their modules
	results [2]*curve        // by View
}

// A nestedSlot is a unit that is not in a segment, with its levels.
type nestedSlot struct {
	slot
	before int64   // live bytes at the start of its forward
	cost   float64 // time of its forward
}

// A stop is the end of a segment's recomputation: after the last unit that
// makes something read by a backward in the segment, -1 for none.
type stop struct {
	unit int
	peak int64   // highest level of that unit's forward until then
	cost float64 // its time until then
	last int     // last unit whose backward reads what forward made, -1 for none
}

// A span is a run of units that one segment may cover.
type span struct {
	run
	cost float64 // time of its forward
	by   [2]spanEffect
}

// A spanEffect is a segment's effect on memory, in bytes.
type spanEffect struct {
	drop    int64 // not held between forward and backward
	forward int64 // highest level of a run that drops it
	offset  int64 // level of its recomputation above the first run, all of it dropped
	held    int64 // arguments that nothing else holds: an outermost segment holds them until its backward ends
}

// NewNested measures the step of b; the arguments are those of NewProblem.
func NewNested(b, hooked *train.Build, weight func(call int) int64, extra int64, cost func(*program.Node) float64) *Nested {
	units, runs := Parts(b.Lifted, weight, b.Whole...)
	m := newMeasure(b, units, cost)
	m.unpacked(hooked)
	p := &Nested{Units: units, Fixed: m.fixed, Extra: extra, Micros: max(b.Micros, 1), loss: m.loss, from: make([][]int32, len(units))}
	p.measureSlots(m)
	p.measureStops(m)
	for _, r := range runs {
		s, ok := m.span(r)
		if !ok {
			continue
		}
		for u := r.lo; u < r.hi; u++ {
			s.cost += p.slots[u].cost
		}
		p.from[r.lo] = append(p.from[r.lo], int32(len(p.spans)))
		p.spans = append(p.spans, s)
	}
	return p
}

func (p *Nested) measureSlots(m *measure) {
	p.slots = make([]nestedSlot, len(p.Units))
	after := m.loss // a unit that runs nothing starts where the next does
	for u := len(p.Units) - 1; u >= 0; u-- {
		s := nestedSlot{slot: m.slots[u]}
		for k, i := range m.nodes[u] {
			if k == 0 {
				after = m.levels.Before[i]
			}
			s.cost += m.cost(&m.b.Nodes[i])
		}
		s.before = after
		p.slots[u] = s
	}
}

// measureStops finds, for every end of a segment, the last node that writes
// something its backward reads.
func (p *Nested) measureStops(m *measure) {
	p.stops = make([]stop, len(p.Units)+1)
	for hi := range p.stops {
		s := stop{unit: -1, last: -1}
		for u := range hi {
			if m.takes[u] {
				s.last = u
			}
		}
		if end := m.lastSaving(0, hi); end >= 0 {
			s.unit = m.unitOf[m.b.Nodes[end].Call]
			for _, i := range m.nodes[s.unit] {
				if i > end {
					break
				}
				s.peak, s.cost = max(s.peak, m.levels.Peak[i]), s.cost+m.cost(&m.b.Nodes[i])
			}
		}
		p.stops[hi] = s
	}
}

// span measures a run of units as a segment; it returns false if the segment
// drops nothing.
func (m *measure) span(r run) (span, bool) {
	s := span{run: r}
	dropped, drop, again := m.dropped(r.lo, r.hi)
	start, base := int64(-1), int64(-1)
	for u := r.hi - 1; u >= r.lo && start < 0; u-- {
		start = m.first[u]
	}
	for u := r.lo; u < r.hi && base < 0; u++ {
		if len(m.nodes[u]) > 0 {
			base = m.levels.Before[m.nodes[u][0]]
		}
	}
	if drop[Hoped] == 0 || start < 0 || base < 0 {
		return s, false
	}
	for v := range s.by {
		s.by[v] = spanEffect{drop: drop[v], forward: m.firstRun(r.lo, r.hi, dropped[v]), offset: start - drop[v] - again - base}
	}
	s.by[Sure].held = m.held(r.lo, r.hi)
	return s, true
}

// held returns the bytes that the segment reads from before it and backward
// would free before it reaches the segment's first unit.
func (m *measure) held(lo, hi int) (n int64) {
	seen := map[int32]bool{}
	for u := lo; u < hi; u++ {
		for _, id := range m.reads[u] {
			s := &m.live[id]
			if s.born >= 0 && s.born < lo && (!s.saved || s.backLo > lo) && !seen[id] && m.b.Storages[id].Life == program.Step {
				seen[id] = true
				n += liveness.Rounded(m.b.Storages[id].Bytes)
			}
		}
	}
	return n
}

// Solve returns the segments of least cost whose levels, in the given view,
// stay within budget bytes, outer before inner, that cost, and whether any
// exist.
func (p *Nested) Solve(budget int64, v View) (segs []train.Segment, cost float64, ok bool) {
	if p.Without() <= budget {
		return nil, 0, true
	}
	if v == Sure {
		budget -= p.Extra
	}
	if p.Fixed > budget {
		return nil, 0, false
	}
	f := p.curve(v, budget)
	best := -1
	for i, pt := range f.top[0] {
		if pt.peak*f.grid > budget {
			break
		}
		best = i
	}
	if best < 0 {
		return nil, 0, false
	}
	return f.trace(best), f.top[0][best].cost * float64(p.Micros), true
}

// Without returns the highest level of the step without segments.
func (p *Nested) Without() int64 {
	most := max(p.Fixed, p.loss)
	for i := range p.slots {
		most = max(most, p.slots[i].forward, p.slots[i].backward)
	}
	return most
}

// MinBudget returns the least budget at which Solve finds a choice in the given
// view. Below the one of the Hoped view, no choice fits.
func (p *Nested) MinBudget(v View) int64 {
	f := p.results[v] // whatever its limit, its lists begin with their lowest levels
	if f == nil {
		f = p.curve(v, p.Fixed)
	}
	least := f.top[0][0].peak * f.grid
	if least = max(least, p.Fixed); v == Sure {
		least += p.Extra
	}
	return min(least, p.Without())
}

// curve solves the problem for budgets up to the given one, for later calls
// with smaller ones to share.
func (p *Nested) curve(v View, budget int64) *curve {
	if f := p.results[v]; f == nil || f.limit < budget {
		p.results[v] = solveNested(p, v, budget)
	}
	return p.results[v]
}

// segment names the modules of a span.
func (p *Nested) segment(s int32) train.Segment {
	return train.Segment{Modules: slices.Clone(p.spans[s].modules)}
}

// A planNode is a segment of a plan with those inside it.
type planNode struct {
	span  int32
	inner []*planNode
}

// plan finds the spans of segments and how they nest; it returns false if one
// does not belong to the problem.
func (p *Nested) plan(segs []train.Segment) (out []*planNode, ok bool) {
	if p.named == nil {
		p.named = make(map[string]int32, len(p.spans))
		for i := range p.spans {
			p.named[strings.Join(p.spans[i].modules, " ")] = int32(i)
		}
	}
	var open []*planNode
	for _, s := range segs {
		at, ok := p.named[strings.Join(s.Modules, " ")]
		if !ok {
			return nil, false
		}
		nd := &planNode{span: at}
		for len(open) > 0 && p.spans[open[len(open)-1].span].hi <= p.spans[at].lo {
			open = open[:len(open)-1]
		}
		if len(open) > 0 {
			o := open[len(open)-1]
			o.inner = append(o.inner, nd)
		} else {
			out = append(out, nd)
		}
		open = append(open, nd)
	}
	return out, true
}

// Levels predicts the highest live bytes of forward and backward with the given
// segments, in execution order and outer before inner, and the time of
// recomputation; it returns false if a segment does not belong to the problem.
func (p *Nested) Levels(segs []train.Segment, v View) (peak int64, cost float64, ok bool) {
	nodes, ok := p.plan(segs)
	if !ok {
		return 0, 0, false
	}
	peak, drop := int64(0), int64(0)
	for i := 0; i < len(p.slots); {
		if len(nodes) > 0 && p.spans[nodes[0].span].lo == i {
			s := &p.spans[nodes[0].span]
			in, c := p.levels(nodes[0], v)
			peak = max(peak, s.by[v].forward-drop, in+s.by[v].held-drop)
			cost, drop, i = cost+c, drop+s.by[v].drop, s.hi
			nodes = nodes[1:]
			continue
		}
		peak = max(peak, p.slots[i].forward-drop, p.slots[i].backward-drop)
		i++
	}
	peak = max(peak, p.loss-drop)
	if v == Sure && len(segs) > 0 {
		peak += p.Extra
	}
	return peak, cost * float64(p.Micros), true
}

// levels is Levels for the recomputation of one segment.
func (p *Nested) levels(nd *planNode, v View) (peak int64, cost float64) {
	s := &p.spans[nd.span]
	offset, drop := s.by[v].offset, int64(0)
	nodes := nd.inner
	peak = math.MinInt64
	for i := s.lo; i < s.hi; {
		if len(nodes) > 0 && p.spans[nodes[0].span].lo == i {
			in := &p.spans[nodes[0].span]
			if p.runs(in, s.hi) {
				peak = max(peak, in.by[v].forward+offset-drop)
				cost += in.cost
			}
			most, c := p.levels(nodes[0], v)
			peak, cost, drop, i = max(peak, most-drop), cost+c, drop+in.by[v].drop, in.hi
			nodes = nodes[1:]
			continue
		}
		forward, c, runs := p.unit(i, s.hi)
		if runs {
			peak = max(peak, forward+offset-drop)
			cost += c
		}
		peak = max(peak, p.slots[i].unpacked-drop)
		i++
	}
	return peak, cost
}

// runs reports whether segment s runs in the recomputation of an enclosing one
// that ends at hi: it does unless nothing after s needs its results.
func (p *Nested) runs(s *span, hi int) bool {
	e := &p.stops[hi]
	return s.hi <= e.unit || s.lo <= e.unit && s.hi <= e.last
}

// unit returns the highest level and the time of a unit's forward in the
// recomputation of a segment that ends at hi; false if it does not run.
func (p *Nested) unit(u, hi int) (peak int64, cost float64, runs bool) {
	switch s := &p.stops[hi]; {
	case u > s.unit:
		return 0, 0, false
	case u == s.unit:
		return s.peak, s.cost, true
	}
	return p.slots[u].forward, p.slots[u].cost, true
}

// Sample returns a random choice of segments, for tests.
func (p *Nested) Sample(rng *rand.Rand) []train.Segment {
	return p.sample(nil, rng, 0, len(p.slots), 0.5)
}

// sample adds segments for units lo to hi, which are inside the enclosing ones.
func (p *Nested) sample(out []train.Segment, rng *rand.Rand, lo, hi int, often float64) []train.Segment {
	for i := lo; i < hi; {
		var fits []int32
		for _, s := range p.from[i] {
			if p.spans[s].hi <= hi && p.spans[s].hi-i < hi-lo {
				fits = append(fits, s)
			}
		}
		if len(fits) == 0 || rng.Float64() > often {
			i++
			continue
		}
		s := fits[rng.IntN(len(fits))]
		out = append(out, p.segment(s))
		out = p.sample(out, rng, i, p.spans[s].hi, often*0.8)
		i = p.spans[s].hi
	}
	return out
}
