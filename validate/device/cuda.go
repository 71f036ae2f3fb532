//go:build cuda

package device

import "github.com/memplan/memplan/validate"

// The CUDA device is not written yet: a build with the tag says the same.
func openCUDA() (validate.Device, error) { return nil, ErrNoCUDA }
