//go:build cuda

// Package driver starts the NVIDIA driver before gorgonia.org/cu does, which
// ends the process with a line of its own and exit 1 where there is no GPU.
//
// Go initializes packages in the order of their import paths as far as imports
// allow (language specification, program initialization), and this path comes
// before that one; so it must import nothing that cu does not.
package driver

/*
#cgo LDFLAGS: -lcuda
#include <cuda.h>

static const char *error_name(int rc) {
	const char *s = 0;
	cuGetErrorName((CUresult)rc, &s);
	return s ? s : "unknown";
}
*/
import "C"

import (
	"fmt"
	"os"
)

// exitRefused is what every command ends with that cannot run (docs/adr/0004).
const exitRefused = 2

func init() { //nolint:gochecknoinits // cu's own, which comes next, leaves no other place
	if rc := C.int(C.cuInit(0)); rc != 0 {
		fmt.Fprintf(os.Stderr, "memplan: this build with CUDA finds no GPU to use (cuInit: %s): nvidia-smi lists them, CUDA_VISIBLE_DEVICES hides some; memplan without -cuda in its name does all but validate --device cuda\n", C.GoString(C.error_name(rc)))
		os.Exit(exitRefused)
	}
}
