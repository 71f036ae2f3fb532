package remat

import (
	"container/heap"
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"testing"
)

var graphs = flag.Int("graphs", 1000, "how many random graphs TestOracle compares with exhaustive search")

// A state of the exhaustive search: what has been executed for the first
// time, and what is resident, as a bit set.
type state struct {
	next     int
	resident uint32
}

type reached struct {
	state
	cost int64
}

type frontier []reached

func (f frontier) Len() int           { return len(f) }
func (f frontier) Less(i, j int) bool { return f[i].cost < f[j].cost }
func (f frontier) Swap(i, j int)      { f[i], f[j] = f[j], f[i] }
func (f *frontier) Push(x any)        { *f = append(*f, x.(reached)) }
func (f *frontier) Pop() any {
	x := (*f)[len(*f)-1]
	*f = (*f)[:len(*f)-1]
	return x
}

// exhaustive returns the least cost of all schedules within the budget, by
// Dijkstra's algorithm over all states; -1 if there is none. It is what the
// class of schedules means, and shares nothing with the solver.
func exhaustive(in *Instance, budget int64) int64 {
	live := func(set uint32) (sum int64) {
		for v := range in.Nodes {
			if set>>v&1 == 1 {
				sum += in.Nodes[v].Size
			}
		}
		return in.Fixed + sum
	}
	best := map[state]int64{{}: 0}
	open := frontier{{}}
	try := func(s state, cost int64) {
		if old, ok := best[s]; !ok || cost < old {
			best[s] = cost
			heap.Push(&open, reached{s, cost})
		}
	}
	for len(open) > 0 {
		r := heap.Pop(&open).(reached)
		if r.cost > best[r.state] {
			continue
		}
		if r.next == len(in.Nodes) && complete(in, r.resident) && live(r.resident) <= budget {
			return r.cost
		}
		for v := range in.Nodes {
			bit := uint32(1) << v
			n := &in.Nodes[v]
			switch {
			case r.resident&bit != 0:
				try(state{r.next, r.resident &^ bit}, r.cost)
			case v > r.next || v < r.next && n.Once || !holds(n.Preds, r.resident) || live(r.resident|bit)+n.Work > budget:
			default:
				try(state{max(r.next, v+1), r.resident | bit}, r.cost+n.Cost)
			}
		}
	}
	return -1
}

func holds(nodes []int, set uint32) bool {
	for _, p := range nodes {
		if set>>p&1 == 0 {
			return false
		}
	}
	return true
}

// complete reports whether everything to keep is resident.
func complete(in *Instance, set uint32) bool {
	for v := range in.Nodes {
		if in.Nodes[v].Keep && set>>v&1 == 0 {
			return false
		}
	}
	return true
}

// random returns a small instance: a random graph, or the shape of a chain
// with its backward pass.
func random(rng *rand.Rand) *Instance {
	n := 3 + rng.IntN(7)
	in := &Instance{Name: "random", Nodes: make([]Node, n), Fixed: int64(rng.IntN(2) * rng.IntN(5))}
	density, mirrored := rng.Float64(), rng.IntN(3) == 0
	for v := range in.Nodes {
		x := Node{Cost: int64(rng.IntN(10)), Size: int64(rng.IntN(8)), Once: rng.IntN(12) == 0, Keep: rng.IntN(16) == 0}
		if rng.IntN(4) == 0 {
			x.Work = int64(rng.IntN(6))
		}
		if v > 0 && rng.IntN(5) == 0 { // in place
			x.Size, x.Work = in.Nodes[v-1].Size, -in.Nodes[v-1].Size
			x.Preds = append(x.Preds, v-1)
		}
		for u := range v - len(x.Preds) {
			chain := u == v-1 || v >= n/2 && u == n-1-v
			if mirrored && chain || !mirrored && rng.Float64()*float64(v-u) < density*1.5 {
				x.Preds = append(x.Preds, u)
			}
		}
		in.Nodes[v] = x
	}
	return in
}

// TestOracle compares Solve with exhaustive search on random small graphs: no
// lower bound is above the optimum, no plan costs less, no budget is called
// too small that is not, and every plan is accepted by Check. It also demands
// that plans and bounds are mostly the optimum itself.
func TestOracle(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 1))
	var feasible, none, optimum, tight int
	for i := range *graphs {
		in := random(rng)
		need, _ := in.WorkingSet()
		budget := need - 1 + rng.Int64N(max(in.Peak()-need, 1)+1)
		want := exhaustive(in, budget)
		r, err := Solve(context.Background(), in, Options{Budget: budget, Patience: 2, Seed: uint64(i)})
		switch {
		case errors.Is(err, ErrInfeasible):
			if want >= 0 {
				t.Fatalf("graph %d, budget %d: %v, but a schedule of cost %d fits:\n%+v", i, budget, err, want, in)
			}
			continue
		case want < 0:
			if err == nil {
				t.Fatalf("graph %d, budget %d: a plan of cost %d, but no schedule fits:\n%+v", i, budget, r.Cost, in)
			}
			continue
		}
		feasible++
		if r.LowerBound > want {
			t.Fatalf("graph %d, budget %d: bound %d above the optimum %d:\n%+v", i, budget, r.LowerBound, want, in)
		}
		if r.LowerBound == want {
			tight++
		}
		if err != nil {
			none++
			continue
		}
		peak, cost, err := Check(in, r.Schedule, budget)
		if err != nil || cost != r.Cost || peak != r.Peak || cost < want || r.Optimal && cost != want {
			t.Fatalf("graph %d, budget %d: plan of cost %d (said %d, optimal %v), peak %d (said %d), optimum %d, %v:\n%+v", i, budget, cost, r.Cost, r.Optimal, peak, r.Peak, want, err, in)
		}
		if cost == want {
			optimum++
		}
	}
	t.Logf("%d feasible of %d: plan optimal in %d, none found in %d, bound exact in %d", feasible, *graphs, optimum, none, tight)
	if optimum*10 < feasible*8 || tight*10 < feasible*7 {
		t.Errorf("of %d: plan optimal in %d, bound exact in %d", feasible, optimum, tight)
	}
}
