package ort

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// random is a graph of n nodes, each of which makes a buffer and reads up to two
// earlier ones.
func random(r *rand.Rand, n int) *buffers {
	b := &buffers{size: make([]int64, n), makes: make([][]int32, n), uses: make([][]int32, n), users: make([][]int32, n), after: make([][]int32, n), from: make([][]int32, n)}
	for k := range n {
		b.size[k] = 1 + r.Int64N(9)
		b.makes[k], b.uses[k] = []int32{int32(k)}, []int32{int32(k)}
		for range min(k, r.IntN(3)) {
			if j := int32(r.IntN(k)); !slices.Contains(b.from[k], j) {
				b.uses[k] = append(b.uses[k], j)
				b.from[k] = append(b.from[k], j)
				b.after[j] = append(b.after[j], int32(k))
			}
		}
		for _, x := range b.uses[k] {
			b.users[x] = append(b.users[x], int32(k))
		}
	}
	return b
}

// least tries all orders.
func least(b *buffers, done []int32) int64 {
	if len(done) == len(b.makes) {
		return b.peak(done)
	}
	best := int64(-1)
	for k := range b.makes {
		if slices.Contains(done, int32(k)) || slices.ContainsFunc(b.from[k], func(i int32) bool { return !slices.Contains(done, i) }) {
			continue
		}
		if n := least(b, append(slices.Clone(done), int32(k))); best < 0 || n < best {
			best = n
		}
	}
	return best
}

// What the search says of all orders is true, on graphs small enough to try them.
func TestOrders(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 9))
	better := 0
	for i := range 500 {
		b := random(r, 1+r.IntN(7))
		given := make([]int32, len(b.makes))
		for k := range given {
			given[k] = int32(k)
		}
		order, bound := b.search(given)
		ran := slices.Clone(order)
		if slices.Sort(ran); !slices.Equal(ran, given) {
			t.Fatalf("graph %d: order %v", i, order)
		}
		for at, k := range order {
			if slices.ContainsFunc(b.from[k], func(j int32) bool { return slices.Index(order, j) > at }) {
				t.Fatalf("graph %d: order %v runs %d before what it reads", i, order, k)
			}
		}
		if want := least(b, nil); b.peak(order) != want || bound != want {
			t.Fatalf("graph %d: order %v needs %d, bound %d, want %d", i, order, b.peak(order), bound, want)
		}
		if b.peak(order) < b.peak(given) {
			better++
		}
	}
	if better < 50 {
		t.Errorf("only %d of 500 orders are better than the given ones: the graphs are too easy", better)
	}
}

// The arena grows as the library logs it: to a power of two that holds the
// request, then to twice as much.
func TestArena(t *testing.T) {
	a := newArena()
	x := a.alloc(12_845_056)
	a.alloc(65_536) // does not fit: a chunk is cut only where half is left
	if want := []int64{16 << 20, 16 << 20}; !slices.Equal(a.growths, want) {
		t.Errorf("growths %v, want %v", a.growths, want)
	}
	a.free(x)
	if y := a.alloc(16 << 20); y != x || a.total != 32<<20 {
		t.Errorf("a freed chunk is not taken again: %d bytes", a.total)
	}
	if a.alloc(0) != nil {
		t.Error("no bytes take a chunk")
	}
	a.free(a.alloc(1))
	if a.alloc(17 << 20); a.total != 64<<20 {
		t.Errorf("%d bytes, want 64 MiB", a.total)
	}
}
