// Package shard turns the training step of one GPU into the step that a rank of
// several runs: it adds the collectives of a strategy as nodes, with what they
// allocate and free, on which stream and in which order, and takes from the rank
// what other ranks keep. Liveness and the allocator models then see a program
// like any other.
//
// The order of events is that of PyTorch's sources: torch/nn/parallel/distributed.py
// and reducer.cpp (DDP), torch/distributed/fsdp/_fully_shard (FSDP2),
// torch/distributed/optim/zero_redundancy_optimizer.py (ZeRO-1),
// torch/distributed/tensor (tensor, sequence and loss parallelism).
package shard

import (
	"fmt"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
)

// Streams of the caching allocator. The first is the one that computes.
const (
	compute uint8 = iota
	gather        // all-gathers are copied in and received on it
	reduce        // reduce-scatters are received on it
)

// A World is the ranks that a strategy spreads over, and the one whose step is built.
type World struct {
	Size int // ranks, at least 2
	Rank int // from 0
}

func (w World) check() error {
	if w.Size < 2 || w.Rank < 0 || w.Rank >= w.Size {
		return fmt.Errorf("rank %d of %d: want at least 2 ranks, counted from 0", w.Rank, w.Size)
	}
	return nil
}

// Device is what the sizes of collectives' own tables depend on.
type Device struct {
	SMs          int // multiprocessors
	ThreadsPerSM int // that can be resident on one
}

// Update returns what an optimizer's step allocates and frees, as train.Options.Update.
type Update = func(params []train.UpdateParam, first bool) []train.UpdateEvent

// An editor rewrites a program node by node.
type editor struct {
	src  *train.Build
	p    *program.Program
	at   program.Node                            // phase and micro-batch of the nodes that are added
	name map[program.StorageID]program.StorageID // what a storage of the source is called now
}

func newEditor(b *train.Build) *editor {
	p := *b.Program
	p.Storages = slices.Clone(p.Storages)
	p.Statics, p.Carried, p.Setup = slices.Clone(p.Statics), slices.Clone(p.Carried), slices.Clone(p.Setup)
	p.Nodes = make([]program.Node, 0, len(p.Nodes)+64)
	return &editor{src: b, p: &p, name: map[program.StorageID]program.StorageID{}}
}

// Collective reports whether an operator is one that this package adds.
func Collective(op string) bool {
	return strings.HasPrefix(op, "fsdp::") || strings.HasPrefix(op, "deepspeed::") || strings.HasPrefix(op, "pipeline::") || strings.HasPrefix(op, "_c10d_functional::") || slices.Contains([]string{"broadcast_buffers", "rebuild_buckets", "watchdog", "send", "merge_outputs"}, op)
}

// build returns the edited program as a build. What the source made and this program
// does not is no longer there.
func (e *editor) build() *train.Build {
	made := make([]bool, len(e.p.Storages))
	note := func(evs []program.Event) {
		for _, ev := range evs {
			made[ev.Storage] = true
		}
	}
	note(e.p.Setup)
	for i := range e.p.Nodes {
		note(e.p.Nodes[i].Events)
	}
	for id := range e.p.Storages {
		if s := &e.p.Storages[id]; !made[id] && s.Life != program.Static {
			s.Life = program.Step
		}
	}
	out := *e.src
	out.Program = e.p
	return &out
}

// storage adds a storage that lives in the step.
func (e *editor) storage(bytes int64, cat program.Category, stream uint8, name string) program.StorageID {
	if bytes == 0 {
		return program.None
	}
	e.p.Storages = append(e.p.Storages, program.Storage{Bytes: bytes, Category: cat, Stream: stream, Name: name})
	return program.StorageID(len(e.p.Storages) - 1)
}

// node adds a node where the walk stands.
func (e *editor) node(op, module string, events ...program.Event) {
	if len(events) == 0 {
		return
	}
	e.p.Nodes = append(e.p.Nodes, program.Node{Phase: e.at.Phase, Micro: e.at.Micro, Op: op, Module: module, Call: -1, Segment: -1, Events: events})
}

// follow sets where added nodes stand: beside n.
func (e *editor) follow(n *program.Node) { e.at.Phase, e.at.Micro = n.Phase, n.Micro }

// keep adds a node of the source, with the storages' names of now.
func (e *editor) keep(n *program.Node) { e.p.Nodes = append(e.p.Nodes, e.renamedNode(n)) }

// renamedNode is a node with the storages' names of now.
func (e *editor) renamedNode(n *program.Node) program.Node {
	c := *n
	if len(e.name) > 0 {
		c.In, c.Out = e.tensors(n.In), e.tensors(n.Out)
		c.Reads, c.Holds = e.ids(n.Reads), e.ids(n.Holds)
		c.Events = e.events(n.Events)
	}
	return c
}

func (e *editor) now(id program.StorageID) program.StorageID {
	if n, ok := e.name[id]; ok {
		return n
	}
	return id
}

func (e *editor) tensors(ts []program.View) []program.View {
	out := slices.Clone(ts)
	for i := range out {
		out[i].Storage = e.now(out[i].Storage)
	}
	return out
}

func (e *editor) ids(ids []program.StorageID) []program.StorageID {
	out := slices.Clone(ids)
	for i, id := range out {
		out[i] = e.now(id)
	}
	return out
}

func (e *editor) events(evs []program.Event) []program.Event {
	out := slices.Clone(evs)
	for i := range out {
		out[i].Storage = e.now(out[i].Storage)
	}
	return out
}

func alloc(id program.StorageID) program.Event { return program.Event{Storage: id} }
func free(id program.StorageID) program.Event  { return program.Event{Storage: id, Free: true} }

// passing is an allocation that is freed at once.
func passing(id program.StorageID) []program.Event {
	return []program.Event{alloc(id), free(id)}
}

// A local is a parameter as this rank's optimizer sees it.
type local struct {
	name  string
	param program.StorageID
	grad  program.StorageID
	train.UpdateParam
}

// step adds the optimizer's nodes for this rank's parameters: the first step's,
// which makes state, and that of all later ones. Both read and write what they touch once, as the step of one card.
func (e *editor) step(list []local, update Update) {
	if update == nil || len(list) == 0 {
		return
	}
	params := make([]train.UpdateParam, len(list))
	var reads []program.StorageID
	for i, l := range list {
		params[i] = l.UpdateParam
		reads = append(reads, l.param, l.grad)
	}
	reads = slices.DeleteFunc(reads, func(id program.StorageID) bool { return id == program.None })
	var touched int64
	for _, l := range list { // not of storages: those of gradients may be shared
		touched += 2 * l.DType.Bytes(l.Elems)
	}
	for _, only := range []program.When{program.FirstStep, program.LaterSteps} {
		n := program.Node{Phase: program.Update, Op: "step", Name: "step", Micro: e.at.Micro, Call: -1, Segment: -1, Only: only, Reads: slices.Clone(reads)}
		n.Events = e.updateEvents(update(params, only == program.FirstStep), list)
		n.Traffic = 2 * touched
		for _, ev := range n.Events {
			if ev.Free {
				continue
			}
			s := &e.p.Storages[ev.Storage]
			if n.Traffic += 2 * s.Bytes; s.Life == program.State {
				touched += s.Bytes
			}
		}
		e.p.Nodes = append(e.p.Nodes, n)
	}
}

// updateEvents makes storages of what the optimizer's step allocates.
func (e *editor) updateEvents(evs []train.UpdateEvent, list []local) (out []program.Event) {
	ids := map[int32]program.StorageID{}
	for _, ev := range evs {
		if ev.Free {
			if id, ok := ids[ev.ID]; ok {
				out = append(out, free(id))
			}
			continue
		}
		id := e.storage(ev.Bytes, program.Temporaries, compute, ev.Name)
		if id == program.None {
			continue
		}
		ids[ev.ID] = id
		s := &e.p.Storages[id]
		if ev.Param >= 0 {
			s.Name = list[ev.Param].name + "." + ev.Name
		}
		if ev.State {
			s.Category, s.Life = program.Optimizer, program.State
		}
		out = append(out, alloc(id))
	}
	return out
}

// held reports whether a parameter is on this rank: stages of a pipeline have some.
func held(b *train.Build, p train.Param) bool { return slices.Contains(b.Statics, p.Tensor.Storage) }

// trained lists the rank's parameters with a gradient, in the order in which the
// optimizer got them.
func trained(b *train.Build) (out []train.Param) {
	for _, p := range b.Params {
		if p.Grad != program.None && held(b, p) {
			out = append(out, p)
		}
	}
	return out
}

func numel(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

// updateParam is a parameter of a shape as the optimizer sees it.
func updateParam(d graph.DType, shape []int64) train.UpdateParam {
	return train.UpdateParam{Elems: numel(shape), DType: d, Shape: shape}
}
