// Convolutions without cuDNN: direct sums, correct for every stride, padding,
// dilation and number of groups, and slow.
#include "common.cuh"

struct Conv {
  i64 n, c, h, w, k, oh, ow; // operand [N, C, H, W], result [N, K, OH, OW]
  i64 in_stride[4], out_stride[4], weight_stride[4]; // weight [K, C/groups, R, S]
  const void *in, *weight;
  void* out;
  int r, s, sh, sw, ph, pw, dh, dw, groups, dtype;
};

template <typename T> __device__ void conv(const Conv& a) {
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < a.n * a.k * a.oh * a.ow; i += (i64)gridDim.x * blockDim.x) {
    i64 x = i % a.ow, q = i / a.ow, y = q % a.oh;
    q /= a.oh;
    i64 k = q % a.k, n = q / a.k, cg = a.c / a.groups, c0 = k / (a.k / a.groups) * cg;
    float sum = 0;
    for (int r = 0; r < a.r; r++) {
      i64 iy = y * a.sh - a.ph + (i64)r * a.dh;
      if (iy < 0 || iy >= a.h) continue;
      for (int s = 0; s < a.s; s++) {
        i64 ix = x * a.sw - a.pw + (i64)s * a.dw;
        if (ix < 0 || ix >= a.w) continue;
        const T* in = (const T*)a.in + n * a.in_stride[0] + c0 * a.in_stride[1] + iy * a.in_stride[2] + ix * a.in_stride[3];
        const T* w = (const T*)a.weight + k * a.weight_stride[0] + r * a.weight_stride[2] + s * a.weight_stride[3];
        for (i64 c = 0; c < cg; c++) sum += get<T>(in[c * a.in_stride[1]]) * get<T>(w[c * a.weight_stride[1]]);
      }
    }
    ((T*)a.out)[n * a.out_stride[0] + k * a.out_stride[1] + y * a.out_stride[2] + x * a.out_stride[3]] = put<T>(sum);
  }
}
extern "C" __global__ void conv_forward(Conv a) { DISPATCH(a.dtype, conv<T>(a);) }

// The operand's gradient, which also is a transposed convolution's result: in is
// the gradient of the result, at out_stride; out that of the operand, at in_stride.
template <typename T> __device__ void conv_data(const Conv& a) {
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < a.n * a.c * a.h * a.w; i += (i64)gridDim.x * blockDim.x) {
    i64 x = i % a.w, q = i / a.w, y = q % a.h;
    q /= a.h;
    i64 c = q % a.c, n = q / a.c, cg = a.c / a.groups, kg = a.k / a.groups, g = c / cg;
    float sum = 0;
    for (int r = 0; r < a.r; r++) {
      i64 ty = y + a.ph - (i64)r * a.dh;
      if (ty < 0 || ty % a.sh || ty / a.sh >= a.oh) continue;
      for (int s = 0; s < a.s; s++) {
        i64 tx = x + a.pw - (i64)s * a.dw;
        if (tx < 0 || tx % a.sw || tx / a.sw >= a.ow) continue;
        const T* in = (const T*)a.in + n * a.out_stride[0] + g * kg * a.out_stride[1] + ty / a.sh * a.out_stride[2] + tx / a.sw * a.out_stride[3];
        const T* w = (const T*)a.weight + g * kg * a.weight_stride[0] + (c - g * cg) * a.weight_stride[1] + r * a.weight_stride[2] + s * a.weight_stride[3];
        for (i64 k = 0; k < kg; k++) sum += get<T>(in[k * a.out_stride[1]]) * get<T>(w[k * a.weight_stride[0]]);
      }
    }
    ((T*)a.out)[n * a.in_stride[0] + c * a.in_stride[1] + y * a.in_stride[2] + x * a.in_stride[3]] = put<T>(sum);
  }
}
extern "C" __global__ void conv_backward_data(Conv a) { DISPATCH(a.dtype, conv_data<T>(a);) }

// The weight's gradient: a block an element. weight is the gradient of the
// result, at out_stride; out that of the weight, at weight_stride.
template <typename T> __device__ void conv_filter(const Conv& a) {
  i64 cg = a.c / a.groups, i = blockIdx.x;
  int s = (int)(i % a.s), r = (int)(i / a.s % a.r);
  i64 c = i / a.s / a.r % cg, k = i / a.s / a.r / cg, ci = k / (a.k / a.groups) * cg + c;
  float sum = 0;
  for (i64 j = threadIdx.x; j < a.n * a.oh * a.ow; j += blockDim.x) {
    i64 x = j % a.ow, q = j / a.ow, y = q % a.oh, n = q / a.oh, iy = y * a.sh - a.ph + (i64)r * a.dh, ix = x * a.sw - a.pw + (i64)s * a.dw;
    if (iy < 0 || iy >= a.h || ix < 0 || ix >= a.w) continue;
    sum += get<T>(((const T*)a.in)[n * a.in_stride[0] + ci * a.in_stride[1] + iy * a.in_stride[2] + ix * a.in_stride[3]]) *
           get<T>(((const T*)a.weight)[n * a.out_stride[0] + k * a.out_stride[1] + y * a.out_stride[2] + x * a.out_stride[3]]);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0)
    ((T*)a.out)[k * a.weight_stride[0] + c * a.weight_stride[1] + r * a.weight_stride[2] + s * a.weight_stride[3]] = put<T>(sum);
}
extern "C" __global__ void conv_backward_filter(Conv a) { DISPATCH(a.dtype, conv_filter<T>(a);) }

// Convolutions of every channel by itself, of fewer than 2^31 elements, that
// depthwise.cuh has no kernel for.
template <typename T> __device__ void depthwise(const Conv& a) {
  u32 i = blockIdx.x * blockDim.x + threadIdx.x, oh = (u32)a.oh, ow = (u32)a.ow, channels = (u32)a.k;
  if (i >= (u32)a.n * channels * oh * ow) return;
  u32 q = i / ow, x = i - q * ow, p = q / oh, y = q - p * oh, n = p / channels, k = p - n * channels;
  u32 c = k / (channels / (u32)a.c);
  const T* in = (const T*)a.in + n * a.in_stride[0] + c * a.in_stride[1];
  const T* w = (const T*)a.weight + k * a.weight_stride[0];
  float sum = 0;
  for (int r = 0; r < a.r; r++) {
    int iy = (int)y * a.sh - a.ph + r * a.dh;
    if (iy < 0 || iy >= a.h) continue;
    for (int s = 0; s < a.s; s++) {
      int ix = (int)x * a.sw - a.pw + s * a.dw;
      if (ix >= 0 && ix < a.w) sum += get<T>(in[iy * a.in_stride[2] + ix * a.in_stride[3]]) * get<T>(w[r * a.weight_stride[2] + s * a.weight_stride[3]]);
    }
  }
  ((T*)a.out)[n * a.out_stride[0] + k * a.out_stride[1] + y * a.out_stride[2] + x * a.out_stride[3]] = put<T>(sum);
}
extern "C" __global__ void depthwise_forward(Conv a) { DISPATCH(a.dtype, depthwise<T>(a);) }

template <typename T> __device__ void depthwise_gradient(const Conv& a) {
  u32 i = blockIdx.x * blockDim.x + threadIdx.x, h = (u32)a.h, width = (u32)a.w, channels = (u32)a.c;
  if (i >= (u32)a.n * channels * h * width) return;
  u32 q = i / width, x = i - q * width, p = q / h, y = q - p * h, n = p / channels, c = p - n * channels, per = (u32)a.k / channels;
  float sum = 0;
  for (u32 k = c * per; k < (c + 1) * per; k++) {
    const T* g = (const T*)a.in + n * a.out_stride[0] + k * a.out_stride[1];
    const T* w = (const T*)a.weight + k * a.weight_stride[0];
    for (int r = 0; r < a.r; r++) {
      int ty = (int)y + a.ph - r * a.dh, oy = ty / a.sh;
      if (ty < 0 || oy * a.sh != ty || oy >= a.oh) continue;
      for (int s = 0; s < a.s; s++) {
        int tx = (int)x + a.pw - s * a.dw, ox = tx / a.sw;
        if (tx >= 0 && ox * a.sw == tx && ox < a.ow) sum += get<T>(g[oy * a.out_stride[2] + ox * a.out_stride[3]]) * get<T>(w[r * a.weight_stride[2] + s * a.weight_stride[3]]);
      }
    }
  }
  ((T*)a.out)[n * a.in_stride[0] + c * a.in_stride[1] + y * a.in_stride[2] + x * a.in_stride[3]] = put<T>(sum);
}
extern "C" __global__ void depthwise_data(Conv a) { DISPATCH(a.dtype, depthwise_gradient<T>(a);) }

// The weight's gradient: a block an element; a thread steps through the images'
// positions without dividing.
template <typename T> __device__ void depthwise_weights(const Conv& a) {
  u32 i = blockIdx.x, taps = (u32)(a.r * a.s), k = i / taps, tap = i - k * taps, c = k / ((u32)a.k / (u32)a.c);
  int r = tap / a.s, s = tap - r * a.s;
  const T* in = (const T*)a.in + c * a.in_stride[1];
  const T* g = (const T*)a.weight + k * a.out_stride[1];
  int ow = (int)a.ow, oh = (int)a.oh, x = threadIdx.x % ow, q = threadIdx.x / ow, y = q % oh;
  i64 n = q / oh;
  int step_x = blockDim.x % ow, step_q = blockDim.x / ow, step_y = step_q % oh, step_n = step_q / oh;
  float sum = 0;
  while (n < a.n) {
    int iy = y * a.sh - a.ph + r * a.dh, ix = x * a.sw - a.pw + s * a.dw;
    if (iy >= 0 && iy < a.h && ix >= 0 && ix < a.w)
      sum += get<T>(in[n * a.in_stride[0] + iy * a.in_stride[2] + ix * a.in_stride[3]]) * get<T>(g[n * a.out_stride[0] + y * a.out_stride[2] + x * a.out_stride[3]]);
    x += step_x;
    y += step_y;
    n += step_n;
    if (x >= ow) x -= ow, y++;
    if (y >= oh) y -= oh, n++;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) ((T*)a.out)[k * a.weight_stride[0] + r * a.weight_stride[2] + s * a.weight_stride[3]] = put<T>(sum);
}
extern "C" __global__ void depthwise_filter(Conv a) { DISPATCH(a.dtype, depthwise_weights<T>(a);) }
