// Attention without the matrix of scores in memory: tiles of queries meet tiles
// of keys in shared memory, sums in float32. Every type and every card; the
// backward computes the probabilities again from the rows' log-sum-exp and adds
// nothing atomically.
#pragma once
#include "common.cuh"

struct Attention {
  i64 b, h, hk, m, n, d, dv; // batch, heads, heads of keys, queries, keys, and the two head dims
  i64 q_stride[4], k_stride[4], v_stride[4], o_stride[4], mask_stride[4]; // of [B, H, rows, D]
  i64 g_stride[4], dq_stride[4], dk_stride[4], dv_stride[4];              // backward
  const void *q, *k, *v, *mask, *o, *g;
  void *out, *dq, *dk, *dv_out;
  float *lse, *delta;
  i64 lse_rows; // of one head, with padding
  u64 seed;
  float scale, drop;
  int causal, dtype, mask_dtype, pad;
};

// ROWS queries, COLS keys and D columns of a head at a time, by 16 x 16 threads.
template <int ROWS, int COLS, int D> struct Tile {
  static const int RM = ROWS / 16, RN = COLS / 16, RD = D / 16, W = D + 1, S = COLS + 1;
};

// fetch brings rows of one head to shared memory, zeros beyond them.
template <typename T, int ROWS, int D> __device__ void fetch(float* to, const void* from, const i64* st, i64 b, i64 h, i64 row, i64 rows, i64 cols) {
  const T* p = (const T*)from + b * st[0] + h * st[1];
  for (int i = threadIdx.x; i < ROWS * D; i += 256) {
    int r = i / D, c = i % D;
    to[r * (D + 1) + c] = row + r < rows && c < cols ? get<T>(p[(row + r) * st[2] + c * st[3]]) : 0.f;
  }
}

__device__ __forceinline__ float kept(const Attention& a, i64 head, i64 y, i64 x) {
  if (a.drop == 0) return 1.f;
  return uniform(a.seed, (u64)((head * a.m + y) * a.n + x)) < a.drop ? 0.f : 1.f / (1.f - a.drop);
}

// score finishes a product: scale, mask, and what lies outside.
__device__ __forceinline__ float score(const Attention& a, i64 b, i64 h, i64 y, i64 x, float dot) {
  if (y >= a.m || x >= a.n || (a.causal && x > y)) return -INFINITY;
  float s = dot * a.scale;
  if (a.mask) s += loadf(a.mask, a.mask_dtype, b * a.mask_stride[0] + h * a.mask_stride[1] + y * a.mask_stride[2] + x * a.mask_stride[3]);
  return s;
}

// dots computes a tile of products of rows of x and of y.
template <int RM, int RN, int D> __device__ __forceinline__ void dots(const float* x, const float* y, int ty, int tx, float (&s)[RM][RN]) {
#pragma unroll
  for (int i = 0; i < RM; i++)
#pragma unroll
    for (int j = 0; j < RN; j++) s[i][j] = 0;
#pragma unroll 4
  for (int c = 0; c < D; c++) {
    float u[RM], v[RN];
#pragma unroll
    for (int i = 0; i < RM; i++) u[i] = x[(ty * RM + i) * (D + 1) + c];
#pragma unroll
    for (int j = 0; j < RN; j++) v[j] = y[(tx + 16 * j) * (D + 1) + c];
#pragma unroll
    for (int i = 0; i < RM; i++)
#pragma unroll
      for (int j = 0; j < RN; j++) s[i][j] += u[i] * v[j];
  }
}

// add_product adds a tile of COLS columns times COLS rows to a thread's part of
// the sums.
template <typename X, int COLS> __device__ __forceinline__ void add_product(const float* p, const float* v, int ty, int tx, float (&o)[X::RM][X::RD]) {
#pragma unroll 4
  for (int x = 0; x < COLS; x++) {
    float u[X::RM], w[X::RD];
#pragma unroll
    for (int i = 0; i < X::RM; i++) u[i] = p[(ty * X::RM + i) * X::S + x];
#pragma unroll
    for (int j = 0; j < X::RD; j++) w[j] = v[x * X::W + tx + 16 * j];
#pragma unroll
    for (int i = 0; i < X::RM; i++)
#pragma unroll
      for (int j = 0; j < X::RD; j++) o[i][j] += u[i] * w[j];
  }
}

template <typename T, int ROWS, int COLS, int D> __device__ void forward(const Attention& a) {
  typedef Tile<ROWS, COLS, D> X;
  extern __shared__ float memory[];
  float *q = memory, *k = q + ROWS * X::W, *v = k + COLS * X::W, *p = v + COLS * X::W;
  int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  i64 head = blockIdx.y, b = head / a.h, h = head % a.h, hk = h / (a.h / a.hk), y0 = (i64)blockIdx.x * ROWS;
  fetch<T, ROWS, D>(q, a.q, a.q_stride, b, h, y0, a.m, a.d);
  float top[X::RM], sum[X::RM], o[X::RM][X::RD];
  for (int i = 0; i < X::RM; i++) {
    top[i] = -INFINITY;
    sum[i] = 0;
    for (int j = 0; j < X::RD; j++) o[i][j] = 0;
  }
  i64 end = a.causal ? min(a.n, y0 + ROWS) : a.n;
  for (i64 x0 = 0; x0 < end; x0 += COLS) {
    __syncthreads();
    fetch<T, COLS, D>(k, a.k, a.k_stride, b, hk, x0, a.n, a.d);
    fetch<T, COLS, D>(v, a.v, a.v_stride, b, hk, x0, a.n, a.dv);
    __syncthreads();
    float s[X::RM][X::RN];
    dots<X::RM, X::RN, D>(q, k, ty, tx, s);
#pragma unroll
    for (int i = 0; i < X::RM; i++) {
      i64 y = y0 + ty * X::RM + i;
      float most = top[i];
#pragma unroll
      for (int j = 0; j < X::RN; j++) {
        s[i][j] = score(a, b, h, y, x0 + tx + 16 * j, s[i][j]);
        most = fmaxf(most, s[i][j]);
      }
      for (int w = 8; w; w >>= 1) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, w));
      float fade = most == -INFINITY ? 1.f : expf(top[i] - most), add = 0;
      top[i] = most;
#pragma unroll
      for (int j = 0; j < X::RN; j++) {
        float e = most == -INFINITY ? 0.f : expf(s[i][j] - most);
        add += e;
        p[(ty * X::RM + i) * X::S + tx + 16 * j] = e * kept(a, head, y, x0 + tx + 16 * j);
      }
      for (int w = 8; w; w >>= 1) add += __shfl_xor_sync(0xffffffffu, add, w);
      sum[i] = sum[i] * fade + add;
#pragma unroll
      for (int j = 0; j < X::RD; j++) o[i][j] *= fade;
    }
    __syncthreads();
    add_product<X, COLS>(p, v, ty, tx, o);
  }
  T* out = (T*)a.out + b * a.o_stride[0] + h * a.o_stride[1];
  for (int i = 0; i < X::RM; i++) {
    i64 y = y0 + ty * X::RM + i;
    if (y >= a.m) continue;
    float inv = sum[i] > 0 ? 1.f / sum[i] : 0.f;
    for (int j = 0; j < X::RD; j++)
      if (tx + 16 * j < a.dv) out[y * a.o_stride[2] + (tx + 16 * j) * a.o_stride[3]] = put<T>(o[i][j] * inv);
    if (tx == 0) a.lse[head * a.lse_rows + y] = sum[i] > 0 ? top[i] + logf(sum[i]) : -INFINITY;
  }
}

// delta is the product of each row of the result and of its gradient.
template <typename T> __device__ void row_products(const Attention& a) {
  i64 row = (i64)blockIdx.x * 8 + threadIdx.x / 32;
  if (row >= a.b * a.h * a.m) return;
  i64 y = row % a.m, head = row / a.m, b = head / a.h, h = head % a.h;
  const T* o = (const T*)a.o + b * a.o_stride[0] + h * a.o_stride[1] + y * a.o_stride[2];
  const T* g = (const T*)a.g + b * a.g_stride[0] + h * a.g_stride[1] + y * a.g_stride[2];
  float sum = 0;
  for (i64 c = threadIdx.x % 32; c < a.dv; c += 32) sum += get<T>(o[c * a.o_stride[3]]) * get<T>(g[c * a.g_stride[3]]);
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) a.delta[row] = sum;
}

// slopes computes a tile of probabilities p, after dropout, and of the gradients
// of the scores s.
template <int ROWS, int COLS, int D> __device__ __forceinline__ void slopes(const Attention& a, i64 b, i64 h, i64 head, i64 y0, i64 x0, const float* q, const float* k,
                                                                            const float* g, const float* v, float* p, float* s, int ty, int tx) {
  typedef Tile<ROWS, COLS, D> X;
  float dot[X::RM][X::RN], dp[X::RM][X::RN];
  dots<X::RM, X::RN, D>(q, k, ty, tx, dot);
  dots<X::RM, X::RN, D>(g, v, ty, tx, dp);
#pragma unroll
  for (int i = 0; i < X::RM; i++) {
    i64 y = y0 + ty * X::RM + i;
    float lse = y < a.m ? a.lse[head * a.lse_rows + y] : 0.f, delta = y < a.m ? a.delta[head * a.m + y] : 0.f;
#pragma unroll
    for (int j = 0; j < X::RN; j++) {
      i64 x = x0 + tx + 16 * j;
      float t = score(a, b, h, y, x, dot[i][j]);
      float e = t == -INFINITY || lse == -INFINITY ? 0.f : expf(t - lse), keep = kept(a, head, y, x);
      p[(ty * X::RM + i) * X::S + tx + 16 * j] = e * keep;
      s[(ty * X::RM + i) * X::S + tx + 16 * j] = e * (dp[i][j] * keep - delta) * a.scale;
    }
  }
}

// Gradients of keys and values: a block a tile of keys, all queries of all heads
// that share it.
template <typename T, int ROWS, int COLS, int D> __device__ void backward_keys(const Attention& a) {
  typedef Tile<ROWS, COLS, D> X;
  extern __shared__ float memory[];
  float *k = memory, *v = k + COLS * X::W, *q = v + COLS * X::W, *g = q + ROWS * X::W, *p = g + ROWS * X::W, *s = p + ROWS * X::S;
  int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  i64 b = blockIdx.y / a.hk, hk = blockIdx.y % a.hk, x0 = (i64)blockIdx.x * COLS, group = a.h / a.hk;
  fetch<T, COLS, D>(k, a.k, a.k_stride, b, hk, x0, a.n, a.d);
  fetch<T, COLS, D>(v, a.v, a.v_stride, b, hk, x0, a.n, a.dv);
  float dk[X::RN][X::RD], dv[X::RN][X::RD];
  for (int i = 0; i < X::RN; i++)
    for (int j = 0; j < X::RD; j++) dk[i][j] = dv[i][j] = 0;
  for (i64 h = hk * group; h < (hk + 1) * group; h++)
    for (i64 y0 = a.causal ? x0 / ROWS * ROWS : 0; y0 < a.m; y0 += ROWS) {
      __syncthreads();
      fetch<T, ROWS, D>(q, a.q, a.q_stride, b, h, y0, a.m, a.d);
      fetch<T, ROWS, D>(g, a.g, a.g_stride, b, h, y0, a.m, a.dv);
      __syncthreads();
      slopes<ROWS, COLS, D>(a, b, h, b * a.h + h, y0, x0, q, k, g, v, p, s, ty, tx);
      __syncthreads();
#pragma unroll 2
      for (int y = 0; y < ROWS; y++) {
        float pu[X::RN], su[X::RN], gu[X::RD], qu[X::RD];
#pragma unroll
        for (int i = 0; i < X::RN; i++) pu[i] = p[y * X::S + ty * X::RN + i], su[i] = s[y * X::S + ty * X::RN + i];
#pragma unroll
        for (int j = 0; j < X::RD; j++) gu[j] = g[y * X::W + tx + 16 * j], qu[j] = q[y * X::W + tx + 16 * j];
#pragma unroll
        for (int i = 0; i < X::RN; i++)
#pragma unroll
          for (int j = 0; j < X::RD; j++) dv[i][j] += pu[i] * gu[j], dk[i][j] += su[i] * qu[j];
      }
    }
  for (int i = 0; i < X::RN; i++) {
    i64 x = x0 + ty * X::RN + i;
    if (x >= a.n) continue;
    for (int j = 0; j < X::RD; j++) {
      i64 c = tx + 16 * j;
      if (c < a.d) ((T*)a.dk)[b * a.dk_stride[0] + hk * a.dk_stride[1] + x * a.dk_stride[2] + c * a.dk_stride[3]] = put<T>(dk[i][j]);
      if (c < a.dv) ((T*)a.dv_out)[b * a.dv_stride[0] + hk * a.dv_stride[1] + x * a.dv_stride[2] + c * a.dv_stride[3]] = put<T>(dv[i][j]);
    }
  }
}

// Gradient of the queries: a block a tile of them, all keys.
template <typename T, int ROWS, int COLS, int D> __device__ void backward_queries(const Attention& a) {
  typedef Tile<ROWS, COLS, D> X;
  extern __shared__ float memory[];
  float *k = memory, *v = k + COLS * X::W, *q = v + COLS * X::W, *g = q + ROWS * X::W, *p = g + ROWS * X::W, *s = p + ROWS * X::S;
  int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  i64 head = blockIdx.y, b = head / a.h, h = head % a.h, hk = h / (a.h / a.hk), y0 = (i64)blockIdx.x * ROWS;
  fetch<T, ROWS, D>(q, a.q, a.q_stride, b, h, y0, a.m, a.d);
  fetch<T, ROWS, D>(g, a.g, a.g_stride, b, h, y0, a.m, a.dv);
  float dq[X::RM][X::RD];
  for (int i = 0; i < X::RM; i++)
    for (int j = 0; j < X::RD; j++) dq[i][j] = 0;
  i64 end = a.causal ? min(a.n, y0 + ROWS) : a.n;
  for (i64 x0 = 0; x0 < end; x0 += COLS) {
    __syncthreads();
    fetch<T, COLS, D>(k, a.k, a.k_stride, b, hk, x0, a.n, a.d);
    fetch<T, COLS, D>(v, a.v, a.v_stride, b, hk, x0, a.n, a.dv);
    __syncthreads();
    slopes<ROWS, COLS, D>(a, b, h, head, y0, x0, q, k, g, v, p, s, ty, tx);
    __syncthreads();
    add_product<X, COLS>(s, k, ty, tx, dq);
  }
  for (int i = 0; i < X::RM; i++) {
    i64 y = y0 + ty * X::RM + i;
    if (y >= a.m) continue;
    for (int j = 0; j < X::RD; j++) {
      i64 c = tx + 16 * j;
      if (c < a.d) ((T*)a.dq)[b * a.dq_stride[0] + h * a.dq_stride[1] + y * a.dq_stride[2] + c * a.dq_stride[3]] = put<T>(dq[i][j]);
    }
  }
}

// WIDTH makes the kernels for heads of at most D columns; attention.go has the
// same tiles.
#define WIDTH(D, ROWS, COLS, BACK_ROWS, BACK_COLS)                                                                                                 \
  extern "C" __global__ void attention_delta(Attention a) { DISPATCH(a.dtype, row_products<T>(a);) }                                               \
  extern "C" __global__ void __launch_bounds__(256) attention_forward(Attention a) { DISPATCH(a.dtype, forward<T COMMA ROWS COMMA COLS COMMA D>(a);) } \
  extern "C" __global__ void __launch_bounds__(256) attention_keys(Attention a) { DISPATCH(a.dtype, backward_keys<T COMMA BACK_ROWS COMMA BACK_COLS COMMA D>(a);) } \
  extern "C" __global__ void __launch_bounds__(256) attention_queries(Attention a) { DISPATCH(a.dtype, backward_queries<T COMMA BACK_ROWS COMMA BACK_COLS COMMA D>(a);) }
