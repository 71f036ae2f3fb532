// Reductions over any dims of a strided operand.
#include "vector.cuh"

// The staging area of reductions in two passes: part of the module, so nothing
// is allocated for it while a program runs.
__device__ alignas(16) float scratch[1 << 20];

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

// reduce_columns sums rows of neighbouring columns, V of them a thread: the last
// kept dim is the columns, z counts the one before it, and threads along y and the
// splits share the one reduced dim.
template <typename T, int V> __device__ void reduce_column(const Reduce& a) {
  int last = a.out_dims - 1;
  i64 left = (i64)blockIdx.x * blockDim.x * V, c = left + (i64)threadIdx.x * V, cols = a.out_size[last], z = blockIdx.z;
  i64 each = (a.reds + a.splits - 1) / a.splits, from = blockIdx.y * each, to = min(from + each, a.reds);
  const T* in = (const T*)a.in + (last ? z * a.in_stride[0] : 0) + c;
  float acc[1][V];
#pragma unroll
  for (int i = 0; i < V; i++) acc[0][i] = 0;
  if (c < cols) {
#pragma unroll 4
    for (i64 r = from + threadIdx.y; r < to; r += blockDim.y) {
      Pack<T, V> x = read_pack<T, V>(in + r * a.red_stride[0]);
#pragma unroll
      for (int i = 0; i < V; i++) acc[0][i] += x[i];
    }
  }
  fold_columns<1, V>(acc, [&](int, int at, float sum) {
    i64 o = left + at;
    if (o >= cols) return;
    if (a.splits > 1) scratch[(i64)blockIdx.y * a.outs + z * cols + o] = sum;
    else store<float>(a.out, a.out_dtype, (last ? z * a.out_stride[0] : 0) + o * a.out_stride[last], a.op == MEAN ? (float)(sum * a.param) : sum);
  });
}
extern "C" __global__ void reduce_columns(Reduce a) { DISPATCH(a.dtype, reduce_column<T COMMA 1>(a);) }
extern "C" __global__ void reduce_columns_wide(Reduce a) { DISPATCH(a.dtype, reduce_column<T COMMA WIDE(T)>(a);) }

// reduce_rows sums elements that lie side by side, a team for each result.
template <typename T, int V> __device__ void reduce_row(const Reduce& a) {
  i64 o = (i64)blockIdx.x * blockDim.y + threadIdx.y;
  bool there = o < a.outs;
  float sum = 0;
  if (there) {
    const T* in = (const T*)a.in + place_of(o, a.out_dims, a.out_size, a.in_stride);
#pragma unroll 4
    for (i64 c = (i64)threadIdx.x * V; c < a.reds; c += blockDim.x * V) {
      Pack<T, V> x = read_pack<T, V>(in + c);
#pragma unroll
      for (int i = 0; i < V; i++) sum += x[i];
    }
  }
  sum = team_sum(sum);
  if (there && threadIdx.x == 0) store<float>(a.out, a.out_dtype, place_of(o, a.out_dims, a.out_size, a.out_stride), a.op == MEAN ? (float)(sum * a.param) : sum);
}
extern "C" __global__ void reduce_rows(Reduce a) { DISPATCH(a.dtype, reduce_row<T COMMA 1>(a);) }
extern "C" __global__ void reduce_rows_wide(Reduce a) { DISPATCH(a.dtype, reduce_row<T COMMA WIDE(T)>(a);) }

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

// scan_rows does the same where a line's elements lie side by side: a warp a
// line, 32 elements at a time.
template <typename C> __device__ void scan_row(const Scan& a, i64 line) {
  int lane = threadIdx.x & 31;
  bool product = a.op == PROD;
  C before = (C)product;
  for (i64 l = lane; l - lane < a.length; l += 32) {
    i64 at = line * a.length + l;
    C v = l < a.length ? load<C>(a.in, a.dtype, at) : (C)product;
    for (int o = 1; o < 32; o *= 2) {
      C w = __shfl_up_sync(0xffffffffu, v, o);
      if (lane >= o) v = product ? w * v : w + v;
    }
    v = product ? before * v : before + v;
    if (l < a.length) store<C>(a.out, a.out_dtype, at, v);
    before = __shfl_sync(0xffffffffu, v, 31);
  }
}
extern "C" __global__ void scan_rows(Scan a) {
  i64 line = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (line >= a.outer) return;
  if (a.dtype >= I64) scan_row<i64>(a, line);
  else scan_row<double>(a, line);
}

// Softmax and log-softmax over rows whose elements lie side by side.
struct Softmax {
  i64 rows, cols, inner;
  const void* in;
  void* out;
  const void* grad; // of the backward; in is then the forward's result
  int dtype, out_dtype, log, pad;
};

// PACK is how many elements fill 16 bytes of the longer of two types, KEPT how
// many packs a thread of a team keeps.
#define PACK(A, B) (16 / (int)(sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B)))
#define KEPT(V) (V == 1 ? 8 : 32 / V)

// exponential is as exact as a result of type B can show.
template <typename B> __device__ __forceinline__ float exponential(float x) { return __expf(x); }
template <> __device__ __forceinline__ float exponential<float>(float x) { return expf(x); }

// softmax_team keeps a row in the registers of a team of up to 32 threads.
template <typename A, typename B, int V, bool LOG> __device__ void softmax_team(const Softmax& a) {
  const int K = KEPT(V);
  i64 r = (i64)blockIdx.x * blockDim.y + threadIdx.y;
  int packs = r < a.rows ? (int)a.cols / V : 0;
  float x[K][V], most = -INFINITY, sum = 0;
#pragma unroll
  for (int k = 0; k < K; k++) {
    int c = threadIdx.x + k * blockDim.x;
    if (c >= packs) continue;
    Pack<A, V> p = read_pack<A, V>((const A*)a.in + r * a.cols + c * V);
#pragma unroll
    for (int i = 0; i < V; i++) x[k][i] = p[i], most = fmaxf(most, x[k][i]);
  }
  most = team_max(most);
#pragma unroll
  for (int k = 0; k < K; k++) {
    if (threadIdx.x + k * blockDim.x >= packs) continue;
#pragma unroll
    for (int i = 0; i < V; i++) {
      float e = exponential<B>(x[k][i] - most);
      sum += e;
      if (!LOG) x[k][i] = e;
    }
  }
  sum = team_sum(sum);
  float shift = LOG ? most + logf(sum) : 0.f, scale = LOG ? 1.f : 1.f / sum;
#pragma unroll
  for (int k = 0; k < K; k++) {
    int c = threadIdx.x + k * blockDim.x;
    if (c >= packs) continue;
    Pack<B, V> p;
#pragma unroll
    for (int i = 0; i < V; i++) p.set(i, (x[k][i] - shift) * scale);
    write_pack<B, V>((B*)a.out + r * a.cols + c * V, p);
  }
}

// softmax_row has a block for a row of any length: elements before the first
// whole pack of the row and after its last are taken one by one.
template <typename A, typename B, int V, bool LOG> __device__ void softmax_row(const Softmax& a) {
  i64 at = blockIdx.x * a.cols;
  const A* in = (const A*)a.in + at;
  B* out = (B*)a.out + at;
  int head = (int)min((V - at % V) % V, a.cols), tid = threadIdx.x;
  i64 packs = (a.cols - head) / V, tail = head + packs * V;
  float most = -INFINITY, sum = 0;
  // online adds exp(x) to a sum that is scaled by the largest exponential so far.
  auto online = [&](float x) {
    if (x > most) sum = sum * __expf(most - x) + 1, most = x;
    else if (x != -INFINITY) sum += __expf(x - most);
  };
  if (V > 1 && tid < head) online(get<A>(in[tid]));
  if (V > 1 && tail + tid < a.cols) online(get<A>(in[tail + tid]));
#pragma unroll 2
  for (i64 c = tid; c < packs; c += blockDim.x) {
    Pack<A, V> p = read_pack<A, V>(in + head + c * V);
    if (V == 1) {
      online(p[0]);
      continue;
    }
    float top = most, add = 0;
#pragma unroll
    for (int i = 0; i < V; i++) top = fmaxf(top, p[i]);
    float base = top == -INFINITY ? 0.f : top;
#pragma unroll
    for (int i = 0; i < V; i++) add += __expf(p[i] - base);
    sum = sum * __expf(most - base) + add;
    most = top;
  }
  float top = block_max(most);
  sum = block_sum(most == -INFINITY ? sum : sum * expf(most - top));
  float shift = LOG ? top + logf(sum) : top, scale = 1.f / sum;
  auto value = [&](float x) { return LOG ? x - shift : exponential<B>(x - shift) * scale; };
  if (V > 1 && tid < head) out[tid] = put<B>(value(get<A>(in[tid])));
  if (V > 1 && tail + tid < a.cols) out[tail + tid] = put<B>(value(get<A>(in[tail + tid])));
#pragma unroll 2
  for (i64 c = tid; c < packs; c += blockDim.x) {
    Pack<A, V> p = read_pack<A, V>(in + head + c * V);
    Pack<B, V> y;
#pragma unroll
    for (int i = 0; i < V; i++) y.set(i, value(p[i]));
    write_pack<B, V>(out + head + c * V, y);
  }
}

// softmax_line is the same along a dim with others inside it: a thread a line.
template <typename A, typename B, int, bool LOG> __device__ void softmax_line(const Softmax& a) {
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
    out[c * a.inner] = put<B>(LOG ? x - l : expf(x) / sum);
  }
}
// The result may be wider than the operand; its gradient is narrowed again.
#define PAIR(f, A, B, wide)                                                      \
  if (a.log) f<A COMMA B COMMA (wide ? PACK(A, B) : 1) COMMA true>(a);           \
  else f<A COMMA B COMMA (wide ? PACK(A, B) : 1) COMMA false>(a);
#define FORWARD(f, wide)                                                         \
  if (a.dtype == a.out_dtype) { DISPATCH(a.dtype, PAIR(f, T, T, wide)) }         \
  else { DISPATCH(a.dtype, PAIR(f, T, float, wide)) }
#define BACKWARD(f, wide)                                                        \
  if (a.dtype == a.out_dtype) { DISPATCH(a.dtype, PAIR(f, T, T, wide)) }         \
  else { DISPATCH(a.out_dtype, PAIR(f, float, T, wide)) }
extern "C" __global__ void softmax_teams(Softmax a) { FORWARD(softmax_team, false) }
extern "C" __global__ void softmax_teams_wide(Softmax a) { FORWARD(softmax_team, true) }
extern "C" __global__ void softmax_rows(Softmax a) { FORWARD(softmax_row, false) }
extern "C" __global__ void softmax_rows_wide(Softmax a) { FORWARD(softmax_row, true) }
extern "C" __global__ void softmax_lines(Softmax a) { FORWARD(softmax_line, false) }

// Backward: y the forward's result, g its gradient of the same type.
// softmax: y * (g - sum(g*y)); log-softmax: g - exp(y) * sum(g).
template <typename B, bool LOG> __device__ __forceinline__ float softmax_slope(float y, float g, float sum) {
  return LOG ? g - exponential<B>(y) * sum : y * (g - sum);
}

template <typename A, typename B, int V, bool LOG> __device__ void softmax_back_team(const Softmax& a) {
  const int K = KEPT(V);
  i64 r = (i64)blockIdx.x * blockDim.y + threadIdx.y;
  int packs = r < a.rows ? (int)a.cols / V : 0;
  Pack<A, V> y[K], g[K];
  float sum = 0;
#pragma unroll
  for (int k = 0; k < K; k++) {
    int c = threadIdx.x + k * blockDim.x;
    if (c >= packs) continue;
    y[k] = read_pack<A, V>((const A*)a.in + r * a.cols + c * V);
    g[k] = read_pack<A, V>((const A*)a.grad + r * a.cols + c * V);
  }
#pragma unroll
  for (int k = 0; k < K; k++) {
    if (threadIdx.x + k * blockDim.x >= packs) continue;
#pragma unroll
    for (int i = 0; i < V; i++) sum += LOG ? g[k][i] : g[k][i] * y[k][i];
  }
  sum = team_sum(sum);
#pragma unroll
  for (int k = 0; k < K; k++) {
    int c = threadIdx.x + k * blockDim.x;
    if (c >= packs) continue;
    Pack<B, V> p;
#pragma unroll
    for (int i = 0; i < V; i++) p.set(i, softmax_slope<B, LOG>(y[k][i], g[k][i], sum));
    write_pack<B, V>((B*)a.out + r * a.cols + c * V, p);
  }
}

template <typename A, typename B, int V, bool LOG> __device__ void softmax_back_row(const Softmax& a) {
  i64 at = blockIdx.x * a.cols;
  const A *y = (const A*)a.in + at, *g = (const A*)a.grad + at;
  B* out = (B*)a.out + at;
  int head = (int)min((V - at % V) % V, a.cols), tid = threadIdx.x;
  i64 packs = (a.cols - head) / V, tail = head + packs * V;
  float sum = 0;
  auto term = [&](i64 c) { return LOG ? get<A>(g[c]) : get<A>(g[c]) * get<A>(y[c]); };
  if (V > 1 && tid < head) sum += term(tid);
  if (V > 1 && tail + tid < a.cols) sum += term(tail + tid);
#pragma unroll 4
  for (i64 c = tid; c < packs; c += blockDim.x) {
    Pack<A, V> p = read_pack<A, V>(g + head + c * V), q;
    if (!LOG) q = read_pack<A, V>(y + head + c * V);
#pragma unroll
    for (int i = 0; i < V; i++) sum += LOG ? p[i] : p[i] * q[i];
  }
  sum = block_sum(sum);
  if (V > 1 && tid < head) out[tid] = put<B>(softmax_slope<B, LOG>(get<A>(y[tid]), get<A>(g[tid]), sum));
  if (V > 1 && tail + tid < a.cols) out[tail + tid] = put<B>(softmax_slope<B, LOG>(get<A>(y[tail + tid]), get<A>(g[tail + tid]), sum));
#pragma unroll 2
  for (i64 c = tid; c < packs; c += blockDim.x) {
    Pack<A, V> p = read_pack<A, V>(g + head + c * V), q = read_pack<A, V>(y + head + c * V);
    Pack<B, V> x;
#pragma unroll
    for (int i = 0; i < V; i++) x.set(i, softmax_slope<B, LOG>(q[i], p[i], sum));
    write_pack<B, V>(out + head + c * V, x);
  }
}
template <typename A, typename B, int, bool LOG> __device__ void softmax_back_line(const Softmax& a) {
  i64 k = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (k >= a.rows * a.inner) return;
  i64 at = k / a.inner * a.cols * a.inner + k % a.inner;
  const A *y = (const A*)a.in + at, *g = (const A*)a.grad + at;
  B* out = (B*)a.out + at;
  float sum = 0;
  for (i64 c = 0; c < a.cols; c++) sum += LOG ? get<A>(g[c * a.inner]) : get<A>(g[c * a.inner]) * get<A>(y[c * a.inner]);
  for (i64 c = 0; c < a.cols; c++) {
    float gy = get<A>(g[c * a.inner]), yy = get<A>(y[c * a.inner]);
    out[c * a.inner] = put<B>(LOG ? gy - expf(yy) * sum : yy * (gy - sum));
  }
}
extern "C" __global__ void softmax_backward_teams(Softmax a) { BACKWARD(softmax_back_team, false) }
extern "C" __global__ void softmax_backward_teams_wide(Softmax a) { BACKWARD(softmax_back_team, true) }
extern "C" __global__ void softmax_backward_rows(Softmax a) { BACKWARD(softmax_back_row, false) }
extern "C" __global__ void softmax_backward_rows_wide(Softmax a) { BACKWARD(softmax_back_row, true) }
extern "C" __global__ void softmax_backward_lines(Softmax a) { BACKWARD(softmax_back_line, false) }
