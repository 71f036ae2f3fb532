package snapshot

import (
	"math/rand/v2"
	"testing"
)

// longest returns the length of a longest common subsequence, by its definition.
func longest(a, b []int64, memo map[[2]int]int) int {
	if len(a) == 0 || len(b) == 0 {
		return 0
	}
	key := [2]int{len(a), len(b)}
	if n, ok := memo[key]; ok {
		return n
	}
	n := max(longest(a[1:], b, memo), longest(a, b[1:], memo))
	if a[0] == b[0] {
		n = max(n, 1+longest(a[1:], b[1:], memo))
	}
	memo[key] = n
	return n
}

// inOrder counts the tokens that are matched, and fails unless they are equal and
// in order.
func inOrder(t *testing.T, a, b []int64, m []int32) int {
	t.Helper()
	n, last := 0, int32(-1)
	for i, j := range m {
		if j < 0 {
			continue
		}
		if j <= last || a[i] != b[j] {
			t.Fatalf("token %d is matched with %d after %d", i, j, last)
		}
		n, last = n+1, j
	}
	return n
}

func TestAlign(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		a, b := make([]int64, r.IntN(30)), make([]int64, r.IntN(30))
		for i := range a {
			a[i] = int64(r.IntN(4))
		}
		for i := range b {
			b[i] = int64(r.IntN(4))
		}
		if got, want := inOrder(t, a, b, align(a, b)), longest(a, b, map[[2]int]int{}); got != want {
			t.Fatalf("%v and %v: %d matched, want %d", a, b, got, want)
		}
	}
}

// Long sequences that differ here and there are matched but for the differences.
func TestAlignLong(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var a, b []int64
	for range 40000 {
		a = append(a, int64(r.IntN(50)))
	}
	changes := 0
	for _, v := range a {
		switch r.IntN(100) {
		case 0:
			changes++ // left out
		case 1:
			changes++
			b = append(b, v, int64(r.IntN(50)))
		default:
			b = append(b, v)
		}
	}
	if got := inOrder(t, a, b, align(a, b)); got < len(a)-2*changes {
		t.Errorf("%d of %d are matched after %d changes", got, len(a), changes)
	}
	same := make([]int64, 1<<17) // nothing occurs once
	if got := inOrder(t, same, same[:1<<16], align(same, same[:1<<16])); got != 1<<16 {
		t.Errorf("%d of equal tokens are matched", got)
	}
	for i := range same {
		same[i] = int64(i % 2)
	}
	align(same, append([]int64{7}, append(same[1:len(same)/2:len(same)/2], 9)...)) // no anchors: it ends
}
