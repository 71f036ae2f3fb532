package train

import (
	"fmt"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/lift"
)

// A joining finds tensors that code creates to join them with others under
// autocast: torch.cat((x, torch.zeros(n, dtype=x.dtype))). The file shows float32
// for every such type, and cat, which autocast leaves alone, would widen x and
// everything computed from it.
type joining struct {
	half     graph.DType
	partners map[graph.ValueID][]graph.ValueID // tensors with which each created tensor is joined
	made     int                               // calls whose results got the type of their partners
	first    string                            // first of these calls, for the warning
}

// maxJoinViews is the largest number of views between a factory and a join.
const maxJoinViews = 3

// newJoining finds such tensors; nil without autocast.
func newJoining(b *builder) *joining {
	if b.opt.Config.Autocast == graph.Undefined {
		return nil
	}
	g := b.l.Graph
	j := &joining{half: b.opt.Config.Autocast, partners: map[graph.ValueID][]graph.ValueID{}}
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if op, _, _ := strings.Cut(n.Op, "."); !aten.Is(op, aten.Joins) {
			continue
		}
		var made, others []graph.ValueID
		for _, id := range n.Inputs {
			if !g.Values[id].Type.Elem.IsFloat() {
				continue
			}
			if from := b.factory(id); from >= 0 {
				made = append(made, from)
			} else {
				others = append(others, id)
			}
		}
		for _, id := range made {
			j.partners[id] = others
		}
	}
	return j
}

// factory returns the factory's result that a value is, or is a view of, if the code
// may have asked for another tensor's type; otherwise NoValue.
func (b *builder) factory(id graph.ValueID) graph.ValueID {
	g := b.l.Graph
	for range maxJoinViews + 1 {
		def := g.Values[id].Def
		if def < 0 {
			return graph.NoValue
		}
		n := &g.Nodes[def]
		op, _, _ := strings.Cut(n.Op, ".")
		if aten.Is(op, aten.DefaultType) && !aten.Is(op, aten.Positions) {
			if b.l.Source == lift.Metadata && b.untyped(op, n) {
				return graph.NoValue
			}
			return id
		}
		if o := aten.Lookup(op); o == nil || o.Kind != "view" || len(n.Inputs) == 0 {
			return graph.NoValue
		}
		id = n.Inputs[0]
	}
	return graph.NoValue
}

// joined reports whether a call's result takes the type of half-precision tensors
// that it is joined with.
func (j *joining) joined(n *graph.Node, id graph.ValueID, env []*aten.Tensor) bool {
	if j == nil || len(j.partners[id]) == 0 {
		return false
	}
	for _, p := range j.partners[id] {
		if !floating(env[p], j.half) {
			return false
		}
	}
	j.made++
	if j.first == "" {
		j.first = n.Name
	}
	return true
}

// warn reports how many tensors took the type of their partners.
func (j *joining) warn(b *builder) {
	if j == nil || j.made == 0 {
		return
	}
	b.e.P.Warnings = append(b.e.P.Warnings, graph.Warning{Code: "cast-assumed", Node: j.first, Message: fmt.Sprintf(
		"%d tensors that code creates to join with others are assumed to have the others' type, %s, which a float32 file does not show: if they were float32, so would be all that is computed from both", j.made, j.half)})
}
