package aten

import (
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// A formula is an elementwise operator of several operands: what backward
// reads, and the kernels of each operand's gradient. Each kernel makes a tensor
// of the result's shape; the last one makes the gradient, which the engine sums
// where the operand was broadcast.
type formula struct {
	node    string
	saved   []*Tensor
	scalars []float64     // of the operator
	back    [][]string    // kernels of each operand's gradient, in the notation of steps; none: the gradient passes through
	numbers []float64     // of those kernels; nil: the operator's
	args    []program.Arg // of the operator; nil: its operands in order
	result  bool          // the operator's result is saved after all else
	order   []int         // order of the gradients, by index of the operand; nil: 0, 1, ...
	does    string        // the operator's kernel, if its name differs
}

// apply runs the operator on ins, which broadcast, and records its backward.
func apply(e *Eager, op string, d graph.DType, ins []*Tensor, f formula) *Tensor {
	shape := common(ins...)
	k := e.begin(op, ins...)
	if f.scalars != nil {
		k.scalars(f.scalars...)
	}
	if f.does != "" {
		k.does(f.does)
	}
	if f.args != nil {
		k.attrs().Args = f.args
	}
	o := k.alloc(shape, iteratorStrides(shape, ins...), d)
	k.end()
	if f.result {
		f.saved = append(f.saved, o)
	}
	e.record(f.node, []*Tensor{o}, ins, f.saved, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, len(need))
		order := f.order
		if order == nil {
			for i := range need {
				order = append(order, i)
			}
		}
		for _, i := range order {
			if !need[i] {
				continue
			}
			outs[i] = formulaBack(e, f, f.back[i], g[0], s)
		}
		return outs
	})
	return o
}

// formulaBack runs the kernels of one operand's gradient.
func formulaBack(e *Eager, f formula, back []string, g *Tensor, s []*Tensor) *Tensor {
	out, temps, numbers := g, []*Tensor(nil), f.numbers
	if numbers == nil {
		numbers = f.scalars
	}
	for i, text := range back {
		if st := steps(text)[0]; len(st.args) > 0 {
			out = stepKernel(e, &st, i, boolOr(e, st.op, g.DType), g, s, temps, numbers).end()
		} else {
			out = e.elementwise(text, boolOr(e, text, g.DType), append([]*Tensor{g}, present(s)...)...).inexact("stands for several kernels").end()
		}
		temps = append(temps, out)
	}
	if len(temps) > 1 {
		temps = temps[:len(temps)-1]
		slices.Reverse(temps)
		e.hold(temps...)
	}
	return out
}

func boolOr(e *Eager, kernel string, d graph.DType) graph.DType {
	if e.lookup(kernel).is(kernel, Truth) {
		return graph.Bool
	}
	return d
}

// present drops tensors that were not saved or that do not broadcast.
func present(ts []*Tensor) []*Tensor {
	return slices.DeleteFunc(slices.Clone(ts), func(t *Tensor) bool { return t == nil || t.Storage < 0 })
}

// onlyFor returns t if of, the tensor whose gradient reads it, requires one.
func onlyFor(of, t *Tensor) *Tensor {
	if of.RequiresGrad() {
		return t
	}
	return nil
}

func promoted(ts ...*Tensor) graph.DType {
	d := ts[0].DType
	for _, t := range ts[1:] {
		d = promote(d, t.DType)
	}
	return d
}

// runAddc is addcmul and addcdiv: self + value * tensor1 */ tensor2.
func runAddc(e *Eager, c *Call) []*Tensor {
	x, a, b := c.need(0, "self"), c.need(1, "tensor1"), c.need(2, "tensor2")
	value := []float64{c.float(-1, "value", 1)}
	f := formula{scalars: value, node: "AddcmulBackward0", saved: []*Tensor{onlyFor(b, a), onlyFor(a, b)}, back: [][]string{nil, {"mul s1 p0", "mul g t0"}, {"mul s0 p0", "mul g t0"}}}
	if c.Op == "addcdiv" {
		f = formula{scalars: value, node: "AddcdivBackward0", saved: []*Tensor{onlyFor(b, a), b}, back: [][]string{nil, {"div p0 s1", "mul g t0"}, {"neg g", "mul s0 p0", "mul s1 s1", "div t1 t2", "mul t0 t3"}}}
	}
	return []*Tensor{apply(e, c.Op, promoted(x, a, b), []*Tensor{x, a, b}, f)}
}

// runLerp interpolates; a weight that is a number is not saved.
func runLerp(e *Eager, c *Call) []*Tensor {
	x, end, w := c.need(0, "self"), c.need(1, "end"), c.tensor(2, "weight")
	if w == nil {
		by := c.float(2, "weight", 0)
		return []*Tensor{apply(e, c.Op, x.DType, []*Tensor{x, end}, formula{args: []program.Arg{{In: 0}, {In: 1}, {In: program.Number, Value: by}}, numbers: []float64{1 - by, by}, order: []int{1, 0},
			node: "LerpBackward0", back: [][]string{{"mul g p0"}, {"mul g p1"}}})}
	}
	return []*Tensor{apply(e, c.Op, x.DType, []*Tensor{x, end, w}, formula{node: "LerpBackward1", order: []int{1, 0, 2},
		saved: []*Tensor{onlyFor(w, end), onlyFor(w, x), w}, back: [][]string{{"rsub s2 1", "mul g t0"}, {"mul g s2"}, {"sub s0 s1", "mul g t0"}}})}
}

// runBinarySaved is hypot and xlogy, which save both operands.
func runBinarySaved(e *Eager, c *Call) []*Tensor {
	a, b, d := c.floatPair()
	if c.Op == "xlogy" {
		return []*Tensor{xlogy(e, a, b, d)}
	}
	f := formula{saved: []*Tensor{b, a}, node: "HypotBackward0", back: [][]string{{"div s1 s2", "mul g t0"}, {"div s0 s2", "mul g t0"}}, order: []int{1, 0}, result: true}
	return []*Tensor{apply(e, c.Op, d, []*Tensor{a, b}, f)}
}

// xlogy is self * log(other); where self is 0 and other is not positive, self has no
// gradient.
func xlogy(e *Eager, a, b *Tensor, d graph.DType) *Tensor {
	o := binary(e, "xlogy", d, a, b)
	e.record("XlogyBackward0", []*Tensor{o}, []*Tensor{a, b}, []*Tensor{b, a}, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		if need[1] {
			m := binary(e, "mul", d, g[0], s[1])
			outs[1] = binary(e, "div", d, m, s[0])
			e.hold(m)
		}
		if need[0] {
			log := binary(e, "xlogy", d, g[0], s[0])
			negative := computes(e, "le s 0", graph.Bool, s[0])
			zero := computes(e, "eq s 0", graph.Bool, s[1])
			both := binary(e, "logical_and", graph.Bool, zero, negative)
			k := binaryKernel(e, "masked_fill", d, log, both)
			k.attrs().Args = []program.Arg{{In: 0}, {In: 1}, {In: program.Number}}
			outs[0] = k.end()
			e.hold(both, zero, negative, log)
		}
		return outs
	})
	return o
}

// floatPair is pair with a floating-point result type.
func (c *Call) floatPair() (a, b *Tensor, d graph.DType) {
	a, b, d = c.pair()
	if !d.IsFloat() {
		d = graph.Float32
	}
	return a, b, d
}

// runAtan2 divides the gradients of both operands by the same sum of squares; where
// that is 0, they are 0 (torch/csrc/autograd/FunctionsManual.cpp, atan2_backward).
func runAtan2(e *Eager, c *Call) []*Tensor {
	a, b, d := c.floatPair()
	o := binary(e, c.Op, d, a, b)
	e.record("Atan2Backward0", []*Tensor{o}, []*Tensor{a, b}, []*Tensor{b, a}, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		b2, a2 := computes(e, "mul s s", s[0].DType, s[0]), computes(e, "mul s s", s[1].DType, s[1])
		sum := binary(e, "add", d, a2, b2)
		e.hold(a2, b2)
		inverse := e.unary("reciprocal", d, sum)
		zero := computes(e, "eq s 0", graph.Bool, sum)
		zeroWhere(e, inverse, zero)
		e.hold(zero)
		outs, held := make([]*Tensor, 2), []*Tensor{inverse, sum}
		if need[0] {
			t := binary(e, "mul", d, g[0], s[0])
			outs[0], held = binary(e, "mul", d, t, inverse), slices.Insert(held, 0, t)
		}
		if need[1] {
			n := e.unary("neg", graph.Undefined, s[1])
			t := binary(e, "mul", d, g[0], n)
			outs[1], held = binary(e, "mul", d, t, inverse), slices.Insert(held, 0, t, n)
		}
		e.hold(held...)
		return outs
	})
	return []*Tensor{o}
}

// runModulo is remainder and fmod: the gradient of self passes through
// unchanged.
func runModulo(e *Eager, c *Call) []*Tensor {
	a, b, d := c.pair()
	f := formula{node: "RemainderBackward0", saved: []*Tensor{onlyFor(b, b), onlyFor(b, a)}, back: [][]string{nil, {"div", "neg", "mul"}}}
	if c.Op == "remainder" {
		f.back[1] = []string{"floor_divide s1 s0", "neg g", "mul t0 t1"}
	}
	return []*Tensor{apply(e, c.Op, d, []*Tensor{a, b}, f)}
}

// runClamp is clamp with bounds that are numbers or tensors; tensors are saved
// with self.
func runClamp(e *Eager, c *Call) []*Tensor {
	x, lo, hi := c.need(0, "self"), c.tensor(1, "min"), c.tensor(2, "max")
	if lo == nil && hi == nil {
		p := pointwise{name: "clamp", node: "ClampBackward1", saves: "self", numbers: numbers("min=-inf, max=inf")}
		n := p.numbers(c)
		low, high := number(graph.Undefined, n[0]), number(graph.Undefined, n[1])
		if c.none(1, "min") {
			low = nil
		}
		if c.none(2, "max") {
			high = nil
		}
		p.grad = func(e *Eager, g, s *Tensor) *Tensor { return clampGrad(e, g, s, low, high) }
		return p.run(e, c)
	}
	ins := slices.DeleteFunc([]*Tensor{x, lo, hi}, func(t *Tensor) bool { return t == nil })
	op, does := "clamp", ""
	switch {
	case hi == nil && c.none(2, "max"): // a bound is the larger of the two
		op, does = "clamp_min", "maximum"
	case lo == nil && c.none(1, "min"):
		op, does = "clamp_max", "minimum"
	}
	shape := common(ins...)
	k := e.begin(op, ins...)
	switch {
	case does != "":
		k.does(does)
	case lo != nil && hi != nil:
		k.inexact("bounds that are tensors")
	}
	o := k.alloc(shape, iteratorStrides(shape, ins...), promoted(ins...))
	k.end()
	e.record("ClampBackward0", []*Tensor{o}, []*Tensor{x, lo, hi}, []*Tensor{x, lo, hi}, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 3)
		if need[1] || need[2] {
			outs[1], outs[2] = clampBoundGrads(e, g[0], s[0], s[1], s[2], need[1:])
		}
		if need[0] {
			outs[0] = clampGrad(e, g[0], s[0], s[1], s[2])
		}
		return outs
	})
	return []*Tensor{o}
}

// clampGrad is the gradient where x is within the bounds, one of which may be nil
// (torch/csrc/autograd/FunctionsManual.cpp, clamp_backward).
func clampGrad(e *Eager, g, x, lo, hi *Tensor) *Tensor {
	zero := zeroOf(e, g.DType)
	var within, below *Tensor
	if lo != nil {
		within = binary(e, "ge", graph.Bool, x, lo)
	}
	if hi != nil {
		below = binary(e, "le", graph.Bool, x, hi)
		if within != nil {
			into(e, "logical_and", within, below)
		} else {
			within, below = below, nil
		}
	}
	o := whereElseZero(e, within, g)
	e.hold(below, within, zero)
	return o
}

// whereElseZero is where(cond, g, 0).
func whereElseZero(e *Eager, cond, g *Tensor) *Tensor {
	k := e.elementwise("where", g.DType, g, cond)
	k.attrs().Args = []program.Arg{{In: 1}, {In: 0}, {In: program.Number}}
	return k.end()
}

// clampBoundGrads are the gradients of bounds that are tensors
// (clamp_backward_min_max).
func clampBoundGrads(e *Eager, g, x, lo, hi *Tensor, need []bool) (low, high *Tensor) {
	zero := zeroOf(e, g.DType)
	if need[0] {
		out := binary(e, "lt", graph.Bool, x, lo)
		if hi == nil {
			low = whereElseZero(e, out, g)
			e.hold(out)
		} else {
			order := binary(e, "lt", graph.Bool, lo, hi)
			into(e, "logical_and", out, order)
			low = whereElseZero(e, out, g)
			e.hold(order, out)
		}
	}
	if need[1] {
		out := binary(e, "gt", graph.Bool, x, hi)
		if lo == nil {
			high = whereElseZero(e, out, g)
			e.hold(out)
		} else {
			order := binary(e, "lt", graph.Bool, hi, lo)
			into(e, "logical_or", out, order)
			high = whereElseZero(e, out, g)
			e.hold(order, out)
		}
	}
	e.hold(zero)
	return low, high
}

// runGLU halves a dim: one half is gated by the sigmoid of the other.
func runGLU(e *Eager, c *Call) []*Tensor {
	x := c.need(0, "self")
	d := wrap(c.int(1, "dim", -1), x.dim())
	shape := slices.Clone(x.Shape)
	shape[d] /= 2
	k := e.begin("glu", x).dims(d)
	o := k.alloc(shape, nil, x.DType)
	k.flops(4 * o.Numel()).end()
	e.record("GluBackward0", []*Tensor{o}, []*Tensor{x}, []*Tensor{x}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		k := e.begin("glu_backward", g[0], s[0]).dims(d)
		k.alloc(x.Shape, nil, x.DType)
		return []*Tensor{k.end()}
	})
	return []*Tensor{o}
}

// runPReLU reshapes the weight to the operand's dims and saves both
// (aten/src/ATen/native/Activation.cpp, prelu).
func runPReLU(e *Eager, c *Call) []*Tensor {
	x, w := c.need(0, "self"), c.need(1, "weight")
	if channels := w.Numel(); w.dim() != x.dim() && (channels == 1 || x.dim() > 1 && channels == x.Shape[1]) {
		shape := repeat(1, x.dim())
		if x.dim() > 1 {
			shape[1] = channels
		}
		w = reshape(e, "prelu", w, shape)
	}
	k := e.begin("_prelu_kernel", x, w)
	o := k.like(x)
	k.end()
	e.record("PreluKernelBackward0", []*Tensor{o}, []*Tensor{x, w}, []*Tensor{x, w}, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		k := e.begin("_prelu_kernel_backward", g[0], s[0], s[1])
		dx, dw := k.like(s[0]), k.like(s[0])
		k.end()
		if !need[0] { // not needed
			e.hold(dx)
			dx = nil
		}
		if !need[1] {
			e.hold(dw)
			dw = nil
		}
		return []*Tensor{dx, dw}
	})
	return []*Tensor{o}
}

// runTypeAs casts self to other's type.
func runTypeAs(e *Eager, c *Call) []*Tensor {
	x, y := c.need(0, "self"), c.need(1, "other")
	if x.DType == y.DType {
		return []*Tensor{x}
	}
	return []*Tensor{e.toDType("to", x, y.DType)}
}

// none reports whether an argument is absent.
func (c *Call) none(i int, name string) bool {
	a := c.arg(i, name)
	return a == nil || a.Kind == graph.ArgNone
}
