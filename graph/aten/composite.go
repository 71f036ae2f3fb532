package aten

import (
	"github.com/memplan/memplan/graph"
)

// sub calls operator op of the table from within a composite operator, under the
// caller's autocast. Arguments are tensors, numbers, lists of integers and nil;
// every inner call records its own gradient.
func sub(e *Eager, op string, args ...any) *Tensor {
	c := &Call{Op: op}
	for _, a := range args {
		c.Args = append(c.Args, argOf(a))
	}
	row := e.lookup(op)
	if e.Autocast != graph.Undefined {
		e.autocast(row, c)
	}
	return row.run(e, c)[0]
}

// argOf converts a Go value to an argument of a call.
func argOf(v any) Arg {
	switch v := v.(type) {
	case *Tensor:
		if v == nil {
			return Arg{Kind: graph.ArgNone}
		}
		return tensorArg(v)
	case bool:
		if v {
			return Arg{Kind: graph.ArgBool, Int: 1}
		}
		return Arg{Kind: graph.ArgBool}
	case int:
		return Arg{Kind: graph.ArgInt, Int: int64(v)}
	case float64:
		return Arg{Kind: graph.ArgFloat, F: v}
	case []int:
		a := Arg{Kind: graph.ArgList}
		for _, n := range v {
			a.List = append(a.List, Arg{Kind: graph.ArgInt, Int: int64(n)})
		}
		return a
	}
	return Arg{Kind: graph.ArgNone}
}

// crossEntropyComposed is cross_entropy_loss of class probabilities, or with
// smoothed labels, which PyTorch composes of other calls
// (aten/src/ATen/native/LossNLL.cpp).
func crossEntropyComposed(e *Eager, x, target *Tensor, kind lossKind, smoothing float64) *Tensor {
	d := 1
	if x.dim() == 1 {
		d = 0
	}
	ls := softmax(e, x, true, "log_softmax", d)
	if target.DType.IsFloat() {
		return probabilities(e, ls, target, kind, smoothing, d)
	}
	return smoothed(e, ls, target, kind, smoothing, d)
}

// weightView shows the weight of each class along the class dim.
func weightView(e *Eager, w, like *Tensor, d int) *Tensor {
	if like.dim() < 2 {
		return w
	}
	shape := repeat(1, like.dim())
	shape[d] = w.Numel()
	return reshape(e, "view", w, shape)
}

// probabilities is cross_entropy_loss_prob_target.
func probabilities(e *Eager, ls, target *Tensor, kind lossKind, smoothing float64, d int) *Tensor {
	held := []*Tensor{}
	if n := float64(ls.Shape[d]); smoothing > 0 {
		scaled := sub(e, "mul", target, 1-smoothing)
		target = sub(e, "add", scaled, smoothing/n)
		e.hold(scaled)
		held = append(held, target)
	}
	product := sub(e, "mul", ls, target)
	if kind.weight != nil {
		held = append([]*Tensor{product}, held...)
		product = sub(e, "mul", product, weightView(e, kind.weight, ls, d))
	}
	var dims []int
	if kind.reduction == 0 {
		dims = []int{d}
	}
	sum := sub(e, "sum", product, dims)
	o := sub(e, "neg", sum)
	if kind.reduction == 1 {
		mean := sub(e, "div", o, float64(max(ls.Numel()/max(ls.Shape[d], 1), 1)))
		e.hold(o)
		o = mean
	}
	e.hold(sum, product)
	e.hold(held...)
	e.hold(ls)
	return o
}

// smoothed is cross_entropy_loss_label_smoothing.
func smoothed(e *Eager, ls, target *Tensor, kind lossKind, smoothing float64, d int) *Tensor {
	loss := nll(e, ls, target, kind)
	by := ls
	if kind.weight != nil {
		by = sub(e, "mul", ls, weightView(e, kind.weight, ls, d))
	}
	sum := sub(e, "sum", by, []int{d})
	smooth := sub(e, "neg", sum)
	e.hold(sum)
	if by != ls {
		e.hold(by)
	}
	ignored := computes(e, "eq s 0", graph.Bool, target)
	masked := maskInPlace(e, smooth, ignored)
	rest := masked
	switch kind.reduction {
	case 1:
		rest = smoothedMean(e, masked, ignored, target, kind.weight)
	case 2:
		rest = sub(e, "sum", masked, []int(nil))
	}
	scaled := sub(e, "mul", rest, smoothing/float64(max(ls.Shape[d], 1)))
	own := sub(e, "mul", loss, 1-smoothing)
	o := sub(e, "add", own, scaled)
	e.hold(scaled, own)
	if rest != masked {
		e.hold(rest)
	}
	e.hold(ignored, masked, loss, ls)
	return o
}

// smoothedMean divides the sum of losses by the number of targets that count, or by
// the sum of their weights.
func smoothedMean(e *Eager, loss, ignored, target, weight *Tensor) *Tensor {
	not := computes(e, "logical_not s", graph.Bool, ignored)
	if weight == nil {
		n := sub(e, "sum", not, []int(nil))
		sum := sub(e, "sum", loss, []int(nil))
		o := sub(e, "div", sum, n)
		e.hold(sum, n, not)
		return o
	}
	k := e.begin("masked_select", target, not).inexact("as many elements as the mask shows")
	var chosen *Tensor
	k.nonzero(not, func() { chosen = k.alloc([]int64{target.Numel()}, nil, target.DType) })
	k.end()
	k = e.begin("gather", weight, chosen).dims(0)
	k.alloc(chosen.Shape, nil, weight.DType)
	w := k.end()
	all := sub(e, "sum", w, []int(nil))
	sum := sub(e, "sum", loss, []int(nil))
	o := sub(e, "div", sum, all)
	e.hold(sum, all, w, chosen, not)
	return o
}

// maskInPlace is masked_fill_ with 0.
func maskInPlace(e *Eager, t, mask *Tensor) *Tensor {
	return runMaskedFill(e, &Call{Op: "masked_fill", InPlace: true, Args: []Arg{tensorArg(t), tensorArg(mask), argOf(0.0)}})[0]
}
