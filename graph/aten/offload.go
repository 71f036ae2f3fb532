package aten

import (
	"cmp"
	"slices"

	"github.com/memplan/memplan/graph/program"
)

// offloading is what memplan's Python package does with hooks on saved tensors
// (python/memplan/_offload.py): what the calls of a region save goes to pinned memory of
// the host on a stream for copies, and comes back before backward needs it.
//
// All device memory is the compute stream's. A region's tensors stay until the region after
// it, or forward, has ended: there the compute stream waits for their copies. They are
// allocated again when backward reaches the region that ran after theirs, or their own. A
// region may keep what it saves, and be there for the copies of the one before alone.
type offloading struct {
	regions []*offRegion // of the micro-batch, in the order of forward
	entries map[program.StorageID]*offloaded
	open    *offRegion   // the one that runs
	stash   []*offRegion // whose tensors are still there
	tickets int32
}

// An offRegion is one run of a region's calls.
type offRegion struct {
	at       int
	ID       int32
	entries  []*offloaded // all that it needs in backward
	made     []*offloaded // those that no region before had
	out, in  int32        // tickets of its copies
	keep     bool
	fetching bool
	copied   bool // copies back have begun, with its ticket
	reached  bool
}

// An offloaded is a storage on the host, and its copy in backward.
type offloaded struct {
	from, back program.StorageID
}

// MinOffload is the least storage that is offloaded by default, in bytes: smaller ones are not worth
// the launch of a copy.
const MinOffload = 1 << 20

// Offload runs the calls of a region whose saved tensors go to the host, or stay if keep is
// set.
func (e *Eager) Offload(id int32, keep bool, run func()) {
	if e.off == nil {
		e.off = &offloading{entries: map[program.StorageID]*offloaded{}}
	}
	o := e.off
	r := &offRegion{at: len(o.regions), ID: id, keep: keep, out: o.tickets, in: o.tickets + 1}
	o.tickets += 2
	o.regions, o.open = append(o.regions, r), r
	run()
	o.open = nil
	e.awaitOffloads()
	o.stash = append(o.stash, r)
}

// AwaitOffloads ends a forward pass: the compute stream waits for the copies of all
// regions, whose tensors are then released.
func (e *Eager) AwaitOffloads() {
	if e.off != nil {
		e.awaitOffloads()
	}
}

// nextOffloads starts the regions of another micro-batch.
func (e *Eager) nextOffloads() {
	if e.off != nil {
		e.off = &offloading{entries: map[program.StorageID]*offloaded{}, tickets: e.off.tickets}
	}
}

// awaitOffloads releases the tensors of the regions before.
func (e *Eager) awaitOffloads() {
	o := e.off
	if len(o.stash) == 0 {
		return
	}
	n := e.offloadNode("offload_release")
	for _, r := range o.stash {
		if len(r.made) > 0 {
			n.Awaits = append(n.Awaits, r.out)
		}
		for _, x := range r.made {
			n.Holds = append(n.Holds, x.from)
		}
	}
	if o.stash = nil; len(n.Awaits) > 0 {
		e.P.Nodes = append(e.P.Nodes, n)
	}
}

func (e *Eager) offloadNode(op string) program.Node {
	return program.Node{Phase: e.phase, Micro: e.micro, Op: op, Name: e.name, Module: e.module, Call: -1, Segment: -1}
}

// offloads notes what a node of the open region saves; a storage is copied once.
func (o *offloading) pack(e *Eager, n *gradNode) {
	r := o.open
	n.off, n.onHost = r, make([]*offloaded, len(n.saved))
	for i, t := range n.saved {
		if t == nil || t.Storage == program.None || e.P.Storages[t.Storage].Life != program.Step || e.P.Storages[t.Storage].Bytes < cmp.Or(e.LeastOffload, MinOffload) {
			continue
		}
		if n.triggers = true; r.keep {
			continue
		}
		x := o.entries[t.Storage]
		if x == nil {
			x = &offloaded{t.Storage, program.None}
			o.entries[t.Storage], r.made = x, append(r.made, x)
			last := &e.P.Nodes[len(e.P.Nodes)-1]
			last.Copies = append(last.Copies, program.HostCopy{Storage: t.Storage, Ticket: r.out})
		}
		n.onHost[i] = x
		if !slices.Contains(r.entries, x) {
			r.entries = append(r.entries, x)
		}
	}
}

// unpack returns what a node of a region saved, on the device. The first node of a region
// waits for all that the region saved, and starts the copies of the region before.
func (o *offloading) unpack(e *Eager, n *gradNode) []*Tensor {
	if r := n.off; !r.reached && n.triggers {
		r.reached = true
		o.fetch(e, r, nil)
		var before *offRegion
		if r.at > 0 {
			before = o.regions[r.at-1]
		}
		o.fetch(e, before, r)
	}
	saved := slices.Clone(n.saved)
	for i, x := range n.onHost {
		if x != nil {
			t := *saved[i]
			t.Storage = x.back
			saved[i] = &t
		}
	}
	return saved
}

// fetch starts the copies of a region to the device, once the compute stream has waited
// for those of another; either may be nil.
func (o *offloading) fetch(e *Eager, r, waited *offRegion) {
	n := e.offloadNode("offload_fetch")
	if waited != nil && waited.copied {
		n.Awaits = append(n.Awaits, waited.in)
	}
	if r != nil && !r.fetching {
		r.fetching = true
		for _, x := range r.entries {
			if x.back != program.None {
				continue
			}
			s := e.P.Storages[x.from]
			x.back = e.newStorage(program.Storage{Bytes: s.Bytes, Category: program.Activations, Name: s.Name, Module: s.Module})
			n.Events = append(n.Events, program.Event{Storage: x.back})
			n.Copies = append(n.Copies, program.HostCopy{Storage: x.back, In: true, Ticket: r.in})
			r.copied = true
		}
	}
	if len(n.Awaits)+len(n.Events) > 0 {
		e.P.Nodes = append(e.P.Nodes, n)
	}
}
