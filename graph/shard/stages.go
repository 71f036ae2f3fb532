package shard

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
)

// A span is an action of a pipeline with the nodes that it runs, from First up to Last.
type span struct {
	Action
	First, Last int
}

// ahead is how many stages PyTorch's schedules of several stages a rank keep whole
// (_add_unshard_reshard's max_active_stages).
const ahead = 3

// A stageUnits is what fully_shard keeps of one stage of a pipeline, each of which is a root of
// its own.
type stageUnits struct {
	units   []*unit // the root first
	order   []*unit // of all forwards in the step
	waiting bool    // gathered ahead of its next action, not yet copied out
	active  bool    // gathered ahead
	left    int     // micro-batches whose backward has not ended
}

// stages is FSDP on the stages of a pipeline: gradients are summed whole over the micro-batches, and
// parameters, once backward has gathered them, stay until the last one, when they
// are reduced and scattered (PipelineStage.backward_maybe_with_nosync, perform_reduce_grad).
func (o FSDP) stages(b *train.Build, spans []span) (*train.Build, error) {
	if err := o.valid(); err != nil {
		return nil, err
	}
	w := &fsdp{FSDP: o, editor: newEditor(b), spans: spans, stage: map[int]*stageUnits{}}
	if err := w.splitStages(); err != nil {
		return nil, err
	}
	w.construct()
	w.whole, w.casts, w.cast = w.casts, nil, map[castOf]program.StorageID{}
	w.walkStages()
	return w.build(), nil
}

// splitStages finds the units of each stage and their parameters.
func (w *fsdp) splitStages() error {
	w.state, w.input = program.None, program.None
	w.params = map[program.StorageID]*sharded{}
	reads := map[program.StorageID]int{} // the first stage that reads a storage
	var local []int
	for _, sp := range w.spans {
		s := w.stage[sp.Stage]
		if s == nil {
			s = &stageUnits{units: []*unit{w.newUnit("", len(w.stage))}}
			w.stage[sp.Stage], local = s, append(local, sp.Stage)
		}
		if !sp.Backward && !sp.Weights {
			s.left++
		}
		for i := sp.First; i < sp.Last; i++ {
			n := &w.src.Nodes[i]
			if m := w.owner(n.Module); m != "" && !slices.ContainsFunc(s.units, func(u *unit) bool { return u.name == m }) {
				s.units = append(s.units, w.newUnit(m, s.units[0].local))
			}
			for _, id := range n.Reads {
				if _, ok := reads[id]; !ok {
					reads[id] = sp.Stage
				}
			}
		}
	}
	for _, sp := range w.spans {
		if s := w.stage[sp.Stage]; sp.Inputs && !w.Keep && len(s.units) > 1 {
			return errors.New("PyTorch's schedules that compute gradients of weights apart lose those of parameters that are sharded again after forward, without a word: give --fsdp-reshard false")
		}
	}
	slices.Sort(local)
	for _, at := range local {
		w.units = append(w.units, w.stage[at].units...)
	}
	return w.assign(func(p train.Param) *unit {
		s := w.stage[reads[p.Tensor.Storage]]
		if s == nil { // nothing reads it
			s = w.stage[local[0]]
		}
		m := w.owner(module(p.Name))
		return s.units[max(0, slices.IndexFunc(s.units, func(u *unit) bool { return u.name == m }))]
	})
}

func (w *fsdp) newUnit(name string, local int) *unit {
	return &unit{name: name, keep: w.Keep || name == "", gathered: program.None, last: -1, local: local, ranks: w.among(name).Size}
}

// within are the units of a stage around a module, the root first.
func (s *stageUnits) within(module string) (out []*unit) {
	for _, u := range s.units {
		if u.name == "" || train.Within(module, u.name) {
			out = append(out, u)
		}
	}
	slices.SortStableFunc(out, func(a, b *unit) int { return cmp.Compare(len(a.name), len(b.name)) })
	return out
}

// walkStages copies the program action by action, gathers before a unit runs, and reduces when
// a stage's backward has run for all micro-batches: at once where a rank has several stages, else when
// all has been sent.
func (w *fsdp) walkStages() {
	next, several := 0, len(w.stage) > 1
	for k, sp := range w.spans {
		w.rest(next, sp.First)
		s := w.stage[sp.Stage]
		w.follow(&w.src.Nodes[min(sp.First, len(w.src.Nodes)-1)])
		if several {
			w.ahead(w.spans[k:])
		}
		w.layers, w.order = nil, s.order
		w.castMicro(sp)
		if w.waited(s); sp.Backward || sp.Weights {
			w.backward(s, sp)
		} else {
			w.forward(s, sp)
		}
		s.order, next = w.order, sp.Last
		if (sp.Backward || sp.Weights) && !sp.Inputs {
			s.left--
		}
		if s.left == 0 && several {
			w.reduceStage(s)
			s.left = -1
		}
	}
	for ; next < len(w.src.Nodes) && w.src.Nodes[next].Op == "send"; next++ {
		w.keep(&w.src.Nodes[next])
	}
	for _, s := range w.stage {
		if s.left == 0 {
			w.reduceStage(s)
		}
	}
	w.rest(next, len(w.src.Nodes))
}

// rest copies nodes that are no action's, the optimizer's step over the shards.
func (w *fsdp) rest(from, to int) {
	for i := from; i < to; i++ {
		n := &w.src.Nodes[i]
		w.follow(n)
		if n.Phase != program.Update || n.Op != "step" {
			w.keep(n)
		} else if n.Only != program.LaterSteps {
			w.update()
		}
	}
}

// ahead gathers the stages that run next, and lets go of those that do not.
func (w *fsdp) ahead(spans []span) {
	var soon []int
	for _, sp := range spans {
		if len(soon) < ahead && !slices.Contains(soon, sp.Stage) {
			soon = append(soon, sp.Stage)
		}
	}
	for _, at := range slices.Sorted(maps.Keys(w.stage)) {
		if s := w.stage[at]; s.active && !slices.Contains(soon, at) {
			s.active = false
			for _, u := range s.units {
				w.reshard(u)
			}
		}
	}
	for _, at := range soon {
		if s := w.stage[at]; !s.active {
			s.active, s.waiting = true, true
			for _, u := range s.units {
				w.unshardOn(u, compute)
			}
		}
	}
}

// waited copies out what has been gathered ahead.
func (w *fsdp) waited(s *stageUnits) {
	if !s.waiting {
		return
	}
	s.waiting = false
	for _, u := range s.units {
		w.copyOut(u, false)
	}
}

// castMicro gives the nodes of an action the micro-batch's own inputs in the policy's type, which the first
// stage's forward makes.
func (w *fsdp) castMicro(sp span) {
	if sp.Stage > 0 {
		return
	}
	var events []program.Event
	for _, id := range w.whole {
		key := castOf{id, sp.Micro}
		if !sp.Backward && !sp.Weights {
			w.cast[key] = w.storage(w.p.Storages[id].Bytes/int64(max(1, w.src.Micros)), program.Inputs, compute, w.p.Storages[id].Name)
			events = append(events, alloc(w.cast[key]))
		}
		w.name[id] = w.cast[key]
	}
	w.node("fsdp::cast_forward_inputs", "", events...)
}

// A castOf is a micro-batch's part of an input of all of them.
type castOf struct {
	input program.StorageID
	micro int
}

// forward runs the forward of a micro-batch.
func (w *fsdp) forward(s *stageUnits, sp span) {
	for i := sp.First; i < sp.Last; i++ {
		n := &w.src.Nodes[i]
		w.follow(n)
		w.enter(s.within(n.Module))
		w.keep(n)
	}
	w.leave(nil)
}

// backward runs the backward of a micro-batch, or a part of it. The hooks of modules run
// with the gradients of their outputs, and not for the gradients of parameters alone.
func (w *fsdp) backward(s *stageUnits, sp span) {
	entered, last := map[*unit]bool{}, map[int][]*unit{}
	for _, u := range s.units {
		for i := sp.Last - 1; i >= sp.First; i-- {
			if m := w.src.Nodes[i].Module; u.name == "" || train.Within(m, u.name) {
				last[i] = append(last[i], u)
				break
			}
		}
	}
	begun := false
	for i := sp.First; i < sp.Last; i++ {
		n := &w.src.Nodes[i]
		w.follow(n)
		if begun = begun || n.Call >= 0 || n.Module != ""; begun && sp.Backward {
			for _, u := range s.within(n.Module) {
				if !entered[u] {
					entered[u] = true
					w.preBackward(u)
				}
			}
		}
		w.keep(n)
		for _, u := range slices.Backward(last[i]) {
			if !sp.Inputs && !u.summed {
				u.summed = true
				w.accumulate(u)
			}
		}
	}
}

// preBackward gathers a unit before its backward and starts the all-gather of the unit whose forward
// ended before its own last one.
func (w *fsdp) preBackward(u *unit) {
	w.unshard(u)
	w.copyOut(u, false)
	n := len(u.order) - 1
	if n < 0 {
		return
	}
	at := u.order[n]
	u.order = u.order[:n]
	for k := 1; k <= max(w.Prefetch, 1) && k <= at; k++ {
		w.unshard(w.order[at-k])
	}
}

// reduceStage reduces and scatters the gradients of a stage's units, the root first.
func (w *fsdp) reduceStage(s *stageUnits) {
	for _, u := range s.units {
		w.reshard(u)
		w.scatter(u)
	}
	w.freeInput()
}
