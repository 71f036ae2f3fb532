package validate

import (
	"fmt"
	"slices"
	"sort"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/liveness"
)

// Align is the alignment of every buffer in the arena, in bytes: what
// cudaMalloc and PyTorch's allocator give, and more than any library asks for.
const Align = 256

// Guard is the least number of bytes after every buffer that nobody may write.
const Guard = 256

// A Layout gives every storage of a program its place in one arena.
type Layout struct {
	Offset []int64 // of each storage, -1 for one that never exists
	Bytes  int64   // the arena's
	Bound  int64   // most bytes that live at once, guards included: no layout is smaller
	Order  string  // the greedy order that gave it
}

// A block is a storage to place: it lives from node first to node last, both
// included, and takes size bytes with its guard.
type block struct {
	id          program.StorageID
	first, last int32
	size        int64
}

func roundUp(n int64) int64 { return (n + Align - 1) / Align * Align }

// blocks lists what lives when. A buffer lives through whole nodes: those that a
// node allocates inside share nothing, as its kernel may use them all at once.
// What outlives a step lives always.
func blocks(p *program.Program) []block {
	r := liveness.NewRanges(p)
	end := int32(len(p.Nodes))
	var out []block
	for i := range p.Storages {
		s := &p.Storages[i]
		b := block{id: program.StorageID(i), first: r.Start[i], last: r.End[i], size: roundUp(s.Bytes + Guard)}
		switch s.Life {
		case program.Static:
			b.first, b.last = 0, end
		case program.State:
			if b.first < 0 {
				continue
			}
			b.first, b.last = 0, end
		case program.Carried:
			b.last = end
		}
		if b.first < 0 { // of no step
			continue
		}
		out = append(out, b)
	}
	if p.Micros > program.MicrosBuilt {
		repeated(p, out)
	}
	return out
}

// repeated lets what the last micro-batch built frees in its own repetition live
// to the end of it.
func repeated(p *program.Program, list []block) {
	lo, hi := int32(-1), int32(-1)
	for i := range p.Nodes {
		if n := &p.Nodes[i]; p.Runs(n) > 1 {
			if lo < 0 {
				lo = int32(i)
			}
			hi = int32(i)
		}
	}
	for i := range list {
		if b := &list[i]; b.first < lo && b.last >= lo && b.last <= hi {
			b.last = hi
		}
	}
}

// orders are the greedy orders: earlier blocks are placed first, each at the
// lowest free offset.
var orders = []struct {
	name string
	less func(a, b *block) bool
}{
	{"size", func(a, b *block) bool { return a.size > b.size }},
	{"lifetime", func(a, b *block) bool { return a.last-a.first > b.last-b.first }},
	{"size x lifetime", func(a, b *block) bool {
		return float64(a.size)*float64(a.last-a.first+1) > float64(b.size)*float64(b.last-b.first+1)
	}},
	{"birth", func(a, b *block) bool { return a.first < b.first }},
	{"death", func(a, b *block) bool { return a.last > b.last }},
}

// NewLayout places all storages: the best of the greedy orders.
func NewLayout(p *program.Program) *Layout {
	list := blocks(p)
	best := &Layout{Bytes: -1}
	bound := maxLive(list, len(p.Nodes))
	for _, o := range orders {
		sorted := slices.Clone(list)
		sort.SliceStable(sorted, func(i, j int) bool { // what lives always lies at the bottom
			a, b := &sorted[i], &sorted[j]
			if x, y := always(a, p), always(b, p); x != y {
				return x
			}
			if o.less(a, b) != o.less(b, a) {
				return o.less(a, b)
			}
			return a.size > b.size
		})
		offset, bytes := place(sorted, len(p.Storages))
		if best.Bytes < 0 || bytes < best.Bytes {
			best = &Layout{Offset: offset, Bytes: bytes, Order: o.name}
		}
		if bytes == bound {
			break
		}
	}
	best.Bound = bound
	return best
}

func always(b *block, p *program.Program) bool {
	return b.first == 0 && b.last == int32(len(p.Nodes))
}

// place gives each block the lowest offset where no earlier one lives at the
// same time.
func place(list []block, storages int) (offset []int64, bytes int64) {
	offset = make([]int64, storages)
	for i := range offset {
		offset[i] = -1
	}
	placed := make([]*block, 0, len(list)) // by offset
	for i := range list {
		b := &list[i]
		at := int64(0)
		for _, o := range placed {
			if o.last < b.first || b.last < o.first {
				continue
			}
			if offset[o.id]-at >= b.size {
				break
			}
			at = max(at, offset[o.id]+o.size)
		}
		offset[b.id] = at
		bytes = max(bytes, at+b.size)
		k := sort.Search(len(placed), func(k int) bool { return offset[placed[k].id] > at })
		placed = slices.Insert(placed, k, b)
	}
	return offset, bytes
}

// maxLive is the most bytes that live at one node.
func maxLive(list []block, nodes int) int64 {
	delta := make([]int64, nodes+2)
	for _, b := range list {
		delta[b.first] += b.size
		delta[b.last+1] -= b.size
	}
	var live, most int64
	for _, d := range delta {
		live += d
		most = max(most, live)
	}
	return most
}

// Gaps returns for each node the widest run of the arena that no buffer holds
// while it runs: what a library may work in without taking more memory.
func (l *Layout) Gaps(p *program.Program) []Span {
	list := blocks(p)
	born := make([][]*block, len(p.Nodes)+1)
	for i := range list {
		born[list[i].first] = append(born[list[i].first], &list[i])
	}
	at := func(b *block) int64 { return l.Offset[b.id] }
	var live []*block // by offset
	out := make([]Span, len(p.Nodes))
	for n := range out {
		live = slices.DeleteFunc(live, func(b *block) bool { return b.last < int32(n) })
		for _, b := range born[n] {
			k := sort.Search(len(live), func(k int) bool { return at(live[k]) > at(b) })
			live = slices.Insert(live, k, b)
		}
		end := int64(0)
		for _, b := range live {
			if free := at(b) - end; free > out[n].Bytes {
				out[n] = Span{end, free}
			}
			end = max(end, at(b)+b.size)
		}
		if l.Bytes-end > out[n].Bytes {
			out[n] = Span{end, l.Bytes - end}
		}
	}
	return out
}

// Check verifies a layout without the ranges it was made from: it walks the
// nodes, keeps who is there, and compares every new buffer with all of them.
// It returns an error naming two that overlap, or one outside the arena.
func (l *Layout) Check(p *program.Program) error {
	there := map[program.StorageID]bool{}
	add := func(node int, id program.StorageID) error {
		at, n := l.Offset[id], p.Storages[id].Bytes+Guard
		if at < 0 || at%Align != 0 || at+n > l.Bytes {
			return fmt.Errorf("layout: node %d: storage %d (%s) of %d bytes at %d in an arena of %d", node, id, p.Storages[id].Name, n-Guard, at, l.Bytes)
		}
		for o := range there {
			if from, to := l.Offset[o], l.Offset[o]+p.Storages[o].Bytes+Guard; at < to && from < at+n {
				return fmt.Errorf("layout: node %d: storages %d (%s) and %d (%s) overlap", node, id, p.Storages[id].Name, o, p.Storages[o].Name)
			}
		}
		there[id] = true
		return nil
	}
	for _, id := range p.Statics {
		if err := add(-1, id); err != nil {
			return err
		}
	}
	first, steady := liveness.Steps(p)
	for _, t := range []*liveness.Timeline{first, steady, steady} {
		for i := 0; i < len(t.Events); {
			node, j := t.Events[i].Node, i
			for ; j < len(t.Events) && t.Events[j].Node == node; j++ { // frees take place when the node has run
				if e := t.Events[j]; !e.Free {
					if err := add(int(node), e.Storage); err != nil {
						return err
					}
				}
			}
			for ; i < j; i++ {
				if e := t.Events[i]; e.Free {
					delete(there, e.Storage)
				}
			}
		}
	}
	return nil
}
