package cpu

import (
	"fmt"
	"math"

	"github.com/memplan/memplan/graph"
	contract "github.com/memplan/memplan/graph/kernel"
)

// A kernel runs one call.
type kernel func(*run) error

// kernels are the kernels by name.
var kernels = buildKernels()

func buildKernels() map[string]kernel {
	all := map[string]kernel{"step": step}
	for _, part := range []map[string]kernel{pointwiseKernels(), fillKernels, viewKernels, indexKernels, scatterKernels, matmulKernels(), convKernels,
		attentionKernels(), rnnKernels, normKernels, poolKernels, sampleKernels, reduceKernels(), lossKernels} {
		for name, f := range part {
			if all[name] != nil {
				panic("cpu: kernel listed twice: " + name)
			}
			all[name] = f
		}
	}
	return all
}

// pointwiseKernels are the kernels defined by functions of numbers, and elementwise
// ones that need more.
func pointwiseKernels() map[string]kernel {
	all := map[string]kernel{"bitwise_not": bitwiseNot, "div": div, "copy": copyKernel, "_prelu_kernel_backward": preluBackward}
	for name, f := range unaries {
		all[name] = elementwise1(f)
	}
	for name, f := range binaries {
		all[name] = elementwise2(f)
	}
	for name, f := range formulas {
		all[name] = elementwiseN(contract.Find(name).Arity(), f)
	}
	return all
}

func truth(b bool) float64 { return either(b, 1, 0) }

func either(b bool, yes, no float64) float64 {
	if b {
		return yes
	}
	return no
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

func softplus(x float64) float64 {
	if x > 30 {
		return x
	}
	return math.Log1p(math.Exp(x))
}

var unaries = map[string]func(float64) float64{
	"neg": func(x float64) float64 { return -x }, "abs": math.Abs, "exp": math.Exp, "expm1": math.Expm1, "log": math.Log, "log2": math.Log2, "log10": math.Log10, "log1p": math.Log1p,
	"sqrt": math.Sqrt, "rsqrt": func(x float64) float64 { return 1 / math.Sqrt(x) }, "reciprocal": func(x float64) float64 { return 1 / x }, "square": func(x float64) float64 { return x * x },
	"sin": math.Sin, "cos": math.Cos, "tan": math.Tan, "atan": math.Atan, "sinh": math.Sinh, "cosh": math.Cosh, "tanh": math.Tanh, "asin": math.Asin, "acos": math.Acos,
	"asinh": math.Asinh, "acosh": math.Acosh, "atanh": math.Atanh, "erf": math.Erf, "erfc": math.Erfc, "erfinv": math.Erfinv, "sinc": sinc, "exp2": math.Exp2,
	"floor": math.Floor, "ceil": math.Ceil, "round": math.RoundToEven, "trunc": math.Trunc, "frac": func(x float64) float64 { return x - math.Trunc(x) },
	"sign": sign, "sgn": sign, "sigmoid": sigmoid, "silu": func(x float64) float64 { return x * sigmoid(x) },
	"mish": func(x float64) float64 { return x * math.Tanh(softplus(x)) }, "hardswish": func(x float64) float64 { return x * min(max(x+3, 0), 6) / 6 },
	"hardsigmoid": func(x float64) float64 { return min(max(x+3, 0), 6) / 6 }, "log_sigmoid": func(x float64) float64 { return -softplus(-x) },
	"softsign": func(x float64) float64 { return x / (1 + math.Abs(x)) },
	"relu":     func(x float64) float64 { return either(x > 0 || x != x, x, 0) },
	"isinf":    func(x float64) float64 { return truth(math.IsInf(x, 0)) }, "isnan": func(x float64) float64 { return truth(x != x) },
	"isfinite": func(x float64) float64 { return truth(!math.IsInf(x, 0) && x == x) }, "zeros_like": func(float64) float64 { return 0 },
	"logical_not": func(x float64) float64 { return truth(x == 0) },
	"lgamma":      func(x float64) float64 { y, _ := math.Lgamma(x); return y },
	"digamma":     digamma,
}

// sinc is sin(pi x) / (pi x), 1 at 0.
func sinc(x float64) float64 {
	if x == 0 {
		return 1
	}
	return math.Sin(math.Pi*x) / (math.Pi * x)
}

// digamma is the derivative of lgamma: by its recurrence up to 6, then by its
// asymptotic series (Abramowitz and Stegun 6.3.5, 6.3.7, 6.3.18).
func digamma(x float64) float64 {
	if x <= 0 {
		if x == math.Floor(x) {
			return math.NaN()
		}
		return digamma(1-x) - math.Pi/math.Tan(math.Pi*x)
	}
	s := 0.0
	for ; x < 6; x++ {
		s -= 1 / x
	}
	y := 1 / (x * x)
	return s + math.Log(x) - 0.5/x - y*(1.0/12-y*(1.0/120-y*(1.0/252-y*(1.0/240-y/132))))
}

func sign(x float64) float64 {
	switch {
	case x > 0:
		return 1
	case x < 0:
		return -1
	}
	return x * 0
}

// binaries are kernels of two operands; alpha is the call's scalar, if its
// kernel has one.
var binaries = map[string]func(a, b, alpha float64) float64{
	"add": func(a, b, alpha float64) float64 { return a + alpha*b }, "sub": func(a, b, alpha float64) float64 { return a - alpha*b }, "rsub": func(a, b, alpha float64) float64 { return b - alpha*a },
	"mul": func(a, b, _ float64) float64 { return a * b }, "pow": func(a, b, _ float64) float64 { return math.Pow(a, b) },
	"maximum": func(a, b, _ float64) float64 { return max(a, b) }, "minimum": func(a, b, _ float64) float64 { return min(a, b) },
	"eq": func(a, b, _ float64) float64 { return truth(a == b) }, "ne": func(a, b, _ float64) float64 { return truth(a != b) },
	"lt": func(a, b, _ float64) float64 { return truth(a < b) }, "le": func(a, b, _ float64) float64 { return truth(a <= b) },
	"gt": func(a, b, _ float64) float64 { return truth(a > b) }, "ge": func(a, b, _ float64) float64 { return truth(a >= b) },
	"logical_and": func(a, b, _ float64) float64 { return truth(a != 0 && b != 0) }, "logical_or": func(a, b, _ float64) float64 { return truth(a != 0 || b != 0) },
	"logical_xor": func(a, b, _ float64) float64 { return truth((a != 0) != (b != 0)) },
	"bitwise_and": func(a, b, _ float64) float64 { return float64(int64(a) & int64(b)) }, "bitwise_or": func(a, b, _ float64) float64 { return float64(int64(a) | int64(b)) },
	"bitwise_xor":  func(a, b, _ float64) float64 { return float64(int64(a) ^ int64(b)) },
	"floor_divide": func(a, b, _ float64) float64 { return math.Floor(a / b) }, "fmod": func(a, b, _ float64) float64 { return math.Mod(a, b) },
	"remainder": func(a, b, _ float64) float64 { return a - b*math.Floor(a/b) }, "atan2": func(a, b, _ float64) float64 { return math.Atan2(a, b) },
	"xlogy": func(a, b, _ float64) float64 {
		if a == 0 && b == b {
			return 0
		}
		return a * math.Log(b)
	},
	"hypot":         func(a, b, _ float64) float64 { return math.Hypot(a, b) },
	"_prelu_kernel": func(x, w, _ float64) float64 { return either(x > 0, x, x*w) },
	"div_or_zero":   func(a, b, _ float64) float64 { return either(b == 0, 0, a/b) },
}

// formulas are elementwise kernels of operands x and scalars p, in the order of the
// kernel's row.
var formulas = map[string]func(x, p []float64) float64{
	"leaky_relu": func(x, p []float64) float64 { return either(x[0] > 0, x[0], x[0]*p[0]) },
	"logit": func(x, p []float64) float64 {
		z := x[0]
		if p[0] >= 0 {
			z = min(max(z, p[0]), 1-p[0])
		}
		return math.Log(z / (1 - z))
	},
	"hardshrink": func(x, p []float64) float64 { return either(math.Abs(x[0]) > p[0], x[0], 0) },
	"softshrink": func(x, p []float64) float64 { return sign(x[0]) * max(math.Abs(x[0])-p[0], 0) },
	"clamp_min":  func(x, p []float64) float64 { return max(x[0], p[0]) }, "clamp_max": func(x, p []float64) float64 { return min(x[0], p[0]) },
	"hardtanh": func(x, p []float64) float64 { return min(max(x[0], p[0]), p[1]) }, "clamp": func(x, p []float64) float64 { return min(max(x[0], p[0]), p[1]) },
	"threshold": func(x, p []float64) float64 { return either(x[0] > p[0], x[0], p[1]) },
	"softplus": func(x, p []float64) float64 {
		if x[0]*p[0] > p[1] {
			return x[0]
		}
		return math.Log1p(math.Exp(x[0]*p[0])) / p[0]
	},
	"gelu": func(x, p []float64) float64 {
		if z := x[0]; p[0] != 0 {
			return 0.5 * z * (1 + math.Tanh(geluBeta*(z+geluKappa*z*z*z)))
		}
		return 0.5 * x[0] * (1 + math.Erf(x[0]/math.Sqrt2))
	},
	"elu": func(x, p []float64) float64 {
		if x[0] > 0 {
			return x[0] * p[1]
		}
		return math.Expm1(x[0]*p[2]) * p[0] * p[1]
	},
	"tanh_backward":    func(x, _ []float64) float64 { return x[0] * (1 - x[1]*x[1]) },
	"sigmoid_backward": func(x, _ []float64) float64 { return x[0] * x[1] * (1 - x[1]) },
	"silu_backward":    func(x, _ []float64) float64 { s := sigmoid(x[1]); return x[0] * s * (1 + x[1]*(1-s)) },
	"mish_backward": func(x, _ []float64) float64 {
		t := math.Tanh(softplus(x[1]))
		return x[0] * (t + x[1]*sigmoid(x[1])*(1-t*t))
	},
	"hardswish_backward": func(x, _ []float64) float64 {
		switch {
		case x[1] < -3:
			return 0
		case x[1] <= 3:
			return x[0] * (x[1]/3 + 0.5)
		}
		return x[0]
	},
	"hardsigmoid_backward": func(x, _ []float64) float64 { return either(x[1] > -3 && x[1] < 3, x[0]/6, 0) },
	"log_sigmoid_backward": func(x, _ []float64) float64 { return x[0] * sigmoid(-x[1]) },
	"threshold_backward":   func(x, p []float64) float64 { return either(x[1] <= p[0], 0, x[0]) },
	"leaky_relu_backward":  func(x, p []float64) float64 { return either(x[1] > 0, x[0], x[0]*p[0]) },
	"logit_backward": func(x, p []float64) float64 { // without eps, NaN outside of 0 to 1
		switch z := x[1]; {
		case p[0] >= 0 && (z < p[0] || z > 1-p[0]):
			return 0
		case p[0] < 0 && (z < 0 || z > 1):
			return math.NaN()
		default:
			return x[0] / (z * (1 - z))
		}
	},
	"hardshrink_backward":     func(x, p []float64) float64 { return either(math.Abs(x[1]) > p[0], x[0], 0) },
	"softshrink_backward":     func(x, p []float64) float64 { return either(math.Abs(x[1]) > p[0], x[0], 0) },
	"native_dropout_backward": func(x, p []float64) float64 { return x[0] * x[1] * p[0] },
	"hardtanh_backward":       func(x, p []float64) float64 { return either(x[1] <= p[0] || x[1] >= p[1], 0, x[0]) },
	"softplus_backward": func(x, p []float64) float64 {
		if x[1]*p[0] > p[1] {
			return x[0]
		}
		return x[0] * sigmoid(x[1]*p[0])
	},
	"gelu_backward": func(x, p []float64) float64 {
		z := x[1]
		if p[0] != 0 {
			t := math.Tanh(geluBeta * (z + geluKappa*z*z*z))
			return x[0] * (0.5*(1+t) + 0.5*z*(1-t*t)*geluBeta*(1+3*geluKappa*z*z))
		}
		return x[0] * (0.5*(1+math.Erf(z/math.Sqrt2)) + z*math.Exp(-z*z/2)/math.Sqrt(2*math.Pi))
	},
	"elu_backward": func(x, p []float64) float64 {
		if x[1] > 0 {
			return x[0] * p[1]
		}
		if p[3] != 0 { // x[1] is the result of elu
			return x[0] * p[2] * (x[1] + p[0]*p[1])
		}
		return x[0] * p[2] * p[0] * p[1] * math.Exp(x[1]*p[2])
	},
	"where":       func(x, _ []float64) float64 { return either(x[0] != 0, x[1], x[2]) },
	"masked_fill": func(x, _ []float64) float64 { return either(x[1] != 0, x[2], x[0]) },
	"lerp": func(x, _ []float64) float64 {
		return either(math.Abs(x[2]) < 0.5, x[0]+x[2]*(x[1]-x[0]), x[1]-(x[1]-x[0])*(1-x[2]))
	},
	"addcmul": func(x, p []float64) float64 { return x[0] + p[0]*x[1]*x[2] },
	"addcdiv": func(x, p []float64) float64 { return x[0] + p[0]*x[1]/x[2] },
}

// each runs f over the elements of result 0 in chunks: in[i] are those of
// operand i, out is to be filled. Operands are read before results are written,
// so that a result may overwrite an operand. A result 1 is a copy of operand 0
// from before.
func (r *run) each(operands int, f func(in [][]float64, out []float64)) error {
	t := &r.c.Results[0]
	readers := make([]reader, operands)
	for i := range readers {
		readers[i] = r.reader(i, t.Shape)
	}
	w := r.writer(t)
	var kept *writer
	if r.wants(1) {
		k := r.writer(&r.c.Results[1])
		kept = &k
	}
	r.parallel(int(t.Elems()), 1<<13, func(lo, hi int) {
		bufs := make([]float64, chunk*(operands+1))
		in := make([][]float64, operands)
		for at := lo; at < hi; at += chunk {
			n := min(chunk, hi-at)
			for i := range readers {
				in[i] = bufs[i*chunk : i*chunk+n]
				readers[i].read(in[i], int64(at))
			}
			if kept != nil {
				kept.write(in[0], int64(at))
			}
			out := bufs[operands*chunk : operands*chunk+n]
			f(in, out)
			w.write(out, int64(at))
		}
	})
	return nil
}

func elementwise1(f func(float64) float64) kernel {
	return func(r *run) error {
		return r.each(1, func(in [][]float64, out []float64) {
			for i, x := range in[0] {
				out[i] = f(x)
			}
		})
	}
}

func elementwise2(f func(a, b, alpha float64) float64) kernel {
	return func(r *run) error {
		alpha := append(r.c.Numbers(), 0)[0]
		return r.each(2, func(in [][]float64, out []float64) {
			a, b := in[0], in[1]
			for i := range out {
				out[i] = f(a[i], b[i], alpha)
			}
		})
	}
}

func elementwiseN(n int, f func(x, p []float64) float64) kernel {
	return func(r *run) error {
		p := r.c.Numbers()
		return r.each(n, func(in [][]float64, out []float64) {
			x := make([]float64, n)
			for i := range out {
				for j := range x {
					x[j] = in[j][i]
				}
				out[i] = f(x, p)
			}
		})
	}
}

func copyKernel(r *run) error {
	if a, b := r.c.Results[0].Shape, r.shape(0); len(b) > len(a) {
		return fmt.Errorf("a copy of %v to %v", b, a)
	}
	return r.each(1, func(in [][]float64, out []float64) { copy(out, in[0]) })
}

func div(r *run) error {
	round := func(x float64) float64 { return x }
	switch r.mode() {
	case "floor":
		round = math.Floor
	case "trunc":
		round = math.Trunc
	}
	return r.each(2, func(in [][]float64, out []float64) {
		for i := range out {
			out[i] = round(in[0][i] / in[1][i])
		}
	})
}

// bitwiseNot negates bools and complements integers.
func bitwiseNot(r *run) error {
	isBool := r.c.Results[0].DType == graph.Bool
	return r.each(1, func(in [][]float64, out []float64) {
		for i, x := range in[0] {
			if out[i] = float64(^int64(x)); isBool {
				out[i] = truth(x == 0)
			}
		}
	})
}

func (r *run) mode() string {
	if a := r.attrs(); a != nil {
		return a.Mode
	}
	return ""
}

// The constants of GELU's approximation.
const (
	geluBeta  = math.Sqrt2 * 2 / math.SqrtPi / 2
	geluKappa = 0.044715
)

// preluBackward reads gradient, operand and slopes, and makes the gradients of the
// operand and, before they are summed, of the slopes.
func preluBackward(r *run) error {
	shape := r.shape(1)
	g, x, w := r.floatsIn(0, shape), r.floatsIn(1, shape), r.floatsIn(2, shape)
	for result, slope := range []func(i int) (above, below float32){
		func(i int) (float32, float32) { return 1, w[i] },
		func(i int) (float32, float32) { return 0, x[i] },
	} {
		if !r.wants(result) {
			continue
		}
		out, done := r.out(result)
		for i := range out {
			above, below := slope(i)
			if out[i] = g[i] * below; x[i] > 0 {
				out[i] = g[i] * above
			}
		}
		done()
	}
	return nil
}
