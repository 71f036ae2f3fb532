package remat

import "slices"

// A problem is an instance with a budget, in the form the algorithms work on:
// costs and sizes divided by their common divisors, with lists of readers, and
// with outputs that must be kept as the inputs of one last node that costs
// nothing.
type problem struct {
	n          int
	cost       []int64 // per execution, in multiples of costUnit
	size, work []int64 // in multiples of sizeUnit
	once       []bool
	preds      [][]int32
	succs      [][]int32 // ascending
	dearest    []int32   // all nodes, the costliest first
	last       []int32   // last reader, or the node itself
	backward   int32     // first node of the backward pass, n if there is none
	cap        int64     // the budget without the fixed bytes, in multiples of sizeUnit

	costUnit, sizeUnit int64
	total              int64 // cost of executing every node once
}

// newProblem returns in with budget. The instance must be valid.
func newProblem(in *Instance, budget int64) *problem {
	p := &problem{n: len(in.Nodes), backward: int32(len(in.Nodes))}
	var keep []int32
	for v := range in.Nodes {
		n := &in.Nodes[v]
		p.add(n)
		if n.Backward {
			p.backward = min(p.backward, int32(v))
		}
		if n.Keep {
			keep = append(keep, int32(v))
		}
	}
	if keep != nil {
		p.add(&Node{})
		p.preds[p.n] = keep
		p.n++
	}
	p.costUnit, p.sizeUnit = common(p.cost), common(p.size, p.work)
	for v := range p.n {
		p.cost[v] /= p.costUnit
		p.size[v] /= p.sizeUnit
		p.work[v] /= p.sizeUnit
		p.total += p.cost[v]
	}
	p.cap = (budget - in.Fixed) / p.sizeUnit
	for v := range int32(p.n) {
		p.dearest = append(p.dearest, v)
	}
	slices.SortStableFunc(p.dearest, func(a, b int32) int { return -compare(p.cost[a], p.cost[b]) })
	p.link()
	return p
}

func (p *problem) add(n *Node) {
	p.cost = append(p.cost, n.Cost)
	p.size = append(p.size, n.Size)
	p.work = append(p.work, n.Work)
	p.once = append(p.once, n.Once)
	preds := make([]int32, len(n.Preds))
	for i, u := range n.Preds {
		preds[i] = int32(u)
	}
	slices.Sort(preds)
	p.preds = append(p.preds, preds)
}

// link fills in the readers.
func (p *problem) link() {
	p.succs = make([][]int32, p.n)
	p.last = make([]int32, p.n)
	for v := range p.n {
		p.last[v] = int32(v)
		for _, u := range p.preds[v] {
			p.succs[u] = append(p.succs[u], int32(v))
			p.last[u] = int32(v)
		}
	}
}

// need returns the memory of executing v with nothing else resident.
func (p *problem) need(v int32) int64 {
	sum := p.size[v] + p.work[v]
	for _, u := range p.preds[v] {
		sum += p.size[u]
	}
	return sum
}

// common returns the greatest common divisor of all the numbers, 1 if they are
// all zero.
func common(lists ...[]int64) int64 {
	var g int64
	for _, l := range lists {
		for _, x := range l {
			for x != 0 {
				g, x = x, g%x
			}
		}
	}
	return max(g, -g, 1)
}
