package aten

import (
	"slices"

	"github.com/memplan/memplan/graph"
)

// A formula is an elementwise operator of several operands: what backward
// reads, and the kernels it runs for each operand's gradient. Each kernel
// makes a tensor of the result's shape; the last one makes the gradient, which
// the engine sums where the operand was broadcast.
type formula struct {
	node    string
	saved   []*Tensor
	result  bool                                                      // backward reads the result, too
	scalars []float64                                                 // of the operator
	grads   func(e *Eager, g *Tensor, saved []*Tensor, i int) *Tensor // of operand i, in place of back
	back    [][]string                                                // kernels of each operand's gradient; none: it passes through
}

// apply runs the operator on ins, which broadcast, and records its backward.
func (e *Eager) apply(op string, d graph.DType, ins []*Tensor, f formula) *Tensor {
	shape, ok := broadcast(ins...)
	if !ok {
		fail("operands do not broadcast")
	}
	k := e.begin(op, ins...)
	if f.scalars != nil {
		k.scalars(f.scalars...)
	}
	o := k.alloc(shape, iteratorStrides(shape, ins...), d)
	k.end()
	if f.result {
		f.saved = append(f.saved, o)
	}
	e.record(f.node, []*Tensor{o}, ins, f.saved, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, len(need))
		for i := range need {
			if !need[i] {
				continue
			}
			if f.grads != nil {
				outs[i] = f.grads(e, g[0], s, i)
				continue
			}
			outs[i] = g[0]
			var temps []*Tensor
			for j, name := range f.back[i] {
				if j > 0 {
					temps = append(temps, outs[i])
				}
				outs[i] = e.elementwise(name, boolOr(name, g[0].DType), append(g[:1:1], present(s)...)...).inexact("stands for several kernels").end()
			}
			slices.Reverse(temps)
			e.hold(temps...)
		}
		return outs
	})
	return o
}

func boolOr(kernel string, d graph.DType) graph.DType {
	if slices.Contains(boolKernels, kernel) {
		return graph.Bool
	}
	return d
}

// present drops what was not saved, and what broadcasting would not fit.
func present(ts []*Tensor) []*Tensor {
	return slices.DeleteFunc(slices.Clone(ts), func(t *Tensor) bool { return t == nil || t.Storage < 0 })
}

// onlyFor returns t if the tensor that its formula belongs to needs a gradient.
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
	f := formula{scalars: value, node: "AddcmulBackward0", saved: []*Tensor{onlyFor(b, a), onlyFor(a, b)}, back: [][]string{nil, {"mul", "mul"}, {"mul", "mul"}}}
	if c.Op == "addcmul" {
		return []*Tensor{e.apply(c.Op, promoted(x, a, b), []*Tensor{x, a, b}, formula{scalars: value, node: f.node, saved: f.saved, grads: func(e *Eager, g *Tensor, s []*Tensor, i int) *Tensor {
			if i == 0 {
				return g
			}
			t := e.times(s[2-i], value[0]) // the other factor
			w := e.step("mul", g.DType, g, t)
			e.hold(t)
			return w
		}})}
	}
	if c.Op == "addcdiv" {
		f = formula{scalars: value, node: "AddcdivBackward0", saved: []*Tensor{onlyFor(b, a), b}, back: [][]string{nil, {"div", "mul"}, {"neg", "mul", "mul", "div", "mul"}}}
	}
	return []*Tensor{e.apply(c.Op, promoted(x, a, b), []*Tensor{x, a, b}, f)}
}

// runLerp interpolates; a weight that is a number is not saved.
func runLerp(e *Eager, c *Call) []*Tensor {
	x, end, w := c.need(0, "self"), c.need(1, "end"), c.tensor(2, "weight")
	if w == nil {
		return []*Tensor{e.apply(c.Op, x.DType, []*Tensor{x, end}, formula{scalars: []float64{c.float(2, "weight", 0)}, node: "LerpBackward0", back: [][]string{{"mul"}, {"mul"}}})}
	}
	return []*Tensor{e.apply(c.Op, x.DType, []*Tensor{x, end, w}, formula{node: "LerpBackward1",
		saved: []*Tensor{onlyFor(w, end), onlyFor(w, x), w}, back: [][]string{{"rsub", "mul"}, {"mul"}, {"sub", "mul"}}})}
}

// runAtan2, hypot and xlogy save both operands.
func runBinarySaved(e *Eager, c *Call) []*Tensor {
	a, b, d := c.pair()
	if !d.IsFloat() {
		d = graph.Float32
	}
	f := formula{saved: []*Tensor{b, a}, result: c.Op == "hypot"}
	switch c.Op {
	case "xlogy":
		f.node, f.back = "XlogyBackward0", [][]string{{"xlogy", "eq", "le", "logical_and", "masked_fill"}, {"mul", "div"}}
	case "hypot":
		f.node, f.back = "HypotBackward0", [][]string{{"mul", "div"}, {"mul", "div"}}
	default:
		f.node, f.back = "Atan2Backward0", [][]string{{"mul", "mul", "add", "reciprocal", "mul"}, {"neg", "mul"}}
	}
	return []*Tensor{e.apply(c.Op, d, []*Tensor{a, b}, f)}
}

// runModulo is remainder and fmod: the gradient of self passes through.
func runModulo(e *Eager, c *Call) []*Tensor {
	a, b, d := c.pair()
	f := formula{node: "RemainderBackward0", saved: []*Tensor{onlyFor(b, b), onlyFor(b, a)}, back: [][]string{nil, {"div", "neg", "mul"}}}
	return []*Tensor{e.apply(c.Op, d, []*Tensor{a, b}, f)}
}

// runClamp is clamp with bounds that are numbers or tensors; tensors are
// saved with self.
func runClamp(e *Eager, c *Call) []*Tensor {
	x, lo, hi := c.need(0, "self"), c.tensor(1, "min"), c.tensor(2, "max")
	if lo == nil && hi == nil {
		p := pointwise{name: "clamp", node: "ClampBackward1", saves: "self", back: steps("ge s p0; le s p1; logical_and t0 t1; where t2 g 0")}
		if a := c.arg(1, "min"); a == nil || a.Kind == graph.ArgNone {
			p.back = steps("le s p1; where t0 g 0")
		} else if a := c.arg(2, "max"); a == nil || a.Kind == graph.ArgNone {
			p.back = steps("ge s p0; where t0 g 0")
		}
		return p.run(e, c)
	}
	ins := slices.DeleteFunc([]*Tensor{x, lo, hi}, func(t *Tensor) bool { return t == nil })
	back := [][]string{{"ge", "le", "logical_and", "where"}, {"lt", "where"}, {"gt", "where"}}
	return []*Tensor{e.apply("clamp", promoted(ins...), ins, formula{node: "ClampBackward0", saved: ins, back: back[:len(ins)]})}
}

// runGLU halves a dim: gated by the sigmoid of the other half.
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

// runPReLU shows the weight with the operand's dims and saves both
// (aten/src/ATen/native/Activation.cpp, prelu).
func runPReLU(e *Eager, c *Call) []*Tensor {
	x, w := c.need(0, "self"), c.need(1, "weight")
	if channels := w.Numel(); w.dim() != x.dim() && (channels == 1 || x.dim() > 1 && channels == x.Shape[1]) {
		shape := repeat(1, x.dim())
		if x.dim() > 1 {
			shape[1] = channels
		}
		w = e.reshape("prelu", w, shape)
	}
	k := e.begin("_prelu_kernel", x, w)
	o := k.like(x)
	k.end()
	e.record("PreluKernelBackward0", []*Tensor{o}, []*Tensor{x, w}, []*Tensor{x, w}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		k := e.begin("_prelu_kernel_backward", g[0], s[0], s[1])
		dx, dw := k.like(s[0]), k.like(s[0])
		k.end()
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
