package cpu_test

import (
	"flag"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
	"github.com/memplan/memplan/validate/calls"
	"github.com/memplan/memplan/validate/cpu"
)

var update = flag.Bool("update", false, "write docs/kernels.md")

// TestMissing: docs/kernels.md says what the device refuses of the models there are, and
// of every operator.
func TestMissing(t *testing.T) {
	calls.CheckPage(t, cpu.New(), testdata.Shared(t), "On the processor", "go test ./validate/cpu -run Missing", *update)
}
