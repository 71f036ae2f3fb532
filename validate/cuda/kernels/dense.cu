// Vector kernels for the elementwise operators that a training step spends its
// time in.
#include "group.cuh"
#include "real.cuh"

// The vector kernels: all operands of one type, dense and in the same order.
struct Dense {
  i64 n;
  void* ptr[4];
  double scalar[4];
  double param[4];
};

template <typename T, int OP, int IN> __device__ void dense(const Dense& a) {
  const int W = 16 / sizeof(T);
  i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * W;
  if (i >= a.n) return;
  Group<T, W> x[3];
  float s[3];
#pragma unroll
  for (int o = 0; o < 3; o++) s[o] = (float)a.scalar[o + 1];
  if (i + W <= a.n) {
#pragma unroll
    for (int o = 0; o < IN; o++)
      if (a.ptr[o + 1]) x[o] = *(const Group<T, W>*)((const T*)a.ptr[o + 1] + i);
    Group<T, W> y;
#pragma unroll
    for (int k = 0; k < W; k++) {
      float v[3] = {s[0], s[1], s[2]};
#pragma unroll
      for (int o = 0; o < IN; o++)
        if (a.ptr[o + 1]) v[o] = get<T>(x[o].v[k]);
      y.v[k] = put<T>(apply_real<float>(OP, v[0], v[1], v[2], a.param));
    }
    *(Group<T, W>*)((T*)a.ptr[0] + i) = y;
    return;
  }
  for (; i < a.n; i++) {
    float v[3] = {s[0], s[1], s[2]};
    for (int o = 0; o < IN; o++)
      if (a.ptr[o + 1]) v[o] = get<T>(((const T*)a.ptr[o + 1])[i]);
    ((T*)a.ptr[0])[i] = put<T>(apply_real<float>(OP, v[0], v[1], v[2], a.param));
  }
}

#define HOT(name, code, inputs)                                                                               \
  extern "C" __global__ void dense_##name##_f32(Dense a) { dense<float, code, inputs>(a); }                   \
  extern "C" __global__ void dense_##name##_f16(Dense a) { dense<__half, code, inputs>(a); }                  \
  extern "C" __global__ void dense_##name##_bf16(Dense a) { dense<__nv_bfloat16, code, inputs>(a); }
#include "pointwise_hot.inc"
#undef HOT

// Casts between the three training types, dense: two groups of four a thread, a
// block's width apart.
template <typename A, typename B> __device__ void convert(const Dense& a) {
  const A* in = (const A*)a.ptr[1];
  B* out = (B*)a.ptr[0];
  i64 first = ((i64)blockIdx.x * blockDim.x * 2 + threadIdx.x) * 4, far = (i64)blockDim.x * 4;
  if (first + far + 4 <= a.n) {
    Group<A, 4> x[2] = {*(const Group<A, 4>*)(in + first), *(const Group<A, 4>*)(in + first + far)};
#pragma unroll
    for (int p = 0; p < 2; p++) {
      Group<B, 4> y;
#pragma unroll
      for (int k = 0; k < 4; k++) y.v[k] = put<B>(get<A>(x[p].v[k]));
      *(Group<B, 4>*)(out + first + p * far) = y;
    }
    return;
  }
  for (int p = 0; p < 2; p++)
    for (i64 i = first + p * far; i < min(first + p * far + 4, a.n); i++) out[i] = put<B>(get<A>(in[i]));
}
extern "C" __global__ void cast_f32_f16(Dense a) { convert<float, __half>(a); }
extern "C" __global__ void cast_f32_bf16(Dense a) { convert<float, __nv_bfloat16>(a); }
extern "C" __global__ void cast_f16_f32(Dense a) { convert<__half, float>(a); }
extern "C" __global__ void cast_bf16_f32(Dense a) { convert<__nv_bfloat16, float>(a); }
