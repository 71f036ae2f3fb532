package lift

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
)

// ONNX has one operator for each layer of a recurrent network, whereas a module of
// several layers makes one call of cuDNN, with one workspace, one reserve and
// dropout inside.

// A stack is a chain of recurrent calls, each reading the result of the one
// before.
type stack struct {
	calls []*graph.Node // in order
	drop  float64       // probability of dropout between them
	last  *graph.Arg    // input of the first
}

// stackedRNN merges the layers that end in call i into one call.
func stackedRNN(r *rewriter, i int) bool {
	n := r.node(i)
	if r.l.Source != Patterns || !recurrent(n) {
		return false
	}
	s := &stack{calls: []*graph.Node{n}, last: &n.Args[0]}
	for r.below(s) {
	}
	if len(s.calls) < 2 {
		return false
	}
	layers, params := int64(0), []graph.Arg{}
	for _, c := range s.calls {
		layers += c.Args[4].Int
		params = append(params, c.Args[2].List...)
	}
	states := r.stackedStates(s)
	if states == nil || !r.stackedEnds(s, i) {
		return false
	}
	for _, c := range s.calls {
		if why := c.MetaValue(InexactKey); why != "" && n.MetaValue(InexactKey) == "" {
			n.Meta = append(slices.Clone(n.Meta), graph.Prop{Key: InexactKey, Value: why})
		}
	}
	n.Args[0], n.Args[1].List, n.Args[2].List = *s.last, states, params
	n.Args[4].Int, n.Args[5].Float = layers, s.drop
	r.relink(n)
	return true
}

// recurrent reports whether n is a call of a recurrent network with all its
// arguments.
func recurrent(n *graph.Node) bool {
	return aten.Is(opName(n), aten.Recurrent) && strings.HasSuffix(n.Op, ".input") && len(n.Args) == 9 && n.Args[1].Kind == graph.ArgList && n.Args[2].Kind == graph.ArgList
}

// maxRelayouts bounds the calls between two layers by which exporters rearrange one layer's
// result for the next.
const maxRelayouts = 8

// below adds the layer below the first of a stack, if it belongs to the same
// module.
func (r *rewriter) below(s *stack) bool {
	top, a, drop := s.calls[0], s.last, 0.0
	for range maxRelayouts {
		p := r.producer(a)
		if p == nil || len(p.Args) == 0 || len(p.Outputs) == 0 || p.Outputs[0] != a.Value || r.uses[a.Value] != 1 {
			return false
		}
		switch op := opName(p); {
		case recurrent(p):
			if !r.sameNetwork(p, top) || len(s.calls) > 1 && drop != s.drop {
				return false
			}
			s.calls, s.last, s.drop = append([]*graph.Node{p}, s.calls...), &p.Args[0], drop
			return true
		case (op == "native_dropout" || op == "dropout") && drop == 0 && len(p.Args) > 1 && p.Args[1].Kind == graph.ArgFloat:
			drop = p.Args[1].Float
		case !aten.Is(op, aten.AllOnce):
			return false
		}
		a = &p.Args[0]
	}
	return false
}

// layerName matches the name of a layer's first parameter in a module of PyTorch,
// even if it was split from a joined one.
var layerName = regexp.MustCompile(`^(.*)weight_ih_l(\d+)(\.0)?$`)

// sameNetwork reports whether two calls are layers of one module, by the
// parameters' names or by the owning module in the file.
func (r *rewriter) sameNetwork(p, n *graph.Node) bool {
	if p.Op != n.Op || !slices.Equal(r.sizesOf(p.Outputs[0]), r.sizesOf(n.Args[0].Value)) || len(p.Args[2].List) == 0 || len(n.Args[2].List) == 0 {
		return false
	}
	for _, k := range []int{3, 7, 8} { // biases, directions, batch first
		if p.Args[k].Int != n.Args[k].Int {
			return false
		}
	}
	below := layerName.FindStringSubmatch(r.l.Graph.Values[p.Args[2].List[0].Value].Name)
	above := layerName.FindStringSubmatch(r.l.Graph.Values[n.Args[2].List[0].Value].Name)
	if below == nil || above == nil {
		return p.Module == n.Module && n.Module != ""
	}
	from, _ := strconv.Atoi(below[2])
	to, _ := strconv.Atoi(above[2])
	return below[1] == above[1] && int64(from)+p.Args[4].Int == int64(to)
}

// sizesOf returns the dims of a value, nil if any is unknown.
func (r *rewriter) sizesOf(id graph.ValueID) []int64 {
	dims, ok := r.l.Graph.Values[id].Type.Shape.Static()
	if !ok {
		return nil
	}
	return dims
}

// stackedStates returns the initial states of all layers: the tensors that each
// layer's states are parts of, or new zeros if each has its own; otherwise nil.
func (r *rewriter) stackedStates(s *stack) []graph.Arg {
	first := s.calls[0].Args[1].List
	out := slices.Clone(first)
	for k := range out {
		whole, total := graph.NoValue, int64(0)
		for _, c := range s.calls {
			if k >= len(c.Args[1].List) || c.Args[1].List[k].Kind != graph.ArgValue {
				return nil
			}
			a := &c.Args[1].List[k]
			dims := r.sizesOf(a.Value)
			p := r.producer(a)
			if p == nil || len(dims) != 3 || c != s.calls[0] && p.Op != r.producer(&first[k]).Op {
				return nil
			}
			total += dims[0]
			switch {
			case opName(p) == "slice" && p.Args[0].Kind == graph.ArgValue && (whole < 0 || whole == p.Args[0].Value):
				whole = p.Args[0].Value
			case opName(p) == "zeros" && whole < 0:
			default:
				return nil
			}
		}
		if whole < 0 {
			r.enlarge(&out[k], total)
		} else if dims := r.sizesOf(whole); len(dims) != 3 || dims[0] != total {
			return nil
		} else {
			out[k].Value = whole
		}
	}
	return out
}

// enlarge makes the first dim of one layer's zeros that of all layers.
func (r *rewriter) enlarge(a *graph.Arg, layers int64) {
	p := r.producer(a)
	v := &r.l.Graph.Values[a.Value]
	v.Type.Shape = slices.Clone(v.Type.Shape)
	v.Type.Shape[0] = graph.Int(layers)
	p.Args = slices.Clone(p.Args)
	p.Args[0].List = slices.Clone(p.Args[0].List)
	p.Args[0].List[0].Int = layers
}

// stackedEnds gives the merged call i the last states of all layers: they are
// unread, or joined. It returns false if something reads one layer's.
func (r *rewriter) stackedEnds(s *stack, i int) bool {
	n := r.node(i)
	joins := make([]*graph.Node, len(n.Outputs))
	for k := 1; k < len(n.Outputs); k++ {
		read := 0
		for _, c := range s.calls {
			read += int(r.uses[c.Outputs[k]])
		}
		if read == 0 {
			continue
		}
		if joins[k] = r.joining(s, k, i); joins[k] == nil || read != len(s.calls) {
			return false
		}
	}
	for k, join := range joins {
		if join != nil {
			n.Outputs[k], join.Outputs = join.Outputs[0], nil
			r.def[n.Outputs[k]] = int32(i)
		} else if k > 0 {
			v := &r.l.Graph.Values[n.Outputs[k]]
			if state := r.sizesOf(s.calls[0].Outputs[k]); len(state) == 3 {
				v.Type.Shape = slices.Clone(v.Type.Shape)
				v.Type.Shape[0] = graph.Int(state[0] * int64(len(s.calls)))
			}
		}
	}
	return true
}

// joining returns the cat after call i of result k of all calls of a stack, or
// nil.
func (r *rewriter) joining(s *stack, k, i int) *graph.Node {
	for j := i + 1; j < len(r.l.Graph.Nodes); j++ {
		n := r.node(j)
		if opName(n) != "cat" || len(n.Args) == 0 || len(n.Args[0].List) != len(s.calls) || len(n.Outputs) == 0 {
			continue
		}
		all := true
		for c := range s.calls {
			all = all && n.Args[0].List[c].Value == s.calls[c].Outputs[k]
		}
		if all {
			return n
		}
	}
	return nil
}
