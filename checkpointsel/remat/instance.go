package remat

import (
	"fmt"
	"math"
	"slices"
)

// A Node is one operation with one output.
type Node struct {
	Name string

	// Cost is what one execution costs, in any unit that is the same for all
	// nodes of an instance: microseconds, FLOPs. It is never negative.
	Cost int64

	Size int64 // bytes of the output, held from the execution to the last reader
	// Work is the bytes needed only while the node executes. It is -Size if the
	// output replaces an input in place.
	Work int64

	// Preds are the nodes whose outputs it reads, each once, all with lower
	// numbers than the node's own.
	Preds []int

	Backward bool // belongs to the backward pass, or is the loss before it; only ClassOpSet uses it

	Keep bool // the output must be resident when the schedule ends
	Once bool // the node cannot be executed again: a model's input, a random mask
}

// An Instance is a rematerialization problem without its budget: operations
// in the order in which they are executed for the first time.
type Instance struct {
	Name  string
	Nodes []Node
	Fixed int64 // bytes that are resident all the time, in addition to the nodes' outputs
}

// limit bounds the sum of all sizes and the sum of all costs, so that sums of
// a few of them cannot overflow.
const limit = math.MaxInt64 / 16

// Validate returns an error that names the first node that breaks the rules
// written at the fields of Node, or nil.
func (in *Instance) Validate() error {
	if in.Fixed < 0 || in.Fixed > limit {
		return fmt.Errorf("%s: fixed bytes %d out of range", in.Name, in.Fixed)
	}
	bytes, cost := in.Fixed, int64(0)
	for v := range in.Nodes {
		n := &in.Nodes[v]
		for _, x := range [...]int64{n.Cost, n.Size, n.Size + n.Work} {
			if x < 0 || x > limit {
				return fmt.Errorf("%s: %s: cost %d, size %d, work %d: out of range", in.Name, in.label(v), n.Cost, n.Size, n.Work)
			}
		}
		cost += n.Cost
		bytes += n.Size + max(n.Work, 0)
		if bytes > limit || cost > limit {
			return fmt.Errorf("%s: %s: total cost or size exceeds %d", in.Name, in.label(v), int64(limit))
		}
		if err := in.validatePreds(v); err != nil {
			return err
		}
	}
	return nil
}

func (in *Instance) validatePreds(v int) error {
	preds := slices.Sorted(slices.Values(in.Nodes[v].Preds))
	for i, p := range preds {
		if p < 0 || p >= v {
			return fmt.Errorf("%s: %s reads node %d, which does not come before it", in.Name, in.label(v), p)
		}
		if i > 0 && preds[i-1] == p {
			return fmt.Errorf("%s: %s reads %s twice", in.Name, in.label(v), in.label(p))
		}
	}
	return nil
}

// label names a node in messages.
func (in *Instance) label(v int) string {
	if name := in.Nodes[v].Name; name != "" {
		return fmt.Sprintf("node %d %q", v, name)
	}
	return fmt.Sprintf("node %d", v)
}

// Total returns the cost of executing every node once.
func (in *Instance) Total() int64 {
	var sum int64
	for v := range in.Nodes {
		sum += in.Nodes[v].Cost
	}
	return sum
}

// Peak returns the memory, in bytes, of executing every node once and freeing
// each output after its last reader: the least budget that needs no
// recomputation.
func (in *Instance) Peak() int64 {
	if len(in.Nodes) == 0 {
		return in.Fixed
	}
	freed := make([]int64, len(in.Nodes)+1) // for each node: bytes freed after it
	for v, last := range in.lastReaders() {
		freed[last] += in.Nodes[v].Size
	}
	var live, peak int64
	for v := range in.Nodes {
		live += in.Nodes[v].Size
		peak = max(peak, live+in.Nodes[v].Work)
		live -= freed[v]
	}
	return in.Fixed + peak
}

// lastReaders returns, for each node, the last node that reads it: itself if
// there is none, the number of nodes if it is to be kept.
func (in *Instance) lastReaders() []int {
	last := make([]int, len(in.Nodes))
	for v := range in.Nodes {
		last[v] = v
		for _, p := range in.Nodes[v].Preds {
			last[p] = v
		}
	}
	for v := range in.Nodes {
		if in.Nodes[v].Keep {
			last[v] = len(in.Nodes)
		}
	}
	return last
}

// WorkingSet returns the largest memory, in bytes, that one node needs by
// itself: inputs, output and work; and the first such node. No schedule has a
// lower peak, whatever it recomputes. The node is len(in.Nodes) if the outputs
// to keep need the most, and -1 if there are no nodes.
func (in *Instance) WorkingSet() (bytes int64, node int) {
	var kept int64
	node = -1
	for v := range in.Nodes {
		n := &in.Nodes[v]
		need := n.Size + n.Work
		for _, p := range n.Preds {
			need += in.Nodes[p].Size
		}
		if need > bytes || node < 0 {
			bytes, node = need, v
		}
		if n.Keep {
			kept += n.Size
		}
	}
	if kept > bytes {
		bytes, node = kept, len(in.Nodes)
	}
	return in.Fixed + bytes, node
}
