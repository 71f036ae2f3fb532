package shard

import "slices"

// A Schedule is what a rank of several does with micro-batches, in order.
type Schedule struct {
	Name, Doc string
	Each      int  // stages of a rank by default
	More      bool // other numbers of them are possible
	V         bool // rank r of n has the stages r and 2n-1-r; else r, r+n, ...
	Split     bool // backward computes the gradients of weights apart
	rounds    bool // micro-batches run in rounds, which must be equal
	sent      int  // gradients that their sends keep at a time; -1: all, until the end. Of interleaved none: two ranks' memory (planner/testdata/distributed)
	// Idle is how much of the idle time of 1f1b's stages there is, by PyTorch's assumption that
	// forward and both parts of backward take equally long.
	Idle  float64
	Order func(rank, ranks, each, micros int) []Action
}

// Schedules are the pipeline schedules by name (torch/distributed/pipelining/schedules.py).
var Schedules = []Schedule{
	{Name: "gpipe", Doc: "all forwards, then all backwards", Each: 1, sent: -1, Idle: 1, Order: gpipe},
	{Name: "1f1b", Doc: "one forward, one backward, once as many forwards run as stages follow", Each: 1, sent: 1, Idle: 1, Order: oneForwardOneBackward},
	{Name: "interleaved", Doc: "1f1b with several stages a rank (ScheduleInterleaved1F1B)", Each: 2, More: true, rounds: true, Idle: 1, Order: interleaved},
	{Name: "bfs", Doc: "gpipe with several stages a rank (ScheduleLoopedBFS)", Each: 2, More: true, Idle: 1, Order: loopedBFS},
	{Name: "zero-bubble", Doc: "interleaved, with gradients of weights later, where ranks would wait (ScheduleInterleavedZeroBubble)", Each: 2, More: true, Split: true, rounds: true, Idle: 1. / 3, Order: zeroBubble},
	{Name: "zbv", Doc: "gradients of weights later, the stages of a rank in a V (ScheduleZBVZeroBubble)", Each: 2, V: true, Split: true, Order: zeroBubbleV},
}

// FindSchedule returns the schedule of a name, nil for none.
func FindSchedule(name string) *Schedule {
	if i := slices.IndexFunc(Schedules, func(s Schedule) bool { return s.Name == name }); i >= 0 {
		return &Schedules[i]
	}
	return nil
}

// stages are those of a rank.
func (s *Schedule) stages(rank, ranks, each int) (out []int) {
	for k := range each {
		out = append(out, k*ranks+rank)
	}
	if s.V {
		out[1] = 2*ranks - 1 - rank
	}
	return out
}

func gpipe(rank, _, _, micros int) (out []Action) {
	for m := range micros {
		out = append(out, Action{Stage: rank, Micro: m})
	}
	for m := range micros {
		out = append(out, Action{Backward: true, Stage: rank, Micro: m})
	}
	return out
}

func oneForwardOneBackward(stage, stages, _, micros int) (out []Action) {
	next := min(micros, stages-stage)
	for m := range next {
		out = append(out, Action{Stage: stage, Micro: m})
	}
	for m := range micros {
		out = append(out, Action{Backward: true, Stage: stage, Micro: m})
		if next < micros {
			out = append(out, Action{Stage: stage, Micro: next})
			next++
		}
	}
	return out
}

// loopedBFS runs all micro-batches through a stage before the next. PyTorch's backward takes the last
// micro-batch first, which is numbered 0 here: whichever is first makes the gradients.
func loopedBFS(rank, ranks, each, micros int) (out []Action) {
	for k := range each {
		for m := range micros {
			out = append(out, Action{Stage: k*ranks + rank, Micro: micros - 1 - m})
		}
	}
	for k := range each {
		for m := range micros {
			out = append(out, Action{Backward: true, Stage: (each-1-k)*ranks + rank, Micro: m})
		}
	}
	return out
}

// interleaved runs micro-batches in rounds, in each of them through one stage of the rank
// after the other (_get_1f1b_rank_ops).
func interleaved(rank, ranks, each, micros int) []Action {
	return inRounds(rank, ranks, each, micros, 2, false)
}

// zeroBubble starts sooner with backward, of inputs alone; those of weights follow as many
// backwards later as the rank's number.
func zeroBubble(rank, ranks, each, micros int) []Action {
	return inRounds(rank, ranks, each, micros, 1, true)
}

func inRounds(rank, ranks, each, micros, hop int, split bool) (out []Action) {
	round := micros / max(1, micros/ranks)
	all := each * micros
	warmup := min(all, (each-1)*round+hop*(ranks-1-rank))
	forwards, backwards, weights := make([]int, each), make([]int, each), make([]int, each)
	add := func(a Action, k int, counts []int) {
		a.Stage, a.Micro = k*ranks+rank, counts[k]
		counts[k]++
		out = append(out, a)
	}
	weight := func(op int) {
		add(Action{Backward: true, Weights: true}, each-1-op/round%each, weights)
	}
	for op := range warmup {
		add(Action{}, op/round%each, forwards)
	}
	for op := range all {
		if op+warmup < all {
			add(Action{}, (op+warmup)/round%each, forwards)
		}
		add(Action{Backward: true, Inputs: split}, each-1-op/round%each, backwards)
		if split && op >= rank {
			weight(op - rank)
		}
	}
	if split {
		for op := all - min(rank, all); op < all; op++ {
			weight(op)
		}
	}
	return out
}

// zeroBubbleV is ScheduleZBVZeroBubble's order: it plans for enough micro-batches and leaves out those
// that there are not.
func zeroBubbleV(rank, ranks, _, micros int) []Action {
	v := &vOrder{stages: [2]int{rank, 2*ranks - 1 - rank}}
	const down, up = 0, 1
	all := max(2*ranks-1, micros)
	for range 2*(ranks-rank) - 1 {
		v.forward(down)
	}
	for range rank {
		v.forward(up)
		v.forward(down)
	}
	for range ranks - rank {
		v.forward(up)
		v.inputs(up)
		v.weights(up)
	}
	for v.f[up] < v.f[down] || v.f[down] < all {
		if v.f[down] < all {
			v.forward(down)
		}
		v.inputs(down)
		v.weights(down)
		v.forward(up)
		v.inputs(up)
		v.weights(up)
	}
	for range rank {
		v.inputs(down)
		v.inputs(up)
	}
	for range ranks - rank {
		v.inputs(down)
		v.weights(down)
	}
	for _, k := range []int{up, down} {
		for v.w[k] < v.i[k] {
			v.weights(k)
		}
	}
	return slices.DeleteFunc(v.out, func(a Action) bool { return a.Micro >= micros })
}

// A vOrder counts what has run of the two stages of a rank.
type vOrder struct {
	stages  [2]int
	f, i, w [2]int
	out     []Action
}

func (v *vOrder) add(a Action, k int, n *int) {
	a.Stage, a.Micro = v.stages[k], *n
	*n++
	v.out = append(v.out, a)
}

func (v *vOrder) forward(k int) { v.add(Action{}, k, &v.f[k]) }
func (v *vOrder) inputs(k int)  { v.add(Action{Backward: true, Inputs: true}, k, &v.i[k]) }
func (v *vOrder) weights(k int) { v.add(Action{Backward: true, Weights: true}, k, &v.w[k]) }
