package remat

import (
	"context"
	"errors"
	"math"
	"time"
)

// A FrontierPoint is the answer for one budget: the cheapest schedule found
// whose peak is within it.
type FrontierPoint struct {
	Budget     int64 // bytes
	Peak       int64 // bytes, of the schedule
	Cost       int64 // of the schedule
	LowerBound int64 // no schedule within Budget costs less
	Overhead   float64
	Bound      float64 // LowerBound as Overhead
	Optimal    bool
}

// A Frontier is the tradeoff between memory and cost, from the least budget for
// which a schedule was found to the peak without recomputation.
type Frontier struct {
	Total  int64 // cost without recomputation
	Floor  Floor
	Points []FrontierPoint // descending budgets, ascending costs
}

// Trace returns the frontier at a number of budgets, evenly spaced between the
// least possible and the peak without recomputation. opt.Timeout is for all of
// them together; opt.Budget is ignored.
func Trace(ctx context.Context, in *Instance, opt Options, points int) (*Frontier, error) {
	if opt.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, opt.Timeout)
		defer cancel()
		opt.Timeout /= time.Duration(points + 1)
	}
	floor, err := leastWithin(ctx, in, opt)
	if err != nil {
		return nil, err
	}
	f := &Frontier{Total: in.Total(), Floor: *floor}
	high := in.Peak()
	for i := range points {
		opt.Budget = high - int64(float64(high-floor.Budget)*float64(i)/float64(max(points-1, 1)))
		if i == points-1 {
			opt.Budget = floor.Budget
		}
		r, err := Solve(ctx, in, opt)
		switch {
		case errors.Is(err, ErrNoPlan):
			f.Points = append(f.Points, FrontierPoint{Budget: opt.Budget, Cost: math.MaxInt64, LowerBound: r.LowerBound})
		case err != nil:
			return nil, err
		default:
			f.Points = append(f.Points, FrontierPoint{Budget: opt.Budget, Peak: r.Peak, Cost: r.Cost, LowerBound: r.LowerBound})
		}
	}
	return f, f.settle(in)
}

// leastWithin finds the floor in the time of one point.
func leastWithin(ctx context.Context, in *Instance, opt Options) (*Floor, error) {
	if opt.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, opt.Timeout)
		defer cancel()
	}
	return Least(ctx, in, opt.Seed, 64)
}

// settle lets points improve each other: a plan for less memory is valid for
// more, a bound for more memory is valid for less.
func (f *Frontier) settle(in *Instance) error {
	peak, cost, err := Check(in, f.Floor.Schedule, f.Floor.Budget)
	if err != nil {
		return err
	}
	best := FrontierPoint{Peak: peak, Cost: cost}
	for i := len(f.Points) - 1; i >= 0; i-- {
		if p := &f.Points[i]; p.Cost >= best.Cost {
			p.Peak, p.Cost = best.Peak, best.Cost
		}
		best = f.Points[i]
	}
	bound := f.Total
	for i := range f.Points {
		p := &f.Points[i]
		bound = max(bound, p.LowerBound)
		p.LowerBound = bound
		p.Optimal = p.Cost == bound
		if f.Total > 0 {
			p.Overhead = float64(p.Cost-f.Total) / float64(f.Total)
			p.Bound = float64(bound-f.Total) / float64(f.Total)
		}
	}
	return nil
}
