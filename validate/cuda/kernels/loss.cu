// Losses over class indices.
#include "common.cuh"

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
