package lift

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
)

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
	if s := m.opt.stored[w.Name]; s != nil {
		m.l.Roles[s.value] = s.role
	}
	if s := m.opt.stored[module+".bias"]; s != nil && s.role == Parameter {
		m.show(s, w.Type.Elem, dims[0])
		args[2] = argOf(s.value)
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
