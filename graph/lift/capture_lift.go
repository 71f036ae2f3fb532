package lift

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/python"
)

// Captured is the Source of a lift from a capture.
const Captured Source = "capture"

// A Recording holds what a capture knows of a lifted graph besides its calls.
type Recording struct {
	Variant string // "train fp32"
	Forward int    // calls of the model; later ones are the loss's
	Loss    graph.ValueID
	// Released are the values that Python releases between the end of a call and the
	// beginning of the next.
	Released [][]graph.ValueID
	Kept     []graph.ValueID // never released: modules keep them until the next step
	// NoAutocast and NoGrad mark calls for which autocast or autograd's recording is
	// off.
	NoAutocast, NoGrad []bool
	Casts              []graph.DType       // autocast's type, if the code sets its own
	Regions            []Region            // custom functions, in the order of their last calls
	StorageBytes       []int64             // for each value: bytes of its storage if it shows only a part of it, else 0
	OnHost             []bool              // marks calls whose results are on the CPU
	Saves              [][]RecordedSave    // nil if unknown
	Bases              []graph.ValueID     // for each value: the value whose storage it shares
	Frozen             map[string]bool     // parameters that require no gradient
	Aliases            map[string][]string // other names of shared parameters
	Given              []bool              // marks stored values whose type is that of the run's precision
	Original           []graph.DType       // their types before the conversion
}

// A RecordedSave is a tensor that autograd saves during a call: a value, or one
// of Bytes that no call returns.
type RecordedSave struct {
	Value graph.ValueID
	Bytes int64
}

// captureNames maps Python's names of operators to the table's. Other operators
// have the same name in both, without the trailing "_" of calls that write to
// their operand.
var captureNames = map[string]string{
	"__and__": "bitwise_and", "__or__": "bitwise_or", "__xor__": "bitwise_xor", "__iand__": "bitwise_and_", "__ior__": "bitwise_or_",
	"multiply": "mul", "subtract": "sub", "divide": "div", "true_divide": "div", "negative": "neg", "absolute": "abs", "arccos": "acos", "greater": "gt", "less": "lt",
	"greater_equal": "ge", "less_equal": "le", "not_equal": "ne", "swapdims": "transpose", "swapaxes": "transpose", "moveaxis": "movedim", "std_mean": "var_mean", "normal": "normal_functional",
	"concat": "cat", "concatenate": "cat", "row_stack": "vstack", "clip": "clamp", "fix": "trunc",
}

// captureViews are calls for which the table has an operator with explicit sizes or
// dims. Their arguments are derived from the result's shape.
var captureViews = map[string]struct {
	op   string
	args func(shape []int64) []graph.Arg
}{
	"expand_as": {"expand.default", sizesArg}, "view_as": {"view.default", sizesArg}, "reshape_as": {"reshape.default", sizesArg}, "ravel": {"reshape.default", sizesArg},
	"mT": {"transpose.int", lastTwo}, "mH": {"transpose.int", lastTwo}, "adjoint": {"transpose.int", lastTwo}, "matrix_H": {"transpose.int", lastTwo},
	"numpy_T": {"permute.default", reversed}, "T": {"permute.default", reversed},
	"zero": {"fill.Scalar", func([]int64) []graph.Arg { return []graph.Arg{{Kind: graph.ArgInt}} }},
}

func intsArg(list []int64) []graph.Arg {
	a := graph.Arg{Kind: graph.ArgList}
	for _, n := range list {
		a.List = append(a.List, graph.Arg{Kind: graph.ArgInt, Int: n})
	}
	return []graph.Arg{a}
}

func sizesArg(shape []int64) []graph.Arg { return intsArg(shape) }

func lastTwo([]int64) []graph.Arg {
	return []graph.Arg{{Kind: graph.ArgInt, Int: -2}, {Kind: graph.ArgInt, Int: -1}}
}

func reversed(shape []int64) []graph.Arg {
	dims := make([]int64, len(shape))
	for i := range dims {
		dims[i] = int64(len(shape) - 1 - i)
	}
	return intsArg(dims)
}

// LiftCapture builds the lifted graph of one variant of a capture. g is the
// file's graph with its inputs bound, which give the dims.
func LiftCapture(c *Capture, g *graph.Graph, index int) (*Lifted, error) {
	v := &c.Variants[index]
	b := &captureLift{c: c, v: v, env: map[string]int64{}, sized: map[string]int64{}, at: map[int32]graph.ValueID{}, counts: map[string]int{}}
	b.l = &Lifted{Source: Captured, Graph: &graph.Graph{Name: g.Name, Model: g.Model, Meta: g.Meta}}
	b.r = &Recording{Variant: v.Mode + " " + v.Precision, Forward: len(v.Calls), Loss: graph.NoValue, Frozen: map[string]bool{}, Aliases: map[string][]string{}}
	b.l.Recording = b.r
	if err := b.bind(g); err != nil {
		return nil, err
	}
	if err := b.stored(); err != nil {
		return nil, err
	}
	if err := b.constants(); err != nil {
		return nil, err
	}
	b.modules()
	if err := b.calls(); err != nil {
		return nil, err
	}
	b.finish()
	if err := b.regions(); err != nil {
		return nil, err
	}
	if err := graph.Check(b.l.Graph); err != nil {
		return nil, fmt.Errorf("the calls contradict each other: %w", err)
	}
	return b.l, nil
}

type captureLift struct {
	c      *Capture
	v      *capturedVariant
	l      *Lifted
	r      *Recording
	env    map[string]int64        // dims
	sized  map[string]int64        // evaluated expressions
	at     map[int32]graph.ValueID // current value of an id: that of the last call that wrote to it
	metas  [][]graph.Prop          // metadata of each module
	counts map[string]int          // calls of each operator
}

// bind takes the dims from the file's inputs, matched by name, else by
// position.
func (b *captureLift) bind(g *graph.Graph) error {
	place := 0
	for i := range b.c.Tensors {
		t := &b.c.Tensors[i]
		if t.Kind != "input" {
			continue
		}
		id := slices.IndexFunc(g.Inputs, func(id graph.ValueID) bool { return g.Values[id].Name == t.Name })
		if id < 0 && place < len(g.Inputs) {
			id = place
		}
		place++
		if id < 0 {
			continue
		}
		shape := g.Values[g.Inputs[id]].Type.Shape
		if shape == nil {
			continue
		}
		if len(shape) != len(t.Shape) {
			return fmt.Errorf("input %q has %d dims, and %d in the capture", t.Name, len(shape), len(t.Shape))
		}
		for k := range shape {
			if err := b.dim(t, k, shape[k]); err != nil {
				return err
			}
		}
	}
	return nil
}

// dim binds one dim of an input.
func (b *captureLift) dim(t *capturedTensor, k int, d graph.Dim) error {
	n, ok := d.Int()
	if !ok {
		return nil
	}
	s := t.Shape[k]
	if s.expr == "" {
		if s.n != n {
			return fmt.Errorf("dim %d of input %q is %d, and the capture was made for %d alone: export with sizes that differ there, or as dims", k, t.Name, n, s.n)
		}
		return nil
	}
	name, ok := b.c.exprs[s.expr].Symbol()
	if !ok {
		return nil
	}
	if old, seen := b.env[name]; seen && old != n {
		return fmt.Errorf("dim %d of input %q is %d, and %s is %d: the capture has one dim for both", k, t.Name, n, name, old)
	}
	b.env[name] = n
	return nil
}

// size evaluates a size.
func (b *captureLift) size(s capturedSize) (int64, error) {
	if s.expr == "" {
		return s.n, nil
	}
	if n, ok := b.sized[s.expr]; ok {
		return n, nil
	}
	n, err := b.c.exprs[s.expr].Eval(b.env)
	if err != nil {
		return 0, err
	}
	b.sized[s.expr] = n
	return n, nil
}

// shape evaluates a shape. Unbound dims stay symbolic, so that a report can ask
// for them.
func (b *captureLift) shape(list capturedDims) (graph.Shape, error) {
	out := make(graph.Shape, len(list))
	for i, s := range list {
		n, err := b.size(s)
		switch {
		case err != nil && b.unbound(s.expr):
			out[i] = b.c.exprs[s.expr]
		case err != nil:
			return nil, err
		case n < 0:
			return nil, fmt.Errorf("size %q is negative, %d", s.expr, n)
		default:
			out[i] = graph.Int(n)
		}
	}
	return out, nil
}

// unbound reports whether an expression has an unbound dim.
func (b *captureLift) unbound(expr string) bool {
	return slices.ContainsFunc(b.c.exprs[expr].Symbols(), func(s string) bool { _, ok := b.env[s]; return !ok })
}

// add appends a value.
func (b *captureLift) add(v graph.Value, r Role, given bool) graph.ValueID {
	v.ID = graph.ValueID(len(b.l.Graph.Values))
	v.Outer = graph.NoValue
	b.l.Graph.Values = append(b.l.Graph.Values, v)
	b.l.from = append(b.l.from, graph.NoValue)
	b.l.Roles = append(b.l.Roles, r)
	b.r.Bases = append(b.r.Bases, graph.NoValue)
	b.r.Given = append(b.r.Given, given)
	b.r.Original = append(b.r.Original, v.Type.Elem)
	b.r.StorageBytes = append(b.r.StorageBytes, 0)
	return v.ID
}

// stored adds the values that exist before the model is called.
func (b *captureLift) stored() error {
	for i := range b.c.Tensors {
		t := &b.c.Tensors[i]
		d, err := capturedDType(t.DType)
		if err != nil {
			return err
		}
		was := d
		own, given := b.v.Types[strconv.Itoa(i)]
		if given {
			d = own.dtype
		}
		shape, err := b.shape(t.Shape)
		if err != nil {
			return fmt.Errorf("%s %q: %w", t.Kind, t.Name, err)
		}
		kind, role := graph.Initializer, Buffer
		if t.Kind == "input" {
			kind = graph.Input
		}
		v := stored(t.Name, kind, d, shape)
		switch {
		case t.Kind == "input":
			role = Unknown
		case t.Device == "cpu":
			role = Constant
		case t.Kind == "parameter":
			role = Parameter
			if !t.Grad {
				b.r.Frozen[t.Name] = true
			}
			if len(t.Also) > 0 {
				b.r.Aliases[t.Name] = t.Also
			}
		}
		id := b.add(v, role, given)
		b.r.Original[id] = was
		if v.Kind == graph.Input {
			b.l.Graph.Inputs = append(b.l.Graph.Inputs, id)
		}
		b.at[int32(i)] = id
	}
	return nil
}

// constants adds tensors on the device that the code holds besides parameters,
// buffers and inputs.
func (b *captureLift) constants() error {
	for _, id := range b.v.Constants {
		t := b.v.Types[strconv.Itoa(int(id))]
		shape, err := b.shape(t.shape)
		if err != nil {
			return fmt.Errorf("constant %d: %w", id, err)
		}
		b.at[id] = b.add(stored(fmt.Sprint("constant_", id), graph.Initializer, t.dtype, shape), Buffer, true)
	}
	return nil
}

// stored returns a value that no call makes.
func stored(name string, kind graph.Kind, d graph.DType, shape graph.Shape) graph.Value {
	v := graph.Value{Name: name, Kind: kind, Def: -1, Type: graph.Type{Kind: graph.TensorType, Elem: d, Shape: shape}}
	if dims, ok := shape.Static(); ok && kind == graph.Initializer {
		v.Const = &graph.Constant{Name: name, Type: d, Dims: dims}
	} else if kind == graph.Initializer {
		v.Const = &graph.Constant{Name: name, Type: d}
	}
	return v
}

// modules writes the scopes of each module as exporters do: the names and classes
// of the enclosing modules, outermost first, and a name for the call.
func (b *captureLift) modules() {
	class := map[string]string{"": b.c.Class}
	for _, m := range b.c.Modules {
		class[m[0]] = m[1]
	}
	b.metas = make([][]graph.Prop, len(b.c.Modules))
	for i, m := range b.c.Modules {
		if tooDeep(m[0]) || strings.ContainsAny(m[0]+m[1], `'"\`) {
			continue
		}
		names, classes := []string{"''"}, []string{"'" + strings.NewReplacer("'", "", `"`, "").Replace(b.c.Class) + "'"}
		for at := 0; m[0] != ""; {
			end := strings.IndexByte(m[0][at:], '.')
			name := m[0]
			if end >= 0 {
				name = m[0][:at+end]
			}
			if c := class[name]; c != "" && !python.NeverRun.Of(c) && !strings.ContainsAny(c, `'"\`) {
				names, classes = append(names, "'"+name+"'"), append(classes, "'"+c+"'")
			}
			if end < 0 {
				break
			}
			at += end + 1
		}
		names, classes = append(names, "'call'"), append(classes, "'call'")
		b.metas[i] = []graph.Prop{{Key: keyScopes, Value: "[" + strings.Join(names, ", ") + "]"}, {Key: keyClasses, Value: "[" + strings.Join(classes, ", ") + "]"}}
	}
}

// calls makes the nodes.
func (b *captureLift) calls() error {
	if b.v.Forward != nil {
		b.r.Forward = *b.v.Forward
	}
	for i := range b.v.Calls {
		c := &b.v.Calls[i]
		if err := b.call(c); err != nil {
			return fmt.Errorf("call %d, %.60q at %.60q: %w", i, c.Op, c.At, err)
		}
	}
	return nil
}

// call makes the node of one call.
func (b *captureLift) call(c *capturedCall) error {
	g := b.l.Graph
	n := graph.Node{ID: int32(len(g.Nodes)), Domain: "aten"}
	op, inPlace := operatorOf(c.Op)
	n.Op = op
	base, _, _ := strings.Cut(op, ".")
	n.Name = base
	if k := b.counts[base]; k > 0 {
		n.Name = fmt.Sprint(base, "_", k)
	}
	b.counts[base]++
	var err error
	if n.Args, err = b.args(c.Args, nil); err != nil {
		return err
	}
	for _, name := range c.names {
		a, err := b.args([]capturedArg{c.Kwargs[name]}, nil)
		if err != nil {
			return err
		}
		a[0].Name = name
		n.Args = append(n.Args, a[0])
	}
	b.view(&n, c)
	collect(n.Args, &n.Inputs)
	class := ""
	if c.Module != nil && len(g.Nodes) < b.r.Forward {
		if n.Module, class = b.c.Modules[*c.Module][0], b.c.Modules[*c.Module][1]; tooDeep(n.Module) {
			n.Module, class = "", ""
		}
		n.Meta = b.metas[*c.Module]
	}
	host := false
	for k, o := range c.Out {
		id := graph.NoValue
		if o != nil {
			var cpu bool
			if id, cpu, err = b.result(*o, n.Name, k); err != nil {
				return err
			}
			host = host || cpu
			g.Values[id].Def = n.ID
		}
		n.Outputs = append(n.Outputs, id)
	}
	for k, o := range c.Out {
		if o != nil {
			b.at[*o] = n.Outputs[k]
		}
	}
	g.Nodes = append(g.Nodes, n)
	b.l.Classes = append(b.l.Classes, class)
	b.l.InPlace = append(b.l.InPlace, inPlace)
	b.r.OnHost = append(b.r.OnHost, host)
	cast := graph.Undefined
	if c.Autocast != nil {
		cast = c.Autocast.to
	}
	b.r.Casts = append(b.r.Casts, cast)
	b.r.NoAutocast = append(b.r.NoAutocast, c.Autocast != nil && cast == graph.Undefined)
	b.r.NoGrad = append(b.r.NoGrad, c.Grad != nil && !*c.Grad)
	var dies []graph.ValueID
	for _, id := range c.Dies {
		dies = append(dies, b.at[id])
	}
	b.r.Released = append(b.r.Released, dies)
	return b.saves(c)
}

// view replaces the operator and arguments of a call in captureViews.
func (b *captureLift) view(n *graph.Node, c *capturedCall) {
	name, _, _ := strings.Cut(n.Op, ".")
	to, ok := captureViews[name]
	if !ok || len(n.Args) == 0 || len(c.Out) == 0 || c.Out[0] == nil {
		return
	}
	t, typed := b.v.Types[strconv.Itoa(int(*c.Out[0]))]
	shape, err := b.shape(t.shape)
	dims, static := shape.Static()
	if typed && err == nil && static {
		n.Op, n.Args = to.op, append(n.Args[:1:1], to.args(dims)...)
	}
}

// operatorOf returns the table's name of a call's operator, and whether the call
// writes to its first operand.
func operatorOf(target string) (op string, inPlace bool) {
	ns, rest, _ := strings.Cut(target, ".")
	if ns != "aten" && ns != "prims" {
		return target, false
	}
	name, over, _ := strings.Cut(rest, ".")
	if to, ok := captureNames[name]; ok {
		name = to
	}
	if strings.HasSuffix(name, "_") && !strings.HasSuffix(name, "__") {
		name, inPlace = strings.TrimSuffix(name, "_"), true
		if to, ok := captureNames[name]; ok {
			name = to
		}
	}
	if over == "" {
		over = "default"
	}
	return name + "." + over, inPlace
}

// args resolves arguments.
func (b *captureLift) args(in []capturedArg, out []graph.Arg) ([]graph.Arg, error) {
	for i := range in {
		a := &in[i]
		o := graph.Arg{Kind: a.kind, Int: a.i, Float: a.f, Str: a.s}
		switch a.kind {
		case graph.ArgValue:
			o.Int = 0
			if a.i >= 0 {
				o.Value = b.at[int32(a.i)]
				break
			}
			shape, err := b.shape(a.shape)
			if err != nil {
				return nil, err
			}
			o.Value = b.add(stored("", graph.Initializer, a.dtype, shape), Constant, true)
		case graph.ArgInt:
			if a.size != "" {
				n, err := b.size(capturedSize{expr: a.size})
				if err != nil && !b.unbound(a.size) {
					return nil, err
				}
				o.Int = n
			}
		case graph.ArgList:
			list, err := b.args(a.list, nil)
			if err != nil {
				return nil, err
			}
			o.List = list
		}
		out = append(out, o)
	}
	return out, nil
}

// result makes the value of a call's result, a new one even if the call writes to
// an existing tensor.
func (b *captureLift) result(id int32, name string, k int) (out graph.ValueID, cpu bool, err error) {
	if k > 0 {
		name = fmt.Sprint(name, ".", k)
	}
	v := graph.Value{Name: name, Kind: graph.Computed}
	old, written := b.at[id]
	t, typed := b.v.Types[strconv.Itoa(int(id))]
	switch {
	case typed:
		shape, err := b.shape(t.shape)
		if err != nil {
			return 0, false, err
		}
		v.Type = graph.Type{Kind: graph.TensorType, Elem: t.dtype, Shape: shape}
	case written:
		v.Type = b.l.Graph.Values[old].Type
	}
	out = b.add(v, Unknown, true)
	if typed && t.bytes != nil {
		n, err := b.size(*t.bytes)
		if err != nil && !b.unbound(t.bytes.expr) {
			return 0, false, err
		}
		b.r.StorageBytes[out] = n
	}
	switch {
	case written:
		b.r.Bases[out] = old
	case typed && t.storage >= 0:
		if of, ok := b.at[t.storage]; ok {
			b.r.Bases[out] = of
		}
	}
	return out, typed && t.device == "cpu", nil
}

// A Region is a custom autograd function: the calls from First through Last make
// its results from its inputs, and its own backward reads what it saved.
type Region struct {
	Kind, Name      string
	First, Last     int // calls
	Inputs, Outputs []graph.ValueID
	Saves           []RecordedSave
}

// reentrant is the checkpoint whose first run autograd does not record: backward
// runs it again, with gradients.
const reentrant = "torch.utils.checkpoint.CheckpointFunction"

// regions finds the calls of each region.
func (b *captureLift) regions() error {
	for i := range b.v.Regions {
		c := &b.v.Regions[i]
		if c.In != nil {
			continue // only the outer function's backward runs
		}
		r := Region{Kind: c.Kind, Name: c.Name, First: -1, Last: -1}
		for k := range b.v.Calls {
			if b.within(b.v.Calls[k].Region, i) {
				if r.First < 0 {
					r.First = k
				}
				r.Last = k
			}
		}
		if r.First < 0 {
			continue
		}
		if c.Name == reentrant {
			clear(b.r.NoGrad[r.First : r.Last+1])
		}
		for _, id := range c.Inputs {
			r.Inputs = append(r.Inputs, b.at[id])
		}
		for _, id := range c.Outputs {
			r.Outputs = append(r.Outputs, b.at[id])
		}
		var err error
		if r.Saves, err = b.saved(c.Saves); err != nil {
			return err
		}
		b.r.Regions = append(b.r.Regions, r)
	}
	return nil
}

// within reports whether region of is the given region, or inside it.
func (b *captureLift) within(of *int, region int) bool {
	for of != nil && *of != region {
		of = b.v.Regions[*of].In
	}
	return of != nil
}

// saves records what autograd saves during a call.
func (b *captureLift) saves(c *capturedCall) error {
	out, err := b.saved(c.Saves)
	b.r.Saves = append(b.r.Saves, out)
	return err
}

func (b *captureLift) saved(list []capturedSave) (out []RecordedSave, err error) {
	for _, s := range list {
		r := RecordedSave{Value: graph.NoValue}
		if s.id >= 0 {
			r.Value = b.at[s.id]
		} else {
			n, err := b.size(s.bytes)
			if err != nil && !b.unbound(s.bytes.expr) {
				return nil, err
			}
			r.Bytes = n
		}
		out = append(out, r)
	}
	return out, nil
}

// finish records what the model returns, and what stays alive.
func (b *captureLift) finish() {
	g := b.l.Graph
	for _, id := range b.v.Outputs {
		if v := b.at[id]; !slices.Contains(g.Outputs, v) {
			g.Outputs = append(g.Outputs, v)
		}
	}
	if b.v.Loss != nil && b.v.Mode == "train" {
		b.r.Loss = b.at[*b.v.Loss]
	}
	gone, any := map[int32]bool{}, false
	for i := range b.v.Calls {
		for _, id := range b.v.Calls[i].Dies {
			gone[id], any = true, true
		}
	}
	if !any {
		return
	}
	for _, id := range b.v.Outputs {
		gone[id] = true
	}
	for _, id := range slices.Sorted(maps.Keys(b.at)) {
		v := b.at[id]
		if g.Values[v].Kind == graph.Computed && !gone[id] && v != b.r.Loss {
			b.r.Kept = append(b.r.Kept, v)
		}
	}
}
