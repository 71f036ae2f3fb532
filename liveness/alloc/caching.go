package alloc

// none is the index of no block.
const none = -1

// The states of a block.
const (
	dead     = iota // not part of any segment; its index can be reused
	unused          // free, in its pool
	used            // in use
	unmapped        // address space of an expandable segment without memory
)

// A block is a part of a segment. Blocks are referred to by their index.
type block struct {
	addr, size int64
	requested  int64 // bytes asked for, when used
	prev, next int32 // neighbours in the segment
	pool       int32
	state      uint8
	gen        uint32 // number of earlier uses of the index
	since      int64  // the pool's count of searches when the block became unused
}

// A pool holds the free blocks of a stream's small or large segments.
type pool struct {
	stream   int32
	small    bool
	free     freeSet
	unmapped freeSet // by address: all sizes are 0
	searches int64
}

// Caching is PyTorch's caching allocator for one GPU, as of 2.11: class
// DeviceCachingAllocator in c10/cuda/CUDACachingAllocator.cpp, without CUDA
// graphs, private pools and blocks used on several streams.
//
// A request is rounded up to 512 bytes and takes the smallest free block of
// its pool that suffices, the one at the lowest address of several; else a
// new segment. The block is split when enough remains; else all of it counts
// as allocated. Freed blocks merge with free neighbours; segments stay until a
// request does not fit under the cap, which releases those wholly free and
// tries again.
//
// Alloc and Free take O(log n) in the number of free blocks, and O(n) at
// times when the cap makes them release segments.
type Caching struct {
	conf   Conf
	cap    int64
	pools  []pool // two for each stream: small, large
	blocks []block
	spare  []int32 // indices of dead blocks
	driver addresses
	span   int64 // bytes of addresses of an expandable segment
	stats  Stats
}

// NewCaching returns an empty allocator that reserves at most cap bytes, as
// torch.cuda.set_per_process_memory_fraction does; 0 is no limit.
func NewCaching(conf Conf, cap int64) *Caching {
	return &Caching{conf: conf, cap: cap, driver: newChunks(), span: addressSpace}
}

// Allocated implements Allocator.
func (c *Caching) Allocated() int64 { return c.stats.Allocated }

// Reserved implements Allocator.
func (c *Caching) Reserved() int64 { return c.stats.Reserved }

// Stats implements Allocator.
func (c *Caching) Stats() Stats { return c.stats }

// ResetPeaks implements Allocator.
func (c *Caching) ResetPeaks() { c.stats.resetPeaks() }

// Alloc implements Allocator, on stream 0.
func (c *Caching) Alloc(size int64) (Handle, error) { return c.AllocOn(0, size) }

// AllocOn is Alloc on a stream: streams have pools of their own and share the
// cap. Stream numbers are 0 and up, few, and dense.
func (c *Caching) AllocOn(stream int32, size int64) (Handle, error) {
	if size == 0 {
		return Handle{}, nil
	}
	if err := checkRequest(size); err != nil {
		return Handle{}, err
	}
	n := c.conf.round(size)
	p := c.pool(stream, n <= smallSize)
	b := c.find(p, n)
	if b == none {
		if b = c.grow(p, n); b == none {
			c.stats.OOMs++
			return Handle{}, c.outOfMemory(p, size, n)
		}
	}
	if c.splits(p, c.blocks[b].size, n) {
		c.split(b, n)
	}
	bl := &c.blocks[b]
	bl.state, bl.requested = used, size
	c.stats.Allocated += bl.size
	c.stats.Requested += size
	c.stats.Live++
	c.stats.note()
	return Handle{b + 1, bl.gen}, nil
}

// pool returns the index of a stream's pool, which it creates at first use.
func (c *Caching) pool(stream int32, small bool) int32 {
	i := 2*stream + 1
	if small {
		i--
	}
	for s := int32(len(c.pools) / 2); s <= stream; s++ {
		c.pools = append(c.pools, pool{stream: s, small: true}, pool{stream: s})
	}
	return i
}

// find removes the best free block for a rounded size from its pool; none if
// there is none.
func (c *Caching) find(pi int32, size int64) int32 {
	p := &c.pools[pi]
	p.searches++
	at := p.free.seek(size, 0)
	if !p.free.valid(at) {
		return none
	}
	if c.conf.ExpandableSegments {
		at = c.leastExpandable(p, at)
	}
	k := p.free.at(at)
	if c.oversize(k.size, size) {
		return none
	}
	p.free.removeAt(at)
	return k.block
}

// oversize reports whether max_split_size_mb keeps a block of have bytes from
// serving a request of size bytes.
func (c *Caching) oversize(have, size int64) bool {
	limit := c.conf.MaxSplitSize
	if limit == 0 {
		return false
	}
	if size < limit {
		return have >= limit
	}
	slack := c.conf.MaxNonSplitRounding
	if slack == 0 {
		slack = c.conf.large()
	}
	return have >= size+slack
}

// splits reports whether the rest of a block of have bytes becomes a block of
// its own when size bytes of it are used.
func (c *Caching) splits(pi int32, have, size int64) bool {
	if c.pools[pi].small || c.conf.ExpandableSegments {
		return have-size >= minBlock
	}
	limit := c.conf.MaxSplitSize
	return (limit == 0 || size < limit) && have-size > smallSize
}

// split cuts a block, which is in no pool, to size bytes and makes the rest a
// free block after it.
func (c *Caching) split(b int32, size int64) {
	r := c.newBlock()
	bl, rest := &c.blocks[b], &c.blocks[r]
	*rest = block{addr: bl.addr + size, size: bl.size - size, prev: b, next: bl.next, pool: bl.pool, gen: rest.gen}
	if bl.next != none {
		c.blocks[bl.next].prev = r
	}
	bl.next, bl.size = r, size
	c.insert(r)
}

// newBlock returns the index of a dead block.
func (c *Caching) newBlock() int32 {
	if n := len(c.spare); n > 0 {
		b := c.spare[n-1]
		c.spare = c.spare[:n-1]
		return b
	}
	c.blocks = append(c.blocks, block{})
	return int32(len(c.blocks) - 1)
}

// drop makes a block dead.
func (c *Caching) drop(b int32) {
	c.blocks[b] = block{gen: c.blocks[b].gen + 1}
	c.spare = append(c.spare, b)
}

// insert puts a block into its pool as free.
func (c *Caching) insert(b int32) {
	bl := &c.blocks[b]
	p := &c.pools[bl.pool]
	bl.state, bl.since, bl.requested = unused, p.searches, 0
	p.free.insert(key{bl.size, bl.addr, b})
}

// Free implements Allocator.
func (c *Caching) Free(h Handle) {
	if h.id == 0 {
		return
	}
	b := h.id - 1
	if int(b) >= len(c.blocks) || c.blocks[b].gen != h.gen || c.blocks[b].state != used {
		panic("alloc: freed a handle that is not live")
	}
	bl := &c.blocks[b]
	c.stats.Allocated -= bl.size
	c.stats.Requested -= bl.requested
	c.stats.Live--
	bl.gen++
	bl.state = unused
	c.merge(b)
	c.insert(b)
}

// merge joins a block, which is in no pool, with the neighbours in the same
// state.
func (c *Caching) merge(b int32) {
	bl := &c.blocks[b]
	if q := bl.prev; q != none && c.blocks[q].state == bl.state {
		before := &c.blocks[q]
		c.remove(q)
		bl.addr, bl.size, bl.prev = before.addr, bl.size+before.size, before.prev
		if bl.prev != none {
			c.blocks[bl.prev].next = b
		}
		c.drop(q)
	}
	if q := bl.next; q != none && c.blocks[q].state == bl.state {
		after := &c.blocks[q]
		c.remove(q)
		bl.size, bl.next = bl.size+after.size, after.next
		if bl.next != none {
			c.blocks[bl.next].prev = b
		}
		c.drop(q)
	}
}

// remove removes a free or unmapped block from its pool.
func (c *Caching) remove(b int32) {
	bl := &c.blocks[b]
	p := &c.pools[bl.pool]
	if bl.state == unmapped {
		p.unmapped.remove(0, bl.addr)
		return
	}
	p.free.remove(bl.size, bl.addr)
}

// grow takes memory from the driver for a rounded size and returns a free block
// in no pool. If that fails it releases more and more of the cache and tries
// again; none means out of memory.
func (c *Caching) grow(pi int32, size int64) int32 {
	c.collectGarbage()
	if b := c.take(pi, size); b != none {
		return b
	}
	if c.releaseOversize(pi, size) {
		if b := c.take(pi, size); b != none {
			return b
		}
	}
	c.EmptyCache()
	c.stats.Retries++
	return c.take(pi, size)
}

// take takes one segment from the driver, if the cap allows.
func (c *Caching) take(pi int32, size int64) int32 {
	n := c.conf.segmentSize(size)
	if n > c.room() {
		return none
	}
	if c.conf.ExpandableSegments {
		return c.expand(pi, size)
	}
	b := c.newBlock()
	c.blocks[b] = block{addr: c.driver.take(n), size: n, prev: none, next: none, pool: pi, state: unused, gen: c.blocks[b].gen}
	c.stats.Segments++
	c.stats.Mallocs++
	c.reserve(n)
	return b
}

// room returns how many bytes the cap still allows to reserve.
func (c *Caching) room() int64 {
	if c.cap > 0 {
		return c.cap - c.stats.Reserved
	}
	return maxReserved - c.stats.Reserved
}

func (c *Caching) reserve(n int64) {
	c.stats.Reserved += n
	c.stats.note()
}

// outOfMemory describes a request that failed.
func (c *Caching) outOfMemory(pi int32, size, rounded int64) error {
	e := &OutOfMemoryError{Request: size, Segment: c.conf.segmentSize(rounded), Allocated: c.stats.Allocated, Reserved: c.stats.Reserved, Cap: c.cap}
	if c.conf.ExpandableSegments {
		e.Segment = ceil(rounded, c.step(&c.pools[pi]))
	}
	free := &c.pools[pi].free
	if last, ok := free.prev(cursor{len(free.chunks), 0}); ok {
		e.LargestFree = free.at(last).size
	}
	return e
}

// whole reports whether a block is a whole segment that is not expandable.
func (b *block) whole() bool { return b.prev == none && b.next == none }

// release returns the segment of a free block that fills it to the driver.
func (c *Caching) release(b int32) {
	bl := &c.blocks[b]
	c.remove(b)
	c.driver.give(bl.addr, bl.size)
	c.stats.Segments--
	c.stats.Frees++
	c.reserve(-bl.size)
	c.drop(b)
}

// EmptyCache returns every segment that is entirely free, or every whole step
// of an expandable segment, to the driver: torch.cuda.empty_cache.
func (c *Caching) EmptyCache() {
	for _, small := range []bool{false, true} {
		for i := range c.pools {
			if c.pools[i].small == small {
				c.releasePool(&c.pools[i])
			}
		}
	}
}

func (c *Caching) releasePool(p *pool) {
	for _, k := range p.free.all(nil) {
		switch {
		case c.conf.ExpandableSegments:
			c.unmap(k.block)
		case c.blocks[k.block].whole():
			c.release(k.block)
		}
	}
}

// releaseOversize returns blocks of max_split_size_mb and more to the driver,
// the smallest one that suffices or else the largest ones until they suffice,
// and reports whether they did.
func (c *Caching) releaseOversize(pi int32, size int64) bool {
	limit := c.conf.MaxSplitSize
	if limit == 0 || c.conf.ExpandableSegments {
		return false
	}
	free := &c.pools[pi].free
	size = max(size, limit)
	if at := free.seek(size, 0); free.valid(at) {
		c.release(free.at(at).block)
		return true
	}
	var released int64
	for released < size {
		at, ok := free.prev(cursor{len(free.chunks), 0})
		if !ok || free.at(at).size < limit {
			break
		}
		k := free.at(at)
		released += k.size
		c.release(k.block)
	}
	return released >= size
}

// collectGarbage releases large segments that are entirely free while more than
// garbage_collection_threshold of the cap is reserved: in rounds, those that no
// search has used for longer than the average.
func (c *Caching) collectGarbage() {
	if c.cap == 0 || c.conf.GarbageCollectionThreshold == 0 || c.conf.ExpandableSegments {
		return
	}
	target := c.stats.Reserved - int64(c.conf.GarbageCollectionThreshold*float64(c.cap))
	if target <= 0 {
		return
	}
	idle, age := c.idleSegments()
	for freed := true; target > 0 && freed && len(idle) > 0; {
		freed = false
		average := float64(age) / float64(len(idle))
		kept := idle[:0]
		for _, k := range idle {
			a := c.age(k.block)
			if float64(a) < average {
				kept = append(kept, k)
				continue
			}
			freed = true
			target -= k.size
			age -= a
			c.release(k.block)
		}
		idle = kept
	}
}

// age returns the number of searches of its pool since a free block became
// unused.
func (c *Caching) age(b int32) int64 {
	return c.pools[c.blocks[b].pool].searches - c.blocks[b].since
}

// idleSegments returns the large segments that are entirely free and the sum of
// their ages.
func (c *Caching) idleSegments() (idle []key, age int64) {
	for i := range c.pools {
		if c.pools[i].small {
			continue
		}
		for _, k := range c.pools[i].free.all(nil) {
			if c.blocks[k.block].whole() {
				idle = append(idle, k)
				age += c.age(k.block)
			}
		}
	}
	return idle, age
}
