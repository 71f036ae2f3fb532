package ort

import (
	"fmt"
	"maps"
	"slices"

	"github.com/memplan/memplan/graph"
)

// A plan says which buffer each value lies in, after PlannerImpl of
// onnxruntime/core/framework/allocation_planner.cc for one stream.
type plan struct {
	g      *graph.Graph
	shapes []string
	order  []int32
	buffer []graph.ValueID           // whose buffer a value uses: its own, or another's
	bytes  []int64                   // of each computed value
	parts  map[graph.ValueID][]int64 // of a sequence: the bytes of its tensors, which its kernel allocates one by one
	output []bool                    // results of the graph: never in the pattern, nor shared
	owned  []bool                    // buffers that a run allocates
	frees  [][]graph.ValueID
	uses   []int
	free   []graph.ValueID // buffers that may be used again, the last freed last
}

// maxNodes is the largest number of nodes that is planned: onnxruntime's rules
// take time in its square.
const maxNodes = 20_000

func newPlan(g *graph.Graph, shapes []string) (*plan, error) {
	n := len(g.Values)
	if len(g.Nodes) > maxNodes {
		return nil, fmt.Errorf("the graph has %d nodes, more than %d", len(g.Nodes), maxNodes)
	}
	p := &plan{g: g, shapes: shapes, order: order(g), buffer: make([]graph.ValueID, n), bytes: make([]int64, n), output: make([]bool, n),
		parts: map[graph.ValueID][]int64{}, owned: make([]bool, n), frees: make([][]graph.ValueID, len(g.Nodes)), uses: make([]int, n)}
	for i := range p.buffer {
		p.buffer[i] = graph.ValueID(i)
	}
	for _, v := range g.Outputs {
		p.output[v] = true
		p.uses[v]++
	}
	if err := p.count(); err != nil {
		return nil, err
	}
	for _, i := range p.order {
		p.share(&g.Nodes[i])
	}
	p.release()
	return p, nil
}

// count counts the uses of values: one for being made, one for each read, one
// more for what the caller owns.
func (p *plan) count() error {
	for i := range p.g.Values {
		if k := p.g.Values[i].Kind; k != graph.Computed || p.weight(graph.ValueID(i)) {
			p.uses[i]++
		}
	}
	for _, i := range p.order {
		n := &p.g.Nodes[i]
		if len(n.Subgraphs()) > 0 {
			return fmt.Errorf("%s: graphs inside a node have plans of their own", n.Label())
		}
		for _, v := range n.Inputs {
			if v != graph.NoValue {
				p.uses[v]++
			}
		}
		for _, v := range n.Outputs {
			if v == graph.NoValue {
				continue
			}
			bytes, err := size(p.g, v)
			if parts := sequence(p.g, n, v); parts != nil {
				p.parts[v], bytes, err = parts, sum(parts), nil
			}
			if err != nil {
				return fmt.Errorf("%s: %w", n.Label(), err)
			}
			p.bytes[v] = bytes
			p.uses[v]++
		}
	}
	return nil
}

// sequence returns the bytes of the tensors that SplitToSequence cuts its operand into, in equal
// parts; nil for other values.
func sequence(g *graph.Graph, n *graph.Node, v graph.ValueID) []int64 {
	t := &g.Values[v].Type
	if n.Op != "SplitToSequence" || n.Domain != "" || t.Kind != graph.SequenceType || t.Of == nil {
		return nil
	}
	bytes, ok := t.Of.Bytes().Int()
	count, known := t.Len.Int()
	if !ok || !known || count < 1 || count > maxNodes {
		return nil
	}
	return slices.Repeat([]int64{bytes}, int(count))
}

func sum(list []int64) (n int64) {
	for _, x := range list {
		n += x
	}
	return n
}

// weight reports whether a value is the result of a Constant.
func (p *plan) weight(v graph.ValueID) bool {
	d := p.g.Values[v].Def
	return d >= 0 && constant(&p.g.Nodes[d])
}

// share gives the results of a node their buffers.
func (p *plan) share(n *graph.Node) {
	for i, v := range n.Outputs {
		if v == graph.NoValue {
			continue
		}
		switch from, ok := p.input(n, i); {
		case p.output[v]:
			p.owned[v] = true
		case ok:
			p.use(from, v)
		default:
			if from, ok = p.dead(v); ok {
				p.use(from, v)
			} else {
				p.owned[v] = true
			}
		}
	}
	for _, list := range [][]graph.ValueID{n.Inputs, n.Outputs} {
		for _, v := range list {
			if v == graph.NoValue {
				continue
			}
			b := p.buffer[v]
			if p.uses[b]--; p.uses[b] == 0 {
				p.free = append(p.free, b)
			}
		}
	}
}

func (p *plan) use(from, v graph.ValueID) {
	b := p.buffer[from]
	p.buffer[v] = b
	p.uses[b] += p.uses[v]
}

// input returns the operand in whose buffer a node writes a result: always for a
// view, otherwise if nothing else reads it and the shapes are the same.
func (p *plan) input(n *graph.Node, output int) (graph.ValueID, bool) {
	if output != 0 || n.Domain != "" || len(n.Inputs) == 0 || n.Inputs[0] == graph.NoValue {
		return 0, false
	}
	x := n.Inputs[0]
	switch {
	case slices.Contains(views, n.Op):
		return x, true
	case slices.Contains(inPlace, n.Op) && p.uses[p.buffer[x]] == 1 && p.same(x, n.Outputs[0]):
		return x, true
	}
	return 0, false
}

// views are the operators whose result is their first operand: KernelDef::Alias.
var views = []string{"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"}

// inPlace are those that may write over it, KernelDef::MayInplace of the CPU
// provider: found by running each on its own.
var inPlace = []string{
	"Relu", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "Selu", "HardSigmoid", "Softplus", "Softsign", "ThresholdedRelu", "Celu", "Softmax", "LogSoftmax", "Cast", "Clip",
}

// dead returns a buffer of the same shape that no node reads any more, the last
// to become free first.
func (p *plan) dead(v graph.ValueID) (graph.ValueID, bool) {
	if len(p.g.Values[v].Type.Shape) == 0 {
		return 0, false
	}
	for k := len(p.free) - 1; k >= 0; k-- {
		if b := p.free[k]; p.same(b, v) {
			p.free = slices.Delete(p.free, k, k+1)
			return b, true
		}
	}
	return 0, false
}

// same reports whether two values are known to be of one size: equal shapes, and
// elements of equal size.
func (p *plan) same(x, y graph.ValueID) bool {
	return p.shapes[x] != "" && p.shapes[x] == p.shapes[y] && p.g.Values[x].Type.Elem.Bits() == p.g.Values[y].Type.Elem.Bits()
}

// release frees each buffer after the last node that reads it. What no node
// reads lives to the end of the run.
func (p *plan) release() {
	done := make([]bool, len(p.g.Values))
	for k := len(p.order) - 1; k >= 0; k-- {
		i := p.order[k]
		for _, v := range p.g.Nodes[i].Inputs {
			if v == graph.NoValue {
				continue
			}
			if b := p.buffer[v]; p.owned[b] && !p.output[b] && !done[b] {
				done[b] = true
				p.frees[i] = append(p.frees[i], b)
			}
		}
	}
}

// first is the first run: every buffer comes from the arena, and the pattern
// records them.
func (p *plan) first(a *arena) *pattern {
	t := &pattern{}
	p.run(a, func(v graph.ValueID) bool {
		if !p.output[v] {
			t.place(v, aligned(p.bytes[v]))
		}
		return true
	}, func(v graph.ValueID) { t.drop(v) })
	return t
}

// again is any later run: the pattern is one block, and only the graph's results
// and what kernels need for themselves are allocated apart.
func (p *plan) again(a *arena, t *pattern) {
	block := a.alloc(t.top)
	p.run(a, func(v graph.ValueID) bool { return p.output[v] }, func(graph.ValueID) {})
	a.free(block)
}

// run executes the nodes. made is told of each buffer and says whether it comes
// from the arena; gone, of each that ends.
func (p *plan) run(a *arena, made func(v graph.ValueID) bool, gone func(v graph.ValueID)) {
	at := make([]*chunk, len(p.g.Values))
	tensors := map[graph.ValueID][]*chunk{} // of sequences
	for _, i := range p.order {
		n := &p.g.Nodes[i]
		temps := allocAll(a, p.operandsFirst(n))
		for _, v := range n.Outputs {
			switch {
			case v == graph.NoValue || !p.owned[v]:
			case p.parts[v] != nil:
				tensors[v] = allocAll(a, p.parts[v])
			case made(v):
				at[v] = a.alloc(p.bytes[v])
			}
		}
		temps = append(temps, allocAll(a, p.workspace(n))...)
		for _, c := range temps {
			a.free(c)
		}
		for _, b := range p.frees[i] {
			for _, c := range tensors[b] {
				a.free(c)
			}
			if tensors[b] == nil {
				gone(b)
			}
			a.free(at[b])
			at[b], tensors[b] = nil, nil
		}
	}
	for _, v := range slices.Sorted(maps.Keys(tensors)) {
		for _, c := range tensors[v] {
			a.free(c)
		}
	}
	for _, c := range at {
		a.free(c)
	}
}

func allocAll(a *arena, list []int64) []*chunk {
	var out []*chunk
	for _, bytes := range list {
		out = append(out, a.alloc(bytes))
	}
	return out
}
