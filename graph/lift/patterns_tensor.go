package lift

import (
	"slices"
	"strconv"

	"github.com/memplan/memplan/graph"
)

func transposeCall(p *patLift, n *graph.Node, _ *match) bool {
	rank := len(p.dims(n.Inputs[0]))
	perm := attrInts(n, "perm", nil)
	if perm == nil {
		for i := rank - 1; i >= 0; i-- {
			perm = append(perm, int64(i))
		}
	}
	if rank == 0 || len(perm) != rank {
		return false
	}
	x, out := p.in(n, 0), p.value(n.Outputs[0])
	var moved []int64
	for i, d := range perm {
		if d != int64(i) {
			moved = append(moved, int64(i))
		}
	}
	switch {
	case rank == 2 && len(moved) == 2:
		p.emit(n, "t.default", []graph.Arg{x}, out)
	case len(moved) == 2:
		p.emit(n, "transpose.int", []graph.Arg{x, argInt(moved[0]), argInt(moved[1])}, out)
	default:
		p.emit(n, "permute.default", []graph.Arg{x, argInts(perm...)}, out)
	}
	return true
}

// size returns an inferred shape as an argument; at most one unknown dim is -1.
func size(p *patLift, v graph.ValueID) (graph.Arg, bool) {
	dims := p.dims(v)
	return argInts(dims...), dims != nil
}

func reshapeCall(p *patLift, n *graph.Node, _ *match) bool {
	size, ok := size(p, n.Outputs[0])
	if !ok {
		return false
	}
	if n.Op == "Flatten" && attrInt(n, "axis", 1) == 1 && len(p.dims(n.Inputs[0])) > 1 {
		p.emit(n, "flatten.using_ints", []graph.Arg{p.in(n, 0), argInt(1)}, p.value(n.Outputs[0]))
		return true
	}
	p.emit(n, "reshape.default", []graph.Arg{p.in(n, 0), size}, p.value(n.Outputs[0]))
	return true
}

// axes reads the axes of Squeeze and Unsqueeze, wrapped and sorted.
func axes(p *patLift, n *graph.Node, rank int) ([]int64, bool) {
	axes := attrInts(n, "axes", nil)
	if id := input(n, 1); id >= 0 {
		var ok bool
		if axes, ok = p.ints(id); !ok {
			return nil, false
		}
	}
	out := slices.Clone(axes)
	for i, a := range out {
		if a < 0 {
			out[i] += int64(rank)
		}
		if out[i] < 0 || out[i] >= int64(rank) {
			return nil, false
		}
	}
	slices.Sort(out)
	return slices.Compact(out), true
}

func squeezeCall(p *patLift, n *graph.Node, m *match) bool {
	in := p.dims(n.Inputs[0])
	axes, ok := axes(p, n, len(in))
	if !ok || in == nil {
		return reshapeCall(p, n, m)
	}
	if len(axes) == 0 { // as inference does
		for i, d := range in {
			if d == 1 {
				axes = append(axes, int64(i))
			}
		}
	}
	p.emit(n, "squeeze.dims", []graph.Arg{p.in(n, 0), argInts(axes...)}, p.value(n.Outputs[0]))
	return true
}

func unsqueezeCall(p *patLift, n *graph.Node, m *match) bool {
	out := p.dims(n.Outputs[0])
	axes, ok := axes(p, n, len(out))
	if !ok || len(axes) == 0 {
		return reshapeCall(p, n, m)
	}
	x, dims := p.in(n, 0), slices.Clone(p.dims(n.Inputs[0]))
	for i, a := range axes {
		if i == len(axes)-1 {
			p.emit(n, "unsqueeze.default", []graph.Arg{x, argInt(a)}, p.value(n.Outputs[0]))
			break
		}
		dims = slices.Insert(dims, int(min(a, int64(len(dims)))), 1)
		x = p.step(n, "unsqueeze", shaped(p.typeOf(n.Inputs[0]), dims...), "unsqueeze.default", x, argInt(a))
	}
	return true
}

// filled returns the call that fills a tensor with one value, if the dynamo
// exporter wrote it as an expanded number named after the call; "" for other
// views.
func filled(p *patLift, n *graph.Node) string {
	if _, ok := p.number(input(n, 0)); !ok {
		return ""
	}
	for _, c := range []string{"zeros", "zeros_like", "new_zeros"} {
		if p.named(n, c) {
			return "zeros.default"
		}
	}
	for _, c := range []string{"ones", "ones_like", "new_ones", "full", "full_like", "new_full"} {
		if p.named(n, c) {
			return "full.default"
		}
	}
	return ""
}

func expandCall(p *patLift, n *graph.Node, _ *match) bool {
	size, ok := size(p, n.Outputs[0])
	if !ok {
		return false
	}
	if v := &p.src.Values[p.resolve(n.Inputs[0])]; p.stored(v.ID) && stateName(v.Name) {
		p.weight(v.ID)
	}
	if fill := filled(p, n); fill != "" {
		p.emit(n, fill, []graph.Arg{size}, p.value(n.Outputs[0]))
		return true
	}
	p.emit(n, "expand.default", []graph.Arg{p.in(n, 0), size}, p.value(n.Outputs[0]))
	return true
}

// sliceCall slices one dim at a time. Memory depends only on the result's size:
// if a start is computed, the first rows are used.
func sliceCall(p *patLift, n *graph.Node, _ *match) bool {
	in, out := p.dims(n.Inputs[0]), p.dims(n.Outputs[0])
	if in == nil || len(in) != len(out) {
		return false
	}
	starts, steps := sliceStarts(p, n, len(in))
	var cut []int
	for d := range in {
		if out[d] != in[d] || steps[d] != 1 || in[d] < 0 {
			cut = append(cut, d)
		}
	}
	x, dims := p.in(n, 0), slices.Clone(in)
	for i, d := range cut {
		op, args := "slice.Tensor", []graph.Arg{x, argInt(int64(d)), argInt(starts[d]), argInt(starts[d] + out[d]*steps[d]), argInt(steps[d])}
		if steps[d] < 0 {
			op, args = "flip.default", []graph.Arg{x, argInts(int64(d))}
		}
		if i == len(cut)-1 {
			p.emit(n, op, args, p.value(n.Outputs[0]))
			return true
		}
		dims[d] = out[d]
		x = p.step(n, "slice", shaped(p.typeOf(n.Inputs[0]), dims...), op, args...)
	}
	p.emit(n, "alias.default", []graph.Arg{x}, p.value(n.Outputs[0]))
	return true
}

// sliceStarts returns the first element and the step of a slice in every dim, 0
// and 1 if it does not slice the dim or the file does not show them.
func sliceStarts(p *patLift, n *graph.Node, rank int) (starts, steps []int64) {
	starts, steps = make([]int64, rank), slices.Repeat([]int64{1}, rank)
	from, ok := p.ints(input(n, 1))
	if !ok {
		from = attrInts(n, "starts", nil)
	}
	axes, ok := p.ints(input(n, 3))
	if !ok {
		axes = attrInts(n, "axes", nil)
	}
	by, _ := p.ints(input(n, 4))
	in := p.dims(n.Inputs[0])
	for i := range max(len(from), len(axes), len(by)) {
		d := int64(i)
		if i < len(axes) {
			d = axes[i]
		}
		if d < 0 {
			d += int64(rank)
		}
		if d < 0 || d >= int64(rank) {
			continue
		}
		if i < len(by) && by[i] != 0 {
			steps[d] = by[i]
			if in[d] >= 0 {
				steps[d] = min(by[i], max(in[d], 1))
			}
		}
		if i < len(from) && in[d] >= 0 {
			s := from[i]
			if s < 0 {
				s += in[d]
			}
			starts[d] = min(max(s, 0), in[d])
		}
	}
	return starts, steps
}

func splitCall(p *patLift, n *graph.Node, _ *match) bool {
	axis := attrInt(n, "axis", 0)
	rank := int64(len(p.dims(n.Inputs[0])))
	if axis < 0 {
		axis += rank
	}
	if axis < 0 || axis >= rank {
		return false
	}
	var sizes []int64
	for _, o := range n.Outputs {
		dims := p.dims(o)
		if int64(len(dims)) != rank || dims[axis] < 0 {
			return false
		}
		sizes = append(sizes, dims[axis])
	}
	op, size := "split_with_sizes.default", argInts(sizes...)
	if len(sizes) > 1 && slices.Min(sizes) == slices.Max(sizes) && sizes[0] > 0 {
		op, size = "split.Tensor", argInt(sizes[0])
	}
	p.emit(n, op, []graph.Arg{p.in(n, 0), size, argInt(axis)}, p.outs(n)...)
	return true
}

func concatCall(p *patLift, n *graph.Node, _ *match) bool {
	list := graph.Arg{Kind: graph.ArgList}
	for i, id := range n.Inputs {
		if id < 0 || len(p.dims(id)) == 0 {
			return false
		}
		if v := &p.src.Values[p.resolve(id)]; p.stored(v.ID) && stateName(v.Name) {
			p.weight(v.ID)
		}
		list.List = append(list.List, p.in(n, i))
	}
	p.emit(n, "cat.default", []graph.Arg{list, argInt(attrInt(n, "axis", 1))}, p.value(n.Outputs[0]))
	return true
}

func gatherCall(p *patLift, n *graph.Node, _ *match) bool {
	data, idx := p.dims(n.Inputs[0]), p.dims(input(n, 1))
	axis := attrInt(n, "axis", 0)
	if data == nil || idx == nil {
		return false
	}
	if axis < 0 {
		axis += int64(len(data))
	}
	x, i, out := p.in(n, 0), p.in(n, 1), p.value(n.Outputs[0])
	w := p.resolve(n.Inputs[0])
	switch {
	case len(idx) == 0:
		f, _ := p.number(n.Inputs[1])
		p.emit(n, "select.int", []graph.Arg{x, argInt(axis), argInt(int64(f))}, out)
	case p.stored(w) && len(data) == 2 && axis == 0:
		p.weight(w)
		p.emit(n, "embedding.default", []graph.Arg{x, i}, out)
	case len(idx) == 1:
		p.emit(n, "index_select.default", []graph.Arg{x, argInt(axis), i}, out)
	default:
		list := graph.Arg{Kind: graph.ArgList}
		for range axis {
			list.List = append(list.List, argNone())
		}
		list.List = append(list.List, i)
		p.emit(n, "index.Tensor", []graph.Arg{x, list}, out)
	}
	return true
}

func gatherElementsCall(p *patLift, n *graph.Node, _ *match) bool {
	if input(n, 1) < 0 || len(p.dims(n.Inputs[0])) == 0 {
		return false
	}
	p.emit(n, "gather.default", []graph.Arg{p.in(n, 0), argInt(attrInt(n, "axis", 0)), p.in(n, 1)}, p.value(n.Outputs[0]))
	return true
}

func scatterElementsCall(p *patLift, n *graph.Node, _ *match) bool {
	op := map[string]string{"none": "scatter.src", "add": "scatter_add.default"}[attrStr(n, "reduction", "none")]
	if op == "" || len(p.dims(n.Inputs[0])) == 0 {
		return false
	}
	p.emit(n, op, []graph.Arg{p.in(n, 0), argInt(attrInt(n, "axis", 0)), p.in(n, 1), p.in(n, 2)}, p.value(n.Outputs[0]))
	return true
}

// indexes reports whether n is a GatherND without batch dims by a tensor on the
// device. If it picks from several dims of numbers with gradients, the scratch of
// its backward is counted for the tensor of all indices.
func indexes(p *patLift, n *graph.Node) bool {
	i := p.dims(n.Inputs[1])
	if len(i) == 0 || attrInt(n, "batch_dims", 0) != 0 || p.constant(n.Inputs[1]) {
		return false
	}
	k := i[len(i)-1]
	return k == 1 || k > 1 && k <= int64(len(p.dims(n.Inputs[0]))) && !p.typeOf(n.Inputs[0]).Elem.IsFloat()
}

// toFront returns x, d and the permutation of a Transpose that moves dim d of x to the
// front: PyTorch's exporters write an index of a later dim so.
func toFront(p *patLift, id graph.ValueID) (x graph.ValueID, d int64, perm []int64) {
	t := producedBy(p, id, "Transpose")
	if t == nil || input(t, 0) < 0 {
		return graph.NoValue, 0, nil
	}
	perm = attrInts(t, "perm", nil)
	if len(perm) == 0 || len(perm) != len(p.dims(t.Inputs[0])) || perm[0] == 0 || !slices.IsSorted(perm[1:]) {
		return graph.NoValue, 0, nil
	}
	return p.resolve(t.Inputs[0]), perm[0], perm
}

// rows reports whether a GatherND or ScatterND indexes only the first dim, by a
// list.
func rows(p *patLift, n *graph.Node) bool {
	i := p.dims(n.Inputs[1])
	return len(i) == 2 && i[1] == 1 && attrInt(n, "batch_dims", 0) == 0
}

// rowIndex returns that list.
func rowIndex(p *patLift, n *graph.Node) graph.Arg {
	if b := p.base(n.Inputs[1]); len(p.dims(b)) == 1 {
		return argOf(p.value(b))
	}
	return p.step(n, "list", shaped(p.typeOf(n.Inputs[1]), p.dims(n.Inputs[1])[0]), "squeeze.dims", p.in(n, 1), argInts(-1))
}

// scatterNDCall is index_add: of the first dim, or of one brought to the front.
func scatterNDCall(p *patLift, n *graph.Node, _ *match) bool {
	if attrStr(n, "reduction", "none") != "add" || !rows(p, n) {
		return false
	}
	x, d, perm := toFront(p, n.Inputs[0])
	u, e, _ := toFront(p, n.Inputs[2])
	if x < 0 || u < 0 || d != e {
		p.emit(n, "index_add.default", []graph.Arg{p.in(n, 0), argInt(0), rowIndex(p, n), p.in(n, 2)}, p.value(n.Outputs[0]))
		return true
	}
	y := p.step(n, "sums", shaped(p.typeOf(x), p.dims(x)...), "index_add.default", argOf(p.value(x)), argInt(d), rowIndex(p, n), argOf(p.value(u)))
	p.emit(n, "permute.default", []graph.Arg{y, argInts(perm...)}, p.value(n.Outputs[0]))
	return true
}

// gatherNDCall is an index with one index tensor, a slice of the last dim, for
// each dim of the operand that is picked from.
func gatherNDCall(p *patLift, n *graph.Node, _ *match) bool {
	if x, d, perm := toFront(p, n.Inputs[0]); x >= 0 && rows(p, n) {
		dims := p.dims(x)
		dims[d] = p.dims(n.Inputs[1])[0]
		list := graph.Arg{Kind: graph.ArgList, List: slices.Repeat([]graph.Arg{argNone()}, int(d))}
		list.List = append(list.List, rowIndex(p, n))
		y := p.step(n, "rows", shaped(p.typeOf(n.Inputs[0]), dims...), "index.Tensor", argOf(p.value(x)), list)
		p.emit(n, "permute.default", []graph.Arg{y, argInts(perm...)}, p.value(n.Outputs[0]))
		return true
	}
	if indexes(p, n) {
		i, dims := p.in(n, 1), p.dims(n.Inputs[1])
		list, rank := graph.Arg{Kind: graph.ArgList}, len(dims)-1
		t := shaped(p.typeOf(n.Inputs[1]), dims[:rank]...)
		for j := range dims[rank] {
			list.List = append(list.List, p.step(n, "index"+strconv.FormatInt(j, 10), t, "select.int", i, argInt(-1), argInt(j)))
		}
		p.emit(n, "index.Tensor", []graph.Arg{p.in(n, 0), list}, p.value(n.Outputs[0]))
		return true
	}
	p.emit(n, "index.Tensor", []graph.Arg{p.in(n, 0), {Kind: graph.ArgList, List: []graph.Arg{p.in(n, 1)}}}, p.value(n.Outputs[0]))
	return true
}

func whereCall(p *patLift, n *graph.Node, m *match) bool {
	p.emit(n, "where.self", []graph.Arg{p.in(n, 0), p.operandArg(m.value("x")), p.operandArg(m.value("y"))}, p.value(n.Outputs[0]))
	return true
}

// torchTypes maps element types to torch's names.
var torchTypes = map[graph.DType]string{
	graph.Float32: "float32", graph.Float64: "float64", graph.Float16: "float16", graph.BFloat16: "bfloat16", graph.Int64: "int64", graph.Int32: "int32",
	graph.Int16: "int16", graph.Int8: "int8", graph.Uint8: "uint8", graph.Bool: "bool",
}

func castCall(p *patLift, n *graph.Node, _ *match) bool {
	name, ok := torchTypes[p.typeOf(n.Outputs[0]).Elem]
	if !ok {
		return false
	}
	p.emit(n, "_to_copy.default", []graph.Arg{p.in(n, 0), named("dtype", argStr("torch."+name))}, p.value(n.Outputs[0]))
	return true
}

func dropoutCall(p *patLift, n *graph.Node, _ *match) bool {
	if len(n.Outputs) > 1 && n.Outputs[1] >= 0 && p.uses[n.Outputs[1]] > 0 && ratio(p, n) == 0 {
		return false
	}
	outs := p.outs(n)
	if len(outs) == 1 {
		outs = append(outs, p.temp(n, "mask", shaped(graph.Type{Elem: graph.Bool}, p.dims(n.Outputs[0])...)))
	}
	p.emit(n, "native_dropout.default", []graph.Arg{p.in(n, 0), argFloat(ratio(p, n)), argBool(true)}, outs...)
	return true
}

// clipBound returns a bound of Clip, from its inputs or, before opset 11, its
// attributes.
func clipBound(p *patLift, n *graph.Node, i int, attr string) (float64, bool) {
	if id := input(n, i); id >= 0 {
		f, _ := p.number(id)
		return f, true
	}
	a := n.Attr(attr)
	return attrFloat(n, attr, 0), a != nil
}

func clipCall(p *patLift, n *graph.Node, _ *match) bool {
	lo, hasLo := clipBound(p, n, 1, "min")
	hi, hasHi := clipBound(p, n, 2, "max")
	x, out := p.in(n, 0), p.value(n.Outputs[0])
	switch {
	case hasLo && hasHi && lo == 0 && hi == 6:
		p.emit(n, "hardtanh.default", []graph.Arg{x, argFloat(0), argFloat(6)}, out)
	case hasLo && hasHi:
		p.emit(n, "clamp.default", []graph.Arg{x, argFloat(lo), argFloat(hi)}, out)
	case hasLo:
		p.emit(n, "clamp_min.default", []graph.Arg{x, argFloat(lo)}, out)
	case hasHi:
		p.emit(n, "clamp_max.default", []graph.Arg{x, argFloat(hi)}, out)
	default:
		p.emit(n, "alias.default", []graph.Arg{x}, out)
	}
	return true
}

func manyCall(p *patLift, n *graph.Node, _ *match) bool {
	op := map[string]string{"Max": "maximum.default", "Min": "minimum.default", "Sum": "add.Tensor", "Mean": "add.Tensor"}[n.Op]
	if len(n.Inputs) < 2 || slices.Contains(n.Inputs, graph.NoValue) {
		return false
	}
	t, out := p.typeOf(n.Outputs[0]), p.value(n.Outputs[0])
	x, dims := p.operandArg(n.Inputs[0]), p.dims(n.Inputs[0])
	for i, id := range n.Inputs[1:] {
		args := []graph.Arg{x, p.operandArg(id)}
		dims = broadcast(dims, p.dims(id))
		if i == len(n.Inputs)-2 && n.Op != "Mean" {
			p.emit(n, op, args, out)
			return true
		}
		x = p.step(n, "part", shaped(graph.Type{Elem: t.Elem}, dims...), op, args...)
	}
	p.emit(n, "div.Tensor", []graph.Arg{x, argFloat(float64(len(n.Inputs)))}, out)
	return true
}

// broadcast returns the broadcast shape of two, with -1 for unknown dims.
func broadcast(a, b []int64) []int64 {
	if len(a) < len(b) {
		a, b = b, a
	}
	out := slices.Clone(a)
	for i, d := range b {
		if j := len(a) - len(b) + i; d != 1 {
			out[j] = d
		}
	}
	return out
}

func softmaxCall(p *patLift, n *graph.Node, _ *match) bool {
	op, def := "softmax.int", int64(-1)
	if n.Op == "LogSoftmax" {
		op = "log_softmax.int"
	}
	if p.src.Model.Opset("") < 13 {
		def = 1
	}
	p.emit(n, op, []graph.Arg{p.in(n, 0), argInt(attrInt(n, "axis", def))}, p.value(n.Outputs[0]))
	return true
}

var reductions = map[string]string{"ReduceMean": "mean.dim", "ReduceSum": "sum.dim_IntList", "ReduceMax": "amax.default", "ReduceMin": "amin.default",
	"ReduceLogSumExp": "logsumexp.default", "ReduceProd": "prod.dim_int"}

func reduceCall(p *patLift, n *graph.Node, _ *match) bool {
	axes, ok := reduced(p, n)
	if !ok {
		return false
	}
	if reducesNothing(p, n) {
		return true
	}
	dims := argInts(axes...)
	if n.Op == "ReduceProd" {
		if len(axes) != 1 {
			return false // PyTorch's prod reduces one dim at a time
		}
		dims = argInt(axes[0])
	}
	p.emit(n, reductions[n.Op], []graph.Arg{p.in(n, 0), dims, argBool(attrInt(n, "keepdims", 1) != 0)}, p.value(n.Outputs[0]))
	return true
}

// reducesNothing lifts a reduction that returns its operand because it has no
// axes.
func reducesNothing(p *patLift, n *graph.Node) bool {
	given, ok := p.ints(input(n, 1))
	if attrInt(n, "noop_with_empty_axes", 0) == 0 || n.Attr("axes") != nil || ok && len(given) > 0 {
		return false
	}
	p.emit(n, "alias.default", []graph.Arg{p.in(n, 0)}, p.value(n.Outputs[0]))
	return true
}

func normCall(p *patLift, n *graph.Node, _ *match) bool {
	axes, ok := reduced(p, n)
	if !ok || len(axes) == 0 {
		return false
	}
	if reducesNothing(p, n) {
		return true
	}
	ord := map[string]int64{"ReduceL1": 1, "ReduceL2": 2}[n.Op]
	p.emit(n, "linalg_vector_norm.default", []graph.Arg{p.in(n, 0), argInt(ord), argInts(axes...), argBool(attrInt(n, "keepdims", 1) != 0)}, p.value(n.Outputs[0]))
	return true
}

func argReduceCall(p *patLift, n *graph.Node, _ *match) bool {
	op := map[string]string{"ArgMax": "argmax.default", "ArgMin": "argmin.default"}[n.Op]
	if len(p.dims(n.Inputs[0])) == 0 {
		return false
	}
	p.emit(n, op, []graph.Arg{p.in(n, 0), argInts(attrInt(n, "axis", 0)), argBool(attrInt(n, "keepdims", 1) != 0)}, p.value(n.Outputs[0]))
	return true
}

// tileCall derives the repeats from the result's dims.
func tileCall(p *patLift, n *graph.Node, _ *match) bool {
	in, out := p.dims(n.Inputs[0]), p.dims(n.Outputs[0])
	if in == nil || len(in) != len(out) {
		return false
	}
	times := make([]int64, len(in))
	for i := range in {
		if in[i] <= 0 || out[i] < 0 || out[i]%in[i] != 0 {
			return false
		}
		times[i] = out[i] / in[i]
	}
	p.emit(n, "repeat.default", []graph.Arg{p.in(n, 0), argInts(times...)}, p.value(n.Outputs[0]))
	return true
}

func topkCall(p *patLift, n *graph.Node, _ *match) bool {
	dims := p.dims(n.Outputs[0])
	axis := attrInt(n, "axis", -1)
	if axis < 0 {
		axis += int64(len(dims))
	}
	if axis < 0 || axis >= int64(len(dims)) {
		return false
	}
	p.emit(n, "topk.default", []graph.Arg{p.in(n, 0), argInt(dims[axis]), argInt(axis)}, p.outs(n)...)
	return true
}

func triluCall(p *patLift, n *graph.Node, _ *match) bool {
	op := "triu.default"
	if attrInt(n, "upper", 1) == 0 {
		op = "tril.default"
	}
	k, _ := p.ints(input(n, 1))
	if len(k) == 0 {
		k = []int64{0}
	}
	p.emit(n, op, []graph.Arg{p.in(n, 0), argInt(k[0])}, p.value(n.Outputs[0]))
	return true
}

// preluCall gives PReLU its slope as stored: exporters add dims to it, as the
// call itself does.
func preluCall(p *patLift, n *graph.Node, _ *match) bool {
	if len(n.Inputs) != 2 || n.Inputs[0] < 0 || n.Inputs[1] < 0 {
		return false
	}
	w := p.base(n.Inputs[1])
	if !p.constant(w) || !p.src.Values[w].Type.Elem.IsFloat() {
		return false
	}
	if len(p.dims(w)) > 1 {
		w = p.resolve(n.Inputs[1])
	}
	p.weight(w)
	p.emit(n, "prelu.default", []graph.Arg{p.in(n, 0), argOf(p.value(w))}, p.value(n.Outputs[0]))
	return true
}

// seluCall is selu if the constants are torch's, which are the defaults since opset
// 6, else elu with alpha and scale.
func seluCall(p *patLift, n *graph.Node, _ *match) bool {
	alpha, gamma := attrFloat(n, "alpha", 1.67326324), attrFloat(n, "gamma", 1.05070098)
	if near(alpha, 1.67326324) && near(gamma, 1.05070098) {
		p.emit(n, "selu.default", []graph.Arg{p.in(n, 0)}, p.value(n.Outputs[0]))
		return true
	}
	p.emit(n, "elu.default", []graph.Arg{p.in(n, 0), argFloat(alpha), argFloat(gamma)}, p.value(n.Outputs[0]))
	return true
}

// cumsumCall adds along the dim that the file shows, or else the first.
func cumsumCall(p *patLift, n *graph.Node, _ *match) bool {
	axis, _ := p.number(n.Inputs[1])
	p.emit(n, "cumsum.default", []graph.Arg{p.in(n, 0), argInt(int64(axis))}, p.value(n.Outputs[0]))
	return true
}

// lossCall is SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss, which
// cross_entropy and nll_loss run.
func lossCall(p *patLift, n *graph.Node, _ *match) bool {
	reduction, ok := map[string]int64{"none": 0, "mean": 1, "sum": 2}[attrStr(n, "reduction", "mean")]
	if !ok || input(n, 1) < 0 {
		return false
	}
	x := p.in(n, 0)
	if n.Op == "SoftmaxCrossEntropyLoss" {
		ls := p.temp(n, "log_softmax", p.typeOf(n.Inputs[0]))
		if len(n.Outputs) > 1 && n.Outputs[1] >= 0 {
			ls = p.value(n.Outputs[1])
		}
		p.emit(n, "log_softmax.int", []graph.Arg{x, argInt(1)}, ls)
		x = argOf(ls)
	}
	p.emit(n, "nll_loss_nd.default", []graph.Arg{x, p.in(n, 1), p.in(n, 2), argInt(reduction)}, p.value(n.Outputs[0]))
	return true
}

// fills maps operators that make tensors from no operand to their calls.
var fills = map[string]string{
	"Range": "arange.start_step", "ConstantOfShape": "full.default", "EyeLike": "eye.default", "RandomNormal": "randn.default", "RandomNormalLike": "randn_like.default",
	"RandomUniform": "rand.default", "RandomUniformLike": "rand_like.default", "Bernoulli": "rand_like.default",
}

func fillCall(p *patLift, n *graph.Node, _ *match) bool {
	dims := p.dims(n.Outputs[0])
	if dims == nil {
		return false
	}
	p.emit(n, fills[n.Op], []graph.Arg{argInts(dims...)}, p.value(n.Outputs[0]))
	return true
}
