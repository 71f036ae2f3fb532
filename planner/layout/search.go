package layout

import (
	"context"
	"math"
	"slices"
)

// A search looks for a layout no higher than a capacity, as minimalloc does
// (Moffitt, "MiniMalloc: A Lightweight Memory Allocator for
// Hardware-Accelerated Machine Learning", ASPLOS 2023). It places buffers by
// ascending offset, at equal offsets in a fixed order, each on top of what
// already lies under it: every layout can be brought into this form. It leaves
// a branch
//   - where a section's unplaced buffers, from the lowest place that one of
//     them may take, reach over the capacity;
//   - where a buffer is placed so high that an unplaced one fits under it;
//
// and it solves parts that no unplaced buffer joins on their own. Beyond
// minimalloc, it remembers of each branch that failed that its buffer does not
// belong there: until another buffer comes to lie under it, it is barred, and
// the least place that it may then take raises the floors of its sections.
type search struct {
	*problem
	ctx     context.Context
	order   order
	adj     [][]int32 // buffers that live at the same time
	cover   [][]int32 // buffers of each section
	weights []weight

	cap     int64
	off     []int64 // -1: not placed
	place   []place
	rank    []int32 // rank in the order of its part
	total   []int64 // for each section: total size of unplaced buffers
	floors  []floor
	cuts    []int32 // number of unplaced buffers that live on both sides of a section's start
	dirty   []bool
	changed []int32 // sections that are dirty

	work, limit int64 // steps of the loops over buffers and sections
	nodes       int
	look        int64 // the work at which to look at the time
	stopped     bool  // by limit or ctx: no answer

	placed []int32
	trail  []change
	lists  []int32 // the parts and candidates of all open nodes, concatenated
}

// A place is what is known of an unplaced buffer's offset.
type place struct {
	low   int64 // top of the buffers below it: where it lies if it is placed next
	least int64 // no lower offset is left to it; above low: it is barred
}

// A floor is the least offset that a section's unplaced buffers have left, and
// one of them that has it.
type floor struct {
	least int64
	of    int32
}

// A change records what was overwritten: place[i], or floors[^i].
type change struct {
	i     int32
	place place
	floor floor
}

// maxPairs is the largest number of pairs of buffers that live at the same time
// for which the exact search is tried: 4 bytes each, twice.
const maxPairs = 24 << 20

// pairEffort is roughly the cost of listing a pair, in steps of the search.
const pairEffort = 64

// newSearch returns nil if there are more than most pairs.
func (p *problem) newSearch(ctx context.Context, most int64) *search {
	n, sections := len(p.index), len(p.total)
	degree, pairs := p.degrees()
	members := int64(0)
	for i := range n {
		members += int64(p.b[i] - p.a[i])
	}
	if pairs > most || members > most {
		return nil
	}
	s := &search{problem: p, ctx: ctx, adj: make([][]int32, n), cover: make([][]int32, sections),
		off: make([]int64, n), place: make([]place, n), rank: make([]int32, n), total: make([]int64, sections), floors: make([]floor, sections),
		cuts: make([]int32, sections+1), weights: make([]weight, n), dirty: make([]bool, sections)}
	byStart := make([]int32, n)
	room := make([]int32, 2*pairs)
	for i := range byStart {
		byStart[i] = int32(i)
		s.adj[i], room = room[:0:degree[i]], room[degree[i]:]
	}
	slices.SortStableFunc(byStart, func(x, y int32) int { return int(p.a[x]) - int(p.a[y]) })
	var live []int32
	for _, i := range byStart {
		live = slices.DeleteFunc(live, func(j int32) bool { return p.b[j] <= p.a[i] })
		for _, j := range live {
			s.adj[i] = append(s.adj[i], j)
			s.adj[j] = append(s.adj[j], i)
		}
		live = append(live, i)
	}
	for i := range n {
		for k := p.a[i]; k < p.b[i]; k++ {
			s.cover[k] = append(s.cover[k], int32(i))
		}
	}
	return s
}

// degrees returns how many buffers live beside each, and the number of pairs.
func (p *problem) degrees() (degree []int32, pairs int64) {
	started, ended := make([]int32, len(p.total)+1), make([]int32, len(p.total)+1) // before section k, by its start
	for i := range p.index {
		started[p.a[i]+1]++
		ended[p.b[i]]++
	}
	for k := range p.total {
		started[k+1] += started[k]
		ended[k+1] += ended[k]
	}
	degree = make([]int32, len(p.index))
	for i := range degree {
		degree[i] = started[p.b[i]] - ended[p.a[i]] - 1
		pairs += int64(degree[i])
	}
	return degree, pairs / 2
}

// run searches at a capacity, in one order, with at most limit work.
func (s *search) run(capacity int64, o order, limit int64) bool {
	s.cap, s.order, s.limit, s.work, s.look, s.stopped = capacity, o, limit, 0, 0, false
	s.placed, s.trail, s.lists = s.placed[:0], s.trail[:0], s.lists[:0]
	copy(s.total, s.problem.total)
	clear(s.place)
	clear(s.cuts)
	for k, in := range s.cover {
		s.floors[k] = floor{}
		if len(in) > 0 {
			s.floors[k].of = in[0]
		}
	}
	for i := range s.off {
		s.off[i] = -1
		for k := s.a[i] + 1; k < s.b[i]; k++ {
			s.cuts[k]++
		}
		s.lists = append(s.lists, int32(i))
	}
	return s.split(s.lists, 0, int32(len(s.total)))
}

// split solves the parts of the sections [lo,hi), which part's buffers live in.
func (s *search) split(part []int32, lo, hi int32) bool {
	mark, undo, trail := len(s.lists), len(s.placed), len(s.trail)
	for from := lo; from < hi; {
		to := from + 1
		for to < hi && s.cuts[to] > 0 {
			to++
		}
		base := len(s.lists)
		for _, i := range part {
			if s.a[i] >= from && s.a[i] < to {
				s.lists = append(s.lists, i)
			}
		}
		if sub := s.lists[base:]; len(sub) > 0 && !s.solve(s.ranked(sub), from, to) {
			s.unwind(undo, trail)
			s.lists = s.lists[:mark]
			return false
		}
		s.lists = s.lists[:base]
		from = to
	}
	s.lists = s.lists[:mark]
	return true
}

// ranked orders a part by what remains to be placed.
func (s *search) ranked(part []int32) []int32 {
	for _, i := range part {
		s.weights[i] = s.weigh(s.total, i)
	}
	s.order.sort(part, s.weights)
	for k, i := range part {
		s.rank[i] = int32(k)
	}
	return part
}

// solve places the buffers of a part, in the sections [lo,hi). If it returns
// false, nothing is placed; what it barred its caller reverts.
func (s *search) solve(part []int32, lo, hi int32) bool {
	if s.spent() {
		return false
	}
	mark := len(s.lists)
	base := s.candidates(part, lo, hi)
	defer func() { s.lists = s.lists[:mark] }()
	for k := base; k < len(s.lists); k++ {
		i := s.lists[k]
		undo, trail, top := len(s.placed), len(s.trail), len(s.lists)
		fits, joined, hatless := s.put(i)
		if fits && s.rest(part, i, lo, hi, joined) {
			return true
		}
		s.lists = s.lists[:top]
		s.unwind(undo, trail)
		if hatless || s.stopped || !s.bar(i) { // hatless: what lies above it is not the reason
			return false
		}
	}
	return false
}

// clockWork is the work between checks of the time, about a millisecond.
const clockWork = 1 << 18

// spent counts a node and reports whether to stop.
func (s *search) spent() bool {
	s.nodes++
	if s.work > s.limit {
		s.stopped = true
	}
	if s.work >= s.look {
		s.look = s.work + clockWork
		s.stopped = s.stopped || s.ctx.Err() != nil
	}
	return s.stopped
}

// rest solves a part without buffer i, which is placed. joined: no boundary
// between its sections has become free.
func (s *search) rest(part []int32, i, lo, hi int32, joined bool) bool {
	base := len(s.lists)
	for _, j := range part {
		if j != i {
			s.lists = append(s.lists, j)
		}
	}
	sub := s.lists[base:]
	if len(sub) == 0 {
		return true
	}
	if joined {
		return s.solve(sub, lo, hi)
	}
	saved := make([]int32, len(sub))
	for k, j := range sub {
		saved[k] = s.rank[j]
	}
	ok := s.split(sub, lo, hi)
	for k, j := range sub {
		s.rank[j] = saved[k]
	}
	return ok
}

// candidates appends to lists the buffers that may be placed next, by offset
// and rank, and returns the index of the first.
func (s *search) candidates(part []int32, lo, hi int32) int {
	base := len(s.lists)
	s.work += int64(2*len(part)) + int64(hi-lo)
	highest := s.cap
	for _, t := range s.total[lo:hi] { // from the next offset on, all of a section must fit
		highest = min(highest, s.cap-t)
	}
	for _, i := range part { // what fits under another buffer comes first
		highest = min(highest, s.place[i].least+s.size[i]-1)
	}
	for _, i := range part {
		if l := &s.place[i]; l.low <= highest && l.low == l.least {
			s.lists = append(s.lists, i)
		}
	}
	slices.SortFunc(s.lists[base:], func(x, y int32) int {
		switch l, m := s.place[x].low, s.place[y].low; {
		case l < m:
			return -1
		case l > m:
			return 1
		default:
			return int(s.rank[x]) - int(s.rank[y])
		}
	})
	return base
}

// put places a buffer on top of those below it. fits is false if a section can
// no longer hold its buffers; joined is set if unplaced buffers cross all
// boundaries; hatless is set if no unplaced buffer lives beside it.
func (s *search) put(i int32) (fits, joined, hatless bool) {
	s.off[i] = s.place[i].low
	s.placed = append(s.placed, i)
	joined, hatless = true, true
	for k := s.a[i]; k < s.b[i]; k++ {
		s.total[k] -= s.size[i]
		s.soil(k)
		if k > s.a[i] {
			if s.cuts[k]--; s.cuts[k] == 0 {
				joined = false
			}
		}
	}
	s.work += int64(len(s.adj[i])) + 2*int64(s.b[i]-s.a[i])
	top := s.off[i] + s.size[i]
	for _, j := range s.adj[i] {
		if s.off[j] >= 0 {
			continue
		}
		hatless = false
		if p := s.place[j]; p.low < top {
			s.raise(j, place{top, max(top, p.least)})
		}
	}
	return s.refloor(), joined, hatless
}

// bar excludes an unplaced buffer from the offset at which it has failed: it
// will lie on a buffer beside it that is unplaced now. It returns false if that
// leaves too little room in a section.
func (s *search) bar(i int32) bool {
	least := s.cap
	for _, j := range s.adj[i] {
		if s.off[j] < 0 {
			least = min(least, s.place[j].least+s.size[j])
		}
	}
	s.work += int64(len(s.adj[i]))
	s.raise(i, place{s.place[i].low, max(least, s.place[i].least+1)})
	return s.refloor()
}

// raise sets the place of a buffer.
func (s *search) raise(i int32, p place) {
	old := s.place[i]
	s.trail = append(s.trail, change{i: i, place: old})
	s.place[i] = p
	if old.least == p.least {
		return
	}
	s.work += int64(s.b[i] - s.a[i])
	for k, f := range s.floors[s.a[i]:s.b[i]] {
		if f.of == i {
			s.soil(s.a[i] + int32(k))
		}
	}
}

// soil has refloor look at a section.
func (s *search) soil(section int32) {
	if !s.dirty[section] {
		s.dirty[section] = true
		s.changed = append(s.changed, section)
	}
}

// refloor updates the floors of the dirty sections and returns whether all can
// hold their buffers. Floors only rise, until they are unwound.
func (s *search) refloor() bool {
	fits := true
	for _, k := range s.changed {
		s.dirty[k] = false
		if !fits || s.total[k] == 0 {
			continue
		}
		f := s.least(k)
		if f != s.floors[k] {
			s.trail = append(s.trail, change{i: ^k, floor: s.floors[k]})
			s.floors[k] = f
		}
		fits = f.least+s.total[k] <= s.cap
	}
	s.changed = s.changed[:0]
	return fits
}

// least returns a section's floor.
func (s *search) least(section int32) floor {
	was := s.floors[section].least
	f := floor{least: s.cap + 1}
	for n, j := range s.cover[section] {
		if s.off[j] >= 0 {
			continue
		}
		if l := s.place[j].least; l < f.least {
			f = floor{l, j}
			if l <= was {
				s.work += int64(n)
				return f
			}
		}
	}
	s.work += int64(len(s.cover[section]))
	return f
}

// unwind reverts all placements after the first n, and the changes after the
// first trail.
func (s *search) unwind(n, trail int) {
	for len(s.placed) > n {
		i := s.placed[len(s.placed)-1]
		s.placed = s.placed[:len(s.placed)-1]
		s.off[i] = -1
		for k := s.a[i]; k < s.b[i]; k++ {
			s.total[k] += s.size[i]
			if k > s.a[i] {
				s.cuts[k]++
			}
		}
	}
	for len(s.trail) > trail {
		c := &s.trail[len(s.trail)-1]
		s.trail = s.trail[:len(s.trail)-1]
		if c.i < 0 {
			s.floors[^c.i] = c.floor
		} else {
			s.place[c.i] = c.place
		}
	}
}

// searchOrders are the orders that the exact search tries in turn.
var searchOrders = []order{"TWA", "TAW", "WAT", "AWT"}

// glance seeks a layout at the bound in searches that hardly ever go back, in a
// tenth of a second, and returns the remaining effort.
func (s *search) glance(r *Result, effort int64) int64 {
	dive := s.dive()
	s.attempt(r, s.bound, &effort, dive, min(int64(len(searchOrders))*dive, firstSlice))
	return effort
}

// exact lowers r's layout: if a capacity suffices, it tries that alone, else, in
// rounds of increasing work, the bound and heights below the best. left is the
// work of all rounds.
func (s *search) exact(r *Result, target, left int64) {
	dive := s.dive()
	if target > s.bound {
		s.attempt(r, target, &left, dive, left)
		return
	}
	for slice := int64(firstSlice); left > 0 && s.ctx.Err() == nil && slice < math.MaxInt64/8; slice *= 4 {
		from := max(dive, slice/64)
		s.attempt(r, r.Bound, &left, from, slice)
		for step := (r.Height - r.Bound) / 4; step > 0 && left > 0; {
			before := r.Height
			s.attempt(r, max(r.Height-step, r.Bound), &left, from, slice)
			if r.Height == before {
				step /= 2
			}
		}
		if r.Height <= r.Bound {
			return
		}
	}
}

// firstSlice is the work of an attempt in the first round, some 0.1 s.
const firstSlice = 100_000_000

// dive is the work in which a search that never goes back ends.
func (s *search) dive() int64 {
	n := int64(len(s.index))
	work := n*(2*n+int64(len(s.total))) + 10_000
	for i, beside := range s.adj {
		work += int64(len(beside)) * (1 + int64(s.b[i]-s.a[i]))
	}
	return work
}

// attempt searches at a capacity in all orders, with work from the given one
// and increasing, at most budget of what is left. It keeps a layout that it
// finds, or raises the bound if it has proved that there is none.
func (s *search) attempt(r *Result, capacity int64, left *int64, from, budget int64) {
	budget = min(budget, *left)
	for limit := from; budget > 0; limit *= 2 {
		for _, o := range searchOrders {
			ok := s.run(capacity, o, min(limit, budget))
			budget -= s.work
			*left -= s.work
			switch {
			case ok:
				height := int64(0)
				for i := range s.off {
					height = max(height, s.off[i]+s.size[i])
				}
				s.keep(r, s.off, height, exactSearch+" "+string(o))
				return
			case !s.stopped:
				r.Bound = max(r.Bound, capacity+1)
				return
			case budget <= 0 || s.ctx.Err() != nil:
				return
			}
		}
	}
}
