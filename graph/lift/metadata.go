package lift

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph"
)

// A group is the ONNX nodes that one FX node became.
type group struct {
	text  string
	nodes []int32
}

// groups collects the nodes of each FX node, ordered by their first.
func groups(g *graph.Graph) []group {
	var out []group
	at := map[string]int{}
	for i := range g.Nodes {
		fx := g.Nodes[i].MetaValue(keyFX)
		key := fx
		if fx == "" {
			key = fmt.Sprint("\x00", i) // a group of its own
		}
		j, ok := at[key]
		if !ok {
			j = len(out)
			at[key] = j
			out = append(out, group{text: fx})
		}
		out[j].nodes = append(out[j].nodes, int32(i))
	}
	return out
}

// metaLift is the state of a lift by metadata.
type metaLift struct {
	*builder
	outs   map[string][]graph.ValueID // outputs of each FX call, by its name
	calls  map[string]int32           // node of each FX call
	places map[string]graph.ValueID   // values of placeholders: parameters, buffers, inputs
	inFX   []int32                    // group that defines each source value, or -1

	opt      *optimized // nil for files that were not optimised
	gs       []group
	filledBy map[graph.ValueID]graph.ValueID // what a constant is first taken for
	hidden   map[graph.ValueID]bool          // shapes and axes that the exporter adds to calls
	missed   []string                        // calls that the file lacks, among the operands of the one that is lifted
	module   string                          // of the call that is lifted, with its class and metadata
	class    string
	meta     []graph.Prop
	nodes    []int32
	claims   map[string]graph.ValueID // what stands for the operands that calls made which the file lacks
	target   string
	given    []fxArg
	refs     []string
	ext      []graph.ValueID // what they read from other calls
}

// liftMetadata rebuilds the exporter's FX graph.
func liftMetadata(g *graph.Graph) (*Lifted, error) {
	m := &metaLift{builder: emptyBuilder(g, Metadata), outs: map[string][]graph.ValueID{}, calls: map[string]int32{}, places: placeholders(g)}
	m.l.forms = map[graph.ValueID]func(*graph.Value){}
	m.l.turned, m.l.sizes, m.l.masks = map[graph.ValueID]bool{}, map[graph.ValueID]bool{}, map[graph.ValueID]bool{}
	gs := groups(g)
	m.gs = gs
	if m.opt = m.optimised(gs); m.opt != nil {
		m.hidden, m.claims, m.filledBy = parts(g), map[string]graph.ValueID{}, map[graph.ValueID]graph.ValueID{}
		for ref, id := range m.places { // names of constants are no placeholders
			if v := &g.Values[id]; v.Kind == graph.Initializer && m.opt.stored[v.Name] == nil {
				delete(m.places, ref)
			}
		}
		m.reserve()
	} else {
		m.initializers() // in the file's order, which is the model's
	}
	m.inFX = make([]int32, len(g.Values))
	for i := range m.inFX {
		m.inFX[i] = -1
	}
	for gi, gr := range gs {
		for _, ni := range gr.nodes {
			for _, o := range g.Nodes[ni].Outputs {
				if o >= 0 {
					m.inFX[o] = int32(gi)
				}
			}
		}
	}
	for gi := range gs {
		if err := m.group(gi, &gs[gi]); err != nil {
			return nil, err
		}
	}
	m.tied()
	if m.opt != nil {
		m.warnOptimised()
	}
	return m.finish()
}

// tied removes the second names of shared parameters from the stored values: exporters
// up to PyTorch 2.6 list all names and read only one. The module of such a name reads
// a parameter of the same dims under another name.
func (m *metaLift) tied() {
	read := make([]bool, len(m.l.Graph.Values))
	shared := map[string]string{} // dims of a parameter that a module reads under another module's name
	for i := range m.l.Graph.Nodes {
		n := &m.l.Graph.Nodes[i]
		for _, id := range n.Inputs {
			v := &m.l.Graph.Values[id]
			if read[id] = true; m.l.Roles[id] == Parameter && n.Module != "" && !strings.HasPrefix(v.Name, n.Module+".") {
				shared[n.Module] = fmt.Sprint(v.Type.Shape)
			}
		}
	}
	dims := slices.Collect(maps.Values(shared))
	for i := range m.l.Graph.Values {
		v := &m.l.Graph.Values[i]
		if v.Kind == graph.Initializer && !read[i] && stateName(v.Name) && v.Type.Elem.IsFloat() && len(v.Type.Shape) > 1 && slices.Contains(dims, fmt.Sprint(v.Type.Shape)) {
			m.l.Roles[i] = Constant
		}
	}
}

// placeholders maps the FX names of parameters (p_), buffers (b_), lifted
// constants (c_) and inputs to values. FX lower-cases and joins by "_".
func placeholders(g *graph.Graph) map[string]graph.ValueID {
	m := make(map[string]graph.ValueID, 5*countNamed(g))
	for i := range g.Values {
		v := &g.Values[i]
		if v.Kind != graph.Initializer && v.Kind != graph.Input {
			continue
		}
		for _, p := range v.Meta {
			if p.Key == keyOrigin {
				m[p.Value] = v.ID
			}
		}
		s := strings.ToLower(underscored.Replace(v.Name))
		for _, pre := range []string{"p_", "b_", "c_", ""} {
			if _, ok := m[pre+s]; !ok {
				m[pre+s] = v.ID
			}
		}
	}
	return m
}

// underscored makes a name in Python of one in the file.
var underscored = strings.NewReplacer(".", "_", "-", "_")

// countNamed counts the values that placeholders finds.
func countNamed(g *graph.Graph) int {
	n := 0
	for i := range g.Values {
		if k := g.Values[i].Kind; k == graph.Initializer || k == graph.Input {
			n++
		}
	}
	return n
}

// group lifts one FX node. Nodes without an FX node are folded constants (kept
// only through the values they define) or stay ONNX operators.
func (m *metaLift) group(gi int, gr *group) error {
	last := &m.src.Nodes[gr.nodes[len(gr.nodes)-1]]
	if gr.text == "" {
		if m.opt != nil && m.parted(last) {
			return nil
		}
		return m.unlifted(last)
	}
	fx, err := parseFX(gr.text)
	if err != nil {
		return fmt.Errorf("node %q: %w", last.Name, err)
	}
	if m.skip(fx, last) {
		return nil
	}
	if fx.target == "operator.getitem" && len(fx.args) == 2 {
		m.getitem(fx, last)
		return nil
	}
	ext := m.externals(gi, gr)
	m.module, m.class = owner(last)
	m.meta = last.Meta
	m.missed, m.nodes = nil, gr.nodes
	if m.opt != nil && m.result() >= 0 {
		m.nodes, m.ext = gr.nodes, slices.Clone(ext)
		m.target, m.given, m.refs = fx.target, fx.args, references(fx.args, nil)
		m.beforeNorm(fx, gr)
		ext = m.recurrent(fx, gr, m.shown(fx, gr, ext))
		ext = m.unclaimed(fx, gr, ext)
		if m.missed = m.absent(fx, ext); strings.HasPrefix(fx.target, "aten.index.") && len(m.missed) > 0 && m.indices(gr) {
			m.missed = nil
		}
	}
	args, err := m.args(fx.args, m.unnamed(fx.args, ext))
	if err != nil {
		if m.folded(gi, gr) {
			return nil
		}
		return fmt.Errorf("node %q: %w", last.Name, err)
	}
	ns, op, _ := strings.Cut(fx.target, ".")
	if ns != "aten" && ns != "prims" {
		op = fx.target
	}
	n := graph.Node{Name: fx.name, Op: op, Args: args, Outputs: m.outputs(fx.name, gr), Meta: last.Meta}
	var class string
	n.Module, class = owner(last)
	m.turned(&n, gr)
	m.calls[fx.name] = m.call(n, class).ID
	m.outs[fx.name] = n.Outputs
	return nil
}

// turned gives the weight of a linear call its shape [out, in] where the exporter's optimizer stored it
// transposed, [in, out], as the operand of a MatMul. Such a matrix has lost its name: it gets that of
// its module's weight.
func (m *metaLift) turned(n *graph.Node, gr *group) {
	if n.Op != "linear.default" || len(n.Args) < 2 || n.Args[1].Kind != graph.ArgValue {
		return
	}
	w := n.Args[1].Value
	for _, i := range gr.nodes { // a second copy of a shared weight is not the model's
		if x := &m.src.Nodes[i]; x.Op == "MatMul" && len(x.Inputs) == 2 && x.Inputs[1] >= 0 && m.src.Values[x.Inputs[1]].Kind == graph.Initializer && m.to[x.Inputs[1]] != w && !stateName(m.src.Values[x.Inputs[1]].Name) {
			m.l.Roles[m.value(x.Inputs[1])] = Constant
		}
	}
	v := &m.l.Graph.Values[w]
	dims, ok := v.Type.Shape.Static()
	if v.Kind != graph.Initializer || !ok || len(dims) != 2 || !slices.ContainsFunc(gr.nodes, func(i int32) bool {
		x := &m.src.Nodes[i]
		return x.Op == "MatMul" && len(x.Inputs) == 2 && x.Inputs[1] >= 0 && x.Inputs[1] == m.l.from[w]
	}) || m.l.turned[w] {
		return
	}
	m.l.turned[w] = true
	turn(v)
	if name := n.Module + ".weight"; n.Module != "" && !stateName(v.Name) && !slices.ContainsFunc(m.src.Values, func(x graph.Value) bool { return x.Name == name }) {
		v.Name = name
	}
}

// turn transposes a stored matrix.
func turn(v *graph.Value) {
	dims, ok := v.Type.Shape.Static()
	if !ok || len(dims) != 2 {
		return
	}
	v.Type = shaped(v.Type, dims[1], dims[0])
	if c := v.Const; c != nil {
		v.Const = &graph.Constant{Name: c.Name, Type: c.Type, Dims: []int64{dims[1], dims[0]}, Ref: c.Ref}
	}
}

// skip reports whether a call computes sizes on the CPU: their values are known
// once dims are bound.
func (m *metaLift) skip(fx *fxCall, last *graph.Node) bool {
	host := fx.target == "aten.sym_size.int" || strings.HasPrefix(fx.target, "operator.") && fx.target != "operator.getitem" ||
		strings.HasPrefix(fx.target, "math.") || strings.HasPrefix(fx.target, "torch.sym_")
	if !host {
		return false
	}
	for _, o := range last.Outputs {
		if o >= 0 {
			m.outs[fx.name] = []graph.ValueID{m.value(o)}
			m.l.sizes[m.value(o)] = true
		}
	}
	return true
}

// folded reports whether only constants are left of a call, and makes its
// results constants of the lifted graph: a counter, a size.
func (m *metaLift) folded(gi int, gr *group) bool {
	read := map[graph.ValueID]bool{}
	for i := range m.src.Nodes {
		for _, id := range m.src.Nodes[i].Inputs {
			if id >= 0 && m.inFX[id] == int32(gi) && !slices.Contains(gr.nodes, int32(i)) {
				read[id] = true
			}
		}
	}
	for _, id := range m.src.Outputs {
		read[id] = id >= 0 && m.inFX[id] == int32(gi)
	}
	for id, ok := range read {
		if ok && m.src.Values[id].Const == nil {
			return false
		}
	}
	return true
}

// outputs maps the results of a call: the outputs of its node, or of nodes
// named after one result each ("node_unbind__1"). A sequence output
// (SplitToSequence) stands for one value for each element, made on demand.
func (m *metaLift) outputs(name string, gr *group) []graph.ValueID {
	if outs := m.numbered("node_"+name+"__", gr); outs != nil {
		return outs
	}
	last := m.maker("node_"+name, gr)
	var outs []graph.ValueID
	for _, o := range last.Outputs {
		if o < 0 {
			outs = append(outs, graph.NoValue)
			continue
		}
		v := &m.src.Values[o]
		if v.Type.Kind != graph.SequenceType && last.Op != "SplitToSequence" {
			outs = append(outs, m.value(o))
			continue
		}
		n, _ := v.Type.Len.Int()
		for i := range min(n, 1<<16) {
			outs = append(outs, m.item(v, i))
		}
	}
	return outs
}

// maker returns the node of a group that makes the call's results: the one
// named after the call, or the last that computes anything.
func (m *metaLift) maker(name string, gr *group) *graph.Node {
	last := &m.src.Nodes[gr.nodes[len(gr.nodes)-1]]
	for i := len(gr.nodes) - 1; i >= 0; i-- {
		n := &m.src.Nodes[gr.nodes[i]]
		if tail, ok := strings.CutPrefix(n.Name, name); ok && (tail == "" || strings.HasPrefix(tail, "__")) {
			return n
		}
		if last.Op == "Constant" && n.Op != "Constant" {
			last = n
		}
	}
	return last
}

// numbered maps the results of a call that two or more nodes of its group make.
func (m *metaLift) numbered(prefix string, gr *group) []graph.ValueID {
	var outs []graph.ValueID
	makers := 0
	for _, ni := range gr.nodes {
		n := &m.src.Nodes[ni]
		tail, ok := strings.CutPrefix(n.Name, prefix)
		i, err := strconv.Atoi(tail)
		if !ok || err != nil || i < 0 || i >= 1<<16 || len(n.Outputs) == 0 || n.Outputs[0] < 0 {
			continue
		}
		makers++
		for len(outs) <= i {
			outs = append(outs, graph.NoValue)
		}
		outs[i] = m.value(n.Outputs[0])
	}
	if makers < 2 {
		return nil
	}
	return outs
}

// item makes the value of a sequence's element.
func (m *metaLift) item(v *graph.Value, i int64) graph.ValueID {
	t := graph.Type{Kind: graph.TensorType, Elem: v.Type.Elem}
	if v.Type.Of != nil {
		t.Elem = v.Type.Of.Elem
	}
	return m.fresh(fmt.Sprintf("%s.%d", v.Name, i), t)
}

// getitem names an output of an earlier call; its type is that of the ONNX
// value for the item.
func (m *metaLift) getitem(fx *fxCall, last *graph.Node) {
	src := fx.args[0].ref
	i := int(fx.args[1].i)
	ni, ok := m.calls[src]
	if !ok || i < 0 || i >= 1<<16 {
		return
	}
	o := last.Outputs[0]
	for len(m.outs[src]) <= i && o >= 0 { // a sequence whose length inference does not know
		id := m.item(&m.src.Values[o], int64(len(m.outs[src])))
		m.l.Graph.Values[id].Def, m.l.Graph.Values[id].Kind = ni, graph.Computed
		m.outs[src] = append(m.outs[src], id)
		m.l.Graph.Nodes[ni].Outputs = m.outs[src]
	}
	outs := m.outs[src]
	if o >= 0 {
		v := &m.l.Graph.Values[outs[i]]
		v.Type = m.src.Values[o].Type
		m.l.from[outs[i]] = o
		m.to[o] = outs[i]
	}
	m.outs[fx.name] = []graph.ValueID{outs[i]}
}

// externals lists the values that a group reads from outside it, in order.
func (m *metaLift) externals(gi int, gr *group) []graph.ValueID {
	var out []graph.ValueID
	for _, ni := range gr.nodes {
		for _, id := range m.src.Nodes[ni].Inputs {
			if id >= 0 && m.inFX[id] != int32(gi) {
				out = append(out, id)
			}
		}
	}
	return out
}

// unnamed drops from the values that a group reads those that references of its
// call name. If an optimizer removed a node, such as a slice of everything, its
// reference names nothing; the value that is left is its operand.
func (m *metaLift) unnamed(args []fxArg, ext []graph.ValueID) []graph.ValueID {
	named := map[graph.ValueID]bool{}
	var walk func([]fxArg)
	walk = func(args []fxArg) {
		for _, a := range args {
			walk(a.list)
			if a.kind != graph.ArgValue {
				continue
			}
			if id, ok := m.places[a.ref]; ok {
				named[id] = true
			}
			if outs := m.outs[a.ref]; len(outs) > 0 && outs[0] >= 0 && m.l.from[outs[0]] >= 0 {
				named[m.l.from[outs[0]]] = true
			}
		}
	}
	walk(args)
	return slices.DeleteFunc(ext, func(id graph.ValueID) bool { return named[id] })
}

// args resolves the references of a call.
func (m *metaLift) args(in []fxArg, ext []graph.ValueID) ([]graph.Arg, error) {
	out := make([]graph.Arg, len(in))
	for i, a := range in {
		out[i] = graph.Arg{Name: a.name, Kind: a.kind, Int: a.i, Float: a.f, Str: a.s}
		switch a.kind {
		case graph.ArgList:
			l, err := m.args(a.list, ext)
			if err != nil {
				return nil, err
			}
			out[i].List = l
		case graph.ArgValue:
			id, ok := m.resolve(a.ref, ext)
			if !ok {
				return nil, fmt.Errorf("argument %%%s names nothing in the graph", a.ref)
			}
			if v := &m.l.Graph.Values[id]; m.opt != nil && v.Kind == graph.Initializer && m.l.Roles[id] == Constant && len(v.Type.Shape) == 0 && v.Type.Shape != nil && v.Type.Elem.IsFloat() && v.Const.Known() && len(v.Const.Floats) == 1 {
				out[i].Kind, out[i].Float = graph.ArgFloat, v.Const.Floats[0] // a number that was made a tensor for ONNX
				continue
			}
			out[i].Value = id
		}
	}
	return out, nil
}

// resolve returns the value of an FX reference: a call's first output, a value
// of that name (an item of a call with several outputs), a placeholder, or else
// the only external value of the group that no other reference names,
// preferably a stored one.
func (m *metaLift) resolve(ref string, ext []graph.ValueID) (graph.ValueID, bool) {
	if outs := m.outs[ref]; len(outs) > 0 && outs[0] >= 0 {
		return outs[0], true
	}
	if m.opt != nil {
		if s := m.opt.by[ref]; s != nil && s.found {
			m.l.Roles[s.value] = s.role
			return s.value, true
		}
	}
	if id, ok := m.places[ref]; ok {
		return m.placed(ref, id), true
	}
	for _, id := range ext {
		if m.src.Values[id].Name == ref {
			if m.opt != nil && m.src.Values[id].Kind == graph.Initializer {
				m.outs[ref], m.claims[ref] = []graph.ValueID{m.constantOf(ref, id)}, id
				return m.outs[ref][0], true
			}
			return m.value(id), true
		}
	}
	if m.opt != nil && m.opt.by[ref] == nil {
		return m.gone(ref, ext)
	}
	var left, made []graph.ValueID
	for _, id := range ext {
		v := &m.src.Values[id]
		if outs, named := m.outs[v.Name]; !named && (v.Kind == graph.Input || v.Kind == graph.Initializer) {
			left = append(left, id)
		} else if len(outs) > 0 && outs[0] == m.to[id] && !slices.Contains(made, id) {
			made = append(made, id)
		}
	}
	switch {
	case len(left) == 1:
		if strings.HasPrefix(ref, "p_") { // another call may read another copy of it
			m.places[ref] = left[0]
		}
		return m.placed(ref, left[0]), true
	case len(left) == 0 && len(made) == 1:
		return m.value(made[0]), true
	}
	return graph.NoValue, false
}

// placed returns a placeholder's value and records the role that its FX name
// shows.
func (m *metaLift) placed(ref string, id graph.ValueID) graph.ValueID {
	v := m.value(id)
	switch {
	case strings.HasPrefix(ref, "p_"):
		m.l.Roles[v] = Parameter
	case strings.HasPrefix(ref, "b_"):
		m.l.Roles[v] = Buffer
	case strings.HasPrefix(ref, "c_"):
		m.l.Roles[v] = Constant
	}
	return v
}

// unlifted keeps an ONNX node without metadata unchanged, unless its results
// are known constants.
func (m *metaLift) unlifted(n *graph.Node) error {
	known := true
	for _, o := range n.Outputs {
		if o >= 0 && m.src.Values[o].Const == nil {
			known = false
		}
	}
	if known {
		for _, o := range n.Outputs {
			if o >= 0 {
				m.l.constant(m.value(o))
			}
		}
		return nil
	}
	m.keep(n)
	return nil
}

// keep appends an ONNX node as a call that the operator table does not know.
func (b *builder) keep(n *graph.Node) {
	c := graph.Node{Name: n.Name, Op: "onnx." + n.Op}
	for _, id := range n.Inputs {
		if id >= 0 {
			c.Args = append(c.Args, graph.Arg{Kind: graph.ArgValue, Value: b.value(id)})
		}
	}
	for _, o := range n.Outputs {
		c.Outputs = append(c.Outputs, b.value(o))
	}
	module, class := owner(n)
	c.Module = module
	b.call(c, class)
	for _, u := range b.l.Unlifted {
		if u == n.Op {
			return
		}
	}
	b.l.Unlifted = append(b.l.Unlifted, n.Op)
}

// A Span is a range of calls, both ends included.
type Span struct{ First, Last int }

// A Module is a module of the model and the calls made inside it.
type Module struct {
	Name, Class string
	Calls       []Span // in order, disjoint
}

// Modules lists the modules whose classes the metadata names, in order of their
// first calls.
func (l *Lifted) Modules() []Module {
	var list []Module
	at := map[string]int{}
	var scopes, classes []string
	before := ""
	for i := range l.Graph.Nodes {
		n := &l.Graph.Nodes[i]
		text := n.MetaValue(keyScopes)
		if text != before || i == 0 {
			scopes, classes = pyList(text), pyList(n.MetaValue(keyClasses))
			before = text
		}
		for k := 0; k+1 < len(scopes) && k+1 < len(classes); k++ {
			j, ok := at[scopes[k]]
			if !ok {
				j = len(list)
				at[scopes[k]] = j
				list = append(list, Module{Name: scopes[k], Class: classes[k]})
			}
			if s := list[j].Calls; len(s) > 0 && s[len(s)-1].Last >= i-1 {
				s[len(s)-1].Last = i
			} else {
				list[j].Calls = append(list[j].Calls, Span{i, i})
			}
		}
	}
	return list
}
