package alloc

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestFreeSet compares a set of thousands of keys with a sorted slice.
func TestFreeSet(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	order := func(a, b key) int { return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(a.addr, b.addr)) }
	var s freeSet
	var want []key
	for step := range 12000 {
		grow := step < 5000 || step > 9000
		if len(want) > 0 && (rng.IntN(4) == 0) == grow {
			i := rng.IntN(len(want))
			s.remove(want[i].size, want[i].addr)
			want = slices.Delete(want, i, i+1)
		} else {
			k := key{rng.Int64N(50), rng.Int64N(1 << 40), int32(step)}
			i, found := slices.BinarySearchFunc(want, k, order)
			if found {
				continue
			}
			want = slices.Insert(want, i, k)
			s.insert(k)
		}
		q := key{rng.Int64N(52), rng.Int64N(1 << 40), 0}
		i, _ := slices.BinarySearchFunc(want, q, order)
		at := s.seek(q.size, q.addr)
		if s.valid(at) != (i < len(want)) || s.valid(at) && s.at(at) != want[i] {
			t.Fatalf("step %d: seek %v", step, q)
		}
		if before, ok := s.prev(at); ok != (i > 0) || ok && s.at(before) != want[i-1] {
			t.Fatalf("step %d: the key before %v", step, q)
		}
		if s.valid(at) {
			if after := s.next(at); s.valid(after) != (i+1 < len(want)) || s.valid(after) && s.at(after) != want[i+1] {
				t.Fatalf("step %d: the key after %v", step, q)
			}
		}
		if step%500 == 0 && !slices.Equal(s.all(nil), want) {
			t.Fatalf("step %d: the sets differ", step)
		}
	}
	mustPanic(t, func() { s.remove(60, 1) })
}
