package planner

import (
	"fmt"

	"github.com/memplan/memplan/graph"
)

// Strictly returns an error for warnings that --strict does not tolerate: those of
// the table of doubts, of which an inference has none that are about training. It
// names the first.
func Strictly(path string, warnings []graph.Warning, train bool) error {
	list := Doubtful(doubtsFirst(warnings, train))
	if len(list) == 0 {
		return nil
	}
	return fmt.Errorf("%s: --strict: cannot tell: %s [%s]", path, list[0].Message, list[0].Code)
}

// Strict makes all questions of the file strict, or none.
func (f *ConfigFile) Strict(on bool) {
	for i := range f.Entries {
		f.Entries[i].Config.Strict = on
	}
}
