// Types, conversions and block-wide sums that the kernels share. Every kernel
// takes one struct by value; its Go twin has its name, with Args behind it, and
// the same fields.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

typedef long long i64;
typedef unsigned int u32;
typedef unsigned long long u64;

// The element types, numbered as dtypes in device.go.
enum { F32, F16, BF16, F64, I64, I32, I16, I8, U8, BOOL };

template <typename T> __device__ __forceinline__ float get(T v) { return (float)v; }
template <> __device__ __forceinline__ float get(__half v) { return __half2float(v); }
template <> __device__ __forceinline__ float get(__nv_bfloat16 v) { return __bfloat162float(v); }

template <typename T> __device__ __forceinline__ T put(float v) { return (T)v; }
template <> __device__ __forceinline__ __half put(float v) { return __float2half_rn(v); }
template <> __device__ __forceinline__ __nv_bfloat16 put(float v) { return __float2bfloat16_rn(v); }

// load reads element i of an array whose type is known at run time.
template <typename C> __device__ __forceinline__ C load(const void* p, int dt, i64 i) {
  switch (dt) {
  case F32: return (C)((const float*)p)[i];
  case F16: return (C)__half2float(((const __half*)p)[i]);
  case BF16: return (C)__bfloat162float(((const __nv_bfloat16*)p)[i]);
  case F64: return (C)((const double*)p)[i];
  case I64: return (C)((const i64*)p)[i];
  case I32: return (C)((const int*)p)[i];
  case I16: return (C)((const short*)p)[i];
  case I8: return (C)((const signed char*)p)[i];
  default: return (C)((const unsigned char*)p)[i];
  }
}

// store writes element i of an array whose type is known at run time.
template <typename C> __device__ __forceinline__ void store(void* p, int dt, i64 i, C v) {
  switch (dt) {
  case F32: ((float*)p)[i] = (float)v; break;
  case F16: ((__half*)p)[i] = __float2half_rn((float)v); break;
  case BF16: ((__nv_bfloat16*)p)[i] = __float2bfloat16_rn((float)v); break;
  case F64: ((double*)p)[i] = (double)v; break;
  case I64: ((i64*)p)[i] = (i64)v; break;
  case I32: ((int*)p)[i] = (int)(i64)v; break;
  case I16: ((short*)p)[i] = (short)(i64)v; break;
  case I8: ((signed char*)p)[i] = (signed char)(i64)v; break;
  case U8: ((unsigned char*)p)[i] = (unsigned char)(i64)v; break;
  default: ((unsigned char*)p)[i] = v != (C)0;
  }
}

// DISPATCH runs body with T bound to one of the three training types.
#define DISPATCH(dt, body)                              \
  switch (dt) {                                         \
  case F32: { typedef float T; body } break;            \
  case F16: { typedef __half T; body } break;           \
  case BF16: { typedef __nv_bfloat16 T; body } break;   \
  }

// COMMA stands for one in the argument of a macro.
#define COMMA ,

// loadf reads element i of a statistic or a weight, whose type may not be that
// of the operand.
__device__ __forceinline__ float loadf(const void* p, int dt, i64 i) { return load<float>(p, dt, i); }

__device__ __forceinline__ float warp_sum(float v) {
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}

__device__ __forceinline__ float warp_max(float v) {
  for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
  return v;
}

// block_sum adds v over the block's threads (a multiple of 32, at most 1024)
// in a fixed order and gives every thread the sum.
__device__ __forceinline__ float block_sum(float v) {
  __shared__ float part[33];
  v = warp_sum(v);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
  __syncthreads();
  if (threadIdx.x < 32) {
    float w = threadIdx.x < (blockDim.x >> 5) ? part[threadIdx.x] : 0.f;
    w = warp_sum(w);
    if (threadIdx.x == 0) part[32] = w;
  }
  __syncthreads();
  return part[32];
}

__device__ __forceinline__ float block_max(float v) {
  __shared__ float part[33];
  v = warp_max(v);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
  __syncthreads();
  if (threadIdx.x < 32) {
    float w = threadIdx.x < (blockDim.x >> 5) ? part[threadIdx.x] : -INFINITY;
    w = warp_max(w);
    if (threadIdx.x == 0) part[32] = w;
  }
  __syncthreads();
  return part[32];
}

// mix and uniform are the random numbers of package validate: number i of a
// seed, whatever came before, so that a call that runs again draws the same.
__device__ __forceinline__ u64 mix(u64 z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}
__device__ __forceinline__ float uniform(u64 seed, u64 i) { return (float)(mix(seed + (i + 1) * 0x9e3779b97f4a7c15ull) >> 40) * (1.f / 16777216.f); }

// place_of gives the place of element i, counted row by row.
__device__ __forceinline__ i64 place_of(i64 i, int dims, const i64* size, const i64* stride) {
  i64 off = 0;
  for (int d = dims - 1; d > 0; d--) {
    i64 q = i < 0x7fffffff && size[d] < 0x7fffffff ? (i64)((u32)i / (u32)size[d]) : i / size[d];
    off += (i - q * size[d]) * stride[d];
    i = q;
  }
  return dims ? off + i * stride[0] : off;
}
