//go:build cuda

package dnngraph

/*
#include <stdint.h>

typedef struct {
	void *create, *destroy, *set, *get, *finalize, *execute, *error_string;
} graph_t;

static int graph_create(graph_t *f, int kind, uintptr_t *d) { return ((int (*)(int, void **))f->create)(kind, (void **)d); }
static int graph_destroy(graph_t *f, uintptr_t d) { return ((int (*)(void *))f->destroy)((void *)d); }
static int graph_finalize(graph_t *f, uintptr_t d) { return ((int (*)(void *))f->finalize)((void *)d); }
static int graph_set(graph_t *f, uintptr_t d, int name, int type, int64_t n, const void *v) {
	return ((int (*)(void *, int, int, int64_t, const void *))f->set)((void *)d, name, type, n, v);
}
static int graph_get(graph_t *f, uintptr_t d, int name, int type, int64_t n, int64_t *got, void *v) {
	return ((int (*)(void *, int, int, int64_t, int64_t *, void *))f->get)((void *)d, name, type, n, got, v);
}
static int graph_execute(graph_t *f, uintptr_t handle, uintptr_t plan, uintptr_t pack) {
	return ((int (*)(void *, void *, void *))f->execute)((void *)handle, (void *)plan, (void *)pack);
}
static const char *graph_error(graph_t *f, int rc) { return ((const char *(*)(int))f->error_string)(rc); }
*/
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/memplan/memplan/validate/dl"
)

// A Backend is cuDNN's graph interface with a handle on one stream.
type Backend struct {
	f      C.graph_t
	handle uintptr
	device descriptor // instead of a handle, a described GPU; 0: none
}

// A descriptor is an object of cuDNN's, 0 for none.
type descriptor uintptr

// Open finds the functions in a library, and fails if it is too old to have
// them. The handle is cuDNN's, and remains the caller's.
func Open(lib *dl.Opened, handle unsafe.Pointer) (*Backend, error) {
	b := &Backend{handle: uintptr(handle)}
	f := &b.f
	if err := lib.Symbols(map[string]*unsafe.Pointer{
		"cudnnBackendCreateDescriptor": &f.create, "cudnnBackendDestroyDescriptor": &f.destroy, "cudnnBackendSetAttribute": &f.set,
		"cudnnBackendGetAttribute": &f.get, "cudnnBackendFinalize": &f.finalize, "cudnnBackendExecute": &f.execute, "cudnnGetErrorString": &f.error_string,
	}); err != nil {
		return nil, err
	}
	return b, nil
}

// check names a status that is not success.
func (b *Backend) check(doing string, rc C.int) error {
	if rc == 0 {
		return nil
	}
	return fmt.Errorf("cuDNN: %s: %s", doing, C.GoString(C.graph_error(&b.f, rc)))
}

// destroy frees descriptors, ignoring those that were never made.
func (b *Backend) destroy(list ...descriptor) {
	for _, d := range list {
		if d != 0 {
			C.graph_destroy(&b.f, C.uintptr_t(d))
		}
	}
}

// execute runs a plan on the pointers of a pack.
func (b *Backend) execute(plan, pack descriptor) error {
	return b.check("running a plan", C.graph_execute(&b.f, C.uintptr_t(b.handle), C.uintptr_t(plan), C.uintptr_t(pack)))
}

// A builder makes descriptors until the first error, which it keeps.
type builder struct {
	b    *Backend
	made []descriptor
	err  error
}

// free destroys what was made, the last first.
func (m *builder) free() {
	for i := len(m.made) - 1; i >= 0; i-- {
		m.b.destroy(m.made[i])
	}
	m.made = nil
}

// make makes a descriptor; doing names it in errors.
func (m *builder) make(doing string, kind int) descriptor {
	if m.err != nil {
		return 0
	}
	var d C.uintptr_t
	if rc := C.graph_create(&m.b.f, C.int(kind), &d); rc != 0 {
		m.err = m.b.check("making "+doing, rc)
		return 0
	}
	m.made = append(m.made, descriptor(d))
	return descriptor(d)
}

// finish completes a descriptor with its attributes.
func (m *builder) finish(doing string, d descriptor) {
	if m.err == nil {
		m.err = m.b.check(doing, C.graph_finalize(&m.b.f, C.uintptr_t(d)))
	}
}

// set sets an attribute to values, which are in memory in cuDNN's layout.
func set[T any](m *builder, d descriptor, name, kind int, values ...T) {
	if m.err != nil {
		return
	}
	if rc := C.graph_set(&m.b.f, C.uintptr_t(d), C.int(name), C.int(kind), C.int64_t(len(values)), unsafe.Pointer(unsafe.SliceData(values))); rc != 0 {
		m.err = m.b.check(fmt.Sprintf("attribute %d", name), rc)
	}
}

// get reads values of an attribute into out and returns their number.
// Descriptors to be read must exist already.
func get[T any](b *Backend, d descriptor, name, kind int, out []T) (int, error) {
	var n C.int64_t
	rc := C.graph_get(&b.f, C.uintptr_t(d), C.int(name), C.int(kind), C.int64_t(len(out)), &n, unsafe.Pointer(unsafe.SliceData(out)))
	return int(n), b.check(fmt.Sprintf("reading attribute %d", name), rc)
}
