// Pooling over windows, adaptive pooling and interpolation, forward and
// backward. Operands may be strided; one-dimensional ones have a height of 1.
#include "common.cuh"

struct Pool {
  i64 n, c, h, w, oh, ow;
  i64 in_stride[4], out_stride[4], index_stride[4]; // of [N, C, H, W] and [N, C, OH, OW]
  const void* in;                                   // backward: the gradient of the result, at out_stride
  void* out;                                        // backward: the gradient of the operand, at in_stride
  i64* index;
  int kh, kw, sh, sw, ph, pw, dh, dw;
  int divisor, exclude_pad, dtype, pad;
};

__device__ __forceinline__ i64 at(const i64* s, i64 n, i64 c, i64 y, i64 x) { return n * s[0] + c * s[1] + y * s[2] + x * s[3]; }

// PLACE sets n, c, y and x to thread i's element of an [N, C, H, W] tensor; the
// threads run along what lies side by side.
#define PLACE(H, W, S)                                                                             \
  i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;                                              \
  if (i >= a.n * a.c * (H) * (W)) return;                                                          \
  i64 n, c, y, x;                                                                                  \
  bool last = (S)[1] == 1 && a.c > 1;                                                              \
  if (a.n * a.c * (H) * (W) < 0x7fffffff) split<u32>(i, a.c, H, W, last, n, c, y, x);              \
  else split<i64>(i, a.c, H, W, last, n, c, y, x);

// split takes the number of an element apart; 32-bit divisions are the faster.
template <typename I> __device__ __forceinline__ void split(i64 at, i64 channels, i64 height, i64 width, bool last, i64& n, i64& c, i64& y, i64& x) {
  I i = (I)at, ch = (I)channels, h = (I)height, w = (I)width, q;
  if (last) {
    q = i / ch; c = i - q * ch; i = q;
    q = i / w; x = i - q * w; i = q;
    q = i / h; y = i - q * h; n = q;
  } else {
    q = i / w; x = i - q * w; i = q;
    q = i / h; y = i - q * h; i = q;
    q = i / ch; c = i - q * ch; n = q;
  }
}

template <typename T> __device__ void max_pool(const Pool& a) {
  PLACE(a.oh, a.ow, a.out_stride)
  float best = -INFINITY;
  i64 where = -1;
  for (int i = 0; i < a.kh; i++) {
    i64 iy = y * a.sh - a.ph + (i64)i * a.dh;
    if (iy < 0 || iy >= a.h) continue;
    for (int j = 0; j < a.kw; j++) {
      i64 ix = x * a.sw - a.pw + (i64)j * a.dw;
      if (ix < 0 || ix >= a.w) continue;
      float v = get<T>(((const T*)a.in)[at(a.in_stride, n, c, iy, ix)]);
      if (where < 0 || v > best || v != v) best = v, where = iy * a.w + ix;
    }
  }
  ((T*)a.out)[at(a.out_stride, n, c, y, x)] = put<T>(best);
  if (a.index) a.index[at(a.index_stride, n, c, y, x)] = where;
}
extern "C" __global__ void max_pool_forward(Pool a) { DISPATCH(a.dtype, max_pool<T>(a);) }

// windows sets the results whose windows may cover position p of one dim.
__device__ __forceinline__ void windows(i64 p, int k, int s, int pad, int d, i64 outs, i64& from, i64& to) {
  int reach = (k - 1) * d, at = (int)p + pad, lo = at - reach;
  from = lo <= 0 ? 0 : (lo + s - 1) / s;
  to = min((i64)(at / s), outs - 1);
}

template <typename T> __device__ void max_pool_back(const Pool& a) {
  PLACE(a.h, a.w, a.in_stride)
  i64 y0, y1, x0, x1, me = y * a.w + x;
  windows(y, a.kh, a.sh, a.ph, a.dh, a.oh, y0, y1);
  windows(x, a.kw, a.sw, a.pw, a.dw, a.ow, x0, x1);
  float sum = 0;
  for (i64 oy = y0; oy <= y1; oy++)
    for (i64 ox = x0; ox <= x1; ox++)
      if (a.index[at(a.index_stride, n, c, oy, ox)] == me) sum += get<T>(((const T*)a.in)[at(a.out_stride, n, c, oy, ox)]);
  ((T*)a.out)[at(a.in_stride, n, c, y, x)] = put<T>(sum);
}
extern "C" __global__ void max_pool_backward(Pool a) { DISPATCH(a.dtype, max_pool_back<T>(a);) }

// share is what an average over window (oy, ox) divides by.
__device__ __forceinline__ float share(const Pool& a, i64 oy, i64 ox) {
  if (a.divisor) return (float)a.divisor;
  i64 y0 = oy * a.sh - a.ph, x0 = ox * a.sw - a.pw;
  i64 y1 = min(y0 + a.kh, a.h + a.ph), x1 = min(x0 + a.kw, a.w + a.pw);
  if (!a.exclude_pad) return (float)((y1 - y0) * (x1 - x0));
  return (float)((min(y1, a.h) - max(y0, (i64)0)) * (min(x1, a.w) - max(x0, (i64)0)));
}

template <typename T> __device__ void avg_pool(const Pool& a) {
  PLACE(a.oh, a.ow, a.out_stride)
  float sum = 0;
  for (i64 iy = max(y * a.sh - a.ph, (i64)0); iy < min(y * a.sh - a.ph + a.kh, a.h); iy++)
    for (i64 ix = max(x * a.sw - a.pw, (i64)0); ix < min(x * a.sw - a.pw + a.kw, a.w); ix++)
      sum += get<T>(((const T*)a.in)[at(a.in_stride, n, c, iy, ix)]);
  ((T*)a.out)[at(a.out_stride, n, c, y, x)] = put<T>(sum / share(a, y, x));
}
extern "C" __global__ void avg_pool_forward(Pool a) { DISPATCH(a.dtype, avg_pool<T>(a);) }

template <typename T> __device__ void avg_pool_back(const Pool& a) {
  PLACE(a.h, a.w, a.in_stride)
  i64 y0, y1, x0, x1;
  windows(y, a.kh, a.sh, a.ph, 1, a.oh, y0, y1);
  windows(x, a.kw, a.sw, a.pw, 1, a.ow, x0, x1);
  float sum = 0;
  for (i64 oy = y0; oy <= y1; oy++)
    for (i64 ox = x0; ox <= x1; ox++)
      sum += get<T>(((const T*)a.in)[at(a.out_stride, n, c, oy, ox)]) / share(a, oy, ox);
  ((T*)a.out)[at(a.in_stride, n, c, y, x)] = put<T>(sum);
}
extern "C" __global__ void avg_pool_backward(Pool a) { DISPATCH(a.dtype, avg_pool_back<T>(a);) }

// Adaptive windows run from floor(o*in/out) to ceil((o+1)*in/out).
__device__ __forceinline__ i64 adaptive_from(i64 o, i64 in, i64 out) { return o * in / out; }
__device__ __forceinline__ i64 adaptive_to(i64 o, i64 in, i64 out) { return ((o + 1) * in + out - 1) / out; }

template <typename T> __device__ void adaptive_avg(const Pool& a) {
  PLACE(a.oh, a.ow, a.out_stride)
  i64 y0 = adaptive_from(y, a.h, a.oh), y1 = adaptive_to(y, a.h, a.oh), x0 = adaptive_from(x, a.w, a.ow), x1 = adaptive_to(x, a.w, a.ow);
  float sum = 0;
  for (i64 iy = y0; iy < y1; iy++)
    for (i64 ix = x0; ix < x1; ix++) sum += get<T>(((const T*)a.in)[at(a.in_stride, n, c, iy, ix)]);
  ((T*)a.out)[at(a.out_stride, n, c, y, x)] = put<T>(sum / (float)((y1 - y0) * (x1 - x0)));
}
extern "C" __global__ void adaptive_avg_forward(Pool a) { DISPATCH(a.dtype, adaptive_avg<T>(a);) }

template <typename T> __device__ void adaptive_avg_back(const Pool& a) {
  PLACE(a.h, a.w, a.in_stride)
  float sum = 0;
  for (i64 oy = y * a.oh / a.h; oy < a.oh && adaptive_from(oy, a.h, a.oh) <= y; oy++) {
    i64 y0 = adaptive_from(oy, a.h, a.oh), y1 = adaptive_to(oy, a.h, a.oh);
    if (y >= y1) continue;
    for (i64 ox = x * a.ow / a.w; ox < a.ow && adaptive_from(ox, a.w, a.ow) <= x; ox++) {
      i64 x0 = adaptive_from(ox, a.w, a.ow), x1 = adaptive_to(ox, a.w, a.ow);
      if (x < x1) sum += get<T>(((const T*)a.in)[at(a.out_stride, n, c, oy, ox)]) / (float)((y1 - y0) * (x1 - x0));
    }
  }
  ((T*)a.out)[at(a.in_stride, n, c, y, x)] = put<T>(sum);
}
extern "C" __global__ void adaptive_avg_backward(Pool a) { DISPATCH(a.dtype, adaptive_avg_back<T>(a);) }

// Interpolation: nearest, or linear in both dims.
struct Resize {
  i64 n, c, h, w, oh, ow;
  i64 in_stride[4], out_stride[4];
  const void* in; // backward: the gradient of the result
  void* out;      // backward: the gradient of the operand
  float scale_h, scale_w; // operand positions per result position
  int linear, corners, dtype, pad;
};

// source gives the two operand positions that result position o lies between and
// the weight of the second.
__device__ __forceinline__ void source(i64 o, i64 in, float scale, bool linear, bool corners, i64& p, i64& q, float& w) {
  if (!linear) {
    p = q = min((i64)((float)o * scale), in - 1);
    w = 0;
    return;
  }
  float s = corners ? (float)o * scale : fmaxf(((float)o + 0.5f) * scale - 0.5f, 0.f);
  p = min((i64)s, in - 1);
  q = min(p + 1, in - 1);
  w = fminf(fmaxf(s - (float)p, 0.f), 1.f);
}

template <typename T> __device__ void resize(const Resize& a) {
  PLACE(a.oh, a.ow, a.out_stride)
  i64 yp, yq, xp, xq;
  float wy, wx;
  source(y, a.h, a.scale_h, a.linear, a.corners, yp, yq, wy);
  source(x, a.w, a.scale_w, a.linear, a.corners, xp, xq, wx);
  const T* in = (const T*)a.in;
  float v = get<T>(in[at(a.in_stride, n, c, yp, xp)]);
  if (a.linear)
    v = (1 - wy) * ((1 - wx) * v + wx * get<T>(in[at(a.in_stride, n, c, yp, xq)])) +
        wy * ((1 - wx) * get<T>(in[at(a.in_stride, n, c, yq, xp)]) + wx * get<T>(in[at(a.in_stride, n, c, yq, xq)]));
  ((T*)a.out)[at(a.out_stride, n, c, y, x)] = put<T>(v);
}
extern "C" __global__ void resize_forward(Resize a) { DISPATCH(a.dtype, resize<T>(a);) }

// span bounds the result positions that read operand position p.
__device__ __forceinline__ void span(i64 p, i64 outs, float scale, i64& from, i64& to) {
  float inv = scale > 0 ? 1.f / scale : (float)outs;
  from = max((i64)((float)(p - 1) * inv - inv) - 1, (i64)0);
  to = min((i64)((float)(p + 1) * inv + inv) + 1, outs - 1);
}

template <typename T> __device__ void resize_back(const Resize& a) {
  PLACE(a.h, a.w, a.in_stride)
  i64 y0, y1, x0, x1;
  span(y, a.oh, a.scale_h, y0, y1);
  span(x, a.ow, a.scale_w, x0, x1);
  float sum = 0;
  for (i64 oy = y0; oy <= y1; oy++) {
    i64 p, q;
    float w;
    source(oy, a.h, a.scale_h, a.linear, a.corners, p, q, w);
    float wy = (p == y ? 1 - w : 0) + (q == y ? w : 0);
    if (wy == 0) continue;
    for (i64 ox = x0; ox <= x1; ox++) {
      source(ox, a.w, a.scale_w, a.linear, a.corners, p, q, w);
      float wx = (p == x ? 1 - w : 0) + (q == x ? w : 0);
      if (wx != 0) sum += wy * wx * get<T>(((const T*)a.in)[at(a.out_stride, n, c, oy, ox)]);
    }
  }
  ((T*)a.out)[at(a.in_stride, n, c, y, x)] = put<T>(sum);
}
extern "C" __global__ void resize_backward(Resize a) { DISPATCH(a.dtype, resize_back<T>(a);) }
