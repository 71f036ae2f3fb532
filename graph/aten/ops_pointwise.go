package aten

import (
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
)

// A pointwise describes an elementwise operator of one differentiable input:
// what backward needs, and the kernels backward runs one after the other. The
// last kernel makes the gradient; what the others make is let go after it, as
// C++ temporaries of one expression are.
type pointwise struct {
	name   string
	node   string   // autograd node
	saves  string   // "", "self" or "result"
	back   []string // kernels of backward; none: the gradient passes through
	cast   Cast
	result bool // backward may use the result of the in-place form without a copy of its operand
}

// pointwises follows tools/autograd/derivatives.yaml.
var pointwises = []pointwise{
	{name: "relu", node: "ReluBackward0", saves: "result", back: []string{"threshold_backward"}},
	{name: "relu6", node: "HardtanhBackward0", saves: "self", back: []string{"hardtanh_backward"}},
	{name: "hardtanh", node: "HardtanhBackward0", saves: "self", back: []string{"hardtanh_backward"}},
	{name: "threshold", node: "ThresholdBackward0", saves: "self", back: []string{"threshold_backward"}},
	{name: "tanh", node: "TanhBackward0", saves: "result", back: []string{"tanh_backward"}},
	{name: "sigmoid", node: "SigmoidBackward0", saves: "result", back: []string{"sigmoid_backward"}},
	{name: "silu", node: "SiluBackward0", saves: "self", back: []string{"silu_backward"}},
	{name: "gelu", node: "GeluBackward0", saves: "self", back: []string{"gelu_backward"}},
	{name: "mish", node: "MishBackward0", saves: "self", back: []string{"mish_backward"}},
	{name: "hardswish", node: "HardswishBackward0", saves: "self", back: []string{"hardswish_backward"}},
	{name: "hardsigmoid", node: "HardsigmoidBackward0", saves: "self", back: []string{"hardsigmoid_backward"}},
	{name: "leaky_relu", node: "LeakyReluBackward0", saves: "self", back: []string{"leaky_relu_backward"}, result: true},
	{name: "elu", node: "EluBackward0", saves: "self", back: []string{"elu_backward"}, result: true},
	{name: "celu", node: "CeluBackward0", saves: "self", back: []string{"elu_backward"}, result: true},
	{name: "selu", node: "EluBackward0", saves: "self", back: []string{"elu_backward"}, result: true},
	{name: "softplus", node: "SoftplusBackward0", saves: "self", back: []string{"softplus_backward"}, cast: Full},
	{name: "log_sigmoid", node: "LogSigmoidBackward0", saves: "self", back: []string{"log_sigmoid_backward"}},
	{name: "softsign", node: "DivBackward0", saves: "self", back: []string{"abs", "add", "div", "mul"}},
	{name: "exp", node: "ExpBackward0", saves: "result", back: []string{"mul"}, cast: Full},
	{name: "expm1", node: "Expm1Backward0", saves: "result", back: []string{"add", "mul"}, cast: Full},
	{name: "log", node: "LogBackward0", saves: "self", back: []string{"div"}, cast: Full},
	{name: "log2", node: "Log2Backward0", saves: "self", back: []string{"mul", "div"}, cast: Full},
	{name: "log10", node: "Log10Backward0", saves: "self", back: []string{"mul", "div"}, cast: Full},
	{name: "log1p", node: "Log1PBackward0", saves: "self", back: []string{"add", "div"}, cast: Full},
	{name: "sqrt", node: "SqrtBackward0", saves: "result", back: []string{"mul", "div"}},
	{name: "rsqrt", node: "RsqrtBackward0", saves: "result", back: []string{"pow", "mul", "mul"}, cast: Full},
	{name: "reciprocal", node: "ReciprocalBackward0", saves: "result", back: []string{"neg", "mul", "mul"}, cast: Full},
	{name: "square", node: "PowBackward0", saves: "self", back: []string{"pow", "mul", "mul"}, cast: Full},
	{name: "sin", node: "SinBackward0", saves: "self", back: []string{"cos", "mul"}},
	{name: "cos", node: "CosBackward0", saves: "self", back: []string{"sin", "neg", "mul"}},
	{name: "tan", node: "TanBackward0", saves: "result", back: []string{"pow", "add", "mul"}, cast: Full},
	{name: "atan", node: "AtanBackward0", saves: "self", back: []string{"mul", "add", "div"}},
	{name: "sinh", node: "SinhBackward0", saves: "self", back: []string{"cosh", "mul"}, cast: Full},
	{name: "cosh", node: "CoshBackward0", saves: "self", back: []string{"sinh", "mul"}, cast: Full},
	{name: "erf", node: "ErfBackward0", saves: "self", back: []string{"pow", "neg", "exp", "mul", "mul"}},
	{name: "abs", node: "AbsBackward0", saves: "self", back: []string{"sgn", "mul"}},
	{name: "neg", node: "NegBackward0", back: []string{"neg"}},
	{name: "floor", node: "FloorBackward0", back: []string{"zeros_like"}},
	{name: "ceil", node: "CeilBackward0", back: []string{"zeros_like"}},
	{name: "round", node: "RoundBackward0", back: []string{"zeros_like"}},
	{name: "sign", node: "SignBackward0", back: []string{"zeros_like"}},
	{name: "asin", node: "AsinBackward0", saves: "self", back: []string{"mul", "rsub", "rsqrt", "mul"}, cast: Full},
	{name: "acos", node: "AcosBackward0", saves: "self", back: []string{"mul", "rsub", "rsqrt", "neg", "mul"}, cast: Full},
	{name: "asinh", node: "AsinhBackward0", saves: "self", back: []string{"pow", "add", "rsqrt", "mul"}},
	{name: "acosh", node: "AcoshBackward0", saves: "self", back: []string{"pow", "sub", "rsqrt", "mul"}},
	{name: "atanh", node: "AtanhBackward0", saves: "self", back: []string{"pow", "rsub", "reciprocal", "mul"}},
	{name: "erfc", node: "ErfcBackward0", saves: "self", back: []string{"pow", "neg", "exp", "mul", "mul"}},
	{name: "erfinv", node: "ErfinvBackward0", saves: "self", back: []string{"erfinv", "pow", "exp", "mul", "mul"}, cast: Full},
	{name: "exp2", node: "Exp2Backward0", saves: "result", back: []string{"mul", "mul"}},
	{name: "logit", node: "LogitBackward0", saves: "self", back: []string{"logit_backward"}},
	{name: "hardshrink", node: "HardshrinkBackward0", saves: "self", back: []string{"hardshrink_backward"}},
	{name: "softshrink", node: "SoftshrinkBackward0", saves: "self", back: []string{"softshrink_backward"}},
	{name: "nan_to_num", node: "NanToNumBackward0", saves: "self", back: []string{"isinf", "isnan", "logical_or", "logical_not", "mul"}},
	{name: "frac", node: "FracBackward0"},
	{name: "trunc", node: "TruncBackward0", back: []string{"zeros_like"}},
	{name: "lgamma", node: "LgammaBackward0", saves: "self", back: []string{"digamma", "mul"}},
	{name: "sgn", node: "SgnBackward0", saves: "self", back: []string{"zeros_like"}},
	{name: "clamp_min", node: "ClampMinBackward0", saves: "self", back: []string{"ge", "where"}},
	{name: "clamp_max", node: "ClampMaxBackward0", saves: "self", back: []string{"le", "where"}},
}

// boolKernels make a bool result whatever they read.
var boolKernels = []string{"ge", "le", "lt", "gt", "eq", "logical_and", "logical_or", "logical_not", "isinf", "isnan"}

// unaryOp runs a pointwise operator, in place when the model's code does so.
func (p *pointwise) run(e *Eager, c *Call) []*Tensor {
	x := c.tensor(0, "self")
	if x == nil {
		return nil
	}
	if !x.DType.IsFloat() {
		d := x.DType
		if _, dt, ok := c.shape(0); ok {
			d = dt
		}
		return []*Tensor{e.unary(p.name, d, x)}
	}
	var out *Tensor
	saved := []*Tensor{x}
	if c.InPlace && x.leaf == nil {
		out = p.inPlace(e, x, &saved)
	} else {
		out = e.unary(p.name, graph.Undefined, x)
		if p.saves == "result" {
			saved = []*Tensor{out}
		}
	}
	if p.saves == "" {
		saved = nil
	}
	e.record(p.node, []*Tensor{out}, []*Tensor{x}, saved, p.backward)
	return []*Tensor{out}
}

// inPlace overwrites x. When backward needs the operand, autograd saves a
// copy of it (VariableType: original_self = self.clone()).
func (p *pointwise) inPlace(e *Eager, x *Tensor, saved *[]*Tensor) *Tensor {
	out := &Tensor{Tensor: x.Tensor}
	if p.saves == "self" && !p.result && e.grad && x.RequiresGrad() {
		k := e.begin(p.name+"_", x)
		(*saved)[0] = k.like(x)
		k.out(out)
		k.end()
		return out
	}
	k := e.begin(p.name+"_", x)
	k.out(out)
	k.end()
	if p.saves != "" {
		(*saved)[0] = out
	}
	return out
}

func (p *pointwise) backward(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
	if len(p.back) == 0 {
		return g
	}
	if len(p.back) == 1 {
		return []*Tensor{e.unary(p.back[0], graph.Undefined, append(slices.Clone(g), s...)...)}
	}
	cur := g[0]
	if len(s) > 0 {
		cur = s[0]
	}
	var temps []*Tensor
	last := len(p.back) - 1
	for i, op := range p.back[:last] {
		d := graph.Undefined
		if slices.Contains(boolKernels, op) {
			d = graph.Bool
		}
		if i == 0 || d == graph.Bool {
			cur = e.unary(op, d, first(s, g))
		} else {
			cur = e.unary(op, d, cur)
		}
		temps = append(temps, cur)
	}
	out := e.unary(p.back[last], g[0].DType, g[0], cur)
	slices.Reverse(temps)
	e.hold(temps...)
	return []*Tensor{out}
}

func first(lists ...[]*Tensor) *Tensor {
	for _, l := range lists {
		if len(l) > 0 {
			return l[0]
		}
	}
	return nil
}

// pair resolves the operands of a binary operator and the type of its result.
func (c *Call) pair() (a, b *Tensor, d graph.DType) {
	a, as := c.operand(0, "self")
	b, bs := c.operand(1, "other")
	switch {
	case as && bs:
		d = graph.Float32
	case as:
		d = c.scalarType(0, "self", b.DType)
	case bs:
		d = c.scalarType(1, "other", a.DType)
	case a.dim() == 0 && b.dim() > 0 && a.DType.IsFloat() == b.DType.IsFloat():
		d = b.DType
	case b.dim() == 0 && a.dim() > 0 && a.DType.IsFloat() == b.DType.IsFloat():
		d = a.DType
	default:
		d = promote(a.DType, b.DType)
	}
	return a, b, d
}

// scalarType is the result type of a tensor of type d and a Python number: a
// fraction makes an integer tensor float32.
func (c *Call) scalarType(i int, name string, d graph.DType) graph.DType {
	if a := c.arg(i, name); a != nil && a.Kind == graph.ArgFloat && !d.IsFloat() {
		return graph.Float32
	}
	if d == graph.Bool && c.arg(i, name) != nil && c.arg(i, name).Kind != graph.ArgBool {
		return graph.Int64
	}
	return d
}

// binary appends one kernel of two operands; host scalars are not read.
func (e *Eager) binary(op string, d graph.DType, a, b *Tensor) *Tensor {
	shape, ok := broadcast(a, b)
	if !ok {
		fail("shapes %v and %v do not broadcast", a.Shape, b.Shape)
	}
	k := e.begin(op, a, b)
	k.alloc(shape, iteratorStrides(shape, a, b), d)
	return k.end()
}

// into appends an in-place kernel: a op= b.
func (e *Eager) into(op string, a, b *Tensor) *Tensor {
	out := &Tensor{Tensor: a.Tensor}
	k := e.begin(op+"_", a, b)
	k.out(out)
	k.end()
	return out
}

func (e *Eager) addSub(op string, c *Call, a, b *Tensor, d graph.DType) *Tensor {
	if c.InPlace && a.leaf == nil && a.DType.IsFloat() && slices.Equal(a.Shape, shapeOf(a, b)) && a.Storage >= 0 {
		return e.into(op, a, b)
	}
	return e.binary(op, d, a, b)
}

func shapeOf(a, b *Tensor) []int64 { s, _ := broadcast(a, b); return s }

func runAdd(e *Eager, c *Call) []*Tensor {
	a, b, d := c.pair()
	out := e.addSub(c.Op, c, a, b, d)
	sub, scaled := c.Op == "sub" || c.Op == "rsub", c.float(2, "alpha", 1) != 1
	fn := map[string]string{"add": "AddBackward0", "sub": "SubBackward0", "rsub": "RsubBackward1"}[c.Op]
	e.record(fn, []*Tensor{out}, []*Tensor{a, b}, nil, func(e *Eager, g, _ []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		if need[1] {
			if outs[1] = g[0]; sub || scaled {
				outs[1] = e.unary(map[bool]string{true: "neg", false: "mul"}[sub && !scaled], graph.Undefined, g[0])
			}
		}
		if need[0] {
			outs[0] = g[0]
		}
		return outs
	})
	return []*Tensor{out}
}

func runMul(e *Eager, c *Call) []*Tensor {
	a, b, d := c.pair()
	out := e.addSub("mul", c, a, b, d)
	saved := []*Tensor{nil, nil} // other, self
	if a.RequiresGrad() {
		saved[0] = b
	}
	if b.RequiresGrad() {
		saved[1] = a
	}
	e.record("MulBackward0", []*Tensor{out}, []*Tensor{a, b}, saved, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		if need[1] {
			outs[1] = e.binary("mul", g[0].DType, g[0], s[1])
		}
		if need[0] {
			outs[0] = e.binary("mul", g[0].DType, g[0], s[0])
		}
		return outs
	})
	return []*Tensor{out}
}

func runDiv(e *Eager, c *Call) []*Tensor {
	a, b, d := c.pair()
	if !d.IsFloat() && c.arg(2, "rounding_mode") == nil {
		d = graph.Float32
	}
	out := e.addSub("div", c, a, b, d)
	saved := []*Tensor{nil, nil}
	if a.RequiresGrad() || b.RequiresGrad() {
		saved[0] = b
	}
	if b.RequiresGrad() {
		saved[1] = a
	}
	e.record("DivBackward0", []*Tensor{out}, []*Tensor{a, b}, saved, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		if need[1] {
			n := e.unary("neg", graph.Undefined, g[0])
			q := e.binary("div", d, s[1], s[0])
			q2 := e.binary("div", d, q, s[0])
			outs[1] = e.binary("mul", d, n, q2)
			e.hold(q2, q, n)
		}
		if need[0] {
			outs[0] = e.binary("div", g[0].DType, g[0], s[0])
		}
		return outs
	})
	return []*Tensor{out}
}

// runPow is a tensor raised to a number, or to a tensor.
func runPow(e *Eager, c *Call) []*Tensor {
	a, b, d := c.pair()
	out := e.binary("pow", d, a, b)
	if b.Storage >= 0 {
		e.record("PowBackward1", []*Tensor{out}, []*Tensor{a, b}, []*Tensor{b, a, out}, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
			outs := make([]*Tensor, 2)
			for i := range outs {
				if need[i] {
					t := e.binary("pow", d, s[1], s[0])
					m := e.binary("mul", d, t, s[i])
					outs[i] = e.binary("mul", d, g[0], m)
					e.hold(m, t)
				}
			}
			return outs
		})
		return []*Tensor{out}
	}
	p := pointwise{back: []string{"pow", "mul", "mul"}}
	e.record("PowBackward0", []*Tensor{out}, []*Tensor{a}, []*Tensor{a}, p.backward)
	return []*Tensor{out}
}

// runMaxMin is the elementwise maximum or minimum of two tensors: masks of
// the operands decide in backward.
func runMaxMin(e *Eager, c *Call) []*Tensor {
	a, b, d := c.pair()
	out := e.binary(c.Op, d, a, b)
	fn := map[string]string{"maximum": "MaximumBackward0", "minimum": "MinimumBackward0"}[c.Op]
	e.record(fn, []*Tensor{out}, []*Tensor{a, b}, []*Tensor{b, a}, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		for i := range outs {
			if need[i] {
				eq := e.binary("eq", graph.Bool, s[1], s[0])
				half := e.unary("div", graph.Undefined, g[0])
				m := e.binary("lt", graph.Bool, s[1], s[0])
				outs[i] = e.unary("masked_fill", graph.Undefined, half)
				e.hold(m, half, eq)
			}
		}
		return outs
	})
	return []*Tensor{out}
}

// runCompare makes a bool tensor; nothing is differentiable.
func runCompare(e *Eager, c *Call) []*Tensor {
	a, _ := c.operand(0, "self")
	b, _ := c.operand(1, "other")
	return []*Tensor{e.binary(c.Op, graph.Bool, a, b)}
}

// runBitwise keeps the promoted type; nothing is differentiable.
func runBitwise(e *Eager, c *Call) []*Tensor {
	a, b, d := c.pair()
	return []*Tensor{e.binary(c.Op, d, a, b)}
}

func runWhere(e *Eager, c *Call) []*Tensor {
	cond := c.tensor(0, "condition")
	a, as := c.operand(1, "self")
	b, bs := c.operand(2, "other")
	d := a.DType
	switch {
	case as && bs:
		d = graph.Float32
	case as:
		d = b.DType
	case !bs:
		d = promote(a.DType, b.DType)
	}
	shape, ok := broadcast(cond, a, b)
	if !ok {
		fail("shapes %v, %v and %v do not broadcast", cond.Shape, a.Shape, b.Shape)
	}
	k := e.begin("where", cond, a, b)
	o := k.alloc(shape, iteratorStrides(shape, cond, a, b), d)
	k.end()
	e.record("WhereBackward0", []*Tensor{o}, []*Tensor{a, b}, []*Tensor{cond}, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		for i := 1; i >= 0; i-- {
			if need[i] {
				outs[i] = e.binary("where", g[0].DType, g[0], s[0])
			}
		}
		return outs
	})
	return []*Tensor{o}
}

func runMaskedFill(e *Eager, c *Call) []*Tensor {
	x, mask := c.tensor(0, "self"), c.tensor(1, "mask")
	o := e.binary("masked_fill", x.DType, x, mask)
	e.record("MaskedFillBackward0", []*Tensor{o}, []*Tensor{x}, []*Tensor{mask}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		return []*Tensor{e.binary("masked_fill", g[0].DType, g[0], s[0])}
	})
	return []*Tensor{o}
}

// runDropout is native_dropout: a bool mask and the result. With p = 0, or
// outside training, the operand itself is returned.
func runDropout(e *Eager, c *Call) []*Tensor {
	x := c.tensor(0, "input")
	if c.float(1, "p", 0.5) == 0 || !c.bool(2, "train", true) || !e.grad && e.replay == nil && !e.P.Train {
		return []*Tensor{x, nil}
	}
	k := e.begin("native_dropout", x)
	mask := k.alloc(x.Shape, x.denseStrides(), graph.Bool)
	o := k.alloc(x.Shape, x.denseStrides(), x.DType)
	k.end()
	e.record("NativeDropoutBackward0", []*Tensor{o}, []*Tensor{x}, []*Tensor{mask}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		return []*Tensor{e.unary("native_dropout_backward", graph.Undefined, g[0], s[0])}
	})
	return []*Tensor{o, mask}
}

// runFill makes a new tensor of inference's shape that reads nothing of its
// operands: arange, zeros, full, empty and their like. What is made like a
// tensor has its type unless the call gives another.
func runFill(e *Eager, c *Call) []*Tensor {
	shape, d, ok := c.shape(0)
	if !ok {
		return nil
	}
	like := c.tensor(-1, "like") // an idiom says whose type it has
	if like == nil && c.dtype(-1, "dtype") == graph.Undefined && (strings.HasSuffix(c.Op, "_like") || strings.HasPrefix(c.Op, "new_")) {
		like = c.tensor(0, "self")
	}
	if like != nil {
		d = like.DType
	}
	k := e.begin(c.Op)
	k.alloc(shape, nil, d)
	return []*Tensor{k.end()}
}

// runRandomFill overwrites its operand with random numbers (bernoulli_).
func runRandomFill(e *Eager, c *Call) []*Tensor {
	x := c.tensor(0, "self")
	return []*Tensor{e.into(c.Op, x, nil)}
}

// runPlain computes something no gradient passes through, in new memory of
// inference's shape.
func runPlain(e *Eager, c *Call) []*Tensor {
	var ins []*Tensor
	eachTensor(c.Args, func(t *Tensor) { ins = append(ins, t) })
	k := e.begin(c.Op, ins...)
	var outs []*Tensor
	for i := range c.Shapes {
		shape, d, ok := c.shape(i)
		if !ok || d.IsFloat() && slices.ContainsFunc(ins, (*Tensor).RequiresGrad) {
			return nil
		}
		outs = append(outs, k.alloc(shape, nil, d))
	}
	k.end()
	return outs
}
