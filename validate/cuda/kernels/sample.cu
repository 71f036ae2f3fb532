// Images read at places between their pixels: bicubic interpolation and
// grid_sample. Coordinates and weights are computed in double, so that a place
// on the edge of two pixels falls on the side that it falls on elsewhere.
#include "common.cuh"

__device__ __forceinline__ i64 at4(const i64* stride, i64 n, i64 c, i64 y, i64 x) { return n * stride[0] + c * stride[1] + y * stride[2] + x * stride[3]; }

// Bicubic interpolation, with Keys' cubic of parameter -0.75 and repeated edges.
struct Bicubic {
  i64 n, c, h, w, oh, ow; // of the image, and of what is made of it
  i64 in_stride[4], out_stride[4];
  const void* in; // backward: the gradient of the result
  void* out;      // backward: that of the image
  double scale_h, scale_w; // distance of neighbouring samples in pixels
  int corners, dtype;
};

__device__ __forceinline__ double cubic_near(double d) { return ((-0.75 + 2) * d - (-0.75 + 3)) * d * d + 1; }
__device__ __forceinline__ double cubic_far(double d) { return ((-0.75 * d + 0.75 * 5) * d - 0.75 * 8) * d + 0.75 * 4; }

// cubic gives the pixel before the place of sample o, and the weights of the four
// around the place.
__device__ __forceinline__ i64 cubic(i64 o, double scale, int corners, double* weight) {
  double x = corners ? scale * o : scale * (o + 0.5) - 0.5, low = floor(x), t = x - low;
  weight[0] = cubic_far(1 + t);
  weight[1] = cubic_near(t);
  weight[2] = cubic_near(1 - t);
  weight[3] = cubic_far(2 - t);
  return (i64)low;
}
__device__ __forceinline__ i64 clampi(i64 v, i64 top) { return v < 0 ? 0 : v > top ? top : v; }

template <typename T> __device__ void bicubic_up(const Bicubic& a) {
  i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= a.n * a.c * a.oh * a.ow) return;
  i64 x = i % a.ow, y = i / a.ow % a.oh, c = i / a.ow / a.oh % a.c, n = i / a.ow / a.oh / a.c;
  double wy[4], wx[4], sum = 0;
  i64 y0 = cubic(y, a.scale_h, a.corners, wy), x0 = cubic(x, a.scale_w, a.corners, wx);
  for (int j = 0; j < 4; j++)
    for (int k = 0; k < 4; k++)
      sum += wy[j] * wx[k] * get<T>(((const T*)a.in)[at4(a.in_stride, n, c, clampi(y0 - 1 + j, a.h - 1), clampi(x0 - 1 + k, a.w - 1))]);
  ((T*)a.out)[at4(a.out_stride, n, c, y, x)] = put<T>((float)sum);
}
extern "C" __global__ void bicubic_forward(Bicubic a) { DISPATCH(a.dtype, bicubic_up<T>(a);) }

// cubic_range bounds the samples that read pixel i of a line of n.
__device__ __forceinline__ void cubic_range(i64 i, i64 n, i64 m, double scale, int corners, i64& lo, i64& hi) {
  lo = 0;
  hi = m;
  if (scale <= 0) return;
  double shift = corners ? 0 : 0.5;
  if (i > 0) lo = clampi((i64)floor((i - 2 + shift) / scale - shift) - 1, m);
  if (i < n - 1) hi = clampi((i64)ceil((i + 2 + shift) / scale - shift) + 2, m);
}

// cubic_share is what pixel i weighs in sample o.
__device__ __forceinline__ double cubic_share(i64 o, i64 i, i64 n, double scale, int corners) {
  double w[4], sum = 0;
  i64 x = cubic(o, scale, corners, w);
  for (int k = 0; k < 4; k++)
    if (clampi(x - 1 + k, n - 1) == i) sum += w[k];
  return sum;
}

// A pixel's gradient is gathered from the samples that read it.
template <typename T> __device__ void bicubic_down(const Bicubic& a) {
  i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= a.n * a.c * a.h * a.w) return;
  i64 x = i % a.w, y = i / a.w % a.h, c = i / a.w / a.h % a.c, n = i / a.w / a.h / a.c;
  i64 ylo, yhi, xlo, xhi;
  cubic_range(y, a.h, a.oh, a.scale_h, a.corners, ylo, yhi);
  cubic_range(x, a.w, a.ow, a.scale_w, a.corners, xlo, xhi);
  double sum = 0;
  for (i64 oy = ylo; oy < yhi; oy++) {
    double wy = cubic_share(oy, y, a.h, a.scale_h, a.corners);
    if (wy == 0) continue;
    for (i64 ox = xlo; ox < xhi; ox++) {
      double wx = cubic_share(ox, x, a.w, a.scale_w, a.corners);
      if (wx != 0) sum += wy * wx * get<T>(((const T*)a.in)[at4(a.in_stride, n, c, oy, ox)]);
    }
  }
  ((T*)a.out)[at4(a.out_stride, n, c, y, x)] = put<T>((float)sum);
}
extern "C" __global__ void bicubic_backward(Bicubic a) { DISPATCH(a.dtype, bicubic_down<T>(a);) }

// grid_sample.
struct Grid {
  i64 n, c, h, w, oh, ow;
  i64 image_stride[4], grid_stride[4], out_stride[4]; // out: the result, or its gradient
  i64 grid_grad_stride[4], image_grad_stride[4];
  const void *image, *grid;
  void *out, *grid_grad, *image_grad;
  i64* sums; // the image's gradient in fixed point, row by row; before it the largest number of the result's gradient
  int nearest, padding, corners, dtype, grid_dtype, pad;
};
enum { ZEROS, BORDER, REFLECTION };

// on_image turns a coordinate of the grid into one of a line of n pixels, and says
// how fast that moves with it.
__device__ double on_image(double c, i64 n, int padding, int corners, double& slope) {
  double size = (double)n, x;
  if (corners) {
    x = (c + 1) / 2 * (size - 1);
    slope = (size - 1) / 2;
  } else {
    x = ((c + 1) * size - 1) / 2;
    slope = size / 2;
  }
  if (padding == REFLECTION) {
    double low = corners ? 0 : -0.5, high = corners ? size - 1 : size - 0.5, span = high - low;
    if (span == 0) {
      x = 0;
      slope = 0;
    } else {
      double sign = 1;
      x -= low;
      if (x < 0) {
        x = -x;
        sign = -1;
      }
      double rest = fmod(x, span);
      if (fmod(floor(x / span), 2.0) == 0) {
        x = rest + low;
        slope *= sign;
      } else {
        x = span - rest + low;
        slope *= -sign;
      }
    }
  }
  if (padding != ZEROS && (x <= 0 || x >= size - 1)) {
    slope = 0;
    return x < 0 ? 0 : x > size - 1 ? size - 1 : x;
  }
  return x;
}

// A Taps is the pixels that a sample is mixed from: their weights, and what those
// gain when the grid's coordinates grow. Pixels outside the image have y < 0.
struct Taps {
  i64 y[4], x[4];
  double weight[4], dx[4], dy[4];
};

__device__ void taps_of(const Grid& a, i64 n, i64 oy, i64 ox, Taps& t) {
  i64 g = n * a.grid_stride[0] + oy * a.grid_stride[1] + ox * a.grid_stride[2];
  double sx, sy;
  double x = on_image(load<double>(a.grid, a.grid_dtype, g), a.w, a.padding, a.corners, sx);
  double y = on_image(load<double>(a.grid, a.grid_dtype, g + a.grid_stride[3]), a.h, a.padding, a.corners, sy);
  double x0 = a.nearest ? rint(x) : floor(x), y0 = a.nearest ? rint(y) : floor(y);
#pragma unroll
  for (int k = 0; k < 4; k++) {
    double px = x0 + (k & 1), py = y0 + (k >> 1);
    double wx = k & 1 ? x - x0 : 1 - (x - x0), wy = k >> 1 ? y - y0 : 1 - (y - y0);
    bool inside = px >= 0 && px < (double)a.w && py >= 0 && py < (double)a.h && !(a.nearest && k);
    t.x[k] = inside ? (i64)px : -1;
    t.y[k] = inside ? (i64)py : -1;
    t.weight[k] = a.nearest ? 1 : wx * wy;
    t.dx[k] = a.nearest ? 0 : (k & 1 ? sx : -sx) * wy;
    t.dy[k] = a.nearest ? 0 : (k >> 1 ? sy : -sy) * wx;
  }
}

template <typename T> __device__ void grid_read(const Grid& a) {
  i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= a.n * a.c * a.oh * a.ow) return;
  i64 x = i % a.ow, y = i / a.ow % a.oh, c = i / a.ow / a.oh % a.c, n = i / a.ow / a.oh / a.c;
  Taps t;
  taps_of(a, n, y, x, t);
  double sum = 0;
  for (int k = 0; k < 4; k++)
    if (t.y[k] >= 0) sum += t.weight[k] * get<T>(((const T*)a.image)[at4(a.image_stride, n, c, t.y[k], t.x[k])]);
  ((T*)a.out)[at4(a.out_stride, n, c, y, x)] = put<T>((float)sum);
}
extern "C" __global__ void grid_forward(Grid a) { DISPATCH(a.dtype, grid_read<T>(a);) }

// The gradient of a place of the grid, from all channels in order.
template <typename T> __device__ void grid_places(const Grid& a) {
  i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= a.n * a.oh * a.ow) return;
  i64 x = i % a.ow, y = i / a.ow % a.oh, n = i / a.ow / a.oh;
  Taps t;
  taps_of(a, n, y, x, t);
  double gx = 0, gy = 0;
  for (int k = 0; k < 4; k++) {
    if (t.y[k] < 0) continue;
    double sum = 0;
    for (i64 c = 0; c < a.c; c++)
      sum += (double)get<T>(((const T*)a.out)[at4(a.out_stride, n, c, y, x)]) * get<T>(((const T*)a.image)[at4(a.image_stride, n, c, t.y[k], t.x[k])]);
    gx += t.dx[k] * sum;
    gy += t.dy[k] * sum;
  }
  i64 g = n * a.grid_grad_stride[0] + y * a.grid_grad_stride[1] + x * a.grid_grad_stride[2];
  store<double>(a.grid_grad, a.grid_dtype, g, gx);
  store<double>(a.grid_grad, a.grid_dtype, g + a.grid_grad_stride[3], gy);
}
extern "C" __global__ void grid_backward_places(Grid a) { DISPATCH(a.dtype, grid_places<T>(a);) }

// The image's gradient is added up in fixed point: whole numbers add up to the
// same in any order. The unit is 2^-61 of what all samples could add to one
// pixel at most, which for a million of them is 2^-41 of the largest number.
// grid_backward_top finds that number; it comes out the largest of all bits
// where one is not a number.
template <typename T> __device__ void grid_top(const Grid& a) {
  u32 top = 0;
  i64 n = a.n * a.c * a.oh * a.ow;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
    i64 x = i % a.ow, y = i / a.ow % a.oh, c = i / a.ow / a.oh % a.c, b = i / a.ow / a.oh / a.c;
    float v = get<T>(((const T*)a.out)[at4(a.out_stride, b, c, y, x)]);
    u32 bits;
    memcpy(&bits, &v, 4);
    bits &= 0x7fffffffu;
    if (bits > top) top = bits;
  }
  atomicMax((u32*)a.sums, top);
}
extern "C" __global__ void grid_backward_top(Grid a) { DISPATCH(a.dtype, grid_top<T>(a);) }

// grid_unit is the exponent of the fixed point: numbers times 2^unit. It is 0
// where the gradient holds what is not finite.
__device__ __forceinline__ bool grid_unit(const Grid& a, int& unit) {
  u32 bits = *(const u32*)a.sums;
  float top;
  memcpy(&top, &bits, 4);
  unit = 0;
  if (bits >= 0x7f800000u) return false;
  if (top == 0) return true;
  i64 samples = a.oh * a.ow;
  int e = ilogb((double)top) + 1; // top < 2^e
  while (samples > 0) {
    e++;
    samples >>= 1;
  }
  unit = 61 - e;
  return true;
}

template <typename T> __device__ void grid_image(const Grid& a) {
  i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= a.n * a.c * a.oh * a.ow) return;
  i64 x = i % a.ow, y = i / a.ow % a.oh, c = i / a.ow / a.oh % a.c, n = i / a.ow / a.oh / a.c;
  int unit;
  if (!grid_unit(a, unit)) return;
  Taps t;
  taps_of(a, n, y, x, t);
  double g = get<T>(((const T*)a.out)[at4(a.out_stride, n, c, y, x)]);
  for (int k = 0; k < 4; k++)
    if (t.y[k] >= 0) atomicAdd((u64*)a.sums + 1 + ((n * a.c + c) * a.h + t.y[k]) * a.w + t.x[k], (u64)llrint(ldexp(t.weight[k] * g, unit)));
}
extern "C" __global__ void grid_backward_image(Grid a) { DISPATCH(a.dtype, grid_image<T>(a);) }

extern "C" __global__ void grid_backward_finish(Grid a) {
  i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= a.n * a.c * a.h * a.w) return;
  i64 x = i % a.w, y = i / a.w % a.h, c = i / a.w / a.h % a.c, n = i / a.w / a.h / a.c;
  int unit;
  double v = grid_unit(a, unit) ? ldexp((double)a.sums[1 + i], -unit) : (double)NAN;
  store<double>(a.image_grad, a.dtype, at4(a.image_grad_stride, n, c, y, x), v);
}
