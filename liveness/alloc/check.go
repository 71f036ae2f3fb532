package alloc

import (
	"cmp"
	"fmt"
	"slices"
)

// Check implements Allocator: blocks tile their segments without gap or
// overlap, no two neighbours are both free, exactly the free blocks are in
// their pools and in order, and the counters are the sums over the blocks.
func (c *Caching) Check() error {
	var sum Stats
	seen := make([]bool, len(c.blocks))
	var extents []extent
	for i := range c.blocks {
		if c.blocks[i].state == dead || c.blocks[i].prev != none {
			continue
		}
		e, err := c.checkSegment(int32(i), seen, &sum)
		if err != nil {
			return err
		}
		extents = append(extents, e)
	}
	for i := range c.blocks {
		if c.blocks[i].state != dead && !seen[i] {
			return fmt.Errorf("block %d is in no segment", i)
		}
	}
	sum.Segments = int64(len(extents))
	return cmp.Or(checkExtents(extents), c.checkPools(), c.checkSpare(), c.checkSums(sum))
}

// An extent is the addresses [from, to) of a segment.
type extent struct{ from, to int64 }

func checkExtents(x []extent) error {
	for i := range x {
		for j := range i {
			if x[i].from < x[j].to && x[j].from < x[i].to {
				return fmt.Errorf("segments %v and %v overlap", x[i], x[j])
			}
		}
	}
	return nil
}

// checkSegment walks the blocks of the segment that begins with b.
func (c *Caching) checkSegment(b int32, seen []bool, sum *Stats) (extent, error) {
	e := extent{c.blocks[b].addr, c.blocks[b].addr}
	for last := int32(none); b != none; last, b = b, c.blocks[b].next {
		bl := &c.blocks[b]
		switch {
		case seen[b]:
			return e, fmt.Errorf("block %d is met twice", b)
		case bl.state == dead:
			return e, fmt.Errorf("block %d is dead and in a segment", b)
		case bl.prev != last:
			return e, fmt.Errorf("block %d follows %d and says it follows %d", b, last, bl.prev)
		case bl.addr != e.to || bl.size <= 0 || bl.size%minBlock != 0:
			return e, fmt.Errorf("block %d: %d bytes at %d behind %d", b, bl.size, bl.addr, e.to)
		case last != none && c.blocks[last].pool != bl.pool:
			return e, fmt.Errorf("blocks %d and %d of one segment belong to two pools", last, b)
		case last != none && bl.state != used && c.blocks[last].state == bl.state:
			return e, fmt.Errorf("blocks %d and %d should have merged", last, b)
		case bl.state == unmapped && !c.conf.ExpandableSegments:
			return e, fmt.Errorf("block %d has no memory", b)
		case bl.state == used && (bl.requested <= 0 || bl.requested > bl.size):
			return e, fmt.Errorf("block %d: %d bytes for a request of %d", b, bl.size, bl.requested)
		}
		seen[b] = true
		e.to += bl.size
		if bl.state != unmapped {
			sum.Reserved += bl.size
		}
		if bl.state == used {
			sum.Allocated, sum.Requested, sum.Live = sum.Allocated+bl.size, sum.Requested+bl.requested, sum.Live+1
		}
	}
	return e, nil
}

// checkPools compares the pools' contents with the states of the blocks.
func (c *Caching) checkPools() error {
	for i := range c.pools {
		p := &c.pools[i]
		if err := c.checkSet(&p.free, int32(i), unused); err != nil {
			return err
		}
		if err := c.checkSet(&p.unmapped, int32(i), unmapped); err != nil {
			return err
		}
	}
	return nil
}

func (c *Caching) checkSet(s *freeSet, pi int32, state uint8) error {
	keys := s.all(nil)
	want := 0
	for i := range c.blocks {
		if c.blocks[i].state == state && c.blocks[i].pool == pi {
			want++
		}
	}
	if len(keys) != want || s.n != want {
		return fmt.Errorf("pool %d holds %d blocks and counts %d of %d", pi, len(keys), s.n, want)
	}
	for i, k := range keys {
		bl := c.blocks[k.block]
		if bl.state != state || bl.pool != pi || bl.addr != k.addr || state == unused && bl.size != k.size {
			return fmt.Errorf("pool %d: key %+v for block %+v", pi, k, bl)
		}
		if i > 0 && !keys[i-1].before(k.size, k.addr) {
			return fmt.Errorf("pool %d: key %+v does not come after %+v", pi, k, keys[i-1])
		}
	}
	for _, ch := range s.chunks {
		if ch.n == 0 {
			return fmt.Errorf("pool %d: an empty chunk", pi)
		}
	}
	return nil
}

// checkSpare verifies that exactly the dead blocks are spare.
func (c *Caching) checkSpare() error {
	spare := slices.Sorted(slices.Values(c.spare))
	var want []int32
	for i := range c.blocks {
		if c.blocks[i].state == dead {
			want = append(want, int32(i))
		}
	}
	if !slices.Equal(spare, want) {
		return fmt.Errorf("spare blocks %v, dead blocks %v", spare, want)
	}
	return nil
}

func (c *Caching) checkSums(sum Stats) error {
	s := c.stats
	if s.Allocated != sum.Allocated || s.Requested != sum.Requested || s.Reserved != sum.Reserved || s.Live != sum.Live || s.Segments != sum.Segments {
		return fmt.Errorf("blocks sum up to %+v, the counters say %+v", sum, s)
	}
	if s.PeakAllocated < s.Allocated || s.PeakRequested < s.Requested || s.PeakReserved < s.Reserved {
		return fmt.Errorf("a peak is below its current value: %+v", s)
	}
	if !c.conf.ExpandableSegments && c.conf.LargeSegmentSize%roundLarge == 0 && s.Reserved%roundLarge != 0 {
		return fmt.Errorf("%d bytes reserved are no multiple of %d", s.Reserved, roundLarge)
	}
	if c.cap > 0 && s.PeakReserved > c.cap && !c.conf.Overshoot {
		return fmt.Errorf("%d bytes reserved under a cap of %d", s.PeakReserved, c.cap)
	}
	return nil
}

// Snapshot implements Allocator.
func (c *Caching) Snapshot() Snapshot {
	var out Snapshot
	for i := range c.blocks {
		if c.blocks[i].state != dead && c.blocks[i].prev == none {
			out.Segments = c.appendSegment(out.Segments, int32(i))
		}
	}
	slices.SortFunc(out.Segments, func(a, b Segment) int { return cmp.Compare(a.Addr, b.Addr) })
	return out
}

// appendSegment appends the mapped ranges of the segment that begins with b.
func (c *Caching) appendSegment(dst []Segment, b int32) []Segment {
	p := &c.pools[c.blocks[b].pool]
	open := false
	for ; b != none; b = c.blocks[b].next {
		bl := &c.blocks[b]
		if bl.state == unmapped {
			open = false
			continue
		}
		if !open {
			open = true
			dst = append(dst, Segment{Addr: bl.addr, Stream: p.stream, Small: p.small, Expandable: c.conf.ExpandableSegments})
		}
		g := &dst[len(dst)-1]
		g.Size += bl.size
		g.Blocks = append(g.Blocks, Block{Addr: bl.addr, Size: bl.size, Requested: bl.requested, Free: bl.state == unused})
	}
	return dst
}
