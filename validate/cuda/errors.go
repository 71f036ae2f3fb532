//go:build cuda

package cuda

import (
	"errors"
	"fmt"

	"gorgonia.org/cu"
)

// sticky are the errors after which a context is unusable.
var sticky = []error{cu.IllegalAddress, cu.LaunchFailed, cu.LaunchTimeout, cu.MisalignedAddress, cu.IllegalInstruction, cu.InvalidAddressSpace, cu.InvalidPc,
	cu.HardwareStackError, cu.EccUncorrectable, cu.Assert}

// explain adds to a driver's error what was attempted and what to do.
func explain(doing string, err error) error {
	if err == nil {
		return nil
	}
	for _, s := range sticky {
		if errors.Is(err, s) {
			return fmt.Errorf("%s: %w: the device gave up this context, and all later calls fail too; run again, and with CUDA_LAUNCH_BLOCKING=1 to see which call it was", doing, err)
		}
	}
	switch {
	case errors.Is(err, cu.OutOfMemory):
		return fmt.Errorf("%s: %w: free memory on the device (nvidia-smi lists who holds it), or plan for a smaller --vram", doing, err)
	case errors.Is(err, cu.NoBinaryForGpu), errors.Is(err, cu.InvalidPtx):
		return fmt.Errorf("%s: %w: the driver cannot compile the kernels; it needs CUDA 11.8 or later (driver 520)", doing, err)
	case errors.Is(err, cu.NoDevice), errors.Is(err, cu.InvalidDevice):
		return fmt.Errorf("%s: %w: nvidia-smi lists the devices; CUDA_VISIBLE_DEVICES hides some", doing, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}
