package liveness

import (
	"errors"
	"fmt"
	"slices"

	"github.com/memplan/memplan/graph/program"
)

// An Allocator is the part of an allocator model that a replay needs. Sizes are
// bytes; Alloc fails if it cannot serve the request under the cap.
type Allocator[H any] interface {
	Alloc(size int64) (H, error)
	Free(H)
	Allocated() int64 // bytes in use, as the framework counts them
	Reserved() int64  // bytes taken from the driver
}

// A StreamAllocator serves each stream from pools of its own.
type StreamAllocator[H any] interface {
	AllocOn(stream int32, size int64) (H, error)
}

// ErrOutOfMemory is wrapped by the error of a replay that exceeded the cap.
var ErrOutOfMemory = errors.New("out of memory")

// A Failure is the point where a replay ran out of memory.
type Failure struct {
	Step  int   // 0 is the first
	Node  int32 // index in Program.Nodes, -1 for the residents
	Bytes int64 // of the request that failed
	cause error
}

func (f *Failure) Error() string {
	return fmt.Sprintf("step %d, node %d: %d bytes: %v", f.Step, f.Node, f.Bytes, f.cause)
}

// Unwrap makes errors.Is(f, ErrOutOfMemory) hold.
func (f *Failure) Unwrap() []error { return []error{ErrOutOfMemory, f.cause} }

// StepStats are the bytes of one replayed step; with several micro-batches,
// the ends of forward and backward are those of the last.
type StepStats struct {
	Start         int64 // allocated, after zero_grad
	AfterForward  int64
	AfterBackward int64
	AfterStep     int64
	ForwardPeak   int64 // allocated, loss included
	BackwardPeak  int64
	OptimizerPeak int64
	Reserved      int64 // highest reserved bytes up to the end of the step
}

// Peak returns the step's highest allocated bytes.
func (s StepStats) Peak() int64 { return max(s.ForwardPeak, s.BackwardPeak, s.OptimizerPeak) }

// A Refusal is an optional storage that did not fit, and its step; later steps
// do not request it again, as a library settles on the kernel that ran.
type Refusal struct {
	Storage     program.StorageID
	Step, Event int
}

// A Result is the outcome of a replay.
type Result struct {
	First     *Timeline // of the steps replayed
	Steady    *Timeline // nil if the first one failed
	Steps     []StepStats
	Requested int64     // highest sum of requested bytes
	Allocated int64     // highest allocated bytes
	Reserved  int64     // highest reserved bytes
	Refused   []Refusal // optional storages that did not fit, in the order of the requests
	Step      int       // the step and event at which Allocated was first reached
	Timeline  *Timeline // of that step
	Event     int
	Curve     []int64 // allocated bytes after each event of the peak's step
}

// replayer replays timelines on an allocator.
type replayer[H any] struct {
	a     Allocator[H]
	p     *program.Program
	cur   []H // handle of each storage
	prev  []H // handles of the step before
	live  int64
	gone  map[program.StorageID]bool // optional storages once refused: the library has settled on a kernel without
	res   Result
	curve []int64
}

// Replay runs the residents and then steps steps, the first of which creates
// state, on an allocator. It returns a *Failure if the allocator refuses an
// allocation that is not optional.
func Replay[H any](p *program.Program, a Allocator[H], steps int) (*Result, error) {
	ranges := NewRanges(p)
	r := &replayer[H]{a: a, p: p, res: Result{First: newTimeline(p, ranges, true, false)}, cur: make([]H, len(p.Storages)), prev: make([]H, len(p.Storages)), gone: map[program.StorageID]bool{}}
	for _, ev := range p.Setup {
		if ev.Free {
			if !r.gone[ev.Storage] {
				r.a.Free(r.cur[ev.Storage])
				r.live -= p.Storages[ev.Storage].Bytes
			}
			continue
		}
		if err := r.alloc(ev.Storage, 0, -1, -1); err != nil {
			return &r.res, err
		}
	}
	r.res.Requested, r.res.Reserved, r.res.Refused = r.live, a.Reserved(), nil
	for s := range steps {
		t := r.res.First
		switch {
		case s == 0:
		case s == 1 && hasSecond(p):
			t = Second(p)
		default:
			t = r.res.Steady
		}
		if err := r.step(t, s); err != nil {
			return &r.res, err
		}
		if s == 0 {
			r.res.Steady = newTimeline(p, ranges, false, false)
		}
	}
	return &r.res, nil
}

// hasSecond reports whether some nodes run in the second step alone.
func hasSecond(p *program.Program) bool {
	for i := range p.Nodes {
		if p.Nodes[i].Only == program.SecondStep {
			return true
		}
	}
	return false
}

func (r *replayer[H]) alloc(id program.StorageID, step, event int, node int32) error {
	n := r.p.Storages[id].Bytes
	h, err := r.take(r.p.Storages[id].Stream, n)
	if err != nil && r.p.Storages[id].Optional {
		r.gone[id] = true
		r.res.Refused = append(r.res.Refused, Refusal{id, step, event})
		return nil
	}
	if err != nil {
		return &Failure{Step: step, Node: node, Bytes: n, cause: err}
	}
	r.cur[id] = h
	r.live += n
	r.res.Requested = max(r.res.Requested, r.live)
	return nil
}

// take allocates on a stream, if the allocator distinguishes streams.
func (r *replayer[H]) take(stream uint8, bytes int64) (H, error) {
	if a, ok := r.a.(StreamAllocator[H]); ok && stream != 0 {
		return a.AllocOn(int32(stream), bytes)
	}
	return r.a.Alloc(bytes)
}

// step replays one step and records its statistics.
func (r *replayer[H]) step(t *Timeline, s int) error {
	var st StepStats
	r.curve = slices.Grow(r.curve[:0], len(t.Events))
	copy(r.prev, r.cur)
	var end, peak [program.NumPhases]int64 // the last micro-batch's end, the highest of all
	now, best := r.a.Allocated(), int64(-1)
	phase := program.ZeroGrad
	peak[phase], end[phase] = now, now
	enter := func(to program.Phase) {
		if to < phase { // the next micro-batch
			phase = to
			peak[to] = max(peak[to], now)
		}
		for ; phase < to; peak[phase], end[phase] = max(peak[phase], now), now {
			phase++
		}
	}
	for at := range t.Events {
		enter(r.p.Nodes[t.Events[at].Node].Phase)
		if err := r.event(t, at, s); err != nil {
			return err
		}
		now = r.a.Allocated()
		r.curve = append(r.curve, now)
		peak[phase], end[phase] = max(peak[phase], now), now
		if now > r.res.Allocated && now > best {
			best, r.res.Step, r.res.Event = now, s, at
		}
	}
	enter(program.Update)
	st.Start, st.AfterForward, st.AfterBackward, st.AfterStep = end[program.ZeroGrad], end[program.Loss], end[program.Backward], end[program.Update]
	st.ForwardPeak = max(peak[program.ZeroGrad], peak[program.Forward], peak[program.Loss])
	st.BackwardPeak, st.OptimizerPeak = peak[program.Backward], peak[program.Update]
	st.Reserved = r.a.Reserved()
	r.res.Reserved = max(r.res.Reserved, st.Reserved)
	if best >= 0 {
		r.res.Allocated, r.res.Timeline = best, t
		r.res.Curve = append(r.res.Curve[:0], r.curve...)
	}
	r.res.Steps = append(r.res.Steps, st)
	return nil
}

func (r *replayer[H]) event(t *Timeline, i, s int) error {
	ev := t.Events[i]
	if r.gone[ev.Storage] {
		return nil
	}
	if !ev.Free {
		err := r.alloc(ev.Storage, s, i, ev.Node)
		r.res.Reserved = max(r.res.Reserved, r.a.Reserved())
		return err
	}
	h := r.cur[ev.Storage]
	if ev.Old {
		h = r.prev[ev.Storage]
	}
	r.a.Free(h)
	r.live -= r.p.Storages[ev.Storage].Bytes
	return nil
}

// PeakStep returns the timeline of the step with the peak.
func (r *Result) PeakStep() *Timeline {
	switch {
	case r.Timeline != nil:
		return r.Timeline
	case r.Step == 0:
		return r.First
	}
	return r.Steady
}

// LivePeak returns the storages that are live at the allocated peak, ordered by
// id.
func (r *Result) LivePeak() []program.StorageID {
	live := LiveAt(r.PeakStep(), r.Event)
	for _, f := range r.Refused {
		if f.Step < r.Step || f.Step == r.Step && f.Event <= r.Event {
			live = slices.DeleteFunc(live, func(id program.StorageID) bool { return id == f.Storage })
		}
	}
	return live
}

// LiveAt returns the storages that are live after event i of a timeline,
// ordered by id.
func LiveAt(t *Timeline, i int) []program.StorageID {
	p := t.Program
	live := make([]bool, len(p.Storages))
	for id := range p.Storages {
		switch p.Storages[id].Life {
		case program.Static:
			live[id] = true
		case program.State, program.Carried:
			live[id] = !t.First
		}
	}
	old := make([]bool, len(p.Storages)) // gradients of this step, besides those of the last
	for _, ev := range t.Events[:i+1] {
		switch {
		case ev.Old:
			live[ev.Storage] = old[ev.Storage]
		case ev.Free:
			live[ev.Storage] = false
		default:
			live[ev.Storage], old[ev.Storage] = true, true
		}
	}
	var out []program.StorageID
	for id, on := range live {
		if on {
			out = append(out, program.StorageID(id))
		}
	}
	return out
}
