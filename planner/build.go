package planner

import (
	"fmt"

	"github.com/memplan/memplan/graph/train"
)

// Program builds the step that a fixed question is about: its batch is given
// or fixed by the file, its checkpoints are Segments.
func (m *Model) Program(cfg Config) (*train.Build, error) {
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
	return m.build(j, batch, cfg.Segments)
}
