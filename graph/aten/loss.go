package aten

import (
	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// CrossEntropy is torch.nn.functional.cross_entropy with class indices: the
// logits are [N, C] or [N, C, d1, ..], the target has no class dim.
func (e *Eager) CrossEntropy(x, target *Tensor) *Tensor {
	return crossEntropy(e, x, target, meanLoss)
}

// LossChunks is the number of parts of ChunkedCrossEntropy.
const LossChunks = 8

// ChunkedCrossEntropy is the mean cross-entropy of a linear layer's results [rows, classes],
// of which only one part exists at a time; each part is a checkpointed region, numbered from
// first on:
//
//	total = None
//	for h, y in zip(x.chunk(8), target.chunk(8)):
//	    part = checkpoint(lambda h, y: F.cross_entropy(F.linear(h, weight, bias).float(), y, reduction="sum"), h, y, use_reentrant=False)
//	    total = part if total is None else total + part
//	return total / target.numel()
func (e *Eager) ChunkedCrossEntropy(x, weight, bias, target *Tensor, first int32) *Tensor {
	rows := x.Shape[0]
	size := max((rows+LossChunks-1)/LossChunks, 1)
	var sizes []int64
	for at := int64(0); at < rows; at += size {
		sizes = append(sizes, min(size, rows-at))
	}
	var total *Tensor
	ys := splitDim(e, "SplitBackward0", target, 0, sizes)
	for i, h := range splitDim(e, "SplitBackward0", x, 0, sizes) {
		part := e.checkpointedLoss(h, weight, bias, ys[i], first+int32(i))
		if total == nil {
			total = part
			continue
		}
		sum := sub(e, "add", total, part)
		e.hold(part)
		e.hold(total)
		total = sum
	}
	mean := sub(e, "div", total, float64(rows))
	e.hold(total)
	return mean
}

// checkpointedLoss is one part of ChunkedCrossEntropy.
func (e *Eager) checkpointedLoss(h, weight, bias, y *Tensor, id int32) (out *Tensor) {
	run := func() {
		logits := e.Float32(sub(e, "linear", h, weight, bias))
		out = sub(e, "cross_entropy_loss", logits, y, (*Tensor)(nil), 2)
		e.hold(logits) // the caller holds its argument until the call returns
	}
	part := &out
	e.Checkpoint(&Segment{ID: id, Name: "loss"}, []*Tensor{h, y}, run, func() {
		kept := *part
		run()
		*part = kept
		e.ExitAutocast()
	})
	return out
}

// A lossKind holds how a loss over classes is reduced.
type lossKind struct {
	reduction int64   // 0 none, 1 mean, 2 sum
	ignore    int64   // ignored class
	weight    *Tensor // weight of each class, or nil
}

// meanLoss are the defaults of torch.nn.functional's losses.
var meanLoss = lossKind{reduction: 1, ignore: -100}

func crossEntropy(e *Eager, x, target *Tensor, kind lossKind) *Tensor {
	d := 1
	if x.dim() == 1 {
		d = 0
	}
	ls := softmax(e, x, true, "log_softmax", d) // called with x's type, which autocast leaves alone
	if e.Autocast != graph.Undefined {
		ls = e.castTo(ls, graph.Float32)
	}
	return nll(e, ls, target, kind)
}

// nll is nll_loss of log-probabilities; it saves them, the target and the total
// weight.
func nll(e *Eager, ls, target *Tensor, kind lossKind) *Tensor {
	op, node, back := "nll_loss_forward", "NllLossBackward0", "nll_loss_backward"
	if ls.dim() > 2 {
		op, node, back = "nll_loss2d_forward", "NllLoss2DBackward0", "nll_loss2d_backward"
	}
	said := func(k *kernel) *kernel {
		return k.inexactIf(kind.weight != nil || kind.reduction == 0, "losses by weights, or of each element").scalars(float64(kind.reduction), float64(kind.ignore))
	}
	k := said(e.begin(op, present([]*Tensor{ls, target, kind.weight})...))
	var o, total *Tensor
	switch {
	case kind.reduction != 0:
		o, total = k.alloc(nil, nil, ls.DType), k.alloc(nil, nil, ls.DType)
	case ls.dim() > 2:
		total, o = k.alloc(nil, nil, ls.DType), k.alloc(target.Shape, nil, ls.DType)
	default:
		o, total = k.alloc(target.Shape, nil, ls.DType), k.alloc(nil, nil, ls.DType)
	}
	k.scratchCopy(ls)
	k.end()
	e.hold(total)
	e.record(node, []*Tensor{o}, []*Tensor{ls}, []*Tensor{ls, target, total, kind.weight}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		k := said(e.begin(back, append([]*Tensor{g[0]}, present(s)...)...))
		k.alloc(ls.Shape, nil, ls.DType)
		k.scratchCopy(ls)
		return []*Tensor{k.end()}
	})
	return o
}

// scratchCopy allocates and frees a contiguous copy of a tensor that is not
// contiguous.
func (k *kernel) scratchCopy(t *Tensor) { k.free(k.contiguousCopy(t)) }

// MSE is the mean squared error against a target of x's shape.
func (e *Eager) MSE(x, target *Tensor) *Tensor {
	return mse(e, x, target, meanLoss.reduction)
}

// mse reduces a loss of two tensors of one shape; reduction is 1 for the mean, 2
// for the sum, 0 for none.
func mse(e *Eager, x, target *Tensor, reduction int64) *Tensor {
	given := target
	if e.Autocast != graph.Undefined { // the last argument first, as Eager.autocast casts them
		target = e.castTo(target, graph.Float32)
		x = e.castTo(x, graph.Float32)
	}
	shape := common(x, target)
	d, st := promoted(x, target), iteratorStrides(shape, x, target)
	k := e.begin("mse_loss", x, target).does("mse_loss").scalars(float64(reduction))
	o := k.reduced(shape, st, d, reduction)
	k.flops(3 * x.Numel()).end()
	e.hold(given) // the caller holds its argument until the call returns
	e.record("MseLossBackward0", []*Tensor{o}, []*Tensor{x, target}, []*Tensor{x, target}, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		return wanted(need, func(i int) *Tensor {
			return e.begin("mse_loss_backward", g[0], s[i], s[1-i]).does("mse_loss_backward").scalars(float64(reduction)).makes(shape, st, d)
		})
	})
	return o
}

// reduced allocates the loss of each element and what adds them up to the result,
// which keeps their memory (mse_loss and smooth_l1_loss in
// aten/src/ATen/native/BinaryOps.cpp and Loss.cpp).
func (k *kernel) reduced(shape, strides []int64, d graph.DType, reduction int64) *Tensor {
	o := k.alloc(shape, strides, d)
	if reduction == 0 {
		return o
	}
	each := k.temp(o.Bytes(), program.Temporaries)
	k.reduceScratch(o)
	k.free(each)
	k.shrink(o)
	return o
}

// runSmoothL1 is smooth_l1_loss; its backward fills a gradient in row-major order.
func runSmoothL1(e *Eager, c *Call) []*Tensor {
	x, target := c.need(0, "self"), c.need(1, "target")
	reduction, beta := c.int(2, "reduction", 1), c.float(3, "beta", 1)
	shape := common(x, target)
	d := promoted(x, target)
	k := e.begin("smooth_l1_loss", x, target).does("smooth_l1_loss").scalars(float64(reduction), beta)
	o := k.reduced(shape, iteratorStrides(shape, x, target), d, reduction)
	k.flops(5 * x.Numel()).end()
	e.record("SmoothL1LossBackward0", []*Tensor{o}, []*Tensor{x, target}, []*Tensor{x, target}, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		return wanted(need, func(i int) *Tensor {
			k := e.begin("smooth_l1_loss_backward", g[0], s[i], s[1-i]).does("smooth_l1_loss_backward")
			return k.scalars(float64(reduction), beta).makes(shape, nil, d)
		})
	})
	return []*Tensor{o}
}

// shrink shows a result that has just been allocated as a single number in the same
// memory.
func (k *kernel) shrink(o *Tensor) {
	o.Shape, o.Strides = nil, nil
	k.n.Out[len(k.n.Out)-1] = o.View
}

// reduceScratch allocates and frees the scratch of adding up all elements of x.
func (k *kernel) reduceScratch(x *Tensor) {
	all := make([]int, x.dim())
	for i := range all {
		all[i] = i
	}
	k.reduceOver("sum", x, all)
}

// bce is binary_cross_entropy (aten/src/ATen/native/cuda/Loss.cu): the result keeps
// the memory of the elementwise losses.
func bce(e *Eager, x, target, weight *Tensor, reduction int64) *Tensor {
	in := present([]*Tensor{x, target, weight})
	weighted := func(k *kernel) *kernel {
		return k.inexactIf(weight != nil || reduction == 0, "losses by weights, or of each element")
	}
	k := weighted(e.begin("binary_cross_entropy", in...).does("binary_cross_entropy").scalars(float64(reduction)))
	o := k.like(x)
	if reduction != 0 {
		one := k.temp(x.DType.Bytes(1), program.Temporaries)
		k.reduceScratch(o)
		k.free(one)
		k.shrink(o)
	}
	k.flops(8 * x.Numel()).end()
	e.record("BinaryCrossEntropyBackward0", []*Tensor{o}, []*Tensor{x, target}, []*Tensor{x, target, weight}, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		if need[0] {
			k := weighted(e.begin("binary_cross_entropy_backward", append([]*Tensor{g[0]}, present(s)...)...).does("binary_cross_entropy_backward").scalars(float64(reduction)))
			k.like(s[0])
			outs[0] = k.end()
		}
		if need[1] {
			outs[1] = e.elementwise("binary_cross_entropy_target_backward", g[0].DType, s[0]).inexact("the gradient of a target").end()
		}
		return outs
	})
	return o
}

// bceWithLogits is binary_cross_entropy_with_logits, which PyTorch composes of other
// kernels under one node (aten/src/ATen/native/Loss.cpp).
func bceWithLogits(e *Eager, x, target, weight, positive *Tensor, reduction int64) *Tensor {
	in := present([]*Tensor{x, target, weight, positive})
	shape := common(x, target)
	st, d := iteratorStrides(shape, target, x), promoted(x, target)
	weighted := func(k *kernel) *kernel {
		return k.inexactIf(weight != nil || positive != nil || reduction == 0, "losses by weights, or of each element").scalars(float64(reduction))
	}
	k := weighted(e.begin("binary_cross_entropy_with_logits", in...).does("binary_cross_entropy_with_logits"))
	sigmoid := k.temp(x.Bytes(), program.Temporaries)
	if positive != nil {
		less := k.temp(positive.Bytes(), program.Temporaries)
		by := k.temp(d.Bytes(numel(shape)), program.Temporaries)
		k.free(less, by)
	}
	var o *Tensor
	if reduction == 0 {
		o = k.alloc(shape, st, d)
		k.free(sigmoid)
	} else {
		each := k.temp(d.Bytes(numel(shape)), program.Temporaries)
		o = k.alloc(nil, nil, d)
		k.reduceScratch(&Tensor{View: program.View{DType: d, Shape: shape, Strides: iteratorStrides(shape, target, x)}})
		k.free(each, sigmoid)
	}
	k.flops(8 * x.Numel()).end()
	e.record("BinaryCrossEntropyWithLogitsBackward0", []*Tensor{o}, []*Tensor{x, target}, []*Tensor{x, target, weight, positive}, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		if need[1] {
			outs[1] = e.elementwise("binary_cross_entropy_target_backward", d, s[0]).inexact("the gradient of a target").end()
		}
		if need[0] {
			k := weighted(e.begin("binary_cross_entropy_with_logits_backward", append([]*Tensor{g[0]}, present(s)...)...).does("binary_cross_entropy_with_logits_backward"))
			by := program.None
			if s[3] != nil {
				by = k.temp(d.Bytes(numel(shape)), program.Temporaries)
			}
			k.alloc(shape, iteratorStrides(shape, s[0], s[1]), d)
			if s[3] != nil {
				k.free(k.temp(s[0].Bytes(), program.Temporaries), by)
			}
			outs[0] = k.end()
		}
		return outs
	})
	return o
}

// Sum adds all elements.
func (e *Eager) Sum(x *Tensor) *Tensor {
	return runSum(e, &Call{Op: "sum", Args: []Arg{{Kind: graph.ArgValue, T: x}}})[0]
}

// Reshape shows t in another shape with the same number of elements.
func (e *Eager) Reshape(t *Tensor, shape []int64) *Tensor { return reshape(e, "view", t, shape) }

// Float32 casts t to float32 (Tensor.float), or returns it.
func (e *Eager) Float32(t *Tensor) *Tensor {
	if t.DType == graph.Float32 {
		return t
	}
	return e.toDType("to", t, graph.Float32)
}

// OnesLike makes the seed of backward.
func (e *Eager) OnesLike(t *Tensor) *Tensor {
	return e.begin("ones_like", t).does("fill").scalars(1).makes(t.Shape, nil, t.DType)
}

// runCrossEntropy is cross_entropy_loss of class indices or probabilities.
func runCrossEntropy(e *Eager, c *Call) []*Tensor {
	x, target := c.need(0, "self"), c.tensor(1, "target")
	if target == nil {
		return nil
	}
	if smoothing := c.float(5, "label_smoothing", 0); target.DType.IsFloat() || smoothing != 0 {
		return []*Tensor{crossEntropyComposed(e, x, target, c.lossKind(), smoothing)}
	}
	return []*Tensor{crossEntropy(e, x, target, c.lossKind())}
}

// lossKind reads reduction and ignore_index.
func (c *Call) lossKind() lossKind {
	return lossKind{c.int(3, "reduction", meanLoss.reduction), c.int(4, "ignore_index", meanLoss.ignore), c.tensor(2, "weight")}
}

// runNLL is nll_loss of log-probabilities.
func runNLL(e *Eager, c *Call) []*Tensor {
	x, target := c.need(0, "self"), c.need(1, "target")
	return []*Tensor{nll(e, x, target, c.lossKind())}
}

// runMSE is mse_loss.
func runMSE(e *Eager, c *Call) []*Tensor {
	return []*Tensor{mse(e, c.need(0, "self"), c.need(1, "target"), c.int(2, "reduction", 1))}
}

// runBCE is binary_cross_entropy, of probabilities or of logits.
func runBCE(e *Eager, c *Call) []*Tensor {
	x, y, w := c.need(0, "self"), c.need(1, "target"), c.tensor(2, "weight")
	if c.Op == "binary_cross_entropy" {
		return []*Tensor{bce(e, x, y, w, c.int(3, "reduction", 1))}
	}
	return []*Tensor{bceWithLogits(e, x, y, w, c.tensor(3, "pos_weight"), c.int(4, "reduction", 1))}
}
