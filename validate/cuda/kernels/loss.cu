// Losses over class indices and the optimizers' updates.
#include "common.cuh"
#include "optimizer.cuh"

__device__ float scratch[1 << 12];

// Negative log-likelihood: logits [rows/inner, classes, inner], one target a row.
struct NLL {
  i64 rows, classes, inner, ignore;
  const void *in, *target, *grad, *total;
  void *out, *weight; // the loss, and how many rows count; backward: out is the operand's gradient
  int dtype, target_dtype, mean, blocks;
};

__device__ __forceinline__ i64 nll_target(const NLL& a, i64 r) {
  return a.target_dtype == I32 ? ((const int*)a.target)[r] : ((const i64*)a.target)[r];
}

extern "C" __global__ void nll_partial(NLL a) {
  float sum = 0, count = 0;
  for (i64 r = (i64)blockIdx.x * blockDim.x + threadIdx.x; r < a.rows; r += (i64)gridDim.x * blockDim.x) {
    i64 t = nll_target(a, r);
    if (t == a.ignore) continue;
    i64 n = r / a.inner, p = r % a.inner;
    sum -= loadf(a.in, a.dtype, (n * a.classes + t) * a.inner + p);
    count += 1;
  }
  sum = block_sum(sum);
  count = block_sum(count);
  if (threadIdx.x == 0) {
    scratch[2 * blockIdx.x] = sum;
    scratch[2 * blockIdx.x + 1] = count;
  }
}
// nll_finish adds the blocks' sums: one warp.
extern "C" __global__ void nll_finish(NLL a) {
  double sum = 0, count = 0;
  for (int b = threadIdx.x; b < a.blocks; b += 32) {
    sum += scratch[2 * b];
    count += scratch[2 * b + 1];
  }
  for (int o = 16; o; o >>= 1) {
    sum += __shfl_xor_sync(0xffffffffu, sum, o);
    count += __shfl_xor_sync(0xffffffffu, count, o);
  }
  if (threadIdx.x) return;
  store<double>(a.out, a.dtype, 0, a.mean ? sum / count : sum);
  store<double>(a.weight, a.dtype, 0, count);
}

// nll_backward writes the one element of each row that is not zero; the others
// are there already.
extern "C" __global__ void nll_backward(NLL a) {
  i64 r = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= a.rows) return;
  i64 t = nll_target(a, r), n = r / a.inner, p = r - n * a.inner;
  if (t == a.ignore || t < 0 || t >= a.classes) return;
  float g = -loadf(a.grad, a.dtype, 0);
  if (a.mean) g /= loadf(a.total, a.dtype, 0);
  store<float>(a.out, a.dtype, (n * a.classes + t) * a.inner + p, g);
}

// An optimizer's step on up to 32 tensors: y counts tensors.
struct Update {
  int tensors, kind, dtype, flags; // flags: 1 nesterov, 2 the first step, 4 decoupled weight decay
  float lr, rest1, beta2, rest2, eps, decay, momentum, correct1, correct2; // rest: 1 - beta, rounded once
  int grad_dtype, state_dtype, pad;
  i64 n[32];
  void* param[32];
  const void* grad[32];
  void* state0[32];
  void* state1[32];
};
enum { SGD, ADAM };

extern "C" __global__ void optimizer_update(Update a) {
  int t = blockIdx.y;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < a.n[t]; i += (i64)gridDim.x * blockDim.x) {
    float p = loadf(a.param[t], a.dtype, i), g = loadf(a.grad[t], a.grad_dtype, i);
    bool first = a.flags & 2;
    if (a.kind == ADAM && a.flags & 4) p *= 1 - a.lr * a.decay;
    else if (a.decay != 0) g += a.decay * p;
    switch (a.kind) {
    case SGD: {
      if (a.momentum != 0) {
        float b = first ? g : a.momentum * loadf(a.state0[t], a.state_dtype, i) + g;
        store<float>(a.state0[t], a.state_dtype, i, b);
        g = a.flags & 1 ? g + a.momentum * b : b;
      }
      p -= a.lr * g;
      break;
    }
    case ADAM: {
      float m = first ? 0.f : loadf(a.state0[t], a.state_dtype, i), v = first ? 0.f : loadf(a.state1[t], a.state_dtype, i);
      m += a.rest1 * (g - m);
      v = a.beta2 * v + a.rest2 * g * g;
      store<float>(a.state0[t], a.state_dtype, i, m);
      store<float>(a.state1[t], a.state_dtype, i, v);
      p -= a.lr / a.correct1 * m / (sqrtf(v) / sqrtf(a.correct2) + a.eps);
      break;
    }
    }
    store<float>(a.param[t], a.dtype, i, p);
  }
}

// Optimizers of optimizer.cuh: numbers, and up to three states of the parameter's
// size.
struct More {
  int tensors, kind, dtype, grad_dtype, first, states;
  float c[8];
  i64 n[32];
  void* param[32];
  const void* grad[32];
  void* state[3][32];
};

extern "C" __global__ void optimizer_more(More a) {
  int t = blockIdx.y;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < a.n[t]; i += (i64)gridDim.x * blockDim.x) {
    float s[3];
    for (int k = 0; k < 3; k++) s[k] = a.first || k >= a.states ? 0.f : loadf(a.state[k][t], a.dtype, i);
    float p = optimizer_step(a.kind, a.c, loadf(a.param[t], a.dtype, i), loadf(a.grad[t], a.grad_dtype, i), s);
    for (int k = 0; k < a.states; k++) store<float>(a.state[k][t], a.dtype, i, s[k]);
    store<float>(a.param[t], a.dtype, i, p);
  }
}
