package layout

import (
	"cmp"
	"context"
	"slices"
)

// A problem is the buffers to place, with times reduced to sections: the
// largest sets of buffers that live at the same time, in order. Sizes are
// divided by their greatest common divisor. Buffers that live in all sections
// are at the bottom, below the others' offset 0: no other address is better, as
// nothing can ever share theirs.
type problem struct {
	unit   int64
	static []int32 // indices in the caller's list of buffers that live in all sections
	ground int64   // their total size
	index  []int32 // the other buffers
	size   []int64
	life   []float64
	end    []float64
	a, b   []int32 // the sections [a,b) in which each buffer lives
	total  []int64 // of each section: the total size of its buffers
	bound  int64   // the largest of total
}

func newProblem(list []Buffer) *problem {
	p := &problem{unit: 1}
	g := int64(0)
	for i := range list {
		if b := &list[i]; b.Size > 0 && b.Upper > b.Lower {
			p.index = append(p.index, int32(i))
			g = gcd(g, b.Size)
		}
	}
	p.unit = max(g, 1)
	for _, i := range p.index {
		p.size = append(p.size, list[i].Size/p.unit)
		p.life = append(p.life, float64(list[i].Upper-list[i].Lower))
		p.end = append(p.end, float64(list[i].Upper))
	}
	p.sections(list)
	p.lay()
	return p
}

// lay removes the buffers that live in all sections from the problem.
func (p *problem) lay() {
	n := 0
	for i, id := range p.index {
		if p.a[i] == 0 && int(p.b[i]) == len(p.total) {
			p.static = append(p.static, id)
			p.ground += p.size[i]
			continue
		}
		p.index[n], p.size[n], p.life[n], p.end[n], p.a[n], p.b[n] = id, p.size[i], p.life[i], p.end[i], p.a[i], p.b[i]
		n++
	}
	p.index, p.size, p.life, p.end, p.a, p.b = p.index[:n], p.size[:n], p.life[:n], p.end[:n], p.a[:n], p.b[:n]
	p.bound -= p.ground
	for s := range p.total {
		p.total[s] -= p.ground
	}
}

// result adds the buffers that live in all sections below the others, in the
// caller's units.
func (p *problem) result(r *Result, list []Buffer) {
	for _, i := range p.index {
		r.Offset[i] = (r.Offset[i] + p.ground) * p.unit
	}
	top := int64(0)
	for _, i := range p.static {
		r.Offset[i] = top
		top += list[i].Size
	}
	r.Height = (r.Height + p.ground) * p.unit
	r.Bound = (r.Bound + p.ground) * p.unit
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// sections begins a new section where a buffer starts after one has ended.
func (p *problem) sections(list []Buffer) {
	n := len(p.index)
	starts, ends := make([]int32, n), make([]int32, n)
	for i := range n {
		starts[i], ends[i] = int32(i), int32(i)
	}
	slices.SortFunc(starts, func(x, y int32) int { return cmp.Compare(list[p.index[x]].Lower, list[p.index[y]].Lower) })
	slices.SortFunc(ends, func(x, y int32) int { return cmp.Compare(list[p.index[x]].Upper, list[p.index[y]].Upper) })
	p.a, p.b = make([]int32, n), make([]int32, n)
	section, ended, live := int32(0), false, int64(0)
	for e, s := 0, 0; e < n; {
		if s < n && list[p.index[starts[s]]].Lower < list[p.index[ends[e]]].Upper {
			if ended {
				p.total = append(p.total, live)
				section, ended = section+1, false
			}
			p.a[starts[s]] = section
			live += p.size[starts[s]]
			s++
			continue
		}
		if !ended { // the section is complete
			p.bound, ended = max(p.bound, live), true
		}
		p.b[ends[e]] = section + 1
		live -= p.size[ends[e]]
		e++
	}
	if n > 0 {
		p.total = append(p.total, 0)
	}
	clear(p.total)
	for i := range n {
		for s := p.a[i]; s < p.b[i]; s++ {
			p.total[s] += p.size[i]
		}
	}
}

// peak returns the largest total of a buffer's sections.
func (p *problem) peak(total []int64, i int32) int64 {
	return slices.Max(total[p.a[i]:p.b[i]])
}

// A weight holds the keys by which buffers are ordered, largest first: the largest total beside it (T), its
// lifetime (W), lifetime times size (A), its size (Z), its start (B) and its end (E, last first).
type weight struct {
	t          int64
	w, z, b, e float64
}

func (p *problem) weigh(total []int64, i int32) weight {
	return weight{p.peak(total, i), p.life[i], float64(p.size[i]), -float64(p.a[i]), p.end[i]}
}

// An order sorts by the letters of its name.
type order string

func (o order) compare(x, y *weight) int {
	for _, letter := range o {
		c := 0
		switch letter {
		case 'T':
			c = cmp.Compare(y.t, x.t)
		case 'W':
			c = cmp.Compare(y.w, x.w)
		case 'A':
			c = cmp.Compare(y.w*y.z, x.w*x.z)
		case 'Z':
			c = cmp.Compare(y.z, x.z)
		case 'B':
			c = cmp.Compare(y.b, x.b)
		case 'E':
			c = cmp.Compare(y.e, x.e)
		}
		if c != 0 {
			return c
		}
	}
	return 0
}

// sort sorts part by weights, which are indexed by buffer.
func (o order) sort(part []int32, weights []weight) {
	slices.SortStableFunc(part, func(x, y int32) int { return o.compare(&weights[x], &weights[y]) })
}

// greedyOrders are the orders of first and best fit, the most useful first.
var greedyOrders = []order{"TW", "Z", "B", "TZ", "TA", "EZ", "ZB", "A", "W"}

// firstOrders is the number of orders that are tried before the exact search.
const firstOrders = 3

// quickEffort takes half a second: the time for the first orders of some 30,000
// buffers.
const quickEffort = 300_000_000

// greedy keeps in r the best layout of first and best fit in some orders; it stops at one that is
// no higher than target, or within 1% of it when effort is below quick, or when
// the effort is spent. It returns the remaining effort.
func (p *problem) greedy(ctx context.Context, r *Result, orders []order, target, quick, effort int64) int64 {
	n := len(p.index)
	weights := make([]weight, n)
	part := make([]int32, n)
	for i := range part {
		part[i] = int32(i)
		weights[i] = p.weigh(p.total, int32(i))
	}
	for _, o := range orders {
		sorted := slices.Clone(part)
		o.sort(sorted, weights)
		for _, best := range []bool{false, true} {
			near := effort < quick && r.Height <= target+target/100
			if r.Method != "" && (near || effort <= 0 || ctx.Err() != nil || r.Height <= target) {
				return effort
			}
			method := firstFit
			if best {
				method = bestFit
			}
			off, height, work := p.fit(ctx, sorted, best)
			p.keep(r, off, height, method+" "+string(o))
			effort -= work
		}
	}
	return effort
}

// keep adopts a layout if it is lower.
func (p *problem) keep(r *Result, off []int64, height int64, method string) {
	if r.Method != "" && height >= r.Height {
		return
	}
	r.Height, r.Method = height, method
	for k, i := range p.index {
		r.Offset[i] = off[k]
	}
}

// A shelf is a list of placed buffers by offset.
type shelf []placed

// A placed buffer occupies [from,to) through the sections [a,b).
type placed struct {
	from, to int64
	a, b     int32
}

func (h *shelf) insert(x placed) {
	k, _ := slices.BinarySearchFunc(*h, x.from, func(y placed, at int64) int { return cmp.Compare(y.from, at) })
	*h = slices.Insert(*h, k, x)
}

// gap returns the offset for x, whose to is its size: of the lowest gap between
// placed buffers that holds it, or of the tightest.
func (h shelf) gap(x placed, best bool) int64 {
	at, room := int64(-1), int64(0)
	top := int64(0) // end of what lies below the gap
	for i := range h {
		y := &h[i]
		if y.b <= x.a || x.b <= y.a {
			continue
		}
		if free := y.from - top; free >= x.to && (at < 0 || free < room) {
			at, room = top, free
			if !best {
				break
			}
		}
		top = max(top, y.to)
	}
	if at < 0 {
		return top
	}
	return at
}

// spans is the number of pieces into which time is divided, so that a
// short-lived buffer is compared only with those of its piece.
const spans = 64

// unhurried is the number of buffers that are placed without a check of the
// time, in some milliseconds.
const unhurried = 4096

// clockEvery is the number of further buffers between checks of the time.
const clockEvery = 256

// fit places buffers in order, each in the lowest gap that holds it, or in the
// tightest. Once ctx ends, buffers after the first few thousand are stacked on
// top of all others: a layout, though a high one. work is the number of placed
// buffers examined.
func (p *problem) fit(ctx context.Context, sorted []int32, best bool) (off []int64, height, work int64) {
	off = make([]int64, len(p.index))
	var all shelf
	pieces := make([]shelf, spans)
	piece := func(section int32) int { return int(int64(section) * spans / int64(len(p.total))) }
	late := false
	for n, i := range sorted {
		if late = late || n >= unhurried && n%clockEvery == 0 && ctx.Err() != nil; late {
			off[i] = height
			height += p.size[i]
			continue
		}
		from, to := piece(p.a[i]), piece(p.b[i]-1)
		beside := all
		if from == to {
			beside = pieces[from]
		}
		x := placed{to: p.size[i], a: p.a[i], b: p.b[i]}
		x.from = beside.gap(x, best)
		x.to += x.from
		off[i] = x.from
		height = max(height, x.to)
		work += int64(len(beside))
		all.insert(x)
		for k := from; k <= to; k++ {
			pieces[k].insert(x)
		}
	}
	return off, height, work
}
