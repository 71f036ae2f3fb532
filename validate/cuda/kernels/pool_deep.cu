// Pooling over windows of three dims, and adaptive pooling, forward and backward.
// Operands may be strided. A thread makes an element: sums run in the order of the
// windows, so what runs twice gives the same bits.
#include "common.cuh"

struct Volumes {
  i64 n, c;
  i64 in_stride[5], out_stride[5], index_stride[5]; // of [N, C, D, H, W], the large tensor and the small one
  const void* in;                                   // backward: the gradient of the result, at out_stride
  void* out;                                        // backward: the gradient of the operand, at in_stride
  i64* index;
  int size[3], outs[3]; // of the large tensor and the small one
  int k[3], s[3], p[3], d[3];
  int adaptive, divisor, exclude_pad, dtype;
};

// A Cell is an element of an [N, C, D, H, W] tensor.
struct Cell {
  i64 n, c;
  int at[3];
};

template <typename I> __device__ __forceinline__ Cell split(const Volumes& a, I i, const int* size) {
  Cell e;
  for (int d = 2; d >= 0; d--) {
    I q = i / (I)size[d];
    e.at[d] = (int)(i - q * (I)size[d]);
    i = q;
  }
  e.n = (i64)(i / (I)a.c);
  e.c = (i64)(i - (I)e.n * (I)a.c);
  return e;
}

// cell sets e to thread i's element of a tensor with such spatial dims; false
// behind its end.
__device__ __forceinline__ bool cell(const Volumes& a, const int* size, Cell& e) {
  i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x, n = a.n * a.c * size[0] * size[1] * size[2];
  if (i >= n) return false;
  e = n < 0x7fffffff ? split<u32>(a, (u32)i, size) : split<i64>(a, i, size);
  return true;
}

__device__ __forceinline__ i64 plane(const i64* stride, const Cell& e) { return e.n * stride[0] + e.c * stride[1]; }
__device__ __forceinline__ i64 spot(const i64* stride, int z, int y, int x) { return z * stride[2] + y * stride[3] + x * stride[4]; }

// A Window is the operand's positions, from `from` up to `to` in steps, of a
// result along one dim, and how many there are with padding.
struct Window {
  int from, to, step, full;
  __device__ __forceinline__ int inside() const { return to > from ? (to - from + step - 1) / step : 0; }
};

__device__ __forceinline__ Window window(const Volumes& a, int d, int o) {
  Window w;
  if (a.adaptive) {
    w.from = (int)((i64)o * a.size[d] / a.outs[d]);
    w.to = (int)(((i64)(o + 1) * a.size[d] + a.outs[d] - 1) / a.outs[d]);
    w.step = 1;
    w.full = w.to - w.from;
    return w;
  }
  int start = o * a.s[d] - a.p[d], end = min(start + a.k[d] * a.d[d], a.size[d] + a.p[d]);
  w.step = a.d[d];
  w.full = (end - start + w.step - 1) / w.step;
  w.from = start < 0 ? start + (-start + w.step - 1) / w.step * w.step : start;
  w.to = min(end, a.size[d]);
  return w;
}

// over sets the results, from `from` to `to`, among which are those whose windows
// have position p of dim d.
__device__ __forceinline__ void over(const Volumes& a, int d, int p, int& from, int& to) {
  if (a.adaptive) {
    from = (int)((i64)p * a.outs[d] / a.size[d]);
    to = (int)(((i64)(p + 1) * a.outs[d] - 1) / a.size[d]);
  } else {
    int at = p + a.p[d], lo = at - (a.k[d] - 1) * a.d[d];
    from = lo <= 0 ? 0 : (lo + a.s[d] - 1) / a.s[d];
    to = at / a.s[d];
  }
  to = min(to, a.outs[d] - 1);
}

__device__ __forceinline__ bool has(const Window& w, int p) { return p >= w.from && p < w.to && (p - w.from) % w.step == 0; }

// share is what an average over a window divides by.
__device__ __forceinline__ float share(const Volumes& a, const Window& z, const Window& y, const Window& x) {
  if (a.divisor) return (float)a.divisor;
  return a.exclude_pad ? (float)((i64)z.inside() * y.inside() * x.inside()) : (float)((i64)z.full * y.full * x.full);
}

template <typename T> __device__ void max_pool(const Volumes& a) {
  Cell e;
  if (!cell(a, a.outs, e)) return;
  Window wz = window(a, 0, e.at[0]), wy = window(a, 1, e.at[1]), wx = window(a, 2, e.at[2]);
  const T* in = (const T*)a.in + plane(a.in_stride, e);
  float best = -INFINITY;
  i64 where = -1;
  for (int z = wz.from; z < wz.to; z += wz.step)
    for (int y = wy.from; y < wy.to; y += wy.step)
      for (int x = wx.from; x < wx.to; x += wx.step) {
        float v = get<T>(in[spot(a.in_stride, z, y, x)]);
        if (where < 0 || v > best || v != v) best = v, where = ((i64)z * a.size[1] + y) * a.size[2] + x;
      }
  ((T*)a.out)[plane(a.out_stride, e) + spot(a.out_stride, e.at[0], e.at[1], e.at[2])] = put<T>(best);
  if (a.index) a.index[plane(a.index_stride, e) + spot(a.index_stride, e.at[0], e.at[1], e.at[2])] = where;
}
extern "C" __global__ void max_forward(Volumes a) { DISPATCH(a.dtype, max_pool<T>(a);) }

template <typename T> __device__ void average(const Volumes& a) {
  Cell e;
  if (!cell(a, a.outs, e)) return;
  Window wz = window(a, 0, e.at[0]), wy = window(a, 1, e.at[1]), wx = window(a, 2, e.at[2]);
  const T* in = (const T*)a.in + plane(a.in_stride, e);
  float sum = 0;
  for (int z = wz.from; z < wz.to; z += wz.step)
    for (int y = wy.from; y < wy.to; y += wy.step)
      for (int x = wx.from; x < wx.to; x += wx.step) sum += get<T>(in[spot(a.in_stride, z, y, x)]);
  ((T*)a.out)[plane(a.out_stride, e) + spot(a.out_stride, e.at[0], e.at[1], e.at[2])] = put<T>(sum / share(a, wz, wy, wx));
}
extern "C" __global__ void average_forward(Volumes a) { DISPATCH(a.dtype, average<T>(a);) }

// back adds to an element what the windows with it give: where the maximum was
// here, its gradient, or a share of each gradient.
template <typename T, bool MAX> __device__ void back(const Volumes& a) {
  Cell e;
  if (!cell(a, a.size, e)) return;
  int from[3], to[3];
  for (int d = 0; d < 3; d++) over(a, d, e.at[d], from[d], to[d]);
  const T* g = (const T*)a.in + plane(a.out_stride, e);
  const i64* index = MAX ? a.index + plane(a.index_stride, e) : 0;
  i64 me = ((i64)e.at[0] * a.size[1] + e.at[1]) * a.size[2] + e.at[2];
  float sum = 0;
  for (int z = from[0]; z <= to[0]; z++)
    for (int y = from[1]; y <= to[1]; y++)
      for (int x = from[2]; x <= to[2]; x++) {
        if (MAX) {
          if (index[spot(a.index_stride, z, y, x)] == me) sum += get<T>(g[spot(a.out_stride, z, y, x)]);
          continue;
        }
        Window wz = window(a, 0, z), wy = window(a, 1, y), wx = window(a, 2, x);
        if (has(wz, e.at[0]) && has(wy, e.at[1]) && has(wx, e.at[2])) sum += get<T>(g[spot(a.out_stride, z, y, x)]) / share(a, wz, wy, wx);
      }
  ((T*)a.out)[plane(a.in_stride, e) + spot(a.in_stride, e.at[0], e.at[1], e.at[2])] = put<T>(sum);
}
extern "C" __global__ void max_backward(Volumes a) { DISPATCH(a.dtype, back<T COMMA true>(a);) }
extern "C" __global__ void average_backward(Volumes a) { DISPATCH(a.dtype, back<T COMMA false>(a);) }
