package remat

import "slices"

// A cut is the relaxation of the problem at one moment: when node at is
// executed for the first time. It looks at the nodes before at whose outputs
// are read by first executions in (at, until). Each of them is then either
// resident, which takes memory, or is recomputed before until, which costs
// time and needs its own inputs resident or recomputed; any other node may
// be kept to serve such recomputations. The inputs of at are resident and
// nothing is charged for keeping them. The least cost of recomputation under
// the memory limit is a lower bound on what any schedule pays between the
// first executions of at and until.
//
// In binary variables, a for available and r for recomputed:
//
//	minimise    sum cost r
//	subject to  sum size (a - r) <= cap
//	            r[u] <= a[u],  r[u] <= a[v] for each input v of u
//	            a[u] = 1 if u is needed
//
// With a price on memory in place of the limit, all constraints are
// implications, and the minimum is a minimum cut of a network with one or two
// vertices per node.
type cut struct {
	p         *problem
	at, until int32
	cap       int64
	nodes     []int32 // candidates: needed nodes and those that may serve them
	needed    []bool  // by place in nodes
	size      int64   // of all candidates
	cost      int64   // of all candidates

	net  network
	base []int64 // capacities that do not depend on the price
	arcs []candidateArcs

	implied []implication
}

// An implication is an arc by which a recomputed candidate, given by its index,
// needs another one available.
type implication struct{ arc, from, to int32 }

// candidateArcs are the arcs of one candidate whose capacities change with
// the price and with decisions; -1 where the candidate is needed and so has
// no variable a.
type candidateArcs struct {
	r, a      int32 // vertices
	rOn, rOff int32 // source to r, r to sink
	aOn, aOff int32 // source to a, a to sink
	aToR      int32 // a to r: has capacity only if the node must not be kept
}

// A decision fixes whether a candidate is resident at the cut.
type decision struct {
	place int32 // in cut.nodes
	kept  bool
}

// A price is the price of memory: money per size, in units of the problem.
type price struct{ money, size int64 }

// newCut returns the cut at node at for reads before until.
func newCut(p *problem, at, until int32) *cut {
	c := &cut{p: p, at: at, until: until, cap: p.cap - p.need(at)}
	const free, candidate = 1, 2
	mark := make([]int8, at+1)
	for _, u := range p.preds[at] {
		mark[u] = free
	}
	for u := at - 1; u >= 0; u-- {
		needed := mark[u] != free && p.readWithin(u, at, until)
		if !needed && mark[u] != candidate {
			continue
		}
		c.nodes = append(c.nodes, u)
		c.needed = append(c.needed, needed)
		c.size += p.size[u]
		c.cost += p.cost[u]
		for _, v := range p.preds[u] {
			if mark[v] == 0 && !p.once[u] {
				mark[v] = candidate
			}
		}
	}
	return c
}

// readWithin reports whether a node in (at, until) reads u.
func (p *problem) readWithin(u, at, until int32) bool {
	i, _ := slices.BinarySearch(p.succs[u], at+1)
	return i < len(p.succs[u]) && p.succs[u][i] < until
}

// build makes the network. All capacities that depend on the price are zero.
func (c *cut) build() {
	c.implied = nil
	place := make([]int32, c.at)
	for i := range place {
		place[i] = -1
	}
	vertices := int32(2)
	c.arcs = make([]candidateArcs, len(c.nodes))
	for i, u := range c.nodes {
		place[u] = int32(i)
		c.arcs[i] = candidateArcs{r: vertices, a: -1, aOn: -1, aOff: -1, aToR: -1}
		vertices++
		if !c.needed[i] {
			c.arcs[i].a = vertices
			vertices++
		}
	}
	arcs := 0
	for i, u := range c.nodes {
		if arcs += 2 + len(c.p.preds[u]); !c.needed[i] {
			arcs += 4
		}
	}
	g := &c.net
	g.reset(int(vertices))
	g.grow(arcs)
	for i, u := range c.nodes {
		x := &c.arcs[i]
		x.rOn, x.rOff = g.arc(source, x.r, 0), g.arc(x.r, sink, 0)
		if !c.needed[i] {
			x.aOn, x.aOff = g.arc(source, x.a, 0), g.arc(x.a, sink, 0)
			x.aToR = g.arc(x.a, x.r, 0)
			g.arc(x.r, x.a, infinite)
		}
		for _, v := range c.p.preds[u] {
			if j := place[v]; j >= 0 && !c.needed[j] {
				c.implied = append(c.implied, implication{g.arc(x.r, c.arcs[j].a, infinite), int32(i), j})
			}
		}
	}
	c.base = slices.Clone(g.res)
}

// A point is a solution of a cut without the memory limit.
type point struct {
	cost, size int64  // of what is recomputed, of what is kept
	kept       []bool // by place in cut.nodes
	recomputed []bool
}

// solve finds the minimum of cost + l * size for the given price l under the
// decisions. It returns the value multiplied by l.size, and two solutions
// that attain it: the one with fewest and the one with most variables set.
// It reports false if the decisions contradict each other.
func (c *cut) solve(l price, fixed []decision) (value int64, least, most point, ok bool) {
	value = c.load(l, fixed)
	flow := c.net.maxflow()
	if flow >= infinite {
		return 0, point{}, point{}, false
	}
	least = c.point(c.net.level, false)
	c.toSink()
	most = c.point(c.net.level, true)
	return value + flow, least, most, true
}

// load sets the capacities and returns the constant of the objective.
func (c *cut) load(l price, fixed []decision) (constant int64) {
	res := c.net.res
	copy(res, c.base)
	for i, u := range c.nodes {
		x := &c.arcs[i]
		hold := l.money * c.p.size[u]
		w := l.size*c.p.cost[u] - hold
		if c.needed[i] {
			constant += hold
		} else {
			res[x.aOff] = hold
		}
		if c.p.once[u] {
			w = infinite
		}
		if w < 0 {
			res[x.rOn] = -w
			constant += w
		} else {
			res[x.rOff] = w
		}
	}
	for _, d := range fixed {
		x := &c.arcs[d.place]
		switch {
		case d.kept && x.a >= 0:
			res[x.aOn], res[x.rOff] = infinite, infinite
		case d.kept:
			res[x.rOff] = infinite
		case x.a >= 0:
			res[x.aToR] = infinite
		default:
			res[x.rOn] += infinite
		}
	}
	return constant
}

// toSink marks with level 0 the vertices that reach the sink, with -1 the
// others.
func (c *cut) toSink() {
	g := &c.net
	for v := range g.level {
		g.level[v] = -1
	}
	g.level[sink] = 0
	g.queue = append(g.queue[:0], sink)
	for i := 0; i < len(g.queue); i++ {
		for a := g.head[g.queue[i]]; a >= 0; a = g.next[a] {
			if w := g.to[a]; g.res[a^1] > 0 && g.level[w] < 0 {
				g.level[w] = 0
				g.queue = append(g.queue, w)
			}
		}
	}
}

// point reads a solution off the levels: variables are set where the level
// is negative, or where it is not.
func (c *cut) point(level []int32, negative bool) point {
	s := point{kept: make([]bool, len(c.nodes)), recomputed: make([]bool, len(c.nodes))}
	for i, u := range c.nodes {
		x := &c.arcs[i]
		r := (level[x.r] < 0) == negative
		a := x.a < 0 || (level[x.a] < 0) == negative
		switch {
		case r:
			s.recomputed[i] = true
			s.cost += c.p.cost[u]
		case a:
			s.kept[i] = true
			s.size += c.p.size[u]
		}
	}
	return s
}
