package remat

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/optimize/convex/lp"
)

// TestProgramAgainstGonum solves random programs, adds rows, changes bounds
// and returns to earlier bases, and compares every optimum with that of
// another implementation.
func TestProgramAgainstGonum(t *testing.T) {
	solved, none := 0, 0
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 7))
		l := randomProgram(rng)
		var first position
		for round := range 6 {
			got := l.solve(10000, math.Inf(1))
			want, feasible, ok := reference(l)
			switch {
			case !ok:
			case feasible != (got == optimal):
				t.Fatalf("seed %d, round %d: outcome %d, but feasible is %v", seed, round, got, feasible)
			case feasible && math.Abs(l.objective()-want) > 1e-6*(1+math.Abs(want)):
				t.Fatalf("seed %d, round %d: optimum %v, want %v", seed, round, l.objective(), want)
			case feasible:
				solved++
				checkPrimal(t, l, want)
			default:
				none++
			}
			if round == 0 {
				first = l.position()
			}
			change(rng, l, round, first)
		}
	}
	if solved < 500 || none < 100 {
		t.Errorf("only %d programs with and %d without a solution", solved, none)
	}
}

// checkPrimal checks that x satisfies all rows and costs what it should.
func checkPrimal(t *testing.T, l *program, want float64) {
	t.Helper()
	var cost float64
	for j := range l.cost {
		x := l.at(int32(j))
		cost += l.cost[j] * x
		if x < l.low[j]-1e-6 || x > l.high[j]+1e-6 {
			t.Fatalf("x[%d] = %v outside [%v, %v]", j, x, l.low[j], l.high[j])
		}
	}
	for r, row := range l.rows {
		var sum float64
		for _, e := range row {
			sum += e.v * l.at(e.at)
		}
		if sum < l.bound[r]-1e-6 {
			t.Fatalf("row %d: %v < %v", r, sum, l.bound[r])
		}
	}
	if math.Abs(cost-want) > 1e-6*(1+math.Abs(want)) {
		t.Fatalf("cost of x %v, want %v", cost, want)
	}
}

func randomProgram(rng *rand.Rand) *program {
	l := &program{}
	for range 2 + rng.IntN(9) {
		l.variable(float64(rng.IntN(10)), 0, 1)
	}
	for range 1 + rng.IntN(8) {
		randomRow(rng, l)
	}
	return l
}

func randomRow(rng *rand.Rand, l *program) {
	var row []entry
	for j := range l.cost {
		if rng.IntN(2) == 0 {
			row = append(row, entry{int32(j), float64(rng.IntN(9) - 4)})
		}
	}
	l.row(row, float64(rng.IntN(7)-4))
}

func change(rng *rand.Rand, l *program, round int, first position) {
	j := int32(rng.IntN(len(l.cost)))
	switch round % 3 {
	case 0:
		randomRow(rng, l)
	case 1:
		x := float64(rng.IntN(2))
		l.restrict(j, x, x)
	default:
		l.restrict(j, 0, 1)
		l.restore(first)
	}
}

// reference solves the program with gonum, which gives up on some degenerate programs.
func reference(l *program) (opt float64, feasible, ok bool) {
	c, a, b, base := standard(l)
	opt, _, err := lp.Simplex(c, a, b, 0, nil)
	if errors.Is(err, lp.ErrInfeasible) {
		return 0, false, true
	}
	return base + opt, true, err == nil
}

// standard is the program as gonum takes it, minimise c x' with a x' = b: x = low + x',
// a slack for each row and each upper bound. base is the cost of low.
func standard(l *program) (c []float64, a *mat.Dense, b []float64, base float64) {
	n, m := len(l.cost), len(l.rows)
	a = mat.NewDense(m+n, n+m+n, nil)
	b = make([]float64, m+n)
	c = make([]float64, n+m+n)
	for j := range n {
		c[j] = l.cost[j]
		base += l.cost[j] * l.low[j]
		a.Set(m+j, j, 1)
		a.Set(m+j, n+m+j, 1)
		b[m+j] = l.high[j] - l.low[j]
	}
	for r, row := range l.rows {
		b[r] = l.bound[r]
		for _, e := range row {
			a.Set(r, int(e.at), a.At(r, int(e.at))+e.v)
			b[r] -= e.v * l.low[e.at]
		}
		a.Set(r, n+r, -1)
	}
	return c, a, b, base
}
