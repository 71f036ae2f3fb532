// Reductions over any dims of a strided operand.
#include "common.cuh"

// The staging area of reductions in two passes: part of the module, so nothing
// is allocated for it while a program runs.
__device__ float scratch[1 << 20];

struct Reduce {
  i64 outs, reds; // results, and elements reduced to each
  int op, dtype, out_dtype, splits;
  int out_dims, red_dims;
  i64 out_size[6], out_stride[6], in_stride[6]; // of the kept dims: stride in the result, and in the operand
  i64 red_size[6], red_stride[6];
  const void* in;
  void* out;
  double param; // mean: 1/n; var: n - correction; norm: the exponent
};
enum { SUM, MEAN, PROD, AMAX, AMIN, ANY, ALL, ARGMAX, ARGMIN, SUMSQ, VAR, COUNT, LOGSUMEXP };

template <typename C> struct Acc { C v; C w; i64 at; };

template <typename C> __device__ __forceinline__ C lowest();
template <> __device__ __forceinline__ float lowest() { return -INFINITY; }
template <> __device__ __forceinline__ double lowest() { return -INFINITY; }
template <> __device__ __forceinline__ i64 lowest() { return (i64)1 << 63; }
template <typename C> __device__ __forceinline__ C highest();
template <> __device__ __forceinline__ float highest() { return INFINITY; }
template <> __device__ __forceinline__ double highest() { return INFINITY; }
template <> __device__ __forceinline__ i64 highest() { return ~((i64)1 << 63); }

template <typename C> __device__ __forceinline__ Acc<C> neutral(int op) {
  switch (op) {
  case PROD: return {(C)1, 0, 0};
  case AMAX: return {lowest<C>(), 0, 0};
  case ARGMAX: return {lowest<C>(), 0, -1};
  case AMIN: return {highest<C>(), 0, 0};
  case ARGMIN: return {highest<C>(), 0, -1};
  case LOGSUMEXP: return {lowest<C>(), 0, 0};
  case ALL: return {(C)1, 0, 0};
  }
  return {(C)0, (C)0, 0};
}

// better reports whether x at i is to be kept instead of y at j: not-a-number
// before all else, of equals the first.
template <typename C> __device__ __forceinline__ bool better(C x, i64 i, C y, i64 j, bool most) {
  if (i < 0) return false;
  if (j < 0) return true;
  if (x != x || y != y) return x != x && (y == y || i < j);
  return x == y ? i < j : most ? x > y : x < y;
}

// merge_exp adds w * exp(v) to a.w * exp(a.v), scaled by the larger exponential.
template <typename C> __device__ __forceinline__ void merge_exp(Acc<C>& a, C v, C w) {
  if (w == (C)0) return;
  if (a.w == (C)0) a.v = v, a.w = w;
  else if (v > a.v) a.w = a.w * (C)exp((double)(a.v - v)) + w, a.v = v;
  else a.w += w * (C)exp((double)(v - a.v));
}

template <typename C> __device__ __forceinline__ void take(int op, Acc<C>& a, C v, i64 i) {
  switch (op) {
  case SUM: case MEAN: a.v += v; break;
  case PROD: a.v *= v; break;
  case AMAX: a.v = v > a.v || v != v ? v : a.v; break;
  case AMIN: a.v = v < a.v || v != v ? v : a.v; break;
  case ANY: a.v = a.v != (C)0 || v != (C)0; break;
  case ALL: a.v = a.v != (C)0 && v != (C)0; break;
  case SUMSQ: a.v += v * v; break;
  case COUNT: a.v += v != (C)0; break;
  case LOGSUMEXP: merge_exp<C>(a, v, (C)1); break;
  case ARGMAX: case ARGMIN:
    if (better<C>(v, i, a.v, a.at, op == ARGMAX)) a.v = v, a.at = i;
  }
}

template <typename C> __device__ __forceinline__ void merge(int op, Acc<C>& a, const Acc<C>& b) {
  switch (op) {
  case ARGMAX: case ARGMIN:
    if (better<C>(b.v, b.at, a.v, a.at, op == ARGMAX)) a = b;
    break;
  case SUMSQ: case COUNT: a.v += b.v; break;
  case LOGSUMEXP: merge_exp<C>(a, b.v, b.w); break;
  default: take<C>(op, a, b.v, 0);
  }
}

// reduce gives each result a column of threads: x counts results, y the elements
// reduced. With splits, a partial result of every split goes to scratch.
template <typename C> __device__ void reduce(const Reduce& a) {
  __shared__ Acc<C> part[512];
  i64 o = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  Acc<C> acc = neutral<C>(a.op);
  i64 base = 0;
  if (o < a.outs) {
    base = place_of(o, a.out_dims, a.out_size, a.in_stride);
    i64 each = (a.reds + a.splits - 1) / a.splits, from = blockIdx.y * each, to = min(from + each, a.reds);
    if (a.op == VAR) {
      // Two passes: the mean of the whole row, then the squared differences.
      C sum = 0;
      for (i64 r = threadIdx.y; r < a.reds; r += blockDim.y) sum += load<C>(a.in, a.dtype, base + place_of(r, a.red_dims, a.red_size, a.red_stride));
      acc.w = sum;
    } else if (a.red_dims <= 1) {
      i64 s = a.red_dims ? a.red_stride[0] : 0;
#pragma unroll 4
      for (i64 r = from + threadIdx.y; r < to; r += blockDim.y) take<C>(a.op, acc, load<C>(a.in, a.dtype, base + r * s), r);
    } else {
      for (i64 r = from + threadIdx.y; r < to; r += blockDim.y)
        take<C>(a.op, acc, load<C>(a.in, a.dtype, base + place_of(r, a.red_dims, a.red_size, a.red_stride)), r);
    }
  }
  int at = threadIdx.y * blockDim.x + threadIdx.x;
  if (a.op == VAR) {
    part[at] = acc;
    __syncthreads();
    for (int h = blockDim.y / 2; h; h /= 2) {
      if (threadIdx.y < h) part[at].w += part[at + h * blockDim.x].w;
      __syncthreads();
    }
    C mean = part[threadIdx.x].w / (C)a.reds;
    __syncthreads();
    acc.v = 0;
    if (o < a.outs)
      for (i64 r = threadIdx.y; r < a.reds; r += blockDim.y) {
        C d = load<C>(a.in, a.dtype, base + place_of(r, a.red_dims, a.red_size, a.red_stride)) - mean;
        acc.v += d * d;
      }
  }
  int op = a.op == VAR ? SUM : a.op;
  part[at] = acc;
  __syncthreads();
  for (int h = blockDim.y / 2; h; h /= 2) {
    if (threadIdx.y < h) merge<C>(op, part[at], part[at + h * blockDim.x]);
    __syncthreads();
  }
  if (threadIdx.y || o >= a.outs) return;
  C v = part[threadIdx.x].v;
  if (a.splits > 1) {
    ((C*)scratch)[blockIdx.y * a.outs + o] = v;
    return;
  }
  i64 to = place_of(o, a.out_dims, a.out_size, a.out_stride);
  if (a.op == ARGMAX || a.op == ARGMIN) store<i64>(a.out, a.out_dtype, to, part[threadIdx.x].at);
  else if (a.op == MEAN) store<C>(a.out, a.out_dtype, to, (C)(v * a.param));
  else if (a.op == LOGSUMEXP) store<C>(a.out, a.out_dtype, to, (C)((double)v + log((double)part[threadIdx.x].w)));
  else if (a.op == VAR) store<C>(a.out, a.out_dtype, to, (C)(v / a.param));
  else store<C>(a.out, a.out_dtype, to, v);
}
extern "C" __global__ void reduce_f32(Reduce a) { reduce<float>(a); }
extern "C" __global__ void reduce_f64(Reduce a) { reduce<double>(a); }
extern "C" __global__ void reduce_i64(Reduce a) { reduce<i64>(a); }

// Running sums and products along one dim: a thread a line.
struct Scan {
  i64 outer, length, inner; // contiguous: element (o, l, i) lies at (o*length + l)*inner + i
  const void* in;
  void* out;
  int op, dtype, out_dtype, pad;
};
extern "C" __global__ void scan_lines(Scan a) {
  i64 k = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (k >= a.outer * a.inner) return;
  i64 at = k / a.inner * a.length * a.inner + k % a.inner;
  bool whole = a.dtype >= I64;
  double x = a.op == PROD;
  i64 n = a.op == PROD;
  for (i64 l = 0; l < a.length; l++, at += a.inner) {
    if (whole) {
      i64 v = load<i64>(a.in, a.dtype, at);
      n = a.op == PROD ? n * v : n + v;
      store<i64>(a.out, a.out_dtype, at, n);
    } else {
      double v = load<double>(a.in, a.dtype, at);
      x = a.op == PROD ? x * v : x + v;
      store<double>(a.out, a.out_dtype, at, x);
    }
  }
}

// Softmax and log-softmax over rows whose elements lie side by side: a block a
// row.
struct Softmax {
  i64 rows, cols, inner;
  const void* in;
  void* out;
  const void* grad; // of the backward; in is then the forward's result
  int dtype, out_dtype, log, pad;
};

template <typename A, typename B> __device__ void softmax_row(const Softmax& a) {
  for (i64 r = blockIdx.x; r < a.rows; r += gridDim.x) {
    const A* in = (const A*)a.in + r * a.cols;
    B* out = (B*)a.out + r * a.cols;
    float most = -INFINITY, sum = 0;
    for (i64 c = threadIdx.x; c < a.cols; c += blockDim.x) {
      float x = get<A>(in[c]);
      if (x > most) sum = sum * __expf(most - x) + 1, most = x;
      else if (x != -INFINITY) sum += __expf(x - most);
    }
    float top = block_max(most);
    sum = block_sum(most == -INFINITY ? 0.f : sum * expf(most - top));
    if (a.log) {
      float shift = top + logf(sum);
      for (i64 c = threadIdx.x; c < a.cols; c += blockDim.x) out[c] = put<B>(get<A>(in[c]) - shift);
    } else {
      float scale = 1.f / sum;
      for (i64 c = threadIdx.x; c < a.cols; c += blockDim.x) out[c] = put<B>(expf(get<A>(in[c]) - top) * scale);
    }
  }
}

// softmax_line is the same along a dim with others inside it: a thread a line.
template <typename A, typename B> __device__ void softmax_line(const Softmax& a) {
  i64 k = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (k >= a.rows * a.inner) return;
  i64 at = k / a.inner * a.cols * a.inner + k % a.inner;
  const A* in = (const A*)a.in + at;
  B* out = (B*)a.out + at;
  float most = -INFINITY, sum = 0;
  for (i64 c = 0; c < a.cols; c++) most = fmaxf(most, get<A>(in[c * a.inner]));
  for (i64 c = 0; c < a.cols; c++) sum += expf(get<A>(in[c * a.inner]) - most);
  float l = logf(sum);
  for (i64 c = 0; c < a.cols; c++) {
    float x = get<A>(in[c * a.inner]) - most;
    out[c * a.inner] = put<B>(a.log ? x - l : expf(x) / sum);
  }
}
#define PAIRS(f)                                                                          \
  if (a.dtype == a.out_dtype) { DISPATCH(a.dtype, typedef T TT; f<TT COMMA TT>(a);) }     \
  else { DISPATCH(a.dtype, typedef T TT; f<TT COMMA float>(a);) }
extern "C" __global__ void softmax_rows(Softmax a) { PAIRS(softmax_row) }
extern "C" __global__ void softmax_lines(Softmax a) { PAIRS(softmax_line) }

// Backward: y the forward's result, g its gradient of the same type.
// softmax: y * (g - sum(g*y)); log-softmax: g - exp(y) * sum(g).
template <typename A, typename B> __device__ void softmax_back_row(const Softmax& a) {
  for (i64 r = blockIdx.x; r < a.rows; r += gridDim.x) {
    const A *y = (const A*)a.in + r * a.cols, *g = (const A*)a.grad + r * a.cols;
    B* out = (B*)a.out + r * a.cols;
    float sum = 0;
    for (i64 c = threadIdx.x; c < a.cols; c += blockDim.x) sum += a.log ? get<A>(g[c]) : get<A>(g[c]) * get<A>(y[c]);
    sum = block_sum(sum);
    for (i64 c = threadIdx.x; c < a.cols; c += blockDim.x) {
      float gy = get<A>(g[c]), yy = get<A>(y[c]);
      out[c] = put<B>(a.log ? gy - expf(yy) * sum : yy * (gy - sum));
    }
  }
}
template <typename A, typename B> __device__ void softmax_back_line(const Softmax& a) {
  i64 k = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (k >= a.rows * a.inner) return;
  i64 at = k / a.inner * a.cols * a.inner + k % a.inner;
  const A *y = (const A*)a.in + at, *g = (const A*)a.grad + at;
  B* out = (B*)a.out + at;
  float sum = 0;
  for (i64 c = 0; c < a.cols; c++) sum += a.log ? get<A>(g[c * a.inner]) : get<A>(g[c * a.inner]) * get<A>(y[c * a.inner]);
  for (i64 c = 0; c < a.cols; c++) {
    float gy = get<A>(g[c * a.inner]), yy = get<A>(y[c * a.inner]);
    out[c * a.inner] = put<B>(a.log ? gy - expf(yy) * sum : yy * (gy - sum));
  }
}
// The gradient of a softmax that widened its operand is narrowed again.
#define BACK_PAIRS(f)                                                                     \
  if (a.dtype == a.out_dtype) { DISPATCH(a.dtype, typedef T TT; f<TT COMMA TT>(a);) }     \
  else { DISPATCH(a.out_dtype, typedef T TT; f<float COMMA TT>(a);) }
extern "C" __global__ void softmax_backward_rows(Softmax a) { BACK_PAIRS(softmax_back_row) }
extern "C" __global__ void softmax_backward_lines(Softmax a) { BACK_PAIRS(softmax_back_line) }
