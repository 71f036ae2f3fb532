package aten

import (
	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// A Routing is how a layer of experts sends its tokens to the ranks that hold the experts:
// as torchtitan 0.2.2 does (models/moe/moe.py, MoE.forward with score_before_experts=False;
// distributed/expert_parallel.py, ExpertParallel; models/moe/utils.py).
type Routing struct {
	Ranks   int   // that share the experts
	Experts int64 // of the layer, on all ranks; a multiple of Ranks
	Best    int64 // experts that a token goes to
	Rows    int64 // that this rank receives, of all ranks
}

// groupAlign is TOKEN_GROUP_ALIGN_SIZE_M: each expert's rows are padded to a multiple of it.
const groupAlign = 8

// Local is the number of a rank's experts.
func (r Routing) Local() int64 { return r.Experts / int64(r.Ranks) }

// Counts are the rows of each of a rank's experts, if they get alike, padded as they are computed with.
func (r Routing) Counts() []int64 {
	out := make([]int64, r.Local())
	for i := range out {
		n := r.Rows / r.Local()
		if int64(i) < r.Rows%r.Local() {
			n++
		}
		out[i] = max(ceilDiv(n, groupAlign), 1) * groupAlign
	}
	return out
}

// Padded is the number of rows that a rank's experts are called with: those that it receives and
// room for what each expert's are padded by.
func (r Routing) Padded() int64 { return ceilDiv(r.Rows+r.Local()*groupAlign, groupAlign) * groupAlign }

// A Dispatch is one call of a layer of experts, from the tokens [T, D] to their sums.
type Dispatch struct {
	Routing
	e                     *Eager
	x, index, scores      *Tensor // [T, D], [T, K], [T, K]
	order, counts, sorted *Tensor
	routed, rows          *Tensor // [T*K, D] in the experts' order; [Padded, D] for this rank's experts
	permuted, offsets     *Tensor
}

// On runs f as the call c, whose name and module its nodes get. An error names it.
func (e *Eager) On(c *Call, f func()) (err error) {
	e.name, e.module, e.call, e.draws = c.Name, c.Module, c.Index, 0
	defer Recover(&err)
	f()
	return nil
}

// shaped calls an operator whose result has the given shape.
func shaped(e *Eager, op string, shape []int64, d graph.DType, args ...Arg) []*Tensor {
	c := &Call{Op: op, Args: args, Shapes: [][]int64{shape, shape}, Types: []graph.DType{d, d}}
	return e.lookup(op).run(e, c)
}

// at are the indices of a call along the first dim.
func at(t *Tensor) Arg { return Arg{Kind: graph.ArgList, List: []Arg{tensorArg(t)}} }

// rowsOf picks rows of x.
func rowsOf(e *Eager, x, idx *Tensor) *Tensor {
	shape := append([]int64{idx.Shape[0]}, x.Shape[1:]...)
	return shaped(e, "index", shape, x.DType, tensorArg(x), at(idx))[0]
}

// small makes a tensor of n numbers that the routing computes, from others.
func small(e *Eager, op string, n int64, d graph.DType, in ...*Tensor) *Tensor {
	return e.begin(op, in...).inexact(routingWhy).makes([]int64{n}, nil, d)
}

// routingWhy says why nodes of a dispatch are not the kernels that they name.
const routingWhy = "tokens go to the ranks that hold their experts"

// NewDispatch sorts the tokens by their experts (TokenReorderer) and picks a row for each.
func (e *Eager) NewDispatch(r Routing, x, index, scores *Tensor) *Dispatch {
	d := &Dispatch{Routing: r, e: e, x: x, index: index, scores: scores}
	flat := reshape(e, "view", index, []int64{index.Numel()})
	n := flat.Shape
	d.counts = small(e, "histc", r.Experts, index.DType, flat)
	sorted := shaped(e, "sort", n, index.DType, tensorArg(flat))
	d.order = sorted[1]
	d.sorted = rowsOf(e, reshape(e, "view", scores, n), d.order)
	token := shaped(e, "floor_divide", n, index.DType, tensorArg(d.order), argOf(int(r.Best)))[0]
	d.routed = rowsOf(e, x, token)
	return d
}

// Send exchanges rows with the other ranks and brings those received into the order of this
// rank's experts: [Padded, D].
func (d *Dispatch) Send() *Tensor {
	e := d.e
	received := small(e, "_c10d_functional::all_to_all_single", d.Experts, d.counts.DType, d.counts)
	mine := e.allToAll(d.routed, d.Rows)
	starts := small(e, "cumsum", d.Experts, graph.Int64, received)
	sizes := small(e, "sum", d.Local(), graph.Int64, received)
	k := e.begin("generate_permute_indices", received, starts, sizes).inexact(routingWhy)
	d.permuted = k.alloc([]int64{d.Padded()}, nil, graph.Int32)
	d.offsets = k.alloc([]int64{d.Local()}, nil, graph.Int32)
	k.end()
	e.hold(received, starts, sizes)
	pad := shaped(e, "new_zeros", []int64{1, mine.Shape[1]}, mine.DType, tensorArg(mine))[0]
	both := d.stacked(mine, pad)
	d.rows = rowsOf(e, both, d.permuted)
	e.hold(both, pad, mine)
	return d.rows
}

// stacked is torch.vstack.
func (d *Dispatch) stacked(list ...*Tensor) *Tensor {
	a := Arg{Kind: graph.ArgList}
	n := int64(0)
	for _, t := range list {
		a.List, n = append(a.List, tensorArg(t)), n+t.Shape[0]
	}
	return shaped(d.e, "cat", []int64{n, list[0].Shape[1]}, list[0].DType, a, argOf(0))[0]
}

// Offsets are where each expert's rows end, [Local].
func (d *Dispatch) Offsets() *Tensor { return small(d.e, "cumsum", d.Local(), graph.Int32, d.offsets) }

// Numbers are the experts of this rank's rows, [Padded], by which vectors are picked for each.
func (d *Dispatch) Numbers() *Tensor {
	return small(d.e, "repeat_interleave", d.Padded(), graph.Int64, d.offsets)
}

// Parts are the rows of each of this rank's experts, for a loop over them.
func (d *Dispatch) Parts() []*Tensor {
	sum := int64(0)
	for _, n := range d.Counts() {
		sum += n
	}
	return splitDim(d.e, "SplitWithSizesBackward0", sliceDim(d.e, d.rows, 0, 0, sum, 1), 0, d.Counts())
}

// Join puts the results of such a loop together again, with zeros for the rest: [Padded, D].
func (d *Dispatch) Join(parts []*Tensor) *Tensor {
	out := d.stacked(parts...)
	d.e.hold(parts...)
	rest := shaped(d.e, "new_zeros", []int64{d.Padded() - out.Shape[0], out.Shape[1]}, out.DType, tensorArg(out))[0]
	all := d.stacked(out, rest)
	d.e.hold(rest, out)
	return all
}

// Return sends the experts' results, [Padded, D], back to the tokens' ranks: [T*K, D]. The rows that
// the experts were called with, and their results, are arguments of hooks until then.
func (d *Dispatch) Return(out *Tensor) *Tensor {
	e := d.e
	empty := shaped(e, "new_empty", []int64{d.Rows + 1, out.Shape[1]}, out.DType, tensorArg(out))[0]
	put := e.lookup("index_put").run(e, &Call{Op: "index_put", Args: []Arg{tensorArg(empty), at(d.permuted), tensorArg(out)}})[0]
	back := e.allToAll(sliceDim(e, put, 0, 0, d.Rows, 1), d.index.Numel())
	e.hold(empty, out, d.rows)
	return back
}

// Sum adds up each token's results by its scores: [T, D].
func (d *Dispatch) Sum(back *Tensor) *Tensor {
	e, t, width := d.e, d.x.Shape[0], back.Shape[1]
	zeros := shaped(e, "zeros", []int64{t * d.Best, width}, back.DType, Arg{Kind: graph.ArgList})[0]
	put := e.lookup("index_put").run(e, &Call{Op: "index_put", Args: []Arg{tensorArg(zeros), at(d.order), tensorArg(back)}})[0]
	whole := reshape(e, "reshape", put, []int64{t, d.Best, width})
	scores, wide := reshape(e, "reshape", d.scores, []int64{t, 1, d.Best}), whole
	if scores.DType != graph.Float32 {
		scores = e.toDType("to", scores, graph.Float32)
	}
	if wide.DType != graph.Float32 {
		wide = e.toDType("to", wide, graph.Float32)
	}
	sum := sub(e, "bmm", scores, wide)
	e.hold(scores, wide)
	if sum.DType != d.x.DType {
		narrow := e.toDType("to", sum, d.x.DType)
		e.hold(sum)
		sum = narrow
	}
	o := reshape(e, "squeeze", sum, []int64{t, width})
	e.hold(put, back, d.routed, d.counts, d.order, d.sorted)
	return o
}

// Kept are the indices that the ExpertParallel object has from one step to the next.
func (d *Dispatch) Kept() *Tensor { return d.permuted }

// allToAll exchanges rows of x with other ranks; this one then has n rows. Backward sends the
// gradient back (torch/csrc/distributed/c10d/Functional.cpp, AllToAllSingle).
func (e *Eager) allToAll(x *Tensor, n int64) *Tensor {
	send := func(e *Eager, x *Tensor, n int64) *Tensor {
		k := e.begin(AllToAll, x).inexact(routingWhy)
		whole := k.contiguousCopy(x)
		o := k.alloc([]int64{n, x.Shape[1]}, nil, x.DType)
		k.free(whole)
		k.end()
		return o
	}
	o, back := send(e, x, n), x.Shape[0]
	e.record("AllToAllSingleBackward", []*Tensor{o}, []*Tensor{x}, nil, func(e *Eager, g, _ []*Tensor, _ []bool) []*Tensor {
		return []*Tensor{send(e, g[0], back)}
	})
	return o
}

// AllToAll names the nodes that exchange tokens between ranks.
const AllToAll = "_c10d_functional::all_to_all_single"

// Local is DTensor.to_local, of a parameter that the ranks divide.
func (e *Eager) Local(w *Tensor) *Tensor {
	return viewOp(e, "_ToTorchTensorBackward", w, w.Shape, w.Strides, 0, func(_ *Eager, g *Tensor) *Tensor { return g })[0]
}

// GroupedProduct is torch._grouped_mm of rows [R, in] in groups that end at offsets, and of a matrix for each
// group: w is [e, out, in], or [e, in, out] if swapped is false.
func (e *Eager) GroupedProduct(x, w, offsets *Tensor, swapped bool) *Tensor {
	if len(x.Shape) != 2 || len(w.Shape) != 3 {
		fail("rows %v and experts %v", x.Shape, w.Shape)
	}
	in, out := w.Shape[1], w.Shape[2]
	if swapped {
		in, out = out, in
	}
	if x.Shape[1] != in {
		fail("rows %v and experts %v", x.Shape, w.Shape)
	}
	if x.DType != w.DType { // neither autocast's nor promoted
		x = e.toDType("to", x, w.DType)
	}
	flops := 2 * x.Shape[0] * in * out
	group := func(e *Eager, shape []int64, ts ...*Tensor) *Tensor {
		k := e.begin("_grouped_mm", ts...).inexact("a product for each group of rows").products(program.Product, flops)
		if ts[0].DType != graph.BFloat16 { // a loop of products (native/GroupedMMUtils.h)
			k.gemm()
		}
		return k.makes(shape, nil, ts[0].DType)
	}
	o := group(e, []int64{x.Shape[0], out}, x, w, offsets)
	rows := x.Shape
	e.record("GroupedMmBackward0", []*Tensor{o}, []*Tensor{x, w}, []*Tensor{x, w, offsets}, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, 2)
		if need[0] {
			outs[0] = group(e, rows, g[0], s[1], s[2])
		}
		if need[1] {
			outs[1] = group(e, s[1].Shape, g[0], s[0], s[2])
		}
		return outs
	})
	return o
}
