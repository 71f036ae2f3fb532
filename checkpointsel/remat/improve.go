package remat

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"
)

// An improver searches for cheaper plans by ruin and repair: it removes a few
// recomputations that are close together and then, as long as the memory
// exceeds the limit somewhere, makes some output that is resident there be
// recomputed later instead.
type improver struct {
	pl   *plan
	rng  *rand.Rand
	best []int32 // sequence of the cheapest plan found that fits, or nil
	cost int64   // its cost

	across []int32 // scratch: nodes resident across a position
	stamp  []int32 // scratch: by node, the last chain that has it
	chains int32
	again  []edit // scratch

	heat    float64 // average cost increase that a round may make, as a fraction
	crowded bool    // somewhere the plan had no room for an execution
	class   Class
}

// restrict keeps the improver to plans of a class.
func (m *improver) restrict(c Class) { m.class = c }

// admits reports whether the class of plans allows a second execution of v at a
// position.
func (m *improver) admits(v, at int32) bool {
	if m.class == ClassSchedule {
		return true
	}
	b := m.pl.p.backward
	return len(m.pl.runs[v]) == 1 && v < b && int(b) < m.pl.p.n && at > m.pl.runs[b][0]
}

func newImprover(p *problem, seed uint64) *improver {
	return &improver{
		pl:    newPlan(p, p.sequence()),
		rng:   rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15)),
		cost:  infinite,
		stamp: make([]int32, p.n),
	}
}

// A detour makes one output not resident at an overfull position, by executing
// the nodes, in this order, directly before a later position.
type detour struct {
	nodes  []int32
	at     int32
	cost   int64
	relief int64 // at the overfull position
}

// start makes the current plan the one that a cut's solution suggests: what it
// recomputes is executed again directly before its first reader after the cut.
func (m *improver) start(c *cut, s point) {
	m.pl.load(m.pl.p.sequence())
	for i, u := range c.nodes { // descending, so that readers come first
		if !s.recomputed[i] {
			continue
		}
		at := m.pl.nextUse(u, m.pl.runs[c.at][0]+1)
		if at < 0 || !m.admits(u, at) {
			continue
		}
		spots, ok := m.pl.room(at, 1)
		if !ok {
			m.pl.respace()
			at = m.pl.nextUse(u, m.pl.runs[c.at][0]+1)
			spots, _ = m.pl.room(at, 1)
		}
		m.pl.insert(u, spots[0])
	}
	m.pl.commit()
}

// follow makes the current plan the one that a solution of a windows relaxation
// suggests: what it executes again is executed directly before its first reader
// in the window, or else before the next cut.
func (m *improver) follow(cuts []int32, repeats []repeat) {
	m.pl.load(m.pl.p.sequence())
	byWindow := slices.Clone(repeats)
	slices.SortFunc(byWindow, func(a, b repeat) int {
		return cmp.Or(cmp.Compare(b.window, a.window), cmp.Compare(b.node, a.node))
	})
	for _, r := range byWindow {
		at, ok := m.placeOf(cuts, r)
		if !ok {
			continue
		}
		spots, ok := m.pl.room(at, 1)
		if !ok {
			m.pl.respace()
			at, _ = m.placeOf(cuts, r)
			spots, _ = m.pl.room(at, 1)
		}
		m.pl.insert(r.node, spots[0])
	}
	m.pl.commit()
}

// placeOf returns the position before which a repeat is to be executed, false
// if it is useless.
func (m *improver) placeOf(cuts []int32, r repeat) (int32, bool) {
	pl := m.pl
	from := max(pl.runs[cuts[r.window]][0], pl.runs[r.node][0])
	at := pl.nextUse(r.node, from+1)
	if int(r.window)+1 < len(cuts) {
		if next := pl.runs[cuts[r.window+1]][0]; at > next {
			at = next
		}
	}
	return at, at > from
}

// repair removes overfull positions until the plan fits. It gives up, and
// returns false, if the cost reaches limit, if nothing resident can be dropped,
// or after a number of steps proportional to the instance.
func (m *improver) repair(limit int64, respace bool) bool {
	for range 4*m.pl.p.n + 64 {
		if m.pl.cost >= limit {
			return false
		}
		if m.pl.fits() {
			return true
		}
		x := m.pl.mem.argmax()
		d, ok := m.choose(x, limit-m.pl.cost)
		if !ok {
			return false
		}
		spots, ok := m.pl.room(d.at, len(d.nodes))
		if !ok && !respace {
			m.crowded = true
			return false
		}
		if !ok {
			m.pl.respace()
			continue
		}
		for i, v := range d.nodes {
			m.pl.insert(v, spots[i])
		}
	}
	return false
}

// choose returns the best of a random sample of the detours around x.
func (m *improver) choose(x int32, limit int64) (best detour, ok bool) {
	m.resident(x)
	score := math.Inf(1)
	excess := m.pl.peak() - m.pl.p.cap
	for range min(len(m.across), 16) {
		i := m.rng.IntN(len(m.across))
		v := m.across[i]
		m.across[i] = m.across[len(m.across)-1]
		m.across = m.across[:len(m.across)-1]
		d, good := m.around(v, x, limit)
		if !good {
			continue
		}
		s := float64(d.cost) / float64(min(d.relief, excess)) * math.Exp(m.rng.NormFloat64()*0.3)
		if s < score {
			best, score, ok = d, s, true
		}
	}
	return best, ok
}

// resident lists the nodes that are resident across x without being executed
// or read there.
func (m *improver) resident(x int32) {
	m.across = m.across[:0]
	pl := m.pl
	for v := range int32(pl.p.n) {
		runs := pl.runs[v]
		if runs[0] >= x {
			break
		}
		if pl.p.size[v] == 0 || pl.p.once[v] || pl.node[x] == v {
			continue
		}
		use := pl.nextUse(v, x)
		if use <= x {
			continue
		}
		if i := pl.run(v, x); i+1 < len(runs) && runs[i+1] < use {
			continue
		}
		m.across = append(m.across, v)
	}
}

// around returns the cheapest detour for v around x that it finds.
func (m *improver) around(v, x int32, limit int64) (detour, bool) {
	at := m.pl.nextUse(v, x)
	d, ok := m.chain(v, x, at, limit)
	if ok && len(d.nodes) == 1 {
		return d, ok
	}
	// Its inputs may be resident for a while after x.
	for _, u := range m.pl.p.preds[v] {
		end := m.pl.end(u, m.pl.run(u, at))
		if end <= x || end >= at || m.pl.mem.max(end, at)+m.pl.p.size[v] > m.pl.p.cap {
			continue
		}
		if e, good := m.chain(v, x, end, limit); good && (!ok || e.cost < d.cost) {
			d, ok = e, true
		}
	}
	return d, ok
}

// chain returns the detour that executes v directly before position at, after
// executing what its missing inputs require.
func (m *improver) chain(v, x, at int32, limit int64) (detour, bool) {
	m.chains++
	d := detour{nodes: []int32{v}, at: at, relief: m.pl.p.size[v]}
	m.stamp[v] = m.chains
	for i := 0; i < len(d.nodes); i++ {
		w := d.nodes[i]
		if d.cost += m.pl.p.cost[w]; d.cost >= limit || m.pl.p.once[w] || !m.admits(w, at) {
			return d, false
		}
		for _, u := range m.pl.p.preds[w] {
			if m.stamp[u] == m.chains {
				continue
			}
			m.stamp[u] = m.chains
			switch end := m.pl.end(u, m.pl.run(u, at)); {
			case end >= at:
			case end >= x && m.pl.mem.max(end+1, at)+m.pl.p.size[u] <= m.pl.p.cap:
			case end < x && (m.pl.p.once[u] || m.pl.p.size[u]*8 < d.relief):
				d.relief -= m.pl.p.size[u]
			default:
				d.nodes = append(d.nodes, u)
			}
		}
	}
	slices.Sort(d.nodes)
	return d, d.relief > 0
}

// prune removes recomputations that the limit does not require, the costliest
// first and the one of last at the end, unless its node is -1.
func (m *improver) prune(last edit) {
	pl := m.pl
	for _, v := range pl.p.dearest {
		for i := 1; i < len(pl.runs[v]); i++ {
			at := pl.runs[v][i]
			if at != last.at && m.unnecessary(v, i) {
				pl.remove(v, at)
				i--
			}
		}
	}
	if last.node >= 0 {
		if i := pl.run(last.node, last.at) + 1; m.unnecessary(last.node, i) {
			pl.remove(last.node, last.at)
		}
	}
}

// unnecessary reports whether the output can stay resident instead of run i.
func (m *improver) unnecessary(v int32, i int) bool {
	pl := m.pl
	return pl.mem.max(pl.end(v, i-1)+1, pl.runs[v][i])+pl.p.size[v] <= pl.p.cap
}

// extra lists all executions but the first ones.
func (m *improver) extra() []edit {
	m.again = m.again[:0]
	for v, runs := range m.pl.runs {
		for _, at := range runs[1:] {
			m.again = append(m.again, edit{node: int32(v), at: at})
		}
	}
	return m.again
}

// keep records the current plan if it is the best so far.
func (m *improver) keep() {
	if m.pl.fits() && m.pl.cost < m.cost {
		m.cost, m.best = m.pl.cost, m.pl.sequence()
	}
}

// finish repairs the current plan and removes unnecessary recomputations.
func (m *improver) finish(limit int64) {
	if m.repair(limit, true) {
		m.prune(edit{node: -1})
		m.keep()
	}
	m.pl.commit()
}

// anneal runs rounds from the best plan, at first with the improver's heat,
// which then falls.
func (m *improver) anneal(ctx context.Context, rounds int) {
	heat := m.heat
	m.pl.load(m.best)
	for i := range cooling {
		m.heat = heat * float64(cooling-1-i) / cooling
		m.improve(ctx, rounds/cooling)
	}
	m.heat = heat
}

// cooling is the number of heats of one annealing.
const cooling = 10

// improve runs a number of rounds of ruin and repair on the current plan,
// which must fit.
func (m *improver) improve(ctx context.Context, rounds int) {
	for i := range rounds {
		if i%64 == 0 && ctx.Err() != nil {
			return
		}
		m.round()
	}
}

// round is one ruin and repair; it changes nothing unless the plan gets cheaper
// or keeps its cost.
func (m *improver) round() {
	if m.crowded {
		m.pl.respace()
		m.crowded = false
	}
	extra := m.extra()
	if len(extra) == 0 {
		return
	}
	before := m.pl.cost
	allowed := before + int64(m.heat*float64(before)*m.rng.ExpFloat64())
	if m.rng.IntN(2) == 0 {
		m.exchange(extra, allowed)
		return
	}
	m.ruin(extra)
	if !m.repair(allowed+1, false) {
		m.pl.rollback(0)
		return
	}
	m.prune(edit{node: -1})
	m.pl.commit()
	m.keep()
}

// exchange is one round that first recomputes more, somewhere before a random
// recomputation, and then removes what the memory gained there has made
// unnecessary; its own additions only last.
func (m *improver) exchange(extra []edit, allowed int64) {
	e := extra[m.rng.IntN(len(extra))]
	from := m.pl.end(e.node, m.pl.run(e.node, e.at)) // its output is not resident from here to e.at
	if from+1 >= e.at {
		return
	}
	x := from + 1 + m.rng.Int32N(e.at-from-1)
	if m.rng.IntN(2) == 0 {
		x = m.pl.mem.argmaxIn(from+1, e.at)
	}
	m.resident(x)
	if len(m.across) == 0 {
		return
	}
	d, ok := m.around(m.across[m.rng.IntN(len(m.across))], x, m.pl.cost)
	if !ok {
		return
	}
	spots, ok := m.pl.room(d.at, len(d.nodes))
	if !ok {
		m.crowded = true
		return
	}
	for i, v := range d.nodes {
		m.pl.insert(v, spots[i])
	}
	last := len(d.nodes) - 1
	m.prune(edit{node: d.nodes[last], at: spots[last]})
	if m.pl.cost > allowed || !m.pl.fits() && !m.repair(allowed+1, false) {
		m.pl.rollback(0)
		return
	}
	m.pl.commit()
	m.keep()
}

// ruin removes one random recomputation and a few close to it.
func (m *improver) ruin(extra []edit) {
	center := extra[m.rng.IntN(len(extra))].at
	for {
		near := 0
		for i := range extra {
			if distance(extra[i].at, center) < distance(extra[near].at, center) {
				near = i
			}
		}
		r := extra[near]
		if m.rng.IntN(4) > 0 {
			m.pl.remove(r.node, r.at)
		}
		extra[near] = extra[len(extra)-1]
		extra = extra[:len(extra)-1]
		if len(extra) == 0 || m.rng.IntN(3) == 0 {
			return
		}
	}
}

func distance(a, b int32) int32 { return max(a-b, b-a) }
