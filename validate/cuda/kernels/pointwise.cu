// Elementwise operators over strided operands: one kernel for each compute
// type, the operator chosen at run time.
#include "divide.cuh"
#include "real.cuh"

struct Pointwise {
  i64 n;
  int op, dims, inputs, pad;
  i64 size[8];
  i64 stride[4][8]; // operand 0 is the result; a stride of 0 broadcasts
  void* ptr[4];     // null: the operand is the number in scalar
  int dtype[4];
  double scalar[4];
  double param[4];
  Divider by[8]; // size, where I has 32 bits
};

__device__ __forceinline__ i64 floor_div(i64 a, i64 b) {
  if (b == 0) return 0;
  i64 q = a / b;
  return a % b != 0 && ((a < 0) != (b < 0)) ? q - 1 : q;
}

__device__ __forceinline__ i64 ipow(i64 a, i64 b) {
  if (b < 0) return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;
  i64 r = 1;
  for (; b; b >>= 1, a *= a)
    if (b & 1) r *= a;
  return r;
}

__device__ __forceinline__ i64 apply_int(int op, i64 a, i64 b, i64 c, const double* p) {
  switch (op) {
#define INTEGER(code, expr) case code: return (i64)(expr);
#include "pointwise_int.inc"
#undef INTEGER
  }
  return 0;
}

template <typename C> __device__ __forceinline__ C apply(int op, C a, C b, C c, const double* p) { return apply_real<C>(op, a, b, c, p); }
template <> __device__ __forceinline__ i64 apply<i64>(int op, i64 a, i64 b, i64 c, const double* p) { return apply_int(op, a, b, c, p); }

// run computes four elements a thread, a block's width apart. I is the type of
// indices: 32 bits wherever they suffice, since division is what costs.
template <typename C, typename I> __device__ void run(const Pointwise& a) {
  I first = (I)blockIdx.x * (I)(blockDim.x * 4) + threadIdx.x;
#pragma unroll 1
  for (int k = 0; k < 4; k++) {
    I i = first + (I)(k * blockDim.x);
    if ((i64)i >= a.n) return;
    i64 off[4] = {0, 0, 0, 0};
    I rest = i;
    for (int d = a.dims - 1; d > 0; d--) {
      I size = (I)a.size[d], q = sizeof(I) == 4 ? (I)quotient((u32)rest, a.by[d]) : rest / size, r = rest - q * size;
      rest = q;
      for (int o = 0; o < 4; o++) off[o] += (i64)r * a.stride[o][d];
    }
    for (int o = 0; o < 4; o++) off[o] += (i64)rest * a.stride[o][0];
    C v[3];
#pragma unroll
    for (int o = 1; o < 4; o++)
      v[o - 1] = o <= a.inputs && a.ptr[o] ? load<C>(a.ptr[o], a.dtype[o], off[o]) : (C)a.scalar[o];
    store<C>(a.ptr[0], a.dtype[0], off[0], apply<C>(a.op, v[0], v[1], v[2], a.param));
  }
}

extern "C" __global__ void pointwise_f32(Pointwise a) { run<float, u32>(a); }
extern "C" __global__ void pointwise_f64(Pointwise a) { run<double, i64>(a); }
extern "C" __global__ void pointwise_i64(Pointwise a) { run<i64, i64>(a); }
extern "C" __global__ void pointwise_f32_long(Pointwise a) { run<float, i64>(a); }
