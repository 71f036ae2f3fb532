// Package layout gives buffers of known lifetimes their offsets in one arena:
// static memory allocation, the problem of google/minimalloc. Times are
// half-open, sizes and offsets bytes or any other unit.
package layout

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
)

// A Buffer occupies Size units from time Lower up to, not including, Upper.
type Buffer struct {
	ID           string
	Lower, Upper int64
	Size         int64
}

// Options limit a search. The zero value seeks the least height with the
// default effort.
type Options struct {
	Capacity int64 // sufficient height: the search ends at the first such layout; 0: the least
	Effort   int64 // steps of the search, some 10^9 a second, after which it returns the best layout so far; 0: DefaultEffort
}

// DefaultEffort takes some ten seconds.
const DefaultEffort = 5_000_000_000

// A Result is a layout.
type Result struct {
	Offset  []int64 // of each buffer
	Height  int64   // end of the highest buffer
	Bound   int64   // no layout is lower
	Optimal bool    // Height is Bound
	Method  string  // what found it: one of Methods
	Refuted bool    // Options.Capacity is below Bound: no layout fits it
}

// Solve places the buffers, which Validate must accept: greedily in several
// orders, and by an exact search (see search), first at the bound, then at
// heights ever lower than the best. If ctx ends or the effort is spent it
// returns the best layout so far.
func Solve(ctx context.Context, list []Buffer, o Options) (*Result, error) {
	if err := Validate(list); err != nil {
		return nil, err
	}
	p := newProblem(list)
	r := &Result{Offset: make([]int64, len(list)), Bound: p.bound}
	target, effort := p.bound, cmp.Or(o.Effort, DefaultEffort)
	if o.Capacity > 0 {
		capacity := o.Capacity/p.unit - p.ground
		if target = max(target, capacity); capacity < p.bound { // refuted: any layout will do
			effort = 0
		}
	}
	p.solve(ctx, r, target, effort)
	p.result(r, list)
	r.Optimal = r.Height == r.Bound
	r.Refuted = o.Capacity > 0 && o.Capacity < r.Bound
	return r, Check(list, r.Offset, r.Height)
}

// solve keeps in r the best layout that is found with an effort, and stops at one
// no higher than target.
func (p *problem) solve(ctx context.Context, r *Result, target, effort int64) {
	quick := effort - quickEffort
	open := func() bool { return effort > 0 && r.Height > target && ctx.Err() == nil }
	effort = p.greedy(ctx, r, greedyOrders[:firstOrders], target, quick, effort)
	if !open() {
		return
	}
	s := p.newSearch(ctx, min(maxPairs, effort/pairEffort))
	if s != nil {
		effort = s.glance(r, effort)
	}
	if open() {
		effort = p.greedy(ctx, r, greedyOrders[firstOrders:], target, quick, effort)
	}
	if s != nil && open() {
		s.exact(r, target, effort)
	}
}

// A Method is an algorithm that finds layouts.
type Method struct{ Name, Doc string }

// Methods lists them in the order in which Solve uses them; Result.Method adds
// the order of the buffers, in the letters of weight.
var Methods = []Method{
	{firstFit, "each buffer at the lowest gap that holds it, in several orders"},
	{bestFit, "each buffer at the tightest gap that holds it, in the same orders"},
	{exactSearch, "branches over places by ascending offset; proves that none is lower"},
}

const (
	firstFit    = "first fit"
	bestFit     = "best fit"
	exactSearch = "search"
)

// Validate returns an error for a buffer of negative size or lifetime, and for
// sizes whose sum needs more than 62 bits.
func Validate(list []Buffer) error {
	total := int64(0)
	for i := range list {
		b := &list[i]
		switch {
		case b.Size < 0:
			return fmt.Errorf("buffer %q: size %d is negative", b.ID, b.Size)
		case b.Upper < b.Lower:
			return fmt.Errorf("buffer %q: it ends at %d, before it begins at %d", b.ID, b.Upper, b.Lower)
		case b.Size > math.MaxInt64/2-total:
			return fmt.Errorf("buffer %q: size %d: all sizes together are more than 2^62", b.ID, b.Size)
		}
		total += b.Size
	}
	return nil
}

// Check returns an error naming two buffers that live at the same time and
// overlap, or one outside [0, height). It sweeps over time and keeps the live
// buffers by offset: O(n log n) and one insertion for each buffer.
func Check(list []Buffer, offset []int64, height int64) error {
	type event struct {
		at    int64
		start bool
		i     int
	}
	var events []event
	for i := range list {
		b := &list[i]
		if offset[i] < 0 || offset[i]+b.Size > height {
			return fmt.Errorf("buffer %q: [%d,%d) is not within [0,%d)", b.ID, offset[i], offset[i]+b.Size, height)
		}
		if b.Size > 0 && b.Upper > b.Lower {
			events = append(events, event{b.Lower, true, i}, event{b.Upper, false, i})
		}
	}
	slices.SortFunc(events, func(x, y event) int {
		if x.at == y.at && x.start != y.start { // frees precede allocations
			if y.start {
				return -1
			}
			return 1
		}
		return cmp.Compare(x.at, y.at)
	})
	var live []int // by offset; they do not overlap
	for _, e := range events {
		k, _ := slices.BinarySearchFunc(live, offset[e.i], func(j int, at int64) int { return cmp.Compare(offset[j], at) })
		if !e.start {
			live = slices.Delete(live, k, k+1)
			continue
		}
		for _, n := range [2]int{k - 1, k} {
			if n < 0 || n >= len(live) {
				continue
			}
			j := live[n]
			if offset[j] < offset[e.i]+list[e.i].Size && offset[e.i] < offset[j]+list[j].Size {
				return fmt.Errorf("buffers %q and %q overlap at time %d", list[j].ID, list[e.i].ID, e.at)
			}
		}
		live = slices.Insert(live, k, e.i)
	}
	return nil
}
