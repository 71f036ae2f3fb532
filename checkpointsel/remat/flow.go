package remat

import "slices"

import "math"

// infinite is a capacity that no cut worth having contains: all others
// together are less.
const infinite = math.MaxInt64 / 8

// A network is a directed graph with integer capacities, for maximum flows
// from vertex 0 to vertex 1. Every arc is followed by its reverse, so that
// arc a and arc a^1 are one pair; flow on an arc is the residual capacity of
// its reverse.
//
// The algorithm is Dinic's: O(V^2 E) in the worst case, near linear on the
// closure networks of cuts.
type network struct {
	head  []int32 // first arc of each vertex in the lists below, -1: none
	next  []int32 // next arc of the same vertex
	to    []int32
	res   []int64 // residual capacity
	level []int32
	iter  []int32
	queue []int32
	path  []int32
}

const (
	source = 0
	sink   = 1
)

// reset makes the network one of n vertices without arcs.
func (g *network) reset(n int) {
	g.head = resize(g.head, n)
	g.level = resize(g.level, n)
	g.iter = resize(g.iter, n)
	for v := range g.head {
		g.head[v] = -1
	}
	g.next, g.to, g.res = g.next[:0], g.to[:0], g.res[:0]
}

// resize returns s with length n, its contents undefined.
func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// grow makes room for n arcs.
func (g *network) grow(n int) {
	g.to, g.res, g.next = slices.Grow(g.to, 2*n), slices.Grow(g.res, 2*n), slices.Grow(g.next, 2*n)
}

// arc adds an arc and returns its number; that of its reverse is one higher.
func (g *network) arc(from, to int32, capacity int64) int32 {
	a := int32(len(g.to))
	g.to = append(g.to, to, from)
	g.res = append(g.res, capacity, 0)
	g.next = append(g.next, g.head[from], g.head[to])
	g.head[from], g.head[to] = a, a+1
	return a
}

// maxflow augments the flow until it is maximal, or infinite, and returns
// what it added.
func (g *network) maxflow() int64 {
	var sum int64
	for sum < infinite && g.levels() {
		copy(g.iter, g.head)
		sum += g.block()
	}
	return sum
}

// levels sets the distance of each vertex from the source in the residual
// graph, -1 for those out of reach, and reports whether the sink is in reach.
func (g *network) levels() bool {
	for v := range g.level {
		g.level[v] = -1
	}
	g.level[source] = 0
	g.queue = append(g.queue[:0], source)
	for i := 0; i < len(g.queue); i++ {
		v := g.queue[i]
		for a := g.head[v]; a >= 0; a = g.next[a] {
			if w := g.to[a]; g.res[a] > 0 && g.level[w] < 0 {
				g.level[w] = g.level[v] + 1
				g.queue = append(g.queue, w)
			}
		}
	}
	return g.level[sink] >= 0
}

// block finds a blocking flow in the level graph, without recursion: chains
// of implications are as deep as the instance.
func (g *network) block() int64 {
	var sum int64
	g.path = g.path[:0]
	v := int32(source)
	for {
		if v == sink {
			f, cut := g.push()
			if sum += f; sum >= infinite {
				return sum
			}
			v = g.to[g.path[cut]^1]
			g.path = g.path[:cut]
			continue
		}
		if a := g.advance(v); a >= 0 {
			g.path = append(g.path, a)
			v = g.to[a]
			continue
		}
		if v == source {
			return sum
		}
		g.level[v] = -1
		a := g.path[len(g.path)-1]
		g.path = g.path[:len(g.path)-1]
		v = g.to[a^1]
	}
}

// advance returns the next usable arc of v, or -1.
func (g *network) advance(v int32) int32 {
	for a := g.iter[v]; a >= 0; a = g.next[a] {
		if g.res[a] > 0 && g.level[g.to[a]] == g.level[v]+1 {
			g.iter[v] = a
			return a
		}
	}
	g.iter[v] = -1
	return -1
}

// push sends what the current path can carry and returns it, with the place
// in the path of the first arc that is then full.
func (g *network) push() (flow int64, cut int) {
	flow = math.MaxInt64
	for i, a := range g.path {
		if g.res[a] < flow {
			flow, cut = g.res[a], i
		}
	}
	for _, a := range g.path {
		g.res[a] -= flow
		g.res[a^1] += flow
	}
	return flow, cut
}
