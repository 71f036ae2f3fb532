package planner

import (
	"fmt"
	"slices"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/graph/infer"
)

// strict reports whether Config.Strict turns a warning into an error: the file
// breaks the rules of ONNX, or does not hold what was asked about (Doubts).
func strict(w graph.Warning) bool {
	return slices.Contains(infer.InvalidCodes, w.Code) || IsDoubt(w.Code)
}

// Strictly returns an error for warnings that --strict does not tolerate; it
// names the first. Doubts about training do not concern an inference.
func Strictly(path string, warnings []graph.Warning, train bool) error {
	var first *graph.Warning
	more := -1
	list := doubtsFirst(warnings, train)
	for i := range list {
		if strict(list[i]) {
			if more++; first == nil {
				first = &list[i]
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
	if IsDoubt(first.Code) {
		text = "cannot tell: " + text
	}
	if more > 0 {
		return fmt.Errorf("%s: --strict: %s [%s] and %d more", path, text, first.Code, more)
	}
	return fmt.Errorf("%s: --strict: %s [%s]", path, text, first.Code)
}

// Strict sets or clears Config.Strict in all questions of the file.
func (f *ConfigFile) Strict(on bool) {
	for i := range f.Entries {
		f.Entries[i].Config.Strict = on
	}
}

// conform compares the graph with ONNX's rules, once: they do not depend on
// dims.
func (m *Model) conform() {
	if !m.conformed {
		m.invalid, m.conformed = infer.Conform(m.g), true
	}
}
