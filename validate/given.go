package validate

import (
	"fmt"
	"math"
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/planner"
)

// ignored is the class that cross entropy ignores (PyTorch's ignore_index).
const ignored = -100

// takesTarget reports whether a node draws the loss's target.
func takesTarget(p *program.Program, n *program.Node) bool {
	return n.Phase == program.Loss && len(n.In) == 0 && len(n.Out) == 1 && p.Storages[n.Out[0].Storage].Category == program.Inputs
}

// given returns the source of a step: the question's inputs, then its source.
// Inputs must have the shape that the model declares. unread are the names that
// no node of the step reads.
func (q *Question) given(s *planner.Step) (src Source, unread []string, err error) {
	read := map[string]bool{TargetName: slices.ContainsFunc(s.Nodes, func(n program.Node) bool { return takesTarget(s.Program, &n) })}
	if q.Inputs[TargetName] != nil && !read[TargetName] {
		return nil, nil, fmt.Errorf("%s: this step draws no target: leave it out, or give a --loss that has one", TargetName)
	}
	for _, r := range residents(s.Program) {
		if r.tensor.DType != graph.Undefined {
			read[s.Storages[r.id].Name] = true
		}
	}
	for name := range q.Inputs {
		if !read[name] {
			unread = append(unread, name)
		}
	}
	slices.Sort(unread)
	shapes := declared(q.Model.Graph())
	return func(name string) (*Array, error) {
		f := q.Inputs[name]
		if f == nil {
			if q.Source == nil {
				return nil, nil
			}
			return q.Source(name)
		}
		a, err := f()
		if err != nil {
			return nil, err
		}
		if want, ok := shapes[name]; ok && !slices.Equal(a.Shape, want) {
			return nil, fmt.Errorf("%s: an array of shape %v, the model takes %v", name, a.Shape, want)
		}
		if i := slices.IndexFunc(a.Values, func(x float32) bool { return x != x }); i >= 0 {
			return nil, fmt.Errorf("%s: element %d is NaN, and so would be all that is computed from it", name, i)
		}
		return a, nil
	}, unread, nil
}

// declared returns the known shapes of a bound graph's inputs and initializers
// by name.
func declared(g *graph.Graph) map[string][]int64 {
	out := map[string][]int64{}
	for i := range g.Values {
		v := &g.Values[i]
		if v.Kind != graph.Initializer && !slices.Contains(g.Inputs, v.ID) {
			continue
		}
		if shape, ok := v.Type.Shape.Static(); ok {
			out[v.Name] = shape
		}
	}
	return out
}

// integers returns an error for elements that a tensor of integers cannot hold,
// or that are not below hi; hi is 0 for no limit, and skip is always valid.
func (a *Array) integers(hi, skip int64) error {
	for i, v := range a.Values {
		switch x := float64(v); {
		case x != math.Trunc(x):
			return fmt.Errorf("element %d is %v: want integers", i, v)
		case hi > 0 && (x < 0 || x >= float64(hi)) && x != float64(skip):
			return fmt.Errorf("element %d is %v: want 0 to %d", i, v, hi-1)
		}
	}
	return nil
}
