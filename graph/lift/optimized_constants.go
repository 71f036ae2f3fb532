package lift

import (
	"fmt"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/infer"
)

// foldLimit is the most elements of a tensor that the optimizer computes with ahead of time
// (onnxscript.optimizer._constant_folding.DEFAULT_CONSTANT_FOLD_INPUT_SIZE_LIMIT).
const foldLimit = 8192

// constantOf returns the value of a call whose result the optimizer computed: the call again on a
// parameter of its module that no other call reads, if its name tells how, or else a tensor that the
// forward pass makes.
func (m *metaLift) constantOf(ref string, e graph.ValueID) graph.ValueID {
	id := m.recomputed(ref, e)
	if _, ok := m.filledBy[e]; !ok {
		m.filledBy[e] = id
	}
	return id
}

// recomputed is constantOf for a constant of another name.
func (m *metaLift) recomputed(ref string, e graph.ValueID) graph.ValueID {
	v := &m.src.Values[e]
	dims, ok := v.Type.Shape.Static()
	if !ok {
		return m.value(e)
	}
	if !v.Type.Elem.IsFloat() {
		return m.integers(ref, e, dims)
	}
	base := baseName(ref)
	if s := m.opt.unread(m.module, Parameter); s != nil {
		if id, ok := m.computed(ref, base, s, e, dims); ok {
			return id
		}
		m.opt.unknown(m.module)
	} else if n := m.before(e); n != nil {
		return m.twice(ref, *n, e)
	}
	return m.filled(ref, e, dims)
}

// before returns the call whose result the same constant was for another name.
func (m *metaLift) before(e graph.ValueID) *graph.Node {
	if id, ok := m.filledBy[e]; ok && m.l.Graph.Values[id].Def >= 0 {
		return &m.l.Graph.Nodes[m.l.Graph.Values[id].Def]
	}
	return nil
}

// computed makes a call of a parameter again.
func (m *metaLift) computed(ref, base string, s *state, e graph.ValueID, dims []int64) (graph.ValueID, bool) {
	elem := m.src.Values[e].Type.Elem
	call := func(op string, args ...graph.Arg) (graph.ValueID, bool) {
		return m.again(graph.Node{Name: ref, Op: op, Args: append([]graph.Arg{argOf(s.value)}, args...)}, e), true
	}
	switch {
	case aten.PerElement(base):
		m.show(s, elem, dims...)
		return call(base + ".default")
	case numeric(base) && m.opt.alone(s):
		m.show(s, elem, dims...)
		return call(base+".Tensor", argFloat(1))
	case base == "embedding" && len(dims) > 1:
		m.opt.least(s)
		m.show(s, elem, dims[len(dims)-2:]...)
		return call("expand.default", argInts(dims...))
	case base == "expand" && len(dims) > 1:
		own := slices.Clone(dims)
		own[0] = 1
		m.show(s, elem, own...)
		return call("expand.default", argInts(dims...))
	case reshapes(base) || base == "unsqueeze":
		own := slices.DeleteFunc(slices.Clone(dims), func(n int64) bool { return n == 1 })
		if len(own) > 1 {
			break
		}
		m.show(s, elem, own...)
		return call("view.default", argInts(dims...))
	case base == "type_as" || base == "_to_copy" || base == "alias":
		m.show(s, elem, dims...)
		return s.value, true
	}
	if n, ok := graph.Product(dims); ok && n <= foldLimit && m.opt.alone(s) && slices.Contains([]string{"view", "_unsafe_view", "reshape", "mul"}, base) {
		m.opt.least(s) // a weight that is normalised or scaled, as far as its shape tells
		m.show(s, elem, dims...)
		return call("mul.Tensor", argFloat(1))
	}
	return graph.NoValue, false
}

// integers returns the value of a call whose result, integers or truth values, the optimizer computed:
// a view of a buffer that no other call reads, or a tensor that the forward pass makes.
func (m *metaLift) integers(ref string, e graph.ValueID, dims []int64) graph.ValueID {
	base := baseName(ref)
	s := m.opt.unread(m.module, Buffer)
	if s == nil || base != "slice" && base != "expand" && !reshapes(base) {
		if n := m.before(e); n != nil {
			return m.twice(ref, *n, e)
		}
		return m.filled(ref, e, dims)
	}
	own := slices.Clone(dims) // at least: of a longer one, others of the module may tell
	if at := m.opt.longest[parentModule(s.target)]; len(at) == len(own) {
		for i := range own {
			own[i] = max(own[i], at[i])
		}
	}
	m.opt.longest[parentModule(s.target)] = own
	if base == "slice" {
		m.opt.least(s)
	}
	m.show(s, m.src.Values[e].Type.Elem, own...)
	return m.value(e)
}

// filled makes a tensor of a constant's type, as the calls did that the optimizer computed.
func (m *metaLift) filled(ref string, e graph.ValueID, dims []int64) graph.ValueID {
	m.opt.made = append(m.opt.made, ref)
	if n, ok := m.src.Values[e].Type.Bytes().Int(); ok {
		m.opt.bytes += n
	}
	return m.again(graph.Node{Name: ref, Op: "full.default", Args: []graph.Arg{argInts(dims...), argFloat(0)}}, e)
}

// unread returns the first tensor of the model that no call names and that belongs to a module, or
// else to the module around it or one in it.
func (o *optimized) unread(module string, role Role) *state {
	lists := [][]*state{open(o.within, module)}
	if module != "" {
		lists = append(lists, open(o.within, parentModule(module)), open(o.under, module))
	}
	for _, list := range lists {
		if k := slices.IndexFunc(list, func(s *state) bool { return s.role == role }); k >= 0 {
			return list[k]
		}
	}
	return nil
}

// alone reports whether no other tensor of the same module is unread.
func (o *optimized) alone(s *state) bool {
	return len(open(o.within, parentModule(s.target))) <= 1
}

// unknown records the parameters that a constant was computed from, whose shapes nothing tells.
func (o *optimized) unknown(module string) {
	for _, x := range open(o.within, parentModule(o.unread(module, Parameter).target)) {
		if x.role == Parameter {
			o.least(x)
		}
	}
}

// least records a parameter of which the file shows a part.
func (o *optimized) least(s *state) {
	if !s.lost {
		s.lost = true
		o.lost = append(o.lost, s.target)
	}
}

// parentModule returns the module that a qualified name lies in.
func parentModule(name string) string { return name[:max(strings.LastIndexByte(name, '.'), 0)] }

// parts returns the values that say where or how large: shapes, axes, bounds.
func parts(g *graph.Graph) map[graph.ValueID]bool {
	out := map[graph.ValueID]bool{}
	for i := range g.Nodes {
		if n := &g.Nodes[i]; n.Op == "ScatterND" && len(n.Inputs) > 1 && n.Inputs[1] >= 0 {
			out[n.Inputs[1]] = true
		}
		if n := &g.Nodes[i]; infer.Is(n.Domain, n.Op, infer.Arranges) {
			for _, id := range n.Inputs[min(1, len(n.Inputs)):] {
				if id >= 0 {
					out[id] = true
				}
			}
		}
	}
	return out
}

// missing lists the operands of a call that calls made which the file lacks, in order.
func (m *metaLift) absent(fx *fxCall, ext []graph.ValueID) (out []string) {
	for _, ref := range references(fx.args, nil) {
		if _, placed := m.places[ref]; placed || m.opt.by[ref] != nil || len(m.outs[ref]) > 0 || slices.Contains(out, ref) ||
			slices.ContainsFunc(ext, func(id graph.ValueID) bool { return m.src.Values[id].Name == ref }) {
			continue
		}
		out = append(out, ref)
	}
	return out
}

// Optimised is the code of the warning that the exporter's optimizer has computed what the step computes.
const Optimised = "optimised-export"

// warnOptimised says what the optimizer left out that nothing in the file tells.
func (m *metaLift) warnOptimised() {
	o := m.opt
	m.l.Folded = &Folded{Bytes: o.bytes, Lost: o.lost}
	var parts []string
	if len(o.made) > 0 {
		parts = append(parts, fmt.Sprintf("it stores the results of %d calls (%s) in place of what they were made of", len(o.made), o.made[0]))
	}
	if len(o.lost) > 0 {
		parts = append(parts, fmt.Sprintf("the shapes of %d of the model's tensors (%s), of up to %d elements each, are not known", len(o.lost), o.lost[0], foldLimit))
	}
	if len(parts) > 0 {
		m.l.Warnings = append(m.l.Warnings, graph.Warning{Code: Optimised, Message: "the file was optimised after export: " + strings.Join(parts, "; ") + ". Export with optimize=False"})
	}
}

// Folded is what the exporter's optimizer computed and the file does not show.
type Folded struct {
	Bytes int64    // results of calls that the file has as constants
	Lost  []string // tensors of the model of unknown shapes, of up to 8192 elements each
}

// Most returns the most bytes that the step may take for what the file does not show: for each lost
// tensor the parameter, its gradient and two of the optimizer's state in float32 or 64-bit numbers, and for each
// result two more on the way to it.
func (f *Folded) Most() int64 {
	if f == nil {
		return 0
	}
	return 2*f.Bytes + int64(len(f.Lost))*foldLimit*16
}
