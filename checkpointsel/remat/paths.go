package remat

import (
	"cmp"
	"slices"
)

// A path says what a span of windows, from one cut to the end of a later
// window, demands of a node whose output leads to something that the span
// needs: nodes[0] is read in the span, or is resident at the cut after it,
// and each of the others is an input of the one before. Where none of them is
// resident at the first cut, all of them are executed in the span:
//
//	sum of resident(v, i) over the path + sum of again(u, j) over the span >= 1
//
// for the path's last node u; the right side is resident(nodes[0], until+1) if
// the first node is carried. Looking at many windows at once is what makes
// these rows stronger than those that look at one after the other: there a
// part of an execution in each window suffices.
type path struct {
	nodes   []int32
	until   int32 // last window of the span
	carried bool
}

// along returns the row of a path from cut i.
func (w *windows) along(i int, d *path) integerRow {
	row := integerRow{unit: 1, bound: 1}
	if d.carried {
		row.bound = 0
		row.terms = append(row.terms, term{w.resident[d.until+1][d.nodes[0]], -1})
	}
	for _, v := range d.nodes {
		if x := w.resident[i][v]; x >= 0 {
			row.terms = append(row.terms, term{x, 1})
		}
	}
	u := d.nodes[len(d.nodes)-1]
	for j := i; j <= int(d.until); j++ {
		if x := w.again[j][u]; x >= 0 {
			row.terms = append(row.terms, term{x, 1})
		}
	}
	return row
}

// A pathFinder finds the violated rows of one span: demand[u] is the part of u
// that the current solution must execute in it, from[u] the reader in the
// path that demands most, or seeded or carriedOver.
type pathFinder struct {
	demand []float64
	from   []int32
}

const (
	nobody      = -1
	seeded      = -2
	carriedOver = -3
)

// A lack is a violated row of a span.
type lack struct {
	window, until, node int32
	nodes               []int32
	carried             bool
	depth               float64
}

// mostPaths is how many rows one separation adds.
const mostPaths = 60

// separatePaths adds the most violated path rows.
func (w *windows) separatePaths() {
	var found []lack
	f := pathFinder{demand: make([]float64, w.p.n), from: make([]int32, w.p.n)}
	sum := make([]float64, w.p.n)
	for i := range w.cuts {
		clear(sum)
		for j := i; j < len(w.cuts); j++ {
			for u := range w.cuts[i] {
				sum[u] += w.value(w.again[j][u])
			}
			found = f.span(w, i, j, sum, found)
		}
	}
	slices.SortStableFunc(found, func(a, b lack) int { return cmp.Compare(b.depth, a.depth) })
	for _, l := range found[:min(len(found), mostPaths)] {
		w.paths = append(w.paths, path{l.nodes, l.until, l.carried})
		w.add(rule{pathRule, l.window, l.node, int32(len(w.paths) - 1)})
	}
}

// span finds the violated rows of windows i to j, given how much of each node
// they execute.
func (f *pathFinder) span(w *windows, i, j int, sum []float64, found []lack) []lack {
	t := w.cuts[i]
	for u := range t {
		f.demand[u], f.from[u] = 0, nobody
	}
	for u := t - 1; u >= 0; u-- {
		d, from := f.demand[u], f.from[u]
		if w.p.readWithin(u, t, w.end(j)+1) {
			d, from = 1, seeded
		} else if j+1 < len(w.cuts) {
			if x := w.value(w.resident[j+1][u]); x > d {
				d, from = x, carriedOver
			}
		}
		d -= w.value(w.resident[i][u])
		f.demand[u], f.from[u] = d, from
		if d <= minLack {
			continue
		}
		if d > sum[u]+minLack {
			found = append(found, f.lack(i, j, u, (d-sum[u])*float64(1+w.p.cost[u])))
		}
		if w.p.once[u] { // it is never executed again: what it reads may be of no use, and without variables
			continue
		}
		for _, v := range w.p.preds[u] {
			if d > f.demand[v] {
				f.demand[v], f.from[v] = d, u
			}
		}
	}
	return found
}

// minLack is by how much a path row must be violated to be added.
const minLack = 1e-3

// lack returns the row of the path that demands most of u.
func (f *pathFinder) lack(i, j int, u int32, depth float64) lack {
	l := lack{window: int32(i), until: int32(j), node: u, depth: depth}
	for v := u; ; v = f.from[v] {
		l.nodes = append(l.nodes, v)
		if f.from[v] < 0 {
			l.carried = f.from[v] == carriedOver
			break
		}
	}
	slices.Reverse(l.nodes)
	return l
}
