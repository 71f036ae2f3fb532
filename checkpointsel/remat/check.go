package remat

import "fmt"

// A Step is one execution of a node and what is freed after it.
type Step struct {
	Node int   `json:"node"` // the node that is executed
	Drop []int `json:"drop"` // nodes whose outputs are freed once it has finished
}

// Check replays a schedule and returns its peak memory, in bytes, and its cost.
// It shares no code with the solver. It fails if a step executes a node whose
// inputs are not all resident, or whose output still is; if it frees what is
// not resident; if the first executions are out of order or missing; if a node
// marked Once is executed again or one marked Keep is not resident at the end;
// and if the memory exceeds the budget.
func Check(in *Instance, schedule []Step, budget int64) (peak, cost int64, err error) {
	resident := make([]bool, len(in.Nodes))
	live, next := in.Fixed, 0
	peak = live
	for i, s := range schedule {
		if s.Node < 0 || s.Node > next || s.Node >= len(in.Nodes) {
			return peak, cost, fmt.Errorf("step %d: node %d executed before node %d", i, s.Node, next)
		}
		n := &in.Nodes[s.Node]
		if resident[s.Node] || n.Once && s.Node < next {
			return peak, cost, fmt.Errorf("step %d: %s cannot be executed again here", i, in.label(s.Node))
		}
		for _, p := range n.Preds {
			if !resident[p] {
				return peak, cost, fmt.Errorf("step %d: %s reads %s, which is not resident", i, in.label(s.Node), in.label(p))
			}
		}
		next = max(next, s.Node+1)
		resident[s.Node] = true
		live += n.Size
		cost += n.Cost
		peak = max(peak, live+n.Work)
		if live+n.Work > budget {
			return peak, cost, fmt.Errorf("step %d: %s needs %d bytes, more than the budget of %d", i, in.label(s.Node), live+n.Work, budget)
		}
		for _, d := range s.Drop {
			if d < 0 || d >= len(in.Nodes) || !resident[d] {
				return peak, cost, fmt.Errorf("step %d: frees node %d, which is not resident", i, d)
			}
			resident[d] = false
			live -= in.Nodes[d].Size
		}
		peak = max(peak, live)
	}
	if next < len(in.Nodes) {
		return peak, cost, fmt.Errorf("the schedule ends before %s", in.label(next))
	}
	for v := range in.Nodes {
		if in.Nodes[v].Keep && !resident[v] {
			return peak, cost, fmt.Errorf("%s is not resident at the end", in.label(v))
		}
	}
	if peak > budget {
		return peak, cost, fmt.Errorf("peak of %d bytes exceeds the budget of %d", peak, budget)
	}
	return peak, cost, nil
}
