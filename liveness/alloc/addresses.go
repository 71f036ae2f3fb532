package alloc

import (
	"cmp"
	"slices"
)

// An addresses decides where the driver puts segments, which matters: of
// several free blocks of one size the one at the lowest address is used.
type addresses interface {
	take(n int64) int64 // the address of n new bytes
	give(addr, n int64) // frees n bytes
}

// chunks is how cudaMalloc places memory of 2 MiB and more, as seen on an H200
// with driver 580 (testdata/README.md): it reserves addresses in chunks, whole
// multiples of 32 MiB, from the top down in the highest hole that is larger
// than the chunk, and cuts several segments from one: from the most recent
// chunk with room, the smallest piece that suffices. A chunk that is entirely
// free is returned. In a real process the holes also depend on other mappings,
// including the host's allocator, so this is one of the possible orders.
type chunks struct {
	all   []*addressChunk // by time of creation
	holes []extent        // below top, by address
}

const (
	pageUnit  = 2 << 20
	chunkUnit = 32 << 20
	topOfAll  = int64(1) << 61 // no chunk reaches above it
)

// An addressChunk is a reserved range with its free pieces, by address.
type addressChunk struct {
	extent
	pieces []extent
}

func newChunks() *chunks { return &chunks{holes: []extent{{0, topOfAll}}} }

func (e extent) size() int64 { return e.to - e.from }

// take implements addresses.
func (c *chunks) take(n int64) int64 {
	n = ceil(n, pageUnit)
	for i := len(c.all) - 1; i >= 0; i-- {
		if a, ok := c.all[i].take(n); ok {
			return a
		}
	}
	k := ceil(n, chunkUnit)
	for i := len(c.holes) - 1; i >= 0; i-- {
		if h := &c.holes[i]; h.size() > k {
			h.to -= k
			ch := &addressChunk{extent: extent{h.to, h.to + k}, pieces: []extent{{h.to, h.to + k}}}
			c.all = append(c.all, ch)
			a, _ := ch.take(n)
			return a
		}
	}
	panic("alloc: out of addresses")
}

// take cuts n bytes from the start of the smallest piece that has them.
func (c *addressChunk) take(n int64) (int64, bool) {
	best := -1
	for i, p := range c.pieces {
		if p.size() >= n && (best < 0 || p.size() < c.pieces[best].size()) {
			best = i
		}
	}
	if best < 0 {
		return 0, false
	}
	a := c.pieces[best].from
	if c.pieces[best].from += n; c.pieces[best].size() == 0 {
		c.pieces = slices.Delete(c.pieces, best, best+1)
	}
	return a, true
}

// give implements addresses.
func (c *chunks) give(addr, n int64) {
	n = ceil(n, pageUnit)
	i := slices.IndexFunc(c.all, func(ch *addressChunk) bool { return ch.from <= addr && addr < ch.to })
	ch := c.all[i]
	ch.pieces = addExtent(ch.pieces, extent{addr, addr + n})
	if len(ch.pieces) == 1 && ch.pieces[0] == ch.extent {
		c.all = slices.Delete(c.all, i, i+1)
		c.holes = addExtent(c.holes, ch.extent)
	}
}

// addExtent adds a range to ranges ordered by address, merged with those it touches.
func addExtent(x []extent, e extent) []extent {
	i, _ := slices.BinarySearchFunc(x, e, func(a, b extent) int { return cmp.Compare(a.from, b.from) })
	if i < len(x) && x[i].from == e.to {
		e.to = x[i].to
		x = slices.Delete(x, i, i+1)
	}
	if i > 0 && x[i-1].to == e.from {
		x[i-1].to = e.to
		return x
	}
	return slices.Insert(x, i, e)
}
