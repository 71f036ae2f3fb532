package planner

import (
	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/kernel"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/planner/profile"
)

// A TimeModel estimates the time of a node on a device: by a roofline over
// arithmetic and memory traffic, at least the time of a launch, or from
// measurements where Times has them.
type TimeModel struct {
	Device *profile.Device
	TF32   bool   // float32 products other than cuDNN's convolutions use TF32
	Times  *Times // nil: nothing was measured
}

// Efficiencies of the roofline: the share of a device's peak that kernels
// reach, and the host's time to issue them in eager mode. They were set once by
// the steps measured on an H200 with torch 2.11 (TestTimes prints the
// comparison); recomputation overheads are ratios, in which most of the error
// cancels.
const (
	computeEfficiency = 0.65
	memoryEfficiency  = 0.75
	launchSeconds     = 6e-6  // least device time of a kernel: docs/validation.jsonl has 6 to 7 µs for sums and fills of a few bytes
	forwardHost       = 28e-6 // host time of an operator called from Python
	backwardHost      = 16e-6 // host time of an operator called by autograd
	updateHost        = 12e-6 // host time that an optimizer takes per parameter
	updateStart       = 1.2e-3
)

// passesOf returns how often a node reads its operands.
func passesOf(n *program.Node) float64 {
	switch w := kernel.WayOf(n.Op); {
	case w == nil:
		return 1
	case depthwise(n):
		return w.Depthwise
	default:
		return max(w.Passes, 1)
	}
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

// elementBytes returns the factor by which a memory-bound kernel is slower than the
// bytes of its operands imply.
func elementBytes(n *program.Node) float64 {
	k, d := kernel.Find(n.Does()), arithmetic(n)
	if k != nil && k.Float32 && (d == graph.Float16 || d == graph.BFloat16) {
		return 2
	}
	return 1
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

// roofline returns the estimated device time of one node. Library workspaces
// hold operands in another layout: they are written and read once.
func (m *TimeModel) roofline(n *program.Node) float64 {
	if len(n.Out) == 0 && len(n.Events) == 0 && n.Traffic == 0 {
		return 0
	}
	t := launchSeconds
	mem := float64(n.Traffic+2*n.Scratch) * passesOf(n) * elementBytes(n) / (m.Device.Bandwidth * memoryEfficiency)
	if rate := m.rate(n); rate > 0 && n.FLOPs > 0 {
		return t + max(mem, float64(n.FLOPs)/(rate*computeEfficiency))
	}
	return t + mem
}

// rate returns the device's peak for the node's arithmetic, in operations a
// second.
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

// timeOf sums the estimated times of a program's phases: the device's, or the
// host's if issuing the kernels takes longer than running them.
func timeOf(p *program.Program, m *TimeModel, batch int64) TimeInfo {
	var device, host [program.NumPhases]float64
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Only == program.FirstStep {
			continue
		}
		runs := float64(p.Runs(n))
		device[n.Phase] += runs * m.Seconds(n)
		host[n.Phase] += runs * hostSeconds(n)
	}
	ms := func(phases ...program.Phase) float64 {
		var d, h float64
		for _, ph := range phases {
			d, h = d+device[ph], h+host[ph]
		}
		return 1e3 * max(d, h)
	}
	t := TimeInfo{ForwardMs: ms(program.Forward, program.Loss), BackwardMs: ms(program.Backward)}
	if p.Train {
		t.OptimizerMs = 1e3 * (device[program.Update] + updateStart + updateHost*float64(len(p.Carried)))
	}
	t.StepMs = t.ForwardMs + t.BackwardMs + t.OptimizerMs
	t.Sources = m.sources(p)
	if t.StepMs > 0 && batch > 0 {
		t.SamplesPerSecond = float64(batch*int64(max(p.Micros, 1))) / t.StepMs * 1e3
	}
	return t
}

// hostSeconds returns the host's time to start a node.
func hostSeconds(n *program.Node) float64 {
	switch {
	case n.Phase == program.Update:
		return 0
	case n.Phase == program.Backward && !n.Recompute:
		return backwardHost
	}
	return forwardHost
}

// overhead returns the time of a program's recomputation relative to the rest.
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
	return redo / rest
}
