package aten

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// An Arg is one argument of a call with its value resolved: a tensor, a
// number, a string, a list, or None.
type Arg struct {
	Name string // keyword arguments
	Kind graph.ArgKind
	T    *Tensor // for a number: the CPU tensor whose value it is, or nil
	Int  int64
	F    float64
	S    string
	List []Arg
}

// A Call is one operator call as the model's code makes it.
type Call struct {
	Index  int32
	Op     string // "conv2d", "add"
	Over   string // overload: "default", "Tensor"
	Name   string // name of the call in the exported graph
	Module string // qualified name of the owning module
	Class  string // class of the owning module
	Args   []Arg
	// Shapes and Types are the outputs' as inferred: they check the operator
	// table, and are all that is known of an operator that it lacks.
	Shapes  [][]int64
	Types   []graph.DType
	InPlace bool // the model's code updates its first operand in place
	// HostOut marks a result that lives on the CPU.
	HostOut bool
	// Exact is set where Shapes, Types and Shares come from a run of the model's
	// code, not from a file. Shares are the tensors whose storages the results
	// share, nil for a result with its own.
	Exact  bool
	Shares []*Tensor
	// Saves are the tensors that autograd saved during the call, and SavesNew the bytes
	// of those that no call returns; they are used for operators that the table lacks.
	Saves    []*Tensor
	SavesNew []int64
	// Loose is set where an operand's type differs from the one that the code saw:
	// Types are then no better than the operator's own.
	Loose bool
	// NoAutocast and NoGrad turn autocast and autograd's recording off for the call.
	NoAutocast, NoGrad bool
	Autocast           graph.DType // autocast's type where the code sets its own; Undefined: the step's
	// Inexact says why the call computes other numbers than the model's code, with
	// the same memory and time; empty if it does not.
	Inexact string
}

// arg returns positional argument i, or the keyword argument called name.
func (c *Call) arg(i int, name string) *Arg {
	return graph.FindArg(c.Args, func(a *Arg) string { return a.Name }, i, name)
}

func (c *Call) tensor(i int, name string) *Tensor {
	a := c.arg(i, name)
	if a != nil && (a.Kind == graph.ArgValue || i == 0 && a.T != nil) {
		return a.T
	}
	return nil
}

// need is like tensor for a required operand. A number becomes a tensor on the
// CPU; if there is neither, the call fails.
func (c *Call) need(i int, name string) *Tensor {
	if t := c.tensor(i, name); t != nil {
		return t
	}
	if a := c.arg(i, name); a != nil {
		switch a.Kind {
		case graph.ArgBool:
			return number(graph.Bool, float64(a.Int))
		case graph.ArgInt:
			return number(graph.Int64, float64(a.Int))
		case graph.ArgFloat:
			return number(graph.Float32, a.F)
		}
	}
	fail("operand %q is missing", name)
	return nil
}

// needs is like tensors for a list of one or more required operands.
func (c *Call) needs(i int, name string) []*Tensor {
	ts := c.tensors(i, name)
	if len(ts) == 0 || slices.Contains(ts, nil) {
		fail("an operand of %q is missing", name)
	}
	return ts
}

// tensors returns a list argument's tensors.
func (c *Call) tensors(i int, name string) []*Tensor {
	a := c.arg(i, name)
	if a == nil {
		return nil
	}
	var out []*Tensor
	for _, x := range a.List {
		out = append(out, x.T)
	}
	return out
}

func (c *Call) int(i int, name string, def int64) int64 {
	if a := c.arg(i, name); a != nil {
		switch a.Kind {
		case graph.ArgInt, graph.ArgBool:
			return a.Int
		case graph.ArgFloat:
			return int64(a.F)
		}
	}
	return def
}

func (c *Call) float(i int, name string, def float64) float64 {
	if a := c.arg(i, name); a != nil {
		switch a.Kind {
		case graph.ArgFloat:
			return a.F
		case graph.ArgInt:
			return float64(a.Int)
		}
	}
	return def
}

func (c *Call) bool(i int, name string, def bool) bool {
	if a := c.arg(i, name); a != nil && (a.Kind == graph.ArgBool || a.Kind == graph.ArgInt) {
		return a.Int != 0
	}
	return def
}

// ints returns a list of integers; a single integer is repeated n times.
func (c *Call) ints(i int, name string, n int, def int64) []int64 {
	a := c.arg(i, name)
	if a != nil && a.Kind == graph.ArgInt {
		return repeat(a.Int, max(n, 1))
	}
	if a == nil || a.Kind != graph.ArgList || len(a.List) == 0 && n > 0 {
		return repeat(def, n)
	}
	out := make([]int64, len(a.List))
	for j, x := range a.List {
		out[j] = x.Int
	}
	if len(out) == 1 && n > 1 {
		return repeat(out[0], n)
	}
	return out
}

func repeat(v int64, n int) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = v
	}
	return out
}

// dtype returns a dtype argument such as torch.float32.
func (c *Call) dtype(i int, name string) graph.DType {
	if a := c.arg(i, name); a != nil && a.Kind == graph.ArgString {
		return ParseDType(a.S)
	}
	return graph.Undefined
}

// ParseDType returns the element type of a PyTorch dtype name, with or without
// the leading "torch.".
func ParseDType(s string) graph.DType {
	switch strings.TrimPrefix(s, "torch.") {
	case "float32", "float":
		return graph.Float32
	case "float64", "double":
		return graph.Float64
	case "float16", "half":
		return graph.Float16
	case "bfloat16":
		return graph.BFloat16
	case "int64", "long":
		return graph.Int64
	case "int32", "int":
		return graph.Int32
	case "int16", "short":
		return graph.Int16
	case "int8":
		return graph.Int8
	case "uint8":
		return graph.Uint8
	case "bool":
		return graph.Bool
	case "complex64":
		return graph.Complex64
	case "complex128":
		return graph.Complex128
	}
	return graph.Undefined
}

// operand returns argument i as a tensor; a Python number becomes a host
// tensor that takes part in broadcasting but not in type promotion.
func (c *Call) operand(i int, name string) (t *Tensor, scalar bool) {
	if t := c.tensor(i, name); t != nil {
		return t, false
	}
	if a := c.arg(i, name); a != nil {
		switch a.Kind {
		case graph.ArgInt, graph.ArgBool:
			return number(graph.Undefined, float64(a.Int)), true
		case graph.ArgFloat:
			return number(graph.Undefined, a.F), true
		}
	}
	return host(graph.Undefined, nil), true
}

// shape returns the inferred shape and type of output i, or false.
func (c *Call) shape(i int) ([]int64, graph.DType, bool) {
	if i >= len(c.Shapes) || c.Shapes[i] == nil {
		return nil, graph.Undefined, false
	}
	return c.Shapes[i], c.Types[i], true
}

// A mismatch is an inconsistency between a call and its operands.
type mismatch struct{ msg string }

// fail aborts the call, whose operands do not fit it. Run turns this into an
// error.
func fail(format string, args ...any) { panic(mismatch{fmt.Sprintf(format, args...)}) }

// Recover turns a mismatch raised outside Run, by the loss or in backward, into
// an error; likewise Go's runtime errors, such as an index out of range, which
// mean operands that the operator's entry does not foresee. Defer it with the
// address of the error to return.
func Recover(err *error) {
	if r := recover(); r != nil {
		*err = errors.New(reason(r, "the loss or the backward pass meets shapes that memplan cannot work with"))
	}
}

// reason returns the text of a recovered panic, or unforeseen for one of Go's
// runtime.
func reason(r any, unforeseen string) string {
	switch r := r.(type) {
	case mismatch:
		return r.msg
	case runtime.Error:
		return unforeseen
	default:
		panic(r)
	}
}

// operands lists the types of the call's tensors.
func (c *Call) operands() string {
	var list []string
	eachTensor(c.Args, func(t *Tensor) { list = append(list, fmt.Sprintf("%s%v", t.DType, t.Shape)) })
	if list == nil {
		return "no tensors"
	}
	return strings.Join(list, ", ")
}

// Run executes one call and returns its outputs. An operator that the table
// lacks is run conservatively: new outputs as inference shapes them, all
// floating-point operands and results saved for backward, with a warning.
// The error names the call when its operands do not fit it.
func (e *Eager) Run(c *Call) (outs []*Tensor, err error) {
	e.name, e.module, e.call, e.draws = c.Name, c.Module, c.Index, 0
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%s %q: %s", c.Op, c.Name, reason(r, "memplan cannot work with its operands: "+c.operands()))
		}
	}()
	first := len(e.P.Nodes)
	op := Lookup(c.Op)
	if op == nil {
		outs = e.unknown(c)
		e.matchCapture(c, outs, first)
		return outs, nil
	}
	if c.NoGrad && e.grad {
		e.grad = false
		defer func() { e.grad = true }()
	}
	e.callCasts = e.callCasts[:0]
	if to := c.Autocast; to != graph.Undefined {
		defer func(own graph.DType) { e.Config.Autocast = own }(e.Config.Autocast)
		e.Config.Autocast = to
	}
	if e.Config.Autocast != graph.Undefined && !c.NoAutocast {
		e.autocast(op, c)
	}
	casts := slices.Clone(e.callCasts)
	if outs = op.run(e, c); outs == nil {
		outs = e.unknown(c)
		e.matchCapture(c, outs, first)
		return outs, nil
	}
	e.matchCapture(c, outs, first)
	e.mark(first, c.Inexact)
	slices.Reverse(casts) // C++ releases arguments from the last made to the first
	e.hold(casts...)
	return outs, nil
}

// mark gives all nodes from first on a reason why they are inexact.
func (e *Eager) mark(first int, why string) {
	if why == "" {
		return
	}
	for i := first; i < len(e.P.Nodes); i++ {
		a := program.Attrs{}
		if n := &e.P.Nodes[i]; n.Attrs != nil {
			a = *n.Attrs
		}
		a.Inexact = why
		e.P.Nodes[i].Attrs = &a
	}
}

// unknown runs an operator that the table lacks.
func (e *Eager) unknown(c *Call) []*Tensor {
	if c.Exact {
		return e.asCaptured(c)
	}
	var ins []*Tensor
	eachTensor(c.Args, func(t *Tensor) { ins = append(ins, t) })
	k := e.begin(c.Op, ins...).inexact("no entry in the operator table")
	var outs []*Tensor
	floats := false
	for i := range c.Shapes {
		shape, d, ok := c.shape(i)
		if !ok {
			e.Warn("unknown-shape", fmt.Sprintf("%s %q: output %d has no known shape; it is counted as empty", c.Op, c.Name, i))
			shape, d = []int64{0}, graph.Float32
		}
		if !d.Valid() {
			e.Warn("unknown-type", fmt.Sprintf("%s %q: output %d has no known element type; it is counted as float", c.Op, c.Name, i))
			d = graph.Float32
		}
		floats = floats || d.IsFloat()
		outs = append(outs, k.alloc(shape, nil, d))
	}
	k.end()
	if !floats || !e.grad {
		return outs
	}
	e.Warn("unknown-operator", fmt.Sprintf("no entry for %q: counted as saving all its operands and results for backward", c.Op))
	saved := append(append([]*Tensor{}, ins...), outs...)
	e.record(c.Op+"Backward", outs, ins, saved, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		res := make([]*Tensor, len(need))
		for i := range need {
			if need[i] {
				res[i] = e.begin(c.Op+"_backward", append(append([]*Tensor{}, g...), s...)...).inexact("no entry in the operator table").makes(s[i].Shape, nil, s[i].DType)
			}
		}
		return res
	})
	return outs
}

func eachTensor(args []Arg, f func(*Tensor)) {
	for i := range args {
		switch args[i].Kind {
		case graph.ArgValue:
			if args[i].T != nil {
				f(args[i].T)
			}
		case graph.ArgList:
			eachTensor(args[i].List, f)
		}
	}
}

// Named starts a group of calls that belong to no lifted call: the loss, the
// optimizer.
func (e *Eager) Named(name, module string) { e.name, e.module, e.call, e.draws = name, module, -1, 0 }

// Alloc appends a node of op that only allocates and returns its outputs.
// Scalars are the numbers that op fills them with.
func (e *Eager) Alloc(op string, cat program.Category, life program.Lifetime, d graph.DType, shape []int64, scalars ...float64) *Tensor {
	k := e.begin(op).scalars(scalars...).random()
	t := k.alloc(shape, nil, d)
	s := &e.P.Storages[t.Storage]
	s.Category, s.Life = cat, life
	return k.end()
}

func tensorArg(t *Tensor) Arg { return Arg{Kind: graph.ArgValue, T: t} }
