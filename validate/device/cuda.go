//go:build cuda

package device

import (
	"github.com/memplan/memplan/validate"
	"github.com/memplan/memplan/validate/cuda"
)

func openCUDA(ordinal int) (validate.Device, error) {
	return cuda.Open(cuda.Options{Ordinal: ordinal})
}
