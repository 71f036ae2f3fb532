package aten

import (
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// LigerCrossEntropy is liger-kernel 0.8's LigerFusedLinearCrossEntropyLoss of rows x [R, H], the last
// linear layer's weight [V, H] and class indices: the forward pass computes scores of a part of the
// rows at a time, overwrites them with their gradients, and keeps the gradients of x and weight for
// backward (ops/fused_linear_cross_entropy.py). weight's accumulates in its own type.
func (e *Eager) LigerCrossEntropy(x, weight, target *Tensor) *Tensor {
	rows, width, classes := x.Shape[0], x.Shape[1], weight.Shape[0]
	chunk := min(powerOfTwo(ceilDiv(rows, max(ceilDiv(classes, width), 1))), rows)
	record := e.grad
	e.grad = false
	run := &ligerRun{e: e, weight: weight, low: e.Autocast}
	if run.low == graph.Undefined {
		run.low = x.DType
	}
	gradInput := e.begin("zeros_like").does("fill").scalars(0).makes(x.Shape, nil, x.DType)
	if weight.RequiresGrad() {
		run.gradWeight = e.begin("zeros_like").does("fill").scalars(0).makes(weight.Shape, nil, weight.DType)
	}
	each := e.begin("zeros").does("fill").scalars(0).makes([]int64{rows}, nil, graph.Float32)
	mask := sub(e, "ne", target, -100.0)
	count := sub(e, "sum", mask)
	e.hold(count)
	if x.DType == weight.DType && x.DType == run.low {
		run.scores = e.begin("empty").does("empty").makes([]int64{chunk, classes}, nil, x.DType)
	}
	var sizes []int64
	for at := int64(0); at < rows; at += chunk {
		sizes = append(sizes, min(chunk, rows-at))
	}
	grads := splitDim(e, "", gradInput, 0, sizes)
	for i, h := range splitDim(e, "", x, 0, sizes) {
		run.part(h, grads[i], target)
	}
	e.Mark("del")
	e.hold(run.scores)
	loss := sub(e, "sum", each)
	e.hold(each, mask)
	e.grad = record
	e.record("LigerFusedLinearCrossEntropyFunctionBackward", []*Tensor{loss}, []*Tensor{x, weight}, []*Tensor{gradInput, run.gradWeight}, func(e *Eager, g, s []*Tensor, _ []bool) []*Tensor {
		k := e.begin("liger_backward", g[0]).inexact("Liger's comparison with 1")
		k.free(k.temp(4, program.Temporaries))
		k.end()
		return []*Tensor{s[0], s[1]}
	})
	return loss
}

// A ligerRun is the state of one forward pass of LigerCrossEntropy.
type ligerRun struct {
	e                  *Eager
	weight, gradWeight *Tensor
	scores             *Tensor // of a part, used for each; nil: each has its own
	low                graph.DType
}

// part computes the gradients of one part of the rows.
func (r *ligerRun) part(h, gradInput, target *Tensor) {
	e, rows := r.e, h.Shape[0]
	if r.scores != nil {
		scores := e.view(r.scores, []int64{rows, r.weight.Shape[0]}, slices.Clone(r.scores.Strides), 0)
		r.into("mm", scores, h, swapLast(e, r.weight))
		r.loss(scores, target)
		r.into("mm", gradInput, scores, r.weight)
		r.addWeight(h, scores)
		return
	}
	wide := e.toDType("to", swapLast(e, r.weight), r.low) // a view, which autocast does not cache
	low := e.toDType("to", h, r.low)
	scores := gemmKernel(e, "mm", low, wide, nil)
	e.hold(low, wide)
	r.loss(scores, target)
	product := gemmKernel(e, "mm", scores, e.castTo(r.weight, r.low), nil)
	k := e.begin("copy_", product).does("copy")
	k.out(gradInput)
	k.end()
	e.hold(product)
	r.addWeight(h, scores)
	e.hold(scores)
}

// loss overwrites scores with their gradients.
func (r *ligerRun) loss(scores, target *Tensor) {
	k := r.e.begin("liger_cross_entropy", scores, target).inexact("Liger's kernel, whose traffic it has")
	k.out(scores)
	k.end()
}

// addWeight adds the part's gradient of the weight: in half precision, or to float32 from it, in
// one product, otherwise by way of a temporary of the weight's size.
func (r *ligerRun) addWeight(h, scores *Tensor) {
	e := r.e
	if r.gradWeight == nil {
		return
	}
	if scores.DType != graph.Float16 && scores.DType != graph.BFloat16 {
		product := gemmKernel(e, "mm", swapLast(e, scores), h, nil)
		k := e.begin("add_", r.gradWeight, product).does("add")
		k.out(r.gradWeight)
		k.end()
		e.hold(product)
		return
	}
	low := h
	if h.DType != scores.DType {
		low = e.toDType("to", h, scores.DType)
	}
	r.into("addmm", r.gradWeight, swapLast(e, scores), low)
	if low != h {
		e.hold(low)
	}
}

// into is a product that is written to a tensor, out=o.
func (r *ligerRun) into(op string, o, a, b *Tensor) {
	in := []*Tensor{a, b}
	if op == "addmm" {
		in = []*Tensor{o, a, b}
	}
	k := r.e.begin(op, in...)
	k.out(o)
	k.gemm()
	k.products(program.Product, 2*o.Numel()*a.Shape[1]).end()
}

// powerOfTwo is the least power of two that is not below n.
func powerOfTwo(n int64) int64 {
	p := int64(1)
	for p < n {
		p *= 2
	}
	return p
}
