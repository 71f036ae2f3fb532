//go:build cuda

package device

import (
	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/cuda"
)

// CUDA tells whether this build runs plans on NVIDIA GPUs (build tag cuda).
const CUDA = true

func openCUDA(ordinal int) (validate.Device, error) {
	return cuda.Open(cuda.Options{Ordinal: ordinal})
}
