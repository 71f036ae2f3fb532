package ort

import (
	"context"
	"encoding/binary"
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/planner/layout"
)

// A Planned is what a graph's intermediate results need in an arena whose
// offsets are planned ahead, in bytes. The graph's own results, which the caller
// owns, and weights are not part of it.
type Planned struct {
	Bytes      int64 // of the arena, in the best order of nodes found
	FileBytes  int64 // of the arena, in the file's order
	BoundBytes int64 // no order of the nodes needs less
}

// A buffers is the graph as a search for orders sees it: nodes and the buffers
// that they make and touch. A view, or a result that may overwrite an operand
// that nothing else reads, lies in its operand's buffer.
type buffers struct {
	size  []int64
	makes [][]int32 // of each node
	uses  [][]int32 // buffers that a node touches, those it makes included
	users [][]int32 // nodes that touch each buffer
	after [][]int32 // nodes that wait for a node
	from  [][]int32 // nodes that a node waits for
	work  int       // steps of the search so far
}

// Plan looks for the order of nodes in which a graph's intermediate results need
// the least. It returns an error where Predict does.
func Plan(g *graph.Graph) (*Planned, error) {
	p, err := newPlan(g, make([]string, len(g.Values)))
	if err != nil {
		return nil, err
	}
	b := p.buffers()
	given := make([]int32, 0, len(b.makes))
	for i := range b.makes {
		given = append(given, int32(i))
	}
	best, bound := b.search(given)
	out := &Planned{BoundBytes: bound}
	if out.FileBytes, err = b.arena(given); err != nil {
		return nil, err
	}
	if out.Bytes, err = b.arena(best); err != nil {
		return nil, err
	}
	out.Bytes = min(out.Bytes, out.FileBytes)
	return out, nil
}

// buffers lists the buffers of the nodes that run, in the file's order.
func (p *plan) buffers() *buffers {
	g := p.g
	nodes := slices.Clone(p.order)
	slices.Sort(nodes)
	reads := make([]int, len(g.Values))
	for _, i := range nodes {
		for _, v := range g.Nodes[i].Inputs {
			if v != graph.NoValue {
				reads[v]++
			}
		}
	}
	b := &buffers{}
	var seen []int32                   // 1 + the last node seen to touch each buffer
	of := make([]int32, len(g.Values)) // 1 + buffer of each value, 0: none that counts
	place := make([]int32, len(g.Nodes))
	for k, i := range nodes {
		place[i] = int32(k)
	}
	for k, i := range nodes {
		n := &g.Nodes[i]
		b.makes, b.uses, b.after, b.from = append(b.makes, nil), append(b.uses, nil), append(b.after, nil), append(b.from, nil)
		for o, v := range n.Outputs {
			switch {
			case v == graph.NoValue || p.output[v]:
			case o == 0 && p.within(n, reads):
				of[v] = of[n.Inputs[0]]
			case p.bytes[v] > 0:
				b.size, seen = append(b.size, aligned(p.bytes[v])), append(seen, 0)
				of[v] = int32(len(b.size))
				b.makes[k] = append(b.makes[k], int32(len(b.size)-1))
			}
		}
		for _, list := range [][]graph.ValueID{n.Inputs, n.Outputs} {
			for _, v := range list {
				if v != graph.NoValue && of[v] > 0 && seen[of[v]-1] != int32(k)+1 {
					seen[of[v]-1] = int32(k) + 1
					b.uses[k] = append(b.uses[k], of[v]-1)
				}
			}
		}
		for _, j := range before(g, n) {
			b.after[place[j]] = append(b.after[place[j]], int32(k))
			b.from[k] = append(b.from[k], place[j])
		}
	}
	b.users = make([][]int32, len(b.size))
	for k, list := range b.uses {
		for _, x := range list {
			b.users[x] = append(b.users[x], int32(k))
		}
	}
	return b
}

// within reports whether a node's first result lies in its first operand's
// buffer whatever the order: a view, or the only reader of a value of its size.
func (p *plan) within(n *graph.Node, reads []int) bool {
	if n.Domain != "" || len(n.Inputs) == 0 || n.Inputs[0] == graph.NoValue {
		return false
	}
	x := n.Inputs[0]
	if slices.Contains(views, n.Op) {
		return true
	}
	v := &p.g.Values[x]
	return slices.Contains(inPlace, n.Op) && v.Kind == graph.Computed && !p.weight(x) && !p.output[x] && reads[x] == 1 && p.bytes[x] == p.bytes[n.Outputs[0]] &&
		!slices.Contains(views, p.g.Nodes[v.Def].Op)
}

// arena places the buffers of an order.
func (b *buffers) arena(order []int32) (int64, error) {
	list := make([]layout.Buffer, len(b.size))
	for i := range list {
		list[i] = layout.Buffer{Lower: -1, Size: b.size[i]}
	}
	for at, k := range order {
		for _, x := range b.uses[k] {
			if list[x].Lower < 0 {
				list[x].Lower = int64(at)
			}
			list[x].Upper = int64(at) + 1
		}
	}
	r, err := layout.Solve(context.Background(), list, layout.Options{Effort: arenaEffort})
	if err != nil {
		return 0, err
	}
	return r.Height, nil
}

// arenaEffort is the effort of a layout, about a tenth of a second.
const arenaEffort = 50_000_000

// A state is a set of nodes that have run, and the order in which they did.
type state struct {
	done       []uint64
	live, peak int64
	last       int32 // the node that ran last, -1: none
	prev       *state
	free       []int32 // nodes that may run
}

// maxStates bounds the states of one number of nodes that the search keeps;
// maxWork, its steps, some half a second.
const (
	maxStates = 64
	maxWork   = 30_000_000
)

// search returns the order of the least live bytes that it finds, and a number
// of bytes that no order goes below. It runs all orders side by side and keeps
// of those that have run the same nodes the one with the lowest peak; it is exact
// while it need not drop any.
func (b *buffers) search(given []int32) (best []int32, bound int64) {
	best = given
	most := b.peak(given)
	for k := range b.makes {
		bound = max(bound, b.working(int32(k)))
	}
	if most <= bound {
		return best, most
	}
	exact := true
	now := []*state{b.start(bound)}
	var end *state
	for len(now) > 0 {
		var next []*state
		seen := map[string]int{}
		for _, s := range now {
			if len(s.free) == 0 {
				if s.peak < most {
					end, most = s, s.peak
				}
				continue
			}
			for _, k := range s.free {
				if b.work > maxWork {
					return b.result(best, end, bound)
				}
				t := b.move(s, k)
				if t.peak >= most {
					continue
				}
				t = b.settle(t, bound)
				key := string(binary64(t.done))
				if at, ok := seen[key]; !ok {
					seen[key] = len(next)
					next = append(next, t)
				} else if t.peak < next[at].peak {
					next[at] = t
				}
			}
		}
		if len(next) > maxStates {
			exact = false
			slices.SortStableFunc(next, func(x, y *state) int {
				if x.peak != y.peak {
					return int(min(max(x.peak-y.peak, -1), 1))
				}
				return int(min(max(x.live-y.live, -1), 1))
			})
			next = next[:maxStates]
		}
		now = next
	}
	if exact {
		bound = most
	}
	return b.result(best, end, bound)
}

func binary64(words []uint64) []byte {
	out := make([]byte, 0, 8*len(words))
	for _, w := range words {
		out = binary.LittleEndian.AppendUint64(out, w)
	}
	return out
}

// result returns the order of a state in which all nodes have run, or the given
// one.
func (b *buffers) result(given []int32, end *state, bound int64) ([]int32, int64) {
	if end == nil {
		return given, bound
	}
	var out []int32
	for s := end; s.last >= 0; s = s.prev {
		out = append(out, s.last)
	}
	slices.Reverse(out)
	return out, bound
}

// start is the state before the first node, and what runs at once there.
func (b *buffers) start(bound int64) *state {
	s := &state{done: make([]uint64, (len(b.makes)+63)/64), last: -1}
	for k, list := range b.from {
		if len(list) == 0 {
			s.free = append(s.free, int32(k))
		}
	}
	return b.settle(s, bound)
}

func (s *state) has(k int32) bool { return s.done[k/64]>>(k%64)&1 == 1 }

// move runs a node.
func (b *buffers) move(s *state, k int32) *state {
	b.work += 200 + len(s.done) + len(s.free) + len(b.after[k])
	t := &state{done: slices.Clone(s.done), live: s.live, peak: s.peak, last: k, prev: s}
	t.done[k/64] |= 1 << (k % 64)
	made, freed := b.change(s, k)
	t.peak = max(t.peak, t.live+made)
	t.live += made - freed
	t.free = make([]int32, 0, len(s.free)+1)
	for _, j := range s.free {
		if j != k {
			t.free = append(t.free, j)
		}
	}
	for _, j := range b.after[k] {
		if b.ready(t, j) {
			t.free = append(t.free, j)
		}
	}
	return t
}

// ready reports whether all that a node waits for has run.
func (b *buffers) ready(s *state, k int32) bool {
	return !slices.ContainsFunc(b.from[k], func(i int32) bool { return !s.has(i) })
}

// change returns the bytes that a node makes, and those that it is the last to
// use.
func (b *buffers) change(s *state, k int32) (made, freed int64) {
	for _, x := range b.makes[k] {
		made += b.size[x]
	}
	for _, x := range b.uses[k] {
		if !slices.ContainsFunc(b.users[x], func(i int32) bool { return i != k && !s.has(i) }) {
			freed += b.size[x]
		}
	}
	return made, freed
}

// settle runs what can only help: nodes that need no more than the peak so far,
// or what every order needs, and leave no more than they find.
func (b *buffers) settle(s *state, bound int64) *state {
	for again := b.work <= maxWork; again; {
		again = false
		b.work += 10 * len(s.free)
		for _, k := range s.free {
			if made, freed := b.change(s, k); made <= freed && s.live+made <= max(s.peak, bound) {
				s, again = b.move(s, k), b.work <= maxWork
				break
			}
		}
	}
	return s
}

// working returns the bytes that live while a node runs in any order.
func (b *buffers) working(k int32) int64 {
	n := int64(0)
	for _, x := range b.uses[k] {
		n += b.size[x]
	}
	return n
}

// peak returns the most bytes that live at once in an order.
func (b *buffers) peak(order []int32) int64 {
	left := make([]int, len(b.users))
	for x, list := range b.users {
		left[x] = len(list)
	}
	live, most := int64(0), int64(0)
	for _, k := range order {
		for _, x := range b.makes[k] {
			live += b.size[x]
		}
		most = max(most, live)
		for _, x := range b.uses[k] {
			if left[x]--; left[x] == 0 {
				live -= b.size[x]
			}
		}
	}
	return most
}
