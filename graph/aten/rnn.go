package aten

import (
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
)

// An rnn is one call of cuDNN's recurrent networks (aten/src/ATen/native/
// cudnn/RNN.cpp, _cudnn_rnn). Sizes are elements.
type rnn struct {
	cell                               string // lstm, gru, rnn
	layers, hidden, input, time, batch int64
	directions                         int64 // 1 or 2
	bias, dropout                      bool
	first, relu                        bool // the batch is the input's first dim; the cell is rnn_relu
	separate                           bool // parameters are in separate memory, and each call gathers them
	foreign                            bool // states or parameters are not as PyTorch's modules create them
	d                                  graph.DType
}

// setAttrs describes the network to a kernel; args are its operands.
func (r *rnn) setAttrs(k *kernel, args []program.Arg) {
	cell := map[string]float64{"lstm": program.CellLSTM, "gru": program.CellGRU, "rnn": program.CellTanh}[r.cell]
	if r.relu {
		cell = program.CellReLU
	}
	flag := map[bool]float64{true: 1}
	k.scalars(cell, float64(r.layers), float64(r.directions), flag[r.bias], flag[r.first]).attrs().Args = args
	switch {
	case r.dropout:
		k.inexact("dropout between recurrent layers")
	case r.foreign:
		k.inexact("states or parameters that are no PyTorch module's: a recurrent operator of ONNX orders gates and stacks directions in its own way")
	}
}

// places returns the operands for a call's list of tensors.
func places(list []*Tensor) []program.Arg {
	out, next := make([]program.Arg, len(list)), int32(0)
	for i, t := range list {
		if out[i].In = program.Absent; t != nil && t.Storage != program.None {
			out[i].In = next
			next++
		}
	}
	return out
}

// gates is the number of matrices that a cell multiplies its input with.
var gates = map[string]int64{"lstm": 4, "gru": 3, "rnn": 1}

// keptPerUnit is the number of values that a cell keeps per hidden unit for backward;
// all layers but the first also keep their input.
var keptPerUnit = map[string]int64{"lstm": 5, "gru": 6, "rnn": 1}

// matrices returns the number of elements of all layers' matrices, without
// biases.
func (r *rnn) matrices() int64 {
	var n int64
	in := r.input
	for range r.layers {
		n += r.directions * gates[r.cell] * r.hidden * (in + r.hidden)
		in = r.hidden * r.directions
	}
	return n
}

// weights returns the number of elements of all matrices and biases; cuDNN
// reserves room for biases even without any.
func (r *rnn) weights() int64 {
	return r.matrices() + 2*r.layers*r.directions*gates[r.cell]*r.hidden
}

const (
	rnnStream = 8 << 20 // what cuDNN reserves for each layer and direction, in bytes
	rnnState  = 8       // for each sequence
	rnnHead   = 256     // once
)

// An rnnPass is the part of cuDNN's workspace for one algorithm, in elements: for
// each time step and sequence, multiples of the hidden units of a layer, of the
// input, and of the wider of both; for each sequence, multiples of the hidden units
// of all layers.
type rnnPass struct{ hidden, input, wider, states int64 }

func (p rnnPass) elements(r *rnn) int64 {
	return r.time*r.batch*(p.hidden*r.hidden+p.input*r.input+p.wider*max(r.input, r.hidden)) + p.states*r.layers*r.batch*r.hidden
}

// rnnPasses are the algorithms for which the workspace has room: by cell, one row for
// few hidden units, where kernels keep the weights, and one for others; in each, for
// one direction and for two. They were read off 3,035 sizes measured on an H200 with
// cuDNN 9.19 (testdata/rnn.csv.xz), of which they give 3,025 to the byte.
var rnnPasses = map[string][2][2][]rnnPass{
	"rnn":  {{{{12, 2, 1, 6}}, {{15, 2, 4, 14}}}, {{{3, 2, 1, 5}}, {{6, 2, 4, 14}}}},
	"gru":  {{{{17, 2, 1, 6}}, {{20, 2, 4, 14}}}, {{{3, 2, 1, 5}, {4, 1, 0, 5}}, {{6, 2, 4, 14}, {12, 1, 0, 14}}}},
	"lstm": {{{{15, 2, 1, 12}, {21, 1, 0, 8}}, {{18, 2, 4, 26}, {30, 1, 0, 18}}}, {{{3, 2, 1, 11}, {5, 1, 0, 10}}, {{6, 2, 4, 26}, {14, 1, 0, 24}}}},
}

// narrowLimit is the number of hidden units below which cuDNN takes the first row, unless
// the cells are bfloat16.
var narrowLimit = map[string]int64{"rnn": 512, "gru": 200, "lstm": 200}

// workspace returns the bytes of all passes.
func (r *rnn) workspace() int64 {
	row, two := 1, int(r.directions-1)
	if r.d != graph.BFloat16 && r.hidden < narrowLimit[r.cell] {
		row = 0
	}
	var most int64
	for i, p := range rnnPasses[r.cell][row][two] {
		deep := r.layers > 1
		switch {
		case i == 0 && deep && (two == 1 || row == 0): // the results of the layer below
			p.hidden += r.directions
		case i == 1 && deep && two == 0 && r.dropout: // the same, after dropout
			p.hidden++
		}
		n := p.elements(r)
		if i == 0 && deep && two == 0 && row == 1 {
			n -= r.pipelined() * r.batch * r.hidden
		}
		most = max(most, n)
	}
	return rnnStream*r.layers*r.directions + rnnHead + rnnState*r.batch + r.d.Bytes(r.matrices()+most)
}

// pipelined returns the number of time steps for which layers that run as a
// pipeline keep nothing, because they hand on that many at a time.
func (r *rnn) pipelined() int64 {
	steps := int64(2)
	for _, s := range [][2]int64{{1, 32}, {8, 16}, {16, 8}, {64, 4}} {
		if r.batch <= s[0] {
			steps = s[1]
			break
		}
	}
	if r.time >= 128 {
		steps = max(steps, 8)
	}
	return max(r.time-steps*r.layers-max(steps, 8), 0)
}

// reserve returns the bytes that training keeps for backward: the values of the
// cells' equations, one bit for each value that dropout between layers lets
// pass, and 256. Of the 3,035 measured sizes 14 differ, by at most 96.
func (r *rnn) reserve() int64 {
	align := func(n int64) int64 { return (n + 31) / 32 * 32 }
	unit := r.time * r.batch * r.hidden * r.directions
	n := align(r.d.Bytes(unit*((keptPerUnit[r.cell]+1)*r.layers-1))) + 256
	if r.dropout {
		n += (r.layers - 1) * align((unit*r.directions+7)/8)
	}
	return n
}

// separateParams marks a call whose parameters were never gathered into one buffer
// (torch.nn.RNN.flatten_parameters).
const separateParams = "apart"

// rnnCells maps the operators to cells.
var rnnCells = map[string]string{"lstm": "lstm", "gru": "gru", "rnn_tanh": "rnn", "rnn_relu": "rnn"}

// runRNN is lstm.input, gru.input, rnn_tanh.input and rnn_relu.input. The
// arguments are the input, the initial states, the parameters, whether there
// are biases, the layers, the dropout, whether it trains, the directions, and
// whether the batch comes first.
func runRNN(e *Eager, c *Call) []*Tensor {
	x := c.tensor(0, "input")
	if x == nil || x.dim() != 3 || c.Over != "input" && c.Over != "" {
		return nil // packed sequences, and inputs without a batch
	}
	states, params := c.tensors(1, "hx"), c.tensors(2, "params")
	if s := c.tensor(1, "hx"); s != nil {
		states = []*Tensor{s} // one state, not a list
	}
	if len(states) == 0 || len(params) == 0 || slices.Contains(states, nil) || slices.Contains(params, nil) {
		return nil
	}
	first := c.bool(8, "batch_first", false)
	r := &rnn{cell: rnnCells[c.Op], layers: c.int(4, "num_layers", 1), hidden: states[0].Shape[len(states[0].Shape)-1], input: x.Shape[2], time: x.Shape[0], batch: x.Shape[1],
		directions: 1, bias: c.bool(3, "has_biases", true), dropout: c.float(5, "dropout", 0) > 0 && c.bool(6, "train", true) && e.grad, d: x.DType, first: first, relu: c.Op == "rnn_relu", separate: c.bool(-1, separateParams, false)}
	for _, t := range slices.Concat(states, params) {
		r.foreign = r.foreign || t.Storage == program.None
	}
	r.foreign = r.foreign || params[0].dim() != 2
	if c.bool(7, "bidirectional", false) {
		r.directions = 2
	}
	if first {
		r.time, r.batch = r.batch, r.time
	}
	if r.layers < 1 || r.layers > 1<<10 || len(params)%int(r.layers*r.directions) != 0 {
		return nil // an optimizer of ONNX files has folded some of the parameters together
	}
	if params[0].DType.IsFloat() && params[len(params)-1].Shape[0] != states[0].Shape[2] && len(params) == int(r.layers*r.directions*5) {
		return nil // projections
	}
	var flat *Tensor
	if e.Autocast != graph.Undefined {
		r.d = graph.Float16 // in any autocast type (aten/src/ATen/cudnn/AutocastRNN.cpp, _cudnn_rnn_cast_reflatten)
		flat = flatWeights(e, r, params)
		for i := len(states) - 1; i >= 0; i-- {
			states[i] = e.castTo(states[i], r.d)
		}
		x = e.castTo(x, r.d)
	}
	return runCells(e, r, x, flat, states, params, first)
}

// runCells runs the forward pass and records backward. weights is the buffer that
// autocast copied the parameters into, or nil.
func runCells(e *Eager, r *rnn, x, weights *Tensor, states, params []*Tensor, first bool) []*Tensor {
	ws := r.workspace()
	if r.d != graph.Float32 || e.Major != 9 {
		e.Warn("rnn-workspace", "cuDNN's workspace for recurrent networks is as measured on an H200, where one in fifty networks in float16 took other kernels with more")
	}
	if r.dropout {
		e.Warn("rnn-dropout", "the state of cuDNN's random numbers, which dropout between recurrent layers allocates once, is not counted")
	}
	// Parameters in bfloat16 (torch.backends.cudnn.is_acceptable), and those without biases, are never kept in one buffer, so that each call gathers them.
	gather := weights == nil && (r.d == graph.BFloat16 || r.separate || !r.bias)
	// A batch-first input is transposed and then made contiguous for cuDNN.
	steps := x
	if first {
		steps = e.view(x, []int64{x.Shape[1], x.Shape[0], x.Shape[2]}, []int64{x.Strides[1], x.Strides[0], x.Strides[2]}, 0)
	}
	copied := !steps.contiguous()
	list := slices.Concat([]*Tensor{x}, states, partsOf(weights, params))
	k := e.begin("_cudnn_rnn", list...)
	r.setAttrs(k, places(list))
	xc := program.None
	if copied {
		xc = k.temp(x.Bytes(), program.Temporaries)
	}
	y := k.alloc([]int64{r.time, r.batch, r.hidden * r.directions}, nil, r.d)
	ends := make([]*Tensor, len(states))
	for i, s := range states {
		ends[i] = k.alloc(s.Shape, nil, r.d)
	}
	if gather {
		weights = k.alloc([]int64{r.weights()}, nil, r.d)
	}
	work := k.temp(ws, program.Workspace)
	var keep *Tensor
	if e.grad {
		keep = k.alloc([]int64{r.reserve()}, nil, graph.Uint8)
	}
	k.free(work, xc)
	k.attrs().Results = []int8{0, 1, 2}[:1+len(states)] // the reserve is not a result: it can be computed again
	k.flops(2 * r.time * r.batch * r.weights())
	k.end()
	saved := []*Tensor{x, y, keep, weights}
	if weights == nil || gather {
		saved = append(saved, params...)
	}
	for _, t := range states { // the last is released first
		saved = append([]*Tensor{t}, saved...)
	}
	e.record("CudnnRnnBackward0", append([]*Tensor{y}, ends...), slices.Concat([]*Tensor{x}, states, params), saved, func(e *Eager, g, s []*Tensor, need []bool) []*Tensor {
		return rnnBackward(e, r, g, s, need, x, states, params, ws, copied)
	})
	out := append([]*Tensor{y}, ends...)
	if first {
		out[0] = transpose(e, y, 0, 1)
	}
	return out
}

// flatWeights is the buffer that autocast copies all parameters into
// (_cudnn_rnn_cast_reflatten), or nil if they have the type already.
func flatWeights(e *Eager, r *rnn, params []*Tensor) *Tensor {
	if params[0].DType == r.d {
		return nil
	}
	return e.begin("_cudnn_rnn_flatten_weight", params...).makes([]int64{r.weights()}, nil, r.d)
}

// partsOf returns views of the parameters in a buffer that holds all of them in
// order; without a buffer, the parameters.
func partsOf(buffer *Tensor, params []*Tensor) []*Tensor {
	if buffer == nil {
		return params
	}
	out, at := make([]*Tensor, len(params)), int64(0)
	for i, p := range params {
		out[i] = &Tensor{part: true, View: program.View{Storage: buffer.Storage, DType: buffer.DType, Shape: p.Shape, Strides: contiguousStrides(p.Shape), Offset: buffer.Offset + at}}
		at += p.Numel()
	}
	return out
}

// backwardArgs lists the operands of backward in the kernel's order: gradients
// of result and last states, input, first states, parameters. The saved tensors
// are the first states in reverse order, input, result, the reserve, the buffer
// of all parameters and the parameters.
func (r *rnn) backwardArgs(at []program.Arg, grads, states, params int) []program.Arg {
	out := slices.Clone(at[:grads])
	for range 1 + states - grads {
		out = append(out, program.Arg{In: program.Absent})
	}
	saved := at[grads:]
	out = append(out, saved[states])
	for i := range states {
		out = append(out, saved[states-1-i])
	}
	return append(out, saved[max(len(saved)-params, 0):]...)
}

// rnnBackward is _cudnn_rnn_backward: the gradients of input and states, then
// those of the parameters, which are views of one buffer.
func rnnBackward(e *Eager, r *rnn, g, s []*Tensor, need []bool, x *Tensor, states, params []*Tensor, ws int64, copied bool) []*Tensor {
	outs := make([]*Tensor, 1+len(states)+len(params))
	list := slices.Concat(g, s)
	if len(s) == len(states)+4 { // the last is the buffer of all parameters
		list = append(list, partsOf(s[len(s)-1], params)...)
	}
	k := e.begin("_cudnn_rnn_backward", list...)
	r.setAttrs(k, r.backwardArgs(places(list), len(g), len(states), len(params)))
	var zeros []program.StorageID
	for i, t := range states {
		if g[1+i] == nil {
			zeros = append(zeros, k.temp(t.Bytes(), program.Temporaries))
		}
	}
	again := func() program.StorageID {
		if !copied {
			return program.None
		}
		return k.temp(x.Bytes(), program.Temporaries)
	}
	dy := program.None
	xc := again()
	if g[0] != nil && !g[0].contiguous() {
		dy = k.temp(g[0].Bytes(), program.Temporaries)
	}
	dx := k.alloc(x.Shape, nil, r.d)
	if copied && r.first {
		st := contiguousStrides([]int64{x.Shape[1], x.Shape[0], x.Shape[2]})
		dx.Strides = []int64{st[1], st[0], st[2]}
		k.n.Out[0].Strides = dx.Strides
	}
	outs[0] = dx
	for i, t := range states {
		outs[1+i] = k.alloc(t.Shape, nil, r.d)
	}
	var ends []program.StorageID
	for i := range states {
		if t := g[1+i]; t != nil && !t.contiguous() {
			ends = append(ends, k.temp(t.Bytes(), program.Temporaries))
		}
	}
	k.free(k.temp(ws, program.Workspace))
	slices.Reverse(ends)
	k.free(ends...)
	k.free(dy, xc)
	if slices.Contains(need[1+len(states):], true) {
		xc = again()
		if r.bias {
			dw := k.alloc([]int64{r.weights()}, nil, r.d)
			k.free(k.temp(ws, program.Workspace), xc)
			copy(outs[1+len(states):], partsOf(dw, params))
		} else { // cuDNN's buffer includes biases: the others are copied out of it
			k.inexact("gradients of parameters without biases")
			dw := k.temp(r.d.Bytes(r.weights()), program.Temporaries)
			work := k.temp(ws, program.Workspace)
			for i, p := range params {
				outs[1+len(states)+i] = k.alloc(p.Shape, nil, r.d)
			}
			k.free(work, xc, dw)
		}
	}
	slices.Reverse(zeros)
	k.free(zeros...)
	k.attrs().Results = []int8{0, 1, 2, 3}[:min(len(k.outs), 4)]
	if len(k.outs) == 1+len(states) { // no parameter requires a gradient
		k.attrs().Results = append(k.attrs().Results, -1)
	}
	k.flops(4 * r.time * r.batch * r.weights())
	k.end()
	return outs
}

// runFusedCell is one step of torch.nn.GRUCell or LSTMCell on a GPU, after the products
// with its two matrices. Operands are the gates of the input and of the state, the
// state (for an LSTM its cells), and two biases or none
// (aten/src/ATen/native/cuda/RNN.cu). Autograd also saves the gates, for the second
// derivative.
func runFusedCell(e *Eager, c *Call) []*Tensor {
	input, hidden, state := c.need(0, "input_gates"), c.need(1, "hidden_gates"), c.need(2, "hx")
	bias := []*Tensor{c.tensor(3, "input_bias"), c.tensor(4, "hidden_bias")}
	lstm := c.Op == "_thnn_fused_lstm_cell"
	k := e.begin(c.Op, append([]*Tensor{input, hidden, state}, bias...)...).inexact("a fused cell")
	width, results := int64(5), 1
	if lstm {
		width, results = 4, 2
	}
	size := state.Shape[state.dim()-1]
	workspace := k.alloc([]int64{state.Numel() / max(size, 1), width * size}, nil, state.DType)
	var outs []*Tensor
	for range results {
		outs = append(outs, k.alloc(state.Shape, nil, state.DType))
	}
	k.flops(10 * input.Numel()).end()
	saved := []*Tensor{state, bias[1], hidden, bias[0], input}
	if lstm {
		saved = append(saved, outs[1])
	}
	e.record("ThnnFused"+map[bool]string{true: "Lstm", false: "Gru"}[lstm]+"CellBackward0", outs, append([]*Tensor{input, hidden, state}, bias...), append(saved, workspace),
		func(e *Eager, g, _ []*Tensor, _ []bool) []*Tensor {
			return fusedCellBackward(e, c.Op, g, input, state, workspace, bias)
		})
	return append(outs, workspace)
}

// fusedCellBackward makes the gradients of the gates, shared by an LSTM's two operands,
// and of the state, and sums those of the gates for the biases.
func fusedCellBackward(e *Eager, op string, g []*Tensor, input, state, workspace *Tensor, bias []*Tensor) []*Tensor {
	k := e.begin(op+"_backward", append(slices.Clone(g), workspace)...).inexact("a fused cell")
	gates := k.alloc(input.Shape, nil, input.DType)
	both := []*Tensor{gates, gates}
	if op == "_thnn_fused_gru_cell" {
		both[1] = k.alloc(input.Shape, nil, input.DType)
	}
	outs := append(both, k.alloc(state.Shape, nil, state.DType))
	k.flops(10 * input.Numel()).end()
	for i, b := range bias {
		switch {
		case b == nil:
			outs = append(outs, nil)
		case i == 1 && both[0] == both[1]:
			outs = append(outs, outs[3])
		default:
			outs = append(outs, sumTo(e, both[i], b.Shape))
		}
	}
	return outs
}
