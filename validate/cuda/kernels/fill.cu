// Fills and random numbers.
#include "common.cuh"
#include "group.cuh"

// Fills whose elements depend on their place, counted row by row.
struct Fill {
  i64 n, rows, cols, diagonal; // triangles: of one matrix
  void* out;
  const void* in; // triangles: what they are cut from, contiguous
  int dtype, kind, dims, pad;
  i64 size[8], stride[8];
  double a, b;
  u64 seed;
};
enum { ARANGE, TRIL, TRIU, UNIFORM, NORMAL, BELOW, BERNOULLI, CAUSAL };

extern "C" __global__ void fill_index(Fill a) {
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += (i64)gridDim.x * blockDim.x) {
    i64 at = place_of(i, a.dims, a.size, a.stride);
    i64 c = a.cols ? i % a.cols : 0, r = a.cols ? i / a.cols % a.rows : 0;
    double v = 0;
    switch (a.kind) {
    case ARANGE:
      if (a.dtype >= I64) {
        store<i64>(a.out, a.dtype, at, (i64)(a.a + (double)i * a.b));
        continue;
      }
      v = a.a + (double)i * a.b;
      break;
    case TRIL: v = c <= r + a.diagonal ? load<double>(a.in, a.dtype, i) : 0; break;
    case TRIU: v = c >= r + a.diagonal ? load<double>(a.in, a.dtype, i) : 0; break;
    case CAUSAL: v = c <= r ? 0.0 : -INFINITY; break;
    case UNIFORM: v = a.a + (double)uniform(a.seed, i) * (a.b - a.a); break;
    case BERNOULLI: v = (double)uniform(a.seed, i) < a.a; break;
    case BELOW:
      store<i64>(a.out, a.dtype, at, (i64)a.a + (i64)((double)uniform(a.seed, i) * (a.b - a.a)));
      continue;
    case NORMAL: v = a.a + a.b * sqrt(-2.0 * log1p(-(double)uniform(a.seed, 2 * i))) * cospi(2.0 * (double)uniform(a.seed, 2 * i + 1)); break;
    }
    store<double>(a.out, a.dtype, at, v);
  }
}

// Dropout: an element is kept where its random number is at least p. The mask
// depends on the seed and the element's place alone. Without dims, all operands
// are contiguous.
struct Dropout {
  i64 n;
  const void* in;
  void* out;
  unsigned char* mask;
  u64 seed;
  double p; // compared as the CPU device does
  float scale;
  int dtype, dims, pad;
  i64 size[8], stride[3][8]; // of operand, result, mask
};

template <typename T> __device__ void dropout(const Dropout& a) {
  i64 first = (i64)blockIdx.x * blockDim.x * 4 + threadIdx.x;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    i64 i = first + k * blockDim.x;
    if (i >= a.n) return;
    i64 x = i, y = i, m = i;
    if (a.dims) x = place_of(i, a.dims, a.size, a.stride[0]), y = place_of(i, a.dims, a.size, a.stride[1]), m = place_of(i, a.dims, a.size, a.stride[2]);
    bool keep = uniform(a.seed, i) >= (float)a.p;
    a.mask[m] = keep;
    ((T*)a.out)[y] = put<T>(keep ? get<T>(((const T*)a.in)[x]) * a.scale : 0.f);
  }
}
// dropout_by_eight is dropout of contiguous operands at multiples of sixteen
// bytes, eight elements a thread.
template <typename T> __device__ void dropout_by_eight(const Dropout& a) {
  const u64 step = 0x9e3779b97f4a7c15ull; // of uniform
  i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * 8;
  if (i >= a.n) return;
  const T* in = (const T*)a.in + i;
  T* out = (T*)a.out + i;
  unsigned char* mask = a.mask + i;
  u64 z = a.seed + (u64)(i + 1) * step;
  float p = (float)a.p;
  if (i + 8 > a.n) {
    for (int k = 0; k < a.n - i; k++, z += step) {
      bool keep = (float)(mix(z) >> 40) * (1.f / 16777216.f) >= p;
      mask[k] = keep;
      out[k] = put<T>(keep ? get<T>(in[k]) * a.scale : 0.f);
    }
    return;
  }
  Group<T, 8> x = *(const Group<T, 8>*)in;
  Group<unsigned char, 8> m;
#pragma unroll
  for (int k = 0; k < 8; k++, z += step) {
    bool keep = (float)(mix(z) >> 40) * (1.f / 16777216.f) >= p;
    m.v[k] = keep;
    x.v[k] = put<T>(keep ? get<T>(x.v[k]) * a.scale : 0.f);
  }
  *(Group<T, 8>*)out = x;
  *(Group<unsigned char, 8>*)mask = m;
}
extern "C" __global__ void dropout_forward_8(Dropout a) { DISPATCH(a.dtype, dropout_by_eight<T>(a);) }

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
  i64 first = (i64)blockIdx.x * blockDim.x * 4 + threadIdx.x;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    i64 i = first + k * blockDim.x;
    if (i < a.n) ((T*)a.out)[i] = put<T>(a.mask[i] ? get<T>(((const T*)a.grad)[i]) * a.scale : 0.f);
  }
}
template <typename T> __device__ void dropout_back_by_eight(const DropoutBack& a) {
  i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * 8;
  if (i + 8 <= a.n) {
    Group<T, 8> x = *(const Group<T, 8>*)((const T*)a.grad + i);
    Group<unsigned char, 8> m = *(const Group<unsigned char, 8>*)(a.mask + i);
#pragma unroll
    for (int k = 0; k < 8; k++) x.v[k] = put<T>(m.v[k] ? get<T>(x.v[k]) * a.scale : 0.f);
    *(Group<T, 8>*)((T*)a.out + i) = x;
    return;
  }
  for (; i < a.n; i++) ((T*)a.out)[i] = put<T>(a.mask[i] ? get<T>(((const T*)a.grad)[i]) * a.scale : 0.f);
}
extern "C" __global__ void dropout_backward_8(DropoutBack a) { DISPATCH(a.dtype, dropout_back_by_eight<T>(a);) }

extern "C" __global__ void dropout_backward(DropoutBack a) { DISPATCH(a.dtype, dropout_back<T>(a);) }

// Rows of scores without a finite number: their softmax is 0.
struct EmptyRows {
  i64 rows, cols;
  const void* scores;
  void* out;
  int dtype, out_dtype;
};
extern "C" __global__ void empty_rows(EmptyRows a) {
  float most = -INFINITY;
  for (i64 c = threadIdx.x; c < a.cols; c += blockDim.x) most = fmaxf(most, loadf(a.scores, a.dtype, blockIdx.x * a.cols + c));
  if (block_max(most) != -INFINITY) return;
  for (i64 c = threadIdx.x; c < a.cols; c += blockDim.x) store<float>(a.out, a.out_dtype, blockIdx.x * a.cols + c, 0.f);
}

// Products of matrices that cuBLAS does not take: other types, mixed ones, or
// strides in both dims.
struct MatMul {
  i64 batch, m, n, k;
  i64 a_stride[3], b_stride[3], c_stride[3], add_stride[3];
  const void *a, *b, *add;
  void* c;
  int a_dtype, b_dtype, c_dtype, add_dtype;
};
extern "C" __global__ void matmul_any(MatMul p) {
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < p.batch * p.m * p.n; i += (i64)gridDim.x * blockDim.x) {
    i64 n = i % p.n, m = i / p.n % p.m, b = i / p.n / p.m;
    i64 x = b * p.a_stride[0] + m * p.a_stride[1], y = b * p.b_stride[0] + n * p.b_stride[2];
    i64 at = b * p.c_stride[0] + m * p.c_stride[1] + n * p.c_stride[2];
    i64 add = b * p.add_stride[0] + m * p.add_stride[1] + n * p.add_stride[2];
    if (p.c_dtype >= I64) {
      i64 sum = p.add ? load<i64>(p.add, p.add_dtype, add) : 0;
      for (i64 k = 0; k < p.k; k++) sum += load<i64>(p.a, p.a_dtype, x + k * p.a_stride[2]) * load<i64>(p.b, p.b_dtype, y + k * p.b_stride[1]);
      store<i64>(p.c, p.c_dtype, at, sum);
    } else if (p.c_dtype == F64) {
      double sum = p.add ? load<double>(p.add, p.add_dtype, add) : 0;
      for (i64 k = 0; k < p.k; k++) sum += load<double>(p.a, p.a_dtype, x + k * p.a_stride[2]) * load<double>(p.b, p.b_dtype, y + k * p.b_stride[1]);
      store<double>(p.c, p.c_dtype, at, sum);
    } else {
      float sum = p.add ? loadf(p.add, p.add_dtype, add) : 0;
      for (i64 k = 0; k < p.k; k++) sum += loadf(p.a, p.a_dtype, x + k * p.a_stride[2]) * loadf(p.b, p.b_dtype, y + k * p.b_stride[1]);
      store<float>(p.c, p.c_dtype, at, sum);
    }
  }
}
