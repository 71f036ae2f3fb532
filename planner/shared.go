package planner

import (
	"fmt"

	"github.com/memplan/memplan/graph/train"
)

// A sharing keeps what answers to questions that differ in their checkpoints alone have in
// common: whether steps fit, the selections of a batch, and searches for the largest. It
// holds no steps: those of a hundred batches would take the memory of a large model.
type sharing struct {
	fits     map[string]bool
	lists    map[string][]train.Segment
	least    map[string]int64
	searched map[string]searchedBatch
}

// A searchedBatch is the outcome of a search for the largest batch.
type searchedBatch struct {
	batch, cap, headroom int64
	info                 BatchInfo
}

// share begins to keep what answers have in common, until the function that it returns is
// called.
func (m *Model) share() (end func()) {
	if m.shared != nil {
		return func() {}
	}
	m.shared = &sharing{map[string]bool{}, map[string][]train.Segment{}, map[string]int64{}, map[string]searchedBatch{}}
	return func() { m.shared = nil }
}

// shared returns what a function computes, or what it did for the same key. Only a model that
// shares keeps it.
func shared[T any](m *Model, table func(s *sharing) map[string]T, compute func() (T, error), key ...any) (T, error) {
	if m.shared == nil {
		return compute()
	}
	at, known := fmt.Sprint(key...), table(m.shared)
	if v, ok := known[at]; ok {
		return v, nil
	}
	v, err := compute()
	if err == nil {
		known[at] = v
	}
	return v, err
}

// of is a job's part of a key: all that answers that share differ in, beside checkpoints.
func (j *job) of() string {
	return fmt.Sprint(j.device.Name, " ", j.cfg.Offload, " ", j.cap, " ", j.hard, " ", j.micros(), " ", j.meshed != nil, " ")
}

func fitting(s *sharing) map[string]bool                  { return s.fits }
func selected(s *sharing) map[string][]train.Segment      { return s.lists }
func leasts(s *sharing) map[string]int64                  { return s.least }
func searchedBatches(s *sharing) map[string]searchedBatch { return s.searched }
