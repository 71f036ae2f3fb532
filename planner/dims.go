package planner

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph/infer"
	"github.com/memplan/memplan/graph/onnx"
)

// unknownDims returns messages about dimensions that a configuration binds but
// the model lacks, with suggestions. Call it first: binding replaces the names.
func (m *Model) unknownDims(c *Config) []string {
	if len(c.Dims)+len(c.Lengths) == 0 {
		return nil
	}
	known := infer.Unbound(m.g)
	missing := func() (names []string) {
		for _, name := range slices.AppendSeq(slices.Collect(maps.Keys(c.Dims)), maps.Keys(c.Lengths)) {
			if !slices.Contains(known, name) {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return names
	}
	if len(missing()) > 0 { // inference may add names: dims that depend on data
		if _, err := infer.Infer(m.g, infer.Options{Shapes: c.Shapes}); err == nil {
			known = append(known, infer.Unbound(m.g)...)
			slices.Sort(known)
			known = slices.Compact(known)
		}
		m.bound = binding{}
	}
	var out []string
	for _, name := range missing() {
		has := "its dimensions are fixed"
		if near := Nearest(name, known); near != "" {
			has = "did you mean " + near + "?"
		} else if len(known) > 0 {
			has = "it has " + strings.Join(known, ", ")
		}
		out = append(out, fmt.Sprintf("%s has no dimension %s: %s", m.Path, name, has))
	}
	return out
}

// contradiction returns the error of a batch that is also bound by its dim's
// name.
func (m *Model) contradiction(c *Config) error {
	for _, id := range m.g.Inputs {
		shape := m.g.Values[id].Type.Shape
		if len(shape) == 0 {
			continue
		}
		name, ok := shape[0].Symbol()
		if n, given := c.Dims[name]; ok && given && c.Batch > 0 && n != c.Batch {
			return fmt.Errorf("%s: dimension %s is %d and the batch, which it is, %d: give one of them", m.Path, name, n, c.Batch)
		}
	}
	return nil
}

// OpenFor opens a model for a question, through its door, with warnings for
// parts of the question that do not apply.
func OpenFor(path string, c *Config) (m *Model, warnings []string, err error) {
	if m, err = OpenFrom(c.door(), path, onnx.Within(c.Memory)); err != nil {
		return nil, nil, err
	}
	if err := m.contradiction(c); err != nil {
		return nil, nil, err
	}
	return m, m.unknownDims(c), nil
}
