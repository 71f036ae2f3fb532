package planner

import (
	"fmt"

	"github.com/memplan/memplan/graph/infer"
	"github.com/memplan/memplan/planner/ort"
)

// An Inference is what the intermediate results of an inference need by
// themselves, in bytes: without weights, inputs and outputs, which the caller
// owns.
type Inference struct {
	PlannedBytes int64 `json:"plannedBytes"` // in an arena planned ahead, in the best order of operators found
	FileBytes    int64 `json:"fileBytes"`    // the same in the file's order
	BoundBytes   int64 `json:"boundBytes"`   // no order needs less
	// Runtime is what onnxruntime's arena on the processor takes; nil if it cannot
	// be told.
	Runtime *RuntimeArena `json:"onnxruntime,omitempty"`
}

// A RuntimeArena is what a release of onnxruntime takes for a graph as it stands in
// the file, with one thread.
type RuntimeArena struct {
	Release      string `json:"release"`
	PatternBytes int64  `json:"patternBytes"` // intermediate results, from the second run on
	ArenaBytes   int64  `json:"arenaBytes"`   // what its arena has got from the system by then, outputs and kernels' buffers included
}

// inference looks at an inference's graph; nil if there is none, or it holds
// loops, branches, or values whose sizes are not known.
func (m *Model) inference(j *job, batch int64) (*Inference, error) {
	if len(m.g.Nodes) == 0 {
		return nil, nil
	}
	if err := m.bind(batch, j.cfg.Dims, j.cfg.Shapes); err != nil {
		return nil, err
	}
	p, err := ort.Plan(m.g)
	if err != nil {
		return nil, nil //nolint:nilerr // the graph has no such plan: nothing is said of it
	}
	out := &Inference{PlannedBytes: p.Bytes, FileBytes: p.FileBytes, BoundBytes: p.BoundBytes}
	shapes, err := m.symbols()
	if err != nil {
		return nil, err
	}
	if err := m.bind(batch, j.cfg.Dims, j.cfg.Shapes); err != nil {
		return nil, err
	}
	if u, err := ort.Predict(m.g, shapes); err == nil {
		out.Runtime = &RuntimeArena{Release: ort.Release, PatternBytes: u.PatternBytes, ArenaBytes: u.ArenaBytes}
	}
	return out, nil
}

// symbols returns the shape of each value before any size is bound, "" where it is
// not known. It unbinds the model.
func (m *Model) symbols() ([]string, error) {
	m.bound = binding{}
	if _, err := infer.Infer(m.g, infer.Options{}); err != nil {
		return nil, err
	}
	out := make([]string, len(m.g.Values))
	for i := range out {
		if s := m.g.Values[i].Type.Shape; s != nil {
			out[i] = fmt.Sprint(dimList(s))
		}
	}
	return out, nil
}
