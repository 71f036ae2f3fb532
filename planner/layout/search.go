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
// and it solves parts that no unplaced buffer joins on their own.
type search struct {
	*problem
	ctx   context.Context
	order order
	adj   [][]int32 // buffers that live at the same time
	cover [][]int32 // buffers of each section

	cap          int64
	off          []int64 // -1: not placed
	low          []int64 // top of the buffers below it
	rank         []int32 // rank in the order of its part
	total, floor []int64 // for each section: total size of unplaced buffers, the least low among them
	cuts         []int32 // number of unplaced buffers that live on both sides of a section's start
	weights      []weight
	dirty        []bool

	work, limit int64 // steps of the loops over buffers and sections
	nodes       int
	stopped     bool // by limit or ctx: no answer

	placed []int32
	trail  []change
	lists  []int32 // the parts and candidates of all open nodes, concatenated
}

// A change records what a placement overwrote: low[i], or floor[^i].
type change struct {
	i   int32
	old int64
}

// maxPairs is the largest number of pairs of buffers that live at the same time
// for which the exact search is tried: 4 bytes each, twice.
const maxPairs = 24 << 20

// pairEffort is roughly the cost of listing a pair, in steps of the search.
const pairEffort = 64

// newSearch returns nil if there are more than most pairs.
func (p *problem) newSearch(ctx context.Context, most int64) *search {
	n, sections := len(p.index), len(p.total)
	s := &search{problem: p, ctx: ctx, adj: make([][]int32, n), cover: make([][]int32, sections),
		off: make([]int64, n), low: make([]int64, n), rank: make([]int32, n), total: make([]int64, sections), floor: make([]int64, sections),
		cuts: make([]int32, sections+1), weights: make([]weight, n), dirty: make([]bool, sections)}
	byStart := make([]int32, n)
	members := int64(0)
	for i := range byStart {
		byStart[i] = int32(i)
		members += int64(p.b[i] - p.a[i])
	}
	if members > most {
		return nil
	}
	slices.SortStableFunc(byStart, func(x, y int32) int { return int(p.a[x]) - int(p.a[y]) })
	pairs := int64(0)
	var live []int32
	for _, i := range byStart {
		live = slices.DeleteFunc(live, func(j int32) bool { return p.b[j] <= p.a[i] })
		if pairs += int64(len(live)); pairs > most {
			return nil
		}
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

// run searches at a capacity, in one order, with at most limit work.
func (s *search) run(capacity int64, o order, limit int64) bool {
	s.cap, s.order, s.limit, s.work, s.stopped = capacity, o, limit, 0, false
	s.placed, s.trail, s.lists = s.placed[:0], s.trail[:0], s.lists[:0]
	copy(s.total, s.problem.total)
	clear(s.floor)
	clear(s.low)
	clear(s.cuts)
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
		if sub := s.lists[base:]; len(sub) > 0 && !s.solve(s.ranked(sub), from, to, 0, 0) {
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

// solve places the buffers of a part, in the sections [lo,hi), at offset or
// above; at offset itself only those from rank on. If it returns false, nothing
// is placed.
func (s *search) solve(part []int32, lo, hi int32, offset int64, rank int32) bool {
	if s.spent() {
		return false
	}
	mark := len(s.lists)
	base := s.candidates(part, lo, hi, offset, rank)
	defer func() { s.lists = s.lists[:mark] }()
	for k := base; k < len(s.lists); k++ {
		i := s.lists[k]
		undo, trail, top := len(s.placed), len(s.trail), len(s.lists)
		fits, joined, hatless := s.place(i)
		if fits && s.rest(part, i, lo, hi, joined) {
			return true
		}
		s.lists = s.lists[:top]
		s.unwind(undo, trail)
		if hatless || s.stopped { // what lies above it is not the reason
			return false
		}
	}
	return false
}

// spent counts a node and reports whether to stop.
func (s *search) spent() bool {
	s.nodes++
	if s.work > s.limit || s.nodes&1023 == 0 && s.ctx.Err() != nil {
		s.stopped = true
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
		return s.solve(sub, lo, hi, s.off[i], s.rank[i])
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
func (s *search) candidates(part []int32, lo, hi int32, offset int64, rank int32) int {
	base := len(s.lists)
	s.work += int64(2*len(part)) + int64(hi-lo)
	highest := s.cap
	for _, t := range s.total[lo:hi] { // from the next offset on, all of a section must fit
		highest = min(highest, s.cap-t)
	}
	for _, i := range part { // what fits under another buffer comes first
		highest = min(highest, s.low[i]+s.size[i]-1)
	}
	for _, i := range part {
		if l := s.low[i]; l <= highest && (l > offset || l == offset && s.rank[i] >= rank) {
			s.lists = append(s.lists, i)
		}
	}
	slices.SortFunc(s.lists[base:], func(x, y int32) int {
		switch {
		case s.low[x] != s.low[y]:
			if s.low[x] < s.low[y] {
				return -1
			}
			return 1
		default:
			return int(s.rank[x]) - int(s.rank[y])
		}
	})
	return base
}

// place puts a buffer on top of those below it. fits is false if a section can
// no longer hold its buffers; joined is set if unplaced buffers cross all
// boundaries; hatless is set if no unplaced buffer lives beside it.
func (s *search) place(i int32) (fits, joined, hatless bool) {
	s.off[i] = s.low[i]
	s.placed = append(s.placed, i)
	joined, hatless = true, true
	for k := s.a[i]; k < s.b[i]; k++ {
		s.total[k] -= s.size[i]
		s.dirty[k] = true
		if k > s.a[i] {
			if s.cuts[k]--; s.cuts[k] == 0 {
				joined = false
			}
		}
	}
	s.work += int64(len(s.adj[i])) + 2*int64(s.b[i]-s.a[i])
	top := s.off[i] + s.size[i]
	from, to := s.a[i], s.b[i]
	for _, j := range s.adj[i] {
		if s.off[j] >= 0 {
			continue
		}
		hatless = false
		if old := s.low[j]; old < top {
			s.trail = append(s.trail, change{j, old})
			s.low[j] = top
			s.work += int64(s.b[j] - s.a[j])
			for k := s.a[j]; k < s.b[j]; k++ {
				if s.floor[k] >= old {
					s.dirty[k] = true
				}
			}
			from, to = min(from, s.a[j]), max(to, s.b[j])
		}
	}
	return s.refloor(from, to), joined, hatless
}

// refloor updates the floors of the dirty sections of [from,to).
func (s *search) refloor(from, to int32) bool {
	fits := true
	for k := from; k < to; k++ {
		if !s.dirty[k] {
			continue
		}
		s.dirty[k] = false
		if !fits || s.total[k] == 0 {
			continue
		}
		s.work += int64(len(s.cover[k]))
		least := s.cap + 1
		for _, j := range s.cover[k] {
			if s.off[j] < 0 && s.low[j] < least {
				least = s.low[j]
			}
		}
		if least != s.floor[k] {
			s.trail = append(s.trail, change{^k, s.floor[k]})
			s.floor[k] = least
		}
		fits = least+s.total[k] <= s.cap
	}
	return fits
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
		c := s.trail[len(s.trail)-1]
		s.trail = s.trail[:len(s.trail)-1]
		if c.i < 0 {
			s.floor[^c.i] = c.old
		} else {
			s.low[c.i] = c.old
		}
	}
}

// searchOrders are the orders that the exact search tries in turn.
var searchOrders = []order{"TWA", "TAW", "WAT", "AWT"}

// exact lowers r's layout in rounds of increasing work: first it tries the
// target, then, unless that is a capacity, heights below the best. effort is
// the work of all rounds.
func (p *problem) exact(ctx context.Context, r *Result, target, effort int64) {
	s := p.newSearch(ctx, min(maxPairs, effort/pairEffort))
	if s == nil {
		return
	}
	least := func() int64 { return max(target, r.Bound) }
	for left, slice := effort, int64(firstSlice); left > 0 && ctx.Err() == nil; slice *= 4 {
		s.attempt(r, least(), &left, slice)
		for step := (r.Height - least()) / 4; step > 0 && target == p.bound && left > 0; {
			before := r.Height
			s.attempt(r, max(r.Height-step, least()), &left, slice)
			if r.Height == before {
				step /= 2
			}
		}
		if r.Height <= least() || slice > math.MaxInt64/8 {
			return
		}
	}
}

// firstSlice is the work of an attempt in the first round, some 0.2 s.
const firstSlice = 100_000_000

// attempt searches at a capacity in all orders, with increasing work each, at
// most budget of what is left. It keeps a layout that it finds, or raises the
// bound if it has proved that there is none.
func (s *search) attempt(r *Result, capacity int64, left *int64, budget int64) {
	budget = min(budget, *left)
	for limit := int64(len(s.index)+1000) * 1000; budget > 0; limit *= 2 {
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
