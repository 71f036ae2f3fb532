// Package ort says what onnxruntime's arena on the processor takes for a graph:
// its order of nodes, its plan of buffers, its memory pattern and its allocator,
// as those of release 1.31 do it with one thread and the graph as it stands in
// the file. Weights are not part of it: since release 1.22 they stay where the
// file was loaded, but for those that kernels pack anew.
package ort

import (
	"fmt"
	"slices"

	"github.com/memplan/memplan/graph"
)

// Release is the release of onnxruntime that the rules are from.
const Release = "1.31"

// A Usage is what the arena takes, in bytes.
type Usage struct {
	ArenaBytes   int64   // what the arena has got from the system after two runs
	PatternBytes int64   // the block that holds all intermediate results from the second run on
	LiveBytes    int64   // the most that live at once of what is in that block: no order of places makes it smaller
	Growths      []int64 // by which the arena grew, in order
}

// Predict runs a graph whose sizes are known twice. shapes has each value's
// shape as onnxruntime compares it, before sizes are bound: "" where it does not
// know it. Predict returns an error for a graph with loops or branches, whose
// inner graphs have plans of their own, for functions of the model's own, which
// become nodes first, for half precision, which the processor computes as float32
// between casts, and for sizes that are not known.
func Predict(g *graph.Graph, shapes []string) (*Usage, error) {
	p, err := newPlan(g, shapes)
	if err != nil {
		return nil, err
	}
	if err := rewritten(g); err != nil {
		return nil, err
	}
	u := &Usage{}
	a := newArena()
	pattern := p.first(a)
	u.PatternBytes, u.LiveBytes = pattern.top, pattern.most
	p.again(a, pattern)
	u.ArenaBytes, u.Growths = a.total, a.growths
	return u, nil
}

// rewritten returns an error for a graph that is not run as it stands.
func rewritten(g *graph.Graph) error {
	for i := range g.Nodes {
		n := &g.Nodes[i]
		for k := range g.Model.Functions {
			if f := g.Model.Functions[k]; f.Domain == n.Domain && f.Name == n.Op {
				return fmt.Errorf("%s: a function of the model", n.Label())
			}
		}
		for _, v := range n.Outputs {
			if v == graph.NoValue {
				continue
			}
			if t := g.Values[v].Type.Elem; t == graph.Float16 || t == graph.BFloat16 {
				return fmt.Errorf("%s: half precision, which a processor computes in float32", n.Label())
			}
		}
	}
	return nil
}

// align is the alignment of tensors in a pattern and of chunks in the arena.
const align = 256

func aligned(bytes int64) int64 { return (bytes + align - 1) / align * align }

// size returns the bytes of a value.
func size(g *graph.Graph, v graph.ValueID) (int64, error) {
	t := &g.Values[v].Type
	if t.Kind != graph.TensorType || t.Elem.Bits() == 0 {
		return 0, fmt.Errorf("value %q is no tensor of numbers", g.Values[v].Name)
	}
	n, ok := t.Bytes().Int()
	if !ok {
		return 0, fmt.Errorf("value %q: its size is not known", g.Values[v].Name)
	}
	return n, nil
}

// order returns the nodes in onnxruntime's order: of a search from the nodes
// that no other reads back to what they read, later nodes first.
func order(g *graph.Graph) []int32 {
	read := make([]bool, len(g.Nodes))
	for i := range g.Nodes {
		for _, j := range before(g, &g.Nodes[i]) {
			read[j] = true
		}
	}
	type step struct {
		node  int32
		leave bool
	}
	var stack []step
	for i := range g.Nodes {
		if !read[i] && !constant(&g.Nodes[i]) {
			stack = append(stack, step{node: int32(i)})
		}
	}
	var out []int32
	seen := make([]bool, len(g.Nodes))
	for len(stack) > 0 {
		s := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if s.leave {
			out = append(out, s.node)
			continue
		}
		if seen[s.node] {
			continue
		}
		seen[s.node] = true
		stack = append(stack, step{s.node, true})
		for _, j := range before(g, &g.Nodes[s.node]) {
			if !seen[j] {
				stack = append(stack, step{node: j})
			}
		}
	}
	return out
}

// constant reports whether a node is a weight by the time the graph runs.
func constant(n *graph.Node) bool { return n.Domain == "" && n.Op == "Constant" }

// before lists the nodes whose results a node reads, in the file's order.
func before(g *graph.Graph, n *graph.Node) []int32 {
	var out []int32
	for _, v := range n.Inputs {
		if v == graph.NoValue || g.Values[v].Kind != graph.Computed {
			continue
		}
		if d := g.Values[v].Def; d >= 0 && !constant(&g.Nodes[d]) {
			out = append(out, d)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
