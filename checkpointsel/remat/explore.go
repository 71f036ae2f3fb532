package remat

import (
	"context"
	"math"

	"github.com/memplan/memplan/heap"
)

// A windowSearch raises the bound of a windows relaxation by branch and bound,
// least bound first. Bounds are proved in integers from the multipliers of the
// linear program.
type windowSearch struct {
	w       *windows
	nodes   []windowNode
	open    heap.Heap[int32] // nodes, the least bound first
	current int32            // the node whose decisions the program holds, -1 at first
	closed  int64            // least bound among nodes that reached the target or are exact
	plans   [][]repeat       // executions in solutions that have not been fetched yet
	count   int              // nodes solved
	record  bool             // keep proofs
}

type windowNode struct {
	parent int32
	x      int32 // decided here, and
	value  float64
	bound  int64
	basis  position
	proved int64   // by proof, which is only recorded on request
	proof  weights // without scale: there is no solution
}

// A repeat is an execution in a relaxation's solution.
type repeat struct {
	window, node int32
}

func newWindowSearch(w *windows) *windowSearch {
	s := &windowSearch{w: w, current: -1, closed: infinite}
	s.open.Less = s.before
	s.nodes = append(s.nodes, windowNode{parent: -1, x: -1})
	s.open.Push(0)
	return s
}

// bound returns the lower bound on the cost of recomputation.
func (s *windowSearch) bound() int64 {
	if s.open.Len() == 0 {
		return s.closed
	}
	return min(s.closed, s.nodes[s.open.Least()].bound)
}

// improve raises the bound until it reaches target, or limit nodes have been
// solved, or ctx is done.
func (s *windowSearch) improve(ctx context.Context, target int64, limit int) {
	for limit += s.count; s.open.Len() > 0 && s.bound() < target && s.count < limit && ctx.Err() == nil; {
		id := s.open.Pop()
		for id >= 0 && s.count < limit && ctx.Err() == nil {
			id = s.solve(ctx, id, target)
		}
		if id >= 0 {
			s.open.Push(id)
		}
	}
}

// solve bounds a node and splits it. It returns the child to continue with, or
// -1.
func (s *windowSearch) solve(ctx context.Context, id int32, target int64) int32 {
	s.count++
	s.enter(id)
	w := s.w
	out := unfinished
	pace := pacer{least: w.p.total / 50000, enough: 12}
	if s.count > 1 {
		pace.enough = 3
	}
	rounds := mostRounds
	if w.plain {
		pace.enough, rounds = fewRounds, fewRounds
	}
	for range rounds {
		out = w.l.solve(5000, float64(target)/w.scale)
		bound := w.proved()
		if out == empty {
			if proof := w.last.clone(); w.contradiction() {
				bound = infinite
			} else {
				w.last = proof
			}
		}
		n := &s.nodes[id]
		n.bound = max(n.bound, bound)
		if s.record && (bound > n.proved || n.proof.rows == nil) {
			n.proved, n.proof = bound, w.last.clone()
		}
		if n.bound >= target {
			s.closed = min(s.closed, n.bound)
			return -1
		}
		if out != optimal || pace.slow(s.nodes[id].bound) || w.separate() == 0 || ctx.Err() != nil {
			break
		}
	}
	x := s.branchOn()
	if x < 0 {
		s.closed = min(s.closed, s.nodes[id].bound)
		if out == optimal {
			s.solution()
		}
		return -1
	}
	if s.count == 1 {
		s.solution()
	}
	return s.split(id, x)
}

// Largest numbers of rounds that add rows at one node.
const (
	mostRounds = 300
	fewRounds  = 30
)

// A pacer decides when more rows no longer pay: when the bound has risen by
// less than a fraction of the total cost in a number of rounds.
type pacer struct {
	least, bound   int64
	rounds, enough int
}

func (p *pacer) slow(bound int64) bool {
	if bound > p.bound+p.least {
		p.bound, p.rounds = bound, 0
	}
	p.rounds++
	return p.rounds > p.enough
}

// enter applies the decisions of a node to the program.
func (s *windowSearch) enter(id int32) {
	if s.current >= 0 && s.nodes[id].parent == s.current {
		n := &s.nodes[id]
		s.w.l.restrict(n.x, n.value, n.value)
		s.current = id
		return
	}
	for at := s.current; at > 0; at = s.nodes[at].parent {
		s.w.free(s.nodes[at].x)
	}
	for at := id; at > 0; at = s.nodes[at].parent {
		s.w.l.restrict(s.nodes[at].x, s.nodes[at].value, s.nodes[at].value)
	}
	if s.nodes[id].basis != nil {
		s.w.l.restore(s.nodes[id].basis)
	}
	s.current = id
}

// free reverts a decision on x.
func (w *windows) free(x int32) { w.l.restrict(x, 0, 1) }

// split makes two children of a node. The one that agrees with the solution
// is returned, the other left for later.
func (s *windowSearch) split(id, x int32) int32 {
	w := s.w
	basis := w.l.position()
	near := math.Round(w.l.at(x))
	bound := s.nodes[id].bound
	first := int32(len(s.nodes))
	s.nodes = append(s.nodes,
		windowNode{parent: id, x: x, value: near, bound: bound, basis: basis},
		windowNode{parent: id, x: x, value: 1 - near, bound: bound, basis: basis})
	s.nodes[id].basis = nil
	s.open.Push(first + 1)
	return first
}

// branchOn chooses the fractional variable to split on: residents before
// executions before events, large before small.
func (s *windowSearch) branchOn() int32 {
	w := s.w
	best, score := int32(-1), 0.0
	for x, v := range w.vars {
		a := w.l.at(int32(x))
		if !fractional(a) {
			continue
		}
		g := min(a, 1-a)
		switch v.kind {
		case residentVar:
			g *= 1 + float64(w.p.size[v.node])
		case againVar:
			g *= 1e-6 * (1 + float64(w.p.cost[v.node])/w.scale)
		default:
			g *= 1e-9
		}
		if g > score {
			best, score = int32(x), g
		}
	}
	return best
}

// solution records what the current solution executes again, rounded.
func (s *windowSearch) solution() {
	w := s.w
	var repeats []repeat
	for x, v := range w.vars {
		if v.kind == againVar && w.l.at(int32(x)) > 0.5 {
			repeats = append(repeats, repeat{v.window, v.node})
		}
	}
	if len(s.plans) < mostPlans {
		s.plans = append(s.plans, repeats)
	}
}

// mostPlans is the largest number of solutions that wait to be fetched.
const mostPlans = 6

// proved returns the lower bound that the current multipliers prove under
// the current decisions, in integers.
func (w *windows) proved() int64 {
	scale := int64(1)
	for scale < 1<<30 && scale<<1 < 1<<48/max(w.p.total, 1) {
		scale <<= 1
	}
	sum := w.lagrangian(scale, func(r int) float64 {
		return w.l.dual(int32(r)) * w.scale / w.int[r].unit * float64(scale)
	})
	return ceilDiv(sum, scale)
}

// contradiction reports whether the multipliers of rows that the simplex method
// could not satisfy prove that there is no solution.
func (w *windows) contradiction() bool {
	return w.lagrangian(0, func(r int) float64 {
		return w.l.ray[r] / w.int[r].unit * (1 << 40)
	}) > 0
}

// lagrangian returns the minimum over all x within their bounds of scale times
// the cost plus what the rows lack, weighted by their rounded multipliers.
// Multipliers so large that sums might overflow count as zero.
func (w *windows) lagrangian(scale int64, multiplier func(r int) float64) int64 {
	w.reduced = resize(w.reduced, len(w.vars))
	for x, v := range w.vars {
		w.reduced[x] = 0
		if v.kind == againVar {
			w.reduced[x] = scale * w.p.cost[v.node]
		}
	}
	var sum int64
	w.last = weights{scale, w.last.rows[:0]}
	budget := float64(1 << 61)
	for r := range w.int {
		m := math.Round(multiplier(r))
		if m <= 0 {
			continue
		}
		if budget -= m * w.int[r].norm; budget < 0 {
			break
		}
		y := int64(m)
		w.last.rows = append(w.last.rows, weight{int32(r), y})
		sum += y * w.int[r].bound
		for _, t := range w.int[r].terms {
			w.reduced[t.x] -= y * t.a
		}
	}
	for x, d := range w.reduced {
		if d > 0 {
			sum += d * int64(w.l.low[x])
		} else {
			sum += d * int64(w.l.high[x])
		}
	}
	return sum
}

// before orders open nodes.
func (s *windowSearch) before(a, b int32) bool {
	if x, y := s.nodes[a].bound, s.nodes[b].bound; x != y {
		return x < y
	}
	return a > b
}
