package heap

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// Elements come in the order in which a sorted list has them, whatever comes
// between.
func TestHeap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		h := Heap[int]{Less: func(a, b int) bool { return a > b }}
		var want []int
		for range 200 {
			if h.Len() != len(want) {
				t.Fatalf("%d elements, want %d", h.Len(), len(want))
			}
			if len(want) > 0 && r.IntN(3) == 0 {
				most := slices.Max(want)
				if h.Least() != most {
					t.Fatalf("first %d, want %d", h.Least(), most)
				}
				if got := h.Pop(); got != most {
					t.Fatalf("%d, want %d", got, most)
				}
				want = slices.Delete(want, slices.Index(want, most), slices.Index(want, most)+1)
				continue
			}
			x := r.IntN(50)
			h.Push(x)
			want = append(want, x)
		}
	}
}
