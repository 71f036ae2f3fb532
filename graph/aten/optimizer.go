package aten

import (
	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// An UpdateEvent is one allocation or free inside an optimizer's step.
type UpdateEvent struct {
	ID    int32
	Free  bool
	Bytes int64
	Param *Tensor // the parameter it belongs to, or nil
	Name  string
	State bool // optimizer state, which is not freed
}

// A UpdateNode is a node that Touch appended.
type UpdateNode struct {
	e      *Eager
	node   int
	states []*Tensor
}

// Touch appends a node that reads and overwrites ts, with the given events
// inside.
func (e *Eager) Touch(op string, ts []*Tensor, events []UpdateEvent, rule *program.Rule) *UpdateNode {
	k := e.begin(op, ts...)
	k.attrs().Rule = rule
	k.n.Traffic *= 2
	t := &UpdateNode{e: e, node: len(e.P.Nodes)}
	ids := map[int32]program.StorageID{}
	for _, ev := range events {
		if ev.Free {
			k.free(ids[ev.ID])
			continue
		}
		id := k.temp(ev.Bytes, program.Temporaries)
		ids[ev.ID] = id
		k.n.Traffic += 2 * ev.Bytes
		if id == program.None {
			continue
		}
		s := &e.P.Storages[id]
		s.Name = ev.Name
		if ev.Param != nil {
			s.Name, s.Module = ev.Param.Name+"."+ev.Name, e.P.Storages[ev.Param.Storage].Module
		}
		if ev.State {
			s.Category, s.Life = program.Optimizer, program.State
			name := ""
			if ev.Param != nil {
				name = ev.Param.Name
			}
			t.states = append(t.states, &Tensor{Name: name, View: program.View{Storage: id, DType: graph.Uint8, Shape: []int64{ev.Bytes}, Strides: []int64{1}}})
		}
	}
	k.end()
	return t
}

// First restricts the node to the first step and returns the state it created.
func (t *UpdateNode) First() []*Tensor {
	t.e.P.Nodes[t.node].Only = program.FirstStep
	return t.states
}

// SetRule sets the optimizer's update.
func (t *UpdateNode) SetRule(r *program.Rule) { t.e.P.Nodes[t.node].Attrs.Rule = r }

// Later restricts the node to all steps but the first.
func (t *UpdateNode) Later() { t.e.P.Nodes[t.node].Only = program.LaterSteps }
