package aten

import (
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// viewOp records a view; undo maps its gradient back.
func viewOp(e *Eager, fn string, t *Tensor, shape, strides []int64, offset int64, undo func(e *Eager, g *Tensor) *Tensor) []*Tensor {
	v := e.view(t, shape, strides, offset)
	e.record(fn, []*Tensor{v}, []*Tensor{t}, nil, func(e *Eager, g, _ []*Tensor, _ []bool) []*Tensor {
		return []*Tensor{undo(e, g[0])}
	})
	return []*Tensor{v}
}

// reshape shows t in another shape: a view where strides allow, else a copy
// (at::native::reshape: view, or _unsafe_view of a contiguous clone). op is
// the call that asks for it.
func reshape(e *Eager, op string, t *Tensor, shape []int64) *Tensor {
	if st, ok := viewStrides(t, shape); ok {
		in := t.Shape
		return viewOp(e, "ViewBackward0", t, shape, st, 0, func(e *Eager, g *Tensor) *Tensor {
			return reshape(e, "reshape", g, in)
		})[0]
	}
	c := clone(e, op, t, contiguousStrides(t.Shape))
	in := c.Shape
	return viewOp(e, "UnsafeViewBackward0", c, shape, contiguousStrides(shape), 0, func(e *Eager, g *Tensor) *Tensor {
		return reshape(e, "reshape", g, in)
	})[0]
}

// clone copies t into new memory of the given strides.
func clone(e *Eager, op string, t *Tensor, strides []int64) *Tensor {
	k := e.begin(op, t).does("copy")
	o := k.alloc(t.Shape, strides, t.DType)
	k.end()
	e.record("CloneBackward0", []*Tensor{o}, []*Tensor{t}, nil, func(_ *Eager, g, _ []*Tensor, _ []bool) []*Tensor { return g[:1] })
	return o
}

func transpose(e *Eager, t *Tensor, a, b int) *Tensor {
	shape, st := slices.Clone(t.Shape), slices.Clone(t.Strides)
	shape[a], shape[b] = shape[b], shape[a]
	st[a], st[b] = st[b], st[a]
	return viewOp(e, "TransposeBackward0", t, shape, st, 0, func(e *Eager, g *Tensor) *Tensor { return transpose(e, g, a, b) })[0]
}

func permute(e *Eager, t *Tensor, order []int) *Tensor {
	shape, st := make([]int64, len(order)), make([]int64, len(order))
	back := make([]int, len(order))
	for i, d := range order {
		shape[i], st[i] = t.Shape[d], t.Strides[d]
		back[d] = i
	}
	return viewOp(e, "PermuteBackward0", t, shape, st, 0, func(e *Eager, g *Tensor) *Tensor { return permute(e, g, back) })[0]
}

func expand(e *Eager, t *Tensor, shape []int64) *Tensor {
	n := len(shape)
	out, st := slices.Clone(shape), make([]int64, n)
	for i := range out {
		j := i - (n - t.dim())
		switch {
		case j < 0:
		case out[i] == -1 || out[i] == t.Shape[j]:
			out[i], st[i] = t.Shape[j], t.Strides[j]
		case t.Shape[j] == 1:
		default:
			fail("cannot expand %v to %v", t.Shape, shape)
		}
	}
	if slices.Equal(out, t.Shape) && e.inBackward() {
		return t
	}
	in := t.Shape
	return viewOp(e, "ExpandBackward0", t, out, st, 0, func(e *Eager, g *Tensor) *Tensor { return sumTo(e, g, in) })[0]
}

func unsqueeze(e *Eager, t *Tensor, d int) *Tensor {
	st := int64(1)
	if d < t.dim() {
		st = t.Shape[d] * t.Strides[d]
	}
	return viewOp(e, "UnsqueezeBackward0", t, slices.Insert(slices.Clone(t.Shape), d, 1), slices.Insert(slices.Clone(t.Strides), d, st), 0,
		func(e *Eager, g *Tensor) *Tensor { return squeeze(e, g, d) })[0]
}

func squeeze(e *Eager, t *Tensor, dims ...int) *Tensor {
	var shape, st []int64
	for i := range t.Shape {
		if t.Shape[i] == 1 && slices.Contains(dims, i) {
			continue
		}
		shape, st = append(shape, t.Shape[i]), append(st, t.Strides[i])
	}
	in := t.Shape
	return viewOp(e, "SqueezeBackward1", t, shape, st, 0, func(e *Eager, g *Tensor) *Tensor { return unsqueezeTo(e, g, in) })[0]
}

// unsqueezeTo shows g in a shape that has more dims of size 1.
func unsqueezeTo(e *Eager, g *Tensor, shape []int64) *Tensor {
	st, ok := viewStrides(g, shape)
	if !ok {
		return reshape(e, "reshape", g, shape)
	}
	return e.view(g, shape, st, 0)
}

// sliceDim returns every step-th element from start along d.
func sliceDim(e *Eager, t *Tensor, d int, start, end, step int64) *Tensor {
	n := t.Shape[d]
	if start < 0 {
		start += n
	}
	if end < 0 {
		end += n
	}
	start = min(max(start, 0), n)
	end = min(max(end, start), n)
	shape, st := slices.Clone(t.Shape), slices.Clone(t.Strides)
	shape[d] = (end - start + step - 1) / step
	st[d] *= step
	in := t.Shape
	return viewOp(e, "SliceBackward0", t, shape, st, start*t.Strides[d], func(e *Eager, g *Tensor) *Tensor {
		w := contiguousStrides(in)
		at := start * w[d]
		w[d] *= step
		return zeros(e, "slice_backward", in, g, w, at)
	})[0]
}

func selectDim(e *Eager, t *Tensor, d int, i int64) *Tensor {
	if i < 0 {
		i += t.Shape[d]
	}
	in := t.Shape
	return viewOp(e, "SelectBackward0", t, slices.Delete(slices.Clone(t.Shape), d, d+1), slices.Delete(slices.Clone(t.Strides), d, d+1), i*t.Strides[d],
		func(e *Eager, g *Tensor) *Tensor {
			w := contiguousStrides(in)
			at := i * w[d]
			return zeros(e, "select_backward", in, g, slices.Delete(w, d, d+1), at)
		})[0]
}

// zeros allocates a contiguous tensor of g's type and adds g into the window
// given by the strides and the offset.
func zeros(e *Eager, op string, shape []int64, g *Tensor, strides []int64, offset int64) *Tensor {
	k := e.begin(op, g).does("unview")
	k.attrs().Window = &program.Window{Strides: strides, Offset: offset}
	k.alloc(shape, nil, g.DType)
	return k.end()
}

// splitDim splits t along d into views of the given sizes; one autograd node
// joins the pieces' gradients.
func splitDim(e *Eager, fn string, t *Tensor, d int, sizes []int64) []*Tensor {
	outs := make([]*Tensor, len(sizes))
	at := int64(0)
	for i, n := range sizes {
		shape := slices.Clone(t.Shape)
		shape[d] = n
		outs[i] = e.view(t, shape, slices.Clone(t.Strides), at*t.Strides[d])
		at += n
	}
	in, dt := t.Shape, t.DType
	e.record(fn, outs, []*Tensor{t}, nil, func(e *Eager, g, _ []*Tensor, _ []bool) []*Tensor {
		return []*Tensor{joinSplit(e, g, in, d, sizes, dt)}
	})
	return outs
}

// joinSplit concatenates the gradients of a split's pieces; missing ones are
// zeros (split_backward).
func joinSplit(e *Eager, g []*Tensor, in []int64, d int, sizes []int64, dt graph.DType) *Tensor {
	parts := slices.Clone(g)
	for i, p := range parts {
		if p == nil {
			shape := slices.Clone(in)
			shape[d] = sizes[i]
			parts[i] = e.begin("zeros").does("fill").scalars(0).makes(shape, nil, dt)
		}
	}
	return e.begin("cat", parts...).dims(d).makes(in, nil, dt)
}

func runView(e *Eager, c *Call) []*Tensor {
	t := c.need(0, "self")
	shape, ok := inferSize(c.ints(1, "size", 0, 0), t.Numel())
	if !ok {
		fail("cannot show %v as %v", t.Shape, c.ints(1, "size", 0, 0))
	}
	return []*Tensor{reshape(e, c.Op, t, shape)}
}

func runFlatten(e *Eager, c *Call) []*Tensor {
	t := c.need(0, "self")
	a, b := wrap(c.int(1, "start_dim", 0), t.dim()), wrap(c.int(2, "end_dim", -1), t.dim())
	if t.dim() == 0 {
		return []*Tensor{reshape(e, c.Op, t, []int64{1})}
	}
	shape := append(slices.Clone(t.Shape[:a]), numel(t.Shape[a:b+1]))
	return []*Tensor{reshape(e, c.Op, t, append(shape, t.Shape[b+1:]...))}
}

func runUnflatten(e *Eager, c *Call) []*Tensor {
	t := c.need(0, "self")
	d := wrap(c.int(1, "dim", 0), t.dim())
	sizes, ok := inferSize(c.ints(2, "sizes", 0, 0), t.Shape[d])
	if !ok {
		fail("cannot unflatten %d of %v to %v", d, t.Shape, c.ints(2, "sizes", 0, 0))
	}
	shape := append(slices.Clone(t.Shape[:d]), sizes...)
	return []*Tensor{reshape(e, c.Op, t, append(shape, t.Shape[d+1:]...))}
}

func runTranspose(e *Eager, c *Call) []*Tensor {
	t := c.need(0, "self")
	if t.dim() < 2 {
		return viewOp(e, "TransposeBackward0", t, t.Shape, t.Strides, 0, func(_ *Eager, g *Tensor) *Tensor { return g })
	}
	if c.Op == "t" {
		return []*Tensor{transpose(e, t, 0, 1)}
	}
	return []*Tensor{transpose(e, t, wrap(c.int(1, "dim0", 0), t.dim()), wrap(c.int(2, "dim1", 1), t.dim()))}
}

func runPermute(e *Eager, c *Call) []*Tensor {
	t := c.need(0, "self")
	dims := c.ints(1, "dims", 0, 0)
	order := make([]int, len(dims))
	for i, d := range dims {
		order[i] = wrap(d, t.dim())
	}
	if sorted := slices.Sorted(slices.Values(order)); len(order) != t.dim() || len(order) > 0 && (sorted[0] < 0 || sorted[len(order)-1] >= t.dim()) {
		fail("dims %v do not reorder a tensor %v", dims, t.Shape)
	}
	return []*Tensor{permute(e, t, order)}
}

func runExpand(e *Eager, c *Call) []*Tensor {
	return []*Tensor{expand(e, c.need(0, "self"), c.ints(1, "size", 0, 0))}
}

func runUnsqueeze(e *Eager, c *Call) []*Tensor {
	t := c.need(0, "self")
	return []*Tensor{unsqueeze(e, t, wrap(c.int(1, "dim", 0), t.dim()+1))}
}

func runSqueeze(e *Eager, c *Call) []*Tensor {
	t := c.need(0, "self")
	var dims []int
	for _, d := range c.ints(1, "dim", 0, 0) {
		dims = append(dims, wrap(d, t.dim()))
	}
	if c.arg(1, "dim") == nil {
		for i := range t.Shape {
			dims = append(dims, i)
		}
	}
	return []*Tensor{squeeze(e, t, dims...)}
}

func runSlice(e *Eager, c *Call) []*Tensor {
	t := c.need(0, "self")
	d := wrap(c.int(1, "dim", 0), t.dim())
	return []*Tensor{sliceDim(e, t, d, c.int(2, "start", 0), c.int(3, "end", 1<<62), c.int(4, "step", 1))}
}

func runNarrow(e *Eager, c *Call) []*Tensor {
	t := c.need(0, "self")
	start := c.int(2, "start", 0)
	return []*Tensor{sliceDim(e, t, wrap(c.int(1, "dim", 0), t.dim()), start, start+c.int(3, "length", 0), 1)}
}

func runSelect(e *Eager, c *Call) []*Tensor {
	t := c.need(0, "self")
	return []*Tensor{selectDim(e, t, wrap(c.int(1, "dim", 0), t.dim()), c.int(2, "index", 0))}
}

func runSplit(e *Eager, c *Call) []*Tensor {
	t := c.need(0, "self")
	d := wrap(c.int(2, "dim", 0), t.dim())
	a := c.arg(1, "split_size")
	if a != nil && a.Kind == graph.ArgList {
		return splitDim(e, "SplitWithSizesBackward0", t, d, c.ints(1, "split_sizes", 0, 0))
	}
	n, size := t.Shape[d], c.int(1, "split_size", 1)
	if c.Op == "chunk" {
		size = (n + size - 1) / max(size, 1)
	}
	var sizes []int64
	for at := int64(0); at < n; at += max(size, 1) {
		sizes = append(sizes, min(size, n-at))
	}
	return splitDim(e, "SplitBackward0", t, d, sizes)
}

func runUnbind(e *Eager, c *Call) []*Tensor {
	t := c.need(0, "self")
	d := wrap(c.int(1, "dim", 0), t.dim())
	outs := make([]*Tensor, t.Shape[d])
	for i := range outs {
		outs[i] = e.view(t, slices.Delete(slices.Clone(t.Shape), d, d+1), slices.Delete(slices.Clone(t.Strides), d, d+1), int64(i)*t.Strides[d])
	}
	in, dt := t.Shape, t.DType
	e.record("UnbindBackward0", outs, []*Tensor{t}, nil, func(e *Eager, g, _ []*Tensor, _ []bool) []*Tensor {
		var zeros []*Tensor
		parts := slices.Clone(g)
		for i := range parts {
			if parts[i] == nil {
				parts[i] = e.begin("zeros").does("fill").scalars(0).makes(outs[i].Shape, nil, dt)
				zeros = append(zeros, parts[i])
			}
		}
		w := e.begin("stack", parts...).dims(d).makes(in, nil, dt)
		e.hold(zeros...)
		return []*Tensor{w}
	})
	return outs
}

func runAlias(e *Eager, c *Call) []*Tensor {
	t := c.need(0, "self")
	return viewOp(e, "AliasBackward0", t, t.Shape, t.Strides, 0, func(_ *Eager, g *Tensor) *Tensor { return g })
}

// runAtLeast adds dims of size 1.
func runAtLeast(e *Eager, c *Call) []*Tensor {
	ts := []*Tensor{c.tensor(0, "self")}
	if ts[0] == nil {
		ts = c.needs(0, "tensors")
	}
	want, out := int(c.Op[len("atleast_")]-'0'), make([]*Tensor, len(ts))
	for i, t := range ts {
		for t.dim() < want {
			at := 0
			if t.dim() == 2 { // atleast_3d adds the third dim at the end
				at = 2
			}
			t = unsqueeze(e, t, at)
		}
		out[i] = t
	}
	return out
}

// runIdentity returns its operand itself: the call does nothing.
func runIdentity(_ *Eager, c *Call) []*Tensor { return []*Tensor{c.need(0, "self")} }

func runDetach(e *Eager, c *Call) []*Tensor {
	t := c.need(0, "self")
	v := e.view(t, t.Shape, t.Strides, 0)
	return []*Tensor{v}
}

// runAsStrided restrides in place: the export of as_strided_ on a result that
// was just made. Its gradient goes through a zeroed buffer of the base.
func runAsStrided(e *Eager, c *Call) []*Tensor {
	t := c.need(0, "self")
	shape, st := c.ints(1, "size", 0, 0), c.ints(2, "stride", 0, 0)
	in := t.Shape
	return viewOp(e, "AsStridedBackward1", t, shape, st, c.int(3, "storage_offset", 0), func(e *Eager, g *Tensor) *Tensor {
		k := e.begin("new_zeros", g).does("unview")
		k.attrs().Window = &program.Window{Strides: st, Offset: c.int(3, "storage_offset", 0)}
		k.inexactIf(!t.contiguous(), "a new layout of what is not contiguous")
		k.alloc(in, nil, g.DType)
		return k.end()
	})
}

func runClone(e *Eager, c *Call) []*Tensor {
	t := c.need(0, "self")
	st := t.denseStrides()
	if a := c.arg(1, "memory_format"); a != nil {
		switch a.S {
		case "torch.contiguous_format":
			if t.contiguous() && !c.Exact { // Tensor.contiguous: a copy that only the exporter's layout needed
				return []*Tensor{t}
			}
			st = contiguousStrides(t.Shape)
		case "torch.channels_last":
			if t.dim() == 4 {
				if t.channelsLast() && preferLast(t) && !c.Exact {
					return []*Tensor{t}
				}
				st = channelsLastStrides(t.Shape)
			}
		}
	}
	return []*Tensor{clone(e, c.Op, t, st)}
}

func runContiguous(e *Eager, c *Call) []*Tensor {
	t := c.need(0, "self")
	if t.contiguous() {
		return []*Tensor{t}
	}
	return []*Tensor{clone(e, c.Op, t, contiguousStrides(t.Shape))}
}

func runToCopy(e *Eager, c *Call) []*Tensor {
	t := c.need(0, "self")
	d := c.dtype(-1, "dtype")
	if d == graph.Undefined {
		d = c.dtype(1, "dtype")
	}
	if c.Exact {
		d = c.Types[0]
		if c.Shares[0] != nil {
			return []*Tensor{t}
		}
	} else if d == t.DType && c.Op == "to" {
		return []*Tensor{t}
	}
	if d == graph.Undefined || d == t.DType {
		return []*Tensor{clone(e, c.Op, t, t.denseStrides())}
	}
	return []*Tensor{e.toDType(c.Op, t, d)}
}

func runCat(e *Eager, c *Call) []*Tensor {
	ts := c.needs(0, "tensors")
	var in []*Tensor
	for _, t := range ts {
		if t.dim() != 1 || t.Shape[0] != 0 {
			in = append(in, t)
		}
	}
	if len(in) == 0 {
		in = ts
	}
	d := wrap(c.int(1, "dim", 0), in[0].dim())
	for _, t := range in {
		if t.dim() != in[0].dim() || d < 0 || d >= t.dim() {
			fail("shapes %v and %v cannot be joined along dim %d", in[0].Shape, t.Shape, d)
		}
	}
	shape, dt, last := slices.Clone(in[0].Shape), in[0].DType, true
	shape[d] = 0
	sizes := make([]int64, len(in))
	for i, t := range in {
		sizes[i] = t.Shape[d]
		shape[d] += t.Shape[d]
		dt = promote(dt, t.DType)
		last = last && t.channelsLast() && !t.contiguous()
	}
	var st []int64
	if last {
		st = channelsLastStrides(shape)
	}
	k := e.begin("cat", in...).dims(d)
	o := k.alloc(shape, st, dt)
	k.end()
	e.record("CatBackward0", []*Tensor{o}, in, nil, func(e *Eager, g, _ []*Tensor, need []bool) []*Tensor {
		outs := make([]*Tensor, len(in))
		at := int64(0)
		for i, n := range sizes {
			if need[i] {
				outs[i] = sliceDim(e, g[0], d, at, at+n, 1)
			}
			at += n
		}
		return outs
	})
	return []*Tensor{o}
}

func runStack(e *Eager, c *Call) []*Tensor {
	ts := c.needs(0, "tensors")
	d := wrap(c.int(1, "dim", 0), ts[0].dim()+1)
	k := e.begin("stack", ts...).dims(d)
	o := k.alloc(slices.Insert(slices.Clone(ts[0].Shape), d, int64(len(ts))), nil, ts[0].DType)
	k.end()
	e.record("StackBackward0", []*Tensor{o}, ts, nil, func(e *Eager, g, _ []*Tensor, _ []bool) []*Tensor {
		outs := make([]*Tensor, len(ts))
		for i := range outs {
			outs[i] = selectDim(e, g[0], d, int64(i))
		}
		return outs
	})
	return []*Tensor{o}
}

func runRepeat(e *Eager, c *Call) []*Tensor {
	t := c.need(0, "self")
	reps := c.ints(1, "repeats", 0, 0)
	for len(reps) < t.dim() {
		reps = slices.Insert(reps, 0, 1)
	}
	return []*Tensor{tiled(e, t, reps)}
}

func tiled(e *Eager, t *Tensor, reps []int64) *Tensor {
	shape := slices.Clone(reps)
	for i, d := range t.Shape {
		shape[len(reps)-t.dim()+i] *= d
	}
	k := e.begin("repeat", t)
	o := k.alloc(shape, nil, t.DType)
	k.end()
	in := t.Shape
	e.record("RepeatBackward0", []*Tensor{o}, []*Tensor{t}, nil, func(e *Eager, g, _ []*Tensor, _ []bool) []*Tensor {
		return []*Tensor{unrepeat(e, g[0], reps, in)}
	})
	return o
}

// unrepeat adds up the gradients of a tensor's copies (repeat_backward): over the
// new dims one by one, then over the others at once.
func unrepeat(e *Eager, g *Tensor, reps, in []int64) *Tensor {
	for range len(reps) - len(in) {
		w := reduceKernel(e, "sum", g, []int{0}, false, g.DType)
		if g.fn == nil && g.leaf == nil {
			e.hold(g)
		}
		g = w
	}
	var shape []int64
	var dims []int
	for i, n := range in {
		if r := reps[len(reps)-len(in)+i]; r != 1 {
			dims = append(dims, len(shape))
			shape = append(shape, r)
		}
		shape = append(shape, n)
	}
	w := reshape(e, "reshape", g, shape)
	if len(dims) > 0 {
		w = reduceKernel(e, "sum", w, dims, false, g.DType)
	}
	return w
}

// runShuffle is roll, flip and other moves of elements: one new tensor, nothing
// saved, and the same in backward.
func runShuffle(e *Eager, c *Call) []*Tensor {
	t := c.need(0, "self")
	if c.Op == "repeat_interleave" {
		return runInterleave(e, c, t)
	}
	if m := c.rearrangement(t); m != nil {
		return runRearrangement(e, c.Op, t, m)
	}
	op, what := c.Op, func(k *kernel) *kernel { return k.inexact("arguments of " + c.Op) }
	if op == "triu" || op == "tril" {
		what = func(k *kernel) *kernel { return k.scalars(float64(c.int(1, "diagonal", 0))) }
	}
	back := what
	if shifts, dims := c.ints(1, "shifts", 0, 0), c.ints(2, "dims", 0, 0); op == "roll" && len(dims) > 0 && len(shifts) == len(dims) {
		by := func(sign float64) func(k *kernel) *kernel {
			return func(k *kernel) *kernel {
				a := k.attrs()
				for i, s := range shifts {
					a.Scalars, a.Dims = append(a.Scalars, sign*float64(s)), append(a.Dims, int64(wrap(dims[i], t.dim())))
				}
				return k
			}
		}
		what, back = by(1), by(-1)
	}
	if dims := c.ints(1, "dims", 0, 0); op == "flip" && len(dims) > 0 {
		what = func(k *kernel) *kernel {
			at := make([]int, len(dims))
			for i, d := range dims {
				at[i] = wrap(d, t.dim())
			}
			return k.dims(at...)
		}
		back = what
	}
	shape, _, ok := c.shape(0)
	if !ok {
		shape = t.Shape
	}
	in, rolls := t.Shape, 1
	if op == "roll" {
		rolls = max(len(c.ints(2, "dims", 0, 0)), 1)
	}
	run := func(t *Tensor, out []int64, what func(*kernel) *kernel) *Tensor {
		k := what(e.begin(op, t))
		whole := program.None
		if op == "roll" {
			whole = k.contiguousCopy(t)
		}
		var steps []program.StorageID
		for i := range rolls - 1 { // one dim at a time, each call inside the next (roll_common)
			steps = append(steps, k.temp(t.Bytes(), program.Temporaries))
			if i == 0 {
				k.free(whole)
				whole = program.None
			}
		}
		k.alloc(out, nil, t.DType)
		slices.Reverse(steps)
		k.free(append(steps, whole)...)
		return k.end()
	}
	o := run(t, shape, what)
	e.record(op+"Backward", []*Tensor{o}, []*Tensor{t}, nil, func(_ *Eager, g, _ []*Tensor, _ []bool) []*Tensor {
		return []*Tensor{run(g[0], in, back)}
	})
	return []*Tensor{o}
}

// runInterleave repeats elements along a dim, each by the same number or by its
// entry in a tensor. A call with the tensor alone makes the indices.
func runInterleave(e *Eager, c *Call, t *Tensor) []*Tensor {
	shape, d, ok := c.shape(0)
	if !ok {
		return nil
	}
	repeats, times := c.tensor(1, "repeats"), c.arg(1, "repeats")
	dim := c.arg(2, "dim")
	along := dim != nil && dim.Kind == graph.ArgInt
	switch {
	case times == nil || times.Kind == graph.ArgNone: // only the indices
		return []*Tensor{e.begin(c.Op, t).makes(shape, nil, d)}
	case along && repeats != nil:
		at := wrap(dim.Int, t.dim())
		k := e.begin(c.Op, repeats)
		sums := k.temp(8*repeats.Numel(), program.Temporaries)
		k.scratch(scanScratch(repeats.Numel(), graph.Int64), program.Temporaries)
		positive := k.temp(repeats.Numel(), program.Temporaries)
		k.free(k.temp(1, program.Temporaries), positive)
		idx := k.alloc([]int64{shape[at]}, nil, graph.Int64)
		k.free(sums)
		k.end()
		call := *c
		call.Op, call.Args = "index_select", []Arg{tensorArg(t), {Kind: graph.ArgInt, Int: dim.Int}, tensorArg(idx)}
		return gathered("IndexSelectBackward0", "index_add", false)(e, &call)
	case along && times.Kind == graph.ArgInt:
		return runEach(e, c.Op, t, wrap(dim.Int, t.dim()), times.Int)
	}
	k := e.begin(c.Op, t, repeats).inexact("arguments of " + c.Op)
	o := k.alloc(shape, nil, d)
	k.end()
	in := t.Shape
	e.record(c.Op+"Backward", []*Tensor{o}, []*Tensor{t}, nil, func(e *Eager, g, _ []*Tensor, _ []bool) []*Tensor {
		return []*Tensor{e.begin(c.Op, g[0]).inexact("arguments of "+c.Op).makes(in, nil, g[0].DType)}
	})
	return []*Tensor{o}
}

// runEach repeats each slice along a dim: a copy of an expanded view
// (aten/src/ATen/native/Repeat.cpp, repeat_interleave_symint).
func runEach(e *Eager, op string, t *Tensor, d int, times int64) []*Tensor {
	shape, st := slices.Insert(slices.Clone(t.Shape), d+1, times), slices.Insert(slices.Clone(t.Strides), d+1, 0)
	k := e.begin(op, e.view(t, shape, st, 0)).does("copy")
	k.alloc(shape, nil, t.DType)
	merged := slices.Delete(slices.Clone(shape), d+1, d+2)
	merged[d] *= times
	made := k.end()
	o := e.view(made, merged, contiguousStrides(merged), 0)
	e.record("UnsafeViewBackward0", []*Tensor{o}, []*Tensor{t}, nil, func(e *Eager, g, _ []*Tensor, _ []bool) []*Tensor {
		if times == 1 { // nothing to add
			return g
		}
		return []*Tensor{reduceKernel(e, "sum", unsqueezeTo(e, g[0], shape), []int{d + 1}, false, g[0].DType)}
	})
	return []*Tensor{o}
}

// A rearrangement rearranges parts of dims: they are split, permuted, and merged again.
type rearrangement struct {
	split []int64 // the shape with split dims
	order []int   // permutation of the split dims
	shape []int64 // shape of the result
}

// rearrangement returns the rearrangement of pixel_shuffle, pixel_unshuffle and
// channel_shuffle; nil for other calls, and for operands that do not fit.
func (c *Call) rearrangement(t *Tensor) *rearrangement {
	r, n := c.int(1, "upscale_factor", c.int(1, "downscale_factor", c.int(1, "groups", 0))), t.dim()
	if n < 3 || r < 1 {
		return nil
	}
	lead, s := n-3, t.Shape
	m := &rearrangement{shape: slices.Clone(s)}
	tail := s[lead:]
	switch ch, h, w := tail[0], tail[1], tail[2]; {
	case c.Op == "pixel_shuffle" && ch%(r*r) == 0:
		m.split, m.order = []int64{ch / (r * r), r, r, h, w}, []int{0, 3, 1, 4, 2}
		copy(m.shape[lead:], []int64{ch / (r * r), h * r, w * r})
	case c.Op == "pixel_unshuffle" && h%r == 0 && w%r == 0:
		m.split, m.order = []int64{ch, h / r, r, w / r, r}, []int{0, 2, 4, 1, 3}
		copy(m.shape[lead:], []int64{ch * r * r, h / r, w / r})
	case c.Op == "channel_shuffle" && n == 4 && ch%r == 0:
		m.split, m.order = []int64{r, ch / r, h, w}, []int{1, 0, 2, 3}
	default:
		return nil
	}
	m.split = append(slices.Clone(s[:lead]), m.split...)
	for i := range m.order {
		m.order[i] += lead
	}
	m.order = append(ascending(lead), m.order...)
	return m
}

func ascending(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// runRearrangement copies the parts in their new order; backward restores the old one.
func runRearrangement(e *Eager, op string, t *Tensor, m *rearrangement) []*Tensor {
	back := make([]int, len(m.order))
	moved := make([]int64, len(m.order))
	for i, d := range m.order {
		back[d], moved[i] = i, m.split[d]
	}
	in := t.Shape
	o := moveParts(e, op, t, m.split, m.order, m.shape)
	e.record(op+"Backward", []*Tensor{o}, []*Tensor{t}, nil, func(e *Eager, g, _ []*Tensor, _ []bool) []*Tensor {
		return []*Tensor{moveParts(e, op, g[0], moved, back, in)}
	})
	return []*Tensor{o}
}

// moveParts copies t, viewed with split dims in another order, to a new tensor
// that is then viewed in a shape.
func moveParts(e *Eager, op string, t *Tensor, split []int64, order []int, shape []int64) *Tensor {
	whole := unsqueezeTo(e, t, split)
	dims, st := make([]int64, len(order)), make([]int64, len(order))
	for i, d := range order {
		dims[i], st[i] = whole.Shape[d], whole.Strides[d]
	}
	return e.view(e.begin(op, e.view(whole, dims, st, 0)).does("copy").makes(dims, nil, t.DType), shape, contiguousStrides(shape), 0)
}
