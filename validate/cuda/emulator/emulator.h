// CUDA C on a processor: what the sources in ../kernels use of the language, in
// C++. build.sh includes this file before each of them. A thread is a fiber
// (emulator.cpp); blocks run one after another. Anything that a new kernel uses
// and that is missing here is a line at the end.
//
// Kernels on tensor cores (*_sm80.cu) are left out: they are written in PTX.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_functions.h>
#include <vector_types.h>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __forceinline__
#undef __launch_bounds__
#undef __restrict__
#define __global__
#define __device__
#define __host__
// Arrays of a function are static that way, and "extern" may stand before it, for
// the memory of a launch, which emulator.cpp has.
#define __shared__ thread_local
#define __constant__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define __CUDACC__ // after NVIDIA's headers: the kernels alone take this for CUDA

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace emulator {
void wait_for_block();
void wait_for_warp();
unsigned lane();
unsigned alive(); // the lanes of the warp that have not returned

// gather gives what every lane of the warp put in.
const uint64_t* gather(uint64_t);

// from gives the value of another lane, or one's own where there is none.
template <typename T> T from(T value, int other) {
  static_assert(sizeof(T) <= 8, "a shuffle moves up to 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  bits = gather(bits)[other >= 0 && other < 32 ? other : lane()];
  memcpy(&value, &bits, sizeof value);
  return value;
}
}  // namespace emulator

inline void __syncthreads() { emulator::wait_for_block(); }
inline void __syncwarp(unsigned = ~0u) { emulator::wait_for_warp(); }
template <typename T> T __shfl_sync(unsigned, T v, int other) { return emulator::from(v, other); }
template <typename T> T __shfl_xor_sync(unsigned, T v, int bits) { return emulator::from(v, (int)emulator::lane() ^ bits); }
template <typename T> T __shfl_up_sync(unsigned, T v, int by) { return emulator::from(v, (int)emulator::lane() - by); }
template <typename T> T __shfl_down_sync(unsigned, T v, int by) { return emulator::from(v, (int)emulator::lane() + by); }
inline unsigned __ballot_sync(unsigned, bool v) {
  const uint64_t* all = emulator::gather(v);
  unsigned out = 0;
  for (int i = 0; i < 32; i++) out |= (unsigned)(all[i] != 0) << i;
  return out & emulator::alive();
}

// One thread runs at a time, so nothing comes between.
template <typename T, typename U> T atomicAdd(T* p, U v) {
  T old = *p;
  *p = old + v;
  return old;
}
template <typename T, typename U> T atomicMax(T* p, U v) {
  T old = *p;
  *p = std::max(old, (T)v);
  return old;
}
template <typename T, typename U> T atomicOr(T* p, U v) {
  T old = *p;
  *p = old | v;
  return old;
}
template <typename T, typename U> T atomicExch(T* p, U v) {
  T old = *p;
  *p = v;
  return old;
}
template <typename T, typename U, typename V> T atomicCAS(T* p, U expected, V v) {
  T old = *p;
  if (old == expected) *p = v;
  return old;
}

using std::max;
using std::min;
template <typename T> T __ldg(const T* p) { return *p; }
inline int __ffs(unsigned v) { return __builtin_ffs((int)v); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned long long)((unsigned __int128)a * b >> 64); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
inline double cospi(double x) { return cos(M_PI * x); }

// erfinv starts from Winitzki's approximation, of relative error 2e-3, and takes
// Newton's steps, which double the digits.
inline double erfinv(double x) {
  if (!(fabs(x) < 1)) return fabs(x) == 1 ? copysign(INFINITY, x) : NAN;
  const double a = 0.147, l = log1p(-x * x), t = 2 / (M_PI * a) + l / 2;
  double y = copysign(sqrt(sqrt(t * t - l / a) - t), x);
  for (int i = 0; i < 4; i++) y -= (erf(y) - x) / (2 / sqrt(M_PI) * exp(-y * y));
  return y;
}
inline float erfinv(float x) { return (float)erfinv((double)x); }
