//go:build !cuda

package device

import "github.com/memplan/memplan/validate"

func openCUDA(int) (validate.Device, error) { return nil, ErrNoCUDA }
