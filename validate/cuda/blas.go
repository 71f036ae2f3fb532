//go:build cuda

package cuda

/*
#include <stddef.h>
#include <stdint.h>

// The functions of cuBLAS that are used; their interface has been the same
// since version 11.
typedef int (*create_t)(void **);
typedef int (*destroy_t)(void *);
typedef int (*set_stream_t)(void *, void *);
typedef int (*set_workspace_t)(void *, void *, size_t);
typedef int (*get_version_t)(void *, int *);
typedef int (*gemm_t)(void *, int, int, int, int, int, const void *, const void *, int, int, long long, const void *, int, int, long long, const void *,
	void *, int, int, long long, int, int, int);

static int blas_create(void *f, void **h) { return ((create_t)f)(h); }
static int blas_destroy(void *f, void *h) { return ((destroy_t)f)(h); }
static int blas_stream(void *f, void *h, void *s) { return ((set_stream_t)f)(h, s); }
static int blas_workspace(void *f, void *h, uintptr_t p, size_t n) { return ((set_workspace_t)f)(h, (void *)p, n); }
static int blas_version(void *f, void *h, int *v) { return ((get_version_t)f)(h, v); }

// blas_gemm multiplies column-major matrices with sums in float32, or float64
// where compute says so: 68 is CUBLAS_COMPUTE_32F, 70 CUBLAS_COMPUTE_64F.
static int blas_gemm(void *f, void *h, int ta, int tb, int m, int n, int k, double alpha, uintptr_t a, int at, int lda, long long sa, uintptr_t b, int bt, int ldb,
	long long sb, double beta, uintptr_t c, int ct, int ldc, long long sc, int batch, int compute) {
	float alpha32 = (float)alpha, beta32 = (float)beta;
	int wide = compute == 70;
	return ((gemm_t)f)(h, ta, tb, m, n, k, wide ? (void *)&alpha : (void *)&alpha32, (void *)a, at, lda, sa, (void *)b, bt, ldb, sb,
		wide ? (void *)&beta : (void *)&beta32, (void *)c, ct, ldc, sc, batch, compute, -1);
}
*/
import "C"

import (
	"fmt"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/validate/dl"
)

// blas is an opened cuBLAS with a handle on one stream.
type blas struct {
	lib                                      *dl.Opened
	handle                                   unsafe.Pointer
	version                                  int
	destroy, setStream, setWorkspace, fnGemm unsafe.Pointer
}

// The types of cudaDataType in products.
var cudaTypes = map[graph.DType]C.int{graph.Float32: 0, graph.Float64: 1, graph.Float16: 2, graph.BFloat16: 14}

// openBLAS opens cuBLAS and makes a handle on a stream.
func openBLAS(s cu.Stream) (*blas, error) {
	lib, err := dl.Open("cublas")
	if err != nil {
		return nil, err
	}
	b := &blas{lib: lib}
	var create, version unsafe.Pointer
	if err := lib.Symbols(map[string]*unsafe.Pointer{"cublasCreate_v2": &create, "cublasDestroy_v2": &b.destroy, "cublasSetStream_v2": &b.setStream,
		"cublasSetWorkspace_v2": &b.setWorkspace, "cublasGetVersion_v2": &version, "cublasGemmStridedBatchedEx": &b.fnGemm}); err != nil {
		return nil, err
	}
	if rc := C.blas_create(create, &b.handle); rc != 0 {
		return nil, fmt.Errorf("%s: status %d making a handle: free memory on the device, or install the version that the driver supports", lib.Path, int(rc))
	}
	var v C.int
	C.blas_version(version, b.handle, &v)
	b.version = int(v)
	if rc := C.blas_stream(b.setStream, b.handle, streamPointer(s)); rc != 0 {
		return nil, fmt.Errorf("%s: status %d setting the stream", lib.Path, int(rc))
	}
	return b, nil
}

// streamPointer returns the driver's handle: cu.Stream is a struct with that one
// field.
func streamPointer(s cu.Stream) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&s)) }

// String is the library with its version.
func (b *blas) String() string {
	return fmt.Sprintf("cuBLAS %d.%d.%d", b.version/10000, b.version/100%100, b.version%100)
}

func (b *blas) close() { C.blas_destroy(b.destroy, b.handle) }

// use makes the library work in the given memory and allocate none of its own.
func (b *blas) use(ptr, bytes uint64) error {
	if rc := C.blas_workspace(b.setWorkspace, b.handle, C.uintptr_t(ptr), C.size_t(bytes)); rc != 0 {
		return fmt.Errorf("cuBLAS: status %d for a workspace of %d bytes", int(rc), bytes)
	}
	return nil
}

// A factor is a column-major operand of a product.
type factor struct {
	ptr        uint64
	ld, stride int64 // of columns, and from one matrix of a batch to the next
	transposed bool
}

// op returns cuBLAS's number for the factor's operation.
func (f factor) op() C.int {
	if f.transposed {
		return 1
	}
	return 0
}

// gemm computes c = alpha*a*b + beta*c for a batch of column-major matrices of one
// type; c is m by n.
func (b *blas) gemm(d graph.DType, m, n, k, batch int64, x, y, c factor, alpha, beta float64) error {
	compute := C.int(68)
	if d == graph.Float64 {
		compute = 70
	}
	t := cudaTypes[d]
	rc := C.blas_gemm(b.fnGemm, b.handle, x.op(), y.op(), C.int(m), C.int(n), C.int(k), C.double(alpha), C.uintptr_t(x.ptr), t, C.int(x.ld), C.longlong(x.stride),
		C.uintptr_t(y.ptr), t, C.int(y.ld), C.longlong(y.stride), C.double(beta), C.uintptr_t(c.ptr), t, C.int(c.ld), C.longlong(c.stride), C.int(batch), compute)
	if rc != 0 {
		return fmt.Errorf("cuBLAS: status %d for a product of %d x %d x %d, batch %d", int(rc), m, n, k, batch)
	}
	return nil
}
