package remat

import (
	"context"
	"math/rand/v2"
)

// A Floor bounds the least budget: no schedule fits below Bound bytes, and one
// of Budget bytes is known.
type Floor struct {
	Bound  int64 // bytes
	Node   int   // reason of the bound: the execution of this node, or for len(Nodes) the outputs to keep
	Alone  bool  // the node's own inputs, output and work are the bound; otherwise also what must be resident beside them
	Budget int64 // bytes, the peak of Schedule

	Schedule []Step // that of the smallest peak found; its cost is not minimal
}

// Least returns the smallest budget for which it finds a schedule with the
// given number of executions per node at most, and a proof of a lower bound. It
// ends early when ctx is done.
func Least(ctx context.Context, in *Instance, seed uint64, executions int) (*Floor, error) {
	if err := in.Validate(); err != nil {
		return nil, err
	}
	f := &Floor{Alone: true}
	f.Bound, f.Node = in.WorkingSet()
	p := newProblem(in, f.Bound)
	best := p.sequence()
	f.climb(ctx, in, p)
	low, high, first := f.Bound, in.Peak(), true
	for high-low > (high-f.Bound)>>10 && low < high && ctx.Err() == nil {
		mid := low + (high-low)/2
		if first {
			mid, first = low, false
		}
		p.cap = (mid - in.Fixed) / p.sizeUnit
		if sequence := p.squeeze(ctx, seed, executions*p.n+256); sequence != nil {
			best = sequence
			high = min(mid, in.Fixed+newPlan(p, sequence).peak()*p.sizeUnit)
		} else {
			low = mid + 1
		}
	}
	f.Schedule = schedule(in, best)
	peak, _, err := Check(in, f.Schedule, high)
	if err != nil {
		panic("remat: the checker rejects a plan: " + err.Error())
	}
	f.Budget = peak
	return f, nil
}

// climb raises the bound by what must be resident at some cuts whatever is
// recomputed.
func (f *Floor) climb(ctx context.Context, in *Instance, p *problem) {
	for t := 0; t < p.n && ctx.Err() == nil; t += max(1, p.n/mostFloors) {
		c := newCut(p, int32(t), int32(p.n))
		c.build()
		value, _, _, ok := c.solve(price{1, 0}, nil)
		if need := in.Fixed + (value+p.need(int32(t)))*p.sizeUnit; ok && need > f.Bound {
			f.Bound, f.Node, f.Alone = need, t, false
		}
	}
}

// mostFloors is the largest number of cuts that climb examines.
const mostFloors = 400

// squeeze returns a sequence that fits, or nil if it finds none.
func (p *problem) squeeze(ctx context.Context, seed uint64, limit int) []int32 {
	rng := rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))
	for i := range 4 {
		if s := simulate(p, rng, float64(i)*0.1, limit); s != nil || ctx.Err() != nil {
			return s
		}
	}
	m := newImprover(p, seed)
	m.finish(infinite)
	return m.best
}
