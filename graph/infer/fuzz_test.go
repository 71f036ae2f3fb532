package infer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/memplan/memplan/graph"
)

// A nasty generator makes one node of an operator with arguments that may or
// may not make sense.
type nasty struct {
	*rand.Rand
	b builder
}

func (r *nasty) dim() graph.Dim {
	switch r.IntN(12) {
	case 0:
		return graph.Dim{}
	case 1:
		return graph.Sym("N")
	case 2:
		return graph.Sym("M").Add(graph.Int(1))
	case 3:
		return graph.Int([]int64{0, 1 << 20, 1 << 40, math.MaxInt64}[r.IntN(4)])
	}
	return graph.Int(r.Int64N(6))
}

func (r *nasty) shape() graph.Shape {
	if r.IntN(12) == 0 {
		return nil
	}
	s := make(graph.Shape, r.IntN(6))
	for i := range s {
		s[i] = r.dim()
	}
	return s
}

func (r *nasty) elem() graph.DType {
	return []graph.DType{graph.Float32, graph.Int64, graph.Float16, graph.Bool, graph.String, graph.Uint8, graph.Undefined}[r.IntN(7)]
}

func (r *nasty) number() int64 {
	switch r.IntN(10) {
	case 0:
		return math.MinInt64
	case 1:
		return math.MaxInt64
	case 2:
		return 1 << 40
	}
	return r.Int64N(8) - 3
}

func (r *nasty) list() []int64 {
	out := make([]int64, r.IntN(7))
	for i := range out {
		out[i] = r.number()
	}
	return out
}

// value adds an input, a constant, or nothing.
func (r *nasty) value(i int) graph.ValueID {
	name := fmt.Sprint("x", i)
	switch r.IntN(8) {
	case 0:
		return graph.NoValue
	case 1, 2:
		return r.b.ints(name, r.list()...)
	case 3:
		return r.b.initializer(name, &graph.Constant{Type: graph.Int64, Dims: []int64{}, Ints: []int64{r.number()}})
	case 4:
		f := []float64{math.NaN(), math.Inf(1), -2, 0, 0.5, 1e300, 3}[r.IntN(7)]
		return r.b.initializer(name, &graph.Constant{Type: graph.Float32, Dims: []int64{1}, Floats: []float64{f}})
	case 5:
		of := tensorOf(r.elem(), r.shape())
		kind := []graph.TypeKind{graph.SequenceType, graph.OptionalType, graph.MapType, graph.NoType}[r.IntN(4)]
		t := graph.Type{Kind: kind, Of: &of}
		if r.IntN(3) == 0 {
			t.Of = nil
		}
		return r.b.inputType(name, t)
	}
	return r.b.input(name, r.elem(), r.shape())
}

// attrNames are the attributes that rules read.
var attrNames = strings.Fields(`N K P allowzero auto_pad axes axis batch_dims bits block_size blocksize border body cats_int64s cats_strings ceil_mode
	center_point_box classlabels_ints classlabels_int64s classlabels_strings coordinate_transformation_mode default_tensor dilations direction dtype
	else_branch end ends equation exclusive fmod gather_axis group hidden_size inputdimensions inverse keep_aspect_ratio_policy keepdims
	kernel_shape keys_strings keys_tensor kv_num_heads largest layout leaf_weights map_form max max_map maxsplit min mode n_targets new_axis
	ngram_indexes nodes_splits noop_with_empty_axes num_heads num_outputs num_scan_inputs onesided output_datatype output_dtype output_height
	output_padding output_shape output_width pads perm pixel_format pooled_shape q_num_heads qkv_hidden_sizes reduction sample_size scale scales
	scan_input_axes scan_output_axes shape size softmax_precision split start starts stash_type steps stopwords strides targets then_branch tiles to
	training_mode transA transB type update_rule upper value value_float value_floats value_int value_ints value_string value_strings values_floats
	values_strings values_tensor`)

func (r *nasty) attr(name string) graph.Attr {
	a := graph.Attr{Name: name}
	switch r.IntN(12) {
	case 0:
		a.Kind, a.S = graph.AttrString, []string{"", "SAME_UPPER", "ij,jk->ik", "...ij->", "bidirectional", "none", "linear", "not_larger"}[r.IntN(8)]
	case 1:
		a.Kind, a.F = graph.AttrFloat, float32(r.number())
	case 2:
		a.Kind, a.Tensor = graph.AttrTensor, &graph.Constant{Type: graph.Int64, Dims: []int64{1}, Ints: []int64{r.number()}}
	case 3:
		a.Kind, a.Strings = graph.AttrStrings, []string{"a", "b"}
	case 4:
		a.Kind, a.Floats = graph.AttrFloats, []float32{1, 2, 0.5, -1}[:r.IntN(5)]
	case 5:
		a.Kind, a.Graph = graph.AttrGraph, r.body()
	case 6:
		of := tensorOf(r.elem(), r.shape())
		a.Kind, a.Types = graph.AttrType, []graph.Type{{Kind: graph.SequenceType, Of: &of}}
	case 7, 8, 9:
		a.Kind, a.Ints = graph.AttrInts, r.list()
	default:
		a.Kind, a.I = graph.AttrInt, r.number()
	}
	return a
}

// body is a small graph of a few inputs and outputs.
func (r *nasty) body() *graph.Graph {
	var b builder
	var ids []graph.ValueID
	for i := range r.IntN(4) {
		ids = append(ids, b.input(fmt.Sprint("b", i), r.elem(), r.shape()))
	}
	if len(ids) > 0 {
		ids = append(ids, b.node("Relu", nil, ids[0]), b.node("Concat", []graph.Attr{{Name: "axis", Kind: graph.AttrInt}}, ids[0], ids[len(ids)-1]))
	} else {
		ids = append(ids, b.node("Constant", []graph.Attr{{Name: "value_int", Kind: graph.AttrInt, I: r.number()}}))
	}
	for range r.IntN(4) {
		b.g.Outputs = append(b.g.Outputs, ids[r.IntN(len(ids))])
	}
	g := b.graph()
	g.Parent = &r.b.g
	return g
}

// graph returns a graph of one node of op, and one that reads its output.
func (r *nasty) graph(op *Op) *graph.Graph {
	var in []graph.ValueID
	for i := range r.IntN(8) {
		in = append(in, r.value(i))
	}
	var attrs []graph.Attr
	for _, name := range attrNames {
		if r.IntN(10) == 0 {
			attrs = append(attrs, r.attr(name))
		}
	}
	out := r.b.nodeOf(op.Domain, op.Name, r.IntN(5), attrs, in...)
	for _, id := range out {
		if r.IntN(3) == 0 { // the file says something, true or not
			r.b.g.Values[id].Decl = tensorOf(r.elem(), r.shape())
		}
	}
	if len(out) > 0 {
		r.b.node("Shape", nil, out[0])
	}
	version := int64(1 + r.IntN(28))
	r.b.opts = []graph.Opset{{Domain: "", Version: version}, {Domain: op.Domain, Version: 1 + r.Int64N(5)}}
	if op.Domain == "" {
		r.b.opts = r.b.opts[:1]
	}
	g := r.b.graph()
	g.Outputs = out
	return g
}

// tame reports a shape that no tensor can have.
func tame(t graph.Type) error {
	for _, d := range t.Shape {
		if n, ok := d.Int(); ok && n < 0 {
			return fmt.Errorf("negative dim in %s", typeText(t))
		}
		if !d.Known() && t.Kind == graph.TensorType {
			return fmt.Errorf("nameless dim in %s", typeText(t))
		}
	}
	if dims, ok := t.Shape.Static(); ok && t.Kind == graph.TensorType && t.Elem.Valid() {
		if _, ok := (&graph.Constant{Type: t.Elem, Dims: dims}).Bytes(); !ok {
			return fmt.Errorf("the size of %s overflows", typeText(t))
		}
	}
	return nil
}

// No operator panics, whatever its arguments, and no type is absurd.
func TestOpsOnNonsense(t *testing.T) {
	rounds := uint64(60)
	if testing.Short() {
		rounds = 20
	}
	accepted := 0
	for i := range Ops {
		for seed := range rounds {
			accepted += tryNonsense(t, &Ops[i], uint64(i)*1000+seed)
		}
	}
	if accepted < len(Ops) {
		t.Errorf("only %d graphs accepted", accepted)
	}
}

func tryNonsense(t *testing.T, op *Op, seed uint64) (accepted int) {
	r := &nasty{Rand: rand.New(rand.NewPCG(seed, 7))}
	g := r.graph(op)
	defer func() {
		if p := recover(); p != nil {
			var b strings.Builder
			_ = graph.Format(&b, g)
			t.Errorf("%s.%s seed %d: panic: %v\n%s", op.Domain, op.Name, seed, p, b.String())
		}
	}()
	for _, opt := range []Options{{}, {Strict: true}, {Batch: 3}, {Dims: map[string]int64{"N": 2, "M": 1}}} {
		if _, err := Infer(g, opt); err != nil {
			continue
		}
		accepted++
		for i := range g.Values {
			if err := tame(g.Values[i].Type); err != nil && g.Values[i].Kind == graph.Computed {
				t.Errorf("%s.%s seed %d: %s: %v", op.Domain, op.Name, seed, g.Values[i].Name, err)
			}
		}
	}
	return accepted
}

func FuzzInfer(f *testing.F) {
	for _, r := range opRows {
		ops := strings.Fields(r.ops)
		f.Add(strings.ReplaceAll(r.text, "OP", ops[0]), r.opset, int64(2))
	}
	f.Fuzz(func(t *testing.T, text string, opset, batch int64) {
		head := fmt.Sprintf(`<ir_version: 10, opset_import: ["" : %d, "com.microsoft" : 1, "ai.onnx.ml" : 3, "ai.onnx.preview.training" : 1, "ai.onnx.preview" : 1]> g `, opset)
		g, err := graph.Parse(strings.NewReader(head + text))
		if err != nil {
			return
		}
		for _, opt := range []Options{{}, {Strict: true, AnySize: true}, {Batch: batch}, {Dims: map[string]int64{"N": batch}}} {
			if _, err := Infer(g, opt); err != nil || opt.AnySize {
				continue
			}
			for i := range g.Values {
				if err := tame(g.Values[i].Type); err != nil && g.Values[i].Kind == graph.Computed {
					t.Errorf("%s: %v", g.Values[i].Name, err)
				}
			}
		}
	})
}
