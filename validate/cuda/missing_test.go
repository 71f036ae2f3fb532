//go:build cuda

package cuda

import (
	"flag"
	"testing"

	"github.com/memplan/memplan/internal/testdata"
	"github.com/memplan/memplan/validate/calls"
)

var update = flag.Bool("update", false, "write docs/kernels.md")

// TestMissing: docs/kernels.md says what the device refuses of the models there are, and
// of every operator. It needs no GPU.
func TestMissing(t *testing.T) {
	calls.CheckPage(t, &Device{}, testdata.Shared(t), "On CUDA", "go test -tags cuda ./validate/cuda -run Missing", *update)
}

// TestTable: the table of kernels is this device's. It needs no GPU.
func TestTable(t *testing.T) { calls.CheckTable(t, kernels) }
