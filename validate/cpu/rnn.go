package cpu

import (
	"fmt"
	"math"

	"github.com/memplan/memplan/graph/program"
)

var rnnKernels = map[string]kernel{"_cudnn_rnn": recurrent, "_cudnn_rnn_backward": recurrentBackward, "_cudnn_rnn_flatten_weight": flatten}

// A recurrentCall is a recurrent network, as torch.nn.LSTM, GRU and RNN describe
// theirs. Arrays are row-major: sequences [time, batch, features], states
// [layers x directions, batch, hidden].
type recurrentCall struct {
	cell, layers, dirs, hidden, time, batch, input int
	biases, first                                  bool
	x                                              []float64
	state                                          [][]float64 // h, and c of an LSTM
	params                                         [][]float64
}

// A sweep is one layer in one direction, with what its steps computed.
type sweep struct {
	in, gates          int
	wi, wh, bi, bh     []float64
	reverse            bool
	h0, c0             []float64
	x                  []float64   // of the layer
	act, h, c, hidden  [][]float64 // for each step: activated gates, h and c after it, and the product that a GRU's reset gates
	order              []int       // the steps' indices in time
	dwi, dwh, dbi, dbh []float64
	dh0, dc0, dx       []float64
	recurrent          *recurrentCall
}

// recurrentCall reads the operands from number at: input, states, parameters.
func (r *run) recurrentCall(at int) *recurrentCall {
	c := &recurrentCall{cell: int(r.scalar("cell")), layers: int(r.scalar("layers")), dirs: int(r.scalar("directions")), biases: r.scalar("biases") != 0, first: r.scalar("batch_first") != 0}
	s := r.shape(at)
	c.time, c.batch, c.input = int(s[0]), int(s[1]), int(s[2])
	if c.x = r.all(at); c.first {
		c.time, c.batch = c.batch, c.time
		c.x = swapped(c.x, c.batch, c.time, c.input)
	}
	states := 1
	if c.cell == program.CellLSTM {
		states = 2
	}
	for i := range states {
		c.state = append(c.state, r.all(at+1+i))
	}
	c.hidden = int(r.shape(at + 1)[2])
	for i := at + 1 + states; i < len(r.c.Args); i++ {
		c.params = append(c.params, r.all(i))
	}
	return c
}

// swapped exchanges the first two dims of [a, b, n].
func swapped(x []float64, a, b, n int) []float64 {
	out := make([]float64, len(x))
	for i := range a {
		for j := range b {
			copy(out[(j*a+i)*n:][:n], x[(i*b+j)*n:][:n])
		}
	}
	return out
}

// sweeps lists the layers' directions with their parameters, and buffers for
// their gradients.
func (c *recurrentCall) sweeps() []*sweep {
	gates := map[int]int{program.CellLSTM: 4, program.CellGRU: 3}[c.cell]
	gates = max(gates, 1)
	per := len(c.params) / (c.layers * c.dirs)
	out := make([]*sweep, c.layers*c.dirs)
	for i := range out {
		p := c.params[i*per:][:per]
		s := &sweep{recurrent: c, gates: gates, in: c.input, reverse: i%c.dirs == 1, wi: p[0], wh: p[1]}
		if i >= c.dirs {
			s.in = c.hidden * c.dirs
		}
		if c.biases {
			s.bi, s.bh = p[2], p[3]
		}
		n := c.batch * c.hidden
		if s.h0 = c.state[0][i*n:][:n]; len(c.state) > 1 {
			s.c0 = c.state[1][i*n:][:n]
		}
		out[i] = s
	}
	return out
}

// forward runs all layers and returns the last one's result.
func (c *recurrentCall) forward(list []*sweep) []float64 {
	x := c.x
	for layer := range c.layers {
		y := make([]float64, c.time*c.batch*c.hidden*c.dirs)
		for d, s := range list[layer*c.dirs:][:c.dirs] {
			s.forward(x)
			for k, t := range s.order {
				for b := range c.batch {
					copy(y[((t*c.batch+b)*c.dirs+d)*c.hidden:][:c.hidden], s.h[k][b*c.hidden:][:c.hidden])
				}
			}
		}
		x = y
	}
	return x
}

// linear adds x [batch, n] times w [m, n] transposed, and a bias, to out.
func linear(out, x, w, bias []float64, batch, n, m int) {
	for b := range batch {
		for j := range m {
			sum := out[b*m+j]
			for i, v := range x[b*n:][:n] {
				sum += v * w[j*n+i]
			}
			if bias != nil {
				sum += bias[j]
			}
			out[b*m+j] = sum
		}
	}
}

func logistic(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

func (s *sweep) forward(x []float64) {
	c := s.recurrent
	s.x = x
	h, state := s.h0, s.c0
	width := s.gates * c.hidden
	for k := range c.time {
		t := k
		if s.reverse {
			t = c.time - 1 - k
		}
		s.order = append(s.order, t)
		a, u := make([]float64, c.batch*width), make([]float64, c.batch*width)
		linear(a, x[t*c.batch*s.in:][:c.batch*s.in], s.wi, s.bi, c.batch, s.in, width)
		linear(u, h, s.wh, s.bh, c.batch, c.hidden, width)
		next, cell := make([]float64, len(h)), make([]float64, len(state))
		for b := range c.batch {
			for j := range c.hidden {
				s.step(a[b*width:], u[b*width:], j, b*c.hidden+j, h, state, next, cell)
			}
		}
		h, state = next, cell
		s.act, s.hidden, s.h, s.c = append(s.act, a), append(s.hidden, u), append(s.h, h), append(s.c, state)
	}
}

// step computes hidden unit j, index i in the batch, from the products of input
// and state, and stores the activated gates in a.
func (s *sweep) step(a, u []float64, j, i int, h, state, next, cell []float64) {
	n := s.recurrent.hidden
	switch s.recurrent.cell {
	case program.CellLSTM: // input, forget, candidate, output
		for g := range 4 {
			v := a[g*n+j] + u[g*n+j]
			if g == 2 {
				a[g*n+j] = math.Tanh(v)
			} else {
				a[g*n+j] = logistic(v)
			}
		}
		cell[i] = a[n+j]*state[i] + a[j]*a[2*n+j]
		next[i] = a[3*n+j] * math.Tanh(cell[i])
	case program.CellGRU: // reset, update, candidate
		a[j], a[n+j] = logistic(a[j]+u[j]), logistic(a[n+j]+u[n+j])
		a[2*n+j] = math.Tanh(a[2*n+j] + a[j]*u[2*n+j])
		next[i] = (1-a[n+j])*a[2*n+j] + a[n+j]*h[i]
	case program.CellReLU:
		next[i] = max(a[j]+u[j], 0)
	default:
		next[i] = math.Tanh(a[j] + u[j])
	}
}

// recurrent reads input, first states and parameters; its results are the last
// layer's hidden units and the last states.
func recurrent(r *run) error {
	c := r.recurrentCall(0)
	list := c.sweeps()
	r.save(&r.c.Results[0], c.forward(list))
	for i := range c.state {
		if !r.wants(1 + i) {
			continue
		}
		var last []float64
		for _, s := range list {
			steps := s.h
			if i == 1 {
				steps = s.c
			}
			last = append(last, steps[c.time-1]...)
		}
		r.save(&r.c.Results[1+i], last)
	}
	return nil
}

// recurrentBackward reads the gradients of the result and of the last states,
// and the operands of the forward pass. Its results are the gradients of input,
// first states, and all parameters in a row.
func recurrentBackward(r *run) error {
	states := 1
	if int(r.scalar("cell")) == program.CellLSTM {
		states = 2
	}
	c := r.recurrentCall(1 + states)
	list := c.sweeps()
	y := c.forward(list)
	dy := make([]float64, len(y))
	if r.has(0) {
		dy = r.all(0)
	}
	n := c.batch * c.hidden
	last := make([][]float64, 2)
	for i := range last {
		if last[i] = make([]float64, n*len(list)); i < states && r.has(1+i) {
			last[i] = r.all(1 + i)
		}
	}
	for layer := c.layers - 1; layer >= 0; layer-- {
		var dx []float64
		for d := range c.dirs {
			i := layer*c.dirs + d
			list[i].backward(dy, d, last[0][i*n:][:n], last[1][i*n:][:n])
			if dx == nil {
				dx = make([]float64, len(list[i].dx))
			}
			for k, v := range list[i].dx {
				dx[k] += v
			}
		}
		dy = dx
	}
	r.saveRecurrent(c, list, dy, states)
	return nil
}

// saveRecurrent writes the gradients.
func (r *run) saveRecurrent(c *recurrentCall, list []*sweep, dx []float64, states int) {
	if c.first {
		dx = swapped(dx, c.time, c.batch, c.input)
	}
	var dh, dc, dw []float64
	for _, s := range list {
		dh, dc = append(dh, s.dh0...), append(dc, s.dc0...)
		dw = append(append(dw, s.dwi...), s.dwh...)
		if c.biases {
			dw = append(append(dw, s.dbi...), s.dbh...)
		}
	}
	for i, v := range [][]float64{dx, dh, dc}[:1+states] {
		if r.wants(i) {
			r.save(&r.c.Results[i], v)
		}
	}
	if r.wants(1 + states) {
		r.save(&r.c.Results[1+states], dw)
	}
}

// backward runs the steps from the last to the first. dy is the gradient of the
// layer's result, of which the sweep computed part d.
func (s *sweep) backward(dy []float64, d int, dh, dc []float64) {
	c := s.recurrent
	width := s.gates * c.hidden
	s.dwi, s.dwh = make([]float64, len(s.wi)), make([]float64, len(s.wh))
	s.dbi, s.dbh = make([]float64, width), make([]float64, width)
	s.dx = make([]float64, len(s.x))
	s.dh0, s.dc0 = append([]float64{}, dh...), append([]float64{}, dc...)
	for k := c.time - 1; k >= 0; k-- {
		t, h, state := s.order[k], s.h0, s.c0
		if k > 0 {
			h, state = s.h[k-1], s.c[k-1]
		}
		da, du := make([]float64, c.batch*width), make([]float64, c.batch*width)
		back := make([]float64, len(h))
		for b := range c.batch {
			for j := range c.hidden {
				i := b*c.hidden + j
				g := s.dh0[i] + dy[((t*c.batch+b)*c.dirs+d)*c.hidden+j]
				s.unstep(k, b*width, j, i, g, h, state, da, du, back)
			}
		}
		x := s.x[t*c.batch*s.in:][:c.batch*s.in]
		linearBackward(da, x, s.wi, s.dx[t*c.batch*s.in:][:c.batch*s.in], s.dwi, s.dbi, c.batch, s.in, width)
		linearBackward(du, h, s.wh, back, s.dwh, s.dbh, c.batch, c.hidden, width)
		s.dh0 = back
	}
	if s.c0 == nil {
		s.dc0 = nil
	}
}

// linearBackward adds the gradients of out = x w' + bias to those of x, w and the bias.
func linearBackward(g, x, w, dx, dw, db []float64, batch, n, m int) {
	for b := range batch {
		for j := range m {
			v := g[b*m+j]
			if v == 0 {
				continue
			}
			db[j] += v
			for i := range n {
				dx[b*n+i] += v * w[j*n+i]
				dw[j*n+i] += v * x[b*n+i]
			}
		}
	}
}

// unstep is the gradient of step: g is that of hidden unit j, index i in the
// batch; it sets those of the products of input, da, and state, du, and adds the
// one of the state itself to back.
func (s *sweep) unstep(k, row, j, i int, g float64, h, state, da, du, back []float64) {
	n, a, u := s.recurrent.hidden, s.act[k][row:], s.hidden[k][row:]
	both := func(gate int, v float64) { da[row+gate*n+j], du[row+gate*n+j] = v, v }
	switch s.recurrent.cell {
	case program.CellLSTM:
		in, forget, new, out := a[j], a[n+j], a[2*n+j], a[3*n+j]
		top := math.Tanh(s.c[k][i])
		dc := s.dc0[i] + g*out*(1-top*top)
		both(0, dc*new*in*(1-in))
		both(1, dc*state[i]*forget*(1-forget))
		both(2, dc*in*(1-new*new))
		both(3, g*top*out*(1-out))
		s.dc0[i] = dc * forget
	case program.CellGRU:
		reset, update, new := a[j], a[n+j], a[2*n+j]
		dn := g * (1 - update) * (1 - new*new)
		both(0, dn*u[2*n+j]*reset*(1-reset))
		both(1, g*(h[i]-new)*update*(1-update))
		da[row+2*n+j], du[row+2*n+j] = dn, dn*reset
		back[i] += g * update
	case program.CellReLU:
		if s.h[k][i] > 0 {
			both(0, g)
		}
	default:
		both(0, g*(1-s.h[k][i]*s.h[k][i]))
	}
}

// flatten concatenates the operands.
func flatten(r *run) error {
	var out []float64
	for i := range r.c.Args {
		out = append(out, r.all(i)...)
	}
	if n := r.c.Results[0].Elems(); int64(len(out)) != n {
		return fmt.Errorf("parameters of %d elements, and a buffer of %d", len(out), n)
	}
	r.save(&r.c.Results[0], out)
	return nil
}
