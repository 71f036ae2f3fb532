// Writing by index: into a result that holds the base already. Places that come
// twice take the last value, or the sum of all in order: the same bits in every
// run.
#include "index.cuh"

// C is the type that sums are kept in: double for all floating-point types.
struct Scatter {
  Index at;        // base: the result; value: what is written, null for a number
  i64 rows, width; // scatter_rows: n = rows * width; the first dims decide the place, the rest lie inside
  double number;
  int add, pad;
};

template <typename C> __device__ __forceinline__ C scatter_value(const Scatter& s, i64 v) {
  return s.at.value ? load<C>(s.at.value, s.at.dtype, v) : (C)s.number;
}

// scatter_lines: a thread owns a line of the base along the dim that the index
// decides, so nothing races.
template <typename C> __device__ void lines(const Scatter& s) {
  const Index& a = s.at;
  i64 length = a.size[a.dim], line = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (length == 0 || line >= a.n / length) return;
  i64 inner = 1;
  for (int d = a.dim + 1; d < a.dims; d++) inner *= a.size[d];
  i64 first = line / inner * inner * length + line % inner;
  for (i64 l = 0; l < length; l++) {
    i64 v, b;
    index_place(a, first + l * inner, v, b);
    C x = scatter_value<C>(s, v);
    if (s.add) x += load<C>(a.base, a.dtype, b);
    store<C>(a.base, a.dtype, b, x);
  }
}
extern "C" __global__ void scatter_lines_real(Scatter s) { lines<double>(s); }
extern "C" __global__ void scatter_lines_int(Scatter s) { lines<i64>(s); }

// scatter_rows: of the rows of values with one place the last writes, or the
// first adds all of them to the base in their order. Every row looks at all
// others: quadratic in their number.
template <typename C> __device__ void put_rows(const Scatter& s) {
  const Index& a = s.at;
  __shared__ int other;
  for (i64 r = blockIdx.x; r < s.rows; r += gridDim.x) {
    i64 v, b, vv, bb;
    index_place(a, r * s.width, v, b);
    __syncthreads();
    if (threadIdx.x == 0) other = 0;
    __syncthreads();
    i64 from = s.add ? 0 : r + 1, to = s.add ? r : s.rows;
    for (i64 u = from + threadIdx.x; u < to; u += blockDim.x) {
      index_place(a, u * s.width, vv, bb);
      if (bb == b) other = 1;
    }
    __syncthreads();
    if (other) continue;
    for (i64 c = threadIdx.x; c < s.width; c += blockDim.x) {
      index_place(a, r * s.width + c, v, bb);
      C x = scatter_value<C>(s, v);
      if (s.add) {
        x += load<C>(a.base, a.dtype, bb);
        for (i64 u = r + 1; u < s.rows; u++) {
          i64 place;
          index_place(a, u * s.width, vv, place);
          if (place != b) continue;
          index_place(a, u * s.width + c, vv, place);
          x += scatter_value<C>(s, vv);
        }
      }
      store<C>(a.base, a.dtype, bb, x);
    }
  }
}
extern "C" __global__ void scatter_rows_real(Scatter s) { put_rows<double>(s); }
extern "C" __global__ void scatter_rows_int(Scatter s) { put_rows<i64>(s); }
