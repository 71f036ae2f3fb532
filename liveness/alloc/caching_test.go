package alloc

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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

// ascending hands out addresses that only grow, as naive does.
type ascending struct{ next int64 }

func (a *ascending) take(n int64) int64 { a.next += n; return a.next - n }
func (a *ascending) give(int64, int64)  {}

// sizes are what training steps ask for: tiny to hundreds of MiB.
func sizes(rng *rand.Rand) int64 {
	return 1 + rng.Int64N(int64(1)<<(4+rng.IntN(24)))
}

// A duel plays the same calls to Caching and to the naive allocator.
type duel struct {
	t    testing.TB
	c    *Caching
	n    *naive
	live []dueller
}

type dueller struct {
	h        Handle
	seg, off int64
}

func newDuel(t testing.TB, limit int64) *duel {
	c := NewCaching(Conf{}, limit)
	c.driver = &ascending{next: 1 << 30}
	return &duel{t: t, c: c, n: &naive{limit: limit}}
}

func (d *duel) alloc(bytes int64) {
	h, err := d.c.Alloc(bytes)
	seg, off, ok := d.n.alloc(bytes)
	if ok != (err == nil) || err != nil && !errors.Is(err, ErrOutOfMemory) {
		d.t.Fatalf("%d bytes: error %v, the naive allocator says %v", bytes, err, ok)
	}
	if ok {
		d.live = append(d.live, dueller{h, seg, off})
	}
}

func (d *duel) free(i int) {
	l := d.live[i]
	d.c.Free(l.h)
	d.n.free(l.seg, l.off)
	d.live[i] = d.live[len(d.live)-1]
	d.live = d.live[:len(d.live)-1]
}

func (d *duel) compare(deep bool) {
	if d.c.Allocated() != d.n.used || d.c.Reserved() != d.n.reserved {
		d.t.Fatalf("allocated %d, reserved %d; the naive allocator has %d and %d", d.c.Allocated(), d.c.Reserved(), d.n.used, d.n.reserved)
	}
	if !deep {
		return
	}
	if err := d.c.Check(); err != nil {
		d.t.Fatal(err)
	}
	var free, largest int64
	for _, s := range d.n.segs {
		for _, p := range s.parts {
			if !p.busy {
				free, largest = free+p.size, max(largest, p.size)
			}
		}
	}
	if f, l := d.c.Snapshot().Free(); f != free || l != largest {
		d.t.Fatalf("%d bytes free, at most %d at once; the naive allocator has %d and %d", f, l, free, largest)
	}
}

func TestCachingAgainstNaive(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 7))
		limit := int64(0)
		if seed%2 == 1 {
			limit = 200<<20 + rng.Int64N(400<<20)
		}
		d := newDuel(t, limit)
		for step := range 600 {
			if len(d.live) > 0 && rng.IntN(5) < 2 {
				d.free(rng.IntN(len(d.live)))
			} else {
				d.alloc(sizes(rng))
			}
			d.compare(step%7 == 0)
		}
		for len(d.live) > 0 {
			d.free(0)
		}
		if d.compare(true); d.c.Allocated() != 0 {
			t.Fatalf("%d bytes left", d.c.Allocated())
		}
	}
}

func FuzzCaching(f *testing.F) {
	f.Add([]byte{1, 2, 3, 200, 100, 7, 255, 0}, false)
	f.Add([]byte{38, 255, 38, 250, 1, 0, 38, 255, 22, 9}, true)
	f.Fuzz(func(t *testing.T, ops []byte, capped bool) {
		limit := int64(0)
		if capped {
			limit = 64 << 20
		}
		d := newDuel(t, limit)
		for i := 0; i+1 < len(ops) && i < 2000; i += 2 {
			if ops[i]&1 == 1 && len(d.live) > 0 {
				d.free(int(ops[i+1]) % len(d.live))
			} else {
				d.alloc(int64(ops[i+1])<<(ops[i]/2%20) + 1)
			}
			d.compare(i%64 == 0)
		}
		d.compare(true)
	})
}

// confs are settings that the models must survive.
var confs = []string{
	"", "expandable_segments:True", "max_split_size_mb:20", "roundup_power2_divisions:4", "garbage_collection_threshold:0.5",
	"large_segment_size_mb:33", "expandable_segments:True,large_segment_size_mb:33,roundup_power2_divisions:2",
	"max_split_size_mb:40,large_segment_size_mb:21,garbage_collection_threshold:0.9",
}

// TestModels plays random calls to every model under every setting.
func TestModels(t *testing.T) {
	for _, m := range Models {
		for i, s := range confs {
			for _, limit := range []int64{0, 300 << 20, 1 << 20} {
				t.Run(fmt.Sprintf("%s/%s/%d", m.Name, s, limit>>20), func(t *testing.T) {
					conf, err := ParseConf(s)
					if err != nil {
						t.Fatal(err)
					}
					playModel(t, m.New(conf, limit), limit, rand.New(rand.NewPCG(uint64(i), uint64(limit))))
				})
			}
		}
	}
}

func playModel(t *testing.T, a Allocator, limit int64, rng *rand.Rand) {
	type request struct {
		h    Handle
		size int64
	}
	var live []request
	var requested, peak, ooms int64
	for step := range 400 {
		if len(live) > 0 && rng.IntN(5) < 2 {
			i := rng.IntN(len(live))
			a.Free(live[i].h)
			requested -= live[i].size
			live[i] = live[len(live)-1]
			live = live[:len(live)-1]
		} else {
			size := sizes(rng)
			h, err := a.Alloc(size)
			var oom *OutOfMemoryError
			switch {
			case err == nil:
				live = append(live, request{h, size})
				requested += size
			case !errors.As(err, &oom) || !errors.Is(err, ErrOutOfMemory) || oom.Request != size || oom.Cap != limit || oom.Segment <= limit-oom.Reserved:
				t.Fatalf("request of %d under %d: %v", size, limit, err)
			default:
				ooms++
			}
		}
		if step == 200 {
			a.ResetPeaks()
			peak = 0
		}
		peak = max(peak, requested)
		s := a.Stats()
		if s.Requested != requested || s.PeakRequested != peak || s.Live != int64(len(live)) || s.OOMs != ooms {
			t.Fatalf("step %d: %d bytes of %d requests live, peak %d, %d failed: %+v", step, requested, len(live), peak, ooms, s)
		}
		if s.Allocated < requested || s.Reserved < s.Allocated || limit > 0 && s.PeakReserved > limit || s.Allocated != a.Allocated() || s.Reserved != a.Reserved() {
			t.Fatalf("step %d: %+v", step, s)
		}
		if err := a.Check(); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
	}
	for _, l := range live {
		a.Free(l.h)
	}
	if s := a.Stats(); s.Allocated != 0 || s.Requested != 0 || s.Live != 0 {
		t.Errorf("in the end %+v", s)
	}
	if err := a.Check(); err != nil {
		t.Error(err)
	}
}

// TestMisuse: sizes that no one asks for, and handles that are not live.
func TestMisuse(t *testing.T) {
	for _, m := range Models {
		a := m.New(Conf{}, 0)
		if h, err := a.Alloc(0); err != nil || h != (Handle{}) {
			t.Errorf("%s: 0 bytes: %v, %v", m.Name, h, err)
		}
		a.Free(Handle{})
		if _, err := a.Alloc(-1); err == nil || errors.Is(err, ErrOutOfMemory) {
			t.Errorf("%s: -1 bytes: %v", m.Name, err)
		}
		if _, err := a.Alloc(1<<63 - 1); !errors.Is(err, ErrOutOfMemory) {
			t.Errorf("%s: 2^63-1 bytes: %v", m.Name, err)
		}
		h, err := a.Alloc(1000)
		if err != nil {
			t.Fatal(err)
		}
		a.Free(h)
		for _, bad := range []Handle{h, {id: 77}, {id: -5}} {
			mustPanic(t, func() { a.Free(bad) })
		}
		if again, _ := a.Alloc(1000); again == h {
			t.Errorf("%s: a dead handle came back", m.Name)
		}
		if err := a.Check(); err != nil {
			t.Errorf("%s: %v", m.Name, err)
		}
	}
	if _, err := ModelNamed("none"); err == nil {
		t.Error("model none exists")
	}
	if m, err := ModelNamed("caching"); err != nil || m.Name != "caching" {
		t.Errorf("caching: %v, %v", m.Name, err)
	}
}

func mustPanic(t *testing.T, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	f()
}

// TestUnsplit: a large block whose rest is at most 1 MiB is handed out whole.
func TestUnsplit(t *testing.T) {
	const MiB = 1 << 20
	tests := []struct{ request, allocated, reserved int64 }{
		{1, 512, 2 * MiB},
		{MiB, MiB, 2 * MiB},
		{MiB + 1, MiB + 512, 20 * MiB},
		{10*MiB - 512, 10*MiB - 512, 20 * MiB},
		{13*MiB + MiB/2, 14 * MiB, 14 * MiB},
		{19 * MiB, 20 * MiB, 20 * MiB},
		{19*MiB - 512, 19*MiB - 512, 20 * MiB},
		{19*MiB + 1, 20 * MiB, 20 * MiB},
		{33*MiB + MiB - 1, 34 * MiB, 34 * MiB},
	}
	for _, tt := range tests {
		c := NewCaching(Conf{}, 0)
		if _, err := c.Alloc(tt.request); err != nil {
			t.Fatal(err)
		}
		if c.Allocated() != tt.allocated || c.Reserved() != tt.reserved {
			t.Errorf("%d bytes: allocated %d, reserved %d, want %d and %d", tt.request, c.Allocated(), c.Reserved(), tt.allocated, tt.reserved)
		}
		if slack := c.Snapshot().Slack(); slack != tt.allocated-tt.request {
			t.Errorf("%d bytes: slack %d", tt.request, slack)
		}
	}
}

// TestStreams: a stream does not take what another stream's pool holds, and
// they share the cap.
func TestStreams(t *testing.T) {
	const MiB = 1 << 20
	c := NewCaching(Conf{}, 50*MiB)
	h, err := c.Alloc(30 * MiB)
	if err != nil {
		t.Fatal(err)
	}
	c.Free(h)
	if _, err := c.AllocOn(2, 8*MiB); err != nil {
		t.Fatal(err)
	}
	if s := c.Stats(); s.Reserved != 50*MiB || s.Segments != 2 {
		t.Errorf("%+v", s)
	}
	if _, err := c.AllocOn(2, 14*MiB); err != nil {
		t.Fatal(err)
	}
	if s := c.Stats(); s.Reserved != 34*MiB || s.Retries != 1 || s.Frees != 1 {
		t.Errorf("%+v", s)
	}
	if err := c.Check(); err != nil {
		t.Error(err)
	}
	if snap := c.Snapshot(); len(snap.Segments) != 2 || snap.Segments[0].Stream != 2 {
		t.Errorf("%+v", snap)
	}
}

// TestEmptyCache: only wholly free segments go back.
func TestEmptyCache(t *testing.T) {
	const MiB = 1 << 20
	for _, expandable := range []bool{false, true} {
		c := NewCaching(Conf{ExpandableSegments: expandable}, 0)
		var hs []Handle
		for range 6 {
			h, err := c.Alloc(15 * MiB)
			if err != nil {
				t.Fatal(err)
			}
			hs = append(hs, h)
		}
		for _, i := range []int{0, 1, 2, 4} {
			c.Free(hs[i])
		}
		before := c.Reserved()
		c.EmptyCache()
		// Six segments of 16 MiB, four of them free; or 100 MiB mapped with
		// [45, 60) and [75, 90) in use, so that of the steps of 20 MiB the
		// first two are free.
		want := [2]int64{96 * MiB, 32 * MiB}
		if expandable {
			want = [2]int64{100 * MiB, 60 * MiB}
		}
		if got := [2]int64{before, c.Reserved()}; got != want {
			t.Errorf("expandable %v: reserved %v, want %v", expandable, got, want)
		}
		if err := c.Check(); err != nil {
			t.Error(err)
		}
	}
}

func BenchmarkCaching(b *testing.B) {
	for _, events := range []int{1000, 10000, 100000} {
		for _, live := range []int{300, 30000} {
			b.Run(fmt.Sprintf("events=%d/live=%d", events, live), func(b *testing.B) {
				rng := rand.New(rand.NewPCG(1, 2))
				req := make([]int64, events/2) // each is allocated and freed
				for i := range req {
					req[i] = sizes(rng)
				}
				ring := make([]Handle, live)
				b.ReportAllocs()
				for b.Loop() {
					c := NewCaching(Conf{}, 0)
					clear(ring)
					for i, n := range req {
						c.Free(ring[i%live])
						h, err := c.Alloc(n)
						if err != nil {
							b.Fatal(err)
						}
						ring[i%live] = h
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(events), "ns/event")
			})
		}
	}
}

// TestSegments: segments and addresses are those of a snapshot.
func TestSegments(t *testing.T) {
	for _, text := range []string{"", "expandable_segments:True"} {
		conf, err := ParseConf(text)
		if err != nil {
			t.Fatal(err)
		}
		c, r, live := NewCaching(conf, 1<<30), rand.New(rand.NewPCG(1, 2)), []Handle(nil)
		for i := range 3000 {
			if len(live) > 0 && r.IntN(5) < 2 {
				k := r.IntN(len(live))
				c.Free(live[k])
				live[k] = live[len(live)-1]
				live = live[:len(live)-1]
			} else if h, err := c.Alloc(1 + r.Int64N(1<<(10+r.IntN(16)))); err == nil {
				live = append(live, h)
			}
			if i%50 > 0 {
				continue
			}
			var want []Extent
			used := map[int64]bool{}
			for _, g := range c.Snapshot().Segments {
				want = append(want, Extent{g.Addr, g.Size})
				for _, b := range g.Blocks {
					if !b.Free {
						used[b.Addr] = true
					}
				}
			}
			if got := c.Segments(); !slices.Equal(got, want) {
				t.Fatalf("%q: %v, want %v", text, got, want)
			}
			for _, h := range live {
				if a := c.Address(h); !used[a] {
					t.Fatalf("%q: nothing is at %d", text, a)
				}
				delete(used, c.Address(h))
			}
			if len(used) > 0 || c.Address(Handle{}) != 0 {
				t.Fatalf("%q: %d blocks are of no allocation", text, len(used))
			}
		}
	}
}
