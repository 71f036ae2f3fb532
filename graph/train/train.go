// Package train builds the program of a training step, or of an inference,
// from a lifted graph: it runs the calls of the model, the loss, backward and
// the optimizer on package aten's eager mode.
package train

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/aten"
	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/graph/program"
)

// An UpdateParam is a parameter with a gradient, as an optimizer sees it.
type UpdateParam struct {
	Elems int64
	DType graph.DType
	Shape []int64
}

// An UpdateEvent is one allocation or free of an optimizer's step. IDs number
// the allocations of one step; Param is an index of the parameters or -1; State
// storages are kept.
type UpdateEvent struct {
	ID    int32
	Free  bool
	Bytes int64
	Param int32
	Name  string
	State bool
}

// Options say what to build.
type Options struct {
	Train   bool
	Rule    string      // the optimizer's name, recorded in nodes
	Storage graph.DType // type of parameters and inputs; Undefined keeps the file's
	Loss    string      // auto, cross-entropy, mse, sum, none
	// Update returns what the optimizer's step allocates and frees; first is
	// set for the first step, which creates state. Nil: nothing.
	Update func(params []UpdateParam, first bool) []UpdateEvent
	// Construct returns the state allocated by the optimizer's constructor. Nil:
	// none.
	Construct func(params []UpdateParam) []UpdateEvent
	Config    aten.Config
	Segments  []Segment         // checkpointed regions, in any order; of two with the same calls the first is the outer one
	Frozen    func(string) bool // reports parameters that require no gradient; nil: none
	Warnings  []graph.Warning   // warnings of the caller, for the program
	Retrain   bool              // batch normalisations with running statistics run as in training
	Hold      bool              // the caller holds the outputs during backward
	// InBackward is set where an optimizer of each parameter's own updates it as soon as its
	// gradient is there, and drops the gradient (register_post_accumulate_grad_hook).
	InBackward bool
	LoRA       *LoRA     // low-rank adapters; nil: none
	Prepared   *Prepared // of the same graph, sizes and mode; nil: made here
	Micros     int       // micro-batches whose gradients a step adds up; 0 is 1
	Skips      []Skip    // calls that are left out, in order
	Experts    *Experts  // expert parallelism; nil: none
}

// A Skip leaves calls [Lo, Hi) out of a step: equal blocks of which others tell as much. Values
// that they compute for later calls are those that others did: Same names these.
type Skip struct {
	Lo, Hi int
	Same   map[graph.ValueID]graph.ValueID
}

// A Segment is one checkpointed region: modules that run one after the other.
// If another one contains all of its calls, it is nested in that: it is
// checkpointed again when the outer one runs.
type Segment struct {
	Modules []string `json:"modules"`
	Save    []Saved  `json:"save,omitempty"` // calls whose outputs are kept; all others run again
	// Offload is set where nothing runs again: what the modules save for backward goes to
	// the host and back.
	Offload bool `json:"offload,omitempty"`
	// Keep is set where an offloaded region keeps what its module saves: it is there for the
	// region before, whose tensors go when this one's forward has ended, and come back when
	// backward reaches it.
	Keep bool `json:"keep,omitempty"`
}

// Saved names a call of one ATen operator within a region, counted from 0 in
// the region's order. Of is how many such calls it makes, 0 if unknown.
type Saved struct {
	Op    string `json:"op"` // "aten.addmm", without overload
	Calls []int  `json:"calls"`
	Of    int    `json:"of,omitempty"`
}

// Check returns an error for a region without modules, and for calls to keep
// that no region can make.
func (s *Segment) Check() error {
	if len(s.Modules) == 0 {
		return errors.New("a checkpointed region without modules")
	}
	if s.Keep && !s.Offload {
		return fmt.Errorf("checkpoint %v: only offloaded regions keep what they save", s.Modules)
	}
	if s.Offload && (len(s.Save) > 0 || len(s.Modules) > 1) {
		return fmt.Errorf("offload %v: a region that goes to the host is one module, and keeps no results of calls", s.Modules)
	}
	for _, o := range s.Save {
		if !strings.HasPrefix(o.Op, "aten.") || len(o.Calls) == 0 {
			return fmt.Errorf("checkpoint %v: an operator to keep is named as aten.addmm, with the indices of its calls; not %q with %v", s.Modules, o.Op, o.Calls)
		}
		for i, n := range o.Calls {
			if n < 0 || o.Of > 0 && n >= o.Of || slices.Contains(o.Calls[:i], n) {
				return fmt.Errorf("checkpoint %v: calls %v of %s: want distinct indices from 0 to the number of calls, %d", s.Modules, o.Calls, o.Op, o.Of)
			}
		}
	}
	return nil
}

// kept lists the calls for package aten.
func (s *Segment) kept() (out []aten.Kept) {
	for _, o := range s.Save {
		for _, i := range o.Calls {
			out = append(out, aten.Kept{Op: strings.TrimPrefix(o.Op, "aten."), Call: i, Of: o.Of})
		}
	}
	return out
}

// A Build is a program and what it was built from.
type Build struct {
	*program.Program
	Lifted *lift.Lifted
	// Ranges are the lifted calls of each segment, half-open, in the order of
	// Options.Segments.
	Ranges [][2]int
	// Params are the model's parameters in the order of Module.parameters.
	Params []Param
	// Outputs are what the model returns, and Forward the last node of its
	// (first) forward pass.
	Outputs []Output
	Forward int32
	// Variables says how the lifetimes of Python's variables were determined.
	Variables Variables
	// Open are storages that variables may keep until after a call.
	Open []OpenStorage
	// CastBytes are the float32 bytes of tensors that are assumed to be cast to the
	// parameters' type, or back to an input's.
	CastBytes int64
	// UnseenBytes is the difference in the step's bytes if code without a line
	// computes in float32.
	UnseenBytes int64
	// SupposedBytes are the bytes that modules are guessed to keep in
	// attributes from one step to the next.
	SupposedBytes int64
	// Whole are calls, [first, last) each, that other calls stand in place of, all at once: layers of
	// experts that ranks share. A checkpoint has all of them or none.
	Whole [][2]int
}

// A Param is a parameter on the device. Grad is the storage of its gradient
// from backward to the next zero_grad, None for none.
type Param struct {
	Name   string
	Tensor program.View
	Grad   program.StorageID
}

// An Output is a tensor that the model returns, named as in its file.
type Output struct {
	Name   string
	Tensor program.View
}

// An OpenStorage is a storage that may live until after a lifted call.
type OpenStorage struct {
	Storage program.StorageID
	After   int32
}

// open lists the storages of values whose lives source lines leave open, each
// once. In a training step, what lists take is usually saved anyway.
func (b *builder) open(vars *Variables) []OpenStorage {
	var out []OpenStorage
	at := map[program.StorageID]int{}
	for _, o := range vars.Open {
		t := b.env[o.Value]
		if t == nil || t.Storage < 0 || o.List && b.opt.Train {
			continue
		}
		k, ok := at[t.Storage]
		if !ok {
			k = len(out)
			at[t.Storage] = k
			out = append(out, OpenStorage{Storage: t.Storage})
		}
		out[k].After = max(out[k].After, int32(o.After))
	}
	return out
}

// A Prepared is what programs of one graph share whatever is recomputed: its module tree, and
// what variables hold.
type Prepared struct {
	modules []lift.Module
	holds   [][]graph.ValueID // by call, the values that variables release after it
	vars    Variables
}

// Prepare reads that off a graph as its sizes are bound, for training steps or inferences.
func Prepare(l *lift.Lifted, training bool) *Prepared {
	p := &Prepared{modules: l.Modules()}
	if l.Recording == nil {
		holds, vars := variableHolds(l, p.modules, training)
		p.holds, p.vars = holds.values(), vars
	}
	return p
}

// New builds the program. The error names the call whose operands do not fit,
// or the unbound symbolic dimension.
func New(l *lift.Lifted, opt Options) (_ *Build, err error) {
	defer aten.Recover(&err)
	ready := opt.Prepared
	if ready == nil {
		ready = Prepare(l, opt.Train)
	}
	b := &builder{l: l, modules: ready.modules, opt: opt, e: aten.New(opt.Config), env: make([]*aten.Tensor, len(l.Graph.Values))}
	b.e.P.Train = opt.Train
	b.expect()
	b.e.P.Warnings = slices.Concat(l.Warnings, opt.Warnings)
	vars := ready.vars
	if b.recorded, b.holds = l.Recording, ready.holds; b.recorded != nil {
		b.holds, vars = b.recordedDeaths(), Variables{Source: FromCapture, recorded: b.recorded.Kept}
	}
	if err := b.segments(); err != nil {
		return nil, err
	}
	if err := b.dispatches(); err != nil {
		return nil, err
	}
	if err := b.resident(); err != nil {
		return nil, err
	}
	if err := b.findHead(); err != nil {
		return nil, err
	}
	if b.recorded == nil {
		b.narrow, b.join = newNarrowing(b), newJoining(b)
	}
	b.fast = b.fastPaths()
	if opt.Train {
		b.zeroGrad()
	}
	if err := b.run(); err != nil {
		return nil, err
	}
	b.narrow.warn(b)
	b.join.warn(b)
	b.back.warn(b)
	unseen := b.unseen()
	open := b.open(&vars)
	supposed := b.keep(&vars)
	return &Build{Whole: b.whole(), SupposedBytes: supposed, Program: b.e.P, Params: b.listed(), Open: open, Lifted: l, Ranges: b.ranges, Outputs: b.returned, Forward: b.lastForward, Variables: vars, CastBytes: b.narrow.assumed() + b.back.bytes, UnseenBytes: unseen}, nil
}

// listed returns the parameters and the storages of their gradients.
func (b *builder) listed() []Param {
	out := make([]Param, len(b.params))
	for i, p := range b.params {
		out[i] = Param{p.Name, p.View, program.None}
		if g := p.Grad(); g != nil {
			out[i].Grad = g.Storage
		}
	}
	return out
}

// keep extends the life of what modules keep in attributes to the next step: to
// its zero_grad, though in reality to its forward. It returns the bytes that are
// guessed to be kept.
func (b *builder) keep(vars *Variables) (supposed int64) {
	if !b.opt.Train {
		return 0
	}
	p, kept := b.e.P, vars.Kept()
	if len(kept) == 0 {
		return 0
	}
	freed := b.freed()
	for _, id := range kept {
		t := b.env[id]
		if t == nil || p.Storages[t.Storage].Life != program.Step || freed[t.Storage] {
			continue
		}
		p.Storages[t.Storage].Life = program.Carried
		p.Carried = append(p.Carried, t.Storage)
		if slices.Contains(vars.Supposed, id) {
			supposed += p.Storages[t.Storage].Bytes
		}
	}
	if supposed > 0 {
		b.e.Warn("module-attribute", "modules keep results of functions that the file does not show in attributes; which ones is a guess")
	}
	return supposed
}

// freed returns the storages that calls free themselves.
func (b *builder) freed() map[program.StorageID]bool {
	out := map[program.StorageID]bool{}
	for i := range b.e.P.Nodes {
		for _, e := range b.e.P.Nodes[i].Events {
			if e.Free {
				out[e.Storage] = true
			}
		}
	}
	return out
}

// run appends the step, or the inference.
func (b *builder) run() error {
	if !b.opt.Train {
		b.e.SetGrad(false)
		b.e.SetPhase(program.Forward)
		if err := b.forward(); err != nil {
			return err
		}
		b.returns()
		b.e.ExitAutocast()
		b.e.Hold(b.outputs()...)
		return nil
	}
	resident := b.env
	b.e.P.Micros = max(b.opt.Micros, 1)
	for i := range min(b.e.P.Micros, program.MicrosBuilt) {
		b.env = slices.Clone(resident)
		b.e.SetMicro(i)
		b.e.SetGrad(true)
		b.e.SetPhase(program.Forward)
		if err := b.forward(); err != nil {
			return err
		}
		b.e.AwaitOffloads()
		if i == 0 {
			b.returns()
		}
		if err := cmp.Or(b.backward(), b.redo); err != nil {
			return err
		}
	}
	b.step()
	return nil
}

// expect makes room for a step. Of ten models that were counted none had more than
// 3.2 nodes for each call, nor more than 3 storages for each call and 7 for each stored tensor.
func (b *builder) expect() {
	calls, stored := len(b.l.Graph.Nodes), 0
	for i := range b.l.Graph.Values {
		if b.l.Graph.Values[i].Kind == graph.Initializer {
			stored++
		}
	}
	if b.opt.Train {
		b.e.Expect(calls*13/4, 3*calls+7*stored)
	} else {
		b.e.Expect(calls, 2*calls+stored)
	}
}

type builder struct {
	l           *lift.Lifted
	recorded    *lift.Recording // from a capture, nil for other sources
	opt         Options
	e           *aten.Eager
	env         []*aten.Tensor
	params      []*aten.Tensor
	ranges      [][2]int
	redo        error             // error of a call that ran again
	regions     []*region         // outermost regions, in execution order
	modules     []lift.Module     // modules whose classes the file names
	holds       [][]graph.ValueID // values released after each call
	from        int               // first call of the region that runs again: the variables before it are gone
	result      *aten.Tensor      // the loss
	head        *graph.Node       // the last linear layer, where the loss computes it; nil: the model does
	lora        map[int]*adapter  // by the last call of the module
	setup       []resident        // what exists before the first step
	returned    []Output
	lastForward int32
	back        castsBack
	fast        map[int]*fastAttention // fast paths of an inference, by their first calls
	narrow      *narrowing             // casts that the file does not show, nil unless parameters have half precision
	join        *joining               // types of tensors that are created to be joined, nil without autocast
	sites       map[int]*dispatched    // layers of experts, by the last call that they stand in place of
	left        map[int]bool           // calls that do not run, for those layers
	rows        *reshaped              // the rows of such a layer, while its calls run
	made        []*aten.Tensor         // tensors made here, including optimizer state, each with its parameter's name
}

// Within reports whether module is name or inside it.
func Within(module, name string) bool {
	return module == name || strings.HasPrefix(module, name) && len(module) > len(name) && module[len(name)] == '.'
}

// Range returns the half-open range of calls that the modules make.
func Range(l *lift.Lifted, modules []string) (lo, hi int) {
	lo = len(l.Graph.Nodes)
	for i := range l.Graph.Nodes {
		for _, m := range modules {
			if Within(l.Graph.Nodes[i].Module, m) {
				lo, hi = min(lo, i), i+1
			}
		}
	}
	return lo, hi
}

// Overwrites returns the first call of [lo, hi) that updates in place what was
// computed before lo, except by an operator that changes nothing the second
// time; -1 if there is none. Such calls cannot be run again: the region's input
// has changed, and gradients would be wrong.
func Overwrites(l *lift.Lifted, lo, hi int) int {
	g := l.Graph
	for i := lo; i < hi; i++ {
		op, _, _ := strings.Cut(g.Nodes[i].Op, ".")
		if !l.InPlace[i] || len(g.Nodes[i].Args) == 0 || g.Nodes[i].Args[0].Kind != graph.ArgValue || aten.Is(op, aten.Idempotent) {
			continue
		}
		if strings.HasSuffix(g.Values[g.Nodes[i].Args[0].Value].Name, ".num_batches_tracked") { // the norm's own counter, which a second run leaves alone
			continue
		}
		def := g.Values[g.Nodes[i].Args[0].Value].Def
		for int(def) >= lo && len(g.Nodes[def].Inputs) > 0 { // a view of an earlier value
			name, _, _ := strings.Cut(g.Nodes[def].Op, ".")
			if o := aten.Lookup(name); o == nil || o.Kind != "view" {
				break
			}
			def = g.Values[g.Nodes[def].Inputs[0]].Def
		}
		if int(def) < lo {
			return i
		}
	}
	return -1
}

func shapeText(s graph.Shape) string {
	parts := make([]string, len(s))
	for i, d := range s {
		parts[i] = d.String()
	}
	return "[" + strings.Join(parts, ",") + "]"
}

// zeroGrad frees the gradients of the step before.
func (b *builder) zeroGrad() {
	b.e.SetPhase(program.ZeroGrad)
	b.e.Named("zero_grad", "")
	b.e.Mark("zero_grad")
}

// forward runs all calls of the model, with checkpointed regions.
func (b *builder) forward() error {
	n := len(b.l.Graph.Nodes)
	if b.recorded != nil {
		n = b.recorded.Forward
	}
	return b.calls(0, n, b.regions, b.env)
}

// call runs one lifted call on env.
func (b *builder) call(i int, env []*aten.Tensor) error {
	n := &b.l.Graph.Nodes[i]
	if n == b.head || b.onHost(i, n, env) {
		return nil
	}
	c := &aten.Call{Index: int32(i), Name: n.Name, Module: n.Module, Class: b.l.Classes[i], InPlace: b.l.InPlace[i], Inexact: n.MetaValue(lift.InexactKey)}
	if b.e.P.Train && c.Inexact == "" {
		c.Inexact = n.MetaValue(lift.InexactTrainKey)
	}
	c.Op, c.Over, _ = strings.Cut(n.Op, ".")
	if c.Op == "onnx" {
		c.Op, c.Over = n.Op, ""
	}
	if b.narrow != nil {
		defer b.narrow.before(b, n, c, env)()
	}
	if was := b.e.Autocast; was != graph.Undefined && lift.AutocastOff(n) {
		b.e.Autocast = graph.Undefined
		defer func() { b.e.Autocast = was }()
	}
	var err error
	if c.Args, err = b.args(n, n.Args, env); err != nil {
		return err
	}
	if b.opt.Train && b.opt.Retrain {
		trained(c)
	}
	for _, o := range n.Outputs {
		var shape []int64
		d := graph.Float32
		if o >= 0 {
			t := &b.l.Graph.Values[o].Type
			switch d = b.stored(t.Elem); {
			case b.recorded != nil, b.untyped(c.Op, n):
				d = t.Elem
			case b.join.joined(n, o, env):
				d = b.join.half
			}
			if s, ok := t.Shape.Static(); ok {
				shape = b.rows.shape(s)
			}
		}
		c.Shapes, c.Types = append(c.Shapes, shape), append(c.Types, d)
	}
	b.exact(i, n, c, env)
	own := b.own(i)
	c.NoGrad = c.NoGrad || own != nil || lift.GradOff(n)
	before := len(b.e.P.Nodes)
	outs, err := b.e.Run(c)
	if err != nil {
		return err
	}
	if len(b.e.P.Nodes) > before+1 { // the caller holds its arguments until the call returns
		for _, id := range n.Inputs {
			b.e.Hold(env[id])
		}
	}
	for j, o := range n.Outputs {
		if o >= 0 && j < len(outs) {
			env[o] = outs[j]
			b.back.note(b, n, o, env)
			if outs[j] != nil && c.Shapes[j] != nil && !slices.Equal(outs[j].Shape, c.Shapes[j]) {
				b.e.Warn("shape-differs", fmt.Sprintf("%s gives %v where shape inference says %v", n.Op, outs[j].Shape, c.Shapes[j]))
			}
		}
	}
	b.settle(i, n, env)
	if own != nil && own.Last == i {
		b.function(own, env)
	}
	if err := b.adapt(i, env); err != nil {
		return err
	}
	for _, id := range b.holds[i] {
		if int(b.l.Graph.Values[id].Def) >= b.from {
			b.e.Hold(env[id])
		}
	}
	return nil
}

// args resolves the arguments of a call: computed tensors, and sizes that are
// integers once bound.
func (b *builder) args(n *graph.Node, in []graph.Arg, env []*aten.Tensor) ([]aten.Arg, error) {
	out := make([]aten.Arg, len(in))
	for i := range in {
		a := &in[i]
		o := &out[i]
		*o = aten.Arg{Name: a.Name, Kind: a.Kind, Int: a.Int, F: a.Float, S: a.Str}
		switch a.Kind {
		case graph.ArgList:
			l, err := b.args(n, a.List, env)
			if err != nil {
				return nil, err
			}
			o.List = l
		case graph.ArgValue:
			if err := b.value(n, a.Value, o, env); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

func (b *builder) value(n *graph.Node, id graph.ValueID, o *aten.Arg, env []*aten.Tensor) error {
	if id < 0 {
		o.Kind = graph.ArgNone
		return nil
	}
	if t := env[id]; t != nil {
		o.T = t
		return nil
	}
	v := &b.l.Graph.Values[id]
	if v.Kind == graph.Initializer && v.Type.Elem == graph.Int64 && (len(v.Type.Shape) == 0 || b.l.IsSize(id)) && v.Const.Known() && len(v.Const.Ints) == 1 {
		o.Kind, o.Int, o.T = graph.ArgInt, v.Const.Ints[0], aten.Host(v.Type.Elem, nil, float64(v.Const.Ints[0]))
		return nil
	}
	shape, ok := v.Type.Shape.Static()
	if !ok {
		return fmt.Errorf("%s %q: operand %q has the unbound shape %s", n.Op, n.Name, v.Name, shapeText(v.Type.Shape))
	}
	if v.Kind == graph.Computed {
		return fmt.Errorf("%s %q: operand %q was not computed", n.Op, n.Name, v.Name)
	}
	env[id] = aten.Host(b.kept(id), shape, elements(v.Const)...)
	o.T = env[id]
	return nil
}

// elements returns the elements of a constant of the file, or nil if they were
// not read.
func elements(t *graph.Constant) []float64 {
	if !t.Known() {
		return nil
	}
	if t.Floats != nil {
		return t.Floats
	}
	out := make([]float64, len(t.Ints))
	for i, n := range t.Ints {
		out[i] = float64(n)
	}
	return out
}

// returns records the results of the forward pass.
func (b *builder) returns() {
	b.lastForward = int32(len(b.e.P.Nodes) - 1)
	for _, id := range b.l.Graph.Outputs {
		if id >= 0 && b.env[id] != nil {
			b.returned = append(b.returned, Output{b.l.Graph.Values[id].Name, b.env[id].View})
		}
	}
}

func (b *builder) outputs() []*aten.Tensor {
	var out []*aten.Tensor
	for _, id := range b.l.Graph.Outputs {
		if id >= 0 && b.env[id] != nil {
			out = append(out, b.env[id])
		}
	}
	return out
}
