package planner

import (
	"fmt"

	"github.com/memplan/memplan/graph/train"
)

// A Step is the program of a question, with the time model of its device.
type Step struct {
	*train.Build
	Time TimeModel
}

// Program builds the step that a fixed question is about: its batch is given
// or fixed by the file, its checkpoints are Segments or those that all or sqrt
// stand for.
func (m *Model) Program(cfg Config) (*Step, error) {
	j, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	if err := m.supported(j); err != nil {
		return nil, err
	}
	if cfg.BatchMax {
		return nil, fmt.Errorf("the batch must be a number")
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
	b, err := m.build(j, batch, segs)
	if err != nil {
		return nil, err
	}
	return &Step{b, j.time}, nil
}
