package checkpointsel

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/kernel"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
	"github.com/memplan/memplan/liveness"
)

// A Selective problem chooses a plan of class (c), for PyTorch's selective
// activation checkpointing: one of class (b) in which segments of a few units
// keep the outputs of some operator calls. Eager mode recomputes every other call
// of such a segment, whether its result is read or not, so that calls are
// independent: what a call costs in memory and saves in time does not depend on
// the choice of others, and the choices for a segment are the undominated sums of
// a knapsack.
//
// It is solved by dynamic programming over the same slots as class (b), on a grid
// of bytes dropped so far.
type Selective struct {
	*Problem
	variants [2][][]variant     // by View and segment: choices of calls, the fewest bytes first
	items    [][]item           // by segment
	known    map[string][][]int // frontiers by bytes and costs of the items
	paths    [2][][]way         // by View and slot; nil: not listed yet
	cells    [][]cell           // of the last search, for the next one
}

// keepMost is the largest number of units of a segment that keeps calls.
const keepMost = 6

// An item is a call that a segment may keep.
type item struct {
	call  aten.Kept
	node  int      // in the program without checkpoints
	bytes [2]int64 // additional bytes held between forward and backward, by View
	cost  float64  // time of its recomputation, in all micro-batches
	outs  []program.StorageID
}

// A variant is a segment with the calls that it keeps.
type variant struct {
	keep []int // indices of the segment's items
	cost float64
	effect
}

// Resolutions of sums of bytes in the searches.
const (
	itemGrains = 4096 // grains of what a segment may keep
	dropGrains = 8192 // grains of what a step may drop
)

// most is the largest number of variants of a segment of one unit, and of
// several.
var most = [2]struct{ one, several int }{Sure: {24, 12}, Hoped: {512, 48}}

// NewSelective adds to p, the problem of the step b, the choice of calls to
// keep. cost gives the time of a program node.
func NewSelective(p *Problem, b *train.Build, cost func(*program.Node) float64) *Selective {
	s := &Selective{Problem: p, items: make([][]item, len(p.segs)), known: map[string][][]int{}}
	for v := range s.variants {
		s.variants[v] = make([][]variant, len(p.segs))
	}
	written := writtenInPlace(b.Program)
	for oi := range p.segs {
		if o := &p.segs[oi]; o.hi-o.lo <= keepMost {
			s.items[oi] = p.m.items(o, written, cost)
			s.segment(oi)
		}
	}
	s.known = nil
	return s
}

// writtenInPlace marks the storages that a node other than their allocating one
// writes, or whose tensor gets other strides in place: PyTorch refuses to
// recompute from such an output.
func writtenInPlace(p *program.Program) []bool {
	written := make([]bool, len(p.Storages))
	for i := range p.Storages {
		written[i] = p.Storages[i].Reshaped
	}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		for _, t := range n.Out {
			if t.Storage != program.None && !allocates(n, t.Storage) {
				written[t.Storage] = true
			}
		}
	}
	return written
}

// items lists the calls of a segment that recomputation runs and a policy can
// keep.
func (m *measure) items(o *option, written []bool, cost func(*program.Node) float64) (out []item) {
	end := m.lastSaving(o.lo, o.hi)
	calls := map[string]int{}
	for u := o.lo; u < o.hi; u++ {
		for k, i := range m.nodes[u] {
			n := &m.b.Nodes[i]
			op := kernel.Dispatched(n.Op)
			at := calls[op]
			calls[op]++
			if i > end || !kernel.Selectable(op) {
				continue
			}
			it := item{call: aten.Kept{Op: op, Call: at}, node: i, cost: cost(n) * float64(max(m.b.Micros, 1))}
			if k > 0 && copiesFor(&m.b.Nodes[m.nodes[u][k-1]], n) {
				it.cost += cost(&m.b.Nodes[m.nodes[u][k-1]]) * float64(max(m.b.Micros, 1))
			}
			if m.keepable(&it, n, o, written) {
				out = append(out, it)
			}
		}
	}
	for i := range out {
		out[i].call.Of = calls[out[i].call.Op]
	}
	return out
}

// copiesFor reports whether node c is a copy of an operand inside the call of
// n, which is kept with it.
func copiesFor(c, n *program.Node) bool {
	return c.Kernel == "copy" && c.Call == n.Call && (c.Op == "contiguous" || strings.HasSuffix(c.Op, "_norm"))
}

// keepable reports whether the outputs of a call can be kept, and counts their
// bytes beyond what is held anyway.
func (m *measure) keepable(it *item, n *program.Node, o *option, written []bool) bool {
	for _, ev := range n.Events {
		st := &m.b.Storages[ev.Storage]
		if ev.Free || st.Life != program.Step || slices.Contains(n.Events, program.Event{Storage: ev.Storage, Free: true}) {
			continue
		}
		if written[ev.Storage] {
			return false
		}
		it.outs = append(it.outs, ev.Storage)
		size := liveness.Rounded(st.Bytes)
		s := &m.live[ev.Storage]
		later := s.lastForward >= o.hi // a call of a later unit holds it for a while
		switch {
		case s.saved && (s.backLo < o.lo || s.backLo >= o.hi || s.backHi >= o.hi): // held for another unit's backward
		case s.saved:
			it.bytes[Hoped] += size
			if !later {
				it.bytes[Sure] += size
			}
		default:
			it.bytes[Sure] += size
			if !later {
				it.bytes[Hoped] += size
			}
		}
	}
	return len(it.outs) > 0
}

// segment makes the variants of a segment.
func (s *Selective) segment(oi int) {
	o := &s.segs[oi]
	for v := range s.variants {
		var list []variant
		for _, keep := range s.frontier(oi, View(v)) {
			list = append(list, s.variant(oi, keep, View(v)))
		}
		n := most[v].one
		if o.hi-o.lo > 1 {
			n = most[v].several
		}
		s.variants[v][oi] = spread(list, n, View(v))
	}
	for i := range s.variants[Sure][oi] {
		s.m.levelsOf(&s.variants[Sure][oi][i], s.items[oi], o)
	}
}

// variant returns a segment with items kept. Its levels are lower bounds:
// whatever is kept, the first run keeps no less, and backward needs what it
// unpacks.
func (s *Selective) variant(oi int, keep []int, v View) variant {
	o := &s.segs[oi]
	x := variant{keep: keep, cost: o.cost, effect: o.by[v]}
	for _, k := range keep {
		x.cost -= s.items[oi][k].cost
		x.drop -= s.items[oi][k].bytes[v]
	}
	x.cost, x.redo = max(x.cost, 0), 0
	for _, sl := range s.slots[o.lo:o.hi] {
		x.redo = max(x.redo, sl.unpacked)
	}
	return x
}

// spread selects n of the variants. In the Hoped view, each selected one stands for
// those before it: as cheap as their cheapest and as small as their smallest.
func spread(list []variant, n int, v View) []variant {
	if len(list) <= n {
		return list
	}
	out := make([]variant, 0, n)
	for i := range n {
		x := list[i*(len(list)-1)/(n-1)]
		if v == Hoped && i > 0 {
			x.drop = list[(i-1)*(len(list)-1)/(n-1)+1].drop
		}
		out = append(out, x)
	}
	return out
}

// levelsOf sets the levels of a variant's first run and recomputation: what is
// kept is not freed in the first, and exists from the start of the second.
func (m *measure) levelsOf(x *variant, items []item, o *option) {
	kept := make(map[int]int64, len(x.keep)) // by node
	outs := map[program.StorageID]bool{}
	later := int64(0) // kept, and not yet made in a first run
	for _, k := range x.keep {
		kept[items[k].node] = items[k].bytes[Sure]
		later += items[k].bytes[Sure]
		for _, id := range items[k].outs {
			outs[id] = true
		}
	}
	x.forward = m.firstRunKeeping(o, outs)
	start, base := int64(-1), int64(-1)
	for u := o.hi - 1; u >= o.lo && start < 0; u-- {
		start = m.first[u]
	}
	m.again(o.lo, o.hi, func(i int) {
		if base < 0 {
			base = m.levels.Before[i]
		}
		bytes, skipped := kept[i]
		later -= bytes
		if !skipped && start >= 0 {
			x.redo = max(x.redo, start-o.by[Sure].drop-o.again+later+m.levels.Peak[i]-base)
		}
	})
}

// firstRunKeeping returns the level of the forward run of a segment that frees
// what it need not keep, but nothing of kept, even if no backward reads it.
func (m *measure) firstRunKeeping(o *option, kept map[program.StorageID]bool) int64 {
	change := map[int]int64{} // by the node after which it happens
	for u := o.lo; u < o.hi; u++ {
		for _, id := range m.byUnit[u] {
			s := &m.live[id]
			size := liveness.Rounded(m.b.Storages[id].Bytes)
			own := s.saved && s.backLo >= o.lo && s.backLo < o.hi && s.backHi < o.hi && s.lastForward < o.hi
			switch {
			case own && !kept[program.StorageID(id)]:
				change[s.death] -= size
			case !s.saved && kept[program.StorageID(id)]:
				change[s.death] += size
			}
		}
	}
	now, high := int64(0), int64(0)
	for u := o.lo; u < o.hi; u++ {
		for _, i := range m.nodes[u] {
			high = max(high, m.levels.Peak[i]+now)
			now += change[i]
		}
	}
	return high
}

// A sum is a choice of items.
type sum struct {
	bytes int64
	cost  float64
	item  int
	prev  *sum
}

// frontier is that of a segment's items: those of equal blocks are one.
func (s *Selective) frontier(oi int, v View) [][]int {
	key := make([]byte, 0, 16*len(s.items[oi])+1)
	key = append(key, byte(v))
	for i := range s.items[oi] {
		it := &s.items[oi][i]
		key = binary.LittleEndian.AppendUint64(key, uint64(it.bytes[v])) //nolint:gosec // any key will do
		key = binary.LittleEndian.AppendUint64(key, math.Float64bits(it.cost))
	}
	list, ok := s.known[string(key)]
	if !ok {
		list = frontier(s.items[oi], v)
		s.known[string(key)] = list
	}
	return list
}

// frontier lists the choices of items that no other undercuts in bytes for as much time, the
// fewest bytes first, beginning with items that take none. Bytes are rounded to a grid, down
// in the Hoped view and up in the other. O(items · grains).
func frontier(items []item, v View) (out [][]int) {
	var total int64
	for i := range items {
		total += items[i].bytes[v]
	}
	grain := max(total/itemGrains, liveness.Round)
	list := []*sum{{item: -1}}
	for i := range items {
		size := items[i].bytes[v] / grain
		if v == Sure {
			size = (items[i].bytes[v] + grain - 1) / grain
		}
		with := make([]*sum, len(list))
		for k, s := range list {
			with[k] = &sum{s.bytes + size, s.cost + items[i].cost, i, s}
		}
		list = undominated(list, with)
	}
	for _, s := range list {
		var keep []int
		for ; s.item >= 0; s = s.prev {
			keep = append(keep, s.item)
		}
		slices.Reverse(keep)
		out = append(out, keep)
	}
	return out
}

// undominated merges two lists in order of bytes.
func undominated(a, b []*sum) []*sum {
	out := make([]*sum, 0, len(a)+len(b))
	for len(a) > 0 || len(b) > 0 {
		from := &a
		if len(a) == 0 || len(b) > 0 && (b[0].bytes < a[0].bytes || b[0].bytes == a[0].bytes && b[0].cost > a[0].cost) {
			from = &b
		}
		if s := (*from)[0]; len(out) == 0 || s.cost > out[len(out)-1].cost {
			out = append(out, s)
		}
		*from = (*from)[1:]
	}
	return out
}

// A cell is the best state of the search in one grain of bytes dropped.
type cell struct {
	cost float64
	drop int64
	by   int32 // segment, -1 for an ordinary slot
	prev int16 // cell before, by grain: there are no more than dropGrains and two
	kind int16 // its variant, -1 for the plain segment
}

// Solve returns the segments of least cost whose levels, in the given view,
// stay within budget bytes, that cost, and whether any exist. In the Hoped view, the cost
// is a lower bound of that of every choice.
func (s *Selective) Solve(budget int64, v View) (segs []train.Segment, cost float64, ok bool) {
	return s.SolveBelow(budget, v, math.Inf(1))
}

// SolveBelow is Solve for a cost below most.
func (s *Selective) SolveBelow(budget int64, v View, most float64) (segs []train.Segment, cost float64, ok bool) {
	if s.Without() <= budget {
		return nil, 0, true
	}
	if v == Sure {
		budget -= s.Extra
	}
	if s.Fixed > budget {
		return nil, 0, false
	}
	t := newTable(s, budget, v)
	t.most = most
	for i := range s.slots {
		t.leave(i)
	}
	n := len(s.slots)
	best := int16(-1)
	for k := range t.at[n] {
		c := &t.at[n][k]
		if !math.IsInf(c.cost, 1) && s.loss-c.drop <= budget && (best < 0 || c.cost < t.at[n][best].cost) {
			best = int16(k) //nolint:gosec // see cell
		}
	}
	if best < 0 {
		return nil, 0, false
	}
	return t.trace(n, best), t.at[n][best].cost, true
}

// A table holds the cells of one search.
type table struct {
	s      *Selective
	budget int64
	v      View
	grain  int64
	lowest int64
	most   float64  // every state costs less
	need   []int64  // by slot, bytes that must have been dropped there for the rest to suffice
	at     [][]cell // by slot and grain
}

// A way leads from a slot to a later one: a segment of one variant.
type way struct {
	drop, level int64 // bytes dropped, and the highest level, nothing dropped before it
	cost        float64
	by          int32 // segment
	kind        int16 // its variant, -1 for the plain segment
	hi          int16 // units that it takes
}

// ways lists, by slot, those of a view, without those that another one undercuts.
func (s *Selective) ways(v View) [][]way {
	if s.paths[v] != nil {
		return s.paths[v]
	}
	out := make([][]way, len(s.slots))
	for i := range out {
		for _, oi := range s.from[i] {
			o := &s.segs[oi]
			e := &o.by[v]
			n := len(out[i])
			out[i] = append(out[i], way{e.drop, max(e.forward, e.redo), o.cost, int32(oi), -1, int16(o.hi - o.lo)}) //nolint:gosec // see maxRun
			for x := range s.variants[v][oi] {
				w := &s.variants[v][oi][x]
				out[i] = append(out[i], way{w.drop, max(w.forward, w.redo), w.cost, int32(oi), int16(x), int16(o.hi - o.lo)}) //nolint:gosec // see most
			}
			kept := out[i][:n]
			all := slices.Clone(out[i][n:])
			for _, x := range all {
				if !slices.ContainsFunc(all, func(y way) bool { return y.cost < x.cost && y.drop >= x.drop && y.level <= x.level }) {
					kept = append(kept, x)
				}
			}
			out[i] = kept
		}
	}
	s.paths[v] = out
	return out
}

func newTable(s *Selective, budget int64, v View) *table {
	var high, low int64
	for u := range s.slots {
		var most, least int64
		for _, oi := range s.from[u] {
			o := &s.segs[oi]
			most, least = max(most, o.by[v].drop), min(least, o.by[v].drop)
			for i := range s.variants[v][oi] {
				most, least = max(most, s.variants[v][oi][i].drop), min(least, s.variants[v][oi][i].drop)
			}
		}
		high, low = high+most, low+least
	}
	high = min(high, s.Without()-low) // no state needs more
	t := &table{s: s, budget: budget, v: v, lowest: low, grain: max((high-low)/dropGrains, liveness.Round)}
	n := int((high-low)/t.grain) + 2
	if t.at = s.cells; t.at == nil {
		t.at = make([][]cell, len(s.slots)+1)
	}
	for i := range t.at {
		t.at[i] = slices.Grow(t.at[i][:0], n)[:n]
		for k := range t.at[i] {
			t.at[i][k] = cell{cost: math.Inf(1)}
		}
	}
	s.cells = t.at
	t.needs()
	t.put(0, cell{prev: -1, by: -1, kind: -1})
	return t
}

// needs finds how much must have been dropped before each slot: the loss is reached with all that
// it must not hold, however much the segments after the slot drop.
func (t *table) needs() {
	n := len(t.s.slots)
	t.need = make([]int64, n+1)
	t.need[n] = t.s.loss - t.budget
	all := t.s.ways(t.v)
	for i := n - 1; i >= 0; i-- {
		t.need[i] = t.need[i+1]
		for _, w := range all[i] {
			t.need[i] = min(t.need[i], t.need[i+int(w.hi)]-w.drop)
		}
	}
}

// Forget releases the memory of searches.
func (s *Selective) Forget() { s.cells, s.paths = nil, [2][][]way{} }

// put adds a state. In the Hoped view, a cell has the least cost and the most bytes
// dropped of all its states.
func (t *table) put(slot int, c cell) {
	if c.drop < t.need[slot] {
		return
	}
	old := &t.at[slot][min(int((c.drop-t.lowest)/t.grain), len(t.at[slot])-1)]
	drop := c.drop
	if t.v == Hoped && !math.IsInf(old.cost, 1) {
		drop = max(drop, old.drop)
	}
	if c.cost < old.cost || c.cost == old.cost && c.drop > old.drop {
		*old = c
	}
	if t.v == Hoped {
		old.drop = drop
	}
}

// leave continues from every state at slot i that is not undercut by one with
// more bytes dropped.
func (t *table) leave(i int) {
	least, ways := math.Inf(1), t.s.ways(t.v)[i]
	for k := len(t.at[i]) - 1; k >= 0; k-- {
		c := t.at[i][k]
		if c.cost >= least {
			continue
		}
		least = c.cost
		t.from(i, ways, int16(k), c) //nolint:gosec // see cell
	}
}

func (t *table) from(i int, ways []way, k int16, c cell) {
	if sl := &t.s.slots[i]; sl.forward-c.drop <= t.budget && sl.backward-c.drop <= t.budget {
		t.put(i+1, cell{c.cost, c.drop, -1, k, -1})
	}
	high := t.budget + c.drop
	for x := range ways {
		if w := &ways[x]; w.level <= high && c.cost+w.cost < t.most {
			t.put(i+int(w.hi), cell{c.cost + w.cost, c.drop + w.drop, w.by, k, w.kind})
		}
	}
}

// trace returns the segments of a state's history, in execution order.
func (t *table) trace(slot int, k int16) []train.Segment {
	var out []train.Segment
	for slot > 0 {
		c := t.at[slot][k]
		if c.by >= 0 {
			seg := t.s.modules(int(c.by))
			if c.kind >= 0 {
				seg.Save = t.s.saved(int(c.by), t.s.variants[t.v][c.by][c.kind].keep)
			}
			out = append(out, seg)
		}
		if slot--; c.by >= 0 {
			slot = t.s.segs[c.by].lo
		}
		k = c.prev
	}
	slices.Reverse(out)
	return out
}

// modules returns a segment that keeps nothing.
func (s *Selective) modules(oi int) (seg train.Segment) {
	o := &s.segs[oi]
	for _, u := range s.Units[o.lo:o.hi] {
		seg.Modules = append(seg.Modules, u.Module)
	}
	return seg
}

// Levels predicts the highest live bytes of forward and backward with the given
// segments, and the time of recomputation; it returns false if a segment does
// not belong to the problem.
func (s *Selective) Levels(segs []train.Segment, v View) (peak int64, cost float64, ok bool) {
	next := 0
	var drop int64
	for i := 0; i < len(s.slots); {
		x, hi := effect{0, s.slots[i].forward, s.slots[i].backward}, i+1
		if next < len(segs) {
			if oi := s.find(i, &segs[next]); oi >= 0 {
				w := s.priced(oi, &segs[next], v)
				x, hi = w.effect, s.segs[oi].hi
				cost += w.cost
				next++
			}
		}
		peak = max(peak, x.forward-drop, x.redo-drop)
		drop += x.drop
		i = hi
	}
	peak = max(peak, s.loss-drop)
	if v == Sure && len(segs) > 0 {
		peak += s.Extra
	}
	return peak, cost, next == len(segs)
}

// find returns the index of a segment if it begins at unit u, else -1.
func (s *Selective) find(u int, seg *train.Segment) int {
	for _, oi := range s.from[u] {
		o := &s.segs[oi]
		if o.hi-o.lo == len(seg.Modules) && slices.EqualFunc(s.Units[o.lo:o.hi], seg.Modules, func(x Unit, name string) bool { return x.Module == name }) {
			return oi
		}
	}
	return -1
}

// index returns the index of a segment, -1 if it does not belong to the
// problem.
func (s *Selective) index(seg *train.Segment) int {
	u := slices.IndexFunc(s.Units, func(x Unit) bool { return x.Module == seg.Modules[0] })
	if u < 0 {
		return -1
	}
	return s.find(u, seg)
}

// priced returns a segment with its cost and its effect on memory.
func (s *Selective) priced(oi int, seg *train.Segment, v View) variant {
	o := &s.segs[oi]
	if len(seg.Save) == 0 {
		return variant{cost: o.cost, effect: o.by[v]}
	}
	x := s.variant(oi, s.kept(oi, seg), v)
	if v == Sure {
		s.m.levelsOf(&x, s.items[oi], o)
	}
	return x
}

// kept lists the items that a segment keeps.
func (s *Selective) kept(oi int, seg *train.Segment) (keep []int) {
	for i := range s.items[oi] {
		c := s.items[oi][i].call
		if slices.ContainsFunc(seg.Save, func(o train.Saved) bool { return o.Op == "aten."+c.Op && slices.Contains(o.Calls, c.Call) }) {
			keep = append(keep, i)
		}
	}
	return keep
}

// Sample returns a random choice of segments and calls, for tests.
func (s *Selective) Sample(rng *rand.Rand) []train.Segment {
	segs := s.Problem.Sample(rng)
	for i := range segs {
		oi, part := s.index(&segs[i]), rng.Float64()
		var keep []int
		for k := range s.items[oi] {
			if rng.Float64() < part {
				keep = append(keep, k)
			}
		}
		segs[i].Save = s.saved(oi, keep)
	}
	return segs
}

// Rates lists, in falling order, the time saved for each byte by every item:
// the rates at which Alike's choice changes.
func (s *Selective) Rates() (out []float64) {
	for oi := range s.items {
		for i := range s.items[oi] {
			if o := &s.segs[oi]; o.hi-o.lo == 1 {
				out = append(out, s.items[oi][i].rate())
			}
		}
	}
	slices.SortFunc(out, func(a, b float64) int { return cmp.Compare(b, a) })
	return slices.Compact(out)
}

// rate returns the time saved for each byte kept.
func (it *item) rate() float64 { return it.cost / float64(max(it.bytes[Sure], 1)) }

// Alike checkpoints every unit that saves memory, and keeps the calls that save
// at least rate of time for each byte.
func (s *Selective) Alike(rate float64) (out []train.Segment) {
	for _, seg := range s.All() {
		oi := s.index(&seg)
		var keep []int
		for k := range s.items[oi] {
			if s.items[oi][k].rate() >= rate {
				keep = append(keep, k)
			}
		}
		seg.Save = s.saved(oi, keep)
		if s.priced(oi, &seg, Sure).drop > 0 {
			out = append(out, seg)
		}
	}
	return out
}

// A Move changes one segment of a choice so that it costs less time and more
// memory: it keeps one more call, or is removed.
type Move struct {
	s    *Selective
	oi   int
	item int // -1: the segment is removed
	rate float64
	// Bytes is how much more the step holds between forward and backward, by the model of the
	// selection.
	Bytes int64
}

// Moves lists the moves of a choice, those that save the most time for their
// bytes first.
func (s *Selective) Moves(segs []train.Segment) (out []Move) {
	for i := range segs {
		oi := s.index(&segs[i])
		if oi < 0 {
			continue
		}
		kept := s.kept(oi, &segs[i])
		for k := range s.items[oi] {
			if !slices.Contains(kept, k) {
				out = append(out, Move{s, oi, k, s.items[oi][k].rate(), s.items[oi][k].bytes[Hoped]})
			}
		}
		x := s.priced(oi, &segs[i], Hoped)
		out = append(out, Move{s, oi, -1, x.cost / float64(max(x.drop, 1)), x.drop})
	}
	slices.SortStableFunc(out, func(a, b Move) int { return cmp.Compare(b.rate, a.rate) })
	return out
}

// Kind is alike for moves in equal blocks: the seconds that it saves for a byte, to seven
// digits, and the bytes, negative where it removes a segment.
func (m Move) Kind() [2]float64 {
	bytes := float64(m.Bytes)
	if m.item < 0 {
		bytes = -bytes
	}
	return [2]float64{float64(float32(m.rate)), bytes}
}

// Apply returns the choice with the move made, nil if its segment is gone.
func (m Move) Apply(segs []train.Segment) []train.Segment {
	i := slices.IndexFunc(segs, func(x train.Segment) bool { return m.s.index(&x) == m.oi })
	if i < 0 {
		return nil
	}
	out := slices.Clone(segs)
	if m.item < 0 {
		return slices.Delete(out, i, i+1)
	}
	keep := append(m.s.kept(m.oi, &segs[i]), m.item)
	slices.Sort(keep)
	out[i].Save = m.s.saved(m.oi, keep)
	return out
}

// saved returns a choice of items by operator, as plans have it.
func (s *Selective) saved(oi int, keep []int) (out []train.Saved) {
	for _, k := range keep {
		c := s.items[oi][k].call
		op := "aten." + c.Op
		i := slices.IndexFunc(out, func(o train.Saved) bool { return o.Op == op })
		if i < 0 {
			i = len(out)
			out = append(out, train.Saved{Op: op, Of: c.Of})
		}
		out[i].Calls = append(out[i].Calls, c.Call)
	}
	slices.SortFunc(out, func(a, b train.Saved) int { return cmp.Compare(a.Op, b.Op) })
	return out
}
