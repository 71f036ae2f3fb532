//go:build cuda

package cuda

/*
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// The interface of version 7, which 8 and 9 have too.
typedef struct {
	int algo, status;
	float time;
	size_t memory;
	int determinism, math, reserved[3];
} perf_t;

typedef struct {
	void *create, *destroy, *set_stream, *version;
	void *create_tensor, *destroy_tensor, *set_tensor;
	void *create_filter, *destroy_filter, *set_filter;
	void *create_conv, *destroy_conv, *set_conv, *set_groups, *set_math;
	void *find_forward, *find_data, *find_filter;
	void *size_forward, *size_data, *size_filter;
	void *forward, *data, *filter;
	void *error_string;
} dnn_t;

typedef int (*make_t)(void **);
typedef int (*free_t)(void *);

static int dnn_make(void *f, void **p) { return ((make_t)f)(p); }
static int dnn_free(void *f, void *p) { return ((free_t)f)(p); }
static int dnn_stream(void *f, void *h, void *s) { return ((int (*)(void *, void *))f)(h, s); }
static size_t dnn_version(void *f) { return ((size_t (*)(void))f)(); }
static const char *dnn_error(void *f, int rc) { return ((const char *(*)(int))f)(rc); }
static int dnn_tensor(void *f, void *t, int type, int n, const int *dim, const int *stride) {
	return ((int (*)(void *, int, int, const int *, const int *))f)(t, type, n, dim, stride);
}
static int dnn_filter(void *f, void *t, int type, int format, int n, const int *dim) {
	return ((int (*)(void *, int, int, int, const int *))f)(t, type, format, n, dim);
}
static int dnn_conv(void *f, void *c, int n, const int *pad, const int *stride, const int *dilation, int type) {
	return ((int (*)(void *, int, const int *, const int *, const int *, int, int))f)(c, n, pad, stride, dilation, 1, type); // 1: cross-correlation
}
static int dnn_set(void *f, void *c, int v) { return ((int (*)(void *, int))f)(c, v); }

// The three passes order their descriptors differently: forward x, w, conv, y;
// data w, dy, conv, dx; filter x, dy, conv, dw.
static int dnn_find(void *f, void *h, void *a, void *b, void *conv, void *c, int want, int *got, perf_t *out) {
	return ((int (*)(void *, void *, void *, void *, void *, int, int *, perf_t *))f)(h, a, b, conv, c, want, got, out);
}
static int dnn_size(void *f, void *h, void *a, void *b, void *conv, void *c, int algo, size_t *bytes) {
	return ((int (*)(void *, void *, void *, void *, void *, int, size_t *))f)(h, a, b, conv, c, algo, bytes);
}
static int dnn_run(void *f, void *h, void *ad, uintptr_t a, void *bd, uintptr_t b, void *conv, int algo, uintptr_t ws, size_t bytes, void *cd, uintptr_t c) {
	float one = 1, zero = 0;
	return ((int (*)(void *, const void *, void *, const void *, void *, const void *, void *, int, void *, size_t, const void *, void *, void *))f)(
		h, &one, ad, (void *)a, bd, (void *)b, conv, algo, (void *)ws, bytes, &zero, cd, (void *)c);
}
*/
import "C"

import (
	"fmt"
	"strings"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/memplan/memplan/graph"
	"github.com/memplan/memplan/validate/dl"
	"github.com/memplan/memplan/validate/dnngraph"
)

// dnn is an opened cuDNN with a handle on one stream.
type dnn struct {
	lib     *dl.Opened
	f       C.dnn_t
	handle  unsafe.Pointer
	version int
	plans   map[convKey]*convPlan

	graphs    *dnngraph.Backend // nil: cuDNN is too old
	noGraphs  error             // why
	graphPlan map[convKey]*graphPlan
}

// A pass is one of a convolution's three.
type pass int

const (
	forwardPass pass = iota
	dataPass
	filterPass
)

func (p pass) String() string { return [...]string{"forward", "data gradient", "weight gradient"}[p] }

// The types of cudnnDataType_t.
var dnnTypes = map[graph.DType]C.int{graph.Float32: 0, graph.Float64: 1, graph.Float16: 2, graph.BFloat16: 9}

// openDNN opens cuDNN and makes a handle on a stream.
func openDNN(s cu.Stream) (*dnn, error) {
	lib, err := dl.Open("cudnn")
	if err != nil {
		return nil, err
	}
	d := &dnn{lib: lib, plans: map[convKey]*convPlan{}, graphPlan: map[convKey]*graphPlan{}}
	f := &d.f
	names := map[string]*unsafe.Pointer{
		"cudnnCreate": &f.create, "cudnnDestroy": &f.destroy, "cudnnSetStream": &f.set_stream, "cudnnGetVersion": &f.version, "cudnnGetErrorString": &f.error_string,
		"cudnnCreateTensorDescriptor": &f.create_tensor, "cudnnDestroyTensorDescriptor": &f.destroy_tensor, "cudnnSetTensorNdDescriptor": &f.set_tensor,
		"cudnnCreateFilterDescriptor": &f.create_filter, "cudnnDestroyFilterDescriptor": &f.destroy_filter, "cudnnSetFilterNdDescriptor": &f.set_filter,
		"cudnnCreateConvolutionDescriptor": &f.create_conv, "cudnnDestroyConvolutionDescriptor": &f.destroy_conv, "cudnnSetConvolutionNdDescriptor": &f.set_conv,
		"cudnnSetConvolutionGroupCount": &f.set_groups, "cudnnSetConvolutionMathType": &f.set_math,
		"cudnnGetConvolutionForwardAlgorithm_v7": &f.find_forward, "cudnnGetConvolutionBackwardDataAlgorithm_v7": &f.find_data,
		"cudnnGetConvolutionBackwardFilterAlgorithm_v7": &f.find_filter,
		"cudnnGetConvolutionForwardWorkspaceSize":       &f.size_forward, "cudnnGetConvolutionBackwardDataWorkspaceSize": &f.size_data,
		"cudnnGetConvolutionBackwardFilterWorkspaceSize": &f.size_filter,
		"cudnnConvolutionForward":                        &f.forward, "cudnnConvolutionBackwardData": &f.data, "cudnnConvolutionBackwardFilter": &f.filter}
	if err := lib.Symbols(names); err != nil {
		return nil, err
	}
	d.version = int(C.dnn_version(f.version))
	if rc := C.dnn_make(f.create, &d.handle); rc != 0 {
		return nil, fmt.Errorf("%s: %s making a handle", lib.Path, d.status(rc))
	}
	if rc := C.dnn_stream(f.set_stream, d.handle, streamPointer(s)); rc != 0 {
		return nil, fmt.Errorf("%s: %s setting the stream", lib.Path, d.status(rc))
	}
	d.graphs, d.noGraphs = dnngraph.Open(lib, d.handle)
	return d, nil
}

// status returns the library's text for a status.
func (d *dnn) status(rc C.int) string { return C.GoString(C.dnn_error(d.f.error_string, rc)) }

// String is the library with its version.
func (d *dnn) String() string {
	if d.version >= 90000 {
		return fmt.Sprintf("cuDNN %d.%d.%d", d.version/10000, d.version/100%100, d.version%100)
	}
	return fmt.Sprintf("cuDNN %d.%d.%d", d.version/1000, d.version/100%10, d.version%100)
}

func (d *dnn) close() {
	for _, p := range d.plans {
		p.free(d)
	}
	d.closeGraphs()
	C.dnn_free(d.f.destroy, d.handle)
}

// A convKey is what a pass's algorithm depends on.
type convKey struct {
	pass                pass
	dtype               graph.DType
	x, xs, w, ws, y, ys [5]int32 // sizes and strides of operand, weight and result
	pad, stride, dil    [3]int32
	dims                int8
	groups              int32
	full                bool    // float32 in full precision
	align               [3]int8 // alignment of the addresses in bytes, for graphs
}

// A convPlan is a pass ready to run.
type convPlan struct {
	x, w, y, conv unsafe.Pointer
	algo, math    C.int
	bytes         C.size_t
	err           error // why cuDNN cannot run it within its workspace
}

// free destroys the descriptors that were made.
func (p *convPlan) free(d *dnn) {
	for _, t := range []unsafe.Pointer{p.x, p.y} {
		if t != nil {
			C.dnn_free(d.f.destroy_tensor, t)
		}
	}
	if p.w != nil {
		C.dnn_free(d.f.destroy_filter, p.w)
	}
	if p.conv != nil {
		C.dnn_free(d.f.destroy_conv, p.conv)
	}
}

func ints(v []int32) []C.int {
	out := make([]C.int, len(v))
	for i, n := range v {
		out[i] = C.int(n)
	}
	return out
}

// mostWork is the largest useful workspace of an algorithm, in bytes.
const mostWork = 1 << 30

// plan describes a pass and selects the fastest deterministic algorithm. The
// choice depends only on the pass, not on the free memory: a call that runs
// again, and a plan with other checkpoints, compute the same.
func (d *dnn) plan(k *convKey) *convPlan {
	if p, ok := d.plans[*k]; ok {
		return p
	}
	p := &convPlan{}
	d.plans[*k] = p
	if p.err = d.describe(k, p); p.err == nil {
		p.err = d.choose(k, p)
	}
	return p
}

// describe makes a plan's descriptors.
func (d *dnn) describe(k *convKey, p *convPlan) error {
	n, sp, t := int(k.dims), int(k.dims)-2, dnnTypes[k.dtype]
	compute := C.int(0)
	if k.dtype == graph.Float64 {
		compute = 1
	}
	format := C.int(0)
	if k.ws[1] == 1 && k.w[1] > 1 && k.ws[0] != 1 && k.ws[n-1] != 1 {
		format = 1 // the weight's channels are innermost
	}
	math := C.int(0) // the default: TF32 for float32
	switch {
	case k.dtype == graph.Float16 || k.dtype == graph.BFloat16:
		math = 1 // tensor cores
	case k.full:
		math = 3 // CUDNN_FMA_MATH
	}
	f := &d.f
	for _, s := range []struct {
		what string
		rc   C.int
	}{
		{"operand", C.dnn_make(f.create_tensor, &p.x)}, {"result", C.dnn_make(f.create_tensor, &p.y)},
		{"weight", C.dnn_make(f.create_filter, &p.w)}, {"convolution", C.dnn_make(f.create_conv, &p.conv)},
	} {
		if s.rc != 0 {
			return fmt.Errorf("cuDNN: %s: %s", s.what, d.status(s.rc))
		}
	}
	x, xs, y, ys, w := ints(k.x[:n]), ints(k.xs[:n]), ints(k.y[:n]), ints(k.ys[:n]), ints(k.w[:n])
	pad, stride, dil := ints(k.pad[:sp]), ints(k.stride[:sp]), ints(k.dil[:sp])
	for _, s := range []struct {
		what string
		rc   C.int
	}{
		{"operand", C.dnn_tensor(f.set_tensor, p.x, t, C.int(n), &x[0], &xs[0])},
		{"result", C.dnn_tensor(f.set_tensor, p.y, t, C.int(n), &y[0], &ys[0])},
		{"weight", C.dnn_filter(f.set_filter, p.w, t, format, C.int(n), &w[0])},
		{"convolution", C.dnn_conv(f.set_conv, p.conv, C.int(sp), &pad[0], &stride[0], &dil[0], compute)},
		{"groups", C.dnn_set(f.set_groups, p.conv, C.int(k.groups))},
		{"math", C.dnn_set(f.set_math, p.conv, math)},
	} {
		if s.rc != 0 {
			return fmt.Errorf("cuDNN: %s: %s", s.what, d.status(s.rc))
		}
	}
	return nil
}

// order returns a pass's descriptors in the order of its function.
func (p *convPlan) order(w pass) (a, b, c unsafe.Pointer) {
	switch w {
	case forwardPass:
		return p.x, p.w, p.y
	case dataPass:
		return p.w, p.y, p.x
	}
	return p.x, p.y, p.w
}

// choose selects the algorithm of a plan whose descriptors are made.
func (d *dnn) choose(k *convKey, p *convPlan) error {
	find := [...]unsafe.Pointer{d.f.find_forward, d.f.find_data, d.f.find_filter}[k.pass]
	size := [...]unsafe.Pointer{d.f.size_forward, d.f.size_data, d.f.size_filter}[k.pass]
	a, b, c := p.order(k.pass)
	var got C.int
	var perf [10]C.perf_t
	if rc := C.dnn_find(find, d.handle, a, b, p.conv, c, C.int(len(perf)), &got, &perf[0]); rc != 0 {
		return fmt.Errorf("cuDNN: algorithms of the %v pass: %s", k.pass, d.status(rc))
	}
	var refused []string
	for i := range perf[:got] {
		q := &perf[i]
		bytes, why := d.refuses(k, p, q, size)
		if why == "" {
			p.algo, p.bytes, p.math = q.algo, bytes, q.math
			return nil
		}
		refused = append(refused, fmt.Sprintf("%d %s", int(q.algo), why))
	}
	return fmt.Errorf("cuDNN: no algorithm of the %v pass (%s)", k.pass, strings.Join(refused, ", "))
}

// refuses returns why an algorithm must not be used, or its workspace.
func (d *dnn) refuses(k *convKey, p *convPlan, q *C.perf_t, size unsafe.Pointer) (C.size_t, string) {
	switch {
	case q.status != 0:
		return 0, d.status(q.status)
	case q.determinism != 1:
		return 0, "is not deterministic"
	case k.dtype == graph.Float32 && k.full && q.math == 1:
		return 0, "computes in TF32"
	}
	if rc := C.dnn_set(d.f.set_math, p.conv, q.math); rc != 0 {
		return 0, d.status(rc)
	}
	a, b, c := p.order(k.pass)
	var bytes C.size_t
	if rc := C.dnn_size(size, d.handle, a, b, p.conv, c, q.algo, &bytes); rc != 0 {
		return 0, d.status(rc)
	}
	if bytes > mostWork {
		return 0, fmt.Sprintf("needs %d", uint64(bytes))
	}
	return bytes, ""
}

// run runs a planned pass.
func (d *dnn) run(k *convKey, p *convPlan, a, b, c, workspace uint64) error {
	f := [...]unsafe.Pointer{d.f.forward, d.f.data, d.f.filter}[k.pass]
	ad, bd, cd := p.order(k.pass)
	if rc := C.dnn_run(f, d.handle, ad, C.uintptr_t(a), bd, C.uintptr_t(b), p.conv, p.algo, C.uintptr_t(workspace), p.bytes, cd, C.uintptr_t(c)); rc != 0 {
		return fmt.Errorf("cuDNN: %v pass: %s", k.pass, d.status(rc))
	}
	return nil
}
