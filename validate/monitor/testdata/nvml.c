// A library with the functions of NVML that memplan calls.
#include <stdio.h>
#include <stdlib.h>

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process_t;

static unsigned long long readings;

int nvmlInit_v2(void) {
	const char *s = getenv("FAKE_NVML_STATUS");
	return s ? atoi(s) : 0;
}
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int rc) {
	static char text[32];
	snprintf(text, sizeof text, "fake status %d", rc);
	return text;
}
int nvmlDeviceGetCount_v2(unsigned *n) { return *n = 1, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { return *d = &readings, i != 0; }
int nvmlDeviceGetName(void *d, char *s, unsigned n) { return snprintf(s, n, "Fake card"), 0; }
int nvmlDeviceGetMemoryInfo(void *d, memory_t *m) {
	m->total = 16ull << 30;
	m->used = ++readings << 20;
#ifdef SECOND // what the driver keeps counts as used
	m->used += 600 << 20;
#endif
	m->free = m->total - m->used;
	return 0;
}
#ifdef SECOND
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory2_t;
int nvmlDeviceGetMemoryInfo_v2(void *d, memory2_t *m) {
	if (m->version != 0x2000028) return 25; // NVML_ERROR_ARGUMENT_VERSION_MISMATCH
	m->total = 16ull << 30;
	m->reserved = 600 << 20;
	m->used = ++readings << 20;
	m->free = m->total - m->reserved - m->used;
	return 0;
}
#endif
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, process_t *p) {
	unsigned have = *n;
	*n = 100;
	if (have < 100) return 7;
	for (unsigned i = 0; i < 100; i++) p[i].pid = 100 + i, p[i].used = i ? 1 << 20 : ~0ull;
	p[99].used = 3 << 20;
	return 0;
}
