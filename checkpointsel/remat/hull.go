package remat

import "math/bits"

// A region is a part of a cut's solutions, those that agree with some
// decisions, with what is known about it.
type region struct {
	fixed []decision
	bound int64 // on the cost of all solutions in the region that respect the limit
	at    price // the price that proves the bound
	low   point // cheap but too large; kept is nil if there is none
	high  point // a solution within the limit
}

// capacityLimit bounds all finite capacities of a network together.
const capacityLimit = infinite / 8

// scaled returns a price near money/size for which no capacity overflows.
func (c *cut) scaled(money, size int64) price {
	for {
		h1, m := bits.Mul64(uint64(money), uint64(c.size+1))
		h2, s := bits.Mul64(uint64(size), uint64(c.cost+1))
		if h1 == 0 && h2 == 0 && m < capacityLimit && s < capacityLimit {
			return price{money, size}
		}
		money, size = money/2, (size+1)/2
	}
}

// explore computes the region's bound: the maximum over all prices, or the
// first value found that reaches target. It returns false if the region
// holds no solution within the limit. The points and the price of from, the
// region that r is a part of, are used as far as they agree with r's
// decisions; nil stands for none.
func (c *cut) explore(r *region, from *region, target int64) bool {
	if from != nil {
		r.bound, r.at = from.bound, from.at
		r.take(c, from.low)
		r.take(c, from.high)
		if r.at.money > 0 && !c.probe(r, r.at) {
			return false
		}
	}
	if r.bound >= target {
		return true
	}
	if !c.ends(r) {
		return false
	}
	for range 40 {
		if r.low.kept == nil || r.low.cost >= r.high.cost || r.bound >= min(target, r.high.cost) {
			return true
		}
		low, high := r.low.size, r.high.size
		if !c.probe(r, c.scaled(r.high.cost-r.low.cost, low-high)) {
			return false
		}
		if r.low.size == low && r.high.size == high {
			return true
		}
	}
	return true
}

// probe solves the cut at price l and takes over what it learns about r. It
// returns false if r has no solution at all.
func (c *cut) probe(r *region, l price) bool {
	value, least, most, ok := c.solve(l, r.fixed)
	if !ok {
		return false
	}
	if bound := ceilDiv(value-l.money*c.cap, l.size); bound > r.bound || r.at.size == 0 {
		r.bound, r.at = max(bound, 0), l
	}
	r.take(c, least)
	r.take(c, most)
	return true
}

// take replaces one of the region's points by s if s is better and agrees
// with the region's decisions.
func (r *region) take(c *cut, s point) {
	switch {
	case !r.agrees(s):
	case s.size <= c.cap && (r.high.kept == nil || s.cost < r.high.cost):
		r.high = s
	case s.size > c.cap && (r.low.kept == nil || s.size < r.low.size):
		r.low = s
	}
}

// ends finds those of the region's two points that are missing, by solving
// the cut at the prices zero and infinite. It returns false if there is no
// solution within the limit.
func (c *cut) ends(r *region) bool {
	if r.low.kept == nil && !c.probe(r, price{0, 1}) {
		return false
	}
	if r.high.kept != nil {
		return true
	}
	value, least, _, ok := c.solve(price{1, 0}, r.fixed)
	if !ok || value > c.cap {
		return false
	}
	r.take(c, least)
	return true
}

// agrees reports whether a solution respects the region's decisions.
func (r *region) agrees(s point) bool {
	if s.kept == nil {
		return false
	}
	for _, d := range r.fixed {
		if s.kept[d.place] != d.kept {
			return false
		}
	}
	return true
}

// ceilDiv returns a/b rounded up, for positive b.
func ceilDiv(a, b int64) int64 {
	q := a / b
	if a%b > 0 {
		q++
	}
	return q
}
