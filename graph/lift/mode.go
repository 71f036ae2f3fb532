package lift

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/python"
)

// EvalMode is the code of the warning that the file does not show a training step:
// as far as it shows, the model was exported in evaluation mode.
const EvalMode = "eval-mode"

// IdleDropout is the code of the warning that Dropout modules of a file do
// nothing: they have p = 0, or the model was exported in evaluation mode.
const IdleDropout = "idle-dropout"

// A mode collects evidence of the mode that a model was exported in. A call that
// only a training step makes settles it; otherwise calls that only an inference
// makes, or the absence of calls that a training step of these classes would
// have, are evidence of evaluation mode.
type mode struct {
	g       *graph.Graph
	trained bool
	dropped bool           // a call drops out
	forRun  bool           // an engine wrote the file in the form that it runs
	signs   []string       // signs of evaluation mode, for the message
	norms   map[string]int // batch normalisations with running statistics, by the evidence for them
	idle    []string       // Dropout modules that compute nothing
	masks   int64          // bytes that these would take if they dropped
	open    []string       // signs that an exported p = 0 leaves, too
	plain   bool           // a Dropout that drops nothing would have left a copy
	class   []string       // models of libraries that drop out by default and have calls in the file
	made    map[string]bool
	numbers map[string]map[int]int64 // for each torch.nn.Sequential: the children called, and the bytes of their results
}

// evalMode warns if the file does not show a training step: on signs that its model was
// exported in evaluation mode, or that the file was rewritten afterwards for inference.
// It does not warn if a call of the file is a training step's, or if there is no
// evidence. masks is the bytes that modules which drop nothing would take, if the file
// does not show whether p = 0 or the mode is the reason. copies are what an optimised file lacks.
func evalMode(g *graph.Graph, copies []copied) (w graph.Warning, masks int64) {
	m, why := modeOf(g)
	if len(copies) > 0 && !m.trained && len(m.open) == 0 {
		m.open = append(m.open, fmt.Sprintf("the exporter's optimizer left out %d copies (%s), as Dropout modules make that drop nothing", len(copies), copies[0].name))
		for _, c := range copies {
			m.masks += maskOf(&g.Values[c.of].Type)
		}
	}
	switch {
	case why != "":
		return graph.Warning{Code: EvalMode, Message: why + ". The file does not show the training step: export model.train() with optimize=False"}, 0
	case len(m.open) > 0 && !m.trained:
		return graph.Warning{Code: IdleDropout, Message: strings.Join(m.open, "; ") + ": p is 0, or the model was exported in evaluation mode, and the file does not say which. Where p is above 0, export model.train()"}, m.masks
	}
	return graph.Warning{}, 0
}

// modeOf collects a file's evidence.
func modeOf(g *graph.Graph) (*mode, string) {
	m := &mode{g: g, norms: map[string]int{}, made: map[string]bool{}, numbers: map[string]map[int]int64{}, forRun: writtenToRun(g)}
	merged := mergedWeight(g)
	last, copies := "", cloningExporter(g.Model.Producer)
	for i := range g.Nodes {
		n := &g.Nodes[i]
		text := n.MetaValue(keyFX)
		if text == "" {
			m.onnx(n)
			m.named(n)
		} else if text != last {
			m.call(n, text)
		}
		last = text
		m.plain = m.plain || copies && text != "" && n.Op == "Constant"
		if m.trained && (m.dropped || !m.forRun) && merged == "" {
			return m, ""
		}
	}
	if !m.trained {
		m.conclude()
	}
	switch {
	case len(m.signs) > 0:
		return m, "exported in evaluation mode: " + strings.Join(m.signs, "; ")
	case m.forRun && !m.dropped:
		return m, "rewritten by onnxruntime's optimizer, which takes dropouts away"
	case merged != "":
		return m, fmt.Sprintf("rewritten by a simplifier, which computed weights from others (%s)", merged)
	case !m.trained && m.stripped():
		return m, "no word of the exporter's metadata is left, and no call is a training step's alone: exported in evaluation mode, or of a model without dropout"
	}
	return m, ""
}

// cloningExporter reports whether a release's dynamo exporter writes the result of a
// Dropout that drops nothing as a copy, which its optimizer, like constants,
// removes.
func cloningExporter(producer string) bool {
	v, ok := strings.CutPrefix(producer, "pytorch 2.")
	minor, _, _ := strings.Cut(v, ".")
	k, err := strconv.Atoi(minor)
	return ok && err == nil && k < 14
}

// trainingNames are the prefixes of the dynamo exporter's names for nodes of
// normalisations that train: they outlast passes that remove the metadata.
var trainingNames = []string{"node__native_batch_norm_legit_functional", "node__batch_norm_with_update"}

// trains reports whether a batch normalisation that the exporter writes in its
// inference form stands for a call that trains.
func trains(n *graph.Node) bool {
	return slices.ContainsFunc(trainingNames, func(s string) bool { return strings.HasPrefix(n.Name, s) })
}

// onnx reads a node without metadata.
func (m *mode) onnx(n *graph.Node) {
	opset := m.g.Model.Opset("")
	switch {
	case n.Op == "BatchNormalization" && trains(n):
		m.trained = true
	case n.Op == "BatchNormalization" && opset >= 14 && attrInt(n, "training_mode", 0) == 0, n.Op == "BatchNormalization" && opset < 14 && len(n.Outputs) == 1:
		m.norms["BatchNormalization"]++
	case n.Op == "BatchNormalization":
		m.trained = true
	case n.Op == "Dropout":
		m.dropped = m.dropped || m.drops(n)
		m.trained = m.trained || m.dropped
	case n.Op == "Bernoulli":
		m.trained = true
	}
}

// drops reports whether a Dropout drops; before opset 12 the file does not say.
func (m *mode) drops(n *graph.Node) bool {
	if m.g.Model.Opset("") < 12 {
		return true
	}
	id := input(n, 2)
	if id < 0 {
		return false
	}
	c := m.g.Values[id].Const
	return !c.Known() || len(c.Ints) != 1 || c.Ints[0] != 0
}

// call reads the call that a node was made from, and its enclosing modules.
func (m *mode) call(n *graph.Node, text string) {
	scopes, classes := pyList(n.MetaValue(keyScopes)), pyList(n.MetaValue(keyClasses))
	m.modules(n, scopes, classes)
	op := fxOp(text)
	m.dropout(n, op, scopes, classes)
	switch at, flag := aten.TrainingFlag(op); {
	case op == "_native_batch_norm_legit_no_training", op == "_batch_norm_no_update":
		m.norms["aten."+op]++
	case op == "_batch_norm_with_update", op == "_batch_norm_with_update_functional", op == "bernoulli":
		m.trained = true
	case op == "scaled_dot_product_attention":
		p := m.argument(text, 4)
		m.trained = m.trained || p != nil && p.kind == graph.ArgFloat && p.f > 0
	case flag:
		m.flagged(op, m.argument(text, at), m.argument(text, 3))
	}
}

// flagged reads the argument that says whether a call trains. A normalisation
// without running statistics computes them in either mode.
func (m *mode) flagged(op string, train, stats *fxArg) {
	norm := strings.Contains(op, "batch_norm")
	switch {
	case train == nil || train.kind != graph.ArgBool:
	case train.i == 0 && norm:
		m.norms["aten."+op]++
	case train.i == 0:
		m.signs = append(m.signs, "aten."+op+" with train=False")
	case !norm || stats != nil && stats.kind == graph.ArgValue:
		m.trained = true
	}
}

// argument returns a positional argument of a call, or nil.
func (m *mode) argument(text string, i int) *fxArg {
	fx, err := parseFX(text)
	if err != nil {
		return nil
	}
	for j := range fx.args {
		if fx.args[j].name != "" {
			return nil
		}
		if j == i {
			return &fx.args[j]
		}
	}
	return nil
}

// fxOp returns the operator that an FX node's text calls, without namespace and
// overload; "" if it is not one of ATen's.
func fxOp(text string) string {
	_, rest, ok := strings.Cut(text, "[target=torch.ops.aten.")
	if !ok {
		return ""
	}
	op, _, _ := strings.Cut(rest, ".")
	return op
}

// dropout records a module of a Dropout class that copies its operand:
// torch.export's form of a dropout that drops nothing, in evaluation mode or with
// p = 0.
func (m *mode) dropout(n *graph.Node, op string, scopes, classes []string) {
	k := min(len(scopes), len(classes)) - 2
	if op != "clone" || k < 0 || !python.Dropouts.Of(classes[k]) || seldomDrops(classes[:k]) {
		return
	}
	if !slices.Contains(m.idle, scopes[k]) {
		m.idle = append(m.idle, scopes[k])
	}
	m.masks += m.mask(n)
}

// mask returns the bytes that a Dropout takes for a node's result: its own result
// and its mask.
func (m *mode) mask(n *graph.Node) int64 {
	if len(n.Outputs) == 0 || n.Outputs[0] < 0 {
		return 0
	}
	return maskOf(&m.g.Values[n.Outputs[0]].Type)
}

// maskOf returns the bytes that a Dropout takes for a tensor: its result and its mask.
func maskOf(t *graph.Type) int64 {
	bytes, _ := t.Bytes().Int()
	return bytes + bytes/max(t.Elem.Bytes(1), 1)
}

// seldomDrops reports whether the innermost of classes has its Dropout at p = 0
// by default.
func seldomDrops(classes []string) bool {
	for i := len(classes) - 1; i >= 0; i-- {
		c := classes[i]
		if python.PyTorch.Of(c) {
			continue
		}
		return !python.DropsOut.Of(c) && python.RarelyDrops.Of(c)
	}
	return false
}

// modules records classes that drop out by default, and the children that a
// Sequential calls.
func (m *mode) modules(n *graph.Node, scopes, classes []string) {
	for i := 0; i+1 < len(scopes) && i+1 < len(classes); i++ {
		c := classes[i]
		if name := modelName(c); !m.made[scopes[i]] && python.DropsOut.Of(c) && !slices.Contains(m.class, name) {
			m.class = append(m.class, name)
		}
		m.made[scopes[i]] = true
		if i == 0 || !python.Sequentials.Of(classes[i-1]) {
			continue
		}
		tail := scopes[i][strings.LastIndexByte(scopes[i], '.')+1:]
		if k, err := strconv.Atoi(tail); err == nil && k >= 0 {
			m.child(n, scopes[i-1], k)
		}
	}
}

// named records the children that a Sequential calls from the names of nodes,
// into which the TorchScript exporter joins those of modules: /net/net.3/Gemm.
func (m *mode) named(n *graph.Node) {
	parts := strings.Split(n.Name, "/")
	for i := 1; i+1 < len(parts); i++ {
		tail, ok := strings.CutPrefix(parts[i], parts[i-1]+".")
		if k, err := strconv.Atoi(tail); ok && err == nil && k >= 0 && parts[i-1] != "" {
			m.child(n, strings.Join(parts[1:i], "/"), k)
		}
	}
}

// child records that a Sequential calls its child k, and the bytes of the result.
func (m *mode) child(n *graph.Node, sequential string, k int) {
	if m.numbers[sequential] == nil {
		m.numbers[sequential] = map[int]int64{}
	}
	m.numbers[sequential][k] = m.mask(n)
}

// conclude turns what was seen into signs.
func (m *mode) conclude() {
	for _, what := range []string{"aten._native_batch_norm_legit_no_training", "aten._batch_norm_no_update", "aten.batch_norm", "aten.native_batch_norm",
		"aten.cudnn_batch_norm", "aten._native_batch_norm_legit", "aten._native_batch_norm_legit_functional", "BatchNormalization"} {
		if k := m.norms[what]; k > 0 {
			m.signs = append(m.signs, fmt.Sprintf("%d batch normalisations use running statistics (%s)", k, what))
		}
	}
	if len(m.idle) > 0 {
		idle := fmt.Sprintf("%d Dropout modules drop nothing (%s)", len(m.idle), m.idle[0])
		if len(m.class) > 0 || len(m.signs) > 0 {
			m.signs = append(m.signs, idle)
		} else {
			m.open = append(m.open, idle)
		}
	}
	if len(m.class) > 0 && len(m.idle) == 0 {
		m.signs = append(m.signs, fmt.Sprintf("no call drops out, as %s does unless told not to", m.class[0]))
	}
	if folded := m.foldedByScript(); folded != "" {
		m.signs = append(m.signs, fmt.Sprintf("the TorchScript exporter folded weights (%s), as it does in evaluation mode, and in training only where asked to", folded))
	}
	if gap := m.gap(); gap != "" && len(m.signs) == 0 && !m.plain {
		m.open = append(m.open, fmt.Sprintf("%s calls nothing, as a Dropout does that drops nothing", gap))
	}
}

// writtenToRun reports whether onnxruntime wrote the file after optimising it for
// inference: it then imports the operator sets of all of its own kernels.
func writtenToRun(g *graph.Graph) bool {
	return g.Model.Opset("com.microsoft.nchwc") > 0
}

// mergedWeight returns the name of a matrix that onnxsim computed from others
// of the file, recognised by its naming; "" if there is none.
func mergedWeight(g *graph.Graph) string {
	for i := range g.Values {
		v := &g.Values[i]
		rest, ok := strings.CutPrefix(v.Name, "_v_")
		if ok && v.Kind == graph.Initializer && len(v.Type.Shape) > 1 && v.Type.Elem.IsFloat() && rest != "" && strings.Trim(rest, "0123456789") == "" {
			return v.Name
		}
	}
	return ""
}

// stripped reports whether a file comes from the dynamo exporter, by the names of
// its nodes, but lacks the metadata that this exporter writes on every node.
func (m *mode) stripped() bool {
	if !strings.HasPrefix(m.g.Model.Producer, "pytorch") {
		return false
	}
	named := 0
	for i := range m.g.Nodes {
		if len(m.g.Nodes[i].Meta) > 0 {
			return false
		}
		if strings.HasPrefix(m.g.Nodes[i].Name, "node_") {
			named++
		}
	}
	return 2*named > len(m.g.Nodes)
}

// foldedByScript returns the name of a weight that the TorchScript exporter
// computed from others: a transposed matrix, or a convolution merged with the
// normalisation after it; "" if there is none.
func (m *mode) foldedByScript() string {
	if !strings.HasPrefix(m.g.Model.Producer, "pytorch") {
		return ""
	}
	for i := range m.g.Values {
		v := &m.g.Values[i]
		if v.Kind != graph.Initializer || len(v.Type.Shape) < 2 {
			continue
		}
		if op, ok := strings.CutPrefix(v.Name, "onnx::"); ok && (strings.HasPrefix(op, "MatMul_") || strings.HasPrefix(op, "Conv")) {
			return v.Name
		}
	}
	return ""
}

// gap returns the first child of a Sequential without a call, though its neighbours
// have some. It adds up what all such children would take if they dropped out.
func (m *mode) gap() string {
	first := ""
	for name, called := range m.numbers {
		last := 0
		for k := range called {
			last = max(last, k)
		}
		for k := range last {
			if _, ok := called[k]; ok {
				continue
			}
			m.masks += called[k-1]
			if child := fmt.Sprintf("%s.%d", name, k); first == "" || child < first {
				first = child
			}
		}
	}
	return first
}

// modelName returns the library and the model of a class, such as "transformers
// bert".
func modelName(class string) string {
	parts := strings.Split(class, ".")
	if len(parts) > 2 && parts[1] == "models" {
		return parts[0] + "' " + parts[2]
	}
	return class
}
