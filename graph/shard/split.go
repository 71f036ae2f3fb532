package shard

import (
	"cmp"
	"maps"
	"slices"

	"github.com/memplan/memplan/graph/program"
)

// A division says which nodes of a stage's backward the gradients of its inputs need, and which those of
// its parameters (torch/distributed/pipelining/_backward.py).
type division struct {
	inputs, weights map[int]bool               // nodes; both if a node computes both
	owned           map[program.StorageID]bool // gradients of parameters, before they are added up
	group           map[int]int32              // of nodes for weights: the call that they belong to
	first           map[int32]int              // of a call: its first parameter
	top             int32                      // the last call with parameters
}

// divide finds the division of a stage's backward of a micro-batch that was built.
func (p *pipeline) divide(stage, from int) *division {
	d := &division{map[int]bool{}, map[int]bool{}, map[program.StorageID]bool{}, map[int]int32{}, map[int32]int{}, -1}
	nodes := p.backward[stage][from]
	param := map[program.StorageID]int{} // of the gradients of parameters
	for i, prm := range p.src.Params {
		if prm.Grad != program.None {
			param[prm.Grad] = i
		}
	}
	for _, i := range nodes {
		n := &p.src.Nodes[i]
		for _, t := range n.Out {
			at, ok := param[t.Storage]
			if !ok {
				continue
			}
			d.owned[t.Storage] = true
			for _, in := range n.In {
				if _, sum := param[in.Storage]; n.Call < 0 && !sum {
					d.owned[in.Storage], param[in.Storage] = true, at
				}
			}
		}
	}
	needed := map[program.StorageID]bool{}
	for _, id := range p.sent(stage, from) {
		needed[id] = true
	}
	for _, i := range slices.Backward(nodes) {
		n := &p.src.Nodes[i]
		if makes(n, needed) {
			d.inputs[i] = true
			for _, t := range n.In {
				needed[t.Storage] = true
			}
		}
		if d.weights[i] = !d.inputs[i] || makes(n, d.owned); d.weights[i] {
			d.join(i, n, param)
		}
	}
	for _, i := range nodes {
		if n := &p.src.Nodes[i]; d.weights[i] && n.Call < 0 { // adds a gradient that a call made
			d.group[i] = d.group[p.makerOf(n, d)]
		}
	}
	return d
}

// makes reports whether a node writes any of some storages.
func makes(n *program.Node, ids map[program.StorageID]bool) bool {
	return slices.ContainsFunc(n.Out, func(t program.View) bool { return ids[t.Storage] }) ||
		slices.ContainsFunc(n.Events, func(ev program.Event) bool { return !ev.Free && ids[ev.Storage] })
}

// join notes the call of a node, and its first parameter.
func (d *division) join(i int, n *program.Node, param map[program.StorageID]int) {
	if n.Call < 0 {
		return
	}
	d.group[i], d.top = n.Call, max(d.top, n.Call)
	for _, t := range n.Out {
		at, ok := param[t.Storage]
		if old, seen := d.first[n.Call]; ok && (!seen || at < old) {
			d.first[n.Call] = at
		}
	}
}

// makerOf is the node for weights that made an operand of another.
func (p *pipeline) makerOf(n *program.Node, d *division) int {
	for _, t := range n.In {
		if at, ok := p.maker[t.Storage]; ok && d.weights[at] && p.src.Nodes[at].Call >= 0 && p.src.Nodes[at].Micro == n.Micro {
			return at
		}
	}
	return -1
}

// A later is what backward has left for the gradients of a stage's parameters.
type later struct {
	groups map[int32]*paramGroup
	keeps  []program.StorageID // what autograd saved for nodes that have run and that others hold
}

// A paramGroup is a call of forward with parameters, whose gradients are computed at once.
type paramGroup struct {
	first    int // parameter
	gradient program.StorageID
	nodes    []program.Node
	adds     []program.Node // to gradients of earlier micro-batches
}

// backwardInputs runs what the gradients of a stage's inputs need, and returns the rest. No graph is
// let go of: what autograd saved stays, up to the last call with parameters. Gradients into
// calls with parameters stay, so that what would be added to them is added to a copy.
func (p *pipeline) backwardInputs(a Action, nodes []int, extra map[int][]program.Event) *later {
	key := [2]int{a.Stage, p.built(a.Micro)}
	if p.divided[key] == nil {
		p.divided[key] = p.divide(key[0], key[1])
	}
	d, l := p.divided[key], &later{groups: map[int32]*paramGroup{}}
	wanted, apart := map[program.StorageID]bool{}, map[program.StorageID]bool{} // read by what is left; made by it alone
	for _, i := range nodes {
		for _, ev := range p.src.Nodes[i].Events {
			apart[ev.Storage] = apart[ev.Storage] || d.owned[ev.Storage] || !d.inputs[i]
		}
	}
	for _, i := range nodes {
		n := p.src.Nodes[i]
		n.Events = slices.Concat(extra[i], n.Events)
		if d.weights[i] {
			for _, id := range l.add(d, i, p.weightNode(&n, d.inputs[i], d)) {
				wanted[id] = true
			}
		}
		if d.inputs[i] {
			p.inputNode(&n, apart, wanted)
		}
	}
	var above []program.StorageID
	l.keeps, above = p.saved(d, nodes)
	p.release(above)
	return l
}

// add gives a node to its group, and returns what it reads.
func (l *later) add(d *division, i int, n program.Node) []program.StorageID {
	g := l.groups[d.group[i]]
	if g == nil {
		g = &paramGroup{first: d.first[d.group[i]], gradient: program.None}
		l.groups[d.group[i]] = g
	}
	if n.Call < 0 {
		g.adds = append(g.adds, n)
		return nil
	}
	if g.gradient == program.None && len(n.In) > 0 {
		g.gradient = n.In[0].Storage
	}
	g.nodes = append(g.nodes, n)
	return n.Reads
}

// weightNode is a node as it computes gradients of parameters. both: the other ones have been computed; only
// cuDNN's batch normalisation computes them again.
func (p *pipeline) weightNode(n *program.Node, both bool, d *division) program.Node {
	c := *n
	c.Holds = nil
	if both {
		i := slices.IndexFunc(n.Events, func(ev program.Event) bool { return d.owned[ev.Storage] })
		again := n.Op == "cudnn_batch_norm_backward" && i > 0
		if c.Events = slices.Clone(n.Events[i:]); again {
			other := p.storage(p.p.Storages[n.Events[0].Storage].Bytes, program.Temporaries, compute, "")
			c.Events = slices.Concat([]program.Event{alloc(other)}, c.Events, []program.Event{free(other)})
		}
		c.Out = slices.DeleteFunc(slices.Clone(n.Out), func(t program.View) bool { return !d.owned[t.Storage] })
	}
	return p.renamedNode(&c)
}

// inputNode adds a node as it computes gradients of inputs.
func (p *pipeline) inputNode(n *program.Node, apart, wanted map[program.StorageID]bool) {
	c := *n
	if i := slices.IndexFunc(n.Events, func(ev program.Event) bool { return apart[ev.Storage] }); i >= 0 {
		c.Events = n.Events[:i]
	}
	c.Out = slices.DeleteFunc(slices.Clone(n.Out), func(t program.View) bool { return apart[t.Storage] })
	c.Holds = slices.DeleteFunc(slices.Clone(n.Holds), func(id program.StorageID) bool { return apart[id] })
	p.p.Nodes = append(p.p.Nodes, p.apart(&c, wanted))
}

// apart is a node with the storages' names of now, which writes a storage of its own in place of one that it would
// add to, if that is a buffer that has been received, or in use.
func (p *pipeline) apart(n *program.Node, used map[program.StorageID]bool) program.Node {
	c := *n
	var fresh []program.Event
	for _, t := range c.Out {
		id := p.now(t.Storage)
		if id == program.None || !used[id] && !p.buffer[id] || slices.ContainsFunc(c.Events, func(ev program.Event) bool { return ev.Storage == t.Storage }) {
			continue
		}
		other := p.storage(p.p.Storages[id].Bytes, program.Temporaries, compute, p.p.Storages[id].Name)
		fresh = append(fresh, alloc(other))
		c.Reads = append(slices.Clone(c.Reads), id)
		p.name[t.Storage] = other
	}
	old := c.Reads[len(n.Reads):]
	c = p.renamedNode(&c)
	copy(c.Reads[len(n.Reads):], old) // which have their name
	c.Events = append(fresh, c.Events...)
	return c
}

// saved are storages of forward that autograd saved for nodes of the graph that stays, and for those after the last
// call with parameters, which go when the gradients of inputs are there.
func (p *pipeline) saved(d *division, nodes []int) (stay, above []program.StorageID) {
	seen := map[program.StorageID]bool{}
	for _, i := range nodes {
		n := &p.src.Nodes[i]
		if !d.inputs[i] {
			continue
		}
		for _, id := range n.Reads {
			at, ok := p.maker[id]
			now := p.now(id)
			switch {
			case !ok || seen[id] || p.src.Nodes[at].Phase > program.Loss || !p.mine[at] || p.p.Storages[now].Life != program.Step:
			case n.Call >= 0 && n.Call <= d.top:
				seen[id], stay = true, append(stay, now)
			default:
				above = append(above, now)
			}
		}
	}
	return stay, above
}

// backwardWeights computes the gradients of a stage's parameters, call by call in the parameters'
// order. The gradient into each is copied first (Python's sum of one starts at 0), and lives until
// the next one's copy; what a call makes for earlier sums until the next call has run.
func (p *pipeline) backwardWeights(l *later) {
	groups := slices.SortedFunc(maps.Values(l.groups), func(a, b *paramGroup) int { return cmp.Compare(a.first, b.first) })
	var last, made []program.StorageID
	for _, g := range groups {
		if g.gradient != program.None {
			c := p.storage(p.p.Storages[g.gradient].Bytes, program.Temporaries, compute, "gradient")
			n := program.Node{Phase: program.Backward, Micro: p.at.Micro, Op: "pipeline::sum", Call: -1, Segment: -1, Reads: append(last, g.gradient)}
			n.Events = []program.Event{alloc(c)}
			p.p.Nodes = append(p.p.Nodes, n)
			last = []program.StorageID{c}
		}
		p.p.Nodes = append(p.p.Nodes, g.nodes...)
		if p.release(made); g.gradient != program.None {
			p.release([]program.StorageID{g.gradient})
		}
		made = made[:0:0]
		for _, n := range g.adds {
			p.p.Nodes = append(p.p.Nodes, n)
			made = append(made, n.Reads...)
		}
	}
	p.release(slices.Concat(last, made, l.keeps))
}

// release keeps storages until here.
func (p *pipeline) release(ids []program.StorageID) {
	if len(ids) > 0 {
		p.p.Nodes = append(p.p.Nodes, program.Node{Phase: program.Backward, Micro: p.at.Micro, Op: "pipeline::release", Call: -1, Segment: -1, Reads: slices.Clone(ids)})
	}
}
