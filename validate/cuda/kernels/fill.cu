// Copies, fills and random numbers.
#include "common.cuh"

// A matrix, or many, transposed through shared memory: the copy that makes a
// permuted view contiguous. Elements of 2 or 4 bytes.
struct Transpose {
  i64 batch, rows, cols; // of the result
  i64 in_batch, in_col;  // strides of the operand; its rows lie side by side
  i64 out_batch, out_row;
  const void* in;
  void* out;
  int bytes, pad;
};

template <typename T> __device__ void transpose(const Transpose& a) {
  __shared__ T tile[32][33];
  i64 r0 = (i64)blockIdx.y * 32, c0 = (i64)blockIdx.x * 32;
  for (i64 b = blockIdx.z; b < a.batch; b += gridDim.z) {
    const T* in = (const T*)a.in + b * a.in_batch;
    T* out = (T*)a.out + b * a.out_batch;
    for (int k = threadIdx.y; k < 32; k += blockDim.y)
      if (c0 + k < a.cols && r0 + threadIdx.x < a.rows) tile[k][threadIdx.x] = in[(c0 + k) * a.in_col + r0 + threadIdx.x];
    __syncthreads();
    for (int k = threadIdx.y; k < 32; k += blockDim.y)
      if (r0 + k < a.rows && c0 + threadIdx.x < a.cols) out[(r0 + k) * a.out_row + c0 + threadIdx.x] = tile[threadIdx.x][k];
    __syncthreads();
  }
}
extern "C" __global__ void transpose_tiles(Transpose a) {
  if (a.bytes == 4) transpose<u32>(a);
  else transpose<unsigned short>(a);
}

// Fills that depend on the index: arange, tril/triu masks, identity, random.
struct Fill {
  i64 n, cols, diagonal;
  void* out;
  const void* in;
  int dtype, kind;
  double start, step;
  u64 seed, offset;
};
enum { ARANGE, TRIL, TRIU, EYE, UNIFORM, NORMAL };

extern "C" __global__ void fill_index(Fill a) {
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += (i64)gridDim.x * blockDim.x) {
    i64 r = a.cols ? i / a.cols : 0, c = a.cols ? i % a.cols : 0;
    switch (a.kind) {
    case ARANGE:
      if (a.dtype >= I64) store<i64>(a.out, a.dtype, i, (i64)a.start + i * (i64)a.step);
      else store<double>(a.out, a.dtype, i, a.start + (double)i * a.step);
      break;
    case TRIL:
    case TRIU: {
      i64 rr = a.diagonal + r % (i64)a.start; // start: rows of one matrix
      bool keep = a.kind == TRIL ? c <= rr : c >= rr;
      store<double>(a.out, a.dtype, i, keep ? (a.in ? load<double>(a.in, a.dtype, i) : 1.0) : 0.0);
      break;
    }
    case EYE: store<float>(a.out, a.dtype, i, r == c ? 1.f : 0.f); break;
    default: {
      uint4 x = philox(a.seed, (u64)i / 4, a.offset);
      float u = ((float)(word(x, (int)(i & 3)) >> 8) + 0.5f) * (1.f / 16777216.f);
      if (a.kind == NORMAL) {
        uint4 y = philox(a.seed, (u64)i / 4, a.offset + (1ull << 63));
        float w = ((float)(word(y, (int)(i & 3)) >> 8) + 0.5f) * (1.f / 16777216.f);
        u = sqrtf(-2.f * logf(u)) * cospif(2.f * w);
      }
      store<float>(a.out, a.dtype, i, (float)a.start + u * (float)a.step);
    }
    }
  }
}

// Dropout: element i is kept where word i of the Philox stream is at least the
// threshold. The stream depends on seed, call and element alone, so that a
// recomputed call makes the same mask.
struct Dropout {
  i64 n;
  const void* in;
  void* out;
  unsigned char* mask;
  u64 seed, call;
  u32 threshold;
  float scale;
  int dtype, pad;
};

template <typename T> __device__ void dropout(const Dropout& a) {
  i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (i >= a.n) return;
  uint4 x = philox(a.seed, (u64)i / 4, a.call);
  const T* in = (const T*)a.in;
  T* out = (T*)a.out;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    if (i + k >= a.n) return;
    bool keep = word(x, k) >= a.threshold;
    if (a.mask) a.mask[i + k] = keep;
    out[i + k] = put<T>(keep ? get<T>(in[i + k]) * a.scale : 0.f);
  }
}
extern "C" __global__ void dropout_forward(Dropout a) { DISPATCH(a.dtype, dropout<T>(a);) }

struct DropoutBack {
  i64 n;
  const void* grad;
  void* out;
  const unsigned char* mask;
  float scale;
  int dtype;
};
template <typename T> __device__ void dropout_back(const DropoutBack& a) {
  i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * 4;
#pragma unroll
  for (int k = 0; k < 4; k++)
    if (i + k < a.n) ((T*)a.out)[i + k] = put<T>(a.mask[i + k] ? get<T>(((const T*)a.grad)[i + k]) * a.scale : 0.f);
}
extern "C" __global__ void dropout_backward(DropoutBack a) { DISPATCH(a.dtype, dropout_back<T>(a);) }
