// Normalisations and their backward.
#include "common.cuh"

// Partial sums of columns, by split.
__device__ float scratch[1 << 20];

struct RowNorm {
  i64 rows, cols;
  const void *in, *weight, *bias;
  void *out, *mean, *rstd; // mean: null for the root-mean-square norm
  const void* grad;        // backward: of the result; out is then the operand's gradient
  void *weight_grad, *bias_grad;
  float eps;
  int dtype, weight_dtype, stat_dtype, splits, pad;
};

template <typename T> __device__ void row_norm(const RowNorm& a) {
  for (i64 r = blockIdx.x; r < a.rows; r += gridDim.x) {
    const T* x = (const T*)a.in + r * a.cols;
    T* y = (T*)a.out + r * a.cols;
    float mean = 0, sq = 0;
    if (a.mean) {
      for (i64 c = threadIdx.x; c < a.cols; c += blockDim.x) mean += get<T>(x[c]);
      mean = block_sum(mean) / a.cols;
    }
    for (i64 c = threadIdx.x; c < a.cols; c += blockDim.x) {
      float d = get<T>(x[c]) - mean;
      sq += d * d;
    }
    float rstd = rsqrtf(block_sum(sq) / a.cols + a.eps);
    for (i64 c = threadIdx.x; c < a.cols; c += blockDim.x) {
      float v = (get<T>(x[c]) - mean) * rstd;
      if (a.weight) v *= loadf(a.weight, a.weight_dtype, c);
      if (a.bias) v += loadf(a.bias, a.weight_dtype, c);
      y[c] = put<T>(v);
    }
    if (threadIdx.x == 0) {
      if (a.mean) store<float>(a.mean, a.stat_dtype, r, mean);
      if (a.rstd) store<float>(a.rstd, a.stat_dtype, r, rstd);
    }
  }
}
extern "C" __global__ void row_norm_forward(RowNorm a) { DISPATCH(a.dtype, row_norm<T>(a);) }

template <typename T> __device__ void row_norm_back(const RowNorm& a) {
  for (i64 r = blockIdx.x; r < a.rows; r += gridDim.x) {
    const T *x = (const T*)a.in + r * a.cols, *g = (const T*)a.grad + r * a.cols;
    T* out = (T*)a.out + r * a.cols;
    float mean = a.mean ? loadf(a.mean, a.stat_dtype, r) : 0, rstd = loadf(a.rstd, a.stat_dtype, r);
    float s0 = 0, s1 = 0;
    for (i64 c = threadIdx.x; c < a.cols; c += blockDim.x) {
      float d = get<T>(g[c]);
      if (a.weight) d *= loadf(a.weight, a.weight_dtype, c);
      s0 += d;
      s1 += d * (get<T>(x[c]) - mean) * rstd;
    }
    s0 = a.mean ? block_sum(s0) / a.cols : 0;
    s1 = block_sum(s1) / a.cols;
    for (i64 c = threadIdx.x; c < a.cols; c += blockDim.x) {
      float d = get<T>(g[c]);
      if (a.weight) d *= loadf(a.weight, a.weight_dtype, c);
      out[c] = put<T>((d - s0 - (get<T>(x[c]) - mean) * rstd * s1) * rstd);
    }
  }
}
extern "C" __global__ void row_norm_backward(RowNorm a) { DISPATCH(a.dtype, row_norm_back<T>(a);) }

// Gradients of weight and bias: 32 columns a block, its 16 rows of threads and
// the splits share the rows; partial sums go to scratch.
template <typename T> __device__ void row_norm_weights(const RowNorm& a) {
  __shared__ float s[2][16][33];
  i64 c = (i64)blockIdx.x * 32 + threadIdx.x;
  i64 each = (a.rows + a.splits - 1) / a.splits, from = blockIdx.y * each, to = min(from + each, a.rows);
  float dw = 0, db = 0;
  if (c < a.cols)
    for (i64 r = from + threadIdx.y; r < to; r += 16) {
      float g = get<T>(((const T*)a.grad)[r * a.cols + c]);
      float mean = a.mean ? loadf(a.mean, a.stat_dtype, r) : 0;
      dw += g * (get<T>(((const T*)a.in)[r * a.cols + c]) - mean) * loadf(a.rstd, a.stat_dtype, r);
      db += g;
    }
  s[0][threadIdx.y][threadIdx.x] = dw;
  s[1][threadIdx.y][threadIdx.x] = db;
  __syncthreads();
  if (threadIdx.y > 1 || c >= a.cols) return;
  float sum = 0;
  for (int k = 0; k < 16; k++) sum += s[threadIdx.y][k][threadIdx.x];
  scratch[((i64)threadIdx.y * a.splits + blockIdx.y) * a.cols + c] = sum;
}
extern "C" __global__ void row_norm_weights_partial(RowNorm a) { DISPATCH(a.dtype, row_norm_weights<T>(a);) }
extern "C" __global__ void row_norm_weights_finish(RowNorm a) {
  i64 c = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= a.cols) return;
  float dw = 0, db = 0;
  for (int k = 0; k < a.splits; k++) {
    dw += scratch[(i64)k * a.cols + c];
    db += scratch[((i64)a.splits + k) * a.cols + c];
  }
  if (a.weight_grad) store<float>(a.weight_grad, a.weight_dtype, c, dw);
  if (a.bias_grad) store<float>(a.bias_grad, a.weight_dtype, c, db);
}

// Batch normalisation: element (n, c, s) lies at n*sn + c*sc + s*ss.
struct BatchNorm {
  i64 n, c, s;
  i64 in_n, in_c, in_s, out_n, out_c, out_s, grad_n, grad_c, grad_s;
  const void *in, *weight, *bias, *grad;
  void *running_mean, *running_var, *mean, *rstd; // mean and rstd: saved by the forward, read by the backward
  void *out, *weight_grad, *bias_grad;
  float eps, momentum;
  int dtype, weight_dtype, stat_dtype, running_dtype, splits, train;
};

// batch_sums leaves two sums of every channel and split in scratch. Forward: of
// the values, and of their squares, less the channel's first value. Backward: of
// the gradients, and of their products with the values less the mean.
template <typename T> __device__ void batch_sums(const BatchNorm& a) {
  __shared__ float s[2][512];
  i64 c = (i64)blockIdx.x * blockDim.x + threadIdx.x, all = a.n * a.s;
  i64 each = (all + a.splits - 1) / a.splits, from = blockIdx.y * each, to = min(from + each, all);
  float s0 = 0, s1 = 0;
  if (c < a.c) {
    const T* in = (const T*)a.in + c * a.in_c;
    const T* grad = (const T*)a.grad + c * a.grad_c;
    float shift = a.grad ? (a.train ? loadf(a.mean, a.stat_dtype, c) : loadf(a.running_mean, a.running_dtype, c)) : get<T>(in[0]);
    // Each thread steps through its channel's elements without dividing.
    i64 i = from + threadIdx.y, n = i / a.s, p = i - n * a.s, step_n = blockDim.y / a.s, step_p = blockDim.y - step_n * a.s;
#pragma unroll 4
    for (; i < to; i += blockDim.y) {
      float x = get<T>(in[n * a.in_n + p * a.in_s]) - shift;
      if (a.grad) {
        float g = get<T>(grad[n * a.grad_n + p * a.grad_s]);
        s0 += g;
        s1 += g * x;
      } else {
        s0 += x;
        s1 += x * x;
      }
      n += step_n;
      p += step_p;
      if (p >= a.s) p -= a.s, n++;
    }
  }
  int at = threadIdx.y * blockDim.x + threadIdx.x;
  s[0][at] = s0;
  s[1][at] = s1;
  __syncthreads();
  for (int h = blockDim.y / 2; h; h /= 2) {
    if (threadIdx.y < h) {
      s[0][at] += s[0][at + h * blockDim.x];
      s[1][at] += s[1][at + h * blockDim.x];
    }
    __syncthreads();
  }
  if (threadIdx.y == 0 && c < a.c) {
    scratch[blockIdx.y * a.c + c] = s[0][threadIdx.x];
    scratch[((i64)a.splits + blockIdx.y) * a.c + c] = s[1][threadIdx.x];
  }
}
extern "C" __global__ void batch_norm_sums(BatchNorm a) { DISPATCH(a.dtype, batch_sums<T>(a);) }

// batch_norm_finish adds the splits. Forward: saves mean and inverse deviation
// and moves the running ones. Backward: the gradients of weight and bias; the
// sums stay in scratch for the operand's gradient.
extern "C" __global__ void batch_norm_finish(BatchNorm a) {
  i64 c = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= a.c) return;
  double s0 = 0, s1 = 0;
  for (int k = 0; k < a.splits; k++) {
    s0 += scratch[(i64)k * a.c + c];
    s1 += scratch[((i64)a.splits + k) * a.c + c];
  }
  double m = (double)a.n * a.s;
  if (!a.grad) {
    double shift = loadf(a.in, a.dtype, c * a.in_c), mean = s0 / m, var = fmax(s1 / m - mean * mean, 0.0);
    mean += shift;
    store<float>(a.mean, a.stat_dtype, c, (float)mean);
    store<float>(a.rstd, a.stat_dtype, c, (float)(1.0 / sqrt(var + a.eps)));
    if (a.running_mean) {
      double w = a.momentum, unbiased = m > 1 ? var * m / (m - 1) : var;
      store<float>(a.running_mean, a.running_dtype, c, (float)((1 - w) * loadf(a.running_mean, a.running_dtype, c) + w * mean));
      store<float>(a.running_var, a.running_dtype, c, (float)((1 - w) * loadf(a.running_var, a.running_dtype, c) + w * unbiased));
    }
    return;
  }
  float rstd = a.train ? loadf(a.rstd, a.stat_dtype, c) : rsqrtf(loadf(a.running_var, a.running_dtype, c) + a.eps);
  if (a.weight_grad) store<float>(a.weight_grad, a.weight_dtype, c, (float)s1 * rstd);
  if (a.bias_grad) store<float>(a.bias_grad, a.weight_dtype, c, (float)s0);
  scratch[c] = (float)(s0 / m);
  scratch[(i64)a.splits * a.c + c] = (float)(s1 / m) * rstd * rstd;
}

// batch_apply_planes does what batch_apply does where the positions of a channel
// lie side by side in fours: a channel's numbers are read once for four elements.
template <typename T, bool BACK> __device__ void batch_apply_planes(const BatchNorm& a) {
  struct alignas(4 * sizeof(T)) Four { T v[4]; };
  i64 fours = a.n * a.c * a.s / 4;
  u32 width = (u32)(a.s / 4);
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < fours; i += (i64)gridDim.x * blockDim.x) {
    i64 plane = fours < 0x7fffffff ? (i64)((u32)i / width) : i / width, p = (i - plane * width) * 4;
    i64 n = plane < 0x7fffffff ? (i64)((u32)plane / (u32)a.c) : plane / a.c, c = plane - n * a.c;
    float mean, rstd, w = a.weight ? loadf(a.weight, a.weight_dtype, c) : 1.f;
    if (a.train) mean = loadf(a.mean, a.stat_dtype, c), rstd = loadf(a.rstd, a.stat_dtype, c);
    else mean = loadf(a.running_mean, a.running_dtype, c), rstd = rsqrtf(loadf(a.running_var, a.running_dtype, c) + a.eps);
    Four x = *(const Four*)((const T*)a.in + n * a.in_n + c * a.in_c + p), g, y;
    float base = 0, slope = 0, bias = 0;
    if (BACK) {
      g = *(const Four*)((const T*)a.grad + n * a.grad_n + c * a.grad_c + p);
      if (a.train) base = scratch[c], slope = scratch[(i64)a.splits * a.c + c];
    } else if (a.bias) {
      bias = loadf(a.bias, a.weight_dtype, c);
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
      float v = get<T>(x.v[k]) - mean;
      y.v[k] = put<T>(BACK ? (get<T>(g.v[k]) - base - v * slope) * (rstd * w) : v * rstd * w + bias);
    }
    *(Four*)((T*)a.out + n * a.out_n + c * a.out_c + p) = y;
  }
}
extern "C" __global__ void batch_norm_planes(BatchNorm a) { DISPATCH(a.dtype, batch_apply_planes<T COMMA false>(a);) }
extern "C" __global__ void batch_norm_planes_backward(BatchNorm a) { DISPATCH(a.dtype, batch_apply_planes<T COMMA true>(a);) }

// batch_apply normalises, or makes the operand's gradient. Threads run along
// whichever of channels and positions lie side by side in the result.
template <typename T, bool BACK> __device__ void batch_apply(const BatchNorm& a) {
  i64 total = a.n * a.c * a.s;
  bool last = a.out_c == 1 && a.s > 1; // channels last
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += (i64)gridDim.x * blockDim.x) {
    i64 n, c, p;
    if (total < 0x7fffffff) {
      u32 w = last ? (u32)a.c : (u32)a.s, q = (u32)i / w, r = (u32)i - q * w, w2 = last ? (u32)a.s : (u32)a.c;
      u32 q2 = q / w2, r2 = q - q2 * w2;
      n = q2;
      c = last ? r : r2;
      p = last ? r2 : r;
    } else {
      i64 w = last ? a.c : a.s, q = i / w, r = i - q * w, w2 = last ? a.s : a.c;
      n = q / w2;
      c = last ? r : q - n * w2;
      p = last ? q - n * w2 : r;
    }
    float x = get<T>(((const T*)a.in)[n * a.in_n + c * a.in_c + p * a.in_s]);
    float mean, rstd, w = a.weight ? loadf(a.weight, a.weight_dtype, c) : 1.f;
    if (a.train) mean = loadf(a.mean, a.stat_dtype, c), rstd = loadf(a.rstd, a.stat_dtype, c);
    else mean = loadf(a.running_mean, a.running_dtype, c), rstd = rsqrtf(loadf(a.running_var, a.running_dtype, c) + a.eps);
    float y;
    if (BACK) {
      y = get<T>(((const T*)a.grad)[n * a.grad_n + c * a.grad_c + p * a.grad_s]);
      if (a.train) y -= scratch[c] + (x - mean) * scratch[(i64)a.splits * a.c + c];
      y *= rstd * w;
    } else {
      y = (x - mean) * rstd * w + (a.bias ? loadf(a.bias, a.weight_dtype, c) : 0.f);
    }
    ((T*)a.out)[n * a.out_n + c * a.out_c + p * a.out_s] = put<T>(y);
  }
}
extern "C" __global__ void batch_norm_apply(BatchNorm a) { DISPATCH(a.dtype, batch_apply<T COMMA false>(a);) }
extern "C" __global__ void batch_norm_apply_backward(BatchNorm a) { DISPATCH(a.dtype, batch_apply<T COMMA true>(a);) }

// Group normalisation over contiguous operands: a block a group.
struct GroupNorm {
  i64 n, c, s, groups;
  const void *in, *weight, *bias, *grad;
  void *mean, *rstd, *out, *weight_grad, *bias_grad;
  float eps;
  int dtype, weight_dtype, stat_dtype;
};
template <typename T> __device__ void group_norm(const GroupNorm& a) {
  i64 per = a.c / a.groups, m = per * a.s, g = blockIdx.x % a.groups;
  i64 at = blockIdx.x * m;
  const T *x = (const T*)a.in + at, *d = (const T*)a.grad + at;
  T* y = (T*)a.out + at;
  if (!a.grad) {
    float mean = 0, sq = 0;
    for (i64 i = threadIdx.x; i < m; i += blockDim.x) mean += get<T>(x[i]);
    mean = block_sum(mean) / m;
    for (i64 i = threadIdx.x; i < m; i += blockDim.x) {
      float v = get<T>(x[i]) - mean;
      sq += v * v;
    }
    float rstd = rsqrtf(block_sum(sq) / m + a.eps);
    for (i64 i = threadIdx.x; i < m; i += blockDim.x) {
      i64 c = g * per + i / a.s;
      float v = (get<T>(x[i]) - mean) * rstd;
      if (a.weight) v *= loadf(a.weight, a.weight_dtype, c);
      if (a.bias) v += loadf(a.bias, a.weight_dtype, c);
      y[i] = put<T>(v);
    }
    if (threadIdx.x == 0) {
      store<float>(a.mean, a.stat_dtype, blockIdx.x, mean);
      store<float>(a.rstd, a.stat_dtype, blockIdx.x, rstd);
    }
    return;
  }
  float mean = loadf(a.mean, a.stat_dtype, blockIdx.x), rstd = loadf(a.rstd, a.stat_dtype, blockIdx.x), s0 = 0, s1 = 0;
  for (i64 i = threadIdx.x; i < m; i += blockDim.x) {
    float v = get<T>(d[i]) * (a.weight ? loadf(a.weight, a.weight_dtype, g * per + i / a.s) : 1.f);
    s0 += v;
    s1 += v * (get<T>(x[i]) - mean) * rstd;
  }
  s0 = block_sum(s0) / m;
  s1 = block_sum(s1) / m;
  for (i64 i = threadIdx.x; i < m; i += blockDim.x) {
    float v = get<T>(d[i]) * (a.weight ? loadf(a.weight, a.weight_dtype, g * per + i / a.s) : 1.f);
    y[i] = put<T>((v - s0 - (get<T>(x[i]) - mean) * rstd * s1) * rstd);
  }
}
extern "C" __global__ void group_norm_run(GroupNorm a) { DISPATCH(a.dtype, group_norm<T>(a);) }

// Gradients of a group norm's weight and bias: a block a channel.
extern "C" __global__ void group_norm_weights(GroupNorm a) {
  i64 c = blockIdx.x, per = a.c / a.groups;
  float dw = 0, db = 0;
  for (i64 i = threadIdx.x; i < a.n * a.s; i += blockDim.x) {
    i64 n = i / a.s, at = (n * a.c + c) * a.s + i % a.s, st = n * a.groups + c / per;
    float g = loadf(a.grad, a.dtype, at);
    dw += g * (loadf(a.in, a.dtype, at) - loadf(a.mean, a.stat_dtype, st)) * loadf(a.rstd, a.stat_dtype, st);
    db += g;
  }
  dw = block_sum(dw);
  db = block_sum(db);
  if (threadIdx.x) return;
  if (a.weight_grad) store<float>(a.weight_grad, a.weight_dtype, c, dw);
  if (a.bias_grad) store<float>(a.bias_grad, a.weight_dtype, c, db);
}
