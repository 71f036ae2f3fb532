// libcuda.so.1 without a GPU: the part of the driver that validate/cuda calls, on
// memory of the process. Everything is done when a call returns. A module is
// known by its PTX, and its functions are those of the library that build.sh made
// of the same source, beside this one. What is missing here the loader names.
#include "launch.h"

#include <cuda.h>
#include <dirent.h>
#include <dlfcn.h>
#include <link.h>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <string>

namespace {

struct Module {
  void* library;
  std::string ptx;
};

struct Function {
  std::string name;
  void* code;
  size_t bytes;       // of its argument
  size_t shared = emulator::kSharedFree; // that a launch may ask for
};

std::mutex one; // launches, loading modules and counting memory
std::map<void*, size_t> sizes; // of what is allocated, in bytes
size_t held; // their sum

CUresult refuse(CUresult rc, const std::string& why) {
  fprintf(stderr, "emulator: %s\n", why.c_str());
  return rc;
}

std::string folder() {
  Dl_info self;
  dladdr((void*)refuse, &self);
  std::string path = self.dli_fname;
  return path.substr(0, path.rfind('/'));
}

std::string contents(const std::string& file) {
  std::stringstream s;
  s << std::ifstream(file).rdbuf();
  return s.str();
}

// source gives the name of the kernels' source that a PTX was compiled from.
std::string source(const std::string& dir, const std::string& ptx) {
  std::string found;
  DIR* d = opendir(dir.c_str());
  while (dirent* e = d ? readdir(d) : nullptr) {
    std::string name = e->d_name;
    if (name.size() > 4 && name.substr(name.size() - 4) == ".ptx" && contents(dir + "/" + name) == ptx) found = name.substr(0, name.size() - 4);
  }
  if (d) closedir(d);
  return found;
}

// argument gives the size of a kernel's argument by its PTX, 0 where it has no
// such kernel: ".entry NAME(\n.param .align 8 .b8 NAME_param_0[SIZE]".
size_t argument(const std::string& ptx, const std::string& name) {
  size_t at = ptx.find(".entry " + name + "(");
  if (at == std::string::npos) return 0;
  std::string param = name + "_param_0[";
  at = ptx.find(param, at);
  return at == std::string::npos ? 0 : strtoul(ptx.c_str() + at + param.size(), nullptr, 10);
}

// Handles that are only passed around.
char context, stream;

}  // namespace

extern "C" {

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* v) { return *v = CUDA_VERSION, CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int* n) { return *n = 1, CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* d, int) { return *d = 0, CUDA_SUCCESS; }
CUresult cuDeviceGetName(char* name, int n, CUdevice) { return snprintf(name, n, "emulated"), CUDA_SUCCESS; }

// Compute capability 7.0, the last before the tensor cores that kernels are
// written for, and few multiprocessors, so that small tensors are split over them.
CUresult cuDeviceGetAttribute(int* v, CUdevice_attribute a, CUdevice) {
  switch (a) {
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *v = 7; break;
  case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *v = 4; break;
  default: return refuse(CUDA_ERROR_INVALID_VALUE, "no attribute " + std::to_string(a) + ": add it in driver.cpp");
  }
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult rc, const char** name) {
  static thread_local char text[16];
  snprintf(text, sizeof text, "error %d", rc);
  return *name = text, CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult rc, const char** text) { return cuGetErrorName(rc, text); }

CUresult cuCtxCreate(CUcontext* c, unsigned, CUdevice) { return *c = (CUcontext)&context, CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxDestroy(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxSynchronize() { return CUDA_SUCCESS; }
CUresult cuStreamCreate(CUstream* s, unsigned) { return *s = (CUstream)&stream, CUDA_SUCCESS; }
CUresult cuStreamSynchronize(CUstream) { return CUDA_SUCCESS; }
CUresult cuStreamDestroy(CUstream) { return CUDA_SUCCESS; }

CUresult cuEventCreate(CUevent* e, unsigned) { return *e = (CUevent) new timespec{}, CUDA_SUCCESS; }
CUresult cuEventRecord(CUevent e, CUstream) { return clock_gettime(CLOCK_MONOTONIC, (timespec*)e), CUDA_SUCCESS; }
CUresult cuEventElapsedTime(float* ms, CUevent from, CUevent to) {
  const timespec *a = (const timespec*)from, *b = (const timespec*)to;
  return *ms = 1e3 * (b->tv_sec - a->tv_sec) + 1e-6 * (b->tv_nsec - a->tv_nsec), CUDA_SUCCESS;
}

CUresult cuMemGetInfo(size_t* free, size_t* total) {
  std::lock_guard<std::mutex> lock(one);
  return *total = (size_t)8 << 30, *free = *total - held, CUDA_SUCCESS;
}
CUresult cuMemAlloc(CUdeviceptr* p, size_t n) {
  void* got = aligned_alloc(512, (n + 511) / 512 * 512);
  if (!got) return CUDA_ERROR_OUT_OF_MEMORY;
  memset(got, 0xff, n); // NaNs
  std::lock_guard<std::mutex> lock(one);
  held += sizes[got] = n;
  return *p = (CUdeviceptr)got, CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr p) {
  std::lock_guard<std::mutex> lock(one);
  held -= sizes[(void*)p];
  sizes.erase((void*)p);
  return free((void*)p), CUDA_SUCCESS;
}
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t n) { return memcpy((void*)to, from, n), CUDA_SUCCESS; }
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t n, CUstream) { return cuMemcpyHtoD(to, from, n); }
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t n) { return memcpy(to, (void*)from, n), CUDA_SUCCESS; }
CUresult cuMemsetD8Async(CUdeviceptr p, unsigned char v, size_t n, CUstream) { return memset((void*)p, v, n), CUDA_SUCCESS; }

CUresult cuModuleLoadData(CUmodule* m, const void* image) {
  std::lock_guard<std::mutex> lock(one);
  static std::map<std::string, Module*> loaded;
  std::string ptx = (const char*)image, dir = folder();
  Module*& known = loaded[ptx];
  if (!known) {
    std::string name = source(dir, ptx);
    if (name.empty()) return refuse(CUDA_ERROR_INVALID_PTX, "no library in " + dir + " is of these kernels: run build.sh again (kernels on tensor cores are left out)");
    void* library = dlopen((dir + "/" + name + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) return refuse(CUDA_ERROR_INVALID_IMAGE, dlerror());
    known = new Module{library, ptx};
  }
  return *m = (CUmodule)known, CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* f, CUmodule module, const char* name) {
  const Module* m = (const Module*)module;
  void* code = dlsym(m->library, name);
  size_t bytes = argument(m->ptx, name);
  if (!code || bytes <= 16) return refuse(CUDA_ERROR_NOT_FOUND, std::string("no kernel ") + name + " that takes one struct of over 16 bytes, in its source and in its PTX: go generate ./validate/cuda, and run build.sh again");
  return *f = (CUfunction) new Function{name, code, bytes}, CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal(CUdeviceptr* p, size_t* bytes, CUmodule module, const char* name) {
  void* at = dlsym(((const Module*)module)->library, name);
  Dl_info info;
  const ElfW(Sym)* symbol;
  if (!at || !dladdr1(at, &info, (void**)&symbol, RTLD_DL_SYMENT)) return CUDA_ERROR_NOT_FOUND;
  if (bytes) *bytes = symbol->st_size;
  return *p = (CUdeviceptr)at, CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int v) {
  if (a != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || v < 0 || (size_t)v > emulator::kSharedMost) return CUDA_ERROR_INVALID_VALUE;
  return ((Function*)f)->shared = v, CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream, void**, void** extra) {
  std::lock_guard<std::mutex> lock(one);
  const Function* f = (const Function*)function;
  size_t bytes = *(const size_t*)extra[3]; // extra is what ../launch.go makes
  char grid[120];
  snprintf(grid, sizeof grid, " (%u, %u, %u) blocks of (%u, %u, %u) threads, %u bytes shared, %zu of arguments", gx, gy, gz, bx, by, bz, shared, bytes);
  bool fits = gx && gy && gz && gx <= 0x7fffffff && gy <= 65535 && gz <= 65535 && bx && by && bz && bz <= 64 && (size_t)bx * by * bz <= 1024;
  if (!fits || shared > f->shared || bytes > emulator::kArgumentsMost) return refuse(CUDA_ERROR_INVALID_VALUE, "kernel " + f->name + ": no card runs" + grid);
  if (bytes != f->bytes) return refuse(CUDA_ERROR_INVALID_VALUE, "kernel " + f->name + " takes " + std::to_string(f->bytes) + " bytes by its PTX:" + grid);
  emulator::launch(f->name.c_str(), f->code, dim3(gx, gy, gz), dim3(bx, by, bz), shared, extra[1], bytes);
  return CUDA_SUCCESS;
}

}  // extern "C"
