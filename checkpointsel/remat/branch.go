package remat

import (
	"context"

	"github.com/memplan/memplan/heap"
)

// A search finds the exact value of a cut by branch and bound, best bound
// first: a region is split on the largest candidate that one of its two points
// keeps and the other does not.
type search struct {
	cut   *cut
	nodes []searchNode
	open  heap.Heap[int32] // nodes, the least bound first
	best  point            // cheapest solution within the limit; kept is nil if there is none
	flows int              // regions explored
}

type searchNode struct {
	region
	parent   int32
	place    int32    // of the candidate that it was split on
	children [2]int32 // the candidate kept, not kept; -1: empty region, 0: not split
}

// newSearch explores the whole cut. It returns nil if no solution is within
// the limit, which proves that no schedule is.
func newSearch(c *cut, target int64) *search {
	s := &search{cut: c}
	s.open.Less = s.before
	c.build()
	root := searchNode{parent: -1}
	if !c.explore(&root.region, nil, target) {
		return nil
	}
	s.add(root)
	return s
}

func (s *search) add(n searchNode) int32 {
	id := int32(len(s.nodes))
	s.nodes = append(s.nodes, n)
	s.flows++
	if n.high.kept != nil && (s.best.kept == nil || n.high.cost < s.best.cost) {
		s.best = n.high
	}
	s.open.Push(id)
	return id
}

// bound returns a lower bound on the cut's value.
func (s *search) bound() int64 {
	if s.open.Len() == 0 {
		return s.best.cost
	}
	return s.nodes[s.open.Least()].bound
}

// done reports whether the cut's value is known.
func (s *search) done() bool { return s.best.kept != nil && s.bound() >= s.best.cost }

// improve raises the bound until it reaches target or is exact, or until
// about limit regions have been explored, or ctx is done.
func (s *search) improve(ctx context.Context, target int64, limit int) {
	for limit += s.flows; !s.done() && s.bound() < target && s.flows < limit && ctx.Err() == nil; {
		s.split(s.open.Pop(), target)
	}
}

// split replaces a region by its two halves.
func (s *search) split(id int32, target int64) {
	n := &s.nodes[id]
	place := s.branchOn(n)
	if place < 0 {
		n.bound = max(n.bound, min(target, n.high.cost)) // the points agree: the hull is exact
		s.open.Push(id)
		return
	}
	for i, kept := range [2]bool{true, false} {
		child := searchNode{parent: id}
		parent := &s.nodes[id]
		child.fixed = append(parent.fixed[:len(parent.fixed):len(parent.fixed)], decision{place, kept})
		if s.cut.explore(&child.region, &parent.region, target) {
			c := s.add(child)
			s.nodes[id].children[i] = c
		} else {
			s.nodes[id].children[i] = -1
		}
	}
	n = &s.nodes[id]
	n.place = place
	n.low, n.high, n.fixed = point{}, point{}, nil
}

// branchOn returns the place of the candidate to split on.
func (s *search) branchOn(n *searchNode) int32 {
	place, size := int32(-1), int64(-1)
	for i, u := range s.cut.nodes {
		if n.low.kept == nil || n.low.kept[i] == n.high.kept[i] {
			continue
		}
		if m := s.cut.p.size[u]; m > size {
			place, size = int32(i), m
		}
	}
	return place
}

// before orders open nodes.
func (s *search) before(a, b int32) bool {
	if x, y := s.nodes[a].bound, s.nodes[b].bound; x != y {
		return x < y
	}
	return a > b // the deeper first
}
