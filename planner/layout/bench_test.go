package layout

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
)

func read(t testing.TB, file string) []Buffer {
	t.Helper()
	f, err := os.Open(testdata.Shared(t, "layout", file))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	list, err := ReadCSV(f)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// BenchmarkCapacity solves minimalloc's challenging instances at the capacity
// that its authors solve them at.
func BenchmarkCapacity(b *testing.B) {
	for _, name := range []string{"A", "B", "C", "D", "E", "F"} {
		list := read(b, name+".1048576.csv")
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if r, err := Solve(b.Context(), list, Options{Capacity: 1 << 20}); err != nil || r.Height > 1<<20 {
					b.Fatal(r.Height, err)
				}
			}
		})
	}
}

// step is n buffers that live as those of a training step do: activations from
// their operator to its backward, each with a temporary and a gradient.
func step(n int) []Buffer {
	r := rand.New(rand.NewPCG(7, uint64(n)))
	size := func() int64 { return 512 * (1 + r.Int64N(1<<r.Int64N(16))) }
	list := make([]Buffer, 0, n)
	end := int64(2 * (n / 3))
	for at := int64(0); len(list) < n; at++ {
		back, bytes := end-at-1, size()
		for _, b := range [...]Buffer{{Lower: at, Upper: back + 1, Size: bytes}, {Lower: at, Upper: at + 1 + r.Int64N(3), Size: size()}, {Lower: back, Upper: back + 2, Size: bytes}} {
			if len(list) < n {
				b.ID = fmt.Sprint(len(list))
				list = append(list, b)
			}
		}
	}
	return list
}

// BenchmarkSolveGrowth shows how time grows with the number of buffers.
func BenchmarkSolveGrowth(b *testing.B) {
	for _, n := range []int{300, 3000, 30_000} {
		list := step(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				r, err := Solve(b.Context(), list, Options{})
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(100*float64(r.Height-r.Bound)/float64(r.Bound), "%-over-bound")
			}
		})
	}
	list := read(b, "iopddl_S_1.csv")
	b.Run("S_1", func(b *testing.B) {
		for b.Loop() {
			if _, err := Solve(b.Context(), list, Options{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// Instances of 30,000 buffers come within 1% of their bound with an effort of
// two seconds.
func TestLarge(t *testing.T) {
	testdata.Sequential(t)
	for name, list := range map[string][]Buffer{"iopddl_S_1": read(t, "iopddl_S_1.csv"), "a step": step(30_000)} {
		r, err := Solve(t.Context(), list, Options{Effort: 2_000_000_000})
		if err != nil {
			t.Fatal(err)
		}
		if gap := float64(r.Height-r.Bound) / float64(r.Bound); gap > 0.01 {
			t.Errorf("%s: %d over the bound of %d (%.4f%%)", name, r.Height-r.Bound, r.Bound, 100*gap)
		}
	}
}
