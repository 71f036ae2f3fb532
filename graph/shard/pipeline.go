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

// Pipeline is torch.distributed.pipelining: each rank runs the modules of its stage
// on one micro-batch after the other. The source is the step of one GPU at the
// batch of a micro-batch, with Micros micro-batches accumulated.
type Pipeline struct {
	Rank     int      // of the pipeline's, from 0
	Splits   []string // the modules that stages begin with, but for the first
	Micros   int
	Schedule string // a name of Schedules
	Stages   int    // of a rank; 0 for the schedule's default
	Inferred bool   // stages find the shapes of what they pass by running once
	Update   Update
}

// Apply returns the step of a rank. The source is not changed.
func (o Pipeline) Apply(b *train.Build) (*train.Build, error) {
	out, _, err := o.apply(b)
	return out, err
}

// apply also returns the actions of the step.
func (o Pipeline) apply(b *train.Build) (*train.Build, []span, error) {
	sc, stages, each := FindSchedule(o.Schedule), len(o.Splits)+1, o.Each()
	if sc == nil {
		return nil, nil, fmt.Errorf("unknown pipeline schedule %q", o.Schedule)
	}
	ranks := stages / each
	switch rounds := max(1, o.Micros/max(ranks, 1)); {
	case stages%each != 0 || o.Rank < 0 || o.Rank >= ranks:
		return nil, nil, fmt.Errorf("pipeline rank %d with %d stages", o.Rank, stages)
	case o.Stages > 0 && o.Stages != sc.Each && !sc.More:
		return nil, nil, fmt.Errorf("pipeline schedule %s: a rank has %d, not %d", o.Schedule, sc.Each, o.Stages)
	case o.Micros < stages && o.Schedule == "1f1b":
		return nil, nil, fmt.Errorf("pipeline schedule %s: %d micro-batches for %d stages: there must be as many", o.Schedule, o.Micros, stages)
	case sc.rounds && o.Micros%rounds != 0:
		return nil, nil, fmt.Errorf("pipeline schedule %s: %d micro-batches in %d rounds: there must be a multiple", o.Schedule, o.Micros, rounds)
	case b.Micros != o.Micros:
		return nil, nil, fmt.Errorf("pipeline of %d micro-batches over a step of %d", o.Micros, b.Micros)
	case sc.Split && slices.ContainsFunc(b.Nodes, func(n program.Node) bool { return n.Recompute }):
		return nil, nil, fmt.Errorf("pipeline schedule %s: a checkpointed region runs again for each of its layers with parameters: give a schedule whose backward is whole, as interleaved", o.Schedule)
	}
	p := &pipeline{Pipeline: o, schedule: sc, editor: newEditor(b), divided: map[[2]int]*division{}, buffer: map[program.StorageID]bool{}, stated: map[program.StorageID]bool{}}
	p.local = sc.stages(o.Rank, ranks, each)
	if err := p.cut(); err != nil {
		return nil, nil, err
	}
	p.own()
	p.run(sc.Order(o.Rank, ranks, each, o.Micros))
	return p.build(), p.spans, nil
}

// Each is how many stages a rank has.
func (o *Pipeline) Each() int {
	if s := FindSchedule(o.Schedule); s != nil && o.Stages == 0 {
		return s.Each
	}
	return max(1, o.Stages)
}

type pipeline struct {
	Pipeline
	*editor
	schedule *Schedule
	divided  map[[2]int]*division      // of a stage's backward of a micro-batch built
	local    []int                     // stages of this rank
	begin    []int32                   // first call of each stage, and one past all
	forward  map[int][][]int           // by local stage: nodes of its forward, of each micro-batch built
	backward map[int][][]int           // and of its backward
	maker    map[program.StorageID]int // the node that allocates a storage
	of       map[int]int               // the stage of a node of this rank
	mine     map[int]bool              // nodes of this rank
	spans    []span
	buffer   map[program.StorageID]bool                        // what is received
	held     []program.StorageID                               // gradients that are being sent
	arrive   map[int][]program.Event                           // by stage: what is received
	stated   map[program.StorageID]bool                        // what the run for shapes has made for good
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
	p.prepare(extra)
	left := map[Action]*later{}
	for _, a := range order {
		from := p.built(a.Micro)
		first := len(p.p.Nodes)
		p.name, p.at = ids[a.Micro][a.Stage], program.Node{Phase: program.Backward, Micro: int32(a.Micro)}
		key := Action{Stage: a.Stage, Micro: a.Micro}
		switch nodes := p.backward[a.Stage][from]; {
		case !a.Backward:
			p.all(p.forward[a.Stage][from], extra)
		case a.Inputs && a.Stage == 0: // all of it runs with the weights
		case a.Inputs:
			left[key] = p.backwardInputs(a, nodes, extra)
		case a.Weights && a.Stage > 0:
			p.backwardWeights(left[key])
			delete(left, key)
		default:
			a.Weights = false
			p.all(nodes, extra)
		}
		p.micro(first, a.Micro)
		p.passHere(a, from, first, left[key])
		p.spans = append(p.spans, span{a, first, len(p.p.Nodes)})
		if a.Backward && len(p.p.Nodes) > first {
			p.pass(a, from)
		}
	}
	held := p.held
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

// all adds nodes.
func (p *pipeline) all(nodes []int, extra map[int][]program.Event) {
	for _, i := range nodes {
		n := p.src.Nodes[i]
		n.Events = slices.DeleteFunc(slices.Concat(extra[i], n.Events), func(ev program.Event) bool { return p.stated[ev.Storage] })
		p.p.Nodes = append(p.p.Nodes, p.apart(&n, nil))
	}
}

// micro numbers the micro-batch of the nodes from one on.
func (p *pipeline) micro(first, micro int) {
	for i := range p.p.Nodes[first:] {
		p.p.Nodes[first+i].Micro = int32(micro)
	}
}

// pass sends the gradients of a backward, and keeps what the schedule keeps until it has run.
func (p *pipeline) pass(a Action, from int) {
	p.follow(&p.p.Nodes[len(p.p.Nodes)-1])
	if !a.Weights {
		p.sendGradients(a, from)
	}
	if !a.Inputs {
		p.hold(p.outputs(a.Stage, from))
		p.returns(a.Stage, from)
	}
	if n := p.schedule.sent; n >= 0 {
		p.held = p.held[max(len(p.held)-n, 0):]
	}
}

// passHere gives what an action sends to another stage of this rank to it as it is, without a copy: it takes
// the place of what that stage would receive, and stays until the next step's (Note: V-schedule special case).
func (p *pipeline) passHere(a Action, from, first int, l *later) {
	to, ids := a.Stage+1, p.outputs
	if a.Backward {
		to, ids = a.Stage-1, p.sent
	}
	if !p.schedule.V || !slices.Contains(p.local, to) || len(p.p.Nodes) == first || a.Weights {
		return
	}
	names := map[program.StorageID]program.StorageID{}
	for _, id := range ids(a.Stage, from) {
		if buf, ok := p.recv[a.Micro][to][id]; ok && p.p.Storages[p.now(id)].Life == program.Step {
			names[p.now(id)] = buf
			p.name[id] = buf
		}
	}
	rename := func(nodes []program.Node) {
		e := editor{name: names}
		for i := range nodes {
			n := &nodes[i]
			n.Events = slices.DeleteFunc(slices.Clone(n.Events), func(ev program.Event) bool { _, ok := names[ev.Storage]; return ok })
			*n = e.renamedNode(n)
		}
	}
	rename(p.p.Nodes[first:])
	if l != nil {
		for _, g := range l.groups {
			rename(g.nodes)
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
		out = slices.Concat(out, p.forward[s][from], p.backward[s][from])
	}
	return out
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

// receive names what each micro-batch receives from the neighbouring stages: by stage, first what forward
// does of all micro-batches, then what backward does.
func (p *pipeline) receive() {
	p.recv = make([]map[int]map[program.StorageID]program.StorageID, p.Micros)
	for m := range p.recv {
		p.recv[m] = map[int]map[program.StorageID]program.StorageID{}
	}
	p.arrive = map[int][]program.Event{}
	for _, s := range p.local {
		for _, of := range []map[int][][]int{p.forward, p.backward} {
			for m := range p.recv {
				if p.recv[m][s] == nil {
					p.recv[m][s] = map[program.StorageID]program.StorageID{}
				}
				for _, i := range of[s][p.built(m)] {
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
}

func (p *pipeline) receives(m, stage int, id program.StorageID) {
	at, made := p.maker[id]
	if id == program.None || !made || p.made(at, stage) || !p.passes(at) || p.recv[m][stage][id] != 0 || p.p.Storages[id].Life != program.Step {
		return
	}
	s := p.p.Storages[id]
	buf := p.storage(s.Bytes, program.Inputs, compute, "received "+s.Name)
	p.p.Storages[buf].Life = program.State
	p.arrive[stage] = append(p.arrive[stage], alloc(buf))
	p.recv[m][stage][id], p.buffer[buf] = buf, true
}

// prepare is what a schedule does in its first step: each stage's forward runs once without gradients, with
// zeros, to find the shapes of its results (PipelineStage._shape_inference), and what it receives is allocated, for good.
func (p *pipeline) prepare(extra map[int][]program.Event) {
	first := len(p.p.Nodes)
	for _, s := range p.local {
		if p.Inferred {
			p.infer(s, extra)
		}
		p.at = program.Node{Phase: program.Forward}
		p.node("pipeline::receive", "", p.arrive[s]...)
	}
	for i := range p.p.Nodes[first:] {
		p.p.Nodes[first+i].Only = program.FirstStep
	}
}

// infer runs a stage's forward without gradients.
func (p *pipeline) infer(stage int, extra map[int][]program.Event) {
	p.name = map[program.StorageID]program.StorageID{}
	var zeros []program.StorageID
	zero := func(bytes int64) program.StorageID {
		id := p.storage(bytes, program.Inputs, compute, "zeros")
		zeros = append(zeros, id)
		return id
	}
	for id := range p.recv[0][stage] {
		if p.src.Nodes[p.maker[id]].Phase == program.Forward {
			p.name[id] = zero(p.p.Storages[id].Bytes)
		}
	}
	var nodes []program.Node
	for _, i := range p.forward[stage][0] {
		n := p.src.Nodes[i]
		if n.Phase != program.Forward {
			continue
		}
		n.Events = slices.Concat(extra[i], n.Events)
		for _, ev := range n.Events {
			switch s := p.p.Storages[ev.Storage]; {
			case s.Life == program.State:
				p.stated[ev.Storage] = true
			case !ev.Free:
				p.name[ev.Storage] = p.storage(s.Bytes, program.Temporaries, compute, s.Name)
			}
		}
		nodes = append(nodes, p.renamedNode(&n))
	}
	if len(nodes) == 0 {
		return
	}
	if stage == 0 {
		for _, id := range nodes[0].Reads {
			if s := &p.p.Storages[id]; s.Life == program.Static && s.Category == program.Inputs {
				zero(s.Bytes / int64(p.Micros))
			}
		}
	}
	p.at = program.Node{Phase: program.Forward}
	for _, id := range zeros {
		p.node("pipeline::zeros", "", alloc(id))
	}
	p.p.Nodes = append(p.p.Nodes, nodes...)
	p.holdIDs(slices.Concat(zeros, p.ids(p.outputs(stage, 0))))
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

// sent are the gradients that the stage before needs, made or added to here.
func (p *pipeline) sent(stage, from int) (out []program.StorageID) {
	nodes := p.backward[stage][from]
	if len(nodes) == 0 {
		return nil
	}
	written := map[program.StorageID]bool{}
	for _, i := range nodes {
		for _, t := range p.src.Nodes[i].Out {
			written[t.Storage] = true
		}
	}
	for i := nodes[len(nodes)-1] + 1; i < len(p.src.Nodes); i++ {
		n := &p.src.Nodes[i]
		if n.Phase != program.Backward || int(n.Micro) != from {
			continue
		}
		for _, t := range n.In {
			if written[t.Storage] && p.src.Storages[t.Storage].Life == program.Step && !slices.Contains(out, t.Storage) {
				out = append(out, t.Storage)
			}
		}
	}
	return out
}

// sendGradients makes the gradients that the stage before needs last until they are sent. Where gradients
// of inputs are computed apart, they stay with the inputs until the next step.
func (p *pipeline) sendGradients(a Action, from int) {
	for _, id := range p.ids(p.sent(a.Stage, from)) {
		if !slices.Contains(p.held, id) {
			p.held = append(p.held, id)
		}
		if s := &p.p.Storages[id]; a.Inputs && s.Life == program.Step {
			s.Life = program.Carried
			p.p.Carried = append(p.p.Carried, id)
		}
	}
	p.holdIDs(p.held)
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
