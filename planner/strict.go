package planner

import (
	"fmt"
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/infer"
)

// notShown are the codes of warnings which say that a file does not show the
// training step.
var notShown = []string{"no-metadata", "metadata-incomplete"}

// strict reports whether Config.Strict turns a warning into an error: the file
// breaks the rules of ONNX, or a training step was asked for that it does not
// show.
func strict(w graph.Warning, train bool) bool {
	return slices.Contains(infer.InvalidCodes, w.Code) || train && slices.Contains(notShown, w.Code)
}

// Strictly returns an error for warnings that --strict does not tolerate; it
// names the first.
func Strictly(path string, warnings []graph.Warning, train bool) error {
	var first *graph.Warning
	more := -1
	for i := range warnings {
		if strict(warnings[i], train) {
			if more++; first == nil {
				first = &warnings[i]
			}
		}
	}
	if first == nil {
		return nil
	}
	text := first.Message
	if first.Node != "" {
		text = first.Node + ": " + text
	}
	if more > 0 {
		return fmt.Errorf("%s: --strict: %s [%s] and %d more", path, text, first.Code, more)
	}
	return fmt.Errorf("%s: --strict: %s [%s]", path, text, first.Code)
}

// Strict makes all questions of the file strict, or none.
func (f *ConfigFile) Strict(on bool) {
	for i := range f.Entries {
		f.Entries[i].Config.Strict = on
	}
}

// conform compares the graph with ONNX's rules, once: they do not speak of
// dims.
func (m *Model) conform() {
	if !m.conformed {
		m.invalid, m.conformed = infer.Conform(m.g), true
	}
}
