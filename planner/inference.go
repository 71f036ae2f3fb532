package planner

import (
	"errors"
	"fmt"

	"github.com/memplan/memplan/graph/infer"
	"github.com/memplan/memplan/graph/program"
	"github.com/memplan/memplan/planner/ort"
	"github.com/memplan/memplan/planner/profile"
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
	LiveBytes    int64  `json:"liveBytes"`    // the most that live at once of what is in that block
	// What PyTorch takes for the same inference, where the question was about onnxruntime.
	TorchAllocatedBytes int64 `json:"torchAllocatedBytes,omitempty"`
	TorchReservedBytes  int64 `json:"torchReservedBytes,omitempty"`
}

// inference looks at an inference's graph; nil, or without a runtime's arena, for the reason why,
// if it has none: it holds loops, branches, or values whose sizes are not known.
func (m *Model) inference(j *job, batch int64) (_ *Inference, why, err error) {
	if len(m.g.Nodes) == 0 {
		return nil, errors.New("the graph computes nothing"), nil
	}
	if err := m.bind(batch, j.cfg.Dims, j.cfg.Shapes); err != nil {
		return nil, nil, err
	}
	p, why := ort.Plan(m.g)
	if why != nil {
		return nil, why, nil
	}
	out := &Inference{PlannedBytes: p.Bytes, FileBytes: p.FileBytes, BoundBytes: p.BoundBytes}
	shapes, err := m.symbols()
	if err != nil {
		return nil, nil, err
	}
	if err := m.bind(batch, j.cfg.Dims, j.cfg.Shapes); err != nil {
		return nil, nil, err
	}
	u, why := ort.Predict(m.g, shapes)
	if why == nil {
		out.Runtime = &RuntimeArena{Release: ort.Release, PatternBytes: u.PatternBytes, ArenaBytes: u.ArenaBytes, LiveBytes: u.LiveBytes}
	}
	return out, why, nil
}

// OnArena reports whether a question is about onnxruntime's arena on a processor.
func (c *Config) OnArena() bool {
	r, err := profile.FindRuntime(c.Runtime)
	return err == nil && r.Name == profile.ONNXRuntime
}

// arenaRefused says which questions are not about onnxruntime's arena on a processor.
func (c *Config) arenaRefused() error {
	refuse := func(why string) error { return fmt.Errorf("--runtime %s: %s", profile.ONNXRuntime, why) }
	switch {
	case c.Mode != "infer":
		return refuse("it is about inference: give --mode infer, or a release of PyTorch")
	case c.VRAM > 0 || c.GPU != "" || c.BatchMax || c.BatchBest:
		return refuse("it says what the arena on a processor takes, of no card: leave out --vram and --gpu, and give --batch N")
	case c.Precision != "" && c.Precision != profile.Precisions[0].Name:
		return refuse("the library runs the file in the file's types: leave out --precision")
	case c.LoRA != "":
		return refuse("the library runs the file as it stands: leave out --lora")
	}
	return nil
}

// onArena makes a report one about onnxruntime's arena: requested is the most that lives at once
// of the intermediate results, allocated the block that holds them from the second run on,
// reserved the arena, and process the arena and the weights. What PyTorch takes stands beside it.
func (r *Report) onArena() {
	o := r.Inference.Runtime
	o.TorchAllocatedBytes, o.TorchReservedBytes = r.Peak.AllocatedBytes, r.Peak.ReservedBytes
	r.Config.Runtime, r.Config.GPU, r.Config.GPUAssumed = profile.ONNXRuntime, "", false
	r.Peak = Peak{RequestedBytes: o.LiveBytes, AllocatedBytes: o.PatternBytes, ReservedBytes: o.ArenaBytes, ProcessBytes: o.ArenaBytes + r.Model.ParameterBytes,
		UpperBoundBytes: 2 * o.ArenaBytes, Phase: program.Forward.String(), Step: 1}
	low := o.ArenaBytes / 8 // as far off as any of testdata/ort.jsonl
	r.Uncertainty = Uncertainty{LowBytes: low, HighBytes: 2 * o.ArenaBytes, Sources: []UncertaintySource{{Code: "onnxruntime-optimizations", Bytes: o.ArenaBytes, LowBytes: o.ArenaBytes - low,
		Message: "the graph is taken as it stands, and the library's default optimizations change it: of 35 files 21 were within 1%, one took twice as much, transformers half to an eighth"}}}
	r.Phases, r.Time, r.Live, r.Curve, r.SavedBytes = Phases{}, TimeInfo{}, []LiveValue{}, nil, 0
	r.Breakdown = []CategoryBytes{{Category: program.Activations.String(), Bytes: o.PatternBytes}}
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
