//go:build cuda

package dl

/*
#cgo linux LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>
*/
import "C"

import (
	"fmt"
	"os"
	"path/filepath"
	"unsafe"
)

// An Opened library.
type Opened struct {
	handle unsafe.Pointer
	Path   string
}

// Open opens the first file of a library that can be.
func Open(name string) (*Opened, error) {
	l := find(name)
	last := "none found"
	for _, file := range l.candidates(os.Getenv) {
		if name == "cublas" && filepath.Dir(file) != "." { // its other half lies beside it, where the loader may not look
			dlopen(filepath.Join(filepath.Dir(file), "libcublasLt"+filepath.Base(file)[len("libcublas"):]))
		}
		h, msg := dlopen(file)
		if h != nil {
			return &Opened{h, file}, nil
		}
		if filepath.Dir(file) != "." || last == "none found" {
			last = msg
		}
	}
	return nil, l.missing(last)
}

func dlopen(file string) (unsafe.Pointer, string) {
	s := C.CString(file)
	defer C.free(unsafe.Pointer(s))
	h := C.dlopen(s, C.RTLD_NOW|C.RTLD_GLOBAL)
	if h == nil {
		return nil, C.GoString(C.dlerror())
	}
	return h, ""
}

func (l *Opened) symbol(name string) (unsafe.Pointer, error) {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	p := C.dlsym(l.handle, s)
	if p == nil {
		return nil, fmt.Errorf("%s has no function %s", l.Path, name)
	}
	return p, nil
}

// Symbols fills in functions by name.
func (l *Opened) Symbols(to map[string]*unsafe.Pointer) error {
	for name, p := range to {
		f, err := l.symbol(name)
		if err != nil {
			return err
		}
		*p = f
	}
	return nil
}
