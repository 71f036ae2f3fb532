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
	Work   []Span  // of each node: memory for a library of the device while it runs
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

// blocks lists what lives when. A buffer lives through whole nodes: those that a
// node allocates inside share nothing, as its kernel may use them all at once.
// What outlives a step lives always.
func blocks(p *program.Program) []block {
	r := liveness.NewRanges(p)
	end := int32(len(p.Nodes))
	var out []block
	for i := range p.Storages {
		s := &p.Storages[i]
		b := block{id: program.StorageID(i), first: r.Start[i], last: r.End[i], size: RoundUp(s.Bytes + Guard)}
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

// NewLayout places all storages.
func NewLayout(p *program.Program) *Layout { return NewLayoutFor(p, make([]int64, len(p.Nodes))) }

// NewLayoutFor places all storages, and for each node as many bytes of work as
// are given: the best of the greedy orders.
func NewLayoutFor(p *program.Program, work []int64) *Layout {
	list := append(blocks(p), workBlocks(p, work)...)
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
		offset, bytes := place(sorted, len(p.Storages)+len(work))
		if best.Bytes < 0 || bytes < best.Bytes {
			best = &Layout{Offset: offset, Bytes: bytes, Order: o.name}
		}
		if bytes == bound {
			break
		}
	}
	best.Bound = bound
	best.Work = workSpans(best.Offset[len(p.Storages):], work)
	best.Offset = best.Offset[:len(p.Storages)]
	return best
}

// workBlocks are what libraries work in, numbered behind the storages.
func workBlocks(p *program.Program, work []int64) []block {
	var list []block
	for n, bytes := range work {
		if bytes > 0 {
			list = append(list, block{id: program.StorageID(len(p.Storages) + n), first: int32(n), last: int32(n), size: RoundUp(bytes + Guard)})
		}
	}
	return list
}

func workSpans(offset, work []int64) []Span {
	out := make([]Span, len(work))
	for n, bytes := range work {
		if bytes > 0 {
			out[n] = Span{offset[n], bytes}
		}
	}
	return out
}

func always(b *block, p *program.Program) bool {
	return b.first == 0 && b.last == int32(len(p.Nodes))
}

// place gives each block the lowest offset where no earlier one lives at the
// same time.
func place(list []block, storages int) (offset []int64, bytes int64) {
	in := newArea(storages)
	for i := range list {
		in.put(&list[i], in.lowest(&list[i]))
	}
	return in.offset, in.bytes
}

// An area is an arena that fills.
type area struct {
	offset []int64  // of each block by its id, -1: not there
	placed []*block // by offset
	bytes  int64
}

func newArea(blocks int) *area {
	a := &area{offset: make([]int64, blocks)}
	for i := range a.offset {
		a.offset[i] = -1
	}
	return a
}

// lowest returns the lowest offset at which a block touches none that lives at
// the same time.
func (a *area) lowest(b *block) int64 {
	at := int64(0)
	for _, o := range a.placed {
		if o.last < b.first || b.last < o.first {
			continue
		}
		if a.offset[o.id]-at >= b.size {
			break
		}
		at = max(at, a.offset[o.id]+o.size)
	}
	return at
}

func (a *area) put(b *block, at int64) {
	a.offset[b.id] = at
	a.bytes = max(a.bytes, at+b.size)
	k := sort.Search(len(a.placed), func(k int) bool { return a.offset[a.placed[k].id] > at })
	a.placed = slices.Insert(a.placed, k, b)
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
			if err := l.checkWork(p, int(node), there); err != nil {
				return err
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

// checkWork looks for a live buffer in a node's work.
func (l *Layout) checkWork(p *program.Program, node int, there map[program.StorageID]bool) error {
	w := l.Work[node]
	if w.Bytes == 0 {
		return nil
	}
	if w.At < 0 || w.At%Align != 0 || w.At+w.Bytes+Guard > l.Bytes {
		return fmt.Errorf("layout: node %d: %d bytes of work at %d in an arena of %d", node, w.Bytes, w.At, l.Bytes)
	}
	for o := range there {
		if from, to := l.Offset[o], l.Offset[o]+p.Storages[o].Bytes+Guard; w.At < to && from < w.At+w.Bytes+Guard {
			return fmt.Errorf("layout: node %d: its work and storage %d (%s) overlap", node, o, p.Storages[o].Name)
		}
	}
	return nil
}

// Works asks a device how many bytes it wants to work in for each node.
func Works(d Device, p *program.Program) ([]int64, error) { return asked(d.Work, p) }

// needs is how much of its work each node cannot run without.
func needs(d Device, p *program.Program) ([]int64, error) { return asked(d.Needs, p) }

func asked(ask func(*program.Node) (int64, error), p *program.Program) ([]int64, error) {
	out := make([]int64, len(p.Nodes))
	for i := range p.Nodes {
		var err error
		if out[i], err = ask(&p.Nodes[i]); err != nil {
			return nil, fmt.Errorf("node %d (%s): %w", i, p.Nodes[i].Op, err)
		}
	}
	return out, nil
}
