package shard

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
)

// An Action is the forward or the backward of a micro-batch.
type Action struct {
	Backward bool
	Micro    int
}

// A Schedule is the order of a stage's actions on micro-batches.
type Schedule struct {
	Name, Doc string
	Order     func(stage, stages, micros int) []Action
}

// Schedules are the pipeline schedules by name (torch/distributed/pipelining/schedules.py).
var Schedules = []Schedule{
	{"gpipe", "all forwards, then all backwards", gpipe},
	{"1f1b", "one forward, one backward, once as many forwards run as stages follow", oneForwardOneBackward},
}

func gpipe(_, _, micros int) (out []Action) {
	for m := range micros {
		out = append(out, Action{Micro: m})
	}
	for m := range micros {
		out = append(out, Action{Backward: true, Micro: m})
	}
	return out
}

func oneForwardOneBackward(stage, stages, micros int) (out []Action) {
	next := min(micros, stages-stage)
	for m := range next {
		out = append(out, Action{Micro: m})
	}
	for m := range micros {
		out = append(out, Action{Backward: true, Micro: m})
		if next < micros {
			out = append(out, Action{Micro: next})
			next++
		}
	}
	return out
}

// Pipeline is torch.distributed.pipelining: each rank runs the modules of its stage
// on one micro-batch after the other. The source is the step of one GPU at the
// batch of a micro-batch, with Micros micro-batches accumulated.
type Pipeline struct {
	Stage    int      // of this rank, from 0
	Splits   []string // first modules of the stages, except of the first stage
	Micros   int
	Schedule string // a name of Schedules
	Update   Update
}

// Apply returns the step of a rank. The source is not changed.
func (o Pipeline) Apply(b *train.Build) (*train.Build, error) {
	at := slices.IndexFunc(Schedules, func(s Schedule) bool { return s.Name == o.Schedule })
	stages := len(o.Splits) + 1
	switch {
	case at < 0:
		return nil, fmt.Errorf("unknown pipeline schedule %q", o.Schedule)
	case o.Stage < 0 || o.Stage >= stages:
		return nil, fmt.Errorf("pipeline stage %d of %d", o.Stage, stages)
	case o.Micros < stages && o.Schedule != "gpipe":
		return nil, fmt.Errorf("pipeline schedule %s: %d micro-batches for %d stages: there must be as many", o.Schedule, o.Micros, stages)
	case b.Micros != o.Micros:
		return nil, fmt.Errorf("pipeline of %d micro-batches over a step of %d", o.Micros, b.Micros)
	}
	p := &pipeline{Pipeline: o, editor: newEditor(b)}
	if err := p.cut(); err != nil {
		return nil, err
	}
	p.own()
	p.run(Schedules[at].Order(o.Stage, stages, o.Micros))
	return p.build(), nil
}

type pipeline struct {
	Pipeline
	*editor
	lo, hi   int32                                     // calls of the stage, half-open
	forward  [][]int                                   // nodes of the stage's forward, for each micro-batch built
	backward [][]int                                   // and of its backward
	maker    map[program.StorageID]int                 // the node that allocates a storage
	mine     map[int]bool                              // nodes of this stage
	recv     []map[program.StorageID]program.StorageID // for each micro-batch: what is received for a storage of another stage
}

// cut finds the calls and nodes of this stage.
func (p *pipeline) cut() error {
	p.lo, p.hi = 0, 1<<30
	for i, name := range p.Splits {
		first, _ := train.Range(p.src.Lifted, []string{name})
		if first >= len(p.src.Lifted.Graph.Nodes) {
			return fmt.Errorf("pipeline: no operator runs in the module %q", name)
		}
		if i+1 == p.Stage {
			p.lo = int32(first)
		}
		if i == p.Stage {
			p.hi = int32(first)
		}
	}
	if p.lo >= p.hi {
		return fmt.Errorf("pipeline: the modules %s do not run in that order", strings.Join(p.Splits, ", "))
	}
	built := min(p.src.Micros, program.MicrosBuilt)
	p.forward, p.backward = make([][]int, built), make([][]int, built)
	p.maker, p.mine = map[program.StorageID]int{}, map[int]bool{}
	last := p.Stage == len(p.Splits)
	call := int32(0)
	for i := range p.src.Nodes {
		n := &p.src.Nodes[i]
		for _, ev := range n.Events {
			if !ev.Free {
				p.maker[ev.Storage] = i
			}
		}
		if n.Call >= 0 {
			call = n.Call
		}
		in := call >= p.lo && call < p.hi
		switch {
		case n.Phase == program.Forward && in:
			p.forward[n.Micro] = append(p.forward[n.Micro], i)
		case n.Phase == program.Loss && last:
			p.forward[n.Micro] = append(p.forward[n.Micro], i)
			in = true
		case n.Phase == program.Backward && (in || last && n.Call < 0 && n.Module == "" && len(p.backward[n.Micro]) == 0):
			p.backward[n.Micro] = append(p.backward[n.Micro], i)
			in = true
		case n.Phase != program.Forward && n.Phase != program.Backward:
			in = n.Phase != program.Loss
		default:
			in = false
		}
		p.mine[i] = in
	}
	return nil
}

// gemms are the operators that get a cuBLAS handle.
var gemms = []string{"addmm", "mm", "bmm", "baddbmm"}

// workspaces lists, by node of this stage, the library workspaces that the step of
// one GPU makes in another stage and that this one makes, too: at its first matrix
// product of the phase, or at its first addmm for cuBLASLt's.
func (p *pipeline) workspaces() map[int][]program.Event {
	out := map[int][]program.Event{}
	for id, at := range p.maker {
		n := &p.src.Nodes[at]
		if p.p.Storages[id].Life != program.State || p.mine[at] || n.Phase == program.Update || !slices.Contains(gemms, n.Op) {
			continue
		}
		lt := p.p.Storages[id].Bytes < 4<<20 && n.Op == "addmm"
		for i := range p.src.Nodes {
			c := &p.src.Nodes[i]
			if p.mine[i] && c.Micro == 0 && (c.Phase == program.Backward) == (n.Phase == program.Backward) && (c.Op == "addmm" || !lt && slices.Contains(gemms, c.Op)) {
				out[i] = append(out[i], alloc(id))
				break
			}
		}
	}
	for i := range out {
		slices.SortFunc(out[i], func(a, b program.Event) int { return int(a.Storage - b.Storage) })
	}
	return out
}

// own removes parameters and buffers of other stages.
func (p *pipeline) own() {
	read := map[program.StorageID]bool{}
	for i := range p.src.Nodes {
		if n := &p.src.Nodes[i]; p.mine[i] && n.Phase != program.Update && n.Phase != program.ZeroGrad {
			for _, id := range n.Reads {
				read[id] = true
			}
			for _, t := range slices.Concat(n.In, n.Out) {
				read[t.Storage] = true
			}
		}
	}
	modules := map[string]bool{}
	for _, prm := range p.src.Params {
		if read[prm.Tensor.Storage] {
			modules[module(prm.Name)] = true
		}
	}
	drop := func(id program.StorageID) bool {
		s := &p.p.Storages[id]
		switch s.Category {
		case program.Parameters:
			return !read[id]
		case program.Buffers:
			return !read[id] && !modules[module(s.Name)]
		}
		return false
	}
	p.p.Statics = slices.DeleteFunc(p.p.Statics, drop)
	p.p.Setup = slices.DeleteFunc(p.p.Setup, func(ev program.Event) bool { return drop(ev.Storage) })
	for _, id := range p.p.Statics {
		if s := &p.p.Storages[id]; s.Category == program.Inputs { // inputs of all micro-batches
			s.Bytes *= int64(p.Micros)
		}
	}
	p.p.Carried = slices.DeleteFunc(p.p.Carried, func(id program.StorageID) bool { return !p.mine[p.maker[id]] })
	p.p.Overlapping = true
}

// run adds the stage's actions, and then the update.
func (p *pipeline) run(order []Action) {
	p.receive()
	for i := range p.src.Nodes {
		if n := &p.src.Nodes[i]; n.Phase == program.ZeroGrad {
			p.keep(n)
		}
	}
	ids := make([]map[program.StorageID]program.StorageID, p.Micros)
	for m := range ids {
		ids[m] = p.renamed(m)
	}
	extra := p.workspaces()
	var held []program.StorageID
	for _, a := range order {
		from := min(a.Micro, len(p.forward)-1)
		nodes := p.forward[from]
		if a.Backward {
			nodes = p.backward[from]
		}
		p.name = ids[a.Micro]
		for _, i := range nodes {
			n := p.src.Nodes[i]
			n.Events = slices.Concat(extra[i], n.Events)
			p.keep(&n)
			p.p.Nodes[len(p.p.Nodes)-1].Micro = int32(a.Micro)
		}
		if !a.Backward || len(nodes) == 0 {
			continue
		}
		p.follow(&p.p.Nodes[len(p.p.Nodes)-1])
		held = p.sendGradients(from, held)
		p.hold(p.outputs(from))
		if p.Schedule != "gpipe" { // before each send it waits for the previous one
			held = held[max(len(held)-1, 0):]
		}
	}
	clear(p.name)
	p.at.Phase = program.Update
	p.holdIDs(held)
	for i := range p.src.Nodes {
		switch n := &p.src.Nodes[i]; {
		case n.Phase != program.Update:
		case n.Op != "step":
			c := *n
			c.Holds = slices.DeleteFunc(slices.Clone(n.Holds), func(id program.StorageID) bool { return !p.mine[p.maker[id]] })
			c.Reads = slices.DeleteFunc(slices.Clone(n.Reads), func(id program.StorageID) bool { return !p.mine[p.maker[id]] })
			p.p.Nodes = append(p.p.Nodes, c)
		case n.Only != program.LaterSteps:
			p.step(p.locals(), p.Update)
		}
	}
}

// renamed returns the storages of micro-batch m: those of a micro-batch that was
// built, and new ones for others; and the received ones for those of other stages.
func (p *pipeline) renamed(m int) map[program.StorageID]program.StorageID {
	out := maps.Clone(p.recv[m])
	from := min(m, len(p.forward)-1)
	if m == from {
		return out
	}
	for _, i := range slices.Concat(p.forward[from], p.backward[from]) {
		for _, ev := range p.src.Nodes[i].Events {
			if s := p.p.Storages[ev.Storage]; !ev.Free && s.Life == program.Step {
				p.p.Storages = append(p.p.Storages, s)
				out[ev.Storage] = program.StorageID(len(p.p.Storages) - 1)
			}
		}
	}
	return out
}

// receive allocates, permanently, what each micro-batch receives from the
// neighbouring stages.
func (p *pipeline) receive() {
	p.recv = make([]map[program.StorageID]program.StorageID, p.Micros)
	for m := range p.recv {
		p.recv[m] = map[program.StorageID]program.StorageID{}
		from := min(m, len(p.forward)-1)
		for _, i := range slices.Concat(p.forward[from], p.backward[from]) {
			n := &p.src.Nodes[i]
			for _, t := range n.In {
				p.receives(m, t.Storage)
			}
			for _, id := range n.Reads {
				p.receives(m, id)
			}
		}
	}
}

func (p *pipeline) receives(m int, id program.StorageID) {
	at, made := p.maker[id]
	if id == program.None || !made || p.mine[at] || p.recv[m][id] != 0 || p.p.Storages[id].Life != program.Step {
		return
	}
	s := p.p.Storages[id]
	buf := p.storage(s.Bytes, program.Inputs, compute, "received "+s.Name)
	p.p.Storages[buf].Life = program.Static
	p.p.Statics = append(p.p.Statics, buf)
	p.p.Setup = append(p.p.Setup, alloc(buf))
	p.recv[m][id] = buf
}

// outputs returns what later stages read from the forward of a micro-batch.
func (p *pipeline) outputs(from int) (out []program.StorageID) {
	for i := range p.src.Nodes {
		n := &p.src.Nodes[i]
		if n.Phase != program.Forward || int(n.Micro) != from || p.mine[i] || n.Call < p.hi {
			continue
		}
		for _, t := range n.In {
			if at, ok := p.maker[t.Storage]; ok && p.mine[at] && p.p.Storages[t.Storage].Life == program.Step && !slices.Contains(out, t.Storage) {
				out = append(out, t.Storage)
			}
		}
	}
	return out
}

// sendGradients keeps the gradients for the previous stage until they are sent.
func (p *pipeline) sendGradients(from int, held []program.StorageID) []program.StorageID {
	for i := range p.src.Nodes {
		n := &p.src.Nodes[i]
		if n.Phase != program.Backward || int(n.Micro) != from || p.mine[i] {
			continue
		}
		for _, t := range n.In {
			at, ok := p.maker[t.Storage]
			if id := p.now(t.Storage); ok && p.mine[at] && p.src.Nodes[at].Phase == program.Backward && p.p.Storages[t.Storage].Life == program.Step && !slices.Contains(held, id) {
				held = append(held, id)
			}
		}
	}
	p.holdIDs(held)
	return held
}

func (p *pipeline) hold(ids []program.StorageID) { p.holdIDs(p.ids(ids)) }

// holdIDs keeps storages until the current node.
func (p *pipeline) holdIDs(ids []program.StorageID) {
	if len(ids) > 0 {
		p.p.Nodes = append(p.p.Nodes, program.Node{Phase: p.at.Phase, Micro: p.at.Micro, Op: "send", Call: -1, Segment: -1, Reads: slices.Clone(ids)})
	}
}

// locals returns the stage's parameters.
func (p *pipeline) locals() (out []local) {
	for _, prm := range trained(p.src) {
		if slices.Contains(p.p.Statics, prm.Tensor.Storage) {
			out = append(out, local{prm.Name, prm.Tensor.Storage, prm.Grad, updateParam(prm.Tensor.DType, prm.Tensor.Shape)})
		}
	}
	return out
}
