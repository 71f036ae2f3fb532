package aten

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"strconv"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// A pointwise describes an elementwise operator of one differentiable input:
// what backward needs, and the kernels backward runs one after the other. The
// last kernel makes the gradient; the other results are released after it, as
// C++ temporaries of one expression are.
type pointwise struct {
	name  string
	node  string // autograd node
	saves string // "", "self" or "result"
	back  []step // kernels of backward; none: the gradient passes through
	cast  Cast
	is    Facts

	kernel  string      // the kernel's name; "": the operator's
	numbers callNumbers // the call's numbers, as program.Attrs lists them
	mode    string      // the keyword of the call that may be "tanh": another formula

	result bool                                 // backward can use the result of the in-place form, without a copy of the operand
	also   bool                                 // the result is saved too
	grad   func(e *Eager, g, s *Tensor) *Tensor // backward that steps cannot express
}

// A step is one kernel of a backward function and its operands: "g" is the gradient, "s" what was
// saved, "s1" the second saved tensor, "t1" the result of step 1, "p0" the call's number 0; numbers
// are literal. A step without operands stands for several kernels at once and cannot be computed.
type step struct {
	op   string
	args []stepArg
}

type stepArg struct {
	from   byte // g, s, t, p, or # for a number
	nr     int
	number float64
}

// stepNumbers are numbers in derivatives.yaml by what they stand for.
var stepNumbers = map[string]float64{"inf": math.Inf(1), "pi": math.Pi, "ln2": math.Ln2, "ln10": math.Ln10, "2/sqrtpi": 2 / math.Sqrt(math.Pi), "-2/sqrtpi": -2 / math.Sqrt(math.Pi), "sqrtpi/2": math.Sqrt(math.Pi) / 2}

// steps reads a backward function: "pow s 2; neg t0; mul g t1".
func steps(text string) []step {
	var out []step
	for _, line := range strings.Split(text, "; ") {
		f := strings.Fields(line)
		s := step{op: f[0]}
		for _, w := range f[1:] {
			a := stepArg{from: w[0]}
			if v, ok := stepNumbers[w]; ok {
				a = stepArg{from: '#', number: v}
			} else if v, err := strconv.ParseFloat(w, 64); err == nil {
				a = stepArg{from: '#', number: v}
			} else if len(w) > 1 {
				a.nr = int(w[1] - '0')
			}
			s.args = append(s.args, a)
		}
		out = append(out, s)
	}
	return out
}

// pointwises follows tools/autograd/derivatives.yaml.
var pointwises = []pointwise{
	{name: "relu", node: "ReluBackward0", saves: "result", back: steps("threshold_backward g s"), numbers: numbers("0"), is: is(Numbered | Traced | InPlace | Idempotent)},
	{name: "relu6", node: "HardtanhBackward0", saves: "self", back: steps("hardtanh_backward g s"), kernel: "hardtanh", numbers: numbers("0, 6"), is: is(Numbered | Traced | InPlace | Idempotent).adds(8)},
	{name: "hardtanh", node: "HardtanhBackward0", saves: "self", back: steps("hardtanh_backward g s"), numbers: numbers("min_val=-1, max_val=1"), is: is(Numbered | Traced | InPlace | Idempotent).adds(8)},
	{name: "threshold", node: "ThresholdBackward0", saves: "self", back: steps("threshold_backward g s"), numbers: numbers("threshold=0, value=0"), is: is(Idempotent)},
	{name: "tanh", node: "TanhBackward0", saves: "result", back: steps("tanh_backward g s"), is: is(Numbered|Traced).lines("tanh", "tanh")},
	{name: "sigmoid", node: "SigmoidBackward0", saves: "result", back: steps("sigmoid_backward g s"), is: is(Numbered|Traced).lines("sigmoid", "sigmoid")},
	{name: "silu", node: "SiluBackward0", saves: "self", back: steps("silu_backward g s"), is: is(Numbered | Traced | InPlace).adds(1)},
	{name: "gelu", node: "GeluBackward0", saves: "self", back: steps("gelu_backward g s"), mode: "approximate", is: is(Numbered | Traced)},
	{name: "mish", node: "MishBackward0", saves: "self", back: steps("mish_backward g s"), is: is(Numbered | Traced | InPlace).adds(6)},
	{name: "hardswish", node: "HardswishBackward0", saves: "self", back: steps("hardswish_backward g s"), is: is(Numbered | Traced | InPlace).adds(11)},
	{name: "hardsigmoid", node: "HardsigmoidBackward0", saves: "self", back: steps("hardsigmoid_backward g s"), is: is(Numbered | Traced)},
	{name: "leaky_relu", node: "LeakyReluBackward0", saves: "self", back: steps("leaky_relu_backward g s"), result: true, numbers: numbers("negative_slope=0.01"), is: is(Numbered | Traced | InPlace).adds(3)},
	{name: "elu", node: "EluBackward0", saves: "self", back: steps("elu_backward g s"), result: true, numbers: numbers("alpha=1, scale=1, input_scale=1"), is: is(Numbered | Traced | InPlace).adds(6)},
	{name: "celu", node: "CeluBackward0", saves: "self", back: steps("elu_backward g s"), result: true, kernel: "elu", numbers: celuNumbers},
	{name: "selu", node: "EluBackward0", saves: "self", back: steps("elu_backward g s"), result: true, kernel: "elu", numbers: numbers("1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1")},
	{name: "softplus", node: "SoftplusBackward0", saves: "self", back: steps("softplus_backward g s"), cast: Full, numbers: numbers("beta=1, threshold=20"), is: is(Numbered|Traced).lines("softplus", "softplus", "mish")},
	{name: "log_sigmoid", node: "LogSigmoidBackward0", saves: "self", back: steps("log_sigmoid_backward g s")},
	{name: "softsign", node: "DivBackward0", saves: "self", back: steps("abs; add; div; mul")},
	{name: "exp", node: "ExpBackward0", saves: "result", back: steps("mul g s"), cast: Full, is: is(Numbered|Traced).lines("exp", "exp")},
	{name: "expm1", node: "Expm1Backward0", saves: "result", back: steps("add s 1; mul g t0"), cast: Full},
	{name: "log", node: "LogBackward0", saves: "self", back: steps("div g s"), cast: Full, is: is(Numbered|Traced).lines("log", "log")},
	{name: "log2", node: "Log2Backward0", saves: "self", back: steps("mul s ln2; div g t0"), cast: Full},
	{name: "log10", node: "Log10Backward0", saves: "self", back: steps("mul s ln10; div g t0"), cast: Full},
	{name: "log1p", node: "Log1PBackward0", saves: "self", back: steps("add s 1; div g t0"), cast: Full},
	{name: "sqrt", node: "SqrtBackward0", saves: "result", back: steps("mul s 2; div g t0"), is: is(Numbered|Traced).lines("sqrt", "sqrt", "** 0.5")},
	{name: "rsqrt", node: "RsqrtBackward0", saves: "result", back: steps("pow s 3; mul t0 -0.5; mul g t1"), cast: Full, is: is(Numbered|Traced).lines("rsqrt", "rsqrt")},
	{name: "reciprocal", node: "ReciprocalBackward0", saves: "result", back: steps("neg s; mul t0 s; mul g t1"), cast: Full, is: lines("reciprocal", "reciprocal", "/")},
	{name: "square", node: "PowBackward0", saves: "self", back: steps("pow s 1; mul t0 2; mul g t1"), cast: Full},
	{name: "sin", node: "SinBackward0", saves: "self", back: steps("cos s; mul g t0"), is: is(Numbered|Traced).lines("sin", "sin")},
	{name: "cos", node: "CosBackward0", saves: "self", back: steps("sin s; neg t0; mul g t1"), is: is(Numbered|Traced).lines("cos", "cos")},
	{name: "tan", node: "TanBackward0", saves: "result", back: steps("pow s 2; add t0 1; mul g t1"), cast: Full},
	{name: "atan", node: "AtanBackward0", saves: "self", back: steps("mul s s; add t0 1; div g t1")},
	{name: "sinh", node: "SinhBackward0", saves: "self", back: steps("cosh s; mul g t0"), cast: Full},
	{name: "cosh", node: "CoshBackward0", saves: "self", back: steps("sinh s; mul g t0"), cast: Full},
	{name: "erf", node: "ErfBackward0", saves: "self", back: steps("pow s 2; neg t0; exp t1; mul t2 2/sqrtpi; mul g t3"), is: lines("erf", "erf", "gelu")},
	{name: "abs", node: "AbsBackward0", saves: "self", back: steps("sgn s; mul g t0"), is: is(Numbered | Traced)},
	{name: "neg", node: "NegBackward0", back: steps("neg g"), is: is(Traced)},
	{name: "floor", node: "FloorBackward0", back: steps("zeros_like g"), is: is(Traced)},
	{name: "ceil", node: "CeilBackward0", back: steps("zeros_like g")},
	{name: "round", node: "RoundBackward0", back: steps("zeros_like g")},
	{name: "sign", node: "SignBackward0", back: steps("zeros_like g")},
	{name: "asin", node: "AsinBackward0", saves: "self", back: steps("neg s; mul t0 s; add t1 1; rsqrt t2; mul g t3"), cast: Full},
	{name: "acos", node: "AcosBackward0", saves: "self", back: steps("neg s; mul t0 s; add t1 1; rsqrt t2; neg t3; mul g t4"), cast: Full},
	{name: "asinh", node: "AsinhBackward0", saves: "self", back: steps("pow s 2; add t0 1; rsqrt t1; mul g t2")},
	{name: "acosh", node: "AcoshBackward0", saves: "self", back: steps("pow s 2; sub t0 1; rsqrt t1; mul g t2")},
	{name: "atanh", node: "AtanhBackward0", saves: "self", back: steps("pow s 2; rsub t0 1; reciprocal t1; mul g t2")},
	{name: "erfc", node: "ErfcBackward0", saves: "self", back: steps("pow s 2; neg t0; exp t1; mul t2 -2/sqrtpi; mul g t3")},
	{name: "erfinv", node: "ErfinvBackward0", saves: "self", back: steps("erfinv s; pow t0 2; exp t1; mul t2 sqrtpi/2; mul g t3"), cast: Full},
	{name: "sinc", node: "SincBackward0", saves: "self", grad: sincGrad},
	{name: "exp2", node: "Exp2Backward0", saves: "result", back: steps("mul s ln2; mul g t0")},
	{name: "logit", node: "LogitBackward0", saves: "self", back: steps("logit_backward g s"), numbers: numbers("eps=-1")},
	{name: "hardshrink", node: "HardshrinkBackward0", saves: "self", back: steps("hardshrink_backward g s"), numbers: numbers("lambd=0.5")},
	{name: "softshrink", node: "SoftshrinkBackward0", saves: "self", back: steps("softshrink_backward g s"), numbers: numbers("lambd=0.5")},
	{name: "nan_to_num", node: "NanToNumBackward0", saves: "self", grad: nanToNumGrad, numbers: numbers("nan=0, posinf=nan, neginf=nan")},
	{name: "frac", node: "FracBackward0"},
	{name: "trunc", node: "TruncBackward0", back: steps("zeros_like g")},
	{name: "lgamma", node: "LgammaBackward0", saves: "self", back: steps("digamma s; mul g t0")},
	{name: "sgn", node: "SgnBackward0", saves: "self", also: true, grad: noGrad},
	{name: "clamp_min", node: "ClampMinBackward0", saves: "self", back: steps("zero; ge s p0; where t1 g 0"), numbers: numbers("min=0"), is: is(Idempotent)},
	{name: "clamp_max", node: "ClampMaxBackward0", saves: "self", back: steps("zero; le s p0; where t1 g 0"), numbers: numbers("max=0"), is: is(Idempotent)},
}

// nanToNumGrad is grad * isfinite(self).
func nanToNumGrad(e *Eager, g, s *Tensor) *Tensor {
	finite := finite(e, s)
	o := computes(e, "mul s s1", g.DType, g, finite)
	e.hold(finite)
	return o
}

// sincGrad is grad * (self*pi * cos(self*pi) - sin(self*pi)) / (self*self*pi), and 0
// where that divisor is 0 (sinc_backward in torch/csrc/autograd/FunctionsManual.cpp).
func sincGrad(e *Eager, g, s *Tensor) *Tensor {
	of := func(text string, s ...*Tensor) *Tensor { return computes(e, text, g.DType, s...) }
	pi := of("mul s pi", s)
	square := of("mul s s", s)
	divisor := of("mul s pi", square)
	e.hold(square)
	sin, cos := of("sin s", pi), of("cos s", pi)
	product := of("mul s s1", pi, cos)
	difference := of("sub s s1", product, sin)
	quotient := of("div s s1", difference, divisor)
	out := of("mul s s1", g, quotient)
	e.hold(quotient, difference, product, cos, sin)
	none := zeroOf(e, g.DType)
	zero := computes(e, "eq s 0", graph.Bool, divisor)
	o := of("where s 0 s1", zero, out)
	e.hold(zero, none, out, divisor, pi)
	return o
}

// noGrad is a tensor of zeros that takes no memory (at::_efficientzerotensor).
func noGrad(_ *Eager, g, _ *Tensor) *Tensor { return host(g.DType, g.Shape) }

// finite is isfinite: (self == self) * (self.abs() != inf).
func finite(e *Eager, x *Tensor) *Tensor {
	mag := computes(e, "abs s", x.DType, x)
	other := computes(e, "ne s inf", graph.Bool, mag)
	same := computes(e, "eq s s", graph.Bool, x)
	o := computes(e, "mul s s1", graph.Bool, same, other)
	e.hold(same, other, mag)
	return o
}

// infinite is isinf: self.abs() == inf.
func infinite(e *Eager, x *Tensor) *Tensor {
	mag := computes(e, "abs s", x.DType, x)
	o := computes(e, "eq s inf", graph.Bool, mag)
	e.hold(mag)
	return o
}

// callNumbers read the numbers of a call.
type callNumbers func(c *Call) []float64

// numbers parses "negative_slope=0.01, 1": a keyword argument with its default, which may
// also follow the operand in this position, or a constant.
func numbers(text string) callNumbers {
	words := strings.Split(text, ", ")
	names, values := make([]string, len(words)), make([]float64, len(words))
	for i, w := range words {
		name, value, named := strings.Cut(w, "=")
		if !named {
			name, value = "", w
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			panic("aten: numbers " + text)
		}
		names[i], values[i] = name, v
	}
	return func(c *Call) []float64 {
		out := slices.Clone(values)
		for i, name := range names {
			if name != "" {
				out[i] = c.float(i+1, name, values[i])
			}
		}
		return out
	}
}

// celuNumbers returns the three numbers of ELU for CELU's one.
func celuNumbers(c *Call) []float64 {
	a := c.float(1, "alpha", 1)
	return []float64{a, 1, 1 / a}
}

// does returns the name of the operator's kernel.
func (p *pointwise) does() string { return cmp.Or(p.kernel, p.name) }

// called returns the numbers and the mode of a call.
func (p *pointwise) called(c *Call) (numbers []float64, mode string) {
	if p.numbers != nil {
		numbers = p.numbers(c)
	}
	if a := c.arg(-1, p.mode); p.mode != "" && a != nil && a.S == "tanh" {
		mode = "tanh"
	}
	return numbers, mode
}

// setAttrs sets the numbers and the mode of the operator's node, or of a kernel of
// its backward.
func (p *pointwise) setAttrs(k *kernel, numbers []float64, mode string) {
	if numbers != nil {
		k.scalars(numbers...)
	}
	if mode != "" {
		k.attrs().Mode = mode
	}
}

// run runs a pointwise operator, in place when the model's code does so.
func (p *pointwise) run(e *Eager, c *Call) []*Tensor {
	x := c.need(0, "self")
	if x == nil {
		return nil
	}
	if c.bool(-1, byFormula, false) && x.DType.IsFloat() {
		return runFormulaGELU(e, x)
	}
	numbers, mode := p.called(c)
	if !x.DType.IsFloat() {
		d := x.DType
		if _, dt, ok := c.shape(0); ok {
			d = dt
		}
		return []*Tensor{p.forward(e, x, d, numbers, mode)}
	}
	var out *Tensor
	saved := []*Tensor{x}
	view := false
	if c.InPlace && x.leaf == nil {
		view = isTrackedView(x)
		out = p.inPlace(e, x, &saved, numbers, mode)
		if p.result {
			mode = "result" // what backward reads
		}
	} else {
		out = p.forward(e, x, x.DType, numbers, mode)
		if p.saves == "result" {
			saved = []*Tensor{out}
		}
	}
	switch {
	case p.saves == "":
		saved = nil
	case p.also:
		saved = append(saved, out)
	}
	e.record(p.node, []*Tensor{out}, []*Tensor{x}, saved, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		if view {
			return []*Tensor{copySlices(e, g[0], func(g *Tensor) *Tensor { return p.backward(e, []*Tensor{g}, s, numbers, mode)[0] })}
		}
		return p.backward(e, g, s, numbers, mode)
	})
	return []*Tensor{out}
}

// isTrackedView reports whether autograd follows t as a view of another tensor.
func isTrackedView(t *Tensor) bool {
	return t.fn != nil && (t.fn.name == "ViewBackward0" || t.fn.name == "TransposeBackward0" || t.fn.name == "PermuteBackward0")
}

// copySlices is the backward of a call that updates a view in place
// (torch/csrc/autograd/functions/tensor.cpp, CopySlices::apply): it copies the
// gradient, runs the call's own backward on a copy of the view, and copies that
// result over the view. The incoming gradient lives until then.
func copySlices(e *Eager, g *Tensor, apply func(*Tensor) *Tensor) *Tensor {
	result := clone(e, "new_empty_strided", g, contiguousStrides(g.Shape))
	part := apply(clone(e, "clone", result, contiguousStrides(result.Shape)))
	out := &Tensor{View: result.View}
	k := e.begin("copy_", part).does("copy")
	k.out(out)
	k.end()
	e.hold(g)
	return out
}

// byFormula is the argument by which package lift marks a gelu that Python code
// spells out, term by term.
const byFormula = "formula"

// The terms of BLOOM's GELU and of its derivative: + allocates the term named
// by the letter, - frees it, a dot allocates the result
// (transformers/models/bloom/modeling_bloom.py, bloom_gelu_forward and
// bloom_gelu_back).
const (
	geluTerms     = "+a+b+c+d-c+e-d+f-b-e+g-f+h-g.-a-h"
	geluBackTerms = "+a+b+c-b+d-c+e-a-d+t-e+f+g+h-g+i+j-i+k-j+l-h-k+m-f-l+n+o-n+p-m-o.-t-p"
)

// terms allocates and frees temporaries of t's size, and the result.
func (k *kernel) terms(list string, t *Tensor) *Tensor {
	made := map[byte]program.StorageID{}
	var out *Tensor
	for i := 0; i < len(list); i += 2 {
		switch list[i] {
		case '+':
			made[list[i+1]] = k.temp(t.Bytes(), program.Temporaries)
		case '-':
			k.free(made[list[i+1]])
		default:
			out = k.like(t)
			i--
		}
	}
	return out
}

// runFormulaGELU is a gelu by its formula, which saves only its operand.
func runFormulaGELU(e *Eager, x *Tensor) []*Tensor {
	forward := func(k *kernel) *kernel { k.attrs().Mode = "tanh"; return k.does("gelu") }
	k := forward(e.begin("gelu", x))
	out := k.terms(geluTerms, x)
	k.end()
	e.record("GeluBackward0", []*Tensor{out}, []*Tensor{x}, []*Tensor{x}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		k := e.begin("gelu_backward", g[0], s[0])
		k.attrs().Mode = "tanh"
		k.terms(geluBackTerms, g[0])
		return []*Tensor{k.end()}
	})
	return []*Tensor{out}
}

func (p *pointwise) forward(e *Eager, x *Tensor, d graph.DType, numbers []float64, mode string) *Tensor {
	k := e.elementwise(p.name, d, x).does(p.does())
	p.setAttrs(k, numbers, mode)
	return k.end()
}

// inPlace overwrites x. When backward needs the operand, autograd saves a
// copy of it (VariableType: original_self = self.clone()).
func (p *pointwise) inPlace(e *Eager, x *Tensor, saved *[]*Tensor, numbers []float64, mode string) *Tensor {
	out := &Tensor{View: x.View}
	k := e.begin(p.name+"_", x).does(p.does())
	p.setAttrs(k, numbers, mode)
	if p.saves == "self" && !p.result && e.grad && x.RequiresGrad() {
		(*saved)[0] = k.like(x)
		k.out(out)
		k.attrs().Results = []int8{1, 0}
		k.end()
		return out
	}
	k.out(out)
	k.end()
	if p.saves != "" {
		(*saved)[0] = out
	}
	return out
}

func (p *pointwise) backward(e *Eager, g, s []*Tensor, numbers []float64, mode string) []*Tensor {
	if p.grad != nil {
		return []*Tensor{p.grad(e, g[0], s[0])}
	}
	if len(p.back) == 0 {
		return g
	}
	temps, saved := make([]*Tensor, 0, len(p.back)), s
	if len(saved) == 0 {
		saved = g
	}
	for i := range p.back {
		st := &p.back[i]
		d := g[0].DType
		switch {
		case e.lookup(st.op).is(st.op, Truth):
			d = graph.Bool
		case i < len(p.back)-1 && len(s) > 0:
			d = s[0].DType
		}
		k := stepKernel(e, st, i, d, g[0], saved, temps, numbers)
		if len(p.back) == 1 {
			p.setAttrs(k, numbers, mode)
		}
		temps = append(temps, k.end())
	}
	last := len(temps) - 1
	out := temps[last]
	temps = temps[:last]
	slices.Reverse(temps)
	e.hold(temps...)
	return []*Tensor{out}
}

// stepKernel appends step i of a backward function. Operands are read in the
// order gradient, saved tensors, results of steps; Attrs.Args has the kernel's
// order.
func stepKernel(e *Eager, st *step, i int, d graph.DType, g *Tensor, s, temps []*Tensor, numbers []float64) *kernel {
	if st.op == "zero" {
		return zeroKernel(e, g.DType)
	}
	if len(st.args) == 0 { // reads what a kernel of this kind reads
		in := []*Tensor{s[0]}
		if i > 0 {
			in[0] = temps[i-1]
		}
		return e.elementwise(st.op, d, in...).inexact("stands for several kernels")
	}
	var in [3]*Tensor
	var list [3]program.Arg
	n, plain := 0, true
	for j, a := range st.args {
		var t *Tensor
		switch a.from {
		case 'g':
			t = g
		case 's':
			t = s[a.nr]
		case 't':
			t = temps[a.nr]
		case 'p':
			list[j] = program.Arg{In: program.Number, Value: numbers[a.nr]}
		default:
			list[j] = program.Arg{In: program.Number, Value: a.number}
		}
		if t != nil && t.Storage == program.None {
			list[j], t = t.onHost(), nil
		}
		if t == nil {
			plain = false
			continue
		}
		at := slices.Index(in[:n], t)
		if at < 0 {
			at, in[n] = n, t
			n++
		}
		plain = plain && at == j
		list[j].In = int32(at)
	}
	if st.op == "where" && n == 2 && st.args[1].from == 'g' { // where(condition, g, 0) reads the gradient first
		in[0], in[1], list[0].In, list[1].In = in[1], in[0], list[1].In, list[0].In
	}
	k := e.elementwise(st.op, d, in[:n]...)
	if !plain {
		k.attrs().Args = slices.Clone(list[:len(st.args)])
	}
	return k
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
// float makes an integer tensor float32.
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
func binary(e *Eager, op string, d graph.DType, a, b *Tensor) *Tensor {
	return binaryKernel(e, op, d, a, b).end()
}

// binaryKernel is binary without the end of the call.
func binaryKernel(e *Eager, op string, d graph.DType, a, b *Tensor) *kernel {
	shape := common(a, b)
	k := e.begin(op, a, b)
	k.alloc(shape, iteratorStrides(shape, a, b), d)
	return k
}

// into appends an in-place kernel: a op= b.
func into(e *Eager, op string, a, b *Tensor) *Tensor {
	out := &Tensor{View: a.View}
	intoKernel(e, op, a, b, out).end()
	return out
}

// intoKernel is into without the end of the call.
func intoKernel(e *Eager, op string, a, b, out *Tensor) *kernel {
	k := e.begin(op+"_", a, b).does(op)
	k.out(out)
	return k
}

// addSub appends op on a and b, in place if the model's code does so; set sets
// the kernel's attributes.
func addSub(e *Eager, op string, c *Call, a, b *Tensor, d graph.DType, set func(*kernel)) *Tensor {
	var k *kernel
	out := (*Tensor)(nil)
	if overwrites(e, c, a, b) {
		out = &Tensor{View: a.View}
		k = intoKernel(e, op, a, b, out)
	} else {
		k = binaryKernel(e, op, d, a, b)
		out = k.outs[0]
	}
	if set != nil {
		set(k)
	}
	k.end()
	return out
}

// original returns what backward reads of an operand that the call overwrites:
// a copy, if the other operand's gradient needs it.
func original(e *Eager, c *Call, a, b *Tensor) *Tensor {
	if !overwrites(e, c, a, b) || !e.grad || !b.RequiresGrad() {
		return a
	}
	k := e.begin("clone", a).does("copy")
	k.like(a)
	return k.end()
}

// overwrites reports whether a binary call updates its first operand in place.
func overwrites(e *Eager, c *Call, a, b *Tensor) bool {
	return c.InPlace && a.leaf == nil && a.DType.IsFloat() && slices.Equal(a.Shape, shapeOf(a, b)) && a.Storage >= 0
}

func shapeOf(a, b *Tensor) []int64 { s, _ := broadcast(a, b); return s }

func runAdd(e *Eager, c *Call) []*Tensor {
	a, b, d := c.pair()
	alpha := c.float(2, "alpha", 1)
	out := addSub(e, c.Op, c, a, b, d, func(k *kernel) {
		if alpha != 1 {
			k.scalars(alpha)
		}
	})
	// The operand whose gradient is the result's gradient, unchanged, and the
	// other.
	same, other := 0, 1
	if c.Op == "rsub" {
		same, other = 1, 0
	}
	sub, scaled := c.Op != "add", alpha != 1
	fn := map[string]string{"add": "AddBackward0", "sub": "SubBackward0", "rsub": "RsubBackward1"}[c.Op]
	e.record(fn, []*Tensor{out}, []*Tensor{a, b}, nil, func(e *Eager, g, _ []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		if need[other] {
			switch {
			case scaled && sub:
				n := e.unary("neg", graph.Undefined, g[0])
				outs[other] = times(e, n, alpha)
				e.hold(n)
			case scaled:
				outs[other] = times(e, g[0], alpha)
			case sub:
				outs[other] = e.unary("neg", graph.Undefined, g[0])
			default:
				outs[other] = g[0]
			}
		}
		if need[same] {
			outs[same] = g[0]
		}
		return outs
	})
	return []*Tensor{out}
}

func runMul(e *Eager, c *Call) []*Tensor {
	a, b, d := c.pair()
	self := original(e, c, a, b)
	out := addSub(e, "mul", c, a, b, d, nil)
	saved := []*Tensor{nil, nil} // other, self
	if a.RequiresGrad() {
		saved[0] = b
	}
	if b.RequiresGrad() {
		saved[1] = self
	}
	e.record("MulBackward0", []*Tensor{out}, []*Tensor{a, b}, saved, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		if need[1] {
			outs[1] = binary(e, "mul", g[0].DType, g[0], s[1])
		}
		if need[0] {
			outs[0] = binary(e, "mul", g[0].DType, g[0], s[0])
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
	self, rounded := original(e, c, a, b), false
	out := addSub(e, "div", c, a, b, d, func(k *kernel) {
		if r := c.arg(2, "rounding_mode"); r != nil && r.Kind == graph.ArgString {
			k.attrs().Mode, rounded = r.S, true
		}
	})
	saved := []*Tensor{nil, nil}
	if a.RequiresGrad() || b.RequiresGrad() {
		saved[0] = b
	}
	if b.RequiresGrad() {
		saved[1] = self
	}
	e.record("DivBackward0", []*Tensor{out}, []*Tensor{a, b}, saved, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		if rounded {
			for i := range outs {
				if need[i] {
					outs[i] = e.unary("zeros_like", graph.Undefined, g[0])
				}
			}
			return outs
		}
		if need[1] {
			n := e.unary("neg", graph.Undefined, g[0])
			q := binary(e, "div", d, s[1], s[0])
			q2 := binary(e, "div", d, q, s[0])
			outs[1] = binary(e, "mul", d, n, q2)
			e.hold(q2, q, n)
		}
		if need[0] {
			outs[0] = binary(e, "div", g[0].DType, g[0], s[0])
		}
		return outs
	})
	return []*Tensor{out}
}

// powBack is the gradient of a power: exponent * self^(exponent-1).
var (
	powBack    = pointwise{back: steps("pow s p0; mul t0 p1; mul g t1")}
	unknownPow = pointwise{back: steps("pow; mul; mul")}
)

// runPow is a tensor raised to a number, or to a tensor.
func runPow(e *Eager, c *Call) []*Tensor {
	a, b, d := c.pair()
	out := binary(e, "pow", d, a, b)
	if b.Storage >= 0 {
		e.record("PowBackward1", []*Tensor{out}, []*Tensor{a, b}, []*Tensor{b, a, out}, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
			outs := make([]*Tensor, 2)
			if need[1] {
				outs[1] = powExponentGrad(e, g[0], s[1], s[0], s[2])
			}
			if need[0] {
				outs[0] = powSelfGrad(e, g[0], s[1], s[0])
			}
			return outs
		})
		return []*Tensor{out}
	}
	exp, known := 0.0, len(b.values) == 1
	if known {
		exp = b.values[0]
	}
	e.record("PowBackward0", []*Tensor{out}, []*Tensor{a}, []*Tensor{a}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		if known && exp == 0 {
			return []*Tensor{e.unary("zeros_like", graph.Undefined, g[0])}
		}
		if !known {
			return unknownPow.backward(e, g, s, nil, "")
		}
		return powBack.backward(e, g, s, []float64{exp - 1, exp}, "")
	})
	return []*Tensor{out}
}

// powExponentGrad is the gradient of an exponent that is a tensor: grad * result *
// log(self), 0 where self is 0 and the exponent is not negative
// (pow_backward_exponent in torch/csrc/autograd/FunctionsManual.cpp).
func powExponentGrad(e *Eager, g, self, exponent, result *Tensor) *Tensor {
	if self.Storage == program.None { // the logarithm of a number is a number
		k := e.elementwise("mul", result.DType, result)
		if len(self.values) == 1 && self.values[0] > 0 {
			k.attrs().Args = []program.Arg{{In: 0}, {In: program.Number, Value: math.Log(self.values[0])}}
		} else {
			k.inexact("a power of a number that is not known, or not positive")
		}
		m := k.end()
		out := computes(e, "mul s s1", g.DType, g, m)
		e.hold(m)
		return out
	}
	positive, zero := computes(e, "ge s 0", graph.Bool, exponent), computes(e, "eq s 0", graph.Bool, self)
	cond := computes(e, "logical_and s s1", graph.Bool, positive, zero)
	e.hold(zero, positive)
	log := computes(e, "log s", self.DType, self)
	m := computes(e, "mul s s1", result.DType, result, log)
	none := zeroOf(e, g.DType)
	w := computes(e, "where s 0 s1", g.DType, cond, m)
	out := computes(e, "mul s s1", g.DType, g, w)
	e.hold(w, none, m, log, cond)
	return out
}

// powSelfGrad is the gradient of the base: grad * exponent * self^(exponent-1), 0
// where the exponent is (pow_backward_self).
func powSelfGrad(e *Eager, g, self, exponent *Tensor) *Tensor {
	less := computes(e, "sub s 1", exponent.DType, exponent)
	p := computes(e, "pow s s1", g.DType, self, less)
	m := computes(e, "mul s s1", g.DType, p, exponent)
	w := computes(e, "mul s s1", g.DType, g, m)
	none := zeroOf(e, g.DType)
	zero := computes(e, "eq s 0", graph.Bool, exponent)
	out := computes(e, "where s 0 s1", g.DType, zero, w)
	e.hold(zero, none, w, m, p, less)
	return out
}

// computes runs one kernel on s, in the notation of steps.
func computes(e *Eager, text string, d graph.DType, s ...*Tensor) *Tensor {
	return stepKernel(e, &steps(text)[0], 0, d, nil, s, nil, nil).end()
}

// zeroWhere zeroes the elements of t where mask is set, in place.
func zeroWhere(e *Eager, t, mask *Tensor) {
	k := intoKernel(e, "masked_fill", t, mask, t)
	k.attrs().Args = []program.Arg{{In: 0}, {In: 1}, {In: program.Number}}
	k.end()
}

// zeroOf returns a zero on the device.
func zeroOf(e *Eager, d graph.DType) *Tensor { return zeroKernel(e, d).end() }

func zeroKernel(e *Eager, d graph.DType) *kernel {
	k := e.begin("scalar_tensor").does("fill").scalars(0)
	k.alloc(nil, nil, d)
	return k
}

// degrees holds the factors between degrees and radians, and the autograd
// nodes.
var degrees = map[string]struct {
	factor float64
	node   string
}{"deg2rad": {math.Pi / 180, "Deg2RadBackward0"}, "rad2deg": {180 / math.Pi, "Rad2DegBackward0"}}

// runDegrees multiplies by a factor, as does its gradient (aten/src/ATen/native/UnaryOps.cpp).
// Integers become float32.
func runDegrees(e *Eager, c *Call) []*Tensor {
	x, d, row := c.need(0, "self"), graph.Float32, degrees[c.Op]
	if x.DType.IsFloat() {
		d = x.DType
	}
	scaled := func(k *kernel) *Tensor {
		k.attrs().Args = []program.Arg{{In: 0}, {In: program.Number, Value: row.factor}}
		return k.end()
	}
	var o *Tensor
	if c.InPlace && x.leaf == nil {
		o = &Tensor{View: x.View}
		scaled(intoKernel(e, "mul", x, nil, o))
	} else {
		o = scaled(e.elementwise("mul", d, x))
	}
	e.record(row.node, []*Tensor{o}, []*Tensor{x}, nil, func(e *Eager, g, _ []*Tensor, _ []bool) []*Tensor {
		return []*Tensor{scaled(e.elementwise("mul", g[0].DType, g[0]))}
	})
	return []*Tensor{o}
}

// runMaxMin is the elementwise maximum or minimum of two tensors; backward
// masks the operands.
func runMaxMin(e *Eager, c *Call) []*Tensor {
	a, b, d := c.pair()
	out := binary(e, c.Op, d, a, b)
	fn := map[string]string{"maximum": "MaximumBackward0", "minimum": "MinimumBackward0"}[c.Op]
	e.record(fn, []*Tensor{out}, []*Tensor{a, b}, []*Tensor{b, a}, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		return wanted(need, func(i int) *Tensor { return maxMinGrad(e, c.Op, i, g[0], s[1], s[0]) })
	})
	return []*Tensor{out}
}

// maxMinGrad is the gradient of operand i of an elementwise maximum or minimum: equal
// elements get half each.
func maxMinGrad(e *Eager, op string, i int, g, a, b *Tensor) *Tensor {
	half := computes(e, "div s 2", g.DType, g)
	eq := binary(e, "eq", graph.Bool, a, b)
	w := e.elementwise("where", g.DType, eq, half, g).end()
	loses := "lt"
	if (op == "maximum") != (i == 0) {
		loses = "gt"
	}
	m := binary(e, loses, graph.Bool, a, b)
	zeroWhere(e, w, m)
	e.hold(m, eq, half)
	return w
}

// runCompare makes a bool tensor, without a gradient.
func runCompare(e *Eager, c *Call) []*Tensor {
	a, _ := c.operand(0, "self")
	switch {
	case c.Op == "isfinite" && a.DType.IsFloat() && a.Storage >= 0:
		return []*Tensor{finite(e, a)}
	case c.Op == "isinf" && a.DType.IsFloat() && a.Storage >= 0:
		return []*Tensor{infinite(e, a)}
	}
	b, _ := c.operand(1, "other")
	return []*Tensor{binary(e, c.Op, graph.Bool, a, b)}
}

// runBitwise keeps the promoted type, without a gradient.
func runBitwise(e *Eager, c *Call) []*Tensor {
	a, b, d := c.pair()
	return []*Tensor{binary(e, c.Op, d, a, b)}
}

func runWhere(e *Eager, c *Call) []*Tensor {
	cond := c.need(0, "condition")
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
	shape := common(cond, a, b)
	k := e.begin("where", cond, a, b)
	number := program.None
	if as || bs {
		number = k.temp(d.Bytes(1), program.Temporaries)
	}
	o := k.alloc(shape, iteratorStrides(shape, cond, a, b), d)
	k.free(number)
	k.end()
	e.record("WhereBackward0", []*Tensor{o}, []*Tensor{a, b}, []*Tensor{cond}, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		for i := 1; i >= 0; i-- {
			if need[i] {
				k := e.begin("where", g[0], s[0])
				zero := k.temp(g[0].DType.Bytes(1), program.Temporaries)
				k.alloc(g[0].Shape, iteratorStrides(g[0].Shape, s[0], g[0]), g[0].DType)
				k.free(zero)
				args := []program.Arg{{In: 1}, {In: program.Number}, {In: program.Number}}
				args[1+i].In = 0
				k.attrs().Args = args
				outs[i] = k.end()
			}
		}
		return outs
	})
	return []*Tensor{o}
}

func runMaskedFill(e *Eager, c *Call) []*Tensor {
	x, mask := c.need(0, "self"), c.need(1, "mask")
	value, device := program.Arg{In: 2}, (*Tensor)(nil)
	if v, _ := c.operand(2, "value"); v.Storage == program.None {
		value = v.onHost()
	} else {
		device = v
	}
	fill := func(t, mask *Tensor, v program.Arg, of *Tensor) *Tensor {
		k := binaryKernel(e, "masked_fill", t.DType, t, mask)
		k.read(of)
		k.attrs().Args = []program.Arg{{In: 0}, {In: 1}, v}
		return k.end()
	}
	var o *Tensor
	if c.InPlace && x.leaf == nil && x.Storage >= 0 {
		o = &Tensor{View: x.View}
		k := intoKernel(e, "masked_fill", x, mask, o)
		k.read(device)
		k.attrs().Args = []program.Arg{{In: 0}, {In: 1}, value}
		k.end()
	} else {
		o = fill(x, mask, value, device)
	}
	e.record("MaskedFillBackward0", []*Tensor{o}, []*Tensor{x}, []*Tensor{mask}, func(_ *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		return []*Tensor{fill(g[0], s[0], program.Arg{In: program.Number}, nil)}
	})
	return []*Tensor{o}
}

// truthKernels maps reductions of truth values to their kernels.
var truthKernels = map[string]string{"any": "amax", "all": "amin"}

// runPlain allocates a result of the inferred shape, without a gradient.
func runPlain(e *Eager, c *Call) []*Tensor {
	var ins []*Tensor
	eachTensor(c.Args, func(t *Tensor) { ins = append(ins, t) })
	if c.Op == "nonzero" || c.Op == "bincount" || c.Op == "count_nonzero" {
		return runCounted(e, c, c.need(0, "self"))
	}
	k := e.begin(c.Op, ins...)
	if kernel := truthKernels[c.Op]; kernel != "" && len(ins) == 1 && ins[0].DType == graph.Bool && ins[0].Storage != program.None {
		k.does(kernel).dims(reduceDims(c, ins[0], 1)...)
	} else {
		k.inexact("arguments of " + c.Op)
	}
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

// runCounted is nonzero, bincount and count_nonzero, whose results' sizes depend on
// the elements.
func runCounted(e *Eager, c *Call, x *Tensor) []*Tensor {
	shape, d, ok := c.shape(0)
	if !ok {
		return nil
	}
	k := e.begin(c.Op, x).inexact("arguments of " + c.Op)
	var o *Tensor
	switch c.Op {
	case "nonzero":
		k.nonzero(x, func() { o = k.alloc(shape, transposedStrides(shape), d) })
	case "bincount":
		for range 2 { // the least and the largest
			one := k.temp(x.DType.Bytes(1), program.Temporaries)
			k.reduceScratch(x)
			k.free(one)
		}
		o = k.alloc(shape, nil, d)
	default:
		flags := x
		if x.DType != graph.Bool {
			flags = &Tensor{View: program.View{DType: graph.Bool, Shape: x.Shape, Strides: x.denseStrides()}}
		}
		mask := program.None
		if flags != x {
			mask = k.temp(flags.Bytes(), program.Temporaries)
		}
		o = k.alloc(shape, nil, d)
		k.free(k.temp(8*x.Numel(), program.Temporaries), mask)
	}
	k.end()
	return []*Tensor{o}
}

// transposedStrides returns column-major strides.
func transposedStrides(shape []int64) []int64 {
	if len(shape) != 2 {
		return nil
	}
	return []int64{1, max(shape[0], 1)}
}
