package lift_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/infer"
	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/graph/train"
)

// parseGraph reads a graph in ONNX's text syntax and infers its shapes.
func parseGraph(t *testing.T, text string) *graph.Graph {
	t.Helper()
	opset := "18"
	if strings.Contains(text, " Swish") || strings.Contains(text, "RMSNormalization") || strings.Contains(text, " Attention") {
		opset = "24"
	} else if strings.Contains(text, " Gelu") || strings.Contains(text, "GroupNormalization") {
		opset = "21"
	} else if strings.Contains(text, "ReduceMean<axes") {
		opset = "17"
	}
	g, err := graph.Parse(strings.NewReader(`<ir_version: 10, opset_import: ["" : ` + opset + `, "com.microsoft" : 1]> g ` + text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if _, err := infer.Infer(g, infer.Options{}); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return g
}

func liftText(t *testing.T, text string) *lift.Lifted {
	t.Helper()
	l, err := lift.Lift(parseGraph(t, text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return l
}

// calls writes the calls of a lifted graph, one a line.
func calls(l *lift.Lifted) string {
	var lines []string
	for i := range l.Graph.Nodes {
		n := &l.Graph.Nodes[i]
		var outs []string
		for _, o := range n.Outputs {
			outs = append(outs, l.Graph.Values[o].Name)
		}
		lines = append(lines, fmt.Sprintf("%s(%s) -> %s", n.Op, argsText(l, n.Args), strings.Join(outs, ", ")))
	}
	return strings.Join(lines, "\n")
}

func argsText(l *lift.Lifted, args []graph.Arg) string {
	parts := make([]string, len(args))
	for i, a := range args {
		switch a.Kind {
		case graph.ArgNone:
			parts[i] = "None"
		case graph.ArgValue:
			parts[i] = l.Graph.Values[a.Value].Name
		case graph.ArgInt:
			parts[i] = fmt.Sprint(a.Int)
		case graph.ArgFloat:
			parts[i] = fmt.Sprint(float32(a.Float))
		case graph.ArgBool:
			parts[i] = map[int64]string{0: "False", 1: "True"}[a.Int]
		case graph.ArgString:
			parts[i] = "'" + a.Str + "'"
		case graph.ArgList:
			parts[i] = "[" + argsText(l, a.List) + "]"
		}
		if a.Name != "" {
			parts[i] = a.Name + "=" + parts[i]
		}
	}
	return strings.Join(parts, ", ")
}

func allRows() []patternRow {
	rows := slices.Clone(patternRows)
	for _, r := range unaryRows {
		typ := "float"
		if strings.HasPrefix(r[0], "Is") {
			typ = "bool"
		}
		rows = append(rows, patternRow{r[1], fmt.Sprintf("(float[2] x) => (%s[2] y) { y = %s(x) }", typ, r[0]), r[1] + ".default(x) -> y"})
	}
	for _, r := range binaryRows {
		typ := "float"
		if slices.Contains([]string{"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}, r[0]) {
			typ = "bool"
		}
		name, _, _ := strings.Cut(r[1], ".")
		attr := ""
		if r[0] == "Mod" {
			attr = "<fmod = 1>"
		}
		rows = append(rows, patternRow{name, fmt.Sprintf("(float[2] x, float[3,1] z) => (%s[3,2] y) { y = %s%s(x, z) }", typ, r[0], attr), r[1] + "(x, z) -> y"})
	}
	return rows
}

// TestPatternRows lifts small graphs to the calls they stand for.
func TestPatternRows(t *testing.T) {
	for _, r := range allRows() {
		l := liftText(t, r.graph)
		if got := calls(l); got != r.calls {
			t.Errorf("%s: %s\n got %s\nwant %s", r.rule, r.graph, strings.ReplaceAll(got, "\n", "\n     "), strings.ReplaceAll(r.calls, "\n", "\n     "))
		}
		if len(l.Unlifted) > 0 || l.Source != lift.Patterns {
			t.Errorf("%s: source %s, unlifted %v", r.rule, l.Source, l.Unlifted)
		}
	}
}

// TestPatternRowsMake: each row of a rule makes an operator that the rule says it makes, and they are
// the operator table's.
func TestPatternRowsMake(t *testing.T) {
	makes := map[string][]string{}
	for _, r := range lift.PatternRules() {
		makes[r.Name] = append(makes[r.Name], r.Makes...) // hardswish is two rules
		for _, op := range r.Makes {
			if aten.Lookup(op) == nil {
				t.Errorf("rule %s makes %s, which the operator table lacks", r.Name, op)
			}
		}
	}
	for _, r := range allRows() {
		var made []string
		for _, call := range strings.Split(r.calls, "\n") {
			op, _, _ := strings.Cut(call, ".")
			made = append(made, op)
		}
		if len(makes[r.rule]) > 0 && !slices.ContainsFunc(made, func(op string) bool { return slices.Contains(makes[r.rule], op) }) {
			t.Errorf("rule %s says it makes %v, and a row of it makes %v", r.rule, makes[r.rule], made)
		}
	}
}

// TestPatternRowsComplete demands a row for every rule.
func TestPatternRowsComplete(t *testing.T) {
	rows := map[string]bool{}
	for _, r := range allRows() {
		rows[r.rule] = true
	}
	for _, r := range lift.PatternRules() {
		if !rows[r.Name] {
			t.Errorf("rule %s has no row", r.Name)
		}
		if r.Doc == "" || len(r.From) == 0 {
			t.Errorf("rule %s: doc %q, patterns %v", r.Name, r.Doc, r.From)
		}
	}
}

// TestPatternRowsRun runs the calls of every row: the operator table's shapes
// must be those of ONNX's shape inference, which know nothing of each other.
func TestPatternRowsRun(t *testing.T) {
	for _, r := range allRows() {
		l := liftText(t, r.graph)
		b, err := train.New(l, train.Options{})
		if err != nil {
			t.Errorf("%s: %v", r.rule, err)
			continue
		}
		for _, w := range b.Warnings {
			if w.Code == "shape-differs" || w.Code == "unknown-operator" {
				t.Errorf("%s: %s", r.rule, w.Message)
			}
		}
	}
}

// TestPatternRoles reads parameters, buffers and constants off a graph.
func TestPatternRoles(t *testing.T) {
	l := liftText(t, `(float[1,3,4,4] x) => (float[1,2] y) <float[2,3,1,1] "c.weight" = {1,1,1,1,1,1}, float[2] "bn.weight" = {1,1}, float[2] "bn.bias" = {0,0},
		float[2] rm = {0,0}, float[2] rv = {1,1}, int64[2] shape = {1,32}, float[32,2] "onnx::MatMul_7" = {}, float half = {0.5}> {
		a = Conv(x, "c.weight") b = BatchNormalization(a, "bn.weight", "bn.bias", rm, rv) c = Relu(b) d = Mul(c, half) e = Reshape(d, shape) y = MatMul(e, "onnx::MatMul_7") }`)
	want := map[string]lift.Role{"c.weight": lift.Parameter, "bn.weight": lift.Parameter, "bn.bias": lift.Parameter, "rm": lift.Buffer, "rv": lift.Buffer,
		"shape": lift.Constant, "onnx::MatMul_7": lift.Parameter, "half": lift.Constant, "x": lift.Unknown, "y": lift.Unknown}
	seen := 0
	for i, v := range l.Graph.Values {
		if w, ok := want[v.Name]; ok {
			seen++
			if l.Roles[i] != w {
				t.Errorf("%s: role %d, want %d", v.Name, l.Roles[i], w)
			}
		}
		if v.Name == "onnx::MatMul_7" && !v.Type.Shape[0].Equal(graph.Int(2)) {
			t.Errorf("a matrix stored [in, out] is the parameter %v", v.Type.Shape)
		}
	}
	if seen != len(want) {
		t.Errorf("saw %d of %d values", seen, len(want))
	}
	for i, n := range l.Graph.Nodes {
		if relu := n.Op == "relu.default"; l.InPlace[i] != relu {
			t.Errorf("%s in place: %v", n.Op, l.InPlace[i])
		}
		if w := map[string]string{"conv2d.default": "c", "batch_norm.default": "bn"}[n.Op]; n.Module != w {
			t.Errorf("%s stands in module %q, want %q", n.Op, n.Module, w)
		}
	}
}

// TestPatternRolesBehindViews: what exporters give other dims before it is used
// is a parameter all the same, though its elements are known.
func TestPatternRolesBehindViews(t *testing.T) {
	l := liftText(t, `(float[2,3,4,4] x) => (float[2,3,4,4] y) <float[3] "a.weight" = {1,1,1}, float[1] "p.weight" = {0.25}, float[3] "s.gamma" = {1,2,3}, int64[3] dims = {3,1,1}> {
		axes = Constant<value_ints = [1, 2]>() w = Unsqueeze("a.weight", axes) a = PRelu(x, w) b = PRelu(a, "p.weight") g = Reshape("s.gamma", dims) y = Mul(b, g) }`)
	got := map[string]lift.Role{}
	for i, v := range l.Graph.Values {
		got[v.Name] = l.Roles[i]
	}
	for _, name := range []string{"a.weight", "p.weight", "s.gamma"} {
		if got[name] != lift.Parameter {
			t.Errorf("%s has role %v", name, got[name])
		}
	}
}

// TestPatternModules inverts the names of the TorchScript exporter.
func TestPatternModules(t *testing.T) {
	l := liftText(t, `(float[2] x) => (float[2] y) {
		["/layer1/layer1.0/relu/Relu"] a = Relu(x) ["/layer1/layer1.0/relu_1/Relu"] c = Relu(a) ["/m/encoder/layer.3/ln_1/Add_1"] b = Add(c, x) ["/Sigmoid"] y = Sigmoid(b) }`)
	want := []string{"layer1.0.relu", "layer1.0.relu", "m.encoder.layer.3.ln_1", ""}
	for i, n := range l.Graph.Nodes {
		if n.Module != want[i] {
			t.Errorf("%s: module %q, want %q", n.Name, n.Module, want[i])
		}
	}
	if got := lift.Scopes(&l.Graph.Nodes[0]); !slices.Equal(got, []string{"", "layer1", "layer1.0", "layer1.0.relu"}) {
		t.Errorf("scopes %q", got)
	}
}

// TestPatternWarnings finds what a file does not say of a training step.
func TestPatternWarnings(t *testing.T) {
	conv := func(out, in string) string {
		return fmt.Sprintf("%s0 = Conv(%s, w, b) %s = Relu(%s0) ", out, in, out, out)
	}
	for _, c := range []struct{ code, graph string }{
		{"folded-batchnorm", `(float[1,2,4,4] x) => (float[1,2,4,4] c) <float[2,2,1,1] w = {1,1,1,1}, float[2] b = {0,0}> { ` + conv("a", "x") + conv("bb", "a") + conv("c", "bb") + `}`},
		{"eval-batchnorm", `(float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2] w = {1,1}> { y = BatchNormalization(x, w, w, w, w) }`},
		{"eager-attention", `(float[2,4,4] q, float[2,4,4] k, float[2,4,4] v) => (float[2,4,4] y) { kt = Transpose<perm = [0,2,1]>(k) q2 = Relu(q) a = MatMul(q2, kt) p = Softmax(a) y = MatMul(p, v) }`},
		{"no-dropout", `(float[2,4,4] q, float[2,4,4] k, float[2,4,4] v) => (float[2,4,4] y) { y = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, v) }`},
	} {
		l := liftText(t, c.graph)
		if !slices.ContainsFunc(l.Warnings, func(w graph.Warning) bool { return w.Code == c.code }) {
			t.Errorf("no warning %s: %v", c.code, l.Warnings)
		}
	}
	if l := liftText(t, `(float[2] x) => (float[2] y) { y = Relu(x) }`); len(l.Warnings) > 0 {
		t.Errorf("warnings without reason: %v", l.Warnings)
	}
}

// TestPatternUnlifted keeps what it does not know, and says so.
func TestPatternUnlifted(t *testing.T) {
	l := liftText(t, `(float[2,3,8] x) => (float[2,3,8] y) { r = Relu(x) s = LRN<size = 3>(r) y = Tanh(s) }`)
	if got := calls(l); got != "relu.default(x) -> r\nonnx.LRN(r) -> s\ntanh.default(s) -> y" || !slices.Equal(l.Unlifted, []string{"LRN"}) {
		t.Errorf("got %s, unlifted %v", got, l.Unlifted)
	}
	if l := liftText(t, `(float[2,3,8] x) => (float[2,3,8] y) { y = LRN<size = 3>(x) }`); l.Source != lift.None {
		t.Errorf("source %s of a graph of which nothing is lifted", l.Source)
	}
}

// TestPatternFoldedNorm restores a batch normalisation that an exporter folded
// into a convolution, from the metadata it left.
func TestPatternFoldedNorm(t *testing.T) {
	g := parseGraph(t, `(float[1,3,8,8] x) => (float[1,4,8,8] y) <float[4,3,1,1] "conv1.weight" = {}, float[4] "conv1.bias" = {}> { [node_bn] b = Conv(x, "conv1.weight", "conv1.bias") y = Relu(b) }`)
	g.Nodes[0].Meta = []graph.Prop{
		{Key: "pkg.torch.onnx.class_hierarchy", Value: "['Net', 'torch.nn.modules.batchnorm.BatchNorm2d', 'aten._native_batch_norm_legit_no_training.default']"},
		{Key: "pkg.torch.onnx.fx_node", Value: "%bn : [num_users=1] = call_function[target=torch.ops.aten._native_batch_norm_legit_no_training.default](args = (%conv2d, %p_bn1_weight, %p_bn1_bias, %b_bn1_running_mean, %b_bn1_running_var, 0.1, 1e-05), kwargs = {})"},
		{Key: "pkg.torch.onnx.name_scopes", Value: "['', 'bn1', 'bn']"},
	}
	l, err := lift.Lift(g)
	if err != nil {
		t.Fatal(err)
	}
	want := "conv2d.default(x, conv1.weight, None, [1, 1], [0, 0], [1, 1], 1) -> node_bn/conv\n" +
		"batch_norm.default(node_bn/conv, bn1.weight, bn1.bias, bn1.running_mean, bn1.running_var, True, 0.1, 1e-05, True) -> b\nrelu.default(b) -> y"
	if got := calls(l); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if a, b := l.Graph.Nodes[0].Module, l.Graph.Nodes[1].Module; a != "conv1" || b != "bn1" || !l.InPlace[2] {
		t.Errorf("modules %q and %q, activation in place: %v", a, b, l.InPlace[2])
	}
	roles := map[string]lift.Role{"bn1.weight": lift.Parameter, "bn1.running_var": lift.Buffer, "conv1.weight": lift.Parameter, "conv1.bias": lift.Constant}
	for i, v := range l.Graph.Values {
		if w, ok := roles[v.Name]; ok && l.Roles[i] != w {
			t.Errorf("%s: role %d, want %d", v.Name, l.Roles[i], w)
		}
	}
}

// TestPatternRefresh lifts anew when dims are bound otherwise.
func TestPatternRefresh(t *testing.T) {
	g, err := graph.Parse(strings.NewReader(`<ir_version: 10, opset_import: ["" : 18]> g (float[n,6] x) => (float[m,k,3] y) { s = Constant<value = int64[3] {0,-1,3}>() y = Reshape(x, s) }`))
	if err != nil {
		t.Fatal(err)
	}
	var l *lift.Lifted
	for _, n := range []int64{0, 4, 7} {
		if _, err := infer.Infer(g, infer.Options{Batch: n}); err != nil {
			t.Fatal(err)
		}
		if l == nil {
			if l, err = lift.Lift(g); err != nil {
				t.Fatal(err)
			}
			continue
		}
		l.Refresh(g)
		if want := fmt.Sprintf("reshape.default(x, [%d, 2, 3]) -> y", n); calls(l) != want {
			t.Errorf("got %s, want %s", calls(l), want)
		}
	}
}

// layers is two layers of a recurrent network as PyTorch's exporters write them: the
// parameters of the first as they are, those of the second joined.
const layers = `(float[5,2,4] x, float[2,2,4] h) => (float[5,2,4] y) <float[12,4] "r.weight_ih_l0" = {}, float[12,4] "r.weight_hh_l0" = {}, float[12] "r.bias_ih_l0" = {}, float[12] "r.bias_hh_l0" = {},
	float[1,12,4] "r.weight_ih_l1" = {}, float[1,12,4] r1 = {}, float[1,24] b1 = {}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] four = {4}, int64[1] twelve = {12}> {
	p = Slice("r.weight_ih_l0", zero, four, zero) q = Slice("r.weight_ih_l0", four, twelve, zero) pq = Concat<axis = 0>(q, p) w = Unsqueeze(pq, zero) v = Unsqueeze("r.weight_hh_l0", zero)
	b = Concat<axis = 0>("r.bias_ih_l0", "r.bias_hh_l0") c = Unsqueeze(b, zero) h0 = Slice(h, zero, one, zero) h1 = Slice(h, one, two, zero)
	a = GRU<hidden_size = 4, linear_before_reset = 1>(x, w, v, c, "", h0) s = Squeeze(a, one) rate = Constant<value = float {0.25}>() true = Constant<value = bool {1}>() d = Dropout(s, rate, true)
	e = GRU<hidden_size = 4, linear_before_reset = 1>(d, "r.weight_ih_l1", r1, b1, "", h1) y = Squeeze(e, one) }`

// TestPatternLayers makes one call of the layers of a recurrent network.
func TestPatternLayers(t *testing.T) {
	l := liftText(t, layers)
	got := calls(l)
	want := "gru.input(x, [h], [r.weight_ih_l0, r.weight_hh_l0, r.bias_ih_l0, r.bias_hh_l0, r.weight_ih_l1.0, r1.0, b1.0, b1.1], True, 2, 0.25, True, False, False) -> e/y, e/h"
	if !strings.HasPrefix(got, want+"\n") || strings.Count(got, "gru") != 1 || strings.Contains(got, "dropout") {
		t.Errorf("got\n%s\nwant it to begin with\n%s", got, want)
	}
	for i := range l.Graph.Values {
		v := &l.Graph.Values[i]
		if bytes, _ := v.Type.Shape.Static(); v.Name == "e/h" && (len(bytes) != 3 || bytes[0] != 2) {
			t.Errorf("the last states of two layers are %v", v.Type.Shape)
		}
		if joined := v.Name == "r1" || v.Name == "b1"; joined && l.Roles[i] != lift.Constant || strings.HasSuffix(v.Name, "_l0") && l.Roles[i] != lift.Parameter {
			t.Errorf("%s has role %d", v.Name, l.Roles[i])
		}
	}
}

// TestPatternLayersApart keeps layers apart that are of two modules, or of which
// something else is read.
func TestPatternLayersApart(t *testing.T) {
	for from, to := range map[string]string{
		`"r.weight_ih_l1"`:                    `"s.weight_ih_l0"`, // another module
		"d = Dropout(s, rate, true)":          "d = Exp(s)",
		"e = GRU":                             "e, last = GRU",
		"float[2,2,4] h) => (float[5,2,4] y)": "float[3,2,4] h) => (float[5,2,4] y)", // a state of other layers
	} {
		text := strings.ReplaceAll(strings.ReplaceAll(layers, from, to), "float[1,12,4] \"s.weight_ih_l0\"", "float[12,4] \"s.weight_ih_l0\"")
		if from == "e = GRU" {
			text = strings.Replace(text, "(float[5,2,4] y)", "(float[5,2,4] y, float[1,2,4] last)", 1)
		}
		if from == `"r.weight_ih_l1"` {
			text = strings.Replace(text, `e = GRU<hidden_size = 4, linear_before_reset = 1>(d, "s.weight_ih_l0"`, `w1 = Unsqueeze("s.weight_ih_l0", zero) e = GRU<hidden_size = 4, linear_before_reset = 1>(d, w1`, 1)
		}
		if got := calls(liftText(t, text)); strings.Count(got, "gru.input") != 2 {
			t.Errorf("%s: got\n%s", to, got)
		}
	}
}
