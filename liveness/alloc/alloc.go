// Package alloc models memory allocators: what a framework's allocator counts
// as allocated and what it takes from the driver for a sequence of requests and
// frees. All sizes and addresses are bytes.
//
// The models stand in the table Models. The one that decides whether a step
// fits a card is Caching, PyTorch's caching allocator:
//
//	segment   one piece of memory taken from the driver
//	block     a part of a segment, in use or free; blocks tile the segment
//	pool      the segments of one stream for small (to 1 MiB) or large requests
//
//	segment 20 MiB  |  5 MiB used  | 3 MiB free | 8 MiB used |  4 MiB free  |
package alloc

import (
	"errors"
	"fmt"
	"slices"
)

// ErrOutOfMemory is wrapped by the error of a request that cannot be served
// under the cap.
var ErrOutOfMemory = errors.New("out of memory")

// An OutOfMemoryError describes a request that could not be served. All sizes
// are bytes, after everything that could be released was released.
type OutOfMemoryError struct {
	Request     int64 // as asked for
	Segment     int64 // what had to be taken from the driver, at most
	Allocated   int64 // in blocks in use
	Reserved    int64 // in segments
	Cap         int64 // the most that may be reserved
	LargestFree int64 // largest free block of the request's pool
}

// Error names the request and what stood in its way.
func (e *OutOfMemoryError) Error() string {
	if e.Cap == 0 {
		return fmt.Sprintf("out of memory: request of %d bytes is more than any device has", e.Request)
	}
	return fmt.Sprintf("out of memory: request of %d bytes needs a segment of %d beside %d reserved (%d allocated, largest free block %d) under a cap of %d",
		e.Request, e.Segment, e.Reserved, e.Allocated, e.LargestFree, e.Cap)
}

// Unwrap makes errors.Is(e, ErrOutOfMemory) hold.
func (e *OutOfMemoryError) Unwrap() error { return ErrOutOfMemory }

// A Handle names a live allocation of the allocator that returned it. The
// zero Handle is an allocation of 0 bytes; freeing it does nothing.
type Handle struct {
	id  int32  // index plus one
	gen uint32 // number of earlier uses of that index
}

// Stats are an allocator's counters. Bytes unless said otherwise; peaks are
// since the start or the last ResetPeaks.
type Stats struct {
	Requested int64 // sum of live requests, as asked for
	Allocated int64 // blocks in use; torch.cuda.memory_allocated
	Reserved  int64 // taken from the driver; torch.cuda.memory_reserved

	PeakRequested int64
	PeakAllocated int64 // torch.cuda.max_memory_allocated
	PeakReserved  int64 // torch.cuda.max_memory_reserved

	Live     int64 // allocations that are live
	Segments int64 // segments held; an expandable one counts once
	Mallocs  int64 // times that memory was taken from the driver
	Frees    int64 // times that memory was given back to the driver
	Retries  int64 // requests tried again after the cache was released
	OOMs     int64 // requests that failed under the cap
}

// note updates the peaks from the current values.
func (s *Stats) note() {
	s.PeakRequested = max(s.PeakRequested, s.Requested)
	s.PeakAllocated = max(s.PeakAllocated, s.Allocated)
	s.PeakReserved = max(s.PeakReserved, s.Reserved)
}

func (s *Stats) resetPeaks() {
	s.PeakRequested, s.PeakAllocated, s.PeakReserved = s.Requested, s.Allocated, s.Reserved
}

// An Allocator is an allocator model. It is not safe for concurrent use.
type Allocator interface {
	// Alloc serves a request of size bytes. 0 bytes give the zero Handle; a
	// negative size is an error; errors.Is(err, ErrOutOfMemory) holds if the
	// request does not fit under the cap, after which the allocator remains
	// usable.
	Alloc(size int64) (Handle, error)
	// Free ends an allocation. It panics if the handle is not live.
	Free(Handle)
	// Allocated returns Stats().Allocated, bytes.
	Allocated() int64
	// Reserved returns Stats().Reserved, bytes.
	Reserved() int64
	// Stats returns all counters.
	Stats() Stats
	// ResetPeaks sets the peaks to the current values.
	ResetPeaks()
	// Snapshot returns the segments and blocks, in the order of addresses; a
	// model without addresses has none.
	Snapshot() Snapshot
	// Check looks for contradictions in the allocator's own state, slowly and
	// from first principles. It is for tests.
	Check() error
}

// A Model is an entry of the table of allocator models.
type Model struct {
	Name string
	Doc  string // one line
	// New returns an empty allocator that reserves at most cap bytes; 0 is no
	// limit. Models other than caching ignore the Conf.
	New func(conf Conf, cap int64) Allocator
}

// Models is the table of allocator models, simplest first.
var Models = []Model{
	{"exact", "sum of the live requests, no rounding", func(_ Conf, cap int64) Allocator { return NewExact(1, cap) }},
	{"rounded", "sum of the live requests, each rounded up to 512 bytes", func(_ Conf, cap int64) Allocator { return NewExact(minBlock, cap) }},
	{"caching", "PyTorch's caching allocator on one GPU: blocks, segments, reuse and fragmentation", func(c Conf, cap int64) Allocator { return NewCaching(c, cap) }},
}

// ModelNamed returns the model of that name.
func ModelNamed(name string) (Model, error) {
	if i := slices.IndexFunc(Models, func(m Model) bool { return m.Name == name }); i >= 0 {
		return Models[i], nil
	}
	return Model{}, fmt.Errorf("allocator %q is unknown", name)
}

// A Snapshot is the memory of an allocator at one moment.
type Snapshot struct {
	Segments []Segment // by address
}

// A Segment is one piece of memory taken from the driver; for an expandable
// segment, one contiguous mapped range.
type Segment struct {
	Addr       int64
	Size       int64 // bytes
	Stream     int32
	Small      bool // of the pool for requests to 1 MiB
	Expandable bool
	Blocks     []Block // tile [Addr, Addr+Size) in order
}

// A Block is a part of a segment.
type Block struct {
	Addr      int64
	Size      int64 // bytes
	Requested int64 // bytes requested, 0 for a free block
	Free      bool
}

// Free returns the bytes of free blocks and the bytes of the largest one.
func (s Snapshot) Free() (total, largest int64) {
	for _, g := range s.Segments {
		for _, b := range g.Blocks {
			if b.Free {
				total += b.Size
				largest = max(largest, b.Size)
			}
		}
	}
	return total, largest
}

// Slack returns the bytes by which blocks in use exceed the requests.
func (s Snapshot) Slack() int64 {
	var n int64
	for _, g := range s.Segments {
		for _, b := range g.Blocks {
			if !b.Free {
				n += b.Size - b.Requested
			}
		}
	}
	return n
}
