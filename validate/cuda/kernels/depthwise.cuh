// Convolutions of every channel by itself with filters of 3x3, 5x5 and 7x7. A
// thread computes a column, or a few neighbouring ones, of a strip of rows: it
// reads every row of the image once and keeps the filter and the sums under way
// in registers. Neighbouring threads take neighbouring columns where rows lie
// in order, and neighbouring channels where those lie innermost. All sums are
// in float32 and in a fixed order. A file for each size has its kernels; what
// has none runs by conv.cu.
#pragma once
#include "common.cuh"

// Images [N, C, H, W] with filters [K, R, R]; K is a multiple of C.
struct Depthwise {
  i64 in_stride[4], out_stride[4], weight_stride[3]; // out_stride also is that of the gradient that a filter's gradient reads
  const void *in, *weight;                           // of a filter's gradient, weight is the gradient of the result
  void* out;
  float* part; // sums [slices, K, R, R] to be added up, where slices > 1
  int n, c, h, w, k, oh, ow;
  int sh, sw, ph, pw, dh, dw;
  int flip;         // read the filter backwards
  int rows, strips; // rows of a strip of the result, strips of an image
  int columns;      // groups of columns of an image
  int slices;       // blocks that share a filter's gradient
  int dtype;
};

enum { LANES = 32, TALL = 4, WIDE = 4 }; // a block for innermost channels: LANES channels, TALL threads each, WIDE columns a thread

template <typename T> __device__ __forceinline__ const T* image(const void* p, const i64* stride, i64 n, i64 c) {
  return (const T*)p + n * stride[0] + c * stride[1];
}

// bits marks which of so many columns from x0 lie in an image of a width.
__device__ __forceinline__ u32 bits(int x0, int count, int width, int step = 1) {
  u32 m = 0;
#pragma unroll
  for (int j = 0; j < count; j++) m |= (u32)((u32)(x0 + j * step) < (u32)width) << j;
  return m;
}

// load_if and store_if touch memory only where want is not 0. They say so in
// PTX: as branches, the loads of a row would wait for one another. What is
// loaded is written by no thread of the kernel.
#ifdef __CUDA_ARCH__
__device__ __forceinline__ void load_if(float& v, const float* p, u32 want) {
  asm("{ .reg .pred q; setp.ne.u32 q, %2, 0; @q ld.global.nc.f32 %0, [%1]; }" : "+f"(v) : "l"(__cvta_generic_to_global(p)), "r"(want));
}
template <typename T> __device__ __forceinline__ void load_if(T& v, const T* p, u32 want) {
  asm("{ .reg .pred q; setp.ne.u32 q, %2, 0; @q ld.global.nc.u16 %0, [%1]; }" : "+h"(*(unsigned short*)&v) : "l"(__cvta_generic_to_global(p)), "r"(want));
}
__device__ __forceinline__ void store_if(float* p, float v, u32 want) {
  asm volatile("{ .reg .pred q; setp.ne.u32 q, %2, 0; @q st.global.f32 [%1], %0; }" ::"f"(v), "l"(__cvta_generic_to_global(p)), "r"(want) : "memory");
}
template <typename T> __device__ __forceinline__ void store_if(T* p, T v, u32 want) {
  asm volatile("{ .reg .pred q; setp.ne.u32 q, %2, 0; @q st.global.u16 [%1], %0; }" ::"h"(*(unsigned short*)&v), "l"(__cvta_generic_to_global(p)), "r"(want) : "memory");
}
#else // on a processor
template <typename T> void load_if(T& v, const T* p, u32 want) {
  if (want) v = *p;
}
template <typename T> void store_if(T* p, T v, u32 want) {
  if (want) *p = v;
}
#endif

// read fills a row of W columns, zeros outside the image.
template <typename T, int W, bool UNIT> __device__ __forceinline__ void read(T (&v)[W], const T* p, i64 step, u32 inside) {
#pragma unroll
  for (int j = 0; j < W; j++) {
    v[j] = put<T>(0.f);
    load_if(v[j], p + (UNIT ? (i64)j : j * step), inside & 1u << j);
  }
}

// roll computes rows [y0, y1) of TX columns from x0 of a result, at stride 1
// without dilation. An image's row adds to R rows of the result; sum[j] is for
// row iy + ph - (R-1) + j.
template <typename T, int R, int TX, bool UNIT>
__device__ __forceinline__ void roll(const Depthwise& a, const T* in, T* out, const float (&w)[R][R], int x0, int y0, int y1) {
  const int W = TX + R - 1;
  u32 inside = bits(x0 - a.pw, W, a.w), wanted = bits(x0, TX, a.ow);
  const i64 in_x = a.in_stride[3], in_y = a.in_stride[2], out_x = a.out_stride[3], out_y = a.out_stride[2];
  int iy = y0 - a.ph, last = y1 - 1 - a.ph + R - 1;
  in += (i64)(x0 - a.pw) * (UNIT ? 1 : in_x) + iy * in_y;
  out += (i64)x0 * out_x + (i64)(y0 - R + 1) * out_y;
  float sum[R][TX];
#pragma unroll
  for (int j = 0; j < R; j++)
#pragma unroll
    for (int t = 0; t < TX; t++) sum[j][t] = 0;
  T ahead[W];
  read<T, W, UNIT>(ahead, in, in_x, (u32)iy < (u32)a.h ? inside : 0);
  for (int oy = y0 - R + 1; iy <= last; iy++, oy++) {
    float row[W];
#pragma unroll
    for (int j = 0; j < W; j++) row[j] = get<T>(ahead[j]);
    in += in_y;
    read<T, W, UNIT>(ahead, in, in_x, iy < last && (u32)(iy + 1) < (u32)a.h ? inside : 0);
    if ((u32)iy < (u32)a.h) {
#pragma unroll
      for (int j = 0; j < R; j++)
#pragma unroll
        for (int t = 0; t < TX; t++) {
          float v = j + 1 < R ? sum[j + 1 < R ? j + 1 : j][t] : 0.f;
#pragma unroll
          for (int s = 0; s < R; s++) v += row[s + t] * w[R - 1 - j][s];
          sum[j][t] = v;
        }
    } else { // above or below the image
#pragma unroll
      for (int j = 0; j < R; j++)
#pragma unroll
        for (int t = 0; t < TX; t++) sum[j][t] = j + 1 < R ? sum[j + 1 < R ? j + 1 : j][t] : 0.f;
    }
    if (oy >= y0) {
#pragma unroll
      for (int t = 0; t < TX; t++)
        store_if(out + t * out_x, put<T>(sum[0][t]), wanted & 1u << t);
    }
    out += out_y;
  }
}

// filter reads a filter of [R, R], backwards where a.flip says so.
template <typename T, int R> __device__ __forceinline__ void filter(const Depthwise& a, float (&w)[R][R], const T* p) {
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int s = 0; s < R; s++) w[r][s] = get<T>(p[(a.flip ? R - 1 - r : r) * a.weight_stride[1] + (a.flip ? R - 1 - s : s) * a.weight_stride[2]]);
}

// A thread a column of a strip, of images whose rows lie in order.
template <typename T, int R> __device__ __forceinline__ void by_columns(const Depthwise& a) {
  u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  u32 x = i % a.columns, q = i / a.columns, strip = q % a.strips, p = q / a.strips, n = p / a.k, k = p - n * a.k;
  if (n >= a.n) return;
  float w[R][R];
  filter<T, R>(a, w, (const T*)a.weight + k * a.weight_stride[0]);
  int y0 = strip * a.rows;
  roll<T, R, 1, true>(a, image<T>(a.in, a.in_stride, n, k / (a.k / a.c)), (T*)image<T>(a.out, a.out_stride, n, k), w, x, y0, min(y0 + a.rows, a.oh));
}

// A thread a few columns of a strip of one of LANES channels.
template <typename T, int R> __device__ __forceinline__ void by_channels(const Depthwise& a, float* shared) {
  u32 k0 = blockIdx.y * LANES, k = k0 + threadIdx.x;
  for (int i = threadIdx.y * LANES + threadIdx.x; i < LANES * R * R; i += LANES * TALL) {
    int lane = i / (R * R), tap = i % (R * R), r = tap / R, s = tap % R;
    if (k0 + lane < a.k) shared[i] = get<T>(((const T*)a.weight)[(k0 + lane) * a.weight_stride[0] + r * a.weight_stride[1] + s * a.weight_stride[2]]);
  }
  __syncthreads();
  u32 i = blockIdx.x * TALL + threadIdx.y, x = i % a.columns, q = i / a.columns, n = q / a.strips, strip = q - n * a.strips;
  if (n >= a.n || k >= a.k) return;
  float w[R][R];
  const float* mine = shared + threadIdx.x * R * R;
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int s = 0; s < R; s++) w[r][s] = mine[a.flip ? (R - 1 - r) * R + R - 1 - s : r * R + s];
  int y0 = strip * a.rows;
  roll<T, R, WIDE, false>(a, image<T>(a.in, a.in_stride, n, k / (a.k / a.c)), (T*)image<T>(a.out, a.out_stride, n, k), w, x * WIDE, y0, min(y0 + a.rows, a.oh));
}

// Any stride and dilation: a thread an element.
template <typename T, int R> __device__ __forceinline__ void by_elements(const Depthwise& a) {
  u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  u32 x = i % a.ow, q = i / a.ow, y = q % a.oh, p = q / a.oh, n = p / a.k, k = p - n * a.k;
  if (n >= a.n) return;
  const T* in = image<T>(a.in, a.in_stride, n, k / (a.k / a.c));
  float w[R][R], sum = 0;
  filter<T, R>(a, w, (const T*)a.weight + k * a.weight_stride[0]);
  int iy = (int)y * a.sh - a.ph, ix = (int)x * a.sw - a.pw;
  const T* from = in + iy * a.in_stride[2] + ix * a.in_stride[3];
  const i64 down = a.dh * a.in_stride[2], along = a.dw * a.in_stride[3];
  u32 inside = bits(ix, R, a.w, a.dw);
#pragma unroll
  for (int r = 0; r < R; r++, iy += a.dh, from += down) {
    T row[R];
    read<T, R, false>(row, from, along, (u32)iy < (u32)a.h ? inside : 0);
#pragma unroll
    for (int s = 0; s < R; s++) sum += get<T>(row[s]) * w[r][s];
  }
  ((T*)a.out)[n * a.out_stride[0] + k * a.out_stride[1] + y * a.out_stride[2] + x * a.out_stride[3]] = put<T>(sum);
}

// The operand's gradient at stride 2: a thread the four elements that lie, with
// the padding, at rows 2y and 2y+1 and columns 2x and 2x+1. Even ones take the
// even taps, odd ones the odd taps, of the same elements of the gradient.
template <typename T, int R> __device__ __forceinline__ void by_fours(const Depthwise& a) {
  const int E = (R + 1) / 2;
  u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  u32 q = i / a.columns, x = i - q * a.columns, p = q / a.strips, y = q - p * a.strips, n = p / a.k, k = p - n * a.k;
  if (n >= a.n) return;
  const T* in = image<T>(a.in, a.in_stride, n, k);
  float w[R][R], sum[2][2] = {{0, 0}, {0, 0}};
  filter<T, R>(a, w, (const T*)a.weight + k * a.weight_stride[0]);
  int gy = (int)y + a.ph / 2, gx = (int)x + a.pw / 2;
  const T* from = in + gy * a.in_stride[2] + gx * a.in_stride[3];
  u32 inside = bits(gx, E, a.w, -1);
#pragma unroll
  for (int r = 0; r < E; r++, from -= a.in_stride[2]) {
    T row[E];
    read<T, E, false>(row, from, -a.in_stride[3], (u32)(gy - r) < (u32)a.h ? inside : 0);
#pragma unroll
    for (int s = 0; s < E; s++) {
      float g = get<T>(row[s]);
#pragma unroll
      for (int j = 0; j < 4; j++)
        if (2 * r + j / 2 < R && 2 * s + j % 2 < R) sum[j / 2][j % 2] += g * w[2 * r + j / 2 < R ? 2 * r + j / 2 : 0][2 * s + j % 2 < R ? 2 * s + j % 2 : 0];
    }
  }
  T* out = (T*)image<T>(a.out, a.out_stride, n, k);
#pragma unroll
  for (int j = 0; j < 4; j++) {
    int oy = 2 * gy + j / 2 - a.ph, ox = 2 * gx + j % 2 - a.pw;
    if ((u32)oy < (u32)a.oh && (u32)ox < (u32)a.ow) out[oy * a.out_stride[2] + ox * a.out_stride[3]] = put<T>(sum[j / 2][j % 2]);
  }
}

// gather adds to a filter's gradient what rows [y0, y1) of TX columns from x0
// of the result's gradient give, at stride 1 without dilation. Tap r of an
// image's row meets row iy + ph - r of the gradient, which window[r] holds.
template <typename T, int R, int TX, bool UNIT>
__device__ __forceinline__ void gather(const Depthwise& a, float (&sum)[R][R], const T* in, const T* g, int x0, int y0, int y1) {
  const int W = TX + R - 1;
  u32 inside = bits(x0 - a.pw, W, a.w), given = bits(x0, TX, a.ow);
  const i64 in_x = a.in_stride[3], in_y = a.in_stride[2], g_x = a.out_stride[3], g_y = a.out_stride[2];
  int iy = y0 - a.ph, last = y1 - 1 - a.ph + R - 1;
  in += (i64)(x0 - a.pw) * (UNIT ? 1 : in_x) + iy * in_y;
  g += (i64)x0 * (UNIT ? 1 : g_x) + (i64)y0 * g_y;
  float window[R][TX];
#pragma unroll
  for (int j = 0; j < R; j++)
#pragma unroll
    for (int t = 0; t < TX; t++) window[j][t] = 0;
  T ahead[W], below[TX];
  read<T, W, UNIT>(ahead, in, in_x, (u32)iy < (u32)a.h ? inside : 0);
  read<T, TX, UNIT>(below, g, g_x, given);
  for (int oy = y0 + 1; iy <= last; iy++, oy++) {
    float row[W];
#pragma unroll
    for (int j = 0; j < W; j++) row[j] = get<T>(ahead[j]);
#pragma unroll
    for (int t = 0; t < TX; t++) {
#pragma unroll
      for (int j = R - 1; j > 0; j--) window[j][t] = window[j - 1][t];
      window[0][t] = get<T>(below[t]);
    }
    in += in_y;
    g += g_y;
    read<T, W, UNIT>(ahead, in, in_x, iy < last && (u32)(iy + 1) < (u32)a.h ? inside : 0);
    read<T, TX, UNIT>(below, g, g_x, oy < y1 ? given : 0);
    if ((u32)iy < (u32)a.h) {
#pragma unroll
      for (int r = 0; r < R; r++)
#pragma unroll
        for (int s = 0; s < R; s++)
#pragma unroll
          for (int t = 0; t < TX; t++) sum[r][s] += row[s + t] * window[r][t];
    }
  }
}

// keep writes what a block has of tap i of filter k.
template <typename T, int R> __device__ __forceinline__ void keep(const Depthwise& a, u32 slice, u32 k, int i, float v) {
  if (a.slices > 1)
    a.part[((i64)slice * a.k + k) * (R * R) + i] = v;
  else
    ((T*)a.out)[k * a.weight_stride[0] + i / R * a.weight_stride[1] + i % R * a.weight_stride[2]] = put<T>(v);
}

// total adds every thread's sums over the block, and keeps them.
template <typename T, int R> __device__ __forceinline__ void total(const Depthwise& a, const float (&sum)[R][R], u32 k, float* shared) {
  int warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
#pragma unroll
  for (int i = 0; i < R * R; i++) {
    float v = warp_sum(sum[i / R][i % R]);
    if ((threadIdx.x & 31) == 0) shared[warp * R * R + i] = v;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < R * R; i += blockDim.x) {
    float v = 0;
    for (int j = 0; j < warps; j++) v += shared[j * R * R + i];
    keep<T, R>(a, blockIdx.y, k, i, v);
  }
}

// A filter's gradient, a block a filter and a slice of the batch's columns.
template <typename T, int R> __device__ __forceinline__ void filter_by_columns(const Depthwise& a, float* shared) {
  u32 k = blockIdx.x, c = k / (a.k / a.c), count = (u32)a.n * a.strips * a.columns;
  float sum[R][R] = {};
  for (u32 i = blockIdx.y * blockDim.x + threadIdx.x; i < count; i += blockDim.x * a.slices) {
    u32 q = i / a.columns, x = i - q * a.columns, n = q / a.strips, strip = q - n * a.strips;
    int y0 = strip * a.rows;
    gather<T, R, 1, true>(a, sum, image<T>(a.in, a.in_stride, n, c), image<T>(a.weight, a.out_stride, n, k), x, y0, min(y0 + a.rows, a.oh));
  }
  total<T, R>(a, sum, k, shared);
}

// The same for any stride and dilation, a thread an element of the gradient.
template <typename T, int R> __device__ __forceinline__ void filter_by_elements(const Depthwise& a, float* shared) {
  u32 k = blockIdx.x, c = k / (a.k / a.c), count = (u32)a.n * a.oh * a.ow;
  const i64 down = a.dh * a.in_stride[2], along = a.dw * a.in_stride[3];
  float sum[R][R] = {};
  for (u32 i = blockIdx.y * blockDim.x + threadIdx.x; i < count; i += blockDim.x * a.slices) {
    u32 q = i / a.ow, x = i - q * a.ow, n = q / a.oh, y = q - n * a.oh;
    const T* in = image<T>(a.in, a.in_stride, n, c);
    float g = get<T>(image<T>(a.weight, a.out_stride, n, k)[y * a.out_stride[2] + x * a.out_stride[3]]);
    int iy = (int)y * a.sh - a.ph, ix = (int)x * a.sw - a.pw;
    const T* from = in + iy * a.in_stride[2] + ix * a.in_stride[3];
    u32 inside = bits(ix, R, a.w, a.dw);
#pragma unroll
    for (int r = 0; r < R; r++, iy += a.dh, from += down) {
      T row[R];
      read<T, R, false>(row, from, along, (u32)iy < (u32)a.h ? inside : 0);
#pragma unroll
      for (int s = 0; s < R; s++) sum[r][s] += get<T>(row[s]) * g;
    }
  }
  total<T, R>(a, sum, k, shared);
}

// A filter's gradient, a block LANES filters and a slice of the batch's columns.
template <typename T, int R> __device__ __forceinline__ void filter_by_channels(const Depthwise& a, float* shared) {
  u32 k0 = blockIdx.y * LANES, k = k0 + threadIdx.x, count = (u32)a.n * a.strips * a.columns;
  float sum[R][R] = {};
  if (k < a.k)
    for (u32 i = blockIdx.x * TALL + threadIdx.y; i < count; i += TALL * a.slices) {
      u32 q = i / a.columns, x = i - q * a.columns, n = q / a.strips, strip = q - n * a.strips;
      int y0 = strip * a.rows;
      gather<T, R, WIDE, false>(a, sum, image<T>(a.in, a.in_stride, n, k / (a.k / a.c)), image<T>(a.weight, a.out_stride, n, k), x * WIDE, y0, min(y0 + a.rows, a.oh));
    }
  for (int j = 0; j < TALL; j++) {
    if (threadIdx.y == j) {
#pragma unroll
      for (int i = 0; i < R * R; i++) {
        float* to = shared + threadIdx.x * R * R + i;
        *to = j ? *to + sum[i / R][i % R] : sum[i / R][i % R];
      }
    }
    __syncthreads();
  }
  for (int i = threadIdx.y * LANES + threadIdx.x; i < LANES * R * R; i += LANES * TALL)
    if (k0 + i / (R * R) < a.k) keep<T, R>(a, blockIdx.x, k0 + i / (R * R), i % (R * R), shared[i]);
}

// The kernels of a filter size. The bounds keep the registers where several
// blocks fit a multiprocessor.
#define KERNELS(R, THREADS)                                                                                                 \
  extern "C" __global__ void __launch_bounds__(128) depthwise_columns_##R(Depthwise a) { DISPATCH(a.dtype, by_columns<T COMMA R>(a);) }   \
  extern "C" __global__ void __launch_bounds__(128) depthwise_elements_##R(Depthwise a) { DISPATCH(a.dtype, by_elements<T COMMA R>(a);) } \
  extern "C" __global__ void __launch_bounds__(128) depthwise_fours_##R(Depthwise a) { DISPATCH(a.dtype, by_fours<T COMMA R>(a);) }       \
  extern "C" __global__ void __launch_bounds__(128) depthwise_channels_##R(Depthwise a) {                                   \
    __shared__ float shared[LANES * R * R];                                                                                 \
    DISPATCH(a.dtype, by_channels<T COMMA R>(a, shared);)                                                                   \
  }                                                                                                                         \
  extern "C" __global__ void __launch_bounds__(THREADS) depthwise_filter_columns_##R(Depthwise a) {                         \
    __shared__ float shared[THREADS / 32 * R * R];                                                                          \
    DISPATCH(a.dtype, filter_by_columns<T COMMA R>(a, shared);)                                                             \
  }                                                                                                                         \
  extern "C" __global__ void __launch_bounds__(THREADS) depthwise_filter_elements_##R(Depthwise a) {                        \
    __shared__ float shared[THREADS / 32 * R * R];                                                                          \
    DISPATCH(a.dtype, filter_by_elements<T COMMA R>(a, shared);)                                                            \
  }                                                                                                                         \
  extern "C" __global__ void __launch_bounds__(128) depthwise_filter_channels_##R(Depthwise a) {                            \
    __shared__ float shared[LANES * R * R];                                                                                 \
    DISPATCH(a.dtype, filter_by_channels<T COMMA R>(a, shared);)                                                            \
  }

// depthwise_slices adds the slices of filters of a.rows taps: LANES of them a
// block, every eighth slice a thread.
template <typename T> __device__ void slices(const Depthwise& a) {
  __shared__ float shared[8][LANES];
  i64 count = (i64)a.k * a.rows * a.rows, i = (i64)blockIdx.x * LANES + threadIdx.x;
  float sum = 0;
  if (i < count) {
#pragma unroll 8
    for (int j = threadIdx.y; j < a.slices; j += 8) sum += a.part[j * count + i];
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y || i >= count) return;
  for (int j = 1; j < 8; j++) sum += shared[j][threadIdx.x];
  i64 k = i / (a.rows * a.rows), tap = i - k * a.rows * a.rows;
  ((T*)a.out)[k * a.weight_stride[0] + tap / a.rows * a.weight_stride[1] + tap % a.rows * a.weight_stride[2]] = put<T>(sum);
}
extern "C" __global__ void depthwise_slices(Depthwise a) { DISPATCH(a.dtype, slices<T>(a);) }
