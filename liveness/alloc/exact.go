package alloc

import "fmt"

// Exact counts the bytes of live requests, each rounded up to a granule. It has
// no blocks or segments: reserved and allocated bytes are equal.
type Exact struct {
	granule int64
	cap     int64
	slots   []exactSlot
	spare   []int32 // indices of dead slots
	stats   Stats
}

type exactSlot struct {
	size, requested int64 // 0 when dead
	gen             uint32
}

// NewExact returns an empty Exact that rounds requests up to a multiple of
// granule bytes and holds at most cap bytes; a cap of 0 is no limit. It panics
// unless granule > 0.
func NewExact(granule, cap int64) *Exact {
	if granule <= 0 {
		panic(fmt.Sprintf("alloc: granule %d", granule))
	}
	return &Exact{granule: granule, cap: cap}
}

// Alloc implements Allocator in O(1).
func (e *Exact) Alloc(size int64) (Handle, error) {
	if size == 0 {
		return Handle{}, nil
	}
	if err := checkRequest(size); err != nil {
		return Handle{}, err
	}
	n := ceil(size, e.granule)
	limit := e.cap
	if limit == 0 {
		limit = maxReserved
	}
	if n > limit-e.stats.Allocated {
		e.stats.OOMs++
		return Handle{}, &OutOfMemoryError{Request: size, Segment: n, Allocated: e.stats.Allocated, Reserved: e.stats.Reserved, Cap: e.cap}
	}
	i := e.slot()
	e.slots[i].size, e.slots[i].requested = n, size
	e.add(n, size, 1)
	return Handle{i + 1, e.slots[i].gen}, nil
}

func (e *Exact) slot() int32 {
	if n := len(e.spare); n > 0 {
		i := e.spare[n-1]
		e.spare = e.spare[:n-1]
		return i
	}
	e.slots = append(e.slots, exactSlot{})
	return int32(len(e.slots) - 1)
}

func (e *Exact) add(size, requested, live int64) {
	e.stats.Allocated += size
	e.stats.Reserved += size
	e.stats.Requested += requested
	e.stats.Live += live
	e.stats.note()
}

// Free implements Allocator in O(1).
func (e *Exact) Free(h Handle) {
	if h.id == 0 {
		return
	}
	i := h.id - 1
	if int(i) >= len(e.slots) || e.slots[i].gen != h.gen || e.slots[i].size == 0 {
		panic("alloc: freed a handle that is not live")
	}
	s := &e.slots[i]
	e.add(-s.size, -s.requested, -1)
	*s = exactSlot{gen: s.gen + 1}
	e.spare = append(e.spare, i)
}

// Allocated implements Allocator.
func (e *Exact) Allocated() int64 { return e.stats.Allocated }

// Reserved implements Allocator: it equals Allocated.
func (e *Exact) Reserved() int64 { return e.stats.Reserved }

// Stats implements Allocator. Segments and driver calls stay 0.
func (e *Exact) Stats() Stats { return e.stats }

// ResetPeaks implements Allocator.
func (e *Exact) ResetPeaks() { e.stats.resetPeaks() }

// Snapshot implements Allocator: there are no addresses, so it is empty.
func (e *Exact) Snapshot() Snapshot { return Snapshot{} }

// Check implements Allocator: the counters are the sums over the live slots.
func (e *Exact) Check() error {
	var size, requested, live int64
	for i, s := range e.slots {
		if s.size < s.requested || s.size-s.requested >= e.granule || s.size%e.granule != 0 {
			return fmt.Errorf("slot %d: %d bytes for a request of %d", i, s.size, s.requested)
		}
		if s.size > 0 {
			live++
		}
		size, requested = size+s.size, requested+s.requested
	}
	if s := e.stats; s.Allocated != size || s.Reserved != size || s.Requested != requested || s.Live != live {
		return fmt.Errorf("slots hold %d bytes for requests of %d in %d allocations, the counters say %+v", size, requested, live, s)
	}
	return nil
}
