package aten

import "github.com/memplan/memplan/graph"

// A Cast is autocast's treatment of an operator's floating-point arguments
// (aten/src/ATen/autocast_mode.h).
type Cast uint8

// The autocast classes.
const (
	Keep    Cast = iota // runs in its arguments' types
	Lower               // arguments are cast to the autocast type
	Full                // arguments are cast to float32
	Promote             // arguments are cast to the widest type among them
	Result              // arguments are kept; the result is requested in float32
)

func (c Cast) String() string {
	return [...]string{"keep", "lower", "float32", "promote", "float32 result"}[c]
}

// autocast casts the tensor arguments of a call by its operator's class, from
// the last argument to the first, the order in which C++ evaluates the
// wrapper's.
func (e *Eager) autocast(op *Op, c *Call) {
	if c.InPlace { // autocast has rules for out-of-place operators only
		return
	}
	cast := op.Cast
	if c.Op == "rms_norm" && e.RMSNormFloat32 {
		cast = Full
	}
	switch cast {
	case Lower:
		e.castArgs(c.Args, e.Autocast)
	case Full:
		e.castArgs(c.Args, graph.Float32)
	case Result:
		if x := c.tensor(0, "self"); x != nil && half(x) && c.dtype(-1, "dtype") == graph.Undefined {
			c.Args = append(c.Args[:len(c.Args):len(c.Args)], Arg{Name: "dtype", Kind: graph.ArgString, S: "torch.float32"})
		}
	case Promote:
		to := e.Autocast
		eachTensor(c.Args, func(t *Tensor) {
			if t.DType == graph.Float32 {
				to = graph.Float32
			}
		})
		e.castArgs(c.Args, to)
	}
}

func (e *Eager) castArgs(args []Arg, to graph.DType) {
	for i := len(args) - 1; i >= 0; i-- {
		switch a := &args[i]; a.Kind {
		case graph.ArgValue:
			a.T = e.castTo(a.T, to)
		case graph.ArgList:
			list := make([]Arg, len(a.List))
			copy(list, a.List)
			e.castArgs(list, to)
			a.List = list
		}
	}
}

// castTo converts a floating-point tensor on the device; casts of float32
// parameters that require a gradient are cached until autocast ends.
func (e *Eager) castTo(t *Tensor, to graph.DType) *Tensor {
	if t == nil || !t.DType.IsFloat() || t.DType == graph.Float64 || t.DType == to || t.Storage < 0 {
		return t
	}
	cache := t.leaf != nil && to != graph.Float32
	if cache && t.cast != nil {
		return t.cast
	}
	recorded := e.grad // a cast is recorded under torch.no_grad, too, because calls outside use the cached copy
	e.grad = e.grad || cache
	c := e.toDType("to", t, to)
	e.grad = recorded
	if cache {
		t.cast = c
		e.casts = append(e.casts, t)
	} else {
		e.callCasts = append(e.callCasts, c)
	}
	return c
}

// ExitAutocast ends an autocast region and releases the cached casts.
func (e *Eager) ExitAutocast() {
	for _, t := range e.casts {
		e.hold(t.cast)
		t.cast = nil
	}
	e.casts = e.casts[:0]
}

// Cast appends a copy of a tensor in another type that the model's code makes
// before a call.
func (e *Eager) Cast(c *Call, t *Tensor, to graph.DType) *Tensor {
	e.name, e.module, e.call, e.draws = c.Name, c.Module, c.Index, 0
	return e.toDType("to", t, to)
}

// toDType copies t into a new tensor of another type (aten::_to_copy).
func (e *Eager) toDType(op string, t *Tensor, to graph.DType) *Tensor {
	k := e.begin(op, t).does("copy")
	o := k.alloc(t.Shape, t.denseStrides(), to)
	k.end()
	from := t.DType
	e.record("ToCopyBackward0", []*Tensor{o}, []*Tensor{t}, nil, func(e *Eager, g, _ []*Tensor, _ []bool) []*Tensor {
		return []*Tensor{e.toDType("to", g[0], from)}
	})
	return o
}
