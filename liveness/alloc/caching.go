// Package alloc holds models of memory allocators.
package alloc

import (
	"errors"
	"fmt"
	"sort"
)

// PyTorch's constants, in bytes (c10/core/AllocatorConfig.h).
const (
	minBlock      = 512
	smallSize     = 1 << 20
	smallBuffer   = 2 << 20
	largeBuffer   = 20 << 20
	minLargeAlloc = 10 << 20
	roundLarge    = 2 << 20
)

// ErrOutOfMemory is the error of a request that cannot be served under the cap.
var ErrOutOfMemory = errors.New("out of memory")

// Conf are the options of PYTORCH_ALLOC_CONF. The zero Conf is the default.
type Conf struct{}

// A Handle names an allocation; the zero Handle is an allocation of 0 bytes.
type Handle struct{ b *block }

// A block is a part of a segment.
type block struct {
	addr, size int64
	prev, next *block // neighbours in the segment
	free       bool
	pool       *pool
}

// A pool holds free blocks ordered by size, then address.
type pool struct {
	small bool
	free  []*block
}

// Caching is PyTorch's caching allocator on one stream
// (c10/cuda/CUDACachingAllocator.cpp, DeviceCachingAllocator).
type Caching struct {
	cap          int64
	small, large pool
	next         int64 // address of the next segment
	allocated    int64
	reserved     int64
}

// NewCaching returns an empty allocator that reserves at most cap bytes; 0 is
// no limit.
func NewCaching(_ Conf, cap int64) *Caching {
	return &Caching{cap: cap, small: pool{small: true}, next: 1 << 30}
}

// Allocated returns the bytes of blocks in use.
func (c *Caching) Allocated() int64 { return c.allocated }

// Reserved returns the bytes of all segments.
func (c *Caching) Reserved() int64 { return c.reserved }

func (p *pool) find(size, addr int64) int {
	return sort.Search(len(p.free), func(i int) bool {
		b := p.free[i]
		return b.size > size || b.size == size && b.addr >= addr
	})
}

func (p *pool) insert(b *block) {
	i := p.find(b.size, b.addr)
	p.free = append(p.free, nil)
	copy(p.free[i+1:], p.free[i:])
	p.free[i] = b
	b.free = true
}

func (p *pool) remove(b *block) {
	i := p.find(b.size, b.addr)
	copy(p.free[i:], p.free[i+1:])
	p.free = p.free[:len(p.free)-1]
	b.free = false
}

// Alloc serves a request of n bytes: the smallest free block that suffices,
// lowest address first, or a new segment.
func (c *Caching) Alloc(n int64) (Handle, error) {
	if n <= 0 {
		return Handle{}, nil
	}
	size := (n + minBlock - 1) / minBlock * minBlock
	p := &c.large
	if size <= smallSize {
		p = &c.small
	}
	var b *block
	if i := p.find(size, 0); i < len(p.free) {
		b = p.free[i]
		p.remove(b)
	} else {
		var err error
		if b, err = c.segment(p, size); err != nil {
			return Handle{}, err
		}
	}
	if rest := b.size - size; p.small && rest >= minBlock || !p.small && rest > smallSize {
		r := &block{addr: b.addr + size, size: rest, prev: b, next: b.next, pool: p}
		if b.next != nil {
			b.next.prev = r
		}
		b.next, b.size = r, size
		p.insert(r)
	}
	c.allocated += b.size
	return Handle{b}, nil
}

// segment takes a segment from the driver; under the cap it first gives back
// every cached segment that is wholly free.
func (c *Caching) segment(p *pool, size int64) (*block, error) {
	seg := (size + roundLarge - 1) / roundLarge * roundLarge
	switch {
	case p.small:
		seg = smallBuffer
	case size < minLargeAlloc:
		seg = largeBuffer
	}
	if c.cap > 0 && c.reserved+seg > c.cap {
		c.release()
		if c.reserved+seg > c.cap {
			return nil, fmt.Errorf("%w: %d bytes do not fit beside %d reserved of %d", ErrOutOfMemory, seg, c.reserved, c.cap)
		}
	}
	b := &block{addr: c.next, size: seg, pool: p}
	c.next += seg
	c.reserved += seg
	return b, nil
}

// release gives every free block that is a whole segment back to the driver.
func (c *Caching) release() {
	for _, p := range []*pool{&c.small, &c.large} {
		kept := p.free[:0]
		for _, b := range p.free {
			if b.prev == nil && b.next == nil {
				c.reserved -= b.size
				continue
			}
			kept = append(kept, b)
		}
		p.free = kept
	}
}

// Free ends an allocation: its block merges with free neighbours.
func (c *Caching) Free(h Handle) {
	b := h.b
	if b == nil {
		return
	}
	p := b.pool
	c.allocated -= b.size
	if q := b.prev; q != nil && q.free {
		p.remove(q)
		b.addr, b.size, b.prev = q.addr, b.size+q.size, q.prev
		if q.prev != nil {
			q.prev.next = b
		}
	}
	if q := b.next; q != nil && q.free {
		p.remove(q)
		b.size, b.next = b.size+q.size, q.next
		if q.next != nil {
			q.next.prev = b
		}
	}
	p.insert(b)
}
