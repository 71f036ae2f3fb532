// The steps of optimizers: the elements of up to 32 tensors in chunks, one a
// block. Parameters, gradients and states of one type are read and written
// sixteen bytes at a time.
#include "common.cuh"
#include "optimizer.cuh"

enum { CHUNK = 2048 }; // elements of a block, chunkOfUpdate of optimizer.go

// What all steps have: the blocks of tensor t are those from first[t] on.
struct Tensors {
  int tensors, dtype, grad_dtype, states;
  int fresh, pad; // fresh: states are taken as zeros
  int first[32];
  i64 n[32];
  void* param[32];
  const void* grad[32];
  void* state[3][32];
};

// SGD and Adam. flags: 1 nesterov, 4 decoupled weight decay.
struct Update {
  Tensors on;
  int kind, flags;
  float lr, rest1, beta2, rest2, eps, decay, momentum, correct1, correct2; // rest: 1 - beta, rounded once
  int pad;
};
enum { SGD, ADAM };

// Optimizers of optimizer.cuh: their numbers.
struct More {
  Tensors on;
  int kind, pad;
  float c[8];
};

// chunk_of applies rule(p, g, s), which returns the new p, to the elements of
// the block's chunk.
template <typename T, int STATES, typename R> __device__ __forceinline__ void chunk_of(const Tensors& a, R rule) {
  const int W = 16 / sizeof(T);
  struct alignas(16) Pack { T v[W]; };
  int t = 0;
  while (t + 1 < a.tensors && (int)blockIdx.x >= a.first[t + 1]) t++;
  i64 from = (i64)((int)blockIdx.x - a.first[t]) * CHUNK, to = min(a.n[t], from + CHUNK);
  T *p = (T*)a.param[t], *s[3];
  const T* g = (const T*)a.grad[t];
  u64 bits = (u64)p | (u64)g;
#pragma unroll
  for (int k = 0; k < STATES; k++) s[k] = (T*)a.state[k][t], bits |= (u64)s[k];
  bool packed = bits % 16 == 0;
  for (i64 i = from + (i64)threadIdx.x * W; packed && i + W <= to; i += (i64)blockDim.x * W) {
    Pack x = *(const Pack*)(p + i), y = *(const Pack*)(g + i), z[3];
#pragma unroll
    for (int k = 0; k < STATES; k++)
      if (!a.fresh) z[k] = *(const Pack*)(s[k] + i);
#pragma unroll
    for (int e = 0; e < W; e++) {
      float v[3] = {0, 0, 0};
#pragma unroll
      for (int k = 0; k < STATES; k++)
        if (!a.fresh) v[k] = get<T>(z[k].v[e]);
      x.v[e] = put<T>(rule(get<T>(x.v[e]), get<T>(y.v[e]), v));
#pragma unroll
      for (int k = 0; k < STATES; k++) z[k].v[e] = put<T>(v[k]);
    }
    *(Pack*)(p + i) = x;
#pragma unroll
    for (int k = 0; k < STATES; k++) *(Pack*)(s[k] + i) = z[k];
  }
  for (i64 i = (packed ? from + (to - from) / W * W : from) + threadIdx.x; i < to; i += blockDim.x) {
    float v[3] = {0, 0, 0};
    for (int k = 0; k < STATES; k++)
      if (!a.fresh) v[k] = get<T>(s[k][i]);
    p[i] = put<T>(rule(get<T>(p[i]), get<T>(g[i]), v));
    for (int k = 0; k < STATES; k++) s[k][i] = put<T>(v[k]);
  }
}

// chunk_any is chunk_of for a gradient of another type than its parameter.
template <int STATES, typename R> __device__ __forceinline__ void chunk_any(const Tensors& a, R rule) {
  int t = 0;
  while (t + 1 < a.tensors && (int)blockIdx.x >= a.first[t + 1]) t++;
  i64 from = (i64)((int)blockIdx.x - a.first[t]) * CHUNK, to = min(a.n[t], from + CHUNK);
  for (i64 i = from + threadIdx.x; i < to; i += blockDim.x) {
    float v[3] = {0, 0, 0};
    for (int k = 0; k < STATES; k++)
      if (!a.fresh) v[k] = loadf(a.state[k][t], a.dtype, i);
    store<float>(a.param[t], a.dtype, i, rule(loadf(a.param[t], a.dtype, i), loadf(a.grad[t], a.grad_dtype, i), v));
    for (int k = 0; k < STATES; k++) store<float>(a.state[k][t], a.dtype, i, v[k]);
  }
}

// CHUNKS applies a rule in the types of the tensors.
#define CHUNKS(STATES, rule)                                          \
  if (a.on.dtype != a.on.grad_dtype) chunk_any<STATES>(a.on, rule);   \
  else DISPATCH(a.on.dtype, chunk_of<T COMMA STATES>(a.on, rule);)

// sgd_rule is a step of SGD with a momentum, or without.
template <bool MOMENTUM> struct SGDRule {
  const Update& a;
  __device__ __forceinline__ float operator()(float p, float g, float* s) const {
    if (a.decay != 0) g += a.decay * p;
    if (MOMENTUM) {
      s[0] = a.on.fresh ? g : a.momentum * s[0] + g;
      g = a.flags & 1 ? g + a.momentum * s[0] : s[0];
    }
    return p - a.lr * g;
  }
};

struct AdamRule {
  const Update& a;
  float rate, root; // of the step: lr / correct1 and the root of correct2
  __device__ __forceinline__ float operator()(float p, float g, float* s) const {
    if (a.flags & 4) p *= 1 - a.lr * a.decay;
    else if (a.decay != 0) g += a.decay * p;
    s[0] += a.rest1 * (g - s[0]);
    s[1] = a.beta2 * s[1] + a.rest2 * g * g;
    return p - rate * s[0] / (sqrtf(s[1]) / root + a.eps);
  }
};

template <int KIND> struct MoreRule {
  const More& a;
  __device__ __forceinline__ float operator()(float p, float g, float* s) const { return optimizer_step(KIND, a.c, p, g, s); }
};

extern "C" __global__ void __launch_bounds__(256) optimizer_sgd(Update a) { CHUNKS(0, SGDRule<false>{a}) }
extern "C" __global__ void __launch_bounds__(256) optimizer_momentum(Update a) { CHUNKS(1, SGDRule<true>{a}) }
extern "C" __global__ void __launch_bounds__(256) optimizer_adam(Update a) {
  AdamRule rule = {a, a.lr / a.correct1, sqrtf(a.correct2)};
  CHUNKS(2, rule)
}

// MORE is the kernel of a kind of optimizer.cuh.
#define MORE(name, KIND, STATES) \
  extern "C" __global__ void __launch_bounds__(256) optimizer_##name(More a) { CHUNKS(STATES, MoreRule<KIND>{a}) }
MORE(amsgrad, AMSGRAD, 3)
MORE(adagrad, ADAGRAD, 1)
MORE(rmsprop, RMSPROP, 1)
MORE(rmsprop_momentum, RMSPROP_MOMENTUM, 2)
MORE(rmsprop_centered, RMSPROP_CENTERED, 2)
MORE(adadelta, ADADELTA, 2)
MORE(lion, LION, 1)
MORE(adamax, ADAMAX, 2)
MORE(nadam, NADAM, 2)
MORE(radam, RADAM, 2)
