package planner

import (
	"slices"

	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/liveness"
	"github.com/memplan/memplan/liveness/alloc"
)

// A Placement is where PyTorch's allocator puts the storages of a steady step, as in
// the replay that the report rests on.
type Placement struct {
	Before   []int64         // addresses of Standing, in its order
	Events   []Placed        // of Timeline, in its order
	Segments []alloc.Segment // when the step ends
}

// A Placed is one event of the step on the allocator.
type Placed struct {
	Addr    int64 // 0 for no bytes, and for memory that the allocator refused
	Stream  uint8
	Taken   []alloc.Extent // from the driver, for this event
	Given   []alloc.Extent // back to it
	Sources []lift.Line    // the model's code that runs, its forward first; nil where the file has none
}

// addressBase is added to the allocator's addresses, which go down from 2^61: below 2^50
// memory_viz, whose numbers are JavaScript's, has them exactly.
const addressBase = 1<<50 - 1<<61

// A recorder is an allocator that notes where allocations lie.
type recorder struct {
	*alloc.Caching
	log    []Placed
	held   []alloc.Extent
	driver int64 // calls of the driver
}

func (r *recorder) Alloc(size int64) (alloc.Handle, error) { return r.AllocOn(0, size) }

func (r *recorder) AllocOn(stream int32, size int64) (alloc.Handle, error) {
	h, err := r.Caching.AllocOn(stream, size)
	p := Placed{Stream: uint8(stream), Addr: -1}
	switch {
	case err == nil && size == 0:
		p.Addr = 0
	case err == nil:
		p.Addr = addressBase + r.Address(h)
	}
	if st := r.Stats(); st.Mallocs+st.Frees != r.driver {
		r.driver = st.Mallocs + st.Frees
		now := r.Caching.Segments()
		for i := range now {
			now[i].Addr += addressBase
		}
		p.Taken, p.Given = beyond(now, r.held), beyond(r.held, now)
		r.held = now
	}
	r.log = append(r.log, p)
	return h, err
}

// beyond returns the parts of a that lie outside of b; both are sorted.
func beyond(a, b []alloc.Extent) []alloc.Extent {
	var out []alloc.Extent
	for _, x := range a {
		for len(b) > 0 && b[0].Addr+b[0].Size <= x.Addr {
			b = b[1:]
		}
		at, end := x.Addr, x.Addr+x.Size
		for _, y := range b {
			if y.Addr >= end {
				break
			}
			if y.Addr > at {
				out = append(out, alloc.Extent{Addr: at, Size: y.Addr - at})
			}
			at = max(at, y.Addr+y.Size)
		}
		if at < end {
			out = append(out, alloc.Extent{Addr: at, Size: end - at})
		}
	}
	return out
}

// Placement replays the step on the allocator once more.
func (a *Answer) Placement() (*Placement, error) {
	p, err := a.placed()
	if err != nil {
		return nil, err
	}
	for i, e := range a.ev.res.Steady.Events {
		p.Events[i].Sources = a.sources(e)
	}
	return p, nil
}

// placed is Placement without the lines of code.
func (a *Answer) placed() (*Placement, error) {
	ev, limit := a.ev, a.ev.limit
	if ev.fail != nil { // it does not fit: where it would lie without a limit
		limit = 0
	}
	rec := &recorder{Caching: alloc.NewCaching(ev.conf, limit)}
	if _, err := liveness.Replay[alloc.Handle](ev.Program, rec, steps); err != nil {
		return nil, err
	}
	z := &zip{p: ev.Program, log: rec.log, at: make([]Placed, len(ev.Storages)), gone: map[program.StorageID]bool{}}
	for _, e := range ev.Program.Setup {
		z.event(liveness.Event{Storage: e.Storage, Free: e.Free})
	}
	var out Placement
	for s := range steps {
		out.Events = out.Events[:0]
		z.prev = slices.Clone(z.at)
		if out.Before = out.Before[:0]; s == steps-1 {
			for _, id := range standing(ev.Program) {
				out.Before = append(out.Before, z.at[id].Addr)
			}
		}
		for _, e := range timelineOf(ev.Program, ev.res, s).Events {
			p := z.event(e)
			if s == steps-1 {
				out.Events = append(out.Events, p)
			}
		}
	}
	out.Segments = rec.Snapshot().Segments
	for i := range out.Segments {
		g := &out.Segments[i]
		g.Addr += addressBase
		for k := range g.Blocks {
			g.Blocks[k].Addr += addressBase
		}
	}
	return &out, nil
}

// timelineOf returns the timeline of a step of a replay, as liveness.Replay chooses it.
func timelineOf(p *program.Program, res *liveness.Result, s int) *liveness.Timeline {
	switch {
	case s == 0:
		return res.First
	case s == 1 && slices.ContainsFunc(p.Nodes, func(n program.Node) bool { return n.Only == program.SecondStep }):
		return liveness.Second(p)
	}
	return res.Steady
}

// A zip follows the events of a replay along the allocator's log, which has an entry
// for each request.
type zip struct {
	p        *program.Program
	log      []Placed
	at, prev []Placed // of each storage, now and before the step
	gone     map[program.StorageID]bool
}

func (z *zip) event(e liveness.Event) Placed {
	switch {
	case z.gone[e.Storage]:
		return Placed{}
	case e.Free && e.Old:
		return Placed{Addr: z.prev[e.Storage].Addr, Stream: z.prev[e.Storage].Stream}
	case e.Free:
		return Placed{Addr: z.at[e.Storage].Addr, Stream: z.at[e.Storage].Stream}
	}
	p := z.log[0]
	z.log = z.log[1:]
	if p.Addr < 0 {
		z.gone[e.Storage], p.Addr = true, 0
	}
	z.at[e.Storage] = Placed{Addr: p.Addr, Stream: p.Stream}
	return p
}

// sources returns the lines of the model's code behind an event.
func (a *Answer) sources(e liveness.Event) []lift.Line {
	n := &a.ev.Nodes[e.Node]
	if n.Call < 0 || a.ev.Lifted == nil {
		return nil
	}
	return lift.Lines(&a.ev.Lifted.Graph.Nodes[n.Call])
}
