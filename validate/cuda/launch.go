//go:build cuda

package cuda

/*
#include <cuda.h>

// launch starts a kernel that takes one struct by value. Package cu passes
// parameters of eight bytes only.
static CUresult launch(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned shared, CUstream s, void *args, size_t size) {
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, args, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
	return cuLaunchKernel(f, gx, gy, gz, bx, by, 1, shared, s, 0, extra);
}

static CUresult allow_shared(CUfunction f, int bytes) {
	return cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes);
}
*/
import "C"

import (
	"compress/gzip"
	"embed"
	"errors"
	"fmt"
	"io"
	"unsafe"

	"gorgonia.org/cu"
)

//go:embed kernels/*.ptx.gz
var ptx embed.FS

// A grid is the number of threads of a kernel.
type grid struct {
	x, y, z   int64 // blocks
	tx, ty    int   // threads of a block
	shared    int   // bytes of dynamic shared memory
	attribute bool  // needs more shared memory than the default limit
}

// grid adds blocks along y and z.
func (s share) grid(y, z int64) grid { return grid{x: s.x, y: y, z: z, tx: s.tx, ty: s.ty} }

// along is the grid of one thread for each of n elements.
func along(n int64) grid { return grid{x: (n + 255) / 256, tx: 256} }

// sweep returns a grid whose threads loop over n elements.
func sweep(n int64) grid { return grid{x: min((n+255)/256, 132*16), tx: 256} }

// A kernelID is a kernel in a file of kernels.
type kernelID struct{ file, name string }

// function returns a kernel, compiling its file on first use.
func (d *Device) function(file, name string) (cu.Function, error) {
	id := kernelID{file, name}
	if f, ok := d.functions[id]; ok {
		return f, nil
	}
	mod, ok := d.modules[file]
	if !ok {
		image, err := unpack(file)
		if err != nil {
			return cu.Function{}, err
		}
		if mod, err = cu.LoadData(image); err != nil {
			return cu.Function{}, explain("compiling the kernels of "+file, err)
		}
		d.modules[file] = mod
	}
	f, err := mod.Function(name)
	if err != nil {
		return f, fmt.Errorf("kernel %s of %s: %w", name, file, err)
	}
	d.functions[id] = f
	return f, nil
}

// unpack returns the PTX of a file.
func unpack(file string) (string, error) {
	packed, err := ptx.Open("kernels/" + file + ".ptx.gz")
	if err != nil {
		return "", err
	}
	z, err := gzip.NewReader(packed)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(z)
	return string(text), errors.Join(err, z.Close(), packed.Close())
}

// launch starts a kernel; args points at its struct, whose fields are those of
// the struct in C.
func launch[A any](d *Device, file, name string, g grid, args *A) error {
	f, err := d.function(file, name)
	if err != nil {
		return err
	}
	if g.x <= 0 {
		return nil // nothing to do
	}
	fn := *(*C.CUfunction)(unsafe.Pointer(&f)) // cu.Function is a struct of this one field
	if g.attribute {
		if rc := C.allow_shared(fn, C.int(g.shared)); rc != C.CUDA_SUCCESS {
			return fmt.Errorf("kernel %s: %d bytes of shared memory: driver error %d", name, g.shared, int(rc))
		}
	}
	s := *(*C.CUstream)(unsafe.Pointer(&d.stream)) // likewise
	rc := C.launch(fn, C.uint(g.x), C.uint(max(g.y, 1)), C.uint(max(g.z, 1)), C.uint(g.tx), C.uint(max(g.ty, 1)), C.uint(g.shared), s,
		unsafe.Pointer(args), C.size_t(unsafe.Sizeof(*args)))
	if rc != C.CUDA_SUCCESS {
		return d.broken("kernel "+name, int(rc))
	}
	return nil
}
