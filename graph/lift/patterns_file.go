package lift

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/infer"
	"github.com/memplan/memplan/graph/python"
)

// An origin is the module that a node belongs to, with its class and the
// metadata of its enclosing scopes.
type origin struct {
	node   *graph.Node
	module string
	class  string
	meta   []graph.Prop
}

// origin returns the origin of a node and caches the last one, because a node
// may become many calls.
func (p *patLift) origin(n *graph.Node) *origin {
	if p.last.node != n {
		p.last = p.findOrigin(n)
	}
	return &p.last
}

func (p *patLift) findOrigin(n *graph.Node) origin {
	o := origin{node: n, meta: n.Meta}
	switch {
	case n.MetaValue(keyScopes) != "":
		o.module, o.class = owner(n)
	case n.MetaValue("pkg.onnxscript.name_scopes") != "":
		o.module = strings.Join(slices.DeleteFunc(pyList(n.MetaValue("pkg.onnxscript.name_scopes")), func(s string) bool { return s == "" }), ".")
	case n.MetaValue("namespace") != "":
		o.module, o.class = namespaceOwner(n.MetaValue("namespace"))
	case strings.HasPrefix(n.Name, "/"):
		scopes := p.scopes.of(n.Name)
		o.module = scopes[len(scopes)-1]
		o.meta = append(slices.Clone(n.Meta), graph.Prop{Key: keyScopes, Value: pyRepr(append(scopes, n.Op))})
	default:
		o.module = p.weightModule(n)
	}
	if o.class == "" && n.Op == "BatchNormalization" && strings.HasPrefix(p.src.Model.Producer, "pytorch") {
		o.class = python.BatchNorm
	}
	return o
}

// namespaceOwner parses the dynamo exporter's namespace: "NAME: CLASS" joined
// by "/", where the last is the call itself.
func namespaceOwner(s string) (module, class string) {
	parts := strings.Split(s, "/")
	if len(parts) < 2 {
		return "", ""
	}
	module, class, _ = strings.Cut(parts[len(parts)-2], ": ")
	return module, class
}

// maxScopes bounds the nesting of modules; longer names are not those of
// modules.
const maxScopes = 64

// tooDeep reports whether a name has more dots than a module's. Later stages visit all
// enclosing modules, which would take time quadratic in the name's length.
func tooDeep(module string) bool { return strings.Count(module, ".") >= maxScopes }

// A scopeNames derives modules from the node names of the TorchScript exporter.
type scopeNames struct {
	paths  map[string]bool // scopes of the file: "layer1/layer1.0/relu"
	stores map[string]bool // modules that have tensors, with the modules around them
}

func newScopeNames(g *graph.Graph) *scopeNames {
	s := &scopeNames{map[string]bool{}, map[string]bool{}}
	for i := range g.Nodes {
		name, ok := strings.CutPrefix(g.Nodes[i].Name, "/")
		for ok && strings.Count(name, "/") < maxScopes {
			at := strings.LastIndexByte(name, '/')
			if at < 0 || s.paths[name[:at]] {
				break
			}
			name = name[:at]
			s.paths[name] = true
		}
	}
	for i := range g.Values {
		name := g.Values[i].Name
		if g.Values[i].Kind != graph.Initializer || !stateName(name) || tooDeep(name) {
			continue
		}
		for at := strings.LastIndexByte(name, '.'); at >= 0 && !s.stores[name[:at]]; at = strings.LastIndexByte(name, '.') {
			name = name[:at]
			s.stores[name] = true
		}
	}
	return s
}

// of returns the qualified names of the modules in whose forward a node stands,
// the root "" first. The node's name joins their variable names:
// /layer1/layer1.0/conv1/Conv stands in layer1, layer1.0 and layer1.0.conv1
// (torch/csrc/jit/passes/onnx/naming.cpp, inverted).
func (s *scopeNames) of(name string) []string {
	parts := strings.Split(strings.TrimPrefix(name, "/"), "/")
	scopes := []string{""}
	if len(parts) > maxScopes {
		return scopes
	}
	var path []string
	raw := ""
	for _, part := range parts[:len(parts)-1] {
		raw += part
		part = s.again(raw, part, path)
		raw += "/"
		if n := len(path); n > 0 && numbered(part, path[n-1]) {
			path[n-1] = part
		} else {
			path = append(path, part)
		}
		scopes = append(scopes, strings.Join(path, "."))
	}
	return scopes
}

// again removes the number that the exporter appends when a module is called a
// second time: relu_1 for relu, unless a module of the numbered name has
// tensors.
func (s *scopeNames) again(raw, part string, path []string) string {
	at := strings.LastIndexByte(part, '_')
	if at < 1 {
		return part
	}
	if _, err := strconv.ParseUint(part[at+1:], 10, 32); err != nil || !s.paths[raw[:len(raw)-len(part)+at]] {
		return part
	}
	if s.stores[strings.Join(append(slices.Clone(path), part), ".")] {
		return part
	}
	return part[:at]
}

// numbered reports whether part is prev with a number: layer1.0 after layer1.
func numbered(part, prev string) bool {
	rest, ok := strings.CutPrefix(part, prev+".")
	if !ok {
		return false
	}
	_, err := strconv.ParseUint(rest, 10, 32)
	return err == nil
}

// pyRepr writes a list of names as Python does.
func pyRepr(names []string) string {
	quoted := make([]string, len(names))
	for i, s := range names {
		quoted[i] = "'" + strings.ReplaceAll(s, "'", "") + "'"
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// weightModule returns the module whose state dict holds a tensor that n reads.
func (p *patLift) weightModule(n *graph.Node) string {
	for _, id := range n.Inputs {
		if id < 0 {
			continue
		}
		if v := &p.src.Values[p.resolve(id)]; v.Kind == graph.Initializer && stateName(v.Name) {
			return v.Name[:strings.LastIndexByte(v.Name, '.')]
		}
	}
	return ""
}

// stateName reports whether s has the form of names in state dicts:
// layer1.0.conv1.weight.
func stateName(s string) bool {
	return strings.Contains(s, ".") && !strings.ContainsAny(s, "/:") && !strings.HasSuffix(s, ".") && !strings.HasPrefix(s, ".")
}

// roles determines the roles of the stored tensors that calls read.
func (p *patLift) roles() {
	read := make([]bool, len(p.l.Graph.Values))
	for i := range p.l.Graph.Nodes {
		for _, in := range p.l.Graph.Nodes[i].Inputs {
			read[in] = true
		}
	}
	for i := range p.src.Values {
		v := &p.src.Values[i]
		if v.Kind != graph.Initializer && !p.bigConstant(v) {
			continue
		}
		to := p.to[i]
		if to < 0 || !read[to] {
			if v.Kind == graph.Initializer {
				p.l.Roles[p.value(v.ID)] = Constant
			}
			continue
		}
		p.l.Graph.Values[to].Kind, p.l.Graph.Values[to].Def = graph.Initializer, -1
		if p.l.Graph.Values[to].Const == nil {
			p.l.constant(to)
		}
		p.l.Roles[to] = p.role(v)
	}
}

// bigConstant reports whether v is a large tensor of a Constant node, the form in
// which older exporters write weights.
func (p *patLift) bigConstant(v *graph.Value) bool {
	return v.Kind == graph.Computed && p.def[v.ID] >= 0 && p.src.Nodes[p.def[v.ID]].Op == "Constant" && (p.weights[v.ID] || p.elems(v.ID) > hostElems)
}

// signatureKind is the metadata key for the exporter's classification of a
// stored tensor.
const signatureKind = "pkg.torch.export.graph_signature.InputSpec.kind"

// role determines the role of a stored tensor: by the exporter's
// classification, by the place where it is used, by its name.
func (p *patLift) role(v *graph.Value) Role {
	for _, m := range v.Meta {
		if m.Key == signatureKind {
			switch m.Value {
			case "PARAMETER":
				return Parameter
			case "BUFFER":
				return Buffer
			}
		}
	}
	switch {
	case p.buffers[v.ID] || strings.HasSuffix(v.Name, ".running_mean") || strings.HasSuffix(v.Name, ".running_var"):
		return Buffer
	case p.weights[v.ID] && v.Type.Elem.IsFloat():
		return Parameter
	case len(v.Type.Shape) == 0 || p.elems(v.ID) == 1 || p.host[v.ID] && p.elems(v.ID) <= hostElems:
		return Constant
	case !v.Type.Elem.IsFloat():
		return Buffer
	case stateName(v.Name) || !p.exporterName(v.Name):
		return Parameter
	}
	return Buffer
}

// exporterName reports whether a name is one that PyTorch's exporters give to
// constants: onnx::Add_123, val_7, 123, /model/Constant_output_0.
func (p *patLift) exporterName(s string) bool {
	if !strings.HasPrefix(p.src.Model.Producer, "pytorch") {
		return false
	}
	digits := strings.Trim(strings.TrimPrefix(s, "val_"), "0123456789") == ""
	return digits || strings.HasPrefix(s, "onnx::") || strings.HasPrefix(s, "/")
}

// weight records that a stored tensor is used in the place of a parameter.
func (p *patLift) weight(id graph.ValueID) {
	if id >= 0 {
		p.weights[p.resolve(id)] = true
	}
}

func (p *patLift) note(code, node, format string, args ...any) {
	p.l.Warnings = append(p.l.Warnings, graph.Warning{Code: code, Message: fmt.Sprintf(format, args...), Node: node})
}

// warn reports where the file does not describe a training step.
func (p *patLift) warn() {
	var bn, evalBN, dropout, folded, taken, fused, eager int
	for i := range p.src.Nodes {
		n := &p.src.Nodes[i]
		switch n.Op {
		case "BatchNormalization":
			bn++
			if p.src.Model.Opset("") >= 14 && attrInt(n, "training_mode", 0) == 0 && !trains(n) {
				evalBN++
			}
		case "Dropout":
			dropout++
		case "Conv", "ConvTranspose":
			if p.maybeFolded(n) {
				folded++
			}
			if p.named(n, "getitem") && n.MetaValue(keyFX) == "" {
				taken++
			}
		case "Softmax":
			if p.eagerAttention(int32(i)) {
				eager++
			}
		}
	}
	for i := range p.l.Graph.Nodes {
		if opName(&p.l.Graph.Nodes[i]) == "scaled_dot_product_attention" {
			fused++
		}
	}
	p.warnNorm(bn, evalBN, dropout, folded, taken)
	if dropout == 0 && (fused+eager > 0 || evalBN+p.restored > 0) {
		p.note("no-dropout", "", "the file holds no Dropout: exported in evaluation mode, or the model has none; masks of dropout layers are not counted")
	}
	if fused > 0 {
		p.note("attention-recognised", "", "%s counted as scaled_dot_product_attention", map[bool]string{true: "1 attention is", false: fmt.Sprintf("%d attentions are", fused)}[fused == 1])
	}
	if eager > 0 {
		p.note("eager-attention", "", "%d attentions are computed operator by operator, as the file has them: their probabilities are kept for backward", eager)
	}
}

func (p *patLift) warnNorm(bn, evalBN, dropout, folded, taken int) {
	switch {
	case p.restored > 0:
		p.note("restored-batchnorm", "", "optimised after export: %d batch normalisations were folded into convolutions; they are counted as the file's metadata names them", p.restored)
	case taken > 0:
		p.note("folded-batchnorm", "", "%d convolutions give what the exporter named as a result of batch normalisations: those were folded into them, and a training step would keep their operands", taken)
	case bn == 0 && dropout == 0 && folded >= 3:
		p.note("folded-batchnorm", "", "%d convolutions with a bias are followed by an activation, and there is no batch normalisation: it may have been folded into them, and a training step would keep its operands", folded)
	}
	if evalBN > 0 {
		p.note("eval-batchnorm", "", "%d batch normalisations use running statistics in the file; they are counted as in training", evalBN)
	}
}

// named reports whether the dynamo exporter named a node's first result after a
// call.
func (p *patLift) named(n *graph.Node, call string) bool {
	if len(n.Outputs) == 0 || n.Outputs[0] < 0 || !strings.HasPrefix(p.src.Model.Producer, "pytorch") {
		return false
	}
	rest, ok := strings.CutPrefix(p.src.Values[n.Outputs[0]].Name, call)
	return ok && strings.Trim(rest, "_0123456789") == ""
}

// maybeFolded reports whether a convolution has a bias and its result goes
// through an activation: the form that folding a batch normalisation leaves.
func (p *patLift) maybeFolded(n *graph.Node) bool {
	if input(n, 2) < 0 || len(n.Outputs) == 0 || n.Outputs[0] < 0 || p.ownBias(n) {
		return false
	}
	r := p.reader[n.Outputs[0]]
	return r >= 0 && (p.src.Nodes[r].Op == "Add" || infer.Is("", p.src.Nodes[r].Op, infer.Activation))
}

// ownBias reports whether a convolution's module has a bias, according to the
// call in its metadata or the name of its weight: PyTorch's exporters give
// weights that they compute a name of their own.
func (p *patLift) ownBias(n *graph.Node) bool {
	if fx, err := parseFX(n.MetaValue(keyFX)); err == nil && strings.Contains(fx.target, "conv") {
		return len(fx.args) > 2 && fx.args[2].kind == graph.ArgValue
	}
	weight := input(n, 1)
	return weight >= 0 && strings.HasPrefix(p.src.Model.Producer, "pytorch") && !p.exporterName(p.src.Values[weight].Name)
}

// eagerAttention reports whether a Softmax is between two matrix products that
// no rule recognised as an attention.
func (p *patLift) eagerAttention(i int32) bool {
	first := input(&p.src.Nodes[i], 0)
	if p.claimed[i] || first < 0 {
		return false
	}
	id := p.resolve(first)
	for range 4 {
		d := p.def[id]
		if d < 0 {
			return false
		}
		n := &p.src.Nodes[d]
		if len(n.Inputs) < 2 || slices.Contains(n.Inputs, graph.NoValue) {
			return false
		}
		if n.Op == "MatMul" {
			return p.def[p.resolve(n.Inputs[0])] >= 0 && !p.stored(p.resolve(n.Inputs[1]))
		}
		if !slices.Contains([]string{"Add", "Mul", "Div", "Where"}, n.Op) {
			return false
		}
		j := 0
		if n.Op == "Where" {
			j = len(n.Inputs) - 1
		}
		id = p.resolve(n.Inputs[j])
	}
	return false
}
