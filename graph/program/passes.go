package program

import (
	"slices"

	"github.com/memplan/memplan/graph/cudnn"
)

// A Pass is one pass of a convolution within a node, with its predicted
// workspace.
type Pass struct {
	At int // index in Node.Events of the workspace's allocation, or, for a workspace of 0 bytes, where it would be
	cudnn.Estimate
}

// DropEvents removes the events of storages for which drop holds.
func (n *Node) DropEvents(drop func(StorageID) bool) {
	var events []Event
	passes := slices.Clone(n.Passes)
	for i, ev := range n.Events {
		if !drop(ev.Storage) {
			events = append(events, ev)
			continue
		}
		for k := range passes {
			if n.Passes[k].At > i {
				passes[k].At--
			}
		}
	}
	n.Events, n.Passes = events, passes
}

// PrependEvent puts an event before all others.
func (n *Node) PrependEvent(ev Event) {
	n.Events = append([]Event{ev}, n.Events...)
	n.Passes = slices.Clone(n.Passes)
	for k := range n.Passes {
		n.Passes[k].At++
	}
}

// Workspaces lists the workspaces of all convolutions.
func (p *Program) Workspaces() []cudnn.Estimate {
	var out []cudnn.Estimate
	for i := range p.Nodes {
		for k := range p.Nodes[i].Passes {
			out = append(out, p.Nodes[i].Passes[k].Estimate)
		}
	}
	return out
}

// AtBounds returns the program in which every convolution's workspace has its
// largest predicted size: p itself if that changes nothing.
func (p *Program) AtBounds() *Program {
	bounded := func(w Pass) bool { return w.Bound > w.Bytes }
	if !slices.ContainsFunc(p.Nodes, func(n Node) bool { return slices.ContainsFunc(n.Passes, bounded) }) {
		return p
	}
	q := *p
	q.Storages, q.Nodes = slices.Clone(p.Storages), slices.Clone(p.Nodes)
	for i := range q.Nodes {
		n := &q.Nodes[i]
		if len(n.Passes) == 0 {
			continue
		}
		n.Events = slices.Clone(n.Events)
		added := 0
		for k := range n.Passes {
			switch w := &n.Passes[k]; {
			case w.Bound <= w.Bytes:
			case w.Bytes > 0:
				q.Storages[n.Events[w.At+added].Storage].Bytes = w.Bound
			default:
				id := StorageID(len(q.Storages))
				q.Storages = append(q.Storages, Storage{Bytes: w.Bound, Category: Workspace, Name: n.Op, Module: n.Module, Optional: true})
				n.Events = slices.Insert(n.Events, w.At+added, Event{Storage: id}, Event{Storage: id, Free: true})
				added += 2
			}
		}
	}
	return &q
}
