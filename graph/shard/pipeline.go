package shard

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
)

// An Action is the forward or the backward of a micro-batch in a stage.
type Action struct {
	Backward     bool // of inputs and weights, unless one of the next two says less
	Inputs       bool // only the gradients of what the stage received
	Weights      bool // only those of its parameters, later
	Stage, Micro int
}

// A Schedule is what a rank of several does with micro-batches, in order. It has as many
// stages as Each says, rank r of n the stages r, r+n, ...
type Schedule struct {
	Name, Doc string
	Each      int
	sent      int // gradients that their sends keep at a time; -1: all, until the end. Of interleaved none: two ranks' memory (planner/testdata/distributed)
	Order     func(rank, ranks, micros int) []Action
}

// Schedules are the pipeline schedules by name (torch/distributed/pipelining/schedules.py).
var Schedules = []Schedule{
	{"gpipe", "all forwards, then all backwards", 1, -1, gpipe},
	{"1f1b", "one forward, one backward, once as many forwards run as stages follow", 1, 1, oneForwardOneBackward},
	{"interleaved", "1f1b with two stages a rank (ScheduleInterleaved1F1B)", 2, 0, interleaved},
}

func gpipe(rank, _, micros int) (out []Action) {
	for m := range micros {
		out = append(out, Action{Stage: rank, Micro: m})
	}
	for m := range micros {
		out = append(out, Action{Backward: true, Stage: rank, Micro: m})
	}
	return out
}

// interleaved runs micro-batches in rounds, in each of them through one stage of the rank
// after the other (_get_1f1b_rank_ops).
func interleaved(rank, ranks, micros int) (out []Action) {
	const each = 2
	round := micros / max(1, micros/ranks)
	all := each * micros
	warmup := min(all, (each-1)*round+2*(ranks-1-rank))
	var forwards, backwards [each]int
	forward := func(op int) {
		k := op / round % each
		out = append(out, Action{Stage: k*ranks + rank, Micro: forwards[k]})
		forwards[k]++
	}
	for op := range warmup {
		forward(op)
	}
	for op := range all {
		if op+warmup < all {
			forward(op + warmup)
		}
		k := each - 1 - op/round%each
		out = append(out, Action{Backward: true, Stage: k*ranks + rank, Micro: backwards[k]})
		backwards[k]++
	}
	return out
}

func oneForwardOneBackward(stage, stages, micros int) (out []Action) {
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

// Pipeline is torch.distributed.pipelining: each rank runs the modules of its stage
// on one micro-batch after the other. The source is the step of one GPU at the
// batch of a micro-batch, with Micros micro-batches accumulated.
type Pipeline struct {
	Rank     int      // of the pipeline's, from 0
	Splits   []string // the modules that stages begin with, but for the first
	Micros   int
	Schedule string // a name of Schedules
	Update   Update
}

// Apply returns the step of a rank. The source is not changed.
func (o Pipeline) Apply(b *train.Build) (*train.Build, error) {
	out, _, err := o.apply(b)
	return out, err
}

// apply also returns the actions of the step.
func (o Pipeline) apply(b *train.Build) (*train.Build, []span, error) {
	sc, stages := FindSchedule(o.Schedule), len(o.Splits)+1
	if sc == nil {
		return nil, nil, fmt.Errorf("unknown pipeline schedule %q", o.Schedule)
	}
	ranks := stages / sc.Each
	switch rounds := max(1, o.Micros/max(ranks, 1)); {
	case stages%sc.Each != 0 || o.Rank < 0 || o.Rank >= ranks:
		return nil, nil, fmt.Errorf("pipeline rank %d with %d stages", o.Rank, stages)
	case o.Micros < stages && o.Schedule == "1f1b":
		return nil, nil, fmt.Errorf("pipeline schedule %s: %d micro-batches for %d stages: there must be as many", o.Schedule, o.Micros, stages)
	case sc.Each > 1 && o.Micros%rounds != 0:
		return nil, nil, fmt.Errorf("pipeline schedule %s: %d micro-batches in %d rounds: there must be a multiple", o.Schedule, o.Micros, rounds)
	case b.Micros != o.Micros:
		return nil, nil, fmt.Errorf("pipeline of %d micro-batches over a step of %d", o.Micros, b.Micros)
	}
	p := &pipeline{Pipeline: o, editor: newEditor(b)}
	for stage := o.Rank; stage < stages; stage += ranks {
		p.local = append(p.local, stage)
	}
	if err := p.cut(); err != nil {
		return nil, nil, err
	}
	p.own()
	p.run(sc.Order(o.Rank, ranks, o.Micros))
	return p.build(), p.spans, nil
}

// Each is how many stages a rank has.
func (o *Pipeline) Each() int {
	if s := FindSchedule(o.Schedule); s != nil {
		return s.Each
	}
	return 1
}

// FindSchedule returns the schedule of a name, nil for none.
func FindSchedule(name string) *Schedule {
	if i := slices.IndexFunc(Schedules, func(s Schedule) bool { return s.Name == name }); i >= 0 {
		return &Schedules[i]
	}
	return nil
}

type pipeline struct {
	Pipeline
	*editor
	local    []int                     // stages of this rank
	begin    []int32                   // first call of each stage, and one past all
	forward  map[int][][]int           // by local stage: nodes of its forward, of each micro-batch built
	backward map[int][][]int           // and of its backward
	maker    map[program.StorageID]int // the node that allocates a storage
	of       map[int]int               // the stage of a node of this rank
	mine     map[int]bool              // nodes of this rank
	spans    []span
	chunks   []program.StorageID                               // what the last stage computed of each micro-batch
	recv     []map[int]map[program.StorageID]program.StorageID // of each micro-batch, by local stage: what is received for a storage of another
}

// cut finds the calls of the stages and the nodes of this rank.
func (p *pipeline) cut() error {
	p.begin = []int32{0}
	for _, name := range p.Splits {
		first, _ := train.Range(p.src.Lifted, []string{name})
		if first >= len(p.src.Lifted.Graph.Nodes) {
			return fmt.Errorf("pipeline: no operator runs in the module %q", name)
		}
		if int32(first) <= p.begin[len(p.begin)-1] {
			return fmt.Errorf("pipeline: the modules %s do not run in that order", strings.Join(p.Splits, ", "))
		}
		p.begin = append(p.begin, int32(first))
	}
	p.begin = append(p.begin, 1<<30)
	p.forward, p.backward = map[int][][]int{}, map[int][][]int{}
	for _, s := range p.local {
		built := min(p.src.Micros, program.MicrosBuilt)
		p.forward[s], p.backward[s] = make([][]int, built), make([][]int, built)
	}
	p.maker, p.mine, p.of = map[program.StorageID]int{}, map[int]bool{}, map[int]int{}
	final := len(p.Splits)
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
		stage := p.stageOf(call)
		switch {
		case n.Phase == program.Loss, n.Phase == program.Backward && n.Call < 0 && n.Module == "" && p.before(final, n.Micro):
			stage = final
		case n.Phase != program.Forward && n.Phase != program.Backward:
			p.mine[i] = true
			continue
		}
		if !slices.Contains(p.local, stage) {
			continue
		}
		p.mine[i], p.of[i] = true, stage
		list := p.forward
		if n.Phase == program.Backward {
			list = p.backward
		}
		list[stage][n.Micro] = append(list[stage][n.Micro], i)
	}
	return nil
}

// before reports whether nothing of a local stage's backward has been met.
func (p *pipeline) before(stage int, micro int32) bool {
	return slices.Contains(p.local, stage) && len(p.backward[stage][micro]) == 0
}

// stageOf is the stage that a call runs in.
func (p *pipeline) stageOf(call int32) int {
	stage := 0
	for call >= p.begin[stage+1] {
		stage++
	}
	return stage
}

// gemms are the operators that reach for a cuBLAS handle.
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
	ids := make([]map[int]map[program.StorageID]program.StorageID, p.Micros)
	for m := range ids {
		ids[m] = p.renamed(m)
	}
	extra := p.workspaces()
	var held []program.StorageID
	for _, a := range order {
		from := p.built(a.Micro)
		nodes := p.forward[a.Stage][from]
		if a.Backward {
			nodes = p.backward[a.Stage][from]
		}
		p.name = ids[a.Micro][a.Stage]
		first := len(p.p.Nodes)
		for _, i := range nodes {
			n := p.src.Nodes[i]
			n.Events = slices.Concat(extra[i], n.Events)
			p.keep(&n)
			p.p.Nodes[len(p.p.Nodes)-1].Micro = int32(a.Micro)
		}
		p.spans = append(p.spans, span{a, first, len(p.p.Nodes)})
		if !a.Backward || len(nodes) == 0 {
			continue
		}
		p.follow(&p.p.Nodes[len(p.p.Nodes)-1])
		held = p.sendGradients(a.Stage, from, held)
		p.hold(p.outputs(a.Stage, from))
		p.returns(a.Stage, from)
		if n := FindSchedule(p.Schedule).sent; n >= 0 {
			held = held[max(len(held)-n, 0):]
		}
	}
	clear(p.name)
	p.at.Phase = program.Update
	p.holdIDs(held)
	p.merge()
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

// built is the micro-batch that was built of which another is a copy.
func (p *pipeline) built(micro int) int {
	return min(micro, p.src.Micros-1, program.MicrosBuilt-1)
}

// nodes are those of a micro-batch that was built, forward and backward of all stages here.
func (p *pipeline) nodes(from int) (out []int) {
	for _, s := range p.local {
		out = slices.Concat(out, p.both(s, from))
	}
	return out
}

// both are the nodes of a stage's forward and backward.
func (p *pipeline) both(stage, from int) []int {
	return slices.Concat(p.forward[stage][from], p.backward[stage][from])
}

// renamed are the names of micro-batch m's storages by stage: those of a micro-batch that was
// built, and new ones for others; and what the stage receives for those of other stages.
func (p *pipeline) renamed(m int) map[int]map[program.StorageID]program.StorageID {
	own := p.copies(m)
	out := map[int]map[program.StorageID]program.StorageID{}
	for _, s := range p.local {
		out[s] = maps.Clone(own)
		maps.Copy(out[s], p.recv[m][s])
	}
	return out
}

// copies are new storages of micro-batch m for those of the one that was built for it.
func (p *pipeline) copies(m int) map[program.StorageID]program.StorageID {
	out := map[program.StorageID]program.StorageID{}
	from := p.built(m)
	if m == from {
		return out
	}
	for _, i := range p.nodes(from) {
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
	p.recv = make([]map[int]map[program.StorageID]program.StorageID, p.Micros)
	for m := range p.recv {
		p.recv[m] = map[int]map[program.StorageID]program.StorageID{}
		for _, s := range p.local {
			p.recv[m][s] = map[program.StorageID]program.StorageID{}
			for _, i := range p.both(s, p.built(m)) {
				n := &p.src.Nodes[i]
				for _, t := range n.In {
					p.receives(m, s, t.Storage)
				}
				for _, id := range n.Reads {
					p.receives(m, s, id)
				}
			}
		}
	}
}

func (p *pipeline) receives(m, stage int, id program.StorageID) {
	at, made := p.maker[id]
	if id == program.None || !made || p.made(at, stage) || !p.passes(at) || p.recv[m][stage][id] != 0 || p.p.Storages[id].Life != program.Step {
		return
	}
	s := p.p.Storages[id]
	buf := p.storage(s.Bytes, program.Inputs, compute, "received "+s.Name)
	p.p.Storages[buf].Life = program.Static
	p.p.Statics = append(p.p.Statics, buf)
	p.p.Setup = append(p.p.Setup, alloc(buf))
	p.recv[m][stage][id] = buf
}

// passes reports whether a node runs in a stage, of this rank or another: what it makes is sent.
func (p *pipeline) passes(node int) bool {
	_, here := p.of[node]
	return here || !p.mine[node]
}

// outputs are what later stages read of a stage's forward of a micro-batch.
func (p *pipeline) outputs(stage, from int) (out []program.StorageID) {
	for i := range p.src.Nodes {
		n := &p.src.Nodes[i]
		if n.Phase != program.Forward || int(n.Micro) != from || n.Call < p.begin[stage+1] {
			continue
		}
		for _, t := range n.In {
			if at, ok := p.maker[t.Storage]; ok && p.made(at, stage) && p.p.Storages[t.Storage].Life == program.Step && !slices.Contains(out, t.Storage) {
				out = append(out, t.Storage)
			}
		}
	}
	return out
}

// returns keeps what the last stage computes of a micro-batch: the schedule returns it when
// all have run (return_outputs), and lets go of it in the next step.
func (p *pipeline) returns(stage, from int) {
	if stage != len(p.Splits) {
		return
	}
	for i := range p.src.Nodes {
		n := &p.src.Nodes[i]
		if n.Phase != program.Loss || int(n.Micro) != from {
			continue
		}
		for _, t := range n.In {
			at, ok := p.maker[t.Storage]
			if id := p.now(t.Storage); ok && p.made(at, stage) && p.src.Nodes[at].Phase == program.Forward && p.p.Storages[id].Life == program.Step {
				p.p.Storages[id].Life = program.Carried
				p.p.Carried, p.chunks = append(p.p.Carried, id), append(p.chunks, id)
			}
		}
	}
}

// merge adds the one tensor that a schedule returns of the micro-batches' outputs.
func (p *pipeline) merge() {
	var bytes int64
	for _, id := range p.chunks {
		bytes += p.p.Storages[id].Bytes
	}
	if bytes == 0 {
		return
	}
	p.node("merge_outputs", "", passing(p.storage(bytes, program.Activations, compute, "outputs"))...)
}

// made reports whether a node is of a stage of this rank.
func (p *pipeline) made(node, stage int) bool {
	of, ok := p.of[node]
	return ok && of == stage
}

// sendGradients makes the gradients that the stage before needs last until they are sent.
func (p *pipeline) sendGradients(stage, from int, held []program.StorageID) []program.StorageID {
	for i := range p.src.Nodes {
		n := &p.src.Nodes[i]
		if n.Phase != program.Backward || int(n.Micro) != from || p.made(i, stage) {
			continue
		}
		for _, t := range n.In {
			at, ok := p.maker[t.Storage]
			if id := p.now(t.Storage); ok && p.made(at, stage) && p.src.Nodes[at].Phase == program.Backward && p.p.Storages[t.Storage].Life == program.Step && !slices.Contains(held, id) {
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
