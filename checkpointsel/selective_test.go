package checkpointsel

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/program"
)

// kib is the unit of random problems: every sum is a grain of its own.
const kib = 1024

// randomSelective makes variants of segments that no model produced. Variant k
// of a segment keeps item k.
func randomSelective(rng *rand.Rand, n int) *Selective {
	p := randomProblem(rng, n)
	scale := func(v *int64) { *v *= kib }
	scale(&p.Fixed)
	scale(&p.loss)
	scale(&p.Extra)
	for i := range p.slots {
		scale(&p.slots[i].forward)
		scale(&p.slots[i].backward)
	}
	s := &Selective{Problem: p, items: make([][]item, len(p.segs))}
	for v := range s.variants {
		s.variants[v] = make([][]variant, len(p.segs))
	}
	for oi := range p.segs {
		o := &p.segs[oi]
		for v := range o.by {
			scale(&o.by[v].drop)
			scale(&o.by[v].forward)
			scale(&o.by[v].redo)
		}
		for k := range rng.IntN(4) {
			x := variant{keep: []int{k}, cost: float64(rng.IntN(20)), effect: effect{int64(rng.IntN(40)-5) * kib, int64(rng.IntN(100)) * kib, int64(rng.IntN(100)) * kib}}
			s.items[oi] = append(s.items[oi], item{call: aten.Kept{Op: "mm", Call: k}})
			s.variants[Sure][oi] = append(s.variants[Sure][oi], x)
		}
		s.variants[Hoped][oi] = s.variants[Sure][oi]
	}
	return s
}

// exhaustiveSelective tries every choice of segments and variants.
func exhaustiveSelective(s *Selective, budget int64, i int, drop int64) float64 {
	if i == len(s.slots) {
		if s.loss-drop > budget {
			return math.Inf(1)
		}
		return 0
	}
	best := math.Inf(1)
	if sl := s.slots[i]; sl.forward-drop <= budget && sl.backward-drop <= budget {
		best = exhaustiveSelective(s, budget, i+1, drop)
	}
	for oi := range s.segs {
		o := &s.segs[oi]
		if o.lo != i {
			continue
		}
		for _, x := range append(s.variants[Sure][oi], variant{cost: o.cost, effect: o.by[Sure]}) {
			if x.forward-drop <= budget && x.redo-drop <= budget {
				best = min(best, x.cost+exhaustiveSelective(s, budget, o.hi, drop+x.drop))
			}
		}
	}
	return best
}

func TestSelectiveIsOptimal(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	feasible, keeping := 0, 0
	for range 2000 {
		s := randomSelective(rng, 1+rng.IntN(7))
		budget := int64(30+rng.IntN(90)) * kib
		if s.Without() <= budget {
			continue
		}
		for v, left := range []int64{Sure: budget - s.Extra, Hoped: budget} {
			want := math.Inf(1)
			if s.Fixed <= left {
				want = exhaustiveSelective(s, left, 0, 0)
			}
			segs, cost, ok := s.Solve(budget, View(v))
			if ok != !math.IsInf(want, 1) || ok && cost != want {
				t.Fatalf("budget %d: cost %v, found %v; exhaustive search says %v", budget, cost, ok, want)
			}
			if !ok {
				continue
			}
			feasible++
			sum := 0.0
			for i := range segs {
				oi := s.index(&segs[i])
				x := variant{cost: s.segs[oi].cost}
				if len(segs[i].Save) > 0 {
					keeping++
					x = s.variants[v][oi][segs[i].Save[0].Calls[0]]
				}
				sum += x.cost
			}
			if sum != cost {
				t.Fatalf("the choice costs %v of %v", sum, cost)
			}
		}
	}
	if feasible < 400 || keeping < 200 {
		t.Errorf("only %d problems were feasible, %d segments keep something", feasible, keeping)
	}
}

// TestFrontier compares choices of items with all there are.
func TestFrontier(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	for range 300 {
		items := make([]item, rng.IntN(9))
		for i := range items {
			n := int64(rng.IntN(6)) * kib
			items[i] = item{bytes: [2]int64{n, n}, cost: float64(rng.IntN(9))}
		}
		total := func(keep []int) (bytes int64, cost float64) {
			for _, k := range keep {
				bytes += items[k].bytes[Sure]
				cost += items[k].cost
			}
			return bytes, cost
		}
		list := frontier(items, Sure)
		last := int64(-1)
		for _, keep := range list {
			b, _ := total(keep)
			if b <= last {
				t.Fatalf("%d bytes after %d", b, last)
			}
			last = b
		}
		for set := range 1 << len(items) {
			var keep []int
			for i := range items {
				if set>>i&1 == 1 {
					keep = append(keep, i)
				}
			}
			b, c := total(keep)
			if !slices.ContainsFunc(list, func(k []int) bool { x, y := total(k); return x <= b && y >= c }) {
				t.Fatalf("nothing is as good as %v of %+v", keep, items)
			}
		}
	}
}

// In hope, what is left of a long list stands for all of it.
func TestSpread(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	list := make([]variant, 500)
	for i := range list {
		list[i].cost, list[i].drop = float64(len(list)-i), int64(4*(len(list)-i)+rng.IntN(3))
	}
	for _, n := range []int{2, 12, 48, 499} {
		left := spread(list, n, Hoped)
		if len(left) != n {
			t.Errorf("%d of %d left", len(left), n)
		}
		for _, x := range list {
			if !slices.ContainsFunc(left, func(y variant) bool { return y.cost <= x.cost && y.drop >= x.drop }) {
				t.Errorf("%d left: none stands for %+v", n, x)
			}
		}
	}
}

// A call whose result is written to later cannot be kept, nor one whose result
// gets other strides, nor one that makes none of its own.
func TestWrittenInPlace(t *testing.T) {
	p := &program.Program{Storages: []program.Storage{{}, {}, {}, {Reshaped: true}}, Nodes: []program.Node{
		{Op: "mm", Out: []program.View{{Storage: 0}}, Events: []program.Event{{Storage: 0}}},
		{Op: "mm", Out: []program.View{{Storage: 1}}, Events: []program.Event{{Storage: 1}}},
		{Op: "relu_", Out: []program.View{{Storage: 1}}},
		{Op: "add", Out: []program.View{{Storage: program.None}}},
		{Op: "mean", Out: []program.View{{Storage: 3}}, Events: []program.Event{{Storage: 3}}},
	}}
	if got := writtenInPlace(p); !slices.Equal(got, []bool{false, true, false, true}) {
		t.Errorf("%v", got)
	}
}
