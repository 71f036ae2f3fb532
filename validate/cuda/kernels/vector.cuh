// Vectors of elements that lie side by side, and sums over parts of a block.
#pragma once
#include "common.cuh"

template <int BYTES> struct Raw;
template <> struct Raw<1> { typedef unsigned char type; };
template <> struct Raw<2> { typedef unsigned short type; };
template <> struct Raw<4> { typedef u32 type; };
template <> struct Raw<8> { typedef uint2 type; };
template <> struct Raw<16> { typedef uint4 type; };

// A Pack is V elements that one instruction reads or writes; its address must be
// a multiple of its size.
template <typename T, int V> struct Pack {
  typename Raw<sizeof(T) * V>::type raw;
  __device__ __forceinline__ float operator[](int i) const { return get<T>(reinterpret_cast<const T*>(&raw)[i]); }
  __device__ __forceinline__ void set(int i, float v) { reinterpret_cast<T*>(&raw)[i] = put<T>(v); }
};

template <typename T, int V> __device__ __forceinline__ Pack<T, V> read_pack(const T* p) {
  Pack<T, V> v;
  v.raw = *reinterpret_cast<const typename Raw<sizeof(T) * V>::type*>(p);
  return v;
}
template <typename T, int V> __device__ __forceinline__ void write_pack(T* p, const Pack<T, V>& v) {
  *reinterpret_cast<typename Raw<sizeof(T) * V>::type*>(p) = v.raw;
}

// WIDE is how many elements of a type fill 16 bytes.
#define WIDE(T) (16 / (int)sizeof(T))

// A team is the threads along x of a block: a power of two up to 32, with teams
// of other rows along y, or a multiple of 32 that is the whole block. Each gets
// the sum, or the maximum. All threads of the block must be there.
__device__ __forceinline__ float team_sum(float v) {
  if (blockDim.x > 32) return block_sum(v);
  for (int o = blockDim.x / 2; o; o /= 2) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}
__device__ __forceinline__ float team_max(float v) {
  if (blockDim.x > 32) return block_max(v);
  for (int o = blockDim.x / 2; o; o /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
  return v;
}

// fold_columns adds S sums of V columns a thread over the block's 256 threads
// along y, in order, and gives out(s, column of the block, sum) each.
template <int S, int V, typename F> __device__ __forceinline__ void fold_columns(const float (&acc)[S][V], F out) {
  __shared__ float part[S * V * 256];
  int n = blockDim.x * blockDim.y, t = threadIdx.y * blockDim.x + threadIdx.x, wide = V * blockDim.x;
#pragma unroll
  for (int s = 0; s < S; s++)
#pragma unroll
    for (int i = 0; i < V; i++) part[(s * V + i) * n + t] = acc[s][i];
  __syncthreads();
  for (int o = t; o < S * wide; o += n) {
    int s = o / wide, c = o - s * wide;
    const float* from = part + (s * V + c % V) * n + c / V;
    float sum = 0;
    for (int y = 0; y < blockDim.y; y++) sum += from[y * blockDim.x];
    out(s, c, sum);
  }
}
