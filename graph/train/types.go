package train

import (
	"fmt"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/graph/program"
)

// A narrowing restores casts to the type of parameters: x.to(self.weight.dtype).
// A float32 file does not show them, and with half-precision parameters what is
// computed in float32 (positions, time embeddings) would spread through the
// network. PyTorch refuses to multiply, convolve or normalise tensors of
// different types, so that such a call implies a cast before it: of float32
// values computed from no parameter and no input, where they meet values
// computed from those; otherwise of the refused operand.
type narrowing struct {
	half    graph.DType
	derived []bool // the value is computed from parameters, buffers or inputs of floating-point type
	refused []bool // the value reaches a call that refuses float32 beside a derived value
	shared  []bool // more than one call reads it
	casts   int
	bytes   int64  // of the float32 tensors that were cast
	first   string // call before which the first cast stands
}

// untyped reports whether a factory call makes a float32 tensor in every precision:
// it gives no type, in files that show the code's arguments, or float32 literally.
// dtype=x.dtype also appears as float32; the source line distinguishes them, and
// without one positions are taken for float32, other tensors for x.dtype.
func (b *builder) untyped(op string, n *graph.Node) bool {
	if b.l.Source != lift.Metadata || !aten.Is(op, aten.DefaultType) {
		return false
	}
	typed := false
	for _, a := range n.Args {
		if a.Name == "like" {
			return false
		}
		typed = typed || a.Name == "dtype"
	}
	if !typed {
		return true
	}
	line := ""
	if lines := lift.Lines(n); len(lines) > 0 {
		line = lines[len(lines)-1].Text
	}
	if aten.Is(op, aten.Positions) {
		return !strings.Contains(line, ".dtype")
	}
	return strings.Contains(line, "torch.float")
}

// refusing reports whether an operator requires its floating-point operands to have one type
// (aten/src/ATen/native: addmm_out_cuda_impl, convolution's check_input_same_type_as_parameters,
// layer_norm_cuda's data pointers, sdp_utils' check_for_dtype, RNN.cpp's check_attributes, _prelu_kernel,
// grid_sampler's check_grid_sampler_common, TensorAdvancedIndexing.cpp). Three are not in the table.
func refusing(op string) bool {
	return aten.Is(op, aten.OneType) || op == "addbmm" || op == "addmv" || op == "bilinear"
}

func refuses(op string) bool { return refusing(op) || aten.Is(op, aten.WideWeights) }

// newNarrowing analyses the graph for parameters of type half; nil if the
// parameters have another type, or autocast converts operands.
func newNarrowing(b *builder) *narrowing {
	half := b.opt.Storage
	if half == graph.Undefined || half == graph.Float32 || b.opt.Config.Autocast != graph.Undefined {
		return nil
	}
	g := b.l.Graph
	w := &narrowing{half: half, derived: make([]bool, len(g.Values)), refused: make([]bool, len(g.Values)), shared: make([]bool, len(g.Values))}
	for id := range g.Values {
		steps := g.Values[id].Kind == graph.Input && len(g.Values[id].Type.Shape) < 2 // one number for each sample: code computes with it in float32
		w.derived[id] = b.env[id] != nil && b.env[id].DType == half && !steps
	}
	read := make([]bool, len(g.Values))
	for i := range g.Nodes {
		n := &g.Nodes[i]
		for _, id := range n.Inputs {
			w.shared[id], read[id] = read[id], true
		}
		from := slices.ContainsFunc(n.Inputs, func(id graph.ValueID) bool { return w.derived[id] })
		for _, o := range n.Outputs {
			if o >= 0 {
				w.derived[o] = from && g.Values[o].Type.Elem.IsFloat()
			}
		}
	}
	for i := len(g.Nodes) - 1; i >= 0; i-- {
		w.backward(g, &g.Nodes[i])
	}
	return w
}

// backward records which operands of a call reach one that refuses them.
func (w *narrowing) backward(g *graph.Graph, n *graph.Node) {
	op, _, _ := strings.Cut(n.Op, ".")
	strict := refuses(op)
	passes := !aten.Is(op, aten.Casts) && !slices.ContainsFunc(n.Args, func(a graph.Arg) bool { return strings.HasPrefix(a.Str, "torch.float") })
	reached := slices.ContainsFunc(n.Outputs, func(o graph.ValueID) bool { return o >= 0 && w.refused[o] })
	for _, id := range n.Inputs {
		if !g.Values[id].Type.Elem.IsFloat() {
			continue
		}
		beside := strict && slices.ContainsFunc(n.Inputs, func(o graph.ValueID) bool { return o != id && w.derived[o] })
		if beside || passes && reached {
			w.refused[id] = true
		}
	}
}

// before casts the operands that a call refuses. If code computes a value from
// parameters in float32 and also reads it elsewhere, only this call sees the cast:
// after undoes it.
func (w *narrowing) before(b *builder, n *graph.Node, c *aten.Call, env []*aten.Tensor) (after func()) {
	after = func() {}
	op := c.Op
	wide := func(id graph.ValueID) bool { return floating(env[id], graph.Float32) }
	half := slices.ContainsFunc(n.Inputs, func(id graph.ValueID) bool { return w.derived[id] && floating(env[id], w.half) })
	if !half || !slices.ContainsFunc(n.Inputs, wide) {
		return after
	}
	reached := slices.ContainsFunc(n.Outputs, func(o graph.ValueID) bool { return o >= 0 && w.refused[o] })
	for k, id := range n.Inputs {
		switch {
		case !wide(id), slices.Contains(n.Inputs[:k], id):
		case refusing(op), aten.Is(op, aten.WideWeights) && k == 0, reached && !w.derived[id] && len(env[id].Shape) > 0 && !aten.Is(op, aten.Casts):
			w.casts++
			w.bytes += env[id].Bytes()
			if w.first == "" {
				w.first = n.Name
			}
			wide := env[id]
			env[id] = b.e.Cast(c, wide, w.half)
			if undo := after; w.derived[id] && w.shared[id] {
				after = func() { undo(); env[id] = wide }
			}
		}
	}
	return after
}

// floating reports whether t is a tensor on the device of type d.
func floating(t *aten.Tensor, d graph.DType) bool {
	return t != nil && t.Storage != program.None && t.DType == d
}

// warn reports how many casts were assumed.
func (w *narrowing) warn(b *builder) {
	if w == nil || w.casts == 0 {
		return
	}
	b.e.P.Warnings = append(b.e.P.Warnings, graph.Warning{Code: "cast-assumed", Node: w.first, Message: fmt.Sprintf(
		"%d casts to the parameters' type are assumed, because PyTorch would refuse tensors of two types and a float32 file shows no casts: %d bytes of float32 if the code casts earlier, as much more if later", w.casts, w.bytes)})
}

// assumed returns the bytes of what was cast.
func (w *narrowing) assumed() int64 {
	if w == nil {
		return 0
	}
	return w.bytes
}

// A castsBack counts effective casts that a float32 file does not show: of results to
// the type of a module's argument, and of operands to that of its weights.
type castsBack struct {
	casts int
	bytes int64 // of the float32 tensors that were cast, or made
	first string
}

// note counts an assumed cast.
func (w *castsBack) note(b *builder, n *graph.Node, out graph.ValueID, env []*aten.Tensor) {
	if !b.l.Assumed[out] || len(n.Inputs) == 0 || env[n.Inputs[0]] == nil || env[out] == nil || floating(env[n.Inputs[0]], graph.Float32) == floating(env[out], graph.Float32) {
		return
	}
	w.casts++
	w.bytes += max(env[n.Inputs[0]].Bytes(), env[out].Bytes())
	if w.first == "" {
		w.first = n.Name
	}
}

// warn reports how many casts were assumed.
func (w *castsBack) warn(b *builder) {
	if w.casts == 0 {
		return
	}
	b.e.P.Warnings = append(b.e.P.Warnings, graph.Warning{Code: "cast-assumed", Node: w.first, Message: fmt.Sprintf(
		"%d casts in the model's own classes are assumed (normalisations cast their result back to their input's type, LoRA its operand to its weights'), which a float32 file does not show: without them %d bytes of float32 differ", w.casts, w.bytes)})
}

// CastUnseen is the code of the warning that code without a line may compute in
// float32.
const CastUnseen = "cast-unseen"

// leastUnseen is the reciprocal of the share of the step's floating-point bytes that
// must be in doubt for a warning.
const leastUnseen = 100

// unseen returns how many more bytes the tensors take whose types code without a
// line may decide, if it computes in float32: as many as they take in half
// precision. It warns if that is much.
func (b *builder) unseen() int64 {
	half := b.opt.Storage
	if b.opt.Config.Autocast != graph.Undefined {
		half = b.opt.Config.Autocast
	}
	if half == graph.Undefined || half == graph.Float32 || len(b.l.Unshown) == 0 {
		return 0
	}
	var doubted, all int64
	seen := map[program.StorageID]bool{}
	for id, t := range b.env {
		if t == nil || t.Storage < 0 || seen[t.Storage] || !t.DType.IsFloat() || b.l.Graph.Values[id].Kind == graph.Initializer {
			continue
		}
		seen[t.Storage] = true
		bytes := b.e.P.Storages[t.Storage].Bytes
		all += bytes
		if b.l.Unshown[graph.ValueID(id)] && t.DType == half {
			doubted += bytes
		}
	}
	if doubted*leastUnseen < all {
		return 0
	}
	b.e.Warn(CastUnseen, fmt.Sprintf("functions and statements without a line in the file may compute in float32, or not: %d bytes differ", doubted))
	return doubted
}
