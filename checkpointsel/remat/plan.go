package remat

import (
	"math/bits"
	"slices"
)

// A plan is a sequence of executions. Every output is resident from its
// execution to the last reader before the next execution of the same node,
// which is the least that the sequence needs; the memory at every position is
// held in a tree.
//
// Positions are spread so that executions can be inserted between others. All
// first executions are in the order of the nodes' numbers, and a plan of these
// alone is valid, though it may need too much memory.
type plan struct {
	p    *problem
	node []int32   // for each position: node, -1 if none
	runs [][]int32 // for each node: positions of its executions, ascending
	uses [][]int32 // for each node: positions where it is read, ascending
	mem  *maxTree
	cost int64 // of all executions but the first ones

	log []edit // changes since the last commit
}

// An edit is one change of a plan.
type edit struct {
	node, at int32
	inserted bool
}

// newPlan returns the plan that executes the nodes in the given sequence.
func newPlan(p *problem, sequence []int32) *plan {
	pl := &plan{p: p}
	pl.load(sequence)
	return pl
}

// sequence returns the sequence without recomputation.
func (p *problem) sequence() []int32 {
	s := make([]int32, p.n)
	for v := range s {
		s[v] = int32(v)
	}
	return s
}

// load replaces the plan by a sequence, evenly spread.
func (pl *plan) load(sequence []int32) {
	n := pl.p.n
	gap := 16
	size := 1 << bits.Len(uint(len(sequence)*gap))
	gap = size / (len(sequence) + 1)
	pl.node = make([]int32, size)
	for i := range pl.node {
		pl.node[i] = -1
	}
	pl.runs, pl.uses = make([][]int32, n), make([][]int32, n)
	pl.cost, pl.log = 0, nil
	for i, v := range sequence {
		at := int32((i + 1) * gap)
		pl.node[at] = v
		if len(pl.runs[v]) > 0 {
			pl.cost += pl.p.cost[v]
		}
		pl.runs[v] = append(pl.runs[v], at)
		for _, u := range pl.p.preds[v] {
			pl.uses[u] = append(pl.uses[u], at)
		}
	}
	pl.mem = newMaxTree(size)
	for v := range int32(n) {
		for i, at := range pl.runs[v] {
			pl.mem.apply(at, at+1, pl.p.work[v])
			pl.mem.apply(at, pl.end(v, i)+1, pl.p.size[v])
		}
	}
}

// peak returns the largest memory at any position.
func (pl *plan) peak() int64 { return pl.mem.top[1] }

// fits reports whether the plan respects the limit.
func (pl *plan) fits() bool { return pl.peak() <= pl.p.cap }

// end returns the last position at which run i of v is resident.
func (pl *plan) end(v int32, i int) int32 {
	runs, uses := pl.runs[v], pl.uses[v]
	j := len(uses)
	if i+1 < len(runs) {
		j, _ = slices.BinarySearch(uses, runs[i+1])
	}
	if j > 0 && uses[j-1] > runs[i] {
		return uses[j-1]
	}
	return runs[i]
}

// run returns the number of the last run of v before position at, -1 if
// there is none.
func (pl *plan) run(v, at int32) int {
	i, _ := slices.BinarySearch(pl.runs[v], at)
	return i - 1
}

// nextUse returns the first position from at on where v is read, or -1.
func (pl *plan) nextUse(v, at int32) int32 {
	uses := pl.uses[v]
	if i, _ := slices.BinarySearch(uses, at); i < len(uses) {
		return uses[i]
	}
	return -1
}

// insert executes v at an empty position, after the first execution of v.
func (pl *plan) insert(v, at int32) {
	pl.put(v, at)
	pl.log = append(pl.log, edit{v, at, true})
}

// remove removes an execution of v other than its first.
func (pl *plan) remove(v, at int32) {
	pl.take(v, at)
	pl.log = append(pl.log, edit{v, at, false})
}

func (pl *plan) put(v, at int32) {
	size := pl.p.size[v]
	i := pl.run(v, at)
	before := pl.end(v, i)
	pl.runs[v] = slices.Insert(pl.runs[v], i+1, at)
	pl.node[at] = v
	pl.cost += pl.p.cost[v]
	after := pl.end(v, i)
	pl.mem.apply(after+1, before+1, -size)
	pl.mem.apply(at, pl.end(v, i+1)+1, size)
	pl.mem.apply(at, at+1, pl.p.work[v])
	for _, u := range pl.p.preds[v] {
		j := pl.run(u, at)
		end := pl.end(u, j)
		k, _ := slices.BinarySearch(pl.uses[u], at)
		pl.uses[u] = slices.Insert(pl.uses[u], k, at)
		pl.mem.apply(end+1, at+1, pl.p.size[u])
	}
}

func (pl *plan) take(v, at int32) {
	for _, u := range pl.p.preds[v] {
		j := pl.run(u, at)
		k, _ := slices.BinarySearch(pl.uses[u], at)
		pl.uses[u] = slices.Delete(pl.uses[u], k, k+1)
		pl.mem.apply(pl.end(u, j)+1, at+1, -pl.p.size[u])
	}
	size := pl.p.size[v]
	i := pl.run(v, at)
	pl.mem.apply(at, at+1, -pl.p.work[v])
	pl.mem.apply(at, pl.end(v, i+1)+1, -size)
	after := pl.end(v, i)
	pl.runs[v] = slices.Delete(pl.runs[v], i+1, i+2)
	pl.node[at] = -1
	pl.cost -= pl.p.cost[v]
	pl.mem.apply(after+1, pl.end(v, i)+1, size)
}

// commit makes all changes permanent.
func (pl *plan) commit() { pl.log = pl.log[:0] }

// rollback reverts the changes since mark, a former length of the log.
func (pl *plan) rollback(mark int) {
	for len(pl.log) > mark {
		e := pl.log[len(pl.log)-1]
		pl.log = pl.log[:len(pl.log)-1]
		if e.inserted {
			pl.take(e.node, e.at)
		} else {
			pl.put(e.node, e.at)
		}
	}
}

// room returns k empty positions, ascending, directly before position at, or
// false if there are fewer.
func (pl *plan) room(at int32, k int) ([]int32, bool) {
	low := at - 1
	for low >= 0 && pl.node[low] < 0 {
		low--
	}
	gap := int(at - low - 1)
	if gap < k {
		return nil, false
	}
	spots := make([]int32, k)
	for i := range spots {
		spots[i] = low + 1 + int32((i+1)*(gap-k)/(k+1)+i)
	}
	return spots, true
}

// sequence returns the nodes in the order of their executions.
func (pl *plan) sequence() []int32 {
	var s []int32
	for _, v := range pl.node {
		if v >= 0 {
			s = append(s, v)
		}
	}
	return s
}

// respace spreads the executions evenly again.
func (pl *plan) respace() { pl.load(pl.sequence()) }

// schedule converts a sequence to steps that free every output after its last
// reader. The node that stands for outputs to keep is omitted.
func schedule(in *Instance, sequence []int32) []Step {
	type run struct{ step, last int }
	steps := make([]Step, 0, len(sequence))
	latest := make([]run, len(in.Nodes))
	drop := func(v int) {
		s := &steps[latest[v].last]
		s.Drop = append(s.Drop, v)
	}
	ran := make([]bool, len(in.Nodes))
	for _, v := range sequence {
		if int(v) >= len(in.Nodes) {
			continue
		}
		i := len(steps)
		steps = append(steps, Step{Node: int(v)})
		if ran[v] {
			drop(int(v))
		}
		ran[v] = true
		latest[v] = run{i, i}
		for _, u := range in.Nodes[v].Preds {
			latest[u].last = i
		}
	}
	for v := range in.Nodes {
		if !in.Nodes[v].Keep {
			drop(v)
		}
	}
	for i := range steps {
		slices.Sort(steps[i].Drop)
	}
	return steps
}
