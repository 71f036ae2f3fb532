package graph

import (
	"fmt"
	"slices"
	"strings"

	"github.com/memplan/memplan/heap"
)

// order returns the indices of d's nodes in execution order: the given order if
// that is one, else by Kahn's algorithm, earlier nodes first.
func (r *resolver) order(d *Draft) ([]int32, error) {
	local := make(map[string]int32, len(d.Nodes)) // producing node; -1 for inputs and initializers
	for _, v := range d.Inputs {
		local[v.Name] = -1
	}
	for _, t := range d.Initializers {
		local[t.Name] = -1
	}
	order := make([]int32, len(d.Nodes))
	for i := range d.Nodes {
		order[i] = int32(i)
		for _, out := range d.Nodes[i].Out {
			if _, twice := local[out]; out != "" && !twice {
				local[out] = int32(i)
			}
		}
	}
	sorted := true
	for i := range d.Nodes {
		d.Nodes[i].uses(func(name string) {
			if p, ok := local[name]; ok && p >= int32(i) {
				sorted = false
			}
		})
	}
	if sorted {
		return order, nil
	}
	order, err := kahn(d, local)
	if err == nil {
		r.warn("unsorted", "", "graph %q: nodes are not in execution order; they were sorted", d.Name)
	}
	return order, err
}

// uses visits the names that n reads, itself or in a subgraph; some twice.
func (n *DraftNode) uses(visit func(name string)) {
	for _, in := range n.In {
		visit(in)
	}
	for _, sub := range n.Subs {
		for _, name := range sub.Body.free {
			visit(name)
		}
	}
}

// kahn sorts d's nodes given the node that produces each local name.
func kahn(d *Draft, local map[string]int32) ([]int32, error) {
	waits := make([]int32, len(d.Nodes)) // inputs not yet produced
	users := make([][]int32, len(d.Nodes))
	for i := range d.Nodes {
		d.Nodes[i].uses(func(name string) {
			if p, ok := local[name]; ok && p >= 0 {
				waits[i]++
				users[p] = append(users[p], int32(i))
			}
		})
	}
	ready := heap.Heap[int32]{Less: func(a, b int32) bool { return a < b }}
	for i, n := range waits {
		if n == 0 {
			ready.Push(int32(i))
		}
	}
	order := make([]int32, 0, len(d.Nodes))
	for ready.Len() > 0 {
		i := ready.Pop()
		order = append(order, i)
		for _, u := range users[i] {
			if waits[u]--; waits[u] == 0 {
				ready.Push(u)
			}
		}
	}
	if len(order) < len(d.Nodes) {
		return nil, cycle(d, local, waits)
	}
	return order, nil
}

// cycle names the nodes of one cycle among those that still wait.
func cycle(d *Draft, local map[string]int32, waits []int32) error {
	at := int32(slices.IndexFunc(waits, func(n int32) bool { return n > 0 }))
	var path []int32
	seen := map[int32]int{}
	for {
		if start, ok := seen[at]; ok {
			path = path[start:]
			break
		}
		seen[at] = len(path)
		path = append(path, at)
		next := int32(-1)
		d.Nodes[at].uses(func(name string) {
			if p, ok := local[name]; ok && p >= 0 && waits[p] > 0 && next < 0 {
				next = p
			}
		})
		at = next
	}
	slices.Reverse(path) // from producers to consumers
	const shown = 8
	var b strings.Builder
	for i, n := range path {
		if i == shown {
			fmt.Fprintf(&b, "(%d more) -> ", len(path)-shown)
			break
		}
		b.WriteString(d.Nodes[n].label(int(n)) + " -> ")
	}
	return fmt.Errorf("%scycle: %s%s", d.Nodes[path[0]].Pos, b.String(), d.Nodes[path[0]].label(int(path[0])))
}
