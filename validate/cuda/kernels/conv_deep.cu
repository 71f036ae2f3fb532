// Convolutions over three dims without cuDNN: direct sums, correct for every
// stride, padding, dilation and number of groups, and slow.
#include "common.cuh"

struct Deep {
  i64 n, c, k; // operand [N, C, D, H, W], result [N, K, OD, OH, OW]
  i64 in_stride[5], out_stride[5], weight_stride[5]; // weight [K, C/groups, T, R, S]
  const void *in, *weight;
  void* out;
  int size[3], outs[3], taps[3]; // of operand, result and weight
  int s[3], p[3], d[3];
  int groups, dtype;
};

// take splits what is left of i by the size of the innermost dim.
__device__ __forceinline__ int take(i64& i, i64 size) {
  i64 q = i / size;
  int at = (int)(i - q * size);
  i = q;
  return at;
}

__device__ __forceinline__ i64 spot(const i64* stride, int z, int y, int x) { return z * stride[2] + y * stride[3] + x * stride[4]; }

// reads sets p to the operand's position that a result's reads by a tap along dim
// d; false where it is padding.
__device__ __forceinline__ bool reads(const Deep& a, int d, int o, int tap, int& p) {
  p = o * a.s[d] - a.p[d] + tap * a.d[d];
  return p >= 0 && p < a.size[d];
}

// read_by sets o to the result's position that reads an operand's by a tap along
// dim d; false where there is none.
__device__ __forceinline__ bool read_by(const Deep& a, int d, int p, int tap, int& o) {
  int t = p + a.p[d] - tap * a.d[d];
  o = t / a.s[d];
  return t >= 0 && o * a.s[d] == t && o < a.outs[d];
}

template <typename T> __device__ void conv(const Deep& a) {
  i64 all = a.n * a.k * a.outs[0] * a.outs[1] * a.outs[2], cg = a.c / a.groups;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += (i64)gridDim.x * blockDim.x) {
    i64 n = i;
    int x = take(n, a.outs[2]), y = take(n, a.outs[1]), z = take(n, a.outs[0]), k = take(n, a.k), iz, iy, ix;
    const T* in = (const T*)a.in + n * a.in_stride[0] + k / (a.k / a.groups) * cg * a.in_stride[1];
    const T* weight = (const T*)a.weight + k * a.weight_stride[0];
    float sum = 0;
    for (int t = 0; t < a.taps[0]; t++) {
      if (!reads(a, 0, z, t, iz)) continue;
      for (int r = 0; r < a.taps[1]; r++) {
        if (!reads(a, 1, y, r, iy)) continue;
        for (int s = 0; s < a.taps[2]; s++) {
          if (!reads(a, 2, x, s, ix)) continue;
          const T* v = in + spot(a.in_stride, iz, iy, ix);
          const T* w = weight + spot(a.weight_stride, t, r, s);
          for (i64 c = 0; c < cg; c++) sum += get<T>(v[c * a.in_stride[1]]) * get<T>(w[c * a.weight_stride[1]]);
        }
      }
    }
    ((T*)a.out)[n * a.out_stride[0] + k * a.out_stride[1] + spot(a.out_stride, z, y, x)] = put<T>(sum);
  }
}
extern "C" __global__ void deep_forward(Deep a) { DISPATCH(a.dtype, conv<T>(a);) }

// The operand's gradient, which also is a transposed convolution's result: in is
// the gradient of the result, at out_stride; out that of the operand, at in_stride.
template <typename T> __device__ void data(const Deep& a) {
  i64 all = a.n * a.c * a.size[0] * a.size[1] * a.size[2], cg = a.c / a.groups, kg = a.k / a.groups;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += (i64)gridDim.x * blockDim.x) {
    i64 n = i;
    int x = take(n, a.size[2]), y = take(n, a.size[1]), z = take(n, a.size[0]), c = take(n, a.c), oz, oy, ox;
    i64 group = c / cg;
    const T* in = (const T*)a.in + n * a.out_stride[0] + group * kg * a.out_stride[1];
    const T* weight = (const T*)a.weight + group * kg * a.weight_stride[0] + (c - group * cg) * a.weight_stride[1];
    float sum = 0;
    for (int t = 0; t < a.taps[0]; t++) {
      if (!read_by(a, 0, z, t, oz)) continue;
      for (int r = 0; r < a.taps[1]; r++) {
        if (!read_by(a, 1, y, r, oy)) continue;
        for (int s = 0; s < a.taps[2]; s++) {
          if (!read_by(a, 2, x, s, ox)) continue;
          const T* g = in + spot(a.out_stride, oz, oy, ox);
          const T* w = weight + spot(a.weight_stride, t, r, s);
          for (i64 k = 0; k < kg; k++) sum += get<T>(g[k * a.out_stride[1]]) * get<T>(w[k * a.weight_stride[0]]);
        }
      }
    }
    ((T*)a.out)[n * a.in_stride[0] + c * a.in_stride[1] + spot(a.in_stride, z, y, x)] = put<T>(sum);
  }
}
extern "C" __global__ void deep_data(Deep a) { DISPATCH(a.dtype, data<T>(a);) }

// The weight's gradient: a block an element. weight is the gradient of the
// result, at out_stride; out that of the weight, at weight_stride.
template <typename T> __device__ void filter(const Deep& a) {
  i64 cg = a.c / a.groups, k = blockIdx.x;
  int s = take(k, a.taps[2]), r = take(k, a.taps[1]), t = take(k, a.taps[0]), c = take(k, cg);
  const T* in = (const T*)a.in + (k / (a.k / a.groups) * cg + c) * a.in_stride[1];
  const T* g = (const T*)a.weight + k * a.out_stride[1];
  i64 all = a.n * a.outs[0] * a.outs[1] * a.outs[2];
  float sum = 0;
  for (i64 i = threadIdx.x; i < all; i += blockDim.x) {
    i64 n = i;
    int x = take(n, a.outs[2]), y = take(n, a.outs[1]), z = take(n, a.outs[0]), iz, iy, ix;
    if (reads(a, 0, z, t, iz) && reads(a, 1, y, r, iy) && reads(a, 2, x, s, ix))
      sum += get<T>(in[n * a.in_stride[0] + spot(a.in_stride, iz, iy, ix)]) * get<T>(g[n * a.out_stride[0] + spot(a.out_stride, z, y, x)]);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) ((T*)a.out)[k * a.weight_stride[0] + c * a.weight_stride[1] + spot(a.weight_stride, t, r, s)] = put<T>(sum);
}
extern "C" __global__ void deep_filter(Deep a) { DISPATCH(a.dtype, filter<T>(a);) }
