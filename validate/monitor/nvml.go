//go:build cuda

package monitor

/*
#include <stdlib.h>

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process_t;

static int nvml_call(void *f) { return ((int (*)(void))f)(); }
static const char *nvml_error(void *f, int rc) { return ((const char *(*)(int))f)(rc); }
static int nvml_count(void *f, unsigned *n) { return ((int (*)(unsigned *))f)(n); }
static int nvml_handle(void *f, unsigned i, void **d) { return ((int (*)(unsigned, void **))f)(i, d); }
static int nvml_name(void *f, void *d, char *s, unsigned n) { return ((int (*)(void *, char *, unsigned))f)(d, s, n); }

// What the driver keeps for itself (600 MiB on an H200) is in use by the first
// version of the call, and by itself in the second.
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory2_t;
static int nvml_memory(void *f, void *f2, void *d, memory_t *m) {
	memory2_t b = {sizeof b | 2 << 24};
	if (!f2) return ((int (*)(void *, memory_t *))f)(d, m);
	int rc = ((int (*)(void *, memory2_t *))f2)(d, &b);
	m->total = b.total;
	m->free = b.free;
	m->used = b.used;
	return rc;
}
static int nvml_processes(void *f, void *d, unsigned *n, process_t *p) { return ((int (*)(void *, unsigned *, process_t *))f)(d, n, p); }
*/
import "C"

import (
	"fmt"
	"time"
	"unsafe"

	"github.com/memplan/memplan/validate/dl"
)

// nvml reads through the driver's management library.
type nvml struct {
	t                                                                    Target
	lib                                                                  *dl.Opened
	device                                                               unsafe.Pointer
	name                                                                 string
	initialize, shutdown, text, count, handle, nameOf, memory, processes unsafe.Pointer
	memory2                                                              unsafe.Pointer // drivers before 510 lack it
}

func openNVML(t Target) (Source, error) {
	lib, err := dl.Open("nvidia-ml")
	if err != nil {
		return nil, err
	}
	n := &nvml{t: t, lib: lib}
	if err := lib.Symbols(map[string]*unsafe.Pointer{"nvmlInit_v2": &n.initialize, "nvmlShutdown": &n.shutdown, "nvmlErrorString": &n.text, "nvmlDeviceGetCount_v2": &n.count,
		"nvmlDeviceGetHandleByIndex_v2": &n.handle, "nvmlDeviceGetName": &n.nameOf, "nvmlDeviceGetMemoryInfo": &n.memory,
		"nvmlDeviceGetComputeRunningProcesses_v3": &n.processes}); err != nil {
		return nil, err
	}
	if err := lib.Symbols(map[string]*unsafe.Pointer{"nvmlDeviceGetMemoryInfo_v2": &n.memory2}); err != nil {
		n.memory2 = nil
	}
	if err := n.check("starting", C.nvml_call(n.initialize)); err != nil {
		return nil, err
	}
	var devices C.unsigned
	if err := n.check("counting devices", C.nvml_count(n.count, &devices)); err != nil {
		return nil, err
	}
	if t.GPU < 0 || t.GPU >= int(devices) {
		return nil, fmt.Errorf("GPU %d: NVML shows %d", t.GPU, int(devices))
	}
	if err := n.check("opening the device", C.nvml_handle(n.handle, C.unsigned(t.GPU), &n.device)); err != nil {
		return nil, err
	}
	var name [96]C.char
	if err := n.check("naming the device", C.nvml_name(n.nameOf, n.device, &name[0], C.unsigned(len(name)))); err != nil {
		return nil, err
	}
	n.name = C.GoString(&name[0])
	if _, err := n.Sample(); err != nil {
		return nil, err
	}
	return n, nil
}

// check turns a status into an error.
func (n *nvml) check(doing string, rc C.int) error {
	if rc == 0 {
		return nil
	}
	return fmt.Errorf("NVML: %s: %s", doing, C.GoString(C.nvml_error(n.text, rc)))
}

func (n *nvml) Device() string { return n.name }
func (n *nvml) Close() error   { return n.check("ending", C.nvml_call(n.shutdown)) }

// Sample reads once.
func (n *nvml) Sample() (Sample, error) {
	var m C.memory_t
	if err := n.check("reading the device's memory", C.nvml_memory(n.memory, n.memory2, n.device, &m)); err != nil {
		return Sample{}, err
	}
	out := Sample{At: time.Now(), Used: int64(m.used), Total: int64(m.total)} //nolint:forbidigo // readings have their time
	if n.t.PID == 0 {
		return out, nil
	}
	const insufficient = 7 // NVML_ERROR_INSUFFICIENT_SIZE
	list := make([]C.process_t, 64)
	for {
		count := C.unsigned(len(list))
		rc := C.nvml_processes(n.processes, n.device, &count, &list[0])
		if rc == insufficient {
			list = make([]C.process_t, 2*max(int(count), len(list)))
			continue
		}
		if err := n.check("reading the processes", rc); err != nil {
			return out, err
		}
		list = list[:count]
		break
	}
	for i := range list {
		if int(list[i].pid) == n.t.PID {
			out.Used = int64(list[i].used)
			if out.Used < 0 { // NVML_VALUE_NOT_AVAILABLE
				return out, fmt.Errorf("NVML does not show the memory of process %d here: watch the device with --gpu", n.t.PID)
			}
			return out, nil
		}
	}
	return out, unlisted(n.t, len(list))
}
