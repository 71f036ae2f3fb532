// Elements that are selected: sorted lines, numbers that are repeated, windows.
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

// Windows of images as columns: [planes, taps, places] of [planes, h, w], row by row.
struct Columns {
  i64 planes, h, w, oh, ow;
  const void* in;
  void* out;
  int kh, kw, sh, sw, ph, pw, dh, dw, dtype, pad;
};

template <typename T> __device__ void to_columns(const Columns& a) {
  i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x, places = a.oh * a.ow;
  int taps = a.kh * a.kw;
  if (i >= a.planes * taps * places) return;
  i64 plane = i / (taps * places), at = i % places;
  int tap = (int)(i / places % taps);
  i64 y = at / a.ow * a.sh - a.ph + tap / a.kw * a.dh, x = at % a.ow * a.sw - a.pw + tap % a.kw * a.dw;
  bool inside = y >= 0 && y < a.h && x >= 0 && x < a.w;
  ((T*)a.out)[i] = inside ? ((const T*)a.in)[(plane * a.h + y) * a.w + x] : put<T>(0.f);
}
extern "C" __global__ void columns_forward(Columns a) { DISPATCH(a.dtype, to_columns<T>(a);) }

// from_columns gathers, for each pixel, what the windows over it have there.
template <typename T> __device__ void from_columns(const Columns& a) {
  i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= a.planes * a.h * a.w) return;
  i64 plane = i / (a.h * a.w), y = i / a.w % a.h, x = i % a.w;
  float sum = 0;
  for (int j = 0; j < a.kh; j++) {
    i64 oy = y + a.ph - j * a.dh;
    if (oy < 0 || oy % a.sh || oy / a.sh >= a.oh) continue;
    for (int k = 0; k < a.kw; k++) {
      i64 ox = x + a.pw - k * a.dw;
      if (ox < 0 || ox % a.sw || ox / a.sw >= a.ow) continue;
      sum += get<T>(((const T*)a.in)[((plane * a.kh + j) * a.kw + k) * a.oh * a.ow + oy / a.sh * a.ow + ox / a.sw]);
    }
  }
  ((T*)a.out)[i] = put<T>(sum);
}
extern "C" __global__ void columns_backward(Columns a) { DISPATCH(a.dtype, from_columns<T>(a);) }
