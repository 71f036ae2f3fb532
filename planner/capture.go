package planner

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/infer"
	"github.com/memplan/memplan/graph/lift"
	"github.com/memplan/memplan/planner/profile"
)

// A capture is the record of the model's code in its file, with the run that the
// question is about.
type capture struct {
	*lift.Capture
	index   int    // variant, -1 for none
	run     string // "train fp32"
	missing string // why that run is missing
	alone   bool   // the file has no other graph
	checks  map[string]checked
}

// readCapture decodes the capture of a file; nil if it has none.
func readCapture(g *graph.Graph) (*capture, error) {
	for _, p := range g.Model.Meta {
		if p.Key != lift.CaptureKey {
			continue
		}
		c, err := lift.ReadCapture(p.Value)
		if err != nil {
			return nil, fmt.Errorf("the capture in the file's metadata, %s: %w", lift.CaptureKey, err)
		}
		return &capture{Capture: c, index: -1, alone: len(g.Nodes) == 0, checks: map[string]checked{}}, nil
	}
	return nil, nil
}

// asked identifies the run, by which bindings differ.
func (c *capture) asked() string {
	if c == nil {
		return ""
	}
	return c.run
}

// ask chooses the run of a question's mode and precision. A run that PyTorch
// refuses is an error; if there is none, the file's graph is used.
func (c *capture) ask(j *job) error {
	if c == nil {
		return nil
	}
	mode, precision := j.cfg.Mode, j.precision.Name
	c.run, c.missing = mode+" "+precision, ""
	index, ok, err := c.Variant(mode, precision)
	if err != nil {
		if _, fine, why := c.Variant(mode, "fp32"); fine && why == nil {
			return fmt.Errorf("the model does not run in %s, %s: PyTorch says: %w", mode, precision, err)
		}
		index, ok = -1, false
	}
	if c.index = index; !ok {
		c.missing = fmt.Sprintf("the capture has no run in %s, %s (it has: %s)", mode, precision, cmp.Or(strings.Join(c.Ran(), ", "), "none"))
		if err != nil {
			c.missing += ": " + err.Error()
		}
		if c.alone {
			return fmt.Errorf("%s, and the file has no graph: export it again with that precision", c.missing)
		}
	}
	return nil
}

// bindCapture lifts the capture's run, if there is one. Inputs' shapes come from
// the file's graph or, if that cannot be inferred, from its inputs alone.
func (m *Model) bindCapture(batch int64, dims map[string]int64, shapes map[string]graph.Shape) (done bool, err error) {
	c := m.capture
	if c == nil || c.index < 0 {
		return false, nil
	}
	opt := infer.Options{Batch: batch, Dims: dims, Shapes: shapes}
	if _, err := infer.Infer(m.g, opt); err != nil {
		if err := m.inputs(opt); err != nil {
			return false, err
		}
	}
	l, err := lift.LiftCapture(c.Capture, m.g, c.index)
	if err != nil {
		if c.alone {
			return false, fmt.Errorf("%s: %w", m.Path, err)
		}
		c.missing = err.Error()
		return false, nil
	}
	m.lifted = l
	return true, nil
}

// inputs infers the shapes of the graph's inputs alone.
func (m *Model) inputs(opt infer.Options) error {
	in := &graph.Graph{Name: m.g.Name, Model: m.g.Model}
	for _, id := range m.g.Inputs {
		v := m.g.Values[id]
		v.ID = graph.ValueID(len(in.Values))
		in.Values, in.Inputs = append(in.Values, v), append(in.Inputs, v.ID)
	}
	if _, err := infer.Infer(in, opt); err != nil {
		return err
	}
	for i, id := range m.g.Inputs {
		m.g.Values[id].Type = in.Values[i].Type
	}
	return nil
}

// captureNotes returns warnings about a capture that does not answer the question.
func (m *Model) captureNotes() []graph.Warning {
	if m.capture == nil || m.capture.missing == "" {
		return nil
	}
	return []graph.Warning{{Code: "capture-unused", Message: m.capture.missing + "; the file's graph is used instead"}}
}

// usual sets what a question leaves open to the user's own training step.
func (c *capture) usual(q *Config) {
	if c == nil || c.Step == nil || q.Mode == "infer" {
		return
	}
	if q.Optimizer == "" {
		if name := optimizerOf(c.Step); name != "" {
			if o, err := profile.FindOptimizer(name); err == nil {
				q.Optimizer = o.Name
			} else {
				q.Notes = append(q.Notes[:len(q.Notes):len(q.Notes)], graph.Warning{Code: "optimizer-unknown", Message: fmt.Sprintf("the recorded step's optimizer %s is not known here: counted as adamw; --optimizer gives another", c.Step.Optimizer)})
			}
		}
	}
	if q.Accumulate == 0 && c.Step.Accumulate > 1 {
		q.Accumulate = min(c.Step.Accumulate, maxAccumulate)
	}
}

// maxAccumulate bounds the accumulation that a file may ask for.
const maxAccumulate = 1 << 20

// optimizerOf returns memplan's name for an optimizer of PyTorch with its options.
func optimizerOf(s *lift.CapturedStep) string {
	on := func(key string) bool {
		switch v := s.Options[key].(type) {
		case bool:
			return v
		case float64:
			return v != 0
		}
		return false
	}
	off := func(key string) bool { v, ok := s.Options[key].(bool); return ok && !v }
	name := strings.ToLower(s.Optimizer)
	switch {
	case name == "sgd" && on("fused"):
		return "sgd-fused"
	case name == "sgd" && on("momentum") && off("foreach"):
		return "sgd-loop"
	case name == "sgd" && on("nesterov"):
		return "sgd-nesterov"
	case name == "sgd":
		if on("momentum") {
			name += "-momentum"
		}
		if on("weight_decay") {
			name += "-wd"
		}
	case name == "adam" || name == "adamw":
		switch {
		case on("fused"):
			name += "-fused"
		case on("amsgrad"):
			name += "-amsgrad"
		case off("foreach"):
			name += "-loop"
		case on("capturable") && name == "adamw":
			name += "-capturable"
		case on("weight_decay") && name == "adam":
			name += "-wd"
		}
	case name == "rmsprop" && on("centered"):
		name += "-centered"
	case name == "rmsprop" && on("momentum"):
		name += "-momentum"
	case name == "adamw8bit" || name == "adam8bit":
		return "adamw-8bit"
	}
	return name
}

// captureInfo describes the capture for the report.
func (a *answer) captureInfo() *CaptureInfo {
	c := a.m.capture
	if c == nil {
		return nil
	}
	out := &CaptureInfo{Torch: c.Torch, Class: c.Class, Unused: c.missing}
	if a.m.lifted.Source == lift.Captured {
		out.Run = c.run
	}
	if a.checked.is {
		out.Difference = &a.checked.share
	}
	return out
}
