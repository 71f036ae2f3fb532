// Elements that are selected: sorted lines, and numbers that are repeated.
#include "common.cuh"

// orderable gives numbers keys that sort as they do: zeros are one, and what is not a
// number is the largest.
__device__ __forceinline__ u64 orderable(double v) {
  if (v != v) return ~0ull;
  if (v == 0) v = 0;
  u64 bits;
  memcpy(&bits, &v, sizeof bits);
  return bits >> 63 ? ~bits : bits | 1ull << 63;
}

struct TopK {
  i64 lines, length, inner, k; // contiguous: element (o, l, i) lies at (o*length + l)*inner + i
  const void* in;
  void* out;
  i64* index;
  int dtype, largest;
};

__device__ __forceinline__ u64 key_of(const TopK& a, i64 at) {
  u64 key = a.dtype >= I64 ? (u64)load<i64>(a.in, a.dtype, at) ^ 1ull << 63 : orderable(load<double>(a.in, a.dtype, at));
  return a.largest ? ~key : key;
}

// top_k has a block for 256 elements of a line: each counts how many of the line come
// before it, which is its place. Quadratic in the line's length.
extern "C" __global__ void top_k(TopK a) {
  __shared__ u64 keys[256];
  i64 chunks = (a.length + 255) / 256;
  for (i64 block = blockIdx.x; block < a.lines * chunks; block += gridDim.x) {
    i64 line = block / chunks, own = block % chunks * 256 + threadIdx.x;
    i64 base = line / a.inner * a.inner * a.length + line % a.inner;
    u64 key = own < a.length ? key_of(a, base + own * a.inner) : 0;
    i64 before = 0;
    for (i64 from = 0; from < a.length; from += 256) {
      int n = (int)min(a.length - from, (i64)256);
      __syncthreads();
      if (threadIdx.x < n) keys[threadIdx.x] = key_of(a, base + (from + threadIdx.x) * a.inner);
      __syncthreads();
      for (int j = 0; j < n; j++) before += keys[j] < key || keys[j] == key && from + j < own;
    }
    if (own >= a.length || before >= a.k) continue;
    i64 to = line / a.inner * a.inner * a.k + before * a.inner + line % a.inner;
    if (a.dtype >= I64) store<i64>(a.out, a.dtype, to, load<i64>(a.in, a.dtype, base + own * a.inner));
    else store<double>(a.out, a.dtype, to, load<double>(a.in, a.dtype, base + own * a.inner));
    a.index[to] = own;
  }
}

// interleave makes the number of each element as often as it is repeated; sums are the
// running sums of how often. What lies behind them all is the last.
struct Interleave {
  i64 n, elements;
  const i64* sums;
  void* out;
  int dtype, pad; // of the result
};
extern "C" __global__ void interleave(Interleave a) {
  i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= a.n) return;
  i64 lo = 0, hi = a.elements - 1; // the first element whose sum is above i
  while (lo < hi) {
    i64 mid = (lo + hi) / 2;
    if (a.sums[mid] > i) hi = mid;
    else lo = mid + 1;
  }
  store<i64>(a.out, a.dtype, i, lo);
}
