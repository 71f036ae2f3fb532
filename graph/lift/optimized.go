package lift

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
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
}

// An optimized is what a lift by metadata knows of a file that was optimised.
type optimized struct {
	states []*state
	by     map[string]*state // by placeholder
	made   []string          // calls whose results are constants of the file, of which nothing tells how they were made
	bytes  int64             // of these results
	lost   []string          // tensors of the model that they may have been made of, whose shapes the file does not tell
	groups map[string]*group // by the name of the call
	stored map[string]*state // by the model's name
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
	return o
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

// slots are the operands that the optimizer renames, merges or leaves out. The order is that of
// torch/onnx/_internal/exporter/_torchlib and onnxscript's function_libs/torch_lib.
var slots = []slot{
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

func init() {
	for _, op := range []string{"conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"} {
		slots = append(slots, slot{op, 1, []string{"Conv", "ConvTranspose"}, 1, (*slotCall).sameDims},
			slot{op, 2, []string{"Conv", "ConvTranspose"}, 2, (*slotCall).outChannels})
	}
	for _, op := range []string{"batch_norm", "_native_batch_norm_legit_functional", "_native_batch_norm_legit", "native_batch_norm", "cudnn_batch_norm", "_batch_norm_with_update_functional", "_native_batch_norm_legit_no_training"} {
		for i := 1; i <= 4; i++ {
			slots = append(slots, slot{op, i, []string{"BatchNormalization"}, i, (*slotCall).channels})
		}
	}
}

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
	hidden, elem := int64(0), graph.Float32
	var zero []int64
	for _, i := range gr.nodes {
		if n := &m.src.Nodes[i]; n.Op == "LSTM" || n.Op == "GRU" || n.Op == "RNN" {
			hidden = attrInt(n, "hidden_size", 0)
			if e := input(n, 5); e >= 0 {
				zero, _ = m.src.Values[e].Type.Shape.Static()
				elem = m.src.Values[e].Type.Elem
			}
		}
	}
	x, ok := m.resolve(fx.args[0].ref, ext)
	shape := m.l.Graph.Values[max(x, 0)].Type.Shape
	if !ok || hidden == 0 || len(shape) == 0 || len(fx.args[2].list) == 0 {
		return ext
	}
	wide, ok := shape[len(shape)-1].Int()
	layers, dirs, each := fx.args[4].i, int64(1), 2
	if fx.args[7].i != 0 {
		dirs = 2
	}
	if fx.args[3].i != 0 {
		each = 4
	}
	if !ok || int64(len(fx.args[2].list)) != layers*dirs*int64(each) {
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
	if len(zero) != 3 {
		return ext
	}
	first := fx.args[1].list
	if len(first) == 0 {
		first = fx.args[1:2]
	}
	for _, a := range first {
		if a.kind == graph.ArgValue && len(m.outs[a.ref]) == 0 && baseName(a.ref) == "zeros" {
			dims := []int64{layers * dirs, zero[1], hidden}
			id := m.again(graph.Node{Name: a.ref, Op: "zeros.default", Args: []graph.Arg{argInts(dims...)}}, gr0(m, gr))
			m.typed(id, elem, dims)
			m.outs[a.ref] = []graph.ValueID{id}
		}
	}
	return ext
}

// gr0 is a value that the nodes of a call make.
func gr0(m *metaLift, gr *group) graph.ValueID { return m.src.Nodes[gr.nodes[0]].Outputs[0] }

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

// result is the value that the call's last node makes.
func (c *slotCall) result() *graph.Value {
	n := &c.src.Nodes[c.gr.nodes[len(c.gr.nodes)-1]]
	return &c.src.Values[n.Outputs[0]]
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

// baseName takes the number off the name of a call: "clone" of "clone_3".
func baseName(name string) string {
	if at := strings.LastIndexByte(name, '_'); at > 0 && digits(name[at+1:]) {
		return name[:at]
	}
	return name
}

// copies are calls that make a copy of their operand, which ONNX has no need of.
var copies = []string{"clone", "contiguous"}

// reshapes are calls that give a tensor another shape, which the optimizer joins.
var reshapes = []string{"view", "_unsafe_view", "reshape"}

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
	n := &m.src.Nodes[m.nodes[len(m.nodes)-1]]
	return m.again(graph.Node{Name: ref, Op: "empty.memory_format", Args: []graph.Arg{{Kind: graph.ArgList}}}, n.Outputs[0])
}

// size returns a number that the code computes of others and passes in a list of sizes: the size of the result's dim
// there.
func (m *metaLift) size(ref string) (graph.ValueID, bool) {
	for _, a := range m.args1[min(1, len(m.args1)):] {
		k := slices.IndexFunc(a.list, func(x fxArg) bool { return x.kind == graph.ArgValue && x.ref == ref })
		if a.kind != graph.ArgList || k < 0 {
			continue
		}
		out := m.src.Nodes[m.nodes[len(m.nodes)-1]].Outputs[0]
		if len(m.src.Values[out].Type.Shape) != len(a.list) {
			return graph.NoValue, false
		}
		id := m.fresh(ref, m.src.Values[out].Type)
		m.l.Graph.Values[id].Kind = graph.Initializer
		m.l.from[id], m.l.sizes[id], m.l.Roles[id] = out, true, Constant
		m.formed(id, func(v *graph.Value) {
			c := &graph.Constant{Name: ref, Type: graph.Int64}
			if n, ok := v.Type.Shape[k].Int(); ok {
				c.Ints = []int64{n}
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
				id := graph.NoValue
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
	if n.Op != "Split" || len(n.Outputs) == 0 || n.Outputs[0] < 0 || n.Inputs[0] < 0 {
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
	for i := range m.src.Nodes { // in the module of the call that reads it
		if x := &m.src.Nodes[i]; slices.Contains(x.Inputs, n.Outputs[0]) && x.MetaValue(keyFX) != "" {
			c.Module, class = owner(x)
			c.Meta = x.Meta
			break
		}
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
	case slices.Contains(copies, base) && !m.strided(x):
		return m.again(graph.Node{Name: ref, Op: "identity.default", Args: []graph.Arg{argOf(x)}}, from) // of a Dropout: p is 0
	case slices.Contains(copies, base):
		return m.again(graph.Node{Name: ref, Op: "clone.default", Args: []graph.Arg{argOf(x), named("memory_format", argStr("torch.contiguous_format"))}}, from)
	case slices.Contains(reshapes, base) && slices.Contains(reshapes, opOf(m.target)): // of two in a row the second alone shows
		if m.strided(x) {
			return m.again(graph.Node{Name: ref, Op: "clone.default", Args: []graph.Arg{argOf(x), named("memory_format", argStr("torch.contiguous_format"))}}, from)
		}
	case slices.Contains(reshapes, base):
		if id, ok := m.reshaped(ref, base, from); ok {
			return id
		}
	case base == "pad" || base == "constant_pad_nd":
		if id, ok := m.padded(ref, from); ok {
			return id
		}
	case slices.Contains(numeric, base):
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
	for _, s := range o.states {
		if s.found || s.read || s.role != Parameter || parentModule(parentModule(s.target)) != parentModule(parentModule(name)) {
			continue
		}
		if strings.TrimPrefix(s.target, parentModule(s.target)) == strings.TrimPrefix(name, parentModule(name)) && parentModule(s.target) != "" {
			return s
		}
	}
	for _, s := range o.states { // of the same module, where each has a name of its own
		if tail := strings.TrimPrefix(name, parentModule(name)); !s.found && !s.read && s.role == Parameter && parentModule(s.target) == parentModule(name) && tail != ".weight" && tail != ".bias" {
			return s
		}
	}
	return nil
}

// readBy reports whether a node of the call that is lifted reads a value by an operator.
func (m *metaLift) readBy(id graph.ValueID, op string) bool {
	return slices.ContainsFunc(m.nodes, func(i int32) bool {
		return m.src.Nodes[i].Op == op && m.src.Nodes[i].Inputs[0] == id
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
		if n.Op != "Unsqueeze" || n.Inputs[0] != from || input(n, 1) < 0 || !m.src.Values[n.Inputs[1]].Const.Known() {
			continue
		}
		axes := slices.Clone(m.src.Values[n.Inputs[1]].Const.Ints)
		if len(axes) != 2 || len(m.args1) < 2 || m.args1[1].kind != graph.ArgInt {
			return graph.NoValue, false
		}
		rank, last := int64(len(m.src.Values[from].Type.Shape)+2), m.args1[1].i
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
		if n.Op != "Transpose" || n.Inputs[0] != from || len(both) != rank || len(m.args1) < 2 {
			continue
		}
		then := make([]int64, rank)
		for k := range then {
			then[k] = int64(k)
		}
		var dims []int64
		for _, a := range slices.Concat(m.args1[1].list, m.args1[1:]) {
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
		case len(dims) == rank && len(m.args1[1].list) == rank:
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
		if len(m.args1) > 4 && len(m.args1[4].list) == k {
			own = m.args1[4].list[i].i
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
	var names []string
	for name := range o.groups {
		if baseName(name) == base {
			names = append(names, name)
		}
	}
	at := of(ref)
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

// foldLimit is the most elements of a tensor that the optimizer computes with ahead of time
// (onnxscript.optimizer._constant_folding.DEFAULT_CONSTANT_FOLD_INPUT_SIZE_LIMIT).
const foldLimit = 8192

// functions are calls of one tensor whose result has its shape, as code applies them to parameters.
var functions = []string{"tanh", "exp", "sigmoid", "neg", "softplus", "abs", "sqrt", "rsqrt", "log", "relu", "sin", "cos"}

// numeric are calls of a tensor and a number.
var numeric = []string{"add", "sub", "mul", "div"}

// constantOf returns the value of a call whose result the optimizer computed: the call again on a
// parameter of its module that no other call reads, if its name tells how, or else a tensor that the
// forward pass makes.
func (m *metaLift) constantOf(ref string, e graph.ValueID) graph.ValueID {
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
	for _, ref := range slices.Sorted(maps.Keys(m.claims)) {
		if outs := m.outs[ref]; m.claims[ref] == e && len(outs) == 1 && m.l.Graph.Values[outs[0]].Def >= 0 {
			return &m.l.Graph.Nodes[m.l.Graph.Values[outs[0]].Def]
		}
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
	case slices.Contains(functions, base):
		m.show(s, elem, dims...)
		return call(base + ".default")
	case slices.Contains(numeric, base) && m.opt.alone(s):
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
	case slices.Contains(reshapes, base) || base == "unsqueeze":
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
	if s == nil || base != "slice" && base != "expand" && !slices.Contains(reshapes, base) {
		if n := m.before(e); n != nil {
			return m.twice(ref, *n, e)
		}
		return m.filled(ref, e, dims)
	}
	own := slices.Clone(dims) // at least: of a longer one, others of the module may tell
	for _, x := range m.opt.states {
		if other, ok := m.l.Graph.Values[x.value].Type.Shape.Static(); ok && x.found && x.role == Buffer && parentModule(x.target) == parentModule(s.target) && len(other) == len(own) {
			for i := range own {
				own[i] = max(own[i], other[i])
			}
		}
	}
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
	up := parentModule(module)
	for _, fits := range []func(string) bool{
		func(p string) bool { return p == module },
		func(p string) bool { return module != "" && p == up },
		func(p string) bool { return module != "" && parentModule(p) == module },
	} {
		for _, s := range o.states {
			if !s.found && !s.read && s.role == role && fits(parentModule(s.target)) {
				return s
			}
		}
	}
	return nil
}

// alone reports whether no other tensor of the same module is unread.
func (o *optimized) alone(s *state) bool {
	return !slices.ContainsFunc(o.states, func(x *state) bool {
		return x != s && !x.found && !x.read && parentModule(x.target) == parentModule(s.target)
	})
}

// unknown records the parameters that a constant was computed from, whose shapes nothing tells.
func (o *optimized) unknown(module string) {
	s := o.unread(module, Parameter)
	for _, x := range o.states {
		if !x.found && !x.read && x.role == Parameter && parentModule(x.target) == parentModule(s.target) && !slices.Contains(o.lost, x.target) {
			o.lost = append(o.lost, x.target)
		}
	}
}

// least records a parameter of which the file shows a part.
func (o *optimized) least(s *state) {
	if !slices.Contains(o.lost, s.target) {
		o.lost = append(o.lost, s.target)
	}
}

// parentModule returns the module that a qualified name lies in.
func parentModule(name string) string { return name[:max(strings.LastIndexByte(name, '.'), 0)] }

// parts are the ONNX operators whose operands after the first say only where: shapes, axes, bounds.
var parted = []string{"Reshape", "Expand", "Slice", "Unsqueeze", "Squeeze", "Tile", "Pad", "Split", "SplitToSequence", "CumSum", "Resize", "TopK",
	"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"}

// parts returns the values that such operands are.
func parts(g *graph.Graph) map[graph.ValueID]bool {
	out := map[graph.ValueID]bool{}
	for i := range g.Nodes {
		if n := &g.Nodes[i]; n.Op == "ScatterND" && len(n.Inputs) > 1 && n.Inputs[1] >= 0 {
			out[n.Inputs[1]] = true
		}
		if n := &g.Nodes[i]; slices.Contains(parted, n.Op) {
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

// beforeNorm makes the convolution that a batch normalisation was folded into.
func (m *metaLift) beforeNorm(fx *fxCall, gr *group) {
	if !strings.Contains(fx.target, "batch_norm") || len(fx.args) == 0 || len(gr.nodes) != 1 {
		return
	}
	n, ref := &m.src.Nodes[gr.nodes[0]], fx.args[0].ref
	if n.Op != "Conv" || len(m.outs[ref]) > 0 || len(n.Inputs) < 2 || n.Inputs[1] < 0 {
		return
	}
	w := m.src.Values[n.Inputs[1]]
	dims, ok := w.Type.Shape.Static()
	k := len(dims) - 2
	pads := attrInts(n, "pads", make([]int64, 2*max(k, 0)))
	if !ok || k < 1 || k > 3 || len(pads) != 2*k || !slices.Equal(pads[:k], pads[k:]) {
		return
	}
	ones := slices.Repeat([]int64{1}, k)
	args := []graph.Arg{argOf(m.value(n.Inputs[0])), argOf(m.value(n.Inputs[1])), argNone(), argInts(attrInts(n, "strides", ones)...),
		argInts(pads[:k]...), argInts(attrInts(n, "dilations", ones)...), argInt(attrInt(n, "group", 1))}
	module := parentModule(w.Name)
	for _, s := range m.opt.states {
		if s.target == w.Name {
			m.l.Roles[s.value] = Parameter
		}
		if s.target == module+".bias" && s.role == Parameter {
			m.show(s, w.Type.Elem, dims[0])
			args[2] = argOf(s.value)
		}
	}
	c := graph.Node{Name: ref, Op: spatialOp("conv", k) + ".default", Args: args, Module: module, Meta: withoutClass(inModule(n.Meta, module))}
	m.outs[ref] = []graph.ValueID{m.again(c, n.Outputs[0])}
	m.normState(fx, n, dims[0])
}

// normState shows the tensors of a folded normalisation.
func (m *metaLift) normState(fx *fxCall, n *graph.Node, channels int64) {
	for i := 1; i <= 4 && i < len(fx.args); i++ {
		if s := m.opt.by[fx.args[i].ref]; s != nil && !s.found {
			m.show(s, m.src.Values[n.Outputs[0]].Type.Elem, channels)
		}
	}
}

// inModule returns the metadata of a call for one in another module.
func inModule(meta []graph.Prop, module string) []graph.Prop {
	out := slices.Clone(meta)
	for i := range out {
		if p := &out[i]; p.Key == keyScopes {
			if scopes := pyList(p.Value); len(scopes) >= 2 {
				scopes[len(scopes)-2] = module
				p.Value = pyRepr(scopes)
			}
		}
	}
	return out
}

// withoutClass takes the class of the innermost module out of metadata.
func withoutClass(meta []graph.Prop) []graph.Prop {
	for i := range meta {
		if p := &meta[i]; p.Key == keyClasses {
			if classes := pyList(p.Value); len(classes) >= 2 {
				classes[len(classes)-2] = ""
				p.Value = pyRepr(classes)
			}
		}
	}
	return meta
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
