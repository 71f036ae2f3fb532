//go:build cuda

package cuda

import (
	"fmt"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/validate"
)

// recurrentArgs is Recurrent of recurrent.cu.
type recurrentArgs struct {
	batch, hidden, hRow, h0Row, dyRow, daRow       int64
	a, u, bi, bh, h0, c0, h, c, dy, dh, dc, da, du uint64
	cell, dtype                                    int32
}

// sweepArgs is Sweep of recurrent.cu.
type sweepArgs struct {
	r                      recurrentArgs
	w                      uint64
	steps                  int64
	a, u, h, c, dy, da, du int64
}

// sweepUnits is the largest number of hidden units for which one block of
// recurrent.cu runs all steps.
const sweepUnits = 512

// rnnKernels are the kernels of this file.
func rnnKernels(register func(k kernel, names ...string)) {
	typed := func(n *program.Node) error {
		d := n.Out[0].DType
		for i, o := range sketch(n).Args { // the reserve of the forward pass is not an operand
			if o.Kind == validate.OnDevice && o.Tensor.DType != d || !isTraining(d) {
				return fmt.Errorf("%s: operand %d of %v for results of %v", n.Does(), i, o.Tensor.DType, d)
			}
		}
		return nil
	}
	register(kernel{rows: all, accepts: typed, run: recurrent, work: func(r *run) int64 { return newNetwork(r, 0, false).bytes }}, "_cudnn_rnn")
	register(kernel{rows: all, accepts: typed, run: recurrentBackward, work: func(r *run) int64 { return newNetwork(r, 1+cellStates(r), true).bytes }}, "_cudnn_rnn_backward")
	register(kernel{rows: only(nil, []int{0}), run: flatten}, "_cudnn_rnn_flatten_weight")
}

// cellStates returns the number of states of the call's cells.
func cellStates(r *run) int {
	if int(r.scalar("cell")) == program.CellLSTM {
		return 2
	}
	return 1
}

// A network is a call of a recurrent network with its workspace. Sequences are
// [time, batch, features], row-major except for the input, whose first dim may
// be the batch.
type network struct {
	r                                        *run
	cell, states                             int
	layers, dirs, hidden, time, batch, gates int64
	dtype                                    graph.DType
	x                                        *validate.ArenaView
	state                                    []*validate.ArenaView
	sweeps                                   []*rnnSweep
	y                                        []*validate.ArenaView // for each layer
	dh, dc, da, du                           *validate.ArenaView   // backward: of a sweep
	dx                                       []*validate.ArenaView // of the layers' inputs, except the first
	bytes                                    int64
}

// A rnnSweep is a layer in one direction.
type rnnSweep struct {
	wi, wh, bi, bh *validate.ArenaView
	a, u, c        *validate.ArenaView // gates and states of all steps; in a forward pass all sweeps share them, and all steps share u and c
	h0, c0         *validate.ArenaView
	reverse        bool
	column         int64 // in the layer's result
}

// room takes workspace for a row-major tensor.
func (n *network) room(shape ...int64) *validate.ArenaView {
	t := &validate.ArenaView{At: n.r.c.Work.At + n.bytes, DType: n.dtype, Shape: shape, Strides: validate.RowMajor(shape)}
	n.bytes += padded(t.DType.Bytes(t.Elems()))
	return t
}

// stepRoom takes workspace for every step, or for one that all steps share.
func (n *network) stepRoom(each bool, shape ...int64) *validate.ArenaView {
	if each {
		return n.room(append([]int64{n.time}, shape...)...)
	}
	t := n.room(append([]int64{1}, shape...)...)
	t.Shape[0], t.Strides[0] = n.time, 0
	return t
}

// straightened returns a row-major tensor with row-major strides also in dims
// of a single element, nil for nil.
func straightened(t *validate.ArenaView) *validate.ArenaView {
	if t == nil {
		return nil
	}
	return part(t, t.Shape, validate.RowMajor(t.Shape), 0)
}

// arg and result return those of the call with row-major strides.
func (n *network) arg(i int) *validate.ArenaView    { return straightened(n.r.arg(i)) }
func (n *network) result(i int) *validate.ArenaView { return straightened(n.r.result(i)) }

// at returns element i of a tensor's first dim.
func at(t *validate.ArenaView, i int64) *validate.ArenaView {
	return part(t, t.Shape[1:], t.Strides[1:], i*t.Strides[0])
}

// newNetwork reads the operands from index first on: input, states, parameters;
// back is set if everything is kept for backward.
func newNetwork(r *run, first int, back bool) *network {
	n := &network{r: r, cell: int(r.scalar("cell")), states: cellStates(r), layers: int64(r.scalar("layers")), dirs: int64(r.scalar("directions")), gates: 1}
	switch n.cell {
	case program.CellLSTM:
		n.gates = 4
	case program.CellGRU:
		n.gates = 3
	}
	x := n.arg(first)
	n.dtype, n.x = x.DType, x
	if r.scalar("batch_first") != 0 {
		n.x = turned(x)
	}
	n.time, n.batch = n.x.Shape[0], n.x.Shape[1]
	for i := range n.states {
		n.state = append(n.state, n.arg(first+1+i))
	}
	n.hidden = n.state[0].Shape[2]
	params := r.c.Args[first+1+n.states:]
	per := len(params) / int(n.layers*n.dirs)
	width := n.gates * n.hidden
	for i := range n.layers * n.dirs {
		p := params[int(i)*per:]
		s := &rnnSweep{wi: straightened(&p[0].Tensor), wh: straightened(&p[1].Tensor), reverse: i%n.dirs == 1, column: i % n.dirs * n.hidden, h0: at(n.state[0], i)}
		if r.scalar("biases") != 0 {
			s.bi, s.bh = straightened(&p[2].Tensor), straightened(&p[3].Tensor)
		}
		if n.states == 2 {
			s.c0 = at(n.state[1], i)
		}
		if back || i == 0 {
			s.a, s.u = n.room(n.time, n.batch, width), n.stepRoom(back, n.batch, width)
			if n.states == 2 {
				s.c = n.stepRoom(back, n.batch, n.hidden)
			}
		} else {
			s.a, s.u, s.c = n.sweeps[0].a, n.sweeps[0].u, n.sweeps[0].c
		}
		n.sweeps = append(n.sweeps, s)
	}
	for layer := range n.layers {
		if !back && layer == n.layers-1 {
			n.y = append(n.y, n.result(0))
			break
		}
		n.y = append(n.y, n.room(n.time, n.batch, n.hidden*n.dirs))
	}
	if back {
		n.roomBack(width)
	}
	return n
}

// roomBack takes workspace for gradients.
func (n *network) roomBack(width int64) {
	n.dh, n.dc = n.room(n.batch, n.hidden), n.room(n.batch, n.hidden)
	n.da, n.du = n.room(n.time, n.batch, width), n.room(n.time, n.batch, width)
	for range n.layers - 1 {
		n.dx = append(n.dx, n.room(n.time, n.batch, n.hidden*n.dirs))
	}
}

// turned exchanges the first two dims.
func turned(t *validate.ArenaView) *validate.ArenaView {
	return part(t, []int64{t.Shape[1], t.Shape[0], t.Shape[2]}, []int64{t.Strides[1], t.Strides[0], t.Strides[2]}, 0)
}

// flipped2 views a matrix transposed.
func flipped2(t *validate.ArenaView) *validate.ArenaView {
	return part(t, []int64{t.Shape[1], t.Shape[0]}, []int64{t.Strides[1], t.Strides[0]}, 0)
}

// repeated views a matrix as a batch of copies.
func repeated(t *validate.ArenaView, n int64) *validate.ArenaView {
	return part(t, append([]int64{n}, t.Shape...), append([]int64{0}, t.Strides...), 0)
}

// input returns a layer's input.
func (n *network) input(layer int64) *validate.ArenaView {
	if layer == 0 {
		return n.x
	}
	return n.y[layer-1]
}

// columns returns a sweep's part of a layer's result.
func (n *network) columns(y *validate.ArenaView, s *rnnSweep) *validate.ArenaView {
	return part(y, []int64{n.time, n.batch, n.hidden}, y.Strides, s.column)
}

// place returns the index in time of step k of a sweep, and of the one before
// it.
func (n *network) place(s *rnnSweep, k int64) (now, before int64) {
	if s.reverse {
		return n.time - 1 - k, n.time - k
	}
	return k, k - 1
}

// forward runs all layers.
func (n *network) forward() error {
	for i, s := range n.sweeps {
		layer := int64(i) / n.dirs
		if err := multiply(n.r, addend{alpha: 1}, n.input(layer), repeated(flipped2(s.wi), n.time), s.a); err != nil {
			return err
		}
		if err := n.steps(s, n.columns(n.y[layer], s)); err != nil {
			return err
		}
		if err := n.ends(int64(i), s, n.columns(n.y[layer], s)); err != nil {
			return err
		}
	}
	return nil
}

// whole reports whether one block for each sample runs all steps: with more units,
// or more samples than blocks run concurrently, products are faster.
func (n *network) whole() bool { return n.hidden <= sweepUnits && n.batch <= 4*n.r.d.sms }

// steps runs all steps of a sweep forward.
func (n *network) steps(s *rnnSweep, y *validate.ArenaView) error {
	if n.whole() {
		a := n.sweepArgs(s, y)
		return launch(n.r.d, "recurrent", "recurrent_sweep", grid{x: n.batch, tx: sweepUnits}, &a)
	}
	for k := range n.time {
		if err := n.step(s, y, k); err != nil {
			return err
		}
	}
	return nil
}

// sweepArgs describe all steps of a sweep forward.
func (n *network) sweepArgs(s *rnnSweep, y *validate.ArenaView) sweepArgs {
	first, _ := n.args(s, y, 0)
	a := sweepArgs{r: first, w: n.r.ptr(s.wh), steps: n.time, a: n.next(s, s.a), u: n.next(s, s.u), h: n.next(s, y)}
	if s.c != nil {
		a.c = n.next(s, s.c)
	}
	return a
}

// next returns the distance, in elements, of a sequence's next step in the order of
// a sweep.
func (n *network) next(s *rnnSweep, t *validate.ArenaView) int64 {
	if s.reverse {
		return -t.Strides[0]
	}
	return t.Strides[0]
}

// args describes step k of a sweep; y is its part of the layer's result.
func (n *network) args(s *rnnSweep, y *validate.ArenaView, k int64) (a recurrentArgs, before *validate.ArenaView) {
	now, prev := n.place(s, k)
	r := n.r
	before = s.h0
	a = recurrentArgs{batch: n.batch, hidden: n.hidden, hRow: y.Strides[1], a: r.ptr(at(s.a, now)), u: r.ptr(at(s.u, now)), bi: r.ptr(s.bi), bh: r.ptr(s.bh), c0: r.ptr(s.c0),
		h: r.ptr(at(y, now)), cell: int32(n.cell), dtype: dtypes[n.dtype]}
	if k > 0 {
		before = at(y, prev)
	}
	if s.c != nil {
		a.c = r.ptr(at(s.c, now))
		if k > 0 {
			a.c0 = r.ptr(at(s.c, prev))
		}
	}
	a.h0, a.h0Row = r.ptr(before), before.Strides[0]
	return a, before
}

// step runs step k of a sweep and writes its output to y.
func (n *network) step(s *rnnSweep, y *validate.ArenaView, k int64) error {
	a, before := n.args(s, y, k)
	now, _ := n.place(s, k)
	if err := multiply(n.r, addend{alpha: 1}, before, flipped2(s.wh), at(s.u, now)); err != nil {
		return err
	}
	return launch(n.r.d, "recurrent", "recurrent_step", along(n.batch*n.hidden), &a)
}

// ends copies a sweep's last states to the results of a forward pass.
func (n *network) ends(i int64, s *rnnSweep, y *validate.ArenaView) error {
	if n.dh != nil {
		return nil
	}
	last, _ := n.place(s, n.time-1)
	for j, from := range []*validate.ArenaView{y, s.c}[:n.states] {
		if to := n.result(1 + j); to != nil {
			if err := n.r.copyTo(at(to, i), at(from, last)); err != nil {
				return err
			}
		}
	}
	return nil
}

// inWork returns an error if the plan has less memory than the network needs.
func (n *network) inWork() error {
	if n.bytes > n.r.c.Work.Bytes {
		return fmt.Errorf("the network works in %d bytes, and the plan has %d for it: give it what Device.Work asks for", n.bytes, n.r.c.Work.Bytes)
	}
	if n.time == 0 || n.batch == 0 {
		return fmt.Errorf("a sequence of %v", n.x.Shape)
	}
	return nil
}

// recurrent reads input, first states and parameters; its results are the last
// layer's hidden units and the last states.
func recurrent(r *run) error {
	n := newNetwork(r, 0, false)
	if err := n.inWork(); err != nil {
		return err
	}
	return n.forward()
}

// recurrentBackward reads the gradients of the result and of the last states, and
// the forward pass's operands; the forward pass runs again. Its results are the
// gradients of input, first states, and all parameters in a row.
func recurrentBackward(r *run) error {
	n := newNetwork(r, 1+cellStates(r), true)
	if err := n.inWork(); err != nil {
		return err
	}
	if err := n.forward(); err != nil {
		return err
	}
	offsets, total := make([]int64, len(n.sweeps)), int64(0)
	for i, s := range n.sweeps {
		offsets[i] = total
		total += s.wi.Elems() + s.wh.Elems()
		if s.bi != nil {
			total += s.bi.Elems() + s.bh.Elems()
		}
	}
	dy := n.arg(0)
	for layer := n.layers - 1; layer >= 0; layer-- {
		dx := n.inputGradient(layer)
		for d := range n.dirs {
			i := layer*n.dirs + d
			if err := n.backward(i, dy, dx); err != nil {
				return err
			}
			if err := n.weights(i, offsets[i]); err != nil {
				return err
			}
		}
		dy = dx
	}
	return nil
}

// inputGradient returns the destination of a layer's input gradient, nil if it
// is not wanted.
func (n *network) inputGradient(layer int64) *validate.ArenaView {
	if layer > 0 {
		return n.dx[layer-1]
	}
	dx := n.result(0)
	if dx != nil && n.r.scalar("batch_first") != 0 {
		dx = turned(dx)
	}
	return dx
}

// gateGradients returns the destination of the gradients of a layer's gates: in the
// order of its input, so that both can be viewed as matrices.
func (n *network) gateGradients(layer int64) *validate.ArenaView {
	if layer == 0 && n.r.scalar("batch_first") != 0 {
		t := *n.da
		t.Shape = []int64{n.batch, n.time, n.da.Shape[2]}
		t.Strides = validate.RowMajor(t.Shape)
		return turned(&t)
	}
	return n.da
}

// backward runs a sweep's steps from the last to the first, and adds the gradient
// of the layer's input.
func (n *network) backward(i int64, dy, dx *validate.ArenaView) error {
	r, s, layer := n.r, n.sweeps[i], i/n.dirs
	for j, to := range []*validate.ArenaView{n.dh, n.dc}[:n.states] {
		from := number(0)
		if t := n.arg(1 + j); t != nil {
			from = onDevice(at(t, i))
		}
		if err := pointwise(r, "copy", to, [4]float64{}, from); err != nil {
			return err
		}
	}
	y, da := n.columns(n.y[layer], s), n.gateGradients(layer)
	if dy != nil {
		dy = n.columns(dy, s)
	}
	if err := n.unsteps(s, y, da, dy); err != nil {
		return err
	}
	for j, from := range []*validate.ArenaView{n.dh, n.dc}[:n.states] {
		if to := n.result(1 + j); to != nil {
			if err := r.copyTo(at(to, i), from); err != nil {
				return err
			}
		}
	}
	if dx == nil {
		return nil
	}
	to := addend{alpha: 1}
	if i%n.dirs > 0 {
		to.tensor, to.beta = dx, 1
	}
	return multiply(r, to, da, repeated(s.wi, n.time), dx)
}

// unsteps runs all steps of a sweep backward.
func (n *network) unsteps(s *rnnSweep, y, da, dy *validate.ArenaView) error {
	r := n.r
	if n.whole() {
		a := n.sweepArgs(s, y)
		n.gradients(&a.r, s, da, dy, 0)
		a.da, a.du = n.next(s, da), n.next(s, n.du)
		if dy != nil {
			a.dy = n.next(s, dy)
		}
		return launch(r.d, "recurrent", "recurrent_unsweep", grid{x: n.batch, tx: sweepUnits}, &a)
	}
	for k := n.time - 1; k >= 0; k-- {
		a, _ := n.args(s, y, k)
		n.gradients(&a, s, da, dy, k)
		if err := launch(r.d, "recurrent", "recurrent_unstep", along(n.batch*n.hidden), &a); err != nil {
			return err
		}
		now, _ := n.place(s, k)
		if err := multiply(r, addend{tensor: n.dh, beta: 1, alpha: 1}, at(n.du, now), s.wh, n.dh); err != nil {
			return err
		}
	}
	return nil
}

// gradients adds to the description of step k what backward needs.
func (n *network) gradients(a *recurrentArgs, s *rnnSweep, da, dy *validate.ArenaView, k int64) {
	r := n.r
	now, _ := n.place(s, k)
	a.dh, a.dc, a.da, a.du, a.daRow = r.ptr(n.dh), r.ptr(n.dc), r.ptr(at(da, now)), r.ptr(at(n.du, now)), da.Strides[1]
	if dy != nil {
		g := at(dy, now)
		a.dy, a.dyRow = r.ptr(g), g.Strides[0]
	}
}

// matrix views a sequence with its first two dims as one.
func matrix(t *validate.ArenaView) *validate.ArenaView {
	if t.Strides[0] < t.Strides[1] {
		t = turned(t)
	}
	return part(t, []int64{t.Shape[0] * t.Shape[1], t.Shape[2]}, []int64{t.Strides[1], t.Strides[2]}, 0)
}

// weights makes the gradients of a sweep's parameters, at an offset of the
// result.
func (n *network) weights(i, offset int64) error {
	r, s, layer := n.r, n.sweeps[i], i/n.dirs
	out := n.result(1 + n.states)
	if out == nil {
		return nil
	}
	next := func(shape []int64) *validate.ArenaView {
		t := part(out, shape, validate.RowMajor(shape), offset)
		offset += t.Elems()
		return t
	}
	da := matrix(n.gateGradients(layer))
	if err := multiply(r, addend{alpha: 1}, flipped2(da), matrix(n.input(layer)), next(s.wi.Shape)); err != nil {
		return err
	}
	dw := next(s.wh.Shape)
	first, _ := n.place(s, 0)
	if err := multiply(r, addend{alpha: 1}, flipped2(at(n.du, first)), s.h0, dw); err != nil {
		return err
	}
	if n.time > 1 { // all other steps have the state of a neighbour in time
		y := n.columns(n.y[layer], s)
		from, to := int64(0), int64(1)
		if s.reverse {
			from, to = 1, 0
		}
		steps := func(t *validate.ArenaView, i int64) *validate.ArenaView {
			return matrix(part(t, []int64{n.time - 1, t.Shape[1], t.Shape[2]}, t.Strides, i*t.Strides[0]))
		}
		if err := multiply(r, addend{tensor: dw, beta: 1, alpha: 1}, flipped2(steps(n.du, to)), steps(y, from), dw); err != nil {
			return err
		}
	}
	if s.bi == nil {
		return nil
	}
	if err := reduce(r, redSum, next(s.bi.Shape), da, []int64{0}); err != nil {
		return err
	}
	return reduce(r, redSum, next(s.bh.Shape), matrix(n.du), []int64{0})
}

// flatten concatenates the operands.
func flatten(r *run) error {
	out, at := r.result(0), int64(0)
	for i := range r.c.Args {
		t := r.arg(i)
		if t == nil || at+t.Elems() > out.Elems() {
			return fmt.Errorf("parameter %d of a buffer of %d elements", i, out.Elems())
		}
		if err := r.copyTo(part(out, t.Shape, validate.RowMajor(t.Shape), at*out.Strides[0]), t); err != nil {
			return err
		}
		at += t.Elems()
	}
	return nil
}
