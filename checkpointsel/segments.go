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

// A Problem is the choice of segments for one training step, measured on the
// program without checkpoints. Bytes are rounded as liveness.Rounded does.
type Problem struct {
	Units []Unit
	Fixed int64 // highest level outside forward and backward: the optimizer's step
	Extra int64 // bytes that the first segment may add to every level: a library's workspace in backward's thread

	slots []slot
	loss  int64    // highest level of the loss and of the start of backward
	segs  []option // feasible segments, by first slot
	from  [][]int  // indices into segs, by first slot
	m     *measure
}

// A slot is a unit or gap with its levels in the program without checkpoints.
type slot struct {
	forward, backward int64 // highest live bytes during the unit's calls
	unpacked          int64 // the same for backward, if hooks unpack what it saved
}

// An option is one segment that a plan may contain.
type option struct {
	lo, hi int       // half-open range of units
	cost   float64   // time of recomputation
	by     [2]effect // indexed by View
	again  int64     // recomputed bytes that a later unit held in forward
}

// An effect is a segment's effect on memory, in bytes.
type effect struct {
	drop    int64 // not held between forward and backward
	forward int64 // highest level of the first run, nothing dropped before it
	redo    int64 // highest level of recomputation and backward, nothing dropped before it
}

// A View is the direction in which levels are rounded where segments interact.
type View int

// The views. Sure levels are upper bounds for the program built for a choice,
// Hoped levels lower bounds: the least cost at Hoped levels bounds the cost of
// every choice.
const (
	Sure View = iota
	Hoped
)

// maxRun bounds the number of units in one segment: longer ones again hold
// everything at once.
const maxRun = 24

// NewProblem measures the step of b; hooked is the same step with hooks on what
// autograd saves (aten.Config.Hooks), as in every segment; extra is
// Problem.Extra. cost gives the time of a program node.
func NewProblem(b, hooked *train.Build, units []Unit, extra int64, cost func(*program.Node) float64) *Problem {
	m := newMeasure(b, units, cost)
	m.unpacked(hooked)
	p := &Problem{Units: units, Fixed: m.fixed, Extra: extra, slots: m.slots, loss: m.loss, from: make([][]int, len(units)), m: m}
	for lo := range units {
		if units[lo].Module == "" {
			continue
		}
		for hi := lo + 1; hi <= len(units) && hi-lo <= maxRun; hi++ {
			if hi-lo > 1 && !units[hi-1].Chains {
				break
			}
			if o, ok := m.option(lo, hi); ok {
				p.from[lo] = append(p.from[lo], len(p.segs))
				p.segs = append(p.segs, o)
			}
		}
	}
	return p
}

// A label is a state of the search: the bytes dropped and the cost of the
// segments so far.
type label struct {
	drop int64
	cost float64
	prev int32 // its predecessor
	seg  int32 // segment that led here, -1 for an ordinary slot
}

// Solve returns the segments of least cost whose levels, in the given view,
// stay within budget bytes, that cost, and whether any exist. It takes
// O(units² · labels) time, where labels are the undominated pairs of bytes
// and time.
func (p *Problem) Solve(budget int64, v View) (segs []train.Segment, cost float64, ok bool) {
	if p.Without() <= budget {
		return nil, 0, true
	}
	if v == Sure {
		budget -= p.Extra
	}
	if p.Fixed > budget {
		return nil, 0, false
	}
	n := len(p.slots)
	all := []label{{prev: -1, seg: -1}}
	at := make([][]int32, n+1)
	at[0] = []int32{0}
	for i := range n {
		at[i] = p.prune(all, at[i])
		for _, li := range at[i] {
			l := all[li]
			s := p.slots[i]
			if s.forward-l.drop <= budget && s.backward-l.drop <= budget {
				all = append(all, label{l.drop, l.cost, li, -1})
				at[i+1] = append(at[i+1], int32(len(all)-1))
			}
			for _, oi := range p.from[i] {
				o := &p.segs[oi]
				if e := &o.by[v]; e.forward-l.drop <= budget && e.redo-l.drop <= budget {
					all = append(all, label{l.drop + e.drop, l.cost + o.cost, li, int32(oi)})
					at[o.hi] = append(at[o.hi], int32(len(all)-1))
				}
			}
		}
	}
	best := int32(-1)
	for _, li := range at[n] {
		if p.loss-all[li].drop > budget {
			continue
		}
		if best < 0 || all[li].cost < all[best].cost {
			best = li
		}
	}
	if best < 0 {
		return nil, 0, false
	}
	return p.trace(all, best), all[best].cost, true
}

// Without returns the highest level of the step without segments.
func (p *Problem) Without() int64 {
	most := max(p.Fixed, p.loss)
	for _, s := range p.slots {
		most = max(most, s.forward, s.backward)
	}
	return most
}

// prune returns the labels of one position that no other dominates.
func (p *Problem) prune(all []label, ids []int32) []int32 {
	slices.SortFunc(ids, func(a, b int32) int {
		x, y := all[a], all[b]
		switch {
		case x.cost != y.cost:
			if x.cost < y.cost {
				return -1
			}
			return 1
		case x.drop != y.drop:
			if x.drop > y.drop {
				return -1
			}
			return 1
		}
		return int(a - b)
	})
	out := ids[:0]
	most := int64(math.MinInt64)
	for _, id := range ids {
		if all[id].drop > most {
			most = all[id].drop
			out = append(out, id)
		}
	}
	return out
}

// trace returns the segments of a label's history, in execution order.
func (p *Problem) trace(all []label, at int32) []train.Segment {
	var out []train.Segment
	for ; at >= 0; at = all[at].prev {
		if all[at].seg < 0 {
			continue
		}
		o := p.segs[all[at].seg]
		var s train.Segment
		for _, u := range p.Units[o.lo:o.hi] {
			s.Modules = append(s.Modules, u.Module)
		}
		out = append(out, s)
	}
	slices.Reverse(out)
	return out
}

// MinBudget returns the least budget at which Solve finds a choice in the given
// view, by bisection. Below the one of the Hoped view, no choice fits.
func (p *Problem) MinBudget(v View) int64 {
	lo, hi := p.Fixed, p.Without()
	for lo < hi {
		mid := lo + (hi-lo)/2
		if _, _, ok := p.Solve(mid, v); ok {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// None, All and Sqrt are the fixed selections.

// All checkpoints every unit that computes something needed by backward.
func (p *Problem) All() []train.Segment {
	var out []train.Segment
	for i, u := range p.Units {
		for _, oi := range p.from[i] {
			if p.segs[oi].hi == i+1 {
				out = append(out, train.Segment{Modules: []string{u.Module}})
			}
		}
	}
	return out
}

// Sqrt checkpoints segments of about the square root of the number of units
// each, where units chain (Chen et al., Training Deep Nets with Sublinear
// Memory Cost, 2016).
func (p *Problem) Sqrt() []train.Segment {
	var modules int
	for _, u := range p.Units {
		if u.Module != "" {
			modules++
		}
	}
	size := max(int(math.Round(math.Sqrt(float64(modules)))), 1)
	var out []train.Segment
	for i := 0; i < len(p.Units); {
		best := -1
		for _, oi := range p.from[i] {
			if p.segs[oi].hi-i <= size {
				best = oi
			}
		}
		if best < 0 {
			i++
			continue
		}
		var s train.Segment
		for _, u := range p.Units[i:p.segs[best].hi] {
			s.Modules = append(s.Modules, u.Module)
		}
		out = append(out, s)
		i = p.segs[best].hi
	}
	return out
}

// A measure holds what options are computed from.
type measure struct {
	b      *train.Build
	units  []Unit
	cost   func(*program.Node) float64
	levels liveness.Levels
	slots  []slot
	fixed  int64
	loss   int64

	at     int     // unit whose backward runs, -1 before the first
	unitOf []int   // unit of each lifted call
	nodes  [][]int // forward nodes of each unit
	first  []int64 // level before a unit's backward starts
	live   []use   // by storage
	byUnit [][]int32
	reads  [][]int32
	takes  []bool // units whose backward reads what forward made
}

// A use is the units that make and read a storage; -1 for none.
type use struct {
	born           int // unit that makes it, forward
	lastForward    int // last unit that reads it in forward; len(units) for the loss
	backLo, backHi int // units that read it backward
	last           int // node that frees it, forward or backward
	saved          bool
	death          int // last forward node that reads it
}

func newMeasure(b *train.Build, units []Unit, cost func(*program.Node) float64) *measure {
	_, steady := liveness.Steps(b.Program)
	n := len(units)
	m := &measure{b: b, units: units, cost: cost, levels: liveness.LevelsOf(steady), at: -1, slots: make([]slot, n), nodes: make([][]int, n),
		first: make([]int64, n), unitOf: make([]int, len(b.Lifted.Graph.Nodes)), live: make([]use, len(b.Storages)), byUnit: make([][]int32, n), reads: make([][]int32, n), takes: make([]bool, n)}
	for u := range units {
		for c := units[u].Lo; c < units[u].Hi; c++ {
			m.unitOf[c] = u
		}
		m.first[u] = -1
	}
	for i := range m.live {
		m.live[i] = use{born: -1, lastForward: -1, backLo: n, backHi: -1, last: -1, death: -1}
	}
	for i := range b.Nodes {
		if b.Last(&b.Nodes[i]) { // earlier micro-batches hold fewer gradients
			m.node(i)
		}
	}
	for id, u := range m.live {
		if u.born >= 0 && b.Storages[id].Life == program.Step {
			m.byUnit[u.born] = append(m.byUnit[u.born], int32(id))
		}
	}
	return m
}

// unpacked records the levels of backward with hooks. Both programs run the
// same calls.
func (m *measure) unpacked(hooked *train.Build) {
	_, steady := liveness.Steps(hooked.Program)
	levels := liveness.LevelsOf(steady)
	at := -1
	for i := range hooked.Nodes {
		nd := &hooked.Nodes[i]
		if nd.Phase != program.Backward || !hooked.Last(nd) {
			continue
		}
		if nd.Call >= 0 {
			at = m.unitOf[nd.Call]
		}
		if at >= 0 {
			m.slots[at].unpacked = max(m.slots[at].unpacked, levels.Peak[i])
		}
	}
}

// node records one node of the program: its level, and what it makes and reads.
func (m *measure) node(i int) {
	nd := &m.b.Nodes[i]
	peak := m.levels.Peak[i]
	u := -1
	if nd.Call >= 0 {
		u = m.unitOf[nd.Call]
	}
	back := nd.Phase == program.Backward
	switch {
	case u < 0 && (nd.Phase == program.Update || nd.Phase == program.ZeroGrad):
		m.fixed = max(m.fixed, peak)
	case u < 0 && back && m.at >= 0: // a gradient is added to its parameter's
		m.slots[m.at].backward = max(m.slots[m.at].backward, peak)
	case u < 0:
		m.loss = max(m.loss, peak)
	case back:
		m.at = u
		m.slots[u].backward = max(m.slots[u].backward, peak)
		if m.first[u] < 0 {
			m.first[u] = m.levels.Before[i]
		}
	default:
		m.slots[u].forward = max(m.slots[u].forward, peak)
		m.nodes[u] = append(m.nodes[u], i)
	}
	for _, ev := range nd.Events {
		if !ev.Free && !back && u >= 0 {
			m.live[ev.Storage].born = u
		}
	}
	for _, ids := range [][]program.StorageID{nd.Reads, nd.Holds} {
		for _, id := range ids {
			m.use(&m.live[id], int32(id), i, u, back)
		}
	}
}

func (m *measure) use(s *use, id int32, i, u int, back bool) {
	s.last = i
	switch {
	case back && u >= 0:
		m.takes[u] = m.takes[u] || s.born >= 0
		s.backLo, s.backHi, s.saved = min(s.backLo, u), max(s.backHi, u), true
	case back:
		s.backHi, s.saved = len(m.units), true
	default:
		s.death = i
		if u < 0 {
			u = len(m.units)
		} else if n := len(m.reads[u]); n == 0 || m.reads[u][n-1] != id {
			m.reads[u] = append(m.reads[u], id)
		}
		s.lastForward = max(s.lastForward, u)
	}
}

// option measures the segment of units [lo, hi); it returns false if the
// segment would drop nothing.
func (m *measure) option(lo, hi int) (option, bool) {
	o := option{lo: lo, hi: hi}
	dropped, drop, again := m.dropped(lo, hi)
	o.again = again
	if drop[Hoped] == 0 {
		return o, false
	}
	for v := range o.by {
		e := &o.by[v]
		e.drop = drop[v]
		e.forward = m.firstRun(lo, hi, dropped[v])
		e.redo = m.secondRun(lo, hi, e.drop+again)
	}
	o.cost = m.redoCost(lo, hi)
	return o, true
}

// dropped lists, for each view, what the segment does not hold between its
// forward and its backward, and sums its bytes, minus those that are held on
// its behalf. again is the bytes that a later unit holds in forward and that
// are recomputed for the segment's own backward.
func (m *measure) dropped(lo, hi int) (dropped [2]map[int32]bool, drop [2]int64, again int64) {
	for v := range dropped {
		dropped[v] = map[int32]bool{}
	}
	for u := lo; u < hi; u++ {
		for _, id := range m.byUnit[u] {
			s := &m.live[id]
			bytes := liveness.Rounded(m.b.Storages[id].Bytes)
			switch {
			case !s.saved || s.backLo < lo || s.backLo >= hi:
				continue
			case s.backHi >= hi:
				again += bytes
				continue
			}
			dropped[Hoped][id] = true
			drop[Hoped] += bytes
			if s.lastForward < hi { // otherwise a later call holds it for a while
				dropped[Sure][id] = true
				drop[Sure] += bytes
			}
		}
	}
	drop[Sure] -= m.keep(lo, hi)
	return dropped, drop, again
}

// keep returns the bytes that the segment reads from before it and that would
// not otherwise be held until its backward.
func (m *measure) keep(lo, hi int) int64 {
	var n int64
	seen := map[int32]bool{}
	for u := lo; u < hi; u++ {
		for _, id := range m.reads[u] {
			s := &m.live[id]
			if s.born >= 0 && s.born < lo && !s.saved && !seen[id] && m.b.Storages[id].Life == program.Step {
				seen[id] = true
				n += liveness.Rounded(m.b.Storages[id].Bytes)
			}
		}
	}
	return n
}

// firstRun returns the level of the forward run that drops what it need not
// keep: each dropped storage dies after its last forward reader.
func (m *measure) firstRun(lo, hi int, dropped map[int32]bool) int64 {
	type death struct {
		node  int
		bytes int64
	}
	deaths := make([]death, 0, len(dropped))
	for id := range dropped {
		deaths = append(deaths, death{m.live[id].death, liveness.Rounded(m.b.Storages[id].Bytes)})
	}
	slices.SortFunc(deaths, func(a, b death) int {
		if a.node != b.node {
			return a.node - b.node
		}
		return int(min(max(a.bytes-b.bytes, -1), 1))
	})
	at, gone, most := 0, int64(0), int64(0)
	for u := lo; u < hi; u++ {
		for _, i := range m.nodes[u] {
			for ; at < len(deaths) && deaths[at].node < i; at++ {
				gone += deaths[at].bytes
			}
			most = max(most, m.levels.Peak[i]-gone)
		}
	}
	return most
}

// secondRun returns the level of recomputation, which grows from the start of
// the segment's backward as the first run grew, and of the backward itself.
func (m *measure) secondRun(lo, hi int, drop int64) int64 {
	start, most := int64(-1), int64(0)
	for u := hi - 1; u >= lo; u-- {
		if m.first[u] >= 0 && start < 0 {
			start = m.first[u]
		}
		most = max(most, m.slots[u].unpacked)
	}
	if start < 0 {
		return most
	}
	base := int64(-1)
	m.again(lo, hi, func(i int) {
		if base < 0 {
			base = m.levels.Before[i]
		}
		most = max(most, start-drop+m.levels.Peak[i]-base)
	})
	return most
}

// redoCost returns the time of recomputation in all micro-batches of a step.
func (m *measure) redoCost(lo, hi int) float64 {
	var t float64
	m.again(lo, hi, func(i int) { t += m.cost(&m.b.Nodes[i]) })
	return t * float64(max(m.b.Micros, 1))
}

// again calls visit for the forward nodes that recomputation runs.
func (m *measure) again(lo, hi int, visit func(node int)) {
	end := m.lastSaving(lo, hi)
	for u := lo; u < hi; u++ {
		for _, i := range m.nodes[u] {
			if i > end {
				return
			}
			visit(i)
		}
	}
}

// lastSaving returns the last node of the segment's forward that writes
// something its backward reads: recomputation stops there.
func (m *measure) lastSaving(lo, hi int) int {
	for u := hi - 1; u >= lo; u-- {
		for k := len(m.nodes[u]) - 1; k >= 0; k-- {
			for _, t := range m.b.Nodes[m.nodes[u][k]].Out {
				if s := &m.live[t.Storage]; s.saved && s.backLo < hi && s.backHi >= lo {
					return m.nodes[u][k]
				}
			}
		}
	}
	return -1
}

// Levels predicts, from the step without checkpoints, the highest live bytes of
// forward and backward with the given segments, and the time of recomputation;
// it returns false if a segment is not one of the problem's options.
func (p *Problem) Levels(segs []train.Segment, v View) (peak int64, cost float64, ok bool) {
	at := map[string]*option{}
	for i := range p.segs {
		o := &p.segs[i]
		at[p.key(o)] = o
	}
	next := 0
	var drop int64
	for i := 0; i < len(p.slots); {
		if next < len(segs) {
			if o := at[strings.Join(segs[next].Modules, " ")]; o != nil && o.lo == i {
				peak = max(peak, o.by[v].forward-drop, o.by[v].redo-drop)
				drop += o.by[v].drop
				cost += o.cost
				i = o.hi
				next++
				continue
			}
		}
		peak = max(peak, p.slots[i].forward-drop, p.slots[i].backward-drop)
		i++
	}
	peak = max(peak, p.loss-drop)
	if v == Sure && len(segs) > 0 {
		peak += p.Extra
	}
	return peak, cost, next == len(segs)
}

func (p *Problem) key(o *option) string {
	names := make([]string, 0, o.hi-o.lo)
	for _, u := range p.Units[o.lo:o.hi] {
		names = append(names, u.Module)
	}
	return strings.Join(names, " ")
}

// Sample returns a random choice of segments, for tests.
func (p *Problem) Sample(rng *rand.Rand) []train.Segment {
	var out []train.Segment
	for i := 0; i < len(p.slots); {
		if k := len(p.from[i]); k > 0 && rng.IntN(2) == 0 {
			o := &p.segs[p.from[i][rng.IntN(k)]]
			var s train.Segment
			for _, u := range p.Units[o.lo:o.hi] {
				s.Modules = append(s.Modules, u.Module)
			}
			out = append(out, s)
			i = o.hi
			continue
		}
		i++
	}
	return out
}
