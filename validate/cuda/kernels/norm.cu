// Normalisations and their backward.
#include "vector.cuh"

// Partial sums of columns, by split, and a channel's numbers.
__device__ alignas(16) float scratch[1 << 20];

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

// row_norm_team does the same where weights have the type of the rows, and a row
// is made of whole packs, at most 32 elements for each thread of a team, which
// keeps them in registers.
template <typename T> __device__ void row_norm_team(const RowNorm& a) {
  const int V = WIDE(T), K = 32 / V;
  i64 r = (i64)blockIdx.x * blockDim.y + threadIdx.y;
  int packs = r < a.rows ? (int)a.cols / V : 0;
  float count = 1.f / a.cols, mean = 0, sq = 0;
  Pack<T, V> x[K];
#pragma unroll
  for (int k = 0; k < K; k++) {
    int c = threadIdx.x + k * blockDim.x;
    if (c >= packs) continue;
    x[k] = read_pack<T, V>((const T*)a.in + r * a.cols + c * V);
#pragma unroll
    for (int i = 0; i < V; i++) mean += x[k][i];
  }
  mean = a.mean ? team_sum(mean) * count : 0;
#pragma unroll
  for (int k = 0; k < K; k++) {
    if (threadIdx.x + k * blockDim.x >= packs) continue;
#pragma unroll
    for (int i = 0; i < V; i++) sq += (x[k][i] - mean) * (x[k][i] - mean);
  }
  float rstd = rsqrtf(team_sum(sq) * count + a.eps);
#pragma unroll
  for (int k = 0; k < K; k++) {
    int c = threadIdx.x + k * blockDim.x;
    if (c >= packs) continue;
    Pack<T, V> w, b;
    if (a.weight) w = read_pack<T, V>((const T*)a.weight + c * V);
    if (a.bias) b = read_pack<T, V>((const T*)a.bias + c * V);
#pragma unroll
    for (int i = 0; i < V; i++) {
      float v = (x[k][i] - mean) * rstd;
      if (a.weight) v *= w[i];
      if (a.bias) v += b[i];
      x[k].set(i, v);
    }
    write_pack<T, V>((T*)a.out + r * a.cols + c * V, x[k]);
  }
  if (threadIdx.x || r >= a.rows) return;
  if (a.mean) store<float>(a.mean, a.stat_dtype, r, mean);
  if (a.rstd) store<float>(a.rstd, a.stat_dtype, r, rstd);
}
extern "C" __global__ void __launch_bounds__(512) row_norm_forward_teams(RowNorm a) { DISPATCH(a.dtype, row_norm_team<T>(a);) }

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

// row_norm_back_team does the same in registers.
template <typename T> __device__ void row_norm_back_team(const RowNorm& a) {
  const int V = WIDE(T), K = 32 / V;
  i64 r = (i64)blockIdx.x * blockDim.y + threadIdx.y;
  bool there = r < a.rows;
  int packs = there ? (int)a.cols / V : 0;
  float mean = there && a.mean ? loadf(a.mean, a.stat_dtype, r) : 0, rstd = there ? loadf(a.rstd, a.stat_dtype, r) : 0;
  float count = 1.f / a.cols, s0 = 0, s1 = 0;
  Pack<T, V> x[K], g[K];
#pragma unroll
  for (int k = 0; k < K; k++) {
    int c = threadIdx.x + k * blockDim.x;
    if (c >= packs) continue;
    x[k] = read_pack<T, V>((const T*)a.in + r * a.cols + c * V);
    g[k] = read_pack<T, V>((const T*)a.grad + r * a.cols + c * V);
  }
#pragma unroll
  for (int k = 0; k < K; k++) {
    int c = threadIdx.x + k * blockDim.x;
    if (c >= packs) continue;
    Pack<T, V> w;
    if (a.weight) w = read_pack<T, V>((const T*)a.weight + c * V);
#pragma unroll
    for (int i = 0; i < V; i++) {
      float d = a.weight ? g[k][i] * w[i] : g[k][i];
      s0 += d;
      s1 += d * (x[k][i] - mean);
    }
  }
  s0 = a.mean ? team_sum(s0) * count : 0;
  s1 = team_sum(s1) * count * rstd * rstd;
#pragma unroll
  for (int k = 0; k < K; k++) {
    int c = threadIdx.x + k * blockDim.x;
    if (c >= packs) continue;
    Pack<T, V> w;
    if (a.weight) w = read_pack<T, V>((const T*)a.weight + c * V);
#pragma unroll
    for (int i = 0; i < V; i++) {
      float d = a.weight ? g[k][i] * w[i] : g[k][i];
      x[k].set(i, (d - s0 - (x[k][i] - mean) * s1) * rstd);
    }
    write_pack<T, V>((T*)a.out + r * a.cols + c * V, x[k]);
  }
}
extern "C" __global__ void __launch_bounds__(512) row_norm_backward_teams(RowNorm a) { DISPATCH(a.dtype, row_norm_back_team<T>(a);) }

// Gradients of weight and bias: V columns a thread; threads along y and the
// splits share the rows, and partial sums go to scratch.
template <typename T, int V> __device__ void row_norm_weights(const RowNorm& a) {
  i64 c = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * V;
  i64 each = (a.rows + a.splits - 1) / a.splits, from = blockIdx.y * each, to = min(from + each, a.rows);
  float acc[2][V];
#pragma unroll
  for (int i = 0; i < V; i++) acc[0][i] = acc[1][i] = 0;
  if (c < a.cols) {
#pragma unroll 4
    for (i64 r = from + threadIdx.y; r < to; r += blockDim.y) {
      Pack<T, V> x = read_pack<T, V>((const T*)a.in + r * a.cols + c), g = read_pack<T, V>((const T*)a.grad + r * a.cols + c);
      float mean = a.mean ? loadf(a.mean, a.stat_dtype, r) : 0, rstd = loadf(a.rstd, a.stat_dtype, r);
#pragma unroll
      for (int i = 0; i < V; i++) {
        acc[0][i] += g[i] * ((x[i] - mean) * rstd);
        acc[1][i] += g[i];
      }
    }
  }
  i64 left = (i64)blockIdx.x * blockDim.x * V;
  fold_columns<2, V>(acc, [&](int s, int at, float sum) {
    if (left + at < a.cols) scratch[((i64)s * a.splits + blockIdx.y) * a.cols + left + at] = sum;
  });
}
extern "C" __global__ void row_norm_weights_partial(RowNorm a) { DISPATCH(a.dtype, row_norm_weights<T COMMA 1>(a);) }
extern "C" __global__ void row_norm_weights_wide(RowNorm a) { DISPATCH(a.dtype, row_norm_weights<T COMMA WIDE(T)>(a);) }

// row_norm_weights_finish adds the splits, along y: of the weight's gradient
// (block 0 along y) or the bias's.
extern "C" __global__ void row_norm_weights_finish(RowNorm a) {
  i64 left = (i64)blockIdx.x * blockDim.x, c = left + threadIdx.x;
  float acc[1][1] = {{0}};
  if (c < a.cols) {
#pragma unroll 4
    for (int k = threadIdx.y; k < a.splits; k += blockDim.y) acc[0][0] += scratch[((i64)blockIdx.y * a.splits + k) * a.cols + c];
  }
  void* out = blockIdx.y ? a.bias_grad : a.weight_grad;
  fold_columns<1, 1>(acc, [&](int, int at, float sum) {
    if (out && left + at < a.cols) store<float>(out, a.weight_dtype, left + at, sum);
  });
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

// scratch has four numbers of every channel, then two sums of each of its splits.
__device__ __forceinline__ float4* channel_numbers() { return (float4*)scratch; }
__device__ __forceinline__ float2* batch_part(const BatchNorm& a, i64 c) { return (float2*)(scratch + 4 * a.c) + c * a.splits; }

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
  if (threadIdx.y == 0 && c < a.c) batch_part(a, c)[blockIdx.y] = make_float2(s[0][threadIdx.x], s[1][threadIdx.x]);
}
extern "C" __global__ void batch_norm_sums(BatchNorm a) { DISPATCH(a.dtype, batch_sums<T>(a);) }

// batch_sums_planes does the same for the channel blockIdx.x where the positions
// of a channel lie side by side, in packs of V.
template <typename T, int V> __device__ void batch_sums_plane(const BatchNorm& a) {
  i64 c = blockIdx.x, width = a.s / V, all = a.n * width;
  i64 each = (all + a.splits - 1) / a.splits, from = blockIdx.y * each, to = min(from + each, all);
  const T *in = (const T*)a.in + c * a.in_c, *grad = (const T*)a.grad + c * a.grad_c;
  float shift = a.grad ? (a.train ? loadf(a.mean, a.stat_dtype, c) : loadf(a.running_mean, a.running_dtype, c)) : get<T>(in[0]), s0 = 0, s1 = 0;
  // Threads step through the channel's packs without dividing.
  i64 i = from + threadIdx.x, n = i / width, p = i - n * width, step_n = blockDim.x / width, step_p = blockDim.x - step_n * width;
#pragma unroll 4
  for (; i < to; i += blockDim.x) {
    Pack<T, V> x = read_pack<T, V>(in + n * a.in_n + p * V);
    if (a.grad) {
      Pack<T, V> g = read_pack<T, V>(grad + n * a.grad_n + p * V);
#pragma unroll
      for (int k = 0; k < V; k++) s0 += g[k], s1 += g[k] * (x[k] - shift);
    } else {
#pragma unroll
      for (int k = 0; k < V; k++) s0 += x[k] - shift, s1 += (x[k] - shift) * (x[k] - shift);
    }
    n += step_n;
    p += step_p;
    if (p >= width) p -= width, n++;
  }
  s0 = block_sum(s0);
  s1 = block_sum(s1);
  if (threadIdx.x == 0) batch_part(a, c)[blockIdx.y] = make_float2(s0, s1);
}
extern "C" __global__ void batch_norm_sums_planes(BatchNorm a) { DISPATCH(a.dtype, batch_sums_plane<T COMMA 1>(a);) }
extern "C" __global__ void batch_norm_sums_wide(BatchNorm a) { DISPATCH(a.dtype, batch_sums_plane<T COMMA 4>(a);) }

// batch_norm_finish adds the splits, a warp a channel. Forward: saves mean and
// inverse deviation and moves the running ones. Backward: the gradients of weight
// and bias. What the elements need of their channel goes to scratch.
extern "C" __global__ void batch_norm_finish(BatchNorm a) {
  i64 c = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (c >= a.c) return;
  double s0 = 0, s1 = 0;
  for (int k = threadIdx.x & 31; k < a.splits; k += 32) {
    float2 part = batch_part(a, c)[k];
    s0 += part.x;
    s1 += part.y;
  }
  for (int o = 16; o; o >>= 1) {
    s0 += __shfl_xor_sync(0xffffffffu, s0, o);
    s1 += __shfl_xor_sync(0xffffffffu, s1, o);
  }
  if (threadIdx.x & 31) return;
  float mean, rstd, w = a.weight ? loadf(a.weight, a.weight_dtype, c) : 1.f;
  double m = (double)a.n * a.s;
  if (!a.train) {
    mean = loadf(a.running_mean, a.running_dtype, c);
    rstd = rsqrtf(loadf(a.running_var, a.running_dtype, c) + a.eps);
  } else if (a.grad) {
    mean = loadf(a.mean, a.stat_dtype, c);
    rstd = loadf(a.rstd, a.stat_dtype, c);
  } else {
    double shift = loadf(a.in, a.dtype, c * a.in_c), sum = s0 / m, var = fmax(s1 / m - sum * sum, 0.0);
    sum += shift;
    mean = (float)sum;
    rstd = (float)(1.0 / sqrt(var + a.eps));
    store<float>(a.mean, a.stat_dtype, c, mean);
    store<float>(a.rstd, a.stat_dtype, c, rstd);
    if (a.running_mean) {
      double move = a.momentum, unbiased = m > 1 ? var * m / (m - 1) : var;
      store<float>(a.running_mean, a.running_dtype, c, (float)((1 - move) * loadf(a.running_mean, a.running_dtype, c) + move * sum));
      store<float>(a.running_var, a.running_dtype, c, (float)((1 - move) * loadf(a.running_var, a.running_dtype, c) + move * unbiased));
    }
  }
  if (!a.grad) {
    channel_numbers()[c] = make_float4(mean, rstd * w, 0, a.bias ? loadf(a.bias, a.weight_dtype, c) : 0.f);
    return;
  }
  if (a.weight_grad) store<float>(a.weight_grad, a.weight_dtype, c, (float)s1 * rstd);
  if (a.bias_grad) store<float>(a.bias_grad, a.weight_dtype, c, (float)s0);
  channel_numbers()[c] = make_float4(mean, rstd * w, a.train ? (float)(s1 / m) * rstd * rstd : 0.f, a.train ? (float)(s0 / m) : 0.f);
}

// batch_element is one number of the result, of the operand's x, or of its
// gradient, of the result's g.
template <bool BACK> __device__ __forceinline__ float batch_element(float4 of, float x, float g) {
  return BACK ? (g - of.w - (x - of.x) * of.z) * of.y : (x - of.x) * of.y + of.w;
}

// batch_apply_planes does what batch_apply does where the positions of a channel
// lie side by side in packs of V: a channel's numbers are read once for each.
template <typename T, int V, bool BACK> __device__ void batch_apply_planes(const BatchNorm& a) {
  i64 packs = a.n * a.c * a.s / V;
  u32 width = (u32)(a.s / V);
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < packs; i += (i64)gridDim.x * blockDim.x) {
    i64 plane = packs < 0x7fffffff ? (i64)((u32)i / width) : i / width, p = (i - plane * width) * V;
    i64 n = plane < 0x7fffffff ? (i64)((u32)plane / (u32)a.c) : plane / a.c, c = plane - n * a.c;
    Pack<T, V> x = read_pack<T, V>((const T*)a.in + n * a.in_n + c * a.in_c + p), g;
    if (BACK) g = read_pack<T, V>((const T*)a.grad + n * a.grad_n + c * a.grad_c + p);
    float4 of = channel_numbers()[c];
#pragma unroll
    for (int k = 0; k < V; k++) x.set(k, batch_element<BACK>(of, x[k], BACK ? g[k] : 0.f));
    write_pack<T, V>((T*)a.out + n * a.out_n + c * a.out_c + p, x);
  }
}
extern "C" __global__ void batch_norm_planes(BatchNorm a) { DISPATCH(a.dtype, batch_apply_planes<T COMMA 4 COMMA false>(a);) }
extern "C" __global__ void batch_norm_planes_backward(BatchNorm a) { DISPATCH(a.dtype, batch_apply_planes<T COMMA 4 COMMA true>(a);) }

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
    float g = BACK ? get<T>(((const T*)a.grad)[n * a.grad_n + c * a.grad_c + p * a.grad_s]) : 0.f;
    float y = batch_element<BACK>(channel_numbers()[c], x, g);
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
