package alloc

import (
	"slices"
)

// A key is a free block in a freeSet.
type key struct {
	size, addr int64
	block      int32
}

// before orders keys by size, then address.
func (k *key) before(size, addr int64) bool {
	return k.size < size || k.size == size && k.addr < addr
}

// chunkKeys is the capacity of a chunk: 64 keys of 24 bytes move in some 30 ns.
const chunkKeys = 64

type chunk struct {
	n    int
	keys [chunkKeys]key
}

func (c *chunk) last() *key { return &c.keys[c.n-1] }

// A freeSet is an ordered set of free blocks, by size, then address: a B-tree
// of two levels. Finding takes O(log n) comparisons; inserting and removing
// move at most chunkKeys keys and, once in chunkKeys/2 times at most, the
// n/chunkKeys pointers of the upper level. No chunk is empty.
type freeSet struct {
	chunks []*chunk
	spare  []*chunk
	n      int
}

// A cursor is a position in a freeSet; it is valid until the set changes.
type cursor struct{ chunk, i int }

// seek returns the position of the first key that is not before (size, addr);
// one past the end if there is none.
func (s *freeSet) seek(size, addr int64) cursor {
	lo, hi := 0, len(s.chunks)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if s.chunks[mid].last().before(size, addr) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == len(s.chunks) {
		return cursor{lo, 0}
	}
	return cursor{lo, s.chunks[lo].seek(size, addr)}
}

func (c *chunk) seek(size, addr int64) int {
	lo, hi := 0, c.n
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if c.keys[mid].before(size, addr) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

func (s *freeSet) valid(at cursor) bool { return at.chunk < len(s.chunks) }

func (s *freeSet) at(at cursor) key { return s.chunks[at.chunk].keys[at.i] }

// next returns the position after a valid one.
func (s *freeSet) next(at cursor) cursor {
	if at.i++; at.i == s.chunks[at.chunk].n {
		return cursor{at.chunk + 1, 0}
	}
	return at
}

// prev returns the position before one, and whether there is one.
func (s *freeSet) prev(at cursor) (cursor, bool) {
	if at.i > 0 {
		return cursor{at.chunk, at.i - 1}, true
	}
	if at.chunk == 0 {
		return at, false
	}
	return cursor{at.chunk - 1, s.chunks[at.chunk-1].n - 1}, true
}

// insert adds a key that is not in the set.
func (s *freeSet) insert(k key) {
	s.n++
	at := s.seek(k.size, k.addr)
	if at.chunk == len(s.chunks) {
		if at.chunk == 0 {
			s.chunks = append(s.chunks, s.newChunk())
			at = cursor{}
		} else {
			at = cursor{at.chunk - 1, s.chunks[at.chunk-1].n}
		}
	}
	c := s.chunks[at.chunk]
	if c.n == chunkKeys {
		s.halve(at.chunk)
		if at.i > c.n {
			at = cursor{at.chunk + 1, at.i - c.n}
			c = s.chunks[at.chunk]
		}
	}
	copy(c.keys[at.i+1:c.n+1], c.keys[at.i:c.n])
	c.keys[at.i] = k
	c.n++
}

// halve moves the upper half of a full chunk into a new one after it.
func (s *freeSet) halve(i int) {
	c, d := s.chunks[i], s.newChunk()
	d.n = copy(d.keys[:], c.keys[chunkKeys/2:])
	c.n = chunkKeys / 2
	s.chunks = slices.Insert(s.chunks, i+1, d)
}

func (s *freeSet) newChunk() *chunk {
	if n := len(s.spare); n > 0 {
		c := s.spare[n-1]
		s.spare = s.spare[:n-1]
		return c
	}
	return &chunk{}
}

// remove removes the key (size, addr). It panics if there is none.
func (s *freeSet) remove(size, addr int64) {
	at := s.seek(size, addr)
	if !s.valid(at) || s.at(at).addr != addr || s.at(at).size != size {
		panic("alloc: a free block is not in its pool")
	}
	s.removeAt(at)
}

func (s *freeSet) removeAt(at cursor) {
	s.n--
	c := s.chunks[at.chunk]
	copy(c.keys[at.i:c.n-1], c.keys[at.i+1:c.n])
	if c.n--; c.n == 0 {
		s.chunks = slices.Delete(s.chunks, at.chunk, at.chunk+1)
		s.spare = append(s.spare, c)
	}
}

// all appends all keys to dst in order.
func (s *freeSet) all(dst []key) []key {
	for _, c := range s.chunks {
		dst = append(dst, c.keys[:c.n]...)
	}
	return dst
}
