package remat

import (
	"math"
	"math/rand/v2"
)

// A simulation builds a plan for a tight limit from scratch: it executes the
// nodes in order, recomputes inputs when they are read, and when memory runs
// out drops outputs that are cheap to recompute, large, and not read for long.
// Its plan is only a start for an improver.
type simulation struct {
	p        *problem
	rng      *rand.Rand
	noise    float64
	resident []bool
	pinned   []int32
	live     int64
	next     int32 // the node whose first execution comes next
	sequence []int32
	limit    int // on the length of the sequence
	depth    int

	chain  []int32 // scratch
	seen   []int32
	visits int32
}

// simulate returns a sequence of at most limit executions whose plan fits, or
// nil if it finds none.
func simulate(p *problem, rng *rand.Rand, noise float64, limit int) []int32 {
	s := &simulation{
		p: p, rng: rng, noise: noise,
		resident: make([]bool, p.n), pinned: make([]int32, p.n), seen: make([]int32, p.n),
		limit: limit,
	}
	for s.next < int32(p.n) {
		if !s.execute(s.next) {
			return nil
		}
		s.next++
	}
	return s.sequence
}

// execute makes v's inputs resident and runs it. It returns false if the memory
// or the sequence's length does not suffice.
func (s *simulation) execute(v int32) bool {
	s.depth++
	defer func() { s.depth-- }()
	for {
		u := s.missing(v)
		if u < 0 {
			break
		}
		if s.p.once[u] || s.depth > s.p.n {
			return false
		}
		s.pin(v, +1)
		ok := s.execute(u)
		s.pin(v, -1)
		if !ok {
			return false
		}
	}
	if len(s.sequence) >= s.limit || !s.makeRoom(v) {
		return false
	}
	s.resident[v] = true
	s.live += s.p.size[v]
	s.sequence = append(s.sequence, v)
	return true
}

// missing returns the first input of v that is not resident, -1 if all are.
func (s *simulation) missing(v int32) int32 {
	for _, u := range s.p.preds[v] {
		if !s.resident[u] {
			return u
		}
	}
	return -1
}

func (s *simulation) pin(v int32, by int32) {
	for _, u := range s.p.preds[v] {
		s.pinned[u] += by
	}
}

// makeRoom drops outputs until v fits. Outputs that others wait for go last.
func (s *simulation) makeRoom(v int32) bool {
	size := s.p.size[v] + s.p.work[v]
	if s.live+size <= s.p.cap {
		return true
	}
	s.pin(v, hard)
	defer s.pin(v, -hard)
	for s.live+size > s.p.cap {
		best, score := int32(-1), math.Inf(1)
		for u := range s.next {
			if !s.resident[u] || s.pinned[u] >= hard || s.p.size[u] == 0 {
				continue
			}
			if x := s.regret(u); x < score {
				best, score = u, x
			}
		}
		if best < 0 {
			return false
		}
		s.resident[best] = false
		s.live -= s.p.size[best]
	}
	return true
}

// hard is the number of pins of an output that is being read.
const hard = 1 << 30

// regret returns the cost of recomputing u, per byte and per step until it is
// read.
func (s *simulation) regret(u int32) float64 {
	use := s.nextRead(u)
	switch {
	case s.p.once[u] && use >= 0:
		return math.Inf(1)
	case s.p.once[u]:
		return math.MaxFloat64 / 2
	case use < 0:
		use = int32(s.p.n) + 8
	}
	x := float64(s.chainCost(u)+1) / float64(s.p.size[u]) / float64(use-s.next+1)
	if s.pinned[u] > 0 {
		x *= 1e6
	}
	return x * math.Exp(s.rng.NormFloat64()*s.noise)
}

// chainCost returns the cost of executing u and its missing inputs, examining
// only a few nodes.
func (s *simulation) chainCost(u int32) int64 {
	s.visits++
	s.chain = append(s.chain[:0], u)
	s.seen[u] = s.visits
	var sum int64
	for i := 0; i < len(s.chain); i++ {
		sum += s.p.cost[s.chain[i]]
		for _, w := range s.p.preds[s.chain[i]] {
			if !s.resident[w] && s.seen[w] != s.visits && len(s.chain) < 48 {
				s.seen[w] = s.visits
				s.chain = append(s.chain, w)
			}
		}
	}
	return sum
}

// nextRead returns the next node that reads u for its first execution, -1 if
// there is none.
func (s *simulation) nextRead(u int32) int32 {
	for _, v := range s.p.succs[u] {
		if v >= s.next {
			return v
		}
	}
	return -1
}
