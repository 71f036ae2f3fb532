package planner

import (
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/planner/profile"
)

// A TimeModel estimates how long a node runs on a device: a roofline over
// arithmetic and memory traffic, above the time that a launch takes.
type TimeModel struct {
	Device *profile.Device
	TF32   bool // float32 products other than convolutions use TF32
}

// Efficiencies of the roofline: the part of a device's peak that kernels reach,
// fitted to nothing; typical of cuBLAS, cuDNN and elementwise kernels on large
// operands.
const (
	computeEfficiency = 0.65
	memoryEfficiency  = 0.80
	launchSeconds     = 4e-6 // host and device overhead of one kernel
)

// Seconds returns the estimated time of one node.
func (m *TimeModel) Seconds(n *program.Node) float64 {
	if len(n.Out) == 0 && len(n.Events) == 0 && n.Traffic == 0 {
		return 0
	}
	t := launchSeconds
	mem := float64(n.Traffic) / (m.Device.Bandwidth * memoryEfficiency)
	if rate := m.rate(n); rate > 0 && n.FLOPs > 0 {
		return t + max(mem, float64(n.FLOPs)/(rate*computeEfficiency))
	}
	return t + mem
}

// rate is the device's peak for the node's arithmetic, in operations a second.
func (m *TimeModel) rate(n *program.Node) float64 {
	d := graph.Float32
	for _, t := range n.In {
		if t.DType.IsFloat() {
			d = t.DType
		}
	}
	product := strings.Contains(n.Op, "mm") || strings.Contains(n.Op, "attention")
	conv := strings.Contains(n.Op, "conv")
	switch {
	case !product && !conv:
		return m.Device.FP32
	case d == graph.Float16, d == graph.BFloat16 && m.Device.BF16:
		return m.Device.Half
	case d == graph.Float32 && m.Device.TF32 > 0 && (conv && n.Op != "_conv_depthwise2d" || m.TF32):
		return m.Device.TF32
	}
	return m.Device.FP32
}

// timeOf sums the estimated times of a program's phases.
func timeOf(p *program.Program, m *TimeModel, batch int64) TimeInfo {
	var t TimeInfo
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Only == program.FirstStep {
			continue
		}
		ms := m.Seconds(n) * 1e3
		switch n.Phase {
		case program.Forward, program.Loss:
			t.ForwardMs += ms
		case program.Backward:
			t.BackwardMs += ms
		case program.Update:
			t.OptimizerMs += ms
		}
	}
	t.StepMs = t.ForwardMs + t.BackwardMs + t.OptimizerMs
	if t.StepMs > 0 && batch > 0 {
		t.SamplesPerSecond = float64(batch) / t.StepMs * 1e3
	}
	return t
}

// overhead returns the share of a program's time that recomputation takes
// above the rest.
func overhead(p *program.Program, m *TimeModel) float64 {
	var redo, rest float64
	for i := range p.Nodes {
		n := &p.Nodes[i]
		switch s := m.Seconds(n); {
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
