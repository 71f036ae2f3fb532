package lift

import (
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/python"
)

// An idiom restores an effect of the model's code that the export does not show:
// torch.export makes every operation functional, and libraries take other
// branches while they are traced. Each idiom rewrites one call, if it applies.
type idiom struct {
	name  string
	doc   string
	apply func(r *rewriter, i int) bool
}

// idioms are tried in order on every call until one applies. One that returns
// false may still have rewritten arguments.
var idioms = []idiom{
	{"promotion", "the exporter inserts casts and scalar tensors where PyTorch promotes types by itself", promotion},
	{"to-same", "to(dtype) returns its operand where that has the type already; exports up to PyTorch 2.8 show a copy", toSame},
	{"dropout-off", "a Dropout with p = 0 returns its input; the export shows a clone", dropoutOff},
	{"in-place-written", "source lines that say so: x.relu_(), F.relu(x, inplace=True), x *= y", inPlaceWritten},
	{"in-place-activation", "activations update in place where the names of calls show it; where they do not, those of torchvision models, and those after a batch normalisation", inPlaceActivation},
	{"in-place-add", "residual blocks written with +=", inPlaceAdd},
	{"unrolled-rnn", "rnn_tanh and rnn_relu, and gru and lstm up to PyTorch 2.8, are exported as one call a time step; the modules make one call of cuDNN", unrolledRNN},
	{"fused-cell", "one step of GRUCell and LSTMCell is exported as single calls; on a GPU it is two products and a fused kernel", fusedCell},
	{"stacked-rnn", "ONNX has one operator for each layer of a recurrent network; the module makes one call of cuDNN", stackedRNN},
	{"index-add", "index_add is decomposed into index_put with accumulate=True", indexAdd},
	{"in-place-scatter", "what is scattered into zeros that nobody else reads is written into them", inPlaceScatter},
	{"in-place-noise", "stochastic depth draws and scales its noise in place", inPlaceNoise},
	{"frozen-positions", "tables of sinusoids are parameters that require no gradient", frozenPositions},
	{"weight-norm", "the fused weight normalisation is decomposed", weightNorm},
	{"cosine-similarity", "a function of its own, in float32 under autocast, that bounds the norms in place without gradients", cosineSimilarity},
	{"var-mean", "var_mean is decomposed into primitives, which autocast does not see: the mean is a sum, divided", meanOfSum},
	{"power-iteration", "spectral normalisation estimates its two vectors without gradients", powerIteration},
	{"norm-again", "a batch normalisation that is called again reads the running statistics that the call before returns; the module has one tensor of each", normAgain},
	{"adaptive-pool", "adaptive pooling to sizes that do not divide is decomposed", adaptivePool},
	{"global-max-pool", "adaptive maximum pooling of images to one pixel is exported as amax over [-2, -1]", globalMaxPool},
	{"custom-gelu", "an autograd function of its own that saves its input", customGELU},
	{"rms-norm", "torch.nn.RMSNorm is decomposed", decomposedRMSNorm},
	{"rms-norm-type", "transformers normalises in float32; casts of a float32 model leave no trace", wideRMSNorm},
	{"softmax-type", "transformers casts probabilities back to the query's type", narrowSoftmax},
	{"probabilities-type", "GPT-2 and its likes cast probabilities to the values' type", valueSoftmax},
	{"scores-type", "GPT-Neo and CodeGen multiply query and key in float32", wideScores},
	{"scan-type", "transformers' selective scan runs in float32, and multiplies in the type of what it is called with", scanType},
	{"rotary-type", "transformers casts rotary tables to the hidden states' type", rotaryType},
	{"noise-type", "the noise of dropped paths has its input's type", noiseType},
	{"no-mask", "transformers adds no mask where every position is visible; traced code adds zeros", noMask},
	{"causal-flag", "transformers passes is_causal instead of a mask, and grouped heads unrepeated; traced code builds both", causalFlag},
}

// A rewriter holds the state that idioms share.
type rewriter struct {
	l    *Lifted
	uses []int32 // readers of each value, graph outputs included
	def  []int32 // lifted call that defines each value, or -1
	root string  // class of the model
	seen map[graph.ValueID]cone

	inSeries map[int]bool // activations whose in-place use the names of calls reveal
	fresh    bool         // the exporter also numbers tensors that are not made in place

	before, after map[int][]graph.Node // calls to insert
}

// idioms applies the table and drops calls that nothing reads afterwards.
func (l *Lifted) idioms() {
	r := &rewriter{l: l, seen: map[graph.ValueID]cone{}, before: map[int][]graph.Node{}, after: map[int][]graph.Node{}}
	r.count()
	for i := range l.Graph.Nodes {
		if cl := pyList(l.Graph.Nodes[i].MetaValue(keyClasses)); r.root == "" && len(cl) > 1 {
			r.root = cl[0]
		}
	}
	r.inSeries = r.series()
	r.namedCasts()
	r.sourceCasts()
	r.moduleCasts()
	r.loraCasts()
	for i := range l.Graph.Nodes {
		for _, id := range idioms {
			if id.apply(r, i) {
				break
			}
		}
	}
	r.splice()
	l.sweep()
}

func (r *rewriter) count() {
	g := r.l.Graph
	r.uses, r.def = make([]int32, len(g.Values)), make([]int32, len(g.Values))
	for i := range r.def {
		r.def[i] = -1
	}
	for i := range g.Nodes {
		for _, id := range g.Nodes[i].Inputs {
			r.uses[id]++
		}
		for _, o := range g.Nodes[i].Outputs {
			if o >= 0 {
				r.def[o] = int32(i)
			}
		}
	}
	for _, o := range g.Outputs {
		r.uses[o]++
	}
}

func (r *rewriter) node(i int) *graph.Node { return &r.l.Graph.Nodes[i] }

// producer returns the call that defines a value argument, or nil.
func (r *rewriter) producer(a *graph.Arg) *graph.Node {
	if a == nil || a.Kind != graph.ArgValue || a.Value < 0 || r.def[a.Value] < 0 {
		return nil
	}
	return r.node(int(r.def[a.Value]))
}

func argAt(n *graph.Node, i int, name string) *graph.Arg {
	return graph.FindArg(n.Args, func(a *graph.Arg) string { return a.Name }, i, name)
}

func opName(n *graph.Node) string {
	op, _, _ := strings.Cut(n.Op, ".")
	return op
}

// promotion removes casts that the exporter's type promotion inserted: only
// they are named for the overload.
func promotion(r *rewriter, i int) bool {
	n := r.node(i)
	changed := false
	r.operands(n.Args, func(a *graph.Arg) {
		p := r.producer(a)
		switch {
		case p == nil || len(p.Args) == 0:
		case strings.HasPrefix(p.Name, "convert_element_type_default") && p.Args[0].Kind == graph.ArgValue:
			a.Value, changed = p.Args[0].Value, true
		case strings.HasPrefix(p.Name, "scalar_tensor_default") && p.Args[0].Kind != graph.ArgValue:
			name := a.Name
			*a = p.Args[0]
			a.Name, changed = name, true
		}
	})
	if changed {
		r.relink(n)
	}
	return false
}

// toSame removes a copy into the type that its operand already has: the model's call
// returned its operand. copy=True, which forces a copy, is seldom written.
func toSame(r *rewriter, i int) bool {
	n := r.node(i)
	to := argAt(n, 1, "dtype")
	if r.l.Source != Metadata || opName(n) != "_to_copy" || to == nil || to.Kind != graph.ArgString || argAt(n, 6, "memory_format") != nil || n.Args[0].Kind != graph.ArgValue || len(n.Outputs) == 0 || n.Outputs[0] < 0 {
		return false
	}
	if v := r.l.Graph.Values; v[n.Args[0].Value].Type.Elem != v[n.Outputs[0]].Type.Elem {
		return false
	}
	n.Op, n.Args = "to.dtype", []graph.Arg{n.Args[0], {Kind: graph.ArgString, Str: to.Str}}
	return false
}

// operands calls f for each tensor among a call's arguments.
func (r *rewriter) operands(args []graph.Arg, f func(*graph.Arg)) {
	for i := range args {
		switch args[i].Kind {
		case graph.ArgValue:
			f(&args[i])
		case graph.ArgList:
			r.operands(args[i].List, f)
		}
	}
}

func dropoutOff(r *rewriter, i int) bool {
	n := r.node(i)
	if opName(n) != "clone" || !python.Dropouts.Of(r.l.Classes[i]) && !r.clonesForDropout(i) {
		return false
	}
	n.Op, n.Args = "identity.default", n.Args[:1]
	return true
}

// clonesForDropout reports whether call i is a copy by the decomposition of dropout(x,
// 0.0) in some versions (dropoutClones), which the call itself does not make
// (torch/_decomp/decompositions.py against ATen/native/Dropout.cpp): a copy of a
// softmax, or in a library that copies nothing else, unless it is written to.
func (r *rewriter) clonesForDropout(i int) bool {
	n := r.node(i)
	if len(n.Args) != 1 || n.Args[0].Kind != graph.ArgValue || !dropoutClones(r.l.Graph.Model.Producer) || r.def[n.Args[0].Value] < 0 || !r.l.Graph.Values[n.Args[0].Value].Type.Elem.IsFloat() {
		return false
	}
	p := r.producer(&n.Args[0])
	if opName(p) != "softmax" && !python.RarelyClones.Of(r.l.Classes[i]) {
		return false
	}
	for j := i + 1; j < len(r.l.Graph.Nodes); j++ {
		if m := r.node(j); slices.Contains(m.Inputs, n.Outputs[0]) && (aten.Is(opName(m), aten.Writes) || opName(m) == "masked_scatter") {
			return false
		}
	}
	return true
}

// dropoutClones reports whether a version of PyTorch exports a dropout with p =
// 0 as a copy.
func dropoutClones(producer string) bool {
	version, ok := strings.CutPrefix(producer, "pytorch 2.")
	minor, _, _ := strings.Cut(version, ".")
	k, err := strconv.Atoi(minor)
	return ok && err == nil && k < firstWithout
}

// firstWithout is the first minor version of PyTorch 2 that leaves such a dropout
// out: 2.11 copies, 2.15 does not.
const firstWithout = 15

func inPlaceActivation(r *rewriter, i int) bool {
	n := r.node(i)
	if !aten.Is(opName(n), aten.InPlace) || len(n.Args) == 0 || n.Args[0].Kind != graph.ArgValue || r.uses[n.Args[0].Value] != 1 {
		return false
	}
	p := r.producer(&n.Args[0])
	in, known := r.inSeries[i]
	if p == nil || !known && !aten.Is(opName(p), aten.Activated) || callsOutOfPlace(n) {
		return false
	}
	r.l.InPlace[i] = in || !known && overwrites(r, n, p)
	return r.l.InPlace[i]
}

// callsOutOfPlace reports whether the source line of an activation calls the
// out-of-place function: "F.relu(x)".
func callsOutOfPlace(n *graph.Node) bool {
	lines := Lines(n)
	if len(lines) == 0 {
		return false
	}
	text := lines[len(lines)-1].Text
	return strings.Contains(text, opName(n)+"(") && !strings.Contains(text, "inplace") && strings.Count(text, "(") == strings.Count(text, ")")
}

// overwrites reports whether the class that owns an activation applies it in
// place; p computes its operand. A class that is in no library's table does so
// after batch normalisation, as nearly all published networks do.
func overwrites(r *rewriter, n, p *graph.Node) bool {
	in, known := python.ActivatesInPlace(opName(n), &python.Place{Class: ownerClass(n), Around: pyList(n.MetaValue(keyClasses)), Root: r.root})
	return in || !known && strings.Contains(opName(p), "batch_norm") && opName(n) != "leaky_relu"
}

// ownerClass returns the innermost class around a call that is not PyTorch's
// own, "" if the file names none.
func ownerClass(n *graph.Node) string {
	list := strings.FieldsFunc(n.MetaValue(keyClasses), func(c rune) bool { return strings.ContainsRune("[]', ", c) })
	for i := len(list) - 2; i >= 0; i-- { // the last is the operator
		if !python.PyTorch.Of(list[i]) {
			return list[i]
		}
	}
	return ""
}

func inPlaceAdd(r *rewriter, i int) bool {
	n := r.node(i)
	p := r.producer(argAt(n, 0, "self"))
	if opName(n) != "add" || p == nil || aten.SavesResult(opName(p)) || writesSum(n) || !python.AddsInPlace.Of(r.l.Classes[i]) {
		return false
	}
	r.l.InPlace[i] = true
	return true
}

// writesSum reports whether the source line of a call has a sum and no "+=".
func writesSum(n *graph.Node) bool {
	lines := Lines(n)
	if len(lines) == 0 {
		return false
	}
	text := lines[len(lines)-1].Text
	return strings.Contains(text, " + ") && !strings.Contains(text, "+=")
}

// indexAdd restores index_add(self, dim, index, source), unless the source line
// calls index_put itself. index_add does not promote: zeros made for it have the
// source's type.
func indexAdd(r *rewriter, i int) bool {
	n := r.node(i)
	at, accumulate := argAt(n, 1, "indices"), argAt(n, 3, "accumulate")
	if opName(n) != "index_put" || len(n.Args) != 4 || at.Kind != graph.ArgList || accumulate.Kind != graph.ArgBool || accumulate.Int == 0 || callsFunction(n) {
		return false
	}
	dim := len(at.List) - 1
	if dim < 0 || at.List[dim].Kind != graph.ArgValue || len(r.l.Graph.Values[at.List[dim].Value].Type.Shape) != 1 ||
		slices.ContainsFunc(at.List[:dim], func(a graph.Arg) bool { return a.Kind != graph.ArgNone }) || !r.indexedShape(n, dim) {
		return false
	}
	if p := r.producer(&n.Args[0]); p != nil && opName(p) == "zeros" && r.uses[p.Outputs[0]] == 1 && r.def[n.Args[2].Value] < p.ID {
		p.Op, p.Args = "new_zeros.default", []graph.Arg{n.Args[2], p.Args[0]}
		r.relink(p)
	}
	n.Op, n.Args = "index_add.default", []graph.Arg{n.Args[0], {Kind: graph.ArgInt, Int: int64(dim)}, at.List[dim], n.Args[2]}
	r.relink(n)
	return inPlaceScatter(r, i)
}

// indexedShape reports whether the values have as many dims as the operand, which
// index_add requires.
func (r *rewriter) indexedShape(n *graph.Node, dim int) bool {
	x, v := n.Args[0], n.Args[2]
	if x.Kind != graph.ArgValue || v.Kind != graph.ArgValue {
		return false
	}
	return dim < len(r.l.Graph.Values[x.Value].Type.Shape) && len(r.l.Graph.Values[x.Value].Type.Shape) == len(r.l.Graph.Values[v.Value].Type.Shape)
}

// inPlaceScatter marks scatters into fresh zeros as in place,
// zeros(..).scatter_add_(..), as in torch_geometric, torch_scatter and loops over
// experts: nothing else reads the zeros, and the source line does not call the
// out-of-place function.
func inPlaceScatter(r *rewriter, i int) bool {
	n := r.node(i)
	p := r.producer(argAt(n, 0, "self"))
	if p == nil || !aten.Is(opName(n), aten.IntoZeros) || !aten.Is(opName(p), aten.Zeros) || r.uses[p.Outputs[0]] != 1 || callsFunction(n) {
		return false
	}
	r.l.InPlace[i] = true
	return true
}

// callsFunction reports whether the source line of a call names its operator
// without the trailing underscore: "x.index_add(0, i, y)".
func callsFunction(n *graph.Node) bool {
	lines := Lines(n)
	return len(lines) > 0 && strings.Contains(lines[len(lines)-1].Text, opName(n)+"(")
}

func inPlaceNoise(r *rewriter, i int) bool {
	n := r.node(i)
	p := r.producer(argAt(n, 0, "self"))
	switch {
	case p == nil:
		return false
	case opName(n) == "div" && opName(p) == "bernoulli": // noise.div_(keep)
	case opName(n) == "floor" && python.FloorsInPlace.Of(r.l.Classes[i]): // noise.floor_()
	default:
		return false
	}
	r.l.InPlace[i] = true
	return true
}

// A cone summarises the computation of a value.
type cone struct {
	data    bool     // whether it reads a graph input, a parameter or a buffer
	compare []string // its comparisons, operator and overload, once each
	window  int64    // the largest distance that it allows: the width of a sliding window
}

// cone walks back from a value; the graphs of masks are small.
func (r *rewriter) cone(id graph.ValueID) cone {
	if c, ok := r.seen[id]; ok {
		return c
	}
	r.seen[id] = cone{} // graphs have no cycles; this only avoids repeated walks
	var c cone
	v := &r.l.Graph.Values[id]
	d := r.def[id]
	if d < 0 {
		c.data = v.Kind == graph.Input || r.l.Roles[id] == Parameter || r.l.Roles[id] == Buffer
	} else {
		n := r.node(int(d))
		switch opName(n) {
		case "le", "lt", "ge", "gt":
			c.compare = append(c.compare, n.Op)
			if n.Op == "le.Scalar" && n.Args[1].Kind == graph.ArgInt {
				c.window = n.Args[1].Int
			}
		case "sub":
			if len(n.Args) > 1 && n.Args[1].Kind == graph.ArgInt {
				c.window = n.Args[1].Int
			}
		}
		for _, in := range n.Inputs {
			x := r.cone(in)
			c.data = c.data || x.data
			c.window = max(c.window, x.window)
			for _, s := range x.compare {
				if !slices.Contains(c.compare, s) {
					c.compare = append(c.compare, s)
				}
			}
		}
	}
	r.seen[id] = c
	return c
}

func fromTransformers(r *rewriter, i int) bool {
	return python.Transformers.Of(r.l.Classes[i])
}

// noMask replaces x + mask by x if the mask only computes "position >= 0".
func noMask(r *rewriter, i int) bool {
	n := r.node(i)
	b := argAt(n, 1, "other")
	if opName(n) != "add" || !fromTransformers(r, i) {
		return false
	}
	if p := r.producer(b); p == nil || opName(p) != "where" {
		return false
	}
	c := r.cone(b.Value)
	if c.data || len(c.compare) != 1 || c.compare[0] != "ge.Scalar" {
		return false
	}
	n.Op, n.Args = "identity.default", n.Args[:1]
	r.relink(n)
	return true
}

// causalFlag replaces a mask that only says "not later than" by is_causal, as
// eager code does, which then does not repeat grouped keys and values.
func causalFlag(r *rewriter, i int) bool {
	n := r.node(i)
	m := argAt(n, 3, "attn_mask")
	if opName(n) != "scaled_dot_product_attention" || !fromTransformers(r, i) || m == nil || m.Kind != graph.ArgValue {
		return false
	}
	c := r.cone(m.Value)
	if len(c.compare) == 2 && r.withinWindow(c, &n.Args[1]) {
		c.compare = slices.DeleteFunc(slices.Clone(c.compare), func(s string) bool { return s == "gt.Tensor" || s == "le.Scalar" })
	}
	folded := r.l.masks[m.Value] || r.l.Folded != nil && !c.data && len(c.compare) == 0 && r.l.Graph.Values[m.Value].Type.Elem == graph.Bool // which comparison made it is not known
	if !folded && (c.data || len(c.compare) != 1 || c.compare[0] != "le.Tensor" && c.compare[0] != "ge.Scalar") {
		return false
	}
	causal := !folded && c.compare[0] == "le.Tensor"
	m.Kind, m.Value = graph.ArgNone, graph.NoValue
	if causal {
		n.Args = append(n.Args, graph.Arg{Name: "is_causal", Kind: graph.ArgBool, Int: 1})
	}
	k, v := r.unrepeated(&n.Args[1]), r.unrepeated(&n.Args[2])
	if k >= 0 && v >= 0 {
		n.Args[1].Value, n.Args[2].Value = k, v
		n.Args = append(n.Args, graph.Arg{Name: "enable_gqa", Kind: graph.ArgBool, Int: 1})
	}
	r.relink(n)
	return true
}

// withinWindow reports whether all keys are within a sliding window: the mask
// for longer sequences is then not made.
func (r *rewriter) withinWindow(c cone, key *graph.Arg) bool {
	if key.Kind != graph.ArgValue {
		return false
	}
	shape, ok := r.l.Graph.Values[key.Value].Type.Shape.Static()
	return ok && len(shape) == 4 && c.window > shape[2]
}

// unrepeated returns x of _unsafe_view(clone(expand(unsqueeze(x)))), or
// NoValue. A single head is expanded without a copy.
func (r *rewriter) unrepeated(a *graph.Arg) graph.ValueID {
	for _, op := range [][]string{{"_unsafe_view", "view", "reshape"}, {"clone"}, {"expand"}, {"unsqueeze"}} {
		p := r.producer(a)
		switch {
		case p != nil && slices.Contains(op, opName(p)):
			a = &p.Args[0]
		case op[0] != "clone":
			return graph.NoValue
		}
	}
	return a.Value
}

// powerIteration removes the products that estimate the two vectors of the
// largest singular value from the backward graph:
// torch.nn.utils.parametrizations makes them under no_grad, which the file does
// not show. Each result is read twice, to be divided by its norm; that of the
// product for the value is read once.
func powerIteration(r *rewriter, i int) bool {
	n := r.node(i)
	if opName(n) != "mv" || !python.SpectralNorms.Of(r.l.Classes[i]) || r.uses[n.Outputs[0]] != 2 {
		return false
	}
	n.Args[0].Value = r.insert(r.before, i, "detach.default", n.Args[0])
	r.relink(n)
	return true
}

func (r *rewriter) relink(n *graph.Node) {
	n.Inputs = nil
	collect(n.Args, &n.Inputs)
}

// sweep removes calls whose results nothing reads.
func (l *Lifted) sweep() {
	g := l.Graph
	live := make([]bool, len(g.Values))
	for _, o := range g.Outputs {
		live[o] = true
	}
	keep := make([]bool, len(g.Nodes))
	for i := len(g.Nodes) - 1; i >= 0; i-- {
		n := &g.Nodes[i]
		for _, o := range n.Outputs {
			keep[i] = keep[i] || o >= 0 && live[o]
		}
		if keep[i] {
			for _, in := range n.Inputs {
				live[in] = true
			}
		}
	}
	j := 0
	for i := range g.Nodes {
		if !keep[i] {
			for _, o := range g.Nodes[i].Outputs {
				if o >= 0 {
					l.constant(o)
				}
			}
			continue
		}
		g.Nodes[j], l.Classes[j], l.InPlace[j] = g.Nodes[i], l.Classes[i], l.InPlace[i]
		g.Nodes[j].ID = int32(j)
		for _, o := range g.Nodes[j].Outputs {
			if o >= 0 {
				g.Values[o].Def = int32(j)
			}
		}
		j++
	}
	g.Nodes, l.Classes, l.InPlace = g.Nodes[:j], l.Classes[:j], l.InPlace[:j]
}
