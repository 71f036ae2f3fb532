package lift

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
)

// baseName takes the number off the name of a call: "clone" of "clone_3".
func baseName(name string) string {
	if at := strings.LastIndexByte(name, '_'); at > 0 && digits(name[at+1:]) {
		return name[:at]
	}
	return name
}

// copies are calls that make a copy of their operand, which ONNX has no need of.
var copies = []string{"clone", "contiguous"}

// reshapes reports whether a call gives a tensor another shape, which the optimizer joins.
func reshapes(op string) bool { return aten.SameRow(op, "view") }

// numeric reports whether a call is of a tensor and a number, as Python's symbols make it.
func numeric(op string) bool { return aten.Is(op, aten.Augmented) }

// gone returns the value of a call that the file lacks, by its name: a copy, an equal call that was
// made once, a reshape that was joined with the next, or a constant that it was folded into. Operands
// of the file that no name of the call stands for are those of its missing names, in order.
func (m *metaLift) gone(ref string, ext []graph.ValueID) (graph.ValueID, bool) {
	k := slices.Index(m.missed, ref)
	if k < 0 {
		return graph.NoValue, false
	}
	if id := m.alike(ref); id >= 0 {
		m.outs[ref] = []graph.ValueID{id}
		return id, true
	}
	if id, ok := m.size(ref); ok {
		m.outs[ref] = []graph.ValueID{id}
		return id, true
	}
	all, made := m.candidates(ext)
	if len(all) == 0 {
		id := m.equal(ref)
		if id < 0 {
			id = m.empty(ref)
		}
		if id < 0 {
			id = m.step(ref, ext)
		}
		m.outs[ref] = []graph.ValueID{id}
		return id, id >= 0
	}
	if len(all) != len(m.missed) {
		if all = made; len(all) == 0 || len(all) > len(m.missed) {
			return graph.NoValue, false
		}
	}
	if k >= len(all) { // the rest are stored
		rest, _ := m.candidates(slices.DeleteFunc(slices.Clone(ext), func(id graph.ValueID) bool { return slices.Contains(made, id) }))
		if k -= len(all); len(rest) != len(m.missed)-len(all) {
			return graph.NoValue, false
		}
		all = rest
	}
	var id graph.ValueID
	if m.src.Values[all[k]].Kind == graph.Initializer {
		id = m.constantOf(ref, all[k])
	} else {
		id = m.remade(ref, all[k])
	}
	m.outs[ref] = []graph.ValueID{id}
	m.claims[ref] = all[k]
	return id, true
}

// alike returns a stored operand that is named for a call like one that the file lacks: it was merged
// with an equal one. NoValue if there is none.
func (m *metaLift) alike(ref string) graph.ValueID {
	for _, e := range m.ext {
		if v := &m.src.Values[e]; v.Kind == graph.Initializer && baseName(v.Name) == baseName(ref) && m.opt.stored[v.Name] == nil {
			m.claims[ref] = e
			return m.constantOf(ref, e)
		}
	}
	return graph.NoValue
}

// equal makes a call again whose equal is another operand of the same call.
func (m *metaLift) equal(ref string) graph.ValueID {
	for _, e := range m.ext {
		if x := m.to[e]; m.src.Values[e].Kind == graph.Computed && x >= 0 && m.l.Graph.Values[x].Def >= 0 {
			if n := m.l.Graph.Nodes[m.l.Graph.Values[x].Def]; baseName(n.Name) == baseName(ref) {
				return m.twice(ref, n, e)
			}
		}
	}
	return graph.NoValue
}

// empty makes a tensor of the shape of the result, which the call that is lifted fills.
func (m *metaLift) empty(ref string) graph.ValueID {
	if base := baseName(ref); base != "empty" && base != "empty_like" {
		return graph.NoValue
	}
	return m.again(graph.Node{Name: ref, Op: "empty.memory_format", Args: []graph.Arg{{Kind: graph.ArgList}}}, m.result())
}

// step makes a tensor like the step of another call that an equal call was replaced by.
func (m *metaLift) step(ref string, ext []graph.ValueID) graph.ValueID {
	at := graph.NoValue
	for _, id := range ext {
		if v := &m.src.Values[id]; v.Kind == graph.Computed && len(v.Type.Shape) > 0 && v.Type.Elem != graph.Int64 && m.inside(id) && id != at {
			if at >= 0 {
				return graph.NoValue
			}
			at = id
		}
	}
	if at < 0 || len(m.missed) != 1 {
		return graph.NoValue
	}
	return m.again(graph.Node{Name: ref, Op: "full.default", Args: []graph.Arg{{Kind: graph.ArgList}, argFloat(0)}}, at)
}

// size returns a number that the code computes of others and passes in a list of sizes: the size of the result's dim
// there.
func (m *metaLift) size(ref string) (graph.ValueID, bool) {
	for _, a := range m.given[min(1, len(m.given)):] {
		k := slices.IndexFunc(a.list, func(x fxArg) bool { return x.kind == graph.ArgValue && x.ref == ref })
		if a.kind != graph.ArgList || k < 0 {
			continue
		}
		out := m.result()
		if len(m.src.Values[out].Type.Shape) != len(a.list) {
			return graph.NoValue, false
		}
		id := m.fresh(ref, m.src.Values[out].Type)
		m.l.Graph.Values[id].Kind = graph.Initializer
		m.l.from[id], m.l.sizes[id], m.l.Roles[id] = out, true, Constant
		m.formed(id, func(v *graph.Value) {
			c := &graph.Constant{Name: ref, Type: graph.Int64}
			if k < len(v.Type.Shape) {
				if n, ok := v.Type.Shape[k].Int(); ok {
					c.Ints = []int64{n}
				}
			}
			v.Const, v.Type = c, graph.Type{Kind: graph.TensorType, Elem: graph.Int64, Shape: graph.Shape{}}
		})
		return id, true
	}
	return graph.NoValue, false
}

// indices makes the indices of an indexing whose tensors the optimizer joined to the coordinates of a
// GatherND.
func (m *metaLift) indices(gr *group) bool {
	for _, i := range gr.nodes {
		n := &m.src.Nodes[i]
		if n.Op != "GatherND" || len(n.Inputs) < 2 || n.Inputs[1] < 0 || m.src.Values[n.Inputs[1]].Kind != graph.Initializer {
			continue
		}
		dims, ok := m.src.Values[n.Inputs[1]].Type.Shape.Static()
		if !ok || len(dims) == 0 {
			return false
		}
		for _, ref := range m.missed {
			t := shaped(m.src.Values[n.Inputs[1]].Type, dims[:len(dims)-1]...)
			id := m.fresh(ref, t)
			v := &m.l.Graph.Values[id]
			v.Kind, v.Const = graph.Initializer, &graph.Constant{Name: ref, Type: t.Elem, Dims: dims[:len(dims)-1]}
			m.l.Roles[id] = Constant
			m.outs[ref] = []graph.ValueID{id}
		}
		return true
	}
	return false
}

// candidates lists the values of a call that no name stands for, in order, and those of them that
// calls make.
func (m *metaLift) candidates(ext []graph.ValueID) (all, made []graph.ValueID) {
	for _, id := range ext {
		v := &m.src.Values[id]
		stored := v.Kind == graph.Initializer
		if slices.Contains(all, id) || stored && (len(v.Type.Shape) == 0 || m.hidden[id]) {
			continue
		}
		if v.Kind == graph.Computed && m.inside(id) {
			continue
		}
		if all = append(all, id); !stored {
			made = append(made, id)
		}
	}
	return all, made
}

// inside reports whether a value is a size, or a step within another call, which an equal step of the call that is
// lifted was replaced by.
func (m *metaLift) inside(id graph.ValueID) bool {
	x := m.to[id]
	if x >= 0 && (m.l.sizes[x] || m.l.Graph.Values[x].Def >= 0) {
		return m.l.sizes[x]
	}
	if m.inFX[id] < 0 {
		return false
	}
	fx, err := parseFX(m.gs[m.inFX[id]].text)
	return err == nil && len(m.outs[fx.name]) > 0 && (x < 0 || !slices.Contains(m.outs[fx.name], x))
}

// unclaimed takes the values out of those that a call reads which stand for its operands by names that the
// file lacks, and the mask of an attention.
func (m *metaLift) unclaimed(fx *fxCall, gr *group, ext []graph.ValueID) []graph.ValueID {
	gone := map[graph.ValueID]bool{}
	for _, ref := range m.refs {
		if id, ok := m.claims[ref]; ok {
			gone[id] = true
		}
	}
	if fx.target == "aten.scaled_dot_product_attention.default" && len(fx.args) > 3 && fx.args[3].kind == graph.ArgValue {
		c := &slotCall{metaLift: m, fx: fx, gr: gr}
		e := c.operand(&slot{nodes: []string{"Add"}, input: -1})
		if e < 0 {
			e = c.operand(&slot{nodes: []string{"Where"}, input: -1})
		}
		if e < 0 {
			m.computedMask(fx, gr, ext)
		}
		if e >= 0 && m.opt.stored[m.src.Values[e].Name] == nil {
			gone[e] = true
			ref := fx.args[3].ref
			if slices.Contains(m.absent(fx, ext), ref) || m.src.Values[e].Name == ref {
				var id graph.ValueID
				if baseName(ref) == "expand" {
					id = m.maskOf(ref, e)
				} else {
					id = m.constantOf(ref, e)
				}
				m.outs[ref], m.claims[ref] = []graph.ValueID{id}, e
			}
		}
	}
	for _, ref := range m.refs {
		if id, ok := m.claims[ref]; ok {
			gone[id] = true
		}
	}
	return slices.DeleteFunc(ext, func(id graph.ValueID) bool { return gone[id] })
}

// computedMask finds the mask of an attention that a call made which the file lacks.
func (m *metaLift) computedMask(fx *fxCall, gr *group, ext []graph.ValueID) {
	ref := fx.args[3].ref
	if !slices.Contains(m.absent(fx, ext), ref) {
		return
	}
	_, made := m.candidates(ext)
	for _, i := range gr.nodes {
		n := &m.src.Nodes[i]
		at := slices.Index([]string{"Where", "Add"}, n.Op) // which of its inputs
		if at < 0 || input(n, at) < 0 || !slices.Contains(made, n.Inputs[at]) {
			continue
		}
		e := n.Inputs[at]
		m.claims[ref] = e
		m.outs[ref] = []graph.ValueID{m.remade(ref, e)}
		return
	}
}

// maskOf makes a mask that the optimizer computed: of truth values, of which the exporter makes the numbers
// that are added, and one for all samples.
func (m *metaLift) maskOf(ref string, e graph.ValueID) graph.ValueID {
	dims, ok := m.src.Values[e].Type.Shape.Static()
	if !ok {
		return m.value(e)
	}
	one := slices.Clone(dims)
	if len(one) > 0 {
		one[0] = 1
	}
	name := ref
	if baseName(ref) == "expand" {
		name += "/mask"
	}
	id := m.again(graph.Node{Name: name, Op: "full.default", Args: []graph.Arg{argInts(one...), argBool(true)}}, e)
	m.typed(id, graph.Bool, one)
	if name != ref {
		id = m.again(graph.Node{Name: ref, Op: "expand.default", Args: []graph.Arg{argOf(id), argInts(dims...)}}, e)
		m.typed(id, graph.Bool, dims)
	}
	m.l.masks[id] = true
	return id
}

// typed sets the type of a value that the file does not have.
func (m *metaLift) typed(id graph.ValueID, elem graph.DType, dims []int64) {
	v := &m.l.Graph.Values[id]
	v.Type = shaped(graph.Type{Elem: elem}, dims...)
	v.Decl, m.l.from[id] = v.Type, graph.NoValue
}

// parted makes the call of a Split that the optimizer wrote without metadata in place of a sequence,
// under the name that its results have: split_split_0.
func (m *metaLift) parted(n *graph.Node) bool {
	if n.Op != "Split" || len(n.Outputs) == 0 || n.Outputs[0] < 0 || input(n, 0) < 0 {
		return false
	}
	name, _, ok := strings.Cut(m.src.Values[n.Outputs[0]].Name, "_split_")
	shape := m.src.Values[n.Outputs[0]].Type.Shape
	axis := int(attrInt(n, "axis", 0))
	if axis < 0 {
		axis += len(shape)
	}
	if !ok || axis < 0 || axis >= len(shape) {
		return false
	}
	size, ok := shape[axis].Int()
	if !ok {
		return false
	}
	c := graph.Node{Name: name, Op: "split.Tensor", Args: []graph.Arg{argOf(m.value(n.Inputs[0])), argInt(size), argInt(int64(axis))}, Meta: m.meta}
	var class string
	if i, ok := m.opt.reader[n.Outputs[0]]; ok { // in the module of the call that reads it
		c.Module, class = owner(&m.src.Nodes[i])
		c.Meta = m.src.Nodes[i].Meta
	}
	for _, o := range n.Outputs {
		c.Outputs = append(c.Outputs, m.value(o))
	}
	m.calls[name] = m.call(c, class).ID
	m.outs[name] = c.Outputs
	return true
}

// remade makes a call that the file lacks on what is left of its operands.
func (m *metaLift) remade(ref string, from graph.ValueID) graph.ValueID {
	x, base := m.value(from), baseName(ref)
	v := &m.l.Graph.Values[x]
	switch {
	case slices.Contains(copies, base) && !m.strided(x) && opOf(m.target) != "scaled_dot_product_attention":
		m.idle(ref, from)
		return m.again(graph.Node{Name: ref, Op: "identity.default", Args: []graph.Arg{argOf(x)}}, from) // of a Dropout: p is 0
	case slices.Contains(copies, base):
		return m.again(graph.Node{Name: ref, Op: "clone.default", Args: []graph.Arg{argOf(x), named("memory_format", argStr("torch.contiguous_format"))}}, from)
	case reshapes(base) && reshapes(opOf(m.target)): // of two in a row the second alone shows
		if m.strided(x) {
			return m.again(graph.Node{Name: ref, Op: "clone.default", Args: []graph.Arg{argOf(x), named("memory_format", argStr("torch.contiguous_format"))}}, from)
		}
	case reshapes(base):
		if id, ok := m.reshaped(ref, base, from); ok {
			return id
		}
	case base == "pad" || base == "constant_pad_nd":
		if id, ok := m.padded(ref, from); ok {
			return id
		}
	case numeric(base):
		return m.again(graph.Node{Name: ref, Op: base + ".Tensor", Args: []graph.Arg{argOf(x), argFloat(1)}}, from) // by 1, or 0
	case base == "permute" || base == "transpose":
		if id, ok := m.permuted(ref, from); ok {
			return id
		}
	case base == "unsqueeze":
		if id, ok := m.unsqueezed(ref, from); ok {
			return id
		}
	case v.Def >= 0 && baseName(m.l.Graph.Nodes[v.Def].Name) == base:
		return m.twice(ref, m.l.Graph.Nodes[v.Def], from)
	}
	return x
}

// idle records a copy that a Dropout made that drops nothing, unless those of the model's library seldom drop.
func (m *metaLift) idle(ref string, from graph.ValueID) {
	for _, p := range m.meta {
		if classes := pyList(p.Value); p.Key == keyClasses && (len(classes) == 0 || seldomDrops(classes[:len(classes)-1])) {
			return
		}
	}
	m.l.copies = append(m.l.copies, copied{ref, from})
}

// A copied is a copy that an optimised file lacks, by its name, of a value of the file.
type copied struct {
	name string
	of   graph.ValueID
}

// opOf returns the operator of a target, without namespace and overload.
func opOf(target string) string {
	op, _, _ := strings.Cut(strings.TrimPrefix(target, "aten."), ".")
	return op
}

// strided reports whether a value is a view whose elements lie in another order than its dims say, as
// far as the calls tell that made it.
func (m *metaLift) strided(id graph.ValueID) bool {
	for range maxScopes {
		v := &m.l.Graph.Values[id]
		if v.Def < 0 || v.Kind != graph.Computed {
			return false
		}
		n := &m.l.Graph.Nodes[v.Def]
		switch op := opName(n); {
		case slices.Contains([]string{"transpose", "permute", "expand", "t"}, op):
			return true
		case op != "view" && op != "unsqueeze" && op != "squeeze" && op != "alias" || n.Args[0].Kind != graph.ArgValue:
			return false
		}
		id = n.Args[0].Value
	}
	return false
}

// twice makes a call again that the model makes twice with equal operands. Where these are parameters of a module,
// those of the second are ones of a module beside it that no other call reads.
func (m *metaLift) twice(ref string, n graph.Node, from graph.ValueID) graph.ValueID {
	n.Name, n.Args = ref, slices.Clone(n.Args)
	for i := range n.Args {
		a := &n.Args[i]
		if a.Kind != graph.ArgValue || a.Value < 0 || m.l.Roles[a.Value] != Parameter {
			continue
		}
		v := m.l.Graph.Values[a.Value]
		dims, ok := v.Type.Shape.Static()
		if s := m.opt.beside(v.Name); s != nil && ok {
			m.show(s, v.Type.Elem, dims...)
			a.Value = s.value
			n.Module = parentModule(s.target)
			n.Meta = inModule(n.Meta, n.Module)
		}
	}
	return m.again(n, from)
}

// beside returns an unread parameter of the same name in a module beside a parameter's.
func (o *optimized) beside(name string) *state {
	for _, s := range open(o.under, parentModule(parentModule(name))) {
		if s.role == Parameter && strings.TrimPrefix(s.target, parentModule(s.target)) == strings.TrimPrefix(name, parentModule(name)) && parentModule(s.target) != "" {
			return s
		}
	}
	for _, s := range open(o.within, parentModule(name)) { // of the same module, where each has a name of its own
		if tail := strings.TrimPrefix(name, parentModule(name)); s.role == Parameter && tail != ".weight" && tail != ".bias" {
			return s
		}
	}
	return nil
}

// readBy reports whether a node of the call that is lifted reads a value by an operator.
func (m *metaLift) readBy(id graph.ValueID, op string) bool {
	return slices.ContainsFunc(m.nodes, func(i int32) bool {
		return m.src.Nodes[i].Op == op && input(&m.src.Nodes[i], 0) == id
	})
}

// again appends a call that makes a value of a source value's type, in the module of the call being
// lifted unless it has its own.
func (m *metaLift) again(n graph.Node, like graph.ValueID) graph.ValueID {
	out := m.fresh(n.Name, m.src.Values[like].Type)
	m.l.from[out] = like
	class := m.class
	if n.Meta == nil {
		n.Module, n.Meta = m.module, m.meta
	} else {
		_, class = owner(&n)
	}
	n.Outputs = []graph.ValueID{out}
	m.calls[n.Name] = m.call(n, class).ID
	return out
}

// reshaped makes a reshape that was joined with the next, to the shape of the nearest other call of
// its name that has room for as many elements, after a copy if that has one.
func (m *metaLift) reshaped(ref, base string, from graph.ValueID) (graph.ValueID, bool) {
	total := m.src.Values[from].Type.Bytes()
	joined := m.readBy(from, "Reshape")
	for _, other := range m.opt.near(ref, base, m.refs) {
		fx, err := parseFX(other.text)
		if err == nil && !joined && !slices.Contains(m.refs, fx.name) {
			continue
		}
		if err != nil || len(fx.args) < 2 || fx.args[1].kind != graph.ArgList {
			continue
		}
		last := &m.src.Nodes[other.nodes[len(other.nodes)-1]]
		if len(last.Outputs) == 0 || last.Outputs[0] < 0 {
			continue
		}
		like := last.Outputs[0]
		if !m.src.Values[like].Type.Bytes().Equal(total) {
			continue
		}
		size, err := m.args(fx.args[1:2], nil)
		if err != nil {
			return graph.NoValue, false
		}
		x := m.value(from)
		if fx.args[0].kind == graph.ArgValue && slices.Contains(copies, baseName(fx.args[0].ref)) {
			x = m.again(graph.Node{Name: ref + "/clone", Op: "clone.default", Args: []graph.Arg{argOf(x), named("memory_format", argStr("torch.contiguous_format"))}}, from)
		}
		return m.again(graph.Node{Name: ref, Op: base + ".default", Args: []graph.Arg{argOf(x), size[0]}}, like), true
	}
	return graph.NoValue, false
}

// unsqueezed makes an unsqueeze that was joined with the next: the axis that this does not name.
func (m *metaLift) unsqueezed(ref string, from graph.ValueID) (graph.ValueID, bool) {
	for _, i := range m.nodes {
		n := &m.src.Nodes[i]
		if n.Op != "Unsqueeze" || input(n, 0) != from || input(n, 1) < 0 || !m.src.Values[n.Inputs[1]].Const.Known() {
			continue
		}
		axes := slices.Clone(m.src.Values[n.Inputs[1]].Const.Ints)
		if len(axes) != 2 || len(m.given) < 2 || m.given[1].kind != graph.ArgInt {
			return graph.NoValue, false
		}
		rank, last := int64(len(m.src.Values[from].Type.Shape)+2), m.given[1].i
		for _, x := range []*int64{&axes[0], &axes[1], &last} {
			if *x < 0 {
				*x += rank
			}
		}
		axis := axes[0]
		if axis == last {
			axis = axes[1]
		}
		if axis > last {
			axis--
		}
		if axis < 0 || axis >= rank {
			return graph.NoValue, false
		}
		id := m.again(graph.Node{Name: ref, Op: "unsqueeze.default", Args: []graph.Arg{argOf(m.value(from)), argInt(axis)}}, from)
		m.formed(id, func(v *graph.Value) {
			v.Type.Shape = slices.Insert(slices.Clone(v.Type.Shape), int(axis), graph.Int(1))
		})
		return id, true
	}
	return graph.NoValue, false
}

// formed sets how the shape of a value follows from that of the file's value that it is made of.
func (m *metaLift) formed(id graph.ValueID, form func(v *graph.Value)) {
	m.l.forms[id] = form
	form(&m.l.Graph.Values[id])
}

// permuted makes a permutation that was joined with the next.
func (m *metaLift) permuted(ref string, from graph.ValueID) (graph.ValueID, bool) {
	rank := len(m.src.Values[from].Type.Shape)
	for _, i := range m.nodes {
		n := &m.src.Nodes[i]
		both := attrInts(n, "perm", nil)
		if n.Op != "Transpose" || input(n, 0) != from || len(both) != rank || slices.ContainsFunc(both, func(d int64) bool { return d < 0 || d >= int64(rank) }) || len(m.given) < 2 {
			continue
		}
		then := make([]int64, rank)
		for k := range then {
			then[k] = int64(k)
		}
		var dims []int64
		for _, a := range slices.Concat(m.given[1].list, m.given[1:]) {
			if a.kind == graph.ArgInt {
				d := a.i
				if d < 0 {
					d += int64(rank)
				}
				if d < 0 || d >= int64(rank) {
					return graph.NoValue, false
				}
				dims = append(dims, d)
			}
		}
		switch {
		case len(dims) == rank && len(m.given[1].list) == rank:
			copy(then, dims)
		case len(dims) == 2:
			then[dims[0]], then[dims[1]] = dims[1], dims[0]
		default:
			return graph.NoValue, false
		}
		first := make([]int64, rank)
		for k, d := range then {
			first[d] = both[k]
		}
		id := m.again(graph.Node{Name: ref, Op: "permute.default", Args: []graph.Arg{argOf(m.value(from)), argInts(first...)}}, from)
		m.formed(id, func(v *graph.Value) {
			shape := slices.Clone(v.Type.Shape)
			for k, d := range first {
				if len(v.Type.Shape) == rank {
					shape[k] = v.Type.Shape[d]
				}
			}
			v.Type.Shape = shape
		})
		return id, true
	}
	return graph.NoValue, false
}

// padded makes the padding that was joined with a convolution.
func (m *metaLift) padded(ref string, from graph.ValueID) (graph.ValueID, bool) {
	n := &m.src.Nodes[m.nodes[len(m.nodes)-1]]
	pads := attrInts(n, "pads", nil)
	k := len(pads) / 2
	if n.Op != "Conv" || k == 0 {
		return graph.NoValue, false
	}
	var more []int64
	for i := k - 1; i >= 0; i-- {
		own := int64(0)
		if len(m.given) > 4 && len(m.given[4].list) == k {
			own = m.given[4].list[i].i
		}
		more = append(more, pads[i]-own, pads[k+i]-own)
	}
	id := m.again(graph.Node{Name: ref, Op: "constant_pad_nd.default", Args: []graph.Arg{argOf(m.value(from)), argInts(more...), argFloat(0)}}, from)
	m.formed(id, func(v *graph.Value) {
		shape := slices.Clone(v.Type.Shape)
		for i := range k {
			if at := len(shape) - 1 - i; at >= 0 {
				shape[at] = shape[at].Add(graph.Int(more[2*i] + more[2*i+1]))
			}
		}
		v.Type.Shape = shape
	})
	return id, true
}

// near returns the groups of calls of a name: those among refs, and then the others, the nearest number first.
func (o *optimized) near(ref, base string, refs []string) (out []*group) {
	of := func(name string) int {
		if _, tail, ok := strings.Cut(strings.TrimPrefix(name, base), "_"); ok && digits(tail) {
			return atoi(tail)
		}
		return 0
	}
	names := o.bases[base]
	at := of(ref)
	if len(names) > 1<<12 { // too many to look for the nearest each time
		return nil
	}
	names = slices.Clone(names)
	slices.SortFunc(names, func(a, b string) int {
		x, y := max(of(a)-at, at-of(a)), max(of(b)-at, at-of(b))
		if x != y {
			return x - y
		}
		return of(b) - of(a) // the next before the last
	})
	beside := func(name string) bool { return slices.Contains(refs, name) }
	for _, name := range slices.Concat(slices.DeleteFunc(slices.Clone(names), func(s string) bool { return !beside(s) }), slices.DeleteFunc(names, beside)) {
		if out = append(out, o.groups[name]); len(out) == 8 {
			break
		}
	}
	return out
}
