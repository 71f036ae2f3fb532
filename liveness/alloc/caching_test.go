package alloc

import (
	"errors"
	"math/rand/v2"
	"testing"
)

// A naive allocator keeps its memory as one list of (segment, start, end,
// busy) and looks through all of it every time. It follows the same
// description, in facts rather than in code: nothing of Caching is shared.
type naive struct {
	limit    int64
	segs     []naiveSeg
	reserved int64
	used     int64
}

type naiveSeg struct {
	base  int64
	small bool
	parts []naivePart
}

type naivePart struct {
	size int64
	busy bool
}

func (n *naive) alloc(bytes int64) (seg int64, off int64, ok bool) {
	size := (bytes + 511) &^ 511
	small := size <= 1<<20
	bs, bp := -1, -1
	for i := range n.segs {
		if n.segs[i].small != small {
			continue
		}
		for j, p := range n.segs[i].parts {
			if p.busy || p.size < size {
				continue
			}
			if bs < 0 || p.size < n.segs[bs].parts[bp].size {
				bs, bp = i, j
			}
		}
	}
	if bs < 0 {
		take := int64(2 << 20)
		if !small {
			take = 20 << 20
			if size >= 10<<20 {
				take = (size + 2<<20 - 1) / (2 << 20) * (2 << 20)
			}
		}
		if n.limit > 0 && n.reserved+take > n.limit {
			var kept []naiveSeg
			for _, s := range n.segs {
				if len(s.parts) == 1 && !s.parts[0].busy {
					n.reserved -= s.parts[0].size
					continue
				}
				kept = append(kept, s)
			}
			n.segs = kept
			if n.reserved+take > n.limit {
				return 0, 0, false
			}
		}
		base := int64(0)
		for _, s := range n.segs {
			base = max(base, s.base+1)
		}
		n.segs = append(n.segs, naiveSeg{base: base, small: small, parts: []naivePart{{size: take}}})
		n.reserved += take
		bs, bp = len(n.segs)-1, 0
	}
	s := &n.segs[bs]
	rest := s.parts[bp].size - size
	if small && rest >= 512 || !small && rest > 1<<20 {
		s.parts[bp].size = size
		s.parts = append(s.parts[:bp+1], append([]naivePart{{size: rest}}, s.parts[bp+1:]...)...)
	}
	s.parts[bp].busy = true
	n.used += s.parts[bp].size
	for _, p := range s.parts[:bp] {
		off += p.size
	}
	return s.base, off, true
}

func (n *naive) free(seg, off int64) {
	for i := range n.segs {
		s := &n.segs[i]
		if s.base != seg {
			continue
		}
		at := int64(0)
		for j := range s.parts {
			if at == off && s.parts[j].busy {
				s.parts[j].busy = false
				n.used -= s.parts[j].size
				break
			}
			at += s.parts[j].size
		}
		for j := 0; j+1 < len(s.parts); {
			if !s.parts[j].busy && !s.parts[j+1].busy {
				s.parts[j].size += s.parts[j+1].size
				s.parts = append(s.parts[:j+1], s.parts[j+2:]...)
				continue
			}
			j++
		}
	}
}

// sizes are what training steps ask for: tiny to hundreds of MiB.
func sizes(rng *rand.Rand) int64 {
	return 1 + rng.Int64N(int64(1)<<(4+rng.IntN(24)))
}

func TestCachingAgainstNaive(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 7))
		limit := int64(0)
		if seed%2 == 1 {
			limit = 200<<20 + rng.Int64N(400<<20)
		}
		c, n := NewCaching(Conf{}, limit), &naive{limit: limit}
		type pair struct {
			h        Handle
			seg, off int64
		}
		var live []pair
		for step := range 600 {
			if len(live) > 0 && rng.IntN(5) < 2 {
				i := rng.IntN(len(live))
				c.Free(live[i].h)
				n.free(live[i].seg, live[i].off)
				live = append(live[:i], live[i+1:]...)
			} else {
				bytes := sizes(rng)
				h, err := c.Alloc(bytes)
				seg, off, ok := n.alloc(bytes)
				if ok != (err == nil) {
					t.Fatalf("seed %d step %d: %d bytes: error %v, the naive allocator says %v", seed, step, bytes, err, ok)
				}
				if err != nil {
					if !errors.Is(err, ErrOutOfMemory) {
						t.Fatal(err)
					}
					continue
				}
				live = append(live, pair{h, seg, off})
			}
			if c.Allocated() != n.used || c.Reserved() != n.reserved {
				t.Fatalf("seed %d step %d: allocated %d, reserved %d; the naive allocator has %d and %d", seed, step, c.Allocated(), c.Reserved(), n.used, n.reserved)
			}
			if c.Reserved()%(2<<20) != 0 || limit > 0 && c.Reserved() > limit {
				t.Fatalf("reserved %d of at most %d", c.Reserved(), limit)
			}
		}
		for _, p := range live {
			c.Free(p.h)
		}
		if c.Allocated() != 0 {
			t.Fatalf("%d bytes left", c.Allocated())
		}
	}
}

func FuzzCaching(f *testing.F) {
	f.Add([]byte{1, 2, 3, 200, 100, 7, 255, 0})
	f.Fuzz(func(t *testing.T, ops []byte) {
		c, n := NewCaching(Conf{}, 64<<20), &naive{limit: 64 << 20}
		type pair struct {
			h        Handle
			seg, off int64
		}
		var live []pair
		for i := 0; i+1 < len(ops) && i < 2000; i += 2 {
			if ops[i]&1 == 1 && len(live) > 0 {
				k := int(ops[i+1]) % len(live)
				c.Free(live[k].h)
				n.free(live[k].seg, live[k].off)
				live = append(live[:k], live[k+1:]...)
				continue
			}
			bytes := int64(ops[i+1]+1) << (ops[i] % 20)
			h, err := c.Alloc(bytes)
			seg, off, ok := n.alloc(bytes)
			if ok != (err == nil) {
				t.Fatalf("%d bytes: error %v, naive %v", bytes, err, ok)
			}
			if ok {
				live = append(live, pair{h, seg, off})
			}
		}
		if c.Allocated() != n.used || c.Reserved() != n.reserved {
			t.Fatalf("allocated %d of %d, reserved %d of %d", c.Allocated(), n.used, c.Reserved(), n.reserved)
		}
	})
}

func BenchmarkCaching(b *testing.B) {
	for _, events := range []int{1000, 10000, 100000} {
		b.Run("events="+itoa(events), func(b *testing.B) {
			rng := rand.New(rand.NewPCG(1, 2))
			req := make([]int64, events)
			for i := range req {
				req[i] = sizes(rng)
			}
			for b.Loop() {
				c := NewCaching(Conf{}, 0)
				ring := make([]Handle, 300)
				for i, n := range req {
					c.Free(ring[i%len(ring)])
					h, err := c.Alloc(n)
					if err != nil {
						b.Fatal(err)
					}
					ring[i%len(ring)] = h
				}
			}
		})
	}
}

func itoa(n int) string {
	switch n {
	case 1000:
		return "1k"
	case 10000:
		return "10k"
	}
	return "100k"
}
