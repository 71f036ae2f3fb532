// Attention of half types on tensor cores: what attention.cuh does, by products of
// 16 x 8 x 16. Heads of up to 64 or 128 columns, side by side in memory.
#include "attention.cuh"

__device__ __forceinline__ void product(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, __half) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void product(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, __nv_bfloat16) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ u32 pair(float lo, float hi, __half) {
  __half2 v = __floats2half2_rn(lo, hi);
  return *(u32*)&v;
}
__device__ __forceinline__ u32 pair(float lo, float hi, __nv_bfloat16) {
  __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
  return *(u32*)&v;
}

// Four 8 x 8 matrices from shared memory, as they lie or transposed.
__device__ __forceinline__ void matrices(u32 (&r)[4], const void* p) {
  u32 at = (u32)__cvta_generic_to_shared(p);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
__device__ __forceinline__ void matrices_across(u32 (&r)[4], const void* p) {
  u32 at = (u32)__cvta_generic_to_shared(p);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}

// rows_of brings rows of a head to shared memory, 16 bytes at a time, zeros beyond
// them. A row takes D + 8 elements there, so that rows start in different banks.
template <typename T, int ROWS, int D> __device__ void rows_of(T* to, const void* from, const i64* st, i64 b, i64 h, i64 row, i64 rows, i64 cols) {
  const T* p = (const T*)from + b * st[0] + h * st[1];
  for (int i = threadIdx.x; i < ROWS * D / 8; i += 128) {
    int r = i / (D / 8), c = i % (D / 8) * 8;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (row + r < rows && c < cols) v = *(const uint4*)(p + (row + r) * st[2] + c);
    *(uint4*)(to + r * (D + 8) + c) = v;
  }
}

// by_rows computes c = a * b' for 16 rows of a and COLS rows of b, both of D
// elements in shared memory.
template <typename T, int COLS, int D> __device__ __forceinline__ void by_rows(float (&c)[COLS / 8][4], const T* a, const T* b) {
  int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < COLS / 8; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) c[j][i] = 0;
#pragma unroll
  for (int k = 0; k < D; k += 16) {
    u32 x[4];
    matrices(x, a + lane % 16 * (D + 8) + k + lane / 16 * 8);
#pragma unroll
    for (int n = 0; n < COLS; n += 16) {
      u32 y[4];
      matrices(y, b + (n + lane % 8 + lane / 16 * 8) * (D + 8) + k + lane / 8 % 2 * 8);
      product(c[n / 8], x, y[0], y[1], T());
      product(c[n / 8 + 1], x, y[2], y[3], T());
    }
  }
}

// by_columns adds p * b to c for 16 rows of p, which are registers as by_rows left
// them, and K rows of b in shared memory.
template <typename T, int K, int D> __device__ __forceinline__ void by_columns(float (&c)[D / 8][4], const float (&p)[K / 8][4], const T* b) {
  int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < K; k += 16) {
    u32 x[4] = {pair(p[k / 8][0], p[k / 8][1], T()), pair(p[k / 8][2], p[k / 8][3], T()), pair(p[k / 8 + 1][0], p[k / 8 + 1][1], T()), pair(p[k / 8 + 1][2], p[k / 8 + 1][3], T())};
#pragma unroll
    for (int n = 0; n < D; n += 16) {
      u32 y[4];
      matrices_across(y, b + (k + lane % 8 + lane / 8 % 2 * 8) * (D + 8) + n + lane / 16 * 8);
      product(c[n / 8], x, y[0], y[1], T());
      product(c[n / 8 + 1], x, y[2], y[3], T());
    }
  }
}

// put_rows writes 16 rows of registers; cols is a multiple of eight.
template <typename T, int D> __device__ void put_rows(void* to, const i64* st, i64 b, i64 h, i64 row, i64 rows, i64 cols, const float (&c)[D / 8][4], float s0, float s1) {
  T* p = (T*)to + b * st[0] + h * st[1];
  int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    i64 r = row + g + i * 8;
    if (r >= rows) continue;
    float by = i ? s1 : s0;
#pragma unroll
    for (int j = 0; j < D / 8; j++) {
      int col = j * 8 + 2 * t;
      if (col < cols) *(u32*)(p + r * st[2] + col) = pair(c[j][2 * i] * by, c[j][2 * i + 1] * by, T());
    }
  }
}

// in_turn keeps the compiler from overlapping what is before and behind it, which
// takes registers: for code that few calls run.
__device__ __forceinline__ void in_turn() { asm volatile("" ::: "memory"); }

// here keeps what is computed from a number from being computed ahead of a loop.
__device__ __forceinline__ i64 here(i64 v) {
  asm volatile("" : "+l"(v));
  return v;
}

// add_mask adds the mask to scores; what lies outside is left as it is.
template <typename M, int N, bool KEYS> __device__ __forceinline__ void add_mask(const Attention& a, i64 b, i64 h, i64 row0, i64 col0, int rows, int cols, float (&s)[N][4]) {
  int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  i64 down = here(a.mask_stride[KEYS ? 3 : 2]), across = here(a.mask_stride[KEYS ? 2 : 3]);
  const M* p = (const M*)a.mask + (b * a.mask_stride[0] + h * a.mask_stride[1] + row0 * down + col0 * across);
#pragma unroll
  for (int j = 0; j < N; j++) {
    in_turn();
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int r = g + i / 2 * 8, c = j * 8 + 2 * t + i % 2;
      if (r < rows && c < cols) s[j][i] += get<M>(p[r * down + c * across]);
    }
  }
}

// scores turns a tile of products into scores: scale, mask, and minus infinity
// outside. Element i of column tile j lies i / 2 * 8 rows and i % 2 columns from
// the thread's first; KEYS says that rows are keys. What few calls need is apart,
// so that the others' code fits the instruction cache.
template <int N, bool KEYS> __device__ __forceinline__ void scores(const Attention& a, i64 b, i64 h, i64 row0, i64 col0, float (&s)[N][4]) {
  int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  int rows = (int)((KEYS ? a.n : a.m) - row0), cols = (int)((KEYS ? a.m : a.n) - col0), ahead = (int)(col0 - row0);
#pragma unroll
  for (int j = 0; j < N; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) s[j][i] *= a.scale;
  if (a.mask) switch (a.mask_dtype) {
    case F32: add_mask<float, N, KEYS>(a, b, h, row0, col0, rows, cols, s); break;
    case F16: add_mask<__half, N, KEYS>(a, b, h, row0, col0, rows, cols, s); break;
    case BF16: add_mask<__nv_bfloat16, N, KEYS>(a, b, h, row0, col0, rows, cols, s); break;
    }
  if (rows >= 16 && cols >= 8 * N && !a.causal) return;
#pragma unroll
  for (int j = 0; j < N; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int r = g + i / 2 * 8, c = j * 8 + 2 * t + i % 2, past = KEYS ? r - c - ahead : c - r + ahead; // keys behind the query
      if (r >= rows || c >= cols || (a.causal && past > 0)) s[j][i] = -INFINITY;
    }
}

template <typename T, int D> __device__ void forward_cores(const Attention& a) {
  extern __shared__ uint4 memory[];
  T *q = (T*)memory, *k = q + 64 * (D + 8), *v = k + 64 * (D + 8);
  int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  i64 head = blockIdx.y, b = head / a.h, h = head % a.h, hk = h / (a.h / a.hk), y0 = (i64)blockIdx.x * 64;
  rows_of<T, 64, D>(q, a.q, a.q_stride, b, h, y0, a.m, a.d);
  float o[D / 8][4], top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
#pragma unroll
  for (int j = 0; j < D / 8; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) o[j][i] = 0;
  i64 end = a.causal ? min(a.n, y0 + 64) : a.n;
  for (i64 x0 = 0; x0 < end; x0 += 64) {
    __syncthreads();
    rows_of<T, 64, D>(k, a.k, a.k_stride, b, hk, x0, a.n, a.d);
    rows_of<T, 64, D>(v, a.v, a.v_stride, b, hk, x0, a.n, a.dv);
    __syncthreads();
    float s[8][4];
    by_rows<T, 64, D>(s, q + warp * 16 * (D + 8), k);
    scores<8, false>(a, b, h, y0 + warp * 16, x0, s);
    float most[2] = {top[0], top[1]};
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        most[i / 2] = fmaxf(most[i / 2], s[j][i]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 1));
      most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 2));
      float fade = most[r] == -INFINITY ? 1.f : __expf(top[r] - most[r]), add = 0;
      top[r] = most[r];
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; i++) {
          float e = most[r] == -INFINITY ? 0.f : __expf(s[j][i] - most[r]);
          add += e;
          s[j][i] = e;
        }
      add += __shfl_xor_sync(0xffffffffu, add, 1);
      add += __shfl_xor_sync(0xffffffffu, add, 2);
      sum[r] = sum[r] * fade + add;
#pragma unroll
      for (int j = 0; j < D / 8; j++) o[j][2 * r] *= fade, o[j][2 * r + 1] *= fade;
    }
    if (a.drop != 0)
#pragma unroll
      for (int j = 0; j < 8; j++) {
        in_turn();
#pragma unroll
        for (int i = 0; i < 4; i++) s[j][i] *= kept(a, head, here(y0) + warp * 16 + g + i / 2 * 8, x0 + j * 8 + 2 * t + i % 2);
      }
    by_columns<T, 64, D>(o, s, v);
  }
  put_rows<T, D>(a.out, a.o_stride, b, h, y0 + warp * 16, a.m, a.dv, o, sum[0] > 0 ? 1.f / sum[0] : 0.f, sum[1] > 0 ? 1.f / sum[1] : 0.f);
  if (t == 0)
    for (int r = 0; r < 2; r++) {
      i64 y = y0 + warp * 16 + g + r * 8;
      if (y < a.m) a.lse[head * a.lse_rows + y] = sum[r] > 0 ? top[r] + logf(sum[r]) : -INFINITY;
    }
}

// grads turns a tile of products and of the gradients of probabilities into
// probabilities after dropout, p, and gradients of the scores, s. Element i of
// column tile j lies at query y and key x; KEYS says that rows are keys.
template <int COLS, bool KEYS> __device__ __forceinline__ void grads(const Attention& a, i64 b, i64 h, i64 head, i64 row0, i64 col0, const float* lse, const float* delta,
                                                                     float (&p)[COLS / 8][4], float (&s)[COLS / 8][4]) {
  int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  scores<COLS / 8, KEYS>(a, b, h, row0, col0, p);
#pragma unroll
  for (int j = 0; j < COLS / 8; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int at = KEYS ? j * 8 + 2 * t + i % 2 : i / 2;
      p[j][i] = p[j][i] == -INFINITY || lse[at] == -INFINITY ? 0.f : __expf(p[j][i] - lse[at]);
    }
  if (a.drop != 0) {
#pragma unroll
    for (int j = 0; j < COLS / 8; j++) {
      in_turn();
#pragma unroll
      for (int i = 0; i < 4; i++) {
        i64 row = here(row0) + g + i / 2 * 8, col = here(col0) + j * 8 + 2 * t + i % 2;
        int at = KEYS ? j * 8 + 2 * t + i % 2 : i / 2;
        float keep = kept(a, head, KEYS ? col : row, KEYS ? row : col), e = p[j][i];
        p[j][i] = e * keep;
        s[j][i] = e * (s[j][i] * keep - delta[at]) * a.scale;
      }
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < COLS / 8; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) s[j][i] = p[j][i] * (s[j][i] - delta[KEYS ? j * 8 + 2 * t + i % 2 : i / 2]) * a.scale;
}

template <typename T, int D, int QUERIES> __device__ void keys_cores(const Attention& a) {
  extern __shared__ uint4 memory[];
  __shared__ float lse[QUERIES], delta[QUERIES];
  T *k = (T*)memory, *v = k + 64 * (D + 8), *q = v + 64 * (D + 8), *g = q + QUERIES * (D + 8);
  int warp = threadIdx.x / 32;
  i64 b = blockIdx.y / a.hk, hk = blockIdx.y % a.hk, x0 = (i64)blockIdx.x * 64, group = a.h / a.hk;
  rows_of<T, 64, D>(k, a.k, a.k_stride, b, hk, x0, a.n, a.d);
  rows_of<T, 64, D>(v, a.v, a.v_stride, b, hk, x0, a.n, a.dv);
  float dk[D / 8][4], dv[D / 8][4];
#pragma unroll
  for (int j = 0; j < D / 8; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) dk[j][i] = dv[j][i] = 0;
  for (i64 h = hk * group; h < (hk + 1) * group; h++)
    for (i64 y0 = a.causal ? x0 / QUERIES * QUERIES : 0; y0 < a.m; y0 += QUERIES) {
      __syncthreads();
      rows_of<T, QUERIES, D>(q, a.q, a.q_stride, b, h, y0, a.m, a.d);
      rows_of<T, QUERIES, D>(g, a.g, a.g_stride, b, h, y0, a.m, a.dv);
      if (threadIdx.x < QUERIES) {
        i64 y = y0 + threadIdx.x, head = b * a.h + h;
        lse[threadIdx.x] = y < a.m ? a.lse[head * a.lse_rows + y] : 0.f;
        delta[threadIdx.x] = y < a.m ? a.delta[head * a.m + y] : 0.f;
      }
      __syncthreads();
      float p[QUERIES / 8][4], s[QUERIES / 8][4];
      by_rows<T, QUERIES, D>(p, k + warp * 16 * (D + 8), q);
      by_rows<T, QUERIES, D>(s, v + warp * 16 * (D + 8), g);
      grads<QUERIES, true>(a, b, h, b * a.h + h, x0 + warp * 16, y0, lse, delta, p, s);
      by_columns<T, QUERIES, D>(dv, p, g);
      by_columns<T, QUERIES, D>(dk, s, q);
    }
  put_rows<T, D>(a.dk, a.dk_stride, b, hk, x0 + warp * 16, a.n, a.d, dk, 1.f, 1.f);
  put_rows<T, D>(a.dv_out, a.dv_stride, b, hk, x0 + warp * 16, a.n, a.dv, dv, 1.f, 1.f);
}

template <typename T, int D, int KEYS> __device__ void queries_cores(const Attention& a) {
  extern __shared__ uint4 memory[];
  T *q = (T*)memory, *g = q + 64 * (D + 8), *k = g + 64 * (D + 8), *v = k + KEYS * (D + 8);
  int warp = threadIdx.x / 32;
  i64 head = blockIdx.y, b = head / a.h, h = head % a.h, hk = h / (a.h / a.hk), y0 = (i64)blockIdx.x * 64;
  rows_of<T, 64, D>(q, a.q, a.q_stride, b, h, y0, a.m, a.d);
  rows_of<T, 64, D>(g, a.g, a.g_stride, b, h, y0, a.m, a.dv);
  float dq[D / 8][4], lse[2], delta[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    i64 y = y0 + warp * 16 + threadIdx.x % 32 / 4 + r * 8;
    lse[r] = y < a.m ? a.lse[head * a.lse_rows + y] : 0.f;
    delta[r] = y < a.m ? a.delta[head * a.m + y] : 0.f;
  }
#pragma unroll
  for (int j = 0; j < D / 8; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) dq[j][i] = 0;
  i64 end = a.causal ? min(a.n, y0 + 64) : a.n;
  for (i64 x0 = 0; x0 < end; x0 += KEYS) {
    __syncthreads();
    rows_of<T, KEYS, D>(k, a.k, a.k_stride, b, hk, x0, a.n, a.d);
    rows_of<T, KEYS, D>(v, a.v, a.v_stride, b, hk, x0, a.n, a.dv);
    __syncthreads();
    float p[KEYS / 8][4], s[KEYS / 8][4];
    by_rows<T, KEYS, D>(p, q + warp * 16 * (D + 8), k);
    by_rows<T, KEYS, D>(s, g + warp * 16 * (D + 8), v);
    grads<KEYS, false>(a, b, h, head, y0 + warp * 16, x0, lse, delta, p, s);
    by_columns<T, KEYS, D>(dq, s, k);
  }
  put_rows<T, D>(a.dq, a.dq_stride, b, h, y0 + warp * 16, a.m, a.d, dq, 1.f, 1.f);
}

// HALVES runs body with T bound to one of the two half types.
#define HALVES(body)                                     \
  if (a.dtype == F16) { typedef __half T; body }         \
  else { typedef __nv_bfloat16 T; body }

extern "C" __global__ void attention_delta(Attention a) { HALVES(row_products<T>(a);) }
extern "C" __global__ void __launch_bounds__(128) attention_forward_64(Attention a) { HALVES(forward_cores<T COMMA 64>(a);) }
extern "C" __global__ void __launch_bounds__(128) attention_forward_128(Attention a) { HALVES(forward_cores<T COMMA 128>(a);) }
extern "C" __global__ void __launch_bounds__(128) attention_keys_64(Attention a) { HALVES(keys_cores<T COMMA 64 COMMA 64>(a);) }
extern "C" __global__ void __launch_bounds__(128) attention_keys_128(Attention a) { HALVES(keys_cores<T COMMA 128 COMMA 32>(a);) }
extern "C" __global__ void __launch_bounds__(128) attention_queries_64(Attention a) { HALVES(queries_cores<T COMMA 64 COMMA 64>(a);) }
extern "C" __global__ void __launch_bounds__(128) attention_queries_128(Attention a) { HALVES(queries_cores<T COMMA 128 COMMA 32>(a);) }
