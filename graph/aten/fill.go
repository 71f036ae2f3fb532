package aten

import (
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// runDropout is native_dropout: a bool mask and the result. With p = 0, or
// outside training, the operand itself is returned.
func runDropout(e *Eager, c *Call) []*Tensor {
	x := c.need(0, "input")
	if c.float(1, "p", 0.5) == 0 || !c.bool(2, "train", true) || !e.grad && e.replay == nil && !e.P.Train {
		return []*Tensor{x, nil}
	}
	p := c.float(1, "p", 0.5)
	if c.Op == "alpha_dropout" || c.Op == "feature_dropout" {
		return []*Tensor{noiseDropout(e, c.Op, x)}
	}
	k := e.begin("native_dropout", x).scalars(p).random()
	mask := k.alloc(x.Shape, x.denseStrides(), graph.Bool)
	o := k.alloc(x.Shape, x.denseStrides(), x.DType)
	k.end()
	e.record("NativeDropoutBackward0", []*Tensor{o}, []*Tensor{x}, []*Tensor{mask}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		return []*Tensor{e.elementwise("native_dropout_backward", g[0].DType, g[0], s[0]).scalars(1 / (1 - p)).end()}
	})
	return []*Tensor{o, mask}
}

// noiseDropout is alpha_dropout and feature_dropout, which multiply by noise of the
// operand's type, drawn for each element or each channel
// (aten/src/ATen/native/Dropout.cpp, _dropout_impl).
func noiseDropout(e *Eager, op string, x *Tensor) *Tensor {
	k := e.begin(op, x).inexact("the kernels of " + op).random()
	var noise *Tensor
	shift := program.None
	if op == "alpha_dropout" {
		noise = k.like(x)
		shift = k.temp(x.Bytes(), program.Temporaries)
	} else {
		shape := repeat(1, x.dim())
		copy(shape[:min(2, len(shape))], x.Shape)
		noise = k.alloc(shape, nil, x.DType)
	}
	o := k.alloc(x.Shape, iteratorStrides(x.Shape, x), x.DType)
	k.free(shift)
	k.attrs().Results = []int8{1, 0}
	k.end()
	e.hold(noise)
	e.record("MulBackward0", []*Tensor{o}, []*Tensor{x}, []*Tensor{noise}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		return []*Tensor{computes(e, "mul s s1", g[0].DType, g[0], s[0])}
	})
	return o
}

// runFill makes a new tensor of the inferred shape that reads none of its
// operands: arange, zeros, full, empty and the like. A tensor made like another
// has its type unless the call gives one.
func runFill(e *Eager, c *Call) []*Tensor {
	shape, d, ok := c.shape(0)
	if !ok {
		return nil
	}
	like := c.tensor(-1, "like") // an idiom names the tensor whose type it takes
	if like == nil && c.dtype(-1, "dtype") == graph.Undefined && (strings.HasSuffix(c.Op, "_like") || strings.HasPrefix(c.Op, "new_")) {
		like = c.tensor(0, "self") // nil where a pattern knows only the shape
	}
	if like != nil {
		d = like.DType
	}
	k := e.begin(c.Op)
	c.filling(k)
	k.alloc(shape, nil, d)
	return []*Tensor{k.end()}
}

// filling sets the values that a call fills new memory with.
func (c *Call) filling(k *kernel) {
	n := c.positional()
	base := strings.TrimSuffix(strings.TrimPrefix(c.Op, "new_"), "_like")
	switch base {
	case "zeros":
		k.does("fill").scalars(0)
	case "ones":
		k.does("fill").scalars(1)
	case "full":
		if v := c.arg(1, "fill_value"); v != nil && v.Kind != graph.ArgValue {
			k.does("fill").scalars(c.float(1, "fill_value", float64(c.int(1, "fill_value", 0))))
			return
		}
		k.inexact("a number that the file does not show")
	case "scalar_tensor":
		k.does("fill").scalars(c.float(0, "s", float64(c.int(0, "s", 0))))
	case "empty":
		k.does("empty")
	case "arange":
		start, step := 0.0, 1.0
		if n > 1 {
			start = c.float(0, "start", 0)
		}
		if n > 2 {
			step = c.float(2, "step", 1)
		}
		k.does("arange").scalars(start, step)
	case "linspace":
		if steps := c.int(2, "steps", 0); steps > 0 && c.known(0) && c.known(1) {
			from, to := c.float(0, "start", 0), c.float(1, "end", 0)
			k.does("arange").scalars(from, (to-from)/float64(max(steps-1, 1)))
			return
		}
		k.inexact("numbers that the file does not show")
	case "randint":
		low, high := 0.0, c.float(0, "high", 0)
		if c.known(1) {
			low, high = high, c.float(1, "high", 0)
		}
		k.scalars(low, high).random()
	case "rand":
		k.does("uniform").scalars(0, 1).random()
	case "randn":
		k.does("normal").scalars(0, 1).random()
	}
}

// known reports whether argument i is a number in the file.
func (c *Call) known(i int) bool {
	a := c.arg(i, "")
	return a != nil && (a.Kind == graph.ArgInt || a.Kind == graph.ArgFloat)
}

// positional counts the arguments without a name.
func (c *Call) positional() int {
	n := 0
	for i := range c.Args {
		if c.Args[i].Name == "" {
			n++
		}
	}
	return n
}

// runRandomFill overwrites its operand with random numbers (bernoulli_).
func runRandomFill(e *Eager, c *Call) []*Tensor {
	x := c.need(0, "self")
	out := &Tensor{View: x.View}
	k := intoKernel(e, c.Op, x, nil, out).random()
	switch c.Op {
	case "bernoulli":
		k.scalars(c.float(1, "p", 0.5))
		if a := c.arg(1, "p"); a != nil && a.Kind == graph.ArgValue {
			k.inexact("probabilities on the device")
		}
	case "uniform":
		k.scalars(c.float(1, "from", 0), c.float(2, "to", 1))
	case "normal_functional":
		k.does("normal").scalars(c.float(1, "mean", 0), c.float(2, "std", 1))
	default:
		k.inexact("numbers of another distribution")
	}
	k.end()
	return []*Tensor{out}
}
