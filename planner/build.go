package planner

import (
	"errors"
	"fmt"
	"slices"

	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/graph/train"
)

// A Step is the program of a question, with the time model of its device.
type Step struct {
	*train.Build
	Time TimeModel
}

// Program builds the step of a fixed question: its batch is given or fixed by
// the file, its checkpoints are Segments or those of "all" or "sqrt", or its
// Schedule is given.
func (m *Model) Program(cfg Config) (*Step, error) {
	j, err := m.resolve(cfg)
	if err != nil {
		return nil, err
	}
	if err := m.supported(j); err != nil {
		return nil, err
	}
	if cfg.BatchMax {
		return nil, fmt.Errorf("the batch must be a number")
	}
	if j.meshed != nil {
		return nil, fmt.Errorf("a step on %s runs under PyTorch's torchrun, not on one device", j.meshed.Mesh)
	}
	batch, err := m.fixedBatch(j)
	if err != nil {
		return nil, err
	}
	segs := cfg.Segments
	if j.train && (cfg.Checkpoint == "all" || cfg.Checkpoint == "sqrt") {
		s, err := m.selector(j, batch)
		if err != nil {
			return nil, err
		}
		if segs = s.problem.All(); cfg.Checkpoint == "sqrt" {
			segs = s.problem.Sqrt()
		}
	}
	if j.train && IsSetting(cfg.Checkpoint) {
		if segs, err = m.segmentsOf(j, batch, cfg.Checkpoint); err != nil {
			return nil, err
		}
	}
	if _, hosted := j.cfg.offloads(); hosted || slices.ContainsFunc(segs, func(s train.Segment) bool { return s.Offload }) {
		return nil, errors.New("the plan keeps part of the step in the host's memory, which memplan's executor does not: give --engine torch, whose script applies the plan")
	}
	b, err := plannedStep(func(s []train.Segment) (*train.Build, error) { return m.build(j, batch, s) }, j, segs, cfg.Schedule)
	if err != nil {
		return nil, err
	}
	if len(cfg.Schedule) > 0 {
		b.Forward = lastForward(b.Program)
	}
	return &Step{b, j.time}, nil
}

// lastForward is the last node before the loss.
func lastForward(p *program.Program) int32 {
	last := int32(len(p.Nodes) - 1)
	for i := range p.Nodes {
		if p.Nodes[i].Phase > program.Forward {
			return int32(i - 1)
		}
	}
	return last
}
