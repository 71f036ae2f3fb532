// Reading and writing by index. Nothing adds atomically: what runs twice gives
// the same bits.
#include "index.cuh"

// Rows of a table by index, and the table's gradient.
struct Embedding {
  i64 tokens, cols, rows, row_stride; // of the table
  const void* index;
  const void* in; // the table; backward: the gradient of the result
  void* out;      // the result; backward: the gradient of the table
  i64 skip;       // index whose row gets no gradient, or -1
  i64 index_cols, index_row, index_col; // indices in a row, and the strides of rows and of what is in them
  u32* chunks; // backward: for each row `words` of bits, which chunks of tokens have it; or null
  i64 chunk;   // tokens of a chunk
  int words, dtype, index_dtype, pad;
};

__device__ __forceinline__ i64 token(const Embedding& a, i64 t) {
  return index_at(a.index, a.index_dtype, t / a.index_cols * a.index_row + t % a.index_cols * a.index_col);
}

template <typename T> __device__ void embedding(const Embedding& a) {
  for (i64 t = blockIdx.x; t < a.tokens; t += gridDim.x) {
    i64 r = token(a, t);
    if (r < 0) r += a.rows;
    for (i64 c = threadIdx.x; c < a.cols; c += blockDim.x) ((T*)a.out)[t * a.cols + c] = ((const T*)a.in)[r * a.row_stride + c];
  }
}
extern "C" __global__ void embedding_forward(Embedding a) { DISPATCH(a.dtype, embedding<T>(a);) }

__device__ __forceinline__ bool gets_none(const Embedding& a, i64 r) { return r == a.skip || r < 0 || r >= a.rows; }

// embedding_mark sets the bits of the chunks that have each row. The order in which
// bits are set makes no difference.
extern "C" __global__ void embedding_mark(Embedding a) {
  i64 t = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= a.tokens) return;
  i64 r = token(a, t), c = t / a.chunk;
  if (gets_none(a, r)) return;
  u32 *word = a.chunks + r * a.words + c / 32, bit = 1u << c % 32;
  if (!(*(volatile u32*)word & bit)) atomicOr(word, bit);
}

// next_chunk is token u, or the start of the next chunk with row r where u's has none
// of it.
__device__ __forceinline__ i64 next_chunk(const Embedding& a, i64 r, i64 u) {
  if (!a.chunks || u >= a.tokens) return u;
  i64 c = u / a.chunk;
  for (int w = (int)(c / 32); w < a.words; w++) {
    u32 bits = a.chunks[r * a.words + w];
    if (w == c / 32) bits &= ~0u << c % 32;
    if (!bits) continue;
    i64 first = (i64)w * 32 + __ffs(bits) - 1;
    return first == c ? u : first * a.chunk;
  }
  return a.tokens;
}

// The first token of each index adds the gradients of all tokens with it, in
// their order, in float32. The table's gradient was zeroed before.
template <typename T> __device__ void embedding_back(const Embedding& a) {
  __shared__ int seen;
  __shared__ u32 found[32];
  i64 t = blockIdx.x, r = token(a, t);
  if (gets_none(a, r)) return;
  if (threadIdx.x == 0) seen = 0;
  __syncthreads();
  i64 own = a.chunks ? t / a.chunk : 0;
  if (a.chunks && threadIdx.x <= own / 32) {
    u32 bits = a.chunks[r * a.words + threadIdx.x];
    if (threadIdx.x == own / 32) bits &= ~(~0u << own % 32);
    if (bits) seen = 1;
  }
  for (i64 u = own * a.chunk + threadIdx.x; u < t; u += blockDim.x)
    if (token(a, u) == r) seen = 1;
  __syncthreads();
  if (seen) return;
  const int width = 4;
  for (i64 base = 0; base < a.cols; base += (i64)blockDim.x * width) {
    float sum[width] = {0, 0, 0, 0};
    for (i64 u0 = t; u0 < a.tokens; u0 = next_chunk(a, r, u0 + blockDim.x)) {
      i64 u = u0 + threadIdx.x;
      u32 hit = __ballot_sync(0xffffffffu, u < a.tokens && token(a, u) == r);
      if ((threadIdx.x & 31) == 0) found[threadIdx.x >> 5] = hit;
      __syncthreads();
      for (int w = 0; w < blockDim.x / 32; w++)
        for (u32 bits = found[w]; bits; bits &= bits - 1) {
          const T* g = (const T*)a.in + (u0 + w * 32 + __ffs(bits) - 1) * a.cols;
#pragma unroll
          for (int k = 0; k < width; k++) {
            i64 c = base + threadIdx.x + (i64)k * blockDim.x;
            if (c < a.cols) sum[k] += get<T>(g[c]);
          }
        }
      __syncthreads();
    }
#pragma unroll
    for (int k = 0; k < width; k++) {
      i64 c = base + threadIdx.x + (i64)k * blockDim.x;
      if (c < a.cols) ((T*)a.out)[r * a.row_stride + c] = put<T>(sum[k]);
    }
  }
}
extern "C" __global__ void embedding_backward(Embedding a) { DISPATCH(a.dtype, embedding_back<T>(a);) }

extern "C" __global__ void index_move(Index a) {
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += (i64)gridDim.x * blockDim.x) {
    i64 v, b;
    index_place(a, i, v, b);
    move(a.value, v, a.base, b, a.bytes);
  }
}

// index_add_rows adds every value to its place: element i of the values is added by
// the first element with the same place, together with all later ones. Quadratic
// in the number of values with an index (the first `rows` of them), times the
// width of what each moves.
struct IndexAdd {
  Index at;
  i64 rows, width; // n = rows * width; the first dims decide the place, the rest lie inside
};
extern "C" __global__ void index_add_rows(IndexAdd s) {
  const Index& a = s.at;
  i64 r = blockIdx.x, v, b;
  __shared__ int seen;
  if (threadIdx.x == 0) seen = 0;
  __syncthreads();
  index_place(a, r * s.width, v, b);
  for (i64 u = threadIdx.x; u < r; u += blockDim.x) {
    i64 vv, bb;
    index_place(a, u * s.width, vv, bb);
    if (bb == b) seen = 1;
  }
  __syncthreads();
  if (seen) return;
  for (i64 c = threadIdx.x; c < s.width; c += blockDim.x) {
    i64 vc, bc;
    index_place(a, r * s.width + c, vc, bc);
    float sum = load<float>(a.base, a.dtype, bc) + load<float>(a.value, a.dtype, vc);
    for (i64 u = r + 1; u < s.rows; u++) {
      i64 vv, bb;
      index_place(a, u * s.width, vv, bb);
      if (bb != b) continue;
      index_place(a, u * s.width + c, vv, bb);
      sum += load<float>(a.value, a.dtype, vv);
    }
    store<float>(a.base, a.dtype, bc, sum);
  }
}

// scatter_add along one dim: a thread owns a line of the base, so nothing races.
extern "C" __global__ void scatter_add_lines(Index a) {
  int dim = a.dim;
  i64 lines = a.n / a.size[dim];
  i64 line = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (line >= lines) return;
  i64 inner = 1;
  for (int d = dim + 1; d < a.dims; d++) inner *= a.size[d];
  i64 first = line / inner * inner * a.size[dim] + line % inner;
  for (i64 l = 0; l < a.size[dim]; l++) {
    i64 v, b;
    index_place(a, first + l * inner, v, b);
    if (a.dtype >= I64) store<i64>(a.base, a.dtype, b, load<i64>(a.base, a.dtype, b) + load<i64>(a.value, a.dtype, v));
    else store<double>(a.base, a.dtype, b, load<double>(a.base, a.dtype, b) + load<double>(a.value, a.dtype, v));
  }
}
