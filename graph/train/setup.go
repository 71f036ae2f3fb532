package train

import (
	"fmt"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/python"
)

// A resident is a tensor that exists before the first step.
type resident struct {
	name string
	t    *aten.Tensor
	from int64 // bytes of the tensor from which it was converted, 0 for none
}

// add records a resident; d is its type in the file.
func (b *builder) add(name string, t *aten.Tensor, d graph.DType) {
	r := resident{name: name, t: t}
	if d != t.DType && b.opt.Train { // for inference, models are loaded in their type
		r.from = d.Bytes(t.Numel())
	}
	b.setup = append(b.setup, r)
}

// resident creates parameters, buffers, adapters, inputs and the optimizer in
// the order of a typical script: the model goes to the device and is then
// converted to its type, adapters are attached, inputs are made and converted,
// the optimizer is constructed.
func (b *builder) resident() error {
	g := b.l.Graph
	var inputs []int
	var params []resident
	for i := range g.Values {
		v := &g.Values[i]
		var cat program.Category
		switch {
		case v.Kind == graph.Input:
			cat = program.Inputs
		case v.Kind != graph.Initializer || b.l.Roles[i] == lift.Constant:
			continue
		case b.l.Roles[i] == lift.Parameter:
			cat = program.Parameters
		default:
			cat = program.Buffers
		}
		shape, ok := v.Type.Shape.Static()
		if !ok {
			if cat == program.Inputs {
				return fmt.Errorf("input %q has the unbound shape %v: bind its dimensions, as %s", v.Name, shapeText(v.Type.Shape), howToBind(v.Type.Shape))
			}
			continue
		}
		if shape = b.share(graph.ValueID(i), shape); shape == nil {
			continue // an expert of another rank's
		}
		d := b.kept(graph.ValueID(i))
		if n, ok := graph.Product(shape); !ok || n > aten.MaxBytes/max(d.Bytes(1), 1) {
			return fmt.Errorf("%s %q of shape %v: more bytes than any device has", cat, v.Name, shape)
		}
		grad := cat == program.Parameters && b.opt.Train && b.opt.LoRA == nil && (b.opt.Frozen == nil || !b.opt.Frozen(v.Name)) && !b.frozen(v.Name)
		t := b.e.Resident(v.Name, parent(v.Name), cat, d, shape, grad)
		b.env[i] = t
		if cat == program.Parameters && !b.opt.Train && (b.opt.Frozen == nil || !b.opt.Frozen(v.Name)) {
			b.e.MarkRequiresGrad(t)
		}
		if cat == program.Inputs {
			inputs = append(inputs, i)
			continue
		}
		b.add(v.Name, t, b.filed(graph.ValueID(i)))
		if cat == program.Parameters {
			params = append(params, resident{name: v.Name, t: t})
		}
	}
	if b.recorded != nil {
		for _, r := range params {
			b.params = append(b.params, r.t)
		}
		b.place(inModuleOrder(b.setup, nil, false))
	} else {
		first := b.firstNames()
		for _, r := range inModuleOrder(params, first, true) {
			b.params = append(b.params, r.t)
		}
		b.batchCounters()
		b.rotaryCopies()
		b.place(inModuleOrder(b.setup, first, false))
	}
	b.setup = nil
	if err := b.adapters(); err != nil {
		return err
	}
	b.place(b.setup)
	b.setup = nil
	for _, i := range inputs {
		b.add(g.Values[i].Name, b.env[i], b.filed(graph.ValueID(i)))
	}
	b.place(b.setup)
	b.construct()
	return nil
}

// place appends the allocations of residents: all in the file's type, then one
// conversion after the other. A resident that does not fit unconverted counts
// as converted before it came to the device.
func (b *builder) place(list []resident) {
	p := b.e.P
	old := make([]program.StorageID, len(list))
	alloc := func(id program.StorageID) { p.Setup = append(p.Setup, program.Event{Storage: id}) }
	for i, r := range list {
		if r.from == 0 {
			alloc(r.t.Storage)
			continue
		}
		old[i] = program.StorageID(len(p.Storages))
		p.Storages = append(p.Storages, program.Storage{Bytes: r.from, Category: program.Temporaries, Name: r.name, Optional: true})
		alloc(old[i])
	}
	for i, r := range list {
		if r.from != 0 {
			alloc(r.t.Storage)
			p.Setup = append(p.Setup, program.Event{Storage: old[i], Free: true})
		}
	}
}

// firstNames returns other names for tied parameters, which a file calls by the
// last of their names and a model lists at the first: that of the module that
// reads them first. A module that reads another's parameter, as attention reads
// that of its projection, does not make a tie if nothing else reads it.
func (b *builder) firstNames() map[string]string {
	names, first := map[string]string{}, map[graph.ValueID]string{}
	for i := range b.l.Graph.Nodes {
		n := &b.l.Graph.Nodes[i]
		for _, id := range n.Inputs {
			v := &b.l.Graph.Values[id]
			if b.l.Roles[id] != lift.Parameter || n.Module == "" {
				continue
			}
			if first[id] == "" {
				first[id] = n.Module
			}
			if own := parent(v.Name); first[id] != own && n.Module == own {
				names[v.Name] = first[id] + v.Name[len(own):]
			}
		}
	}
	return names
}

// rename gives tied parameters their first names and moves them to the place of
// those: before the siblings of their module if the list has some, as for
// embeddings, otherwise not at all.
func rename(list []resident, first map[string]string) []resident {
	out := make([]resident, 0, len(list))
	var tied []resident
	for _, r := range list {
		if name := first[r.name]; name != "" {
			r.name = name
			tied = append(tied, r)
		} else {
			out = append(out, r)
		}
	}
	for _, r := range tied {
		at := -1
		for up := parent(parent(r.name)); at < 0; up = parent(up) {
			if at = slices.IndexFunc(out, func(o resident) bool { return up == "" || Within(o.name, up) }); up == "" {
				break
			}
		}
		out = slices.Insert(out, max(at, 0), r)
	}
	return out
}

// inModuleOrder sorts a model's tensors by module: a module's own before those
// of its children, as Module.parameters lists them, or after them, as
// Module._apply visits them. Modules and tensors keep the order of their first
// occurrence in the list. first holds other names of tied parameters.
func inModuleOrder(list []resident, first map[string]string, ownFirst bool) []resident {
	list = rename(list, first)
	type module struct {
		children []string
		own      []resident
	}
	tree := map[string]*module{}
	var get func(name string) *module
	get = func(name string) *module {
		m := tree[name]
		if m == nil {
			m = &module{}
			tree[name] = m
			if name != "" {
				up := get(parent(name))
				up.children = append(up.children, name)
			}
		}
		return m
	}
	for _, r := range list {
		m := get(parent(r.name))
		m.own = append(m.own, r)
		// Modules of torch.nn have a weight before a bias, whichever the file
		// names first.
		if n := len(m.own); n > 1 && strings.HasSuffix(r.name, ".weight") && strings.HasSuffix(m.own[n-2].name, ".bias") {
			m.own[n-2], m.own[n-1] = m.own[n-1], m.own[n-2]
		}
	}
	out := make([]resident, 0, len(list))
	var visit func(m *module)
	visit = func(m *module) {
		if ownFirst {
			out = append(out, m.own...)
		}
		for _, c := range m.children {
			visit(tree[c])
		}
		if !ownFirst {
			out = append(out, m.own...)
		}
	}
	visit(get(""))
	return out
}

// construct allocates the state that exists before the first step.
func (b *builder) construct() {
	if b.opt.Construct == nil {
		return
	}
	params, list := b.trained()
	for _, ev := range b.opt.Construct(list) {
		p := params[ev.Param]
		t := b.e.Resident(p.Name+"."+ev.Name, parent(p.Name), program.Optimizer, graph.Uint8, []int64{ev.Bytes}, false)
		b.e.P.Setup = append(b.e.P.Setup, program.Event{Storage: t.Storage})
		b.made = append(b.made, &aten.Tensor{Name: p.Name, View: t.View})
	}
}

// trained returns the parameters that require a gradient.
func (b *builder) trained() (params []*aten.Tensor, list []UpdateParam) {
	for _, p := range b.params {
		if p.RequiresGrad() {
			params, list = append(params, p), append(list, UpdateParam{p.Numel(), p.DType, p.Shape})
		}
	}
	return params, list
}

// batchCounters adds num_batches_tracked, the int64 scalar that every
// BatchNorm module keeps and the exporter leaves out.
func (b *builder) batchCounters() {
	for i := range b.l.Graph.Nodes {
		n := &b.l.Graph.Nodes[i]
		if python.BatchNorms.Of(b.l.Classes[i]) && strings.Contains(n.Op, "batch_norm") {
			name := n.Module + ".num_batches_tracked"
			b.add(name, b.e.Resident(name, n.Module, program.Buffers, graph.Int64, nil, false), graph.Int64)
		}
	}
}

// rotaryCopies adds original_inv_freq, the copy of inv_freq that the rotary
// embeddings of transformers 5 keep and no graph reads.
func (b *builder) rotaryCopies() {
	classes := map[string]string{}
	for _, m := range b.modules {
		classes[m.Name] = m.Class
	}
	for _, r := range b.setup {
		module := parent(r.name)
		if strings.HasSuffix(r.name, ".inv_freq") && python.RotaryEmbeddings.Of(classes[module]) {
			name := module + ".original_inv_freq"
			b.add(name, b.e.Resident(name, module, program.Buffers, r.t.DType, r.t.Shape, false), r.t.DType)
		}
	}
}

// stored returns the type in which a floating-point tensor of the file is kept.
func (b *builder) stored(d graph.DType) graph.DType {
	if b.opt.Storage != graph.Undefined && d == graph.Float32 {
		return b.opt.Storage
	}
	return d
}

// deepest is the deepest nesting of a tensor's modules. A name with more parts is not
// read as a path of modules: the tree of its prefixes would take quadratic time.
const deepest = 64

// parent returns the module that owns a parameter.
func parent(name string) string {
	if strings.Count(name, ".") > deepest {
		return ""
	}
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		return name[:i]
	}
	return ""
}

// howToBind returns the flags that bind a shape's dimensions.
func howToBind(s graph.Shape) string {
	var flags []string
	for _, d := range s {
		if name, ok := d.Symbol(); ok && !slices.Contains(flags, "--dim "+name+"=N") {
			flags = append(flags, "--dim "+name+"=N")
		}
	}
	if len(flags) == 0 {
		return "--dim NAME=N"
	}
	return strings.Join(flags, " ")
}
