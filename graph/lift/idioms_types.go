package lift

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/python"
)

// A model is exported in float32, and a cast to the type that a tensor already
// has leaves no trace in the file. If the model runs in another type, or under
// autocast, those casts are real. The rules below restore the casts of
// well-known code: a superfluous cast costs nothing.

// insert schedules a call before (or after) call i; splice inserts it.
func (r *rewriter) insert(at map[int][]graph.Node, i int, op string, args ...graph.Arg) graph.ValueID {
	n := r.node(i)
	from := args[0].Value
	v := r.l.Graph.Values[from]
	id := graph.ValueID(len(r.l.Graph.Values))
	r.l.Graph.Values = append(r.l.Graph.Values, graph.Value{ID: id, Name: v.Name + "_cast", Type: v.Type, Kind: graph.Computed, Def: -1, Outer: graph.NoValue})
	r.l.from, r.l.Roles = append(r.l.from, r.l.from[from]), append(r.l.Roles, Unknown)
	r.uses, r.def = append(r.uses, 1), append(r.def, -1)
	c := graph.Node{Name: n.Name + "_cast", Op: op, Domain: n.Domain, Module: n.Module, Meta: n.Meta, Args: args, Outputs: []graph.ValueID{id}}
	r.relink(&c)
	at[i] = append(at[i], c)
	return id
}

// widened returns a value cast to float32 before call i.
func (r *rewriter) widened(i int, id graph.ValueID) graph.ValueID {
	return r.insert(r.before, i, "to.dtype", valueArg(id), graph.Arg{Kind: graph.ArgString, Str: "torch.float32"})
}

// typedAs casts the result of call i to the type of another value, for all its
// readers.
func (r *rewriter) typedAs(i int, like graph.ValueID) {
	r.castResult(i, "type_as.default", valueArg(like))
}

// wideResult casts the result of call i to float32.
func (r *rewriter) wideResult(i int) {
	r.castResult(i, "to.dtype", graph.Arg{Kind: graph.ArgString, Str: "torch.float32"})
}

// castResult casts the result of call i before any other cast of it.
func (r *rewriter) castResult(i int, op string, to graph.Arg) {
	n := r.node(i)
	old := n.Outputs[0]
	id := r.insert(r.after, i, op, valueArg(old), to)
	at := r.after[i]
	c := at[len(at)-1]
	copy(at[1:], at)
	n.Outputs = append([]graph.ValueID{id}, n.Outputs[1:]...)
	c.Args[0].Value, c.Outputs[0] = id, old
	r.relink(&c)
	at[0] = c
	r.def[id] = int32(i)
}

func valueArg(id graph.ValueID) graph.Arg { return graph.Arg{Kind: graph.ArgValue, Value: id} }

// splice inserts the scheduled calls.
func (r *rewriter) splice() {
	if len(r.before)+len(r.after) == 0 {
		return
	}
	l := r.l
	old := *l.Graph
	var nodes []graph.Node
	var classes []string
	var inPlace []bool
	add := func(n graph.Node, class string, in bool) {
		n.ID = int32(len(nodes))
		nodes, classes, inPlace = append(nodes, n), append(classes, class), append(inPlace, in)
	}
	for i := range old.Nodes {
		for _, n := range r.before[i] {
			add(n, l.Classes[i], false)
		}
		add(old.Nodes[i], l.Classes[i], l.InPlace[i])
		for _, n := range r.after[i] {
			add(n, l.Classes[i], false)
		}
	}
	l.Graph.Nodes, l.Classes, l.InPlace = nodes, classes, inPlace
	for i := range nodes {
		for _, o := range nodes[i].Outputs {
			if o >= 0 {
				l.Graph.Values[o].Def = int32(i)
			}
		}
	}
}

// A meanSquare is the common part of RMS normalisations: mul(x,
// rsqrt(add(mean(pow(x, 2)), eps))).
type meanSquare struct {
	x    graph.ValueID
	pow  *graph.Node
	mean *graph.Node
	add  *graph.Node
	mul  *graph.Node
}

// meanSquare matches the call that makes a value, or returns nil.
func (r *rewriter) meanSquare(a *graph.Arg) *meanSquare {
	m := &meanSquare{mul: r.producer(a)}
	if m.mul == nil || opName(m.mul) != "mul" || len(m.mul.Args) < 2 || m.mul.Args[0].Kind != graph.ArgValue {
		return nil
	}
	m.x = m.mul.Args[0].Value
	root := r.producer(&m.mul.Args[1])
	if root == nil || opName(root) != "rsqrt" {
		return nil
	}
	if m.add = r.producer(argAt(root, 0, "self")); m.add == nil || opName(m.add) != "add" {
		return nil
	}
	if m.mean = r.producer(argAt(m.add, 0, "self")); m.mean == nil || opName(m.mean) != "mean" {
		return nil
	}
	if m.pow = r.producer(argAt(m.mean, 0, "self")); m.pow == nil || opName(m.pow) != "pow" || m.pow.Args[0].Kind != graph.ArgValue || m.pow.Args[0].Value != m.x {
		return nil
	}
	return m
}

// decomposedRMSNorm restores torch.nn.RMSNorm from its decomposition, which
// ends in type_as.
func decomposedRMSNorm(r *rewriter, i int) bool {
	n := r.node(i)
	if opName(n) != "type_as" || len(n.Args) != 2 {
		return false
	}
	weight := graph.Arg{Kind: graph.ArgNone}
	m := r.meanSquare(&n.Args[0])
	if p := r.producer(&n.Args[0]); m == nil && p != nil && opName(p) == "mul" && len(p.Args) == 2 {
		m, weight = r.meanSquare(&p.Args[0]), p.Args[1]
	}
	if m == nil || m.add.Op != "add.Scalar" {
		return false
	}
	if n.Args[1].Value != m.x { // its operand is widened for it alone: type_as stays, and follows the call
		wide := r.producer(&graph.Arg{Kind: graph.ArgValue, Value: m.x})
		if wide == nil || len(wide.Inputs) != 1 || wide.Inputs[0] != n.Args[1].Value {
			return false
		}
		n = r.producer(&n.Args[0])
	}
	dims := argAt(m.mean, 1, "dim")
	if dims == nil || dims.Kind != graph.ArgList || weight.Kind == graph.ArgValue && r.l.Roles[weight.Value] != Parameter {
		return false
	}
	n.Op, n.Args = "rms_norm.default", []graph.Arg{valueArg(m.x), *dims, weight, m.add.Args[1]}
	r.relink(n)
	return true
}

// productCast reports whether the source line casts a product: (self.weight *
// x).to(dtype).
func productCast(n *graph.Node) bool {
	lines := Lines(n)
	if len(lines) == 0 {
		return false
	}
	e := parsePy(lines[len(lines)-1].Text)
	return e != nil && e.cast() != "" && e.kids[0].text == "mul"
}

// wideRMSNorm restores the casts of transformers' normalisations, which compute
// in float32 and cast to the input's type.
func wideRMSNorm(r *rewriter, i int) bool {
	n := r.node(i)
	class := r.l.Classes[i]
	if !python.WideNorms.Of(class) || len(n.Args) < 2 {
		return false
	}
	if opName(n) == "type_as" { // Gemma: all in float32, including the weight
		p := r.producer(&n.Args[0])
		if p == nil || opName(p) != "mul" || len(p.Args) < 2 {
			return false
		}
		m := r.meanSquare(&p.Args[0])
		if m == nil {
			return false
		}
		r.widenInput(m, true)
		if w := r.producer(&p.Args[1]); w != nil && len(w.Args) > 0 && w.Args[0].Kind == graph.ArgValue && r.l.Roles[w.Args[0].Value] == Parameter {
			w.Args[0].Value = r.widened(int(w.ID), w.Args[0].Value)
			r.relink(w)
		}
		return true
	}
	if opName(n) != "mul" || n.Args[0].Kind != graph.ArgValue || r.l.Roles[n.Args[0].Value] != Parameter {
		return false
	}
	m := r.meanSquare(&n.Args[1])
	if m == nil {
		return false
	}
	toWeight := python.CastsToWeight.Of(class)
	r.widenInput(m, !toWeight)
	switch {
	case toWeight:
		n.Args[1].Value = r.insert(r.before, i, "type_as.default", n.Args[1], n.Args[0])
		r.relink(n)
	case python.RoundsLast.Of(class) || productCast(n):
		r.typedAs(i, m.x)
	default:
		n.Args[1].Value = r.insert(r.before, i, "type_as.default", n.Args[1], valueArg(m.x))
		r.relink(n)
	}
	return true
}

// widenInput casts the input of the mean square, and optionally that of the
// product.
func (r *rewriter) widenInput(m *meanSquare, product bool) {
	w := r.widened(int(m.pow.ID), m.x)
	m.pow.Args[0].Value = w
	r.relink(m.pow)
	if product {
		m.mul.Args[0].Value = w
		r.relink(m.mul)
	}
}

// narrowSoftmax casts probabilities that transformers computes in float32
// back to the type of the query.
func narrowSoftmax(r *rewriter, i int) bool {
	n := r.node(i)
	d := argAt(n, 2, "dtype")
	if opName(n) != "softmax" || !fromTransformers(r, i) || d == nil || d.Str != "torch.float32" {
		return false
	}
	a := &n.Args[0]
	for range 6 {
		p := r.producer(a)
		if p == nil || len(p.Args) == 0 {
			return false
		}
		switch opName(p) {
		case "matmul", "bmm", "baddbmm", "einsum":
			if p.Args[0].Kind != graph.ArgValue {
				return false
			}
			r.typedAs(i, p.Args[0].Value)
			return true
		case "add", "mul", "div", "masked_fill", "tanh", "identity", "view", "softmax":
			a = &p.Args[0]
		default:
			return false
		}
	}
	return false
}

// valueSoftmax casts probabilities to the type of the values, in attention that does
// so whatever the softmax's type.
func valueSoftmax(r *rewriter, i int) bool {
	n := r.node(i)
	if opName(n) != "softmax" || !python.TypedProbabilities.Of(r.l.Classes[i]) {
		return false
	}
	p := r.scores(n)
	if p == nil || p.Args[0].Kind != graph.ArgValue {
		return false
	}
	r.typedAs(i, p.Args[0].Value)
	return true
}

// scores returns the product of query and key whose scaled and masked result a
// softmax reads; nil if there is none.
func (r *rewriter) scores(softmax *graph.Node) *graph.Node {
	a := &softmax.Args[0]
	for range 6 {
		p := r.producer(a)
		if p == nil || len(p.Args) < 2 {
			return nil
		}
		switch opName(p) {
		case "matmul":
			return p
		case "add", "div", "mul":
			a = &p.Args[0]
		case "where":
			a = &p.Args[1]
		default:
			return nil
		}
	}
	return nil
}

// wideScores restores the casts of attention that multiplies query and key in
// float32 and casts the probabilities to the value's type.
func wideScores(r *rewriter, i int) bool {
	n := r.node(i)
	if opName(n) != "softmax" || !python.WideScores.Of(r.l.Classes[i]) {
		return false
	}
	p := r.scores(n)
	if p == nil {
		return false
	}
	q, k := &p.Args[0], &p.Args[1]
	if q.Kind != graph.ArgValue || k.Kind != graph.ArgValue {
		return false
	}
	like := q.Value
	q.Value, k.Value = r.widened(int(p.ID), q.Value), r.widened(int(p.ID), k.Value)
	r.relink(p)
	r.typedAs(i, like)
	return true
}

// scanType restores the casts of transformers' selective scan, a function whose lines
// are not in the file: B, the scan's argument and D are cast to float32, and each state
// to the type of C.
func scanType(r *rewriter, i int) bool {
	n := r.node(i)
	op := opName(n)
	if op != "mul" && op != "matmul" || !fromTransformers(r, i) || len(n.Args) != 2 || n.Args[0].Kind != graph.ArgValue || n.Args[1].Kind != graph.ArgValue {
		return false
	}
	if lines := Lines(n); len(lines) == 0 || !strings.Contains(lines[len(lines)-1].Text, python.SelectiveScan+"(") {
		return false
	}
	step := func(a *graph.Arg) bool { return r.chain(a, []string{"unsqueeze"}, []string{"softplus"}) != nil }
	p := r.producer(&n.Args[0])
	switch {
	case op == "matmul":
		n.Args[0].Value = r.insert(r.before, i, "type_as.default", n.Args[0], n.Args[1])
	case step(&n.Args[0]), p != nil && opName(p) == "mul" && step(&p.Args[0]), r.ofParameter(&n.Args[1]):
		n.Args[1].Value = r.widened(i, n.Args[1].Value)
	default:
		return false
	}
	r.relink(n)
	return true
}

// ofParameter reports whether a is a parameter shown with more dims.
func (r *rewriter) ofParameter(a *graph.Arg) bool {
	for range 4 {
		p := r.producer(a)
		if p == nil || opName(p) != "unsqueeze" {
			break
		}
		a = &p.Args[0]
	}
	return a.Kind == graph.ArgValue && r.l.Roles[a.Value] == Parameter
}

// rotaryType casts the tables of rotary positions to the type of the hidden
// states, which is the parameters'.
func rotaryType(r *rewriter, i int) bool {
	n := r.node(i)
	if opName(n) != "mul" || !python.RotaryEmbeddings.Of(r.l.Classes[i]) || len(n.Args) < 2 || n.Args[1].Kind == graph.ArgValue {
		return false
	}
	if p := r.producer(&n.Args[0]); p == nil || opName(p) != "cos" && opName(p) != "sin" {
		return false
	}
	for id := range r.l.Roles {
		if r.l.Roles[id] == Parameter && r.l.Graph.Values[id].Type.Elem == graph.Float32 {
			r.typedAs(i, graph.ValueID(id))
			return true
		}
	}
	return false
}

// noiseType gives the noise of dropped paths the type of the tensor it
// multiplies, as the code does; the file shows float32.
func noiseType(r *rewriter, i int) bool {
	n := r.node(i)
	if opName(n) != "mul" || len(n.Args) < 2 || !python.DropsPaths.Of(r.l.Classes[i]) {
		return false
	}
	for side := range 2 {
		made := r.chain(&n.Args[side], []string{"bernoulli", "div", "floor", "add", "floor_divide"}, []string{"empty", "rand", "new_empty"})
		other := &n.Args[1-side]
		if made == nil || other.Kind != graph.ArgValue {
			continue
		}
		for range 4 { // the input precedes the noise
			if p := r.producer(other); p != nil && p.ID > made.ID && len(p.Args) > 0 && p.Args[0].Kind == graph.ArgValue {
				other = &p.Args[0]
			}
		}
		if p := r.producer(other); p != nil && p.ID > made.ID {
			return false
		}
		made.Args = append(slices.DeleteFunc(slices.Clone(made.Args), func(a graph.Arg) bool { return a.Name == "dtype" }), graph.Arg{Name: "like", Kind: graph.ArgValue, Value: other.Value})
		r.relink(made)
	}
	return false
}

// chain walks back through calls of the operators in through and returns the
// first of those in ends, or nil.
func (r *rewriter) chain(a *graph.Arg, through, ends []string) *graph.Node {
	for range 6 {
		p := r.producer(a)
		if p == nil {
			return nil
		}
		if slices.Contains(ends, opName(p)) {
			return p
		}
		if !slices.Contains(through, opName(p)) || len(p.Args) == 0 {
			return nil
		}
		a = &p.Args[0]
	}
	return nil
}

// frozenPositions removes the gradient of sinusoidal tables: their modules set
// requires_grad to False, which the file does not show.
func frozenPositions(r *rewriter, i int) bool {
	n := r.node(i)
	if opName(n) != "embedding" || len(n.Args) == 0 || n.Args[0].Kind != graph.ArgValue || r.l.Roles[n.Args[0].Value] != Parameter {
		return false
	}
	if !python.FrozenPositions.At(&python.Place{Class: r.l.Classes[i], Around: pyList(n.MetaValue(keyClasses)), Module: n.Module}) {
		return false
	}
	r.l.Roles[n.Args[0].Value] = Buffer
	return true
}

// customGELU replaces the formula of BLOOM's own function by the operator: both
// save only their input. The argument "formula" records that Python code makes
// every term.
func customGELU(r *rewriter, i int) bool {
	n := r.node(i)
	if opName(n) != "mul" || !python.CustomGELU.Of(r.l.Classes[i]) || len(n.Args) < 2 {
		return false
	}
	half, gate := r.producer(&n.Args[0]), r.producer(&n.Args[1])
	if half == nil || gate == nil || opName(half) != "mul" || opName(gate) != "add" || half.Args[0].Kind != graph.ArgValue {
		return false
	}
	n.Op, n.Args = "gelu.default", []graph.Arg{half.Args[0], {Name: "approximate", Kind: graph.ArgString, Str: "tanh"}, {Name: "formula", Kind: graph.ArgBool, Int: 1}}
	r.relink(n)
	return true
}

// weightNorm replaces g / norm(v) * v, of the parametrization or of the hook of
// the older torch.nn.utils.weight_norm, by the fused operator.
func weightNorm(r *rewriter, i int) bool {
	n := r.node(i)
	if opName(n) != "mul" || len(n.Args) < 2 || n.Args[0].Kind != graph.ArgValue {
		return false
	}
	if v := r.l.Graph.Values[n.Args[0].Value]; !python.WeightNorms.Of(r.l.Classes[i]) && !(v.Kind == graph.Initializer && strings.HasSuffix(v.Name, "_v")) {
		return false
	}
	div := r.producer(&n.Args[1])
	if div == nil || opName(div) != "div" || len(div.Args) < 2 || div.Args[0].Kind != graph.ArgValue {
		return false
	}
	if norm := r.producer(&div.Args[1]); norm == nil || opName(norm) != "linalg_vector_norm" {
		return false
	}
	n.Op, n.Args = "_weight_norm.default", []graph.Arg{n.Args[0], div.Args[0]}
	r.relink(n)
	return true
}

// normAgain makes a batch normalisation read the module's running statistics instead
// of those that an earlier call of the module returns: the functional form returns new
// ones as its fourth and fifth result, while the module updates its own.
func normAgain(r *rewriter, i int) bool {
	n := r.node(i)
	if !strings.HasSuffix(opName(n), "functional") || len(n.Args) < 5 {
		return false
	}
	changed := false
	for k := 3; k < 5; k++ {
		p := r.producer(&n.Args[k])
		if p != nil && opName(p) == opName(n) && len(p.Args) >= 5 && len(p.Outputs) > k && p.Outputs[k] == n.Args[k].Value {
			n.Args[k].Value, changed = p.Args[k].Value, true
		}
	}
	if changed {
		r.relink(n)
	}
	return changed
}

// adaptivePool replaces the export of a module whose output size does not
// divide the input's by one call, the module's last.
func adaptivePool(r *rewriter, i int) bool {
	n := r.node(i)
	op, dims := python.AdaptivePool(r.l.Classes[i])
	if dims == 0 || len(n.Outputs) != 1 || strings.HasPrefix(opName(n), "adaptive_") || opName(n) == "mean" {
		return false
	}
	if next := i + 1; next < len(r.l.Graph.Nodes) && r.node(next).Module == n.Module {
		return false
	}
	shape := r.l.Graph.Values[n.Outputs[0]].Type.Shape
	x := graph.NoValue
	for j := i; j >= 0 && r.node(j).Module == n.Module; j-- {
		for _, in := range r.node(j).Inputs {
			v := &r.l.Graph.Values[in]
			if outside := r.def[in] < 0 || r.node(int(r.def[in])).Module != n.Module; outside && v.Type.Elem.IsFloat() && len(v.Type.Shape) == len(shape) && r.l.Roles[in] != Constant {
				x = in
			}
		}
	}
	if x < 0 || len(shape) <= dims {
		return false
	}
	size := graph.Arg{Kind: graph.ArgList}
	for _, d := range shape[len(shape)-dims:] {
		k, known := d.Int()
		if !known {
			return false
		}
		size.List = append(size.List, graph.Arg{Kind: graph.ArgInt, Int: k})
	}
	n.Op, n.Args = op+".default", []graph.Arg{valueArg(x), size}
	r.relink(n)
	return true
}

// globalMaxPool undoes the decomposition of adaptive_max_pool2d(x, 1), which
// also returns indices, into amax. Code that calls amax itself counts dims from
// the front: x.amax((2, 3), keepdim=True).
func globalMaxPool(r *rewriter, i int) bool {
	n := r.node(i)
	if opName(n) != "amax" || len(n.Args) != 3 || n.Args[0].Kind != graph.ArgValue || len(r.l.Graph.Values[n.Args[0].Value].Type.Shape) != 4 {
		return false
	}
	dims, keep := n.Args[1].List, n.Args[2]
	if len(dims) != 2 || dims[0].Int != -2 || dims[1].Int != -1 || keep.Int != 1 {
		return false
	}
	one := graph.Arg{Kind: graph.ArgInt, Int: 1}
	n.Op, n.Args = "adaptive_max_pool2d.default", []graph.Arg{n.Args[0], {Kind: graph.ArgList, List: []graph.Arg{one, one}}}
	return true
}

// cosineSimilarity matches clamp_min(clone(norm(x))) of an operand of
// torch.cosine_similarity (ATen/native/Distance.cpp): clamp_min_ runs under
// no_grad on the copy of the norm, and autocast casts the operands once, before
// they are expanded to a common shape.
func cosineSimilarity(r *rewriter, i int) bool {
	n := r.node(i)
	if opName(n) != "clamp_min" || len(n.Args) == 0 {
		return false
	}
	copied := r.producer(&n.Args[0])
	if copied == nil || opName(copied) != "clone" {
		return false
	}
	norm := r.producer(&copied.Args[0])
	if norm == nil || opName(norm) != "linalg_vector_norm" {
		return false
	}
	x := norm.Args[0].Value
	if e := r.producer(&norm.Args[0]); e != nil && opName(e) == "expand" {
		e.Args[0].Value = r.widened(int(e.ID), e.Args[0].Value)
		r.relink(e)
	} else if div := r.quotient(x, n.Outputs[0]); div != nil {
		w := r.widened(int(norm.ID), x)
		norm.Args[0].Value, div.Args[0].Value = w, w
		r.relink(norm)
		r.relink(div)
	}
	n.Op, n.Args = "identity.default", n.Args[:1]
	r.relink(n)
	return true
}

// quotient returns the call that divides x by y, or nil.
func (r *rewriter) quotient(x, y graph.ValueID) *graph.Node {
	for j := range r.l.Graph.Nodes {
		if n := r.node(j); opName(n) == "div" && slices.Equal(n.Inputs, []graph.ValueID{x, y}) {
			return n
		}
	}
	return nil
}

// meanOfSum replaces a primitive sum divided by a number, the mean that var_mean
// returns besides its variance, by a mean. Only primitives have the overload "default":
// code's own torch.sum over dims and division have others.
func meanOfSum(r *rewriter, i int) bool {
	n := r.node(i)
	if n.Op != "div.default" || len(n.Args) != 2 || n.Args[1].Kind == graph.ArgValue {
		return false
	}
	sum, keep := r.producer(&n.Args[0]), int64(0)
	if sum != nil && sum.Op == "broadcast_in_dim.default" {
		sum, keep = r.producer(&sum.Args[0]), 1
	}
	if sum == nil || sum.Op != "sum.default" || len(sum.Args) != 2 || sum.Args[1].Kind != graph.ArgList {
		return false
	}
	n.Op, n.Args = "mean.dim", []graph.Arg{sum.Args[0], sum.Args[1], {Kind: graph.ArgBool, Int: keep}}
	r.relink(n)
	return true
}
