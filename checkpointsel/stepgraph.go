package checkpointsel

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/memplan/memplan/checkpointsel/remat"
	"github.com/memplan/memplan/graph/kernel"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/liveness"
)

// A StepGraph is a training step without checkpoints as an instance of
// rematerialization: the class of plans in which any forward operation may run
// again at any time. Bytes are rounded by liveness.Rounded and optional scratch
// is not counted, so that a budget that fits no schedule of the instance fits
// no replay of the step.
//
// A node of the program is one node of the instance for each of its relevant
// outputs, which share its cost. An output written in place is a new version of
// the storage, with a node of its own.
type StepGraph struct {
	Instance *remat.Instance

	p       *program.Program
	parts   []part          // by node of the instance
	first   []int32         // for each node of the program: its first part, -1 if it does not run in a steady step
	reads   [][]version     // for each node of the program: the versions it reads, without residents
	forward []bool          // for each storage: made by a node of forward or the loss
	minor   []bool          // for each storage: too small to be an output of the instance
	inout   []map[int32]int // for each node of the program: previous version, by part that is written in place
}

// A part is an output of a node of the program.
type part struct {
	node    int32
	storage program.StorageID // program.None if the node has no output
}

// A version is a storage as one node of the instance left it.
type version struct {
	storage program.StorageID
	by      int // node of the instance, -1 for a minor storage
}

// minorShare bounds a node's minor outputs: those more than minorShare times smaller than
// its largest are not outputs of the instance. What attention keeps of each row is one: as an
// output of its own, it would be run again for its share of the time, but takes the whole call.
const minorShare = 12

// NewStepGraph returns the instance of p, which must be a training step without
// checkpoints. cost gives the time of a node in seconds. Micro-batches follow
// each other as the program spells them out; what runs in the last one costs as
// much as in all that it stands for.
func NewStepGraph(p *program.Program, cost func(*program.Node) float64) (*StepGraph, error) {
	g := &StepGraph{p: p, Instance: &remat.Instance{Name: "training step"}, first: make([]int32, len(p.Nodes)), reads: make([][]version, len(p.Nodes)),
		minor: make([]bool, len(p.Storages)), inout: make([]map[int32]int, len(p.Nodes))}
	for i := range p.Storages {
		if s := &p.Storages[i]; s.Life == program.Static || s.Life == program.State {
			g.Instance.Fixed += liveness.Rounded(s.Bytes)
		}
	}
	g.forward = make([]bool, len(p.Storages))
	for i := range p.Nodes {
		for _, ev := range p.Nodes[i].Events {
			g.forward[ev.Storage] = g.forward[ev.Storage] || p.Nodes[i].Phase <= program.Loss
		}
	}
	b := stepGraphBuilder{StepGraph: g, now: make([]int, len(p.Storages)), inPlace: writtenInPlace(p)}
	for i := range b.now {
		b.now[i] = -1
	}
	for i := range p.Nodes {
		b.node(i, int64(math.Round(float64(p.Runs(&p.Nodes[i]))*cost(&p.Nodes[i])*1e9)))
	}
	for id, v := range b.now {
		if p.Storages[id].Life == program.Carried && v >= 0 {
			g.Instance.Nodes[v].Keep = true
		}
	}
	return g, g.Instance.Validate()
}

func allocates(n *program.Node, id program.StorageID) bool {
	return slices.Contains(n.Events, program.Event{Storage: id})
}

// moves reports whether the storage comes and goes within a step.
func (g *StepGraph) moves(id program.StorageID) bool {
	life := g.p.Storages[id].Life
	return life == program.Step || life == program.Carried
}

func (g *StepGraph) bytes(id program.StorageID) int64 {
	return liveness.Rounded(g.p.Storages[id].Bytes)
}

// held lists what a node holds for the caller of the step: the outputs and the
// loss. Other storages are held by autograd and Python's variables.
func (g *StepGraph) held(i int) []program.StorageID {
	n := &g.p.Nodes[i]
	last := n.Phase == program.Backward && (i+1 == len(g.p.Nodes) || g.p.Nodes[i+1].Phase != program.Backward)
	var out []program.StorageID
	for _, id := range n.Holds {
		if (n.Phase == program.Loss || n.Phase == program.Update || last) && g.forward[id] {
			out = append(out, id)
		}
	}
	return out
}

type stepGraphBuilder struct {
	*StepGraph
	now     []int // for each storage: the node of the instance that wrote it last
	inPlace []bool
}

// node adds the instance's nodes of one node of the program.
func (b *stepGraphBuilder) node(i int, cost int64) {
	n := &b.p.Nodes[i]
	outs, work := b.outputs(n)
	b.first[i] = -1
	var preds []int
	use := func(id program.StorageID) {
		if !b.moves(id) || b.now[id] < 0 && !b.minor[id] || slices.ContainsFunc(b.reads[i], func(v version) bool { return v.storage == id }) {
			return
		}
		b.reads[i] = append(b.reads[i], version{id, b.now[id]})
		if b.now[id] >= 0 {
			preds = append(preds, b.now[id])
		}
	}
	for _, id := range n.Reads {
		use(id)
	}
	for _, id := range b.held(i) {
		use(id)
		if v := b.now[id]; v >= 0 {
			b.Instance.Nodes[v].Once = true // it is read in place
		}
	}
	for _, t := range n.Out {
		if t.Storage != program.None && !allocates(n, t.Storage) {
			use(t.Storage)
		}
	}
	if n.Only == program.FirstStep {
		return
	}
	slices.Sort(preds)
	preds = slices.Compact(preds)
	b.first[i] = int32(len(b.parts))
	b.inout[i] = map[int32]int{}
	once := b.once(n)
	var total int64
	for _, id := range outs {
		total += b.bytes(id)
	}
	if len(outs) == 0 {
		b.add(i, program.None, cost, work, once, preds)
	}
	left := cost
	for k, id := range outs {
		share := left // the last part takes the rest
		if k+1 < len(outs) {
			share = int64(float64(cost) * float64(b.bytes(id)) / float64(max(total, 1)))
			left -= share
		}
		b.add(i, id, share, work, once, preds)
		work = 0
	}
}

// add appends one part.
func (b *stepGraphBuilder) add(i int, id program.StorageID, cost, work int64, once bool, preds []int) {
	n := &b.p.Nodes[i]
	at := len(b.parts)
	nd := remat.Node{Name: n.Op, Cost: cost, Work: work, Preds: preds, Once: once, Backward: n.Phase > program.Forward}
	if n.Name != "" {
		nd.Name += " (" + n.Name + ")"
	}
	if id != program.None {
		nd.Size = b.bytes(id)
		nd.Once = once || b.p.Storages[id].Life == program.Carried
		if !allocates(n, id) {
			nd.Work -= nd.Size
			b.inout[i][int32(at)] = b.now[id]
		}
		b.now[id] = at
	}
	b.parts = append(b.parts, part{int32(i), id})
	b.Instance.Nodes = append(b.Instance.Nodes, nd)
}

// outputs lists what a node leaves behind, the largest first, and the other
// bytes that it needs while it runs. It marks storages that are too small.
func (b *stepGraphBuilder) outputs(n *program.Node) (outs []program.StorageID, work int64) {
	freed := map[program.StorageID]bool{}
	var live, most int64
	for _, ev := range n.Events {
		s := &b.p.Storages[ev.Storage]
		if s.Optional || s.Life == program.State {
			continue
		}
		if ev.Free {
			freed[ev.Storage] = true
			live -= b.bytes(ev.Storage)
			continue
		}
		live += b.bytes(ev.Storage)
		most = max(most, live)
	}
	for _, ev := range n.Events {
		if !ev.Free && !freed[ev.Storage] && b.moves(ev.Storage) && !b.p.Storages[ev.Storage].Optional {
			outs = append(outs, ev.Storage)
		}
	}
	for _, t := range n.Out {
		if t.Storage != program.None && !allocates(n, t.Storage) && b.moves(t.Storage) && !slices.Contains(outs, t.Storage) {
			outs = append(outs, t.Storage)
		}
	}
	slices.SortStableFunc(outs, func(x, y program.StorageID) int { return int(min(max(b.bytes(y)-b.bytes(x), -1), 1)) })
	for k := len(outs) - 1; k > 0; k-- {
		if id := outs[k]; !b.inPlace[id] && b.bytes(id)*minorShare <= b.bytes(outs[0]) {
			b.minor[id] = true
			outs = outs[:k]
		} else {
			break
		}
	}
	if n.Phase == program.ZeroGrad {
		for _, id := range b.p.Carried { // the gradients of the previous step
			work += b.bytes(id)
		}
		return outs, work
	}
	return outs, most - live
}

// once reports whether a node cannot run again: it is not part of the forward pass,
// loads data, or writes to memory that outlives the step.
func (b *stepGraphBuilder) once(n *program.Node) bool {
	if n.Phase != program.Forward && n.Phase != program.Loss {
		return true
	}
	for _, ev := range n.Events {
		if b.p.Storages[ev.Storage].Category == program.Inputs {
			return true
		}
	}
	for _, t := range n.Out {
		if t.Storage != program.None && !b.moves(t.Storage) {
			return true
		}
	}
	return false
}

// A Restore is state that must be restored before an operation runs again.
type Restore struct {
	Op   string `json:"op"`
	What string `json:"what"`
}

// Restores lists what an executor of the schedule must restore, each operator
// once.
func (g *StepGraph) Restores(steps []remat.Step) []Restore {
	var out []Restore
	ran := make([]bool, len(g.parts))
	for _, s := range steps {
		if !ran[s.Node] {
			ran[s.Node] = true
			continue
		}
		n := &g.p.Nodes[g.parts[s.Node].node]
		if what := restores(n); what != "" && !slices.ContainsFunc(out, func(x Restore) bool { return x.Op == n.Op }) {
			out = append(out, Restore{n.Op, what})
		}
	}
	return out
}

// restores describes what has changed when a node runs again, "" for nothing.
func restores(n *program.Node) string {
	switch k := kernel.Find(n.Does()); {
	case k == nil:
		return ""
	case k.Draws(n) && k.Drops():
		return "the state of the random number generator, so that the same elements are dropped"
	case k.Draws(n):
		return "the state of the random number generator"
	case k.Stateful:
		return "the running statistics, which the second run must not update"
	}
	return ""
}

// Apply returns the program that runs a schedule of the instance: recomputed
// nodes are nodes like any others, on storages of their own.
func (g *StepGraph) Apply(steps []remat.Step) (*program.Program, error) {
	p := *g.p
	p.Storages, p.Nodes = slices.Clone(g.p.Storages), nil
	a := &applier{StepGraph: g, out: &p, at: make([]program.StorageID, len(g.parts)), spare: make([]program.StorageID, len(g.parts)),
		latest: make([]program.StorageID, len(g.p.Storages)), ran: make([]bool, len(g.p.Nodes))}
	for i := range a.at {
		a.at[i], a.spare[i] = program.None, program.None
	}
	for i := range a.latest {
		a.latest[i] = program.StorageID(i)
	}
	for k := range steps {
		if err := a.step(steps, k); err != nil {
			return nil, err
		}
	}
	a.setup(len(g.p.Nodes))
	p.Saved = saved(&p)
	if err := p.Check(); err != nil {
		return nil, fmt.Errorf("applying a schedule: %w", err)
	}
	return &p, nil
}

// An applier appends the nodes of a schedule.
type applier struct {
	*StepGraph
	out    *program.Program
	at     []program.StorageID // for each part: storage of its output, None if it is not resident
	spare  []program.StorageID // for each part: an output of another part's run that has not been used yet
	latest []program.StorageID // for each minor storage: where it was written last
	ran    []bool              // by node of the program
	next   int                 // node of the program up to which the nodes of the first step alone have been appended
}

// step runs one part, unless a run of another part of its node has already made
// its output.
func (a *applier) step(steps []remat.Step, k int) error {
	s := &steps[k]
	if a.spare[s.Node] == program.None {
		if err := a.run(steps, k); err != nil {
			return err
		}
	}
	a.at[s.Node], a.spare[s.Node] = a.spare[s.Node], program.None
	for _, d := range s.Drop {
		a.at[d] = program.None
	}
	return nil
}

// none stands for the output of a part without one.
const none program.StorageID = -2

// run appends the node of part s and makes all its outputs spare ones.
func (a *applier) run(steps []remat.Step, k int) error {
	x := steps[k].Node
	i := int(a.parts[x].node)
	n := a.p.Nodes[i]
	again := a.ran[i]
	if again {
		n.Recompute, n.Segment = true, -1
		n.Phase, n.Micro = a.after(steps, k, n.Micro)
	} else {
		a.setup(i)
	}
	a.ran[i] = true
	where := map[program.StorageID]program.StorageID{}
	for _, v := range a.reads[i] {
		to := a.latest[v.storage]
		if v.by >= 0 {
			to = a.at[v.by]
		}
		if to < 0 {
			return fmt.Errorf("applying a schedule: %s reads %s, which is not resident", n.Op, a.p.Storages[v.storage].Name)
		}
		where[v.storage] = to
	}
	in := func(id program.StorageID) program.StorageID {
		if to, ok := where[id]; ok {
			return to
		}
		return id
	}
	n.Reads = mapped(n.Reads, in)
	n.In = tensors(n.In, in)
	made := map[program.StorageID]program.StorageID{}
	n.Events = slices.Clone(n.Events)
	if again { // what outlives the step exists already
		n.DropEvents(func(id program.StorageID) bool { return !a.moves(id) })
	}
	for j := range n.Events {
		ev := &n.Events[j]
		if again {
			if !ev.Free {
				made[ev.Storage] = a.copyOf(ev.Storage)
			}
			ev.Storage = made[ev.Storage]
		} else if !ev.Free {
			made[ev.Storage] = ev.Storage
		}
	}
	for y := int(a.first[i]); y < len(a.parts) && a.parts[y].node == int32(i); y++ {
		id := a.parts[y].storage
		before, inPlace := a.inout[i][int32(y)]
		switch {
		case id == program.None:
			a.spare[y] = none
			continue
		case inPlace && (before < 0 || slices.Contains(steps[k].Drop, before)):
			made[id] = in(id)
		case inPlace: // what it would overwrite is needed again
			made[id] = a.copyOf(id)
			n.Op = strings.TrimSuffix(n.Op, "_")
			n.PrependEvent(program.Event{Storage: made[id]})
		}
		a.spare[y] = made[id]
	}
	for id, to := range made {
		if a.minor[id] {
			a.latest[id] = to
		}
	}
	n.Out = tensors(n.Out, func(id program.StorageID) program.StorageID {
		if to, ok := made[id]; ok {
			return to
		}
		return in(id)
	})
	n.Holds = mapped(a.held(i), in) // not what autograd and Python hold, which do not run a schedule
	a.out.Nodes = append(a.out.Nodes, n)
	return nil
}

func (a *applier) copyOf(id program.StorageID) program.StorageID {
	a.out.Storages = append(a.out.Storages, a.p.Storages[id])
	return program.StorageID(len(a.out.Storages) - 1)
}

// setup appends the nodes before i that run only in the first step.
func (a *applier) setup(i int) {
	for ; a.next < i; a.next++ {
		if n := a.p.Nodes[a.next]; n.Only == program.FirstStep {
			a.out.Nodes = append(a.out.Nodes, n)
		}
	}
}

// after returns the phase and the micro-batch of the next node that runs for
// the first time.
func (a *applier) after(steps []remat.Step, k int, micro int32) (program.Phase, int32) {
	for _, s := range steps[k:] {
		if i := a.parts[s.Node].node; !a.ran[i] {
			return a.p.Nodes[i].Phase, a.p.Nodes[i].Micro
		}
	}
	return program.Update, micro
}

func mapped(ids []program.StorageID, to func(program.StorageID) program.StorageID) []program.StorageID {
	out := make([]program.StorageID, len(ids))
	for i, id := range ids {
		out[i] = to(id)
	}
	return out
}

func tensors(ts []program.View, to func(program.StorageID) program.StorageID) []program.View {
	out := slices.Clone(ts)
	for i := range out {
		if out[i].Storage != program.None {
			out[i].Storage = to(out[i].Storage)
		}
	}
	return out
}

// saved lists the storages made in forward that backward reads.
func saved(p *program.Program) []program.StorageID {
	born := make([]bool, len(p.Storages))
	listed := make([]bool, len(p.Storages))
	var out []program.StorageID
	for i := range p.Nodes {
		n := &p.Nodes[i]
		for _, ev := range n.Events {
			born[ev.Storage] = born[ev.Storage] || n.Phase <= program.Loss
		}
		if n.Phase != program.Backward {
			continue
		}
		for _, id := range n.Reads {
			if born[id] && !listed[id] {
				listed[id] = true
				out = append(out, id)
			}
		}
	}
	return out
}
