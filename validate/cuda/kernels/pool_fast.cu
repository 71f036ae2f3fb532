// Max pooling where 32 bits count all elements. Backward, a thread writes a cell
// of the operand, a stride high and wide: the windows that reach into it are
// those at the same distance from every cell.
#include "divide.cuh"

struct Windows {
  u32 n;             // threads: results forward, cells backward
  int channels_last; // dims by their places in memory: innermost channels, or columns
  Divider dim[3];    // innermost first
  int h, w, oh, ow;
  int in_stride[4], out_stride[4], index_stride[4]; // of [N, C, H, W] and [N, C, OH, OW]
  const void* in;                                   // backward: the gradient of the result, at out_stride
  void* out;                                        // backward: the gradient of the operand, at in_stride
  i64* index;
  int kh, kw, sh, sw, ph, pw, dh, dw;
  int above, below, before, after; // windows on a cell, counted from the window of its number
  int dtype, pairs;                // pairs: two columns of a row lie at a multiple of their size
};

// place sets n, c, y and x to thread i's.
__device__ __forceinline__ void place(const Windows& a, u32 i, int& n, int& c, int& y, int& x) {
  int p = (int)split_off(i, a.dim[0]), q = (int)split_off(i, a.dim[1]), r = (int)split_off(i, a.dim[2]);
  n = (int)i;
  if (a.channels_last) c = p, x = q, y = r;
  else x = p, y = q, c = r;
}

// K is the size of the windows where it is known, else 0.
template <typename T, int K> __device__ void forward(const Windows& a) {
  u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= a.n) return;
  int n, c, y, x, kh = K ? K : a.kh, kw = K ? K : a.kw, where = -1;
  place(a, i, n, c, y, x);
  const T* in = (const T*)a.in + (n * a.in_stride[0] + c * a.in_stride[1]);
  float best = -INFINITY;
#pragma unroll
  for (int p = 0; p < kh; p++) {
    int iy = y * a.sh - a.ph + p * a.dh;
#pragma unroll
    for (int q = 0; q < kw; q++) {
      int ix = x * a.sw - a.pw + q * a.dw;
      if (iy < 0 || iy >= a.h || ix < 0 || ix >= a.w) continue;
      float v = get<T>(in[iy * a.in_stride[2] + ix * a.in_stride[3]]);
      if (where < 0 || v > best || v != v) best = v, where = iy * a.w + ix;
    }
  }
  ((T*)a.out)[n * a.out_stride[0] + c * a.out_stride[1] + y * a.out_stride[2] + x * a.out_stride[3]] = put<T>(best);
  if (a.index) a.index[n * a.index_stride[0] + c * a.index_stride[1] + y * a.index_stride[2] + x * a.index_stride[3]] = where;
}
extern "C" __global__ void max_forward_0(Windows a) { DISPATCH(a.dtype, forward<T COMMA 0>(a);) }
extern "C" __global__ void max_forward_2(Windows a) { DISPATCH(a.dtype, forward<T COMMA 2>(a);) }
extern "C" __global__ void max_forward_3(Windows a) { DISPATCH(a.dtype, forward<T COMMA 3>(a);) }

// S is the stride in both dims.
template <typename T, int S> __device__ void backward(const Windows& a) {
  u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= a.n) return;
  int n, c, y, x;
  place(a, i, n, c, y, x);
  float sum[S][S];
#pragma unroll
  for (int p = 0; p < S; p++)
#pragma unroll
    for (int q = 0; q < S; q++) sum[p][q] = 0;
  int corner = y * S * a.w + x * S;
  const T* grad = (const T*)a.in + (n * a.out_stride[0] + c * a.out_stride[1]);
  const i64* index = a.index + (n * a.index_stride[0] + c * a.index_stride[1]);
  for (int oy = max(y + a.above, 0); oy <= min(y + a.below, a.oh - 1); oy++)
    for (int ox = max(x + a.before, 0); ox <= min(x + a.after, a.ow - 1); ox++) {
      int where = (int)index[oy * a.index_stride[2] + ox * a.index_stride[3]] - corner;
      float g = get<T>(grad[oy * a.out_stride[2] + ox * a.out_stride[3]]);
#pragma unroll
      for (int p = 0; p < S; p++)
#pragma unroll
        for (int q = 0; q < S; q++)
          if (where == p * a.w + q) sum[p][q] += g;
    }
  T* out = (T*)a.out + (n * a.in_stride[0] + c * a.in_stride[1] + y * S * a.in_stride[2] + x * S * a.in_stride[3]);
#pragma unroll
  for (int p = 0; p < S; p++) {
    if (y * S + p >= a.h) return;
    if (S == 2 && a.pairs) {
      struct alignas(2 * sizeof(T)) Pair { T v[2]; } pair = {{put<T>(sum[p][0]), put<T>(sum[p][S - 1])}};
      *(Pair*)(out + p * a.in_stride[2]) = pair;
      continue;
    }
#pragma unroll
    for (int q = 0; q < S; q++)
      if (x * S + q < a.w) out[p * a.in_stride[2] + q * a.in_stride[3]] = put<T>(sum[p][q]);
  }
}
extern "C" __global__ void max_backward_1(Windows a) { DISPATCH(a.dtype, backward<T COMMA 1>(a);) }
extern "C" __global__ void max_backward_2(Windows a) { DISPATCH(a.dtype, backward<T COMMA 2>(a);) }
extern "C" __global__ void max_backward_3(Windows a) { DISPATCH(a.dtype, backward<T COMMA 3>(a);) }
