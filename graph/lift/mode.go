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

// EvalMode is the code of the warning that a file does not show the training step:
// the model was exported in evaluation mode, as far as the file says.
const EvalMode = "eval-mode"

// IdleDropout is the code of the warning that modules of a file that drop out do
// nothing: they have p = 0, or the model was exported in evaluation mode.
const IdleDropout = "idle-dropout"

// A mode collects what a file says of the mode that its model was exported in.
// What only a training step computes settles it; without that, anything that only
// an inference computes, or that a training step of these classes would not lack,
// speaks for evaluation mode.
type mode struct {
	g       *graph.Graph
	trained bool
	dropped bool           // a call drops out
	forRun  bool           // an engine wrote the file as it would run it
	signs   []string       // of evaluation mode, for the message
	norms   map[string]int // batch normalisations with running statistics, by what says so
	idle    []string       // modules of a Dropout class that compute nothing
	masks   int64          // bytes that these would take if they dropped
	open    []string       // signs that an exported p = 0 leaves, too
	plain   bool           // a Dropout that drops nothing would have left a copy
	class   []string       // libraries' models that drop out by default, of which the file has calls
	made    map[string]bool
	numbers map[string]map[int]int64 // children called of each torch.nn.Sequential, and the bytes of what each returned
}

// evalMode warns of a file that does not show the training step: of the signs that its
// model was exported in evaluation mode, or that the file was rewritten afterwards for
// an inference; no warning where a call of the file is a training step's, or where
// nothing tells. The bytes are what modules would take that drop nothing, where the file
// does not say which of the two made them so.
func evalMode(g *graph.Graph) (w graph.Warning, masks int64) {
	m, why := modeOf(g)
	switch {
	case why != "":
		return graph.Warning{Code: EvalMode, Message: why + ". The file does not show the training step: export model.train() with optimize=False"}, 0
	case len(m.open) > 0 && !m.trained:
		return graph.Warning{Code: IdleDropout, Message: strings.Join(m.open, "; ") + ": p is 0, or the model was exported in evaluation mode, and the file does not say which. Where p is above 0, export model.train()"}, m.masks
	}
	return graph.Warning{}, 0
}

// modeOf reads a file and says what speaks for evaluation mode.
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

// cloningExporter reports releases whose dynamo exporter writes what a Dropout that
// drops nothing returns as a copy, and its optimizer takes that away, and constants.
func cloningExporter(producer string) bool {
	v, ok := strings.CutPrefix(producer, "pytorch 2.")
	minor, _, _ := strings.Cut(v, ".")
	k, err := strconv.Atoi(minor)
	return ok && err == nil && k < 14
}

// trainingNames begin the names that the dynamo exporter gives to nodes of
// normalisations that train: they outlast passes that take the metadata away.
var trainingNames = []string{"node__native_batch_norm_legit_functional", "node__batch_norm_with_update"}

// trains reports a batch normalisation that the exporter writes as that of an
// inference, though the call that it stands for trains.
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

// drops reports a Dropout that drops; before opset 12 the file does not say.
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

// call reads the call that a node was made of, and the modules it stands in.
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

// flagged reads the argument of a call that says whether it trains. A
// normalisation without running statistics computes them in either mode.
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

// fxOp is the operator that an FX node's text calls, without namespace and
// overload; "" where it calls none of ATen's.
func fxOp(text string) string {
	_, rest, ok := strings.Cut(text, "[target=torch.ops.aten.")
	if !ok {
		return ""
	}
	op, _, _ := strings.Cut(rest, ".")
	return op
}

// dropout notes a module of a Dropout class that copies its operand: torch.export
// writes so what drops nothing, in evaluation mode or with p = 0.
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

// mask is what a Dropout takes of the result of a node, in bytes: its own result and
// its mask.
func (m *mode) mask(n *graph.Node) int64 {
	if len(n.Outputs) == 0 || n.Outputs[0] < 0 {
		return 0
	}
	t := &m.g.Values[n.Outputs[0]].Type
	bytes, _ := t.Bytes().Int()
	return bytes + bytes/max(t.Elem.Bytes(1), 1)
}

// seldomDrops reports a Dropout within the innermost of classes that has p = 0 by
// default.
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

// modules notes classes that drop out by default, and the children that a
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

// named notes the children that a Sequential calls by the names of nodes, as the
// TorchScript exporter joins those of modules: /net/net.3/Gemm.
func (m *mode) named(n *graph.Node) {
	parts := strings.Split(n.Name, "/")
	for i := 1; i+1 < len(parts); i++ {
		tail, ok := strings.CutPrefix(parts[i], parts[i-1]+".")
		if k, err := strconv.Atoi(tail); ok && err == nil && k >= 0 && parts[i-1] != "" {
			m.child(n, strings.Join(parts[1:i], "/"), k)
		}
	}
}

// child notes that a Sequential calls its child of a number, and what that returns.
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

// writtenToRun reports a file that onnxruntime wrote after it had optimised it for an
// inference: it imports the operator sets of all of its own kernels.
func writtenToRun(g *graph.Graph) bool {
	return g.Model.Opset("com.microsoft.nchwc") > 0
}

// mergedWeight is the name of a matrix that onnxsim computed from others of the
// file, as it names what it makes; "" for none.
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

// stripped reports a file of the dynamo exporter, by the names of its nodes, without
// a word of the metadata that this exporter writes on every node.
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

// foldedByScript is the name of a weight that the TorchScript exporter computed
// from others: a transposed matrix, or a convolution with the normalisation after
// it.
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

// gap is the first child of a Sequential that no call stems from, though calls of
// its neighbours do. It counts what all such children would take if they dropped out.
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

// modelName is the library and the model of a class, such as "transformers bert".
func modelName(class string) string {
	parts := strings.Split(class, ".")
	if len(parts) > 2 && parts[1] == "models" {
		return parts[0] + "' " + parts[2]
	}
	return class
}
