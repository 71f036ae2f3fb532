package checkpointsel

import (
	"cmp"
	"math"
	"slices"

	"github.com/memplan/memplan/graph/train"
)

// A step is one step of C: at levels of peak or more, cost is the least time.
// The rest records the choice that attains it: unit i is kept and len is 0, or
// a segment of len units begins there; inner and rest are the steps of C that
// it builds on.
type step struct {
	peak        int64
	cost        float64
	len         int32
	inner, rest int32
}

// nowhere is the level of an empty set.
const nowhere = math.MinInt64 / 4

// Levels are exact if that takes no more than mostWork steps of lists;
// otherwise they are rounded to a grid that divides the range of levels into
// this many lines at first, and fewer if that is still too much work. Lines are
// a power of two apart, since sizes of tensors are mostly multiples of one.
const (
	mostWork   = 1 << 25
	finestGrid = 4096
	coarsest   = 64
)

// slack is the largest rounding error of a level, in lines of the grid.
const slack = 4

// A context is the recomputation of segments that end at unit hi and have the
// same offset above the first run.
type context struct {
	hi     int
	offset int64
	lo     int // first unit of any of them
	steps  [][]step
	class  []int32 // of each list: equal lists have the same class
}

// A curve is C for all units, in one view.
type curve struct {
	p       *Nested
	v       View
	grid    int64      // bytes that levels are rounded to
	limit   int64      // largest budget that it answers, bytes
	above   int64      // no such budget fits steps at higher levels, relative to the start of a segment
	of      []*context // by span
	chain   []int32    // for each unit: the spans solved so far that begin there
	classes map[classKey]int32
	chains  map[chainKey]int32
	known   map[int32][]step // lists by class
	top     [][]step
	best    choices
}

// A classKey is what a list of steps depends on, with levels relative to the
// start of its first unit's recomputation: equal blocks have equal keys.
type classKey struct {
	rest, chain            int32
	grows, forward, unpack int64
	cost                   float64
	runs                   bool
	made, read             int // end of the recomputation, counted from the end
}

// A chainKey extends a chain by a span that begins at a unit.
type chainKey struct {
	before, inner, len int32
	drop, forward, up  int64
	cost               float64
}

// solveNested finds C for budgets up to limit, as exactly as the work allows.
func solveNested(p *Nested, v View, limit int64) *curve {
	f := solveOn(p, v, 1, limit, mostWork)
	for lines := int64(finestGrid); f == nil; lines /= 4 {
		grid := int64(1)
		for lines*grid < p.Without() {
			grid *= 2
		}
		most := mostWork
		if lines/4 < coarsest {
			most = math.MaxInt
		}
		f = solveOn(p.rounded(v, grid), v, grid, limit, most)
	}
	return f
}

// rounded returns the problem with its levels in units of grid bytes: rounded
// up in the Sure view, down in the Hoped view.
func (p *Nested) rounded(v View, grid int64) *Nested {
	level := func(n int64) int64 { return -floorDiv(-n, grid) }
	drop := func(n int64) int64 { return floorDiv(n, grid) }
	if v == Hoped {
		level, drop = drop, level
	}
	q := *p
	q.slots, q.stops, q.spans = slices.Clone(p.slots), slices.Clone(p.stops), slices.Clone(p.spans)
	q.loss = level(p.loss)
	for i := range q.slots {
		s := &q.slots[i]
		s.forward, s.backward, s.unpacked, s.before = level(s.forward), level(s.backward), level(s.unpacked), level(s.before)
	}
	for i := range q.stops {
		q.stops[i].peak = level(q.stops[i].peak)
	}
	for i := range q.spans {
		e := &q.spans[i].by[v]
		e.drop, e.forward, e.offset, e.held = drop(e.drop), level(e.forward), level(e.offset), level(e.held)
	}
	return &q
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// solveOn finds C of a rounded problem, or nil if it takes more work than most.
func solveOn(p *Nested, v View, grid, limit int64, most int) *curve {
	n := len(p.slots)
	f := &curve{p: p, v: v, grid: grid, limit: limit, of: make([]*context, len(p.spans)), chain: make([]int32, n), classes: map[classKey]int32{}, chains: map[chainKey]int32{}, known: map[int32][]step{}}
	byEnd := make([][]int32, n+1)
	for i := range p.spans {
		byEnd[p.spans[i].hi] = append(byEnd[p.spans[i].hi], int32(i))
	}
	f.above = floorDiv(limit, grid) + slack - p.start(v)
	for hi := 1; hi <= n; hi++ {
		if f.contexts(byEnd[hi]); f.best.work > most {
			return nil
		}
		for _, s := range byEnd[hi] {
			f.link(s)
		}
	}
	f.whole()
	return f
}

// start returns the lowest level at which any recomputation starts: segments
// before unit i drop no more than the forward has made before it, so that no
// level of a segment, relative to its start, may exceed the budget minus this.
func (p *Nested) start(v View) int64 {
	least := int64(math.MaxInt64 / 4)
	for i := range p.spans {
		least = min(least, p.slots[0].before+p.spans[i].by[v].offset)
	}
	return least
}

// contexts solves the segments that end at one unit.
func (f *curve) contexts(spans []int32) {
	var list []*context
	for _, s := range spans {
		sp := &f.p.spans[s]
		offset := sp.by[f.v].offset
		k := slices.IndexFunc(list, func(c *context) bool { return c.offset == offset })
		if k < 0 {
			k = len(list)
			list = append(list, &context{hi: sp.hi, offset: offset, lo: sp.lo})
		}
		list[k].lo = min(list[k].lo, sp.lo)
		f.of[s] = list[k]
	}
	for _, c := range list {
		n := c.hi - c.lo
		c.steps, c.class = make([][]step, n+1), make([]int32, n+1)
		c.steps[n] = []step{{peak: nowhere, len: -1}}
		for i := c.hi - 1; i >= c.lo; i-- {
			f.solve(c, i)
		}
	}
}

// solve finds the steps of C(i, c.hi), or those of an equal list.
func (f *curve) solve(c *context, i int) {
	p := f.p
	at := i - c.lo
	ref := c.offset + p.slots[i].before
	k := classKey{rest: c.class[at+1], chain: f.chain[i], unpack: p.slots[i].unpacked - ref, made: c.hi - p.stops[c.hi].unit, read: c.hi - p.stops[c.hi].last}
	if i+1 < c.hi {
		k.grows = p.slots[i+1].before - p.slots[i].before
	}
	var level int64
	if level, k.cost, k.runs = p.unit(i, c.hi); k.runs {
		k.forward = level + c.offset - ref
	}
	id, seen := f.classes[k]
	if !seen {
		id = int32(len(f.classes) + 1)
		f.classes[k] = id
	}
	c.class[at] = id
	if list, ok := f.known[id]; ok {
		c.steps[at] = list
		return
	}
	level = k.unpack
	if k.runs {
		level = max(level, k.forward)
	}
	f.best.most = f.above
	f.best.start(step{peak: level, cost: k.cost}, c.steps[at+1], k.grows)
	for _, s := range p.from[i] {
		sp := &p.spans[s]
		if sp.hi >= c.hi {
			break
		}
		e := &sp.by[f.v]
		o := step{peak: nowhere, len: int32(sp.hi - i)}
		if p.runs(sp, c.hi) {
			o.peak, o.cost = e.forward-p.slots[i].before, sp.cost
		}
		in := f.of[s]
		f.best.add(o, c.steps[sp.hi-c.lo], p.slots[sp.hi].before-p.slots[i].before-e.drop, in.steps[i-in.lo], in.offset-c.offset)
	}
	c.steps[at] = below(f.best.list, f.best.most)
	f.known[id] = c.steps[at]
}

// link records a span that has been solved with its first unit.
func (f *curve) link(s int32) {
	sp := &f.p.spans[s]
	e, in := &sp.by[f.v], f.of[s]
	k := chainKey{before: f.chain[sp.lo], inner: in.class[sp.lo-in.lo], len: int32(sp.hi - sp.lo), drop: e.drop, forward: e.forward - f.p.slots[sp.lo].before, up: in.offset, cost: sp.cost}
	if sp.hi < len(f.p.slots) { // the level at which its recomputation starts, relative to what follows
		k.up -= f.p.slots[sp.hi].unpacked - f.p.slots[sp.hi].before
	}
	id, ok := f.chains[k]
	if !ok {
		id = int32(len(f.chains) + 1)
		f.chains[k] = id
	}
	f.chain[sp.lo] = id
}

// whole solves the step itself, whose units run once.
func (f *curve) whole() {
	p := f.p
	n := len(p.slots)
	f.top = make([][]step, n+1)
	f.top[n] = []step{{peak: p.loss, len: -1}}
	for i := n - 1; i >= 0; i-- {
		f.best.most = floorDiv(f.limit, f.grid) + slack + p.slots[i].before - p.slots[0].before
		f.best.start(step{peak: max(p.slots[i].forward, p.slots[i].backward)}, f.top[i+1], 0)
		for _, s := range p.from[i] {
			sp := &p.spans[s]
			e, in := &sp.by[f.v], f.of[s]
			o := step{peak: e.forward, len: int32(sp.hi - i)}
			f.best.add(o, f.top[sp.hi], -e.drop, in.steps[i-in.lo], in.offset+p.slots[i].before+e.held)
		}
		f.top[i] = below(f.best.list, f.best.most)
	}
}

// A choices is a list of steps under construction: the minimum of all choices
// added so far.
type choices struct {
	list, spare, fresh []step
	most               int64 // steps at higher levels are not needed, but for the first
	work               int
}

// start begins with one choice.
func (c *choices) start(o step, rest []step, restBy int64) {
	c.list = combine(c.list[:0], o, rest, restBy, nil, 0, nil, c.most)
}

// add adds a segment o combined with the steps of what follows and of its
// inside, each shifted by the given bytes.
func (c *choices) add(o step, rest []step, restBy int64, inner []step, innerBy int64) {
	low := max(o.peak, rest[0].peak+restBy, inner[0].peak+innerBy)
	least := o.cost + rest[len(rest)-1].cost + inner[len(inner)-1].cost
	if at, _ := slices.BinarySearchFunc(c.list, low+1, func(s step, peak int64) int { return cmp.Compare(s.peak, peak) }); at > 0 && c.list[at-1].cost <= least {
		return
	}
	c.work += len(rest) + len(inner) + len(c.list)
	c.fresh = combine(c.fresh[:0], o, rest, restBy, inner, innerBy, c.list, c.most)
	if len(c.fresh) > 0 {
		c.spare = merge(c.spare[:0], c.list, c.fresh)
		c.list, c.spare = c.spare, c.list
	}
}

// combine appends, for two lists and o, the steps with the larger level and the
// sum of costs, if they are below the steps known. A nil inner is ignored. After
// the first it needs none at levels above most.
func combine(out []step, o step, rest []step, restBy int64, inner []step, innerBy int64, known []step, most int64) []step {
	r, i, k := 0, 0, 0
	level := max(o.peak, rest[0].peak+restBy)
	if inner != nil {
		level = max(level, inner[0].peak+innerBy)
	}
	best := math.Inf(1)
	for {
		for r+1 < len(rest) && rest[r+1].peak+restBy <= level {
			r++
		}
		cost := o.cost + rest[r].cost
		if inner != nil {
			for i+1 < len(inner) && inner[i+1].peak+innerBy <= level {
				i++
			}
			cost += inner[i].cost
		}
		for k < len(known) && known[k].peak <= level {
			best = min(best, known[k].cost)
			k++
		}
		if cost < best {
			best = cost
			out = append(out, step{peak: level, cost: cost, len: o.len, rest: int32(r), inner: int32(i)})
		}
		level = math.MaxInt64
		if r+1 < len(rest) {
			level = rest[r+1].peak + restBy
		}
		if i+1 < len(inner) {
			level = min(level, inner[i+1].peak+innerBy)
		}
		if level == math.MaxInt64 || level > most {
			return out
		}
	}
}

// below returns the steps whose levels fit, and at least the first.
func below(list []step, level int64) []step {
	n := 1
	for n < len(list) && list[n].peak <= level {
		n++
	}
	return slices.Clone(list[:n])
}

// merge appends the steps of the minimum of two lists.
func merge(out, a, b []step) []step {
	best := math.Inf(1)
	for i, k := 0, 0; i < len(a) || k < len(b); {
		var s *step
		if k == len(b) || i < len(a) && (a[i].peak < b[k].peak || a[i].peak == b[k].peak && a[i].cost <= b[k].cost) {
			s = &a[i]
			i++
		} else {
			s = &b[k]
			k++
		}
		if s.cost < best {
			best = s.cost
			out = append(out, *s)
		}
	}
	return out
}

// trace returns the segments of a step, outer before inner.
func (f *curve) trace(at int) []train.Segment {
	return f.inside(nil, &context{hi: len(f.p.slots), steps: f.top}, 0, int32(at))
}

// inside appends the segments of C(i, c.hi).
func (f *curve) inside(out []train.Segment, c *context, i int, k int32) []train.Segment {
	for i < c.hi {
		s := c.steps[i-c.lo][k]
		k = s.rest
		if s.len == 0 {
			i++
			continue
		}
		sp := f.spanAt(i, int(s.len))
		out = append(out, f.p.segment(sp))
		out = f.inside(out, f.of[sp], i, s.inner)
		i += int(s.len)
	}
	return out
}

// spanAt returns the span of n units from unit lo.
func (f *curve) spanAt(lo, n int) int32 {
	for _, s := range f.p.from[lo] {
		if f.p.spans[s].hi == lo+n {
			return s
		}
	}
	panic("checkpointsel: a step of no span")
}
