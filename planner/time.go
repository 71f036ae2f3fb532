package planner

import (
	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/planner/profile"
)

// A TimeModel estimates the time of a node on a device: by a roofline over
// arithmetic and memory traffic, at least the time of a launch, or from
// measurements where Times has them.
type TimeModel struct {
	Device   *profile.Device
	Autocast bool    // operators run under torch.autocast, which the host takes time for
	TF32     bool    // float32 products other than cuDNN's convolutions use TF32
	Times    *Times  // nil: nothing was measured
	Host     float64 // of copies to the host and back, bytes per second
}

// depthwise reports whether a node is a convolution, or the backward of one,
// with one channel in each group.
func depthwise(n *program.Node) bool {
	if n.Attrs == nil || n.Attrs.Conv == nil || n.Attrs.Conv.Groups < 2 {
		return false
	}
	for _, t := range n.In { // the weight is the operand with one channel
		if len(t.Shape) > 2 && t.Shape[1] == 1 {
			return true
		}
	}
	return false
}

// Seconds returns the device time of one node: measured, or estimated.
func (m *TimeModel) Seconds(n *program.Node) float64 {
	t := m.roofline(n)
	if m.Times == nil || t == 0 {
		return t
	}
	if s, from := m.Times.seconds(m, n); from != fromRoofline {
		return s
	}
	return t
}

// roofline returns the estimated device time of one node.
func (m *TimeModel) roofline(n *program.Node) float64 {
	if len(n.Out) == 0 && (len(n.Events) == 0 || len(n.Copies) > 0) && n.Traffic == 0 {
		return 0
	}
	return paces[paceOf(n)](&work{Node: n, m: m, half: isHalf(arithmetic(n))})
}

func isHalf(d graph.DType) bool { return d == graph.Float16 || d == graph.BFloat16 }

// rate is the device's peak for the node's arithmetic, in operations a second.
func (m *TimeModel) rate(n *program.Node) float64 {
	switch d := arithmetic(n); {
	case n.Unit == program.Vector:
		return m.Device.FP32
	case d == graph.Float16, d == graph.BFloat16 && m.Device.BF16:
		return m.Device.Half
	case d == graph.Float32 && m.Device.TF32 > 0 && (n.Unit == program.Convolution || m.TF32):
		return m.Device.TF32
	}
	return m.Device.FP32
}

// A clock runs a step: the host issues its kernels one after the other, the device runs
// them in that order, each when the one before it has ended and the host has issued it.
type clock struct{ host, device float64 } // seconds since the step began

func (c *clock) run(host, device float64, runs int) {
	for range min(runs, 2) {
		c.host += host
		c.device = max(c.device, c.host) + device
	}
	if runs > 2 { // all alike: the slower of the two sets the pace
		more := float64(runs-2) * max(host, device)
		c.host, c.device = c.host+float64(runs-2)*host, c.device+more
	}
}

// A link is the stream for copies between a card and its host: one after the other, each
// after the node that it follows.
type link struct {
	rate float64
	free float64           // when the copies so far end
	ends map[int32]float64 // by ticket
}

// await makes the device wait for a node's tickets.
func (l *link) await(c *clock, n *program.Node) {
	for _, t := range n.Awaits {
		c.device = max(c.device, l.ends[t])
	}
}

// begin starts the copies that follow a node.
func (l *link) begin(c *clock, n *program.Node, p *program.Program) {
	for _, x := range n.Copies {
		l.free = max(l.free, c.device) + float64(p.Storages[x.Storage].Bytes)/l.rate
		l.ends[x.Ticket] = l.free
	}
}

// running runs a step, and returns when each phase ends.
func running(p *program.Program, m *TimeModel) ([program.NumPhases]float64, clock) {
	c := clock{host: stepHost}
	var ends [program.NumPhases]float64
	l := link{rate: m.Host, ends: map[int32]float64{}}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Only == program.FirstStep {
			continue
		}
		l.await(&c, n)
		if s := m.Seconds(n); s > 0 {
			c.run(m.hostSeconds(n), s+gapSeconds, p.Runs(n))
		}
		l.begin(&c, n, p)
		if n.Phase == program.Update && ends[n.Phase] == 0 {
			c.host += updateHost + parameterHost*float64(len(p.Carried))
		}
		ends[n.Phase] = max(c.device, c.host)
	}
	return ends, c
}

// timeOf is how long a program takes, by phases: until the device has ended each.
func timeOf(p *program.Program, m *TimeModel, batch int64) TimeInfo {
	ends, c := running(p, m)
	forward := max(ends[program.Forward], ends[program.Loss])
	backward, step := max(ends[program.Backward], forward), max(c.device, c.host)
	t := TimeInfo{ForwardMs: 1e3 * forward, BackwardMs: 1e3 * (backward - forward), StepMs: 1e3 * step}
	if p.Train {
		t.OptimizerMs = 1e3 * (step - backward)
	} else {
		t.ForwardMs, t.BackwardMs = t.StepMs, 0
	}
	t.Sources = m.sources(p)
	if t.StepMs > 0 && batch > 0 {
		t.SamplesPerSecond = float64(batch*int64(max(p.Micros, 1))) / t.StepMs * 1e3
	}
	return t
}

// overhead returns the share of a program's time that recomputation, and waiting for copies
// to the host and back, take above the rest.
func overhead(p *program.Program, m *TimeModel) float64 {
	var redo, rest float64
	for i := range p.Nodes {
		n := &p.Nodes[i]
		switch s := float64(p.Runs(n)) * m.Seconds(n); {
		case n.Only == program.FirstStep:
		case n.Recompute:
			redo += s
		default:
			rest += s
		}
	}
	if rest == 0 {
		return 0
	}
	return (redo + stall(p, m)) / rest
}
