package train

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/graph/python"
)

// Python keeps a tensor alive for as long as a variable names it, which is
// often longer than the graph reads it. The exported graph has no variables.
// Source lines in the file say how long they live (source.go); where there are
// none, or a line leaves it open, the module tree bounds them:
//
//   - what a module is called with stays alive until the call returns: the
//     caller's variable and the callee's parameter name it;
//   - query, key and value, and the probabilities, are variables of the
//     attention module's forward and live until it returns; attention modules
//     of transformers return the probabilities too, and the block that calls
//     them keeps these;
//   - in the forward functions of well-known modules, variables live as their
//     code says (package python);
//   - in inference, where autograd holds nothing, what skips past a module, as
//     in a U-Net, is a variable of its own and lives until the function that
//     computed it returns (see skips).

// A holder collects the values that variables release after each call.
type holder struct {
	after   [][]held
	settled map[settled]bool // nil: only rules
}

// A held is a value and the variable that releases it: innermost frames return
// first, and a reassignment precedes the return of its frame.
type held struct {
	id    graph.ValueID
	depth int // depth of the module whose frame has the variable
	how   release
}

// A release is the way a variable releases its value.
type release int

// Releases, in order within one frame. Parameters are often reassigned to a
// frame's first results, which then go before what its other parameters name.
const (
	parameter release = iota // the frame returns to the caller, which made the value
	local                    // the frame returns
	store                    // the variable is reassigned
)

// add records that a variable of a frame releases a value after a call.
func (h holder) add(at int, id graph.ValueID, depth int, how release) {
	for _, v := range h.after[at] {
		if v.id == id && v.depth == depth {
			return
		}
	}
	h.after[at] = append(h.after[at], held{id, depth, how})
}

// guess adds a rule's assumption about a variable, unless source lines
// determine it.
func (h holder) guess(at int, id graph.ValueID, depth int, how release) {
	if !h.settled[settled{id, depth}] {
		h.add(at, id, depth, how)
	}
}

// values lists the values released after each call, in order, each by the last
// variable that names it.
func (h holder) values() [][]graph.ValueID {
	out := make([][]graph.ValueID, len(h.after))
	for at, list := range h.after {
		slices.SortStableFunc(list, func(a, b held) int { return cmp.Or(b.depth-a.depth, int(b.how-a.how)) })
		for i, v := range list {
			if !slices.ContainsFunc(list[i+1:], func(w held) bool { return w.id == v.id }) {
				out[at] = append(out[at], v.id)
			}
		}
	}
	return out
}

// variableHolds records, for every call, the values that variables release
// after it: by the source lines in the file, and by rules where there are none.
func variableHolds(l *lift.Lifted, modules []lift.Module, training bool) (holder, Variables) {
	holds := holder{after: make([][]held, len(l.Graph.Nodes))}
	var vars Variables
	holds.settled, vars = sourceHolds(l, modules, holds)
	scopeHolds(l, modules, holds)
	hookHolds(l.Graph, holds, &vars)
	if !training {
		skips(l, modules, holds)
	}
	return holds, vars
}

// scopeHolds adds what follows from the module tree and the classes.
func scopeHolds(l *lift.Lifted, modules []lift.Module, holds holder) {
	g := l.Graph
	ends, inner := callEnds(g), callees(modules)
	for i := range g.Nodes {
		n := &g.Nodes[i]
		for _, id := range n.Inputs {
			def := g.Values[id].Def
			if def < 0 {
				continue
			}
			if d := commonDepth(g.Nodes[def].Module, n.Module); d < depth(n.Module) {
				callee := inner(n.Module, d)
				holds.add(ends(i, callee), id, callee, parameter)
			} else if multiplies(n) && n.Module != "" {
				at, frame := ends(i, depth(n.Module)), depth(n.Module)
				if probabilities(g, id) && python.ReturnsProbabilities.Of(l.Classes[i]) && !asks(n) {
					frame = blockDepth(n.Module)
					at = untilAgain(g, at, ends(i, frame))
				}
				holds.guess(at, id, frame, local)
				if q := scaled(g, n, id); q >= 0 && python.Attention.Of(l.Classes[i]) {
					holds.guess(at, q, frame, local)
				}
			}
		}
	}
	frameHolds(g, modules, holds)
	windowHolds(g, modules, holds)
	rotaryHolds(g, modules, ends, holds)
	localHolds(g, modules, holds)
}

// hookHolds holds the weights that torch.nn.utils.weight_norm's hook stores in an
// attribute of a module before its forward: they live until the next step's. Those
// of torch.nn.utils.parametrizations are computed on demand.
func hookHolds(g *graph.Graph, holds holder, vars *Variables) {
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if n.Op != "_weight_norm.default" || len(n.Inputs) == 0 || len(n.Outputs) == 0 {
			continue
		}
		if v := &g.Values[n.Inputs[0]]; v.Kind == graph.Initializer && strings.HasSuffix(v.Name, "_v") {
			holds.add(len(g.Nodes)-1, n.Outputs[0], 0, local)
			vars.keeps(v.Name, n.Outputs[:1])
		}
	}
}

// A skip is a value that a frame passes to a module and reads again afterwards:
// a variable of its own names it.
type skip struct {
	id         graph.ValueID
	born, last int // call that returns it, and last call that reads it
}

// skips adds to holds, for every call, the values that variables of a frame
// release after it. A variable lives until its frame returns or reassigns it; the
// file does not show which one is reassigned, and the first that is no longer
// needed is assumed to be.
func skips(l *lift.Lifted, modules []lift.Module, holds holder) {
	g := l.Graph
	type frame struct {
		module     string
		depth, end int
	}
	frames := map[frame][]skip{}
	var order []frame
	ends, inner := callEnds(g), callees(modules)
	first, last := make([]int, len(g.Values)), make([]int, len(g.Values))
	common := make([]int, len(g.Values))
	for i := range g.Nodes {
		n := &g.Nodes[i]
		for _, id := range n.Inputs {
			def := g.Values[id].Def
			if def < 0 {
				continue
			}
			d := commonDepth(g.Nodes[def].Module, n.Module)
			if last[id] == 0 {
				first[id] = i
			}
			if last[id] == 0 || d < common[id] {
				common[id] = d
			}
			last[id] = i
		}
	}
	item := func(i, d int) int { // last call of the frame's statement that contains call i
		if depth(g.Nodes[i].Module) > d {
			return ends(i, inner(g.Nodes[i].Module, d))
		}
		return i
	}
	for id := range g.Values {
		def := int(g.Values[id].Def)
		if def < 0 || last[id] == 0 {
			continue
		}
		d := common[id]
		end := len(g.Nodes) - 1
		if d > 0 {
			end = ends(def, d)
		}
		born := item(def, d)
		if last[id] > end || last[id] <= item(first[id], d) || depth(g.Nodes[first[id]].Module) <= d {
			continue
		}
		f := frame{prefix(g.Nodes[def].Module, d), d, end}
		if frames[f] == nil {
			order = append(order, f)
		}
		frames[f] = append(frames[f], skip{graph.ValueID(id), born, last[id]})
	}
	for _, f := range order {
		list := frames[f]
		for _, s := range list {
			at := f.end
			for _, o := range list {
				if o.born >= s.last {
					at = min(at, o.born)
				}
			}
			how := local
			if at < f.end {
				how = store
			}
			holds.guess(at, s.id, f.depth, how)
		}
	}
}

// scaled returns the value from which the call's module got id by scaling, or
// NoValue.
func scaled(g *graph.Graph, n *graph.Node, id graph.ValueID) graph.ValueID {
	if mul := maker(g, id, "mul.Tensor"); mul != nil && mul.Module == n.Module && len(mul.Inputs) > 0 {
		return mul.Inputs[0]
	}
	return graph.NoValue
}

// multiplies reports whether a call is a product of two activations.
func multiplies(n *graph.Node) bool {
	op, _, _ := strings.Cut(n.Op, ".")
	return aten.Is(op, aten.Multiplies)
}

// asks reports whether a source line of a call's frames asks attention to
// return its probabilities, which it does not do by default.
func asks(n *graph.Node) bool {
	return strings.Contains(n.MetaValue("pkg.torch.onnx.stack_trace"), "output_attentions")
}

// probabilities reports whether a value is a softmax, or one that the same
// module cast, dropped out or viewed.
func probabilities(g *graph.Graph, id graph.ValueID) bool {
	for range 6 {
		def := g.Values[id].Def
		if def < 0 {
			return false
		}
		n := &g.Nodes[def]
		op, _, _ := strings.Cut(n.Op, ".")
		if aten.Is(op, aten.Probabilities) || op == "_safe_softmax" { // which the table lacks
			return true
		}
		if !aten.Is(op, aten.PassesOn) || len(n.Inputs) == 0 {
			return false
		}
		id = n.Inputs[0]
	}
	return false
}

// untilAgain returns the last call in [i, end] before the module of call i is
// called again: if a model runs one block repeatedly, its runs follow each
// other.
func untilAgain(g *graph.Graph, i, end int) int {
	for j := i + 1; j <= end; j++ {
		if g.Nodes[j].Module == g.Nodes[i].Module {
			return j - 1
		}
	}
	return end
}

// blockDepth returns the depth of the innermost module in a list, whose name is
// a number, among a module and those around it; the module's own depth if there
// is none.
func blockDepth(module string) int {
	for m, d := module, depth(module); d > 0; m, d = parent(m), d-1 {
		last := m[strings.LastIndexByte(m, '.')+1:]
		if _, err := strconv.Atoi(last); err == nil {
			return d
		}
	}
	return depth(module)
}

func depth(module string) int {
	if module == "" {
		return 0
	}
	return strings.Count(module, ".") + 1
}

// commonDepth returns the number of leading components that two module names
// share.
func commonDepth(a, b string) int {
	if a == "" || b == "" {
		return 0
	}
	n := 0
	for {
		x, ra, oka := strings.Cut(a, ".")
		y, rb, okb := strings.Cut(b, ".")
		if x != y {
			return n
		}
		n++
		if !oka || !okb {
			return n
		}
		a, b = ra, rb
	}
}

// prefix returns the first n components of a module name.
func prefix(module string, n int) string {
	at := 0
	for range n {
		j := strings.IndexByte(module[at:], '.')
		if j < 0 {
			return module
		}
		at += j + 1
	}
	return module[:max(at-1, 0)]
}

// callees returns a function that gives the depth of the module that a frame at
// depth d calls on the way to a module; lists of modules do not count.
func callees(modules []lift.Module) func(module string, d int) int {
	called := map[string]bool{}
	for _, m := range modules {
		called[m.Name] = true
	}
	return func(module string, d int) int {
		for k := d + 1; k < depth(module); k++ {
			if called[prefix(module, k)] {
				return k
			}
		}
		if called[module] {
			return depth(module)
		}
		return d + 1
	}
}

// callEnds returns a function that gives the last consecutive call inside the
// module that is the first d components of call i's.
func callEnds(g *graph.Graph) func(i, d int) int {
	type key struct{ i, d int }
	memo := map[key]int{}
	return func(i, d int) int {
		m := prefix(g.Nodes[i].Module, d)
		if at, ok := memo[key{i, d}]; ok {
			return at
		}
		j := i
		for j+1 < len(g.Nodes) && Within(g.Nodes[j+1].Module, m) {
			j++
		}
		for k := i; k <= j; k++ {
			memo[key{k, d}] = j
		}
		return j
	}
}
