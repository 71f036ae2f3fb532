package lift

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
)

// Files that the exporter's optimizer went over (onnxscript.optimizer, torch.onnx.export's
// optimize=True). It computes what depends on stored tensors alone, of up to 8192 elements, stores
// equal tensors of up to 1024 elements once, makes equal calls once, joins reshapes, leaves out copies
// and biases of zeros, and folds batch normalisations into convolutions. The text of each call that is
// left still names all its operands, and the file the parameters of the model: what is missing follows
// from both.

// A state is a tensor of the model as the file's signature names it.
type state struct {
	ref    string // the placeholder in calls: "p_layer_0_weight"
	target string // the model's name: "layer.0.weight"
	role   Role
	value  graph.ValueID // of the lifted graph
	found  bool          // its shape is known
	read   bool          // a call of the file names it
	lost   bool          // what is known of its shape may be a part
}

// An optimized is what a lift by metadata knows of a file that was optimised.
type optimized struct {
	states  []*state
	by      map[string]*state       // by placeholder
	made    []string                // calls whose results are constants of the file, of which nothing tells how they were made
	bytes   int64                   // of these results
	lost    []string                // tensors of the model that they may have been made of, whose shapes the file does not tell
	groups  map[string]*group       // by the name of the call
	stored  map[string]*state       // by the model's name
	within  map[string][]*state     // by module: those that no call names and of unknown shapes
	under   map[string][]*state     // by the module around it
	longest map[string][]int64      // by module: the dims of its longest buffer that is a constant of the file
	bases   map[string][]string     // names of calls without their numbers, with the names
	reader  map[graph.ValueID]int32 // first node with metadata that reads the result of a Split without
}

// signed reads the tensors of the model that the exporter lists.
func signed(g *graph.Graph) (out []*state) {
	roles := map[string]Role{"PARAMETER": Parameter, "BUFFER": Buffer, "CONSTANT_TENSOR": Constant}
	for _, p := range g.Meta {
		if p.Key != keySignature {
			continue
		}
		for line := range strings.Lines(p.Value) {
			ref, rest, ok := strings.Cut(strings.TrimSpace(line), ": ")
			kind, target, is := strings.Cut(rest, " target='")
			target, _, _ = strings.Cut(target, "'")
			if role, known := roles[kind]; ok && is && known && target != "" {
				out = append(out, &state{ref: ref, target: target, role: role, value: graph.NoValue})
			}
		}
	}
	return out
}

// optimised returns what is known of an optimised file, nil for others: a call reads a tensor of
// the model that the file does not store.
func (m *metaLift) optimised(gs []group) *optimized {
	o := &optimized{states: signed(m.src), by: map[string]*state{}, stored: map[string]*state{}, groups: map[string]*group{}}
	stored := map[string]graph.ValueID{}
	for i := range m.src.Values {
		if v := &m.src.Values[i]; v.Kind == graph.Initializer {
			stored[v.Name] = v.ID
		}
	}
	for _, s := range o.states {
		o.by[s.ref], o.stored[s.target] = s, s
		if id, ok := stored[s.target]; ok {
			s.value, s.found = id, true // of the source, until the lift's is made
		}
	}
	lacks := false
	for i := range gs {
		fx, err := parseFX(gs[i].text)
		if err != nil {
			continue
		}
		o.groups[fx.name] = &gs[i]
		for _, ref := range references(fx.args, nil) {
			if s := o.by[ref]; s != nil {
				s.read = true
				lacks = lacks || !s.found
			} else if id, ok := stored[ref]; ok { // a call that was computed
				lacks = lacks || o.stored[m.src.Values[id].Name] == nil
			}
		}
	}
	if !lacks {
		return nil
	}
	o.index(m.src)
	return o
}

// index fills the maps that later stages search.
func (o *optimized) index(g *graph.Graph) {
	o.longest = map[string][]int64{}
	o.within, o.under, o.bases, o.reader = map[string][]*state{}, map[string][]*state{}, map[string][]string{}, map[graph.ValueID]int32{}
	for _, s := range o.states {
		if !s.found && !s.read {
			module := parentModule(s.target)
			o.within[module] = append(o.within[module], s)
			if module != "" {
				o.under[parentModule(module)] = append(o.under[parentModule(module)], s)
			}
		}
	}
	for name := range o.groups {
		o.bases[baseName(name)] = append(o.bases[baseName(name)], name)
	}
	for i := range g.Nodes {
		if g.Nodes[i].MetaValue(keyFX) == "" {
			continue
		}
		for _, id := range g.Nodes[i].Inputs {
			if _, ok := o.reader[id]; !ok && id >= 0 {
				o.reader[id] = int32(i)
			}
		}
	}
}

// open lists the states of an index whose shapes are unknown yet.
func open(index map[string][]*state, module string) []*state {
	index[module] = slices.DeleteFunc(index[module], func(s *state) bool { return s.found })
	return index[module]
}

// references lists the names that arguments refer to, in order.
func references(args []fxArg, out []string) []string {
	for i := range args {
		if args[i].kind == graph.ArgValue {
			out = append(out, args[i].ref)
		}
		out = references(args[i].list, out)
	}
	return out
}

// reserve makes the lifted values of all the model's tensors, in its order; those that the file does
// not store get their shapes from calls.
func (m *metaLift) reserve() {
	named := map[graph.ValueID]bool{}
	for _, s := range m.opt.states {
		if s.found {
			named[s.value] = true
			s.value = m.value(s.value)
		} else {
			s.value = m.fresh(s.target, graph.Type{Kind: graph.TensorType, Elem: graph.Float32, Shape: graph.Shape{graph.Int(0)}})
			v := &m.l.Graph.Values[s.value]
			v.Kind, v.Const = graph.Initializer, &graph.Constant{Name: s.target, Type: graph.Float32, Dims: []int64{0}}
			m.l.Roles[s.value] = Constant // until a call shows it
		}
	}
	m.initializers()
	for i := range m.src.Values {
		if v := &m.src.Values[i]; v.Kind == graph.Initializer && !named[v.ID] {
			m.l.Roles[m.value(v.ID)] = Constant
		}
	}
}

// show gives a tensor of the model its type.
func (m *metaLift) show(s *state, elem graph.DType, dims ...int64) {
	v := &m.l.Graph.Values[s.value]
	v.Type = shaped(graph.Type{Elem: elem}, dims...)
	v.Decl = v.Type
	v.Const = &graph.Constant{Name: s.target, Type: elem, Dims: dims}
	s.found, m.l.Roles[s.value] = true, s.role
}

// A slot is where an operator's argument is in the nodes that the exporter writes for a call, and its
// shape.
type slot struct {
	op    string // of ATen
	arg   int
	nodes []string // ONNX operators that read it
	input int      // which input of theirs; -1: the last that the file stores
	dims  func(c *slotCall) []int64
}

// A slotCall is a call whose stored operand is looked for.
type slotCall struct {
	*metaLift
	fx  *fxCall
	gr  *group
	arg int
	at  *graph.Value // the operand, nil if it is gone
}

// moduleSlots are the operands of single operators that the optimizer renames, merges or leaves out. The order is that of
// torch/onnx/_internal/exporter/_torchlib and onnxscript's function_libs/torch_lib.
var moduleSlots = []slot{
	{"linear", 1, []string{"MatMul"}, 1, (*slotCall).turnedDims},
	{"linear", 1, []string{"Gemm"}, 1, (*slotCall).sameDims},
	{"linear", 2, []string{"Gemm"}, 2, (*slotCall).lastDim},
	{"linear", 2, []string{"Add"}, 1, (*slotCall).lastDim},
	{"addmm", 0, []string{"Gemm"}, 2, (*slotCall).lastDim},
	{"addmm", 0, []string{"Add"}, -1, (*slotCall).lastDim},
	{"addmm", 2, []string{"Gemm", "MatMul"}, 1, (*slotCall).sameDims},
	{"embedding", 0, []string{"Gather"}, 0, (*slotCall).sameDims},
	{"layer_norm", 2, []string{"LayerNormalization"}, 1, (*slotCall).normalDims},
	{"layer_norm", 3, []string{"LayerNormalization"}, 2, (*slotCall).normalDims},
	{"native_layer_norm", 2, []string{"LayerNormalization"}, 1, (*slotCall).normalDims},
	{"native_layer_norm", 3, []string{"LayerNormalization"}, 2, (*slotCall).normalDims},
	{"rms_norm", 2, []string{"RMSNormalization", "Mul"}, 1, (*slotCall).normalDims},
	{"group_norm", 2, []string{"Mul"}, -1, (*slotCall).channels},
	{"group_norm", 3, []string{"Add"}, -1, (*slotCall).channels},
	{"native_group_norm", 1, []string{"Mul"}, -1, (*slotCall).channels},
	{"native_group_norm", 2, []string{"Add"}, -1, (*slotCall).channels},
	{"instance_norm", 1, []string{"InstanceNormalization"}, 1, (*slotCall).channels},
	{"instance_norm", 2, []string{"InstanceNormalization"}, 2, (*slotCall).channels},
}

var slots = func() []slot {
	slots := moduleSlots
	for _, op := range aten.Lookup("convolution").Names {
		slots = append(slots, slot{op, 1, []string{"Conv", "ConvTranspose"}, 1, (*slotCall).sameDims},
			slot{op, 2, []string{"Conv", "ConvTranspose"}, 2, (*slotCall).outChannels})
	}
	for _, op := range aten.Lookup("batch_norm").Names {
		for i := 1; i <= 4; i++ {
			slots = append(slots, slot{op, i, []string{"BatchNormalization"}, i, (*slotCall).channels})
		}
	}
	return slots
}()

// shown finds the tensors of the model that a call reads and the file does not store under their
// names, and returns those of the source that stand for them.
func (m *metaLift) shown(fx *fxCall, gr *group, ext []graph.ValueID) []graph.ValueID {
	op := opOf(fx.target)
	for i := range fx.args {
		s := m.opt.by[fx.args[i].ref]
		if fx.args[i].kind != graph.ArgValue || s == nil {
			continue
		}
		k := slices.IndexFunc(slots, func(x slot) bool {
			return x.op == op && x.arg == i && slices.ContainsFunc(gr.nodes, func(n int32) bool { return slices.Contains(x.nodes, m.src.Nodes[n].Op) })
		})
		if k < 0 {
			if k = slices.IndexFunc(slots, func(x slot) bool { return x.op == op && x.arg == i }); k < 0 {
				continue
			}
		}
		c := &slotCall{metaLift: m, fx: fx, gr: gr, arg: i}
		if id := c.operand(&slots[k]); id >= 0 {
			c.at = &m.src.Values[id]
			if c.at.Name != s.target {
				ext = slices.DeleteFunc(ext, func(x graph.ValueID) bool { return x == id })
			}
		}
		if s.found {
			continue
		}
		if dims := slots[k].dims(c); dims != nil && !slices.ContainsFunc(dims, func(n int64) bool { return n < 0 }) {
			m.show(s, c.elem(), dims...)
		}
	}
	m.remaining(fx, ext)
	return ext
}

// recurrent shows the parameters of a recurrent network, of which the optimizer has joined the matrices, and makes its
// first state.
func (m *metaLift) recurrent(fx *fxCall, gr *group, ext []graph.ValueID) []graph.ValueID {
	op := opOf(fx.target)
	gates := map[string]int64{"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}[op]
	if gates == 0 || len(fx.args) < 8 {
		return ext
	}
	hidden, wide, elem := int64(0), int64(0), graph.Float32
	var zero []int64
	for _, i := range slices.Backward(gr.nodes) { // the first layer last
		n := &m.src.Nodes[i]
		if n.Op != "LSTM" && n.Op != "GRU" && n.Op != "RNN" || input(n, 1) < 0 {
			continue
		}
		hidden, elem = attrInt(n, "hidden_size", 0), m.src.Values[n.Inputs[1]].Type.Elem
		if dims, ok := m.src.Values[n.Inputs[1]].Type.Shape.Static(); ok && len(dims) == 3 {
			wide = dims[2]
		}
		if e := input(n, 5); e >= 0 && m.src.Values[e].Kind == graph.Initializer {
			zero, _ = m.src.Values[e].Type.Shape.Static()
		}
	}
	if hidden < 1 || wide < 1 || hidden >= 1<<31 || wide >= 1<<31 || len(fx.args[2].list) == 0 {
		return ext
	}
	layers, dirs, each := fx.args[4].i, int64(1), 2
	if fx.args[7].i != 0 {
		dirs = 2
	}
	if fx.args[3].i != 0 {
		each = 4
	}
	if int64(len(fx.args[2].list)) != layers*dirs*int64(each) {
		return ext
	}
	for k, a := range fx.args[2].list {
		s := m.opt.by[a.ref]
		if s == nil || s.found {
			continue
		}
		in := wide
		if int64(k/each) >= dirs {
			in = dirs * hidden
		}
		m.show(s, elem, [][]int64{{gates * hidden, in}, {gates * hidden, hidden}, {gates * hidden}, {gates * hidden}}[k%each]...)
	}
	first := fx.args[1].list
	if len(first) == 0 {
		first = fx.args[1:2]
	}
	out := m.result()
	for _, a := range first {
		if a.kind != graph.ArgValue || len(m.outs[a.ref]) > 0 || baseName(a.ref) != "zeros" {
			continue
		}
		if id := m.equal(a.ref); id >= 0 {
			m.outs[a.ref] = []graph.ValueID{id}
		} else if len(zero) == 3 {
			dims := []int64{layers * dirs, zero[1], hidden}
			id := m.again(graph.Node{Name: a.ref, Op: "zeros.default", Args: []graph.Arg{argInts(dims...)}}, out)
			m.typed(id, elem, dims)
			m.outs[a.ref] = []graph.ValueID{id}
		}
	}
	return ext
}

// remaining shows the only tensor of the model that a call names, without a slot, as the only stored
// operand that nothing else names.
func (m *metaLift) remaining(fx *fxCall, ext []graph.ValueID) {
	var want *state
	for _, ref := range references(fx.args, nil) {
		s := m.opt.by[ref]
		if s == nil || s.found || s == want {
			continue
		}
		if want != nil {
			return
		}
		want = s
	}
	if want == nil {
		return
	}
	id := graph.NoValue
	for _, x := range m.unnamed(fx.args, slices.Clone(ext)) {
		v := &m.src.Values[x]
		if v.Kind != graph.Initializer || m.hidden[x] || want.role == Parameter && !v.Type.Elem.IsFloat() || x == id {
			continue
		}
		if id >= 0 {
			return
		}
		id = x
	}
	if id < 0 {
		return
	}
	if dims, ok := m.src.Values[id].Type.Shape.Static(); ok {
		m.show(want, m.src.Values[id].Type.Elem, dims...)
	}
}

// operand returns the source's value in a slot.
func (c *slotCall) operand(s *slot) graph.ValueID {
	for _, i := range slices.Backward(c.gr.nodes) {
		n := &c.src.Nodes[i]
		if !slices.Contains(s.nodes, n.Op) {
			continue
		}
		if s.input >= 0 {
			if id := input(n, s.input); id >= 0 && c.src.Values[id].Kind == graph.Initializer {
				return id
			}
			return graph.NoValue
		}
		for _, id := range slices.Backward(n.Inputs) {
			if id >= 0 && c.src.Values[id].Kind == graph.Initializer && len(c.src.Values[id].Type.Shape) > 0 {
				return id
			}
		}
	}
	return graph.NoValue
}

func (c *slotCall) elem() graph.DType {
	if c.at != nil {
		return c.at.Type.Elem
	}
	return c.result().Type.Elem
}

// result is the value that the call makes.
func (c *slotCall) result() *graph.Value { return &c.src.Values[c.metaLift.result()] }

// result is the value that the last node of the call that is lifted makes, NoValue if it makes none.
func (m *metaLift) result() graph.ValueID {
	n := &m.src.Nodes[m.nodes[len(m.nodes)-1]]
	if len(n.Outputs) == 0 {
		return graph.NoValue
	}
	return n.Outputs[0]
}

func (c *slotCall) sameDims() []int64 {
	if c.at == nil {
		return nil
	}
	dims, _ := c.at.Type.Shape.Static()
	return dims
}

func (c *slotCall) turnedDims() []int64 {
	dims := slices.Clone(c.sameDims())
	slices.Reverse(dims)
	return dims
}

func (c *slotCall) lastDim() []int64 { return c.dim(len(c.result().Type.Shape) - 1) }

// dim is the size of a dim of the result.
func (c *slotCall) dim(i int) []int64 {
	shape := c.result().Type.Shape
	if i < 0 || i >= len(shape) {
		return nil
	}
	n, ok := shape[i].Int()
	if !ok {
		return nil
	}
	return []int64{n}
}

// normalDims is the list of normalised dims, the call's second argument.
func (c *slotCall) normalDims() (out []int64) {
	if len(c.fx.args) < 2 || c.fx.args[1].kind != graph.ArgList {
		return c.sameDims()
	}
	for _, a := range c.fx.args[1].list {
		if a.kind != graph.ArgInt {
			return c.sameDims()
		}
		out = append(out, a.i)
	}
	return out
}

func (c *slotCall) channels() []int64 { return c.dim(1) }

func (c *slotCall) outChannels() []int64 { return c.dim(1) }
