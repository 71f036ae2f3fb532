// Package lift turns a graph of ONNX operators into the graph of framework
// operators that it was exported from: the calls PyTorch would run, with the
// modules that own them.
//
// Two sources say which calls those were. The dynamo exporter writes the FX
// node of every ONNX node into its metadata, arguments included; without it,
// patterns of ONNX operators are recognised.
package lift

import (
	"fmt"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/python"
)

// The metadata keys of torch.onnx.export(dynamo=True).
const (
	keyFX      = "pkg.torch.onnx.fx_node"
	keyScopes  = "pkg.torch.onnx.name_scopes"
	keyClasses = "pkg.torch.onnx.class_hierarchy"
	keyOrigin  = "pkg.torch.onnx.original_node_name"
	keyLines   = "pkg.torch.onnx.stack_trace"
)

// A Source is the evidence that a lift rests on.
type Source string

// The sources.
const (
	Metadata Source = "metadata" // the exporter's own record of the calls
	Patterns Source = "patterns" // recognised ONNX operators
	None     Source = "none"     // nothing lifted
)

// A Lifted is the graph of framework operators. Its nodes have the domain
// "aten", the operator "conv2d.default", Args, and the owning module; their
// inputs are the tensors among the arguments.
type Lifted struct {
	Graph    *graph.Graph
	Source   Source
	Classes  []string // for each node: class of the owning module
	InPlace  []bool   // for each node: the model's code updates the first operand in place
	Warnings []graph.Warning
	Unlifted []string // ONNX operators kept unchanged, each once, in order
	Eval     bool     // exported in evaluation mode, as far as the file shows
	Masks    int64    // bytes that Dropout modules would take if p, which the file does not show, is not 0
	Own      []Region // the model's own autograd functions, as source lines show them

	// Assumed are the results of casts that the code probably makes.
	Assumed map[graph.ValueID]bool

	// Unshown are tensors whose types may depend on code of which the file shows no
	// line.
	Unshown map[graph.ValueID]bool

	Roles []Role // of Graph.Values

	Recording *Recording // what only a capture knows; nil for other sources

	Gaps []Gap  // calls that the file lacks
	Idle []Idle // modules without a call in the file

	Unread []Unread        // unread results of calls that were missing from the file and restored
	filled map[string]bool // first calls of the gaps that those fill

	Folded *Folded // what an optimised file does not show; nil for others

	from   []graph.ValueID                      // for each of Graph.Values: the value of the ONNX graph
	turned map[graph.ValueID]bool               // matrices that the file stores transposed, of a lift by metadata
	copies []copied                             // that Dropout modules may have made, of an optimised file
	forms  map[graph.ValueID]func(*graph.Value) // how a value's type follows from that of the ONNX graph
	masks  map[graph.ValueID]bool               // masks of attention that the exporter's optimizer computed: they depend on no input
	sizes  map[graph.ValueID]bool               // numbers that code computes on the host; an optimizer may leave them in a list of one
}

// A Role is what an initializer is to the framework.
type Role uint8

// The roles. Computed values have the role Unknown.
const (
	Unknown Role = iota
	Parameter
	Buffer
	Constant
)

// Lift lifts a graph whose shapes have been inferred.
func Lift(g *graph.Graph) (*Lifted, error) {
	if err := checkWidth(g); err != nil {
		return nil, err
	}
	if err := checkComplex(g); err != nil {
		return nil, err
	}
	l, err := lift(g)
	if err != nil {
		return nil, err
	}
	l.warnOwnFunctions()
	if l.Source != Captured {
		l.ownRegions()
	}
	if w, masks := evalMode(g, l.copies); w.Code != "" {
		l.Eval, l.Masks = true, masks
		l.Warnings = append([]graph.Warning{w}, l.Warnings...)
	}
	return l, nil
}

// fourier are ATen's Fourier transforms between real and complex numbers.
var fourier = []string{"aten._fft_r2c", "aten._fft_c2r"}

// checkComplex returns an error for such a transform: ONNX has pairs of real numbers in place
// of complex ones, so that calls on them cannot be told from calls on real tensors.
func checkComplex(g *graph.Graph) error {
	for i := range g.Nodes {
		n := &g.Nodes[i]
		for _, name := range fourier {
			if strings.Contains(n.MetaValue(keyFX), name) {
				return fmt.Errorf("%s %q: %s computes with complex numbers, which are not supported: export the model without the transform, with what it returns as an input", n.Op, n.Name, name)
			}
		}
	}
	return nil
}

// lift is Lift without the check of the mode that the model was exported in.
func lift(g *graph.Graph) (*Lifted, error) {
	n := 0
	for i := range g.Nodes {
		if g.Nodes[i].MetaValue(keyFX) != "" {
			n++
		}
	}
	var l *Lifted
	var err error
	if n*2 > len(g.Nodes) {
		if l, err = liftMetadata(g); err == nil {
			l.idioms()
			l.unrolled()
			l.missing(g)
			l.restore(g)
			return l, nil
		}
	}
	incomplete := err // optimisers merge nodes and drop what their metadata refers to
	if l, err = liftPatterns(g); err != nil {
		return nil, err
	}
	if incomplete != nil {
		l.Warnings = append(l.Warnings, graph.Warning{Code: "metadata-incomplete", Message: "the file was optimised after export: " + incomplete.Error() + "; operators are recognised by patterns"})
	}
	l.idioms()
	l.unrolled()
	return l, nil
}

// Unrolled is the code of the warning that a file has the time steps of a recurrent
// network instead of the one call that runs.
const Unrolled = "unrolled-rnn"

// unrolled records the modules of recurrent networks whose call was not
// restored.
func (l *Lifted) unrolled() {
	var steps []string
	called := map[string]bool{}
	for i := range l.Graph.Nodes {
		n := &l.Graph.Nodes[i]
		if _, recurrent := python.Recurrent(l.Classes[i]); !recurrent {
			continue
		}
		if aten.Is(opName(n), aten.Recurrent) {
			called[n.Module] = true
		} else if !slices.Contains(steps, n.Module) {
			steps = append(steps, n.Module)
		}
	}
	steps = slices.DeleteFunc(steps, func(m string) bool { return called[m] })
	if len(steps) > 0 {
		l.Warnings = append(l.Warnings, graph.Warning{Code: Unrolled, Message: fmt.Sprintf("the file shows the time steps of %d recurrent networks (%s) that PyTorch runs as one call: export with optimize=False, or by PyTorch 2.9 or newer", len(steps), steps[0])})
	}
}

// Refresh copies types and known elements from the ONNX graph after it was
// bound again.
func (l *Lifted) Refresh(g *graph.Graph) {
	if l.Source != Metadata { // patterns depend on sizes, which have changed
		if again, err := Lift(g); err == nil {
			*l = *again
			return
		}
	}
	if l.Masks > 0 {
		_, l.Masks = evalMode(g, l.copies)
	}
	for i, id := range l.from {
		if id < 0 {
			continue
		}
		l.Graph.Values[i].Type = g.Values[id].Type
		if c := g.Values[id].Const; c != nil {
			l.Graph.Values[i].Const = c
		}
		if l.turned[graph.ValueID(i)] {
			turn(&l.Graph.Values[i])
		}
		if form := l.forms[graph.ValueID(i)]; form != nil {
			form(&l.Graph.Values[i])
		}
	}
}

// IsSize reports whether a value is a number that code computes on the host, such as a size.
func (l *Lifted) IsSize(id graph.ValueID) bool { return l.sizes[id] }

// builder accumulates the lifted graph.
type builder struct {
	src  *graph.Graph
	l    *Lifted
	to   []graph.ValueID // lifted value of each source value, or NoValue
	name map[string]graph.ValueID
}

func newBuilder(g *graph.Graph, s Source) *builder {
	b := emptyBuilder(g, s)
	b.initializers() // in the file's order, which is the model's
	return b
}

// emptyBuilder is newBuilder without what the file stores.
func emptyBuilder(g *graph.Graph, s Source) *builder {
	b := &builder{src: g, to: make([]graph.ValueID, len(g.Values)), name: map[string]graph.ValueID{}}
	b.l = &Lifted{Source: s, Graph: &graph.Graph{Name: g.Name, Model: g.Model, Meta: g.Meta, Values: make([]graph.Value, 0, countNamed(g)+len(g.Values)/4)}}
	for i := range b.to {
		b.to[i] = graph.NoValue
	}
	return b
}

// initializers adds what the file stores.
func (b *builder) initializers() {
	for i := range b.src.Values {
		if b.src.Values[i].Kind == graph.Initializer {
			b.value(graph.ValueID(i))
		}
	}
}

// value returns the lifted value of a source value.
func (b *builder) value(id graph.ValueID) graph.ValueID {
	if id < 0 {
		return graph.NoValue
	}
	if b.to[id] < 0 {
		v := b.src.Values[id]
		v.ID, v.Def = graph.ValueID(len(b.l.Graph.Values)), -1
		b.l.Graph.Values = append(b.l.Graph.Values, v)
		b.l.from = append(b.l.from, id)
		b.l.Roles = append(b.l.Roles, Unknown)
		b.to[id] = v.ID
	}
	return b.to[id]
}

// fresh adds a value that the source graph lacks.
func (b *builder) fresh(name string, t graph.Type) graph.ValueID {
	id := graph.ValueID(len(b.l.Graph.Values))
	b.l.Graph.Values = append(b.l.Graph.Values, graph.Value{ID: id, Name: name, Type: t, Def: -1, Outer: graph.NoValue})
	b.l.from = append(b.l.from, graph.NoValue)
	b.l.Roles = append(b.l.Roles, Unknown)
	return id
}

// call appends a node.
func (b *builder) call(n graph.Node, class string) *graph.Node {
	n.ID, n.Domain = int32(len(b.l.Graph.Nodes)), "aten"
	n.Inputs = nil
	if tooDeep(n.Module) {
		n.Module = ""
	}
	collect(n.Args, &n.Inputs)
	for _, o := range n.Outputs {
		if o >= 0 {
			b.l.Graph.Values[o].Def = n.ID
			b.l.Graph.Values[o].Kind = graph.Computed
		}
	}
	b.l.Graph.Nodes = append(b.l.Graph.Nodes, n)
	b.l.Classes = append(b.l.Classes, class)
	b.l.InPlace = append(b.l.InPlace, false)
	return &b.l.Graph.Nodes[n.ID]
}

func collect(args []graph.Arg, out *[]graph.ValueID) {
	for i := range args {
		switch args[i].Kind {
		case graph.ArgValue:
			*out = append(*out, args[i].Value)
		case graph.ArgList:
			collect(args[i].List, out)
		}
	}
}

// finish sets inputs and outputs and checks the result. Values that no call computes (sizes, folded
// constants) become constants.
func (b *builder) finish() (*Lifted, error) {
	for _, id := range b.src.Inputs {
		b.l.Graph.Inputs = append(b.l.Graph.Inputs, b.value(id))
	}
	for _, id := range b.src.Outputs {
		b.l.Graph.Outputs = append(b.l.Graph.Outputs, b.value(id))
	}
	for i := range b.l.Graph.Values {
		if v := &b.l.Graph.Values[i]; v.Kind == graph.Computed && v.Def < 0 {
			b.l.constant(graph.ValueID(i))
		}
	}
	if err := graph.Check(b.l.Graph); err != nil {
		return nil, fmt.Errorf("the framework operators that this graph was taken for contradict each other (%w): check the attributes of that node, or report it with the model", err)
	}
	return b.l, nil
}

// constant makes a value that no call computes a constant of the lifted graph:
// a size, a folded constant, or what an idiom made superfluous.
func (l *Lifted) constant(id graph.ValueID) {
	v := &l.Graph.Values[id]
	v.Kind, v.Def, l.Roles[id] = graph.Initializer, -1, Constant
	if v.Const == nil {
		dims, _ := v.Type.Shape.Static()
		v.Const = &graph.Constant{Name: v.Name, Type: v.Type.Elem, Dims: dims}
	}
}

// pyList parses the repr of a Python list of strings.
func pyList(s string) []string {
	s = strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
	if s == "" {
		return nil
	}
	out := make([]string, 0, strings.Count(s, ", ")+1)
	for s != "" {
		q := s[0]
		if q != '\'' && q != '"' {
			return out
		}
		end := strings.IndexByte(s[1:], q)
		if end < 0 {
			return out
		}
		out = append(out, s[1:1+end])
		s = strings.TrimPrefix(strings.TrimPrefix(s[end+2:], ","), " ")
	}
	return out
}

// owner returns the qualified name and the class of the module that made the
// node's call.
func owner(n *graph.Node) (module, class string) {
	scopes, classes := pyList(n.MetaValue(keyScopes)), pyList(n.MetaValue(keyClasses))
	if len(scopes) >= 2 {
		module = scopes[len(scopes)-2]
	}
	if len(classes) >= 2 {
		class = classes[len(classes)-2]
	}
	if strings.HasPrefix(module, "_empty_nn_module_stack") || tooDeep(module) {
		module, class = "", ""
	}
	return module, class
}

// Scopes returns the qualified names of the modules whose forward methods were
// running when the exporter saw the call, outermost first, including the root
// ""; nil if the file does not say.
func Scopes(n *graph.Node) []string {
	s := pyList(n.MetaValue(keyScopes))
	if len(s) == 0 || len(s) > maxScopes+1 || slices.ContainsFunc(s, tooDeep) {
		return nil
	}
	return s[:len(s)-1]
}
