//go:build !cuda

package device

import "github.com/memplan/memplan/validate"

// CUDA tells whether this build runs plans on NVIDIA GPUs (build tag cuda).
const CUDA = false

func openCUDA(int) (validate.Device, error) { return nil, ErrNoCUDA }
