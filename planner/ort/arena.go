package ort

import (
	"cmp"
	"slices"

	"github.com/memplan/memplan/graph"
)

// An arena is onnxruntime's BFCArena (core/framework/bfc_arena.cc) with the
// settings of the CPU provider: it takes the smallest free chunk that holds a
// request, and grows by powers of two.
type arena struct {
	chunks  []*chunk // free ones, by size and address
	growth  int64    // the least next growth
	total   int64
	growths []int64
}

// A chunk is a part of a region that the arena has got at once.
type chunk struct {
	region     int
	at, size   int64
	prev, next *chunk // beside it in its region
	free       bool
}

// The CPU provider's settings, as the library logs them.
const (
	initialChunk = 1 << 20   // initial_chunk_size_bytes
	maxDead      = 128 << 20 // max_dead_bytes_per_chunk
)

func newArena() *arena { return &arena{growth: initialChunk} }

func compare(x, y *chunk) int {
	return cmp.Or(cmp.Compare(x.size, y.size), cmp.Compare(x.region, y.region), cmp.Compare(x.at, y.at))
}

// alloc returns a chunk for a request, nil for one of no bytes.
func (a *arena) alloc(bytes int64) *chunk {
	if bytes == 0 {
		return nil
	}
	want := aligned(bytes)
	k, _ := slices.BinarySearchFunc(a.chunks, want, func(c *chunk, want int64) int {
		if c.size < want {
			return -1
		}
		return 1
	})
	if k == len(a.chunks) {
		a.grow(want)
		return a.alloc(bytes)
	}
	c := a.chunks[k]
	a.chunks = slices.Delete(a.chunks, k, k+1)
	c.free = false
	if c.size >= 2*want || c.size-want >= maxDead {
		rest := &chunk{region: c.region, at: c.at + want, size: c.size - want, prev: c, next: c.next}
		if c.next != nil {
			c.next.prev = rest
		}
		c.next, c.size = rest, want
		a.insert(rest)
	}
	return c
}

// grow gets a region from the system.
func (a *arena) grow(want int64) {
	grown := false
	for a.growth < want {
		a.growth *= 2
		grown = true
	}
	a.insert(&chunk{region: len(a.growths), size: a.growth})
	a.total += a.growth
	a.growths = append(a.growths, a.growth)
	if !grown {
		a.growth *= 2
	}
}

func (a *arena) insert(c *chunk) {
	c.free = true
	k, _ := slices.BinarySearchFunc(a.chunks, c, compare)
	a.chunks = slices.Insert(a.chunks, k, c)
}

func (a *arena) remove(c *chunk) {
	k, _ := slices.BinarySearchFunc(a.chunks, c, compare)
	a.chunks = slices.Delete(a.chunks, k, k+1)
}

// free returns a chunk and joins it with free ones beside it.
func (a *arena) free(c *chunk) {
	if c == nil {
		return
	}
	if n := c.next; n != nil && n.free {
		a.remove(n)
		c.swallow(n)
	}
	if b := c.prev; b != nil && b.free {
		a.remove(b)
		b.swallow(c)
		c = b
	}
	a.insert(c)
}

// swallow adds the next chunk.
func (c *chunk) swallow(n *chunk) {
	c.size += n.size
	c.next = n.next
	if n.next != nil {
		n.next.prev = c
	}
}

// A pattern is what MemPatternPlanner (core/framework/mem_pattern_planner.h)
// makes of a run: each buffer in the tightest gap between those alive, or on top.
type pattern struct {
	blocks []block // alive, by offset
	top    int64
	live   int64
	most   int64 // of live
}

type block struct {
	of       graph.ValueID
	at, size int64
}

func (t *pattern) place(v graph.ValueID, bytes int64) {
	if bytes == 0 {
		return
	}
	k, at := len(t.blocks), int64(0)
	if k > 0 {
		at = t.blocks[k-1].at + t.blocks[k-1].size
	}
	end, waste := int64(0), int64(-1)
	for i, b := range t.blocks {
		if gap := b.at - end; gap >= bytes && (waste < 0 || gap-bytes < waste) {
			k, at, waste = i, end, gap-bytes
		}
		end = b.at + b.size
	}
	t.blocks = slices.Insert(t.blocks, k, block{v, at, bytes})
	t.top = max(t.top, at+bytes)
	t.live += bytes
	t.most = max(t.most, t.live)
}

func (t *pattern) drop(v graph.ValueID) {
	for i, b := range t.blocks {
		if b.of == v {
			t.live -= b.size
			t.blocks = slices.Delete(t.blocks, i, i+1)
			return
		}
	}
}
