//go:build linux

package main

import (
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

func itoa[T int | int64](n T) string { return strconv.FormatInt(int64(n), 10) }

var modelGenerators = []generator{
	{"model-bytes", 14, modelBytes},
	{"model-fields", 20, modelFields},
	{"model-values", 20, modelValues},
	{"model-names", 20, modelNames},
	{"model-markup", 8, modelMarkup},
	{"model-operators", 26, modelOperators},
	{"model-structure", 14, modelStructure},
	{"model-scaled", 3, modelScaled},
	{"model-external", 10, modelExternal},
}

// modelBytes mutates a sample model as bytes.
func modelBytes(b *builder) {
	data := b.s.data(pick(b.r, smallModels))
	for range 1 + b.r.IntN(2) {
		data = mutateBytes(b.r, data)
	}
	b.file("m.onnx", data)
	b.model("m.onnx")
}

// modelFields mutates fields of a sample model on the wire, whatever they mean.
func modelFields(b *builder) {
	m := parse("Model", b.s.data(pick(b.r, smallModels)))
	for range 1 + b.r.IntN(3) {
		b.mutateField(pick(b.r, places("Model", &m)))
	}
	b.file("m.onnx", encode(m))
	b.model("m.onnx")
}

// mutateField changes one field: removed, repeated, of another number or wire
// type, nested in itself, replaced.
func (b *builder) mutateField(p place) {
	f, list := p.field(), *p.in
	switch b.r.IntN(9) {
	case 0:
		*p.in = append(list[:p.at:p.at], list[p.at+1:]...)
	case 1:
		for range 1 << b.r.IntN(8) {
			*p.in = append(*p.in, f.clone())
		}
	case 2:
		f.num = protowire.Number(1 + b.r.IntN(30))
	case 3:
		*f = *num(f.num, pick(b.r, hostileInts))
	case 4:
		*f = *str(f.num, hostileName(b.r))
	case 5:
		*f = field{num: f.num, typ: pick(b.r, []protowire.Type{protowire.Fixed32Type, protowire.Fixed64Type}), val: b.r.Uint64()}
	case 6: // a message within itself
		if f.kind != "" {
			for range 1 + b.r.IntN(6) {
				f.sub = append(f.sub, f.clone())
			}
		}
	case 7:
		list[p.at], list[b.r.IntN(len(list))] = list[b.r.IntN(len(list))], f
	case 8:
		*f = *str(f.num, mutateBytes(b.r, f.append(nil)))
	}
}

// modelValues gives the numbers of a sample model hostile values, and its
// names each other's.
func modelValues(b *builder) {
	m := parse("Model", b.s.data(pick(b.r, smallModels)))
	all := places("Model", &m)
	var numbers, names []*field
	for _, p := range all {
		switch f := p.field(); {
		case f.typ == protowire.VarintType:
			numbers = append(numbers, f)
		case f.kind == "" && f.typ == protowire.BytesType && len(f.data) < 200 && p.kind != "Tensor":
			names = append(names, f)
		}
	}
	for range 1 + b.r.IntN(4) {
		if b.chance(3) {
			pick(b.r, names).data = pick(b.r, names).data
		} else {
			pick(b.r, numbers).val = uint64(pick(b.r, hostileInts))
		}
	}
	b.file("m.onnx", encode(m))
	b.model("m.onnx")
}

// modelNames renames values, nodes, operators, dimensions, domains and
// metadata consistently, so that the model stays what it was.
func modelNames(b *builder) {
	m := parse("Model", b.s.data(pick(b.r, smallModels)))
	what := 1 + b.r.IntN(127)
	rename := map[string]string{}
	for _, p := range places("Model", &m) {
		f := p.field()
		if f.kind != "" || f.typ != protowire.BytesType {
			continue
		}
		class := nameClass(p.kind, f.num)
		if class < 0 || what&(1<<class) == 0 {
			continue
		}
		old := string(f.data)
		key := itoa(min(class, 1)) + old // values are named in several places
		if _, ok := rename[key]; !ok {
			rename[key] = b.renamed(class, old)
		}
		f.data = []byte(rename[key])
	}
	b.file("m.onnx", encode(m))
	b.model("m.onnx")
}

// modelMarkup gives every weight a name that a page would obey, and asks for a
// page.
func modelMarkup(b *builder) {
	m := parse("Model", b.s.data("mlp.onnx"))
	var live []string
	for _, name := range hostileNames {
		if strings.Contains(name, marker) {
			live = append(live, name)
		}
	}
	prefix := pick(b.r, live) + pick(b.r, []string{"", "."})
	for _, p := range places("Model", &m) {
		if f := p.field(); f.kind == "" && f.typ == protowire.BytesType && nameClass(p.kind, f.num) == 0 {
			f.data = []byte(strings.Replace(string(f.data), "net", prefix+"net", 1))
		}
	}
	b.file("m.onnx", encode(m))
	b.sample("mlp.onnx")
	b.run(pick(b.r, [][]string{{"analyze", "m.onnx", "--batch", "2"}, {"analyze", "m.onnx", "--batch", "2", "--vram", "1G"}, {"diff", "mlp.onnx", "m.onnx", "--batch", "2"}})...)
	b.run("--format", "markdown")
	if b.args[0] == "analyze" && b.chance(2) {
		b.args[len(b.args)-1] = "html"
	}
}

// nameClass sorts the strings of a model: 0 names of values, 1 of operators
// and domains, and so on; -1 is none.
func nameClass(kind string, n protowire.Number) int {
	switch fmt.Sprint(kind, n) {
	case "Node1", "Node2", "Tensor8", "ValueInfo1", "Annotation1":
		return 0
	case "Node4", "Node7", "OpsetID1":
		return 1
	case "Node3":
		return 2
	case "Dim2":
		return 3
	case "Entry2":
		return 4
	case "Graph2", "Model2", "Model3", "Model4", "Model6", "Graph10", "Node6":
		return 5
	case "Attribute1", "Attribute4", "Entry1":
		return 6
	}
	return -1
}

// renamed is the new name of one that a model has: in each class some stay.
func (b *builder) renamed(class int, old string) string {
	name := hostileName(b.r)
	switch {
	case old == "" || class == 1 && !b.chance(6) || class == 6 && !b.chance(4) || b.chance(3):
		return old
	case class == 4 && b.chance(2): // the path of modules
		return strings.Replace(old, ".", "."+name, 1)
	case class == 0:
		return name + old // which stay different
	}
	return name
}

// operators are names of operators of ONNX and of ONNX Runtime.
var operators = strings.Fields(`Abs Add AffineGrid And ArgMax ArrayFeatureExtractor Attention AveragePool BatchNormalization BeamSearch BiasGelu BitShift Cast CastLike
CenterCropPad Clip Col2Im Compress Concat ConcatFromSequence Constant ConstantOfShape Conv ConvInteger ConvTranspose CumSum DFT DepthToSpace DequantizeLinear
DecoderMaskedMultiHeadAttention DeformConv Dropout DynamicQuantizeLinear Einsum Elu EmbedLayerNormalization Equal Expand EyeLike Flatten FusedConv FusedGemm FusedMatMul
GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool GridSample GroupNormalization GroupQueryAttention HannWindow Hardmax Identity If InstanceNormalization
IsInf LRN LSTM LayerNormalization LinearClassifier LogSoftmax Loop LpPool MatMul MatMulInteger MatMulNBits Max MaxPool MaxRoiPool MaxUnpool Mean MelWeightMatrix Mod
MultiHeadAttention Multinomial NegativeLogLikelihoodLoss NonMaxSuppression NonZero OneHot Optional PRelu Pad Pow QLinearConv QLinearMatMul QuantizeLinear RNN RandomNormal
RandomUniformLike Range ReduceL1 ReduceMax ReduceMean ReduceSum Relu Reshape Resize ReverseSequence RoiAlign RotaryEmbedding STFT Scan ScatterElements ScatterND Selu
SequenceAt SequenceConstruct SequenceEmpty SequenceInsert SequenceMap Shape Size SkipLayerNormalization Slice Softmax SoftmaxCrossEntropyLoss SpaceToDepth Split SplitToSequence
Squeeze StringNormalizer Sub Sum TensorScatter TfIdfVectorizer Tile TopK Transpose TreeEnsembleRegressor Trilu Unique Unsqueeze Upsample Where Xor ZipMap NoSuchOperator`)

// attributeNames are names of attributes that change shapes.
var attributeNames = strings.Fields(`axis axes perm kernel_shape strides pads dilations group to keepdims shape value value_int value_ints start end mode equation num_outputs split
auto_pad ceil_mode output_shape output_padding hidden_size direction layout num_heads kv_num_heads k block_size N bits batch_dims depth output_size blocksize transA transB
alpha epsilon reduction dtype seed num_groups sorted largest select_last_index allowzero noop_with_empty_axes storage_order scales height_scale output_height output_width
spatial_scale pooled_shape p max_gram_length classlabels_int64s num_scan_inputs scan_input_axes body then_branch else_branch starts ends broadcast is_test is_causal
q_num_heads coordinate_transformation_mode keep_aspect_ratio_policy antialias high low mean onesided inverse detect_negative detect_positive`)

// someDims are dimensions, small ones more often than hostile ones.
func (b *builder) someDims() []int64 {
	rank := b.r.IntN(6)
	if b.chance(200) {
		rank = 2000
	}
	dims := make([]int64, rank)
	for i := range dims {
		dims[i] = int64(1 + b.r.IntN(5))
		if b.chance(40) {
			dims[i] = pick(b.r, hostileInts)
		}
	}
	return dims
}

// modelOperators calls operators with operands and attributes of any kind.
func modelOperators(b *builder) {
	values := []string{""}
	var graph []*field
	for i := range 2 + b.r.IntN(4) {
		name := "x" + itoa(i)
		values = append(values, name)
		graph = append(graph, b.someValue(name))
	}
	for i := range 1 + b.r.IntN(2) {
		n := b.someNode(i, values)
		graph = append(graph, n)
		values = append(values, fmt.Sprintf("y%d", i))
	}
	graph = append(graph, output(values[len(values)-1], elemFloat))
	b.file("m.onnx", encode(model(int64(6+b.r.IntN(20)), graph...)))
	b.model("m.onnx")
}

// someValue is an input or an initializer.
func (b *builder) someValue(name string) *field {
	elem := pick(b.r, []int64{elemFloat, elemFloat, elemFloat, elemInt64, elemInt64, elemBool, 10, 16, 8, 2, 0, 99})
	switch b.r.IntN(5) {
	case 0:
		v := make([]int64, b.r.IntN(6))
		for i := range v {
			v[i] = int64(b.r.IntN(6)) - 1
			if b.chance(6) {
				v[i] = pick(b.r, hostileInts)
			}
		}
		return int64s(name, v...)
	case 1:
		return tensor(name, elemFloat, make([]byte, 4*24), 2, 3, 4)
	case 2:
		return symbolic(name, pick(b.r, []string{"batch", "n", "N*2", ""}), pick(b.r, []string{"seq", "n", "batch"}))
	}
	return input(name, elem, b.someDims()...)
}

// someNode calls one operator.
func (b *builder) someNode(i int, values []string) *field {
	var in []string
	for range b.r.IntN(7) {
		in = append(in, pick(b.r, values))
	}
	out := []string{fmt.Sprintf("y%d", i)}
	for j := range b.r.IntN(3) {
		out = append(out, fmt.Sprintf("y%d_%d", i, j))
	}
	n := node(pick(b.r, operators), in, out)
	for range b.r.IntN(3) {
		n.sub = append(n.sub, b.someAttribute(i))
	}
	if b.chance(5) {
		n.sub = append(n.sub, str(7, "com.microsoft"))
	}
	return n
}

func (b *builder) someAttribute(i int) *field {
	name := pick(b.r, attributeNames)
	switch b.r.IntN(7) {
	case 0, 1:
		return intAttr(name, b.someInt())
	case 2, 3:
		v := make([]int64, b.r.IntN(6))
		for i := range v {
			v[i] = b.someInt()
		}
		return intsAttr(name, v...)
	case 4:
		return stringAttr(name, pick(b.r, []string{"NOTSET", "SAME_UPPER", "ij,jk->ik", "...a,...b->ab", "bidirectional", "linear", hostileName(b.r)}))
	case 5:
		return floatAttr(name, float32(b.r.NormFloat64()*100))
	}
	return graphAttr(name, str(2, "sub"), node(pick(b.r, operators), []string{"x0"}, []string{"z"}), output("z", elemFloat, 2, 2), input(fmt.Sprintf("b%d", i), elemInt64))
}

func (b *builder) someInt() int64 {
	if b.chance(4) {
		return pick(b.r, hostileInts)
	}
	return int64(b.r.IntN(8)) - 2
}

// modelStructure makes graphs that no exporter writes.
func modelStructure(b *builder) {
	relu := func(in, out string) *field { return node("Relu", []string{in}, []string{out}) }
	x, y := input("x", elemFloat, 2, 3), output("y", elemFloat, 2, 3)
	depth := 1 << b.r.IntN(11)
	var m []*field
	switch b.r.IntN(13) {
	case 0: // a cycle
		m = model(20, x, y, node("Add", []string{"x", "z"}, []string{"y"}), relu("y", "z"))
	case 1: // results of one name
		m = model(20, x, y, relu("x", "y"), relu("y", "y"), relu("x", "y"))
	case 2: // operands that nothing makes
		m = model(20, x, y, node("Add", []string{"x", hostileName(b.r)}, []string{"y"}))
	case 3: // functions that call themselves and each other
		m = append(model(20, x, y, local(node("F", []string{"x"}, []string{"y"}))),
			function("F", []string{"x"}, []string{"y"}, local(node("G", []string{"x"}, []string{"y"}))),
			function("G", []string{"x"}, []string{"y"}, local(node("F", []string{"x"}, []string{"y"}))))
	case 4: // functions that double
		m = model(20, x, y, local(node("F0", []string{"x"}, []string{"y"})))
		for i := range min(depth, 64) {
			next := "F" + itoa(i+1)
			m = append(m, function("F"+itoa(i), []string{"x"}, []string{"y"}, local(node(next, []string{"x"}, []string{"t"})), local(node(next, []string{"t"}, []string{"y"}))))
		}
		m = append(m, function("F"+itoa(min(depth, 64)), []string{"x"}, []string{"y"}, relu("x", "y")))
	case 5: // subgraphs within subgraphs
		inner := []*field{str(2, "s"), relu("x", "y"), y}
		for range depth {
			inner = []*field{str(2, "s"), node("If", []string{"c"}, []string{"y"}, graphAttr("then_branch", inner...), graphAttr("else_branch", str(2, "e"), relu("x", "y"), y)), y}
		}
		m = model(20, append(inner[1:], x, input("c", elemBool))...)
	case 6: // types within types
		t := msg(2, "Type", msg(1, "TensorType", num(1, elemFloat)))
		for range depth {
			t.num = 1
			t = msg(2, "Type", msg(4, "Sequence", t))
		}
		m = model(20, msg(11, "ValueInfo", str(1, "x"), t), y, relu("x", "y"))
	case 7: // no graph, two graphs
		m = model(20, x, y, relu("x", "y"))
		m = append(m[:len(m)-1], m[len(m)-1:]...)
		for range b.r.IntN(3) {
			m = append(m, m[len(m)-1].clone())
		}
	case 8: // versions
		m = model(pick(b.r, hostileInts), x, y, relu("x", "y"))
		m[0] = num(1, pick(b.r, hostileInts))
	case 9: // a loop without end
		m = model(20, x, y, tensor("trips", elemInt64, []byte{0, 0, 0, 0, 0, 0, 0, 0x40}), tensor("go", elemBool, []byte{1}),
			node("Loop", []string{"trips", "go", "x"}, []string{"y", "all"}, graphAttr("body", str(2, "body"), input("i", elemInt64), input("c", elemBool), input("v", elemFloat, 2, 3),
				node("Identity", []string{"c"}, []string{"c2"}), relu("v", "v2"), output("c2", elemBool), output("v2", elemFloat, 2, 3), output("v2", elemFloat, 2, 3))))
	case 10: // unknown domains and operators
		n := node(hostileName(b.r), []string{"x"}, []string{"y"})
		n.sub = append(n.sub, str(7, hostileName(b.r)))
		m = model(20, x, y, n, msg(8, "OpsetID", str(1, hostileName(b.r)), num(2, 1)))
	case 11: // a tensor that says more than it has
		t := tensor("w", elemFloat, make([]byte, b.r.IntN(40)), b.someDims()...)
		m = model(20, x, y, t, node("Add", []string{"x", "w"}, []string{"y"}))
	case 12: // attributes of the wrong type and a reference outside a function
		n := node("Softmax", []string{"x"}, []string{"y"}, msg(5, "Attribute", str(1, "axis"), str(4, "one"), num(20, attrInt)), msg(5, "Attribute", str(1, "axis"), str(21, "outer"), num(20, attrInt)))
		m = model(20, x, y, n)
	}
	b.file("m.onnx", encode(m))
	b.model("m.onnx")
}

// modelExternal keeps bytes that shapes or a run need in another file.
func modelExternal(b *builder) {
	location := b.location()
	offset, length := int64(-1), int64(16)
	if b.chance(3) {
		offset = pick(b.r, hostileInts)
	}
	if b.chance(3) {
		length = pick(b.r, hostileInts)
	}
	m := model(20, input("x", elemFloat, 2, 3), external("shape", location, elemInt64, offset, length, 2), node("Reshape", []string{"x", "shape"}, []string{"y"}), output("y", elemFloat, 3, 2))
	if b.chance(3) { // a weight
		m = model(20, input("x", elemFloat, 2, 2), external("w", location, elemFloat, offset, length, 2, 2), node("MatMul", []string{"x", "w"}, []string{"y"}), output("y", elemFloat, 2, 2))
	}
	b.file("m.onnx", encode(m))
	b.model("m.onnx")
}

// location is where a model says that a tensor's bytes lie.
func (b *builder) location() string {
	switch b.r.IntN(9) {
	case 0:
		b.file("data.bin", make([]byte, b.r.IntN(64)))
		return "data.bin"
	case 1:
		b.fifo("data.bin")
		return "data.bin"
	case 2:
		b.folder("data.bin")
		return "data.bin"
	case 3:
		b.link("data.bin", "data.bin")
		return "data.bin"
	case 4:
		return hostileName(b.r)
	case 5:
		return strings.Repeat("a/", b.r.IntN(3000)) + "x"
	case 6:
		return b.outside("secret.bin")
	}
	return b.outside(b.canary())
}

// model chooses what to do with a model of the case's folder.
func (b *builder) model(name string) {
	batch := pick(b.r, [][]string{nil, {"--batch", "2"}, {"--batch", "2"}, {"--batch", "max"}, {"--batch", "9223372036854775807"}})
	switch b.r.IntN(20) {
	case 0, 1, 2, 3, 4, 5, 6:
		b.run("analyze", name)
		b.run(batch...)
		b.format("text", "json", "markdown", "sarif", "html")
		b.settings()
		b.timeline()
	case 7, 8, 9:
		b.run("show", name)
		b.run(batch...)
		b.format("text", "json")
		b.timeline()
	case 10:
		b.run("plan", name, "--timeout", "1s")
		b.run(batch...)
		b.settings()
	case 11, 12:
		b.run("list", "ops", "--model", name)
		b.format("text", "json")
	case 13, 14:
		b.sample("mlp.onnx")
		b.run("diff", "mlp.onnx", name)
		if b.chance(2) {
			b.args = []string{"diff", name, "mlp.onnx"}
		}
		b.run("--batch", "2")
		b.format("text", "json", "markdown")
	case 15, 16, 17:
		b.text(".memplan.yaml", strings.Replace(gate, "mlp.onnx", name, 1))
		if b.chance(3) {
			b.run("baseline")
			break
		}
		b.sample(".memplan-baseline.json")
		b.run("check")
		b.format("text", "json", "markdown", "sarif")
	case 18:
		b.run("validate", name, "--device", "cpu", "--batch", "2", "--timeout", "1s")
		b.format("text", "json", "html")
	case 19:
		b.run("analyze", name, "--batch", "2", "--color", "always")
		b.colored = true
	}
	if b.chance(10) && b.args[0] != "baseline" {
		b.run("-o", "out.txt")
	}
}

// format asks for one of the formats.
func (b *builder) format(names ...string) { b.run("--format", pick(b.r, names)) }

// settings adds flags that change what is computed.
func (b *builder) settings() {
	for range b.r.IntN(3) {
		b.run(pick(b.r, [][]string{{"--mode", "infer"}, {"--vram", "16G", "--timeout", "1s"}, {"--precision", "amp-bf16"}, {"--optimizer", "sgd"}, {"--checkpoint", "all"},
			{"--gpu", "t4"}, {"--loss", "sum"}, {"--accumulate", "2"}, {"--attention", "flash"}, {"--dim", "batch=3"}, {"--freeze", "*"}, {"--lora", "r=4,target=all-linear"}})...)
	}
}

// timeline asks for a timeline, in one of its formats.
func (b *builder) timeline() {
	if b.chance(4) {
		b.run("--timeline", "step."+pick(b.r, []string{"json", "csv", "svg", "png", "pickle"}))
	}
}
