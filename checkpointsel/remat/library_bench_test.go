package remat

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/optimize/convex/lp"
)

// relaxation is a program of the shape that relaxations of schedules have: each of n
// values is kept or made again at n times, and what is used must be there.
func relaxation(n int) *program {
	rng := rand.New(rand.NewPCG(uint64(n), 11))
	l := &program{}
	for range n * n {
		l.variable(float64(1+rng.IntN(9)), 0, 1)
	}
	for t := range n {
		for v := range t + 1 {
			row := []entry{{int32(t*n + v), 1}}
			if t > 0 {
				row = append(row, entry{int32((t-1)*n + v), 1})
			}
			l.row(row, float64(rng.IntN(2)))
		}
	}
	return l
}

// BenchmarkLinearProgram is what docs/adr/0019 compares, up to sizes that gonum solves in seconds: a program solved, and solved
// again after each of ten bounds was changed, as a search does.
func BenchmarkLinearProgram(b *testing.B) {
	for _, n := range []int{4, 6, 10} {
		b.Run(fmt.Sprintf("own/%d", n*n), func(b *testing.B) {
			for b.Loop() {
				l := relaxation(n)
				l.solve(1e6, math.Inf(1))
				for j := range 10 {
					l.restrict(int32(j), 1, 1)
					l.solve(1e6, math.Inf(1))
				}
			}
		})
		b.Run(fmt.Sprintf("gonum/%d", n*n), func(b *testing.B) {
			for b.Loop() {
				l := relaxation(n)
				_ = standardSimplex(l) // it gives up on some degenerate programs
				for j := range 10 {
					l.restrict(int32(j), 1, 1)
					_ = standardSimplex(l) // it gives up on some degenerate programs
				}
			}
		})
	}
}

func standardSimplex(l *program) error {
	c, a, b, _ := standard(l)
	_, _, err := lp.Simplex(c, a, b, 0, nil)
	return err
}
