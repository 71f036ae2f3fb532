package validate

import (
	"errors"
	"fmt"

	"github.com/memplan/memplan/planner"
)

// TorchMeasured is the measurement of a user's own training step in PyTorch, as
// python/memplan/_runner.py writes it.
type TorchMeasured struct {
	Error        string         `json:"error"` // why nothing was measured; "" if it was
	Device       string         `json:"device"`
	Torch        string         `json:"torch"`
	Python       string         `json:"python"`
	Batch        int64          `json:"batch"` // of the model's first input, 0 if it has none
	ContextBytes int64          `json:"contextBytes"`
	OutOfMemory  string         `json:"outOfMemory"` // PyTorch's message if memory ran out
	Steps        [][]TorchPhase `json:"steps"`       // the phases of each step, in order
}

// A TorchPhase is the peak memory of a phase of a step, and its time.
type TorchPhase struct {
	Name           string  `json:"name"`
	AllocatedBytes int64   `json:"allocatedBytes"`
	ReservedBytes  int64   `json:"reservedBytes"`
	Ms             float64 `json:"ms"`
}

// TorchPhaseInfo compares a phase of the steps after the first, planned and measured.
type TorchPhaseInfo struct {
	Name           string  `json:"name"`
	PredictedBytes int64   `json:"predictedBytes"` // allocated
	MeasuredBytes  int64   `json:"measuredBytes"`
	PredictedMs    float64 `json:"predictedMs"`
	MeasuredMs     float64 `json:"measuredMs"`
}

// torchTolerance is the tolerated error of the allocated peak, relative to the
// prediction: the product's target for the worst model.
const torchTolerance = 0.02

// JudgeTorch compares what PyTorch took under a plan with the plan. limit is
// what the process may take of the device, in bytes; 0: no limit.
func JudgeTorch(p *planner.Plan, path string, m *TorchMeasured, limit int64) (*Report, error) {
	v := &validation{r: &Report{SchemaVersion: SchemaVersion, Unsupported: []string{}, Checks: []Check{}, Loss: []float64{}}}
	r := v.r
	r.Model = ModelInfo{Path: path, Batch: p.Config.Batch, Precision: p.Config.Precision, Optimizer: p.Config.Optimizer, Nodes: p.Model.Nodes, Segments: len(p.Selection)}
	r.Device = DeviceInfo{Name: m.Device, Kind: "cuda", Driver: "PyTorch " + m.Torch, Notes: []string{"run by " + m.Python}}
	r.Time.PerOp = []OpTime{}
	r.Arena.FrameworkBytes = p.Peak.ReservedBytes
	if m.OutOfMemory != "" {
		v.check("out of memory", 1, 0, m.OutOfMemory)
		return v.judged(), nil
	}
	if len(m.Steps) == 0 {
		return nil, errors.New("no step was measured")
	}
	allocated, reserved := int64(0), int64(0)
	for _, step := range m.Steps {
		for _, ph := range step {
			allocated, reserved = max(allocated, ph.AllocatedBytes), max(reserved, ph.ReservedBytes)
		}
	}
	r.Memory = MemoryInfo{PredictedBytes: p.Peak.ReservedBytes, MeasuredBytes: reserved, ContextBytes: m.ContextBytes}
	if m.Batch > 0 {
		v.check("batch", float64(abs(m.Batch-p.Config.Batch)), 0, fmt.Sprintf("difference of the script's batch, %d, from the plan's, samples", m.Batch))
	}
	v.check("allocated", float64(abs(allocated-p.Peak.AllocatedBytes)), torchTolerance*float64(p.Peak.AllocatedBytes), "difference of the allocated peak from the plan's, bytes")
	v.check("reserved", float64(reserved), float64(p.Peak.UpperBoundBytes), "bytes reserved, and the plan's upper bound")
	if limit > 0 {
		v.check("cap", float64(reserved+m.ContextBytes), float64(limit), "bytes taken of the device, with the context")
	}
	r.torchTimes(p, m)
	return v.judged(), nil
}

// torchTimes compares phases of the steps from the third on, if there are that
// many: the first ones create state and choose kernels.
func (r *Report) torchTimes(p *planner.Plan, m *TorchMeasured) {
	warm := m.Steps[min(2, len(m.Steps)-1):]
	r.Time.PredictedMs = p.Time.StepMs
	peaks := []int64{p.Phases.ForwardPeak, p.Phases.BackwardPeak, p.Phases.OptimizerPeak}
	ms := []float64{p.Time.ForwardMs, p.Time.BackwardMs, p.Time.OptimizerMs}
	for i, ph := range warm[0] {
		info := TorchPhaseInfo{Name: ph.Name}
		if i < len(peaks) {
			info.PredictedBytes, info.PredictedMs = peaks[i], ms[i]
		}
		for _, step := range warm {
			if i < len(step) {
				info.MeasuredBytes = max(info.MeasuredBytes, step[i].AllocatedBytes)
				info.MeasuredMs += step[i].Ms / float64(len(warm))
			}
		}
		r.Time.MeasuredMs += info.MeasuredMs
		r.Phased = append(r.Phased, info)
	}
	r.Time.StepMs = r.Time.MeasuredMs
}
