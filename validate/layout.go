package validate

import (
	"fmt"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/liveness"
	"github.com/memplan/memplan/planner"
	"github.com/memplan/memplan/planner/layout"
)

// A Layout gives every storage of a program its place in one arena.
type Layout struct {
	Offset []int64 // of each storage, -1 for one that never exists
	Work   []Span  // of each node: memory for a library of the device while it runs
	Bytes  int64   // the arena's
	Bound  int64   // largest sum of live bytes, guards included: no layout is smaller
	Order  string  // the algorithm that found it
}

// NewLayout places all storages, and for each node its bytes of workspace; nil
// for none.
func NewLayout(p *program.Program, work []int64) (*Layout, error) {
	r, err := layout.Arena(p, work)
	if err != nil {
		return nil, err
	}
	return newLayout(p, r, work, r.Method), nil
}

// Arranged returns the layout of a plan's arena. Each node's workspace gets the
// lowest free place beside the planned storages; the arena grows beyond the
// plan only if there is none. The layout is not checked. The error is
// planner.ErrOtherProgram, or about offsets that are not numbers or do not
// match the arena's size.
func Arranged(a *planner.Arena, p *program.Program, work []int64) (*Layout, error) {
	offset, err := a.Places(p)
	if err != nil {
		return nil, err
	}
	if end := layout.Beside(p, offset, nil).Height; end != a.Bytes {
		return nil, fmt.Errorf("the plan's arena has %d bytes, its storages end at %d", a.Bytes, end)
	}
	return newLayout(p, layout.Beside(p, offset, work), work, a.Order), nil
}

func newLayout(p *program.Program, r *layout.Result, work []int64, order string) *Layout {
	l := &Layout{Offset: r.Offset[:len(p.Storages)], Work: make([]Span, len(p.Nodes)), Bytes: r.Height, Bound: r.Bound, Order: order}
	for n, bytes := range work {
		if bytes > 0 {
			l.Work[n] = Span{r.Offset[len(p.Storages)+n], bytes}
		}
	}
	return l
}

// Check verifies a layout without the ranges it was made from: it walks the
// nodes, keeps the live storages, and compares every new buffer with all of
// them. It returns an error naming two that overlap, or one outside the arena.
func (l *Layout) Check(p *program.Program) error {
	there := map[program.StorageID]bool{}
	add := func(node int, id program.StorageID) error {
		err := l.clear(p, fmt.Sprintf("storage %d (%s)", id, p.Storages[id].Name), node, Span{l.Offset[id], p.Storages[id].Bytes}, there)
		there[id] = true
		return err
	}
	for _, id := range p.Statics {
		if err := add(-1, id); err != nil {
			return err
		}
	}
	first, steady := liveness.Steps(p)
	for _, t := range []*liveness.Timeline{first, steady, steady} {
		for i := 0; i < len(t.Events); {
			node, j := t.Events[i].Node, i
			for ; j < len(t.Events) && t.Events[j].Node == node; j++ { // frees take effect after the node has run
				if e := t.Events[j]; !e.Free {
					if err := add(int(node), e.Storage); err != nil {
						return err
					}
				}
			}
			if w := l.Work[node]; w.Bytes > 0 {
				if err := l.clear(p, "its work", int(node), w, there); err != nil {
					return err
				}
			}
			for ; i < j; i++ {
				if e := t.Events[i]; e.Free {
					delete(there, e.Storage)
				}
			}
		}
	}
	return nil
}

// clear returns an error if the span that a node uses, with its guard, is not
// within the arena or touches a live storage.
func (l *Layout) clear(p *program.Program, what string, node int, s Span, there map[program.StorageID]bool) error {
	end := s.At + s.Bytes + layout.Guard
	if s.At < 0 || s.At%layout.Align != 0 || end > l.Bytes {
		return fmt.Errorf("layout: node %d: %s of %d bytes at %d in an arena of %d", node, what, s.Bytes, s.At, l.Bytes)
	}
	for o := range there {
		if from := l.Offset[o]; s.At < from+p.Storages[o].Bytes+layout.Guard && from < end {
			return fmt.Errorf("layout: node %d: %s and storage %d (%s) overlap", node, what, o, p.Storages[o].Name)
		}
	}
	return nil
}

// Works returns the workspace in bytes that a device wants for each node.
func Works(d Device, p *program.Program) ([]int64, error) { return asked(d.Work, p) }

// needs returns how much of its workspace each node cannot run without.
func needs(d Device, p *program.Program) ([]int64, error) { return asked(d.Needs, p) }

func asked(ask func(*program.Node) (int64, error), p *program.Program) ([]int64, error) {
	out := make([]int64, len(p.Nodes))
	for i := range p.Nodes {
		var err error
		if out[i], err = ask(&p.Nodes[i]); err != nil {
			return nil, fmt.Errorf("node %d (%s): %w", i, p.Nodes[i].Op, err)
		}
	}
	return out, nil
}
