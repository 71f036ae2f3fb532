package alloc

// addressSpace is roughly the address range in bytes of an expandable segment.
// PyTorch's is 9/8 of the GPU's memory; this never runs out.
const addressSpace = int64(1) << 46

// step returns the unit in bytes by which a pool's expandable segment grows.
func (c *Caching) step(p *pool) int64 {
	if p.small {
		return smallBuffer
	}
	return c.conf.large()
}

// leastExpandable searches from a free block on for one that can grow to less:
// a block at the end of the mapped memory counts with the address space after
// it, so that it is used last.
func (c *Caching) leastExpandable(p *pool, at cursor) cursor {
	for {
		next := p.free.next(at)
		if !p.free.valid(next) || c.expandableSize(p.free.at(next)) >= c.expandableSize(p.free.at(at)) {
			return at
		}
		at = next
	}
}

func (c *Caching) expandableSize(k key) int64 {
	if q := c.blocks[k.block].next; q != none && c.blocks[q].state == unmapped {
		return k.size + c.blocks[q].size
	}
	return k.size
}

// expand maps memory at the lowest address where size bytes have room and
// returns a free block of at least that size, in no pool; none if the cap
// leaves no room for the necessary steps.
func (c *Caching) expand(pi int32, size int64) int32 {
	b := c.lowestRoom(pi, size)
	if c.blocks[b].state == unmapped && !c.mapMemory(b, min(size, c.blocks[b].size)) {
		return none
	}
	for c.blocks[b].size < size {
		next := c.blocks[b].next
		if !c.mapMemory(next, min(size-c.blocks[b].size, c.blocks[next].size)) {
			return none
		}
		b = next
	}
	c.remove(b)
	return b
}

// lowestRoom returns the first of a run of free and unmapped blocks with a
// total of at least size bytes, in a new segment if there is none.
func (c *Caching) lowestRoom(pi int32, size int64) int32 {
	p := &c.pools[pi]
	for at := p.unmapped.seek(0, 0); p.unmapped.valid(at); at = p.unmapped.next(at) {
		b := p.unmapped.at(at).block
		if q := c.blocks[b].prev; q != none && c.blocks[q].state != used {
			b = q
		}
		var room int64
		for q := b; room < size && q != none && c.blocks[q].state != used; q = c.blocks[q].next {
			room += c.blocks[q].size
		}
		if room >= size {
			return b
		}
	}
	b := c.newBlock()
	span := ceil(c.span, c.step(p))
	c.blocks[b] = block{addr: c.driver.take(span), size: span, prev: none, next: none, pool: pi, state: unmapped, gen: c.blocks[b].gen}
	p.unmapped.insert(key{0, c.blocks[b].addr, b})
	c.stats.Segments++
	return b
}

// mapMemory maps whole steps from the start of an unmapped block until they
// hold size bytes, merges them with free neighbours and puts the result into
// the pool. It reports whether the cap allowed it.
func (c *Caching) mapMemory(b int32, size int64) bool {
	bl := &c.blocks[b]
	p := &c.pools[bl.pool]
	n := ceil(size, c.step(p))
	if !c.conf.Overshoot && n > c.room() {
		return false
	}
	c.remove(b)
	if n < bl.size {
		r := c.newBlock()
		bl = &c.blocks[b]
		c.blocks[r] = block{addr: bl.addr + n, size: bl.size - n, prev: b, next: bl.next, pool: bl.pool, state: unmapped, gen: c.blocks[r].gen}
		if bl.next != none {
			c.blocks[bl.next].prev = r
		}
		bl.next, bl.size = r, n
		p.unmapped.insert(key{0, c.blocks[r].addr, r})
	}
	bl.state = unused
	c.merge(b)
	c.insert(b)
	c.stats.Mallocs++
	c.reserve(n)
	return true
}

// unmap returns the whole steps inside a free block to the driver, and the
// segment's addresses if none of it remains mapped.
func (c *Caching) unmap(b int32) {
	bl := c.blocks[b]
	p := &c.pools[bl.pool]
	step := c.step(p)
	base := c.base(b)
	from := base + ceil(bl.addr-base, step)
	to := base + (bl.addr+bl.size-base)/step*step
	if from >= to {
		return
	}
	c.remove(b)
	c.cut(b, from, to)
	c.blocks[b].state = unmapped
	c.merge(b)
	c.stats.Frees++
	c.reserve(from - to)
	if whole := &c.blocks[b]; whole.whole() {
		c.driver.give(whole.addr, whole.size)
		c.stats.Segments--
		c.drop(b)
		return
	}
	p.unmapped.insert(key{0, c.blocks[b].addr, b})
}

// base returns the first address of a block's segment.
func (c *Caching) base(b int32) int64 {
	for c.blocks[b].prev != none {
		b = c.blocks[b].prev
	}
	return c.blocks[b].addr
}

// cut splits a block, which is in no pool, so that the parts before from and
// after to become free blocks.
func (c *Caching) cut(b int32, from, to int64) {
	if n := from - c.blocks[b].addr; n > 0 {
		r := c.newBlock()
		bl := &c.blocks[b]
		c.blocks[r] = block{addr: bl.addr, size: n, prev: bl.prev, next: b, pool: bl.pool, gen: c.blocks[r].gen}
		if bl.prev != none {
			c.blocks[bl.prev].next = r
		}
		bl.prev, bl.addr, bl.size = r, from, bl.size-n
		c.insert(r)
	}
	if n := c.blocks[b].addr + c.blocks[b].size - to; n > 0 {
		c.split(b, to-from)
	}
}
